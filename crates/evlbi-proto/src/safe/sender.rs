//! The sending end: beats, the ramp of probes, and what reports say about the datagrams that were sent.

mod log;
mod ramp;

use std::collections::VecDeque;

use evlbi_core::time::Nanos;
use serde::Serialize;

use self::log::Log;
use self::ramp::{Ramp, Ramped};
use super::control::{Control, Measured};
use super::declared::Declared;
use super::delay::Delay;
use super::equation::Flow;
use super::losses::{Losses, REMEMBERED};
use super::message::{self, Beat, Header, Key, LAST, MAX_SETS, MORE, Message, Report};
use super::notice::{Evidence, Notice};
use super::settings::Settings;
use super::state::{Mode, State, Step};
use super::window::Counts;
use super::{
    BEAT_INTERVAL, EVENT_ROUND_TRIPS, PAUSE, REPORT_INTERVAL, Rejected, SILENCE, SILENT_REPORTS,
    START, STOP,
};

/// Maximum number of beats whose declarations are remembered.
const MAX_BEATS: usize = 1024;
/// Sets that a beat has room for beside those up to the number that it declares: until the next beat, the set at that number and one
/// that the receiver has confirmed in part may be divided.
const SPARE_SETS: usize = 2;
/// Minimum time of a shed run whose end is announced at once.
const LONG_RUN: Nanos = Nanos(20_000_000);
/// Time for the last report of a flow.
const LAST_TIMEOUT: Nanos = Nanos(2_000_000_000);

/// Counters of what was offered, in datagrams since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Offered: sent, shed and not sent.
    pub next: u64,
    /// Shed.
    pub shed: u64,
    /// Dropped in this host.
    pub not_sent: u64,
}

impl Progress {
    fn sent(&self) -> u64 {
        self.next.saturating_sub(self.shed + self.not_sent)
    }
}

/// Permission of a flow to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Wait: data may not start yet.
    Wait,
    /// Send the data that this step keeps, evenly over time.
    Send(Step),
    /// Send no data; what is due is shed.
    Stop,
    /// The receiver did not answer: there is nothing to do.
    Fail,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send these bytes to the receiver's port for messages.
    Message(Vec<u8>),
    /// Tell the application.
    Notice(Notice),
}

/// State of a sender, for those who watch it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Status {
    /// Protection of the path.
    pub mode: Mode,
    /// State.
    pub state: State,
    /// Fraction of the data that is sent.
    pub kept: f64,
    /// Messages that were ignored, because they were forged, repeated or damaged.
    pub rejected: u64,
    /// Reports received.
    pub reports: u64,
    /// Notices to the application so far.
    pub noticed: u64,
    /// Measurements.
    #[serde(flatten)]
    pub evidence: Evidence,
}

/// Accounts of a flow, in datagrams, on which both ends agree: offered = sent + shed + not_sent, sent = unique + lost, lost = host +
/// network + unattributed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Accounts {
    /// Sequence numbers used.
    pub offered: u64,
    /// Sent.
    pub sent: u64,
    /// Shed by the sender.
    pub shed: u64,
    /// Dropped in the sending host.
    pub not_sent: u64,
    /// Distinct ones that arrived.
    pub unique: u64,
    /// Sent, and never arrived.
    pub lost: u64,
    /// Certainly lost in the receiving host.
    pub host: u64,
    /// Lost in the network.
    pub network: u64,
    /// Lost in the receiving host or the network.
    pub unattributed: u64,
}

impl Accounts {
    /// Makes the accounts of what the last beat and the last report say.
    pub(super) fn of(beat: &Beat, report: &Report) -> Accounts {
        let sent = beat
            .next
            .saturating_sub(beat.shed)
            .saturating_sub(beat.not_sent);
        let unique = report.arrivals.unique.min(sent);
        let lost = sent - unique;
        let host = report.host.min(lost);
        let unattributed = report.unattributed.min(lost - host);
        Accounts {
            offered: beat.next,
            sent,
            shed: beat.shed,
            not_sent: beat.not_sent,
            unique,
            lost,
            host,
            network: lost - host - unattributed,
            unattributed,
        }
    }
}

/// Sending end of a flow.
#[derive(Clone, Debug)]
pub struct Sender {
    settings: Settings,
    key: Key,
    control: Control,
    ramp: Option<Ramp>,
    has_failed: bool,
    begun: Nanos,
    progress: Progress,
    log: Log,
    /// Shed numbers that the receiver has not confirmed.
    declared: Declared,
    /// Beats with the number up to which each has declared everything.
    beats: VecDeque<(u64, u64)>,
    last_beat: Option<Beat>,
    beat_at: Nanos,
    delay: Delay,
    losses: Losses,
    /// The last valid report, and when it arrived.
    report: Option<(Report, Nanos)>,
    reports: u64,
    rejected: u64,
    /// Datagrams lost in the network so far, without those that this host dropped.
    lost: u64,
    /// Datagrams that this host had dropped when the receiver started.
    not_sent_before: u64,
    /// When the first datagram was sent since the last progress of the highest number, and of what is accounted for: loss that is not
    /// counted would have no effect.
    waiting: [Option<Nanos>; 2],
    /// When data were sent last.
    sent_at: Nanos,
    /// When the flow has ended.
    ended: Option<Nanos>,
    polled: Nanos,
}

impl Sender {
    /// Makes a sender that starts with beats at `now`.
    pub fn new(mut settings: Settings, key: Key, now: Nanos) -> Sender {
        settings.weight = settings.weight();
        settings.size = settings.size.max(1);
        Sender {
            control: Control::new(settings, now),
            ramp: None,
            has_failed: false,
            begun: now,
            progress: Progress::default(),
            log: Log::default(),
            declared: Declared::default(),
            beats: VecDeque::new(),
            last_beat: None,
            beat_at: now,
            delay: Delay::default(),
            losses: Losses::default(),
            report: None,
            reports: 0,
            rejected: 0,
            lost: 0,
            not_sent_before: 0,
            waiting: [None; 2],
            sent_at: now,
            ended: None,
            polled: now,
            settings,
            key,
        }
    }

    /// Returns what the flow may do now.
    pub fn order(&self) -> Order {
        match self.control.state() {
            _ if self.has_failed => Order::Fail,
            State::Start => Order::Wait,
            _ => (self.control.step()).map_or(Order::Stop, Order::Send),
        }
    }

    /// Returns the state for those who watch it.
    pub fn status(&self) -> Status {
        Status {
            mode: self.settings.mode,
            state: self.control.state(),
            kept: self.control.step().map_or(0.0, Step::kept),
            rejected: self.rejected,
            reports: self.reports,
            noticed: self.control.noticed(),
            evidence: self.control.evidence(),
        }
    }

    /// Notes that the datagrams from `first` on below `end`, counted from the first of the flow, were shed; all before them were
    /// offered.
    pub fn shed(&mut self, first: u64, end: u64) {
        // Without room, the receiver counts the rest as lost: the accounts remain right.
        let _ = self.declared.add_run(first, end);
    }

    /// Notes what was offered until `now`.
    pub fn progress(&mut self, progress: Progress, now: Nanos) {
        let before = std::mem::replace(&mut self.progress, progress);
        if progress.next == before.next {
            return;
        }
        if progress.sent() > before.sent() {
            // In a pause, nothing can arrive.
            let pause = now.since(self.sent_at);
            for since in &mut self.waiting {
                let begun = since.map(|since| match pause > PAUSE {
                    true => since.plus(pause),
                    false => since,
                });
                *since = Some(begun.unwrap_or(now));
            }
            self.sent_at = now;
        }
        if self.log.note(now, progress.next, progress.shed) > self.long_run() {
            self.beat_at = now;
        }
    }

    /// Returns the number of datagrams of a long run.
    fn long_run(&self) -> u64 {
        let bytes = LONG_RUN.as_secs_f64() * self.settings.rate as f64 / 8.0;
        (bytes / f64::from(self.settings.size)).max(1.0) as u64
    }

    /// Notes that the application offers another rate from now on, in bits of data per second.
    pub fn set_rate(&mut self, rate: u64, now: Nanos) {
        self.settings.rate = rate;
        self.control.set_rate(rate, now);
        self.beat_at = now;
    }

    /// Notes an answer that nobody listens at the destination of the data.
    pub fn refused(&mut self, now: Nanos) {
        self.control.refused(now);
    }

    /// Tries again after a stop, as an operator asks. As long as no reports arrive, there is only a notice of that.
    pub fn rearm(&mut self, now: Nanos) {
        if self.control.state() == State::Breaker {
            let is_silent = now.since(self.reported()) >= self.silence();
            self.control.rearm(is_silent, now);
            self.waiting = [None; 2];
        }
    }

    /// Notes that nothing more is offered.
    pub fn end(&mut self, now: Nanos) {
        if self.ended.is_none() {
            self.ended = Some(now);
            self.control.end(now);
            self.beat_at = now;
        }
    }

    /// Returns whether the flow has ended and the receiver has accounted for all of it, or does not answer.
    pub fn is_complete(&self, now: Nanos) -> bool {
        self.has_failed
            || self
                .ended
                .is_some_and(|at| self.has_last_report() || now.since(at) >= self.last_timeout())
    }

    fn last_timeout(&self) -> Nanos {
        let round_trip = self.delay.round_trip().unwrap_or_default();
        LAST_TIMEOUT.plus(Nanos(4 * round_trip.0))
    }

    fn has_last_report(&self) -> bool {
        let last = self.report.as_ref();
        last.is_some_and(|(report, _)| report.header.flags & LAST != 0)
    }

    /// Returns the accounts of the flow; `None` if the receiver has not accounted for all of it.
    pub fn accounts(&self) -> Option<Accounts> {
        let (report, _) = self.report.as_ref().filter(|_| self.has_last_report())?;
        Some(Accounts::of(self.last_beat.as_ref()?, report))
    }

    /// Takes a message that has arrived.
    ///
    /// # Errors
    /// Returns why it was ignored, and counts it.
    pub fn handle(&mut self, bytes: &[u8], now: Nanos) -> Result<(), Rejected> {
        let taken = match message::read(bytes, &self.key) {
            Ok(Message::Report(report)) => self.take(report, now),
            Ok(_) => Err(Rejected::Foreign),
            Err(why) => Err(why),
        };
        self.rejected += u64::from(taken.is_err());
        taken
    }

    fn take(&mut self, report: Report, now: Nanos) -> Result<(), Rejected> {
        if report.header.flow != self.settings.flow || report.instance == 0 {
            return Err(Rejected::Stale);
        }
        let last_beat = self.last_beat.as_ref().ok_or(Rejected::Stale)?;
        let is_possible = report.beat <= last_beat.header.number
            && report.beat > 0
            && report.beat_departure <= now
            && report.covered <= self.progress.next
            && report.highest <= self.progress.next
            && report.shed <= self.progress.shed
            && report.probe_highest
                <= last_beat
                    .probes
                    .max(self.ramp.as_ref().map_or(0, Ramp::sent));
        if !is_possible {
            return Err(Rejected::Absurd);
        }
        let last = self.report.as_ref().map(|(last, _)| last.clone());
        if let Some(last) = &last
            && last.instance != report.instance
            && report.beat <= last.beat
        {
            // Of a receiver that was restarted since.
            return Err(Rejected::Stale);
        }
        let before = last.filter(|last| last.instance == report.instance);
        if let Some(before) = &before {
            if report.header.number <= before.header.number {
                return Err(Rejected::Stale);
            }
            let grows = report.covered >= before.covered
                && report.missed >= before.missed
                && report.host >= before.host
                && report.unattributed >= before.unattributed
                && report.shed >= before.shed
                && report.highest >= before.highest
                && report.beat >= before.beat
                && report.arrivals.marked >= before.arrivals.marked;
            if !grows {
                return Err(Rejected::Absurd);
            }
        }
        self.reports += 1;
        let Report {
            beat_departure,
            beat_arrival,
            held,
            ..
        } = report;
        self.delay.note(now, beat_departure, beat_arrival, held);
        self.confirm(report.beat);
        // A receiver that was restarted has other counters: they are compared from here on.
        if let Some(before) = before {
            let [highest, covered] = &mut self.waiting;
            if report.highest > before.highest {
                *highest = None;
            }
            if report.covered > before.covered {
                *covered = None;
            }
            self.measure(&before, &report, now);
        } else {
            self.waiting = [None; 2];
            (self.lost, self.not_sent_before) = (0, self.progress.not_sent);
        }
        if let Some(ramp) = &mut self.ramp {
            ramp.report(&report);
        }
        self.report = Some((report, now));
        Ok(())
    }

    /// Forgets what the receiver knows to be shed.
    fn confirm(&mut self, beat: u64) {
        while self
            .beats
            .pop_front_if(|(number, _)| *number < beat)
            .is_some()
        {}
        if let Some((number, declared)) = self.beats.front()
            && *number == beat
        {
            self.declared.trim(*declared);
        }
    }

    /// Compares two reports of one receiver.
    fn measure(&mut self, before: &Report, report: &Report, now: Nanos) {
        let Some(round_trip) = self.delay.round_trip() else {
            return;
        };
        let host = |report: &Report| report.host + report.unattributed;
        let log = std::mem::take(&mut self.log);
        let index = |number: u64| number - log.shed_before(number).min(number);
        let sent = index(report.covered).saturating_sub(index(before.covered));
        // What this host dropped is known before the receiver misses it.
        let not_sent = self.progress.not_sent - self.not_sent_before.min(self.progress.not_sent);
        let lost = (report.missed - host(report)).saturating_sub(not_sent);
        let new = lost.saturating_sub(self.lost);
        self.lost = self.lost.max(lost);
        // Data are not authenticated: no more marks than data.
        let marked = report.arrivals.marked - before.arrivals.marked;
        let marked = marked.min(self.progress.next);
        let mut longest = (0, Nanos(0));
        let mut first_lost = None;
        let mut left = new;
        for run in &report.runs {
            let length = u64::from(run.length).min(left);
            if length == 0 {
                break;
            }
            left -= length;
            let [from, to] = [run.first, run.first + length].map(|number| log.sent_at(number));
            longest = longest.max((length, to.since(from)));
            first_lost.get_or_insert(from);
            self.lose(index(run.first), length, [from, to], round_trip);
        }
        let (from, to) = (before.covered, report.covered);
        let times = [from, to].map(|number| log.sent_at(number));
        // Runs that are not listed, and marks, are spread over the time of the report.
        if (left > 0 && report.header.flags & MORE != 0) || marked > 0 {
            let (from, to) = (index(from), index(to));
            self.lose(from, to.saturating_sub(from).max(1), times, round_trip);
        }
        let p = self.losses.rate(index(report.covered));
        let measured = Measured {
            counts: Counts {
                sent,
                lost: new,
                host: host(report) - host(before),
                marked,
            },
            longest,
            first_lost: first_lost.unwrap_or(times[0]),
            beat: report.beat_departure,
            queue: self.delay.queue(),
            flow: Flow {
                rate: self.control.sent_rate(),
                round_trip: round_trip.as_secs_f64(),
                size: f64::from(self.settings.size),
            },
            p,
        };
        self.log = log;
        self.log.forget(before.covered);
        self.control.report(measured, now);
    }

    /// Notes a run of lost datagrams: it is one event, and another one for each further time of an event that it takes.
    fn lose(&mut self, first: u64, length: u64, [from, to]: [Nanos; 2], round_trip: Nanos) {
        let span = Nanos(round_trip.0.saturating_mul(EVENT_ROUND_TRIPS).max(1));
        let events = (1 + to.since(from).0 / span.0).min(length);
        // Older ones than those that are remembered have no effect.
        for event in events.saturating_sub(REMEMBERED + 1)..events {
            let index = first + length / events * event;
            let at = from.plus(Nanos(span.0.saturating_mul(event)));
            self.losses.lost(index, at, span);
        }
    }

    /// Returns what is to be done at `now`, one after the other.
    pub fn poll(&mut self, now: Nanos) -> Option<Output> {
        self.advance(now);
        if let Some(notice) = self.control.next_notice() {
            self.beat_at = self.beat_at.min(now);
            return Some(Output::Notice(notice));
        }
        if now >= self.beat_at && !self.has_failed {
            return Some(Output::Message(self.beat(now)));
        }
        let ramp = self.ramp.as_mut()?;
        let header = ramp.probe(now, self.settings.flow)?;
        // As long as a datagram of the data with its sequence number.
        let length = usize::from(self.settings.size) + 8;
        Some(Output::Message(message::probe(&header, length, &self.key)))
    }

    fn advance(&mut self, now: Nanos) {
        self.polled = now;
        if self.ended.is_some() || self.has_failed {
            return;
        }
        if self.control.state() == State::Start {
            return self.advance_start(now);
        }
        let limit = self.silence();
        let silence = now.since(self.reported());
        // Progress is due only while data are sent.
        let first = self.waiting.iter().flatten().min();
        let stall = first.map_or(Nanos(0), |first| self.sent_at.since(*first));
        let was_stopped = self.control.state() == State::Breaker;
        self.control.advance(now, silence, stall, limit);
        if was_stopped && self.control.state() != State::Breaker {
            self.waiting = [None; 2];
        }
    }

    /// Returns how long no report may come.
    fn silence(&self) -> Nanos {
        let round_trip = self.delay.round_trip().unwrap_or_default();
        let interval = REPORT_INTERVAL.max(round_trip);
        let silent = Nanos(SILENT_REPORTS.saturating_mul(interval.0));
        SILENCE.max(silent.plus(Nanos(round_trip.0.saturating_mul(2))))
    }

    /// Returns when the last report came.
    fn reported(&self) -> Nanos {
        self.report.as_ref().map_or(self.begun, |(_, at)| *at)
    }

    /// Waits for the receiver, then sends probes at increasing rates.
    fn advance_start(&mut self, now: Nanos) {
        let Some((_, reported)) = &self.report else {
            if now.since(self.begun) >= self.settings.patience.max(START) {
                self.fail(now);
            }
            return;
        };
        let is_silent = now.since(*reported) >= START;
        let Some(round_trip) = self.delay.round_trip() else {
            return;
        };
        let planned = self.begun.plus(self.settings.patience);
        let is_early = now.plus(Ramp::span(round_trip)) < planned;
        if self.ramp.is_none() && (is_early || is_silent) {
            // The path should be known as it is when the data begin.
            if is_silent && now >= planned {
                self.fail(now);
            }
            return;
        }
        if self.settings.mode == Mode::Reserved {
            return self.begin(Step::ALL, now);
        }
        let flow = Flow {
            rate: self.settings.rate as f64,
            round_trip: round_trip.as_secs_f64(),
            size: f64::from(self.settings.size),
        };
        let weight = self.settings.weight;
        if self.ramp.is_none() {
            // The receiver counts probes once a beat has shown that it was heard.
            self.beat_at = now;
        }
        let ramp = self.ramp.get_or_insert_with(|| Ramp::new(flow, now));
        match ramp.advance(now, flow, weight) {
            Some(Ramped { kept, limit }) => {
                let step = Step::at_most(kept);
                self.control.probed(limit);
                match step.is_below(self.settings.least) {
                    true => self.control.refuse(now),
                    false => self.begin(step, now),
                }
            }
            None if is_silent => self.fail(now),
            None => {}
        }
    }

    fn begin(&mut self, step: Step, now: Nanos) {
        self.waiting = [None; 2];
        // The receiver knows that the data are of this flow before they arrive.
        self.beat_at = now;
        self.control.start(step, now);
    }

    fn fail(&mut self, now: Nanos) {
        self.has_failed = true;
        self.ramp = None;
        self.control.fail(now);
    }

    fn beat(&mut self, now: Nanos) -> Vec<u8> {
        let number = self
            .last_beat
            .as_ref()
            .map_or(1, |beat| beat.header.number + 1);
        let sets: Vec<_> = self.declared.sets().take(MAX_SETS).copied().collect();
        // If not all fit, what follows the last of them is declared later.
        let declared = match self.declared.len() > MAX_SETS - SPARE_SETS {
            true => sets.get(MAX_SETS - SPARE_SETS - 1).map_or(0, |set| set.end),
            false => self.progress.next,
        };
        let before = self.last_beat.as_ref().map_or(0, |beat| beat.declared);
        let declared = declared.max(before);
        let probes = self.ramp.as_ref().map_or(0, Ramp::sent);
        let beat = Beat {
            header: Header {
                flags: if self.ended.is_some() { LAST } else { 0 },
                flow: self.settings.flow,
                number,
                departure: now,
            },
            instance: self
                .report
                .as_ref()
                .map_or(0, |(report, _)| report.instance),
            first: self.settings.first,
            next: self.progress.next,
            declared,
            shed: self.progress.shed,
            not_sent: self.progress.not_sent,
            probes,
            rate: self.control.sent_rate() as u64,
            round_trip: self.delay.round_trip().unwrap_or_default(),
            kept: self.control.step().map_or(0, Step::billionths),
            size: self.settings.size,
            state: self.control.state(),
            sets,
        };
        if self.beats.len() == MAX_BEATS {
            self.beats.pop_front();
        }
        self.beats.push_back((number, declared));
        self.beat_at = now.plus(BEAT_INTERVAL);
        let bytes = beat.write(&self.key);
        self.last_beat = Some(beat);
        bytes
    }

    /// Returns when to poll next.
    pub fn next_at(&self) -> Nanos {
        let probe = self.ramp.as_ref().and_then(Ramp::next_at);
        // The rate is halved, and sending ends, on time: by silence here, by a lack of progress at the next beat.
        let silent = [self.silence(), STOP].map(|span| self.reported().plus(span));
        let silent = silent.into_iter().find(|at| *at > self.polled);
        let control = self.control.next_at().filter(|at| *at > self.polled);
        let all = [probe, control, silent];
        all.into_iter().flatten().fold(self.beat_at, Nanos::min)
    }
}
