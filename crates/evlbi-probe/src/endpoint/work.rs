//! Work of one endpoint of a test: it listens, sends and counts at the same time.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_net::clock::{Clock, Thread};
use evlbi_net::cpu;
use evlbi_net::run::Run;
use evlbi_net::tcp::{Connection, Progress};
use evlbi_net::udp::OpenError;
use evlbi_trace::tcp::Reading;

use super::flows::Flowing;
use super::listen::{ListenOptions, listen};
use super::port::Departing;
use super::transmit::{Departures, ping, transmit};
use super::{
    Departed, EndpointReport, Files, Flows, Heard, Listened, Observer, Port, Requests, Test, Window,
};
use crate::measure::Stream;

/// Maximum lead of the other endpoint's clock over its estimate here.
const SLACK: Nanos = Nanos(10_000_000_000);

/// Reason why an endpoint fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError {
    /// Its socket cannot be configured.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// Another error of the system.
    #[error("{0}: {1}")]
    Io(&'static str, io::Error),
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> WorkError {
    move |error| WorkError::Io(what, error)
}

/// A working endpoint of a test.
pub struct Work {
    key: u64,
    heard: Arc<Heard>,
    departures: Arc<Departures>,
    listener: Option<Thread<io::Result<Listened>>>,
    settled: mpsc::Receiver<Window>,
    /// Lent to the sending thread.
    sender: Option<Departing>,
    sending: Option<Thread<(Departing, io::Result<Option<Departed>>)>>,
    departed: Option<Departed>,
    observer: Option<Observer>,
    flowing: Option<Flowing>,
    /// Progress of the connections, if there are any.
    progress: Arc<Progress>,
    interface: Option<String>,
    expected: Option<Stream>,
    in_windows: bool,
    begun: Nanos,
    run: Run,
}

impl Work {
    /// Listens for a stream, if one is expected, for requests and for replies. If the other endpoint is unknown, listens to anyone, and
    /// sends no answers.
    ///
    /// # Errors
    /// [`WorkError`] if the socket cannot communicate with the other endpoint.
    pub fn begin(
        port: Port,
        other: Option<SocketAddr>,
        key: u64,
        expected: Option<&Stream>,
        test: &Test,
        reply_rate: Option<BitRate>,
        run: &Run,
    ) -> Result<Work, WorkError> {
        let (interface, clock) = (port.interface(), run.clock());
        let (senders, mut incoming) = port.connect(other, test.dscp)?;
        let (sender, replies) = senders.map(|[sender, replies]| (sender, replies)).unzip();
        let options = ListenOptions {
            test: test.clone(),
            key,
            count: expected.map_or(0, |stream| stream.count),
            reply_rate,
        };
        let heard = Arc::new(Heard::default());
        let hears = Arc::clone(&heard);
        // A simulated host has CPUs for all threads.
        let burden = expected.and(test.burden).filter(|_| clock.is_real());
        let burden = burden.unwrap_or_default();
        let (settle, settled) = mpsc::channel();
        let own = clock.clone();
        let work = move || {
            if let Some(nice) = burden.nice {
                cpu::set_nice(nice)?;
            }
            listen(&mut *incoming, replies, &options, &hears, &settle, &own)
        };
        let listener = clock.spawn("listen", work);
        let listener = listener.map_err(failed("cannot start a thread"))?;
        let burdened = (0..burden.tasks).try_for_each(|_| begin_task(burden.tasks_nice, &heard));
        if let Err(error) = burdened {
            heard.stop();
            let what = "cannot run a competing task as requested";
            return Err(WorkError::Io(what, error));
        }
        Ok(Work {
            key,
            heard,
            departures: Arc::default(),
            listener: Some(listener),
            settled,
            sender,
            sending: None,
            departed: None,
            observer: None,
            flowing: None,
            progress: Arc::default(),
            interface,
            expected: expected.copied(),
            in_windows: test.window.is_some(),
            begun: clock.now(),
            run: run.clone(),
        })
    }

    /// Returns what has been received so far.
    pub fn heard(&self) -> &Heard {
        &self.heard
    }

    /// Returns the distinct datagrams of the incoming stream, or bytes of the connections, so far.
    pub fn arrived(&self) -> u64 {
        let taken = self.progress.taken.load(Ordering::Relaxed);
        self.heard.unique.load(Ordering::Relaxed) + taken
    }

    /// Returns the bytes written to connections so far.
    pub fn given(&self) -> u64 {
        self.progress.given.load(Ordering::Relaxed)
    }

    /// Samples the kernel's state of the local connections.
    pub fn readings(&self) -> Vec<Reading> {
        let flowing = self.flowing.as_ref();
        flowing.map(Flowing::readings).unwrap_or_default()
    }

    /// Returns the next settled window of the incoming stream, if any.
    pub fn window(&self) -> Option<Window> {
        self.settled.try_recv().ok()
    }

    /// Returns the numbers of the stream used so far.
    pub fn used(&self) -> u64 {
        self.departures.used.load(Ordering::Relaxed)
    }

    /// Returns how many of these were not sent because the kernel refused them.
    pub fn not_sent(&self) -> u64 {
        self.departures.not_sent.load(Ordering::Relaxed)
    }

    /// Returns the requests that left, of the last batch.
    pub fn asked(&self) -> u64 {
        self.departures.asked.load(Ordering::Relaxed)
    }

    /// Notes how many numbers the incoming stream has used, by its sender, and whether that is final. Limits the count to the maximum at
    /// its rate, so that windows that never were are not settled.
    pub fn note_used(&self, used: u64, are_all: bool) {
        let since = self.run.clock().now().since(self.begun).plus(SLACK);
        let most = match &self.expected {
            Some(stream) if self.in_windows => stream.within(Nanos(since.0.saturating_mul(2))),
            _ => u64::MAX,
        };
        let used = used.min(most);
        if are_all {
            self.heard.sent(used);
        } else {
            self.heard.used(used);
        }
    }

    /// Starts to sample the host's counters.
    ///
    /// # Errors
    /// The system's error if they cannot be read.
    pub fn observe(&mut self) -> Result<(), WorkError> {
        let observer =
            Observer::start(&self.run).map_err(failed("cannot read this host's counters"))?;
        self.observer = Some(observer);
        Ok(())
    }

    /// Sends a stream, in a separate thread.
    ///
    /// # Errors
    /// The system's error if no thread can be started.
    pub fn send(&mut self, stream: Stream, test: &Test) -> Result<(), WorkError> {
        let (key, test) = (self.key, test.clone());
        let clock = self.run.clock().clone();
        self.spawn(move |sender, departures| {
            transmit(sender, key, &stream, &test, departures, &clock).map(Some)
        })
    }

    /// Sends requests, numbered from `first`, in a separate thread; replies arrive at the listener.
    ///
    /// # Errors
    /// The system's error if no thread can be started.
    pub fn ask(&mut self, first: u64, requests: Requests) -> Result<(), WorkError> {
        let (key, clock) = (self.key, self.run.clock().clone());
        self.spawn(move |sender, departures| {
            ping(sender, key, first, &requests, departures, &clock).map(|()| None)
        })
    }

    /// Starts the connections of a test, at the client or at the responder.
    ///
    /// # Errors
    /// The system's error if a thread cannot be started.
    pub fn begin_flows(
        &mut self,
        connections: Vec<Connection>,
        flows: &Flows,
        files: Files,
        is_client: bool,
        length: Nanos,
    ) -> Result<(), WorkError> {
        let progress = Arc::clone(&self.progress);
        let flowing = Flowing::begin(
            connections,
            flows,
            files,
            is_client,
            length,
            progress,
            self.run.clock(),
        );
        self.flowing = Some(flowing.map_err(failed("cannot start a thread"))?);
        Ok(())
    }

    fn spawn(
        &mut self,
        job: impl FnOnce(&mut Departing, &Departures) -> io::Result<Option<Departed>> + Send + 'static,
    ) -> Result<(), WorkError> {
        self.settle(true)?;
        let Some(mut sender) = self.sender.take() else {
            return Ok(());
        };
        let departures = Arc::clone(&self.departures);
        let sending = self.run.clock().spawn("send", move || {
            let done = job(&mut sender, &departures);
            (sender, done)
        });
        self.sending = Some(sending.map_err(failed("cannot start a thread"))?);
        Ok(())
    }

    /// Returns whether all has been sent.
    ///
    /// # Errors
    /// [`WorkError`] if sending failed.
    pub fn has_sent(&mut self) -> Result<bool, WorkError> {
        let has_given = self.are_done(true);
        Ok(self.settle(false)? && has_given)
    }

    fn settle(&mut self, wait: bool) -> Result<bool, WorkError> {
        if let Some(sending) = self
            .sending
            .take_if(|sending| wait || sending.is_finished())
        {
            let (sender, done) = sending.join();
            self.sender = Some(sender);
            if let Some(departed) = done.map_err(failed("cannot send"))? {
                self.departed = Some(departed);
            }
        }
        Ok(self.sending.is_none())
    }

    /// Returns the report of the sent stream.
    pub fn departed(&self) -> Option<&Departed> {
        self.departed.as_ref()
    }

    /// Returns whether the incoming stream is complete or has timed out.
    pub fn has_heard(&self) -> bool {
        self.listener.as_ref().is_none_or(Thread::is_finished) && self.has_taken()
    }

    /// Returns whether all data of TCP connections has arrived.
    pub fn has_taken(&self) -> bool {
        self.are_done(false)
    }

    fn are_done(&self, gives: bool) -> bool {
        let flowing = self.flowing.as_ref();
        flowing.is_none_or(|flowing| flowing.are_done(gives))
    }

    /// Stops sending.
    pub fn stop_sending(&self) {
        self.departures.stop.store(true, Ordering::Relaxed);
        self.progress.stop.store(true, Ordering::Relaxed);
    }

    /// Stops sending, and limits the wait for missing datagrams to 0.3 s.
    pub fn make_haste(&self) {
        self.stop_sending();
        self.heard.make_haste();
    }

    /// Discards TCP data in flight.
    pub fn give_up(&self) {
        self.stop_sending();
        self.progress.give_up();
    }

    /// Ends the work. The size of an incoming stream must have been set before ([`Heard::sent`]).
    ///
    /// # Errors
    /// [`WorkError`] if sending, listening or counting failed.
    pub fn finish(mut self) -> Result<EndpointReport, WorkError> {
        self.stop_sending();
        let flows = self.flowing.take().map(Flowing::finish);
        let settled = self.settle(true);
        self.heard.stop();
        let listened = match self.listener.take() {
            Some(listener) => listener.join(),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        settled?;
        let host = self.observer.take().map(Observer::finish).transpose();
        Ok(EndpointReport {
            departed: self.departed.take(),
            listened: listened.map_err(failed("cannot receive"))?,
            host: host
                .map_err(failed("cannot read this host's counters"))?
                .unwrap_or_default(),
            interface: self.interface.take(),
            flows,
        })
    }
}

/// Starts a thread that uses CPU time until the listener ends.
fn begin_task(nice: i8, heard: &Arc<Heard>) -> io::Result<()> {
    let heard = Arc::clone(heard);
    let (tell, told) = mpsc::channel();
    Clock::real().spawn("burden", move || {
        let set = cpu::set_nice(nice);
        let is_set = set.is_ok();
        let _ = tell.send(set);
        while is_set && !heard.is_over() {
            std::hint::black_box((0..10_000u64).sum::<u64>());
        }
    })?;
    told.recv()
        .unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
}

/// Stops the threads of an abandoned test, and closes its socket.
impl Drop for Work {
    fn drop(&mut self) {
        self.give_up();
        self.heard.stop();
        self.flowing.take().map(Flowing::finish);
        self.sending.take().map(Thread::wait);
        self.listener.take().map(Thread::wait);
    }
}
