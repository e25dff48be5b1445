//! What a flow may do on this host: its options become a command line only when every file, target, port and rate in
//! them is one that the operator allows.

use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Arg, Parser};
use evlbi_core::rate::BitRate;
use evlbi_net::transport::{self, Listening, Local, Place, Protocol, Url};
use serde_json::Value;

use super::config::Config;
use crate::cli::{Cli, Command as Parsed, ProbeCommand};
use crate::control::commands::{Care, Command, is_flag, is_list, name};
use crate::control::flow::NewFlow;
use crate::output;
use crate::recording::Recording;
use crate::source::Input;
use crate::units::{now, show_size};

/// In the environment of a flow, not on its command line, which everybody on the host can read.
const TOKEN: &str = "EVLBI_TOKEN";

/// Ends of the range of ports that Linux gives to those who ask for any, as it is shipped.
const EPHEMERAL: [u16; 2] = [32_768, 60_999];

/// A flow that may run.
pub struct Allowed {
    /// Its command line, without the program.
    pub words: Vec<String>,
    /// Its environment, beside the agent's own.
    pub environment: Vec<(&'static str, String)>,
    /// Bits a second that it is asked to send; none of one that sends nothing.
    pub rate: Option<u64>,
    /// When it sends, in seconds since 1970, where its options say so.
    pub from: Option<f64>,
    pub until: Option<f64>,
    /// Whether it writes a recording.
    pub records: bool,
    /// Where it listens.
    pub listens: Vec<Listening>,
    /// Files that it makes.
    pub writes: Vec<PathBuf>,
}

impl Allowed {
    /// What no other flow can have: ports and files.
    pub fn owns(&self) -> impl Iterator<Item = String> {
        let single = self.listens.iter().filter(|it| it.is_exclusive());
        let ports = single.map(Listening::to_string);
        let files = self.writes.iter().map(|path| path.display().to_string());
        ports.chain(files).collect::<Vec<String>>().into_iter()
    }
}

/// What a flow sends.
enum Sends {
    Nothing,
    /// So many bits a second at most.
    AtMost(u64),
    /// As fast as goes: this option would hold it.
    Unheld(&'static str),
}

/// Makes a command line of a flow, and, where it is to begin, the folders of its files.
///
/// # Errors
/// What is not allowed or cannot be understood, and what to do.
pub fn allow(flow: &NewFlow, config: &Config, begins: bool) -> Result<Allowed> {
    let command = Command::of(flow).map_err(|error| anyhow!(error))?;
    let known = command.options();
    let is_known = |key: &&String| known.iter().any(|arg| name(arg) == **key);
    if let Some(odd) = flow.options.keys().find(|key| !is_known(key)) {
        let names: Vec<String> = known.iter().map(name).collect();
        bail!(
            "{} has no option `{}`: there are {}",
            command.name,
            odd.escape_debug(),
            names.join(", ")
        );
    }
    if let Some(host) = flow.host.as_ref().filter(|host| **host != config.name) {
        bail!(
            "this is the agent of {}, and the flow is meant for {}",
            config.name,
            host.escape_debug()
        );
    }
    let is_live = flow.options.get("live") == Some(&Value::Bool(true));
    let mut guard = Guard {
        config,
        is_live,
        allowed: Allowed {
            words: command.name.split(' ').map(str::to_owned).collect(),
            environment: Vec::new(),
            rate: None,
            from: None,
            until: None,
            records: false,
            listens: Vec::new(),
            writes: Vec::new(),
        },
        begins,
        // A campaign goes on in the file that it has.
        goes_on: command.name == "watch",
    };
    let mut places = Vec::new();
    for option in &known {
        let name = name(option);
        if let Some(value) = flow.options.get(&name) {
            let within = || format!("`{name}`");
            let values = values(option, value).with_context(within)?;
            let care = command.care(&name);
            let values = values.into_iter().map(|value| guard.see_to(care, value));
            let values = values
                .collect::<Result<Vec<String>>>()
                .with_context(within)?;
            match option.get_long() {
                _ if care == Care::Secret => {}
                // One that is false has no value.
                _ if is_flag(option) => {
                    let word = values.iter().map(|_| format!("--{name}"));
                    guard.allowed.words.extend(word);
                }
                Some(_) => guard
                    .allowed
                    .words
                    .extend(values.iter().map(|value| format!("--{name}={value}"))),
                None => places.extend(values),
            }
        }
    }
    let words = &mut guard.allowed.words;
    words.extend(command.json());
    if is_live {
        // What it finds on the way is in its status and in the history, which are bounded.
        words.push("--no-lines".to_owned());
    }
    words.push("--".to_owned());
    words.extend(places);
    let parsed = parse(command, &guard.allowed)?;
    if let Parsed::Respond(args) = &parsed {
        if args.token.is_none() {
            bail!("a responder that an agent runs needs a `token` that its users know");
        }
        guard.port(args.bind.port()).context("`bind`")?;
        let own = &config.ports;
        match &args.ports {
            Some(asked) => {
                guard.port(*asked.start()).context("`ports`")?;
                guard.port(*asked.end()).context("`ports`")?;
            }
            // The kernel may give any of these.
            None if EPHEMERAL.iter().all(|port| own.contains(port)) => {}
            None => {
                let ports = format!("--ports={}-{}", own.start(), own.end());
                guard.allowed.words.insert(1, ports);
            }
        }
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            guard.allowed.listens.push(Listening {
                protocol,
                at: Local::Socket(args.bind),
            });
        }
    }
    if let Parsed::Send(args) = &parsed {
        // One whose start is over sends now.
        let begin = args.start.map(|start| start.as_nanosecond() as f64 * 1e-9);
        let begin = begin.map_or_else(now, |begin| begin.max(now()));
        guard.allowed.from = Some(begin);
        guard.allowed.until = args.duration.map(|duration| begin + duration.as_secs_f64());
    }
    guard.allowed.rate = match sends(&parsed) {
        Sends::Nothing => None,
        Sends::AtMost(rate) => Some(rate),
        Sends::Unheld(option) if config.max_rate.is_some() => {
            bail!("this agent has a max-rate, so a flow that sends must be held by its `{option}`")
        }
        Sends::Unheld(_) => None,
    };
    Ok(guard.allowed)
}

/// What a command sends at most.
fn sends(command: &Parsed) -> Sends {
    let held = |rate: Option<u64>, option| rate.map_or(Sends::Unheld(option), Sends::AtMost);
    let one = |rate: Option<BitRate>| rate.map(BitRate::get);
    let bits = |bytes: usize, interval: Duration| {
        bytes as u128 * 8 * 1_000_000_000 / interval.as_nanos().max(1)
    };
    match command {
        Parsed::Send(args) if args.max => Sends::Unheld("rate"),
        Parsed::Send(args) => held(one(args.rate), "rate"),
        Parsed::Respond(args) => held(one(args.max_rate), "max-rate"),
        Parsed::Watch(args) => held(one(args.rate), "rate"),
        Parsed::Probe(ProbeCommand::Udp(args)) => {
            let rates = args.rate.iter().flat_map(|rates| &rates.0);
            held(rates.map(|rate| rate.get()).max(), "rate")
        }
        Parsed::Probe(ProbeCommand::Tcp(args)) => {
            let all = |rate: u64| rate.saturating_mul(args.streams.into());
            let beside = one(args.background).unwrap_or(0);
            held(
                one(args.rate).map(|rate| all(rate).saturating_add(beside)),
                "rate",
            )
        }
        Parsed::Probe(ProbeCommand::Latency(args)) => {
            let size = args.size.0.iter().copied().max().unwrap_or(0);
            Sends::AtMost(u64::try_from(bits(size, args.interval)).unwrap_or(u64::MAX))
        }
        Parsed::Probe(ProbeCommand::Capacity(args)) => Sends::AtMost(args.highest.get()),
        _ => Sends::Nothing,
    }
}

/// Whether the ports that a flow listens on are free now.
///
/// # Errors
/// Which is not.
pub fn is_free(allowed: &Allowed) -> Result<()> {
    for listening in &allowed.listens {
        let tried = listening.try_out();
        tried.with_context(|| format!("cannot listen on {}", listening.at))?;
    }
    Ok(())
}

/// Bits a second of the recording that a flow sends by the times in it.
pub fn rate_of_source(flow: &NewFlow, config: &Config) -> Option<u64> {
    let source = flow
        .options
        .get("source")
        .filter(|_| flow.command == "send")?
        .as_str()?;
    let path = config.recordings.join(source);
    let recording = path
        .is_file()
        .then(|| Recording::survey(&path, None))?
        .ok()?;
    let input = Input::Recording(Box::new(recording));
    input.rate().map(BitRate::get)
}

/// The values of an option as the command line takes them.
fn values(option: &Arg, value: &Value) -> Result<Vec<String>> {
    if is_flag(option) {
        return match value {
            Value::Bool(true) => Ok(vec![String::new()]),
            Value::Bool(false) => Ok(Vec::new()),
            _ => bail!("is true or false"),
        };
    }
    let one = |value: &Value| match value {
        Value::String(text) if text.contains('\0') => bail!("cannot have a NUL in it"),
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        _ => bail!("is text or a number"),
    };
    match value {
        Value::Array(list) if is_list(option) => list.iter().map(one).collect(),
        other => Ok(vec![one(other)?]),
    }
}

/// Has the command line's own rules applied, whose words and limits are known there alone.
fn parse(command: &Command, allowed: &Allowed) -> Result<Parsed> {
    let (words, rest) = allowed.words.split_at(command.name.split(' ').count());
    let tokens = allowed
        .environment
        .iter()
        .map(|(_, token)| format!("--token={token}"));
    let line = ["evlbi".to_owned()]
        .into_iter()
        .chain(words.iter().cloned());
    match Cli::try_parse_from(line.chain(tokens).chain(rest.iter().cloned())) {
        Ok(cli) => Ok(cli.command),
        Err(error) => {
            let text = error.to_string();
            let first = text.split("\n\n").next().unwrap_or_default();
            let words = first.trim_start_matches("error: ").split_whitespace();
            bail!("{}", words.collect::<Vec<&str>>().join(" "))
        }
    }
}

struct Guard<'a> {
    config: &'a Config,
    is_live: bool,
    allowed: Allowed,
    begins: bool,
    goes_on: bool,
}

impl Guard<'_> {
    /// The value as the flow gets it.
    fn see_to(&mut self, care: Care, value: String) -> Result<String> {
        match care {
            Care::None | Care::Whole => Ok(value),
            Care::Secret => {
                self.allowed.environment.push((TOKEN, value.clone()));
                Ok(value)
            }
            Care::Source => self.source(&value),
            Care::Sink if matches!(value.as_str(), "null" | "check") => Ok(value),
            Care::Sink => {
                self.has_room()?;
                self.allowed.records = true;
                self.write(&value)
            }
            Care::Write => self.write(&value),
            Care::Read => self.read(&value),
            Care::Stations if self.is_live => self.listen(&value),
            Care::Stations => self.read(&value),
            Care::Listen => self.listen(&value),
            Care::Destination => {
                let mut url = transport::destination(&value).map_err(|error| anyhow!(error))?;
                let addresses = url.addresses()?.into_iter();
                let firsts: Vec<SocketAddr> =
                    addresses.filter_map(|it| it.first().copied()).collect();
                let target = self.target(&firsts)?;
                if let Place::Host(host) = &mut url.place {
                    // The name may mean something else a moment later.
                    host.name = target.ip().to_string();
                }
                Ok(url.to_string())
            }
            Care::Target => {
                let found = value.to_socket_addrs();
                let found = found
                    .with_context(|| format!("`{value}` is no HOST:PORT that can be found"))?;
                Ok(self
                    .target(&found.collect::<Vec<SocketAddr>>())?
                    .to_string())
            }
        }
    }

    fn source(&self, value: &str) -> Result<String> {
        if value.starts_with("pattern:") {
            return Ok(value.to_owned());
        }
        match value.strip_prefix("sky:") {
            Some(place) => {
                let (plan, station) = place
                    .rsplit_once('/')
                    .context("names no station; write sky:PLAN.toml/STATION")?;
                Ok(format!("sky:{}/{station}", self.read(plan)?))
            }
            None => self.read(value),
        }
    }

    /// A file that is there, below a folder that may be read.
    fn read(&self, value: &str) -> Result<String> {
        let path = self.config.recordings.join(value);
        let refused = || anyhow!("{value} is no file in a folder that flows may read");
        let real = fs::canonicalize(&path).map_err(|_| refused())?;
        let folders = self.config.read.iter().chain([&self.config.recordings]);
        let mut folders = folders.filter_map(|folder| fs::canonicalize(folder).ok());
        if !real.is_file() || !folders.any(|folder| real.starts_with(folder)) {
            return Err(refused());
        }
        text(&real)
    }

    /// A file that is not there yet, below the folder for recordings; folders on the way are made.
    fn write(&mut self, value: &str) -> Result<String> {
        let path = Path::new(value);
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if value.is_empty() || value.ends_with('/') || !path.components().all(is_plain) {
            bail!(
                "{value} is no name below the folder for recordings: write it without a / at its ends, and without .."
            );
        }
        let base = fs::canonicalize(&self.config.recordings).with_context(|| {
            format!(
                "the folder for recordings, {}",
                self.config.recordings.display()
            )
        })?;
        let folder = base.join(path.parent().unwrap_or(Path::new("")));
        let first = folder
            .ancestors()
            .find(|folder| folder.exists())
            .unwrap_or(&base);
        let outside = || anyhow!("{value} leads out of the folder for recordings");
        if !fs::canonicalize(first)?.starts_with(&base) {
            return Err(outside());
        }
        if self.begins {
            fs::create_dir_all(&folder)
                .with_context(|| format!("cannot make the folder of {value}"))?;
        }
        // What is not there yet leads nowhere else.
        let folder = fs::canonicalize(&folder).unwrap_or(folder);
        let real = folder.join(path.file_name().ok_or_else(outside)?);
        if real.is_symlink() {
            return Err(outside());
        }
        let beside = [output::result_beside(&real), output::gaps_beside(&real)];
        for file in beside.iter().chain([&real]) {
            if file.is_file() && !self.goes_on {
                let name = file.file_name().unwrap_or_default().display();
                bail!("{name} exists already, and nothing is written over: give another name");
            }
        }
        self.allowed.writes.push(real.clone());
        text(&real)
    }

    fn has_room(&self) -> Result<()> {
        let free = super::free_bytes(&self.config.recordings)?;
        if free < self.config.min_free {
            bail!(
                "{} are free for recordings, and this agent begins none with less than {}",
                show_size(free),
                show_size(self.config.min_free)
            );
        }
        Ok(())
    }

    fn listen(&mut self, value: &str) -> Result<String> {
        let url: Url = value.parse().map_err(|error: String| anyhow!(error))?;
        let host = url.host().with_context(|| {
            format!("`{value}` names no port, and flows of an agent listen on ports alone")
        })?;
        for port in 0..host.ports {
            self.port(host.port.saturating_add(port))?;
        }
        let listens = url.transport().listens(&url)?;
        self.allowed.listens.extend(listens);
        Ok(value.to_owned())
    }

    fn port(&self, port: u16) -> Result<()> {
        let ports = &self.config.ports;
        // The kernel takes one of its own range for 0.
        let is_within = match port {
            0 => EPHEMERAL.iter().all(|port| ports.contains(port)),
            port => ports.contains(&port),
        };
        if !is_within {
            bail!(
                "flows of this host may listen on ports {} to {}, not on {port}",
                ports.start(),
                ports.end()
            );
        }
        Ok(())
    }

    fn target(&self, addresses: &[SocketAddr]) -> Result<SocketAddr> {
        let first = addresses.first().context("has no address")?;
        let is_target = |address: &&SocketAddr| {
            let ip = address.ip().to_canonical();
            self.config.targets.iter().any(|net| net.contains(&ip))
        };
        match addresses.iter().find(is_target) {
            Some(address) => Ok(*address),
            None => bail!(
                "{} is not among the `targets` of this host's agent.toml, so nothing is sent there",
                first.ip().to_canonical()
            ),
        }
    }
}

fn text(path: &Path) -> Result<String> {
    let text = PathBuf::from(path).into_os_string().into_string();
    text.map_err(|path| anyhow!("{} is not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::control::commands::COMMANDS;

    fn config(room: &evlbi_testkit::Room, settings: &str) -> Config {
        let path = room.write("agent.toml", settings);
        fs::create_dir(room.folder().join("recordings")).unwrap();
        Config::open(Path::new(&path)).unwrap()
    }

    fn words(flow: &Value, config: &Config) -> Vec<String> {
        let flow = serde_json::from_value(flow.clone()).unwrap();
        allow(&flow, config, false).unwrap().words
    }

    /// An option that is given as `false` is as one that is not given, whichever it is.
    #[test]
    fn false_switches_nothing_on() {
        let room = evlbi_testkit::Room::new();
        let config = config(&room, "");
        let target =
            json!({"target": "127.0.0.1:8620", "token": "0123", "rate": "1M", "spacing": "1ms"});
        let send = json!({"source": "pattern:8032", "to": "udp://127.0.0.1:9", "rate": "1M"});
        let recv = json!({"from": "udp://127.0.0.1:0", "to": "null"});
        let live = json!({"files": ["udp://127.0.0.1:0", "udp://127.0.0.1:0"], "live": true});
        let mut seen = 0;
        for command in &COMMANDS {
            let base = match command.name {
                "send" => &send,
                "recv" => &recv,
                "correlate" => &live,
                _ => &target,
            };
            let known = command.options();
            let has = |key: &str| known.iter().any(|arg| name(arg) == *key);
            let mut flow = json!({"id": "a", "command": command.name});
            for (key, value) in base.as_object().unwrap() {
                if has(key) && !(key == "spacing" && has("rate")) {
                    flow[key] = value.clone();
                }
            }
            if command.name == "watch" {
                flow["file"] = json!("new.sqlite");
            }
            let before = words(&flow, &config);
            for flag in known.iter().filter(|arg| is_flag(arg)) {
                if flow.get(name(flag)).is_none() {
                    flow[name(flag)] = json!(false);
                    seen += 1;
                }
            }
            assert_eq!(words(&flow, &config), before, "{flow}");
        }
        assert!(seen > 10, "{seen}");
    }

    /// A responder's tests listen on the ports that flows may, and nowhere else.
    #[test]
    fn a_responder_tests_on_the_ports_of_flows() {
        let respond =
            json!({"id": "r", "command": "respond", "bind": "127.0.0.1:8620", "token": "0123"});
        let rooms = [0, 1].map(|_| evlbi_testkit::Room::new());
        let held = words(&respond, &config(&rooms[0], "ports = \"8600-8700\""));
        assert!(held.contains(&"--ports=8600-8700".to_owned()), "{held:?}");
        let any = words(&respond, &config(&rooms[1], ""));
        assert!(
            !any.iter().any(|word| word.starts_with("--ports")),
            "{any:?}"
        );
    }

    /// A sender whose start is over sends now, for as long as it was asked to.
    #[test]
    fn a_start_that_is_over_is_now() {
        let room = evlbi_testkit::Room::new();
        let config = config(&room, "");
        let before = now();
        for (start, is_over) in [
            ("2020-01-01T00:00:00Z", true),
            ("2099-01-01T00:00:00Z", false),
        ] {
            let send = json!({"id": "a", "command": "send", "source": "pattern:8032", "rate": "1M",
                "to": "udp://127.0.0.1:9", "start": start, "duration": "60s"});
            let flow = serde_json::from_value(send).unwrap();
            let allowed = allow(&flow, &config, false).unwrap();
            let (from, until) = (allowed.from.unwrap(), allowed.until.unwrap());
            assert!(from >= before, "{start}: {from}");
            assert!((until - from - 60.0).abs() < 1e-3, "{start}: {until}");
            assert_eq!(from <= now(), is_over, "{start}: {from}");
        }
    }

    /// A live correlator of an agent prints its result alone: what it prints is kept, however long it runs.
    #[test]
    fn a_live_flow_prints_no_lines() {
        let room = evlbi_testkit::Room::new();
        let stream = "udp://127.0.0.1:0";
        let live =
            json!({"id": "c", "command": "correlate", "files": [stream, stream], "live": true});
        let found = words(&live, &config(&room, ""));
        assert!(found.contains(&"--no-lines".to_owned()), "{found:?}");
    }
}
