//! A relay that drops, duplicates and reorders datagrams as configured, and knows the ground truth. It forwards between a sender and a
//! receiver of any datagram transport, and needs neither privileges nor namespaces. `evlbi-path` creates whole paths between hosts.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evlbi_core::path::{Impairment, Path, Truth};
use evlbi_core::time::Nanos;
use evlbi_wire::vtp;
use serde::Serialize;

use crate::clock::{Clock, Thread};
use crate::cpu::{self, Waiting};
use crate::receive::rest;
use crate::run::Run;
use crate::transport::{
    Datagram, Head, InOptions, Incoming, Local, OpenError, OutOptions, Outgoing, Pieces, Ready, Url,
};

/// Time without a datagram after which a stopped relay ends.
const QUIET: Nanos = Nanos(200_000_000);

/// Maximum wait for room in a sender's socket.
const POLL_INTERVAL: Nanos = Nanos(1_000_000);

/// One flow through a relay.
pub struct RelayFlow {
    incoming: Box<dyn Incoming>,
    outgoing: Box<dyn Outgoing>,
    path: Path,
    /// Datagrams without a sequence number.
    foreign: u64,
}

/// Report of a relay on a flow.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RelayReport {
    /// Ground truth of the path.
    pub truth: Truth,
    /// Datagrams that the relay's own socket dropped before the path saw them.
    pub socket_drops: u64,
    /// Datagrams that could not be forwarded.
    pub not_sent: u64,
    /// Datagrams without a sequence number, which were not forwarded.
    pub foreign: u64,
}

impl RelayFlow {
    /// Creates a flow that is received at `at` and sent to `to`, by datagram transports.
    ///
    /// # Errors
    /// Returns [`OpenError`] if one of them cannot be opened.
    pub fn new(
        at: &Url,
        to: &Url,
        impairment: Impairment,
        seed: u64,
        run: &Run,
    ) -> Result<RelayFlow, OpenError> {
        // Drops are counted per datagram only if the kernel joins none; and each datagram is then lost or not on its own.
        let receives = InOptions {
            single: true,
            ..InOptions::default()
        };
        let sends = OutOptions {
            single: true,
            ..OutOptions::default()
        };
        Ok(RelayFlow {
            incoming: at.transport().open_in(at, &receives, run)?,
            outgoing: to.transport().open_out(to, &sends, run)?,
            path: Path::new(impairment, seed),
            foreign: 0,
        })
    }

    /// Returns where to send to.
    pub fn local(&self) -> Vec<Local> {
        self.incoming.local()
    }

    /// Forwards what has arrived; returns whether anything has.
    fn pass_on(&mut self, clock: &Clock) -> io::Result<bool> {
        let batch = self.incoming.receive(clock.now())?;
        let has_come = !batch.is_empty();
        let (path, outgoing) = (&mut self.path, &mut *self.outgoing);
        for Datagram { bytes, .. } in batch.datagrams() {
            let Some((number, _)) = vtp::split(bytes) else {
                self.foreign += 1;
                continue;
            };
            let mut result = Ok(());
            path.push(number, bytes, |packet| {
                if let Err(error) = send(outgoing, packet, clock) {
                    result = Err(error);
                }
            });
            result?;
        }
        Ok(has_come)
    }

    fn end(mut self, clock: &Clock) -> io::Result<RelayReport> {
        let mut result = Ok(());
        let outgoing = &mut *self.outgoing;
        self.path.flush(|packet| {
            if let Err(error) = send(outgoing, packet, clock) {
                result = Err(error);
            }
        });
        result?;
        await_room(outgoing, clock)?;
        Ok(RelayReport {
            truth: self.path.truth(),
            socket_drops: self.incoming.drops()?,
            not_sent: self.outgoing.counts().not_sent(),
            foreign: self.foreign,
        })
    }
}

/// Sends a single packet as soon as there is room.
fn send(outgoing: &mut dyn Outgoing, packet: &[u8], clock: &Clock) -> io::Result<()> {
    await_room(outgoing, clock)?;
    let mut pieces = Pieces::default();
    let mut train = pieces.begin();
    train.push(Head::new(), packet);
    outgoing.send(&train, clock.now())
}

fn await_room(outgoing: &mut dyn Outgoing, clock: &Clock) -> io::Result<()> {
    loop {
        let now = clock.now();
        let until = match outgoing.ready(now) {
            Ready::Now(_) => return Ok(()),
            Ready::At(moment) => moment,
            Ready::OnEvent => now.plus(POLL_INTERVAL),
        };
        clock.wait(&[outgoing.events()], until, Waiting::Sleep);
        outgoing.drive(clock.now())?;
    }
}

/// A running relay.
pub struct Relay {
    handle: Thread<io::Result<Vec<RelayReport>>>,
    stop: Arc<AtomicBool>,
}

impl Relay {
    /// Starts a thread that forwards all flows.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub fn start(flows: Vec<RelayFlow>, clock: &Clock) -> io::Result<Relay> {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, own) = (Arc::clone(&stop), clock.clone());
        let handle = clock.spawn("relay", move || run(flows, &told, &own))?;
        Ok(Relay { handle, stop })
    }

    /// Ends the relay once nothing is in flight; returns a report per flow.
    ///
    /// # Errors
    /// Returns the error of a broken socket.
    pub fn finish(self) -> io::Result<Vec<RelayReport>> {
        self.stop.store(true, Ordering::Relaxed);
        self.handle.join()
    }
}

fn run(
    mut flows: Vec<RelayFlow>,
    stop: &AtomicBool,
    clock: &Clock,
) -> io::Result<Vec<RelayReport>> {
    if let Err(error) = cpu::sharpen_timers() {
        tracing::debug!("cannot set the timer slack: {error}");
    }
    let mut last = clock.now();
    loop {
        let mut moved = false;
        for flow in &mut flows {
            moved |= flow.pass_on(clock)?;
        }
        let now = clock.now();
        if moved {
            last = now;
        } else if stop.load(Ordering::Relaxed) && now.since(last) > QUIET {
            break;
        } else {
            let all: Vec<&dyn Incoming> = flows.iter().map(|flow| &*flow.incoming).collect();
            rest(&all, clock, last);
        }
    }
    flows.into_iter().map(|flow| flow.end(clock)).collect()
}
