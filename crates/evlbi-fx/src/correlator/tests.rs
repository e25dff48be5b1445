use std::ops::Range;
use std::sync::Arc;

use evlbi_wire::vdif::{Frame, Header};
use rustfft::num_complex::Complex64;

use super::*;
use crate::delay::{Delay, Moment, Polynomial};
use crate::sky::{SkyPlan, StationPlan};
use crate::track::{Layout, Track, Trust};

const START: i64 = 1_704_067_200;

/// What a station of the plan recorded, and how it is set up without a delay model.
pub struct Recorded {
    pub track: Track,
    pub setup: StationSetup,
}

pub fn record(plan: &SkyPlan) -> Vec<Recorded> {
    plan.stations()
        .unwrap()
        .iter()
        .map(|station| {
            let mut frames = vec![0; station.total_frames() as usize * station.frame_length()];
            station.generator().fill(&mut frames);
            let header = Header::parse(&frames).unwrap();
            let layout = Layout::of(&header, station.frame_rate()).unwrap();
            let threads: Vec<u16> = (0..station.threads()).collect();
            let mut track = Track::new(layout, &threads, Trust::Exact);
            for frame in frames.chunks(station.frame_length()) {
                let frame = Frame::new_checked(frame).unwrap();
                let header = frame.header();
                let time = header.time();
                let number = (time.second - START) * i64::from(station.frame_rate().get())
                    + i64::from(time.frame);
                track.push(
                    header.key().thread,
                    number,
                    header.is_invalid(),
                    frame.payload(),
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

/// Products of the same band of all pairs.
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

/// The normalised coherent sum.
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
        println!("{complex} {delays:?} {r} {:?}", setup.rotation());
        assert!((r.norm() - 0.3 * 0.8825).abs() < 0.012, "{r}");
        assert!(r.arg().abs() < 0.03, "{r}");
    }
}
