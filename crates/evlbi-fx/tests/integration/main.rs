//! `evlbi-fx` from outside: simulated skies, comparison with another decoder, and damaged files.
//! Behaviour that users of the library rely on, and comparisons with other programs, belong here.

mod baseband;
mod cross_spectrum;
mod hostile_files;
mod recording;
mod sky;
