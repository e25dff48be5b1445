//! The checks that must pass before a change lands, ordered so that failures show early.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use evlbi_testkit::times::{TIMES, slowest};

use crate::run::well;
use crate::{attack, deps, examples, setup, words};

pub fn run() -> Result<()> {
    let mut gate = Gate {
        begun: Instant::now(),
        steps: Vec::new(),
    };
    let outcome = gate.run();
    gate.tell();
    outcome
}

/// The steps that have passed, with their durations in seconds.
struct Gate {
    begun: Instant,
    steps: Vec<(&'static str, f64)>,
}

impl Gate {
    fn run(&mut self) -> Result<()> {
        // The tests' requirements are installed while the compiler runs; nothing of it stays running.
        let setup = std::thread::scope(|scope| {
            let setup = scope.spawn(|| setup::run(false));
            self.build()?;
            setup.join().map_err(|_| anyhow!("setup failed"))
        })?;
        self.step("rest of the setup", || setup)?;
        // All failures are reported at once.
        self.cargo("tests", &["test", "--workspace", "--no-fail-fast"])?;
        self.step("examples", examples::run)?;
        self.step("packages", packages)?;
        self.step("attacks", attack::gate)?;
        self.step("loom", loom)?;
        self.step("rustdoc", rustdoc)
    }

    fn build(&mut self) -> Result<()> {
        self.cargo("format", &["fmt", "--all", "--check"])?;
        self.step("dependency rules", deps::check)?;
        self.step("wording", words::check)?;
        let lints = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ];
        self.cargo("lints", &lints)?;
        self.cargo("build of the tests", &["test", "--workspace", "--no-run"])
    }

    fn cargo(&mut self, name: &'static str, arguments: &[&str]) -> Result<()> {
        self.step(name, || well(evlbi_testkit::cargo().args(arguments)))
    }

    fn step(&mut self, name: &'static str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        println!("ci: {name}");
        let start = Instant::now();
        work().context(name)?;
        let seconds = start.elapsed().as_secs_f64();
        println!("ci: {name} passed in {seconds:.0} s");
        self.steps.push((name, seconds));
        Ok(())
    }

    /// Prints the times of the steps and the slowest tests.
    fn tell(&self) {
        let times = fs::read_to_string(format!("target/{TIMES}")).unwrap_or_default();
        let lines: Vec<String> = times.lines().skip(1).map(str::to_owned).collect();
        println!("ci: slowest tests:");
        for line in slowest(&lines) {
            println!("  {line}");
        }
        let steps = self.steps.iter();
        let steps: Vec<String> = steps
            .map(|(name, seconds)| format!("{name} {seconds:.0} s"))
            .collect();
        let all = self.begun.elapsed().as_secs_f64();
        println!(
            "ci: {} steps passed in {all:.0} s: {}",
            steps.len(),
            steps.join(", ")
        );
    }
}

/// Tests the ring's protocol with every interleaving of its two threads; evlbi-net then contains only its ring.
fn loom() -> Result<()> {
    let mut command = evlbi_testkit::cargo();
    command
        .args(["test", "--release", "--package", "evlbi-net", "--lib"])
        .args(["--target-dir", "target/loom", "every_interleaving"])
        .env("RUSTFLAGS", "--cfg loom");
    well(&mut command)
}

/// Checks that the packages to publish are complete, and that each crate finds what it needs, without compiling again.
fn packages() -> Result<()> {
    let mut command = evlbi_testkit::cargo();
    command.args([
        "package",
        "--quiet",
        "--workspace",
        "--no-verify",
        "--allow-dirty",
    ]);
    for own in ["evlbi-bench", "evlbi-testkit", "xtask"] {
        command.args(["--exclude", own]);
    }
    well(&mut command)
}

fn rustdoc() -> Result<()> {
    let arguments = [
        "doc",
        "--workspace",
        "--no-deps",
        "--document-private-items",
    ];
    let mut command = evlbi_testkit::cargo();
    command.args(arguments).env("RUSTDOCFLAGS", "-D warnings");
    well(&mut command)
}
