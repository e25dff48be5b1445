//! Defaults of this user, from `~/.config/evlbi/config.toml`: a token file, hosts by name, rates.
//!
//! Commands that a person types read them. Flows do not: an agent starts them with `EVLBI_CONFIG` empty. Here belongs a further default.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::{env, fmt, fs};

use anyhow::{Context, Result};
use evlbi_core::rate::BitRate;
use evlbi_net::responder;
use evlbi_net::transport::{Place, Url};
use evlbi_wire::units::setting;
use serde::Deserialize;

/// Names another file than the default one; empty: none.
const VARIABLE: &str = "EVLBI_CONFIG";

/// Defaults of this user.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Config {
    /// The file that says so.
    #[serde(skip)]
    path: PathBuf,
    /// The file with the token of tests.
    token_file: Option<PathBuf>,
    /// Addresses by name: HOST or HOST:PORT.
    hosts: BTreeMap<String, String>,
    rates: Rates,
}

/// Rates of commands that are given none.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Rates {
    /// Rate of a generated pattern.
    #[serde(deserialize_with = "setting::some")]
    pub send: Option<BitRate>,
    #[serde(deserialize_with = "setting::some")]
    pub probe_udp: Option<BitRate>,
    #[serde(deserialize_with = "setting::some")]
    pub watch: Option<BitRate>,
}

impl Config {
    /// Reads this user's defaults: none if there is no file.
    pub fn read() -> Result<Config> {
        let named = env::var_os(VARIABLE).map(PathBuf::from);
        let is_named = named.is_some();
        let path = named.or_else(default_path).unwrap_or_default();
        if path.as_os_str().is_empty() {
            return Ok(Config::default());
        }
        match fs::read_to_string(&path) {
            Err(error) if !is_named && is_elsewhere(&error) => {
                tracing::info!("no config file {}: {error}", path.display());
                Ok(Config::default())
            }
            text => {
                let text = text.with_context(|| format!("cannot read {}", path.display()))?;
                Config::parse(&text, &path)
            }
        }
    }

    fn parse(text: &str, path: &Path) -> Result<Config> {
        let config: Config = toml::from_str(text).with_context(|| path.display().to_string())?;
        Ok(Config {
            path: path.to_owned(),
            ..config
        })
    }

    /// Returns the file with the token of tests; a relative path starts at the directory of the config file.
    pub fn token_file(&self) -> Option<PathBuf> {
        let directory = self.path.parent().unwrap_or(Path::new(""));
        let file = directory.join(self.token_file.as_ref()?);
        self.uses("token-file", &file.display());
        Some(file)
    }

    /// Returns the rate of a command that is given none.
    pub fn rate(&self, rate: impl Fn(&Rates) -> Option<BitRate>) -> Option<BitRate> {
        let rate = rate(&self.rates)?;
        self.uses("rate", &rate);
        Some(rate)
    }

    /// Replaces a name in HOST or HOST:PORT by its address. A port that is given wins.
    pub fn address(&self, given: &str) -> String {
        let with_port = given.rsplit_once(':');
        let known = with_port.filter(|(name, _)| self.hosts.contains_key(*name));
        let (name, port) = known.map_or((given, None), |(name, port)| (name, Some(port)));
        let Some(known) = self.hosts.get(name) else {
            return given.to_owned();
        };
        let address = match (port, host_of(known)) {
            (None, _) => known.clone(),
            (Some(port), v6) if v6.contains(':') => format!("[{v6}]:{port}"),
            (Some(port), host) => format!("{host}:{port}"),
        };
        self.uses(name, &address);
        address
    }

    /// Replaces a name of a host in a URL by its address, without the port that goes with it.
    pub fn name_in(&self, url: &mut Url) {
        if let Place::Host(host) = &mut url.place
            && let Some(known) = self.hosts.get(&host.name)
        {
            let address = host_of(known).to_owned();
            self.uses(&host.name, &address);
            host.name = address;
        }
    }

    fn uses(&self, name: &str, value: &dyn fmt::Display) {
        tracing::info!("{name} is {value} ({})", self.path.display());
    }
}

/// Returns whether there is no file, or it is another user's: HOME may be that of the user before `su` or `sudo`.
fn is_elsewhere(error: &io::Error) -> bool {
    let kinds = [
        ErrorKind::NotFound,
        ErrorKind::NotADirectory,
        ErrorKind::PermissionDenied,
    ];
    kinds.contains(&error.kind())
}

/// `evlbi/config.toml` in the user's directory for configuration.
fn default_path() -> Option<PathBuf> {
    let directory = |variable| {
        let path = env::var_os(variable).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let home = || Some(directory("HOME")?.join(".config"));
    let config = directory("XDG_CONFIG_HOME").or_else(home);
    Some(config?.join("evlbi/config.toml"))
}

/// Returns the host in HOST or HOST:PORT.
fn host_of(address: &str) -> &str {
    responder::split(address).map_or(address, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config> {
        Config::parse(text, Path::new("/home/me/.config/evlbi/config.toml"))
    }

    #[test]
    fn names_stand_for_addresses() {
        let config = parse(
            "[hosts]\njive = \"probe.jive.eu:8620\"\nonsala = \"10.0.0.7\"\nmetsahovi = \"[2001:db8::5]:9000\"\nyebes = \"2001:db8::6\"",
        )
        .unwrap();
        for (given, address) in [
            ("jive", "probe.jive.eu:8620"),
            ("jive:9000", "probe.jive.eu:9000"),
            ("onsala", "10.0.0.7"),
            ("onsala:8620", "10.0.0.7:8620"),
            ("metsahovi", "[2001:db8::5]:9000"),
            ("metsahovi:8620", "[2001:db8::5]:8620"),
            ("yebes:8620", "[2001:db8::6]:8620"),
            ("probe.jive.eu", "probe.jive.eu"),
            ("::1", "::1"),
            ("[::1]:8620", "[::1]:8620"),
        ] {
            assert_eq!(config.address(given), address, "{given}");
        }
        for (given, url) in [
            ("udp://jive:2630", "udp://probe.jive.eu:2630"),
            ("tcp://metsahovi:2630", "tcp://[2001:db8::5]:2630"),
            (
                "udp://onsala:2630-2633?ttl=3",
                "udp://10.0.0.7:2630-2633?ttl=3",
            ),
            ("udp://127.0.0.1:9", "udp://127.0.0.1:9"),
            ("unix:///jive", "unix:///jive"),
        ] {
            let mut named: Url = given.parse().unwrap();
            config.name_in(&mut named);
            assert_eq!(named.to_string(), url, "{given}");
        }
    }

    #[test]
    fn a_token_file_is_next_to_its_config() {
        let file = |text| parse(text).unwrap().token_file();
        let beside = Some("/home/me/.config/evlbi/jive.token".into());
        assert_eq!(file("token-file = \"jive.token\""), beside);
        assert_eq!(file("token-file = \"/t\""), Some("/t".into()));
        assert_eq!(file(""), None);
    }

    #[test]
    fn rates_are_those_of_their_commands() {
        let config = parse("[rates]\nsend = \"1G\"\nwatch = \"512M\"").unwrap();
        let rate = |of: fn(&Rates) -> Option<BitRate>| config.rate(of).map(BitRate::get);
        assert_eq!(rate(|rates| rates.send), Some(1_000_000_000));
        assert_eq!(rate(|rates| rates.watch), Some(512_000_000));
        assert_eq!(rate(|rates| rates.probe_udp), None);
    }

    #[test]
    fn unknown_settings_are_refused_by_name() {
        for (text, says) in [
            ("token = \"secret\"", "token"),
            ("token_file = \"t\"", "token_file"),
            ("[rates]\nrecv = \"1G\"", "recv"),
            ("[rates]\nsend = \"fast\"", "fast"),
            ("[host]\njive = \"x\"", "host"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(says), "{text}: {error}");
            assert!(error.starts_with("/home/me/.config"), "{error}");
        }
    }
}
