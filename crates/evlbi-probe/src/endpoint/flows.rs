//! The connections of a test at one end: they give, take and are looked at, each in a thread of its own.

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

/// Connections of a test, at most.
const MAX_FLOWS: usize = 64;
/// Bytes of all buffers of an end, at most.
const MAX_BUFFERED: usize = 16 << 30;
/// Longest message, and longest write.
const MAX_WRITE: usize = 1 << 20;
/// Most often that connections are looked at.
const MIN: Nanos = Nanos(100_000);
/// Longest name of a congestion control in Linux.
const MAX_NAME: usize = 15;
/// Longest segment on an Ethernet, with time stamps.
const SEGMENT: u32 = 1448;
/// The connections come in this time.
const COMING: Duration = Duration::from_secs(5);

/// TCP connections to test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flows {
    /// Of each connection on which the client gives: its congestion control, or none for the host's own.
    pub there: Vec<Option<String>>,
    /// The same of those on which the responder gives.
    pub back: Vec<Option<String>>,
    /// Messages at a constant rate, on each of them; else bytes, as many as it takes.
    pub constant: Option<Constant>,
    /// So many of these are handed over at once.
    pub write: usize,
    /// Whether what comes is copied out of the kernel, as by somebody who wants it.
    pub copied: bool,
    /// What is asked of each connection.
    pub options: tcp::Options,
    /// How often they are looked at.
    pub every: Nanos,
    /// Messages that are kept one by one, of each.
    pub kept: Kept,
    /// The file that is given instead of bytes, by its name at the end that gives.
    pub source: Option<String>,
    /// The file that takes what comes, by its name at the end that takes.
    pub sink: Option<String>,
}

/// Files of one end.
#[derive(Debug, Default)]
pub struct Files {
    /// To be given.
    pub source: Option<File>,
    /// To take what comes.
    pub sink: Option<File>,
}

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowEnd {
    /// Its congestion control.
    pub algorithm: String,
    /// Ports here and at the other end.
    pub ports: [u16; 2],
    /// Its send buffer, where one was asked for.
    pub send_buffer: Option<GrantedBuffer>,
    /// Its receive buffer, where one was asked for.
    pub receive_buffer: Option<GrantedBuffer>,
    /// What was given here.
    pub given: Option<Given>,
    /// What was taken here.
    pub taken: Option<Taken>,
    /// What the kernel said at the end.
    pub last: Option<Info>,
}

/// One end of all connections of a test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowsEnd {
    /// Each of them: first those on which the client gives.
    pub flows: Vec<FlowEnd>,
    /// What was seen of them.
    pub sampled: Sampled,
}

/// How often connections are looked at where nothing else is asked for: every 10 ms, and less often where a test of that
/// length would then have more readings than an end keeps.
pub fn usual_sampling(length: Nanos, connections: u64) -> Nanos {
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
    /// Congestion control of each.
    fn algorithms(&self) -> impl Iterator<Item = &Option<String>> {
        self.there.iter().chain(&self.back)
    }

    /// Says what is wrong with it by itself, if anything, where it lasts so long.
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

    /// Bits per second on an Ethernet, to the responder and back; none where it is as much as there can be.
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

    /// What is asked of each connection, in this class of service.
    fn options(&self, dscp: Option<u8>) -> tcp::Options {
        tcp::Options {
            dscp,
            ..self.options.clone()
        }
    }

    /// Opens the door to which they come.
    ///
    /// # Errors
    /// [`TcpError`].
    pub fn door(&self, local: SocketAddr, dscp: Option<u8>, run: &Run) -> Result<Door, TcpError> {
        // A name that the kernel does not have is told before anybody connects.
        let names = self.back.iter().flatten();
        Door::open(local, &self.options(dscp), names, run)
    }

    /// Takes them at the door.
    ///
    /// # Errors
    /// [`TcpError`].
    pub fn take(&self, door: Door, key: u64, run: &Run) -> Result<Vec<Connection>, TcpError> {
        // Who gives chooses: what comes here from the client is not.
        let theirs = self.there.iter().map(|_| None);
        let algorithms: Vec<Option<String>> = theirs.chain(self.back.iter().cloned()).collect();
        door.take(key, &algorithms, COMING, run)
    }

    /// Connects them, all at once.
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
        // All of them, whatever befalls one.
        let ended = connecting.into_iter().map(|it| it.map(Thread::wait));
        let ended: Vec<_> = ended.collect();
        let connected = ended
            .into_iter()
            .map(|it| it?.unwrap_or_else(|panic| resume_unwind(panic)));
        connected.collect()
    }
}

/// What a thread did for a connection.
#[derive(Debug)]
enum Done {
    Given(Given),
    Taken(Taken),
}

/// A thread that is at work, until this is dropped.
struct Over(Arc<Progress>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Connections at work.
#[derive(Debug)]
pub(super) struct Flowing {
    connections: Vec<Arc<Connection>>,
    progress: Arc<Progress>,
    /// Whether it gives, for each connection.
    threads: Vec<(bool, Thread<Done>)>,
    sampler: Thread<Sampled>,
    clock: Clock,
}

impl Flowing {
    /// Begins, at the client or at the responder, for so long.
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
            // Without it the others end, too.
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

    /// Whether the other end has all that was given here; or, of those that do not give, whether all that comes has come.
    pub fn are_done(&self, gives: bool) -> bool {
        let mut those = self.threads.iter().filter(|(one, _)| *one == gives);
        those.all(|(_, thread)| thread.is_finished())
    }

    /// What the kernel says of each at this moment.
    pub fn readings(&self) -> Vec<Reading> {
        tcp::readings(&self.connections, &self.clock)
    }

    /// Waits for the threads, which end soon if they have not: what is under way is given up.
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
    fn a_test_of_any_length_can_be_looked_at() {
        let hours = |hours: u64| Nanos(hours * 3600 * Nanos::SECOND.0);
        let every = |length, connections| usual_sampling(length, connections).as_secs_f64();
        assert_eq!(every(Nanos::SECOND, 1), 0.01);
        assert_eq!(every(Nanos(0), 0), 0.01);
        assert_eq!(every(hours(15), 1), 0.5);
        assert_eq!(every(hours(60), 64), 100.0);
        for connections in [1, 2, 3, 7, 64] {
            for length in [1, 1999, 2000, 2001, 54_000, 1 << 30].map(|it| it * Nanos::SECOND.0) {
                let flows = Flows {
                    there: vec![None; connections],
                    write: 1,
                    every: usual_sampling(Nanos(length), connections as u64),
                    ..Flows::default()
                };
                assert_eq!(flows.check(Nanos(length)), Ok(()), "{connections} {length}");
            }
        }
        usual_sampling(Nanos(u64::MAX), u64::MAX);
    }
}
