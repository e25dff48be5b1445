//! Each option of the command line has a rule for flows, and the examples of the pages are sessions.

use std::fs;
use std::path::Path;

use evlbi_control::agent::{Config, allow};
use evlbi_control::commands::{COMMANDS, OptionPolicy};
use evlbi_control::session::Session;
use evlbi_net::clock::Clock;
use serde_json::{Value, json};

use super::*;

/// A new option that reads, writes, sends or listens must not be allowed by accident.
#[test]
fn every_option_was_thought_of() {
    let mut all = String::new();
    for command in &COMMANDS {
        let options = command.options(&CommandLine);
        let names = || options.iter().map(|option| option.name.as_str());
        for (ruled, _) in command.policies {
            assert!(
                names().any(|name| name == *ruled),
                "{} {ruled}",
                command.name
            );
        }
        let mut line = format!("{}:", command.name);
        for name in names().filter(|name| command.policy(name) == OptionPolicy::None) {
            line = format!("{line} {name}");
        }
        all += &line;
        all.push('\n');
    }
    assert_eq!(all, include_str!("../commands.txt"));
}

fn config(room: &evlbi_testkit::Room, settings: &str) -> Config {
    let path = room.write("agent.toml", settings);
    fs::create_dir(room.folder().join("recordings")).unwrap();
    Config::open(Path::new(&path)).unwrap()
}

fn words(flow: &Value, config: &Config) -> Vec<String> {
    let flow = serde_json::from_value(flow.clone()).unwrap();
    allow(&flow, config, &CommandLine, false).unwrap().words
}

/// An option that is `false` has the same effect as none, whichever it is.
#[test]
fn false_switches_nothing_on() {
    let room = evlbi_testkit::Room::new();
    let config = config(&room, "");
    let target =
        json!({"target": "127.0.0.1:8620", "token": "0123", "rate": "1M", "spacing": "1ms"});
    let send = json!({"source": "pattern:8032", "to": "udp://127.0.0.1:9", "rate": "1M"});
    let recv = json!({"from": "udp://127.0.0.1:0", "to": "null"});
    let live = json!({"files": ["udp://127.0.0.1:0", "udp://127.0.0.1:0"], "live": true});
    let mut seen = 0;
    for command in &COMMANDS {
        let base = match command.name {
            "send" => &send,
            "recv" => &recv,
            "correlate" => &live,
            _ => &target,
        };
        let known = command.options(&CommandLine);
        let has = |key: &str| known.iter().any(|option| option.name == key);
        let mut flow = json!({"id": "a", "command": command.name});
        for (key, value) in base.as_object().unwrap() {
            if has(key) && !(key == "spacing" && has("rate")) {
                flow[key] = value.clone();
            }
        }
        if command.name == "watch" {
            flow["file"] = json!("new.sqlite");
        }
        let before = words(&flow, &config);
        for flag in known.iter().filter(|option| option.is_flag) {
            if flow.get(&flag.name).is_none() {
                flow[&flag.name] = json!(false);
                seen += 1;
            }
        }
        assert_eq!(words(&flow, &config), before, "{flow}");
    }
    assert!(seen > 10, "{seen}");
}

/// The command line requires the units of times and frequencies; flows may give seconds and hertz as numbers.
#[test]
fn numbers_without_a_unit_stay_seconds_and_hertz_in_flows() {
    let room = evlbi_testkit::Room::new();
    let config = config(&room, "");
    let stream = "udp://127.0.0.1:0";
    let recv = json!({"id": "r", "command": "recv", "from": stream, "to": "null", "duration": 60,
        "idle": "2.5", "hold": 0, "fill": "1ms"});
    let correlate = json!({"id": "c", "command": "correlate", "files": [stream, stream], "live": true,
        "freq": [4.9e9, "8.4G"], "delay": ["0", "1.5e-6,2e-12"], "rate-window": 1,
        "flag": ["1:12.5..13", "Ef:1s..2"]});
    let probe = json!({"id": "p", "command": "probe udp", "target": "127.0.0.1:8620", "token": "0123",
        "spacing": "0..0.00005:0.0000005,1ms", "count": 10, "bins": "0.000001"});
    for (flow, expected) in [
        (
            recv,
            &["--duration=60s", "--idle=2.5s", "--hold=0", "--fill=1ms"][..],
        ),
        (
            correlate,
            &[
                "--freq=4900000000.0Hz",
                "--freq=8.4G",
                "--delay=0",
                "--delay=1.5e-6s,2e-12s",
                "--rate-window=1Hz",
                "--flag=1:12.5s..13s",
                "--flag=Ef:1s..2s",
            ],
        ),
        (
            probe,
            &[
                "--spacing=0..0.00005s:0.0000005s,1ms",
                "--count=10",
                "--bins=0.000001s",
            ],
        ),
    ] {
        let found = words(&flow, &config);
        for word in expected {
            assert!(found.contains(&(*word).to_owned()), "{word}: {found:?}");
        }
    }
}

/// A responder's tests listen on the ports that flows may, and nowhere else.
#[test]
fn a_responder_tests_on_the_ports_of_flows() {
    let respond =
        json!({"id": "r", "command": "respond", "bind": "127.0.0.1:8620", "token": "0123"});
    let rooms = [0, 1].map(|_| evlbi_testkit::Room::new());
    let held = words(&respond, &config(&rooms[0], "ports = \"8600-8700\""));
    assert!(held.contains(&"--ports=8600-8700".to_owned()), "{held:?}");
    let any = words(&respond, &config(&rooms[1], ""));
    assert!(
        !any.iter().any(|word| word.starts_with("--ports")),
        "{any:?}"
    );
}

/// A sender whose start time has passed sends now, for the requested duration.
#[test]
fn a_start_that_is_over_is_now() {
    let room = evlbi_testkit::Room::new();
    let config = config(&room, "");
    let now = || Clock::real().utc() as f64 * 1e-9;
    let before = now();
    for (start, is_over) in [
        ("2020-01-01T00:00:00Z", true),
        ("2099-01-01T00:00:00Z", false),
    ] {
        let send = json!({"id": "a", "command": "send", "source": "pattern:8032", "rate": "1M",
            "to": "udp://127.0.0.1:9", "start": start, "duration": "60s"});
        let flow = serde_json::from_value(send).unwrap();
        let allowed = allow(&flow, &config, &CommandLine, false).unwrap();
        let (from, until) = (allowed.load.from.unwrap(), allowed.load.until.unwrap());
        assert!(from >= before, "{start}: {from}");
        assert!((until - from - 60.0).abs() < 1e-3, "{start}: {until}");
        assert_eq!(from <= now(), is_over, "{start}: {from}");
    }
}

/// A live correlator of an agent prints its result alone: its output is kept, however long it runs.
#[test]
fn a_live_flow_prints_no_lines() {
    let room = evlbi_testkit::Room::new();
    let stream = "udp://127.0.0.1:0";
    let live = json!({"id": "c", "command": "correlate", "files": [stream, stream], "live": true});
    let found = words(&live, &config(&room, ""));
    assert!(found.contains(&"--no-lines".to_owned()), "{found:?}");
}

#[test]
fn the_examples_are_sessions() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let sessions = files.filter(|path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with("session-") && name.ends_with(".toml")
    });
    let read = sessions.map(|path| Session::read(&path, &CommandLine).unwrap());
    assert!(read.count() >= 2);
}

#[test]
fn errors_in_sessions_name_the_cause_and_the_place() {
    const HOST: &str =
        "name = \"n\"\n[[host]]\nname = \"ef\"\nagent = \"https://10.77.0.1:3650\"\n";
    for (more, says) in [
        ("colour = 1", "colour"),
        (
            "[[flow]]\nname = \"a\"\nhost = \"jb\"\ncommand = \"recv\"",
            "there is no host jb",
        ),
        (
            "[[flow]]\nname = \"a\"\nhost = \"ef\"\ncommand = \"listen\"",
            "unknown command",
        ),
        (
            "[[flow]]\nname = \"a\"\nhost = \"ef\"\ncommand = \"recv\"\nport = 1",
            "no option `port`",
        ),
        (
            "[[flow]]\nname = \"a\"\nhost = \"ef\"\ncommand = \"recv\"\nscans = [\"s\"]",
            "there is no scan s",
        ),
        ("[[scan]]\nname = \"s\"\nduration = \"soon\"", "soon"),
        (
            "[[scan]]\nname = \"s\"\nduration = 10",
            "expected a time such as \"15ms\"",
        ),
        (
            "[[scan]]\nname = \"s\"\nstart = 30\nduration = \"10s\"",
            "expected a time such as \"+30s\"",
        ),
        (
            "[[scan]]\nname = \"s\"\nstart = \"noon\"\nduration = \"1s\"",
            "noon",
        ),
        (
            "[[host]]\nname = \"ef\"\nagent = \"x\"",
            "duplicate [[host]] ef",
        ),
        ("fingerprint = \"12\"", "invalid fingerprint"),
    ] {
        let error = Session::parse(&format!("{HOST}{more}"), &CommandLine);
        let error = error.unwrap_err().to_string();
        assert!(error.contains(says), "{more}: {error}");
    }
}
