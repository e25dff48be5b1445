//! `cargo xtask bench fx`: cost of correlating, by step and in total, compared with numpy; and the maximum rate at which two streams
//! can be correlated live.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use evlbi_core::deframe::{Deframer, Settings};
use evlbi_core::turn::Turn;
use evlbi_fx::codec::Codec;
use evlbi_fx::unpack::Unpacker;
use evlbi_stream::lane::{Lane, Made, Piece};
use evlbi_testkit::{Room, command};
use evlbi_wire::mark4::{Channels, Tracks};
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::{HEADER_LEN, Header, Shape, StreamKey};
use rustfft::FftPlanner;
use rustfft::num_complex::Complex32;
use serde_json::Value;

use crate::live::programs::Listening;
use crate::stage::{EVLBI, Program, children_cpu};
use crate::table::{Aim, Common, Figure, Scene, Table, median, play};

/// The same correlation in numpy (with scipy's transforms, if available).
const NUMPY: &str = include_str!("fx.py");
/// Decoding of a recording by baseband.
const BASEBAND: &str = include_str!("decode.py");
const STATIONS: [&str; 8] = ["Ef", "Jb", "On", "Mc", "Tr", "Wb", "Nt", "Hh"];
/// Samples per second of the recordings.
const RATE: f64 = 64e6;
/// Length of the recordings in seconds.
const SECONDS: f64 = 3.0;
/// Samples of each station.
const SAMPLES: f64 = RATE * SECONDS;

#[derive(Args)]
pub struct FxArgs {
    /// Runs of each figure
    #[arg(long, default_value_t = 5)]
    runs: usize,
    #[command(flatten)]
    common: Common,
    /// Python with numpy
    #[arg(long, default_value = "target/venv/bin/python")]
    python: PathBuf,
}

pub fn run(args: &FxArgs) -> Result<()> {
    let room = Recordings::new()?;
    let scenes: [(&str, Scene<Recordings, FxArgs>); 6] = [
        ("steps", steps),
        ("formats", formats),
        ("turn", turn),
        ("whole", whole),
        ("numpy", numpy),
        ("live", live),
    ];
    play("fx", &scenes, &args.common, String::new, &room, args)
}

/// Recordings of eight stations, removed on drop.
struct Recordings(Room);

impl Recordings {
    fn new() -> Result<Recordings> {
        let room = Recordings(Room::new());
        eprintln!("making the recordings of {} stations", STATIONS.len());
        room.make("plan.toml", &plan(&STATIONS, RATE, SECONDS))?;
        Ok(room)
    }

    /// Makes the recordings of a plan, which is kept under a name.
    fn make(&self, name: &str, plan: &str) -> Result<()> {
        std::fs::write(self.0.path(name), plan)?;
        let mut sky = command(EVLBI);
        sky.args(["sky", &self.0.path(name), "--out"]);
        sky.arg(self.0.folder());
        Program::start("evlbi sky", &mut sky)?.finish()?;
        Ok(())
    }

    fn file(&self, station: &str) -> String {
        self.0.path(&format!("{station}.vdif"))
    }

    /// Returns the CPU time of `evlbi correlate` for the first `stations`, in seconds.
    fn correlate(&self, stations: usize, options: &[&str]) -> Result<f64> {
        let files = STATIONS.iter().take(stations);
        let files: Vec<String> = files.map(|station| self.file(station)).collect();
        correlate(&files, options)
    }
}

/// Returns a plan of these stations.
fn plan(stations: &[&str], rate: f64, seconds: f64) -> String {
    let mut plan = format!(
        "start = \"2024-01-01T00:00:00Z\"\nduration = {seconds:.3}\nsample_rate = {rate:.0}.0\nedv = 1\n"
    );
    for station in stations {
        plan += &format!("[[station]]\nname = \"{station}\"\n");
    }
    plan
}

/// Returns the CPU time of `evlbi correlate` for these recordings, in seconds.
fn correlate(files: &[String], options: &[&str]) -> Result<f64> {
    let before = children_cpu();
    let mut correlate = command(EVLBI);
    correlate.arg("correlate").args(files);
    correlate.args(["--threads", "1"]).args(options);
    Program::start("evlbi correlate", &mut correlate)?.finish()?;
    Ok(children_cpu() - before)
}

/// Returns the first line that a Python program prints; `None` if it fails.
fn printed(python: &Path, program: &str) -> Option<String> {
    let output = Command::new(python).args(["-c", program]).output().ok()?;
    let text = output.status.success().then_some(output.stdout)?;
    Some(String::from_utf8_lossy(&text).trim().to_owned())
}

/// Returns the time of `work` per sample, in nanoseconds: the median of some runs.
fn per_sample(runs: usize, samples: usize, mut work: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..runs.max(3))
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64() * 1e9 / samples as f64
        })
        .collect();
    median(&mut times)
}

/// Measures decoding and transforms separately; the rest follows from the growth of the total cost.
fn steps(room: &Recordings, args: &FxArgs, table: &mut Table) -> Result<()> {
    const DECODED: usize = 1 << 22;
    const UNIT: &str = "ns per sample";
    let bytes: Vec<u8> = (0..DECODED / 4)
        .map(|n: usize| ((n * 97) >> 3) as u8)
        .collect();
    let mut values = vec![0.0; 2048];
    let codec = Codec::vdif(2)?;
    let decode = per_sample(args.runs, DECODED, || {
        for block in bytes.chunks_exact(512) {
            black_box(codec.decode(black_box(block), &mut values));
        }
    });
    table.add(Figure::new("decoding 2 bits", decode, UNIT).aim(Aim::AtMost(0.08)));
    for (what, points, aim) in [
        (
            "transform of real samples in pairs, 1024 points",
            1024,
            0.79,
        ),
        ("transform of rotated samples, 2048 points", 2048, 0.95),
    ] {
        let plan = FftPlanner::<f32>::new().plan_fft_forward(points);
        let mut bins = vec![Complex32::new(1.0, 0.5); points];
        let mut scratch = vec![Complex32::default(); plan.get_inplace_scratch_len()];
        let samples = 2048 * (DECODED / 2048);
        let time = per_sample(args.runs, samples, || {
            for _ in 0..DECODED / 2048 {
                plan.process_with_scratch(black_box(&mut bins), &mut scratch);
            }
        });
        table.add(Figure::new(what, time, UNIT).aim(Aim::AtMost(aim)));
    }
    for (what, options) in KINDS {
        let cost = |stations: usize| -> Result<f64> {
            let mut times = (0..args.runs)
                .map(|_| room.correlate(stations, options))
                .collect::<Result<Vec<f64>>>()?;
            Ok(median(&mut times) * 1e9 / SAMPLES)
        };
        // The cost of n stations is n F + n (n - 1) / 2 X.
        let (two, eight) = (cost(2)?, cost(8)?);
        let product = (eight - 4.0 * two) / 24.0;
        let station = (two - product) / 2.0;
        table.add(Figure::new(
            format!("all of a station, {what}"),
            station,
            UNIT,
        ));
        let baseline = Figure::new(format!("a baseline, {what}"), product, UNIT);
        table.add(baseline.aim(Aim::AtMost(0.09)));
    }
    Ok(())
}

/// Measures decoding of Mark 4 and of VDIF, each next to baseband's, and correlation of the same samples recorded in both.
fn formats(room: &Recordings, args: &FxArgs, table: &mut Table) -> Result<()> {
    const CHANNELS: usize = 8;
    const BITS: usize = 2;
    const FAN_OUT: usize = 4;
    /// Samples of each channel per second and in all.
    const RATE: u64 = 32_000_000;
    const FRAMES: u32 = 400;
    /// Formats, the ending of their files, and two stations each.
    const KINDS: [(&str, &str, [&str; 2]); 2] = [
        ("mark4", "m4", ["Ma", "Mb"]),
        ("vdif", "vdif", ["Va", "Vb"]),
    ];
    let tracks = Tracks::new(CHANNELS * BITS * FAN_OUT).context("no such tracks")?;
    let channels = Channels::usual(tracks, BITS, FAN_OUT)?;
    let rate = FrameRate::new(FRAMES).context("no such frame rate")?;
    let on_tracks = Unpacker::mark4(&channels, false, rate)?;
    let plain = Unpacker::plain(*on_tracks.layout());
    let mut plan = format!(
        "start = \"2024-01-01T00:00:00Z\"\nduration = 1.0\nsample_rate = {RATE}.0\nchannels = {CHANNELS}\nedv = 1\n"
    );
    for (kind, _, stations) in KINDS {
        for station in stations {
            plan += &format!(
                "[[station]]\nname = \"{station}\"\nformat = \"{kind}\"\nfan_out = {FAN_OUT}\n"
            );
        }
    }
    room.make("formats.toml", &plan)?;
    let files = KINDS.map(|(_, ending, stations)| {
        stations.map(|station| room.0.path(&format!("{station}.{ending}")))
    });
    let bytes: Vec<u8> = (0..tracks.payload_length())
        .map(|n| ((n * 97) >> 3) as u8)
        .collect();
    let mut decoded = [Vec::new(), Vec::new()];
    let codec = plain.layout().codec;
    let mut values = vec![0.0; 2048];
    let mut payload = Vec::new();
    for _ in 0..args.runs {
        for (times, unpacker) in decoded.iter_mut().zip([&on_tracks, &plain]) {
            times.push(per_sample(
                3,
                50 * tracks.payload_length() * 8 / BITS,
                || {
                    for _ in 0..50 {
                        unpacker.unpack(black_box(&bytes), &mut payload);
                        for block in payload.chunks_exact(512) {
                            black_box(codec.decode(black_box(block), &mut values));
                        }
                    }
                },
            ));
        }
    }
    let decoded = decoded.map(|mut times| median(&mut times));
    let version = printed(&args.python, "import baseband; print(baseband.__version__)");
    match &version {
        Some(version) => table.version("baseband", version),
        None => table.misses("baseband (cargo xtask setup, or --python PYTHON)"),
    }
    for (((kind, ..), ours), files) in KINDS.iter().zip(decoded).zip(&files) {
        let mut figure = Figure::new(format!("decoding {kind}"), ours, "ns per sample");
        if version.is_some() {
            let rate = RATE.to_string();
            let read = [BASEBAND, kind, &files[0], &rate];
            let mut python = command(&args.python);
            let theirs = Program::start("baseband", python.arg("-c").args(read))?.finish()?;
            figure = figure.beside("baseband", theirs.trim().parse()?);
        }
        table.add(figure);
    }
    let [mark4, vdif] = decoded;
    let figure = Figure::new("decoding mark4, of the time for vdif", mark4 / vdif, "");
    table.add(figure.aim(Aim::AtMost(3.0)));
    let mut costs = [Vec::new(), Vec::new()];
    for _ in 0..args.runs {
        for (costs, files) in costs.iter_mut().zip(&files) {
            costs.push(correlate(files, &[])?);
        }
    }
    let rates = costs
        .map(|mut costs| (RATE as usize * CHANNELS * BITS * 2) as f64 / 1e9 / median(&mut costs));
    for ((kind, ..), rate) in KINDS.iter().zip(rates) {
        let what = format!("2 stations of {CHANNELS} channels, {kind}");
        table.add(Figure::new(what, rate, "Gbit/s a processor"));
    }
    let [mark4, vdif] = rates;
    let figure = Figure::new("correlating mark4, of the rate for vdif", mark4 / vdif, "");
    table.add(figure.aim(Aim::AtLeast(0.6)));
    Ok(())
}

/// Length of the payloads that are turned.
const PAYLOAD: usize = 8192;

/// Measures the turn of samples alone, and [`turn_frames`].
fn turn(_: &Recordings, args: &FxArgs, table: &mut Table) -> Result<()> {
    const FRAMES: usize = 1000;
    for (bits, channels) in [(2, 4), (2, 8), (2, 16), (1, 16), (8, 16), (2, 64)] {
        let turn = Turn::new(bits, channels).context("cannot be turned")?;
        let from: Vec<u8> = (0..PAYLOAD).map(|n| ((n * 97) >> 3) as u8).collect();
        let mut to = vec![0; PAYLOAD];
        let mut rate = |work: &dyn Fn(&[u8], &mut [u8])| {
            let time = per_sample(args.runs, PAYLOAD * FRAMES, || {
                for _ in 0..FRAMES {
                    work(black_box(&from), black_box(&mut to));
                }
            });
            8.0 / time
        };
        for (what, rate) in [
            ("split", rate(&|from, to| turn.split(from, to))),
            ("join", rate(&|from, to| turn.join(from, to))),
        ] {
            let what = format!("{what}, {channels} channels of {bits} bits");
            let figure = Figure::new(what, rate, "Gbit/s a processor");
            table.add(match (bits, channels) {
                (2, 16) => figure.aim(Aim::AtLeast(8.0)),
                _ => figure,
            });
        }
    }
    turn_frames(args, table)
}

/// Measures splitting a recording of 16 channels of 2 bits into one stream per channel, and joining these, from memory to memory: with the
/// search for frames and fill, times, and headers.
fn turn_frames(args: &FxArgs, table: &mut Table) -> Result<()> {
    const CHANNELS: usize = 16;
    const FRAMES: usize = 8000;
    let rate = FrameRate::new(FRAMES as u32).context("no frames")?;
    let shape = Shape {
        frame_length: HEADER_LEN + PAYLOAD,
        log2_channels: CHANNELS.ilog2() as u8,
        bits: 2,
        complex: false,
        legacy: false,
    };
    let mut header = Header::new(shape, StreamKey::default());
    let mut recording: Vec<u8> = (0..FRAMES * shape.frame_length)
        .map(|n| ((n * 97) >> 3) as u8)
        .collect();
    for (number, frame) in (0..).zip(recording.chunks_exact_mut(shape.frame_length)) {
        header.set_time(FrameTime {
            second: 1_700_000_000,
            frame: number,
        })?;
        header.emit(frame);
    }
    let settings = Settings {
        frame_rate: Some(rate),
        ..Settings::default()
    };
    let mut streams = vec![Vec::new(); CHANNELS];
    let split = |streams: &mut [Vec<u8>]| -> Result<()> {
        streams.iter_mut().for_each(Vec::clear);
        let mut lane = Lane::split(StreamKey::default(), shape, &[], None, true)?;
        lane.set_rate(rate)?;
        Deframer::new(settings.clone()).walk(&recording, true, &mut |chunk| {
            for frame in chunk.frames {
                if let Some(piece) = Piece::read(frame, chunk.with_next, None) {
                    lane.take(0, &piece);
                }
                lane.advance(&mut |made| put(&made, &mut streams[usize::from(made.key.thread)]));
            }
        });
        Ok(())
    };
    let mut measure = |what: &str, work: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        let mut done = Ok(());
        let time = per_sample(args.runs, recording.len(), || {
            if let Err(error) = work() {
                done = Err(error);
            }
        });
        let what = format!("{what} of frames, 16 channels of 2 bits");
        let figure = Figure::new(what, 8.0 / time, "Gbit/s a processor");
        table.add(figure.aim(Aim::AtLeast(8.0)));
        done
    };
    measure("split", &mut || split(&mut streams))?;
    let keys: Vec<StreamKey> = (0..CHANNELS as u16)
        .map(|thread| StreamKey {
            thread,
            ..StreamKey::default()
        })
        .collect();
    let one = Shape {
        frame_length: HEADER_LEN + PAYLOAD / CHANNELS,
        log2_channels: 0,
        ..shape
    };
    let mut joined = Vec::new();
    measure("join", &mut || {
        joined.clear();
        let mut lane = Lane::join(&keys, one, None)?;
        lane.set_rate(rate)?;
        let mut deframers = vec![Deframer::new(settings.clone()); CHANNELS];
        let block = 64 * one.frame_length;
        for begin in (0..streams[0].len()).step_by(block) {
            for (input, deframer) in deframers.iter_mut().enumerate() {
                let bytes = &streams[input][begin..begin + block];
                deframer.walk(bytes, true, &mut |chunk| {
                    for frame in chunk.frames {
                        if let Some(piece) = Piece::read(frame, chunk.with_next, None) {
                            lane.take(input, &piece);
                        }
                    }
                });
            }
            lane.advance(&mut |made| put(&made, &mut joined));
        }
        Ok(())
    })?;
    anyhow::ensure!(joined == recording, "what was split and joined differs");
    Ok(())
}

/// Appends a frame to a stream.
fn put(made: &Made<'_>, stream: &mut Vec<u8>) {
    if let Some((header, payload)) = &made.frame {
        stream.extend_from_slice(&header.to_bytes()[..header.len()]);
        stream.extend_from_slice(payload);
    }
}

/// Kinds of fringe rotation, and their options.
const KINDS: [(&str, &[&str]); 2] = [
    ("blocks rotated", &[]),
    ("samples rotated", &["--freq", "4.9G", "--delay", "0,1e-6"]),
];

/// Measures eight stations from files on one thread, and the growth of the cost.
fn whole(room: &Recordings, args: &FxArgs, table: &mut Table) -> Result<()> {
    for (what, options) in KINDS {
        let mut rates = (0..args.runs)
            .map(|_| Ok(8.0 * SAMPLES * 2.0 / room.correlate(8, options)? / 1e9))
            .collect::<Result<Vec<f64>>>()?;
        let what = format!("8 stations, {what}");
        let rate = Figure::new(what, median(&mut rates), "Gbit/s a processor");
        table.add(rate.aim(Aim::AtLeast(0.8)));
    }
    let each = "ns per sample and station";
    for stations in [2, 4, 8] {
        let time = room.correlate(stations, &[])? * 1e9 / SAMPLES / stations as f64;
        table.add(Figure::new(
            format!("{stations} stations, 1024 channels"),
            time,
            each,
        ));
    }
    for channels in ["64", "256", "1024", "4096", "16384"] {
        let time = room.correlate(4, &["--channels", channels])? * 1e9 / SAMPLES / 4.0;
        table.add(Figure::new(
            format!("4 stations, {channels} channels"),
            time,
            each,
        ));
    }
    Ok(())
}

/// Measures the same recordings, here and in numpy, in turn: the cost of stations, and that of the baselines among more of them.
fn numpy(room: &Recordings, args: &FxArgs, table: &mut Table) -> Result<()> {
    const SECONDS: f64 = 0.5;
    /// Name, stations, options, and numpy's: channels, turns per sample, samples.
    type Case = (
        &'static str,
        usize,
        &'static [&'static str],
        [&'static str; 3],
    );
    const CASES: [Case; 6] = [
        ("64 channels", 2, &["--channels", "64"], ["64", "0", ALL]),
        ("1024 channels", 2, &[], ["1024", "0", ALL]),
        (
            "16384 channels",
            2,
            &["--channels", "16384"],
            ["16384", "0", ALL],
        ),
        (
            "1024 channels, samples rotated",
            2,
            KINDS[1].1,
            ["1024", "7.65625e-5", ALL],
        ),
        ("a baseline of 8 stations", 8, &[], ["1024", "0", SOME]),
        ("a baseline of 16 stations", 16, &[], ["1024", "0", SOME]),
    ];
    const ALL: &str = "16777216";
    const SOME: &str = "4194304";
    const UNIT: &str = "ns per sample";
    let version = printed(&args.python, "import numpy; print(numpy.__version__)");
    match &version {
        Some(version) => table.version("numpy", version),
        None => table.misses("numpy (cargo xtask setup, or --python PYTHON)"),
    }
    let names: Vec<String> = (0..16).map(|station| format!("S{station:x}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    room.make("numpy.toml", &plan(&names, RATE, SECONDS))?;
    let files: Vec<String> = names.iter().map(|name| room.file(name)).collect();
    // Each two stations have a band in common, but with no others.
    let pairs = room.0.path("pairs.toml");
    let rows = names.iter().enumerate().map(|(place, name)| {
        let megahertz = 100 * (1 + place / 2);
        format!("[[channel]]\nstation = \"{name}\"\nchannel = 0\nfrequency_mhz = {megahertz}.0\nsideband = \"U\"\npolarisation = \"R\"\n")
    });
    std::fs::write(&pairs, rows.collect::<String>())?;
    let ours = |(_, stations, options, _): &Case, more: &[&str]| -> Result<f64> {
        let options = [*options, more].concat();
        Ok(correlate(&files[..*stations], &options)? * 1e9 / RATE / SECONDS)
    };
    let theirs = |(_, stations, _, options): &Case, which: &str| -> Result<f64> {
        let mut python = command(&args.python);
        python.args(["-c", NUMPY]).args(options).arg(which);
        python.args(&files[..*stations]);
        python.envs([("OMP_NUM_THREADS", "1"), ("OPENBLAS_NUM_THREADS", "1")]);
        let text = Program::start("numpy", &mut python)?.finish()?;
        let (time, _) = text.split_once(' ').context("no time from numpy")?;
        Ok(time.parse()?)
    };
    let mut costs = CASES.map(|_| [Vec::new(), Vec::new()]);
    for _ in 0..args.runs {
        for (case, costs) in CASES.iter().zip(&mut costs) {
            let stations = case.1;
            // The part that grows with baselines: without that of half as many baselines as stations.
            let each = |all: f64, pairs: Option<f64>| match pairs {
                Some(pairs) => (all - pairs) / (stations * (stations - 2) / 2) as f64,
                None => all / stations as f64,
            };
            let few = stations > 2;
            let only = few.then(|| ours(case, &["--channel-table", &pairs]));
            costs[0].push(each(ours(case, &[])?, only.transpose()?));
            if version.is_some() {
                let only = few.then(|| theirs(case, "pairs"));
                costs[1].push(each(theirs(case, "all")?, only.transpose()?));
            }
        }
    }
    let costs = costs.map(|costs| costs.map(|mut costs| median(&mut costs)));
    for ((what, ..), [ours, theirs]) in CASES.iter().zip(costs) {
        let figure = Figure::new(*what, ours, UNIT);
        table.add(match version {
            Some(_) => figure.beside("numpy", theirs),
            None => figure,
        });
    }
    for (case, aim) in [(0, 1.3), (2, 1.5)] {
        let what = format!("{}, of the cost of 1024", CASES[case].0);
        let figure = Figure::new(what, costs[case][0] / costs[1][0], "");
        table.add(figure.aim(Aim::AtMost(aim)));
    }
    Ok(())
}

/// Sends and correlates two streams on this machine, at increasing rates until something is lost or late.
fn live(room: &Recordings, _: &FxArgs, table: &mut Table) -> Result<()> {
    let mut highest = 0;
    for megabits in [128u32, 256, 384, 512, 576, 640, 704, 768] {
        if !stream(room, megabits)? {
            eprintln!("    {megabits} Mbit/s: data lost, late or slower than asked");
            break;
        }
        highest = megabits;
    }
    let what = "each of two streams correlated as they come";
    let figure = Figure::new(what, f64::from(highest), "Mbit/s");
    table.add(figure.aim(Aim::AtLeast(512.0)));
    Ok(())
}

/// Returns whether two streams of this rate are correlated without anything lost or late.
fn stream(room: &Recordings, megabits: u32) -> Result<bool> {
    const SECONDS: f64 = 8.0;
    let plan = plan(&STATIONS, f64::from(megabits) * 1e6 / 2.0, SECONDS);
    std::fs::write(room.0.path("live.toml"), plan)?;
    let mut correlator = command(EVLBI);
    correlator.arg("correlate").args(["udp://127.0.0.1:0"; 2]);
    correlator.args(["--live", "--json", "--idle", "3s", "--wait", "3s"]);
    let correlator = Listening::start(&mut correlator, 2)?;
    let send = |stream: usize| {
        let (station, to) = (STATIONS[stream], correlator.addresses[stream]);
        let source = format!("sky:{}/{station}", room.0.path("live.toml"));
        let mut send = command(EVLBI);
        send.args(["send", &source, "--to", &format!("udp://{to}")]);
        send.args(["--mtu", "9000", "--json"]);
        Program::start("evlbi send", &mut send)
    };
    let senders = [send(0)?, send(1)?];
    let mut sent = 0;
    let mut slipped = false;
    for sender in senders {
        let report = sender.json()?;
        sent += report["sent"].as_u64().unwrap_or(0);
        slipped |= report["slips"]["count"] != 0;
    }
    let text = correlator.finish()?;
    let last: Value = serde_json::from_str(text.lines().last().unwrap_or("null"))?;
    let streams = last["streams"]
        .as_array()
        .context("no streams in the result")?;
    let sum = |name: &str| {
        streams
            .iter()
            .filter_map(|stream| stream[name].as_u64())
            .sum::<u64>()
    };
    Ok(!slipped
        && sum("unique") == sent
        && sum("lost") + sum("late_frames") + sum("ring_full") == 0)
}
