//! This host: checks for a data rate ([`doctor`]), and settings for threads that move data ([`host`]).
//!
//! This crate concerns the machine as a whole: kernel, CPUs, NICs, clock, disks. Sockets, files and system calls are in `evlbi-net`.
//!
//! # Example
//! ```
//! use evlbi_host::doctor::{self, DoctorError, DoctorOptions};
//! use evlbi_host::host::HostOptions;
//! use evlbi_net::cpu::Waiting;
//! use evlbi_net::run::Run;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Without requests nothing is refused.
//! HostOptions::default().ready_thread(Waiting::Sleep)?;
//!
//! let folder = std::env::temp_dir();
//! println!("{} bytes are free in {}", doctor::free_bytes(&folder)?, folder.display());
//!
//! // A missing interface is reported before anything is checked.
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
//! The whole host, which takes a second:
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
