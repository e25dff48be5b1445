//! `evlbi console`.

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{Editor, Helper, Highlighter, Hinter, Validator};

use super::flows::CommandLine;
use crate::output::{self, Results};
use crate::program::Program;
use crate::session::ControllerOptions;
use crate::session::console::{Console, Said, Words};

pub const HELP: &str = "\
Examples:
  evlbi console examples/session-one-machine.toml
  evlbi console ~/.local/state/evlbi          (the folder of an agent on this machine)

`help` lists the commands. Tab completes; the arrows bring back what was typed before.";

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

impl From<ConsoleArgs> for ControllerOptions {
    fn from(args: ConsoleArgs) -> ControllerOptions {
        let ConsoleArgs {
            session,
            trust,
            dir,
        } = args;
        ControllerOptions {
            session,
            trust,
            dir,
        }
    }
}

/// Opens a console on the hosts of a session.
pub fn run(args: ConsoleArgs, program: &Program) -> Result<()> {
    let options = ControllerOptions::from(args);
    let mut console = Console::open(&options, &CommandLine)?;
    for why in console.silent() {
        program.unheeded().say(format_args!("{why}"));
    }
    let kept = options.folder()?.join("console.history");
    let mut lines = Lines::open(kept, console.words())?;
    let mut results = Results::default();
    while let Some(line) = lines.next()? {
        match console.take(&line) {
            Ok(Said::Text(text)) if text.is_empty() => {}
            Ok(Said::Text(text)) => results.line(&text),
            Ok(Said::Quit) => break,
            Err(error) => say!("{}", output::explain(&error)),
        }
    }
    results.end()
}

/// Lines as they are typed, or as they come through a pipe.
enum Lines {
    Typed(Box<Editor<Typing, DefaultHistory>>, PathBuf),
    Piped(std::io::Lines<std::io::StdinLock<'static>>),
}

impl Lines {
    fn open(kept: PathBuf, words: Words) -> Result<Lines> {
        if !std::io::stdin().is_terminal() {
            return Ok(Lines::Piped(std::io::stdin().lines()));
        }
        let mut editor = Editor::new().context("this terminal cannot be used")?;
        editor.set_helper(Some(Typing(words)));
        // There is none before the first time.
        let _ = editor.load_history(&kept);
        Ok(Lines::Typed(Box::new(editor), kept))
    }

    /// The next line; none at the end.
    fn next(&mut self) -> Result<Option<String>> {
        match self {
            Lines::Piped(lines) => Ok(lines.next().transpose()?),
            Lines::Typed(editor, kept) => match editor.readline("evlbi> ") {
                Ok(line) => {
                    if editor.add_history_entry(&line).unwrap_or(false) {
                        let _ = editor.append_history(kept);
                    }
                    Ok(Some(line))
                }
                Err(ReadlineError::Interrupted) => Ok(Some(String::new())),
                Err(ReadlineError::Eof) => Ok(None),
                Err(error) => Err(error.into()),
            },
        }
    }
}

/// Completes what is typed.
#[derive(Helper, Highlighter, Hinter, Validator)]
struct Typing(Words);

impl Completer for Typing {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = &line[..at];
        let from = before.rfind(' ').map_or(0, |space| space + 1);
        let words: Vec<&str> = before[..from].split_whitespace().collect();
        let begun = &before[from..];
        let candidates = self.0.candidates(&words).into_iter();
        let fitting = candidates.filter(|candidate| candidate.starts_with(begun));
        let pairs = fitting.map(|candidate| Pair {
            display: candidate.clone(),
            replacement: candidate,
        });
        Ok((from, pairs.collect()))
    }
}
