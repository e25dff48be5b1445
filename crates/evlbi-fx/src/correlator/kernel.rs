//! Inner loops, written so that the compiler vectorises them for the current CPU: they are inlined into `pulp::Arch::dispatch`.

/// Defines a function whose body is compiled for each kind of CPU. (A closure that is not inlined would be compiled for the
/// simplest of them.)
macro_rules! kernel {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $output:ty)? $body:block) => {
        $(#[$doc])*
        pub fn $name<'a>(arch: Arch, $($arg: $type),*) $(-> $output)? {
            struct Kernel<'a>($($type,)* std::marker::PhantomData<&'a ()>);
            impl<'a> NullaryFnOnce for Kernel<'a> {
                type Output = kernel!(@output $($output)?);
                #[inline(always)]
                fn call(self) -> Self::Output {
                    let Kernel($($arg,)* _) = self;
                    $body
                }
            }
            arch.dispatch(Kernel($($arg,)* std::marker::PhantomData))
        }
    };
    (@output) => { () };
    (@output $output:ty) => { $output };
}

use std::f64::consts::TAU;

use pulp::{Arch, NullaryFnOnce};

use rustfft::num_complex::{Complex32, Complex64};

/// Number of rotation factors that are calculated at a time.
const RUN: usize = 32;
/// Number of channels that are multiplied at a time: their sums stay in registers.
pub const TILE: usize = RUN;

/// Tile of channels of some blocks: real and imaginary parts.
pub type Tiles<'a> = (&'a [[f32; TILE]], &'a [[f32; TILE]]);

/// Calculates `exp(2 pi i turns)`.
fn cis(turns: f64) -> Complex64 {
    Complex64::cis(TAU * turns.fract())
}

/// Calculates the first factors of a rotation by `step` turns each, and the factor from one run of them to the next.
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

kernel! {
    /// Rotates real samples by `start` turns, plus `step` turns per sample.
    fn rotate_real(samples: &'a [f32], start: f64, step: f64, rotated: &'a mut [Complex32])  {
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
}

kernel! {
    /// Rotates complex samples, with interleaved components, in the same way.
    fn rotate_complex(samples: &'a [f32], start: f64, step: f64, rotated: &'a mut [Complex32])  {
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
}

/// Joins interleaved components to complex samples.
pub fn join(samples: &[f32], joined: &mut [Complex32]) {
    for (sample, joined) in samples.as_chunks::<2>().0.iter().zip(joined) {
        *joined = Complex32::new(sample[0], sample[1]);
    }
}

kernel! {
    /// Calculates the spectrum of real samples from the transform of pairs of them, with even ones as real and odd ones as
    /// imaginary parts. The first point of the transform is repeated at its end: `X = (Z + Z*)/2 - i w (Z - Z*)/2`, where Z* is
    /// its mirror image.
    fn split(halves: &'a [Complex32], factors: &'a [Complex32], bins: &'a mut [Complex32])  {
    let there = halves.iter().zip(halves.iter().rev());
    for ((bin, factor), (z, mirror)) in bins.iter_mut().zip(factors).zip(there) {
        let (even_re, even_im) = (z.re + mirror.re, z.im - mirror.im);
        let (odd_re, odd_im) = (z.im + mirror.im, mirror.re - z.re);
        bin.re = 0.5 * (even_re + factor.re * odd_re - factor.im * odd_im);
        bin.im = 0.5 * (even_im + factor.re * odd_im + factor.im * odd_re);
    }
}
}

kernel! {
    /// Calculates the sum of the squares.
    fn energy(samples: &'a [f32]) -> f64 {
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
}

kernel! {
    /// Rotates a spectrum by `start` turns, plus `step` turns per channel, and splits it into real and imaginary parts: into
    /// every `stride`th tile.
    fn level(
        bins: &'a [Complex32],
        start: f64,
        step: f64,
        stride: usize,
        re: &'a mut [[f32; TILE]],
        im: &'a mut [[f32; TILE]],
    ) {
        let (fine_re, fine_im, next) = factors(step);
        let mut run = cis(start);
        let (whole, rest) = bins.as_chunks::<RUN>();
        let mut last = [Complex32::default(); RUN];
        last[..rest.len()].copy_from_slice(rest);
        let tiles = re.iter_mut().zip(im).step_by(stride);
        for (bins, (re, im)) in whole.iter().chain([&last]).zip(tiles) {
            let (c, s) = (run.re as f32, run.im as f32);
            for n in 0..RUN {
                let a = fine_re[n] * c - fine_im[n] * s;
                let b = fine_re[n] * s + fine_im[n] * c;
                re[n] = bins[n].re * a - bins[n].im * b;
                im[n] = bins[n].re * b + bins[n].im * a;
            }
            run *= next;
        }
    }
}

kernel! {
    /// Adds A conj(B) of some blocks to `values`, a tile or the rest of one.
    fn multiply(a: Tiles<'a>, b: Tiles<'a>, values: &'a mut [Complex64])  {
    let (mut re, mut im) = ([0.0f32; TILE], [0.0f32; TILE]);
    for ((ar, ai), (br, bi)) in a.0.iter().zip(a.1).zip(b.0.iter().zip(b.1)) {
        for n in 0..TILE {
            re[n] += ar[n] * br[n] + ai[n] * bi[n];
            im[n] += ai[n] * br[n] - ar[n] * bi[n];
        }
    }
    for ((value, re), im) in values.iter_mut().zip(re).zip(im) {
        *value += Complex64::new(f64::from(re), f64::from(im));
    }
}
}

kernel! {
    /// Adds the power of some blocks to `power`, a tile or the rest of one.
    fn square(a: Tiles<'a>, power: &'a mut [f64])  {
    let mut sums = [0.0f32; TILE];
    for (re, im) in a.0.iter().zip(a.1) {
        for n in 0..TILE {
            sums[n] += re[n] * re[n] + im[n] * im[n];
        }
    }
    for (power, sum) in power.iter_mut().zip(sums) {
        *power += f64::from(sum);
    }
}
}
