//! Any text as a gaps document: what is parsed is the same after writing and reading it again.

use evlbi_wire::time::FrameRate;
use evlbi_wire::validity::{Gaps, Intervals};

pub fn run(text: &[u8]) {
    let Ok(gaps) = serde_json::from_slice::<Gaps>(text) else {
        return;
    };
    let written = serde_json::to_vec(&gaps).expect("a document that was read can be written");
    let again: Gaps = serde_json::from_slice(&written).expect("what was written can be read");
    assert_eq!(again, gaps);
    let rate = gaps.frame_rate.or(FrameRate::new(1)).expect("not zero");
    let missing: Intervals = gaps.time.iter().map(|gap| gap.indices(rate)).collect();
    let sum = gaps.time.iter().map(|gap| u128::from(gap.frames)).sum();
    assert!(u128::from(missing.total()) <= sum);
    assert_eq!(missing.intersect(&missing), missing);
    for gap in &gaps.time {
        let _ = gap.start.rfc3339(rate);
    }
}
