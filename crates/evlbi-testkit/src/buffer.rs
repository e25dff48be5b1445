//! Capacity of a socket: a test that sends less loses nothing, however long its receiver stalls.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use evlbi_net::udp::{Listen, Receiver, ReceiverOptions};
use evlbi_wire::vtp;

use crate::until::until_some;

/// Returns how many datagrams with payloads of `size` bytes fit into the buffer of a receiver with default options, by the granted
/// buffer and the kernel's memory per datagram. At most half of a busy CPU's backlog: datagrams of other tests wait there, too.
/// things to do: what other tests send waits there, too.
///
/// # Panics
/// Panics if loopback does not work.
#[must_use]
pub fn holds(size: usize) -> usize {
    in_buffer(size).min(backlog() / 2)
}

/// Returns how many bytes of data a receiver holds by the same limits, in datagrams of any size from `least` bytes on. The kernel
/// rounds up the memory of longer ones, which take less than twice as much of the buffer for the same data.
///
/// # Panics
/// Panics if loopback does not work.
#[must_use]
pub fn holds_data(least: usize) -> usize {
    (in_buffer(least) / 2).min(backlog() / 2) * least
}

/// Returns how many of `wanted` units fit into a receiver's socket if each is sent as `datagrams` datagrams with `data` bytes. A test
/// that sends no more loses nothing in its hosts, however long they stall.
#[track_caller]
pub fn fit(wanted: u32, datagrams: usize, data: usize) -> u32 {
    let most = holds(data + vtp::HEADER_LEN) / datagrams;
    assert!(most >= 4, "a buffer for {most} units");
    wanted.min(u32::try_from(most).unwrap_or(u32::MAX))
}

/// Number of clock requests that a stalled receiver must hold in addition to a probe's stream: those of 1.2 s, and those before and
/// after it.
const REQUESTS: usize = 60;

/// Asserts that a probe's stream of `count` datagrams of `size` bytes, and the clock requests, fit into a receiver's buffer: however
/// long it stalls, nothing is lost.
///
/// # Panics
/// Panics if they do not.
#[track_caller]
pub fn assert_fits(count: usize, size: usize) {
    let holds = holds(size);
    let all = count + REQUESTS;
    assert!(
        all <= holds,
        "a receiver must hold {all} datagrams of {size} bytes, but holds {holds} (net.core.rmem_max, net.core.netdev_max_backlog)"
    );
}

fn in_buffer(size: usize) -> usize {
    let (receiver, one) = with_one(size);
    // The kernel lets twice as much wait as it reports as granted. A margin is left for datagrams that take more than this one.
    let limit = receiver.buffer().expect("a buffer").granted as u64 * 15 / 8;
    usize::try_from(limit / one).expect("a number of datagrams")
}

/// Returns how many packets may wait for a busy CPU (`net.core.netdev_max_backlog`).
fn backlog() -> usize {
    let told = fs::read_to_string("/proc/sys/net/core/netdev_max_backlog");
    // The kernel's default, if it is not reported.
    told.map_or(1000, |text| text.trim().parse().expect("a number"))
}

/// Returns how many bytes of a socket's buffer a datagram takes that arrives over loopback with `size` bytes.
///
/// # Panics
/// Panics if loopback does not work.
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
    let one = until_some("a datagram arrives", || {
        receiver.queued().ok().filter(|taken| *taken > 0)
    });
    (receiver, one)
}
