//! `evlbi-fx` from outside: simulated skies, what another decoder finds in the same samples, and damaged files.

mod baseband;
mod cross_spectrum;
mod hostile_files;
mod recording;
mod sky;
