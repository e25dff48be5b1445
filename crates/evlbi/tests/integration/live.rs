//! The program over real sockets: what can happen to a recording, losses attributed in namespaces, signals, abuse, and jive5ab's
//! protocol byte by byte. The parts of streams are tested in their libraries.
//!
//! Put tests here of processes over real sockets that a call cannot replace.

mod control_socket;
mod correlate;
mod jive5ab;
mod messages;
mod namespaces;
mod probe;
mod robust;
mod safe;
mod sender;
mod settings;
mod signals;
pub mod support;
mod unix;
mod what_can_happen_to_a_recording;
