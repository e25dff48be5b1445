//! `evlbi path`.

use std::path::PathBuf;
use std::process::{Command, exit};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use evlbi_net::clock::Clock;
use evlbi_path::PathRunOptions;
use evlbi_path::process::{self, RelayOptions};
use evlbi_path::report::{self, State};

use super::choice::length;
use crate::output::Results;
use crate::program::Program;
use crate::say;

#[derive(Subcommand)]
#[command(after_help = "\
A plan lists the hosts and the links between them:

  [[host]]
  name = \"jive\"
  congestion = \"reno\"                 # TCP's congestion control algorithm
  [[host]]
  name = \"manchester\"
  [[link]]
  between = [\"jive\", \"manchester\"]    # a name that is not a host is a switch
  rtt = \"15ms\"                        # half in each direction
  rate = \"1G\"                         # on the wire; buffer = \"256KiB\" or \"2ms\"
  cells = [{ loss = \"1%\" }]           # both directions; forward = [...], backward = [...]

Cells: delay (jitter, shape, overtakes), rate (buffer, overhead, mark_above), mtu (tells), loss (burst | above, window | \
period, length, begin | on, off), every (first), lose_at, outage, police (burst), duplicate, reorder (distance | by), \
corrupt, mark; change = [{ at = \"10s\", ... }] changes a cell's values at that time.

Examples:
  evlbi path run examples/jive-manchester-15ms.toml -- ping -c 5 manchester
  evlbi path run plan.toml -- sh -c '
    evlbi path exec manchester -- iperf3 -s -1 & sleep 1; iperf3 -c manchester'
  # Step by step:
  evlbi path up plan.toml
  evlbi path exec jive -- ping -c 5 manchester
  evlbi path set loss loss=5%
  evlbi path show
  evlbi path down")]
pub enum PathCommand {
    /// Create a path, run a command on its first host, and remove the path when the command ends
    Run(PathRunArgs),
    /// Create a path and keep it
    Up {
        /// Plan file
        plan: PathBuf,
    },
    /// Remove a path
    Down {
        /// Name of the path, if there are several
        path: Option<String>,
    },
    /// Show a path's counters
    Show {
        /// Name of the path, if there are several
        path: Option<String>,
        /// Repeat at this interval
        #[arg(long, value_name = "TIME", value_parser = length)]
        every: Option<Duration>,
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
    /// Change cells while traffic flows
    Set {
        /// Cells to change: NAME, or FROM>TO/NAME for one direction
        cell: String,
        /// New values, e.g. loss=5%
        #[arg(required = true, value_name = "KEY=VALUE")]
        values: Vec<String>,
        /// Name of the path, if there are several
        #[arg(long)]
        path: Option<String>,
    },
    /// Run a command on a host of a path
    Exec(PathExecArgs),
    #[command(hide = true)]
    Relay(PathRelayArgs),
}

#[derive(Args)]
pub struct PathRunArgs {
    /// Plan file
    pub plan: PathBuf,
    /// Write the path's counters here, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the fate of each packet here, as CSV
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Overwrite existing files
    #[arg(long)]
    pub force: bool,
    /// Command to run, after --
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

#[derive(Args)]
pub struct PathExecArgs {
    /// Host of the path
    pub host: String,
    /// Name of the path, if there are several
    #[arg(long)]
    pub path: Option<String>,
    /// Command to run, after --
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

#[derive(Args)]
pub struct PathRelayArgs {
    pub plan: PathBuf,
    #[arg(long)]
    pub socket: PathBuf,
    #[arg(long)]
    pub json: Option<PathBuf>,
    #[arg(long)]
    pub log: Option<PathBuf>,
    #[arg(last = true)]
    pub command: Vec<String>,
}

convert! { PathRunArgs => PathRunOptions { plan, json, log, force, command } }

convert! { PathRelayArgs => RelayOptions { plan, socket, json, log, command } }

/// Does as the command says.
pub fn run(command: PathCommand, program: &Program) -> Result<()> {
    match command {
        PathCommand::Run(args) => exit(evlbi_path::run_command(
            &args.into(),
            relay(this_program()?, program.is_quiet),
        )?),
        PathCommand::Up { plan } => {
            let Some(name) = evlbi_path::up(&plan, relay(this_program()?, program.is_quiet))?
            else {
                // Its relay has said why.
                exit(1);
            };
            let mut results = Results::default();
            results.line(&format!(
                "{name} is up: `evlbi path exec HOST -- COMMAND`, `evlbi path show`, `evlbi path down`"
            ));
            results.end()
        }
        PathCommand::Down { path } => {
            let state = evlbi_path::down(path.as_deref())?;
            if !program.is_quiet {
                say::text(&report::text(&state));
            }
            Ok(())
        }
        PathCommand::Show { path, every, json } => show(path.as_deref(), every, json),
        PathCommand::Set { cell, values, path } => {
            Ok(evlbi_path::set(path.as_deref(), &cell, &values)?)
        }
        PathCommand::Exec(args) => exit(evlbi_path::exec(
            args.path.as_deref(),
            &args.host,
            &args.command,
        )?),
        PathCommand::Relay(args) => {
            let relayed = process::run(&args.into(), program.run())?;
            if relayed.status.is_some() && !program.is_quiet {
                say::text(&report::text(&relayed.state));
            }
            if let Some(error) = relayed.error {
                bail!("the relay ended early: {error}");
            }
            exit(relayed.status.unwrap_or(0))
        }
    }
}

/// This program.
fn this_program() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find this program")
}

/// How a program is started as the relay of a path: as [`PathCommand::Relay`].
fn relay(program: PathBuf, is_quiet: bool) -> impl FnOnce(&RelayOptions) -> Command {
    move |options| {
        let mut command = Command::new(program);
        command
            .args(["path", "relay"])
            .arg(&options.plan)
            .arg("--socket")
            .arg(&options.socket);
        if is_quiet {
            command.arg("--quiet");
        }
        for (option, file) in [("--json", &options.json), ("--log", &options.log)] {
            if let Some(file) = file {
                command.arg(option).arg(file);
            }
        }
        if !options.command.is_empty() {
            command.arg("--").args(&options.command);
        }
        command
    }
}

fn show(path: Option<&str>, every: Option<Duration>, json: bool) -> Result<()> {
    let mut results = Results::default();
    loop {
        let state = evlbi_path::state(path)?;
        let text = |state: &State| report::text(state).trim_end().to_owned();
        results.show(json, &state, text)?;
        match every {
            Some(every) if results.is_printed() => Clock::real().sleep(every),
            // Once is enough, or nobody reads it.
            _ => return results.end(),
        }
    }
}
