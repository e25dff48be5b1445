//! `evlbi send` and `evlbi recv`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::{ArgAction, Args};
use evlbi_core::deframe::{Format, Partial};
use evlbi_core::packetise::Rule;
use evlbi_core::rate::BitRate;
use evlbi_core::shed::{Policy, Replace};
use evlbi_host::host::HostOptions;
use evlbi_net::file::Durability;
use evlbi_net::receive::Ended;
use evlbi_net::transport::{self, Url};
use evlbi_probe::plan;
use evlbi_stream::recv::{self, RecvOptions};
use evlbi_stream::send::{self, Burst, Pace, SendOptions};
use evlbi_wire::time::FrameRate;
use evlbi_wire::units::{self, show_count};
use evlbi_wire::vdif::MAX_FRAME_LEN;

use super::choice::{Choices, REPLACEMENTS, UNITS, choice, name, time, within};
use super::input::Input;
use super::safe::{ReportArgs, SafeArgs};
use crate::output;
use crate::program::Program;
use crate::status::Usage;
use crate::words;

/// Bytes between two calls that force data onto the disk.
const OFTEN: u64 = 256 << 20;

const CUTS: Choices<Rule> = &[("frames", "", Rule::Frames), ("plain", "", Rule::Plain)];

const PARTIAL: Choices<Partial> = &[
    ("invalid", "Mark the whole frame invalid", Partial::Whole),
    (
        "keep",
        "Keep the received part, fill the rest and list it in the gaps file",
        Partial::Keep,
    ),
];

const DURABILITIES: Choices<Durability> = &[
    ("none", "Leave it to the system", Durability::Kernel),
    ("end", "Once, at the end", Durability::End),
    (
        "often",
        "Every 256 MiB and at the end",
        Durability::Every(OFTEN),
    ),
];

/// Settings of this host for the thread that moves the data.
#[derive(Args, Clone)]
pub struct HostArgs {
    /// Pin the network thread to this CPU
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Run the network thread with this real-time priority (SCHED_FIFO, 1 to 99)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=99))]
    pub priority: Option<u8>,
    /// Request a socket buffer of this size
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub buffer: Option<u64>,
}

convert! { HostArgs => HostOptions { cpu, priority, buffer } }

#[derive(Args)]
#[command(after_help = "\
Sources:
  FILE                     VDIF, Mark 5B or Mark 4; anything else is sent as raw data
  pattern:8032             VDIF frames of 8032 bytes with a test pattern, for `recv --to check`
  sky:PLAN.toml/STATION    a simulated station; lasts the plan's duration,
                           --repeat N continues with true times

Examples:
  evlbi send scan1.vdif --to udp://correlator:2630
  evlbi send scan1.vdif --to udp://[2001:db8::5]:2630 --rate 1.024G --shed fit:1G
  evlbi send pattern:8032 --to udp://correlator:2630 --rate 10G --duration 60s
  # One station of a recording that several share:
  evlbi send 'scan1.vdif#station=Cm' --to udp://correlator:2630

Policies of --shed: see `evlbi drop --help`.")]
pub struct SendArgs {
    /// Source: FILE, pattern:LENGTH or sky:PLAN.toml/STATION; after a FILE, #station=CODE and #thread=LIST select frames (write # in its
    /// name as %23)
    pub source: Input<String>,
    /// Send here: udp://HOST:PORT, pudp://HOST:PORT, tcp://HOST:PORT or unix:///PATH
    #[arg(long, value_parser = transport::destination)]
    pub to: Url,
    /// Bit rate of the VDIF data; transport headers come on top. A pattern needs one, or --max
    #[arg(long, group = "pace")]
    pub rate: Option<BitRate>,
    /// Send each frame at its own time (the default if the frame rate is known)
    #[arg(long, group = "pace")]
    pub realtime: bool,
    /// Send as fast as the host can
    #[arg(long, group = "pace")]
    pub max: bool,
    /// Frames per second of a thread, for a file that is too short to show it (less than a second)
    #[arg(long, value_name = "N")]
    pub frame_rate: Option<FrameRate>,
    /// Maximum IP packet size in bytes [default: the route's MTU]
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<usize>,
    /// Cut frames into datagrams: whole or by an exact divisor (frames), or as plain bytes (plain: jive5ab's mode none)
    #[arg(long, value_parser = choice(CUTS), default_value = name(CUTS, SendOptions::default().cut))]
    pub cut: Rule,
    /// Shed frames or packets by this policy (see `evlbi drop --help`)
    #[arg(long, value_name = "POLICY", default_value_t = SendOptions::default().shed)]
    pub shed: Policy,
    /// Unit of a shed decision
    #[arg(long = "unit", value_name = "UNIT", action = ArgAction::Set)]
    #[arg(value_parser = choice(UNITS), default_value = name(UNITS, SendOptions::default().shed_packets))]
    pub shed_packets: bool,
    /// Send this instead of shed data
    #[arg(long, value_parser = choice(&REPLACEMENTS[..3]), default_value = name(REPLACEMENTS, SendOptions::default().replace))]
    pub replace: Replace,
    /// Seed of all random choices
    #[arg(long, default_value_t = SendOptions::default().seed)]
    pub seed: u64,
    /// Send the source this many times, with new timestamps each time
    #[arg(long, value_name = "N", default_value_t = SendOptions::default().repeat)]
    pub repeat: u64,
    /// Send the first frame at this time, e.g. 2026-12-01T08:00:00Z [default: now]
    #[arg(long, value_name = "UTC")]
    pub start: Option<jiff::Timestamp>,
    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub duration: Option<Duration>,
    /// First sequence number [default: 0]
    #[arg(long, value_name = "N")]
    pub sequence: Option<u64>,
    /// Datagrams sent back to back: a number, or auto to choose from the rate
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = burst)]
    pub burst: Burst,
    /// Send each datagram separately, without segmentation offload (GSO)
    #[arg(long)]
    pub no_gso: bool,
    #[command(flatten)]
    pub safe: SafeArgs,
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
    let why = "is not a burst: give auto or a number from 1 to 64";
    within(text, 1..=64, why).map(Burst::Fixed)
}

convert! {
    SendArgs => SendOptions {
        to, frame_rate, mtu, cut, shed, shed_packets, replace, seed, repeat, start,
        duration, sequence, burst,
    }
    with [source, rate, max, no_gso, host] {
        source: source.address,
        selection: source.selection,
        pace: match rate {
            _ if max => Pace::Max,
            Some(rate) => Pace::Rate(rate),
            None => Pace::RealTime,
        },
        offload: !no_gso,
        safe: None,
        host: host.into(),
    }
    // Real time is the case where no other pace is given; the key of SafeUDP is read first.
    without [realtime, json, safe]
}

/// Sends until the source ends, the time is over or Ctrl-C.
pub fn send(mut args: SendArgs, program: &Program) -> Result<()> {
    let (json, is_real_time) = (args.json, args.realtime);
    program.config()?.name_in(&mut args.to);
    let safe = std::mem::take(&mut args.safe);
    let mut options = SendOptions::from(args);
    options.safe = safe.options(program.run())?;
    if options.lacks_rate() && !is_real_time {
        let rate = program.config()?.rate(|rates| rates.send);
        options.pace = rate.map_or(options.pace, Pace::Rate);
    }
    if safe.check {
        let shape = send::check(&options, program.unheeded())?;
        let plan = safe.plan(&shape, program.unheeded())?;
        return output::print(json, &plan, plan::safe::text);
    }
    let sending = send::send(&options, program.unheeded())?;
    program.run();
    program.watch(&sending.watched(), || sending.is_finished());
    let result = sending.join()?;
    output::print(json, &result, send::text)?;
    if let Some(kind) = result.safe.as_ref().and_then(|safe| safe.cut_off) {
        let remedy = words::cut_off(kind);
        bail!(
            "data to {} were held back at the end ({kind}): {remedy}",
            options.to
        );
    }
    if let Some(error) = &result.report.error {
        bail!("sending to {} ended early: {error}", options.to);
    }
    Ok(())
}

#[derive(Args)]
#[command(after_help = "\
Sinks:
  OUT.vdif                          one file, in the order of the sequence numbers
  'OUT-{station}-{thread}.vdif'     one file for each station or thread
  'OUT-{station}-{channel}.vdif'    one file for each channel of VDIF or Mark 4
  null                              count, and keep nothing
  check                             verify the test pattern of `send pattern:`

Examples:
  evlbi recv udp://0.0.0.0:2630 --to scan1.vdif --duration 10min
  evlbi recv udp://239.1.2.3:2630?interface=eth1 --to check
  # One stream over four ports:
  evlbi recv udp://0.0.0.0:2630-2633 --to scan1.vdif
  # One station of a stream that several share:
  evlbi recv 'udp://239.1.2.3:2630#station=Cm' --to Cm.vdif
  # A stream to another host, from a mirror port of the switch:
  evlbi recv 'mirror://eth1?udp=2630' --to scan1.vdif")]
pub struct RecvArgs {
    /// Listen here: udp://ADDRESS:PORT, pudp://ADDRESS:PORT, tcp://ADDRESS:PORT (port 0: a free one), unix:///PATH or
    /// mirror://INTERFACE?udp=PORT; #station=CODE and #thread=LIST after it select frames, and if --to contains {channel}, the
    /// settings of `evlbi split` describe samples
    pub from: Input<Url>,
    /// Record to OUT.vdif or 'OUT-{station}-{thread}.vdif'; or null, check
    #[arg(long)]
    pub to: String,
    /// Reorder window: accept a late datagram up to this many bytes behind the newest [default: 64MiB, or a
    /// quarter of the --ring]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub window: Option<u64>,
    /// Wait this long for a missing datagram before filling the gap; at most 1s with --safe [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub hold: Option<Duration>,
    /// Fill gaps up to this long with invalid frames or fill; list longer ones in the gaps file only
    #[arg(long, value_name = "TIME", default_value = units::span(RecvOptions::default().fill), value_parser = time)]
    pub fill: Duration,
    /// Size of the ring between the network and the sink, at least 16MiB [default: four windows, at least 256MiB; 8MiB over tcp://]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub ring: Option<u64>,
    /// End after this time without a datagram, counted from the first one
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub idle: Option<Duration>,
    /// End this long after the start
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub duration: Option<Duration>,
    /// Write the list of gaps here [default: next to the recording, OUT.vdif.gaps.json]
    #[arg(long, value_name = "FILE")]
    pub gaps: Option<PathBuf>,
    /// Overwrite existing recordings, except those that a killed receiver left
    #[arg(long)]
    pub force: bool,
    /// Frame length in bytes [default: detected from the headers]
    #[arg(long, value_name = "BYTES", value_parser = frame_length)]
    pub frame: Option<usize>,
    /// Frames per second of a thread [default: detected]
    #[arg(long, value_name = "N")]
    pub frame_rate: Option<FrameRate>,
    /// Treatment of a frame with missing datagrams
    #[arg(long, value_parser = choice(PARTIAL), default_value = name(PARTIAL, RecvOptions::default().partial))]
    pub partial: Partial,
    /// Accept datagrams from this address only
    #[arg(long, value_name = "ADDRESS")]
    pub source: Option<IpAddr>,
    /// Force written data onto the disk at these times
    #[arg(long = "fsync", value_name = "FSYNC", value_parser = choice(DURABILITIES), default_value = name(DURABILITIES, RecvOptions::default().durability))]
    pub durability: Durability,
    /// Receive each datagram separately, without GRO (makes the counters of this host's drops exact)
    #[arg(long)]
    pub no_gro: bool,
    #[command(flatten)]
    pub reports: ReportArgs,
    #[command(flatten)]
    pub host: HostArgs,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// Parses the length of a frame: whole words of eight bytes, header and data.
pub fn frame_length(text: &str) -> Result<usize, String> {
    let length = usize::try_from(units::size(text)?).ok();
    let is_one = |length: &usize| length.is_multiple_of(8) && (24..=MAX_FRAME_LEN).contains(length);
    let why = "is not a frame length: give header and data in bytes, a multiple of 8";
    length
        .filter(is_one)
        .ok_or_else(|| format!("`{text}` {why} up to {MAX_FRAME_LEN}"))
}

convert! {
    RecvArgs => RecvOptions {
        to, window, hold, fill, ring, idle, duration, gaps, force, frame, frame_rate, partial,
        source, durability,
    }
    with [from, no_gro, host] {
        from: from.address,
        selection: from.selection,
        join: !no_gro,
        safe: None,
        host: host.into(),
    }
    without [json, reports]
}

/// Receives until the stream ends, the time is over or Ctrl-C.
pub fn recv(args: RecvArgs, program: &Program) -> Result<()> {
    if args.to == "-" {
        let text = "--to - cannot be used: standard output carries the result; name a file, or a named pipe (mkfifo)";
        bail!(Usage(text.to_owned()));
    }
    let (json, safe) = (args.json, args.reports.key(program.run())?);
    let options = RecvOptions {
        safe,
        ..RecvOptions::from(args)
    };
    let receiving = recv::receive(&options, program.run())?;
    program.watch(&receiving.watched(), || receiving.is_finished());
    let result = receiving.join();
    output::print(json, &result, recv::text)?;
    if let (Some(length), Some(Format::Raw)) = (options.frame, result.format) {
        say!(
            "evlbi: no frames of --frame {length} bytes found, so the data was recorded as received: omit --frame to have the length detected"
        );
    }
    if result.live.foreign_header > 0 {
        say!(
            "evlbi: {} datagrams not recorded: their station, thread or time was not in the stream when it began",
            show_count(result.live.foreign_header)
        );
    }
    let (live, lost) = (&result.live, &result.live.attribution);
    let dropped = lost.host_lost.saturating_sub(live.counters.ring_full);
    if dropped > 0 {
        // The kernel counts joined datagrams once.
        let bound = if lost.unattributed > 0 {
            "at least "
        } else {
            ""
        };
        say!(
            "evlbi: {bound}{} datagrams did not fit the socket buffer: give a larger --buffer, or see `evlbi doctor`",
            show_count(dropped)
        );
    }
    let early = result.dropped_early();
    if early > 0 && lost.network_lost > 0 {
        say!(
            "evlbi: this host dropped {} packets before they reached a socket (of all programs; those of this stream count as lost in the network): see `evlbi doctor`",
            show_count(early)
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
            None if result.live.socket_drops > 0 => bail!(
                "nothing was recorded: {} datagrams arrived with a wrong checksum or did not fit the socket buffer; a virtual \
                 interface may leave checksums undone until `ethtool -K INTERFACE tx off` at the sender",
                show_count(result.live.socket_drops)
            ),
            None => bail!("no data arrived, so nothing was recorded"),
        }
    }
    let is_good = (result.sink.check.as_ref()).is_none_or(|check| check.corrupted == 0);
    ensure!(
        is_good,
        "the received test pattern differs from the one sent"
    );
    if !others.is_empty() {
        let names_one = options.from.transport().service().honours.only;
        let remedy = match names_one {
            true => {
                "select the sender to record with --source ADDRESS, and give each sender its own port"
            }
            false => "give each sender its own socket",
        };
        bail!(
            "frames of other senders to the same port were not recorded: {}: {remedy}",
            others.join(", ")
        );
    }
    Ok(())
}
