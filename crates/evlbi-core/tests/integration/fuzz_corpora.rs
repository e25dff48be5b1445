//! The committed inputs of the fuzz targets of this crate, replayed without libFuzzer.

#[path = "../../../../fuzz/bodies/capture.rs"]
mod capture;
#[path = "../../../../fuzz/corpus.rs"]
mod corpus;
#[path = "../../../../fuzz/bodies/deframe.rs"]
mod deframe;
#[path = "../../../../fuzz/bodies/policy.rs"]
mod policy;
#[path = "../../../../fuzz/bodies/reorder.rs"]
mod reorder;

#[test]
fn corpora_are_replayed() {
    for (target, body) in [
        ("capture", capture::run as fn(&[u8])),
        ("deframe", deframe::run),
        ("policy", policy::run),
        ("reorder", reorder::run),
    ] {
        for (name, input) in corpus::inputs(target) {
            println!("{name}");
            body(&input);
        }
    }
}
