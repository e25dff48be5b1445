//! Nested shedding: what a fraction keeps, every larger fraction keeps too, at every station. So stations that keep different fractions
//! have the smaller one in common, and not their product.

use evlbi_wire::time::FrameRate;

use super::{Fraction, ShedError, Stream, Unit};

/// Choice of the units of one fraction.
#[derive(Clone, Debug)]
pub(super) struct Keep {
    /// Threads of the stream, ascending.
    threads: Vec<u16>,
    /// Number of threads that are kept whole: the lowest ones.
    whole: usize,
    /// Fraction of the blocks of the next thread that is kept, in units of 2^-64.
    rest: u128,
    seed: u64,
    blocks: Blocks,
}

/// Numbering of the blocks.
#[derive(Clone, Debug)]
enum Blocks {
    /// By the time of the data since 1970, in blocks of this many nanoseconds.
    Time { nanos: u64, rate: FrameRate },
    /// By the number of units so far, for data without times.
    Units { length: u64, count: u64 },
}

impl Keep {
    pub fn new(kept: Fraction, nanos: u128, seed: u64, stream: &Stream) -> Result<Keep, ShedError> {
        let mut threads = stream.threads.clone();
        threads.sort_unstable();
        threads.dedup();
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        let blocks = match (stream.frame_rate, stream.rate) {
            (Some(rate), _) => Blocks::Time { nanos, rate },
            (None, Some(rate)) => Blocks::Units {
                length: rate
                    .bytes_in(nanos)
                    .div_ceil(stream.unit_bytes.max(1))
                    .max(1),
                count: 0,
            },
            (None, None) => return Err(ShedError::NoBlocks),
        };
        let one = u128::from(Fraction::ONE);
        let parts = u128::from(kept.0) * threads.len().max(1) as u128;
        Ok(Keep {
            whole: (parts / one) as usize,
            rest: ((parts % one) << 64) / one,
            threads,
            seed,
            blocks,
        })
    }

    /// Returns whether to shed the next unit.
    pub fn decide(&mut self, unit: &Unit) -> bool {
        let block = match &mut self.blocks {
            Blocks::Time { nanos, rate } => unit
                .time
                .map(|time| time.nanos(*rate).div_euclid(i128::from(*nanos)) as u64),
            Blocks::Units { length, count } => {
                *count += 1;
                Some((*count - 1) / *length)
            }
        };
        let rank = match self.threads.len() {
            0 => 0,
            _ => self.threads.partition_point(|it| *it < unit.key.thread),
        };
        if rank != self.whole {
            return rank > self.whole;
        }
        // Blocks in bit-reversed order: any fraction is spread evenly, and each contains every smaller one.
        block.is_some_and(|block| {
            u128::from(block.wrapping_add(self.seed).reverse_bits()) >= self.rest
        })
    }
}
