//! `evlbi-stream` from outside: what is made of recordings, what is found in them, and whole streams over real sockets.

mod baseband;
mod drop;
mod inspect;
mod live;
mod sky;
