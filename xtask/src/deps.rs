//! Dependencies point one way: wire <- core <- trace <- proto <- net <- host <- stream <- {correlate, control} <- evlbi; wire <- fx <- stream;
//! net <- {path, probe}; probe <- control; plot <- {stream, correlate, probe, control}. Command line and anyhow stay in the program. No
//! modules of a library, or of the program, import each other in a circle. Libraries print nothing and end no process. Unsafe code is
//! only in evlbi-net. All crates have one version.
//!
//! Add further rules for the whole workspace here.

mod circles;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use proc_macro2::{TokenStream, TokenTree};
use serde::Deserialize;

use crate::lines::rust_files;

/// Each library and the crates of this workspace that it may use.
const MAY_USE: [(&str, &[&str]); 13] = [
    ("evlbi-wire", &[]),
    ("evlbi-core", &["evlbi-wire"]),
    ("evlbi-trace", &["evlbi-core", "evlbi-wire"]),
    ("evlbi-proto", &["evlbi-core", "evlbi-trace", "evlbi-wire"]),
    (
        "evlbi-net",
        &["evlbi-core", "evlbi-proto", "evlbi-trace", "evlbi-wire"],
    ),
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

/// Crates that only these libraries bring in; no other library does, not even indirectly, for its build, for another system or with a
/// feature. The program may wait for evlbi-control with tokio.
const KEPT: [(&str, &[&str]); 9] = [
    ("anyhow", &["evlbi"]),
    ("axum", &["evlbi-control"]),
    ("clap", &["evlbi"]),
    ("ctrlc", &["evlbi"]),
    ("hyper", &["evlbi-control"]),
    ("indicatif", &["evlbi"]),
    ("rusqlite", &["evlbi-control", "evlbi-probe"]),
    ("rustyline", &["evlbi"]),
    ("tokio", &["evlbi", "evlbi-control"]),
];

/// Crates that only one library uses directly.
const OWNED: [(&str, &str); 6] = [
    ("libc", "evlbi-net"),
    ("linux-raw-sys", "evlbi-net"),
    ("rustix", "evlbi-net"),
    ("epaint_default_fonts", "evlbi-plot"),
    ("plotters", "evlbi-plot"),
    ("png", "evlbi-plot"),
];

/// Crates for the development: published crates use them only in tests.
const DEVELOPMENT: [&str; 3] = ["evlbi-bench", "evlbi-testkit", "xtask"];

/// Libraries that do not depend on a system; their dependencies are also checked for systems other than Linux.
const ANYWHERE: [&str; 5] = [
    "evlbi-wire",
    "evlbi-core",
    "evlbi-trace",
    "evlbi-proto",
    "evlbi-fx",
];
const ELSEWHERE: [&str; 2] = ["x86_64-pc-windows-msvc", "aarch64-apple-darwin"];
/// Crates that exist only on Unix or Linux, or that need more of a system than memory.
const OF_SYSTEMS: [&str; 8] = [
    "corosensei",
    "ctrlc",
    "linux-raw-sys",
    "mio",
    "nix",
    "rustix",
    "signal-hook",
    "socket2",
];

/// Attributes at the start of each library; the second one also of the program.
const QUIET: &str = "#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]";
const SAFE: &str = "#![forbid(unsafe_code)]";

/// Libraries that bring in none of these without their default features: programs that link them have no server and draw nothing.
const LIGHT: [&str; 3] = ["evlbi-stream", "evlbi-correlate", "evlbi-probe"];
const HEAVY: [&str; 6] = [
    "libsqlite3-sys",
    "plotters",
    "ring",
    "rustls",
    "schemars",
    "tokio",
];

pub fn check() -> Result<()> {
    let members = members()?;
    for member in &members {
        check_declared(member, &members[0].version)?;
    }
    for library in MAY_USE.map(|(library, _)| library) {
        // Including what a feature or another system brings in.
        for name in tree(library, &["--all-features", "--target=all"])? {
            let kept = KEPT.iter().find(|(kept, _)| *kept == name);
            if kept.is_some_and(|(_, by)| !by.contains(&library)) {
                bail!(
                    "{library} depends on {name}, which is kept from it (KEPT in xtask/src/deps.rs)"
                );
            }
        }
    }
    for name in MAY_USE.map(|(library, _)| library).iter().chain(&["evlbi"]) {
        check_sources(name)?;
    }
    // Of the development crates, only evlbi-testkit has unsafe code: one call.
    for root in ["crates/evlbi-bench/src/main.rs", "xtask/src/main.rs"] {
        check_line(Path::new(root), SAFE)?;
    }
    for library in ANYWHERE {
        for target in ELSEWHERE {
            for name in tree(library, &[&format!("--target={target}")])? {
                if OF_SYSTEMS.contains(&name.as_str()) {
                    bail!(
                        "{library} depends on {name} on {target}: it is to stay free of any system (OF_SYSTEMS in xtask/src/deps.rs)"
                    );
                }
            }
        }
        check_free_of_systems(library)?;
    }
    for library in LIGHT {
        for name in tree(library, &["--no-default-features", "--target=all"])? {
            if HEAVY.contains(&name.as_str()) {
                bail!("{library} brings in {name} without its default features");
            }
        }
    }
    println!("ci: dependency rules hold");
    Ok(())
}

/// Checks what a crate declares: one version for all, and no forbidden dependency of any kind, feature or system.
fn check_declared(member: &Member, version: &str) -> Result<()> {
    let name = member.name.as_str();
    if member.version != version {
        bail!(
            "{name} has version {}, others have {version}",
            member.version
        );
    }
    if DEVELOPMENT.contains(&name) {
        return Ok(());
    }
    let may_use = MAY_USE.iter().find(|(library, _)| *library == name);
    if may_use.is_none() && name != "evlbi" {
        bail!("{name} is not known: say in MAY_USE of xtask/src/deps.rs what it may use");
    }
    for Dependency { name: on, kind } in &member.dependencies {
        let is_for_tests = kind.as_deref() == Some("dev");
        let may = |on: &str| may_use.is_none_or(|(_, may_use)| may_use.contains(&on));
        let is_ours = on.starts_with("evlbi") || DEVELOPMENT.contains(&on.as_str());
        if is_ours && !may(on) && !(is_for_tests && on == "evlbi-testkit") {
            let allowed = may_use.map_or(&[][..], |(_, may_use)| may_use);
            bail!("{name} may not depend on {on} (allowed: {allowed:?})");
        }
        if DEVELOPMENT.contains(&on.as_str()) && !is_for_tests {
            bail!("{name} may use {on} in tests alone");
        }
        let owner = OWNED.iter().find(|(owned, _)| owned == on);
        if let Some((_, owner)) = owner
            && *owner != name
        {
            bail!("{name} may not depend on {on}: it belongs to {owner}");
        }
        let kept = KEPT.iter().find(|(kept, _)| kept == on);
        if kept.is_some_and(|(_, by)| !by.contains(&name)) {
            bail!("{name} depends on {on}, which is kept from it (KEPT in xtask/src/deps.rs)");
        }
    }
    Ok(())
}

/// Checks the sources of a crate: each file states its purpose, no circles, unsafe code only in evlbi-net; a library prints nothing and
/// ends no process.
fn check_sources(name: &str) -> Result<()> {
    let folder = Path::new("crates").join(name);
    check_heads(&folder)?;
    let circles = circles::circles(&folder)?;
    if let Some(circle) = circles.first() {
        bail!(
            "modules of {name} import each other in a circle:\n  {}",
            circle.join("\n  ")
        );
    }
    let is_program = name == "evlbi";
    let root = folder.join(if is_program {
        "src/main.rs"
    } else {
        "src/lib.rs"
    });
    if !is_program {
        check_line(&root, QUIET)?;
    }
    if name != "evlbi-net" {
        check_line(&root, SAFE)?;
    }
    Ok(())
}

/// Checks that a file has this line.
fn check_line(path: &Path, line: &str) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    if !text.lines().any(|it| it == line) {
        bail!("{} lacks {line}", path.display());
    }
    Ok(())
}

/// Checks that the first line of each file states its purpose.
fn check_heads(folder: &Path) -> Result<()> {
    let mut files = Vec::new();
    rust_files(folder, &mut files)?;
    for path in files {
        if !fs::read_to_string(&path)?.starts_with("//! ") {
            bail!(
                "{} does not begin with `//! ` and what it is for",
                path.display()
            );
        }
    }
    Ok(())
}

/// Checks that the sources of a library do not use `std::os`.
fn check_free_of_systems(library: &str) -> Result<()> {
    let mut files = Vec::new();
    rust_files(&Path::new("crates").join(library).join("src"), &mut files)?;
    for path in files {
        let tokens: TokenStream = fs::read_to_string(&path)?
            .parse()
            .map_err(|error| anyhow!("{}: {error}", path.display()))?;
        let mut paths = Vec::new();
        name_paths("", tokens, &|_| false, &mut paths);
        if let Some(used) = paths.iter().find(|it| is_within(it, "std::os")) {
            bail!(
                "{} uses {used}: it is to stay free of any system",
                path.display()
            );
        }
    }
    Ok(())
}

/// Returns whether a path is that of a module, or leads into it.
fn is_within(path: &str, module: &str) -> bool {
    let rest = path.trim_start_matches("::").strip_prefix(module);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Calls `take` with each path in a source and the text after it; `a::{b, c}` gives a::b and a::c. Paths in a module within the file
/// are relative to that module. Skipped lines are ignored.
fn name_paths(
    within: &str,
    tokens: TokenStream,
    is_skipped: &dyn Fn(usize) -> bool,
    paths: &mut Vec<String>,
) {
    let mut path = within.to_owned();
    let mut before = [String::new(), String::new()];
    for token in tokens {
        if is_skipped(token.span().start().line) {
            continue;
        }
        let is_module = before[0] == "mod";
        before = [std::mem::take(&mut before[1]), token.to_string()];
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
                let first = paths.len();
                name_paths(within, group.stream(), is_skipped, paths);
                if is_module {
                    for path in &mut paths[first..] {
                        if let Some(above) = path.strip_prefix("super::") {
                            let is_beside = is_within(above, "super");
                            *path = if is_beside {
                                above.to_owned()
                            } else {
                                format!("self::{above}")
                            };
                        }
                    }
                }
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

/// A crate of this workspace, from `cargo metadata`.
#[derive(Deserialize)]
struct Member {
    name: String,
    version: String,
    dependencies: Vec<Dependency>,
}

/// A declared dependency of a crate, for any feature and system.
#[derive(Deserialize)]
struct Dependency {
    /// Its own name, not a renamed one.
    name: String,
    /// `dev`, `build`, or `None`.
    kind: Option<String>,
}

/// Returns all crates of this workspace.
fn members() -> Result<Vec<Member>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Member>,
    }
    let arguments = ["metadata", "--no-deps", "--format-version=1"];
    let metadata: Metadata = serde_json::from_str(&answer(&arguments)?)?;
    Ok(metadata.packages)
}

/// Returns the names of the dependencies of `library`, including indirect ones and those for its build.
fn tree(library: &str, more: &[&str]) -> Result<Vec<String>> {
    let arguments = ["tree", "--edges=normal,build", "--prefix=none", "--package"];
    let text = answer(&[&arguments[..], &[library], more].concat())?;
    let names = text
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    Ok(names.map(str::to_owned).collect())
}

/// Returns cargo's output.
fn answer(arguments: &[&str]) -> Result<String> {
    let mut command = evlbi_testkit::cargo();
    let output = command.args(arguments).output().context("cargo")?;
    if !output.status.success() {
        bail!(
            "cargo {} failed: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    String::from_utf8(output.stdout).context("output of cargo")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_however_they_are_written() {
        let text = "use a::{b, c as d}; mod m { use super::e; use super::super::f::g; }";
        let mut paths = Vec::new();
        name_paths("", text.parse().unwrap(), &|_| false, &mut paths);
        for path in ["a::b", "a::c", "self::e", "super::f::g"] {
            assert!(paths.iter().any(|it| it == path), "{path}: {paths:?}");
        }
        for path in ["std::os", "std::os::fd", "::std::os::fd"] {
            assert!(is_within(path, "std::os"), "{path}");
        }
        assert!(!is_within("std::ostrich", "std::os"));
    }
}
