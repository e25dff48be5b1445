//! The lines that a process prints, each awaited under the watchdog: a program that hangs silently fails its test.

use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use crate::until::WATCHDOG;

/// The lines of a pipe. The pipe is always read to its end, so that a printing program is never blocked.
#[derive(Debug)]
pub struct Lines(Receiver<String>);

impl Lines {
    /// Starts to read a pipe.
    pub fn of(pipe: impl Read + Send + 'static) -> Lines {
        let (give, take) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(pipe).lines().map_while(Result::ok);
            lines.for_each(|line| drop(give.send(line)));
        });
        Lines(take)
    }
}

impl Iterator for Lines {
    type Item = String;

    /// Returns the next line; `None` at the end.
    ///
    /// # Panics
    /// Panics if neither arrives within [`WATCHDOG`].
    fn next(&mut self) -> Option<String> {
        let line = self.0.recv_timeout(WATCHDOG);
        assert_ne!(line, Err(RecvTimeoutError::Timeout), "no line is printed");
        line.ok()
    }
}
