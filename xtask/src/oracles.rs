//! `cargo xtask oracles`: runs the programs again whose answers are committed, and shows the differences.
//!
//! Their input is next to the tests: `crates/evlbi/tests/oracles` has captures and TCP traces, and
//! `crates/evlbi-correlate/tests/oracles` visibilities, with the scripts that generated them; the tests of `evlbi-wire`, `evlbi-fx` and
//! `evlbi-stream` run baseband.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use evlbi_testkit::need::{PACKAGES, which};

use crate::run::well;

const ORACLES: &str = "crates/evlbi/tests/oracles";
const VISIBILITIES: &str = "crates/evlbi-correlate/tests/oracles";
/// Directory for new answers.
const NEW: &str = "target/oracles";
const EVLBI: &str = "target/debug/evlbi";
const PYTHON: &str = "target/venv/bin/python";
/// Tests that run baseband, and one with evlbi's results for the TCP traces: package, target, name.
const TESTS: [(&str, &[&str], &str); 4] = [
    ("evlbi-wire", &["--test", "integration"], "baseband_still"),
    ("evlbi-fx", &["--test", "integration"], "baseband_still"),
    ("evlbi-stream", &["--test", "integration"], "baseband_still"),
    ("evlbi-probe", &["--lib"], "what_limited_recorded_flows"),
];

#[derive(Args)]
pub struct Oracles {
    /// Put the new answers in the place of those that are committed
    #[arg(long)]
    write: bool,
    /// Record new captures and TCP traces, too (as root; a quiet machine makes better ones)
    #[arg(long)]
    record: bool,
}

/// Runs the programs again, and compares.
///
/// # Errors
/// Returns an error if a program is missing or fails, or if answers differ and must not be written.
pub fn run(args: &Oracles) -> Result<()> {
    check(args.record)?;
    well(evlbi_testkit::cargo().args(["build", "--quiet", "--package", "evlbi"]))?;
    let new = Path::new(NEW);
    if new.exists() {
        fs::remove_dir_all(new)?;
    }
    fs::create_dir_all(new.join("captures"))?;
    if args.record {
        well(script(ORACLES, "record.sh").arg(EVLBI).arg(NEW))?;
    }
    // The answers belong to new or to earlier recordings.
    let recorded = if args.record { new } else { Path::new(ORACLES) };
    for capture in files(&recorded.join("captures"), "pcap")? {
        let answer = Command::new("python3")
            .arg(Path::new(ORACLES).join("tshark.py"))
            .arg(&capture)
            .output()?;
        ensure!(
            answer.status.success(),
            "{}",
            String::from_utf8_lossy(&answer.stderr)
        );
        let name = capture.with_extension("tshark.json");
        let name = name.file_name().context("a capture has a name")?;
        fs::write(new.join("captures").join(name), answer.stdout)?;
    }
    well(script(VISIBILITIES, "swin/make.sh").arg(EVLBI).arg(NEW))?;
    let mut differ = 0;
    for (oracles, folder, kind) in [
        (ORACLES, "", "txt"),
        (ORACLES, "captures", ""),
        (ORACLES, "tcp", ""),
        (VISIBILITIES, "swin", ""),
    ] {
        for file in files(&new.join(folder), kind)? {
            let committed = Path::new(oracles).join(folder);
            differ += u32::from(differs(&file, &committed, args.write)?);
        }
    }
    for (package, target, name) in TESTS {
        let mut tests = evlbi_testkit::cargo();
        tests.args(["test", "--quiet", "--package", package]);
        tests.args(target).arg(name);
        tests.env("EVLBI_REQUIRE", "tools");
        if args.write {
            tests.env("EVLBI_ORACLES", "write");
        }
        // A test shows the differences itself. A failure while writing has another reason.
        if !tests.status()?.success() {
            ensure!(
                !args.write,
                "{package}: {name} failed: not all answers are written"
            );
            println!("{package}: {name}: other answers");
            differ += 1;
        }
    }
    match (differ, args.write) {
        (_, true) => println!("the answers are written: git status shows which differ"),
        (0, false) => println!("all answers are as committed"),
        (differ, false) => bail!("{differ} files differ: --write puts the new ones in their place"),
    }
    Ok(())
}

/// Returns an error that names what is missing.
fn check(record: bool) -> Result<()> {
    let asked = ["python3", "tshark"];
    let recording = ["bash", "ip", "ss", "sysctl", "tc", "tcpdump"];
    let programs = asked.iter().chain(recording.iter().filter(|_| record));
    let mut missing: Vec<String> = programs
        .filter(|program| which(program).is_none())
        .map(|program| {
            let package = PACKAGES.iter().find(|(name, _)| name == program);
            package.map_or(program.to_string(), |(_, package)| {
                format!("{program} (apt install {package})")
            })
        })
        .collect();
    if std::env::var_os("EVLBI_PYTHON").is_none() && !Path::new(PYTHON).exists() {
        missing.push("Python with baseband (cargo xtask setup)".to_owned());
    }
    if record && fs::metadata("/proc/self")?.uid() != 0 {
        missing.push("root, for paths with tcpdump".to_owned());
    }
    ensure!(missing.is_empty(), "missing: {}", missing.join(", "));
    Ok(())
}

fn script(oracles: &str, name: &str) -> Command {
    let mut command = Command::new("sh");
    command.arg(Path::new(oracles).join(name));
    command
}

/// Returns the files of a kind in a directory, sorted by name; none if the directory does not exist.
fn files(folder: &Path, kind: &str) -> Result<Vec<PathBuf>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let all = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut files = all.collect::<std::io::Result<Vec<PathBuf>>>()?;
    files.retain(|file| kind.is_empty() || file.extension().is_some_and(|own| own == kind));
    files.sort();
    Ok(files)
}

/// Returns whether a new file differs from the committed one; shows the difference, and writes the file if requested.
fn differs(new: &Path, folder: &Path, write: bool) -> Result<bool> {
    let name = new.file_name().context("a file has a name")?;
    let committed = folder.join(name);
    if committed.exists() && fs::read(&committed)? == fs::read(new)? {
        return Ok(false);
    }
    // git itself reports that binary files differ.
    let mut show = Command::new("git");
    show.args(["--no-pager", "diff", "--no-index", "--stat", "--patch"]);
    show.arg(&committed).arg(new).status()?;
    if write {
        fs::copy(new, &committed)?;
    }
    Ok(true)
}
