//! Work on many items.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs `work` on each item, a few in parallel; panics if one of them panics.
pub fn each<T: Sync + std::fmt::Debug>(items: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let failed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let work = AssertUnwindSafe(|| work(item));
                    if catch_unwind(work).is_err() {
                        eprintln!("failed: {item:?}");
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(failed.into_inner(), 0, "of {} failed", items.len());
}
