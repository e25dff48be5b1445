//! Captures of recorded flows: `analyse` agrees with tshark, with the counts of the kernels and the endpoints, and with the path.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evlbi_probe::analyse::AnalyseOptions;
use evlbi_testkit::result::{largest, number, packets_by_event, shown};
use evlbi_testkit::{Room, oracle};
use serde_json::{Value, json};

use crate::analyse::attempt;

/// Returns the path of a file next to the captures, which the program's tests read too.
fn path(name: &str) -> PathBuf {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../evlbi/tests/oracles/captures"
    );
    Path::new(folder).join(name)
}

fn answer(name: &str) -> Value {
    oracle::committed(&path(name))
}

const CAPTURES: [&str; 17] = [
    "bursts-near",
    "constant-near",
    "fragments-far",
    "ipv6-far",
    "lossy-far",
    "lossy-near",
    "path-near",
    "probe-far",
    "probe-near",
    "receiver-near",
    "sender-near",
    "stream-far",
    "stream-near",
    "tags-far",
    "train-far",
    "train-near",
    "vlan-far",
];

/// Events of tshark, and the names in `analyse`.
const EVENTS: [(&str, &[&str]); 8] = [
    (
        "retransmission or out of order",
        &[
            "fast",
            "timeout",
            "tail_probe",
            "unneeded",
            "reordered",
            "duplicate",
        ],
    ),
    ("lost segment", &["gap"]),
    ("duplicate ack", &["duplicate_acknowledgement"]),
    ("window full", &["window_full"]),
    ("window update", &["window_update"]),
    ("zero window", &["zero_window"]),
    ("keep alive", &["keep_alive"]),
    ("ack lost segment", &["acknowledged_unseen"]),
];

/// Returns the analysis of a capture, and the packets of each event.
fn analyse(name: &str) -> (Value, BTreeMap<String, BTreeSet<u64>>) {
    let room = Room::new();
    let analysis = shown(attempt(&AnalyseOptions {
        file: path(&format!("{name}.pcap")),
        events: Some(room.path("events.csv").into()),
        bins: Some(Duration::from_micros(100)),
        interval: Duration::from_millis(100),
        ..AnalyseOptions::default()
    }));
    (analysis, packets_by_event(&room.text("events.csv")))
}

/// Returns the connection or stream between these endpoints.
fn between<'a>(all: &'a Value, ends: &Value) -> &'a Value {
    let mut found = all.as_array().unwrap().iter();
    found
        .find(|one| one["ends"] == *ends)
        .unwrap_or_else(|| panic!("nothing between {ends}"))
}

#[track_caller]
fn length(list: &Value) -> usize {
    list.as_array().unwrap().len()
}

fn nanos(seconds: &Value) -> Option<u64> {
    seconds
        .as_f64()
        .map(|seconds| (seconds * 1e9).round() as u64)
}

/// All retransmissions, overtaken or duplicate packets and full windows, and all connections and streams with their packets, bytes,
/// round-trip times, windows, data in flight and times between packets match tshark: over IPv4 and IPv6, in VLANs and with fragments.
#[test]
fn captures_agree_with_tshark() {
    let folder = fs::read_dir(path("")).unwrap();
    let files = folder.map(|file| file.unwrap().path());
    let captures = files.filter(|file| file.extension().is_some_and(|kind| kind == "pcap"));
    assert_eq!(captures.count(), CAPTURES.len());
    for name in CAPTURES {
        let theirs = answer(&format!("{name}.tshark.json"));
        let (ours, events) = analyse(name);
        assert_eq!(ours["packets"], theirs["packets"], "{name}");
        let unread = &ours["unread"];
        assert_eq!(unread["fragments"], theirs["fragments"], "{name}");
        assert_eq!(
            number(unread, "other_protocols") + number(unread, "not_ip"),
            number(&theirs, "neither TCP nor UDP"),
            "{name}"
        );
        assert_eq!(
            [number(unread, "damaged"), number(unread, "unknown_link")],
            [0; 2],
            "{name}"
        );
        assert_eq!(theirs["events"].as_object().unwrap().len(), EVENTS.len());
        for (event, own) in EVENTS {
            let found = own.iter().filter_map(|name| events.get(*name)).flatten();
            let found: BTreeSet<u64> = found.copied().collect();
            assert_eq!(json!(found), theirs["events"][event], "{name}: {event}");
        }
        assert_eq!(
            length(&ours["connections"]),
            length(&theirs["connections"]),
            "{name}"
        );
        for theirs in theirs["connections"].as_array().unwrap() {
            same_connection(name, between(&ours["connections"], &theirs["ends"]), theirs);
        }
        assert_eq!(
            length(&ours["streams"]),
            length(&theirs["streams"]),
            "{name}"
        );
        for theirs in theirs["streams"].as_array().unwrap() {
            let ours = between(&ours["streams"], &theirs["ends"]);
            for field in ["packets", "bytes"] {
                assert_eq!(ours[field], theirs[field], "{name}: {field} of {ours}");
            }
            let gaps = match &ours["gaps"]["bins"] {
                Value::Null => json!({}),
                bins => bins.clone(),
            };
            assert_eq!(gaps, theirs["gaps"], "{name}: {ours}");
        }
    }
}

fn same_connection(name: &str, ours: &Value, theirs: &Value) {
    assert_eq!(ours["packets"], theirs["packets"], "{name}");
    assert_eq!(
        nanos(&ours["handshake"]),
        theirs["handshake"].as_u64(),
        "{name}"
    );
    for (own, their) in [0, 1].map(|way| (&ours["ways"][way], &theirs["ways"][way])) {
        for field in ["bytes", "frames"] {
            assert_eq!(own[field], their[field], "{name}: {field} of {own}");
        }
        let most = |extent: &Value| [extent["least"].clone(), extent["most"].clone()];
        let max = |extent: &Value| [extent["min"].clone(), extent["max"].clone()];
        assert_eq!(most(&own["window"]), max(&their["window"]), "{name}: {own}");
        // Known difference: tshark uses the acknowledgement of retransmitted data for a round-trip time. It is unknown which of the two was
        // acknowledged (Karn and Partridge 1987).
        let is_clean = number(&own["sent_again"], "segments") == 0 && number(own, "reordered") == 0;
        let (trips, their_trips) = (&own["round_trip"], &their["round trip"]);
        assert_eq!(trips["min"], their_trips["min"], "{name}: {own}");
        if is_clean {
            for field in ["count", "max"] {
                assert_eq!(trips[field], their_trips[field], "{name}: {field} of {own}");
            }
            if let Some(mean) = trips["mean"].as_f64() {
                let theirs =
                    number(their_trips, "sum") as f64 / number(their_trips, "count") as f64;
                assert!((mean - theirs).abs() < 1.0, "{name}: {mean} {theirs}");
            }
        } else {
            assert!(number(trips, "count") <= number(their_trips, "count"));
            assert!(number(trips, "max") <= number(their_trips, "max"));
        }
        // Known difference: if a capture is not from the sender, tshark counts data whose acknowledgement has not passed the capture, and
        // `analyse` the data in flight from the sender.
        let is_sender = own["behind"].as_f64().is_none_or(|behind| behind < 1e-3);
        if is_clean && is_sender {
            assert_eq!(
                most(&own["flight"]),
                max(&their["in flight"]),
                "{name}: {own}"
            );
        }
    }
}

/// Retransmissions, their causes and duplicates match the counts of the sender's kernel and both endpoints; at the receiver the losses are
/// before the capture.
#[test]
fn a_lossy_capture_agrees_with_the_kernels_counts() {
    let known = answer("lossy.json");
    let kernel = |name: &str| number(&known["kernel"], name);
    let (near, _) = analyse("lossy-near");
    let way = largest(&near);
    assert_eq!(way["segments"], known["flow"]["segments"]);
    // Each connection of a test starts with a greeting.
    assert_eq!(
        number(way, "acknowledged"),
        number(&known["flow"], "bytes") + 12
    );
    // Over all connections of this host.
    let connections = near["connections"].as_array().unwrap().iter();
    let sent: Vec<&Value> = connections
        .map(|one| {
            &one["ways"][usize::from(one["ends"][0].as_str().unwrap().starts_with("10.77.0.2"))]
        })
        .collect();
    let of = |name: &str| -> u64 {
        let ways = sent.iter();
        ways.map(|way| number(&way["sent_again"], name)).sum()
    };
    assert_eq!(of("segments"), kernel("TcpRetransSegs"));
    assert_eq!(
        of("segments"),
        of("fast") + of("timeout") + of("probe") + of("unneeded")
    );
    assert_eq!(of("lost_before"), 0);
    assert_eq!(of("timeouts"), kernel("TcpExtTCPTimeouts"));
    assert_eq!(of("probe"), kernel("TcpExtTCPLossProbes"));
    let twice: u64 = sent.iter().map(|way| number(way, "received_twice")).sum();
    assert_eq!(twice, kernel("TcpExtTCPDSACKRecv"));
    let (far, _) = analyse("lossy-far");
    let far_way = largest(&far);
    assert!(number(&far_way["sent_again"], "lost_before") > 0);
    let behind = |way: &Value| way["behind"].as_f64().unwrap();
    assert!(behind(way) < 1e-3 && (0.015..0.016).contains(&behind(far_way)));
    let said = far["connections"][0]["findings"].to_string();
    for part in [
        "captured at the receiver",
        "lost between the sender and here",
    ] {
        assert!(said.contains(part), "{said}");
    }
}

/// The capture alone shows what limits a connection: an application that sends at a rate or in bursts with idle times (Sansa 2006), a
/// receiver's or a sender's buffer, a full path, losses.
#[test]
fn the_limit_of_a_connection_is_reported() {
    for (name, part, said) in [
        (
            "constant-near",
            "application",
            "limited by the application, which had no more to send (99 % of the time)",
        ),
        (
            "bursts-near",
            "application",
            "limited by the application, which had no more to send (90 % of the time), the growing congestion window (10 % of the time)",
        ),
        (
            "receiver-near",
            "receiver",
            "limited by the receiver's window (90 % of the time), the application, which had no more to send (8 % of the time)",
        ),
        (
            "sender-near",
            "sender",
            "limited by the sender: its own rate, its send buffer, or a constant window (93 % of the time), the growing congestion window (3 % of the time), the application, which had no more to send (3 % of the time)",
        ),
        (
            "path-near",
            "path",
            "limited by a full path, with a queue (66 % of the time), loss recovery (21 % of the time), the growing congestion window (8 % of the time), the application, which had no more to send (5 % of the time)",
        ),
    ] {
        let (analysis, _) = analyse(name);
        let way = largest(&analysis);
        let held = way["held_back"].as_object().unwrap();
        let parts = || held.values().map(|part| part.as_f64().unwrap());
        assert!((parts().sum::<f64>() - 1.0).abs() < 1e-9, "{name}");
        assert!(held[part].as_f64().unwrap() > 0.5, "{name}: {held:?}");
        assert_eq!(analysis["connections"][0]["findings"][1], said, "{name}");
    }
    // Eleven messages of 0.2 s.
    let (bursts, _) = analyse("bursts-near");
    let idle = &largest(&bursts)["idle"];
    assert_eq!(number(idle, "periods"), 11);
}

/// Losses, duplicates and reordering of the path match the counts of the stream's receiver, and those of the probes; before the path
/// nothing is lost.
#[test]
fn losses_of_streams_are_the_paths() {
    let stream = |capture: &str, port: &str| -> Value {
        let (analysis, _) = analyse(capture);
        let streams = analysis["streams"].as_array().unwrap();
        let is_to = |stream: &&Value| stream["ends"][1].as_str().unwrap().ends_with(port);
        streams.iter().find(is_to).unwrap().clone()
    };
    let known = answer("stream.json");
    let (near, far) = (
        stream("stream-near", ":2630"),
        stream("stream-far", ":2630"),
    );
    for stream in [&near, &far] {
        assert_eq!(stream["numbers"], "vtp");
    }
    let of = |stream: &Value, name: &str| number(&stream["account"], name);
    assert_eq!(of(&near, "unique"), number(&known["sent"], "sent"));
    assert_eq!(
        ["lost", "duplicates", "reordered"].map(|name| of(&near, name)),
        [0; 3]
    );
    for counter in ["unique", "lost", "duplicates", "reordered"] {
        let expected = number(&known["received"], counter);
        assert_eq!(of(&far, counter), expected, "{counter}");
        assert!(expected > 0);
    }
    // With segmentation offload captures have bursts: before the path they are complete, behind it they lack the path's losses.
    let known = answer("train.json");
    let train = stream("train-near", ":2631");
    assert_eq!(number(&train, "datagrams"), number(&known["sent"], "sent"));
    assert!(number(&train, "packets") < number(&train, "datagrams"));
    assert_eq!(of(&train, "lost"), 0);
    let far = stream("train-far", ":2631");
    assert!(of(&far, "lost") > 0);
    assert_eq!(
        of(&far, "unique") + of(&far, "lost"),
        number(&known["sent"], "sent")
    );
    let known = answer("probe.json");
    // Clock requests have numbers of the same sequence.
    let probes = |capture: &str, is_there: bool| {
        let (analysis, _) = analyse(capture);
        let mut streams = analysis["streams"].as_array().unwrap().iter();
        let is_it = |stream: &&Value| {
            stream["numbers"] == "probe"
                && stream["ends"][0].as_str().unwrap().starts_with("10.77.0.1") == is_there
        };
        streams.find(is_it).unwrap().clone()
    };
    for (sender, receiver, way, is_there) in [
        ("probe-near", "probe-far", "there", true),
        ("probe-far", "probe-near", "back", false),
    ] {
        let (sent, come) = (probes(sender, is_there), probes(receiver, is_there));
        let known = |counter: &str| number(&known[way], counter);
        for counter in ["lost", "duplicates"] {
            assert_eq!(of(&come, counter), known(counter), "{way}: {counter}");
        }
        assert_eq!(of(&sent, "lost"), 0);
        assert_eq!(of(&come, "unique") + known("lost"), of(&sent, "unique"));
        assert_eq!(known("sent"), known("unique") + known("lost"));
        assert!(known("sent") == 800 && of(&sent, "unique") < 850);
    }
}
