//! Counts the instructions for frames from the deframer to one file, and to one file per thread and station.

use evlbi_core::deframe::{Deframer, Settings};
use evlbi_testkit::Room;
use evlbi_testkit::instructions::{Frames, ROUND, measured, pass, units};

use super::*;

const FRAME: usize = 8032;

/// Returns the number of bytes written.
fn written(to: &str) -> u64 {
    let room = Room::on_disk();
    let files = Files {
        durability: Durability::Kernel,
        force: false,
        run: Run::silent(),
    };
    let mut sink = open(&room.path(to), &Selection::default(), files).expect("a sink");
    let mut deframer = Deframer::new(Settings::default());
    let mut frames = Frames::new(&[b"Ef", b"Wb"], 4, FRAME, 4000);
    for _ in 0..rounds() {
        pass(&mut deframer, &frames.take(ROUND), |chunk| {
            measured(|| sink.take(chunk));
        });
    }
    let report = sink.finish();
    assert_eq!(report.write_error, None);
    report.files.iter().map(|file| file.bytes).sum()
}

fn rounds() -> u64 {
    units(4 * ROUND as u64) / ROUND as u64
}

#[test]
fn split() {
    assert_eq!(
        written("{station}-{thread}.vdif"),
        rounds() * (ROUND * FRAME) as u64
    );
}

#[test]
fn file() {
    assert_eq!(written("one.vdif"), rounds() * (ROUND * FRAME) as u64);
}
