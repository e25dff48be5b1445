//! `evlbi-stream` from outside: what is made of recordings, what is found in them, and whole streams over real sockets.
//!
//! Here belongs what a user of the library relies on: over real sockets in `live`, else on files.

mod baseband;
mod drop;
mod inspect;
mod live;
mod sky;
