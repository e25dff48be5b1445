//! Sums of known signals, for any blocks, threads and delays.

use std::ops::Range;
use std::sync::Arc;

use evlbi_wire::vdif::Header;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rustfft::num_complex::Complex64;

use super::*;
use crate::delay::{Delay, Moment, Piece, Polynomial};
use crate::layout::Layout;
use crate::simd::Simd;
use crate::sky::{SkyPlan, StationPlan};
use crate::track::{Track, Trust};
use crate::unpack::Unpacker;

const START: i64 = 1_704_067_200;

/// Recording of a station of the plan, and its setup without a delay model.
pub struct Recorded {
    pub track: Track,
    pub setup: StationSetup,
}

pub fn record(plan: &SkyPlan) -> Vec<Recorded> {
    record_with(plan, |_| {})
}

/// Records the plan with flags set by `prepare`.
pub fn record_with(plan: &SkyPlan, mut prepare: impl FnMut(&mut Track)) -> Vec<Recorded> {
    plan.stations()
        .unwrap()
        .iter()
        .map(|station| {
            let mut frames = vec![0; station.total_frames() as usize * station.frame_length()];
            station.generator().fill(&mut frames);
            let header = Header::parse(&frames).unwrap();
            let layout = Layout::of(&header, station.frame_rate()).unwrap();
            let threads: Vec<u16> = (0..station.threads()).collect();
            let mut track = Track::new(&Unpacker::plain(layout), &threads, Trust::Exact);
            prepare(&mut track);
            for frame in frames.chunks(station.frame_length()) {
                let header = Header::parse(frame).unwrap();
                let time = header.time();
                let number = (time.second - START) * i64::from(station.frame_rate().get())
                    + i64::from(time.frame);
                track.push(
                    header.key().thread,
                    number,
                    header.is_invalid(),
                    &frame[header.len()..],
                );
            }
            let width = layout.sample_rate() as f64 / if layout.complex { 1.0 } else { 2.0 };
            let bands = (0..threads.len())
                .flat_map(|lane| (0..layout.channels).map(move |channel| (lane, channel)))
                .enumerate()
                .map(|(number, (lane, channel))| {
                    let zero_hz = plan.sky_frequency + number as f64 * width;
                    Band {
                        lane,
                        channel,
                        zero_hz,
                        edge_hz: zero_hz - if layout.complex { width / 2.0 } else { 0.0 },
                        polarisation: 'R',
                    }
                });
            let setup = StationSetup {
                name: station.name().to_owned(),
                layout,
                delay: Delay::default(),
                bands: bands.collect(),
                inverted: false,
            };
            Recorded { track, setup }
        })
        .collect()
}

pub fn delayed(coefficients: &[f64]) -> Delay {
    let mut delay = Delay::default();
    delay.add(Polynomial {
        start: Moment::at(START),
        coefficients: coefficients.to_vec(),
    });
    delay
}

/// Returns the products of the same band for all pairs.
pub fn pairs(stations: &[StationSetup]) -> Vec<Product> {
    let mut products = Vec::new();
    for a in 0..stations.len() {
        for b in a + 1..stations.len() {
            for band in 0..stations[a].bands.len() {
                products.push(Product {
                    a: Input { station: a, band },
                    b: Input { station: b, band },
                });
            }
        }
    }
    products
}

pub fn correlate(recorded: &[Recorded], channels: usize, blocks: Range<i64>) -> (Arc<Setup>, Sums) {
    let stations: Vec<StationSetup> = recorded.iter().map(|r| r.setup.clone()).collect();
    let products = pairs(&stations);
    let setup = Arc::new(Setup::new(stations, products, channels, START, 0, (0.0, 1.0)).unwrap());
    let slabs = slabs(&setup, recorded, blocks.clone());
    let sums = Correlator::new(&setup).correlate(&slabs, blocks).unwrap();
    (setup, sums)
}

pub fn slabs(setup: &Setup, recorded: &[Recorded], blocks: Range<i64>) -> Vec<Slab> {
    let slab = |(index, recorded): (usize, &Recorded)| {
        recorded
            .track
            .slab(setup.samples(index, blocks.clone()).unwrap())
    };
    recorded.iter().enumerate().map(slab).collect()
}

/// Returns the normalised coherent sum.
pub fn coefficient(sums: &ProductSums) -> Complex64 {
    sums.values.iter().sum::<Complex64>() / (sums.energy_a * sums.energy_b).sqrt()
}

#[test]
fn a_source_is_found_with_its_amplitude_and_phase() {
    let plan = SkyPlan {
        duration: 0.05,
        sample_rate: 16e6,
        correlation: 0.3,
        stations: vec![StationPlan::new("Ef"), StationPlan::new("Jb")],
        ..SkyPlan::default()
    };
    for (complex, delays) in [
        (false, [vec![], vec![]]),
        (false, [vec![1.23e-6, 1e-6], vec![-3.21e-6, -4e-7]]),
        (true, [vec![1.23e-6, 1e-6], vec![-3.21e-6, -4e-7]]),
    ] {
        let mut plan = SkyPlan {
            complex,
            ..plan.clone()
        };
        for (station, delay) in plan.stations.iter_mut().zip(&delays) {
            station.delay.clone_from(delay);
        }
        let mut recorded = record(&plan);
        for (recorded, delay) in recorded.iter_mut().zip(&delays) {
            recorded.setup.delay = delayed(delay);
        }
        let (setup, sums) = correlate(&recorded, 128, 10..700);
        let r = coefficient(&sums.products[0]);
        let turns = delays[0].len() > 1;
        assert_eq!(setup.rotation() == Rotation::Samples, turns);
        assert!((r.norm() - 0.3 * 0.8825).abs() < 0.012, "{r}");
        assert!(r.arg().abs() < 0.03, "{r}");
    }
}

/// Calculates the same by definition, in f64: every sample rotated, each channel a sum over all samples.
fn oracle(setup: &Setup, recorded: &[Recorded], input: Input, block: i64) -> Vec<Complex64> {
    let station = &setup.stations()[input.station];
    let layout = &station.layout;
    let band = setup.band(input);
    let (first, length, [delay, rate, residual]) = setup.place(input.station, block).unwrap();
    let slab = recorded[input.station].track.slab(first..first + length);
    let group = if layout.complex { 2 } else { 1 };
    let mut values = vec![0.0; layout.codec.components(slab.lanes[band.lane].bytes.len())];
    layout
        .codec
        .decode(&slab.lanes[band.lane].bytes, &mut values);
    let fs = layout.sample_rate() as f64;
    (0..setup.channels())
        .map(|channel| {
            let f = band.edge_hz - band.zero_hz + channel as f64 * setup.channel_width();
            let mut sum = Complex64::default();
            for n in 0..length {
                let number = first + n;
                if !slab.lanes[band.lane].good.contains(number) {
                    continue;
                }
                let at =
                    (number - slab.first) as usize * layout.components() + band.channel * group;
                let im = if layout.complex { values[at + 1] } else { 0.0 };
                let sample = Complex64::new(f64::from(values[at]), f64::from(im));
                let t = (n as f64 - length as f64 / 2.0) / fs;
                let turns = match setup.rotation() {
                    Rotation::Samples => band.zero_hz * (delay + rate * (t - residual)),
                    Rotation::Blocks => band.zero_hz * (delay - rate * residual),
                };
                let phase = turns.fract() - f * n as f64 / fs + f * residual;
                sum += sample * Complex64::cis(std::f64::consts::TAU * phase);
            }
            sum
        })
        .collect()
}

/// Makes stations of any sample format that observe one source, with delays known to the plan.
fn plan(bits: u8, complex: bool, channels: u32, threads: u16, delays: [&[f64]; 2]) -> SkyPlan {
    let mut plan = SkyPlan {
        duration: 0.004,
        sample_rate: 8e6,
        bits,
        complex,
        channels,
        threads,
        payload: 1000,
        correlation: 0.4,
        stations: vec![StationPlan::new("Ef"), StationPlan::new("Jb")],
        ..SkyPlan::default()
    };
    for (station, delay) in plan.stations.iter_mut().zip(delays) {
        station.delay = delay.to_vec();
    }
    plan
}

fn record_with_model(plan: &SkyPlan) -> Vec<Recorded> {
    let mut recorded = record(plan);
    for (recorded, station) in recorded.iter_mut().zip(&plan.stations) {
        recorded.setup.delay = delayed(&station.delay);
    }
    recorded
}

/// All kinds of samples, mirrored bands, missing data, changing delays: every spectrum matches its definition.
#[test]
fn spectra_match_their_definition() {
    evlbi_testkit::watch();
    let still: [&[f64]; 2] = [&[2.3e-6], &[-1.1e-6]];
    let moving: [&[f64]; 2] = [&[2.3e-6, 1.5e-6], &[-1.1e-6, -8e-7]];
    for (bits, complex, channels, threads) in [
        (2, false, 1, 1),
        (1, false, 1, 1),
        (8, false, 2, 1),
        (2, true, 1, 1),
        (4, true, 4, 2),
        (1, true, 2, 2),
        (2, false, 4, 4),
    ] {
        for delays in [still, moving] {
            for lower in [false, true] {
                let plan = plan(bits, complex, channels, threads, delays);
                let mut recorded = record_with_model(&plan);
                for recorded in &mut recorded {
                    for band in &mut recorded.setup.bands {
                        let width = 4e6;
                        match (lower, complex) {
                            (true, false) => band.edge_hz = band.zero_hz - width,
                            // Complex samples whose zero frequency is the band edge.
                            (true, true) => band.edge_hz = band.zero_hz,
                            (false, _) => {}
                        }
                    }
                }
                // Flags apply to frames that are added after them.
                let again = record_flagged(&plan, &recorded);
                check_against_oracle(&again);
            }
        }
    }
}

fn record_flagged(plan: &SkyPlan, like: &[Recorded]) -> Vec<Recorded> {
    let mut again = record_with(plan, |track| track.flag(0, 10_000..10_037));
    for (recorded, like) in again.iter_mut().zip(like) {
        recorded.setup = like.setup.clone();
    }
    again
}

fn check_against_oracle(recorded: &[Recorded]) {
    let blocks = 75..85;
    let (setup, sums) = correlate(recorded, 64, blocks.clone());
    for (product, found) in setup.products().iter().zip(&sums.products).take(2) {
        let mut expected = vec![Complex64::default(); 64];
        for block in blocks.clone() {
            let a = oracle(&setup, recorded, product.a, block);
            let b = oracle(&setup, recorded, product.b, block);
            for ((sum, a), b) in expected.iter_mut().zip(&a).zip(&b) {
                *sum += a * b.conj();
            }
        }
        let scale = expected.iter().map(|v| v.norm()).fold(0.0, f64::max);
        for (channel, (found, expected)) in found.values.iter().zip(&expected).enumerate() {
            assert!(
                (found - expected).norm() < 2e-5 * scale,
                "{product:?} channel {channel}: {found} {expected}, {:?}",
                setup.rotation()
            );
        }
    }
}

/// The result is the same to the bit, whatever the flagged bytes are.
#[test]
fn bytes_under_a_flag_do_not_count() {
    use rand::{Rng, SeedableRng};
    let plan = plan(2, false, 1, 1, [&[1e-6, 1e-6], &[]]);
    let found = |seed: u64| {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let mut recorded = record_with(&plan, |track| {
            track.flag(0, 5000..5123);
            track.flag(0, 16_001..20_000);
        });
        for recorded in &mut recorded {
            recorded.setup.delay = delayed(&[1e-6, 1e-6]);
        }
        let stations: Vec<StationSetup> = recorded.iter().map(|r| r.setup.clone()).collect();
        let products = pairs(&stations);
        let setup = Arc::new(Setup::new(stations, products, 64, START, 0, (0.0, 1.0)).unwrap());
        let mut slabs = slabs(&setup, &recorded, 0..200);
        // Bytes whose samples are all flagged.
        for slab in &mut slabs {
            for flagged in [5000i64..5123, 16_001..20_000] {
                let byte = |sample: i64| ((sample - slab.first) / 4) as usize;
                let bytes = byte(flagged.start + 3)..byte(flagged.end);
                random.fill_bytes(&mut slab.lanes[0].bytes[bytes]);
            }
        }
        let sums = Correlator::new(&setup).correlate(&slabs, 0..200).unwrap();
        format!("{sums:?}")
    };
    assert_eq!(found(1), found(2));
}

/// The overlap of a baseline and its power are counted sample by sample.
#[test]
fn overlaps_and_their_powers_are_exact() {
    let plan = plan(2, false, 1, 1, [&[], &[]]);
    let flags = [vec![1000..1500, 4000..4010], vec![1400..2000, 4005..9000]];
    let mut at = 0;
    let recorded = record_with(&plan, |track| {
        for flag in &flags[at] {
            track.flag(0, flag.clone());
        }
        at += 1;
    });
    let (setup, sums) = correlate(&recorded, 64, 0..240);
    let samples = 240 * 128;
    let bad: evlbi_wire::validity::Intervals = flags.iter().flatten().cloned().collect();
    assert_eq!(sums.products[0].overlap, samples - bad.total());
    assert_eq!(sums.inputs[0].good, samples - 510);
    assert_eq!(sums.blocks, 240);
    let mut energies = [0.0; 2];
    for (station, energy) in energies.iter_mut().enumerate() {
        let slab = recorded[station].track.slab(0..samples as i64);
        let layout = &setup.stations()[station].layout;
        let mut values = vec![0.0; samples as usize];
        layout.codec.decode(&slab.lanes[0].bytes, &mut values);
        for (number, value) in values.iter().enumerate() {
            if !bad.contains(number as i64) {
                *energy += f64::from(value * value) * 64.0;
            }
        }
    }
    let found = &sums.products[0];
    assert!((found.energy_a / energies[0] - 1.0).abs() < 1e-6);
    assert!((found.energy_b / energies[1] - 1.0).abs() < 1e-6);
}

/// The sums are the same however the blocks are divided.
#[test]
fn parts_sum_to_the_whole() {
    let plan = plan(2, false, 2, 1, [&[1e-6, 1e-6], &[-2e-6]]);
    let recorded = record_with_model(&plan);
    let (_, whole) = correlate(&recorded, 32, 3..230);
    for cuts in [vec![3, 40, 41, 100, 230], vec![3, 4, 229, 230]] {
        let mut sum: Option<Sums> = None;
        for part in cuts.windows(2) {
            let (_, part) = correlate(&recorded, 32, part[0]..part[1]);
            match &mut sum {
                Some(sum) => sum.add(&part),
                None => sum = Some(part),
            }
        }
        let sum = sum.unwrap();
        for (whole, sum) in whole.products.iter().zip(&sum.products) {
            assert_eq!(whole.overlap, sum.overlap);
            let scale = whole.values.iter().map(|v| v.norm()).fold(0.0, f64::max);
            for (whole, sum) in whole.values.iter().zip(&sum.values) {
                assert!((whole - sum).norm() < 1e-5 * scale);
            }
        }
    }
}

/// Phases close around every triangle, and the order of a baseline determines its sign.
#[test]
fn phases_close_round_triangles() {
    for stations in 3..=8usize {
        let mut plan = plan(2, false, 1, 1, [&[], &[]]);
        plan.correlation = 0.7;
        plan.duration = 0.01;
        plan.stations = (0..stations)
            .map(|number| StationPlan {
                delay: vec![number as f64 * 0.7e-7 + (number * number) as f64 * 1e-8],
                ..StationPlan::new(["Ef", "Jb", "On", "Mc", "Tr", "Wb", "Nt", "Hh"][number])
            })
            .collect();
        // Delays are not compensated, so that each baseline has a different phase.
        let recorded = record(&plan);
        let (setup, sums) = correlate(&recorded, 64, 0..600);
        let order: Vec<(usize, usize)> = setup
            .products()
            .iter()
            .map(|product| (product.a.station, product.b.station))
            .collect();
        assert_eq!(&order[..2], [(0, 1), (0, 2)]);
        let value = |a: usize, b: usize| {
            let place = order.iter().position(|pair| *pair == (a, b)).unwrap();
            // One channel in the middle of the band.
            sums.products[place].values[20..24]
                .iter()
                .sum::<Complex64>()
        };
        let mut closed = 0;
        for a in 0..stations {
            for b in a + 1..stations {
                for c in b + 1..stations {
                    let closure = value(a, b) * value(b, c) * value(a, c).conj();
                    assert!(
                        closure.arg().abs() < 0.12,
                        "{stations}: {a} {b} {c} {}",
                        closure.arg()
                    );
                    closed += 1;
                }
            }
        }
        assert_eq!(closed, stations * (stations - 1) * (stations - 2) / 6);
        // If B is later than A, the phase of V = A conj(B) increases with frequency.
        let lower = sums.products[0].values[10..20].iter().sum::<Complex64>();
        let upper = sums.products[0].values[40..50].iter().sum::<Complex64>();
        assert!((upper * lower.conj()).arg() > 0.0);
    }
}

/// A fill pattern in the middle of a payload, with a valid first and last word, passes the checks of headers and of ends; here it
/// is found.
#[test]
fn fill_inside_a_payload_is_found() {
    let plan = plan(2, false, 1, 1, [&[], &[]]);
    let station = &plan.stations().unwrap()[0];
    let mut frames = vec![0; station.total_frames() as usize * station.frame_length()];
    station.generator().fill(&mut frames);
    let header = Header::parse(&frames).unwrap();
    let layout = Layout::of(&header, station.frame_rate()).unwrap();
    let mut payload = frames[32..1032].to_vec();
    evlbi_wire::fill::make(&mut payload[200..360]);
    for (trust, good) in [
        (Trust::Exact, 4000 - 640),
        (Trust::Headers, 4000),
        (Trust::Blind, 4000),
    ] {
        let mut track = Track::new(&Unpacker::plain(layout), &[0], trust);
        track.push(0, 0, false, &payload);
        let found = &track.slab(0..4000).lanes[0].good;
        assert_eq!(found.total(), good, "{trust:?}");
        assert!(found.covers(0..800) && found.covers(1440..4000));
    }
}

#[test]
fn invalid_setups_are_refused() {
    let recorded = record(&plan(2, false, 1, 1, [&[], &[]]));
    let stations: Vec<StationSetup> = recorded.iter().map(|r| r.setup.clone()).collect();
    let products = pairs(&stations);
    let make = |stations: &[StationSetup], products: &[Product], channels: usize| {
        Setup::new(
            stations.to_vec(),
            products.to_vec(),
            channels,
            START,
            0,
            (0.0, 1.0),
        )
    };
    assert!(make(&stations, &products, 64).is_ok());
    assert_eq!(
        make(&stations, &products, 3).unwrap_err(),
        SetupError::Channels(3)
    );
    assert_eq!(make(&stations, &[], 64).unwrap_err(), SetupError::Nothing);
    assert_eq!(make(&[], &products, 64).unwrap_err(), SetupError::Nothing);
    let other = record(&SkyPlan {
        sample_rate: 16e6,
        ..plan(2, false, 1, 1, [&[], &[]])
    });
    let mixed = [stations[0].clone(), other[1].setup.clone()];
    let error = make(&mixed, &products, 64).unwrap_err().to_string();
    assert!(error.contains("4000000 Hz and Jb of 8000000 Hz"), "{error}");
}

/// Products that are calculated in groups are those of each pair alone, to the bit, for any pairs in any order.
#[test]
fn groups_of_products_are_those_of_their_pairs() {
    let plan = SkyPlan {
        duration: 0.01,
        correlation: 0.5,
        stations: (b'A'..=b'F')
            .map(|letter| StationPlan::new(&format!("{}x", char::from(letter))))
            .collect(),
        ..plan(2, false, 1, 1, [&[], &[]])
    };
    let recorded = record(&plan);
    let stations: Vec<StationSetup> = recorded.iter().map(|it| it.setup.clone()).collect();
    let of = |pairs: &[[usize; 2]]| -> Vec<Vec<Complex64>> {
        let input = |station| Input { station, band: 0 };
        let products = pairs.iter().map(|[a, b]| Product {
            a: input(*a),
            b: input(*b),
        });
        let setup = Setup::new(
            stations.clone(),
            products.collect(),
            50,
            START,
            0,
            (0.0, 1.0),
        );
        let setup = Arc::new(setup.unwrap());
        let slabs = slabs(&setup, &recorded, 0..70);
        let sums = Correlator::new(&setup).correlate(&slabs, 0..70).unwrap();
        sums.products.into_iter().map(|sums| sums.values).collect()
    };
    let all: Vec<[usize; 2]> = (0..36).map(|it| [it / 6, it % 6]).collect();
    let alone: Vec<Vec<Complex64>> = all.iter().map(|pair| of(&[*pair]).remove(0)).collect();
    let mut random = SmallRng::seed_from_u64(1);
    for _ in 0..20 {
        let mut chosen: Vec<usize> = (0..36).filter(|_| random.random_bool(0.6)).collect();
        chosen.shuffle(&mut random);
        chosen.push(chosen[0]);
        let pairs: Vec<[usize; 2]> = chosen.iter().map(|it| all[*it]).collect();
        let expected: Vec<_> = chosen.iter().map(|it| alone[*it].clone()).collect();
        assert_eq!(of(&pairs), expected, "{pairs:?}");
    }
}

/// What was correlated before the end of a delay model is not among the next sums.
#[test]
fn nothing_remains_after_an_error() {
    let mut recorded = record(&plan(2, false, 1, 1, [&[], &[]]));
    for recorded in &mut recorded {
        recorded.setup.delay = Delay::pieces(vec![Piece {
            polynomial: Polynomial {
                start: Moment::at(START),
                coefficients: vec![0.0],
            },
            seconds: 0.0006,
        }]);
    }
    let (setup, expected) = correlate(&recorded, 50, 0..40);
    let slabs = slabs(&setup, &recorded, 0..40);
    let mut correlator = Correlator::new(&setup);
    correlator.correlate(&slabs, 0..70).unwrap_err();
    let found = correlator.correlate(&slabs, 0..40).unwrap();
    assert_eq!(found.products[0].values, expected.products[0].values);
}

/// Some of the products alone are those among all, to the bit; with each kind of vector instructions, they agree within rounding.
#[test]
fn some_products_are_those_among_all() {
    // One of the threads is invalid in parts of some blocks, and in some.
    let recorded = record_with(&plan(2, false, 2, 2, [&[], &[1e-7]]), |track| {
        for begin in [700, 2000, 3500] {
            track.flag(1, begin..begin + 7 * begin / 10);
        }
    });
    let (setup, all) = correlate(&recorded, 128, 0..40);
    let good: Vec<u64> = all.inputs.iter().map(|input| input.good).collect();
    assert!(good[1] < good[0], "{good:?}");
    let slabs = slabs(&setup, &recorded, 0..40);
    let groups = setup.products().iter().map(|it| vec![it.a, it.b]);
    assert_eq!(setup.groups(), groups.collect::<Vec<_>>());
    for (place, product) in setup.products().iter().enumerate() {
        let only = Arc::new(setup.only(&[product.a, product.b]));
        assert_eq!(only.inputs().count(), 2);
        assert_eq!(only.band(only.products()[0].b), setup.band(product.b));
        let sums = Correlator::new(&only).correlate(&slabs, 0..40).unwrap();
        assert_eq!(sums.products[0].values, all.products[place].values);
        assert_eq!(sums.products[0].energy_a, all.products[place].energy_a);
        assert_eq!(
            sums.inputs[1].energy,
            all.inputs[setup.index(product.b)].energy
        );
        let input = setup.index(product.a);
        assert_eq!(sums.inputs[0].power, all.inputs[input].power);
    }
    let scale = coefficient(&all.products[0]).norm() / all.products[0].values.len() as f64;
    for simd in Simd::ALL {
        let Ok(pinned) = Setup::clone(&setup).with_simd(simd) else {
            assert!(!simd.is_there());
            continue;
        };
        let pinned = Arc::new(pinned);
        let sums = Correlator::new(&pinned).correlate(&slabs, 0..40).unwrap();
        let is_best = simd == Simd::best();
        for (product, expected) in sums.products.iter().zip(&all.products) {
            let norm = (product.energy_a * product.energy_b).sqrt();
            let off = product.values.iter().zip(&expected.values);
            let off = off.map(|(a, b)| (a - b).norm() / norm).fold(0.0, f64::max);
            assert!(off < 1e-5 * scale, "{simd}: {off:e}");
            assert!(!is_best || off == 0.0);
        }
    }
}
