//! The inner loops, written so that the compiler makes SIMD of them for the processor at hand: they are inlined
//! into `pulp::Arch::dispatch`.

use std::f64::consts::TAU;

use rustfft::num_complex::{Complex32, Complex64};

/// Factors of a rotation that are made at a time.
const RUN: usize = 32;
/// Channels that are multiplied at a time: their sums stay in registers.
const TILE: usize = 32;

/// `exp(2 pi i turns)`.
fn cis(turns: f64) -> Complex64 {
    Complex64::cis(TAU * turns.fract())
}

/// The first factors of a rotation by `step` turns each, and the factor from one run of them to the next.
#[inline(always)]
fn factors(step: f64) -> ([f32; RUN], [f32; RUN], Complex64) {
    let (mut re, mut im) = ([0.0; RUN], [0.0; RUN]);
    let mut factor = Complex64::new(1.0, 0.0);
    let turn = cis(step);
    for (re, im) in re.iter_mut().zip(&mut im) {
        (*re, *im) = (factor.re as f32, factor.im as f32);
        factor *= turn;
    }
    (re, im, factor)
}

/// Rotates real samples by `start` turns and `step` turns more each.
#[inline(always)]
pub fn rotate_real(samples: &[f32], start: f64, step: f64, rotated: &mut [Complex32]) {
    let (re, im, next) = factors(step);
    let mut run = cis(start);
    for (samples, rotated) in samples.chunks(RUN).zip(rotated.chunks_mut(RUN)) {
        let (c, s) = (run.re as f32, run.im as f32);
        for (((sample, rotated), re), im) in samples.iter().zip(rotated).zip(&re).zip(&im) {
            *rotated = Complex32::new(sample * (re * c - im * s), sample * (re * s + im * c));
        }
        run *= next;
    }
}

/// Rotates complex samples, whose components follow each other, in the same way.
#[inline(always)]
pub fn rotate_complex(samples: &[f32], start: f64, step: f64, rotated: &mut [Complex32]) {
    let (re, im, next) = factors(step);
    let mut run = cis(start);
    for (samples, rotated) in samples.chunks(2 * RUN).zip(rotated.chunks_mut(RUN)) {
        let (c, s) = (run.re as f32, run.im as f32);
        let samples = samples.as_chunks::<2>().0;
        for (((sample, rotated), re), im) in samples.iter().zip(rotated).zip(&re).zip(&im) {
            let factor = Complex32::new(re * c - im * s, re * s + im * c);
            *rotated = Complex32::new(sample[0], sample[1]) * factor;
        }
        run *= next;
    }
}

/// Complex samples of components that follow each other.
pub fn join(samples: &[f32], joined: &mut [Complex32]) {
    for (sample, joined) in samples.as_chunks::<2>().0.iter().zip(joined) {
        *joined = Complex32::new(sample[0], sample[1]);
    }
}

/// Sum of the squares.
#[inline(always)]
pub fn energy(samples: &[f32]) -> f64 {
    let (whole, rest) = samples.as_chunks::<TILE>();
    let mut sums = [0.0f32; TILE];
    for samples in whole {
        for (sum, sample) in sums.iter_mut().zip(samples) {
            *sum += sample * sample;
        }
    }
    let rest: f32 = rest.iter().map(|sample| sample * sample).sum();
    sums.iter().map(|sum| f64::from(*sum)).sum::<f64>() + f64::from(rest)
}

/// Rotates a spectrum by `start` turns and `step` turns more each channel, and takes its parts apart.
#[inline(always)]
pub fn level(bins: &[Complex32], start: f64, step: f64, re: &mut [f32], im: &mut [f32]) {
    let (fine_re, fine_im, next) = factors(step);
    let mut run = cis(start);
    let parts = re.chunks_mut(RUN).zip(im.chunks_mut(RUN));
    for (bins, (re, im)) in bins.chunks(RUN).zip(parts) {
        let (c, s) = (run.re as f32, run.im as f32);
        let fine = fine_re.iter().zip(&fine_im);
        for (((bin, re), im), (fine_re, fine_im)) in bins.iter().zip(re).zip(im).zip(fine) {
            let (a, b) = (fine_re * c - fine_im * s, fine_re * s + fine_im * c);
            *re = bin.re * a - bin.im * b;
            *im = bin.re * b + bin.im * a;
        }
        run *= next;
    }
}

/// Adds A conj(B) of `count` spectra to `values`.
#[inline(always)]
pub fn multiply(a: (&[f32], &[f32]), b: (&[f32], &[f32]), count: usize, values: &mut [Complex64]) {
    let channels = values.len();
    for (tile, values) in values.chunks_mut(TILE).enumerate() {
        let (mut re, mut im) = ([0.0f32; TILE], [0.0f32; TILE]);
        for spectrum in 0..count {
            let at = spectrum * channels + tile * TILE;
            let row = at..at + values.len();
            let (ar, ai) = (&a.0[row.clone()], &a.1[row.clone()]);
            let (br, bi) = (&b.0[row.clone()], &b.1[row]);
            if let (Ok(ar), Ok(ai), Ok(br), Ok(bi)) = (
                <&[f32; TILE]>::try_from(ar),
                <&[f32; TILE]>::try_from(ai),
                <&[f32; TILE]>::try_from(br),
                <&[f32; TILE]>::try_from(bi),
            ) {
                for n in 0..TILE {
                    re[n] += ar[n] * br[n] + ai[n] * bi[n];
                    im[n] += ai[n] * br[n] - ar[n] * bi[n];
                }
            } else {
                for n in 0..values.len() {
                    re[n] += ar[n] * br[n] + ai[n] * bi[n];
                    im[n] += ai[n] * br[n] - ar[n] * bi[n];
                }
            }
        }
        for ((value, re), im) in values.iter_mut().zip(re).zip(im) {
            *value += Complex64::new(f64::from(re), f64::from(im));
        }
    }
}

/// Adds the power of `count` spectra to `power`.
#[inline(always)]
pub fn square(a: (&[f32], &[f32]), count: usize, power: &mut [f64]) {
    let channels = power.len();
    for (tile, power) in power.chunks_mut(TILE).enumerate() {
        let mut sums = [0.0f32; TILE];
        for spectrum in 0..count {
            let at = spectrum * channels + tile * TILE;
            let row = at..at + power.len();
            let parts = a.0[row.clone()].iter().zip(&a.1[row]);
            for (sum, (re, im)) in sums.iter_mut().zip(parts) {
                *sum += re * re + im * im;
            }
        }
        for (power, sum) in power.iter_mut().zip(sums) {
            *power += f64::from(sum);
        }
    }
}
