//! What tests of a path measure: distributions of times, and the far end's clock.

mod clock;
mod distribution;

pub use clock::{ClockFit, Exchange, Exchanges};
pub use distribution::{Distribution, Summary};
