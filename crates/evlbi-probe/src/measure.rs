//! What tests of a path send and measure: streams of datagrams, what became of them and where, distributions of times,
//! and the far end's clock.
//!
//! Here belongs what is made of numbers and times, without I/O. What a result says of it is in `point`.

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
