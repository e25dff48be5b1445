//! TCP as it is and as it was seen: algorithms of congestion control and connections without sockets ([`tcp`]), and what a capture
//! tells of connections and streams ([`capture`]). Nothing here opens a socket or a file, and the time is an argument.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod capture;
pub mod tcp;
