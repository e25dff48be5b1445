//! Sums of correlated blocks.

use evlbi_wire::validity::Intervals;
use rustfft::num_complex::Complex64;

use super::block::{Block, Good};
use super::setup::{Input, Setup};
use super::spectrum::Spectrograph;

/// Sums over blocks. Spectra are not normalised: a band whose samples have the mean square p adds `C p n` to the sum of its
/// channels, for a block of C channels and n samples.
#[derive(Clone, Debug)]
pub struct Sums {
    /// Number of blocks, including those without data.
    pub blocks: u64,
    /// Sums of each input, in the order of [`Setup::inputs`].
    pub inputs: Vec<InputSums>,
    /// Sums of each product, in the order of [`Setup::products`].
    pub products: Vec<ProductSums>,
}

/// Sums of one input.
#[derive(Clone, Debug, Default)]
pub struct InputSums {
    /// Power of each channel, in ascending sky frequency.
    pub power: Vec<f64>,
    /// Sum of the squares of all valid samples, times the number of channels: comparable with the sum of `power`.
    pub energy: f64,
    /// Number of valid parts.
    pub good: u64,
}

/// Sums of one product A conj(B).
#[derive(Clone, Debug, Default)]
pub struct ProductSums {
    /// Sum of each channel, in ascending sky frequency.
    pub values: Vec<Complex64>,
    /// Number of parts in which both inputs were valid.
    pub overlap: u64,
    /// Sum of the squared samples of A in these parts, times the number of channels.
    pub energy_a: f64,
    /// The same for B.
    pub energy_b: f64,
}

impl Sums {
    /// Makes empty sums.
    pub fn new(setup: &Setup) -> Sums {
        let input = |_| InputSums {
            power: vec![0.0; setup.channels()],
            ..InputSums::default()
        };
        let product = |_| ProductSums {
            values: vec![Complex64::default(); setup.channels()],
            ..ProductSums::default()
        };
        Sums {
            blocks: 0,
            inputs: setup.inputs().map(input).collect(),
            products: setup.products().iter().map(product).collect(),
        }
    }

    /// Adds the sums of other blocks of the same setup.
    pub fn add(&mut self, other: &Sums) {
        self.blocks += other.blocks;
        for (ours, theirs) in self.inputs.iter_mut().zip(&other.inputs) {
            for (ours, theirs) in ours.power.iter_mut().zip(&theirs.power) {
                *ours += theirs;
            }
            ours.energy += theirs.energy;
            ours.good += theirs.good;
        }
        for (ours, theirs) in self.products.iter_mut().zip(&other.products) {
            for (ours, theirs) in ours.values.iter_mut().zip(&theirs.values) {
                *ours += theirs;
            }
            ours.overlap += theirs.overlap;
            ours.energy_a += theirs.energy_a;
            ours.energy_b += theirs.energy_b;
        }
    }

    /// Adds the valid parts of `count` blocks like this one, for each input and for each pair.
    pub(super) fn add_goods(
        &mut self,
        setup: &Setup,
        block: &Block,
        count: i64,
        spectra: &mut Spectrograph,
    ) {
        let whole = count * setup.block_parts();
        for (index, input) in setup.inputs().enumerate() {
            let sums = &mut self.inputs[index];
            sums.good += match block.good(setup, input) {
                Good::All => whole as u64,
                Good::Nothing => continue,
                Good::Some(parts) => parts.total(),
            };
            sums.energy += spectra.energy(index);
        }
        for (product, sums) in setup.products().iter().zip(&mut self.products) {
            let energy = |input: Input, parts: Option<&Intervals>| match parts {
                None => spectra.energy(setup.index(input)),
                Some(parts) => spectra.energy_in(setup, input, parts),
            };
            let mut add = |overlap: u64, parts: Option<&Intervals>| {
                sums.overlap += overlap;
                sums.energy_a += energy(product.a, parts);
                sums.energy_b += energy(product.b, parts);
            };
            match (block.good(setup, product.a), block.good(setup, product.b)) {
                (Good::All, Good::All) => add(whole as u64, None),
                (Good::Some(a), Good::Some(b)) => {
                    let both = a.intersect(b);
                    add(both.total(), Some(&both));
                }
                (Good::Some(one), Good::All) | (Good::All, Good::Some(one)) => {
                    add(one.total(), Some(one));
                }
                _ => {}
            }
        }
        spectra.forget();
    }
}
