//! Probes over emulated paths: results match the plan, with the cells' own counts as the reference.

use std::fs;
use std::process::Stdio;

use evlbi_testkit::clock::Shifted;
use evlbi_testkit::result::{assert_schema, read};
use evlbi_testkit::{Running, until};
use serde_json::Value;

use crate::path::cells::{self, tap};
use crate::path::{FORWARD, HOSTS, Room, printed};
use crate::result::number;

/// The default tests end with a verdict: the exit status answers for the rate, the last line is the next command. The port and the
/// brackets of an address may be omitted.
#[test]
fn the_default_tests_end_with_a_verdict() {
    let Some(room) = Room::new(&format!("{HOSTS}rtt = \"5ms\"\nrate = \"20M\"\n")) else {
        return;
    };
    let up = room.up();
    let mut responder = up.evlbi_at("manchester");
    responder.args(["respond", "--bind", "[::]:8620"]);
    let _responder = up.listening(&mut responder, "responder");
    let probe = |to: &str, more: &[&str]| {
        let mut probe = up.evlbi_at("jive");
        probe.args(["probe", to]).args(more).output().unwrap()
    };
    let output = probe("manchester", &["--rate", "2M", "--json"]);
    let result = read(&output.stdout);
    assert_schema(&result, "evlbi.probe/1");
    assert_eq!(result["target"], "manchester");
    for (part, schema) in [
        ("latency", "evlbi.probe.latency/1"),
        ("capacity", "evlbi.probe.capacity/1"),
        ("tcp", "evlbi.probe.tcp/1"),
    ] {
        assert_schema(&result[part], schema);
    }
    let verdict = &result["verdict"];
    let fits = |name: &str| verdict[name] == true;
    let is_fit = fits("udp_fits") || fits("tcp_fits");
    assert_eq!(output.status.code(), Some(i32::from(!is_fit)), "{verdict}");
    // The link does not carry it, whatever this host sends.
    let csv = room.path("probe.csv");
    let output = probe("fd77::2", &["--rate", "40M", "--reverse", "--csv", &csv]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("neither UDP nor TCP carried 40.000 Mbit/s"),
        "{said}"
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let [.., verdict, next] = lines[..] else {
        panic!("{text}");
    };
    assert!(
        verdict.starts_with("verdict   not fit for 40.000 Mbit/s"),
        "{text}"
    );
    assert!(next.starts_with("next      "), "{text}");
    let rows: Vec<Vec<String>> = fs::read_to_string(csv)
        .unwrap()
        .lines()
        .map(|line| line.split(',').map(str::to_owned).collect())
        .collect();
    let column = |name: &str| &rows[1][rows[0].iter().position(|own| own == name).unwrap()];
    assert_eq!(column("target"), "fd77::2");
    assert_eq!(column("rate_asked_bps"), "40000000");
    assert_eq!(column("fits"), "false");
}

/// One-way delays that differ, with a clock that has an offset and a skew: neither is found shorter than the plan allows, beyond
/// the reported error, nor is their sum, in which the clock cancels.
#[test]
fn delays_are_found_again() {
    let cells = "rtt = \"20ms\"\nbackward = [{ delay = \"10ms\" }]\n";
    let Some(room) = Room::new(&format!("{HOSTS}{cells}")) else {
        return;
    };
    let up = room.up();
    let library = evlbi_testkit::Room::new();
    let Some(clock) = Shifted::new(&library, 1234.5, 20e-6) else {
        return;
    };
    let _responder = up.respond_by(&clock);
    let options = ["--rate", "10M", "--count", "100", "--both"];
    let result = up.probe("udp", &[&options[..], &["--loss-timeout", "5s"]].concat());
    let points = result["points"].as_array().unwrap();
    let of = |point: &Value, name: &str| point["delay"][name].as_f64().unwrap() * 1e-6;
    assert_eq!(points.len(), 2);
    for (point, delay) in points.iter().zip([10.0, 20.0]) {
        assert_sums(point);
        assert_eq!((number(point, "sent"), number(point, "lost")), (100, 0));
        let (found, error) = (of(point, "min"), of(point, "error"));
        assert!(found > delay - error, "{found} -+ {error}, of {delay}");
    }
    let sum = |name: &str| points.iter().map(|point| of(point, name)).sum::<f64>();
    let (found, slack) = (sum("min"), sum("error_if_symmetric"));
    assert!(found > 30.0 - slack, "{found} -+ {slack}");
    // The offset is found to half a round trip, however long that was. The clock gains 2.4 ms in the time of the watchdog.
    const DRIFT: f64 = 2.4;
    let offset = result["clock"]["offset"].as_f64().unwrap() * 1e-6;
    let error = points
        .iter()
        .map(|point| of(point, "error"))
        .fold(0.0, f64::max);
    assert!(
        (offset - 1_234_500.0).abs() < error + DRIFT,
        "{offset} -+ {error}"
    );
}

#[track_caller]
fn assert_sums(counts: &Value) {
    let of = |name: &str| number(counts, name);
    assert_eq!(of("sent"), of("unique") + of("lost"));
    assert_eq!(
        of("lost"),
        of("network_lost") + of("host_lost") + of("unattributed")
    );
}

/// Results of a campaign are in a file that survives a kill of its writer, and that another run continues.
#[test]
fn recurring_loss_is_found_by_a_campaign() {
    let (first, last) = (tap("in"), tap("out"));
    let plan = format!("{HOSTS}rtt = \"2ms\"\nforward = [{first}, {{ every = 10 }}, {last}]\n");
    let Some(room) = Room::new(&plan) else {
        return;
    };
    let up = room.up();
    up.silence_kernels();
    let _responder = up.respond();
    let file = room.path("w.sqlite");
    let watch = [
        "watch",
        &file,
        "manchester:8620",
        "--rate",
        "3M",
        "--window",
        "100ms",
        "--loss-timeout",
        "200ms",
    ];
    let report = |more: &[&str]| -> Value {
        let report = printed(room.evlbi().args(["report", &file, "--json"]).args(more));
        read(report)
    };
    let said = fs::File::create(room.path("first.txt")).unwrap();
    let mut first = Running(
        up.at("jive")
            .args([
                "sh",
                "-c",
                "echo $$ > watch.pid; exec \"$0\" \"$@\"",
                &room.program,
            ])
            .args(watch)
            .args(["--for", "1h"])
            .stdout(Stdio::null())
            .stderr(said)
            .spawn()
            .unwrap(),
    );
    let windows = |report: &Value| report["windows"].as_array().unwrap().clone();
    let settled = || {
        let report = room.evlbi().args(["report", &file, "--json"]).output();
        let report = serde_json::from_slice(&report.unwrap().stdout);
        report.map_or(Vec::new(), |report| windows(&report))
    };
    until("windows settle", || settled().len() >= 15);
    let reported = settled();
    up.sh("jive", "kill -9 $(cat watch.pid)");
    first.wait();
    // Each window that a report showed stays the same.
    let killed = report(&[]);
    assert_eq!(reported[..], windows(&killed)[..reported.len()]);
    let begun = up.settled(|_| true).len();
    let output = up
        .evlbi_at("jive")
        .args(watch)
        .args(["--for", "1s"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let end = report(&["--plot", &room.path("w.svg")]);
    let (before, all) = (windows(&killed), windows(&end));
    assert_eq!(before[..], all[..before.len()]);
    all.iter().for_each(assert_sums);
    // The second run ended normally: each datagram of it is in some window, and each that the path dropped is among the lost.
    let log = up.settled(|_| true);
    let second = &all[before.len()..];
    let sum = |name: &str| {
        second
            .iter()
            .map(|window| number(window, name))
            .sum::<u64>()
    };
    let count = sum("sent");
    let [came, left] = ["in", "out"].map(|tap| cells::numbers(&log[begun..], tap, 0..count).len());
    assert_eq!(came as u64, count);
    assert!(left < came && sum("network_lost") >= (came - left) as u64);
    let runs = end["runs"].as_array().unwrap();
    assert!(runs.len() == 2 && runs[0]["ended"].is_null() && !runs[1]["ended"].is_null());
    for report in [&killed, &end] {
        let finding = report["directions"][0]["finding"].as_str().unwrap();
        assert!(finding.contains("in the network"), "{finding}");
    }
    assert!(room.text("w.svg").contains("jitter"));
    // Another plan cannot use the same file, and another file is not accepted as one.
    let other = [&watch[..4], &["4M"], &watch[5..]].concat();
    let refused = up.evlbi_at("jive").args(other).output().unwrap();
    let none = room.write("no.sqlite", "hello");
    let no = room.evlbi().args(["report", &none]).output().unwrap();
    for (output, says) in [(refused, "another plan"), (no, "no.sqlite")] {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(says), "{said}");
    }
    let state = up.end();
    let every = crate::path::cell(&state, FORWARD, "every");
    assert_eq!(number(every, "dropped"), number(every, "packets") / 10);
}
