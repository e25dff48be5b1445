//! Tests `evlbi-stream` from outside: cutting and inspecting recordings, and whole streams over real sockets.
//!
//! Put tests of what a user of the library relies on here: in `live` over real sockets, otherwise on files.

mod baseband;
mod change;
mod drop;
mod fuzz_corpora;
mod inspect;
mod live;
mod mark4;
mod select;
mod sky;
mod split_formats;
mod turn;
mod warnings;
