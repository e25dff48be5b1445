//! Which datagrams belong to the stream: those of one sender and one size.
//!
//! Before the stream begins anything may arrive: a port scan, the rest of an older stream. So datagrams are
//! kept until one sender has sent [`ENOUGH`] of one size that number on from each other, or, if fewer come,
//! for a short time. The stream's datagrams among the kept ones are then its first. Afterwards all others
//! are foreign, unless the stream's sender falls silent and another one takes its place in the same way: a
//! sender that was restarted.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_wire::{vdif, vtp};

use crate::udp::Datagram;

/// Datagrams of one sender and size that make a stream.
const ENOUGH: usize = 8;
/// Datagrams that are kept at the same time, and their bytes; beyond that the oldest are given up.
const MOST_KEPT: usize = 512;
const MOST_KEPT_BYTES: usize = 16 << 20;
/// A single datagram is a stream only if its number is below this: eight bytes of something else seldom are.
const MOST_NUMBER: u64 = 1 << 48;
/// How long a stream's sender must be silent before another may take its place.
const SILENCE: Nanos = Nanos(300_000_000);

/// Where a datagram's number and data come from.
pub trait Numbering: Send {
    /// The number and the data of a datagram; `None` when it has none.
    fn split<'a>(&mut self, datagram: &'a [u8]) -> Option<(u64, &'a [u8])>;

    /// Learns from the first datagrams of a stream how it is numbered; says whether they are enough. They
    /// come again through [`Numbering::split`] afterwards.
    fn learn(&mut self, datagrams: &[&[u8]]) -> bool {
        !datagrams.is_empty()
    }
}

/// VTP: the number stands before the data.
pub struct Numbers;

impl Numbering for Numbers {
    fn split<'a>(&mut self, datagram: &'a [u8]) -> Option<(u64, &'a [u8])> {
        vtp::split(datagram)
    }
}

/// A datagram that was kept until the stream is known.
pub struct Kept {
    pub source: Option<SocketAddr>,
    pub port: usize,
    pub stamp: Option<Duration>,
    pub bytes: Vec<u8>,
}

/// A sender and a size, whose datagrams may be the stream.
type Candidate = (Option<SocketAddr>, usize);

impl Kept {
    fn candidate(&self) -> Candidate {
        (self.source, self.bytes.len())
    }
}

/// What becomes of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// It belongs to the stream.
    Yes,
    /// It is kept for now.
    Kept,
    /// It has another size than the stream's.
    ForeignSize,
    /// It comes from another sender.
    ForeignSource,
}

/// The stream as it is known.
#[derive(Clone, Debug)]
struct Stream {
    /// The sender at each of the receiver's ports, once heard.
    senders: Vec<Option<SocketAddr>>,
    host: Option<IpAddr>,
    size: usize,
    last: Nanos,
    /// When the kernel received the last datagram. Both sides of a silence may be read at once.
    last_stamp: Option<Duration>,
}

impl Stream {
    fn heard(&mut self, stamp: Option<Duration>, now: Nanos) {
        self.last = now;
        self.last_stamp = stamp;
    }

    fn is_silent(&self, stamp: Option<Duration>, now: Nanos) -> bool {
        let silence = match (self.last_stamp, stamp) {
            (Some(last), Some(stamp)) => Nanos::from(stamp.saturating_sub(last)),
            _ => now.since(self.last),
        };
        silence >= SILENCE
    }
}

/// Decides which datagrams belong to the stream.
pub struct Admission {
    only: Option<IpAddr>,
    ports: usize,
    stream: Option<Stream>,
    kept: Vec<Kept>,
    kept_since: Nanos,
    pub foreign_size: u64,
    pub foreign_source: u64,
    /// Of the stream's sender and size, and without a number.
    pub foreign_header: u64,
}

impl Admission {
    /// Hears the host `only`, where given, at so many ports.
    pub fn new(only: Option<IpAddr>, ports: usize) -> Admission {
        Admission {
            only,
            ports,
            stream: None,
            kept: Vec::new(),
            kept_since: Nanos(0),
            foreign_size: 0,
            foreign_source: 0,
            foreign_header: 0,
        }
    }

    /// Who sends the stream.
    pub fn sender(&self) -> Option<SocketAddr> {
        let stream = self.stream.as_ref()?;
        stream.senders.iter().flatten().next().copied()
    }

    /// What to do with a datagram.
    #[inline]
    pub fn admit(&mut self, datagram: &Datagram<'_>, now: Nanos) -> Admitted {
        let Datagram {
            source,
            port,
            bytes,
            ..
        } = *datagram;
        if let Some(stream) = &mut self.stream {
            if bytes.len() == stream.size
                && stream
                    .senders
                    .get(port)
                    .is_some_and(|sender| *sender == source)
            {
                stream.heard(datagram.stamp, now);
                return Admitted::Yes;
            }
            return self.stranger(datagram, now);
        }
        if self
            .only
            .is_some_and(|only| source.map(|source| source.ip()) != Some(only))
        {
            self.foreign_source += 1;
            return Admitted::ForeignSource;
        }
        self.keep(datagram, now)
    }

    /// A datagram that is not simply the stream's next.
    #[cold]
    fn stranger(&mut self, datagram: &Datagram<'_>, now: Nanos) -> Admitted {
        let Datagram {
            source,
            port,
            bytes,
            ..
        } = *datagram;
        let Some(stream) = &mut self.stream else {
            return Admitted::Kept;
        };
        let same_host = source.map(|source| source.ip()) == stream.host;
        if bytes.len() != stream.size {
            self.foreign_size += 1;
            return Admitted::ForeignSize;
        }
        // One stream over several ports: at each the first sender from the same host.
        if same_host && stream.senders.get(port) == Some(&None) {
            stream.senders[port] = source;
            stream.heard(datagram.stamp, now);
            return Admitted::Yes;
        }
        let silent = stream.is_silent(datagram.stamp, now);
        let wrong_host = self.only.is_some() && !same_host;
        if !silent || wrong_host {
            self.foreign_source += 1;
            return Admitted::ForeignSource;
        }
        self.keep(datagram, now)
    }

    fn keep(&mut self, datagram: &Datagram<'_>, now: Nanos) -> Admitted {
        if self.kept.is_empty() {
            self.kept_since = now;
        }
        let bytes: usize = self.kept.iter().map(|kept| kept.bytes.len()).sum();
        if self.kept.len() == MOST_KEPT || bytes > MOST_KEPT_BYTES {
            self.kept.remove(0);
            self.foreign_source += 1;
        }
        self.kept.push(Kept {
            source: datagram.source,
            port: datagram.port,
            stamp: datagram.stamp,
            bytes: datagram.bytes.to_vec(),
        });
        Admitted::Kept
    }

    /// Datagrams that are kept for now.
    pub fn undecided(&self) -> u64 {
        self.kept.len() as u64
    }

    /// Whether something is kept that has waited for `patience`.
    pub fn has_waited(&self, now: Nanos, patience: Nanos) -> bool {
        !self.kept.is_empty() && now.since(self.kept_since) >= patience
    }

    /// Tells the stream from what is kept: the sender and size with enough datagrams, or, when `decide`,
    /// with the most. Returns its datagrams in the order of their arrival.
    pub fn settle(
        &mut self,
        numbering: &mut dyn Numbering,
        decide: bool,
        now: Nanos,
    ) -> Option<Vec<Kept>> {
        let candidate = match decide {
            false => self.kept.last()?.candidate(),
            true => self
                .kept
                .iter()
                .map(Kept::candidate)
                .filter(|candidate| self.may_be_stream(*candidate, numbering))
                .max_by_key(|candidate| self.of(*candidate).count())?,
        };
        let datagrams = self.datagrams(candidate);
        let enough = datagrams.len() >= ENOUGH
            && numbering.learn(&datagrams)
            && number_on(numbering, &datagrams);
        if !enough && !decide {
            return None;
        }
        numbering.learn(&datagrams);
        numbering.split(datagrams.first()?)?;
        let (sender, size) = candidate;
        let host = sender.map(|sender| sender.ip());
        let mut senders = vec![None; self.ports];
        if let Some(first) = self.of(candidate).next() {
            senders[first.port] = sender;
        }
        let mut ours = Vec::new();
        for kept in std::mem::take(&mut self.kept) {
            // One stream over several ports: at each the first sender from the same host.
            let same_host = kept.source.map(|source| source.ip()) == host;
            if kept.bytes.len() != size {
                self.foreign_size += 1;
            } else if same_host && is_first(&mut senders[kept.port], kept.source) {
                ours.push(kept);
            } else {
                self.foreign_source += 1;
            }
        }
        self.stream = Some(Stream {
            senders,
            host,
            size,
            last: now,
            last_stamp: ours.last().and_then(|kept| kept.stamp),
        });
        Some(ours)
    }

    /// Whether what is kept looks like the beginning of a stream: two datagrams or more of one sender and
    /// size that number on from each other, or one that holds whole VDIF frames. A probe does not.
    pub fn promises(&self, numbering: &mut dyn Numbering) -> bool {
        let newest = self.kept.last().map(Kept::candidate);
        newest.is_some_and(|newest| match self.datagrams(newest).as_slice() {
            [one] => {
                vtp::split(one).is_some_and(|(_, data)| holds_frames(data)) || holds_frames(one)
            }
            several => number_on(numbering, several),
        })
    }

    /// Whether these few can be all of a stream: they number on from each other, or there is one only, with
    /// a number that a sender can have come to. A port scan cannot.
    fn may_be_stream(&self, candidate: Candidate, numbering: &mut dyn Numbering) -> bool {
        let datagrams = self.datagrams(candidate);
        numbering.learn(&datagrams);
        match datagrams.as_slice() {
            [one] => numbering
                .split(one)
                .is_some_and(|(number, data)| number < MOST_NUMBER && !data.is_empty()),
            several => number_on(numbering, several),
        }
    }

    fn datagrams(&self, candidate: Candidate) -> Vec<&[u8]> {
        self.of(candidate)
            .map(|kept| kept.bytes.as_slice())
            .collect()
    }

    /// The stream's sender spoke again, or nothing came of it: what is kept is foreign.
    pub fn drop_kept(&mut self) {
        self.foreign_source += self.kept.len() as u64;
        self.kept.clear();
    }

    fn of(&self, candidate: Candidate) -> impl Iterator<Item = &Kept> {
        self.kept
            .iter()
            .filter(move |kept| kept.candidate() == candidate)
    }
}

/// Whether `source` is the first sender at its port.
fn is_first(sender: &mut Option<SocketAddr>, source: Option<SocketAddr>) -> bool {
    *sender = sender.or(source);
    *sender == source
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

/// Whether the numbers lie close together and are mostly different ones.
fn number_on(numbering: &mut dyn Numbering, datagrams: &[&[u8]]) -> bool {
    let mut numbers = Vec::with_capacity(datagrams.len());
    for datagram in datagrams {
        match numbering.split(datagram) {
            Some((number, data)) if !data.is_empty() => numbers.push(number),
            _ => return false,
        }
    }
    let close = numbers
        .windows(2)
        .filter(|pair| {
            let step = pair[1].wrapping_sub(pair[0]);
            step != 0 && step.min(step.wrapping_neg()) < 100_000
        })
        .count();
    2 * close >= numbers.len() - 1
}

#[cfg(test)]
mod tests {
    use evlbi_wire::pattern;

    use super::*;

    fn sender(port: u16) -> Option<SocketAddr> {
        Some(SocketAddr::from(([10, 0, 0, 1], port)))
    }

    fn admit(
        admission: &mut Admission,
        source: Option<SocketAddr>,
        bytes: &[u8],
        now: Nanos,
    ) -> Admitted {
        let datagram = Datagram {
            bytes,
            source,
            port: 0,
            truncated: false,
            stamp: None,
        };
        admission.admit(&datagram, now)
    }

    fn datagram(number: u64, data: usize) -> Vec<u8> {
        let mut bytes = vtp::header(number).to_vec();
        bytes.resize(8 + data, 7);
        bytes
    }

    #[test]
    fn a_scan_before_the_stream_does_not_become_the_stream() {
        let mut admission = Admission::new(None, 1);
        let scan = b"\x00\x01nmap probe";
        assert_eq!(
            admit(&mut admission, sender(9), scan, Nanos(0)),
            Admitted::Kept
        );
        assert_eq!(
            admit(&mut admission, sender(9), &[], Nanos(0)),
            Admitted::Kept
        );
        for number in 0..8 {
            assert!(admission.settle(&mut Numbers, false, Nanos(1)).is_none());
            let admitted = admit(&mut admission, sender(1), &datagram(number, 100), Nanos(1));
            assert_eq!(admitted, Admitted::Kept);
        }
        let first = admission.settle(&mut Numbers, false, Nanos(1)).unwrap();
        assert_eq!(first.len(), 8);
        assert_eq!((admission.foreign_size, admission.foreign_source), (2, 0));
        assert_eq!(admission.sender(), sender(1));
        let next = datagram(8, 100);
        assert_eq!(
            admit(&mut admission, sender(1), &next, Nanos(2)),
            Admitted::Yes
        );
        assert_eq!(
            admit(&mut admission, sender(2), &next, Nanos(2)),
            Admitted::ForeignSource
        );
        assert_eq!(
            admit(&mut admission, sender(1), &next[1..], Nanos(2)),
            Admitted::ForeignSize
        );
        assert_eq!(
            admit(&mut admission, sender(1), &[], Nanos(2)),
            Admitted::ForeignSize
        );
        assert_eq!((admission.foreign_size, admission.foreign_source), (4, 1));
    }

    #[test]
    fn datagrams_of_one_size_that_do_not_number_on_are_no_stream() {
        let mut admission = Admission::new(None, 1);
        for n in 0..40u64 {
            let noise = datagram(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), 100);
            admit(&mut admission, sender(3), &noise, Nanos(0));
            assert!(admission.settle(&mut Numbers, false, Nanos(0)).is_none());
        }
    }

    #[test]
    fn a_few_datagrams_are_a_stream_when_no_more_come() {
        let mut admission = Admission::new(None, 1);
        admit(&mut admission, sender(9), b"stray", Nanos(0));
        admit(&mut admission, sender(1), &datagram(5, 64), Nanos(0));
        admit(&mut admission, sender(1), &datagram(6, 64), Nanos(0));
        assert_eq!(
            admission
                .settle(&mut Numbers, true, Nanos(0))
                .unwrap()
                .len(),
            2
        );
        assert_eq!(admission.foreign_size, 1);
    }

    #[test]
    fn one_datagram_promises_a_stream_if_it_is_a_frame() {
        let promises = |bytes: &[u8]| {
            let mut admission = Admission::new(None, 1);
            admit(&mut admission, sender(1), bytes, Nanos(0));
            admission.promises(&mut Numbers)
        };
        let frame = &pattern::frames(1032, 0, pattern::frame_rate(0), 1).unwrap()[..];
        assert!(promises(&[&vtp::header(7), frame].concat()));
        assert!(!promises(&[&vtp::header(7), &frame[..1000]].concat()));
        assert!(!promises(b"probe"));
        assert!(!promises(&[0; 64]));
    }

    #[test]
    fn the_first_datagrams_at_every_port_are_the_streams() {
        let mut admission = Admission::new(None, 2);
        for number in 0..16 {
            let port = (number % 2) as usize;
            let bytes = datagram(number, 100);
            let datagram = Datagram {
                bytes: &bytes,
                source: sender(1 + port as u16),
                port,
                truncated: false,
                stamp: None,
            };
            admission.admit(&datagram, Nanos(0));
        }
        let ours = admission.settle(&mut Numbers, false, Nanos(0)).unwrap();
        assert_eq!(ours.len(), 16);
        assert_eq!(admission.foreign_source, 0);
    }

    #[test]
    fn another_sender_takes_over_only_after_silence() {
        let mut admission = Admission::new(None, 1);
        for number in 0..8 {
            admit(&mut admission, sender(1), &datagram(number, 100), Nanos(0));
        }
        admission.settle(&mut Numbers, false, Nanos(0)).unwrap();
        let rival = |n: u64| datagram(1000 + n, 100);
        let early = admit(&mut admission, sender(2), &rival(0), Nanos(SILENCE.0 - 1));
        assert_eq!(early, Admitted::ForeignSource);
        for n in 0..8 {
            assert_eq!(
                admit(&mut admission, sender(2), &rival(n), SILENCE),
                Admitted::Kept
            );
        }
        assert_eq!(
            admission
                .settle(&mut Numbers, false, SILENCE)
                .unwrap()
                .len(),
            8
        );
        assert_eq!(admission.sender(), sender(2));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        for (count, length, most) in [(600, 9, 512), (20, 1 << 20, 17)] {
            let mut admission = Admission::new(None, 1);
            for port in 0..count {
                let admitted = admit(&mut admission, sender(port), &vec![7; length], Nanos(0));
                assert_eq!(admitted, Admitted::Kept);
            }
            assert_eq!(admission.undecided(), most);
            assert_eq!(admission.foreign_source, u64::from(count) - most);
            admission.drop_kept();
            assert_eq!(admission.undecided(), 0);
            assert_eq!(admission.foreign_source, u64::from(count));
        }
    }

    #[test]
    fn what_is_kept_waits_from_the_first_on() {
        let mut admission = Admission::new(None, 1);
        assert!(!admission.has_waited(Nanos(100), Nanos(10)));
        admit(&mut admission, sender(1), b"a", Nanos(100));
        admit(&mut admission, sender(1), b"b", Nanos(105));
        assert!(!admission.has_waited(Nanos(109), Nanos(10)));
        assert!(admission.has_waited(Nanos(110), Nanos(10)));
    }

    #[test]
    fn only_one_host_is_heard_where_it_is_given() {
        let host = sender(1).map(|sender| sender.ip());
        let other = Some(SocketAddr::from(([10, 0, 0, 2], 1)));
        let mut admission = Admission::new(host, 1);
        for number in 0..8 {
            let bytes = datagram(number, 100);
            let admitted = admit(&mut admission, other, &bytes, Nanos(0));
            assert_eq!(admitted, Admitted::ForeignSource);
            let admitted = admit(&mut admission, sender(1), &bytes, Nanos(0));
            assert_eq!(admitted, Admitted::Kept);
        }
        let ours = admission.settle(&mut Numbers, false, Nanos(0)).unwrap();
        assert_eq!((ours.len(), admission.foreign_source), (8, 8));
        let next = datagram(8, 100);
        let admitted = [other, sender(2)].map(|from| admit(&mut admission, from, &next, SILENCE));
        assert_eq!(admitted, [Admitted::ForeignSource, Admitted::Kept]);
        assert_eq!(admission.foreign_source, 9);
    }

    #[test]
    fn the_first_of_two_senders_at_a_port_is_the_stream() {
        let mut admission = Admission::new(None, 1);
        for number in 0..8 {
            admit(&mut admission, sender(1), &datagram(number, 100), Nanos(0));
            if number == 3 {
                admit(&mut admission, sender(2), &datagram(9, 100), Nanos(0));
            }
        }
        let ours = admission.settle(&mut Numbers, true, Nanos(0)).unwrap();
        assert!(ours.iter().all(|kept| kept.source == sender(1)));
        assert_eq!((ours.len(), admission.foreign_source), (8, 1));
        assert_eq!(admission.undecided(), 0);
    }

    #[test]
    fn silence_is_measured_by_the_kernels_stamps_where_there_are_some() {
        let at = |admission: &mut Admission, port, bytes: &[u8], millis| {
            let datagram = Datagram {
                bytes,
                source: sender(port),
                port: 0,
                truncated: false,
                stamp: Some(Duration::from_millis(millis)),
            };
            // All are read at once.
            admission.admit(&datagram, Nanos(0))
        };
        let mut admission = Admission::new(None, 1);
        for number in 0..8 {
            at(&mut admission, 1, &datagram(number, 100), number);
        }
        admission.settle(&mut Numbers, false, Nanos(0)).unwrap();
        let rival = datagram(1000, 100);
        assert_eq!(
            at(&mut admission, 2, &rival, 7 + 299),
            Admitted::ForeignSource
        );
        assert_eq!(at(&mut admission, 2, &rival, 7 + 300), Admitted::Kept);
        let next = at(&mut admission, 1, &datagram(8, 100), 400);
        assert_eq!(next, Admitted::Yes);
        assert_eq!(at(&mut admission, 2, &rival, 699), Admitted::ForeignSource);
    }

    #[test]
    fn a_single_datagram_is_a_stream_if_its_number_is_one_of_a_sender() {
        let settles = |number, data| {
            let mut admission = Admission::new(None, 1);
            admit(&mut admission, sender(1), &datagram(number, data), Nanos(0));
            admission.settle(&mut Numbers, true, Nanos(0)).is_some()
        };
        assert!(settles((1 << 48) - 1, 1));
        assert!(!settles(1 << 48, 1));
        assert!(!settles(0, 0));
    }

    #[test]
    fn from_nothing_no_numbers_are_learnt() {
        assert!(!Numbers.learn(&[]));
        assert!(Numbers.learn(&[&datagram(7, 1)]));
    }

    #[test]
    fn numbers_of_a_stream_lie_close_together_and_differ() {
        let number_on = |numbers: &[u64]| {
            let datagrams: Vec<_> = numbers.iter().map(|number| datagram(*number, 1)).collect();
            let datagrams: Vec<_> = datagrams.iter().map(Vec::as_slice).collect();
            number_on(&mut Numbers, &datagrams)
        };
        assert!(number_on(&[7, 100_006]));
        assert!(number_on(&[100_006, 7]));
        assert!(!number_on(&[7, 100_007]));
        assert!(!number_on(&[7, 7]));
        // One step of two, and one of three.
        assert!(number_on(&[7, 8, 1 << 40]));
        assert!(!number_on(&[7, 8, 1 << 40, 1 << 41]));
    }
}
