//! What has to pass before a change lands, in the order in which it fails fastest.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{deps, setup};

pub fn run() -> Result<()> {
    let begun = Instant::now();
    // What the tests need is fetched while the processors compile.
    let setup = std::thread::spawn(|| setup::run(false));
    step("format", &["cargo", "fmt", "--all", "--check"])?;
    deps::check()?;
    let lints = [
        "cargo",
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    step("lints", &lints)?;
    let build = ["cargo", "test", "--workspace", "--no-run"];
    step("build of the tests", &build)?;
    match setup.join() {
        Ok(installed) => installed?,
        Err(_) => bail!("setup failed"),
    }
    // All that fails is worth knowing at once.
    let tests = ["cargo", "test", "--workspace", "--no-fail-fast"];
    step("tests", &tests)?;
    loom()?;
    rustdoc()?;
    println!(
        "ci: all steps passed in {:.0} s",
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Tests that take minutes and want the machine for themselves.
pub fn live() -> Result<()> {
    step(
        "live",
        &[
            "cargo",
            "test",
            "--package",
            "evlbi",
            "--test",
            "integration",
            "--no-fail-fast",
            "--",
            "--ignored",
            "--test-threads=1",
            "--show-output",
        ],
    )
}

/// The ring's hand-over, in every interleaving of its two threads.
fn loom() -> Result<()> {
    let mut command = Command::new("cargo");
    command
        .args(["test", "--release", "--package", "evlbi-net", "--lib"])
        .args(["--target-dir", "target/loom", "every_interleaving"])
        .env("RUSTFLAGS", "--cfg loom");
    timed("loom", &mut command)
}

fn rustdoc() -> Result<()> {
    let mut command = Command::new("cargo");
    command
        .args([
            "doc",
            "--workspace",
            "--no-deps",
            "--document-private-items",
        ])
        .env("RUSTDOCFLAGS", "-D warnings");
    timed("rustdoc", &mut command)
}

fn step(name: &str, command: &[&str]) -> Result<()> {
    timed(name, Command::new(command[0]).args(&command[1..]))
}

fn timed(name: &str, command: &mut Command) -> Result<()> {
    println!("ci: {name}");
    let start = Instant::now();
    let status = command
        .status()
        .with_context(|| format!("{name}: cannot start {command:?}"))?;
    if !status.success() {
        bail!("{name} failed: {command:?} ended with {status}");
    }
    println!(
        "ci: {name} passed in {:.0} s",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}
