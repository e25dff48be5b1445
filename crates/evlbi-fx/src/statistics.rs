//! Statistics of the samples of a recording: counts of each code, mean and rms, and the spectrum.

use std::f32::consts::PI;
use std::sync::Arc;

use rustfft::num_complex::Complex32;
use rustfft::{Fft, FftPlanner};
use serde::Serialize;

use crate::codec::Codec;

/// Maximum length of a transform of a spectrum, in samples.
const MAX: usize = 256;
/// Minimum length of a transform of a spectrum, in samples.
const MIN: usize = 8;

/// Maximum number of channels, since a header can give billions of channels.
const MAX_CHANNELS: u64 = 4096;

/// Number of channels outside the supported range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no statistics of {0} channels: supported are 1 to {MAX_CHANNELS}")]
#[non_exhaustive]
pub struct ChannelsError(pub u64);

/// Statistics of one channel.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChannelStatistics {
    /// Statistics of the real part, and of the imaginary part of complex samples.
    pub components: Vec<ComponentStatistics>,
    /// Power of each spectral channel, in ascending frequency from `lowest_frequency` on: for white noise, each is its mean
    /// square. Empty if no payload contained enough samples.
    pub spectrum: Vec<f64>,
    /// Frequency of the middle of the first spectral channel, in units of the sample rate.
    pub lowest_frequency: f64,
    /// Spacing of the spectral channels, in units of the sample rate.
    pub resolution: f64,
}

/// Statistics of one component of the samples of a channel.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ComponentStatistics {
    /// Count of each level, from the lowest level to the highest.
    pub counts: Vec<u64>,
    /// Mean of the levels.
    pub mean: f64,
    /// Root of the mean square of the levels.
    pub rms: f64,
}

/// Statistics of one thread, collected payload by payload.
pub struct Statistics {
    codec: Codec,
    channels: usize,
    /// Components per sample.
    group: usize,
    /// Counts by channel, component and code.
    counts: Vec<u64>,
    values: Vec<f32>,
    spectra: Spectra,
}

impl Statistics {
    /// Makes empty statistics for payloads of `channels` channels.
    pub fn new(codec: Codec, channels: u64, complex: bool) -> Result<Statistics, ChannelsError> {
        if !(1..=MAX_CHANNELS).contains(&channels) {
            return Err(ChannelsError(channels));
        }
        let channels = channels as usize;
        let group = if complex { 2 } else { 1 };
        Ok(Statistics {
            codec,
            channels,
            group,
            counts: vec![0; channels * group * codec.levels().len()],
            values: Vec::new(),
            spectra: Spectra {
                channels,
                complex,
                transform: None,
                pieces: 0,
            },
        })
    }

    /// Adds the samples of a payload. Components of an incomplete last sample are skipped.
    pub fn add(&mut self, payload: &[u8]) {
        // Whole bytes, as the longest transform is a multiple of eight samples.
        let bits = self.channels * self.group * usize::from(self.codec.width());
        for piece in payload.chunks(MAX / 8 * bits) {
            self.add_piece(piece);
        }
    }

    fn add_piece(&mut self, piece: &[u8]) {
        let stride = self.channels * self.group;
        let components = self.codec.components(piece.len()) / stride * stride;
        let codes = self.codec.levels().len();
        let mut counters = (0..stride).cycle().take(components);
        self.codec.codes(piece, |code| {
            if let Some(counter) = counters.next() {
                self.counts[counter * codes + usize::from(code)] += 1;
            }
        });
        self.values.resize(components, 0.0);
        self.codec.decode(piece, &mut self.values);
        self.spectra.add(&self.values);
    }

    /// Returns the statistics of each channel, over everything that was added.
    pub fn channels(&self) -> Vec<ChannelStatistics> {
        let codes = self.codec.levels().len();
        let (lowest_frequency, resolution) = self.spectra.frequencies();
        self.counts
            .chunks_exact(codes * self.group)
            .enumerate()
            .map(|(channel, counts)| ChannelStatistics {
                components: counts
                    .chunks_exact(codes)
                    .map(|counts| component(self.codec, counts))
                    .collect(),
                spectrum: self.spectra.channel(channel),
                lowest_frequency,
                resolution,
            })
            .collect()
    }
}

fn component(codec: Codec, counts: &[u64]) -> ComponentStatistics {
    let levels = codec.levels();
    let total = counts.iter().sum::<u64>().max(1) as f64;
    let mean_of = |f: &dyn Fn(f64) -> f64| {
        let weighted = counts.iter().zip(levels);
        let sum: f64 = weighted
            .map(|(count, level)| *count as f64 * f(f64::from(*level)))
            .sum();
        sum / total
    };
    let mut by_level: Vec<(f32, u64)> =
        levels.iter().copied().zip(counts.iter().copied()).collect();
    by_level.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    ComponentStatistics {
        counts: by_level.into_iter().map(|(_, count)| count).collect(),
        mean: mean_of(&|level| level),
        rms: mean_of(&|level| level * level).sqrt(),
    }
}

/// Power spectra of all channels. Each payload is transformed separately, so that nothing is assumed about the data between
/// payloads.
struct Spectra {
    channels: usize,
    complex: bool,
    /// Transform of the length that the first payload allowed.
    transform: Option<Transform>,
    pieces: u64,
}

struct Transform {
    forward: Arc<dyn Fft<f32>>,
    window: Vec<f32>,
    bins: Vec<Complex32>,
    scratch: Vec<Complex32>,
    /// Power by channel and bin, summed over the pieces.
    power: Vec<f64>,
}

impl Spectra {
    /// Adds interleaved components.
    fn add(&mut self, values: &[f32]) {
        let group = if self.complex { 2 } else { 1 };
        let stride = self.channels * group;
        if self.transform.is_none() {
            self.transform = Transform::for_samples(values.len() / stride, self.channels);
        }
        let Some(transform) = &mut self.transform else {
            return;
        };
        for piece in values.chunks_exact(stride * transform.window.len()) {
            for channel in 0..self.channels {
                transform.add(
                    channel,
                    piece.chunks_exact(stride).map(|complete| {
                        let sample = &complete[channel * group..][..group];
                        Complex32::new(sample[0], sample.get(1).copied().unwrap_or_default())
                    }),
                );
            }
            self.pieces += 1;
        }
    }

    /// Returns lowest frequency and resolution, in cycles per sample.
    fn frequencies(&self) -> (f64, f64) {
        let transform = self.transform.as_ref();
        let length = transform.map_or(1, |transform| transform.window.len());
        (if self.complex { -0.5 } else { 0.0 }, 1.0 / length as f64)
    }

    /// Returns the mean power in ascending frequency; real samples have no frequencies below zero.
    fn channel(&self, channel: usize) -> Vec<f64> {
        let Some(transform) = self.transform.as_ref().filter(|_| self.pieces > 0) else {
            return Vec::new();
        };
        let length = transform.window.len();
        let weight: f64 = transform.window.iter().map(|w| f64::from(w * w)).sum();
        let power = &transform.power[channel * length..][..length];
        let (upper, lower) = power.split_at(length / 2);
        let lower = if self.complex { lower } else { &[] };
        let ascending = lower.iter().chain(upper);
        ascending
            .map(|sum| sum / weight / self.pieces as f64)
            .collect()
    }
}

impl Transform {
    fn for_samples(samples: usize, channels: usize) -> Option<Transform> {
        let length = MAX.min(samples.checked_ilog2().map_or(0, |log| 1 << log));
        if length < MIN {
            return None;
        }
        let forward = FftPlanner::new().plan_fft_forward(length);
        // Hann window, so that a tone does not leak over the whole spectrum.
        let window = (0..length).map(|n| (PI * n as f32 / length as f32).sin().powi(2));
        Some(Transform {
            window: window.collect(),
            bins: vec![Complex32::default(); length],
            scratch: vec![Complex32::default(); forward.get_inplace_scratch_len()],
            power: vec![0.0; channels * length],
            forward,
        })
    }

    fn add(&mut self, channel: usize, samples: impl Iterator<Item = Complex32>) {
        for ((bin, window), sample) in self.bins.iter_mut().zip(&self.window).zip(samples) {
            *bin = sample * window;
        }
        self.forward
            .process_with_scratch(&mut self.bins, &mut self.scratch);
        let power = &mut self.power[channel * self.bins.len()..];
        for (power, bin) in power.iter_mut().zip(&self.bins) {
            *power += f64::from(bin.norm_sqr());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sky::{SkyPlan, StationPlan};

    fn statistics(
        bits: u8,
        channels: u64,
        complex: bool,
        payloads: &[&[u8]],
    ) -> Vec<ChannelStatistics> {
        let mut statistics =
            Statistics::new(Codec::vdif(bits).unwrap(), channels, complex).unwrap();
        for payload in payloads {
            statistics.add(payload);
        }
        statistics.channels()
    }

    #[test]
    fn codes_are_counted_by_channel_and_component() {
        // Two complex channels of two bits: a byte is a complete sample.
        let found = statistics(
            2,
            2,
            true,
            &[&[0b11_10_01_00, 0b11_10_01_01], &[0b00_10_01_00]],
        );
        let counts =
            |channel: usize, component: usize| &found[channel].components[component].counts;
        assert_eq!(*counts(0, 0), [2, 1, 0, 0]);
        assert_eq!(*counts(0, 1), [0, 3, 0, 0]);
        assert_eq!(*counts(1, 0), [0, 0, 3, 0]);
        assert_eq!(*counts(1, 1), [1, 0, 0, 2]);
        assert_eq!(found[1].components[0].mean, 1.0);
        assert!((found[1].components[1].mean - f64::from(crate::codec::HIGH) / 3.0).abs() < 1e-6);
        assert!((found[1].components[1].rms - f64::from(crate::codec::HIGH)).abs() < 1e-6);
        assert!(found[0].spectrum.is_empty());
    }

    #[test]
    fn counts_ascend_with_the_level_for_any_code() {
        let mut statistics = Statistics::new(Codec::mark5b(2).unwrap(), 1, false).unwrap();
        statistics.add(&[0b01_01_10_00, 0b11_11_11_01]);
        assert_eq!(statistics.channels()[0].components[0].counts, [1, 1, 3, 3]);
    }

    #[test]
    fn an_incomplete_sample_is_not_counted() {
        let found = statistics(8, 4, false, &[&[1, 2, 3, 4, 5], &[], &[9, 9, 9]]);
        for channel in &found {
            assert_eq!(channel.components[0].counts.iter().sum::<u64>(), 1);
        }
    }

    #[test]
    fn tones_stand_at_their_frequency() {
        // A cycle of four samples: a quarter of the sample rate, real and above zero.
        let real: Vec<u8> = [255, 128, 0, 128].repeat(256);
        let found = statistics(8, 1, false, &[&real, &real[..512]]);
        let peak = |channel: &ChannelStatistics| {
            let loudest = (0..channel.spectrum.len())
                .max_by(|a, b| channel.spectrum[*a].total_cmp(&channel.spectrum[*b]))
                .unwrap();
            channel.lowest_frequency + loudest as f64 * channel.resolution
        };
        assert_eq!(found[0].spectrum.len(), 128);
        assert_eq!(peak(&found[0]), 0.25);

        // The second of two complex channels rotates backwards: 1, -i, -1, i.
        let complex: Vec<u8> = [
            128, 128, 255, 128, 128, 128, 128, 0, 128, 128, 0, 128, 128, 128, 128, 255,
        ]
        .repeat(64);
        let found = statistics(8, 2, true, &[&complex]);
        assert_eq!(found[1].spectrum.len(), 256);
        assert_eq!(peak(&found[1]), -0.25);
    }

    #[test]
    fn white_noise_has_its_mean_square_everywhere() {
        let plan = SkyPlan {
            sample_rate: 1e6,
            bits: 8,
            complex: true,
            stations: vec![StationPlan::new("Ef")],
            correlation: 0.0,
            ..SkyPlan::default()
        };
        let station = plan.station("Ef").unwrap();
        let mut frame = vec![0; station.frame_length()];
        let mut generator = station.generator();
        let mut statistics = Statistics::new(Codec::vdif(8).unwrap(), 1, true).unwrap();
        while generator.fill(&mut frame) > 0 {
            statistics.add(&frame[32..]);
        }
        let found = statistics.channels().remove(0);
        let mean = found.spectrum.iter().sum::<f64>() / found.spectrum.len() as f64;
        assert!((mean - 2.0).abs() < 0.02, "{mean}");
        // Some 3900 pieces: five sigma are 8 %.
        assert!(
            found
                .spectrum
                .iter()
                .all(|power| (power / 2.0 - 1.0).abs() < 0.08)
        );
        assert!(
            found
                .components
                .iter()
                .all(|part| (part.rms - 1.0).abs() < 0.01)
        );
    }

    #[test]
    fn channels_beyond_reason_are_refused() {
        let codec = Codec::vdif(8).unwrap();
        for channels in [0, 4097, 1 << 31, u64::MAX] {
            assert_eq!(
                Statistics::new(codec, channels, true).err(),
                Some(ChannelsError(channels))
            );
        }
    }

    proptest! {
        #[test]
        fn every_complete_sample_is_counted(
            bits in prop::sample::select(vec![1u8, 2, 4, 8]),
            channels in 1u64..70,
            complex: bool,
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..900), 0..4),
        ) {
            let payloads: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
            let found = statistics(bits, channels, complex, &payloads);
            let group = if complex { 2 } else { 1 };
            let complete = usize::from(bits) * group * channels as usize;
            let expected: usize = payloads.iter().map(|payload| payload.len() * 8 / complete).sum();
            prop_assert_eq!(found.len() as u64, channels);
            for channel in &found {
                prop_assert_eq!(channel.components.len(), group);
                for component in &channel.components {
                    prop_assert_eq!(component.counts.iter().sum::<u64>(), expected as u64);
                }
                prop_assert!(channel.spectrum.iter().all(|power| power.is_finite()));
            }
        }
    }
}
