//! `evlbi probe tcp` between two namespaces: every byte, what the kernels say, what is refused and what is cut off, and what
//! holds a flow back.

use std::time::{Duration, Instant};

use super::{ask, assert_refused, end, exact_wire, probe_of, respond_far};
use crate::live::support::stood_still;
use crate::observers::was_held_up;
use crate::result::number;
use crate::stalls::Stalls;
use crate::stolen::Stolen;
use evlbi_testkit::netns::{End, Pair, filter, pair, tc};
use evlbi_testkit::{disk, name, need};
use serde_json::Value;

/// The result of a probe that ends well.
fn result(output: &std::process::Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let result: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(result["schema"], "evlbi.probe.tcp/1");
    result
}

/// One probe with a responder of its own.
fn once(pair: &Pair, more: &[&str]) -> Value {
    let responder = respond_far(pair, &[]);
    let output = ask(pair, &responder, "tcp", &[more, &["--json"]].concat());
    end(responder);
    result(&output)
}

/// A token bucket in the way out of a host, with room for 200 ms.
fn slow(end: &End, rate: &str) -> bool {
    let more = ["burst", "32kb", "latency", "200ms"];
    let arguments = [
        "qdisc", "add", "dev", end.device, "root", "tbf", "rate", rate,
    ];
    tc(end, &[&arguments[..], &more].concat())
}

fn findings(result: &Value) -> String {
    result["findings"].to_string()
}

#[test]
fn connections_share_what_there_is_both_ways() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let [samples, page] = ["s.csv", "p.html"].map(|name| folder.path().join(name));
    let more = [
        "--streams",
        "2",
        "--both",
        "--algorithm",
        "reno,cubic",
        "--duration",
        "2s",
        "--interval",
        "500ms",
        "--samples",
        samples.to_str().unwrap(),
        "--plot",
        page.to_str().unwrap(),
    ];
    let result = once(&pair, &more);
    let flows = result["flows"].as_array().unwrap();
    let laws: Vec<&str> = flows
        .iter()
        .map(|flow| flow["algorithm"].as_str().unwrap())
        .collect();
    assert_eq!(laws, ["reno", "cubic", "reno", "cubic"]);
    let is_held_up = was_held_up(&result);
    for flow in flows {
        let least = if is_held_up { 0 } else { 1_000_000 };
        assert!(number(flow, "bytes") > least, "{}", flow["errors"]);
        assert_eq!(flow["errors"].as_array().unwrap().len(), 0);
        let intervals = flow["intervals"].as_array().unwrap().len();
        assert!(intervals >= 4 || is_held_up && intervals > 0, "{intervals}");
        assert_eq!(number(flow, "path_mtu"), 9000);
    }
    for total in result["totals"].as_array().unwrap() {
        let of = flows
            .iter()
            .filter(|flow| flow["direction"] == total["direction"]);
        let rates: Vec<f64> = of.map(|flow| flow["rate"].as_f64().unwrap()).collect();
        let sum: f64 = rates.iter().sum();
        let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
        let fairness = sum * sum / (2.0 * squares);
        assert!((total["fairness"].as_f64().unwrap() - fairness).abs() < 1e-9);
    }
    let text = std::fs::read_to_string(samples).unwrap();
    let heads = text.lines().next().unwrap();
    assert!(heads.starts_with("connection,end,seconds,backlog,") && heads.contains(",window"));
    for who in ["0,sender,", "3,receiver,"] {
        let of = text.lines().filter(|line| line.starts_with(who)).count();
        assert!(of > 100 || is_held_up && of > 0, "{of} of {who}");
    }
    assert!(
        std::fs::read_to_string(page)
            .unwrap()
            .contains("congestion window")
    );
}

/// Messages come each once, in order and on time, from a clock that is wrong.
#[test]
fn messages_at_a_constant_rate_are_timely() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let responder = respond_far(&pair, &["--shift-clock=-33.5,30e-6"]);
    let stolen = Stolen::watch();
    let folder = tempfile::tempdir().unwrap();
    let records = folder.path().join("r.csv");
    let more = [
        "--rate",
        "64M",
        "--message",
        "1000",
        "--duration",
        "3s",
        "--records",
        records.to_str().unwrap(),
        "--limit",
        "5000",
        "--both",
        "--json",
    ];
    let result = result(&ask(&pair, &responder, "tcp", &more));
    end(responder);
    for flow in result["flows"].as_array().unwrap() {
        let messages = &flow["messages"];
        let of = |name: &str| number(messages, name);
        // 8000 a second; the last is due just before the end.
        assert_eq!(
            [of("due"), of("sent"), of("received"), of("shed")],
            [24_000, 24_000, 24_000, 0]
        );
        assert_eq!(number(flow, "bytes"), 24_000_000);
        // The clock is found again to less than it errs by itself in this time: 90 us.
        let delay = messages["delay"]["median"].as_f64().unwrap();
        assert!(
            delay.abs() < 0.5e6 || was_held_up(&result) || stolen.is_over(0.01),
            "{delay}"
        );
    }
    let text = std::fs::read_to_string(records).unwrap();
    let kept: Vec<Vec<i64>> = text
        .lines()
        .skip(1)
        .map(|line| {
            line.split(',')
                .map(|field| field.parse().unwrap())
                .collect()
        })
        .collect();
    // Each fifth of both ways.
    assert_eq!(kept.len(), 2 * 4800);
    assert!(kept.iter().all(|fields| fields[1] % 5 == 0));
}

/// What is said of a connection is what ss says of it.
#[test]
fn samples_are_what_ss_says() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    if !slow(&pair.near, "50mbit") {
        return;
    }
    if !need(&["ss"]) {
        return;
    }
    let responder = respond_far(&pair, &[]);
    let folder = tempfile::tempdir().unwrap();
    let samples = folder.path().join("s.csv");
    let more = [
        "--duration",
        "3s",
        "--sample",
        "1ms",
        "--algorithm",
        "reno",
        "--samples",
        samples.to_str().unwrap(),
        "--json",
    ];
    let (output, said) = std::thread::scope(|scope| {
        let probing = scope.spawn(|| ask(&pair, &responder, "tcp", &more));
        let mut said = Vec::new();
        let begun = Instant::now();
        while !probing.is_finished() && begun.elapsed() < Duration::from_secs(60) {
            let listed = pair.near.namespace.command("ss", &["-tinOH"]).unwrap();
            said.extend(listed.lines().map(str::to_owned));
            std::thread::sleep(Duration::from_millis(100));
        }
        (probing.join().unwrap(), said)
    });
    end(responder);
    let result = result(&output);
    let flow = result["flows"][0].clone();
    let port = flow["ports"][0].to_string();
    let text = std::fs::read_to_string(samples).unwrap();
    let mut lines = text.lines();
    let heads: Vec<&str> = lines.next().unwrap().split(',').collect();
    let place = |name: &str| heads.iter().position(|head| *head == name).unwrap();
    let columns = [
        "acknowledged",
        "window",
        "segment",
        "path_mtu",
        "round_trip",
        "reordering",
    ]
    .map(place);
    let sampled: Vec<Vec<u64>> = lines
        .filter(|line| line.starts_with("0,sender,"))
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            columns
                .iter()
                .map(|place| fields[*place].parse().unwrap())
                .collect()
        })
        .collect();
    let of_ss = |line: &str, name: &str| -> Option<u64> {
        let found = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix(name))?;
        found.parse().ok()
    };
    let mut compared = 0;
    for line in said
        .iter()
        .filter(|line| line.contains(&format!(":{port} ")))
    {
        let Some(acknowledged) = of_ss(line, "bytes_acked:") else {
            continue;
        };
        let same = sampled.iter().filter(|sample| sample[0] == acknowledged);
        let same: Vec<&Vec<u64>> = same.collect();
        if same.is_empty() {
            continue;
        }
        // What changes with acknowledgements alone is the same at the same one; a timeout does without.
        if line.contains(" backoff:") || line.contains(" lost:") {
            continue;
        }
        let round_trip = |line: &str| {
            let found = line
                .split_whitespace()
                .find_map(|word| word.strip_prefix("rtt:"))?;
            let milliseconds: f64 = found.split_once('/')?.0.parse().ok()?;
            Some(milliseconds * 1e3)
        };
        let theirs = [
            of_ss(line, "cwnd:"),
            of_ss(line, "mss:"),
            of_ss(line, "pmtu:"),
        ];
        // It prints six digits.
        let is_time = |ours: u64, theirs: f64| (ours as f64 - theirs).abs() <= 0.5 + 5e-6 * theirs;
        let is_same = |sample: &&&Vec<u64>| {
            theirs == [1, 2, 3].map(|place| Some(sample[place]))
                && round_trip(line).is_some_and(|time| is_time(sample[4], time))
        };
        assert!(
            same.iter().any(|sample| is_same(&sample)),
            "{same:?} {line}"
        );
        compared += 1;
    }
    let least = if was_held_up(&result) { 1 } else { 5 };
    assert!(compared >= least, "{compared} of {}", said.len());
}

/// Who holds a flow back is found: the application, losses, the sending host's own queue.
#[test]
fn what_holds_a_flow_back_is_named() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let part = |result: &Value, name: &str| {
        let part = result["flows"][0]["course"]["held_back"][name]
            .as_f64()
            .unwrap();
        println!("{name} {part}");
        part
    };
    // The application gives less than goes.
    let stalls = Stalls::watch();
    let app = once(&pair, &["--rate", "5M", "--duration", "2s"]);
    let held = part(&app, "application");
    let has_stalled = stood_still(stalls, Duration::from_millis(100)) || was_held_up(&app);
    assert!(has_stalled || held > 0.9, "{}", findings(&app));
    let messages = &app["flows"][0]["messages"];
    let of = |name: &str| number(messages, name);
    assert_eq!(
        [of("sent"), of("received"), of("shed")],
        [of("due"), of("due"), 0]
    );
    // All came; a host that was held up took longer for it.
    let rate = app["flows"][0]["rate"].as_f64().unwrap();
    assert_eq!(findings(&app).contains("as asked"), rate >= 0.99 * 5e6);
    // A network drops what is faster than it likes: losses, and windows after them.
    if !filter(
        &pair.far,
        &[
            "tcp flags & syn == 0 tcp dport != 22 limit rate over 4 mbytes/second burst 128 kbytes drop",
        ],
    ) {
        return;
    }
    let stalls = Stalls::watch();
    let lossy = once(
        &pair,
        &["--algorithm", "reno", "--buffer", "4M", "--duration", "4s"],
    );
    let held = part(&lossy, "window") + part(&lossy, "repair");
    let has_stalled = stood_still(stalls, Duration::from_millis(200)) || was_held_up(&lossy);
    assert!(has_stalled || held > 0.8, "{}", findings(&lossy));
    assert!(number(&lossy["flows"][0], "sent_again") > 0);
    // A queue of the sender's own host lets nothing be lost.
    if !slow(&pair.near, "20mbit") {
        return;
    }
    let stalls = Stalls::watch();
    let queue = once(&pair, &["--algorithm", "reno", "--duration", "2s"]);
    let held = part(&queue, "host");
    let has_stalled = stood_still(stalls, Duration::from_millis(100)) || was_held_up(&queue);
    assert!(has_stalled || held > 0.8, "{}", findings(&queue));
}

/// What cannot be is refused, and says why.
#[test]
fn what_cannot_be_is_refused() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let responder = respond_far(&pair, &["--max-rate", "100M"]);
    for (more, reason) in [
        (
            &["--rate", "10M", "--algorithm", "nosuch"][..],
            "no congestion control `nosuch`, but",
        ),
        (
            &["--rate", "10M", "--algorithm", "No such"],
            "no name of a congestion control",
        ),
        (&["--rate", "10M", "--message", "8"], "a message of 8 bytes"),
        (&["--rate", "10M", "--sample", "1us"], "0.1 ms at most"),
        (&["--buffer", "bdp"], "needs a rate"),
        (&["--rate", "200M"], "more than this responder allows"),
        (&[], "more than this responder allows"),
    ] {
        let output = ask(&pair, &responder, "tcp", more);
        assert_refused(&output, reason);
    }
    // And the next is served.
    let output = ask(
        &pair,
        &responder,
        "tcp",
        &["--rate", "10M", "--duration", "500ms", "--json"],
    );
    result(&output);
    end(responder);
}

/// Connections that a firewall holds back are missed.
#[test]
fn connections_that_do_not_come_are_missed() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let responder = respond_far(&pair, &[]);
    let port = responder.address().port();
    let rule = format!("tcp dport != {port} tcp flags syn / syn,ack drop");
    if !filter(&pair.far, &[&rule]) {
        return;
    }
    let output = ask(&pair, &responder, "tcp", &["--duration", "1s"]);
    assert_refused(&output, "cannot connect");
    end(responder);
}

/// The other end vanishes in mid-test: the probe says so, and what it measured is kept.
#[test]
fn what_was_measured_is_kept_when_the_peer_vanishes() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let responder = respond_far(&pair, &[]);
    let mut command = probe_of(
        "tcp",
        responder.address(),
        &["--rate", "50M", "--duration", "60s", "--json"],
    );
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let probing = pair
        .near
        .namespace
        .run(|| command.spawn())
        .unwrap()
        .unwrap();
    let received = || {
        let counters = pair.far.namespace.run(evlbi_net::host::Counters::read);
        counters
            .unwrap()
            .unwrap()
            .interfaces
            .values()
            .map(|one| one.rx_packets)
            .max()
    };
    let before = received();
    let begun = Instant::now();
    while received() < before.map(|count| count + 2000) && begun.elapsed() < Duration::from_secs(60)
    {
        std::thread::sleep(Duration::from_millis(20));
    }
    responder.signal("KILL");
    let output = probing.wait_with_output().unwrap();
    assert_refused(&output, "not all was measured");
    let result: Value = serde_json::from_slice(&output.stdout).expect("what was measured");
    assert!(number(&result["flows"][0], "bytes") > 0);
    assert!(!result["stopped"].is_null());
}

/// A file goes there, and comes back, byte by byte; what is there already stays, and so does what is nobody's business.
#[test]
fn files_go_there_and_come_back() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let [near, far] = [0; 2].map(|_| tempfile::tempdir().unwrap());
    let bytes: Vec<u8> = (0..30_000_001u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let [scan, back] = ["scan.vdif", "back.vdif"].map(|name| near.path().join(name));
    std::fs::write(&scan, &bytes).unwrap();
    let responder = respond_far(&pair, &["--files", far.path().to_str().unwrap()]);
    let probe = |more: &[&str]| ask(&pair, &responder, "tcp", &[more, &["--json"]].concat());
    let there = [
        "--from",
        scan.to_str().unwrap(),
        "--into",
        "copy.vdif",
        "--duration",
        "60s",
    ];
    let result_of = result(&probe(&there));
    let flow = &result_of["flows"][0];
    assert_eq!(number(flow, "bytes"), bytes.len() as u64);
    assert_eq!(flow["stages"].as_array().unwrap().len(), 2);
    assert!(std::fs::read(far.path().join("copy.vdif")).unwrap() == bytes);
    // The same name again is refused.
    let output = probe(&there);
    assert_refused(&output, "exists");
    let more = [
        "--reverse",
        "--from",
        "copy.vdif",
        "--into",
        back.to_str().unwrap(),
        "--duration",
        "60s",
    ];
    result(&probe(&more));
    assert!(std::fs::read(&back).unwrap() == bytes);
    for name in ["../scan.vdif", "/etc/passwd", ".."] {
        let output = probe(&["--reverse", "--from", name]);
        assert_refused(&output, "no name of a file");
    }
    end(responder);
    let responder = respond_far(&pair, &[]);
    let output = ask(&pair, &responder, "tcp", &["--into", "x"]);
    assert_refused(&output, "--files");
    end(responder);
}

/// A disk that is full ends the test, says so, and what went until then is told.
#[test]
fn a_full_disk_is_told() {
    disk::small(8, name!(), |folder| {
        let Some(pair) = pair(&exact_wire(), name!()) else {
            return;
        };
        let folder = folder.to_str().unwrap();
        let responder = respond_far(&pair, &["--files", folder]);
        let more = ["--into", "scan.vdif", "--duration", "10s", "--json"];
        let output = ask(&pair, &responder, "tcp", &more);
        end(responder);
        let said = String::from_utf8_lossy(&output.stdout);
        let result: Value = serde_json::from_str(&said).expect("what was measured");
        let flow = &result["flows"][0];
        assert!(
            (1_000_000..=9_000_000).contains(&number(flow, "bytes")),
            "{flow}"
        );
        let errors = flow["errors"].to_string();
        assert!(errors.contains("No space left"), "{errors}");
    });
}

/// A client that is killed in mid-test leaves nothing behind at the responder: no thread, no connection.
#[test]
fn a_killed_client_leaves_nothing_behind() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let responder = respond_far(&pair, &[]);
    let threads = || {
        let folder = format!("/proc/{}/task", responder.child.0.id());
        std::fs::read_dir(folder).unwrap().count()
    };
    let before = threads();
    let more = [
        "--streams",
        "8",
        "--both",
        "--duration",
        "60s",
        "--sample",
        "1s",
    ];
    let mut command = probe_of("tcp", responder.address(), &more);
    command
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    let mut probing = pair
        .near
        .namespace
        .run(|| command.spawn())
        .unwrap()
        .unwrap();
    let begun = Instant::now();
    while threads() < before + 17 && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(threads() >= before + 17);
    probing.kill().unwrap();
    probing.wait().unwrap();
    let begun = Instant::now();
    while threads() > before && begun.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(threads(), before);
    let left = pair
        .far
        .namespace
        .command("ss", &["-tnH", "state", "established"]);
    assert_eq!(left.unwrap(), "");
    // And the next is served.
    let output = ask(&pair, &responder, "tcp", &["--duration", "500ms", "--json"]);
    result(&output);
    end(responder);
}
