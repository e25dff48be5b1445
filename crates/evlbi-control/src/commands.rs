//! The table of the commands that can be flows: what each does, what an agent sees to of its options, and which it leaves out.
//! Everything else of an option (its words, its limits, what it means) is the command line's, which is a [`Grammar`].

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use evlbi_net::transport::Url;
use serde_json::Value;

use super::flow::Options;

/// The command line of the program that carries the flows out.
pub trait Grammar: Sync {
    /// Lists the options of the command of this name.
    fn options(&self, command: &str) -> Vec<CommandOption>;

    /// Applies the command line's rules to the words that follow the program's name, and says what they mean.
    ///
    /// # Errors
    /// What cannot be understood or is not allowed.
    fn check(&self, words: Vec<String>) -> Result<Meaning, String>;

    /// Returns the path of the program, which is started with these words, after `--control PATH`, as a flow's process. The default is the
    /// program of this process.
    fn program(&self) -> PathBuf {
        "/proc/self/exe".into()
    }
}

/// The [`Grammar`] of a process.
pub type Language = &'static dyn Grammar;

/// An option of a command, as the command line knows it.
#[derive(Clone, Debug)]
pub struct CommandOption {
    /// What it is called in a flow: as on the command line, without the dashes.
    pub name: String,
    /// It has no name on the command line: its values stand there alone.
    pub is_positional: bool,
    /// It is there or not, without a value.
    pub is_flag: bool,
    /// It can have several values.
    pub is_list: bool,
    /// The command does not go without it.
    pub is_required: bool,
    /// What it does, in a sentence for people.
    pub help: Option<String>,
    /// The only values that it takes; none where it takes any.
    pub choices: Vec<String>,
    /// Adds to a value the unit that the command line asks for and flows may leave out.
    pub complete: fn(&str) -> String,
}

/// What a command line means, as far as an agent has to know.
#[derive(Clone, Debug)]
pub struct Meaning {
    /// How much it sends.
    pub sends: Sends,
    /// When it starts, in seconds since 1970, where it says so.
    pub start: Option<f64>,
    /// How long it lasts, where it says so.
    pub duration: Option<Duration>,
    /// Of a responder: where it listens, and the ports of its tests.
    pub responds: Option<(SocketAddr, Option<RangeInclusive<u16>>)>,
}

/// What a command line sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sends {
    /// No stream at all.
    Nothing,
    /// So many bits a second at most.
    AtMost(u64),
    /// As fast as possible.
    Unlimited,
}

/// What an agent has to see to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionPolicy {
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
    /// `HOST` or `HOST:PORT` of a responder.
    Target,
    /// It says how much is sent, or where a responder listens: seen to when all of the command line is understood.
    Whole,
}

/// When something is so of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Never,
    /// With its option `live`.
    Live,
    Always,
}

/// A command that can be a flow.
pub struct Command {
    /// Its words on the command line.
    pub name: &'static str,
    /// It waits for data of others, and so starts before them and ends after them.
    listens: When,
    /// Its `duration` says when it ends; it runs on without one.
    pub(crate) lasts: When,
    /// It gets ready at once, and waits for its `start` by itself.
    pub(crate) waits: bool,
    /// It continues the file that it has.
    pub(crate) continues: bool,
    /// The option that limits what it sends.
    pub(crate) limit: &'static str,
    /// What is to be seen to; options that are named neither here nor for all commands concern the flow alone.
    pub policies: &'static [(&'static str, OptionPolicy)],
    /// Options that a flow does not have.
    left_out: &'static [&'static str],
}

/// Of every command.
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

/// What is to be seen to of every command that has such an option.
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

/// What most commands are: a test, which has its own times.
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

/// All commands that can be flows.
pub const COMMANDS: [Command; 9] = [
    Command {
        name: "send",
        lasts: When::Always,
        waits: true,
        policies: &[
            ("source", OptionPolicy::Source),
            ("to", OptionPolicy::Destination),
            ("max", OptionPolicy::Whole),
        ],
        ..TEST
    },
    Command {
        name: "recv",
        listens: When::Always,
        lasts: When::Always,
        policies: &[("from", OptionPolicy::Listen), ("to", OptionPolicy::Sink)],
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
        ],
        left_out: &["no-lines"],
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
    /// Finds the command of this name.
    ///
    /// # Errors
    /// That there is none, and which there are.
    pub(crate) fn named(asked: &str) -> Result<&'static Command, String> {
        let find = |command: &&Command| command.name == asked;
        COMMANDS.iter().find(find).ok_or_else(|| {
            let names = COMMANDS.each_ref().map(|command| command.name).join(", ");
            let asked = asked.escape_debug();
            format!("`{asked}` is no command of a flow: there are {names}")
        })
    }

    /// Tells what an agent has to see to of an option.
    pub fn policy(&self, option: &str) -> OptionPolicy {
        let mut known = self.policies.iter().chain(&POLICIES);
        let found = known.find(|(name, _)| *name == option);
        found.map_or(OptionPolicy::None, |(_, policy)| *policy)
    }

    /// Lists the options that a flow can have, as the command line knows them.
    pub fn options(&self, language: Language) -> Vec<CommandOption> {
        let is_left_out = |name: &str| LEFT_OUT.contains(&name) || self.left_out.contains(&name);
        let mut options = language.options(self.name);
        options.retain(|option| !is_left_out(&option.name));
        options
    }

    /// Makes sure that a flow has only options that it can have.
    ///
    /// # Errors
    /// Which is not one, and which there are.
    pub(crate) fn check_names(&self, options: &Options, language: Language) -> Result<(), String> {
        let known = self.options(language);
        let is_known = |key: &&String| known.iter().any(|option| option.name == **key);
        let Some(odd) = options.keys().find(|key| !is_known(key)) else {
            return Ok(());
        };
        let names: Vec<&str> = known.iter().map(|option| option.name.as_str()).collect();
        let (odd, names) = (odd.escape_debug(), names.join(", "));
        let name = self.name;
        Err(format!("{name} has no option `{odd}`: there are {names}"))
    }

    /// The words that have it print its result, where it has one, and nothing else: what it finds on the way is in its status and in
    /// the history, which are bounded.
    pub(crate) fn printing(&self, options: &Options, language: Language) -> Vec<String> {
        let known = language.options(self.name);
        let has_result = known.iter().any(|it| it.name == "json");
        let words = [("--json", has_result), ("--no-lines", is_live(options))];
        let words = words.into_iter().filter(|(_, is_needed)| *is_needed);
        words.map(|(word, _)| word.to_owned()).collect()
    }

    /// The option that an agent sees to in this way, of a flow that has one.
    fn ruled<'o>(&self, policy: OptionPolicy, options: &'o Options) -> Option<&'o Value> {
        let named = self.policies.iter().find(|(_, known)| *known == policy);
        options.get(named?.0)
    }
}

impl When {
    /// Whether it is so of a command with these options.
    pub(crate) fn is_so(self, options: &Options) -> bool {
        match self {
            When::Never => false,
            When::Live => is_live(options),
            When::Always => true,
        }
    }
}

/// Whether it works on streams that it listens for.
pub(crate) fn is_live(options: &Options) -> bool {
    options.get("live") == Some(&Value::Bool(true))
}

/// Whether a sink keeps what is received: else it only counts or checks.
pub(crate) fn is_kept(sink: &str) -> bool {
    !matches!(sink, "null" | "check")
}

/// What is known of a flow by its command and its options.
#[derive(Clone, Copy)]
pub(crate) struct Known<'f> {
    command: Option<&'static Command>,
    options: &'f Options,
}

impl<'f> Known<'f> {
    /// Nothing is known of a command that is none.
    pub(crate) fn of(command: &str, options: &'f Options) -> Known<'f> {
        Known {
            command: Command::named(command).ok(),
            options,
        }
    }

    /// Whether it waits for data of others, and so starts before them and ends after them.
    pub(crate) fn listens(&self) -> bool {
        let command = self.command;
        command.is_some_and(|command| command.listens.is_so(self.options))
    }

    /// The recording or generator that it sends.
    pub(crate) fn source(&self) -> Option<&'f str> {
        self.text(OptionPolicy::Source)
    }

    /// Where it sends to.
    pub(crate) fn destination(&self) -> Option<Url> {
        url(self
            .command?
            .ruled(OptionPolicy::Destination, self.options)?)
    }

    /// The file that it records in.
    pub(crate) fn recording(&self) -> Option<&'f str> {
        self.text(OptionPolicy::Sink).filter(|sink| is_kept(sink))
    }

    /// Where it listens for streams: for each of those in its result, in their order.
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
    value.as_str()?.parse().ok()
}
