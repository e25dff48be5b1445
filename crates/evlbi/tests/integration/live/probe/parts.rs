//! Results that are on the disk as they grow.

use serde_json::Value;

use super::{end, probe_of, respond, run};
use evlbi_testkit::Room;

fn lines(path: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

#[test]
fn each_part_of_a_result_is_a_line() {
    let room = Room::new();
    let out = room.path("parts.jsonl");
    let responder = respond("127.0.0.1:0", &[]);
    let probes: [(&str, &[&str], &str, usize); 5] = [
        (
            "udp",
            &[
                "--rate",
                "1M,2M",
                "--count",
                "20",
                "--loss-timeout",
                "100ms",
            ],
            "point",
            2,
        ),
        (
            "latency",
            &["--size", "64,100", "--count", "10", "--interval", "1ms"],
            "point",
            2,
        ),
        (
            "capacity",
            &[
                "--lowest",
                "1M",
                "--highest",
                "1M",
                "--duration",
                "20ms",
                "--confirm",
                "1",
                "--loss",
                "50%",
            ],
            "trial",
            1,
        ),
        (
            "tcp",
            &[
                "--rate",
                "1M",
                "--backlog",
                "128KiB",
                "--duration",
                "1200ms",
                "--background",
                "1M",
                "--background-size",
                "200",
                "--background-for",
                "50ms",
            ],
            "progress",
            1,
        ),
        (
            "tcp",
            &[
                "--write",
                "4KiB",
                "--discard",
                "--duration",
                "50ms",
                "--mss",
                "500,1000",
            ],
            "point",
            2,
        ),
    ];
    for (kind, more, part, least) in probes {
        let all = [more, &["--json", "--out", &out, "--force"]].concat();
        let output = run(&mut probe_of(kind, responder.address(), &all));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{kind}: {said}");
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        let lines = lines(&out);
        assert_eq!(lines[0]["schema"], "evlbi.probe.parts/1");
        assert_eq!(lines[0]["of"], printed["schema"]);
        let parts = lines.iter().filter(|line| !line[part].is_null()).count();
        assert!(parts >= least, "{kind}: {parts}");
        assert_eq!(
            lines[lines.len() - 1]["result"]["schema"],
            printed["schema"]
        );
        if kind == "capacity" {
            let limits = ["asked", "sender", "receiver", "unknown", "path"];
            assert!(
                limits.contains(&printed["limit"].as_str().unwrap()),
                "{printed}"
            );
        }
    }
    // What is there is not overwritten by accident.
    let again = ["--rate", "1M", "--count", "1", "--out", &out];
    let output = run(&mut probe_of("udp", responder.address(), &again));
    assert!(!output.status.success());
    end(responder);
}
