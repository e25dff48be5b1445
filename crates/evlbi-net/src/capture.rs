//! Packets that an interface shows, with their link-layer headers: captured in batches, with the kernel's timestamps (`AF_PACKET`).
//!
//! The packets are read by `recvmmsg`, not from the mapped ring of `TPACKET_V3`. So calls, buffer, counters and timestamps are those of
//! UDP sockets. The ring would copy each packet once, too, and keep a block until it is full or its timer ends, for some milliseconds.
//! 1 Gbit/s of 8 kB frames are 15,600 packets per second: a thousand calls. As measured, it takes the CPU time of
//! a UDP socket.
//!
//! - The interface is promiscuous as long as the capture is open.
//! - Packets that this host sends are left out. Others are captured once, whomever they are addressed to: a recorder that repeats
//!   another one's stream may have its addresses. So `lo` shows each packet once, too.
//! - The kernel removes the outer VLAN tag. It may have joined several UDP datagrams into one packet (GRO), or not segmented it yet;
//!   their size is in the header before the packet (`PACKET_VNET_HDR`). Kernels before 6.2 do not tell that size, and refuse to return
//!   such a packet: it counts as dropped.
//!
//! This module contains what a kernel knows about packets. What is in them is in [`evlbi_wire::packet`].

mod filter;

use std::ffi::c_int;
use std::io;
use std::mem::size_of_val;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

pub use filter::udp_ports;

use crate::cpu::succeed;
use crate::socket::queue::{MESSAGES, MIN_ACCOUNT, Queue};
use crate::socket::{self, GrantedBuffer};
use crate::udp::{self, Interface};

/// Length of the header before each packet (`struct virtio_net_hdr`), in bytes.
const HEADER: usize = 10;
/// Its flags: the checksum is still to be calculated, or was checked by the network interface.
const CHECKED: u8 = 1 | 2;
/// Type of a packet with joined UDP datagrams (`VIRTIO_NET_HDR_GSO_UDP_L4`).
const JOINED: u8 = 5;
/// Room for one packet in bytes: its header, the longest IP packet, and link-layer headers with tags.
const SPACE: usize = (64 << 10) + 64;

/// Reason why packets cannot be captured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// There is no such interface.
    #[error(transparent)]
    Interface(#[from] udp::OpenError),
    /// The packets of the interface have no Ethernet headers.
    #[error("cannot capture packets on {0}: it is not an Ethernet interface")]
    NotEthernet(Interface),
    /// The kernel refused the socket or one of its options.
    #[error("cannot capture packets on {interface} ({what}): {source}")]
    Socket {
        /// The interface.
        interface: Interface,
        /// The option or call.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Capture of the packets of one interface.
#[derive(Debug)]
pub struct Capture {
    queue: Queue,
    buffer: GrantedBuffer,
    /// Packets of joined datagrams whose size the kernel does not tell.
    refused: u64,
}

/// Captured packets, in memory that is reused.
#[derive(Debug)]
pub struct Packets {
    /// Memory that contains them.
    pub memory: Box<[u8]>,
    /// The packets, in the order of their arrival.
    pub packets: Vec<Packet>,
    /// Minimum number of bytes that they took from the socket's buffer.
    pub taken: u64,
}

/// A captured packet.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Its byte range in the memory, from the Ethernet header on.
    pub range: Range<usize>,
    /// Length of each joined datagram in bytes (the last may be shorter); 0 for a single one.
    pub segment: usize,
    /// Whether its checksum must be checked: neither did the network interface, nor is it still to be calculated.
    pub is_unchecked: bool,
    /// Time at which the kernel received it, since 1970-01-01 UTC; `None` if unknown.
    pub stamp: Option<Duration>,
}

impl Capture {
    /// Starts to capture the packets that pass `filter`, with a socket buffer of `buffer` bytes if possible.
    ///
    /// # Errors
    /// Returns [`CaptureError`] if there is no such Ethernet interface, it is down, or this process may not capture (`CAP_NET_RAW`).
    pub fn open(
        interface: &Interface,
        filter: &[libc::sock_filter],
        buffer: usize,
    ) -> Result<Capture, CaptureError> {
        let index = interface.index()?;
        let failed = |what| {
            move |source| CaptureError::Socket {
                interface: interface.clone(),
                what,
                source,
            }
        };
        // Without a protocol nothing is captured before it is bound, with its filter.
        let socket = Socket::new(Domain::PACKET, Type::RAW, None).map_err(failed("socket"))?;
        let buffer =
            socket::ask_receive_buffer(&socket, buffer).map_err(failed("receive buffer"))?;
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_ptr().cast_mut(),
        };
        socket::set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
            .map_err(failed("SO_ATTACH_FILTER"))?;
        for (level, name, what) in [
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL, "SO_RXQ_OVFL"),
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, "SO_TIMESTAMPNS"),
            (libc::SOL_PACKET, libc::PACKET_VNET_HDR, "PACKET_VNET_HDR"),
            (
                libc::SOL_PACKET,
                libc::PACKET_IGNORE_OUTGOING,
                "PACKET_IGNORE_OUTGOING",
            ),
        ] {
            socket::set(&socket, level, name, &1i32).map_err(failed(what))?;
        }
        bind(&socket, index).map_err(failed("bind"))?;
        // If the interface is down, the kernel reports it here.
        if let Some(error) = socket.take_error().map_err(failed("SO_ERROR"))? {
            return Err(failed("bind")(error));
        }
        let bound = socket.local_addr().map_err(failed("getsockname"))?;
        // SAFETY: the address is in a larger structure (`sockaddr_storage`) with its alignment, and any bits are valid numbers.
        let bound = unsafe { &*bound.as_ptr().cast::<libc::sockaddr_ll>() };
        if !matches!(bound.sll_hatype, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK) {
            return Err(CaptureError::NotEthernet(interface.clone()));
        }
        let promiscuous = libc::packet_mreq {
            mr_ifindex: index as c_int,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        let name = libc::PACKET_ADD_MEMBERSHIP;
        socket::set(&socket, libc::SOL_PACKET, name, &promiscuous)
            .map_err(failed("PACKET_ADD_MEMBERSHIP"))?;
        Ok(Capture {
            queue: Queue::new(socket),
            buffer,
            refused: 0,
        })
    }

    /// Returns its socket.
    pub(crate) fn socket(&self) -> &Socket {
        &self.queue.socket
    }

    /// Returns the requested and the granted receive buffer.
    pub fn buffer(&self) -> &GrantedBuffer {
        &self.buffer
    }

    /// Replaces the content of `packets` by the waiting packets, as many as fit. Returns at once.
    ///
    /// # Errors
    /// Returns the socket's error, except that nothing is there or the interface is down.
    pub fn receive(&mut self, packets: &mut Packets) -> io::Result<()> {
        let Packets {
            memory,
            packets,
            taken,
        } = packets;
        packets.clear();
        *taken = 0;
        let received = self.queue.receive(memory, SPACE, |arrived| {
            *taken += (arrived.bytes.len() + MIN_ACCOUNT) as u64;
            let header = arrived.bytes.first_chunk::<HEADER>();
            // A packet that does not fit is longer than IP allows.
            let Some(&[flags, kind, _, _, low, high, ..]) = header.filter(|_| !arrived.truncated)
            else {
                return;
            };
            let start = arrived.place * SPACE;
            packets.push(Packet {
                range: start + HEADER..start + arrived.bytes.len(),
                segment: match kind {
                    JOINED => u16::from_ne_bytes([low, high]).into(),
                    _ => 0,
                },
                is_unchecked: flags & CHECKED == 0,
                stamp: arrived.said.stamp,
            });
        });
        match received {
            // It may come up again.
            Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                self.refused += 1;
                *taken += MIN_ACCOUNT as u64;
                Ok(())
            }
            other => other,
        }
    }

    /// Returns the number of packets that were dropped since the start, for lack of buffer or by a kernel that cannot return them, as
    /// the kernel counts now.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn drops(&mut self) -> io::Result<u64> {
        Ok(self.queue.drops()? + self.refused)
    }

    /// Returns the drops as reported with the packets themselves: the count when the last received one was queued.
    pub fn overflow(&self) -> u64 {
        self.queue.overflow() + self.refused
    }

    /// Returns the memory of the waiting packets, in bytes: at least [`Packets::taken`], once received.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn queued(&self) -> io::Result<u64> {
        self.queue.queued()
    }
}

impl Default for Packets {
    fn default() -> Packets {
        Packets {
            memory: vec![0; MESSAGES * SPACE].into_boxed_slice(),
            packets: Vec::with_capacity(MESSAGES),
            taken: 0,
        }
    }
}

/// Binds a socket to all protocols of an interface.
fn bind(socket: &Socket, index: u32) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: index as c_int,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the pointer and the length describe `address`, which lives through the call; the kernel only reads it.
    succeed(unsafe {
        libc::bind(
            socket.as_raw_fd(),
            std::ptr::from_ref(&address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    })
    .map(drop)
}
