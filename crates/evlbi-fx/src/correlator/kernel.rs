//! Inner loops, written so that the compiler vectorises them for the current CPU: they are inlined into `pulp::Arch::dispatch`.

/// Defines a function whose body is compiled for each kind of CPU. (A closure that is not inlined would be compiled for the
/// simplest of them.)
macro_rules! kernel {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $output:ty)? $body:block) => {
        $(#[$doc])*
        pub fn $name<'a>(arch: Arch, $($arg: $type),*) $(-> $output)? {
            struct Kernel<'a>($($type,)* std::marker::PhantomData<&'a ()>);
            impl<'a> WithSimd for Kernel<'a> {
                type Output = kernel!(@output $($output)?);
                #[inline(always)]
                fn with_simd<S: Simd>(self, _: S) -> Self::Output {
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

use pulp::{Arch, Simd, WithSimd, bytemuck};

use rustfft::num_complex::{Complex32, Complex64};

/// Number of rotation factors that are calculated at a time.
const RUN: usize = 32;
/// Number of channels that are multiplied at a time: their sums stay in registers.
pub const TILE: usize = RUN;

/// Tile of channels of a block: real and imaginary parts.
pub type Tile = [[f32; TILE]; 2];

/// Destination of the spectrum of a block: every `stride`th tile.
pub struct Place<'a> {
    pub tiles: &'a mut [Tile],
    pub stride: usize,
}

impl<'a> Place<'a> {
    /// Returns its tiles.
    #[inline(always)]
    pub fn tiles(self) -> impl Iterator<Item = &'a mut Tile> {
        self.tiles.iter_mut().step_by(self.stride)
    }
}

/// Calculates `exp(2 pi i turns)`.
fn cis(turns: f64) -> Complex64 {
    Complex64::cis(TAU * turns.fract())
}

/// Calculates the first factors of a rotation by `step` turns each, and the factor from one run of them to the next.
#[inline(always)]
fn factors(step: f64) -> ([[f32; RUN]; 2], Complex64) {
    let (mut re, mut im) = ([0.0f64; RUN], [0.0f64; RUN]);
    re[0] = 1.0;
    let mut turn = cis(step);
    let mut known = 1;
    while known < RUN {
        // Twice as many: those known, turned on.
        let (there, next) = re.split_at_mut(known);
        let (there_im, next_im) = im.split_at_mut(known);
        for n in 0..known {
            next[n] = there[n] * turn.re - there_im[n] * turn.im;
            next_im[n] = there[n] * turn.im + there_im[n] * turn.re;
        }
        turn *= turn;
        known *= 2;
    }
    let mut factors = [[0.0; RUN]; 2];
    for n in 0..RUN {
        (factors[0][n], factors[1][n]) = (re[n] as f32, im[n] as f32);
    }
    (factors, turn)
}

/// Calculates `a b + c`, rounded once if the CPU can.
#[inline(always)]
fn fused<S: Simd>(a: f32, b: f32, c: f32) -> f32 {
    match S::IS_SCALAR {
        true => a * b + c,
        false => a.mul_add(b, c),
    }
}

/// Multiplies complex numbers.
#[inline(always)]
fn times<S: Simd>((a, b): (f32, f32), (c, d): (f32, f32)) -> (f32, f32) {
    (fused::<S>(a, c, -(b * d)), fused::<S>(a, d, b * c))
}

/// Rotates a channel by the product of a fine factor and a coarse one.
#[inline(always)]
fn turn<S: Simd>(value: (f32, f32), fine: (f32, f32), run: (f32, f32)) -> (f32, f32) {
    times::<S>(value, times::<S>(fine, run))
}

kernel! {
    /// Rotates real samples by `start` turns, plus `step` turns per sample.
    fn rotate_real(samples: &'a [f32], start: f64, step: f64, rotated: &'a mut [Complex32])  {
    let ([re, im], next) = factors(step);
    let mut run = cis(start);
    for (samples, rotated) in samples.chunks(RUN).zip(rotated.chunks_mut(RUN)) {
        let (c, s) = (run.re as f32, run.im as f32);
        for (((sample, rotated), re), im) in samples.iter().zip(rotated).zip(&re).zip(&im) {
            let (re, im) = times::<S>((*re, *im), (c, s));
            *rotated = Complex32::new(sample * re, sample * im);
        }
        run *= next;
    }
}
}

kernel! {
    /// Rotates complex samples, with interleaved components, in the same way.
    fn rotate_complex(samples: &'a [f32], start: f64, step: f64, rotated: &'a mut [Complex32])  {
    let ([re, im], next) = factors(step);
    let mut run = cis(start);
    for (samples, rotated) in samples.chunks(2 * RUN).zip(rotated.chunks_mut(RUN)) {
        let (c, s) = (run.re as f32, run.im as f32);
        let samples = samples.as_chunks::<2>().0;
        for (((sample, rotated), re), im) in samples.iter().zip(rotated).zip(&re).zip(&im) {
            let factor = times::<S>((*re, *im), (c, s));
            let (re, im) = times::<S>((sample[0], sample[1]), factor);
            *rotated = Complex32::new(re, im);
        }
        run *= next;
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
            *sum = fused::<S>(*sample, *sample, *sum);
        }
    }
    let rest: f32 = rest.iter().map(|sample| sample * sample).sum();
    sums.iter().map(|sum| f64::from(*sum)).sum::<f64>() + f64::from(rest)
}
}

kernel! {
    /// Rotates a spectrum by `start` turns, plus `step` turns per channel, and splits it into real and imaginary parts.
    fn level(
        bins: &'a [Complex32],
        start: f64,
        step: f64,
        place: Place<'a>,
    ) {
        let (fine, next) = factors(step);
        let mut run = cis(start);
        let (whole, rest) = bins.as_chunks::<TILE>();
        let mut last = [Complex32::default(); TILE];
        last[..rest.len()].copy_from_slice(rest);
        for (bins, [re, im]) in whole.iter().chain([&last]).zip(place.tiles()) {
            let (c, s) = (run.re as f32, run.im as f32);
            for n in 0..TILE {
                (re[n], im[n]) = turn::<S>((bins[n].re, bins[n].im), (fine[0][n], fine[1][n]), (c, s));
            }
            run *= next;
        }
    }
}

kernel! {
    /// Calculates the spectrum of real samples from the transform Z of pairs of them, with even ones as real and odd ones as
    /// imaginary parts: `X = (Z + Z*)/2 - i w (Z - Z*)/2`, where Z* is its conjugate mirror image. The first point of `halves` is
    /// repeated at the end. `w`: real and imaginary parts of the factors, tile by tile. If `sign` is -1, calculates the spectrum at
    /// negative frequencies, in ascending order. Then rotates and splits it as [`level`] does.
    fn fold(
        halves: &'a [Complex32],
        w: &'a [Tile],
        sign: f32,
        start: f64,
        step: f64,
        place: Place<'a>,
    ) {
        let (fine, next) = factors(step);
        let mut run = 0.5 * cis(start);
        let mut ends;
        let points = halves.len() - 1;
        for (tile, (w, [re, im])) in w.iter().zip(place.tiles()).enumerate() {
            let from = tile * TILE;
            let (z, mirror) = match points.checked_sub(from + TILE) {
                Some(end) => (&halves[from..], &halves[end + 1..]),
                // The end of a spectrum without whole tiles.
                None => {
                    let length = points - from;
                    ends = [[Complex32::default(); TILE]; 2];
                    ends[0][..length].copy_from_slice(&halves[from..points]);
                    ends[1][TILE - length..].copy_from_slice(&halves[1..=length]);
                    (&ends[0][..], &ends[1][..])
                }
            };
            let (z, mirror) = (&z[..TILE], &mirror[..TILE]);
            let (c, s) = (run.re as f32, run.im as f32);
            for n in 0..TILE {
                let (z, mirror) = (z[n], mirror[TILE - 1 - n]);
                let w = (sign * w[0][n], sign * w[1][n]);
                let (re_odd, im_odd) = (z.im + mirror.im, mirror.re - z.re);
                let value = (
                    fused::<S>(re_odd, w.0, fused::<S>(-im_odd, w.1, z.re + mirror.re)),
                    fused::<S>(re_odd, w.1, fused::<S>(im_odd, w.0, z.im - mirror.im)),
                );
                (re[n], im[n]) = turn::<S>(value, (fine[0][n], fine[1][n]), (c, s));
            }
            run *= next;
        }
    }
}

/// Returns the vectors of tiles.
#[inline(always)]
fn vectors<S: Simd>(tiles: &[Tile]) -> &[S::f32s] {
    S::as_simd_f32s(tiles.as_flattened().as_flattened()).0
}

/// Adds a vector of sums to a tile of them: real and imaginary parts.
#[inline(always)]
fn add<S: Simd>(sums: &mut [[f64; TILE]; 2], part: usize, re: S::f32s, im: S::f32s) {
    for (sums, new) in sums.iter_mut().zip([re, im]) {
        let new = [new];
        let new: &[f32] = bytemuck::cast_slice(&new);
        for (sum, new) in sums[part * S::F32_LANES..].iter_mut().zip(new) {
            *sum += f64::from(*new);
        }
    }
}

/// Addition of A conj(B) of some blocks to a tile of sums.
pub struct Multiply<'a> {
    /// Input A.
    pub a: &'a [Tile],
    /// Input B.
    pub b: &'a [Tile],
    /// Sums of the product: real and imaginary parts.
    pub sums: &'a mut [[f64; TILE]; 2],
}

impl WithSimd for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let parts = TILE / S::F32_LANES;
        let (a, b) = (vectors::<S>(self.a), vectors::<S>(self.b));
        let count = a.len();
        let b = &b[..count];
        // Two vectors at a time, as each addition waits for the one before it. The order of additions is that of [`MultiplyFour`].
        let half = parts / 2;
        for part in 0..half {
            let zero = simd.splat_f32s(0.0);
            let (mut re, mut im, mut re_too, mut im_too) = (zero, zero, zero, zero);
            let mut at = part;
            while at + half + parts < count {
                let (ar, ai) = (a[at], a[at + parts]);
                let (br, bi) = (b[at], b[at + parts]);
                let (ar_too, ai_too) = (a[at + half], a[at + half + parts]);
                let (br_too, bi_too) = (b[at + half], b[at + half + parts]);
                re = simd.mul_add_e_f32s(ar, br, re);
                im = simd.mul_add_e_f32s(ai, br, im);
                re_too = simd.mul_add_e_f32s(ar_too, br_too, re_too);
                im_too = simd.mul_add_e_f32s(ai_too, br_too, im_too);
                re = simd.mul_add_e_f32s(ai, bi, re);
                im = simd.mul_add_e_f32s(simd.neg_f32s(ar), bi, im);
                re_too = simd.mul_add_e_f32s(ai_too, bi_too, re_too);
                im_too = simd.mul_add_e_f32s(simd.neg_f32s(ar_too), bi_too, im_too);
                at += 2 * parts;
            }
            add::<S>(self.sums, part, re, im);
            add::<S>(self.sums, part + half, re_too, im_too);
        }
    }
}

/// Addition of A conj(B) of some blocks to tiles of sums, for both inputs A with both inputs B. What is loaded of an input serves both of
/// its products.
pub struct MultiplyFour<'a> {
    /// Inputs A.
    pub a: [&'a [Tile]; 2],
    /// Inputs B.
    pub b: [&'a [Tile]; 2],
    /// Sums of the products: of the first A with both B, and of the second A.
    pub sums: &'a mut [[[f64; TILE]; 2]; 4],
}

impl WithSimd for MultiplyFour<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let parts = TILE / S::F32_LANES;
        let [a, c] = self.a.map(vectors::<S>);
        let [b, d] = self.b.map(vectors::<S>);
        let count = a.len();
        let (b, c, d) = (&b[..count], &c[..count], &d[..count]);
        let [ab, ad, cb, cd] = self.sums;
        for part in 0..parts {
            let zero = simd.splat_f32s(0.0);
            let (mut ab_re, mut ab_im, mut ad_re, mut ad_im) = (zero, zero, zero, zero);
            let (mut cb_re, mut cb_im, mut cd_re, mut cd_im) = (zero, zero, zero, zero);
            let mut at = part;
            while at + parts < count {
                let (br, bi) = (b[at], b[at + parts]);
                let (dr, di) = (d[at], d[at + parts]);
                let (re, im) = (a[at], a[at + parts]);
                ab_re = simd.mul_add_e_f32s(re, br, ab_re);
                ab_im = simd.mul_add_e_f32s(im, br, ab_im);
                ad_re = simd.mul_add_e_f32s(re, dr, ad_re);
                ad_im = simd.mul_add_e_f32s(im, dr, ad_im);
                let minus = simd.neg_f32s(re);
                ab_re = simd.mul_add_e_f32s(im, bi, ab_re);
                ab_im = simd.mul_add_e_f32s(minus, bi, ab_im);
                ad_re = simd.mul_add_e_f32s(im, di, ad_re);
                ad_im = simd.mul_add_e_f32s(minus, di, ad_im);
                let (re, im) = (c[at], c[at + parts]);
                cb_re = simd.mul_add_e_f32s(re, br, cb_re);
                cb_im = simd.mul_add_e_f32s(im, br, cb_im);
                cd_re = simd.mul_add_e_f32s(re, dr, cd_re);
                cd_im = simd.mul_add_e_f32s(im, dr, cd_im);
                let minus = simd.neg_f32s(re);
                cb_re = simd.mul_add_e_f32s(im, bi, cb_re);
                cb_im = simd.mul_add_e_f32s(minus, bi, cb_im);
                cd_re = simd.mul_add_e_f32s(im, di, cd_re);
                cd_im = simd.mul_add_e_f32s(minus, di, cd_im);
                at += 2 * parts;
            }
            add::<S>(ab, part, ab_re, ab_im);
            add::<S>(ad, part, ad_re, ad_im);
            add::<S>(cb, part, cb_re, cb_im);
            add::<S>(cd, part, cd_re, cd_im);
        }
    }
}

kernel! {
    /// Adds the power of some blocks to `power`, a tile or the rest of one.
    fn square(a: &'a [Tile], power: &'a mut [f64])  {
    let mut sums = [0.0f32; TILE];
    for [re, im] in a {
        for n in 0..TILE {
            sums[n] = fused::<S>(re[n], re[n], fused::<S>(im[n], im[n], sums[n]));
        }
    }
    for (power, sum) in power.iter_mut().zip(sums) {
        *power += f64::from(sum);
    }
}
}
