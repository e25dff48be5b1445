//! Changes a flow while it is sent.

use std::sync::Arc;

use evlbi_core::rate::BitRate;
use evlbi_core::shed::{Policy, Replace, Shed, Stream};
use evlbi_net::transmit::{self, Sent};

use super::{SendError, SendOptions};
use crate::control_socket;

/// State needed to change a flow while it is sent.
pub(super) struct Changes {
    /// Requested rates, in order.
    pub rates: Vec<u64>,
    pub sent: Arc<Sent>,
    pub stream: Stream,
    pub datagram_data: usize,
    /// Options at the start; `shed` is the current policy.
    pub options: SendOptions,
}

impl Changes {
    /// Changes the flow from its next burst.
    pub fn take(&mut self, change: &control_socket::Change) -> Result<(), SendError> {
        let rate: Option<BitRate> = change.rate.as_deref().map(str::parse).transpose()?;
        if rate.is_some() && self.options.pace.rate().is_none() {
            return Err(SendError::NoRate);
        }
        if change.shed.is_some() && self.options.safe.is_some() {
            return Err(SendError::SafeShed);
        }
        if change.rearm && self.options.safe.is_none() {
            return Err(SendError::NotSafe);
        }
        let policy = match &change.shed {
            Some(text) => text.parse()?,
            None => self.options.shed.clone(),
        };
        check_fit(&policy, self.options.replace)?;
        let stream = Stream {
            rate: rate.or(self.stream.rate),
            ..self.stream.clone()
        };
        // What fits depends on the rate.
        let is_new = change.shed.is_some() || matches!(policy, Policy::Fit(_));
        let shed = is_new.then(|| Shed::new(policy.clone(), self.options.seed, &stream));
        let shed = shed.transpose()?;
        let burst = self.options.burst.length(rate, self.datagram_data);
        self.sent.change(transmit::Change {
            rate: rate.map(|rate| (rate, burst)),
            shed,
            rearm: change.rearm,
        });
        self.rates.extend(rate.map(BitRate::get));
        (self.options.shed, self.stream) = (policy, stream);
        Ok(())
    }
}

/// Returns an error if data shed to make room is replaced.
pub fn check_fit(policy: &Policy, replace: Replace) -> Result<(), SendError> {
    if matches!(policy, Policy::Fit(_)) && replace != Replace::Nothing {
        return Err(SendError::FitReplaced);
    }
    Ok(())
}
