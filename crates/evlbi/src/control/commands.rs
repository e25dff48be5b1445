//! Which commands can be flows, and with which options: what an agent checks of each, and what the interface describes.
//! Everything else of an option (its words, its limits, what it means) is the command line's.

use clap::{Arg, ArgAction, CommandFactory};

use super::flow::NewFlow;
use crate::cli::Cli;

/// What an agent has to see to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// Nothing: it concerns the flow alone.
    None,
    /// Known to both ends of a test: never shown.
    Secret,
    /// A file that may be read, `pattern:LENGTH` or `sky:PLAN/STATION`.
    Source,
    /// A new file, `null` or `check`.
    Sink,
    /// Files that are read; with `live` addresses to listen on.
    Stations,
    /// A file that is read.
    Read,
    /// A file or folder that is made.
    Write,
    /// A URL that is sent to.
    Destination,
    /// A URL that is listened on.
    Listen,
    /// `HOST:PORT` of a far end that is tested with.
    Target,
    /// It says how much is sent, or where a responder listens: seen to when all of the command line is understood.
    Whole,
}

/// A command that can be a flow.
pub struct Command {
    /// Its words on the command line.
    pub name: &'static str,
    /// What is to be seen to; options that are not named here concern the flow alone.
    cares: &'static [(&'static str, Care)],
    /// Options that a flow does not have.
    left_out: &'static [&'static str],
}

/// Of every command.
const LEFT_OUT: [&str; 7] = [
    "json", "force", "format", "verbose", "control", "help", "version",
];

pub const COMMANDS: [Command; 9] = [
    Command {
        name: "send",
        cares: &[
            ("source", Care::Source),
            ("to", Care::Destination),
            ("rate", Care::Whole),
            ("max", Care::Whole),
        ],
        left_out: &[],
    },
    Command {
        name: "recv",
        cares: &[("from", Care::Listen), ("to", Care::Sink)],
        left_out: &["gaps"],
    },
    Command {
        name: "correlate",
        cares: &[
            ("files", Care::Stations),
            ("model", Care::Read),
            ("out", Care::Write),
        ],
        left_out: &["no-lines"],
    },
    Command {
        name: "respond",
        cares: &[
            ("bind", Care::Whole),
            ("token", Care::Secret),
            ("ports", Care::Whole),
            ("max-rate", Care::Whole),
        ],
        left_out: &["allow-load", "files"],
    },
    Command {
        name: "probe udp",
        cares: &[
            ("target", Care::Target),
            ("token", Care::Secret),
            ("rate", Care::Whole),
            ("spacing", Care::Whole),
            ("records", Care::Write),
            ("losses", Care::Write),
            ("plot", Care::Write),
            ("out", Care::Write),
        ],
        left_out: &["one-way", "load-tasks", "load-nice"],
    },
    Command {
        name: "probe tcp",
        cares: &[
            ("target", Care::Target),
            ("token", Care::Secret),
            ("rate", Care::Whole),
            ("streams", Care::Whole),
            ("background", Care::Whole),
            ("samples", Care::Write),
            ("records", Care::Write),
            ("plot", Care::Write),
            ("out", Care::Write),
        ],
        left_out: &["from", "into"],
    },
    Command {
        name: "probe latency",
        cares: &[
            ("target", Care::Target),
            ("token", Care::Secret),
            ("size", Care::Whole),
            ("interval", Care::Whole),
            ("plot", Care::Write),
            ("out", Care::Write),
        ],
        left_out: &[],
    },
    Command {
        name: "probe capacity",
        cares: &[
            ("target", Care::Target),
            ("token", Care::Secret),
            ("highest", Care::Whole),
            ("out", Care::Write),
        ],
        left_out: &[],
    },
    Command {
        name: "watch",
        cares: &[
            ("file", Care::Write),
            ("target", Care::Target),
            ("token", Care::Secret),
            ("rate", Care::Whole),
            ("spacing", Care::Whole),
        ],
        left_out: &[],
    },
];

impl Command {
    /// The command of a flow.
    pub fn of(flow: &NewFlow) -> Result<&'static Command, String> {
        Command::named(&flow.command)
    }

    /// The command of this name.
    pub fn named(asked: &str) -> Result<&'static Command, String> {
        let find = |command: &&Command| command.name == asked;
        COMMANDS.iter().find(find).ok_or_else(|| {
            let names: Vec<&str> = COMMANDS.iter().map(|command| command.name).collect();
            let asked = asked.escape_debug();
            format!(
                "`{asked}` is no command of a flow: there are {}",
                names.join(", ")
            )
        })
    }

    /// What is to be seen to of an option.
    pub fn care(&self, option: &str) -> Care {
        let known = self.cares.iter().find(|(name, _)| *name == option);
        known.map_or(Care::None, |(_, care)| *care)
    }

    /// The options that a flow can have, as the command line knows them.
    pub fn options(&self) -> Vec<Arg> {
        let is_left_out = |name: &str| LEFT_OUT.contains(&name) || self.left_out.contains(&name);
        let mut options = self.all();
        options.retain(|arg| !is_left_out(&name(arg)));
        options
    }

    /// What makes it print a result, where it has one.
    pub fn json(&self) -> Option<String> {
        let has = self.all().iter().any(|arg| name(arg) == "json");
        has.then(|| "--json".to_owned())
    }

    fn all(&self) -> Vec<Arg> {
        let mut command = Cli::command();
        command.build();
        let mut found = &command;
        for word in self.name.split(' ') {
            // Every name in the table is one of the command line's: a test sees to it.
            if let Some(next) = found.find_subcommand(word) {
                found = next;
            }
        }
        found.get_arguments().cloned().collect()
    }
}

/// What an option is called in a flow: as on the command line.
pub fn name(arg: &Arg) -> String {
    match arg.get_long() {
        Some(long) => long.to_owned(),
        None => arg.get_id().to_string(),
    }
}

/// Whether an option is there or not, without a value.
pub fn is_flag(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// Whether an option can have several values.
pub fn is_list(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
        || arg
            .get_num_args()
            .is_some_and(|range| range.max_values() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An option that reads, writes, sends or listens must not slip in by being new.
    #[test]
    fn every_option_was_thought_of() {
        let mut all = String::new();
        for command in &COMMANDS {
            let options = command.options();
            let names: Vec<String> = options.iter().map(name).collect();
            for (cared, _) in command.cares {
                assert!(
                    names.iter().any(|name| name == cared),
                    "{} {cared}",
                    command.name
                );
            }
            let mut line = format!("{}:", command.name);
            for name in names.iter().filter(|name| command.care(name) == Care::None) {
                line = format!("{line} {name}");
            }
            all += &line;
            all.push('\n');
        }
        assert_eq!(all, include_str!("commands.txt"));
    }
}
