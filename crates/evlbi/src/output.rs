//! What is printed where: results on standard output, everything else on standard error.

use std::error::Error as StdError;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::iter;

use anyhow::{Context, Error, Result};
use evlbi_net::file::OutputError;
use evlbi_net::run;
use evlbi_stream::drop::DropError;
use evlbi_stream::recv::RecvError;
use evlbi_stream::send::SendError;
use evlbi_stream::source::SourceError;
use evlbi_stream::steer::ListenError;
use evlbi_wire::units::show_size;
use serde::Serialize;

use crate::say;

/// What helps against a file that is in the way.
const OVERWRITE: &str = "give --force to overwrite it";
/// What helps where a recording does not tell how many frames make a second.
const FRAME_RATE: &str = "give --frame-rate";

/// An error, its causes and what to do about it, in one line.
pub fn explain(error: &Error) -> String {
    explain_cause(error.as_ref())
}

/// The same of an error of a library.
pub fn explain_cause(error: &(dyn StdError + 'static)) -> String {
    let causes = || iter::successors(Some(error), |&error| error.source());
    let mut why = run::explain(error);
    let by_option = |cause| Some((cause, by_option(cause)?));
    if let Some((cause, said)) = causes().find_map(by_option) {
        why = why.replacen(&cause.to_string(), &said, 1);
    }
    match causes().find_map(remedy) {
        Some(remedy) => format!("{why}; {remedy}"),
        None => why,
    }
}

/// What the command line says in the place of an error of a library, with the names of its options.
fn by_option(error: &(dyn StdError + 'static)) -> Option<String> {
    let sent = || sent_by_option(error.downcast_ref()?);
    let received = || received_by_option(error.downcast_ref()?);
    let listens = || match error.downcast_ref()? {
        error @ (ListenError::InUse(_) | ListenError::Bind { .. }) => {
            Some(format!("--control {error}"))
        }
        _ => None,
    };
    sent().or_else(received).or_else(listens)
}

fn sent_by_option(error: &SendError) -> Option<String> {
    Some(match error {
        SendError::RateUnknown(_) => {
            format!("{error}: give --frame-rate N, or a --rate, or --max")
        }
        SendError::NoTimes(_) => format!("{error}: give a --rate, or --max"),
        SendError::NoRate => error.to_string().replacen("a rate", "a --rate", 1),
        SendError::NoDatagrams(scheme) => {
            format!("--cut plain has no effect on {scheme}://; leave it out")
        }
        _ => return None,
    })
}

fn received_by_option(error: &RecvError) -> Option<String> {
    Some(match error {
        RecvError::SmallRing {
            least,
            asked,
            is_for_frames,
        } => {
            let frames = match is_for_frames {
                true => " for frames as long as --frame",
                false => "",
            };
            let (least, asked) = (show_size(*least), show_size(*asked));
            format!("--ring is at least {least}{frames}; {asked} were asked for")
        }
        RecvError::WideWindow { window, ring } => {
            let (window, ring) = (show_size(*window), show_size(*ring));
            format!(
                "a --window of {window} needs a --ring of a third more, or none given; {ring} were asked for"
            )
        }
        _ => return None,
    })
}

/// What the command line offers against an error of a library.
fn remedy(error: &(dyn StdError + 'static)) -> Option<&'static str> {
    let of_output = || match error.downcast_ref()? {
        OutputError::Exists(_) => Some(OVERWRITE),
        OutputError::Overtaken(_) => Some("choose another name, or give --force to overwrite it"),
        _ => None,
    };
    of_output().or_else(|| remedy_of_stream(error))
}

/// The same of errors of evlbi-stream.
fn remedy_of_stream(error: &(dyn StdError + 'static)) -> Option<&'static str> {
    let of_source = || match error.downcast_ref()? {
        SourceError::RateUnknown(_) => Some(FRAME_RATE),
        _ => None,
    };
    let of_sender = || match error.downcast_ref()? {
        SendError::FitReplaced => Some("leave --replace out"),
        SendError::Untimed => Some("repeat without --cut plain"),
        SendError::MtuUnknown => Some("give --mtu"),
        SendError::LongFrame { .. } => Some("use udp:// or a larger --mtu"),
        _ => None,
    };
    let of_receiver = || match error.downcast_ref()? {
        RecvError::MayExist { .. } => Some(OVERWRITE),
        _ => None,
    };
    let of_drop = || match error.downcast_ref()? {
        DropError::NoMark { .. } => Some("choose --replace fill, random or nothing"),
        DropError::RateUnknown { is_raw: false, .. } => Some(FRAME_RATE),
        _ => None,
    };
    let of_flow = || of_source().or_else(of_sender).or_else(of_receiver);
    of_flow().or_else(of_drop)
}

/// Sends what the program has to say beside its results to standard error.
pub fn log_to_stderr(verbosity: u8) {
    let level = match verbosity {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        _ => tracing::Level::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_writer(say::messages)
        .with_max_level(level)
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        .without_time()
        .init();
}

/// Prints a result as one JSON object, or as text for people. A pipe that was closed is no error.
pub fn print<T: Serialize>(json: bool, result: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
    let shown = if json {
        serde_json::to_string_pretty(result).context("cannot write the result as JSON")?
    } else {
        text(result)
    };
    let mut results = Results::default();
    results.line(&shown);
    results.end()
}

/// Results on standard output while a run lasts. One that cannot be printed does not end the run.
#[derive(Debug, Default)]
pub struct Results(Option<io::Error>);

impl Results {
    /// Prints a line.
    pub fn line(&mut self, line: &str) {
        let mut out = io::stdout().lock();
        let printed = writeln!(out, "{line}").and_then(|()| out.flush());
        if let Err(error) = printed {
            self.0.get_or_insert(error);
        }
    }

    /// Reports whether all were printed. A pipe that was closed is no error.
    pub fn end(self) -> Result<()> {
        match self.0 {
            Some(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(error).context("cannot write to standard output")
            }
            _ => Ok(()),
        }
    }
}
