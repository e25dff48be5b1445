//! What sampling in few bits does to a correlation.
//!
//! Two Gaussian signals with the correlation coefficient rho correlate after sampling with
//! `r = sum c_k d_k rho^k / sqrt(p q)`: c_k and d_k are the coefficients of the samplers' steps in Hermite
//! polynomials, p and q their powers (Mehler's formula; Price 1958; Thompson, Moran & Swenson, chapter 8). For one
//! bit that is Van Vleck's `(2/pi) asin rho`. For small rho it is `efficiency * rho`.
//!
//! The curve is that of one product of real samples. An amplitude that is averaged over a band whose signal is not
//! white is corrected by it nearly, not exactly.

use std::f64::consts::{PI, TAU};

use crate::codec::Codec;

/// Terms of the series.
const TERMS: usize = 300;

/// Mean square of the levels when Gaussian noise of the rms that the codec means is sampled.
pub fn power(codec: Codec) -> f64 {
    Steps::of(codec).power
}

/// What is left of a small correlation, and of its signal-to-noise ratio: 0.637 for one bit at both, 0.88 for two.
pub fn efficiency(a: Codec, b: Codec) -> f64 {
    let (a, b) = (Steps::of(a), Steps::of(b));
    a.coefficients[0] * b.coefficients[0] / (a.power * b.power).sqrt()
}

/// The correlation coefficient after sampling, of one before it.
pub fn sampled(rho: f64, a: Codec, b: Codec) -> f64 {
    if a.bits() == 1 && b.bits() == 1 {
        return rho.clamp(-1.0, 1.0).asin() * 2.0 / PI;
    }
    Curve::new(a, b).at(rho)
}

/// The correlation coefficient before sampling, of one after it: the inverse of [`sampled`].
pub fn corrected(r: f64, a: Codec, b: Codec) -> f64 {
    if a.bits() == 1 && b.bits() == 1 {
        return (r.clamp(-1.0, 1.0) * PI / 2.0).sin();
    }
    let curve = Curve::new(a, b);
    // Levels that lie unevenly about zero make the two sides differ.
    let on_its_side = |rho: f64| curve.at(rho.copysign(r)).abs();
    let wanted = r.abs();
    if wanted >= on_its_side(1.0) {
        return 1f64.copysign(r);
    }
    // It grows steadily.
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if on_its_side(middle) < wanted {
            low = middle;
        } else {
            high = middle;
        }
    }
    ((low + high) / 2.0).copysign(r)
}

/// A sampler as steps in units of the rms of the signal.
struct Steps {
    power: f64,
    /// Of the normalised Hermite polynomials from the first on.
    coefficients: Vec<f64>,
}

impl Steps {
    fn of(codec: Codec) -> Steps {
        // From the lowest level to the highest, and the thresholds between them.
        let mut levels: Vec<f64> = codec
            .levels()
            .iter()
            .map(|level| f64::from(*level))
            .collect();
        levels.sort_by(f64::total_cmp);
        let thresholds = codec.thresholds();
        let mut coefficients = vec![0.0; TERMS];
        for (pair, threshold) in levels.windows(2).zip(&thresholds) {
            let weight = (pair[1] - pair[0]) * (-threshold * threshold / 2.0).exp() / TAU.sqrt();
            let (mut before, mut hermite) = (0.0, 1.0);
            for (order, coefficient) in (1..).zip(&mut coefficients) {
                *coefficient += weight * hermite / f64::sqrt(f64::from(order));
                let next = (threshold * hermite - f64::sqrt(f64::from(order - 1)) * before)
                    / f64::sqrt(f64::from(order));
                (before, hermite) = (hermite, next);
            }
        }
        let below = |threshold: f64| 0.5 * erfc(-threshold / 2f64.sqrt());
        let mut power = 0.0;
        let mut lower = 0.0;
        for (place, level) in levels.iter().enumerate() {
            let upper = thresholds.get(place).map_or(1.0, |t| below(*t));
            power += level * level * (upper - lower);
            lower = upper;
        }
        Steps {
            power,
            coefficients,
        }
    }
}

struct Curve {
    /// Of the powers of rho from the first on, normalised.
    terms: Vec<f64>,
}

impl Curve {
    fn new(a: Codec, b: Codec) -> Curve {
        let (a, b) = (Steps::of(a), Steps::of(b));
        let scale = (a.power * b.power).sqrt();
        let products = a.coefficients.iter().zip(&b.coefficients);
        Curve {
            terms: products.map(|(c, d)| c * d / scale).collect(),
        }
    }

    fn at(&self, rho: f64) -> f64 {
        let rho = rho.clamp(-1.0, 1.0);
        let terms = self.terms.iter().rev();
        rho * terms.fold(0.0, |sum, term| sum * rho + term)
    }
}

/// Complementary error function to 1e-12: series below 3, continued fraction above.
fn erfc(x: f64) -> f64 {
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    if x > 3.0 {
        let fraction = (1..60)
            .rev()
            .fold(0.0, |below, n| f64::from(n) / 2.0 / (x + below));
        return (-x * x).exp() / PI.sqrt() / (x + fraction);
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..100 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    1.0 - 2.0 / PI.sqrt() * sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn vdif(bits: u8) -> Codec {
        Codec::vdif(bits).unwrap()
    }

    #[test]
    fn known_efficiencies() {
        for (bits, known) in [(1, 2.0 / PI), (2, 0.8825), (4, 0.988), (8, 0.9999)] {
            let found = efficiency(vdif(bits), vdif(bits));
            assert!((found - known).abs() < 1.2e-3, "{bits} bits: {found}");
        }
        // One and two bits: the geometric mean.
        let mixed = efficiency(vdif(1), vdif(2));
        assert!((mixed - (0.63662f64 * 0.8825).sqrt()).abs() < 1e-3);
        assert!((power(vdif(1)) - 1.0).abs() < 1e-12);
        // 0.6737 of all samples have the level 1, the others 3.3165.
        assert!((power(vdif(2)) - (0.6737 + 0.3263 * 3.3165 * 3.3165)).abs() < 2e-3);
    }

    #[test]
    fn the_error_function_is_right() {
        for (x, known) in [
            (0.0, 1.0),
            (0.5, 0.479_500_122_186_953_5),
            (1.0, 0.157_299_207_050_285_1),
            (2.5, 4.069_520_174_449_590e-4),
            (3.5, 7.430_983_723_414_127e-7),
            (-1.0, 1.842_700_792_949_714_9),
        ] {
            assert!((erfc(x) - known).abs() < 1e-11, "{x}: {}", erfc(x));
        }
    }

    /// Sampled Gaussian noise correlates as the curves say.
    #[test]
    fn noise_agrees() {
        const SAMPLES: usize = 400_000;
        let mut random = ChaCha8Rng::seed_from_u64(5);
        for rho in [0.3f64, 0.8] {
            let (mut x, mut y) = (Vec::new(), Vec::new());
            for _ in 0..SAMPLES {
                let (u, v): (f64, f64) = (random.random(), random.random());
                let radius = (-2.0 * (1.0 - u).ln()).sqrt();
                let (a, b) = (radius * (TAU * v).cos(), radius * (TAU * v).sin());
                x.push(a as f32);
                y.push((rho * a + (1.0 - rho * rho).sqrt() * b) as f32);
            }
            for (a, b) in [(1, 1), (2, 2), (1, 2), (4, 4), (8, 8), (2, 8)] {
                let decoded = |codec: Codec, values: &[f32]| {
                    let mut bytes = vec![0; SAMPLES * usize::from(codec.bits()) / 8];
                    codec.encode(values, 1.0, &mut bytes);
                    let mut back = vec![0.0; SAMPLES];
                    codec.decode(&bytes, &mut back);
                    back
                };
                let (p, q) = (decoded(vdif(a), &x), decoded(vdif(b), &y));
                let dot = |p: &[f32], q: &[f32]| -> f64 {
                    p.iter().zip(q).map(|(p, q)| f64::from(p * q)).sum()
                };
                let r = dot(&p, &q) / (dot(&p, &p) * dot(&q, &q)).sqrt();
                let expected = sampled(rho, vdif(a), vdif(b));
                let sigma = 1.0 / (SAMPLES as f64).sqrt();
                assert!(
                    (r - expected).abs() < 4.0 * sigma,
                    "{a} {b} {rho}: {r} {expected}"
                );
                let mean = dot(&p, &p) / SAMPLES as f64;
                assert!((mean / power(vdif(a)) - 1.0).abs() < 0.01, "{a}: {mean}");
            }
        }
    }

    proptest! {
        #[test]
        fn what_was_sampled_is_corrected(rho in -0.97f64..0.97, a in 0usize..4, b in 0usize..4) {
            let (a, b) = (vdif([1, 2, 4, 8][a]), vdif([1, 2, 4, 8][b]));
            let back = corrected(sampled(rho, a, b), a, b);
            prop_assert!((back - rho).abs() < 1e-6, "{rho} {back}");
        }

        #[test]
        fn any_number_is_corrected_to_a_coefficient(r in any::<f64>()) {
            for bits in [1, 2, 4, 8] {
                let rho = corrected(r, vdif(bits), vdif(bits));
                prop_assert!(r.is_nan() || (-1.0..=1.0).contains(&rho), "{r} {rho}");
            }
        }
    }
}
