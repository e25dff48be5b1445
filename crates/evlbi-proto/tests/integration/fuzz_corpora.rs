//! Runs the body of the fuzz target over its corpus, and over damaged copies.

use proptest::prelude::*;

#[path = "../../../../fuzz/corpus.rs"]
mod corpus;
#[path = "../../../../fuzz/damage.rs"]
mod damage;
#[path = "../../../../fuzz/bodies/safe.rs"]
mod safe;

const TARGETS: [corpus::Target; 1] = [("safe", safe::run)];

#[test]
fn corpora_are_replayed() {
    corpus::replay(&TARGETS);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn damaged_input_passes(bytes in damage::damaged(&TARGETS, 40, 6)) {
        safe::run(&bytes);
    }
}
