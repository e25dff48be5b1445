//! SafeUDP: a constant bit rate that does no harm to others on its path (EXPReS report, section 4.7; RFC 8085, section 3.1).
//!
//! The [`Sender`] of a flow sends *beats* next to the data, and the [`Receiver`] answers with *reports*. From these the sender classifies
//! each loss: by the end host or by the network, transient or lasting, and by its cause. It then notifies the application, gives it time
//! to act, and only then sheds data, in steps ([`STEPS`]) of which each contains the next one. If the path stays bad at the lowest step,
//! if nothing arrives or no report comes back, a circuit breaker stops the data (RFC 8084).
//!
//! Nothing here has a clock, a thread or a socket. Data are not changed; messages take a path of their own ([`message`]).
//! Times of one flow never go backwards.
//!
//! Everything about the protocol belongs here. Sockets, pacing and shedding are in `evlbi-net`.

mod cause;
mod control;
mod declared;
mod delay;
mod equation;
mod losses;
pub mod message;
mod notice;
mod receiver;
mod sender;
mod settings;
mod state;
mod window;

use evlbi_core::time::Nanos;

pub use cause::Cause;
pub use declared::Set;
pub use equation::{Flow, tcp_rate};
pub use message::{Key, Rejected};
pub use notice::{Evidence, Kind, Notice, Reason};
pub use receiver::{Arrivals, Receiver};
pub use sender::{Accounts, Order, Output, Progress, Sender, Status};
pub use settings::Settings;
pub use state::{Mode, STEPS, State, Step};

/// Time between beats; a change of the state, or the end of a shed block, is sent at once.
pub const BEAT_INTERVAL: Nanos = Nanos(100_000_000);
/// Minimum time between reports; at least a round-trip time.
pub const REPORT_INTERVAL: Nanos = Nanos(100_000_000);
/// Time of one loss event, in round-trip times from its first loss on. A TCP sender reacts after one, and its recovery ends after two;
/// a constant bit rate does not react, and meets the same full queue all that time.
pub const EVENT_ROUND_TRIPS: u64 = 2;
/// Time without data from which on the flow pauses: it counts in no window, and nothing progresses.
const PAUSE: Nanos = Nanos::SECOND;
/// Minimum length of a window in which losses are counted.
pub const MIN_WINDOW: Nanos = Nanos(1_000_000_000);
/// Minimum length of a window, in round-trip times.
pub const WINDOW_ROUND_TRIPS: u64 = 10;
/// Number of windows without loss after which a loss was transient.
pub const CLEAN_WINDOWS: usize = 3;
/// Number of bad windows among the last [`LAST_WINDOWS`] that are lasting congestion.
pub const BAD_WINDOWS: usize = 3;
/// Number of windows that are remembered.
pub const LAST_WINDOWS: usize = 5;
/// Number of successive severe windows by loss fraction that are lasting congestion.
pub const SEVERE_WINDOWS: usize = 2;
/// Loss fraction of a window above which it is severe.
pub const SEVERE_LOSS: f64 = 0.1;
/// Number of TCP flows above which the flow is severe.
pub const SEVERE_FLOWS: f64 = 10.0;
/// Default number of TCP flows that the flow may count as (k).
pub const WEIGHT: f64 = 3.0;
/// Minimum number of TCP flows that a flow may count as.
pub const MIN_WEIGHT: f64 = 0.01;
/// Maximum number of TCP flows that a flow may count as.
pub const MAX_WEIGHT: f64 = 10.0;
/// Default time for the application to act.
pub const GRACE: Nanos = Nanos(2_000_000_000);
/// Time that losses of the end host alone have no effect.
pub const HOST_GRACE: Nanos = Nanos(30_000_000_000);
/// Minimum and maximum time without loss before a step is tried again.
pub const MIN_HOLD: Nanos = Nanos(10_000_000_000);
/// Maximum time without loss before a step is tried again.
pub const MAX_HOLD: Nanos = Nanos(600_000_000_000);
/// Number of bad windows that end a trial.
pub const TRIAL_BAD_WINDOWS: u32 = 2;
/// Number of windows after which a trial has succeeded.
pub const TRIAL_WINDOWS: u32 = 5;
/// Minimum time without a report, or without progress, after which the rate is halved.
pub const SILENCE: Nanos = Nanos(2_000_000_000);
/// Number of missing reports after which the rate is halved.
pub const SILENT_REPORTS: u64 = 5;
/// Time without a report, or without progress, after which no data are sent.
pub const STOP: Nanos = Nanos(10_000_000_000);
/// Minimum time without data after a stop; it doubles with each further stop.
pub const MIN_BREAK: Nanos = Nanos(30_000_000_000);
/// Maximum time without data after a stop before a new attempt.
pub const MAX_BREAK: Nanos = Nanos(600_000_000_000);
/// Minimum time for the receiver to answer the first beats.
pub const START: Nanos = Nanos(3_000_000_000);
/// Fractions of the rate at which probes are sent before the data.
pub const RAMP: [f64; 4] = [0.125, 0.25, 0.5, 1.0];
/// Minimum time of each.
pub const RAMP_TIME: Nanos = Nanos(1_000_000_000);
/// Time of each, in round-trip times.
pub const RAMP_ROUND_TRIPS: u64 = 4;
/// Time for a datagram to arrive after the beat that announces it, or after one with a higher number.
pub const HOLD: Nanos = Nanos(100_000_000);
/// Default length of the blocks of time that are shed.
pub const BLOCK: Nanos = Nanos(100_000_000);
