//! Runs the body of the fuzz target over its corpus, and over damaged copies: the analysis of captures neither panics nor
//! contradicts itself.

use proptest::prelude::*;

#[path = "../../../../fuzz/bodies/capture.rs"]
mod capture;
#[path = "../../../../fuzz/corpus.rs"]
mod corpus;
#[path = "../../../../fuzz/damage.rs"]
mod damage;

const TARGETS: [corpus::Target; 1] = [("capture", capture::run)];

#[test]
fn corpora_are_replayed() {
    corpus::replay(&TARGETS);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn damaged_input_passes(bytes in damage::damaged(&TARGETS, 40, 6)) {
        capture::run(&bytes);
    }
}
