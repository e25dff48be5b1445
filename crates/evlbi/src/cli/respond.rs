//! `evlbi respond`.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use evlbi_core::probe::Token;
use evlbi_core::rate::BitRate;
use evlbi_net::probe::Limits;

use crate::program::Program;
use crate::respond::{self, RespondOptions};
use crate::units;

pub const HELP: &str = "\
Example:
  evlbi respond --bind 0.0.0.0:8620 --token \"$TOKEN\" --max-rate 1G --max-duration 10min

The port is that of the control connection, TCP. Each test has a UDP port of its own, chosen by the kernel.";

#[derive(Args)]
pub struct RespondArgs {
    /// Where to listen for control connections
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = RespondOptions::default().bind)]
    pub bind: SocketAddr,
    /// What a client must know [default: made up, and shown]
    #[arg(long, env = "EVLBI_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Ports that tests listen on, by UDP and TCP [default: any that the kernel gives]
    #[arg(long, value_name = "FIRST-LAST", value_parser = units::ports)]
    pub ports: Option<RangeInclusive<u16>>,
    /// Most bits per second on the wire, of all tests at once, in either direction [default: any]
    #[arg(long, value_name = "RATE")]
    pub max_rate: Option<BitRate>,
    /// Longest test
    #[arg(long, value_name = "TIME", default_value = units::span(Duration::from_nanos(RespondOptions::default().limits.duration.0)), value_parser = units::duration)]
    pub max_duration: Duration,
    /// Let clients have this host run tasks that compete with the receiver, to see what they cost
    #[arg(long)]
    pub allow_load: bool,
    /// Let clients read the files of this folder, and make new ones in it (probe tcp --from, --into)
    #[arg(long, value_name = "FOLDER")]
    pub files: Option<PathBuf>,
    /// Tests at once; more wait, or are refused
    #[arg(long, value_name = "N", default_value_t = RespondOptions::default().limits.tests)]
    pub max_tests: u32,
}

impl From<RespondArgs> for RespondOptions {
    fn from(args: RespondArgs) -> RespondOptions {
        let RespondArgs {
            bind,
            token,
            ports,
            max_rate,
            max_duration,
            allow_load,
            files,
            max_tests,
        } = args;
        RespondOptions {
            bind,
            token: Token::from(token.unwrap_or_default().as_str()),
            ports,
            limits: Limits {
                rate: max_rate,
                duration: max_duration.into(),
                tests: max_tests,
                burdens: allow_load,
            },
            files,
        }
    }
}

/// Grants tests until it is stopped.
pub fn run(mut args: RespondArgs, program: &Program) -> Result<()> {
    args.token.get_or_insert_with(|| {
        let token = format!("{:032x}", rand::random::<u128>());
        say!("token {token}");
        token
    });
    respond::respond(&args.into(), program.run())?.join()
}
