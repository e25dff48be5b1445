//! What the operator of a host allows: `agent.toml`.

use std::fs;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evlbi_core::rate::BitRate;
use evlbi_wire::units::setting;
use ipnet::IpNet;
use serde::{Deserialize, Deserializer};
use thiserror::Error;

use crate::client::KEPT;
use crate::identity::{FileError, read_if_there};

/// The file as it is shipped: what stands in it is what holds where nothing else is said.
const SHIPPED: &str = include_str!("agent.toml");

/// What a connection that is used again leaves for the way to the agent and its answer.
const MARGIN: Duration = Duration::from_secs(1);

/// Why the settings of an agent cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read, or not be made.
    #[error("{0}")]
    File(#[from] FileError),
    /// Something in the file cannot be understood or does not go.
    #[error("{}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What.
        source: SettingError,
    },
}

/// What is wrong with a setting of an agent.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SettingError {
    /// The settings as they are shipped cannot be understood.
    #[error("the shipped settings")]
    Shipped(#[source] toml::de::Error),
    /// The text cannot be understood.
    #[error("{0}")]
    Text(#[from] toml::de::Error),
    /// No flow may run.
    #[error("invalid max-flows: it must be at least 1")]
    NoFlows,
    /// Controllers would use connections that the agent closes.
    #[error("invalid idle: it must be at least {least:?}")]
    Idle {
        /// The shortest time that goes.
        least: Duration,
        /// The time within which controllers use a connection again.
        kept: Duration,
    },
}

/// What the operator of a host allows, as `agent.toml` says it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Config {
    pub(crate) name: String,
    pub(crate) bind: SocketAddr,
    /// Where flows write.
    pub(crate) recordings: PathBuf,
    /// What they may read besides.
    pub(crate) read: Vec<PathBuf>,
    /// What they may send to.
    pub(crate) targets: Vec<IpNet>,
    #[serde(deserialize_with = "setting::ports")]
    pub(crate) ports: RangeInclusive<u16>,
    #[serde(deserialize_with = "rate")]
    pub(crate) max_rate: Option<BitRate>,
    pub(crate) max_flows: usize,
    /// In bytes.
    #[serde(deserialize_with = "setting::size")]
    pub(crate) min_free: u64,
    /// Connections whose handshake or next request takes longer are closed.
    #[serde(deserialize_with = "setting::time")]
    pub(crate) idle: Duration,
}

impl Config {
    /// Reads the file, which is written as shipped where there is none.
    ///
    /// # Errors
    /// What in it cannot be understood, and where.
    pub fn open(path: &Path) -> Result<Config, ConfigError> {
        let text = match read_if_there(path)? {
            Some(text) => text,
            None => {
                fs::write(path, SHIPPED).map_err(|source| FileError::Write {
                    path: path.to_owned(),
                    source,
                })?;
                SHIPPED.to_owned()
            }
        };
        let parsed = Config::parse(&text);
        let mut config = parsed.map_err(|source| ConfigError::Invalid {
            path: path.to_owned(),
            source,
        })?;
        let folder = path.parent().unwrap_or(Path::new("."));
        config.recordings = folder.join(&config.recordings);
        if config.name.is_empty() {
            config.name = evlbi_net::host::name();
        }
        Ok(config)
    }

    fn parse(text: &str) -> Result<Config, SettingError> {
        let shipped = toml::from_str(SHIPPED);
        let mut settings: toml::Table = shipped.map_err(SettingError::Shipped)?;
        settings.extend(toml::from_str::<toml::Table>(text)?);
        let config: Config = settings.try_into()?;
        if config.max_flows == 0 {
            return Err(SettingError::NoFlows);
        }
        if config.idle < KEPT + MARGIN {
            return Err(SettingError::Idle {
                least: KEPT + MARGIN,
                kept: KEPT,
            });
        }
        Ok(config)
    }
}

/// No text, no limit.
fn rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<BitRate>, D::Error> {
    setting::read(from, |text| {
        (!text.is_empty()).then(|| text.parse()).transpose()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_sends_nowhere_unless_it_is_told() {
        let folder = evlbi_testkit::Room::new();
        let path = folder.folder().join("agent.toml");
        let config = Config::open(&path).unwrap();
        assert!(config.bind.ip().is_loopback());
        assert!(config.targets.iter().all(|net| net.addr().is_loopback()));
        assert_eq!(config.recordings, folder.folder().join("recordings"));
        assert!(!config.name.is_empty());
        assert_eq!(fs::read_to_string(path).unwrap(), SHIPPED);
    }

    #[test]
    fn settings_replace_what_is_shipped() {
        let config =
            Config::parse("targets = [\"10.0.0.0/8\"]\nmax-rate = \"2G\"\nports = \"2630\"")
                .unwrap();
        assert_eq!(config.max_rate.map(BitRate::get), Some(2_000_000_000));
        assert_eq!(config.ports, 2630..=2630);
        assert_eq!(config.max_flows, 256);
        assert_eq!(config.idle, crate::serve::IDLE);
    }

    #[test]
    fn errors_name_the_setting() {
        for (text, says) in [
            ("tragets = []", "tragets"),
            ("targets = [\"everywhere\"]", "targets"),
            ("ports = \"9-1\"", "invalid range of ports"),
            ("max-rate = \"fast\"", "fast"),
            ("max-flows = 0", "at least 1"),
            ("idle = \"5999ms\"", "at least 6s"),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
