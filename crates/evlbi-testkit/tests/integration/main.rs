//! Leftovers of killed runs, and reports of skips, tested with test binaries that are started for this purpose.
//!
//! Tests belong here if only a whole test run shows the behaviour.

mod arq;
mod leftovers;
mod skips;

use std::process::Command;

use evlbi_testkit::leftovers::MARK;
use evlbi_testkit::{Room, command, copy_program};

/// Returns a copy of this test binary, in a target directory of its own, that runs one of its ignored tests on a machine without
/// programs.
fn another_run(room: &Room, test: &str) -> Command {
    let (deps, empty) = (room.path("target/debug/deps"), room.path("empty"));
    for folder in [&deps, &empty] {
        std::fs::create_dir_all(folder).expect("a directory");
    }
    let copy = format!("{deps}/integration-0123456789abcdef");
    let this = std::env::current_exe().expect("this program");
    copy_program(this, &copy);
    let mut run = command(copy);
    run.args(["--exact", test, "--ignored", "--nocapture"]);
    for variable in [
        MARK,
        "EVLBI_REQUIRE",
        "EVLBI_REFERENCE_DATA",
        "EVLBI_PYTHON",
    ] {
        run.env_remove(variable);
    }
    run.env("PATH", empty);
    run
}
