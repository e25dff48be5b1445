//! The two ends of a test: streams of numbered datagrams sent on time, taken up and accounted for, round trips, and the
//! messages by which both ends agree.
//!
//! Both ends use one UDP socket of their own for a test, [`Port`]. Whatever it carries bears the test's key. A test of TCP
//! has connections beside it, [`Flows`].
//!
//! Here belongs what both ends do, and the messages by which they agree ([`message`](FromClient)). The bytes of test datagrams are in
//! [`evlbi_wire::probe`]; who may test, and when, is in [`respond`](mod@crate::respond).

mod flows;
mod listen;
mod message;
mod observe;
mod port;
mod transmit;
mod work;

pub use flows::{Files, FlowEnd, Flows, FlowsEnd, usual_sampling};
pub use listen::{CLOCK_FROM, Heard, Listened, RoundTrip, Window};
pub use message::{
    Burden, EndpointReport, FromClient, FromResponder, Keep, Limits, Requests, Test, TestError,
    VERSION,
};
pub use observe::{Observed, Observer, Sample};
pub use port::Port;
pub use transmit::Departed;
pub use work::{Work, WorkError};
