//! The command line as the grammar of flows, which agents check and consoles complete.
//!
//! Here belongs what agents need to know about a command's options beyond clap.

use std::any::TypeId;
use std::time::Duration;

use anyhow::{Error, Result};
use clap::builder::ValueParser;
use clap::{Arg, ArgAction, CommandFactory, Parser};
use evlbi_control::commands::{CommandOption, Grammar, Meaning, Sends};
use evlbi_core::rate::BitRate;
use evlbi_correlate::{DelayTerms, Flag, Hertz};
use evlbi_net::run::Run;
use evlbi_net::safe::Key;
use evlbi_probe::sweep::Spacings;
use evlbi_stream::recv::receive_options;
use evlbi_stream::send::{self, SafeOptions, SendOptions, out_options};
use evlbi_wire::units;
use serde_json::Value;

use super::probe::{Probe, ProbeCommand};
use super::target::TargetArgs;
use super::{Cli, Command};
use crate::output;

/// The command line of this program.
pub struct CommandLine;

impl Grammar for CommandLine {
    fn options(&self, command: &str) -> Vec<CommandOption> {
        let mut all = Cli::command();
        all.build();
        let found = command
            .split(' ')
            .try_fold(&all, |found, word| found.find_subcommand(word));
        let arguments = found.into_iter().flat_map(clap::Command::get_arguments);
        arguments.map(option).collect()
    }

    fn check(&self, words: Vec<String>) -> Result<Meaning, String> {
        let line = ["evlbi".to_owned()].into_iter().chain(words);
        let cli = Cli::try_parse_from(line).map_err(|error| {
            let text = error.to_string();
            let first = text.split("\n\n").next().unwrap_or_default();
            let words = first.trim_start_matches("error: ").split_whitespace();
            words.collect::<Vec<&str>>().join(" ")
        })?;
        let (start, duration) = match &cli.command {
            Command::Send(args) => (args.start, args.duration),
            _ => (None, None),
        };
        if target(&cli.command).is_some_and(|target| target.token.token.is_none()) {
            return Err("a test needs the `token` of its responder".to_owned());
        }
        let sends = sends(&cli.command);
        let (mut responds, mut fits) = (None, Ok(()));
        match cli.command {
            Command::Respond(args) => responds = Some((args.bind, args.ports)),
            Command::Send(args) => {
                let has_key = args.safe.fits(&args.to);
                let options = has_key.and_then(|()| out_options(&args.into()));
                fits = options.map(drop).map_err(Error::from);
            }
            Command::Recv(args) => {
                fits = receive_options(&args.into()).map(drop).map_err(Error::from);
            }
            _ => {}
        }
        fits.map_err(|error| output::explain(&error))?;
        Ok(Meaning {
            sends,
            start: start.map(|start| start.as_nanosecond() as f64 * 1e-9),
            duration,
            responds,
        })
    }

    fn limits(&self, words: Vec<String>) -> Option<Value> {
        let line = ["evlbi".to_owned()].into_iter().chain(words);
        let Command::Send(mut args) = Cli::try_parse_from(line).ok()?.command else {
            return None;
        };
        let run = Run::silent();
        let mut safe = std::mem::take(&mut args.safe);
        // The key is there when the flow starts.
        safe.key_file = None;
        let options = SendOptions {
            safe: Some(SafeOptions {
                key: Some(Key::open()),
                ..safe.options(&run).ok()??
            }),
            ..args.into()
        };
        let shape = send::check(&options, &run).ok()?;
        serde_json::to_value(safe.plan(&shape, &run).ok()?).ok()
    }
}

fn option(arg: &Arg) -> CommandOption {
    let action = arg.get_action();
    let takes_several = (arg.get_num_args()).is_some_and(|range| range.max_values() > 1);
    let choices = arg.get_possible_values().into_iter();
    CommandOption {
        name: arg.get_long().unwrap_or(arg.get_id().as_str()).to_owned(),
        is_positional: arg.get_long().is_none(),
        is_flag: matches!(action, ArgAction::SetTrue),
        is_list: matches!(action, ArgAction::Append) || takes_several,
        // No file or environment of an agent's user gives a flow its token.
        is_required: arg.is_required_set() || arg.get_id() == "token",
        help: arg.get_help().map(ToString::to_string),
        choices: choices.map(|choice| choice.get_name().to_owned()).collect(),
        complete: completion(arg.get_value_parser()),
    }
}

/// Returns a function that adds the unit to a flow's values of this kind: bare numbers are seconds or hertz there.
fn completion(parser: &ValueParser) -> fn(&str) -> String {
    let kind = parser.type_id();
    let is_any_of = |kinds: &[TypeId]| kinds.iter().any(|one| kind == *one);
    if is_any_of(&[
        TypeId::of::<Duration>(),
        TypeId::of::<Spacings>(),
        TypeId::of::<DelayTerms>(),
    ]) {
        return |text| add_unit(text, "s");
    }
    if is_any_of(&[TypeId::of::<Hertz>()]) {
        return |text| add_unit(text, "Hz");
    }
    if is_any_of(&[TypeId::of::<Flag>()]) {
        return |text| match text.rsplit_once(':') {
            Some((station, times)) => format!("{station}:{}", add_unit(times, "s")),
            None => text.to_owned(),
        };
    }
    str::to_owned
}

/// Adds a unit to each number that has none, of a list of numbers and ranges.
fn add_unit(text: &str, unit: &str) -> String {
    let number = |text: &str| match units::with_unit(text, "", ["", ""]) {
        Ok(_) => text.to_owned(),
        Err(_) => format!("{}{unit}", text.trim()),
    };
    let each = |text: &str, between: &str, of: &dyn Fn(&str) -> String| {
        let parts: Vec<String> = text.split(between).map(of).collect();
        parts.join(between)
    };
    each(text, ",", &|part| {
        each(part, ":", &|part| each(part, "..", &number))
    })
}

/// Target of a test.
fn target(command: &Command) -> Option<&TargetArgs> {
    Some(match command {
        Command::Probe(Probe::One(ProbeCommand::Udp(args))) => &args.target,
        Command::Probe(Probe::One(ProbeCommand::Tcp(args))) => &args.target,
        Command::Probe(Probe::One(ProbeCommand::Latency(args))) => &args.target,
        Command::Probe(Probe::One(ProbeCommand::Capacity(args))) => &args.target,
        Command::Watch(args) => &args.target,
        _ => return None,
    })
}

/// Returns the maximum bit rate that a command sends.
fn sends(command: &Command) -> Sends {
    let held = |rate: Option<u64>| rate.map_or(Sends::Unlimited, Sends::AtMost);
    let one = |rate: Option<BitRate>| rate.map(BitRate::get);
    match command {
        Command::Send(args) => held(one(args.rate).filter(|_| !args.max)),
        Command::Respond(args) => held(one(args.max_rate)),
        Command::Watch(args) => held(one(args.rate)),
        Command::Probe(Probe::One(ProbeCommand::Udp(args))) => {
            let rates = args.rate.iter().flat_map(|rates| &rates.0);
            held(rates.map(|rate| rate.get()).max())
        }
        Command::Probe(Probe::One(ProbeCommand::Tcp(args))) => {
            let all = |rate: u64| rate.saturating_mul(args.streams.into());
            let beside = one(args.background).unwrap_or(0);
            held(one(args.rate).map(|rate| all(rate).saturating_add(beside)))
        }
        Command::Probe(Probe::One(ProbeCommand::Latency(args))) => {
            let bits = args.size.0.iter().copied().max().unwrap_or(0) as u128 * 8;
            let rate = bits * 1_000_000_000 / args.interval.as_nanos().max(1);
            Sends::AtMost(u64::try_from(rate).unwrap_or(u64::MAX))
        }
        Command::Probe(Probe::One(ProbeCommand::Capacity(args))) => {
            Sends::AtMost(args.highest.get())
        }
        Command::Recv(_) | Command::Correlate(_) => Sends::Nothing,
        _ => Sends::Unlimited,
    }
}

#[cfg(test)]
mod tests;
