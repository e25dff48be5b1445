//! Agents: many flows on one, control of a data plane at its limit, changes and kills.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use evlbi_testkit::{Room, Running, command};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::picture::{Curve, Picture, Style};
use super::programs::{
    Fields, LIMIT, Listening, evlbi, json_of, output_of, printed, program, started,
};
use super::record::{Aim, Need, Record, Scene};

pub const SCENES: &[Scene] = &[
    Scene {
        name: "two-hundred-flows",
        shows: "An agent with 100 senders and 100 receivers of 10 Mbit/s: nothing is lost, and what it shows is fresh.",
        needs: &[],
        stall: Duration::from_millis(300),
        play: two_hundred,
    },
    Scene {
        name: "ten-gigabits",
        shows: "Requests and changes during a data flow at 10 Gbit/s: their duration, and that they cost no datagram.",
        needs: &[],
        stall: Duration::from_millis(30),
        play: ten_gigabits,
    },
    Scene {
        name: "changed-rate",
        shows: "A flow of 4 Mbit/s that is changed to 8 with every tenth datagram shed reaches 7.2 Mbit/s.",
        needs: &[],
        stall: Duration::from_millis(100),
        play: changed,
    },
    Scene {
        name: "killed-receiver",
        shows: "A receiver that is killed while it records has all but its last 2 MB on disk.",
        needs: &[],
        stall: Duration::from_millis(100),
        play: killed,
    },
    Scene {
        name: "beside-strangers",
        shows: "1000 silent connections and a flood of requests to an agent do not harm a flow of 50 Mbit/s.",
        needs: &[],
        stall: Duration::from_millis(50),
        play: strangers,
    },
    Scene {
        name: "beside-full-disk",
        shows: "A recording whose disk fills up does not harm another stream.",
        needs: &[Need::Root, Need::Program("unshare")],
        stall: Duration::from_millis(500),
        play: full_disk,
    },
];

/// A running agent.
struct Agent {
    room: Room,
    _child: Running,
    url: String,
    runtime: Runtime,
    client: Client,
}

impl Agent {
    fn start() -> Result<Agent> {
        let room = Room::new();
        room.write("agent.toml", "");
        let mut child = evlbi()?
            .args(["agent", "--json", "--bind", "127.0.0.1:0", "--dir"])
            .arg(room.folder())
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().context("no pipe")?).lines();
        let child = Running(child);
        let mut text = String::new();
        for line in lines.map_while(Result::ok) {
            text += &line;
            if line == "}" {
                break;
            }
        }
        let ready: Value = serde_json::from_str(&text).context("the agent does not start")?;
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(Agent {
            url: ready.text("url")?.to_owned(),
            room,
            _child: child,
            runtime: Runtime::new()?,
            // Its certificate is self-signed, on loopback.
            client: Client::builder()
                .tls_danger_accept_invalid_certs(true)
                .build()?,
        })
    }

    /// Sends a request as operator.
    fn ask(&self, method: Method, path: &str, body: &Value) -> Result<Value> {
        let token = self.room.text("tokens/operate");
        self.runtime.block_on(async {
            let mut request = self.client.request(method, format!("{}{path}", self.url));
            request = request.bearer_auth(token.trim()).timeout(LIMIT);
            if !body.is_null() {
                request = request.json(body);
            }
            let response = request.send().await?;
            let status = response.status();
            let text = response.text().await?;
            ensure!(status.is_success(), "{path}: {status} {text}");
            Ok(serde_json::from_str(&text)?)
        })
    }

    fn get(&self, path: &str) -> Result<Value> {
        self.ask(Method::GET, path, &Value::Null)
    }

    fn flow(&self, id: &str) -> Result<Value> {
        self.get(&format!("/api/v1/flows/{id}"))
    }

    /// Waits until a flow meets a condition.
    fn wait(&self, id: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
        let begun = Instant::now();
        loop {
            let flow = self.flow(id)?;
            if is_so(&flow) {
                return Ok(flow);
            }
            if begun.elapsed() > LIMIT {
                bail!("{id} is not as it should be: {flow}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn begin(&self, flow: &Value) -> Result<()> {
        let begun = self.ask(Method::POST, "/api/v1/flows", flow)?;
        self.wait(begun.text("id")?, |flow| flow["state"] != "starting")?;
        Ok(())
    }

    /// Starts a receiver; returns where to send to.
    fn receive(&self, id: &str, to: &str, ring: &str) -> Result<String> {
        let from = "udp://127.0.0.1:0";
        self.begin(&json!({"id": id, "command": "recv", "from": from, "to": to, "ring": ring}))?;
        let flow = self.wait(id, |flow| flow["status"]["listening"].is_array())?;
        let address = flow["status"]["listening"][0]
            .as_str()
            .context("no address")?;
        Ok(format!("udp://{address}"))
    }

    fn stop(&self, id: &str, body: &Value) -> Result<()> {
        self.ask(Method::POST, &format!("/api/v1/flows/{id}/stop"), body)?;
        Ok(())
    }

    fn result(&self, id: &str) -> Result<Value> {
        self.wait(id, |flow| flow["state"] == "ended")?;
        self.get(&format!("/api/v1/flows/{id}/result"))
    }

    /// Stops a flow and returns its result.
    fn finish(&self, id: &str) -> Result<Value> {
        self.stop(id, &json!({}))?;
        self.result(id)
    }

    /// Returns the durations of this many requests in ms, sorted.
    fn latencies(&self, requests: usize) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        for _ in 0..requests {
            let begun = Instant::now();
            self.flow("from-0")?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        Ok(times)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Flows continue without their agent.
        let Ok(flows) = self.get("/api/v1/flows") else {
            return;
        };
        for flow in flows["flows"].as_array().into_iter().flatten() {
            if flow["state"] != "ended"
                && let Some(id) = flow["id"].as_str()
            {
                let _ = self.stop(id, &json!({"kill": true}));
            }
        }
    }
}

fn received(flow: &Value, key: &str) -> u64 {
    flow["status"]["receiving"][0][key].as_u64().unwrap_or(0)
}

fn send(id: &str, to: &str, rate: &str) -> Value {
    json!({"id": id, "command": "send", "source": "pattern:8032", "to": to, "rate": rate})
}

/// Records the median and the 99th percentile of sorted times.
fn middle_and_p99(record: &mut Record, what: &str, times: &[f64], aim: Aim) {
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    record.figure(format!("{what}: median"), "ms", at(0.5), Aim::Shown);
    record.figure(format!("{what}: p99"), "ms", at(0.99), aim);
}

/// Returns the fraction of times below each value.
fn shares(times: &[f64]) -> Vec<(f64, f64)> {
    let last = times.len().saturating_sub(1).max(1) as f64;
    let of = times.iter().enumerate();
    of.map(|(place, time)| (*time, place as f64 / last * 100.0))
        .collect()
}

fn two_hundred(record: &mut Record) -> Result<()> {
    const PAIRS: usize = 100;
    let agent = Agent::start()?;
    for pair in 0..PAIRS {
        let to = agent.receive(&format!("to-{pair}"), "null", "64MiB")?;
        let mut sender = send(&format!("from-{pair}"), &to, "10M");
        // Sleeping between frames, not exact to the microsecond.
        sender["burst"] = json!(2);
        agent.begin(&sender)?;
    }
    for pair in 0..PAIRS {
        for name in [format!("to-{pair}"), format!("from-{pair}")] {
            agent.wait(&name, |flow| flow["status"]["time"].is_number())?;
        }
    }
    std::thread::sleep(Duration::from_secs(3));
    let begun = Instant::now();
    let (mut ages, mut slowest) = (Vec::new(), 0.0f64);
    let mut is_whole = true;
    while begun.elapsed() < Duration::from_secs(15) {
        let asked = Instant::now();
        let flows = agent.get("/api/v1/flows")?;
        slowest = slowest.max(asked.elapsed().as_secs_f64());
        let flows = flows.list("flows")?;
        is_whole &= flows.len() == 2 * PAIRS;
        let times = flows
            .iter()
            .filter_map(|flow| flow["status"]["time"].as_f64());
        let oldest = times.fold(f64::INFINITY, f64::min);
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        ages.push((begun.elapsed().as_secs_f64(), now - oldest));
        std::thread::sleep(Duration::from_millis(500));
    }
    record.fact("all 200 flows are listed", is_whole, "");
    record.pictures.push(Picture {
        title: "Age of the oldest status of 200".to_owned(),
        x: "s",
        y: "s",
        curves: vec![Curve::new("age", Style::Line, ages.clone())],
        levels: vec![(2.0, "at most".to_owned())],
        ..Picture::default()
    });
    // One of 200 flows that stalls makes a single snapshot old, not most of them.
    let mut ages: Vec<f64> = ages.into_iter().map(|(_, age)| age).collect();
    ages.sort_by(f64::total_cmp);
    record.figure(
        "oldest status: median of the looks",
        "s",
        ages[ages.len() / 2],
        Aim::AtMost(2.0),
    );
    record.figure(
        "oldest status: at most",
        "s",
        ages[ages.len() - 1],
        Aim::Shown,
    );
    record.figure(
        "all flows listed in, at most",
        "ms",
        slowest * 1e3,
        Aim::Shown,
    );
    middle_and_p99(record, "a flow", &agent.latencies(200)?, Aim::Shown);
    for pair in 0..PAIRS {
        agent.stop(&format!("from-{pair}"), &json!({}))?;
    }
    let mut rates = Vec::new();
    let (mut sent_all, mut unique_all, mut lost, mut not_sent) = (0, 0, 0, 0);
    for pair in 0..PAIRS {
        let sent = agent.result(&format!("from-{pair}"))?;
        let to = format!("to-{pair}");
        let count = sent.count("sent")?;
        agent.wait(&to, |flow| {
            received(flow, "unique") + received(flow, "lost") >= count
        })?;
        let received = agent.finish(&to)?;
        sent_all += count;
        unique_all += received.count("unique")?;
        lost += received.count("lost")?;
        not_sent += sent.count("not_sent")?;
        rates.push(sent.real("rate_bps")? * 1e-6);
    }
    record.same("what was sent was received", unique_all, sent_all);
    record.same("nothing was lost", lost, 0);
    record.same("nothing was left unsent", not_sent, 0);
    // One that stalled at its end is behind.
    rates.sort_by(f64::total_cmp);
    record.near(
        "rate of a flow, median",
        "Mbit/s",
        rates[PAIRS / 2],
        10.0,
        0.05,
    );
    Ok(())
}

fn ten_gigabits(record: &mut Record) -> Result<()> {
    let agent = Agent::start()?;
    let to = agent.receive("to", "null", "256MiB")?;
    let mut sender = send("from-0", &to, "10G");
    sender["mtu"] = json!(9000);
    agent.begin(&sender)?;
    agent.wait("to", |flow| {
        let rate = flow["status"]["receiving"][0]["rate_bps"].as_f64();
        rate.is_some_and(|rate| rate > 1e9)
    })?;
    let looks = agent.latencies(1000)?;
    let mut changes = Vec::new();
    for revision in 1..=100 {
        let begun = Instant::now();
        let shed = if revision % 2 == 0 {
            "none"
        } else {
            "every:1000000000"
        };
        let change = json!({"revision": revision, "shed": shed});
        agent.ask(Method::PATCH, "/api/v1/flows/from-0", &change)?;
        changes.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    changes.sort_by(f64::total_cmp);
    let rate = agent.flow("to")?["status"]["receiving"][0].real("rate_bps")?;
    record.figure(
        "rate received, of 10 Gbit/s",
        "Gbit/s",
        rate * 1e-9,
        Aim::AtLeast(1.0),
    );
    middle_and_p99(record, "a flow asked for", &looks, Aim::AtMost(100.0));
    middle_and_p99(record, "a change", &changes, Aim::AtMost(100.0));
    record.pictures.push(Picture {
        title: "Requests beside 10 Gbit/s".to_owned(),
        x: "ms",
        y: "% answered",
        is_log_x: true,
        curves: vec![
            Curve::new("a flow", Style::Line, shares(&looks)),
            Curve::new("a change", Style::Line, shares(&changes)),
        ],
        ..Picture::default()
    });
    let sent = agent.finish("from-0")?;
    let received = agent.finish("to")?;
    record.same("nothing was left unsent", sent.count("not_sent")?, 0);
    let (unique, lost) = (received.count("unique")?, received.count("lost")?);
    record.fact(
        "no more is received and lost than was sent",
        unique + lost <= sent.count("sent")?,
        format!("{unique} + {lost} of {}", sent["sent"]),
    );
    record.same(
        "expected = unique + lost",
        received.count("expected")?,
        unique + lost,
    );
    // The socket's buffer holds a stall of 50 ms.
    record.figure("lost", "", lost as f64, Aim::AtMost(0.0));
    record.figure(
        "lost for want of room in the ring",
        "",
        received.count("ring_full")? as f64,
        Aim::AtMost(0.0),
    );
    Ok(())
}

fn changed(record: &mut Record) -> Result<()> {
    let agent = Agent::start()?;
    let to = agent.receive("to", "null", "64MiB")?;
    let mut sender = send("from", &to, "4M");
    sender["mtu"] = json!(9000);
    agent.begin(&sender)?;
    let rate = |flow: &Value| {
        flow["status"]["sending"]["rate_bps"]
            .as_f64()
            .unwrap_or(0.0)
            * 1e-6
    };
    agent.wait("from", |flow| rate(flow) > 3.0)?;
    let begun = Instant::now();
    let mut course = Vec::new();
    let mut change_at = 0.0;
    while begun.elapsed() < Duration::from_secs(8) {
        let at = begun.elapsed().as_secs_f64();
        if change_at == 0.0 && at > 3.0 {
            let change = json!({"revision": 1, "rate": "8M", "shed": "every:10"});
            agent.ask(Method::PATCH, "/api/v1/flows/from", &change)?;
            change_at = begun.elapsed().as_secs_f64();
        }
        course.push((at, rate(&agent.flow("from")?)));
        std::thread::sleep(Duration::from_millis(200));
    }
    let last = course.last().map_or(f64::NAN, |(_, rate)| *rate);
    // 8 Mbit/s minus 10 %.
    record.figure(
        "rate after the change",
        "Mbit/s",
        last,
        Aim::Within(6.8, 7.6),
    );
    let reached = course
        .iter()
        .find(|(at, rate)| *at > change_at && (6.8..=7.6).contains(rate));
    record.figure(
        "time until it is shown",
        "s",
        reached.map_or(f64::NAN, |(at, _)| at - change_at),
        Aim::AtMost(3.0),
    );
    let sent = agent.finish("from")?;
    let count = sent.count("sent")?;
    agent.wait("to", |flow| received(flow, "unique") == count)?;
    let received = agent.finish("to")?;
    record.same(
        "what was sent was received",
        received.count("unique")?,
        count,
    );
    record.pictures.push(Picture {
        title: "Rate that the agent shows".to_owned(),
        x: "s",
        y: "Mbit/s",
        curves: vec![Curve::new("rate", Style::Line, course)],
        marks: vec![(change_at, "change")],
        levels: vec![(7.2, "8 Mbit/s less a tenth".to_owned())],
        ..Picture::default()
    });
    Ok(())
}

fn killed(record: &mut Record) -> Result<()> {
    const FRAME: u64 = 8032;
    let agent = Agent::start()?;
    let to = agent.receive("to", "scan.vdif", "64MiB")?;
    agent.begin(&send("from", &to, "8M"))?;
    let before = agent.wait("to", |flow| received(flow, "bytes") > 4_000_000)?;
    let before = received(&before, "bytes");
    agent.stop("to", &json!({"kill": true}))?;
    agent.wait("to", |flow| flow["state"] == "ended")?;
    let path = agent.room.path("recordings/scan.vdif");
    let found = printed(evlbi()?.args(["inspect", "--json", &path]))?;
    let found: Value = serde_json::from_str(&found)?;
    let recorded = found.count("frames")? * FRAME;
    // A second of 8 Mbit/s, and one more for a thread that stalls.
    record.figure(
        "received and not recorded",
        "MB",
        before.saturating_sub(recorded) as f64 * 1e-6,
        Aim::AtMost(2.0),
    );
    let size = fs::metadata(&path)?.len();
    record.fact(
        "all of the file but its last frame can be read",
        size - recorded < FRAME,
        format!("{recorded} of {size} B"),
    );
    record.fact(
        "the sender continues",
        agent.flow("from")?["state"] == "running",
        "",
    );
    Ok(())
}

fn strangers(record: &mut Record) -> Result<()> {
    let agent = Agent::start()?;
    let to = agent.receive("to", "check", "64MiB")?;
    agent.begin(&send("from-0", &to, "50M"))?;
    agent.wait("to", |flow| received(flow, "unique") > 1000)?;
    let address = agent.url.trim_start_matches("https://").to_owned();
    let begun = Instant::now();
    let mut silent = Vec::new();
    for _ in 0..1000 {
        silent.extend(TcpStream::connect(&address));
    }
    let (mut asked, mut slowest) = (0, 0.0f64);
    while begun.elapsed() < Duration::from_secs(8) {
        let request = Instant::now();
        agent.flow("from-0")?;
        slowest = slowest.max(request.elapsed().as_secs_f64());
        asked += 1;
    }
    drop(silent);
    record.figure(
        "requests answered meanwhile",
        "",
        f64::from(asked),
        Aim::Shown,
    );
    record.figure("slowest answer", "ms", slowest * 1e3, Aim::Shown);
    let sent = agent.finish("from-0")?;
    let count = sent.count("sent")?;
    agent.wait("to", |flow| {
        received(flow, "unique") + received(flow, "lost") >= count
    })?;
    let received = agent.finish("to")?;
    record.same(
        "what was sent was received",
        received.count("unique")?,
        count,
    );
    record.same("nothing was lost", received.count("lost")?, 0);
    record.same("nothing was left unsent", sent.count("not_sent")?, 0);
    record.near(
        "rate sent",
        "Mbit/s",
        sent.real("rate_bps")? * 1e-6,
        50.0,
        0.02,
    );
    Ok(())
}

fn full_disk(record: &mut Record) -> Result<()> {
    let room = Room::new();
    // Visible only to this receiver.
    let inside = "mount -t tmpfs -o size=4m none disk && exec \"$E\" recv udp://127.0.0.1:0 --to disk/rec.vdif --ring 64MiB --idle 10s --json";
    fs::create_dir(room.folder().join("disk"))?;
    let mut recording = command("unshare");
    recording
        .args(["--mount", "sh", "-ec", inside])
        .env("E", program()?)
        .current_dir(room.folder());
    let recording = Listening::start(&mut recording, 1)?;
    let mut counting = evlbi()?;
    counting.args([
        "recv",
        "udp://127.0.0.1:0",
        "--to",
        "check",
        "--ring",
        "64MiB",
        "--idle",
        "10s",
        "--json",
    ]);
    let counting = Listening::start(&mut counting, 1)?;
    let mut senders = Vec::new();
    for receiver in [&recording, &counting] {
        let to = format!("udp://{}", receiver.address());
        let mut send = evlbi()?;
        send.args(["send", "pattern:8032", "--to", &to, "--rate", "10M"]);
        senders.push(started(send.args(["--duration", "6s", "--json"]))?);
    }
    let mut sent = Vec::new();
    for sender in senders {
        sent.push(json_of(&output_of(sender)?)?.count("sent")?);
    }
    for ((receiver, sent), name) in [recording, counting]
        .into_iter()
        .zip(sent)
        .zip(["recording", "beside it"])
    {
        // The receiver whose disk was full ends with an error.
        let (_, printed, said) = receiver.end();
        let result: Value = serde_json::from_str(&printed).context(said)?;
        record.same(
            format!("{name}: what was sent was received"),
            result.count("unique")?,
            sent,
        );
        record.same(
            format!("{name}: nothing was lost"),
            result.count("lost")?,
            0,
        );
        if name == "recording" {
            let unwritten = result.count("unwritten_bytes")?;
            record.fact(
                "recording: what found no room is counted",
                unwritten > 0,
                format!("{unwritten} B"),
            );
        }
    }
    Ok(())
}
