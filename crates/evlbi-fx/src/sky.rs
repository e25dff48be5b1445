//! Simulated stations: the VDIF that telescopes would record which look at one source of noise.
//!
//! A [`SkyPlan`] says what the stations have in common and how they differ; each [`Station`] of it writes
//! the frames that it would record, the same ones every time. Conventions:
//!
//! - A signal that a station receives at time t left the common reference at `t - tau(t)`:
//!   `s(t) = x(t - tau(t))`. A positive delay makes a station later. The delay is the station's `delay`
//!   plus its `clock`, both polynomials in the seconds since the start of the plan.
//! - The channel is mixed down from the sky frequency nu of its zero frequency, upper side band, so its
//!   fringe phase is `-2 pi nu tau(t)`, and `-2 pi f tau(t)` on top at the frequency f of the samples.
//! - Real samples at rate R fill 0 to R/2 above nu, complex ones at rate R fill -R/2 to R/2 about it.
//! - Two stations correlate with sqrt(share a * share b), the shares being those of the common signal in
//!   the power of each; before the losses of sampling.
//!
//! All noise is drawn by sample number (ChaCha8, seeded by the plan), so that a station is the same bytes
//! whenever and in whatever company it is made. On another kind of processor transforms round in another
//! way, which may tip the odd sample that lies at a threshold, one out of a million.
//!
//! The delay is held over blocks of 7680 real or 3840 complex samples, in whose middle it is exact, while
//! the fringe phase follows it sample by sample: at a delay rate of 1.5e-6, which is the fastest that the
//! Earth turns, it is off by at most 0.006 samples. The power of the error is then 43 dB below the common
//! signal; where the delay stands still, 80 dB. The common signal fills the channel but for slopes of 2 %
//! of it at its edges, as filters have them.
//!
//! Here belongs what a simulated source or station can do.

mod frames;
mod noise;
mod plan;
mod signal;

pub use self::frames::Generator;
pub use self::plan::{PhaseCal, PlanError, SkyPlan, StationPlan};

use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::{Header, Shape, StationId};

use crate::codec::Codec;

/// One station of a plan, ready to generate.
#[derive(Clone, Debug)]
pub struct Station {
    name: String,
    headers: Vec<Header>,
    shape: Shape,
    codec: Codec,
    frame_rate: FrameRate,
    start: i64,
    frames_per_thread: u64,
    /// In the order of the channels, those of thread 0 first.
    channels: Vec<signal::ChannelPlan>,
}

impl Station {
    /// Two-letter code.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Station identifier in the headers.
    pub fn id(&self) -> StationId {
        self.headers[0].key().station
    }

    /// Frame length, channels per thread, bits and the rest.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Length of a frame in bytes, header included.
    pub fn frame_length(&self) -> usize {
        self.shape.frame_length
    }

    /// Threads, numbered from 0. Their frames of the same time follow each other in this order.
    pub fn threads(&self) -> u16 {
        self.headers.len() as u16
    }

    /// Frames per second of each thread.
    pub fn frame_rate(&self) -> FrameRate {
        self.frame_rate
    }

    /// Bits per second of all threads, headers included.
    pub fn bit_rate(&self) -> u64 {
        let frames = u64::from(self.frame_rate.get()) * u64::from(self.threads());
        frames * 8 * self.frame_length() as u64
    }

    /// Frames of all threads together.
    pub fn total_frames(&self) -> u64 {
        self.frames_per_thread * u64::from(self.threads())
    }

    /// Time of the first frames.
    pub fn start(&self) -> FrameTime {
        FrameTime {
            second: self.start,
            frame: 0,
        }
    }

    /// Writes the station's frames from the first one on.
    pub fn generator(&self) -> Generator {
        Generator::new(self.clone())
    }
}
