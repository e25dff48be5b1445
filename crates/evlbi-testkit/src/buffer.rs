//! How much a socket holds: a test that sends less loses nothing, however long its receiver stands still.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use evlbi_net::udp::{Listen, Receiver, ReceiverOptions};
use evlbi_wire::vtp;

use crate::until::until_some;

/// How many datagrams with payloads of `size` bytes the buffer of a receiver with usual options holds, as the kernel granted it
/// to this user and by what the kernel says that one takes. No more than half of what may wait before a processor that has other
/// things to do: what other tests send waits there, too.
///
/// # Panics
/// When loopback does not work.
#[must_use]
pub fn holds(size: usize) -> usize {
    in_buffer(size).min(backlog() / 2)
}

/// How many bytes of data a receiver holds by the same limits, in datagrams of any size from `least` bytes on: longer ones, of which the
/// kernel rounds the memory up, take less than twice as much of the buffer for as much data.
///
/// # Panics
/// When loopback does not work.
#[must_use]
pub fn holds_data(least: usize) -> usize {
    (in_buffer(least) / 2).min(backlog() / 2) * least
}

/// How many of `wanted` units a receiver's socket holds when each is sent as `datagrams` datagrams with `data` bytes of data. A test
/// that sends no more loses nothing in its hosts, however long they stand still.
#[track_caller]
pub fn fit(wanted: u32, datagrams: usize, data: usize) -> u32 {
    let most = holds(data + vtp::HEADER_LEN) / datagrams;
    assert!(most >= 4, "a buffer for {most} units");
    wanted.min(u32::try_from(most).unwrap_or(u32::MAX))
}

/// Requests for the clock that a receiver who stands still must hold beside a stream of a probe: those of 1.2 s, and those before and
/// after.
const REQUESTS: usize = 60;

/// A probe's stream of `count` datagrams of `size` bytes, and the requests that tell the clock, fit into a receiver's buffer: however
/// long that stands still, nothing is lost.
///
/// # Panics
/// When they do not.
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
    // The kernel lets twice as much wait as it says that it granted. A little is left for datagrams that take more than this one.
    let limit = receiver.buffer().expect("a buffer").granted as u64 * 15 / 8;
    usize::try_from(limit / one).expect("a number of datagrams")
}

/// How many packets may wait before a processor that has other things to do (`net.core.netdev_max_backlog`).
fn backlog() -> usize {
    let told = fs::read_to_string("/proc/sys/net/core/netdev_max_backlog");
    // What kernels have by themselves, where it is not told.
    told.map_or(1000, |text| text.trim().parse().expect("a number"))
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
