//! Access rules of a host: options of a flow become a command line only if the operator allows every file, target, port and rate in
//! them.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use evlbi_core::rate::BitRate;
use evlbi_host::doctor::{FreeError, free_bytes};
use evlbi_net::clock::Clock;
use evlbi_net::responder;
use evlbi_net::safe::message_address;
use evlbi_net::transport::{self, Listening, Local, OpenError, Place, Protocol, Url};
use evlbi_stream::channel_table::ChannelTable;
use evlbi_stream::recording::{Recording, gaps_beside, result_beside};
use evlbi_stream::selection::Selection;
use evlbi_stream::source::PATTERN;
use evlbi_wire::units::show_size;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::config::Config;
use crate::commands::{
    Command, CommandOption, Known, Language, Meaning, OptionPolicy, Sends, is_kept, is_live,
};
use crate::flow::NewFlow;
use crate::time::now;

/// Environment variable of a flow's token. A command line would be readable by every user of the host.
const TOKEN: &str = "EVLBI_TOKEN";

/// Name of the file with a flow's key in its working directory.
pub const KEY_FILE: &str = "key";

/// Prefix of a key in an option.
pub const KEY: &str = "key:";

/// First and last ephemeral port of Linux by default.
const EPHEMERAL: [u16; 2] = [32_768, 60_999];

/// Error: a flow may not run on this host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The flow is invalid, or the operator does not allow it.
    #[error("{0}")]
    Because(String),
    /// One of its options is refused.
    #[error("`{name}`")]
    Option {
        /// Name of the option.
        name: String,
        /// Reason.
        source: Box<Refusal>,
    },
    /// A system call for the flow failed.
    #[error("{what}")]
    System {
        /// Description of the call.
        what: String,
        /// Error of the system.
        source: io::Error,
    },
    /// A path cannot be resolved.
    #[error("{0}")]
    Path(#[from] io::Error),
    /// A host name or an option of a URL is invalid.
    #[error("{0}")]
    Url(#[from] OpenError),
    /// The free space for recordings cannot be read.
    #[error("{0}")]
    Disk(#[from] FreeError),
}

impl From<String> for Refusal {
    fn from(why: String) -> Refusal {
        Refusal::Because(why)
    }
}

impl Refusal {
    /// Names the option that a refusal concerns.
    fn of(name: &str) -> impl Fn(Refusal) -> Refusal {
        move |why| Refusal::Option {
            name: name.to_owned(),
            source: Box::new(why),
        }
    }

    fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Refusal {
        move |source| Refusal::System {
            what: what.into(),
            source,
        }
    }
}

type Result<T> = std::result::Result<T, Refusal>;

/// Bit rate and time of sending of a flow.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub struct Load {
    /// Requested bit rate, in bit/s; `None` if the flow sends nothing or its rate is unknown.
    pub rate: Option<u64>,
    /// Start of sending, in seconds since 1970, if the options give it.
    pub from: Option<f64>,
    /// End of sending, in seconds since 1970, if the options give it.
    pub until: Option<f64>,
}

impl Load {
    fn begins(&self) -> f64 {
        self.from.unwrap_or(0.0)
    }

    fn ends(&self) -> f64 {
        self.until.unwrap_or(f64::INFINITY)
    }

    /// Returns the maximum sum of the others' bit rates while this flow sends. A sum grows only where a flow starts.
    pub(crate) fn beside(&self, others: &[Load]) -> u64 {
        let begins = others.iter().map(|other| other.begins().max(self.begins()));
        let sums = begins.filter(|time| *time < self.ends()).map(|time| {
            let at = others.iter();
            let at = at.filter(|other| other.begins() <= time && time < other.ends());
            at.filter_map(|other| other.rate).sum()
        });
        sums.max().unwrap_or(0)
    }
}

/// Command line of an allowed flow, and the resources that it uses.
#[derive(Default)]
pub struct Allowed {
    /// Words of its command line, without the name of the program.
    pub words: Vec<String>,
    /// Environment variables in addition to the agent's own.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Bit rate and time of sending.
    pub load: Load,
    /// The flow writes a recording.
    pub(crate) records: bool,
    /// Addresses that it listens on.
    pub(crate) listens: Vec<Listening>,
    /// Files that it creates.
    pub(crate) writes: Vec<PathBuf>,
    /// Names and contents of files that its working directory contains from the start.
    pub(crate) files: Vec<(String, Vec<u8>)>,
}

impl Allowed {
    /// Lists the ports that no other flow can use.
    pub(crate) fn ports(&self) -> impl Iterator<Item = String> {
        let single = self.listens.iter().filter(|it| it.is_exclusive());
        single.map(Listening::to_string)
    }
}

/// Builds the command line of a flow that the operator allows. If `begins` is set, also creates the directories of its files.
///
/// # Errors
/// Returns [`Refusal`] if the flow is invalid or not allowed.
pub fn allow(flow: &NewFlow, config: &Config, language: Language, begins: bool) -> Result<Allowed> {
    let command = Command::named(&flow.command)?;
    command.check_names(&flow.options, language)?;
    if let Some(host) = flow.host.as_ref().filter(|host| **host != config.name) {
        return Err(Refusal::Because(format!(
            "the flow is for host {}, but this is the agent of {}",
            host.escape_debug(),
            config.name
        )));
    }
    let mut guard = Guard {
        config,
        is_live: is_live(&flow.options),
        allowed: Allowed {
            words: command.name.split(' ').map(str::to_owned).collect(),
            ..Allowed::default()
        },
        last: Vec::new(),
        begins,
        continues: command.continues,
    };
    let mut places = Vec::new();
    for option in command.options(language) {
        let name = &option.name;
        if let Some(value) = flow.options.get(name) {
            let within = Refusal::of(name);
            let policy = command.policy(name);
            let values = match value {
                Value::Array(_) if policy == OptionPolicy::Table => {
                    guard.table(name, value).map(|file| vec![file])
                }
                value => values(&option, value).and_then(|values| {
                    let values = values.into_iter();
                    values.map(|value| guard.apply(policy, value)).collect()
                }),
            };
            let values: Vec<String> = values.map_err(within)?;
            let words = &mut guard.allowed.words;
            match option {
                _ if policy == OptionPolicy::Secret => {}
                _ if option.is_positional => places.extend(values),
                // A flag that is false has no values.
                _ if option.is_flag => words.extend(values.iter().map(|_| format!("--{name}"))),
                _ => words.extend(values.iter().map(|value| format!("--{name}={value}"))),
            }
        }
    }
    let words = &mut guard.allowed.words;
    words.extend(command.printing(&flow.options, language));
    words.push("--".to_owned());
    words.extend(places);
    let meaning = check(command, &guard.allowed, language)?;
    if let Some((bind, ports)) = &meaning.responds {
        guard.respond(*bind, ports.as_ref())?;
    }
    if command.waits {
        // A flow with a start in the past sends now.
        let begin = meaning.start.map_or_else(now, |begin| begin.max(now()));
        guard.allowed.load.from = Some(begin);
        guard.allowed.load.until = meaning.duration.map(|lasts| begin + lasts.as_secs_f64());
    }
    guard.allowed.load.rate = match meaning.sends {
        Sends::AtMost(rate) => Some(rate),
        Sends::Unlimited if config.max_rate.is_some() => {
            return Err(Refusal::Because(format!(
                "this agent has a max-rate: limit the flow with its option `{}`",
                command.limit
            )));
        }
        Sends::Unlimited | Sends::Nothing => None,
    };
    Ok(guard.allowed)
}

/// Checks that the ports of a flow are free now.
///
/// # Errors
/// Returns [`Refusal`] for the first port that is in use.
pub(crate) fn free(allowed: Allowed) -> Result<Allowed> {
    for listening in &allowed.listens {
        let failed = Refusal::system(format!("cannot listen on {}", listening.at));
        listening.try_out().map_err(failed)?;
    }
    Ok(allowed)
}

/// Returns the bit rate of the recording that a flow sends, from its timestamps.
pub(crate) fn rate_of_source(flow: &NewFlow, config: &Config) -> Option<u64> {
    let source = Known::of(&flow.command, &flow.options).source()?;
    let (path, selection) = Selection::split(source).ok()?;
    let path = Some(config.recordings.join(path)).filter(|path| path.is_file())?;
    let second = Clock::real().second();
    let recording = Recording::select(&path, &selection, None, second).ok()?;
    recording.rate().map(BitRate::get)
}

fn no<T>(why: &str) -> Result<T> {
    Err(Refusal::Because(why.to_owned()))
}

/// Converts the value of an option into values of the command line.
fn values(option: &CommandOption, value: &Value) -> Result<Vec<String>> {
    if option.is_flag {
        return match value {
            Value::Bool(true) => Ok(vec![String::new()]),
            Value::Bool(false) => Ok(Vec::new()),
            _ => no("give true or false"),
        };
    }
    let one = |value: &Value| match value {
        Value::String(text) if text.contains('\0') => no("must not contain NUL"),
        Value::String(text) => Ok((option.complete)(text)),
        Value::Number(number) => Ok((option.complete)(&number.to_string())),
        _ => no("give text or a number"),
    };
    match value {
        Value::Array(list) if option.is_list => list.iter().map(one).collect(),
        other => Ok(vec![one(other)?]),
    }
}

/// Applies the rules of the command line, which alone knows the options' formats and limits.
fn check(command: &Command, allowed: &Allowed, language: Language) -> Result<Meaning> {
    let mut words = allowed.words.clone();
    let tokens = allowed.environment.iter();
    let tokens = tokens.map(|(_, token)| format!("--token={token}"));
    let place = command.name.split(' ').count();
    words.splice(place..place, tokens);
    Ok(language.check(words)?)
}

struct Guard<'a> {
    config: &'a Config,
    is_live: bool,
    allowed: Allowed,
    /// The last port of each URL that it listens on, if SafeUDP can control the transport.
    last: Vec<SocketAddr>,
    begins: bool,
    /// The flow may write to existing files.
    continues: bool,
}

/// Applies a policy to the address of a recording or stream, and leaves its settings.
fn with_settings(value: &str, apply: impl FnOnce(&str) -> Result<String>) -> Result<String> {
    let split = Selection::split(value).map_err(|error| error.to_string());
    let (address, selection) = split?;
    Ok(selection.join(&apply(&address)?))
}

impl Guard<'_> {
    /// Applies a policy to an option's value and returns the value for the command line.
    fn apply(&mut self, policy: OptionPolicy, value: String) -> Result<String> {
        match policy {
            OptionPolicy::None | OptionPolicy::Whole => Ok(value),
            OptionPolicy::Secret => {
                self.allowed.environment.push((TOKEN, value.clone()));
                Ok(value)
            }
            OptionPolicy::Source => with_settings(&value, |value| self.source(value)),
            OptionPolicy::Sink if !is_kept(&value) => Ok(value),
            OptionPolicy::Sink => {
                self.has_room()?;
                self.allowed.records = true;
                self.write(&value)
            }
            OptionPolicy::Write => self.write(&value),
            OptionPolicy::Read | OptionPolicy::Table => self.read(&value),
            OptionPolicy::Key => match value.strip_prefix(KEY) {
                Some(digits) => self.key(digits),
                None => self.read(&value),
            },
            OptionPolicy::Messages => {
                // The options of a command are in the order of its command line: the URL comes first.
                self.listen_for_messages()?;
                Ok(value)
            }
            OptionPolicy::Stations => with_settings(&value, |address| match self.is_live {
                true => self.listen(address),
                false => self.read(address),
            }),
            OptionPolicy::Listen => with_settings(&value, |address| self.listen(address)),
            OptionPolicy::Destination => {
                let mut url = transport::destination(&value)?;
                if !matches!(url.place, Place::Host(_)) {
                    return Err(Refusal::Because(format!(
                        "`{value}` names no host: flows of an agent can send only to hosts"
                    )));
                }
                let addresses = url.addresses()?.into_iter();
                let target = self.target(addresses.filter_map(|it| it.first().copied()))?;
                if let Place::Host(host) = &mut url.place {
                    // The name could resolve to another address later.
                    host.name = target.ip().to_string();
                }
                Ok(url.to_string())
            }
            OptionPolicy::Target => {
                let unknown = format!("cannot find the host `{value}`");
                let found = responder::look_up(&value).map_err(Refusal::system(unknown))?;
                Ok(self.target(found)?.to_string())
            }
        }
    }

    fn source(&self, value: &str) -> Result<String> {
        if value.starts_with(PATTERN) {
            return Ok(value.to_owned());
        }
        let Some(place) = value.strip_prefix("sky:") else {
            return self.read(value);
        };
        let Some((plan, station)) = place.rsplit_once('/') else {
            return no("names no station: give sky:PLAN.toml/STATION");
        };
        Ok(format!("sky:{}/{station}", self.read(plan)?))
    }

    /// Puts the rows of a channel table into a file of the flow's working directory, and returns its name.
    fn table(&mut self, name: &str, rows: &Value) -> Result<String> {
        let table = serde_json::from_value(json!({ "channel": rows }));
        let table: ChannelTable = table.map_err(|error| error.to_string())?;
        table.check()?;
        let text = toml::to_string(&table).map_err(|error| error.to_string())?;
        let file = format!("{name}.toml");
        self.allowed.files.push((file.clone(), text.into_bytes()));
        Ok(file)
    }

    /// Puts a key into a file of the flow's working directory, and returns its name.
    fn key(&mut self, digits: &str) -> Result<String> {
        let pairs = digits.as_bytes().chunks(2);
        let bytes = pairs.map(|pair| {
            let text = std::str::from_utf8(pair).ok()?;
            let is_digits = text.bytes().all(|it| it.is_ascii_hexdigit());
            u8::from_str_radix(text, 16).ok().filter(|_| is_digits)
        });
        let bytes = bytes.collect::<Option<Vec<u8>>>();
        let Some(bytes) = bytes.filter(|_| digits.len() == 64) else {
            return no("is not a key: give key: and 64 hexadecimal digits, or a file");
        };
        self.allowed.files.push((KEY_FILE.to_owned(), bytes));
        Ok(KEY_FILE.to_owned())
    }

    /// Resolves an existing file below a readable directory.
    fn read(&self, value: &str) -> Result<String> {
        let path = self.config.recordings.join(value);
        let refused = || {
            Refusal::Because(format!(
                "{value} is not a file in a directory that flows may read: add its directory to `read` in {} and restart the agent",
                self.config.path.display()
            ))
        };
        let real = fs::canonicalize(&path).map_err(|_| refused())?;
        let folders = self.config.read.iter().chain([&self.config.recordings]);
        let mut folders = folders.filter_map(|folder| fs::canonicalize(folder).ok());
        if !real.is_file() || !folders.any(|folder| real.starts_with(folder)) {
            return Err(refused());
        }
        text(&real)
    }

    /// Resolves a new file below the directory for recordings, and creates its parent directories.
    fn write(&mut self, value: &str) -> Result<String> {
        let path = Path::new(value);
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if value.is_empty() || value.ends_with('/') || !path.components().all(is_plain) {
            return Err(Refusal::Because(format!(
                "invalid file name {value}: give a path below the directory for recordings, without / at its ends and without .."
            )));
        }
        let base = &self.config.recordings;
        let what = format!(
            "cannot open the directory for recordings {}",
            base.display()
        );
        let base = fs::canonicalize(base).map_err(Refusal::system(what))?;
        let folder = base.join(path.parent().unwrap_or(Path::new("")));
        let first = folder.ancestors().find(|folder| folder.exists());
        let first = first.unwrap_or(&base);
        let outside =
            || Refusal::Because(format!("{value} leads out of the directory for recordings"));
        if !fs::canonicalize(first)?.starts_with(&base) {
            return Err(outside());
        }
        if self.begins {
            let what = format!("cannot create the directory of {value}");
            fs::create_dir_all(&folder).map_err(Refusal::system(what))?;
        }
        // A directory that does not exist yet cannot be a link.
        let folder = fs::canonicalize(&folder).unwrap_or(folder);
        let real = folder.join(path.file_name().ok_or_else(outside)?);
        if real.is_symlink() {
            return Err(outside());
        }
        let beside = [result_beside(&real), gaps_beside(&real)];
        for file in beside.iter().chain([&real]) {
            if file.is_file() && !self.continues {
                let name = file.file_name().unwrap_or_default().display();
                return Err(Refusal::Because(format!(
                    "{name} exists and is not overwritten: give another name"
                )));
            }
        }
        self.allowed.writes.push(real.clone());
        text(&real)
    }

    fn has_room(&self) -> Result<()> {
        let free = free_bytes(&self.config.recordings)?;
        if free < self.config.min_free {
            let (free, min) = (show_size(free), show_size(self.config.min_free));
            return Err(Refusal::Because(format!(
                "{free} are free for recordings, and this agent starts none below {min} (min-free)"
            )));
        }
        Ok(())
    }

    fn listen(&mut self, value: &str) -> Result<String> {
        let url: Url = value.parse()?;
        let bare =
            || format!("`{value}` names no port: flows of an agent can listen only on ports");
        let host = url.host().ok_or_else(bare)?;
        for port in 0..host.ports {
            self.port(host.port.saturating_add(port))?;
        }
        let listens = url.transport().listens(&url)?;
        if url.can_be_safe() {
            let last = listens.last().map(|listening| &listening.at);
            self.last.extend(last.and_then(|at| match at {
                Local::Socket(address) => Some(*address),
                _ => None,
            }));
        }
        self.allowed.listens.extend(listens);
        Ok(value.to_owned())
    }

    /// Checks and reserves the ports for messages of SafeUDP.
    fn listen_for_messages(&mut self) -> Result<()> {
        // Without such a port the flow itself refuses.
        for last in std::mem::take(&mut self.last) {
            let Some(at) = Some(last)
                .filter(|at| at.port() != 0)
                .and_then(message_address)
            else {
                continue;
            };
            self.port(at.port())?;
            self.allowed.listens.push(Listening {
                protocol: Protocol::Udp,
                at: Local::Socket(at),
            });
        }
        Ok(())
    }

    /// Checks the ports of a responder, and restricts those of its tests to the ports that flows may listen on.
    fn respond(&mut self, bind: SocketAddr, ports: Option<&RangeInclusive<u16>>) -> Result<()> {
        if self.allowed.environment.is_empty() {
            return no("a responder of an agent needs a `token` for its clients");
        }
        self.port(bind.port()).map_err(Refusal::of("bind"))?;
        let own = &self.config.ports;
        match ports {
            Some(asked) => {
                for end in [asked.start(), asked.end()] {
                    self.port(*end).map_err(Refusal::of("ports"))?;
                }
            }
            // The kernel may choose any of these.
            None if EPHEMERAL.iter().all(|port| own.contains(port)) => {}
            None => {
                let ports = format!("--ports={}-{}", own.start(), own.end());
                self.allowed.words.insert(1, ports);
            }
        }
        let at = || Local::Socket(bind);
        let both = [Protocol::Tcp, Protocol::Udp].into_iter();
        let listens = both.map(|protocol| Listening { protocol, at: at() });
        self.allowed.listens.extend(listens);
        Ok(())
    }

    fn port(&self, port: u16) -> Result<()> {
        let ports = &self.config.ports;
        // For port 0 the kernel chooses an ephemeral port.
        let possible = if port == 0 { &EPHEMERAL[..] } else { &[port] };
        if !possible.iter().all(|port| ports.contains(port)) {
            let (first, last) = (ports.start(), ports.end());
            return Err(Refusal::Because(format!(
                "flows of this host may listen on ports {first} to {last}, not on {port}"
            )));
        }
        Ok(())
    }

    /// Returns the first address that flows may send to.
    fn target(&self, addresses: impl IntoIterator<Item = SocketAddr>) -> Result<SocketAddr> {
        let mut addresses = addresses.into_iter().peekable();
        let Some(&first) = addresses.peek() else {
            return no("no address found");
        };
        let is_target = |address: &SocketAddr| {
            let ip = address.ip().to_canonical();
            self.config.targets.iter().any(|net| net.contains(&ip))
        };
        addresses.find(is_target).ok_or_else(|| {
            Refusal::Because(format!(
                "{} is not among the `targets` in {}: add its network there and restart the agent",
                first.ip().to_canonical(),
                self.config.path.display()
            ))
        })
    }
}

fn text(path: &Path) -> Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Refusal::Because(format!("the path {} is not UTF-8", path.display())))
}
