//! Damaged, mixed and mislabelled recordings: what the program says about them, and what it correlates nevertheless.
//!
//! Put further kinds of bad input of correlations here, as rows of the table.

mod carried;

use std::collections::HashMap;

use serde_json::Value;

use super::{Room, evlbi};

/// Lengths of frames, in bytes: VDIF with one channel and with four, Mark 5B, Mark 4.
const VDIF: usize = 1032;
const WIDE: usize = 8032;
const MARK5B: usize = 10_016;
const MARK4: usize = 20_000;

/// Start of the plans of the stations Ef, Jb and On.
const START: &str =
    "start = '2024-01-01T12:00:00Z'\nsample_rate = 2e6\ncorrelation = 0.5\nedv = 1\n";
/// Directories of recordings, each with the rest of its plan.
const SKIES: [(&str, &str, &str); 6] = [
    ("vdif", "duration = 0.4\npayload = 1000", ""),
    (
        "formats",
        "duration = 0.4\nchannels = 4",
        "format = 'mark4'\nfan_out = 1",
    ),
    ("long", "duration = 2.2\npayload = 1000", ""),
    ("frames", "duration = 0.4\npayload = 2000", ""),
    ("bits", "duration = 0.4\npayload = 1000\nbits = 1", ""),
    ("fast", "duration = 0.4\npayload = 1000", ""),
];
/// Settings of Mark 5B, whose headers lack them.
const JB: &str = "formats/Jb.m5b#format=Mark5B-16-4-2&year=2024";

/// Two undamaged stations, and a third one whose recording may be damaged.
type Pair = [&'static str; 2];
const PLAIN: Pair = ["vdif/Ef.vdif", "vdif/Jb.vdif"];
const LONG: Pair = ["long/Ef.vdif", "long/Jb.vdif"];
const BEFORE_MARK4: Pair = ["formats/Ef.vdif", JB];
const BEFORE_MARK5B: Pair = ["formats/Ef.vdif", "formats/On.m4"];
const BEFORE_WIDE: Pair = ["formats/On.m4", JB];

/// Results that are those of undamaged recordings.
enum Kept {
    /// None: the program refuses to correlate.
    Nothing,
    /// The baseline of the other two stations.
    Others,
    /// The same, and the third station has fringes.
    Fringes,
    /// All of them.
    All,
    /// All of them, as if the third recording consisted of its first bytes.
    Until(usize),
}

use Kept::{All, Fringes, Nothing, Others, Until};

/// Recordings to make others of.
struct Skies(Room);

impl Skies {
    fn new() -> Skies {
        let room = Room::new();
        for (name, all, on) in SKIES {
            let start = match name {
                "fast" => START.replace("2e6", "4e6"),
                _ => START.to_owned(),
            };
            let jb = if name == "formats" {
                "format = 'mark5b'"
            } else {
                ""
            };
            let stations = [("Ef", ""), ("Jb", jb), ("On", on)];
            let stations =
                stations.map(|(name, more)| format!("[[station]]\nname = '{name}'\n{more}\n"));
            let plan = format!("{start}{all}\n{}", stations.concat());
            let plan = room.write(&format!("{name}.toml"), plan);
            let made = evlbi(&["sky", &plan, "--out", &room.path(name)]);
            assert!(made.status.success(), "{name}");
        }
        for (name, stations) in [
            ("far.toml", &["Ef", "Jb", "On"][..]),
            ("short.toml", &["Ef", "Jb"]),
        ] {
            let row = |station: &&str| {
                let megahertz = if *station == "On" { 4950 } else { 4900 };
                format!(
                    "[[channel]]\nstation = '{station}'\nthread = 0\nchannel = 0\nfrequency_mhz = {megahertz}\nsideband = 'U'\npolarisation = 'R'\n"
                )
            };
            let rows: Vec<String> = stations.iter().map(row).collect();
            room.write(name, rows.concat());
        }
        Skies(room)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        self.0.read(name)
    }

    /// Returns a command line, with directories in the place of `@`.
    fn line(&self, words: &[&str]) -> Vec<String> {
        let folder = self.0.path("");
        words
            .iter()
            .map(|word| word.replace('@', &folder))
            .collect()
    }
}

/// Recording of the third station; `None` if there is no file.
type Make = fn(&Skies) -> Option<Vec<u8>>;

fn on(skies: &Skies) -> Option<Vec<u8>> {
    Some(skies.read("vdif/On.vdif"))
}

fn mark4(skies: &Skies) -> Option<Vec<u8>> {
    Some(skies.read("formats/On.m4"))
}

fn on_of(skies: &Skies, length: usize) -> Option<Vec<u8>> {
    on(skies).map(|bytes| bytes[..length].to_vec())
}

/// The start of one recording, and the end of another.
fn joined(skies: &Skies, first: &str, length: usize, second: &str, from: usize) -> Option<Vec<u8>> {
    Some([&skies.read(first)[..length], &skies.read(second)[from..]].concat())
}

/// A recording whose second, fourth, ... header is lost.
fn every_second(skies: &Skies, name: &str, frame: usize, header: usize) -> Option<Vec<u8>> {
    let mut bytes = skies.read(name);
    let frames = bytes.chunks_mut(frame).skip(1).step_by(2);
    frames.for_each(|frame| frame[..header].fill(0xff));
    Some(bytes)
}

/// Times of VDIF that are a second late.
fn a_second_late(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    for frame in bytes.chunks_mut(VDIF) {
        // The seconds are the lowest bits of the first word, and do not reach the end of their byte.
        frame[0] += 1;
    }
    Some(bytes)
}

/// Frames of two stations in turns, in threads of the same number.
fn two_stations(skies: &Skies) -> Option<Vec<u8>> {
    let [on, jb] = ["On", "Jb"].map(|name| skies.read(&format!("vdif/{name}.vdif")));
    let frames = on.chunks(VDIF).zip(jb.chunks(VDIF));
    Some(frames.flat_map(|(on, jb)| [on, jb].concat()).collect())
}

/// One kind of bad input.
struct Case {
    name: &'static str,
    pair: Pair,
    /// File name of the third recording, and its settings.
    third: &'static str,
    make: Make,
    options: &'static [&'static str],
    /// Exit status.
    status: i32,
    /// Texts within the messages on standard error; if there are none, nothing may be printed.
    says: &'static [&'static str],
    kept: Kept,
}

/// Returns the table: name, the other two, the third and how to make it, options, exit status, message, results.
#[rustfmt::skip]
fn cases() -> Vec<Case> {
    let row = |name, pair, third, make: Make, options: &'static [&'static str], status, says: &'static [&'static str], kept| Case {
        name, pair, third, make, options, status, says, kept,
    };
    vec![
        // Truncated.
        row("empty", PLAIN, "On.vdif", |_| Some(Vec::new()), &[], 1, &["On.vdif is left out", "is empty: record or copy it again"], Others),
        row("one byte", PLAIN, "On.vdif", |it| on_of(it, 1), &[], 1, &["neither VDIF, Mark 5B nor Mark 4: `evlbi inspect"], Others),
        row("left out and inverted", PLAIN, "On.vdif", |it| on_of(it, 1), &["--invert", "On"], 1, &["neither VDIF", "unknown station On in --invert: the stations are Ef, Jb"], Others),
        row("left out and flagged", PLAIN, "On.vdif", |it| on_of(it, 1), &["--flag", "On:0s..1s"], 1, &["neither VDIF", "unknown station On in --flag: the stations are Ef, Jb"], Others),
        row("in the first header", PLAIN, "On.vdif", |it| on_of(it, 20), &[], 1, &["neither VDIF, Mark 5B nor Mark 4: `evlbi inspect"], Others),
        row("in a header", PLAIN, "On.vdif", |it| on_of(it, 150 * VDIF + 10), &[], 0, &["last frame is truncated to 10 bytes at byte 154800", "evlbi inspect"], Until(150 * VDIF)),
        row("in a payload", PLAIN, "On.vdif", |it| on_of(it, 150 * VDIF + 500), &[], 0, &["last frame is truncated to 500 bytes at byte 154800"], Until(150 * VDIF)),
        row("Mark 4 in a header", BEFORE_MARK4, "On.m4", |it| mark4(it).map(|it| it[..30 * MARK4 + 80].to_vec()), &[], 0, &["last frame is truncated to 80 bytes at byte 600000"], Until(30 * MARK4)),
        row("Mark 4 in a payload", BEFORE_MARK4, "On.m4", |it| mark4(it).map(|it| it[..30 * MARK4 + 5000].to_vec()), &[], 0, &["last frame is truncated to 5,000 bytes at byte 600000"], Until(30 * MARK4)),
        row("one frame of Mark 4", BEFORE_MARK4, "On.m4", |it| mark4(it).map(|it| it[..MARK4].to_vec()), &[], 1, &["neither VDIF, Mark 5B nor Mark 4", "needs two whole frames"], Others),
        row("Mark 5B", BEFORE_MARK5B, "Jb.m5b#format=Mark5B-16-4-2&year=2024", |it| Some(it.read("formats/Jb.m5b")[..50 * MARK5B + 5].to_vec()), &[], 0, &["last frame is truncated to 5 bytes at byte 500800"], Until(50 * MARK5B)),
        row("text", PLAIN, "On.vdif", |_| Some(b"no recording at all, but quite a few bytes of text".to_vec()), &[], 1, &["neither VDIF, Mark 5B nor Mark 4"], Others),
        row("no file", PLAIN, "On.vdif", |_| None, &[], 1, &["cannot open", "No such file"], Others),
        // Damaged within.
        row("a header", PLAIN, "On.vdif", |it| { let mut bytes = on(it)?; bytes[90 * VDIF..][..32].fill(0xff); Some(bytes) }, &[], 0, &["1 frames with a damaged header, from byte 92880 on"], All),
        row("every second header", PLAIN, "On.vdif", |it| every_second(it, "vdif/On.vdif", VDIF, 32), &[], 0, &["frames with a damaged header, from byte 1032 on"], All),
        row("every second header of Mark 4", BEFORE_MARK4, "On.m4", |it| every_second(it, "formats/On.m4", MARK4, 160), &[], 0, &["frames with a damaged header, from byte 20000 on"], All),
        row("every second header of Mark 5B", BEFORE_MARK5B, "Jb.m5b#format=Mark5B-16-4-2&year=2024", |it| every_second(it, "formats/Jb.m5b", MARK5B, 16), &[], 0, &["frames with a damaged header, from byte 10016 on"], All),
        row("bytes lost", PLAIN, "On.vdif", |it| joined(it, "vdif/On.vdif", 90 * VDIF + 500, "vdif/On.vdif", 95 * VDIF), &[], 0, &["500 bytes between frames, from byte 92880 on"], Fringes),
        // Mixed.
        row("VDIF and Mark 5B", BEFORE_WIDE, "Ef.vdif", |it| joined(it, "formats/Ef.vdif", 50 * WIDE, "formats/Jb.m5b", 40 * MARK5B), &[], 0, &["from byte 401600 on, it is Mark 5B with frames of 10016 bytes, which are not used"], Until(50 * WIDE)),
        row("Mark 4 and VDIF", BEFORE_MARK4, "On.m4", |it| joined(it, "formats/On.m4", 34 * MARK4, "formats/Ef.vdif", 0), &[], 0, &["from byte 680000 on, it is VDIF with frames of 8032 bytes"], Until(34 * MARK4)),
        row("two lengths", PLAIN, "On.vdif", |it| joined(it, "vdif/On.vdif", 100 * VDIF, "frames/On.vdif", 50 * 2032), &[], 0, &["from byte 103200 on, it is VDIF with frames of 2032 bytes"], Until(100 * VDIF)),
        row("two numbers of bits", PLAIN, "On.vdif", |it| joined(it, "vdif/On.vdif", 100 * VDIF, "bits/On.vdif", 50 * VDIF), &[], 0, &["50 frames of other stations or shapes, from byte 103200 on"], Until(100 * VDIF)),
        row("two stations", PLAIN, "On.vdif", two_stations, &[], 0, &["200 frames of other stations or shapes, from byte 1032 on", "#station=CODE"], All),
        row("one of two stations", PLAIN, "On.vdif#station=On", two_stations, &[], 0, &[], All),
        // Mislabelled.
        row("as 1-bit", PLAIN, "On.vdif#format=VDIF_1000-2-1-1", on, &[], 1, &["given as VDIF_1000-2-1-1, but the frames are VDIF with a payload of 1000 bytes, 2 bits", "correct the format after `#`"], Others),
        row("as Mark 5B", PLAIN, "On.vdif#format=Mark5B-16-4-2", on, &[], 1, &["given as Mark5B-16-4-2, but the frames are VDIF", "correct the format"], Others),
        row("as Mark 4", BEFORE_MARK5B, "Jb.m5b#format=MKIV1_1-16-4-2", |it| Some(it.read("formats/Jb.m5b")), &[], 1, &["but the frames are Mark 5B"], Others),
        row("without a label", BEFORE_MARK5B, "Jb.m5b", |it| Some(it.read("formats/Jb.m5b")), &[], 1, &["do not contain the number of channels and bits: add them", "#format="], Others),
        row("fan-out", BEFORE_MARK4, "On.m4#format=MKIV1_2-16-4-2", mark4, &[], 1, &["Mark 4 of 8 tracks with 2 bits and a fan-out of 1", "correct the format"], Others),
        row("number of tracks", BEFORE_MARK4, "On.m4#format=MKIV1_1-16-8-2", mark4, &[], 1, &["given as MKIV1_1-16-8-2, but the frames are Mark 4 of 8 tracks"], Others),
        row("VLBA tape", BEFORE_MARK4, "On.m4#format=VLBA1_2-16-2-2", mark4, &[], 1, &["VLBA tape"], Nothing),
        row("by the file's name", PLAIN, "On.m4", on, &[], 0, &[], All),
        // Wrong rate.
        row("a faster station", PLAIN, "On.vdif", |it| Some(it.read("fast/On.vdif")), &[], 1, &["Ef recorded bands of 1000000 Hz and On of 2000000 Hz", "correct --sample-rate or the format"], Others),
        row("the rate of all", PLAIN, "On.vdif", on, &["--sample-rate", "4M"], 1, &["Ef.vdif: the sample rate is given as 4000000/s, but the frames have 2000000/s: correct --sample-rate"], Nothing),
        row("no whole frames", PLAIN, "On.vdif", on, &["--sample-rate", "4.0001M"], 1, &["Ef.vdif: sample rate 4000100/s gives no whole number of frames", "correct --sample-rate"], Nothing),
        row("rate of Mark 4", BEFORE_MARK4, "On.m4#format=MKIV1_1-4-4-2", mark4, &[], 1, &["given as 500000/s, but the frames have 2000000/s", "correct"], Others),
        // Stations of different bits correlate.
        row("other bits", PLAIN, "On.vdif", |it| Some(it.read("bits/On.vdif")), &[], 0, &[], Fringes),
        // Wrong times.
        row("a second late", PLAIN, "On.vdif", |it| on(it).and_then(a_second_late), &[], 0, &["no common data on Ef-On, Jb-On", "On from 2024-01-01T12:00:01Z to", "--delay"], Others),
        row("a second late in seconds", LONG, "On.vdif", |it| a_second_late(it.read("long/On.vdif")), &[], 0, &["no fringe on Ef-On, Jb-On", "clock may be off by seconds"], Others),
        row("a second late, corrected", LONG, "On.vdif", |it| a_second_late(it.read("long/On.vdif")), &["--delay", "0", "--delay", "0", "--delay", "1s"], 0, &[], Fringes),
        row("ten years early", BEFORE_MARK4, "On.m4#year=2014", mark4, &[], 0, &["no common data on Ef-On, Jb-On", "On from 2014-01-01T12:00:00Z", "#year=YEAR"], Others),
        row("another year", BEFORE_MARK4, "On.m4#year=2023", mark4, &[], 1, &["cannot be of 2023: by its headers it begins at 2024-01-01T12:00:00Z: correct #year"], Others),
        // Two stations of one name.
        row("a name as a code", PLAIN, "On.vdif#name=Ef", on, &[], 0, &["are both of station Ef", "#name="], All),
        row("a station twice", PLAIN, "Jb.vdif", |it| Some(it.read("vdif/Jb.vdif")), &[], 0, &["are both of station Jb", "called station 2 and station 3"], Others),
        row("two names", ["vdif/Ef.vdif#name=A", "vdif/Jb.vdif"], "On.vdif#name=A", on, &[], 1, &["two stations are named A", "#name=Da"], Nothing),
        // Channels and selections that are not there.
        row("other frequency", PLAIN, "On.vdif", on, &["--channel-table", "@far.toml"], 1, &["no other station has a band of On (R at 4.9500 GHz): correct --channel-table"], Others),
        row("no row", PLAIN, "On.vdif", on, &["--channel-table", "@short.toml"], 1, &["no row for thread 0, channel 0 of station On: add one"], Others),
        row("no thread", PLAIN, "On.vdif#thread=3", on, &[], 1, &["it has no thread 3: it contains 0: correct the selection after `#`"], Others),
        row("no station", PLAIN, "On.vdif#station=Xx", on, &[], 1, &["it has no station Xx: it contains On"], Others),
        row("no channel", PLAIN, "On.vdif#channels=2", on, &[], 1, &["it has no channel 2: it contains 0"], Others),
        row("no channel of VDIF", PLAIN, "On.vdif#channels=0U", on, &[], 1, &["it has no channel 0U: it contains 0"], Others),
        row("no channel of Mark 4", BEFORE_MARK4, "On.m4#channels=0", mark4, &[], 1, &["it has no channel 0: it contains 0U, 1U, 2U, 3U"], Others),
        row("no such setting", PLAIN, "On.vdif#thred=3", on, &[], 1, &["unknown setting `thred` after `#`: known are station, thread"], Nothing),
        row("a number sign", PLAIN, "On#1.vdif", on, &[], 1, &["unknown setting `1.vdif`", "%23"], Nothing),
    ]
}

/// Returns the baselines that a correlation prints, if it prints any; its exit status; and its messages.
fn correlated(
    skies: &Skies,
    pair: Pair,
    third: &str,
    options: &[&str],
) -> (Vec<Value>, i32, String) {
    let inputs = pair.map(|input| format!("@{input}"));
    let words = [
        "correlate",
        &inputs[0],
        &inputs[1],
        third,
        "--channels",
        "32",
        "--json",
    ];
    let line = skies.line(&[&words[..], options].concat());
    let output = evlbi(&line.iter().map(String::as_str).collect::<Vec<&str>>());
    let said = String::from_utf8(output.stderr).unwrap();
    let baselines = match output.stdout.as_slice() {
        [] => Vec::new(),
        printed => {
            let result: Value = serde_json::from_slice(printed).unwrap();
            result["baselines"].as_array().unwrap().clone()
        }
    };
    (baselines, output.status.code().unwrap(), said)
}

/// Checks that baselines have the same values, whatever their stations are called.
#[track_caller]
fn same(name: &str, found: &[Value], expected: &[Value]) {
    let number = |baseline: &Value, field: &str| baseline.pointer(field).unwrap().as_f64().unwrap();
    assert_eq!(found.len(), expected.len(), "{name}");
    for (found, expected) in found.iter().zip(expected) {
        for field in [
            "/amplitude/valid",
            "/amplitude/corrected",
            "/snr",
            "/weight",
        ] {
            let [found, expected] = [found, expected].map(|it| number(it, field));
            let difference = (found - expected).abs();
            assert!(
                difference <= 1e-9 * expected.abs(),
                "{name}: {field} is {found}, not {expected}"
            );
        }
    }
}

#[test]
fn bad_input_is_named_and_the_rest_is_correlated() {
    let skies = Skies::new();
    let mut whole: HashMap<String, Vec<Value>> = HashMap::new();
    for (index, case) in cases().into_iter().enumerate() {
        let Case {
            name,
            pair,
            third,
            make,
            options,
            status,
            says,
            kept,
        } = case;
        let file = third.split('#').next().unwrap();
        std::fs::create_dir(skies.0.path(&index.to_string())).unwrap();
        if let Some(bytes) = make(&skies) {
            skies.0.write(&format!("{index}/{file}"), bytes);
        }
        let input = format!("@{index}/{third}");
        let (found, ended, said) = correlated(&skies, pair, &input, options);
        assert_eq!(ended, status, "{name}: {said}");
        assert!(!said.contains("panicked"), "{name}: {said}");
        for part in says {
            assert!(said.contains(part), "{name}: {part} is not in: {said}");
        }
        if says.is_empty() {
            assert_eq!(said, "", "{name}");
        } else if !matches!(kept, Nothing) && status == 1 {
            let path = format!("{index}/{file}");
            assert!(said.contains(&path), "{name}: {path} is not in: {said}");
        }
        // The undamaged recording of the third station, with the settings of an input that is accepted.
        let mut undamaged = |pair: Pair, length: Option<usize>| {
            let third = match pair {
                BEFORE_MARK4 => "formats/On.m4",
                BEFORE_MARK5B => JB,
                BEFORE_WIDE => "formats/Ef.vdif",
                LONG => "long/On.vdif",
                _ => "vdif/On.vdif",
            };
            let key = format!("{third}{length:?}");
            let run = || {
                let (path, settings) = third.split_once('#').unwrap_or((third, ""));
                let bytes = skies.read(path);
                let cut = format!("cut-{}", path.replace('/', "-"));
                skies.0.write(&cut, &bytes[..length.unwrap_or(bytes.len())]);
                let input = match settings {
                    "" => format!("@{cut}"),
                    settings => format!("@{cut}#{settings}"),
                };
                correlated(&skies, pair, &input, &[]).0
            };
            whole.entry(key).or_insert_with(run).clone()
        };
        match kept {
            Nothing => assert!(found.is_empty(), "{name}"),
            Others => same(name, &found[..1], &undamaged(pair, None)[..1]),
            All => same(name, &found, &undamaged(pair, None)),
            Until(length) => same(name, &found, &undamaged(pair, Some(length))),
            Fringes => {
                same(name, &found[..1], &undamaged(pair, None)[..1]);
                for baseline in &found {
                    assert!(
                        baseline["false_alarm"].as_f64().unwrap() < 1e-9,
                        "{name}: {baseline}"
                    );
                    assert!(
                        baseline["weight"].as_f64().unwrap() <= 1.0,
                        "{name}: {baseline}"
                    );
                }
            }
        }
    }
}

/// Damage is reported by the other commands, too.
#[test]
fn other_commands_name_bad_input() {
    let skies = Skies::new();
    let [empty, cut, mixed] = ["@empty.vdif", "@cut.vdif", "@mixed.m4"];
    skies.0.write("empty.vdif", "");
    skies
        .0
        .write("cut.vdif", on_of(&skies, 150 * VDIF + 10).unwrap());
    let bytes = joined(&skies, "formats/On.m4", 34 * MARK4, "formats/Ef.vdif", 0);
    skies.0.write("mixed.m4", bytes.unwrap());
    let (ef, jb) = ("@vdif/Ef.vdif", "@vdif/Jb.vdif");
    let few = ["--channels", "32"];
    let fringe = |third: &'static str| [&["fringe", ef, jb, third], &few[..]].concat();
    let curve = [&["loss-curve", ef, jb, empty, "--loss", "10%"], &few[..]].concat();
    let cases: [(Vec<&str>, i32, &[&str]); 6] = [
        (vec!["inspect", empty], 1, &["empty.vdif is empty: record"]),
        (
            vec!["inspect", cut],
            0,
            &["10 bytes of a truncated last frame"],
        ),
        (
            vec!["inspect", mixed],
            0,
            &[
                "Mark 4 (MKIV1_1-16-4-2)",
                "34, 0 missing",
                "from byte 680000 on, it is VDIF",
            ],
        ),
        (
            fringe(empty),
            1,
            &[
                "Ef-Jb RR",
                "is left out",
                "not correlated, for the reasons above",
            ],
        ),
        (
            fringe(cut),
            0,
            &["Ef-On RR", "truncated to 10 bytes at byte 154800"],
        ),
        (
            curve,
            1,
            &["loss curves need all recordings", "give only the others"],
        ),
    ];
    for (words, status, says) in cases {
        let line = skies.line(&words);
        let output = evlbi(&line.iter().map(String::as_str).collect::<Vec<&str>>());
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        let said = said.concat();
        assert_eq!(output.status.code(), Some(status), "{words:?}: {said}");
        for part in says {
            assert!(said.contains(part), "{words:?}: {part} is not in: {said}");
        }
    }
}
