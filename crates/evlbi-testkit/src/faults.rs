//! Random faults in tests: their generation, and the replay of a failing case.
//!
//! A failing case is printed as the variable that replays it alone: `EVLBI_FAULTS='4.5s jb dies; 6s jb returns'`. `PROPTEST_CASES=1000`
//! plays more cases, `PROPTEST_RNG_SEED` others.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::Duration;

use proptest::prelude::*;

/// A fault of a part of a system at a time. Its text form can be parsed.
pub trait Fault: Clone + Display + FromStr<Err = String> + 'static {
    /// Returns its time, from the start.
    fn at(&self) -> Duration;
}

/// Faults in order of time.
#[derive(Clone)]
pub struct Faults<F>(pub Vec<F>);

/// Prints the variable that replays them.
impl<F: Display> fmt::Debug for Faults<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "EVLBI_FAULTS='{}'", faults.join("; "))
    }
}

impl<F: Fault> FromStr for Faults<F> {
    type Err = String;

    fn from_str(text: &str) -> Result<Faults<F>, String> {
        let faults = text.split(';').map(str::trim);
        let faults = faults.filter(|fault| !fault.is_empty());
        Ok(Faults(faults.map(str::parse).collect::<Result<_, _>>()?))
    }
}

/// Returns fewer than `most` faults, or those of `EVLBI_FAULTS`, if it is set.
///
/// # Panics
/// Panics if those cannot be parsed.
pub fn faults<F: Fault + fmt::Debug>(
    one: impl Strategy<Value = F> + 'static,
    most: usize,
) -> BoxedStrategy<Faults<F>> {
    if let Ok(text) = std::env::var("EVLBI_FAULTS") {
        return Just(text.parse::<Faults<F>>().expect("faults")).boxed();
    }
    let all = prop::collection::vec(one, 0..most);
    all.prop_map(|mut faults| {
        faults.sort_by_key(Fault::at);
        Faults(faults)
    })
    .boxed()
}

/// Returns a configuration with this many cases by default.
pub fn config(cases: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok();
    ProptestConfig {
        cases: asked.and_then(|asked| asked.parse().ok()).unwrap_or(cases),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}
