//! Losses in the network, and groups, between two namespaces, with the kernel's own counters as ground truth. A stalled receiver
//! needs a process of its own: its tests are the program's.

use evlbi_stream::recv::RecvOptions;
use evlbi_stream::send::{Burst, SendOptions};
use evlbi_testkit::buffer::fit;
use evlbi_testkit::netns::{Pair, Wire, mirror_port, pair, pair_with};
use evlbi_testkit::result::{assert_numbers, brief, number};
use evlbi_testkit::{Room, name};
use evlbi_wire::pattern;
use serde_json::Value;

use super::support::{self, Recv, recording, sending};

/// A receiver in the second namespace.
fn listen(pair: &Pair, options: &RecvOptions) -> Recv {
    let far = &pair.far.namespace;
    far.run(|| Recv::with(options)).unwrap()
}

/// A receiver at the second namespace's address, which checks the test pattern.
fn checking(pair: &Pair) -> RecvOptions {
    recording(&format!("udp://{}:0", pair.far.v4), "check")
}

/// Sends this many frames of the test pattern, 1024 bytes each, from the first namespace.
fn send(pair: &Pair, to: &str, frames: u32, options: SendOptions) -> Value {
    let room = Room::new();
    let rate = pattern::frame_rate(25_600);
    let frames = pattern::frames(1024, 1_700_000_000, rate, frames).unwrap();
    let source = room.write("in.vdif", frames);
    let SendOptions { source, to, .. } = sending(&source, to);
    let options = SendOptions {
        source,
        to,
        ..options
    };
    let near = &pair.near.namespace;
    near.run(|| support::send(&options)).unwrap()
}

/// Sends at the maximum rate.
fn fast() -> SendOptions {
    sending("", "udp://127.0.0.1:9")
}

#[test]
fn loss_in_the_network_is_the_rules_counter() {
    let Some(pair) = pair_with(&["nft"], &Wire::exact(), name!()) else {
        return;
    };
    pair.far.drop_every(100);
    let recv = listen(
        &pair,
        &RecvOptions {
            join: false,
            ..checking(&pair)
        },
    );
    let count = fit(2000, 1, 1024);
    let sent = send(
        &pair,
        &recv.url(),
        count,
        SendOptions {
            offload: false,
            ..fast()
        },
    );
    assert_numbers(&sent, &[("sent", count.into())]);
    // The first and then each hundredth, however busy the host is.
    let lost = u64::from(count.div_ceil(100));
    let unique = u64::from(count) - lost;
    let result = recv.finish_after(unique);
    assert_eq!(pair.far.counted("dropped"), lost);
    // The loss of the first cannot be detected; the last may be one of them.
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
    pair.far.drop_every(10);
    let recv = listen(&pair, &checking(&pair));
    let trains = fit(100, TRAIN as usize, 1024);
    let count = u64::from(TRAIN * trains);
    let sent = send(
        &pair,
        &recv.url(),
        TRAIN * trains,
        SendOptions {
            burst: Burst::Fixed(TRAIN),
            ..fast()
        },
    );
    assert_numbers(&sent, &[("sent", count)]);
    // A rule counts a burst once; each of its datagrams is lost.
    let lost = u64::from(trains.div_ceil(10) * TRAIN);
    let result = recv.finish_after(count - lost);
    assert_eq!(pair.far.counted("dropped"), u64::from(trains.div_ceil(10)));
    let part = |name| number(&result, name);
    assert_eq!(part("unique"), count - lost);
    assert_eq!(part("expected"), part("unique") + part("lost"));
    // The loss of the first burst cannot be detected, nor that of one at the end.
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
    let count = fit(500, 1, 1024);
    for (group, only) in [
        ("239.1.2.3", String::new()),
        ("232.1.2.3", format!("&source={}", near.v4)),
    ] {
        let from = format!("udp://{group}:2630?interface={}{only}", far.device);
        let recv = listen(&pair, &recording(&from, "check"));
        let to = format!("udp://{group}:2630?interface={}&ttl=4", near.device);
        send(&pair, &to, count, fast());
        let result = recv.finish_after(count.into());
        assert_numbers(&result, &[("unique", count.into()), ("lost", 0)]);
        assert_numbers(
            &result["check"],
            &[("good", count.into()), ("corrupted", 0)],
        );
    }
}

/// From a mirror of both directions, in fragments.
#[test]
fn a_stream_to_another_host_is_recorded_as_it_was_sent() {
    let Some(pair) = pair_with(&["nft"], &Wire::default(), name!()) else {
        return;
    };
    let watcher = mirror_port(&pair, 2);
    let room = Room::new();
    let (source, recorded) = (room.path("in.vdif"), room.path("out.vdif"));
    let count = fit(500, 6, 8032);
    let rate = pattern::frame_rate(25_600);
    let frames = pattern::frames(8032, 1_700_000_000, rate, count).unwrap();
    std::fs::write(&source, &frames).unwrap();
    let options = recording("mirror://eth1?udp=2630", recorded.clone());
    let recv = watcher.run(|| Recv::with(&options)).unwrap();
    let _host = listen(
        &pair,
        &recording(&format!("udp://{}:2630", pair.far.v4), "null"),
    );
    let options = SendOptions {
        mtu: Some(9000),
        ..sending(&source, &format!("udp://{}:2630", pair.far.v4))
    };
    let near = &pair.near.namespace;
    let sent = near.run(|| support::send(&options)).unwrap();
    assert_numbers(&sent, &[("sent", count.into())]);
    let result = recv.end_after(2 * u64::from(count));
    let count = u64::from(count);
    let expected = [
        ("unique", count),
        ("duplicates", count),
        ("lost", 0),
        ("socket_drops", 0),
    ];
    assert_numbers(&result, &expected);
    let sender = result["sender"].as_str().unwrap();
    assert!(sender.starts_with(&pair.near.v4.to_string()), "{sender}");
    assert!(std::fs::read(recorded).unwrap() == frames);
}
