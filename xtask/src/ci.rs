//! What has to pass before a change lands, in the order in which it fails fastest.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::deps;

/// Seconds that each fuzz target runs.
const FUZZ_SECONDS: u32 = 15;

pub fn run() -> Result<()> {
    step("format", &["cargo", "fmt", "--all", "--check"])?;
    deps::check()?;
    step(
        "lints",
        &[
            "cargo",
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
    )?;
    tests()?;
    live()?;
    loom()?;
    rustdoc()?;
    book()?;
    fuzz()?;
    println!("ci: all steps passed");
    Ok(())
}

/// One at a time: two that measure on the same processors measure each other. All that fails is worth knowing at once, and
/// what was skipped.
fn tests() -> Result<()> {
    let mut command = Command::new("cargo");
    command
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(["--", "--show-output"])
        .env("RUST_TEST_THREADS", "1");
    timed("tests", &mut command)
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
            "path",
            "--test",
            "control",
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

fn book() -> Result<()> {
    if !has(&["mdbook", "--version"]) {
        println!("skipped: book: mdbook is not installed (cargo install mdbook --locked)");
        return Ok(());
    }
    step("book", &["mdbook", "build", "docs"])
}

/// A short run of each target where a nightly toolchain is present; the corpora are replayed by
/// `cargo test` in any case.
fn fuzz() -> Result<()> {
    if !has(&["cargo", "+nightly", "fuzz", "--version"]) {
        println!(
            "skipped: fuzz runs: they need a nightly toolchain and cargo-fuzz; the corpora were replayed by the tests"
        );
        return Ok(());
    }
    let listed = Command::new("cargo")
        .args(["+nightly", "fuzz", "list"])
        .output()
        .context("cargo fuzz list")?;
    let targets = String::from_utf8(listed.stdout).context("names of fuzz targets")?;
    for target in targets.split_whitespace() {
        let seconds = format!("-max_total_time={FUZZ_SECONDS}");
        step(
            &format!("fuzz {target}"),
            &["cargo", "+nightly", "fuzz", "run", target, "--", &seconds],
        )?;
    }
    Ok(())
}

fn has(command: &[&str]) -> bool {
    Command::new(command[0])
        .args(&command[1..])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
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
