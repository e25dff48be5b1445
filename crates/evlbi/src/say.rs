//! Messages on standard error. A message that cannot be printed is dropped: printing never fails, ends or stalls a run, whether
//! standard error is closed, on a full disk, or a pipe that nobody reads.

use std::fmt;
use std::io::{self, Stderr, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Time for a reader to make room, in milliseconds. After a timeout there is no further wait until the reader has read.
const TIMEOUT: u8 = 100;
/// A pipe that has room takes this many bytes at once (PIPE_BUF).
const PIECE: usize = 4096;

/// Prints a line on standard error, like `eprintln!`, or drops it.
macro_rules! say {
    ($($what:tt)*) => { $crate::say::line(format_args!($($what)*)) };
}

/// Prints a line, or drops it.
pub fn line(line: fmt::Arguments<'_>) {
    text(&format!("{line}\n"));
}

/// Prints a text in one piece, or drops what does not fit.
pub fn text(text: &str) {
    let _ = messages().write_all(text.as_bytes());
}

/// Returns the writer of messages and diagnostics.
pub fn messages() -> Messages<Stderr> {
    Messages(io::stderr())
}

/// Returns whether standard error accepts a message now.
pub fn is_ready() -> bool {
    takes(&io::stderr())
}

fn takes(end: &impl AsFd) -> bool {
    static IS_STALLED: AtomicBool = AtomicBool::new(false);
    let patience = match IS_STALLED.load(Ordering::Relaxed) {
        true => PollTimeout::ZERO,
        false => PollTimeout::from(TIMEOUT),
    };
    let mut ends = [PollFd::new(end.as_fd(), PollFlags::POLLOUT)];
    let is_ready = loop {
        match poll(&mut ends, patience) {
            Err(Errno::EINTR) => {}
            // Other errors show up when writing.
            found => break found != Ok(0),
        }
    };
    IS_STALLED.store(!is_ready, Ordering::Relaxed);
    is_ready
}

/// A writer of messages that hides its errors.
pub struct Messages<W>(W);

impl<W: Write + AsFd> Write for Messages<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.chunks(PIECE) {
            if !takes(&self.0) || self.0.write_all(piece).is_err() {
                break;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{PipeReader, Read, pipe};

    use super::*;

    fn filled() -> (PipeReader, Messages<io::PipeWriter>) {
        let (reader, writer) = pipe().unwrap();
        let mut messages = Messages(writer);
        // More than any pipe holds.
        messages.write_all(&vec![b'x'; 2 << 20]).unwrap();
        (reader, messages)
    }

    #[test]
    fn messages_that_cannot_be_printed_are_dropped() {
        let mut full = Messages(File::options().write(true).open("/dev/full").unwrap());
        full.write_all(b"no room\n").unwrap();
        let (reader, mut closed) = filled();
        drop(reader);
        closed.write_all(b"nobody reads\n").unwrap();
        // This one ends only if a pipe without a reader delays nothing.
        let (mut reader, mut stalled) = filled();
        stalled.write_all(b"dropped\n").unwrap();
        let mut held = vec![0; PIECE];
        while !takes(&stalled.0) {
            reader.read_exact(&mut held).unwrap();
        }
        stalled.write_all(b"printed\n").unwrap();
        drop(stalled);
        let mut all = String::new();
        reader.read_to_string(&mut all).unwrap();
        assert_eq!(all.trim_start_matches('x'), "printed\n");
    }
}
