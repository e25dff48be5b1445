//! One flow: a source, its clock, its shedding and its transport.
//!
//! This module handles the departures of one flow; what all flows of a thread have in common is in the directory above.

mod safe;

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
use crate::safe::SafeSending;
use crate::transport::{Close, Head, Outgoing, Pieces, Ready};
use crate::udp::SendCounts;

use self::safe::Allowed;
use super::{Change, Frames, Lateness, SendReport, Sent, Snapshot, Source};

/// Minimum pause before a frame that starts a train of its own.
const PAUSE: Nanos = Nanos(1_000_000);
/// Maximum time to complete a started frame after the end, or after a request to stop.
const REST: Nanos = Nanos(1_000_000_000);
/// Time for data that the transport accepted to reach the remote host, after the end or a request to stop.
const LINGER: Nanos = Nanos(500_000_000);
/// Maximum number of earlier policies whose counters are kept apart.
const MAX_POLICIES: usize = 1000;

/// Source of a flow's nominal times.
pub enum Clock {
    /// A bit rate of the data.
    Rate(BitRate),
    /// The times in the frames.
    Time(ByTime),
    /// As fast as the host can.
    None,
}

/// Options of a flow.
pub struct FlowOptions {
    /// Name of the destination, for a warning.
    pub to: String,
    /// Length of a frame in bytes.
    pub frame_length: usize,
    /// Data per datagram in bytes: an exact divisor of the frame length.
    pub datagram_data: usize,
    /// Whether frames begin with VDIF headers: to be timed, re-timed and shed by thread and time.
    pub vdif: bool,
    /// Frames per second of a thread, if known; needed to re-time.
    pub frame_rate: Option<FrameRate>,
    /// First sequence number; `None` if the transport has none.
    pub sequence: Option<u64>,
    /// Length of the byte stream, if the transport carries one. Padding of the last unit is not sent.
    pub stream: Option<u64>,
    /// Nominal times.
    pub clock: Clock,
    /// Departure time of the first frame.
    pub start: Nanos,
    /// No frame starts from this time on.
    pub end: Option<Nanos>,
    /// Maximum burst in datagrams.
    pub burst: u32,
    /// Shedding policy.
    pub shed: Shed,
    /// Whether to shed single datagrams instead of frames.
    pub shed_packets: bool,
    /// SafeUDP, which replaces the shedding policy.
    pub safe: Option<Box<SafeSending>>,
    /// Replacement of shed data: nothing, the fill pattern, or random bytes.
    pub replace: Replace,
    /// Fill pattern as long as a datagram's data, or a store of random bytes of which each datagram takes a piece.
    pub replacement: Vec<u8>,
}

/// A running flow, driven by [`super::run`].
pub struct Flow {
    source: Box<dyn Source>,
    outlet: Box<dyn Outgoing>,
    pieces: Pieces,
    options: FlowOptions,
    /// Replacement of shed data.
    replacement: Vec<u8>,
    pacer: Pacer,
    sent: Arc<Sent>,
    /// The next frame; `None` at the end.
    current: Option<Current>,
    /// Index of its next datagram.
    fragment: usize,
    /// Data offered so far, in bytes.
    offset: u64,
    /// The offset at which the rate was last set, and its due time.
    rated_from: (u64, Nanos),
    /// Reports of earlier policies.
    shedding_before: Vec<ShedReport>,
    counts: Counts,
    allowed: Allowed,
    first_departure: Option<Nanos>,
    /// Time of the next drive of the transport, and the maximum number of datagrams that it accepts now.
    drive_at: Option<Nanos>,
    room: usize,
    /// Its last step.
    last: Next,
    /// Deadline for its transport, once no further frame starts.
    give_up_at: Option<Nanos>,
    /// End of the last train's time, or of the time in which the transport blocked the next one.
    end_of_last: Nanos,
    /// The same by the schedule, from its start on.
    due_end: Nanos,
    /// Whether the shared counters include the last train.
    is_shown: bool,
    /// Whether the destination answers that nobody listens there, and whether that was reported.
    is_refused: bool,
    is_refusal_reported: bool,
    /// Reason for an early end.
    error: Option<String>,
}

/// Next step of a flow.
#[derive(Clone, Copy)]
pub(super) enum Next {
    /// A train leaves at this time.
    Train(Nanos),
    /// Nothing before this time.
    At(Nanos),
    /// Nothing before an event of its transport.
    Event,
    /// It has ended.
    Over,
}

/// Counters of a flow.
#[derive(Default)]
struct Counts {
    trains: u64,
    /// Passed to the transport.
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
    /// Its nominal time, if frames are timed individually.
    due: Nanos,
    unit: Unit,
    /// The next datagram is shed.
    shed: bool,
    /// The whole frame is shed.
    shed_whole: bool,
    /// Its header, re-timed; `None` if it is not VDIF.
    header: Option<Header>,
    /// The header that is sent differs from the source's.
    retimed: bool,
}

impl Flow {
    /// Prepares `source` to leave by `outlet`.
    ///
    /// # Errors
    /// Returns the source's error if its first frames cannot be read.
    pub fn new(
        source: Box<dyn Source>,
        outlet: Box<dyn Outgoing>,
        mut options: FlowOptions,
        sent: Arc<Sent>,
    ) -> io::Result<Flow> {
        let allowed = Allowed::new(options.safe.is_some());
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
            allowed,
            counts: Counts::default(),
            first_departure: None,
            drive_at: None,
            room: usize::MAX,
            last: Next::Train(Nanos(0)),
            give_up_at: None,
            end_of_last: Nanos(0),
            due_end: Nanos(0),
            is_shown: true,
            is_refused: false,
            is_refusal_reported: false,
            error: None,
        };
        flow.take_up_next_frame()?;
        Ok(flow)
    }

    /// Returns its next step.
    pub(super) fn next(&mut self, now: Nanos, run: &Run) -> Next {
        match self.last {
            Next::Train(_) => {}
            Next::Over => return Next::Over,
            // Its transport has accepted nothing until now.
            Next::At(_) | Next::Event if self.first_departure.is_some() => {
                self.end_of_last = self.end_of_last.max(now);
                self.is_shown = false;
            }
            Next::At(_) | Next::Event => {}
        }
        self.drive_safe(now, run);
        self.last = self.look_ahead(now, run);
        self.last
    }

    fn look_ahead(&mut self, now: Nanos, run: &Run) -> Next {
        let is_stopped = run.is_stopped();
        if !self.is_shown {
            self.show();
        }
        if self.drive_at.is_some_and(|moment| now >= moment) {
            self.drive(now);
        }
        // Data that wait for reports end later.
        let is_over = !self.allowed.waits && self.options.end.is_some_and(|end| now >= end);
        if is_stopped || is_over {
            self.give_up_at.get_or_insert(now.plus(LINGER));
        }
        let is_late = self.give_up_at.is_some_and(|until| now >= until);
        let Some(departure) = self.departure(is_stopped) else {
            return match self.error {
                None => self.close(now, is_late, run),
                Some(_) => Next::Over,
            };
        };
        if let Some(next) = self.waiting_for_reports() {
            return next;
        }
        match self.outlet.ready(now) {
            Ready::Now(room) => {
                self.room = room;
                Next::Train(departure)
            }
            _ if is_late => Next::Over,
            Ready::At(moment) => Next::At(moment),
            Ready::OnEvent => {
                // The awaited event may have happened.
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

    /// Returns when the next train may leave; `None` if nothing is left to send, or no further frame may start.
    fn departure(&self, is_stopped: bool) -> Option<Nanos> {
        let current = self.current.as_ref()?;
        let departure = match self.options.clock {
            Clock::None => self.options.start,
            _ => self.pacer.departure(self.shaped(self.due(current))),
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

    /// Ends the flow: its transport sends what it still has, unless there is no time for it.
    fn close(&mut self, now: Nanos, is_late: bool, run: &Run) -> Next {
        if let Some(moment) = self.end_safe(now, run) {
            return Next::At(moment);
        }
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

    /// Returns when to drive its transport.
    pub(super) fn drive_at(&self) -> Option<Nanos> {
        self.drive_at
    }

    /// Returns the events that it waits for, if any: those of its transport, and reports.
    pub(super) fn events(&self) -> [Events<'_>; 2] {
        let of_outlet = match self.last {
            Next::Event => self.outlet.events(),
            _ => Events::NONE,
        };
        let safe = self.options.safe.as_ref();
        [of_outlet, safe.map_or(Events::NONE, |safe| safe.events())]
    }

    /// Returns whether reports arrive for it.
    pub(super) fn hears(&self) -> bool {
        self.options.safe.is_some()
    }

    /// Returns whether a frame was started that will soon be complete.
    fn is_amid_frame(&self) -> bool {
        let begun = self.fragment * self.options.datagram_data;
        begun > 0 && self.span((self.options.frame_length - begun) as u64) <= REST
    }

    /// Returns how to wait for a departure: exactly if single packets must be spaced.
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
        let due = self.shaped(self.due(&current));
        if let Some(change) = self.sent.take_change() {
            self.apply(change, due, now);
        }
        let (offset, shed) = (self.offset, self.counts.shed);
        if let Err(error) = self.send_from(current, due, is_over, now) {
            self.fail(&error);
        }
        let span = self.span(self.offset - offset);
        self.note_departure(now, due, span, run.clock().now());
        let shed = (self.counts.shed - shed) * self.options.datagram_data as u64;
        let sent = self.offset - offset - shed;
        if !matches!(self.options.clock, Clock::None) {
            let span = match self.options.safe {
                // What was shed takes no time on the path.
                Some(_) => self.span(sent),
                None => span,
            };
            self.pacer.left(now, due, span);
        }
        self.note_safe(due, sent, now);
        self.show();
        self.report_refusal(run);
    }

    /// Warns once that nobody listens at the destination.
    fn report_refusal(&mut self, run: &Run) {
        if self.is_refused && !self.is_refusal_reported {
            self.is_refusal_reported = true;
            run.warn(format_args!(
                "nobody listens at {}: the host answers that the port is unreachable, and data are lost until a receiver starts there",
                self.options.to
            ));
        }
    }

    /// Applies a change while nothing is due for long: a new rate applies from now on.
    pub(super) fn heed(&mut self, now: Nanos) {
        if let Some(change) = self.sent.take_change() {
            if change.rate.is_some() {
                self.pacer.hurry(now);
            }
            self.apply(change, self.pacer.due_at(now), now);
        }
    }

    /// Publishes the counters. A reader that holds the lock does not delay a train: they are published at the next opportunity.
    fn show(&mut self) {
        let counts = self.outlet.counts();
        self.is_refused = counts.refused > 0;
        let shown = self.sent.shown.try_lock();
        self.is_shown = shown.is_some();
        if let Some(mut shown) = shown {
            *shown = self.live(&counts);
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

    /// Applies a change from the train that is due at `due` on.
    fn apply(&mut self, change: Change, due: Nanos, now: Nanos) {
        if let (Some((rate, burst)), Clock::Rate(_)) = (change.rate, &self.options.clock) {
            self.rated_from = (self.offset, due);
            self.options.clock = Clock::Rate(rate);
            self.options.burst = burst;
            if let Some(safe) = &mut self.options.safe {
                safe.set_rate(rate.get(), now);
            }
        }
        if change.rearm
            && let Some(safe) = &mut self.options.safe
        {
            safe.rearm(now);
        }
        if let Some(shed) = change.shed {
            let before = std::mem::replace(&mut self.options.shed, shed);
            self.note_shedding(before.report());
        }
    }

    /// Notes the counters of an earlier policy. Beyond [`MAX_POLICIES`], they are added to those of the same policy.
    fn note_shedding(&mut self, report: ShedReport) {
        let is_full = self.shedding_before.len() >= MAX_POLICIES;
        let mut same = self.shedding_before.iter_mut().rev();
        match same.find(|before| is_full && before.policy == report.policy) {
            Some(before) => before.add(&report),
            None => self.shedding_before.push(report),
        }
    }

    /// Sends up to a burst of datagrams, starting with the next one of `current`, which is due at `due`, and continues with the
    /// following frame. The last train ends with its frame.
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
            allowed,
            ..
        } = self;
        let window = source.frames()?;
        let mut consumed = 0;
        let mut more_in_window = true;
        let mut train = pieces.begin();
        let max = usize::try_from(options.burst).unwrap_or(usize::MAX);
        for _ in 0..max.min(self.room) {
            let frame = &window.bytes[consumed..consumed + options.frame_length];
            let from = self.fragment * options.datagram_data;
            let data = &frame[from..from + options.datagram_data];
            if options.shed_packets || self.fragment == 0 {
                current.shed = options.shed.decide(&current.unit) || allowed.is_stopped;
                current.shed_whole = current.shed && !options.shed_packets;
            }
            if current.shed && options.replace == Replace::Nothing {
                counts.shed += 1;
                if let Some(safe) = &mut options.safe {
                    safe.shed(counts.offered);
                }
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
                // Padding of the last datagram is not sent.
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

    /// Returns the nominal time of the next datagram.
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

    /// Returns the duration of this many bytes of data at the nominal rate.
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

    /// Returns its delay behind the schedule, including the time that it gave up.
    fn behind(&self) -> Nanos {
        match self.options.clock {
            Clock::None => Nanos(0),
            _ => self.pacer.behind(self.end_of_last, self.due_end),
        }
    }

    /// Ends the flow and returns its report.
    pub(super) fn finish(mut self, now: Nanos, run: &Run) -> SendReport {
        self.drive(now);
        let mut socket = self.outlet.counts();
        self.is_refused = socket.refused > 0;
        self.report_refusal(run);
        let counts = &self.counts;
        // Data that the transport kept for a reader which accepted nothing.
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

/// Returns the bytes before the unchanged ones of a datagram, and how many bytes of data they replace.
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
    // A frame that is replaced as a whole keeps its header, so that the stream keeps its timing.
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
