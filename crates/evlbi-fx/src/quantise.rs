//! Effect of sampling on a correlation: power, efficiency, and the van Vleck correction.
//!
//! A sampler converts Gaussian noise x of rms 1 to one of a few levels q(x). After sampling, two noises with correlation rho have
//! a smaller correlation r. For small rho, r = efficiency * rho; two 1-bit samplers give r = 2/pi asin(rho); for others
//! [`VanVleck`] contains the curve. All levels are those of [`Codec`]. All noise is at the sampler's standard threshold
//! ([`crate::codec::THRESHOLD`] for 2 bits, 2.95 and 35.5 steps per rms for 4 and 8 bits), and sampled at its Nyquist rate.
//!
//! Sources: Van Vleck & Middleton, Proc. IEEE 54, 2 (1966); Cooper, Aust. J. Phys. 23, 521 (1970);
//! Thompson, Moran & Swenson, Interferometry and Synthesis in Radio Astronomy, chapter 8.
//!
//! The curve applies to one lag, for real numbers. A complex visibility averaged over a band is the sum of many lags, each at a
//! different point of the curve, so correcting its amplitude as one lag is right to first order only. The exact method is to
//! correct the lag spectrum and transform it back. In the linear part (|rho| below 0.1 or so) both are a division by the
//! efficiency.
//!
//! VDIF's 4-bit levels extend one step further below zero than above. The resulting even part of the curve is neglected, so that
//! all curves are odd: r is off by 2e-5 at |rho| = 0.5, 3e-4 at 1.
//!
//! Effects of other kinds of samplers on noise belong here.

use std::f64::consts::{FRAC_PI_2, PI, SQRT_2, TAU};

use crate::codec::{Codec, THRESHOLD};

/// Returns the mean square of the levels of sampled Gaussian noise, as an autocorrelation measures it.
pub fn power(codec: Codec) -> f64 {
    let levels = ascending(codec);
    let lowest = levels.first().map_or(0.0, |level| level * level);
    let rises = levels.windows(2).zip(thresholds(&levels));
    let above = rises
        .map(|(pair, threshold)| (pair[1] * pair[1] - pair[0] * pair[0]) * exceedance(threshold));
    lowest + above.sum::<f64>()
}

/// Curve between the correlation rho of two noises and the correlation r of their samples, normalised by the root of the powers
/// of the samples.
#[derive(Clone, Debug)]
pub struct VanVleck {
    curve: Curve,
    /// Value of r at rho = 1: below 1 if the samplers differ.
    limit: f64,
}

#[derive(Clone, Debug)]
enum Curve {
    /// Price's theorem: dr/drho is the sum over the steps of both samplers of the density of the noises at the two thresholds.
    /// Normalised by `scale`.
    Steps { a: Steps, b: Steps, scale: f64 },
    /// Mehler's formula: r = sum of these times rho^1, rho^3, rho^5 and so on. For samplers so fine that few orders matter.
    Series(Vec<f64>),
}

/// Number of odd orders in the series: higher ones contain the noise of sampling to 8 bits, 7e-5 of the power, which correlates
/// only if 1 - |rho| is below 1e-4.
const ORDERS: usize = 32;

impl VanVleck {
    /// Makes the curve for samples of two stations.
    pub fn between(a: Codec, b: Codec) -> VanVleck {
        let scale = 1.0 / (power(a) * power(b)).sqrt();
        let fine = a.bits().max(b.bits()) > 4;
        let (a, b) = (Steps::of(a), Steps::of(b));
        let curve = if fine {
            let terms = a.hermite().into_iter().zip(b.hermite());
            Curve::Series(terms.map(|(a, b)| a * b * scale).collect())
        } else {
            Curve::Steps { a, b, scale }
        };
        let limit = curve.value(FRAC_PI_2);
        VanVleck { curve, limit }
    }

    /// Returns the correlation r of the samples of two noises with the correlation `rho`, which is clamped to -1 to 1.
    pub fn correlated(&self, rho: f64) -> f64 {
        let value = self.curve.value(rho.abs().min(1.0).asin());
        value.copysign(rho)
    }

    /// Returns the correlation rho of two noises whose samples have the correlation `r`: the van Vleck correction. An r outside
    /// the possible range, due to noise, gives 1 or -1.
    pub fn corrected(&self, r: f64) -> f64 {
        if r.is_nan() {
            return r;
        }
        if r.abs() >= self.limit {
            return 1f64.copysign(r);
        }
        self.angle(r.abs()).sin().copysign(r)
    }

    /// Returns the asin(rho), 0 to pi/2, at which the curve is `r`, from 0 to the limit, by Newton's method within a bracket. As
    /// a function of asin(rho) the curve for 1 bit is a straight line, and others nearly so.
    fn angle(&self, r: f64) -> f64 {
        let (mut low, mut high) = (0.0, FRAC_PI_2);
        let mut angle = FRAC_PI_2 * r / self.limit;
        for _ in 0..64 {
            let excess = self.curve.value(angle) - r;
            if excess.abs() < 1e-14 {
                break;
            }
            if excess > 0.0 {
                high = angle;
            } else {
                low = angle;
            }
            let next = angle - excess / self.curve.slope(angle);
            angle = if low < next && next < high {
                next
            } else {
                (low + high) / 2.0
            };
        }
        angle
    }
}

impl Curve {
    /// Returns r at rho = sin(angle).
    fn value(&self, angle: f64) -> f64 {
        match self {
            Curve::Steps { .. } => integral_over_angle(angle, |angle| self.slope(angle)),
            Curve::Series(terms) => {
                let rho = angle.sin();
                let sum = terms.iter().rev();
                sum.fold(0.0, |sum, term| sum * rho * rho + term) * rho
            }
        }
    }

    /// Returns dr/dangle. The root in the density of two noises cancels against drho = cos(angle) dangle.
    fn slope(&self, angle: f64) -> f64 {
        let (rho, cosine) = angle.sin_cos();
        match self {
            Curve::Steps { a, b, scale } => {
                let pairs = a.0.iter().flat_map(|a| b.0.iter().map(move |b| (a, b)));
                let density = pairs.map(|(a, b)| {
                    let (sum, difference) = (a.at + b.at, a.at - b.at);
                    let exponent = ratio(sum * sum, 4.0 * (1.0 + rho))
                        + ratio(difference * difference, 4.0 * (1.0 - rho));
                    a.height * b.height * (-exponent).exp()
                });
                density.sum::<f64>() * scale / TAU
            }
            Curve::Series(terms) => {
                let slope = terms.iter().enumerate().rev();
                let slope = slope.fold(0.0, |sum, (order, term)| {
                    sum * rho * rho + (2 * order + 1) as f64 * term
                });
                slope * cosine
            }
        }
    }
}

fn ratio(above: f64, below: f64) -> f64 {
    if above == 0.0 { 0.0 } else { above / below }
}

/// Odd part of a sampler: position and height of its steps.
#[derive(Clone, Debug)]
struct Steps(Vec<Step>);

#[derive(Clone, Copy, Debug)]
struct Step {
    at: f64,
    height: f64,
}

impl Steps {
    fn of(codec: Codec) -> Steps {
        let levels = ascending(codec);
        let heights = levels.windows(2).map(|pair| (pair[1] - pair[0]) / 2.0);
        let mut steps: Vec<Step> = thresholds(&levels)
            .into_iter()
            .zip(heights)
            .flat_map(|(at, height)| [at, -at].map(|at| Step { at, height }))
            .collect();
        steps.sort_by(|a, b| a.at.total_cmp(&b.at));
        steps.dedup_by(|next, kept| {
            let same = next.at - kept.at < 1e-6;
            if same {
                kept.height += next.height;
            }
            same
        });
        Steps(steps)
    }

    /// Returns the coefficients of the odd normalised Hermite polynomials He_n / sqrt(n!): c_n = sum of height * density *
    /// He_{n-1}(at) / sqrt((n-1)!) / sqrt(n).
    fn hermite(&self) -> Vec<f64> {
        let mut coefficients = vec![0.0; ORDERS];
        for step in &self.0 {
            let weight = step.height * density(step.at);
            let (mut previous, mut value) = (0.0, 1.0);
            for order in 0..2 * ORDERS {
                if order % 2 == 0 {
                    coefficients[order / 2] += weight * value / ((order + 1) as f64).sqrt();
                }
                let next = (step.at * value - (order as f64).sqrt() * previous)
                    / ((order + 1) as f64).sqrt();
                (previous, value) = (value, next);
            }
        }
        coefficients
    }
}

/// Returns the levels of a codec in ascending order.
fn ascending(codec: Codec) -> Vec<f64> {
    let mut levels: Vec<f64> = codec
        .levels()
        .iter()
        .map(|level| f64::from(*level))
        .collect();
    levels.sort_by(f64::total_cmp);
    levels
}

/// Returns the values of the noise at which the level changes: halfway between equidistant levels.
fn thresholds(levels: &[f64]) -> Vec<f64> {
    if levels.len() == 4 {
        let threshold = f64::from(THRESHOLD);
        return vec![-threshold, 0.0, threshold];
    }
    levels
        .windows(2)
        .map(|pair| (pair[0] + pair[1]) / 2.0)
        .collect()
}

/// Density of the normal distribution.
fn density(x: f64) -> f64 {
    (-x * x / 2.0).exp() / (SQRT_2 * PI.sqrt())
}

/// Probability that normal noise is above `x`.
fn exceedance(x: f64) -> f64 {
    0.5 - integral(x, density)
}

/// Positive nodes and weights of the Gauss-Legendre rule of eight points.
const RULE: [(f64, f64); 4] = [
    (0.183_434_642_495_649_8, 0.362_683_783_378_362),
    (0.525_532_409_916_329, 0.313_706_645_877_887_3),
    (0.796_666_477_413_626_7, 0.222_381_034_453_374_5),
    (0.960_289_856_497_536_3, 0.101_228_536_290_376_3),
];
/// Number of pieces of an integral.
const PIECES: i32 = 20;
/// Factor by which each piece ends nearer to a right angle than it starts.
const NEARER: f64 = 0.75;

/// Integrates a function over an angle from 0 to `end`, which is at most a right angle. The function is smooth except for
/// features that become narrower the nearer they are to a right angle, like the densities of nearly identical noises.
fn integral_over_angle(end: f64, f: impl Fn(f64) -> f64) -> f64 {
    let edge = |piece: i32| match piece {
        PIECES => end,
        piece => end.min(FRAC_PI_2 * (1.0 - NEARER.powi(piece))),
    };
    integral_of_pieces(edge, f)
}

/// Integrates a smooth function from 0 to `end`.
fn integral(end: f64, f: impl Fn(f64) -> f64) -> f64 {
    let step = end / f64::from(PIECES);
    integral_of_pieces(|piece| f64::from(piece) * step, f)
}

fn integral_of_pieces(edge: impl Fn(i32) -> f64, f: impl Fn(f64) -> f64) -> f64 {
    let pieces = (0..PIECES).map(|piece| gauss(edge(piece), edge(piece + 1), &f));
    pieces.sum()
}

fn gauss(from: f64, to: f64, f: impl Fn(f64) -> f64) -> f64 {
    let (middle, half) = ((from + to) / 2.0, (to - from) / 2.0);
    let nodes = RULE
        .iter()
        .map(|(node, weight)| weight * (f(middle - node * half) + f(middle + node * half)));
    nodes.sum::<f64>() * half
}

#[cfg(test)]
mod tests;
