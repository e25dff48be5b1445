//! What both ends of a test tell each other, one message after the other over a
//! [`Channel`](crate::measure::Channel).
//!
//! The responder says hello, the client proves that it knows the token, the responder welcomes it with its limits, or
//! refuses. Then, as often as the client likes: it asks for a test; the responder may have it wait, and opens a socket or
//! refuses; the client sends requests to the socket and says start; the responder has heard them, or not, and answers
//! further ones; the client says go; whoever sends a stream tells at its end how much that was; the
//! client says when it has sent all, and the responder what it sent, received and counted. Each end says every second that
//! it is there, and how much has arrived: who hears nothing ends the test.

use evlbi_core::packetise::Family;
use evlbi_core::rate::BitRate;
use evlbi_core::shed::wire_bytes;
use evlbi_core::time::Nanos;
use evlbi_net::host::Counters;
use evlbi_net::tcp::MAX_SAMPLES;
use serde::{Deserialize, Serialize};

use super::{Departed, Flows, FlowsEnd, Listened, Observed, Window};
use crate::measure::{MAC_LEN, Nonce, Stream, StreamError};

/// Version of the messages.
pub const VERSION: u32 = 2;
/// Datagrams that a test keeps one by one, at most.
pub(super) const MAX_KEPT: u64 = 1_000_000;
/// Shortest window of a stream.
const MIN_WINDOW: Nanos = Nanos(50_000_000);
/// Windows that may be waiting to be settled.
const MAX_WAITING: u64 = 100;
/// Bits per second of the requests that tell how the clocks lie, and more.
const CLOCK_RATE: BitRate = BitRate::new(1_000_000).unwrap();
/// Threads that compete with a receiver, at most.
const MAX_TASKS: u32 = 256;
/// Longest time that a datagram is waited for.
const MAX_TIMEOUT: Nanos = Nanos(60_000_000_000);

/// What a client wants to test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Test {
    /// From the client to the responder.
    pub there: Option<Stream>,
    /// From the responder to the client.
    pub back: Option<Stream>,
    /// From the client to the responder, to be answered, instead of a stream.
    pub requests: Option<Requests>,
    /// TCP connections, for [`Test::most_time`].
    pub flows: Option<Flows>,
    /// Streams begin so long after the connections.
    pub delay: Nanos,
    /// Streams end after this time even if they have not sent all: of those without a spacing it is the length.
    pub most_time: Nanos,
    /// Receive buffer to ask for at either end.
    pub buffer: Option<usize>,
    /// Whether the kernels may join datagrams on their way up.
    pub join: bool,
    /// Class of service of what both ends send.
    pub dscp: Option<u8>,
    /// Width of the bins of times in nanoseconds.
    pub bin_width: Option<u64>,
    /// Datagrams of a window, where streams are accounted for in windows that are told as they are settled.
    pub window: Option<u64>,
    /// Datagrams to be kept one by one.
    pub keep: Option<Keep>,
    /// What makes the receiver's work harder.
    pub burden: Option<Burden>,
    /// How long a datagram is waited for.
    pub patience: Nanos,
    /// How long the client waits for others' tests to end.
    pub queue: Nanos,
}

/// Requests that are answered one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// How many.
    pub count: u64,
    /// Length of each, and of its reply, in bytes.
    pub size: usize,
    /// Time from one to the next.
    pub apart: Nanos,
}

/// What makes a receiver's work harder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Burden {
    /// How readily the receiving thread leaves its processor to others; else as its program does.
    pub nice: Option<i8>,
    /// Threads that compete with it and never rest.
    pub tasks: u32,
    /// How readily these leave their processors.
    pub tasks_nice: i8,
}

/// Which datagrams are kept one by one, in the order of their arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// So many of the first are not.
    pub skip: u64,
    /// And then so many are.
    pub limit: u64,
}

/// What a responder allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bits per second on an Ethernet of all tests at once, in the fuller direction; any rate if none.
    pub rate: Option<BitRate>,
    /// Longest test.
    pub duration: Nanos,
    /// Tests at once.
    pub tests: u32,
    /// Whether tests may make the responder's work harder.
    pub burdens: bool,
}

/// Why a test cannot be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TestError {
    /// A stream cannot be.
    #[error("{0}")]
    Stream(#[from] StreamError),
    /// More is to be kept than may be.
    #[error("{0} datagrams are to be kept one by one, and {MAX_KEPT} are the most")]
    Keep(u64),
    /// A datagram is to be waited for too long.
    #[error("a datagram is waited for {} s at most", MAX_TIMEOUT.as_secs_f64())]
    Patience,
    /// There is no such class.
    #[error("{0} is no class of service (DSCP): 0 to 63")]
    Class(u8),
    /// Windows are too short.
    #[error("windows last {} s at least, and a hundredth of the time that a datagram is waited for", MIN_WINDOW.as_secs_f64())]
    Window,
    /// Too few connections, or too many.
    #[error("{0} connections: 1 to 64 can be tested at once")]
    Flows(usize),
    /// A name that no congestion control has.
    #[error("`{0}` is no name of a congestion control")]
    Algorithm(String),
    /// Too short for its header, or too long.
    #[error("a message of {0} bytes: 16 to 1048576 can be")]
    Message(usize),
    /// Nothing, or too much, is handed over at once.
    #[error("{0} bytes are to be handed over at once: 1 to 1048576 can be")]
    Write(usize),
    /// Too much room.
    #[error("the buffers of all connections would be more than 16 GiB")]
    Buffers,
    /// Files go over one connection, as bytes.
    #[error("a file goes over one connection in one direction, as fast as it goes")]
    Files,
    /// Too many samples.
    #[error(
        "connections are looked at every 0.1 ms at most, and {MAX_SAMPLES} times in all at most: do so less often, or test for a shorter time"
    )]
    Samples,
    /// Such a burden cannot be.
    #[error("a nice value is -20 to 19, and {MAX_TASKS} competing tasks are the most")]
    Burden,
    /// No burdens here.
    #[error("this responder runs no competing load")]
    NoBurdens,
    /// It lasts too long.
    #[error("the test would last {0:.1} s, and this responder allows {1:.1} s")]
    Duration(f64, f64),
    /// It is too fast.
    #[error("{0} on the wire are more than this responder allows: {1}")]
    Rate(String, BitRate),
}

impl Test {
    /// Says what is wrong with it by itself, if anything.
    ///
    /// # Errors
    /// [`TestError`].
    pub fn check(&self) -> Result<(), TestError> {
        for stream in self.streams() {
            stream.check()?;
        }
        if let Some(window) = self.window {
            let length = |stream: &Stream| stream.due(window);
            let shortest = self.streams().map(length).min().unwrap_or_default();
            if shortest < MIN_WINDOW || shortest.0 < self.patience.0 / MAX_WAITING {
                return Err(TestError::Window);
            }
        }
        if let Some(keep) = &self.keep
            && keep.limit > MAX_KEPT
        {
            return Err(TestError::Keep(keep.limit));
        }
        if let Some(flows) = &self.flows {
            flows.check(self.most_time)?;
        }
        if self.patience > MAX_TIMEOUT {
            return Err(TestError::Patience);
        }
        let burden = self.burden.unwrap_or_default();
        let mut nices = burden.nice.into_iter().chain([burden.tasks_nice]);
        if burden.tasks > MAX_TASKS || !nices.all(|nice| (-20..=19).contains(&nice)) {
            return Err(TestError::Burden);
        }
        match self.dscp {
            Some(class) if class > 63 => Err(TestError::Class(class)),
            _ => Ok(()),
        }
    }

    /// Whether the client sends what the responder says to have arrived.
    pub fn gives(&self) -> bool {
        let flows = self.flows.as_ref();
        self.there.is_some() || flows.is_some_and(|flows| !flows.there.is_empty())
    }

    fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.there.iter().chain(&self.back)
    }

    /// How long its streams send, at most.
    pub fn duration(&self) -> Nanos {
        let longest = self.streams().map(Stream::duration).max();
        let is_unspaced = self.streams().any(|stream| stream.rate().is_none());
        match longest {
            Some(longest) if !is_unspaced && self.flows.is_none() => longest.min(self.most_time),
            _ => self.most_time,
        }
    }

    /// Bits per second on an Ethernet of the faster way; none where a stream is as fast as its host can.
    pub fn wire_rate(&self) -> Option<f64> {
        let mut rates = self.wire_rates().into_iter();
        rates.try_fold(0.0, |most, rate| Some(f64::max(most, rate?)))
    }

    /// The same of each way, to the responder and back, with requests and their replies.
    pub fn wire_rates(&self) -> [Option<f64>; 2] {
        let of = |stream: &Option<Stream>| match stream {
            Some(stream) => stream.wire_rate(Family::V4),
            None => Some(0.0),
        };
        let requests = self.requests_wire_rate();
        let [there, back] = match &self.flows {
            Some(flows) => flows.wire_rates(),
            None => [Some(0.0); 2],
        };
        [(&self.there, there), (&self.back, back)]
            .map(|(stream, flows)| Some(of(stream)? + flows? + requests))
    }

    fn requests_wire_rate(&self) -> f64 {
        self.requests.map_or(0.0, |all| {
            wire_bytes(all.size, Family::V4) as f64 * 8e9 / all.apart.0.max(1) as f64
        })
    }

    /// Most bits per second of the replies' payload: somewhat more than was asked for, as requests come unevenly, and
    /// enough for those that tell of the clock.
    pub fn reply_rate(&self) -> BitRate {
        let asked = self.requests_wire_rate() * 1.1;
        BitRate::new(asked as u64)
            .unwrap_or(CLOCK_RATE)
            .max(CLOCK_RATE)
    }
}

impl Limits {
    /// Whether a test may be by itself.
    ///
    /// # Errors
    /// [`TestError`] that says why not.
    pub fn allow(&self, test: &Test) -> Result<(), TestError> {
        test.check()?;
        if test.burden.is_some() && test.there.is_some() && !self.burdens {
            return Err(TestError::NoBurdens);
        }
        let duration = test.duration();
        if duration > self.duration {
            let [asked, most] = [duration, self.duration].map(Nanos::as_secs_f64);
            return Err(TestError::Duration(asked, most));
        }
        let Some(most) = self.rate else {
            return Ok(());
        };
        let asked = match test.wire_rate() {
            None => "as many datagrams or bytes as the host can send".to_owned(),
            Some(rate) if rate > most.get() as f64 => format!("{:.3} Mbit/s", rate / 1e6),
            Some(_) => return Ok(()),
        };
        Err(TestError::Rate(asked, most))
    }
}

/// What one end sent, received and counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EndpointReport {
    /// Of the stream that it sent.
    pub departed: Option<Departed>,
    /// Of what came.
    pub listened: Listened,
    /// What its host counted meanwhile.
    pub host: Observed,
    /// Its interface, where that is known.
    pub interface: Option<String>,
    /// Its ends of TCP connections.
    pub flows: Option<FlowsEnd>,
}

/// What a client says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromClient {
    /// The answer to a hello.
    Proof {
        /// Of the messages.
        version: u32,
        /// Used once.
        nonce: Nonce,
        /// That it knows the token.
        proof: [u8; MAC_LEN],
    },
    /// A test is asked for.
    Open(Box<Test>),
    /// Its socket is there.
    Start {
        /// Of its socket, where nothing that comes from it tells another.
        port: u16,
    },
    /// The streams shall begin.
    Go,
    /// It is there.
    Alive {
        /// Distinct datagrams of the stream to it, or bytes of the connections.
        unique: u64,
        /// Numbers of its own stream that it has used.
        used: u64,
    },
    /// It has sent all.
    Over {
        /// Numbers of its stream that it has used.
        used: u64,
        /// Whether it was stopped, and does not wait for missing datagrams.
        #[serde(default)]
        is_in_haste: bool,
    },
}

/// What a responder says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromResponder {
    /// The first message.
    Hello {
        /// Of the messages.
        version: u32,
        /// Used once.
        nonce: Nonce,
    },
    /// The client knows the token.
    Welcome {
        /// What is allowed.
        limits: Limits,
    },
    /// Not so.
    Refused {
        /// Why.
        reason: String,
    },
    /// Others' tests leave no room yet.
    Waiting {
        /// For what.
        reason: String,
    },
    /// The socket is there.
    Opened {
        /// Of its datagrams.
        key: u64,
        /// Of its socket.
        port: u16,
        /// Of the door to which TCP connections come.
        door: Option<u16>,
        /// The interface that it has the socket at, where that is known.
        interface: Option<String>,
    },
    /// It answers requests now.
    Started,
    /// It is there.
    Alive {
        /// Distinct datagrams of the stream to it, or bytes of the connections.
        unique: u64,
        /// Numbers of its own stream that it has used.
        used: u64,
        /// Of these, not sent: its kernel refused them.
        not_sent: u64,
        /// What its host has counted since the beginning, where windows of its own stream are settled by the client.
        host: Option<Box<Counters>>,
    },
    /// A window of the stream to it is settled.
    Window {
        /// What it is.
        window: Box<Window>,
        /// What its host has counted since the beginning.
        host: Box<Counters>,
    },
    /// It has sent all of its stream.
    Sent(Box<Departed>),
    /// The test is over.
    Done(Box<EndpointReport>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Spacing;

    fn test(rate: u64, count: u64) -> Test {
        Test {
            there: Some(Stream {
                size: 1472,
                spacing: Spacing::BitsPerSecond(BitRate::new(rate).unwrap()),
                burst: 1,
                count,
            }),
            most_time: Nanos(u64::MAX),
            ..Test::default()
        }
    }

    #[test]
    fn no_more_than_is_allowed() {
        let limits = Limits {
            rate: BitRate::new(1_000_000_000),
            duration: Nanos(10_000_000_000),
            tests: 4,
            burdens: false,
        };
        // 942.08 Mbit/s of payload are 984.32 on the wire.
        assert_eq!(limits.allow(&test(942_080_000, 500_000)), Ok(()));
        let said = |test: &Test| limits.allow(test).unwrap_err().to_string();
        let fast = said(&test(990_000_000, 1));
        assert!(
            fast.contains("1034.389 Mbit/s") && fast.contains("1G"),
            "{fast}"
        );
        let long = said(&test(942_080_000, 50_000_000));
        assert!(
            long.contains("625.0 s") && long.contains("10.0 s"),
            "{long}"
        );
        let mut unspaced = test(1, 1);
        unspaced.there.as_mut().unwrap().spacing = Spacing::Nanoseconds(0);
        unspaced.most_time = Nanos::SECOND;
        assert!(said(&unspaced).contains("as many"));
        let free = Limits {
            rate: None,
            ..limits
        };
        assert_eq!(free.allow(&unspaced), Ok(()));
        let cases = [
            Test {
                dscp: Some(64),
                ..Test::default()
            },
            Test {
                keep: Some(Keep {
                    skip: 0,
                    limit: u64::MAX,
                }),
                ..Test::default()
            },
            Test {
                patience: Nanos(u64::MAX),
                ..Test::default()
            },
            Test {
                there: Some(Stream {
                    size: 8,
                    ..test(1, 1).there.unwrap()
                }),
                ..Test::default()
            },
        ];
        for case in cases {
            assert!(limits.allow(&case).is_err(), "{case:?}");
        }
    }
}
