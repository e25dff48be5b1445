//! Recordings go through `evlbi send` and `evlbi recv` over real sockets, and a relay that harms them.

use std::fs;
use std::path::{Path, PathBuf};

use std::sync::Mutex;

use crate::live::support::{Recv, Relay, assert_numbers, each, recordings, send};
use crate::result::{brief, number};
use evlbi_core::path::Impairment;
use evlbi_wire::fill;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn recordings_arrive_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let ways: [&[&str]; 3] = [
        &[],
        &["--mtu", "1500"],
        &["--mtu", "1500", "--cut", "plain"],
    ];
    let runs: Vec<(PathBuf, usize)> = recordings()
        .into_iter()
        .flat_map(|path| (0..ways.len()).map(move |way| (path.clone(), way)))
        .collect();
    each(&runs, |(path, way)| {
        let out = folder
            .path()
            .join(format!("{way}-{}", path.file_name().unwrap().display()));
        let recv = Recv::start("udp://127.0.0.1:0", &out, &[]);
        let sent = send(text(path), &recv.url(), ways[*way]);
        let result = recv.finish();
        let what = format!("{} with {:?}", path.display(), ways[*way]);
        let count = number(&sent, "sent");
        assert_numbers(
            &result,
            &[
                ("received", count),
                ("unique", count),
                ("lost", 0),
                ("duplicates", 0),
                ("reordered", 0),
                ("foreign", 0),
                ("lost_frames", 0),
            ],
        );
        let before = fs::read(path).unwrap();
        let after = fs::read(&out).unwrap();
        let whole = before.len() - number(&sent, "truncated_bytes") as usize;
        assert!(
            after.starts_with(&before[..whole]),
            "{what} differs: {}",
            brief(&result)
        );
        // Raw data has no frames by which to tell the padding of the last datagram.
        let padded = match result["format"].as_str() {
            Some("raw") => number(&sent, "padded_bytes") as usize,
            _ => 0,
        };
        assert_eq!(after.len(), whole + padded, "{what}: {}", brief(&result));
    });
}

const CLEAN: Impairment = Impairment {
    loss: 0.0,
    duplicate: 0.0,
    reorder: 0.0,
    distance: 5,
};

/// Whether there are frames in it at all.
fn is_whole(path: &Path) -> bool {
    let length = fs::metadata(path).unwrap().len();
    if length < 5000 {
        eprintln!("skipped: {}, which is no recording", path.display());
    }
    length >= 5000
}

/// What a recording must be after some of its datagrams were lost.
struct Harmed {
    bytes: Vec<u8>,
    lost_frames: u64,
    source_invalid: u64,
}

fn harmed(original: &[u8], frame: usize, data: usize, missing: &[u64]) -> Harmed {
    let mut bytes = original.to_vec();
    let mut lost: Vec<usize> = missing.iter().map(|n| *n as usize * data / frame).collect();
    lost.dedup();
    for &number in &lost {
        invalidate(&mut bytes[number * frame..(number + 1) * frame]);
    }
    let invalid = |number: usize| original[number * frame + 3] & 0x80 != 0;
    Harmed {
        source_invalid: (0..original.len() / frame)
            .filter(|number| !lost.contains(number) && invalid(*number))
            .count() as u64,
        lost_frames: lost.len() as u64,
        bytes,
    }
}

/// The header with the invalid bit set, and the fill pattern.
fn invalidate(frame: &mut [u8]) {
    let header = if frame[3] & 0x40 != 0 { 16 } else { 32 };
    frame[3] |= 0x80;
    fill::make(&mut frame[header..]);
}

#[test]
fn lost_frames_become_invalid_frames_at_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let harms = [
        (
            1,
            Impairment {
                loss: 0.05,
                ..CLEAN
            },
        ),
        (
            2,
            Impairment {
                loss: 0.02,
                duplicate: 0.05,
                reorder: 0.05,
                distance: 7,
            },
        ),
        (
            3,
            Impairment {
                loss: 0.3,
                duplicate: 0.1,
                reorder: 0.1,
                distance: 20,
            },
        ),
    ];
    let runs: Vec<(PathBuf, usize, bool)> = recordings()
        .into_iter()
        .filter(|path| path.extension().is_some_and(|ext| ext == "vdif"))
        .filter(|path| !text(path).contains("corrupted") && is_whole(path))
        .flat_map(|path| {
            [(0, false), (1, true), (2, false)].map(|(harm, cut)| (path.clone(), harm, cut))
        })
        .collect();
    let comparisons = Mutex::new(Vec::new());
    each(&runs, |(path, harm, cut)| {
        let (seed, impairment) = harms[*harm];
        let name = path.file_name().unwrap().display().to_string();
        let parent = path
            .parent()
            .unwrap()
            .file_name()
            .unwrap()
            .display()
            .to_string();
        let out = folder.path().join(format!("{parent}-{harm}-{name}"));
        let mut original = fs::read(path).unwrap();
        let frame =
            (u32::from_le_bytes(original[8..12].try_into().unwrap()) & 0xff_ffff) as usize * 8;
        original.truncate(original.len() / frame * frame);
        let data = match (*cut, frame) {
            (true, 8032) => 1004,
            (true, 5032) => 1258,
            (true, 5000) => 1000,
            (true, 32800) => 1312,
            _ => frame,
        };
        let last = (original.len() / data) as u64 - 1;
        let recv = Recv::start("udp://127.0.0.1:0", &out, &[]);
        let relay = Relay::start(recv.address(), impairment, seed, last);
        let mtu: &[&str] = if *cut { &["--mtu", "1500"] } else { &[] };
        let sent = send(text(path), &relay.url(), mtu);
        let truth = relay.finish().truth();
        let result = recv.finish();
        let what = format!("{} harmed as {harm}", path.display());
        assert_numbers(&sent, &[("datagram_data", data as u64), ("sent", last + 1)]);
        truth.agrees_with(&result);
        let expected = harmed(&original, frame, data, &truth.missing);
        let frames = (original.len() / frame) as u64;
        assert_numbers(
            &result,
            &[
                ("frames", frames),
                ("lost_frames", expected.lost_frames),
                ("invalid", expected.lost_frames + expected.source_invalid),
                ("partial_frames", 0),
                ("trimmed_bytes", 0),
            ],
        );
        let found = fs::read(&out).unwrap();
        assert_eq!(found.len(), expected.bytes.len(), "{what}");
        let differ: Vec<usize> = (0..frames as usize)
            .filter(|n| found[n * frame..][..frame] != expected.bytes[n * frame..][..frame])
            .collect();
        for number in differ.iter().take(3) {
            eprintln!(
                "{number}: {:02x?}\n      {:02x?}",
                &found[number * frame..][..40],
                &expected.bytes[number * frame..][..40]
            );
        }
        assert!(
            differ.is_empty(),
            "{what}: frames {differ:?} differ, lost {:?}",
            truth.missing
        );
        comparisons
            .lock()
            .unwrap()
            .push((path.clone(), out, truth.missing));
    });
}

fn pattern(to: &str, more: &[&str]) -> serde_json::Value {
    let usual = ["--rate", "80M", "--duration", "2s", "--mtu", "9000"];
    send("pattern:8032", to, &[&usual, more].concat())
}

/// Shedding at the sender is loss at the receiver, datagram by datagram.
#[test]
fn what_the_sender_sheds_the_receiver_misses() {
    let policies = [
        "every:10",
        "bunch:0.05",
        "random:3%",
        "burst:5%,4",
        "fit:75M",
    ];
    let runs: Vec<(&str, &str)> = policies
        .into_iter()
        .flat_map(|p| [(p, "frame"), (p, "packet")])
        .collect();
    each(&runs, |(policy, unit)| {
        let recv = Recv::start("udp://[::1]:0", Path::new("check"), &[]);
        let sent = pattern(
            &recv.url(),
            &["--shed", policy, "--unit", unit, "--seed", "7"],
        );
        let result = recv.finish();
        // What is shed at the ends cannot be seen by a receiver.
        let seen = number(&result, "first_seq")..=number(&result, "last_seq");
        let outside = number(&sent, "offered") - seen.count() as u64;
        let shed = number(&sent, "shed") - outside;
        assert!(shed > 0);
        assert_numbers(
            &result,
            &[
                ("unique", number(&sent, "sent")),
                ("lost", shed),
                ("network_lost", shed),
                ("lost_frames", shed),
                ("duplicates", 0),
            ],
        );
        let check = &result["check"];
        assert_numbers(
            check,
            &[
                ("good", number(&sent, "sent")),
                ("corrupted", 0),
                ("not_checked", shed),
            ],
        );
    });
}

#[test]
fn a_recording_travels_over_tcp() {
    let folder = tempfile::tempdir().unwrap();
    for (number, path) in recordings()
        .into_iter()
        .filter(|path| path.extension().is_some_and(|e| e == "vdif") && is_whole(path))
        .enumerate()
        .take(8)
    {
        let out = folder.path().join(number.to_string());
        let recv = Recv::start("tcp://127.0.0.1:0", &out, &[]);
        let sent = send(text(&path), &format!("tcp://{}", recv.address()), &[]);
        recv.finish();
        let before = fs::read(&path).unwrap();
        let whole = before.len() - crate::result::number(&sent, "truncated_bytes") as usize;
        assert!(
            fs::read(&out).unwrap() == before[..whole],
            "{}",
            path.display()
        );
    }
}

#[test]
fn ctrl_c_ends_with_everything_written() {
    let folder = tempfile::tempdir().unwrap();
    for stands_still in [false, true] {
        let out = folder.path().join(format!("{stands_still}.vdif"));
        let recv = Recv::start("udp://127.0.0.1:0", &out, &["--duration", "60s"]);
        let slow: &[&str] = &["--rate", "1M", "--duration", "1s"];
        // All that a receiver stood still for is in the smallest of socket buffers.
        let sent = if stands_still {
            recv.signal("STOP");
            send("pattern:8032", &recv.url(), slow)
        } else {
            pattern(&recv.url(), &[])
        };
        recv.signal("INT");
        recv.signal("CONT");
        let result = recv.finish();
        // With what was still in the socket's buffer when the signal came.
        let frames = number(&sent, "sent");
        assert_numbers(&result, &[("frames", frames), ("lost", 0)]);
        assert_eq!(result["ended"], "stopped");
        assert_eq!(fs::metadata(&out).unwrap().len(), frames * 8032);
        assert!(out.with_extension("vdif.gaps.json").is_file());
    }
}
