//! What is shown of an integration of streams.

use std::collections::BTreeSet;
use std::time::Instant;

use evlbi_fx::fringe::Window;
use serde::Serialize;

use super::feed::now;
use super::job::Job;
use super::live::Stream;
use super::result::{BaselineResult, baselines};
use super::series::{Found, Series};
use super::watch::front;
use crate::counters::{Counts, RECEIVED, Received};
use crate::steer::Baseline;
use crate::units::{show_rate, show_seconds};

/// What an integration of all baselines says.
#[derive(Serialize)]
pub struct Integration {
    schema: &'static str,
    /// UTC of its beginning.
    time: String,
    baselines: Vec<BaselineLine>,
    streams: Vec<StreamLine>,
}

/// What an integration of a baseline says.
#[derive(Serialize)]
struct BaselineLine {
    #[serde(flatten)]
    result: BaselineResult,
    /// Shares of the packets that did not come of its stations' streams since the line before.
    lost: [f64; 2],
    /// Why it has no data; none where it has.
    reason: Option<String>,
}

/// What an integration of a stream says, counted from the start.
#[derive(Serialize)]
struct StreamLine {
    station: String,
    rate_bps: f64,
    #[serde(flatten)]
    counts: Counts,
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

/// What was shown last of a stream.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    bytes: u64,
    expected: u64,
    lost: u64,
    when: Instant,
}

impl Seen {
    pub(super) fn new() -> Seen {
        Seen {
            bytes: 0,
            expected: 0,
            lost: 0,
            when: Instant::now(),
        }
    }
}

impl Integration {
    /// What `period`, which begins at `begins`, says of streams of which `seen` was shown before. Also says it as a status.
    pub(super) fn of(
        job: &Job,
        names: &[String],
        (begins, period): (f64, &Series),
        window: &Window,
        seen: &mut [Seen],
        streams: &[Stream],
    ) -> (Integration, Vec<Baseline>) {
        let parts = (job.integration * job.setup.part_rate() as f64).round() as i64;
        let found: Vec<Found> = (0..job.setup.products().len())
            .map(|index| period.find(index, parts, window))
            .collect();
        let times: Vec<Option<f64>> = streams.iter().map(|stream| stream.feed.newest()).collect();
        let front = front(&times);
        let mut lines = Vec::new();
        let mut shares = Vec::new();
        for (index, (stream, name)) in streams.iter().zip(names).enumerate() {
            let live = stream.receiving.watch().last();
            let before = &mut seen[index];
            let elapsed = before.when.elapsed().as_secs_f64().max(1e-9);
            let gone = live.counters.lost;
            let expected = live.counters.expected.saturating_sub(before.expected);
            // What comes late is no longer lost.
            let share = gone.saturating_sub(before.lost) as f64 / expected.max(1) as f64;
            shares.push(share.min(1.0));
            let rate_bps = (live.bytes - before.bytes) as f64 * 8.0 / elapsed;
            let now_has = Seen {
                bytes: live.bytes,
                expected: live.counters.expected,
                lost: gone,
                when: Instant::now(),
            };
            lines.push(StreamLine {
                station: name.clone(),
                rate_bps,
                counts: Counts::total(RECEIVED, &Received { live, rate_bps }),
                late_frames: stream.feed.state().late(),
                refused_frames: stream.feed.clocks().refused(index),
                skew_s: front - times[index].unwrap_or(f64::NEG_INFINITY),
            });
            *before = now_has;
        }
        let place = |station: &String| names.iter().position(|name| name == station);
        let share = |station: &String| place(station).map_or(0.0, |place| shares[place]);
        let baselines = baselines(&job.setup, names, &found).into_iter();
        let baselines = baselines.map(|result| BaselineLine {
            lost: result.stations.each_ref().map(share),
            reason: (result.stations.iter())
                .filter(|_| result.weight <= 0.0)
                .find_map(|name| {
                    let station = place(name)?;
                    let reason = why_nothing(station, period, &streams[station])?;
                    Some(format!("{name}: {reason}"))
                }),
            result,
        });
        let integration = Integration {
            schema: "evlbi.live/1",
            time: job.utc(begins),
            baselines: baselines.collect(),
            streams: lines,
        };
        let status = integration.status(job, period, &found);
        (integration, status)
    }

    /// The baselines as a status says them.
    fn status(&self, job: &Job, period: &Series, found: &[Found]) -> Vec<Baseline> {
        let pairs = job
            .setup
            .products()
            .iter()
            .map(|product| (product.a.station, product.b.station));
        let pairs: BTreeSet<(usize, usize)> = pairs.collect();
        let baselines = self.baselines.iter().zip(pairs).map(|(line, pair)| {
            let result = &line.result;
            Baseline {
                stations: result.stations.clone(),
                start: self.time.clone(),
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
        baselines.collect()
    }

    /// The same for people, a line each.
    pub fn text(&self) -> String {
        let time = &self.time;
        let baselines = self.baselines.iter().map(|line| {
            let baseline = &line.result;
            format!(
                "{time}  {:<12} amplitude {:.5}  SNR {:>7.1}  delay {:>12}  weight {:.4}  lost {:.2} % and {:.2} %{}{}",
                baseline.stations.join("-"),
                baseline.amplitude.valid,
                baseline.snr,
                show_seconds(baseline.delay_s),
                baseline.weight,
                line.lost[0] * 100.0,
                line.lost[1] * 100.0,
                baseline.doubt(),
                line.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})")),
            )
        });
        let streams = self.streams.iter().map(|line| {
            format!(
                "{time}  {:<12} {}  lost {} of {}  ring full {}  late {}  behind {:.3} s",
                line.station,
                show_rate(line.rate_bps),
                line.counts.count("lost"),
                line.counts.count("expected"),
                line.counts.count("ring_full"),
                line.late_frames,
                line.skew_s
            )
        });
        baselines.chain(streams).collect::<Vec<String>>().join("\n")
    }
}
