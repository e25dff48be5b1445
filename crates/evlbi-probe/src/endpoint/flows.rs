//! TCP connections of a test at one endpoint: each writes or reads in a thread of its own, and another samples them.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use evlbi_core::packetise::Family;
use evlbi_core::shed::wire_bytes_of_segment;
use evlbi_core::time::Nanos;
use evlbi_net::clock::{Clock, Thread};
use evlbi_net::run::Run;
use evlbi_net::socket::GrantedBuffer;
use evlbi_net::tcp::{
    self, Connection, Constant, Door, Given, HEADER_LEN, Kept, MAX_SAMPLES, Progress, Sampled,
    Taken, TcpError,
};
use evlbi_trace::tcp::{Info, Reading};
use serde::{Deserialize, Serialize};

use super::TestError;

/// Maximum number of connections of a test.
const MAX_FLOWS: usize = 64;
/// Maximum size of all buffers of an endpoint, in bytes.
const MAX_BUFFERED: usize = 16 << 30;
/// Maximum length of a message, and of a write, in bytes.
const MAX_WRITE: usize = 1 << 20;
/// Minimum interval between samples of the connections.
const MIN: Nanos = Nanos(100_000);
/// Maximum length of an algorithm's name in Linux.
const MAX_NAME: usize = 15;
/// Maximum segment on Ethernet, with timestamps, in bytes.
const SEGMENT: u32 = 1448;
/// Timeout for the connections.
const COMING: Duration = Duration::from_secs(5);

/// TCP connections to test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flows {
    /// Outbound connections: the congestion control algorithm of each, or `None` for the host's default.
    pub there: Vec<Option<String>>,
    /// Return connections: the same.
    pub back: Vec<Option<String>>,
    /// Messages at a constant rate, on each of them; `None` for bytes as fast as possible.
    pub constant: Option<Constant>,
    /// Bytes per write.
    pub write: usize,
    /// Whether received data is copied out of the kernel, as by a program that uses it.
    pub copied: bool,
    /// Options of each connection.
    pub options: tcp::Options,
    /// Interval between samples.
    pub every: Nanos,
    /// Messages that are kept one by one, of each connection.
    pub kept: Kept,
    /// File that is sent instead of bytes, by its name at the sending endpoint.
    pub source: Option<String>,
    /// File for received data, by its name at the receiving endpoint.
    pub sink: Option<String>,
}

/// Files of one endpoint.
#[derive(Debug, Default)]
pub struct Files {
    /// File to send.
    pub source: Option<File>,
    /// File for received data.
    pub sink: Option<File>,
}

/// One endpoint of a connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowEnd {
    /// Its congestion control algorithm.
    pub algorithm: String,
    /// Local and remote port.
    pub ports: [u16; 2],
    /// Its send buffer, if one was requested.
    pub send_buffer: Option<GrantedBuffer>,
    /// Its receive buffer, if one was requested.
    pub receive_buffer: Option<GrantedBuffer>,
    /// Report of the sender.
    pub given: Option<Given>,
    /// Report of the receiver.
    pub taken: Option<Taken>,
    /// State of the kernel at the end.
    pub last: Option<Info>,
}

/// One endpoint of all connections of a test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowsEnd {
    /// The connections: first the outbound ones.
    pub flows: Vec<FlowEnd>,
    /// Samples of them.
    pub sampled: Sampled,
}

/// Returns the default interval between samples: 10 ms, or longer if a test of that length would result in more samples than an endpoint
/// keeps.
pub fn default_sampling(length: Nanos, connections: u64) -> Nanos {
    let least = length.0 / (MAX_SAMPLES / connections.max(1)).max(1);
    let mut steps = (7..).flat_map(|power| {
        let power = 10u64.saturating_pow(power);
        [1, 2, 5].map(|step| Nanos(power.saturating_mul(step)))
    });
    steps
        .find(|step| step.0 > least || step.0 == u64::MAX)
        .unwrap_or(length)
}

impl Flows {
    /// Returns the congestion control algorithm of each connection.
    fn algorithms(&self) -> impl Iterator<Item = &Option<String>> {
        self.there.iter().chain(&self.back)
    }

    /// Checks that the connections are valid, for a test of this length.
    pub(super) fn check(&self, length: Nanos) -> Result<(), TestError> {
        let count = self.algorithms().count();
        if !(1..=MAX_FLOWS).contains(&count) {
            return Err(TestError::Flows(count));
        }
        for name in self.algorithms().flatten() {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
            if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(is_plain) {
                return Err(TestError::Algorithm(name.clone()));
            }
        }
        let has_files = self.source.is_some() || self.sink.is_some();
        if has_files && (count > 1 || self.constant.is_some()) {
            return Err(TestError::Files);
        }
        if !(1..=MAX_WRITE).contains(&self.write) {
            return Err(TestError::Write(self.write));
        }
        let buffers = [self.options.send_buffer, self.options.receive_buffer];
        let buffers = buffers.into_iter().flatten();
        let all = buffers.fold(0, usize::saturating_add);
        if all.saturating_mul(count) > MAX_BUFFERED {
            return Err(TestError::Buffers);
        }
        if let Some(constant) = &self.constant
            && !(HEADER_LEN..=MAX_WRITE).contains(&constant.size)
        {
            return Err(TestError::Message(constant.size));
        }
        if self.every < MIN || length.0 / self.every.0 > MAX_SAMPLES / count as u64 {
            return Err(TestError::Samples);
        }
        match self.kept.limit.saturating_mul(count as u64) {
            many if many > super::message::MAX_KEPT => Err(TestError::Keep(many)),
            _ => Ok(()),
        }
    }

    /// Returns the rates on Ethernet, outbound and return, in bits per second; `None` for as fast as possible.
    pub(super) fn wire_rates(&self) -> [Option<f64>; 2] {
        let segment = self.options.segment.unwrap_or(SEGMENT).max(1) as usize;
        let message = self
            .constant
            .map_or(segment, |constant| constant.size.max(1));
        let segment = segment.min(message);
        let overhead = wire_bytes_of_segment(segment, Family::V4) as f64 / segment as f64;
        [&self.there, &self.back].map(|all| {
            if all.is_empty() {
                return Some(0.0);
            }
            let rate = self.constant?.rate.get() as f64 * all.len() as f64;
            Some(rate * overhead)
        })
    }

    /// Returns the options of each connection, with this DSCP.
    fn options(&self, dscp: Option<u8>) -> tcp::Options {
        tcp::Options {
            dscp,
            ..self.options.clone()
        }
    }

    /// Opens the listener for the connections.
    ///
    /// # Errors
    /// [`TcpError`].
    pub fn door(&self, local: SocketAddr, dscp: Option<u8>, run: &Run) -> Result<Door, TcpError> {
        // A name that the kernel does not know is reported before any connection.
        let names = self.back.iter().flatten();
        Door::open(local, &self.options(dscp), names, run)
    }

    /// Accepts the connections at the listener.
    ///
    /// # Errors
    /// [`TcpError`].
    pub fn take(&self, door: Door, key: u64, run: &Run) -> Result<Vec<Connection>, TcpError> {
        // The sender chooses its algorithm: incoming data of the client needs none here.
        let theirs = self.there.iter().map(|_| None);
        let algorithms: Vec<Option<String>> = theirs.chain(self.back.iter().cloned()).collect();
        door.take(key, &algorithms, COMING, run)
    }

    /// Connects all at once.
    ///
    /// # Errors
    /// [`TcpError`].
    pub fn connect(
        &self,
        to: SocketAddr,
        from: SocketAddr,
        device: Option<&str>,
        dscp: Option<u8>,
        key: u64,
        run: &Run,
    ) -> Result<Vec<Connection>, TcpError> {
        let theirs = self.back.iter().map(|_| None);
        let algorithms = self.there.iter().cloned().chain(theirs);
        let device = device.map(str::to_owned);
        let connecting = algorithms.zip(0..).map(|(algorithm, number)| {
            let options = tcp::Options {
                algorithm,
                ..self.options(dscp)
            };
            let (device, own) = (device.clone(), run.clone());
            let work = move || {
                let device = device.as_deref();
                Connection::connect(to, from, device, &options, (key, number), &own)
            };
            let thread = run.clock().spawn("connect", work);
            thread.map_err(|source| TcpError::Socket {
                what: "a thread",
                source,
            })
        });
        let connecting: Vec<_> = connecting.collect();
        // All of them, even if one fails.
        let ended = connecting.into_iter().map(|it| it.map(Thread::wait));
        let ended: Vec<_> = ended.collect();
        let connected = ended
            .into_iter()
            .map(|it| it?.unwrap_or_else(|panic| resume_unwind(panic)));
        connected.collect()
    }
}

/// Result of a connection's thread.
#[derive(Debug)]
enum Done {
    Given(Given),
    Taken(Taken),
}

/// A working thread, until this is dropped.
struct Over(Arc<Progress>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Working connections.
#[derive(Debug)]
pub(super) struct Flowing {
    connections: Vec<Arc<Connection>>,
    progress: Arc<Progress>,
    /// The threads, and whether each sends.
    threads: Vec<(bool, Thread<Done>)>,
    sampler: Thread<Sampled>,
    clock: Clock,
}

impl Flowing {
    /// Starts the connections, at the client or at the responder, for this time.
    pub fn begin(
        connections: Vec<Connection>,
        flows: &Flows,
        files: Files,
        is_client: bool,
        length: Nanos,
        progress: Arc<Progress>,
        clock: &Clock,
    ) -> io::Result<Flowing> {
        let shared = Arc::new((flows.clone(), files));
        let connections: Vec<Arc<Connection>> = connections.into_iter().map(Arc::new).collect();
        progress.working.store(connections.len(), Ordering::Relaxed);
        let sampler = tcp::begin_sampling(&connections, flows.every, &progress, clock)?;
        let mut threads = Vec::new();
        for (number, connection) in connections.iter().enumerate() {
            let gives = (number < flows.there.len()) == is_client;
            let over = Over(Arc::clone(&progress));
            let (connection, shared) = (Arc::clone(connection), Arc::clone(&shared));
            let own = clock.clone();
            let job = move || {
                let (progress, (flows, files)) = (&*over.0, &*shared);
                match (gives, &flows.constant) {
                    (true, None) if let Some(file) = &files.source => {
                        Done::Given(tcp::give_file(&connection, file, length, progress, &own))
                    }
                    (false, None) if let Some(file) = &files.sink => {
                        Done::Taken(tcp::take_into(&connection, file, progress, &own))
                    }
                    (true, Some(constant)) => Done::Given(tcp::give_messages(
                        &connection,
                        constant,
                        length,
                        progress,
                        &own,
                    )),
                    (true, None) => Done::Given(tcp::give_bytes(
                        &connection,
                        flows.write,
                        length,
                        progress,
                        &own,
                    )),
                    (false, Some(constant)) => {
                        let (size, kept) = (constant.size, &flows.kept);
                        Done::Taken(tcp::take_messages(&connection, size, kept, progress, &own))
                    }
                    (false, None) => {
                        Done::Taken(tcp::take_bytes(&connection, flows.copied, progress, &own))
                    }
                }
            };
            let thread = clock.spawn(if gives { "give" } else { "take" }, job);
            // Otherwise the others would continue.
            let thread = thread.inspect_err(|_| progress.give_up())?;
            threads.push((gives, thread));
        }
        Ok(Flowing {
            connections,
            progress,
            threads,
            sampler,
            clock: clock.clone(),
        })
    }

    /// Returns whether the other endpoint has received all (of connections that send), or all has arrived here (of the others).
    pub fn are_done(&self, gives: bool) -> bool {
        let mut those = self.threads.iter().filter(|(one, _)| *one == gives);
        those.all(|(_, thread)| thread.is_finished())
    }

    /// Samples the kernel's state of each.
    pub fn readings(&self) -> Vec<Reading> {
        tcp::readings(&self.connections, &self.clock)
    }

    /// Waits for the threads. Data in flight is discarded, so they end soon.
    pub fn finish(self) -> FlowsEnd {
        self.progress.give_up();
        let threads = self.threads.into_iter().map(|(_, thread)| thread);
        let done: Vec<Done> = threads.map(Thread::join).collect();
        let sampled = self.sampler.join();
        let ends = self.connections.iter().zip(done);
        let flows = ends.map(|(connection, done)| {
            let (given, taken) = match done {
                Done::Given(given) => (Some(given), None),
                Done::Taken(taken) => (None, Some(taken)),
            };
            let [send_buffer, receive_buffer] = connection.buffers().clone();
            FlowEnd {
                algorithm: connection.algorithm().unwrap_or_default(),
                ports: connection.ports(),
                send_buffer,
                receive_buffer,
                given,
                taken,
                last: connection.info().ok(),
            }
        });
        FlowsEnd {
            flows: flows.collect(),
            sampled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_of_any_length_has_a_usable_sampling_interval() {
        let hours = |hours: u64| Nanos(hours * 3600 * Nanos::SECOND.0);
        let every = |length, connections| default_sampling(length, connections).as_secs_f64();
        assert_eq!(every(Nanos::SECOND, 1), 0.01);
        assert_eq!(every(Nanos(0), 0), 0.01);
        assert_eq!(every(hours(15), 1), 0.5);
        assert_eq!(every(hours(60), 64), 100.0);
        for connections in [1, 2, 3, 7, 64] {
            for length in [1, 1999, 2000, 2001, 54_000, 1 << 30].map(|it| it * Nanos::SECOND.0) {
                let flows = Flows {
                    there: vec![None; connections],
                    write: 1,
                    every: default_sampling(Nanos(length), connections as u64),
                    ..Flows::default()
                };
                assert_eq!(flows.check(Nanos(length)), Ok(()), "{connections} {length}");
            }
        }
        default_sampling(Nanos(u64::MAX), u64::MAX);
    }
}
