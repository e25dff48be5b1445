//! Runs the bodies of the fuzz targets over their corpora, truncated and damaged: no samples and no DiFX file make a parser panic or
//! contradict themselves.

use proptest::prelude::*;

#[path = "../../../../fuzz/corpus.rs"]
mod corpus;
#[path = "../../../../fuzz/damage.rs"]
mod damage;
#[path = "../../../../fuzz/bodies/difx.rs"]
mod difx;
#[path = "../../../../fuzz/bodies/unpack.rs"]
mod unpack;
#[path = "../../../../fuzz/bodies/words.rs"]
mod words;

const TARGETS: [corpus::Target; 3] = [
    ("difx", difx::run),
    ("unpack", unpack::run),
    ("words", words::run),
];

#[test]
fn the_corpora_pass() {
    corpus::replay(&TARGETS);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn damaged_files_pass(bytes in damage::damaged(&TARGETS, 2000, 5)) {
        for (_, run) in TARGETS {
            run(&bytes);
        }
    }
}
