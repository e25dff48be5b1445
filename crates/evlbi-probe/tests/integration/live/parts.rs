//! Results that are on disk as they grow.

use std::path::PathBuf;
use std::time::Duration;

use evlbi_net::run::Run;
use evlbi_probe::capacity::{self, ProbeCapacityOptions};
use evlbi_probe::latency::{self, ProbeLatencyOptions};
use evlbi_probe::sweep::Sizes;
use evlbi_probe::tcp::{self, ProbeTcpOptions, Tested};
use evlbi_probe::udp::{self, ProbeUdpOptions};
use evlbi_testkit::Room;
use evlbi_testkit::result::{assert_schema, checked, refused};
use serde::Serialize;
use serde_json::{Value, json};

use super::support::{end, kept, open, respond_here, stream, target};

/// Where a probe writes the parts of its result.
struct Out {
    room: Room,
    path: PathBuf,
}

impl Out {
    fn new() -> Out {
        let room = Room::new();
        let path = room.path("parts.jsonl").into();
        Out { room, path }
    }

    /// Asserts that at least `least` parts of this name are in the file, followed by the whole result.
    #[track_caller]
    fn assert_has(&self, part: &str, least: usize, result: &impl Serialize) {
        let text = self.room.text("parts.jsonl");
        let lines: Vec<&str> = text.lines().collect();
        let parsed = lines.iter().map(|line| serde_json::from_str(line).unwrap());
        let parsed: Vec<Value> = parsed.collect();
        let result = checked(serde_json::to_value(result).unwrap());
        assert!(result["stopped"].is_null(), "{result}");
        assert_schema(&parsed[0], "evlbi.probe.parts/1");
        assert_eq!(parsed[0]["of"], result["schema"]);
        let parts = parsed.iter().filter(|line| !line[part].is_null()).count();
        assert!(parts >= least, "{parts} of {part}");
        let whole = json!({ "result": result }).to_string();
        assert_eq!(lines[lines.len() - 1], whole);
    }
}

#[test]
fn each_part_of_a_result_is_a_line() {
    let responder = respond_here(&open());
    let run = Run::silent();
    let millis = Duration::from_millis;

    let out = Out::new();
    let options = ProbeUdpOptions {
        target: target(&responder),
        loss_timeout: millis(100),
        out: Some(out.path.clone()),
        ..stream("1M,2M", 1472, 20)
    };
    out.assert_has("point", 2, &kept(udp::probe(&options, &run)));
    // Existing files are not overwritten by accident.
    let again = refused(udp::probe(&options, &run));
    assert!(again.contains("parts.jsonl exists"), "{again}");

    let out = Out::new();
    let options = ProbeLatencyOptions {
        target: target(&responder),
        size: Sizes(vec![64, 100]),
        count: 10,
        interval: millis(1),
        out: Some(out.path.clone()),
        ..ProbeLatencyOptions::default()
    };
    out.assert_has("point", 2, &kept(latency::probe(&options, &run)));

    let out = Out::new();
    let rate = "1M".parse().unwrap();
    let options = ProbeCapacityOptions {
        target: target(&responder),
        lowest: rate,
        highest: rate,
        duration: millis(20),
        confirm: 1,
        loss: 0.5,
        out: Some(out.path.clone()),
        ..ProbeCapacityOptions::default()
    };
    out.assert_has("trial", 1, &kept(capacity::probe(&options, &run)));

    let out = Out::new();
    let options = ProbeTcpOptions {
        target: target(&responder),
        rate: Some("1M".parse().unwrap()),
        backlog: 128 << 10,
        duration: millis(1200),
        background: Some("1M".parse().unwrap()),
        background_size: 200,
        background_for: millis(50),
        out: Some(out.path.clone()),
        ..ProbeTcpOptions::default()
    };
    match tcp::probe(&options, &run).unwrap() {
        Tested::One(measured) => {
            out.assert_has("progress", 1, &kept::<_, tcp::ProbeTcpError>(Ok(measured)));
        }
        Tested::Matrix(_) => panic!("one test"),
    }

    let out = Out::new();
    let options = ProbeTcpOptions {
        target: target(&responder),
        write: 4 << 10,
        discard: true,
        duration: millis(50),
        mss: vec![500, 1000],
        out: Some(out.path.clone()),
        ..ProbeTcpOptions::default()
    };
    match tcp::probe(&options, &run).unwrap() {
        Tested::Matrix(measured) => {
            out.assert_has("point", 2, &kept::<_, tcp::ProbeTcpError>(Ok(measured)));
        }
        Tested::One(_) => panic!("two tests"),
    }
    end(responder);
}
