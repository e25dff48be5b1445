//! Monitoring of a path for hours or days, window by window, with results in an SQLite file (`evlbi watch`).
//!
//! The work and storage of a campaign belong here; a new version of the tables is another SQL file. Reporting is in
//! [`report`](crate::report).

pub(crate) mod store;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use evlbi_core::account::{Report, Summary};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_net::run::{Progress, Run};
use evlbi_net::udp::SendCounts;
use evlbi_wire::units::{show_count, show_rate};
use serde::Serialize;
use smart_default::SmartDefault;

use self::store::Store;
pub use self::store::{Plan, Row, StoreError, Stretch, TablesError};
use crate::direction::Direction;
use crate::endpoint::Test;
use crate::measure::{Attribution, Spacing, Stream, StreamError, Tallied};
use crate::point::{self, Evidence, on_the_wire};
use crate::session::{Event, Session, SessionError, Settled, Target};
use crate::{pause, seconds, udp};

/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(5);
/// Minimum flow that a responder must allow.
const MIN: Duration = Duration::from_secs(1);

/// Path to watch, and the file for its results.
#[derive(Clone, Debug, SmartDefault)]
pub struct WatchOptions {
    /// Results (SQLite); created, or continued.
    pub file: PathBuf,
    /// The responder.
    pub target: Target,
    /// Length of the campaign.
    #[default(Duration::from_secs(24 * 3600))]
    pub length: Duration,
    /// UDP payload of the datagrams in bytes.
    #[default(1472)]
    pub size: usize,
    /// Bits of UDP payload per second.
    pub rate: Option<BitRate>,
    /// Time from one burst to the next, instead of a rate.
    pub spacing: Option<Duration>,
    /// Datagrams back to back.
    #[default(1)]
    pub burst: u32,
    /// Averaging time of results.
    #[default(Duration::from_secs(30))]
    pub window: Duration,
    /// Interval between tests, instead of one continuous flow.
    pub every: Option<Duration>,
    /// Length of each of these tests.
    #[default(Duration::from_secs(10))]
    pub test: Duration,
    /// Whether the responder sends.
    pub reverse: bool,
    /// Whether both hosts send at once.
    pub both: bool,
    /// Time after which a missing datagram counts as lost (RFC 7680).
    #[default(Duration::from_secs(1))]
    pub loss_timeout: Duration,
}

/// Reason why a path cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// Neither a rate nor a spacing is given.
    #[error("neither a rate nor a spacing is given")]
    NoPace,
    /// The stream would be as fast as the host can send.
    #[error("a monitored stream needs a rate")]
    Unspaced,
    /// Tests are longer than the interval between them.
    #[error("tests of {test:?} do not fit into intervals of {every:?}")]
    Every {
        /// Length of a test.
        test: Duration,
        /// From the start of one to that of the next.
        every: Duration,
    },
    /// The stream is invalid.
    #[error("{0}")]
    Stream(#[from] StreamError),
    /// The file cannot be used.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The responder cannot be reached, or a test in the session failed.
    #[error("{0}")]
    Session(#[from] SessionError),
    /// The responder allows only shorter tests than are useful.
    #[error("the responder allows only tests up to {0:?}")]
    TooShort(Duration),
    /// The flow ended early.
    #[error("{0}")]
    Stopped(String),
}

/// Watches a path until the campaign is over or the run is stopped. Results are in the file, however this ends.
///
/// # Errors
/// [`WatchError`] if the options are inconsistent, the file cannot be written, or the path could never be tested.
pub fn watch(options: &WatchOptions, run: &Run) -> Result<(), WatchError> {
    let plan = plan(options)?;
    let mut campaign = Campaign {
        options,
        store: Store::open(&options.file, &plan)?,
        plan,
        progress: run.progress(None),
        has_worked: false,
    };
    let clock = run.clock();
    let end = clock.now().plus(options.length.into());
    while clock.now() < end && !run.is_stopped() {
        let begun = clock.now();
        let id = campaign.store.begin(seconds(run))?;
        let done = campaign.flow(end.since(begun), run);
        let reason = done.as_ref().err().map(|error| run.explain(error));
        campaign.store.end(id, seconds(run), reason.as_deref())?;
        if let Err(error) = done {
            // An error before any success is permanent; later ones may be temporary.
            if !campaign.has_worked {
                return Err(error);
            }
            let line = format!("{}; trying again", run.explain(&error));
            campaign.progress.show(0, &line);
            pause(RETRY, run);
        }
        if let Some(every) = options.every {
            let next = begun.plus(every.into()).min(end);
            pause(Duration::from_nanos(next.since(clock.now()).0), run);
        }
    }
    Ok(())
}

fn plan(options: &WatchOptions) -> Result<Plan, WatchError> {
    let spacing = match (options.rate, options.spacing) {
        (Some(rate), _) => Spacing::BitsPerSecond(rate),
        (None, Some(apart)) => Spacing::Nanoseconds(Nanos::from(apart).0),
        (None, None) => return Err(WatchError::NoPace),
    };
    let stream = Stream {
        size: options.size,
        spacing,
        burst: options.burst,
        count: u64::MAX,
    };
    stream.check()?;
    if stream.rate().is_none() {
        return Err(WatchError::Unspaced);
    }
    if let Some(every) = options.every.filter(|every| *every <= options.test) {
        let test = options.test;
        return Err(WatchError::Every { test, every });
    }
    Ok(Plan {
        target: options.target.address.clone(),
        stream,
        there: !options.reverse,
        back: options.reverse || options.both,
        window: options.window.as_secs_f64(),
        every: options.every.map(|every| every.as_secs_f64()),
    })
}

/// State of a campaign, across its flows.
struct Campaign<'a> {
    options: &'a WatchOptions,
    plan: Plan,
    store: Store,
    progress: Progress,
    /// Whether any flow has ever worked.
    has_worked: bool,
}

impl Campaign<'_> {
    /// Runs a continuous flow, as long as requested and allowed by the responder; or a single test of a schedule.
    fn flow(&mut self, left: Nanos, run: &Run) -> Result<(), WatchError> {
        let Campaign { options, plan, .. } = &*self;
        let every = options.every;
        let mut session = Session::begin(&options.target, run)?;
        let allowed = Duration::from_nanos(session.limits().duration.0);
        if allowed < MIN {
            return Err(WatchError::TooShort(allowed));
        }
        let length = every.map_or(left, |_| options.test.into());
        let stream = plan.stream;
        let window = stream.within(options.window.into()).max(1);
        let test = Test {
            there: plan.there.then_some(stream),
            back: plan.back.then_some(stream),
            max_time: length.min(allowed.into()),
            join: stream.burst > 1,
            window: every.is_none().then_some(window),
            timeout: options.loss_timeout.into(),
            ..options.target.test()
        };
        let is_v6 = session.is_v6();
        let mut ways = [DirectionState::default(); 2];
        let ends = session.run(&test, run, &mut |event| {
            self.has_worked = true;
            match event {
                Event::Progress(now) => {
                    let rate = show_rate(stream.rate().unwrap_or(0.0));
                    self.progress.show(0, &udp::line(&rate, now));
                }
                Event::Settled(settled) => {
                    let way = &mut ways[settled.direction as usize];
                    if let Some((row, detail)) = way.row(&stream, is_v6, settled, seconds(run)) {
                        // Reported results are on disk, whatever happens next.
                        self.store.add(&row, &detail)?;
                        self.progress.show(0, &line(&row));
                    }
                }
            }
            Ok(())
        })?;
        self.has_worked = true;
        if every.is_some() {
            let clock = point::clock(&ends.clock);
            for (point, _) in udp::points(&test, &ends, None) {
                let direction = point.direction;
                let (_, receiver) = direction.ends(&ends.here, &ends.there);
                let tallied = &receiver.listened.tallied;
                let ahead = match direction {
                    Direction::There => Some(0.0),
                    Direction::Back => clock.map(|clock| clock.offset * 1e-9),
                };
                let times =
                    DirectionState::default().times(tallied, ahead, point.seconds, seconds(run));
                let lost = point.attribution;
                let (row, detail) = row(&stream, is_v6, direction, tallied, lost, times);
                // Its measured rates are more accurate than those from its length.
                let row = Row {
                    rate_sent: point.rate_sent,
                    rate_received: point.rate_received,
                    ..row
                };
                self.store.add(&row, &detail)?;
            }
        }
        match ends.stopped {
            Some(stopped) if !run.is_stopped() => Err(WatchError::Stopped(stopped)),
            _ => Ok(()),
        }
    }
}

/// One direction of a flow, from window to window.
#[derive(Clone, Copy, Debug, Default)]
struct DirectionState {
    /// End of the last window, in seconds since 1970; 0 before the first.
    end: f64,
    /// Datagrams that the sending kernel refused, and how many of them have been counted as lost.
    not_sent: u64,
    not_sent_found: u64,
}

impl DirectionState {
    /// Returns a window that was settled during the flow; `None` for an empty one at the end.
    fn row<'a>(
        &mut self,
        stream: &Stream,
        is_v6: bool,
        settled: &Settled<'a>,
        now: f64,
    ) -> Option<(Row, Detail<'a>)> {
        let tallied = &settled.window.tallied;
        let counters = &tallied.account.counters;
        let sent = tallied.sent;
        if sent == 0 {
            return None;
        }
        self.not_sent = self.not_sent.max(settled.not_sent);
        let refused = (self.not_sent - self.not_sent_found).min(counters.lost);
        self.not_sent_found += refused;
        let evidence = Evidence {
            size: stream.size,
            is_v6,
            sender: settled.sender,
            receiver: settled.receiver,
            counts: SendCounts {
                sent,
                messages: sent.div_ceil(u64::from(stream.burst)),
                unreachable: refused,
                ..SendCounts::default()
            },
            socket_drops: settled.window.socket_drops,
            most_joined: settled.window.most_joined,
            is_exact: false,
        };
        let lost = evidence.attribute(counters.lost);
        let rate = stream.rate().unwrap_or(0.0) / (stream.size as f64 * 8.0);
        // The responder's clock is unknown before the end.
        let ahead = (settled.direction == Direction::There).then_some(0.0);
        let times = self.times(tallied, ahead, sent as f64 / rate, now);
        Some(row(stream, is_v6, settled.direction, tallied, lost, times))
    }

    /// Returns the start and end of a window by the local clock. If the lead of the sender's clock is known and enough datagrams arrived,
    /// they follow from the times in the datagrams. Otherwise the window follows the previous one, with the duration of its datagrams,
    /// measured or calculated.
    fn times(
        &mut self,
        tallied: &Tallied,
        ahead: Option<f64>,
        nominal: f64,
        now: f64,
    ) -> (f64, f64) {
        let Tallied { departed, sent, .. } = *tallied;
        let told = departed.filter(|[first, last]| last.0 > first.0 && last.1 > first.1);
        let told = told.and_then(|[first, last]| {
            let apart = (last.1 - first.1) as f64 * 1e-9 / (last.0 - first.0) as f64;
            let arrived = (last.0 - first.0) as f64 / sent.max(1) as f64;
            let begin = first.1 as f64 * 1e-9 - first.0 as f64 * apart;
            let end = last.1 as f64 * 1e-9 + sent.saturating_sub(last.0) as f64 * apart;
            // Too few show little about the times of the others.
            (arrived > 0.1).then_some((begin, end))
        });
        let length = told.map_or(nominal, |(begin, end)| end - begin);
        let (begin, end) = match ahead.zip(told) {
            Some((ahead, (begin, end))) => (begin - ahead, end - ahead),
            _ if self.end > 0.0 => (self.end, self.end + length),
            _ => (now - length, now),
        };
        self.end = end;
        (begin, end)
    }
}

/// Returns a window of a flow, or a test of a schedule, between two times.
fn row<'a>(
    stream: &Stream,
    is_v6: bool,
    direction: Direction,
    tallied: &'a Tallied,
    lost: Attribution,
    (begin, end): (f64, f64),
) -> (Row, Detail<'a>) {
    let Report {
        counters,
        runs,
        extents,
        ..
    } = &tallied.account;
    let rate = stream.size as f64 * 8.0 / (end - begin).max(1e-9);
    let row = Row {
        direction,
        begin,
        end,
        sent: tallied.sent,
        received: counters.received,
        unique: counters.unique,
        lost: counters.lost,
        network_lost: lost.network,
        host_lost: lost.in_hosts(),
        unattributed: lost.unattributed,
        duplicates: counters.duplicates,
        reordered: counters.reordered,
        late: tallied.late,
        runs: runs.values().sum(),
        rate_sent: tallied.sent as f64 * rate,
        rate_received: counters.received as f64 * rate,
        wire_factor: on_the_wire(stream.size, is_v6),
        jitter: tallied.jitter,
        pdv_p999: tallied.pdv.map(|pdv| pdv[2] as f64),
    };
    let detail = Detail {
        loss_runs: runs,
        loss_distances: &tallied.loss_distances,
        reordering_extents: extents,
        attribution: lost,
        arrivals: tallied.gaps.as_ref(),
        ipdv: tallied.ipdv.as_ref(),
    };
    (row, detail)
}

/// The distributions of a window.
#[derive(Serialize)]
struct Detail<'a> {
    loss_runs: &'a BTreeMap<u64, u64>,
    loss_distances: &'a BTreeMap<u64, u64>,
    reordering_extents: &'a BTreeMap<u64, u64>,
    attribution: Attribution,
    arrivals: Option<&'a Summary>,
    ipdv: Option<&'a Summary>,
}

fn line(row: &Row) -> String {
    format!(
        "{}: {} sent, {} lost ({:.4} %), {}, jitter {:.1} us",
        row.direction.label(),
        show_count(row.sent),
        show_count(row.lost),
        row.lost as f64 * 100.0 / row.sent.max(1) as f64,
        show_rate(row.rate_received),
        row.jitter * 1e-3
    )
}
