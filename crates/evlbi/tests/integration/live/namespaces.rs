//! Loss in the network and loss in the host, told apart, with the kernel's own counters as the truth; groups.

use std::net::UdpSocket;
use std::path::Path;

use crate::live::support::{Recv, exact_wire, no_room};
use crate::result::{brief, number};
use evlbi_testkit::buffer::fit;
use evlbi_testkit::netns::{Pair, Wire, filter, pair, pair_with};
use evlbi_testkit::result::assert_numbers;
use evlbi_testkit::{Room, name, processor, until};
use evlbi_wire::pattern;
use serde_json::Value;

fn listen(pair: &Pair, more: &[&str]) -> Recv {
    let from = format!("udp://{}:0", pair.far.v4);
    pair.far
        .namespace
        .run(|| Recv::start(&from, Path::new("check"), more))
        .unwrap()
}

/// Sends a file of frames of the test pattern, 1024 bytes each.
fn send(pair: &Pair, recv: &Recv, frames: u32, more: &[&str]) -> Value {
    let room = Room::new();
    let source = room.write("in.vdif", pattern(frames));
    let to = recv.url();
    pair.near
        .namespace
        .run(|| crate::live::support::send(&source, &to, more))
        .unwrap()
}

fn pattern(frames: u32) -> Vec<u8> {
    pattern::frames(1024, 1_700_000_000, pattern::frame_rate(25_600), frames).unwrap()
}

/// Drops one in `period` of the datagrams that arrive.
fn drop_every(pair: &Pair, period: u32) {
    let rule = format!("ip protocol udp numgen inc mod {period} 0 counter drop");
    filter(&pair.far, &[&rule]);
}

fn dropped(pair: &Pair) -> u64 {
    let rules = pair
        .far
        .namespace
        .command("nft", &["list", "table", "ip", "t"])
        .unwrap();
    let (_, after) = rules.split_once("packets ").unwrap();
    after.split_once(' ').unwrap().0.parse().unwrap()
}

#[test]
fn loss_in_the_network_is_the_rules_counter() {
    let Some(pair) = pair_with(&["nft"], &exact_wire(), name!()) else {
        return;
    };
    drop_every(&pair, 100);
    let recv = listen(&pair, &["--no-gro"]);
    let count = fit(2000, 1, 1024);
    let sent = send(&pair, &recv, count, &["--no-gso"]);
    assert_numbers(&sent, &[("sent", count.into())]);
    // The first and then each hundredth, which no busy host changes.
    let lost = u64::from(count.div_ceil(100));
    let unique = u64::from(count) - lost;
    let result = recv.finish_after(unique);
    assert_eq!(dropped(&pair), lost);
    // A receiver cannot miss the first; the last may be one of them.
    let behind = number(&sent, "last_seq") - number(&result, "last_seq");
    assert_eq!(number(&result, "first_seq"), 1);
    let missed = lost - 1 - behind;
    assert_numbers(
        &result,
        &[
            ("unique", unique),
            ("lost", missed),
            ("network_lost", missed),
            ("host_lost", 0),
            ("unattributed", 0),
        ],
    );
    let runs = result["runs"].as_array().unwrap();
    assert_eq!((runs.len(), number(&runs[0], "length")), (1, 1));
    for gap in result["intervals"].as_array().unwrap() {
        assert_eq!(number(gap, "first") % 100, 0);
    }
}

/// Datagrams to a receiver that stands still: more than its buffer of 200 kB holds, and fewer than the kernel's queue before it
/// (1000, `net.core.netdev_max_backlog`).
const TOO_MANY: u32 = 500;

/// A receiver that stands still while all but the last of a stream's datagrams come, and takes what its buffer holds of them before
/// the last comes. One in `period` is dropped on the way.
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
    // The last one is none of those that are dropped.
    assert!(period.is_none_or(|period| !last.is_multiple_of(period)));
    let dropped = u64::from(period.map_or(0, |period| last.div_ceil(period)));
    recv.signal("STOP");
    // What leaves from one processor arrives in its order, so that the rule drops the first.
    processor::stay();
    send(0..last);
    until("its buffer overflows", || no_room(&pair.far) > 0);
    recv.signal("CONT");
    until("all has arrived or found no room", || {
        recv.arrived(0) + no_room(&pair.far) + dropped == u64::from(last)
    });
    let all = recv.arrived(0) + 1;
    send(last..TOO_MANY);
    let result = recv.finish_after(all);
    assert_numbers(&result, &[("last_seq", last.into())]);
    result
}

#[test]
fn loss_in_the_host_is_the_kernels_counter() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let result = stalled(&pair, None);
    let lost = no_room(&pair.far);
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
fn loss_in_host_and_network_is_told_apart() {
    let Some(pair) = pair_with(&["nft"], &exact_wire(), name!()) else {
        return;
    };
    drop_every(&pair, 50);
    let result = stalled(&pair, Some(50));
    let host = no_room(&pair.far);
    let dropped = dropped(&pair);
    assert_eq!(dropped, u64::from(TOO_MANY.div_ceil(50)));
    // The rule's first victim is the stream's first datagram, which a receiver cannot miss.
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

/// Datagrams that the kernel takes as one super-packet.
const TRAIN: u32 = 16;

#[test]
fn with_joined_datagrams_the_parts_still_sum_up() {
    let wire = Wire {
        mtu: 9000,
        ..Wire::default()
    };
    let Some(pair) = pair_with(&["nft"], &wire, name!()) else {
        return;
    };
    drop_every(&pair, 10);
    let recv = listen(&pair, &[]);
    let trains = fit(100, TRAIN as usize, 1024);
    let count = u64::from(TRAIN * trains);
    let sent = send(&pair, &recv, TRAIN * trains, &["--burst", "16"]);
    assert_numbers(&sent, &[("sent", count)]);
    // A rule counts a train once; each of its datagrams is lost.
    let lost = u64::from(trains.div_ceil(10) * TRAIN);
    let result = recv.finish_after(count - lost);
    assert_eq!(dropped(&pair), u64::from(trains.div_ceil(10)));
    let part = |name| number(&result, name);
    assert_eq!(part("unique"), count - lost);
    assert_eq!(part("expected"), part("unique") + part("lost"));
    // The first train cannot be missed, and neither can one at the end.
    let outside = count - part("expected");
    assert_eq!(part("lost"), lost - outside);
    assert_eq!(part("first_seq"), u64::from(TRAIN));
    let parts = part("host_lost") + part("network_lost") + part("unattributed");
    assert_eq!(parts, part("lost"), "{}", brief(&result));
    assert!(part("host_lost") <= part("host_lost_max"));
}

#[test]
fn a_group_is_joined_and_sent_to_by_interface_and_source() {
    let Some(pair) = pair(&Wire::default(), name!()) else {
        return;
    };
    let (far, near) = (&pair.far, &pair.near);
    let room = Room::new();
    let count = fit(500, 1, 1024);
    let source = room.write("in.vdif", pattern(count));
    for (group, only) in [
        ("239.1.2.3", String::new()),
        ("232.1.2.3", format!("&source={}", near.v4)),
    ] {
        let from = format!("udp://{group}:2630?interface={}{only}", far.device);
        let recv = far
            .namespace
            .run(|| Recv::start(&from, Path::new("check"), &[]))
            .unwrap();
        let to = format!("udp://{group}:2630?interface={}&ttl=4", near.device);
        near.namespace
            .run(|| crate::live::support::send(&source, &to, &[]))
            .unwrap();
        let result = recv.finish_after(count.into());
        assert_numbers(&result, &[("unique", count.into()), ("lost", 0)]);
        assert_numbers(
            &result["check"],
            &[("good", count.into()), ("corrupted", 0)],
        );
    }
}
