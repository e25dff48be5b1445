//! TCP as a carrier: connections with the congestion control, the buffers, the segments and the class of service that are
//! asked for, what the kernel says of them at any moment, and messages at a constant rate over them.
//!
//! Here belongs what is set on, or asked of, a connection. What TCP does by itself is modelled in `evlbi-trace`.

mod info;
mod receive;
mod sample;
mod send;
mod stream;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use evlbi_trace::tcp::{Algorithm, Info, Settings};
use serde::{Deserialize, Serialize};
use socket2::Socket;

pub use info::info;
pub use receive::{Kept, MessagesIn, Taken, take_bytes, take_into, take_messages};
pub use sample::{MAX_SAMPLES, Sampled, begin_sampling, readings};
pub use send::{
    Constant, Given, HEADER_LEN, MessagesOut, Progress, give_bytes, give_file, give_messages,
};
pub use stream::{Change, Listener, Stream, Unconnected};

use crate::run::Run;
use crate::socket::{self, GrantedBuffer};

/// Where Linux tells of its congestion controls.
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
/// The other end takes a connection in this time.
const CONNECTING: Duration = Duration::from_secs(4);
/// Connections that have not said who they are, at most; later ones are closed.
const MAX_STRANGERS: usize = 256;
/// Of the connection's key, and of its number.
const GREETING_LEN: usize = 12;

/// What is asked of a connection. What is not said is as the host has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Congestion control by its Linux name: of one end alone, so it is not told to the other.
    #[serde(skip)]
    pub algorithm: Option<String>,
    /// Bytes of the send buffer.
    pub send_buffer: Option<usize>,
    /// Bytes of the receive buffer.
    pub receive_buffer: Option<usize>,
    /// Longest segment in bytes (MSS, RFC 9293).
    pub segment: Option<u32>,
    /// Class of service (RFC 2474), 0 to 63; that of the whole test.
    #[serde(skip)]
    pub dscp: Option<u8>,
}

/// Why a connection cannot be, or not as asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TcpError {
    /// The kernel does not have it.
    #[error("this kernel has no congestion control `{name}`, but {available}")]
    NoAlgorithm {
        /// What was asked for.
        name: String,
        /// What there is.
        available: String,
    },
    /// Not everybody may use it.
    #[error("not everybody may use the congestion control `{0}`")]
    NotAllowed(String),
    /// The other end cannot be reached.
    #[error("cannot connect to {address} by TCP: {source}")]
    Connect {
        /// Where to.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused a socket or one of its options.
    #[error("cannot set up a TCP socket ({what}): {source}")]
    Socket {
        /// What was asked for.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// Not all connections of a test have come.
    #[error(
        "{come} of {expected} TCP connections have come to port {port}: something on the way, such as a firewall, holds them back"
    )]
    Missing {
        /// How many have.
        come: usize,
        /// How many should.
        expected: usize,
        /// Where they should.
        port: u16,
    },
}

impl From<io::Error> for TcpError {
    fn from(source: io::Error) -> TcpError {
        failed("no socket")(source)
    }
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> TcpError {
    move |source| TcpError::Socket { what, source }
}

/// The kernel's congestion controls, with spaces between.
fn available() -> io::Result<String> {
    std::fs::read_to_string(AVAILABLE).map(|names| names.trim().to_owned())
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    granted: Granted,
    /// Bytes that wait before the send buffer.
    backlog: AtomicU64,
    ports: [u16; 2],
}

impl Connection {
    /// Connects, and says which of a test's connections this is.
    ///
    /// # Errors
    /// [`TcpError`].
    pub fn connect(
        to: SocketAddr,
        mut from: SocketAddr,
        device: Option<&str>,
        options: &Options,
        (key, number): (u64, u32),
        run: &Run,
    ) -> Result<Connection, TcpError> {
        from.set_port(0);
        let refused = |source| TcpError::Connect {
            address: to,
            source,
        };
        let (unconnected, granted) = set_up(to, options, run)?;
        if let Unconnected::Kernel(socket) = &unconnected {
            if let Some(device) = device {
                let bound = socket.bind_device(Some(device.as_bytes()));
                bound.map_err(failed("interface"))?;
            }
            let bound = socket.bind(&from.into());
            bound.map_err(failed("local address"))?;
        }
        let stream = unconnected.connect(to, CONNECTING, run).map_err(refused)?;
        let mut greeting = key.to_le_bytes().to_vec();
        greeting.extend(number.to_le_bytes());
        // It is the first that is written, so there is room.
        stream.write(&greeting).map_err(refused)?;
        Ok(Connection::ready(stream, granted))
    }

    fn ready(stream: Stream, granted: Granted) -> Connection {
        let port = |address: io::Result<SocketAddr>| address.map_or(0, |address| address.port());
        Connection {
            ports: [port(stream.local_addr()), port(stream.peer_addr())],
            stream,
            granted,
            backlog: AtomicU64::new(0),
        }
    }

    /// Its send buffer and its receive buffer, where they were asked for.
    pub fn buffers(&self) -> &Granted {
        &self.granted
    }

    /// The congestion control that it has.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn algorithm(&self) -> io::Result<String> {
        self.stream.algorithm()
    }

    /// What is known of it at this moment.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn info(&self) -> io::Result<Info> {
        self.stream.info()
    }

    /// Ports here and there.
    pub fn ports(&self) -> [u16; 2] {
        self.ports
    }
}

/// What becomes a connection of this kind, before anything is agreed upon with the other end, and the buffers that were granted.
pub(crate) fn set_up(
    address: SocketAddr,
    options: &Options,
    run: &Run,
) -> Result<(Unconnected, Granted), TcpError> {
    let mut granted = [None, None];
    let mut unconnected = Unconnected::new(address, run, |socket| {
        granted = set_options(socket, address, options)?;
        Ok::<(), TcpError>(())
    })?;
    if let Unconnected::Simulated(_, settings) = &mut unconnected {
        granted = settle(settings, options)?;
    }
    Ok((unconnected, granted))
}

/// Gives the connections of a simulated host what is asked for, and says what buffers that is.
fn settle(settings: &mut Settings, options: &Options) -> Result<Granted, TcpError> {
    if let Some(name) = &options.algorithm {
        settings.algorithm = simulated(name)?;
    }
    let Options { segment, .. } = options;
    settings.segment = segment.map_or(settings.segment, |most| most.min(settings.segment));
    let buffers = [options.send_buffer, options.receive_buffer];
    let own = [&mut settings.send_buffer, &mut settings.receive_buffer];
    for (own, asked) in own.into_iter().zip(buffers) {
        *own = asked.map_or(*own, |asked| asked as u64);
    }
    Ok(buffers.map(|asked| {
        asked.map(|asked| GrantedBuffer {
            asked,
            granted: asked,
            remedy: None,
        })
    }))
}

/// The congestion control of a simulated host that has this name.
fn simulated(name: &str) -> Result<Algorithm, TcpError> {
    name.parse().map_err(|_| TcpError::NoAlgorithm {
        name: name.to_owned(),
        available: Algorithm::ALL.map(Algorithm::name).join(" "),
    })
}

/// The send buffer and the receive buffer, where they were asked for.
type Granted = [Option<GrantedBuffer>; 2];

fn set_options(
    socket: &Socket,
    address: SocketAddr,
    options: &Options,
) -> Result<Granted, TcpError> {
    if let Some(name) = &options.algorithm {
        set_algorithm(socket, name)?;
    }
    if let Some(segment) = options.segment {
        let set = socket.set_tcp_mss(segment);
        set.map_err(failed("segment size"))?;
    }
    if let Some(dscp) = options.dscp {
        let set = socket::set_class(socket, address, dscp);
        set.map_err(failed("class of service"))?;
    }
    // What is written leaves: the window alone holds it back.
    socket.set_tcp_nodelay(true).map_err(failed("no delay"))?;
    let send = options.send_buffer;
    let send = send.map(|asked| socket::ask_send_buffer(socket, asked));
    let receive = options.receive_buffer;
    let receive = receive.map(|asked| socket::ask_receive_buffer(socket, asked));
    Ok([
        send.transpose().map_err(failed("send buffer"))?,
        receive.transpose().map_err(failed("receive buffer"))?,
    ])
}

fn set_algorithm(socket: &Socket, name: &str) -> Result<(), TcpError> {
    let set = socket.set_tcp_congestion(name.as_bytes());
    set.map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT) => no_algorithm(name),
        Some(libc::EPERM) => TcpError::NotAllowed(name.to_owned()),
        _ => failed("congestion control")(source),
    })
}

fn no_algorithm(name: &str) -> TcpError {
    TcpError::NoAlgorithm {
        name: name.to_owned(),
        available: available().unwrap_or_else(|_| "others".to_owned()),
    }
}

/// Where the connections of a test come to.
#[derive(Debug)]
pub struct Door {
    listener: Listener,
    port: u16,
    granted: Granted,
}

impl Door {
    /// Opens it at an address, where port 0 is any that is free, if the kernel has these congestion controls.
    ///
    /// # Errors
    /// [`TcpError`].
    pub fn open<'a>(
        address: SocketAddr,
        options: &Options,
        algorithms: impl Iterator<Item = &'a String>,
        run: &Run,
    ) -> Result<Door, TcpError> {
        // Who is asked by another end loads no modules for it.
        let available = match run.host() {
            Some(_) => None,
            None => Some(available().map_err(failed("congestion controls"))?),
        };
        for name in algorithms {
            match &available {
                None => simulated(name).map(drop)?,
                Some(all) if all.split_whitespace().any(|one| one == name) => {}
                Some(_) => return Err(no_algorithm(name)),
            }
        }
        let (unconnected, granted) = set_up(address, options, run)?;
        let listener = unconnected.listen(address);
        let listener = listener.map_err(failed("listening"))?;
        let address = listener.local_addr().map_err(failed("local address"))?;
        Ok(Door {
            port: address.port(),
            listener,
            granted,
        })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Takes the connections of a test, in the order of their numbers, each with a congestion control of its own where one
    /// is asked for. What comes without the key is closed.
    ///
    /// # Errors
    /// [`TcpError::Missing`] when they have not all come in time.
    pub fn take(
        self,
        key: u64,
        algorithms: &[Option<String>],
        patience: Duration,
        run: &Run,
    ) -> Result<Vec<Connection>, TcpError> {
        let clock = run.clock();
        let end = clock.now().plus(patience.into());
        let mut found: Vec<Option<Stream>> = algorithms.iter().map(|_| None).collect();
        // Those that have not said yet who they are, and what they have said.
        let mut strangers: Vec<(Stream, Vec<u8>)> = Vec::new();
        while found.iter().any(Option::is_none) {
            if clock.now() >= end || run.is_stopped() {
                return Err(TcpError::Missing {
                    come: found.iter().flatten().count(),
                    expected: found.len(),
                    port: self.port(),
                });
            }
            // An error is one connection's, or passes.
            if let Ok((stream, _)) = self.listener.accept() {
                strangers.push((stream, Vec::new()));
                strangers.truncate(MAX_STRANGERS);
            } else {
                clock.sleep(Duration::from_millis(1));
            }
            for (stream, mut said) in std::mem::take(&mut strangers) {
                match listen_to(&stream, &mut said) {
                    Some(true) => {
                        let number = greeted(&said, key).and_then(|number| found.get_mut(number));
                        if let Some(place) = number.filter(|place| place.is_none()) {
                            *place = Some(stream);
                        }
                    }
                    Some(false) => strangers.push((stream, said)),
                    None => {}
                }
            }
        }
        let mut connections = Vec::new();
        for (stream, algorithm) in found.into_iter().flatten().zip(algorithms) {
            match &stream {
                Stream::Kernel(socket) => {
                    if let Some(name) = algorithm {
                        set_algorithm(socket, name)?;
                    }
                }
                Stream::Simulated(stream) => {
                    if let Some(name) = algorithm {
                        stream.set_algorithm(simulated(name)?);
                    }
                }
            }
            connections.push(Connection::ready(stream, self.granted.clone()));
        }
        Ok(connections)
    }
}

/// Hears what a connection says first: whether that is all; none if it is no connection of ours.
fn listen_to(stream: &Stream, said: &mut Vec<u8>) -> Option<bool> {
    let mut bytes = [0; GREETING_LEN];
    match stream.read(&mut bytes[said.len()..]) {
        Ok(0) => None,
        Ok(count) => {
            said.extend(&bytes[said.len()..][..count]);
            Some(said.len() == GREETING_LEN)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(false),
        Err(_) => None,
    }
}

/// Which connection it says to be, if it knows the key.
fn greeted(said: &[u8], key: u64) -> Option<usize> {
    let (theirs, number) = said.split_first_chunk::<8>()?;
    let number = u32::from_le_bytes(number.try_into().ok()?);
    (u64::from_le_bytes(*theirs) == key).then_some(number as usize)
}
