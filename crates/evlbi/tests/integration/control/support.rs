//! An agent under test, and who asks it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evlbi_testkit::command;
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub const EVLBI: &str = env!("CARGO_BIN_EXE_evlbi");
/// Longer than anything here takes on a machine that is not overrun.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// An agent at work.
pub struct Agent {
    pub folder: TempDir,
    pub child: Child,
    pub address: SocketAddr,
    pub ready: Value,
    runtime: Runtime,
    client: Client,
}

/// What came back.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub body: Value,
}

impl Agent {
    /// An agent in a folder of its own, with these settings beside those that are shipped.
    pub fn start(settings: &str) -> Agent {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("agent.toml"), settings).unwrap();
        Agent::open(folder)
    }

    /// An agent in a folder that an agent had before it.
    pub fn open(folder: TempDir) -> Agent {
        let mut child = command(EVLBI)
            .args(["agent", "--json", "--bind", "127.0.0.1:0", "--dir"])
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut text = String::new();
        for line in lines.map_while(Result::ok) {
            text += &line;
            if line == "}" {
                break;
            }
        }
        let ready: Value = serde_json::from_str(&text).expect("the agent says that it is there");
        let address = ready["url"]
            .as_str()
            .unwrap()
            .strip_prefix("https://")
            .unwrap();
        let _ = rustls::crypto::ring::default_provider().install_default();
        Agent {
            address: address.parse().unwrap(),
            ready,
            folder,
            child,
            runtime: Runtime::new().unwrap(),
            client: Client::builder()
                .tls_danger_accept_invalid_certs(true)
                .build()
                .unwrap(),
        }
    }

    /// Ends the agent as nothing can be caught, and starts it anew.
    pub fn killed_and_restarted(mut self) -> Agent {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap());
        Agent::open(folder)
    }

    pub fn token(&self, role: &str) -> String {
        let text = fs::read_to_string(self.folder.path().join("tokens").join(role)).unwrap();
        text.trim().to_owned()
    }

    pub fn recording(&self, name: &str) -> PathBuf {
        self.folder.path().join("recordings").join(name)
    }

    /// A request without a token.
    pub fn bare(&self, method: Method, path: &str) -> RequestBuilder {
        let _guard = self.runtime.enter();
        self.client
            .request(method, format!("https://{}{path}", self.address))
    }

    pub fn send(&self, request: RequestBuilder) -> Reply {
        self.runtime.block_on(async {
            let response = request.timeout(PATIENCE).send().await.expect("an answer");
            let status = response.status().as_u16();
            let text = response.text().await.unwrap();
            let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
            Reply { status, body }
        })
    }

    /// A request of the operator's.
    pub fn ask(&self, method: Method, path: &str, body: &Value) -> Reply {
        let request = self.bare(method, path).bearer_auth(self.token("operate"));
        match body {
            Value::Null => self.send(request),
            body => self.send(request.json(body)),
        }
    }

    pub fn get(&self, path: &str) -> Value {
        let reply = self.ask(Method::GET, path, &Value::Null);
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        reply.body
    }

    /// Starts a flow that must be started.
    #[track_caller]
    pub fn begin(&self, flow: &Value) -> Value {
        let reply = self.ask(Method::POST, "/api/v1/flows", flow);
        assert_eq!(reply.status, 201, "{}", reply.body);
        // The answer does not wait for a slow host.
        self.wait(reply.body["id"].as_str().unwrap(), |flow| {
            flow["state"] != "starting"
        })
    }

    /// Starts a flow and waits until it listens; says at which address.
    #[track_caller]
    pub fn listen(&self, flow: &Value) -> String {
        let id = self.begin(flow)["id"].as_str().unwrap().to_owned();
        let flow = self.wait(&id, |flow| flow["status"]["listening"].is_array());
        flow["status"]["listening"][0].as_str().unwrap().to_owned()
    }

    /// The same of a receiver, as what sends to it names it.
    #[track_caller]
    pub fn receive(&self, flow: &Value) -> String {
        format!("udp://{}", self.listen(flow))
    }

    /// Tries to start a flow that must not be started; says why it was not.
    #[track_caller]
    pub fn refused(&self, flow: &Value, status: u16) -> String {
        let reply = self.ask(Method::POST, "/api/v1/flows", flow);
        assert_eq!(reply.status, status, "{flow}: {}", reply.body);
        reply.body["error"].as_str().unwrap().to_owned()
    }

    pub fn flow(&self, id: &str) -> Value {
        self.get(&format!("/api/v1/flows/{id}"))
    }

    pub fn stop(&self, id: &str) {
        let reply = self.ask(
            Method::POST,
            &format!("/api/v1/flows/{id}/stop"),
            &json!({}),
        );
        assert_eq!(reply.status, 200, "{}", reply.body);
    }

    /// Waits until a flow is as it should be.
    #[track_caller]
    pub fn wait(&self, id: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let flow = self.flow(id);
            if is_so(&flow) {
                return flow;
            }
            assert!(begun.elapsed() < PATIENCE, "{flow}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Stops a flow, waits for its end, and gives its result.
    pub fn finish(&self, id: &str) -> Value {
        self.stop(id);
        let flow = self.wait(id, has_ended);
        assert_eq!(flow["end"]["outcome"], "stopped", "{flow}");
        self.get(&format!("/api/v1/flows/{id}/result"))
    }

    /// What happened, as texts.
    pub fn events(&self) -> Vec<String> {
        let events = self.get("/api/v1/events")["events"]
            .as_array()
            .unwrap()
            .clone();
        let text = |event: &Value| {
            let flow = event["flow"].as_str().unwrap_or("agent");
            format!("{flow}: {}", event["text"].as_str().unwrap())
        };
        events.iter().map(text).collect()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Flows go on without their agent.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for process in processes_in(&self.folder.path().join("flows")) {
            let _ = Command::new("kill").args(["-9", &process]).status();
        }
    }
}

/// The processes at work in or below this folder.
pub fn processes_in(folder: &Path) -> Vec<String> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let in_folder = all.filter(|entry| {
        fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder))
    });
    in_folder
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

pub fn has_ended(flow: &Value) -> bool {
    flow["state"] == "ended"
}

/// A count of what a flow receives, none until it says so.
pub fn received(flow: &Value, key: &str) -> u64 {
    flow["status"]["receiving"][0][key].as_u64().unwrap_or(0)
}

pub fn recv(id: &str, to: &str) -> Value {
    json!({"id": id, "command": "recv", "from": "udp://127.0.0.1:0", "to": to, "ring": "64MiB"})
}

pub fn send(id: &str, to: &str, rate: &str) -> Value {
    json!({"id": id, "command": "send", "source": "pattern:8032", "to": to, "rate": rate})
}
