//! Sends a recording, a test pattern or a simulated station.
//!
//! Here belong options and result of sending. The thread that sends is in [`evlbi_net::transmit`], where data come from in
//! [`source`](crate::source).

mod changes;
#[cfg(test)]
mod in_virtual_time;
mod prepare;
mod result;
mod seen;

use std::io;
use std::num::TryFromIntError;
use std::sync::Arc;
use std::time::Duration;

use evlbi_core::pace::{MAX_TRAIN, train_length};
use evlbi_core::packetise::{PacketiseError, Rule};
use evlbi_core::rate::{BitRate, BitRateError};
use evlbi_core::shed::{Policy, PolicyError, Replace, ShedError};
use evlbi_net::cpu::Waiting;
use evlbi_net::run::Run;
use evlbi_net::transmit;
use evlbi_net::transport::{NotHonoured, OpenError, Url};
use evlbi_wire::time::FrameRate;
use thiserror::Error;

pub use self::prepare::out_options;
use self::prepare::prepare;
pub use self::result::{SendResult, text};
pub use self::seen::Seen;
use crate::running::Running;
use crate::source::{self, SourceError};
use evlbi_host::host::{HostError, HostOptions};

/// Why a flow is not sent, or goes on as it was.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The source cannot be read.
    #[error("{0}")]
    Source(#[from] SourceError),
    /// The frame rate of the source, which is named, is not known, and nothing else sets the times.
    #[error("the frame rate of {0} cannot be told, so not when its frames are due")]
    RateUnknown(String),
    /// The source, which is named, is raw data, and nothing else sets the times.
    #[error("{0} is raw data (no frames of VDIF or Mark 5B are in it), which has no times")]
    NoTimes(String),
    /// The source, which is named, is generated, and nothing sets its rate.
    #[error("{0} has no rate of its own")]
    PatternRate(String),
    /// The start lies before now: only a warning, since the data leaves at once.
    #[error("the start, {0}, is over")]
    StartOver(jiff::Timestamp),
    /// An option has no effect on the transport.
    #[error("{0}")]
    NotHonoured(#[from] NotHonoured),
    /// A transport of this scheme has no datagrams to cut data into.
    #[error("cutting as bytes has no effect on {0}://")]
    NoDatagrams(&'static str),
    /// The transport cannot be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// The route does not say what it carries.
    #[error("cannot ask for the MTU of the route")]
    MtuUnknown,
    /// Frames cannot be cut so that they fit.
    #[error("{0}")]
    Packetise(#[from] PacketiseError),
    /// A frame must fit a packet, and does not.
    #[error(
        "pudp:// carries whole frames, and {frame} bytes do not fit an MTU of {mtu}: without sequence numbers fragments cannot be put in order"
    )]
    LongFrame {
        /// Length of a frame in bytes.
        frame: usize,
        /// Largest packet in bytes.
        mtu: usize,
    },
    /// Frames get later times when they are sent again, and what is cut as bytes has none.
    #[error("frames cut as bytes cannot be re-timed")]
    Untimed,
    /// What is shed to make room would be replaced.
    #[error("fit: makes room only if nothing is sent in the place of what is shed")]
    FitReplaced,
    /// The stream cannot be shed from as asked.
    #[error("{0}")]
    Shed(#[from] ShedError),
    /// The rate to go on with is none.
    #[error("{0}")]
    Rate(#[from] BitRateError),
    /// The policy to go on with is none.
    #[error("{0}")]
    Policy(#[from] PolicyError),
    /// A rate is asked of a flow that has none.
    #[error(
        "only a flow that was started with a rate has one to change; this one leaves by the times in its frames, or as fast as it can"
    )]
    NoRate,
    /// More memory than this host can address.
    #[error("{0}")]
    TooLarge(#[from] TryFromIntError),
    /// The system gives no thread, or the source cannot be read.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// What is sent, where to, and how. By default as the times in its frames say, and all of it.
#[derive(Clone, Debug)]
pub struct SendOptions {
    /// `FILE`, `pattern:LENGTH` or `sky:PLAN.toml/STATION`.
    pub source: String,
    /// Where to.
    pub to: Url,
    /// What sets the times at which it leaves.
    pub pace: Pace,
    /// Frames per second of a thread, where the source cannot tell.
    pub frame_rate: Option<FrameRate>,
    /// Largest IP packet in bytes; the route's own if none.
    pub mtu: Option<usize>,
    /// How frames are cut into datagrams.
    pub cut: Rule,
    /// What is left out on purpose.
    pub shed: Policy,
    /// Whether that is decided packet by packet, and not frame by frame.
    pub shed_packets: bool,
    /// What goes out in the place of what is shed.
    pub replace: Replace,
    /// Seed of all random choices.
    pub seed: u64,
    /// How often the source is sent.
    pub repeat: u64,
    /// When the first frame leaves; at once if none.
    pub start: Option<jiff::Timestamp>,
    /// Stop after this time.
    pub duration: Option<Duration>,
    /// First sequence number; 0 where nothing is said.
    pub sequence: Option<u64>,
    /// Datagrams back to back.
    pub burst: Burst,
    /// Whether the host may cut datagrams from larger pieces.
    pub offload: bool,
    /// The sending thread and its sockets.
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
            to: Url::anywhere(),
            pace: Pace::RealTime,
            frame_rate: None,
            mtu: None,
            cut: Rule::Frames,
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

/// What sets the times of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Frames leave when their time comes.
    RealTime,
    /// So many bits of data a second.
    Rate(BitRate),
    /// As fast as the host can.
    Max,
}

impl Pace {
    /// Returns the bit rate that was asked for.
    pub fn rate(self) -> Option<BitRate> {
        match self {
            Pace::Rate(rate) => Some(rate),
            Pace::RealTime | Pace::Max => None,
        }
    }
}

/// How many datagrams leave back to back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Burst {
    /// Chosen from the rate.
    Auto,
    /// So many.
    Fixed(u32),
}

impl Burst {
    /// Datagrams with so many bytes of data that leave back to back at this rate, or as fast as the host can.
    fn length(self, rate: Option<BitRate>, datagram: usize) -> u32 {
        match (self, rate) {
            (Burst::Fixed(count), _) => count,
            (Burst::Auto, Some(rate)) => train_length(rate.due(datagram as u64)),
            (Burst::Auto, None) => MAX_TRAIN,
        }
    }
}

/// A flow that is being sent. It fails when this host refuses the thread's processor or priority; what fails later is in the result.
pub type Sending = Running<Seen, Result<SendResult, HostError>>;

/// Begins to send: until the source ends, the time is over, or `run` is stopped. A source is read and a connection made before.
///
/// # Errors
/// When the options do not fit together or the source, or it cannot be read, or a socket cannot be had.
pub fn send(options: &SendOptions, run: &Run) -> Result<Sending, SendError> {
    let run = run.part();
    let prepared = prepare(options, &run)?;
    let (leading_bytes, truncated_bytes) = (prepared.leading, prepared.truncated);
    for (end, bytes) in [("first", leading_bytes), ("last", truncated_bytes)] {
        if bytes > 0 {
            let source = &options.source;
            run.say(format_args!(
                "the {end} {bytes} bytes of {source} are no whole frame and are not sent"
            ));
        }
    }
    let seen = Arc::new(prepared.seen);
    let worker = run.clock().spawn("transmit", {
        let (seen, run, host) = (Arc::clone(&seen), run.clone(), options.host.clone());
        let (source, to) = (options.source.clone(), options.to.to_string());
        move || -> Result<SendResult, HostError> {
            host.ready_thread(Waiting::SleepThenSpin)?;
            let report = transmit::run(vec![prepared.flow], &run).into_iter().next();
            let report = report.unwrap_or_else(|| unreachable!("each flow leaves a report"));
            let mut rates_before_bps = seen.end();
            Ok(SendResult {
                schema: "evlbi.send/1",
                source,
                to,
                mtu: prepared.mtu,
                rate_asked_bps: rates_before_bps.pop(),
                rates_before_bps,
                leading_bytes,
                truncated_bytes,
                padded_bytes: prepared.padded,
                report: report.into(),
            })
        }
    })?;
    Ok(Running::new(run, seen, worker))
}
