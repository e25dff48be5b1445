//! The connection over which both ends of tests agree: JSON messages, each in one piece, over TCP.

use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::clock::Clock;
use evlbi_net::tcp::{Change, Stream};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::measure::{Channel, ChannelError, Nonce, Role, Token};

/// Longest message before the other end has shown who it is.
const MAX_AT_FIRST: usize = 1 << 10;
/// Longest message of a client.
const MAX_OF_CLIENT: usize = 64 << 10;
/// Longest message of a responder, whose results may hold a million datagrams.
const MAX_OF_RESPONDER: usize = 256 << 20;
/// So long a message may take to be handed to the kernel.
const WRITING: Duration = Duration::from_secs(10);

/// Why the connection between the ends of a test does not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// A message cannot be put into JSON.
    #[error("cannot write a message")]
    Encode(#[source] serde_json::Error),
    /// What comes, or goes, is no message of somebody who knows the token.
    #[error("{0}")]
    Channel(#[from] ChannelError),
    /// Nothing can be sent any more.
    #[error("cannot reach the other end")]
    Send(#[source] io::Error),
    /// A message cannot be read.
    #[error("a message of another version")]
    Decode(#[source] serde_json::Error),
    /// The other end has ended it.
    #[error("the other end has closed the connection")]
    Closed,
    /// Nothing can be received any more.
    #[error("the connection has failed")]
    Receive(#[source] io::Error),
}

/// A number that an end uses once.
pub fn nonce(clock: &Clock) -> Nonce {
    let mut nonce = Nonce::default();
    for word in nonce.chunks_exact_mut(8) {
        word.copy_from_slice(&clock.random().to_le_bytes());
    }
    nonce
}

/// One end of the connection.
pub struct Control {
    stream: Stream,
    channel: Channel,
    role: Role,
    clock: Clock,
    heard: Nanos,
    /// What is read comes here first.
    room: Box<[u8; 4 << 10]>,
}

impl Control {
    /// The end of this role, which has shown nothing yet.
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

    /// From now on both ends prove with every message that they know the token.
    pub fn secure(&mut self, token: &Token, nonces: [&Nonce; 2]) {
        let longest = match self.role {
            Role::Client => MAX_OF_RESPONDER,
            Role::Responder => MAX_OF_CLIENT,
        };
        self.channel.secure(token, nonces, longest);
    }

    /// Sends a message, and waits until the kernel has taken it.
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

    /// The next message; none if it does not come in time.
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
            // It looks once, however late it is.
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

    /// When anything came last, part of a message as well.
    pub fn heard(&self) -> Nanos {
        self.heard
    }

    /// The connection.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
