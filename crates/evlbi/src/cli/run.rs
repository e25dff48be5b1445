//! `evlbi run`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use evlbi_net::run::Run;

use super::flows::CommandLine;
use crate::control::flow::FlowId;
use crate::output::{self, Results};
use crate::program::Program;
use crate::session::console::{Console, Said};
use crate::session::result::text;
use crate::session::run;
use crate::session::{ControllerOptions, RunOptions};

pub const HELP: &str = "\
A session names hosts with their agents, flows, and scans in which they run; examples/session-one-machine.toml has all of it. It is
looked at as a whole before anything starts. Flows go on when this command is killed, and end by the scans' times;
--resume finds them again.

Examples:
  evlbi run examples/session-one-machine.toml --check
  evlbi run examples/session-one-machine.toml --bind 127.0.0.1:3651          (with a page)
  evlbi run examples/session-one-machine.toml --script examples/session-one-machine.script";

#[derive(Args)]
pub struct RunArgs {
    /// Session file, or the folder of an agent on this machine
    #[arg(value_name = "SESSION.toml")]
    pub session: PathBuf,
    /// Look at everything, and start nothing
    #[arg(long)]
    pub check: bool,
    /// Instead of the timetable: do what the lines of this file say, as they are typed in `evlbi console`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["check", "resume", "bind", "without", "json"])]
    pub script: Option<PathBuf>,
    /// Go on with a run whose controller was ended
    #[arg(long, value_name = "RUN")]
    pub resume: Option<FlowId>,
    /// Leave out a host, and all flows on it
    #[arg(long, value_name = "HOST")]
    pub without: Vec<String>,
    /// Confirm the fingerprint that the session gives for this host's agent: its token is sent there from now on
    #[arg(long, value_name = "HOST")]
    pub trust: Vec<String>,
    /// Serve a page of the session there
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub bind: Option<SocketAddr>,
    /// Start nothing until the page of --bind is told to begin; times after the beginning count from then
    #[arg(long, requires = "bind", conflicts_with_all = ["check", "resume"])]
    pub hold: bool,
    /// Keep the page when the session is over, until Ctrl-C
    #[arg(long, requires = "bind")]
    pub keep: bool,
    /// Folder for the controller's things: certificate, tokens, trusted agents, history [default: evlbi/controller in $XDG_STATE_HOME,
    /// or in ~/.local/state]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

impl From<RunArgs> for RunOptions {
    fn from(args: RunArgs) -> RunOptions {
        let RunArgs {
            session,
            check: _,
            script: _,
            resume,
            without,
            trust,
            bind,
            hold,
            keep: _,
            dir,
            json: _,
        } = args;
        RunOptions {
            controller: ControllerOptions {
                session,
                trust,
                dir,
            },
            resume,
            without,
            bind,
            hold,
        }
    }
}

/// Runs a session, a script on its hosts, or looks at it only.
pub fn run(mut args: RunArgs, program: &Program) -> Result<()> {
    let (check, keep, json) = (args.check, args.keep, args.json);
    let script = args.script.take();
    let options = RunOptions::from(args);
    let run = program.run();
    if let Some(script) = script {
        return follow_script(&options.controller, &script, run);
    }
    let mut session = run::prepare(&options, &CommandLine, run)?;
    if check {
        if !session.checked.problems.is_empty() {
            bail!("{}", session.refuse(run));
        }
        return output::print(json, &session.checked, |checked| {
            format!(
                "{} hosts, {} flows: nothing stands against it",
                checked.hosts.len(),
                session.flows()
            )
        });
    }
    let result = session.follow(run)?;
    let printed = output::print(json, &result, text);
    if keep && !result.interrupted {
        session.stay(run);
    }
    match result.failed() {
        0 => printed,
        failed => bail!(
            "{failed} of {} flows did not do what they were to do",
            result.flows.len()
        ),
    }
}

/// Does what the lines of a script say, up to the first that cannot be done.
fn follow_script(options: &ControllerOptions, script: &Path, run: &Run) -> Result<()> {
    let name = script.display();
    let text = std::fs::read_to_string(script).with_context(|| format!("cannot read {name}"))?;
    let mut console = Console::open(options, &CommandLine)?;
    let mut results = Results::default();
    for (number, line) in text.lines().enumerate() {
        if run.is_stopped() {
            bail!("interrupted before line {}; flows go on", number + 1);
        }
        let said = console.take(line);
        match said.with_context(|| format!("{name}, line {}: {line}", number + 1))? {
            Said::Text(text) if text.is_empty() => {}
            Said::Text(text) => results.line(&text),
            Said::Quit => break,
        }
    }
    results.end()
}
