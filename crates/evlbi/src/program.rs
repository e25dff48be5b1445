//! The program around its runs: Ctrl-C, messages, the progress bar, and the control socket.

use std::error::Error;
use std::fmt;
use std::io::IsTerminal;
use std::sync::{Arc, Once, OnceLock};

use anyhow::{Result, ensure};
use evlbi_core::time::Nanos;
use evlbi_net::clock::Clock;
use evlbi_net::run::{Note, Notes, Run, explain_in};
use evlbi_stream::control_socket::{ControlSocket, Watched};
use evlbi_stream::running;
use evlbi_wire::units;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;

use crate::config::Config;
use crate::{say, words};

/// Signals within this time of the first count as one: `timeout` sends two.
const TOGETHER: Nanos = Nanos(250_000_000);

/// Progress is first written to a log after this time, and then at this interval.
const FIRST_LINE: Nanos = Nanos(10_000_000_000);
const LOG_INTERVAL: Nanos = Nanos(60_000_000_000);

/// Everything that a command gets from the program.
pub struct Program {
    run: Run,
    config: OnceLock<Config>,
    /// Whether only errors and warnings are printed on standard error.
    pub is_quiet: bool,
    handler: Once,
    /// Socket to query, change or stop the run.
    pub control_socket: Arc<ControlSocket>,
}

impl Program {
    /// Returns a program whose notes go to standard error: if `is_quiet`, errors and warnings only.
    pub fn new(is_quiet: bool) -> Program {
        let run = Run::silent();
        let control_socket = Arc::new(ControlSocket::new(run.clone()));
        let terminal = Terminal {
            control_socket: Arc::clone(&control_socket),
            is_quiet,
            bar: Mutex::default(),
            log: Mutex::default(),
        };
        Program {
            run: run.noted_by(Arc::new(terminal)),
            config: OnceLock::new(),
            is_quiet,
            handler: Once::new(),
            control_socket,
        }
    }

    /// Returns a program for tests, which does not read this user's defaults.
    #[cfg(test)]
    pub fn without_config() -> Program {
        Program {
            config: Config::default().into(),
            ..Program::new(true)
        }
    }

    /// Returns the run, and handles signals from now on: the first Ctrl-C (or SIGTERM) ends the run with everything
    /// written, a second one ends the program at once.
    pub fn run(&self) -> &Run {
        self.handler.call_once(|| {
            let run = self.run.clone();
            let mut first = None;
            let handler = ctrlc::set_handler(move || {
                let now = run.clock().now();
                let since = now.since(*first.get_or_insert(now));
                if run.is_stopped() && since > TOGETHER {
                    std::process::exit(130);
                }
                run.stop();
            });
            if let Err(error) = handler {
                tracing::warn!("Ctrl-C will end the program at once: {error}");
            }
        });
        &self.run
    }

    /// Returns the run without handling signals, for work that has nothing to lose: Ctrl-C ends the program at once.
    pub fn unheeded(&self) -> &Run {
        &self.run
    }

    /// Returns this user's defaults, which are read the first time.
    pub fn config(&self) -> Result<&Config> {
        if self.config.get().is_none() {
            let _ = self.config.set(Config::read()?);
        }
        Ok(self.config.get_or_init(Config::default))
    }

    /// Shows the state of `work` once a second until it has ended.
    pub fn watch(&self, work: &Arc<dyn Watched>, has_ended: impl Fn() -> bool) {
        self.control_socket.on_status({
            let work = Arc::clone(work);
            move |control_socket| {
                work.refresh();
                // Read there, so that older counts never replace newer ones.
                control_socket.tell(|status| work.tell(status));
            }
        });
        self.control_socket.on_change({
            let work = Arc::clone(work);
            move |change| work.change(change)
        });
        let (_, total) = work.progress();
        let look = || {
            self.control_socket.tell(|status| work.tell(status));
            (work.progress().0, work.line())
        };
        let progress = self.run.progress(total);
        running::watch(progress, has_ended, look, self.run.clock());
    }
}

/// Returns an error if finite work was interrupted before its end: the printed result is incomplete.
pub fn complete(is_interrupted: bool) -> Result<()> {
    ensure!(!is_interrupted, "interrupted before the end");
    Ok(())
}

/// Shows notes on standard error, progress as a bar on a terminal and seldom as a line elsewhere.
struct Terminal {
    control_socket: Arc<ControlSocket>,
    /// Errors, warnings and what a person should know are shown alone.
    is_quiet: bool,
    bar: Mutex<Option<ProgressBar>>,
    log: Mutex<Option<Log>>,
}

/// Progress in a log: when it began, and when the next line is due.
struct Log {
    begun: Nanos,
    next: Nanos,
}

impl Log {
    fn new(now: Nanos) -> Log {
        Log {
            begun: now,
            next: now.plus(FIRST_LINE),
        }
    }

    /// Whether a line is due now.
    fn is_due(&mut self, now: Nanos) -> bool {
        let is_due = now >= self.next;
        if is_due {
            let intervals = now.since(self.begun).0 / LOG_INTERVAL.0 + 1;
            self.next = self.begun.plus(Nanos(intervals * LOG_INTERVAL.0));
        }
        is_due
    }
}

impl Terminal {
    /// Prints a permanent line.
    fn line(&self, line: fmt::Arguments<'_>) {
        match &*self.bar.lock() {
            Some(bar) if say::is_ready() => bar.suspend(|| say::line(line)),
            _ => say::line(line),
        }
    }

    fn progress(&self, done: u64, total: Option<u64>, line: &str) {
        self.control_socket.tell(|status| {
            line.clone_into(&mut status.line);
            status.done = total.map(|total| done as f64 / total.max(1) as f64);
        });
        if self.is_quiet {
            return;
        }
        if std::io::stderr().is_terminal() {
            let mut bar = self.bar.lock();
            let bar = bar.get_or_insert_with(|| bar_of(total));
            // A paused terminal (Ctrl-S) must not stall the run.
            if !say::is_ready() {
                return;
            }
            match total {
                Some(total) => {
                    // Nested work has its own total.
                    bar.set_length(total);
                    bar.set_position(done);
                }
                None => bar.tick(),
            }
            bar.set_message(line.to_string());
            return;
        }
        let clock = Clock::real();
        let now = clock.now();
        let mut log = self.log.lock();
        if log.get_or_insert_with(|| Log::new(now)).is_due(now) {
            let time = units::utc(clock.second() as f64);
            match total {
                Some(total) => {
                    let percent = done as f64 * 100.0 / total.max(1) as f64;
                    say!("{time} {percent:5.1} %  {line}");
                }
                None => say!("{time} {line}"),
            }
        }
    }
}

impl Notes for Terminal {
    fn take(&self, note: &Note<'_>) {
        match note {
            Note::Said(what) => self.line(format_args!("evlbi: {what}")),
            Note::Warned(what) => self.line(format_args!("evlbi: warning: {what}")),
            Note::Line(_) if self.is_quiet => {}
            Note::Line(what) => self.line(*what),
            Note::Listens(address) => {
                self.control_socket
                    .tell(|status| status.listening.push(address.to_string()));
                if !self.is_quiet {
                    // In one write, so that a program that waits for the line reads all of it.
                    say::text(&format!("listening on {address}\n"));
                }
            }
            Note::Progress { done, total, line } => self.progress(*done, *total, line),
            Note::Finished => {
                *self.log.lock() = None;
                if let Some(bar) = self.bar.lock().take() {
                    if !say::is_ready() {
                        bar.set_draw_target(ProgressDrawTarget::hidden());
                    }
                    bar.finish_and_clear();
                }
            }
            _ => {}
        }
    }

    fn explain(&self, error: &(dyn Error + 'static)) -> String {
        explain_in(error, words::of)
    }
}

fn bar_of(total: Option<u64>) -> ProgressBar {
    let template = match total {
        Some(_) => "{bar:30} {percent:>3} % {eta:>4} {wide_msg}",
        None => "{spinner} {elapsed:>4} {wide_msg}",
    };
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr()).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_in_a_log_is_due_after_ten_seconds_and_each_minute() {
        let second = |second: u64| Nanos(7 + second * 1_000_000_000);
        let mut log = Log::new(second(0));
        let due: Vec<u64> = (0..200).filter(|at| log.is_due(second(*at))).collect();
        assert_eq!(due, [10, 60, 120, 180]);
        // A process that was stopped prints one line, not all that it missed.
        let late: Vec<u64> = (400..450).filter(|at| log.is_due(second(*at))).collect();
        assert_eq!(late, [400, 420]);
    }
}
