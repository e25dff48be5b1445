//! `evlbi probe latency`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use evlbi_core::time::Nanos;

use super::plots;
use super::probe::{TargetArgs, all_measured};
use crate::output;
use crate::probe::Measured;
use crate::probe::latency::{self, ProbeLatencyOptions};
use crate::probe::sweep::Sizes;
use crate::program::Program;
use crate::units;

#[derive(Args)]
pub struct ProbeLatencyArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// UDP payload of the messages in bytes: one or several
    #[arg(long, value_name = "BYTES,...", default_value_t = ProbeLatencyOptions::default().size)]
    pub size: Sizes,
    /// Requests of each length
    #[arg(long, value_name = "N", default_value_t = ProbeLatencyOptions::default().count, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub count: u64,
    /// Time from one request to the next
    #[arg(long, value_name = "TIME", default_value = units::span(ProbeLatencyOptions::default().interval), value_parser = units::duration)]
    pub interval: Duration,
    /// How long a reply is waited for
    #[arg(long, value_name = "TIME", default_value = units::span(ProbeLatencyOptions::default().loss_timeout), value_parser = units::duration)]
    pub loss_timeout: Duration,
    /// Width of the bins of histograms
    #[arg(long, value_name = "TIME", default_value = units::span(ProbeLatencyOptions::default().bins), value_parser = units::duration)]
    pub bins: Duration,
    /// Write each part of the result here as soon as it is known, a JSON object a line; the last line is the whole
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Draw the result here: .svg, .png or .html; `-` draws it on the terminal
    #[arg(long, value_name = "FILE")]
    pub plot: Vec<PathBuf>,
    /// How the result is printed
    #[arg(long, value_enum, default_value_t = LatencyFormat::Table)]
    pub format: LatencyFormat,
    /// Print one JSON object on standard output
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// Overwrite files that exist
    #[arg(long)]
    pub force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LatencyFormat {
    /// Columns for people
    Table,
    /// JSON as pScheduler's latency tests give it
    Pscheduler,
}

impl From<ProbeLatencyArgs> for ProbeLatencyOptions {
    fn from(args: ProbeLatencyArgs) -> ProbeLatencyOptions {
        let ProbeLatencyArgs {
            target,
            size,
            count,
            interval,
            loss_timeout,
            bins,
            out,
            plot: _,
            format: _,
            json: _,
            force,
        } = args;
        ProbeLatencyOptions {
            target: target.into(),
            size,
            count,
            interval,
            loss_timeout,
            bins,
            out,
            force,
        }
    }
}

pub fn run(args: ProbeLatencyArgs, program: &Program) -> Result<()> {
    let (plot, format, json) = (args.plot.clone(), args.format, args.json);
    plots::check(&plot, args.force)?;
    let options = args.into();
    let Measured { result, written } = latency::probe(&options, program.run())?;
    plots::draw(&plot, &result, latency::figure, latency::text)?;
    match format {
        LatencyFormat::Pscheduler if !json => {
            let bins = Nanos::from(options.bins).0.max(1);
            output::print(true, &latency::pscheduler(&result, bins), |_| String::new())?;
        }
        _ => output::print(json, &result, latency::text)?,
    }
    written?;
    let has_replies = result.points.iter().any(|point| point.received > 0);
    all_measured(result.stopped)?;
    match has_replies {
        false => bail!("no request was answered: UDP does not get through, there or back"),
        true => Ok(()),
    }
}
