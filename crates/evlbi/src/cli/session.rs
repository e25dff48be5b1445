//! `evlbi agent`, `evlbi run` and `evlbi console`: flows on many hosts.

use std::io::IsTerminal;
use std::iter;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, bail};
use clap::Args;
use evlbi_control::agent::{self, AgentOptions, Ready};
use evlbi_control::flow::FlowId;
use evlbi_control::link;
use evlbi_control::session::console::{Console, Said, Words};
use evlbi_control::session::{ControllerOptions, Findings, RunOptions, result, run};
use evlbi_control::threads::Threads;
use evlbi_net::run::Run;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{Editor, Helper, Highlighter, Hinter, Validator};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use super::choice::address;
use super::flows::CommandLine;
use crate::output::{self, Results};
use crate::program::Program;

/// Text before the link to a web UI, which contains the token for the role operate.
const OPEN: &str = "open in a browser (keep secret, the link contains the operate token):";

#[derive(Args)]
#[command(after_help = "\
agent.toml in the state directory sets what the agent allows; it is created if missing. The first start also creates a \
certificate, identified by its fingerprint, and two tokens: `watch` may read everything, `operate` may start, change and \
stop flows.

Examples:
  evlbi agent --dir /var/lib/evlbi --bind 0.0.0.0:3650
  curl -k -H \"Authorization: Bearer $(cat DIR/tokens/watch)\" https://127.0.0.1:3650/api/v1/flows")]
pub struct AgentArgs {
    /// State directory: settings, certificate, tokens, flows, history [default: evlbi in $XDG_STATE_HOME, or in
    /// ~/.local/state]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Listen here [default: the address in agent.toml, initially 127.0.0.1:3650]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub bind: Option<SocketAddr>,
    /// Settings file [default: DIR/agent.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print one JSON object on standard output when the agent is ready
    #[arg(long)]
    pub json: bool,
}

convert! { AgentArgs => AgentOptions { dir, bind, config } without [json] }

/// Runs an agent until Ctrl-C; its flows continue.
pub fn agent(args: AgentArgs, program: &Program) -> Result<()> {
    let json = args.json;
    let run = program.unheeded();
    // Not the program's own handler: SIGHUP ends no agent whose terminal is closed (nohup).
    let mut signals = tokio::runtime::Builder::new_current_thread();
    let signals = (signals.enable_all().build()).context("cannot handle signals")?;
    let within = signals.enter();
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    drop(within);
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
    // A log must not have the token.
    let is_shown = !json && std::io::stdout().is_terminal();
    let link = is_shown.then(|| link(&agent.ready.url, &agent.ready.tokens));
    let link = link.transpose()?;
    let text = |ready: &Ready| match link {
        Some(link) => format!("{}\n\n{OPEN} {link}", agent::text(ready)),
        None => agent::text(ready),
    };
    // The file `address` says it too.
    if let Err(error) = output::print(json, &agent.ready, text) {
        say!("evlbi: {}", output::explain(&error));
    }
    agent.join();
    Ok(())
}

#[derive(Args)]
#[command(after_help = "\
A session names hosts with their agents, flows, and the scans in which they run; examples/session-one-machine.toml shows \
all of it. The whole session is checked before anything starts. Flows keep running if this command is killed, and end at \
their scans' times; --resume reconnects to them.

Examples:
  evlbi run examples/session-one-machine.toml --check
  # With a web UI:
  evlbi run examples/session-one-machine.toml --bind 127.0.0.1:3651
  evlbi run examples/session-one-machine.toml --script examples/session-one-machine.script")]
pub struct RunArgs {
    /// Session file, or the state directory of an agent on this machine
    #[arg(value_name = "SESSION.toml")]
    pub session: PathBuf,
    /// Check everything and start nothing
    #[arg(long)]
    pub check: bool,
    /// Run the console commands in this file instead of the schedule
    #[arg(long, value_name = "FILE", conflicts_with_all = ["check", "resume", "bind", "without", "json"])]
    pub script: Option<PathBuf>,
    /// Resume a run whose controller ended
    #[arg(long, value_name = "RUN")]
    pub resume: Option<FlowId>,
    /// Skip a host and all its flows
    #[arg(long, value_name = "HOST")]
    pub without: Vec<String>,
    /// Trust the fingerprint that the session gives for this host's agent: its token is sent there from now on
    #[arg(long, value_name = "HOST")]
    pub trust: Vec<String>,
    /// Serve the session's web UI here
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub bind: Option<SocketAddr>,
    /// Wait for *Begin* in the web UI (--bind); relative scan times count from then
    #[arg(long, requires = "bind", conflicts_with_all = ["check", "resume"])]
    pub hold: bool,
    /// Keep the web UI after the session has ended, until Ctrl-C
    #[arg(long, requires = "bind")]
    pub keep: bool,
    /// Controller's state directory: certificate, tokens, trusted agents, history [default: evlbi/controller in
    /// $XDG_STATE_HOME, or in ~/.local/state]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

convert! {
    RunArgs => RunOptions { resume, without, bind, hold }
    with [session, trust, dir] { controller: ControllerOptions { session, trust, dir } }
    without [check, script, keep, json]
}

/// The result of `run --check`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Checked {
    schema: &'static str,
    #[serde(flatten)]
    found: Findings,
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
    let threads = Threads::start()?;
    let session = threads.finish(run::prepare(&options, &CommandLine, run));
    let mut session = session?;
    // A log must not have the token.
    if let Some(link) = session.link.as_ref()
        && std::io::stderr().is_terminal()
    {
        run.line(format_args!("{OPEN} {link}"));
    }
    if check {
        session.warn(run);
        if !session.checked.problems.is_empty() {
            bail!("{}", session.refuse(run));
        }
        let checked = Checked {
            schema: "evlbi.checked/1",
            found: session.checked.clone(),
        };
        return output::print(json, &checked, |checked| {
            let limits = checked.found.limits.iter().map(ToString::to_string);
            let count = format!(
                "{} hosts, {} flows: no problems found",
                checked.found.hosts.len(),
                session.flows()
            );
            let lines: Vec<String> = limits.chain([count]).collect();
            lines.join("\n")
        });
    }
    let result = threads.finish(session.follow(run))?;
    let printed = output::print(json, &result, result::text);
    if keep && !result.interrupted {
        threads.finish(session.stay(run));
    }
    match result.failed() {
        0 => printed,
        failed => bail!("{failed} of {} flows failed", result.flows.len()),
    }
}

/// Does what the lines of a script say, up to the first that cannot be done.
fn follow_script(options: &ControllerOptions, script: &Path, run: &Run) -> Result<()> {
    let name = script.display();
    let text = std::fs::read_to_string(script).with_context(|| format!("cannot read {name}"))?;
    let mut results = Results::default();
    Threads::start()?.finish(async {
        let console = Console::open(options, &CommandLine).await;
        let mut console = console?;
        let show = |text: &str| results.line(text);
        let done = console.follow(&name.to_string(), &text, run, show).await;
        done.map_err(Error::new)
    })?;
    results.end()
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  evlbi console examples/session-one-machine.toml
  # The state directory of an agent on this machine:
  evlbi console ~/.local/state/evlbi

`help` lists the commands. Tab completes; the arrow keys recall earlier lines.")]
pub struct ConsoleArgs {
    /// Session file, or the state directory of an agent on this machine
    #[arg(value_name = "SESSION.toml")]
    pub session: PathBuf,
    /// Trust the fingerprint that the session gives for this host's agent: its token is sent there from now on
    #[arg(long, value_name = "HOST")]
    pub trust: Vec<String>,
    /// Controller's state directory [default: evlbi/controller in $XDG_STATE_HOME, or in ~/.local/state]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

convert! { ConsoleArgs => ControllerOptions { session, trust, dir } }

/// Opens a console on the hosts of a session.
pub fn console(args: ConsoleArgs, program: &Program) -> Result<()> {
    let options = ControllerOptions::from(args);
    let threads = Threads::start()?;
    let console = threads.finish(Console::open(&options, &CommandLine));
    let mut console = console?;
    for why in console.warnings().chain(console.silent()) {
        program.unheeded().say(format_args!("{why}"));
    }
    // A user who types can start an agent meanwhile.
    if console.is_alone() && !std::io::stdin().is_terminal() {
        bail!("no host of the session answers, so no line was executed");
    }
    let kept = options.folder()?;
    let kept = kept.join("console.history");
    let mut results = Results::default();
    for line in lines(kept, console.words())? {
        match threads.finish(console.take(&line?)) {
            Ok(Said::Text(text)) if text.is_empty() => {}
            Ok(Said::Text(text)) => results.line(&text),
            Ok(Said::Quit) => break,
            Err(error) => say!("{}", output::explain(&error.into())),
        }
    }
    results.end()
}

/// Lines as they are typed, or as they come through a pipe.
fn lines(kept: PathBuf, words: Words) -> Result<Box<dyn Iterator<Item = Result<String>>>> {
    if !std::io::stdin().is_terminal() {
        return Ok(Box::new(std::io::stdin().lines().map(|line| Ok(line?))));
    }
    let mut editor =
        Editor::<Typing, DefaultHistory>::new().context("this terminal cannot be used")?;
    editor.set_helper(Some(Typing(words)));
    // There is none before the first time.
    let _ = editor.load_history(&kept);
    let mut next = move || -> rustyline::Result<String> {
        let line = editor.readline("evlbi> ")?;
        if editor.add_history_entry(&line).unwrap_or(false) {
            let _ = editor.append_history(&kept);
        }
        Ok(line)
    };
    Ok(Box::new(iter::from_fn(move || match next() {
        Err(ReadlineError::Interrupted) => Some(Ok(String::new())),
        Err(ReadlineError::Eof) => None,
        line => Some(line.map_err(Into::into)),
    })))
}

/// Completes what is typed.
#[derive(Helper, Highlighter, Hinter, Validator)]
struct Typing(Words);

impl Completer for Typing {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let before = &line[..at];
        let from = before.rfind(' ').map_or(0, |space| space + 1);
        let words: Vec<&str> = before[..from].split_whitespace().collect();
        let candidates = self.0.candidates(&words).into_iter();
        let fitting = candidates.filter(|candidate| candidate.starts_with(&before[from..]));
        Ok((from, fitting.collect()))
    }
}
