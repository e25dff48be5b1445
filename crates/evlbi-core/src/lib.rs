//! Processing of VLBI data between a source and the network, and between the network and a sink, without I/O: time is an
//! argument, random numbers are seeded, and nothing here opens a socket, a file or a thread.
//!
//! Modules along the signal path: [`packetise`], [`shed`], [`pace`], [`path`], [`reassemble`], [`admission`] with [`pudp`] and
//! [`reorder`], [`account`], [`deframe`], [`turn`].
//!
//! Decisions about frames, datagrams and packets belong here; each module is tested with the cases that it was made for. Byte
//! formats are in `evlbi-wire`, sockets, threads and files in `evlbi-net`.
//!
//! ```
//! use evlbi_core::account::{Account, HISTORY};
//!
//! // Of the numbers 0 to 9, number 4 is lost, and number 7 arrives twice.
//! let mut account = Account::new(HISTORY);
//! account.open_segment(0);
//! for number in [0, 1, 2, 3, 5, 6, 7, 8, 9] {
//!     account.unique(number, false);
//! }
//! account.duplicates(1);
//! let counters = account.counters();
//! assert_eq!((counters.expected, counters.unique, counters.lost), (10, 9, 1));
//! assert_eq!(counters.received, counters.unique + counters.duplicates);
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod account;
pub mod admission;
pub mod deframe;
pub mod pace;
pub mod packetise;
pub mod path;
pub mod peer;
pub mod pudp;
pub mod rate;
pub mod reassemble;
pub mod reorder;
pub mod shed;
pub mod time;
pub mod turn;
