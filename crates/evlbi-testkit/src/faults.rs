//! Random faults in tests: how they are drawn, and how a case that fails plays again.
//!
//! It is printed as what has it play alone: `EVLBI_FAULTS='4.5s jb dies; 6s jb returns'`. `PROPTEST_CASES=1000` plays more cases,
//! `PROPTEST_RNG_SEED` others.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::Duration;

use proptest::prelude::*;

/// What happens to a part of a system at a moment. It is read as it is printed.
pub trait Fault: Clone + Display + FromStr<Err = String> + 'static {
    /// When it happens, from the beginning on.
    fn at(&self) -> Duration;
}

/// In the order of their times.
#[derive(Clone)]
pub struct Faults<F>(pub Vec<F>);

/// What has them play alone.
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

/// Fewer than `most` faults: those of `EVLBI_FAULTS`, if it is set.
///
/// # Panics
/// When those cannot be read.
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

/// So many cases where nothing else is asked for.
pub fn config(cases: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok();
    ProptestConfig {
        cases: asked.and_then(|asked| asked.parse().ok()).unwrap_or(cases),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}
