//! The data of a flow: when each datagram is offered, and which are shed.

use evlbi_core::shed::{Fraction, Policy, Shed, Stream, Unit};
use evlbi_core::time::Nanos;
use evlbi_proto::safe::{BLOCK, Order, Progress, Step};
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::StreamKey;

/// Data at a constant rate, in blocks of time.
pub(super) struct Source {
    pub(super) rate: FrameRate,
    pub(super) begins: Option<Nanos>,
    pub(super) next: u64,
    pub(super) shed: Option<Shed>,
    pub(super) step: Option<Step>,
    pub(super) is_stopped: bool,
    /// When the next kept datagram may leave.
    pub(super) free: Nanos,
    /// From this number and time on, this part of the rate.
    pub(super) slowed: Option<(u64, Nanos, f64)>,
    pub(super) spreads: bool,
    pub(super) spacing: Nanos,
    pub progress: Progress,
    pub end: Option<Nanos>,
}

impl Source {
    /// Returns when the next datagram is offered.
    pub(super) fn next_at(&self) -> Option<Nanos> {
        let due = match self.slowed {
            Some((from, at, part)) => {
                let span = self.nominal(self.next - from).0 as f64 / part;
                at.plus(Nanos(span as u64))
            }
            None => self.begins?.plus(self.nominal(self.next)),
        };
        (self.end.is_none_or(|end| due < end)).then_some(due)
    }

    /// Offers this fraction of the rate from `now` on.
    pub(super) fn slow(&mut self, part: f64, now: Nanos) {
        self.slowed = Some((self.next, now, part));
    }

    /// Returns when the next kept datagram may leave.
    pub(super) fn free(&self) -> Nanos {
        match self.spreads {
            true => self.free,
            false => Nanos(0),
        }
    }

    pub(super) fn nominal(&self, number: u64) -> Nanos {
        let nanos = u128::from(number) * 1_000_000_000 / u128::from(self.rate.get());
        Nanos(nanos as u64)
    }

    pub(super) fn set(&mut self, order: Order) {
        let Order::Send(step) = order else {
            self.is_stopped = true;
            return;
        };
        self.is_stopped = false;
        if self.step == Some(step) {
            return;
        }
        self.step = Some(step);
        let parts = u64::from(step.sixteenths()) * (Fraction::ONE / 16);
        let stream = Stream {
            rate: None,
            unit_bytes: 1,
            wire_bytes: 1,
            threads: vec![0],
            frame_rate: Some(self.rate),
        };
        self.shed = Fraction::new(parts).map(|kept| {
            let block = std::time::Duration::from_nanos(BLOCK.0);
            Shed::new(Policy::Keep { kept, block }, 0, &stream).unwrap()
        });
    }

    /// Returns whether the next datagram is shed.
    pub(super) fn decide(&mut self) -> bool {
        let time = FrameTime::from_index(self.next as i64, self.rate);
        let unit = Unit::new(StreamKey::default(), Some(time), &[]);
        let is_shed = self.shed.as_mut().is_some_and(|shed| shed.decide(&unit));
        is_shed || self.is_stopped
    }
}
