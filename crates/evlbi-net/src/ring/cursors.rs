//! Ownership of positions: two counters that only grow, one moved by each side.
//!
//! The writer owns `written..freed + capacity`, the reader `freed..written`. A side gives positions away by moving its own counter with
//! release order, after its last access to them. The other side reads that counter with acquire order, before its first access. No
//! position has two owners.

use std::ops::Range;

use super::sync::{Arc, AtomicBool, AtomicU64, Ordering};

/// Two cache lines, because CPUs fetch them in pairs: the sides must not slow each other down.
#[repr(align(128))]
struct Apart<T>(T);

struct Cursors {
    written: Apart<AtomicU64>,
    freed: Apart<AtomicU64>,
    closed: AtomicBool,
    capacity: u64,
}

/// Creates both ends of a ring of `capacity` positions, all of them the writer's.
pub(super) fn pair(capacity: u64) -> (WriteEnd, ReadEnd) {
    let shared = Arc::new(Cursors {
        written: Apart(AtomicU64::new(0)),
        freed: Apart(AtomicU64::new(0)),
        closed: AtomicBool::new(false),
        capacity,
    });
    let write = WriteEnd {
        shared: Arc::clone(&shared),
        written: 0,
        limit: capacity,
    };
    let read = ReadEnd {
        shared,
        written: 0,
        freed: 0,
    };
    (write, read)
}

pub(super) struct WriteEnd {
    shared: Arc<Cursors>,
    written: u64,
    /// `freed + capacity` as last read: the real limit may be higher.
    limit: u64,
}

impl WriteEnd {
    pub(super) fn capacity(&self) -> u64 {
        self.shared.capacity
    }

    /// Returns the end of the reader's positions.
    pub(super) fn published(&self) -> u64 {
        self.written
    }

    /// Returns whether a position that is not published may be written to.
    #[inline]
    pub(super) fn may_write(&mut self, position: u64) -> bool {
        position < self.limit || position < self.refresh()
    }

    /// Gives all positions below `end` to the reader, as far as the writer owns them; returns how far.
    pub(super) fn publish(&mut self, end: u64) -> u64 {
        let end = if end <= self.limit {
            end
        } else {
            end.min(self.refresh())
        };
        if end > self.written {
            self.written = end;
            self.shared.written.0.store(end, Ordering::Release);
        }
        self.written
    }

    /// Returns the end of the positions that the reader has freed by now.
    pub(super) fn freed(&mut self) -> u64 {
        self.refresh() - self.shared.capacity
    }

    pub(super) fn gauge(&self) -> Gauge {
        Gauge(Arc::clone(&self.shared))
    }

    fn refresh(&mut self) -> u64 {
        let freed = self.shared.freed.0.load(Ordering::Acquire);
        self.limit = freed.saturating_add(self.shared.capacity);
        self.limit
    }
}

impl Drop for WriteEnd {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
    }
}

pub(super) struct ReadEnd {
    shared: Arc<Cursors>,
    /// As last read: more may have been written.
    written: u64,
    freed: u64,
}

impl ReadEnd {
    pub(super) fn capacity(&self) -> u64 {
        self.shared.capacity
    }

    /// Returns the positions that the reader owns now.
    pub(super) fn readable(&mut self) -> Range<u64> {
        self.written = self.shared.written.0.load(Ordering::Acquire);
        self.freed..self.written
    }

    /// Returns the positions below `end` that the reader owned when it last read the counter.
    pub(super) fn held_below(&self, end: u64) -> Range<u64> {
        self.freed..end.min(self.written)
    }

    /// Returns these positions to the writer.
    pub(super) fn free(&mut self, end: u64) {
        let end = end.min(self.written);
        if end > self.freed {
            self.freed = end;
            self.shared.freed.0.store(end, Ordering::Release);
        }
    }

    /// Returns whether the writer has ended. Later reads see everything that it published before.
    pub(super) fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    /// Returns whether the writer has ended and everything it published is freed.
    pub(super) fn is_finished(&mut self) -> bool {
        // In this order, reads see what was written before closing.
        self.is_closed() && self.readable().is_empty()
    }
}

/// Reader of both counters in a third place.
#[derive(Clone)]
pub(super) struct Gauge(Arc<Cursors>);

impl Gauge {
    pub(super) fn capacity(&self) -> u64 {
        self.0.capacity
    }

    /// Returns the number of positions written and not freed, as of a moment ago.
    pub(super) fn used(&self) -> u64 {
        // In this order, so that the difference is never negative.
        let freed = self.0.freed.0.load(Ordering::Acquire);
        let written = self.0.written.0.load(Ordering::Acquire);
        (written - freed).min(self.0.capacity)
    }
}

#[cfg(all(test, loom))]
mod every_interleaving {
    use super::super::sync::UnsafeCell;
    use super::*;

    /// Plain memory instead of the mirrored mapping; loom sees every access to it.
    struct Slots(Vec<UnsafeCell<u64>>);

    // SAFETY: the cursors give each slot to one thread at a time, which loom checks.
    unsafe impl Sync for Slots {}

    #[test]
    fn no_slot_has_two_owners_and_nothing_is_lost() {
        const POSITIONS: u64 = 3;
        const CAPACITY: u64 = 2;
        loom::model(|| {
            let slots = Arc::new(Slots((0..CAPACITY).map(|_| UnsafeCell::new(0)).collect()));
            let (mut write, mut read) = pair(CAPACITY);
            let gauge = write.gauge();
            let writer = {
                let slots = Arc::clone(&slots);
                loom::thread::spawn(move || {
                    for position in 0..POSITIONS {
                        while !write.may_write(position) {
                            loom::thread::yield_now();
                        }
                        slots.0[(position % CAPACITY) as usize]
                            // SAFETY: `may_write` has confirmed that the slot is the writer's.
                            .with_mut(|slot| unsafe { *slot = position + 1 });
                        assert_eq!(write.publish(position + 1), position + 1);
                    }
                })
            };
            let mut next = 0;
            while !read.is_finished() {
                for position in read.readable() {
                    let value = slots.0[(position % CAPACITY) as usize]
                        // SAFETY: `readable` has confirmed that the slot is the reader's.
                        .with(|slot| unsafe { *slot });
                    assert_eq!(position, next);
                    assert_eq!(value, position + 1);
                    next += 1;
                }
                assert!(gauge.used() <= CAPACITY);
                read.free(next);
                loom::thread::yield_now();
            }
            assert_eq!(next, POSITIONS);
            writer.join().unwrap();
        });
    }
}
