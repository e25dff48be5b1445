//! Options: parts of frames kept, sinks split, sources repeated and replaced, several ports, plain UDP.

use evlbi_core::deframe::Partial;
use evlbi_core::path::Impairment;
use evlbi_core::shed::Replace;
use evlbi_stream::recv::RecvOptions;
use evlbi_stream::send::SendOptions;
use evlbi_testkit::Room;
use evlbi_testkit::address::own_address;
use evlbi_testkit::buffer::fit;
use evlbi_testkit::relay::Relay;
use evlbi_testkit::result::{assert_numbers, number};
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::validity::{Cause, Gaps, Intervals};
use evlbi_wire::vdif::{HEADER_LEN, Header, Shape, StationId, StreamKey};
use evlbi_wire::{fill, pattern};

use super::support::{HERE, Recv, SEED_OF_WHOLE_RUNS, recording as receiving, send, sending};

const FRAME: usize = 8032;
/// Data of a datagram when a frame of 8032 bytes is split for an MTU of 1500.
const PIECE: usize = 1004;
const SECOND: i64 = 1_700_000_000;

fn rate(frames: u32) -> FrameRate {
    FrameRate::new(frames).unwrap()
}

/// Pattern frames in a file: two and a third seconds.
struct Recording {
    source: String,
    bytes: Vec<u8>,
    frames: u32,
    rate: FrameRate,
}

/// Up to `frames` frames, which fit a receiver's buffer as `datagrams` datagrams each.
fn recording(room: &Room, frames: u32, datagrams: usize) -> Recording {
    let frames = fit(frames, datagrams, FRAME / datagrams);
    let rate = rate(frames * 3 / 7);
    let bytes = pattern::frames(FRAME, SECOND, rate, frames).unwrap();
    Recording {
        source: room.write("in.vdif", &bytes),
        bytes,
        frames,
        rate,
    }
}

impl Recording {
    /// Index of the first frame since 1970.
    fn first(&self) -> i64 {
        SECOND * i64::from(self.rate.get())
    }
}

fn gaps_of(room: &Room, name: &str) -> Gaps {
    serde_json::from_slice(&room.read(name)).unwrap()
}

#[test]
fn the_received_parts_of_a_frame_are_kept_on_request_and_the_rest_is_listed() {
    let room = Room::new();
    let recording = recording(&room, 300, FRAME / PIECE);
    let original = &recording.bytes;
    let out = room.path("out.vdif");
    let recv = Recv::with(&RecvOptions {
        partial: Partial::Keep,
        gaps: Some(room.path("elsewhere.json").into()),
        ..receiving(HERE, &out)
    });
    let lossy = Impairment {
        loss: 0.1,
        duplicate: 0.0,
        reorder: 0.0,
        distance: 1,
    };
    let last = (original.len() / PIECE) as u64 - 1;
    let relay = Relay::start(recv.address(), lossy, 5, last);
    send(&SendOptions {
        mtu: Some(1500),
        ..sending(&recording.source, &relay.url())
    });
    let passed = relay.finish();
    let truth = passed.truth();
    let result = recv.finish_after(passed.count());
    truth.agrees_with(&result);

    // Each missing datagram is fill at its place, and nothing else differs but headers.
    let missing = |byte: usize| {
        truth
            .missing
            .binary_search(&((byte / PIECE) as u64))
            .is_ok()
    };
    let found = room.read("out.vdif");
    assert_eq!(found.len(), original.len());
    for (number, (found, original)) in found.chunks(FRAME).zip(original.chunks(FRAME)).enumerate() {
        let frame = Header::parse(found).unwrap();
        let header = Header::parse(original).unwrap();
        let whole_lost = (0..FRAME)
            .step_by(PIECE)
            .all(|at| missing(number * FRAME + at));
        assert_eq!(frame.time(), header.time(), "frame {number}");
        assert_eq!(frame.is_invalid(), whole_lost, "frame {number}");
        let mut expected = original[HEADER_LEN..].to_vec();
        let mut filled = expected.clone();
        fill::make(&mut filled);
        for at in 0..expected.len() {
            if missing(number * FRAME + HEADER_LEN + at) {
                expected[at] = filled[at];
            }
        }
        assert!(found[HEADER_LEN..] == expected, "frame {number}");
    }

    // The gaps file holds just the payload bytes of the missing datagrams.
    let gaps = gaps_of(&room, "elsewhere.json");
    let mut listed = Intervals::new();
    for gap in &gaps.time {
        assert_eq!(gap.cause, Cause::Lost);
        let bytes = gap.bytes.clone().unwrap_or(0..FRAME - HEADER_LEN);
        for index in gap.indices(gaps.frame_rate.unwrap()) {
            let frame = (index - recording.first()) * FRAME as i64 + HEADER_LEN as i64;
            listed.insert(frame + bytes.start as i64..frame + bytes.end as i64);
        }
    }
    let mut expected = Intervals::new();
    for datagram in &truth.missing {
        let start = *datagram as i64 * PIECE as i64;
        let header = if start % FRAME as i64 == 0 {
            HEADER_LEN as i64
        } else {
            0
        };
        expected.insert(start + header..start + PIECE as i64);
    }
    // Where two frames meet, the header between them is not payload.
    let payload = |bytes: &Intervals| {
        let mut within = Intervals::new();
        for frame in 0..i64::from(recording.frames) {
            let start = frame * FRAME as i64;
            within.insert(start + HEADER_LEN as i64..start + FRAME as i64);
        }
        bytes.intersect(&within)
    };
    assert_eq!(payload(&listed), payload(&expected));
    let sequence: Vec<u64> = gaps
        .sequence
        .iter()
        .flat_map(|gap| gap.first..=gap.last)
        .collect();
    assert_eq!(sequence, truth.missing);
}

#[test]
fn a_lost_frame_is_listed_with_its_time_and_place() {
    let room = Room::new();
    let recording = recording(&room, 300, 1);
    let third = u64::from(recording.frames / 3);
    let out = room.path("out.vdif");
    let recv = Recv::start(HERE, &out);
    let sent = send(&SendOptions {
        mtu: Some(9000),
        shed: format!("every:{third}").parse().unwrap(),
        seed: SEED_OF_WHOLE_RUNS,
        ..sending(&recording.source, &recv.url())
    });
    recv.finish_after(number(&sent, "sent"));
    let gaps = gaps_of(&room, "out.vdif.gaps.json");
    assert_eq!(
        (gaps.frame_rate, gaps.frame_length),
        (Some(recording.rate), Some(FRAME))
    );
    let frames: Vec<u64> = gaps.sequence.iter().map(|gap| gap.first).collect();
    // The last of every third; the loss of one at the very end cannot be detected.
    let last = Some(3 * third - 1).filter(|last| last + 1 < u64::from(recording.frames));
    let expected: Vec<u64> = [third - 1, 2 * third - 1].into_iter().chain(last).collect();
    assert_eq!(frames, expected);
    for (gap, frame) in gaps.time.iter().zip(&frames) {
        assert_eq!(
            gap.start,
            FrameTime::from_index(recording.first() + *frame as i64, recording.rate)
        );
        assert_eq!(gap.first_byte, Some(frame * FRAME as u64));
        assert_eq!((gap.frames, gap.cause), (1, Cause::Lost));
        assert_eq!(gap.key.station, pattern::STATION);
    }
    assert_eq!(gaps.time.len(), frames.len());
}

/// Two stations with two threads each, interleaved.
fn two_stations(frames: u32) -> Vec<(StreamKey, Vec<u8>)> {
    let shape = Shape {
        frame_length: 1032,
        log2_channels: 0,
        bits: 2,
        complex: false,
        legacy: false,
    };
    let mut all = Vec::new();
    for number in 0..frames {
        for code in [*b"Ef", *b"Wb"] {
            for thread in [0, 1] {
                let key = StreamKey {
                    station: StationId::from_code(code),
                    thread,
                };
                let mut header = Header::new(shape, key);
                header
                    .set_time(FrameTime::from_index(
                        SECOND * 64 + i64::from(number),
                        rate(64),
                    ))
                    .unwrap();
                let mut frame = vec![0; 1032];
                header.emit(&mut frame);
                pattern::payload(number, &mut frame[HEADER_LEN..]);
                all.push((key, frame));
            }
        }
    }
    all
}

#[test]
fn one_stream_is_split_by_station_and_thread() {
    let room = Room::new();
    let count = fit(200, 4, 1032);
    let frames = two_stations(count);
    let bytes: Vec<u8> = frames.iter().flat_map(|(_, frame)| frame.clone()).collect();
    let source = room.write("in.vdif", &bytes);
    let out = room.path("out-{station}-{thread}.vdif");
    let recv = Recv::start(HERE, &out);
    send(&sending(&source, &recv.url()));
    let all = u64::from(4 * count);
    let result = recv.finish_after(all);
    assert_numbers(&result, &[("frames", all), ("lost", 0)]);
    for (code, station) in [(*b"Ef", "Ef"), (*b"Wb", "Wb")] {
        for thread in [0, 1] {
            let name = format!("out-{station}-{thread}.vdif");
            let key = StreamKey {
                station: StationId::from_code(code),
                thread,
            };
            let own = frames.iter().filter(|(of, _)| *of == key);
            let expected: Vec<u8> = own.flat_map(|(_, frame)| frame.clone()).collect();
            assert!(room.read(&name) == expected, "{name}");
        }
    }
}

#[test]
fn a_split_that_cannot_be_written_is_an_error() {
    let room = Room::new();
    let out = room.path("no-such-folder/out-{thread}.vdif");
    let recording = recording(&room, 130, 1);
    let recv = Recv::start(HERE, &out);
    send(&sending(&recording.source, &recv.url()));
    let frames = recording.frames.into();
    recv.until_arrived(frames);
    recv.stop();
    let (result, said) = recv.end_with_notes();
    let error = result["write_error"].as_str().unwrap();
    assert!(error.contains("no-such-folder"), "{error}");
    assert_numbers(&result, &[("lost", 0), ("frames", frames)]);
    assert!(said.len() < 20, "said once: {said:?}");
}

#[test]
fn repeats_follow_each_other_in_time() {
    let room = Room::new();
    let pieces = FRAME / PIECE;
    let recording = recording(&room, 192, 3 * pieces);
    let original = &recording.bytes;
    let out = room.path("out.vdif");
    let recv = Recv::start(HERE, &out);
    let sent = send(&SendOptions {
        repeat: 3,
        mtu: Some(1500),
        ..sending(&recording.source, &recv.url())
    });
    let frames = 3 * u64::from(recording.frames);
    let result = recv.finish_after(frames * pieces as u64);
    assert_numbers(&sent, &[("frames", frames)]);
    assert_numbers(&result, &[("frames", frames), ("lost", 0), ("invalid", 0)]);
    let found = room.read("out.vdif");
    for (number, found) in found.chunks(FRAME).enumerate() {
        let frame = Header::parse(found).unwrap();
        let time = FrameTime::from_index(recording.first() + number as i64, recording.rate);
        assert_eq!(frame.time(), time);
        let at = number % recording.frames as usize * FRAME;
        assert_eq!(found[HEADER_LEN..], original[at + HEADER_LEN..at + FRAME]);
    }
    assert_eq!(found.len(), 3 * original.len());
}

#[test]
fn shed_frames_may_go_out_as_fill_or_noise() {
    let room = Room::new();
    let recording = recording(&room, 200, 1);
    let original = &recording.bytes;
    let frames = u64::from(recording.frames);
    for (name, replace) in [("fill", Replace::Fill), ("random", Replace::Random)] {
        let out = room.path(name);
        let recv = Recv::start(HERE, &out);
        let sent = send(&SendOptions {
            shed: "every:10".parse().unwrap(),
            replace,
            mtu: Some(9000),
            seed: SEED_OF_WHOLE_RUNS,
            ..sending(&recording.source, &recv.url())
        });
        let result = recv.finish_after(frames);
        let replaced = frames / 10;
        assert_numbers(
            &sent,
            &[("shed", 0), ("replaced", replaced), ("sent", frames)],
        );
        assert_numbers(&result, &[("unique", frames), ("lost", 0), ("invalid", 0)]);
        let found = room.read(name);
        assert_eq!(found.len(), original.len());
        for (number, (found, original)) in
            found.chunks(FRAME).zip(original.chunks(FRAME)).enumerate()
        {
            let shed = number % 10 == 9;
            assert_eq!(
                found[..HEADER_LEN],
                original[..HEADER_LEN],
                "frame {number}"
            );
            assert_eq!(
                found[HEADER_LEN..] == original[HEADER_LEN..],
                !shed,
                "frame {number}"
            );
            let mut filled = vec![0; FRAME - HEADER_LEN];
            fill::make(&mut filled);
            assert_eq!(
                found[HEADER_LEN..] == filled,
                shed && name == "fill",
                "frame {number}"
            );
        }
    }
}

/// At a separate address, where all ports are free.
#[test]
fn one_stream_travels_over_several_ports() {
    let room = Room::new();
    let recording = recording(&room, 300, FRAME / PIECE);
    let url = format!("udp://{}:2630-2633", own_address());
    let out = room.path("out.vdif");
    let recv = Recv::start(&url, &out);
    send(&SendOptions {
        mtu: Some(1500),
        ..sending(&recording.source, &url)
    });
    let all = u64::from(recording.frames) * (FRAME / PIECE) as u64;
    let result = recv.finish_after(all);
    assert_numbers(&result, &[("unique", all), ("lost", 0), ("foreign", 0)]);
    assert!(room.read("out.vdif") == recording.bytes);
}

#[test]
fn plain_datagrams_are_ordered_and_missed_by_their_headers() {
    // The order of threads is detected from the first 64.
    const FRAME: usize = 1032;
    let count = fit(300, 1, FRAME);
    let frames = pattern::frames(FRAME, SECOND, rate(count * 3 / 7), count).unwrap();
    let room = Room::new();
    let source = room.write("in.vdif", &frames);
    let out = room.path("out.vdif");
    let recv = Recv::start("pudp://127.0.0.1:0", &out);
    let sent = send(&SendOptions {
        shed: "every:7".parse().unwrap(),
        seed: SEED_OF_WHOLE_RUNS,
        ..sending(&source, &recv.url())
    });
    let unique = number(&sent, "sent");
    let result = recv.finish_after(unique);
    // The loss of one that is shed at the end cannot be detected.
    let lost = u64::from((count - 1) / 7);
    let known = unique + lost;
    assert_numbers(
        &result,
        &[
            ("unique", unique),
            ("frames", known),
            ("lost", lost),
            ("invalid", lost),
        ],
    );
    let original = &frames[..known as usize * FRAME];
    let found = room.read("out.vdif");
    assert_eq!(found.len(), original.len());
    for (number, (found, original)) in found.chunks(FRAME).zip(original.chunks(FRAME)).enumerate() {
        let frame = Header::parse(found).unwrap();
        assert_eq!(frame.time(), Header::parse(original).unwrap().time());
        assert_eq!(found == original, number % 7 != 6, "frame {number}");
    }
}
