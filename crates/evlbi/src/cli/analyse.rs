//! `evlbi analyse`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use evlbi_probe::analyse::{self, AnalyseOptions, Reader, picture, show};
use evlbi_wire::units;

use super::choice::{length, within};
use super::plots;
use crate::output;
use crate::program::{Program, complete};

#[derive(Args)]
#[command(after_help = "\
Capture with tcpdump or dumpcap; the first 128 bytes of each packet are enough (tcpdump -s 128). A capture taken at the \
sender shows most.

Examples:
  tcpdump -i eth0 -s 128 -w flow.pcap port 8620
  evlbi analyse flow.pcap --plot flow.svg
  evlbi analyse flow.pcap --connection 2 --interval 100ms --samples flow.csv --events events.csv
  evlbi analyse stream.pcapng.gz --bins 1us --json")]
pub struct AnalyseArgs {
    /// Capture file, pcap or pcapng, also packed by gzip; - is standard input
    pub file: PathBuf,
    /// Interval of the time series
    #[arg(long, value_name = "TIME", default_value = units::span(AnalyseOptions::default().interval), value_parser = length)]
    pub interval: Duration,
    /// Bin width of the histogram of times between datagrams
    #[arg(long, value_name = "TIME", value_parser = length)]
    pub bins: Option<Duration>,
    /// Select packets from or to this address
    #[arg(long, value_name = "ADDRESS")]
    pub host: Vec<IpAddr>,
    /// Select packets from or to this port
    #[arg(long, value_name = "PORT")]
    pub port: Vec<u16>,
    /// Show and draw only the connection with this number
    #[arg(long, value_name = "N")]
    pub connection: Option<usize>,
    /// Analyse this many of the largest connections and streams in full; of the others count packets and bytes
    #[arg(long, value_name = "N", default_value_t = AnalyseOptions::default().most, value_parser = most)]
    pub most: usize,
    /// Write the connections' time series here, as CSV
    #[arg(long, value_name = "FILE")]
    pub samples: Option<PathBuf>,
    /// Write each retransmitted, reordered, duplicated or otherwise notable packet here, as CSV
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// Draw the largest connections and streams here: .svg, .png or .html; `-` draws on the terminal
    #[arg(long, value_name = "FILE")]
    pub plot: Vec<PathBuf>,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Overwrite existing files
    #[arg(long)]
    pub force: bool,
}

convert! {
    AnalyseArgs => AnalyseOptions {
        file, interval, bins, host, port, connection, most, samples, events, force,
    }
    without [plot, json]
}

/// Analyses a capture.
pub fn run(args: AnalyseArgs, program: &Program) -> Result<()> {
    let files = args.samples.iter().chain(&args.events);
    let files = files.chain(Some(&args.file));
    let plot = plots::checked(&args.plot, args.force, &files)?;
    let json = args.json;
    let options = AnalyseOptions::from(args);
    // Opening a missing file, or a pipe without a writer, must end at the first Ctrl-C.
    let reader = Reader::open(&options.file)?;
    let analysis = analyse::analyse(&options, reader, program.run())?;
    plots::draw(&plot, &analysis, picture::figure, show::text)?;
    output::print(json, &analysis, show::text)?;
    match analysis.totals.packets {
        0 if !analysis.interrupted => bail!("no packets in {}", options.file.display()),
        _ => complete(analysis.interrupted),
    }
}

fn most(text: &str) -> Result<usize, String> {
    within(
        text,
        2..=1_000_000,
        "is out of range: give a number from 2 to 1000000",
    )
}
