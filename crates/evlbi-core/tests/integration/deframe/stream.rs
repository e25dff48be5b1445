//! Streams of known content, and the ring that delivers them.

use std::collections::BTreeSet;
use std::ops::Range;

use evlbi_core::deframe::{Counts, Deframer, Frame, Holes, Partial, Settings};
use evlbi_wire::fill;
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::validity::TimeGap;
use evlbi_wire::vdif::{Extended, Header, Shape, StationId, StreamKey};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub const SECOND: i64 = 1_580_232_600;

/// Frames of a stream, one after another.
#[derive(Clone, Debug)]
pub struct Stream {
    pub bytes: Vec<u8>,
    pub frame_length: usize,
    pub header_length: usize,
    pub rate: u32,
}

impl Stream {
    pub fn frames(&self) -> usize {
        self.bytes.len() / self.frame_length
    }

    pub fn frame(&self, number: usize) -> &[u8] {
        &self.bytes[number * self.frame_length..][..self.frame_length]
    }

    pub fn header(&self, number: usize) -> Header {
        Header::parse(self.frame(number)).unwrap()
    }

    pub fn rate(&self) -> Option<FrameRate> {
        FrameRate::new(self.rate)
    }
}

/// Properties of a stream.
#[derive(Clone, Debug)]
pub struct Plan {
    pub keys: Vec<StreamKey>,
    /// Offset of each thread's clock, in seconds.
    pub offsets: Vec<i64>,
    pub rate: u32,
    pub first_frame: u32,
    pub frame_length: usize,
    pub legacy: bool,
    pub cycles: usize,
    /// Whether the order changes from cycle to cycle.
    pub shuffled: bool,
    pub seed: u64,
}

pub fn key(station: u16, thread: u16) -> StreamKey {
    StreamKey {
        station: StationId(station),
        thread,
    }
}

impl Plan {
    pub fn new(threads: u16) -> Plan {
        Plan {
            keys: (0..threads).map(|thread| key(7, thread)).collect(),
            offsets: vec![0; usize::from(threads)],
            rate: 25,
            first_frame: 0,
            frame_length: 96,
            legacy: false,
            cycles: 60,
            shuffled: false,
            seed: 1,
        }
    }

    pub fn make(&self) -> Stream {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let mut order: Vec<usize> = (0..self.keys.len()).collect();
        let mut bytes = Vec::new();
        let rate = FrameRate::new(self.rate).unwrap();
        let mut header_length = 0;
        for cycle in 0..self.cycles {
            if self.shuffled {
                shuffle(&mut order, &mut random);
            }
            for &thread in &order {
                let shape = Shape {
                    frame_length: self.frame_length,
                    log2_channels: 0,
                    bits: 2,
                    complex: false,
                    legacy: self.legacy,
                };
                let mut header = Header::new(shape, self.keys[thread]);
                header_length = header.len();
                let since = i64::from(self.first_frame) + cycle as i64;
                let mut time = FrameTime::from_index(SECOND * i64::from(self.rate) + since, rate);
                time.second += self.offsets[thread];
                header.set_time(time).unwrap();
                let (version, words) = (0, [0, 0, 0x0012_3456, 0]);
                header
                    .set_extended(&Extended::Other { version, words })
                    .unwrap();
                let start = bytes.len();
                bytes.resize(start + self.frame_length, 0);
                random.fill(&mut bytes[start..]);
                header.emit(&mut bytes[start..]);
            }
        }
        Stream {
            bytes,
            frame_length: self.frame_length,
            header_length,
            rate: self.rate,
        }
    }
}

fn shuffle(order: &mut [usize], random: &mut ChaCha8Rng) {
    for last in (1..order.len()).rev() {
        order.swap(last, random.random_range(0..=last));
    }
}

/// Which datagrams arrive, and how the consumer sees them.
#[derive(Clone, Debug)]
pub struct Path {
    /// Bytes of data in a datagram.
    pub slot: usize,
    pub lost: BTreeSet<usize>,
    /// Runs of lost datagrams at least this long have no place in the ring.
    pub gap_from: usize,
    /// Maximum number of further datagrams that the consumer sees at a time.
    pub max_new: usize,
    pub seed: u64,
}

impl Path {
    pub fn new(slot: usize, lost: impl IntoIterator<Item = usize>) -> Path {
        Path {
            slot,
            lost: lost.into_iter().collect(),
            gap_from: usize::MAX,
            max_new: 1000,
            seed: 1,
        }
    }

    /// Returns the range of the stream between the first and the last datagram that arrives.
    pub fn seen(&self, stream: &Stream) -> Range<usize> {
        let slots = stream.bytes.len().div_ceil(self.slot);
        let mut came = (0..slots).filter(|slot| !self.lost.contains(slot));
        let first = came.next().unwrap_or(0);
        let last = came.next_back().map_or(first, |last| last);
        first * self.slot..((last + 1) * self.slot).min(stream.bytes.len())
    }
}

/// Output of a deframer.
#[derive(Clone, Debug, Default)]
pub struct Output {
    pub bytes: Vec<u8>,
    pub frames: Vec<Frame>,
    /// Bytes of each frame that the piece shows to be fill pattern.
    pub filled: Vec<usize>,
    pub longest_chunk: usize,
    pub counts: Counts,
    pub gaps: Vec<TimeGap>,
    pub rate: Option<FrameRate>,
}

impl Output {
    /// Takes a piece of the stream; its frames are counted from the start.
    pub fn take(&mut self, chunk: evlbi_core::deframe::Chunk<'_>) {
        let start = self.bytes.len();
        self.longest_chunk = self.longest_chunk.max(chunk.bytes.len());
        self.bytes.extend_from_slice(chunk.bytes);
        assert!(chunk.with_next.starts_with(chunk.bytes));
        let places = chunk.frames.iter().map(|frame| frame.bytes.clone());
        self.filled
            .extend(places.map(|place| filled(chunk.with_next, place)));
        self.frames.extend(chunk.frames.iter().map(|frame| Frame {
            bytes: frame.bytes.start + start..frame.bytes.end + start,
            ..frame.clone()
        }));
    }

    pub fn finish(mut self, deframer: &Deframer) -> Output {
        self.counts = deframer.counts();
        self.gaps = deframer.gaps().to_vec();
        self.rate = deframer.frame_rate();
        self
    }
}

/// Returns how many bytes at `place` are fill pattern, if no more than `bytes` is known.
pub fn filled(bytes: &[u8], place: Range<usize>) -> usize {
    let Range { start, end } = place;
    let runs = fill::find(&bytes[start..bytes.len().min(end + fill::CONTEXT)]);
    let in_place = |run: Range<usize>| run.end.min(end - start).saturating_sub(run.start);
    runs.map(in_place).sum()
}

/// Old content of a lost datagram's slot.
const STALE: u8 = 0xee;

/// Sends `stream` along `path` into a deframer.
pub fn carry(stream: &Stream, path: &Path, settings: Settings) -> Output {
    let mut deframer = Deframer::new(settings);
    let mut output = Output::default();
    carry_into(&mut deframer, stream, path, &mut output);
    output.finish(&deframer)
}

pub fn carry_into(deframer: &mut Deframer, stream: &Stream, path: &Path, output: &mut Output) {
    let ring = Ring::new(stream, path);
    let mut random = ChaCha8Rng::seed_from_u64(path.seed);
    let mut bytes = ring.bytes;
    let (mut taken, mut handed) = (0, 0);
    loop {
        let slots = random.random_range(1..=path.max_new);
        handed = (handed + slots * path.slot).min(bytes.len());
        let ended = handed == bytes.len();
        let mut holes = Holes::new();
        for hole in &ring.holes {
            match hole {
                Hole::Missing(range) if range.end > taken && range.start < handed => {
                    holes.missing(range.start.max(taken) - taken..range.end.min(handed) - taken);
                }
                Hole::Gap(at, length) if *at > taken && *at <= handed => {
                    holes.gap(*at - taken, *length);
                }
                _ => {}
            }
        }
        taken += deframer.push(&mut bytes[taken..handed], &holes, ended, &mut |chunk| {
            output.take(chunk);
        });
        if ended && !deframer.is_filling() {
            assert_eq!(taken, bytes.len());
            return;
        }
    }
}

struct Ring {
    bytes: Vec<u8>,
    holes: Vec<Hole>,
}

enum Hole {
    Missing(Range<usize>),
    Gap(usize, u64),
}

impl Ring {
    fn new(stream: &Stream, path: &Path) -> Ring {
        let mut ring = Ring {
            bytes: Vec::new(),
            holes: Vec::new(),
        };
        let seen = path.seen(stream);
        let slots = seen.start / path.slot..seen.end.div_ceil(path.slot);
        let mut run = Vec::new();
        for slot in slots {
            let range = slot * path.slot..((slot + 1) * path.slot).min(stream.bytes.len());
            if path.lost.contains(&slot) {
                run.push(range);
                continue;
            }
            ring.lose(&run, path);
            run.clear();
            ring.bytes.extend_from_slice(&stream.bytes[range]);
        }
        ring
    }

    fn lose(&mut self, run: &[Range<usize>], path: &Path) {
        let length: usize = run.iter().map(Range::len).sum();
        let start = self.bytes.len();
        if run.len() >= path.gap_from {
            self.holes.push(Hole::Gap(start, length as u64));
        } else if length > 0 {
            self.bytes.resize(start + length, STALE);
            self.holes.push(Hole::Missing(start..start + length));
        }
    }
}

/// Returns the expected output, and which frames are broken in it.
pub fn expected(stream: &Stream, path: &Path, partial: Partial) -> (Vec<u8>, Vec<bool>) {
    let seen = path.seen(stream);
    let length = stream.frame_length;
    let mut bytes = Vec::new();
    let mut broken = Vec::new();
    for number in seen.start.div_ceil(length)..seen.end.div_ceil(length) {
        let place = number * length;
        let is_lost = |byte: usize| byte >= seen.end || path.lost.contains(&(byte / path.slot));
        let lost: Vec<bool> = (place..place + length).map(is_lost).collect();
        let mut frame = stream.frame(number).to_vec();
        if lost.contains(&true) {
            let all = lost[stream.header_length..].iter().all(|lost| *lost);
            if partial == Partial::Keep && !all {
                let mut pattern = vec![0; length];
                fill::make(&mut pattern);
                for at in stream.header_length..length {
                    if lost[at] {
                        frame[at] = pattern[at];
                    }
                }
            } else {
                let mut header = stream.header(number);
                header.set_invalid(true);
                fill::make(&mut frame[stream.header_length..]);
                header.emit(&mut frame);
            }
        }
        broken.push(lost.contains(&true));
        bytes.extend(frame);
    }
    (bytes, broken)
}

/// Reports where two outputs first differ.
pub fn assert_same(output: &[u8], expected: &[u8], stream: &Stream) {
    if output == expected {
        return;
    }
    let length = stream.frame_length;
    assert_eq!(output.len(), expected.len(), "lengths, frames of {length}");
    for (number, (ours, theirs)) in output
        .chunks(length)
        .zip(expected.chunks(length))
        .enumerate()
    {
        assert_eq!(
            Header::parse(ours),
            Header::parse(theirs),
            "header of frame {number}"
        );
        assert!(ours == theirs, "payload of frame {number}");
    }
}
