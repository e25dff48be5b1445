//! SafeUDP on the command line: the mode of a path, and the key of both ends.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use evlbi_core::shed::Fraction;
use evlbi_net::run::Run;
use evlbi_net::safe::{Key, MAX_WEIGHT, MIN_WEIGHT, Mode, STEPS, Step};
use evlbi_net::transport::Url;
use evlbi_probe::plan;
use evlbi_probe::plan::safe::{PlanSafeOptions, SafePlan};
use evlbi_stream::send::{SafeOptions, SendError, Shape};

use super::choice::{Choices, choice, length, time};
use crate::status::Usage;

/// Length of a key; other contents of a key file are a passphrase.
const KEY: usize = 32;
const MAX_FILE: u64 = 4096;
/// Minimum length of a passphrase, in bytes.
const MIN_PASSPHRASE: usize = 16;
/// Salt and rounds of PBKDF2 with HMAC-SHA-256 (RFC 8018), which makes a key of a passphrase.
const SALT: &[u8] = b"SafeUDP";
const ROUNDS: u32 = 600_000;

/// Round-trip times of --check, in milliseconds: within a country, a continent, and between continents.
const RTT: [u64; 3] = [1, 15, 95];

/// Value of `--safe`.
#[derive(Clone, Copy, PartialEq)]
pub enum Chosen {
    /// A protection.
    Mode(Mode),
    /// None, on purpose.
    Off,
}

/// Modes of `--safe`; the last one is none.
pub const MODES: Choices<Chosen> = &[
    ("shared", "others use the path", Chosen::Mode(Mode::Shared)),
    (
        "reserved",
        "the path is yours: act only on loss above a tenth",
        Chosen::Mode(Mode::Reserved),
    ),
    (
        "strict",
        "as shared, counting as one TCP flow, without grace",
        Chosen::Mode(Mode::Strict),
    ),
    ("off", "no congestion control", Chosen::Off),
];

#[derive(Args, Clone, Default)]
pub struct SafeArgs {
    /// Control the rate by reports of the receiver (SafeUDP)
    #[arg(long, value_name = "MODE", value_parser = choice(MODES))]
    pub safe: Option<Chosen>,
    /// Send no data instead of less than this fraction [default: 1/4]
    #[arg(long, value_name = "F", value_parser = least, requires = "safe")]
    pub least: Option<Step>,
    /// Wait this long for a lower rate before data are shed, up to 10s [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = grace, requires = "safe")]
    pub grace: Option<Duration>,
    /// Count as up to this many TCP flows, 0.01 to 10; divide it among the flows of one path [default: 3]
    #[arg(long, value_name = "N", value_parser = weight, requires = "safe")]
    pub weight: Option<f64>,
    /// Try again after a stop, without an operator
    #[arg(long, requires = "safe")]
    pub rearm: bool,
    /// Read the key of reports from this file: 32 bytes, or a passphrase of 16 characters or more
    #[arg(long, value_name = "FILE", requires = "safe")]
    pub key_file: Option<PathBuf>,
    /// Send nothing; print the losses at which this flow would shed and stop, as `evlbi plan safe`
    #[arg(long, requires = "safe")]
    pub check: bool,
    /// Round-trip times for --check [default: 1ms,15ms,95ms]
    #[arg(long, value_name = "TIME,...", value_delimiter = ',', requires = "check", value_parser = length)]
    pub rtt: Vec<Duration>,
}

#[derive(Args, Clone, Default)]
pub struct ReportArgs {
    /// Send reports to a sender under SafeUDP, at the port after the last one of the data
    #[arg(long)]
    pub safe: bool,
    /// Read the key of reports from this file, as for `send` [default: none, only for senders on this host]
    #[arg(long, value_name = "FILE", requires = "safe")]
    pub key_file: Option<PathBuf>,
}

/// Parses a fraction of the data that is kept, up to all.
pub fn kept(text: &str) -> Option<f64> {
    match text {
        "1" | "100%" => Some(1.0),
        _ => text.parse::<Fraction>().ok().map(Fraction::get),
    }
}

pub fn least(text: &str) -> Result<Step, String> {
    let why = "is not a fraction of the data: give 1/16 to 1, e.g. 1/4, 0.25, 25%";
    kept(text)
        .filter(|part| *part >= f64::from(STEPS[STEPS.len() - 1]) / 16.0)
        .map(Step::at_least)
        .ok_or_else(|| format!("`{text}` {why}"))
}

fn grace(text: &str) -> Result<Duration, String> {
    let grace = match text {
        "0" => Duration::ZERO,
        _ => time(text)?,
    };
    match grace <= Duration::from_secs(10) {
        true => Ok(grace),
        false => Err(format!("`{text}` is too long: give at most 10s")),
    }
}

pub fn weight(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    let known = number.filter(|number| (MIN_WEIGHT..=MAX_WEIGHT).contains(number));
    known.ok_or_else(|| {
        format!("`{text}` is not a number of TCP flows: give {MIN_WEIGHT} to {MAX_WEIGHT}")
    })
}

impl SafeArgs {
    /// Returns the options, and reads the key.
    pub fn options(&self, run: &Run) -> Result<Option<SafeOptions>> {
        let Some(Chosen::Mode(mode)) = self.safe else {
            return Ok(None);
        };
        let usual = SafeOptions::default();
        Ok(Some(SafeOptions {
            mode,
            least: self.least.unwrap_or(usual.least),
            grace: self.grace.unwrap_or(usual.grace),
            weight: self.weight.unwrap_or(usual.weight),
            rearm: self.rearm,
            key: (self.key_file.as_deref().map(|file| read(file, run))).transpose()?,
        }))
    }

    /// Checks that a flow to `to` can be controlled, and has the key that it needs.
    ///
    /// # Errors
    /// Returns [`SendError::SafeTransport`] or [`SendError::SafeKey`] if not.
    pub fn fits(&self, to: &Url) -> Result<(), SendError> {
        let is_on = matches!(self.safe, Some(Chosen::Mode(_)));
        if is_on && !to.can_be_safe() {
            return Err(SendError::SafeTransport(to.to_string()));
        }
        match is_on && self.key_file.is_none() && to.lacks_control() {
            true => Err(SendError::SafeKey(to.to_string())),
            false => Ok(()),
        }
    }

    /// Returns the losses at which a flow would act, for --check.
    pub fn plan(&self, shape: &Shape, run: &Run) -> Result<SafePlan> {
        let (Some(safe), Some(rate)) = (self.options(run)?, shape.rate) else {
            let text = "--check needs a congestion control: give --safe shared, reserved or strict";
            bail!(Usage(text.to_owned()));
        };
        let rtt = match self.rtt.is_empty() {
            true => RTT.map(Duration::from_millis).to_vec(),
            false => self.rtt.clone(),
        };
        Ok(plan::safe::plan(&PlanSafeOptions {
            rate,
            rtt,
            size: u16::try_from(shape.datagram_data).unwrap_or(u16::MAX),
            mode: safe.mode,
            weight: safe.weight,
            least: safe.least,
        }))
    }

    /// Returns what a flow to `to` lacks: a congestion control, on a path that others may use.
    pub fn lack(&self, to: &Url) -> Option<&'static str> {
        (self.safe.is_none() && to.lacks_control()).then(|| match to.can_be_safe() {
            true => "this flow has no congestion control: if others use the path, add --safe shared --key-file FILE; --safe off if it is yours",
            false => "this flow has no congestion control, and none is possible to this address: choose a rate that the path has room for; --safe off says that it has",
        })
    }
}

impl ReportArgs {
    /// Returns the key, if reports are to be sent.
    pub fn key(&self, run: &Run) -> Result<Option<Key>> {
        match (&self.key_file, self.safe) {
            (_, false) => Ok(None),
            (Some(path), true) => read(path, run).map(Some),
            (None, true) => Ok(Some(Key::open())),
        }
    }
}

/// Reads a key file; warns if others can read it, too.
fn read(path: &Path, run: &Run) -> Result<Key> {
    let name = path.display();
    let failed = || format!("cannot read the key file {name}");
    let mut bytes = Vec::new();
    let opened = File::open(path).with_context(failed)?;
    let found = opened.metadata().with_context(failed)?;
    let read = opened.take(MAX_FILE + 1).read_to_end(&mut bytes);
    read.with_context(failed)?;
    if found.is_file() && found.mode() & 0o077 != 0 {
        run.warn(format_args!(
            "others may read the key in {name}: chmod 600 {name}"
        ));
    }
    if let Ok(key) = <&[u8; KEY]>::try_from(&bytes[..]) {
        return Ok(Key::new(key));
    }
    let passphrase = bytes.trim_ascii();
    ensure!(
        passphrase.len() >= MIN_PASSPHRASE && bytes.len() as u64 <= MAX_FILE,
        "{name} is not a key file: it must have 32 random bytes, or a passphrase of {MIN_PASSPHRASE} characters or more (umask 077; head -c 32 /dev/urandom > {name})"
    );
    let mut key = [0; KEY];
    pbkdf2::pbkdf2_hmac::<sha2::Sha256>(passphrase, SALT, ROUNDS, &mut key);
    Ok(Key::new(&key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_without_a_congestion_control_is_noticed() {
        let lack = |words: &[&str]| {
            #[derive(clap::Parser)]
            struct Line {
                #[command(flatten)]
                safe: SafeArgs,
                to: Url,
            }
            let line: Line = clap::Parser::parse_from([&["send"], words].concat());
            line.safe.lack(&line.to)
        };
        let one = lack(&["udp://192.0.2.1:9"]).unwrap();
        assert!(one.contains("--safe shared --key-file FILE"), "{one}");
        let group = lack(&["udp://239.1.1.1:9"]).unwrap();
        assert!(group.contains("none is possible"), "{group}");
        for other in [
            &["udp://192.0.2.1:9", "--safe", "off"][..],
            &["udp://239.1.1.1:9", "--safe", "off"],
            &["udp://127.0.0.1:9"],
            &["tcp://192.0.2.1:9"],
        ] {
            assert_eq!(lack(other), None, "{other:?}");
        }
    }

    #[test]
    fn keys_are_bytes_or_passphrases() {
        let room = evlbi_testkit::Room::new();
        let code = |key: &Key| evlbi_net::safe::message::probe(&Default::default(), 0, key);
        let path = PathBuf::from(room.path("key"));
        std::fs::write(&path, [7; 32]).unwrap();
        assert_eq!(
            code(&read(&path, &Run::silent()).unwrap()),
            code(&Key::new(&[7; 32]))
        );
        std::fs::write(&path, "correct horse battery staple\n").unwrap();
        // hashlib.pbkdf2_hmac("sha256", b"correct horse battery staple", b"SafeUDP", 600000)
        let derived = [
            223, 189, 30, 180, 18, 4, 105, 206, 94, 128, 171, 244, 167, 246, 50, 77, 201, 91, 1,
            89, 46, 19, 152, 219, 135, 156, 20, 84, 158, 227, 124, 20,
        ];
        assert_eq!(
            code(&read(&path, &Run::silent()).unwrap()),
            code(&Key::new(&derived))
        );
        for bad in ["short", ""] {
            std::fs::write(&path, bad).unwrap();
            let error = read(&path, &Run::silent()).unwrap_err().to_string();
            assert!(error.contains("is not a key file"), "{error}");
        }
    }

    #[test]
    fn bad_numbers_are_refused_with_a_valid_form() {
        assert_eq!(least("1/4").map(Step::sixteenths), Ok(4));
        assert_eq!(least("1").map(Step::sixteenths), Ok(16));
        assert_eq!(least("30%").map(Step::sixteenths), Ok(6));
        assert!(least("1/17").unwrap_err().contains("1/16 to 1"));
        assert!(grace("11s").unwrap_err().contains("at most 10s"));
        assert_eq!(grace("0"), Ok(Duration::ZERO));
        assert_eq!(weight("0.75"), Ok(0.75));
        for bad in ["11", "0", "nan", "x"] {
            assert!(
                weight(bad).unwrap_err().contains("give 0.01 to 10"),
                "{bad}"
            );
        }
    }
}
