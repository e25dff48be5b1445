//! The socket of one end of a test.

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

/// The socket of one end of a test.
pub struct Port {
    end: Socket,
    local: SocketAddr,
    clock: Clock,
}

enum Socket {
    Kernel(UdpIn),
    Simulated(SimulatedIn, Arc<sim::Socket>),
}

/// What sends the stream and what sends replies, where the other end is known; and what listens.
pub(super) type Connected = (Option<[Departing; 2]>, Box<dyn Incoming>);

/// What the datagrams of a test leave by.
pub(super) enum Departing {
    Kernel(Sender),
    Simulated(SimulatedOut),
}

impl Departing {
    /// Sends a train; what the host refuses is counted.
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
    /// Opens the socket of a test at an address of the run's host, where port 0 is any that is free, and at one interface alone
    /// if that is asked for.
    ///
    /// # Errors
    /// [`OpenError`] when the address or an option is refused.
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

    /// Where the socket is.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Name of the interface whose address it has, if it is known.
    pub fn interface(&self) -> Option<String> {
        match self.end {
            Socket::Kernel(_) => interface_of(self.local.ip().to_canonical()),
            Socket::Simulated(..) => None,
        }
    }

    /// Speaks with the other end alone from now on, if it is known, in a class of service (RFC 2474).
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

    /// Waits for a first request with the test's key from an address, unless the run is stopped, and says whence it came.
    ///
    /// # Errors
    /// What the kernel says.
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
            // Who stood still until the end looks once more.
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

/// The header of a datagram of this test, and when it arrived in nanoseconds of UTC.
#[inline]
pub(super) fn read(datagram: &Datagram<'_>, key: u64, clock: &Clock) -> Option<(Probe, u64)> {
    let probe = Probe::parse(datagram.bytes).filter(|probe| probe.key == key)?;
    let arrived = datagram.stamp.map_or_else(
        || clock.utc(),
        |stamp| u64::try_from(stamp.as_nanos()).unwrap_or(u64::MAX),
    );
    Some((probe, arrived))
}
