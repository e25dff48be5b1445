//! `cargo xtask instructions`: cost of the data path in instructions and allocations, counted by valgrind. The counts do not depend on
//! the machine's speed or load, so that a few per cent are visible. The kernel is not counted.
//!
//! The benches are tests in modules called `instructions`. Each runs with N units of work and with 2N: the difference is the cost of N,
//! without the fixed cost.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use evlbi_testkit::instructions::UNITS;
use evlbi_testkit::need::which;
use serde_json::{Value, json};

use crate::base;
use crate::run::output_of;

/// Functions of libc that allocate memory.
const ALLOCATOR: [&str; 5] = [
    "malloc",
    "calloc",
    "realloc",
    "posix_memalign",
    "aligned_alloc",
];

/// Makes libc copy with vector instructions: valgrind counts an instruction per byte of `rep movsb`, which would hide everything else.
const TUNABLES: &str = "glibc.cpu.x86_rep_movsb_threshold=0x40000000";

/// Maximum accepted ratio to the earlier cost.
const MAX_RATIO: f64 = 1.03;

/// A bench: the name of its test, its unit, and N.
struct Bench {
    name: &'static str,
    unit: &'static str,
    units: u64,
    what: &'static str,
}

const BENCHES: [Bench; 7] = [
    bench(
        "admit",
        "datagram",
        48 * 64,
        "socket, admission, order, place in the ring",
    ),
    bench("deframe", "frame", 2048, "ring to frames, no sink"),
    bench(
        "split",
        "frame",
        2048,
        "frames to a file for each station and thread",
    ),
    bench("file", "frame", 2048, "frames to one file"),
    bench("feed", "frame", 2048, "frames to the correlator"),
    bench("burst", "datagram", 8192, "frames to bursts with headers"),
    bench(
        "bytes",
        "byte",
        256 << 16,
        "stream of bytes to frames, no sink",
    ),
];

const fn bench(name: &'static str, unit: &'static str, units: u64, what: &'static str) -> Bench {
    Bench {
        name,
        unit,
        units,
        what,
    }
}

#[derive(Args)]
pub struct InstructionsArgs {
    /// Build this git revision, too, and count there: exit status 1 if a bench here takes over 3 % more
    #[arg(long, value_name = "REV")]
    against: Option<String>,
    /// Run only this bench (may be repeated)
    #[arg(long, value_name = "NAME", value_parser = BENCHES.map(|bench| bench.name))]
    only: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Counts of a run under valgrind.
#[derive(Clone, Copy)]
struct Counts {
    instructions: u64,
    allocations: u64,
}

/// Runs with N units and with 2N.
#[derive(Clone, Copy)]
struct Figure {
    once: Counts,
    twice: Counts,
}

impl Figure {
    /// Returns the instructions per unit.
    fn per_unit(&self, bench: &Bench) -> f64 {
        let more = self.twice.instructions as f64 - self.once.instructions as f64;
        more / bench.units as f64
    }

    fn json(&self, bench: &Bench) -> Value {
        json!({
            "instructions": [self.once.instructions, self.twice.instructions],
            "instructions_per_unit": self.per_unit(bench),
            "allocations": [self.once.allocations, self.twice.allocations],
        })
    }
}

/// Runs the benches, also in another revision if requested, and compares.
///
/// # Errors
/// Returns an error if valgrind is missing, or if a bench cannot be built or fails.
pub fn run(args: &InstructionsArgs) -> Result<ExitCode> {
    ensure!(
        which("valgrind").is_some(),
        "valgrind is missing: apt-get install valgrind"
    );
    let here = std::env::current_dir()?;
    let now = measure(&here, args)?;
    let before = match &args.against {
        Some(revision) => Some(measure(&base::tree(revision)?, args)?),
        None => None,
    };
    let mut benches = Vec::new();
    let mut is_over = false;
    if !args.json {
        println!(
            "{:<9}{:<10}{:>14}{:>14}{:>8}  {:<21}what",
            "bench", "unit", "instructions", "before", "ratio", "allocations at N, 2N"
        );
    }
    for bench in &BENCHES {
        let Some(figure) = now.get(bench.name) else {
            continue;
        };
        let base = before.as_ref().and_then(|before| before.get(bench.name));
        let ratio = base.map(|base| figure.per_unit(bench) / base.per_unit(bench));
        is_over |= ratio.is_some_and(|ratio| ratio > MAX_RATIO);
        if args.json {
            let mut entry = figure.json(bench);
            entry["name"] = json!(bench.name);
            entry["unit"] = json!(bench.unit);
            entry["units"] = json!(bench.units);
            entry["before"] = json!(base.map(|base| base.json(bench)));
            entry["ratio"] = json!(ratio);
            benches.push(entry);
            continue;
        }
        let before = base.map_or(String::new(), |base| format!("{:.4}", base.per_unit(bench)));
        let ratio = ratio.map_or(String::new(), |ratio| format!("{ratio:.3}"));
        let allocations = format!("{}, {}", figure.once.allocations, figure.twice.allocations);
        println!(
            "{:<9}{:<10}{:>14.4}{before:>14}{ratio:>8}  {allocations:<21}{}",
            bench.name,
            bench.unit,
            figure.per_unit(bench),
            bench.what
        );
    }
    if args.json {
        let report = json!({
            "schema": "evlbi.instructions-report/1",
            "against": args.against,
            "most": MAX_RATIO,
            "benches": benches,
        });
        println!("{report:#}");
    }
    Ok(match is_over {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// Builds the benches of a tree and runs them.
fn measure(tree: &Path, args: &InstructionsArgs) -> Result<BTreeMap<&'static str, Figure>> {
    let tests = tests(&build(tree)?)?;
    let mut figures = BTreeMap::new();
    let wanted =
        |bench: &&Bench| args.only.is_empty() || args.only.iter().any(|only| only == bench.name);
    for bench in BENCHES.iter().filter(wanted) {
        let (program, test) = tests
            .get(bench.name)
            .with_context(|| format!("{} has no bench called {}", tree.display(), bench.name))?;
        let count = |units| count(program, test, bench.name, units);
        let figure = Figure {
            once: count(bench.units)?,
            twice: count(2 * bench.units)?,
        };
        figures.insert(bench.name, figure);
    }
    Ok(figures)
}

/// Builds the tests of the packages with benches, for speed; returns their programs.
fn build(tree: &Path) -> Result<Vec<PathBuf>> {
    let mut cargo = evlbi_testkit::cargo();
    cargo
        .current_dir(tree)
        .args(["test", "--release", "--no-run", "--lib", "--bins"]);
    cargo.arg("--message-format=json-render-diagnostics");
    for entry in fs::read_dir(tree.join("crates"))? {
        let folder = entry?.path();
        if has_benches(&folder.join("src"))? {
            let name = folder.file_name().unwrap_or_default();
            cargo.arg("--package").arg(name);
        }
    }
    let output = cargo
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(
        output.status.success(),
        "the benches in {} cannot be built",
        tree.display()
    );
    let messages = String::from_utf8_lossy(&output.stdout);
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let programs = messages.filter(|message| message["profile"]["test"] == true);
    Ok(programs
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .collect())
}

/// Returns whether there is a module of benches among the sources in a directory. In another revision it may be in another crate. The
/// testkit's is not a bench.
fn has_benches(folder: &Path) -> Result<bool> {
    if folder.join("instructions.rs").exists() {
        return Ok(!folder.join("need.rs").exists());
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && has_benches(&path)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the benches by name: the program and the name of the test.
fn tests(programs: &[PathBuf]) -> Result<BTreeMap<String, (PathBuf, String)>> {
    let mut tests = BTreeMap::new();
    for program in programs {
        let list = output_of(&program.to_string_lossy(), &["--list", "--format", "terse"])?;
        for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
            if let Some((_, name)) = test.rsplit_once("instructions::") {
                tests.insert(name.to_owned(), (program.clone(), test.to_owned()));
            }
        }
    }
    Ok(tests)
}

/// Runs a bench under valgrind.
fn count(program: &Path, test: &str, name: &str, units: u64) -> Result<Counts> {
    let folder = std::env::current_dir()?.join("target/instructions");
    fs::create_dir_all(&folder)?;
    let profile = folder.join(format!("{name}-{units}.out"));
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args([
            "--tool=callgrind",
            "--toggle-collect=*instructions*measured*",
        ])
        .args([
            "--compress-strings=no",
            "--compress-pos=no",
            "--dump-instr=yes",
        ])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(program)
        .args(["--exact", test, "--test-threads=1"])
        .env("GLIBC_TUNABLES", TUNABLES)
        .env(UNITS, units.to_string());
    let output = valgrind.output().context("cannot start valgrind")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stdout);
        bail!(
            "{name} failed: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let counts = parse(&fs::read_to_string(&profile)?);
    counts.with_context(|| {
        format!(
            "{} has no instructions of the bench {name}",
            profile.display()
        )
    })
}

/// Parses a profile of callgrind: the counted instructions, and how often the allocator was entered. The calls in the profile include
/// the whole run, so the first instruction of each allocator function is used instead.
fn parse(profile: &str) -> Option<Counts> {
    let mut instructions = 0;
    let mut entries: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let (mut function, mut is_of_callee) = ("", false);
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            function = name;
        } else if let Some(total) = line.strip_prefix("totals: ") {
            instructions = total.trim().parse().ok()?;
        } else if let Some(position) = line.strip_prefix("0x")
            && !is_of_callee
            && ALLOCATOR.contains(&function)
        {
            let (address, cost) = (position.split(' ').next()?, position.rsplit(' ').next()?);
            let address = u64::from_str_radix(address, 16).ok()?;
            let first = (address, cost.parse().ok()?);
            let entry = entries.entry(function).or_insert(first);
            *entry = first.min(*entry);
        }
        is_of_callee = line.starts_with("calls=");
    }
    let allocations = entries.values().map(|(_, times)| times).sum();
    (instructions > 0).then_some(Counts {
        instructions,
        allocations,
    })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_profile_is_read() {
        let profile = "positions: instr line\nevents: Ir\n\nfn=work\n0x10 3 9\ncfn=malloc\ncalls=99 0x20 0\n0x14 16 90\n\n\
            fn=malloc\n0x24 0 5\n0x20 0 2\ncfn=_int_malloc\ncalls=99 0x60 0\n0x08 7 70\n\nfn=realloc\n0x90 0 3\n\ntotals: 700\n";
        let counts = parse(profile).expect("a profile");
        assert_eq!((counts.instructions, counts.allocations), (700, 5));
        assert!(parse("events: Ir\ntotals: 0\n").is_none());
    }
}
