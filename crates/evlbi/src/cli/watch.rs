//! `evlbi watch` and `evlbi report`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use evlbi_core::rate::BitRate;
use evlbi_probe::report::{self, matrix};
use evlbi_probe::watch::{self, WatchOptions};
use evlbi_wire::units;

use super::choice::{length, time};
use super::plots;
use super::tables::CsvArgs;
use super::target::TargetArgs;
use crate::output;
use crate::program::Program;

#[derive(Args)]
#[command(after_help = "\
All results stay in the file, however the program ends; the same command continues the campaign.

Examples:
  evlbi watch fibre.sqlite jive:8620 --token T --rate 512M --for 60h
  evlbi watch campus.sqlite jive:8620 --token T --rate 100M --every 10min --test 20s --for 24h
  evlbi report fibre.sqlite --plot fibre.svg")]
pub struct WatchArgs {
    /// Results file (SQLite): created, or continued
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    pub target: TargetArgs,
    /// Test for this long
    #[arg(long = "for", value_name = "TIME", default_value = units::span(WatchOptions::default().length), value_parser = length)]
    pub length: Duration,
    /// UDP payload of the datagrams, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = WatchOptions::default().size)]
    pub size: usize,
    /// Bit rate of UDP payload
    #[arg(long, value_name = "RATE", group = "pace")]
    pub rate: Option<BitRate>,
    /// Time from the start of one datagram to the start of the next
    #[arg(long, value_name = "TIME", group = "pace", value_parser = time)]
    pub spacing: Option<Duration>,
    /// Datagrams per burst; --spacing is then the spacing of bursts
    #[arg(long, value_name = "N", default_value_t = WatchOptions::default().burst, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub burst: u32,
    /// Average results over this time
    #[arg(long, value_name = "TIME", default_value = units::span(WatchOptions::default().window), value_parser = time)]
    pub window: Duration,
    /// Run one test per TIME instead of one continuous flow
    #[arg(long, value_name = "TIME", value_parser = length)]
    pub every: Option<Duration>,
    /// Duration of each test
    #[arg(long, value_name = "TIME", default_value = units::span(WatchOptions::default().test), value_parser = time, requires = "every")]
    pub test: Duration,
    /// Test from the remote host to this host
    #[arg(long, conflicts_with = "both")]
    pub reverse: bool,
    /// Test both directions at once
    #[arg(long)]
    pub both: bool,
    /// Wait this long for a datagram before it counts as lost (RFC 7680)
    #[arg(long, value_name = "TIME", default_value = units::span(WatchOptions::default().loss_timeout), value_parser = time)]
    pub loss_timeout: Duration,
    #[command(flatten)]
    pub table: CsvArgs,
    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,
    /// Overwrite existing files
    #[arg(long, requires = "csv")]
    pub force: bool,
}

convert! {
    WatchArgs => WatchOptions {
        file, length, size, rate, spacing, burst, window, every, test, reverse, both, loss_timeout,
    }
    with [target] { target: target.into() }
    without [table, json, force]
}

/// Watches a path, and reports what was found.
pub fn watch(mut args: WatchArgs, program: &Program) -> Result<()> {
    args.target.find(program)?;
    if args.rate.is_none() && args.spacing.is_none() {
        args.rate = program.config()?.rate(|rates| rates.watch);
    }
    let json = args.json;
    let table = args.table.clone();
    let csv = table.checked(json, args.force, [&args.file])?;
    let options = args.into();
    watch::watch(&options, program.run())?;
    let report = report::read(&options.file)?;
    csv.and(&report, report::csv, || {
        output::print(json, &report, report::text)
    })
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  evlbi report fibre.sqlite --plot fibre.svg
  # Many paths in one table:
  evlbi probe udp jive:8620 --token T --rate 500M --json > jive.json
  evlbi probe udp onsala:8620 --token T --rate 500M --json > onsala.json
  evlbi report jive.json onsala.json --csv paths.csv")]
pub struct ReportArgs {
    /// Results file of `evlbi watch`; or several results of `evlbi probe udp --json`, for one table
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Draw the report here: .svg, .png or .html; `-` draws on the terminal
    #[arg(long, value_name = "FILE")]
    pub plot: Vec<PathBuf>,
    #[command(flatten)]
    pub table: CsvArgs,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Overwrite existing files
    #[arg(long)]
    pub force: bool,
}

/// Reports a campaign, or results of probes in one table.
pub fn report(args: &ReportArgs) -> Result<()> {
    let plot = plots::checked(&args.plot, args.force, &args.files.iter())?;
    let others = args.files.iter().chain(&plot);
    let csv = (args.table.clone()).checked(args.json, args.force, others)?;
    match args.files.as_slice() {
        [file] if !report::is_result(file) => {
            let report = report::read(file)?;
            plots::draw(&plot, &report, report::figure, report::text)?;
            csv.and(&report, report::csv, || {
                output::print(args.json, &report, report::text)
            })
        }
        _ if !plot.is_empty() => {
            bail!("--plot draws a campaign; `evlbi probe` draws its own results")
        }
        files => {
            let matrix = matrix::read(files)?;
            csv.and(&matrix, matrix::Matrix::csv, || {
                output::print(args.json, &matrix, matrix::Matrix::text)
            })
        }
    }
}
