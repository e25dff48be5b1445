//! Probes and responders of this process over real sockets.

mod abuse;
mod parts;
mod support;
