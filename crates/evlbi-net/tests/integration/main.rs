//! `evlbi-net` from outside: real sockets, real files, and wires between network namespaces.

mod datagrams;
mod files;
mod namespaces;
mod udp;
mod unix;
