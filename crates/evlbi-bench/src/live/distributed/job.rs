//! A correlation of two simulated stations in seven parts, its result in one run, and runs of `evlbi distribute`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use evlbi_testkit::{Room, copy_program};
use serde_json::Value;

use super::super::programs::{Fields, evlbi, output_of, printed, program, started};
use super::hosts::{HEAD, Hosts, Process, until};

/// Number of parts.
pub const PARTS: u32 = 7;
/// Pause of each fetch in seconds: a part fetches six times, and so takes two seconds on any machine.
const PAUSE: f64 = 0.33;
/// Options of the correlation.
const OPTIONS: [&str; 4] = ["--channels", "512", "--threads", "1"];

const SKY: &str = "start = \"2026-01-01T00:00:00Z\"\nduration = 14\nseed = 2026\nsample_rate = 8e6\ncorrelation = 0.3\npayload = 5000\n\
    edv = 1\n[[station]]\nname = \"Ef\"\n[[station]]\nname = \"Jb\"\n";

/// The correlation, and the program that hosts run.
pub struct Job<'a> {
    hosts: &'a Hosts,
    room: &'a Room,
    /// Files of one run, by name.
    reference: BTreeMap<String, Vec<u8>>,
    /// Hash of all sums of one run.
    pub sums: String,
    pub version: String,
    stage: String,
}

impl<'a> Job<'a> {
    /// Writes the recordings, correlates them in one run, and plans the parts.
    pub fn new(hosts: &'a Hosts, room: &'a Room) -> Result<Job<'a>> {
        let sky = room.write("sky.toml", SKY);
        printed(evlbi()?.args(["sky", &sky, "--out", &room.path("sky")]))?;
        let recordings = ["Ef", "Jb"].map(|name| room.path(&format!("sky/{name}.vdif")));
        let mut one = evlbi()?;
        one.arg("correlate").args(&recordings).args(OPTIONS);
        printed(one.args(["--out", &room.path("one")]))?;
        let mut plan = evlbi()?;
        plan.args(["plan", "chunks"]).args(&recordings);
        plan.args(OPTIONS).args(["--parts", &PARTS.to_string()]);
        printed(plan.args(["--out", &room.path("plan.json")]))?;
        fs::create_dir(room.path("tmp"))?;
        let mut reference = BTreeMap::new();
        for file in fs::read_dir(room.path("one"))? {
            let file = file?;
            let name = file.file_name().to_string_lossy().into_owned();
            reference.insert(name, fs::read(file.path())?);
        }
        let version = printed(evlbi()?.arg("--version"))?;
        let version = version.split_whitespace().last();
        let fetch = script(
            room,
            "fetch",
            &format!(
                "sleep \"$(cat {})\"\nexec dd status=none bs=1M iflag=skip_bytes,count_bytes skip=\"$2\" count=\"$3\" if=\"$1\" of=\"$4\"\n",
                room.path("pause")
            ),
        )?;
        let job = Job {
            hosts,
            room,
            sums: room
                .json("one/summary.json")
                .text("sums_sha256")?
                .to_owned(),
            reference,
            version: version.context("no version")?.to_owned(),
            stage: format!("{fetch} {{path}} {{offset}} {{length}} {{out}}"),
        };
        job.pause(PAUSE);
        room.write("starts", "");
        job.program("evlbi", &program()?, "")?;
        Ok(job)
    }

    /// Changes the time that a part takes, by the pause of each of its fetches in seconds.
    pub fn pause(&self, seconds: f64) {
        self.room.write("pause", format!("{seconds}\n"));
    }

    /// Sets the usual pause.
    pub fn usual_pause(&self) {
        self.pause(PAUSE);
    }

    /// Writes the program that the hosts run, which notes each part that it starts and then becomes `actual`; `before` are lines of
    /// shell in between. Returns its path.
    pub fn program(&self, name: &str, actual: &Path, before: &str) -> Result<String> {
        let text = format!(
            "case \" $* \" in *' --part '*) echo \"$(uname -n) $*\" >> {};; esac\n{before}exec {} \"$@\"\n",
            self.room.path("starts"),
            actual.display()
        );
        script(self.room, name, &text)
    }

    /// Returns a program that fails for part 4.
    pub fn failing_program(&self) -> Result<String> {
        let line =
            "case \" $* \" in *' --part 4 '*) echo 'evlbi: broken on purpose' >&2; exit 1;; esac\n";
        self.program("failing", &program()?, line)
    }

    /// Returns a program of another version and that version: a copy in which each occurrence of this version differs. The copy has
    /// the version in its texts and, as compilers inline short comparisons, in its code.
    pub fn other_version(&self) -> Result<(String, String)> {
        let (start, last) = self.version.rsplit_once('.').context("a version")?;
        let (before, digit) = start.split_at(start.len() - 1);
        let other = before.to_owned() + if digit == "2" { "3" } else { "2" };
        let (old, new) = (format!("{start}."), format!("{other}."));
        let copy = self.room.folder().join("other-version");
        copy_program(program()?, &copy);
        let mut bytes = fs::read(&copy)?;
        let (old, new) = (old.as_bytes(), new.as_bytes());
        let mut at = 0;
        while let Some(found) = bytes[at..].windows(old.len()).position(|some| some == old) {
            at += found;
            bytes[at..at + new.len()].copy_from_slice(new);
        }
        fs::write(&copy, bytes)?;
        Ok((self.program("other", &copy, "")?, format!("{other}.{last}")))
    }

    /// Returns the path of an output directory, existing or not.
    pub fn folder(&self, name: &str) -> String {
        self.room.path(name)
    }

    /// Correlates parts into a directory, before anything is distributed.
    pub fn do_parts(&self, out: &str, parts: impl IntoIterator<Item = u32>) -> Result<()> {
        for part in parts {
            let mut correlate = evlbi()?;
            let plan = self.room.path("plan.json");
            correlate.args(["correlate", "--plan", &plan, "--part", &part.to_string()]);
            printed(correlate.args(["--out", out]))?;
        }
        Ok(())
    }

    /// Starts `evlbi distribute` on the head, with the program of this name.
    pub fn distribute(
        &self,
        out: &str,
        own_program: &str,
        options: &[String],
        prepare: impl FnOnce(&mut Command),
    ) -> Result<Attempt<'_>> {
        let mut distribute = self.hosts.on(HEAD, program()?);
        distribute
            .args(["distribute", &self.room.path("plan.json"), "--out", out])
            .args(["--program", own_program, "--stage", &self.stage, "--json"])
            .args(options)
            .env("TMPDIR", self.room.path("tmp"));
        prepare(&mut distribute);
        let begun = Instant::now();
        Ok(Attempt {
            job: self,
            out: out.to_owned(),
            begun,
            child: Some(started(&mut distribute)?),
        })
    }

    /// Returns the path of the usual program.
    pub fn usual_program(&self) -> String {
        self.room.path("evlbi")
    }

    /// Sets the directory of temporary files of a process.
    pub fn environment(&self, command: &mut Command) {
        command.env("TMPDIR", self.room.path("tmp"));
    }

    /// Returns how often each part of a directory was started.
    pub fn starts(&self, out: &str) -> BTreeMap<u32, usize> {
        let mut starts = BTreeMap::new();
        for line in self.room.text("starts").lines() {
            let option = |name: &str| {
                let words = line.split_whitespace();
                words.skip_while(|word| *word != name).nth(1)
            };
            let part = option("--part").and_then(|part| part.parse().ok());
            if let Some(part) = part
                && option("--out") == Some(out)
            {
                *starts.entry(part).or_default() += 1;
            }
        }
        starts
    }

    /// Returns the parts that run on any host.
    pub fn running(&self) -> Result<Vec<(u32, Process)>> {
        let program = program()?;
        let processes = self.hosts.processes().into_iter();
        let parts = processes.filter(|process| Path::new(&process.words[0]) == program);
        Ok(parts
            .filter_map(|process| Some((process.option("--part")?.parse().ok()?, process)))
            .collect())
    }

    /// Returns the parts whose completion marks are in a directory.
    pub fn marks(&self, out: &str) -> Vec<u32> {
        let mut marks: Vec<u32> = self
            .names(out)
            .iter()
            .filter_map(|name| name.strip_suffix(".json")?.strip_prefix("part-"))
            .filter_map(|name| name.split('-').next()?.parse().ok())
            .collect();
        marks.sort_unstable();
        marks.dedup();
        marks
    }

    fn names(&self, out: &str) -> Vec<String> {
        let files = fs::read_dir(self.seen(out));
        let files = files.into_iter().flatten().flatten();
        files
            .map(|file| file.file_name().to_string_lossy().into_owned())
            .collect()
    }

    /// Returns the path by which this process reads a directory that may be a disk of the hosts.
    fn seen(&self, out: &str) -> PathBuf {
        self.hosts.seen(Path::new(out))
    }

    /// Returns what is wrong with the result in a directory, compared with that of one run.
    pub fn differences(&self, out: &str) -> Vec<String> {
        let folder = self.seen(out);
        let compared =
            self.reference
                .iter()
                .filter_map(|(name, bytes)| match fs::read(folder.join(name)) {
                    Ok(found) if found == *bytes => None,
                    Ok(_) => Some(format!("{name} differs")),
                    Err(error) => Some(format!("{name}: {error}")),
                });
        compared.collect()
    }

    /// Returns whether anything was merged in a directory.
    pub fn is_merged(&self, out: &str) -> bool {
        let names = self.names(out);
        self.reference.keys().any(|name| names.contains(name))
    }

    /// Returns the SHA-256 of each file of one run, as sha256sum prints it.
    pub fn hashes(&self) -> Result<String> {
        let files = self.reference.keys().map(|name| format!("one/{name}"));
        let mut sum = Command::new("sha256sum");
        printed(sum.args(files).current_dir(self.room.folder()))
    }

    /// Returns the maximum size of a part's file in an output directory, in KiB.
    pub fn part_size(&self, out: &str) -> Result<u64> {
        let mut largest = 0;
        for name in self.names(out) {
            if name.ends_with(".evs") {
                largest = largest.max(fs::metadata(self.seen(out).join(name))?.len());
            }
        }
        ensure!(largest > 0, "no part in {out}");
        Ok(largest.div_ceil(1024))
    }
}

/// Writes a program in shell and returns its path.
fn script(room: &Room, name: &str, text: &str) -> Result<String> {
    let path = room.write(name, format!("#!/bin/sh\n{text}"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// A running `evlbi distribute`.
pub struct Attempt<'a> {
    job: &'a Job<'a>,
    out: String,
    begun: Instant,
    child: Option<Child>,
}

/// The end of `evlbi distribute`.
pub struct Ended {
    /// Exit status; `None` if it was killed.
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub seconds: f64,
}

impl Attempt<'_> {
    /// Waits until `look` returns something, or fails if `evlbi distribute` ends before.
    pub fn until<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let child = self.child.as_mut().context("it has ended")?;
        let mut status = None;
        let found = until(what, || {
            status = child.try_wait()?;
            Ok(look()?.map(Ok).or(status.map(Err)))
        })?;
        match found {
            Ok(found) => Ok(found),
            Err(status) => {
                let ended = self.end()?;
                bail!("{status} before {what}: {}", ended.said())
            }
        }
    }

    /// Waits until this many parts run, and returns them.
    pub fn running(&mut self, parts: usize) -> Result<Vec<(u32, Process)>> {
        let job = self.job;
        self.until("parts run", || {
            let running = job.running()?;
            Ok((running.len() >= parts).then_some(running))
        })
    }

    /// Waits until this many parts are done, and returns them.
    pub fn done(&mut self, parts: usize) -> Result<Vec<u32>> {
        let (job, out) = (self.job, self.out.clone());
        self.until("parts are done", || {
            let marks = job.marks(&out);
            Ok((marks.len() >= parts).then_some(marks))
        })
    }

    /// Kills it by SIGKILL, and nothing that it has started.
    pub fn kill(mut self) -> Result<()> {
        let mut child = self.child.take().context("it has ended")?;
        self.job.hosts.kill_all(is_distribute)?;
        // What it has started may still write to its pipes.
        child.wait()?;
        Ok(())
    }

    /// Waits for its end.
    pub fn end(&mut self) -> Result<Ended> {
        let child = self.child.take().context("it has ended")?;
        let output = output_of(child).or_else(|error| {
            self.job.hosts.kill_all(is_distribute)?;
            Err(error)
        })?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Ended {
            status: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
            seconds: self.begun.elapsed().as_secs_f64(),
        })
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = self.job.hosts.kill_all(is_distribute);
            let _ = child.wait();
        }
    }
}

fn is_distribute(process: &Process) -> bool {
    process.words.iter().any(|word| word == "distribute")
}

impl Ended {
    /// Returns the last lines that it printed on standard error.
    pub fn said(&self) -> String {
        let lines: Vec<&str> = self.stderr.trim().lines().rev().take(4).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("; ")
    }

    /// Returns whether its output contains this.
    pub fn says(&self, what: &str) -> bool {
        self.stderr.contains(what) || self.stdout.contains(what)
    }

    /// Returns its result, which is the last object that it printed.
    pub fn result(&self) -> Option<Value> {
        let line = self.stdout.trim().lines().last()?;
        let whole = serde_json::from_str(self.stdout.trim());
        whole.or_else(|_| serde_json::from_str(line)).ok()
    }
}
