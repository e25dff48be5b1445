//! Loopback addresses that no other process uses.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};

use socket2::{Domain, Socket, Type};

/// Returns a loopback address that belongs to the caller, so that nothing else takes a port there that was free a moment before: one
/// per process and, up to 190 per process, one per call.
pub fn own_address() -> Ipv4Addr {
    static CALLS: AtomicU8 = AtomicU8::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let [.., middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 + call % 190, middle, low)
}

/// Returns a TCP port of loopback without a listener, which is not given to anything else.
pub fn deaf() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket
        .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}
