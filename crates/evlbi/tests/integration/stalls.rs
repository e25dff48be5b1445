//! Hosts that stand still.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// When this host did nothing for whoever asked to be woken: until when, and for how many seconds.
pub struct Stalls {
    is_over: Arc<AtomicBool>,
    watch: JoinHandle<Vec<(SystemTime, f64)>>,
}

impl Stalls {
    pub fn watch() -> Stalls {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let watch = std::thread::spawn(move || {
            let mut stalls = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let asleep = Instant::now();
                std::thread::sleep(Duration::from_millis(10));
                let stood_still = asleep.elapsed().as_secs_f64();
                if stood_still > 0.1 {
                    stalls.push((SystemTime::now(), stood_still));
                }
            }
            stalls
        });
        Stalls { is_over, watch }
    }

    /// Seconds of those that ended after a moment.
    pub fn seconds_since(self, moment: SystemTime) -> f64 {
        self.is_over.store(true, Ordering::Relaxed);
        let stalls = self.watch.join().unwrap();
        let later = stalls.iter().filter(|(until, _)| *until > moment);
        later.map(|(_, seconds)| seconds).sum()
    }
}
