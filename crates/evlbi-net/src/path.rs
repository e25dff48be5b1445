//! A path between hosts on one machine: network namespaces joined by tap devices and a relay that does to their
//! packets what a [`evlbi_core::path::Network`] says.

pub mod frame;
