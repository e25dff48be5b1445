//! What the options of `send` and `recv` promise: parts of frames kept, sinks split, sources repeated and
//! replaced, ports, groups, plain UDP.

use std::fs;
use std::path::Path;

use evlbi_core::path::Impairment;
use evlbi_testkit::name;
use evlbi_testkit::netns::{Wire, pair};
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::validity::{Cause, Gaps, Intervals};
use evlbi_wire::vdif::{Frame, HEADER_LEN, Header, Shape, StationId, StreamKey};
use evlbi_wire::{fill, pattern};

use crate::live::support::{Recv, Relay, assert_numbers, send};
use crate::result::number;

const FRAME: usize = 8032;
/// Data of a datagram where a frame of 8032 bytes is cut for an MTU of 1500.
const PIECE: usize = 1004;
const SECOND: i64 = 1_700_000_000;

fn rate(frames: u32) -> FrameRate {
    FrameRate::new(frames).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Pattern frames in a file, a second of them and more.
fn recording(folder: &Path, frames: u32) -> (String, Vec<u8>) {
    let path = folder.join("in.vdif");
    let bytes = pattern::frames(FRAME, SECOND, rate(128), frames).unwrap();
    fs::write(&path, &bytes).unwrap();
    (text(&path).to_string(), bytes)
}

fn gaps_of(path: &Path) -> Gaps {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn what_came_of_a_frame_is_kept_on_request_and_the_rest_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let (source, original) = recording(folder.path(), 300);
    let out = folder.path().join("out.vdif");
    let gaps = folder.path().join("elsewhere.json");
    let options = ["--partial", "keep", "--gaps", text(&gaps)];
    let recv = Recv::start("udp://127.0.0.1:0", &out, &options);
    let lossy = Impairment {
        loss: 0.1,
        duplicate: 0.0,
        reorder: 0.0,
        distance: 1,
    };
    let last = (original.len() / PIECE) as u64 - 1;
    let relay = Relay::start(recv.address(), lossy, 5, last);
    send(&source, &relay.url(), &["--mtu", "1500"]);
    let truth = relay.finish().truth();
    let result = recv.finish();
    truth.agrees_with(&result);

    // Each missing datagram is fill at its place, and nothing else differs but headers.
    let missing = |byte: usize| {
        truth
            .missing
            .binary_search(&((byte / PIECE) as u64))
            .is_ok()
    };
    let found = fs::read(&out).unwrap();
    assert_eq!(found.len(), original.len());
    for (number, (found, original)) in found.chunks(FRAME).zip(original.chunks(FRAME)).enumerate() {
        let frame = Frame::new_checked(found).unwrap();
        let header = Header::parse(original).unwrap();
        let whole_lost = (0..FRAME)
            .step_by(PIECE)
            .all(|at| missing(number * FRAME + at));
        assert_eq!(frame.header().time(), header.time(), "frame {number}");
        assert_eq!(frame.header().is_invalid(), whole_lost, "frame {number}");
        let mut expected = original[HEADER_LEN..].to_vec();
        let mut filled = expected.clone();
        fill::make(&mut filled);
        for at in 0..expected.len() {
            if missing(number * FRAME + HEADER_LEN + at) {
                expected[at] = filled[at];
            }
        }
        assert!(frame.payload() == expected, "frame {number}");
    }

    // The gaps file holds just the payload bytes of the missing datagrams.
    let gaps = gaps_of(&gaps);
    let mut listed = Intervals::new();
    for gap in &gaps.time {
        assert_eq!(gap.cause, Cause::Lost);
        let bytes = gap.bytes.clone().unwrap_or(0..FRAME - HEADER_LEN);
        for index in gap.indices(gaps.frame_rate.unwrap()) {
            let frame = (index - SECOND * 128) * FRAME as i64 + HEADER_LEN as i64;
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
    // Where two frames meet, the header between them is no payload.
    let payload = |bytes: &Intervals| {
        let mut within = Intervals::new();
        for frame in 0..300 {
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
    let folder = tempfile::tempdir().unwrap();
    let (source, _) = recording(folder.path(), 300);
    let out = folder.path().join("out.vdif");
    let recv = Recv::start("udp://127.0.0.1:0", &out, &[]);
    send(
        &source,
        &recv.url(),
        &["--mtu", "9000", "--shed", "every:100"],
    );
    recv.finish();
    let gaps = gaps_of(&folder.path().join("out.vdif.gaps.json"));
    assert_eq!(
        (gaps.frame_rate, gaps.frame_length),
        (Some(rate(128)), Some(FRAME))
    );
    let frames: Vec<u64> = gaps.sequence.iter().map(|gap| gap.first).collect();
    // The last of every hundred; the one at the very end cannot be missed.
    assert_eq!(frames, [99, 199]);
    for (gap, frame) in gaps.time.iter().zip(&frames) {
        assert_eq!(
            gap.start,
            FrameTime::from_index(SECOND * 128 + *frame as i64, rate(128))
        );
        assert_eq!(gap.first_byte, Some(frame * FRAME as u64));
        assert_eq!((gap.frames, gap.cause), (1, Cause::Lost));
        assert_eq!(gap.key.station, pattern::STATION);
    }
    assert_eq!(gaps.time.len(), 2);
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
    let folder = tempfile::tempdir().unwrap();
    let frames = two_stations(200);
    let source = folder.path().join("in.vdif");
    let bytes: Vec<u8> = frames.iter().flat_map(|(_, frame)| frame.clone()).collect();
    fs::write(&source, &bytes).unwrap();
    let out = folder.path().join("out-{station}-{thread}.vdif");
    let recv = Recv::start("udp://127.0.0.1:0", &out, &[]);
    send(text(&source), &recv.url(), &[]);
    let result = recv.finish();
    assert_numbers(&result, &[("frames", 800), ("lost", 0)]);
    for (code, station) in [(*b"Ef", "Ef"), (*b"Wb", "Wb")] {
        for thread in [0, 1] {
            let path = folder.path().join(format!("out-{station}-{thread}.vdif"));
            let key = StreamKey {
                station: StationId::from_code(code),
                thread,
            };
            let own = frames.iter().filter(|(of, _)| *of == key);
            let expected: Vec<u8> = own.flat_map(|(_, frame)| frame.clone()).collect();
            assert!(fs::read(&path).unwrap() == expected, "{}", path.display());
        }
    }
}

#[test]
fn a_split_that_cannot_be_written_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("no-such-folder/out-{thread}.vdif");
    let (source, _) = recording(folder.path(), 130);
    let recv = Recv::start("udp://127.0.0.1:0", &out, &[]);
    send(&source, &recv.url(), &[]);
    let received = recv.end();
    assert!(!received.status.success(), "{}", received.stderr);
    assert!(
        received.stderr.contains("no-such-folder"),
        "{}",
        received.stderr
    );
    assert_numbers(&received.result(), &[("lost", 0), ("frames", 130)]);
    assert!(
        received.stderr.lines().count() < 20,
        "said once:\n{}",
        received.stderr
    );
}

#[test]
fn repeats_follow_each_other_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let (source, original) = recording(folder.path(), 192);
    let out = folder.path().join("out.vdif");
    let recv = Recv::start("udp://127.0.0.1:0", &out, &[]);
    let sent = send(&source, &recv.url(), &["--repeat", "3", "--mtu", "1500"]);
    let result = recv.finish();
    assert_numbers(&sent, &[("frames", 3 * 192)]);
    assert_numbers(&result, &[("frames", 3 * 192), ("lost", 0), ("invalid", 0)]);
    let found = fs::read(&out).unwrap();
    for (number, found) in found.chunks(FRAME).enumerate() {
        let frame = Frame::new_checked(found).unwrap();
        let time = FrameTime::from_index(SECOND * 128 + number as i64, rate(128));
        assert_eq!(frame.header().time(), time);
        let at = number % 192 * FRAME;
        assert_eq!(frame.payload(), &original[at + HEADER_LEN..at + FRAME]);
    }
    assert_eq!(found.len(), 3 * original.len());
}

#[test]
fn shed_frames_may_go_out_as_fill_or_noise() {
    let folder = tempfile::tempdir().unwrap();
    let (source, original) = recording(folder.path(), 200);
    for replace in ["fill", "random"] {
        let out = folder.path().join(replace);
        let recv = Recv::start("udp://127.0.0.1:0", &out, &[]);
        let options = ["--shed", "every:10", "--replace", replace, "--mtu", "9000"];
        let sent = send(&source, &recv.url(), &options);
        let result = recv.finish();
        assert_numbers(&sent, &[("shed", 0), ("replaced", 20), ("sent", 200)]);
        assert_numbers(&result, &[("unique", 200), ("lost", 0), ("invalid", 0)]);
        let found = fs::read(&out).unwrap();
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
                shed && replace == "fill",
                "frame {number}"
            );
        }
    }
}

/// The first of so many free ports in a row.
fn free_ports(count: u16) -> u16 {
    (20_000..30_000)
        .step_by(usize::from(count))
        .find(|first| {
            let sockets: Result<Vec<_>, _> = (*first..first + count)
                .map(|port| std::net::UdpSocket::bind(("127.0.0.1", port)))
                .collect();
            sockets.is_ok()
        })
        .expect("free ports")
}

#[test]
fn one_stream_travels_over_several_ports() {
    let folder = tempfile::tempdir().unwrap();
    let (source, original) = recording(folder.path(), 300);
    let first = free_ports(4);
    let url = format!("udp://127.0.0.1:{first}-{}", first + 3);
    let out = folder.path().join("out.vdif");
    let recv = Recv::start_ports(&url, &out, &[], 4);
    send(&source, &url, &["--mtu", "1500"]);
    let result = recv.finish();
    assert_numbers(&result, &[("unique", 2400), ("lost", 0), ("foreign", 0)]);
    assert!(fs::read(&out).unwrap() == original);
}

#[test]
fn plain_datagrams_are_ordered_and_missed_by_their_headers() {
    let folder = tempfile::tempdir().unwrap();
    let (source, original) = recording(folder.path(), 300);
    let out = folder.path().join("out.vdif");
    let recv = Recv::start("pudp://127.0.0.1:0", &out, &[]);
    let to = format!("pudp://{}", recv.address());
    let sent = send(&source, &to, &["--mtu", "9000", "--shed", "every:7"]);
    let result = recv.finish();
    assert_numbers(
        &result,
        &[
            ("unique", number(&sent, "sent")),
            ("frames", 300),
            ("lost", 42),
            ("invalid", 42),
        ],
    );
    let found = fs::read(&out).unwrap();
    assert_eq!(found.len(), original.len());
    for (number, (found, original)) in found.chunks(FRAME).zip(original.chunks(FRAME)).enumerate() {
        let frame = Frame::new_checked(found).unwrap();
        assert_eq!(
            frame.header().time(),
            Header::parse(original).unwrap().time()
        );
        assert_eq!(found == original, number % 7 != 6, "frame {number}");
    }
}

#[test]
fn a_group_is_joined_and_sent_to_by_interface_and_source() {
    let Some(pair) = pair(&Wire::default(), name!()) else {
        return;
    };
    let far = &pair.far;
    let near = &pair.near;
    for (group, source) in [
        ("239.1.2.3", String::new()),
        ("232.1.2.3", format!("&source={}", near.v4)),
    ] {
        let from = format!("udp://{group}:2630?interface={}{source}", far.device);
        let recv = far
            .namespace
            .run(|| Recv::start(&from, Path::new("check"), &[]))
            .unwrap();
        let to = format!("udp://{group}:2630?interface={}&ttl=4", near.device);
        let sent = near
            .namespace
            .run(|| send("pattern:1024", &to, &["--duration", "2s"]))
            .unwrap();
        let result = recv.finish();
        assert_numbers(&result, &[("unique", number(&sent, "sent")), ("lost", 0)]);
        assert_numbers(
            &result["check"],
            &[("good", number(&sent, "sent")), ("corrupted", 0)],
        );
    }
}
