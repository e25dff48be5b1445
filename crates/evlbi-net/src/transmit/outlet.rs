//! By what a flow leaves the host: datagrams or a stream of bytes.

use std::io::{self, ErrorKind, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::udp::{Head, SendCounts, Sender, Train};

/// How long a reader that takes nothing is waited for before the sender looks whether to go on.
const STALL: Duration = Duration::from_millis(50);

/// A socket that frames leave by.
#[derive(Debug)]
pub enum Outlet {
    /// Datagrams.
    Udp(Sender),
    /// One stream of bytes, as jive5ab's `tcp`.
    Tcp(Stream),
}

/// A TCP connection that pieces are collected for.
#[derive(Debug)]
pub struct Stream {
    connection: TcpStream,
    buffer: Vec<u8>,
    /// Bytes that are still to be sent: what completes a last unit is not.
    left: u64,
    counts: SendCounts,
}

/// What leaves together.
pub(super) enum Departing<'s, 'a> {
    Udp(Train<'s, 'a>),
    Tcp {
        stream: &'s mut Stream,
        pieces: usize,
    },
}

impl Outlet {
    /// The raw stream over an open connection, at most `length` bytes of it.
    ///
    /// # Errors
    /// When the connection cannot be told to wait no longer than the sender can.
    pub fn tcp(connection: TcpStream, length: u64) -> io::Result<Outlet> {
        connection.set_write_timeout(Some(STALL))?;
        Ok(Outlet::Tcp(Stream {
            connection,
            buffer: Vec::new(),
            left: length,
            counts: SendCounts::default(),
        }))
    }

    /// Bytes of data that left, where each datagram has `datagram_data` of them.
    pub(super) fn data_sent(&self, datagram_data: usize) -> u64 {
        match self {
            Outlet::Udp(sender) => sender.counts().sent * datagram_data as u64,
            Outlet::Tcp(stream) => stream.counts.bytes,
        }
    }

    pub(super) fn begin<'a>(&mut self) -> Departing<'_, 'a> {
        match self {
            Outlet::Udp(sender) => Departing::Udp(sender.batch()),
            Outlet::Tcp(stream) => {
                stream.buffer.clear();
                Departing::Tcp { stream, pieces: 0 }
            }
        }
    }

    pub(super) fn drain_back_traffic(&mut self) {
        if let Outlet::Udp(sender) = self {
            sender.drain_back_traffic();
        }
    }

    pub(super) fn counts(&self) -> &SendCounts {
        match self {
            Outlet::Udp(sender) => sender.counts(),
            Outlet::Tcp(stream) => &stream.counts,
        }
    }
}

impl<'a> Departing<'_, 'a> {
    #[inline]
    pub(super) fn push(&mut self, head: Head, body: &'a [u8]) {
        match self {
            Departing::Udp(train) => train.push(head, body),
            Departing::Tcp { stream, pieces } => {
                stream.buffer.extend_from_slice(head.bytes());
                stream.buffer.extend_from_slice(body);
                *pieces += 1;
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Departing::Udp(train) => train.len(),
            Departing::Tcp { pieces, .. } => *pieces,
        }
    }

    /// Sends it. A stream whose reader takes nothing is given up when `is_over` says so; what of it had
    /// not left by then is counted.
    pub(super) fn send(self, is_over: &dyn Fn() -> bool) -> io::Result<()> {
        match self {
            Departing::Udp(train) => train.send().map(|_| ()),
            Departing::Tcp { stream, pieces } => stream.send(pieces, is_over),
        }
    }
}

impl Stream {
    fn send(&mut self, pieces: usize, is_over: &dyn Fn() -> bool) -> io::Result<()> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let bytes = &self.buffer[..self.buffer.len().min(most)];
        let mut written = 0;
        let mut result = Ok(());
        while written < bytes.len() {
            self.counts.calls += 1;
            match self.connection.write(&bytes[written..]) {
                Ok(0) => {
                    result = Err(ErrorKind::WriteZero.into());
                    break;
                }
                Ok(count) => written += count,
                Err(error) if is_wait(&error) && is_over() => break,
                Err(error) if is_wait(&error) => {}
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let whole = (pieces * written) / bytes.len().max(1);
        self.left -= written as u64;
        self.counts.sent += whole as u64;
        self.counts.buffer_full += (pieces - whole) as u64;
        self.counts.bytes += written as u64;
        self.counts.messages += 1;
        result
    }
}

fn is_wait(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}
