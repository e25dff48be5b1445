//! Runs the body of the fuzz target over its corpus, truncated and damaged: no DiFX file makes a parser panic.

use proptest::prelude::*;

#[path = "../../../../fuzz/corpus.rs"]
mod corpus;
#[path = "../../../../fuzz/damage.rs"]
mod damage;
#[path = "../../../../fuzz/bodies/difx.rs"]
mod difx;

#[test]
fn the_corpus_passes() {
    for (name, bytes) in corpus::inputs("difx") {
        println!("{name}");
        difx::run(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn damaged_files_pass(bytes in damage::damaged(&["difx"], 2000, 5)) {
        difx::run(&bytes);
    }
}
