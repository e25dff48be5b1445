//! What tests of a path send and measure: streams of datagrams, what became of them and where, distributions of times,
//! and the far end's clock.

mod attribution;
mod channel;
mod clock;
mod pattern;
mod stream;
mod tally;
mod windows;

pub use attribution::{Attribution, Place, Suspect};
pub use channel::{Channel, ChannelError, MAC_LEN, Nonce, Role, Token};
pub use clock::{ClockFit, Exchange, Exchanges};
pub use pattern::{Episodes, Pattern, Window};
pub use stream::{Spacing, Stream, StreamError};
pub use tally::{Tallied, Tally};
pub use windows::Windows;

use serde::{Deserialize, Serialize};

/// A datagram of the stream as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record(
    /// Its number.
    pub u64,
    /// When it left, by the sender's clock in nanoseconds of UTC.
    pub u64,
    /// When it arrived, by the receiver's.
    pub u64,
);
