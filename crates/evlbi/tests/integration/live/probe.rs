//! Probes by processes of the program, which are stopped and killed, read other clocks and print. Other live tests of probes are
//! in evlbi-probe.

mod abuse;
mod loss;
mod results;
mod tcp;

use std::fs::{self, File};
use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};

use crate::live::support::{Recv, evlbi};
use crate::result::{brief, number};
use evlbi_testkit::netns::Pair;
use evlbi_testkit::result::{assert_schema, read};
use evlbi_testkit::{Room, Running};
use serde_json::Value;

const TOKEN: &str = "a token of tests";

fn respond(bind: &str, more: &[&str]) -> Recv {
    Recv::listening(&mut responder(bind, more), 1)
}

fn responder(bind: &str, more: &[&str]) -> Command {
    let mut command = evlbi();
    command
        .args(["respond", "--bind", bind, "-v"])
        .args(more)
        .env("EVLBI_TOKEN", TOKEN);
    command
}

/// Ends a responder, and returns its standard error.
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
    Probing::start(command).end()
}

/// A running probe.
struct Probing {
    child: Running,
    room: Room,
}

impl Probing {
    fn start(command: &mut Command) -> Probing {
        let room = Room::new();
        let file = |name| File::create(room.path(name)).expect("a file");
        let child = command.stdout(file("out")).stderr(file("err")).spawn();
        Probing {
            child: Running(child.expect("the probe starts")),
            room,
        }
    }

    /// Waits for its end.
    #[track_caller]
    fn end(mut self) -> Output {
        Output {
            status: self.child.wait(),
            stdout: self.room.read("out"),
            stderr: self.room.read("err"),
        }
    }
}

/// How many threads of a process have this name: those of a responder show what it does.
fn threads(process: &Running, name: &str) -> usize {
    let folder = format!("/proc/{}/task", process.0.id());
    let tasks = fs::read_dir(folder).into_iter().flatten().flatten();
    let comms = tasks.map(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default());
    comms.filter(|comm| comm.trim() == name).count()
}

/// The points of a probe that succeeds.
fn points(output: &Output) -> Vec<Value> {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let result = read(&output.stdout);
    assert_schema(&result, "evlbi.probe.udp/1");
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

/// Asserts that it failed with this message.
#[track_caller]
fn assert_refused(output: &Output, reason: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    let is_refused = !output.status.success() && said.contains(reason);
    assert!(is_refused, "not `{reason}` but: {said}");
}

/// A responder in the second namespace.
fn respond_far(pair: &Pair, more: &[&str]) -> Recv {
    let bind = format!("{}:0", pair.far.v4);
    pair.far.namespace.run(|| respond(&bind, more)).unwrap()
}

/// A probe of a kind from the first namespace.
fn ask(pair: &Pair, responder: &Recv, kind: &str, more: &[&str]) -> Output {
    begin(pair, responder, kind, more).end()
}

/// The same, without waiting for its end.
fn begin(pair: &Pair, responder: &Recv, kind: &str, more: &[&str]) -> Probing {
    let start = || Probing::start(&mut probe_of(kind, responder.address(), more));
    pair.near.namespace.run(start).unwrap()
}
