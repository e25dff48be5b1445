//! `evlbi-host` from outside: the host that runs the tests is examined.
//!
//! Here belongs what holds on any host.

mod doctor;
