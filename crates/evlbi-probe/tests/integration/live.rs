//! Probes and responders of this process over real sockets, mostly between two namespaces, with the kernel's own counters as the
//! truth.

mod abuse;
mod asked;
mod loss;
mod parts;
mod results;
mod support;
mod tcp;
