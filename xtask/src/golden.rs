//! `cargo xtask golden`: command lines that cover every command of the program, run with this tree and with another revision on one
//! machine. Exit statuses, output and files are compared: nothing may change or be missing, and additions are listed.
//!
//! This module compares the runs; a further command line is a line of `xtask/golden/cases.txt`.

mod cases;
mod compare;
mod normal;
mod play;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use evlbi_testkit::{Room, cargo, command};
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::{mark5b, pattern};
use serde_json::{Value, json};

use self::cases::Case;
use self::compare::Comparison;
use crate::run::{output_of, well};

#[derive(Args)]
pub struct GoldenArgs {
    /// Compare with this revision, which is built in target/golden [default: this tree, played twice]
    #[arg(long, value_name = "REVISION")]
    against: Option<String>,
    /// Build both for speed; the default is a debug build
    #[arg(long)]
    release: bool,
    /// Compare this program [default: a build of this tree, which is made first]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Compare with this program instead of a revision
    #[arg(long, value_name = "FILE", conflicts_with = "against")]
    base_program: Option<PathBuf>,
    /// Play only the cases whose names contain this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    /// List the cases and their command lines
    #[arg(long)]
    list: bool,
}

/// Directory where revisions are built.
const FOLDER: &str = "target/golden";
/// Directory of the cases' input.
const INPUTS: &str = "xtask/golden";
const CAPTURES: &str = "crates/evlbi/tests/oracles/captures";
/// Number of cases that run in parallel. They mostly wait.
const LANES: usize = 4;
/// Maximum number of differences and additions in the table, per case.
const SHOWN: usize = 8;

pub fn run(args: &GoldenArgs) -> Result<()> {
    let is_chosen = |name: &str| {
        args.only
            .as_ref()
            .is_none_or(|only| name.contains(only.as_str()))
    };
    let mut cases = cases::all()?;
    cases.retain(|case| is_chosen(&case.name));
    if args.list {
        for case in &cases {
            println!(
                "{}\n  {}",
                case.name,
                case.lines().collect::<Vec<_>>().join("\n  ")
            );
        }
        return Ok(());
    }
    let new = match &args.program {
        Some(program) => program.clone(),
        None => built(Path::new("."), args.release)?,
    };
    let base = match (&args.base_program, &args.against) {
        (Some(program), _) => program.clone(),
        (None, Some(revision)) => revision_of(revision, args.release)?,
        (None, None) => new.clone(),
    };
    let [base, new] = [base, new].map(|program| {
        program
            .canonicalize()
            .with_context(|| program.display().to_string())
    });
    let (base, new) = (base?, new?);
    let begun = Instant::now();
    let room = Room::new();
    inputs(&room, &base)?;
    let mut compared = BTreeMap::new();
    if is_chosen("help") {
        compared.extend(helps(&base, &new)?);
    }
    compared.extend(played(&cases, &base, &new, &room));
    if compared.is_empty() {
        bail!("no case has such a name: cargo xtask golden --list names them");
    }
    report(args, &cases, &compared, begun.elapsed().as_secs_f64())
}

/// Builds the tree in a directory; returns its program.
fn built(tree: &Path, release: bool) -> Result<PathBuf> {
    let mut build = cargo();
    build
        .current_dir(tree)
        .args(["build", "--package", "evlbi"]);
    build.args(release.then_some("--release"));
    well(&mut build)?;
    Ok(tree.join("target").join(profile(release)).join("evlbi"))
}

fn profile(release: bool) -> &'static str {
    if release { "release" } else { "debug" }
}

/// Returns the program of a revision, built if necessary.
fn revision_of(revision: &str, release: bool) -> Result<PathBuf> {
    let commit = format!("{revision}^{{commit}}");
    let commit = output_of("git", &["rev-parse", "--verify", "--quiet", &commit])
        .with_context(|| format!("`{revision}` is not a revision of this repository"))?;
    let folder = std::path::absolute(FOLDER)?;
    let program = folder.join(format!("evlbi-{}-{commit}", profile(release)));
    if program.exists() {
        return Ok(program);
    }
    // One clone for all revisions: what they share is compiled only once.
    let tree = folder.join("tree");
    if !tree.exists() {
        let clone = ["clone", "--quiet", "--no-checkout", "--shared", "."];
        well(Command::new("git").args(clone).arg(&tree))?;
    }
    let tree_text = tree.to_string_lossy();
    well(Command::new("git").args([
        "-C", &tree_text, "checkout", "--quiet", "--force", "--detach", &commit,
    ]))?;
    // A partial copy must not be mistaken for it.
    let part = program.with_extension("part");
    fs::copy(built(&tree, release)?, &part)?;
    fs::rename(&part, &program)?;
    Ok(program)
}

/// UTC of the first frames: the last second of a day.
const SECOND: i64 = 1_704_153_599;

/// Creates the input of the cases, once for both programs.
fn inputs(room: &Room, program: &Path) -> Result<()> {
    let folder = room.folder().join("in");
    fs::create_dir(&folder)?;
    for from in [INPUTS, CAPTURES] {
        for entry in fs::read_dir(from).with_context(|| from.to_owned())? {
            let entry = entry?;
            fs::copy(entry.path(), folder.join(entry.file_name()))?;
        }
    }
    for plan in ["sky", "wide"] {
        let mut sky = command(program);
        sky.current_dir(&folder)
            .args(["sky", &format!("{plan}.toml"), "--out", plan, "--json"]);
        let output = sky.output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "evlbi sky {plan}.toml: {errors}");
    }
    fs::write(folder.join("scan.m5b"), mark5b_frames()?)?;
    let pattern = pattern::frames(1032, SECOND, FrameRate::new(8).context("a rate")?, 40)?;
    fs::write(folder.join("pattern.vdif"), pattern)?;
    let bytes: Vec<u8> = (0..50_001_u32)
        .map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    fs::write(folder.join("bytes.raw"), bytes)?;
    Ok(())
}

/// Returns a recording of half a second.
fn mark5b_frames() -> Result<Vec<u8>> {
    let rate = FrameRate::new(8).context("a rate")?;
    let mut frames = Vec::new();
    for number in 0..4 {
        let mut header = mark5b::Header::from_words([mark5b::SYNC, 0, 0, 0])?;
        header.set_time(FrameTime::from_index(SECOND * 8 + number, rate), rate)?;
        frames.extend(header.to_bytes());
        let payload = (0..mark5b::PAYLOAD_LEN as u32)
            .map(|byte| (byte.wrapping_mul(2_654_435_761) >> 19) as u8);
        frames.extend(payload);
    }
    Ok(frames)
}

/// Compares the help of every command of both programs.
fn helps(base: &Path, new: &Path) -> Result<BTreeMap<String, Comparison>> {
    let mut compared = BTreeMap::new();
    let mut left = vec![String::new()];
    while let Some(command) = left.pop() {
        let words: Vec<&str> = command.split_whitespace().collect();
        let said = [base, new].map(|program| play::help(program, &words));
        let [base, new] = said;
        let (base, new) = (base?, new?);
        let mut comparison = Comparison::default();
        comparison.compare("help", &normal::help(&base), &normal::help(&new));
        let names: BTreeSet<&str> = [&base, &new]
            .into_iter()
            .flat_map(|help| commands(help))
            .collect();
        left.extend(
            names
                .into_iter()
                .map(|name| format!("{command} {name}").trim().to_owned()),
        );
        compared.insert(format!("{command} --help").trim().to_owned(), comparison);
    }
    Ok(compared)
}

/// Returns the commands that help lists.
fn commands(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| {
        line.strip_prefix("  ")?
            .split_once(' ')
            .map(|(name, _)| name)
    });
    names
        .filter(|name| !name.is_empty() && *name != "help")
        .collect()
}

/// Plays all cases with both programs.
fn played(cases: &[Case], base: &Path, new: &Path, room: &Room) -> BTreeMap<String, Comparison> {
    let next = AtomicUsize::new(0);
    let compared = Mutex::new(BTreeMap::new());
    let lane = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let comparison = of_case(case, base, new, room);
            let mut compared = compared.lock().unwrap_or_else(PoisonError::into_inner);
            compared.insert(case.name.clone(), comparison);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(lane);
        }
    });
    compared
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
}

fn of_case(case: &Case, base: &Path, new: &Path, room: &Room) -> Comparison {
    let inputs = room.folder().join("in");
    let play = |which, program| {
        let beside = room.folder().join(&case.name).join(which);
        play::play(case, program, beside, &inputs)
    };
    let mut comparison = Comparison::default();
    let (base, new) = match (play("base", base), play("new", new)) {
        (Ok(base), Ok(new)) => (base, new),
        (base, new) => {
            let errors = [("base", base), ("new", new)]
                .map(|(which, outcome)| Some((which, outcome.err()?)));
            let errors = errors.into_iter().flatten();
            let said = errors.map(|(which, error)| format!("{which}: {error:#}"));
            comparison.differences.extend(said);
            return comparison;
        }
    };
    // Exit status for options that the base does not have.
    const USAGE: &str = "2";
    match (unexpected(&base), unexpected(&new)) {
        (_, Some(new)) => comparison
            .differences
            .push(format!("does not do as the table says: {new}")),
        (Some(base), None) if base["status"] == USAGE => comparison
            .additions
            .push(format!("the base cannot: {base}")),
        _ => comparison.compare("", &base, &new),
    }
    comparison
}

/// Returns the first command that ended differently than the table says.
fn unexpected(outcome: &Value) -> Option<&Value> {
    let mut commands = outcome["commands"].as_array()?.iter();
    commands.find(|command| command["unexpected"] == true)
}

fn report(
    args: &GoldenArgs,
    cases: &[Case],
    compared: &BTreeMap<String, Comparison>,
    seconds: f64,
) -> Result<()> {
    let lines = |name: &str| {
        let case = cases.iter().find(|case| case.name == name);
        case.map_or_else(|| vec![name.to_owned()], |case| case.lines().collect())
    };
    let count = |verdict: &str| {
        compared
            .values()
            .filter(|comparison| comparison.verdict() == verdict)
            .count()
    };
    let [same, additions, differs] = ["same", "additions", "differs"].map(count);
    if args.json {
        let cases = compared.iter().map(|(name, comparison)| {
            json!({
                "name": name,
                "lines": lines(name),
                "verdict": comparison.verdict(),
                "additions": comparison.additions,
                "differences": comparison.differences,
            })
        });
        let result = json!({"cases": cases.collect::<Vec<_>>(), "same": same, "additions": additions, "differs": differs, "seconds": seconds});
        println!("{}", serde_json::to_string_pretty(&result)?);
    } else {
        for (name, comparison) in compared {
            let lines = lines(name);
            println!("{:9}  {name}", comparison.verdict());
            for line in lines.iter().filter(|line| *line != name) {
                println!("             {line}");
            }
            show("+", &comparison.additions);
            show("!", &comparison.differences);
        }
        let lines: usize = compared.keys().map(|name| lines(name).len()).sum();
        println!(
            "golden: {lines} command lines in {} cases in {seconds:.0} s: {same} same, {additions} with additions only, {differs} differ",
            compared.len()
        );
    }
    if differs > 0 {
        bail!("{differs} cases differ");
    }
    Ok(())
}

fn show(mark: &str, found: &[String]) {
    const MAX: usize = 400;
    for line in found.iter().take(SHOWN) {
        println!("  {mark} {}", line.chars().take(MAX).collect::<String>());
    }
    if found.len() > SHOWN {
        println!(
            "  {mark} and {} more: --json lists them",
            found.len() - SHOWN
        );
    }
}
