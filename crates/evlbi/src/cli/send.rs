//! `evlbi send`.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use evlbi_core::packetise::Rule;
use evlbi_core::rate::BitRate;
use evlbi_core::shed::{Policy, Replace};

use super::{HostArgs, UnitChoice};
use crate::program::Program;
use crate::send::{self, Burst, Pace, SendOptions};
use crate::{output, units};
use evlbi_net::transport::{self, Url};
use evlbi_wire::time::FrameRate;

pub const HELP: &str = "\
Sources:
  FILE                     VDIF or Mark 5B; anything else is sent as raw data
  pattern:8032             VDIF frames of 8032 bytes with a test pattern that `recv --to check` verifies
  sky:PLAN.toml/STATION    a simulated station, looped with true times

Examples:
  evlbi send scan1.vdif --to udp://correlator:2630
  evlbi send scan1.vdif --to udp://[2001:db8::5]:2630 --rate 1.024G --shed fit:1G
  evlbi send pattern:8032 --to udp://correlator:2630 --rate 10G --duration 60s

Policies of --shed: see `evlbi drop --help`.";

#[derive(Args)]
pub struct SendArgs {
    /// FILE, pattern:LENGTH or sky:PLAN.toml/STATION
    pub source: String,
    /// Where to: udp://HOST:PORT, pudp://HOST:PORT, tcp://HOST:PORT or unix:///PATH
    #[arg(long, value_parser = transport::destination)]
    pub to: Url,
    /// Bit rate of the VDIF data; the headers of the transport come on top
    #[arg(long, group = "pace")]
    pub rate: Option<BitRate>,
    /// Frames leave when their time comes (the default where the frame rate is known)
    #[arg(long, group = "pace")]
    pub realtime: bool,
    /// As fast as the host can
    #[arg(long, group = "pace")]
    pub max: bool,
    /// Frames per second of a thread, where the file cannot tell (shorter than a second)
    #[arg(long, value_name = "N")]
    pub frame_rate: Option<FrameRate>,
    /// Largest IP packet in bytes [default: the route's own]
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<usize>,
    /// How frames are cut: whole or by an exact divisor (frames), or as bytes regardless (plain: jive5ab's mode none)
    #[arg(long, value_enum, default_value_t = CutRule::Frames)]
    pub cut: CutRule,
    /// What to leave out on purpose (see `evlbi drop --help`)
    #[arg(long, value_name = "POLICY", default_value_t = SendOptions::default().shed)]
    pub shed: Policy,
    /// What a shed decision is about
    #[arg(long, value_enum, default_value_t = UnitChoice::Frame)]
    pub unit: UnitChoice,
    /// What goes out in the place of shed data
    #[arg(long, value_enum, default_value_t = SendReplace::Nothing)]
    pub replace: SendReplace,
    /// Seed of all random choices
    #[arg(long, default_value_t = SendOptions::default().seed)]
    pub seed: u64,
    /// How often the source is sent, its frames re-timed each time
    #[arg(long, value_name = "N", default_value_t = SendOptions::default().repeat)]
    pub repeat: u64,
    /// When the first frame leaves, as 2026-12-01T08:00:00Z [default: now]
    #[arg(long, value_name = "UTC")]
    pub start: Option<jiff::Timestamp>,
    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub duration: Option<Duration>,
    /// First sequence number [default: 0]
    #[arg(long, value_name = "N")]
    pub sequence: Option<u64>,
    /// Datagrams sent back to back: a number, or chosen from the rate
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = burst)]
    pub burst: Burst,
    /// Send each datagram by itself, without segmentation offload
    #[arg(long)]
    pub no_gso: bool,
    #[command(flatten)]
    pub host: HostArgs,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

fn burst(text: &str) -> Result<Burst, String> {
    if text == "auto" {
        return Ok(Burst::Auto);
    }
    text.parse()
        .ok()
        .filter(|n| (1..=64).contains(n))
        .map(Burst::Fixed)
        .ok_or_else(|| format!("`{text}` is no burst; write auto or a number from 1 to 64"))
}

#[derive(Clone, Copy, ValueEnum)]
pub enum CutRule {
    Frames,
    Plain,
}

impl From<CutRule> for Rule {
    fn from(rule: CutRule) -> Rule {
        match rule {
            CutRule::Frames => Rule::Frames,
            CutRule::Plain => Rule::Plain,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub enum SendReplace {
    Nothing,
    Fill,
    Random,
}

impl From<SendReplace> for Replace {
    fn from(replace: SendReplace) -> Replace {
        match replace {
            SendReplace::Nothing => Replace::Nothing,
            SendReplace::Fill => Replace::Fill,
            SendReplace::Random => Replace::Random,
        }
    }
}

impl From<SendArgs> for SendOptions {
    fn from(args: SendArgs) -> SendOptions {
        let SendArgs {
            source,
            to,
            rate,
            // What is the case where no other pace is given.
            realtime: _,
            max,
            frame_rate,
            mtu,
            cut,
            shed,
            unit,
            replace,
            seed,
            repeat,
            start,
            duration,
            sequence,
            burst,
            no_gso,
            host,
            json: _,
        } = args;
        SendOptions {
            source,
            to,
            pace: match rate {
                _ if max => Pace::Max,
                Some(rate) => Pace::Rate(rate),
                None => Pace::RealTime,
            },
            frame_rate,
            mtu,
            cut: cut.into(),
            shed,
            shed_packets: unit == UnitChoice::Packet,
            replace: replace.into(),
            seed,
            repeat,
            start,
            duration,
            sequence,
            burst,
            offload: !no_gso,
            host: host.into(),
        }
    }
}

/// Sends until the source ends, the time is over or Ctrl-C.
pub fn run(args: SendArgs, program: &Program) -> Result<()> {
    let json = args.json;
    let options = SendOptions::from(args);
    let sending = send::send(&options, program.unheeded())?;
    program.run();
    program.watch(&sending.watched(), || sending.is_finished());
    let result = sending.join()?;
    output::print(json, &result, send::text)?;
    match &result.report.error {
        Some(error) => bail!("sending to {} ended early: {error}", options.to),
        None => Ok(()),
    }
}
