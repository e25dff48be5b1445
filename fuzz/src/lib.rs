//! Counts the bytes that a fuzz target was given, and ends the target when they are enough. Further parts that all targets share belong
//! here.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::{Signal, raise};

/// Bytes after which a target ends, from the environment; `None` for no limit.
static LIMIT: LazyLock<Option<u64>> =
    LazyLock::new(|| std::env::var("EVLBI_FUZZ_BYTES").ok()?.parse().ok());
/// Bytes so far.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Runs the body of a target. Prints the number of bytes each time that another hundredth of the limit is reached.
pub fn counted(data: &[u8], body: fn(&[u8])) {
    body(data);
    let Some(limit) = *LIMIT else {
        return;
    };
    let before = BYTES.fetch_add(data.len() as u64, Ordering::Relaxed);
    let bytes = before + data.len() as u64;
    let step = (limit / 100).max(1);
    if before / step != bytes / step {
        eprintln!("fuzzed {bytes} bytes");
    }
    if bytes >= limit {
        // libFuzzer takes it as a request to end well.
        let _ = raise(Signal::SIGUSR1);
    }
}
