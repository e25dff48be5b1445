//! Limits of processes started by tests.

use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// Limits the size of files that a process may write, in bytes (`ulimit -f`).
///
/// # Panics
/// Panics if the process does not exist any more.
#[track_caller]
pub fn file_size(process: u32, bytes: u64) {
    let limit = Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    let process = Pid::from_raw(process.cast_signed());
    prlimit(process, Resource::Fsize, limit).expect("the process is there");
}
