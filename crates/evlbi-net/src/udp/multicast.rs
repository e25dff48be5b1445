//! Multicast: the choice of the interface, and joining a group from any source (RFC 1112) or from one (RFC 4607).

use std::convert::Infallible;
use std::ffi::c_int;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ptr;
use std::str::FromStr;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::SockaddrStorage;
use socket2::{SockAddr, Socket};

use super::OpenError;
use crate::socket;

/// A network interface, by its name (`eth1`) or by one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interface {
    /// Name as `ip link` prints it.
    Name(String),
    /// One of its addresses.
    Address(IpAddr),
}

impl FromStr for Interface {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Interface, Infallible> {
        Ok(match text.parse() {
            Ok(address) => Interface::Address(address),
            Err(_) => Interface::Name(text.to_owned()),
        })
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Interface::Name(name) => f.write_str(name),
            Interface::Address(address) => address.fmt(f),
        }
    }
}

impl Interface {
    /// Returns the kernel's number for the interface.
    ///
    /// # Errors
    /// Returns [`OpenError::NoInterface`] if none has this name or address.
    pub fn index(&self) -> Result<u32, OpenError> {
        let found = match self {
            Interface::Name(name) => if_nametoindex(name.as_str()).ok(),
            Interface::Address(address) => {
                interface_of(*address).and_then(|name| if_nametoindex(name.as_str()).ok())
            }
        };
        found.ok_or_else(|| OpenError::NoInterface(self.to_string()))
    }
}

/// Returns `address`, with the interface added if it needs one: in IPv6, for addresses of link or interface scope (RFC 4007).
pub(super) fn scoped(
    address: SocketAddr,
    interface: Option<&Interface>,
) -> Result<SocketAddr, OpenError> {
    match (address, interface) {
        (SocketAddr::V6(mut v6), Some(interface)) if v6.scope_id() == 0 && is_local(v6.ip()) => {
            v6.set_scope_id(interface.index()?);
            Ok(v6.into())
        }
        _ => Ok(address),
    }
}

fn is_local(address: &Ipv6Addr) -> bool {
    let multicast_scope = address.octets()[1] & 0x0f;
    address.is_unicast_link_local() || address.is_multicast() && matches!(multicast_scope, 1 | 2)
}

/// Returns the name of the interface that has this address, as `ip link` prints it.
pub fn interface_of(address: IpAddr) -> Option<String> {
    let mut all = getifaddrs().ok()?;
    let has_it = |entry: &InterfaceAddress| {
        let its = entry.address.as_ref();
        let v4 = its.and_then(SockaddrStorage::as_sockaddr_in);
        let v6 = its.and_then(SockaddrStorage::as_sockaddr_in6);
        v4.map(|it| IpAddr::V4(it.ip())) == Some(address)
            || v6.map(|it| it.ip().to_canonical()) == Some(address)
    };
    all.find(has_it).map(|entry| entry.interface_name)
}

/// Makes `socket` receive `group`: only from `source` if one is given, through `interface` or the one that the routes select, and
/// nothing that other programs of this host have joined.
pub(super) fn join(
    socket: &Socket,
    group: IpAddr,
    source: Option<IpAddr>,
    interface: Option<&Interface>,
) -> Result<(), OpenError> {
    let index = interface.map_or(Ok(0), Interface::index)?;
    let level = match group {
        IpAddr::V4(_) => libc::IPPROTO_IP,
        IpAddr::V6(_) => libc::IPPROTO_IPV6,
    };
    let joined = match source {
        None => {
            let request = libc::group_req {
                gr_interface: index,
                gr_group: storage(group),
            };
            socket::set(socket, level, libc::MCAST_JOIN_GROUP, &request)
        }
        Some(source) if source.is_ipv4() != group.is_ipv4() => {
            return Err(OpenError::Families(source, group));
        }
        Some(source) => {
            let request = libc::group_source_req {
                gsr_interface: index,
                gsr_group: storage(group),
                gsr_source: storage(source),
            };
            socket::set(socket, level, libc::MCAST_JOIN_SOURCE_GROUP, &request)
        }
    };
    joined
        .and_then(|()| match group {
            IpAddr::V4(_) => socket.set_multicast_all_v4(false),
            IpAddr::V6(_) => socket.set_multicast_all_v6(false),
        })
        .map_err(|source| OpenError::Join { group, source })
}

fn storage(address: IpAddr) -> libc::sockaddr_storage {
    let address = SockAddr::from(SocketAddr::new(address, 0));
    // SAFETY: sockaddr_storage is plain data for which all zeroes are valid.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    // SAFETY: a socket address is never longer than the storage, and the two do not overlap.
    unsafe {
        ptr::copy_nonoverlapping(
            address.as_ptr().cast::<u8>(),
            (&raw mut storage).cast::<u8>(),
            address.len() as usize,
        );
    }
    storage
}

/// Selects the interface by which multicast to the family of `destination` leaves.
pub(super) fn leave_by(
    socket: &Socket,
    destination: IpAddr,
    interface: &Interface,
) -> Result<(), OpenError> {
    let index = interface.index()?;
    match destination {
        IpAddr::V4(_) => {
            let request = libc::ip_mreqn {
                imr_multiaddr: libc::in_addr { s_addr: 0 },
                imr_address: libc::in_addr { s_addr: 0 },
                imr_ifindex: index as c_int,
            };
            socket::set(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &request)
        }
        IpAddr::V6(_) => socket.set_multicast_if_v6(index),
    }
    .map_err(|source| OpenError::Socket {
        what: "outgoing multicast interface",
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_found_by_name_and_by_address() {
        let by_name: Interface = "lo".parse().unwrap();
        let by_address: Interface = "127.0.0.1".parse().unwrap();
        assert_eq!(by_name, Interface::Name("lo".into()));
        assert_eq!(by_name.index().unwrap(), by_address.index().unwrap());
        assert!(matches!(
            "no-such-interface".parse::<Interface>().unwrap().index(),
            Err(OpenError::NoInterface(name)) if name == "no-such-interface"
        ));
        assert!("192.0.2.77".parse::<Interface>().unwrap().index().is_err());
    }
}
