//! Datagram sockets.

use std::net::SocketAddr;
use std::sync::Arc;

use evlbi_core::time::Nanos;

use super::{Arrived, Host, Packet, Port, State, What, number, packet_length};
use crate::clock::{Events, Place};

/// A simulated datagram socket. Dropping it frees its port.
pub struct Socket {
    host: Host,
    address: SocketAddr,
    buffer: usize,
    places: [Arc<Place>; 1],
}

impl Socket {
    pub(super) fn new(host: Host, address: SocketAddr, buffer: usize, place: Arc<Place>) -> Socket {
        Socket {
            host,
            address,
            buffer,
            places: [place],
        }
    }

    /// Returns its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns its host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the receive buffer in bytes.
    pub fn buffer(&self) -> usize {
        self.buffer
    }

    /// Sends a datagram, which passes the cells that take no time at once.
    pub fn send_to(&self, to: SocketAddr, bytes: Vec<u8>, now: Nanos) {
        let shared = &self.host.network.0;
        let (from, length) = (self.address, bytes.len());
        let clock = &shared.clock;
        let number = number(&bytes);
        clock.log(format_args!(
            "{from} sends {number}, {length} bytes, to {to}"
        ));
        let mut state = shared.state.lock();
        let host = state.host(from.ip(), clock);
        let length = packet_length(length);
        let leaves = match &mut host.card {
            Some(card) => card.leaves(length, now),
            None => Some(now),
        };
        let Some(leaves) = leaves else {
            host.counters.udp.send_buffer_errors += 1;
            clock.log(format_args!("{from} has no room for it before its card"));
            return;
        };
        host.counters.udp.out_datagrams += 1;
        let packet = Packet::new(from, to, What::Datagram(bytes));
        state.send(packet, length, leaves);
        state.advance(clock.now(), clock);
    }

    /// Returns the earliest waiting datagram: its sender, arrival time and bytes.
    pub fn receive(&self) -> Option<(SocketAddr, Nanos, Vec<u8>)> {
        let mut first = None;
        self.receive_all(1, |from, at, bytes| first = Some((from, at, bytes)));
        first
    }

    /// Passes the earliest waiting datagrams, at most `max`, to `take`: sender, arrival time and bytes of each. `take` must not use the
    /// network, which is locked.
    pub fn receive_all(&self, max: usize, mut take: impl FnMut(SocketAddr, Nanos, Vec<u8>)) {
        let shared = &self.host.network.0;
        let state = &mut *shared.state.lock();
        let (now, to, clock) = (shared.clock.now(), self.address, &shared.clock);
        let work = state.host(to.ip(), clock).work;
        let Some(port) = self.port(state) else {
            return;
        };
        for _ in 0..max {
            let is_ready = work == Nanos(0) || now >= port.free;
            let next = port.waiting.pop_front_if(|_| is_ready);
            let Some(Arrived { from, at, bytes }) = next else {
                break;
            };
            port.free = now.plus(work);
            port.bytes -= bytes.len();
            let (length, number) = (bytes.len(), number(&bytes));
            clock.log(format_args!(
                "{to} receives {number}, {length} bytes, from {from}, come at {}",
                at.0
            ));
            take(from, at, bytes);
        }
        match port.waiting.front() {
            Some(next) => port.place.happens(next.at.max(port.free)),
            None => port.place.clear(),
        }
    }

    /// Returns the event of an arriving datagram.
    pub fn events(&self) -> Events<'_> {
        Events::at(&self.places)
    }

    /// Returns the number of waiting bytes.
    pub fn waiting(&self) -> usize {
        let mut state = self.host.network.0.state.lock();
        self.port(&mut state).map_or(0, |port| port.bytes)
    }

    /// Returns the number of datagrams that found no room.
    pub fn dropped(&self) -> u64 {
        let mut state = self.host.network.0.state.lock();
        self.port(&mut state).map_or(0, |port| port.dropped)
    }

    /// Returns its port, unless its program was killed: another socket may then have the port.
    fn port<'s>(&self, state: &'s mut State) -> Option<&'s mut Port> {
        let port = state.ports.get_mut(&self.address)?;
        Arc::ptr_eq(&port.place, &self.places[0]).then_some(port)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let mut state = self.host.network.0.state.lock();
        if self.port(&mut state).is_some() {
            state.ports.remove(&self.address);
        }
    }
}
