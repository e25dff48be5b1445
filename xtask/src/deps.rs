//! Dependencies point one way: wire <- core <- net <- evlbi; wire <- fx <- evlbi. What belongs to the
//! program (command line, JSON, HTTP, anyhow) stays in the program.

use anyhow::{Context, Result, bail};

/// Each library and the crates of this workspace that it may use.
const MAY_USE: [(&str, &[&str]); 4] = [
    ("evlbi-wire", &[]),
    ("evlbi-core", &["evlbi-wire"]),
    ("evlbi-net", &["evlbi-core", "evlbi-wire"]),
    ("evlbi-fx", &["evlbi-wire"]),
];

/// What only the program may use.
const PROGRAM_ONLY: [&str; 7] = [
    "anyhow",
    "axum",
    "clap",
    "hyper",
    "indicatif",
    "serde_json",
    "tokio",
];

/// Sockets and system calls: for evlbi-net alone among the libraries.
const KERNEL_ONLY: [&str; 4] = ["libc", "nix", "rustix", "socket2"];

pub fn check() -> Result<()> {
    for (library, may_use) in MAY_USE {
        let direct = tree(library, Some(1))?;
        for name in &direct {
            if name.starts_with("evlbi") && name != library && !may_use.contains(&name.as_str()) {
                bail!("{library} may not depend on {name} (allowed: {may_use:?})");
            }
            if library != "evlbi-net" && KERNEL_ONLY.contains(&name.as_str()) {
                bail!("{library} may not depend on {name}: the kernel belongs to evlbi-net");
            }
        }
        for name in tree(library, None)? {
            if PROGRAM_ONLY.contains(&name.as_str()) {
                bail!("{library} depends on {name}, which belongs to the program alone");
            }
        }
    }
    println!("ci: dependency rules hold");
    Ok(())
}

/// Names of the normal dependencies of `library`, down to `depth`.
fn tree(library: &str, depth: Option<u32>) -> Result<Vec<String>> {
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
