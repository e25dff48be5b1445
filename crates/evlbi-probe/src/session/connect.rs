//! Connecting to a responder: its address, name resolution, and the connection.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::responder;
use evlbi_net::run::Run;
use evlbi_net::tcp::{Stream, Unconnected};
use smart_default::SmartDefault;

use super::link::POLL_INTERVAL;
use super::{CONNECTING, Result, SessionError, ensure_running};
use crate::endpoint::Test;
use crate::measure::Token;

/// Address of a responder, and how to connect to it.
#[derive(Clone, Debug, SmartDefault)]
pub struct Target {
    /// HOST or HOST:PORT, where the default port is [`responder::PORT`].
    pub address: String,
    /// Token of the responder.
    #[default(Token::from(""))]
    pub token: Token,
    /// Local address.
    pub bind: Option<IpAddr>,
    /// The only interface to use.
    pub device: Option<String>,
    /// DSCP of the datagrams (RFC 2474), 0 to 63.
    pub dscp: Option<u8>,
    /// Maximum wait for other clients' tests.
    #[default(Duration::from_secs(30))]
    pub wait: Duration,
}

impl Target {
    /// Returns the common options of all tests with it.
    pub fn test(&self) -> Test {
        Test {
            dscp: self.dscp,
            timeout: Nanos::SECOND,
            queue: self.wait.into(),
            ..Test::default()
        }
    }
}

/// Reason why a responder cannot be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Its name has no address of the allowed family.
    #[error("`{0}` has no address of the requested family")]
    NoAddress(String),
    /// The interface cannot be used.
    #[error("cannot use the interface {device}")]
    Device {
        /// Name of the interface.
        device: String,
        /// The system's error.
        source: io::Error,
    },
    /// The local address cannot be used.
    #[error("cannot send from {address}")]
    Bind {
        /// The local address.
        address: IpAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The connection failed.
    #[error("{0}")]
    Connect(#[from] io::Error),
}

/// Looks up a responder, in a separate thread because a lookup cannot be cancelled.
fn resolve(address: &str, run: &Run) -> Result<Vec<SocketAddr>> {
    let (tell, told) = mpsc::channel();
    let name = address.to_owned();
    let clock = run.clock();
    let look_up = move || tell.send(responder::look_up(&name));
    clock.spawn("look up", look_up)?;
    loop {
        match clock.receive_by(&told, clock.now().plus(POLL_INTERVAL.into())) {
            Err(RecvTimeoutError::Timeout) => ensure_running(run)?,
            found => {
                let found = found.map_err(io::Error::other)?;
                return found.map_err(|source| SessionError::Unknown {
                    address: address.to_owned(),
                    source,
                });
            }
        }
    }
}

pub(super) fn connect(target: &Target, run: &Run) -> Result<Stream> {
    let Target { address, .. } = target;
    let mut refused = ConnectError::NoAddress(address.clone());
    let bind = target.bind;
    let fits = |to: &SocketAddr| bind.is_none_or(|bind| bind.is_ipv4() == to.is_ipv4());
    for to in resolve(address, run)?.into_iter().filter(fits) {
        ensure_running(run)?;
        match connect_to(to, target, run) {
            Ok(stream) => return Ok(stream),
            Err(error) => refused = error,
        }
    }
    ensure_running(run)?;
    Err(SessionError::Unreachable {
        address: address.clone(),
        source: refused,
    })
}

fn connect_to(to: SocketAddr, target: &Target, run: &Run) -> Result<Stream, ConnectError> {
    let unconnected = Unconnected::new(to, run, |socket| {
        socket.set_tcp_nodelay(true)?;
        if let Some(device) = &target.device {
            let bound = socket.bind_device(Some(device.as_bytes()));
            bound.map_err(|source| ConnectError::Device {
                device: device.clone(),
                source,
            })?;
        }
        if let Some(address) = target.bind {
            let bound = socket.bind(&SocketAddr::new(address, 0).into());
            bound.map_err(|source| ConnectError::Bind { address, source })?;
        }
        Ok::<(), ConnectError>(())
    })?;
    Ok(unconnected.connect(to, CONNECTING, run)?)
}
