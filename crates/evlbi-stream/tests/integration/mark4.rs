//! Mark 4 and Mark 5B recordings are inspected, and their packets dropped.

use std::fs;
use std::path::Path;

use evlbi_core::shed::Replace;
use evlbi_net::run::Run;
use evlbi_stream::drop::DropOptions;
use evlbi_stream::inspect::{inspect, text};
use evlbi_stream::selection::Selection;
use evlbi_stream::sky::{SkyOptions, simulate};
use evlbi_testkit::python::python;
use evlbi_testkit::result::shown;
use evlbi_testkit::{Room, command};
use evlbi_wire::mark4::{Channels, Header, Tracks};
use evlbi_wire::time::FrameRate;
use evlbi_wire::{fill, mark5b};
use serde_json::json;

use crate::drop::{dropped, shed};
use crate::inspect::inspected;

/// Records a simulated station in this format, and returns the path.
fn recorded(room: &Room, channels: u32, format: &str) -> String {
    let plan = format!(
        "start = \"2019-12-31T23:59:59Z\"\nduration = 0.1\nsample_rate = 16e6\nchannels = {channels}\n\
         [[station]]\nname = \"On\"\n{format}\n"
    );
    let options = SkyOptions {
        plan: room.write("plan.toml", plan).into(),
        out: room.path("out").into(),
        force: true,
    };
    let report = shown(simulate(&options, &Run::silent()));
    report["files"][0]["file"].as_str().unwrap().to_owned()
}

/// A given frame rate that the times contradict is refused, with both.
#[test]
fn a_frame_rate_that_is_not_that_of_the_times_is_refused() {
    let room = Room::new();
    let file = recorded(&room, 4, "format = \"mark4\"\nfan_out = 4");
    let inspected = |rate: u32| {
        let rate = FrameRate::new(rate);
        inspect(
            Path::new(&file),
            &Selection::default(),
            rate,
            &Run::silent(),
        )
    };
    assert!(inspected(200).is_ok());
    let error = inspected(800).err().unwrap().to_string();
    let expected = format!(
        "the frame rate of {file} is given as 800/s, but the times of its frames show 200/s"
    );
    assert_eq!(error, expected);
}

/// The recordings of `baseband`: name of the format, channels, frame rate and the time of the first frame.
#[test]
fn recordings_of_stations_are_recognised() {
    let Some(python) = python("baseband") else {
        return;
    };
    let folder = "import baseband.data, os; print(os.path.dirname(baseband.data.__file__), end='')";
    let output = command(python).args(["-c", folder]).output().unwrap();
    let folder = String::from_utf8(output.stdout).unwrap();
    for (name, format, tracks, frame_rate, leading, first) in [
        (
            "sample.m4",
            "MKIV1_4-512-8-2",
            64,
            400,
            2696,
            "2014-06-16T07:38:12.475Z",
        ),
        (
            "sample_32track.m4",
            "MKIV1_4-256-4-2",
            32,
            400,
            9656,
            "2015-01-11T01:23:10.485Z",
        ),
        (
            "sample_32track_fanout2.m4",
            "MKIV1_2-256-8-2",
            32,
            400,
            17_436,
            "2017-03-04T04:42:26.025Z",
        ),
        (
            "sample_16track.m4",
            "MKIV1_4-128-2-2",
            16,
            400,
            22_124,
            "2013-11-03T06:00:00.77Z",
        ),
        (
            "sample_64track_fanout2_ft.m4",
            "MKIV1_2-1024-16-2",
            64,
            800,
            124_288,
            "2019-05-08T17:32:21.0725Z",
        ),
    ] {
        let selection = format!("year={}", &first[..4]).parse().unwrap();
        let path = Path::new(&folder).join(name);
        let found = shown(inspect(&path, &selection, None, &Run::silent()));
        assert_eq!(found["format"], "mark4", "{name}");
        assert_eq!(found["frame_length"], 2500 * tracks, "{name}");
        assert_eq!(found["frame_rate"], frame_rate, "{name}");
        assert_eq!(found["frame_rate_from"], "header", "{name}");
        assert_eq!(found["format_name"], format, "{name}");
        let thread = &found["threads"][0];
        let channels = thread["channels"].as_u64().unwrap() as usize;
        assert!(format.ends_with(&format!("-{channels}-2")), "{name}");
        let statistics = thread["statistics"].as_array().unwrap();
        assert_eq!(thread["channel_names"].as_array().unwrap().len(), channels);
        for channel in statistics {
            // Noise; that of the last station has hardly a sample of the higher magnitude.
            let rms = channel["components"][0]["rms"].as_f64().unwrap();
            assert!((1.0..2.5).contains(&rms), "{name}: {rms}");
        }
        assert_eq!(statistics.len(), channels, "{name}");
        assert_eq!(found["leading_bytes"], leading, "{name}");
        assert_eq!(found["first"]["utc"], first, "{name}");
        assert_eq!(
            (&found["odd_headers"], &found["frame_slips"]),
            (&json!(0), &json!([]))
        );
    }
}

/// Packets of a Mark 4 recording are replaced by fill: every replaced byte is counted, whether in headers or not. Those of 1250 bytes
/// start or end within a word.
#[test]
fn replaced_packets_of_mark4_are_counted_to_the_word() {
    let room = Room::new();
    for (channels, mtu, packet) in [(8, 1500, 1280), (8, 9000, 8000), (4, 1500, 1250)] {
        // Fan-out 4, two bits.
        let tracks = Tracks::new(8 * channels as usize).unwrap();
        let length = tracks.frame_length();
        let input = recorded(&room, channels, "format = \"mark4\"");
        let before = fs::read(&input).unwrap();
        assert_eq!(inspected(&input)["fill"]["bytes"], 0);
        let output = room.path(&format!("{packet}.m4"));
        let report = dropped(&DropOptions {
            by_packet: true,
            mtu,
            replace: Replace::Fill,
            ..shed(&input, &output, "random:30%")
        });
        assert_eq!(
            (&report["format"], &report["packet_bytes"]),
            (&json!("mark4"), &json!(packet))
        );
        let after = fs::read(&output).unwrap();
        assert_eq!(after.len(), before.len());
        let mut pattern = vec![0; after.len()];
        fill::make(&mut pattern);
        let mut lost = 0;
        for (place, before) in (0..).step_by(packet).zip(before.chunks_exact(packet)) {
            let after = &after[place..place + packet];
            assert!([before, &pattern[place..place + packet]].contains(&after));
            lost += usize::from(before != after);
        }
        assert_eq!(report["shedding"]["shed"], lost);
        // The first packet of a frame starts with its header.
        let heads = || after.chunks_exact(length);
        let without = heads()
            .filter(|frame| Header::parse(frame, tracks).is_err())
            .count();
        let in_headers = without * packet.min(tracks.header_length());
        let found = inspected(&output);
        assert!(without > 0);
        assert_eq!(found["odd_headers"], without);
        assert_eq!(found["fill"]["bytes"], lost * packet - in_headers);
        assert_eq!(
            (&found["missing_frames"], &found["frames"]),
            (&json!(0), &json!(20))
        );
    }
}

#[test]
fn replaced_packets_of_mark5b_are_counted_to_the_word() {
    let room = Room::new();
    let input = recorded(&room, 16, "format = \"mark5b\"");
    let output = room.path("out.m5b");
    let report = dropped(&DropOptions {
        by_packet: true,
        replace: Replace::Fill,
        ..shed(&input, &output, "random:5%")
    });
    let packet = report["packet_bytes"].as_u64().unwrap();
    let lost = report["shedding"]["shed"].as_u64().unwrap();
    let after = fs::read(&output).unwrap();
    let heads = || after.chunks_exact(mark5b::FRAME_LEN);
    let without = heads()
        .filter(|frame| mark5b::Header::parse(frame).is_err())
        .count() as u64;
    let found = inspected(&output);
    assert!(without > 0);
    assert_eq!(found["odd_headers"], without);
    let expected = lost * packet - without * mark5b::HEADER_LEN as u64;
    assert_eq!(found["fill"]["bytes"], expected);
    assert_eq!(found["missing_frames"], 0);
}

/// Bytes lost from a recording are found at their frame.
#[test]
fn lost_bytes_of_a_recording_are_a_slip() {
    let room = Room::new();
    let input = recorded(&room, 4, "format = \"mark4\"\nfan_out = 2");
    let mut bytes = fs::read(&input).unwrap();
    let length = 40_000;
    bytes.drain(5 * length + 1234..5 * length + 1234 + 65_528 - length);
    let found = inspected(&room.write("cut.m4", bytes));
    assert_eq!(
        found["frame_slips"],
        json!([{ "byte": 5 * length, "bytes": length as i64 - 65_528 }])
    );
    assert_eq!(
        (&found["missing_frames"], &found["gaps_total"]),
        (&json!(1), &json!(1))
    );
}

/// Frames whose time or samples are unknown are named, and so are slips and the origin of the year.
#[test]
fn what_headers_do_not_show_is_named() {
    let room = Room::new();
    let input = recorded(&room, 4, "format = \"mark4\"\nfan_out = 4");
    let (length, tracks) = (80_000, Tracks::new(32).unwrap());
    let mut bytes = fs::read(&input).unwrap();
    for frame in bytes.chunks_exact_mut(length).skip(3).take(10) {
        fill::make(&mut frame[..640]);
    }
    let others = Channels::usual(tracks, 2, 2).unwrap();
    for frame in bytes.chunks_exact_mut(length).skip(17) {
        let mut header = Header::parse(frame, tracks).unwrap();
        others.describe(&mut header);
        header.set_time_code(header.time_code().unwrap());
        header.emit(frame);
    }
    bytes.drain(15 * length + 1000..15 * length + 1008);
    let path = room.write("damaged.m4", bytes);
    let selection = "year=2019".parse().unwrap();
    let report = inspect(Path::new(&path), &selection, None, &Run::silent()).unwrap();
    let text = text(&report);
    for expected in [
        "dates are those of 2019, as given",
        "10 with a damaged header",
        "2 of unknown time",
        "3 with other channels on the tracks",
        "8 bytes lost behind byte 1200000",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    let found = inspected(&path);
    assert_eq!(found["frames_of_other_channels"], 3);
    assert_eq!(found["threads"][0]["sampled_frames"], 6);
}

/// Relatives of Mark 4 are raw data with a name.
#[test]
fn formats_that_are_not_read_have_a_name() {
    let room = Room::new();
    let mut bytes = vec![0x5a; 4 * 20_160 * 4];
    for frame in bytes.chunks_exact_mut(20_160 * 4) {
        Header::new(Tracks::new(32).unwrap()).emit(frame);
    }
    let found = inspected(&room.write("in.vlba", bytes));
    assert_eq!(found["format"], "raw");
    assert_eq!(found["not_read"], "VLBA tape format of 32 tracks");
}
