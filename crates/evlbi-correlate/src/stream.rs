//! A stream that is correlated as it comes, and what came of it.

use std::sync::Arc;

use evlbi_net::clock::Thread;
use evlbi_net::receive::Receiving;
use evlbi_stream::counters;
use evlbi_stream::drain::Drained;
use serde::Serialize;

use super::feed::Feed;

/// One stream's receiving end.
pub(super) struct Stream {
    pub(super) receiving: Receiving,
    pub(super) drainer: Thread<Drained>,
    pub(super) feed: Arc<Feed>,
}

/// What came of a stream, beside what was correlated.
#[derive(Clone, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StreamResult {
    pub(super) station: String,
    #[serde(flatten)]
    pub(super) counts: counters::Counts,
    /// Frames that came when they had been waited for long enough.
    pub(super) late_frames: u64,
    /// Frames whose times were not believed.
    pub(super) refused_frames: u64,
    /// Why nothing of it was correlated; none where something was.
    pub(super) reason: Option<String>,
    /// Seconds of data that had come when the run was stopped, and were not correlated.
    pub(super) left_s: f64,
    /// How long before the last of all streams its data ended, in seconds: weights are those of the time before.
    pub(super) ended_early_s: f64,
    pub(super) seconds: f64,
    pub(super) rate_bps: f64,
}

impl StreamResult {
    /// The station and why it contributed nothing, if it sent any. A station that sends none may be left out on purpose.
    pub fn nothing(&self) -> Option<String> {
        let reason = self
            .reason
            .as_ref()
            .filter(|_| self.counts.count("bytes") > 0)?;
        Some(format!("{}: {reason}", self.station))
    }
}
