//! Recordings through a sender and a receiver over real sockets, and a relay that drops, duplicates and reorders.

use evlbi_core::packetise::Rule;
use evlbi_core::path::Impairment;
use evlbi_stream::recv::RecvOptions;
use evlbi_stream::send::{Pace, SendOptions};
use evlbi_testkit::buffer::fit;
use evlbi_testkit::relay::Relay;
use evlbi_testkit::result::{assert_numbers, brief, number};
use evlbi_testkit::{Room, buffer, each};
use evlbi_wire::{fill, mark5b, pattern, vtp};

use super::recordings::{Recording, of_baseband, of_others, ours};
use super::support::{HERE, Recv, SEED_OF_WHOLE_RUNS, recording as received, send, sending};

#[test]
fn our_recordings_arrive_byte_for_byte() {
    arrive_byte_for_byte(&ours());
}

#[test]
fn recordings_of_baseband_arrive_byte_for_byte() {
    if let Some(recordings) = of_baseband() {
        arrive_byte_for_byte(&recordings);
    }
}

#[test]
fn recordings_of_others_arrive_byte_for_byte() {
    if let Some(recordings) = of_others() {
        arrive_byte_for_byte(&recordings);
    }
}

fn arrive_byte_for_byte(recordings: &[Recording]) {
    let ways = [
        (None, Rule::Frames),
        (Some(1500), Rule::Frames),
        (Some(1500), Rule::Plain),
    ];
    let runs: Vec<_> = recordings
        .iter()
        .flat_map(|recording| ways.map(|way| (recording, way)))
        .collect();
    each(&runs, |(recording, way)| {
        let room = Room::new();
        let source = room.write("in", &recording.bytes);
        let out = room.path("out");
        let recv = Recv::start(HERE, &out);
        let (mtu, cut) = *way;
        let sent = send(&SendOptions {
            mtu,
            cut,
            ..sending(&source, &recv.url())
        });
        let what = format!("{} with {way:?}", recording.name);
        let count = number(&sent, "sent");
        let holds = buffer::holds(number(&sent, "datagram_data") as usize + vtp::HEADER_LEN);
        assert!(count <= holds as u64, "{what}: {count} of {holds}");
        let result = recv.finish_after(count);
        assert_numbers(&sent, &[("not_sent", 0)]);
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
        let before = &recording.bytes;
        let after = room.read("out");
        let leading = number(&sent, "leading_bytes") as usize;
        let whole = before.len() - leading - number(&sent, "truncated_bytes") as usize;
        assert!(
            after.starts_with(&before[leading..leading + whole]),
            "{what} differs: {}",
            brief(&result)
        );
        // Raw data has no frames by which to recognise the padding of the last datagram.
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

/// Expected recording after the loss of some of its datagrams.
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
fn lost_frames_of_ours_become_invalid_frames_at_their_place() {
    become_invalid_frames(&ours());
}

#[test]
fn lost_frames_of_baseband_become_invalid_frames_at_their_place() {
    if let Some(recordings) = of_baseband() {
        become_invalid_frames(&recordings);
    }
}

#[test]
fn lost_frames_of_others_become_invalid_frames_at_their_place() {
    if let Some(recordings) = of_others() {
        become_invalid_frames(&recordings);
    }
}

fn become_invalid_frames(recordings: &[Recording]) {
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
    let runs: Vec<(&Recording, usize, bool)> = recordings
        .iter()
        .filter(|recording| recording.vdif().is_some())
        .flat_map(|recording| {
            [(0, false), (1, true), (2, false)].map(|(harm, cut)| (recording, harm, cut))
        })
        .collect();
    assert!(runs.len() >= 12, "{} runs", runs.len());
    each(&runs, |(recording, harm, cut)| {
        let (seed, impairment) = harms[*harm];
        let room = Room::new();
        let (original, frame) = recording.vdif().unwrap();
        let source = room.write("in.vdif", original);
        let out = room.path("out.vdif");
        let data = match (*cut, frame) {
            (true, 8032) => 1004,
            (true, 2536) => 1268,
            (true, 5032) => 1258,
            (true, 5000) => 1000,
            (true, 32800) => 1312,
            _ => frame,
        };
        let last = (original.len() / data) as u64 - 1;
        let recv = Recv::with(&RecvOptions {
            frame_rate: recording.frame_rate,
            ..received(HERE, &out)
        });
        let relay = Relay::start(recv.address(), impairment, seed, last);
        let sent = send(&SendOptions {
            mtu: cut.then_some(1500),
            ..sending(&source, &relay.url())
        });
        assert_numbers(
            &sent,
            &[
                ("datagram_data", data as u64),
                ("sent", last + 1),
                ("not_sent", 0),
            ],
        );
        let passed = relay.finish();
        // Of the relay's own socket, and of the receiver's.
        assert!((last + 1).max(passed.count()) <= buffer::holds(data + vtp::HEADER_LEN) as u64);
        let result = recv.finish_after(passed.count());
        let truth = passed.truth();
        let what = format!("{} harmed as {harm}", recording.name);
        truth.agrees_with(&result);
        let expected = harmed(original, frame, data, &truth.missing);
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
        let found = room.read("out.vdif");
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
    });
}

/// Mark 5B frames with lost data keep their header, followed by the fill pattern; raw data has the pattern in place of lost
/// datagrams.
#[test]
fn lost_parts_of_mark_5b_and_raw_data_are_filled_at_their_place() {
    let recordings = ours();
    let of = |name: &str| recordings.iter().find(|recording| recording.name == name);
    let mark5b = of("ours.m5b").unwrap();
    let frame = mark5b::FRAME_LEN;
    // (recording, data per datagram, length of the unit that is filled and of the header that stays)
    let runs = [
        (mark5b, 1252, frame, mark5b::HEADER_LEN),
        (of("bytes.bin").unwrap(), 1464, 1464, 0),
    ];
    each(&runs, |(recording, data, unit, header)| {
        let room = Room::new();
        let source = room.write("in", &recording.bytes);
        let out = room.path("out");
        let last = recording.bytes.len().div_ceil(*data) as u64 - 1;
        let loss = Impairment { loss: 0.1, ..CLEAN };
        let recv = Recv::start(HERE, &out);
        let relay = Relay::start(recv.address(), loss, 4, last);
        let sent = send(&SendOptions {
            mtu: Some(1500),
            ..sending(&source, &relay.url())
        });
        assert_numbers(
            &sent,
            &[("datagram_data", *data as u64), ("sent", last + 1)],
        );
        let passed = relay.finish();
        assert!(last < buffer::holds(data + vtp::HEADER_LEN) as u64);
        let result = recv.finish_after(passed.count());
        let truth = passed.truth();
        assert!(truth.lost > 0, "nothing was lost");
        truth.agrees_with(&result);
        let mut expected = recording.bytes.clone();
        let padded = number(&sent, "padded_bytes") as usize;
        expected.resize(expected.len() + padded, 0);
        let mut units: Vec<usize> = truth
            .missing
            .iter()
            .map(|number| *number as usize * data / unit)
            .collect();
        units.dedup();
        for unit_lost in &units {
            fill::make(&mut expected[unit_lost * unit..][..*unit][*header..]);
        }
        let found = room.read("out");
        // Bytes that complete the last datagram of raw data cannot be recognised as padding.
        assert_eq!(found.len(), expected.len(), "{}", brief(&result));
        let whole = recording.bytes.len();
        assert!(found[..whole] == expected[..whole], "{}", recording.name);
        let counts = match *header {
            0 => [("frames", 0), ("lost_frames", 0)],
            _ => [("frames", 12), ("lost_frames", units.len() as u64)],
        };
        assert_numbers(&result, &counts);
    });
}

/// A file of `frames` frames of the test pattern, and their bytes.
fn pattern(room: &Room, frames: u32) -> (String, Vec<u8>) {
    let rate = pattern::frame_rate(1250);
    let bytes = pattern::frames(8032, 1_700_000_000, rate, frames).unwrap();
    (room.write("pattern.vdif", &bytes), bytes)
}

/// Datagrams of 1004 bytes in a frame of the test pattern at an MTU of 1500.
const PIECES: u64 = 8;

/// Shedding at the sender is loss at the receiver, datagram by datagram: by frames, which are eight datagrams each, and by datagrams.
#[test]
fn data_that_the_sender_sheds_are_lost_at_the_receiver() {
    let policies = [
        "every:10",
        "bunch:0.3",
        "random:30%",
        "burst:30%,4",
        "fit:75M",
    ];
    let runs: Vec<(&str, bool)> = policies
        .into_iter()
        .flat_map(|policy| [(policy, true), (policy, false)])
        .collect();
    // No more intervals of lost datagrams than a result lists.
    const ENOUGH: u32 = 300;
    let count = fit(ENOUGH, PIECES as usize, 1004);
    let room = Room::new();
    let (source, original) = pattern(&room, count);
    each(&runs, |(policy, by_frame)| {
        let name = format!("{policy}-{by_frame}");
        let recv = Recv::start("udp://[::1]:0", room.path(&name));
        let unit = if *by_frame { "frame" } else { "packet" };
        // Policy `fit` depends on the rate, and otherwise nothing is paced here.
        let pace = match *policy {
            "fit:75M" => Pace::Rate("80M".parse().unwrap()),
            _ => Pace::Max,
        };
        let sent = send(&SendOptions {
            mtu: Some(1500),
            shed: policy.parse().unwrap(),
            shed_packets: !by_frame,
            seed: 8,
            pace,
            ..sending(&source, &recv.url())
        });
        let result = recv.finish_after(number(&sent, "sent"));
        let offered = u64::from(count) * PIECES;
        assert_numbers(
            &sent,
            &[
                ("offered", offered),
                ("not_sent", 0),
                ("datagram_data", 1004),
            ],
        );
        // A receiver cannot detect what is shed at the ends.
        let (first, last) = (number(&result, "first_seq"), number(&result, "last_seq"));
        let shed = number(&sent, "shed") - (offered - (last - first + 1));
        // By chance none of the few that a small buffer holds may be shed.
        let by_chance = !matches!(*policy, "every:10" | "fit:75M");
        assert!(shed > 0 || by_chance && count < ENOUGH, "{policy}");
        assert_numbers(
            &result,
            &[
                ("unique", number(&sent, "sent")),
                ("lost", shed),
                ("network_lost", shed),
                ("duplicates", 0),
            ],
        );
        let missing: Vec<u64> = result["intervals"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|gap| number(gap, "first")..=number(gap, "last"))
            .collect();
        assert_eq!(missing.len() as u64, shed);
        // The receiver's numbers are those of the datagrams, and identify the frames.
        let mut frames: Vec<u64> = missing.iter().map(|number| number / PIECES).collect();
        frames.dedup();
        // The recording starts with the first frame whose header arrived, and ends with the last frame of which any part did.
        let (first_frame, last_frame) = (first.div_ceil(PIECES), last / PIECES);
        if *by_frame {
            assert_eq!(missing.len() as u64, frames.len() as u64 * PIECES);
            assert_eq!((first % PIECES, last % PIECES), (0, PIECES - 1));
        } else {
            // Otherwise it would be the same unit.
            assert!(shed == 0 || missing.len() as u64 != frames.len() as u64 * PIECES);
        }
        let missing: Vec<u64> = (missing
            .into_iter()
            .chain(last + 1..(last_frame + 1) * PIECES))
        .filter(|number| *number >= first_frame * PIECES)
        .collect();
        let expected = harmed(&original, 8032, 1004, &missing);
        assert_numbers(
            &result,
            &[
                ("frames", last_frame - first_frame + 1),
                ("lost_frames", expected.lost_frames),
            ],
        );
        let expected =
            &expected.bytes[first_frame as usize * 8032..(last_frame + 1) as usize * 8032];
        assert!(room.read(&name) == expected, "{policy} by {unit}");
    });
}

/// The same frame by frame, with the pattern checked on arrival.
#[test]
fn a_pattern_is_checked_on_arrival() {
    let count = fit(1000, 1, 8032);
    let room = Room::new();
    let (source, _) = pattern(&room, count);
    let recv = Recv::start("udp://[::1]:0", "check");
    let sent = send(&SendOptions {
        mtu: Some(9000),
        shed: "every:7".parse().unwrap(),
        seed: SEED_OF_WHOLE_RUNS,
        ..sending(&source, &recv.url())
    });
    let result = recv.finish_after(number(&sent, "sent"));
    // The loss of a frame that is shed at the end cannot be detected.
    let lost = u64::from((count - 1) / 7);
    let good = u64::from(count - count / 7);
    assert_numbers(&result, &[("unique", good), ("lost_frames", lost)]);
    assert_numbers(
        &result["check"],
        &[("good", good), ("corrupted", 0), ("not_checked", lost)],
    );
}

#[test]
fn our_recordings_travel_over_tcp() {
    travel_over_tcp(&ours());
}

#[test]
fn recordings_of_baseband_travel_over_tcp() {
    if let Some(recordings) = of_baseband() {
        travel_over_tcp(&recordings);
    }
}

#[test]
fn recordings_of_others_travel_over_tcp() {
    if let Some(recordings) = of_others() {
        travel_over_tcp(&recordings);
    }
}

fn travel_over_tcp(recordings: &[Recording]) {
    let recordings: Vec<&Recording> = recordings
        .iter()
        .filter(|recording| recording.vdif().is_some())
        .collect();
    assert!(recordings.len() >= 4, "{} recordings", recordings.len());
    for recording in recordings {
        let room = Room::new();
        let source = room.write("in.vdif", &recording.bytes);
        let recv = Recv::start("tcp://127.0.0.1:0", room.path("out"));
        let sent = send(&sending(&source, &recv.url()));
        recv.finish();
        let leading = number(&sent, "leading_bytes") as usize;
        let end = recording.bytes.len() - number(&sent, "truncated_bytes") as usize;
        assert!(
            room.read("out") == recording.bytes[leading..end],
            "{}",
            recording.name
        );
    }
}
