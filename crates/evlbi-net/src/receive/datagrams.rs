//! Datagrams on their way into the ring: admitted, placed by their numbers, handed on.
//!
//! Here belongs what happens to each datagram, without a lock and without memory of its own.

use std::io;
use std::sync::mpsc;

use evlbi_core::account::{Attribution, Counters, attribute};
use evlbi_core::admission::{Admission, Arrival, Begins, Settings, Taken};
use evlbi_core::reorder::Event;
use evlbi_core::time::Nanos;

use crate::clock::Clock;
use crate::cpu::Waiting;
use crate::ring::{Consumer, Producer, Reserve, Retired};
use crate::transport::{Batch, Incoming, Service};
use crate::udp;

use super::{Came, ReceiveOptions, ReceiveReport, SHOW, Snapshot};

/// Events that may wait for the consumer.
const EVENTS: usize = 1024;
/// Undecided datagrams take at most this part of the ring's size.
const KEPT_PART: usize = 4;
/// How often it is looked at the end whether the consumer has left the ring before.
const POLLS: u32 = 100;
/// Time between two such looks.
const POLL_INTERVAL: Nanos = Nanos(10_000_000);
/// Least room in the ring, in bytes, at which a reliable transport is read: more than one of its batches.
const ROOM: usize = 2 << 20;

/// What datagrams go through.
pub struct Datagrams {
    admission: Admission,
    ring: Ring,
    to_consumer: mpsc::Sender<(Consumer<Event>, u64)>,
    /// Bytes that would have come since the stream before, whose ring is over.
    missing: u64,
    is_reliable: bool,
    /// When a look at what waits began, and how much of it is to be taken yet.
    sweep: Option<(Nanos, u64)>,
    swept: Nanos,
    most_joined: u64,
    is_heard: bool,
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
    slot: usize,
    /// Positions that the consumer has freed, as of this batch.
    freed: u64,
    /// The event that the consumer had no room for.
    untold: Option<(u64, Event)>,
}

impl Datagrams {
    pub fn new(
        options: ReceiveOptions,
        service: Service,
        ports: usize,
        reserve: Reserve,
        to_consumer: mpsc::Sender<(Consumer<Event>, u64)>,
    ) -> Datagrams {
        let settings = Settings {
            only: options.with.only,
            ports,
            window: options.window,
            // What is missing was never sent: all that was sent arrives, in order.
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
            sweep: None,
            swept: Nanos(0),
            most_joined: 0,
            is_heard: false,
            overflow_before: 0,
            overflow: 0,
        }
    }

    /// Whether a batch of a reliable transport fits; any other is read anyhow, and what does not fit is counted.
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
        came.taken = taken;
        came.is_closed = self.is_reliable
            && self
                .admission
                .sender()
                .is_some_and(|sender| incoming.has_ended(sender));
        let told = incoming.drops_told();
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

    /// Finds out until when all that had come is taken, although more may come all the time: only then nothing of the stream waits
    /// that came before.
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
        self.most_joined = self.most_joined.max(batch.most_joined());
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
                Taken::Stream => came.is_stream = true,
                Taken::Pending { promising } => came.is_heard |= promising,
                Taken::Foreign => {}
                Taken::Begins => {
                    // The rest of the batch may already be the stream's. What fails shows when the batch is through.
                    let _ = self.begin();
                    came.is_stream = true;
                }
            }
        }
        came
    }

    /// Begins a stream that has won, and hands on what can be handed on.
    ///
    /// # Errors
    /// When the ring cannot be had.
    pub fn advance(&mut self, now: Nanos) -> Result<(), String> {
        self.begin()?;
        let handed = self.admission.advance(now);
        self.hand_on(handed);
        Ok(())
    }

    /// Begins the stream that has won, if there is one and its ring can be had.
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

    /// Makes a ring for datagrams of this size and gives its other end to the consumer, when that has left the ring before.
    /// Says whether it is there.
    fn resize(&mut self, begins: Begins) -> Result<bool, String> {
        // The stream that is over tells what is missing, so once only.
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
        // The consumer gone means that the program is ending.
        let missing = std::mem::take(&mut self.missing);
        let _ = self.to_consumer.send((consumer, missing));
        self.ring = Ring::Open(Open {
            producer,
            slot: data,
            freed: 0,
            untold: None,
        });
        Ok(true)
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

    pub fn show(&self, live: &mut Snapshot) {
        let admission = &self.admission;
        let counters = admission.counters();
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

    /// Where the lost were lost, by what the sockets dropped between the first and the last datagram.
    fn attribution(&self, counters: &Counters) -> Attribution {
        let per_drop = match self.most_joined {
            0 | 1 => 1,
            _ => udp::most_joined(self.admission.data().unwrap_or(1)),
        };
        attribute(
            counters.lost,
            counters.ring_full,
            self.drops_within(),
            per_drop,
        )
    }

    /// No more comes: what is left begins, and everything is handed on.
    ///
    /// # Errors
    /// When the ring cannot be had.
    pub fn end(&mut self, now: Nanos, clock: &Clock) -> Result<(), String> {
        self.admission.end(now);
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
            most_joined: self.most_joined,
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
    /// Bytes of data for which there is room behind what is handed on.
    fn room(&mut self) -> u64 {
        let end = self.producer.freed() + self.producer.capacity();
        (end - self.producer.published()) * self.slot as u64
    }

    /// Refused only if the window and the ring disagreed about what is handed on or free.
    #[inline]
    fn place(&mut self, position: u64, data: &[u8]) {
        let placed = self.producer.place(position, data);
        debug_assert_eq!(placed, Ok(()));
    }
}

#[cfg(test)]
mod instructions;
