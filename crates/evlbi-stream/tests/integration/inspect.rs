//! `inspect` finds the contents that a recording was made with.

use std::ops::Range;
use std::path::Path;

use evlbi_core::shed::Replace;
use evlbi_net::run::Run;
use evlbi_stream::drop::DropOptions;
use evlbi_stream::inspect::{inspect, text};
use evlbi_stream::selection::Selection;
use evlbi_testkit::recording::{FRAME, HEADER, RATE, START, frame, frame_range, key, recording};
use evlbi_testkit::result::{assert_schema, shown};
use evlbi_testkit::{Room, need};
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::{Header, Shape, StationId};
use evlbi_wire::{fill, mark5b};
use serde_json::Value;

use crate::drop::{dropped, not_dropped, shed};

#[track_caller]
pub fn inspected(path: &str) -> Value {
    shown(inspect(
        Path::new(path),
        &Selection::default(),
        None,
        &Run::silent(),
    ))
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
    let found = inspected(&input);
    assert_schema(&found, "evlbi.inspect/1");
    assert_eq!(found["format"], "vdif");
    assert_eq!(found["frame_rate"], RATE);
    assert_eq!(found["frame_rate_from"], "counted");
    assert_eq!(found["invalid_frames"], 1);
    assert_eq!(found["odd_headers"], 1);
    assert_eq!(found["duplicate_frames"], 1);
    assert_eq!(found["backward_frames"], 1);
    // 20 to 24, 80, 83 to 89; the damaged frame 10 is there.
    assert_eq!(found["missing_frames"], 5 + 1 + 7);
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
    assert_eq!(gaps, [(20, 5), (30, 1), (33, 7)]);
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

/// A frame of one sample of each channel shows their levels only.
#[test]
fn frames_of_few_samples_have_no_spectrum() {
    let room = Room::new();
    let shape = Shape {
        frame_length: HEADER + 64,
        log2_channels: 6,
        bits: 4,
        complex: true,
        legacy: false,
    };
    let mut bytes = Vec::new();
    for number in 0..5 {
        let mut header = Header::new(shape, key(0));
        let time = FrameTime {
            second: START,
            frame: number,
        };
        header.set_time(time).unwrap();
        let mut frame = vec![0x9a; shape.frame_length];
        header.emit(&mut frame);
        bytes.extend(frame);
    }
    let input = room.write("in.vdif", &bytes);
    let all = Selection::default();
    let report = inspect(Path::new(&input), &all, None, &Run::silent()).unwrap();
    let shown = text(&report);
    assert!(shown.contains("64 channels, 4-bit complex"), "{shown}");
    assert!(shown.contains("levels"), "{shown}");
    assert!(!shown.contains("spectrum"), "{shown}");
}

#[test]
fn mark_5b_is_inspected_with_its_own_codec() {
    let room = Room::new();
    let rate = FrameRate::new(100).unwrap();
    let mut bytes = Vec::new();
    for number in (0..150).filter(|number| *number != 70) {
        let mut header = mark5b::Header::from_words([mark5b::SYNC, 0, 0, 0]).unwrap();
        let time = FrameTime::from_index(START * 100 + number, rate);
        header.set_time(time, rate).unwrap();
        bytes.extend(header.to_bytes());
        // Codes 0, 1, 2, 3: the second is the third level.
        bytes.extend([0b01_01_01_00].repeat(mark5b::PAYLOAD_LEN));
    }
    let input = room.write("in.m5b", &bytes);
    let found = inspected(&input);
    assert_eq!(found["format"], "mark5b");
    assert_eq!(found["frame_rate"], 100);
    assert_eq!(found["missing_frames"], 1);
    let thread = &found["threads"][0];
    let sampled = thread["sampled_frames"].as_u64().unwrap();
    let counts = &thread["statistics"][0]["components"][0]["counts"];
    assert_eq!(counts[0], sampled * 10_000);
    assert_eq!(counts[2], sampled * 30_000);

    let output = room.path("out.m5b");
    let error = not_dropped(&shed(&input, &output, "every:2"));
    assert!(error.contains("no mark for invalid"), "{error}");
    dropped(&DropOptions {
        seed: 2,
        replace: Replace::Fill,
        ..shed(&input, &output, "every:2")
    });
    let after = room.read("out.m5b");
    let second = &after[mark5b::FRAME_LEN..2 * mark5b::FRAME_LEN];
    assert_eq!(second[..16], bytes[mark5b::FRAME_LEN..][..16]);
    assert!(fill::is_fill(&second[16..]));
}

/// Frames written in place of lost data may have no time, no station, or a time years away: their position gives their time.
#[test]
fn invalid_frames_with_a_wrong_header_have_the_time_of_their_place() {
    let room = Room::new();
    for (station, second, lost) in [
        (*b"Ef", 0, 0..10),
        (*b"Ef", 0, 60..70),
        (*b"Ef", 0, 140..150),
        ([0, 0], 0, 60..70),
        (*b"Ef", 10_000_000, 60..70),
        (*b"Jb", 10_000_000, 0..10),
    ] {
        let mut bytes = recording();
        for number in lost.clone() {
            let mut key = key(0);
            key.station = StationId::from_code(station);
            let mut header = Header::new(Header::parse(&bytes).unwrap().shape(), key);
            let time = FrameTime {
                second: 946_684_800 + second,
                frame: 0,
            };
            header.set_time(time).unwrap();
            header.set_invalid(true);
            let frame = &mut bytes[frame_range(number)];
            fill::make(frame);
            header.emit(frame);
        }
        let found = inspected(&room.write("in.vdif", &bytes));
        let what = format!("{station:?} {second} {lost:?}: {found}");
        assert_eq!(found["first"]["utc"], "2024-05-01T12:00:00Z", "{what}");
        assert_eq!(found["seconds"], 3.0, "{what}");
        assert_eq!(found["invalid_frames"], 10, "{what}");
        assert_eq!(found["missing_frames"], 0, "{what}");
        assert_eq!(found["threads"].as_array().unwrap().len(), 1, "{what}");
    }
}

/// A run of the pattern continues across the header of the next frame.
#[test]
fn fill_across_two_frames_is_counted_whole() {
    let room = Room::new();
    let mut bytes = recording();
    let next = frame_range(60);
    fill::make(&mut bytes[next.start - 4..next.start + FRAME - 8]);
    let found = inspected(&room.write("in.vdif", &bytes));
    let header = 32;
    assert_eq!(found["fill"]["bytes"], 4 + FRAME - 8 - header, "{found}");
    assert_eq!(found["odd_headers"], 1);
}

/// Frames lost at the end of a second count as missing, whatever one second or a header claims the rate to be.
#[test]
fn frames_lost_at_the_end_of_a_second_are_missing() {
    let room = Room::new();
    let found_in = |bytes: Vec<u8>| inspected(&room.write("in.vdif", bytes));
    let but = |lost: Range<i64>, until: i64| -> Vec<u8> {
        let there = (0..until).filter(|number| !lost.contains(number));
        there.flat_map(|number| frame(number, 0, false)).collect()
    };
    for (lost, until) in [(49..50, 150), (35..50, 150), (30..70, 150), (49..50, 100)] {
        let count = lost.end - lost.start;
        let found = found_in(but(lost, until));
        assert_eq!(found["frame_rate"], RATE, "{found}");
        assert_eq!(found["missing_frames"], count, "{found}");
        assert_eq!(found["seconds"], until as f64 / 50.0);
    }
    // An EDV 1 header of 210 frames per second, each with 4000 samples.
    let mut wrong = recording();
    for number in 0..150 {
        let word = (1u32 << 24 | 840).to_le_bytes();
        wrong[frame_range(number)][16..20].copy_from_slice(&word);
    }
    let found = found_in(wrong);
    assert_eq!(found["frame_rate"], RATE, "{found}");
    assert_eq!(found["frame_rate_from"], "counted");
    assert_eq!(found["missing_frames"], 0);
}

#[test]
fn text_is_raw() {
    let room = Room::new();
    let input = room.write("notes.txt", b"Clouds until 14 UT. Wind from the west.\n");
    let found = inspected(&input);
    assert_eq!(found["format"], "raw");
    assert_eq!(found["frames"], 0);
    let found = text(
        &inspect(
            Path::new(&input),
            &Selection::default(),
            None,
            &Run::silent(),
        )
        .unwrap(),
    );
    assert!(
        found.contains("neither VDIF, Mark 5B nor Mark 4"),
        "{found}"
    );
}

/// Directory of recordings of real stations.
fn reference(file: &str) -> Option<String> {
    let path = need::recordings()?.join(file);
    Some(path.to_str().unwrap().to_string())
}

#[test]
fn a_geodetic_recording_of_64_channels() {
    let Some(file) = reference("correlx-vgos/media/v15327_gs_328-185735_3m.vdif") else {
        return;
    };
    let found = inspected(&file);
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
    let found = shown(inspect(
        Path::new(&file),
        &Selection::default(),
        FrameRate::new(1600),
        &Run::silent(),
    ));
    assert_eq!(found["frame_rate_from"], "given");
    assert_eq!(found["first"]["utc"], "2015-11-24T18:57:35Z");
}

#[test]
fn simulated_recordings_of_one_bit() {
    let Some(file) = reference("vierds/zerobaseline_001_very_basic/S1_8_1_1_1_test.vdif") else {
        return;
    };
    let found = inspected(&file);
    assert_eq!(found["frames"], 125);
    assert_eq!(found["trailing_bytes"], 0);
    let thread = &found["threads"][0];
    assert_eq!(thread["station"], "S1");
    assert_eq!(thread["bits"], 1);
    assert_eq!(thread["statistics"][0]["components"][0]["rms"], 1.0);
}
