//! Things that a test needs and a machine may lack: programs, permissions, recordings.
//!
//! A test that lacks one returns early, and the test binary reports it after its last test, on standard error and in
//! `target/skipped.txt`. With `EVLBI_REQUIRE=tools` a missing program or permission fails the test instead, with `EVLBI_REQUIRE=all`
//! also a missing recording. A *failure* is never a skip.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use crate::room::Room;

/// Programs that tests and benches call, with the Debian package of each.
pub const PACKAGES: &[(&str, &str)] = &[
    ("bash", "bash"),
    ("cc", "build-essential"),
    ("chromium", "chromium"),
    ("curl", "curl"),
    ("dumpcap", "wireshark-common"),
    ("ethtool", "ethtool"),
    ("getent", "libc-bin"),
    ("hostname", "hostname"),
    ("ip", "iproute2"),
    ("iperf", "iperf"),
    ("iperf3", "iperf3"),
    ("jq", "jq"),
    ("nft", "nftables"),
    ("nsenter", "util-linux"),
    ("nuttcp", "nuttcp"),
    ("ping", "iputils-ping"),
    ("python3", "python3-venv"),
    ("script", "bsdutils"),
    ("setpriv", "util-linux"),
    ("setsid", "util-linux"),
    ("ss", "iproute2"),
    ("sysctl", "procps"),
    ("tc", "iproute2"),
    ("tcpdump", "tcpdump"),
    ("tshark", "tshark"),
    ("unshare", "util-linux"),
    ("valgrind", "valgrind"),
];

/// Programs that only scenes of `cargo xtask live` call, with the Debian package of each. `cargo xtask setup` does not install them.
pub const LIVE_PACKAGES: &[(&str, &str)] = &[
    ("munged", "munge"),
    ("sbatch", "slurm-client"),
    ("slurmctld", "slurmctld"),
    ("slurmd", "slurmd"),
];

/// Kinds of missing things, which `EVLBI_REQUIRE` may forbid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program or a permission.
    Tool,
    /// A recording with another correlator's results.
    Recording,
}

/// Returns whether all these programs are installed. If not, the calling test counts as skipped and must return.
///
/// # Panics
/// Panics if one is missing and `EVLBI_REQUIRE` is set, or if one is not in [`PACKAGES`].
#[must_use]
#[track_caller]
pub fn need(programs: &[&str]) -> bool {
    watch();
    let missing = missing(programs);
    let is_complete = missing.is_empty();
    if !is_complete {
        skip_for(Kind::Tool, &missing);
    }
    is_complete
}

/// Returns those of these programs that are not installed, each with what installs it.
///
/// # Panics
/// Panics if one is neither in [`PACKAGES`] nor in [`LIVE_PACKAGES`].
#[must_use]
#[track_caller]
pub fn missing(programs: &[&str]) -> Vec<String> {
    let missing = programs.iter().filter_map(|program| {
        let (_, package) = PACKAGES
            .iter()
            .chain(LIVE_PACKAGES)
            .find(|(name, _)| name == program)
            .unwrap_or_else(|| panic!("{program} has no package in PACKAGES"));
        let is_missing = which(program).is_none();
        is_missing.then(|| format!("{program} (apt install {package})"))
    });
    missing.collect()
}

/// Returns whether a program reports a missing permission or a missing kernel feature. Anything else is a failure.
#[must_use]
pub fn is_refused(said: &str) -> bool {
    let reasons = [
        "Operation not permitted",
        "Permission denied",
        "No space left on device",
        "No such device",
    ];
    reasons.iter().any(|reason| said.contains(reason))
}

/// Returns the path of a program.
#[must_use]
pub fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Returns whether IPv6 works on loopback; if not, the calling test is skipped.
///
/// # Panics
/// Panics if `EVLBI_REQUIRE` is set and it does not.
#[must_use]
#[track_caller]
pub fn ipv6() -> bool {
    match std::net::UdpSocket::bind((std::net::Ipv6Addr::LOCALHOST, 0)) {
        Ok(_) => true,
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT)
            ) =>
        {
            skip(Kind::Tool, "IPv6 (sysctl net.ipv6.conf.lo.disable_ipv6=0)");
            false
        }
        Err(error) => panic!("no socket of IPv6: {error}"),
    }
}

/// Returns the directory of recordings with results of other correlators, from `EVLBI_REFERENCE_DATA`. Without the variable the calling
/// test is skipped.
///
/// # Panics
/// Panics if it is unset and `EVLBI_REQUIRE=all`, or if it is set but is not a directory.
#[must_use]
#[track_caller]
pub fn recordings() -> Option<PathBuf> {
    watch();
    let Some(folder) = std::env::var_os("EVLBI_REFERENCE_DATA").map(PathBuf::from) else {
        skip(
            Kind::Recording,
            "reference recordings (EVLBI_REFERENCE_DATA names their folder)",
        );
        return None;
    };
    assert!(
        folder.is_dir(),
        "EVLBI_REFERENCE_DATA: no folder {}",
        folder.display()
    );
    Some(folder)
}

/// Marks the calling test as skipped because of `reason`.
///
/// # Panics
/// Panics if `EVLBI_REQUIRE` forbids that.
#[track_caller]
pub fn skip(kind: Kind, reason: &str) {
    skip_for(kind, &[reason.to_owned()]);
}

#[track_caller]
fn skip_for(kind: Kind, reasons: &[String]) {
    watch();
    let required = std::env::var("EVLBI_REQUIRE").unwrap_or_default();
    let forbidden = match required.as_str() {
        "" => false,
        "tools" => kind == Kind::Tool,
        "all" => true,
        other => panic!("EVLBI_REQUIRE={other}: give tools or all"),
    };
    assert!(
        !forbidden,
        "missing: {}; EVLBI_REQUIRE={required} lets no test be skipped for it (cargo xtask setup installs what is missing)",
        reasons.join(", ")
    );
    let test = test_name();
    for reason in reasons {
        record(reason, &test);
    }
}

/// Skips of this process: reason, tests.
static SKIPS: Mutex<BTreeMap<String, BTreeSet<String>>> = Mutex::new(BTreeMap::new());

fn record(reason: &str, test: &str) {
    let mut skips = SKIPS.lock().unwrap_or_else(PoisonError::into_inner);
    skips
        .entry(reason.to_owned())
        .or_default()
        .insert(test.to_owned());
}

/// Returns the test that runs in this thread: its name, or its source location if the test binary runs its tests in the main thread.
#[track_caller]
fn test_name() -> String {
    match std::thread::current().name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => {
            let place = std::panic::Location::caller();
            RELAUNCHED_AS
                .get()
                .cloned()
                .unwrap_or_else(|| format!("{}:{}", place.file(), place.line()))
        }
    }
}

/// In a run of a single test started by another run: the test.
static RELAUNCHED_AS: OnceLock<String> = OnceLock::new();

/// Variable with the file for the skips of a run of a single test, and the test.
pub(crate) const REPORT_TO: &str = "EVLBI_TEST_REPORT";

/// Environment of a run of a single test, so that its skips become this run's.
pub(crate) struct Inner {
    room: Room,
    test: String,
}

impl Inner {
    pub(crate) fn new(test: &str) -> Inner {
        let (room, test) = (Room::new(), test.to_owned());
        room.write(REPORT, "");
        Inner { room, test }
    }

    pub(crate) fn value(&self) -> String {
        format!("{}={}", self.room.path(REPORT), self.test)
    }

    /// Takes over the skips of the run.
    pub(crate) fn take(self) {
        for reason in self.room.text(REPORT).lines() {
            record(reason, &self.test);
        }
    }
}

/// Registers the reports of skips and times at the end of the process, once, and removes leftovers of killed runs. A test that takes
/// seconds and calls nothing else of this crate must call this, or its time is not reported.
pub fn watch() {
    static ONCE: Once = Once::new();
    crate::times::watch();
    ONCE.call_once(|| {
        if let Ok(value) = std::env::var(REPORT_TO) {
            let test = value.split_once('=').map(|(_, test)| test.to_owned());
            let _ = RELAUNCHED_AS.set(test.unwrap_or_default());
        } else {
            // Skips of the last run of this binary are obsolete.
            change_report(&[]);
            crate::leftovers::remove();
        }
        // SAFETY: the function may be called at any time after main, and takes and returns nothing.
        assert_eq!(unsafe { libc::atexit(at_exit) }, 0);
    });
}

extern "C" fn at_exit() {
    let skips = SKIPS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Ok(value) = std::env::var(REPORT_TO) {
        if let Some((file, _)) = value.split_once('=') {
            let reasons: String = skips.keys().map(|reason| format!("{reason}\n")).collect();
            let _ = std::fs::write(file, reasons);
        }
        return;
    }
    crate::leftovers::remove_own();
    if let Ok(program) = std::env::current_exe()
        && let Some(target) = target(&program)
    {
        crate::times::report(target);
    }
    let lines: Vec<String> = skips
        .iter()
        .map(|(reason, tests)| {
            let names: Vec<&str> = tests.iter().map(String::as_str).collect();
            format!("skipped {}: {reason}: {}", tests.len(), names.join(", "))
        })
        .collect();
    if lines.is_empty() {
        return;
    }
    // Not with a macro, whose output may be captured.
    let _ = std::io::stderr().write_all((lines.join("\n") + "\n").as_bytes());
    change_report(&lines);
}

/// The file that collects the skips of all test binaries.
pub const REPORT: &str = "skipped.txt";

/// Replaces what this binary had reported by `lines`.
fn change_report(lines: &[String]) {
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let Some(target) = target(&program) else {
        return;
    };
    let file = program.file_name().unwrap_or_default().to_string_lossy();
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    // The name without the hash that cargo adds.
    let binary = file.rsplit_once('-').map_or(&*file, |(name, _)| name);
    let own = format!("{package} {binary}: ");
    let change = || -> std::io::Result<()> {
        let mut report = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(target.join(REPORT))?;
        File::lock(&report)?;
        let mut text = String::new();
        report.read_to_string(&mut text)?;
        let others = text.lines().filter(|line| !line.starts_with(&own));
        let mut new: String = others.map(|line| format!("{line}\n")).collect();
        new.extend(lines.iter().map(|line| format!("{own}{line}\n")));
        report.set_len(0)?;
        report.rewind()?;
        report.write_all(new.as_bytes())
    };
    // Another user's directory takes no report; the lines on standard error remain.
    let _ = change();
}

/// Returns the target directory of a test binary, which is `target/debug/deps/NAME`. Other programs report nothing.
pub(crate) fn target(program: &Path) -> Option<&Path> {
    let folder = program.parent()?;
    (folder.file_name()? == "deps").then_some(())?;
    folder.ancestors().nth(2)
}
