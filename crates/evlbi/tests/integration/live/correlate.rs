//! Streams that are correlated as they come.

use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;

use evlbi_testkit::{Room, buffer, until};
use evlbi_wire::vtp;
use serde_json::Value;

use crate::live::support::{Received, Recv, evlbi, send};
use crate::result::number;

/// Bytes of data in a datagram, which is a frame.
const PAYLOAD: u64 = 8000;

/// Two stations over midnight, of which one is late: `seconds` at `sample_rate` samples a second.
fn plan(room: &Room, seconds: f64, sample_rate: f64, payload: u64) -> String {
    let plan = format!(
        r#"
start = "2024-01-01T23:59:59Z"
duration = {seconds}
sample_rate = {sample_rate}
correlation = 0.3
edv = 1
payload = {payload}
[[station]]
name = "Ef"
[[station]]
name = "Jb"
delay = [1e-6]
"#
    );
    room.write("plan.toml", plan)
}

fn correlate(options: &[&str]) -> Command {
    let mut command = evlbi();
    let here = "udp://127.0.0.1:0";
    command.args(["correlate", here, here, "--live", "--json"]);
    command.args(options);
    command
}

/// Sends both stations of a plan at once, and returns what was sent of each when all of it has arrived.
fn send_both(correlator: &Recv, plan: &str) -> [u64; 2] {
    send_both_with(correlator, plan, &[])
}

fn send_both_with(correlator: &Recv, plan: &str, more: &[&str]) -> [u64; 2] {
    let options = [&["--mtu", "9000"][..], more].concat();
    let options = options.as_slice();
    let sent: Vec<u64> = std::thread::scope(|scope| {
        let senders: Vec<_> = ["Ef", "Jb"]
            .into_iter()
            .zip(&correlator.addresses)
            .map(|(station, address)| {
                let source = format!("sky:{plan}/{station}");
                scope.spawn(move || {
                    let sent = send(&source, &format!("udp://{address}"), options);
                    number(&sent, "sent")
                })
            })
            .collect();
        let sent = senders.into_iter().map(|sender| sender.join().unwrap());
        sent.collect()
    });
    for (stream, sent) in sent.iter().enumerate() {
        until("all arrives", || correlator.arrived(stream) >= *sent);
    }
    sent.try_into().unwrap()
}

fn lines(received: &Received) -> Vec<Value> {
    assert!(received.status.success(), "{}", received.stderr);
    let lines = received.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The correlator received all datagrams of both stations: none is lost, and none counts as `other`.
#[track_caller]
fn assert_all(result: &Value, sent: [u64; 2], other: &str) {
    let counts = ["unique", "lost", other];
    let found = [0, 1].map(|at| counts.map(|name| number(&result["streams"][at], name)));
    assert_eq!(found, sent.map(|sent| [sent, 0, 0]));
}

/// Fringes come integration by integration, and nothing is lost or late.
#[test]
fn two_streams_show_a_fringe_as_they_come() {
    let room = Room::new();
    // As long as what a receiver's buffer holds of each, with both on their way at once.
    let most = buffer::holds(PAYLOAD as usize + 32 + vtp::HEADER_LEN) as u64 / 2 * PAYLOAD;
    let sample_rate = 8e6;
    let samples = 4.0 * (most as f64).min(2.5 * sample_rate / 4.0);
    let integration = (samples / sample_rate / 5.0 * 1000.0).floor() / 1000.0;
    let plan = plan(&room, 5.0 * integration, sample_rate, PAYLOAD);
    let integration_of = format!("{}ms", (integration * 1000.0).round());
    let mut command = correlate(&["--channels", "128", "--freq", "4.9G"]);
    command.args(["--integration", &integration_of]);
    command.args(["--delay", "0", "--delay", "1us", "--wait", "10min"]);
    let correlator = Recv::listening(&mut command, 2);
    let sent = send_both(&correlator, &plan);
    until("four integrations come", || {
        correlator.stdout().lines().count() >= 4
    });
    let lines = lines(&correlator.stop());
    let (last, periods) = lines.split_last().unwrap();
    // Four times what the noise of an integration does.
    let noise = 4.0 / (integration * sample_rate).sqrt();
    for (number_of, period) in periods.iter().enumerate() {
        assert_eq!(period["schema"], "evlbi.live/1");
        let baseline = &period["baselines"][0];
        let of = |name: &str| baseline[name].as_f64().unwrap();
        // None is lost.
        assert_eq!(baseline["lost"], serde_json::json!([0.0, 0.0]));
        // The first and the last may be parts of an integration.
        if number_of > 0 && number_of + 1 < periods.len() {
            assert!(of("weight") > 0.999, "{baseline}");
            assert!(
                of("delay_s").abs() < 2e-9 * (1.0 + 250.0 * noise),
                "{baseline}"
            );
            let amplitude = baseline["amplitude"]["corrected"].as_f64().unwrap();
            assert!((amplitude - 0.3).abs() < noise.max(0.01), "{baseline}");
        }
    }
    assert_eq!(last["schema"], "evlbi.correlate/1");
    assert_all(last, sent, "late_frames");
}

/// Records both stations of a plan; returns the files.
fn record_both(room: &Room, plan: &str, more: &[&str]) -> [String; 2] {
    ["Ef", "Jb"].map(|station| {
        let file = room.path(station);
        let recv = Recv::start("udp://127.0.0.1:0", Path::new(&file), &[]);
        let options = [&["--mtu", "9000"][..], more].concat();
        let sent = send(&format!("sky:{plan}/{station}"), &recv.url(), &options);
        recv.finish_after(number(&sent, "sent"));
        file
    })
}

fn correlate_files(files: &[String; 2], more: &[&str]) -> Value {
    let mut command = evlbi();
    command.args(["correlate", &files[0], &files[1], "--json"]);
    let output = command.args(more).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Frames of a station that a receiver's socket holds with those of the other, in integrations of ten frames of 20 ms.
const INTEGRATIONS: usize = 5;
const RATE: f64 = 1.6e6;

fn short_plan(room: &Room) -> String {
    let frames = 10 * INTEGRATIONS;
    assert!(2 * frames <= buffer::holds(PAYLOAD as usize + 32 + vtp::HEADER_LEN));
    plan(room, 0.2 * INTEGRATIONS as f64, RATE, PAYLOAD)
}

/// Streams that lose frames are correlated as their recordings are: the same frames, weights and amplitudes in each integration.
#[test]
fn a_live_correlation_is_that_of_the_recordings() {
    let room = Room::new();
    let plan = short_plan(&room);
    let shed = ["--shed", "random:20%"];
    // Within a narrow window of rates neither depends on how an integration is divided in time.
    let options = [
        "--channels",
        "64",
        "--integration",
        "200ms",
        "--rate-window",
        "1m",
    ];
    let mut command = correlate(&options);
    command.args(["--wait", "10min"]);
    let correlator = Recv::listening(&mut command, 2);
    let sent = send_both_with(&correlator, &plan, &shed);
    assert!(sent.iter().all(|sent| *sent < 10 * INTEGRATIONS as u64));
    let lines = lines(&correlator.stop());
    let (last, periods) = lines.split_last().unwrap();
    let files = record_both(&room, &plan, &shed);
    let whole = correlate_files(&files, &options);
    for station in [0, 1] {
        for count in ["name", "frames", "late", "duplicates", "foreign"] {
            let of = |result: &Value| result["stations"][station][count].clone();
            assert_eq!(of(last), of(&whole), "{count} of station {station}");
        }
    }
    // The first and the last may be parts of an integration.
    assert!(periods.len() >= 4, "{} integrations", periods.len());
    let mut least = 1.0f64;
    for (before, period) in periods[1..periods.len() - 1].iter().enumerate() {
        let chunk = format!("{}/{}", before + 2, periods.len());
        let recorded = correlate_files(&files, &[&options[..], &["--chunk", &chunk]].concat());
        assert_eq!(period["time"], recorded["start"]);
        let [live, recorded] = [period, &recorded].map(|result| &result["baselines"][0]);
        let near = |name: &str, within: f64| {
            let [a, b] = [live, recorded].map(|of| of.pointer(name).unwrap().as_f64().unwrap());
            assert!((a - b).abs() <= within, "{name}: {live}, {recorded}");
            a
        };
        least = least.min(near("/weight", 1e-12));
        for amplitude in ["all", "autos", "valid", "corrected"] {
            near(&format!("/amplitude/{amplitude}"), 1e-6);
        }
    }
    assert!(least < 0.9, "{least}");
}

/// Noise that has nothing in common has no fringe in recordings of two stations that send random bytes in the place of frames.
#[test]
fn random_bytes_of_two_senders_have_no_fringe() {
    let room = Room::new();
    let plan = short_plan(&room);
    let text = std::fs::read_to_string(&plan).unwrap();
    let plan = room.write(
        "noise.toml",
        text.replace("correlation = 0.3", "correlation = 0.0"),
    );
    let files = record_both(
        &room,
        &plan,
        &["--shed", "random:10%", "--replace", "random"],
    );
    let options = ["--channels", "64", "--trust", "blind"];
    let found = correlate_files(&files, &options)["baselines"][0].take();
    assert_eq!(found["weight"], 1.0);
    let [snr, chance] = ["snr", "false_alarm"].map(|name| found[name].as_f64().unwrap());
    assert!(snr < 8.0 && chance > 1e-6, "{found}");
}

/// An integration longer than what may wait for the correlator, 4 s beside `--wait`, comes to its end all the same.
#[test]
fn long_integrations_of_slow_streams_do_not_stall() {
    let room = Room::new();
    let plan = plan(&room, 26.0, 16e3, 800);
    let sky = evlbi()
        .args(["sky", &plan, "--out", &room.path("sky")])
        .status();
    assert!(sky.unwrap().success());
    let options = ["--channels", "64", "--integration", "12s", "--wait", "5s"];
    let correlator = Recv::listening(&mut correlate(&options), 2);
    let stations = ["Ef", "Jb"].map(|name| room.read(&format!("sky/{name}.vdif")));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // A second of both at a time, so that none is ahead of the other by more than is waited for.
    let frames: Vec<Vec<&[u8]>> = stations
        .iter()
        .map(|all| all.chunks(832).collect())
        .collect();
    for first in (0..frames[0].len()).step_by(5) {
        for (frames, address) in frames.iter().zip(&correlator.addresses) {
            for (number, frame) in frames.iter().enumerate().skip(first).take(5) {
                let datagram = [&vtp::header(number as u64)[..], frame].concat();
                socket.send_to(&datagram, address).unwrap();
            }
        }
        for (stream, frames) in frames.iter().enumerate() {
            let sent = frames.len().min(first + 5) as u64;
            until("a second arrives", || correlator.arrived(stream) >= sent);
        }
        // Before the run begins, only the newest 4 s are kept.
        if first == 10 {
            until("the run begins", || {
                correlator.stderr().contains("correlating Ef, Jb")
            });
        }
    }
    until("two integrations come", || {
        correlator.stdout().lines().count() >= 2
    });
    let lines = lines(&correlator.stop());
    let (last, _) = lines.split_last().unwrap();
    let sent = [0, 1].map(|station: usize| frames[station].len() as u64);
    assert_all(last, sent, "ring_full");
}

#[test]
fn a_stream_that_cannot_be_correlated_is_said() {
    let correlator = Recv::listening(&mut correlate(&[]), 2);
    // The pattern's headers do not tell a sample rate.
    let room = Room::new();
    let rate = evlbi_wire::pattern::frame_rate(64);
    let frames = evlbi_wire::pattern::frames(8032, 1_700_000_000, rate, 20).unwrap();
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

/// A station whose clock is half a minute ahead harms no baseline of the others, is named, and makes the exit status.
#[test]
fn a_wrong_clock_harms_nobody_else() {
    let room = Room::new();
    let right = plan(&room, 5.0, 16e3, 800);
    let text = std::fs::read_to_string(&right).unwrap();
    let wrong = text.replace("2024-01-01T23:59:59Z", "2024-01-02T00:00:29Z");
    let wrong = room.write("wrong.toml", wrong.replace("\"Jb\"", "\"On\""));
    let here = "udp://127.0.0.1:0";
    let mut command = evlbi();
    command.args(["correlate", here, here, here, "--live", "--json"]);
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
        received.stderr.contains("no data correlated of On"),
        "{}",
        received.stderr
    );
    let last: Value = serde_json::from_str(received.stdout.lines().last().unwrap()).unwrap();
    assert!(
        last["baselines"][0]["weight"].as_f64().unwrap() > 0.9,
        "{last}"
    );
    assert!(last["streams"][0]["reason"].is_null() && last["streams"][2]["reason"].is_string());
}
