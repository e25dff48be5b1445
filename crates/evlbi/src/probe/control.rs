//! The connection over which both ends of tests agree: JSON messages, each in one piece, over TCP.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use evlbi_core::probe::{Channel, Nonce, Role, Token};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest message before the other end has shown who it is.
const LONGEST_AT_FIRST: usize = 1 << 10;
/// Longest message of a client.
const LONGEST_OF_CLIENT: usize = 64 << 10;
/// Longest message of a responder, whose results may hold a million datagrams.
const LONGEST_OF_RESPONDER: usize = 256 << 20;
/// So long a message may take to be handed to the kernel.
const WRITING: Duration = Duration::from_secs(10);

/// One end of the connection.
pub struct Control {
    stream: TcpStream,
    channel: Channel,
    role: Role,
    heard: Instant,
}

impl Control {
    pub fn new(stream: TcpStream, role: Role) -> Result<Control> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(WRITING))?;
        let channel = Channel::new(role, LONGEST_AT_FIRST);
        Ok(Control {
            stream,
            channel,
            role,
            heard: Instant::now(),
        })
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
        self.stream
            .write_all(&bytes)
            .context("cannot reach the other end")
    }

    /// The next message; none if it does not come in time.
    pub fn receive<M: DeserializeOwned>(&mut self, timeout: Duration) -> Result<Option<M>> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(message) = self.channel.next_message()? {
                let message = serde_json::from_slice(&message);
                return Ok(Some(message.context("a message of another version")?));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut bytes = [0; 16 << 10];
            match self.stream.read(&mut bytes) {
                Ok(0) => bail!("the other end has closed the connection"),
                Ok(count) => {
                    self.channel.feed(&bytes[..count]);
                    self.heard = Instant::now();
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(error).context("the connection has failed"),
            }
        }
    }

    /// When anything came last, part of a message as well.
    pub fn heard(&self) -> Instant {
        self.heard
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
