//! `evlbi plan`: what can be known before anything is sent.

mod compare;
mod link;
mod multicast;
mod tcp;

use anyhow::Result;

use crate::cli::PlanCommand;

/// Bytes of TCP's header with time stamps (32) beyond UDP's (8).
const BEYOND_UDP: usize = 24;

pub fn run(command: &PlanCommand) -> Result<()> {
    match command {
        PlanCommand::Tcp(args) if args.compare => compare::run(args),
        PlanCommand::Tcp(args) => tcp::run(args),
        PlanCommand::Multicast(args) => multicast::run(args),
        PlanCommand::Link(args) => link::run(args),
    }
}

/// Rows under each other, columns of the same width, the first from the left.
fn columns(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len))
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells: Vec<String> = cells
            .map(|(column, (cell, width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        cells.join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<String>>().join("\n")
}
