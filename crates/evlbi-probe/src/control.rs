//! Control connection between the endpoints of a test: JSON messages over TCP, each sent whole.

use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::clock::Clock;
use evlbi_net::tcp::{Change, Stream};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::measure::{Channel, ChannelError, Nonce, Role, Token};

/// Maximum length of a message before authentication, in bytes.
const MAX_AT_FIRST: usize = 1 << 10;
/// Maximum length of a client's message, in bytes.
const MAX_OF_CLIENT: usize = 64 << 10;
/// Maximum length of a responder's message, in bytes; results may contain a million datagrams.
const MAX_OF_RESPONDER: usize = 256 << 20;
/// Timeout for the kernel to accept a message.
const WRITING: Duration = Duration::from_secs(10);

/// Reason why the control connection of a test fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// A message cannot be converted to JSON.
    #[error("cannot encode a message")]
    Encode(#[source] serde_json::Error),
    /// A received message is not authentic, or one to send is too long.
    #[error("{0}")]
    Channel(#[from] ChannelError),
    /// Sending is no longer possible.
    #[error("cannot reach the other endpoint")]
    Send(#[source] io::Error),
    /// A message cannot be read.
    #[error("a message of another version")]
    Decode(#[source] serde_json::Error),
    /// The other endpoint has closed it.
    #[error("the other endpoint closed the connection")]
    Closed,
    /// Receiving is no longer possible.
    #[error("the connection failed")]
    Receive(#[source] io::Error),
}

/// Returns a number that an endpoint uses once.
pub fn nonce(clock: &Clock) -> Nonce {
    let mut nonce = Nonce::default();
    for word in nonce.chunks_exact_mut(8) {
        word.copy_from_slice(&clock.random().to_le_bytes());
    }
    nonce
}

/// One endpoint of the connection.
pub struct Control {
    stream: Stream,
    channel: Channel,
    role: Role,
    clock: Clock,
    heard: Nanos,
    /// Buffer for reading.
    room: Box<[u8; 4 << 10]>,
}

impl Control {
    /// Creates the endpoint of this role, unauthenticated.
    pub fn new(stream: Stream, role: Role, clock: &Clock) -> Control {
        Control {
            stream,
            channel: Channel::new(role, MAX_AT_FIRST),
            role,
            heard: clock.now(),
            clock: clock.clone(),
            room: Box::new([0; _]),
        }
    }

    /// Authenticates every message of both endpoints with the token from now on.
    pub fn secure(&mut self, token: &Token, nonces: [&Nonce; 2]) {
        let longest = match self.role {
            Role::Client => MAX_OF_RESPONDER,
            Role::Responder => MAX_OF_CLIENT,
        };
        self.channel.secure(token, nonces, longest);
    }

    /// Sends a message, and waits until the kernel has accepted it.
    pub fn send<M: Serialize>(&mut self, message: &M) -> Result<(), ControlError> {
        let text = serde_json::to_vec(message).map_err(ControlError::Encode)?;
        let bytes = self.channel.seal(&text)?;
        self.write(&bytes).map_err(ControlError::Send)
    }

    fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        let mut end = self.clock.now().plus(WRITING.into());
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(count) => {
                    bytes = &bytes[count..];
                    end = self.clock.now().plus(WRITING.into());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.clock.now() >= end {
                        return Err(ErrorKind::TimedOut.into());
                    }
                    self.stream.wait(Change::Writable, &self.clock, end);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the next message, or `None` at the timeout.
    pub fn receive<M: DeserializeOwned>(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<M>, ControlError> {
        let end = self.clock.now().plus(timeout.into());
        let mut has_looked = false;
        loop {
            if let Some(message) = self.channel.next_message()? {
                let message = serde_json::from_slice(&message);
                return Ok(Some(message.map_err(ControlError::Decode)?));
            }
            // It polls at least once, however late it is.
            if std::mem::replace(&mut has_looked, true) && self.clock.now() >= end {
                return Ok(None);
            }
            match self.stream.read(&mut self.room[..]) {
                Ok(0) => return Err(ControlError::Closed),
                Ok(count) => {
                    self.channel.feed(&self.room[..count]);
                    self.heard = self.clock.now();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.stream.wait(Change::Readable, &self.clock, end);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(ControlError::Receive(error)),
            }
        }
    }

    /// Returns when anything was last received, even part of a message.
    pub fn heard(&self) -> Nanos {
        self.heard
    }

    /// Returns the connection.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
