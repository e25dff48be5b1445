//! Signal that one station records in one channel.
//!
//! The common signal `w(t)` is white complex noise that fills the channel, the same for every station. The received signal is
//! `s(t) = w(t - tau(t)) exp(-2 pi i nu tau(t))`, where `nu` is the sky frequency of the samples' zero frequency; a channel of
//! real samples is its real part. It is made in overlapping blocks: rotated by the phase of each sample, shifted by the delay
//! rounded to whole samples, and shifted by the rest in the frequency domain.

use std::f64::consts::PI;
use std::sync::Arc;

use realfft::{ComplexToReal, RealFftPlanner};
use rustfft::num_complex::{Complex32, Complex64};
use rustfft::{Fft, FftPlanner};

use super::noise::Noise;

/// Number of complex samples in a transform.
const LENGTH: usize = 4096;
/// Number of samples at each end of a block that its neighbours provide, because there the filter lacks the samples outside. With
/// [`EDGE`] the error is 70 dB below the signal.
const GUARD: usize = 128;
/// Number of complex samples that a block yields.
const HOP: usize = LENGTH - 2 * GUARD;
/// Fraction of the channel over which the common signal rises and falls at the edges, as with real filters. A filter without
/// slopes would never settle.
const EDGE: f64 = 0.02;

/// Parameters of one channel of one station.
#[derive(Clone, Debug)]
pub(super) struct ChannelPlan {
    pub(super) seed: u64,
    /// Stream of the common noise.
    pub(super) common: u64,
    /// Stream of the station's own noise.
    pub(super) own: u64,
    /// Samples per second, real or complex.
    pub(super) sample_rate: f64,
    pub(super) complex: bool,
    /// Sky frequency of the samples' zero frequency, Hz.
    pub(super) sky_frequency: f64,
    /// Delay of the station in seconds: coefficients of a polynomial in the seconds since the start.
    pub(super) delay: Vec<f64>,
    /// Fraction of the common signal in the power of the noise.
    pub(super) share: f64,
    /// Frequencies of the phase-cal tones in the channel, Hz.
    pub(super) tones: Vec<f64>,
    /// Power of each tone, in units of that of the noise.
    pub(super) tone_power: f64,
}

impl ChannelPlan {
    /// Returns the power of the noise, common and own, if the total power is 1.
    fn noise_power(&self) -> f64 {
        1.0 / (1.0 + self.tone_power * self.tones.len() as f64)
    }
}

/// Generator of the components of a channel, block by block; their rms is 1.
pub(super) struct Channel {
    plan: ChannelPlan,
    common: Noise,
    own: Noise,
    transforms: Transforms,
    /// Gain of each bin.
    gain: Vec<f32>,
    block: Vec<Complex32>,
    /// Real samples of a block; empty if samples are complex.
    real: Vec<f32>,
    noise: Vec<Complex32>,
    scratch: Vec<Complex32>,
}

/// Forward and inverse transform, shared by all channels of a station.
#[derive(Clone)]
pub(super) struct Transforms {
    forward: Arc<dyn Fft<f32>>,
    back: Back,
}

#[derive(Clone)]
enum Back {
    Complex(Arc<dyn Fft<f32>>),
    Real(Arc<dyn ComplexToReal<f32>>),
}

impl Transforms {
    pub(super) fn new(complex: bool) -> Transforms {
        let mut planner = FftPlanner::new();
        Transforms {
            forward: planner.plan_fft_forward(LENGTH),
            back: if complex {
                Back::Complex(planner.plan_fft_inverse(LENGTH))
            } else {
                Back::Real(RealFftPlanner::new().plan_fft_inverse(2 * LENGTH))
            },
        }
    }

    fn scratch_length(&self) -> usize {
        let back = match &self.back {
            Back::Complex(transform) => transform.get_inplace_scratch_len(),
            Back::Real(transform) => transform.get_scratch_len(),
        };
        back.max(self.forward.get_inplace_scratch_len())
    }
}

impl Channel {
    pub(super) fn new(plan: ChannelPlan, transforms: &Transforms) -> Channel {
        let zeros = |length| vec![Complex32::default(); length];
        Channel {
            common: Noise::new(plan.seed, plan.common),
            own: Noise::new(plan.seed, plan.own),
            transforms: transforms.clone(),
            gain: gain(plan.complex, plan.share * plan.noise_power()),
            // A real transform has one more bin.
            block: zeros(LENGTH + 1),
            real: vec![0.0; if plan.complex { 0 } else { 2 * LENGTH }],
            noise: zeros(HOP),
            scratch: zeros(transforms.scratch_length()),
            plan,
        }
    }

    /// Number of components in a block: two real samples or one complex one per complex number.
    pub(super) const COMPONENTS: usize = 2 * HOP;

    /// Writes block `number` of the channel: component `i` to `values[i]`.
    pub(super) fn fill(&mut self, number: u64, values: &mut [f32]) {
        let first = number as i64 * HOP as i64;
        self.common_signal(first);
        self.own.fill(first, &mut self.noise);
        // Per component.
        let own = (self.plan.noise_power() * (1.0 - self.plan.share)).sqrt() as f32;
        let (values, _) = values.as_chunks_mut::<2>();
        if self.plan.complex {
            let signal = &self.block[GUARD..];
            for ((value, signal), noise) in values.iter_mut().zip(signal).zip(&self.noise) {
                *value = [signal.re + own * noise.re, signal.im + own * noise.im];
            }
        } else {
            let (signal, _) = self.real[2 * GUARD..].as_chunks::<2>();
            for ((value, signal), noise) in values.iter_mut().zip(signal).zip(&self.noise) {
                *value = [signal[0] + own * noise.re, signal[1] + own * noise.im];
            }
        }
        self.add_tones(first, values.as_flattened_mut());
    }

    /// Writes the common signal of a block as it arrives at the station to the output of the inverse transform, `GUARD` complex
    /// samples late.
    fn common_signal(&mut self, first: i64) {
        // The complex signal of a real channel has one sample for two real ones.
        let rate = match self.plan.complex {
            true => self.plan.sample_rate,
            false => self.plan.sample_rate / 2.0,
        };
        let middle = (first as f64 + HOP as f64 / 2.0) / rate;
        let (delay, delay_rate) = polynomial(&self.plan.delay, middle);
        let whole = (delay * rate).round();
        let rest = delay * rate - whole;
        let input = first - GUARD as i64;
        self.common
            .fill(input - whole as i64, &mut self.block[..LENGTH]);

        // The sample that the filter shifts to t already has the phase of t.
        let turns = |t: f64| -self.plan.sky_frequency * (delay + delay_rate * (t - middle));
        let begin = turns((input as f64 + rest) / rate);
        let step = -self.plan.sky_frequency * delay_rate / rate;
        rotate(&mut self.block[..LENGTH], begin, step);

        self.transforms
            .forward
            .process_with_scratch(&mut self.block[..LENGTH], &mut self.scratch);
        for (bin, gain) in self.block.iter_mut().zip(&self.gain) {
            *bin *= gain;
        }
        let step = -rest / LENGTH as f64;
        match &self.transforms.back {
            Back::Complex(transform) => {
                let (upper, lower) = self.block[..LENGTH].split_at_mut(LENGTH / 2);
                rotate(upper, 0.0, step);
                rotate(lower, -(LENGTH as f64) / 2.0 * step, step);
                transform.process_with_scratch(&mut self.block[..LENGTH], &mut self.scratch);
            }
            Back::Real(transform) => {
                rotate(&mut self.block[..LENGTH], 0.0, step);
                // The gain is zero at both edges.
                self.block[0] = Complex32::default();
                self.block[LENGTH] = Complex32::default();
                transform
                    .process_with_scratch(&mut self.block, &mut self.real, &mut self.scratch)
                    .unwrap_or_else(|error| unreachable!("the lengths are the plan's: {error}"));
            }
        }
    }

    fn add_tones(&mut self, first: i64, values: &mut [f32]) {
        let (per_block, start) = match self.plan.complex {
            true => (HOP, first),
            false => (2 * HOP, 2 * first),
        };
        // The mean square of a tone is half of the square of its amplitude, per component.
        let amplitude = (self.plan.noise_power() * self.plan.tone_power * 2.0).sqrt();
        let amplitude = Complex32::new(amplitude as f32, 0.0);
        let mut tone = [Complex32::default(); 256];
        for frequency in &self.plan.tones {
            let step = frequency / self.plan.sample_rate;
            for at in (0..per_block).step_by(tone.len()) {
                tone.fill(amplitude);
                rotate(&mut tone, (start + at as i64) as f64 * step, step);
                if self.plan.complex {
                    let (values, _) = values[2 * at..].as_chunks_mut::<2>();
                    for (value, tone) in values.iter_mut().zip(tone) {
                        value[0] += tone.re;
                        value[1] += tone.im;
                    }
                } else {
                    for (value, tone) in values[at..].iter_mut().zip(tone) {
                        *value += tone.re;
                    }
                }
            }
        }
    }
}

/// Returns the gain of each bin: flat with slopes at the edges of the channel, so that the common signal has the power `power` in
/// each component.
fn gain(complex: bool, power: f64) -> Vec<f32> {
    let shape: Vec<f64> = (0..LENGTH)
        .map(|bin| {
            // The edges are at zero and the end, or in the middle, where frequencies become negative.
            let from_edge = match complex {
                true => bin.abs_diff(LENGTH / 2),
                false => bin.min(LENGTH - bin),
            };
            slope(from_edge as f64 / LENGTH as f64)
        })
        .collect();
    let sum: f64 = shape.iter().map(|gain| gain * gain).sum();
    // A bin of unnormalised white noise has the power 2 LENGTH. In the time domain a component of complex samples has half of it,
    // a real sample twice of it, from both signs of the frequency.
    let per_bin = LENGTH as f64 * if complex { 1.0 } else { 4.0 };
    let scale = (power / (per_bin * sum)).sqrt();
    shape.iter().map(|gain| (gain * scale) as f32).collect()
}

/// Returns the gain of the filter at a distance from the edge of the channel, in units of its width.
fn slope(from_edge: f64) -> f64 {
    (1.0 - (PI * (from_edge / EDGE).min(1.0)).cos()) / 2.0
}

/// Returns value and slope of a polynomial.
fn polynomial(coefficients: &[f64], t: f64) -> (f64, f64) {
    coefficients
        .iter()
        .rev()
        .fold((0.0, 0.0), |(value, slope), coefficient| {
            (value * t + coefficient, slope * t + value)
        })
}

/// Multiplies sample `i` by exp(2 pi i (begin + i step)), turns.
fn rotate(samples: &mut [Complex32], begin: f64, step: f64) {
    /// Number of samples that share a coarse phase.
    const RUN: usize = 64;
    let phasor = |turns: f64| {
        let (sin, cos) = (turns.fract() * 2.0 * PI).sin_cos();
        Complex64::new(cos, sin)
    };
    let mut fine = [Complex32::default(); RUN];
    for (i, fine) in fine.iter_mut().enumerate() {
        let phasor = phasor(step * i as f64);
        *fine = Complex32::new(phasor.re as f32, phasor.im as f32);
    }
    for (run, samples) in samples.chunks_mut(RUN).enumerate() {
        let coarse = phasor(begin + step * (run * RUN) as f64);
        let coarse = Complex32::new(coarse.re as f32, coarse.im as f32);
        for (sample, fine) in samples.iter_mut().zip(&fine) {
            *sample *= coarse * fine;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of complex samples that the oracle uses, far more than it compares.
    const KNOWN: usize = 1 << 16;

    fn plan(complex: bool, delay: &[f64]) -> ChannelPlan {
        ChannelPlan {
            seed: 5,
            common: 3,
            own: 4,
            sample_rate: 64e6,
            complex,
            sky_frequency: 4.9e9,
            delay: delay.to_vec(),
            share: 1.0,
            tones: Vec::new(),
            tone_power: 0.0,
        }
    }

    /// Generates blocks 2 to 4 of the channel.
    fn made(plan: &ChannelPlan) -> Vec<f32> {
        let mut channel = Channel::new(plan.clone(), &Transforms::new(plan.complex));
        let mut values = vec![0.0; 3 * Channel::COMPONENTS];
        for (number, values) in values.chunks_mut(Channel::COMPONENTS).enumerate() {
            channel.fill(2 + number as u64, values);
        }
        values
    }

    /// Calculates the spectrum of the filtered noise from one long transform: frequency in the channel in units of its width, and
    /// amplitude at the sample `-KNOWN / 2` of the noise.
    fn spectrum(plan: &ChannelPlan) -> Vec<(f64, Complex64)> {
        let mut noise = vec![Complex32::default(); KNOWN];
        Noise::new(plan.seed, plan.common).fill(-(KNOWN as i64) / 2, &mut noise);
        let mut bins: Vec<Complex64> = noise
            .iter()
            .map(|z| Complex64::new(f64::from(z.re), f64::from(z.im)))
            .collect();
        FftPlanner::new().plan_fft_forward(KNOWN).process(&mut bins);
        let bins = bins.into_iter().enumerate().map(|(bin, amplitude)| {
            let f = bin as f64 / KNOWN as f64;
            let (f, from_edge) = if plan.complex {
                (if f < 0.5 { f } else { f - 1.0 }, (f - 0.5).abs())
            } else {
                (f, f.min(1.0 - f))
            };
            (f, amplitude * slope(from_edge) / KNOWN as f64)
        });
        bins.filter(|(_, amplitude)| amplitude.norm() > 0.0)
            .collect()
    }

    /// Calculates the definition: `w(t - tau(t)) exp(-2 pi i nu tau(t))`, interpolating the noise between samples from its
    /// spectrum.
    fn oracle(plan: &ChannelPlan, spectrum: &[(f64, Complex64)], t: f64) -> Complex64 {
        let width = if plan.complex {
            plan.sample_rate
        } else {
            plan.sample_rate / 2.0
        };
        let (delay, _) = polynomial(&plan.delay, t);
        let phasor = |turns: f64| Complex64::from_polar(1.0, 2.0 * PI * turns.fract());
        let samples = (t - delay) * width + KNOWN as f64 / 2.0;
        let signal: Complex64 = spectrum
            .iter()
            .map(|(f, amplitude)| amplitude * phasor(f * samples))
            .sum();
        signal * phasor(-plan.sky_frequency * delay)
    }

    /// Returns the power of the difference from the oracle, in units of the power of the signal, independent of scale.
    fn error(plan: &ChannelPlan) -> f64 {
        let made = made(plan);
        let spectrum = spectrum(plan);
        let per_sample = if plan.complex { 2 } else { 1 };
        let first = 2 * Channel::COMPONENTS / per_sample;
        let (mut both, mut ours, mut theirs) = (0.0, 0.0, 0.0);
        for sample in (0..made.len() / per_sample).step_by(97) {
            let t = (first + sample) as f64 / plan.sample_rate;
            let truth = oracle(plan, &spectrum, t);
            let truth = [truth.re, truth.im];
            for (value, truth) in made[sample * per_sample..][..per_sample].iter().zip(truth) {
                let value = f64::from(*value);
                both += value * truth;
                ours += value * value;
                theirs += truth * truth;
            }
        }
        assert!(both > 0.0);
        1.0 - both * both / (ours * theirs)
    }

    #[test]
    fn constant_delays_are_exact() {
        evlbi_testkit::watch();
        for complex in [false, true] {
            for delay in [0.0, 1e-7, -3.456e-7, 1.000_37e-4, -1.234_567_8e-4] {
                let error = error(&plan(complex, &[delay]));
                assert!(error < 1e-7, "{complex} {delay}: {error:e}");
            }
        }
    }

    #[test]
    fn moving_delays_are_followed() {
        for complex in [false, true] {
            let error = error(&plan(complex, &[1e-5, 1.5e-6, 1e-6]));
            assert!(error < 1e-4, "{complex}: {error:e}");
        }
    }

    #[test]
    fn polynomials_have_value_and_slope() {
        assert_eq!(polynomial(&[1.0, 2.0, 3.0], 2.0), (17.0, 14.0));
        assert_eq!(polynomial(&[], 2.0), (0.0, 0.0));
    }
}
