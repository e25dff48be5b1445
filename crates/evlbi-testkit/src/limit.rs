//! Limits of processes that tests have started.

/// From now on no file of that process grows beyond so many bytes (`ulimit -f`).
///
/// # Panics
/// When there is no such process any more.
#[track_caller]
pub fn file_size(process: u32, bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: the new limit lives through the call, and the old one is not asked for.
    let done = unsafe {
        libc::prlimit(
            process.cast_signed(),
            libc::RLIMIT_FSIZE,
            &raw const limit,
            std::ptr::null_mut(),
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}
