//! What a path does to packets: delay, rate, loss, reordering and the rest, decided by seeded chance and counted as
//! the truth that measurements are held against.
//!
//! A [`Network`] is made of lines of [`Cell`]s, each with one [`Law`], and knows no clock: packets are offered at
//! times, and what happens by a time is asked for. So what a relay does to real packets can be done again in a test.
//! Packets may come as [`Train`]s (super-packets of segmentation offload); every cell decides segment by segment, as if
//! each had come alone, and leaves together what nothing happened to.
//!
//! [`Path`] is a simpler path of one numbered flow, whose truth is in the receiver's terms.
//!
//! Here belongs a further law of a cell. Hosts at the ends of a path are simulated in `evlbi-net/src/sim.rs`, and real ones made in
//! `evlbi-path`.

mod cell;
mod flow;
mod item;
mod law;
mod network;
mod train;

pub use cell::{Cell, Fate, Identity, Logged, Outcome, Truth as CellTruth};
pub use flow::{Impairment, Path, Truth};
pub use item::Item;
pub use law::{ETHERNET_OVERHEAD, Law, Loss, Shape, Times, Until};
pub use network::{CellId, Line, Network, Output};
pub use train::{Marks, Piece, Train};

#[cfg(test)]
mod tests;
