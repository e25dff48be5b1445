//! What other programs said, once and for all: `tests/oracles` has files of ours and their answers, so that these tests need none
//! of them. `tests/oracles/README.md` lists the claims; `cargo xtask oracles` asks again.

pub mod captures;

use std::path::{Path, PathBuf};

use evlbi_testkit::oracle;
use serde_json::Value;

/// A file of the oracles.
fn path(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles")).join(name)
}

fn answer(name: &str) -> Value {
    oracle::committed(&path(name))
}
