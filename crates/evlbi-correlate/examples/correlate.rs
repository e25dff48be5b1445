//! Correlates two recordings and finds the fringe: `cargo run --example correlate Ef.vdif Jb.vdif`.

use std::error::Error;

use evlbi_correlate::{CorrelateOptions, Recordings, correlate};
use evlbi_net::run::Run;

fn main() -> Result<(), Box<dyn Error>> {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.len() != 2 {
        return Err("arguments: FILE FILE".into());
    }
    let options = CorrelateOptions::default();
    let run = Run::silent();
    let recordings = Recordings::open(&files, &options, &run)?;
    // The last argument receives each integration; nothing is done with them here.
    let correlation = correlate(&recordings, &options, &run, &mut ())?;
    correlation.has_any()?;
    for fringe in correlation.fringes() {
        println!(
            "{}: SNR {:.1}, delay {:.4} us, weight {:.4}",
            fringe.stations.join("-"),
            fringe.snr,
            fringe.delay_s * 1e6,
            fringe.weight
        );
    }
    Ok(())
}
