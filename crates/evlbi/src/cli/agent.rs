//! `evlbi agent`.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::flows::CommandLine;
use crate::agent::{self, AgentOptions};
use crate::output;
use crate::program::Program;

pub const HELP: &str = "\
What the agent allows stands in agent.toml, which is made in its folder when there is none. The first start also makes a
certificate, known by its fingerprint, and two tokens: `watch` sees everything, `operate` starts, changes and stops.

Examples:
  evlbi agent --dir /var/lib/evlbi --bind 0.0.0.0:3650
  curl --insecure -H \"Authorization: Bearer $(cat DIR/tokens/watch)\" https://127.0.0.1:3650/api/v1/flows";

#[derive(Args)]
pub struct AgentArgs {
    /// Folder for the agent's things: settings, certificate, tokens, flows, history [default: evlbi in
    /// $XDG_STATE_HOME, or in ~/.local/state]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Where to listen [default: what agent.toml says, 127.0.0.1:3650 as it is shipped]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub bind: Option<SocketAddr>,
    /// Settings [default: DIR/agent.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print one JSON object on standard output when the agent is there
    #[arg(long)]
    pub json: bool,
}

impl From<AgentArgs> for AgentOptions {
    fn from(args: AgentArgs) -> AgentOptions {
        let AgentArgs {
            dir,
            bind,
            config,
            json: _,
        } = args;
        AgentOptions { dir, bind, config }
    }
}

/// Runs an agent until Ctrl-C; its flows continue.
pub fn run(args: AgentArgs, program: &Program) -> Result<()> {
    let json = args.json;
    let run = program.unheeded();
    // Not the program's own handler: SIGHUP ends no agent whose terminal is closed (nohup).
    let signals = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let signals = signals.context("signals cannot be heard")?;
    let (mut term, mut int) = {
        let _within = signals.enter();
        (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        )
    };
    let told = run.clone();
    std::thread::spawn(move || {
        signals.block_on(async {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        });
        told.stop();
    });
    let agent = agent::start(&args.into(), &CommandLine, run)?;
    // The file `address` says it too.
    if let Err(error) = output::print(json, &agent.ready, agent::text) {
        say!("evlbi: {}", output::explain(&error));
    }
    agent.join();
    Ok(())
}
