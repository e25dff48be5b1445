//! Collects the correlator's results, dump by dump, and evaluates them at fringes.

use std::sync::Arc;

use evlbi_fx::correlator::{Input, InputSums, Product, Setup, Sums};
use evlbi_fx::fringe::{self, Fringe, Visibilities, Window};
use evlbi_fx::quantise::{self, VanVleck};
use evlbi_stream::control_socket::Profile;
use evlbi_wire::units::{show_hertz, show_seconds};
use rustfft::num_complex::{Complex32, Complex64};
use serde::Serialize;

/// Memory for the visibilities of a fringe search, in bytes; with more data, channels are averaged.
const MAX_BYTES: usize = 1 << 30;

/// Maximum `x` in [`drift`] for which the search finds the delay and rate of the whole run.
const MAX_DRIFT: f64 = 4.25;

/// Maximum number of delays in a profile of a fringe.
const MAX_DELAYS: usize = 512;

/// All dumps of a run.
pub struct Series {
    pub setup: Arc<Setup>,
    /// Expected number of dumps. If more arrive, pairs are merged, so that memory does not grow.
    pub dumps: usize,
    /// Length of a dump, in seconds.
    pub dump_seconds: f64,
    /// Number of dumps merged into each kept one, and the number in the last one so far.
    together: usize,
    has: usize,
    /// Number of dumps added.
    pub added: usize,
    /// Number of channels averaged into one for the search.
    averaged: usize,
    products: Vec<ProductSeries>,
    /// Totals of each input.
    inputs: Vec<InputSums>,
}

/// One product, dump by dump.
#[derive(Clone, Default)]
pub struct ProductSeries {
    /// Sums, dump by dump and channel by channel.
    values: Vec<Complex32>,
    overlap: Vec<u64>,
    /// Square root of the product of the energies in the overlap.
    energy: Vec<f64>,
    energy_a: f64,
    energy_b: f64,
    /// Variance of each component of a dump's sum.
    noise: Vec<f64>,
}

/// An amplitude in four normalisations.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Amplitude {
    /// Relative to all samples of the time, including missing ones, at the nominal power of the sampler's levels.
    pub all: f64,
    /// Relative to the square root of the autocorrelations.
    pub autos: f64,
    /// Relative to the samples at which both stations have data: the correlation coefficient of the recorded samples.
    pub valid: f64,
    /// `valid` corrected for the quantisation.
    pub corrected: f64,
}

/// A product at its fringe.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Found {
    pub amplitude: Amplitude,
    /// Signal-to-noise ratio.
    pub snr: f64,
    /// Fraction of the time for which both stations have data.
    pub weight: f64,
    /// Fraction of the signal-to-noise ratio lost with the missing samples.
    pub snr_loss: f64,
    /// Fraction of the amplitudes that remains with the residual delay and rate: the overlap of the blocks, the phase turn within a
    /// dump, and, if the sky frequency is known, the drift of the delay across the band during the run.
    pub coherence: f64,
    #[serde(skip)]
    pub fringe: Fringe,
}

/// One dump of a product at the fringe.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Dump {
    /// Middle of the dump, in seconds from the start of the first dump.
    pub seconds: f64,
    /// Amplitude relative to the samples at which both stations have data.
    pub amplitude: f64,
    /// Phase in radians, -pi to pi.
    pub phase_rad: f64,
    /// Fraction of the dump for which both stations have data, 0 to 1.
    pub weight: f64,
    /// Standard error of the amplitude, and of the phase if it is small.
    pub error: f64,
}

impl Series {
    /// Creates an empty series for an expected number of dumps.
    pub fn new(setup: &Arc<Setup>, dumps: usize, dump_seconds: f64) -> Series {
        let mut averaged = 1;
        let bytes = dumps * setup.products().len() * setup.channels() * size_of::<Complex32>();
        while bytes / averaged > MAX_BYTES && setup.channels().is_multiple_of(2 * averaged) {
            averaged *= 2;
        }
        let totals = InputSums {
            power: vec![0.0; setup.channels()],
            energy: 0.0,
            good: 0,
        };
        Series {
            setup: Arc::clone(setup),
            dumps,
            dump_seconds,
            together: 1,
            has: 1,
            added: 0,
            averaged,
            products: vec![ProductSeries::default(); setup.products().len()],
            inputs: vec![totals; setup.inputs().count()],
        }
    }

    /// Checks that a series of this many dumps resolves a window.
    pub fn check(&self, window: &Window, dumps: usize) -> Result<(), WindowError> {
        let channel = self.setup.channel_width() * self.averaged as f64;
        let together = dumps.div_ceil(self.dumps.max(1)).next_power_of_two();
        let dump = self.dump_seconds * together as f64;
        check_window(window, (self.channels(), channel), dump)
    }

    /// Skips dumps without data, as if they had been added. Takes the time of one dump, except for the kept values.
    pub fn skip(&mut self, dumps: usize) {
        self.added += dumps;
        let mut left = dumps;
        loop {
            let more = left.min(self.together - self.has);
            self.has += more;
            left -= more;
            let needed = left.div_ceil(self.together);
            if self.dumps.is_multiple_of(2) && self.dumps_kept() + needed > self.dumps {
                self.halve();
            } else if left > 0 {
                self.has = left - (needed - 1) * self.together;
                self.extend(needed);
                return;
            } else {
                return;
            }
        }
    }

    /// Appends empty dumps.
    fn extend(&mut self, dumps: usize) {
        let channels = self.channels();
        for series in &mut self.products {
            let length = series.overlap.len() + dumps;
            let values = &mut series.values;
            values.resize(length * channels, Complex32::default());
            series.overlap.resize(length, 0);
            series.energy.resize(length, 0.0);
            series.noise.resize(length, 0.0);
        }
    }

    /// Adds the next dump.
    pub fn add(&mut self, sums: &Sums) {
        for (totals, sums) in self.inputs.iter_mut().zip(&sums.inputs) {
            for (total, power) in totals.power.iter_mut().zip(&sums.power) {
                *total += power;
            }
            totals.energy += sums.energy;
            totals.good += sums.good;
        }
        if self.has == self.together {
            if self.dumps.is_multiple_of(2) && self.dumps_kept() >= self.dumps {
                self.halve();
            }
            self.has = 0;
            self.extend(1);
        }
        self.has += 1;
        self.added += 1;
        let (block, channels) = (self.setup.block_parts() as f64, self.channels());
        let products = self.setup.products().iter().zip(&sums.products);
        for (series, (product, found)) in self.products.iter_mut().zip(products) {
            let averaged = found.values.chunks(self.averaged);
            let last = series.overlap.len() - 1;
            let values = series.values[last * channels..].iter_mut();
            for (value, found) in values.zip(averaged) {
                let sum = found.iter().sum::<Complex64>();
                *value += Complex32::new(sum.re as f32, sum.im as f32);
            }
            series.overlap[last] += found.overlap;
            series.energy[last] += (found.energy_a * found.energy_b).sqrt();
            series.energy_a += found.energy_a;
            series.energy_b += found.energy_b;
            let of = |input: Input| &sums.inputs[self.setup.index(input)];
            let (a, b) = (of(product.a), of(product.b));
            // The noise is independent in each channel of each block: half of the product of the powers in either part.
            let powers = a.power.iter().zip(&b.power);
            let sum: f64 = powers.map(|(a, b)| a * b).sum();
            let blocks = |good: u64| (good.max(1)) as f64 / block;
            series.noise[last] +=
                0.5 * sum * blocks(found.overlap) / (blocks(a.good) * blocks(b.good));
        }
    }

    /// Merges pairs of dumps.
    fn halve(&mut self) {
        fn pairs<T: Copy + std::ops::Add<Output = T>>(values: &mut Vec<T>, length: usize) {
            let dumps = values.len() / length;
            for dump in 0..dumps.div_ceil(2) {
                for place in 0..length {
                    let first = values[2 * dump * length + place];
                    let second = values.get((2 * dump + 1) * length + place);
                    values[dump * length + place] = second.map_or(first, |second| first + *second);
                }
            }
            values.truncate(dumps.div_ceil(2) * length);
        }
        let channels = self.channels();
        // If the number is odd, the last stays alone.
        if self.dumps_kept().is_multiple_of(2) {
            self.has += self.together;
        }
        for series in &mut self.products {
            pairs(&mut series.values, channels);
            pairs(&mut series.overlap, 1);
            pairs(&mut series.energy, 1);
            pairs(&mut series.noise, 1);
        }
        self.together *= 2;
        self.dump_seconds *= 2.0;
    }

    /// Returns the number of channels in the search.
    fn channels(&self) -> usize {
        self.setup.channels() / self.averaged
    }

    /// Returns the number of dumps kept so far.
    fn dumps_kept(&self) -> usize {
        let first = self.products.first();
        first.map_or(0, |product| product.overlap.len())
    }

    /// Returns the totals of an input.
    pub fn input(&self, input: Input) -> &InputSums {
        &self.inputs[self.setup.index(input)]
    }

    /// Finds the fringe of a product. `span` is the time in which both stations could have had data, in parts.
    pub fn find(&self, index: usize, span: i64, window: &Window) -> Found {
        let fringe = fringe::search(&self.visibilities(index), window);
        self.found(index, span, fringe)
    }

    /// Evaluates a product at a fringe.
    pub fn found(&self, index: usize, span: i64, fringe: Fringe) -> Found {
        let series = &self.products[index];
        let Product { a, b } = self.setup.products()[index];
        let overlap: u64 = series.overlap.iter().sum();
        let weight = overlap as f64 / span.max(1) as f64;
        let by = |a: f64, b: f64| quotient(fringe.amplitude, (a * b).sqrt());
        let valid = by(series.energy_a, series.energy_b);
        let codec = |input: Input| self.setup.stations()[input.station].layout.codec;
        Found {
            amplitude: Amplitude {
                all: by(self.nominal_energy(a, span), self.nominal_energy(b, span)),
                autos: by(self.input(a).energy, self.input(b).energy),
                valid,
                corrected: VanVleck::between(codec(a), codec(b)).corrected(valid),
            },
            snr: fringe.snr,
            weight,
            snr_loss: snr_loss(weight),
            coherence: self.coherence(a, &fringe),
            fringe,
        }
    }

    /// Returns the factor from a product's amplitudes to correlation coefficients.
    pub fn scale(&self, index: usize) -> f64 {
        let series = &self.products[index];
        quotient(1.0, (series.energy_a * series.energy_b).sqrt())
    }

    /// Returns amplitude against delay of the strongest product of a pair of stations; if there are too many delays, the maximum of
    /// neighbours. `found` are the fringes of all products.
    pub fn profile(&self, stations: [usize; 2], found: &[Found]) -> Option<Profile> {
        let products = self.setup.products();
        let index = (0..products.len())
            .filter(|index| pair(&products[*index]) == stations)
            .max_by(|a, b| found[*a].snr.total_cmp(&found[*b].snr))?;
        let points = fringe::over_delay(&self.visibilities(index), &found[index].fringe);
        let together = points.len().div_ceil(MAX_DELAYS).max(1);
        let scale = self.scale(index);
        let amplitudes = points.chunks(together).map(|points| {
            let amplitudes = points.iter().map(|(_, amplitude)| *amplitude);
            (amplitudes.fold(0.0, f64::max) * scale) as f32
        });
        let (first, step) = match points.as_slice() {
            [(first, _), (second, _), ..] => (*first, second - first),
            _ => (0.0, 0.0),
        };
        Some(Profile {
            from_s: first + step * (together - 1) as f64 / 2.0,
            step_s: step * together as f64,
            amplitudes: amplitudes.collect(),
        })
    }

    /// Returns the dumps of a product at a fringe.
    pub fn dumps_at(&self, index: usize, fringe: &Fringe) -> Vec<Dump> {
        let series = &self.products[index];
        let parts = self.dump_seconds * self.setup.part_rate() as f64;
        let stopped = fringe::by_period(&self.visibilities(index), fringe);
        let per_dump = series.energy.iter().zip(&series.noise);
        let dumps = stopped.iter().zip(&series.overlap).zip(per_dump);
        dumps
            .enumerate()
            .map(|(number, ((sum, overlap), (energy, noise)))| Dump {
                seconds: (number as f64 + 0.5) * self.dump_seconds,
                amplitude: quotient(sum.norm(), *energy),
                phase_rad: sum.arg(),
                weight: *overlap as f64 / parts,
                error: quotient(noise.sqrt(), *energy),
            })
            .collect()
    }

    /// Returns the visibilities of a product for a fringe search.
    pub fn visibilities(&self, index: usize) -> Visibilities<'_> {
        let setup = &self.setup;
        let band = setup.band(setup.products()[index].a);
        // An averaged channel is centred on its channels.
        let offset = (self.averaged - 1) as f64 / 2.0 * setup.channel_width();
        Visibilities {
            values: &self.products[index].values,
            channels: self.channels(),
            channel_width_hz: setup.channel_width() * self.averaged as f64,
            first_channel_hz: band.edge_hz - band.zero_hz + offset,
            reference_hz: band.zero_hz,
            period_s: self.dump_seconds,
            noise: self.products[index].noise.iter().sum(),
            simd: setup.simd(),
        }
    }

    fn coherence(&self, input: Input, fringe: &Fringe) -> f64 {
        let overlap = 1.0 - fringe.delay_s.abs() / self.setup.block_seconds();
        let turn = std::f64::consts::PI * fringe.rate_hz * self.dump_seconds;
        let turned = if turn == 0.0 { 1.0 } else { turn.sin() / turn };
        let drifted = match self.setup.band(input).zero_hz {
            0.0 => 1.0,
            _ => {
                let slope = fringe.rate_hz / self.setup.centre(input);
                let seconds = self.dumps_kept() as f64 * self.dump_seconds;
                drift(slope * seconds * self.setup.bandwidth())
            }
        };
        overlap.max(0.0) * turned.abs() * drifted
    }

    /// Returns the energy of an input in this many parts at the nominal levels.
    fn nominal_energy(&self, input: Input, parts: i64) -> f64 {
        let layout = &self.setup.stations()[input.station].layout;
        // Whole complex samples, which have two components.
        let parts = if layout.complex { parts / 2 * 2 } else { parts };
        parts as f64 * quantise::power(layout.codec) * self.setup.channels() as f64
    }
}

/// Returns the fraction of an amplitude that remains if the delay drifts by this many turns of phase across the band during a run, which
/// the search compensates by one delay and one rate: the mean of `sinc(turns t)` for t from -1/2 to 1/2, which is `Si(x) / x` with
/// `x = pi turns / 2`. From 2.7 turns on the search finds the delay and rate of a part of the run, and about 1.1 / turns remains.
fn drift(turns: f64) -> f64 {
    let x = std::f64::consts::FRAC_PI_2 * turns.abs();
    if x == 0.0 {
        return 1.0;
    }
    let inside = x.min(MAX_DRIFT);
    // The series of Si(inside) / inside.
    let (mut term, mut sum) = (1.0, 1.0);
    for odd in (3..40_i32).step_by(2).map(f64::from) {
        term *= -inside * inside / (odd * (odd - 1.0));
        sum += term / odd;
    }
    sum * inside / x
}

/// Returns the stations of a product.
pub fn pair(product: &Product) -> [usize; 2] {
    [product.a.station, product.b.station]
}

/// Returns a quotient; 0 if the divisor is 0.
pub fn quotient(value: f64, by: f64) -> f64 {
    if by > 0.0 { value / by } else { 0.0 }
}

/// Returns the fraction of the signal-to-noise ratio lost with missing samples.
pub fn snr_loss(weight: f64) -> f64 {
    1.0 - weight.clamp(0.0, 1.0).sqrt()
}

/// Reasons why a fringe search window is too wide.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// The window contains delays that the channels do not resolve.
    #[error(
        "a delay window of {} is too wide: the channels resolve {}",
        show_seconds(*asked_s),
        show_seconds(*max_s)
    )]
    Delay {
        /// Maximum delay that is resolved, in seconds.
        max_s: f64,
        /// Requested half width of the window, in seconds.
        asked_s: f64,
        /// Smallest power of two of channels that resolve it.
        channels: usize,
    },
    /// The window contains rates that the dumps do not resolve.
    #[error(
        "a rate window of {} is too wide: the dumps resolve {}",
        show_hertz(*asked_hz),
        show_hertz(*max_hz)
    )]
    Rate {
        /// Maximum fringe rate that is resolved, in Hz.
        max_hz: f64,
        /// Requested half width of the window, in Hz.
        asked_hz: f64,
    },
}

/// Checks that this number of channels of this width, in Hz, and periods of this length, in s, resolve a window.
pub fn check_window(
    window: &Window,
    (channels, channel): (usize, f64),
    period: f64,
) -> Result<(), WindowError> {
    let (max_s, max_hz) = (0.5 / channel, 0.5 / period);
    let rounded = 1.0 + 1e-9;
    let beyond = |asked: Option<f64>, most: f64| asked.filter(|asked| asked.abs() > most * rounded);
    if let Some(asked_s) = beyond(window.delay_s, max_s) {
        let needed = channels as f64 * asked_s.abs() / max_s / rounded;
        return Err(WindowError::Delay {
            max_s,
            asked_s,
            channels: (needed.ceil() as usize).next_power_of_two(),
        });
    }
    if let Some(asked_hz) = beyond(window.rate_hz, max_hz) {
        return Err(WindowError::Rate { max_hz, asked_hz });
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use evlbi_fx::codec::Codec;
    use evlbi_fx::correlator::{Band, StationSetup};
    use evlbi_fx::delay::Delay;
    use evlbi_fx::layout::Layout;
    use evlbi_wire::time::FrameRate;

    /// Returns a setup of two stations at 16 MHz without delay.
    pub fn setup() -> Arc<Setup> {
        let station = |name: &str| StationSetup {
            name: name.into(),
            layout: Layout {
                codec: Codec::vdif(2).unwrap(),
                complex: false,
                channels: 1,
                payload: 1000,
                replaced: 0,
                frame_rate: FrameRate::new(4000).unwrap(),
            },
            delay: Delay::default(),
            bands: vec![Band {
                lane: 0,
                channel: 0,
                zero_hz: 4.9e9,
                edge_hz: 4.9e9,
                polarisation: 'R',
            }],
            inverted: false,
        };
        let input = |station| Input { station, band: 0 };
        let product = Product {
            a: input(0),
            b: input(1),
        };
        let stations = vec![station("Ef"), station("Jb")];
        Arc::new(Setup::new(stations, vec![product], 8, 0, 0, (0.0, 100.0)).unwrap())
    }

    /// Returns all sums of a series.
    pub fn sums(series: &Series) -> Vec<u64> {
        let numbers = series.products.iter().flat_map(|product| {
            let parts = product.values.iter().flat_map(|value| [value.re, value.im]);
            let floats = product.energy.iter().chain(&product.noise).copied();
            let floats = floats.chain([product.energy_a, product.energy_b]);
            let floats = floats.chain(parts.map(f64::from)).map(f64::to_bits);
            floats.chain(product.overlap.iter().copied())
        });
        let inputs = series.inputs.iter().flat_map(|input| {
            let floats = input.power.iter().chain([&input.energy]);
            floats.map(|float| float.to_bits()).chain([input.good])
        });
        numbers.chain(inputs).collect()
    }

    /// However long a run is, the number of kept dumps is limited, and the fringe stays the same.
    #[test]
    fn long_runs_keep_their_fringe_in_as_much_memory() {
        let setup = setup();
        let mut sums = Sums::new(&setup);
        sums.products[0].overlap = 1600;
        (sums.products[0].energy_a, sums.products[0].energy_b) = (1600.0, 1600.0);
        for input in &mut sums.inputs {
            input.power.fill(200.0);
            (input.energy, input.good) = (1600.0, 1600);
        }
        let mut series = [100, 8].map(|dumps| Series::new(&setup, dumps, 1e-3));
        for dump in 0..100 {
            let turned =
                Complex64::from_polar(30.0, std::f64::consts::TAU * 3.0 * 1e-3 * f64::from(dump));
            sums.products[0].values.fill(turned);
            series.iter_mut().for_each(|series| series.add(&sums));
        }
        let [whole, merged] = series;
        // 16 dumps are one now, and the last of 7 contains 4.
        assert_eq!(
            (merged.dumps_kept(), merged.together, merged.has),
            (7, 16, 4)
        );
        let found = [&whole, &merged].map(|series| series.find(0, 160_000, &Window::default()));
        assert!((found[0].fringe.rate_hz - 3.0).abs() < 1e-3, "{found:?}");
        assert!((found[1].fringe.rate_hz - 3.0).abs() < 0.05, "{found:?}");
        assert!((found[1].amplitude.valid / found[0].amplitude.valid - 1.0).abs() < 0.01);
        assert!((found[1].snr / found[0].snr - 1.0).abs() < 0.01);
        assert_eq!(found[0].weight, found[1].weight);
    }

    /// Means of sinc, and the limit.
    #[test]
    fn a_drifting_delay_costs_amplitude() {
        assert_eq!(drift(0.0), 1.0);
        for (turns, remains) in [
            (0.5, 0.96636),
            (-1.0, 0.87265),
            (2.0, 0.58949),
            (20.0, 0.05436),
        ] {
            assert!((drift(turns) - remains).abs() < 1e-4, "{}", drift(turns));
        }
    }

    /// Skipped dumps have the effect of empty dumps, added one by one.
    #[test]
    fn dumps_that_are_passed_over_are_empty_ones() {
        let setup = setup();
        let empty = Sums::new(&setup);
        let mut sums = Sums::new(&setup);
        sums.products[0].overlap = 16;
        for (before, dumps) in [
            (0, 1),
            (0, 1000),
            (3, 4),
            (8, 1),
            (8, 0),
            (5, 27),
            (6, 1000),
            (13, 77),
        ] {
            let mut series = [0, 1].map(|_| Series::new(&setup, 8, 1e-3));
            for (number, series) in series.iter_mut().enumerate() {
                (0..before).for_each(|_| series.add(&sums));
                match number {
                    0 => (0..dumps).for_each(|_| series.add(&empty)),
                    _ => series.skip(dumps),
                }
                (0..3).for_each(|_| series.add(&sums));
            }
            let found = series.map(|series| {
                let overlap = series.products[0].overlap.clone();
                (overlap, series.together, series.has, series.added)
            });
            assert_eq!(found[0], found[1], "{before} and {dumps}");
        }
        let mut series = Series::new(&setup, 8, 1e-3);
        series.add(&sums);
        series.skip(1 << 40);
        assert!(series.dumps_kept() <= 8);
    }
}
