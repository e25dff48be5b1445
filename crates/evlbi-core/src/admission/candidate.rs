//! Datagrams of which it is not known yet whether they are the stream.

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

/// Datagrams with frames that make a stream.
pub const ENOUGH: usize = 8;
/// Datagrams without frames that make one: eight tiny ones must not.
pub const RAW_ENOUGH: usize = 64;
/// Datagrams from which it must be clear how they are numbered.
const MAX_UNNUMBERED: usize = 512;
/// Limit on the bytes in which frames are searched for at once.
pub const MAX_SEARCHED: usize = 1 << 20;
/// A single datagram is a stream only if its number is below this: eight bytes of something else seldom are.
const MAX_NUMBER: u64 = 1 << 48;
/// Memory that a kept datagram takes beside its bytes.
const PENDING_COST: usize = 128;

/// A datagram that is kept.
#[derive(Clone, Debug)]
pub struct Pending {
    source: Peer,
    port: usize,
    stamp: Option<Duration>,
    /// How many had come with it.
    pub order: u64,
    /// When it was taken from the kernel: many are at once.
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

/// What is known of a candidate that can become the stream.
pub struct Known {
    pub numbering: Box<dyn Numbering>,
    pub frames: Option<Frames>,
    /// Bytes of data in each datagram.
    pub data: usize,
}

/// A flow that is not the live stream.
#[derive(Default)]
pub struct Candidate {
    pub flow: Flow,
    /// Its datagrams in the order of their arrival.
    pub kept: VecDeque<Pending>,
    pub known: Option<Known>,
    /// The number that came last, where a datagram tells it by itself.
    pub newest: Option<u64>,
    /// Memory that is kept.
    pub bytes: usize,
    /// Of how many datagrams it was judged last.
    judged: usize,
}

impl Candidate {
    pub fn new(arrival: &Arrival<'_>, ports: usize) -> Candidate {
        Candidate {
            flow: Flow::of(arrival, ports),
            ..Candidate::default()
        }
    }

    /// Whether a datagram with this number, where it tells one, may be this flow's.
    pub fn may_have(&self, arrival: &Arrival<'_>, number: Option<u64>) -> bool {
        let is_near = |(newest, number): (u64, u64)| {
            let step = number.wrapping_sub(newest);
            step.min(step.wrapping_neg()) <= MIN_JUMP
        };
        self.flow.may_have(arrival) && self.newest.zip(number).is_none_or(is_near)
    }

    /// Keeps the datagram that came as the `order`th of all. `live`: which of all the live stream's last was, if there is one. Returns
    /// how many datagrams are given up, because the live stream continues.
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

    /// Whether enough of its datagrams came since the live stream's last, which came as the `live`th of all.
    pub fn is_alone_since(&self, live: u64) -> bool {
        let first = self.kept.iter().rev().nth(ENOUGH - 1);
        first.is_some_and(|kept| kept.order > live)
    }

    /// Which of all that came is the first that is kept.
    pub fn begun(&self) -> u64 {
        self.kept.front().map_or(u64::MAX, |kept| kept.order)
    }

    /// Gives up the oldest datagram that is kept; says whether there was one.
    pub fn give_up_oldest(&mut self) -> bool {
        let oldest = self.kept.pop_front();
        let memory = |kept: &Pending| kept.bytes.len() + PENDING_COST;
        self.bytes -= oldest.as_ref().map_or(0, memory);
        oldest.is_some()
    }

    /// Gives up what is kept; returns how many datagrams those are.
    pub fn give_up(&mut self) -> u64 {
        self.bytes = 0;
        self.judged = 0;
        self.kept.drain(..).count() as u64
    }

    /// The same, if at least `count` datagrams are kept.
    fn give_up_from(&mut self, count: usize) -> u64 {
        match self.kept.len() >= count {
            true => self.give_up(),
            false => 0,
        }
    }

    /// Whether it may be judged now, and was not at fewer datagrams: until frames are found, or too much was searched.
    pub fn is_due(&self) -> bool {
        let is_open = match &self.known {
            None => true,
            Some(known) => known.frames.is_none() && self.bytes <= MAX_SEARCHED,
        };
        is_open && self.kept.len() >= ENOUGH.max(2 * self.judged)
    }

    /// Finds out whether this is a stream, and whether it carries frames. `all`: no more will come. Returns how many datagrams are
    /// given up, because they are none.
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

    /// Whether it is known that it carries frames.
    pub fn has_frames(&self) -> bool {
        let known = self.known.as_ref();
        known.is_some_and(|known| known.frames.is_some())
    }

    /// Whether it has enough to take the place of another, lately too.
    pub fn is_ready(&self) -> bool {
        let Some(known) = &self.known else {
            return false;
        };
        let frames = known.frames.as_ref();
        self.kept.len() >= ENOUGH && frames.is_none_or(Frames::are_there_lately)
    }

    /// The lowest number of what is kept; `None` where none has any.
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

    /// Whether what is kept looks like the beginning of a stream: two datagrams or more that number on from each other, or one that
    /// holds whole VDIF frames. A probe does not.
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

    /// Whether these few can be all of a stream: they number on from each other, or there is one only, with a number that a sender
    /// can have come to. A port scan cannot.
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

/// The numbers and data of those datagrams that have some.
fn numbered<'a>(numbering: &dyn Numbering, datagrams: &[&'a [u8]]) -> Vec<(u64, &'a [u8])> {
    let datagrams = datagrams.iter();
    let numbered = datagrams.filter_map(|datagram| numbering.split(datagram));
    numbered.filter(|(_, data)| !data.is_empty()).collect()
}

/// Whether most of so many datagrams have numbers that lie close together and differ.
fn number_on(numbered: &[(u64, &[u8])], count: usize) -> bool {
    let pairs = numbered.array_windows();
    let close = pairs.filter(|[one, next]| follow(one.0, next.0)).count();
    !numbered.is_empty() && 2 * (close + 1) > count
}

fn follow(one: u64, next: u64) -> bool {
    let step = next.wrapping_sub(one);
    step != 0 && step.min(step.wrapping_neg()) <= MIN_JUMP
}

/// Whether the data is whole VDIF frames of one length.
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
