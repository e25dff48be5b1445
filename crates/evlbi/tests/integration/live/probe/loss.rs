//! Drops in the socket of a stalled receiver.

use std::process::Command;

use super::{TOKEN, assert_sums, run};
use crate::live::support::{Recv, evlbi};
use crate::result::{brief, number};
use evlbi_testkit::netns::{Pair, Wire, pair};
use evlbi_testkit::result::{assert_schema, read};
use evlbi_testkit::{Room, buffer, name, until};
use serde_json::Value;

/// A stream of a plan to a receiver without a return direction.
fn one_way(address: &str, end: &str, plan: &[&str]) -> Command {
    let mut command = evlbi();
    command
        .args(["probe", "udp", address, "--one-way", end, "--json"])
        .args(plan)
        .env("EVLBI_TOKEN", TOKEN);
    command
}

/// Sends a stream to a receiver that is stopped meanwhile, so that its socket alone holds it. Returns the results of sender and
/// receiver. The receiver continues once `is_sent` reports that everything it waits for has arrived.
fn to_a_stopped_receiver(pair: &Pair, plan: &[&str], is_sent: impl Fn() -> bool) -> [Value; 2] {
    let bind = format!("{}:0", pair.far.v4);
    let listen = || Recv::listening(&mut one_way(&bind, "receive", plan), 1);
    let receiver = pair.far.namespace.run(listen).unwrap();
    receiver.signal("STOP");
    let to = receiver.address().to_string();
    let send = || run(&mut one_way(&to, "send", plan));
    let sent = pair.near.namespace.run(send).unwrap();
    let said = String::from_utf8_lossy(&sent.stderr);
    assert!(sent.status.success(), "{said}");
    until("all sent datagrams have arrived", is_sent);
    receiver.signal("CONT");
    let sent = read(&sent.stdout);
    assert_schema(&sent, "evlbi.probe.sent/1");
    [sent, receiver.finish()]
}

/// A receiver that stalls while more is sent to it than its buffer holds: the kernel's own count of the datagrams without room
/// is the loss in the report, in the receiving socket.
#[test]
fn drops_in_the_socket_are_the_hosts() {
    let Some(pair) = pair(&Wire::exact(), name!()) else {
        return;
    };
    let plan = [
        "--rate",
        "100M",
        "--size",
        "1024",
        "--count",
        "450",
        "--buffer",
        "200k",
        "--loss-timeout",
        "100ms",
    ];
    let [sent, received] = to_a_stopped_receiver(&pair, &plan, || pair.far.no_room() > 0);
    assert_eq!(number(&sent["points"][0], "used"), 450);
    let point = &received["points"][0];
    assert_sums(point);
    let lost = pair.far.no_room();
    assert!(lost > 0 && lost < 450, "{lost}");
    for (name, count) in [
        ("sent", 450),
        ("lost", lost),
        ("host_lost", lost),
        ("network_lost", 0),
        ("unattributed", 0),
    ] {
        assert_eq!(number(point, name), count, "{}", brief(point));
    }
    assert_eq!(number(&point["attribution"], "receiver_socket"), lost);
    assert_eq!(number(&point["receiver"], "socket_drops"), lost);
    let change = &point["receiver"]["host"]["change"]["udp"];
    assert_eq!(number(change, "receive_buffer_errors"), lost);
    let finding = point["finding"].as_str().unwrap();
    assert!(
        finding.contains("all in the receiving socket's buffer"),
        "{finding}"
    );
}

/// Bursts that a large buffer holds and a small one does not, while the receiver stalls (Spencer et al., figure 5-3).
#[test]
fn a_small_buffer_drops_bursts_that_a_large_one_holds() {
    let Some(pair) = pair(&Wire::exact(), name!()) else {
        return;
    };
    const SIZE: usize = 1400;
    let count = (buffer::holds(SIZE) * 9 / 10).min(400);
    let room = Room::new();
    let of = |buffer: &str, least_lost: u64| {
        let asked = count.to_string();
        let plan = [
            "--size",
            "1400",
            "--burst",
            "40",
            "--spacing",
            "5ms",
            "--count",
            &asked,
            "--buffer",
            buffer,
            "--loss-timeout",
            "100ms",
        ];
        let before = pair.far.no_room();
        let has_come = || pair.far.no_room() - before >= least_lost;
        let [_, received] = to_a_stopped_receiver(&pair, &plan, has_come);
        let point = &received["points"][0];
        assert_sums(point);
        assert_eq!(number(point, "sent"), count as u64);
        let lost = number(point, "lost");
        assert_eq!(pair.far.no_room() - before, lost);
        assert_eq!(number(point, "host_lost"), lost, "{}", brief(point));
        assert_eq!(number(&point["attribution"], "receiver_socket"), lost);
        let file = room.write(&format!("{buffer}.json"), received.to_string());
        let granted = number(&point["receiver"]["buffer"], "granted");
        (lost, granted, file)
    };
    // Nearly all: a datagram takes more room than its bytes.
    let least = (count - 4096 * 2 / SIZE) as u64;
    let (lost, small, first) = of("4k", least);
    assert!(lost >= least, "{lost} of {count}");
    let (lost, large, second) = of("32M", 0);
    assert_eq!(lost, 0);
    assert!(small < large);
    // In a table, they are two tests.
    let table = evlbi().args(["report", &first, &second, "--json"]).output();
    let table = read(&table.unwrap().stdout);
    assert_schema(&table, "evlbi.matrix/1");
    let columns = &table["columns"];
    let of = |column: usize| columns[column].as_str().unwrap().to_owned();
    assert_eq!(columns.as_array().unwrap().len(), 2, "{columns}");
    assert!(
        of(0).contains("bursts of 40") && of(0) != of(1),
        "{columns}"
    );
}
