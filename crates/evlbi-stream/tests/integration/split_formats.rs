//! `split` makes the same channels of Mark 4 and Mark 5B as of VDIF with the same samples, wherever these exist.

use std::path::Path;

use evlbi_core::deframe::{Deframer, Settings};
use evlbi_net::file::Durability;
use evlbi_net::run::Run;
use evlbi_stream::selection::Selection;
use evlbi_stream::sink::{self, Files};
use evlbi_stream::sky::{SkyOptions, simulate};
use evlbi_stream::split::{SplitOptions, split};
use evlbi_testkit::Room;
use evlbi_testkit::result::{refused, shown};
use evlbi_wire::fill;
use evlbi_wire::time::FrameTime;
use evlbi_wire::validity::{Cause, Gaps, TimeGap};
use evlbi_wire::vdif::{Header, StationId, StreamKey};
use serde_json::Value;

/// 2024-05-01T12:00:00Z.
const START: i64 = 1_714_564_800;
/// Length of the header of a channel in VDIF, in bytes.
const HEADER: usize = 32;

/// Samples that are recorded in two formats.
#[derive(Clone, Copy, Debug)]
struct Case {
    channels: usize,
    bits: usize,
    /// Samples of a channel per second.
    sample_rate: u32,
    /// Length of a frame's samples in bytes, with those that a header replaces.
    payload: usize,
    /// Settings of the station, and what follows its file.
    station: &'static str,
    settings: &'static str,
    /// Samples of a channel that the header replaces.
    replaced: usize,
    /// Frames that become one of each channel.
    together: usize,
}

const MARK4: Case = Case {
    channels: 4,
    bits: 2,
    sample_rate: 2_000_000,
    payload: 80_000,
    station: "format = \"mark4\"",
    settings: "#name=Ef&year=2024",
    replaced: 640,
    together: 1,
};

const MARK5B: Case = Case {
    channels: 4,
    bits: 2,
    sample_rate: 1_000_000,
    payload: 10_000,
    station: "format = \"mark5b\"",
    settings: "#format=Mark5B-8-4-2&name=Ef&year=2024",
    replaced: 0,
    together: 2,
};

impl Case {
    /// Records the samples in a directory, in this format and in VDIF; returns the paths.
    fn record(&self, room: &Room) -> [String; 2] {
        let Case {
            channels,
            bits,
            sample_rate,
            payload,
            station,
            ..
        } = self;
        [station, ""].map(|station| {
            let plan = format!(
                "start = \"2024-05-01T12:00:00Z\"\nduration = 0.24\nsample_rate = {sample_rate}\nedv = 1\n\
                 channels = {channels}\nbits = {bits}\npayload = {payload}\n[[station]]\nname = \"Ef\"\n{station}\n"
            );
            let options = SkyOptions {
                plan: room.write("plan.toml", plan).into(),
                out: room.folder().into(),
                force: true,
            };
            let report = shown(simulate(&options, &Run::silent()));
            report["files"][0]["file"].as_str().unwrap().to_owned()
        })
    }

    /// Splits the recordings into `own-CHANNEL` and `vdif-CHANNEL`, and returns for each channel both names.
    #[track_caller]
    fn split(&self, room: &Room, [own, vdif]: &[String; 2]) -> Vec<[String; 2]> {
        let to = |name: &str| room.path(&format!("{name}-{{station}}-{{channel}}"));
        let done = shown(split(
            &splits(own, self.settings, &to("own")),
            &Run::silent(),
        ));
        assert_eq!(done["frames_per_frame"], self.together, "{self:?}");
        assert_eq!(done["frames_left_out"], 0, "{self:?}");
        assert_eq!(done["outputs"].as_array().unwrap().len(), self.channels);
        shown(split(&splits(vdif, "", &to("vdif")), &Run::silent()));
        let sideband = if self.replaced > 0 { "U" } else { "" };
        let names = |channel| {
            [
                format!("own-Ef-{channel}{sideband}"),
                format!("vdif-Ef-{channel}"),
            ]
        };
        (0..self.channels).map(names).collect()
    }

    /// Returns the bytes of a channel in a frame of the input.
    fn part(&self) -> usize {
        self.payload / self.channels
    }
}

fn splits(input: &str, settings: &str, to: &str) -> SplitOptions {
    SplitOptions {
        input: input.into(),
        selection: match settings.strip_prefix('#') {
            Some(settings) => settings.parse().unwrap(),
            None => Selection::default(),
        },
        to: to.into(),
        force: true,
        ..SplitOptions::default()
    }
}

fn gaps(room: &Room, name: &str) -> Gaps {
    serde_json::from_slice(&room.read(&format!("{name}.gaps.json"))).unwrap()
}

#[test]
fn channels_have_the_samples_and_times_of_vdif() {
    let cases = [
        MARK4,
        Case {
            station: "format = \"mark4\"\nmodulated = true",
            settings: "#name=Ef&year=2024&modulated",
            ..MARK4
        },
        // Eight tracks: a frame of a channel is not a whole number of words.
        Case {
            channels: 8,
            bits: 1,
            payload: 20_000,
            station: "format = \"mark4\"\nfan_out = 1",
            replaced: 160,
            together: 2,
            sample_rate: 1_000_000,
            ..MARK4
        },
        MARK5B,
        Case {
            channels: 8,
            bits: 1,
            settings: "#format=Mark5B-8-8-1&name=Ef&year=2024",
            together: 4,
            ..MARK5B
        },
    ];
    for case in cases {
        let room = Room::new();
        let recordings = case.record(&room);
        for [own, vdif] in case.split(&room, &recordings) {
            let [bytes, mut expected] = [&own, &vdif].map(|name| room.read(name));
            let replaced = case.replaced * case.bits / 8;
            for frame in expected.chunks_mut(HEADER + case.part() * case.together) {
                for part in frame[HEADER..].chunks_mut(case.part()) {
                    fill::make(&mut part[..replaced]);
                }
            }
            assert!(bytes == expected, "{own} {case:?}");
            for gap in gaps(&room, &own).time {
                let bytes = gap.bytes.unwrap();
                assert_eq!(bytes.start % case.part(), 0, "{case:?}");
                assert_eq!((bytes.len(), gap.cause), (replaced, Cause::Source));
            }
            assert_eq!(gaps(&room, &own).time.is_empty(), replaced == 0);
            assert_eq!(gaps(&room, &own).frame_rate, gaps(&room, &vdif).frame_rate);
        }
    }
}

/// Lost frames of Mark 4 and Mark 5B contain the fill pattern, with or without a gaps file; those of VDIF are invalid.
#[test]
fn lost_frames_are_those_of_vdif() {
    for case in [MARK4, MARK5B] {
        let room = Room::new();
        let recordings = case.record(&room);
        let headers = [if case.replaced > 0 { 160 * 4 } else { 16 }, HEADER];
        for (path, header) in recordings.iter().zip(headers) {
            let length = match (header, case.replaced) {
                (HEADER, _) | (_, 0) => case.payload + header,
                _ => case.payload,
            };
            let mut bytes = std::fs::read(path).unwrap();
            for lost in [1, 2, 5] {
                let frame = &mut bytes[lost * length..][..length];
                fill::make(&mut frame[header..]);
                if header == HEADER {
                    let mut header = Header::parse(frame).unwrap();
                    header.set_invalid(true);
                    header.emit(frame);
                }
            }
            std::fs::write(path, bytes).unwrap();
        }
        for cause in [Cause::Lost, Cause::Shed] {
            let is_listed = cause == Cause::Shed;
            let keys = [
                StreamKey::default(),
                StreamKey {
                    station: StationId::from_code(*b"Ef"),
                    thread: 0,
                },
            ];
            for (path, key) in recordings.iter().zip(keys) {
                let gap = |frame, frames| TimeGap {
                    key,
                    start: FrameTime {
                        second: START,
                        frame,
                    },
                    frames,
                    first_byte: Some(0),
                    bytes: None,
                    cause,
                };
                let listed = Gaps {
                    time: vec![gap(1, 2), gap(5, 1)],
                    ..Gaps::default()
                };
                if is_listed || !path.ends_with("m4") && !path.ends_with("m5b") {
                    std::fs::write(
                        format!("{path}.gaps.json"),
                        serde_json::to_vec(&listed).unwrap(),
                    )
                    .unwrap();
                }
            }
            for [own, vdif] in case.split(&room, &recordings) {
                let lost = |name: &str| {
                    let replaced = case.replaced * case.bits / 8;
                    let mut gaps = gaps(&room, name).time;
                    gaps.retain(|gap| gap.bytes != Some(0..replaced));
                    gaps
                };
                assert!(!lost(&own).is_empty());
                assert_eq!(lost(&own), lost(&vdif), "{own} {case:?}");
                if case.replaced == 0 {
                    assert!(room.read(&own) == room.read(&vdif), "{own} {case:?}");
                }
            }
        }
    }
}

/// Two words of Mark 4 that are fill are two bit times of 32 tracks: eight samples of each channel.
#[test]
fn fill_within_a_frame_is_that_of_each_channel_to_the_word() {
    let room = Room::new();
    let recordings = MARK4.record(&room);
    let mut bytes = room.read(
        Path::new(&recordings[0])
            .file_name()
            .unwrap()
            .to_str()
            .unwrap(),
    );
    let at = 80_000 + 4 * (160 + 1000);
    fill::make(&mut bytes[at..at + 8]);
    std::fs::write(&recordings[0], bytes).unwrap();
    for [own, _] in MARK4.split(&room, &recordings) {
        let filled = 160 + 1000..160 + 1002;
        let frame = HEADER + MARK4.part();
        assert_eq!(
            room.read(&own)[frame + HEADER..][filled.clone()],
            [0x44, 0x33]
        );
        let gaps = gaps(&room, &own).time;
        let found: Vec<_> = gaps.iter().filter(|gap| gap.cause == Cause::Lost).collect();
        assert_eq!(found.len(), 1, "{gaps:?}");
        assert_eq!((found[0].frames, &found[0].bytes), (1, &Some(filled)));
    }
}

/// The settings that describe a recording describe a stream as well.
#[test]
fn a_stream_of_mark5b_is_split_like_its_recording() {
    let room = Room::new();
    let recordings = MARK5B.record(&room);
    let names = MARK5B.split(&room, &recordings);
    let (_, selection) = Selection::split(&format!("x{}&channels=1,3", MARK5B.settings)).unwrap();
    let files = Files {
        durability: Durability::Kernel,
        force: false,
        run: Run::silent(),
    };
    let to = room.path("live-{station}-{channel}");
    let mut sink = sink::open(&to, &selection, files).unwrap();
    let mut deframer = Deframer::new(Settings {
        latest: selection.read_at(START),
        ..Settings::default()
    });
    let bytes = std::fs::read(&recordings[0]).unwrap();
    deframer.walk(&bytes, true, &mut |chunk| sink.take(chunk));
    assert_eq!(sink.finish().files.len(), 2);
    for channel in [1, 3] {
        assert!(room.read(&format!("live-Ef-{channel}")) == room.read(&names[channel][0]));
    }
    // Without a description nothing of it could ever be recorded.
    let run = Run::silent();
    let files = Files {
        durability: Durability::Kernel,
        force: false,
        run: run.clone(),
    };
    let mut sink = sink::open(&room.path("x-{channel}"), &Selection::default(), files).unwrap();
    let mut deframer = Deframer::new(Settings::default());
    deframer.walk(&bytes, true, &mut |chunk| sink.take(chunk));
    let why = sink.finish().refused.unwrap();
    assert!(
        why.contains("the headers of Mark 5B do not contain the number of channels and bits"),
        "{why}"
    );
    assert!(run.is_stopped());
}

#[test]
fn channels_are_chosen_by_name_and_signs_are_reversed() {
    let room = Room::new();
    let recordings = MARK5B.record(&room);
    let names = MARK5B.split(&room, &recordings);
    let inverted = "#format=Mark5B-8-4-2&name=Ef&year=2024&inverted";
    let to = room.path("inverted-{channel}");
    shown(split(
        &splits(&recordings[0], inverted, &to),
        &Run::silent(),
    ));
    let [own, inverted] = [&names[2][0], "inverted-2"].map(|name| room.read(name));
    let payloads = |bytes: &[u8]| bytes[HEADER..HEADER + 5000].to_vec();
    let opposite: Vec<u8> = payloads(&own).iter().map(|byte| !byte).collect();
    assert!(payloads(&inverted) == opposite);

    let recordings = MARK4.record(&room);
    let options = |channels: &str, to: &str| SplitOptions {
        channels: Some(channels.parse().unwrap()),
        ..splits(&recordings[0], MARK4.settings, &room.path(to))
    };
    shown(split(&options("3U,1U", "two-{channel}"), &Run::silent()));
    assert!(!Path::new(&room.path("two-0U")).exists());
    // Channels stay in the order in which they are given.
    for (order, first) in [("1U,3U", "two-1U"), ("3U,1U", "two-3U")] {
        let done: Value = shown(split(&options(order, order), &Run::silent()));
        assert_eq!(done["outputs"][0]["frame_length"], 32 + 40_000);
        let [first, both] = [first, order].map(|name| room.read(name));
        // The first of two samples of two bits in the lower half of each byte.
        let byte = |number: usize| both[HEADER + number];
        let at = 1000;
        let expected = (0..4).fold(0, |all, sample| {
            let of = byte(2 * at + sample / 2) >> (4 * (sample % 2)) & 3;
            all | of << (2 * sample)
        });
        assert_eq!(first[HEADER + at], expected);
    }
}

#[test]
fn what_cannot_be_split_is_refused_by_name() {
    let room = Room::new();
    let [mark4, vdif] = MARK4.record(&room);
    let [mark5b, _] = MARK5B.record(&room);
    let to = room.path("x-{channel}");
    let chosen = |input: &str, channels: &str| SplitOptions {
        channels: Some(channels.parse().unwrap()),
        ..splits(input, "", &to)
    };
    for (options, expected) in [
        (
            splits(&mark5b, "", &to),
            "Ef.m5b: the headers of Mark 5B do not contain the number of channels and bits",
        ),
        (
            splits(&mark5b, "#format=MKIV1_4-16-4-2", &to),
            "given as MKIV1_4-16-4-2, but the frames are Mark 5B",
        ),
        (
            splits(&mark4, "", &room.path("x-{station}")),
            "Ef.m4 is Mark 4, which has no stations and threads to separate",
        ),
        (
            splits(&mark4, "#name=Effelsberg", &to),
            "invalid name `Effelsberg` of a station",
        ),
        (
            SplitOptions {
                channels: Some("0U".parse().unwrap()),
                ..splits(&mark4, "#channels=0U", &to)
            },
            "choose them once",
        ),
        (
            splits(&vdif, "#inverted", &to),
            "Ef.vdif is VDIF, whose headers describe the samples",
        ),
        (
            chosen(&mark4, "0L"),
            "there is no channel 0L: the channels are 0U, 1U, 2U, 3U",
        ),
        (
            chosen(&mark4, "0"),
            "there is no channel 0: the channels are 0U, 1U, 2U, 3U",
        ),
        (
            chosen(&vdif, "0U"),
            "there is no channel 0U: the channels are 0 to 3",
        ),
    ] {
        let said = refused(split(&options, &Run::silent()));
        assert!(said.contains(expected), "{said}");
    }
}

/// Frames of another format behind those of Mark 4 are left out, by a recording and by a stream.
#[test]
fn frames_of_another_format_are_left_out() {
    let room = Room::new();
    let paths = MARK4.record(&room);
    let [mark4, vdif] = paths.each_ref().map(|path| std::fs::read(path).unwrap());
    // As many frames as show that the format has changed.
    let vdif = vdif.repeat(6);
    let both = room.write("both.m4", [&mark4[..], &vdif].concat());
    let names = |of: &str| room.path(&format!("{of}-{{channel}}"));
    shown(split(
        &splits(&paths[0], MARK4.settings, &names("alone")),
        &Run::silent(),
    ));
    shown(split(
        &splits(&both, MARK4.settings, &names("both")),
        &Run::silent(),
    ));
    let files = Files {
        durability: Durability::Kernel,
        force: false,
        run: Run::silent(),
    };
    let mut sink = sink::open(&room.path("live-{channel}"), &Selection::default(), files).unwrap();
    for bytes in [&mark4, &vdif] {
        let mut deframer = Deframer::new(Settings {
            latest: START + 86_400,
            ..Settings::default()
        });
        deframer.walk(bytes, true, &mut |chunk| sink.take(chunk));
    }
    let live = sink.finish();
    assert_eq!(live.files.len(), MARK4.channels);
    for channel in 0..MARK4.channels {
        let [alone, both, live] =
            ["alone", "both", "live"].map(|of| room.read(&format!("{of}-{channel}U")));
        assert!(alone == both, "channel {channel}");
        let samples = |bytes: &[u8]| {
            let frames = bytes.chunks(HEADER + MARK4.part());
            let payloads = frames.map(|frame| frame[HEADER..].to_vec());
            payloads.collect::<Vec<_>>()
        };
        assert!(samples(&alone) == samples(&live), "channel {channel}");
    }
}
