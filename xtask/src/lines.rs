//! `cargo xtask lines`: lines of code, comments and tests of each crate, and their difference to another revision.
//!
//! This module counts what is in sources.

pub mod count;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::json;

use crate::base;
use count::{Lines, count};

/// Crates that are not part of the product.
const TOOLS: [&str; 4] = ["evlbi-bench", "evlbi-testkit", "fuzz", "xtask"];

#[derive(Args)]
pub struct LinesArgs {
    /// Show the difference to this git revision (nothing is built)
    #[arg(long, value_name = "REV")]
    against: Option<String>,
    /// Leave out files whose paths begin with this, e.g. crates/evlbi-net/src/sim
    #[arg(long, value_name = "PATH")]
    except: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Lines of each crate, by its name.
type Crates = BTreeMap<String, Lines>;

/// Prints the lines of the working tree, and the difference.
///
/// # Errors
/// Returns an error if a file cannot be read or parsed, or git does not know the revision.
pub fn run(args: &LinesArgs) -> Result<()> {
    let now = crates(Path::new("."), &args.except)?;
    let before = match &args.against {
        Some(revision) => Some(of_revision(revision, &args.except)?),
        None => None,
    };
    if args.json {
        let mut report = json!({"schema": "evlbi.lines-report/1", "now": report(&now)});
        if let (Some(before), Some(revision)) = (&before, &args.against) {
            report["against"] = json!(revision);
            report["before"] = self::report(before);
        }
        println!("{report:#}");
        return Ok(());
    }
    println!(
        "{:<16}{:>16}{:>16}{:>16}{:>16}{:>16}{:>16}",
        "crate", "code", "comments", "blank", "tests", "benches", "examples"
    );
    let before = before.unwrap_or_default();
    let is_compared = args.against.is_some();
    let mut names: Vec<&String> = now.keys().chain(before.keys()).collect();
    names.sort_by_key(|name| (is_tool(name), *name));
    names.dedup();
    let row = |name: &str, now: Lines, before: Lines| {
        let cells = now.columns().into_iter().zip(before.columns());
        let cells = cells.map(|((_, now), (_, before))| {
            let difference = now as i64 - before as i64;
            match is_compared && difference != 0 {
                true => format!("{:>16}", format!("{now} ({difference:+})")),
                false => format!("{now:>16}"),
            }
        });
        println!("{name:<16}{}", cells.collect::<String>());
    };
    let of = |crates: &Crates, name: &str| crates.get(name).copied().unwrap_or_default();
    for name in names {
        row(name, of(&now, name), of(&before, name));
    }
    row("product", total(&now, false), total(&before, false));
    row("all", total(&now, true), total(&before, true));
    Ok(())
}

fn is_tool(name: &str) -> bool {
    TOOLS.contains(&name)
}

/// Returns the sum, with or without the crates that only serve the development.
fn total(crates: &Crates, with_tools: bool) -> Lines {
    let counted = crates
        .iter()
        .filter(|(name, _)| with_tools || !is_tool(name));
    counted.map(|(_, lines)| *lines).sum()
}

fn report(crates: &Crates) -> serde_json::Value {
    let object = |lines: Lines| serde_json::Value::from_iter(lines.columns());
    json!({
        "crates": crates.iter().map(|(name, lines)| (name.clone(), object(*lines))).collect::<serde_json::Map<_, _>>(),
        "product": object(total(crates, false)),
        "all": object(total(crates, true)),
    })
}

/// Returns the lines of a revision, which is unpacked to a temporary directory.
fn of_revision(revision: &str, except: &[String]) -> Result<Crates> {
    let commit = base::commit(revision)?;
    let room = evlbi_testkit::Room::new();
    let mut archive = Command::new("git")
        .args(["archive", &commit])
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start git")?;
    let mut tar = Command::new("tar");
    tar.args(["-x", "-C"]).arg(room.folder());
    tar.stdin(archive.stdout.take().context("no output of git")?);
    let unpacked = tar.status().context("cannot start tar")?;
    if !archive.wait()?.success() || !unpacked.success() {
        bail!("cannot unpack the revision `{revision}`");
    }
    crates(room.folder(), except)
}

/// Returns the lines of all crates of a tree.
fn crates(root: &Path, except: &[String]) -> Result<Crates> {
    let mut folders = vec![root.join("fuzz"), root.join("xtask")];
    for entry in fs::read_dir(root.join("crates"))? {
        folders.push(entry?.path());
    }
    let mut crates = Crates::new();
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        let name = folder.file_name().unwrap_or_default();
        let mut files = Vec::new();
        rust_files(folder, &mut files)?;
        files.retain(|path| {
            let path = path.strip_prefix(root).unwrap_or(path).to_string_lossy();
            !except.iter().any(|except| path.starts_with(except))
        });
        let lines = of_crate(folder, &files)?;
        crates.insert(name.to_string_lossy().into_owned(), lines);
    }
    Ok(crates)
}

/// Adds the sources below a directory, except those in directories called `target`.
pub fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            rust_files(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Sums the lines of a crate's files. Modules that exist only in tests are found in the files that declare them.
fn of_crate(folder: &Path, files: &[PathBuf]) -> Result<Lines> {
    let mut lines = Lines::default();
    let mut counted = Vec::new();
    let mut of_tests: Vec<PathBuf> = Vec::new();
    for path in files {
        let text = fs::read_to_string(path)?;
        let mut parts = path.strip_prefix(folder)?.iter();
        match parts.next().and_then(|part| part.to_str()) {
            Some("benches") => lines.benches += text.lines().count(),
            Some("examples") => lines.examples += text.lines().count(),
            Some("src" | "build.rs") if !folder.ends_with("fuzz") => {
                let (lines, modules) = count(&text).with_context(|| path.display().to_string())?;
                let place = children(path);
                of_tests.extend(modules.iter().map(|module| place.join(module)));
                counted.push((path, lines));
            }
            _ => lines.tests += text.lines().count(),
        }
    }
    for (path, file) in counted {
        let is_test =
            |module: &PathBuf| path.starts_with(module) || *path == module.with_extension("rs");
        lines = lines
            + match of_tests.iter().any(is_test) {
                true => Lines {
                    tests: file.total(),
                    ..Lines::default()
                },
                false => file,
            };
    }
    Ok(lines)
}

/// Returns the directory of the modules that a file declares.
pub fn children(path: &Path) -> PathBuf {
    match path.file_stem().and_then(|stem| stem.to_str()) {
        Some("lib" | "main" | "mod") => path.with_file_name(""),
        _ => path.with_extension(""),
    }
}
