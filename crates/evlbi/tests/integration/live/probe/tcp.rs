//! `evlbi probe tcp` between two namespaces: every byte, what the kernels say, what is refused and what is cut off, and what
//! holds a flow back.

use std::collections::BTreeMap;

use super::asked::counted;
use super::{ask, assert_refused, begin, end, exact_wire, respond_far, responder, threads};
use crate::live::support::Recv;
use crate::result::number;
use evlbi_testkit::clock::Shifted;
use evlbi_testkit::netns::{End, Pair, filter, pair, pair_with};
use evlbi_testkit::{Room, disk, name, until};
use nix::sys::signal::Signal;
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

/// What `ss` says of a host's connections, a line each.
fn connections(end: &End) -> Vec<String> {
    let listed = end.namespace.command("ss", &["-tinOH"]).unwrap();
    listed.lines().map(str::to_owned).collect()
}

/// A number of a line of `ss`.
fn of_ss(line: &str, name: &str) -> Option<u64> {
    let mut words = line.split_whitespace();
    words.find_map(|word| word.strip_prefix(name))?.parse().ok()
}

#[test]
fn connections_share_what_there_is_both_ways() {
    let Some(pair) = pair_with(&["ss"], &exact_wire(), name!()) else {
        return;
    };
    let room = Room::new();
    let [samples, page] = ["s.csv", "p.html"].map(|name| room.path(name));
    let more = [
        "--streams",
        "2",
        "--both",
        "--algorithm",
        "reno,cubic",
        "--duration",
        "1h",
        "--sample",
        "100ms",
        "--samples",
        &samples,
        "--plot",
        &page,
        "--json",
    ];
    let responder = respond_far(&pair, &[]);
    let probing = begin(&pair, &responder, "tcp", &more);
    until("all four connections have carried something", || {
        [&pair.near, &pair.far].into_iter().all(|end| {
            let lines = connections(end);
            let carried = lines
                .iter()
                .filter_map(|line| of_ss(line, "bytes_received:"));
            carried.filter(|bytes| *bytes > 1_000_000).count() == 2
        })
    });
    let result = probing.interrupt();
    end(responder);
    let flows = result["flows"].as_array().unwrap();
    let laws: Vec<&str> = flows
        .iter()
        .map(|flow| flow["algorithm"].as_str().unwrap())
        .collect();
    assert_eq!(laws, ["reno", "cubic", "reno", "cubic"]);
    for flow in flows {
        assert!(number(flow, "bytes") > 1_000_000, "{}", flow["errors"]);
        assert_eq!(flow["errors"].as_array().unwrap().len(), 0);
        assert!(!flow["intervals"].as_array().unwrap().is_empty());
        assert_eq!(number(flow, "path_mtu"), 9000);
    }
    let totals = result["totals"].as_array().unwrap();
    assert_eq!(totals.len(), 2);
    for total in totals {
        let of = flows
            .iter()
            .filter(|flow| flow["direction"] == total["direction"]);
        let all = |name: &str| -> Vec<f64> {
            let values = of.clone().map(|flow| flow[name].as_f64().unwrap());
            values.collect()
        };
        let rates = all("rate");
        let sum: f64 = rates.iter().sum();
        let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
        let fairness = sum * sum / (2.0 * squares);
        assert!((total["fairness"].as_f64().unwrap() - fairness).abs() < 1e-9);
        // All bytes, in the time until the last was there.
        let seconds = all("seconds").into_iter().fold(0.0, f64::max);
        let rate = all("bytes").iter().sum::<f64>() * 8.0 / seconds;
        assert!((total["rate"].as_f64().unwrap() / rate - 1.0).abs() < 1e-9);
    }
    // What the observers have read is what is written.
    let text = room.text("s.csv");
    let heads = text.lines().next().unwrap();
    assert!(heads.starts_with("connection,end,seconds,backlog,") && heads.contains(",window"));
    let observers = result["observers"].as_array().unwrap().iter();
    let readings: u64 = observers.map(|one| number(one, "readings")).sum();
    assert_eq!(text.lines().count() as u64 - 1, readings);
    for number in 0..4 {
        for who in ["sender", "receiver"] {
            let who = format!("{number},{who},");
            assert!(text.lines().any(|line| line.starts_with(&who)), "{who}");
        }
    }
    assert!(room.text("p.html").contains("congestion window"));
}

/// Messages come each once and in order, and the clock that is wrong is found to be.
#[test]
fn messages_at_a_constant_rate_all_come() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    let room = Room::new();
    let Some(clock) = Shifted::new(&room, -33.5, 30e-6) else {
        return;
    };
    let bind = format!("{}:0", pair.far.v4);
    let respond = || Recv::listening(clock.apply(&mut responder(&bind, &[])), 1);
    let responder = pair.far.namespace.run(respond).unwrap();
    let records = room.path("r.csv");
    let more = [
        "--rate",
        "64M",
        "--message",
        "1000",
        "--duration",
        "500ms",
        "--records",
        &records,
        "--limit",
        "1500",
        "--both",
        "--json",
    ];
    let result = result(&ask(&pair, &responder, "tcp", &more));
    end(responder);
    let flows = result["flows"].as_array().unwrap();
    assert_eq!(flows.len(), 2);
    for flow in flows {
        let messages = &flow["messages"];
        let of = |name: &str| number(messages, name);
        // 8000 a second; the last is due just before the end.
        assert_eq!(
            [of("due"), of("sent"), of("received"), of("shed")],
            [4000, 4000, 4000, 0]
        );
        assert_eq!(number(flow, "bytes"), 4_000_000);
    }
    // It gains 4 ms in the two minutes that a test may take at most.
    let clock = &result["clock"];
    let of = |name: &str| clock[name].as_f64().unwrap();
    let off = of("offset") + 33.5e9;
    assert!(
        off > -of("error") && off < of("error") + 4e6,
        "{off} {clock}"
    );
    let text = room.text("r.csv");
    let kept: Vec<Vec<i64>> = text
        .lines()
        .skip(1)
        .map(|line| {
            line.split(',')
                .map(|field| field.parse().unwrap())
                .collect()
        })
        .collect();
    // Each third of both ways, in order.
    let numbers = kept.iter().map(|fields| (fields[0], fields[1]));
    let expected = (0..2).flat_map(|flow| (0..4000).step_by(3).map(move |number| (flow, number)));
    assert!(numbers.eq(expected), "{}", kept.len());
}

/// Samples of a connection are what ss shows of it. Between messages a connection rests, so that both see it as it is for most
/// of the time.
#[test]
fn samples_are_what_ss_says() {
    let Some(pair) = pair_with(&["ss"], &exact_wire(), name!()) else {
        return;
    };
    let responder = respond_far(&pair, &[]);
    let room = Room::new();
    let samples = room.path("s.csv");
    // Ten messages a second, by which the window grows at first.
    let more = [
        "--rate",
        "16M",
        "--message",
        "200000",
        "--duration",
        "3min",
        "--sample",
        "1ms",
        "--algorithm",
        "reno",
        "--samples",
        &samples,
        "--json",
    ];
    let probing = begin(&pair, &responder, "tcp", &more);
    // Each with other acknowledgements.
    let mut said = BTreeMap::new();
    until("thirty states of the connection were seen", || {
        for line in connections(&pair.near) {
            let acknowledged = of_ss(&line, "bytes_acked:").unwrap_or(0);
            if acknowledged > 200_000 {
                said.insert(acknowledged, line);
            }
        }
        said.len() >= 30
    });
    let result = probing.interrupt();
    end(responder);
    let flow = result["flows"][0].clone();
    let port = flow["ports"][0].to_string();
    let text = room.text("s.csv");
    let mut lines = text.lines();
    let heads: Vec<&str> = lines.next().unwrap().split(',').collect();
    let place = |name: &str| heads.iter().position(|head| *head == name).unwrap();
    let columns = [
        "acknowledged",
        "window",
        "segment",
        "path_mtu",
        "round_trip",
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
    let mut compared = 0;
    for (acknowledged, line) in said {
        if !line.contains(&format!(":{port} ")) {
            continue;
        }
        let same = sampled.iter().filter(|sample| sample[0] == acknowledged);
        let same: Vec<&Vec<u64>> = same.collect();
        // What changes with acknowledgements alone is the same at the same one; a timeout does without.
        if same.is_empty() || line.contains(" backoff:") || line.contains(" lost:") {
            continue;
        }
        let round_trip = |line: &str| {
            let found = line
                .split_whitespace()
                .find_map(|word| word.strip_prefix("rtt:"))?;
            let milliseconds: f64 = found.split_once('/')?.0.parse().ok()?;
            Some(milliseconds * 1e3)
        };
        let theirs = ["cwnd:", "mss:", "pmtu:"].map(|name| of_ss(&line, name));
        // It prints six digits.
        let is_time = |ours: u64, theirs: f64| (ours as f64 - theirs).abs() <= 0.5 + 5e-6 * theirs;
        let is_same = |sample: &&&Vec<u64>| {
            theirs == [1, 2, 3].map(|place| Some(sample[place]))
                && round_trip(&line).is_some_and(|time| is_time(sample[4], time))
        };
        assert!(
            same.iter().any(|sample| is_same(&sample)),
            "{same:?} {line}"
        );
        compared += 1;
    }
    assert!(compared >= 5, "{compared}");
}

/// What an application gives is what comes, as slow as that is; and what the network drops is sent again. What holds a flow back
/// has its tests in `probe/tcp/diagnosis.rs`.
#[test]
fn what_is_asked_for_comes_although_some_is_dropped() {
    let Some(pair) = pair_with(&["nft"], &exact_wire(), name!()) else {
        return;
    };
    // Of segments with data each fiftieth, from the first on; those of the control connection are shorter.
    let rule = "ip length > 1400 tcp flags & syn == 0 numgen inc mod 50 0 counter drop comment \"dropped\"";
    // A message fills a segment.
    let asked = [
        "--rate",
        "23168k",
        "--message",
        "1448",
        "--duration",
        "500ms",
    ];
    let as_it_is = once(&pair, &asked);
    filter(&pair.far, &[rule]);
    let lossy = once(&pair, &[&asked[..], &["--mss", "1448"]].concat());
    for result in [&as_it_is, &lossy] {
        let flow = &result["flows"][0];
        let of = |name: &str| number(&flow["messages"], name);
        assert_eq!(
            [of("due"), of("sent"), of("received"), of("shed")],
            [1000, 1000, 1000, 0]
        );
        assert_eq!(number(flow, "bytes"), 1_448_000);
        // A host that was held up took longer for it, and says so.
        let rate = flow["rate"].as_f64().unwrap();
        let said = result["findings"].to_string();
        assert_eq!(said.contains("as asked"), rate >= 0.99 * 23.168e6, "{said}");
        let held = flow["course"]["held_back"].as_object().unwrap().values();
        let parts: Vec<f64> = held.map(|part| part.as_f64().unwrap()).collect();
        let sum: f64 = parts.iter().sum();
        assert!(
            sum <= 1.0 + 1e-9 && parts.iter().all(|part| *part >= 0.0),
            "{parts:?}"
        );
    }
    let dropped = counted(&pair.far, "dropped");
    let again = number(&lossy["flows"][0], "sent_again");
    assert!(dropped > 0 && again >= dropped, "{again} for {dropped}");
    let said = lossy["findings"].to_string();
    assert!(
        said.contains(&format!("{again} of ")) && said.contains("sent again"),
        "{said}"
    );
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
    let Some(pair) = pair_with(&["nft"], &exact_wire(), name!()) else {
        return;
    };
    let responder = respond_far(&pair, &[]);
    let port = responder.address().port();
    let rule = format!("tcp dport != {port} tcp flags syn / syn,ack drop");
    filter(&pair.far, &[&rule]);
    let output = ask(&pair, &responder, "tcp", &["--duration", "10min"]);
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
    let more = ["--rate", "50M", "--duration", "10min", "--json"];
    let probing = begin(&pair, &responder, "tcp", &more);
    let received = || {
        let counters = pair.far.namespace.run(evlbi_net::host::Counters::read);
        let interfaces = counters.unwrap().unwrap().interfaces;
        interfaces.values().map(|one| one.rx_bytes).max().unwrap()
    };
    let before = received();
    until("the test carries something", || {
        received() > before + 1_000_000
    });
    responder.signal("KILL");
    let output = probing.end();
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
    let [near, far] = [0; 2].map(|_| Room::new());
    let bytes: Vec<u8> = (0..30_000_001u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let scan = near.write("scan.vdif", &bytes);
    let back = near.path("back.vdif");
    let responder = respond_far(&pair, &["--files", far.folder().to_str().unwrap()]);
    let probe = |more: &[&str]| ask(&pair, &responder, "tcp", &[more, &["--json"]].concat());
    let there = [
        "--from",
        &scan,
        "--into",
        "copy.vdif",
        "--duration",
        "10min",
    ];
    let result_of = result(&probe(&there));
    let flow = &result_of["flows"][0];
    assert_eq!(number(flow, "bytes"), bytes.len() as u64);
    assert_eq!(flow["stages"].as_array().unwrap().len(), 2);
    assert!(far.read("copy.vdif") == bytes);
    // The same name again is refused.
    let output = probe(&there);
    assert_refused(&output, "exists");
    let more = [
        "--reverse",
        "--from",
        "copy.vdif",
        "--into",
        &back,
        "--duration",
        "10min",
    ];
    result(&probe(&more));
    assert!(near.read("back.vdif") == bytes);
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
        let more = ["--into", "scan.vdif", "--duration", "10min", "--json"];
        let output = ask(&pair, &responder, "tcp", &more);
        end(responder);
        let said = String::from_utf8_lossy(&output.stdout);
        let result: Value = serde_json::from_str(&said).expect("what was measured");
        let flow = &result["flows"][0];
        let written = std::fs::metadata(format!("{folder}/scan.vdif"));
        let written = written.unwrap().len();
        assert_eq!(written, 8 << 20);
        // Of the last piece a part may have been written.
        let taken = number(flow, "bytes");
        assert!((written - (1 << 20)..=written).contains(&taken), "{taken}");
        let errors = flow["errors"].to_string();
        assert!(errors.contains("No space left"), "{errors}");
    });
}

/// A client that is killed in mid-test leaves nothing behind at the responder: no thread, no connection.
#[test]
fn a_killed_client_leaves_nothing_behind() {
    let Some(pair) = pair_with(&["ss"], &exact_wire(), name!()) else {
        return;
    };
    let responder = respond_far(&pair, &[]);
    let all = || {
        let folder = format!("/proc/{}/task", responder.child.0.id());
        std::fs::read_dir(folder).unwrap().count()
    };
    let before = all();
    let more = [
        "--streams",
        "8",
        "--both",
        "--duration",
        "10min",
        "--sample",
        "1s",
    ];
    let mut probing = begin(&pair, &responder, "tcp", &more);
    until("all of its threads are at work", || {
        let [give, take] = ["give", "take"].map(|name| threads(&responder.child, name).len());
        [give, take] == [8, 8]
    });
    probing.child.signal(Signal::SIGKILL);
    probing.child.wait();
    until("its threads are gone", || all() == before);
    until("its connections are gone", || {
        let established = ["-tnH", "state", "established"];
        pair.far.namespace.command("ss", &established).unwrap() == ""
    });
    // And the next is served.
    let output = ask(&pair, &responder, "tcp", &["--duration", "500ms", "--json"]);
    result(&output);
    end(responder);
}
