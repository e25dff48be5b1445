//! Empties the ring: what the receiver handed on becomes frames and goes to the sink.
//!
//! Here belongs what happens between ring and sink, for any sink and once for each span.

use std::collections::VecDeque;
use std::time::Duration;

use evlbi_core::deframe::{Counts, Deframer, Format, Holes, Layout, Settings};
use evlbi_core::reorder::Event;
use evlbi_core::time::Nanos;
use evlbi_net::receive::Opening;
use evlbi_net::ring::{Consumer, Span};
use evlbi_net::run::Run;
use evlbi_wire::time::FrameRate;
use evlbi_wire::validity::TimeGap;
use parking_lot::Mutex;

use crate::sink::{Sink, SinkReport};

/// How long to wait for more to take at once. At 30 Gbit/s that is 8 MB.
const NAP: Duration = Duration::from_millis(2);
/// The same of a stream of bytes, whose ring is small.
const STREAM_NAP: Duration = Duration::from_micros(500);
/// And where little comes: hundreds of slow streams share a host. A stream that becomes fast meanwhile fills 60 MB at 30 Gbit/s.
const MAX_NAP: Duration = Duration::from_millis(16);
/// What is little, in bytes.
const LITTLE: usize = 256 << 10;

/// How often what is held back goes to the files, and the frames are shown.
const SHOW: Nanos = Nanos(250_000_000);

/// What became of the frames so far.
#[derive(Default)]
pub struct Shown {
    /// Frames and bytes, by what became of them.
    pub counts: Counts,
    /// Runs of missing frames, the first ones.
    pub gaps: Vec<TimeGap>,
    /// Frames per second of each thread, once that is known.
    pub frame_rate: Option<FrameRate>,
    /// Lengths of frame and header, once they are known.
    pub layout: Option<Layout>,
}

/// What became of the frames.
pub struct Drained {
    /// What was found of them.
    pub frames: Shown,
    /// Which frames they are; none where nothing came.
    pub format: Option<Format>,
    /// What became of them in the sink.
    pub sink: SinkReport,
}

/// Waits for a stream and takes everything of it until the receiver ends. Once `run` is stopped, no gap is filled any further.
pub fn all(opening: &Opening, settings: Settings, sink: Box<dyn Sink>, run: &Run) -> Drained {
    watched(opening, settings, sink, &Mutex::default(), run)
}

/// The same, while somebody watches it.
pub(crate) fn watched(
    opening: &Opening,
    settings: Settings,
    mut sink: Box<dyn Sink>,
    shown: &Mutex<Shown>,
    run: &Run,
) -> Drained {
    let mut deframer = Deframer::new(settings);
    let mut begun = false;
    while let Some((consumer, missing)) = opening.next() {
        if begun {
            deframer.restart(missing);
        }
        begun = true;
        empty(consumer, &mut deframer, &mut *sink, shown, run);
    }
    Drained {
        frames: Shown {
            counts: deframer.counts(),
            gaps: deframer.gaps().to_vec(),
            frame_rate: deframer.frame_rate(),
            layout: deframer.layout(),
        },
        format: deframer.format(),
        sink: sink.finish(),
    }
}

/// Empties a ring until its producer is gone.
fn empty(
    mut consumer: Consumer<Event>,
    deframer: &mut Deframer,
    sink: &mut dyn Sink,
    shown: &Mutex<Shown>,
    run: &Run,
) {
    let mut drain = Drain {
        slot: consumer.slot(),
        deframer,
        sink,
        holes: Holes::new(),
        taken: 0,
        gaps: VecDeque::new(),
        run,
    };
    let least = match consumer.is_stream() {
        true => STREAM_NAP,
        false => NAP,
    };
    let mut nap = least;
    let clock = run.clock();
    let mut flushed = clock.now();
    loop {
        if run.is_abandoned() {
            return;
        }
        // In this order: what is handed on before the end is then seen.
        let finished = consumer.is_closed();
        let taken = drain.step(&mut consumer, finished);
        if finished && taken.is_none() {
            return;
        }
        if clock.now().since(flushed) >= SHOW {
            flushed = clock.now();
            drain.sink.flush();
            // A reader that holds the lock sees the next state instead.
            if let Some(mut shown) = shown.try_lock() {
                show(drain.deframer, &mut shown);
            }
        }
        nap = match taken {
            Some(bytes) if bytes > LITTLE => least,
            _ => (nap * 2).min(MAX_NAP),
        };
        if !finished && !drain.deframer.is_filling() {
            clock.sleep(nap);
        }
    }
}

struct Drain<'d> {
    slot: usize,
    deframer: &'d mut Deframer,
    sink: &'d mut dyn Sink,
    holes: Holes,
    /// Bytes of the first slot that were taken already.
    taken: usize,
    /// Positions before which so many slots are missing that have no place in the ring.
    gaps: VecDeque<(u64, u64)>,
    run: &'d Run,
}

impl Drain<'_> {
    /// Takes what is there; says how many bytes, where anything happened.
    fn step(&mut self, consumer: &mut Consumer<Event>, finished: bool) -> Option<usize> {
        let span = consumer.span();
        let first = span.first;
        let end = first + (span.data.len() / self.slot) as u64;
        let restart = self.take_gaps(consumer, end);
        let until = restart.map_or(end, |(position, _)| position);
        let ended = restart.is_some() || finished;
        let bytes = match consumer.is_stream() {
            true => self.walk(consumer.span().data, ended),
            false => self.push(&mut consumer.span(), until, ended),
        };
        let reached = self.taken + bytes;
        let front = first + (reached / self.slot) as u64;
        self.taken = reached % self.slot;
        consumer.free(front);
        // The deframer remembers those before and at the front.
        self.gaps.retain(|(position, _)| *position > front);
        if self.deframer.is_filling() {
            // Piece by piece, no faster than the sink takes it: a stop ends it at once.
            if self.run.is_stopped() {
                self.deframer.stop_filling();
            }
            return Some(bytes);
        }
        if let Some((_, missing)) = restart {
            // A part of a slot at the end of a sequence was trimmed.
            consumer.free(until);
            self.taken = 0;
            self.gaps.clear();
            self.deframer
                .restart(missing.saturating_mul(self.slot as u64));
            consumer.take_event();
        }
        (bytes > 0 || restart.is_some()).then_some(bytes)
    }

    /// Takes note of the gaps up to `end`; returns the position before which the sender began again, and
    /// how many slots would have come meanwhile.
    fn take_gaps(&mut self, consumer: &mut Consumer<Event>, end: u64) -> Option<(u64, u64)> {
        while let Some((position, event)) = consumer.event()
            && position <= end
        {
            match event {
                Event::Gap(slots) => self.gaps.push_back((position, slots)),
                Event::Restart(missing) => return Some((position, missing)),
            }
            consumer.take_event();
        }
        None
    }

    /// Puts bytes of which none is missing through the deframer; returns how many it took.
    fn walk(&mut self, bytes: &[u8], ended: bool) -> usize {
        let sink = &mut *self.sink;
        self.deframer
            .walk(bytes, ended, &mut |chunk| sink.take(chunk))
    }

    /// Puts the span up to `until` through the deframer; returns how many bytes it took.
    fn push(&mut self, span: &mut Span<'_>, until: u64, ended: bool) -> usize {
        let slots = (until - span.first) as usize;
        let place = |number: usize| (number * self.slot).saturating_sub(self.taken);
        self.holes.clear();
        let mut gaps = self.gaps.iter().peekable();
        for number in 0..=slots {
            let position = span.first + number as u64;
            while let Some((_, missing)) = gaps.next_if(|(before, _)| *before <= position) {
                let bytes = missing.saturating_mul(self.slot as u64);
                self.holes.gap(place(number), bytes);
            }
            if number < slots && !span.presence.at(position) {
                self.holes.missing(place(number)..place(number + 1));
            }
        }
        let bytes = &mut span.data[self.taken.min(slots * self.slot)..slots * self.slot];
        let sink = &mut *self.sink;
        self.deframer
            .push(bytes, &self.holes, ended, &mut |chunk| sink.take(chunk))
    }
}

/// The list of gaps is bounded, and copied only when something has changed.
fn show(deframer: &Deframer, shown: &mut Shown) {
    let counts = deframer.counts();
    if counts.lost_frames != shown.counts.lost_frames || counts.partial != shown.counts.partial {
        shown.gaps = deframer.gaps().to_vec();
    }
    shown.counts = counts;
    shown.frame_rate = deframer.frame_rate();
    shown.layout = deframer.layout();
}

#[cfg(test)]
mod instructions;
