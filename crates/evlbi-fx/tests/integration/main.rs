//! `evlbi-fx` from outside: simulated skies, what another decoder finds in the same samples, and damaged files.
//!
//! Here belongs what a user of the library relies on, beside what another program finds.

mod baseband;
mod cross_spectrum;
mod hostile_files;
mod recording;
mod sky;
