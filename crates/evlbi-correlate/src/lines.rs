//! Results of one integration of streams.

use evlbi_fx::correlator::Input;
use evlbi_fx::fringe::Window;
use evlbi_net::receive::Snapshot;
use evlbi_stream::control_socket::Baseline;
use evlbi_stream::counters::{Counts, RECEIVED, Received};
use evlbi_wire::units::{show_rate, show_seconds};
use serde::Serialize;

use super::job::Job;
use super::result::{BaselineResult, baselines};
use super::series::{Found, Series};
use super::stream::Stream;
use super::watch::front;

/// One integration of all baselines.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Integration {
    schema: &'static str,
    /// UTC of its start.
    time: String,
    baselines: Vec<BaselineLine>,
    streams: Vec<StreamLine>,
}

/// One integration of a baseline.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct BaselineLine {
    #[serde(flatten)]
    result: BaselineResult,
    /// Fractions of the packets of its stations lost since the previous line, of those that were sent.
    lost: [f64; 2],
    /// Fractions of the packets that its stations shed since the previous line (SafeUDP).
    shed: [f64; 2],
    /// Reason why it has no data; `None` if it has.
    reason: Option<String>,
}

/// One integration of a stream. Counters are totals since the start.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct StreamLine {
    station: String,
    /// Bits of samples per second in the integration.
    rate_bps: f64,
    #[serde(flatten)]
    counts: Counts,
    /// Packets that its sender shed (SafeUDP): they are neither expected nor lost.
    shed: u64,
    /// Frames that arrived after the wait for them was over.
    late_frames: u64,
    /// Frames with times that were not accepted.
    refused_frames: u64,
    /// Lag of its newest data behind the newest of all streams, in seconds; `null` without data.
    #[cfg_attr(feature = "schema", schemars(with = "Option<f64>"))]
    skew_s: f64,
}

/// Returns the reason why a series has no data of a station; `None` if it has.
pub(super) fn why_nothing(station: usize, series: &Series, stream: &Stream) -> Option<String> {
    let has_some = |input: Input| input.station == station && series.input(input).good > 0;
    if series.setup.inputs().any(has_some) {
        return None;
    }
    Some(stream.feed.why_nothing())
}

/// Returns how many packets the sender of a stream has shed.
pub(super) fn shed(live: &Snapshot) -> u64 {
    live.safe.map_or(0, |safe| safe.shed)
}

/// Returns the bits per second of a station in a series.
fn rate(station: usize, series: &Series) -> f64 {
    let setup = &series.setup;
    let layout = &setup.stations()[station].layout;
    let inputs = setup.inputs().filter(|input| input.station == station);
    let parts: u64 = inputs.map(|input| series.input(input).good).sum();
    let samples = parts as f64 * layout.sample_rate() as f64 / setup.part_rate() as f64;
    let bits = layout.bits() / layout.channels;
    samples * bits as f64 / (series.added as f64 * series.dump_seconds)
}

impl Integration {
    /// Returns the results of `period`, which starts at `begins`, also as a status. `seen` are the snapshots of the previous line.
    pub(super) fn of(
        job: &Job,
        (begins, period): (f64, &Series),
        window: &Window,
        seen: &mut [Snapshot],
        streams: &[&Stream],
    ) -> (Integration, Vec<Baseline>) {
        let products = 0..job.setup.products().len();
        let find = |index| period.find(index, job.periods.parts, window);
        let found: Vec<Found> = products.map(find).collect();
        let times: Vec<Option<f64>> = streams.iter().map(|stream| stream.feed.newest()).collect();
        let front = front(&times);
        let name = |station: usize| job.setup.stations()[station].name.clone();
        let mut lines = Vec::new();
        let mut shares = Vec::new();
        for (index, (stream, before)) in streams.iter().zip(seen).enumerate() {
            let live = stream.watch.last();
            let (counters, old) = (&live.counters, &before.counters);
            let expected = counters.expected.saturating_sub(old.expected);
            // Late packets are no longer lost.
            let share = counters.lost.saturating_sub(old.lost) as f64 / expected.max(1) as f64;
            let new = shed(&live).saturating_sub(shed(before));
            let left_out = new as f64 / (expected + new).max(1) as f64;
            shares.push((share.min(1.0), left_out));
            *before = live.clone();
            let rate_bps = rate(index, period);
            let shed = shed(before);
            lines.push(StreamLine {
                station: name(index),
                rate_bps,
                counts: Counts::total(RECEIVED, &Received { live, rate_bps }),
                shed,
                late_frames: stream.feed.state().late(),
                refused_frames: stream.feed.refused(),
                skew_s: front - times[index].unwrap_or(f64::NEG_INFINITY),
            });
        }
        let why = |station: usize| {
            let reason = why_nothing(station, period, streams[station])?;
            Some(format!("{}: {reason}", name(station)))
        };
        let baselines = baselines(&job.setup, &found).into_iter();
        let baselines = baselines.map(|result| BaselineLine {
            lost: result.pair.map(|station| shares[station].0),
            shed: result.pair.map(|station| shares[station].1),
            reason: (result.pair.into_iter())
                .filter(|_| result.weight <= 0.0)
                .find_map(why),
            result,
        });
        let integration = Integration {
            schema: "evlbi.live/1",
            time: job.utc(begins),
            baselines: baselines.collect(),
            streams: lines,
        };
        let status = integration.status(period, &found);
        (integration, status)
    }

    /// Returns the baselines for a status.
    fn status(&self, period: &Series, found: &[Found]) -> Vec<Baseline> {
        let baselines = self.baselines.iter().map(|line| {
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
                shed: line.shed,
                profile: period.profile(result.pair, found).unwrap_or_default(),
            }
        });
        baselines.collect()
    }

    /// Formats the integration as text, one line per baseline and stream.
    pub fn text(&self) -> String {
        let time = &self.time;
        let baselines = self.baselines.iter().map(|line| {
            let baseline = &line.result;
            format!(
                "{time}  {:<12} amplitude {:.5}  SNR {:>7.1}  delay {:>12}  weight {:.4}  lost {:.2} % and {:.2} %{}{}{}",
                baseline.stations.join("-"),
                baseline.amplitude.valid,
                baseline.snr,
                show_seconds(baseline.delay_s),
                baseline.weight,
                line.lost[0] * 100.0,
                line.lost[1] * 100.0,
                match line.shed {
                    [0.0, 0.0] => String::new(),
                    [one, other] => format!("  shed {:.2} % and {:.2} %", one * 100.0, other * 100.0),
                },
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
