//! Attacks (`cargo xtask attack`) for longer than the gate allows.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::programs::{Fields, program};
use super::record::{Record, Scene};

pub const SCENES: &[Scene] = &[Scene {
    name: "attacks",
    shows: "Hostile datagrams, clients and files, with other seeds for a minute: each outcome is as expected.",
    needs: &[],
    stall: Duration::MAX,
    play: attacks,
}];

fn attacks(record: &mut Record) -> Result<()> {
    let output = evlbi_testkit::cargo()
        .args(["xtask", "attack", "--json", "--seconds", "60", "--program"])
        .arg(program()?)
        .output()?;
    // It fails if an outcome is not as expected, and the report names that outcome.
    let report: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let seed = report.count("seed")?;
    for attack in report.list("attacks")? {
        let [name, expects] = [attack.text("name")?, attack.text("expectation")?];
        let rounds = attack.count("rounds")?;
        record.fact(
            format!("{name}: {expects}"),
            attack["as_expected"] == true,
            format!("--seed {seed}, {rounds} rounds: {}", attack["broken"]),
        );
    }
    Ok(())
}
