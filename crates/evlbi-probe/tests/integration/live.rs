//! Probes and responders of this process over real sockets, mostly between two namespaces, with the kernel's counters as ground truth.
//!
//! One test of each kind that needs a kernel belongs here.
mod abuse;
mod asked;
mod loss;
mod parts;
mod results;
mod support;
mod tcp;
