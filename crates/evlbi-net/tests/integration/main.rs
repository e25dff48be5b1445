//! `evlbi-net` from outside: real sockets, real files, and wires between network namespaces.
//!
//! Tests belong here if only a kernel can show the behaviour; everything that may happen at any moment is tested on simulated hosts.

mod datagrams;
mod files;
mod mirror;
mod namespaces;
mod udp;
mod unix;
