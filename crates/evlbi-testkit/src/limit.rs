//! Limits of processes that tests have started.

use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// From now on no file of that process grows beyond so many bytes (`ulimit -f`).
///
/// # Panics
/// When there is no such process any more.
#[track_caller]
pub fn file_size(process: u32, bytes: u64) {
    let limit = Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    let process = Pid::from_raw(process.cast_signed());
    prlimit(process, Resource::Fsize, limit).expect("the process is there");
}
