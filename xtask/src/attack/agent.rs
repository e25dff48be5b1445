//! An agent under hostile requests and connections, while one of its flows records.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use evlbi_testkit::damage::{bytes, damage, pick};
use nix::sys::signal::Signal;
use rand::{Rng, RngExt};
use serde_json::{Value, json};

use super::Attack;
use super::program::{END, Program, count};
use super::scene::{LIMIT, Scene, wait_for};
use super::tls::{Answer, Client};

pub const ATTACKS: &[Attack] = &[Attack {
    name: "agent-requests",
    target: "agent",
    what: "hostile requests: tokens, paths, headers, bodies, slow and silent connections; a flow runs beside them",
    expects: "each is refused or closed; the interface answers; the flow lost nothing",
    run: requests,
}];

/// Number of hostile requests per round.
const REQUESTS: usize = 60;
const DAMAGED: &str = "a damaged request";
/// Number of connections that are kept open and send little.
const SLOW: usize = 40;

struct Agent {
    program: Program,
    client: Client,
    tokens: [String; 2],
}

impl Agent {
    fn start(scene: &Scene) -> Result<Agent> {
        let folder = scene.room.path("agent");
        let agent = ["agent", "--dir", &folder, "--bind", "127.0.0.1:0", "--json"];
        let mut program = scene.start(&agent)?;
        let ready: Value = wait_for("the agent is there", LIMIT, || {
            serde_json::from_str(&program.stdout()).ok()
        })?;
        let url = ready["url"].as_str().context("no url")?;
        let address = url.trim_start_matches("https://").parse()?;
        let tokens = ["watch", "operate"].map(|role| {
            scene
                .room
                .text(&format!("agent/tokens/{role}"))
                .trim()
                .to_owned()
        });
        let client = Client::new(&scene.room.path("agent/certificate.pem"), address)?;
        anyhow::ensure!(
            program.is_running(),
            "the agent has ended: {}",
            program.stderr()
        );
        Ok(Agent {
            program,
            client,
            tokens,
        })
    }

    /// Sends a request as operator.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let request = request(method, path, &self.tokens[1], body.as_bytes());
        match self.client.ask(&request, LIMIT)? {
            Answer::Status(status @ 200..=299, answer) => {
                let text = String::from_utf8_lossy(&answer);
                let (head, body) = text.split_once("\r\n\r\n").context("no body")?;
                if head.to_lowercase().contains("transfer-encoding: chunked") {
                    let parts = body.split("\r\n").skip(1).step_by(2);
                    return Ok(serde_json::from_str(&parts.collect::<String>())?);
                }
                serde_json::from_str(body).with_context(|| format!("{path}: {status} {text}"))
            }
            Answer::Status(status, answer) => {
                bail!("{path}: {status} {}", String::from_utf8_lossy(&answer))
            }
            Answer::Closed => bail!("{path}: closed without an answer"),
            Answer::Silence => bail!("{path}: no answer in {} s", LIMIT.as_secs()),
        }
    }

    fn flow(&self, id: &str) -> Result<Value> {
        self.ask("GET", &format!("/api/v1/flows/{id}"), &Value::Null)
    }

    /// Waits until a flow meets a condition.
    fn wait(&self, id: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut last = Value::Null;
        wait_for("a flow", LIMIT, || {
            last = self.flow(id).ok()?;
            is_so(&last).then(|| last.clone())
        })
        .with_context(|| last.to_string())
    }
}

fn request(method: &str, path: &str, token: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn requests(scene: &mut Scene) -> Result<()> {
    let mut agent = Agent::start(scene)?;
    let recv = json!({"id": "ef", "command": "recv", "from": "udp://127.0.0.1:0", "to": "ef.vdif", "ring": "64MiB"});
    agent.ask("POST", "/api/v1/flows", &recv)?;
    let flow = agent.wait("ef", |flow| flow["status"]["listening"].is_array())?;
    let to = flow["status"]["listening"][0]
        .as_str()
        .context("no address")?;
    let send = json!({
        "id": "from", "command": "send", "source": "pattern:1032", "to": format!("udp://{to}"), "rate": "2M",
    });
    agent.ask("POST", "/api/v1/flows", &send)?;
    agent.wait("ef", |flow| {
        flow["status"]["receiving"][0]["unique"].as_u64() > Some(0)
    })?;
    let slow = slow_connections(scene, &agent)?;
    let [mut refused, mut closed] = [0, 0];
    for _ in 0..REQUESTS {
        let (what, hostile) = hostile(&mut scene.random, &agent.tokens);
        match agent.client.ask(&hostile, Duration::from_secs(2)) {
            Ok(Answer::Status(400..=499 | 501 | 505, _)) => refused += 1,
            // The damage may have produced a request that needs no token.
            Ok(Answer::Status(200..=399, _)) if what == DAMAGED => refused += 1,
            Ok(Answer::Status(status, answer)) => {
                let answer = String::from_utf8_lossy(&answer).into_owned();
                scene.expect(false, format!("{what}: {status} {answer}"));
            }
            Ok(Answer::Closed | Answer::Silence) | Err(_) => closed += 1,
        }
    }
    // The HTTP API still answers.
    agent.ask("GET", "/api/v1/flows", &Value::Null)?;
    drop(slow);
    for id in ["from", "ef"] {
        if id == "ef" {
            let sent = count(
                &agent.ask("GET", "/api/v1/flows/from/result", &Value::Null)?,
                "sent",
            )?;
            agent.wait("ef", |flow| {
                flow["status"]["receiving"][0]["unique"] == sent
            })?;
        }
        agent.ask("POST", &format!("/api/v1/flows/{id}/stop"), &json!({}))?;
        agent.wait(id, |flow| flow["state"] == "ended")?;
    }
    let [sent, got] = ["from", "ef"].map(|id| {
        let path = format!("/api/v1/flows/{id}/result");
        agent.ask("GET", &path, &Value::Null)
    });
    let (sent, got) = (sent?, got?);
    scene.same(
        "unique of the flow",
        count(&got, "unique")?,
        count(&sent, "sent")?,
    );
    scene.same("lost by the flow", count(&got, "lost")?, 0);
    let flows = agent.ask("GET", "/api/v1/flows", &Value::Null)?;
    let flows = flows["flows"].as_array().map_or(0, Vec::len);
    scene.same("flows", flows, 2);
    scene.memory(&agent.program, 512);
    scene.expect(agent.program.is_running(), "the agent had ended before");
    agent.program.signal(Signal::SIGTERM);
    let ended = agent.program.end(END)?;
    scene.expect(
        ended.is_orderly(),
        format!("{} {}", ended.status, ended.stderr),
    );
    scene.note(format!(
        "{refused} refused, {closed} closed, unique {}",
        count(&got, "unique")?
    ));
    Ok(())
}

/// Opens connections that stop before the handshake, within it, or within a request.
fn slow_connections(scene: &mut Scene, agent: &Agent) -> Result<Vec<Box<dyn std::any::Any>>> {
    let address = agent.client.address();
    let mut kept: Vec<Box<dyn std::any::Any>> = Vec::new();
    for number in 0..SLOW {
        match number % 3 {
            0 => kept.push(Box::new(TcpStream::connect(address)?)),
            1 => {
                let mut connection = TcpStream::connect(address)?;
                let length = scene.random.random_range(1..2000);
                let _ = connection.write_all(&bytes(&mut scene.random, length));
                kept.push(Box::new(connection));
            }
            _ => {
                let mut connection = agent.client.connect()?;
                let whole = request("GET", "/api/v1/flows", &agent.tokens[0], b"");
                let part = scene.random.random_range(1..whole.len());
                // It may be closed if there are many.
                let _ = connection.write_all(&whole[..part]);
                kept.push(Box::new(connection));
            }
        }
    }
    Ok(kept)
}

/// Returns a request that must not be granted.
fn hostile(random: &mut impl Rng, tokens: &[String; 2]) -> (&'static str, Vec<u8>) {
    let [watch, operate] = tokens;
    let flows = "/api/v1/flows";
    match random.random_range(0..13) {
        0 => {
            let wrong: String = operate.chars().rev().collect();
            ("a wrong token", request("GET", flows, &wrong, b""))
        }
        1 => {
            let part = &operate[..random.random_range(0..operate.len())];
            ("a part of a token", request("GET", flows, part, b""))
        }
        2 => (
            "a change with the token watch",
            request("POST", flows, watch, br#"{"id":"x"}"#),
        ),
        3 => {
            let up = pick(random, &["..%2f", "%2e%2e%2f", "..%5c", "..%252f", "..%00"]);
            let file = pick(random, &["tokens/operate", "key.pem", "etc/passwd"]);
            let path = format!(
                "{flows}/{}{file}/result",
                up.repeat(random.random_range(1..6))
            );
            (
                "a path out of the folder",
                request("GET", &path, operate, b""),
            )
        }
        4 => {
            let to = pick(
                random,
                &["../../x.vdif", "/etc/passwd", "a/../../x", "x\u{0}y"],
            );
            let flow = json!({"id": "x", "command": "recv", "from": "udp://127.0.0.1:0", "to": to});
            (
                "a recording out of the folder",
                request("POST", flows, operate, flow.to_string().as_bytes()),
            )
        }
        5 => {
            let long = "x".repeat(random.random_range(40_000..100_000));
            let head = format!("GET {flows} HTTP/1.1\r\nHost: a\r\nX-Long: {long}\r\n\r\n");
            ("a header without end", head.into_bytes())
        }
        6 => {
            let length = pick(random, &["-1", "18446744073709551616", "1e9", "4 4", ""]);
            let head = format!(
                "POST {flows} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {operate}\r\nContent-Length: {length}\r\n\r\n{{}}"
            );
            ("a length that is none", head.into_bytes())
        }
        7 => {
            let body = vec![b' '; random.random_range(2 << 20..4 << 20)];
            (
                "a body of megabytes",
                request("POST", flows, operate, &body),
            )
        }
        8 => {
            let depth = random.random_range(200..50_000);
            let body = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            (
                "a deep body",
                request("POST", flows, operate, body.as_bytes()),
            )
        }
        9 => {
            let body =
                json!({"id": "x", "command": "recv", "from": "udp://127.0.0.1:0", "to": "x.vdif"});
            let mut body = body.to_string().into_bytes();
            body.truncate(random.random_range(0..body.len()));
            ("a body cut short", request("POST", flows, operate, &body))
        }
        10 => {
            let length = random.random_range(1..3000);
            ("garbage", bytes(random, length))
        }
        11 => {
            let chunk = pick(random, &["ffffffffffffffff", "-1", "zz", "1;a=b\r\nxy\r\n"]);
            let head = format!(
                "POST {flows} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {operate}\r\nTransfer-Encoding: chunked\r\n\r\n\
                 {chunk}\r\n"
            );
            ("a chunk that is none", head.into_bytes())
        }
        _ => {
            let honest = request("GET", "/api/v1/flows", "none", b"");
            (DAMAGED, damage(random, &honest))
        }
    }
}
