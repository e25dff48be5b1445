//! The program over real sockets: recordings through lossy paths, losses told apart in namespaces, abuse,
//! and jive5ab's protocol byte by byte.

mod correlate;
mod jive5ab;
mod namespaces;
mod options;
mod probe;
mod robust;
pub mod support;
mod transport;
