//! An agent under test, and its client.

use std::fs;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use evlbi_testkit::address::own_address;
use evlbi_testkit::result::{assert_schema, read};
use evlbi_testkit::until::WATCHDOG;
use evlbi_testkit::{Lines, Room, Running, command, until, until_some};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::result::number;

pub const EVLBI: &str = env!("CARGO_BIN_EXE_evlbi");

/// A running agent.
pub struct Agent {
    pub room: Room,
    child: Running,
    pub address: SocketAddr,
    pub ready: Value,
    runtime: Runtime,
    client: Client,
}

/// Response of an agent.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub body: Value,
}

impl Agent {
    /// An agent in a directory of its own, with these settings in addition to the defaults.
    pub fn start(settings: &str) -> Agent {
        let room = Room::new();
        room.write("agent.toml", settings);
        Agent::open(room)
    }

    /// An agent in a directory that an earlier agent used.
    pub fn open(room: Room) -> Agent {
        Agent::by(command(EVLBI), room)
    }

    /// An agent whose user has this config file.
    pub fn configured(config: &str) -> Agent {
        let room = Room::new();
        let mut starts = command(EVLBI);
        starts.env("EVLBI_CONFIG", room.write("config.toml", config));
        Agent::by(starts, room)
    }

    /// The same, with a limit on its open files and connections. Its standard error goes to the file `said`.
    pub fn limited(settings: &str, files: usize) -> Agent {
        let room = Room::new();
        room.write("agent.toml", settings);
        let mut starts = command("sh");
        starts
            .args(["-c", &format!("ulimit -n {files}; exec \"$0\" \"$@\"")])
            .arg(EVLBI)
            .stderr(fs::File::create(room.path("said")).unwrap());
        Agent::by(starts, room)
    }

    fn by(mut starts: Command, room: Room) -> Agent {
        starts
            .args(["agent", "--json", "--bind", "127.0.0.1:0", "--dir"])
            .arg(room.folder());
        let (child, ready) = ready(starts);
        let address = ready["url"].as_str().unwrap();
        let address = address.strip_prefix("https://").unwrap();
        write_sky(&room, "recordings/sky.toml");
        Agent {
            address: address.parse().unwrap(),
            ready,
            room,
            child,
            runtime: Runtime::new().unwrap(),
            client: client(),
        }
    }

    /// Kills the agent, with a signal that cannot be caught.
    pub fn kill(&mut self) {
        self.child.0.kill().unwrap();
        self.child.0.wait().unwrap();
    }

    /// Sends the agent this signal, and waits until it has ended.
    pub fn end_by(&mut self, signal: Signal) -> std::process::ExitStatus {
        self.child.signal(signal);
        self.child.wait()
    }

    /// The same, and restarts it.
    pub fn killed_and_restarted(mut self) -> Agent {
        self.kill();
        self.restarted()
    }

    /// Restarts an agent that was killed.
    pub fn restarted(mut self) -> Agent {
        let room = std::mem::replace(&mut self.room, Room::new());
        Agent::open(room)
    }

    pub fn token(&self, role: &str) -> String {
        let text = self.room.text(&format!("tokens/{role}"));
        text.trim().to_owned()
    }

    pub fn recording(&self, name: &str) -> PathBuf {
        self.room.folder().join("recordings").join(name)
    }

    /// A request without a token.
    pub fn bare(&self, method: Method, path: &str) -> RequestBuilder {
        let _guard = self.runtime.enter();
        self.client
            .request(method, format!("https://{}{path}", self.address))
    }

    pub fn send(&self, request: RequestBuilder) -> Reply {
        self.runtime.block_on(async {
            let response = request.send().await.expect("an answer");
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

    /// Starts a flow, which must succeed.
    #[track_caller]
    pub fn begin(&self, flow: &Value) -> Value {
        let reply = self.ask(Method::POST, "/api/v1/flows", flow);
        assert_eq!(reply.status, 201, "{}", reply.body);
        // The answer does not wait for a slow host.
        self.wait(reply.body["id"].as_str().unwrap(), |flow| {
            flow["state"] != "starting"
        })
    }

    /// Starts a flow and waits until it listens; returns the address.
    #[track_caller]
    pub fn listen(&self, flow: &Value) -> String {
        let id = self.begin(flow)["id"].as_str().unwrap().to_owned();
        let flow = self.wait(&id, |flow| flow["status"]["listening"].is_array());
        flow["status"]["listening"][0].as_str().unwrap().to_owned()
    }

    /// The same for a receiver, as a URL for its sender.
    #[track_caller]
    pub fn receive(&self, flow: &Value) -> String {
        format!("udp://{}", self.listen(flow))
    }

    /// Tries to start a flow that must not be started; returns the reason.
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

    /// Waits until a flow meets a condition.
    #[track_caller]
    pub fn wait(&self, id: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut last = Last(Value::Null);
        until_some(&format!("{id} is not so yet"), || {
            last.0 = self.flow(id);
            is_so(&last.0).then(|| last.0.clone())
        })
    }

    /// Stops a flow, waits for its end, and gives its result.
    pub fn finish(&self, id: &str) -> Value {
        self.stop(id);
        let flow = self.wait(id, has_ended);
        assert_eq!(flow["end"]["outcome"], "stopped", "{flow}");
        self.get(&format!("/api/v1/flows/{id}/result"))
    }

    /// Returns all events, as texts.
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

/// Returns a client of agents and web UIs that accepts any certificate.
fn client() -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .tls_danger_accept_invalid_certs(true)
        // Only a missing response takes longer.
        .timeout(WATCHDOG)
        // An agent closes an idle connection: a request at that moment would get no answer.
        .pool_idle_timeout(Duration::from_secs(1))
        .build()
        .unwrap()
}

/// Returns the answer of an address to a client with this token; none if nobody answers, or not in JSON.
pub fn asked(url: &str, token: &str) -> Option<Value> {
    let runtime = Runtime::new().unwrap();
    let text = runtime.block_on(async {
        let request = client().get(url).bearer_auth(token);
        request.send().await.ok()?.text().await.ok()
    });
    serde_json::from_str(&text?).ok()
}

/// The last state of a flow, which is printed when a wait fails.
struct Last(Value);

impl Drop for Last {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Flows continue without their agent.
        let _ = self.child.0.kill();
        let _ = self.child.0.wait();
        for process in processes_in(&self.room.folder().join("flows")) {
            let _ = kill(process, Signal::SIGKILL);
        }
    }
}

/// Starts an agent that prints as JSON that it is ready, and waits until it has.
pub fn ready(mut starts: Command) -> (Running, Value) {
    let mut child = starts
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map(Running)
        .unwrap();
    let mut text = String::new();
    for line in Lines::of(child.0.stdout.take().unwrap()) {
        text += &line;
        if line == "}" {
            break;
        }
    }
    let ready = read(text);
    assert_schema(&ready, "evlbi.agent/1");
    (child, ready)
}

/// The processes at work in or below this directory.
pub fn processes_in(folder: &Path) -> Vec<Pid> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let in_folder = all.filter(|entry| {
        fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder))
    });
    let processes = in_folder.map(|entry| entry.file_name().into_string().unwrap());
    processes
        .filter_map(|process| process.parse().ok().map(Pid::from_raw))
        .collect()
}

pub fn has_ended(flow: &Value) -> bool {
    flow["state"] == "ended"
}

/// A count of a flow's received data, 0 until it reports it.
pub fn received(flow: &Value, key: &str) -> u64 {
    flow["status"]["receiving"][0][key].as_u64().unwrap_or(0)
}

/// A count of a flow's sent data, 0 until it reports it.
pub fn sent(flow: &Value, key: &str) -> u64 {
    flow["status"]["sending"][key].as_u64().unwrap_or(0)
}

pub fn recv(id: &str, to: &str) -> Value {
    json!({"id": id, "command": "recv", "from": "udp://127.0.0.1:0", "to": to, "ring": "64MiB"})
}

pub fn send(id: &str, to: &str, rate: &str) -> Value {
    json!({"id": id, "command": "send", "source": "pattern:8032", "to": to, "rate": rate})
}

/// A target whose datagrams nobody reads. While the socket exists, no other process gets its port.
pub fn unread() -> (UdpSocket, String) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = format!("udp://{}", socket.local_addr().unwrap());
    (socket, to)
}

/// Length of a frame of the sky, in bytes.
pub const SKY_FRAME: u64 = 2032;
/// Frames of each station of the sky: the buffer of any receiver holds all of them, so that none is lost however long it stalls.
pub const SKY_FRAMES: u64 = 75;
/// Two frames of the sky a second.
pub const SLOW: &str = "32k";
/// One frame of the sky at once, and the last after hours: the test is over before that.
pub const STILL: &str = "100";
/// Correlation of the noise of the sky's stations.
pub const CORRELATION: f64 = 0.3;

/// The plan of a sky over three stations.
pub fn write_sky(room: &Room, name: &str) -> String {
    assert!(
        evlbi_testkit::buffer::holds(1016) as u64 >= 2 * SKY_FRAMES,
        "a receiver holds fewer datagrams than these tests send (net.core.rmem_max, net.core.netdev_max_backlog)"
    );
    let stations = ["Ef", "Jb", "On"].map(|name| format!("[[station]]\nname = \"{name}\"\n"));
    let plan = format!(
        "start = \"2026-05-01T12:00:00Z\"\nduration = 0.3\nseed = 7\nsample_rate = 2_000_000\nbits = 2\nchannels = 1\nthreads = 1
         complex = false\npayload = 2000\nedv = 1\ncorrelation = {CORRELATION}\nsky_frequency = 4_980_000_000\n{}",
        stations.concat()
    );
    room.write(name, plan)
}

/// Sends the sky's first station, once.
pub fn sky(id: &str, to: &str, rate: &str) -> Value {
    json!({"id": id, "command": "send", "source": "sky:sky.toml/Ef", "to": to, "rate": rate})
}

/// Sends it until it is stopped. At [`SLOW`] the buffer of a receiver holds what is sent in half a minute.
pub fn endless(id: &str, to: &str, rate: &str) -> Value {
    let mut flow = sky(id, to, rate);
    flow["repeat"] = json!(6000);
    flow
}

/// Flows that run while an agent is busy: datagrams, and a stream of bytes as fast as a busy host can send it.
pub struct Beside<'a>(&'a Agent);

impl Beside<'_> {
    /// Starts flows `ef-1` and `from`, `bytes` and `all`.
    pub fn begin(agent: &Agent) -> Beside<'_> {
        let to = agent.receive(&recv("ef-1", "null"));
        agent.begin(&sky("from", &to, SLOW));
        let mut bytes = recv("bytes", "check");
        bytes["from"] = json!("tcp://127.0.0.1:0");
        let to = format!("tcp://{}", agent.listen(&bytes));
        agent.begin(&send("all", &to, "50M"));
        Beside(agent)
    }

    /// Checks that all sent data have arrived.
    pub fn end(self) {
        let agent = self.0;
        // A stop discards data that a connection does not take at that moment: so it follows when there are none.
        let slower = json!({"revision": 1, "rate": STILL});
        let reply = agent.ask(Method::PATCH, "/api/v1/flows/all", &slower);
        assert_eq!(reply.status, 200, "{}", reply.body);
        until("the connection is empty", || {
            let [flow, other] = ["all", "bytes"].map(|id| agent.flow(id));
            sent(&flow, "rate_asked_bps").to_string() == STILL
                && sent(&flow, "bytes") == received(&other, "bytes")
        });
        let [datagrams, stream] = ["from", "all"].map(|sender| {
            agent.stop(sender);
            agent.wait(sender, has_ended);
            agent.get(&format!("/api/v1/flows/{sender}/result"))
        });
        assert_eq!(
            (number(&datagrams, "not_sent"), number(&stream, "not_sent")),
            (0, 0)
        );
        let all = number(&datagrams, "sent");
        agent.wait("ef-1", |flow| received(flow, "unique") == all);
        let received = agent.finish("ef-1");
        assert_eq!(
            (number(&received, "unique"), number(&received, "lost")),
            (all, 0)
        );
        // It ends with its connection.
        let end = agent.wait("bytes", has_ended);
        assert_eq!(end["end"]["outcome"], "finished", "{end}");
        let received = agent.get("/api/v1/flows/bytes/result");
        assert_eq!(
            number(&received["check"], "good"),
            number(&stream, "frames"),
            "{}",
            received["check"]
        );
        assert_eq!(number(&received, "bytes"), number(&stream, "bytes"));
    }
}

/// Ports of a separate address that are free for UDP and TCP.
pub fn free_ports<const N: usize>() -> [SocketAddr; N] {
    let address = own_address();
    // Held until all are found, so that they differ.
    let bound = [(); N].map(|()| {
        let udp = UdpSocket::bind((address, 0)).unwrap();
        let tcp = TcpListener::bind(udp.local_addr().unwrap()).expect("nobody else is there");
        (udp, tcp)
    });
    bound.map(|(udp, _)| udp.local_addr().unwrap())
}
