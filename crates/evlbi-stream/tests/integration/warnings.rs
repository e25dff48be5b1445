//! Warnings of a run, for tests to read.

use std::sync::{Arc, Mutex};

use evlbi_net::run::{Note, Notes, Run};

/// Warnings so far.
#[derive(Default)]
pub struct Warnings(Mutex<Vec<String>>);

impl Notes for Warnings {
    fn take(&self, note: &Note<'_>) {
        if let Note::Warned(what) = note {
            self.0.lock().unwrap().push(what.to_string());
        }
    }
}

impl Warnings {
    /// Starts a run, and collects its warnings.
    pub fn of_run() -> (Run, Arc<Warnings>) {
        let warnings = Arc::new(Warnings::default());
        (Run::new(Arc::<Warnings>::clone(&warnings)), warnings)
    }

    /// Returns the warnings so far.
    pub fn read(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}
