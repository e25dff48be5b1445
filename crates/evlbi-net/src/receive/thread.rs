//! The loop of the receiving thread.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use evlbi_core::account::{Attribution, Counters, attribute};
use evlbi_core::admission::{Admission, Arrival, Begins, Settings, Taken};
use evlbi_core::reorder::Event;
use evlbi_core::time::Nanos;

use crate::cpu::{self, Waiting};
use crate::ring::{Consumer, Producer, Reserve, Retired};
use crate::run::Run;
use crate::udp::{Batch, Receiver};

use super::{Ended, Live, ReceiveOptions, ReceiveReport, Watch};

/// Events that may wait for the consumer.
const EVENTS: usize = 1024;
/// Errors of the socket in a row that end the receiver.
const MOST_FAILURES: u32 = 1000;
/// Undecided datagrams take at most this part of the ring's size.
const KEPT_PART: usize = 4;
/// How often it is looked at the end whether the consumer has left the ring before, 10 ms apart.
const LOOKS: u32 = 100;
/// How often whoever watches sees something new.
const SHOW: Nanos = Nanos(100_000_000);
/// Longest wait in the kernel while no stream flows.
const PATIENCE: Duration = Duration::from_millis(20);
/// A stream that was silent for so long is waited for in the kernel.
const QUIET: Nanos = Nanos(10_000_000);
/// Naps in which nothing comes before the stream is waited for in the kernel: hundreds of slow ones share a host.
const NAPS: u32 = 2;
/// A stream of which no more than so many datagrams come at once is a slow one.
const FEW_AT_ONCE: u32 = 2;

/// What the thread is given.
pub struct Work {
    pub options: ReceiveOptions,
    pub receiver: Receiver,
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
    receiver: Receiver,
    ring: Ring,
    to_consumer: mpsc::Sender<(Consumer<Event>, u64)>,
    /// Bytes that would have come since the stream before, whose ring is over.
    missing: u64,
    stop: Run,
    /// Why it ends, and how much of what waited in the sockets by then is still to be taken: more may come all the time.
    ending: Option<(Ended, u64)>,
    watch: Arc<Watch>,
    started: Nanos,
    admission: Admission,
    failure: Option<String>,
    shown: Nanos,
    /// When a look at what waits in the sockets began, and how much of it is to be taken yet.
    sweep: Option<(Nanos, u64)>,
    swept: Nanos,
    /// Naps since much came at once.
    naps: u32,
    most_joined: u64,
    first_heard: Option<Nanos>,
    last_heard: Nanos,
    /// When the stream came first and last.
    ends: Option<(Nanos, Nanos)>,
    /// Drops of the sockets when the batch before the stream's first was queued.
    overflow_before: u64,
    /// And when its last datagram was.
    overflow: u64,
}

/// The ring, which is there once the size of the stream's datagrams is known.
enum Ring {
    Reserve(Reserve),
    Open(Open),
    /// Of a stream that is over, which the consumer may still read.
    Retired(Retired),
    None,
}

/// A ring that datagrams are placed in.
struct Open {
    producer: Producer<Event>,
    /// Positions that the consumer has freed, as of this batch.
    freed: u64,
    /// The event that the consumer had no room for.
    untold: Option<(u64, Event)>,
}

impl Loop {
    fn new(work: Work) -> Loop {
        let options = work.options;
        let settings = Settings {
            only: options.source,
            ports: options.listen.len(),
            window: options.window,
            hold: options.hold.into(),
            kept: options.ring / KEPT_PART,
            wanted: options.wanted,
        };
        Loop {
            admission: Admission::new(settings, options.numbering),
            idle: options.idle,
            duration: options.duration,
            receiver: work.receiver,
            ring: Ring::Reserve(work.reserve),
            to_consumer: work.to_consumer,
            missing: 0,
            stop: work.run,
            ending: None,
            watch: work.watch,
            started: work.started,
            failure: None,
            shown: Nanos(0),
            sweep: None,
            swept: Nanos(0),
            naps: 0,
            most_joined: 0,
            first_heard: None,
            last_heard: work.started,
            ends: None,
            overflow_before: 0,
            overflow: 0,
        }
    }

    fn run(mut self) -> ReceiveReport {
        let mut batch = Batch::new();
        let mut failures = 0;
        let ended = loop {
            let asked = cpu::now();
            let received = self.receiver.receive(&mut batch);
            let is_empty = matches!(received, Ok(0));
            let count = match received {
                Ok(count) => {
                    failures = 0;
                    count
                }
                Err(failure) => {
                    // A moment without memory passes; a broken socket does not.
                    failures += 1;
                    if failures > MOST_FAILURES {
                        self.failure = Some(failure.to_string());
                    }
                    0
                }
            };
            let now = cpu::now();
            if count > 0 && self.take(&batch, now) > FEW_AT_ONCE {
                self.naps = 0;
            }
            self.sweep(asked, is_empty, &batch);
            self.begin();
            let handed = self.admission.advance(now);
            self.hand_on(handed);
            self.show(now);
            if let Some((ended, left)) = &mut self.ending {
                *left = left.saturating_sub(batch.accounted());
                if is_empty || *left == 0 {
                    break *ended;
                }
            } else if let Some(ended) = self.is_over(now) {
                self.ending = Some((ended, self.receiver.queued().unwrap_or(0)));
            }
            if self.failure.is_some() {
                break Ended::Failed;
            }
            if count == 0 {
                self.rest(now);
            }
        };
        self.finish(ended)
    }

    /// Finds out until when all that had come is taken from the sockets, although more may come all the time: only then nothing of
    /// the stream waits that came before.
    fn sweep(&mut self, asked: Nanos, is_empty: bool, batch: &Batch) {
        if is_empty {
            self.sweep = None;
            self.admission.tick(asked);
            return;
        }
        if let Some((begun, left)) = &mut self.sweep {
            *left = left.saturating_sub(batch.accounted());
            if *left == 0 {
                self.admission.tick(*begun);
                self.sweep = None;
            }
        } else if asked.since(self.swept) >= SHOW {
            self.swept = asked;
            let queued = self.receiver.queued();
            self.sweep = queued.ok().map(|queued| (asked, queued));
        }
    }

    /// Nothing is there: naps while the stream flows so fast that much comes in a nap, else waits in the kernel.
    fn rest(&mut self, now: Nanos) {
        let flows = self.ends.is_some() && now.since(self.last_heard) < QUIET;
        self.naps = self.naps.saturating_add(1);
        if flows && self.naps <= NAPS || self.receiver.wait(PATIENCE).is_err() {
            std::thread::sleep(cpu::NAP);
        }
    }

    /// Whether it is to end, and why. What waits in the sockets by then is the stream's.
    fn is_over(&self, now: Nanos) -> Option<Ended> {
        if self.stop.is_stopped() {
            return Some(Ended::Stopped);
        }
        let over = |limit: Option<Duration>, since: Nanos| {
            limit.is_some_and(|limit| now.since(since) >= Nanos::from(limit))
        };
        if over(self.duration, self.started) {
            return Some(Ended::Duration);
        }
        (self.first_heard.is_some() && over(self.idle, self.last_heard)).then_some(Ended::Idle)
    }

    /// Takes a batch; returns how many datagrams were in it.
    fn take(&mut self, batch: &Batch, now: Nanos) -> u32 {
        let mut datagrams = 0;
        if let Ring::Open(open) = &mut self.ring {
            open.freed = open.producer.freed();
        }
        self.most_joined = self.most_joined.max(batch.most_joined());
        let heard_before = self.first_heard.is_some();
        let (mut is_heard, mut is_stream) = (false, false);
        for datagram in batch.datagrams() {
            datagrams += 1;
            let arrival = Arrival {
                bytes: datagram.bytes,
                source: datagram.source,
                port: datagram.port,
                stamp: datagram.stamp,
            };
            let freed = self.ring.freed();
            let ring = &mut self.ring;
            let mut place = |position: u64, data: &[u8]| ring.place(position, data);
            match self.admission.take(&arrival, now, freed, &mut place) {
                Taken::Stream => is_stream = true,
                Taken::Kept { promising } => is_heard |= promising,
                Taken::Foreign => {}
                Taken::Begins => {
                    // The rest of the batch may already be the stream's.
                    self.begin();
                    is_stream = true;
                }
            }
        }
        let overflow = self.receiver.overflow();
        if is_stream {
            let first = self.first_heard.unwrap_or(now);
            self.ends = Some((self.ends.map_or(first, |(first, _)| first), now));
            self.overflow = overflow;
        }
        if is_heard || is_stream {
            self.first_heard.get_or_insert(now);
            self.last_heard = now;
        } else if !heard_before {
            self.overflow_before = overflow;
            self.overflow = overflow;
        }
        datagrams
    }

    /// Begins the stream that has won, if there is one and its ring can be had.
    fn begin(&mut self) {
        let Some(begins) = self.admission.beginning() else {
            return;
        };
        if begins.resized && !self.resize(begins) {
            return;
        }
        let Ring::Open(open) = &mut self.ring else {
            return;
        };
        let capacity = open.producer.capacity();
        let freed = open.freed;
        let mut place = |position: u64, data: &[u8]| open.place(position, data);
        self.admission.begin(capacity, freed, &mut place);
    }

    /// Makes a ring for datagrams with so much data and gives its other end to the consumer, when that has left the ring before.
    /// Says whether it is there.
    fn resize(&mut self, begins: Begins) -> bool {
        // The stream that is over tells what is missing, so once only.
        self.missing = self.missing.max(begins.missing);
        let handed = self.admission.close();
        if !self.hand_on(handed) {
            return false;
        }
        let ring = std::mem::replace(&mut self.ring, Ring::None);
        let retired = match ring {
            Ring::Open(open) => open.producer.retire(),
            Ring::Retired(retired) => retired,
            Ring::Reserve(reserve) => return self.open(reserve, begins.data),
            Ring::None => return false,
        };
        match retired.reclaim() {
            Ok(reserve) => self.open(reserve, begins.data),
            Err(retired) => {
                self.ring = Ring::Retired(retired);
                false
            }
        }
    }

    fn open(&mut self, reserve: Reserve, data: usize) -> bool {
        match reserve.ring(data, EVENTS) {
            Ok((producer, consumer)) => {
                // The consumer gone means that the program is ending.
                let missing = std::mem::take(&mut self.missing);
                let _ = self.to_consumer.send((consumer, missing));
                self.ring = Ring::Open(Open {
                    producer,
                    freed: 0,
                    untold: None,
                });
                true
            }
            Err(error) => {
                self.failure = Some(error.to_string());
                false
            }
        }
    }

    /// Hands on the positions below `handed`. Events first, so that the consumer knows them when it comes to their place. Says
    /// whether there was room for all events.
    fn hand_on(&mut self, handed: u64) -> bool {
        let Ring::Open(open) = &mut self.ring else {
            return true;
        };
        loop {
            if open.untold.is_none() {
                open.untold = self.admission.next_event();
            }
            let Some((position, event)) = open.untold else {
                break;
            };
            if open.producer.tell(position, event).is_err() {
                open.producer.publish(position);
                return false;
            }
            open.untold = None;
        }
        open.producer.publish(handed);
        true
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

    fn live(&self, now: Nanos) -> Live {
        let admission = &self.admission;
        let counters = admission.counters();
        Live {
            foreign: admission.foreign_size()
                + admission.foreign_source()
                + admission.foreign_header(),
            undecided: admission.undecided(),
            bytes: admission.bytes(),
            ring_fill: match &self.ring {
                Ring::Open(open) => open.producer.gauge().fill(),
                _ => 0.0,
            },
            socket_drops: self.receiver.overflow(),
            attribution: self.attribution(&counters),
            streaming: self.first_heard.is_some() && now.since(self.last_heard) < Nanos::SECOND,
            counters,
        }
    }

    /// Where the lost were lost, by what the sockets dropped between the first and the last datagram.
    fn attribution(&self, counters: &Counters) -> Attribution {
        let per_drop = match self.most_joined {
            0 | 1 => 1,
            _ => 65_535 / self.admission.data().unwrap_or(1) as u64,
        };
        let drops = self.overflow.saturating_sub(self.overflow_before);
        attribute(counters.lost, counters.ring_full, drops, per_drop)
    }

    fn finish(mut self, ended: Ended) -> ReceiveReport {
        let now = cpu::now();
        self.admission.end(now);
        for _ in 0..LOOKS {
            self.begin();
            if self.admission.beginning().is_none() || self.failure.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let freed = self.ring.freed();
        let ring = &mut self.ring;
        let mut place = |position: u64, data: &[u8]| ring.place(position, data);
        let handed = self.admission.finish(freed, &mut place);
        self.hand_on(handed);
        self.stop.stop();
        self.watch.show_last(self.live(now));
        let counters = self.admission.counters();
        let [first_arrival, last_arrival] = self
            .admission
            .stamps()
            .map(|stamp| stamp.map(|stamp| stamp.as_secs_f64()));
        ReceiveReport {
            attribution: self.attribution(&counters),
            foreign_size: self.admission.foreign_size(),
            foreign_source: self.admission.foreign_source(),
            foreign_header: self.admission.foreign_header(),
            refused: self.admission.refused().to_vec(),
            sender: self.admission.sender(),
            datagram_data: self.admission.data(),
            bytes: self.admission.bytes(),
            seconds: self
                .ends
                .map_or(0.0, |(first, last)| last.since(first).as_secs_f64()),
            first_arrival,
            last_arrival,
            socket_drops: self.receiver.drops().unwrap_or(self.receiver.overflow()),
            socket_drops_within: self.overflow.saturating_sub(self.overflow_before),
            most_joined: self.most_joined,
            buffer: self.receiver.buffer().cloned(),
            ring_slots: match &self.ring {
                Ring::Open(open) => open.producer.capacity(),
                _ => 0,
            },
            cpu_seconds: cpu::thread_time().as_secs_f64(),
            ended,
            error: self.failure.take(),
            account: self.admission.report(),
        }
    }
}

impl Ring {
    /// Positions that the consumer has freed, as of this batch.
    fn freed(&self) -> u64 {
        match self {
            Ring::Open(open) => open.freed,
            _ => 0,
        }
    }

    #[inline]
    fn place(&mut self, position: u64, data: &[u8]) {
        if let Ring::Open(open) = self {
            open.place(position, data);
        }
    }
}

impl Open {
    /// Refused only if the window and the ring disagreed about what is handed on or free.
    #[inline]
    fn place(&mut self, position: u64, data: &[u8]) {
        let placed = self.producer.place(position, data);
        debug_assert_eq!(placed, Ok(()));
    }
}

#[cfg(test)]
mod instructions;
