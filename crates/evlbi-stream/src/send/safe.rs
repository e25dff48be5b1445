//! SafeUDP of a flow: options and result.

use std::time::Duration;

use evlbi_core::rate::BitRate;
use evlbi_core::shed::{Policy, Replace, Stream};
use evlbi_net::run::Run;
use evlbi_net::safe::{Accounts, Key, Mode, START, SafeSending, Settings, Shown, Status, Step};
use evlbi_net::transport::Outgoing;
use evlbi_wire::units::show_count;
use serde::Serialize;

use super::{SendError, SendOptions, ahead};
use crate::control_socket::SafeSent;
use crate::counters::{Counts, SAFE_SENT};
use crate::safe::SafeNotice;

/// Options of SafeUDP.
#[derive(Clone, Debug)]
pub struct SafeOptions {
    /// Protection of the path.
    pub mode: Mode,
    /// The smallest fraction of the data that is of use: no data are sent instead of less.
    pub least: Step,
    /// Time for the application to lower its rate before data are shed.
    pub grace: Duration,
    /// Number of TCP flows that the flow may count as, from 0.01 to 10.
    pub weight: f64,
    /// Whether sending is tried again after a stop.
    pub rearm: bool,
    /// Secret of both ends; `None` only on this host.
    pub key: Option<Key>,
}

impl Default for SafeOptions {
    fn default() -> SafeOptions {
        let Settings {
            mode,
            least,
            grace,
            weight,
            rearm,
            ..
        } = Settings::default();
        SafeOptions {
            mode,
            least,
            grace: Duration::from_nanos(grace.0),
            weight,
            rearm,
            key: None,
        }
    }
}

/// Opens the sending end of SafeUDP, if it was asked for.
pub(super) fn open(
    options: &SendOptions,
    outlet: &dyn Outgoing,
    (rate, datagram_data, stream): (Option<BitRate>, usize, &Stream),
    run: &Run,
) -> Result<Option<SafeSending>, SendError> {
    let Some(asked) = &options.safe else {
        return Ok(None);
    };
    let peer = outlet.peer().filter(|peer| !peer.ip().is_multicast());
    let Some(peer) = peer else {
        return Err(SendError::SafeTransport(options.to.to_string()));
    };
    if options.shed != Policy::None {
        return Err(SendError::SafeShed);
    }
    if options.replace != Replace::Nothing {
        return Err(SendError::SafeReplaced);
    }
    let rate = rate.ok_or(SendError::SafeRate)?;
    let key = match &asked.key {
        Some(key) => key.clone(),
        None if peer.ip().is_loopback() => Key::open(),
        None => return Err(SendError::SafeKey(peer.to_string())),
    };
    let settings = Settings {
        mode: asked.mode,
        least: asked.least,
        grace: asked.grace.into(),
        weight: asked.weight,
        rearm: asked.rearm,
        // Until a planned start, the receiver may start.
        patience: (options.start.and_then(|start| ahead(start, run))).unwrap_or(START),
        rate: rate.get(),
        size: u16::try_from(datagram_data).unwrap_or(u16::MAX),
        first: options.sequence.unwrap_or(0),
        flow: run.clock().random(),
    };
    let shed = (stream.clone(), options.seed);
    let safe = SafeSending::open(&options.to, outlet, (settings, key), shed, run)?;
    // Fails here if the stream cannot be shed in blocks.
    safe.policy(Step::LOWEST)?;
    Ok(Some(safe))
}

/// Result of SafeUDP.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SafeResult {
    /// State and measurements at the end; `None` if the flow was not started.
    #[serde(flatten)]
    pub status: Option<Status>,
    /// Notices to the application, the first thousand.
    pub notices: Vec<SafeNotice>,
    /// Kind of the notice because of which data were held back at the end: `blind`, `stalled`, `refused`, `stopped` (too much loss) or
    /// `failed` (no report at all); `None` if the flow ended as planned. Shed data alone do not count.
    pub cut_off: Option<&'static str>,
    /// Accounts on which both ends agree; `None` if the receiver did not send a last report.
    pub accounts: Option<Accounts>,
}

/// Returns the status of a running flow; `None` before it was started.
pub(super) fn status(shown: &Shown) -> Option<SafeSent> {
    let shown = shown.lock();
    let status = shown.status?;
    Some(SafeSent {
        mode: evlbi_plot::name(&status.mode),
        state: evlbi_plot::name(&status.state),
        notices: shown.latest.iter().map(SafeNotice::of).collect(),
        counts: Counts::of(SAFE_SENT, &status),
    })
}

impl SafeResult {
    /// Formats the accounts and the number of notices.
    pub(super) fn text(&self) -> String {
        let accounts = self.accounts.as_ref().map_or_else(
            || "no last report from the receiver".to_owned(),
            |all| {
                let [unique, lost, host] = [all.unique, all.lost, all.host].map(show_count);
                format!("{unique} datagrams arrived, {lost} lost, {host} of these in its host")
            },
        );
        format!("{accounts}; {} notices", self.notices.len())
    }

    /// Makes the result of a flow that has ended.
    pub(super) fn of(shown: &Shown) -> SafeResult {
        let shown = shown.lock();
        SafeResult {
            status: shown.status,
            notices: shown.notices.iter().map(SafeNotice::of).collect(),
            cut_off: shown.cut_off,
            accounts: shown.accounts,
        }
    }
}
