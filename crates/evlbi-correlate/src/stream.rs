//! A stream of a live correlation, and its result.

use std::sync::Arc;

use evlbi_net::clock::Thread;
use evlbi_net::receive::{Receiving, Watch};
use evlbi_stream::counters;
use evlbi_stream::drain::Drained;
use serde::Serialize;

use super::feed::Feed;

/// Receiver and drain of one address: of one stream, or of several that inputs select from it.
pub(super) struct Reception {
    pub(super) receiving: Receiving,
    pub(super) drainer: Thread<Drained>,
}

/// A stream of one input.
pub(super) struct Stream {
    /// Index of its reception.
    pub(super) reception: usize,
    pub(super) watch: Arc<Watch>,
    pub(super) feed: Arc<Feed>,
}

/// Result of a stream, in addition to the correlation.
#[derive(Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StreamResult {
    pub(super) station: String,
    /// Counters of all that was received at its address, also for other inputs.
    #[serde(flatten)]
    pub(super) counts: counters::Counts,
    /// Packets that its sender shed (SafeUDP): they are neither expected nor lost.
    pub(super) shed: u64,
    /// Frames that arrived after the wait for them was over.
    pub(super) late_frames: u64,
    /// Frames with times that were not accepted.
    pub(super) refused_frames: u64,
    /// Reason why nothing of it was correlated; `None` if something was.
    pub(super) reason: Option<String>,
    /// Seconds of data received before the run was stopped, but not correlated.
    pub(super) left_s: f64,
    /// Time by which its data ended before the last of all streams, in seconds; weights refer to the time before.
    pub(super) ended_early_s: f64,
    pub(super) seconds: f64,
    pub(super) rate_bps: f64,
}

impl StreamResult {
    /// Returns the station and the reason if it sent data but contributed nothing. A station that sends none may be left out on purpose.
    pub fn nothing(&self) -> Option<String> {
        let reason = self
            .reason
            .as_ref()
            .filter(|_| self.counts.count("bytes") > 0)?;
        Some(format!("{}: {reason}", self.station))
    }
}
