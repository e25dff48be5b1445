//! This host: whether it is fit for a data rate ([`doctor`]), and what a thread that moves data asks of it ([`host`]).
//!
//! Here belongs what is looked at or asked for on the machine as a whole: kernel, processors, cards, clock, disks. Sockets, files and
//! the calls to the kernel themselves are `evlbi-net`'s.
//!
//! # Example
//! ```
//! use evlbi_host::doctor::{self, DoctorError, DoctorOptions};
//! use evlbi_host::host::HostOptions;
//! use evlbi_net::cpu::Waiting;
//! use evlbi_net::run::Run;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Where nothing is asked for, nothing is refused.
//! HostOptions::default().ready_thread(Waiting::Sleep)?;
//!
//! let folder = std::env::temp_dir();
//! println!("{} bytes are free in {}", doctor::free_bytes(&folder)?, folder.display());
//!
//! // A card that is not there is said before anything is looked at.
//! let options = DoctorOptions {
//!     interface: vec!["no card".into()],
//!     ..DoctorOptions::default()
//! };
//! let found = doctor::examine(&options, &Run::silent());
//! assert!(matches!(found, Err(DoctorError::NoInterface { .. })));
//! # Ok(())
//! # }
//! ```
//!
//! All of the host, which takes a second:
//!
//! ```no_run
//! use evlbi_host::doctor::{self, DoctorOptions};
//! use evlbi_net::run::Run;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let found = doctor::examine(&DoctorOptions::default(), &Run::silent())?;
//! println!("{}", doctor::text(&found));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

pub mod doctor;
pub mod host;
