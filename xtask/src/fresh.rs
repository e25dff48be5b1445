//! `cargo xtask fresh`: the tests of a fresh clone on a machine with only Rust and a C compiler, as root and as a plain user. The
//! machine is a directory that this process makes its root, in its own mount namespace: programs are links or copies; libraries,
//! headers and the toolchain are bind-mounted.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use evlbi_testkit::need::{REPORT, which};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Uid, chroot};

use crate::run::{output_of, well};

/// Directory that is kept between runs: compiled dependencies.
const FOLDER: &str = "target/fresh";

/// Programs of the C toolchain and the shell, which are copied: each finds its own files relative to its location.
const COPIES: [&str; 5] = ["cc", "as", "ld", "ar", "sh"];
const TOOLCHAIN: [&str; 3] = ["cargo", "rustc", "rustdoc"];
const COREUTILS: &str = "[ arch b2sum base32 base64 basename cat chgrp chmod chown cksum comm cp csplit cut date dd df dir \
    dircolors dirname du echo env expand expr factor false fmt fold groups head hostid id install join link ln logname ls \
    md5sum mkdir mkfifo mknod mktemp mv nice nl nohup nproc numfmt od paste pathchk pinky pr printenv printf ptx pwd readlink \
    realpath rm rmdir runcon seq sha1sum sha224sum sha256sum sha384sum sha512sum shred shuf sleep sort split stat stdbuf stty \
    sum sync tac tail tee test timeout touch tr true truncate tsort tty uname unexpand uniq unlink users vdir wc who whoami yes";

/// Directories of this machine that are mounted.
const BOUND: [&str; 9] = [
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/proc",
    "/sys",
    "/usr/include",
    "/usr/lib",
    "/usr/libexec",
];

/// A user without privileges and without a home directory.
const NOBODY: u32 = 65534;

/// Places within the directory.
const CHECKOUT: &str = "/checkout";
/// Both users have cargo's directory at one place: compiled files depend on it.
const CARGO: &str = "/cargo";
const REGISTRY: &str = "/cargo/registry";
const RUST: &str = "/rust";

/// Options of the task.
#[derive(clap::Args)]
pub struct FreshArgs {
    /// Set EVLBI_REQUIRE to this: then the tests fail, and name what is missing
    #[arg(long, env = "EVLBI_REQUIRE")]
    require: Option<String>,
    /// Arguments of `cargo test`, after `--`: e.g. one package and a test's name
    #[arg(last = true, default_value = "--workspace")]
    tests: Vec<String>,
}

/// Runs the tests twice.
///
/// # Errors
/// Returns an error if a test fails as root or as a plain user, or if this is not root.
pub fn run(args: &FreshArgs) -> Result<()> {
    if !Uid::effective().is_root() {
        bail!("only root can prepare a machine without tools (mounts, chroot): run it as root");
    }
    fs::create_dir_all(FOLDER)?;
    let lock = File::create(Path::new(FOLDER).join("lock"))?;
    lock.try_lock().context(
        "target/fresh is in use: wait until the other run of `cargo xtask fresh` has ended",
    )?;
    let root = prepare()?;
    enter(&root)?;
    let mut failed = BTreeSet::new();
    for (who, user) in [("root", 0), ("a plain user", NOBODY)] {
        println!("fresh: the tests as {who}");
        own(Path::new(CHECKOUT), user)?;
        let outcome = test(user, args)?;
        println!("fresh: as {who}: {outcome}");
        if outcome.failed > 0 || !outcome.is_well {
            failed.insert(who);
        }
        for missing in outcome.missing {
            println!("fresh: {missing}");
        }
        let skips = fs::read_to_string(Path::new(CHECKOUT).join("target").join(REPORT));
        println!("fresh: skipped as {who}:\n{}", skips.unwrap_or_default());
    }
    ensure!(
        failed.is_empty(),
        "tests failed as {}",
        failed.into_iter().collect::<Vec<_>>().join(" and as ")
    );
    Ok(())
}

/// Creates the directory: a clone, links to programs, empty directories for mounts.
fn prepare() -> Result<PathBuf> {
    let sysroot = PathBuf::from(output_of("rustc", &["--print", "sysroot"])?);
    let folder = fs::canonicalize(FOLDER)?;
    let root = folder.join("root");
    let checkout = root.join(&CHECKOUT[1..]);
    // Dependencies are compiled once; the workspace is compiled again, since a clone's files are new.
    let (target, kept) = (checkout.join("target"), folder.join("target"));
    if target.is_dir() {
        fs::rename(&target, &kept)?;
    }
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    fs::create_dir_all(&root)?;
    let clone = ["clone", "--quiet", ".", &checkout.to_string_lossy()];
    well(Command::new("git").args(clone))?;
    if kept.is_dir() {
        fs::rename(&kept, &target)?;
    }
    let manifest = checkout.join("Cargo.toml");
    let manifest = manifest.to_string_lossy();
    // From here on there is no network.
    well(evlbi_testkit::cargo().args([
        "fetch",
        "--locked",
        "--quiet",
        "--manifest-path",
        &manifest,
    ]))?;
    for at in BOUND
        .into_iter()
        .chain([REGISTRY, RUST, "/usr/bin", "/home", "/tmp"])
    {
        fs::create_dir_all(root.join(&at[1..]))?;
    }
    for at in ["home", "tmp"] {
        fs::set_permissions(root.join(at), fs::Permissions::from_mode(0o1777))?;
    }
    symlink("usr/bin", root.join("bin"))?;
    let programs = root.join("usr/bin");
    for name in COPIES.into_iter().chain(COREUTILS.split_whitespace()) {
        match which(name) {
            Some(file) => drop(fs::copy(file, programs.join(name))?),
            // Distributions build their coreutils in different ways.
            None if COREUTILS.split_whitespace().any(|tool| tool == name) => {}
            None => bail!("{name} is not installed here either"),
        }
    }
    for name in TOOLCHAIN {
        symlink(format!("{RUST}/bin/{name}"), programs.join(name))?;
    }
    // Only now, since nothing must be removed through a mount.
    unshare(CloneFlags::CLONE_NEWNS).context("a mount namespace")?;
    const NONE: Option<&str> = None;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
    // As on any machine, the root is a mount.
    bind(&root, &root, false)?;
    for at in BOUND.map(Path::new).into_iter().filter(|at| at.exists()) {
        let is_kernels = ["/dev", "/proc", "/sys"].map(Path::new).contains(&at);
        bind(at, &root.join(at.strip_prefix("/")?), !is_kernels)?;
    }
    bind(&sysroot, &root.join(&RUST[1..]), true)?;
    bind(
        &cargo_home()?.join("registry"),
        &root.join(&REGISTRY[1..]),
        true,
    )?;
    Ok(root)
}

fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = std::env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    let home = std::env::home_dir().context("no home folder")?;
    Ok(home.join(".cargo"))
}

fn bind(from: &Path, to: &Path, is_read_only: bool) -> Result<()> {
    const NONE: Option<&str> = None;
    let said = || format!("cannot bind {} to {}", from.display(), to.display());
    let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(from), to, NONE, bind, NONE).with_context(said)?;
    if is_read_only {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(NONE, to, NONE, flags, NONE).with_context(said)?;
    }
    Ok(())
}

/// Makes the directory the root of this process and its children.
fn enter(root: &Path) -> Result<()> {
    chroot(root).context("chroot")?;
    std::env::set_current_dir(CHECKOUT)?;
    Ok(())
}

/// Changes the owner of everything in a directory.
fn own(folder: &Path, user: u32) -> Result<()> {
    let owner = format!("{user}:{user}");
    well(
        Command::new("/usr/bin/chown")
            .args(["-R", &owner])
            .arg(folder),
    )
}

/// Result of a run of the tests.
struct Outcome {
    passed: u64,
    failed: u64,
    /// Missing things that `EVLBI_REQUIRE` does not allow to be missing.
    missing: BTreeSet<String>,
    is_well: bool,
    seconds: u64,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} s",
            self.passed, self.failed, self.seconds
        )
    }
}

fn test(user: u32, args: &FreshArgs) -> Result<Outcome> {
    let begun = Instant::now();
    let home = format!("/home/{user}");
    fs::create_dir_all(&home)?;
    own(Path::new(&home), user)?;
    for entry in fs::read_dir(CARGO)?.flatten() {
        // Lock files and the like of the other user.
        if entry.path() != Path::new(REGISTRY) {
            let is_folder = entry.file_type()?.is_dir();
            let remove = if is_folder {
                fs::remove_dir_all
            } else {
                fs::remove_file
            };
            remove(entry.path())?;
        }
    }
    chown(CARGO, Some(user), Some(user))?;
    let (output, input) = std::io::pipe()?;
    let mut cargo = Command::new("/usr/bin/cargo");
    cargo
        .args(["test", "--no-fail-fast"])
        .args(&args.tests)
        .env_clear()
        .envs([
            ("PATH", "/usr/bin"),
            ("HOME", &home),
            ("CARGO_HOME", CARGO),
            ("CARGO_NET_OFFLINE", "true"),
        ])
        .envs(
            args.require
                .iter()
                .map(|require| ("EVLBI_REQUIRE", require)),
        )
        .stdin(std::process::Stdio::null())
        .stdout(input.try_clone()?)
        .stderr(input)
        .uid(user)
        .gid(user);
    let mut child = cargo.spawn().context("cargo")?;
    // It holds the pipe's other end.
    drop(cargo);
    let mut outcome = Outcome {
        passed: 0,
        failed: 0,
        missing: BTreeSet::new(),
        is_well: false,
        seconds: 0,
    };
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        std::io::stdout().flush()?;
        if let Some(result) = line.strip_prefix("test result: ") {
            let (passed, failed) = crate::run::counts(result);
            outcome.passed += passed;
            outcome.failed += failed;
        }
        if line.starts_with("missing: ") {
            outcome
                .missing
                .insert(line.split(';').next().unwrap_or(&line).to_owned());
        }
    }
    outcome.is_well = child.wait()?.success();
    outcome.seconds = begun.elapsed().as_secs();
    Ok(outcome)
}
