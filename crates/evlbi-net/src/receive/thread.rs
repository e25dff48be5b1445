//! The loop of the receiving thread.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use evlbi_core::reorder::Event;
use evlbi_core::time::Nanos;

use crate::clock::{Clock, Events};
use crate::cpu::{self, Waiting};
use crate::ring::{Consumer, Reserve};
use crate::run::Run;
use crate::safe::SafeReceiving;
use crate::transport::{Carries, Incoming, Service};

use super::bytes::Bytes;
use super::datagrams::Datagrams;
use super::{Came, Ended, ReceiveOptions, ReceiveReport, SHOW, Snapshot, Watch};

/// Number of successive transport errors that end the receiver.
const MAX_FAILURES: u32 = 1000;
/// Maximum wait for an event while no stream flows.
const TIMEOUT: Nanos = Nanos(20_000_000);
/// Silence of a stream after which the thread waits for it in the kernel.
const QUIET: Nanos = Nanos(10_000_000);
/// Number of empty naps after which the thread waits for the stream in the kernel: hundreds of slow ones share a host.
const NAPS: u32 = 2;
/// Maximum number of datagrams that arrive at once in a slow stream.
const FEW_AT_ONCE: u32 = 2;
/// Interval at which the thread checks whether the consumer of a reliable stream has made room.
const ROOM_NAP: Nanos = Nanos(100_000);

/// Input of the thread.
pub struct Work {
    pub options: ReceiveOptions,
    pub service: Service,
    pub incoming: Box<dyn Incoming>,
    pub safe: Option<SafeReceiving>,
    pub reserve: Reserve,
    pub to_consumer: mpsc::Sender<(Consumer<Event>, u64)>,
    pub run: Run,
    pub watch: Arc<Watch>,
    pub started: Nanos,
}

/// Receives until the end.
pub fn run(work: Work) -> ReceiveReport {
    if let Err(error) = cpu::sharpen_timers() {
        tracing::warn!("cannot set the timer slack: {error}; the receiver may nap too long");
    }
    if let Some(core) = work.options.cpu
        && let Err(error) = cpu::pin(core)
    {
        tracing::warn!("cannot pin the receiver to processor {core}: {error}");
    }
    if let Some(priority) = work.options.priority
        && let Err(error) = cpu::set_real_time(priority, Waiting::Sleep)
    {
        tracing::warn!("cannot set real-time priority {priority}: {error}");
    }
    Loop::new(work).run()
}

struct Loop {
    idle: Option<Duration>,
    duration: Option<Duration>,
    incoming: Box<dyn Incoming>,
    intake: Intake,
    run: Run,
    clock: Clock,
    /// Reason for the end, and the number of bytes of the backlog still to take: more may keep arriving.
    ending: Option<(Ended, u64)>,
    watch: Arc<Watch>,
    started: Nanos,
    failure: Option<String>,
    shown: Nanos,
    /// Naps since many datagrams arrived at once.
    naps: u32,
    first_heard: Option<Nanos>,
    last_heard: Nanos,
    /// Times of the stream's first and last data.
    ends: Option<(Nanos, Nanos)>,
    /// Time in which a reliable stream was not read because there was no room.
    ring_waits: Nanos,
}

/// Destination of what arrives.
enum Intake {
    Datagrams(Box<Datagrams>),
    Bytes(Box<Bytes>),
}

impl Loop {
    fn new(work: Work) -> Loop {
        let (idle, duration) = (work.options.idle, work.options.duration);
        let ports = work.incoming.local().len();
        let (options, reserve) = (work.options, work.reserve);
        let intake = match work.service.carries {
            Carries::Datagrams => Intake::Datagrams(Box::new(Datagrams::new(
                options,
                work.service,
                work.safe,
                ports,
                reserve,
                work.to_consumer,
            ))),
            Carries::Bytes => Intake::Bytes(Box::new(Bytes::new(
                &options,
                reserve,
                work.to_consumer,
                work.run.clone(),
            ))),
        };
        Loop {
            idle,
            duration,
            incoming: work.incoming,
            intake,
            clock: work.run.clock().clone(),
            run: work.run,
            ending: None,
            watch: work.watch,
            started: work.started,
            failure: None,
            shown: Nanos(0),
            naps: 0,
            first_heard: None,
            last_heard: work.started,
            ends: None,
            ring_waits: Nanos(0),
        }
    }

    fn run(mut self) -> ReceiveReport {
        let mut failures = 0;
        let ended = loop {
            let asked = self.clock.now();
            if !self.intake.has_room() {
                if let Some(ended) = self.is_over(asked) {
                    break ended;
                }
                self.wait_for_room(asked);
                continue;
            }
            let received = self.intake.receive(&mut *self.incoming, asked, &self.clock);
            let came = match received {
                Ok(came) => {
                    failures = 0;
                    came
                }
                Err(failure) => {
                    // A lack of memory passes; a broken socket does not.
                    failures += 1;
                    if failures > MAX_FAILURES || self.intake.is_connected() {
                        self.failure = Some(self.intake.explain(&failure));
                    }
                    Came::default()
                }
            };
            let now = self.clock.now();
            self.note(came, now);
            let driven = self.incoming.drive(now);
            if let Err(error) = self.intake.advance(now) {
                self.failure = Some(error);
            }
            self.show(now);
            if let Some((ended, left)) = &mut self.ending {
                *left = left.saturating_sub(came.taken);
                if came.is_empty || *left == 0 {
                    break *ended;
                }
            } else if let Some(ended) = self.is_over(now) {
                self.ending = Some((ended, self.incoming.backlog().unwrap_or(0)));
            }
            if self.failure.is_some() {
                break Ended::Failed;
            }
            if came.is_closed {
                break Ended::Closed;
            }
            if came.count == 0 {
                self.rest(now, driven.unwrap_or(None));
            }
        };
        self.finish(ended)
    }

    fn note(&mut self, came: Came, now: Nanos) {
        if came.count > FEW_AT_ONCE {
            self.naps = 0;
        }
        if came.is_stream {
            let first = self.first_heard.unwrap_or(now);
            self.ends = Some((self.ends.map_or(first, |(first, _)| first), now));
        }
        if came.is_heard || came.is_stream {
            self.first_heard.get_or_insert(now);
            self.last_heard = now;
        }
    }

    /// Waits for a slow consumer: what is sent in the meantime waits at the sender.
    fn wait_for_room(&mut self, now: Nanos) {
        self.show(now);
        let driven = self.incoming.drive(now).unwrap_or(None);
        let until = now.plus(ROOM_NAP);
        let until = driven.map_or(until, |due| due.min(until));
        self.clock.wait(&[], until, Waiting::Sleep);
        let after = self.clock.now();
        self.ring_waits = self.ring_waits.plus(after.since(now));
        // The stream is not silent.
        self.last_heard = after;
    }

    /// Waits when nothing has arrived: naps if the stream is so fast that many datagrams arrive in a nap, and otherwise waits in the
    /// kernel.
    fn rest(&mut self, now: Nanos, driven: Option<Nanos>) {
        let flows = self.ends.is_some() && now.since(self.last_heard) < QUIET;
        self.naps = self.naps.saturating_add(1);
        let ends = self.limits().map(|(ends, _)| ends);
        let reports = self.intake.next_report();
        let sooner = |until: Nanos| ends.chain(driven).chain(reports).fold(until, Nanos::min);
        if flows && self.naps <= NAPS {
            let until = sooner(self.clock.now().plus(cpu::NAP.into()));
            self.clock.wait(&[], until, Waiting::Sleep);
        } else {
            let until = sooner(now.plus(TIMEOUT));
            let events = [self.incoming.events(), self.intake.events()];
            self.clock.wait(&events, until, Waiting::Sleep);
        }
    }

    /// Returns whether to end now, and why. What is waiting then still belongs to the stream.
    fn is_over(&self, now: Nanos) -> Option<Ended> {
        if self.run.is_stopped() {
            return Some(Ended::Stopped);
        }
        let mut limits = self.limits();
        limits.find_map(|(ends, ended)| (now >= ends).then_some(ended))
    }

    /// Returns when and why it ends unless more arrives.
    fn limits(&self) -> impl Iterator<Item = (Nanos, Ended)> + use<> {
        let last_heard = self.first_heard.map(|_| self.last_heard);
        let limit = |since: Option<Nanos>, limit: Option<Duration>, ended| {
            Some((since?.plus(limit?.into()), ended))
        };
        let duration = limit(Some(self.started), self.duration, Ended::Duration);
        let idle = limit(last_heard, self.idle, Ended::Idle);
        duration.into_iter().chain(idle)
    }

    fn show(&mut self, now: Nanos) {
        if now.since(self.shown) < SHOW && !self.watch.is_asked() {
            return;
        }
        // A reader that holds the lock sees the next state instead.
        if self.watch.try_show(|| self.live(now)) {
            self.shown = now;
        }
    }

    fn live(&self, now: Nanos) -> Snapshot {
        let mut live = Snapshot {
            socket_drops: self.incoming.drops_reported(),
            streaming: self.first_heard.is_some() && now.since(self.last_heard) < Nanos::SECOND,
            ring_waits: self.ring_waits.as_secs_f64(),
            ..Snapshot::default()
        };
        match &self.intake {
            Intake::Datagrams(datagrams) => datagrams.show(&mut live),
            Intake::Bytes(bytes) => bytes.show(&mut live),
        }
        live
    }

    fn finish(mut self, ended: Ended) -> ReceiveReport {
        let now = self.clock.now();
        match &mut self.intake {
            Intake::Datagrams(datagrams) => {
                if let Err(error) = datagrams.end(now, &self.clock) {
                    self.failure = Some(error);
                }
            }
            Intake::Bytes(bytes) => bytes.end(),
        }
        self.run.stop();
        let mut live = self.live(now);
        live.socket_drops = self.incoming.drops().unwrap_or(live.socket_drops);
        self.watch.show_last(live.clone());
        let report = ReceiveReport {
            attribution: live.attribution,
            live,
            seconds: self
                .ends
                .map_or(0.0, |(first, last)| last.since(first).as_secs_f64()),
            buffer: self.incoming.buffer().cloned(),
            cpu_seconds: self.clock.thread_time().as_secs_f64(),
            ended,
            error: self.failure.take(),
            ..ReceiveReport::default()
        };
        match self.intake {
            Intake::Datagrams(datagrams) => datagrams.report(report),
            Intake::Bytes(bytes) => bytes.report(report),
        }
    }
}

impl Intake {
    /// Returns whether the next batch of a reliable transport fits.
    fn has_room(&mut self) -> bool {
        match self {
            Intake::Datagrams(datagrams) => datagrams.has_room(),
            Intake::Bytes(bytes) => bytes.has_room(),
        }
    }

    fn receive(
        &mut self,
        incoming: &mut dyn Incoming,
        asked: Nanos,
        clock: &Clock,
    ) -> std::io::Result<Came> {
        match self {
            Intake::Datagrams(datagrams) => datagrams.receive(incoming, asked, clock),
            Intake::Bytes(bytes) => bytes.receive(incoming, asked),
        }
    }

    /// Returns when a report is due, if any.
    fn next_report(&self) -> Option<Nanos> {
        match self {
            Intake::Datagrams(datagrams) => datagrams.next_report(),
            Intake::Bytes(_) => None,
        }
    }

    /// Returns the event of a message next to the data.
    fn events(&self) -> Events<'_> {
        match self {
            Intake::Datagrams(datagrams) => datagrams.events(),
            Intake::Bytes(_) => Events::NONE,
        }
    }

    /// Releases what is complete.
    fn advance(&mut self, now: Nanos) -> Result<(), String> {
        match self {
            Intake::Datagrams(datagrams) => datagrams.advance(now),
            Intake::Bytes(_) => Ok(()),
        }
    }

    /// Returns whether there is a connection; one that failed does not return.
    fn is_connected(&self) -> bool {
        matches!(self, Intake::Bytes(bytes) if bytes.is_connected())
    }

    fn explain(&self, failure: &std::io::Error) -> String {
        match self.is_connected() {
            true => format!("the connection failed: {failure}; the received data is kept"),
            false => failure.to_string(),
        }
    }
}
