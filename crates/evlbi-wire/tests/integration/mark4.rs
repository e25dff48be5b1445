//! Compares Mark 4 frames with `baseband`, sample by sample, on its own recordings.

use std::fs;
use std::path::{Path, PathBuf};

use evlbi_testkit::python::python;
use evlbi_testkit::{Room, command, oracle};
use evlbi_wire::mark4::{
    Channels, HEADER_BITS, Header, Order, TimeCode, TrackHeader, Tracks, find,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    path: PathBuf,
    tracks: usize,
    frames: Vec<Frame>,
}

#[derive(Deserialize)]
struct Frame {
    offset: usize,
    /// UTC without the final `Z`.
    time: String,
    /// SHA-256 of the samples of each channel, in an order of its own.
    columns: Vec<String>,
}

/// The samples of all channels of a frame: -3, -1, 1 or 3.
fn samples(payload: &[u8], order: &Order, count: usize) -> Vec<Vec<u8>> {
    let mut vdif = Vec::new();
    order.to_vdif(payload, &mut vdif);
    let codes = vdif
        .iter()
        .flat_map(|byte| (0..8).step_by(2).map(move |bit| byte >> bit & 3));
    let mut columns = vec![Vec::new(); count];
    for (place, code) in codes.enumerate() {
        columns[place % count].push((2 * code as i8 - 3) as u8);
    }
    columns
}

/// Decodes files with `baseband`, or its own recordings if there are none.
fn decode(python: PathBuf, files: &[String]) -> Vec<File> {
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/integration/baseband_mark4.py"
    );
    let output = command(python).arg(script).args(files).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The layouts that `baseband` can read, written by this crate: it reads the same times and samples.
#[test]
fn written_frames_are_read_the_same() {
    let Some(python) = python("baseband") else {
        return;
    };
    let room = Room::new();
    let layouts = [(16, 4), (32, 4), (32, 2), (64, 4)];
    // 2019-12-31T23:59:59.9975Z: the next frame is in the next year.
    let start = 1_577_836_799;
    let mut files = Vec::new();
    for (count, fan_out) in layouts {
        let tracks = Tracks::new(count).unwrap();
        let channels = Channels::usual(tracks, 2, fan_out).unwrap();
        let mut header = Header::new(tracks);
        channels.describe(&mut header);
        let order = Order::of(&channels);
        let mut bytes = Vec::new();
        for (second, micros) in [(start, 997_500), (start + 1, 0)] {
            let mut vdif = vec![0u8; tracks.frame_length()];
            let mut state = count as u32 + micros;
            for byte in &mut vdif {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = (state >> 24) as u8;
            }
            let begin = bytes.len();
            order.to_tracks(&vdif, &mut bytes);
            header.set_time_code(TimeCode::new(second, micros).unwrap());
            header.emit(&mut bytes[begin..]);
        }
        let file = room.write(&format!("{count}-{fan_out}.m4"), bytes);
        files.push(format!("{count}:{file}"));
    }
    let names = |channels: &Channels| {
        let names = channels.channels().iter().map(ToString::to_string);
        names.collect::<Vec<_>>().join(" ")
    };
    for (file, (count, fan_out)) in decode(python, &files).iter().zip(layouts) {
        assert_eq!(file.frames.len(), 2);
        let channels = Channels::usual(Tracks::new(count).unwrap(), 2, fan_out).unwrap();
        compare(file, &names(&channels), "");
    }
}

/// The five recordings: offsets, times, names of the channels, and the samples of every frame.
#[test]
fn sample_recordings_decode_the_same() {
    let Some(python) = python("baseband") else {
        return;
    };
    let files = decode(python, &[]);
    // The names of the channels, and the hash of all samples of the first frame, channel beside channel.
    let expected = [
        ("sample.m4", "0L 1L 2L 3L 4L 5L 6L 7L", "2aaf4ffd39aa207a"),
        ("sample_32track.m4", "0U 0L 1U 1L", "4d566469b87c89ee"),
        (
            "sample_32track_fanout2.m4",
            "0U 0L 1U 1L 2U 2L 3U 3L",
            "ef2e1ec58f8440a4",
        ),
        ("sample_16track.m4", "0L 1L", "35ee5cf89b85e014"),
        (
            "sample_64track_fanout2_ft.m4",
            "0U 0L 1U 2U 3U 4U 5U 6U 7U 7L 8U 9U 10U 11U 12U 13U",
            "91bbe277a5428850",
        ),
    ];
    assert_eq!(files.len(), expected.len());
    for (file, (name, names, hash)) in files.iter().zip(expected) {
        assert_eq!(Path::new(name), file.path.file_name().unwrap());
        compare(file, names, hash);
    }
}

/// Headers that are read some bit times off have a correct CRC on many tracks, and never on three quarters.
#[test]
fn the_crc_of_sample_recordings_does_not_show_a_slip() {
    let Some(python) = python("baseband") else {
        return;
    };
    // Tracks with a correct CRC from 3 bit times before the header to 4 after it.
    let expected = [
        ("sample.m4", [0, 3, 17, 64, 35, 22, 10, 0]),
        ("sample_32track.m4", [1, 2, 6, 32, 14, 7, 3, 0]),
        ("sample_32track_fanout2.m4", [0, 1, 12, 32, 15, 8, 3, 0]),
        ("sample_16track.m4", [0, 1, 3, 16, 10, 4, 1, 0]),
        ("sample_64track_fanout2_ft.m4", [0, 3, 14, 64, 30, 7, 3, 0]),
    ];
    for (file, (name, counts)) in decode(python, &[]).iter().zip(expected) {
        assert_eq!(Path::new(name), file.path.file_name().unwrap());
        let bytes = fs::read(&file.path).unwrap();
        let tracks = Tracks::new(file.tracks).unwrap();
        let intact = |slip: usize| {
            let start = file.frames[0].offset + slip * tracks.bytes() - 3 * tracks.bytes();
            let head = |track: usize| {
                let bit = |time: usize| {
                    let byte = bytes[start + time * tracks.bytes() + track / 8];
                    u32::from(byte >> (track % 8) & 1)
                };
                let word = |number: usize| {
                    let times = 32 * number..32 * (number + 1);
                    times.fold(0, |word, time| word << 1 | bit(time))
                };
                TrackHeader::from_words([0, 1, 2, 3, 4].map(word))
            };
            let intact = (0..tracks.count()).filter(|track| head(*track).is_intact());
            let read = Header::parse(&bytes[start..], tracks);
            assert_eq!(read.is_ok_and(|read| read.is_intact()), slip == 3, "{name}");
            intact.count()
        };
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(intact), counts, "{name}");
    }
}

fn compare(file: &File, names: &str, hash: &str) {
    let shown = file.path.display();
    let bytes = fs::read(&file.path).unwrap();
    let tracks = Tracks::new(file.tracks).unwrap();
    let header = |at: usize| Header::parse(&bytes[at..], tracks).unwrap();
    let found = find(&bytes, tracks).filter(|at| header(*at).intact_tracks() == file.tracks);
    // The last header of some files is without its frame.
    let whole = found.filter(|at| at + tracks.frame_length() <= bytes.len());
    let offsets: Vec<usize> = whole.collect();
    let theirs: Vec<usize> = file.frames.iter().map(|frame| frame.offset).collect();
    assert_eq!(offsets, theirs, "{shown}");
    assert!(!offsets.is_empty());
    let channels = Channels::of(&header(offsets[0])).unwrap();
    let ours = channels.channels().iter().map(ToString::to_string);
    assert_eq!(ours.collect::<Vec<_>>().join(" "), names, "{shown}");
    let order = Order::of(&channels);
    let mut permutation = None;
    for (frame, at) in file.frames.iter().zip(offsets) {
        let header = header(at);
        assert_eq!(Channels::of(&header).as_ref(), Ok(&channels));
        let code = header.time_code().unwrap();
        let time: jiff::Timestamp = format!("{}Z", frame.time).parse().unwrap();
        assert_eq!(code.second(time.as_second()), Some(time.as_second()));
        assert_eq!(code.micros(), time.subsec_microsecond() as u32);
        let payload = &bytes[at..at + tracks.frame_length()][tracks.header_length()..];
        let columns = samples(payload, &order, channels.channels().len());
        let there = |column: &Vec<u8>| {
            let hash = oracle::hash(column);
            frame.columns.iter().position(|theirs| *theirs == hash)
        };
        let places: Vec<_> = columns.iter().map(there).collect();
        assert!(places.iter().all(Option::is_some), "{shown} at byte {at}");
        if permutation.is_none() {
            let times = 0..columns[0].len();
            let all: Vec<u8> = times
                .flat_map(|time| columns.iter().map(move |column| column[time]))
                .collect();
            assert!(oracle::hash(&all).starts_with(hash), "{shown}");
        }
        assert_eq!(*permutation.get_or_insert(places.clone()), places);
        let first = HEADER_BITS * channels.fan_out();
        println!("{shown}: the samples from number {first} of the frame at byte {at} are the same");
    }
}
