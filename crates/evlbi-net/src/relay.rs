//! A relay that loses, doubles and reorders datagrams under control, and knows what it did.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evlbi_core::path::{Impairment, Path, Truth};
use evlbi_core::time::Nanos;
use evlbi_wire::vtp;
use serde::Serialize;

use crate::clock::{Clock, Thread};
use crate::cpu;
use crate::transport::{Batch, Head, Pieces};
use crate::udp::{Listen, OpenError, Received, Receiver, ReceiverOptions, Sender, SenderOptions};

/// The relay ends when it was told to and nothing came for so long.
const QUIET: Nanos = Nanos(200_000_000);

/// One flow through a relay.
pub struct RelayFlow {
    receiver: Receiver,
    sender: Sender,
    path: Path,
    /// Datagrams without a sequence number.
    foreign: u64,
}

/// What a relay did with a flow.
#[derive(Clone, Debug, Serialize)]
pub struct RelayReport {
    /// What the path did.
    pub truth: Truth,
    /// Datagrams that the relay's own socket dropped before the path saw them.
    pub socket_drops: u64,
    /// Datagrams that could not be sent on.
    pub not_sent: u64,
    /// Datagrams without a sequence number, which were not passed on.
    pub foreign: u64,
}

impl RelayFlow {
    /// A flow to `to`, on a port of loopback that the kernel chooses.
    ///
    /// # Errors
    /// [`OpenError`] when a socket cannot be made.
    pub fn new(to: SocketAddr, impairment: Impairment, seed: u64) -> Result<RelayFlow, OpenError> {
        let here = match to {
            SocketAddr::V4(_) => SocketAddr::from(([127, 0, 0, 1], 0)),
            SocketAddr::V6(_) => SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 0)),
        };
        // Its drops are counted datagram by datagram only if the kernel joins none.
        let options = ReceiverOptions {
            join: false,
            ..ReceiverOptions::default()
        };
        Ok(RelayFlow {
            receiver: Receiver::bind(&[Listen::from(here)], &options)?,
            sender: Sender::connect(to, &SenderOptions::default())?,
            path: Path::new(impairment, seed),
            foreign: 0,
        })
    }

    /// Where to send to.
    pub fn address(&self) -> Option<SocketAddr> {
        self.receiver.local_addresses().next()
    }

    fn pass_on(&mut self, batch: Batch<'_>) -> io::Result<()> {
        for datagram in batch.datagrams() {
            let Some((number, _)) = vtp::split(datagram.bytes) else {
                self.foreign += 1;
                continue;
            };
            let mut result = Ok(());
            self.path.push(number, datagram.bytes, |packet| {
                send(&mut self.sender, packet, &mut result);
            });
            result?;
        }
        Ok(())
    }

    fn end(mut self) -> io::Result<RelayReport> {
        let mut result = Ok(());
        self.path
            .flush(|packet| send(&mut self.sender, packet, &mut result));
        result?;
        Ok(RelayReport {
            truth: self.path.truth(),
            socket_drops: self.receiver.drops()?,
            not_sent: self.sender.counts().not_sent(),
            foreign: self.foreign,
        })
    }
}

/// Packet by packet, so that each is lost or not by itself on the way on, too.
fn send(sender: &mut Sender, packet: &[u8], result: &mut io::Result<()>) {
    let mut pieces = Pieces::default();
    let mut train = pieces.begin();
    train.push(Head::new(), packet);
    if let Err(error) = sender.send(&train) {
        *result = Err(error);
    }
}

/// A relay at work.
pub struct Relay {
    handle: Thread<io::Result<Vec<RelayReport>>>,
    stop: Arc<AtomicBool>,
}

impl Relay {
    /// Passes all flows on in a thread of its own.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(flows: Vec<RelayFlow>) -> io::Result<Relay> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let handle = Clock::real().spawn("relay", move || run(flows, &told))?;
        Ok(Relay { handle, stop })
    }

    /// Ends when nothing is on its way any more; returns what was done with each flow.
    ///
    /// # Errors
    /// What a socket says that is of no more use.
    pub fn finish(self) -> io::Result<Vec<RelayReport>> {
        self.stop.store(true, Ordering::Relaxed);
        self.handle.join()
    }
}

fn run(mut flows: Vec<RelayFlow>, stop: &AtomicBool) -> io::Result<Vec<RelayReport>> {
    if let Err(error) = cpu::sharpen_timers() {
        tracing::debug!("cannot set the timer slack: {error}");
    }
    let mut received = Received::new();
    let mut last = cpu::now();
    loop {
        let mut moved = false;
        for flow in &mut flows {
            if flow.receiver.receive(&mut received)? > 0 {
                moved = true;
                flow.pass_on(received.batch())?;
            }
        }
        let now = cpu::now();
        if moved {
            last = now;
        } else if stop.load(Ordering::Relaxed) && now.since(last) > QUIET {
            break;
        } else {
            Receiver::rest(flows.iter().map(|flow| &flow.receiver), last)?;
        }
    }
    flows.into_iter().map(RelayFlow::end).collect()
}
