//! `cargo xtask soak`: searches that are never complete and so are not part of the gate: fuzz targets, properties and tests called
//! `soak` with random seeds, and mutants that the tests do not notice.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::run::{output_of, well};
use crate::stress::{Random, random_seed};

/// Where programs are installed that only this task uses.
const TOOLS: &str = "target/tools";
/// Mutants that no test has to notice: `MUTANT | REASON` each, without line and column.
const SURVIVORS: &str = "xtask/survivors.txt";
/// Modules in which no other mutant may survive.
const STRICT: [&str; 5] = ["reorder", "account", "deframe", "admission", "vdif"];
/// Where mutants are made.
const MUTATED: [&str; 3] = [
    "crates/evlbi-wire/src/**/*.rs",
    "crates/evlbi-core/src/**/*.rs",
    "crates/evlbi-net/src/receive/admission.rs",
];
/// More than are tried in a minute.
const MUTANTS_A_MINUTE: u64 = 12;

/// Options of the task.
#[derive(clap::Args)]
pub struct SoakArgs {
    /// Time for all fuzz targets together
    #[arg(long, default_value = "60min", value_parser = duration)]
    fuzz: Duration,
    /// Time for the libraries' tests, over and over, with random seeds of their properties
    #[arg(long, default_value = "20min", value_parser = duration)]
    properties: Duration,
    /// Time for mutants of the wire formats and the transport core [default: none]
    #[arg(long, value_parser = duration)]
    mutants: Option<Duration>,
    /// What all random choices follow from [default: another one each time]
    #[arg(long)]
    seed: Option<u64>,
}

/// `90s`, `60min` or `2h`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "s" => 1,
        "min" => 60,
        "h" => 3600,
        _ => return Err("give a number and s, min or h, e.g. 60min".into()),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "give a number and a unit, e.g. 60min")?;
    Ok(Duration::from_secs(number * seconds))
}

/// Searches; what fails does not keep the rest from going on.
///
/// # Errors
/// When something was found, or a tool cannot be installed.
pub fn run(args: &SoakArgs) -> Result<()> {
    let seed = args.seed.unwrap_or_else(random_seed);
    println!("soak: seed {seed}");
    let mut random = Random(seed);
    let mut found = Vec::new();
    let mut part = |name: &str, outcome: Result<()>| {
        if let Err(error) = outcome {
            println!("soak: {name}: {error:#}");
            found.push(name.to_owned());
        }
    };
    part("fuzz", fuzz(args.fuzz, &mut random));
    part("properties", properties(args.properties, &mut random));
    part("tests called soak", ignored());
    if let Some(limit) = args.mutants {
        part("mutants", mutants(limit, &mut random));
    }
    ensure!(found.is_empty(), "found something: {}", found.join(", "));
    Ok(())
}

/// Each target for an equal share of the time.
fn fuzz(time: Duration, random: &mut Random) -> Result<()> {
    if time.is_zero() {
        return Ok(());
    }
    output_of("cargo", &["+nightly", "--version"])
        .context("libFuzzer needs a nightly toolchain: rustup toolchain install nightly")?;
    let path = tool("cargo-fuzz")?;
    let mut targets: Vec<String> = fs::read_dir("fuzz/fuzz_targets")?
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
        .collect();
    targets.sort();
    let seconds = (time.as_secs() / targets.len() as u64).max(1);
    let mut crashed = Vec::new();
    for target in targets {
        // libFuzzer's seeds have 32 bits; 0 is a random one.
        let seed = random.next() % u64::from(u32::MAX) + 1;
        println!("soak: fuzz target {target} for {seconds} s, seed {seed}");
        let mut fuzz = evlbi_testkit::cargo();
        fuzz.args(["+nightly", "fuzz", "run", &target, "--"])
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-seed={seed}"))
            .arg("-print_final_stats=1")
            .env("PATH", &path);
        if let Err(error) = well(&mut fuzz) {
            println!("soak: {target}: {error:#}");
            crashed.push(target);
        }
    }
    ensure!(
        crashed.is_empty(),
        "see fuzz/artifacts: {}",
        crashed.join(", ")
    );
    Ok(())
}

/// The libraries' tests, until the time is over. A property that has its own number of cases keeps it; others get more.
fn properties(time: Duration, random: &mut Random) -> Result<()> {
    let begun = Instant::now();
    let mut rounds = 0;
    while begun.elapsed() < time {
        let seed = random.next().to_string();
        println!("soak: properties, PROPTEST_RNG_SEED={seed}");
        let mut tests = evlbi_testkit::cargo();
        tests.args(["test", "--quiet", "--no-fail-fast"]);
        for library in ["evlbi-wire", "evlbi-core", "evlbi-fx", "evlbi-net"] {
            tests.args(["--package", library]);
        }
        tests.envs([("PROPTEST_RNG_SEED", &*seed), ("PROPTEST_CASES", "4096")]);
        well(&mut tests)?;
        rounds += 1;
    }
    println!("soak: properties held in {rounds} rounds");
    Ok(())
}

/// Tests that take too long for the gate.
fn ignored() -> Result<()> {
    let tests = [
        "test",
        "--workspace",
        "--no-fail-fast",
        "--",
        "--ignored",
        "soak",
    ];
    well(evlbi_testkit::cargo().args(tests))
}

/// Tries a sample of mutants, half of them in the strict modules, and tells which survive.
fn mutants(limit: Duration, random: &mut Random) -> Result<()> {
    let path = tool("cargo-mutants")?;
    let checkout = clone()?;
    let cargo = |arguments: &[&str]| {
        let mut command = evlbi_testkit::cargo();
        command.arg("mutants").args(arguments).env("PATH", &path);
        for files in MUTATED {
            command.args(["--file", files]);
        }
        command.current_dir(&checkout).stdin(Stdio::null());
        command
    };
    let list = cargo(&["--list"]).output()?;
    ensure!(
        list.status.success(),
        "{}",
        String::from_utf8_lossy(&list.stderr)
    );
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let all = list.lines().map(str::to_owned).collect::<Vec<_>>();
    let count = all.len();
    let wanted = (limit.as_secs() * MUTANTS_A_MINUTE / 60).max(2) as usize;
    let sample = sample(all, wanted, random);
    println!(
        "soak: {} of {count} mutants, {} s",
        sample.len(),
        limit.as_secs()
    );
    let out = checkout.with_file_name("out");
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&out)?;
    let mut run = cargo(&["--in-place", "--timeout", "120", "--output"]);
    run.arg(&out);
    for name in &sample {
        run.args(["--re", &format!("^{}$", escaped(name))]);
    }
    let mut child = run.spawn().context("cargo mutants")?;
    let begun = Instant::now();
    while child.try_wait()?.is_none() {
        if begun.elapsed() > limit {
            // It ends its tests.
            kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT)?;
            child.wait()?;
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    judge(&out.join("mutants.out"))
}

/// A clone of HEAD beside what has been compiled for the last one.
fn clone() -> Result<PathBuf> {
    let checkout = Path::new("target/mutants/checkout");
    if !checkout.exists() {
        fs::create_dir_all("target/mutants")?;
        well(
            Command::new("git")
                .args(["clone", "--quiet", "."])
                .arg(checkout),
        )?;
    }
    let head = output_of("git", &["rev-parse", "HEAD"])?;
    let inside =
        |arguments: &[&str]| well(Command::new("git").arg("-C").arg(checkout).args(arguments));
    inside(&["fetch", "--quiet", "origin"])?;
    inside(&["checkout", "--quiet", "--force", &head])?;
    Ok(fs::canonicalize(checkout)?)
}

/// So many of these, half of them from the strict modules as long as there are some.
fn sample(all: Vec<String>, wanted: usize, random: &mut Random) -> Vec<String> {
    let mut shuffled: Vec<(u64, String)> =
        all.into_iter().map(|name| (random.next(), name)).collect();
    shuffled.sort();
    let (strict, others): (Vec<_>, Vec<_>) = shuffled
        .into_iter()
        .map(|(_, name)| name)
        .partition(|name| is_strict(name));
    let strict = strict.into_iter().take(wanted / 2);
    let mut sample: Vec<String> = strict.collect();
    let rest = wanted - sample.len();
    sample.extend(others.into_iter().take(rest));
    sample
}

/// Whether a mutant lies in a strict module: its name begins with the file.
fn is_strict(mutant: &str) -> bool {
    let file = mutant.split(".rs").next().unwrap_or_default();
    file.split('/').any(|part| STRICT.contains(&part))
}

/// Text as a regular expression.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        if r"\.+*?()|[]{}^$".contains(letter) {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

/// A mutant's name without line and column, which change.
fn placeless(mutant: &str) -> String {
    let parts: Vec<&str> = mutant.splitn(4, ':').collect();
    match parts[..] {
        [file, _, _, change] => format!("{file}:{change}"),
        _ => mutant.to_owned(),
    }
}

/// Tells which mutants survived without a reason.
fn judge(results: &Path) -> Result<()> {
    let of = |name: &str| fs::read_to_string(results.join(name)).unwrap_or_default();
    let counts = ["caught.txt", "missed.txt", "timeout.txt", "unviable.txt"].map(|name| {
        format!(
            "{} {}",
            of(name).lines().count(),
            name.trim_end_matches(".txt")
        )
    });
    println!("soak: mutants: {}", counts.join(", "));
    let text = fs::read_to_string(SURVIVORS).context(SURVIVORS)?;
    let reasons: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.split_once(" | "))
        .collect();
    let mut unexplained = 0;
    for mutant in of("missed.txt").lines() {
        let name = placeless(mutant);
        match reasons.get(name.as_str()) {
            Some(reason) => println!("  survives, {reason}: {mutant}"),
            None if is_strict(mutant) => {
                unexplained += 1;
                println!("  SURVIVES: {mutant}");
            }
            None => println!("  survives: {mutant}"),
        }
    }
    let tried = of("caught.txt") + &of("missed.txt") + &of("timeout.txt");
    ensure!(
        !tried.is_empty(),
        "no mutant was tried: see {}",
        results.display()
    );
    ensure!(
        unexplained == 0,
        "{unexplained} mutants survive in {} and have no reason in {SURVIVORS}",
        STRICT.join(", ")
    );
    Ok(())
}

/// Installs a cargo command unless it is there; returns the PATH with which cargo finds it.
fn tool(name: &str) -> Result<String> {
    let folder = fs::canonicalize(".")?.join(TOOLS).join("bin");
    if !folder.join(name).exists() {
        well(evlbi_testkit::cargo().args(["install", "--locked", "--root", TOOLS, name]))
            .with_context(|| format!("install it by hand: cargo install --locked {name}"))?;
    }
    let path = std::env::var("PATH").unwrap_or_default();
    Ok(format!("{}:{path}", folder.display()))
}
