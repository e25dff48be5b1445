//! `cargo xtask stress`: the tests together with two busy loops and a stopper, which pauses a random process of the test, or its whole
//! process group, for 0.2 s every 3 s and for 1.5 s once a minute. A test that depends on a clock eventually fails here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::run::{counts, output_of, well};

const RESULTS: &str = "target/stress.jsonl";
const BUSY_LOOPS: usize = 2;
const EVERY: Duration = Duration::from_secs(3);
const SHORT: u64 = 200;
const LONG: u64 = 1500;
/// One of this many pauses is a long one: once a minute.
const LONG_EACH: u64 = 20;
/// Maximum duration of a run; a longer one hangs.
const LIMIT: Duration = Duration::from_secs(2 * 3600);
/// Environment variable of all processes of a run.
const MARK: &str = "EVLBI_STRESS_RUN";

/// Options of the task.
#[derive(clap::Args)]
pub struct StressArgs {
    /// Runs, one after the other; all runs so far are summed up, so they may be spread over days
    #[arg(long, default_value_t = 1)]
    runs: u32,
    /// Only the tests whose names contain this
    #[arg(long)]
    only: Option<String>,
    /// Seed of the first run's pauses [default: another one each time]
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs the tests under stress.
///
/// # Errors
/// Returns an error if a test failed in one of these runs.
pub fn run(args: &StressArgs) -> Result<()> {
    let mut build = evlbi_testkit::cargo();
    // The compilers are not under test.
    well(build.args(["test", "--workspace", "--no-run"]))?;
    let mut is_well = true;
    for run in 0..args.runs {
        let seed = args
            .seed
            .map_or_else(random_seed, |seed| seed + u64::from(run));
        is_well &= once(args.only.as_deref(), seed)?;
    }
    sum_up(args.only.as_deref())?;
    ensure!(is_well, "tests failed under stress");
    Ok(())
}

/// Returns a seed from the clock.
#[must_use]
pub fn random_seed() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Random(now.as_nanos() as u64).next() % 1_000_000
}

/// Makes one run; returns whether all tests passed.
fn once(only: Option<&str>, seed: u64) -> Result<bool> {
    println!("stress: seed {seed}");
    let begun = Instant::now();
    let _busy = (0..BUSY_LOOPS)
        .map(|_| Busy::begin())
        .collect::<Result<Vec<_>>>()?;
    let mark = evlbi_testkit::leftovers::mark();
    let (output, input) = std::io::pipe()?;
    let mut cargo = evlbi_testkit::cargo();
    cargo.args(["test", "--workspace", "--no-fail-fast", "--"]);
    cargo.args(only).env(MARK, &mark).stdin(Stdio::null());
    // A skipped test would count as passed.
    let required = std::env::var("EVLBI_REQUIRE").unwrap_or_else(|_| "tools".to_owned());
    cargo.env("EVLBI_REQUIRE", &required);
    cargo.stdout(input.try_clone()?).stderr(input);
    let mut child = cargo.spawn().context("cargo")?;
    // It holds the pipe's other end.
    drop(cargo);
    let is_over = AtomicBool::new(false);
    let stopper = Stopper {
        mark: mark.into_bytes(),
        cargo: child.id().cast_signed(),
        random: Random(seed),
    };
    let (told, (tried, pauses)) = thread::scope(|scope| {
        let stopper = scope.spawn(|| stopper.run(&is_over));
        let told = {
            // However it ends: the others would run forever.
            let _over = Over(&is_over);
            follow(output)
        };
        told.map(|told| (told, stopper.join().unwrap_or((1, 0))))
    })?;
    let status = child.wait()?;
    let is_paused = pauses > 0 || tried == 0;
    if !is_paused {
        println!("stress: nothing could be paused: is ptrace forbidden here?");
    }
    let is_well = status.success() && told.failed.is_empty() && is_paused;
    let result = json!({
        "date": output_of("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"])?,
        "commit": output_of("git", &["describe", "--always", "--dirty", "--abbrev=12"])?,
        "seed": seed,
        "only": only,
        "passed": told.passed,
        "failed": told.failed,
        "required": required,
        "skipped": told.skipped,
        "status": status.code(),
        "pauses": pauses,
        "seconds": begun.elapsed().as_secs(),
    });
    let mut file = OpenOptions::new().create(true).append(true).open(RESULTS)?;
    writeln!(file, "{result}")?;
    println!("stress: {result}");
    Ok(is_well)
}

/// A busy loop. It has its own session, like that of another user: in the tests' session, Linux 6.18 with one thread group per session
/// (autogroup) gave all other sessions, and so Chromium, no CPU time for over a minute.
struct Busy(Child);

impl Busy {
    fn begin() -> Result<Busy> {
        // It ends even if this process was killed.
        let spin = format!(
            "while kill -0 {}; do i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; done",
            std::process::id()
        );
        let mut busy = Command::new("setsid");
        busy.args(["sh", "-c", &spin])
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        Ok(Busy(busy.spawn().context("setsid")?))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Marks the run as over when dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reports of the test binaries.
#[derive(Default)]
struct Told {
    passed: u64,
    failed: BTreeSet<String>,
    /// Number of skipped tests of all binaries.
    skipped: u64,
}

/// Prints the output as it arrives, and counts results.
fn follow(output: impl std::io::Read) -> Result<Told> {
    let mut told = Told::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["test", name, "...", "FAILED"] = words[..] {
            told.failed.insert(name.to_owned());
        }
        if let ["skipped", count, ..] = words[..] {
            told.skipped += count.trim_end_matches(':').parse().unwrap_or(0);
        }
        if let Some(result) = line.strip_prefix("test result: ") {
            told.passed += counts(result).0;
        }
    }
    Ok(told)
}

/// Pauses processes of a run.
struct Stopper {
    mark: Vec<u8>,
    cargo: i32,
    random: Random,
}

impl Stopper {
    /// Pauses processes until the run is over; returns how many pauses were tried, and how many succeeded.
    fn run(mut self, is_over: &AtomicBool) -> (u64, u64) {
        let (mut tried, mut held) = (0, 0);
        let begun = Instant::now();
        let mut pauses: u64 = 0;
        let mut next = begun + EVERY;
        while !is_over.load(Ordering::Relaxed) {
            if begun.elapsed() > LIMIT {
                println!("stress: the run hangs; it is killed");
                self.kill_all();
                break;
            }
            // In short steps, so that the end is not delayed.
            thread::sleep(Duration::from_millis(100));
            if Instant::now() < next {
                continue;
            }
            pauses += 1;
            let millis = if pauses.is_multiple_of(LONG_EACH) {
                LONG
            } else {
                SHORT
            };
            if let Some(is_held) = self.pause(millis) {
                tried += 1;
                held += u64::from(is_held);
            }
            next += EVERY;
        }
        (tried, held)
    }

    /// Returns whether any process could be paused; `None` if there was none.
    fn pause(&mut self, millis: u64) -> Option<bool> {
        let mut all = self.processes();
        all.retain(|process| !process.is_tool());
        if all.is_empty() {
            return None;
        }
        let one = (self.random.next() % all.len() as u64) as usize;
        let (process, group) = (all[one].process, all[one].group);
        let whole_group = self.random.next().is_multiple_of(2);
        let chosen: Vec<i32> = all
            .iter()
            .filter(|it| it.process == process || (whole_group && it.group == group))
            .map(|it| it.process)
            .collect();
        thread::scope(|scope| {
            let paused = scope.spawn(|| pause(millis, &chosen));
            paused.join().ok()
        })
    }

    fn kill_all(&self) {
        for process in self
            .processes()
            .iter()
            .map(|it| it.process)
            .chain([self.cargo])
        {
            let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
        }
    }

    /// Returns the processes of the run: cargo's descendants, and orphans that have its mark. Not cargo itself.
    fn processes(&self) -> Vec<Process> {
        let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = folders.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut others: Vec<Process> = numbers.filter_map(Process::read).collect();
        let mark = [MARK.as_bytes(), b"=", &self.mark].concat();
        let (mut found, mut parents) = (Vec::new(), BTreeSet::from([self.cargo]));
        loop {
            let is_ours = |it: &Process| {
                it.process != self.cargo && (parents.contains(&it.parent) || it.has(&mark))
            };
            let (new, rest): (Vec<_>, Vec<_>) = others.into_iter().partition(is_ours);
            if new.is_empty() {
                return found;
            }
            parents = new.iter().map(|it| it.process).collect();
            found.extend(new);
            others = rest;
        }
    }
}

/// State of a process from /proc.
struct Process {
    process: i32,
    name: String,
    state: String,
    parent: i32,
    group: i32,
}

impl Process {
    fn read(process: i32) -> Option<Process> {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let (name, fields) = text.rsplit_once(')')?;
        let mut fields = fields.split_whitespace();
        Some(Process {
            process,
            name: name.split_once('(')?.1.to_owned(),
            state: fields.next()?.to_owned(),
            parent: fields.next()?.parse().ok()?,
            group: fields.next()?.parse().ok()?,
        })
    }

    fn has(&self, mark: &[u8]) -> bool {
        let environment = fs::read(format!("/proc/{}/environ", self.process));
        environment.is_ok_and(|all| {
            all.split(|byte| *byte == 0)
                .any(|variable| variable == mark)
        })
    }

    /// Returns whether it is a compiler, or has ended.
    fn is_tool(&self) -> bool {
        ["rustc", "rustdoc", "cargo"].contains(&&*self.name) || self.state == "Z"
    }
}

/// Holds processes for `millis` milliseconds like a debugger, so that a test's own SIGSTOP and SIGCONT work as always. The kernel
/// releases them when this thread ends, for whatever reason. Returns whether any was held.
fn pause(millis: u64, processes: &[i32]) -> bool {
    let mut held = BTreeSet::new();
    let mut is_any = false;
    loop {
        let before = held.len();
        for process in processes {
            let threads = fs::read_dir(format!("/proc/{process}/task"));
            let threads = threads.into_iter().flatten().flatten();
            let numbers = threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            for thread in numbers.map(Pid::from_raw) {
                // A thread that ends in the meantime cannot be held, and need not be.
                if held.insert(thread) && ptrace::seize(thread, ptrace::Options::empty()).is_ok() {
                    is_any |= ptrace::interrupt(thread).is_ok();
                }
            }
        }
        // Threads started by those that were not held yet.
        if held.len() == before {
            break;
        }
    }
    thread::sleep(Duration::from_millis(millis));
    is_any
}

/// Random numbers from a seed (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Prints the sum over all runs of the same tests so far.
fn sum_up(only: Option<&str>) -> Result<()> {
    let text = fs::read_to_string(RESULTS).context(RESULTS)?;
    let runs: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|run: &Value| run["only"].as_str() == only)
        .collect();
    let commit = runs
        .last()
        .map_or("", |run| run["commit"].as_str().unwrap_or_default());
    let number = |run: &Value, name: &str| run[name].as_u64().unwrap_or(0);
    let of_commit = runs.iter().filter(|run| run["commit"] == commit).count();
    let mut failed: BTreeMap<&str, u32> = BTreeMap::new();
    for name in runs
        .iter()
        .filter_map(|run| run["failed"].as_array())
        .flatten()
    {
        *failed.entry(name.as_str().unwrap_or_default()).or_default() += 1;
    }
    println!(
        "stress: {} runs so far ({of_commit} of {commit}), {} s, {} tests passed; {} failed",
        runs.len(),
        runs.iter().map(|run| number(run, "seconds")).sum::<u64>(),
        runs.iter().map(|run| number(run, "passed")).sum::<u64>(),
        failed.values().sum::<u32>(),
    );
    for (name, times) in failed {
        println!("  failed {times} times: {name}");
    }
    Ok(())
}
