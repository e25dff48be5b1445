//! Two network namespaces with a wire between them, and programs that run in them. The namespaces have no names, so they end with the
//! bench, however it ends. The programs are marked, so that the next bench or test run ends those that a killed one has left.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use evlbi_testkit::netns::{self, End, Pair};
use evlbi_testkit::{Running, command};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::table::tools;

/// Port that streams are sent to.
pub const PORT: u16 = 2630;
const IPERF3_PORT: u16 = 5201;

/// The measured program.
pub const EVLBI: &str = "target/release/evlbi";

/// The namespaces, removed on drop.
pub struct Stage {
    pair: Pair,
    address: String,
}

/// Properties of the wire.
#[derive(Clone, Copy)]
pub struct Wire {
    pub mtu: u32,
    /// Whether super-packets cross it whole.
    pub segmentation: bool,
}

/// Data carried by a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Carried {
    /// Data received, in Gbit/s.
    pub received: f64,
    pub lost: u64,
    pub expected: u64,
    pub good: u64,
    pub corrupted: u64,
    /// CPU seconds of both hosts per received gigabyte.
    pub cpu_per_gb: f64,
}

impl Carried {
    pub fn lost_share(&self) -> f64 {
        self.lost as f64 / self.expected.max(1) as f64
    }
}

/// Builds the measured program.
pub fn build() -> Result<()> {
    let build = ["build", "--release", "--package", "evlbi"];
    let status = evlbi_testkit::cargo()
        .args(build)
        .status()
        .context("cargo")?;
    ensure!(status.success(), "cargo build ended with {status}");
    Ok(())
}

impl Stage {
    pub fn new() -> Result<Stage> {
        tools(&["ip", "ss", "ethtool", "nsenter"])?;
        let pair = Pair::new(&netns::Wire::default())
            .context("the bench makes network namespaces: run it as root")?;
        let address = pair.far.v4.to_string();
        Ok(Stage { pair, address })
    }

    pub fn wire(&self, wire: Wire) -> Result<()> {
        let mtu = wire.mtu.to_string();
        let state = if wire.segmentation { "on" } else { "off" };
        for End {
            namespace, device, ..
        } in [&self.pair.near, &self.pair.far]
        {
            namespace.command("ip", &["link", "set", device, "mtu", &mtu])?;
        }
        let End {
            namespace, device, ..
        } = &self.pair.near;
        namespace.command("ethtool", &["-K", device, "tx-udp-segmentation", state])?;
        Ok(())
    }

    /// Returns a command that runs a program on the sending host.
    pub fn sender(&self, program: &str) -> Command {
        inside(&self.pair.near, program)
    }

    /// Returns a command that runs a program on the receiving host.
    pub fn receiver(&self, program: &str) -> Command {
        inside(&self.pair.far, program)
    }

    /// Returns the device of the sending host.
    pub fn sending_device(&self) -> &'static str {
        self.pair.near.device
    }

    /// Returns the device of the receiving host.
    pub fn receiving_device(&self) -> &'static str {
        self.pair.far.device
    }

    /// Returns the address of the receiving host.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Starts a program on the receiving host that listens on a port.
    pub fn listener(&self, port: u16, program: &str, arguments: &[&str]) -> Result<Program> {
        self.listener_at(&format!(":{port} "), program, arguments)
    }

    /// Starts a program that listens on anything that ss prints.
    pub fn listener_at(&self, at: &str, program: &str, arguments: &[&str]) -> Result<Program> {
        let mut command = self.receiver(program);
        let mut listener = Program::start(program, command.args(arguments))?;
        for _ in 0..400 {
            let output = self.receiver("ss").args(["-H", "-lntux0"]).output()?;
            if String::from_utf8_lossy(&output.stdout).contains(at) {
                return Ok(listener);
            }
            if let Some(status) = listener.running.0.try_wait()? {
                bail!("{program} ended with {status}: {}", listener.said()?);
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        bail!(
            "{program} does not listen on {at} after 10 seconds: {}",
            listener.said()?
        )
    }
}

/// Returns a command that runs in a namespace, which has no name and is found by its descriptor.
fn inside(end: &End, program: &str) -> Command {
    let descriptor = end.namespace.file().as_raw_fd();
    let mut command = command("nsenter");
    command.arg(format!(
        "--net=/proc/{}/fd/{descriptor}",
        std::process::id()
    ));
    command.arg("--").arg(path_of(program));
    command
}

/// Returns the path of a program: `IPERF3` may name another iperf3 than the installed one.
pub fn path_of(program: &str) -> String {
    match std::env::var("IPERF3") {
        Ok(path) if program == "iperf3" => path,
        _ => program.to_owned(),
    }
}

/// A running program, ended on drop. Its output is kept.
pub struct Program {
    name: String,
    running: Running,
    output: File,
    errors: File,
}

impl Program {
    pub fn start(name: &str, command: &mut Command) -> Result<Program> {
        let (output, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
        command.stdin(Stdio::null());
        command
            .stdout(output.try_clone()?)
            .stderr(errors.try_clone()?);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Program {
            name: name.to_owned(),
            running: Running(child),
            output,
            errors,
        })
    }

    /// Waits for a successful end and returns its output.
    pub fn finish(mut self) -> Result<String> {
        let status = self.running.0.wait()?;
        let said = self.said()?;
        ensure!(
            status.success(),
            "{} ended with {status}: {said}",
            self.name
        );
        read(&mut self.output)
    }

    /// Returns its JSON, however it ended: a run with losses has an exit status of its own.
    pub fn json(mut self) -> Result<Value> {
        let status = self.running.0.wait()?;
        let text = read(&mut self.output)?;
        let said = self.said()?;
        serde_json::from_str(&text).with_context(|| {
            format!(
                "{} ended with {status} and printed no JSON: {said}",
                self.name
            )
        })
    }

    /// Asks it to end, and waits.
    pub fn end(mut self) -> Result<ExitStatus> {
        if self.running.0.try_wait()?.is_none() {
            self.running.signal(Signal::SIGINT);
        }
        Ok(self.running.0.wait()?)
    }

    /// Returns the last lines of its standard error.
    fn said(&mut self) -> Result<String> {
        let text = read(&mut self.errors)?;
        let lines: Vec<&str> = text.trim().lines().rev().take(3).collect();
        Ok(lines.into_iter().rev().collect::<Vec<_>>().join("; "))
    }
}

fn read(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Runs this project's program at `rate` Gbit/s, or as fast as it can.
pub fn ours(
    stage: &Stage,
    frame: usize,
    rate: Option<f64>,
    seconds: u32,
    sink: &str,
    send_options: &[&str],
) -> Result<Carried> {
    let before = children_cpu();
    let receiver = start_receiver(stage, PORT, sink)?;
    let sender = start_sender(stage, PORT, frame, rate, seconds, send_options)?;
    sender.json()?;
    let result = receiver.json()?;
    let bytes = result["bytes"].as_f64().unwrap_or(0.0);
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    Ok(Carried {
        received: result["rate_bps"].as_f64().unwrap_or(0.0) / 1e9,
        lost: number(&result["lost"]),
        expected: number(&result["expected"]),
        good: number(&result["check"]["good"]),
        corrupted: number(&result["check"]["corrupted"]),
        cpu_per_gb: (children_cpu() - before) / (bytes / 1e9),
    })
}

/// Returns what two simultaneous flows receive, in Gbit/s.
pub fn two_at_once(stage: &Stage, frame: usize, seconds: u32) -> Result<Vec<f64>> {
    let ports = [PORT, PORT + 1];
    let mut receivers = Vec::new();
    for port in ports {
        receivers.push(start_receiver(stage, port, "null")?);
    }
    let mut senders = Vec::new();
    for port in ports {
        senders.push(start_sender(stage, port, frame, None, seconds, &[])?);
    }
    for sender in senders {
        sender.json()?;
    }
    receivers
        .into_iter()
        .map(|receiver| Ok(receiver.json()?["rate_bps"].as_f64().unwrap_or(0.0) / 1e9))
        .collect()
}

/// Returns what one program receives from another of the same host, as fast as they can, in Gbit/s: over UDP on loopback, or over a
/// Unix socket.
pub fn on_one_host(stage: &Stage, is_unix: bool, frame: usize, seconds: u32) -> Result<f64> {
    let path = format!("/tmp/evlbi-bench-{}", std::process::id());
    let (url, at) = match is_unix {
        true => (format!("unix://{path}"), path),
        false => (format!("udp://127.0.0.1:{PORT}"), format!(":{PORT} ")),
    };
    let arguments = ["recv", &url, "--to", "null", "--idle", "1s", "--json"];
    let receiver = stage.listener_at(&at, EVLBI, &arguments)?;
    let mut sender = stage.receiver(EVLBI);
    sender.args(["send", &format!("pattern:{frame}"), "--to", &url, "--max"]);
    sender.args(["--duration", &format!("{seconds}s"), "--json"]);
    Program::start("evlbi send", &mut sender)?.json()?;
    Ok(receiver.json()?["rate_bps"].as_f64().unwrap_or(0.0) / 1e9)
}

/// Starts this project's program as the receiver of a port.
pub fn start_receiver(stage: &Stage, port: u16, sink: &str) -> Result<Program> {
    let from = format!("udp://{}:{port}", stage.address());
    let arguments = [
        "recv", &from, "--to", sink, "--force", "--idle", "1s", "--json",
    ];
    stage.listener(port, EVLBI, &arguments)
}

/// Starts this project's program as a sender, at `rate` Gbit/s, or as fast as it can.
pub fn start_sender(
    stage: &Stage,
    port: u16,
    frame: usize,
    rate: Option<f64>,
    seconds: u32,
    options: &[&str],
) -> Result<Program> {
    let mut sender = stage.sender(EVLBI);
    sender.args(["send", &format!("pattern:{frame}")]);
    sender.args(["--to", &format!("udp://{}:{port}", stage.address())]);
    sender.args(["--duration", &format!("{seconds}s"), "--json"]);
    match rate {
        Some(rate) => sender.args(["--rate", &format!("{rate}G")]),
        None => sender.arg("--max"),
    };
    Program::start("evlbi send", sender.args(options))
}

/// Returns iperf3's report of a run with these client options, and the CPU seconds of both hosts.
pub fn iperf3_with(stage: &Stage, options: &[&str]) -> Result<(Value, f64)> {
    let before = children_cpu();
    let server = stage.listener(IPERF3_PORT, "iperf3", &["-s", "-1"])?;
    let mut client = stage.sender("iperf3");
    client.args(["-c", stage.address(), "-J"]).args(options);
    let result = Program::start("iperf3", &mut client)?.json()?;
    if let Some(error) = result["error"].as_str() {
        bail!("iperf3: {error}");
    }
    server.finish()?;
    Ok((result, children_cpu() - before))
}

/// Runs iperf3 at `rate` Gbit/s, or as fast as it can, with more client options.
pub fn iperf3(
    stage: &Stage,
    payload: usize,
    rate: Option<f64>,
    seconds: u32,
    more: &[&str],
) -> Result<Carried> {
    let rate = rate.map_or("0".to_string(), |rate| format!("{rate}G"));
    let [payload_asked, seconds] = [payload.to_string(), seconds.to_string()];
    let options = ["-u", "-b", &rate, "-l", &payload_asked, "-t", &seconds];
    let (result, cpu) = iperf3_with(stage, &[&options, more].concat())?;
    let sum = &result["end"]["sum"];
    let seconds = sum["seconds"].as_f64().unwrap_or(1.0);
    let sent = sum["packets"].as_u64().unwrap_or(0);
    let lost = sum["lost_packets"].as_u64().unwrap_or(0);
    let bytes = (sent.saturating_sub(lost) * payload as u64) as f64;
    Ok(Carried {
        received: bytes * 8.0 / seconds / 1e9,
        lost,
        expected: sent,
        good: 0,
        corrupted: 0,
        cpu_per_gb: cpu / (bytes / 1e9),
    })
}

/// Returns the option for bursts of iperf3, if it has it (from 3.21 on).
pub fn iperf3_trains() -> &'static [&'static str] {
    let help = Command::new(path_of("iperf3")).arg("--help").output();
    match help {
        Ok(help) if String::from_utf8_lossy(&help.stdout).contains("--gsro") => &["--gsro"],
        _ => &[],
    }
}

/// Returns the CPU seconds of all children that have ended.
pub fn children_cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name in brackets: state is field 3, cutime and cstime are 16 and 17, in ticks of 10 ms.
    let fields: Vec<&str> = text
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().collect())
        .unwrap_or_default();
    let ticks = |field: usize| {
        fields
            .get(field - 3)
            .and_then(|ticks| ticks.parse::<f64>().ok())
    };
    (ticks(16).unwrap_or(0.0) + ticks(17).unwrap_or(0.0)) / 100.0
}
