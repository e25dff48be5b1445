//! `cargo xtask examples`: runs the examples of the libraries as their first lines describe, on loopback, and checks their output.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use evlbi_testkit::{Lines, Room, Running, cargo, command};

use crate::run::well;

/// Plan of two stations whose recordings the examples read.
const PLAN: &str = "xtask/golden/sky.toml";
const TOKEN: &str = "token";

/// Builds and runs all of them.
///
/// # Errors
/// Returns an error if one fails, or prints something unexpected.
pub fn run() -> Result<()> {
    // Built like the tests, so that nothing is compiled again.
    well(cargo().args(["test", "--quiet", "--workspace", "--no-run"]))?;
    let this = std::env::current_exe()?;
    let folder = this.parent().context("a folder of programs")?;
    let (program, examples) = (folder.join("evlbi"), folder.join("examples"));
    let room = Room::new();

    let sky = room.path("sky");
    printed(command(&program).args(["sky", PLAN, "--out", &sky]))?;
    let [ef, jb] = ["Ef", "Jb"].map(|station| format!("{sky}/{station}.vdif"));

    let copy = room.path("copy.vdif");
    let mut record = command(examples.join("record"));
    let (mut record, address) = listening(record.args(["udp://127.0.0.1:0", &copy]))?;
    let to = format!("udp://{address}");
    let sent = printed(command(examples.join("send")).args([&ef, &to, "2M"]))?;
    ensure!(sent.contains("not sent 0\n"), "send: {sent}");
    let recorded: String = Lines::of(record.0.stdout.take().context("a pipe")?)
        .map(|line| line + "\n")
        .collect();
    ensure!(record.wait().success(), "record: {recorded}");
    ensure!(recorded.contains("\nlost 0\n"), "record: {recorded}");
    ensure!(fs::read(&ef)? == fs::read(&copy)?, "{copy} is not {ef}");

    let fringe = printed(command(examples.join("correlate")).args([&ef, &jb]))?;
    ensure!(fringe.starts_with("Ef-Jb: SNR "), "correlate: {fringe}");

    let mut respond = command(&program);
    let respond = respond.args(["respond", "--bind", "127.0.0.1:0", "--token", TOKEN]);
    let (_responder, address) = listening(respond)?;
    let probed = printed(command(examples.join("probe")).args([&*address, TOKEN]))?;
    ensure!(probed.contains("\nlost "), "probe: {probed}");

    // In virtual time the losses are the same each time.
    let lossy = printed(&mut command(examples.join("lossy_path")))?;
    let expected = "sent 9690\nreceived 9587\nlost 103\nin the network 103\n";
    ensure!(lossy == expected, "lossy_path: {lossy}");
    let lowered = printed(&mut command(examples.join("lower_rate")))?;
    let is_right =
        lowered.contains("the application sends less\n") && lowered.contains("\nshed 0\n");
    ensure!(is_right, "lower_rate: {lowered}");
    println!(
        "examples: record, send, correlate, probe, lossy_path and lower_rate do what they say"
    );
    Ok(())
}

/// Returns the output of a program that ends well.
fn printed(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {}", Path::new(&name).display()))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {errors}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Starts a program, and returns the address at which it reports to listen.
fn listening(command: &mut Command) -> Result<(Running, String)> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut running = Running(command.stderr(Stdio::piped()).spawn()?);
    let mut lines = Lines::of(running.0.stderr.take().context("a pipe")?);
    let line = lines.find_map(|line| Some(line.strip_prefix("listening on ")?.to_owned()));
    let address = line.with_context(|| format!("{command:?} does not listen"))?;
    Ok((running, address))
}
