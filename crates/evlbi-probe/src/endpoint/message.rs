//! Control messages between the endpoints of a test, one after another over a [`Channel`](crate::measure::Channel).
//!
//! Authentication: the responder sends a hello, the client proves that it holds the token, and the responder welcomes it with its limits,
//! or refuses.
//!
//! Any number of tests follow:
//!
//! 1. The client requests a test. The responder may make it wait; then it opens a socket, or refuses.
//! 2. The client sends requests to the socket, and `Start`. The responder confirms their arrival, or refuses, and answers further ones.
//! 3. The client sends `Go`. The sender of a stream reports at the end how much it sent.
//! 4. The client reports when it has sent all, and the responder reports what it sent, received and counted.
//!
//! Each endpoint sends a keepalive every second, with the number of arrivals. Silence ends the test.

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
/// Maximum number of datagrams that a test keeps one by one.
pub(super) const MAX_KEPT: u64 = 1_000_000;
/// Minimum window of a stream.
const MIN_WINDOW: Nanos = Nanos(50_000_000);
/// Maximum number of unsettled windows.
const MAX_WAITING: u64 = 100;
/// Rate for clock requests, in bits per second, with a margin.
const CLOCK_RATE: BitRate = BitRate::new(1_000_000).unwrap();
/// Maximum number of threads that compete with a receiver.
const MAX_TASKS: u32 = 256;
/// Maximum loss timeout.
const MAX_TIMEOUT: Nanos = Nanos(60_000_000_000);

/// Request for a test.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Test {
    /// Stream from the client to the responder.
    pub there: Option<Stream>,
    /// Stream from the responder to the client.
    pub back: Option<Stream>,
    /// Requests from the client to the responder, instead of a stream.
    pub requests: Option<Requests>,
    /// TCP connections, for [`Test::max_time`].
    pub flows: Option<Flows>,
    /// Time from the start of the connections to that of the streams.
    pub delay: Nanos,
    /// Maximum length of the streams, even if they have not sent all: it is the length of streams without a spacing.
    #[serde(rename = "most_time")]
    pub max_time: Nanos,
    /// Requested receive buffer of both endpoints.
    pub buffer: Option<usize>,
    /// Whether the kernels may join received datagrams (GRO).
    pub join: bool,
    /// DSCP of both endpoints' datagrams.
    pub dscp: Option<u8>,
    /// Width of the bins of times, in nanoseconds.
    pub bin_width: Option<u64>,
    /// Datagrams per window, if streams are counted in windows that are reported as they are settled.
    pub window: Option<u64>,
    /// Datagrams to keep one by one.
    pub keep: Option<Keep>,
    /// Extra load of the receiver.
    pub burden: Option<Burden>,
    /// Loss timeout of a datagram.
    #[serde(rename = "patience")]
    pub timeout: Nanos,
    /// Maximum wait for other clients' tests.
    pub queue: Nanos,
}

/// Requests that are answered one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Their number.
    pub count: u64,
    /// Length of each, and of its reply, in bytes.
    pub size: usize,
    /// Time from one to the next.
    pub apart: Nanos,
}

/// Extra load of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Burden {
    /// Nice value of the receiving thread; `None` for that of its program.
    pub nice: Option<i8>,
    /// Number of competing threads that never sleep.
    pub tasks: u32,
    /// Nice value of these threads.
    pub tasks_nice: i8,
}

/// Datagrams to keep one by one, in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// Number of datagrams to skip first.
    pub skip: u64,
    /// Number of datagrams to keep then.
    pub limit: u64,
}

/// Limits of a responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bits per second on Ethernet of all concurrent tests, in the busier direction; `None` for any rate.
    pub rate: Option<BitRate>,
    /// Maximum length of a test.
    pub duration: Nanos,
    /// Maximum number of concurrent tests.
    pub tests: u32,
    /// Whether tests may load the responder's CPUs.
    pub burdens: bool,
}

/// Reason why a test is invalid, or not allowed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TestError {
    /// A stream is invalid.
    #[error("{0}")]
    Stream(#[from] StreamError),
    /// Too many datagrams are to be kept.
    #[error("cannot keep {0} datagrams one by one: the maximum is {MAX_KEPT}")]
    Keep(u64),
    /// The loss timeout is too long.
    #[error("loss timeout too long: the maximum is {} s", MAX_TIMEOUT.as_secs_f64())]
    Patience,
    /// The DSCP is out of range.
    #[error("invalid DSCP {0}: give 0 to 63")]
    Class(u8),
    /// Windows are too short.
    #[error("window too short: the minimum is {} s, and a hundredth of the loss timeout", MIN_WINDOW.as_secs_f64())]
    Window,
    /// Too few connections, or too many.
    #[error("invalid number of connections {0}: give 1 to 64")]
    Flows(usize),
    /// The name cannot be that of a congestion control algorithm.
    #[error("invalid congestion control algorithm `{0}`")]
    Algorithm(String),
    /// A message is too short for its header, or too long.
    #[error("invalid message length {0}: give 16 to 1048576 bytes")]
    Message(usize),
    /// A write is empty, or too long.
    #[error("invalid write length {0}: give 1 to 1048576 bytes")]
    Write(usize),
    /// The buffers are too large.
    #[error("the buffers of all connections exceed 16 GiB")]
    Buffers,
    /// Files go over one connection, as bytes.
    #[error("a file needs a single connection in one direction, without a rate")]
    Files,
    /// Too many samples.
    #[error(
        "connections can be sampled every 0.1 ms at most, and {MAX_SAMPLES} times in total: use a longer interval, or a shorter test"
    )]
    Samples,
    /// The extra load is out of range.
    #[error(
        "invalid load: nice values are -20 to 19, and the maximum is {MAX_TASKS} competing tasks"
    )]
    Burden,
    /// The responder allows no extra load.
    #[error("this responder allows no competing load")]
    NoBurdens,
    /// It lasts too long.
    #[error("the test would last {0:.1} s, and this responder allows {1:.1} s")]
    Duration(f64, f64),
    /// It is too fast.
    #[error("{asked:.3} Mbit/s on the wire is more than this responder allows, {most:.3} Mbit/s", asked = .0 / 1e6, most = .1.get() as f64 / 1e6)]
    Rate(f64, BitRate),
    /// Its rate is not limited.
    #[error("the test sends as fast as it can, and this responder allows {most:.3} Mbit/s on the wire", most = .0.get() as f64 / 1e6)]
    NoRate(BitRate),
}

impl Test {
    /// Checks that it is valid, for any responder.
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
            if shortest < MIN_WINDOW || shortest.0 < self.timeout.0 / MAX_WAITING {
                return Err(TestError::Window);
            }
        }
        if let Some(keep) = &self.keep
            && keep.limit > MAX_KEPT
        {
            return Err(TestError::Keep(keep.limit));
        }
        if let Some(flows) = &self.flows {
            flows.check(self.max_time)?;
        }
        if self.timeout > MAX_TIMEOUT {
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

    /// Returns whether the client sends data whose arrival the responder reports.
    pub fn gives(&self) -> bool {
        let flows = self.flows.as_ref();
        self.there.is_some() || flows.is_some_and(|flows| !flows.there.is_empty())
    }

    fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.there.iter().chain(&self.back)
    }

    /// Returns the maximum duration of its streams.
    pub fn duration(&self) -> Nanos {
        let longest = self.streams().map(Stream::duration).max();
        let is_unspaced = self.streams().any(|stream| stream.rate().is_none());
        match longest {
            Some(longest) if !is_unspaced && self.flows.is_none() => longest.min(self.max_time),
            _ => self.max_time,
        }
    }

    /// Returns the rate of the faster direction on Ethernet, in bits per second; `None` if a stream is as fast as its host can.
    pub fn wire_rate(&self) -> Option<f64> {
        let mut rates = self.wire_rates().into_iter();
        rates.try_fold(0.0, |most, rate| Some(f64::max(most, rate?)))
    }

    /// Returns the rate of each direction on Ethernet, outbound and return, with requests and their replies.
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

    /// Returns the maximum rate of the replies' payload, in bits per second: above the requested one, as requests arrive unevenly, and
    /// enough for clock requests.
    pub fn reply_rate(&self) -> BitRate {
        let asked = self.requests_wire_rate() * 1.1;
        BitRate::new(asked as u64)
            .unwrap_or(CLOCK_RATE)
            .max(CLOCK_RATE)
    }
}

impl Limits {
    /// Checks that the limits allow a test, if no others are running.
    ///
    /// # Errors
    /// [`TestError`] with the reason if not.
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
        match test.wire_rate() {
            None => Err(TestError::NoRate(most)),
            Some(rate) if rate > most.get() as f64 => Err(TestError::Rate(rate, most)),
            Some(_) => Ok(()),
        }
    }
}

/// Report of one endpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EndpointReport {
    /// Report of the stream that it sent.
    pub departed: Option<Departed>,
    /// Report of what it received.
    pub listened: Listened,
    /// Counters of its host during the test.
    pub host: Observed,
    /// Its interface, if known.
    pub interface: Option<String>,
    /// Its endpoints of TCP connections.
    pub flows: Option<FlowsEnd>,
}

/// Message of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromClient {
    /// The answer to a hello.
    Proof {
        /// Version of the messages.
        version: u32,
        /// Number used once.
        nonce: Nonce,
        /// Proof that it holds the token.
        proof: [u8; MAC_LEN],
    },
    /// Requests a test.
    Open(Box<Test>),
    /// Its socket is ready.
    Start {
        /// Port of its socket, unless a datagram from it arrives from another.
        port: u16,
    },
    /// The streams shall start.
    Go,
    /// Keepalive.
    Alive {
        /// Distinct datagrams of the incoming stream, or bytes of the connections.
        unique: u64,
        /// Numbers that its own stream has used.
        used: u64,
    },
    /// It has sent all.
    Over {
        /// Numbers that its stream has used.
        used: u64,
        /// Whether it was stopped, and does not wait for missing datagrams.
        #[serde(default)]
        is_in_haste: bool,
    },
}

/// Message of a responder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromResponder {
    /// The first message.
    Hello {
        /// Version of the messages.
        version: u32,
        /// Number used once.
        nonce: Nonce,
    },
    /// The client is authenticated.
    Welcome {
        /// The limits.
        limits: Limits,
    },
    /// Refusal.
    Refused {
        /// The reason.
        reason: String,
    },
    /// Other tests leave no room yet.
    Waiting {
        /// The reason.
        reason: String,
    },
    /// The socket is ready.
    Opened {
        /// Key of its datagrams.
        key: u64,
        /// Port of its socket.
        port: u16,
        /// Port for TCP connections.
        door: Option<u16>,
        /// Interface of the socket, if known.
        interface: Option<String>,
    },
    /// It answers requests now.
    Started,
    /// Keepalive.
    Alive {
        /// Distinct datagrams of the incoming stream, or bytes of the connections.
        unique: u64,
        /// Numbers that its own stream has used.
        used: u64,
        /// Numbers of these that were not sent because its kernel refused the datagrams.
        not_sent: u64,
        /// Counters of its host since the start, if the client settles windows of its stream.
        host: Option<Box<Counters>>,
    },
    /// A window of the incoming stream is settled.
    Window {
        /// The window.
        window: Box<Window>,
        /// Counters of its host since the start.
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
            max_time: Nanos(u64::MAX),
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
            fast.contains("1034.389 Mbit/s") && fast.contains("1000.000 Mbit/s"),
            "{fast}"
        );
        let long = said(&test(942_080_000, 50_000_000));
        assert!(
            long.contains("625.0 s") && long.contains("10.0 s"),
            "{long}"
        );
        let mut unspaced = test(1, 1);
        unspaced.there.as_mut().unwrap().spacing = Spacing::Nanoseconds(0);
        unspaced.max_time = Nanos::SECOND;
        assert!(said(&unspaced).contains("as fast as it can"));
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
                timeout: Nanos(u64::MAX),
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
