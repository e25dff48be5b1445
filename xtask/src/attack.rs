//! `cargo xtask attack`: hostile datagrams, clients and files against the program while real data flow. Each attack follows from a seed
//! and has an expectation that holds on a host of any speed; the table at the end compares the outcome with it.
//!
//! Add a further attack, with its expectation, to the file of what it attacks.

mod agent;
mod connections;
mod correlate;
mod datagrams;
mod files;
mod pause;
mod program;
mod recording;
mod relay;
mod respond;
pub mod scene;
mod tls;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use self::scene::{Outcome, Scene};
use crate::run::well;

#[derive(Args)]
pub struct AttackArgs {
    /// Seed of all attacks [default: from the clock, and printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Start no further round of attacks after this many seconds; the first round is always whole
    #[arg(long, value_name = "N", default_value_t = 10)]
    seconds: u64,
    /// Run only the attacks whose names contain this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Attack this program [default: a debug build, which is made first]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Print the outcomes as one JSON object
    #[arg(long)]
    json: bool,
    /// List the attacks
    #[arg(long)]
    list: bool,
}

/// A kind of attack.
#[derive(Clone, Copy)]
pub struct Attack {
    /// Short name, for `--only`.
    pub name: &'static str,
    /// The attacked part of the program.
    pub target: &'static str,
    /// The hostile input.
    pub what: &'static str,
    /// Expectation, for any seed and any load of the host.
    pub expects: &'static str,
    /// Function that runs it.
    pub run: fn(&mut Scene) -> Result<()>,
}

/// Outcomes of an attack in all rounds.
#[derive(Default)]
struct Outcomes {
    rounds: u64,
    /// Round and outcome of those that were not as expected.
    broken: Vec<(u64, Outcome)>,
    last: String,
    seconds: f64,
}

/// Number of attacks that run in parallel. They mostly wait.
const LANES: usize = 4;

/// Returns the attacks, the longest first, so that nothing long starts last.
fn attacks() -> Vec<Attack> {
    let groups = [
        agent::ATTACKS,
        files::ATTACKS,
        correlate::ATTACKS,
        respond::ATTACKS,
        pause::ATTACKS,
        connections::ATTACKS,
        datagrams::ATTACKS,
        recording::ATTACKS,
    ];
    groups.concat()
}

/// Seed in the gate, so that each change meets the same attacks; `cargo xtask live` tries others.
const GATE: u64 = 26;

/// Attacks the program that the tests have built, for ten seconds.
pub fn gate() -> Result<()> {
    run(&AttackArgs {
        seed: Some(GATE),
        seconds: 10,
        only: None,
        program: Some(PathBuf::from("target/debug/evlbi")),
        json: false,
        list: false,
    })
}

pub fn run(args: &AttackArgs) -> Result<()> {
    let is_chosen = |attack: &Attack| {
        let only = args.only.as_ref();
        only.is_none_or(|only| attack.name.contains(only.as_str()))
    };
    let attacks: Vec<Attack> = attacks().into_iter().filter(is_chosen).collect();
    if args.list {
        for attack in &attacks {
            println!("{:<24} {:<18} {}", attack.name, attack.target, attack.what);
        }
        return Ok(());
    }
    if attacks.is_empty() {
        bail!("no attack has such a name: cargo xtask attack --list names them");
    }
    let program = match &args.program {
        Some(program) => program.clone(),
        None => {
            well(evlbi_testkit::cargo().args(["build", "--package", "evlbi"]))?;
            PathBuf::from("target/debug/evlbi")
        }
    };
    let program = program
        .canonicalize()
        .with_context(|| program.display().to_string())?;
    let seed = args.seed.unwrap_or_else(seed_of_now);
    if !args.json {
        println!("attack: --seed {seed} against {}", program.display());
    }
    let begun = Instant::now();
    // Panics of the testkit's waits are outcomes.
    std::panic::set_hook(Box::new(|_| {}));
    let outcomes = rounds(&attacks, &program, seed, Duration::from_secs(args.seconds));
    let _ = std::panic::take_hook();
    let seconds = begun.elapsed().as_secs_f64();
    let broken = outcomes.values().filter(|all| !all.broken.is_empty());
    let broken = broken.count();
    if args.json {
        let report = json(&attacks, &outcomes, seed, seconds);
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&attacks, &outcomes, seed);
        println!(
            "attack: {} attacks in {seconds:.1} s, {broken} with an outcome that is not the expectation (--seed {seed})",
            attacks.len()
        );
    }
    if broken > 0 {
        bail!("{broken} attacks have an outcome that is not the expectation: --seed {seed}");
    }
    Ok(())
}

fn seed_of_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_micros() as u64 % 1_000_000_000)
}

/// Runs all attacks, and repeats them with other seeds until the time is over.
fn rounds(
    attacks: &[Attack],
    program: &std::path::Path,
    seed: u64,
    time: Duration,
) -> BTreeMap<&'static str, Outcomes> {
    let begun = Instant::now();
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(BTreeMap::<&str, Outcomes>::new());
    let lane = || {
        loop {
            let turn = next.fetch_add(1, Ordering::Relaxed);
            let (round, attack) = (
                (turn / attacks.len()) as u64,
                &attacks[turn % attacks.len()],
            );
            if round > 0 && begun.elapsed() >= time {
                return;
            }
            let start = Instant::now();
            let outcome = scene::outcome(attack, program, seed, round);
            let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            let all = outcomes.entry(attack.name).or_default();
            all.rounds += 1;
            all.seconds += start.elapsed().as_secs_f64();
            all.last.clone_from(&outcome.found);
            if !outcome.broken.is_empty() {
                all.broken.push((round, outcome));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(lane);
        }
    });
    outcomes
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
}

fn print(attacks: &[Attack], outcomes: &BTreeMap<&'static str, Outcomes>, seed: u64) {
    let head = ["attack", "target", "expectation", "outcome"].map(str::to_owned);
    let mut rows = vec![head];
    for attack in attacks {
        let Some(all) = outcomes.get(attack.name) else {
            continue;
        };
        let verdict = match all.broken.len() {
            0 => format!("as expected, {} of {0}", all.rounds),
            broken => format!("NOT AS EXPECTED, {broken} of {}", all.rounds),
        };
        let outcome = format!("{verdict}: {}", all.last);
        let [name, target, expects] =
            [attack.name, attack.target, attack.expects].map(str::to_owned);
        rows.push([name, target, expects, outcome]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let [first, second, third] = [0, 1, 2].map(width);
    println!();
    for [name, target, expects, outcome] in &rows {
        println!("{name:first$}  {target:second$}  {expects:third$}  {outcome}");
    }
    for attack in attacks {
        let broken = outcomes.get(attack.name).map(|all| &all.broken);
        for (round, outcome) in broken.into_iter().flatten() {
            println!(
                "\n{} (--seed {seed}, round {round}): {}",
                attack.name, attack.what
            );
            for line in &outcome.broken {
                println!("  {line}");
            }
        }
    }
    println!();
}

fn json(
    attacks: &[Attack],
    outcomes: &BTreeMap<&'static str, Outcomes>,
    seed: u64,
    seconds: f64,
) -> Value {
    let attacks = attacks.iter().filter_map(|attack| {
        let all = outcomes.get(attack.name)?;
        let broken = all.broken.iter();
        let broken =
            broken.map(|(round, outcome)| json!({"round": round, "found": outcome.broken}));
        Some(json!({
            "name": attack.name,
            "target": attack.target,
            "attack": attack.what,
            "expectation": attack.expects,
            "as_expected": all.broken.is_empty(),
            "rounds": all.rounds,
            "seconds": all.seconds,
            "found": all.last,
            "broken": broken.collect::<Vec<_>>(),
        }))
    });
    json!({
        "schema": "evlbi.attack-report/1",
        "seed": seed,
        "seconds": seconds,
        "attacks": attacks.collect::<Vec<_>>(),
    })
}
