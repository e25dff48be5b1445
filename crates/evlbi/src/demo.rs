//! The demonstration: simulated stations stream in real time over loopback through a lossy relay into
//! recordings. Every count of the relay is compared with the receivers' counters.
//!
//! The code of the demonstration belongs here; it uses the libraries as any other program can.

mod compare;
mod page;
pub mod picture;
mod streams;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use evlbi_core::path::Impairment;
use evlbi_core::rate::BitRate;
use evlbi_net::receive::ReceiveReport;
use evlbi_net::relay::RelayReport;
use evlbi_net::run::{Run, explain};
use evlbi_net::transmit::SendReport;
use evlbi_stream::control_socket::Profile;
use evlbi_stream::counters::Counted;
use evlbi_wire::units::{show_count, show_rate};
use serde::Serialize;

use self::compare::compare;
pub use self::page::Page;
use self::streams::{make_stations, stream};

/// Default bit rate of a station.
const RATE: BitRate = BitRate::new(256_000_000).unwrap();
/// Payload of a frame in bytes; with its header it fits a jumbo frame of Ethernet.
const PAYLOAD: usize = 8000;
/// Samples in a frame: four of two bits in a byte.
const SAMPLES: u64 = PAYLOAD as u64 * 4;
/// Number of packets that overtake a delayed packet.
const DISTANCE: u32 = 4;
const STATIONS: [&str; 16] = [
    "Ef", "Jb", "On", "Mc", "Tr", "Wb", "Nt", "Hh", "Ys", "Sv", "Zc", "Bd", "Ur", "Sh", "Ir", "Cm",
];

/// Options of the demonstration: the stations' streams, and the relay's treatment of them.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// Number of stations, 1 to 16.
    pub stations: u32,
    /// Bit rate of each station's data.
    pub rate: BitRate,
    /// Duration of the streams.
    pub duration: Duration,
    /// Fraction of the packets that the relay drops.
    pub loss: f64,
    /// Fraction that the relay duplicates.
    pub duplicate: f64,
    /// Fraction that the relay delays behind later packets.
    pub reorder: f64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Directory for the recordings; `None` deletes them at the end.
    pub out: Option<PathBuf>,
    /// Whether further stations stream to a live correlator, shown in the web UI.
    pub page: bool,
    /// Whether the web UI stays after the result, which makes a web UI that cannot start an error.
    pub keep: bool,
}

impl Default for DemoOptions {
    fn default() -> DemoOptions {
        DemoOptions {
            stations: 3,
            rate: RATE,
            duration: Duration::from_secs(20),
            loss: 0.01,
            duplicate: 0.001,
            reorder: 0.001,
            seed: 1,
            out: None,
            page: false,
            keep: false,
        }
    }
}

/// The result of `evlbi demo`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DemoResult {
    schema: &'static str,
    stations: Vec<StationResult>,
    /// Whether all compared counts below agree.
    pub accounting_agrees: bool,
    /// The fringes of the first seconds of the recordings.
    baselines: Vec<BaselineCheck>,
    rate_bps: f64,
    seconds: f64,
    impairment: Impairment,
    seed: u64,
    directory: Option<PathBuf>,
    /// Whether Ctrl-C interrupted the stations.
    interrupted: bool,
}

/// A baseline of the recordings: the values expected from the plan and the losses, and those that the correlator finds.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct BaselineCheck {
    stations: [String; 2],
    amplitude_expected: f64,
    amplitude_found: f64,
    weight_expected: f64,
    weight_found: f64,
    snr_expected: f64,
    snr_found: f64,
    /// Amplitude against delay.
    profile: Profile,
}

/// One station, from its sender to its recording.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct StationResult {
    station: String,
    checks: Vec<Check>,
    sent: Counted<SendReport>,
    relay: RelayReport,
    received: Counted<ReceiveReport>,
    recording: RecordingReport,
}

/// A count known from two places.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Check {
    what: &'static str,
    truth: u64,
    found: u64,
    /// Allowed difference: the number of datagrams that the sockets dropped, since their identity is unknown.
    /// Zero if nothing was dropped.
    within: u64,
    agrees: bool,
}

/// Content of a recording, read back.
#[derive(Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RecordingReport {
    #[serde(skip)]
    file: PathBuf,
    /// File name; `None` if the recording is not kept.
    path: Option<PathBuf>,
    bytes: u64,
    frames: u64,
    invalid: u64,
    /// Frames whose time is not one frame after the one before.
    out_of_step: u64,
    /// Loss over time, from the first frame to the last.
    intervals: Vec<Interval>,
}

/// A part of a recording.
#[derive(Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Interval {
    /// From the first frame of the recording to the first of this interval.
    from_s: f64,
    frames: u64,
    invalid: u64,
}

/// Runs the demonstration. Returns its web UI, too, if one was asked for and could start; dropping that ends it.
///
/// # Errors
/// Returns an error if the stations cannot stream, or are stopped before they do.
pub fn demonstrate(options: &DemoOptions, run: &Run) -> Result<(DemoResult, Option<Page>)> {
    let temporary;
    let directory = match &options.out {
        Some(directory) => {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
            directory.as_path()
        }
        None => {
            temporary = Temporary::new("demo")?;
            &temporary.0
        }
    };
    let page = match options.page.then(|| Page::start(options, run)).transpose() {
        Ok(page) => page,
        Err(error) if options.keep => return Err(error.context("cannot serve the web UI")),
        Err(error) => {
            let why = explain(error.as_ref());
            run.say(format_args!("cannot serve the web UI: {why}"));
            None
        }
    };
    let count = options.stations;
    run.line(format_args!("making the noise of {count} stations"));
    let stations = make_stations(options, run)?;
    let impairment = Impairment {
        loss: options.loss,
        duplicate: options.duplicate,
        reorder: options.reorder,
        distance: DISTANCE,
    };
    if run.is_stopped() {
        bail!("interrupted before the stations streamed");
    }
    let frame_rate = stations.first().and_then(|(_, input)| input.frame_rate);
    let frame_rate = frame_rate.context("no stations")?;
    let streamed = stream(options, stations, impairment, directory, run)?;
    let result = compare(options, streamed, frame_rate, impairment, run)?;
    Ok((result, page))
}

/// A directory that is removed when the program ends.
struct Temporary(PathBuf);

impl Temporary {
    fn new(what: &str) -> Result<Temporary> {
        let path = std::env::temp_dir().join(format!("evlbi-{what}-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Temporary(path))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Formats the result for a terminal.
pub fn text(result: &DemoResult) -> String {
    let mut shown = String::new();
    for station in &result.stations {
        shown += &format!("{}\n", station.station);
        for check in &station.checks {
            shown += &format!(
                "  {:<60} {:>12} {} {:>12}\n",
                check.what,
                show_count(check.truth),
                match (check.agrees, check.truth == check.found) {
                    (true, true) => "=",
                    (true, false) => "≈",
                    (false, _) => "≠",
                },
                show_count(check.found),
            );
        }
    }
    if !result.baselines.is_empty() {
        let found = "found";
        shown += &format!(
            "\n{:<10} {:>18} {found:>9} {:>18} {found:>9} {:>14} {found:>9}\n",
            "baseline", "amplitude expected", "weight expected", "SNR expected",
        );
    }
    for baseline in &result.baselines {
        shown += &format!(
            "{:<10} {:>18.5} {:>9.5} {:>18.5} {:>9.5} {:>14.1} {:>9.1}\n",
            baseline.stations.join("-"),
            baseline.amplitude_expected,
            baseline.amplitude_found,
            baseline.weight_expected,
            baseline.weight_found,
            baseline.snr_expected,
            baseline.snr_found,
        );
    }
    format!("{shown}\n{}", summary(result))
}

/// The outcome in a few sentences.
fn summary(result: &DemoResult) -> String {
    let stations = result.stations.iter();
    let count: usize = stations.map(|station| station.checks.len()).sum();
    let mut shown = format!(
        "{} stations, {} for {:.1} s. ",
        result.stations.len(),
        show_rate(result.rate_bps),
        result.seconds
    );
    let dropped = result.stations.iter().map(|station| {
        station.relay.socket_drops + station.relay.not_sent + station.received.live.socket_drops
    });
    let dropped: u64 = dropped.sum();
    if dropped > 0 {
        shown += &format!(
            "This host's sockets dropped {} datagrams: counters marked ≈ agree within that. ",
            show_count(dropped)
        );
    }
    shown
        + &match result.accounting_agrees {
            true => {
                format!("All {count} counters of the receivers agree with those of the relay.")
            }
            false => "Some counters do not agree (marked ≠).".to_owned(),
        }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::net::SocketAddr;

    use evlbi_core::time::Nanos;
    use evlbi_net::clock::Clock as Time;
    use evlbi_net::sim::Network;
    use evlbi_testkit::Room;
    use serde_json::Value;

    use super::*;

    /// A station without any arriving datagram ends too, with a message.
    #[test]
    fn nothing_may_arrive() {
        let room = Room::new();
        let clock = Time::simulated(1_800_000_000 * Nanos::SECOND.0);
        let network = Network::new(&clock, &[], 9000, 1);
        let options = DemoOptions {
            stations: 1,
            rate: BitRate::new(8_000_000).unwrap(),
            duration: Duration::from_secs(1),
            loss: 1.0,
            out: Some(room.folder().to_owned()),
            ..DemoOptions::default()
        };
        let run = Run::silent().on(&network.near(1));
        let (result, _) = clock.simulate(|| demonstrate(&options, &run)).unwrap();
        let result = serde_json::to_value(&result).unwrap();
        let station = &result["stations"][0];
        let sent = of(station, "/sent/sent");
        assert!(sent > 0 && of(station, "/relay/truth/offered") == sent);
        assert_eq!(of(station, "/received/received"), 0);
        assert_eq!(of(station, "/recording/frames"), 0);
    }

    /// Messages of a demonstration.
    fn of(result: &Value, at: &str) -> u64 {
        result.pointer(at).unwrap().as_u64().unwrap()
    }

    /// Sequence numbers sent to each port, in order.
    fn sent_to(log: &str) -> BTreeMap<SocketAddr, Vec<u64>> {
        let mut sent = BTreeMap::<SocketAddr, Vec<u64>>::new();
        for line in log.lines() {
            let Some((_, what)) = line.split_once(" sends ") else {
                continue;
            };
            let (number, _) = what.split_once(',').unwrap();
            let (_, to) = what.rsplit_once(' ').unwrap();
            let numbers = sent.entry(to.parse().unwrap()).or_default();
            numbers.push(number.parse().unwrap());
        }
        sent
    }

    /// All counts of a demonstration in virtual time equal those of the network's log, for any relay settings.
    #[test]
    fn all_numbers_agree_in_virtual_time() {
        for seed in 0..3 {
            let clock = Time::simulated(1_800_000_000 * Nanos::SECOND.0);
            clock.keep_log();
            let network = Network::new(&clock, &[], 9000, seed);
            let options = DemoOptions {
                stations: 2,
                rate: BitRate::new(8_000_000).unwrap(),
                duration: Duration::from_secs(3),
                loss: 0.02 * (seed + 1) as f64,
                duplicate: 0.01,
                reorder: 0.02,
                seed,
                ..DemoOptions::default()
            };
            let run = Run::silent().on(&network.near(1));
            let (result, _) = clock.simulate(|| demonstrate(&options, &run)).unwrap();
            assert!(result.accounting_agrees && !result.interrupted, "{seed}");
            let figure = picture::figure(&result);
            let result = serde_json::to_value(&result).unwrap();
            let stations = result["stations"].as_array().unwrap();
            // A relay receives everything, in order; ports are given in the stations' order.
            let is_whole = |numbers: &Vec<u64>| numbers.iter().copied().eq(0..numbers.len() as u64);
            let ports = sent_to(&clock.take_log()).into_values();
            let (before, behind): (Vec<_>, Vec<_>) = ports.partition(is_whole);
            assert_eq!([before.len(), behind.len()], [stations.len(); 2]);
            for ((station, before), behind) in stations.iter().zip(before).zip(behind) {
                let (mut came, mut reordered) = (BTreeSet::new(), 0);
                for number in &behind {
                    let is_late = came.last().is_some_and(|last| last > number);
                    reordered += u64::from(came.insert(*number) && is_late);
                }
                let expected = came.last().unwrap() - came.first().unwrap() + 1;
                let (received, unique) = (behind.len() as u64, came.len() as u64);
                let lost = expected - unique;
                let drawn =
                    [before.len() as u64, lost, 0, unique, lost].map(|count| count.to_string());
                let mut bars = figure.panels[0].series.iter();
                assert!(bars.any(|bars| bars.labels == drawn), "{seed}: {drawn:?}");
                let intervals = station["recording"]["intervals"].as_array().unwrap();
                let invalid = intervals.iter().map(|one| of(one, "/invalid"));
                assert_eq!(invalid.sum::<u64>(), lost, "{seed}");
                for (at, number) in [
                    ("/sent/offered", before.len() as u64),
                    ("/relay/truth/delivered", unique),
                    ("/received/received", received),
                    ("/received/unique", unique),
                    ("/received/duplicates", received - unique),
                    ("/received/reordered", reordered),
                    ("/received/expected", expected),
                    ("/received/lost", lost),
                    ("/received/network_lost", lost),
                    ("/recording/frames", expected),
                    ("/recording/invalid", lost),
                    ("/recording/out_of_step", 0),
                ] {
                    assert_eq!(of(station, at), number, "{seed}: {at}");
                }
                assert!(lost > 0 && reordered > 0 && received > unique, "{seed}");
            }
        }
    }
}
