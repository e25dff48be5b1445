//! Streams that are correlated on arrival.

use evlbi_testkit::result::{assert_schema, read};
use evlbi_testkit::{Room, until};
use evlbi_wire::pattern;
use serde_json::Value;

use crate::live::support::{Recv, evlbi, send};

const HERE: &str = "udp://127.0.0.1:0";

/// Two stations over midnight, one of which is late.
const PLAN: &str = r#"
start = "2024-01-01T23:59:59Z"
duration = 5.0
sample_rate = 16e3
correlation = 0.3
edv = 1
payload = 800
[[station]]
name = "Ef"
[[station]]
name = "Jb"
delay = [1e-6]
"#;

#[test]
fn a_stream_that_cannot_be_correlated_is_reported() {
    let mut command = evlbi();
    command.args(["correlate", HERE, HERE, "--live", "--json"]);
    let correlator = Recv::listening(&mut command, 2);
    // The pattern's headers give no sample rate.
    let room = Room::new();
    let rate = pattern::frame_rate(64);
    let frames = pattern::frames(8032, 1_700_000_000, rate, 20).unwrap();
    let source = room.write("in.vdif", frames);
    send(&source, &correlator.url(), &["--mtu", "9000"]);
    let received = correlator.end();
    assert!(!received.status.success());
    assert!(
        received.stderr.contains("--sample-rate"),
        "{}",
        received.stderr
    );
}

/// A station whose clock is half a minute ahead does not affect baselines of the others, is named, and sets the exit status.
#[test]
fn a_wrong_clock_harms_nobody_else() {
    let room = Room::new();
    let right = room.write("plan.toml", PLAN);
    let wrong = PLAN.replace("2024-01-01T23:59:59Z", "2024-01-02T00:00:29Z");
    let wrong = room.write("wrong.toml", wrong.replace("\"Jb\"", "\"On\""));
    let mut command = evlbi();
    command.args(["correlate", HERE, HERE, HERE, "--live", "--json"]);
    command.args(["--channels", "64", "--wait", "10s"]);
    let correlator = Recv::listening(&mut command, 3);
    let sources = [
        format!("sky:{right}/Ef"),
        format!("sky:{right}/Jb"),
        format!("sky:{wrong}/On"),
    ];
    std::thread::scope(|scope| {
        for (source, address) in sources.iter().zip(&correlator.addresses) {
            let to = format!("udp://{address}");
            scope.spawn(move || send(source, &to, &[]));
        }
    });
    until("all have a time", || {
        (0..3).all(|stream| correlator.arrived(stream) >= 20)
    });
    let received = correlator.stop();
    assert_eq!(received.status.code(), Some(1), "{}", received.stderr);
    assert!(
        received.stderr.contains("no data correlated: On"),
        "{}",
        received.stderr
    );
    let lines = received.stdout.lines();
    let lines: Vec<Value> = lines.map(read).collect();
    let (last, integrations) = lines.split_last().unwrap();
    assert!(!integrations.is_empty());
    for integration in integrations {
        assert_schema(integration, "evlbi.live/1");
    }
    assert_schema(last, "evlbi.correlate/1");
    assert!(
        last["baselines"][0]["weight"].as_f64().unwrap() > 0.9,
        "{last}"
    );
    assert!(last["streams"][0]["reason"].is_null() && last["streams"][2]["reason"].is_string());
}
