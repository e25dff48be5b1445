//! The kernel side: sockets, the ring's memory, files, clocks and counters of the host.
//!
//! Linux only. All `unsafe` code of the data plane is in this crate.
//!
//! In the order of the data flow: [`file::Reader`] → [`transmit`] → [`udp::Sender`] ~~~ [`udp::Receiver`] → [`receive`] → [`ring`] →
//! [`file::Writer`].
//!
//! This crate contains what needs the kernel or simulates it: system calls, counters, clocks, transports, simulated hosts. The crates
//! above process streams; what needs neither kernel nor clock is in `evlbi-core`.
//!
//! All time comes from a [`clock::Clock`], which may be simulated; then hosts of a [`sim::Network`] replace the kernel:
//!
//! ```
//! use std::time::Duration;
//!
//! use evlbi_core::time::Nanos;
//! use evlbi_net::clock::Clock;
//!
//! let clock = Clock::simulated(1_800_000_000_000_000_000);
//! // A day passes at once.
//! let slept = clock.simulate(|| {
//!     let begun = clock.now();
//!     clock.sleep(Duration::from_secs(86_400));
//!     clock.now().since(begun)
//! });
//! assert_eq!(slept, Nanos(86_400 * Nanos::SECOND.0));
//! ```

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "evlbi-net speaks to the Linux kernel: sendmmsg, UDP_SEGMENT, UDP_GRO, memfd, /proc"
);

// loom tests only the ring and compiles nothing else.
#[cfg(not(loom))]
mod batch;
#[cfg(not(loom))]
pub mod capture;
#[cfg(not(loom))]
pub mod clock;
#[cfg(not(loom))]
pub mod cpu;
#[cfg(not(loom))]
pub mod file;
#[cfg(not(loom))]
pub mod host;
#[cfg(not(loom))]
pub mod netns;
#[cfg(not(loom))]
pub mod path;
#[cfg(not(loom))]
pub mod receive;
#[cfg(not(loom))]
pub mod relay;
#[cfg(not(loom))]
pub mod responder;
pub mod ring;
#[cfg(not(loom))]
pub mod run;
#[cfg(not(loom))]
pub mod safe;
#[cfg(not(loom))]
pub mod sim;
#[cfg(not(loom))]
pub mod socket;
#[cfg(not(loom))]
pub mod tcp;
#[cfg(not(loom))]
mod train;
#[cfg(not(loom))]
pub mod transmit;
#[cfg(not(loom))]
pub mod transport;
#[cfg(not(loom))]
pub mod udp;
