//! No file of DiFX makes a parser panic: the corpus of the fuzz target, cut and damaged, goes through its body.

use proptest::prelude::*;

#[path = "../../../../fuzz/corpus.rs"]
mod corpus;
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
    fn damaged_files_pass(
        which in any::<prop::sample::Index>(),
        cut in 0usize..2000,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let inputs = corpus::inputs("difx");
        let mut bytes = inputs[which.index(inputs.len())].1.clone();
        bytes.truncate(bytes.len().saturating_sub(cut));
        for (index, value) in changes {
            if !bytes.is_empty() {
                let index = index.index(bytes.len());
                bytes[index] = value;
            }
        }
        difx::run(&bytes);
    }
}
