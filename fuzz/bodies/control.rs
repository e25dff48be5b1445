//! Any bytes over the connection on which tests are negotiated: nothing passes a secure channel. A parsed message is the same after
//! writing and reading it again, and is judged without a panic.

use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_probe::endpoint::{FromClient, FromResponder, Limits};
use evlbi_probe::measure::{Channel, Role, Token};
use serde::Serialize;
use serde::de::DeserializeOwned;

const MAX: usize = 64 << 10;

pub fn run(bytes: &[u8]) {
    let Some((how, rest)) = bytes.split_first() else {
        return;
    };
    let mut channel = Channel::new(Role::Responder, MAX);
    let is_secure = how & 1 == 1;
    if is_secure {
        channel.secure(&Token::from("token"), [&[1; 16], &[2; 16]], MAX);
    }
    for piece in rest.chunks(usize::from(how >> 1) + 1) {
        channel.feed(piece);
        while let Ok(Some(message)) = channel.next_message() {
            assert!(!is_secure && message.len() <= MAX);
            read(&message);
        }
    }
    // Without the length before it, so that messages are found sooner.
    read(rest);
}

fn read(message: &[u8]) {
    if let Some(FromClient::Open(test)) = again(message) {
        let limits = Limits {
            rate: BitRate::new(1_000_000_000),
            duration: Nanos(60_000_000_000),
            tests: 1,
            burdens: true,
        };
        let allowed = limits.allow(&test);
        let _ = (test.duration(), test.wire_rate());
        if allowed.is_ok() {
            let bits = test.wire_rate().expect("a spacing");
            assert!(bits <= 1e9 && test.duration() <= limits.duration);
        }
    }
    let _: Option<FromResponder> = again(message);
}

/// Parses a message, writes it and parses it again, if it is valid.
fn again<M: Serialize + DeserializeOwned>(message: &[u8]) -> Option<M> {
    let read: M = serde_json::from_slice(message).ok()?;
    let written = serde_json::to_vec(&read).expect("a message that was read can be written");
    let again: M = serde_json::from_slice(&written).expect("what was written can be read");
    assert_eq!(serde_json::to_vec(&again).expect("again"), written);
    Some(again)
}
