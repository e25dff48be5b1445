//! The context that a program gives to work: when to stop, the clock, and the receiver of its notes.
//!
//! A process may have any number of runs at once. Work checks [`Run::is_stopped`] regularly, and reports with [`Run::say`]; the program
//! decides what happens with the notes.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, io, iter};

use evlbi_core::time::Nanos;

use crate::clock::Clock;
use crate::host::Counters;
use crate::sim::Host;

/// Rewords an error, without its causes; `None` to keep its own text.
pub type Words = fn(&(dyn Error + 'static)) -> Option<String>;

/// Returns an error and its causes in one line, without causes that the error quotes itself.
pub fn explain(error: &(dyn Error + 'static)) -> String {
    explain_in(error, |_| None)
}

/// Returns an error and its causes in one line, in the program's words where it has any. An error that adds nothing to its cause is
/// skipped, so that words for the cause apply.
pub fn explain_in(error: &(dyn Error + 'static), words: Words) -> String {
    let chain = iter::successors(Some(error), |&error| error.source());
    chain.fold(String::new(), |text, cause| {
        let own = cause.to_string();
        if cause.source().is_some_and(|next| next.to_string() == own) {
            return text;
        }
        let cause = words(cause).unwrap_or(own);
        match text.as_str() {
            "" => cause,
            said if said.contains(&cause) => text,
            said => format!("{said}: {cause}"),
        }
    })
}

/// Interval of progress reports.
const INTERVAL: Nanos = Nanos::SECOND;

/// A run of some work. Clones are the same run.
#[derive(Clone)]
pub struct Run {
    stop: Arc<Stop>,
    clock: Clock,
    /// The simulated host of the run; `None` on the machine itself.
    host: Option<Host>,
    notes: Arc<dyn Notes>,
}

#[derive(Default)]
struct Stop {
    is_set: AtomicBool,
    is_abandoned: AtomicBool,
    /// The run that this is a part of.
    whole: Option<Arc<Stop>>,
}

/// Receiver of notes. Work blocks while it takes one.
pub trait Notes: Send + Sync {
    /// Receives a note.
    fn take(&self, note: &Note<'_>);

    /// Returns an error and its causes in one line for the readers of the notes, with the remedy if one is known.
    fn explain(&self, error: &(dyn Error + 'static)) -> String {
        explain(error)
    }
}

/// A note that work sends while it runs.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Note<'n> {
    /// Information, without a line end.
    Said(fmt::Arguments<'n>),
    /// A warning.
    Warned(fmt::Arguments<'n>),
    /// A finding, or the present activity.
    Line(fmt::Arguments<'n>),
    /// The address at which it listens.
    Listens(&'n dyn fmt::Display),
    /// Progress.
    Progress {
        /// Amount done so far, in the work's own unit.
        done: u64,
        /// Total amount, if known.
        total: Option<u64>,
        /// The progress as a line of text.
        line: &'n str,
    },
    /// No more progress will follow.
    Finished,
}

/// Drops all notes.
struct Nobody;

impl Notes for Nobody {
    fn take(&self, _note: &Note<'_>) {}
}

impl Run {
    /// Creates a run in real time, whose notes go to `notes`.
    pub fn new(notes: Arc<dyn Notes>) -> Run {
        Run {
            stop: Arc::default(),
            clock: Clock::real(),
            host: None,
            notes,
        }
    }

    /// Creates a run without a reader of its notes.
    pub fn silent() -> Run {
        Run::new(Arc::new(Nobody))
    }

    /// Creates a part of this run, which can be stopped on its own and is stopped with it.
    pub fn part(&self) -> Run {
        self.with(Some(Arc::clone(&self.stop)))
    }

    /// Creates another run with the same clock and receiver of notes, which is not stopped with this one.
    pub fn apart(&self) -> Run {
        self.with(None)
    }

    fn with(&self, whole: Option<Arc<Stop>>) -> Run {
        let stop = Stop {
            whole,
            ..Stop::default()
        };
        Run {
            stop: Arc::new(stop),
            ..self.clone()
        }
    }

    /// Returns the same run, with `notes` as the receiver of its notes.
    pub fn noted_by(&self, notes: Arc<dyn Notes>) -> Run {
        Run {
            notes,
            ..self.clone()
        }
    }

    /// Returns the same run, whose notes nobody reads: for work that is done many times within other work.
    #[must_use]
    pub fn silenced(&self) -> Run {
        self.noted_by(Arc::new(Nobody))
    }

    /// Returns the same run with another clock.
    #[must_use]
    pub fn timed_by(&self, clock: &Clock) -> Run {
        Run {
            clock: clock.clone(),
            ..self.clone()
        }
    }

    /// Returns the same run on a simulated host, with that host's clock.
    #[must_use]
    pub fn on(&self, host: &Host) -> Run {
        Run {
            clock: host.clock().clone(),
            host: Some(host.clone()),
            ..self.clone()
        }
    }

    /// Stops the work; everything done is kept.
    pub fn stop(&self) {
        self.stop.is_set.store(true, Ordering::Relaxed);
    }

    /// Returns whether the work must stop.
    #[inline]
    pub fn is_stopped(&self) -> bool {
        self.all().any(|stop| stop.is_set.load(Ordering::Relaxed))
    }

    /// Stops the work at once, with what is kept so far.
    pub fn abandon(&self) {
        self.stop();
        self.stop.is_abandoned.store(true, Ordering::Relaxed);
    }

    /// Returns whether the work must stop at once, with what is kept so far.
    pub fn is_abandoned(&self) -> bool {
        self.all()
            .any(|stop| stop.is_abandoned.load(Ordering::Relaxed))
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Stop>> {
        iter::successors(Some(&self.stop), |stop| stop.whole.as_ref())
    }

    /// Returns the simulated host of the run; `None` on the machine itself.
    pub fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    /// Returns the counters of the run's host.
    ///
    /// # Errors
    /// Returns an error if /proc cannot be read.
    pub fn counters(&self) -> io::Result<Counters> {
        match &self.host {
            Some(host) => Ok(host.counters()),
            None => Counters::read(),
        }
    }

    /// Returns the clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Sends a note.
    pub fn note(&self, note: &Note<'_>) {
        self.notes.take(note);
    }

    /// Sends information: `run.say(format_args!("..."))`.
    pub fn say(&self, what: fmt::Arguments<'_>) {
        self.note(&Note::Said(what));
    }

    /// Sends a warning.
    pub fn warn(&self, what: fmt::Arguments<'_>) {
        self.note(&Note::Warned(what));
    }

    /// Returns an error and its causes in one line, as the readers of the notes see it.
    pub fn explain(&self, error: &(dyn Error + 'static)) -> String {
        self.notes.explain(error)
    }

    /// Sends a finding, or the present activity.
    pub fn line(&self, what: fmt::Arguments<'_>) {
        self.note(&Note::Line(what));
    }

    /// Reports that it listens at `place`.
    pub fn listens(&self, place: &dyn fmt::Display) {
        self.note(&Note::Listens(place));
    }

    /// Starts progress reports; `total` is in the work's own unit, if known.
    pub fn progress(&self, total: Option<u64>) -> Progress {
        Progress {
            run: self.clone(),
            total,
            last: None,
        }
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut run = f.debug_struct("Run");
        run.field("is_stopped", &self.is_stopped())
            .finish_non_exhaustive()
    }
}

/// Progress of a run. Dropping it reports that no more will follow.
pub struct Progress {
    run: Run,
    total: Option<u64>,
    last: Option<Nanos>,
}

impl Progress {
    /// Returns whether a report is due: at once, and then once a second.
    pub fn is_due(&self) -> bool {
        let now = self.run.clock.now();
        self.last.is_none_or(|last| now.since(last) >= INTERVAL)
    }

    /// Reports the amount done and a line of text.
    pub fn show(&mut self, done: u64, line: &str) {
        self.last = Some(self.run.clock.now());
        // A run that takes longer than planned, e.g. while it drains, is not beyond its end.
        let done = self.total.map_or(done, |total| done.min(total));
        self.run.note(&Note::Progress {
            done,
            total: self.total,
            line,
        });
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.run.note(&Note::Finished);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Written(Mutex<Vec<String>>);

    impl Notes for Written {
        fn take(&self, note: &Note<'_>) {
            let line = match note {
                Note::Said(what) => what.to_string(),
                Note::Progress { done, total, .. } => format!("{done} of {total:?}"),
                Note::Finished => "finished".to_owned(),
                _ => String::new(),
            };
            self.0.lock().unwrap().push(line);
        }
    }

    #[test]
    fn a_part_ends_with_the_whole_and_alone() {
        let run = Run::silent();
        let (part, other) = (run.part(), run.part());
        part.stop();
        assert!(part.is_stopped() && part.clone().is_stopped());
        assert!(!run.is_stopped() && !other.is_stopped());
        run.stop();
        assert!(other.is_stopped());
    }

    #[test]
    fn a_program_has_words_of_its_own() {
        #[derive(Debug, thiserror::Error)]
        enum Failed {
            #[error("{0}")]
            Cause(#[from] fmt::Error),
            #[error("it failed")]
            Because(#[from] Box<Failed>),
        }
        let error = Failed::from(Box::new(Failed::from(fmt::Error)));
        let own = fmt::Error.to_string();
        assert_eq!(explain(&error), format!("it failed: {own}"));
        let words = |error: &(dyn Error + 'static)| error.is::<fmt::Error>().then(|| "so".into());
        assert_eq!(explain_in(&error, words), "it failed: so");
    }

    #[test]
    fn notes_go_to_whom_the_run_was_given() {
        let written = Arc::new(Written::default());
        let run = Run::new(Arc::<Written>::clone(&written));
        run.part().say(format_args!("{} bytes", 3));
        let mut progress = run.progress(Some(1000));
        assert!(progress.is_due());
        // A run that drains is not beyond its end.
        progress.show(1013, "draining");
        assert!(!progress.is_due());
        drop(progress);
        run.silenced().say(format_args!("unheard"));
        run.stop();
        assert!(run.silenced().is_stopped());
        let written = written.0.lock().unwrap();
        assert_eq!(*written, ["3 bytes", "1000 of Some(1000)", "finished"]);
    }
}
