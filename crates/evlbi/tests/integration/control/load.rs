//! Many flows on one agent, and control beside a data plane at its limit. They want the machine for themselves.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use crate::control::support::{Agent, has_ended, received, recv, send};
use crate::result::number;
use crate::stolen::Stolen;

const PAIRS: usize = 100;

fn now() -> f64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64()
}

/// Times of so many requests in ms: the middle one, and that which one in a hundred exceeds.
fn latency(agent: &Agent, requests: usize) -> (f64, f64) {
    let mut times: Vec<f64> = (0..requests)
        .map(|_| {
            let begun = Instant::now();
            agent.get("/api/v1/flows/from-0");
            begun.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[requests / 2], times[requests * 99 / 100])
}

/// Two hundred flows of 10 Mbit/s: nothing is lost, and what is shown is not older than two seconds, but where one of them stands still.
#[test]
#[ignore = "it wants the machine for itself: cargo xtask live"]
fn two_hundred_flows_on_one_agent() {
    let agent = Agent::start("");
    let stolen = Stolen::watch();
    for pair in 0..PAIRS {
        let name = format!("to-{pair}");
        let to = agent.receive(&recv(&name, "null"));
        let mut sender = send(&format!("from-{pair}"), &to, "10M");
        // Asleep between frames, not exact to the microsecond.
        sender["burst"] = json!(2);
        agent.begin(&sender);
    }
    for pair in 0..PAIRS {
        for name in [format!("to-{pair}"), format!("from-{pair}")] {
            agent.wait(&name, |flow| flow["status"]["time"].is_number());
        }
    }
    std::thread::sleep(Duration::from_secs(3));
    let begun = Instant::now();
    let mut oldest: Vec<f64> = Vec::new();
    let mut slowest: f64 = 0.0;
    while begun.elapsed() < Duration::from_secs(15) {
        let asked = Instant::now();
        let flows = agent.get("/api/v1/flows")["flows"]
            .as_array()
            .unwrap()
            .clone();
        slowest = slowest.max(asked.elapsed().as_secs_f64());
        assert_eq!(flows.len(), 2 * PAIRS);
        let time = |flow: &Value| flow["status"]["time"].as_f64().unwrap();
        oldest.push(now() - flows.iter().map(time).fold(f64::INFINITY, f64::min));
        std::thread::sleep(Duration::from_millis(500));
    }
    // One of 200 flows that stood still makes a single look old, and not most of them.
    oldest.sort_by(f64::total_cmp);
    let usual = oldest[oldest.len() / 2];
    let (median, p99) = latency(&agent, 200);
    eprintln!(
        "200 flows: the oldest status {usual:.2} s old, {:.2} s at most, all of them listed in {:.0} ms at most; a flow in {median:.1} ms, p99 {p99:.1} ms",
        oldest[oldest.len() - 1],
        slowest * 1e3
    );
    // A gigabit per second takes most of what two processors can do.
    let has_processors = !stolen.is_over(0.1);
    assert!(
        usual < 2.0 || !has_processors,
        "statuses of {oldest:?} s ago are shown"
    );
    let mut rates = Vec::new();
    for pair in 0..PAIRS {
        agent.stop(&format!("from-{pair}"));
    }
    for pair in 0..PAIRS {
        let name = format!("from-{pair}");
        agent.wait(&name, has_ended);
        let sent = agent.get(&format!("/api/v1/flows/{name}/result"));
        let to = format!("to-{pair}");
        agent.wait(&to, |flow| {
            received(flow, "unique") == number(&sent, "sent")
        });
        let received = agent.finish(&to);
        assert_eq!(
            (number(&sent, "not_sent"), number(&received, "lost")),
            (0, 0),
            "{name}"
        );
        rates.push(sent["rate_bps"].as_f64().unwrap());
    }
    // One that stood still at its end is behind.
    rates.sort_by(f64::total_cmp);
    let usual = rates[PAIRS / 2];
    assert!(
        (usual / 10e6 - 1.0).abs() < 0.05 || !has_processors,
        "{rates:?}"
    );
}

/// The data plane at 10 Gbit/s: control does not disturb it, and says how long it takes itself.
#[test]
#[ignore = "it wants the machine for itself: cargo xtask live"]
fn control_beside_ten_gigabits() {
    let agent = Agent::start("");
    let mut receiver = recv("to", "null");
    receiver["ring"] = json!("256MiB");
    let to = agent.receive(&receiver);
    let mut sender = send("from-0", &to, "10G");
    sender["mtu"] = json!(9000);
    agent.begin(&sender);
    agent.wait("to", |flow| {
        let rate = flow["status"]["receiving"][0]["rate_bps"].as_f64();
        rate.is_some_and(|rate| rate > 1e9)
    });
    let (median, p99) = latency(&agent, 1000);
    let mut changes: Vec<f64> = (1..=100)
        .map(|revision| {
            let begun = Instant::now();
            let shed = if revision % 2 == 0 {
                "none"
            } else {
                "every:1000000000"
            };
            let change = json!({"revision": revision, "shed": shed});
            let reply = agent.ask(Method::PATCH, "/api/v1/flows/from-0", &change);
            assert_eq!(reply.status, 200, "{}", reply.body);
            begun.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    changes.sort_by(f64::total_cmp);
    let flow = agent.flow("to");
    let rate = flow["status"]["receiving"][0]["rate_bps"].as_f64().unwrap();
    eprintln!(
        "beside {:.2} Gbit/s: a flow in {median:.1} ms, p99 {p99:.1} ms; a change in {:.1} ms, p99 {:.1} ms",
        rate * 1e-9,
        changes[50],
        changes[98]
    );
    let sent = agent.finish("from-0");
    let received = agent.finish("to");
    let lost = number(&received, "lost");
    eprintln!(
        "lost {lost} of {}, {} sent; the ring was full for {}",
        number(&received, "expected"),
        number(&sent, "sent"),
        number(&received, "ring_full")
    );
    assert_eq!(number(&sent, "not_sent"), 0);
}
