//! Dependencies point one way: wire <- core <- trace <- net <- host <- stream <- correlate <- evlbi; wire <- fx <- stream;
//! plot <- stream; net <- {path, probe} <- evlbi;
//! {stream, probe} <- control <- evlbi. What belongs to the
//! program (command line, HTTP, anyhow) stays in the program. In it, engines know nothing of the command line. No modules of a
//! library, or of the program, import each other in a circle. Libraries print nothing, end no process, and have no unsafe code beside
//! evlbi-net.

mod circles;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
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
    (
        "anyhow",
        &[
            "evlbi-control",
            "evlbi-correlate",
            "evlbi-host",
            "evlbi-path",
            "evlbi-probe",
            "evlbi-stream",
        ],
    ),
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

/// The modules of the program that are no engines: what they import may be imported by themselves alone.
const SHELL: [&str; 5] = ["cli", "main", "output", "program", "say"];

/// What belongs to them: their modules, and crates and macros for the command line and the terminal.
const SHELL_ONLY: [&str; 8] = [
    "crate::cli",
    "crate::program",
    "crate::say",
    "say!",
    "clap",
    "ctrlc",
    "indicatif",
    "rustyline",
];

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
    let engines = Path::new("crates/evlbi/src");
    let mut files = Vec::new();
    rust_files(engines, &mut files)?;
    for path in files {
        let module = path.strip_prefix(engines)?.iter().next().map(Path::new);
        let module = module.and_then(Path::file_stem).unwrap_or_default();
        if SHELL.iter().any(|shell| module == *shell) {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        if let Some(odd) = shell_in(&text).with_context(|| path.display().to_string())? {
            bail!(
                "{} uses {odd}, which belongs to the command line: an engine takes options and a run",
                path.display()
            );
        }
    }
    println!("ci: dependency rules hold");
    Ok(())
}

/// What a source names of the command line and the terminal.
fn shell_in(text: &str) -> Result<Option<&'static str>> {
    let tokens: TokenStream = text.parse().map_err(|error| anyhow!("{error}"))?;
    let mut paths = Vec::new();
    name_paths("", tokens, &|_| false, &mut paths);
    let is_of = |path: &String, odd: &str| {
        let rest = path.strip_prefix(odd);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let is_in = |odd: &&&str| paths.iter().any(|path| is_of(path, odd));
    Ok(SHELL_ONLY.iter().find(is_in).copied())
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
    let mut command = evlbi_testkit::cargo();
    command.args([
        "tree",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--package",
        library,
    ]);
    if let Some(depth) = depth {
        command.args(["--depth", &depth.to_string()]);
    }
    if let Some(target) = target {
        command.args(["--target", target]);
    }
    let output = command.output().context("cargo tree")?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_names_nothing_of_the_command_line() {
        for (text, odd) in [
            ("use crate::cli::Cli;", Some("crate::cli")),
            (
                "use crate::{output, cli::{Cli, Command}};",
                Some("crate::cli"),
            ),
            (
                "fn f() { let x = [crate::program::complete(true)]; }",
                Some("crate::program"),
            ),
            ("fn f() -> u8 { say!(\"x\"); 1 }", Some("say!")),
            ("#[derive(clap::Args)] struct A;", Some("clap")),
            ("use clap::Args;", Some("clap")),
            (
                "// crate::cli\nuse crate::client::Client; fn say() -> u8 { cli::x(\"crate::cli\") }",
                None,
            ),
        ] {
            assert_eq!(shell_in(text).unwrap(), odd, "{text}");
        }
    }
}
