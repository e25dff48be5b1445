//! What the loss of a part of the samples costs a correlation, in theory.
//!
//! Two stations record noise that correlates little, of equal power in all channels (white). Of the samples
//! in the correlation the fraction `overlap` is intact at both stations. The sum of products then holds that
//! fraction of the signal. Its noise is the sum of the products of the powers, whatever the signal:
//!
//! variance = overlap + k_a (lost at a only) + k_b (lost at b only) + k_a k_b (lost at both)
//!
//! in units of that without loss, k being the power of what stands in the place of lost samples, in units of
//! that of the noise: 0 where they are flagged, 1.41 for random bytes of 2 bits, 1.70 for the fill pattern.
//! So flagged loss costs sqrt(overlap) of the signal-to-noise ratio, as so much less time or bandwidth does,
//! and loss that is not flagged costs more.
//!
//! **Bands have shapes, and the noise of fill is in lines.** Noise is the mean over the channels of the product of
//! the powers, so what replaces samples counts as much as the *other* station has power where it lies. The
//! pattern repeats every 4 bytes, every 16 samples of one channel of 2 bits, so its power lies at multiples of
//! 1/16 of the sample rate, most of it at zero and at half of the rate: 26 % each of real 2-bit samples. A
//! receiver whose noise fades towards the edges of its band therefore loses less by fill than a white one. Of real
//! samples the channels hold the frequencies from zero to below half of the rate, so that the line at half of it is
//! seen only where a rotation of fringes turns it down by half a channel or more, and then that at zero is not.
//!
//! The signal-to-noise ratio is that of a sum with equal weight of all channels. Channels that are weighed by
//! their own noise see the lines in few of them only, and lose little more than where fill is flagged.
//!
//! Fill that coincides at both stations is not noise but a signal, of k / r times the overlap of the fill in
//! units of the amplitude without loss at zero delay and fringe rate. There is no theory of it here.
//!
//! Here belongs what theory says of another kind of loss, with a measurement of noise as its test.

use evlbi_wire::fill;
use rustfft::num_complex::Complex64;
use std::f64::consts::TAU;

use crate::codec::Codec;
use crate::quantise;

/// What a correlator finds in the place of lost samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Replaced {
    /// Nothing, and it knows: they count as zero.
    Flagged,
    /// Random bytes that it takes for samples.
    Random,
    /// The fill pattern 0x11223344 that it takes for samples.
    Fill,
}

/// How the samples of the channel in question lie in the payload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Samples {
    /// Code of each component.
    pub codec: Codec,
    /// Channels in the payload, from 1.
    pub channels: usize,
    /// Which one, from 0.
    pub channel: usize,
    /// Whether samples have a real and an imaginary component.
    pub complex: bool,
    /// By how much of the sample rate a rotation of fringes moves them up in frequency.
    pub turn: f64,
}

/// Which parts of the time are lost to a baseline of the stations a and b, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lost {
    a: f64,
    b: f64,
    both: f64,
}

impl Lost {
    /// These fractions, each by its own chance.
    pub fn independent(a: f64, b: f64) -> Lost {
        let (a, b) = (a.clamp(0.0, 1.0), b.clamp(0.0, 1.0));
        Lost { a, b, both: a * b }
    }

    /// The same wavefronts at both stations.
    pub fn in_common(fraction: f64) -> Lost {
        let [a, b, both] = [fraction.clamp(0.0, 1.0); 3];
        Lost { a, b, both }
    }

    /// The same times at both stations, in cells of `cell` seconds of which no two that are lost follow each other, as where
    /// they are spread evenly, and one station receives `delay` seconds after the other. A part delay / cell of the
    /// wavefronts falls into different cells, so that f + f delay / cell is lost to the baseline.
    pub fn at_same_spread_times(fraction: f64, delay: f64, cell: f64) -> Lost {
        let lost = Lost::in_common(fraction);
        let both = lost.a * (1.0 - (delay.abs() / cell.abs()).min(1.0));
        Lost { both, ..lost }
    }

    /// The fraction that is intact at both stations: the weight of the baseline if the loss is flagged.
    pub fn overlap(self) -> f64 {
        (1.0 - self.a - self.b + self.both).max(0.0)
    }

    /// Signal-to-noise ratio in units of that without loss. `noise`: products of powers, means over the band, in units of that
    /// of both stations' noise, where samples are replaced of the first, of the second, and of both.
    fn snr(self, noise: [f64; 3]) -> f64 {
        let overlap = self.overlap();
        let lost = [self.a - self.both, self.b - self.both, self.both];
        let parts = noise.iter().zip(lost);
        let variance = parts.fold(overlap, |sum, (noise, lost)| sum + noise * lost);
        quotient(overlap, variance.sqrt())
    }

    /// The root of the autocorrelations over all samples of both stations in units of that without loss.
    fn autos(self, noise: [f64; 2]) -> f64 {
        let auto = |lost: f64, noise: f64| 1.0 - lost + noise * lost;
        (auto(self.a, noise[0]) * auto(self.b, noise[1])).sqrt()
    }
}

/// What a correlation measures in units of what it measures without loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratios {
    /// Amplitude, where the sum of products is divided by the number of all samples.
    pub amplitude_by_all: f64,
    /// Amplitude, where it is divided by the root of the autocorrelations, sums over all samples as well.
    pub amplitude_by_autos: f64,
    /// Amplitude, where it is divided by the number of samples that are intact at both stations. If the loss
    /// is not flagged, someone must tell when it was. 0 if none is intact.
    pub amplitude_by_overlap: f64,
    /// The weight that the correlator gives: the overlap if loss is flagged, otherwise 1.
    pub weight: f64,
    /// Signal-to-noise ratio over the whole band, see [the module](self).
    pub snr: f64,
}

/// What theory says of a baseline of two stations with such samples, in bands of such shapes: `spectra` is the
/// power of each station, in any units, in as many channels as are averaged, from zero to half of the sample rate
/// for real samples, from minus to plus half of it for complex ones. None where fill
/// coincides with fill.
pub fn predicted(
    replaced: Replaced,
    lost: Lost,
    samples: [Samples; 2],
    spectra: [&[f64]; 2],
) -> Option<Ratios> {
    if replaced == Replaced::Fill && lost.both > 0.0 {
        return None;
    }
    let mean = |values: &[f64]| quotient(values.iter().sum(), values.len() as f64);
    let [first, second] = spectra;
    let products: Vec<f64> = first.iter().zip(second).map(|(a, b)| a * b).collect();
    let whole = mean(&products);
    let noise = samples.map(|samples| noise(replaced, samples));
    let against = |station: usize| {
        let power = power_against(replaced, samples[station], spectra[1 - station]);
        quotient(power * mean(spectra[station]), whole)
    };
    let both = quotient(noise[0] * noise[1] * mean(first) * mean(second), whole);
    let overlap = lost.overlap();
    Some(Ratios {
        amplitude_by_all: overlap,
        amplitude_by_autos: quotient(overlap, lost.autos(noise)),
        amplitude_by_overlap: quotient(overlap, overlap),
        weight: match replaced {
            Replaced::Flagged => overlap,
            _ => 1.0,
        },
        snr: lost.snr([against(0), against(1), both]),
    })
}

fn quotient(above: f64, below: f64) -> f64 {
    if below == 0.0 { 0.0 } else { above / below }
}

/// Power of what replaces lost samples in units of that of sampled Gaussian noise, mean over the whole band.
pub fn noise(replaced: Replaced, samples: Samples) -> f64 {
    match replaced {
        Replaced::Flagged => 0.0,
        Replaced::Random => {
            let levels = samples.codec.levels();
            let squares = levels.iter().map(|level| f64::from(level * level));
            squares.sum::<f64>() / levels.len() as f64 / quantise::power(samples.codec)
        }
        Replaced::Fill => fill_lines(samples).iter().map(|line| line.power).sum(),
    }
}

/// The same times the other station's power where it lies.
fn power_against(replaced: Replaced, samples: Samples, other: &[f64]) -> f64 {
    let channels = other.len();
    if replaced != Replaced::Fill {
        return noise(replaced, samples) * quotient(other.iter().sum(), channels as f64);
    }
    let power = |line: &Line| {
        // Of real samples half of the transform are channels, which hold all of the noise.
        let (all, from, share) = match samples.complex {
            true => (channels, 0.5, 1.0),
            false => (2 * channels, 0.0, 2.0),
        };
        let bin = (line.frequency + samples.turn + from) * all as f64;
        let bin = (bin.round() as i64).rem_euclid(all.max(1) as i64) as usize;
        share * line.power * other.get(bin).unwrap_or(&0.0)
    };
    fill_lines(samples).iter().map(power).sum()
}

/// A line in the spectrum of the fill pattern.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    /// In units of the sample rate, -0.5 or more and below 0.5.
    frequency: f64,
    /// In units of the power of sampled Gaussian noise over the whole band, from minus to plus half of the
    /// sample rate.
    power: f64,
}

/// The spectrum of the fill pattern in the channel, real samples having each line at both signs. Lines
/// without power are among them.
///
/// The line at half of the rate stands at minus half of it, for real samples outside of 0 to 0.5.
fn fill_lines(samples: Samples) -> Vec<Line> {
    let pattern = fill_pattern(samples);
    let length = pattern.len() as f64;
    let components = if samples.complex { 2.0 } else { 1.0 };
    let unit = length * length * components * quantise::power(samples.codec);
    (0..pattern.len())
        .map(|turn| {
            let frequency = turn as f64 / length;
            let terms = pattern.iter().zip(0..).map(|(value, time)| {
                value * Complex64::from_polar(1.0, -TAU * frequency * f64::from(time))
            });
            Line {
                frequency: frequency - f64::from(frequency >= 0.5),
                power: terms.sum::<Complex64>().norm_sqr() / unit,
            }
        })
        .collect()
}

/// Complete samples of the channel over a length after which the pattern repeats.
fn fill_pattern(samples: Samples) -> Vec<Complex64> {
    let mut word = [0; 4];
    fill::make(&mut word);
    let mut values = [0.0; 32];
    let count = samples.codec.decode(&word, &mut values);
    let components = if samples.complex { 2 } else { 1 };
    let component = |time: usize, part: usize| {
        let stride = samples.channels % count;
        let place = (time * stride + samples.channel % count) * components + part;
        f64::from(values[place % count])
    };
    (0..count)
        .map(|time| match samples.complex {
            true => Complex64::new(component(time, 0), component(time, 1)),
            false => Complex64::from(component(time, 0)),
        })
        .collect()
}

#[cfg(test)]
mod tests;
