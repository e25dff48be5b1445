//! A bounded queue of events from producer to consumer that accompany the data.

use std::mem::MaybeUninit;

use super::cursors::{self, ReadEnd, WriteEnd};
use super::sync::{Arc, UnsafeCell};

/// Creates both ends of a queue for up to `capacity` events, at least one.
pub(super) fn queue<T: Copy>(capacity: usize) -> (EventWriter<T>, EventReader<T>) {
    let capacity = capacity.max(1);
    let empty = || UnsafeCell::new(MaybeUninit::uninit());
    let cells = Arc::new(Cells((0..capacity).map(|_| empty()).collect()));
    let (write, read) = cursors::pair(capacity as u64);
    let writer = EventWriter {
        write,
        cells: Arc::clone(&cells),
    };
    (writer, EventReader { read, cells })
}

/// An event and the position that it precedes. `T` is `Copy`, so nothing needs to be dropped.
type Cell<T> = UnsafeCell<MaybeUninit<(u64, T)>>;

struct Cells<T>(Box<[Cell<T>]>);

// SAFETY: the cursors give each cell to one of the two ends at a time, and an event moves between the threads as a whole, which `T:
// Send` allows.
unsafe impl<T: Send> Sync for Cells<T> {}
// SAFETY: as above; nothing in a cell is bound to a thread.
unsafe impl<T: Send> Send for Cells<T> {}

impl<T> Cells<T> {
    fn at(&self, position: u64) -> &Cell<T> {
        &self.0[(position % self.0.len() as u64) as usize]
    }
}

pub(super) struct EventWriter<T> {
    write: WriteEnd,
    cells: Arc<Cells<T>>,
}

impl<T: Copy> EventWriter<T> {
    /// Adds an event; returns it if there is no room.
    pub(super) fn push(&mut self, position: u64, event: T) -> Result<(), T> {
        let number = self.write.published();
        if !self.write.may_write(number) {
            return Err(event);
        }
        self.cells.at(number).with_mut(|cell| {
            // SAFETY: the cell is the writer's: not published, and within what the reader freed.
            unsafe { (*cell).write((position, event)) };
        });
        self.write.publish(number + 1);
        Ok(())
    }
}

pub(super) struct EventReader<T> {
    read: ReadEnd,
    cells: Arc<Cells<T>>,
}

impl<T: Copy> EventReader<T> {
    /// Returns the oldest event, which stays in the queue.
    pub(super) fn peek(&mut self) -> Option<(u64, T)> {
        let number = self.read.readable().next()?;
        let event = self.cells.at(number).with(|cell| {
            // SAFETY: the cell is the reader's, and the writer wrote it before it published it.
            unsafe { (*cell).assume_init() }
        });
        Some(event)
    }

    /// Removes the oldest event, if it has been seen.
    pub(super) fn take(&mut self) {
        let oldest = self.read.held_below(u64::MAX).start;
        self.read.free(oldest + 1);
    }
}

#[cfg(all(test, loom))]
mod every_interleaving {
    use super::*;

    #[test]
    fn events_arrive_whole_in_order_and_before_the_position_they_precede() {
        loom::model(|| {
            let (mut writer, mut reader) = queue::<u32>(1);
            let (mut write, mut read) = cursors::pair(4);
            let producer = loom::thread::spawn(move || {
                writer.push(0, 10).unwrap();
                write.publish(1);
                let second = writer.push(1, 20);
                write.publish(2);
                second.is_ok()
            });
            let handed = read.readable().end;
            if handed > 0 {
                assert_eq!(reader.peek(), Some((0, 10)));
                reader.take();
            }
            let second = reader.peek();
            assert!(matches!(second, None | Some((0, 10) | (1, 20))));
            producer.join().unwrap();
        });
    }
}
