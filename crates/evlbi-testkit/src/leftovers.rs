//! Leftovers of killed runs: processes, with their namespaces and mounts, and directories. Each run marks its own, and the next run
//! removes those of runs that have ended.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Environment variable of all processes that a run starts: the run's mark.
pub const MARK: &str = "EVLBI_TEST_RUN";

const FOLDERS: &str = "evlbi-test-";

/// Returns this run's mark: its process, the start time of that (since process numbers are reused), and the PID namespace in which the
/// number is valid.
#[must_use]
pub fn mark() -> String {
    // A run of a single test belongs to the run that has started it.
    std::env::var(MARK).unwrap_or_else(|_| {
        let process = std::process::id();
        let began = began_in("self").unwrap_or_default();
        format!("{process}.{began}.{}", namespace())
    })
}

/// Returns the directory with all directories of this run.
pub(crate) fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("{FOLDERS}{}", mark()))
}

/// Returns that directory on the disk of the test binary: the system's temporary directory is often in memory.
pub(crate) fn folder_on_disk() -> Option<PathBuf> {
    Some(on_disk()?.join(format!("{FOLDERS}{}", mark())))
}

/// Creates a run's directory. Its name can be guessed, so another user may have created it; other users pass through it to directories
/// that tests have given them.
pub(crate) fn make(folder: &Path) -> std::io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o711)
        .create(folder)?;
    let made = fs::symlink_metadata(folder)?;
    if made.is_dir() && made.uid() == nix::unistd::geteuid().as_raw() {
        return Ok(());
    }
    Err(std::io::Error::other(
        "it is another user's, or a link: remove it",
    ))
}

fn on_disk() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(crate::need::target(&program)?.join("tmp"))
}

/// Returns the start time of a process or thread, by its directory in /proc, in ticks since boot; `None` if it does not exist.
pub(crate) fn began_in(folder: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{folder}/stat")).ok()?;
    // After the name in brackets: state is field 3, the start time field 22.
    let (_, fields) = text.rsplit_once(')')?;
    fields.split_whitespace().nth(22 - 3)?.parse().ok()
}

/// Returns whether the run of a mark has ended. Runs in other PID namespaces, such as those of containers, are unknown.
fn is_over(mark: &str) -> bool {
    let mut parts = mark.split('.');
    let numbers: [Option<u64>; 3] = std::array::from_fn(|_| parts.next()?.parse().ok());
    let [Some(process), Some(began_then), Some(space)] = numbers else {
        return false;
    };
    if space != namespace() {
        return false;
    }
    match fs::metadata(format!("/proc/{process}")) {
        Ok(_) => began_in(&process.to_string()).is_some_and(|began| began != began_then),
        Err(error) => error.kind() == ErrorKind::NotFound && Path::new("/proc/self").exists(),
    }
}

/// Returns this process's PID namespace.
fn namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |space| space.ino())
}

/// Removes leftovers of runs that have ended. Silently leaves what belongs to others.
pub fn remove() {
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let mark = environment
            .split(|byte| *byte == 0)
            .find_map(|variable| variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"="));
        if let Some(mark) = mark
            && is_over(&String::from_utf8_lossy(mark))
        {
            let process = nix::unistd::Pid::from_raw(process);
            let _ = nix::sys::signal::kill(process, nix::sys::signal::SIGKILL);
        }
    }
    let folders = [Some(std::env::temp_dir()), on_disk()];
    let entries = folders.into_iter().flatten().flat_map(fs::read_dir);
    for entry in entries.flatten().flatten() {
        let name = entry.file_name();
        let mark = name.to_str().and_then(|name| name.strip_prefix(FOLDERS));
        if mark.is_some_and(is_over) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Removes the directories of this run, whose own directories were removed with their tests.
pub(crate) fn remove_own() {
    let _ = fs::remove_dir(folder());
    folder_on_disk().map(fs::remove_dir);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::Room;

    #[test]
    fn a_directory_that_another_user_may_have_made_is_refused() {
        let room = Room::new();
        let [own, link] = ["own", "link"].map(|name| room.folder().join(name));
        make(&own).expect("made");
        make(&own).expect("there");
        let mode = fs::metadata(&own)
            .expect("a directory")
            .permissions()
            .mode();
        assert_eq!(mode & 0o066, 0);
        symlink(&own, &link).expect("a link");
        assert!(make(&link).is_err());
    }
}
