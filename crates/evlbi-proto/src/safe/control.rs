//! Decisions of a sender: what a loss is, when to notify, and how much to send.

use std::collections::VecDeque;

use evlbi_core::time::Nanos;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::cause::{Cause, Signs};
use super::equation::Flow;
use super::notice::{Evidence, Kind, Notice, Reason};
use super::settings::Settings;
use super::state::{Mode, State, Step};
use super::window::{Class, Counts, Limits, Windows};
use super::{
    CLEAN_WINDOWS, HOST_GRACE, MAX_BREAK, MAX_HOLD, MIN_BREAK, MIN_HOLD, SEVERE_LOSS, STOP,
    TRIAL_BAD_WINDOWS, TRIAL_WINDOWS,
};

/// Maximum number of notices that are kept for the application.
const MAX_NOTICES: usize = 1000;
/// Part of the lost rate that is left to others, besides what was lost.
const ROOM: f64 = 0.9;
/// Part of the number of TCP flows that a flow may count as, up to which a higher step is tried.
const TRIAL_PART: f64 = 0.75;
/// Maximum random extension of the time before a trial, so that flows do not try at the same time.
const JITTER: f64 = 0.4;
/// Time for which delays of queues are remembered.
const QUEUE_TIME: Nanos = Nanos(2_000_000_000);
/// Time in which a second answer that nobody listens stops the flow.
const REFUSALS: Nanos = Nanos::SECOND;

/// Path as a report shows it.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Datagrams counted since the last report.
    pub counts: Counts,
    /// The longest run of loss in it, in datagrams, and its time.
    pub longest: (u64, Nanos),
    /// When the first lost or marked datagram was sent, if any was.
    pub first_lost: Nanos,
    /// Delay of queues on the way to the receiver, and when the beat that shows it was sent.
    pub queue: Nanos,
    /// When the beat was sent that shows it.
    pub beat: Nanos,
    /// The flow as it is sent now; its round-trip time is known.
    pub flow: Flow,
    /// Loss event rate.
    pub p: f64,
}

/// Loss of probes at a rate.
#[derive(Clone, Copy, Debug)]
pub struct Probed {
    /// The probes as a flow.
    pub flow: Flow,
    /// Loss event rate.
    pub p: f64,
    /// Fraction that was lost, and its number.
    pub loss: f64,
    pub lost: u64,
}

/// State machine of a sender.
#[derive(Clone, Debug)]
pub struct Control {
    settings: Settings,
    /// Bits of data per second that the application offers.
    rate: f64,
    state: State,
    since: Nanos,
    step: Step,
    /// Whether no data are sent, or none were at the end.
    is_stopped: bool,
    windows: Windows,
    measured: Option<Measured>,
    /// Loss that ended the ramp.
    probed: Option<Probed>,
    /// Signs of a cause since the last time without loss, and when its loss began and was last seen.
    signs: Signs,
    loss: Option<(Nanos, Nanos)>,
    total: Counts,
    /// Delays of queues, and when each was met.
    queues: VecDeque<(Nanos, Nanos)>,
    /// Time without loss before a higher step is tried, and when it ends.
    hold: Nanos,
    hold_until: Nanos,
    /// Step before a trial, and its windows so far.
    trial: (Step, u32, u32),
    /// When data are shed if the application does not act, and the maximum rate until then.
    deadline: Nanos,
    limit: f64,
    is_host_noticed: bool,
    /// Whether data were shed because the receiving host would lose them.
    is_host_shed: bool,
    is_blind: bool,
    /// Time without data after the next stop, and the end of this one.
    break_span: Nanos,
    break_until: Nanos,
    refused: Option<Nanos>,
    random: ChaCha8Rng,
    notices: VecDeque<Notice>,
    /// Number of notices so far.
    noticed: u64,
}

impl Control {
    pub fn new(settings: Settings, now: Nanos) -> Control {
        let limits = Limits {
            mode: settings.mode,
            weight: settings.weight,
        };
        Control {
            rate: settings.rate as f64,
            state: State::Start,
            since: now,
            step: Step::ALL,
            is_stopped: false,
            windows: Windows::new(limits, now),
            measured: None,
            probed: None,
            signs: Signs::default(),
            loss: None,
            total: Counts::default(),
            queues: VecDeque::new(),
            hold: MIN_HOLD,
            hold_until: now,
            trial: (Step::ALL, 0, 0),
            deadline: now,
            limit: settings.rate as f64,
            is_host_noticed: false,
            is_host_shed: false,
            is_blind: false,
            break_span: MIN_BREAK,
            break_until: now,
            refused: None,
            random: ChaCha8Rng::seed_from_u64(settings.flow),
            notices: VecDeque::new(),
            noticed: 0,
            settings,
        }
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the step in which data are sent; `None` if none are. At the end, the last one.
    pub fn step(&self) -> Option<Step> {
        (!self.is_stopped).then_some(self.step)
    }

    /// Returns the bits of data per second that are sent now.
    pub fn sent_rate(&self) -> f64 {
        match self.state {
            State::Ended => 0.0,
            _ => self.rate * self.step().map_or(0.0, Step::kept),
        }
    }

    /// Returns the number of notices so far.
    pub fn noticed(&self) -> u64 {
        self.noticed
    }

    pub fn next_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Notes the loss that ended the ramp.
    pub fn probed(&mut self, limit: Option<Probed>) {
        self.probed = limit;
    }

    /// Starts with the data, at this step.
    pub fn start(&mut self, step: Step, now: Nanos) {
        self.windows.clear(now);
        if step == Step::ALL {
            return self.enter(State::Clear, now);
        }
        self.step = step;
        self.notify(
            Kind::Shedding {
                to: step,
                from: Step::ALL,
            },
            now,
        );
        self.enter(State::Held, now);
        self.wait(now);
    }

    /// Sends no data from the start, because even the least that is of use is too much.
    pub fn refuse(&mut self, now: Nanos) {
        self.step = self.settings.least;
        self.stop(Reason::Loss, now);
    }

    /// Gives up before any data.
    pub fn fail(&mut self, now: Nanos) {
        self.is_stopped = true;
        self.notify(Kind::Failed, now);
        self.enter(State::Ended, now);
    }

    /// Ends the flow.
    pub fn end(&mut self, now: Nanos) {
        self.enter(State::Ended, now);
    }

    /// Notes a new rate of the application.
    pub fn set_rate(&mut self, rate: u64, now: Nanos) {
        self.rate = rate as f64;
        if self.state == State::Congested && self.sent_rate() <= self.limit {
            self.held(now);
            self.rest(now);
        }
    }

    /// Returns the measurements of now.
    pub fn evidence(&self) -> Evidence {
        let measured = self.measured.as_ref();
        let last = self.windows.last();
        // Before the data, only probes can be lost.
        let probed = self.probed.filter(|_| self.state == State::Start);
        let p = measured.map_or(0.0, |it| it.p);
        let p = probed.map_or(p, |it| it.p);
        let flow = probed.map(|it| it.flow).or(measured.map(|it| it.flow));
        let flow = flow.filter(|_| p > 0.0);
        Evidence {
            cause: self.cause(),
            p,
            q: flow.map(|flow| flow.flows(p)),
            x_tcp_bps: flow.map(|flow| super::tcp_rate(flow.size, flow.round_trip, p)),
            loss: probed.map_or(last.loss(), |it| it.loss),
            host_loss: last.host_loss(),
            lost: probed.map_or(self.total.lost, |it| it.lost),
            host_lost: self.total.host,
            marked: self.total.marked,
            rtt_s: measured.map(|it| it.flow.round_trip),
            queue_s: measured.map_or(0.0, |it| it.queue.as_secs_f64()),
        }
    }

    fn cause(&self) -> Cause {
        self.signs.cause(self.round_trip())
    }

    fn round_trip(&self) -> Nanos {
        let seconds = self.measured.map_or(0.0, |it| it.flow.round_trip);
        Nanos::from_secs_f64(seconds)
    }

    fn notify(&mut self, kind: Kind, at: Nanos) {
        let evidence = self.evidence();
        self.noticed += 1;
        if self.notices.len() == MAX_NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back(Notice { at, kind, evidence });
    }

    fn enter(&mut self, state: State, now: Nanos) {
        self.state = state;
        self.since = now;
    }

    /// Takes a report.
    pub fn report(&mut self, measured: Measured, now: Nanos) {
        // After the end, the last measurements of the flow remain.
        if self.state != State::Ended {
            self.measured = Some(measured);
        }
        self.note_signs(&measured, now);
        if self.is_blind || matches!(self.state, State::Start | State::Breaker | State::Ended) {
            return;
        }
        let counts = measured.counts;
        if self.state == State::Clear && counts.lost + counts.marked > 0 {
            self.enter(State::Suspect, now);
        }
        if counts.host > 0 && counts.lost + counts.marked == 0 && !self.is_host_noticed {
            self.is_host_noticed = true;
            self.notify(Kind::Host, now);
            if matches!(self.state, State::Clear | State::Suspect) {
                self.enter(State::Overloaded, now);
            }
        }
        let flows = measured.flow.flows(measured.p);
        if let Some(class) = self.windows.add(now, counts, &measured.flow, flows) {
            self.judge(class, now);
        }
    }

    fn note_signs(&mut self, measured: &Measured, now: Nanos) {
        let Measured {
            counts,
            queue,
            first_lost,
            ..
        } = *measured;
        self.total.sent += counts.sent;
        self.total.lost += counts.lost;
        self.total.host += counts.host;
        self.total.marked += counts.marked;
        while self
            .queues
            .pop_front_if(|(at, _)| now.since(*at) > QUEUE_TIME)
            .is_some()
        {}
        let signs = &mut self.signs;
        if let Some((_, sent, lost)) = &mut signs.shed {
            *sent += counts.sent;
            *lost += counts.lost;
        }
        signs.host += counts.host;
        if counts.lost + counts.marked > 0 {
            signs.lost += counts.lost;
            signs.marked += counts.marked;
            signs.longest = signs.longest.max(measured.longest);
            signs.delay_after = None;
            // The queue of the first loss is the one that matters: another route is longer from its loss on.
            let before = self.queues.iter().filter(|(at, _)| *at <= first_lost);
            let before = before.map(|(_, queue)| *queue).max();
            signs.queue_before = signs.queue_before.max(before.unwrap_or_default());
            self.loss = Some((self.loss.map_or(now, |(first, _)| first), now));
        } else {
            let least = signs.delay_after.map_or(queue, |least| least.min(queue));
            signs.delay_after = Some(least);
        }
        self.queues.push_back((measured.beat, queue));
    }

    /// Decides after a complete window.
    fn judge(&mut self, class: Class, now: Nanos) {
        let is_bad = self.windows.are_bad();
        let is_over = self.windows.clean() >= CLEAN_WINDOWS;
        let host_loss = self.windows.last().host_loss();
        let is_host_bad = host_loss > SEVERE_LOSS;
        match self.state {
            State::Suspect | State::Overloaded if is_bad => self.congest(class, now),
            State::Suspect if is_over => self.clear(now),
            State::Suspect if class == Class::Host => self.enter(State::Overloaded, now),
            State::Overloaded if is_over => self.clear(now),
            State::Overloaded
                if is_host_bad && !self.is_host_shed && now.since(self.since) >= HOST_GRACE =>
            {
                self.is_host_shed = true;
                let kept = self.step.kept() * (1.0 - host_loss);
                self.shed_to(Step::at_most(kept), now);
            }
            State::Congested if class == Class::SevereLoss => self.shed(now),
            State::Shedding | State::Held if is_bad => self.shed_or_stop(now),
            State::Shedding if !class.is_bad() => self.held(now),
            State::Held if is_host_bad || !self.may_try(class) => self.wait(now),
            State::Trial if class.is_bad() || (self.is_host_shed && is_host_bad) => {
                self.trial.1 += 1;
                if self.trial.1 >= TRIAL_BAD_WINDOWS {
                    self.fail_trial(now);
                }
            }
            State::Trial => {
                self.trial.2 += 1;
                if self.trial.2 >= TRIAL_WINDOWS {
                    self.keep_trial(now);
                }
            }
            _ => {}
        }
    }

    /// Returns whether a higher step may be tried after a window of this class: it would not be too much in the same queue, as
    /// [`Control::target`] explains.
    fn may_try(&self, class: Class) -> bool {
        let higher = self.step.higher().unwrap_or(Step::ALL).kept();
        let flows = self.measured.map_or(0.0, |it| it.flow.flows(it.p));
        let is_reserved = self.settings.mode == Mode::Reserved;
        let is_clean = matches!(class, Class::Clean | Class::Host);
        let weight = self.settings.weight;
        let most = (TRIAL_PART * weight).max(weight.min(1.0));
        let fits = flows * (higher / self.step.kept()).sqrt() <= most;
        !class.is_bad() && (is_clean || is_reserved || fits)
    }

    /// Ends a time of loss.
    fn clear(&mut self, now: Nanos) {
        match self.loss {
            Some((first, last)) => {
                let lost = self.signs.lost + self.signs.marked;
                let span = last.since(first);
                self.notify(Kind::Transient { lost, span }, now);
            }
            None => self.notify(Kind::Clear, now),
        }
        self.forget();
        self.enter(State::Clear, now);
    }

    fn forget(&mut self) {
        self.signs = Signs::default();
        self.loss = None;
        self.is_host_noticed = false;
    }

    /// Returns the rate that the path leaves to this flow, in bits per second. A congested queue hits all flows equally often, so that a
    /// flow of r times the rate of TCP sees 1/r of TCP's loss event rate per datagram, and counts as the square root of r TCP flows: the
    /// aim is a rate of k times TCP's.
    fn target(&self) -> f64 {
        let sent = self.sent_rate();
        let loss = self.windows.last().loss();
        let left = ROOM * (1.0 - loss) * sent;
        let Some(measured) = self
            .measured
            .filter(|_| self.settings.mode != Mode::Reserved)
        else {
            return left;
        };
        let Flow {
            size, round_trip, ..
        } = measured.flow;
        let tcp = super::tcp_rate(size, round_trip, measured.p);
        left.min((self.settings.weight.sqrt() * tcp).max(sent / 2.0))
    }

    fn congest(&mut self, class: Class, now: Nanos) {
        self.limit = self.target();
        let grace = match self.settings.mode {
            Mode::Strict => Nanos(0),
            _ if class == Class::SevereLoss => Nanos(0),
            _ => self.settings.grace,
        };
        self.deadline = now.plus(grace);
        let kind = Kind::Congested {
            limit: self.limit as u64,
            deadline: self.deadline,
        };
        self.notify(kind, now);
        self.enter(State::Congested, now);
        if grace == Nanos(0) {
            self.shed(now);
        }
    }

    fn shed_or_stop(&mut self, now: Nanos) {
        if self.step.is_below(self.settings.least) || self.step == self.settings.least {
            match self.windows.are_severe() {
                true => self.stop(Reason::Loss, now),
                false => self.wait(now),
            }
        } else {
            self.shed(now);
        }
    }

    /// Sheds down to what the path leaves, and by one step at least.
    fn shed(&mut self, now: Nanos) {
        let step = Step::at_most(self.target() / self.rate);
        self.shed_to(step, now);
    }

    fn shed_to(&mut self, step: Step, now: Nanos) {
        let from = self.step;
        let lower = from.lower().unwrap_or(Step::LOWEST);
        // The order of steps is that of what they shed.
        self.step = step.max(lower).min(self.settings.least.max(from));
        if self.step == from {
            // Everything is needed.
            return self.settle(now);
        }
        self.signs.shed = Some((self.windows.last().loss(), 0, 0));
        self.notify(
            Kind::Shedding {
                to: self.step,
                from,
            },
            now,
        );
        self.settle(now);
    }

    /// Waits for the effect of having shed, and for the time of the next trial.
    fn settle(&mut self, now: Nanos) {
        self.enter(State::Shedding, now);
        self.rest(now);
        self.wait(now);
    }

    /// Takes no decision before the effect of the last one is seen.
    fn rest(&mut self, now: Nanos) {
        let window = Windows::length(self.round_trip());
        self.windows.clear(now.plus(Nanos(2 * window.0)));
    }

    fn held(&mut self, now: Nanos) {
        self.notify(Kind::Held { step: self.step }, now);
        self.enter(State::Held, now);
        self.wait(now);
    }

    /// Starts the time before the next trial.
    fn wait(&mut self, now: Nanos) {
        let factor = self.random.random_range(1.0..1.0 + JITTER);
        let span = Nanos((self.hold.0 as f64 * factor) as u64);
        self.hold_until = now.plus(span);
    }

    fn try_higher(&mut self, now: Nanos) {
        match self.step.higher() {
            None => {
                self.notify(Kind::Clear, now);
                self.forget();
                self.enter(State::Clear, now);
            }
            Some(step) => self.try_step(step, now),
        }
    }

    fn try_step(&mut self, step: Step, now: Nanos) {
        self.trial = (self.step, 0, 0);
        self.step = step;
        self.is_stopped = false;
        self.notify(Kind::Trial { step }, now);
        self.enter(State::Trial, now);
        self.windows.clear(now);
    }

    fn fail_trial(&mut self, now: Nanos) {
        let (from, to) = (self.step, self.trial.0);
        self.hold = Nanos(self.hold.0 * 2).min(MAX_HOLD);
        if to.is_below(from) {
            self.step = to;
            self.notify(Kind::Shedding { to, from }, now);
            self.settle(now);
        } else {
            // The trial after a stop, at the lowest step.
            self.stop(Reason::Loss, now);
        }
    }

    fn keep_trial(&mut self, now: Nanos) {
        self.hold = Nanos(self.hold.0 / 2).max(MIN_HOLD);
        self.break_span = MIN_BREAK;
        match self.step {
            Step::ALL => {
                self.is_host_shed = false;
                self.notify(Kind::Clear, now);
                self.forget();
                self.enter(State::Clear, now);
            }
            _ => self.held(now),
        }
    }

    /// Sends no data from now on.
    fn stop(&mut self, reason: Reason, now: Nanos) {
        self.is_stopped = true;
        self.break_until = now.plus(self.break_span);
        self.break_span = Nanos(self.break_span.0 * 2).min(MAX_BREAK);
        let until = self.settings.rearm.then_some(self.break_until);
        self.notify(Kind::Stopped { reason, until }, now);
        self.is_blind = false;
        self.enter(State::Breaker, now);
    }

    /// Tries again after a stop, as an operator asks; not while no reports arrive.
    pub fn rearm(&mut self, is_silent: bool, now: Nanos) {
        match self.state {
            State::Breaker if is_silent => self.notify(Kind::Blind, now),
            State::Breaker => {
                // If it fails, nothing is sent again.
                self.step = self.settings.least;
                self.try_step(self.step, now);
            }
            _ => {}
        }
    }

    /// Notes an answer that nobody listens at the destination.
    pub fn refused(&mut self, now: Nanos) {
        let is_second = self.refused.is_some_and(|at| now.since(at) <= REFUSALS);
        self.refused = Some(now);
        if is_second && !matches!(self.state, State::Start | State::Breaker | State::Ended) {
            self.notify(Kind::Refused, now);
            self.stop(Reason::Refusal, now);
        }
    }

    /// Does what is due. No valid report has come for `silence`, no progress was reported for `stall`, and these may last `limit`.
    pub fn advance(&mut self, now: Nanos, silence: Nanos, stall: Nanos, limit: Nanos) {
        match self.state {
            State::Start | State::Ended => return,
            State::Breaker => {
                let may = self.settings.rearm && now >= self.break_until && silence < limit;
                if may {
                    self.rearm(false, now);
                }
                return;
            }
            _ => {}
        }
        let worst = silence.max(stall);
        if worst >= STOP {
            let reason = match silence >= limit {
                true => Reason::Silence,
                false => Reason::Stall,
            };
            return self.stop(reason, now);
        }
        if worst >= limit {
            if !self.is_blind {
                self.is_blind = true;
                let kind = match silence >= limit {
                    true => Kind::Blind,
                    false => Kind::Stalled,
                };
                self.notify(kind, now);
                let from = self.step;
                self.step = Step::at_most(from.kept() / 2.0);
                if self.step != from {
                    self.notify(
                        Kind::Shedding {
                            to: self.step,
                            from,
                        },
                        now,
                    );
                }
                self.settle(now);
            }
            return;
        }
        if std::mem::take(&mut self.is_blind) {
            self.held(now);
            self.rest(now);
        }
        match self.state {
            State::Congested if now >= self.deadline => self.shed(now),
            State::Held if now >= self.hold_until => self.try_higher(now),
            _ => {}
        }
    }

    /// Returns when [`Control::advance`] has something to do, apart from silence.
    pub fn next_at(&self) -> Option<Nanos> {
        match self.state {
            State::Congested => Some(self.deadline),
            State::Held => Some(self.hold_until),
            State::Breaker if self.settings.rearm => Some(self.break_until),
            _ => None,
        }
    }
}
