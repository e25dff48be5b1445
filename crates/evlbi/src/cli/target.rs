//! The responder of a test: its address, and how to reach it.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use evlbi_probe::Target;
use evlbi_wire::units;

use super::choice::{responder, time};
use super::token::TokenArgs;
use crate::program::Program;
use crate::status::Usage;

/// Address of the responder, and how to reach it.
#[derive(Args, Clone)]
pub struct TargetArgs {
    /// Address of the remote `evlbi respond`; port 8620 unless given
    #[arg(id = "target", value_name = "HOST[:PORT]", value_parser = responder)]
    pub address: String,
    #[command(flatten)]
    pub token: TokenArgs,
    /// Local address to use
    #[arg(long, value_name = "ADDRESS")]
    pub bind: Option<IpAddr>,
    /// Network interface to use
    #[arg(long, value_name = "INTERFACE")]
    pub device: Option<String>,
    /// DSCP of the datagrams (RFC 2474), 0 to 63
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=63))]
    pub dscp: Option<u8>,
    /// Wait this long for other clients' tests to end
    #[arg(long, value_name = "TIME", default_value = units::span(Target::default().wait), value_parser = time)]
    pub wait: Duration,
}

convert! {
    TargetArgs => Target { address, bind, device, dscp, wait }
    with [token] { token: token.into() }
}

impl TargetArgs {
    /// Finds what the command line leaves to the environment and the config file.
    pub fn find(&mut self, program: &Program) -> Result<()> {
        self.address = program.config()?.address(&self.address);
        self.token.find(program)?;
        match self.token.token {
            Some(_) => Ok(()),
            None => Err(Usage(
                "no token: give the responder's by --token-file FILE (or --token, or EVLBI_TOKEN in the environment)".to_owned(),
            )
            .into()),
        }
    }
}
