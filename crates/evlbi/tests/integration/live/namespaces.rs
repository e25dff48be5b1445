//! Loss in a host whose receiver stalls, and in the network as well, attributed with the kernel's own counters as ground truth. Other tests
//! between namespaces are in evlbi-stream.

use std::net::UdpSocket;
use std::path::Path;

use crate::live::support::Recv;
use evlbi_testkit::netns::{Pair, Wire, pair, pair_with};
use evlbi_testkit::result::{assert_numbers, number};
use evlbi_testkit::{name, processor, until};
use evlbi_wire::pattern;
use serde_json::Value;

fn listen(pair: &Pair, more: &[&str]) -> Recv {
    let from = format!("udp://{}:0", pair.far.v4);
    pair.far
        .namespace
        .run(|| Recv::start(&from, Path::new("check"), more))
        .unwrap()
}

fn pattern(frames: u32) -> Vec<u8> {
    pattern::frames(1024, 1_700_000_000, pattern::frame_rate(25_600), frames).unwrap()
}

/// Datagrams to a stalled receiver: more than its buffer of 200 kB holds, and fewer than the kernel's queue before it
/// (1000, `net.core.netdev_max_backlog`).
const TOO_MANY: u32 = 500;

/// A receiver that stalls while all but the last of a stream's datagrams arrive, and then takes those that its buffer holds before
/// the last arrives. One in `period` is dropped on the path.
fn stalled(pair: &Pair, period: Option<u32>) -> Value {
    let recv = listen(pair, &["--no-gro", "--buffer", "200k"]);
    let socket = pair
        .near
        .namespace
        .run(|| UdpSocket::bind((pair.near.v4, 0)).unwrap())
        .unwrap();
    socket.connect(recv.address()).unwrap();
    let frames = pattern(TOO_MANY);
    let send = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            let frame = &frames[number as usize * 1024..][..1024];
            let datagram = [&u64::from(number).to_le_bytes()[..], frame].concat();
            socket.send(&datagram).unwrap();
        }
    };
    let last = TOO_MANY - 1;
    // The last one is not dropped.
    assert!(period.is_none_or(|period| !last.is_multiple_of(period)));
    let dropped = u64::from(period.map_or(0, |period| last.div_ceil(period)));
    recv.signal("STOP");
    // Datagrams from one CPU arrive in its order, so that the rule drops the first.
    processor::stay();
    send(0..last);
    until("its buffer overflows", || pair.far.no_room() > 0);
    recv.signal("CONT");
    until("all has arrived or found no room", || {
        recv.arrived(0) + pair.far.no_room() + dropped == u64::from(last)
    });
    let all = recv.arrived(0) + 1;
    send(last..TOO_MANY);
    let received = recv.end_after(all);
    assert!(received.status.success(), "{}", received.stderr);
    let result = received.result();
    assert_numbers(&result, &[("last_seq", last.into())]);
    let hint = format!(
        "evlbi: {} datagrams did not fit the socket buffer: give a larger --buffer, or see `evlbi doctor`",
        number(&result, "host_lost")
    );
    assert!(received.stderr.contains(&hint), "{}", received.stderr);
    result
}

#[test]
fn loss_in_the_host_is_the_kernels_counter() {
    let Some(pair) = pair(&Wire::exact(), name!()) else {
        return;
    };
    let result = stalled(&pair, None);
    let lost = pair.far.no_room();
    // A buffer of 200 kB, which the kernel doubles, holds at most 400 datagrams.
    assert!(lost >= u64::from(TOO_MANY) - 400);
    let numbers = [
        ("first_seq", 0),
        ("unique", u64::from(TOO_MANY) - lost),
        ("lost", lost),
        ("host_lost", lost),
        ("network_lost", 0),
        ("unattributed", 0),
        ("socket_drops", lost),
    ];
    assert_numbers(&result, &numbers);
}

#[test]
fn loss_in_host_and_network_is_distinguished() {
    let Some(pair) = pair_with(&["nft"], &Wire::exact(), name!()) else {
        return;
    };
    pair.far.drop_every(50);
    let result = stalled(&pair, Some(50));
    let host = pair.far.no_room();
    let dropped = pair.far.counted("dropped");
    assert_eq!(dropped, u64::from(TOO_MANY.div_ceil(50)));
    // The rule drops the stream's first datagram, whose loss a receiver cannot detect.
    let network = dropped - 1;
    let numbers = [
        ("first_seq", 1),
        ("unique", u64::from(TOO_MANY) - dropped - host),
        ("lost", host + network),
        ("host_lost", host),
        ("network_lost", network),
        ("unattributed", 0),
    ];
    assert_numbers(&result, &numbers);
}
