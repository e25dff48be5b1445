//! What is shown of an integration of streams.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;

use super::feed::now;
use super::job::Job;
use super::live::Stream;
use super::result::{BaselineResult, baselines};
use super::series::{Found, Series};
use crate::cli::CorrelateArgs;
use crate::steer;
use crate::units::{show_rate, show_seconds};

/// What a period of all baselines says.
#[derive(Serialize)]
struct Line<'a> {
    schema: &'static str,
    time: String,
    baselines: Vec<BaselineLine<'a>>,
    streams: Vec<StreamLine>,
}

/// What a period of a baseline says.
#[derive(Serialize)]
struct BaselineLine<'a> {
    #[serde(flatten)]
    result: &'a BaselineResult,
    /// Shares of the packets that did not come of its stations' streams since the line before.
    lost: [f64; 2],
    /// Why it has no data; none where it has.
    reason: Option<String>,
}

/// What a period of a stream says, counted from the start.
#[derive(Serialize)]
struct StreamLine {
    station: String,
    rate_bps: f64,
    expected: u64,
    lost: u64,
    ring_full: u64,
    /// Frames that came when they had been waited for long enough.
    late_frames: u64,
    /// Frames whose times were not believed.
    refused_frames: u64,
    /// How far its newest data lie behind the newest of all, in seconds.
    skew_s: f64,
}

/// Why a series has nothing of a station; none if it has.
pub(super) fn why_nothing(station: usize, series: &Series, stream: &Stream) -> Option<String> {
    let inputs = series
        .setup
        .inputs()
        .filter(|input| input.station == station);
    if inputs.map(|input| series.input(input).good).sum::<u64>() > 0 {
        return None;
    }
    let state = stream.feed.state();
    let late = state.late() > 0;
    Some(
        stream
            .feed
            .clocks()
            .reason(station, late, state.ended, now()),
    )
}

/// What was shown last of each stream.
pub(super) struct Seen {
    streams: Vec<SeenOfStream>,
}

#[derive(Clone, Copy)]
struct SeenOfStream {
    bytes: u64,
    expected: u64,
    lost: u64,
    when: Instant,
}

impl Seen {
    pub(super) fn new(streams: &[Stream]) -> Seen {
        Seen {
            streams: vec![
                SeenOfStream {
                    bytes: 0,
                    expected: 0,
                    lost: 0,
                    when: Instant::now(),
                };
                streams.len()
            ],
        }
    }
}

/// Shows an integration and writes down its status. None with `--no-lines`.
pub(super) fn show(
    args: &CorrelateArgs,
    job: &Job,
    names: &[String],
    begins: f64,
    period: &Series,
    seen: &mut Seen,
    streams: &[Stream],
) -> Result<Option<String>> {
    let window = super::window(&args.options);
    let parts = (job.integration * job.setup.part_rate() as f64).round() as i64;
    let found: Vec<Found> = (0..job.setup.products().len())
        .map(|index| period.find(index, parts, &window))
        .collect();
    let baselines = baselines(&job.setup, names, &found);
    let newest = |stream: &Stream| stream.feed.newest();
    let times: Vec<f64> = streams
        .iter()
        .map(|stream| newest(stream).unwrap_or(f64::NEG_INFINITY))
        .collect();
    let front = times.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut lines = Vec::new();
    let mut shares = Vec::new();
    for (index, (stream, name)) in streams.iter().zip(names).enumerate() {
        let live = stream.receiving.watch().last();
        let before = &mut seen.streams[index];
        let elapsed = before.when.elapsed().as_secs_f64().max(1e-9);
        let gone = live.counters.lost;
        let expected = live.counters.expected.saturating_sub(before.expected);
        // What comes late is no longer lost.
        let share = gone.saturating_sub(before.lost) as f64 / expected.max(1) as f64;
        shares.push(share.min(1.0));
        let rate_bps = (live.bytes - before.bytes) as f64 * 8.0 / elapsed;
        let skew_s = front - times[index];
        lines.push(StreamLine {
            station: name.clone(),
            rate_bps,
            expected: live.counters.expected,
            lost: live.counters.lost,
            ring_full: live.counters.ring_full,
            late_frames: stream.feed.state().late(),
            refused_frames: stream.feed.clocks().refused(index),
            skew_s,
        });
        *before = SeenOfStream {
            bytes: live.bytes,
            expected: live.counters.expected,
            lost: gone,
            when: Instant::now(),
        };
    }
    let time = job.utc(begins);
    let share = |station: &String| {
        let place = names.iter().position(|name| name == station);
        place.map_or(0.0, |place| shares[place])
    };
    let of_baselines: Vec<BaselineLine<'_>> = baselines
        .iter()
        .map(|result| BaselineLine {
            result,
            lost: [share(&result.stations[0]), share(&result.stations[1])],
            reason: result
                .stations
                .iter()
                .filter(|_| result.weight <= 0.0)
                .find_map(|name| {
                    let station = names.iter().position(|other| other == name)?;
                    let reason = why_nothing(station, period, &streams[station])?;
                    Some(format!("{name}: {reason}"))
                }),
        })
        .collect();
    tell(&of_baselines, &time, job, period, &found);
    if args.streams.no_lines {
        return Ok(None);
    }
    if args.json {
        let line = Line {
            schema: "evlbi.live/1",
            time,
            baselines: of_baselines,
            streams: lines,
        };
        let line = serde_json::to_string(&line).context("cannot write the line as JSON")?;
        return Ok(Some(line));
    }
    let mut shown = Vec::new();
    for BaselineLine {
        result: baseline,
        lost,
        reason,
    } in of_baselines
    {
        shown.push(format!(
            "{time}  {:<12} amplitude {:.5}  SNR {:>7.1}  delay {:>12}  weight {:.4}  lost {:.2} % and {:.2} %{}{}",
            baseline.stations.join("-"),
            baseline.amplitude.valid,
            baseline.snr,
            show_seconds(baseline.delay_s),
            baseline.weight,
            lost[0] * 100.0,
            lost[1] * 100.0,
            baseline.doubt(),
            reason.map_or_else(String::new, |reason| format!(" ({reason})")),
        ));
    }
    for line in lines {
        shown.push(format!(
            "{time}  {:<12} {}  lost {} of {}  ring full {}  late {}  behind {:.3} s",
            line.station,
            show_rate(line.rate_bps),
            line.lost,
            line.expected,
            line.ring_full,
            line.late_frames,
            line.skew_s
        ));
    }
    Ok(Some(shown.join("\n")))
}

/// Writes down how the run is.
fn tell(lines: &[BaselineLine<'_>], start: &str, job: &Job, period: &Series, found: &[Found]) {
    let pairs = job
        .setup
        .products()
        .iter()
        .map(|product| (product.a.station, product.b.station));
    let pairs: BTreeSet<(usize, usize)> = pairs.collect();
    let baselines = lines.iter().zip(pairs).map(|(line, pair)| {
        let result = line.result;
        steer::Baseline {
            stations: result.stations.clone(),
            start: start.to_owned(),
            amplitude: result.amplitude.valid,
            snr: result.snr,
            weight: result.weight,
            snr_loss: result.snr_loss,
            delay_s: result.delay_s,
            delay_error_s: result.delay_error_s,
            rate_hz: result.rate_hz,
            phase_rad: result.phase_rad,
            false_alarm: result.false_alarm,
            lost: line.lost,
            profile: period.profile(pair, found).unwrap_or_default(),
        }
    });
    let baselines = baselines.collect();
    steer::tell(|status| status.baselines = baselines);
}
