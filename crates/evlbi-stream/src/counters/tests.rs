//! Tests that the tables are complete: names, sums, docs and all that shows them.

use std::collections::HashSet;
use std::path::Path;

use serde_json::json;

use super::*;
use crate::control_socket::{Receiving, Sending, Status};

/// Values of the counter `nonce` of the tests after 5 received bytes, and after 3 sent datagrams.
const NONCE: u64 = 5007;
const NONCE_SENT: u64 = 3007;

fn received() -> Received {
    let live = receive::Snapshot {
        bytes: 5,
        ring_waits: 2.5,
        ..receive::Snapshot::default()
    };
    let rate_bps = 40.0;
    Received { live, rate_bps }
}

fn sent() -> Sent {
    let live = transmit::Snapshot {
        sent: 3,
        ..transmit::Snapshot::default()
    };
    let rate_bps = 24.0;
    Sent { live, rate_bps }
}

/// Returns the status of a flow that receives and sends.
fn received_and_sent() -> Status {
    let Received { live, rate_bps } = received();
    Status {
        time: 1e10,
        receiving: vec![Receiving::of(live, rate_bps)],
        sending: Some(Sending {
            counts: Counts::of(SENT, &sent()),
            ..Sending::default()
        }),
        ..Status::default()
    }
}

/// A counter in the table is in statuses, results and descriptions: `nonce` is only in the tests' table.
#[test]
fn a_counter_of_the_table_is_in_everything() {
    let status = serde_json::to_value(received_and_sent()).unwrap();
    assert_eq!(status["receiving"][0]["nonce"], NONCE);
    assert_eq!(status["receiving"][0]["ring_waits"], 2.5);
    assert_eq!(status["sending"]["nonce"], NONCE_SENT);

    let report = receive::ReceiveReport {
        live: received().live,
        ..receive::ReceiveReport::default()
    };
    let result = serde_json::to_value(Counted::from(report)).unwrap();
    assert_eq!(
        (&result["nonce"], &result["ring_waits"]),
        (&json!(NONCE), &json!(2.5))
    );
    assert!(result.get("ring_fill").is_none(), "of a moment: {result}");

    let page = serde_json::to_value(Counters::default()).unwrap();
    for role in ["sending", "receiving"] {
        let all = page[role].as_array().unwrap();
        let nonce = all.iter().find(|counter| counter["name"] == "nonce");
        assert_eq!(nonce.unwrap()["unit"], "datagrams", "{role}");
    }
    for schema in [received_schema(), sent_schema(), lists_schema()] {
        let schema = serde_json::to_value(schema).unwrap();
        assert!(schema["properties"]["nonce"].is_object(), "{schema}");
    }
    for schema in [safe_sent_schema(), lists_schema()] {
        let schema = serde_json::to_value(schema).unwrap();
        assert!(schema["properties"]["nonce_safe"].is_object(), "{schema}");
    }
    let lists = serde_json::to_value(lists_schema()).unwrap();
    let bytes = &lists["properties"]["bytes"]["items"]["description"];
    let is_of_both = |text: &str| text.contains("sent") && text.contains("received");
    assert!(bytes.as_str().is_some_and(is_of_both), "{bytes}");
    for name in ["nonce", "nonce_frames"] {
        assert!(document().contains(&format!("| `{name}` |")));
    }
}

/// A status of another version can be read: missing counters have no value, and unknown ones are ignored.
#[test]
fn a_status_of_another_version_is_read() {
    let old = json!({"time": 1.0, "line": "", "receiving": [{
        "is_streaming": true, "rate_bps": 1e6, "expected": 3, "lost": 1, "ring_fill": 0.5}]});
    let status: Status = serde_json::from_value(old).unwrap();
    let counts = &status.receiving[0].counts;
    assert_eq!((counts.count("lost"), counts.count("ring_full")), (1, 0));
    assert_eq!(
        (counts.real("ring_fill"), counts.real("ring_waits")),
        (0.5, 0.0)
    );
    let mut new = serde_json::to_value(received_and_sent()).unwrap();
    new["receiving"][0]["sparks"] = json!({"many": 5});
    new["receiving"][0]["embers"] = json!(5);
    let read: Status = serde_json::from_value(new).unwrap();
    let again = serde_json::to_value(read).unwrap();
    assert_eq!(again, serde_json::to_value(received_and_sent()).unwrap());
}

/// A name means one counter: it has the same kind and unit in both tables, and its own metrics.
#[test]
fn names_are_of_one_counter() {
    for counter in all() {
        let same = named(counter.name).unwrap();
        assert_eq!((same.kind, same.unit), (counter.kind, counter.unit));
    }
    let metrics: HashSet<&str> = all().map(|counter| counter.metric).collect();
    assert_eq!(metrics.len(), all().count());
    let frames: HashSet<&str> = FRAMES.iter().map(|field| field.counter.name).collect();
    assert!(
        RECEIVED
            .iter()
            .all(|field| !frames.contains(field.counter.name))
    );
}

/// Returns the tables of docs/src/counters.md.
fn document() -> String {
    fn table<T>(title: &str, fields: &[Field<T>]) -> String {
        let rows = fields.iter().map(|Field { counter, .. }| {
            let unit = match (counter.kind, counter.unit) {
                (_, Unit::Times) => "times".to_owned(),
                (_, Unit::BitsPerSecond) => "bit/s".to_owned(),
                (_, Unit::Ratio) => "0 to 1".to_owned(),
                (_, Unit::Seconds) => "s".to_owned(),
                (_, Unit::Flows) => "TCP flows".to_owned(),
                (_, Unit::Code) => "a number".to_owned(),
                (_, unit) => format!("{unit:?}").to_lowercase(),
            };
            let kind = format!("{:?}", counter.kind).to_lowercase();
            format!(
                "| `{}` | {kind} | {unit} | {} |\n",
                counter.name, counter.help
            )
        });
        let rows: String = rows.collect();
        format!("## {title}\n\n| name | kind | unit | meaning |\n|---|---|---|---|\n{rows}\n")
    }
    table("Of a receiver", RECEIVED)
        + &table("Of a sender", SENT)
        + &table("Of a sender under SafeUDP", SAFE_SENT)
        + &table("Of a receiver under SafeUDP", SAFE_RECEIVED)
        + &table("Of a recording", FRAMES)
}

const BEGIN: &str = "<!-- From here on made from crates/evlbi-stream/src/counters.rs -->\n\n";
const END: &str = "<!-- To here -->\n";

#[test]
fn the_page_of_counters_is_made_from_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/counters.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("a start");
    let (_, after) = rest.split_once(END).expect("an end");
    // The tests' own counter is not documented.
    let tables = document();
    let tables = tables.lines().filter(|line| !line.starts_with("| `nonce"));
    let tables: String = tables.flat_map(|line| [line, "\n"]).collect();
    let wanted = format!("{before}{BEGIN}{tables}{END}{after}");
    if std::env::var_os("EVLBI_WRITE_DOCS").is_some() {
        return std::fs::write(&path, &wanted).unwrap();
    }
    assert!(
        page == wanted,
        "docs/src/counters.md differs from crates/evlbi-stream/src/counters.rs: write it with cargo xtask docs"
    );
}
