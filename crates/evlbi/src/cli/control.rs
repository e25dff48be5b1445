//! The command line of `evlbi agent`, `run` and `console`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::control::flow::FlowId;

pub const AGENT_HELP: &str = "\
What the agent allows stands in agent.toml, which is made in its folder when there is none. The first start also makes a
certificate, known by its fingerprint, and two tokens: `watch` sees everything, `operate` starts, changes and stops.

Examples:
  evlbi agent --dir /var/lib/evlbi --bind 0.0.0.0:3650
  curl --insecure -H \"Authorization: Bearer $(cat DIR/tokens/watch)\" https://127.0.0.1:3650/api/v1/flows";

pub const RUN_HELP: &str = "\
A session names hosts with their agents, flows, and scans in which they run; examples/session-one-machine.toml has all of it. It is
looked at as a whole before anything starts. Flows go on when this command is killed, and end by the scans' times;
--resume finds them again.

Examples:
  evlbi run examples/session-one-machine.toml --check
  evlbi run examples/session-one-machine.toml --bind 127.0.0.1:3651          (with a page)
  evlbi run examples/session-one-machine.toml --script examples/session-one-machine.script";

pub const CONSOLE_HELP: &str = "\
Examples:
  evlbi console examples/session-one-machine.toml
  evlbi console ~/.local/state/evlbi          (the folder of an agent on this machine)

`help` lists the commands. Tab completes; the arrows bring back what was typed before.";

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

#[derive(Args)]
pub struct ConsoleArgs {
    /// Session file, or the folder of an agent on this machine
    #[arg(value_name = "SESSION.toml")]
    pub session: PathBuf,
    /// Confirm the fingerprint that the session gives for this host's agent: its token is sent there from now on
    #[arg(long, value_name = "HOST")]
    pub trust: Vec<String>,
    /// Folder for the controller's things [default: evlbi/controller in $XDG_STATE_HOME, or in ~/.local/state]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

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
