//! The program around its runs: Ctrl-C, messages, the progress bar, and the control socket.

use std::error::Error;
use std::fmt;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::{Arc, Once};

use anyhow::{Result, ensure};
use evlbi_core::time::Nanos;
use evlbi_net::run::{Note, Notes, Run, explain_in};
use evlbi_net::transport::NotHonoured;
use evlbi_stream::control_socket::{ControlSocket, Watched};
use evlbi_stream::running;
use evlbi_stream::send::SendError;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;

use crate::{say, words};

/// Signals within this time of the first count as one: `timeout` sends two.
const TOGETHER: Nanos = Nanos(250_000_000);

/// Everything that a command gets from the program.
pub struct Program {
    run: Run,
    handler: Once,
    /// Socket to query, change or stop the run.
    pub control_socket: Arc<ControlSocket>,
}

impl Program {
    /// Returns a program whose notes go to standard error.
    pub fn new() -> Program {
        let run = Run::silent();
        let control_socket = Arc::new(ControlSocket::new(run.clone()));
        let terminal = Terminal {
            control_socket: Arc::clone(&control_socket),
            bar: Mutex::default(),
        };
        Program {
            run: run.noted_by(Arc::new(terminal)),
            handler: Once::new(),
            control_socket,
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

/// Returns the exit status of an error.
pub fn status_of(error: &anyhow::Error) -> ExitCode {
    let is_unknown = |cause: &(dyn Error + 'static)| {
        cause.is::<NotHonoured>()
            || matches!(
                cause.downcast_ref(),
                Some(SendError::NoDatagrams(_) | SendError::PatternRate(_))
            )
    };
    match error.chain().any(is_unknown) {
        // The status for an option that does not exist.
        true => ExitCode::from(2),
        false => ExitCode::FAILURE,
    }
}

/// Shows notes on standard error, progress as a bar on a terminal and as a line a second elsewhere.
struct Terminal {
    control_socket: Arc<ControlSocket>,
    bar: Mutex<Option<ProgressBar>>,
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
        } else if let Some(total) = total {
            let percent = done as f64 * 100.0 / total.max(1) as f64;
            say!("{percent:5.1} %  {line}");
        } else {
            say!("{line}");
        }
    }
}

impl Notes for Terminal {
    fn take(&self, note: &Note<'_>) {
        match note {
            Note::Said(what) => self.line(format_args!("evlbi: {what}")),
            Note::Warned(what) => self.line(format_args!("evlbi: warning: {what}")),
            Note::Line(what) => self.line(*what),
            Note::Listens(address) => {
                self.control_socket
                    .tell(|status| status.listening.push(address.to_string()));
                // In one write, so that a program that waits for the line reads all of it.
                say::text(&format!("listening on {address}\n"));
            }
            Note::Progress { done, total, line } => self.progress(*done, *total, line),
            Note::Finished => {
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
