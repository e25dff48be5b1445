//! The program run as its users run it: on files, over real sockets, over emulated paths, and under control.

mod control;
mod files;
mod live;
mod path;

use evlbi_testkit::result;
