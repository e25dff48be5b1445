//! `evlbi-net` from outside: real sockets, real files, and wires between network namespaces.
//!
//! Here belongs what only a kernel can show; what it may do at any moment is tested on simulated hosts.

mod datagrams;
mod files;
mod namespaces;
mod udp;
mod unix;
