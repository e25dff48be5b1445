//! `evlbi correlate`, `evlbi fringe` and `evlbi loss-curve`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Error, Result, bail, ensure};
use clap::{ArgAction, Args};
use evlbi_core::shed::Replace;
use evlbi_correlate::chunks::{
    ChunkError, ChunkOptions, ChunkPlan, PartDone, PartOptions, Stage, correlate_part,
};
use evlbi_correlate::fringe::{self, FringeOptions};
use evlbi_correlate::loss_curve::{
    self, DEFAULT_LOSSES, Kind, Knows, LossCurveOptions, Losses, Search,
};
use evlbi_correlate::{
    Cause, Chunk, CorrelateOptions, CorrelateResult, DelayTerms, Flag, Hertz, Integration, LeftOut,
    NoFringe, Polarisations, Recordings, SideBand, StreamOptions, StreamResult, Stretch,
    correlate_streams, text, write_csv,
};
use evlbi_fx::correlator::CHANNELS;
use evlbi_fx::simd::Simd;
use evlbi_fx::track::Trust;
use evlbi_net::file::{check_new, replace_json};
use evlbi_net::transport::Url;
use evlbi_stream::selection::Selection;
use evlbi_wire::units::{self, show_seconds};
use parking_lot::Mutex;

use super::choice::{Choices, REPLACEMENTS, UNITS, choice, length, name, names, time, within};
use super::safe::ReportArgs;
use crate::output::{self, Results};
use crate::program::{Program, complete};
use crate::status::{TryAgain, Usage};
use crate::words;

pub const TRUSTS: Choices<Trust> = &[
    (
        "exact",
        "The invalid bit, the fill pattern anywhere, and the gaps file next to the recording",
        Trust::Exact,
    ),
    ("headers", "Only the invalid bit", Trust::Headers),
    ("blind", "Nothing: use all samples", Trust::Blind),
];

const SIDE_BANDS: Choices<SideBand> = &[
    ("U", "Upper", SideBand::Upper),
    ("L", "Lower", SideBand::Lower),
];

const SIMDS: Choices<Simd> = &[
    ("scalar", "None, on any CPU; slow", Simd::Scalar),
    ("avx2", "AVX2 and FMA of x86-64", Simd::Avx2),
    ("avx512", "AVX-512 of x86-64", Simd::Avx512),
    ("neon", "Those of AArch64", Simd::Neon),
];

#[derive(Args)]
#[command(after_help = "\
Delay of a station: how much later it receives than the reference, as seconds, seconds per second and so on, in the \
seconds since the first recording's first second: --delay 0 --delay 1.5us,2e-12. A positive delay is later.

Settings of one input follow its name: #station=CODE, #thread=0-3, #channels=4-7 (Mark 4: 0U,1L), #name=NAME, #format=NAME \
(Mark5B-1024-16-2, MKIV1_4-512-8-2), #modulated, #inverted, #year=YEAR, joined by &. # in a file name is written %23.

Examples:
  evlbi correlate Ef.vdif Jb.vdif On.vdif --freq 4.9G
  # Mark 5B, whose headers do not contain channels and bits, and two channels of Mark 4:
  evlbi correlate 'Ef.m5b#format=Mark5B-512-8-2&channels=0,2' 'Jb.m4#channels=0U,1U' --freq 4.9G
  # With a model of DiFX; the .input next to it is read, too:
  evlbi correlate S1.vdif S2.vdif --model job_1.im --out job_1.difx
  evlbi correlate A.vdif B.vdif --freq 8.4G,8.432G --polarisations RL --cross-hands --channels 512")]
pub struct CorrelateArgs {
    /// Recordings, one per station, in the order of the model's stations; with --live one stream per station: udp://ADDRESS:PORT, tcp://ADDRESS:PORT or unix:///PATH
    #[arg(required_unless_present = "plan", num_args = 2..=32)]
    pub files: Vec<String>,
    #[command(flatten)]
    pub options: CorrelatorArgs,
    /// Choose which marks make a sample invalid
    #[arg(long, value_parser = choice(TRUSTS), default_value = name(TRUSTS, CorrelateOptions::default().trust))]
    pub trust: Trust,
    #[command(flatten)]
    pub part: PartArgs,
    /// Correlate only this much at the end of the recordings, which may still be growing
    #[arg(long, value_name = "TIME", conflicts_with = "live", value_parser = length)]
    pub last: Option<Duration>,
    /// Receive streams and correlate them as they arrive; prints one line per integration
    #[arg(long)]
    pub live: bool,
    #[command(flatten)]
    pub streams: StreamArgs,
    /// Add amplitude against delay of each baseline to the JSON, at most 512 delays
    #[arg(long, requires = "json")]
    pub profiles: bool,
    /// Write visibilities (DiFX SWIN) and a summary into this directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Overwrite existing results
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object on standard output (with --live one line per integration before it)
    #[arg(long)]
    pub json: bool,
}

/// How streams are received that are correlated as they come.
#[derive(Args)]
pub struct StreamArgs {
    /// With --live: wait this long for a station that is late
    #[arg(long, value_name = "TIME", default_value = units::span(StreamOptions::default().wait), value_parser = time, requires = "live")]
    pub wait: Duration,
    /// With --live: print only the result at the end, not each integration
    #[arg(long, requires = "live")]
    pub no_lines: bool,
    /// With --live: end after this time without a datagram
    #[arg(long, value_name = "TIME", value_parser = time, requires = "live")]
    pub idle: Option<Duration>,
    /// With --live: end this long after the start
    #[arg(long, value_name = "TIME", value_parser = time, requires = "live")]
    pub duration: Option<Duration>,
    #[command(flatten)]
    pub reports: ReportArgs,
}

/// How stations are correlated.
#[derive(Args)]
pub struct CorrelatorArgs {
    /// Delay model: X.im of DiFX (the X.input next to it gives frequencies, sidebands and clocks), or the plan of `evlbi sky`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["freq", "polarisations"])]
    pub model: Option<PathBuf>,
    /// Delay or clock lateness of each station, in the order of the files; added to the model's [default: none]
    #[arg(long, value_name = "TERMS", allow_hyphen_values = true)]
    pub delay: Vec<DelayTerms>,
    /// Sky frequency of the first band's edge (LO frequency); one for all bands in a row, or one per band [default: unknown]
    #[arg(long, value_name = "HZ", value_delimiter = ',')]
    pub freq: Vec<Hertz>,
    /// Sideband of real samples; without it, that in the names of Mark 4 channels, and U of others
    #[arg(long, ignore_case = true, value_parser = choice(SIDE_BANDS))]
    pub sideband: Option<SideBand>,
    /// Polarisations of the bands in their order: RL alternates, 8X8Y is 8 bands of X and then 8 of Y
    #[arg(long, value_name = "LETTERS", default_value_t = CorrelateOptions::default().polarisations)]
    pub polarisations: Polarisations,
    /// Table of the sky frequency, sideband and polarisation of each channel (TOML; see docs), instead of the three options above
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "freq", "sideband", "polarisations"])]
    pub channel_table: Option<PathBuf>,
    /// Reverse the sign of the samples of these stations: 1-bit recorders differ in it
    #[arg(long, value_name = "STATIONS", value_delimiter = ',')]
    pub invert: Vec<String>,
    /// Correlate different polarisations, too
    #[arg(long)]
    pub cross_hands: bool,
    /// Samples per second of a band, for recordings that do not show it
    #[arg(long, value_name = "HZ")]
    pub sample_rate: Option<Hertz>,
    /// Spectral channels per band [default: 1024, or the model's]
    #[arg(long, value_name = "N", value_parser = channels)]
    pub channels: Option<usize>,
    /// Integration time; integrations start at whole multiples of it since midnight, with a model at the job's start
    /// [default: 1s, or the model's]
    #[arg(long, value_name = "TIME", value_parser = length)]
    pub integration: Option<Duration>,
    /// Search delays up to this on either side [default: all that the channels resolve]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub delay_window: Option<Duration>,
    /// Search rates up to this on either side [default: all that the integrations resolve]
    #[arg(long, value_name = "HZ", value_parser = Hertz::rate)]
    pub rate_window: Option<Hertz>,
    /// Ignore a station for a time range, NAME:FROM..TO from the first recording's first second, e.g. Ef:12.5s..13s
    #[arg(long, value_name = "FLAG")]
    pub flag: Vec<Flag>,
    /// Number of correlating threads [default: one per CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Use these vector instructions, on which the last digits of results depend [default: the fastest of this CPU]
    #[arg(long, value_parser = choice(SIMDS))]
    pub simd: Option<Simd>,
}

/// Parses a number of spectral channels.
pub(super) fn channels(text: &str) -> Result<usize, String> {
    let why = "channels are not possible: give 4 to 1048576";
    within(text, CHANNELS, why)
}

convert! {
    CorrelatorArgs => CorrelateOptions {
        model, delay, freq, sideband, polarisations, channel_table, invert, cross_hands,
        sample_rate, channels, integration, delay_window, rate_window, flag, threads, simd,
    }
    over CorrelateOptions::default()
}

/// Correlates as the options say.
pub fn correlate(args: CorrelateArgs, program: &Program) -> Result<()> {
    let options = CorrelateOptions {
        trust: args.trust,
        stretch: (args.last).map_or(Stretch::All, |last| Stretch::Last(last.as_secs_f64())),
        visibilities: args.out,
        force: args.force,
        ..args.options.into()
    };
    let (files, profiles, json) = (args.files, args.profiles, args.json);
    if args.live {
        return correlate_live(&files, &options, &args.streams, profiles, json, program);
    }
    no_streams(&files, ": give --live")?;
    if args.streams.reports.safe {
        bail!(Usage("--safe is for streams: give --live".to_owned()));
    }
    if args.part.is_part() {
        return part(args.part, &files, &options, json, program);
    }
    if args.part.stage.is_some() {
        bail!(Usage(
            "--stage is for parts: give --plan or --chunk".to_owned()
        ));
    }
    let recordings = Recordings::open(&files, &options, program.run())?;
    let summaries = options.visibilities.as_deref().map(summaries);
    let files = summaries.iter().flatten().map(PathBuf::as_path);
    check_new(files, options.force)?;
    if let Some(directory) = &options.visibilities {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    }
    let correlation = evlbi_correlate::correlate(&recordings, &options, program.run(), &mut ())?;
    correlation.has_any()?;
    let mut result = correlation.result(profiles);
    if let Some(summaries) = &summaries {
        summarise(&mut result, summaries)?;
    }
    output::print(json, &result, text)?;
    advise(result.no_fringe(), Some(&options), program);
    advise_delays(&result, program);
    all_of(&result.left_out)?;
    complete(correlation.interrupted)
}

/// How a part of a correlation is chosen.
#[derive(Args)]
pub struct PartArgs {
    /// Correlate a part of this plan of `evlbi plan chunks`, which contains all options; needs --part and --out
    #[arg(long, value_name = "FILE", requires = "part", requires = "out", conflicts_with_all = [
        "files", "model", "delay", "freq", "sideband", "polarisations", "channel_table", "invert", "cross_hands", "sample_rate",
        "channels", "integration", "delay_window", "rate_window", "flag", "trust", "live", "last", "profiles", "force",
    ])]
    pub plan: Option<PathBuf>,
    /// With --plan: number of the part, from 1
    #[arg(long, value_name = "K", requires = "plan")]
    pub part: Option<u32>,
    /// Correlate part K of N, as of a plan of N parts that is made first; `evlbi merge` merges them
    #[arg(long, value_name = "K/N", requires = "out", conflicts_with_all = ["live", "plan", "last", "profiles", "force"])]
    pub chunk: Option<Chunk>,
    /// With --plan or --chunk: fetch the bytes of recordings by this line for the shell, with {host} {path} {offset} {length} {out}
    #[arg(long, value_name = "COMMAND", conflicts_with = "live")]
    pub stage: Option<Stage>,
}

impl PartArgs {
    /// Returns whether a part is asked for.
    pub fn is_part(&self) -> bool {
        self.plan.is_some() || self.chunk.is_some()
    }
}

/// Correlates a part.
pub fn part(
    args: PartArgs,
    files: &[String],
    options: &CorrelateOptions,
    json: bool,
    program: &Program,
) -> Result<()> {
    let Some(directory) = &options.visibilities else {
        bail!(Usage("a part needs a directory: give --out DIR".to_owned()));
    };
    let part = PartOptions {
        threads: options.threads,
        simd: options.simd,
        stage: args.stage,
    };
    let again = |error: ChunkError| match error.is_temporary() {
        true => Error::from(error).context(TryAgain),
        false => error.into(),
    };
    let (plan, number) = match (&args.plan, args.part, args.chunk) {
        // A plan that is not there is a wrong name.
        (Some(plan), Some(number), _) => (ChunkPlan::read(plan)?, number as usize),
        (_, _, chunk) => {
            let Chunk { number, of } = chunk.unwrap_or(Chunk { number: 1, of: 1 });
            let wanted = ChunkOptions {
                parts: of,
                memory: None,
                hosts: Vec::new(),
            };
            let plan = ChunkPlan::new(files, options, &wanted, program.run());
            (plan.map_err(again)?, number)
        }
    };
    let done = correlate_part(&plan, number, directory, &part, program.run()).map_err(again)?;
    // The part is there, whether or not it can be announced, e.g. on a full disk.
    if let Err(error) = output::print(json, &done, |done| shown(done, directory)) {
        program.run().warn(format_args!("{error:#}"));
    }
    Ok(())
}

/// Describes a complete part in a line.
fn shown(done: &PartDone, directory: &Path) -> String {
    let path = done.sums_in(directory);
    let (part, parts, path) = (done.part, done.parts, path.display());
    match done.was_there {
        true => format!(
            "part {part} of {parts} is already there: {path}, of host {}",
            done.host
        ),
        false => format!(
            "part {part} of {parts}: {} in {path}, correlated in {}",
            show_seconds(done.seconds),
            show_seconds(done.elapsed_s)
        ),
    }
}

/// Returns the paths of the summary and of the table of baselines in a directory of visibilities.
pub fn summaries(directory: &Path) -> [PathBuf; 2] {
    ["summary.json", "baselines.csv"].map(|name| directory.join(name))
}

/// Writes the summary and the table of baselines.
pub fn summarise(result: &mut CorrelateResult, [summary, table]: &[PathBuf; 2]) -> Result<()> {
    result.beside(|result| replace_json(summary, result))?;
    Ok(write_csv(table, result)?)
}

/// Returns an error if inputs were left out: the printed result lacks them.
pub fn all_of(left_out: &[LeftOut]) -> Result<()> {
    let sources: Vec<&str> = left_out.iter().map(|it| it.source.as_str()).collect();
    ensure!(
        sources.is_empty(),
        "not correlated, for the reasons above: {}",
        sources.join(", ")
    );
    Ok(())
}

/// Remedy for a stream where recordings are needed.
const RECORD: &str = ": record it first by `evlbi recv`";

/// Returns an error that says `remedy` if a recording is named by a URL.
fn no_streams(files: &[String], remedy: &str) -> Result<()> {
    match files.iter().find(|file| is_url(file)) {
        Some(url) => bail!(Usage(format!("{url} is a stream, not a recording{remedy}"))),
        None => Ok(()),
    }
}

fn is_url(text: &str) -> bool {
    text.contains("://")
}

/// Prints what to try where no fringe was found.
pub fn advise(without: Option<NoFringe>, options: Option<&CorrelateOptions>, program: &Program) {
    if let Some(without) = without {
        let what = words::no_fringe(&without, options);
        program.run().line(format_args!("evlbi: {what}"));
    }
}

/// Prints what to try where fringes are off the model.
pub fn advise_delays(result: &CorrelateResult, program: &Program) {
    if let Some(off) = &result.off_model {
        program.run().say(format_args!("{}", words::off_model(off)));
    }
}

/// Correlates streams as they come.
fn correlate_live(
    urls: &[String],
    options: &CorrelateOptions,
    streams: &StreamArgs,
    profiles: bool,
    json: bool,
    program: &Program,
) -> Result<()> {
    let results = Arc::new(Mutex::new(Results::default()));
    let lines = !streams.no_lines;
    let streams = StreamOptions {
        wait: streams.wait,
        idle: streams.idle,
        duration: streams.duration,
        safe: streams.reports.key(program.run())?,
    };
    let show = {
        let results = Arc::clone(&results);
        move |integration: &Integration| -> Result<(), Cause> {
            if lines {
                let mut results = results.lock();
                results.show(json, integration, Integration::text)?;
            }
            Ok(())
        }
    };
    let parsed = urls.iter().map(|input| {
        let (url, selection) = Selection::split(input).map_err(|error| error.to_string())?;
        match is_url(&url) {
            true => Ok((url.parse()?, selection)),
            false => Err(format!(
                "{url} is not the URL of a stream, which --live needs: leave out --live for recordings"
            )),
        }
    });
    let inputs = parsed.collect::<Result<Vec<(Url, Selection)>, String>>();
    let inputs = inputs.map_err(Usage)?;
    if streams.safe.is_some() && !inputs.iter().any(|(url, _)| url.can_be_safe()) {
        bail!(Usage(
            "--safe has no effect: no stream arrives by udp://".to_owned()
        ));
    }
    let (run, show) = (program.run(), Box::new(show));
    let correlating = correlate_streams(&inputs, options, &streams, run, show)?;
    let watch = correlating.watch();
    program.control_socket.on_status({
        let watch = Arc::clone(&watch);
        move |control_socket| {
            watch.refresh();
            control_socket.tell(|status| watch.tell(status));
        }
    });
    let found = correlating.join();
    program.control_socket.tell(|status| watch.tell(status));
    let result = found?.result(profiles);
    let mut results = std::mem::take(&mut *results.lock());
    // A line, as those before it.
    results.show(json, &result, text)?;
    results.end()?;
    advise(result.no_fringe(), Some(options), program);
    advise_delays(&result, program);
    let nothing: Vec<String> = (result.streams.iter())
        .filter_map(StreamResult::nothing)
        .collect();
    ensure!(
        nothing.is_empty(),
        "no data correlated: {}",
        nothing.join("; ")
    );
    all_of(&result.left_out)
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  # Visibilities that `evlbi correlate --out job.vis` wrote:
  evlbi fringe job.vis --out pictures
  # Visibilities that DiFX wrote; job_1.input must be next to them:
  evlbi fringe job_1.difx
  # Recordings, which are correlated first; options as for correlate:
  evlbi fringe Ef.vdif Jb.vdif --freq 4.9G")]
pub struct FringeArgs {
    /// Directory of visibilities (of `evlbi correlate --out` or DiFX) or one of its files, or recordings, one per station
    #[arg(required = true, num_args = 1..=32)]
    pub inputs: Vec<String>,
    #[command(flatten)]
    pub options: CorrelatorArgs,
    /// Choose which marks make a sample invalid
    #[arg(long, value_parser = choice(TRUSTS), default_value = name(TRUSTS, CorrelateOptions::default().trust))]
    pub trust: Trust,
    /// Write pictures (SVG and PNG) into this directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Overwrite existing pictures
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// Searches and draws.
pub fn fringe(args: FringeArgs, program: &Program) -> Result<()> {
    no_streams(&args.inputs, RECORD)?;
    let options = FringeOptions {
        correlate: CorrelateOptions {
            trust: args.trust,
            ..args.options.into()
        },
        out: args.out,
        force: args.force,
    };
    let (result, correlated) = match args.inputs.as_slice() {
        [directory] => (fringe::in_directory(Path::new(directory), &options)?, None),
        files => (
            fringe::in_recordings(files, &options, program.run())?,
            Some(&options.correlate),
        ),
    };
    output::print(args.json, &result, fringe::text)?;
    advise(result.no_fringe(), correlated, program);
    if let Some(seconds) = result.only_integration() {
        let what = words::only_integration(seconds);
        program.run().say(format_args!("{what}"));
    }
    all_of(&result.left_out)?;
    complete(result.interrupted)
}

const KINDS: Choices<Kind> = &[
    ("every", "Evenly, one in N", Kind::Every),
    ("bunch", "Bunches of 1 to 10", Kind::Bunch),
    ("random", "Each at random", Kind::Random),
    ("burst", "Random bursts", Kind::Burst),
    (
        "common",
        "The same at all stations, in blocks of time or whole threads",
        Kind::Common,
    ),
    (
        "keep",
        "In steps of which each contains the lower ones, as `send --safe`",
        Kind::Keep,
    ),
];

const KNOWLEDGE: Choices<Knows> = &[
    (
        "all",
        "Everything: invalid bits, fill pattern, lists of gaps",
        Knows::All,
    ),
    ("headers", "Only invalid bits", Knows::Headers),
    (
        "papers",
        "Only invalid bits; after each gap one more frame is lost until frames are found again",
        Knows::Papers,
    ),
];

#[derive(Args)]
#[command(after_help = "\
For each point frames of the stations of --station (or of all) are shed while reading, the rest is correlated, and each \
baseline is compared with theory. Ratios are relative to the whole recordings. Lost frames that are replaced by random \
bytes or the fill pattern look valid to a correlator that knows only headers (--knows headers); a correlator that knows \
the gaps ignores them (--knows all). Both are shown; --knows papers loses one more frame after each gap.

--map tests hypotheses about the hardware correlator of 2006, whose amplitudes rose at low weight: that it dropped \
frames without a header, or that it needed two headers in a row after three missing ones (hold:2:2). The decoder of \
this program keeps all frames (flywheel).

Examples:
  evlbi loss-curve Ef.vdif Jb.vdif --model sky.toml --loss 5%
  evlbi loss-curve Ef.vdif Jb.vdif --loss 0.5%..20% --shed every,bunch --replace nothing,fill
  # Packets, with a reader that keeps frames without a header and one that drops them:
  evlbi loss-curve Ef.m4 Jb.m4 --unit packet --search flywheel,drop --replace fill --loss 20%
  # Where amplitudes rise at low weight, as a picture:
  evlbi loss-curve Ef.m4 Jb.m4 --map --shed random --replace fill --knows headers --out map
  # Stations that keep different fractions, as senders under SafeUDP on paths of their own:
  evlbi loss-curve Ef.vdif Wb.vdif Jb.vdif --kept 3/4,1/2,1/2
  # Three stations, of which the third loses data: one of three baselines does not change:
  evlbi loss-curve Ef.vdif Wb.vdif Jb.vdif --station 3 --loss 5%,20%")]
pub struct LossCurveArgs {
    /// Recordings, one per station; there are curves of each baseline
    #[arg(required = true, num_args = 2..=32)]
    pub files: Vec<String>,
    /// Numbers of the stations that lose data, from 1
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = LossCurveOptions::default().station, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub station: Vec<u8>,
    /// Lost fractions: a list or a range
    #[arg(long, value_name = "FRACTIONS", default_value = DEFAULT_LOSSES)]
    pub loss: Losses,
    /// Fraction that each station keeps, in the order of the recordings: compares common steps, as of `send --safe`, with random loss; instead of --loss, --shed and --station
    #[arg(long, value_name = "F,...", value_delimiter = ',', value_parser = kept, conflicts_with_all = ["loss", "shed", "station", "map"])]
    pub kept: Vec<f64>,
    /// Shed frames in these ways
    #[arg(long, value_parser = choice(KINDS), value_delimiter = ',', default_values = names(KINDS, &LossCurveOptions::default().shed))]
    pub shed: Vec<Kind>,
    /// Replacement for shed data
    #[arg(long, value_parser = choice(REPLACEMENTS), value_delimiter = ',', default_values = names(REPLACEMENTS, &LossCurveOptions::default().replace))]
    pub replace: Vec<Replace>,
    /// Shed whole frames, or packets of frames, which contain the header, samples or both
    #[arg(long = "unit", value_name = "UNIT", action = ArgAction::Set, value_parser = choice(UNITS), default_value = name(UNITS, LossCurveOptions::default().by_packet))]
    pub by_packet: bool,
    /// With --unit packet: length of a packet, a divisor of the frame length; one curve for each [default: an eighth of a frame, or the largest divisor below that]
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = packet)]
    pub packet: Vec<usize>,
    /// Choose what becomes of frames whose header is lost: flywheel keeps their other data, drop drops them, drop:N the next N frames, too, hold:M:N keeps up to M in a row and then drops all until N in a row have a header; one curve for each [default: flywheel]
    #[arg(long, value_name = "SEARCH", value_delimiter = ',')]
    pub search: Vec<Search>,
    /// Map where amplitudes rise at low weight, over header search, packet length and loss: sheds packets at --station only
    /// [defaults: --search flywheel,hold:2:2,drop,drop:2,drop:8, packets of 1/2, 1/8 and 1/32 frame]
    #[arg(long)]
    pub map: bool,
    /// Knowledge of the loss in the correlator: one curve for each
    #[arg(long, value_parser = choice(KNOWLEDGE), value_delimiter = ',', default_values = names(KNOWLEDGE, &LossCurveOptions::default().knows))]
    pub knows: Vec<Knows>,
    /// Seed of all random choices
    #[arg(long, default_value_t = LossCurveOptions::default().seed)]
    pub seed: u64,
    #[command(flatten)]
    pub options: CorrelatorArgs,
    /// Write the curves and their pictures into this directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Overwrite existing results
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

convert! {
    LossCurveArgs => LossCurveOptions {
        files, station, loss, kept, shed, replace, by_packet, packet, search, map, knows, seed, out, force,
    }
    with [options] { correlate: options.into() }
    without [json]
}

fn kept(text: &str) -> Result<f64, String> {
    let kept = super::safe::kept(text);
    kept.ok_or_else(|| format!("`{text}` is not a fraction of the data: give e.g. 3/4, 0.5 or 1"))
}

fn packet(text: &str) -> Result<usize, String> {
    let why = "is not possible: give a packet length of 1 to 16777216 bytes";
    within(text, 1..=1 << 24, why)
}

/// Measures the curves that are asked for.
pub fn loss_curve(args: LossCurveArgs, program: &Program) -> Result<()> {
    let json = args.json;
    no_streams(&args.files, RECORD)?;
    let result = loss_curve::measure(&args.into(), program.run())?;
    output::print(json, &result, loss_curve::text)?;
    complete(result.interrupted)
}
