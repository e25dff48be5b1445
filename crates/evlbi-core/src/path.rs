//! Effects of a path on packets: delay, rate, loss, reordering and others, chosen by a seeded random generator and counted as the
//! ground truth for measurements.
//!
//! A [`Network`] consists of lines of [`Cell`]s, each with one [`Law`], and has no clock: packets are offered at given times, and
//! the network is advanced to a given time. So a test can repeat what a relay does to real packets. Packets may be [`Train`]s
//! (super-packets of segmentation offload). Every cell decides segment by segment, as if each had arrived alone, and keeps
//! segments that are not affected together.
//!
//! [`Path`] is a simpler path of one numbered flow; its ground truth is in the receiver's terms.
//!
//! New laws of a cell belong here. Hosts at the ends of a path are simulated in `evlbi-net/src/sim.rs`, and real ones are made in
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
