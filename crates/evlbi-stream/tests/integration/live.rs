//! Senders and receivers of this process over real sockets on loopback.

mod namespaces;
mod options;
mod recordings;
mod robust;
mod sender;
mod support;
mod transport;
mod unix;
