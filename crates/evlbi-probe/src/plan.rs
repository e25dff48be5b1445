//! Calculations before anything is sent (`evlbi plan`).
//!
//! Predictions belong here; models of TCP are in [`evlbi_trace::tcp`].

use evlbi_plot::columns;

pub mod compare;
pub mod link;
pub mod losses;
pub mod multicast;
pub mod safe;
pub mod tcp;

/// Formats a table; its heads are separated by commas.
fn table(heads: &str, rows: impl Iterator<Item = Vec<String>>) -> String {
    let heads = heads.split(',').map(str::to_owned).collect();
    let rows: Vec<Vec<String>> = std::iter::once(heads).chain(rows).collect();
    columns(&rows, |column| column == 0)
}
