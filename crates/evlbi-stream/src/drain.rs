//! Empties the ring: turns released data into frames and passes them to the sink.
//!
//! Put here what happens between ring and sink, for any sink and once per span.

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

use crate::samples::SamplesError;
use crate::selection::Selection;
use crate::sink::{Sink, SinkReport};

/// Sleep between two reads of the ring, so that each takes more data. At 30 Gbit/s that is 8 MB.
const NAP: Duration = Duration::from_millis(2);
/// The same for a byte stream, whose ring is small.
const STREAM_NAP: Duration = Duration::from_micros(500);
/// Maximum sleep while little data arrives: hundreds of slow streams share a host. A stream that becomes fast in that time fills 60 MB at
/// 30 Gbit/s.
const MAX_NAP: Duration = Duration::from_millis(16);
/// Maximum size of a read, in bytes, that counts as little data.
const LITTLE: usize = 256 << 10;

/// Interval at which buffered data is written to the files and the frame counts are published.
const SHOW: Nanos = Nanos(250_000_000);

/// Time in which a selected stream must arrive at an address, once others do.
pub const ABSENT: Nanos = Nanos(2 * Nanos::SECOND.0);

/// Frame counts so far.
#[derive(Default)]
pub struct Shown {
    /// Counts of frames and bytes.
    pub counts: Counts,
    /// Runs of missing frames, the first ones.
    pub gaps: Vec<TimeGap>,
    /// Frames per second of each thread; `None` until known.
    pub frame_rate: Option<FrameRate>,
    /// Lengths of frame and header; `None` until known.
    pub layout: Option<Layout>,
}

/// Result of emptying a ring.
pub struct Drained {
    /// Final frame counts.
    pub frames: Shown,
    /// Format of the frames; `None` if no data arrived.
    pub format: Option<Format>,
    /// Report of the sink.
    pub sink: SinkReport,
    /// Reason why the selected streams are not there, if others arrived.
    pub absent: Option<SamplesError>,
}

/// Waits for a stream and drains it until the receiver ends. After `run` is stopped, no further gap is filled.
pub fn all(opening: &Opening, settings: Settings, sink: Box<dyn Sink>, run: &Run) -> Drained {
    let all = Selection::default();
    watched(opening, settings, &all, sink, &Mutex::default(), run)
}

/// Does the same, and publishes the counts to a watcher. Stops the run if one of the selected streams does not arrive.
pub(crate) fn watched(
    opening: &Opening,
    settings: Settings,
    selection: &Selection,
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
        empty(consumer, &mut deframer, selection, &mut *sink, shown, run);
    }
    let absent = match begun && selection.is_part() {
        true => check(&deframer, selection).and_then(Result::err),
        false => None,
    };
    Drained {
        frames: Shown {
            counts: deframer.counts(),
            gaps: deframer.gaps().to_vec(),
            frame_rate: deframer.frame_rate(),
            layout: deframer.layout(),
        },
        format: deframer.format(),
        sink: sink.finish(),
        absent,
    }
}

/// Checks that the selected streams have arrived; `None` before the first frame.
fn check(deframer: &Deframer, selection: &Selection) -> Option<Result<(), SamplesError>> {
    match deframer.format()? {
        Format::Raw => Some(Err(SamplesError::Raw)),
        _ if deframer.seen().is_empty() => None,
        _ => Some(selection.check(deframer.seen())),
    }
}

/// Empties a ring until its producer is gone.
fn empty(
    mut consumer: Consumer<Event>,
    deframer: &mut Deframer,
    selection: &Selection,
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
    let min = match consumer.is_stream() {
        true => STREAM_NAP,
        false => NAP,
    };
    let mut nap = min;
    let clock = run.clock();
    let mut flushed = clock.now();
    let mut absent_at = selection.is_part().then(|| flushed.plus(ABSENT));
    loop {
        if run.is_abandoned() {
            return;
        }
        // Asked first, so that data released before the end is not missed.
        let finished = consumer.is_closed();
        let taken = drain.step(&mut consumer, finished);
        if finished && taken.is_none() {
            return;
        }
        if clock.now().since(flushed) >= SHOW {
            flushed = clock.now();
            drain.sink.flush();
            // A reader that holds the lock gets the next state instead.
            if let Some(mut shown) = shown.try_lock() {
                show(drain.deframer, &mut shown);
            }
        }
        if let Some(moment) = absent_at
            && clock.now() >= moment
            && let Some(is_there) = check(drain.deframer, selection)
        {
            absent_at = None;
            if is_there.is_err() {
                run.stop();
            }
        }
        nap = match taken {
            Some(bytes) if bytes > LITTLE => min,
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
    /// Positions, each with the number of slots that are missing before it and take no space in the ring.
    gaps: VecDeque<(u64, u64)>,
    run: &'d Run,
}

impl Drain<'_> {
    /// Takes the available data; returns the number of bytes, or `None` if nothing happened.
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
        if let Some((given, found)) = self.deframer.take_other_rate() {
            let (given, found) = (given.get(), found.get());
            self.run.warn(format_args!(
                "the frame rate is given as {given}/s, but the times of the frames show {found}/s, which is used"
            ));
        }
        let reached = self.taken + bytes;
        let front = first + (reached / self.slot) as u64;
        self.taken = reached % self.slot;
        consumer.free(front);
        // The deframer has already noted the gaps before and at the front.
        self.gaps.retain(|(position, _)| *position > front);
        if self.deframer.is_filling() {
            // Piece by piece, no faster than the sink takes it, so that a stop takes effect at once.
            if self.run.is_stopped() {
                self.deframer.stop_filling();
            }
            return Some(bytes);
        }
        if let Some((_, missing)) = restart {
            // At the end of a sequence, part of a slot was trimmed.
            consumer.free(until);
            self.taken = 0;
            self.gaps.clear();
            self.deframer
                .restart(missing.saturating_mul(self.slot as u64));
            consumer.take_event();
        }
        (bytes > 0 || restart.is_some()).then_some(bytes)
    }

    /// Notes the gaps up to `end`; returns the position before which the sender restarted, and how many slots the pause would have filled.
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

    /// Passes contiguous bytes through the deframer; returns how many it took.
    fn walk(&mut self, bytes: &[u8], ended: bool) -> usize {
        let sink = &mut *self.sink;
        self.deframer
            .walk(bytes, ended, &mut |chunk| sink.take(chunk))
    }

    /// Passes the span up to `until` through the deframer; returns how many bytes it took.
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

/// Publishes the frame counts. The list of gaps is bounded, and copied only after a change.
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
