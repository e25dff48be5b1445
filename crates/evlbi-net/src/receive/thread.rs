//! The loop of the receiving thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use evlbi_core::account::{self, Attribution, Counters, attribute};
use evlbi_core::reorder::{Event, MOST_GAP, Reorder, Settings, Verdict};
use evlbi_core::time::Nanos;

use crate::cpu::{self, Waiting};
use crate::ring::{Consumer, Producer, Reserve};
use crate::udp::{Batch, Receiver};

use super::admission::{Admission, Admitted, Kept, Numbering};
use super::{Ended, Live, ReceiveOptions, ReceiveReport, Watch};

/// Events that may wait for the consumer.
const EVENTS: usize = 1024;
/// How far the first datagrams of a stream may be out of order.
const MOST_BACK: u64 = 1000;
/// Errors of the socket in a row that end the receiver.
const MOST_FAILURES: u32 = 1000;
/// How long a few datagrams that are no stream are remembered.
const FEW: Duration = Duration::from_secs(2);
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
    pub to_consumer: mpsc::Sender<Consumer<Event>>,
    pub stop: Arc<AtomicBool>,
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
    options: ReceiveOptions,
    receiver: Receiver,
    reserve: Option<Reserve>,
    to_consumer: mpsc::Sender<Consumer<Event>>,
    stop: Arc<AtomicBool>,
    /// Why it ends, and how much of what waited in the sockets by then is still to be taken: more may come all the time.
    ending: Option<(Ended, u64)>,
    watch: Arc<Watch>,
    started: Nanos,
    admission: Admission,
    stream: Option<Stream>,
    failure: Option<String>,
    shown: Nanos,
    /// Naps since much came at once.
    naps: u32,
    most_joined: u64,
    first_heard: Option<Nanos>,
    last_heard: Nanos,
    /// Drops of the sockets when the batch before the stream's first was queued.
    overflow_before: u64,
}

/// The stream, once its datagrams' size is known.
struct Stream {
    producer: Producer<Event>,
    reorder: Reorder,
    /// Bytes of data in a datagram.
    data: usize,
    /// Positions that the consumer has freed, as of this batch.
    freed: u64,
    /// The datagram that the window wants to see again.
    kept: Vec<u8>,
    /// The event that the consumer had no room for.
    untold: Option<(u64, Event)>,
    first: Nanos,
    last: Nanos,
    first_stamp: Option<Duration>,
    last_stamp: Option<Duration>,
    /// Drops of the sockets when the last datagram was queued.
    overflow: u64,
}

impl Loop {
    fn new(work: Work) -> Loop {
        let ports = work.options.listen.len();
        Loop {
            admission: Admission::new(work.options.source, ports),
            options: work.options,
            receiver: work.receiver,
            reserve: Some(work.reserve),
            to_consumer: work.to_consumer,
            stop: work.stop,
            ending: None,
            watch: work.watch,
            started: work.started,
            stream: None,
            failure: None,
            shown: Nanos(0),
            naps: 0,
            most_joined: 0,
            first_heard: None,
            last_heard: work.started,
            overflow_before: 0,
        }
    }

    fn run(mut self) -> ReceiveReport {
        let mut batch = Batch::new();
        let mut failures = 0;
        let ended = loop {
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
            self.settle_the_few(now, false);
            if let Some(stream) = &mut self.stream {
                stream.hand_on(now);
            }
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

    /// Nothing is there: naps while the stream flows so fast that much comes in a nap, else waits in the kernel.
    fn rest(&mut self, now: Nanos) {
        let flows = self.stream.is_some() && now.since(self.last_heard) < QUIET;
        self.naps = self.naps.saturating_add(1);
        if flows && self.naps <= NAPS || self.receiver.wait(PATIENCE).is_err() {
            std::thread::sleep(cpu::NAP);
        }
    }

    /// Whether it is to end, and why. What waits in the sockets by then is the stream's.
    fn is_over(&self, now: Nanos) -> Option<Ended> {
        if self.stop.load(Ordering::Relaxed) {
            return Some(Ended::Stopped);
        }
        let over = |limit: Option<Duration>, since: Nanos| {
            limit.is_some_and(|limit| now.since(since) >= Nanos::from(limit))
        };
        if over(self.options.duration, self.started) {
            return Some(Ended::Duration);
        }
        (self.first_heard.is_some() && over(self.options.idle, self.last_heard))
            .then_some(Ended::Idle)
    }

    /// Takes a batch; returns how many datagrams were in it.
    fn take(&mut self, batch: &Batch, now: Nanos) -> u32 {
        let mut datagrams = 0;
        if let Some(stream) = &mut self.stream {
            stream.freed = stream.producer.freed();
        }
        self.most_joined = self.most_joined.max(batch.most_joined());
        let heard_before = self.first_heard.is_some();
        let mut heard = false;
        for datagram in batch.datagrams() {
            datagrams += 1;
            let admitted = self.admission.admit(&datagram, now);
            match (admitted, &mut self.stream) {
                (Admitted::Yes, Some(stream)) => {
                    heard = true;
                    stream.last_stamp = datagram.stamp.or(stream.last_stamp);
                    self.admission.foreign_header +=
                        stream.take(&mut *self.options.numbering, datagram.bytes);
                }
                (Admitted::Kept, stream) => {
                    heard |=
                        stream.is_none() && self.admission.promises(&mut *self.options.numbering);
                    // The rest of the batch may already be the stream's.
                    self.settle(now, false);
                }
                _ => {}
            }
        }
        let overflow = self.receiver.overflow();
        if heard {
            self.first_heard.get_or_insert(now);
            self.last_heard = now;
            if let Some(stream) = &mut self.stream {
                stream.last = now;
                stream.overflow = overflow;
            }
        } else if !heard_before {
            self.overflow_before = overflow;
        }
        datagrams
    }

    /// What is kept and has not become a stream: the few datagrams that came are one when no more do.
    fn settle_the_few(&mut self, now: Nanos, at_the_end: bool) {
        let patience = self.options.idle.unwrap_or(FEW).min(FEW);
        if at_the_end || self.admission.has_waited(now, patience.into()) {
            if self.stream.is_none() && at_the_end {
                self.settle(now, true);
            }
            if self.stream.is_some() {
                self.admission.drop_kept();
            }
        }
    }

    fn settle(&mut self, now: Nanos, decide: bool) {
        let numbering = &mut *self.options.numbering;
        let Some(first) = self.admission.settle(numbering, decide, now) else {
            return;
        };
        let Some(base) = earliest(numbering, &first) else {
            return;
        };
        let data = numbering
            .split(&first[0].bytes)
            .map_or(0, |(_, data)| data.len());
        match &mut self.stream {
            Some(stream) => stream.reorder.begin(base),
            None => {
                let Some(stream) = self.open(data, base, now) else {
                    return;
                };
                self.stream = Some(stream);
            }
        }
        let datagrams: Vec<&[u8]> = first.iter().map(|kept| kept.bytes.as_slice()).collect();
        self.options.numbering.learn(&datagrams);
        if let Some(stream) = &mut self.stream {
            stream.first_stamp = stream.first_stamp.or(first[0].stamp);
            stream.last_stamp = first
                .last()
                .and_then(|kept| kept.stamp)
                .or(stream.last_stamp);
            for kept in &first {
                self.admission.foreign_header +=
                    stream.take(&mut *self.options.numbering, &kept.bytes);
            }
        }
    }

    /// Makes the ring for datagrams with so much data and gives its other end to the consumer.
    fn open(&mut self, data: usize, base: u64, now: Nanos) -> Option<Stream> {
        let made = self.reserve.take()?.ring(data, EVENTS);
        let (producer, consumer) = match made {
            Ok(ends) => ends,
            Err(error) => {
                self.failure = Some(error.to_string());
                return None;
            }
        };
        // The consumer gone means that the program is ending.
        let _ = self.to_consumer.send(consumer);
        let capacity = producer.capacity();
        let mut reorder = Reorder::new(Settings {
            window: (self.options.window / data as u64).clamp(1, capacity * 3 / 4 + 1),
            hold: self.options.hold.into(),
            capacity,
            max_gap: MOST_GAP,
        });
        reorder.begin(base);
        Some(Stream {
            producer,
            reorder,
            data,
            freed: 0,
            kept: Vec::new(),
            untold: None,
            first: self.first_heard.unwrap_or(now),
            last: now,
            first_stamp: None,
            last_stamp: None,
            overflow: self.overflow_before,
        })
    }

    fn show(&mut self, now: Nanos) {
        if now.since(self.shown) < SHOW && !self.watch.is_asked() {
            return;
        }
        // Whoever looks at it at this moment sees it a moment later.
        if self.watch.try_show(|| self.live(now)) {
            self.shown = now;
        }
    }

    fn live(&self, now: Nanos) -> Live {
        let admission = &self.admission;
        let mut live = Live {
            foreign: admission.foreign_size + admission.foreign_source + admission.foreign_header,
            undecided: admission.undecided(),
            socket_drops: self.receiver.overflow(),
            streaming: now.since(self.last_heard) < Nanos::SECOND,
            ..Live::default()
        };
        if let Some(stream) = &self.stream {
            live.counters = stream.reorder.counters();
            live.bytes = live.counters.unique * stream.data as u64;
            live.ring_fill = stream.producer.gauge().fill();
            let drops = stream.overflow.saturating_sub(self.overflow_before);
            live.attribution = attribution(&live.counters, drops, self.most_joined, stream.data);
        }
        live
    }

    fn finish(mut self, ended: Ended) -> ReceiveReport {
        let now = cpu::now();
        self.settle_the_few(now, true);
        self.admission.drop_kept();
        if let Some(stream) = &mut self.stream {
            stream.take_last(&mut *self.options.numbering);
        }
        self.watch.show_last(self.live(now));
        let overflow_before = self.overflow_before;
        let socket_drops = self.receiver.drops().unwrap_or(self.receiver.overflow());
        let mut report = ReceiveReport {
            account: account::Report::default(),
            attribution: attribute(0, 0, 0, 1),
            foreign_size: self.admission.foreign_size,
            foreign_source: self.admission.foreign_source,
            foreign_header: self.admission.foreign_header,
            sender: self.admission.sender(),
            datagram_data: None,
            bytes: 0,
            seconds: 0.0,
            first_arrival: None,
            last_arrival: None,
            socket_drops,
            socket_drops_within: 0,
            most_joined: self.most_joined,
            buffer: self.receiver.buffer().cloned(),
            ring_slots: 0,
            cpu_seconds: cpu::thread_time().as_secs_f64(),
            ended,
            error: self.failure.take(),
        };
        if let Some(stream) = self.stream.take() {
            stream.finish(&mut report, overflow_before);
        }
        report
    }
}

impl Stream {
    /// Puts a datagram in its place. Returns how many had no number to place them by: this one or none.
    #[inline]
    fn take(&mut self, numbering: &mut dyn Numbering, datagram: &[u8]) -> u64 {
        let Some((number, data)) = numbering.split(datagram) else {
            return 1;
        };
        match self.reorder.offer(number, self.freed) {
            // Refused only if the window and the ring disagreed about what is handed on or free.
            Verdict::Place(position) => {
                let placed = self.producer.place(position, data);
                debug_assert_eq!(placed, Ok(()));
            }
            Verdict::Keep => {
                self.kept.clear();
                self.kept.extend_from_slice(datagram);
            }
            Verdict::Replay => {
                let kept = std::mem::take(&mut self.kept);
                self.take_kept(numbering, &kept);
                return self.take(numbering, datagram);
            }
            Verdict::Duplicate | Verdict::Late | Verdict::RingFull => {}
        }
        0
    }

    /// The kept datagram again. The window has just made room for it, so it is not kept once more.
    fn take_kept(&mut self, numbering: &mut dyn Numbering, datagram: &[u8]) {
        if let Some((number, data)) = numbering.split(datagram)
            && let Verdict::Place(position) = self.reorder.offer(number, self.freed)
        {
            let placed = self.producer.place(position, data);
            debug_assert_eq!(placed, Ok(()));
        }
    }

    /// Nothing more comes: what was kept may have been the last.
    fn take_last(&mut self, numbering: &mut dyn Numbering) {
        if self.reorder.accept_kept() {
            let kept = std::mem::take(&mut self.kept);
            self.take_kept(numbering, &kept);
        }
    }

    fn hand_on(&mut self, now: Nanos) {
        let handed = self.reorder.advance(now);
        self.publish(handed);
    }

    /// Events first, so that the consumer knows them when it comes to their place.
    fn publish(&mut self, handed: u64) {
        loop {
            if self.untold.is_none() {
                self.untold = self.reorder.next_event();
            }
            let Some((position, event)) = self.untold else {
                break;
            };
            if self.producer.tell(position, event).is_err() {
                self.producer.publish(position);
                return;
            }
            self.untold = None;
        }
        self.producer.publish(handed);
    }

    fn finish(mut self, report: &mut ReceiveReport, overflow_before: u64) {
        let handed = self.reorder.flush();
        self.publish(handed);
        report.datagram_data = Some(self.data);
        report.seconds = self.last.since(self.first).as_secs_f64();
        report.first_arrival = self.first_stamp.map(|stamp| stamp.as_secs_f64());
        report.last_arrival = self.last_stamp.map(|stamp| stamp.as_secs_f64());
        report.ring_slots = self.producer.capacity();
        report.socket_drops_within = self.overflow.saturating_sub(overflow_before);
        report.account = self.reorder.finish();
        let counters = &report.account.counters;
        report.bytes = counters.unique * self.data as u64;
        report.attribution = attribution(
            counters,
            report.socket_drops_within,
            report.most_joined,
            self.data,
        );
    }
}

/// Where the lost were lost, when the sockets dropped so many messages, each of so many datagrams at most with
/// `data` bytes.
fn attribution(counters: &Counters, drops: u64, most_joined: u64, data: usize) -> Attribution {
    let per_drop = match most_joined {
        0 | 1 => 1,
        _ => 65_535 / data as u64,
    };
    attribute(counters.lost, counters.ring_full, drops, per_drop)
}

/// The lowest number of the first datagrams of a stream.
fn earliest(numbering: &mut dyn Numbering, datagrams: &[Kept]) -> Option<u64> {
    let mut numbers = datagrams
        .iter()
        .filter_map(|kept| Some(numbering.split(&kept.bytes)?.0));
    let first = numbers.next()?;
    let back = numbers
        .map(|number| first.wrapping_sub(number))
        .filter(|back| *back < MOST_BACK)
        .max();
    Some(first.wrapping_sub(back.unwrap_or(0)))
}
