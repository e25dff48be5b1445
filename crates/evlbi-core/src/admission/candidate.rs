//! Candidates: pending datagrams that may or may not belong to the stream.

use std::collections::VecDeque;
use std::time::Duration;

use evlbi_wire::{vdif, vtp};

use crate::deframe::Wanted;
use crate::peer::Peer;
use crate::time::Nanos;

use super::flow::{Arrival, Flow};
use super::frames::Frames;
use super::numbering::Numbering;
use super::pace::MIN_JUMP;

/// Minimum number of datagrams of a stream with frames.
pub const ENOUGH: usize = 8;
/// Minimum number of datagrams of a stream without frames, since eight tiny ones must not suffice.
pub const RAW_ENOUGH: usize = 64;
/// Maximum number of datagrams in which the numbering must be found.
const MAX_UNNUMBERED: usize = 512;
/// Maximum number of bytes that are searched for frames at once.
pub const MAX_SEARCHED: usize = 1 << 20;
/// Maximum number of a single datagram that is a stream: eight bytes of something else are seldom below this.
const MAX_NUMBER: u64 = 1 << 48;
/// Memory of a pending datagram besides its bytes.
const PENDING_COST: usize = 128;

/// Pending datagram.
#[derive(Clone, Debug)]
pub struct Pending {
    source: Peer,
    port: usize,
    stamp: Option<Duration>,
    /// Number of datagrams that had arrived, including this one.
    pub order: u64,
    /// When it was read from the kernel, which returns many at once.
    pub at: Nanos,
    bytes: Vec<u8>,
}

impl Pending {
    pub fn arrival(&self) -> Arrival<'_> {
        Arrival {
            bytes: &self.bytes,
            source: self.source,
            port: self.port,
            stamp: self.stamp,
        }
    }
}

/// Known properties of a candidate that can become the stream.
pub struct Known {
    pub numbering: Box<dyn Numbering>,
    pub frames: Option<Frames>,
    /// Bytes of data in each datagram.
    pub data: usize,
}

/// Flow that is not the live stream.
#[derive(Default)]
pub struct Candidate {
    pub flow: Flow,
    /// Pending datagrams in order of arrival.
    pub kept: VecDeque<Pending>,
    pub known: Option<Known>,
    /// Number of the last datagram, if a datagram alone gives it.
    pub newest: Option<u64>,
    /// Memory of the pending datagrams, in bytes.
    pub bytes: usize,
    /// Number of datagrams at the last search for frames.
    judged: usize,
}

impl Candidate {
    pub fn new(arrival: &Arrival<'_>, ports: usize) -> Candidate {
        Candidate {
            flow: Flow::of(arrival, ports),
            ..Candidate::default()
        }
    }

    /// Returns whether a datagram with this number, if a datagram alone gives it, may belong to this flow.
    pub fn may_have(&self, arrival: &Arrival<'_>, number: Option<u64>) -> bool {
        let is_near = |(newest, number): (u64, u64)| {
            let step = number.wrapping_sub(newest);
            step.min(step.wrapping_neg()) <= MIN_JUMP
        };
        self.flow.may_have(arrival) && self.newest.zip(number).is_none_or(is_near)
    }

    /// Keeps the datagram that arrived as number `order` of all. `live` is the number of the last datagram of the live stream, if
    /// there is one. Returns how many datagrams are dropped because the live stream continues.
    pub fn keep(
        &mut self,
        arrival: &Arrival<'_>,
        order: u64,
        number: Option<u64>,
        live: Option<u64>,
        read: Nanos,
        now: Nanos,
    ) -> u64 {
        let mut given_up = 0;
        let last = self.kept.back().map(|kept| kept.order);
        if last.zip(live).is_some_and(|(last, live)| last < live) {
            while self.known.is_some() && self.kept.len() >= ENOUGH {
                given_up += u64::from(self.give_up_oldest());
            }
        }
        self.newest = number;
        self.flow.heard(arrival, read, now);
        if let Some(known) = &mut self.known {
            known.see(arrival.bytes);
        }
        self.bytes += arrival.bytes.len() + PENDING_COST;
        self.kept.push_back(Pending {
            source: arrival.source,
            port: arrival.port,
            stamp: arrival.stamp,
            order,
            at: now,
            bytes: arrival.bytes.to_vec(),
        });
        given_up
    }

    /// Returns whether enough of its datagrams arrived since the live stream's last, which was number `live` of all.
    pub fn is_alone_since(&self, live: u64) -> bool {
        let first = self.kept.iter().rev().nth(ENOUGH - 1);
        first.is_some_and(|kept| kept.order > live)
    }

    /// Returns the arrival number of the first pending datagram.
    pub fn begun(&self) -> u64 {
        self.kept.front().map_or(u64::MAX, |kept| kept.order)
    }

    /// Drops the oldest pending datagram; returns whether there was one.
    pub fn give_up_oldest(&mut self) -> bool {
        let oldest = self.kept.pop_front();
        let memory = |kept: &Pending| kept.bytes.len() + PENDING_COST;
        self.bytes -= oldest.as_ref().map_or(0, memory);
        oldest.is_some()
    }

    /// Drops all pending datagrams; returns how many.
    pub fn give_up(&mut self) -> u64 {
        self.bytes = 0;
        self.judged = 0;
        self.kept.drain(..).count() as u64
    }

    /// Drops all pending datagrams if there are at least `count`; returns how many.
    fn give_up_from(&mut self, count: usize) -> u64 {
        match self.kept.len() >= count {
            true => self.give_up(),
            false => 0,
        }
    }

    /// Returns whether it may be judged now and has more datagrams than at the last time, until frames are found or too much was
    /// searched.
    pub fn is_due(&self) -> bool {
        let is_open = match &self.known {
            None => true,
            Some(known) => known.frames.is_none() && self.bytes <= MAX_SEARCHED,
        };
        is_open && self.kept.len() >= ENOUGH.max(2 * self.judged)
    }

    /// Judges whether this is a stream, and whether it contains frames. `all`: no more datagrams will arrive. Returns how many
    /// datagrams are dropped because they are not part of a stream.
    pub fn judge(&mut self, template: &dyn Numbering, wanted: Wanted, all: bool) -> u64 {
        let count = self.kept.len();
        self.judged = count;
        let datagrams = self.datagrams();
        let Some(numbering) = template.of(&datagrams, all) else {
            return self.give_up_from(MAX_UNNUMBERED);
        };
        let numbered = numbered(&*numbering, &datagrams);
        if !number_on(&numbered, count) {
            return self.give_up_from(RAW_ENOUGH);
        }
        let decide = all || count >= RAW_ENOUGH;
        let data = numbered.first().map_or(0, |(_, data)| data.len());
        let searched = numbered.len().min((MAX_SEARCHED / data.max(1)).max(1));
        let frames = Frames::find(&numbered[..searched], decide, wanted).map(|mut frames| {
            for (number, data) in &numbered[searched..] {
                frames.see(*number, data);
            }
            frames
        });
        if frames.is_some() || decide {
            self.known = Some(Known {
                numbering,
                frames,
                data,
            });
        }
        0
    }

    /// Returns whether frames were found.
    pub fn has_frames(&self) -> bool {
        let known = self.known.as_ref();
        known.is_some_and(|known| known.frames.is_some())
    }

    /// Returns whether it has enough datagrams and recent frames to replace another stream.
    pub fn is_ready(&self) -> bool {
        let Some(known) = &self.known else {
            return false;
        };
        let frames = known.frames.as_ref();
        self.kept.len() >= ENOUGH && frames.is_none_or(Frames::are_there_lately)
    }

    /// Returns the lowest pending number; `None` if no datagram has one.
    pub fn lowest(&self) -> Option<u64> {
        let datagrams = self.datagrams();
        let numbered = numbered(&*self.known.as_ref()?.numbering, &datagrams);
        let (first, _) = *numbered.first()?;
        let back = numbered
            .iter()
            .map(|(number, _)| first.wrapping_sub(*number));
        let back = back.filter(|back| *back <= MIN_JUMP).max();
        Some(first.wrapping_sub(back.unwrap_or(0)))
    }

    fn datagrams(&self) -> Vec<&[u8]> {
        self.kept.iter().map(|kept| &kept.bytes[..]).collect()
    }

    /// Returns whether this looks like the start of a stream: two or more datagrams with consecutive numbers, or one that
    /// contains whole VDIF frames. A probe does not.
    pub fn is_promising(&self, template: &dyn Numbering) -> bool {
        let mut newest = self.kept.iter().rev().map(|kept| &kept.bytes[..]);
        match (newest.next(), newest.next()) {
            (Some(one), None) => {
                vtp::split(one).is_some_and(|(_, data)| holds_frames(data)) || holds_frames(one)
            }
            (Some(two), Some(one)) => match template.alone(one).zip(template.alone(two)) {
                Some((one, two)) => follow(one, two),
                None => holds_frames(one) && holds_frames(two),
            },
            _ => false,
        }
    }

    /// Returns whether these few can be a whole stream: they have consecutive numbers, or there is only one, with a number that a
    /// sender can have reached. A port scan does not qualify.
    pub fn may_be_all(&mut self, template: &dyn Numbering, wanted: Wanted) -> bool {
        if let ([one], Some(number)) = (self.kept.make_contiguous() as &[Pending], self.newest)
            && (number >= MAX_NUMBER || one.bytes.len() <= vtp::HEADER_LEN)
        {
            return false;
        }
        if self.known.is_none() {
            self.judge(template, wanted, true);
        }
        self.known.is_some()
    }
}

impl Known {
    fn see(&mut self, datagram: &[u8]) {
        if let Some((number, data)) = self.numbering.split(datagram)
            && let Some(frames) = &mut self.frames
        {
            frames.see(number, data);
        }
        self.numbering.heard(datagram);
    }
}

/// Returns number and data of those datagrams that have a number.
fn numbered<'a>(numbering: &dyn Numbering, datagrams: &[&'a [u8]]) -> Vec<(u64, &'a [u8])> {
    let datagrams = datagrams.iter();
    let numbered = datagrams.filter_map(|datagram| numbering.split(datagram));
    numbered.filter(|(_, data)| !data.is_empty()).collect()
}

/// Returns whether most of `count` datagrams have numbers that are close together and distinct. A copy of each does not count: a
/// mirror port of a switch may show both directions of a link.
fn number_on(numbered: &[(u64, &[u8])], count: usize) -> bool {
    let pairs = || numbered.array_windows();
    let close = pairs().filter(|[one, next]| follow(one.0, next.0)).count();
    let copies = pairs().filter(|[one, next]| one == next).count();
    !numbered.is_empty() && 2 * (close + 1) > count - copies.min(close)
}

fn follow(one: u64, next: u64) -> bool {
    let step = next.wrapping_sub(one);
    step != 0 && step.min(step.wrapping_neg()) <= MIN_JUMP
}

/// Returns whether the data consists of whole VDIF frames of one length.
fn holds_frames(data: &[u8]) -> bool {
    vdif::Header::parse(data).is_ok_and(|header| {
        let length = header.frame_length();
        header.shape().check().is_ok()
            && data.len().is_multiple_of(length)
            && data.chunks(length).all(|frame| {
                vdif::Header::parse(frame).is_ok_and(|next| next.shape() == header.shape())
            })
    })
}
