//! Compares counts that are known from two places: the relay's, the receivers', the recordings' and their fringes.

use std::collections::BTreeMap;

use anyhow::Result;
use evlbi_core::deframe::{self, Deframer, FrameState};
use evlbi_core::path::Impairment;
use evlbi_correlate::{CorrelateOptions, Hertz, Recordings, Stretch};
use evlbi_fx::quantise::VanVleck;
use evlbi_fx::sky::SkyPlan;
use evlbi_net::run::Run;
use evlbi_stream::drain::Drained;
use evlbi_stream::recording::{self, Blocks};
use evlbi_wire::time::FrameRate;

use super::streams::Streamed;
use super::{
    BaselineCheck, Check, DemoOptions, DemoResult, Interval, PAYLOAD, RecordingReport, SAMPLES,
    StationResult,
};

/// Length of the recordings to correlate, in seconds.
const CORRELATED: f64 = 4.0;
/// Intervals of a recording in which its loss is counted.
const INTERVALS: u64 = 50;

pub(super) fn compare(
    options: &DemoOptions,
    streamed: Vec<Streamed>,
    frame_rate: FrameRate,
    impairment: Impairment,
    run: &Run,
) -> Result<DemoResult> {
    let interrupted = run.is_stopped();
    let mut stations = Vec::new();
    for streamed in streamed {
        let recording = read_again(&streamed.drained, frame_rate, options.out.is_some())?;
        stations.push(StationResult {
            checks: checks(&streamed, &recording),
            station: streamed.name,
            sent: streamed.sent.into(),
            relay: streamed.relay,
            received: streamed.received.into(),
            recording,
        });
    }
    let seconds = stations.iter().map(|station| station.sent.seconds);
    let mut checks = stations.iter().flat_map(|station| &station.checks);
    Ok(DemoResult {
        schema: "evlbi.demo/1",
        accounting_agrees: checks.all(|check| check.agrees),
        rate_bps: stations.iter().map(|station| station.sent.rate_bps).sum(),
        seconds: seconds.fold(0.0, f64::max),
        impairment,
        baselines: match interrupted {
            true => Vec::new(),
            false => correlate(&stations, frame_rate, run)?,
        },
        interrupted,
        seed: options.seed,
        directory: options.out.clone(),
        stations,
    })
}

/// Correlates the recordings, if at least two contain data.
fn correlate(
    stations: &[StationResult],
    frame_rate: FrameRate,
    run: &Run,
) -> Result<Vec<BaselineCheck>> {
    let arrived = |station: &&StationResult| station.recording.frames > station.recording.invalid;
    let arrived: Vec<&StationResult> = stations.iter().filter(arrived).collect();
    if arrived.len() < 2 {
        return Ok(Vec::new());
    }
    run.line(format_args!("correlating the recordings"));
    let paths: Vec<String> = arrived
        .iter()
        .filter_map(|station| Some(station.recording.file.to_str()?.to_owned()))
        .collect();
    let options = CorrelateOptions {
        sample_rate: Some(Hertz(f64::from(frame_rate.get()) * SAMPLES as f64)),
        stretch: Stretch::Between(0.0..CORRELATED),
        ..CorrelateOptions::default()
    };
    let recordings = Recordings::open(&paths, &options, run)?;
    let found = evlbi_correlate::correlate(&recordings, &options, run, &mut ())?;
    if found.interrupted {
        return Ok(Vec::new());
    }
    let Some(codec) = recordings.layout(0).map(|layout| layout.codec) else {
        return Ok(Vec::new());
    };
    let amplitude = VanVleck::between(codec, codec).correlated(SkyPlan::default().correlation);
    let whole = |name: &str| {
        let station = arrived.iter().find(|station| station.station == name);
        station.map_or(0.0, |station| {
            1.0 - station.recording.invalid as f64 / station.recording.frames as f64
        })
    };
    let baselines = found.fringes().into_iter().zip(found.profiles());
    let baselines = baselines.map(|(baseline, profile)| {
        let weight: f64 = baseline.stations.iter().map(|name| whole(name)).product();
        BaselineCheck {
            amplitude_expected: amplitude,
            amplitude_found: baseline.amplitude.valid,
            weight_expected: weight,
            weight_found: baseline.weight,
            snr_expected: amplitude * (weight * found.parts() as f64).sqrt(),
            snr_found: baseline.snr,
            stations: baseline.stations,
            profile,
        }
    });
    Ok(baselines.collect())
}

/// Returns every count that is known from two places, including those of the sockets.
///
/// A datagram that a socket drops becomes a loss or a missing duplicate; at the very start or end of the stream
/// nothing shows it. So the sum of these is exact, and duplicates and reordering agree within the number of drops.
fn checks(streamed: &Streamed, recording: &RecordingReport) -> Vec<Check> {
    let (sent, relay, received) = (&streamed.sent, &streamed.relay, &streamed.received);
    let truth = &relay.truth;
    let counters = &received.account.counters;
    let before_the_path = relay.socket_drops + sent.live.not_sent;
    let behind_the_path = relay.not_sent + received.live.socket_drops + counters.ring_full;
    let unknown = before_the_path + behind_the_path;
    let near = |what, truth: u64, found: u64, within| Check {
        what,
        truth,
        found,
        within,
        agrees: truth.abs_diff(found) <= within,
    };
    let equal = |what, truth, found| near(what, truth, found, 0);
    let between = sent.live.offered - truth.lost_before - truth.lost_after;
    let missed = between.saturating_sub(counters.expected);
    let not_doubled = truth.duplicates.saturating_sub(counters.duplicates);
    let (live, attribution) = (&received.live, &received.attribution);
    let in_sockets = live
        .socket_drops_within
        .min(counters.lost - counters.ring_full);
    let lost_frames = streamed.drained.frames.counts.lost_frames;
    let mut checks = vec![
        equal(
            "sent = entered the relay + dropped before",
            sent.live.offered,
            truth.offered + before_the_path,
        ),
        equal(
            "left the relay = received + dropped behind",
            truth.delivered + truth.duplicates,
            counters.received - counters.ring_full + behind_the_path,
        ),
        near(
            "expected = sent - lost before the first and after the last",
            between,
            counters.expected,
            unknown,
        ),
        equal(
            "expected = unique + lost",
            counters.expected,
            counters.unique + counters.lost,
        ),
        equal(
            "lost by the path + dropped = lost (+ not doubled, not missed)",
            truth.lost + unknown,
            counters.lost + not_doubled + missed,
        ),
        equal(
            "dropped at the socket + ring full = lost in this host",
            in_sockets + counters.ring_full,
            attribution.host_lost,
        ),
        equal(
            "lost = in this host + in the network + unattributed",
            counters.lost,
            attribution.host_lost + attribution.network_lost + attribution.unattributed,
        ),
        near("duplicates", truth.duplicates, counters.duplicates, unknown),
        near("reordered", truth.reordered, counters.reordered, unknown),
        equal("foreign", 0, live.foreign() + relay.foreign),
        equal(
            "datagrams lost + late = frames lost",
            counters.lost + counters.late,
            lost_frames,
        ),
        equal(
            "expected = frames in the recording",
            counters.expected,
            recording.frames,
        ),
        equal(
            "frames lost = invalid frames in the recording",
            lost_frames,
            recording.invalid,
        ),
        equal(
            "frames out of step in the recording",
            0,
            recording.out_of_step,
        ),
    ];
    if unknown == 0 {
        let runs = |runs: &BTreeMap<u64, u64>| runs.values().sum();
        checks.push(Check {
            what: "runs of loss, length by length",
            truth: runs(&truth.runs),
            found: runs(&received.account.runs),
            within: 0,
            agrees: truth.runs == received.account.runs,
        });
    }
    checks
}

/// Reads a recording back, as any other program would.
fn read_again(drained: &Drained, frame_rate: FrameRate, keep: bool) -> Result<RecordingReport> {
    let Some(file) = drained.sink.files.first() else {
        return Ok(RecordingReport::default());
    };
    let mut report = RecordingReport {
        file: file.path.clone(),
        path: keep.then(|| file.path.clone()),
        bytes: file.bytes,
        ..RecordingReport::default()
    };
    let mut deframer = Deframer::new(deframe::Settings {
        frame_rate: Some(frame_rate),
        ..deframe::Settings::default()
    });
    let mut last = None;
    let of_interval = (file.bytes / (PAYLOAD as u64 + 32))
        .div_ceil(INTERVALS)
        .max(1);
    Blocks::new(recording::open(&file.path)?, file.bytes).walk(&mut deframer, |chunk| {
        for frame in chunk.frames {
            let is_invalid = u64::from(frame.state == FrameState::SourceInvalid);
            if report.frames.is_multiple_of(of_interval) {
                report.intervals.push(Interval {
                    from_s: report.frames as f64 / f64::from(frame_rate.get()),
                    ..Interval::default()
                });
            }
            if let Some(interval) = report.intervals.last_mut() {
                interval.frames += 1;
                interval.invalid += is_invalid;
            }
            report.frames += 1;
            report.invalid += is_invalid;
            let index = frame.time.map(|time| time.index(frame_rate));
            let in_step = last.is_none_or(|last: i64| index == Some(last + 1));
            report.out_of_step += u64::from(!in_step);
            last = index;
        }
    })?;
    Ok(report)
}
