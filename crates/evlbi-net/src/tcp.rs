//! TCP connections with the requested congestion control, buffers, segment size and DSCP, their state as the kernel reports it, and
//! messages at a constant rate over them.
//!
//! This module contains what can be set on a connection or read from it. `evlbi-trace` models TCP itself.

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

/// File in which Linux lists its congestion control algorithms.
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
/// Timeout for the remote host to accept a connection.
const CONNECTING: Duration = Duration::from_secs(4);
/// Maximum number of connections that have not authenticated yet; later ones are closed.
const MAX_STRANGERS: usize = 256;
/// Length of a greeting: the connection's key and its number.
const GREETING_LEN: usize = 12;

/// Options of a connection. Unset ones keep the host's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Options {
    /// Linux name of the congestion control algorithm. It concerns one end, so it is not sent to the other.
    #[serde(skip)]
    pub algorithm: Option<String>,
    /// Send buffer in bytes.
    pub send_buffer: Option<usize>,
    /// Receive buffer in bytes.
    pub receive_buffer: Option<usize>,
    /// Maximum segment size in bytes (MSS, RFC 9293).
    pub segment: Option<u32>,
    /// DSCP (RFC 2474), 0 to 63, for the whole test.
    #[serde(skip)]
    pub dscp: Option<u8>,
}

/// Reason why a connection cannot be opened, or not as requested.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TcpError {
    /// The kernel does not have this congestion control algorithm.
    #[error("congestion control `{name}` is not available: this kernel has {available}")]
    NoAlgorithm {
        /// The requested one.
        name: String,
        /// The available ones.
        available: String,
    },
    /// Only privileged users may use it.
    #[error("congestion control `{0}` needs privileges")]
    NotAllowed(String),
    /// The remote host cannot be reached.
    #[error("cannot connect to {address} by TCP: {source}")]
    Connect {
        /// Its address.
        address: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refused a socket or one of its options.
    #[error("cannot set up a TCP socket ({what}): {source}")]
    Socket {
        /// The option or call.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// Not all connections of a test have arrived.
    #[error(
        "{arrived} of {expected} TCP connections reached port {port}: something on the path, e.g. a firewall, blocks the others"
    )]
    Missing {
        /// Number of connections that have arrived.
        arrived: usize,
        /// Expected number.
        expected: usize,
        /// Port at which they should arrive.
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

/// Returns the kernel's congestion control algorithms, separated by spaces.
fn available() -> io::Result<String> {
    std::fs::read_to_string(AVAILABLE).map(|names| names.trim().to_owned())
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    granted: Granted,
    /// Bytes that wait for the send buffer.
    backlog: AtomicU64,
    ports: [u16; 2],
}

impl Connection {
    /// Connects to a listener, and sends the key and the number of this connection of a test.
    ///
    /// # Errors
    /// Returns [`TcpError`].
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
        // It is the first write, so there is room.
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

    /// Returns its send buffer and its receive buffer, if sizes were requested.
    pub fn buffers(&self) -> &Granted {
        &self.granted
    }

    /// Returns its congestion control algorithm.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn algorithm(&self) -> io::Result<String> {
        self.stream.algorithm()
    }

    /// Returns its present state.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn info(&self) -> io::Result<Info> {
        self.stream.info()
    }

    /// Returns the local and the remote port.
    pub fn ports(&self) -> [u16; 2] {
        self.ports
    }
}

/// Creates the socket of such a connection, before anything is negotiated with the remote host, and the granted buffers.
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

/// Applies the requested options to the connections of a simulated host; returns the granted buffers.
fn settle(settings: &mut Settings, options: &Options) -> Result<Granted, TcpError> {
    if let Some(name) = &options.algorithm {
        settings.algorithm = simulated(name)?;
    }
    let Options { segment, .. } = options;
    settings.segment = segment.map_or(settings.segment, |max| max.min(settings.segment));
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

/// Returns the algorithm of a simulated host with this name.
fn simulated(name: &str) -> Result<Algorithm, TcpError> {
    name.parse().map_err(|_| TcpError::NoAlgorithm {
        name: name.to_owned(),
        available: Algorithm::ALL.map(Algorithm::name).join(" "),
    })
}

/// The send buffer and the receive buffer, if sizes were requested.
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
        let set = socket::set_class(socket, address, dscp, 0);
        set.map_err(failed("class of service"))?;
    }
    // Data leaves as soon as it is written: only the window limits it.
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

/// Listener for the connections of a test.
#[derive(Debug)]
pub struct Door {
    listener: Listener,
    port: u16,
    granted: Granted,
}

impl Door {
    /// Opens it at an address (port 0: any free one), if the kernel has these congestion control algorithms.
    ///
    /// # Errors
    /// Returns [`TcpError`].
    pub fn open<'a>(
        address: SocketAddr,
        options: &Options,
        algorithms: impl Iterator<Item = &'a String>,
        run: &Run,
    ) -> Result<Door, TcpError> {
        // A request from a remote host must not load kernel modules.
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

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Accepts the connections of a test, sorted by their numbers, each with its own congestion control algorithm if requested.
    /// Connections without the key are closed.
    ///
    /// # Errors
    /// Returns [`TcpError::Missing`] if not all arrived in time.
    pub fn take(
        self,
        key: u64,
        algorithms: &[Option<String>],
        timeout: Duration,
        run: &Run,
    ) -> Result<Vec<Connection>, TcpError> {
        let clock = run.clock();
        let end = clock.now().plus(timeout.into());
        let mut found: Vec<Option<Stream>> = algorithms.iter().map(|_| None).collect();
        // Connections that have not sent a full greeting yet, and the bytes so far.
        let mut unauthenticated: Vec<(Stream, Vec<u8>)> = Vec::new();
        while found.iter().any(Option::is_none) {
            if clock.now() >= end || run.is_stopped() {
                return Err(TcpError::Missing {
                    arrived: found.iter().flatten().count(),
                    expected: found.len(),
                    port: self.port(),
                });
            }
            // An error concerns one connection, or passes.
            if let Ok((stream, _)) = self.listener.accept() {
                unauthenticated.push((stream, Vec::new()));
                unauthenticated.truncate(MAX_STRANGERS);
            } else {
                clock.sleep(Duration::from_millis(1));
            }
            for (stream, mut said) in std::mem::take(&mut unauthenticated) {
                match listen_to(&stream, &mut said) {
                    Some(true) => {
                        let number = greeted(&said, key).and_then(|number| found.get_mut(number));
                        if let Some(place) = number.filter(|place| place.is_none()) {
                            *place = Some(stream);
                        }
                    }
                    Some(false) => unauthenticated.push((stream, said)),
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

/// Reads the greeting of a connection: whether it is complete; `None` if the connection is not one of ours.
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

/// Returns the connection's number, if its key is correct.
fn greeted(said: &[u8], key: u64) -> Option<usize> {
    let (theirs, number) = said.split_first_chunk::<8>()?;
    let number = u32::from_le_bytes(number.try_into().ok()?);
    (u64::from_le_bytes(*theirs) == key).then_some(number as usize)
}
