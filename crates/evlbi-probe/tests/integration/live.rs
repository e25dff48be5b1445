//! Probes and responders of this process over real sockets, mostly between two namespaces, with the kernel's own counters as the
//! truth.
//!
//! Here belongs one test of each kind of what only a kernel can show.

mod abuse;
mod asked;
mod loss;
mod parts;
mod results;
mod support;
mod tcp;
