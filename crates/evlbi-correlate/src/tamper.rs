//! Frames that are harmed on their way from a file to the correlator, as a lossy path would.

use evlbi_core::shed::{Replace, Shed, Unit};

use super::arrived::Arrived;

/// Sheds frames of one station and puts something in their place.
pub struct Tamper {
    shed: Shed,
    replace: Replace,
    /// A reader that loses step at each gap and finds it again one frame later.
    loses_step: bool,
    /// Frames that came in, and those that nobody reads.
    frames: u64,
    lost: u64,
    /// The frame before was shed.
    in_gap: bool,
    seed: u64,
    payload: Vec<u8>,
}

/// What tampering did to a station's frames.
#[derive(Clone, Copy, Debug)]
pub struct Tampered {
    /// Share of the frames that was shed, from 0 to 1.
    pub shed: f64,
    /// Share of the frames that nobody reads for it.
    pub lost: f64,
}

impl Tamper {
    /// Sheds as `shed` says. With `loses_step` the first frame after each gap is lost too.
    pub fn new(shed: Shed, replace: Replace, seed: u64, loses_step: bool) -> Tamper {
        Tamper {
            shed,
            replace,
            // What was replaced leaves no gap.
            loses_step: loses_step && replace == Replace::Nothing,
            frames: 0,
            lost: 0,
            in_gap: false,
            seed,
            payload: Vec::new(),
        }
    }

    /// What was done so far.
    pub(crate) fn done(&self) -> Tampered {
        Tampered {
            shed: self.shed.report().fraction,
            lost: self.lost as f64 / self.frames.max(1) as f64,
        }
    }

    /// Hands a frame, or what takes its place, to `push`: whether it is invalid, and its payload.
    pub(crate) fn take(&mut self, frame: &Arrived<'_>, push: &mut dyn FnMut(bool, &[u8])) {
        let Arrived {
            invalid, payload, ..
        } = *frame;
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
            push(invalid, payload);
            return;
        }
        self.payload.resize(payload.len(), 0);
        match self.replace {
            Replace::Nothing => {}
            Replace::Invalid => push(true, payload),
            Replace::Fill | Replace::Random => {
                unit.replace(self.replace, self.seed, 0, 0, &mut self.payload);
                push(invalid, &self.payload);
            }
        }
    }
}
