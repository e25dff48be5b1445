//! `cargo xtask bench analyse`: how fast captures are read, beside tshark.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;

use super::stage::{self, EVLBI, Stage, iperf3_with};
use super::{STANDARD, median, verdict};

/// Times as fast as tshark.
const AIM: f64 = 10.0;

#[derive(Args)]
pub struct AnalyseArgs {
    /// Seconds that are captured
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// Runs of each figure
    #[arg(long, default_value_t = 5)]
    runs: usize,
}

/// A transfer whose every segment is a packet, of which the headers are captured.
pub fn run(args: &AnalyseArgs) -> Result<()> {
    stage::build()?;
    let stage = Stage::new()?;
    stage.wire(STANDARD)?;
    let cut = ["-K", stage.sending_device(), "tso", "off", "gso", "off"];
    ensure!(
        stage.sender("ethtool").args(cut).status()?.success(),
        "ethtool cannot switch segmentation off"
    );
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("flow.pcap");
    let file = path.to_str().context("a path that can be written")?;
    let mut dump = stage
        .receiver("tcpdump")
        .args([
            "-i",
            stage.receiving_device(),
            "-s",
            "128",
            "-B",
            "262144",
            "-Z",
            "root",
            "-w",
            file,
        ])
        .stderr(Stdio::null())
        .spawn()
        .context("tcpdump")?;
    thread::sleep(Duration::from_secs(1));
    iperf3_with(&stage, &["-C", "cubic", "-t", &args.seconds.to_string()])?;
    thread::sleep(Duration::from_secs(2));
    Command::new("kill").arg(dump.id().to_string()).status()?;
    dump.wait()?;
    let result = Command::new(EVLBI)
        .args(["analyse", file, "--json"])
        .stderr(Stdio::null())
        .output()?;
    let result: Value =
        serde_json::from_slice(&result.stdout).context("no JSON from evlbi analyse")?;
    let packets = result["packets"].as_f64().unwrap_or(0.0);
    let size = path.metadata()?.len() as f64;
    println!("  {packets:.0} packets, {:.1} MB", size / 1e6);
    let timed = |command: &mut Command| -> Result<f64> {
        let since = Instant::now();
        let status = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        ensure!(status.success(), "{command:?} failed");
        Ok(packets / since.elapsed().as_secs_f64())
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..args.runs {
        ours.push(timed(
            Command::new(EVLBI).args(["analyse", file, "--json"]),
        )?);
        theirs.push(timed(
            Command::new("tshark").args(["-r", file, "-q", "-z", "conv,tcp"]),
        )?);
    }
    let (ours, theirs) = (median(&mut ours), median(&mut theirs));
    println!(
        "  evlbi analyse {:>9.0} packets/s, {:.2} GB/s",
        ours,
        ours * size / packets / 1e9
    );
    println!("  tshark        {theirs:>9.0} packets/s");
    println!(
        "  {:.1} times tshark   aim {AIM}: {}",
        ours / theirs,
        verdict(ours / theirs >= AIM)
    );
    Ok(())
}
