//! Sends trains of datagrams, each gathered from a short head and a body that is not copied.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

use super::messages::{Layout, Scratch, datagrams_of};
use super::{Interface, OpenError, multicast};
use crate::socket::{self, GrantedBuffer};
use crate::train::Train;

/// Maximum number of datagrams that the kernel accepts in one message (`UDP_MAX_SEGMENTS` of older kernels).
pub const MAX_SEGMENTS: usize = 64;
/// ECN field of a datagram that may be marked: ECT(0) (RFC 3168). ECT(1) would ask for another treatment (RFC 9331).
const ECT: u8 = 2;

/// Maximum UDP payload over IPv4 in bytes: 65535 minus the headers of IP and UDP.
const MAX_PAYLOAD_V4: usize = 65_535 - 20 - 8;
/// Maximum UDP payload over IPv6 in bytes; its length field does not include the IP header.
const MAX_PAYLOAD_V6: usize = 65_535 - 8;

/// Maximum time that a full socket buffer may delay a train before its datagrams are given up.
pub const BUFFER_TIMEOUT: Duration = Duration::from_millis(100);

/// Maximum number of retries of a message when the kernel reports an earlier datagram's ICMP error.
const ICMP_TIMEOUT: u32 = 8;

/// Maximum number of return datagrams read at once, so that a flood of them cannot block the sender.
const DRAIN: usize = 64;

/// Treatment of datagrams longer than the path's MTU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fragmentation {
    /// The system's setting (`net.ipv4.ip_no_pmtu_disc`): normally only this host fragments them.
    #[default]
    System,
    /// Never fragmented: refused here, and dropped by a router with a smaller MTU.
    Forbid,
    /// Fragmented wherever necessary.
    Allow,
}

/// Options of a [`Sender`].
#[derive(Clone, Debug)]
pub struct SenderOptions {
    /// Local address and port; port 0 lets the kernel choose.
    pub source: Option<SocketAddr>,
    /// Interface by which multicast leaves; `None`: the one that the routes select.
    pub interface: Option<Interface>,
    /// Time to live (IPv4) or hop limit (IPv6); `None`: the system's default, 64, and 1 for multicast.
    pub hops: Option<u8>,
    /// Whether receivers on this host get this sender's multicast.
    pub loopback: bool,
    /// Socket buffer to request, in bytes.
    pub buffer: usize,
    /// Maximum number of datagrams in one message to the kernel, 1 to [`MAX_SEGMENTS`]; 1 sends single packets, each with its own pass
    /// through the kernel and its own time on the wire.
    pub max_segments: usize,
    /// Treatment of datagrams longer than the MTU.
    pub fragmentation: Fragmentation,
    /// DSCP (RFC 2474), 0 to 63; `None`: the system's default, 0.
    pub dscp: Option<u8>,
    /// Whether the network may mark datagrams for congestion instead of dropping them (ECN, RFC 3168).
    pub marks: bool,
    /// Whether a full socket buffer blocks the caller, for at most [`BUFFER_TIMEOUT`].
    pub waits: bool,
}

impl Default for SenderOptions {
    fn default() -> SenderOptions {
        SenderOptions {
            source: None,
            interface: None,
            hops: None,
            loopback: true,
            buffer: 4 << 20,
            max_segments: MAX_SEGMENTS,
            fragmentation: Fragmentation::System,
            dscp: None,
            marks: false,
            waits: true,
        }
    }
}

/// Counters of a [`Sender`], in datagrams unless noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SendCounts {
    /// Accepted by the kernel.
    pub sent: u64,
    /// UDP payload bytes of those.
    pub bytes: u64,
    /// Messages that carried them: fewer than datagrams if the kernel segments.
    pub messages: u64,
    /// System calls made for them.
    pub calls: u64,
    /// Dropped because the socket's or the device's buffer stayed full (ENOBUFS, EAGAIN, ENOMEM).
    pub buffer_full: u64,
    /// Dropped because there is no route, neighbour or link (ENETUNREACH, EHOSTUNREACH, ENETDOWN...).
    pub unreachable: u64,
    /// Dropped because they are longer than the MTU allows (EMSGSIZE).
    pub too_long: u64,
    /// Dropped because this host's packet filter forbids them (EPERM, EACCES).
    pub forbidden: u64,
    /// ICMP replies "port unreachable" to earlier datagrams (ECONNREFUSED): nothing listens there (yet). The datagrams themselves were
    /// sent.
    pub refused: u64,
    /// Datagrams that readers sent back.
    pub back_datagrams: u64,
}

impl SendCounts {
    /// Adds another sender's counters.
    pub fn add(&mut self, other: &SendCounts) {
        *self = self.each_with(other, |own, other| own + other);
    }

    /// Returns the counters since `earlier`.
    pub fn since(&self, earlier: &SendCounts) -> SendCounts {
        self.each_with(earlier, |now, before| now - before)
    }

    fn each_with(&self, other: &SendCounts, of: impl Fn(u64, u64) -> u64) -> SendCounts {
        SendCounts {
            sent: of(self.sent, other.sent),
            bytes: of(self.bytes, other.bytes),
            messages: of(self.messages, other.messages),
            calls: of(self.calls, other.calls),
            buffer_full: of(self.buffer_full, other.buffer_full),
            unreachable: of(self.unreachable, other.unreachable),
            too_long: of(self.too_long, other.too_long),
            forbidden: of(self.forbidden, other.forbidden),
            refused: of(self.refused, other.refused),
            back_datagrams: of(self.back_datagrams, other.back_datagrams),
        }
    }

    /// Returns the datagrams that did not leave: their numbers cannot have reached a receiver.
    pub fn not_sent(&self) -> u64 {
        self.buffer_full + self.unreachable + self.too_long + self.forbidden
    }
}

/// A UDP socket connected to one destination, which sends many datagrams per system call.
#[derive(Debug)]
pub struct Sender {
    socket: Socket,
    destination: SocketAddr,
    granted: GrantedBuffer,
    max_segments: usize,
    /// Datagrams shorter than this share messages. The kernel refuses longer ones.
    joined_below: usize,
    waits: bool,
    counts: SendCounts,
    scratch: Scratch,
}

impl Sender {
    /// Opens a socket to `destination`, unicast or multicast, IPv4 or IPv6.
    ///
    /// # Errors
    /// Returns [`OpenError`] if an address, interface or option is refused, or there is no route.
    pub fn connect(destination: SocketAddr, options: &SenderOptions) -> Result<Sender, OpenError> {
        let destination = multicast::scoped(destination, options.interface.as_ref())?;
        let socket = Socket::new(
            Domain::for_address(destination),
            Type::DGRAM,
            Some(Protocol::UDP),
        )
        .map_err(failed("socket"))?;
        if let Some(address) = options.source {
            if address.is_ipv4() != destination.is_ipv4() {
                return Err(OpenError::Families(address.ip(), destination.ip()));
            }
            socket
                .bind(&address.into())
                .map_err(|source| OpenError::Bind { address, source })?;
        }
        Sender::over(socket, destination, options)
    }

    /// Sends by an existing socket, which from then on accepts only datagrams from `destination`.
    pub(super) fn over(
        socket: Socket,
        destination: SocketAddr,
        options: &SenderOptions,
    ) -> Result<Sender, OpenError> {
        let granted =
            socket::ask_send_buffer(&socket, options.buffer).map_err(failed("send buffer"))?;
        let timeout = match options.waits {
            true => socket.set_write_timeout(Some(BUFFER_TIMEOUT)),
            false => socket.set_nonblocking(true),
        };
        timeout.map_err(failed("send timeout"))?;
        set_fragmentation(&socket, destination, options.fragmentation)
            .map_err(failed("path MTU discovery"))?;
        set_hops(&socket, destination, options).map_err(failed("hop limit"))?;
        if let Some(interface) = &options.interface {
            multicast::leave_by(&socket, destination.ip(), interface)?;
        }
        if options.dscp.is_some() || options.marks {
            let ecn = if options.marks { ECT } else { 0 };
            socket::set_class(&socket, destination, options.dscp.unwrap_or(0), ecn)
                .map_err(failed("class of service"))?;
        }
        socket
            .connect(&destination.into())
            .map_err(|source| OpenError::Connect {
                destination,
                source,
            })?;
        let segmentation = socket::get_int(&socket, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok();
        Ok(Sender {
            socket,
            destination,
            granted,
            max_segments: options.max_segments.clamp(1, MAX_SEGMENTS),
            joined_below: if segmentation { usize::MAX } else { 0 },
            waits: options.waits,
            counts: SendCounts::default(),
            scratch: Scratch::default(),
        })
    }

    /// Returns the destination.
    pub fn destination(&self) -> SocketAddr {
        self.destination
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        let address = self.socket.local_addr()?;
        address.as_socket().ok_or(io::ErrorKind::Unsupported.into())
    }

    /// Returns the requested and the granted send buffer.
    pub fn buffer(&self) -> &GrantedBuffer {
        &self.granted
    }

    /// Returns the MTU of the route to the destination in bytes, IP header included.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn path_mtu(&self) -> io::Result<usize> {
        let mtu = match self.destination {
            SocketAddr::V4(_) => socket::get_int(&self.socket, libc::IPPROTO_IP, libc::IP_MTU),
            SocketAddr::V6(_) => socket::get_int(&self.socket, libc::IPPROTO_IPV6, libc::IPV6_MTU),
        }?;
        Ok(usize::try_from(mtu).unwrap_or(0))
    }

    /// Returns the maximum datagram length in bytes that the address family allows.
    pub fn max_payload(&self) -> usize {
        match self.destination {
            SocketAddr::V4(_) => MAX_PAYLOAD_V4,
            SocketAddr::V6(_) => MAX_PAYLOAD_V6,
        }
    }

    /// Returns whether datagrams of `length` bytes share messages to the kernel, as far as known.
    pub fn joins(&self, length: usize) -> bool {
        self.max_segments > 1 && length < self.joined_below && 2 * length <= self.max_payload()
    }

    /// Returns the counters of everything sent so far.
    pub fn counts(&self) -> &SendCounts {
        &self.counts
    }

    /// Reads and counts datagrams that readers have sent back (jive5ab does so, to stay in the tables of switches). Returns at once and
    /// reads a limited number, so call it regularly.
    pub fn drain_back_traffic(&mut self) {
        let mut byte = [0u8; 1];
        for _ in 0..DRAIN {
            // SAFETY: the pointer and length describe `byte`, exclusively borrowed.
            let result = unsafe {
                libc::recv(
                    self.socket.as_raw_fd(),
                    byte.as_mut_ptr().cast(),
                    byte.len(),
                    libc::MSG_DONTWAIT,
                )
            };
            if result >= 0 {
                self.counts.back_datagrams += 1;
            } else if io::Error::last_os_error().raw_os_error() == Some(libc::ECONNREFUSED) {
                self.counts.refused += 1;
            } else {
                return;
            }
        }
    }

    /// Passes the train to the kernel; returns how many of its datagrams the kernel accepted. The others are in
    /// [`SendCounts::not_sent`]: a full buffer, missing route or absent receiver does not end a flow.
    ///
    /// # Errors
    /// Returns only errors that would affect every later datagram too, such as a broken socket.
    pub fn send(&mut self, train: &Train<'_, '_>) -> io::Result<usize> {
        let before = self.counts.sent;
        self.offer(train)?;
        Ok((self.counts.sent - before) as usize)
    }

    /// Sends the train like [`Sender::send`]; returns how many of its datagrams were accepted or dropped. That is all of them, unless
    /// this sender does not wait and its socket is full; the caller may offer the rest again.
    ///
    /// # Errors
    /// Returns only errors that would affect every later datagram too, such as a broken socket.
    pub fn offer(&mut self, train: &Train<'_, '_>) -> io::Result<usize> {
        self.scratch.gather(train);
        let result = self.hand_over(train);
        self.scratch.clear();
        result
    }

    /// Counts datagrams as given up that a full socket delayed for too long.
    pub fn give_up(&mut self, datagrams: usize) {
        let full = io::ErrorKind::WouldBlock.into();
        self.lose(|counts| &mut counts.buffer_full, datagrams, &full);
    }

    fn hand_over(&mut self, train: &Train<'_, '_>) -> io::Result<usize> {
        let pieces = train.pieces();
        let mut next = 0;
        let mut icmp_errors = 0;
        while next < pieces.len() {
            let layout = Layout {
                max_segments: self.max_segments,
                joined_below: self.joined_below,
                max_payload: self.max_payload(),
            };
            self.scratch.assemble(pieces, next, &layout);
            self.counts.calls += 1;
            match self.scratch.hand_over(self.socket.as_raw_fd()) {
                Ok(messages) => {
                    next += self.count_sent(messages);
                    icmp_errors = 0;
                }
                Err(error) => match self.judge(&error, pieces[next].length()) {
                    Verdict::Again => {}
                    Verdict::AfterIcmp if icmp_errors < ICMP_TIMEOUT => icmp_errors += 1,
                    Verdict::AfterIcmp => {
                        next += self.pass_over(|counts| &mut counts.unreachable, &error);
                    }
                    Verdict::GiveUp(counter) => next += self.pass_over(counter, &error),
                    Verdict::Full => break,
                    Verdict::Fatal => return Err(error),
                },
            }
        }
        Ok(next)
    }

    fn count_sent(&mut self, messages: usize) -> usize {
        let sent = &self.scratch.messages[..messages];
        let datagrams = sent.iter().map(datagrams_of).sum::<usize>();
        let bytes = sent.iter().map(|m| u64::from(m.msg_len)).sum::<u64>();
        self.counts.sent += datagrams as u64;
        self.counts.bytes += bytes;
        self.counts.messages += messages as u64;
        datagrams
    }

    /// Returns what to do about `error`, which the first of the assembled messages caused; its first datagram has `length` bytes.
    fn judge(&mut self, error: &io::Error, length: usize) -> Verdict {
        let joined = self
            .scratch
            .messages
            .first()
            .is_some_and(|m| datagrams_of(m) > 1);
        match error.raw_os_error().unwrap_or(0) {
            libc::EINTR => Verdict::Again,
            libc::ECONNREFUSED => {
                self.counts.refused += 1;
                Verdict::AfterIcmp
            }
            libc::EIO | libc::ENOPROTOOPT | libc::EOPNOTSUPP if joined => {
                self.stop_joining(0, error);
                Verdict::Again
            }
            // A segment longer than the MTU: EINVAL before Linux 6.14, EMSGSIZE since.
            libc::EINVAL | libc::EMSGSIZE if joined => {
                self.stop_joining(length, error);
                Verdict::Again
            }
            libc::EAGAIN if !self.waits => Verdict::Full,
            libc::ENOBUFS | libc::EAGAIN | libc::ENOMEM => {
                Verdict::GiveUp(|counts| &mut counts.buffer_full)
            }
            libc::EMSGSIZE => Verdict::GiveUp(|counts| &mut counts.too_long),
            libc::EPERM | libc::EACCES => Verdict::GiveUp(|counts| &mut counts.forbidden),
            libc::ENETUNREACH
            | libc::EHOSTUNREACH
            | libc::ENETDOWN
            | libc::EHOSTDOWN
            | libc::ENODEV
            | libc::EADDRNOTAVAIL => Verdict::GiveUp(|counts| &mut counts.unreachable),
            _ => Verdict::Fatal,
        }
    }

    fn stop_joining(&mut self, length: usize, error: &io::Error) {
        self.joined_below = length;
        tracing::info!(
            destination = %self.destination,
            %error,
            "the kernel does not segment datagrams of {length} bytes and more: sending them singly"
        );
    }

    /// Counts the datagrams of the first message as not sent; returns how many they are.
    fn pass_over(&mut self, counter: Counter, error: &io::Error) -> usize {
        let datagrams = self.scratch.messages.first().map_or(1, datagrams_of);
        self.lose(counter, datagrams, error);
        datagrams
    }

    /// Counts datagrams as not sent, and logs the first case.
    fn lose(&mut self, counter: Counter, datagrams: usize, error: &io::Error) {
        let count = counter(&mut self.counts);
        if *count == 0 {
            tracing::warn!(
                destination = %self.destination,
                "datagrams are not sent: {error} (said once, counted always)"
            );
        }
        *count += datagrams as u64;
    }
}

type Counter = fn(&mut SendCounts) -> &mut u64;

enum Verdict {
    /// Offer it again, in the mode that is now selected.
    Again,
    /// The error was an earlier datagram's and is now cleared: offer it again.
    AfterIcmp,
    /// Count it there and skip it.
    GiveUp(Counter),
    /// Leave it to the caller, with all that follow.
    Full,
    Fatal,
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::Socket { what, source }
}

fn set_fragmentation(
    socket: &Socket,
    destination: SocketAddr,
    fragmentation: Fragmentation,
) -> io::Result<()> {
    // The values for IPv6 (IPV6_PMTUDISC_*) are the same.
    let value = match fragmentation {
        Fragmentation::System => return Ok(()),
        Fragmentation::Forbid => libc::IP_PMTUDISC_DO,
        Fragmentation::Allow => libc::IP_PMTUDISC_DONT,
    };
    match destination {
        SocketAddr::V4(_) => socket::set(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &value),
        SocketAddr::V6(_) => {
            socket::set(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, &value)
        }
    }
}

fn set_hops(socket: &Socket, destination: SocketAddr, options: &SenderOptions) -> io::Result<()> {
    match destination.ip() {
        IpAddr::V4(_) => socket.set_multicast_loop_v4(options.loopback)?,
        IpAddr::V6(_) => socket.set_multicast_loop_v6(options.loopback)?,
    }
    let Some(hops) = options.hops.map(u32::from) else {
        return Ok(());
    };
    match destination.ip() {
        IpAddr::V4(address) if Ipv4Addr::is_multicast(&address) => {
            socket.set_multicast_ttl_v4(hops)
        }
        IpAddr::V4(_) => socket.set_ttl_v4(hops),
        IpAddr::V6(address) if Ipv6Addr::is_multicast(&address) => {
            socket.set_multicast_hops_v6(hops)
        }
        IpAddr::V6(_) => socket.set_unicast_hops_v6(hops),
    }
}

impl std::os::fd::AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
