//! Runs the bodies of the fuzz targets over their corpora, over damaged copies and over noise: no parser panics or contradicts
//! itself.

use proptest::prelude::*;

#[path = "../../../../fuzz/corpus.rs"]
mod corpus;
#[path = "../../../../fuzz/damage.rs"]
mod damage;
#[path = "../../../../fuzz/bodies/fill.rs"]
mod fill;
#[path = "../../../../fuzz/bodies/gaps.rs"]
mod gaps;
#[path = "../../../../fuzz/bodies/mark5b.rs"]
mod mark5b;
#[path = "../../../../fuzz/bodies/probe.rs"]
mod probe;
#[path = "../../../../fuzz/bodies/vdif.rs"]
mod vdif;
#[path = "../../../../fuzz/bodies/vtp.rs"]
mod vtp;

const TARGETS: [corpus::Target; 6] = [
    ("fill", fill::run),
    ("gaps", gaps::run),
    ("mark5b", mark5b::run),
    ("probe", probe::run),
    ("vdif", vdif::run),
    ("vtp", vtp::run),
];

#[test]
fn the_corpora_pass() {
    corpus::replay(&TARGETS);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damaged_input_passes(bytes in damage::damaged(&TARGETS, 7, 3)) {
        for (_, run) in TARGETS {
            run(&bytes);
        }
    }

    #[test]
    fn noise_passes(mut bytes in prop::collection::vec(any::<u8>(), 0..300), mark5b: bool) {
        if let (true, Some(sync)) = (mark5b, bytes.first_chunk_mut()) {
            *sync = evlbi_wire::mark5b::SYNC.to_le_bytes();
        }
        for (_, run) in TARGETS {
            run(&bytes);
        }
    }
}
