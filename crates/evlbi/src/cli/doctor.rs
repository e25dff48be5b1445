//! `evlbi doctor`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use evlbi_core::rate::BitRate;
use evlbi_host::doctor::{self, DoctorOptions};

use crate::output;
use crate::program::Program;

#[derive(Args)]
#[command(after_help = "\
Changes nothing and needs no root. Values that the kernel, a driver or a container does not report are shown as unknown. \
--to sends no data: it looks up the route, and opens and closes a TCP connection three times to measure the round-trip \
time.

Examples:
  evlbi doctor --rate 10G --interface eth1 --disk /data
  evlbi doctor --rate 2G --to correlator --strict || echo 'not ready'
  evlbi doctor --rate 10G --script > tune.sh; less tune.sh; sudo sh tune.sh")]
pub struct DoctorArgs {
    /// Network interface to check; may be given several times [default: all that are up, except loopback]
    #[arg(long, value_name = "NAME")]
    pub interface: Vec<String>,
    /// Check the route to this host, too, and size buffers by its round-trip time; the port is for TCP [default: 8620]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub to: Option<String>,
    /// Data rate that the host must sustain [default: speed of the fastest of these interfaces that is up, else 1G]
    #[arg(long)]
    pub rate: Option<BitRate>,
    /// Measure how fast a recording can be written in this directory: a temporary file of at most 4 GiB, for at most 5 s
    #[arg(long, value_name = "DIR")]
    pub disk: Option<PathBuf>,
    /// Exit with status 1 if anything needs to change
    #[arg(long)]
    pub strict: bool,
    /// Print a shell script that makes the changes, with their reasons; run it as root
    #[arg(long, conflicts_with = "json")]
    pub script: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

convert! { DoctorArgs => DoctorOptions { interface, to, rate, disk } without [strict, script, json] }

/// Checks this host.
pub fn run(mut args: DoctorArgs, program: &Program) -> Result<()> {
    if let Some(to) = &mut args.to {
        *to = program.config()?.address(to);
    }
    let (strict, script, json) = (args.strict, args.script, args.json);
    let run = match args.disk {
        Some(_) => program.run(),
        None => program.unheeded(),
    };
    let found = doctor::examine(&args.into(), run)?;
    let text = if script { doctor::script } else { doctor::text };
    output::print(json, &found, text)?;
    if strict && found.changes > 0 {
        bail!("{} of this host to change", doctor::counted(found.changes));
    }
    Ok(())
}
