//! `evlbi-stream` from outside: what is made of recordings, and what is found in them.

mod baseband;
mod drop;
mod inspect;
mod sky;
