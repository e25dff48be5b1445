//! Sends a recording, a test pattern or a simulated station.
//!
//! Put here options and results of sending. The sending thread is in [`evlbi_net::transmit`]; [`crate::source`] provides the data.

mod changes;
#[cfg(test)]
mod in_virtual_time;
mod prepare;
mod result;
mod safe;
mod seen;

use std::io;
use std::num::TryFromIntError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evlbi_core::pace::{MAX_TRAIN, train_length};
use evlbi_core::packetise::{PacketiseError, Rule};
use evlbi_core::rate::{BitRate, BitRateError};
use evlbi_core::shed::{Policy, PolicyError, Replace, ShedError};
use evlbi_core::time::Nanos;
use evlbi_net::cpu::Waiting;
use evlbi_net::run::Run;
use evlbi_net::transmit;
use evlbi_net::transport::{NotHonoured, OpenError, Url};
use evlbi_wire::time::FrameRate;
use thiserror::Error;

pub use self::prepare::out_options;
use self::prepare::prepare;
pub use self::result::{SendResult, text};
pub use self::safe::{SafeOptions, SafeResult};
pub use self::seen::Seen;
use crate::running::Running;
use crate::selection::Selection;
use crate::source::{self, SourceError};
use evlbi_host::host::{HostError, HostOptions};

/// Reasons why a flow cannot be sent or changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The source cannot be read.
    #[error("{0}")]
    Source(#[from] SourceError),
    /// The frame rate of the named source is unknown, and nothing else sets the times.
    #[error("the frame rate of {0} is unknown, so its frames cannot be timed")]
    RateUnknown(String),
    /// The named source is raw data, and nothing else sets the times.
    #[error("{0} is raw data without timestamps (neither VDIF, Mark 5B nor Mark 4)")]
    NoTimes(String),
    /// The named source is generated, and nothing sets its rate.
    #[error("{0} has no rate of its own")]
    PatternRate(String),
    /// The start is in the past; only a warning, since the data is then sent at once.
    #[error("the start {0} is in the past")]
    StartOver(jiff::Timestamp),
    /// An option has no effect on the transport.
    #[error("{0}")]
    NotHonoured(#[from] NotHonoured),
    /// A transport of this scheme has no datagrams that data could be cut into.
    #[error("cutting as bytes has no effect on {0}://")]
    NoDatagrams(&'static str),
    /// The transport cannot be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// The MTU of the route is unknown.
    #[error("cannot read the MTU of the route")]
    MtuUnknown,
    /// No cut of the frames fits the packets.
    #[error("{0}")]
    Packetise(#[from] PacketiseError),
    /// A whole frame must fit a packet, and does not.
    #[error(
        "a frame of {frame} bytes does not fit an MTU of {mtu}: pudp:// has no sequence numbers to put the parts of a frame in order"
    )]
    LongFrame {
        /// Length of a frame, in bytes.
        frame: usize,
        /// Maximum packet size, in bytes.
        mtu: usize,
    },
    /// Repeated frames need later times, but data cut as bytes has none.
    #[error("repeated frames cannot get later times if they are cut as bytes")]
    Untimed,
    /// Frames are to be selected, but data cut as bytes has none.
    #[error("frames cannot be selected if they are cut as bytes")]
    SelectedBytes,
    /// Data shed to make room would be replaced.
    #[error("fit: cannot be used with replacement data, which would fill the link again")]
    FitReplaced,
    /// The policy cannot be applied to the stream.
    #[error("{0}")]
    Shed(#[from] ShedError),
    /// SafeUDP chooses what is shed, and another policy was given.
    #[error("SafeUDP decides what is shed, so no policy can be given")]
    SafeShed,
    /// A flow without SafeUDP has not stopped, so it cannot try again.
    #[error("the flow is not under SafeUDP, so there is no stop to end")]
    NotSafe,
    /// SafeUDP sheds data, and these would be replaced.
    #[error(
        "SafeUDP cannot be used with replacement data, which would take the place of shed data"
    )]
    SafeReplaced,
    /// SafeUDP without a key, over a network.
    #[error("SafeUDP needs a key for reports from {0}")]
    SafeKey(String),
    /// SafeUDP over a transport with a congestion control of its own, or without a way back.
    #[error("SafeUDP cannot control {0}")]
    SafeTransport(String),
    /// SafeUDP for a flow without a rate.
    #[error("SafeUDP needs a rate, and this flow has none")]
    SafeRate,
    /// The new rate is invalid.
    #[error("{0}")]
    Rate(#[from] BitRateError),
    /// The new policy is invalid.
    #[error("{0}")]
    Policy(#[from] PolicyError),
    /// The flow has no rate that could be changed.
    #[error("cannot change the rate: this flow was started without a rate")]
    NoRate,
    /// The size exceeds the address space of this host.
    #[error("{0}")]
    TooLarge(#[from] TryFromIntError),
    /// The system cannot start a thread, or the source cannot be read.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// Options of [`send()`]. By default all frames are sent, at the times in their headers.
#[derive(Clone, Debug)]
pub struct SendOptions {
    /// `FILE`, `pattern:LENGTH` or `sky:PLAN.toml/STATION`.
    pub source: String,
    /// Stations and threads of the file to send, and its year.
    pub selection: Selection,
    /// Transport and destination.
    pub to: Url,
    /// Timing of the data.
    pub pace: Pace,
    /// Frames per second of a thread, if the source does not contain it.
    pub frame_rate: Option<FrameRate>,
    /// Maximum IP packet size, in bytes; `None` for the MTU of the route.
    pub mtu: Option<usize>,
    /// Rule for cutting frames into datagrams.
    pub cut: Rule,
    /// Congestion control; `None` for none.
    pub safe: Option<SafeOptions>,
    /// Policy for shedding data.
    pub shed: Policy,
    /// Whether the policy chooses packets instead of frames.
    pub shed_packets: bool,
    /// Replacement for shed data.
    pub replace: Replace,
    /// Seed of all random choices.
    pub seed: u64,
    /// Number of times the source is sent.
    pub repeat: u64,
    /// Time of the first frame; `None` to start at once.
    pub start: Option<jiff::Timestamp>,
    /// Stop after this time.
    pub duration: Option<Duration>,
    /// First sequence number; `None` for 0.
    pub sequence: Option<u64>,
    /// Number of datagrams per burst.
    pub burst: Burst,
    /// Whether the host may split larger pieces into datagrams.
    pub offload: bool,
    /// Settings of the sending thread and its sockets.
    pub host: HostOptions,
}

impl SendOptions {
    /// Reports whether the source is generated and nothing sets its rate.
    pub fn lacks_rate(&self) -> bool {
        let has_pace = self.pace != Pace::RealTime || self.frame_rate.is_some();
        self.source.starts_with(source::PATTERN) && !has_pace
    }
}

impl Default for SendOptions {
    fn default() -> SendOptions {
        SendOptions {
            source: String::new(),
            selection: Selection::default(),
            to: Url::anywhere(),
            pace: Pace::RealTime,
            frame_rate: None,
            mtu: None,
            cut: Rule::Frames,
            safe: None,
            shed: Policy::None,
            shed_packets: false,
            replace: Replace::Nothing,
            seed: 1,
            repeat: 1,
            start: None,
            duration: None,
            sequence: None,
            burst: Burst::Auto,
            offload: true,
            host: HostOptions::default(),
        }
    }
}

/// Timing of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Frames are sent at the times in their headers.
    RealTime,
    /// A constant bit rate of the data.
    Rate(BitRate),
    /// Maximum speed of the host.
    Max,
}

impl Pace {
    /// Returns the requested bit rate.
    pub fn rate(self) -> Option<BitRate> {
        match self {
            Pace::Rate(rate) => Some(rate),
            Pace::RealTime | Pace::Max => None,
        }
    }
}

/// Number of datagrams sent back to back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Burst {
    /// Chosen from the rate.
    Auto,
    /// A fixed number.
    Fixed(u32),
}

impl Burst {
    /// Returns the number of datagrams per burst, for `datagram` bytes of data each at this rate, or at maximum speed.
    fn length(self, rate: Option<BitRate>, datagram: usize) -> u32 {
        match (self, rate) {
            (Burst::Fixed(count), _) => count,
            (Burst::Auto, Some(rate)) => train_length(rate.due(datagram as u64)),
            (Burst::Auto, None) => MAX_TRAIN,
        }
    }
}

/// A flow that is being sent. It fails if this host refuses the thread's CPU or priority; later failures are in the result.
pub type Sending = Running<Seen, Result<SendResult, HostError>>;

/// Rate and datagrams of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bit rate of the data; `None` for the maximum of the host.
    pub rate: Option<BitRate>,
    /// Data per datagram, in bytes.
    pub datagram_data: usize,
}

/// Returns the time until this one; `None` if it is over.
fn ahead(asked: jiff::Timestamp, run: &Run) -> Option<Nanos> {
    let ahead = asked.as_nanosecond() - i128::from(run.clock().utc());
    u64::try_from(ahead).ok().map(Nanos)
}

/// Prepares a flow as [`send()`] does, and sends nothing. Returns its rate and its datagrams.
///
/// # Errors
/// Returns the errors of [`send()`].
pub fn check(options: &SendOptions, run: &Run) -> Result<Shape, SendError> {
    let prepared = prepare(options, &run.part())?;
    Ok(Shape {
        rate: prepared.rate,
        datagram_data: prepared.datagram_data,
    })
}

/// Starts to send until the source ends, the time is over, or `run` is stopped. Reads the source and connects before it returns.
///
/// # Errors
/// Returns an error if options conflict or do not fit the source, the source cannot be read, or a socket cannot be opened.
pub fn send(options: &SendOptions, run: &Run) -> Result<Sending, SendError> {
    let run = run.part();
    let prepared = prepare(options, &run)?;
    let (leading_bytes, truncated_bytes) = (prepared.leading, prepared.truncated);
    for (end, bytes) in [("first", leading_bytes), ("last", truncated_bytes)] {
        if bytes > 0 {
            let source = &options.source;
            run.say(format_args!(
                "the {end} {bytes} bytes of {source} are not a whole frame and are not sent"
            ));
        }
    }
    let seen = Arc::new(prepared.seen);
    let worker = run.clock().spawn("transmit", {
        let (seen, run, host) = (Arc::clone(&seen), run.clone(), options.host.clone());
        let source = options.selection.written(&options.source);
        let to = options.to.to_string();
        move || -> Result<SendResult, HostError> {
            host.ready_thread(Waiting::SleepThenSpin)?;
            let report = transmit::run(vec![prepared.flow], &run).into_iter().next();
            let report = report.unwrap_or_else(|| unreachable!("each flow leaves a report"));
            let left_out = |count: &AtomicU64| count.load(Ordering::Relaxed);
            let mut rates_before_bps = seen.end();
            Ok(SendResult {
                schema: "evlbi.send/1",
                source,
                to,
                mtu: prepared.mtu,
                rate_asked_bps: rates_before_bps.pop(),
                rates_before_bps,
                leading_bytes,
                truncated_bytes: truncated_bytes + left_out(&prepared.left_out.truncated),
                unselected_frames: left_out(&prepared.left_out.unselected),
                padded_bytes: prepared.padded,
                safe: prepared.safe.as_ref().map(SafeResult::of),
                report: report.into(),
            })
        }
    })?;
    Ok(Running::new(run, seen, worker))
}
