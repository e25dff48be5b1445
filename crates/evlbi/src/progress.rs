//! What a long run shows while it runs: a bar or a line on a terminal, a line a second elsewhere.

use std::io::IsTerminal;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{say, steer};

/// How often something new is shown.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// Of commands that are not given a run yet.
pub static HEED: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();
static SWITCH: OnceLock<Arc<AtomicBool>> = OnceLock::new();

pub fn switch() -> &'static Arc<AtomicBool> {
    SWITCH.get_or_init(Arc::default)
}

/// A switch that Ctrl-C (or SIGTERM) sets.
pub fn interrupt() -> Arc<AtomicBool> {
    if let Some(heed) = HEED.get() {
        heed();
    }
    Arc::clone(switch())
}

/// The progress of one run, on standard error.
pub struct Progress {
    bar: Option<ProgressBar>,
    total: Option<u64>,
    last: Option<Instant>,
}

impl Progress {
    /// `total` is the length of the run in units of its own, where that is known.
    pub fn new(total: Option<u64>) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let (bar, template) = match total {
                Some(total) => (
                    ProgressBar::new(total),
                    "{bar:30} {percent:>3} % {eta:>4} {wide_msg}",
                ),
                None => (
                    ProgressBar::new_spinner(),
                    "{spinner} {elapsed:>4} {wide_msg}",
                ),
            };
            let style = ProgressStyle::with_template(template)
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            bar.with_style(style)
        });
        Progress {
            bar,
            total,
            last: None,
        }
    }

    /// Whether it is time to show something new.
    pub fn is_due(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= INTERVAL)
    }

    /// Shows how far the run is and a line about it.
    pub fn show(&mut self, done: u64, line: &str) {
        self.last = Some(Instant::now());
        // A run that takes longer than it should, as one that drains, is not beyond its end.
        let done = self.total.map_or(done, |total| done.min(total));
        steer::tell(|status| {
            line.clone_into(&mut status.line);
            let share = |total: u64| done as f64 / total.max(1) as f64;
            status.done = self.total.map(share);
        });
        match (&self.bar, self.total) {
            // A terminal that is held (Ctrl-S) must not hold the run.
            (Some(_), _) if !say::is_ready() => {}
            (Some(bar), total) => {
                if total.is_some() {
                    bar.set_position(done.min(total.unwrap_or(done)));
                } else {
                    bar.tick();
                }
                bar.set_message(line.to_string());
            }
            (None, Some(total)) => {
                let percent = done.min(total) as f64 * 100.0 / total.max(1) as f64;
                say!("{percent:5.1} %  {line}");
            }
            (None, None) => say!("{line}"),
        }
    }

    /// Says something that is to stay.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) if say::is_ready() => bar.suspend(|| say!("{line}")),
            _ => say!("{line}"),
        }
    }

    /// Takes the bar away.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            if !say::is_ready() {
                bar.set_draw_target(ProgressDrawTarget::hidden());
            }
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_takes_longer_is_not_beyond_its_end() {
        let mut progress = Progress::new(Some(1000));
        progress.show(1013, "draining");
        steer::tell(|status| assert_eq!(status.done, Some(1.0)));
        progress.finish();
    }
}
