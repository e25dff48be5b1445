//! Messages between both ends of a flow, as bytes (big-endian). Each ends with the first 16 bytes of HMAC-SHA-256 (RFC 2104) over all
//! bytes before; the filler of a probe is not covered.

use evlbi_core::time::Nanos;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::declared::{MAX_PERIODS, Set};
use super::state::State;

/// Length of the header of all messages, in bytes.
pub const HEADER: usize = 32;
/// Length of the authentication code, in bytes.
pub const CODE: usize = 16;
/// Length of a beat without its sets, and of a set.
pub const BEAT: usize = 120;
/// Length of a set in a beat, in bytes.
pub const SET: usize = 24;
/// Maximum number of sets in a beat.
pub const MAX_SETS: usize = 40;
/// Length of a report without its runs, in bytes.
pub const REPORT: usize = 216;
/// Length of a run in a report, in bytes.
pub const RUN: usize = 12;
/// Maximum number of runs in a report.
pub const MAX_RUNS: usize = 64;
/// Maximum length of a beat and a report, in bytes.
const MAX_LENGTH: usize = BEAT + MAX_SETS * SET + CODE;
/// Length of a probe without its filler, in bytes.
pub const PROBE: usize = HEADER + CODE;

/// Names of the messages, at their start.
const BEAT_NAME: [u8; 4] = *b"EVGB";
const REPORT_NAME: [u8; 4] = *b"EVGR";
const PROBE_NAME: [u8; 4] = *b"EVGP";

/// The flow has ended: `next` of this beat is final. In a report: all numbers of the flow are accounted for.
pub const LAST: u32 = 1;
/// A report lists fewer runs than there were.
pub const MORE: u32 = 2;

/// Secret of both ends.
#[derive(Clone)]
pub struct Key {
    mac: Hmac<Sha256>,
    is_open: bool,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// Makes a key of these bytes: 32 random ones, or the output of a function for passphrases.
    pub fn new(bytes: &[u8; 32]) -> Key {
        let mac = Hmac::new_from_slice(bytes);
        Key {
            mac: mac.unwrap_or_else(|_| unreachable!("HMAC takes keys of any length")),
            is_open: false,
        }
    }

    /// Returns the key that everybody knows: 32 zeros, for both ends on one host.
    pub fn open() -> Key {
        Key {
            is_open: true,
            ..Key::new(&[0; 32])
        }
    }

    /// Returns whether everybody knows it.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    fn code(&self, bytes: &[u8]) -> [u8; CODE] {
        let code = self.mac.clone().chain_update(bytes).finalize().into_bytes();
        code.first_chunk().copied().unwrap_or_default()
    }

    fn has_made(&self, code: &[u8], bytes: &[u8]) -> bool {
        let mac = self.mac.clone().chain_update(bytes);
        code.len() == CODE && mac.verify_truncated_left(code).is_ok()
    }
}

/// Reasons why a message is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejected {
    /// Not a message of this protocol, or of a wrong length.
    #[error("not a message of SafeUDP")]
    Foreign,
    /// Not made with the key of this flow.
    #[error("wrong authentication code")]
    Forged,
    /// Of another flow, or not newer than the last one.
    #[error("repeated, late, or of another flow")]
    Stale,
    /// Its numbers contradict each other or earlier ones.
    #[error("contradicts itself or earlier messages")]
    Absurd,
}

/// Start of every message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// [`LAST`], [`MORE`].
    pub flags: u32,
    /// Random number of the flow, chosen by its sender.
    pub flow: u64,
    /// Number of the message; each end counts its own, and probes apart, from 1.
    pub number: u64,
    /// Departure, in nanoseconds of the clock of the end that sends it.
    pub departure: Nanos,
}

/// Message of the sender: what it has sent and shed, and its state. Numbers of datagrams are counted from `first`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// Start of the message.
    pub header: Header,
    /// Instance of the receiver that the sender has heard; 0 before.
    pub instance: u64,
    /// Sequence number of the first datagram of the flow.
    pub first: u64,
    /// Datagrams offered so far: sent, shed and not sent.
    pub next: u64,
    /// All shed numbers below are in `sets`, or were in a beat that the receiver has confirmed.
    pub declared: u64,
    /// Datagrams shed so far.
    pub shed: u64,
    /// Datagrams that the sending host dropped so far.
    pub not_sent: u64,
    /// Probes sent so far.
    pub probes: u64,
    /// Bits of data per second that are sent now.
    pub rate: u64,
    /// Smoothed round-trip time; 0 if unknown.
    pub round_trip: Nanos,
    /// Fraction of the data that is kept, in units of 10^-9.
    pub kept: u32,
    /// Data per datagram, in bytes.
    pub size: u16,
    /// State of the sender.
    pub state: State,
    /// Shed numbers that the receiver has not confirmed.
    pub sets: Vec<Set>,
}

/// Run of lost numbers, counted from the first of the flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// First number.
    pub first: u64,
    /// Length.
    pub length: u32,
}

/// Cumulative counters of a receiver, in datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// All datagrams of the flow, copies too.
    pub received: u64,
    /// Distinct numbers.
    pub unique: u64,
    /// Second and later arrivals of a number.
    pub duplicates: u64,
    /// Arrivals after a higher number (RFC 4737).
    pub reordered: u64,
    /// Arrivals after their place was released.
    pub late: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// Marked with congestion experienced (RFC 3168).
    pub marked: u64,
    /// ECN-capable and not marked.
    pub capable: u64,
}

/// Message of the receiver: what has arrived. Numbers of datagrams are counted from the first of the flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Start of the message.
    pub header: Header,
    /// Random number of the receiver, chosen at its start.
    pub instance: u64,
    /// Number of the last beat, its departure by the sender's clock, its arrival by the receiver's, and the time since then.
    pub beat: u64,
    /// Departure of that beat, by the sender's clock.
    pub beat_departure: Nanos,
    /// Arrival of that beat, by the receiver's clock.
    pub beat_arrival: Nanos,
    /// Time between that arrival and the departure of this report.
    pub held: Nanos,
    /// All numbers below have arrived, or are counted as missed or shed.
    pub covered: u64,
    /// Numbers that had not arrived when they were due, without shed ones.
    pub missed: u64,
    /// Missed numbers that the receiving host dropped for certain.
    pub host: u64,
    /// Missed numbers that the receiving host dropped, or that were lost before it while it dropped.
    pub unattributed: u64,
    /// Numbers that were shed.
    pub shed: u64,
    /// One more than the highest number that has arrived.
    pub highest: u64,
    /// Counters of arrivals.
    pub arrivals: Received,
    /// Highest message number of a probe that has arrived.
    pub probe_highest: u64,
    /// Probes that have arrived.
    pub probes: u64,
    /// Missed runs since the last report, without those that the receiving host may have dropped.
    pub runs: Vec<Run>,
}

/// Message, as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// From the sender.
    Beat(Beat),
    /// From the receiver.
    Report(Report),
    /// From the sender, before the data.
    Probe(Header),
}

/// Writes numbers one after the other.
struct Writer(Vec<u8>);

impl Writer {
    fn new(name: [u8; 4], header: &Header) -> Writer {
        let mut writer = Writer(name.to_vec());
        writer.u32(header.flags);
        writer.u64s(&[header.flow, header.number, header.departure.0]);
        writer
    }

    fn u16(&mut self, number: u16) {
        self.0.extend(number.to_be_bytes());
    }

    fn u32(&mut self, number: u32) {
        self.0.extend(number.to_be_bytes());
    }

    fn u64s(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.0.extend(number.to_be_bytes());
        }
    }

    fn sealed(mut self, key: &Key) -> Vec<u8> {
        let code = key.code(&self.0);
        self.0.extend(code);
        self.0
    }
}

/// Reads numbers one after the other; zeros behind the end.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let Some((first, rest)) = self.0.split_first_chunk() else {
            self.0 = &[];
            return [0; N];
        };
        self.0 = rest;
        *first
    }

    fn u8(&mut self) -> u8 {
        u8::from_be_bytes(self.bytes())
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.bytes())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.bytes())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.bytes())
    }

    fn nanos(&mut self) -> Nanos {
        Nanos(self.u64())
    }

    fn header(&mut self) -> Header {
        Header {
            flags: self.u32(),
            flow: self.u64(),
            number: self.u64(),
            departure: self.nanos(),
        }
    }
}

impl Beat {
    /// Writes the message. At most the first [`MAX_SETS`] sets are written.
    pub fn write(&self, key: &Key) -> Vec<u8> {
        let mut writer = Writer::new(BEAT_NAME, &self.header);
        writer.u64s(&[
            self.instance,
            self.first,
            self.next,
            self.declared,
            self.shed,
            self.not_sent,
            self.probes,
            self.rate,
            self.round_trip.0,
        ]);
        let sets = &self.sets[..self.sets.len().min(MAX_SETS)];
        writer.u32(self.kept);
        writer.u16(self.size);
        writer.0.extend([self.state as u8, 0]);
        writer.u16(sets.len() as u16);
        writer.0.extend([0; 6]);
        for set in sets {
            writer.u64s(&[set.first, set.end]);
            writer.u32(set.stride);
            writer.u32(set.length);
        }
        writer.sealed(key)
    }

    fn read(mut reader: Reader<'_>) -> Result<Beat, Rejected> {
        let mut beat = Beat {
            header: reader.header(),
            instance: reader.u64(),
            first: reader.u64(),
            next: reader.u64(),
            declared: reader.u64(),
            shed: reader.u64(),
            not_sent: reader.u64(),
            probes: reader.u64(),
            rate: reader.u64(),
            round_trip: reader.nanos(),
            kept: reader.u32(),
            size: reader.u16(),
            state: State::from_byte(reader.u8()).ok_or(Rejected::Absurd)?,
            sets: Vec::new(),
        };
        reader.u8();
        let count = usize::from(reader.u16());
        reader.bytes::<6>();
        if count > MAX_SETS || reader.0.len() != count * SET {
            return Err(Rejected::Absurd);
        }
        for _ in 0..count {
            beat.sets.push(Set {
                first: reader.u64(),
                end: reader.u64(),
                stride: reader.u32(),
                length: reader.u32(),
            });
        }
        let is_ascending = beat.sets.windows(2).all(|two| two[0].end <= two[1].first);
        let are_sets = beat.sets.iter().all(|set| {
            let is_regular = set.stride == 0 || (1..=set.stride).contains(&set.length);
            let periods = set.end.saturating_sub(set.first) / u64::from(set.stride.max(1));
            let is_regular = is_regular && (set.stride == 0 || periods <= MAX_PERIODS);
            set.first < set.end && is_regular && set.end <= beat.declared
        });
        let is_possible = beat.declared <= beat.next
            && beat
                .shed
                .checked_add(beat.not_sent)
                .is_some_and(|all| all <= beat.next)
            && beat.kept <= 1_000_000_000;
        match is_ascending && are_sets && is_possible {
            true => Ok(beat),
            false => Err(Rejected::Absurd),
        }
    }
}

impl Report {
    /// Writes the message. At most the first [`MAX_RUNS`] runs are written.
    pub fn write(&self, key: &Key) -> Vec<u8> {
        let mut writer = Writer::new(REPORT_NAME, &self.header);
        let Received {
            received,
            unique,
            duplicates,
            reordered,
            late,
            bytes,
            marked,
            capable,
        } = self.arrivals;
        writer.u64s(&[
            self.instance,
            self.beat,
            self.beat_departure.0,
            self.beat_arrival.0,
            self.held.0,
            self.covered,
            self.missed,
            self.host,
            self.unattributed,
            self.shed,
            self.highest,
        ]);
        writer.u64s(&[
            received, unique, duplicates, reordered, late, bytes, marked, capable,
        ]);
        writer.u64s(&[self.probe_highest, self.probes]);
        let runs = &self.runs[..self.runs.len().min(MAX_RUNS)];
        writer.u16(runs.len() as u16);
        writer.0.extend([0; 14]);
        for run in runs {
            writer.u64s(&[run.first]);
            writer.u32(run.length);
        }
        writer.sealed(key)
    }

    fn read(mut reader: Reader<'_>) -> Result<Report, Rejected> {
        let mut report = Report {
            header: reader.header(),
            instance: reader.u64(),
            beat: reader.u64(),
            beat_departure: reader.nanos(),
            beat_arrival: reader.nanos(),
            held: reader.nanos(),
            covered: reader.u64(),
            missed: reader.u64(),
            host: reader.u64(),
            unattributed: reader.u64(),
            shed: reader.u64(),
            highest: reader.u64(),
            arrivals: Received {
                received: reader.u64(),
                unique: reader.u64(),
                duplicates: reader.u64(),
                reordered: reader.u64(),
                late: reader.u64(),
                bytes: reader.u64(),
                marked: reader.u64(),
                capable: reader.u64(),
            },
            probe_highest: reader.u64(),
            probes: reader.u64(),
            runs: Vec::new(),
        };
        let count = usize::from(reader.u16());
        reader.bytes::<14>();
        if count > MAX_RUNS || reader.0.len() != count * RUN {
            return Err(Rejected::Absurd);
        }
        for _ in 0..count {
            report.runs.push(Run {
                first: reader.u64(),
                length: reader.u32(),
            });
        }
        let of_missed = report.host.checked_add(report.unattributed);
        let of_covered = report.missed.checked_add(report.shed);
        let is_possible = of_missed.is_some_and(|all| all <= report.missed)
            && of_covered.is_some_and(|all| all <= report.covered)
            && report.probes <= report.probe_highest
            && report.runs.iter().all(|run| {
                let end = run.first.checked_add(u64::from(run.length));
                run.length > 0 && end.is_some_and(|end| end <= report.covered)
            });
        match is_possible {
            true => Ok(report),
            false => Err(Rejected::Absurd),
        }
    }
}

/// Writes a probe: a datagram of `length` bytes, at least [`PROBE`], that takes the place of data before there are any.
pub fn probe(header: &Header, length: usize, key: &Key) -> Vec<u8> {
    let mut bytes = Writer::new(PROBE_NAME, header).sealed(key);
    bytes.resize(length.max(PROBE), 0);
    bytes
}

/// Reads a message.
///
/// # Errors
/// Returns [`Rejected`] if it is not a valid message made with this key.
pub fn read(bytes: &[u8], key: &Key) -> Result<Message, Rejected> {
    let (name, rest) = bytes.split_first_chunk().ok_or(Rejected::Foreign)?;
    let length = match *name {
        // Longer ones cost nothing.
        BEAT_NAME | REPORT_NAME if bytes.len() <= MAX_LENGTH => bytes.len().checked_sub(CODE),
        PROBE_NAME => Some(HEADER),
        _ => None,
    };
    let covered = length.ok_or(Rejected::Foreign)?;
    let least = match *name {
        BEAT_NAME => BEAT,
        REPORT_NAME => REPORT,
        _ => HEADER,
    };
    let code = bytes
        .get(covered..covered + CODE)
        .filter(|_| covered >= least);
    let code = code.ok_or(Rejected::Foreign)?;
    if !key.has_made(code, &bytes[..covered]) {
        return Err(Rejected::Forged);
    }
    let mut reader = Reader(&rest[..covered - name.len()]);
    match *name {
        BEAT_NAME => Beat::read(reader).map(Message::Beat),
        REPORT_NAME => Report::read(reader).map(Message::Report),
        _ => Ok(Message::Probe(reader.header())),
    }
}

#[cfg(test)]
mod tests;
