//! `split` and `join` rearrange channels, threads and stations, and keep times and losses.

use std::ops::Range;
use std::path::PathBuf;

use evlbi_core::deframe::{Deframer, Settings};
use evlbi_core::shed::Replace;
use evlbi_net::file::Durability;
use evlbi_net::run::Run;
use evlbi_stream::drop::{DropOptions, drop};
use evlbi_stream::join::{self, JoinOptions, join};
use evlbi_stream::selection::Selection;
use evlbi_stream::sink::{self, Files, SinkReport};
use evlbi_stream::split::{self, SplitOptions, split};
use evlbi_testkit::Room;
use evlbi_testkit::recording::noise;
use evlbi_testkit::result::refused;
use evlbi_wire::fill;
use evlbi_wire::mark5b;
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::validity::{Cause, Gaps, TimeGap};
use evlbi_wire::vdif::{Alma, Extended, Header, Merged, Nict, SYNC, Shape, StationId, StreamKey};
use serde::Serialize;
use serde_json::Value;

use crate::warnings::Warnings;

const RATE: u32 = 50;
/// 2024-05-01T12:00:00Z.
const START: i64 = 1_714_564_800;

pub fn key(thread: u16) -> StreamKey {
    StreamKey {
        station: StationId::from_code(*b"Ef"),
        thread,
    }
}

pub fn shape(payload: usize, channels: u64, bits: u8) -> Shape {
    Shape {
        frame_length: payload + 32,
        log2_channels: channels.trailing_zeros() as u8,
        bits,
        complex: false,
        legacy: false,
    }
}

fn time(number: u32) -> FrameTime {
    FrameTime {
        second: START + i64::from(number / RATE),
        frame: number % RATE,
    }
}

/// Returns a frame with noise. The extended words give the sample rate, so that they must stay.
fn frame(shape: Shape, key: StreamKey, number: u32) -> Vec<u8> {
    let mut header = Header::new(shape, key);
    header.set_time(time(number)).unwrap();
    let sample_rate = shape.samples_per_frame() * u64::from(RATE);
    let nict = Nict {
        complex_rate: sample_rate / 2,
        sync: SYNC,
        das: 7,
    };
    // A rate that is not a whole number of kHz does not fit.
    let _ = header.set_extended(&Extended::Nict(nict));
    let seed = u64::from(number) * 8 + u64::from(key.thread);
    let mut bytes = noise(shape.frame_length, seed);
    header.emit(&mut bytes);
    bytes
}

/// Returns three seconds of a thread.
pub fn thread(shape: Shape, key: StreamKey) -> Vec<u8> {
    frames(shape, key, 3 * RATE)
}

fn frames(shape: Shape, key: StreamKey, count: u32) -> Vec<u8> {
    (0..count)
        .flat_map(|number| frame(shape, key, number))
        .collect()
}

#[track_caller]
fn report<T: Serialize, E: std::error::Error>(result: Result<T, E>) -> Value {
    serde_json::to_value(result.unwrap_or_else(|error| panic!("{error}"))).unwrap()
}

pub fn splits(input: &str, to: &str) -> SplitOptions {
    SplitOptions {
        input: input.into(),
        to: to.into(),
        ..SplitOptions::default()
    }
}

/// Returns a recording and its settings.
fn input(text: &str) -> (PathBuf, Selection) {
    let (path, selection) = Selection::split(text).unwrap();
    (path.into(), selection)
}

fn joins(inputs: &[String], output: &str) -> JoinOptions {
    JoinOptions {
        inputs: inputs.iter().map(|path| input(path)).collect(),
        output: output.into(),
        ..JoinOptions::default()
    }
}

fn gaps(room: &Room, name: &str) -> Gaps {
    serde_json::from_slice(&room.read(name)).unwrap()
}

fn all(room: &Room, count: u16) -> Vec<String> {
    (0..count)
        .map(|number| room.path(&format!("ch{number}.vdif")))
        .collect()
}

/// Splits and joins a recording of which frames are missing; the result must be the same to the byte.
fn there_and_back(shape: Shape, whole: &[u8], shed: &str, replace: Replace) {
    let room = Room::new();
    let channels = shape.channels() as u16;
    std::fs::create_dir(room.path("before")).unwrap();
    std::fs::create_dir(room.path("after")).unwrap();
    let whole = room.write("whole.vdif", whole);
    let (before, after) = (room.path("before/scan.vdif"), room.path("after/scan.vdif"));
    let options = DropOptions {
        input: whole.into(),
        output: before.clone().into(),
        shed: shed.parse().unwrap(),
        replace,
        ..DropOptions::default()
    };
    let done = report(drop(&options, &Run::silent()));
    assert!(done["gaps"].as_u64().unwrap() > 0, "{done}");
    let done = report(split(
        &splits(&before, &room.path("ch{channel}.vdif")),
        &Run::silent(),
    ));
    assert_eq!(done["frames_left_out"], 0, "{done}");
    assert_eq!(
        done["outputs"].as_array().unwrap().len(),
        usize::from(channels)
    );
    let options = JoinOptions {
        frame: Some(shape.frame_length),
        ..joins(&all(&room, channels), &after)
    };
    let done = report(join(&options, &Run::silent()));
    assert_eq!(done["channels"], channels);
    let read = |folder: &str, name: &str| room.read(&format!("{folder}/{name}"));
    assert!(
        read("before", "scan.vdif") == read("after", "scan.vdif"),
        "{shape:?} {shed} {replace:?}"
    );
    let texts = ["before", "after"].map(|folder| read(folder, "scan.vdif.gaps.json"));
    let [before, after] = texts.map(|text| String::from_utf8(text).unwrap());
    assert_eq!(before, after, "{shape:?} {shed} {replace:?}");
}

#[test]
fn split_then_join_gives_the_same_bytes_and_gaps() {
    // One frame per frame; two frames of which one is made of each channel.
    for shape in [shape(8192, 16, 2), shape(8000, 16, 2), shape(160, 4, 8)] {
        for replace in [Replace::Invalid, Replace::Nothing] {
            there_and_back(shape, &thread(shape, key(3)), "random:10%", replace);
        }
    }
}

#[test]
fn one_per_cent_of_sixteen_channels_is_missing_before_and_after() {
    let shape = shape(8000, 16, 2);
    let whole = frames(shape, key(0), 1000);
    for replace in [Replace::Invalid, Replace::Nothing] {
        there_and_back(shape, &whole, "random:1%", replace);
    }
}

#[test]
fn each_channel_has_its_samples_times_and_rate() {
    let room = Room::new();
    let shape = shape(160, 4, 8);
    let recording = thread(shape, key(2));
    let input = room.write("in.vdif", &recording);
    let to = room.path("{station}-{thread}-{channel}.vdif");
    let done = report(split(&splits(&input, &to), &Run::silent()));
    assert_eq!(done["schema"], "evlbi.split/1");
    assert_eq!(done["frames_per_frame"], 1);
    for channel in 0..4 {
        let bytes = room.read(&format!("Ef-2-{channel}.vdif"));
        assert_eq!(bytes.len(), 150 * 72);
        for (number, made) in bytes.chunks(72).enumerate() {
            let header = Header::parse(made).unwrap();
            assert_eq!(header.time(), time(number as u32));
            assert_eq!(header.key(), key(8 + channel));
            assert_eq!(header.frame_rate().map(FrameRate::get), Some(RATE));
            let samples = &recording[number * 192 + 32..][..160];
            let expected = samples.iter().skip(usize::from(channel)).step_by(4);
            assert!(made[32..].iter().eq(expected));
        }
    }
}

#[test]
fn chosen_channels_stay_together_or_are_separated() {
    let room = Room::new();
    let shape = shape(160, 4, 8);
    let recording = thread(shape, key(0));
    let input = room.write("in.vdif", &recording);
    let chosen = |to: &str| SplitOptions {
        channels: Some("1,3".parse().unwrap()),
        ..splits(&input, &room.path(to))
    };
    report(split(&chosen("both.vdif"), &Run::silent()));
    let bytes = room.read("both.vdif");
    assert_eq!(Header::parse(&bytes).unwrap().shape().channels(), 2);
    let expected = recording[32..192]
        .chunks(4)
        .flat_map(|samples| [samples[1], samples[3]]);
    assert!(bytes[32..112].iter().copied().eq(expected));
    report(split(&chosen("one{channel}.vdif"), &Run::silent()));
    assert!(!std::path::Path::new(&room.path("one0.vdif")).exists());
    assert_eq!(room.read("one3.vdif").len(), 150 * 72);
    let three = SplitOptions {
        channels: Some("0-2".parse().unwrap()),
        ..splits(&input, &room.path("three.vdif"))
    };
    let text = refused(split(&three, &Run::silent()));
    assert!(text.contains("3 channels do not fit one thread"), "{text}");
}

/// Stations, threads and channels after `#` are those that are read.
#[test]
fn parts_of_a_shared_recording_are_split_and_joined() {
    let room = Room::new();
    let shape = shape(160, 4, 8);
    let other = StreamKey {
        station: StationId::from_code(*b"Jb"),
        thread: 7,
    };
    let [ours, theirs] = [key(0), other].map(|key| thread(shape, key));
    let frames = ours.chunks(192).zip(theirs.chunks(192));
    let both: Vec<u8> = frames.flat_map(|(a, b)| [a, b].concat()).collect();
    let both = room.write("both.vdif", both);
    let part = |settings: &str, to: &str| {
        let (input, selection) = input(&format!("{both}#{settings}"));
        let options = SplitOptions {
            input,
            selection,
            ..splits(&both, &room.path(to))
        };
        report(split(&options, &Run::silent()))
    };
    let result = part("station=Jb", "Jb.vdif");
    assert!(room.read("Jb.vdif") == theirs);
    assert_eq!(result["unselected_frames"], ours.len() / 192);
    part("thread=7&channels=3,2", "two.vdif");
    let options = SplitOptions {
        channels: Some("3,2".parse().unwrap()),
        ..splits(&room.path("Jb.vdif"), &room.path("same.vdif"))
    };
    report(split(&options, &Run::silent()));
    assert!(room.read("two.vdif") == room.read("same.vdif"));
    let inputs = ["station=Jb", "station=Ef"].map(|part| format!("{both}#{part}"));
    let joined = JoinOptions {
        keep_threads: true,
        ..joins(&inputs, &room.path("joined.vdif"))
    };
    report(join(&joined, &Run::silent()));
    let mut frames: Vec<Vec<u8>> = room
        .read("joined.vdif")
        .chunks(192)
        .map(Into::into)
        .collect();
    let of = |frame: &Vec<u8>| Header::parse(frame).unwrap().key();
    assert_eq!(frames.len(), 2 * ours.len() / 192);
    frames.retain(|frame| of(frame) == other);
    assert!(frames.concat() == theirs);
    for (settings, says) in [
        ("station=On", "it has no station On: it contains Ef, Jb"),
        (
            "inverted",
            "only station, thread and channels have an effect",
        ),
    ] {
        let (input, selection) = input(&format!("{both}#{settings}"));
        let options = SplitOptions {
            input,
            selection,
            ..splits(&both, &room.path("x-{channel}.vdif"))
        };
        let said = refused(split(&options, &Run::silent()));
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn the_missing_part_of_a_frame_is_that_of_each_channel() {
    let room = Room::new();
    let shape = shape(160, 4, 8);
    let mut recording = thread(shape, key(0));
    fill::make(&mut recording[3 * 192 + 32 + 80..][..40]);
    let input = room.write("in.vdif", &recording);
    let to = room.path("ch{channel}.vdif");
    let listed = Gaps {
        frame_rate: FrameRate::new(RATE),
        time: vec![TimeGap {
            key: key(0),
            start: time(3),
            frames: 1,
            first_byte: Some(3 * 192),
            bytes: Some(80..120),
            cause: Cause::Shed,
        }],
        ..Gaps::default()
    };
    // Listed, or found by the fill pattern alone.
    for cause in [Cause::Shed, Cause::Lost] {
        let path = room.path("in.vdif.gaps.json");
        match cause {
            Cause::Shed => std::fs::write(&path, serde_json::to_vec(&listed).unwrap()).unwrap(),
            _ => std::fs::remove_file(&path).unwrap(),
        }
        let options = SplitOptions {
            force: true,
            ..splits(&input, &to)
        };
        report(split(&options, &Run::silent()));
        for channel in 0..4 {
            let name = format!("ch{channel}.vdif");
            let bytes = room.read(&name);
            let header = Header::parse(&bytes[3 * 72..]).unwrap();
            assert!(!header.is_invalid());
            assert!(fill::is_fill(&bytes[3 * 72 + 32 + 20..][..10]));
            let gaps = gaps(&room, &format!("{name}.gaps.json")).time;
            assert_eq!(gaps.len(), 1);
            assert_eq!(
                (gaps[0].start, gaps[0].bytes.clone()),
                (time(3), Some(20..30))
            );
            assert_eq!((gaps[0].first_byte, gaps[0].cause), (Some(3 * 72), cause));
        }
    }
    let options = joins(&all(&room, 4), &room.path("back.vdif"));
    report(join(&options, &Run::silent()));
    assert!(room.read("back.vdif") == recording);
    assert_eq!(
        gaps(&room, "back.vdif.gaps.json").time[0].bytes,
        Some(80..120)
    );
}

#[test]
fn threads_and_stations_go_to_one_file_and_back() {
    let room = Room::new();
    let shape = shape(800, 1, 2);
    let wb = StreamKey {
        station: StationId::from_code(*b"Wb"),
        thread: 0,
    };
    let keys = [key(0), key(5), wb];
    let names = ["Ef-0.vdif", "Ef-5.vdif", "Wb-0.vdif"];
    let inputs: Vec<String> = (keys.iter().zip(names))
        .map(|(key, name)| room.write(name, thread(shape, *key)))
        .collect();
    let options = JoinOptions {
        keep_threads: true,
        ..joins(&inputs, &room.path("all.vdif"))
    };
    let done = report(join(&options, &Run::silent()));
    assert_eq!(done["schema"], "evlbi.join/1");
    assert_eq!(done["threads"], 3);
    let bytes = room.read("all.vdif");
    let times = bytes
        .chunks(832)
        .map(|frame| Header::parse(frame).unwrap().time());
    assert!(times.eq((0..150).flat_map(|number| [time(number); 3])));
    let to = room.path("back-{station}-{thread}.vdif");
    report(split(&splits(&room.path("all.vdif"), &to), &Run::silent()));
    for name in names {
        assert!(
            room.read(&format!("back-{name}")) == room.read(name),
            "{name}"
        );
    }
    // By station: two channels of one, one channel of the other do not fit frames of one length.
    let text = refused(join(
        &joins(&inputs, &room.path("joined.vdif")),
        &Run::silent(),
    ));
    assert!(text.contains("frames of different lengths"), "{text}");
}

#[test]
fn a_joined_frame_is_valid_only_with_all_channels() {
    let room = Room::new();
    let shape = shape(800, 1, 2);
    let whole = thread(shape, key(0));
    let mut other = thread(shape, key(1));
    other.drain(832 * 7..832 * 9);
    let inputs = [room.write("a.vdif", &whole), room.write("b.vdif", &other)];
    let done = report(join(
        &joins(&inputs, &room.path("out.vdif")),
        &Run::silent(),
    ));
    assert_eq!(done["frames_incomplete"], 2);
    assert_eq!(done["output"]["invalid_frames"], 2);
    let bytes = room.read("out.vdif");
    let frames = bytes
        .chunks(1632)
        .map(|frame| Header::parse(frame).unwrap());
    let invalid = frames.map(|header| header.is_invalid());
    assert!(invalid.eq((0..150).map(|number| (7..9).contains(&number))));
    let gaps = gaps(&room, "out.vdif.gaps.json").time;
    assert_eq!((gaps.len(), gaps[0].start, gaps[0].frames), (1, time(7), 2));
}

#[test]
fn merged_threads_that_are_missing_become_invalid_channels() {
    let room = Room::new();
    let shape = shape(160, 4, 8);
    let mut recording = thread(shape, key(0));
    for number in 0..150 {
        let bytes = &mut recording[number * 192..][..32];
        let mut header = Header::parse(bytes).unwrap();
        let merged = Merged {
            mask_length: 4,
            sync: SYNC,
            mask: if number == 60 { 0b1011 } else { 0b1111 },
        };
        header.set_extended(&Extended::Merged(merged)).unwrap();
        header.emit(bytes);
    }
    let input = room.write("in.vdif", &recording);
    report(split(
        &splits(&input, &room.path("ch{channel}.vdif")),
        &Run::silent(),
    ));
    for channel in 0..4 {
        let bytes = room.read(&format!("ch{channel}.vdif"));
        let headers = bytes.chunks(72).map(|frame| Header::parse(frame).unwrap());
        for (number, header) in headers.enumerate() {
            assert_eq!(header.is_invalid(), (channel, number) == (2, 60));
            assert_eq!(header.edv(), Some(0));
        }
    }
}

/// ALMA prescribes two lengths of a frame; the words of a Mark 5B frame belong to its own samples.
#[test]
fn extended_words_that_do_not_fit_are_left_out() {
    let room = Room::new();
    for (payload, extended) in [
        (5000, Extended::Alma(Alma::default())),
        (
            10_000,
            Extended::Mark5b(mark5b::Header::from_words([mark5b::SYNC, 0, 0, 0]).unwrap()),
        ),
    ] {
        let inputs = [0, 1].map(|number| {
            let mut bytes = thread(shape(payload, 1, 2), key(number));
            for frame in bytes.chunks_mut(payload + 32) {
                let mut header = Header::parse(frame).unwrap();
                header.set_extended(&extended).unwrap();
                header.emit(frame);
            }
            room.write(&format!("{number}.vdif"), bytes)
        });
        let options = JoinOptions {
            force: true,
            ..joins(&inputs, &room.path("out.vdif"))
        };
        report(join(&options, &Run::silent()));
        let header = Header::parse(&room.read("out.vdif")).unwrap();
        assert_eq!(header.edv(), Some(0), "{extended:?}");
    }
}

/// A header with a wrong time costs its own frame, also where it is read long before the others.
#[test]
fn a_wrong_time_does_not_end_the_join_of_its_recording() {
    let room = Room::new();
    let whole = shape(8000, 1, 2);
    for channel in 0..2 {
        let mut bytes = frames(whole, key(channel), 600);
        if channel == 1 {
            // A bit of the seconds, far in the future.
            bytes[20 * whole.frame_length + 2] ^= 0x40;
        }
        room.write(&format!("ch{channel}.vdif"), &bytes);
    }
    let joined = join(
        &joins(&all(&room, 2), &room.path("out.vdif")),
        &Run::silent(),
    );
    let joined = report(joined);
    assert!(joined["frames_left_out"].as_u64().unwrap() <= 2, "{joined}");
    let valid = room.read("out.vdif");
    let valid = valid.chunks(2 * 8000 + 32).filter(|frame| {
        let header = Header::parse(frame).unwrap();
        !header.is_invalid()
    });
    assert_eq!(valid.count(), 599);
}

/// A shell sorts channel 10 before channel 2.
#[test]
fn threads_in_another_order_than_that_of_their_numbers_are_warned_of() {
    let room = Room::new();
    for channel in [2, 10] {
        let bytes = thread(shape(8000, 1, 2), key(channel));
        room.write(&format!("ch{channel}.vdif"), &bytes);
    }
    let warnings = |order: [u16; 2], keep_threads| {
        let (run, warnings) = Warnings::of_run();
        let inputs = order.map(|channel| room.path(&format!("ch{channel}.vdif")));
        let options = JoinOptions {
            keep_threads,
            force: true,
            ..joins(&inputs, &room.path("out.vdif"))
        };
        report(join(&options, &run));
        warnings.read()
    };
    let text = warnings([10, 2], false).concat();
    assert!(text.contains("ch2.vdif comes after thread 10"), "{text}");
    assert!(warnings([2, 10], false).is_empty() && warnings([10, 2], true).is_empty());
}

#[test]
fn a_live_stream_is_split_like_a_recording() {
    let room = Room::new();
    let mut recording = thread(shape(8000, 16, 2), key(0));
    recording.drain(8032 * 9..8032 * 10);
    let input = room.write("in.vdif", &recording);
    report(split(
        &splits(&input, &room.path("file-{station}-{channel}.vdif")),
        &Run::silent(),
    ));
    let files = Files {
        durability: Durability::Kernel,
        force: false,
        run: Run::silent(),
    };
    let mut sink = sink::open(
        &room.path("live-{station}-{channel}.vdif"),
        &Selection::default(),
        files,
    )
    .unwrap();
    let mut deframer = Deframer::new(Settings::default());
    let taken = deframer.walk(&recording, true, &mut |chunk| sink.take(chunk));
    assert_eq!(taken, recording.len());
    let report = sink.finish();
    assert_eq!((report.unwritten_bytes, report.files.len()), (0, 16));
    for channel in 0..16 {
        let [live, file] =
            ["live", "file"].map(|name| room.read(&format!("{name}-Ef-{channel}.vdif")));
        assert!(live == file, "channel {channel}");
    }
}

/// Splits a stream live into one file per channel, in this run; returns the report.
fn split_live(room: &Room, bytes: &[u8], settings: &str, run: Run) -> SinkReport {
    let (_, selection) = input(&format!("x#{settings}"));
    let files = Files {
        durability: Durability::Kernel,
        force: false,
        run,
    };
    let to = room.path("live-{channel}.vdif");
    let mut sink = sink::open(&to, &selection, files).unwrap();
    let mut deframer = Deframer::new(Settings::default());
    deframer.walk(bytes, true, &mut |chunk| sink.take(chunk));
    sink.finish()
}

/// Frames of other lengths than those in a file are not written to it.
#[test]
fn a_live_thread_that_does_not_fit_a_file_is_left_out() {
    let room = Room::new();
    let threads =
        [(4, 0), (2, 1)].map(|(channels, number)| thread(shape(160, channels, 8), key(number)));
    let frames = threads[0].chunks(192).zip(threads[1].chunks(192));
    let both: Vec<u8> = frames.flat_map(|(a, b)| [a, b].concat()).collect();
    let report = split_live(&room, &both, "thread=0,1", Run::silent());
    assert_eq!(report.unwritten_bytes, 150 * 2 * 112);
    let error = report.write_error.unwrap();
    assert!(
        error.starts_with("the frames of thread 1 of station Ef have 112 bytes, but those in "),
        "{error}"
    );
    assert_eq!(report.files.len(), 4);
    assert!(report.files.iter().all(|file| file.bytes == 150 * 72));
}

#[test]
fn settings_without_effect_on_a_live_stream_are_named_once() {
    let room = Room::new();
    let recording = thread(shape(160, 4, 8), key(0));
    let (run, warnings) = Warnings::of_run();
    let report = split_live(&room, &recording, "channels=2&inverted&modulated", run);
    assert_eq!((report.unwritten_bytes, report.files.len()), (0, 1));
    assert_eq!(
        warnings.read(),
        [
            "without effect after `#`, since the headers of VDIF describe the samples: modulated, inverted"
        ]
    );
}

#[test]
fn bad_input_is_refused_by_name() {
    let room = Room::new();
    let raw = room.write("raw", noise(100_000, 1));
    let good = room.write("good.vdif", thread(shape(160, 4, 8), key(0)));
    let three = room.write("three.vdif", thread(shape(160, 4, 3), key(0)));
    let odd = room.write("odd.vdif", thread(shape(168, 16, 8), key(0)));
    let of = |name: &str, numbers: Range<u32>| {
        let frames = numbers.flat_map(|n| frame(shape(160, 4, 8), key(1), n));
        room.write(name, frames.collect::<Vec<u8>>())
    };
    let [late, second] =
        [("late.vdif", 100), ("second.vdif", 50)].map(|(name, first)| of(name, first..150));
    let behind = of("behind.vdif", 40..150);
    let short = room.write("short.vdif", frames(shape(160, 4, 8), key(0), 20));
    let to = room.path("x{channel}.vdif");
    let text = |options: &SplitOptions| refused(split(options, &Run::silent()));
    for (options, expected) in [
        (splits(&raw, &to), "raw is neither VDIF, Mark 5B nor Mark 4"),
        (
            splits(&good, &room.path("y.vdif")),
            "nothing would be split",
        ),
        (
            splits(&good, &room.path("{band}.vdif")),
            "unknown placeholder",
        ),
        (
            splits(&three, &to),
            "samples of 3 bits cannot be rearranged",
        ),
        (splits(&odd, &to), "do not hold a whole number of samples"),
        (
            SplitOptions {
                channels: Some("9".parse().unwrap()),
                ..splits(&good, &to)
            },
            "there is no channel 9: the channels are 0 to 3",
        ),
        (
            SplitOptions {
                channels: Some("0".parse().unwrap()),
                ..splits(&good, &good)
            },
            "good.vdif is the input itself",
        ),
    ] {
        let said = text(&options);
        assert!(said.contains(expected), "{said}");
    }
    room.write("x0.vdif", b"here");
    let said = text(&splits(&good, &to));
    assert!(said.contains("x0.vdif exists"), "{said}");
    assert!("4-".parse::<split::Channels>().is_err());
    // Nothing is left of outputs that were refused.
    assert!(!std::path::Path::new(&room.path("x1.vdif")).exists());

    let wide = room.write("wide.vdif", thread(shape(160, 2, 8), key(1)));
    let out = room.path("out.vdif");
    let text = |inputs: &[&String]| {
        let inputs: Vec<String> = inputs.iter().map(|input| (*input).clone()).collect();
        refused(join(&joins(&inputs, &out), &Run::silent()))
    };
    for (inputs, expected) in [
        (vec![], "no recordings to join"),
        (vec![&raw], "raw is not VDIF"),
        (vec![&good, &good], "good.vdif is given twice"),
        (
            vec![&good, &wide],
            "wide.vdif has 2 channels of 8-bit real samples, but",
        ),
        (vec![&good, &late], "late.vdif starts 2 s after"),
        (vec![&second, &good], "second.vdif starts 1 s after"),
        (
            vec![&short, &behind],
            "none of the 130 joined frames has all channels",
        ),
    ] {
        let said = text(&inputs);
        assert!(said.contains(expected), "{said}");
        assert!(!std::path::Path::new(&out).exists(), "{expected}");
    }
    // Less than a second is missing at the start.
    let done = report(join(&joins(&[good.clone(), behind], &out), &Run::silent()));
    assert_eq!(done["frames_incomplete"], 40);
    let copy = room.write("copy.vdif", thread(shape(160, 4, 8), key(0)));
    let same = JoinOptions {
        keep_threads: true,
        ..joins(&[good.clone(), copy], &out)
    };
    let said = refused(join(&same, &Run::silent()));
    assert!(
        said.contains("both contain thread 0 of station Ef"),
        "{said}"
    );
    let itself = joins(&[good.clone(), late.clone()], &late);
    let said = refused(join(&itself, &Run::silent()));
    assert!(said.contains("late.vdif is an input itself"), "{said}");
    let frame = JoinOptions {
        frame: Some(100),
        ..joins(&[good], &out)
    };
    let said = refused(join(&frame, &Run::silent()));
    assert!(said.contains("frames of 100 bytes do not divide"), "{said}");
}

#[test]
fn a_truncated_last_frame_is_left_out_and_a_damaged_header_is_made() {
    let room = Room::new();
    let mut recording = thread(shape(160, 4, 8), key(0));
    recording[5 * 192..5 * 192 + 32].fill(0x5a);
    recording.truncate(149 * 192 + 50);
    let input = room.write("in.vdif", &recording);
    let to = room.path("ch{channel}.vdif");
    let done = split(&splits(&input, &to), &Run::silent()).unwrap();
    let text = split::text(&done);
    assert!(
        text.contains("50 bytes of a truncated last frame"),
        "{text}"
    );
    let done = serde_json::to_value(done).unwrap();
    assert_eq!(
        (&done["frames"], &done["frames_left_out"]),
        (&149.into(), &0.into())
    );
    assert_eq!(done["truncated_bytes"], 50);
    assert_eq!(done["outputs"][0]["frames"], 149);
    let out = room.path("out.vdif");
    let done = join(&joins(&all(&room, 4), &out), &Run::silent()).unwrap();
    let text = join::text(&done);
    assert!(text.contains("4 channels each"), "{text}");
    // The data of the frame is kept, and its header is the one that it had.
    assert!(room.read("out.vdif") == thread(shape(160, 4, 8), key(0))[..149 * 192]);
}
