//! The program run as its users run it: on files, over real sockets, over emulated paths, and under control.
//!
//! Put tests here that need the process: its output and exit status, signals, kills, command lines. Everything else is tested as a
//! call of a library.

mod control;
mod files;
mod live;
mod path;

use evlbi_testkit::result;
