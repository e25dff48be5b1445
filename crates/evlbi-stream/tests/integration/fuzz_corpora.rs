//! Runs the bodies of the fuzz targets over their corpora, and over damaged copies: nothing in this crate panics or contradicts
//! itself.

use proptest::prelude::*;

#[path = "../../../../fuzz/corpus.rs"]
mod corpus;
#[path = "../../../../fuzz/damage.rs"]
mod damage;
#[path = "../../../../fuzz/bodies/selection.rs"]
mod selection;
#[path = "../../../../fuzz/bodies/split.rs"]
mod split;

const TARGETS: [corpus::Target; 2] = [("selection", selection::run), ("split", split::run)];

#[test]
fn corpora_are_replayed() {
    corpus::replay(&TARGETS);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn damaged_input_passes(bytes in damage::damaged(&TARGETS, 40, 6)) {
        for (_, run) in TARGETS {
            run(&bytes);
        }
    }
}
