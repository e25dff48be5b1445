//! Tests senders and receivers of this process over real sockets on loopback.
//!
//! Put one test here for each kind of behaviour that only a kernel shows.

mod channels;
mod namespaces;
mod options;
mod recordings;
mod robust;
mod sender;
mod support;
mod transport;
mod unix;
