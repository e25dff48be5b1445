//! Probes and responders of this process over real sockets.

mod parts;
mod support;
