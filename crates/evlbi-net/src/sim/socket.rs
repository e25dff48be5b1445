//! Sockets for datagrams.

use std::net::SocketAddr;
use std::sync::Arc;

use evlbi_core::time::Nanos;

use super::{Arrived, Host, Packet, Port, State, What, number, packet_length};
use crate::clock::{Events, Place};

/// A simulated socket for datagrams. Its port is free when it is dropped.
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

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Bytes that may wait.
    pub fn buffer(&self) -> usize {
        self.buffer
    }

    /// A datagram sets out, and passes the cells that take no time.
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

    /// The datagram that came first, who sent it, and when it came.
    pub fn receive(&self) -> Option<(SocketAddr, Nanos, Vec<u8>)> {
        let mut first = None;
        self.receive_all(1, |from, at, bytes| first = Some((from, at, bytes)));
        first
    }

    /// Gives `take` the datagrams that came first, at most `most`: the sender of each, the time of its arrival, and its bytes. `take` must
    /// not use the network, which is locked.
    pub fn receive_all(&self, most: usize, mut take: impl FnMut(SocketAddr, Nanos, Vec<u8>)) {
        let shared = &self.host.network.0;
        let state = &mut *shared.state.lock();
        let (now, to, clock) = (shared.clock.now(), self.address, &shared.clock);
        let work = state.host(to.ip(), clock).work;
        let Some(port) = self.port(state) else {
            return;
        };
        for _ in 0..most {
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

    /// Something comes.
    pub fn events(&self) -> Events<'_> {
        Events::at(&self.places)
    }

    /// Bytes that wait.
    pub fn waiting(&self) -> usize {
        let mut state = self.host.network.0.state.lock();
        self.port(&mut state).map_or(0, |port| port.bytes)
    }

    /// Datagrams that found no room.
    pub fn dropped(&self) -> u64 {
        let mut state = self.host.network.0.state.lock();
        self.port(&mut state).map_or(0, |port| port.dropped)
    }

    /// Its port, unless its program was killed: another may have the port then.
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
