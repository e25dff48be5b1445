//! The loop of the receiving thread.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use evlbi_core::reorder::Event;
use evlbi_core::time::Nanos;

use crate::clock::Clock;
use crate::cpu::{self, Waiting};
use crate::ring::{Consumer, Reserve};
use crate::run::Run;
use crate::transport::{Carries, Incoming, Service};

use super::bytes::Bytes;
use super::datagrams::Datagrams;
use super::{Came, Ended, ReceiveOptions, ReceiveReport, SHOW, Snapshot, Watch};

/// Errors of the transport in a row that end the receiver.
const MAX_FAILURES: u32 = 1000;
/// Longest wait for an event while no stream flows.
const TIMEOUT: Nanos = Nanos(20_000_000);
/// A stream that was silent for so long is waited for in the kernel.
const QUIET: Nanos = Nanos(10_000_000);
/// Naps in which nothing comes before the stream is waited for in the kernel: hundreds of slow ones share a host.
const NAPS: u32 = 2;
/// A stream of which no more than so many datagrams come at once is a slow one.
const FEW_AT_ONCE: u32 = 2;
/// Time between two looks at whether the consumer of a reliable stream has made room.
const ROOM_NAP: Nanos = Nanos(100_000);

/// What the thread is given.
pub struct Work {
    pub options: ReceiveOptions,
    pub service: Service,
    pub incoming: Box<dyn Incoming>,
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
    /// Why it ends, and how much of what waited by then is still to be taken: more may come all the time.
    ending: Option<(Ended, u64)>,
    watch: Arc<Watch>,
    started: Nanos,
    failure: Option<String>,
    shown: Nanos,
    /// Naps since much came at once.
    naps: u32,
    first_heard: Option<Nanos>,
    last_heard: Nanos,
    /// When the stream came first and last.
    ends: Option<(Nanos, Nanos)>,
    /// Time in which a reliable stream was not read, since there was no room.
    ring_waits: Nanos,
}

/// What becomes of what comes.
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
                    // A moment without memory passes; a broken socket does not.
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

    /// The consumer is behind: what is sent meanwhile waits with its sender.
    fn wait_for_room(&mut self, now: Nanos) {
        self.show(now);
        let driven = self.incoming.drive(now).unwrap_or(None);
        let until = now.plus(ROOM_NAP);
        let until = driven.map_or(until, |due| due.min(until));
        self.clock.wait(&[], until, Waiting::Sleep);
        let after = self.clock.now();
        self.ring_waits = self.ring_waits.plus(after.since(now));
        // It is not silent.
        self.last_heard = after;
    }

    /// Nothing is there: naps while the stream flows so fast that much comes in a nap, else waits in the kernel.
    fn rest(&mut self, now: Nanos, driven: Option<Nanos>) {
        let flows = self.ends.is_some() && now.since(self.last_heard) < QUIET;
        self.naps = self.naps.saturating_add(1);
        let ends = self.limits().map(|(ends, _)| ends);
        let sooner = |until: Nanos| ends.chain(driven).fold(until, Nanos::min);
        if flows && self.naps <= NAPS {
            let until = sooner(self.clock.now().plus(cpu::NAP.into()));
            self.clock.wait(&[], until, Waiting::Sleep);
        } else {
            let until = sooner(now.plus(TIMEOUT));
            let events = self.incoming.events();
            self.clock.wait(&[events], until, Waiting::Sleep);
        }
    }

    /// Whether it is to end, and why. What waits by then is the stream's.
    fn is_over(&self, now: Nanos) -> Option<Ended> {
        if self.run.is_stopped() {
            return Some(Ended::Stopped);
        }
        let mut limits = self.limits();
        limits.find_map(|(ends, ended)| (now >= ends).then_some(ended))
    }

    /// When it ends, and why, unless more comes.
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
            socket_drops: self.incoming.drops_told(),
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
    /// Whether there is room for what a reliable transport may bring at once.
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

    /// Hands on what can be handed on.
    fn advance(&mut self, now: Nanos) -> Result<(), String> {
        match self {
            Intake::Datagrams(datagrams) => datagrams.advance(now),
            Intake::Bytes(_) => Ok(()),
        }
    }

    /// Whether there is a connection, which does not come back once it failed.
    fn is_connected(&self) -> bool {
        matches!(self, Intake::Bytes(bytes) if bytes.is_connected())
    }

    fn explain(&self, failure: &std::io::Error) -> String {
        match self.is_connected() {
            true => format!("the connection failed: {failure}; what came is kept"),
            false => failure.to_string(),
        }
    }
}
