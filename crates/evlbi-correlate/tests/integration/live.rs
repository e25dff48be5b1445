//! Streams that are correlated on arrival over real sockets of this host.

use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evlbi_core::shed::{Policy, Replace};
use evlbi_correlate::{
    CorrelateOptions, Correlating, DelayTerms, Hertz, Integration, Recordings, StreamOptions,
    StreamResult, Stretch, correlate, correlate_streams,
};
use evlbi_fx::track::Trust;
use evlbi_net::run::{Note, Notes, Run};
use evlbi_net::transport::Url;
use evlbi_stream::control_socket::{Status, Watched};
use evlbi_stream::recv::{RecvOptions, receive};
use evlbi_stream::selection::Selection;
use evlbi_stream::send::{Pace, SendOptions, Sending, send};
use evlbi_stream::sky::{self, SkyOptions};
use evlbi_stream::source::read_plan;
use evlbi_testkit::result::{assert_schema, checked, number, refused};
use evlbi_testkit::{Room, buffer, processor, until};
use evlbi_wire::vtp;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// Addresses of the streams.
const HERE: &str = "udp://127.0.0.1:0";
/// Longer than any test takes.
const PATIENT: Duration = Duration::from_mins(10);
/// Bytes of data in a datagram, which is a frame.
const PAYLOAD: u64 = 8000;

/// Two stations over midnight, of which one is late: `seconds` at `sample_rate` samples a second.
fn plan(room: &Room, seconds: f64, sample_rate: f64, payload: u64) -> String {
    let plan = format!(
        r#"
start = "2024-01-01T23:59:59Z"
duration = {seconds}
sample_rate = {sample_rate}
correlation = 0.3
edv = 1
payload = {payload}
[[station]]
name = "Ef"
[[station]]
name = "Jb"
delay = [1e-6]
"#
    );
    room.write("plan.toml", plan)
}

/// A running live correlation.
struct Live {
    correlating: Correlating,
    run: Run,
    notes: Arc<Noted>,
    /// Its integrations so far.
    shown: Arc<Mutex<Vec<Value>>>,
}

/// Notes collected during the run.
#[derive(Default)]
struct Noted {
    places: Mutex<Vec<String>>,
    said: Mutex<Vec<String>>,
}

impl Notes for Noted {
    fn take(&self, note: &Note<'_>) {
        match note {
            Note::Listens(place) => self.places.lock().push(place.to_string()),
            Note::Said(said) | Note::Line(said) => self.said.lock().push(said.to_string()),
            _ => {}
        }
    }
}

impl Live {
    /// Correlates the streams that arrive at the URLs of `inputs`, with this wait for a late station.
    fn start(inputs: &[impl AsRef<str>], options: &CorrelateOptions, wait: Duration) -> Live {
        let inputs = inputs.iter().map(|input| {
            let (url, selection) = Selection::split(input.as_ref()).unwrap();
            (url.parse().unwrap(), selection)
        });
        let inputs: Vec<(Url, Selection)> = inputs.collect();
        let streams = StreamOptions {
            wait,
            ..StreamOptions::default()
        };
        let notes = Arc::new(Noted::default());
        let run = Run::new(Arc::<Noted>::clone(&notes));
        let shown = Arc::new(Mutex::new(Vec::new()));
        let show = {
            let shown = Arc::clone(&shown);
            Box::new(move |integration: &Integration| {
                shown
                    .lock()
                    .push(checked(serde_json::to_value(integration).unwrap()));
                Ok(())
            })
        };
        Live {
            correlating: correlate_streams(&inputs, options, &streams, &run, show).unwrap(),
            run,
            notes,
            shown,
        }
    }

    /// The addresses on which it listens.
    fn places(&self) -> Vec<String> {
        self.notes.places.lock().clone()
    }

    /// The number of datagrams that have arrived at a stream, including those of other senders.
    fn arrived(&self, stream: usize) -> u64 {
        let watch = self.correlating.watch();
        let mut status = Status::default();
        watch.refresh();
        watch.tell(&mut status);
        let counts = &status.receiving[stream].counts;
        let names = ["received", "foreign", "undecided"];
        names.map(|name| counts.count(name)).iter().sum()
    }

    /// Sends both stations of a plan at once, and returns how much was sent of each when all of it has arrived.
    fn send_both(&self, plan: &str, shed: &Policy) -> [u64; 2] {
        let stations = ["Ef", "Jb"].iter().zip(self.places());
        let senders = stations.map(|(station, place)| {
            begin(&SendOptions {
                shed: shed.clone(),
                ..sending_of(&format!("sky:{plan}/{station}"), &format!("udp://{place}"))
            })
        });
        let senders: Vec<Sending> = senders.collect();
        let sent = senders.into_iter().map(sent_by);
        let sent: Vec<u64> = sent.collect();
        for (stream, sent) in sent.iter().enumerate() {
            until("all arrives", || self.arrived(stream) >= *sent);
        }
        sent.try_into().unwrap()
    }

    /// Stops it; returns its integrations and its result.
    fn stop(self) -> (Vec<Value>, Value) {
        self.run.stop();
        self.end()
    }

    /// Waits for the end; returns its integrations and its result.
    fn end(self) -> (Vec<Value>, Value) {
        let found = self.correlating.join().unwrap().result(false);
        let nothing = found.streams.iter().find_map(StreamResult::nothing);
        assert_eq!(nothing, None);
        let shown = std::mem::take(&mut *self.shown.lock());
        (shown, checked(serde_json::to_value(found).unwrap()))
    }
}

/// Sends a station at the maximum rate, one frame per datagram.
fn sending_of(source: &str, to: &str) -> SendOptions {
    let mut options = SendOptions {
        source: source.to_owned(),
        to: to.parse().unwrap(),
        pace: Pace::Max,
        mtu: Some(9000),
        ..SendOptions::default()
    };
    options.host.cpu = Some(processor::number());
    options
}

fn begin(options: &SendOptions) -> Sending {
    send(options, &Run::silent()).unwrap()
}

/// The number of datagrams sent by its end, which must be without errors.
fn sent_by(sending: Sending) -> u64 {
    let sent = checked(serde_json::to_value(sending.join().unwrap()).unwrap());
    assert!(sent["error"].is_null(), "{}", sent["error"]);
    number(&sent, "sent")
}

/// The correlator received all datagrams of both stations: none is lost, and none counts as `other`.
#[track_caller]
fn assert_all(result: &Value, sent: [u64; 2], other: &str) {
    let counts = ["unique", "lost", other];
    let found = [0, 1].map(|at| counts.map(|name| number(&result["streams"][at], name)));
    assert_eq!(found, sent.map(|sent| [sent, 0, 0]));
}

/// Records both stations of a plan; returns the files.
fn record_both(room: &Room, plan: &str, shed: &Policy, replace: Replace) -> [String; 2] {
    ["Ef", "Jb"].map(|station| {
        let file = room.path(station);
        let options = RecvOptions {
            from: HERE.parse().unwrap(),
            to: file.clone(),
            ring: Some(64 << 20),
            hold: Some(PATIENT),
            ..RecvOptions::default()
        };
        let receiving = receive(&options, &Run::silent()).unwrap();
        let to = format!("udp://{}", receiving.seen.local[0]);
        let sent = sent_by(begin(&SendOptions {
            shed: shed.clone(),
            replace,
            ..sending_of(&format!("sky:{plan}/{station}"), &to)
        }));
        until("all arrives", || {
            receiving.seen.refresh();
            receiving.seen.status().counts.count("received") >= sent
        });
        receiving.stop();
        assert_eq!(receiving.join().sink.write_error, None);
        file
    })
}

fn correlated(files: &[String; 2], options: &CorrelateOptions) -> Value {
    let run = Run::silent();
    let recordings = Recordings::open(files, options, &run).unwrap();
    let found = correlate(&recordings, options, &run, &mut ()).unwrap();
    checked(serde_json::to_value(found.result(false)).unwrap())
}

/// Fringes are shown integration by integration, and nothing is lost or late.
#[test]
fn two_streams_show_a_fringe_as_they_arrive() {
    let room = Room::new();
    // As long as a receiver's buffer holds of each, with both in flight at once.
    let most = buffer::holds(PAYLOAD as usize + 32 + vtp::HEADER_LEN) as u64 / 2 * PAYLOAD;
    let sample_rate = 8e6;
    let samples = 4.0 * (most as f64).min(2.5 * sample_rate / 4.0);
    let integration = (samples / sample_rate / 5.0 * 1000.0).floor() / 1000.0;
    let plan = plan(&room, 5.0 * integration, sample_rate, PAYLOAD);
    let options = CorrelateOptions {
        channels: Some(128),
        freq: vec![Hertz(4.9e9)],
        integration: Some(Duration::from_millis((integration * 1000.0).round() as u64)),
        delay: [0.0, 1e-6].map(|delay| DelayTerms(vec![delay])).to_vec(),
        ..CorrelateOptions::default()
    };
    let live = Live::start(&[HERE; 2], &options, PATIENT);
    let sent = live.send_both(&plan, &Policy::None);
    until("four integrations", || live.shown.lock().len() >= 4);
    let (periods, last) = live.stop();
    // Four times the noise of an integration.
    let noise = 4.0 / (integration * sample_rate).sqrt();
    for (number_of, period) in periods.iter().enumerate() {
        assert_schema(period, "evlbi.live/1");
        let baseline = &period["baselines"][0];
        let of = |name: &str| baseline[name].as_f64().unwrap();
        // None is lost.
        assert_eq!(baseline["lost"], json!([0.0, 0.0]));
        // The first and the last may be parts of an integration.
        if number_of > 0 && number_of + 1 < periods.len() {
            assert!(of("weight") > 0.999, "{baseline}");
            assert!(
                of("delay_s").abs() < 2e-9 * (1.0 + 250.0 * noise),
                "{baseline}"
            );
            let amplitude = baseline["amplitude"]["corrected"].as_f64().unwrap();
            assert!((amplitude - 0.3).abs() < noise.max(0.01), "{baseline}");
        }
    }
    assert_schema(&last, "evlbi.correlate/1");
    assert_all(&last, sent, "late_frames");
}

/// Frames of a station that a receiver's socket holds with those of the other, in integrations of ten frames of 20 ms.
const INTEGRATIONS: usize = 5;
const RATE: f64 = 1.6e6;

fn short_plan(room: &Room) -> String {
    let frames = 10 * INTEGRATIONS;
    assert!(2 * frames <= buffer::holds(PAYLOAD as usize + 32 + vtp::HEADER_LEN));
    plan(room, 0.2 * INTEGRATIONS as f64, RATE, PAYLOAD)
}

/// Streams that lose frames are correlated as their recordings are: the same frames, weights and amplitudes in each integration.
#[test]
fn a_live_correlation_is_that_of_the_recordings() {
    let room = Room::new();
    let plan = short_plan(&room);
    let shed = "random:20%".parse().unwrap();
    // Within a narrow window of rates neither depends on how an integration is divided in time.
    let options = CorrelateOptions {
        channels: Some(64),
        integration: Some(Duration::from_millis(200)),
        rate_window: Some(Hertz(1e-3)),
        ..CorrelateOptions::default()
    };
    let live = Live::start(&[HERE; 2], &options, PATIENT);
    let sent = live.send_both(&plan, &shed);
    assert!(sent.iter().all(|sent| *sent < 10 * INTEGRATIONS as u64));
    let (periods, last) = live.stop();
    let files = record_both(&room, &plan, &shed, Replace::Nothing);
    let whole = correlated(&files, &options);
    for station in [0, 1] {
        for count in ["name", "frames", "late", "duplicates", "foreign"] {
            let of = |result: &Value| result["stations"][station][count].clone();
            assert_eq!(of(&last), of(&whole), "{count} of station {station}");
        }
    }
    // The first and the last may be parts of an integration.
    assert!(periods.len() >= 4, "{} integrations", periods.len());
    let mut least = 1.0f64;
    for (before, period) in periods[1..periods.len() - 1].iter().enumerate() {
        let begin = 0.2 * (before + 1) as f64;
        let only = CorrelateOptions {
            stretch: Stretch::Between(begin..begin + 0.2),
            ..options.clone()
        };
        let recorded = correlated(&files, &only);
        assert_eq!(period["time"], recorded["start"]);
        let [live, recorded] = [period, &recorded].map(|result| &result["baselines"][0]);
        let near = |name: &str, within: f64| {
            let [a, b] = [live, recorded].map(|of| of.pointer(name).unwrap().as_f64().unwrap());
            assert!((a - b).abs() <= within, "{name}: {live}, {recorded}");
            a
        };
        least = least.min(near("/weight", 1e-12));
        for amplitude in ["all", "autos", "valid", "corrected"] {
            near(&format!("/amplitude/{amplitude}"), 1e-6);
        }
    }
    assert!(least < 0.9, "{least}");
}

/// Uncorrelated noise has no fringe in recordings of two stations that send random bytes in place of frames.
#[test]
fn random_bytes_of_two_senders_have_no_fringe() {
    let room = Room::new();
    let plan = short_plan(&room);
    let text = std::fs::read_to_string(&plan).unwrap();
    let plan = room.write(
        "noise.toml",
        text.replace("correlation = 0.3", "correlation = 0.0"),
    );
    let shed = "random:10%".parse().unwrap();
    let files = record_both(&room, &plan, &shed, Replace::Random);
    let options = CorrelateOptions {
        channels: Some(64),
        trust: Trust::Blind,
        ..CorrelateOptions::default()
    };
    let found = correlated(&files, &options)["baselines"][0].take();
    assert_eq!(found["weight"], 1.0);
    let [snr, chance] = ["snr", "false_alarm"].map(|name| found[name].as_f64().unwrap());
    assert!(snr < 8.0 && chance > 1e-6, "{found}");
}

/// An integration longer than the data that may wait for the correlator, 4 s plus the wait for a station, still completes.
#[test]
fn long_integrations_of_slow_streams_do_not_stall() {
    let room = Room::new();
    let plan = plan(&room, 26.0, 16e3, 800);
    let sky = SkyOptions {
        plan: plan.into(),
        out: room.folder().join("sky"),
        force: false,
    };
    sky::simulate(&sky, &Run::silent()).unwrap();
    let options = CorrelateOptions {
        channels: Some(64),
        integration: Some(Duration::from_secs(12)),
        ..CorrelateOptions::default()
    };
    let live = Live::start(&[HERE; 2], &options, Duration::from_secs(5));
    let stations = ["Ef", "Jb"].map(|name| room.read(&format!("sky/{name}.vdif")));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // A second of both at a time, so that neither is ahead of the other by more than the wait.
    let frames: Vec<Vec<&[u8]>> = stations
        .iter()
        .map(|all| all.chunks(832).collect())
        .collect();
    for first in (0..frames[0].len()).step_by(5) {
        for (frames, address) in frames.iter().zip(live.places()) {
            for (number, frame) in frames.iter().enumerate().skip(first).take(5) {
                let datagram = [&vtp::header(number as u64)[..], frame].concat();
                socket.send_to(&datagram, &address).unwrap();
            }
        }
        for (stream, frames) in frames.iter().enumerate() {
            let sent = frames.len().min(first + 5) as u64;
            until("a second arrives", || live.arrived(stream) >= sent);
        }
        // Before the run starts, only the newest 4 s are kept.
        if first == 10 {
            until("the run begins", || {
                let said = live.notes.said.lock();
                said.iter()
                    .any(|said| said.starts_with("correlating Ef, Jb"))
            });
        }
    }
    until("two integrations", || live.shown.lock().len() >= 2);
    let (_, last) = live.stop();
    let sent = [0, 1].map(|station: usize| frames[station].len() as u64);
    assert_all(&last, sent, "ring_full");
}

/// Over Unix sockets.
#[test]
fn two_streams_are_correlated() {
    let room = Room::new();
    let plan = room.write(
        "plan.toml",
        r#"
start = "2024-01-01T23:59:59Z"
duration = 1.0
sample_rate = 4e6
correlation = 0.3
edv = 1
payload = 10000
[[station]]
name = "Ef"
[[station]]
name = "Jb"
"#,
    );
    let urls = ["a", "b"].map(|name| format!("unix://{}", room.path(name)));
    let options = CorrelateOptions {
        channels: Some(64),
        ..CorrelateOptions::default()
    };
    let live = Live::start(&urls, &options, PATIENT);
    let sending = ["Ef", "Jb"].iter().zip(&urls);
    let sending: Vec<Sending> = sending
        .map(|(station, url)| {
            begin(&SendOptions {
                mtu: None,
                ..sending_of(&format!("sky:{plan}/{station}"), url)
            })
        })
        .collect();
    for sending in sending {
        sending.join().unwrap();
    }
    // The streams end with their senders, and the correlation with them.
    let (_, last) = live.end();
    let baseline = &last["baselines"][0];
    assert!(baseline["weight"].as_f64().unwrap() > 0.99, "{baseline}");
    for stream in 0..2 {
        assert_eq!(number(&last["streams"][stream], "lost"), 0, "{last}");
    }
}

/// Streams of VDIF, Mark 5B and Mark 4 are correlated on arrival. Settings follow their URLs.
#[test]
fn streams_of_different_formats_are_correlated() {
    let room = Room::new();
    let plan = r#"
        start = "2024-01-01T12:00:00Z"
        duration = 1
        sample_rate = 4e6
        correlation = 0.3
        edv = 1
        channels = 2
        [[station]]
        name = "Ef"
        [[station]]
        name = "Jb"
        format = "mark5b"
        [[station]]
        name = "On"
        format = "mark4"
        fan_out = 2
        modulated = true
    "#;
    crate::sky(&room, plan);
    let inputs = [
        "tcp://127.0.0.1:0#channels=1",
        "tcp://127.0.0.1:0#format=Mark5B-16-2-2&channels=1&name=Jb&year=2024",
        "tcp://127.0.0.1:0#channels=1U&modulated&inverted&name=On",
    ];
    let live = Live::start(&inputs, &crate::channels(64), Duration::from_secs(60));
    let files = ["Ef.vdif", "Jb.m5b", "On.m4"].iter().zip(live.places());
    let senders = files.map(|(file, place)| {
        let source = room.path(&format!("sky/{file}"));
        begin(&SendOptions {
            mtu: None,
            ..sending_of(&source, &format!("tcp://{place}"))
        })
    });
    let _senders: Vec<Sending> = senders.collect();
    let (_, result) = live.end();
    for baseline in result["baselines"].as_array().unwrap() {
        let has = |name: &str| {
            baseline["stations"]
                .as_array()
                .unwrap()
                .contains(&name.into())
        };
        let weight = if has("On") { 0.992 } else { 1.0 };
        crate::near(crate::number(baseline, "/weight"), weight, 0.01);
        crate::near(crate::number(baseline, "/amplitude/corrected"), 0.3, 0.01);
        let phase = if has("On") { std::f64::consts::PI } else { 0.0 };
        crate::near(crate::number(baseline, "/phase_rad").abs(), phase, 0.02);
        assert_eq!(baseline["bands"].as_array().map_or(1, Vec::len), 1);
    }
}

/// Correlates parts of the stream that arrives at an address of this host that no socket has; returns the address, too.
fn share(parts: [&str; 2], options: &CorrelateOptions) -> (Live, String) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let here = socket.local_addr().unwrap();
    drop(socket);
    let inputs = parts.map(|part| format!("udp://{here}{part}"));
    let live = Live::start(&inputs, options, PATIENT);
    let [place] = live.places().try_into().unwrap();
    (live, place)
}

/// Both stations in one stream, frame by frame.
fn shared_stream(room: &Room, plan: &str) -> String {
    let [ef, jb] = ["Ef", "Jb"].map(|station| {
        let station = read_plan(Path::new(plan)).unwrap().station(station);
        let station = station.unwrap();
        let mut frames = vec![0; station.total_frames() as usize * station.frame_length()];
        station.generator().fill(&mut frames);
        (frames, station.frame_length())
    });
    let frames = ef.0.chunks(ef.1).zip(jb.0.chunks(jb.1));
    let both: Vec<u8> = frames.flat_map(|(ef, jb)| [ef, jb].concat()).collect();
    room.write("both.vdif", both)
}

/// Inputs that select their stations from one stream share its socket, and are correlated like the same parts of a recording.
#[test]
fn stations_of_one_stream_share_its_socket() {
    let room = Room::new();
    let file = shared_stream(&room, &short_plan(&room));
    let options = CorrelateOptions {
        channels: Some(64),
        integration: Some(Duration::from_millis(200)),
        sample_rate: Some(Hertz(RATE)),
        rate_window: Some(Hertz(1e-3)),
        ..CorrelateOptions::default()
    };
    let parts = ["#station=Ef&name=Ea", "#station=Jb"];
    let (live, place) = share(parts, &options);
    let sent = sent_by(begin(&sending_of(&file, &format!("udp://{place}"))));
    until("all arrives", || live.arrived(0) >= sent);
    let (_, last) = live.stop();
    let whole = correlated(&parts.map(|part| format!("{file}{part}")), &options);
    for result in [&last, &whole] {
        let names = [0, 1].map(|station| result["stations"][station]["name"].clone());
        assert_eq!(names, ["Ea", "Jb"]);
        for station in [0, 1] {
            let of = |count: &str| number(&result["stations"][station], count);
            assert_eq!((of("frames"), of("foreign")), (10 * INTEGRATIONS as u64, 0));
        }
    }
    assert_all(&last, [sent; 2], "late_frames");
    let snr = |result: &Value| result["baselines"][0]["snr"].as_f64().unwrap();
    assert!(snr(&last) > 50.0 && (snr(&last) / snr(&whole) - 1.0).abs() < 0.05);
}

/// A station that a stream does not contain is refused with those that it contains.
#[test]
fn a_station_that_is_not_in_a_stream_is_refused() {
    let room = Room::new();
    shared_stream(&room, &plan(&room, 60.0, 16e3, 800));
    let options = CorrelateOptions::default();
    let parts = ["#station=Ef", "#station=Cm"];
    let (live, place) = share(parts, &options);
    let bytes = room.read("both.vdif");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(place).unwrap();
    // For a while, since a station may begin later than the others.
    let mut frames = (0..).zip(bytes.chunks(832).cycle());
    until("nobody listens", || {
        let (number, frame) = frames.next().unwrap();
        let datagram = [&vtp::header(number)[..], frame].concat();
        socket.send(&datagram).is_err()
    });
    let error = refused(live.correlating.join());
    assert!(error.contains("Cm") && error.contains("Ef, Jb"), "{error}");
}

/// Wrong inputs end the run before it listens.
#[test]
fn inputs_that_do_not_fit_are_refused_at_once() {
    for (settings, expected) in [
        (
            ["station=Ef&name=Ea", "station=Ef&name=Jb"],
            "udp://127.0.0.1:2630#station=Ef&name=Jb",
        ),
        (
            ["channels=0-3&name=Cm", "channels=4-7&name=Cm"],
            "two stations are named Cm",
        ),
    ] {
        let inputs = settings.map(|settings| {
            let input = format!("udp://127.0.0.1:2630#{settings}");
            let (url, selection) = Selection::split(&input).unwrap();
            (url.parse().unwrap(), selection)
        });
        let opened = correlate_streams(
            &inputs,
            &CorrelateOptions::default(),
            &StreamOptions::default(),
            &Run::silent(),
            Box::new(|_| Ok(())),
        );
        let error = opened.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
