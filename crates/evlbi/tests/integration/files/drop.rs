//! Frames and packets are lost as the policy says, and nothing else changes.

use std::path::Path;

use super::*;

/// With this seed it begins with frame 9.
pub const EACH_TENTH: [&str; 4] = ["--shed", "every:10", "--seed", "1"];

#[test]
fn every_tenth_frame_becomes_invalid_and_nothing_else_changes() {
    let room = Room::new();
    let before = recording();
    let (input, output) = (room.write("in.vdif", &before), room.path("out.vdif"));
    let report = json(&[&["drop", &input, &output], &EACH_TENTH[..]].concat());
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
        assert_eq!(gap.cause, evlbi_wire::validity::Cause::Shed);
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
    let arguments = ["--shed", "every:3", "--seed", "1", "--replace", "nothing"];
    let report = json(&[&["drop", &input, &output], &arguments[..]].concat());
    let kept: Vec<u8> = (0..150)
        .filter(|number| number % 3 != 2)
        .flat_map(|number| before[frame_range(number)].to_vec())
        .collect();
    assert_eq!(report["frames_out"], 100);
    assert_eq!(report["bytes_out"], kept.len() as u64);
    assert!(room.read("out.vdif") == kept);
    let gaps = gaps(&room, "out.vdif.gaps.json");
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
    let gaps = gaps(&room, "out.vdif.gaps.json");
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
        let rest = ["--seed", "1", "--replace", replace, "--force"];
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
    let gaps = gaps(&room, "out.vdif.gaps.json");
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
    let input = room.write("in.vdif", recording());
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
        let arguments = [
            "--shed",
            "every:4",
            "--seed",
            "1",
            "--replace",
            replace,
            "--force",
        ];
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
    let gaps = gaps(&room, "out.bin.gaps.json");
    assert_eq!(gaps.sequence.len(), packets / 4);
    assert_eq!((gaps.sequence[1].first, gaps.sequence[1].last), (7, 7));
    assert_eq!(run("nothing")["bytes_out"], kept as u64);

    let error = failure(&["drop", &input, &output, "--shed", "every:4", "--force"]);
    assert!(error.contains("--replace fill"), "{error}");
}

#[test]
fn nothing_is_overwritten_unasked() {
    let room = Room::new();
    let input = room.write("in.vdif", recording());
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
    let (input, output) = (room.write("in.vdif", recording()), room.path("out.vdif"));
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
        (&["inspect", &room.path("")], "directory"),
        (&["inspect", &room.write("empty", b"")], "empty"),
        (&["inspect", "/dev/null"], "no file"),
    ];
    for (arguments, says) in cases {
        let error = failure(arguments);
        assert!(error.contains(says), "{arguments:?}: {error}");
    }
}
