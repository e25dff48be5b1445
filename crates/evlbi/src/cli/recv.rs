//! `evlbi recv`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use evlbi_core::deframe::{Format, Partial};
use evlbi_net::file::Durability;
use evlbi_net::receive::Ended;
use evlbi_net::transport::Url;

use super::HostArgs;
use crate::output;
use crate::program::Program;
use crate::recv::{self, RecvOptions};
use crate::units::{self, show_count, show_size};
use evlbi_wire::time::FrameRate;

/// Least memory of the ring: less would hold 16 ms at 32 Gbit/s.
const LEAST_RING: u64 = 64 << 20;
/// Bytes between two calls that force data onto the disk.
const OFTEN: u64 = 256 << 20;

pub const HELP: &str = "\
Sinks:
  OUT.vdif                          one file, in the order of the sequence numbers
  'OUT-{station}-{thread}.vdif'     one file for each station or thread
  null                              counted, not kept
  check                             the test pattern of `send pattern:` verified

Examples:
  evlbi recv udp://0.0.0.0:2630 --to scan1.vdif --duration 10min
  evlbi recv udp://239.1.2.3:2630?interface=eth1 --to check
  evlbi recv udp://0.0.0.0:2630-2633 --to scan1.vdif      (one stream over four ports)";

#[derive(Args)]
pub struct RecvArgs {
    /// Where to listen: udp://ADDRESS:PORT, pudp://ADDRESS:PORT, tcp://ADDRESS:PORT (port 0: a free one) or unix:///PATH
    pub from: Url,
    /// OUT.vdif, 'OUT-{station}-{thread}.vdif', null or check
    #[arg(long)]
    pub to: String,
    /// How far, in data, a late datagram may lie behind the newest and still be placed [default: 64MiB, or a
    /// quarter of the --ring]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub window: Option<u64>,
    /// How long a missing datagram is waited for [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub hold: Option<Duration>,
    /// Write invalid frames or fill for gaps up to this long; list longer ones in the gaps file only
    #[arg(long, value_name = "TIME", default_value = units::span(RecvOptions::default().fill), value_parser = units::duration)]
    pub fill: Duration,
    /// Memory between the network and the sink, at least 64MiB [default: four windows, at least 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub ring: Option<u64>,
    /// End after this time without a datagram, counted from the first one
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub idle: Option<Duration>,
    /// End this long after the start
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub duration: Option<Duration>,
    /// Where to write what was lost [default: beside the recording, OUT.vdif.gaps.json]
    #[arg(long, value_name = "FILE")]
    pub gaps: Option<PathBuf>,
    /// Overwrite recordings that exist, but for those that a killed receiver left
    #[arg(long)]
    pub force: bool,
    /// Length of a frame in bytes [default: learnt from the headers that arrive]
    #[arg(long, value_name = "BYTES", value_parser = frame_length)]
    pub frame: Option<usize>,
    /// Frames per second of a thread [default: learnt]
    #[arg(long, value_name = "N")]
    pub frame_rate: Option<FrameRate>,
    /// What becomes of a frame that misses some of its datagrams
    #[arg(long, value_enum, default_value_t = PartialChoice::Invalid)]
    pub partial: PartialChoice,
    /// Take datagrams from this address only
    #[arg(long, value_name = "ADDRESS")]
    pub source: Option<IpAddr>,
    /// When what was written is forced to the disk
    #[arg(long, value_enum, default_value_t = FsyncChoice::End)]
    pub fsync: FsyncChoice,
    /// Receive each datagram by itself, without the kernel's joining them (exact counters of this host's drops)
    #[arg(long)]
    pub no_gro: bool,
    #[command(flatten)]
    pub host: HostArgs,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum PartialChoice {
    /// The whole frame becomes invalid
    Invalid,
    /// What came is kept, the rest filled and listed in the gaps file
    Keep,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum FsyncChoice {
    /// Left to the system
    None,
    /// Once, at the end
    End,
    /// Every 256 MiB and at the end
    Often,
}

/// Length of a frame: whole words of eight bytes, header and data.
pub fn frame_length(text: &str) -> Result<usize, String> {
    usize::try_from(units::size(text)?)
        .ok()
        .filter(|length| *length > 16 && length.is_multiple_of(8))
        .ok_or_else(|| {
            format!(
                "`{text}` is no length of a frame: its header and data in bytes, a multiple of 8"
            )
        })
}

impl From<RecvArgs> for RecvOptions {
    fn from(args: RecvArgs) -> RecvOptions {
        let RecvArgs {
            from,
            to,
            window,
            hold,
            fill,
            ring,
            idle,
            duration,
            gaps,
            force,
            frame,
            frame_rate,
            partial,
            source,
            fsync,
            no_gro,
            host,
            json: _,
        } = args;
        RecvOptions {
            from,
            to,
            window,
            hold,
            fill,
            ring,
            idle,
            duration,
            gaps,
            force,
            frame,
            frame_rate,
            partial: match partial {
                PartialChoice::Invalid => Partial::Whole,
                PartialChoice::Keep => Partial::Keep,
            },
            source,
            durability: match fsync {
                FsyncChoice::None => Durability::Kernel,
                FsyncChoice::End => Durability::End,
                FsyncChoice::Often => Durability::Every(OFTEN),
            },
            join: !no_gro,
            host: host.into(),
        }
    }
}

/// Receives until the stream ends, the time is over or Ctrl-C.
pub fn run(args: RecvArgs, program: &Program) -> Result<()> {
    if args.to == "-" {
        bail!(
            "--to - cannot be used: standard output carries the result; name a file, or a named pipe (mkfifo)"
        );
    }
    if let Some(ring) = args.ring.filter(|ring| *ring < LEAST_RING) {
        bail!(
            "--ring is at least {}; {} were asked for",
            show_size(LEAST_RING),
            show_size(ring)
        );
    }
    let json = args.json;
    let options = RecvOptions::from(args);
    let receiving = recv::receive(&options, program.run())?;
    program.watch(&receiving.watched(), || receiving.is_finished());
    let result = receiving.join()?;
    output::print(json, &result, recv::text)?;
    if let (Some(length), Some(Format::Raw)) = (options.frame, result.format) {
        say!(
            "evlbi: no frames of --frame {length} bytes were found, so the data was recorded as it came; leave --frame out to have the length learnt"
        );
    }
    if result.live.foreign_header > 0 {
        say!(
            "evlbi: {} datagrams were of a station, thread or time that was not there when the stream began, and are not recorded",
            show_count(result.live.foreign_header)
        );
    }
    let others = result.refused.iter().filter(|refused| refused.frames);
    let others: Vec<String> = others
        .map(|other| match other.datagrams {
            // Over TCP.
            0 => other.sender.to_string(),
            count => format!("{} ({} datagrams)", other.sender, show_count(count)),
        })
        .collect();
    if let Some(error) = result.error.as_ref().or(result.sink.write_error.as_ref()) {
        bail!("{error}");
    }
    if result.is_empty() && result.ended != Ended::Stopped {
        match recv::nothing_but(result.live.foreign(), &options) {
            Some(others) => bail!("no stream arrived, so nothing was recorded: {others}"),
            None => bail!("no data arrived, so nothing was recorded"),
        }
    }
    if result
        .sink
        .check
        .as_ref()
        .is_some_and(|check| check.corrupted > 0)
    {
        bail!("the test pattern did not arrive as it was sent");
    }
    if !others.is_empty() {
        bail!(
            "frames of other senders came to the same port and were not recorded: {}; name the one to record with --source ADDRESS, and give each a port of its own",
            others.join(", ")
        );
    }
    Ok(())
}
