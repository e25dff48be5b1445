//! `drop` sheds frames and packets as the policy requests, and changes nothing else.

use std::os::unix::fs::symlink;
use std::path::Path;

use evlbi_core::shed::Replace;
use evlbi_net::run::Run;
use evlbi_stream::drop::{DropOptions, drop};
use evlbi_stream::inspect::{inspect, text};
use evlbi_stream::selection::Selection;
use evlbi_testkit::Room;
use evlbi_testkit::recording::{
    FRAME, HEADER, RATE, frame, frame_range, key, noise, recording, time,
};
use evlbi_testkit::result::{assert_schema, refused, shown};
use evlbi_wire::fill;
use evlbi_wire::time::FrameRate;
use evlbi_wire::validity::{Cause, Gaps};
use evlbi_wire::vdif::Header;
use serde_json::Value;

use crate::inspect::inspected;

/// Options that shed frames or packets of a recording.
pub fn shed(input: &str, output: &str, policy: &str) -> DropOptions {
    DropOptions {
        input: input.into(),
        output: output.into(),
        shed: policy.parse().unwrap(),
        ..DropOptions::default()
    }
}

/// With this seed it starts with frame 9.
pub fn each_tenth(input: &str, output: &str) -> DropOptions {
    DropOptions {
        seed: 1,
        ..shed(input, output, "every:10")
    }
}

#[track_caller]
pub fn dropped(options: &DropOptions) -> Value {
    shown(drop(options, &Run::silent()))
}

#[track_caller]
pub fn not_dropped(options: &DropOptions) -> String {
    refused(drop(options, &Run::silent()))
}

fn gaps(room: &Room, name: &str) -> Gaps {
    serde_json::from_slice(&room.read(name)).unwrap()
}

#[test]
fn every_tenth_frame_becomes_invalid_and_nothing_else_changes() {
    let room = Room::new();
    let before = recording();
    let (input, output) = (room.write("in.vdif", &before), room.path("out.vdif"));
    let report = dropped(&each_tenth(&input, &output));
    assert_schema(&report, "evlbi.drop/1");
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
    let gaps = gaps(&room, "out.vdif.gaps.json");
    assert_eq!(report["gaps"], 15);
    assert_eq!(gaps.file.as_deref(), Some("out.vdif"));
    assert_eq!(gaps.frame_rate.map(FrameRate::get), Some(RATE));
    assert_eq!(gaps.time.len(), 15);
    for (nth, gap) in gaps.time.iter().enumerate() {
        let number = 10 * nth + 9;
        assert_eq!(gap.key, key(0));
        assert_eq!((gap.start, gap.frames), (time(number as i64), 1));
        assert_eq!(gap.first_byte, Some((number * FRAME) as u64));
        assert_eq!(gap.cause, Cause::Shed);
    }
}

#[test]
fn fractions_are_exact_and_follow_from_the_seed() {
    let room = Room::new();
    let before: Vec<u8> = (0..20_000)
        .flat_map(|number| frame(number, 0, false))
        .collect();
    let input = room.write("in.vdif", &before);
    let run = |output: &str, seed| {
        let output = room.path(output);
        dropped(&DropOptions {
            replace: Replace::Random,
            seed,
            ..shed(&input, &output, "bunch:5%")
        })
    };
    let report = run("a.vdif", 7);
    let count = report["shedding"]["shed"].as_u64().unwrap();
    assert_eq!(count, report["frames_touched"].as_u64().unwrap());
    // 20 MB, several blocks. At most one burst of ten is shed ahead of its kept frames.
    assert!((1000..=1010).contains(&count), "{count}");
    run("b.vdif", 7);
    run("c.vdif", 8);
    assert_eq!(room.read("a.vdif"), room.read("b.vdif"));
    assert_ne!(room.read("a.vdif"), room.read("c.vdif"));
}

#[test]
fn removed_frames_are_gone_and_the_rest_stays() {
    let room = Room::new();
    let before = recording();
    let (input, output) = (room.write("in.vdif", &before), room.path("out.vdif"));
    let report = dropped(&DropOptions {
        replace: Replace::Nothing,
        seed: 1,
        ..shed(&input, &output, "every:3")
    });
    let kept: Vec<u8> = (0..150)
        .filter(|number| number % 3 != 2)
        .flat_map(|number| before[frame_range(number)].to_vec())
        .collect();
    assert_eq!(report["frames_out"], 100);
    assert_eq!(report["bytes_out"], kept.len() as u64);
    assert!(room.read("out.vdif") == kept);
    let gaps = gaps(&room, "out.vdif.gaps.json");
    assert!(gaps.time.iter().all(|gap| gap.first_byte.is_none()));

    let found = inspected(&output);
    assert_eq!(found["frames"], 100);
    // The last lost frame leaves no trace.
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
    let report = dropped(&shed(&input, &output, "threads:1"));
    assert_eq!(report["shedding"]["shed"], 150);
    let gaps = gaps(&room, "out.vdif.gaps.json");
    assert_eq!(gaps.time.len(), 1);
    assert_eq!((gaps.time[0].key, gaps.time[0].frames), (key(1), 150));
    assert_eq!(gaps.time[0].first_byte, Some(FRAME as u64));

    let found = inspected(&output);
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
    let run = |replace| {
        dropped(&DropOptions {
            by_packet: true,
            mtu: 600,
            seed: 1,
            replace,
            force: true,
            ..shed(&input, &output, "every:3")
        })
    };
    let report = run(Replace::Fill);
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
    let gaps = gaps(&room, "out.vdif.gaps.json");
    assert_eq!(gaps.time.len(), 100);
    assert_eq!(gaps.time[0].start, time(1));
    assert_eq!(gaps.time[0].bytes, Some(0..484));
    assert_eq!(gaps.time[0].first_byte, Some(FRAME as u64));
    assert_eq!(gaps.time[1].start, time(2));
    assert_eq!(gaps.time[1].bytes, Some(484..1000));

    let report = run(Replace::Nothing);
    assert_eq!(report["bytes_out"], 200 * 516);
    assert_eq!(room.read("out.vdif").len(), 200 * 516);

    let report = run(Replace::Invalid);
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
    let input = room.write("in.vdif", recording());
    // 50 frames per second, 1032 + 8 + 8 + 20 + 38 bytes each on the wire: 442 400 bit/s; half of it.
    let output = room.path("out.vdif");
    let report = dropped(&shed(&input, &output, "fit:221200"));
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
    let report = dropped(&shed(&input, &output, "none"));
    assert_eq!(report["leading_bytes"], 100);
    assert_eq!(report["truncated_bytes"], 700);
    assert!(room.read("out.vdif") == recording());

    let found = inspected(&input);
    assert_eq!(found["leading_bytes"], 100);
    assert_eq!(found["trailing_bytes"], 700);
    assert_eq!(found["frames"], 150);
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
        found.contains("700 bytes of a truncated last frame"),
        "{found}"
    );
}

#[test]
fn raw_data_is_dropped_in_packets() {
    let room = Room::new();
    let before = noise(9_000_000, 5);
    let (input, output) = (room.write("in.bin", &before), room.path("out.bin"));
    let run = |replace| {
        dropped(&DropOptions {
            seed: 1,
            replace,
            force: true,
            ..shed(&input, &output, "every:4")
        })
    };
    let report = run(Replace::Fill);
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
    let gaps = gaps(&room, "out.bin.gaps.json");
    assert_eq!(gaps.sequence.len(), packets / 4);
    assert_eq!((gaps.sequence[1].first, gaps.sequence[1].last), (7, 7));
    assert_eq!(run(Replace::Nothing)["bytes_out"], kept as u64);

    let error = not_dropped(&DropOptions {
        force: true,
        ..shed(&input, &output, "every:4")
    });
    assert!(
        error.contains("no frames that could be marked invalid"),
        "{error}"
    );
}

#[test]
fn nothing_is_overwritten_unasked() {
    let room = Room::new();
    let input = room.write("in.vdif", recording());
    let output = room.write("out.vdif", b"precious");
    let every_other = |output: &str| shed(&input, output, "every:2");
    let error = not_dropped(&every_other(&output));
    assert!(error.contains(&format!("{output} exists")), "{error}");
    assert_eq!(room.read("out.vdif"), b"precious");
    symlink(&input, room.path("link.vdif")).unwrap();
    for same in [&input, &room.path("link.vdif")] {
        let error = not_dropped(&DropOptions {
            force: true,
            ..every_other(same)
        });
        assert!(error.contains("is the input itself"), "{error}");
    }
    let error = not_dropped(&DropOptions {
        gaps: Some((&input).into()),
        force: true,
        ..every_other(&room.path("new.vdif"))
    });
    assert!(error.contains("is the input itself"), "{error}");
    assert!(room.read("in.vdif") == recording());
    assert!(!Path::new(&room.path("new.vdif")).exists());
}

#[test]
fn other_files_are_refused() {
    let room = Room::new();
    let error = not_dropped(&shed(&room.path("none"), &room.path("out.vdif"), "none"));
    assert!(error.contains("cannot open"), "{error}");
    let empty = room.write("empty", b"");
    let folder = room.path("");
    for (path, says) in [
        (folder.as_str(), "directory"),
        (&empty, "empty"),
        ("/dev/null", "not a file"),
    ] {
        let error = refused(inspect(
            Path::new(path),
            &Selection::default(),
            None,
            &Run::silent(),
        ));
        assert!(error.contains(says), "{path}: {error}");
    }
}
