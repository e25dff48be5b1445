//! `evlbi analyse`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use evlbi_probe::analyse::{self, AnalyseOptions, Reader, picture, show};
use evlbi_wire::units;

use super::choice::within;
use super::plots;
use crate::output;
use crate::program::{Program, complete};

#[derive(Args)]
#[command(after_help = "\
Captures with tcpdump or dumpcap; the first 128 bytes of each packet are enough (tcpdump -s 128). Taken at the sender they
tell most.

Examples:
  tcpdump -i eth0 -s 128 -w flow.pcap port 8620
  evlbi analyse flow.pcap --plot flow.svg
  evlbi analyse flow.pcap --connection 2 --interval 100ms --samples flow.csv --events events.csv
  evlbi analyse stream.pcapng --bins 1us --json")]
pub struct AnalyseArgs {
    /// The capture, pcap or pcapng; - is standard input
    pub file: PathBuf,
    /// Length of an interval of the course
    #[arg(long, value_name = "TIME", default_value = units::span(AnalyseOptions::default().interval), value_parser = interval)]
    pub interval: Duration,
    /// Count times between datagrams in bins of this width
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub bins: Option<Duration>,
    /// Only packets from or to this address
    #[arg(long, value_name = "ADDRESS")]
    pub host: Vec<IpAddr>,
    /// Only packets from or to this port
    #[arg(long, value_name = "PORT")]
    pub port: Vec<u16>,
    /// Show and draw this connection only, by its number
    #[arg(long, value_name = "N")]
    pub connection: Option<usize>,
    /// Connections, and streams, of which everything is remembered: the largest; of others packets and bytes are counted
    #[arg(long, value_name = "N", default_value_t = AnalyseOptions::default().most, value_parser = most)]
    pub most: usize,
    /// Write the course of the connections here, as CSV
    #[arg(long, value_name = "FILE")]
    pub samples: Option<PathBuf>,
    /// Write what was sent again, reordered, repeated and so on here, packet by packet, as CSV
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// Draw the largest connections and streams here: .svg, .png or .html; `-` draws them on the terminal
    #[arg(long, value_name = "FILE")]
    pub plot: Vec<PathBuf>,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Overwrite files that exist
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
    let (plot, json) = (plots::checked(&args.plot, args.force)?, args.json);
    let options = AnalyseOptions::from(args);
    // A file that is not there, or a pipe that nobody writes to, is no reason to wait for a second Ctrl-C.
    let reader = Reader::open(&options.file)?;
    let analysis = analyse::analyse(&options, reader, program.run())?;
    plots::draw(&plot, &analysis, picture::figure, show::text)?;
    output::print(json, &analysis, show::text)?;
    match analysis.totals.packets {
        0 if !analysis.interrupted => bail!("{} holds no packet", options.file.display()),
        _ => complete(analysis.interrupted),
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = units::duration(text)?;
    match time.as_nanos() {
        0 => Err("longer than 0, please".to_owned()),
        _ => Ok(time),
    }
}

fn most(text: &str) -> Result<usize, String> {
    within(text, 2..=1_000_000, "is none from 2 to 1000000")
}
