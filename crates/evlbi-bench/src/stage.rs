//! Two network namespaces with a wire between them, and programs run at its ends.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

const SENDER: &str = "evlbi-bench-a";
const RECEIVER: &str = "evlbi-bench-b";
const SENDER_DEVICE: &str = "evb-a";
const RECEIVER_DEVICE: &str = "evb-b";
const ADDRESS: &str = "10.9.8.2";
const PORT: u16 = 2630;

/// The namespaces; they go when this does.
pub struct Stage(());

/// What the wire is like.
#[derive(Clone, Copy)]
pub struct Wire {
    pub mtu: u32,
    /// Whether super-packets cross it whole.
    pub segmentation: bool,
}

/// What a run carried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Carried {
    /// Data received, Gbit/s.
    pub received: f64,
    pub lost: u64,
    pub expected: u64,
    pub good: u64,
    pub corrupted: u64,
    /// Processor seconds of both ends for a gigabyte received.
    pub cpu_per_gb: f64,
}

impl Carried {
    pub fn lost_share(&self) -> f64 {
        self.lost as f64 / self.expected.max(1) as f64
    }
}

/// Builds what is measured.
pub fn build() -> Result<()> {
    run("cargo", &["build", "--release", "--package", "evlbi"])
}

impl Stage {
    pub fn new() -> Result<Stage> {
        remove();
        let stage = Stage(());
        for (program, args) in [
            ("ip", vec!["netns", "add", SENDER]),
            ("ip", vec!["netns", "add", RECEIVER]),
            (
                "ip",
                vec![
                    "link",
                    "add",
                    SENDER_DEVICE,
                    "netns",
                    SENDER,
                    "type",
                    "veth",
                    "peer",
                    "name",
                    RECEIVER_DEVICE,
                    "netns",
                    RECEIVER,
                ],
            ),
            (
                "ip",
                vec![
                    "-n",
                    SENDER,
                    "address",
                    "add",
                    "10.9.8.1/24",
                    "dev",
                    SENDER_DEVICE,
                ],
            ),
            (
                "ip",
                vec![
                    "-n",
                    RECEIVER,
                    "address",
                    "add",
                    "10.9.8.2/24",
                    "dev",
                    RECEIVER_DEVICE,
                ],
            ),
            ("ip", vec!["-n", SENDER, "link", "set", SENDER_DEVICE, "up"]),
            (
                "ip",
                vec!["-n", RECEIVER, "link", "set", RECEIVER_DEVICE, "up"],
            ),
        ] {
            run(program, &args)
                .context("the bench makes network namespaces: run it as root, with iproute2")?;
        }
        Ok(stage)
    }

    pub fn wire(&self, wire: Wire) -> Result<()> {
        let mtu = wire.mtu.to_string();
        for (namespace, device) in [(SENDER, SENDER_DEVICE), (RECEIVER, RECEIVER_DEVICE)] {
            run("ip", &["-n", namespace, "link", "set", device, "mtu", &mtu])?;
        }
        let state = if wire.segmentation { "on" } else { "off" };
        run(
            "ip",
            &[
                "netns",
                "exec",
                SENDER,
                "ethtool",
                "-K",
                SENDER_DEVICE,
                "tx-udp-segmentation",
                state,
            ],
        )
    }

    /// A program at the sending end.
    pub fn sender(&self, program: &str) -> Command {
        inside(SENDER, program)
    }

    /// A program at the receiving end.
    pub fn receiver(&self, program: &str) -> Command {
        inside(RECEIVER, program)
    }

    /// The device of the sending end.
    pub fn sending_device(&self) -> &'static str {
        SENDER_DEVICE
    }

    /// The device of the receiving end.
    pub fn receiving_device(&self) -> &'static str {
        RECEIVER_DEVICE
    }

    /// The address of the receiving end.
    pub fn address(&self) -> &'static str {
        ADDRESS
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        remove();
    }
}

fn remove() {
    for namespace in [SENDER, RECEIVER] {
        let _ = Command::new("ip")
            .args(["netns", "delete", namespace])
            .stderr(Stdio::null())
            .status();
    }
}

fn inside(namespace: &str, program: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, program]);
    command
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let status = Command::new(program)
        .args(args)
        .stdout(Stdio::null())
        .status()
        .with_context(|| format!("cannot start {program}"))?;
    if !status.success() {
        bail!("{program} {} ended with {status}", args.join(" "));
    }
    Ok(())
}

/// The program that is measured.
pub const EVLBI: &str = "target/release/evlbi";

/// A run of this project's program at `rate` Gbit/s, or as fast as it can.
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
    json_of(sender).context("evlbi send")?;
    let result = json_of(receiver).context("evlbi recv")?;
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

/// What two flows at once receive, Gbit/s.
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
        json_of(sender)?;
    }
    receivers
        .into_iter()
        .map(|receiver| Ok(json_of(receiver)?["rate_bps"].as_f64().unwrap_or(0.0) / 1e9))
        .collect()
}

fn start_receiver(stage: &Stage, port: u16, sink: &str) -> Result<Child> {
    let child = stage
        .receiver(EVLBI)
        .args(["recv", &format!("udp://{ADDRESS}:{port}"), "--to", sink])
        .args(["--idle", "1s", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start the receiver")?;
    wait_for_listener(port)?;
    Ok(child)
}

fn start_sender(
    stage: &Stage,
    port: u16,
    frame: usize,
    rate: Option<f64>,
    seconds: u32,
    options: &[&str],
) -> Result<Child> {
    let mut sender = stage.sender(EVLBI);
    sender.args(["send", &format!("pattern:{frame}")]);
    sender.args(["--to", &format!("udp://{ADDRESS}:{port}")]);
    sender.args(["--duration", &format!("{seconds}s"), "--json"]);
    match rate {
        Some(rate) => sender.args(["--rate", &format!("{rate}G")]),
        None => sender.arg("--max"),
    };
    sender
        .args(options)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start the sender")
}

/// Until someone has bound `port` at the receiving end.
pub fn wait_for_listener(port: u16) -> Result<()> {
    for _ in 0..200 {
        let output = inside(RECEIVER, "ss")
            .args(["-H", "-l", "-n", "-t", "-u"])
            .output()?;
        if String::from_utf8_lossy(&output.stdout).contains(&format!(":{port} ")) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    bail!("nobody listens on port {port} after 5 seconds")
}

fn json_of(child: Child) -> Result<Value> {
    let output = child.wait_with_output()?;
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("no JSON; it ended with {}", output.status))
}

/// What iperf3 says of a run with these options of its client, and the processor seconds of both ends.
pub fn iperf3_with(stage: &Stage, options: &[&str]) -> Result<(Value, f64)> {
    let before = children_cpu();
    let mut server = stage
        .receiver("iperf3")
        .args(["-s", "-1", "-p", "5201"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start iperf3: install it to compare")?;
    wait_for_listener(5201)?;
    let output = stage
        .sender("iperf3")
        .args(["-c", ADDRESS, "-p", "5201", "-J"])
        .args(options)
        .output()?;
    server.wait()?;
    let result = serde_json::from_slice(&output.stdout).context("no JSON from iperf3")?;
    Ok((result, children_cpu() - before))
}

/// A run of iperf3 at `rate` Gbit/s, or as fast as it can.
pub fn iperf3(stage: &Stage, payload: usize, rate: Option<f64>, seconds: u32) -> Result<Carried> {
    let rate = rate.map_or("0".to_string(), |rate| format!("{rate}G"));
    let [payload_asked, seconds] = [payload.to_string(), seconds.to_string()];
    let options = ["-u", "-b", &rate, "-l", &payload_asked, "-t", &seconds];
    let (result, cpu) = iperf3_with(stage, &options)?;
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

/// Processor seconds of all children that have ended.
pub fn children_cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name in brackets: state is field 3, cutime and cstime are 16 and 17, in ticks of 10 ms.
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
