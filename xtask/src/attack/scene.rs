//! Tools of an attack, and its result.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use evlbi_testkit::Room;
use evlbi_testkit::damage::random;
use rand_chacha::ChaCha8Rng;

use super::Attack;

/// Timeout for anything that must happen.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A run of an attack.
pub struct Scene {
    /// Seeded by the run's seed, the attack's name and the round.
    pub random: ChaCha8Rng,
    /// The attacked program.
    pub program: PathBuf,
    /// A directory of its own.
    pub room: Room,
    broken: Vec<String>,
    found: Vec<String>,
}

/// Result of a run.
pub struct Outcome {
    /// Expectations that are not met.
    pub broken: Vec<String>,
    /// The counts, in a few words.
    pub found: String,
}

impl Scene {
    /// Records what was found if an expectation is not met.
    pub fn expect(&mut self, holds: bool, found: impl Into<String>) {
        if !holds {
            self.broken.push(found.into());
        }
    }

    /// Expects two values to be equal.
    pub fn same<T: PartialEq + Display + Copy>(&mut self, what: &str, found: T, expected: T) {
        let holds = found == expected;
        self.expect(holds, format!("{what}: {found}, expected {expected}"));
    }

    /// Adds a text that the table shows next to the outcome.
    pub fn note(&mut self, found: impl Into<String>) {
        self.found.push(found.into());
    }
}

/// Runs an attack, and returns its outcome.
pub fn outcome(attack: &Attack, program: &Path, seed: u64, round: u64) -> Outcome {
    let mut scene = Scene {
        random: random(seed, attack.name, round),
        program: program.to_owned(),
        room: Room::new(),
        broken: Vec::new(),
        found: Vec::new(),
    };
    match catch_unwind(AssertUnwindSafe(|| (attack.run)(&mut scene))) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => scene.broken.push(format!("{error:#}")),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            scene.broken.push(text.unwrap_or("a panic").to_owned());
        }
    }
    Outcome {
        broken: scene.broken,
        found: scene.found.join(", "),
    }
}

/// Waits until `look` returns something, and returns it.
///
/// # Errors
/// Returns an error if it returns nothing within the limit.
pub fn wait_for<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if begun.elapsed() > limit {
            bail!("still waiting after {} s: {what}", limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
