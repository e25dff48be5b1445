//! What is given to a connection: messages at a constant rate, or as many bytes as it takes.

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

/// Bytes of a message's number, and of when it left.
pub const HEADER_LEN: usize = 16;
/// Messages are handed over together where so many bytes of them are due at once.
const AT_ONCE: usize = 64 << 10;
/// Bytes of a file that are handed over at once.
const FILE_AT_ONCE: usize = 1 << 20;
/// What is due within this time is handed over together, so that waking up is not all that a processor does.
const REST: Nanos = Nanos(100_000);
/// Longest time between looks at whether to go on.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// What is sent has come, or will not, in this time after the last of it.
const CLOSING: Duration = Duration::from_secs(600);

/// Messages at a constant rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constant {
    /// Bits of messages per second.
    pub rate: BitRate,
    /// Bytes of a message.
    pub size: usize,
    /// Bytes of messages that wait before the send buffer, at most: 64 KiB at least, which are handed over together, and one
    /// message.
    pub backlog: u64,
    /// What becomes of those that find no room there.
    pub full: Full,
}

/// How far the connections of an end are, for others to look at.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes given to connections.
    pub given: AtomicU64,
    /// Bytes taken from connections.
    pub taken: AtomicU64,
    /// Set by whoever wants the senders to end.
    pub stop: AtomicBool,
    /// Set by whoever wants the receivers to end.
    pub give_up: AtomicBool,
    /// Threads that are at work.
    pub working: AtomicUsize,
}

impl Progress {
    /// Has senders and receivers end, whatever is under way.
    pub fn give_up(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.give_up.store(true, Ordering::Relaxed);
    }

    /// Whether all threads have ended, or shall.
    pub fn is_over(&self) -> bool {
        self.working.load(Ordering::Relaxed) == 0 || self.give_up.load(Ordering::Relaxed)
    }
}

/// What was given to a connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Given {
    /// Bytes.
    pub bytes: u64,
    /// Until the kernel had the last of them.
    pub seconds: f64,
    /// Processor time of that.
    pub cpu_seconds: f64,
    /// Time in which the connection took nothing.
    pub blocked_seconds: f64,
    /// Whether it was a file.
    pub is_file: bool,
    /// Of messages.
    pub messages: Option<MessagesOut>,
    /// Why it ended before its time.
    pub error: Option<String>,
}

/// What became of messages at a constant rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MessagesOut {
    /// When the first was due, in nanoseconds of UTC.
    pub start: u64,
    /// Messages that were due.
    pub due: u64,
    /// Of these, given to the connection.
    pub sent: u64,
    /// Of these, given up because there was no room.
    pub shed: u64,
    /// Most bytes that waited before the send buffer.
    pub most_waiting: u64,
    /// Time that messages waited for room there, in seconds.
    pub blocked: f64,
}

/// Gives messages to a connection, each when it is due or as soon as it is taken, for so long.
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

/// Gives bytes to a connection, as many as it takes and so many at once, for so long.
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

/// Gives a file to a connection, without copying it on its way through this program, for so long.
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
    /// Bytes that the kernel took.
    given: u64,
    /// Time in which it took none.
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
        // What is due before the end.
        let last = Nanos(length.0.saturating_sub(1));
        let since = self.clock.now().since(self.begun);
        messages.start = self.clock.utc().saturating_sub(since.0);
        // Messages in the batch, its bytes, and how many of these have gone.
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
                    // Those that have to wait as a whole have not left yet.
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

    /// Gives what `send` hands to the socket until nothing is left, or for `length`. `send` takes how many bytes have been given,
    /// and returns how many there were to be given next.
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

    /// Bytes for which there is no room.
    fn note_waiting(&self, bytes: usize) {
        let backlog = &self.connection.backlog;
        backlog.store(bytes as u64, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.progress.stop.load(Ordering::Relaxed)
    }

    /// Whether the other end has ended, and takes no more: nothing comes this way but that.
    fn has_ended(&self) -> bool {
        self.connection.stream.has_ended()
    }

    /// Waits for a change of the connection, at most for so long.
    fn wait(&self, change: Change, most: Duration) {
        let until = self.clock.now().plus(most.into());
        self.connection.stream.wait(change, self.clock, until);
    }

    /// What the kernel took; none if it takes nothing for now.
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

    /// Says that this was all, and waits until the other end has it.
    fn finish(self, result: io::Result<()>) -> Given {
        // The time does not include closing.
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
        // What is still in the send buffer is not sent any more.
        stream.forget_unsent()?;
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the other end has not taken all",
        ))
    }
}
