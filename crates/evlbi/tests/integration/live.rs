//! The program over real sockets: recordings through lossy paths, losses told apart in namespaces, abuse,
//! and jive5ab's protocol byte by byte.

mod correlate;
mod jive5ab;
mod messages;
mod namespaces;
mod options;
mod probe;
mod recordings;
mod robust;
mod sender;
mod settings;
mod signals;
mod steer;
pub mod support;
mod transport;
mod unix;
mod what_can_happen_to_a_recording;
