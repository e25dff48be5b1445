//! Programs of a scene: start, timeouts, and their JSON.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use evlbi_testkit::clock::Shifted;
pub use evlbi_testkit::netns::HOSTS;
use evlbi_testkit::netns::{End, Pair, Wire};
use evlbi_testkit::{Room, Running, command};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Maximum duration of any run of a scene.
pub const LIMIT: Duration = Duration::from_secs(300);

/// Returns the program, built for speed.
pub fn program() -> Result<PathBuf> {
    std::fs::canonicalize(crate::stage::EVLBI).context(crate::stage::EVLBI)
}

/// Returns a command that runs it.
pub fn evlbi() -> Result<Command> {
    let mut command = command(program()?);
    command.env("EVLBI_TOKEN", TOKEN).stdin(Stdio::null());
    Ok(command)
}

pub const TOKEN: &str = "live";

/// Runs a program to its end, within [`LIMIT`].
pub fn output(command: &mut Command) -> Result<Output> {
    output_of(started(command)?)
}

/// Starts a program; its output is kept for [`output_of`].
pub fn started(command: &mut Command) -> Result<Child> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))
}

/// Returns the output of a program that was started with pipes.
pub fn output_of(mut child: Child) -> Result<Output> {
    let stdout = read_all(child.stdout.take().context("no pipe")?);
    let stderr = read_all(child.stderr.take().context("no pipe")?);
    let mut child = Running(child);
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.0.try_wait()? {
            break status;
        }
        if begun.elapsed() > LIMIT {
            bail!("a program has not ended after {} s", LIMIT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    Ok(Output {
        status,
        stdout: stdout.join().unwrap_or_default(),
        stderr: stderr.join().unwrap_or_default(),
    })
}

fn read_all(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

/// Returns the output of a program that must not fail.
pub fn printed(command: &mut Command) -> Result<String> {
    said(&output(command)?)
}

fn said(output: &Output) -> Result<String> {
    if !output.status.success() {
        // The counters of a path follow after that.
        let errors = String::from_utf8_lossy(&output.stderr);
        let errors: Vec<&str> = errors.lines().take(5).collect();
        bail!("{}: {}", output.status, errors.join("; "));
    }
    Ok(String::from_utf8(output.stdout.clone())?)
}

/// Returns the output as JSON.
pub fn json_of(output: &Output) -> Result<Value> {
    let text = said(output)?;
    serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))
}

/// Access to fields of results.
pub trait Fields {
    fn count(&self, name: &str) -> Result<u64>;
    fn real(&self, name: &str) -> Result<f64>;
    fn list(&self, name: &str) -> Result<&Vec<Value>>;
    fn text(&self, name: &str) -> Result<&str>;
}

impl Fields for Value {
    fn count(&self, name: &str) -> Result<u64> {
        let value = self[name].as_u64();
        value.with_context(|| format!("no count {name} in {}", brief(self)))
    }

    fn real(&self, name: &str) -> Result<f64> {
        let value = self[name].as_f64();
        value.with_context(|| format!("no number {name} in {}", brief(self)))
    }

    fn list(&self, name: &str) -> Result<&Vec<Value>> {
        let value = self[name].as_array();
        value.with_context(|| format!("no list {name} in {}", brief(self)))
    }

    fn text(&self, name: &str) -> Result<&str> {
        let value = self[name].as_str();
        value.with_context(|| format!("no text {name} in {}", brief(self)))
    }
}

/// Returns the scalars of a result.
pub fn brief(result: &Value) -> String {
    let Some(fields) = result.as_object() else {
        return result.to_string();
    };
    let scalars = fields
        .iter()
        .filter(|(_, value)| !value.is_array() && !value.is_object());
    let shown: Vec<String> = scalars
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    shown.join(" ")
}

/// A program that listens.
pub struct Listening {
    pub child: Running,
    pub addresses: Vec<SocketAddr>,
    stdout: JoinHandle<Vec<u8>>,
    stderr: JoinHandle<String>,
}

impl Listening {
    /// Starts a program and waits until it has printed `listening on ADDRESS` this many times.
    pub fn start(command: &mut Command, ports: usize) -> Result<Listening> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (heard, addresses) = mpsc::channel();
        let lines = BufReader::new(child.stderr.take().context("no pipe")?).lines();
        let stderr = std::thread::spawn(move || {
            let mut all = String::new();
            for line in lines.map_while(Result::ok) {
                if let Some(address) = line.strip_prefix("listening on ") {
                    let _ = heard.send(address.to_owned());
                }
                all += &line;
                all.push('\n');
            }
            all
        });
        let stdout = read_all(child.stdout.take().context("no pipe")?);
        let child = Running(child);
        let mut found = Vec::new();
        while found.len() < ports {
            match addresses.recv_timeout(LIMIT) {
                Ok(address) => found.push(address.parse()?),
                Err(_) => {
                    drop(child);
                    let said = stderr.join().unwrap_or_default();
                    bail!("a program does not listen: {said}");
                }
            }
        }
        Ok(Listening {
            child,
            addresses: found,
            stdout,
            stderr,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    pub fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    /// Waits for its end, and returns what it printed.
    pub fn finish(self) -> Result<String> {
        let (status, stdout, stderr) = self.end();
        ensure!(status.success(), "{status}: {stderr}");
        Ok(stdout)
    }

    /// Waits for its end, whatever its status; returns the status, standard output and standard error.
    pub fn end(mut self) -> (ExitStatus, String, String) {
        let status = self.child.wait();
        let stdout = self.stdout.join().unwrap_or_default();
        let stderr = self.stderr.join().unwrap_or_default();
        (
            status,
            String::from_utf8_lossy(&stdout).into_owned(),
            stderr,
        )
    }

    /// Stops it.
    pub fn stop(self) -> Result<String> {
        self.signal(Signal::SIGINT);
        self.finish()
    }
}

/// Creates two hosts with a wire between them, on which each datagram is a packet.
pub fn pair() -> Result<Pair> {
    Ok(Pair::new(&Wire {
        mtu: 9000,
        segmentation: false,
        join: false,
    })?)
}

/// Starts a responder on the remote host.
pub fn respond(pair: &Pair, more: &[&str]) -> Result<Listening> {
    respond_by(pair, evlbi()?, more)
}

/// Starts a responder on the remote host by a prepared command.
pub fn respond_by(pair: &Pair, mut responder: Command, more: &[&str]) -> Result<Listening> {
    responder
        .args(["respond", "--bind", &format!("{}:0", pair.far.v4)])
        .args(more);
    pair.far
        .namespace
        .run(|| Listening::start(&mut responder, 1))?
}

/// Runs a program on a host.
pub fn at(end: &End, command: &mut Command) -> Result<Output> {
    output_of(started_at(end, command)?)
}

/// Starts a program on a host.
pub fn started_at(end: &End, command: &mut Command) -> Result<Child> {
    end.namespace.run(|| started(command))?
}

/// Runs a probe of this kind from the local host.
pub fn ask(pair: &Pair, responder: &Listening, kind: &str, more: &[&str]) -> Result<Output> {
    let mut probe = evlbi()?;
    probe
        .args(["probe", kind, &responder.address().to_string(), "--json"])
        .args(more);
    at(&pair.near, &mut probe)
}

/// Returns the result of a probe that ends well, with its own responder.
pub fn asked(pair: &Pair, kind: &str, more: &[&str]) -> Result<Value> {
    let responder = respond(pair, &[])?;
    let output = ask(pair, &responder, kind, more)?;
    responder.stop()?;
    json_of(&output)
}

/// An emulated path in its own directory, and its results.
pub struct OnPath {
    pub room: Room,
    plan: String,
}

impl OnPath {
    pub fn new(plan: &str) -> OnPath {
        let room = Room::new();
        // Plans are named after their paths, so each needs its own name.
        let name = room.folder().file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        let file = format!("{}.toml", name.trim_start_matches('.'));
        let plan = room.write(&file, plan);
        OnPath { room, plan }
    }

    /// Returns a plan from the examples.
    pub fn example(name: &str) -> Result<String> {
        let file = format!("examples/{name}.toml");
        std::fs::read_to_string(&file).context(file)
    }

    /// Returns a command that runs a script on the plan's first host; `$E` is the program.
    pub fn command(&self, more: &[&str], script: &str) -> Result<Command> {
        let mut command = evlbi()?;
        command
            .args([
                "path",
                "run",
                &self.plan,
                "--json",
                &self.room.path("path.json"),
            ])
            .args(more)
            .args(["--", "sh", "-ec", script])
            .env("E", program()?)
            .env("XDG_STATE_HOME", self.room.folder())
            .current_dir(self.room.folder());
        Ok(command)
    }

    /// Runs a script, which must not fail.
    pub fn run(&self, more: &[&str], script: &str) -> Result<String> {
        printed(&mut self.command(more, script)?)
    }

    /// Returns the counters of the relay.
    pub fn state(&self) -> Value {
        self.room.json("path.json")
    }

    /// Returns the counters of one of its cells.
    pub fn cell(&self, direction: &str, name: &str) -> Result<Value> {
        let state = self.state();
        let cells = state.list("cells")?;
        let found = cells
            .iter()
            .find(|cell| cell["direction"] == direction && cell["cell"] == name);
        found
            .cloned()
            .with_context(|| format!("no {direction} {name} in {state}"))
    }

    /// Returns the losses outside of the cells: the hosts' queues were full.
    pub fn elsewhere(&self) -> u64 {
        let state = self.state();
        let hosts = state["hosts"].as_array().into_iter().flatten();
        let of = |host: &Value| {
            ["refused", "overrun", "overflown"]
                .iter()
                .filter_map(|name| host[*name].as_u64())
                .sum::<u64>()
        };
        hosts.map(of).sum()
    }
}

/// Returns the name that the report gives to a direction of a result.
pub fn label(direction: &str) -> &str {
    match direction {
        "there" => "outbound",
        "back" => "return",
        other => other,
    }
}

/// Returns a line of a script that waits for a condition, for at most a minute.
pub fn wait(condition: &str) -> String {
    format!("n=0; until {condition}; do n=$((n+1)); [ $n -lt 600 ]; sleep 0.1; done")
}

/// Returns a line of a script that starts a responder on another host of the path, with these options.
pub fn responder(host: &str, more: &str) -> String {
    responder_with(host, "", more)
}

/// Returns a line of a script that starts a responder with a wrong clock.
pub fn responder_with(host: &str, clock: &str, more: &str) -> String {
    format!(
        "$E path exec {host} -- {clock} $E respond {more} 2> respond.txt &\n{}\n",
        wait("grep -q listening respond.txt")
    )
}

/// Returns a wall clock that is `offset` seconds ahead and gains `skew` seconds a second.
pub fn shifted(room: &Room, offset: f64, skew: f64) -> Result<Shifted> {
    Shifted::new(room, offset, skew).context("no C compiler")
}
