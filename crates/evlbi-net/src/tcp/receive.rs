//! Receives from a connection: bytes, or messages with their times.

use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;
use std::time::Duration;

use evlbi_core::account::Record;
use evlbi_core::time::Nanos;
use serde::{Deserialize, Serialize};

use super::send::{HEADER_LEN, Progress};
use super::{Change, Connection};
use crate::clock::Clock;

/// Maximum bytes per read.
const AT_ONCE: usize = 256 << 10;
/// Interval at which the thread checks whether to continue.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Which messages are recorded individually.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// One of this many messages.
    pub every: u64,
    /// Maximum number of records.
    pub limit: u64,
}

/// Counters of received data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Taken {
    /// Bytes received.
    pub bytes: u64,
    /// Seconds from the start of the test to the last of them.
    pub seconds: f64,
    /// CPU time in seconds.
    pub cpu_seconds: f64,
    /// Seconds until the file was written and on the disk.
    pub disk_seconds: Option<f64>,
    /// Received messages.
    pub messages: Option<MessagesIn>,
    /// Reason for an early end.
    pub error: Option<String>,
}

/// Received messages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MessagesIn {
    /// Number of messages.
    pub count: u64,
    /// Individual records.
    pub records: Vec<Record>,
}

/// Receives bytes from a connection until its end. If the data is not needed, the kernel does not copy it.
pub fn take_bytes(
    connection: &Connection,
    copied: bool,
    progress: &Progress,
    clock: &Clock,
) -> Taken {
    let stream = &connection.stream;
    let mut room = vec![MaybeUninit::uninit(); AT_ONCE];
    let mut bytes = vec![0; if copied { AT_ONCE } else { 0 }];
    take(connection, progress, clock, || match copied {
        true => stream.read(&mut bytes),
        false => stream.discard(&mut room),
    })
}

/// Receives messages of one size from a connection until its end.
pub fn take_messages(
    connection: &Connection,
    size: usize,
    kept: &Kept,
    progress: &Progress,
    clock: &Clock,
) -> Taken {
    let mut bytes = vec![0; AT_ONCE.max(2 * size)];
    let mut held = 0;
    let mut messages = MessagesIn::default();
    let taken = take(connection, progress, clock, || {
        let count = connection.stream.read(&mut bytes[held..])?;
        let arrived = clock.utc();
        held += count;
        let mut whole = bytes[..held].chunks_exact(size);
        for message in &mut whole {
            let word = |at: usize| {
                let word = message[at..].first_chunk();
                word.map_or(0, |word| u64::from_le_bytes(*word))
            };
            let is_kept = messages.count.is_multiple_of(kept.every.max(1));
            if is_kept && (messages.records.len() as u64) < kept.limit {
                messages.records.push(Record(word(0), word(8), arrived));
            }
            messages.count += 1;
        }
        let rest = whole.remainder().len();
        bytes.copy_within(held - rest..held, 0);
        held = rest;
        Ok(count)
    });
    debug_assert!(size >= HEADER_LEN);
    Taken {
        messages: Some(messages),
        ..taken
    }
}

/// Receives bytes from a connection into a file until its end, and until the data is on the disk.
pub fn take_into(
    connection: &Connection,
    mut file: &File,
    progress: &Progress,
    clock: &Clock,
) -> Taken {
    let mut bytes = vec![0; AT_ONCE];
    let mut writing = Nanos::default();
    let mut timed = |work: &mut dyn FnMut() -> io::Result<()>| {
        let before = clock.now();
        let done =
            work().map_err(|error| io::Error::other(format!("cannot write the file: {error}")));
        writing = writing.plus(clock.now().since(before));
        done
    };
    let mut taken = take(connection, progress, clock, || {
        let count = connection.stream.read(&mut bytes)?;
        timed(&mut || file.write_all(&bytes[..count]))?;
        Ok(count)
    });
    let before = clock.now();
    if let (Err(error), None) = (timed(&mut || file.sync_data()), &taken.error) {
        taken.error = Some(error.to_string());
    }
    taken.seconds += clock.now().since(before).as_secs_f64();
    taken.disk_seconds = Some(writing.as_secs_f64());
    taken
}

fn take(
    connection: &Connection,
    progress: &Progress,
    clock: &Clock,
    mut read: impl FnMut() -> io::Result<usize>,
) -> Taken {
    let cpu_before = clock.thread_time();
    let mut taken = Taken::default();
    let begun = clock.now();
    let mut last = begun;
    loop {
        // Even if data keeps arriving.
        if progress.give_up.load(Ordering::Relaxed) {
            taken.error = Some("given up".to_owned());
            break;
        }
        match read() {
            Ok(0) => break,
            Ok(count) => {
                taken.bytes += count as u64;
                progress.taken.fetch_add(count as u64, Ordering::Relaxed);
                last = clock.now();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let until = clock.now().plus(POLL_INTERVAL.into());
                connection.stream.wait(Change::Readable, clock, until);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                taken.error = Some(error.to_string());
                break;
            }
        }
    }
    // The sender waits for this.
    let _ = connection.stream.shutdown(std::net::Shutdown::Write);
    taken.seconds = last.since(begun).as_secs_f64();
    taken.cpu_seconds = clock.thread_time().since(cpu_before).as_secs_f64();
    taken
}
