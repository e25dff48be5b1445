//! Minimal correlator that can check a simulated sky: one baseline, one channel.

use std::f64::consts::TAU;

use rustfft::FftPlanner;
use rustfft::num_complex::Complex64;

/// Accumulated product of the spectrum of one station and the conjugate of the other's.
pub struct CrossSpectrum {
    /// Bins in ascending frequency, in cycles per sample.
    bins: Vec<(f64, Complex64)>,
}

/// Number of samples in a transform.
const LENGTH: usize = 1024;

impl CrossSpectrum {
    /// Correlates one channel of each; `b` is later by `shift` samples.
    pub fn new(a: &[f32], b: &[f32], complex: bool, shift: i64) -> CrossSpectrum {
        let group = if complex { 2 } else { 1 };
        let skip = |late: i64| group * late.max(0) as usize;
        let transform = FftPlanner::new().plan_fft_forward(LENGTH);
        let spectrum = |samples: &[f32]| {
            let mut bins: Vec<Complex64> = samples
                .chunks_exact(group)
                .map(|sample| {
                    let im = sample.get(1).copied().unwrap_or_default();
                    Complex64::new(f64::from(sample[0]), f64::from(im))
                })
                .collect();
            transform.process(&mut bins);
            bins
        };
        let mut sum = vec![Complex64::default(); LENGTH];
        let a = a[skip(-shift)..].chunks_exact(group * LENGTH);
        let b = b[skip(shift)..].chunks_exact(group * LENGTH);
        for (a, b) in a.zip(b) {
            for (sum, (a, b)) in sum.iter_mut().zip(spectrum(a).iter().zip(spectrum(b))) {
                *sum += a * b.conj();
            }
        }
        let half = LENGTH as i64 / 2;
        // Without the edges of the channel, where the common signal is weak.
        let edge = half / 20;
        let lowest = if complex { -half } else { 0 };
        let frequencies = lowest + edge..half - edge;
        let bins = frequencies
            .map(|bin| {
                let index = bin.rem_euclid(LENGTH as i64) as usize;
                (bin as f64 / LENGTH as f64, sum[index])
            })
            .collect();
        CrossSpectrum { bins }
    }

    /// Returns the delay of the second station in seconds and the phase of the zero frequency in radians, from a straight line
    /// through the phases about `guess`.
    pub fn delay_and_phase(&self, sample_rate: f64, guess: f64) -> (f64, f64) {
        let turned: Vec<(f64, Complex64)> = self
            .bins
            .iter()
            .map(|(f, z)| {
                (
                    *f,
                    z * Complex64::from_polar(1.0, -TAU * f * sample_rate * guess),
                )
            })
            .collect();
        let mean = turned.iter().map(|(_, z)| z).sum::<Complex64>().arg();
        let line: Vec<(f64, f64)> = turned
            .iter()
            .map(|(f, z)| (*f, (z * Complex64::from_polar(1.0, -mean)).arg()))
            .collect();
        let count = line.len() as f64;
        let f0 = line.iter().map(|(f, _)| f).sum::<f64>() / count;
        let phase0 = line.iter().map(|(_, phase)| phase).sum::<f64>() / count;
        let slope = line
            .iter()
            .map(|(f, phase)| (f - f0) * (phase - phase0))
            .sum::<f64>()
            / line.iter().map(|(f, _)| (f - f0).powi(2)).sum::<f64>();
        (
            guess + slope / TAU / sample_rate,
            mean + phase0 - slope * f0,
        )
    }
}
