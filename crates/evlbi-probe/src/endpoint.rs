//! Endpoints of a test: streams of numbered datagrams sent on time, received and counted; round trips; and the control messages.
//!
//! Each endpoint uses one UDP socket for a test, [`Port`]. All its datagrams contain the test's key. A test of TCP has connections too,
//! [`Flows`].
//!
//! The common work of both endpoints belongs here, and their control messages ([`message`](FromClient)). The bytes of test datagrams are in
//! [`evlbi_wire::probe`]; permissions and queueing are in [`respond`](mod@crate::respond).

mod flows;
mod listen;
mod message;
mod observe;
mod port;
mod transmit;
mod work;

pub use flows::{Files, FlowEnd, Flows, FlowsEnd, default_sampling};
pub use listen::{CLOCK_FROM, Heard, Listened, RoundTrip, Window};
pub use message::{
    Burden, EndpointReport, FromClient, FromResponder, Keep, Limits, Requests, Test, TestError,
    VERSION,
};
pub use observe::{Observed, Observer, Sample};
pub use port::Port;
pub use transmit::Departed;
pub use work::{Work, WorkError};
