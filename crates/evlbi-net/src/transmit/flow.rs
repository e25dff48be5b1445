//! One flow: a source, its clock, its shedding and the transport that it leaves by.
//!
//! Here belongs what one flow does at its departures; what is common to all flows of a thread is in the directory above.

use std::io;
use std::sync::Arc;

use evlbi_core::pace::{ByTime, CatchUp, Pacer};
use evlbi_core::rate::BitRate;
use evlbi_core::shed::{Replace, Shed, ShedReport, Unit};
use evlbi_core::time::Nanos;
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::{Header, StreamKey};
use evlbi_wire::vtp;

use crate::clock::Events;
use crate::cpu::Waiting;
use crate::run::Run;
use crate::transport::{Close, Head, Outgoing, Pieces, Ready};
use crate::udp::SendCounts;

use super::{Change, Frames, Lateness, SendReport, Sent, Snapshot, Source};

/// A frame due so much later than the train it would go with starts a train of its own.
const PAUSE: Nanos = Nanos(1_000_000);
/// A frame that was begun is completed after the end, or a request to stop, unless the rest of it takes longer.
const REST: Nanos = Nanos(1_000_000_000);
/// What the transport was given before the end, or a request to stop, has so long to reach the other end.
const LINGER: Nanos = Nanos(500_000_000);

/// What sets the nominal times of a flow.
pub enum Clock {
    /// A bit rate of the data.
    Rate(BitRate),
    /// The times in the frames.
    Time(ByTime),
    /// As fast as the host can.
    None,
}

/// How a flow is sent.
pub struct FlowOptions {
    /// Length of a frame in bytes.
    pub frame_length: usize,
    /// Data of a datagram in bytes: an exact divisor of the frame.
    pub datagram_data: usize,
    /// Whether frames begin with VDIF headers: to be timed, re-timed and shed by thread and time.
    pub vdif: bool,
    /// Frames per second of a thread, where known; needed to re-time.
    pub frame_rate: Option<FrameRate>,
    /// First sequence number; `None` where the transport has none.
    pub sequence: Option<u64>,
    /// Where the transport carries a stream of bytes: how long it is. What only completes the last unit is not sent.
    pub stream: Option<u64>,
    /// Nominal times.
    pub clock: Clock,
    /// When the first frame leaves.
    pub start: Nanos,
    /// No frame begins from then on.
    pub end: Option<Nanos>,
    /// Most datagrams back to back.
    pub burst: u32,
    /// What is left out.
    pub shed: Shed,
    /// Whether shedding decides about single datagrams instead of frames.
    pub shed_packets: bool,
    /// What goes out in the place of shed data: nothing, the fill pattern, or random bytes.
    pub replace: Replace,
    /// Fill pattern as long as a datagram's data, or a store of random bytes that each datagram takes a piece of.
    pub replacement: Vec<u8>,
}

/// A flow on its way. Driven by [`super::run`].
pub struct Flow {
    source: Box<dyn Source>,
    outlet: Box<dyn Outgoing>,
    pieces: Pieces,
    options: FlowOptions,
    /// What goes out in the place of shed data.
    replacement: Vec<u8>,
    pacer: Pacer,
    sent: Arc<Sent>,
    /// The frame that comes next; `None` at the end.
    current: Option<Current>,
    /// Its datagram that comes next.
    fragment: usize,
    /// Data offered so far in bytes.
    offset: u64,
    /// The offset at which the rate was last set, and when that was due.
    rated_from: (u64, Nanos),
    /// What policies did that have been changed since.
    shedding_before: Vec<ShedReport>,
    counts: Counts,
    first_departure: Option<Nanos>,
    /// When the transport is to be driven, and most datagrams that it takes now.
    drive_at: Option<Nanos>,
    room: usize,
    /// What it did last.
    last: Next,
    /// Once no frame is to begin: until when it waits for its transport.
    patience: Option<Nanos>,
    /// When the time of the last train is over, or until when the transport held what follows.
    end_of_last: Nanos,
    /// The same by the schedule, from its start on.
    due_end: Nanos,
    /// Whether the last train is in the counters that others see.
    is_shown: bool,
    /// Why it ended early.
    error: Option<String>,
}

/// What a flow does next.
#[derive(Clone, Copy)]
pub(super) enum Next {
    /// A train leaves at this moment.
    Train(Nanos),
    /// Nothing before this moment.
    At(Nanos),
    /// Nothing before an event of its transport.
    Event,
    /// It has ended.
    Over,
}

/// What a flow counts as it goes.
#[derive(Default)]
struct Counts {
    trains: u64,
    /// Handed to the transport.
    handed: u64,
    frames: u64,
    offered: u64,
    shed: u64,
    replaced: u64,
    lateness_sum: u128,
    lateness_max: Nanos,
}

/// The frame at the front of the source.
#[derive(Clone, Copy)]
struct Current {
    /// Its nominal time, where frames are timed by themselves.
    due: Nanos,
    unit: Unit,
    /// The datagram that comes next is shed.
    shed: bool,
    /// The frame is shed as a whole.
    shed_whole: bool,
    /// Its header, re-timed; `None` where it is no VDIF.
    header: Option<Header>,
    /// The source's own header is not what goes out.
    retimed: bool,
}

impl Flow {
    /// Readies `source` to leave by `outlet`.
    ///
    /// # Errors
    /// What the source says when its first frames cannot be read.
    pub fn new(
        source: Box<dyn Source>,
        outlet: Box<dyn Outgoing>,
        mut options: FlowOptions,
        sent: Arc<Sent>,
    ) -> io::Result<Flow> {
        let mut flow = Flow {
            pacer: Pacer::new(options.start, CatchUp::DATA),
            source,
            outlet,
            pieces: Pieces::default(),
            replacement: std::mem::take(&mut options.replacement),
            options,
            sent,
            current: None,
            fragment: 0,
            offset: 0,
            rated_from: (0, Nanos(0)),
            shedding_before: Vec::new(),
            counts: Counts::default(),
            first_departure: None,
            drive_at: None,
            room: usize::MAX,
            last: Next::Train(Nanos(0)),
            patience: None,
            end_of_last: Nanos(0),
            due_end: Nanos(0),
            is_shown: true,
            error: None,
        };
        flow.take_up_next_frame()?;
        Ok(flow)
    }

    /// What it does next.
    pub(super) fn next(&mut self, now: Nanos, is_stopped: bool) -> Next {
        match self.last {
            Next::Train(_) => {}
            Next::Over => return Next::Over,
            // Until now its transport took nothing.
            Next::At(_) | Next::Event if self.first_departure.is_some() => {
                self.end_of_last = self.end_of_last.max(now);
                self.is_shown = false;
            }
            Next::At(_) | Next::Event => {}
        }
        self.last = self.look_ahead(now, is_stopped);
        self.last
    }

    fn look_ahead(&mut self, now: Nanos, is_stopped: bool) -> Next {
        if !self.is_shown {
            self.show();
        }
        if self.drive_at.is_some_and(|moment| now >= moment) {
            self.drive(now);
        }
        if is_stopped || self.options.end.is_some_and(|end| now >= end) {
            self.patience.get_or_insert(now.plus(LINGER));
        }
        let is_late = self.patience.is_some_and(|until| now >= until);
        let Some(departure) = self.departure(is_stopped) else {
            return match self.error {
                None => self.close(now, is_late),
                Some(_) => Next::Over,
            };
        };
        match self.outlet.ready(now) {
            Ready::Now(room) => {
                self.room = room;
                Next::Train(departure)
            }
            _ if is_late => Next::Over,
            Ready::At(moment) => Next::At(moment),
            Ready::OnEvent => {
                // What it waits for is perhaps there.
                self.drive(now);
                match self.outlet.ready(now) {
                    Ready::Now(room) => {
                        self.room = room;
                        Next::Train(departure)
                    }
                    Ready::At(moment) => Next::At(moment),
                    Ready::OnEvent if self.error.is_some() => Next::Over,
                    Ready::OnEvent => Next::Event,
                }
            }
        }
    }

    /// When the next train may leave; `None` when nothing is left to send, or no frame is to begin.
    fn departure(&self, is_stopped: bool) -> Option<Nanos> {
        let current = self.current.as_ref()?;
        let departure = match self.options.clock {
            Clock::None => self.options.start,
            _ => self.pacer.departure(self.due(current)),
        };
        let is_over = is_stopped || self.options.end.is_some_and(|end| departure >= end);
        (!is_over || self.is_amid_frame()).then_some(departure)
    }

    /// Lets the transport do what is due.
    fn drive(&mut self, now: Nanos) {
        match self.outlet.drive(now) {
            Ok(moment) => self.drive_at = moment,
            Err(error) => self.fail(&error),
        }
    }

    /// Nothing is left to send: what the transport still has goes out, unless there is no time for it.
    fn close(&mut self, now: Nanos, is_late: bool) -> Next {
        match self.outlet.close(now) {
            Ok(_) if is_late => Next::Over,
            Ok(Close::Done) => Next::Over,
            Ok(Close::At(moment)) => Next::At(moment),
            Ok(Close::OnEvent) => Next::Event,
            Err(error) => {
                self.fail(&error);
                Next::Over
            }
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.error = Some(error.to_string());
        self.current = None;
    }

    /// When its transport is to be driven.
    pub(super) fn drive_at(&self) -> Option<Nanos> {
        self.drive_at
    }

    /// What it waits for, if that is an event.
    pub(super) fn events(&self) -> Events<'_> {
        match self.last {
            Next::Event => self.outlet.events(),
            _ => Events::NONE,
        }
    }

    /// Whether a frame was begun that soon is whole.
    fn is_amid_frame(&self) -> bool {
        let begun = self.fragment * self.options.datagram_data;
        begun > 0 && self.span((self.options.frame_length - begun) as u64) <= REST
    }

    /// How to wait for a departure: to the point where single packets are to be spaced exactly.
    pub(super) fn waiting(&self) -> Waiting {
        if self.options.burst == 1 {
            Waiting::SleepThenSpin
        } else {
            Waiting::Sleep
        }
    }

    /// Sends the datagrams that are due together.
    pub(super) fn send_train(&mut self, run: &Run) {
        let Some(current) = self.current.take() else {
            return;
        };
        let now = run.clock().now();
        let is_over = run.is_stopped() || self.options.end.is_some_and(|end| now >= end);
        if is_over && !self.is_amid_frame() {
            return;
        }
        let due = self.due(&current);
        if let Some(change) = self.sent.take_change() {
            self.apply(change, due);
        }
        let offset = self.offset;
        if let Err(error) = self.send_from(current, due, is_over, now) {
            self.fail(&error);
        }
        let span = self.span(self.offset - offset);
        self.note_departure(now, due, span, run.clock().now());
        if !matches!(self.options.clock, Clock::None) {
            self.pacer.left(now, due, span);
        }
        self.show();
    }

    /// Takes up a change while nothing is due for long: a new rate counts from now on.
    pub(super) fn heed(&mut self, now: Nanos) {
        if let Some(change) = self.sent.take_change() {
            if change.rate.is_some() {
                self.pacer.hurry(now);
            }
            self.apply(change, self.pacer.due_at(now));
        }
    }

    /// Shows the counters. A reader that holds the lock keeps no train waiting: they are shown before the next look.
    fn show(&mut self) {
        let shown = self.sent.shown.try_lock();
        self.is_shown = shown.is_some();
        if let Some(mut shown) = shown {
            *shown = self.live(&self.outlet.counts());
        }
    }

    fn live(&self, outlet: &SendCounts) -> Snapshot {
        Snapshot {
            offered: self.counts.offered,
            sent: outlet.sent,
            shed: self.counts.shed,
            replaced: self.counts.replaced,
            not_sent: outlet.not_sent(),
            frames: self.counts.frames,
            bytes: match self.options.stream {
                Some(_) => outlet.bytes,
                None => outlet.sent * self.options.datagram_data as u64,
            },
            offset: self.offset,
            behind: self.behind(),
            slips: self.pacer.slips(),
            time_jumps: match &self.options.clock {
                Clock::Time(times) => times.jumps(),
                _ => 0,
            },
        }
    }

    /// Changes what is to be otherwise from the train on that is due at `due`.
    fn apply(&mut self, change: Change, due: Nanos) {
        if let (Some((rate, burst)), Clock::Rate(_)) = (change.rate, &self.options.clock) {
            self.rated_from = (self.offset, due);
            self.options.clock = Clock::Rate(rate);
            self.options.burst = burst;
        }
        if let Some(shed) = change.shed {
            let before = std::mem::replace(&mut self.options.shed, shed);
            self.shedding_before.push(before.report());
        }
    }

    /// Sends up to a burst of datagrams, beginning with the next one of `current`, which is due at
    /// `due`, and takes up the frame that follows. The last train goes no further than its frame.
    fn send_from(
        &mut self,
        mut current: Current,
        due: Nanos,
        is_last: bool,
        now: Nanos,
    ) -> io::Result<()> {
        let Flow {
            source,
            outlet,
            pieces,
            options,
            replacement,
            counts,
            ..
        } = self;
        let window = source.frames()?;
        let mut consumed = 0;
        let mut more_in_window = true;
        let mut train = pieces.begin();
        let most = usize::try_from(options.burst).unwrap_or(usize::MAX);
        for _ in 0..most.min(self.room) {
            let frame = &window.bytes[consumed..consumed + options.frame_length];
            let from = self.fragment * options.datagram_data;
            let data = &frame[from..from + options.datagram_data];
            if options.shed_packets || self.fragment == 0 {
                current.shed = options.shed.decide(&current.unit);
                current.shed_whole = current.shed && !options.shed_packets;
            }
            if current.shed && options.replace == Replace::Nothing {
                counts.shed += 1;
            } else {
                let sequence = options
                    .sequence
                    .map(|first| first.wrapping_add(counts.offered));
                let (head, covers) = head_of(&current, sequence, self.fragment, data.len());
                let body = if current.shed {
                    counts.replaced += 1;
                    let among = replacement.len() - data.len() + 1;
                    let at = current.unit.place(self.fragment as u64, among);
                    &replacement[at..at + data.len()]
                } else {
                    data
                };
                // What only completes the last datagram is no data.
                let end = options.stream.map_or(body.len(), |all| {
                    let left = all.saturating_sub(self.offset);
                    (left.min(body.len() as u64) as usize).max(covers)
                });
                train.push(head, &body[covers..end]);
            }
            counts.offered += 1;
            self.offset += options.datagram_data as u64;
            self.fragment += 1;
            if from + options.datagram_data < options.frame_length {
                continue;
            }
            self.fragment = 0;
            counts.frames += 1;
            consumed += options.frame_length;
            more_in_window = consumed < window.bytes.len();
            if !more_in_window {
                break;
            }
            current = look_at(options, &window, consumed);
            if is_last {
                break;
            }
            if current.due > due.plus(PAUSE) {
                break;
            }
        }
        if !train.is_empty() {
            counts.handed += train.len() as u64;
            outlet.send(&train, now)?;
        }
        source.consume(consumed);
        if more_in_window {
            self.current = Some(current);
        } else {
            self.take_up_next_frame()?;
        }
        Ok(())
    }

    fn take_up_next_frame(&mut self) -> io::Result<()> {
        let window = self.source.frames()?;
        self.current = (window.bytes.len() >= self.options.frame_length)
            .then(|| look_at(&mut self.options, &window, 0));
        Ok(())
    }

    /// Nominal time of the next datagram.
    fn due(&self, current: &Current) -> Nanos {
        match &self.options.clock {
            Clock::Rate(rate) => {
                let (offset, due) = self.rated_from;
                due.plus(rate.due(self.offset - offset))
            }
            Clock::Time(_) => current
                .due
                .plus(self.span((self.fragment * self.options.datagram_data) as u64)),
            Clock::None => Nanos(0),
        }
    }

    /// How long so many bytes of data last at the nominal rate.
    fn span(&self, bytes: u64) -> Nanos {
        match &self.options.clock {
            Clock::Rate(rate) => rate.due(bytes),
            Clock::Time(times) => Nanos(
                (times.frame_span().0).saturating_mul(bytes) / self.options.frame_length as u64,
            ),
            Clock::None => Nanos(0),
        }
    }

    fn note_departure(&mut self, now: Nanos, due: Nanos, span: Nanos, after: Nanos) {
        let late = match self.options.clock {
            Clock::None => Nanos(0),
            _ => now.since(self.pacer.nominal(due)),
        };
        self.due_end = due.plus(span);
        self.counts.trains += 1;
        self.counts.lateness_sum += u128::from(late.0);
        self.counts.lateness_max = self.counts.lateness_max.max(late);
        self.first_departure.get_or_insert(now);
        self.end_of_last = after.max(now.plus(span));
    }

    /// How far it is behind its schedule, what it gave up included.
    fn behind(&self) -> Nanos {
        match self.options.clock {
            Clock::None => Nanos(0),
            _ => self.pacer.behind(self.end_of_last, self.due_end),
        }
    }

    /// The flow has ended: what became of it.
    pub(super) fn finish(mut self, now: Nanos) -> SendReport {
        self.drive(now);
        let counts = &self.counts;
        let mut socket = self.outlet.counts();
        // What the transport kept for a reader that took nothing.
        socket.buffer_full += counts.handed - (socket.sent + socket.not_sent()).min(counts.handed);
        let first = self.options.sequence.filter(|_| counts.offered > 0);
        let first_departure = self.first_departure.unwrap_or_default();
        let seconds = self.end_of_last.since(first_departure).as_secs_f64();
        let live = self.live(&socket);
        *self.sent.shown.lock() = live;
        SendReport {
            live,
            first_seq: first,
            last_seq: first.map(|first| first.wrapping_add(counts.offered - 1)),
            seconds,
            rate_bps: if seconds > 0.0 {
                live.bytes as f64 * 8.0 / seconds
            } else {
                0.0
            },
            datagram_data: self.options.datagram_data,
            burst: self.options.burst,
            lateness_us: Lateness {
                mean: counts.lateness_sum as f64 / counts.trains.max(1) as f64 * 1e-3,
                max: counts.lateness_max.0 as f64 * 1e-3,
            },
            slips: live.slips,
            behind_seconds: live.behind.as_secs_f64(),
            shedding: self.options.shed.report(),
            shedding_before: self.shedding_before,
            socket,
            error: self.error,
        }
    }
}

/// Prepares the frame at `at` of `window`: its header and its time.
#[inline]
fn look_at(options: &mut FlowOptions, window: &Frames<'_>, at: usize) -> Current {
    let frame = &window.bytes[at..at + options.frame_length];
    let mut header = options
        .vdif
        .then(|| Header::parse(frame).ok())
        .flatten()
        .filter(|header| header.frame_length() == options.frame_length);
    let mut retimed = false;
    if let (Some(header), Some(rate)) = (&mut header, options.frame_rate)
        && window.shift != 0
    {
        let index = header.time().index(rate).saturating_add(window.shift);
        retimed = header.set_time(FrameTime::from_index(index, rate)).is_ok();
    }
    let unit = Unit::new(
        header.map_or(StreamKey::default(), |header| header.key()),
        header.map(|header| header.time()),
        frame,
    );
    let due = match (&mut options.clock, unit.time) {
        (Clock::Time(times), Some(time)) => times.due(unit.key, time),
        (Clock::Time(times), None) => times.follow(),
        _ => Nanos(0),
    };
    Current {
        due,
        unit,
        shed: false,
        shed_whole: false,
        header,
        retimed,
    }
}

/// What goes before the untouched bytes of a datagram, and how many bytes of the data it stands for.
#[inline]
fn head_of(
    current: &Current,
    sequence: Option<u64>,
    fragment: usize,
    data: usize,
) -> (Head, usize) {
    let mut head = Head::new();
    if let Some(sequence) = sequence {
        head.append(&vtp::header(sequence));
    }
    // A frame that is replaced as a whole keeps its header, so that the stream stays in step.
    if let Some(header) = &current.header
        && fragment == 0
        && (current.retimed || current.shed_whole)
        && header.len() <= data
    {
        head.append(&header.to_bytes()[..header.len()]);
        return (head, header.len());
    }
    (head, 0)
}

#[cfg(test)]
mod instructions;
