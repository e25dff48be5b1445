//! Requirements of the tests other than Rust and a C compiler: `cargo xtask setup` installs them, `cargo xtask setup --check` lists
//! what is missing.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use evlbi_testkit::need::{PACKAGES, which};

use crate::run::well;

/// Debian packages without a program of their own: fonts for Chromium's screenshots.
const FONTS: &str = "fonts-dejavu-core";
const FONT_FOLDER: &str = "/usr/share/fonts/truetype/dejavu";

/// Python packages of the tests, and the modules that identify them.
const PYTHON: [(&str, &str); 5] = [
    ("baseband==4.3.0", "baseband"),
    ("playwright==1.65.2", "playwright"),
    ("axe-playwright-python==0.1.8", "axe_playwright_python"),
    ("pandas==3.1.1", "pandas"),
    ("schemathesis==4.32.5", "schemathesis"),
];
const VENV: &str = "target/venv";

/// Installs what is missing, or lists it.
///
/// # Errors
/// Returns an error if something cannot be installed; with `check`, if something is missing.
pub fn run(check: bool) -> Result<()> {
    let (packages, modules) = (packages(), modules());
    if check {
        for package in &packages {
            println!("missing: Debian package {package}");
        }
        for package in &modules {
            println!("missing: Python package {package} in {VENV}");
        }
        if packages.is_empty() && modules.is_empty() {
            println!("nothing is missing");
            return Ok(());
        }
        bail!("`cargo xtask setup` installs it");
    }
    if !packages.is_empty() {
        apt(&packages)?;
    }
    let modules = self::modules();
    if !modules.is_empty() {
        pip(&modules)?;
    }
    println!("nothing is missing");
    Ok(())
}

/// Returns the Debian packages that are not installed.
fn packages() -> BTreeSet<&'static str> {
    let programs = PACKAGES
        .iter()
        .filter(|(program, _)| which(program).is_none());
    let mut packages: BTreeSet<&str> = programs.map(|(_, package)| *package).collect();
    if !Path::new(FONT_FOLDER).is_dir() {
        packages.insert(FONTS);
    }
    // Some Pythons cannot create environments.
    if !runs(Command::new("python3").args(["-c", "import ensurepip, venv"])) {
        packages.insert("python3-venv");
    }
    packages
}

/// Returns the Python packages that the environment lacks.
fn modules() -> Vec<&'static str> {
    let lacks = |module: &str| {
        !runs(Command::new(format!("{VENV}/bin/python")).args(["-c", &format!("import {module}")]))
    };
    let missing = PYTHON.iter().filter(|(_, module)| lacks(module));
    missing.map(|(package, _)| *package).collect()
}

fn apt(packages: &BTreeSet<&str>) -> Result<()> {
    if which("apt-get").is_none() {
        let names: Vec<&str> = packages.iter().copied().collect();
        bail!(
            "no apt-get here; install what these Debian packages have: {}",
            names.join(" ")
        );
    }
    for arguments in [
        vec!["update", "-q"],
        [
            &["install", "-y", "-q", "--no-install-recommends"],
            &*packages.iter().copied().collect::<Vec<_>>(),
        ]
        .concat(),
    ] {
        let mut command = Command::new("apt-get");
        command
            .args(&arguments)
            .env("DEBIAN_FRONTEND", "noninteractive");
        well(&mut command).context("run `cargo xtask setup` as root")?;
    }
    Ok(())
}

fn pip(packages: &[&str]) -> Result<()> {
    if !Path::new(VENV).join("bin/python").exists() {
        well(Command::new("python3").args(["-m", "venv", VENV]))?;
    }
    well(
        Command::new(format!("{VENV}/bin/pip"))
            .args(["install", "-q"])
            .args(packages),
    )
}

fn runs(command: &mut Command) -> bool {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
