//! No message makes the control channel's parser panic or contradict itself: the fuzz target's corpus, also with damage, runs through its
//! body.

use proptest::prelude::*;

#[path = "../../../../fuzz/bodies/control.rs"]
mod control;
#[path = "../../../../fuzz/corpus.rs"]
mod corpus;
#[path = "../../../../fuzz/damage.rs"]
mod damage;

const TARGETS: [corpus::Target; 1] = [("control", control::run)];

#[test]
fn corpora_are_replayed() {
    corpus::replay(&TARGETS);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn damaged_input_passes(bytes in damage::damaged(&TARGETS, 8, 4)) {
        control::run(&bytes);
    }
}
