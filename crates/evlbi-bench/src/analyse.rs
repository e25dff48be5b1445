//! `cargo xtask bench analyse`: speed of reading captures, compared with tshark.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use evlbi_testkit::Room;

use crate::net::STANDARD;
use crate::stage::{EVLBI, Program, Stage, iperf3_with};
use crate::table::{Aim, Common, Figure, Scene, Table, median, play, tools};

/// Required speed, in multiples of tshark's.
const AIM: f64 = 10.0;

#[derive(Args)]
pub struct AnalyseArgs {
    /// Seconds that are captured
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// Runs of each figure
    #[arg(long, default_value_t = 5)]
    runs: usize,
    #[command(flatten)]
    common: Common,
}

pub fn run(args: &AnalyseArgs) -> Result<()> {
    let stage = Stage::new()?;
    stage.wire(STANDARD)?;
    let scenes: [(&str, Scene<Stage, AnalyseArgs>); 1] = [("one connection", connection)];
    play("analyse", &scenes, &args.common, String::new, &stage, args)
}

fn connection(stage: &Stage, args: &AnalyseArgs, table: &mut Table) -> Result<()> {
    tools(&["tcpdump", "iperf3"])?;
    let room = Room::new();
    let path = &*room.path("flow.pcap");
    capture(stage, args, path)?;
    let read = [EVLBI, "analyse", path, "--json"];
    let mut evlbi = Command::new(read[0]);
    let result = Program::start("evlbi analyse", evlbi.args(&read[1..]))?.json()?;
    let packets = result["packets"].as_f64().unwrap_or(0.0);
    let size = std::fs::metadata(path)?.len() as f64;
    eprintln!("  {packets:.0} packets, {:.1} MB", size / 1e6);
    let has_peer = table.has_peer("tshark");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..args.runs {
        ours.push(packets / seconds(&read)?);
        if has_peer {
            let read = ["tshark", "-r", path, "-q", "-z", "conv,tcp"];
            theirs.push(packets / seconds(&read)?);
        }
    }
    let ours = median(&mut ours);
    let mut figure = Figure::new("captured headers", ours / 1e3, "thousand/s");
    if has_peer {
        figure = figure.beside("tshark", median(&mut theirs) / 1e3);
    }
    table.add(figure.aim(Aim::RatioAtLeast(AIM)));
    let what = "captured headers, bytes";
    table.add(Figure::new(what, ours * size / packets / 1e9, "GB/s"));
    Ok(())
}

/// Captures the headers of a transfer in which every segment is a packet.
fn capture(stage: &Stage, args: &AnalyseArgs, file: &str) -> Result<()> {
    let mut cut = stage.sender("ethtool");
    cut.args(["-K", stage.sending_device(), "tso", "off", "gso", "off"]);
    Program::start("ethtool", &mut cut)?.finish()?;
    let mut dump = stage.receiver("tcpdump");
    dump.args(["-i", stage.receiving_device(), "-s", "128", "-B", "262144"]);
    let dump = Program::start("tcpdump", dump.args(["-Z", "root", "-w"]).arg(file))?;
    thread::sleep(Duration::from_secs(1));
    iperf3_with(stage, &["-C", "cubic", "-t", &args.seconds.to_string()])?;
    thread::sleep(Duration::from_secs(2));
    let ended = dump.end()?;
    ensure!(ended.success(), "tcpdump ended with {ended}");
    Ok(())
}

/// Returns the duration of a command in seconds.
fn seconds(command: &[&str]) -> Result<f64> {
    let since = Instant::now();
    let status = Command::new(command[0])
        .args(&command[1..])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(since.elapsed().as_secs_f64())
}
