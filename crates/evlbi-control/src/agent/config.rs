//! Settings of an agent: `agent.toml`, in which the operator of the host sets limits for flows.

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

use crate::client::POOL_IDLE;
use crate::identity::{FileError, read_if_there};

/// Default settings file. Its values are the defaults of missing settings.
const SHIPPED: &str = include_str!("agent.toml");

/// Allowance for the round trip of a request on a reused connection.
const MARGIN: Duration = Duration::from_secs(1);

/// Error: the settings of an agent cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read or created.
    #[error("{0}")]
    File(#[from] FileError),
    /// A setting in the file is invalid.
    #[error("{}", path.display())]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// Problem with the setting.
        source: SettingError,
    },
}

/// Error: a setting of an agent is invalid.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SettingError {
    /// The default settings cannot be parsed.
    #[error("invalid default settings")]
    Shipped(#[source] toml::de::Error),
    /// The text cannot be parsed.
    #[error("{0}")]
    Text(#[from] toml::de::Error),
    /// The maximum number of flows is 0.
    #[error("invalid max-flows: it must be at least 1")]
    NoFlows,
    /// The timeout of idle connections is so short that controllers would reuse connections that the agent closes.
    #[error("invalid idle: it must be at least {min:?}")]
    Idle {
        /// Minimum timeout.
        min: Duration,
        /// Time within which controllers reuse a connection.
        pool_idle: Duration,
    },
}

/// Settings of an agent from `agent.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Config {
    /// Path of the file.
    #[serde(skip)]
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(crate) bind: SocketAddr,
    /// Directory that flows write to.
    pub(crate) recordings: PathBuf,
    /// Further directories that flows may read.
    pub(crate) read: Vec<PathBuf>,
    /// Networks that flows may send to.
    pub(crate) targets: Vec<IpNet>,
    #[serde(deserialize_with = "setting::ports")]
    pub(crate) ports: RangeInclusive<u16>,
    #[serde(deserialize_with = "rate")]
    pub(crate) max_rate: Option<BitRate>,
    pub(crate) max_flows: usize,
    /// Minimum free space for recordings, in bytes.
    #[serde(deserialize_with = "setting::size")]
    pub(crate) min_free: u64,
    /// Timeout for the handshake and for the next request of a connection.
    #[serde(deserialize_with = "setting::time")]
    pub(crate) idle: Duration,
}

impl Config {
    /// Reads the settings file. If it does not exist, creates it with the defaults.
    ///
    /// # Errors
    /// Returns [`ConfigError`] if the file cannot be read or created, or a setting is invalid.
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
        path.clone_into(&mut config.path);
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
        if config.idle < POOL_IDLE + MARGIN {
            return Err(SettingError::Idle {
                min: POOL_IDLE + MARGIN,
                pool_idle: POOL_IDLE,
            });
        }
        Ok(config)
    }
}

/// Reads a rate limit; an empty text means no limit.
fn rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<BitRate>, D::Error> {
    setting::read(from, "a bit rate such as \"1G\"", |text| {
        (!text.is_empty()).then(|| text.parse()).transpose()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_sends_nowhere_by_default() {
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
    fn settings_replace_the_defaults() {
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
