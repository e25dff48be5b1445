//! `evlbi probe tcp` between two namespaces: messages by a clock that is wrong, and the result if one endpoint is killed.

use super::{ask, assert_refused, begin, end, respond_far, responder, threads};
use crate::live::support::Recv;
use crate::result::number;
use evlbi_testkit::clock::Shifted;
use evlbi_testkit::netns::{Wire, pair, pair_with};
use evlbi_testkit::result::{assert_schema, read};
use evlbi_testkit::{Room, name, until};
use nix::sys::signal::Signal;
use serde_json::Value;

/// The result of a probe that succeeds.
fn result(output: &std::process::Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let result = read(&output.stdout);
    assert_schema(&result, "evlbi.probe.tcp/1");
    result
}

/// Messages arrive once each and in order, and the offset of the wrong clock is found.
#[test]
fn messages_at_a_constant_rate_all_come() {
    let Some(pair) = pair(&Wire::exact(), name!()) else {
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
        // 8000 per second; the last is due just before the end.
        assert_eq!(
            [of("due"), of("sent"), of("received"), of("shed")],
            [4000, 4000, 4000, 0]
        );
        assert_eq!(number(flow, "bytes"), 4_000_000);
    }
    // It gains 4 ms in the two minutes that a test may last at most.
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
    // Every third message in both directions, in order.
    let numbers = kept.iter().map(|fields| (fields[0], fields[1]));
    let expected = (0..2).flat_map(|flow| (0..4000).step_by(3).map(move |number| (flow, number)));
    assert!(numbers.eq(expected), "{}", kept.len());
}

/// The responder vanishes in mid-test: the probe reports so, and its measurements are kept.
#[test]
fn measurements_are_kept_when_the_responder_vanishes() {
    let Some(pair) = pair(&Wire::exact(), name!()) else {
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
    assert_refused(&output, "the measurement is incomplete");
    let result = read(&output.stdout);
    assert!(number(&result["flows"][0], "bytes") > 0);
    assert!(!result["stopped"].is_null());
}

/// A client that is killed in mid-test leaves nothing behind at the responder: no thread, no connection.
#[test]
fn a_killed_client_leaves_nothing_behind() {
    let Some(pair) = pair_with(&["ss"], &Wire::exact(), name!()) else {
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
        let [give, take] = ["give", "take"].map(|name| threads(&responder.child, name));
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
