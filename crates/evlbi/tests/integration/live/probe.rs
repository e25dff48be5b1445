//! Probes between two namespaces, with the kernel's own counters as the truth.

mod abuse;
mod asked;
mod loss;
mod results;
mod tcp;

use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::live::support::{Recv, evlbi};
use crate::result::{brief, number};
use evlbi_testkit::netns::{Pair, Wire};
use serde_json::Value;

const TOKEN: &str = "a token of tests";

fn exact_wire() -> Wire {
    Wire {
        mtu: 9000,
        segmentation: false,
        join: false,
    }
}

fn respond(bind: &str, more: &[&str]) -> Recv {
    let mut command = evlbi();
    command
        .args(["respond", "--bind", bind, "-v"])
        .args(more)
        .env("EVLBI_TOKEN", TOKEN);
    Recv::listening(&mut command, 1)
}

/// Ends a responder, and says what it said.
fn end(responder: Recv) -> String {
    responder.signal("INT");
    let ended = responder.end();
    assert!(ended.status.success(), "{}", ended.stderr);
    ended.stderr
}

fn probe(target: SocketAddr, more: &[&str]) -> Command {
    probe_of("udp", target, more)
}

fn probe_of(kind: &str, target: SocketAddr, more: &[&str]) -> Command {
    let mut command = evlbi();
    command
        .args(["probe", kind, &target.to_string()])
        .args(more)
        .env("EVLBI_TOKEN", TOKEN)
        .stdin(Stdio::null());
    command
}

fn run(command: &mut Command) -> Output {
    command.output().expect("the probe starts")
}

/// The points of a probe that ends well.
fn points(output: &Output) -> Vec<Value> {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let result: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(result["schema"], "evlbi.probe.udp/1");
    result["points"].as_array().expect("points").clone()
}

/// Whatever was measured, the sums hold.
#[track_caller]
fn assert_sums(point: &Value) {
    let of = |name: &str| number(point, name);
    let shown = brief(point);
    assert_eq!(of("sent"), of("unique") + of("lost"), "{shown}");
    assert_eq!(of("received"), of("unique") + of("duplicates"), "{shown}");
    let parts = of("network_lost") + of("host_lost") + of("unattributed");
    assert_eq!(of("lost"), parts, "{shown}");
    let runs = point["loss_runs"].as_object().unwrap().iter();
    let in_runs: u64 = runs
        .map(|(length, count)| length.parse::<u64>().unwrap() * count.as_u64().unwrap())
        .sum();
    assert_eq!(of("lost"), in_runs, "{shown}");
}

/// It does not end well, and says this.
#[track_caller]
fn assert_refused(output: &Output, reason: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    let is_refused = !output.status.success() && said.contains(reason);
    assert!(is_refused, "not `{reason}` but: {said}");
}

/// Others' tests have begun, so that it is refused for this reason.
#[track_caller]
fn refused_at_last(target: SocketAddr, more: &[&str], reason: &str) {
    let begun = Instant::now();
    loop {
        let output = run(&mut probe(target, more));
        if !output.status.success() || begun.elapsed() > Duration::from_secs(60) {
            return assert_refused(&output, reason);
        }
    }
}

/// A responder in the far namespace.
fn respond_far(pair: &Pair, more: &[&str]) -> Recv {
    let bind = format!("{}:0", pair.far.v4);
    pair.far.namespace.run(|| respond(&bind, more)).unwrap()
}

/// A probe of a kind from the near namespace.
fn ask(pair: &Pair, responder: &Recv, kind: &str, more: &[&str]) -> Output {
    let run = || run(&mut probe_of(kind, responder.address(), more));
    pair.near.namespace.run(run).unwrap()
}

/// One UDP probe from the near namespace, with a responder of its own in the far one.
fn once(pair: &Pair, more: &[&str]) -> Output {
    let responder = respond_far(pair, &[]);
    let output = ask(pair, &responder, "udp", more);
    end(responder);
    output
}

/// Its points.
fn between(pair: &Pair, more: &[&str]) -> Vec<Value> {
    points(&once(pair, more))
}
