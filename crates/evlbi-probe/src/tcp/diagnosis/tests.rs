//! Flows of a real kernel over emulated paths, each with a different limit. `tests/oracles/tcp` has the kernel's samples and the counts of
//! both endpoints, and `tests/oracles/record.sh` has the commands that recorded them.

use std::fs;
use std::path::Path;

use evlbi_net::tcp::{Given, MessagesIn, MessagesOut, Sampled, Taken};
use evlbi_testkit::oracle;
use evlbi_trace::tcp::{Info, LimitedBy, Reading};
use serde_json::{Map, Value, json};

use super::super::Background;
use super::*;
use crate::direction::Direction;
use crate::endpoint::{EndpointReport, FlowEnd, FlowsEnd};
use crate::measure::Record;
use crate::session::TestReport;

/// Time at which the first message of a trace was due.
const START: u64 = 1_800_000_000_000_000_000;

fn folder() -> &'static Path {
    Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../evlbi/tests/oracles/tcp"
    ))
}

fn text(name: &str) -> String {
    fs::read_to_string(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Reads the samples of the sender's kernel, as `--samples` wrote them.
fn readings(name: &str) -> Vec<Reading> {
    let text = text(&format!("{name}.csv"));
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    let value = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    let reading = |line: &str| {
        let values = line.split(',').map(value);
        let fields: Map<String, Value> =
            names.iter().map(ToString::to_string).zip(values).collect();
        let at = START + (fields["seconds"].as_f64().unwrap() * 1e9) as u64;
        let backlog = fields["backlog"].clone();
        let reading = json!({ "at": at, "connection": 0, "backlog": backlog, "info": fields });
        serde_json::from_value(reading).unwrap()
    };
    lines.map(reading).collect()
}

/// Reads messages, as `--records` wrote them.
fn records(name: &str) -> Vec<Record> {
    let text = text(&format!("{name}.messages.csv"));
    let numbers = |line: &str| -> Vec<i64> {
        line.split(',')
            .map(|field| field.parse().unwrap())
            .collect()
    };
    let at = |since: i64| START.saturating_add_signed(since);
    let record = |line: &str| {
        let fields = numbers(line);
        Record(fields[1] as u64, at(fields[2]), at(fields[3]))
    };
    text.lines().skip(1).map(record).collect()
}

fn of<T: serde::de::DeserializeOwned>(value: &Value, name: &str) -> T {
    serde_json::from_value(value[name].clone()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Reads a recorded flow, and its options.
fn recorded(name: &str) -> (Flow, Asked) {
    let known: Value = serde_json::from_str(&text(&format!("{name}.json"))).unwrap();
    let (asked, flow) = (&known["asked"], &known["flow"]);
    let background = asked["background"].as_object().map(|_| Background {
        rate: of(&asked["background"], "rate"),
        from: of(&asked["background"], "from"),
        to: of(&asked["background"], "to"),
    });
    let asked = Asked {
        rate: of(asked, "rate"),
        message: of(asked, "message"),
        backlog: of(asked, "backlog"),
        full: of(asked, "full"),
        duration: of(asked, "duration"),
        sample: of(asked, "sample"),
        background,
        round_trip: of(asked, "round_trip"),
    };
    let readings = readings(name);
    let last = Info {
        data_segments: of(flow, "segments"),
        sent_again: of(flow, "sent_again"),
        needless: of(flow, "needless"),
        timeouts: of(flow, "timeouts"),
        ..readings.last().unwrap().info
    };
    let messages = flow.get("messages");
    let given = Given {
        seconds: of(flow, "seconds"),
        blocked_seconds: of(flow, "blocked"),
        cpu_seconds: of(flow, "sender_cpu_seconds"),
        messages: messages.map(|messages| MessagesOut {
            start: START,
            due: of(messages, "due"),
            sent: of(messages, "sent"),
            shed: of(messages, "shed"),
            most_waiting: of(messages, "most_waiting"),
            blocked: of(messages, "blocked"),
        }),
        ..Given::default()
    };
    let taken = Taken {
        bytes: of(flow, "bytes"),
        cpu_seconds: of(flow, "receiver_cpu_seconds"),
        messages: messages.map(|messages| MessagesIn {
            count: of(messages, "received"),
            records: records(name),
        }),
        ..Taken::default()
    };
    let end = |given, taken, readings: Vec<Reading>| EndpointReport {
        flows: Some(FlowsEnd {
            flows: vec![FlowEnd {
                algorithm: of(flow, "algorithm"),
                ports: of(flow, "ports"),
                send_buffer: of(flow, "send_buffer"),
                receive_buffer: of(flow, "receive_buffer"),
                given,
                taken,
                last: Some(last),
            }],
            sampled: Sampled {
                readings,
                ..Sampled::default()
            },
        }),
        ..EndpointReport::default()
    };
    let ends = TestReport {
        here: end(Some(given), None, readings),
        there: end(None, Some(taken), Vec::new()),
        peer: ([127, 0, 0, 1], 0).into(),
        clock: Vec::new(),
        requests: 0,
        stopped: None,
    };
    let found = Flow::new(0, Direction::There, &asked, 1.0, &ends, None);
    (found.unwrap(), asked)
}

/// A recorded flow, and its limit by construction.
struct Case {
    name: &'static str,
    /// Fraction of the time that this limit took, and its minimum.
    part: fn(&LimitedBy) -> f64,
    least: f64,
    /// Texts that its findings contain.
    said: &'static [&'static str],
}

const CASES: [Case; 10] = [
    // Messages at 5 Mbit/s over a path of 100 Mbit/s.
    Case {
        name: "application",
        part: |held| held.application,
        least: 0.98,
        said: &[
            ", as requested",
            "limited by the application, which had no more to send",
        ],
    },
    // A receive buffer of 60 kB.
    Case {
        name: "receiver",
        part: |held| held.receiver,
        least: 0.9,
        said: &["limited by the receiver's window", "--receive-buffer"],
    },
    // A send buffer of 20 kB.
    Case {
        name: "buffer",
        part: |held| held.buffer,
        least: 0.9,
        said: &["limited by the send buffer", "--buffer"],
    },
    // A queue of 20 Mbit/s on the sending host, without loss.
    Case {
        name: "host",
        part: |held| held.host,
        least: 0.9,
        said: &["limited by the sending host", "no retransmissions"],
    },
    // Loss of 1 % of the packets.
    Case {
        name: "window",
        part: |held| held.window,
        least: 0.8,
        said: &["limited by the congestion window", "segments retransmitted"],
    },
    // A bottleneck of 20 Mbit/s whose buffer of 100 KiB is full.
    Case {
        name: "path",
        part: |held| held.window,
        least: 0.8,
        said: &["limited by the congestion window", "18."],
    },
    // A competing stream of 35 Mbit/s, from 5 s to 6 s.
    Case {
        name: "burst",
        part: |held| held.window,
        least: 0.8,
        said: &["from 5.0000 s to 6.0000 s, next to the background stream, the rate fell from"],
    },
    // The path drops packets longer than 1300 bytes, without an ICMP message.
    Case {
        name: "black-hole",
        part: |held| held.repair,
        least: 0.9,
        said: &["a path MTU black hole", "--mss"],
    },
    // Losses, and messages at 50 Mbit/s through a send buffer of a quarter of the bandwidth-delay product, of which Linux halves the usable
    // size.
    Case {
        name: "product",
        part: |held| held.buffer,
        least: 0.5,
        said: &[
            "limited by the send buffer",
            "never on time again",
            "reno needs a send buffer of",
        ],
    },
    // The same, but messages that find no room are shed.
    Case {
        name: "shedding",
        part: |held| held.buffer,
        least: 0.5,
        said: &["limited by the send buffer", "messages were shed"],
    },
];

/// The limit of each flow is known from its setup. Its fractions of the time and all sentences are compared with committed ones, so that
/// each change to them is visible.
#[test]
fn what_limited_recorded_flows_is_named() {
    let mut found = Map::new();
    for case in CASES {
        let (name, (flow, asked)) = (case.name, recorded(case.name));
        let held = &flow.course.held_back;
        let parts = [
            ("application", held.application),
            ("window", held.window),
            ("receiver", held.receiver),
            ("buffer", held.buffer),
            ("repair", held.repair),
            ("host", held.host),
        ];
        let sum: f64 = parts.iter().map(|(_, part)| part).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{name}: {held:?}");
        assert!((case.part)(held) >= case.least, "{name}: {held:?}");
        let sentences = of_flow(&flow, &asked);
        for said in case.said {
            let is_said = sentences.iter().any(|sentence| sentence.contains(said));
            assert!(is_said, "{name}: {said}: {sentences:#?}");
        }
        // In thousandths of the time, which rounding errors do not change.
        let thousandths =
            parts.map(|(part, time)| (part.to_owned(), json!((time * 1000.0).round() as u64)));
        let thousandths: Map<String, Value> = thousandths.into_iter().collect();
        found.insert(
            name.to_owned(),
            json!({ "held back, in thousandths": thousandths, "findings": sentences }),
        );
    }
    oracle::compare(&folder().join("findings.json"), &found.into());
}

/// Messages are late and shed as both endpoints counted.
#[test]
fn late_and_shed_messages_of_recordings_are_reported() {
    let (application, _) = recorded("application");
    let (product, _) = recorded("product");
    let (shedding, _) = recorded("shedding");
    for flow in [&application, &product, &shedding] {
        let messages = flow.messages.as_ref().unwrap();
        assert_eq!(messages.due, messages.sent + messages.shed);
        assert_eq!(messages.received, messages.sent);
    }
    let late = |flow: &Flow| flow.messages.as_ref().unwrap().timely.late.clone();
    assert!(late(&product).last().unwrap().until.is_none());
    let messages = product.messages.as_ref().unwrap();
    assert!(messages.shed == 0 && messages.blocked > 1.0);
    let messages = shedding.messages.as_ref().unwrap();
    assert!(messages.shed > 1000);
    // Shedding keeps messages less late than waiting.
    let longest = |flow: &Flow| flow.messages.as_ref().unwrap().timely.longest;
    assert!(longest(&shedding) < longest(&product));
}
