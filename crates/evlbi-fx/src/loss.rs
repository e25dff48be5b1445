//! Theory of the effect of lost samples on a correlation.
//!
//! Two stations record noise with a small correlation and equal power in all channels (white). The fraction `overlap` of the
//! correlated samples is intact at both stations. The sum of products then contains that fraction of the signal. Its noise is the
//! sum of the products of the powers, independent of the signal:
//!
//! variance = overlap + k_a (lost at a only) + k_b (lost at b only) + k_a k_b (lost at both)
//!
//! in units of the variance without loss. Here k is the power of the replacement of lost samples, in units of that of the noise:
//! 0 if they are flagged, 1.41 for random bytes of 2 bits, 1.70 for the fill pattern. So flagged loss costs sqrt(overlap) of the
//! signal-to-noise ratio, like the same reduction of time or bandwidth, and loss that is not flagged costs more.
//!
//! **Bands have shapes, and the noise of fill is in lines.** Noise is the mean over the channels of the product of the powers, so
//! a replacement counts with the power that the *other* station has at its frequency. The pattern repeats every 4 bytes, which
//! are 16 samples of one channel of 2 bits, so its power is at multiples of 1/16 of the sample rate. Most of it is at zero and at
//! half of the rate: 26 % each for real 2-bit samples. A receiver whose noise fades towards the edges of its band therefore loses
//! less to fill than a white one. The channels of real samples cover the frequencies from zero to below half of the rate. So the
//! line at half of it appears only if a fringe rotation shifts it down by half a channel or more, and then the line at zero does
//! not.
//!
//! The signal-to-noise ratio is that of a sum with equal weight for all channels. If channels are weighted by their own noise,
//! the lines affect few of them, and the loss is little more than for flagged fill.
//!
//! Fill that coincides at both stations is not noise but a signal. In units of the amplitude without loss, it is k / r times the
//! overlap of the fill, at zero delay and fringe rate. This theory does not cover it.
//!
//! Mark 4 spreads a word of the pattern over its tracks, so that each channel has its own part of it, which fan-out and the assignment of
//! tracks decide: with 32 tracks, fan-out 2 and 2 bits each sample has a high level (2.6 times the power of noise), with fan-out 4 those of
//! the first channel have a low one (0.2 times). It is found from the pattern as it is unpacked ([`Samples::fill`]).
//!
//! Theories of other kinds of loss belong here, each tested with a measurement on noise. What a reader keeps of frames that lose packets is
//! in [`packets`].

pub mod packets;

use rustfft::num_complex::Complex64;
use std::f64::consts::TAU;

use crate::codec::Codec;
use crate::quantise;

/// Replacement of lost samples, as seen by a correlator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Replaced {
    /// None; the samples are flagged and count as zero.
    Flagged,
    /// Random bytes that count as samples.
    Random,
    /// The fill pattern 0x11223344, which counts as samples.
    Fill,
}

/// Layout of a channel's samples in the payload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Samples<'a> {
    /// Code of each component.
    pub codec: Codec,
    /// Number of channels in the payload, from 1.
    pub channels: usize,
    /// Index of the channel, from 0.
    pub channel: usize,
    /// Whether samples have a real and an imaginary component.
    pub complex: bool,
    /// Upward frequency shift by fringe rotation, as a fraction of the sample rate.
    pub turn: f64,
    /// Payload of two words of the fill pattern, one for each byte of a word that recorded samples may begin with where they are fill: see
    /// [`Unpacker::fill`](crate::unpack::Unpacker::fill). Empty if unknown.
    pub fill: &'a [Vec<u8>],
}

/// Fractions of the time, 0 to 1, lost to a baseline of the stations a and b.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lost {
    a: f64,
    b: f64,
    both: f64,
}

impl Lost {
    /// Returns these fractions, lost independently.
    pub fn independent(a: f64, b: f64) -> Lost {
        let (a, b) = (a.clamp(0.0, 1.0), b.clamp(0.0, 1.0));
        Lost { a, b, both: a * b }
    }

    /// Returns the loss of the same wavefronts at both stations.
    pub fn in_common(fraction: f64) -> Lost {
        let [a, b, both] = [fraction.clamp(0.0, 1.0); 3];
        Lost { a, b, both }
    }

    /// Returns the loss of the same times at both stations, in cells of `cell` seconds. No two consecutive cells are lost, as if
    /// they are spread evenly, and one station receives `delay` seconds after the other. A fraction delay / cell of the
    /// wavefronts falls into different cells, so that f + f delay / cell is lost to the baseline.
    pub fn at_same_spread_times(fraction: f64, delay: f64, cell: f64) -> Lost {
        let lost = Lost::in_common(fraction);
        let both = lost.a * (1.0 - (delay.abs() / cell.abs()).min(1.0));
        Lost { both, ..lost }
    }

    /// Returns the fraction that is intact at both stations: the weight of the baseline if the loss is flagged.
    pub fn overlap(self) -> f64 {
        (1.0 - self.a - self.b + self.both).max(0.0)
    }

    /// Returns the signal-to-noise ratio in units of that without loss. `noise`: products of powers, as means over the band in
    /// units of that of both stations' noise, for replaced samples of the first station, of the second, and of both.
    fn snr(self, noise: [f64; 3]) -> f64 {
        let overlap = self.overlap();
        let lost = [self.a - self.both, self.b - self.both, self.both];
        let parts = noise.iter().zip(lost);
        let variance = parts.fold(overlap, |sum, (noise, lost)| sum + noise * lost);
        quotient(overlap, variance.sqrt())
    }

    /// Returns the root of the autocorrelations over all samples of both stations, in units of that without loss.
    fn autos(self, noise: [f64; 2]) -> f64 {
        let auto = |lost: f64, noise: f64| 1.0 - lost + noise * lost;
        (auto(self.a, noise[0]) * auto(self.b, noise[1])).sqrt()
    }
}

/// Measured quantities in units of those without loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratios {
    /// Amplitude if the sum of products is divided by the number of all samples.
    pub amplitude_by_all: f64,
    /// Amplitude if it is divided by the root of the autocorrelations, which are sums over all samples as well.
    pub amplitude_by_autos: f64,
    /// Amplitude if it is divided by the number of samples that are intact at both stations; 0 if none is. If the loss is not
    /// flagged, its times must be known from elsewhere.
    pub amplitude_by_overlap: f64,
    /// Weight that the correlator gives: the overlap if loss is flagged, otherwise 1.
    pub weight: f64,
    /// Signal-to-noise ratio over the whole band, see [the module](self).
    pub snr: f64,
}

impl Ratios {
    /// Returns the ratios if further samples, chosen independently, are flagged.
    pub fn flagged(self, lost: Lost) -> Ratios {
        let overlap = lost.overlap();
        Ratios {
            amplitude_by_all: self.amplitude_by_all * overlap,
            amplitude_by_autos: self.amplitude_by_autos * quotient(overlap, lost.autos([0.0; 2])),
            amplitude_by_overlap: self.amplitude_by_overlap,
            weight: self.weight * overlap,
            snr: self.snr * overlap.sqrt(),
        }
    }
}

/// Predicts the ratios for a baseline of two stations with such samples and band shapes. `spectra` is the power of each station,
/// in any units, in any number of averaged channels: from zero to half of the sample rate for real samples, from minus to plus
/// half of it for complex ones. Returns `None` if fill coincides with fill, or a station's is unknown.
pub fn predicted(
    replaced: Replaced,
    lost: Lost,
    samples: [Samples<'_>; 2],
    spectra: [&[f64]; 2],
) -> Option<Ratios> {
    let is_unknown = |(lost, samples): (f64, Samples<'_>)| lost > 0.0 && samples.fill.is_empty();
    let mut stations = [lost.a, lost.b].into_iter().zip(samples);
    if replaced == Replaced::Fill && (lost.both > 0.0 || stations.any(is_unknown)) {
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

/// Returns the power of the replacement in units of that of sampled Gaussian noise, as a mean over the whole band.
pub fn noise(replaced: Replaced, samples: Samples<'_>) -> f64 {
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

/// Returns the same times the other station's power at the frequency of the replacement.
fn power_against(replaced: Replaced, samples: Samples<'_>, other: &[f64]) -> f64 {
    let channels = other.len();
    if replaced != Replaced::Fill {
        return noise(replaced, samples) * quotient(other.iter().sum(), channels as f64);
    }
    let power = |line: &Line| {
        // For real samples half of the transform is channels, which contain all of the noise.
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

/// Line in the spectrum of the fill pattern.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    /// Frequency in units of the sample rate, from -0.5 to below 0.5.
    frequency: f64,
    /// Power in units of that of sampled Gaussian noise over the whole band, from minus to plus half of the sample rate.
    power: f64,
}

/// Returns the spectrum of the fill pattern in the channel; for real samples each line has both signs. Some lines have no power.
///
/// The line at half of the rate is listed at minus half of it, which for real samples is outside 0 to 0.5.
fn fill_lines(samples: Samples<'_>) -> Vec<Line> {
    let starts = samples.fill.iter();
    let lines = starts.flat_map(|word| lines_of(&pattern(samples, word), samples));
    lines.collect()
}

/// Returns the lines of a repeated pattern, which is one of as many as the samples have.
fn lines_of(pattern: &[Complex64], samples: Samples<'_>) -> Vec<Line> {
    let length = pattern.len() as f64;
    let components = if samples.complex { 2.0 } else { 1.0 };
    let unit = length * length * components * quantise::power(samples.codec);
    let unit = unit * samples.fill.len() as f64;
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

/// Returns the complete samples of the channel over one period of a pattern.
fn pattern(samples: Samples<'_>, words: &[u8]) -> Vec<Complex64> {
    // The lines of one word have no others between them.
    let word = match words.split_at(words.len() / 2) {
        (first, second) if first == second => first,
        _ => words,
    };
    let mut values = [0.0; 64];
    let count = samples.codec.decode(word, &mut values);
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
