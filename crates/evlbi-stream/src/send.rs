//! Sends a recording, a test pattern or a simulated station.

mod changes;
#[cfg(test)]
mod in_virtual_time;
mod prepare;
mod result;
mod seen;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use evlbi_core::pace::{LONGEST_TRAIN, train_length};
use evlbi_core::packetise::Rule;
use evlbi_core::rate::BitRate;
use evlbi_core::shed::{Policy, Replace};
use evlbi_net::cpu::Waiting;
use evlbi_net::run::Run;
use evlbi_net::transmit;
use evlbi_net::transport::Url;
use evlbi_wire::time::FrameRate;

pub use self::prepare::out_options;
use self::prepare::prepare;
pub use self::result::{SendResult, text};
use self::seen::Seen;
use crate::running::Running;
use evlbi_host::host::HostOptions;

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
    /// The bit rate that was asked for.
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
            (Burst::Auto, None) => LONGEST_TRAIN,
        }
    }
}

/// A flow that is being sent.
pub type Sending = Running<Seen, SendResult>;

/// Begins to send: until the source ends, the time is over, or `run` is stopped. A source is read and a connection made before.
///
/// # Errors
/// When the options do not fit together or the source, or it cannot be read, or a socket cannot be had.
pub fn send(options: &SendOptions, run: &Run) -> Result<Sending> {
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
        move || -> Result<SendResult> {
            host.ready_thread(Waiting::SleepThenSpin)?;
            let report = transmit::run(vec![prepared.flow], &run).into_iter().next();
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
                report: report.context("the flow left no report")?.into(),
            })
        }
    })?;
    Ok(Running::new(run, seen, worker))
}
