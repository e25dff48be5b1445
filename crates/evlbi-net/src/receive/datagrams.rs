//! Datagrams on their way into the ring: admitted, placed by their numbers, released.
//!
//! This module handles each datagram, without locks and without allocations.

use std::io;
use std::sync::mpsc;

use evlbi_core::account::{Attribution, Counters, attribute};
use evlbi_core::admission::{Admission, Arrival, Begins, Settings, Taken};
use evlbi_core::reorder::Event;
use evlbi_core::time::Nanos;

use crate::clock::{Clock, Events};
use crate::cpu::Waiting;
use crate::ring::{Consumer, Producer, Reserve, Retired};
use crate::safe::SafeReceiving;
use crate::transport::{Batch, Incoming, Service};
use crate::udp;

use super::{Came, ReceiveOptions, ReceiveReport, SHOW, Snapshot};

/// Maximum number of events waiting for the consumer.
const EVENTS: usize = 1024;
/// Pending datagrams take at most the ring's size divided by this.
const KEPT_PART: usize = 4;
/// Maximum number of polls, at the end, for whether the consumer has left the previous ring.
const POLLS: u32 = 100;
/// Time without a datagram after which the kernel is asked what it has dropped since the last one.
const QUIET: Nanos = Nanos(50_000_000);
/// Interval of these polls.
const POLL_INTERVAL: Nanos = Nanos(10_000_000);
/// Minimum room in the ring, in bytes, at which a reliable transport is read: more than one of its batches.
const ROOM: usize = 2 << 20;

/// Path of datagrams into the ring.
pub struct Datagrams {
    admission: Admission,
    ring: Ring,
    to_consumer: mpsc::Sender<(Consumer<Event>, u64)>,
    /// Bytes missing since the previous stream, whose ring has ended.
    missing: u64,
    is_reliable: bool,
    safe: Option<SafeReceiving>,
    /// Start of a sweep of the backlog, and the number of bytes still to take.
    sweep: Option<(Nanos, u64)>,
    swept: Nanos,
    max_joined: u64,
    is_heard: bool,
    /// When something was read for the last time.
    heard: Nanos,
    /// Socket drops when the batch before the stream's first was queued.
    overflow_before: u64,
    /// Socket drops when the batch with its last datagram was queued.
    overflow: u64,
    /// Datagrams of the stream with each ECN field.
    ecn: [u64; 4],
}

/// The ring, which exists once the size of the stream's datagrams is known.
enum Ring {
    Reserve(Reserve),
    Open(Open),
    /// The ring of a stream that has ended; the consumer may still read it.
    Retired(Retired),
    None,
}

/// A ring in use.
struct Open {
    producer: Producer<Event>,
    slot: usize,
    /// Positions that the consumer has freed, as of this batch.
    freed: u64,
    /// An event that did not fit into the consumer's queue.
    unsent: Option<(u64, Event)>,
}

impl Datagrams {
    pub fn new(
        options: ReceiveOptions,
        service: Service,
        safe: Option<SafeReceiving>,
        ports: usize,
        reserve: Reserve,
        to_consumer: mpsc::Sender<(Consumer<Event>, u64)>,
    ) -> Datagrams {
        let settings = Settings {
            only: options.with.only,
            ports,
            window: options.window,
            // Gaps were never sent: everything sent arrives, in order.
            hold: match service.reliable {
                true => Nanos(0),
                false => options.hold.into(),
            },
            kept: options.ring / KEPT_PART,
            wanted: options.wanted,
        };
        Datagrams {
            admission: Admission::new(settings, options.numbering),
            ring: Ring::Reserve(reserve),
            to_consumer,
            missing: 0,
            is_reliable: service.reliable,
            safe,
            sweep: None,
            swept: Nanos(0),
            max_joined: 0,
            is_heard: false,
            heard: Nanos(0),
            overflow_before: 0,
            overflow: 0,
            ecn: [0; 4],
        }
    }

    /// Returns whether a batch of a reliable transport fits. Other transports are read anyway; what does not fit is counted.
    pub fn has_room(&mut self) -> bool {
        match &mut self.ring {
            Ring::Open(open) if self.is_reliable => open.room() >= ROOM as u64,
            _ => true,
        }
    }

    pub fn receive(
        &mut self,
        incoming: &mut dyn Incoming,
        asked: Nanos,
        clock: &Clock,
    ) -> io::Result<Came> {
        let batch = incoming.receive(asked)?;
        let (is_empty, taken) = (batch.is_empty(), batch.taken);
        let mut came = match is_empty {
            true => Came::default(),
            false => self.take(batch, clock.now()),
        };
        came.is_empty = is_empty;
        if !is_empty {
            // More may be waiting, even if these were only fragments.
            came.count = came.count.max(1);
        }
        came.taken = taken;
        came.is_closed = self.is_reliable
            && self
                .admission
                .sender()
                .is_some_and(|sender| incoming.has_ended(sender));
        let told = incoming.drops_reported();
        if self.safe.is_some() {
            let per_drop = self.per_drop();
            match &mut self.safe {
                Some(safe) if !is_empty => safe.note(&self.admission, told, per_drop, &self.ecn),
                // Nothing more arrives that says what was dropped.
                Some(safe) if asked.since(self.heard) >= QUIET && safe.awaits(&self.admission) => {
                    safe.note_end(incoming.drops().unwrap_or(told), per_drop);
                }
                _ => {}
            }
        }
        if !is_empty {
            self.heard = asked;
        }
        if came.is_stream {
            self.overflow = told;
        }
        if came.is_heard || came.is_stream {
            self.is_heard = true;
        } else if !self.is_heard && !is_empty {
            self.overflow_before = told;
            self.overflow = told;
        }
        self.sweep(incoming, asked, is_empty, taken);
        Ok(came)
    }

    /// Determines up to when all arrived data was taken, although more may keep arriving: no earlier datagram of the stream can then
    /// still be waiting.
    fn sweep(&mut self, incoming: &dyn Incoming, asked: Nanos, is_empty: bool, taken: u64) {
        if is_empty {
            self.sweep = None;
            self.admission.tick(asked);
            return;
        }
        if let Some((begun, left)) = &mut self.sweep {
            *left = left.saturating_sub(taken);
            if *left == 0 {
                self.admission.tick(*begun);
                self.sweep = None;
            }
        } else if asked.since(self.swept) >= SHOW {
            self.swept = asked;
            let waiting = incoming.backlog();
            self.sweep = waiting.ok().map(|waiting| (asked, waiting));
        }
    }

    fn take(&mut self, batch: Batch<'_>, now: Nanos) -> Came {
        let mut came = Came::default();
        if let Ring::Open(open) = &mut self.ring {
            open.freed = open.producer.freed();
        }
        self.max_joined = self.max_joined.max(batch.max_joined());
        for datagram in batch.datagrams() {
            came.count += 1;
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
                Taken::Stream => {
                    came.is_stream = true;
                    self.ecn[usize::from(datagram.ecn & 3)] += 1;
                }
                Taken::Pending { promising } => came.is_heard |= promising,
                Taken::Foreign => {}
                Taken::Begins => {
                    // The rest of the batch may already belong to the stream. A failure shows after the batch.
                    let _ = self.begin();
                    came.is_stream = true;
                }
            }
        }
        came
    }

    /// Starts the stream that was chosen, and releases what is complete.
    ///
    /// # Errors
    /// Returns an error if the ring cannot be allocated.
    pub fn advance(&mut self, now: Nanos) -> Result<(), String> {
        self.begin()?;
        let handed = self.admission.advance(now);
        self.hand_on(handed);
        if let Some(safe) = &mut self.safe {
            safe.drive(&mut self.admission, now);
        }
        Ok(())
    }

    pub fn next_report(&self) -> Option<Nanos> {
        self.safe.as_ref().and_then(SafeReceiving::next_at)
    }

    pub fn events(&self) -> Events<'_> {
        let safe = self.safe.as_ref();
        safe.map_or(Events::NONE, SafeReceiving::events)
    }

    /// Starts the stream that was chosen, if there is one and its ring can be allocated.
    fn begin(&mut self) -> Result<(), String> {
        let Some(begins) = self.admission.beginning() else {
            return Ok(());
        };
        if begins.resized && !self.resize(begins)? {
            return Ok(());
        }
        let Ring::Open(open) = &mut self.ring else {
            return Ok(());
        };
        let capacity = open.producer.capacity();
        let freed = open.freed;
        let mut place = |position: u64, data: &[u8]| open.place(position, data);
        self.admission.begin(capacity, freed, &mut place);
        Ok(())
    }

    /// Creates a ring for datagrams of this size and gives its other end to the consumer, once the consumer has left the previous ring.
    /// Returns whether it exists.
    fn resize(&mut self, begins: Begins) -> Result<bool, String> {
        // The ending stream tells how much is missing, so take it only once.
        self.missing = self.missing.max(begins.missing);
        let handed = self.admission.close();
        if !self.hand_on(handed) {
            return Ok(false);
        }
        let ring = std::mem::replace(&mut self.ring, Ring::None);
        let retired = match ring {
            Ring::Open(open) => open.producer.retire(),
            Ring::Retired(retired) => retired,
            Ring::Reserve(reserve) => return self.open(reserve, begins.data),
            Ring::None => return Ok(false),
        };
        match retired.reclaim() {
            Ok(reserve) => self.open(reserve, begins.data),
            Err(retired) => {
                self.ring = Ring::Retired(retired);
                Ok(false)
            }
        }
    }

    fn open(&mut self, reserve: Reserve, data: usize) -> Result<bool, String> {
        let (producer, consumer) = reserve
            .ring(data, EVENTS)
            .map_err(|error| error.to_string())?;
        // If the consumer has ended, the program is ending.
        let missing = std::mem::take(&mut self.missing);
        let _ = self.to_consumer.send((consumer, missing));
        self.ring = Ring::Open(Open {
            producer,
            slot: data,
            freed: 0,
            unsent: None,
        });
        Ok(true)
    }

    /// Releases the positions below `handed`. Queues events first, so that the consumer has them when it reaches their positions.
    /// Returns whether all events fitted.
    fn hand_on(&mut self, handed: u64) -> bool {
        let Ring::Open(open) = &mut self.ring else {
            return true;
        };
        loop {
            if open.unsent.is_none() {
                open.unsent = self.admission.next_event();
            }
            let Some((position, event)) = open.unsent else {
                break;
            };
            if open.producer.tell(position, event).is_err() {
                open.producer.publish(position);
                return false;
            }
            open.unsent = None;
        }
        open.producer.publish(handed);
        true
    }

    pub fn show(&self, live: &mut Snapshot) {
        let admission = &self.admission;
        let mut counters = admission.counters();
        let unknown = self.safe.as_ref().map_or(0, SafeReceiving::unknown);
        counters.expected = counters.expected.saturating_sub(unknown);
        counters.lost = counters.lost.saturating_sub(unknown);
        live.safe = self.safe.as_ref().map(SafeReceiving::state);
        live.foreign_size = admission.foreign_size();
        live.foreign_source = admission.foreign_source();
        live.foreign_header = admission.foreign_header();
        live.undecided = admission.undecided();
        live.bytes = admission.bytes();
        if let Ring::Open(open) = &self.ring {
            live.ring_fill = open.producer.gauge().fill();
        }
        live.socket_drops_within = self.drops_within();
        live.attribution = self.attribution(&counters);
        live.counters = counters;
    }

    fn drops_within(&self) -> u64 {
        self.overflow.saturating_sub(self.overflow_before)
    }

    /// Returns the location of the losses, from the socket drops between the first and the last datagram.
    fn attribution(&self, counters: &Counters) -> Attribution {
        attribute(
            counters.lost,
            counters.ring_full,
            self.drops_within(),
            self.per_drop(),
        )
    }

    /// Returns the maximum number of datagrams of one drop of the sockets.
    fn per_drop(&self) -> u64 {
        match self.max_joined {
            0 | 1 => 1,
            _ => udp::max_joined(self.admission.data().unwrap_or(1)),
        }
    }

    /// Ends the intake: starts the stream that is left, and releases everything.
    ///
    /// # Errors
    /// Returns an error if the ring cannot be allocated.
    pub fn end(&mut self, now: Nanos, clock: &Clock) -> Result<(), String> {
        self.admission.end(now);
        if let Some(safe) = &mut self.safe {
            safe.end();
        }
        for _ in 0..POLLS {
            self.begin()?;
            if self.admission.beginning().is_none() {
                break;
            }
            clock.wait(&[], clock.now().plus(POLL_INTERVAL), Waiting::Sleep);
        }
        let freed = self.ring.freed();
        let ring = &mut self.ring;
        let mut place = |position: u64, data: &[u8]| ring.place(position, data);
        let handed = self.admission.finish(freed, &mut place);
        self.hand_on(handed);
        Ok(())
    }

    pub fn report(self, report: ReceiveReport) -> ReceiveReport {
        let seconds = |stamp: std::time::Duration| stamp.as_secs_f64();
        let [first_arrival, last_arrival] = self.admission.stamps().map(|it| it.map(seconds));
        ReceiveReport {
            refused: self.admission.refused().to_vec(),
            sender: self.admission.sender(),
            datagram_data: self.admission.data(),
            first_arrival,
            last_arrival,
            most_joined: self.max_joined,
            ring_slots: match &self.ring {
                Ring::Open(open) => open.producer.capacity(),
                _ => 0,
            },
            account: self.admission.report(),
            ..report
        }
    }
}

impl Ring {
    /// Returns the positions that the consumer has freed, as of this batch.
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
    /// Returns the bytes of data that fit behind the released positions.
    fn room(&mut self) -> u64 {
        let end = self.producer.freed() + self.producer.capacity();
        (end - self.producer.published()) * self.slot as u64
    }

    /// Refuses only if window and ring disagree about what is released or free.
    #[inline]
    fn place(&mut self, position: u64, data: &[u8]) {
        let placed = self.producer.place(position, data);
        debug_assert_eq!(placed, Ok(()));
    }
}

#[cfg(test)]
mod instructions;
