//! `evlbi-host` from outside: checks of the host that runs the tests.
//!
//! Tests belong here if they hold on any host.

mod doctor;
