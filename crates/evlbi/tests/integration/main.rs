//! The program run as its users run it: on files, over real sockets, over emulated paths, and under control.
//!
//! Here belongs what needs the process: its output and exit status, signals, kills, command lines. All else is tested as a call of a
//! library.

mod control;
mod files;
mod live;
mod path;

use evlbi_testkit::result;
