//! Selected stations and threads of a shared recording or stream are sent, recorded and kept, and nothing else.

use std::net::SocketAddr;
use std::time::Duration;

use evlbi_core::packetise::Rule;
use evlbi_core::path::{Law, Loss};
use evlbi_core::time::Nanos;
use evlbi_net::clock::Clock;
use evlbi_net::run::Run;
use evlbi_net::sim::Network;
use evlbi_stream::drop::{DropOptions, drop};
use evlbi_stream::recv::{RecvOptions, receive};
use evlbi_stream::selection::Selection;
use evlbi_stream::send::{Pace, SendOptions, send};
use evlbi_testkit::Room;
use evlbi_testkit::recording::{FRAME, HEADER, RATE, frame, key, noise, time};
use evlbi_testkit::result::{refused, shown};
use evlbi_wire::time::FrameRate;
use evlbi_wire::validity::{Cause, Gaps, TimeGap};
use evlbi_wire::vdif::{Header, StationId, StreamKey};
use serde_json::Value;

use crate::drop::shed;
use crate::turn;

const JB: StreamKey = StreamKey {
    station: StationId(u16::from_be_bytes(*b"Jb")),
    thread: 0,
};

/// Returns seconds of two threads of Ef and one of Jb, frame by frame.
fn shared(seconds: i64) -> Vec<u8> {
    let number_of = |number| {
        let mut of_jb = frame(number, 2, false);
        let mut header = Header::parse(&of_jb).unwrap();
        header.set_key(JB);
        header.emit(&mut of_jb);
        [frame(number, 0, false), of_jb, frame(number, 1, false)].concat()
    };
    (0..seconds * i64::from(RATE)).flat_map(number_of).collect()
}

/// Returns the frames of a stream, without the others.
fn of(bytes: &[u8], key: StreamKey) -> Vec<u8> {
    let frames = bytes.chunks_exact(FRAME);
    let ours = frames.filter(|frame| Header::parse(frame).unwrap().key() == key);
    ours.flatten().copied().collect()
}

fn selection(settings: &str) -> Selection {
    Selection::split(&format!("x#{settings}")).unwrap().1
}

/// Options of a recording that is sent, and of its receiver.
pub fn options(network: &Network, from: &str, to: &str) -> (SendOptions, RecvOptions) {
    let port = SocketAddr::from(([10, 0, 0, 1], 2630));
    let send = SendOptions {
        source: from.into(),
        to: network.to(port),
        ..SendOptions::default()
    };
    let recv = RecvOptions {
        from: network.to(port),
        to: to.into(),
        ring: Some(16 << 20),
        idle: Some(Duration::from_secs(1)),
        ..RecvOptions::default()
    };
    (send, recv)
}

/// Returns the results of a sender and its receiver.
fn played(clock: &Clock, network: &Network, options: &(SendOptions, RecvOptions)) -> [Value; 2] {
    clock.simulate(|| {
        let receiving = receive(&options.1, &Run::silent().on(&network.far(1))).unwrap();
        let sending = send(&options.0, &Run::silent().on(&network.near(1))).unwrap();
        let sent = serde_json::to_value(sending.join().unwrap()).unwrap();
        [sent, serde_json::to_value(receiving.join()).unwrap()]
    })
}

pub fn network(laws: &[Law]) -> (Clock, Network) {
    let clock = Clock::simulated(1_800_000_000 * Nanos::SECOND.0);
    let network = Network::between(&clock, [laws, &[]], 9000, 1);
    (clock, network)
}

/// Frames of other streams are neither recorded nor lost, and those of the selected one are what they are in a recording of all.
#[test]
fn a_thread_of_a_lossy_stream_is_recorded_alone() {
    let room = Room::new();
    let input = room.write("shared.vdif", shared(4));
    let lossy = || network(&[Law::Loss(Loss::Random { fraction: 0.05 })]);
    let (clock, path) = lossy();
    let [_, all] = played(
        &clock,
        &path,
        &options(&path, &input, &room.path("all.vdif")),
    );
    let (clock, path) = lossy();
    let (send, recv) = options(&path, &input, &room.path("one.vdif"));
    let recv = RecvOptions {
        selection: selection("station=Ef&thread=1"),
        ..recv
    };
    let [_, one] = played(&clock, &path, &(send, recv));
    assert!(all["lost_frames"].as_u64() > one["lost_frames"].as_u64());
    assert!(one["lost_frames"].as_u64() > Some(0), "{one}");
    let expected = of(&room.read("all.vdif"), key(1));
    assert!(room.read("one.vdif") == expected);
    assert_eq!(
        one["frames"].as_u64(),
        Some((expected.len() / FRAME) as u64)
    );
    let both = |name: &str| one[name].as_u64().unwrap();
    assert_eq!(
        Some(both("frames") + both("unselected_frames")),
        all["frames"].as_u64()
    );
    assert!(
        one["from"]
            .as_str()
            .unwrap()
            .ends_with("#station=Ef&thread=1")
    );
    let gaps: Gaps = serde_json::from_slice(&room.read("one.vdif.gaps.json")).unwrap();
    assert_eq!(
        gaps.time.iter().map(|gap| gap.frames).sum::<u64>(),
        both("lost_frames")
    );
    for gap in gaps.time {
        assert_eq!(gap.key, key(1));
        let first = gap.first_byte.unwrap() as usize;
        let header = Header::parse(&expected[first..]).unwrap();
        assert_eq!((header.time(), header.is_invalid()), (gap.start, true));
    }
}

/// The receiver ends two seconds after the first frame, and leaves no empty recording.
#[test]
fn a_station_that_does_not_arrive_is_refused_with_those_that_do() {
    let room = Room::new();
    for (settings, says) in [
        ("station=Xx", "it has no station Xx: it contains Ef, Jb"),
        (
            "station=Ef&thread=0,5",
            "it has no thread 5: it contains 0, 1",
        ),
    ] {
        let input = room.write("shared.vdif", shared(8));
        let (clock, path) = network(&[]);
        let (send, recv) = options(&path, &input, &room.path("one.vdif"));
        let recv = RecvOptions {
            selection: selection(settings),
            force: true,
            ..recv
        };
        let [_, received] = played(&clock, &path, &(send, recv));
        let error = received["error"].as_str().unwrap();
        assert!(
            error.starts_with("cannot record ") && error.ends_with(says),
            "{error}"
        );
        // What did arrive is kept.
        assert_eq!(
            std::path::Path::new(&room.path("one.vdif")).exists(),
            settings.contains("Ef")
        );
    }
}

/// A live split ends with the first frame that is not the described one.
#[test]
fn a_channel_or_year_that_a_stream_does_not_have_ends_its_split() {
    let room = Room::new();
    let input = room.write("in.vdif", turn::thread(turn::shape(800, 4, 2), key(0)));
    for (settings, says) in [
        (
            "channels=1,99",
            "there is no channel 99: the channels are 0 to 3",
        ),
        ("year=2006", "its times cannot be of 2006"),
    ] {
        let (clock, path) = network(&[]);
        let (send, recv) = options(&path, &input, &room.path("live-{channel}.vdif"));
        let recv = RecvOptions {
            selection: selection(settings),
            ..recv
        };
        let [_, received] = played(&clock, &path, &(send, recv));
        let error = received["error"].as_str().unwrap();
        assert!(
            error.starts_with("cannot record ") && error.ends_with(says),
            "{error}"
        );
        assert!(received["frames"].as_u64() < Some(100), "{received}");
        assert!(!std::path::Path::new(&room.path("live-1.vdif")).exists());
    }
}

/// Bytes without frames cannot be selected from.
#[test]
fn nothing_is_selected_from_raw_data() {
    let room = Room::new();
    let input = room.write("raw", noise(1 << 20, 1));
    let (clock, path) = network(&[]);
    let (send, recv) = options(&path, &input, &room.path("one.vdif"));
    let send = SendOptions {
        pace: Pace::Max,
        ..send
    };
    let recv = RecvOptions {
        selection: selection("thread=0"),
        ..recv
    };
    let [_, received] = played(&clock, &path, &(send, recv));
    let error = received["error"].as_str().unwrap();
    assert!(
        error.ends_with("it is neither VDIF, Mark 5B nor Mark 4"),
        "{error}"
    );
    assert!(!std::path::Path::new(&room.path("one.vdif")).exists());
}

#[test]
fn a_station_of_a_recording_is_sent_alone() {
    let room = Room::new();
    let bytes = shared(2);
    let input = room.write("shared.vdif", &bytes);
    for (settings, key) in [("station=Jb", JB), ("thread=1", key(1))] {
        let (clock, path) = network(&[]);
        let (send, recv) = options(&path, &input, &room.path("one.vdif"));
        let send = SendOptions {
            selection: selection(settings),
            ..send
        };
        let recv = RecvOptions {
            force: true,
            ..recv
        };
        let [sent, received] = played(&clock, &path, &(send, recv));
        assert!(room.read("one.vdif") == of(&bytes, key));
        assert_eq!(sent["unselected_frames"], 200);
        assert_eq!(
            (&received["expected"], &received["lost"]),
            (&sent["sent"], &0.into())
        );
    }
}

/// A damaged header costs the selected station nothing. Behind lost bytes, a few frames without a header are kept at their expected place,
/// and then all frames at their new one.
#[test]
fn a_station_of_a_damaged_recording_is_sent_as_it_is_kept() {
    let room = Room::new();
    let mut bytes = shared(4);
    let damaged = 3 * 60 + 1;
    bytes[damaged * FRAME..][..HEADER].fill(0x5a);
    let mut expected = of(&shared(4), JB);
    expected[60 * FRAME..][..HEADER].fill(0x5a);
    bytes.drain(3 * 90 * FRAME + 500..3 * 90 * FRAME + 800);
    bytes.truncate(bytes.len() - 400);
    let input = room.write("shared.vdif", &bytes);
    let kept = DropOptions {
        selection: selection("station=Jb"),
        ..shed(&input, &room.path("kept.vdif"), "none")
    };
    let kept = shown(drop(&kept, &Run::silent()));
    let frames = room.read("kept.vdif");
    assert!(frames[..90 * FRAME] == expected[..90 * FRAME]);
    assert!(frames.ends_with(&expected[96 * FRAME..]));
    let (clock, path) = network(&[]);
    let (send, recv) = options(&path, &input, &room.path("one.vdif"));
    let send = SendOptions {
        selection: selection("station=Jb"),
        ..send
    };
    let [sent, received] = played(&clock, &path, &(send, recv));
    assert!(room.read("one.vdif") == frames, "{received}");
    for count in ["unselected_frames", "truncated_bytes"] {
        assert_eq!(sent[count], kept[count], "{count}");
    }
}

#[test]
fn a_thread_of_a_recording_is_kept_alone() {
    let room = Room::new();
    let bytes = shared(2);
    let input = room.write("shared.vdif", &bytes);
    let options = DropOptions {
        selection: selection("station=Ef&thread=1"),
        ..shed(&input, &room.path("one.vdif"), "none")
    };
    let report = shown(drop(&options, &Run::silent()));
    assert!(room.read("one.vdif") == of(&bytes, key(1)));
    let counts = [
        "frames",
        "frames_out",
        "unselected_frames",
        "truncated_bytes",
        "leading_bytes",
    ];
    assert_eq!(
        counts.map(|name| report[name].as_u64().unwrap()),
        [100, 100, 200, 0, 0]
    );
}

/// Gaps of frames that are kept as a whole or in part have their places in the copy; missing frames are listed, too.
#[test]
fn the_gaps_of_what_is_kept_are_listed_again() {
    let room = Room::new();
    let frames = shared(2);
    let frames = frames.chunks(FRAME).enumerate();
    let is_there = |place: &usize| !matches!(place, 61 | 64 | 298);
    let input: Vec<u8> = frames
        .filter(|(place, _)| is_there(place))
        .flat_map(|(_, it)| it.to_vec())
        .collect();
    let input = room.write("lb.vdif", input);
    let gap = |key, number, frames, place: Option<u64>, bytes| TimeGap {
        key,
        start: time(number),
        frames,
        first_byte: place.map(|place| place * FRAME as u64),
        bytes,
        cause: Cause::Lost,
    };
    let list = |places: [u64; 2]| {
        vec![
            gap(JB, 10, 1, Some(places[0]), None),
            gap(JB, 20, 2, None, None),
            gap(JB, 30, 2, Some(places[1]), Some(8..200)),
            gap(JB, 99, 1, None, None),
        ]
    };
    let of_ef = gap(key(1), 40, 3, Some(120), None);
    let mut listed = list([31, 89]);
    listed.push(of_ef);
    listed.sort_by_key(|gap| (gap.start.second, gap.start.frame));
    let document = Gaps {
        frame_rate: FrameRate::new(RATE),
        frame_length: Some(FRAME),
        time: listed.clone(),
        ..Gaps::default()
    };
    room.write("lb.vdif.gaps.json", serde_json::to_vec(&document).unwrap());
    for (settings, expected) in [("", listed), ("station=Jb", list([10, 28]))] {
        let options = DropOptions {
            selection: match settings {
                "" => Selection::default(),
                settings => selection(settings),
            },
            force: true,
            ..shed(&input, &room.path("out.vdif"), "none")
        };
        shown(drop(&options, &Run::silent()));
        let gaps: Gaps = serde_json::from_slice(&room.read("out.vdif.gaps.json")).unwrap();
        let mut found = gaps.time;
        found.sort_by_key(|gap| (gap.start.second, gap.start.frame));
        assert_eq!(found, expected, "{settings}");
    }
}

#[test]
fn what_cannot_be_selected_is_refused_at_once() {
    let room = Room::new();
    let input = room.write("shared.vdif", shared(2));
    let raw = room.write("raw", noise(100_000, 1));
    for (input, settings, says) in [
        (
            &input,
            "station=Xx",
            "it has no station Xx: it contains Ef, Jb",
        ),
        (
            &input,
            "station=Jb&thread=1",
            "it has no thread 1: it contains 0",
        ),
        (
            &input,
            "channels=0",
            "`channels` after `#` cannot be used here",
        ),
        (&input, "name=Da", "only by station and thread"),
        (&raw, "station=Ef", "it is neither VDIF, Mark 5B nor Mark 4"),
    ] {
        let selection = selection(settings);
        let dropped = DropOptions {
            selection: selection.clone(),
            ..shed(input, &room.path("one.vdif"), "none")
        };
        let why = refused(drop(&dropped, &Run::silent()));
        assert!(why.contains(says) && why.contains(input.as_str()), "{why}");
        assert!(!std::path::Path::new(&room.path("one.vdif")).exists());
        let sent = SendOptions {
            source: input.clone(),
            selection,
            ..SendOptions::default()
        };
        let why = refused(send(&sent, &Run::silent()).map(|_| ()));
        assert!(why.contains(says), "{why}");
    }
    for (source, cut, says) in [
        ("pattern:8032", Rule::Frames, "which is generated"),
        (input.as_str(), Rule::Plain, "cut as bytes"),
    ] {
        let sent = SendOptions {
            source: source.into(),
            selection: selection("thread=0"),
            pace: Pace::Max,
            cut,
            ..SendOptions::default()
        };
        let why = refused(send(&sent, &Run::silent()).map(|_| ()));
        assert!(why.contains(says), "{why}");
    }
    let recv = RecvOptions {
        selection: selection("channels=0"),
        ..RecvOptions::default()
    };
    let why = refused(receive(&recv, &Run::silent()).map(|_| ()));
    assert!(why.contains("`channels` after `#`"), "{why}");
}
