//! Setup of a correlation: stations, their bands, the products, and the time grid.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Range, RangeInclusive};

use pulp::Arch;

use crate::delay::{Delay, Moment, OutsideModel};
use crate::layout::Layout;
use crate::simd::Simd;

/// Minimum and maximum number of channels of a spectrum.
pub const CHANNELS: RangeInclusive<usize> = 4..=1 << 20;
/// Maximum loss of amplitude by rotating whole blocks, as a fraction; above it samples are rotated.
const MAX_LOSS: f64 = 1e-4;
/// Maximum number of blocks whose spectra are held at the same time. It is odd, so that the tiles of a spectrum use all of a cache.
const MAX_BLOCKS: usize = 31;
/// Number of blocks for which the sums of many channels are worth to be loaded.
const MIN_BLOCKS: usize = 11;
/// Size of spectra that are held at the same time, in bytes, as the caches of a core allow.
const CACHE: usize = 2 << 20;
/// Maximum size of spectra for the sake of [`MIN_BLOCKS`].
const MEMORY: usize = 64 << 20;

/// Band that a station recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct Band {
    /// Index of the station's thread.
    pub lane: usize,
    /// Index of the thread's channel.
    pub channel: usize,
    /// Sky frequency of the zero frequency of the samples, Hz: the LO frequency.
    pub zero_hz: f64,
    /// Lower band edge on the sky, Hz: the zero frequency in an upper sideband, a bandwidth below it in a lower one, half a
    /// bandwidth below it for complex samples centred on it.
    pub edge_hz: f64,
    /// R, L, X or Y.
    pub polarisation: char,
}

/// Station to correlate.
#[derive(Clone, Debug, PartialEq)]
pub struct StationSetup {
    /// Name of the station.
    pub name: String,
    /// Layout of its samples.
    pub layout: Layout,
    /// Delay to compensate.
    pub delay: Delay,
    /// Bands to use.
    pub bands: Vec<Band>,
    /// Whether the recorded samples have the opposite sign: that turns all phases by half a turn.
    pub inverted: bool,
}

/// One band of one station.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Input {
    /// Index of the station.
    pub station: usize,
    /// Index of its band.
    pub band: usize,
}

/// Cross product A conj(B) of two inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Product {
    /// Input A.
    pub a: Input,
    /// Input B.
    pub b: Input,
}

/// Method of fringe stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Rotation {
    /// Sample by sample, before the transform.
    Samples,
    /// A whole block at a time, after the transform: the rotation within a block is lost.
    Blocks,
}

/// Reason why stations cannot be correlated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// There are no stations, bands or products.
    #[error("nothing to correlate: give at least two stations with a common band")]
    Nothing,
    /// Number of channels outside the supported range.
    #[error("unsupported number of channels {0}: use {low} to {high}", low = CHANNELS.start(), high = CHANNELS.end())]
    Channels(usize),
    /// The stations recorded bands of different width.
    #[error(
        "{a} recorded bands of {a_hz} Hz and {b} of {b_hz} Hz: only bands of the same width can be correlated"
    )]
    Bandwidth {
        /// One station.
        a: String,
        /// Its bandwidth, Hz.
        a_hz: i64,
        /// Another station.
        b: String,
        /// Its bandwidth, Hz.
        b_hz: i64,
    },
    /// A band is not in the recording.
    #[error("{station} has no channel {channel} in its thread {lane}, counted from 0")]
    NoBand {
        /// Station.
        station: String,
        /// Requested thread.
        lane: usize,
        /// Requested channel.
        channel: usize,
    },
    /// A delay model does not cover the start.
    #[error("{station}: {error}")]
    Delay {
        /// Station.
        station: String,
        /// Error of its model.
        error: OutsideModel,
    },
    /// The CPU lacks vector instructions.
    #[error("this CPU has no {simd} instructions, but {}", there().join(" and "))]
    Simd {
        /// Requested instructions.
        simd: Simd,
    },
}

fn there() -> Vec<&'static str> {
    let there = Simd::ALL.into_iter().filter(|simd| simd.is_there());
    there.map(Simd::name).collect()
}

/// Checked setup of a correlation.
///
/// Samples are counted from an epoch. The grid counts *parts*: the duration of a real sample, or half of that of a complex one. A
/// block has two parts per channel.
#[derive(Clone, Debug)]
pub struct Setup {
    stations: Vec<StationSetup>,
    /// Index of the first input of each station.
    firsts: Vec<usize>,
    products: Vec<Product>,
    channels: usize,
    epoch: i64,
    start: i64,
    bandwidth: i64,
    rotation: Rotation,
    /// Number of blocks that are multiplied at a time: their sums are rounded once.
    batch: usize,
    simd: Simd,
    arch: Arch,
}

impl Setup {
    /// Makes a setup that correlates `stations` into spectra of `channels` channels. Samples are counted since the UTC second
    /// `epoch`; blocks start `start` parts after it. The method of fringe stopping is chosen for the time from `span.0` to
    /// `span.1` seconds after that.
    ///
    /// # Errors
    /// Returns a [`SetupError`] if the stations, products and numbers do not match.
    pub fn new(
        stations: Vec<StationSetup>,
        products: Vec<Product>,
        channels: usize,
        epoch: i64,
        start: i64,
        span: (f64, f64),
    ) -> Result<Setup, SetupError> {
        let first = stations.first().ok_or(SetupError::Nothing)?;
        if products.is_empty() {
            return Err(SetupError::Nothing);
        }
        if !CHANNELS.contains(&channels) {
            return Err(SetupError::Channels(channels));
        }
        let (a, a_hz) = (first.name.clone(), bandwidth(&first.layout));
        for other in &stations {
            let (b, b_hz) = (other.name.clone(), bandwidth(&other.layout));
            if a_hz != b_hz {
                return Err(SetupError::Bandwidth { a, a_hz, b, b_hz });
            }
            for band in &other.bands {
                if band.channel >= other.layout.channels {
                    return Err(SetupError::NoBand {
                        station: b,
                        lane: band.lane,
                        channel: band.channel,
                    });
                }
            }
        }
        let mut next = 0;
        let mut firsts = Vec::new();
        for station in &stations {
            firsts.push(next);
            next += station.bands.len();
        }
        let mut setup = Setup {
            firsts,
            // Complex samples start at even parts.
            start: start - start.rem_euclid(2),
            stations,
            products,
            channels,
            epoch,
            bandwidth: a_hz,
            rotation: Rotation::Blocks,
            batch: batch(next, channels),
            simd: Simd::best(),
            arch: Arch::new(),
        };
        setup.rotation = setup.choose_rotation(span)?;
        Ok(setup)
    }

    /// Returns the setup with other vector instructions than the best of this CPU.
    ///
    /// # Errors
    /// Returns an error if the CPU lacks them.
    pub fn with_simd(self, simd: Simd) -> Result<Setup, SetupError> {
        let arch = simd.arch().ok_or(SetupError::Simd { simd })?;
        Ok(Setup { simd, arch, ..self })
    }

    /// Returns the inputs in the smallest groups that have no products with each other, except that inputs without products are in the
    /// first one.
    pub fn groups(&self) -> Vec<Vec<Input>> {
        let inputs: Vec<Input> = self.inputs().collect();
        let mut group: Vec<usize> = (0..inputs.len()).collect();
        let mut has_products = vec![false; inputs.len()];
        for product in &self.products {
            let [a, b] = [product.a, product.b].map(|input| self.index(input));
            (has_products[a], has_products[b]) = (true, true);
            let (from, to) = (group[a].max(group[b]), group[a].min(group[b]));
            group
                .iter_mut()
                .filter(|it| **it == from)
                .for_each(|it| *it = to);
        }
        let first = has_products
            .iter()
            .position(|has| *has)
            .map_or(0, |place| group[place]);
        let mut groups: BTreeMap<usize, Vec<Input>> = BTreeMap::new();
        for (place, input) in inputs.into_iter().enumerate() {
            let group = if has_products[place] {
                group[place]
            } else {
                first
            };
            groups.entry(group).or_default().push(input);
        }
        groups.into_values().collect()
    }

    /// Returns the setup with some of its inputs, and the products of these. Their results are the same.
    pub fn only(&self, inputs: &[Input]) -> Setup {
        let mut stations = self.stations.clone();
        // The new index of each band that remains.
        let mut places = HashMap::new();
        let (mut firsts, mut next) = (Vec::new(), 0);
        for (station, of) in stations.iter_mut().enumerate() {
            firsts.push(next);
            let kept = (0..of.bands.len()).map(|band| Input { station, band });
            let kept: Vec<Input> = kept.filter(|input| inputs.contains(input)).collect();
            for (band, old) in kept.iter().enumerate() {
                places.insert(*old, Input { station, band });
            }
            next += kept.len();
            of.bands = kept.iter().map(|old| self.band(*old).clone()).collect();
        }
        let products = self.products.iter().filter_map(|product| {
            let (a, b) = (*places.get(&product.a)?, *places.get(&product.b)?);
            Some(Product { a, b })
        });
        Setup {
            products: products.collect(),
            stations,
            firsts,
            ..self.clone()
        }
    }

    /// Returns the vector instructions that calculations use.
    pub fn simd(&self) -> Simd {
        self.simd
    }

    pub(super) fn arch(&self) -> Arch {
        self.arch
    }

    /// Returns the number of blocks that are multiplied at a time.
    pub(super) fn batch(&self) -> usize {
        self.batch
    }

    /// Returns the stations.
    pub fn stations(&self) -> &[StationSetup] {
        &self.stations
    }

    /// Returns all bands of all stations, station by station.
    pub fn inputs(&self) -> impl Iterator<Item = Input> + '_ {
        let stations = self.stations.iter().enumerate();
        stations
            .flat_map(|(station, of)| (0..of.bands.len()).map(move |band| Input { station, band }))
    }

    /// Returns the cross products.
    pub fn products(&self) -> &[Product] {
        &self.products
    }

    /// Returns the index of an input among all inputs.
    pub fn index(&self, input: Input) -> usize {
        self.firsts[input.station] + input.band
    }

    /// Returns the band of an input.
    pub fn band(&self, input: Input) -> &Band {
        &self.stations[input.station].bands[input.band]
    }

    /// Returns the sky frequency of the middle of an input's band, in Hz.
    pub fn centre(&self, input: Input) -> f64 {
        self.band(input).edge_hz + self.bandwidth() / 2.0
    }

    /// Returns the number of channels of a spectrum.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Returns the width of a band, in Hz.
    pub fn bandwidth(&self) -> f64 {
        self.bandwidth as f64
    }

    /// Returns the width of a channel, in Hz.
    pub fn channel_width(&self) -> f64 {
        self.bandwidth() / self.channels as f64
    }

    /// Returns the method of fringe stopping.
    pub fn rotation(&self) -> Rotation {
        self.rotation
    }

    /// Returns the UTC second from which samples are counted.
    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    /// Returns the parts per second.
    pub fn part_rate(&self) -> i64 {
        2 * self.bandwidth
    }

    /// Returns the parts of a block.
    pub fn block_parts(&self) -> i64 {
        2 * self.channels as i64
    }

    /// Returns the length of a block, in seconds.
    pub fn block_seconds(&self) -> f64 {
        self.channels as f64 / self.bandwidth()
    }

    /// Returns the first part of a block since the epoch.
    pub fn first_part(&self, block: i64) -> i64 {
        self.start + block * self.block_parts()
    }

    /// Returns the middle of a block.
    pub fn middle(&self, block: i64) -> Moment {
        let parts = self.first_part(block) + self.channels as i64;
        Moment::at(self.epoch).plus(parts as f64 / self.part_rate() as f64)
    }

    /// Returns the samples of a station that blocks need, counted from the epoch.
    ///
    /// # Errors
    /// Returns [`OutsideModel`] if its delay model does not cover them.
    pub fn samples(&self, station: usize, blocks: Range<i64>) -> Result<Range<i64>, OutsideModel> {
        let last = (blocks.end - 1).max(blocks.start);
        let (first, length, _) = self.place(station, blocks.start)?;
        let (until, _, _) = self.place(station, last)?;
        // The delay may have an extremum between the two.
        let margin = length;
        Ok(first.min(until) - margin..first.max(until) + length + margin)
    }

    /// Returns the first sample and the number of samples of a block at a station, and the delay: the total, its rate, and the
    /// rest after the whole samples, in seconds.
    pub(super) fn place(
        &self,
        station: usize,
        block: i64,
    ) -> Result<(i64, i64, [f64; 3]), OutsideModel> {
        let StationSetup { layout, delay, .. } = &self.stations[station];
        let parts = if layout.complex { 2 } else { 1 };
        let rate = layout.sample_rate() as f64;
        let (seconds, slope) = delay.about(self.middle(block))?;
        let whole = (seconds * rate).round();
        let first = self.first_part(block) / parts + whole as i64;
        let length = self.block_parts() / parts;
        Ok((first, length, [seconds, slope, seconds - whole / rate]))
    }

    fn choose_rotation(&self, (from, to): (f64, f64)) -> Result<Rotation, SetupError> {
        let start = self.middle(0).plus(from);
        let mut max: f64 = 0.0;
        for station in &self.stations {
            let highest = station.bands.iter().map(|band| band.zero_hz.abs());
            let highest = highest.fold(0.0, f64::max);
            for part in [0.0, 0.5, 1.0] {
                let about = station.delay.about(start.plus(part * (to - from)));
                let (_, rate) = match about {
                    Ok(about) => about,
                    Err(error) if part == 0.0 => {
                        let station = station.name.clone();
                        return Err(SetupError::Delay { station, error });
                    }
                    Err(_) => continue,
                };
                max = max.max((rate * highest).abs() * self.block_seconds());
            }
        }
        // Two stations may rotate in opposite directions. sinc(x) = 1 - (pi x)^2 / 6.
        let loss = (std::f64::consts::PI * 2.0 * max).powi(2) / 6.0;
        Ok(if loss > MAX_LOSS {
            Rotation::Samples
        } else {
            Rotation::Blocks
        })
    }
}

/// Returns the number of blocks of these inputs that are multiplied at a time.
fn batch(inputs: usize, channels: usize) -> usize {
    let bytes = inputs.max(1) * channels * 8;
    let batch = (CACHE / bytes).max(MIN_BLOCKS.min(MEMORY / bytes));
    batch.clamp(1, MAX_BLOCKS)
}

fn bandwidth(layout: &Layout) -> i64 {
    let rate = layout.sample_rate();
    if layout.complex { rate } else { rate / 2 }
}
