//! `evlbi-host` from outside: the host that runs the tests is examined.

mod doctor;
