//! Measurements of tests: streams of datagrams, their fate and loss locations, distributions of times, and the remote clock.
//!
//! Calculations on numbers and times belong here, without I/O. Their interpretation is in `point`.

mod attribution;
mod channel;
mod clock;
mod pattern;
mod stream;
mod tally;
mod windows;

pub use attribution::{Attribution, LossLocation, Suspect};
pub use channel::{Channel, ChannelError, MAC_LEN, Nonce, Role, Token};
pub use clock::{ClockFit, Exchange, Exchanges};
pub use pattern::{Episodes, Pattern, Window};
pub use stream::{Spacing, Stream, StreamError};
pub use tally::{Tallied, Tally};
pub use windows::Windows;

pub use evlbi_core::account::Record;
