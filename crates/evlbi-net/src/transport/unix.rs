//! Unix sockets: between programs of one host, without loss. A sender waits while the receiver has no room.
//!
//! A message (`SOCK_SEQPACKET`) holds datagrams that leave together: their length as an unsigned 32-bit little-endian number, then the
//! datagrams, the last of which may be shorter. Each datagram begins with its sequence number, as over UDP.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, IoSlice, Read as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evlbi_core::packetise::Family;
use evlbi_core::time::Nanos;
use socket2::{Domain, SockAddr, Socket, Type};

use super::{
    Batch, Carries, Close, Events, Honours, InOptions, Incoming, Limits, Listening, Local, Message,
    Numbers, OpenError, Opened, OutOptions, Outgoing, Peer, Piece, Place, Protocol, Query, Ready,
    Service, Train, Transport, Url, url,
};
use crate::clock::events;
use crate::run::Run;
use crate::socket;
use crate::udp::SendCounts;

/// Length in bytes of the length field at the start of a message.
const HEAD: usize = 4;
/// Maximum bytes of datagrams in a message. Longer messages need larger pieces of kernel memory and are hardly faster.
const MAX_MESSAGE: usize = 128 << 10;
/// Maximum number of datagrams in a message.
const MAX_JOINED: usize = 64;
/// Maximum datagram length in bytes, including its headers as over UDP.
const MAX_DATAGRAM: usize = 65_535;
/// Send buffer to request, in bytes: its contents stay in the CPU's caches.
const BUFFER: usize = 1 << 20;
/// Maximum messages received at once, so that all of them stay in an L2 cache.
const MESSAGES: usize = 4;
/// Room for one message in bytes: one that fills it is too long.
const MESSAGE_SPACE: usize = MAX_MESSAGE + 4096;
/// Maximum number of connections.
const MAX_CONNECTIONS: usize = 64;
/// Maximum number of connections that wait to be accepted.
const BACKLOG: c_int = 64;
/// Poll interval for the lock of a directory where another receiver creates its socket, and the maximum number of polls.
const LOCK_INTERVAL: Duration = Duration::from_millis(1);
const MAX_LOCK_INTERVALS: usize = 5000;
/// Poll interval while a receiver accepts no more connections.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Unix sockets.
pub struct Unix;

impl Transport for Unix {
    fn schemes(&self) -> &'static [&'static str] {
        &["unix"]
    }

    fn form(&self) -> &'static str {
        "unix:///PATH"
    }

    fn service(&self) -> Service {
        Service {
            carries: Carries::Datagrams,
            numbers: Numbers::InBand,
            reliable: true,
            max_ports: 1,
            honours: Honours {
                // A Unix socket has only a send buffer, whose size is the fastest one.
                buffer: false,
                mtu: false,
                sequence: true,
                single: false,
                only: false,
                window: false,
                hold: false,
                interface: false,
                source: false,
                ttl: false,
            },
        }
    }

    fn place(&self, text: &str, _query: &mut Query<'_>) -> Result<Place, String> {
        let path = PathBuf::from(text);
        if !path.is_absolute() || text.ends_with('/') {
            return Err(format!(
                "`unix://{text}` has no absolute path of a socket: give {}",
                self.form()
            ));
        }
        match SockAddr::unix(&path) {
            Ok(_) => Ok(Place::Path(path)),
            Err(_) => Err(format!(
                "`unix://{text}` has a path of {} bytes, and a socket's has at most 107: give a shorter one",
                text.len()
            )),
        }
    }

    fn listens(&self, at: &Url) -> Result<Vec<Listening>, OpenError> {
        Ok(vec![Listening {
            protocol: Protocol::Unix,
            at: Local::Path(path(at).to_owned()),
        }])
    }

    fn open_out(&self, to: &Url, _with: &OutOptions, run: &Run) -> Opened<dyn Outgoing> {
        let failed = url::failed(to);
        let socket = open().map_err(failed)?;
        let granted = socket::ask_send_buffer(&socket, BUFFER).map_err(failed)?;
        if let Some(remedy) = &granted.remedy {
            tracing::info!("send buffer: {remedy}");
        }
        let address = SockAddr::unix(path(to)).map_err(failed)?;
        while let Err(error) = socket.connect(&address) {
            if error.kind() != ErrorKind::WouldBlock {
                return Err(failed(error));
            }
            if run.is_stopped() {
                return Err(OpenError::Stopped(to.to_string()));
            }
            run.clock().sleep(POLL_INTERVAL);
        }
        Ok(Box::new(Out {
            polls: [events::writable(&socket)],
            link: Link {
                socket,
                max_message: MAX_MESSAGE,
                counts: SendCounts::default(),
            },
            largest: granted.granted.min(MAX_DATAGRAM),
            room: MAX_JOINED,
            rest: Vec::new(),
            at: 0,
            lengths: VecDeque::new(),
        }))
    }

    fn open_in(&self, at: &Url, _with: &InOptions, run: &Run) -> Opened<dyn Incoming> {
        let listener = Listener::bind(path(at), run).map_err(|source| OpenError::Listen {
            at: Local::Path(path(at).to_owned()),
            source,
        })?;
        let mut incoming = In {
            listener,
            connections: Vec::new(),
            turn: 0,
            ended: VecDeque::new(),
            memory: vec![0; MESSAGES * MESSAGE_SPACE].into_boxed_slice(),
            messages: Vec::with_capacity(MESSAGES),
            polls: Vec::new(),
        };
        incoming.watch();
        Ok(Box::new(incoming))
    }
}

/// Returns the path in a URL of this transport.
fn path(url: &Url) -> &Path {
    match &url.place {
        Place::Path(path) => path,
        Place::Host(_) | Place::Interface { .. } | Place::Handle(_) => Path::new(""),
    }
}

/// Returns a non-blocking socket.
fn open() -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A socket in the file system, which is removed when this is dropped.
struct Listener {
    socket: Socket,
    path: PathBuf,
    /// Device and inode of its path.
    file: (u64, u64),
}

impl Listener {
    /// Listens at `path`, where only programs of this user may connect. Replaces a socket left behind by a killed receiver.
    fn bind(path: &Path, run: &Run) -> io::Result<Listener> {
        // A socket that does not listen yet looks like a leftover.
        let _locked = lock(path.parent().unwrap_or(path), run)?;
        remove_leftover(path)?;
        let socket = open()?;
        socket.bind(&SockAddr::unix(path)?)?;
        let listener = Listener {
            socket,
            path: path.to_owned(),
            file: identity(path)?,
        };
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        // From here on, programs can connect.
        listener.socket.listen(BACKLOG)?;
        Ok(listener)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The path may belong to another receiver by now.
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns device and inode of a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Locks a directory until the returned file is dropped.
fn lock(folder: &Path, run: &Run) -> io::Result<File> {
    let folder = File::open(folder)?;
    for _ in 0..MAX_LOCK_INTERVALS {
        match folder.try_lock() {
            Ok(()) => return Ok(folder),
            Err(TryLockError::WouldBlock) if run.is_stopped() => break,
            Err(TryLockError::WouldBlock) => run.clock().sleep(LOCK_INTERVAL),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    let why = "another program has locked its folder since this receiver began: end that program, or give a path in another folder";
    Err(io::Error::new(ErrorKind::TimedOut, why))
}

/// Removes a socket on which nothing listens.
fn remove_leftover(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let refused = |why| Err(io::Error::new(ErrorKind::AddrInUse, why));
    if !found.file_type().is_socket() {
        return refused(
            "a file that is not a socket has this name: remove it or give another path",
        );
    }
    match open()?.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(error),
        _ => refused("another program listens there: give another path"),
    }
}

/// A connection to a receiver.
struct Link {
    socket: Socket,
    /// Maximum bytes of datagrams in a message, as far as known.
    max_message: usize,
    counts: SendCounts,
}

/// Result of sending a message.
enum Handed {
    /// The kernel has accepted it, or never will.
    Over,
    /// The receiver has no room.
    Full,
    /// The kernel accepts only shorter messages.
    TooLong,
}

impl Link {
    /// Returns how many datagrams of these lengths the next message carries: of one length, but the last may be shorter.
    fn join(&self, lengths: impl Iterator<Item = usize>) -> usize {
        let (mut count, mut bytes, mut segment) = (0, 0, 0);
        for length in lengths.take(MAX_JOINED) {
            if count == 0 {
                segment = length;
            } else if length > segment || bytes + length > self.max_message {
                break;
            }
            bytes += length;
            count += 1;
            if length < segment {
                break;
            }
        }
        count
    }

    /// Passes a message of `count` datagrams to the kernel, the first of `segment` bytes, from the successive `parts`.
    fn hand_over<'a>(
        &mut self,
        segment: usize,
        count: usize,
        parts: impl Iterator<Item = &'a [u8]>,
    ) -> io::Result<Handed> {
        let head = (segment as u32).to_le_bytes();
        let mut slices = [IoSlice::new(&[]); 1 + 2 * MAX_JOINED];
        slices[0] = IoSlice::new(&head);
        let (mut used, mut bytes) = (1, 0);
        for (slice, part) in slices[1..].iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
            used += 1;
            bytes += part.len();
        }
        let sent = loop {
            self.counts.calls += 1;
            let sent = self
                .socket
                .send_vectored_with_flags(&slices[..used], libc::MSG_NOSIGNAL);
            match sent {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                sent => break sent,
            }
        };
        let Err(error) = sent else {
            self.counts.sent += count as u64;
            self.counts.bytes += bytes as u64;
            self.counts.messages += 1;
            return Ok(Handed::Over);
        };
        match error.raw_os_error().unwrap_or(0) {
            libc::EAGAIN => Ok(Handed::Full),
            // Longer than the send buffer, or more memory in one piece than the kernel has.
            libc::EMSGSIZE | libc::ENOBUFS | libc::ENOMEM if count > 1 => {
                self.max_message = bytes / 2;
                Ok(Handed::TooLong)
            }
            libc::ENOBUFS | libc::ENOMEM => Ok(Handed::Full),
            libc::EMSGSIZE => {
                self.counts.too_long += 1;
                Ok(Handed::Over)
            }
            _ => Err(error),
        }
    }
}

/// A connection that sends trains one after the other.
struct Out {
    link: Link,
    /// Maximum datagram length in bytes, including its headers as over UDP.
    largest: usize,
    /// Number of datagrams that fill one message, by the length of the last train's.
    room: usize,
    /// Datagrams of the previous train for which the receiver had no room, from `at` on, and the length of each.
    rest: Vec<u8>,
    at: usize,
    lengths: VecDeque<usize>,
    polls: [libc::pollfd; 1],
}

impl Out {
    fn flush(&mut self) -> io::Result<()> {
        while let Some(&segment) = self.lengths.front() {
            let count = self.link.join(self.lengths.iter().copied());
            let end = self.at + self.lengths.iter().take(count).sum::<usize>();
            let parts = [&self.rest[self.at..end]].into_iter();
            match self.link.hand_over(segment, count, parts)? {
                Handed::Over => {
                    self.at = end;
                    self.lengths.drain(..count);
                }
                Handed::TooLong => {}
                Handed::Full => break,
            }
        }
        Ok(())
    }
}

impl Outgoing for Out {
    /// Returns how much it accepts: a train that makes one message is accepted or kept as a whole.
    fn ready(&mut self, _now: Nanos) -> Ready {
        match self.lengths.is_empty() {
            true => Ready::Now(self.room),
            false => Ready::OnEvent,
        }
    }

    fn send(&mut self, train: &Train<'_, '_>, _now: Nanos) -> io::Result<()> {
        self.flush()?;
        let mut left = train.pieces();
        if self.lengths.is_empty() {
            self.rest.clear();
            self.at = 0;
            while let Some(first) = left.first() {
                let count = self.link.join(left.iter().map(Piece::length));
                let parts = left[..count].iter().flat_map(|it| [it.head(), it.body()]);
                match self.link.hand_over(first.length(), count, parts)? {
                    Handed::Over => left = &left[count..],
                    Handed::TooLong => {}
                    Handed::Full => break,
                }
            }
        }
        for piece in left {
            self.rest.extend_from_slice(piece.head());
            self.rest.extend_from_slice(piece.body());
            self.lengths.push_back(piece.length());
        }
        if let Some(first) = train.pieces().first() {
            self.room = (self.link.max_message / first.length().max(1)).clamp(1, MAX_JOINED);
        }
        Ok(())
    }

    fn drive(&mut self, _now: Nanos) -> io::Result<Option<Nanos>> {
        self.flush()?;
        Ok(None)
    }

    /// Closes: what the kernel has accepted reaches the receiver.
    fn close(&mut self, _now: Nanos) -> io::Result<Close> {
        self.flush()?;
        Ok(match self.lengths.is_empty() {
            true => Close::Done,
            false => Close::OnEvent,
        })
    }

    fn events(&self) -> Events<'_> {
        Events::of(&self.polls)
    }

    fn limits(&self) -> Limits {
        Limits {
            mtu: Some(self.largest),
            family: Family::V4,
        }
    }

    /// Returns the length: there is no Ethernet on the path.
    fn wire_bytes(&self, length: usize) -> u64 {
        length as u64
    }

    fn counts(&self) -> SendCounts {
        self.link.counts
    }
}

/// A path, and the programs connected to it.
struct In {
    listener: Listener,
    connections: Vec<Connection>,
    /// The connection with which the next batch starts, so that a busy one does not shut out the others.
    turn: usize,
    /// Programs that sent data and closed their connection, the latest last.
    ended: VecDeque<Peer>,
    /// Room for [`MESSAGES`] messages.
    memory: Box<[u8]>,
    messages: Vec<Message>,
    polls: Vec<libc::pollfd>,
}

struct Connection {
    socket: Socket,
    peer: Peer,
    has_sent: bool,
}

impl In {
    /// Accepts connections. One that sends nothing does not keep others out.
    fn accept(&mut self) {
        for _ in 0..MAX_CONNECTIONS {
            // Whatever the error, the next connection may be the sender's.
            let Ok((socket, _)) = self.listener.socket.accept() else {
                return;
            };
            if self.connections.len() >= MAX_CONNECTIONS {
                let silent = self.connections.iter().position(|it| !it.has_sent);
                let Some(silent) = silent else {
                    continue;
                };
                self.connections.remove(silent);
            }
            let peer = peer(&socket);
            if socket.set_nonblocking(true).is_ok() {
                self.connections.push(Connection {
                    socket,
                    peer,
                    has_sent: false,
                });
            }
            self.watch();
        }
    }

    /// Takes the messages that wait at a connection, as many as fit. Returns whether it stays open.
    fn take(&mut self, place: usize) -> bool {
        let connection = &mut self.connections[place];
        while self.messages.len() < MESSAGES {
            let start = self.messages.len() * MESSAGE_SPACE;
            let room = &mut self.memory[start..start + MESSAGE_SPACE];
            match connection.socket.read(room) {
                Ok(0) => return false,
                Ok(length) => {
                    connection.has_sent = true;
                    let message = message(&self.memory, start, length, connection.peer);
                    self.messages.push(message);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    fn close(&mut self, place: usize) {
        let connection = self.connections.remove(place);
        if connection.has_sent && !self.ended.contains(&connection.peer) {
            if self.ended.len() >= MAX_CONNECTIONS {
                self.ended.pop_front();
            }
            self.ended.push_back(connection.peer);
        }
        self.watch();
    }

    /// Watches what is open.
    fn watch(&mut self) {
        let connections = self.connections.iter().map(|it| &it.socket);
        let sockets = [&self.listener.socket].into_iter().chain(connections);
        self.polls.clear();
        self.polls.extend(sockets.map(events::readable));
    }
}

/// Returns the program at the other end of a connection.
fn peer(socket: &Socket) -> Peer {
    // Process, user, group.
    let mut words = [0; 3];
    match socket::get_words(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut words) {
        Ok(()) => Peer::Process(words[0]),
        Err(_) => Peer::Unknown,
    }
}

/// Returns a message of `length` bytes at `start`. One whose length field is wrong is returned as a whole: no datagram of the stream.
fn message(memory: &[u8], start: usize, length: usize, peer: Peer) -> Message {
    let range = start..start + length;
    let is_too_long = length >= MESSAGE_SPACE;
    let datagrams = memory[range.clone()].split_first_chunk::<HEAD>();
    let segment = datagrams.and_then(|(head, data)| {
        let segment = u32::from_le_bytes(*head) as usize;
        let is_valid = (1..=data.len()).contains(&segment)
            && data.len().div_ceil(segment) <= MAX_JOINED
            && !is_too_long;
        is_valid.then_some(segment)
    });
    Message {
        range: match segment {
            Some(_) => range.start + HEAD..range.end,
            None => range,
        },
        segment: segment.unwrap_or(0),
        peer,
        truncated: is_too_long,
        ..Message::default()
    }
}

impl Incoming for In {
    fn receive(&mut self, _now: Nanos) -> io::Result<Batch<'_>> {
        self.messages.clear();
        self.accept();
        for _ in 0..self.connections.len() {
            if self.messages.len() == MESSAGES {
                break;
            }
            let place = self.turn % self.connections.len();
            match self.take(place) {
                true => self.turn = place + 1,
                false => self.close(place),
            }
        }
        Ok(Batch {
            memory: &self.memory,
            messages: &self.messages,
            taken: self.messages.iter().map(|it| it.range.len() as u64).sum(),
        })
    }

    /// Returns whether the last of the peer's connections that sent anything is closed, which shows once everything it sent was read.
    fn has_ended(&self, peer: Peer) -> bool {
        let sends = |it: &Connection| it.peer == peer && it.has_sent;
        self.ended.contains(&peer) && !self.connections.iter().any(sends)
    }

    fn events(&self) -> Events<'_> {
        Events::of(&self.polls)
    }

    fn backlog(&self) -> io::Result<u64> {
        self.connections.iter().map(|it| waiting(&it.socket)).sum()
    }

    fn local(&self) -> Vec<Local> {
        vec![Local::Path(self.listener.path.clone())]
    }
}

/// Returns the bytes of the messages that wait at a connection.
fn waiting(socket: &Socket) -> io::Result<u64> {
    let mut bytes: c_int = 0;
    // SAFETY: the request writes one int, to which the pointer points.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
    match result {
        0 => Ok(u64::try_from(bytes).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_an_absolute_path() {
        let url: Url = "unix:///run/evlbi/data".parse().unwrap();
        assert_eq!(url.to_string(), "unix:///run/evlbi/data");
        assert_eq!(url.place, Place::Path("/run/evlbi/data".into()));
        let long = format!("unix:///{}", "x".repeat(108));
        for text in ["unix://", "unix://run/x", "unix:///", "unix:///run/", &long] {
            let error = text.parse::<Url>().unwrap_err();
            let says = ["absolute path", "at most 107"];
            assert!(says.iter().any(|it| error.contains(it)), "{text}: {error}");
        }
    }

    /// The first receiver has the path, and keeps it.
    #[test]
    fn of_receivers_that_start_together_one_listens() {
        let room = tempfile::tempdir().unwrap();
        for round in 0..100 {
            let path = room.path().join(round.to_string());
            let address = SockAddr::unix(&path).unwrap();
            open().unwrap().bind(&address).unwrap();
            let bind = || Listener::bind(&path, &Run::silent());
            let all: Vec<io::Result<Listener>> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..6).map(|_| scope.spawn(bind)).collect();
                threads.into_iter().map(|it| it.join().unwrap()).collect()
            });
            let listening = all.iter().filter(|it| it.is_ok()).count();
            assert_eq!(
                listening,
                1,
                "{:?}",
                all.iter().find_map(|it| it.as_ref().err())
            );
            open().unwrap().connect(&address).unwrap();
        }
    }

    /// A message is split as its length field says, or is one piece.
    #[test]
    fn messages_are_believed_only_if_they_can_be_true() {
        let taken = |segment: u32, data: usize| {
            let mut memory = segment.to_le_bytes().to_vec();
            memory.resize(HEAD + data, 7);
            let length = memory.len();
            let message = message(&memory, 0, length, Peer::Unknown);
            assert!(message.range.end <= length);
            (message.range.start, message.segment, message.truncated)
        };
        assert_eq!(taken(100, 100), (HEAD, 100, false));
        assert_eq!(taken(100, 250), (HEAD, 100, false));
        assert_eq!(taken(1, MAX_JOINED), (HEAD, 1, false));
        for (segment, data) in [
            (0, 100),
            (101, 100),
            (u32::MAX, 100),
            (1, MAX_JOINED + 1),
            (1, 65_536),
            (1, 0),
            (0, 0),
        ] {
            assert_eq!(taken(segment, data), (0, 0, false), "{segment} of {data}");
        }
        let too_long = MESSAGE_SPACE - HEAD;
        assert_eq!(taken(8000, too_long), (0, 0, true));
        for length in 0..HEAD {
            let message = message(&[1; HEAD], 0, length, Peer::Unknown);
            assert_eq!((message.range, message.segment), (0..length, 0));
        }
    }
}
