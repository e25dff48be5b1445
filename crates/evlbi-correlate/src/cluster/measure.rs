//! Measures what the correlator costs on this host: samples in memory, one thread.

use std::ops::Range;
use std::sync::Arc;

use evlbi_core::time::Nanos;
use evlbi_fx::codec::Codec;
use evlbi_fx::correlator::{Band, Correlator, Input, Product, Setup, StationSetup, Sums};
use evlbi_fx::delay::{Delay, Polynomial};
use evlbi_fx::layout::Layout;
use evlbi_fx::simd::Simd;
use evlbi_fx::track::{Slab, Track, Trust};
use evlbi_fx::unpack::Unpacker;
use evlbi_net::run::Run;
use evlbi_wire::time::FrameRate;

use super::{ClusterError, ClusterOptions, Costs, Measured};
use crate::run;

/// Numbers of stations that are correlated.
const FEW: usize = 2;
const MANY: usize = 8;
/// CPU time of all rounds together, without the first one of each, which warms up.
const TIME: Nanos = Nanos(2_500_000_000);
/// Minimum and maximum number of rounds.
const ROUNDS: (usize, usize) = (5, 1000);
/// Length of a payload, in bytes.
const PAYLOAD: usize = 8000;
/// Sample rate of a band: 32 MHz wide.
const SAMPLE_RATE: u32 = 64_000_000;
/// Sky frequency of the bands, in Hz, and change of the delays, in seconds per second: as for stations on Earth, so that fringes are
/// stopped as for these.
const SKY: f64 = 4.9e9;
const DELAY_RATE: f64 = 1e-6;
/// Number of different payloads of a station.
const PAYLOADS: usize = 64;

/// Measures the costs on this host: the medians of the CPU time of pieces of two and of eight stations, alternately. A piece is what a
/// thread of a correlation gets at once. Included are everything from the payload of a frame to sums: copies, decoding, delays, transforms,
/// products. Reading files and finding frames in them are not.
pub fn measure(options: &ClusterOptions, run: &Run) -> Result<(Costs, Measured), ClusterError> {
    let [mut few, mut many] = [
        Bench::new(FEW, options.bits, options.channels)?,
        Bench::new(MANY, options.bits, options.channels)?,
    ];
    let (mut of_few, mut of_many) = (Vec::new(), Vec::new());
    few.piece(run)?;
    many.piece(run)?;
    let mut spent = 0.0;
    let (least, most) = ROUNDS;
    while of_few.len() < least || (spent < TIME.as_secs_f64() && of_few.len() < most) {
        if run.is_stopped() {
            return Err(ClusterError::Interrupted);
        }
        let (a, b) = (few.piece(run)?, many.piece(run)?);
        spent += (a + b) * few.samples * 1e-9;
        of_few.push(a);
        of_many.push(b);
    }
    let rounds = of_few.len();
    let costs = Costs::of(FEW, median(&mut of_few), MANY, median(&mut of_many));
    let costs = costs.ok_or(ClusterError::Disturbed)?;
    let measured = Measured {
        cpu: model(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
        simd: few.setup.simd(),
        channels: options.channels,
        rotation: few.setup.rotation(),
        rounds,
        is_optimised: !cfg!(debug_assertions),
    };
    Ok((costs, measured))
}

/// Returns the median of numbers, of which there is at least one.
fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or_default()
}

/// Returns the CPU's model, if the text of /proc/cpuinfo names it.
pub(super) fn model(cpuinfo: &str) -> Option<String> {
    let named = |line: &str| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    };
    cpuinfo.lines().find_map(named).filter(|it| !it.is_empty())
}

/// Stations that are correlated from memory.
struct Bench {
    setup: Arc<Setup>,
    correlator: Correlator,
    stations: Vec<Recorded>,
    sums: Sums,
    /// First block of the next piece.
    block: i64,
    /// Samples of a station in a piece.
    samples: f64,
}

/// A station's frames.
struct Recorded {
    track: Track,
    /// Number of the next frame; `None` at the start.
    next: Option<i64>,
    payloads: Vec<Vec<u8>>,
}

impl Bench {
    fn new(stations: usize, bits: u8, channels: usize) -> Result<Bench, ClusterError> {
        let layout = layout(bits)?;
        let input = |station| Input { station, band: 0 };
        let setups = (0..stations).map(|number| station(number, layout));
        let pairs = (0..stations).flat_map(|a| (a + 1..stations).map(move |b| (a, b)));
        let products = pairs.map(|(a, b)| Product {
            a: input(a),
            b: input(b),
        });
        let (setups, products) = (setups.collect(), products.collect());
        let setup = Setup::new(setups, products, channels, 0, 0, (0.0, 60.0))?;
        let setup = Arc::new(setup.with_simd(Simd::best())?);
        let stations = (1..=stations as u64).map(|seed| Recorded {
            track: Track::new(&Unpacker::plain(layout), &[0], Trust::default()),
            next: None,
            payloads: noise(seed),
        });
        let blocks = run::unit(&setup);
        Ok(Bench {
            correlator: Correlator::new(&setup),
            stations: stations.collect(),
            sums: Sums::new(&setup),
            block: 0,
            samples: (blocks * setup.block_parts()) as f64,
            setup,
        })
    }

    /// Correlates the next piece. Returns its CPU time, in nanoseconds per sample of a station.
    fn piece(&mut self, run: &Run) -> Result<f64, ClusterError> {
        let clock = run.clock();
        let begun = clock.thread_time();
        let blocks = self.block..self.block + run::unit(&self.setup);
        self.block = blocks.end;
        let stations = self.stations.iter_mut().enumerate();
        let slabs = stations.map(|(index, station)| {
            let range = self.setup.samples(index, blocks.clone())?;
            Ok(station.slab(range))
        });
        let slabs: Vec<Slab> = slabs.collect::<Result<_, ClusterError>>()?;
        let sums = self.correlator.correlate(&slabs, blocks)?;
        self.sums.add(&sums);
        let nanoseconds = clock.thread_time().since(begun).0;
        Ok(nanoseconds as f64 / self.samples)
    }
}

impl Recorded {
    /// Takes the frames up to the end of a range of samples; returns the samples.
    fn slab(&mut self, range: Range<i64>) -> Slab {
        let samples = self.track.layout().frame_samples();
        self.track.forget(range.start);
        let mut next = self.next.unwrap_or(range.start.div_euclid(samples));
        while next * samples < range.end {
            let payload = next.rem_euclid(self.payloads.len() as i64) as usize;
            self.track
                .push(0, next, false, self.payloads[payload].as_slice());
            next += 1;
        }
        self.next = Some(next);
        self.track.slab(range)
    }
}

fn layout(bits: u8) -> Result<Layout, ClusterError> {
    let frame_samples = PAYLOAD as u32 * 8 / u32::from(bits.max(1));
    Ok(Layout {
        codec: Codec::vdif(bits).map_err(|_| ClusterError::Bits(bits))?,
        complex: false,
        channels: 1,
        payload: PAYLOAD,
        replaced: 0,
        frame_rate: FrameRate::new(SAMPLE_RATE / frame_samples).ok_or(ClusterError::Bits(bits))?,
    })
}

/// Returns a station of one band with a delay that changes as on Earth.
fn station(number: usize, layout: Layout) -> StationSetup {
    let mut delay = Delay::default();
    let turns = if number.is_multiple_of(2) { 1.0 } else { -1.0 };
    delay.add(Polynomial {
        coefficients: vec![1.37e-6 * (number + 1) as f64, turns * DELAY_RATE],
        ..Polynomial::default()
    });
    StationSetup {
        name: format!("S{number}"),
        layout,
        delay,
        bands: vec![Band {
            lane: 0,
            channel: 0,
            zero_hz: SKY,
            edge_hz: SKY,
            polarisation: 'R',
        }],
        inverted: false,
    }
}

/// Returns payloads of random bits.
fn noise(seed: u64) -> Vec<Vec<u8>> {
    let mut state = seed;
    let mut byte = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let payload = |_| (0..PAYLOAD).map(|_| byte()).collect();
    (0..PAYLOADS).map(payload).collect()
}
