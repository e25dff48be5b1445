//! The cases: what fails, and what `evlbi distribute` must make of it.

use std::fs;
use std::ops::RangeInclusive;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use super::super::record::{Record, Table};
use super::dask::{self, Dask};
use super::hosts::{Hosts, NODES, until};
use super::job::{Attempt, Ended, Job, PARTS};
use super::slurm::Slurm;

/// Pause of each fetch in seconds where no part is to be hit: a part takes about a second.
const SHORT: f64 = 0.1;
/// Pause of each fetch in seconds where a part is to last longer than the outage of a scheduler: twelve seconds.
const LONG: f64 = 2.0;
/// Time after which Slurm's controller has saved a change of its state.
const SAVED: Duration = Duration::from_secs(7);
/// Parts that are done before some cases, to make them short.
const BEFORE: RangeInclusive<u32> = 1..=3;
/// Outage of a scheduler.
const OUTAGE: Duration = Duration::from_secs(3);

/// Cases of an engine, and their table.
pub struct Play<'a> {
    record: &'a mut Record,
    hosts: &'a Hosts,
    job: &'a Job<'a>,
    engine: &'static str,
    options: Vec<String>,
    prepare: Box<dyn Fn(&mut Command) + 'a>,
}

/// Outcome of a case: what was expected, and what is not so.
pub struct Checks {
    outcome: String,
    wrong: Vec<String>,
}

impl Checks {
    /// Notes what is wrong, unless it holds.
    pub fn that(&mut self, holds: bool, otherwise: impl Into<String>) {
        if !holds {
            self.wrong.push(otherwise.into());
        }
    }

    /// Sets the outcome that is shown if nothing is wrong.
    fn outcome(&mut self, outcome: impl Into<String>) {
        self.outcome = outcome.into();
    }
}

impl<'a> Play<'a> {
    /// Returns the cases of an engine with these options of `evlbi distribute`; `prepare` sets its environment.
    pub fn new(
        record: &'a mut Record,
        hosts: &'a Hosts,
        job: &'a Job<'a>,
        engine: &'static str,
        options: &[String],
        prepare: impl Fn(&mut Command) + 'a,
    ) -> Play<'a> {
        let engine_option = ["--engine".to_owned(), engine.to_owned()];
        record.tables.push(Table {
            columns: &["engine", "case", "outcome", "time", "parts run twice"],
            rows: Vec::new(),
        });
        Play {
            record,
            hosts,
            job,
            engine,
            options: [&engine_option[..], options].concat(),
            prepare: Box::new(prepare),
        }
    }

    /// Records the hashes of one run's files.
    pub fn reference(&mut self) -> Result<()> {
        let hashes = self.job.hashes()?;
        let hashes: Vec<String> = (hashes.lines())
            .filter_map(|line| line.split_once("  "))
            .map(|(hash, name)| format!("{name} {hash}"))
            .collect();
        let detail = format!("sums {}; {}", self.job.sums, hashes.join("; "));
        self.record
            .fact("one run, with which all are compared", true, detail);
        Ok(())
    }

    /// Plays a case in an output directory of its own. It is not met if anything is wrong, or if it cannot be played.
    pub fn case(&mut self, name: &str, play: impl FnOnce(&Play, &str, &mut Checks) -> Result<()>) {
        self.job.usual_pause();
        let folder = format!("{}-{}", self.engine, name.replace(' ', "-"));
        let out = self.job.folder(&folder);
        let mut checks = Checks {
            outcome: String::new(),
            wrong: Vec::new(),
        };
        let begun = Instant::now();
        if let Err(error) = play(self, &out, &mut checks) {
            checks.wrong.push(format!("{error:#}"));
        }
        let seconds = begun.elapsed().as_secs_f64();
        let holds = checks.wrong.is_empty();
        let repeated = self.repeated(&out);
        let (outcome, detail) = match holds {
            true => (checks.outcome.clone(), checks.outcome),
            false => ("not as expected".to_owned(), checks.wrong.join("; ")),
        };
        let detail = format!("{detail}; {seconds:.1} s, {repeated} parts run twice");
        self.record
            .fact(format!("{}, {name}", self.engine), holds, detail);
        if let Some(table) = self.record.tables.last_mut() {
            table.rows.push(vec![
                self.engine.to_owned(),
                name.to_owned(),
                outcome,
                format!("{seconds:.1} s"),
                repeated.to_string(),
            ]);
        }
    }

    /// Returns the number of parts of a directory that were started more than once.
    pub fn repeated(&self, out: &str) -> usize {
        self.job
            .starts(out)
            .values()
            .filter(|count| **count > 1)
            .count()
    }

    fn start(&self, out: &str, program: &str, more: &[&str]) -> Result<Attempt<'_>> {
        let more = more.iter().map(|word| (*word).to_owned());
        let options: Vec<String> = self.options.iter().cloned().chain(more).collect();
        self.job
            .distribute(out, program, &options, |command| (self.prepare)(command))
    }

    fn begin(&self, out: &str) -> Result<Attempt<'_>> {
        self.start(out, &self.job.usual_program(), &[])
    }

    /// Checks that a run has ended well, with the files of one run.
    fn same(&self, checks: &mut Checks, ended: &Ended, out: &str) {
        checks.that(
            ended.status == Some(0),
            format!("{}: {}", status(ended), ended.said()),
        );
        checks.wrong.extend(self.job.differences(out));
        let sums = ended.result().map(|result| result["sums_sha256"].clone());
        checks.that(
            sums.as_ref().and_then(|sums| sums.as_str()) == Some(&self.job.sums),
            format!("the sums of its result: {sums:?}"),
        );
    }

    /// Checks that a run has failed with one of these statuses and merged nothing.
    fn not_merged(&self, checks: &mut Checks, ended: &Ended, out: &str, statuses: &[i32]) {
        checks.that(
            ended
                .status
                .is_some_and(|status| statuses.contains(&status)),
            format!("{}, not {statuses:?}: {}", status(ended), ended.said()),
        );
        checks.that(!self.job.is_merged(out), "something was merged");
    }
}

fn status(ended: &Ended) -> String {
    match ended.status {
        Some(status) => format!("status {status}"),
        None => "killed".to_owned(),
    }
}

/// Runs all parts without a failure.
pub fn plain(play: &Play, out: &str, checks: &mut Checks) -> Result<()> {
    let ended = play.begin(out)?.end()?;
    play.same(checks, &ended, out);
    let starts = play.job.starts(out);
    checks.that(
        starts.len() == PARTS as usize && play.repeated(out) == 0,
        format!("starts of the parts: {starts:?}"),
    );
    checks.outcome(format!("the files of one run after {:.1} s", ended.seconds));
    Ok(())
}

/// Kills all processes of the second node while it runs a part.
pub fn killed_node(play: &Play, out: &str, checks: &mut Checks) -> Result<()> {
    play.job.do_parts(out, BEFORE)?;
    let mut attempt = play.begin(out)?;
    let (node, _) = NODES[1];
    let part = attempt.until("a part runs on the node", || {
        let running = play.job.running()?.into_iter();
        Ok(running
            .filter(|(_, process)| process.host == node)
            .map(|(part, _)| part)
            .next())
    })?;
    play.hosts.kill(node);
    let ended = attempt.end()?;
    play.same(checks, &ended, out);
    let starts = play.job.starts(out);
    checks.that(
        starts.get(&part).is_some_and(|count| *count > 1),
        format!("part {part} was running, and was not run again: {starts:?}"),
    );
    checks.outcome(format!("part {part} runs again; the files of one run"));
    Ok(())
}

/// Kills the process of a part.
pub fn killed_part(play: &Play, out: &str, checks: &mut Checks) -> Result<()> {
    play.job.do_parts(out, BEFORE)?;
    let mut attempt = play.begin(out)?;
    let running = attempt.running(1)?;
    let (part, process) = running.into_iter().next().context("no part")?;
    process.signal(Signal::SIGKILL)?;
    let ended = attempt.end()?;
    play.same(checks, &ended, out);
    let starts = play.job.starts(out);
    checks.that(
        starts.get(&part) == Some(&2),
        format!("part {part} was killed, and was not run again: {starts:?}"),
    );
    checks.outcome(format!("part {part} runs again; the files of one run"));
    Ok(())
}

/// Kills a worker of Dask, which its nanny starts again, while it runs a part.
pub fn killed_worker(play: &Play, dask: &Dask, out: &str, checks: &mut Checks) -> Result<()> {
    play.job.do_parts(out, BEFORE)?;
    let mut attempt = play.begin(out)?;
    attempt.running(2)?;
    let worker = dask.worker(NODES[1].0).context("no worker")?;
    worker.signal(Signal::SIGKILL)?;
    let ended = attempt.end()?;
    play.same(checks, &ended, out);
    checks.outcome("the files of one run");
    Ok(())
}

/// Kills Slurm's controller while two parts run, and starts it again before they end.
pub fn killed_controller(play: &Play, slurm: &Slurm, out: &str, checks: &mut Checks) -> Result<()> {
    play.job.do_parts(out, BEFORE)?;
    play.job.pause(LONG);
    let mut attempt = play.begin(out)?;
    attempt.running(2)?;
    // A controller that is killed earlier starts these parts again, and drains the nodes because of them.
    std::thread::sleep(SAVED);
    slurm.kill_controller()?;
    std::thread::sleep(OUTAGE);
    slurm.start_controller()?;
    let mut ended = attempt.end()?;
    let mut outcome = "followed to the end";
    if ended.status == Some(75) {
        outcome = "status 75, and run again";
        ended = play.begin(out)?.end()?;
    }
    play.same(checks, &ended, out);
    checks.that(
        play.repeated(out) == 0,
        format!(
            "{} parts that ran were started again: {}",
            play.repeated(out),
            slurm.jobs()?
        ),
    );
    let starts = play.job.starts(out);
    checks.that(
        starts.keys().all(|part| !BEFORE.contains(part)),
        format!("parts that were there were started: {starts:?}"),
    );
    checks.outcome(format!("{outcome}; the files of one run"));
    Ok(())
}

/// Kills Dask's scheduler while two parts run; a new one finishes the correlation.
pub fn killed_scheduler(
    play: &Play,
    dask: &mut Dask,
    out: &str,
    checks: &mut Checks,
) -> Result<()> {
    let mut attempt = play.begin(out)?;
    let before = attempt.done(1)?;
    attempt.running(2)?;
    dask.kill_scheduler()?;
    let ended = attempt.end()?;
    play.not_merged(checks, &ended, out, &[1, 75]);
    let first = status(&ended);
    dask.settle()?;
    let ended = play.begin(out)?.end()?;
    play.same(checks, &ended, out);
    once(play, checks, out, &before);
    checks.outcome(format!("{first}; run again: the files of one run"));
    Ok(())
}

/// Checks that the parts that were done before were not started again.
fn once(play: &Play, checks: &mut Checks, out: &str, parts: &[u32]) {
    let starts = play.job.starts(out);
    let again = parts.iter().filter(|part| starts.get(part) != Some(&1));
    let again: Vec<String> = again.map(ToString::to_string).collect();
    checks.that(
        again.is_empty(),
        format!("done before, and started again: {}", again.join(", ")),
    );
}

/// Fills the disk of the output directory, and makes room.
pub fn full_disk(play: &Play, out: &str, checks: &mut Checks) -> Result<()> {
    play.job.pause(SHORT);
    // Room for three parts besides the small files.
    let sample = play.job.folder("sample");
    play.job.do_parts(&sample, [1])?;
    let size = play.job.part_size(&sample)?;
    fs::create_dir(out)?;
    play.hosts.disk(out, 4 * size, "")?;
    let program = play.job.usual_program();
    let ended = play.start(out, &program, &["--retries", "1"])?.end()?;
    play.not_merged(checks, &ended, out, &[75]);
    let done = play.job.marks(out).len();
    checks.that(
        (1..PARTS as usize).contains(&done),
        format!("{done} parts are done on a disk with room for three"),
    );
    play.hosts.disk(out, 100 * size, "remount,")?;
    let ended = play.begin(out)?.end()?;
    play.same(checks, &ended, out);
    checks.outcome(format!(
        "status 75 with {done} parts done; with more room the files of one run"
    ));
    Ok(())
}

/// Runs parts of which one always fails.
pub fn failing(play: &Play, out: &str, checks: &mut Checks) -> Result<()> {
    play.job.pause(SHORT);
    let program = play.job.failing_program()?;
    let ended = play.start(out, &program, &[])?.end()?;
    play.not_merged(checks, &ended, out, &[1]);
    checks.that(
        ended.says("part 4"),
        format!("part 4 is not named: {}", ended.said()),
    );
    let done = play.job.marks(out);
    checks.that(done == [1, 2, 3, 5, 6, 7], format!("done are {done:?}"));
    let tries = play.job.starts(out).get(&4).copied().unwrap_or(0);
    checks.that(tries == 1, format!("{tries} tries of part 4"));
    checks.outcome("status 1, part 4 is named, the other six are done, nothing is merged");
    Ok(())
}

/// Runs parts by a program of another version.
pub fn other_version(play: &Play, out: &str, checks: &mut Checks) -> Result<()> {
    play.job.pause(SHORT);
    let (program, version) = play.job.other_version()?;
    let said = play.hosts.run(&program, &["--version"])?;
    ensure!(
        said.contains(&version),
        "the changed copy says {}",
        said.trim()
    );
    let ended = play.start(out, &program, &[])?.end()?;
    play.not_merged(checks, &ended, out, &[1]);
    let own = &play.job.version;
    checks.that(
        ended.says(&version) && ended.says(own),
        format!("{own} and {version} are not named: {}", ended.said()),
    );
    let done = play.job.marks(out);
    checks.that(done.is_empty(), format!("done are {done:?}"));
    checks.outcome(format!(
        "status 1, {version} is refused for a plan of {own}"
    ));
    Ok(())
}

/// Stops the process of a part by SIGSTOP.
pub fn straggler(play: &Play, out: &str, checks: &mut Checks) -> Result<()> {
    play.job.do_parts(out, BEFORE)?;
    let mut attempt = play.begin(out)?;
    let running = attempt.running(1)?;
    let (part, process) = running.into_iter().next().context("no part")?;
    process.signal(Signal::SIGSTOP)?;
    let ended = attempt.end()?;
    play.same(checks, &ended, out);
    let starts = play.job.starts(out);
    let copies = starts.get(&part).copied().unwrap_or(0);
    checks.that(copies == 2, format!("{copies} copies of part {part}"));
    checks.that(
        play.repeated(out) == 1,
        format!("parts that were not stopped have copies: {starts:?}"),
    );
    // A task of Dask that runs cannot be cancelled.
    if play.engine != "dask" {
        let gone = until("the stopped copy ends", || {
            Ok(play.job.running()?.is_empty().then_some(()))
        });
        checks.that(gone.is_ok(), "the stopped copy was not cancelled");
    }
    checks.outcome(format!(
        "part {part} gets a second copy; the files of one run"
    ));
    Ok(())
}

/// Kills `evlbi distribute` while parts run, and runs it again.
pub fn killed(play: &Play, out: &str, checks: &mut Checks) -> Result<()> {
    let mut attempt = play.begin(out)?;
    let before = attempt.done(2)?;
    attempt.running(1)?;
    attempt.kill()?;
    let ended = play.begin(out)?.end()?;
    play.same(checks, &ended, out);
    once(play, checks, out, &before);
    checks.outcome(format!(
        "killed with {} parts done; run again: the files of one run",
        before.len()
    ));
    Ok(())
}

/// Asks Slurm for more memory than any node has.
pub fn refused(play: &Play, out: &str, checks: &mut Checks) -> Result<()> {
    let program = play.job.usual_program();
    let ended = play
        .start(out, &program, &["--sbatch=--mem=999999999"])?
        .end()?;
    play.not_merged(checks, &ended, out, &[1, 2]);
    checks.that(
        ended.says("Requested node configuration is not available"),
        format!("the words of sbatch are not shown: {}", ended.said()),
    );
    // Slurm keeps the refused job as a failed one of that name.
    play.job.do_parts(out, BEFORE)?;
    let ended = play.begin(out)?.end()?;
    play.same(checks, &ended, out);
    checks
        .outcome("refused with the words of sbatch; then without that option the files of one run");
    Ok(())
}

/// Gives the address of a scheduler without TLS that is not on loopback.
pub fn plain_scheduler(play: &Play, dask: &Dask, out: &str, checks: &mut Checks) -> Result<()> {
    let mut options = vec!["--engine".to_owned(), "dask".to_owned()];
    options.extend(["--scheduler".to_owned(), dask::plain_address()]);
    options.extend(dask.python());
    let program = play.job.usual_program();
    let mut attempt = play.job.distribute(out, &program, &options, |_| {})?;
    let ended = attempt.end()?;
    play.not_merged(checks, &ended, out, &[1, 2]);
    checks.that(
        ended.says("TLS"),
        format!("TLS is not named: {}", ended.said()),
    );
    checks.that(play.job.starts(out).is_empty(), "parts were started");
    checks.outcome("refused, since anyone could run code there");
    Ok(())
}
