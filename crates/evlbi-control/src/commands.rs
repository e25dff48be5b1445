//! The table of commands that can run as flows: their behaviour, the policies for their options, and the options that flows cannot have.
//! A [`Grammar`] describes everything else about the command line: the options' formats, limits and meaning.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use evlbi_net::transport::Url;
use evlbi_stream::selection::Selection;
use serde_json::Value;

use super::flow::Options;

/// Command line of the program that flows run.
pub trait Grammar: Sync {
    /// Lists the options of the command of this name.
    fn options(&self, command: &str) -> Vec<CommandOption>;

    /// Parses the words after the program's name, and returns their meaning.
    ///
    /// # Errors
    /// Returns the reason if the words are invalid.
    fn check(&self, words: Vec<String>) -> Result<Meaning, String>;

    /// Returns the losses at which a sender with these words would shed and stop (`evlbi.plan.safe/1`); `None` if it is not under SafeUDP,
    /// or cannot start.
    fn limits(&self, words: Vec<String>) -> Option<Value> {
        let _ = words;
        None
    }

    /// Returns the path of the program. A flow's process runs it with `--control PATH` and these words. The default is the program of this
    /// process.
    fn program(&self) -> PathBuf {
        "/proc/self/exe".into()
    }
}

/// [`Grammar`] of a process.
pub type Language = &'static dyn Grammar;

/// Option of a command.
#[derive(Clone, Debug)]
pub struct CommandOption {
    /// Its name in a flow: the long name on the command line, without dashes.
    pub name: String,
    /// It is a positional argument of the command line.
    pub is_positional: bool,
    /// It is a flag without a value.
    pub is_flag: bool,
    /// It can have several values.
    pub is_list: bool,
    /// The command requires it.
    pub is_required: bool,
    /// Its help, in one sentence.
    pub help: Option<String>,
    /// The only allowed values; empty if any value is allowed.
    pub choices: Vec<String>,
    /// Adds to a value the unit that the command line asks for and flows may leave out.
    pub complete: fn(&str) -> String,
}

/// Meaning of a command line, as far as an agent needs it.
#[derive(Clone, Debug)]
pub struct Meaning {
    /// Its bit rate.
    pub sends: Sends,
    /// Start, in seconds since 1970, if given.
    pub start: Option<f64>,
    /// Duration, if given.
    pub duration: Option<Duration>,
    /// For a responder: its address, and the ports of its tests.
    pub responds: Option<(SocketAddr, Option<RangeInclusive<u16>>)>,
}

/// Bit rate that a command line sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sends {
    /// It sends no stream.
    Nothing,
    /// Maximum bit rate, in bit/s.
    AtMost(u64),
    /// It sends as fast as possible.
    Unlimited,
}

/// Access rule for an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionPolicy {
    /// No rule: the option concerns only the flow.
    None,
    /// Secret that both endpoints of a test hold: never shown.
    Secret,
    /// Readable file, `pattern:LENGTH` or `sky:PLAN/STATION`.
    Source,
    /// New file, `null` or `check`.
    Sink,
    /// Files to read; with `live`, addresses to listen on.
    Stations,
    /// File to read.
    Read,
    /// Channel table: a file to read, or its rows.
    Table,
    /// Key: a file to read, or `key:` and its 64 hexadecimal digits. Never shown.
    Key,
    /// Listens on the port after the last one of each UDP URL on which the flow listens.
    Messages,
    /// File or directory to create.
    Write,
    /// URL to send to.
    Destination,
    /// URL to listen on.
    Listen,
    /// `HOST` or `HOST:PORT` of a responder.
    Target,
    /// Rate, or address of a responder: checked on the meaning of the whole command line.
    Whole,
}

/// Condition for a property of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Never,
    /// If its option `live` is set.
    Live,
    Always,
}

/// Command that can run as a flow.
pub struct Command {
    /// Its name on the command line.
    pub name: &'static str,
    /// It receives data from other flows, so it must start before them and end after them.
    listens: When,
    /// Its option `duration` ends it; without one it runs until it is stopped.
    pub(crate) lasts: When,
    /// It prepares at once, and waits for its option `start`.
    pub(crate) waits: bool,
    /// It appends to its file.
    pub(crate) continues: bool,
    /// Option that limits its bit rate.
    pub(crate) limit: &'static str,
    /// Policies of its options. Options that are named neither here nor in `POLICIES` have none.
    pub policies: &'static [(&'static str, OptionPolicy)],
    /// Options that a flow cannot have.
    left_out: &'static [&'static str],
}

/// Options of all commands that a flow cannot have.
const LEFT_OUT: [&str; 9] = [
    "json",
    "force",
    "format",
    "quiet",
    "verbose",
    "control",
    "token-file",
    "help",
    "version",
];

/// Policies for options of any command.
const POLICIES: [(&str, OptionPolicy); 8] = [
    ("target", OptionPolicy::Target),
    ("token", OptionPolicy::Secret),
    ("rate", OptionPolicy::Whole),
    ("spacing", OptionPolicy::Whole),
    ("csv", OptionPolicy::Write),
    ("records", OptionPolicy::Write),
    ("plot", OptionPolicy::Write),
    ("out", OptionPolicy::Write),
];

/// Base of most commands: a test that ends on its own.
const TEST: Command = Command {
    name: "",
    listens: When::Never,
    lasts: When::Never,
    waits: false,
    continues: false,
    limit: "rate",
    policies: &[],
    left_out: &[],
};

/// All commands that can run as flows.
pub const COMMANDS: [Command; 9] = [
    Command {
        name: "send",
        lasts: When::Always,
        waits: true,
        policies: &[
            ("source", OptionPolicy::Source),
            ("to", OptionPolicy::Destination),
            ("max", OptionPolicy::Whole),
            ("key-file", OptionPolicy::Key),
        ],
        // They send nothing.
        left_out: &["check", "rtt"],
        ..TEST
    },
    Command {
        name: "recv",
        listens: When::Always,
        lasts: When::Always,
        policies: &[
            ("from", OptionPolicy::Listen),
            ("to", OptionPolicy::Sink),
            ("safe", OptionPolicy::Messages),
            ("key-file", OptionPolicy::Key),
        ],
        left_out: &["gaps"],
        ..TEST
    },
    Command {
        name: "correlate",
        listens: When::Live,
        lasts: When::Live,
        policies: &[
            ("files", OptionPolicy::Stations),
            ("model", OptionPolicy::Read),
            ("channel-table", OptionPolicy::Table),
            ("safe", OptionPolicy::Messages),
            ("key-file", OptionPolicy::Key),
        ],
        // A flow runs no other program, and a plan names any files.
        left_out: &["no-lines", "plan", "part", "stage"],
        ..TEST
    },
    Command {
        name: "respond",
        listens: When::Always,
        limit: "max-rate",
        policies: &[
            ("bind", OptionPolicy::Whole),
            ("ports", OptionPolicy::Whole),
            ("max-rate", OptionPolicy::Whole),
        ],
        left_out: &["allow-load", "files"],
        ..TEST
    },
    Command {
        name: "probe udp",
        policies: &[("losses", OptionPolicy::Write)],
        left_out: &["one-way", "load-tasks", "load-nice"],
        ..TEST
    },
    Command {
        name: "probe tcp",
        policies: &[
            ("streams", OptionPolicy::Whole),
            ("background", OptionPolicy::Whole),
            ("samples", OptionPolicy::Write),
        ],
        left_out: &["from", "into"],
        ..TEST
    },
    Command {
        name: "probe latency",
        policies: &[
            ("size", OptionPolicy::Whole),
            ("interval", OptionPolicy::Whole),
        ],
        ..TEST
    },
    Command {
        name: "probe capacity",
        policies: &[("highest", OptionPolicy::Whole)],
        ..TEST
    },
    Command {
        name: "watch",
        continues: true,
        policies: &[("file", OptionPolicy::Write)],
        // The campaign is continued; a table would exist already.
        left_out: &["csv"],
        ..TEST
    },
];

impl Command {
    /// Finds a command by its name.
    ///
    /// # Errors
    /// Returns the list of commands if none has this name.
    pub(crate) fn named(asked: &str) -> Result<&'static Command, String> {
        let find = |command: &&Command| command.name == asked;
        COMMANDS.iter().find(find).ok_or_else(|| {
            let names = COMMANDS.each_ref().map(|command| command.name).join(", ");
            let asked = asked.escape_debug();
            format!("unknown command `{asked}`: a flow can run {names}")
        })
    }

    /// Returns whether an option is a secret, which is never shown.
    pub(crate) fn hides(&self, option: &str) -> bool {
        matches!(
            self.policy(option),
            OptionPolicy::Secret | OptionPolicy::Key
        )
    }

    /// Returns the policy for an option.
    pub fn policy(&self, option: &str) -> OptionPolicy {
        let mut known = self.policies.iter().chain(&POLICIES);
        let found = known.find(|(name, _)| *name == option);
        found.map_or(OptionPolicy::None, |(_, policy)| *policy)
    }

    /// Lists the options that a flow can have.
    pub fn options(&self, language: Language) -> Vec<CommandOption> {
        let is_left_out = |name: &str| LEFT_OUT.contains(&name) || self.left_out.contains(&name);
        let mut options = language.options(self.name);
        options.retain(|option| !is_left_out(&option.name));
        options
    }

    /// Checks that a flow has only options that it can have.
    ///
    /// # Errors
    /// Returns the first unknown option and the list of known ones.
    pub(crate) fn check_names(&self, options: &Options, language: Language) -> Result<(), String> {
        let known = self.options(language);
        let is_known = |key: &&String| known.iter().any(|option| option.name == **key);
        let Some(odd) = options.keys().find(|key| !is_known(key)) else {
            return Ok(());
        };
        let names: Vec<&str> = known.iter().map(|option| option.name.as_str()).collect();
        let (odd, names) = (odd.escape_debug(), names.join(", "));
        let name = self.name;
        Err(format!("{name} has no option `{odd}`: give one of {names}"))
    }

    /// Returns the flags that make a command print its result and nothing else. Intermediate results are in the status and the history,
    /// whose sizes are bounded.
    pub(crate) fn printing(&self, options: &Options, language: Language) -> Vec<String> {
        let known = language.options(self.name);
        let has_result = known.iter().any(|it| it.name == "json");
        let words = [("--json", has_result), ("--no-lines", is_live(options))];
        let words = words.into_iter().filter(|(_, is_needed)| *is_needed);
        words.map(|(word, _)| word.to_owned()).collect()
    }

    /// Returns the value of the option that has this policy, if the flow has one.
    fn ruled<'o>(&self, policy: OptionPolicy, options: &'o Options) -> Option<&'o Value> {
        let named = self.policies.iter().find(|(_, known)| *known == policy);
        options.get(named?.0)
    }
}

impl When {
    /// Returns whether the condition holds for these options.
    pub(crate) fn is_so(self, options: &Options) -> bool {
        match self {
            When::Never => false,
            When::Live => is_live(options),
            When::Always => true,
        }
    }
}

/// Returns whether a command with these options receives streams.
pub(crate) fn is_live(options: &Options) -> bool {
    options.get("live") == Some(&Value::Bool(true))
}

/// Returns whether a sink stores the received data; other sinks only count or check it.
pub(crate) fn is_kept(sink: &str) -> bool {
    !matches!(sink, "null" | "check")
}

/// Properties of a flow that follow from its command and its options.
#[derive(Clone, Copy)]
pub(crate) struct Known<'f> {
    command: Option<&'static Command>,
    options: &'f Options,
}

impl<'f> Known<'f> {
    /// Looks up the command. Nothing is known about an unknown one.
    pub(crate) fn of(command: &str, options: &'f Options) -> Known<'f> {
        Known {
            command: Command::named(command).ok(),
            options,
        }
    }

    /// Returns whether it receives data from other flows, so it must start before them and end after them.
    pub(crate) fn listens(&self) -> bool {
        let command = self.command;
        command.is_some_and(|command| command.listens.is_so(self.options))
    }

    /// Returns the recording or generator that it sends.
    pub(crate) fn source(&self) -> Option<&'f str> {
        self.text(OptionPolicy::Source)
    }

    /// Returns the URL that it sends to.
    pub(crate) fn destination(&self) -> Option<Url> {
        url(self
            .command?
            .ruled(OptionPolicy::Destination, self.options)?)
    }

    /// Returns the file that it records.
    pub(crate) fn recording(&self) -> Option<&'f str> {
        self.text(OptionPolicy::Sink).filter(|sink| is_kept(sink))
    }

    /// Returns the URLs that it listens on, in the order of the streams in its result.
    pub(crate) fn streams(&self) -> Vec<Option<Url>> {
        let ruled = |policy| self.command?.ruled(policy, self.options);
        let several = ruled(OptionPolicy::Stations).and_then(Value::as_array);
        let all = ruled(OptionPolicy::Listen).into_iter();
        all.chain(several.into_iter().flatten()).map(url).collect()
    }

    fn text(&self, policy: OptionPolicy) -> Option<&'f str> {
        self.command?.ruled(policy, self.options)?.as_str()
    }
}

fn url(value: &Value) -> Option<Url> {
    let (address, _) = Selection::split(value.as_str()?).ok()?;
    address.parse().ok()
}
