//! Recordings to carry: our own of many shapes, `baseband`'s samples, and those with results of other correlators.

use std::path::{Path, PathBuf};
use std::{fmt, fs};

use evlbi_testkit::python::python;
use evlbi_testkit::recording::noise;
use evlbi_testkit::{buffer, command, need};
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::{Header, Shape, StationId, StreamKey};
use evlbi_wire::{mark5b, pattern};

/// UTC of the first frame: the last second of a day.
const SECOND: i64 = 1_704_153_599;

/// A recording to carry.
pub struct Recording {
    pub name: String,
    pub bytes: Vec<u8>,
    /// Frames per second of a thread, if the rate cannot be detected in time.
    pub frame_rate: Option<FrameRate>,
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Recording {
    fn of(name: &str, bytes: Vec<u8>) -> Recording {
        Recording {
            name: name.to_owned(),
            bytes,
            frame_rate: None,
        }
    }

    /// Reads as much of a file as a receiver holds at any size of datagrams from 700 bytes on, even if some are duplicated.
    fn read(path: &Path) -> Recording {
        let mut bytes = fs::read(path).unwrap();
        bytes.truncate(buffer::holds_data(700) * 9 / 10);
        Recording::of(&path.display().to_string(), bytes)
    }

    /// The frames of a recording in VDIF, and how long one is.
    pub fn vdif(&self) -> Option<(&[u8], usize)> {
        let is_vdif = Path::new(&self.name)
            .extension()
            .is_some_and(|ext| ext == "vdif");
        // A corrupted recording is not VDIF, and neither is a pointer to one.
        let is_broken = self.name.contains("corrupted") || self.bytes.len() < 5000;
        if !is_vdif || is_broken {
            return None;
        }
        let frame = Header::parse(&self.bytes).unwrap().frame_length();
        let whole = self.bytes.len() / frame * frame;
        (whole > 0).then_some((&self.bytes[..whole], frame))
    }
}

/// Our own, no longer than any receiver's buffer holds: VDIF of several lengths, threads, bits and channels, of old headers, and
/// with invalid frames; Mark 5B; bytes that are not a recording.
pub fn ours() -> Vec<Recording> {
    let long = pattern::frames(8032, SECOND, FrameRate::new(64).unwrap(), 12).unwrap();
    let mut ours = vec![
        Recording::of("pattern.vdif", long),
        vdif("four-threads.vdif", 4, 2536, |shape| Shape {
            bits: 1,
            log2_channels: 3,
            ..shape
        }),
        vdif("complex.vdif", 1, 1032, |shape| Shape {
            complex: true,
            bits: 8,
            ..shape
        }),
        vdif("legacy.vdif", 2, 1016, |shape| Shape {
            legacy: true,
            ..shape
        }),
        mark5b(),
    ];
    ours.push(Recording::of("bytes.bin", noise(50_001, 1)));
    ours
}

/// Samples included in `baseband`; none where that is not installed, and the calling test is skipped.
pub fn of_baseband() -> Option<Vec<Recording>> {
    let python = python("baseband")?;
    let output = command(python)
        .args(["-c", "import baseband.data as d; print(d.__path__[0])"])
        .output()
        .unwrap();
    let folder = String::from_utf8(output.stdout).unwrap();
    Some(found_in(Path::new(folder.trim()), 13))
}

/// Those of EVLBI_REFERENCE_DATA; none if it is not set, and the calling test is skipped.
pub fn of_others() -> Option<Vec<Recording>> {
    Some(found_in(&need::recordings()?, 6))
}

fn found_in(folder: &Path, least: usize) -> Vec<Recording> {
    let mut found = Vec::new();
    gather(folder, &mut found);
    found.sort();
    assert!(
        found.len() >= least,
        "{} recordings in {}",
        found.len(),
        folder.display()
    );
    found.iter().map(|path| Recording::read(path)).collect()
}

fn gather(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let known = ["vdif", "m5b", "m4", "dada", "raw"];
        if path.is_dir() {
            gather(&path, found);
        } else if path
            .extension()
            .is_some_and(|ext| known.iter().any(|known| ext == *known))
        {
            found.push(path);
        }
    }
}

/// Twelve frames of each thread, of which the fifth is invalid, across the end of a second.
fn vdif(name: &str, threads: u16, length: usize, shape: impl Fn(Shape) -> Shape) -> Recording {
    let rate = FrameRate::new(8).unwrap();
    let shape = shape(Shape {
        frame_length: length,
        log2_channels: 0,
        bits: 2,
        complex: false,
        legacy: false,
    });
    let mut bytes = Vec::new();
    for number in 0..12 {
        for thread in 0..threads {
            let station = StationId::from_code(*b"Ef");
            let mut header = Header::new(shape, StreamKey { station, thread });
            let time = FrameTime::from_index(SECOND * 8 + number, rate);
            header.set_time(time).unwrap();
            header.set_invalid(number == 4);
            let mut frame = noise(length, number as u64 * 16 + u64::from(thread));
            header.emit(&mut frame);
            bytes.extend(frame);
        }
    }
    Recording {
        frame_rate: Some(rate),
        ..Recording::of(name, bytes)
    }
}

fn mark5b() -> Recording {
    let rate = FrameRate::new(8).unwrap();
    let frame = |number: i64| {
        let mut header = mark5b::Header::from_words([mark5b::SYNC, 0, 0, 0]).unwrap();
        let time = FrameTime::from_index(SECOND * 8 + number, rate);
        header.set_time(time, rate).unwrap();
        let payload = noise(mark5b::PAYLOAD_LEN, number as u64);
        [&header.to_bytes()[..], &payload].concat()
    };
    Recording::of("ours.m5b", (0..12).flat_map(frame).collect())
}
