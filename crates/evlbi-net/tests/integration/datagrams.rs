//! Datagrams of tests, and their reception.

use evlbi_net::udp::{Received, Receiver};
use evlbi_testkit::until::WATCHDOG;

/// Returns datagrams of `size` bytes, each different from every other and within itself.
pub fn payloads(size: usize, count: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|n| {
            (0..size)
                .map(|i| (i * 7 + n * 13 + i / 251) as u8)
                .collect()
        })
        .collect()
}

/// Receives `count` datagrams.
pub fn collect(receiver: &mut Receiver, count: usize) -> Vec<Vec<u8>> {
    let mut received = Received::new();
    let mut datagrams = Vec::new();
    while datagrams.len() < count {
        assert!(
            receiver.wait(WATCHDOG).unwrap(),
            "{} of {count}",
            datagrams.len()
        );
        receiver.receive(&mut received).unwrap();
        datagrams.extend(
            received
                .batch()
                .datagrams()
                .map(|datagram| datagram.bytes.to_vec()),
        );
    }
    datagrams
}
