//! Stations that recorded Mark 5B and Mark 4, alone and with VDIF, whole and with fill, and parts of recordings.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;

use evlbi_core::shed::Replace;
use evlbi_correlate::CorrelateOptions;
use evlbi_correlate::loss_curve::{Kind, LossCurveOptions};
use evlbi_testkit::Room;
use evlbi_wire::fill;
use evlbi_wire::vdif::{Header, Shape, StreamKey};
use serde_json::Value;

use crate::{correlated, curve, delayed, near, not_correlated, number, sky};

/// Three stations with two channels of two bits; `on` continues the plan of the third.
fn plan(on: &str) -> String {
    format!(
        r#"
        start = "2024-01-01T12:00:00Z"
        duration = 0.5
        sample_rate = 4e6
        correlation = 0.3
        sky_frequency = 4.9e9
        edv = 1
        channels = 2
        [[station]]
        name = "Ef"
        [[station]]
        name = "Jb"
        format = "mark5b"
        delay = [2.5e-6, 1e-7]
        [[station]]
        name = "On"
        delay = [-1.5e-6, -3e-7]
        {on}
        "#
    )
}

const MARK4: &str = "format = 'mark4'\nfan_out = 2";
const DELAYS: [&str; 3] = ["0", "2.5us,1e-7", "-1.5us,-3e-7"];
/// Settings of the second station. Its times repeat every 1000 days.
const MARK5B: &str = "format=Mark5B-16-2-2&year=2024";

/// Makes the stations of a plan; returns a function that gives the path of a recording with its settings.
fn stations(room: &Room, plan: &str) -> impl Fn(&str) -> String + use<> {
    sky(room, plan);
    let folder = room.path("sky");
    move |input| format!("{folder}/{input}")
}

fn baseline<'v>(result: &'v Value, stations: [&str; 2]) -> &'v Value {
    let baselines = result["baselines"].as_array().unwrap();
    let is_of = |it: &&Value| it["stations"] == serde_json::json!(stations);
    baselines.iter().find(is_of).unwrap()
}

/// Returns the correlation of the pair of the first station with the second one, without delays.
#[track_caller]
fn pair(inputs: [&str; 2]) -> Value {
    let result = correlated(&inputs, &delayed(128, &[]));
    result["baselines"][0].clone()
}

/// The same sky has the same fringe in each format. Headers of Mark 4 cost 0.8 % of the samples.
#[test]
fn stations_of_different_formats_correlate() {
    let room = Room::new();
    let at = stations(&room, &plan(MARK4));
    let (jb, on) = (at(&format!("Jb.m5b#{MARK5B}")), at("On.m4"));
    let mixed = correlated(&[&at("Ef.vdif"), &jb, &on], &delayed(128, &DELAYS));
    let vdif = Room::new();
    let plain = stations(&vdif, &plan("").replace("mark5b", "vdif"));
    let vdif = ["Ef", "Jb", "On"].map(|name| plain(&format!("{name}.vdif")));
    let vdif = correlated(&vdif.each_ref().map(String::as_str), &delayed(128, &DELAYS));
    for (stations, weight) in [
        (["Ef", "Jb"], 1.0),
        (["Ef", "On"], 0.992),
        (["Jb", "On"], 0.992),
    ] {
        let (mixed, vdif) = (baseline(&mixed, stations), baseline(&vdif, stations));
        near(number(mixed, "/weight"), weight, 1e-4);
        near(number(mixed, "/amplitude/corrected"), 0.3, 0.01);
        for (measure, within) in [("/delay_s", 1e-9), ("/phase_rad", 0.02), ("/rate_hz", 0.02)] {
            near(number(mixed, measure), number(vdif, measure), within);
        }
        let ratio = number(mixed, "/amplitude/valid") / number(vdif, "/amplitude/valid");
        near(ratio, 1.0, 0.01);
        near(number(mixed, "/snr") / number(vdif, "/snr"), 1.0, 0.02);
    }
    let sources = mixed["stations"].as_array().unwrap().iter();
    let sources: Vec<&Value> = sources.map(|station| &station["channels"]).collect();
    assert_eq!(sources, [2, 2, 2]);
    // The plan of the sky is a model, and knows stations without codes by the names of their files.
    let options = CorrelateOptions {
        model: Some(at("sky.toml").into()),
        channels: Some(128),
        ..CorrelateOptions::default()
    };
    let modelled = correlated(&[&on, &jb], &options);
    near(number(&modelled["baselines"][0], "/delay_s"), 0.0, 1e-9);
}

/// Writes the samples of a recording of 8 bits with more bits: `RECORDING.wide`.
fn widened(recording: &str, bits: u8) -> String {
    let read = fs::read(recording).unwrap();
    let mut written = Vec::new();
    let mut rest = &read[..];
    while let Ok(mut header) = Header::parse(rest) {
        let (frame, next) = rest.split_at(header.frame_length());
        rest = next;
        let shape = header.shape();
        let per_word = 32 / usize::from(bits);
        let payload = &frame[shape.header_length()..];
        let words = payload.chunks(per_word).map(|codes| {
            let placed = codes.iter().zip(0u32..);
            placed.fold(0, |word, (code, place)| {
                let wide = u32::from(*code) << (bits - 8) | 1 << (bits - 9);
                word | wide << (place * u32::from(bits))
            })
        });
        let words: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        let frame_length = shape.header_length() + words.len();
        header.set_shape(Shape {
            frame_length,
            bits,
            ..shape
        });
        let begin = written.len();
        written.resize(begin + shape.header_length(), 0);
        header.emit(&mut written[begin..]);
        written.extend(words);
    }
    let path = format!("{recording}.{bits}");
    fs::write(&path, written).unwrap();
    path
}

/// Samples of many bits, which 32-bit words contain with or without unused bits, correlate as the 8 bits in them.
#[test]
fn samples_of_any_width_correlate() {
    for (channels, complex, widths) in [
        (1, false, &[12, 16, 32][..]),
        (1, true, &[12, 16]),
        (4, false, &[16, 32]),
    ] {
        let room = Room::new();
        let plan = format!(
            "start = '2024-01-01T12:00:00Z'\nduration = 0.1\nsample_rate = 1e6\nbits = 8\ncomplex = {complex}\n\
             channels = {channels}\nedv = 1\npayload = 1600\n[[station]]\nname = 'Ef'\n[[station]]\nname = 'Jb'\ndelay = [2e-6]\n"
        );
        let at = stations(&room, &plan);
        let plain = pair([&at("Ef.vdif"), &at("Jb.vdif")]);
        assert!(number(&plain, "/snr") > 20.0, "{plain}");
        for bits in widths {
            let wide = pair([&widened(&at("Ef.vdif"), *bits), &at("Jb.vdif")]);
            for measure in ["/weight", "/amplitude/valid", "/snr"] {
                near(number(&wide, measure) / number(&plain, measure), 1.0, 1e-3);
            }
            near(number(&wide, "/delay_s"), number(&plain, "/delay_s"), 1e-10);
        }
    }
}

/// Headers of one track rate replace the same samples of both stations; those half a frame apart replace others.
#[test]
fn headers_of_mark_4_cost_what_they_replace() {
    let room = Room::new();
    let both = plan(MARK4)
        .replace("mark5b", "mark4")
        .replace("[2.5e-6, 1e-7]", "[0]\nfan_out = 2");
    let at = stations(&room, &both.replace("[-1.5e-6, -3e-7]", "[0.005]"));
    let (jb, on) = (at("Jb.m4"), at("On.m4"));
    let of = |delay: &str| {
        let result = correlated(&[&jb, &on], &delayed(128, &["0", delay]));
        number(&result, "/baselines/0/weight")
    };
    // The fringe is 5 ms away; frames last 10 ms.
    near(of("0"), 0.992, 1e-5);
    near(of("5ms"), 0.984, 1e-4);
}

/// Bytes of packets that a reader without them would have replaced by fill.
fn packets(length: usize, size: usize, every: usize, avoid: &[Range<usize>]) -> Vec<Range<usize>> {
    let all = (0..length / size).map(|number| number * size..(number + 1) * size);
    let is_far = |packet: &Range<usize>| {
        let overlaps = |it: &Range<usize>| it.start < packet.end && packet.start < it.end;
        !avoid.iter().any(overlaps)
    };
    let chosen = all
        .enumerate()
        .filter(|(number, _)| number % every == every / 2);
    chosen.map(|(_, packet)| packet).filter(is_far).collect()
}

/// A few per cent of the packets are fill, whether they hit headers or not: the weight is that of the other samples, to the sample.
#[test]
fn packets_of_fill_cost_their_samples() {
    let room = Room::new();
    // Four channels: 32 tracks of Mark 4, and a byte per sample in the others.
    let four = plan("format = 'mark4'").replace("channels = 2", "channels = 4");
    let four = four
        .replace("[2.5e-6, 1e-7]", "[0]")
        .replace("[-1.5e-6, -3e-7]", "[0]");
    let at = stations(&room, &four);
    let whole = at("Ef.vdif");
    // File, settings, length of a frame and its header, samples per second, bytes and samples that belong together.
    let formats = [
        (
            "Jb.m5b",
            "#format=Mark5B-32-4-2&name=Jb&year=2024",
            (10_016, 16),
            (1, 1),
        ),
        ("On.m4", "#name=On", (80_000, 640), (4, 4)),
        ("Ef.vdif", "#name=Xx", (8032, 32), (1, 1)),
    ];
    for (file, settings, (frame, header), (unit, together)) in formats {
        let is_tracks = unit > 1;
        let recorded = fs::read(at(file)).unwrap();
        // A recording starts anywhere.
        for cut in [0, 1234] {
            for (size, every) in [(8000, 13), (1250, 21)] {
                let mut bytes = recorded[cut..].to_vec();
                let first = (frame - cut) % frame;
                let count = (bytes.len() - first) / frame;
                let last = first + (count - 1) * frame;
                // The first and the last header show the time of the recording.
                let ends = [0..first + 3 * frame, last..last + header];
                let lost = packets(bytes.len(), size, every, &ends);
                let hits = |packet: &Range<usize>| {
                    let into = (packet.start + frame - first) % frame;
                    into < header || into + size > frame
                };
                assert!(lost.iter().any(hits));
                for packet in &lost {
                    fill::make(&mut bytes[packet.clone()]);
                }
                let path = room.write(&format!("{cut}-{size}-{file}"), &bytes);
                let mut bad = BTreeSet::new();
                for byte in lost
                    .iter()
                    .flat_map(Clone::clone)
                    .filter(|byte| *byte >= first)
                {
                    let (number, into) = ((byte - first) / frame, (byte - first) % frame);
                    let samples = frame - if is_tracks { 0 } else { header };
                    let place = match into.checked_sub(if is_tracks { 0 } else { header }) {
                        Some(place) => number * samples / unit + place / unit,
                        None => continue,
                    };
                    bad.extend(place * together..(place + 1) * together);
                }
                let of_frame = (frame - if is_tracks { 0 } else { header }) / unit * together;
                if is_tracks {
                    let headers = (0..count).flat_map(|it| it * of_frame..it * of_frame + 640);
                    bad.extend(headers);
                }
                let total = count * of_frame;
                bad.retain(|sample| *sample < total);
                let expected = 1.0 - bad.len() as f64 / total as f64;
                let input = format!("{path}{settings}");
                let result = correlated(&[&whole, &input], &delayed(64, &[]));
                let found = number(&result, "/baselines/0/weight");
                let (what, difference) =
                    (format!("{input} {size}"), (found - expected) * total as f64);
                assert!(
                    difference.abs() < 0.5,
                    "{what}: {found}, not {expected}: {difference} samples"
                );
                assert!(number(&result, "/baselines/0/snr") > 100.0, "{what}");
            }
        }
    }
}

/// Frames whose headers are damaged belong to the time of a recording, also if they are its last ones.
#[test]
fn damaged_headers_at_the_end_cost_no_time() {
    let room = Room::new();
    let at = stations(&room, &plan(MARK4).replace("[-1.5e-6, -3e-7]", "[0]"));
    let whole = at("Ef.vdif");
    for (file, frame, header) in [("Ef.vdif", 8032, 32), ("On.m4", 40_000, 320)] {
        let expected = if header > 32 { 0.992 } else { 1.0 };
        let bytes = fs::read(at(file)).unwrap();
        for damaged in [1, 4, 8] {
            let mut bytes = bytes.clone();
            let first = bytes.len() - damaged * frame;
            let frames = bytes[first..].chunks_mut(frame);
            frames.for_each(|frame| frame[..header].fill(0xff));
            let path = room.write(&format!("{damaged}-{file}"), bytes);
            let result = correlated(&[&whole, &format!("{path}#name=Xx")], &delayed(64, &[]));
            near(number(&result, "/baselines/0/weight"), expected, 1e-6);
            near(number(&result, "/seconds"), 0.5, 1e-6);
        }
    }
}

/// A formatter that changes its channels within a recording is not decoded by those of the first frame.
#[test]
fn frames_of_mark_4_with_other_channels_are_left_out() {
    let room = Room::new();
    // Eight tracks each.
    let four = plan("format = 'mark4'\nfan_out = 4").replace("channels = 2", "channels = 1");
    let two = plan("format = 'mark4'\nfan_out = 2")
        .replace("4e6", "2e6")
        .replace("Ef", "Xf");
    let [first, other] = [four, two].map(|plan| {
        let room = Room::new();
        let at = stations(&room, &plan.replace("[-1.5e-6, -3e-7]", "[0]"));
        fs::read(at("On.m4")).unwrap()
    });
    let at = stations(&room, &plan("").replace("channels = 2", "channels = 1"));
    let half = first.len() / 2 / 20_000 * 20_000;
    assert_eq!(first.len(), other.len());
    let mixed = [&first[..half], &other[half..]].concat();
    let mixed = room.write("mixed.m4", mixed);
    let result = correlated(
        &[&at("Ef.vdif"), &format!("{mixed}#name=On")],
        &delayed(64, &[]),
    );
    let weight = half as f64 / first.len() as f64 * 0.992;
    near(number(&result, "/baselines/0/weight"), weight, 1e-3);
    near(
        number(&result, "/baselines/0/amplitude/corrected"),
        0.3,
        0.02,
    );
    let others = number(&result, "/stations/1/damage/other_frames");
    assert_eq!(others, ((first.len() - half) / 20_000) as f64);
}

/// Frames of Mark 4 are shed and replaced as those of VDIF are, at one station or at both.
#[test]
fn mark_4_has_a_loss_curve() {
    let room = Room::new();
    let one = plan(MARK4).replace("[-1.5e-6, -3e-7]", "[0]");
    let at = stations(&room, &one);
    let options = LossCurveOptions {
        loss: "20%".parse().unwrap(),
        shed: vec![Kind::Every],
        replace: vec![Replace::Nothing, Replace::Fill],
        station: vec![2],
        correlate: delayed(64, &[]),
        ..LossCurveOptions::default()
    };
    let result = curve(&[&at("Ef.vdif"), &at("On.m4")], options);
    for curve in result["curves"].as_array().unwrap() {
        if curve["at"] == "one" && curve["knows"] == "all" {
            near(number(curve, "/points/0/ratio/weight"), 0.8, 1e-3);
            near(number(curve, "/points/0/ratio/valid"), 1.0, 0.01);
        }
    }
}

/// Nothing in the headers shows modulation.
#[test]
fn modulated_samples_are_restored_where_declared() {
    let room = Room::new();
    let modulated = plan(&format!("{MARK4}\nmodulated = true"));
    let at = stations(&room, &modulated.replace("[-1.5e-6, -3e-7]", "[0]"));
    let (ef, on) = (at("Ef.vdif"), at("On.m4"));
    let restored = pair([&ef, &format!("{on}#modulated")]);
    near(number(&restored, "/amplitude/corrected"), 0.3, 0.01);
    near(number(&restored, "/weight"), 0.992, 1e-4);
    let unrestored = pair([&ef, &on]);
    assert!(number(&unrestored, "/snr") < 10.0, "{unrestored}");
}

/// The sign of 1-bit samples is the same in all formats; an inverted station has the opposite phase.
#[test]
fn an_inverted_station_has_the_opposite_phase() {
    let room = Room::new();
    let one_bit = plan("format = 'mark4'").replace("channels = 2", "channels = 2\nbits = 1");
    let one_bit = one_bit
        .replace("[-1.5e-6, -3e-7]", "[0]")
        .replace("[2.5e-6, 1e-7]", "[0]");
    let at = stations(&room, &one_bit);
    let (ef, on) = (at("Ef.vdif"), at("On.m4"));
    let jb = at("Jb.m5b#format=Mark5B-8-2-1&year=2024");
    let phase = |inputs: [&str; 2], invert: &[&str]| {
        let options = CorrelateOptions {
            invert: invert.iter().map(|name| (*name).to_owned()).collect(),
            ..delayed(128, &[])
        };
        number(&correlated(&inputs, &options), "/baselines/0/phase_rad")
    };
    let opposite = std::f64::consts::PI;
    let inverted = format!("{on}#inverted");
    for (inputs, invert, expected) in [
        ([ef.as_str(), &on], &[][..], 0.0),
        ([&ef, &jb], &[], 0.0),
        ([&ef, &inverted], &[], opposite),
        ([&ef, &on], &["On"], opposite),
        ([&ef, &on], &["Ef"], opposite),
        ([&ef, &on], &["On", "Ef"], 0.0),
        ([&ef, &inverted], &["On"], 0.0),
    ] {
        near(phase(inputs, invert).abs(), expected, 0.02);
    }
    let unknown = CorrelateOptions {
        invert: vec!["Xx".to_owned()],
        ..delayed(128, &[])
    };
    let refused = not_correlated(&[&ef, &on], &unknown);
    assert!(
        refused.contains("unknown station Xx to invert: the stations are Ef, On"),
        "{refused}"
    );
}

/// Channels, threads and stations are selected; the bands are in the order of the selection.
#[test]
fn parts_of_recordings_correlate() {
    let room = Room::new();
    let at = stations(&room, &plan(MARK4).replace("[-1.5e-6, -3e-7]", "[0]"));
    let (ef, on) = (at("Ef.vdif"), at("On.m4"));
    let snr = |a: &str, b: &str| {
        let result = correlated(&[a, b], &delayed(128, &[]));
        (
            number(&result, "/baselines/0/snr"),
            result["autos"].as_array().unwrap().len(),
        )
    };
    let of = |file: &str, settings: &str| format!("{file}#{settings}");
    for (first, second, is_alike, autos) in [
        ("channels=1", "channels=1U", true, 2),
        ("channels=1,0", "channels=1U,0U", true, 4),
        ("channels=0", "channels=1U", false, 2),
        ("channels=0-1", "channels=1U,0U", false, 4),
    ] {
        let (snr, found) = snr(&of(&ef, first), &of(&on, second));
        assert_eq!(
            (snr > 100.0, found),
            (is_alike, autos),
            "{first} {second}: {snr}"
        );
    }
    let threads = Room::new();
    let two = plan("")
        .replace("mark5b", "vdif")
        .replace("channels = 2", "channels = 2\nthreads = 2");
    let two = two.replace("[2.5e-6, 1e-7]", "[0]");
    let at = stations(&threads, &two);
    let [ef, jb] = ["Ef", "Jb"].map(|name| at(&format!("{name}.vdif")));
    assert!(snr(&of(&ef, "thread=1"), &of(&jb, "thread=1")).0 > 100.0);
    assert!(snr(&of(&ef, "thread=0"), &of(&jb, "thread=1")).0 < 10.0);
    // Both stations in one recording, frame by frame.
    let [one, other] = [&ef, &jb].map(|path| fs::read(path).unwrap());
    let frames = one.chunks(8032).zip(other.chunks(8032));
    let both: Vec<u8> = frames.flat_map(|(a, b)| [a, b].concat()).collect();
    let both = threads.write("both.vdif", &both);
    // A thread of the second station alone.
    let seventh = |frame: &[u8]| {
        let (mut frame, mut header) = (frame.to_vec(), Header::parse(frame).unwrap());
        header.set_key(StreamKey {
            thread: header.key().thread + 7,
            ..header.key()
        });
        header.emit(&mut frame);
        frame
    };
    let frames = one.chunks(8032).zip(other.chunks(8032));
    let apart: Vec<u8> = frames
        .flat_map(|(a, b)| [a.to_vec(), seventh(b)].concat())
        .collect();
    let apart = threads.write("apart.vdif", &apart);
    let found = correlated(
        &[&of(&ef, "thread=0"), &of(&apart, "thread=7")],
        &delayed(128, &[]),
    );
    assert!(number(baseline(&found, ["Ef", "Jb"]), "/snr") > 100.0);
    let inputs = ["station=Ef", "station=Jb&name=Da"].map(|settings| of(&both, settings));
    let result = correlated(&[&inputs[0], &inputs[1]], &delayed(128, &[]));
    let found = baseline(&result, ["Ef", "Da"]);
    assert!(number(found, "/snr") > 100.0 && number(found, "/weight") > 0.9999);
    for station in result["stations"].as_array().unwrap() {
        assert_eq!(station["foreign"], 0);
    }
}

const TABLE: &str = r#"
[[channel]]
channel = 0
frequency_mhz = 4900
sideband = "U"
polarisation = "R"
[[channel]]
channel = 1
frequency_mhz = 4902
sideband = "U"
polarisation = "L"
[[channel]]
station = "On"
channel = "0U"
frequency_mhz = 4900
sideband = "U"
polarisation = "R"
[[channel]]
station = "On"
channel = "1U"
frequency_mhz = 4902
sideband = "U"
polarisation = "L"
"#;

/// A table gives each channel its frequency and polarisation, whatever the order of the channels.
#[test]
fn a_table_tunes_the_channels() {
    let room = Room::new();
    let at = stations(&room, &plan(MARK4).replace("[-1.5e-6, -3e-7]", "[0]"));
    let with = |table: &str| CorrelateOptions {
        channel_table: Some(room.write("table.toml", table).into()),
        channels: Some(128),
        ..CorrelateOptions::default()
    };
    let (ef, on) = (at("Ef.vdif"), at("On.m4#channels=1U,0U"));
    let result = correlated(&[&ef, &on], &with(TABLE));
    let found = &result["baselines"][0];
    assert!(number(found, "/snr") > 100.0, "{found}");
    let bands = found["bands"].as_array().unwrap().iter();
    let bands: Vec<(f64, &str)> = bands
        .map(|band| {
            (
                number(band, "/frequency_hz"),
                band["polarisations"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(bands, [(4900e6, "RR"), (4902e6, "LL")]);
    let (head, _) = TABLE.rsplit_once("[[channel]]").unwrap();
    for (table, says) in [
        (head, "no row for thread 0, channel 1U of station On"),
        ("[[channel]]\nfrequency = 3", "in the channel table"),
        ("", "has no rows"),
    ] {
        let refused = not_correlated(&[&ef, &on], &with(table));
        assert!(refused.contains(says), "{refused}");
    }
}

#[test]
fn a_number_sign_in_a_file_name_is_escaped() {
    let room = Room::new();
    let at = stations(&room, &plan(MARK4));
    let on = at("On.m4");
    fs::copy(&on, room.path("sky/On#1.m4")).unwrap();
    let escaped = at("On%231.m4");
    near(number(&pair([&on, &escaped]), "/weight"), 0.992, 1e-4);
}

/// Only a recording of more than a second shows the frame rate of Mark 5B.
#[test]
fn the_rate_of_mark_5b_must_be_that_of_its_times() {
    let room = Room::new();
    let plan = plan(MARK4).replace("duration = 0.5", "duration = 1.5");
    let at = stations(&room, &plan);
    let jb = at("Jb.m5b#format=Mark5B-32-2-2&year=2024");
    let refused = not_correlated(&[&at("Ef.vdif"), &jb], &delayed(64, &[]));
    let says = "given as 8000000/s, but the frames have 4000000/s";
    assert!(refused.contains(says), "{refused}");
}
