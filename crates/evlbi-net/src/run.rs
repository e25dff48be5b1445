//! What work is given by the program that starts it: when to end, what time it is, and where its notes go.
//!
//! A process may have any number of runs at once. Work looks at [`Run::is_stopped`] now and then, and says what a person should
//! know with [`Run::say`]; what becomes of that is the program's.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, io, iter};

use evlbi_core::time::Nanos;

use crate::clock::Clock;
use crate::host::Counters;
use crate::sim::Host;

/// Puts an error into other words than its own, without its causes; none where its own will do.
pub type Words = fn(&(dyn Error + 'static)) -> Option<String>;

/// An error and its causes in one line, without causes that the error quotes itself.
pub fn explain(error: &(dyn Error + 'static)) -> String {
    explain_in(error, |_| None)
}

/// The same in the words of a program, where it has any for the error or a cause. An error that says no more than its cause does
/// is passed over, so that words for the cause count.
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

/// How often progress is shown.
const INTERVAL: Nanos = Nanos::SECOND;

/// A run of some work. Its clones are the same run.
#[derive(Clone)]
pub struct Run {
    stop: Arc<Stop>,
    clock: Clock,
    /// Where it is, if that is a simulated host.
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

/// Where notes go. Work is held up while one is taken.
pub trait Notes: Send + Sync {
    /// Takes a note.
    fn take(&self, note: &Note<'_>);

    /// Returns an error and its causes in one line, for those who read the notes: with what they can do about it, if that is known.
    fn explain(&self, error: &(dyn Error + 'static)) -> String {
        explain(error)
    }
}

/// What work says while it lasts.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Note<'n> {
    /// Something that a person should know, without a line's end.
    Said(fmt::Arguments<'n>),
    /// Something that is not as it should be.
    Warned(fmt::Arguments<'n>),
    /// What is found, or what it does at this moment.
    Line(fmt::Arguments<'n>),
    /// It listens there.
    Listens(&'n dyn fmt::Display),
    /// How far it is.
    Progress {
        /// Done so far, in units of the work's own.
        done: u64,
        /// All there is to do, where that is known.
        total: Option<u64>,
        /// The same in a line for people.
        line: &'n str,
    },
    /// No more progress will come.
    Finished,
}

/// Drops all notes.
struct Nobody;

impl Notes for Nobody {
    fn take(&self, _note: &Note<'_>) {}
}

impl Run {
    /// A run in real time, whose notes go to `notes`.
    pub fn new(notes: Arc<dyn Notes>) -> Run {
        Run {
            stop: Arc::default(),
            clock: Clock::real(),
            host: None,
            notes,
        }
    }

    /// A run whose notes nobody reads.
    pub fn silent() -> Run {
        Run::new(Arc::new(Nobody))
    }

    /// A part of this run, which can be stopped alone and is stopped with it.
    pub fn part(&self) -> Run {
        self.with(Some(Arc::clone(&self.stop)))
    }

    /// Another run with the same clock, whose notes go to the same place: it is not stopped with this one.
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

    /// The same run, whose notes go to `notes` instead.
    pub fn noted_by(&self, notes: Arc<dyn Notes>) -> Run {
        Run {
            notes,
            ..self.clone()
        }
    }

    /// The same run by another clock.
    #[must_use]
    pub fn timed_by(&self, clock: &Clock) -> Run {
        Run {
            clock: clock.clone(),
            ..self.clone()
        }
    }

    /// The same run on a simulated host, by its clock.
    #[must_use]
    pub fn on(&self, host: &Host) -> Run {
        Run {
            clock: host.clock().clone(),
            host: Some(host.clone()),
            ..self.clone()
        }
    }

    /// Has the work end, with everything kept that was done.
    pub fn stop(&self) {
        self.stop.is_set.store(true, Ordering::Relaxed);
    }

    /// Whether the work is to end.
    #[inline]
    pub fn is_stopped(&self) -> bool {
        self.all().any(|stop| stop.is_set.load(Ordering::Relaxed))
    }

    /// Has the work end with what is kept so far.
    pub fn abandon(&self) {
        self.stop();
        self.stop.is_abandoned.store(true, Ordering::Relaxed);
    }

    /// Whether the work is to end with what is kept so far.
    pub fn is_abandoned(&self) -> bool {
        self.all()
            .any(|stop| stop.is_abandoned.load(Ordering::Relaxed))
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Stop>> {
        iter::successors(Some(&self.stop), |stop| stop.whole.as_ref())
    }

    /// The simulated host that it is on; none on the machine itself.
    pub fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    /// What its host has counted.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn counters(&self) -> io::Result<Counters> {
        match &self.host {
            Some(host) => Ok(host.counters()),
            None => Counters::read(),
        }
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Hands a note on.
    pub fn note(&self, note: &Note<'_>) {
        self.notes.take(note);
    }

    /// Says something that a person should know: `run.say(format_args!("..."))`.
    pub fn say(&self, what: fmt::Arguments<'_>) {
        self.note(&Note::Said(what));
    }

    /// Says that something is not as it should be.
    pub fn warn(&self, what: fmt::Arguments<'_>) {
        self.note(&Note::Warned(what));
    }

    /// Returns an error and its causes in one line, as those who read the notes are told it.
    pub fn explain(&self, error: &(dyn Error + 'static)) -> String {
        self.notes.explain(error)
    }

    /// Says what is found, or what the work does at this moment.
    pub fn line(&self, what: fmt::Arguments<'_>) {
        self.note(&Note::Line(what));
    }

    /// Says that it listens at `place`.
    pub fn listens(&self, place: &dyn fmt::Display) {
        self.note(&Note::Listens(place));
    }

    /// Begins to show how far the work is; `total` in units of its own, where that is known.
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

/// How far a run is. Dropping it says that no more will come.
pub struct Progress {
    run: Run,
    total: Option<u64>,
    last: Option<Nanos>,
}

impl Progress {
    /// Whether it is time to show something new: at once, and then once a second.
    pub fn is_due(&self) -> bool {
        let now = self.run.clock.now();
        self.last.is_none_or(|last| now.since(last) >= INTERVAL)
    }

    /// Shows how far the run is and a line about it.
    pub fn show(&mut self, done: u64, line: &str) {
        self.last = Some(self.run.clock.now());
        // A run that takes longer than it should, as one that drains, is not beyond its end.
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
        // What drains is not beyond its end.
        progress.show(1013, "draining");
        assert!(!progress.is_due());
        drop(progress);
        run.noted_by(Arc::new(Nobody)).say(format_args!("unheard"));
        let written = written.0.lock().unwrap();
        assert_eq!(*written, ["3 bytes", "1000 of Some(1000)", "finished"]);
    }
}
