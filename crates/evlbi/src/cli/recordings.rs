//! `evlbi drop`, `evlbi split`, `evlbi join`, `evlbi inspect` and `evlbi sky`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgAction, Args};
use evlbi_core::shed::{Policy, Replace};
use evlbi_stream::drop::{self, DropOptions};
use evlbi_stream::inspect;
use evlbi_stream::join::{self, JoinOptions};
use evlbi_stream::sky::{self, SkyOptions};
use evlbi_stream::split::{self, Channels, SplitOptions};
use evlbi_wire::time::FrameRate;

use super::choice::{REPLACEMENTS, UNITS, choice, name};
use super::input::{self, Input};
use crate::output;
use crate::program::{Program, complete};
use crate::status::Usage;

#[derive(Args)]
#[command(after_help = "\
Policies of --shed:
  none             keep everything
  every:N          one in N, evenly
  bunch:F          bunches of 1 to 10, the fraction F exact (F as 0.05, 5% or 1/20)
  random:F         each with probability F
  burst:F[,LENGTH] random bursts of mean LENGTH (Gilbert-Elliott)
  threads:A,B,C-D  whole VDIF threads
  common:F[,TIME]  the same times at all stations of one seed, in blocks of TIME (at least 100 ms)
  keep:F[,TIME]    all but F: the highest threads, then blocks of TIME, nested at all stations
  fit:RATE         just enough to fit an Ethernet link of that rate (1G)

Examples:
  evlbi drop scan1.vdif lossy.vdif --shed random:5%
  # The same times at two stations:
  evlbi drop Ef.vdif ef-lossy.vdif --shed common:10%,100ms --seed 7
  evlbi drop Jb.vdif jb-lossy.vdif --shed common:10%,100ms --seed 7
  # Two threads of one station, and nothing of the others:
  evlbi drop 'shared.vdif#station=Cm&thread=0,1' cm.vdif --shed none")]
pub struct DropArgs {
    /// Recording to read; #station=CODE and #thread=LIST after it select frames (write # in its name as %23)
    #[arg(value_parser = OsStringValueParser::new().try_map(input::file))]
    pub input: Input<PathBuf>,
    /// Recording to write
    pub output: PathBuf,
    /// Shed frames or packets by this policy
    #[arg(long, value_name = "POLICY")]
    pub shed: Policy,
    /// Replacement for shed data
    #[arg(long, value_parser = choice(REPLACEMENTS), default_value = name(REPLACEMENTS, DropOptions::default().replace))]
    pub replace: Replace,
    /// Unit of a shed decision
    #[arg(long = "unit", value_name = "UNIT", action = ArgAction::Set, value_parser = choice(UNITS), default_value = name(UNITS, DropOptions::default().by_packet))]
    pub by_packet: bool,
    /// IP packet size in bytes that --unit packet and fit: assume
    #[arg(long, value_name = "BYTES", default_value_t = DropOptions::default().mtu)]
    pub mtu: usize,
    /// Seed of all random choices
    #[arg(long, default_value_t = DropOptions::default().seed)]
    pub seed: u64,
    /// Frames per second of a thread, for a file that is too short to show it
    #[arg(long, value_name = "N")]
    pub frame_rate: Option<FrameRate>,
    /// Write the list of gaps here [default: next to the output, OUT.vdif.gaps.json]
    #[arg(long, value_name = "FILE")]
    pub gaps: Option<PathBuf>,
    /// Overwrite an existing output
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

convert! {
    DropArgs => DropOptions {
        output, shed, replace, by_packet, mtu, seed, frame_rate, gaps, force,
    }
    with [input] { input: input.address, selection: input.selection }
    without [json]
}

/// Copies a recording without what the policy sheds.
pub fn drop(args: DropArgs, program: &Program) -> Result<()> {
    let json = args.json;
    let report = drop::drop(&args.into(), program.run())?;
    output::print(json, &report, drop::text)?;
    complete(report.interrupted)
}

#[derive(Args)]
#[command(after_help = "\
Names of --to:
  'OUT-{channel}.vdif'              one file for each channel
  'OUT-{station}-{thread}.vdif'     one file for each station or thread
  OUT.vdif                          one file with the channels of --channels
Channel C of thread T with N channels becomes thread T * N + C.

Examples:
  evlbi split scan1.vdif --to 'band-{channel}.vdif'
  evlbi split scan1.vdif --channels 4-7 --to upper.vdif
  # Mark 4, and Mark 5B, whose headers do not contain channels and bits:
  evlbi split 'scan1.m4#name=Ef' --to '{station}-{channel}.vdif'
  evlbi split 'scan1.m5b#format=Mark5B-1024-16-2&name=Ef' --to '{station}-{channel}.vdif'
  # A live stream:
  evlbi recv udp://0.0.0.0:2630 --to 'OUT-{station}-{channel}.vdif'")]
pub struct SplitArgs {
    /// Recording to split; #station=CODE, #thread=LIST and #channels=LIST after it select from it; #format=NAME, #modulated, #inverted, #year=YEAR and #name=STATION describe Mark 4 and Mark 5B (write # in its name as %23)
    #[arg(value_parser = OsStringValueParser::new().try_map(input::file))]
    pub input: Input<PathBuf>,
    /// Name of the outputs, with {station}, {thread} and {channel}
    #[arg(long)]
    pub to: String,
    /// Extract these channels of each thread, e.g. 0,2,4-7, or 0U,1L of Mark 4 [default: all]
    #[arg(long, value_name = "LIST")]
    pub channels: Option<Channels>,
    /// Frames per second of a thread, for a file that is too short to show it
    #[arg(long, value_name = "N")]
    pub frame_rate: Option<FrameRate>,
    /// Overwrite existing outputs
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

convert! {
    SplitArgs => SplitOptions { to, channels, frame_rate, force }
    with [input] { input: input.address, selection: input.selection }
    without [json]
}

/// Splits a recording into channels, threads and stations.
pub fn split(args: SplitArgs, program: &Program) -> Result<()> {
    let path = args.input.address.to_str();
    if let Some(url) = path.filter(|path| path.contains("://")) {
        bail!(
            "{url} is a stream, not a recording: `evlbi recv {url} --to '{}'` splits it while it arrives",
            args.to
        );
    }
    let json = args.json;
    let report = split::split(&args.into(), program.run())?;
    output::print(json, &report, split::text)?;
    complete(report.interrupted)
}

#[derive(Args)]
#[command(after_help = "\
All threads of a station become one thread, with their channels in the order of the files and of the thread numbers. A joined frame \
is valid only if all its channels are; --threads loses nothing.

Examples:
  evlbi join band-0.vdif band-1.vdif band-2.vdif band-3.vdif --to scan1.vdif
  # Four channels in frames of the length that they had before they were split:
  evlbi join band-?.vdif --to scan1.vdif --frame 8032
  # Threads and stations in one file:
  evlbi join Ef.vdif Jb.vdif --to both.vdif --threads")]
pub struct JoinArgs {
    /// Recordings to read, in the order of their channels; #station=CODE and #thread=LIST after one select from it (write # in its name as %23)
    #[arg(required = true, value_parser = OsStringValueParser::new().try_map(input::file))]
    pub inputs: Vec<Input<PathBuf>>,
    /// Recording to write
    #[arg(long = "to", value_name = "FILE")]
    pub output: PathBuf,
    /// Keep threads as they are, and put their frames in the order of time
    #[arg(long = "threads", conflicts_with = "frame")]
    pub keep_threads: bool,
    /// Length of a joined frame in bytes, with its header [default: one frame for each of a thread]
    #[arg(long, value_name = "BYTES")]
    pub frame: Option<usize>,
    /// Frames per second of a thread, for files that are too short to show it
    #[arg(long, value_name = "N")]
    pub frame_rate: Option<FrameRate>,
    /// Overwrite an existing output
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

convert! {
    JoinArgs => JoinOptions { output, keep_threads, frame, frame_rate, force }
    with [inputs] {
        inputs: inputs
            .into_iter()
            .map(|input| (input.address, input.selection))
            .collect(),
    }
    without [json]
}

/// Joins channels, threads and stations of recordings.
pub fn join(args: JoinArgs, program: &Program) -> Result<()> {
    let json = args.json;
    let report = join::join(&args.into(), program.run())?;
    output::print(json, &report, join::text)?;
    complete(report.interrupted)
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  evlbi inspect scan1.vdif
  # A recording of less than a second:
  evlbi inspect scan1.vdif --frame-rate 4000 --json
  # Mark 5B, whose headers do not contain channels and bits; Mark 4 of another decade:
  evlbi inspect 'scan1.m5b#format=Mark5B-512-8-2'
  evlbi inspect 'scan1.m4#year=2006'")]
pub struct InspectArgs {
    /// Recording to inspect; #format=NAME, #modulated and #year=YEAR after it describe it (write # in its name as %23)
    #[arg(value_parser = OsStringValueParser::new().try_map(input::file))]
    pub file: Input<PathBuf>,
    /// Frames per second of a thread, for a file that is too short to show it
    #[arg(long, value_name = "N")]
    pub frame_rate: Option<FrameRate>,
    /// Show each thread, channel and listed gap, however many there are
    #[arg(long)]
    pub all: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// Shows the contents of a recording.
pub fn inspect(args: &InspectArgs, program: &Program) -> Result<()> {
    let Input {
        address: file,
        selection,
    } = &args.file;
    if selection.is_part() {
        let why =
            "inspect shows the whole recording: leave out station, thread and channels after #";
        bail!(Usage(why.to_owned()));
    }
    let report = inspect::inspect(file, selection, args.frame_rate, program.run())?;
    let text = match args.all {
        true => inspect::text_in_full,
        false => inspect::text,
    };
    output::print(args.json, &report, text)?;
    if !args.json && !args.all && inspect::is_summarised(&report) {
        let run = program.run();
        run.line(format_args!(
            "evlbi: threads and channels that are alike share a row; --all shows each"
        ));
    }
    complete(report.interrupted)
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  evlbi sky examples/sky-three-stations.toml --out .
  # The model of these stations is written next to their recordings:
  evlbi correlate Ef.vdif Jb.vdif --model sky-three-stations.toml")]
pub struct SkyArgs {
    /// Plan of the stations and the simulated sky
    pub plan: PathBuf,
    /// Write one recording per station into this directory
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Overwrite existing recordings
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

convert! { SkyArgs => SkyOptions { plan, out, force } without [json] }

/// Writes a recording for each station of the plan.
pub fn sky(args: SkyArgs, program: &Program) -> Result<()> {
    let json = args.json;
    let report = sky::simulate(&args.into(), program.run())?;
    output::print(json, &report, sky::text)?;
    complete(report.interrupted)
}
