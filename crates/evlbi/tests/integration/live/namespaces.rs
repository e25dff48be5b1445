//! Loss in the network and loss in the host, told apart, with the kernel's own counters as the truth.

use std::path::Path;
use std::time::Duration;

use crate::live::support::{Recv, assert_numbers};
use crate::result::{brief, number};
use evlbi_testkit::name;
use evlbi_testkit::netns::{Pair, Wire, filter, pair};
use serde_json::Value;

fn exact_wire() -> Wire {
    Wire {
        mtu: 9000,
        segmentation: false,
        join: false,
    }
}

fn listen(pair: &Pair, more: &[&str]) -> Recv {
    let from = format!("udp://{}:0", pair.far.v4);
    pair.far
        .namespace
        .run(|| Recv::start(&from, Path::new("check"), more))
        .unwrap()
}

fn send(pair: &Pair, recv: &Recv, more: &[&str]) -> Value {
    let to = recv.url();
    pair.near
        .namespace
        .run(|| crate::live::support::send("pattern:1024", &to, more))
        .unwrap()
}

/// Drops every so manyth datagram that arrives; says so when that cannot be done here.
#[must_use]
fn drop_every(pair: &Pair, period: u32) -> bool {
    let rule = format!("ip protocol udp numgen inc mod {period} 0 counter drop");
    filter(&pair.far, &[&rule])
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

/// The namespace's own count of datagrams that found no room in a socket.
fn no_room(pair: &Pair) -> u64 {
    let counters = pair
        .far
        .namespace
        .run(evlbi_net::host::Counters::read)
        .unwrap();
    counters.unwrap().udp.receive_buffer_errors
}

#[test]
fn loss_in_the_network_is_the_rules_counter() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    if !drop_every(&pair, 100) {
        return;
    }
    let recv = listen(&pair, &["--no-gro"]);
    let sent = send(
        &pair,
        &recv,
        &["--no-gso", "--rate", "20M", "--duration", "4s"],
    );
    let result = recv.finish();
    // The rule drops the first datagram, which the receiver cannot miss, and then each hundredth, perhaps the last.
    let behind = number(&sent, "last_seq") - number(&result, "last_seq");
    let lost = dropped(&pair) - number(&result, "first_seq") - behind;
    assert_numbers(
        &result,
        &[
            ("lost", lost),
            ("network_lost", lost),
            ("host_lost", 0),
            ("unattributed", 0),
            ("unique", number(&sent, "sent") - dropped(&pair)),
        ],
    );
    let runs = result["runs"].as_array().unwrap();
    assert_eq!((runs.len(), number(&runs[0], "length")), (1, 1));
    for gap in result["intervals"].as_array().unwrap() {
        assert_eq!(number(gap, "first") % 100, 0);
    }
}

/// A receiver that does not run until its small buffer has overflown; what it found, and what was sent.
fn stalled(pair: &Pair) -> (Value, Value) {
    let recv = listen(pair, &["--no-gro", "--buffer", "200k"]);
    recv.signal("STOP");
    let to = recv.url();
    let options = ["--no-gso", "--rate", "20M", "--duration", "4s"];
    let sent = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let send = || crate::live::support::send("pattern:1024", &to, &options);
            pair.near.namespace.run(send).unwrap()
        });
        while no_room(pair) < 200 && !sending.is_finished() {
            std::thread::sleep(Duration::from_millis(5));
        }
        recv.signal("CONT");
        sending.join().unwrap()
    });
    (recv.finish(), sent)
}

/// Whether the end of a stream found no room in the host, which is said: what it lost there no receiver can miss.
fn lost_the_end(result: &Value, sent: &Value, elsewhere: u64, no_room: u64) -> bool {
    let missing = number(sent, "last_seq") - number(result, "last_seq");
    assert!(missing <= elsewhere + no_room, "{missing} of {no_room}");
    if missing > elsewhere {
        eprintln!(
            "skipped in part: this host was held up and had no room for the last {missing} datagrams"
        );
    }
    missing > elsewhere
}

#[test]
fn loss_in_the_host_is_the_kernels_counter() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let (result, sent) = stalled(&pair);
    let lost = no_room(&pair);
    assert!(lost >= 200);
    assert_eq!(number(&result, "unique"), number(&sent, "sent") - lost);
    if lost_the_end(&result, &sent, 0, lost) {
        return;
    }
    let unique = number(&sent, "sent") - lost;
    let numbers = [
        ("unique", unique),
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
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    if !drop_every(&pair, 50) {
        return;
    }
    let (result, sent) = stalled(&pair);
    let host = no_room(&pair);
    let dropped = dropped(&pair);
    // The rule's first victim is the stream's first datagram; its last may be the stream's last.
    let (first, last) = (number(&result, "first_seq"), number(&result, "last_seq"));
    let unique = number(&sent, "sent") - dropped - host;
    assert_eq!(number(&result, "unique"), unique);
    if lost_the_end(&result, &sent, 1, host) {
        return;
    }
    let outside = first + number(&sent, "last_seq") - last;
    let network = dropped - outside;
    let numbers = [
        ("unique", unique),
        ("lost", host + network),
        ("host_lost", host),
        ("network_lost", network),
        ("unattributed", 0),
    ];
    assert_numbers(&result, &numbers);
}

#[test]
fn with_joined_datagrams_the_parts_still_sum_up() {
    let wire = Wire {
        mtu: 9000,
        ..Wire::default()
    };
    let Some(pair) = pair(&wire, name!()) else {
        return;
    };
    if !drop_every(&pair, 10) {
        return;
    }
    let recv = listen(&pair, &[]);
    let options = ["--burst", "16", "--rate", "40M", "--duration", "2s"];
    let sent = send(&pair, &recv, &options);
    let result = recv.finish();
    let part = |name| number(&result, name);
    assert!(part("lost") > 0);
    let parts = part("host_lost") + part("network_lost") + part("unattributed");
    assert_eq!(parts, part("lost"), "{}", brief(&result));
    assert_eq!(part("expected"), part("unique") + part("lost"));
    let outside = number(&sent, "sent") - part("expected");
    // A rule counts a train once; each of its datagrams is lost.
    let trains = dropped(&pair);
    assert!(part("lost") + outside <= 16 * trains && part("lost") + outside >= trains);
    assert!(part("host_lost") <= part("host_lost_max"));
}
