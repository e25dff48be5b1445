//! Recordings of real stations, from the directory that EVLBI_REFERENCE_DATA names.

use std::path::{Path as FilePath, PathBuf};

use evlbi_core::deframe::{Deframer, Format, FrameState, Settings};
use evlbi_wire::time::FrameRate;
use evlbi_wire::{mark5b, vdif};

use crate::deframe::stream::{Output, Path, Stream, carry};

/// A time near that of sample.m5b of `baseband`; VDIF does not need one.
const REFERENCE: i64 = 1_402_637_401;

fn recordings(directory: &FilePath) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(directory).unwrap();
    for path in entries.map(|entry| entry.unwrap().path()) {
        let extension = path.extension().and_then(|extension| extension.to_str());
        if path.is_dir() {
            found.extend(recordings(&path));
        } else if matches!(extension, Some("vdif" | "m5b")) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn walk(bytes: &[u8]) -> (Output, Deframer) {
    let mut deframer = Deframer::new(settings(None));
    let mut output = Output::default();
    deframer.walk(bytes, true, &mut |chunk| output.take(chunk));
    (output.finish(&deframer), deframer)
}

fn settings(frame_rate: Option<FrameRate>) -> Settings {
    Settings {
        frame_rate,
        latest: REFERENCE,
        ..Settings::default()
    }
}

#[test]
fn recordings_come_through_loss() {
    let Some(directory) = evlbi_testkit::need::recordings() else {
        return;
    };
    let recordings = recordings(&directory);
    let mut whole = 0;
    for path in recordings {
        let mut bytes = std::fs::read(&path).unwrap();
        let (output, deframer) = walk(&bytes);
        let Some(layout) = deframer.layout() else {
            // A placeholder that contains the name of a recording.
            assert!(bytes.len() < 5000, "{}", path.display());
            continue;
        };
        whole += 1;
        let length = layout.frame_length;
        // A truncated last frame is not sent.
        bytes.truncate(bytes.len() / length * length);
        assert_eq!(output.bytes, bytes);
        assert_eq!(output.counts.odd_headers, 0, "{}", path.display());
        eprintln!(
            "{}: {:?}, {} frames of {length}, {:?} frames/s",
            path.display(),
            layout.format,
            output.counts.frames,
            deframer.frame_rate().map(FrameRate::get),
        );
        let stream = Stream {
            bytes,
            frame_length: length,
            header_length: layout.header_length,
            rate: 0,
        };
        for slot in [length, length / 2, 1464] {
            let lost = (0..13).map(|phase| lose_some(&stream, slot, phase, layout.format));
            let (lost, untrue, guessed) = lost.fold((0, 0, 0), |sum, one| {
                (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2)
            });
            eprintln!(
                "  datagrams of {slot}: {lost} lost, {untrue} not as they were, {guessed} guessed"
            );
            assert!(untrue <= guessed, "{}", path.display());
        }
    }
    assert!(whole >= 6, "{whole} recordings with frames");
}

/// Returns the number of lost frames, of those that did not get their right time and thread, and of those counted as guesses.
fn lose_some(stream: &Stream, slot: usize, phase: usize, format: Format) -> (u64, u64, u64) {
    let slots = stream.bytes.len() / slot;
    let lost = (0..slots).filter(|slot| slot * 7919 % 13 == phase);
    let path = Path {
        max_new: 5,
        ..Path::new(slot, lost)
    };
    let output = carry(stream, &path, settings(None));
    let first = path.seen(stream).start.div_ceil(stream.frame_length);
    let mut untrue = 0;
    for (number, frame) in output.frames.iter().enumerate() {
        let ours = &output.bytes[frame.bytes.clone()];
        let original = stream.frame(first + number);
        if frame.state != FrameState::Lost {
            assert!(ours == original, "frame {number}");
            continue;
        }
        let is_true = match format {
            Format::Mark5b => {
                let header = |bytes| mark5b::Header::parse(bytes).unwrap();
                header(ours).time(REFERENCE) == header(original).time(REFERENCE)
            }
            _ => {
                let header = vdif::Header::parse(ours).unwrap();
                assert!(header.is_invalid());
                let original = vdif::Header::parse(original).unwrap();
                header.time() == original.time() && header.key() == original.key()
            }
        };
        untrue += u64::from(!is_true);
    }
    (output.counts.lost_frames, untrue, output.counts.ambiguous)
}
