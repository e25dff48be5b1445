//! Sends over a connection: messages at a constant rate, or as many bytes as possible.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_trace::tcp::{Backlog, Full};
use evlbi_wire::fill;
use serde::{Deserialize, Serialize};

use super::{Change, Connection, Stream};
use crate::clock::Clock;
use crate::cpu::{self, Waiting};

/// Length in bytes of a message's header: its number and its departure time.
pub const HEADER_LEN: usize = 16;
/// Maximum bytes of due messages that are sent together.
const AT_ONCE: usize = 64 << 10;
/// Maximum bytes of a file per write.
const FILE_AT_ONCE: usize = 1 << 20;
/// Messages due within this time are sent together, so that waking up does not take all of the CPU time.
const REST: Nanos = Nanos(100_000);
/// Interval at which the thread checks whether to continue.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Timeout for sent data to arrive, after the last of it.
const CLOSING: Duration = Duration::from_secs(600);

/// Messages at a constant rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Constant {
    /// Bits of messages per second.
    pub rate: BitRate,
    /// Message size in bytes.
    pub size: usize,
    /// Maximum bytes of messages that wait for the send buffer. Minimum: 64 KiB, which are sent together, plus one message.
    pub backlog: u64,
    /// Treatment of messages that find no room there.
    pub full: Full,
}

/// Progress of an endpoint's connections.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes sent.
    pub given: AtomicU64,
    /// Bytes received.
    pub taken: AtomicU64,
    /// Tells the senders to stop.
    pub stop: AtomicBool,
    /// Tells the receivers to stop.
    pub give_up: AtomicBool,
    /// Number of running threads.
    pub working: AtomicUsize,
}

impl Progress {
    /// Makes senders and receivers stop, whatever is in flight.
    pub fn give_up(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.give_up.store(true, Ordering::Relaxed);
    }

    /// Returns whether all threads have ended or must end.
    pub fn is_over(&self) -> bool {
        self.working.load(Ordering::Relaxed) == 0 || self.give_up.load(Ordering::Relaxed)
    }
}

/// Counters of sent data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Given {
    /// Bytes sent.
    pub bytes: u64,
    /// Seconds until the kernel had accepted the last of them.
    pub seconds: f64,
    /// CPU time in seconds.
    pub cpu_seconds: f64,
    /// Seconds in which the connection accepted nothing.
    pub blocked_seconds: f64,
    /// Whether a file was sent.
    pub is_file: bool,
    /// Sent messages.
    pub messages: Option<MessagesOut>,
    /// Reason for an early end.
    pub error: Option<String>,
}

/// Messages sent at a constant rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MessagesOut {
    /// Due time of the first one, in nanoseconds of UTC.
    pub start: u64,
    /// Messages that were due.
    pub due: u64,
    /// Number of those that were sent.
    pub sent: u64,
    /// Number of those that were shed because there was no room.
    pub shed: u64,
    /// Maximum bytes that waited for the send buffer.
    pub most_waiting: u64,
    /// Seconds that messages waited there for room.
    pub blocked: f64,
}

/// Sends messages for `length`, each when it is due or as soon as the connection accepts it.
pub fn give_messages(
    connection: &Connection,
    constant: &Constant,
    length: Nanos,
    progress: &Progress,
    clock: &Clock,
) -> Given {
    let mut giving = Giving::begin(connection, progress, clock);
    let mut backlog = Backlog::new(
        constant.rate,
        constant.size,
        constant.backlog.max(AT_ONCE as u64) / constant.size as u64,
        constant.full,
    );
    let mut messages = MessagesOut::default();
    let result = giving.messages(&mut backlog, constant, length, &mut messages);
    let now = clock.now().since(giving.begun);
    giving.blocked = backlog.blocked(now.min(length));
    messages.due = backlog.due();
    messages.shed = backlog.shed();
    messages.most_waiting = backlog.max_bytes();
    messages.blocked = giving.blocked.as_secs_f64();
    Given {
        messages: Some(messages),
        ..giving.finish(result)
    }
}

/// Sends bytes for `length`, as many as the connection accepts, in writes of one size.
pub fn give_bytes(
    connection: &Connection,
    at_once: usize,
    length: Nanos,
    progress: &Progress,
    clock: &Clock,
) -> Given {
    let mut giving = Giving::begin(connection, progress, clock);
    let mut block = vec![0; at_once.max(1)];
    fill::make(&mut block);
    let result = giving.give(length, |stream, given| {
        let rest = &block[given % block.len()..];
        (rest.len(), stream.write(rest))
    });
    giving.finish(result)
}

/// Sends a file for `length`, without copying it through this program.
pub fn give_file(
    connection: &Connection,
    file: &File,
    length: Nanos,
    progress: &Progress,
    clock: &Clock,
) -> Given {
    let mut giving = Giving::begin(connection, progress, clock);
    let result = giving.give(length, |stream, given| {
        let sent = stream.write_file(file, given, FILE_AT_ONCE);
        (FILE_AT_ONCE, sent)
    });
    Given {
        is_file: true,
        ..giving.finish(result)
    }
}

struct Giving<'a> {
    connection: &'a Connection,
    progress: &'a Progress,
    clock: &'a Clock,
    begun: Nanos,
    cpu_before: Nanos,
    /// Bytes that the kernel accepted.
    given: u64,
    /// Time in which it accepted none.
    blocked: Nanos,
}

impl<'a> Giving<'a> {
    fn begin(connection: &'a Connection, progress: &'a Progress, clock: &'a Clock) -> Giving<'a> {
        let _ = cpu::sharpen_timers();
        Giving {
            connection,
            progress,
            clock,
            begun: clock.now(),
            cpu_before: clock.thread_time(),
            given: 0,
            blocked: Nanos(0),
        }
    }

    fn messages(
        &mut self,
        backlog: &mut Backlog,
        constant: &Constant,
        length: Nanos,
        messages: &mut MessagesOut,
    ) -> io::Result<()> {
        let size = constant.size;
        let at_once = (AT_ONCE / size).max(1);
        let mut batch = vec![0; size * at_once];
        for message in batch.chunks_exact_mut(size) {
            fill::make(&mut message[HEADER_LEN..]);
        }
        // Messages that are due before the end.
        let last = Nanos(length.0.saturating_sub(1));
        let since = self.clock.now().since(self.begun);
        messages.start = self.clock.utc().saturating_sub(since.0);
        // Messages in the batch, their bytes, and how many of these bytes are sent.
        let (mut count, mut end, mut gone) = (0, 0, 0);
        while !self.is_stopped() {
            let now = self.clock.now().since(self.begun);
            if gone == end {
                backlog.gone(std::mem::take(&mut count));
            }
            backlog.admit(now.min(last));
            if gone == end
                && let Some(range) = backlog.first(at_once as u64)
            {
                let stamp = self.clock.utc();
                count = range.end - range.start;
                for (message, number) in batch.chunks_exact_mut(size).zip(range) {
                    message[..8].copy_from_slice(&number.to_le_bytes());
                    message[8..HEADER_LEN].copy_from_slice(&stamp.to_le_bytes());
                }
                (end, gone) = (count as usize * size, 0);
            }
            if gone == end {
                self.note_waiting(0);
                let next = backlog.next_due();
                if next >= length {
                    return Ok(());
                }
                let rest = now.plus(REST).max(next).min(now.plus(POLL_INTERVAL.into()));
                self.clock.wait_until(self.begun.plus(rest), Waiting::Sleep);
                continue;
            }
            match self.noted(self.connection.stream.write(&batch[gone..end]))? {
                None => {
                    backlog.stuck(now.min(last));
                    self.note_waiting(backlog.bytes() as usize - gone);
                    // Messages that wait as a whole have not left yet.
                    let stamp = self.clock.utc().to_le_bytes();
                    for message in batch[gone.next_multiple_of(size)..end].chunks_exact_mut(size) {
                        message[8..HEADER_LEN].copy_from_slice(&stamp);
                    }
                    self.wait(Change::Writable, POLL_INTERVAL);
                }
                Some(some) => {
                    messages.sent += ((gone + some) / size - gone / size) as u64;
                    gone += some;
                }
            }
        }
        Ok(())
    }

    /// Sends what `send` passes to the socket until nothing is left, or for `length`. `send` takes the number of bytes sent so far, and
    /// returns the number of bytes to send next.
    fn give(
        &mut self,
        length: Nanos,
        send: impl Fn(&Stream, usize) -> (usize, io::Result<usize>),
    ) -> io::Result<()> {
        while !self.is_stopped() && self.clock.now().since(self.begun) < length {
            let (bytes, sent) = send(&self.connection.stream, self.given as usize);
            match self.noted(sent)? {
                Some(0) => break,
                Some(_) => self.note_waiting(0),
                None => {
                    let before = self.clock.now();
                    self.note_waiting(bytes);
                    self.wait(Change::Writable, POLL_INTERVAL * 20);
                    self.blocked = self.blocked.plus(self.clock.now().since(before));
                }
            }
        }
        Ok(())
    }

    /// Records bytes that wait for room.
    fn note_waiting(&self, bytes: usize) {
        let backlog = &self.connection.backlog;
        backlog.store(bytes as u64, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.progress.stop.load(Ordering::Relaxed)
    }

    /// Returns whether the remote host has ended and accepts no more: only its end arrives in this direction.
    fn has_ended(&self) -> bool {
        self.connection.stream.has_ended()
    }

    /// Waits at most `max` for a change of the connection.
    fn wait(&self, change: Change, max: Duration) {
        let until = self.clock.now().plus(max.into());
        self.connection.stream.wait(change, self.clock, until);
    }

    /// Records and returns the number of bytes that the kernel accepted; `None` if it accepts none for now.
    fn noted(&mut self, result: io::Result<usize>) -> io::Result<Option<usize>> {
        use io::ErrorKind::{Interrupted, WouldBlock};
        match result {
            Ok(some) => {
                self.given += some as u64;
                let given = &self.progress.given;
                given.fetch_add(some as u64, Ordering::Relaxed);
                Ok(Some(some))
            }
            Err(error) if error.kind() == WouldBlock && self.has_ended() => {
                Err(io::Error::other("the remote host takes no more"))
            }
            Err(error) if matches!(error.kind(), WouldBlock | Interrupted) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Closes the sending direction, and waits until the remote host has everything.
    fn finish(self, result: io::Result<()>) -> Given {
        // Without the time to close.
        let seconds = self.clock.now().since(self.begun).as_secs_f64();
        let cpu_seconds = self
            .clock
            .thread_time()
            .since(self.cpu_before)
            .as_secs_f64();
        let closed = result.and_then(|()| self.close());
        Given {
            bytes: self.given,
            seconds,
            cpu_seconds,
            blocked_seconds: self.blocked.as_secs_f64(),
            error: closed.err().map(|error| error.to_string()),
            ..Given::default()
        }
    }

    fn close(&self) -> io::Result<()> {
        let stream = &self.connection.stream;
        stream.shutdown(std::net::Shutdown::Write)?;
        let begun = self.clock.now();
        let mut nothing = [0; 1];
        while self.clock.now().since(begun) < CLOSING.into()
            && !self.progress.give_up.load(Ordering::Relaxed)
        {
            match stream.read(&mut nothing) {
                Ok(0) => return Ok(()),
                Ok(_) => return Err(io::Error::other("the other end sends where it should take")),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(Change::Readable, POLL_INTERVAL * 20);
                }
                Err(error) => return Err(error),
            }
        }
        // Data that is still in the send buffer is no longer sent.
        stream.forget_unsent()?;
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the other end has not taken all",
        ))
    }
}
