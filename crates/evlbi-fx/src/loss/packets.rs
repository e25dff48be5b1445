//! Theory of frames that lose packets: what a reader keeps of them that needs their headers.
//!
//! A frame consists of n packets of equal length, of which the first h contain its header. They contain the fraction w of its samples: one
//! packet of Mark 4 with its header of 1/125 of the frame has h = 1 and w = (125 - n) / (124 n). Each packet is lost with probability p,
//! independently of all others; q = 1 - p. A header is intact if its packets arrived, with probability b = q^h.
//!
//! **The reader is in step or not.** It stays in step for m frames in a row without a header; at the next one it loses step. Then it drops
//! frames, that one included, until g in a row have headers, and keeps the last of them. From being in step until m + 1 frames in a row
//! lack a header there are on average, with a = 1 - b,
//!
//! t = (1 - a^(m+1)) / (b a^(m+1))
//!
//! frames, and from there until g in a row have one u = (1 - b^g) / (a b^g): waiting times for runs (Feller, An Introduction to Probability
//! Theory and Its Applications I, XIII.7). Of each cycle of t + u frames the reader drops u. So it keeps the fraction
//!
//! k = t / (t + u)
//!
//! of the frames. Of these t frames, a t - 1 lack their header: each of the t with probability a, and the last of them is dropped.
//!
//! - A flywheel (m without limit) has k = 1 and keeps the fraction q of the samples, whatever n and h are.
//! - A reader that drops frames without a header (m = 0, g = 1) has k = b. In frames with a header its packets are intact, so it keeps
//!   b (w + (1 - w) q) of the samples: q^2 for one of many packets.
//! - One that drops N more (m = 0, g = N + 1) keeps a frame if it and the N before it have their headers: k = b^(N+1).
//!
//! **Lost packets that count as samples** have the fraction f = 1 - (intact / k) of the samples that the reader keeps, and all others are
//! missing: see [`Ratios::flagged`](super::Ratios::flagged). If they are recognised, all but the intact ones are missing.
//!
//! Theories of losses that are not independent belong here.

/// A frame that is sent as packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packets {
    /// Length of the frame with its header, in bytes.
    pub frame: usize,
    /// Length of the header, in bytes.
    pub header: usize,
    /// Length of a packet, in bytes, which divides that of the frame.
    pub packet: usize,
}

/// Need of a reader for headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Number of frames in a row without a header for which it stays in step; `None` if it always does.
    pub missing: Option<u32>,
    /// Number of frames in a row with a header, the last of which it keeps once it is in step again: from 1.
    pub needed: u32,
}

/// Fractions that a reader keeps, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept {
    /// Frames.
    pub frames: f64,
    /// Samples that are intact, of all.
    pub intact: f64,
}

impl Packets {
    /// Returns what the reader keeps if each packet is lost with probability `loss`, independently of all others.
    pub fn kept(self, loss: f64, step: Step) -> Kept {
        let p = loss.clamp(0.0, 1.0);
        let q = 1.0 - p;
        let with_header = self.header.div_ceil(self.packet.max(1)).max(1);
        let b = q.powi(with_header as i32);
        let a = 1.0 - b;
        let (frames, headers) = match step.missing {
            Some(missing) if a > 0.0 => {
                let out = a.powf(f64::from(missing) + 1.0);
                let back = b.powf(f64::from(step.needed.max(1)));
                // The cycle in units of 1 / (out back), which are finite for all losses.
                let t = ratio(1.0 - out, b) * back;
                let u = ratio(1.0 - back, a) * out;
                (ratio(t, t + u), ratio(b * t + out * back, t + u))
            }
            _ => (1.0, b),
        };
        let samples = self.frame.saturating_sub(self.header) as f64;
        let w = ((with_header * self.packet) as f64 - self.header as f64) / samples;
        // Of the packets of a header that is not intact, fewer than all are lost.
        let damaged = ratio(q - b, a);
        let intact = w * (headers + (frames - headers) * damaged) + (1.0 - w) * q * frames;
        Kept { frames, intact }
    }
}

fn ratio(above: f64, below: f64) -> f64 {
    if below == 0.0 { 0.0 } else { above / below }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    const FLYWHEEL: Step = Step {
        missing: None,
        needed: 1,
    };

    /// Mark 4 of 8 tracks.
    fn mark4(parts: usize) -> Packets {
        Packets {
            frame: 20_000,
            header: 160,
            packet: 20_000 / parts,
        }
    }

    fn drop(more: u32) -> Step {
        Step {
            missing: Some(0),
            needed: more + 1,
        }
    }

    #[test]
    fn known_cases() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        for parts in [1, 8, 125, 250] {
            let kept = mark4(parts).kept(0.2, FLYWHEEL);
            near(kept.frames, 1.0);
            near(kept.intact, 0.8);
        }
        let kept = mark4(8).kept(0.2, drop(0));
        let w = (125.0 - 8.0) / (124.0 * 8.0);
        near(kept.frames, 0.8);
        near(kept.intact, 0.8 * (w + (1.0 - w) * 0.8));
        // A packet that is the header.
        near(mark4(125).kept(0.2, drop(0)).intact, 0.64);
        // A header in two packets.
        near(mark4(250).kept(0.2, drop(0)).frames, 0.64);
        near(mark4(8).kept(0.2, drop(2)).frames, 0.8f64.powi(3));
        // A packet that is a frame.
        near(mark4(1).kept(0.2, drop(0)).intact, 0.8);
        for step in [FLYWHEEL, drop(0), drop(8)] {
            near(mark4(8).kept(0.0, step).intact, 1.0);
            near(mark4(8).kept(1.0, step).intact, 0.0);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        /// A reader that counts headers, frame by frame, keeps what the theory predicts.
        #[test]
        fn kept_is_what_a_reader_keeps(
            parts in prop::sample::select(vec![1usize, 8, 125, 250]),
            loss in 0.02f64..0.4,
            missing in 0u32..3,
            needed in 1u32..4,
            seed: u64,
        ) {
            const FRAMES: usize = 20_000;
            let packets = mark4(parts);
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let (mut is_in_step, mut misses, mut found) = (true, 0, 0);
            let (mut frames, mut intact) = (0usize, 0usize);
            for _ in 0..FRAMES {
                let lost: Vec<bool> = (0..parts).map(|_| rng.random::<f64>() < loss).collect();
                let range = |number: usize| {
                    let from = (number * packets.packet).max(packets.header);
                    ((number + 1) * packets.packet).saturating_sub(from)
                };
                let is_cut = lost.iter().enumerate().any(|(number, lost)| {
                    *lost && number * packets.packet < packets.header
                });
                (misses, found) = if is_cut { (misses + 1, 0) } else { (0, found + 1) };
                is_in_step = if is_in_step { misses <= missing } else { found >= needed };
                if is_in_step {
                    frames += 1;
                    let arrived = lost.iter().enumerate().filter(|(_, lost)| !**lost);
                    intact += arrived.map(|(number, _)| range(number)).sum::<usize>();
                }
            }
            let kept = packets.kept(loss, Step { missing: Some(missing), needed });
            let all = FRAMES as f64;
            // Runs are correlated over a few frames.
            let error = 5.0 * (f64::from(2 * needed + missing) / all).sqrt();
            let found = frames as f64 / all;
            prop_assert!((found - kept.frames).abs() < error, "{found} {kept:?}");
            let found = intact as f64 / (all * 19_840.0);
            prop_assert!((found - kept.intact).abs() < error, "{found} {kept:?}");
        }
    }
}
