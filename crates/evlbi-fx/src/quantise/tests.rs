//! Curves and efficiencies compared with the literature and with noise.

use std::f64::consts::FRAC_2_PI;

use proptest::prelude::*;
use rand::RngExt;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::*;

const BITS: [u8; 4] = [1, 2, 4, 8];

fn vdif(bits: u8) -> Codec {
    Codec::vdif(bits).unwrap()
}

fn between(a: u8, b: u8) -> VanVleck {
    VanVleck::between(vdif(a), vdif(b))
}

/// Fraction of the signal-to-noise ratio of a small correlation that two samplers keep: 2/pi = 0.637 for 1 bit, 0.8825 for 2
/// bits, 0.988 for 4 bits, 1 for 8 bits.
fn efficiency(a: Codec, b: Codec) -> f64 {
    let gain = |codec: Codec| {
        let steps = Steps::of(codec);
        let slope = steps.0.iter().map(|step| step.height * density(step.at));
        slope.sum::<f64>() / power(codec).sqrt()
    };
    gain(a) * gain(b)
}

#[test]
fn powers_are_those_of_the_tables() {
    // 2 bits: 1 + P(|x| > 0.9816) (h^2 - 1).
    assert_eq!(power(vdif(1)), 1.0);
    assert!((power(vdif(2)) - 4.262_710).abs() < 2e-6);
    assert!((power(vdif(8)) - 1.0).abs() < 1e-3);
    for bits in [1, 2] {
        let mark5b = Codec::mark5b(bits).unwrap();
        assert_eq!(power(mark5b), power(vdif(bits)));
    }
}

#[test]
fn efficiencies_are_those_of_the_literature() {
    // Thompson, Moran & Swenson, table 8.2: 0.637 for 2 levels, 0.881 for 4 with the outer level 3, 0.988 for 16. Cooper: 0.8825
    // for 4 at best.
    let expected = [FRAC_2_PI, 0.8825, 0.9885, 1.0];
    for (bits, expected) in BITS.into_iter().zip(expected) {
        let found = efficiency(vdif(bits), vdif(bits));
        assert!((found - expected).abs() < 5e-4, "{bits} bits: {found}");
    }
    let mixed = efficiency(vdif(1), vdif(2));
    assert!((mixed - (FRAC_2_PI * 0.882_51).sqrt()).abs() < 1e-5);
}

#[test]
fn one_bit_is_an_arc_sine() {
    let curve = between(1, 1);
    for rho in [-1.0, -0.7, 0.0, 1e-6, 0.3, 0.999, 1.0f64] {
        assert!((curve.correlated(rho) - rho.asin() * 2.0 / PI).abs() < 1e-14);
    }
    // 10 parts of 60 in common: another correlator found 0.1066 in such data.
    assert!((curve.correlated(1.0 / 6.0) - 0.1066).abs() < 5e-5);
    assert!((curve.corrected(0.106_6) - 1.0 / 6.0).abs() < 1e-4);
}

#[test]
fn equal_samplers_of_equal_noise_agree() {
    for (bits, tolerance) in [(1, 1e-14), (2, 1e-9), (4, 4e-4), (8, 1e-4)] {
        let limit = between(bits, bits).correlated(1.0);
        assert!((limit - 1.0).abs() < tolerance, "{bits} bits: {limit}");
    }
    // Sign and magnitude: E|q| / rms.
    let outside = 2.0 * exceedance(f64::from(THRESHOLD));
    let mean = 1.0 + outside * (f64::from(crate::codec::HIGH) - 1.0);
    let expected = mean / power(vdif(2)).sqrt();
    assert!((between(1, 2).correlated(1.0) - expected).abs() < 1e-9);
}

#[test]
fn curves_start_with_the_efficiency() {
    for a in BITS {
        for b in BITS {
            let slope = between(a, b).correlated(1e-6) / 1e-6;
            assert!((slope - efficiency(vdif(a), vdif(b))).abs() < 1e-9);
        }
    }
}

/// Independent calculation: the mean of one sampler's level times the mean of the other's, given the first noise.
fn oracle(rho: f64, a: Codec, b: Codec) -> f64 {
    let (levels_a, levels_b) = (ascending(a), ascending(b));
    let (thresholds_a, thresholds_b) = (thresholds(&levels_a), thresholds(&levels_b));
    let given = |x: f64| {
        let steps = levels_b.windows(2).zip(&thresholds_b);
        let above = steps.map(|(pair, threshold)| {
            let z = (threshold - rho * x) / (1.0 - rho * rho).sqrt();
            (pair[1] - pair[0]) * exceedance(z.clamp(-9.0, 9.0))
        });
        levels_b[0] + above.sum::<f64>()
    };
    let edges: Vec<f64> = [-9.0]
        .into_iter()
        .chain(thresholds_a)
        .chain([9.0])
        .collect();
    let sum: f64 = edges
        .windows(2)
        .zip(&levels_a)
        .map(|(edge, level)| {
            let inside = integral(edge[1] - edge[0], |x| {
                density(edge[0] + x) * given(edge[0] + x)
            });
            level * inside
        })
        .sum();
    sum / (power(a) * power(b)).sqrt()
}

#[test]
fn curves_agree_with_integration_over_both_noises() {
    evlbi_testkit::watch();
    // The curve neglects the even part of two 4-bit samplers.
    for (a, b, tolerance) in [
        (1, 2, 1e-6),
        (2, 2, 1e-6),
        (2, 4, 1e-6),
        (4, 4, 3e-4),
        (8, 2, 1e-6),
    ] {
        for rho in [-0.9, -0.2, 0.05, 0.5, 0.9] {
            let expected = oracle(rho, vdif(a), vdif(b));
            let found = between(a, b).correlated(rho);
            assert!(
                (found - expected).abs() < tolerance,
                "{a} and {b} bits, {rho}: {found} {expected}"
            );
        }
    }
}

/// Two normal numbers (Box-Muller).
fn normal(rng: &mut ChaCha8Rng) -> [f64; 2] {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    let (sine, cosine) = (TAU * rng.random::<f64>()).sin_cos();
    [radius * cosine, radius * sine]
}

#[test]
fn sampled_noise_correlates_as_the_curves_predict() {
    const SAMPLES: usize = 100_000;
    let mut rng = ChaCha8Rng::seed_from_u64(1966);
    for rho in [-0.8, 0.2, 0.97f64] {
        let (a, b): (Vec<f32>, Vec<f32>) = (0..SAMPLES)
            .map(|_| {
                let [a, other] = normal(&mut rng);
                let b = rho * a + (1.0 - rho * rho).sqrt() * other;
                (a as f32, b as f32)
            })
            .unzip();
        for bits_a in BITS {
            let decoded_a = sampled(vdif(bits_a), &a);
            for bits_b in BITS {
                let decoded_b = sampled(vdif(bits_b), &b);
                let scale = (power(vdif(bits_a)) * power(vdif(bits_b))).sqrt();
                let (mean, sigma) = mean_of_products(&decoded_a, &decoded_b);
                let expected = between(bits_a, bits_b).correlated(rho) * scale;
                assert!(
                    (mean - expected).abs() < 4.0 * sigma,
                    "{bits_a} and {bits_b} bits, {rho}: {mean} {expected} {sigma}"
                );
            }
        }
    }
}

fn sampled(codec: Codec, noise: &[f32]) -> Vec<f32> {
    let mut payload = vec![0; noise.len() * usize::from(codec.bits()) / 8];
    codec.encode(noise, 1.0, &mut payload);
    let mut values = vec![0.0; noise.len()];
    codec.decode(&payload, &mut values);
    values
}

/// Returns the mean and its error.
fn mean_of_products(a: &[f32], b: &[f32]) -> (f64, f64) {
    let products = a.iter().zip(b).map(|(a, b)| f64::from(a * b));
    let (sum, squares) = products.fold((0.0, 0.0), |(sum, squares), product| {
        (sum + product, squares + product * product)
    });
    let count = a.len() as f64;
    let mean = sum / count;
    (mean, ((squares / count - mean * mean) / count).sqrt())
}

#[test]
fn impossible_coefficients_become_one() {
    let curve = between(1, 2);
    assert_eq!(curve.corrected(2.0), 1.0);
    assert_eq!(curve.corrected(f64::NEG_INFINITY), -1.0);
    assert!(curve.corrected(f64::NAN).is_nan());
    assert_eq!(curve.corrected(0.0), 0.0);
    assert_eq!(curve.correlated(3.0), curve.correlated(1.0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn correction_undoes_sampling(
        a in prop::sample::select(&BITS),
        b in prop::sample::select(&BITS),
        rho in -0.9999f64..0.9999,
    ) {
        let curve = between(a, b);
        let r = curve.correlated(rho);
        prop_assert!((curve.correlated(curve.corrected(r)) - r).abs() < 1e-13);
        prop_assert_eq!(curve.correlated(-rho), -r);
        prop_assert_eq!(curve.corrected(-r), -curve.corrected(r));
        // Samples of the same noise differ if the samplers do, so that such curves end flat: values there cannot be
        // distinguished.
        let rises = curve.correlated(rho + 1e-4) - r;
        prop_assert!(rises > 0.0 || (a != b && rho > 0.99 && rises >= 0.0));
        if rises > 1e-9 || a == b {
            prop_assert!((curve.corrected(r) - rho).abs() < 1e-9);
        }
    }
}
