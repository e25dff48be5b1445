//! TCP connections and listeners, of the kernel or of a simulated host. None of them blocks, except in `wait` and `connect`.

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

/// Interval at which a connecting run checks whether it is stopped.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of connections that wait to be accepted.
const WAITING: i32 = 128;
/// Maximum bytes of a file per read, for a simulated connection.
const FILE_AT_ONCE: usize = 64 << 10;

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// Of the kernel.
    Kernel(Socket),
    /// Of a simulated host.
    Simulated(sim::Stream),
}

/// A change of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Data can be read.
    Readable,
    /// Data can be written.
    Writable,
}

impl Stream {
    /// Reads what has arrived; 0 bytes at the end of what the remote host sends.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::WouldBlock`] if nothing has arrived; else the reason why the connection has failed.
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Kernel(socket) => (&mut &*socket).read(into),
            Stream::Simulated(stream) => stream.read(into),
        }
    }

    /// Reads as much as `room` holds, and discards it without copying.
    ///
    /// # Errors
    /// The same as [`Stream::read`].
    pub fn discard(&self, room: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        match self {
            // With MSG_TRUNC a TCP socket writes nothing to the memory (tcp(7)).
            Stream::Kernel(socket) => socket.recv_with_flags(room, libc::MSG_TRUNC),
            Stream::Simulated(stream) => stream.discard(room.len()),
        }
    }

    /// Writes as much as fits.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::WouldBlock`] if nothing fits; else the reason why the connection has failed.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Kernel(socket) => (&mut &*socket).write(bytes),
            Stream::Simulated(stream) => stream.write(bytes),
        }
    }

    /// Writes successive pieces, as much as fits.
    ///
    /// # Errors
    /// The same as [`Stream::write`].
    pub fn write_vectored(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Kernel(socket) => (&mut &*socket).write_vectored(pieces),
            Stream::Simulated(stream) => {
                let bytes: Vec<u8> = pieces.iter().flat_map(|it| it.iter().copied()).collect();
                stream.write(&bytes)
            }
        }
    }

    /// Writes at most `max` bytes of a file from `offset` on, as much as fits; 0 at its end.
    ///
    /// # Errors
    /// Returns the errors of [`Stream::write`] and of the file.
    pub fn write_file(&self, file: &File, offset: usize, max: usize) -> io::Result<usize> {
        match self {
            Stream::Kernel(socket) => socket.sendfile(file, offset, NonZeroUsize::new(max)),
            Stream::Simulated(stream) => {
                let mut bytes = vec![0; max.min(FILE_AT_ONCE)];
                let count = file.read_at(&mut bytes, offset as u64)?;
                match count {
                    0 => Ok(0),
                    _ => stream.write(&bytes[..count]),
                }
            }
        }
    }

    /// Returns whether the remote host sends no more, and everything that it sent was read.
    pub fn has_ended(&self) -> bool {
        match self {
            Stream::Kernel(socket) => {
                let next = &mut [MaybeUninit::uninit(); 1];
                matches!(socket.peek(next), Ok(0))
            }
            Stream::Simulated(stream) => stream.has_ended(),
        }
    }

    /// Closes one direction or both.
    ///
    /// # Errors
    /// Returns an error if it is not connected.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Stream::Kernel(socket) => socket.shutdown(how),
            Stream::Simulated(stream) => {
                stream.shutdown(how);
                Ok(())
            }
        }
    }

    /// Makes data that was written and has not left be dropped together with the connection.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn forget_unsent(&self) -> io::Result<()> {
        match self {
            Stream::Kernel(socket) => socket.set_linger(Some(Duration::ZERO)),
            Stream::Simulated(stream) => {
                stream.abort();
                Ok(())
            }
        }
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Stream::Kernel(socket) => address(&socket.local_addr()?),
            Stream::Simulated(stream) => Ok(stream.local()),
        }
    }

    /// Returns the remote address.
    ///
    /// # Errors
    /// Returns an error if it is not connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Stream::Kernel(socket) => address(&socket.peer_addr()?),
            Stream::Simulated(stream) => Ok(stream.peer()),
        }
    }

    /// Returns its present state.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn info(&self) -> io::Result<Info> {
        match self {
            Stream::Kernel(socket) => super::info(socket),
            Stream::Simulated(stream) => Ok(stream.info()),
        }
    }

    /// Returns the Linux name of its congestion control algorithm.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn algorithm(&self) -> io::Result<String> {
        match self {
            Stream::Kernel(socket) => Ok(text(&socket.tcp_congestion()?)),
            Stream::Simulated(stream) => Ok(stream.algorithm().name().to_owned()),
        }
    }

    /// Returns its pending error, once.
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

    /// Returns another handle of the same connection.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Kernel(socket) => Stream::Kernel(socket.try_clone()?),
            Stream::Simulated(stream) => Stream::Simulated(stream.clone()),
        })
    }

    /// Waits for a change, or until `until`. In either case, the caller tries again.
    pub fn wait(&self, change: Change, clock: &Clock, until: Nanos) {
        let event = self.event(change);
        clock.wait(&[event.events()], until, Waiting::Sleep);
    }

    /// Returns the event of a change.
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

/// A future connection or listener.
pub enum Unconnected {
    /// A kernel socket, with its options.
    Kernel(Socket),
    /// Settings for connections of a simulated host.
    Simulated(sim::Host, tcp::Settings),
}

impl Unconnected {
    /// Creates one on a run's host for addresses of this family; `set_up` sets the options of a kernel socket.
    ///
    /// # Errors
    /// Returns the error of the kernel or of `set_up`.
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
    /// Returns the reason why there is no connection.
    pub fn connect(self, to: SocketAddr, timeout: Duration, run: &Run) -> io::Result<Stream> {
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
        await_connection(&stream, timeout, run)?;
        Ok(stream)
    }

    /// Listens at an address of its host (port 0: any free one).
    ///
    /// # Errors
    /// Returns an error if the address is in use, or does not belong to this host.
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

/// Waits until it is connected or has failed, the timeout is over, or the run is stopped.
fn await_connection(stream: &Stream, timeout: Duration, run: &Run) -> io::Result<()> {
    let clock = run.clock();
    let end = clock.now().plus(timeout.into());
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

/// Listener for connections.
#[derive(Debug)]
pub enum Listener {
    /// Of the kernel.
    Kernel(Socket),
    /// Of a simulated host.
    Simulated(sim::Listener),
}

impl Listener {
    /// Listens at an address of a run's host (port 0: any free one).
    ///
    /// # Errors
    /// Returns an error if the address is in use, or does not belong to this host.
    pub fn bind(at: SocketAddr, run: &Run) -> io::Result<Listener> {
        Unconnected::new(at, run, |socket| socket.set_reuse_address(true))?.listen(at)
    }

    /// Returns its address.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Listener::Kernel(socket) => address(&socket.local_addr()?),
            Listener::Simulated(listener) => Ok(listener.address()),
        }
    }

    /// Accepts the earliest waiting connection.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::WouldBlock`] if none is waiting; else the error of one connection, or that too many files are open.
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

    /// Waits for a connection, or until `until`.
    pub fn wait(&self, clock: &Clock, until: Nanos) {
        let event = self.event();
        clock.wait(&[event.events()], until, Waiting::Sleep);
    }

    /// Returns the event of an arriving connection.
    pub(crate) fn event(&self) -> Event {
        match self {
            Listener::Kernel(socket) => Event::Poll([readable(socket)]),
            Listener::Simulated(listener) => Event::Place([listener.place()]),
        }
    }
}
