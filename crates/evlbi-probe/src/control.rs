//! The connection over which both ends of tests agree: JSON messages, each in one piece, over TCP.

use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use evlbi_core::time::Nanos;
use evlbi_net::clock::Clock;
use evlbi_net::tcp::{Change, Stream};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::measure::{Channel, Nonce, Role, Token};

/// Longest message before the other end has shown who it is.
const LONGEST_AT_FIRST: usize = 1 << 10;
/// Longest message of a client.
const LONGEST_OF_CLIENT: usize = 64 << 10;
/// Longest message of a responder, whose results may hold a million datagrams.
const LONGEST_OF_RESPONDER: usize = 256 << 20;
/// So long a message may take to be handed to the kernel.
const WRITING: Duration = Duration::from_secs(10);

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
    pub fn new(stream: Stream, role: Role, clock: &Clock) -> Control {
        Control {
            stream,
            channel: Channel::new(role, LONGEST_AT_FIRST),
            role,
            heard: clock.now(),
            clock: clock.clone(),
            room: Box::new([0; _]),
        }
    }

    /// From now on both ends prove with every message that they know the token.
    pub fn secure(&mut self, token: &Token, nonces: [&Nonce; 2]) {
        let longest = match self.role {
            Role::Client => LONGEST_OF_RESPONDER,
            Role::Responder => LONGEST_OF_CLIENT,
        };
        self.channel.secure(token, nonces, longest);
    }

    pub fn send<M: Serialize>(&mut self, message: &M) -> Result<()> {
        let text = serde_json::to_vec(message).context("cannot write a message")?;
        let bytes = self.channel.seal(&text)?;
        self.write(&bytes).context("cannot reach the other end")
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
    pub fn receive<M: DeserializeOwned>(&mut self, timeout: Duration) -> Result<Option<M>> {
        let end = self.clock.now().plus(timeout.into());
        let mut has_looked = false;
        loop {
            if let Some(message) = self.channel.next_message()? {
                let message = serde_json::from_slice(&message);
                return Ok(Some(message.context("a message of another version")?));
            }
            // It looks once, however late it is.
            if std::mem::replace(&mut has_looked, true) && self.clock.now() >= end {
                return Ok(None);
            }
            match self.stream.read(&mut self.room[..]) {
                Ok(0) => bail!("the other end has closed the connection"),
                Ok(count) => {
                    self.channel.feed(&self.room[..count]);
                    self.heard = self.clock.now();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.stream.wait(Change::Readable, &self.clock, end);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("the connection has failed"),
            }
        }
    }

    /// When anything came last, part of a message as well.
    pub fn heard(&self) -> Nanos {
        self.heard
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
