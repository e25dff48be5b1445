//! The program over real sockets: what can happen to a recording, losses told apart in namespaces, signals, abuse, and jive5ab's
//! protocol byte by byte. What streams are made of is tested in their libraries.
//!
//! Here belongs what processes do over real sockets that a call cannot show.

mod control_socket;
mod correlate;
mod jive5ab;
mod messages;
mod namespaces;
mod probe;
mod robust;
mod sender;
mod settings;
mod signals;
pub mod support;
mod unix;
mod what_can_happen_to_a_recording;
