//! Authenticated messages between the endpoints of a test, one after another over a stream of bytes. Each has a length and, once both
//! endpoints have proved that they hold the token, an authentication code.
//!
//! A message consists of its length (4 bytes, big-endian), its bytes and, once the channel is secure, HMAC-SHA-256 (RFC 2104) over its
//! sender, its number and its bytes. The key is derived from the token and a nonce of each endpoint. So no recording of another connection
//! is valid, and within a connection no message can be repeated, dropped or moved. Messages are not encrypted: anyone who captures the
//! connection can read them.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Length of an authentication code in bytes.
pub const MAC_LEN: usize = 32;
/// Bytes of the length field.
const LENGTH_LEN: usize = 4;

/// Random number of an endpoint, used once.
pub type Nonce = [u8; 16];

/// Shared secret of both endpoints.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl From<&str> for Token {
    fn from(text: &str) -> Token {
        Token(text.as_bytes().to_vec())
    }
}

impl Token {
    /// Returns whether it is empty, which protects nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a number derived from the token and `of`, which nobody without the token can calculate.
    pub fn key(&self, of: &str) -> u64 {
        let mut mac = new_mac(&self.0);
        mac.update(b"evlbi.probe/1 key ");
        mac.update(of.as_bytes());
        let code = mac.finalize().into_bytes();
        code.first_chunk().copied().map_or(0, u64::from_be_bytes)
    }
}

/// Role of a sender, with its byte in authentication codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// Requests tests.
    Client = b'c',
    /// Grants them.
    Responder = b'r',
}

impl Role {
    fn other(self) -> Role {
        match self {
            Role::Client => Role::Responder,
            Role::Responder => Role::Client,
        }
    }
}

/// Reason why a channel cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// A message exceeds the maximum length.
    #[error(
        "message of {0} bytes exceeds the maximum of {1}: the other endpoint is not evlbi, or another version"
    )]
    TooLong(usize, usize),
    /// An authentication code is wrong.
    #[error("a message was changed in transit, or its sender does not hold the token")]
    Forged,
}

/// One endpoint of a channel, without the connection that carries it.
pub struct Channel {
    role: Role,
    /// Maximum length of a received message.
    max_len: usize,
    key: Option<Hmac<Sha256>>,
    sealed: u64,
    opened: u64,
    incoming: Vec<u8>,
}

impl Channel {
    /// Creates a channel without a key that accepts messages of up to `max_len` bytes.
    pub fn new(role: Role, max_len: usize) -> Channel {
        Channel {
            role,
            max_len,
            key: None,
            sealed: 0,
            opened: 0,
            incoming: Vec::new(),
        }
    }

    /// Returns a client's proof that it holds the token: over both nonces, the responder's first.
    pub fn proof(token: &Token, nonces: [&Nonce; 2]) -> [u8; MAC_LEN] {
        let code = keyed(token, b"proof", nonces).finalize();
        code.into_bytes().into()
    }

    /// Returns whether a client's proof is valid, in constant time.
    pub fn is_proof(token: &Token, nonces: [&Nonce; 2], proof: &[u8]) -> bool {
        keyed(token, b"proof", nonces).verify_slice(proof).is_ok()
    }

    /// Adds an authentication code to messages in both directions from now on, and sets their maximum length.
    pub fn secure(&mut self, token: &Token, nonces: [&Nonce; 2], max_len: usize) {
        let key = keyed(token, b"session", nonces).finalize().into_bytes();
        self.key = Some(new_mac(&key));
        self.max_len = max_len;
    }

    /// Returns a message as sent over the connection.
    ///
    /// # Errors
    /// [`ChannelError::TooLong`] if its length does not fit the field.
    pub fn seal(&mut self, message: &[u8]) -> Result<Vec<u8>, ChannelError> {
        let too_long = |_| ChannelError::TooLong(message.len(), u32::MAX as usize);
        let length = u32::try_from(message.len()).map_err(too_long)?;
        let mut bytes = Vec::with_capacity(LENGTH_LEN + message.len() + MAC_LEN);
        bytes.extend(length.to_be_bytes());
        bytes.extend(message);
        if let Some(key) = &self.key {
            let code = code(key, self.role, self.sealed, message);
            bytes.extend(code.finalize().into_bytes());
            self.sealed += 1;
        }
        Ok(bytes)
    }

    /// Takes bytes received over the connection.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.incoming.extend_from_slice(bytes);
    }

    /// Returns the next complete message.
    ///
    /// # Errors
    /// [`ChannelError`]; nothing after it can be trusted.
    pub fn next_message(&mut self) -> Result<Option<Vec<u8>>, ChannelError> {
        let Some(length) = self.incoming.first_chunk::<LENGTH_LEN>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        if length > self.max_len {
            return Err(ChannelError::TooLong(length, self.max_len));
        }
        let mac = if self.key.is_some() { MAC_LEN } else { 0 };
        let (begin, end) = (LENGTH_LEN, LENGTH_LEN + length);
        if self.incoming.len() < end + mac {
            return Ok(None);
        }
        let message = self.incoming[begin..end].to_vec();
        if let Some(key) = &self.key {
            code(key, self.role.other(), self.opened, &message)
                .verify_slice(&self.incoming[end..end + mac])
                .map_err(|_| ChannelError::Forged)?;
            self.opened += 1;
        }
        self.incoming.drain(..end + mac);
        Ok(Some(message))
    }
}

fn new_mac(key: &[u8]) -> Hmac<Sha256> {
    let mac = Hmac::new_from_slice(key);
    mac.unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"))
}

fn keyed(token: &Token, purpose: &[u8], nonces: [&Nonce; 2]) -> Hmac<Sha256> {
    let mut mac = new_mac(&token.0);
    mac.update(b"evlbi.probe/1 ");
    mac.update(purpose);
    nonces.iter().for_each(|nonce| mac.update(*nonce));
    mac
}

fn code(key: &Hmac<Sha256>, sender: Role, number: u64, message: &[u8]) -> Hmac<Sha256> {
    let mut mac = key.clone();
    mac.update(&[sender as u8]);
    mac.update(&number.to_be_bytes());
    mac.update(message);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NONCES: [&Nonce; 2] = [&[1; 16], &[2; 16]];

    fn pair(tokens: [&str; 2]) -> [Channel; 2] {
        let roles = [Role::Client, Role::Responder];
        let mut ends = roles.map(|role| Channel::new(role, 100));
        for (end, token) in ends.iter_mut().zip(tokens) {
            end.secure(&Token::from(token), NONCES, 1000);
        }
        ends
    }

    #[test]
    fn a_known_code() {
        // Made with Python's hmac: key b"k", message b"evlbi.probe/1 proof" + 16 * b"\1" + 16 * b"\2".
        let proof = Channel::proof(&Token::from("k"), NONCES);
        let shown: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(shown, KNOWN);
        assert!(Channel::is_proof(&Token::from("k"), NONCES, &proof));
        assert!(!Channel::is_proof(&Token::from("l"), NONCES, &proof));
        assert!(!Channel::is_proof(
            &Token::from("k"),
            [NONCES[1], NONCES[0]],
            &proof
        ));
        assert!(!Channel::is_proof(&Token::from("k"), NONCES, &proof[1..]));
    }
    const KNOWN: &str = "574c92a7d328dcd351e1ac961b882aeede75628f026cdaa02c54ffef8382d3ae";

    #[test]
    fn messages_come_over_in_pieces() {
        let [mut client, mut responder] = pair(["token", "token"]);
        let bytes = [client.seal(b"one").unwrap(), client.seal(b"").unwrap()].concat();
        let mut heard = Vec::new();
        for byte in bytes {
            responder.feed(&[byte]);
            heard.extend(responder.next_message().unwrap());
        }
        assert_eq!(heard, [b"one".to_vec(), Vec::new()]);
    }

    #[test]
    fn unauthenticated_messages_are_refused() {
        let [mut client, mut responder] = pair(["token", "guess"]);
        responder.feed(&client.seal(b"one").unwrap());
        assert_eq!(responder.next_message(), Err(ChannelError::Forged));
        let [mut client, _] = pair(["token", "token"]);
        client.feed(&1001u32.to_be_bytes());
        assert_eq!(
            client.next_message(),
            Err(ChannelError::TooLong(1001, 1000))
        );
    }

    #[test]
    fn nothing_is_repeated_reflected_or_omitted() {
        let [mut client, mut responder] = pair(["token", "token"]);
        let one = client.seal(b"one").unwrap();
        responder.feed(&one);
        assert_eq!(responder.next_message(), Ok(Some(b"one".to_vec())));
        responder.feed(&one);
        assert_eq!(responder.next_message(), Err(ChannelError::Forged));
        let [mut client, mut responder] = pair(["token", "token"]);
        let _ = client.seal(b"one").unwrap();
        responder.feed(&client.seal(b"two").unwrap());
        assert_eq!(responder.next_message(), Err(ChannelError::Forged));
        let [mut client, _] = pair(["token", "token"]);
        let mine = client.seal(b"one").unwrap();
        client.feed(&mine);
        assert_eq!(client.next_message(), Err(ChannelError::Forged));
    }

    proptest! {
        #[test]
        fn no_changed_bit_gets_through(message: Vec<u8>, at: usize, bit in 0u8..8) {
            let [mut client, mut responder] = pair(["token", "token"]);
            let mut bytes = client.seal(&message).unwrap();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            responder.feed(&bytes);
            // It is refused, or incomplete.
            prop_assert!(!matches!(responder.next_message(), Ok(Some(_))));
        }

        #[test]
        fn no_bytes_are_too_wild(bytes: Vec<Vec<u8>>, secure: bool) {
            let mut channel = Channel::new(Role::Responder, 50);
            if secure {
                channel.secure(&Token::from("token"), NONCES, 50);
            }
            for some in bytes {
                channel.feed(&some);
                while let Ok(Some(message)) = channel.next_message() {
                    prop_assert!(message.len() <= 50 && !secure);
                }
            }
        }
    }
}
