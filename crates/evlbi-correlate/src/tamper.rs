//! Damages frames between a file and the correlator, as a lossy path would.

use evlbi_core::shed::{Replace, Shed, Unit};
use evlbi_fx::unpack::Recorded;

use super::arrived::Arrived;

/// A stage that sheds frames of one station and replaces them.
pub struct Tamper {
    shed: Shed,
    replace: Replace,
    /// Whether the reader loses step at each gap and recovers one frame later.
    loses_step: bool,
    /// Frames taken, and frames that the reader does not get.
    frames: u64,
    lost: u64,
    /// Whether the previous frame was shed.
    in_gap: bool,
    seed: u64,
    payload: Vec<u8>,
}

/// Effect of tampering on a station's frames.
#[derive(Clone, Copy, Debug)]
pub struct Tampered {
    /// Fraction of the frames that was shed, from 0 to 1.
    pub shed: f64,
    /// Fraction of the frames that the reader did not get.
    pub lost: f64,
}

impl Tamper {
    /// Creates a stage with the policy `shed`. With `loses_step` the first frame after each gap is lost too.
    pub fn new(shed: Shed, replace: Replace, seed: u64, loses_step: bool) -> Tamper {
        Tamper {
            shed,
            replace,
            // Replaced frames leave no gap.
            loses_step: loses_step && replace == Replace::Nothing,
            frames: 0,
            lost: 0,
            in_gap: false,
            seed,
            payload: Vec::new(),
        }
    }

    /// Returns the effect so far.
    pub(crate) fn done(&self) -> Tampered {
        Tampered {
            shed: self.shed.report().fraction,
            lost: self.lost as f64 / self.frames.max(1) as f64,
        }
    }

    /// Passes a frame or its replacement to `push`: whether it is invalid, and its samples.
    pub(crate) fn take(&mut self, frame: &Arrived<'_>, push: &mut dyn FnMut(bool, Recorded<'_>)) {
        let (invalid, payload) = (frame.invalid, frame.samples.samples());
        let unit = Unit::new(frame.key, Some(frame.time), payload);
        let shed = self.shed.decide(&unit);
        let out_of_step = self.loses_step && self.in_gap && !shed;
        self.in_gap = shed;
        self.frames += 1;
        self.lost += u64::from(shed || out_of_step);
        if out_of_step {
            return;
        }
        if !shed {
            push(invalid, frame.samples.clone());
            return;
        }
        self.payload.resize(payload.len(), 0);
        match self.replace {
            Replace::Nothing => {}
            Replace::Invalid => push(true, frame.samples.clone()),
            Replace::Fill | Replace::Random => {
                unit.replace(self.replace, self.seed, 0, 0, &mut self.payload);
                push(invalid, Recorded::from(&self.payload));
            }
        }
    }
}
