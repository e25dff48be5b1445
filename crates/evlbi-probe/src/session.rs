//! Session of a client with a responder: authentication, and tests one after another.
//!
//! The client's work before, between and after tests belongs here; a test itself is in [`endpoint`](crate::endpoint).

mod connect;
mod link;
mod running;

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use evlbi_net::host::Counters;
use evlbi_net::run::Run;
use evlbi_net::tcp::TcpError;
use evlbi_net::udp::OpenError;
use evlbi_trace::tcp::Reading;
use serde::Serialize;

use self::connect::connect;
use self::running::{Hosts, Testing};
use super::control::{Control, ControlError, nonce};
use super::direction::Direction;
use crate::endpoint::{
    CLOCK_FROM, EndpointReport, Files, FromClient, FromResponder, Limits, Port, RoundTrip, Test,
    TestError, VERSION, Window, Work, WorkError,
};
use crate::measure::{Channel, Role};

pub use self::connect::{ConnectError, Target};
pub use self::link::{
    ALIVE, GONE, Gone, Link, POLL_INTERVAL, SLOW_POLL_INTERVAL, draining, poll_interval,
};

/// Timeout for a reply from the responder.
const CONNECTING: Duration = Duration::from_secs(10);

/// Reason why there is no session with a responder, or a test in it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The responder's name is unknown.
    #[error("cannot find the host `{address}`")]
    Unknown {
        /// Address as given by the user.
        address: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// No connection could be made.
    #[error("cannot reach {address}")]
    Unreachable {
        /// The address.
        address: String,
        /// Error of the last address that was tried.
        source: ConnectError,
    },
    /// The server does not speak the responder's protocol.
    #[error("{address} is not a responder")]
    NoResponder {
        /// The address.
        address: String,
        /// Error in its message.
        source: ControlError,
    },
    /// The server is silent.
    #[error("{address} is silent: it is not a responder")]
    Silent {
        /// The address.
        address: String,
    },
    /// The responder is of another version.
    #[error(
        "{address} has version {theirs} of the messages, this program {ours}: use the same version of evlbi on both hosts"
    )]
    Version {
        /// The responder.
        address: String,
        /// Its version of the messages.
        theirs: u32,
        /// The local version of the messages.
        ours: u32,
    },
    /// The responder accepts no clients.
    #[error("{address}: {reason}")]
    TurnedAway {
        /// The responder.
        address: String,
        /// Its reason.
        reason: String,
    },
    /// The responder does not continue after authentication.
    #[error("{address} did not accept the token: use the same one as the responder")]
    Token {
        /// The responder.
        address: String,
        /// Error of the connection; `None` after an unexpected message.
        source: Option<ControlError>,
    },
    /// The responder accepts no clients with this token.
    #[error("{address} refuses: {reason}")]
    Denied {
        /// The responder.
        address: String,
        /// Its reason.
        reason: String,
    },
    /// The responder refuses the test.
    #[error("the responder refuses: {0}")]
    Refused(String),
    /// The responder sends an unexpected message.
    #[error("unexpected message from the responder")]
    Unexpected,
    /// The responder does not answer.
    #[error("the responder does not answer")]
    NoAnswer,
    /// The responder fell silent.
    #[error("{0}")]
    Gone(#[from] Gone),
    /// The run was stopped.
    #[error("interrupted")]
    Interrupted,
    /// The test is invalid.
    #[error("{0}")]
    Test(#[from] TestError),
    /// The control connection failed.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// There is no UDP socket.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// There are no TCP connections to test.
    #[error("{0}")]
    Tcp(#[from] TcpError),
    /// This endpoint failed.
    #[error("{0}")]
    Work(#[from] WorkError),
    /// The consumer of the test's events failed.
    #[error("{0}")]
    Told(#[source] Box<dyn Error + Send + Sync>),
    /// Another error of the system.
    #[error("{0}")]
    Io(#[from] io::Error),
}

type Result<T, E = SessionError> = std::result::Result<T, E>;

/// An authenticated session with a responder.
pub struct Session {
    control: Control,
    limits: Limits,
    device: Option<String>,
    /// Files of the next TCP test.
    pub files: Files,
}

/// Consumer of a test's events.
type Show<'a> = dyn FnMut(&Event<'_>) -> Result<(), Box<dyn Error + Send + Sync>> + 'a;

/// Reports of both endpoints of a test.
#[derive(Debug)]
pub(crate) struct TestReport {
    pub here: EndpointReport,
    pub there: EndpointReport,
    /// Address of the responder.
    pub peer: SocketAddr,
    /// Round trips before and after the streams.
    pub clock: Vec<RoundTrip>,
    /// Requests that left, without clock requests.
    pub requests: u64,
    /// Reason for an early end.
    pub stopped: Option<String>,
}

/// Event during a test.
pub enum Event<'a> {
    /// Progress of the test.
    Progress(&'a Progress),
    /// A window of a stream is settled.
    Settled(&'a Settled<'a>),
}

/// A window of a stream, and the hosts' counters since the last window but one: counters are read when a window is settled, which is
/// somewhat after its end.
pub struct Settled<'a> {
    pub direction: Direction,
    pub window: &'a Window,
    /// Datagrams of all windows so far that the sending kernel refused.
    pub not_sent: u64,
    pub sender: Side<'a>,
    pub receiver: Side<'a>,
}

/// Counters of a host, and the interface that it uses.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    pub counters: &'a Counters,
    pub interface: Option<&'a str>,
}

/// Progress of a test.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Progress {
    /// Datagrams sent by this host, or bytes written to connections.
    pub used: u64,
    /// The number of these that arrived at the responder.
    pub arrived_there: u64,
    /// Datagrams, or bytes, that arrived at this host.
    pub arrived_here: u64,
    /// Seconds since the start of the streams.
    pub seconds: f64,
    /// Local kernel's state of the connections.
    pub connections: Vec<Reading>,
}

impl Session {
    /// Connects to a responder, and authenticates.
    pub fn begin(target: &Target, run: &Run) -> Result<Session> {
        let Target { address, token, .. } = target;
        let stream = connect(target, run)?;
        let mut control = Control::new(stream, Role::Client, run.clock());
        let hello = first(&mut control, run);
        let address = || address.clone();
        let hello = hello.map_err(|source| SessionError::NoResponder {
            address: address(),
            source,
        })?;
        ensure_running(run)?;
        let theirs = match hello {
            Some(FromResponder::Hello { version, nonce }) if version == VERSION => nonce,
            Some(FromResponder::Hello { version, .. }) => {
                return Err(SessionError::Version {
                    address: address(),
                    theirs: version,
                    ours: VERSION,
                });
            }
            Some(FromResponder::Refused { reason }) => {
                let address = address();
                return Err(SessionError::TurnedAway { address, reason });
            }
            _ => return Err(SessionError::Silent { address: address() }),
        };
        let ours = nonce(run.clock());
        control.send(&FromClient::Proof {
            version: VERSION,
            nonce: ours,
            proof: Channel::proof(token, [&theirs, &ours]),
        })?;
        control.secure(token, [&theirs, &ours]);
        let refused = |source| SessionError::Token {
            address: address(),
            source,
        };
        let welcome = first(&mut control, run).map_err(|error| refused(Some(error)))?;
        ensure_running(run)?;
        match welcome {
            Some(FromResponder::Welcome { limits }) => Ok(Session {
                control,
                limits,
                device: target.device.clone(),
                files: Files::default(),
            }),
            Some(FromResponder::Refused { reason }) => {
                let address = address();
                Err(SessionError::Denied { address, reason })
            }
            _ => Err(refused(None)),
        }
    }

    /// Returns the round-trip time to the responder in seconds, from the kernel's state of the control connection.
    pub fn round_trip(&self) -> f64 {
        let info = self.control.stream().info();
        info.map_or(0.0, |info| f64::from(info.shortest_round_trip) * 1e-6)
    }

    /// Returns whether it is over IPv6.
    pub fn is_v6(&self) -> bool {
        let peer = self.control.stream().peer_addr();
        peer.is_ok_and(|peer| peer.ip().to_canonical().is_ipv6())
    }

    /// Returns the limits of the responder.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Runs a test: its streams, or requests.
    pub fn run(&mut self, test: &Test, run: &Run, show: &mut Show<'_>) -> Result<TestReport> {
        self.limits.allow(test)?;
        self.control
            .send(&FromClient::Open(Box::new(test.clone())))?;
        let (key, port, door, interface) = self.opened(run)?;
        let mut peer = self.control.stream().peer_addr()?;
        let mut local = self.control.stream().local_addr()?;
        peer.set_port(port);
        local.set_port(0);
        let [peer, local] = [peer, local].map(plain);
        let port = Port::open(local, test, self.device.clone(), run)?;
        let local = port.local_address();
        let interfaces = [port.interface(), interface];
        let work = Work::begin(port, Some(peer), key, test.back.as_ref(), test, None, run)?;
        let connections = match (&test.flows, door) {
            (Some(flows), Some(door)) => {
                let mut to = peer;
                to.set_port(door);
                flows.connect(to, local, self.device.as_deref(), test.dscp, key, run)?
            }
            _ => Vec::new(),
        };
        let mut testing = Testing {
            control: &mut self.control,
            work,
            hosts: Hosts {
                interfaces,
                ..Hosts::default()
            },
            clock: CLOCK_FROM,
            test,
            run,
            show,
        };
        testing.be_found(local.port())?;
        testing.measure_clock()?;
        testing.work.observe()?;
        testing.control.send(&FromClient::Go)?;
        match (test.there, test.requests) {
            (Some(stream), _) => testing.work.send(stream, test)?,
            (None, Some(requests)) => testing.work.ask(0, requests)?,
            (None, None) => {}
        }
        if let Some(flows) = &test.flows {
            let files = std::mem::take(&mut self.files);
            let work = &mut testing.work;
            work.begin_flows(connections, flows, files, true, test.max_time)?;
        }
        testing.hosts.begin = run.counters().unwrap_or_default();
        let (stopped, requests, there) = match testing.both() {
            // Keep what was measured here.
            Err(error) if test.flows.is_some() => {
                (Some(run.explain(&error)), 0, EndpointReport::default())
            }
            both => both?,
        };
        let mut here = testing.work.finish()?;
        let departed = here.departed.as_ref();
        let stopped = stopped.or_else(|| departed?.stopped.clone());
        let trips = here.listened.round_trips.into_iter();
        let (clock, measured) = trips.partition(|trip| trip.sequence >= CLOCK_FROM);
        here.listened.round_trips = measured;
        Ok(TestReport {
            here,
            there,
            peer,
            clock,
            requests,
            stopped,
        })
    }

    /// Waits for the responder's socket. Returns the test's key, the ports for datagrams and for connections, and the interface.
    fn opened(&mut self, run: &Run) -> Result<(u64, u16, Option<u16>, Option<String>)> {
        let mut told = false;
        let clock = run.clock();
        let mut heard = clock.now();
        loop {
            ensure_running(run)?;
            match self.control.receive(POLL_INTERVAL * 5)? {
                Some(FromResponder::Opened {
                    key,
                    port,
                    door,
                    interface,
                }) => return Ok((key, port, door, interface)),
                Some(FromResponder::Waiting { reason }) => {
                    if !told {
                        run.line(format_args!("waiting: {reason}"));
                    }
                    told = true;
                    heard = clock.now();
                    // It is still waiting.
                    self.control
                        .send(&FromClient::Alive { unique: 0, used: 0 })?;
                }
                None if clock.now().since(heard) < GONE.into() => {}
                other => return Err(unexpected(other)),
            }
        }
    }
}

/// Converts an IPv4 address that a socket of both families shows as IPv6.
pub fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::new(v4.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

fn unexpected(message: Option<FromResponder>) -> SessionError {
    match message {
        Some(FromResponder::Refused { reason }) => SessionError::Refused(reason),
        Some(_) => SessionError::Unexpected,
        None => SessionError::NoAnswer,
    }
}

/// Returns an error once the run is stopped.
fn ensure_running(run: &Run) -> Result<()> {
    match run.is_stopped() {
        true => Err(SessionError::Interrupted),
        false => Ok(()),
    }
}

/// Receives a message of the handshake; `None` after a timeout, or when the run is stopped.
fn first(control: &mut Control, run: &Run) -> Result<Option<FromResponder>, ControlError> {
    let clock = run.clock();
    let end = clock.now().plus(CONNECTING.into());
    loop {
        let message = control.receive(POLL_INTERVAL * 5)?;
        if message.is_some() || clock.now() > end || run.is_stopped() {
            return Ok(message);
        }
    }
}
