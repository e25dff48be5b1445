//! How much a socket holds: a test that sends less loses nothing, however long its receiver stands still.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use evlbi_net::udp::{Listen, Receiver, ReceiverOptions};

use crate::until::until_some;

/// How many datagrams with payloads of `size` bytes the buffer of a receiver with usual options holds, as the kernel granted it
/// to this user and by what the kernel says that one takes.
///
/// # Panics
/// When loopback does not work.
#[must_use]
pub fn holds(size: usize) -> usize {
    let (receiver, one) = with_one(size);
    // The kernel lets twice as much wait as it says that it granted. A little is left for datagrams that take more than this one.
    let limit = receiver.buffer().expect("a buffer").granted as u64 * 15 / 8;
    usize::try_from(limit / one).expect("a number of datagrams")
}

/// How many bytes of a socket's buffer a datagram with a payload of `size` bytes takes that comes over loopback.
///
/// # Panics
/// When loopback does not work.
#[must_use]
pub fn takes(size: usize) -> u64 {
    with_one(size).1
}

fn with_one(size: usize) -> (Receiver, u64) {
    let here = Listen::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let receiver = Receiver::bind(&[here], &ReceiverOptions::default()).expect("a receiver");
    let to = receiver.local_addresses().next().expect("an address");
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    sender.send_to(&vec![0; size], to).expect("sent");
    let one = until_some("a datagram comes", || {
        receiver.queued().ok().filter(|taken| *taken > 0)
    });
    (receiver, one)
}
