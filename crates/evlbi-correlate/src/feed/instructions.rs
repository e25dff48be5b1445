//! Counts the instructions for frames of a stream into the track that the correlator empties.

use evlbi_core::deframe::{Deframer, Settings};
use evlbi_testkit::instructions::{Frames, ROUND, measured, pass, units};

use super::*;

const FRAME: usize = 8032;
const THREADS: usize = 4;
const FRAMES_A_SECOND: u64 = 4000;
/// 8000 bytes of 2-bit samples.
const SAMPLES: i64 = 32_000;

#[test]
fn feed() {
    let clocks = Arc::new(Mutex::new(Clocks::new(1, 5.0)));
    let rate = FRAMES_A_SECOND * SAMPLES as u64;
    let (epoch, clock) = (Arc::default(), Clock::real());
    let feed = Feed::new(
        &Selection::default(),
        Some(rate),
        Trust::Exact,
        &epoch,
        &clocks,
        0,
        &clock,
    );
    let mut feeding = Feeding(vec![Arc::clone(&feed)]);
    let mut deframer = Deframer::new(Settings::default());
    let mut frames = Frames::new(&[b"Ef"], THREADS as u16, FRAME, FRAMES_A_SECOND);
    // The run starts with the first data, however long that took.
    pass(&mut deframer, &frames.take(ROUND), |chunk| {
        feeding.take(chunk);
    });
    feed.state().learn(&feed);
    let newest = feed.newest().expect("frames");
    feed.clocks()
        .begin(&[Some((0.0, newest))], newest, feed.now());
    feed.state().keep_all();
    let layout = *feed.state().shape.as_ref().expect("a shape").layout();
    let mut station = LiveStation {
        feed: Arc::clone(&feed),
        layout,
        ending: Arc::new(Ending::new(Run::silent())),
    };
    let samples = (ROUND / THREADS) as i64 * SAMPLES;
    for round in 0..units(4 * ROUND as u64) as i64 / ROUND as i64 {
        pass(&mut deframer, &frames.take(ROUND), |chunk| {
            measured(|| feeding.take(chunk));
        });
        let slab = station
            .slab(round * samples..(round + 1) * samples)
            .expect("data");
        assert!(
            slab.lanes
                .iter()
                .all(|lane| lane.good.total() == samples as u64)
        );
    }
    assert_eq!(station.counts().foreign, 0);
}
