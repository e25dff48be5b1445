//! By what a flow leaves the host: datagrams or a stream of bytes.

use std::io::{self, Write};
use std::net::TcpStream;

use crate::udp::{Head, SendCounts, Sender, Train};

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
    pub fn tcp(connection: TcpStream, length: u64) -> Outlet {
        Outlet::Tcp(Stream {
            connection,
            buffer: Vec::new(),
            left: length,
            counts: SendCounts::default(),
        })
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

    pub(super) fn send(self) -> io::Result<()> {
        match self {
            Departing::Udp(train) => train.send().map(|_| ()),
            Departing::Tcp { stream, pieces } => {
                let most = usize::try_from(stream.left).unwrap_or(usize::MAX);
                let bytes = &stream.buffer[..stream.buffer.len().min(most)];
                stream.connection.write_all(bytes)?;
                stream.left -= bytes.len() as u64;
                stream.counts.sent += pieces as u64;
                stream.counts.bytes += bytes.len() as u64;
                stream.counts.messages += 1;
                stream.counts.calls += 1;
                Ok(())
            }
        }
    }
}
