//! `drop`, `inspect` and `sky` on files, run as a user runs them.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::validity::Gaps;
use evlbi_wire::vdif::{Header, Shape, StationId, StreamKey};
use evlbi_wire::{fill, mark5b};
use serde_json::Value;
use tempfile::TempDir;

const FRAME: usize = 1032;
const HEADER: usize = 32;
const RATE: u32 = 50;
/// 2024-05-01T12:00:00Z.
const START: i64 = 1_714_564_800;

fn evlbi(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_evlbi"))
        .args(arguments)
        .output()
        .unwrap()
}

/// The result as JSON, which is all that may be on standard output.
fn json(arguments: &[&str]) -> Value {
    let output = evlbi(&[arguments, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What it says when it fails.
fn failure(arguments: &[&str]) -> String {
    let output = evlbi(arguments);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

struct Room(TempDir);

impl Room {
    fn new() -> Room {
        Room(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_string()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    fn gaps(&self, name: &str) -> Gaps {
        serde_json::from_slice(&self.read(name)).unwrap()
    }
}

fn key(thread: u16) -> StreamKey {
    StreamKey {
        station: StationId::from_code(*b"Ef"),
        thread,
    }
}

/// Frame number `number` of a thread since the start, with noise in it.
fn frame(number: i64, thread: u16, invalid: bool) -> Vec<u8> {
    let shape = Shape {
        frame_length: FRAME,
        log2_channels: 0,
        bits: 2,
        complex: false,
        legacy: false,
    };
    let mut header = Header::new(shape, key(thread));
    header.set_time(time(number)).unwrap();
    header.set_invalid(invalid);
    let mut bytes = noise(FRAME, number as u64 * 8 + u64::from(thread));
    header.emit(&mut bytes);
    bytes
}

fn time(number: i64) -> FrameTime {
    let rate = FrameRate::new(RATE).unwrap();
    let start = FrameTime {
        second: START,
        frame: 0,
    };
    FrameTime::from_index(start.index(rate) + number, rate)
}

fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Three seconds of a thread.
fn recording() -> Vec<u8> {
    (0..150)
        .flat_map(|number| frame(number, 0, false))
        .collect()
}

fn frame_range(number: usize) -> Range<usize> {
    number * FRAME..(number + 1) * FRAME
}

#[test]
fn every_tenth_frame_becomes_invalid_and_nothing_else_changes() {
    let room = Room::new();
    let before = recording();
    let (input, output) = (room.write("in.vdif", &before), room.path("out.vdif"));
    let report = json(&["drop", &input, &output, "--shed", "every:10"]);
    assert_eq!(report["schema"], "evlbi.drop/1");
    assert_eq!(report["frames"], 150);
    assert_eq!(report["frames_out"], 150);
    assert_eq!(report["shedding"]["shed"], 15);
    assert_eq!(report["shedding"]["fraction"], 0.1);
    let after = room.read("out.vdif");
    assert_eq!(after.len(), before.len());
    for number in 0..150 {
        let (old, new) = (&before[frame_range(number)], &after[frame_range(number)]);
        if number % 10 != 9 {
            assert_eq!(old, new, "frame {number}");
            continue;
        }
        let mut header = Header::parse(old).unwrap();
        header.set_invalid(true);
        assert_eq!(Header::parse(new).unwrap(), header);
        assert!(fill::is_fill(&new[HEADER..]));
    }
    let gaps = room.gaps("out.vdif.gaps.json");
    assert_eq!(report["gaps"], 15);
    assert_eq!(gaps.file.as_deref(), Some("out.vdif"));
    assert_eq!(gaps.frame_rate.map(FrameRate::get), Some(RATE));
    assert_eq!(gaps.time.len(), 15);
    for (nth, gap) in gaps.time.iter().enumerate() {
        let number = 10 * nth + 9;
        assert_eq!(gap.key, key(0));
        assert_eq!((gap.start, gap.frames), (time(number as i64), 1));
        assert_eq!(gap.first_byte, Some((number * FRAME) as u64));
        assert_eq!(gap.cause.to_string(), "shed");
    }
}

#[test]
fn fractions_are_exact_and_follow_from_the_seed() {
    let room = Room::new();
    let before: Vec<u8> = (0..20_000)
        .flat_map(|number| frame(number, 0, false))
        .collect();
    let input = room.write("in.vdif", &before);
    let run = |output: &str, seed: &str| {
        let output = room.path(output);
        let arguments = ["--shed", "bunch:5%", "--replace", "random", "--seed", seed];
        json(&[&["drop", &input, &output], &arguments[..]].concat())
    };
    let report = run("a.vdif", "7");
    let shed = report["shedding"]["shed"].as_u64().unwrap();
    assert_eq!(shed, report["frames_touched"].as_u64().unwrap());
    // 20 MB, several blocks. What is shed ahead of its kept frames is a bunch of ten at most.
    assert!((1000..=1010).contains(&shed), "{shed}");
    run("b.vdif", "7");
    run("c.vdif", "8");
    assert_eq!(room.read("a.vdif"), room.read("b.vdif"));
    assert_ne!(room.read("a.vdif"), room.read("c.vdif"));
}

#[test]
fn what_is_cut_out_is_gone_and_the_rest_stays() {
    let room = Room::new();
    let before = recording();
    let (input, output) = (room.write("in.vdif", &before), room.path("out.vdif"));
    let arguments = ["--shed", "every:3", "--replace", "nothing"];
    let report = json(&[&["drop", &input, &output], &arguments[..]].concat());
    let kept: Vec<u8> = (0..150)
        .filter(|number| number % 3 != 2)
        .flat_map(|number| before[frame_range(number)].to_vec())
        .collect();
    assert_eq!(report["frames_out"], 100);
    assert_eq!(report["bytes_out"], kept.len() as u64);
    assert!(room.read("out.vdif") == kept);
    let gaps = room.gaps("out.vdif.gaps.json");
    assert!(gaps.time.iter().all(|gap| gap.first_byte.is_none()));

    let found = json(&["inspect", &output]);
    assert_eq!(found["frames"], 100);
    // The last one is missing where nothing shows it.
    assert_eq!(found["missing_frames"], 49);
    assert_eq!(found["gaps_total"], 49);
    assert_eq!(found["gaps"][0]["start"]["utc"], "2024-05-01T12:00:00.04Z");
}

#[test]
fn whole_threads_merge_to_one_gap() {
    let room = Room::new();
    let before: Vec<u8> = (0..150)
        .flat_map(|number| [frame(number, 0, false), frame(number, 1, false)].concat())
        .collect();
    let (input, output) = (room.write("in.vdif", &before), room.path("out.vdif"));
    let report = json(&["drop", &input, &output, "--shed", "threads:1"]);
    assert_eq!(report["shedding"]["shed"], 150);
    let gaps = room.gaps("out.vdif.gaps.json");
    assert_eq!(gaps.time.len(), 1);
    assert_eq!((gaps.time[0].key, gaps.time[0].frames), (key(1), 150));
    assert_eq!(gaps.time[0].first_byte, Some(FRAME as u64));

    let found = json(&["inspect", &output]);
    assert_eq!(found["invalid_frames"], 150);
    assert_eq!(found["fill"]["bytes"], 150 * 1000);
    assert_eq!(found["fill"]["valid_frames"], 0);
    assert_eq!(found["threads"][1]["invalid"], 150);
    assert_eq!(found["threads"][1]["sampled_frames"], 0);
}

#[test]
fn packets_go_with_their_headers() {
    let room = Room::new();
    let before = recording();
    let (input, output) = (room.write("in.vdif", &before), room.path("out.vdif"));
    // 1032 bytes in packets of 516.
    let run = |replace: &str| {
        let arguments = ["--shed", "every:3", "--unit", "packet", "--mtu", "600"];
        let rest = ["--replace", replace, "--force"];
        json(&[&["drop", &input, &output], &arguments[..], &rest].concat())
    };
    let report = run("fill");
    assert_eq!(report["packet_bytes"], 516);
    assert_eq!(report["packets"], 300);
    assert_eq!(report["shedding"]["shed"], 100);
    let after = room.read("out.vdif");
    assert_eq!(after.len(), before.len());
    for (number, (old, new)) in before.chunks(516).zip(after.chunks(516)).enumerate() {
        if number % 3 == 2 {
            assert!(fill::is_fill(new), "packet {number}");
        } else {
            assert_eq!(old, new, "packet {number}");
        }
    }
    let gaps = room.gaps("out.vdif.gaps.json");
    assert_eq!(gaps.time.len(), 100);
    assert_eq!(gaps.time[0].start, time(1));
    assert_eq!(gaps.time[0].bytes, Some(0..484));
    assert_eq!(gaps.time[0].first_byte, Some(FRAME as u64));
    assert_eq!(gaps.time[1].start, time(2));
    assert_eq!(gaps.time[1].bytes, Some(484..1000));

    let report = run("nothing");
    assert_eq!(report["bytes_out"], 200 * 516);
    assert_eq!(room.read("out.vdif").len(), 200 * 516);

    let report = run("invalid");
    assert_eq!(report["frames_touched"], 100);
    let after = room.read("out.vdif");
    for number in 0..150 {
        let header = Header::parse(&after[frame_range(number)]).unwrap();
        assert_eq!(header.is_invalid(), number % 3 != 0, "frame {number}");
        assert_eq!(header.time(), time(number as i64));
    }
}

#[test]
fn what_just_fits_a_link_is_kept() {
    let room = Room::new();
    let input = room.write("in.vdif", &recording());
    // 50 frames a second, 1032 + 8 + 8 + 20 + 38 bytes each on the wire: 442 400 bit/s; half of it.
    let output = room.path("out.vdif");
    let report = json(&["drop", &input, &output, "--shed", "fit:221200"]);
    assert_eq!(report["shedding"]["fraction_planned"], 0.5);
    assert_eq!(report["shedding"]["shed"], 75);
}

#[test]
fn a_truncated_recording_loses_its_last_part() {
    let room = Room::new();
    let mut bytes = noise(100, 3);
    bytes.extend(recording());
    bytes.extend(&frame(150, 0, false)[..700]);
    let (input, output) = (room.write("in.vdif", &bytes), room.path("out.vdif"));
    let report = json(&["drop", &input, &output, "--shed", "none"]);
    assert_eq!(report["leading_bytes"], 100);
    assert_eq!(report["truncated_bytes"], 700);
    assert!(room.read("out.vdif") == recording());

    let found = json(&["inspect", &input]);
    assert_eq!(found["leading_bytes"], 100);
    assert_eq!(found["trailing_bytes"], 700);
    assert_eq!(found["frames"], 150);
    let text = String::from_utf8(evlbi(&["inspect", &input]).stdout).unwrap();
    assert!(
        text.contains("700 bytes of a truncated last frame"),
        "{text}"
    );
}

#[test]
fn raw_data_is_dropped_in_packets() {
    let room = Room::new();
    let before = noise(9_000_000, 5);
    let (input, output) = (room.write("in.bin", &before), room.path("out.bin"));
    let run = |replace: &str| {
        let arguments = ["--shed", "every:4", "--replace", replace, "--force"];
        json(&[&["drop", &input, &output], &arguments[..]].concat())
    };
    let report = run("fill");
    assert_eq!(report["format"], "raw");
    assert_eq!(report["packet_bytes"], 1464);
    let packets = 9_000_000usize.div_ceil(1464);
    assert_eq!(report["packets"], packets as u64);
    let after = room.read("out.bin");
    assert_eq!(after.len(), before.len());
    let mut kept = 0;
    for (number, (old, new)) in before.chunks(1464).zip(after.chunks(1464)).enumerate() {
        if number % 4 == 3 {
            assert!(fill::is_fill(new), "packet {number}");
        } else {
            assert!(old == new, "packet {number}");
            kept += old.len();
        }
    }
    let gaps = room.gaps("out.bin.gaps.json");
    assert_eq!(gaps.sequence.len(), packets / 4);
    assert_eq!((gaps.sequence[1].first, gaps.sequence[1].last), (7, 7));
    assert_eq!(run("nothing")["bytes_out"], kept as u64);

    let error = failure(&["drop", &input, &output, "--shed", "every:4", "--force"]);
    assert!(error.contains("--replace fill"), "{error}");
}

#[test]
fn nothing_is_overwritten_unasked() {
    let room = Room::new();
    let input = room.write("in.vdif", &recording());
    let output = room.write("out.vdif", b"precious");
    let drop = |output: &str, rest: &[&str]| {
        failure(&[&["drop", &input, output, "--shed", "every:2"], rest].concat())
    };
    assert!(drop(&output, &[]).contains("--force"));
    assert_eq!(room.read("out.vdif"), b"precious");
    std::os::unix::fs::symlink(&input, room.path("link.vdif")).unwrap();
    for same in [&input, &room.path("link.vdif")] {
        let error = drop(same, &["--force"]);
        assert!(error.contains("is the input itself"), "{error}");
    }
    let error = drop(&room.path("new.vdif"), &["--gaps", &input, "--force"]);
    assert!(error.contains("is the input itself"), "{error}");
    assert!(room.read("in.vdif") == recording());
    assert!(!Path::new(&room.path("new.vdif")).exists());
}

#[test]
fn wrong_arguments_say_what_to_do() {
    let room = Room::new();
    let (input, output) = (room.write("in.vdif", &recording()), room.path("out.vdif"));
    let short = room.write("short.vdif", &recording()[..20 * FRAME]);
    let cases: [(&[&str], &str); 9] = [
        (&["drop", &input, &output], "--shed"),
        (&["drop", &input, &output, "--shed", "often"], "every:N"),
        (
            &[
                "drop", &input, &output, "--shed", "every:2", "--mtu", "50", "--unit", "packet",
            ],
            "--mtu",
        ),
        (
            &["drop", &short, &output, "--shed", "fit:1k"],
            "--frame-rate",
        ),
        (
            &[
                "drop",
                &short,
                &output,
                "--shed",
                "none",
                "--frame-rate",
                "0",
            ],
            "--frame-rate",
        ),
        (
            &["drop", &room.path("none"), &output, "--shed", "none"],
            "cannot open",
        ),
        (&["inspect", room.0.path().to_str().unwrap()], "directory"),
        (&["inspect", &room.write("empty", b"")], "empty"),
        (&["inspect", "/dev/null"], "no file"),
    ];
    for (arguments, says) in cases {
        let error = failure(arguments);
        assert!(error.contains(says), "{arguments:?}: {error}");
    }
}

#[test]
fn gaps_duplicates_and_invalid_frames_are_found() {
    let room = Room::new();
    let mut bytes = Vec::new();
    for number in (0..20)
        .chain(25..60)
        .chain(59..80)
        .chain([82, 81])
        .chain(90..150)
    {
        bytes.extend(frame(number, 0, number == 30));
    }
    // A damaged header, of frame 10.
    bytes[10 * FRAME..10 * FRAME + HEADER].fill(0xff);
    let input = room.write("in.vdif", &bytes);
    let found = json(&["inspect", &input]);
    assert_eq!(found["schema"], "evlbi.inspect/1");
    assert_eq!(found["format"], "vdif");
    assert_eq!(found["frame_rate"], RATE);
    assert_eq!(found["frame_rate_from"], "counted");
    assert_eq!(found["invalid_frames"], 1);
    assert_eq!(found["odd_headers"], 1);
    assert_eq!(found["duplicate_frames"], 1);
    assert_eq!(found["backward_frames"], 1);
    // 10 (damaged), 20 to 24, 80, 83 to 89.
    assert_eq!(found["missing_frames"], 1 + 5 + 1 + 7);
    let gaps: Vec<(u64, u64)> = found["gaps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|gap| {
            (
                gap["start"]["frame"].as_u64().unwrap(),
                gap["frames"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(gaps, [(10, 1), (20, 5), (30, 1), (33, 7)]);
    assert_eq!(found["first"]["utc"], "2024-05-01T12:00:00Z");
    assert_eq!(found["last"]["utc"], "2024-05-01T12:00:02.98Z");
    assert_eq!(found["seconds"], 3.0);
    assert_eq!(found["bit_rate"], 50 * FRAME as u64 * 8);
    let thread = &found["threads"][0];
    assert_eq!(thread["station"], "Ef");
    assert_eq!(thread["sample_rate"], 200_000);
    let counts = &thread["statistics"][0]["components"][0]["counts"];
    let total: u64 = counts
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c.as_u64().unwrap())
        .sum();
    assert_eq!(total, thread["sampled_frames"].as_u64().unwrap() * 4000);
}

#[test]
fn mark_5b_is_inspected_with_its_own_codec() {
    let room = Room::new();
    let rate = FrameRate::new(100).unwrap();
    let mut bytes = Vec::new();
    for number in (0..150).filter(|number| *number != 70) {
        let mut header = mark5b::Header::new();
        let time = FrameTime::from_index(START * 100 + number, rate);
        header.set_time(time, rate).unwrap();
        bytes.extend(header.to_bytes());
        // Codes 0, 1, 2, 3: the second is the third level.
        bytes.extend([0b01_01_01_00].repeat(mark5b::PAYLOAD_LEN));
    }
    let input = room.write("in.m5b", &bytes);
    let found = json(&["inspect", &input]);
    assert_eq!(found["format"], "mark5b");
    assert_eq!(found["frame_rate"], 100);
    assert_eq!(found["missing_frames"], 1);
    let thread = &found["threads"][0];
    let sampled = thread["sampled_frames"].as_u64().unwrap();
    let counts = &thread["statistics"][0]["components"][0]["counts"];
    assert_eq!(counts[0], sampled * 10_000);
    assert_eq!(counts[2], sampled * 30_000);

    let error = failure(&["drop", &input, &room.path("out.m5b"), "--shed", "every:2"]);
    assert!(error.contains("no mark for invalid"), "{error}");
    let output = room.path("out.m5b");
    let arguments = ["--shed", "every:2", "--replace", "fill"];
    json(&[&["drop", &input, &output], &arguments[..]].concat());
    let after = room.read("out.m5b");
    let second = &after[mark5b::FRAME_LEN..2 * mark5b::FRAME_LEN];
    assert_eq!(second[..16], bytes[mark5b::FRAME_LEN..][..16]);
    assert!(fill::is_fill(&second[16..]));
}

#[test]
fn text_is_raw() {
    let room = Room::new();
    let input = room.write("notes.txt", b"Clouds until 14 UT. Wind from the west.\n");
    let found = json(&["inspect", &input]);
    assert_eq!(found["format"], "raw");
    assert_eq!(found["frames"], 0);
    let text = String::from_utf8(evlbi(&["inspect", &input]).stdout).unwrap();
    assert!(text.contains("neither VDIF nor Mark 5B"), "{text}");
}

#[test]
fn simulated_stations_are_what_their_plan_says() {
    let room = Room::new();
    let plan = room.write(
        "plan.toml",
        b"duration = 1.5\nsample_rate = 400_000\nchannels = 4\nthreads = 2\npayload = 1000\nedv = 1\n\
          [[station]]\nname = \"Ef\"\n[[station]]\nname = \"On\"\nphase_cal = { spacing = 5e4, power = 0.2 }\n",
    );
    let out = room.path("out");
    let report = json(&["sky", &plan, "--out", &out]);
    assert_eq!(report["schema"], "evlbi.sky/1");
    assert_eq!(report["files"][1]["station"], "On");
    assert_eq!(report["files"][1]["frames"], 2 * 300);
    assert_eq!(report["files"][1]["frame_rate"], 200);
    assert_eq!(report["files"][1]["seconds"], 1.5);
    let file = report["files"][1]["file"].as_str().unwrap();
    assert_eq!(
        fs::metadata(file).unwrap().len(),
        report["files"][1]["bytes"].as_u64().unwrap()
    );

    let found = json(&["inspect", file]);
    assert_eq!(found["frame_rate_from"], "header");
    assert_eq!(found["frames"], 600);
    assert_eq!(found["missing_frames"], 0);
    assert_eq!(found["seconds"], 1.5);
    assert_eq!(found["bit_rate"], report["files"][1]["bit_rate"]);
    for thread in found["threads"].as_array().unwrap() {
        assert_eq!(thread["station"], "On");
        assert_eq!(thread["frames"], 300);
        assert_eq!(thread["channels"], 2);
        assert_eq!(thread["sample_rate"], 400_000);
        assert_eq!(thread["bandwidth"], 200_000.0);
        assert_eq!(thread["extended"]["name"], "NICT");
        for channel in thread["statistics"].as_array().unwrap() {
            let counts = channel["components"][0]["counts"].as_array().unwrap();
            let counts: Vec<f64> = counts.iter().map(|count| count.as_f64().unwrap()).collect();
            let total: f64 = counts.iter().sum();
            assert!((counts[0] / total - 0.163).abs() < 0.01, "{counts:?}");
        }
    }

    let error = failure(&["sky", &plan, "--out", &out]);
    assert!(error.contains("--force"), "{error}");
    let again = json(&["sky", &plan, "--out", &out, "--force"]);
    assert_eq!(again, report);
}

#[test]
fn bad_plans_say_where_and_what() {
    let room = Room::new();
    let cases = [
        ("duration = 1.0\nsample_rat = 3\n", "line 2"),
        ("duration = 1.0\n", "[[station]]"),
        ("payload = 999\n[[station]]\nname = \"Ef\"\n", "payload"),
    ];
    for (text, says) in cases {
        let plan = room.write("plan.toml", text.as_bytes());
        let error = failure(&["sky", &plan, "--out", &room.path("out")]);
        assert!(
            error.contains(says) && error.contains("plan.toml"),
            "{error}"
        );
    }
}

/// Where recordings of real stations are; none with the reason said.
fn reference(file: &str) -> Option<String> {
    let Some(folder) = std::env::var_os("EVLBI_REFERENCE_DATA") else {
        eprintln!("skipped: EVLBI_REFERENCE_DATA names no folder of reference recordings");
        return None;
    };
    let path = PathBuf::from(folder).join(file);
    if !path.exists() {
        eprintln!("skipped: there is no {}", path.display());
        return None;
    }
    Some(path.to_str().unwrap().to_string())
}

#[test]
fn a_geodetic_recording_of_64_channels() {
    let Some(file) = reference("correlx-vgos/media/v15327_gs_328-185735_3m.vdif") else {
        return;
    };
    let found = json(&["inspect", &file]);
    assert_eq!(found["frames"], 95);
    assert_eq!(found["trailing_bytes"], 3_145_728 - 95 * 32_800);
    assert_eq!(found["frame_rate"], Value::Null);
    assert_eq!(found["missing_frames"], 0);
    let thread = &found["threads"][0];
    assert_eq!(
        (&thread["channels"], &thread["bits"]),
        (&64.into(), &2.into())
    );
    assert_eq!(thread["complex"], true);
    let channels = thread["statistics"].as_array().unwrap();
    assert_eq!(channels.len(), 64);
    for channel in channels {
        assert_eq!(channel["spectrum"].as_array().unwrap().len(), 256);
        let rms = channel["components"][1]["rms"].as_f64().unwrap();
        assert!((1.9..2.2).contains(&rms), "{rms}");
    }
    let found = json(&["inspect", &file, "--frame-rate", "1600"]);
    assert_eq!(found["frame_rate_from"], "given");
    assert_eq!(found["first"]["utc"], "2015-11-24T18:57:35Z");
}

#[test]
fn simulated_recordings_of_one_bit() {
    let Some(file) = reference("vierds/zerobaseline_001_very_basic/S1_8_1_1_1_test.vdif") else {
        return;
    };
    let found = json(&["inspect", &file]);
    assert_eq!(found["frames"], 125);
    assert_eq!(found["trailing_bytes"], 0);
    let thread = &found["threads"][0];
    assert_eq!(thread["station"], "S1");
    assert_eq!(thread["bits"], 1);
    assert_eq!(thread["statistics"][0]["components"][0]["rms"], 1.0);
}

/// A python with `baseband`; a python that was named must have it.
fn python() -> Option<PathBuf> {
    let named = std::env::var_os("EVLBI_PYTHON").map(PathBuf::from);
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = named
        .clone()
        .unwrap_or_else(|| here.join("../../target/venv/bin/python"));
    let import = Command::new(&python)
        .args(["-c", "import baseband"])
        .output();
    if import.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    let reason = format!("{} cannot import baseband", python.display());
    assert!(named.is_none(), "{reason}");
    eprintln!("skipped: {reason} (set EVLBI_PYTHON to a python that has baseband 4.3)");
    None
}

#[test]
fn baseband_reads_what_drop_leaves() {
    let Some(python) = python() else {
        return;
    };
    let room = Room::new();
    let (input, output) = (room.write("in.vdif", &recording()), room.path("out.vdif"));
    json(&["drop", &input, &output, "--shed", "every:10"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/baseband_stream.py");
    let read = Command::new(python)
        .arg(script)
        .args([&RATE.to_string(), &output])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&read.stderr);
    assert!(read.status.success(), "{errors}");
    let found: Value = serde_json::from_slice(&read.stdout).unwrap();
    assert_eq!(found["frames"], 150);
    assert_eq!(found["samples"], 150 * 4000);
    assert_eq!(found["start"], "2024-05-01T12:00:00.000000000");
    assert_eq!(found["stop"], "2024-05-01T12:00:03.000000000");
    assert_eq!(found["late"], Value::Array(Vec::new()));
    let invalid: Vec<u64> = (0..15).map(|nth| 10 * nth + 9).collect();
    let numbers: Vec<u64> = invalid.iter().map(|n| n % u64::from(RATE)).collect();
    assert_eq!(found["invalid"], Value::from(numbers));
    assert_eq!(found["zero_frames"], Value::from(invalid));
}
