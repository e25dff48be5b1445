//! Addresses of loopback that nobody else has.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};

use socket2::{Domain, Socket, Type};

/// An address of loopback that is its caller's alone, so that nobody else takes a port there that was free a moment before: of
/// the process and, up to 190 in each, of the call.
pub fn own_address() -> Ipv4Addr {
    static CALLS: AtomicU8 = AtomicU8::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let [.., middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 + call % 190, middle, low)
}

/// A TCP port of loopback that nobody listens on and nobody else is given.
pub fn deaf() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket
        .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}
