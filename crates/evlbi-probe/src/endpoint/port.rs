//! UDP socket of one endpoint of a test.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::clock::Clock;
use evlbi_net::receive::rest;
use evlbi_net::run::Run;
use evlbi_net::sim;
use evlbi_net::transport::{
    Datagram, Incoming, Local, Outgoing, Peer, SimulatedIn, SimulatedOut, Train, UdpIn,
};
use evlbi_net::udp::{
    Listen, OpenError, Receiver, ReceiverOptions, SendCounts, Sender, SenderOptions, interface_of,
};
use evlbi_wire::probe::{Kind, Probe};

use super::Test;

/// UDP socket of one endpoint of a test.
pub struct Port {
    end: Socket,
    local: SocketAddr,
    clock: Clock,
}

enum Socket {
    Kernel(UdpIn),
    Simulated(SimulatedIn, Arc<sim::Socket>),
}

/// Senders for the stream and for replies, if the other endpoint is known; and the listener.
pub(super) type Connected = (Option<[Departing; 2]>, Box<dyn Incoming>);

/// Sender of a test's datagrams.
pub(super) enum Departing {
    Kernel(Sender),
    Simulated(SimulatedOut),
}

impl Departing {
    /// Sends a burst; counts the datagrams that the host refuses.
    pub fn send(&mut self, train: &Train<'_, '_>, now: Nanos) -> io::Result<()> {
        match self {
            Departing::Kernel(sender) => sender.send(train).map(drop),
            Departing::Simulated(out) => out.send(train, now),
        }
    }

    pub fn counts(&self) -> SendCounts {
        match self {
            Departing::Kernel(sender) => *sender.counts(),
            Departing::Simulated(out) => out.counts(),
        }
    }
}

impl Port {
    /// Opens the socket of a test at an address of the run's host, where port 0 is any free one, and at a single interface if one is given.
    ///
    /// # Errors
    /// [`OpenError`] if the address or an option is refused.
    pub fn open(
        address: SocketAddr,
        test: &Test,
        device: Option<String>,
        run: &Run,
    ) -> Result<Port, OpenError> {
        let end = match run.host() {
            Some(host) => {
                let socket = host.bind(address.port(), test.buffer);
                let socket = socket.map_err(|source| OpenError::Bind { address, source })?;
                let socket = Arc::new(socket);
                Socket::Simulated(SimulatedIn::new(Arc::clone(&socket)), socket)
            }
            None => {
                let defaults = ReceiverOptions::default();
                let options = ReceiverOptions {
                    buffer: test.buffer.unwrap_or(defaults.buffer),
                    join: test.join,
                    stamps: true,
                    device,
                    ..defaults
                };
                let receiver = Receiver::bind(&[Listen::from(address)], &options)?;
                Socket::Kernel(UdpIn::new(receiver))
            }
        };
        let mut port = Port {
            end,
            local: address,
            clock: run.clock().clone(),
        };
        if let Some(Local::Socket(local)) = port.incoming().local().first() {
            port.local = *local;
        }
        Ok(port)
    }

    fn incoming(&mut self) -> &mut dyn Incoming {
        match &mut self.end {
            Socket::Kernel(incoming) => incoming,
            Socket::Simulated(incoming, _) => incoming,
        }
    }

    /// Returns the address of the socket.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Returns the name of the interface with its address, if known.
    pub fn interface(&self) -> Option<String> {
        match self.end {
            Socket::Kernel(_) => interface_of(self.local.ip().to_canonical()),
            Socket::Simulated(..) => None,
        }
    }

    /// Restricts the socket to the other endpoint from now on, if it is known, with a DSCP (RFC 2474).
    pub(super) fn connect(
        self,
        other: Option<SocketAddr>,
        dscp: Option<u8>,
    ) -> Result<Connected, OpenError> {
        let options = SenderOptions {
            dscp,
            ..SenderOptions::default()
        };
        Ok(match self.end {
            Socket::Kernel(incoming) => {
                let sender = |other| incoming.receiver().sender(other, &options);
                let senders = other.map(|other| Ok([sender(other)?, sender(other)?]));
                let senders = senders.transpose()?;
                let senders = senders.map(|both| both.map(Departing::Kernel));
                (senders, Box::new(incoming))
            }
            Socket::Simulated(incoming, socket) => {
                let mtu = socket.host().network().mtu();
                let out = |other| SimulatedOut::new(Arc::clone(&socket), other, mtu);
                let senders = other.map(|other| [out(other), out(other)]);
                let senders = senders.map(|both| both.map(Departing::Simulated));
                (senders, Box::new(incoming))
            }
        })
    }

    /// Waits for a first request with the test's key from an address, unless the run is stopped; returns its sender.
    ///
    /// # Errors
    /// The system's error.
    pub fn caller(
        &mut self,
        from: IpAddr,
        key: u64,
        timeout: Duration,
        run: &Run,
    ) -> io::Result<Option<SocketAddr>> {
        let clock = self.clock.clone();
        let end = clock.now().plus(timeout.into());
        loop {
            let now = clock.now();
            // After a stall at the end, the socket is still polled once.
            let is_over = now >= end || run.is_stopped();
            let incoming = self.incoming();
            let batch = incoming.receive(now)?;
            let is_empty = batch.is_empty();
            for datagram in batch.datagrams() {
                if let (Peer::Socket(source), Some((probe, _))) =
                    (datagram.source, read(&datagram, key, &clock))
                    && source.ip().to_canonical() == from.to_canonical()
                    && probe.kind == Kind::Request
                {
                    return Ok(Some(source));
                }
            }
            if is_over {
                return Ok(None);
            }
            if is_empty {
                rest(&[incoming], &clock, Nanos(0));
            }
        }
    }
}

/// Returns the header of a datagram of this test, and its arrival in nanoseconds of UTC.
#[inline]
pub(super) fn read(datagram: &Datagram<'_>, key: u64, clock: &Clock) -> Option<(Probe, u64)> {
    let probe = Probe::parse(datagram.bytes).filter(|probe| probe.key == key)?;
    let arrived = datagram.stamp.map_or_else(
        || clock.utc(),
        |stamp| u64::try_from(stamp.as_nanos()).unwrap_or(u64::MAX),
    );
    Some((probe, arrived))
}
