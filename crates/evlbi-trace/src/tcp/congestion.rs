//! Laws of congestion control: how a window grows with what is acknowledged, and where it goes when something is lost.
//!
//! Each law is that of its paper or RFC with the constants of Linux 6.1, in whose kernels stations run it. Windows are in
//! segments, and need not be whole.
//!
//! Here belongs a further algorithm (CONTRIBUTING.md, "How to add").

mod bic;
mod cubic;
mod highspeed;
mod htcp;
mod scalable;
mod westwood;

use std::fmt;
use std::str::FromStr;

use evlbi_core::time::Nanos;

/// No window is smaller after a loss (RFC 5681, equation 4).
const SMALLEST: f64 = 2.0;

/// What a law knows of a connection when something is acknowledged or lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment {
    /// When.
    pub now: Nanos,
    /// Congestion window.
    pub window: f64,
    /// The latest.
    pub round_trip: Nanos,
    /// The shortest so far.
    pub shortest: Nanos,
}

/// What an acknowledgement covers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Acked {
    /// Segments that had not been acknowledged before.
    pub segments: f64,
    /// Acknowledgements that came.
    pub acks: f64,
    /// What the window grows by: the segments, or one for each acknowledgement in kernels that count these.
    pub counted: f64,
}

/// A law of congestion control: Reno's, where it says nothing else.
pub trait CongestionControl: fmt::Debug + Send {
    /// Beyond slow start, while the window is the limit: by how much the window grows. One segment for a window's worth of
    /// acknowledgements (RFC 5681, equation 3).
    fn grow(&mut self, moment: &Moment, acked: Acked) -> f64 {
        acked.counted / moment.window
    }

    /// Something is lost: what the window goes down to, and the threshold of slow start with it. Half of the window (RFC 5681,
    /// equation 4).
    fn reduce(&mut self, moment: &Moment) -> f64 {
        (moment.window / 2.0).max(SMALLEST)
    }

    /// Anything is acknowledged, in recovery or not.
    fn measure(&mut self, _moment: &Moment, _acked: Acked) {}

    /// A segment leaves while none is in flight, this long after the last one.
    fn resume(&mut self, _idle: Nanos) {}

    /// What was lost has been repaired: where the window goes on, if not from where [`CongestionControl::reduce`] said.
    fn recovered(&mut self, _moment: &Moment) -> Option<f64> {
        None
    }
}

/// RFC 5681.
#[derive(Debug)]
struct Reno;

impl CongestionControl for Reno {}

/// The laws there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// RFC 5681.
    Reno,
    /// Xu, Harfoush and Rhee 2004.
    Bic,
    /// RFC 9438.
    Cubic,
    /// Leith and Shorten 2004.
    HTcp,
    /// RFC 3649.
    HighSpeed,
    /// Kelly 2003.
    Scalable,
    /// Grieco and Mascolo 2004.
    Westwood,
}

impl Algorithm {
    /// Each of them.
    pub const ALL: [Algorithm; 7] = [
        Algorithm::Reno,
        Algorithm::Bic,
        Algorithm::Cubic,
        Algorithm::HTcp,
        Algorithm::HighSpeed,
        Algorithm::Scalable,
        Algorithm::Westwood,
    ];

    /// As Linux calls it, and how it begins.
    fn row(self) -> (&'static str, fn() -> Box<dyn CongestionControl>) {
        match self {
            Algorithm::Reno => ("reno", || Box::new(Reno)),
            Algorithm::Bic => ("bic", || Box::<bic::Bic>::default()),
            Algorithm::Cubic => ("cubic", || Box::<cubic::Cubic>::default()),
            Algorithm::HTcp => ("htcp", || Box::<htcp::HTcp>::default()),
            Algorithm::HighSpeed => ("highspeed", || Box::<highspeed::HighSpeed>::default()),
            Algorithm::Scalable => ("scalable", || Box::new(scalable::Scalable)),
            Algorithm::Westwood => ("westwood", || Box::<westwood::Westwood>::default()),
        }
    }

    /// As Linux calls it.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// A law at the beginning of a connection.
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
                "no law of congestion control is called `{text}`; there are {}",
                names.join(", ")
            )
        })
    }
}
