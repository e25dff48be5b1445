//! `evlbi correlate`, `evlbi fringe` and `evlbi loss-curve`.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use evlbi_core::shed::Replace;
use evlbi_correlate::fringe::{self, FringeOptions};
use evlbi_correlate::loss_curve::{self, DEFAULT_LOSSES, Kind, Knows, LossCurveOptions, Losses};
use evlbi_correlate::{
    Cause, Chunk, CorrelateOptions, DelayTerms, Flag, Hertz, Integration, Recordings, SideBand,
    StreamOptions, StreamResult, Stretch, correlate_streams, text, write_csv,
};
use evlbi_fx::track::Trust;
use evlbi_net::file::{check_new, replace_json};
use evlbi_net::transport::Url;
use evlbi_wire::units;
use parking_lot::Mutex;

use super::choice::{Choices, REPLACEMENTS, choice, name, names, within};
use crate::output::{self, Results};
use crate::program::{Program, complete};

const TRUSTS: Choices<Trust> = &[
    (
        "exact",
        "The invalid bit, the fill pattern anywhere, the gaps file beside the recording",
        Trust::Exact,
    ),
    ("headers", "The invalid bit alone", Trust::Headers),
    ("blind", "All samples are taken for good", Trust::Blind),
];

const SIDE_BANDS: Choices<SideBand> = &[
    ("U", "Upper", SideBand::Upper),
    ("L", "Lower", SideBand::Lower),
];

#[derive(Args)]
#[command(after_help = "\
Delay of a station: how much later it receives than the reference, as seconds, seconds per second and so on, in the
seconds since the first recording's first second: --delay 0 --delay 1.5us,2e-12. A positive delay is later.

Examples:
  evlbi correlate Ef.vdif Jb.vdif On.vdif --freq 4.9G
  evlbi correlate S1.vdif S2.vdif --model job_1.im --out job_1.difx      (DiFX: the .input beside it is read)
  evlbi correlate A.vdif B.vdif --freq 8.4G,8.432G --polarisations RL --cross-hands --channels 512")]
pub struct CorrelateArgs {
    /// Recordings, one a station, in the order of the model's stations; with --live udp://ADDRESS:PORT, tcp://ADDRESS:PORT or unix:///PATH, a stream each
    #[arg(required = true, num_args = 2..=32)]
    pub files: Vec<String>,
    #[command(flatten)]
    pub options: CorrelatorArgs,
    /// What is believed of samples
    #[arg(long, value_parser = choice(TRUSTS), default_value = name(TRUSTS, CorrelateOptions::default().trust))]
    pub trust: Trust,
    /// Correlate only part K of N of the integrations; the parts' sums are the whole
    #[arg(long, value_name = "K/N", conflicts_with = "live")]
    pub chunk: Option<Chunk>,
    /// Correlate only so much of the end, of recordings that may still grow
    #[arg(long, value_name = "TIME", conflicts_with_all = ["live", "chunk"], value_parser = units::duration)]
    pub last: Option<Duration>,
    /// Receive streams and correlate them as they come; one line per integration
    #[arg(long)]
    pub live: bool,
    #[command(flatten)]
    pub streams: StreamArgs,
    /// Add amplitude against delay of each baseline to what --json prints, 512 delays at most
    #[arg(long, requires = "json")]
    pub profiles: bool,
    /// Write visibilities (SWIN, as DiFX) and a summary here
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Overwrite results that exist
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object on standard output (with --live one a line for each integration before it)
    #[arg(long)]
    pub json: bool,
}

/// How streams are received that are correlated as they come.
#[derive(Args)]
pub struct StreamArgs {
    /// With --live: how long a station that is late is waited for
    #[arg(long, value_name = "TIME", default_value = units::span(StreamOptions::default().wait), value_parser = units::duration, requires = "live")]
    pub wait: Duration,
    /// With --live: print the result at the end alone, not what each integration finds
    #[arg(long, requires = "live")]
    pub no_lines: bool,
    /// With --live: end after this time without a datagram
    #[arg(long, value_name = "TIME", value_parser = units::duration, requires = "live")]
    pub idle: Option<Duration>,
    /// With --live: end this long after the start
    #[arg(long, value_name = "TIME", value_parser = units::duration, requires = "live")]
    pub duration: Option<Duration>,
}

/// How stations are correlated.
#[derive(Args)]
pub struct CorrelatorArgs {
    /// Delay model of DiFX; the .input beside it gives frequencies, side bands and clocks
    #[arg(long, value_name = "X.im", conflicts_with_all = ["freq", "polarisations"])]
    pub model: Option<PathBuf>,
    /// Delay of each station in the order of the files, or what its clock is late; adds to the model's [default: none]
    #[arg(long, value_name = "TERMS", allow_hyphen_values = true)]
    pub delay: Vec<DelayTerms>,
    /// Sky frequency that the first band was mixed down with; the others follow, or each is given [default: not known]
    #[arg(long, value_name = "HZ", value_delimiter = ',')]
    pub freq: Vec<Hertz>,
    /// Side band of real samples
    #[arg(long, ignore_case = true, value_parser = choice(SIDE_BANDS), default_value = name(SIDE_BANDS, CorrelateOptions::default().sideband))]
    pub sideband: SideBand,
    /// Polarisations of the bands, in turn
    #[arg(long, value_name = "LETTERS", default_value_t = CorrelateOptions::default().polarisations, value_parser = polarisations)]
    pub polarisations: String,
    /// Correlate different polarisations too
    #[arg(long)]
    pub cross_hands: bool,
    /// Samples a second of a band, where the recordings cannot tell
    #[arg(long, value_name = "HZ")]
    pub sample_rate: Option<Hertz>,
    /// Channels of a band [default: 1024, or the model's]
    #[arg(long, value_name = "N", value_parser = channels)]
    pub channels: Option<usize>,
    /// Length of an integration; they begin at whole multiples of it since midnight, with a model at the job's start
    /// [default: 1s, or the model's]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub integration: Option<Duration>,
    /// Search a fringe in delays up to this, either side [default: all that the channels can tell apart]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub delay_window: Option<Duration>,
    /// Search a fringe in rates up to this, either side [default: all that can be told apart]
    #[arg(long, value_name = "HZ")]
    pub rate_window: Option<Hertz>,
    /// Leave out a time of a station: NAME:FROM..TO in seconds since the first recording's first second
    #[arg(long, value_name = "FLAG")]
    pub flag: Vec<Flag>,
    /// Threads that correlate [default: one a processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

fn channels(text: &str) -> Result<usize, String> {
    let why = "channels cannot be made; ask for 4 to 1048576";
    within(text, 4..=1 << 20, why)
}

fn polarisations(text: &str) -> Result<String, String> {
    let mut seen = HashSet::new();
    let is_good = |letter: char| letter.is_ascii_uppercase() && seen.insert(letter);
    match !text.is_empty() && text.chars().all(is_good) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "`{text}` names no polarisations; write R, RL or XY"
        )),
    }
}

convert! {
    CorrelatorArgs => CorrelateOptions {
        model, delay, freq, sideband, polarisations, cross_hands, sample_rate, channels,
        integration, delay_window, rate_window, flag, threads,
    }
    over CorrelateOptions::default()
}

convert! { StreamArgs => StreamOptions { wait, idle, duration } without [no_lines] }

/// Correlates as the options say.
pub fn correlate(args: CorrelateArgs, program: &Program) -> Result<()> {
    let options = CorrelateOptions {
        trust: args.trust,
        chunk: args.chunk,
        stretch: (args.last).map_or(Stretch::All, |last| Stretch::Last(last.as_secs_f64())),
        visibilities: args.out,
        force: args.force,
        ..args.options.into()
    };
    let (files, profiles, json) = (args.files, args.profiles, args.json);
    if args.live {
        return correlate_live(&files, &options, args.streams, profiles, json, program);
    }
    let recordings = Recordings::open(&files, &options, program.run())?;
    let summaries = options.visibilities.as_ref().map(|directory| {
        let part = options.chunk.map_or_else(String::new, Chunk::suffix);
        [
            directory.join(format!("summary{part}.json")),
            directory.join(format!("baselines{part}.csv")),
        ]
    });
    let files = summaries.iter().flatten().map(PathBuf::as_path);
    check_new(files, options.force)?;
    if let Some(directory) = &options.visibilities {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    }
    let correlation = evlbi_correlate::correlate(&recordings, &options, program.run(), &mut ())?;
    correlation.has_any()?;
    let result = correlation.result(profiles);
    if let Some([summary, table]) = &summaries {
        replace_json(summary, &result)?;
        write_csv(table, &result)?;
    }
    output::print(json, &result, text)?;
    complete(correlation.interrupted)
}

/// Correlates streams as they come.
fn correlate_live(
    urls: &[String],
    options: &CorrelateOptions,
    streams: StreamArgs,
    profiles: bool,
    json: bool,
    program: &Program,
) -> Result<()> {
    let results = Arc::new(Mutex::new(Results::default()));
    let (lines, streams) = (!streams.no_lines, streams.into());
    let show = {
        let results = Arc::clone(&results);
        move |integration: &Integration| -> Result<(), Cause> {
            if lines {
                results.lock().line(&match json {
                    true => serde_json::to_string(integration)
                        .context("cannot write the line as JSON")?,
                    false => integration.text(),
                });
            }
            Ok(())
        }
    };
    let parsed = urls.iter().map(|url| url.parse());
    let urls = parsed.collect::<Result<Vec<Url>, String>>();
    let urls = urls.map_err(|error| anyhow!(error))?;
    let (run, show) = (program.run(), Box::new(show));
    let correlating = correlate_streams(&urls, options, &streams, run, show)?;
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
    // A line, as those before it.
    let line = match json {
        true => serde_json::to_string(&result).context("cannot write the result as JSON")?,
        false => text(&result),
    };
    let mut results = std::mem::take(&mut *results.lock());
    results.line(&line);
    results.end()?;
    let nothing: Vec<String> = (result.streams.iter())
        .filter_map(StreamResult::nothing)
        .collect();
    match nothing.join("; ") {
        none if none.is_empty() => Ok(()),
        nothing => bail!("no data correlated of {nothing}"),
    }
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  evlbi fringe job.vis --out pictures          (what `evlbi correlate --out job.vis` wrote)
  evlbi fringe Ef.vdif Jb.vdif --freq 4.9G     (correlates first; options as for correlate)")]
pub struct FringeArgs {
    /// A directory of visibilities, or recordings, one a station
    #[arg(required = true, num_args = 1..=32)]
    pub inputs: Vec<String>,
    #[command(flatten)]
    pub options: CorrelatorArgs,
    /// What is believed of samples
    #[arg(long, value_parser = choice(TRUSTS), default_value = name(TRUSTS, CorrelateOptions::default().trust))]
    pub trust: Trust,
    /// Write pictures (SVG and PNG) here
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Overwrite pictures that exist
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// Searches and draws.
pub fn fringe(args: FringeArgs, program: &Program) -> Result<()> {
    let options = FringeOptions {
        correlate: CorrelateOptions {
            trust: args.trust,
            ..args.options.into()
        },
        out: args.out,
        force: args.force,
    };
    let result = match args.inputs.as_slice() {
        [directory] => fringe::in_directory(Path::new(directory), &options)?,
        files => fringe::in_recordings(files, &options, program.run())?,
    };
    output::print(args.json, &result, fringe::text)?;
    complete(result.interrupted)
}

const KINDS: Choices<Kind> = &[
    ("every", "Steadily, one in so many", Kind::Every),
    ("bunch", "In bunches of 1 to 10", Kind::Bunch),
    ("random", "By chance", Kind::Random),
    ("burst", "By chance in bursts", Kind::Burst),
    (
        "common",
        "Alike at all stations, in blocks of time or whole threads",
        Kind::Common,
    ),
];

const KNOWLEDGE: Choices<Knows> = &[
    (
        "all",
        "All that there is to know: invalid bits, fill pattern, lists of gaps",
        Knows::All,
    ),
    ("headers", "Invalid bits alone", Knows::Headers),
    (
        "papers",
        "Invalid bits alone, and after each gap one frame more is lost until frames are found again",
        Knows::Papers,
    ),
];

#[derive(Args)]
#[command(after_help = "\
Each point sheds frames of one station (or of both) on their way from the file, correlates, and is held against the
theory. Ratios are to the whole recordings. Replaced by random bytes or the fill pattern, lost frames look valid to a
correlator that knows headers only (--knows headers); one that knows the gaps leaves them out (--knows all). Both are
shown; --knows papers loses a frame more after each gap.

Example:
  evlbi loss-curve Ef.vdif Jb.vdif --station 2 --loss 0.5%..20% --shed every,bunch --replace nothing,fill")]
pub struct LossCurveArgs {
    /// Recordings, of which two are correlated: that of --station and the first other
    #[arg(required = true, num_args = 2..=32)]
    pub files: Vec<String>,
    /// Which station loses data, from 1 on
    #[arg(long, value_name = "N", default_value_t = LossCurveOptions::default().station, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub station: u8,
    /// Fractions that are lost: a list or a range
    #[arg(long, value_name = "FRACTIONS", default_value = DEFAULT_LOSSES)]
    pub loss: Losses,
    /// How frames are shed
    #[arg(long, value_parser = choice(KINDS), value_delimiter = ',', default_values = names(KINDS, &LossCurveOptions::default().shed))]
    pub shed: Vec<Kind>,
    /// What stands in their place
    #[arg(long, value_parser = choice(REPLACEMENTS), value_delimiter = ',', default_values = names(REPLACEMENTS, &LossCurveOptions::default().replace))]
    pub replace: Vec<Replace>,
    /// What the correlator knows of the loss: curves of each
    #[arg(long, value_parser = choice(KNOWLEDGE), value_delimiter = ',', default_values = names(KNOWLEDGE, &LossCurveOptions::default().knows))]
    pub knows: Vec<Knows>,
    /// Seed of all random choices
    #[arg(long, default_value_t = LossCurveOptions::default().seed)]
    pub seed: u64,
    #[command(flatten)]
    pub options: CorrelatorArgs,
    /// Write the curves and their pictures here
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Overwrite results that exist
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

convert! {
    LossCurveArgs => LossCurveOptions {
        files, station, loss, shed, replace, knows, seed, out, force,
    }
    with [options] { correlate: options.into() }
    without [json]
}

/// Measures the curves that are asked for.
pub fn loss_curve(args: LossCurveArgs, program: &Program) -> Result<()> {
    let json = args.json;
    let result = loss_curve::measure(&args.into(), program.run())?;
    output::print(json, &result, loss_curve::text)?;
    complete(result.interrupted)
}
