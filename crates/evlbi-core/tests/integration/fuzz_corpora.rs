//! Runs the bodies of the fuzz targets over their corpora, and over damaged copies: nothing in this crate panics or contradicts
//! itself.

use proptest::prelude::*;

#[path = "../../../../fuzz/bodies/admission.rs"]
mod admission;
#[path = "../../../../fuzz/corpus.rs"]
mod corpus;
#[path = "../../../../fuzz/damage.rs"]
mod damage;
#[path = "../../../../fuzz/bodies/deframe.rs"]
mod deframe;
#[path = "../../../../fuzz/bodies/mark4.rs"]
mod mark4;
#[path = "../../../../fuzz/bodies/policy.rs"]
mod policy;
#[path = "../../../../fuzz/bodies/reorder.rs"]
mod reorder;

const TARGETS: [corpus::Target; 5] = [
    ("admission", admission::run),
    ("deframe", deframe::run),
    ("mark4", mark4::run),
    ("policy", policy::run),
    ("reorder", reorder::run),
];

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
