//! Streams that are correlated as they come.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::live::support::{Recv, evlbi, send};
use crate::result::number;

const PLAN: &str = r#"
start = "2024-01-01T23:59:59Z"
duration = 2.5
sample_rate = 8e6
correlation = 0.3
edv = 1
[[station]]
name = "Ef"
[[station]]
name = "Jb"
delay = [1e-6]
"#;

/// Two stations, of which one is late, over midnight: fringes come integration by integration, and nothing is lost or late.
#[test]
fn two_streams_show_a_fringe_as_they_come() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.toml");
    fs::write(&plan, PLAN).unwrap();
    let mut command = evlbi();
    command.args([
        "correlate",
        "udp://127.0.0.1:0",
        "udp://127.0.0.1:0",
        "--live",
        "--json",
    ]);
    command.args([
        "--idle",
        "10s",
        "--channels",
        "128",
        "--freq",
        "4.9G",
        "--integration",
        "500ms",
    ]);
    command.args(["--delay", "0", "--delay", "1us", "--wait", "20s"]);
    let correlator = Recv::listening(&mut command, 2);
    let sent: Vec<Value> = std::thread::scope(|scope| {
        let senders: Vec<_> = ["Ef", "Jb"]
            .into_iter()
            .zip(&correlator.addresses)
            .enumerate()
            .map(|(late, (station, address))| {
                let source = format!("sky:{}/{station}", plan.display());
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(200 * late as u64));
                    send(
                        &source,
                        &format!("udp://{address}"),
                        &["--realtime", "--mtu", "9000"],
                    )
                })
            })
            .collect();
        senders
            .into_iter()
            .map(|sender| sender.join().unwrap())
            .collect()
    });
    let received = correlator.end();
    assert!(received.status.success(), "{}", received.stderr);
    let lines: Vec<Value> = received
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (last, periods) = lines.split_last().unwrap();
    assert!(periods.len() >= 4, "{} lines", periods.len());
    for (number_of, period) in periods.iter().enumerate() {
        assert_eq!(period["schema"], "evlbi.live/1");
        let baseline = &period["baselines"][0];
        let of = |name: &str| baseline[name].as_f64().unwrap();
        assert!(of("delay_s").abs() < 2e-9, "{baseline}");
        assert!((baseline["amplitude"]["corrected"].as_f64().unwrap() - 0.3).abs() < 0.01);
        // None is lost.
        assert_eq!(baseline["lost"], serde_json::json!([0.0, 0.0]));
        // The first and the last may be parts of an integration.
        if number_of > 0 && number_of + 1 < periods.len() {
            assert!(of("weight") > 0.999, "{baseline}");
        }
    }
    assert_eq!(last["schema"], "evlbi.correlate/1");
    for (stream, sent) in last["streams"].as_array().unwrap().iter().zip(&sent) {
        assert_eq!(number(stream, "unique"), number(sent, "sent"));
        assert_eq!(
            (number(stream, "lost"), number(stream, "late_frames")),
            (0, 0)
        );
    }
}

/// An integration longer than what may wait for the correlator comes to its end all the same.
#[test]
fn long_integrations_of_slow_streams_do_not_stall() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.toml");
    let slow = PLAN
        .replace("8e6", "128e3")
        .replace("duration = 2.5", "duration = 330");
    fs::write(&plan, slow.replace("edv = 1", "edv = 1\npayload = 800")).unwrap();
    let mut command = evlbi();
    command.args([
        "correlate",
        "udp://127.0.0.1:0",
        "udp://127.0.0.1:0",
        "--live",
        "--json",
    ]);
    command.args(["--idle", "10s", "--channels", "64", "--integration", "160s"]);
    let correlator = Recv::listening(&mut command, 2);
    std::thread::scope(|scope| {
        for (station, address) in ["Ef", "Jb"].into_iter().zip(&correlator.addresses) {
            let source = format!("sky:{}/{station}", plan.display());
            let to = format!("udp://{address}");
            scope.spawn(move || send(&source, &to, &["--rate", "8M"]));
        }
    });
    let received = correlator.end();
    assert!(received.status.success(), "{}", received.stderr);
    let lines: Vec<Value> = received
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    // They come faster than in real time, so that one may be ahead by more than is waited for; but all comes to an end.
    assert!(lines.len() >= 2, "{} lines", lines.len());
}

#[test]
fn a_stream_that_cannot_be_correlated_is_said() {
    let mut command = evlbi();
    command.args([
        "correlate",
        "udp://127.0.0.1:0",
        "udp://127.0.0.1:0",
        "--live",
        "--duration",
        "10s",
    ]);
    let correlator = Recv::listening(&mut command, 2);
    // The pattern's headers do not tell a sample rate.
    send(
        "pattern:8032",
        &correlator.url(),
        &["--duration", "2s", "--mtu", "9000"],
    );
    let received = correlator.end();
    assert!(!received.status.success());
    assert!(
        received.stderr.contains("--sample-rate"),
        "{}",
        received.stderr
    );
}
