//! `cargo xtask soak`: searches that are never complete and so are not part of the gate: fuzz targets, properties, faults in virtual
//! time and tests called `soak` with random seeds, and mutants that the tests do not detect.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::run::{output_of, well};
use crate::stress::{Random, random_seed};

/// Directory where programs of this task are installed.
const TOOLS: &str = "target/tools";
/// Mutants that no test needs to detect: `MUTANT | REASON` each, without line and column.
const SURVIVORS: &str = "xtask/survivors.txt";
/// Modules in which no other mutant may survive.
const STRICT: [&str; 5] = ["reorder", "account", "deframe", "admission", "vdif"];
/// Packages to mutate, each with its files.
const MUTATED: [(&str, &str); 4] = [
    ("evlbi-wire", "crates/evlbi-wire/src/**/*.rs"),
    ("evlbi-core", "crates/evlbi-core/src/**/*.rs"),
    ("evlbi-trace", "crates/evlbi-trace/src/**/*.rs"),
    ("evlbi-probe", "crates/evlbi-probe/src/measure/**/*.rs"),
];
/// Outcomes of mutants; cargo-mutants lists the mutants of each in a file of that name.
const OUTCOMES: [&str; 4] = ["caught", "missed", "timeout", "unviable"];

/// Options of the task.
#[derive(clap::Args)]
pub struct SoakArgs {
    /// Maximum time for all fuzz targets together
    #[arg(long, default_value = "60min", value_parser = duration)]
    fuzz: Duration,
    /// End a fuzz target after this number of bytes
    #[arg(long, default_value_t = 100_000_000)]
    fuzz_bytes: u64,
    /// Time for the tests of the libraries and in the program's modules, over and over, with random seeds of their properties
    #[arg(long, default_value = "20min", value_parser = duration)]
    properties: Duration,
    /// Time for random faults of streams and sessions in virtual time, over and over, with random seeds
    #[arg(long, default_value = "60min", value_parser = duration)]
    faults: Duration,
    /// Time for mutants of the wire formats and the transport core [default: none]
    #[arg(long, value_parser = duration)]
    mutants: Option<Duration>,
    /// Seed of all random choices [default: another one each time]
    #[arg(long)]
    seed: Option<u64>,
}

/// Parses `90s`, `60min` or `2h`.
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

/// Runs the searches; a failure does not stop the others.
///
/// # Errors
/// Returns an error if something was found, or a tool cannot be installed.
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
    part("fuzz", fuzz(args.fuzz, args.fuzz_bytes, &mut random));
    part("properties", properties(args.properties, &mut random));
    part("faults", faults(args.faults, &mut random));
    part("tests called soak", ignored());
    if let Some(limit) = args.mutants {
        part("mutants", mutants(limit, &mut random));
    }
    ensure!(found.is_empty(), "found something: {}", found.join(", "));
    Ok(())
}

/// Runs each target until it was given a number of bytes, or its share of the remaining time is over.
fn fuzz(time: Duration, wanted: u64, random: &mut Random) -> Result<()> {
    if time.is_zero() {
        return Ok(());
    }
    output_of("cargo", &["+nightly", "--version"])
        .context("libFuzzer needs a nightly toolchain: rustup toolchain install nightly")?;
    let path = tool("cargo-fuzz")?;
    well(
        evlbi_testkit::cargo()
            .args(["+nightly", "fuzz", "build"])
            .env("PATH", &path),
    )?;
    let mut targets: Vec<String> = fs::read_dir("fuzz/fuzz_targets")?
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
        .collect();
    targets.sort();
    let begun = Instant::now();
    let (mut crashed, mut reports) = (Vec::new(), Vec::new());
    for (number, target) in targets.iter().enumerate() {
        let left = time.saturating_sub(begun.elapsed()).as_secs();
        let seconds = (left / (targets.len() - number) as u64).max(1);
        // libFuzzer's seeds have 32 bits; 0 selects a random one. By itself, it lengthens its inputs only slowly.
        let seed = random.next() % u64::from(u32::MAX) + 1;
        println!("soak: fuzz target {target} for at most {seconds} s, seed {seed}");
        let mut fuzz = evlbi_testkit::cargo();
        fuzz.args(["+nightly", "fuzz", "run", target, "--"])
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-seed={seed}"))
            .args(["-len_control=0", "-print_final_stats=1"])
            .env("EVLBI_FUZZ_BYTES", wanted.to_string())
            .env("PATH", &path);
        let (bytes, ended) = fuzzed(&mut fuzz)?;
        if let Err(error) = ended {
            println!("soak: {target}: {error:#}");
            crashed.push(target.as_str());
        }
        let verdict = match bytes >= wanted {
            true => "",
            false => ": ended before, give a longer --fuzz",
        };
        reports.push(format!("{target}: {bytes} of {wanted} bytes{verdict}"));
    }
    for report in reports {
        println!("soak: fuzz target {report}");
    }
    ensure!(
        crashed.is_empty(),
        "see fuzz/artifacts: {}",
        crashed.join(", ")
    );
    Ok(())
}

/// Runs a fuzz target, which prints the number of bytes that it was given. Returns that number, to one percent of the limit, and whether
/// the target ended well.
fn fuzzed(fuzz: &mut Command) -> Result<(u64, Result<()>)> {
    let mut child = fuzz.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let printed = child.stderr.take().context("no standard error")?;
    let mut bytes = 0;
    for line in BufReader::new(printed).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        let count = line.strip_prefix("fuzzed ");
        let count = count.and_then(|rest| rest.strip_suffix(" bytes")?.parse().ok());
        bytes = count.unwrap_or(bytes);
        eprintln!("{line}");
    }
    let status = child.wait()?;
    let ended = match status.success() {
        true => Ok(()),
        false => Err(anyhow!("{fuzz:?} ended with {status}")),
    };
    Ok((bytes, ended))
}

/// Runs the tests of the libraries and those in the program's modules until the time is over. A property with its own number of cases
/// keeps it; others get more.
fn properties(time: Duration, random: &mut Random) -> Result<()> {
    if time.is_zero() {
        return Ok(());
    }
    let begun = Instant::now();
    let mut rounds = 0;
    while begun.elapsed() < time {
        let seed = random.next().to_string();
        println!("soak: properties, PROPTEST_RNG_SEED={seed}");
        let libraries = "--workspace --exclude evlbi --exclude evlbi-bench --exclude xtask";
        for what in [libraries, "--package evlbi --bins"] {
            let mut tests = evlbi_testkit::cargo();
            tests.args(["test", "--quiet", "--no-fail-fast"]);
            tests.args(what.split(' ')).args(["--", "--skip", "faults"]);
            tests.envs([("PROPTEST_RNG_SEED", &*seed), ("PROPTEST_CASES", "4096")]);
            well(&mut tests)?;
        }
        rounds += 1;
    }
    println!("soak: properties held in {rounds} rounds");
    Ok(())
}

/// Runs the tests in which senders, receivers, agents and networks fail, until the time is over. A process keeps the memory and open
/// files of what it kills (a megabyte and a file per case), so each plays 500 cases.
fn faults(time: Duration, random: &mut Random) -> Result<()> {
    if time.is_zero() {
        return Ok(());
    }
    let begun = Instant::now();
    let mut rounds = 0;
    while begun.elapsed() < time {
        let seed = random.next().to_string();
        println!("soak: faults, PROPTEST_RNG_SEED={seed}");
        let mut tests = evlbi_testkit::cargo();
        tests.args(["test", "--quiet", "--release", "--lib", "faults"]);
        tests.args(["--package", "evlbi-stream", "--package", "evlbi-control"]);
        tests.envs([("PROPTEST_RNG_SEED", &*seed), ("PROPTEST_CASES", "500")]);
        well(&mut tests)?;
        rounds += 1;
    }
    println!("soak: systems outlived faults in {rounds} rounds");
    Ok(())
}

/// Runs tests that take too long for the gate. Some simulate days, some measure the memory of their process.
fn ignored() -> Result<()> {
    let tests = [
        "test",
        "--release",
        "--workspace",
        "--no-fail-fast",
        "--",
        "--ignored",
        "--test-threads=1",
        "soak",
    ];
    well(evlbi_testkit::cargo().args(tests))
}

/// Tries mutants in random order until the time is over and lists those that survive.
fn mutants(limit: Duration, random: &mut Random) -> Result<()> {
    let path = tool("cargo-mutants")?;
    let checkout = clone()?;
    let cargo = |arguments: &[&str]| {
        let mut command = evlbi_testkit::cargo();
        command.args(arguments).env("PATH", &path);
        // One failure is enough: without shrinking, and without saving it for the next mutant.
        command.env("PROPTEST_MAX_SHRINK_ITERS", "0");
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        command.current_dir(&checkout).stdin(Stdio::null());
        command
    };
    for (package, _) in MUTATED {
        well(&mut cargo(&["test", "--quiet", "--package", package]))
            .context("the tests must pass without a mutant")?;
    }
    let mutants = |arguments: &[&str]| {
        let mut command = cargo(&["mutants", "--workspace"]);
        for (_, files) in MUTATED {
            command.args(["--file", files]);
        }
        command.args(arguments);
        command
    };
    let list = mutants(&["--list"]).output()?;
    ensure!(
        list.status.success(),
        "{}",
        String::from_utf8_lossy(&list.stderr)
    );
    let list = String::from_utf8_lossy(&list.stdout);
    let all: Vec<&str> = list.lines().collect();
    println!("soak: {} mutants, {} s", all.len(), limit.as_secs());
    let out = checkout.with_file_name("out");
    let _ = fs::remove_dir_all(&out);
    let begun = Instant::now();
    let mut outcomes = Vec::new();
    'time: for index in order(&all, random) {
        // A shard of one mutant: `--re` matches some mutants whatever their names.
        let shard = format!("{index}/{}", all.len());
        let results = out.join(index.to_string());
        fs::create_dir_all(&results)?;
        let mut child = mutants(&["--in-place", "--baseline", "skip", "--timeout", "120"])
            .args(["--shard", &shard, "--output"])
            .arg(&results)
            .stdout(Stdio::null())
            .stderr(fs::File::create(results.join("errors.txt"))?)
            .spawn()?;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if begun.elapsed() > limit {
                // It ends its tests.
                kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT)?;
                child.wait()?;
                break 'time;
            }
            std::thread::sleep(Duration::from_millis(200));
        };
        let outcome = OUTCOMES.into_iter().find(|outcome| {
            let list = results.join("mutants.out").join(format!("{outcome}.txt"));
            fs::metadata(list).is_ok_and(|list| list.len() > 0)
        });
        let failed = || {
            format!(
                "cargo mutants ended with {status}: see {}",
                results.display()
            )
        };
        outcomes.push((outcome.with_context(failed)?, all[index]));
    }
    judge(&outcomes, all.len())
}

/// Returns a clone of HEAD next to the compiled files of the last one.
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

/// Returns the indices of all mutants in random order, alternating between strict and other modules as long as there are both.
fn order(all: &[&str], random: &mut Random) -> Vec<usize> {
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_cached_key(|_| random.next());
    let mut places = [0, 1];
    order.sort_by_cached_key(|&index| {
        let place = &mut places[usize::from(!is_strict(all[index]))];
        *place += 2;
        *place
    });
    order
}

/// Returns whether a mutant is in a strict module: its name begins with the file.
fn is_strict(mutant: &str) -> bool {
    let file = mutant.split(".rs").next().unwrap_or_default();
    file.split('/').any(|part| STRICT.contains(&part))
}

/// Returns a mutant's name without line and column, which change.
fn placeless(mutant: &str) -> String {
    let parts: Vec<&str> = mutant.splitn(4, ':').collect();
    match parts[..] {
        [file, _, _, change] => format!("{file}:{change}"),
        _ => mutant.to_owned(),
    }
}

/// Reports which mutants survived without a reason.
fn judge(outcomes: &[(&str, &str)], all: usize) -> Result<()> {
    let of = |name: &str| -> Vec<&str> {
        let those = outcomes.iter().filter(|(outcome, _)| *outcome == name);
        those.map(|(_, mutant)| *mutant).collect()
    };
    let strict = outcomes.iter().filter(|(_, mutant)| is_strict(mutant));
    println!(
        "soak: tried {} of {all} mutants, {} of them in strict modules: {}",
        outcomes.len(),
        strict.count(),
        OUTCOMES
            .map(|name| format!("{} {name}", of(name).len()))
            .join(", ")
    );
    for mutant in of("timeout") {
        println!("  timeout: {mutant}");
    }
    let text = fs::read_to_string(SURVIVORS).context(SURVIVORS)?;
    let reasons: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.split_once(" | "))
        .collect();
    let mut unexplained = 0;
    for mutant in of("missed") {
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
    ensure!(
        outcomes.len() > of("unviable").len(),
        "no mutant was tried in this time"
    );
    ensure!(
        unexplained == 0,
        "{unexplained} mutants survive in {} and have no reason in {SURVIVORS}",
        STRICT.join(", ")
    );
    Ok(())
}

/// Installs a cargo command unless it exists; returns the PATH with which cargo finds it.
fn tool(name: &str) -> Result<String> {
    let folder = fs::canonicalize(".")?.join(TOOLS).join("bin");
    if !folder.join(name).exists() {
        well(evlbi_testkit::cargo().args(["install", "--locked", "--root", TOOLS, name]))
            .with_context(|| format!("install it by hand: cargo install --locked {name}"))?;
    }
    let path = std::env::var("PATH").unwrap_or_default();
    Ok(format!("{}:{path}", folder.display()))
}
