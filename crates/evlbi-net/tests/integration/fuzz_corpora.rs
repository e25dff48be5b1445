//! The committed inputs of the fuzz target of this crate, replayed without libFuzzer.

#[path = "../../../../fuzz/bodies/control.rs"]
mod control;
#[path = "../../../../fuzz/corpus.rs"]
mod corpus;

#[test]
fn corpora_are_replayed() {
    for (name, input) in corpus::inputs("control") {
        println!("{name}");
        control::run(&input);
    }
}
