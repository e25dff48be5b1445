//! The ring between the receiving and the writing thread. A datagram's sequence number decides its place; data leaves in spans of any
//! length, for one large write each.
//!
//! A *slot* holds the data of one datagram. A *position* counts slots from the start of the stream and only grows; its slot is
//! `position % capacity`. The memory is mapped twice in a row, so that a span of up to `capacity` slots is contiguous wherever it
//! starts.
//!
//! This module contains the protocol between writer and reader; [`evlbi_core::reorder`] decides where a datagram goes.
//!
//! ```text
//!            freed                handed                  freed + capacity
//!              |  consumer's span   |   producer places here     |
//! position ----+--------------------+----------------------------+----> not yet: the ring is full
//! ```
//!
//! The producer never waits: what does not fit is refused, and the caller counts it. Neither side locks or allocates.

mod cursors;
mod events;
mod memory;
mod sync;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cursors::{ReadEnd, WriteEnd};
use events::{EventReader, EventWriter};
use memory::Mirror;

pub use memory::available;

/// Reason why a ring could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// Empty slots, or slots larger than the ring.
    #[error("slots of {slot} bytes do not fit a ring of {bytes} bytes")]
    Size {
        /// Slot size in bytes.
        slot: usize,
        /// Ring size in bytes.
        bytes: usize,
    },
    /// The kernel does not provide the memory.
    #[error("cannot get {bytes} bytes of memory for the ring: {source}")]
    Memory {
        /// Requested bytes.
        bytes: usize,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Reason why a datagram was not placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Its slot still holds an earlier position that the consumer has not freed.
    Full,
    /// Its position was already released to the consumer.
    HandedOn,
    /// Its length differs from the slot size.
    Length,
}

/// Slot size in bytes that limits the number of slots to the ring size divided by it: the state of each tiny slot would take more
/// memory than its data.
const MIN_SLOT: usize = 64;
/// Number of slots that is always allowed.
const ALWAYS_SLOTS: usize = 1 << 16;

/// Memory for a ring whose slot size is not known yet. It is touched and mapped in advance, which is slow, so that the ring can be
/// created instantly when the stream starts.
pub struct Reserve(Mirror);

impl Reserve {
    /// Allocates at least `bytes` of memory.
    ///
    /// # Errors
    /// Returns [`RingError::Memory`] if it cannot be allocated.
    pub fn new(bytes: usize) -> Result<Reserve, RingError> {
        Reserve::of(bytes, Mirror::new)
    }

    /// Allocates memory like [`Reserve::new`], but touches each page only when it is needed: in virtual time this costs nothing.
    ///
    /// # Errors
    /// Returns [`RingError::Memory`] if it cannot be allocated.
    pub fn untouched(bytes: usize) -> Result<Reserve, RingError> {
        Reserve::of(bytes, Mirror::untouched)
    }

    fn of(bytes: usize, make: fn(usize) -> io::Result<Mirror>) -> Result<Reserve, RingError> {
        let memory_error = |source| RingError::Memory { bytes, source };
        let whole = bytes
            .checked_next_multiple_of(memory::page())
            // Mapped twice, and slices have at most isize::MAX bytes.
            .filter(|whole| *whole > 0 && *whole <= isize::MAX as usize / 2)
            .ok_or_else(|| memory_error(io::ErrorKind::OutOfMemory.into()))?;
        make(whole).map(Reserve).map_err(memory_error)
    }

    /// Creates a ring of slots of `slot` bytes, as many as the memory holds, with a queue of this many events to the consumer. `T` is
    /// an event that accompanies the data, such as a gap or a restart.
    ///
    /// # Errors
    /// Returns [`RingError::Size`] if not even one slot fits.
    pub fn ring<T: Copy + Send>(
        self,
        slot: usize,
        events: usize,
    ) -> Result<(Producer<T>, Consumer<T>), RingError> {
        let bytes = self.0.length();
        let Some(capacity) = bytes.checked_div(slot).filter(|slots| *slots > 0) else {
            return Err(RingError::Size { slot, bytes });
        };
        let capacity = capacity.min((bytes / MIN_SLOT).max(ALWAYS_SLOTS));
        let present = (0..capacity).map(|_| AtomicBool::new(false)).collect();
        Ok(self.pair(slot, capacity, present, events))
    }

    /// Creates a ring for a byte stream without gaps: each byte is a slot.
    pub fn stream<T: Copy + Send>(self, events: usize) -> (Producer<T>, Consumer<T>) {
        let capacity = self.0.length();
        self.pair(1, capacity, Box::default(), events)
    }

    fn pair<T: Copy + Send>(
        self,
        slot: usize,
        capacity: usize,
        present: Box<[AtomicBool]>,
        events: usize,
    ) -> (Producer<T>, Consumer<T>) {
        let shared = Arc::new(Shared {
            memory: self.0,
            slot,
            present,
        });
        let (write, read) = cursors::pair(capacity as u64);
        let (event_writer, event_reader) = events::queue(events);
        let producer = Producer {
            write,
            shared: Arc::clone(&shared),
            events: event_writer,
        };
        let consumer = Consumer {
            read,
            shared,
            events: event_reader,
        };
        (producer, consumer)
    }
}

struct Shared {
    memory: Mirror,
    slot: usize,
    /// For each slot whether a datagram was placed in it; empty for byte streams, whose slots are always filled. The owner of a slot
    /// owns its flag, and both change hands together, so the accesses need no ordering of their own.
    present: Box<[AtomicBool]>,
}

impl Shared {
    /// Returns the offset of a slot. Positions follow one another around the memory, whose length need not be a multiple of the slot
    /// size: as many positions as there are slots never overlap.
    fn start(&self, position: u64) -> usize {
        (position.wrapping_mul(self.slot as u64) % self.memory.length() as u64) as usize
    }

    fn present(&self, position: u64) -> &AtomicBool {
        &self.present[(position % self.present.len() as u64) as usize]
    }
}

/// The receiving thread's end of a ring.
pub struct Producer<T> {
    write: WriteEnd,
    shared: Arc<Shared>,
    events: EventWriter<T>,
}

impl<T: Copy> Producer<T> {
    /// Returns the number of slots of the ring.
    pub fn capacity(&self) -> u64 {
        self.write.capacity()
    }

    /// Returns the end of the positions that the consumer has freed.
    pub fn freed(&mut self) -> u64 {
        self.write.freed()
    }

    /// Ends the ring. The consumer keeps the positions that were released to it.
    pub fn retire(self) -> Retired {
        Retired(self.shared)
    }

    /// Copies the data of a datagram to its position.
    ///
    /// # Errors
    /// Returns [`Refused`] if its position is already released, or not free yet.
    #[inline]
    pub fn place(&mut self, position: u64, data: &[u8]) -> Result<(), Refused> {
        if data.len() != self.shared.slot {
            return Err(Refused::Length);
        }
        if position < self.write.published() {
            return Err(Refused::HandedOn);
        }
        if !self.write.may_write(position) {
            return Err(Refused::Full);
        }
        let start = self.shared.start(position);
        // SAFETY: the position is neither released to the consumer nor beyond what the consumer has freed, so its slot belongs to this
        // producer, and `&mut self` makes this the only access.
        let slot = unsafe { self.shared.memory.slice_mut(start, self.shared.slot) };
        slot.copy_from_slice(data);
        self.shared.present(position).store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the free memory of a byte stream, in one piece. [`Producer::publish`] releases what is written to its front.
    pub fn room(&mut self) -> &mut [u8] {
        let first = self.write.published();
        let end = self.write.freed() + self.write.capacity();
        let start = self.shared.start(first);
        let slots = match self.shared.present.is_empty() {
            true => (end - first) as usize,
            // Slots with flags are written one by one.
            false => 0,
        };
        // SAFETY: these positions are neither released to the consumer nor beyond what the consumer has freed, so they belong to this
        // producer, and `&mut self` makes this the only access. They are at most as many as there are bytes, so that no byte is in the
        // slice twice.
        unsafe { self.shared.memory.slice_mut(start, slots) }
    }

    /// Returns the end of the released positions.
    pub fn published(&self) -> u64 {
        self.write.published()
    }

    /// Releases all positions below `handed` to the consumer, including those without a datagram, as far as there are slots for them.
    /// Returns the new end of the released positions, which never moves back.
    pub fn publish(&mut self, handed: u64) -> u64 {
        self.write.publish(handed)
    }

    /// Queues an event for the place before `position`. Queue it before the position is published, so that the consumer gets it in
    /// time.
    ///
    /// # Errors
    /// Returns the event if the queue is full.
    pub fn tell(&mut self, position: u64, event: T) -> Result<(), T> {
        self.events.push(position, event)
    }

    /// Returns a gauge of the ring's fill, for progress reports.
    pub fn gauge(&self) -> Gauge {
        Gauge(self.write.gauge())
    }
}

/// The memory of a ring that has ended; the consumer may still read it.
pub struct Retired(Arc<Shared>);

impl Retired {
    /// Returns the memory, for another ring.
    ///
    /// # Errors
    /// Returns itself while the consumer still exists.
    pub fn reclaim(self) -> Result<Reserve, Retired> {
        Arc::try_unwrap(self.0)
            .map(|shared| Reserve(shared.memory))
            .map_err(Retired)
    }
}

/// Gauge of a ring's fill.
#[derive(Clone)]
pub struct Gauge(cursors::Gauge);

impl Gauge {
    /// Returns the fraction of the slots that wait for the consumer, 0 to 1.
    pub fn fill(&self) -> f64 {
        self.0.used() as f64 / self.0.capacity() as f64
    }
}

/// The consuming thread's end of a ring.
pub struct Consumer<T> {
    read: ReadEnd,
    shared: Arc<Shared>,
    events: EventReader<T>,
}

/// Slots that were released to the consumer and have not been freed.
pub struct Span<'a> {
    /// Position of the first slot.
    pub first: u64,
    /// All slots in order. Those without a datagram contain older data.
    pub data: &'a mut [u8],
    /// Flags of the slots that hold a datagram.
    pub presence: Presence<'a>,
}

/// Flags of a [`Span`]'s positions: whether a datagram was placed there.
#[derive(Clone, Copy)]
pub struct Presence<'a> {
    shared: &'a Shared,
    first: u64,
    end: u64,
}

impl Presence<'_> {
    /// Returns whether `position` holds a datagram; false outside the span.
    pub fn at(&self, position: u64) -> bool {
        let is_present = || self.shared.present(position).load(Ordering::Relaxed);
        (self.first..self.end).contains(&position)
            && (self.shared.present.is_empty() || is_present())
    }
}

impl<T: Copy> Consumer<T> {
    /// Returns the number of slots of the ring.
    pub fn capacity(&self) -> u64 {
        self.read.capacity()
    }

    /// Returns the slot size in bytes.
    pub fn slot(&self) -> usize {
        self.shared.slot
    }

    /// Returns whether it holds a byte stream without gaps.
    pub fn is_stream(&self) -> bool {
        self.shared.present.is_empty()
    }

    /// Returns everything that was released and not freed; empty if there is nothing. Returns at once.
    pub fn span(&mut self) -> Span<'_> {
        let positions = self.read.readable();
        let slots = (positions.end - positions.start) as usize;
        let start = self.shared.start(positions.start);
        // SAFETY: these positions were released to this consumer and not freed, so the producer does not touch them, and the borrow of
        // `self` makes this the only access. They are at most as many as there are slots, so that no byte is in the span twice.
        let data = unsafe {
            self.shared
                .memory
                .slice_mut(start, slots * self.shared.slot)
        };
        Span {
            first: positions.start,
            data,
            presence: Presence {
                shared: &self.shared,
                first: positions.start,
                end: positions.end,
            },
        }
    }

    /// Returns the slots of all positions below `position` to the producer, as far as the last span held them.
    pub fn free(&mut self, position: u64) {
        if !self.is_stream() {
            for freed in self.read.held_below(position) {
                self.shared.present(freed).store(false, Ordering::Relaxed);
            }
        }
        self.read.free(position);
    }

    /// Returns the next event and the position before which it happened, without taking it. Call it after [`Consumer::span`]: it then
    /// returns every event that belongs to the span.
    pub fn event(&mut self) -> Option<(u64, T)> {
        self.events.peek()
    }

    /// Takes the event that [`Consumer::event`] returned.
    pub fn take_event(&mut self) {
        self.events.take();
    }

    /// Returns whether the producer has ended: nothing more will be released.
    pub fn is_closed(&self) -> bool {
        self.read.is_closed()
    }

    /// Returns whether the producer has ended and everything that it released is freed.
    pub fn is_finished(&mut self) -> bool {
        self.read.is_finished()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn small(slot: usize, slots: usize) -> (Producer<u8>, Consumer<u8>) {
        Reserve::new(slot * slots).unwrap().ring(slot, 4).unwrap()
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let reserve = || Reserve::new(4096).unwrap();
        assert!(matches!(
            reserve().ring::<u8>(0, 1),
            Err(RingError::Size { .. })
        ));
        assert!(matches!(
            reserve().ring::<u8>(4097, 1),
            Err(RingError::Size { .. })
        ));
        assert!(matches!(
            Reserve::new(usize::MAX),
            Err(RingError::Memory { .. })
        ));
        assert!(matches!(Reserve::new(0), Err(RingError::Memory { .. })));
        let (producer, _consumer) = reserve().ring::<u8>(1464, 1).unwrap();
        assert_eq!(producer.capacity(), 2);
    }

    #[test]
    fn slots_that_do_not_divide_the_memory_stay_apart() {
        for slot in [1, 3, 1000, 1464, 4095] {
            let (mut producer, mut consumer) =
                Reserve::new(8192).unwrap().ring::<u8>(slot, 1).unwrap();
            let capacity = producer.capacity();
            for round in 0..5 {
                for position in round * capacity..(round + 1) * capacity {
                    producer
                        .place(position, &vec![position as u8; slot])
                        .unwrap();
                }
                producer.publish((round + 1) * capacity);
                let span = consumer.span();
                for (position, data) in (span.first..).zip(span.data.chunks(slot)) {
                    assert!(data.iter().all(|byte| *byte == position as u8));
                }
                consumer.free((round + 1) * capacity);
            }
        }
    }

    #[test]
    fn tiny_slots_do_not_take_more_memory_than_the_ring() {
        let (producer, _consumer) = Reserve::new(16 << 20).unwrap().ring::<u8>(1, 1).unwrap();
        assert_eq!(producer.capacity(), (16 << 20) / 64);
    }

    #[test]
    fn the_memory_of_a_ring_that_has_ended_is_there_for_another() {
        let (mut producer, mut consumer) = small(2048, 4);
        producer.place(0, &[7; 2048]).unwrap();
        producer.publish(1);
        let retired = producer.retire();
        assert!(consumer.is_closed());
        let retired = retired.reclaim().err().expect("the consumer reads in it");
        assert_eq!(consumer.span().data, [7; 2048]);
        drop(consumer);
        let reserve = retired.reclaim().ok().expect("nobody has it");
        let (producer, mut consumer) = reserve.ring::<u8>(1024, 4).unwrap();
        assert_eq!(producer.capacity(), 8);
        assert_eq!(consumer.span().data.len(), 0);
    }

    #[test]
    fn a_stream_of_bytes_is_contiguous_wherever_it_starts() {
        let (mut producer, mut consumer) = Reserve::new(4096).unwrap().stream::<u8>(1);
        let (mut written, mut read) = (0u64, 0u64);
        let mut state = 1u32;
        while read < 50_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let wanted = (state >> 20) as usize;
            let room = producer.room();
            let count = wanted.min(room.len());
            for (byte, number) in room.iter_mut().zip(written..).take(count) {
                *byte = (number % 251) as u8;
            }
            written += count as u64;
            assert_eq!(producer.publish(written), written);
            let span = consumer.span();
            assert_eq!((span.first, span.data.len() as u64), (read, written - read));
            for (byte, number) in span.data.iter().zip(read..) {
                assert_eq!(*byte, (number % 251) as u8);
            }
            read += (span.data.len() * 2 / 3) as u64;
            consumer.free(read);
        }
        assert!(written <= read + 4096);
        let (mut slots, _consumer) = small(2048, 4);
        assert!(slots.room().is_empty());
    }

    #[test]
    fn spans_are_contiguous_across_the_end() {
        let (mut producer, mut consumer) = small(2048, 4);
        assert_eq!(producer.capacity(), 4);
        for position in 0..1000u64 {
            producer.place(position, &[position as u8; 2048]).unwrap();
            producer.publish(position + 1);
            if position % 4 == 3 {
                // Keep one slot, so that spans start anywhere.
                let span = consumer.span();
                let (first, slots) = (span.first, span.data.len() / 2048);
                for (n, slot) in span.data.chunks(2048).enumerate() {
                    assert!(slot.iter().all(|&byte| byte == (first + n as u64) as u8));
                }
                consumer.free(first + slots as u64);
            } else if position % 7 == 0 {
                let first = consumer.span().first;
                consumer.free(first + 1);
            }
        }
    }

    #[test]
    fn the_producer_is_refused_and_never_waits() {
        let (mut producer, mut consumer) = small(4096, 2);
        let data = [7; 4096];
        assert_eq!(producer.place(0, &data[1..]), Err(Refused::Length));
        assert_eq!(producer.place(2, &data), Err(Refused::Full));
        assert_eq!(producer.place(u64::MAX, &data), Err(Refused::Full));
        assert_eq!(producer.place(1, &data), Ok(()));
        assert_eq!(producer.publish(1), 1);
        assert_eq!(producer.place(0, &data), Err(Refused::HandedOn));
        // Nothing beyond the slots can be released, and a release is final.
        assert_eq!(producer.publish(10), 2);
        assert_eq!(producer.publish(0), 2);
        assert_eq!(producer.place(2, &data), Err(Refused::Full));
        let span = consumer.span();
        assert_eq!((span.first, span.data.len()), (0, 8192));
        assert!(!span.presence.at(0) && span.presence.at(1));
        assert!(!span.presence.at(2) && !span.presence.at(u64::MAX));
        consumer.free(1);
        assert_eq!(producer.publish(10), 3);
        consumer.free(u64::MAX);
        let span = consumer.span();
        assert_eq!((span.first, span.data.len()), (2, 4096));
        assert!(!span.presence.at(2));
    }

    #[test]
    fn the_end_is_seen_after_the_last_slot() {
        let (mut producer, mut consumer) = small(4096, 2);
        assert!(!consumer.is_finished());
        producer.place(0, &[1; 4096]).unwrap();
        producer.publish(1);
        let gauge = producer.gauge();
        assert!((gauge.fill() - 0.5).abs() < 1e-9);
        drop(producer);
        assert!(!consumer.is_finished());
        assert_eq!(consumer.span().data.len(), 4096);
        consumer.free(1);
        assert!(consumer.is_finished());
    }

    #[test]
    fn events_arrive_in_order_and_too_many_are_returned() {
        let (mut producer, mut consumer) = small(4096, 2);
        for n in 0..4u8 {
            assert_eq!(producer.tell(u64::from(n) * 10, n), Ok(()));
        }
        assert_eq!(producer.tell(50, 9), Err(9));
        for n in 0..4u8 {
            assert_eq!(consumer.event(), Some((u64::from(n) * 10, n)));
            consumer.take_event();
        }
        assert_eq!(consumer.event(), None);
    }

    /// Returns a datagram of four bytes that contains its position.
    fn datagram(position: u64) -> [u8; 4] {
        (position as u32).wrapping_mul(2_654_435_761).to_le_bytes()
    }

    #[derive(Clone, Debug)]
    enum Step {
        Place(u64),
        Publish(u64),
        Free(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..1500u64).prop_map(Step::Place),
            2 => (0..700u64).prop_map(Step::Publish),
            2 => (0..900u64).prop_map(Step::Free),
        ]
    }

    proptest! {
        /// Compares the ring with a queue of all positions not yet freed, the front part of which is released.
        #[test]
        fn behaves_as_a_queue(steps in proptest::collection::vec(step(), 1..300)) {
            let (mut producer, mut consumer) = small(4, 1024);
            let capacity = producer.capacity();
            prop_assert_eq!(capacity, 1024);
            let mut oracle: VecDeque<bool> = std::iter::repeat_n(false, 1024).collect();
            let (mut freed, mut handed) = (0u64, 0u64);
            for step in steps {
                match step {
                    Step::Place(ahead) => {
                        let position = (handed + ahead).saturating_sub(100);
                        let expected = if position < handed {
                            Err(Refused::HandedOn)
                        } else if position >= freed + capacity {
                            Err(Refused::Full)
                        } else {
                            oracle[(position - freed) as usize] = true;
                            Ok(())
                        };
                        prop_assert_eq!(producer.place(position, &datagram(position)), expected);
                    }
                    Step::Publish(ahead) => {
                        handed = (handed + ahead).min(freed + capacity);
                        prop_assert_eq!(producer.publish(handed), handed);
                    }
                    Step::Free(count) => {
                        let span = consumer.span();
                        prop_assert_eq!(span.first, freed);
                        prop_assert_eq!(span.data.len() as u64, 4 * (handed - freed));
                        for (position, data) in (freed..).zip(span.data.chunks(4)) {
                            let present = oracle[(position - freed) as usize];
                            prop_assert_eq!(span.presence.at(position), present);
                            prop_assert!(!present || data == datagram(position));
                        }
                        let until = (freed + count).min(handed);
                        consumer.free(until);
                        for _ in freed..until {
                            oracle.pop_front();
                            oracle.push_back(false);
                        }
                        freed = until;
                    }
                }
            }
        }
    }

    #[test]
    fn two_threads_pass_a_stream_with_gaps() {
        const DATAGRAMS: u64 = 200_000;
        let is_missing = |position: u64| position % 97 == 13;
        let (mut producer, mut consumer) = small(16, 2048);
        let receive = move || {
            let mut refused = 0u64;
            let mut position = 0;
            while position < DATAGRAMS {
                let mut data = [0; 16];
                data[..8].copy_from_slice(&position.to_le_bytes());
                if !is_missing(position) && producer.place(position, &data).is_err() {
                    // The real producer drops and counts; here every datagram must arrive.
                    refused += 1;
                    producer.publish(position);
                    std::thread::yield_now();
                    continue;
                }
                position += 1;
                if position.is_multiple_of(64) {
                    producer.publish(position);
                }
            }
            while producer.publish(DATAGRAMS) < DATAGRAMS {
                std::thread::yield_now();
            }
            refused
        };
        let receiver = std::thread::spawn(receive);
        let mut next = 0;
        while !consumer.is_finished() {
            let span = consumer.span();
            assert_eq!(span.first, next);
            for data in span.data.chunks(16) {
                let present = span.presence.at(next);
                assert_eq!(present, !is_missing(next));
                assert!(!present || data[..8] == next.to_le_bytes());
                next += 1;
            }
            consumer.free(next);
        }
        receiver.join().unwrap();
        assert_eq!(next, DATAGRAMS);
    }
}
