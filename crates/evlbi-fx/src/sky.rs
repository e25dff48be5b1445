//! Simulated stations: recordings of telescopes that observe one source of noise, in VDIF, Mark 5B or Mark 4.
//!
//! A [`SkyPlan`] defines what the stations have in common and how they differ; each [`Station`] of it generates the frames that
//! it would record, always the same ones. Conventions:
//!
//! - A signal that a station receives at time t left the common reference at `t - tau(t)`: `s(t) = x(t - tau(t))`. A positive
//!   delay makes a station later. The delay is the station's `delay` plus its `clock`, both polynomials in the seconds since the
//!   start of the plan.
//! - The channel is an upper sideband that is mixed down from the sky frequency nu of its zero frequency. So its fringe phase is
//!   `-2 pi nu tau(t)`, plus `-2 pi f tau(t)` at the frequency f of the samples.
//! - Real samples at rate R fill 0 to R/2 above nu, complex ones at rate R fill -R/2 to R/2 about it.
//! - Two stations correlate with sqrt(fraction a * fraction b), where the fractions are those of the common signal in the power
//!   of each, before the losses of sampling.
//!
//! All noise is generated from sample numbers (ChaCha8, seeded by the plan), so that a station consists of the same bytes
//! whenever and with whatever other stations it is made. On another kind of CPU transforms round differently, which may change
//! single samples that are at a threshold, about one in a million.
//!
//! The delay is constant over blocks of 7680 real or 3840 complex samples, in whose middle it is exact, while the fringe phase
//! follows it sample by sample. At a delay rate of 1.5e-6, the maximum due to the rotation of the Earth, the delay is off by at
//! most 0.006 samples. The power of the error is then 43 dB below the common signal; for a constant delay, 80 dB. The common
//! signal fills the channel except for slopes of 2 % of it at its edges, as filters have them.
//!
//! New properties of simulated sources and stations belong here.

mod frames;
mod noise;
mod plan;
mod signal;

pub use self::frames::Generator;
pub use self::plan::{Format, PhaseCal, PlanError, SkyPlan, StationPlan};

use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::StationId;

use crate::codec::Codec;

/// Station of a plan, ready to generate frames.
#[derive(Clone, Debug)]
pub struct Station {
    name: String,
    id: StationId,
    format: Format,
    /// Headers of the threads.
    heads: Vec<frames::Head>,
    frame_length: usize,
    complex: bool,
    codec: Codec,
    frame_rate: FrameRate,
    start: i64,
    frames_per_thread: u64,
    /// Plans of the channels, starting with those of thread 0.
    channels: Vec<signal::ChannelPlan>,
}

impl Station {
    /// Returns the two-letter code.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the station identifier in the headers.
    pub fn id(&self) -> StationId {
        self.id
    }

    /// Returns the format of the recording.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the number of channels of all threads.
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// Returns the length of a frame in bytes, header included.
    pub fn frame_length(&self) -> usize {
        self.frame_length
    }

    /// Returns the number of threads, which are numbered from 0. Their frames of the same time follow each other in this order.
    pub fn threads(&self) -> u16 {
        self.heads.len() as u16
    }

    /// Returns the frames per second of each thread.
    pub fn frame_rate(&self) -> FrameRate {
        self.frame_rate
    }

    /// Returns the bits per second of all threads, headers included.
    pub fn bit_rate(&self) -> u64 {
        let frames = u64::from(self.frame_rate.get()) * u64::from(self.threads());
        frames * 8 * self.frame_length() as u64
    }

    /// Returns the number of frames of all threads together.
    pub fn total_frames(&self) -> u64 {
        self.frames_per_thread * u64::from(self.threads())
    }

    /// Returns the time of the first frames.
    pub fn start(&self) -> FrameTime {
        FrameTime {
            second: self.start,
            frame: 0,
        }
    }

    /// Makes a generator of the station's frames, starting with the first one.
    pub fn generator(&self) -> Generator {
        Generator::new(self.clone())
    }
}
