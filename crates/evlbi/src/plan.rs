//! `evlbi plan`: what can be known before anything is sent.

mod compare;
mod link;
mod losses;
mod multicast;
mod tcp;

use anyhow::Result;

use crate::cli::PlanCommand;

pub fn run(command: &PlanCommand) -> Result<()> {
    match command {
        PlanCommand::Tcp(args) if args.compare && !args.loss.is_empty() => losses::run(args),
        PlanCommand::Tcp(args) if args.compare => compare::run(args),
        PlanCommand::Tcp(args) => tcp::run(args),
        PlanCommand::Multicast(args) => multicast::run(args),
        PlanCommand::Link(args) => link::run(args),
    }
}
