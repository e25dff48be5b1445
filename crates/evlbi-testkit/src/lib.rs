//! Shared code of the tests: checks for missing tools, waiting with a watchdog, directories, processes and network namespaces that no
//! run leaves behind, seeded damage, a recording, fields of results.
//!
//! This crate contains what tests of two crates or more need. What only one crate needs is with its tests; what a user could need is in
//! a library.

pub mod address;
pub mod arq;
pub mod buffer;
pub mod by_hand;
pub mod clock;
pub mod damage;
pub mod disk;
pub mod each;
pub mod faults;
pub mod instructions;
pub mod leftovers;
pub mod limit;
pub mod lines;
pub mod link;
pub mod need;
pub mod netns;
pub mod oracle;
pub mod processor;
pub mod python;
pub mod recording;
pub mod relay;
pub mod result;
pub mod room;
pub mod running;
pub mod times;
pub mod until;

pub use each::each;
pub use lines::Lines;
pub use need::{need, skip, watch};
pub use room::Room;
pub use running::{Running, cargo, command, copy_program};
pub use until::{until, until_some};
