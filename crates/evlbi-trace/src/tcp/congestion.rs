//! Congestion control algorithms: how a window grows with acknowledged data, and how it shrinks after a loss.
//!
//! Each algorithm follows its paper or RFC with the constants of Linux 6.1, whose kernels stations run. Windows are in segments,
//! and may be fractional.
//!
//! New algorithms belong here (CONTRIBUTING.md, "How to add").

pub mod bbr;
mod bic;
mod cubic;
mod highspeed;
mod htcp;
mod scalable;
mod westwood;

use std::fmt;
use std::str::FromStr;

use super::info::Phase;
use evlbi_core::time::Nanos;

/// Minimum window after a loss, in segments (RFC 5681, equation 4).
const SMALLEST: f64 = 2.0;

/// State of a connection at an acknowledgement or a loss.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment {
    /// Current time.
    pub now: Nanos,
    /// Congestion window.
    pub window: f64,
    /// Latest round-trip time.
    pub round_trip: Nanos,
    /// Minimum round-trip time so far.
    pub shortest: Nanos,
}

/// Coverage of an acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Acked {
    /// Segments acknowledged for the first time.
    pub segments: f64,
    /// Number of acknowledgements.
    pub acks: f64,
    /// Unit of window growth: the segments, or one per acknowledgement in kernels that count these.
    pub counted: f64,
}

/// Content of an acknowledgement for an algorithm that models the path.
#[derive(Clone, Copy, Debug)]
pub struct Delivered {
    /// When it arrived.
    pub now: Nanos,
    /// Congestion window.
    pub window: f64,
    /// Segments that it newly covers.
    pub newly: f64,
    /// Segments delivered so far.
    pub total: u64,
    /// Segments that had been delivered when the newest segment that it covers was sent.
    pub before: u64,
    /// Delivery rate in segments per second; `None` if the acknowledgement gives no sample.
    pub rate: Option<f64>,
    /// Whether the application had nothing to send meanwhile.
    pub is_limited: bool,
    /// Round-trip time, if it covers anything new.
    pub round_trip: Option<Nanos>,
    /// Segments found to be lost by it.
    pub lost: u64,
    /// Segments in flight before it.
    pub flight_before: f64,
    /// Segments in flight now.
    pub in_flight: f64,
    /// State of repair.
    pub phase: Phase,
}

/// Window and pacing of an algorithm that models the path.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    /// Congestion window.
    pub window: f64,
    /// Segments per second.
    pub pacing: f64,
    /// Whether delivery rates count as limited by the application from now on.
    pub is_limited: bool,
}

/// Congestion control algorithm; the default methods are Reno's.
pub trait CongestionControl: fmt::Debug + Send {
    /// Returns by how much the window grows after slow start, while the window is the limit. Default: one segment per window of
    /// acknowledgements (RFC 5681, equation 3).
    fn grow(&mut self, moment: &Moment, acked: Acked) -> f64 {
        acked.counted / moment.window
    }

    /// Returns the window after a loss, which is also the new threshold of slow start. Default: half of the window (RFC 5681,
    /// equation 4).
    fn reduce(&mut self, moment: &Moment) -> f64 {
        (moment.window / 2.0).max(SMALLEST)
    }

    /// Notes any acknowledgement, in recovery or not.
    fn measure(&mut self, _moment: &Moment, _acked: Acked) {}

    /// Notes that a segment leaves while none is in flight, this long after the last one.
    fn resume(&mut self, _idle: Nanos) {}

    /// Sets window and pacing after an acknowledgement, for an algorithm that sets both by itself (Linux, cong_control). The
    /// window then neither grows nor is reduced otherwise.
    fn control(&mut self, _taken: &Delivered) -> Option<Control> {
        None
    }

    /// Handles a retransmission timeout.
    fn timed_out(&mut self) {}

    /// Returns the window after the repair of a loss, if it differs from what [`CongestionControl::reduce`] returned.
    fn recovered(&mut self, _moment: &Moment) -> Option<f64> {
        None
    }
}

/// Reno (RFC 5681).
#[derive(Debug)]
struct Reno;

impl CongestionControl for Reno {}

/// Available congestion control algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// Reno (RFC 5681).
    Reno,
    /// BIC (Xu, Harfoush and Rhee 2004).
    Bic,
    /// CUBIC (RFC 9438).
    Cubic,
    /// H-TCP (Leith and Shorten 2004).
    HTcp,
    /// HighSpeed TCP (RFC 3649).
    HighSpeed,
    /// Scalable TCP (Kelly 2003).
    Scalable,
    /// Westwood+ (Grieco and Mascolo 2004).
    Westwood,
    /// Cardwell et al. 2016, version 1.
    Bbr,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 8] = [
        Algorithm::Reno,
        Algorithm::Bic,
        Algorithm::Cubic,
        Algorithm::HTcp,
        Algorithm::HighSpeed,
        Algorithm::Scalable,
        Algorithm::Westwood,
        Algorithm::Bbr,
    ];

    /// Returns its name in Linux, and its constructor.
    fn row(self) -> (&'static str, fn() -> Box<dyn CongestionControl>) {
        match self {
            Algorithm::Reno => ("reno", || Box::new(Reno)),
            Algorithm::Bic => ("bic", || Box::<bic::Bic>::default()),
            Algorithm::Cubic => ("cubic", || Box::<cubic::Cubic>::default()),
            Algorithm::HTcp => ("htcp", || Box::<htcp::HTcp>::default()),
            Algorithm::HighSpeed => ("highspeed", || Box::<highspeed::HighSpeed>::default()),
            Algorithm::Scalable => ("scalable", || Box::new(scalable::Scalable)),
            Algorithm::Westwood => ("westwood", || Box::<westwood::Westwood>::default()),
            Algorithm::Bbr => ("bbr", || Box::<bbr::Bbr>::default()),
        }
    }

    /// Returns its name in Linux.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// Returns the interval at which it empties the path to measure the round-trip time, if it does.
    pub fn probe_interval(self) -> Option<Nanos> {
        (self == Algorithm::Bbr).then_some(bbr::ROUND_TRIP_LENGTH)
    }

    /// Makes the algorithm in its initial state.
    pub fn begin(self) -> Box<dyn CongestionControl> {
        self.row().1()
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(text: &str) -> Result<Algorithm, String> {
        let named = Algorithm::ALL.into_iter().find(|one| one.name() == text);
        named.ok_or_else(|| {
            let names = Algorithm::ALL.map(Algorithm::name);
            format!(
                "unknown congestion control algorithm `{text}`: use one of {}",
                names.join(", ")
            )
        })
    }
}
