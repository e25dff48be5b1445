//! Noise by number: any part of an endless Gaussian sequence, calculated from its position alone.

use std::sync::LazyLock;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustfft::num_complex::Complex32;

/// Word number of the start of a plan: half of the words are before it, for signals that arrive early.
const ORIGIN: i64 = 1 << 60;

/// Bits of a word that select a value of the table.
const INDEX_BITS: u32 = 12;

/// White sequence of complex numbers; both components are standard normal and independent.
///
/// Sample `n` depends only on word `n` of a ChaCha8 key stream, so two stations, or two runs that start at different places, have
/// the same noise at the same `n`.
pub(super) struct Noise {
    words: ChaCha8Rng,
    bytes: Vec<u8>,
}

impl Noise {
    /// Makes a sequence; each `stream` of a seed is a different one.
    pub(super) fn new(seed: u64, stream: u64) -> Noise {
        let mut words = ChaCha8Rng::seed_from_u64(seed);
        words.set_stream(stream);
        Noise {
            words,
            bytes: Vec::new(),
        }
    }

    /// Generates the samples from number `first` on.
    pub(super) fn fill(&mut self, first: i64, samples: &mut [Complex32]) {
        self.bytes.resize(4 * samples.len(), 0);
        self.words
            .set_word_pos(first.saturating_add(ORIGIN).max(0) as u128);
        self.words.fill_bytes(&mut self.bytes);
        let (words, _) = self.bytes.as_chunks::<4>();
        let table = &*NORMAL;
        for (sample, word) in samples.iter_mut().zip(words) {
            let word = u32::from_le_bytes(*word);
            let a = table[(word >> (16 - INDEX_BITS)) as usize % table.len()];
            let b = table[(word >> (32 - INDEX_BITS)) as usize % table.len()];
            // Sum and difference of two independent normal numbers are independent, too.
            *sample = Complex32::new(a + b, a - b);
        }
    }
}

/// Normal distribution in equal shares: the value in the middle of each, scaled so that the sum of two has variance 1. Sums of
/// two reach 5.2 sigma.
static NORMAL: LazyLock<[f32; 1 << INDEX_BITS]> = LazyLock::new(|| {
    let mut upper = [0.0f64; 1 << (INDEX_BITS - 1)];
    let share = 1.0 / f64::from(1 << INDEX_BITS);
    let mut x = 0.0;
    x = quantile_after(x, share / 2.0);
    for value in &mut upper {
        *value = x;
        x = quantile_after(x, share);
    }
    let mean_square = upper.iter().map(|x| x * x).sum::<f64>() / upper.len() as f64;
    let scale = (0.5 / mean_square).sqrt();
    let mut table = [0.0; 1 << INDEX_BITS];
    for (pair, x) in table.as_chunks_mut::<2>().0.iter_mut().zip(upper) {
        *pair = [(x * scale) as f32, -(x * scale) as f32];
    }
    table
});

/// Returns the point up to which the normal distribution contains `share` more than up to `x`: dx/dp = sqrt(2 pi) exp(x^2 / 2) in
/// eight Runge-Kutta steps.
fn quantile_after(mut x: f64, share: f64) -> f64 {
    let slope = |x: f64| (std::f64::consts::TAU).sqrt() * (x * x / 2.0).exp();
    let step = share / 8.0;
    for _ in 0..8 {
        let k1 = slope(x);
        let k2 = slope(x + step / 2.0 * k1);
        let k3 = slope(x + step / 2.0 * k2);
        let k4 = slope(x + step * k3);
        x += step / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4);
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(seed: u64, stream: u64, first: i64, count: usize) -> Vec<Complex32> {
        let mut samples = vec![Complex32::default(); count];
        Noise::new(seed, stream).fill(first, &mut samples);
        samples
    }

    #[test]
    fn a_sample_depends_on_its_number_alone() {
        let all = samples(7, 3, -100, 1000);
        assert_eq!(samples(7, 3, -37, 50), all[63..113]);
        assert_eq!(samples(7, 3, 801, 1), all[901..902]);
        assert_ne!(samples(7, 2, -100, 1000), all);
        assert_ne!(samples(8, 3, -100, 1000), all);
    }

    #[test]
    fn quantiles_are_those_of_the_normal_distribution() {
        // Abramowitz and Stegun, table 26.1: P(3) = 0.998650.
        let x = (0..1000).fold(0.0, |x, _| quantile_after(x, 0.498_650_102e-3));
        assert!((x - 3.0).abs() < 1e-6, "{x}");
        let table = &*NORMAL;
        let largest = table.iter().copied().fold(0.0, f32::max);
        // The middle of the last interval: P(x) = 1 - 1/8192, x = 3.667.
        assert!(
            (largest * 2f32.sqrt() / 3.667 - 1.0).abs() < 2e-3,
            "{largest}"
        );
    }

    #[test]
    fn moments_are_those_of_white_normal_noise() {
        let samples = samples(1, 1, 0, 1 << 20);
        let count = samples.len() as f64;
        let mean = |f: &dyn Fn(f64, f64) -> f64| {
            let sum: f64 = samples
                .iter()
                .map(|z| f(f64::from(z.re), f64::from(z.im)))
                .sum();
            sum / count
        };
        // Five sigma of each moment.
        let within = |value: f64, expected: f64, variance: f64| {
            let sigma = (variance / count).sqrt();
            assert!((value - expected).abs() < 5.0 * sigma, "{value} {expected}");
        };
        within(mean(&|x, _| x), 0.0, 1.0);
        within(mean(&|_, y| y), 0.0, 1.0);
        within(mean(&|x, _| x * x), 1.0, 2.0);
        within(mean(&|x, y| x * y), 0.0, 1.0);
        within(mean(&|x, y| x * x * y * y), 1.0, 8.0);
        within(mean(&|x, _| x.powi(4)), 3.0, 96.0);
        let beyond = |sigmas: f64| mean(&|x, _| f64::from(u8::from(x.abs() > sigmas)));
        within(beyond(1.0), 0.317_311, 0.2166);
        within(beyond(3.0), 0.002_700, 0.0027);
        let next: f64 = samples
            .windows(2)
            .map(|two| f64::from(two[0].re * two[1].re))
            .sum();
        within(next / count, 0.0, 1.0);
    }
}
