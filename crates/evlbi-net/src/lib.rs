//! The kernel side: sockets, the ring's memory, files, clocks and counters of the host.
//!
//! Linux only. All `unsafe` code of the data plane is in this crate.
//!
//! On the way of the data: [`file::Reader`] → [`transmit`] → [`udp::Sender`] ~~~ [`udp::Receiver`] →
//! [`receive`] → [`ring`] → [`file::Writer`].

#[cfg(not(target_os = "linux"))]
compile_error!(
    "evlbi-net speaks to the Linux kernel: sendmmsg, UDP_SEGMENT, UDP_GRO, memfd, /proc"
);

pub mod cpu;
pub mod file;
pub mod host;
pub mod netns;
pub mod path;
pub mod probe;
pub mod receive;
pub mod relay;
pub mod ring;
pub mod socket;
pub mod tcp;
pub mod transmit;
pub mod udp;
