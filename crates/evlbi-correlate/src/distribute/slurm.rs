//! Runs parts as arrays of jobs of Slurm, by its commands `sbatch`, `squeue` and `scancel`.
//!
//! The jobs continue if this program ends. They have the plan's name, by which they are found again. Slurm needs no accounting: what
//! counts are completion marks, and a job that Slurm no longer knows has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use evlbi_core::time::Nanos;
use evlbi_net::run::Run;

use super::task::{TRY_AGAIN, Task};
use super::{DistributeError, Engine, PartEnd, PartState};
use crate::chunks::{ChunkPlan, listed, quoted};
use crate::files::last_line;

/// Maximum number of jobs of an array: less than Slurm's `MaxArraySize`, which is 1001 unless a site sets it.
const ARRAY: usize = 1000;
/// Interval between questions to Slurm's controller, which all users share.
const INTERVAL: Nanos = Nanos(3_000_000_000);
/// Answers after which a job that Slurm no longer lists has ended: it lists a new one at once.
const GONE: u32 = 5;
/// Fields of `squeue`, and their widths. The last one may contain spaces.
const FIELDS: [(&str, usize); 7] = [
    ("Name", 40),
    ("ArrayJobID", 16),
    ("ArrayTaskID", 16),
    ("State", 24),
    ("exit_code", 12),
    ("NodeList", 64),
    ("Reason", 120),
];

/// Engine that runs parts by Slurm.
pub struct Slurm {
    task: Task,
    plan: PlanOfJobs,
    /// Further options of `sbatch`.
    options: Vec<String>,
    /// Jobs of earlier runs that have ended, which say nothing about this one.
    old: BTreeSet<String>,
    begun: BTreeMap<usize, Begun>,
    /// Jobs of each part, as they were last listed.
    jobs: BTreeMap<usize, Vec<Job>>,
    states: BTreeMap<usize, PartState>,
    asked: Option<Nanos>,
    /// Parts that were submitted twice.
    copied: BTreeSet<usize>,
    trouble: Option<String>,
}

/// A part that was begun.
#[derive(Default)]
struct Begun {
    /// Answers in which Slurm did not list it, in a row.
    unlisted: u32,
    /// How often it was submitted again because Slurm held it.
    held: u32,
}

/// Properties that the jobs of a plan have in common.
struct PlanOfJobs {
    name: String,
    parts: usize,
    threads: usize,
    at_once: Option<usize>,
}

/// A job, as `squeue` lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Job {
    /// Its array and its number there, e.g. `17_4`.
    id: String,
    state: String,
    status: i32,
    host: String,
    reason: String,
}

impl Slurm {
    /// Creates an engine that runs at most `jobs` parts at once, with these further options of `sbatch`.
    pub fn new(task: Task, plan: &ChunkPlan, jobs: Option<usize>, options: Vec<String>) -> Slurm {
        let digits = plan.plan_id.get(..12).unwrap_or_default();
        let plan = PlanOfJobs {
            name: format!("evlbi-{digits}"),
            parts: plan.parts.len(),
            threads: plan.threads,
            at_once: jobs,
        };
        Slurm::of(task, plan, options)
    }

    fn of(task: Task, plan: PlanOfJobs, options: Vec<String>) -> Slurm {
        Slurm {
            task,
            plan,
            options,
            old: BTreeSet::new(),
            begun: BTreeMap::new(),
            jobs: BTreeMap::new(),
            states: BTreeMap::new(),
            asked: None,
            copied: BTreeSet::new(),
            trouble: None,
        }
    }

    /// Asks Slurm for all jobs of the plan.
    fn list(&self) -> Result<BTreeMap<usize, Vec<Job>>, DistributeError> {
        let firsts = (0..self.plan.parts).step_by(ARRAY);
        let names: Vec<String> = firsts.map(|first| self.plan.name_from(first)).collect();
        let names = format!("--name={}", names.join(","));
        let fields = FIELDS.map(|(name, width)| format!("{name}:{width}"));
        let fields = format!("--Format={}", fields.join(","));
        let arguments = [
            "--noheader",
            "--array",
            "--me",
            "--states=all",
            &names,
            &fields,
        ];
        let listed = ask("squeue", arguments.map(OsStr::new))?;
        let mut jobs: BTreeMap<usize, Vec<Job>> = BTreeMap::new();
        for (part, job) in listed.lines().filter_map(|line| self.plan.job(line)) {
            jobs.entry(part).or_default().push(job);
        }
        Ok(jobs)
    }

    /// Submits parts as arrays.
    fn submit(&self, parts: &[usize], copy: u32, run: &Run) -> Result<(), DistributeError> {
        for parts in parts.chunk_by(|a, b| (a - 1) / ARRAY == (b - 1) / ARRAY) {
            let first = (parts[0] - 1) / ARRAY * ARRAY;
            let script = self.script(parts, first);
            let path = self.script_path(first, copy);
            fs::write(&path, script).map_err(|error| DistributeError::Engine {
                command: format!("write {}", path.display()),
                why: error.to_string(),
                may_succeed: true,
            })?;
            let mut arguments = vec![OsStr::new("--parsable")];
            arguments.extend(self.options.iter().map(OsStr::new));
            arguments.push(path.as_os_str());
            let id = ask("sbatch", arguments)?;
            let id = id.trim().split(';').next().unwrap_or_default().to_owned();
            let path = path.display();
            run.say(format_args!(
                "submitted {path} as job {id} of Slurm: parts {}",
                listed(parts)
            ));
        }
        Ok(())
    }

    fn script_path(&self, first: usize, copy: u32) -> PathBuf {
        let name = match copy {
            1 => format!("slurm-{:05}.sh", first + 1),
            copy => format!("slurm-{:05}-copy-{copy}.sh", first + 1),
        };
        self.task.directory.join(name)
    }

    /// Returns the script of an array of parts, whose numbers count from `first`.
    fn script(&self, parts: &[usize], first: usize) -> String {
        let numbers: Vec<String> = parts
            .iter()
            .map(|part| (part - first).to_string())
            .collect();
        let at_once = self
            .plan
            .at_once
            .map_or(String::new(), |jobs| format!("%{jobs}"));
        let log = self.task.directory.join("slurm-%A_%a.log");
        let command = [self.task.program.as_os_str()]
            .into_iter()
            .chain(self.task.arguments_for(OsStr::new("$part")));
        let command = command.map(|word| match word.to_str() {
            Some("$part") => "\"$part\"".to_owned(),
            _ => quoted(&word.to_string_lossy()).into_owned(),
        });
        format!(
            r#"#!/bin/sh
#SBATCH --job-name={name}
#SBATCH --array={numbers}{at_once}
#SBATCH --cpus-per-task={threads}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="{log}"
part=$(({first} + SLURM_ARRAY_TASK_ID))
{command}
status=$?
# What may succeed later, or was killed, is tried again.
if {{ [ "$status" -eq {TRY_AGAIN} ] || [ "$status" -gt 128 ]; }} && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {retries} ]; then
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}" && sleep 600
fi
exit "$status"
"#,
            name = self.plan.name_from(first),
            numbers = numbers.join(","),
            threads = self.plan.threads,
            log = log.display(),
            command = command.collect::<Vec<String>>().join(" "),
            retries = self.task.retries,
        )
    }

    /// Finds the states of all parts, and submits again what Slurm holds.
    fn look(&mut self, run: &Run) {
        let (mut reasons, mut held) = (BTreeSet::new(), Vec::new());
        for (part, begun) in &mut self.begun {
            let jobs = self.jobs.get(part).map(Vec::as_slice).unwrap_or_default();
            let ours = || jobs.iter().filter(|job| !self.old.contains(&job.id));
            let log = |job: &Job| self.task.directory.join(format!("slurm-{}.log", job.id));
            let end = |job: &Job| PartState::Ended(job.end_of(*part, &log(job)));
            let active = || ours().filter(|job| !job.has_ended());
            let is_listed = begun.unlisted <= GONE;
            let state = if let Some(job) = ours().find(|job| job.runs() && is_listed) {
                PartState::Runs(job.host.clone())
            } else if let Some(job) = active().find(|job| job.is_held()) {
                begun.held += 1;
                if begun.held > self.task.retries {
                    end(job)
                } else {
                    held.push((*part, job.clone()));
                    continue;
                }
            } else if let Some(job) = active().next() {
                if is_listed {
                    reasons.insert(job.reason.clone());
                    continue;
                }
                end(job)
            } else if let Some(job) = ours().max_by_key(|job| job.state == "COMPLETED") {
                end(job)
            } else if !is_listed {
                PartState::Ended(PartEnd {
                    part: *part,
                    host: String::new(),
                    status: None,
                    why: "Slurm has no job of it".to_owned(),
                })
            } else {
                continue;
            };
            self.states.insert(*part, state);
        }
        for (part, job) in held {
            run.warn(format_args!(
                "Slurm holds part {part} ({}): it is submitted again",
                job.reason
            ));
            match self.submit(&[part], 1, run) {
                Ok(()) => {
                    cancel([&job].into_iter());
                    self.old.insert(job.id);
                }
                Err(error) => run.warn(format_args!("{}", run.explain(&error))),
            }
        }
        let runs = |state: &PartState| matches!(state, PartState::Runs(_));
        if !self.states.values().any(runs) && !reasons.is_empty() {
            let reasons: Vec<String> = reasons.into_iter().collect();
            self.trouble = Some(format!("Slurm lets parts wait: {}", reasons.join(", ")));
        }
    }
}

impl PlanOfJobs {
    /// Returns the name of the jobs of the parts after the first ones.
    fn name_from(&self, first: usize) -> String {
        match first {
            0 => self.name.clone(),
            first => format!("{}-{first}", self.name),
        }
    }

    /// Parses a line of `squeue`; returns the part and its job.
    fn job(&self, line: &str) -> Option<(usize, Job)> {
        let mut rest = line;
        let fields = FIELDS.map(|(_, width)| {
            let (field, more) = rest.split_at_checked(width).unwrap_or((rest, ""));
            rest = more;
            field.trim()
        });
        let [name, array, number, state, status, host, reason] = fields;
        let first = match name.strip_prefix(&self.name)? {
            "" => 0,
            first => first.strip_prefix('-')?.parse().ok()?,
        };
        let part: usize = first + number.parse::<usize>().ok()?;
        let job = Job {
            id: format!("{array}_{number}"),
            state: state.to_owned(),
            status: status.parse().ok()?,
            host: host.to_owned(),
            reason: reason.to_owned(),
        };
        (1..=self.parts).contains(&part).then_some((part, job))
    }
}

impl Job {
    fn has_ended(&self) -> bool {
        matches!(
            self.state.as_str(),
            "BOOT_FAIL"
                | "CANCELLED"
                | "COMPLETED"
                | "DEADLINE"
                | "FAILED"
                | "NODE_FAIL"
                | "OUT_OF_MEMORY"
                | "PREEMPTED"
                | "REVOKED"
                | "TIMEOUT"
        )
    }

    fn runs(&self) -> bool {
        matches!(
            self.state.as_str(),
            "RUNNING" | "COMPLETING" | "SUSPENDED" | "STOPPED"
        )
    }

    /// Returns whether Slurm holds it after a failure of its own, as after a restart of the controller. Persons hold jobs, too.
    fn is_held(&self) -> bool {
        let reason = self.reason.to_lowercase().replace('_', " ");
        self.state == "PENDING" && reason.contains("requeued held")
    }

    /// Describes the end of the job of a part, with the last line of its log.
    fn end_of(&self, part: usize, log: &Path) -> PartEnd {
        // The status is that of wait(2).
        let status = (self.status & 0x7f == 0).then_some(self.status >> 8);
        let status = match self.state.as_str() {
            "COMPLETED" | "FAILED" => status,
            _ => None,
        };
        let line = last_line(log);
        let why = match status {
            Some(_) => line,
            None => format!(
                "job {} of Slurm: {}, {}; {line}",
                self.id, self.state, self.reason
            ),
        };
        PartEnd {
            part,
            host: self.host.clone(),
            status,
            why,
        }
    }
}

impl Engine for Slurm {
    fn begin(&mut self, parts: &[usize], copy: u32, run: &Run) -> Result<(), DistributeError> {
        let mut new = parts.to_vec();
        if copy == 1 {
            let before = self.list()?;
            let jobs = || {
                before
                    .iter()
                    .flat_map(|(part, jobs)| jobs.iter().map(move |it| (part, it)))
            };
            let is_over = |job: &Job| job.has_ended() || job.is_held();
            let ended = jobs().filter(|(_, job)| is_over(job));
            self.old = ended.map(|(_, job)| job.id.clone()).collect();
            cancel(jobs().map(|(_, job)| job).filter(|job| job.is_held()));
            let active = jobs().filter(|(_, job)| !is_over(job));
            let active: BTreeSet<usize> = active.map(|(part, _)| *part).collect();
            new.retain(|part| !active.contains(part));
            if !active.is_empty() {
                run.say(format_args!(
                    "Slurm has jobs of {} parts already",
                    active.len()
                ));
            }
        }
        if copy > 1 {
            self.copied.extend(parts);
        }
        self.submit(&new, copy, run)?;
        for part in parts {
            self.begun.entry(*part).or_default();
        }
        self.asked = None;
        Ok(())
    }

    fn states(&mut self, run: &Run) -> Result<BTreeMap<usize, PartState>, DistributeError> {
        let now = run.clock().now();
        if self.asked.is_some_and(|asked| now.since(asked) < INTERVAL) {
            return Ok(self.states.clone());
        }
        match self.list() {
            Ok(jobs) => {
                self.trouble = None;
                for (part, begun) in &mut self.begun {
                    begun.unlisted = if jobs.contains_key(part) {
                        0
                    } else {
                        begun.unlisted + 1
                    };
                }
                self.jobs.extend(jobs);
                self.states.clear();
                self.look(run);
            }
            // The controller may come back; parts run without it.
            Err(error) => {
                if self.trouble.is_none() {
                    run.warn(format_args!("Slurm does not answer: {error}"));
                }
                self.trouble = Some("Slurm does not answer".to_owned());
            }
        }
        // An answer can take long.
        self.asked = Some(run.clock().now());
        Ok(self.states.clone())
    }

    fn end(&mut self, part: usize) {
        self.begun.remove(&part);
        self.states.remove(&part);
        let mut jobs = self.jobs.remove(&part).unwrap_or_default();
        // A copy can come and go between two answers.
        if self.copied.contains(&part)
            && let Ok(mut listed) = self.list()
        {
            jobs = listed.remove(&part).unwrap_or_default();
        }
        let left = || jobs.iter().filter(|job| !job.has_ended());
        // The job that made the part ends by itself.
        if self.copied.contains(&part) || left().any(|job| !job.runs()) {
            cancel(left());
        }
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.clone()
    }

    fn stop(&mut self) {}
}

/// Cancels jobs.
fn cancel<'a>(jobs: impl Iterator<Item = &'a Job>) {
    let ids: Vec<&OsStr> = jobs.map(|job| OsStr::new(&job.id)).collect();
    if !ids.is_empty() {
        // One that cannot be cancelled finds the part already there.
        let _ = ask("scancel", ids);
    }
}

/// Runs a command of Slurm; returns what it prints.
fn ask<'a>(
    command: &str,
    arguments: impl IntoIterator<Item = &'a OsStr>,
) -> Result<String, DistributeError> {
    let failed = |why: String, may_succeed| DistributeError::Engine {
        command: command.to_owned(),
        why,
        may_succeed,
    };
    let ran = Command::new(command)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let ran = ran.map_err(|error| failed(format!("cannot be run: {error}"), false))?;
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr);
        let said = said.trim().lines().last().unwrap_or_default();
        let is_away = ["contact", "onnection", "imed out", "temporarily"]
            .iter()
            .any(|word| said.contains(word));
        return Err(failed(
            format!("ended with {}: {said}", ran.status),
            is_away,
        ));
    }
    Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(parts: usize, at_once: Option<usize>) -> PlanOfJobs {
        PlanOfJobs {
            name: "evlbi-0123456789ab".to_owned(),
            parts,
            threads: 2,
            at_once,
        }
    }

    /// Values as Slurm 22.05 prints them.
    #[test]
    fn jobs_are_read_from_squeue() {
        let line = |values: [&str; 7]| -> String {
            let fields = FIELDS.iter().zip(values);
            let fields = fields.map(|((_, width), value)| format!("{value:width$}"));
            fields.collect()
        };
        let plan = plan(2_000, None);
        let read = |values| plan.job(&line(values));
        let name = "evlbi-0123456789ab";
        let (part, job) =
            read([name, "1", "2", "FAILED", "19200", "n1", "NonZeroExitCode"]).unwrap();
        let end = job.end_of(part, Path::new("/nowhere"));
        assert_eq!((part, job.id.as_str(), end.status), (2, "1_2", Some(75)));
        assert!(job.has_ended());
        let second = "evlbi-0123456789ab-1000";
        let reason = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions";
        let (part, job) = read([second, "7", "3", "PENDING", "0", "", reason]).unwrap();
        assert_eq!(
            (part, job.host.as_str(), job.reason.as_str()),
            (1_003, "", reason)
        );
        assert!(!job.has_ended() && !job.runs() && !job.is_held());
        let held = ["PENDING", "0", "", "launch failed requeued held"];
        let [state, status, host, reason] = held;
        let (_, job) = read([name, "7", "3", state, status, host, reason]).unwrap();
        assert!(job.is_held());
        let (part, job) = read([name, "23", "2", "CANCELLED", "15", "n2", "None"]).unwrap();
        assert_eq!(job.end_of(part, Path::new("/nowhere")).status, None);
        // Jobs of others, and parts that the plan lacks.
        for (name, number) in [
            ("evlbi-0123456789ab", "2001"),
            ("evlbi", "1"),
            (second, "N/A"),
        ] {
            assert_eq!(
                read([name, "1", number, "RUNNING", "0", "n1", "None"]),
                None
            );
        }
    }

    #[test]
    fn a_script_names_its_parts() {
        let task = Task {
            program: "/opt/evlbi's/evlbi".into(),
            plan: "/data/job.chunks.json".into(),
            directory: "/data/job".into(),
            arguments: vec![
                "--stage".to_owned(),
                "cp {path} {out} # {offset} {length}".to_owned(),
            ],
            retries: 3,
        };
        let slurm = Slurm::of(task, plan(1_200, Some(8)), Vec::new());
        let script = slurm.script(&[1_001, 1_007], 1_000);
        for line in [
            "#SBATCH --job-name=evlbi-0123456789ab-1000",
            "#SBATCH --array=1,7%8",
            "#SBATCH --output=\"/data/job/slurm-%A_%a.log\"",
            "part=$((1000 + SLURM_ARRAY_TASK_ID))",
            r#""/opt/evlbi's/evlbi" correlate --plan /data/job.chunks.json --part "$part" --out /data/job --stage 'cp {path} {out} # {offset} {length}'"#,
        ] {
            assert!(script.lines().any(|it| it == line), "{line}\n{script}");
        }
    }
}
