//! Senders and receivers of this process over real sockets on loopback.
//!
//! Here belongs one test of each kind of what only a kernel can show.

mod namespaces;
mod options;
mod recordings;
mod robust;
mod sender;
mod support;
mod transport;
mod unix;
