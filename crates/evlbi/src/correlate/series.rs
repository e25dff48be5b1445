//! What the correlator found, dump by dump, and what it amounts to.

use std::sync::Arc;

use evlbi_fx::correlator::{Input, Product, Setup, Sums};
use evlbi_fx::fringe::{self, Fringe, Visibilities, Window};
use evlbi_fx::quantise::{self, VanVleck};
use rustfft::num_complex::Complex32;
use serde::Serialize;

/// Memory for visibilities that a fringe is searched in, in bytes; beyond that channels are averaged.
const MOST_BYTES: usize = 1 << 30;

/// Everything that is kept of a run.
pub struct Series {
    pub setup: Arc<Setup>,
    /// Dumps that were correlated.
    pub dumps: usize,
    /// Length of a dump in seconds.
    pub dump_seconds: f64,
    /// Channels that are averaged to one for the search.
    averaged: usize,
    products: Vec<ProductSeries>,
    inputs: Vec<InputTotals>,
}

/// One product, dump by dump.
#[derive(Clone, Default)]
pub struct ProductSeries {
    /// Sums, dump after dump and channel by channel.
    values: Vec<Complex32>,
    overlap: Vec<u64>,
    /// Root of the product of the energies in the overlap.
    energy: Vec<f64>,
    energy_a: f64,
    energy_b: f64,
    /// Variance of each component of the sum of a dump.
    noise: Vec<f64>,
}

/// One input over the whole time.
#[derive(Clone)]
pub struct InputTotals {
    pub power: Vec<f64>,
    pub energy: f64,
    pub good: u64,
}

/// An amplitude in four measures.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Amplitude {
    /// By all samples of the time, those that are missing too, at the power that the sampler's levels mean.
    pub all: f64,
    /// By the square root of the autocorrelations.
    pub autos: f64,
    /// By the samples at which both stations have data: the correlation coefficient of what was recorded.
    pub valid: f64,
    /// `valid` before sampling: corrected for the quantisation.
    pub corrected: f64,
}

/// A product at its fringe.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    pub amplitude: Amplitude,
    pub snr: f64,
    /// Share of the time at which both stations have data.
    pub weight: f64,
    /// Share of the signal-to-noise ratio that the missing samples cost.
    pub snr_loss: f64,
    /// What a delay and a rate that are left in leave of the amplitudes: the part of a block that still overlaps,
    /// and the turn within a dump.
    pub coherence: f64,
    #[serde(skip)]
    pub fringe: Fringe,
}

/// One dump of one product at the fringe.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Dump {
    /// Middle of the dump in seconds from the first dump's beginning.
    pub seconds: f64,
    /// By the samples at which both stations have data.
    pub amplitude: f64,
    pub phase_rad: f64,
    pub weight: f64,
    /// Standard error of the amplitude, and of the phase where it is small.
    pub error: f64,
}

impl Series {
    /// Nothing yet, of so many dumps.
    pub fn new(setup: &Arc<Setup>, dumps: usize, dump_seconds: f64) -> Series {
        let mut averaged = 1;
        let bytes = dumps * setup.products().len() * setup.channels() * size_of::<Complex32>();
        while bytes / averaged > MOST_BYTES && setup.channels().is_multiple_of(2 * averaged) {
            averaged *= 2;
        }
        let totals = InputTotals {
            power: vec![0.0; setup.channels()],
            energy: 0.0,
            good: 0,
        };
        Series {
            setup: Arc::clone(setup),
            dumps,
            dump_seconds,
            averaged,
            products: vec![ProductSeries::default(); setup.products().len()],
            inputs: vec![totals; setup.inputs().count()],
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
        let block = self.setup.block_parts() as f64;
        let products = self.setup.products().iter().zip(&sums.products);
        for (series, (product, found)) in self.products.iter_mut().zip(products) {
            let averaged = found.values.chunks(self.averaged);
            series.values.extend(averaged.map(|values| {
                let sum = values.iter().sum::<rustfft::num_complex::Complex64>();
                Complex32::new(sum.re as f32, sum.im as f32)
            }));
            series.overlap.push(found.overlap);
            series.energy.push((found.energy_a * found.energy_b).sqrt());
            series.energy_a += found.energy_a;
            series.energy_b += found.energy_b;
            let of = |input: Input| &sums.inputs[self.setup.index(input)];
            let (a, b) = (of(product.a), of(product.b));
            // Independent in each channel of each block: half of the product of the powers in either part.
            let powers = a.power.iter().zip(&b.power);
            let sum: f64 = powers.map(|(a, b)| a * b).sum();
            let blocks = |good: u64| (good.max(1)) as f64 / block;
            series
                .noise
                .push(0.5 * sum * blocks(found.overlap) / (blocks(a.good) * blocks(b.good)));
        }
    }

    /// Dumps that were added so far.
    pub fn dumps_added(&self) -> usize {
        let first = self.products.first();
        first.map_or(0, |product| product.overlap.len())
    }

    /// The totals of an input.
    pub fn input(&self, input: Input) -> &InputTotals {
        &self.inputs[self.setup.index(input)]
    }

    /// Finds the fringe of a product. `span`: parts of the time at which both stations could have had data.
    pub fn find(&self, index: usize, span: i64, window: &Window) -> Found {
        self.found(
            index,
            span,
            fringe::search(&self.visibilities(index), window),
        )
    }

    /// A product at a known delay and rate.
    pub fn find_at(&self, index: usize, span: i64, known: &Fringe) -> Found {
        self.found(index, span, fringe::at(&self.visibilities(index), known))
    }

    fn found(&self, index: usize, span: i64, fringe: Fringe) -> Found {
        let series = &self.products[index];
        let product = self.setup.products()[index];
        let overlap: u64 = series.overlap.iter().sum();
        let weight = overlap as f64 / span.max(1) as f64;
        let of = |energy_a: f64, energy_b: f64| {
            let energy = (energy_a * energy_b).sqrt();
            if energy > 0.0 {
                fringe.amplitude / energy
            } else {
                0.0
            }
        };
        let valid = of(series.energy_a, series.energy_b);
        let codec = |input: Input| self.setup.stations()[input.station].layout.codec;
        Found {
            amplitude: Amplitude {
                all: of(
                    self.nominal_energy(product.a, span),
                    self.nominal_energy(product.b, span),
                ),
                autos: of(self.input(product.a).energy, self.input(product.b).energy),
                valid,
                corrected: VanVleck::between(codec(product.a), codec(product.b)).corrected(valid),
            },
            snr: fringe.snr,
            weight,
            snr_loss: 1.0 - weight.clamp(0.0, 1.0).sqrt(),
            coherence: self.coherence(&fringe),
            fringe,
        }
    }

    /// What makes correlation coefficients of the amplitudes of a product.
    pub fn scale(&self, index: usize) -> f64 {
        let series = &self.products[index];
        let energy = (series.energy_a * series.energy_b).sqrt();
        if energy > 0.0 { 1.0 / energy } else { 0.0 }
    }

    /// The dumps of a product at a fringe.
    pub fn dumps_at(&self, index: usize, fringe: &Fringe) -> Vec<Dump> {
        let series = &self.products[index];
        let parts = self.dump_seconds * self.setup.part_rate() as f64;
        let stopped = fringe::by_period(&self.visibilities(index), fringe);
        let per_dump = series.energy.iter().zip(&series.noise);
        let dumps = stopped.iter().zip(&series.overlap).zip(per_dump);
        dumps
            .enumerate()
            .map(|(number, ((sum, overlap), (energy, noise)))| {
                let per_energy = |value: f64| if *energy > 0.0 { value / energy } else { 0.0 };
                Dump {
                    seconds: (number as f64 + 0.5) * self.dump_seconds,
                    amplitude: per_energy(sum.norm()),
                    phase_rad: sum.arg(),
                    weight: *overlap as f64 / parts,
                    error: per_energy(noise.sqrt()),
                }
            })
            .collect()
    }

    /// What of a product a fringe is searched in.
    pub fn visibilities(&self, index: usize) -> Visibilities<'_> {
        let setup = &self.setup;
        let product: Product = setup.products()[index];
        let band = setup.band(product.a);
        let width = setup.channel_width() * self.averaged as f64;
        // Averaged channels lie about their middle.
        let offset = (self.averaged - 1) as f64 / 2.0 * setup.channel_width();
        Visibilities {
            values: &self.products[index].values,
            channels: setup.channels() / self.averaged,
            channel_width_hz: width,
            first_channel_hz: band.edge_hz - band.zero_hz + offset,
            reference_hz: band.zero_hz,
            period_s: self.dump_seconds,
            noise: self.products[index].noise.iter().sum(),
        }
    }

    fn coherence(&self, fringe: &Fringe) -> f64 {
        let overlap = 1.0 - fringe.delay_s.abs() / self.setup.block_seconds();
        let turn = std::f64::consts::PI * fringe.rate_hz * self.dump_seconds;
        let turned = if turn == 0.0 { 1.0 } else { turn.sin() / turn };
        overlap.max(0.0) * turned.abs()
    }

    /// Energy that an input has in so many parts if its samples use the levels as they are meant.
    fn nominal_energy(&self, input: Input, parts: i64) -> f64 {
        let layout = &self.setup.stations()[input.station].layout;
        let samples = if layout.complex { parts / 2 } else { parts };
        let components = if layout.complex { 2.0 } else { 1.0 };
        let power = quantise::power(layout.codec) * components;
        samples as f64 * power * self.setup.channels() as f64
    }
}
