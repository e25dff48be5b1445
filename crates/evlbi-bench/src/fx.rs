//! `cargo xtask bench fx`: what correlating costs, step by step and as a whole, beside the same in numpy; and the
//! highest rate that two streams can be correlated at as they come.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use evlbi_fx::codec::Codec;
use rustfft::FftPlanner;
use rustfft::num_complex::Complex32;
use serde_json::Value;
use tempfile::TempDir;

use super::{Scene, median, play, verdict};

/// The same correlation of two stations in numpy (and scipy's transforms, where it is there).
const NUMPY: &str = include_str!("fx.py");
const STATIONS: [&str; 8] = ["Ef", "Jb", "On", "Mc", "Tr", "Wb", "Nt", "Hh"];
/// Samples a second of the recordings,
const RATE: f64 = 64e6;
/// their length,
const SECONDS: f64 = 3.0;
/// and how many there are of each station.
const SAMPLES: f64 = RATE * SECONDS;
/// What the sum of the steps costs on one thread of a processor of 2.6 GHz, with rotation in time.
const LIMIT: f64 = 1.27;

#[derive(Args)]
pub struct FxArgs {
    /// Runs of each figure
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Only the scenes whose names contain this
    #[arg(long)]
    only: Option<String>,
    /// Python with numpy
    #[arg(long, default_value = "target/venv/bin/python")]
    python: PathBuf,
}

pub fn run(args: &FxArgs) -> Result<()> {
    super::stage::build()?;
    let room = Room::new()?;
    let scenes: [(&str, Scene<Room, FxArgs>); 4] = [
        ("steps", steps),
        ("whole", whole),
        ("numpy", numpy),
        ("live", live),
    ];
    play(&scenes, args.only.as_deref(), String::new, &room, args)
}

/// Recordings of eight stations, gone at the end.
struct Room(TempDir);

impl Room {
    fn new() -> Result<Room> {
        let room = Room(tempfile::tempdir()?);
        room.plan("plan.toml", RATE, SECONDS)?;
        println!("making the recordings of {} stations", STATIONS.len());
        let status = evlbi()
            .args(["sky", "plan.toml", "--out", "."])
            .current_dir(&room.0)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        if !status.success() {
            bail!("evlbi sky failed");
        }
        Ok(room)
    }

    fn plan(&self, name: &str, rate: f64, seconds: f64) -> Result<()> {
        let mut plan = format!(
            "start = \"2024-01-01T00:00:00Z\"\nduration = {seconds:.3}\nsample_rate = {rate:.0}.0\nedv = 1\n"
        );
        for station in STATIONS {
            plan += &format!("[[station]]\nname = \"{station}\"\n");
        }
        Ok(std::fs::write(self.0.path().join(name), plan)?)
    }

    fn file(&self, station: &str) -> PathBuf {
        self.0.path().join(format!("{station}.vdif"))
    }

    /// Processor seconds that `evlbi correlate` takes for the first `stations`.
    fn correlate(&self, stations: usize, options: &[&str]) -> Result<f64> {
        let before = children_seconds();
        let status = evlbi()
            .arg("correlate")
            .args(
                STATIONS
                    .iter()
                    .take(stations)
                    .map(|station| self.file(station)),
            )
            .args(["--threads", "1"])
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        if !status.success() {
            bail!("evlbi correlate failed");
        }
        Ok(children_seconds() - before)
    }
}

fn evlbi() -> Command {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/evlbi");
    Command::new(target)
}

/// User and system time of all children that have ended, to a hundredth of a second (proc(5), fields 16 and 17).
fn children_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name, which may hold anything, the fields begin with the third.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(13).take(2);
    ticks
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum::<f64>()
        / 100.0
}

/// Nanoseconds that `work` takes for each of `samples`, median of some runs.
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

/// Decoding and transforms by themselves; the rest from how the whole grows.
fn steps(room: &Room, args: &FxArgs) -> Result<()> {
    const DECODED: usize = 1 << 22;
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
    println!("decode 2 bits                          {decode:6.3} ns per sample");
    for (what, points) in [
        ("pairs of real samples, 1024 points", 1024),
        ("rotated samples, 2048 points", 2048),
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
        println!("transform of {what:<34}{time:6.3} ns per sample");
    }
    let rotated = ["--freq", "4.9G", "--delay", "0,1e-6"];
    for (what, options) in [
        ("whole blocks rotated", &[][..]),
        ("samples rotated", &rotated[..]),
    ] {
        let cost = |stations: usize| -> Result<f64> {
            let mut times = (0..args.runs)
                .map(|_| room.correlate(stations, options))
                .collect::<Result<Vec<f64>>>()?;
            Ok(median(&mut times) * 1e9 / SAMPLES)
        };
        // n stations cost n F + n (n - 1) / 2 X.
        let (two, eight) = (cost(2)?, cost(8)?);
        let product = (eight - 4.0 * two) / 24.0;
        let station = (two - product) / 2.0;
        println!(
            "{what}: {station:.3} ns per sample and station, reading, searching and autocorrelation included; {product:.3} ns per sample and baseline"
        );
    }
    println!("limit: {LIMIT} ns per sample and station");
    Ok(())
}

/// Eight stations from files on one thread, and how the cost grows.
fn whole(room: &Room, args: &FxArgs) -> Result<()> {
    let rotated = ["--freq", "4.9G", "--delay", "0,1e-6"];
    for (what, options) in [
        ("whole blocks rotated", &[][..]),
        ("samples rotated", &rotated[..]),
    ] {
        let mut rates = (0..args.runs)
            .map(|_| Ok(8.0 * SAMPLES * 2.0 / room.correlate(8, options)? / 1e9))
            .collect::<Result<Vec<f64>>>()?;
        let rate = median(&mut rates);
        println!(
            "8 stations, {what}: {rate:.2} Gbit/s for each processor (aim 0.8: {})",
            verdict(rate >= 0.8)
        );
    }
    for stations in [2, 4, 8] {
        let time = room.correlate(stations, &[])?;
        println!(
            "{stations} stations, 1024 channels: {:.2} ns per sample and station",
            time * 1e9 / SAMPLES / stations as f64
        );
    }
    for channels in ["64", "256", "1024", "4096", "16384"] {
        let time = room.correlate(4, &["--channels", channels])?;
        println!(
            "4 stations, {channels} channels: {:.2} ns per sample and station",
            time * 1e9 / SAMPLES / 4.0
        );
    }
    Ok(())
}

/// The same two recordings, here and in numpy, in turn.
fn numpy(room: &Room, args: &FxArgs) -> Result<()> {
    if !args.python.is_file() {
        println!(
            "skipped: no Python at {}; name one with --python",
            args.python.display()
        );
        return Ok(());
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let mut amplitude = 0.0;
    for _ in 0..args.runs {
        ours.push(room.correlate(2, &[])?);
        let before = children_seconds();
        let output = Command::new(&args.python)
            .args(["-c", NUMPY])
            .args([room.file("Ef"), room.file("Jb")])
            .env("OMP_NUM_THREADS", "1")
            .env("OPENBLAS_NUM_THREADS", "1")
            .output()?;
        if !output.status.success() {
            println!(
                "skipped: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
            return Ok(());
        }
        theirs.push(children_seconds() - before);
        amplitude = String::from_utf8_lossy(&output.stdout).trim().parse()?;
    }
    let (ours, theirs) = (median(&mut ours), median(&mut theirs));
    println!(
        "2 stations of 64 Ms/s for {SECONDS} s: {ours:.2} s of processor time, numpy {theirs:.2} s: {:.1} times as fast (numpy's amplitude {amplitude:.5})",
        theirs / ours
    );
    Ok(())
}

/// Two streams are sent and correlated on this machine, at rising rates until something is lost or late.
fn live(room: &Room, _: &FxArgs) -> Result<()> {
    let mut highest = None;
    for megabits in [128u32, 256, 384, 512, 576, 640, 704, 768] {
        let clean = stream(room, megabits)?;
        println!(
            "two stations of {megabits} Mbit/s as they come: {}",
            if clean {
                "nothing lost or late"
            } else {
                "data lost, late or slower than asked"
            }
        );
        if !clean {
            break;
        }
        highest = Some(megabits);
    }
    println!(
        "highest rate: {} Mbit/s for each of two stations (aim 512: {})",
        highest.unwrap_or(0),
        verdict(highest >= Some(512))
    );
    Ok(())
}

fn stream(room: &Room, megabits: u32) -> Result<bool> {
    const SECONDS: f64 = 8.0;
    room.plan("live.toml", f64::from(megabits) * 1e6 / 2.0, SECONDS)?;
    let ports = [47_630, 47_631];
    let urls = ports.map(|port| format!("udp://127.0.0.1:{port}"));
    let correlator = evlbi()
        .args([
            "correlate",
            &urls[0],
            &urls[1],
            "--live",
            "--json",
            "--idle",
            "3s",
            "--wait",
            "3s",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    std::thread::sleep(Duration::from_millis(1500));
    let send = |station: &str, url: &str| -> Result<Child> {
        let source = format!(
            "sky:{}/{station}",
            room.0.path().join("live.toml").display()
        );
        Ok(evlbi()
            .args(["send", &source, "--to", url, "--mtu", "9000", "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?)
    };
    let senders = [send(STATIONS[0], &urls[0])?, send(STATIONS[1], &urls[1])?];
    let mut sent = 0;
    let mut slipped = false;
    for sender in senders {
        let report: Value = serde_json::from_slice(&sender.wait_with_output()?.stdout)?;
        sent += report["sent"].as_u64().unwrap_or(0);
        slipped |= report["slips"]["count"] != 0;
    }
    let output = correlator.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
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
