//! Connections of TCP and what they come to, of the machine itself or of a simulated host. None of them waits by itself.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_trace::tcp::{self, Info};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::clock::Clock;
use crate::clock::events::{Event, readable, writable};
use crate::cpu::Waiting;
use crate::host::nic::text;
use crate::run::Run;
use crate::sim;

/// Longest time between two looks at whether a run that connects is stopped.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Connections that may wait to be taken.
const WAITING: i32 = 128;
/// Bytes of a file that are read at once for a simulated connection.
const FILE_AT_ONCE: usize = 64 << 10;

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// Of the machine.
    Kernel(Socket),
    /// Of a simulated host.
    Simulated(sim::Stream),
}

/// What may change on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Something can be read.
    Readable,
    /// Something can be written.
    Writable,
}

impl Stream {
    /// Reads what has come: nothing at the end of what the other end sends.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing has come; else why the connection has failed.
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Kernel(socket) => (&mut &*socket).read(into),
            Stream::Simulated(stream) => stream.read(into),
        }
    }

    /// Reads as much as `room` holds, and forgets it: nothing is copied.
    ///
    /// # Errors
    /// As [`Stream::read`].
    pub fn discard(&self, room: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        match self {
            // With MSG_TRUNC a TCP socket writes nothing to the memory (tcp(7)).
            Stream::Kernel(socket) => socket.recv_with_flags(room, libc::MSG_TRUNC),
            Stream::Simulated(stream) => stream.discard(room.len()),
        }
    }

    /// Writes as much as there is room for.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is none; else why the connection has failed.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Kernel(socket) => (&mut &*socket).write(bytes),
            Stream::Simulated(stream) => stream.write(bytes),
        }
    }

    /// Writes as much as there is room for of pieces one after the other.
    ///
    /// # Errors
    /// As [`Stream::write`].
    pub fn write_vectored(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Kernel(socket) => (&mut &*socket).write_vectored(pieces),
            Stream::Simulated(stream) => {
                let bytes: Vec<u8> = pieces.iter().flat_map(|it| it.iter().copied()).collect();
                stream.write(&bytes)
            }
        }
    }

    /// Writes `most` bytes of a file from `offset` on, or as many as there is room for; none at its end.
    ///
    /// # Errors
    /// As [`Stream::write`], and what the file says.
    pub fn write_file(&self, file: &File, offset: usize, most: usize) -> io::Result<usize> {
        match self {
            Stream::Kernel(socket) => socket.sendfile(file, offset, NonZeroUsize::new(most)),
            Stream::Simulated(stream) => {
                let mut bytes = vec![0; most.min(FILE_AT_ONCE)];
                let count = file.read_at(&mut bytes, offset as u64)?;
                match count {
                    0 => Ok(0),
                    _ => stream.write(&bytes[..count]),
                }
            }
        }
    }

    /// Whether the other end sends no more, and all that it sent was read.
    pub fn has_ended(&self) -> bool {
        match self {
            Stream::Kernel(socket) => {
                let next = &mut [MaybeUninit::uninit(); 1];
                matches!(socket.peek(next), Ok(0))
            }
            Stream::Simulated(stream) => stream.has_ended(),
        }
    }

    /// Says that no more will be written, or read.
    ///
    /// # Errors
    /// When there is no connection.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Stream::Kernel(socket) => socket.shutdown(how),
            Stream::Simulated(stream) => {
                stream.shutdown(how);
                Ok(())
            }
        }
    }

    /// What was written and has not left will not leave when this is dropped.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn forget_unsent(&self) -> io::Result<()> {
        match self {
            Stream::Kernel(socket) => socket.set_linger(Some(Duration::ZERO)),
            Stream::Simulated(stream) => {
                stream.abort();
                Ok(())
            }
        }
    }

    /// Its address here.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Stream::Kernel(socket) => address(&socket.local_addr()?),
            Stream::Simulated(stream) => Ok(stream.local()),
        }
    }

    /// The address of the other end.
    ///
    /// # Errors
    /// When it is not connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Stream::Kernel(socket) => address(&socket.peer_addr()?),
            Stream::Simulated(stream) => Ok(stream.peer()),
        }
    }

    /// What is known of it at this moment.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn info(&self) -> io::Result<Info> {
        match self {
            Stream::Kernel(socket) => super::info(socket),
            Stream::Simulated(stream) => Ok(stream.info()),
        }
    }

    /// The congestion control that it has, by its Linux name.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn algorithm(&self) -> io::Result<String> {
        match self {
            Stream::Kernel(socket) => Ok(text(&socket.tcp_congestion()?)),
            Stream::Simulated(stream) => Ok(stream.algorithm().name().to_owned()),
        }
    }

    /// What has befallen it, once.
    fn take_error(&self) -> io::Result<Option<io::Error>> {
        match self {
            Stream::Kernel(socket) => socket.take_error(),
            Stream::Simulated(stream) => Ok(stream.error()),
        }
    }

    fn is_connected(&self) -> bool {
        match self {
            Stream::Kernel(socket) => socket.peer_addr().is_ok(),
            Stream::Simulated(stream) => stream.is_connected(),
        }
    }

    /// The same connection once more.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Kernel(socket) => Stream::Kernel(socket.try_clone()?),
            Stream::Simulated(stream) => Stream::Simulated(stream.clone()),
        })
    }

    /// Waits for a change, or until `until`. However it ends, the caller tries again.
    pub fn wait(&self, change: Change, clock: &Clock, until: Nanos) {
        let event = self.event(change);
        clock.wait(&[event.events()], until, Waiting::Sleep);
    }

    /// That a change comes.
    pub(crate) fn event(&self, change: Change) -> Event {
        match (self, change) {
            (Stream::Kernel(socket), Change::Readable) => Event::Poll([readable(socket)]),
            (Stream::Kernel(socket), Change::Writable) => Event::Poll([writable(socket)]),
            (Stream::Simulated(stream), Change::Readable) => Event::Place([stream.readable()]),
            (Stream::Simulated(stream), Change::Writable) => Event::Place([stream.writable()]),
        }
    }
}

fn address(of: &SockAddr) -> io::Result<SocketAddr> {
    let none = || io::Error::from(io::ErrorKind::AddrNotAvailable);
    of.as_socket().ok_or_else(none)
}

/// What becomes a connection, or a place where they come to.
pub enum Unconnected {
    /// A socket of the machine, with its options.
    Kernel(Socket),
    /// What connections of a simulated host have.
    Simulated(sim::Host, tcp::Settings),
}

impl Unconnected {
    /// One of a run's host for addresses of this family; `set_up` gives a socket of the machine its options.
    ///
    /// # Errors
    /// What the kernel or `set_up` says.
    pub fn new<E: From<io::Error>>(
        family: SocketAddr,
        run: &Run,
        set_up: impl FnOnce(&Socket) -> Result<(), E>,
    ) -> Result<Unconnected, E> {
        if let Some(host) = run.host() {
            return Ok(Unconnected::Simulated(host.clone(), host.tcp()));
        }
        let socket = Socket::new(Domain::for_address(family), Type::STREAM, None)?;
        set_up(&socket)?;
        Ok(Unconnected::Kernel(socket))
    }

    /// Connects to `to`. Ends with the timeout, or when the run is stopped.
    ///
    /// # Errors
    /// Why there is no connection.
    pub fn connect(self, to: SocketAddr, patience: Duration, run: &Run) -> io::Result<Stream> {
        let stream = match self {
            Unconnected::Simulated(host, settings) => {
                Stream::Simulated(host.connect(to, &settings))
            }
            Unconnected::Kernel(socket) => {
                socket.set_nonblocking(true)?;
                match socket.connect(&to.into()) {
                    Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => {
                        return Err(error);
                    }
                    _ => Stream::Kernel(socket),
                }
            }
        };
        await_connection(&stream, patience, run)?;
        Ok(stream)
    }

    /// Listens at an address of its host, where port 0 is any that is free.
    ///
    /// # Errors
    /// When the address is in use, or is none of this host's.
    pub fn listen(self, at: SocketAddr) -> io::Result<Listener> {
        match self {
            Unconnected::Simulated(host, settings) => {
                Ok(Listener::Simulated(host.listen(at.port(), &settings)?))
            }
            Unconnected::Kernel(socket) => {
                socket.bind(&at.into())?;
                socket.listen(WAITING)?;
                socket.set_nonblocking(true)?;
                Ok(Listener::Kernel(socket))
            }
        }
    }
}

/// Waits until a connection is there, it fails, the time is over or the run is stopped.
fn await_connection(stream: &Stream, patience: Duration, run: &Run) -> io::Result<()> {
    let clock = run.clock();
    let end = clock.now().plus(patience.into());
    loop {
        let now = clock.now();
        stream.wait(
            Change::Writable,
            clock,
            end.min(now.plus(POLL_INTERVAL.into())),
        );
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        if stream.is_connected() {
            return Ok(());
        }
        if run.is_stopped() {
            return Err(io::Error::other("interrupted"));
        }
        if clock.now() >= end {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

/// Where connections come to.
#[derive(Debug)]
pub enum Listener {
    /// Of the machine.
    Kernel(Socket),
    /// Of a simulated host.
    Simulated(sim::Listener),
}

impl Listener {
    /// Listens at an address of a run's host, where port 0 is any that is free.
    ///
    /// # Errors
    /// When the address is in use, or is none of this host's.
    pub fn bind(at: SocketAddr, run: &Run) -> io::Result<Listener> {
        Unconnected::new(at, run, |socket| socket.set_reuse_address(true))?.listen(at)
    }

    /// Its address.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Listener::Kernel(socket) => address(&socket.local_addr()?),
            Listener::Simulated(listener) => Ok(listener.address()),
        }
    }

    /// Takes the connection that came first.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when none has come; else what befell one connection, or that there are too many files open.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match self {
            Listener::Kernel(listener) => {
                let (socket, peer) = listener.accept()?;
                socket.set_nonblocking(true)?;
                socket.set_tcp_nodelay(true)?;
                Ok((Stream::Kernel(socket), address(&peer)?))
            }
            Listener::Simulated(listener) => {
                let stream = listener.accept().ok_or(io::ErrorKind::WouldBlock)?;
                let peer = stream.peer();
                Ok((Stream::Simulated(stream), peer))
            }
        }
    }

    /// Waits until a connection has come, or until `until`.
    pub fn wait(&self, clock: &Clock, until: Nanos) {
        let event = self.event();
        clock.wait(&[event.events()], until, Waiting::Sleep);
    }

    /// That a connection comes.
    pub(crate) fn event(&self) -> Event {
        match self {
            Listener::Kernel(socket) => Event::Poll([readable(socket)]),
            Listener::Simulated(listener) => Event::Place([listener.place()]),
        }
    }
}
