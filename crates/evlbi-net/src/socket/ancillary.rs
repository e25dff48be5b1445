//! Data that accompanies a datagram between program and kernel: control messages and socket addresses, as bytes.
//!
//! A control message (cmsg(3)) is a native `size_t` length, which includes this header, then two native ints, level and type, then the
//! data. The next one begins at a multiple of the word size.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

const WORD: usize = size_of::<usize>();
const HEADER: usize = WORD + 2 * size_of::<c_int>();

/// Room for the control message that carries a segment size to the kernel.
pub(crate) const SEGMENT_SPACE: usize = HEADER + WORD;

/// Room for the control messages that a receiver requests: segment size, overflow count, timestamp, class of service.
pub(crate) const RECEIVE_SPACE: usize = 4 * HEADER + 5 * WORD;

/// Bits of the class of service that are the ECN field (RFC 3168).
const ECN: u8 = 3;

/// Room for an IPv4 or IPv6 socket address (`struct sockaddr_in6`).
pub(crate) const ADDRESS_SPACE: usize = 28;

/// A buffer for control messages, aligned like the kernel's structures.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Control<const SPACE: usize>(pub(crate) [u8; SPACE]);

/// Returns the control message that makes the kernel cut a message into datagrams of `size` bytes.
pub(crate) fn segment_size(size: u16) -> Control<SEGMENT_SPACE> {
    let mut bytes = [0; SEGMENT_SPACE];
    bytes[..WORD].copy_from_slice(&(HEADER + 2).to_ne_bytes());
    bytes[WORD..WORD + 4].copy_from_slice(&libc::SOL_UDP.to_ne_bytes());
    bytes[WORD + 4..HEADER].copy_from_slice(&libc::UDP_SEGMENT.to_ne_bytes());
    bytes[HEADER..HEADER + 2].copy_from_slice(&size.to_ne_bytes());
    Control(bytes)
}

/// Control messages of a received message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    /// Size of the datagrams that the message was joined from (`UDP_GRO`).
    pub(crate) segment: Option<usize>,
    /// Datagrams that the socket had dropped when this message was queued (`SO_RXQ_OVFL`).
    pub(crate) overflow: Option<u32>,
    /// Time at which the message was received, since 1970-01-01 UTC (`SO_TIMESTAMPNS`).
    pub(crate) stamp: Option<Duration>,
    /// ECN field of the IP header (`IP_TOS`, `IPV6_TCLASS`): 0 to 3; 0 if it was not requested.
    pub(crate) ecn: u8,
}

/// Parses the control messages of a received message; unknown ones are skipped.
pub(crate) fn parse(mut control: &[u8]) -> Received {
    let mut received = Received::default();
    while let Some((level, kind, data, rest)) = split_first(control) {
        match (level, kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                received.segment = word(data).and_then(|size| usize::try_from(size as c_int).ok());
            }
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => received.overflow = word(data),
            (libc::SOL_IP, libc::IP_TOS) => {
                received.ecn = data.first().map_or(0, |octet| octet & ECN);
            }
            (libc::SOL_IPV6, libc::IPV6_TCLASS) => {
                received.ecn = word(data).map_or(0, |class| class as u8 & ECN);
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => received.stamp = timespec(data),
            _ => {}
        }
        control = rest;
    }
    received
}

fn split_first(control: &[u8]) -> Option<(c_int, c_int, &[u8], &[u8])> {
    let length = usize::from_ne_bytes(*control.first_chunk()?);
    let level = word(control.get(WORD..)?)? as c_int;
    let kind = word(control.get(WORD + 4..)?)? as c_int;
    let data = control.get(HEADER..length)?;
    let next = length.checked_next_multiple_of(WORD)?;
    Some((level, kind, data, control.get(next..).unwrap_or(&[])))
}

fn word(data: &[u8]) -> Option<u32> {
    data.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// Parses a native `struct timespec`: seconds, nanoseconds.
fn timespec(data: &[u8]) -> Option<Duration> {
    let seconds = isize::from_ne_bytes(*data.first_chunk()?);
    let nanos = isize::from_ne_bytes(*data.get(WORD..)?.first_chunk()?);
    let nanos = u32::try_from(nanos).ok().filter(|&n| n < 1_000_000_000)?;
    Some(Duration::new(u64::try_from(seconds).ok()?, nanos))
}

/// Parses a `struct sockaddr_in` or `sockaddr_in6`; an IPv4 address received by a socket of both families becomes plain IPv4.
pub(crate) fn socket_address(name: &[u8]) -> Option<SocketAddr> {
    let family = c_int::from(u16::from_ne_bytes(*name.first_chunk()?));
    let port = u16::from_be_bytes(*name.get(2..)?.first_chunk()?);
    match family {
        libc::AF_INET => {
            let octets: [u8; 4] = *name.get(4..)?.first_chunk()?;
            Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(octets)), port))
        }
        libc::AF_INET6 => {
            let flow = u32::from_be_bytes(*name.get(4..)?.first_chunk()?);
            let octets: [u8; 16] = *name.get(8..)?.first_chunk()?;
            let scope = word(name.get(24..)?)?;
            let address = Ipv6Addr::from(octets);
            Some(match address.to_ipv4_mapped() {
                Some(mapped) => SocketAddr::new(IpAddr::V4(mapped), port),
                None => SocketAddrV6::new(address, port, flow, scope).into(),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(level: c_int, kind: c_int, data: &[u8]) -> Vec<u8> {
        let mut bytes = (HEADER + data.len()).to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(WORD), 0);
        bytes
    }

    #[test]
    fn every_message_is_read_and_unknown_ones_are_skipped() {
        let stamp: Vec<u8> = [1_700_000_000isize, 999_999_999]
            .into_iter()
            .flat_map(isize::to_ne_bytes)
            .collect();
        let mut control = message(libc::SOL_IP, libc::IP_TTL, &64u32.to_ne_bytes());
        control.extend(message(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &stamp));
        control.extend(message(
            libc::SOL_SOCKET,
            libc::SO_RXQ_OVFL,
            &7u32.to_ne_bytes(),
        ));
        control.extend(message(
            libc::SOL_UDP,
            libc::UDP_GRO,
            &1472u32.to_ne_bytes(),
        ));
        control.extend(message(libc::SOL_IP, libc::IP_TOS, &[0xba | 1]));
        let expected = Received {
            segment: Some(1472),
            overflow: Some(7),
            stamp: Some(Duration::new(1_700_000_000, 999_999_999)),
            ecn: 3,
        };
        assert_eq!(parse(&control), expected);
        let class = message(libc::SOL_IPV6, libc::IPV6_TCLASS, &2u32.to_ne_bytes());
        assert_eq!(parse(&class).ecn, 2);
    }

    #[test]
    fn segment_size_is_a_control_message() {
        let control = segment_size(8032);
        let (level, kind, data, rest) = split_first(&control.0).unwrap();
        assert_eq!((level, kind), (libc::SOL_UDP, libc::UDP_SEGMENT));
        assert_eq!(data, 8032u16.to_ne_bytes());
        assert!(rest.is_empty());
    }

    #[test]
    fn addresses_are_read_as_the_kernel_lays_them_out() {
        let mut v4 = (libc::AF_INET as u16).to_ne_bytes().to_vec();
        v4.extend([0x0a, 0x46, 192, 0, 2, 1]);
        assert_eq!(socket_address(&v4), Some("192.0.2.1:2630".parse().unwrap()));

        let v6 = |address: &str| {
            let mut bytes = (libc::AF_INET6 as u16).to_ne_bytes().to_vec();
            bytes.extend([0x0a, 0x46, 0, 0, 0, 0]);
            bytes.extend(address.parse::<Ipv6Addr>().unwrap().octets());
            bytes.extend(0u32.to_ne_bytes());
            bytes
        };
        let plain = socket_address(&v6("2001:db8::1"));
        assert_eq!(plain, Some("[2001:db8::1]:2630".parse().unwrap()));
        let mapped = socket_address(&v6("::ffff:192.0.2.1"));
        assert_eq!(mapped, Some("192.0.2.1:2630".parse().unwrap()));
        assert_eq!(socket_address(&[]), None);
        assert_eq!(socket_address(&v6("::1")[..20]), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            parse(&bytes);
            socket_address(&bytes);
        }

        #[test]
        fn no_length_panics(length in any::<usize>(), data in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut bytes = message(libc::SOL_UDP, libc::UDP_GRO, &data);
            bytes[..WORD].copy_from_slice(&length.to_ne_bytes());
            parse(&bytes);
        }
    }
}
