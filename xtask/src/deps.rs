//! Dependencies point one way: wire <- core <- trace <- net <- host <- stream <- {correlate, control} <- evlbi; wire <- fx <- stream;
//! net <- {path, probe}; probe <- control; plot <- {stream, correlate, probe, control}. What belongs to the program (command line, anyhow)
//! stays in the program. No modules of a library, or of the program, import each other in a circle. Libraries print nothing, end no
//! process, and have no unsafe code beside evlbi-net.

mod circles;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use proc_macro2::{TokenStream, TokenTree};

use crate::lines::rust_files;

/// Each library and the crates of this workspace that it may use.
const MAY_USE: [(&str, &[&str]); 12] = [
    ("evlbi-wire", &[]),
    ("evlbi-core", &["evlbi-wire"]),
    ("evlbi-trace", &["evlbi-core", "evlbi-wire"]),
    ("evlbi-net", &["evlbi-core", "evlbi-trace", "evlbi-wire"]),
    ("evlbi-host", &["evlbi-core", "evlbi-net", "evlbi-wire"]),
    ("evlbi-fx", &["evlbi-wire"]),
    (
        "evlbi-stream",
        &[
            "evlbi-core",
            "evlbi-fx",
            "evlbi-host",
            "evlbi-net",
            "evlbi-plot",
            "evlbi-wire",
        ],
    ),
    (
        "evlbi-correlate",
        &[
            "evlbi-core",
            "evlbi-fx",
            "evlbi-net",
            "evlbi-plot",
            "evlbi-stream",
            "evlbi-wire",
        ],
    ),
    ("evlbi-path", &["evlbi-core", "evlbi-net", "evlbi-wire"]),
    (
        "evlbi-probe",
        &[
            "evlbi-core",
            "evlbi-net",
            "evlbi-plot",
            "evlbi-trace",
            "evlbi-wire",
        ],
    ),
    (
        "evlbi-control",
        &[
            "evlbi-core",
            "evlbi-host",
            "evlbi-net",
            "evlbi-plot",
            "evlbi-probe",
            "evlbi-stream",
            "evlbi-wire",
        ],
    ),
    ("evlbi-plot", &[]),
];

/// What the program alone brings in, or it and these libraries; no other library does, not even by what it uses.
const KEPT: [(&str, &[&str]); 9] = [
    ("anyhow", &[]),
    ("axum", &["evlbi-control"]),
    ("clap", &[]),
    ("ctrlc", &[]),
    ("hyper", &["evlbi-control"]),
    ("indicatif", &[]),
    ("rusqlite", &["evlbi-control", "evlbi-probe"]),
    ("rustyline", &[]),
    ("tokio", &["evlbi-control"]),
];

/// What one library alone uses by itself.
const OWNED: [(&str, &str); 6] = [
    ("libc", "evlbi-net"),
    ("linux-raw-sys", "evlbi-net"),
    ("rustix", "evlbi-net"),
    ("epaint_default_fonts", "evlbi-plot"),
    ("plotters", "evlbi-plot"),
    ("png", "evlbi-plot"),
];

/// Libraries that stay free of any one system, and others than Linux that their dependencies are looked at for.
const ANYWHERE: [&str; 4] = ["evlbi-wire", "evlbi-core", "evlbi-trace", "evlbi-fx"];
const ELSEWHERE: [&str; 2] = ["x86_64-pc-windows-msvc", "aarch64-apple-darwin"];
/// What exists on Unix, or on Linux, alone.
const UNIX_ONLY: [&str; 4] = ["ctrlc", "linux-raw-sys", "nix", "rustix"];

/// What each library says at its beginning.
const QUIET: &str = "#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]";
const SAFE: &str = "#![forbid(unsafe_code)]";

/// Libraries that bring in none of these without their default features: whoever links them has no server and draws nothing.
const LIGHT: [&str; 3] = ["evlbi-stream", "evlbi-correlate", "evlbi-probe"];
const HEAVY: [&str; 5] = ["libsqlite3-sys", "plotters", "ring", "rustls", "tokio"];

pub fn check() -> Result<()> {
    for name in MAY_USE.map(|(library, _)| library).iter().chain(&["evlbi"]) {
        let circles = circles::circles(&Path::new("crates").join(name))?;
        if let Some(circle) = circles.first() {
            bail!(
                "modules of {name} import each other in a circle:\n  {}",
                circle.join("\n  ")
            );
        }
    }
    for (library, may_use) in MAY_USE {
        for name in tree(library, Some(1), None)? {
            if name.starts_with("evlbi") && name != library && !may_use.contains(&name.as_str()) {
                bail!("{library} may not depend on {name} (allowed: {may_use:?})");
            }
            if let Some((_, owner)) = OWNED.iter().find(|(owned, _)| *owned == name)
                && *owner != library
            {
                bail!("{library} may not depend on {name}: it belongs to {owner}");
            }
        }
        for name in tree(library, None, None)? {
            let kept = KEPT.iter().find(|(kept, _)| *kept == name);
            if kept.is_some_and(|(_, by)| !by.contains(&library)) {
                bail!(
                    "{library} depends on {name}, which is kept from it (KEPT in xtask/src/deps.rs)"
                );
            }
        }
        let root = Path::new("crates").join(library).join("src/lib.rs");
        let text = fs::read_to_string(&root).with_context(|| root.display().to_string())?;
        for line in [QUIET, SAFE] {
            // All unsafe code is there.
            let is_free = line == SAFE && library == "evlbi-net";
            if !is_free && !text.contains(line) {
                bail!("{} lacks {line}", root.display());
            }
        }
    }
    for name in tree("evlbi", Some(1), None)? {
        if let Some((_, owner)) = OWNED.iter().find(|(owned, _)| *owned == name) {
            bail!("the program may not depend on {name}: it belongs to {owner}");
        }
    }
    for library in ANYWHERE {
        for target in ELSEWHERE {
            for name in tree(library, None, Some(target))? {
                if UNIX_ONLY.contains(&name.as_str()) {
                    bail!("{library} depends on {name} on {target}, where there is none");
                }
            }
        }
        let mut files = Vec::new();
        rust_files(&Path::new("crates").join(library).join("src"), &mut files)?;
        for path in files {
            let text = fs::read_to_string(&path)?;
            if text.contains("std::os::") {
                bail!(
                    "{} uses std::os: it is to stay free of any system",
                    path.display()
                );
            }
        }
    }
    for library in LIGHT {
        for name in tree_with(library, &["--no-default-features"])? {
            if HEAVY.contains(&name.as_str()) {
                bail!("{library} brings in {name} without its default features");
            }
        }
    }
    println!("ci: dependency rules hold");
    Ok(())
}

/// The paths in a source, each with what follows it; those of `a::{b, c}` as a::b and a::c. Lines that are skipped have none.
fn name_paths(
    within: &str,
    tokens: TokenStream,
    is_skipped: &dyn Fn(usize) -> bool,
    paths: &mut Vec<String>,
) {
    let mut path = within.to_owned();
    for token in tokens {
        if is_skipped(token.span().start().line) {
            continue;
        }
        match token {
            TokenTree::Ident(name) if path.is_empty() || path.ends_with("::") => {
                path += &name.to_string();
            }
            TokenTree::Punct(mark) if matches!(mark.as_char(), ':' | '!') => {
                path.push(mark.as_char());
            }
            TokenTree::Group(group) => {
                let within = if path.ends_with("::") {
                    path.as_str()
                } else {
                    ""
                };
                name_paths(within, group.stream(), is_skipped, paths);
                paths.push(std::mem::take(&mut path));
            }
            token => {
                paths.push(std::mem::replace(&mut path, within.to_owned()));
                if let TokenTree::Ident(name) = token {
                    path = name.to_string();
                }
            }
        }
    }
    paths.push(path);
}

/// Names of the normal dependencies of `library`, down to `depth`, on this system or on `target`.
fn tree(library: &str, depth: Option<u32>, target: Option<&str>) -> Result<Vec<String>> {
    let depth = depth.map(|depth| format!("--depth={depth}"));
    let target = target.map(|target| format!("--target={target}"));
    let more: Vec<&str> = depth.iter().chain(&target).map(String::as_str).collect();
    tree_with(library, &more)
}

/// The same as `cargo tree` lists them with these arguments.
fn tree_with(library: &str, arguments: &[&str]) -> Result<Vec<String>> {
    let mut command = evlbi_testkit::cargo();
    command.args([
        "tree",
        "--edges=normal",
        "--prefix=none",
        "--package",
        library,
    ]);
    let output = command.args(arguments).output().context("cargo tree")?;
    if !output.status.success() {
        bail!(
            "cargo tree failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8(output.stdout)
        .context("output of cargo tree")?
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_string)
        .collect())
}
