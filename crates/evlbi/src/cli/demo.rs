//! `evlbi demo`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use evlbi_core::rate::BitRate;
use evlbi_wire::units;

use super::choice::length;
use super::plots;
use crate::demo::{self, DemoOptions, picture};
use crate::output;
use crate::program::{Program, complete};

#[derive(Args)]
#[command(after_help = "\
Examples:
  evlbi demo
  evlbi demo --stations 2 --rate 16M --duration 1s
  # Keep the web UI with its live correlator until Ctrl-C:
  evlbi demo --loss 5% --keep")]
pub struct DemoArgs {
    /// Number of stations
    #[arg(long, value_name = "N", default_value_t = DemoOptions::default().stations, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub stations: u32,
    /// Bit rate of each station's VDIF data
    #[arg(long, default_value_t = DemoOptions::default().rate)]
    pub rate: BitRate,
    /// Stream for this long
    #[arg(long, value_name = "TIME", default_value = units::span(DemoOptions::default().duration), value_parser = length)]
    pub duration: Duration,
    /// Fraction of the packets that the relay drops
    #[arg(long, value_name = "F", default_value = units::percent(DemoOptions::default().loss), value_parser = some_lost)]
    pub loss: f64,
    /// Fraction of the packets that the relay duplicates
    #[arg(long, value_name = "F", default_value = units::percent(DemoOptions::default().duplicate), value_parser = units::fraction)]
    pub duplicate: f64,
    /// Fraction of the packets that the relay delays behind later ones
    #[arg(long, value_name = "F", default_value = units::percent(DemoOptions::default().reorder), value_parser = units::fraction)]
    pub reorder: f64,
    /// Seed of all random choices
    #[arg(long, default_value_t = DemoOptions::default().seed)]
    pub seed: u64,
    /// Keep the recordings in this directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Keep the web UI, its stations and their live correlator until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    pub keep: bool,
    /// Draw counters, loss over time and fringes here: .svg, .png or .html; `-` draws on the terminal
    #[arg(long, value_name = "FILE")]
    pub plot: Vec<PathBuf>,
    /// Overwrite existing pictures
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// Parses a fraction below 1, with which something arrives.
fn some_lost(text: &str) -> Result<f64, String> {
    let fraction = units::fraction(text)?;
    match fraction < 1.0 {
        true => Ok(fraction),
        false => Err("must be below 1, so that something arrives".to_owned()),
    }
}

convert! {
    DemoArgs => DemoOptions { stations, rate, duration, loss, duplicate, reorder, seed, out, keep }
    // A script needs no page.
    with [json] { page: !json }
    without [plot, force]
}

/// Runs the demonstration.
pub fn run(args: DemoArgs, program: &Program) -> Result<()> {
    let (json, keep) = (args.json, args.keep);
    let plot = plots::checked(&args.plot, args.force, &[])?;
    let run = program.run();
    let (result, page) = demo::demonstrate(&args.into(), run)?;
    plots::draw(&plot, &result, picture::figure, demo::text)?;
    output::print(json, &result, demo::text)?;
    if !result.accounting_agrees {
        bail!("the counters do not agree: see the table");
    }
    complete(run.is_stopped())?;
    if let Some(page) = page.filter(|_| keep) {
        page.stay();
    }
    Ok(())
}
