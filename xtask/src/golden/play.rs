//! Plays a case with one build of the program.

use std::fs::{self, File};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::symlink;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use evlbi_testkit::{Running, command};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::cases::{Case, Step};
use super::normal;
use crate::attack::scene::wait_for;

/// Timeout for a command, on any host.
const LIMIT: Duration = Duration::from_secs(120);

/// A case while it is played.
struct Scene<'a> {
    case: &'a Case,
    program: &'a Path,
    /// Directory where the commands run.
    folder: PathBuf,
    inputs: &'a Path,
    /// Directory of their output.
    beside: PathBuf,
    addresses: Vec<String>,
    free: Vec<u16>,
    played: Vec<Value>,
    running: Vec<(usize, Running, bool)>,
}

/// Plays a case; returns each command's exit status and output, and the files that they wrote.
///
/// # Errors
/// Returns an error if a command cannot be started, does not listen, or does not end.
pub fn play(case: &Case, program: &Path, beside: PathBuf, inputs: &Path) -> Result<Value> {
    let folder = beside.join("work");
    fs::create_dir_all(&folder)?;
    symlink(inputs, folder.join("in"))?;
    let mut scene = Scene {
        case,
        program,
        folder,
        inputs,
        beside,
        addresses: Vec::new(),
        free: Vec::new(),
        played: Vec::new(),
        running: Vec::new(),
    };
    for step in &case.steps {
        scene.step(step)?;
    }
    scene.wait()?;
    let files = normal::files(&scene.folder, case.pace, &|text| scene.unplaced(text))?;
    Ok(json!({"commands": scene.played, "files": files}))
}

/// Returns the output of a command without input.
pub fn help(program: &Path, arguments: &[&str]) -> Result<String> {
    let mut evlbi = command(program);
    evlbi
        .arg0("evlbi")
        .args(arguments)
        .arg("--help")
        .stdin(Stdio::null());
    let output = evlbi
        .output()
        .with_context(|| program.display().to_string())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    Ok(format!(
        "{}{errors}",
        String::from_utf8_lossy(&output.stdout)
    ))
}

impl Scene<'_> {
    fn step(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Run { arguments, fails } => {
                let mut child = self.start(arguments)?;
                self.end(self.played.len() - 1, &mut child, Some(*fails))
            }
            Step::Start {
                arguments,
                listens,
                fails,
            } => {
                let mut child = self.start(arguments)?;
                let number = self.played.len() - 1;
                let found = wait_for("it listens", LIMIT, || {
                    let found = addresses(&format!(
                        "{}{}",
                        self.said(number, "stderr"),
                        self.said(number, "stdout")
                    ));
                    let has_ended = !matches!(child.0.try_wait(), Ok(None));
                    (found.len() >= *listens || has_ended).then_some(found)
                });
                self.addresses
                    .extend(found.with_context(|| arguments.join(" "))?);
                self.running.push((number, child, *fails));
                Ok(())
            }
            Step::Stop => {
                let (number, mut child, _) = self
                    .running
                    .pop()
                    .context("nothing runs that could be stopped")?;
                if matches!(child.0.try_wait(), Ok(None)) {
                    child.signal(Signal::SIGTERM);
                }
                self.end(number, &mut child, None)
            }
            Step::Wait => self.wait(),
            Step::Fill(name) => {
                let text = fs::read_to_string(self.folder.join("in").join(name))
                    .with_context(|| name.clone())?;
                let text = self.filled(&text)?;
                fs::write(self.folder.join(name), text)?;
                Ok(())
            }
        }
    }

    /// Waits for the end of the started programs.
    fn wait(&mut self) -> Result<()> {
        for (number, mut child, fails) in std::mem::take(&mut self.running) {
            self.end(number, &mut child, Some(fails))?;
        }
        Ok(())
    }

    fn start(&mut self, arguments: &[String]) -> Result<Running> {
        let number = self.played.len();
        let mut words = arguments.iter();
        let mut evlbi = command(self.program);
        evlbi.arg0("evlbi").current_dir(&self.folder);
        for name in ["HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "TMPDIR"] {
            evlbi.env(name, &self.beside);
        }
        evlbi
            .env("EVLBI_TOKEN", "golden")
            .env("TZ", "UTC")
            .stdin(Stdio::null());
        while let Some(word) = words.next() {
            if word == "<" {
                let file = words.next().context("no file behind <")?;
                evlbi.stdin(File::open(self.folder.join(file)).with_context(|| file.clone())?);
            } else {
                evlbi.arg(self.filled(word)?);
            }
        }
        let file = |which: &str| File::create(self.beside.join(format!("{number}.{which}")));
        evlbi.stdout(file("stdout")?).stderr(file("stderr")?);
        self.played.push(json!(null));
        Ok(Running(evlbi.spawn().context("cannot start the program")?))
    }

    /// Waits for a command's end, and keeps its outcome.
    fn end(&mut self, number: usize, child: &mut Running, fails: Option<bool>) -> Result<()> {
        let line = self.case.lines().nth(number).unwrap_or_default();
        let status = wait_for("it ends", LIMIT, || child.0.try_wait().ok().flatten());
        let status = status.with_context(|| format!("{line}: {}", self.said(number, "stderr")))?;
        let pace = self.case.pace;
        let normal = |said: &str| self.unplaced(said);
        self.played[number] = json!({
            "line": line,
            "status": words(status),
            // Not a valid outcome, whatever the other build did.
            "unexpected": fails.is_some_and(|fails| fails == status.success()),
            "stdout": normal::stdout(&normal(&self.said(number, "stdout")), pace),
            "stderr": normal::stderr(&normal(&self.said(number, "stderr")), pace),
        });
        Ok(())
    }

    fn said(&self, number: usize, which: &str) -> String {
        let bytes = fs::read(self.beside.join(format!("{number}.{which}"))).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Fills in {1}, the first address that a command listens on, {free1}, a free port, {here}, the directory, {inputs} and {program}.
    fn filled(&mut self, text: &str) -> Result<String> {
        while text.contains(&format!("{{free{}}}", self.free.len() + 1)) {
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            let port = socket.local_addr()?.port();
            // One port for both protocols.
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                self.free.push(port);
            }
        }
        let mut text = text.replace("{here}", &self.folder.to_string_lossy());
        text = text.replace("{inputs}", &self.inputs.to_string_lossy());
        text = text.replace("{program}", &self.program.to_string_lossy());
        for (index, port) in self.free.iter().enumerate() {
            text = text.replace(&format!("{{free{}}}", index + 1), &port.to_string());
        }
        for (index, address) in self.addresses.iter().enumerate() {
            let port = address.rsplit(':').next().unwrap_or_default();
            text = text.replace(&format!("{{{}}}", index + 1), address);
            text = text.replace(&format!("{{port{}}}", index + 1), port);
        }
        Ok(text)
    }

    /// Returns a command's output without the paths of this run.
    fn unplaced(&self, said: &str) -> String {
        let said = said.replace(&*self.folder.to_string_lossy(), "‹here›");
        let said = said.replace(&*self.beside.to_string_lossy(), "‹room›");
        let said = said.replace(&*self.inputs.to_string_lossy(), "‹inputs›");
        said.replace(&*self.program.to_string_lossy(), "‹program›")
    }
}

/// Returns the addresses that a command listens on, from its output.
fn addresses(said: &str) -> Vec<String> {
    let after = |mark: &str| {
        said.split(mark)
            .skip(1)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let found = [after("listening on "), after("\"url\": \"https://")].concat();
    let whole = found
        .iter()
        .filter_map(|text| text.split_once(|c: char| c.is_whitespace() || c == '"'));
    whole.map(|(address, _)| address.to_owned()).collect()
}

fn words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => code.to_string(),
        (None, signal) => format!("signal {}", signal.unwrap_or_default()),
    }
}
