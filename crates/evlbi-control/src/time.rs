//! UTC for agents and controllers, which follows tokio's clock in tests.

use evlbi_net::clock::Clock;

/// Returns UTC in seconds since 1970. It follows the clock of this host, which may be set while the process runs. In a test whose
/// clock is paused it advances with that clock.
pub fn now() -> f64 {
    #[cfg(test)]
    if let Some(utc) = anchor::now() {
        return utc;
    }
    Clock::real().utc() as f64 * 1e-9
}

/// UTC for tests on tokio's paused clock.
#[cfg(test)]
pub mod anchor {
    use std::cell::Cell;

    use tokio::time::Instant;

    /// UTC in seconds at the moment of the anchor: 2026-11-22T12:00:00Z.
    pub const START: f64 = 1_795_348_800.0;

    thread_local! {
        static ANCHOR: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    /// Sets the current time to [`START`] for this thread. A paused runtime runs on one thread.
    pub fn set() {
        ANCHOR.set(Some(Instant::now()));
    }

    /// Returns UTC in seconds, if this thread has an anchor.
    pub fn now() -> Option<f64> {
        ANCHOR
            .get()
            .map(|start| START + start.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn utc_advances_with_a_paused_clock() {
        anchor::set();
        assert_eq!(now(), anchor::START);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(now(), anchor::START + 1.5);
        // Other threads follow the clock of this host.
        assert_eq!(std::thread::spawn(anchor::now).join().unwrap(), None);
    }
}
