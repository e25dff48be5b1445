//! Datagrams from one port to another: losses, if they are numbered, and their spacing.

use std::collections::HashMap;
use std::net::SocketAddr;

use evlbi_wire::packet::Datagram;
use evlbi_wire::probe::Probe;
use evlbi_wire::{vdif, vtp};
use serde::{Deserialize, Serialize};

use super::time_series::{Stretch, TimeSeries};
use super::{Extent, bits_per_second};
use evlbi_core::account::{Distribution, Report, Summary};
use evlbi_core::pudp::{Sequencer, Verdict as Framed};
use evlbi_core::reorder::{MAX_GAP, Reorder, Settings, Verdict};
use evlbi_core::time::{Nanos, apart};

/// Number of datagrams after which the kind of numbering is decided.
const ENOUGH: usize = 16;
/// Maximum number of bytes of each that are kept until then.
const MAX_KEPT: usize = 16_384;
/// Maximum difference between the numbers of most consecutive datagrams.
const NEAR: u64 = 64;
/// Bytes of a datagram that suffice to read its number.
const HEADERS: usize = 32;
/// Minimum length of datagrams that the kernel sends as one.
const MIN: usize = 16;
/// Maximum distance of a datagram behind others, in datagrams.
const WINDOW: u64 = 1 << 16;
/// Maximum frame length of any network, in bytes: a longer packet is not segmented yet.
const MAX_FRAME: u32 = 9216;
/// Maximum number of searches for several datagrams in a packet.
const MAX_SEARCHES: u32 = 16;

/// Where the numbers of a stream's datagrams are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Numbers {
    /// No known numbers.
    #[default]
    None,
    /// Sequence number in front of the data (VTP, jive5ab's udps).
    Vtp,
    /// One VDIF frame each, numbered by its time and thread (pudp).
    Vdif,
    /// Test datagrams (`evlbi probe`).
    Probe,
}

/// Report on one stream. Times in seconds are relative to the first packet of the capture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stream {
    /// Sender and receiver.
    pub ends: [SocketAddr; 2],
    /// Time of the first packet.
    pub from: f64,
    /// Time of the last packet.
    pub to: f64,
    /// Packets as captured.
    pub packets: u64,
    /// Datagrams: with segmentation offload a packet may contain several.
    pub datagrams: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// Bits of payload per second, from the first packet to the last.
    pub rate: f64,
    /// Bytes of payload per packet.
    pub lengths: Extent,
    /// Kind of numbering.
    pub numbers: Numbers,
    /// Loss, duplicates and reordering before the capture point, for numbered datagrams (RFC 7680, RFC 4737); `None` for frames
    /// that were not captured whole.
    pub account: Option<Report>,
    /// Times between packets, in nanoseconds.
    pub gaps: Option<Summary>,
    /// Constant step of the numbers from packet to packet, if it exceeds 1 while packets are no longer than a frame. Either each
    /// packet contains this many datagrams, of which the capture shows only the first, or the others were lost.
    pub step: Option<u64>,
    /// Length of an interval, in seconds.
    pub every: f64,
    /// Time series, interval by interval, starting at the stream's first packet.
    pub intervals: Vec<StreamInterval>,
}

/// Interval of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StreamInterval {
    /// When it begins, in seconds from the stream's first packet on.
    #[serde(default)]
    pub from_s: f64,
    /// Packets.
    pub packets: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// Change of the loss; late arrivals reduce it.
    pub lost: i64,
}

impl Stretch for StreamInterval {
    fn join(self, next: StreamInterval) -> StreamInterval {
        StreamInterval {
            from_s: self.from_s,
            packets: self.packets + next.packets,
            bytes: self.bytes + next.bytes,
            lost: self.lost + next.lost,
        }
    }

    fn begin(&mut self, seconds: f64) {
        self.from_s = seconds;
    }
}

/// Stream in progress.
#[derive(Debug, Default)]
pub struct Datagrams {
    /// Times of the first and the last packet.
    pub from: u64,
    pub last: u64,
    pub packets: u64,
    datagrams: u64,
    /// Bytes including IP headers, and of payload alone.
    pub bytes: u64,
    payload: u64,
    lengths: Option<Extent>,
    gaps: Distribution,
    kept: Vec<Kept>,
    numbering: Option<Numbering>,
    step: Option<u64>,
    series: TimeSeries<StreamInterval>,
    lost: u64,
}

/// Length of a datagram, and its first bytes.
type Kept = (u32, Box<[u8]>);

/// Kind of numbering, once decided.
#[derive(Debug)]
enum Numbering {
    None,
    Here(Box<Here>),
    Frames(Box<Sequencer>, Box<Order>),
}

/// Datagrams that contain a number.
#[derive(Debug)]
struct Here {
    numbers: Numbers,
    order: Order,
    /// Length of a datagram, if a packet contained several.
    unit: Option<usize>,
    shortest: usize,
    /// Number of searches for such packets so far.
    searches: u32,
}

/// Order of the numbers.
#[derive(Debug)]
struct Order {
    reorder: Reorder,
    /// Pending number that waits for another one near it.
    kept: u64,
}

impl Order {
    fn new() -> Order {
        let settings = Settings {
            window: WINDOW,
            hold: Nanos(u64::MAX),
            capacity: u64::MAX >> 1,
            max_gap: MAX_GAP,
        };
        Order {
            reorder: Reorder::new(settings),
            kept: 0,
        }
    }

    fn arrived(&mut self, number: u64) {
        loop {
            let verdict = match self.reorder.offer(number, 0) {
                Verdict::Strange => self.reorder.consider(number),
                verdict => verdict,
            };
            match verdict {
                Verdict::Replay => _ = self.reorder.offer(self.kept, 0),
                Verdict::Keep => break self.kept = number,
                _ => break,
            }
        }
        while self.reorder.next_event().is_some() {}
    }

    fn finish(mut self) -> Report {
        if self.reorder.accept_kept() {
            self.reorder.offer(self.kept, 0);
        }
        self.reorder.finish()
    }
}

fn number_at(numbers: Numbers, payload: &[u8], at: usize) -> Option<u64> {
    let rest = payload.get(at..)?;
    match numbers {
        Numbers::Vtp => vtp::split(rest).map(|(number, _)| number),
        Numbers::Probe => Probe::parse(rest).map(|probe| probe.sequence),
        _ => None,
    }
}

/// Returns the length of a datagram, and the step from one packet's number to the next, for packets that were not captured far
/// enough to show several datagrams. The length must be that of most packets, and these must be longer than a frame can be, or
/// differ. If the length is uncertain, returns only the step: either each packet contains that many datagrams, or one fewer are
/// lost between two packets.
fn unit_and_step(numbers: Numbers, kept: &[Kept]) -> Option<(Option<usize>, Option<u64>)> {
    let mut found = HashMap::<usize, Vec<u64>>::new();
    for [(length, payload), (_, next)] in kept.array_windows() {
        let number = |payload| number_at(numbers, payload, 0);
        let count = number(next)?.wrapping_sub(number(payload)?);
        let length = *length as usize;
        if (1..=NEAR).contains(&count)
            && payload.len() < length
            && length.is_multiple_of(count as usize)
        {
            let counts = found.entry(length / count as usize).or_default();
            counts.push(count);
        }
    }
    let found = found.into_iter();
    let (unit, counts) = found.max_by_key(|(unit, counts)| (counts.len(), *unit))?;
    let count = counts[0];
    let is_sure = counts.iter().any(|other| *other != count)
        || kept.iter().any(|(length, _)| *length > MAX_FRAME);
    if counts.len() * 2 < kept.len() || !is_sure && count == 1 {
        return None;
    }
    Some((is_sure.then_some(unit), (!is_sure).then_some(count)))
}

impl Here {
    /// Notes a packet with this many bytes of payload; returns the number of datagrams in it.
    fn offer(&mut self, length: u32, payload: &[u8]) -> u64 {
        let Some(number) = number_at(self.numbers, payload, 0) else {
            return 1;
        };
        let length = length as usize;
        self.shortest = self.shortest.min(length);
        let follows =
            |unit: usize| number_at(self.numbers, payload, unit) == Some(number.wrapping_add(1));
        if self.unit.is_none()
            && self.searches < MAX_SEARCHES
            && (length > self.shortest || self.order.reorder.ends().is_none())
        {
            self.searches += 1;
            self.unit = (MIN..payload.len()).find(|unit| follows(*unit));
        }
        // If too little was captured, only the length shows it.
        let unit = self.unit.filter(|unit| {
            length > *unit && (follows(*unit) || payload.len() < length.min(unit + HEADERS))
        });
        let count = unit.map_or(1, |unit| length.div_ceil(unit)) as u64;
        for further in 0..count {
            self.order.arrived(number.wrapping_add(further));
        }
        count
    }
}

impl Datagrams {
    pub fn new(at: u64, width: Option<u64>, every: u64) -> Datagrams {
        Datagrams {
            from: at,
            last: at,
            gaps: Distribution::new(width),
            series: TimeSeries::new(at, every),
            ..Datagrams::default()
        }
    }

    /// Analyses the next packet, of `bytes` bytes.
    pub fn offer(&mut self, at: u64, bytes: u32, datagram: &Datagram) {
        if self.packets > 0 {
            self.gaps.add(apart(at, self.last));
        }
        self.last = at;
        self.bytes += u64::from(bytes);
        self.payload += u64::from(datagram.length);
        let length = u64::from(datagram.length);
        let lengths = self.lengths.get_or_insert(Extent::of(length));
        lengths.add(length, self.packets);
        self.packets += 1;
        // At the end of an interval, note the loss.
        if self.series.is_past(at) {
            self.settle();
        }
        let interval = self.series.at(at);
        interval.packets += 1;
        interval.bytes += length;
        if self.numbering.is_some() {
            return self.take(datagram.length, datagram.payload);
        }
        let kept = datagram.payload.len().min(MAX_KEPT);
        self.kept
            .push((datagram.length, datagram.payload[..kept].into()));
        if self.kept.len() == ENOUGH {
            self.decide();
        }
    }

    /// Attributes losses since the last call to the last interval.
    fn settle(&mut self) {
        let lost = match &self.numbering {
            Some(Numbering::Here(here)) => here.order.reorder.counters().lost,
            Some(Numbering::Frames(_, order)) => order.reorder.counters().lost,
            _ => 0,
        };
        if let Some(last) = self.series.last_mut() {
            last.lost += lost.wrapping_sub(self.lost).cast_signed();
            self.lost = lost;
        }
    }

    /// Decides the kind of numbering from the datagrams kept.
    fn decide(&mut self) {
        let kept = std::mem::take(&mut self.kept);
        let payloads = || kept.iter().map(|(_, payload)| &**payload);
        let mut here = |numbers| {
            let unit;
            (unit, self.step) = unit_and_step(numbers, &kept).unwrap_or_default();
            Numbering::Here(Box::new(Here {
                numbers,
                order: Order::new(),
                unit,
                searches: 0,
                shortest: usize::MAX,
            }))
        };
        let follow = |numbers| {
            let mut numbers: Vec<Option<u64>> = payloads()
                .map(|payload| number_at(numbers, payload, 0))
                .collect();
            // If packets were captured twice, the numbers repeat.
            numbers.dedup();
            let near = numbers.array_windows().filter(|[one, next]| {
                one.zip(*next)
                    .is_some_and(|(one, next)| (1..=NEAR).contains(&next.wrapping_sub(one)))
            });
            near.count() * 2 > numbers.len() - 1
        };
        let is_frame = |(length, payload): &Kept| {
            vdif::Header::parse(payload)
                .is_ok_and(|header| header.frame_length() == *length as usize)
        };
        self.numbering = Some(
            if payloads().all(|payload| Probe::parse(payload).is_some()) {
                here(Numbers::Probe)
            } else if kept.len() > 1 && follow(Numbers::Vtp) {
                here(Numbers::Vtp)
            } else if kept.iter().all(is_frame) {
                Numbering::Frames(Box::new(Sequencer::new(None)), Box::new(Order::new()))
            } else {
                Numbering::None
            },
        );
        for (length, payload) in &kept {
            self.take(*length, payload);
        }
    }

    fn take(&mut self, length: u32, payload: &[u8]) {
        self.datagrams += match &mut self.numbering {
            Some(Numbering::Here(here)) => here.offer(length, payload),
            Some(Numbering::Frames(sequencer, order)) => {
                match sequencer.offer(payload) {
                    Framed::Number(number) => order.arrived(number),
                    Framed::Learnt => sequencer.drain(|number, _| order.arrived(number)),
                    Framed::Pending | Framed::Foreign | Framed::UnknownThread => {}
                }
                1
            }
            Some(Numbering::None) | None => 1,
        };
    }

    /// Ends the analysis.
    pub fn finish(mut self, ends: [SocketAddr; 2], begun: u64) -> Stream {
        if self.numbering.is_none() {
            self.decide();
        }
        self.settle();
        let (numbers, account) = match self.numbering {
            Some(Numbering::Here(here)) => (here.numbers, Some(here.order.finish())),
            Some(Numbering::Frames(mut sequencer, mut order)) => {
                sequencer.drain(|number, _| order.arrived(number));
                let is_known = order.reorder.ends().is_some();
                (Numbers::Vdif, is_known.then(|| order.finish()))
            }
            _ => (Numbers::None, None),
        };
        let seconds = |at: u64| at.saturating_sub(begun) as f64 * 1e-9;
        let span = self.last.saturating_sub(self.from) as f64 * 1e-9;
        let (every, intervals) = self.series.finish();
        Stream {
            ends,
            from: seconds(self.from),
            to: seconds(self.last),
            packets: self.packets,
            datagrams: self.datagrams,
            bytes: self.payload,
            rate: bits_per_second(self.payload, span),
            lengths: self.lengths.unwrap_or_default(),
            numbers,
            account: account.map(Report::with_tables),
            gaps: self.gaps.summary().map(Summary::with_tables),
            step: self.step,
            every,
            intervals,
        }
    }
}
