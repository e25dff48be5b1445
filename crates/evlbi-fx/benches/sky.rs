//! Speed of simulating stations: `cargo bench -p evlbi-fx --bench sky`.

#![allow(clippy::disallowed_methods, reason = "measuring is its job")]

use std::time::Instant;

use evlbi_fx::sky::{SkyPlan, StationPlan};

fn main() {
    for (bits, complex, channels) in [
        (2, false, 1),
        (1, false, 1),
        (8, false, 1),
        (2, true, 1),
        (2, false, 16),
    ] {
        let plan = SkyPlan {
            bits,
            complex,
            channels,
            sample_rate: if complex { 32e6 } else { 64e6 } / f64::from(channels),
            stations: vec![StationPlan {
                delay: vec![1e-3, 1e-6],
                ..StationPlan::new("Ef")
            }],
            ..SkyPlan::default()
        };
        let station = plan.station("Ef").expect("the plan is good");
        let mut frames = vec![0u8; 100 * station.frame_length()];
        let mut generator = station.generator();
        let begin = Instant::now();
        let mut bytes = 0;
        while generator.remaining() > 0 {
            bytes += generator.fill(&mut frames);
        }
        let samples = bytes * 8 / usize::from(bits);
        println!(
            "{bits} bits, complex {complex}, {channels} channels: {:.2} ns per component",
            begin.elapsed().as_secs_f64() * 1e9 / samples as f64
        );
    }
}
