//! The committed inputs of a fuzz target, for the tests that replay them with a stable toolchain.

use std::path::Path;

/// Name of a fuzz target, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// Runs the body of each target over all its inputs.
pub fn replay(targets: &[Target]) {
    for (target, run) in targets {
        for (name, input) in inputs(target) {
            println!("{name}");
            run(&input);
        }
    }
}

/// Returns every input of `target`, sorted by file name, with its name.
pub fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let mut inputs: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| {
            let path = entry.expect("the folder can be read").path();
            let bytes = std::fs::read(&path).expect("an input can be read");
            (path.display().to_string(), bytes)
        })
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{} is empty", folder.display());
    inputs
}
