//! Streams that are correlated on arrival, in virtual time: each event has a known time.

mod shed;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;

use evlbi_core::path::{Law, Loss, Shape, Times};
use evlbi_core::shed::Policy;
use evlbi_core::time::Nanos;
use evlbi_fx::quantise::VanVleck;
use evlbi_net::clock::Clock;
use evlbi_net::sim::{Direction, Network};
use evlbi_stream::recv::{RecvOptions, receive};
use evlbi_stream::send::SafeOptions;
use evlbi_wire::vdif::Header;
use serde_json::{Value, json};

use super::super::series::tests::sums;
use super::*;

/// UTC of the first samples, which is when the clock starts.
const BEGIN: i64 = 1_767_225_600;
const STATIONS: [&str; 3] = ["Ef", "Jb", "On"];
/// One-way delay of the path.
const WAY: Nanos = Nanos(15_000_000);

fn seconds(seconds: f64) -> Nanos {
    Nanos::from_secs_f64(seconds)
}

/// Arrival time of a frame of a slow stream, by its number. The first leaves one second after the clock starts.
fn comes(frame: i64) -> Nanos {
    seconds(1.0 + frame as f64).plus(WAY)
}

/// A station of one channel of 2 bits that starts this many seconds after the others.
fn plan(room: &Room, name: &str, later: i64, length: u64, sample_rate: u64) -> String {
    let start = jiff::Timestamp::from_second(BEGIN + later).unwrap();
    let stations = STATIONS.map(|name| format!("[[station]]\nname = \"{name}\"\n"));
    let text = format!(
        "start = \"{start}\"\nduration = {length}\nsample_rate = {sample_rate}.0\ncorrelation = 0.8\nedv = 1\n{}",
        stations.concat()
    );
    let file = format!("{later} {length} {sample_rate}.toml");
    format!("sky:{}/{name}", room.write(&file, text))
}

/// One of 64 kbit/s, one frame per second.
fn slow(room: &Room, name: &str, length: u64) -> Stream {
    Stream::of(plan(room, name, 0, length, 32_000))
}

/// A station's stream.
#[derive(Clone)]
struct Stream {
    source: String,
    /// Settings of the receiver's input.
    settings: &'static str,
    /// Seconds by which it starts after the others.
    later: i64,
    repeat: u64,
    shed: Policy,
    safe: Option<SafeOptions>,
    mtu: Option<usize>,
    laws: Vec<Law>,
}

impl Stream {
    fn of(source: String) -> Stream {
        let delay = Law::Delay {
            delay: WAY,
            jitter: Nanos(0),
            shape: Shape::Uniform,
            reorders: false,
        };
        Stream {
            source,
            settings: "",
            later: 0,
            repeat: 1,
            shed: Policy::None,
            safe: None,
            mtu: None,
            laws: vec![delay],
        }
    }

    /// Starts to send.
    fn send(&self, to: &Url, run: &Run) -> Sending {
        let start = jiff::Timestamp::from_second(BEGIN + 1 + self.later).unwrap();
        let options = SendOptions {
            source: self.source.clone(),
            to: to.clone(),
            repeat: self.repeat,
            shed: self.shed.clone(),
            safe: self.safe.clone(),
            mtu: self.mtu,
            start: Some(start),
            ..SendOptions::default()
        };
        send(&options, run).unwrap()
    }
}

/// A port of a network that only `stream` passes.
fn port(number: usize, stream: &Stream, seed: u64, clock: &Clock) -> Url {
    let network = Network::new(clock, &stream.laws, 9000, seed * 16 + number as u64);
    network.to(SocketAddr::from(([10, 0, 0, 1], 1 + number as u16)))
}

/// Everything sent in this time is lost.
fn silence(from: f64, to: f64) -> Law {
    let [from, to] = [from, to].map(seconds);
    let times = Times::Once { from, to };
    let fraction = 1.0;
    Law::Loss(Loss::Within { times, fraction })
}

/// Paths that drop, duplicate and reorder packets.
fn lossy(mut stream: Stream) -> Stream {
    let jitter = Law::Delay {
        delay: Nanos(0),
        jitter: Nanos(30_000_000),
        shape: Shape::Uniform,
        reorders: true,
    };
    let loss = Law::Loss(Loss::Random { fraction: 0.1 });
    stream
        .laws
        .extend([loss, Law::Duplicate { fraction: 0.02 }, jitter]);
    stream
}

/// An integration as it was shown.
#[derive(Clone, Debug, PartialEq)]
struct Shown {
    moment: Nanos,
    /// Seconds since the start of the data.
    second: i64,
    value: Value,
}

/// Result of a correlation of streams.
struct Found {
    correlation: Correlation,
    shown: Vec<Shown>,
    /// Time at which it had ended.
    ended: Nanos,
    log: String,
}

/// Correlates `streams` in their own virtual time; `then` runs at the same time.
fn correlated(
    streams: &[Stream],
    options: &CorrelateOptions,
    stream_options: &StreamOptions,
    seed: u64,
    then: impl FnOnce(&Run, &Mutex<Vec<Shown>>),
) -> Found {
    let clock = Clock::simulated(BEGIN as u64 * Nanos::SECOND.0);
    let run = Run::silent().timed_by(&clock);
    let shown = Arc::new(Mutex::new(Vec::new()));
    let show = {
        let (shown, clock) = (Arc::clone(&shown), clock.clone());
        Box::new(move |integration: &Integration| {
            let value = serde_json::to_value(integration)?;
            let time: jiff::Timestamp = value["time"].as_str().unwrap().parse()?;
            shown.lock().push(Shown {
                moment: clock.now(),
                second: time.as_second() - BEGIN,
                value,
            });
            Ok(())
        })
    };
    let (correlation, ended) = clock.simulate(|| {
        let ports = streams.iter().enumerate();
        let ports = ports.map(|(number, stream)| port(number, stream, seed, &clock));
        let ports: Vec<Url> = ports.collect();
        let inputs = ports.iter().zip(streams);
        let inputs = inputs.map(|(url, stream)| {
            let (_, selection) = Selection::split(&format!("x{}", stream.settings)).unwrap();
            (url.clone(), selection)
        });
        let inputs: Vec<_> = inputs.collect();
        let correlating = correlate_streams(&inputs, options, stream_options, &run, show).unwrap();
        let senders = streams.iter().zip(&ports);
        let senders = senders.filter(|(stream, _)| !stream.source.is_empty());
        // The end of the correlator does not stop the senders.
        let apart = run.apart();
        let senders: Vec<Sending> = senders
            .map(|(stream, to)| stream.send(to, &apart))
            .collect();
        then(&run, &shown);
        let correlation = correlating.join().unwrap();
        let ended = clock.now();
        apart.stop();
        drop(senders);
        (correlation, ended)
    });
    let shown = std::mem::take(&mut *shown.lock());
    Found {
        correlation,
        shown,
        ended,
        log: clock.take_log(),
    }
}

impl Found {
    /// Returns the integrations that start at these seconds, each of which was shown, once and in order.
    fn shown(&self, seconds: Range<i64>) -> impl Iterator<Item = &Shown> {
        let within = seconds.clone();
        let shown = self
            .shown
            .iter()
            .filter(move |shown| within.contains(&shown.second));
        let all: Vec<i64> = shown.clone().map(|shown| shown.second).collect();
        assert_eq!(all, seconds.collect::<Vec<i64>>());
        shown
    }

    /// The weights of a pair of stations in these integrations: the first and the second, the first and the third, and so on.
    fn weights(&self, pair: usize, seconds: Range<i64>) -> Vec<f64> {
        let of = |shown: &Shown| shown.value["baselines"][pair]["weight"].as_f64().unwrap();
        self.shown(seconds).map(of).collect()
    }

    /// Asserts that each of these integrations was shown when this frame, counted from the integration's first one, was seen.
    fn came_with(&self, next: i64, seconds: Range<i64>) {
        let shown: Vec<&Shown> = self.shown(seconds.start - 1..seconds.end).collect();
        for [before, shown] in shown.array_windows() {
            let moment = seen(before.moment, comes(shown.second + next));
            assert_eq!(shown.moment, moment, "{}", shown.second);
        }
    }

    /// Returns the time at which the integration that starts at this second was shown.
    fn moment(&self, second: i64) -> Nanos {
        let mut shown = self.shown(second..second + 1);
        shown.next().unwrap().moment
    }
}

/// Returns the time at which a correlator that has waited since `since` sees the data of slow streams. Their drains start with the
/// eighth frame of a stream and then sleep for 4 ms, 8 ms and 16 ms; the correlator sleeps for 2, 4, 8 and 16 ms each time that it waits.
fn seen(since: Nanos, moment: Nanos) -> Nanos {
    let drained = after_naps(comes(7), 4, moment);
    after_naps(since, 2, drained)
}

/// Returns the first poll at or after `moment` of a thread that started to sleep at `since`.
fn after_naps(since: Nanos, first: u64, moment: Nanos) -> Nanos {
    let (mut at, mut nap) = (since, first);
    while at < moment {
        at = at.plus(Nanos(nap * 1_000_000));
        nap = (2 * nap).min(16);
    }
    at
}

fn of_channels(channels: usize) -> CorrelateOptions {
    CorrelateOptions {
        channels: Some(channels),
        ..CorrelateOptions::default()
    }
}

/// Streams that end after five seconds of silence, with this wait for stations, in seconds.
fn idle(wait: u64) -> StreamOptions {
    StreamOptions {
        wait: Duration::from_secs(wait),
        idle: Some(Duration::from_secs(5)),
        ..StreamOptions::default()
    }
}

/// Records `streams`, each of which loses something, in their own virtual time, and correlates the recordings.
fn recorded(
    streams: &[Stream],
    files: &[String],
    options: &CorrelateOptions,
    seed: u64,
) -> Correlation {
    let clock = Clock::simulated(BEGIN as u64 * Nanos::SECOND.0);
    let run = Run::silent().timed_by(&clock);
    clock.simulate(|| {
        let all = streams.iter().zip(files).enumerate();
        let all = all.map(|(number, (stream, file))| {
            let from = port(number, stream, seed, &clock);
            let options = RecvOptions {
                from: from.clone(),
                to: file.clone(),
                idle: idle(1).idle,
                ..RecvOptions::default()
            };
            (receive(&options, &run).unwrap(), stream.send(&from, &run))
        });
        let all: Vec<_> = all.collect();
        for (receiving, sending) in all {
            let received = serde_json::to_value(receiving.join()).unwrap();
            assert!(received["lost"].as_u64().unwrap() > 0, "{received}");
            sending.join().unwrap();
        }
    });
    let recordings = Recordings::open(files, options, &run).unwrap();
    correlate(&recordings, options, &run, &mut ()).unwrap()
}

/// Which frames of a recording are valid, by their second and number.
fn frames(file: &str) -> BTreeMap<(u32, u32), bool> {
    let recorded = std::fs::read(file).unwrap();
    let headers = recorded.chunks(8032).map(Header::parse).map(Result::unwrap);
    let frame = |header: Header| {
        (
            (header.seconds(), header.frame_number()),
            !header.is_invalid(),
        )
    };
    headers.map(frame).collect()
}

/// The same frames, lost ones too, give the same sums to the bit, and the same amplitudes, weights and delays, whether they are
/// correlated on arrival or from the recordings that a receiver made of them.
#[test]
fn streams_give_the_sums_of_their_recordings() {
    for seed in 0..2 {
        let room = Room::new();
        let streams = STATIONS.map(|name| lossy(Stream::of(plan(&room, name, 0, 4, 800_000))));
        let mut options = of_channels(64);
        if seed % 2 == 1 {
            options.delay = [0.0, 0.03, 0.0]
                .map(|delay| DelayTerms(vec![delay]))
                .to_vec();
        }
        let live = correlated(&streams, &options, &idle(1), seed, |_, _| ());
        let files = STATIONS.map(|name| room.path(&format!("{seed} {name}.vdif")));
        let whole = recorded(&streams, &files, &options, seed);
        let live = live.correlation;
        assert_eq!(live.correlated, whole.correlated, "seed {seed}");
        assert!(sums(&live.series) == sums(&whole.series), "seed {seed}");
        let fringes = [&live, &whole].map(|found| json!(found.fringes()));
        assert_eq!(fringes[0], fringes[1], "seed {seed}");
        if options.delay.is_empty() {
            let frames = files.each_ref().map(|file| frames(file));
            for fringe in live.fringes() {
                let [a, b] = fringe.pair.map(|station| &frames[station]);
                let both = a
                    .iter()
                    .filter_map(|(time, valid)| Some(*valid && *b.get(time)?));
                let both: Vec<bool> = both.collect();
                let valid = both.iter().filter(|valid| **valid).count();
                assert_eq!(
                    fringe.weight,
                    valid as f64 / both.len() as f64,
                    "seed {seed}"
                );
            }
        }
    }
}

/// One frame per second: an integration is shown when the frame after it has arrived from both. The last is shown at the end.
#[test]
fn integrations_of_slow_streams_are_shown_when_complete() {
    let room = Room::new();
    let streams = ["Ef", "Jb"].map(|name| slow(&room, name, 40));
    let found = correlated(&streams, &of_channels(64), &idle(1), 1, |_, _| ());
    assert_eq!(found.weights(0, 0..40), [1.0; 40]);
    // Eight frames identify the stream, and its threads are known 300 ms later: at 8.315 s. Until then the correlator polls every 2 ms.
    for shown in found.shown(0..7) {
        assert_eq!(shown.moment, seconds(8.316));
    }
    found.came_with(1, 7..39);
    let silence = seen(found.moment(38), comes(39).plus(seconds(5.0)));
    assert_eq!([found.moment(39), found.ended], [silence; 2]);
}

/// The correlator waits for a missing station for the requested time only, and the others still end on time.
#[test]
fn the_wait_for_a_missing_station_is_as_long_as_requested() {
    let room = Room::new();
    for wait in [1, 3] {
        let mut streams = STATIONS.map(|name| slow(&room, name, 40));
        streams[2].source.clear();
        let found = correlated(&streams, &of_channels(64), &idle(wait), 1, |_, _| ());
        let wait = wait as i64;
        // They start without it after ten seconds, with the data held by then.
        assert_eq!(found.weights(0, 16..40), [1.0; 24]);
        // The others' data must reach that far, and a frame is sent at its first sample's time.
        found.came_with(wait + 1, 18..39 - wait);
        // Ten seconds after the others fall silent it is given up.
        let silence = after_naps(comes(7), 4, comes(39).plus(seconds(5.0)));
        let left = after_naps(found.moment(38 - wait), 2, silence.plus(seconds(10.0)));
        for shown in found.shown(39 - wait..40) {
            assert_eq!(shown.moment, left);
        }
        // The receiver that waits for it polls every 20 ms from the start, and ends at the second poll.
        let look = Nanos(left.0.next_multiple_of(20_000_000));
        assert_eq!(found.ended, look.plus(seconds(0.02)));
    }
}

/// A station that never sends is missing from its own baselines only, and the time in which two have data is no longer.
#[test]
fn a_missing_station_costs_the_others_nothing() {
    let room = Room::new();
    let absent = Stream::of(String::new());
    let streams = [slow(&room, "Ef", 60), slow(&room, "Jb", 50), absent];
    let found = correlated(&streams, &of_channels(64), &idle(1), 1, |_, _| ());
    let weights = |pair| found.weights(pair, 16..60);
    let both = (16..60).map(|at| if at < 50 { 1.0 } else { 0.0 });
    assert_eq!(weights(0), both.collect::<Vec<f64>>());
    assert_eq!([weights(1), weights(2)], [[0.0; 44]; 2]);
    let result = json!(found.correlation.result(false));
    let start: jiff::Timestamp = result["start"].as_str().unwrap().parse().unwrap();
    let start = start.as_second() - BEGIN;
    assert_eq!(result["seconds"], (50 - start) as f64, "from {start}");
    let baselines = found.correlation.fringes().into_iter();
    let weights: Vec<f64> = baselines.map(|baseline| baseline.weight).collect();
    assert_eq!(weights, [1.0, 0.0, 0.0]);
}

/// A lost datagram costs its own part of a frame.
#[test]
fn what_arrived_of_a_frame_is_correlated() {
    let room = Room::new();
    let mut streams = ["Ef", "Jb"].map(|name| Stream {
        mtu: Some(1500),
        ..Stream::of(plan(&room, name, 0, 20, 800_000))
    });
    let loss = Law::Loss(Loss::Random { fraction: 0.2 });
    streams[1].laws.push(loss);
    let found = correlated(&streams, &of_channels(64), &idle(1), 1, |_, _| ());
    let fringe = &found.correlation.fringes()[0];
    assert!((fringe.weight - 0.8).abs() < 0.03, "{}", fringe.weight);
    let amplitude = fringe.amplitude.corrected;
    assert!((amplitude - 0.8).abs() < 0.03, "{amplitude}");
}

/// A stream that cannot be correlated is left out with the reason, and the others are correlated at once.
#[test]
fn a_stream_that_cannot_be_correlated_is_left_out() {
    let room = Room::new();
    let unfit = Stream {
        settings: "#channels=7",
        ..slow(&room, "On", 40)
    };
    let other = Stream::of(plan(&room, "On", 0, 40, 64_000));
    for (bad, says) in [(unfit, "no channel 7"), (other, "bands of the same width")] {
        let streams = [slow(&room, "Ef", 40), bad, slow(&room, "Jb", 40)];
        let found = correlated(&streams, &of_channels(64), &idle(1), 1, |_, _| ());
        assert_eq!(found.weights(0, 0..40), [1.0; 40]);
        let result = json!(found.correlation.result(false));
        let (left_out, streams) = (&result["left_out"], &result["streams"]);
        let reason = left_out[0]["reason"].as_str().unwrap();
        assert!(reason.contains(says), "{reason}");
        assert_eq!(left_out.as_array().unwrap().len(), 1);
        let names = streams.as_array().unwrap().iter();
        let names: Vec<&str> = names.map(|it| it["station"].as_str().unwrap()).collect();
        assert_eq!(names, ["Ef", "Jb"]);
    }
}

/// A selected station need not be in its stream at the start: it joins when it arrives.
#[test]
fn a_selected_station_joins_when_it_arrives() {
    let room = Room::new();
    let of_on = |source: String, later| Stream {
        settings: "#station=On",
        later,
        ..Stream::of(source)
    };
    let [ef, jb] = ["Ef", "Jb"].map(|name| slow(&room, name, 40));
    let late = Stream {
        settings: "#station=On&channels=0",
        ..of_on(plan(&room, "On", 20, 20, 32_000), 20)
    };
    let found = correlated(&[ef, jb, late], &of_channels(64), &idle(1), 1, |_, _| ());
    assert_eq!(found.weights(0, 16..40), [1.0; 24]);
    assert_eq!(found.weights(1, 16..20), [0.0; 4]);
    assert_eq!(found.weights(1, 30..40), [1.0; 10]);
    let result = json!(found.correlation.result(false));
    assert_eq!(result["stations"][2]["name"], "On");
    // Its stream has another station only.
    let [ef, jb] = ["Ef", "Jb"].map(|name| slow(&room, name, 40));
    let other = of_on(plan(&room, "Jb", 0, 40, 32_000), 0);
    let found = correlated(&[ef, jb, other], &of_channels(64), &idle(1), 1, |_, _| ());
    assert_eq!(found.weights(0, 16..40), [1.0; 24]);
    assert_eq!(found.weights(1, 16..40), [0.0; 24]);
    assert_eq!(found.correlation.left_out.len(), 0);
}

/// A late stream is decoded by its own headers and settings, or not at all.
#[test]
fn a_late_stream_with_other_samples_gives_its_reason() {
    let room = Room::new();
    let [ef, jb] = ["Ef", "Jb"].map(|name| slow(&room, name, 40));
    let source = plan(&room, "On", 20, 20, 32_000);
    let file = room.path("20 20 32000.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(file, format!("channels = 2\n{text}")).unwrap();
    let late = Stream {
        later: 20,
        ..Stream::of(source)
    };
    let found = correlated(&[ef, jb, late], &of_channels(64), &idle(1), 1, |_, _| ());
    assert_eq!(found.weights(0, 16..40), [1.0; 24]);
    assert_eq!(found.weights(1, 16..40), [0.0; 24]);
    let result = json!(found.correlation.result(false));
    let reason = result["streams"][2]["reason"].as_str().unwrap();
    assert!(reason.starts_with("it arrived late, in VDIF"), "{reason}");
}

/// Each line has the rate of its own integration, however short that is and however long the receivers ran before.
#[test]
fn lines_have_the_rate_of_their_integration() {
    let room = Room::new();
    // Ten frames of 64 kbit per second.
    let mut streams = ["Ef", "Jb"].map(|name| Stream {
        later: 60,
        ..Stream::of(plan(&room, name, 60, 4, 320_000))
    });
    // Three frames of the fourth integration.
    streams[1].laws.push(silence(62.55, 62.85));
    let options = CorrelateOptions {
        integration: Some(Duration::from_millis(500)),
        ..of_channels(64)
    };
    let found = correlated(&streams, &options, &idle(1), 1, |_, _| ());
    let rates = |station: usize| {
        let rate = |shown: &Shown| {
            shown.value["streams"][station]["rate_bps"]
                .as_f64()
                .unwrap()
        };
        found.shown.iter().map(rate).collect::<Vec<f64>>()
    };
    let whole = 640e3;
    assert_eq!(rates(0), [whole; 8]);
    let lossy = |at| if at == 3 { 0.4 * whole } else { whole };
    assert_eq!(rates(1), std::array::from_fn::<f64, 8, _>(lossy));
}

/// Two stations over midnight, one of which arrives late: nothing counts as late, and each integration has its fringe.
#[test]
fn midnight_and_a_long_path_cost_nothing() {
    let room = Room::new();
    let delay = 1e-6;
    let text = format!(
        "start = \"2025-12-31T23:59:59Z\"\nduration = 4\nsample_rate = 8e5\ncorrelation = 0.8\nedv = 1\n[[station]]\nname = \"Ef\"\n[[station]]\nname = \"Jb\"\ndelay = [{delay}]\n"
    );
    let plan = room.write("midnight.toml", text);
    let mut streams = ["Ef", "Jb"].map(|name| Stream {
        later: -1,
        ..Stream::of(format!("sky:{plan}/{name}"))
    });
    streams[1].laws.push(Law::Delay {
        delay: seconds(0.4),
        jitter: Nanos(0),
        shape: Shape::Uniform,
        reorders: false,
    });
    let found = correlated(&streams, &of_channels(64), &idle(1), 1, |_, _| ());
    assert_eq!(found.weights(0, -1..3), [1.0; 4]);
    for shown in &found.shown {
        let fringe = &shown.value["baselines"][0];
        let [found, error] =
            ["delay_s", "delay_error_s"].map(|name| fringe[name].as_f64().unwrap());
        assert!((found - delay).abs() < 3.0 * error, "{fringe}");
        for stream in shown.value["streams"].as_array().unwrap() {
            let missing = ["lost", "late_frames", "refused_frames"].map(|name| &stream[name]);
            assert_eq!(missing, [0; 3]);
        }
    }
}

/// Shedding at a station lowers the weights of its baselines by that fraction, to the frame. Amplitudes do not change.
#[test]
fn shed_data_cost_their_weight() {
    let room = Room::new();
    let mut streams = STATIONS.map(|name| Stream::of(plan(&room, name, 0, 4, 800_000)));
    // Of 25 frames per second.
    streams[1].shed = Policy::Every(5);
    let found = correlated(&streams, &of_channels(64), &idle(1), 1, |_, _| ());
    // The last of its hundred is one of them, so that its time ends before.
    let weights: [(f64, f64); 3] = [(0.8, 80.0 / 99.0), (1.0, 1.0), (0.8, 80.0 / 99.0)];
    let fringes = found.correlation.fringes();
    let codec = found.correlation.setup.stations()[0].layout.codec;
    let amplitude = VanVleck::between(codec, codec).correlated(0.8);
    for (pair, (weight, whole)) in weights.into_iter().enumerate() {
        assert_eq!(found.weights(pair, 0..4), [weight; 4]);
        let fringe = &fringes[pair];
        let loss = 1.0 - whole.sqrt();
        assert_eq!((fringe.weight, fringe.snr_loss), (whole, loss));
        let is = |found: f64, off: f64| assert!((found / amplitude - 1.0).abs() < off, "{found}");
        is(fringe.amplitude.valid, 1e-3);
        // Three standard errors: the power of the samples is not known more precisely.
        is(fringe.amplitude.all / whole, 3e-3);
    }
}

/// A station that ends early does not affect the others; one that starts later joins them, from its first frame on if the
/// correlator waits for it until it is identified.
#[test]
fn a_station_may_end_early_or_start_late() {
    let room = Room::new();
    let late = Stream {
        later: 40,
        ..Stream::of(plan(&room, "On", 40, 20, 32_000))
    };
    let streams = [slow(&room, "Ef", 60), slow(&room, "Jb", 50), late];
    let found = correlated(&streams, &of_channels(64), &idle(10), 1, |_, _| ());
    let all = 20..60;
    let is = |within: Range<i64>| {
        let weight = |at: i64| if within.contains(&at) { 1.0 } else { 0.0 };
        all.clone().map(weight).collect::<Vec<f64>>()
    };
    assert_eq!(found.weights(0, all.clone()), is(20..50));
    assert_eq!(found.weights(1, all.clone()), is(40..60));
    assert_eq!(found.weights(2, all.clone()), is(40..50));
}

/// A station whose clock is an hour ahead is left out, with a reason, and costs the others nothing.
#[test]
fn a_wrong_clock_costs_the_others_nothing() {
    let room = Room::new();
    let mut streams = STATIONS.map(|name| slow(&room, name, 40));
    streams[2] = Stream::of(plan(&room, "On", 3600, 40, 32_000));
    let found = correlated(&streams, &of_channels(64), &idle(1), 1, |_, _| ());
    assert_eq!(found.weights(0, 0..40), [1.0; 40]);
    assert_eq!(found.weights(1, 0..40), [0.0; 40]);
    for shown in found.shown(20..30) {
        let reason = shown.value["baselines"][1]["reason"].as_str().unwrap();
        assert!(reason.contains("3600.0000 s ahead"), "{reason}");
    }
    // The correlator waits for it as for a missing station.
    found.came_with(2, 8..38);
}

/// A pause of a station costs the integrations of that time and no others, however long the wait for stations.
#[test]
fn a_stall_costs_its_own_integrations() {
    let room = Room::new();
    for wait in [1, 60] {
        let mut streams = ["Ef", "Jb"].map(|name| slow(&room, name, 40));
        streams[1].laws.push(silence(20.5, 23.5));
        let found = correlated(&streams, &of_channels(64), &idle(wait), 1, |_, _| ());
        let weights = (0..40).map(|at| if (20..23).contains(&at) { 0.0 } else { 1.0 });
        assert_eq!(found.weights(0, 0..40), weights.collect::<Vec<f64>>());
        assert_eq!(found.correlation.fringes()[0].weight, 37.0 / 40.0);
        found.came_with(1, 23..39);
    }
}

/// The correlation ends at the requested time, with all data that arrived by then.
#[test]
fn streams_end_at_their_moment() {
    let room = Room::new();
    let streams = ["Ef", "Jb"].map(|name| slow(&room, name, 40));
    let for_a_time = StreamOptions {
        duration: Some(Duration::from_secs(20)),
        ..StreamOptions::default()
    };
    let found = correlated(&streams, &of_channels(64), &for_a_time, 1, |_, _| ());
    assert_eq!(found.ended, seen(found.moment(17), seconds(20.0)));
    assert_eq!(found.weights(0, 0..19), [1.0; 19]);
    assert!(found.shown.len() == 19 && !found.correlation.interrupted);
    let stopped = |run: &Run, _: &Mutex<Vec<Shown>>| {
        run.clock().sleep(Duration::from_millis(22_500));
        run.stop();
    };
    let usual = StreamOptions::default();
    let found = correlated(&streams, &of_channels(64), &usual, 1, stopped);
    // A receiver polls every 20 ms after its last frame, and ends at the second poll.
    let stopped = comes(21).plus(seconds(0.52));
    assert_eq!(found.ended, seen(found.moment(20), stopped));
    assert_eq!(found.weights(0, 0..22), [1.0; 22]);
    assert!(found.shown.len() == 22 && found.correlation.interrupted);
}

/// Over TCP, loss on the path costs nothing: each frame is correlated.
#[test]
fn connections_bring_every_frame() {
    let room = Room::new();
    let clock = Clock::simulated(BEGIN as u64 * Nanos::SECOND.0);
    let mut streams = ["Ef", "Jb"].map(|name| Stream::of(plan(&room, name, 0, 4, 800_000)));
    let loss = Law::Loss(Loss::Random { fraction: 0.01 });
    streams[0].laws.push(loss);
    let network = Network::new(&clock, &streams[0].laws, 1500, 1);
    let [near, far] = [network.near(1), network.far(1)].map(|host| Run::silent().on(&host));
    let correlation = clock.simulate(|| {
        let urls = [1, 2].map(|port| url(&format!("tcp://10.0.0.1:{port}")));
        let usual = StreamOptions::default();
        let show = Box::new(|_: &Integration| Ok(()));
        let correlating =
            correlate_streams(&whole(&urls), &of_channels(64), &usual, &far, show).unwrap();
        let senders = streams
            .iter()
            .zip(&urls)
            .map(|(stream, to)| stream.send(to, &near));
        let senders: Vec<Sending> = senders.collect();
        for sending in senders {
            let sent = sending.join().unwrap().report;
            assert_eq!((sent.live.sent, &sent.error), (100, &None));
        }
        correlating.join().unwrap()
    });
    assert!(network.truth(Direction::There, 1).dropped > 0);
    assert_eq!(json!(correlation.result(false))["seconds"], 4.0);
    assert_eq!(correlation.fringes()[0].weight, 1.0);
}

/// Two identical runs give the same result: data received, waits, and fringes.
#[test]
fn live_correlations_happen_twice_alike() {
    let room = Room::new();
    // Noise takes longer to make than to correlate.
    let plan = plan(&room, "", 0, 3, 160_000);
    let sky = SkyOptions {
        plan: plan[4..plan.len() - 1].into(),
        out: room.folder().join("sky"),
        force: false,
    };
    sky::simulate(&sky, &Run::silent()).unwrap();
    let recording = |name| Stream::of(room.path(&format!("sky/{name}.vdif")));
    let streams = ["Ef", "Jb"].map(|name| lossy(recording(name)));
    let soon = StreamOptions {
        wait: Duration::from_millis(300),
        idle: Some(Duration::from_secs(1)),
        ..StreamOptions::default()
    };
    for seed in 0..100 {
        let keep_log = |run: &Run, _: &Mutex<Vec<Shown>>| run.clock().keep_log();
        let run = || correlated(&streams, &of_channels(64), &soon, seed, keep_log);
        let [one, other] = [run(), run()];
        assert!(!one.log.is_empty() && one.log == other.log, "seed {seed}");
        assert_eq!(one.shown, other.shown, "seed {seed}");
        let results = [one, other].map(|found| json!(found.correlation.result(true)));
        assert_eq!(results[0], results[1], "seed {seed}");
    }
}

/// Two slow streams for two days, in as much memory as for an hour.
#[test]
#[ignore = "it takes a minute: cargo xtask soak"]
fn soak_of_slow_streams_needs_no_more_memory() {
    const HOURS: u64 = 48;
    let room = Room::new();
    let streams = ["Ef", "Jb"].map(|name| Stream {
        repeat: HOURS * 3600 / 8,
        ..slow(&room, name, 8)
    });
    let mut used = Vec::new();
    let usual = StreamOptions::default();
    let found = correlated(&streams, &of_channels(64), &usual, 1, |run, shown| {
        for _ in 0..HOURS {
            for _ in 0..60 {
                run.clock().sleep(Duration::from_secs(60));
                shown.lock().clear();
            }
            used.push(resident("RssAnon") + resident("RssFile"));
        }
        run.stop();
    });
    let [first, last] = [used[0], used[used.len() - 1]];
    assert!(first.abs_diff(last) * 20 <= first, "{used:?}");
    assert_eq!(found.correlation.fringes()[0].weight, 1.0);
}

/// Memory in kB. That of rings is `RssShmem`: runs in real time take all of it at their start, these when it is first filled.
fn resident(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines().map(str::split_whitespace);
    let line =
        lines.find_map(|mut words| (words.next()?.trim_end_matches(':') == name).then_some(words));
    line.unwrap().next().unwrap().parse().unwrap()
}
