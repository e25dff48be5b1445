//! `evlbi correlate`.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use evlbi_fx::track::Trust;
use parking_lot::Mutex;

use super::choice::{Choices, choice, name};
use crate::correlate::{
    self, Chunk, CorrelateOptions, DelayTerms, Flag, Hertz, Recordings, SideBand, StreamOptions,
    StreamResult, Stretch, text, write_csv,
};
use crate::output::{self, Results};
use crate::program::{Program, complete};
use crate::units;

pub const HELP: &str = "\
Delay of a station: how much later it receives than the reference, as seconds, seconds per second and so on, in the
seconds since the first recording's first second: --delay 0 --delay 1.5us,2e-12. A positive delay is later.

Examples:
  evlbi correlate Ef.vdif Jb.vdif On.vdif --freq 4.9G
  evlbi correlate S1.vdif S2.vdif --model job_1.im --out job_1.difx      (DiFX: the .input beside it is read)
  evlbi correlate A.vdif B.vdif --freq 8.4G,8.432G --polarisations RL --cross-hands --channels 512";

pub const TRUSTS: Choices<Trust> = &[
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
pub struct CorrelateArgs {
    /// Recordings, one a station, in the order of the model's stations; with --live udp://ADDRESS:PORT or unix:///PATH, a stream each
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
    #[arg(long, ignore_case = true, value_parser = choice(SIDE_BANDS))]
    #[arg(default_value = name(SIDE_BANDS, CorrelateOptions::default().sideband))]
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
    text.parse()
        .ok()
        .filter(|channels| (4..=1 << 20).contains(channels))
        .ok_or_else(|| format!("`{text}` channels cannot be made; ask for 4 to 1048576"))
}

fn polarisations(text: &str) -> Result<String, String> {
    let mut seen = HashSet::new();
    let good = |letter: char| letter.is_ascii_uppercase();
    if text.is_empty()
        || !text
            .chars()
            .all(|letter| good(letter) && seen.insert(letter))
    {
        return Err(format!(
            "`{text}` names no polarisations; write R, RL or XY"
        ));
    }
    Ok(text.to_owned())
}

impl From<CorrelatorArgs> for CorrelateOptions {
    fn from(args: CorrelatorArgs) -> CorrelateOptions {
        let CorrelatorArgs {
            model,
            delay,
            freq,
            sideband,
            polarisations,
            cross_hands,
            sample_rate,
            channels,
            integration,
            delay_window,
            rate_window,
            flag,
            threads,
        } = args;
        CorrelateOptions {
            model,
            delay,
            freq,
            sideband,
            polarisations,
            cross_hands,
            sample_rate,
            channels,
            integration,
            delay_window,
            rate_window,
            flag,
            threads,
            ..CorrelateOptions::default()
        }
    }
}

/// What is printed and written.
struct Shown {
    is_json: bool,
    lines: bool,
    profiles: bool,
}

/// Correlates as the options say.
pub fn run(args: CorrelateArgs, program: &Program) -> Result<()> {
    let CorrelateArgs {
        files,
        options,
        trust,
        chunk,
        last,
        live,
        streams,
        profiles,
        out,
        force,
        json,
    } = args;
    let options = CorrelateOptions {
        trust,
        chunk,
        stretch: last.map_or(Stretch::All, |last| Stretch::Last(last.as_secs_f64())),
        visibilities: out,
        force,
        ..options.into()
    };
    if live {
        let StreamArgs {
            wait,
            no_lines,
            idle,
            duration,
        } = streams;
        let streams = StreamOptions {
            wait,
            idle,
            duration,
        };
        let shown = Shown {
            is_json: json,
            lines: !no_lines,
            profiles,
        };
        return run_live(&files, &options, &streams, &shown, program);
    }
    let recordings = Recordings::open(&files, &options)?;
    let summaries = options.visibilities.as_ref().map(|directory| {
        let part = chunk.map_or_else(String::new, Chunk::suffix);
        [
            directory.join(format!("summary{part}.json")),
            directory.join(format!("baselines{part}.csv")),
        ]
    });
    output::check_new(summaries.iter().flatten().map(PathBuf::as_path), force)?;
    if let Some(directory) = &options.visibilities {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    }
    let correlation = correlate::correlate(&recordings, &options, program.run(), &mut ())?;
    correlation.has_any()?;
    let result = correlation.result(profiles);
    if let Some([summary, table]) = &summaries {
        output::replace_json(summary, &result)?;
        write_csv(table, &result)?;
    }
    output::print(json, &result, text)?;
    complete(correlation.interrupted)
}

fn run_live(
    urls: &[String],
    options: &CorrelateOptions,
    streams: &StreamOptions,
    shown: &Shown,
    program: &Program,
) -> Result<()> {
    let results = Arc::new(Mutex::new(Results::default()));
    let Shown {
        is_json,
        lines,
        profiles,
    } = *shown;
    let show = {
        let results = Arc::clone(&results);
        move |integration: &correlate::Integration| {
            if lines {
                results.lock().line(&match is_json {
                    true => serde_json::to_string(integration)
                        .context("cannot write the line as JSON")?,
                    false => integration.text(),
                });
            }
            Ok(())
        }
    };
    let correlating =
        correlate::correlate_streams(urls, options, streams, program.run(), Box::new(show))?;
    let watch = correlating.watch();
    program.steering().on_status({
        let watch = Arc::clone(&watch);
        move |steering| {
            watch.refresh();
            steering.tell(|status| watch.tell(status));
        }
    });
    let found = correlating.join();
    program.steering().tell(|status| watch.tell(status));
    let result = found?.result(profiles);
    // A line, as those before it.
    let line = match is_json {
        true => serde_json::to_string(&result).context("cannot write the result as JSON")?,
        false => text(&result),
    };
    let mut results = std::mem::take(&mut *results.lock());
    results.line(&line);
    results.end()?;
    let nothing: Vec<String> = (result.streams.iter())
        .filter_map(StreamResult::nothing)
        .collect();
    if !nothing.is_empty() {
        bail!("no data correlated of {}", nothing.join("; "));
    }
    Ok(())
}
