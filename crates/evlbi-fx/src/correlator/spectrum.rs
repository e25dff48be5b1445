//! Calculates the spectrum of a block from its coded samples, and compensates its delay and fringe.

use std::sync::Arc;

use evlbi_wire::validity::Intervals;
use pulp::{Arch, bytemuck};
use rustfft::Fft;
use rustfft::num_complex::{Complex32, Complex64};

use super::block::{Block, Good, Placed};
use super::kernel::{self, Place, TILE, Tile};
use super::setup::{Input, Rotation, Setup};
use crate::layout::Layout;
use crate::track::Slab;

/// Calculator of spectra.
pub struct Spectrograph {
    /// CPU type, for [`kernel`]s.
    pub arch: Arch,
    /// Plans of each station.
    plans: Vec<Plan>,
    /// Decoded samples of all channels of a thread, and their station, thread and block.
    raw: Vec<f32>,
    raw_of: Option<(usize, usize, i64)>,
    /// Raw components before the first sample of the block.
    skip: usize,
    /// Components of one channel.
    samples: Vec<f32>,
    bins: Vec<Complex32>,
    turned: Vec<Complex32>,
    scratch: Vec<Complex32>,
    /// Sums of the squared samples of each input, times the number of channels.
    energies: Vec<f64>,
    /// Running sums of the squares up to each part, for partly valid blocks.
    running: Vec<Vec<f64>>,
}

/// Transform of a station's blocks.
struct Plan {
    /// Samples of a block.
    length: usize,
    /// Components of a sample, which equals its parts.
    group: usize,
    /// Points of the transform.
    points: usize,
    /// Transform of complex samples: rotated ones, originally complex ones, or pairs of real ones.
    transform: Arc<dyn Fft<f32>>,
    /// For real samples that are transformed in pairs: factors that separate the two spectra, as [`kernel::fold`] takes them.
    pairs: Option<Vec<Tile>>,
}

impl Plan {
    fn new(setup: &Setup, layout: &Layout) -> Plan {
        let group = if layout.complex { 2 } else { 1 };
        let length = 2 * setup.channels() / group;
        let is_real = !layout.complex && setup.rotation() == Rotation::Blocks;
        let points = if is_real { length / 2 } else { length };
        let factor =
            |bin: usize| Complex64::cis(-std::f64::consts::TAU * bin as f64 / length as f64);
        let factors = |tile: usize| {
            let factor = |n: usize| factor(tile * TILE + n);
            [
                std::array::from_fn(|n| factor(n).re as f32),
                std::array::from_fn(|n| factor(n).im as f32),
            ]
        };
        Plan {
            length,
            group,
            points,
            transform: setup.simd().transform(points),
            pairs: is_real.then(|| (0..points.div_ceil(TILE)).map(factors).collect()),
        }
    }
}

impl Spectrograph {
    /// Makes a spectrograph for this setup.
    pub fn new(setup: &Setup) -> Spectrograph {
        let layouts = setup.stations().iter().map(|station| &station.layout);
        let plans: Vec<Plan> = layouts.map(|layout| Plan::new(setup, layout)).collect();
        let scratch = plans.iter().map(|plan| {
            let transform = &plan.transform;
            let in_place = transform.get_inplace_scratch_len();
            in_place.max(transform.get_outofplace_scratch_len())
        });
        let scratch = scratch.max().unwrap_or(0);
        let inputs = setup.inputs().count();
        Spectrograph {
            arch: setup.arch(),
            plans,
            raw: Vec::new(),
            raw_of: None,
            skip: 0,
            samples: Vec::new(),
            bins: vec![Complex32::default(); 2 * setup.channels()],
            turned: vec![Complex32::default(); setup.channels()],
            scratch: vec![Complex32::default(); scratch],
            energies: vec![0.0; inputs],
            running: vec![Vec::new(); inputs],
        }
    }

    /// Prepares for other slabs.
    pub fn begin(&mut self) {
        self.raw_of = None;
        self.forget();
    }

    /// Forgets the samples' energy of the last blocks.
    pub fn forget(&mut self) {
        self.energies.fill(0.0);
    }

    /// Returns the sum of the squared valid samples of an input in the blocks since [`Spectrograph::forget`], times the number of channels.
    pub fn energy(&self, index: usize) -> f64 {
        self.energies[index]
    }

    /// Returns the same for some parts of a partly valid block, the last one.
    pub fn energy_in(&self, setup: &Setup, input: Input, parts: &Intervals) -> f64 {
        let running = &self.running[setup.index(input)];
        let group = self.plans[input.station].group;
        let until = |part: i64| running.get(part as usize / group).copied();
        let until = |part: i64| until(part).unwrap_or_default();
        parts
            .iter()
            .map(|part| until(part.end) - until(part.start))
            .sum()
    }

    /// Calculates the spectrum of an input that has valid samples in this block: real and imaginary parts, in ascending sky
    /// frequency, in tiles.
    pub fn take(
        &mut self,
        setup: &Setup,
        input: Input,
        slab: &Slab,
        block: &Block,
        tiles: Place<'_>,
    ) {
        let placed = &block.stations[input.station];
        self.unpack(setup, input, slab, placed);
        self.select(setup, input);
        if let Good::Some(parts) = block.good(setup, input) {
            self.zero_all_but(setup, input, parts);
        }
        self.weigh(setup, input, block.is_partial);
        let turns = self.transform(setup, input, placed);
        self.level(setup, input, placed, turns, tiles);
    }

    /// Decodes the block of a whole thread.
    fn unpack(&mut self, setup: &Setup, input: Input, slab: &Slab, placed: &Placed) {
        let layout = &setup.stations()[input.station].layout;
        let lane = setup.band(input).lane;
        let of = (input.station, lane, placed.first);
        if self.raw_of.replace(of) == Some(of) && layout.channels > 1 {
            return;
        }
        let bits = layout.bits() as i64;
        let code = i64::from(layout.codec.width());
        let bytes = slab.lanes.get(lane).map_or(&[][..], |lane| &lane.bytes);
        let from = (placed.first - slab.first) * bits;
        let components = self.plans[input.station].length * layout.components();
        // Samples before and after the slab are missing.
        let before = usize::try_from(-from / code).unwrap_or(0).min(components);
        let from = from.max(0);
        self.skip = match before {
            0 => (from % 8 / code) as usize,
            _ => 0,
        };
        // A single channel needs no selection.
        let raw = match (layout.channels, self.skip) {
            (1, 0) => &mut self.samples,
            _ => &mut self.raw,
        };
        raw.resize(self.skip + components, 0.0);
        let start = ((from / 8) as usize).min(bytes.len());
        let there = layout.codec.decode(&bytes[start..], &mut raw[before..]);
        raw[..before].fill(0.0);
        raw[before + there..].fill(0.0);
    }

    /// Selects one channel.
    fn select(&mut self, setup: &Setup, input: Input) {
        let layout = &setup.stations()[input.station].layout;
        if layout.channels == 1 && self.skip == 0 {
            return;
        }
        let raw = &self.raw[self.skip..];
        let Plan { group, length, .. } = self.plans[input.station];
        self.samples.clear();
        if layout.channels == 1 {
            self.samples.extend_from_slice(raw);
            return;
        }
        self.samples.reserve(length * group);
        let from = setup.band(input).channel * group;
        for sample in raw.chunks_exact(layout.components()) {
            self.samples.extend_from_slice(&sample[from..][..group]);
        }
    }

    fn zero_all_but(&mut self, setup: &Setup, input: Input, parts: &Intervals) {
        let group = self.plans[input.station].group;
        let bad = parts.missing_in(0..setup.block_parts());
        for part in bad.iter() {
            let of = |part: i64| part as usize / group * group;
            self.samples[of(part.start)..of(part.end)].fill(0.0);
        }
    }

    fn weigh(&mut self, setup: &Setup, input: Input, running: bool) {
        let index = setup.index(input);
        let channels = setup.channels() as f64;
        let samples = &self.samples;
        // In the same way whether or not other inputs are valid in a part of the block, so that it does not depend on them.
        self.energies[index] += kernel::energy(self.arch, samples) * channels;
        if !running {
            return;
        }
        let sums = &mut self.running[index];
        sums.clear();
        sums.push(0.0);
        let mut sum = 0.0;
        for sample in samples.chunks_exact(self.plans[input.station].group) {
            sum += sample.iter().map(|s| f64::from(s * s)).sum::<f64>() * channels;
            sums.push(sum);
        }
    }

    /// Transforms the samples into `bins`; returns by how many turns the whole spectrum must still be rotated.
    fn transform(&mut self, setup: &Setup, input: Input, placed: &Placed) -> f64 {
        let layout = &setup.stations()[input.station].layout;
        let band = setup.band(input);
        let plan = &self.plans[input.station];
        let (arch, samples, scratch) = (self.arch, &mut self.samples, &mut self.scratch);
        // In the middle of the block; the sample there was taken `residual` before its time.
        let middle = (band.zero_hz * (placed.delay - placed.rate * placed.residual)).fract();
        let bins = &mut self.bins[..plan.points];
        if setup.rotation() == Rotation::Blocks {
            let samples = bytemuck::cast_slice_mut(samples);
            plan.transform
                .process_outofplace_with_scratch(samples, bins, scratch);
            return middle;
        }
        let step = band.zero_hz * placed.rate / layout.sample_rate() as f64;
        let start = middle - step * (plan.length / 2) as f64;
        match layout.complex {
            false => kernel::rotate_real(arch, samples, start, step, bins),
            true => kernel::rotate_complex(arch, samples, start, step, bins),
        }
        plan.transform.process_with_scratch(bins, scratch);
        0.0
    }

    /// Compensates the rest of the delay, and sorts the channels by ascending sky frequency.
    fn level(
        &mut self,
        setup: &Setup,
        input: Input,
        placed: &Placed,
        turns: f64,
        tiles: Place<'_>,
    ) {
        let (bins, turned) = (&mut self.bins, &mut self.turned);
        let (width, channels) = (setup.channel_width(), setup.channels());
        let (plan, band) = (&self.plans[input.station], setup.band(input));
        let lowest = band.edge_hz - band.zero_hz;
        let first = (lowest / width).round() as i64;
        let sign = match setup.stations()[input.station].inverted {
            true => 0.5,
            false => 0.0,
        };
        let start = turns + sign + lowest * placed.residual;
        let step = width * placed.residual;
        if let Some(factors) = &plan.pairs {
            // The transform is periodic.
            bins[channels] = bins[0];
            let sign = if first < 0 { -1.0 } else { 1.0 };
            kernel::fold(
                self.arch,
                &bins[..=channels],
                factors,
                sign,
                start,
                step,
                tiles,
            );
            return;
        }
        let from = first.rem_euclid(plan.length as i64) as usize;
        let ascending = if from + channels <= plan.length {
            &bins[from..from + channels]
        } else {
            let (end, begin) = turned.split_at_mut(plan.length - from);
            end.copy_from_slice(&bins[from..plan.length]);
            begin.copy_from_slice(&bins[..channels - (plan.length - from)]);
            turned
        };
        kernel::level(self.arch, ascending, start, step, tiles);
    }
}
