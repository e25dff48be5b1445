//! Search for the highest rate without loss (`evlbi probe capacity`).

use std::path::PathBuf;
use std::time::Duration;

use evlbi_core::rate::BitRate;
use evlbi_net::file::{OutputError, TableError, check_new};
use evlbi_net::run::Run;
use evlbi_wire::units::{show_count, show_rate};
use serde::Serialize;
use smart_default::SmartDefault;

use super::csv::{Column, cell, table};
use super::parts::{Measured, Parts, WriteError};
use super::point::{self, Point};
use super::session::{Event, Session, SessionError, Target};
use super::{now, udp};
use crate::endpoint::{Test, TestError};
use crate::measure::{Attribution, Spacing, Stream};

/// Fraction of a rate from which on a sender has reached it.
const REACHED: f64 = 0.98;
/// Number of trials of a rate that the sender does not reach before it counts as too high; at least the number that a rate must pass.
const TRIES: usize = 3;
/// Default range of a search.
const LOWEST: BitRate = BitRate::new(1_000_000).expect("above 0");
const HIGHEST: BitRate = BitRate::new(10_000_000_000).expect("above 0");
/// Maximum number of rates in a search.
const MAX_RATES: usize = 60;

/// Range and rules of a search.
#[derive(Clone, Debug, SmartDefault)]
pub struct ProbeCapacityOptions {
    /// The responder.
    pub target: Target,
    /// UDP payload of the datagrams in bytes.
    #[default(1472)]
    pub size: usize,
    /// Datagrams back to back.
    #[default(1)]
    pub burst: u32,
    /// Minimum rate of UDP payload.
    #[default(LOWEST)]
    pub lowest: BitRate,
    /// Maximum rate of UDP payload, which is tried first.
    #[default(HIGHEST)]
    pub highest: BitRate,
    /// Length of a trial.
    #[default(Duration::from_secs(3))]
    pub duration: Duration,
    /// Allowed loss fraction.
    pub loss: f64,
    /// Precision of the result, as a fraction of the rate.
    #[default(0.01)]
    pub precision: f64,
    /// Number of trials that a rate must pass.
    #[default(2)]
    pub confirm: u32,
    /// Whether the responder sends.
    pub reverse: bool,
    /// File for each part of the result as soon as it is known, a JSON object per line.
    pub out: Option<PathBuf>,
    /// Whether to overwrite files.
    pub force: bool,
}

/// Reason why the highest rate cannot be searched for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeCapacityError {
    /// The range of rates is empty.
    #[error("the lowest rate, {lowest}, is above the highest, {highest}")]
    Range {
        /// Start of the range.
        lowest: BitRate,
        /// End of the range.
        highest: BitRate,
    },
    /// The responder allows none of the rates.
    #[error("the responder allows {} of UDP payload, less than the lowest rate, {lowest}", show_rate(*allowed))]
    NotAllowed {
        /// Its limit, in bits of UDP payload per second.
        allowed: f64,
        /// Start of the range.
        lowest: BitRate,
    },
    /// The responder has not reported what it sent.
    #[error("the responder does not report what it sent")]
    Untold,
    /// The responder cannot be reached again after a trial that failed.
    #[error("no new session after a failed trial ({failed})")]
    Again {
        /// Reason of the failed trial.
        failed: String,
        /// Reason why there is no new session.
        source: SessionError,
    },
    /// A test is invalid, or exceeds the responder's limits.
    #[error("{0}")]
    Test(#[from] TestError),
    /// A file must not be written.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// The file of the result cannot be written.
    #[error("{0}")]
    Write(#[from] WriteError),
    /// The responder cannot be reached, or a test in the session failed.
    #[error("{0}")]
    Session(#[from] SessionError),
}

/// The result of `probe capacity`. Rates are bits of UDP payload per second.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProbeCapacity {
    /// Name and version of the result's JSON.
    pub schema: &'static str,
    /// The responder, as given in the options.
    pub target: String,
    /// Start, in UTC (RFC 3339).
    pub begun: String,
    /// UDP payload of each datagram in bytes.
    pub size: usize,
    /// Datagrams back to back.
    pub burst: u32,
    /// Highest confirmed rate as sent, in bits of UDP payload per second; `None` if no rate passed. If `limit` is `path`, this is the
    /// path's capacity; otherwise the path carries at least this rate.
    pub rate: Option<f64>,
    /// The same rate on Ethernet, headers included, in bits per second.
    pub wire_rate: Option<f64>,
    /// Datagrams per second at that rate: for small ones, the packet rate limit.
    pub datagrams_per_second: Option<f64>,
    /// Lowest rate with too much loss, or that the sender could not reach, in bits of UDP payload per second.
    pub above: Option<f64>,
    /// Rule for the end of the search, in words.
    pub stop_rule: String,
    /// Datagrams sent at that rate in all trials.
    pub datagrams: u64,
    /// Maximum loss fraction at that rate, with 95 % confidence (Clopper and Pearson; without loss, about 3 over the number of datagrams).
    pub loss_bound: Option<f64>,
    /// Limit of the rate.
    pub limit: Limit,
    /// Finding, in a sentence.
    pub finding: String,
    /// All trials, in order.
    pub trials: Vec<Trial>,
    /// Reason for an early end; `None` for a complete search.
    pub stopped: Option<String>,
}

/// Limit of a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The path: it loses more at a higher rate.
    Path,
    /// The sending host, or its NIC.
    Sender,
    /// The receiving host, or its NIC.
    Receiver,
    /// The requested range.
    Asked,
    /// The responder's limit of the rate.
    Responder,
    /// Unknown from the counters, or the search was not finished.
    #[default]
    Unknown,
}

impl Limit {
    /// Returns what kept a trial from passing, with this allowed loss fraction.
    fn of(trial: &Trial, loss: f64) -> Limit {
        trial.point.as_ref().map_or(Limit::Unknown, |point| {
            let has_sent = point.rate_sent >= REACHED * trial.asked;
            Limit::by(has_sent, point.loss > loss, &point.attribution)
        })
    }

    /// Returns what kept a test from passing, which lost more than it may.
    pub(crate) fn of_loss(point: &Point) -> Limit {
        Limit::by(true, true, &point.attribution)
    }

    fn by(has_sent: bool, is_lossy: bool, lost: &Attribution) -> Limit {
        if !is_lossy {
            return match has_sent {
                true => Limit::Unknown,
                false => Limit::Sender,
            };
        }
        let places = [
            (lost.unattributed, Limit::Unknown),
            (lost.network, Limit::Path),
            (lost.sender_host + lost.sender_nic, Limit::Sender),
            (
                lost.receiver_nic + lost.receiver_backlog + lost.receiver_socket,
                Limit::Receiver,
            ),
        ];
        let most = places.into_iter().max_by_key(|(count, _)| *count);
        most.map_or(Limit::Unknown, |(_, limit)| limit)
    }

    fn sentence(self) -> &'static str {
        match self {
            Limit::Path => "the path is the limit",
            Limit::Sender => {
                "the sender is the limit (its host or NIC): the capacity of the path beyond that is unknown"
            }
            Limit::Receiver => {
                "the receiver is the limit (its host or NIC): the capacity of the path beyond that is unknown"
            }
            Limit::Asked => {
                "no higher rate was requested: the capacity of the path beyond that is unknown"
            }
            Limit::Responder => {
                "the responder allows no higher rate (its --max-rate): the capacity of the path beyond that is unknown"
            }
            Limit::Unknown => "its limit is unknown",
        }
    }
}

/// Trial of a rate.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Trial {
    /// Requested bits of UDP payload per second.
    pub asked: f64,
    /// Whether the sender reached the rate, and loss stayed within the limit.
    pub passed: bool,
    /// Finding, in a sentence.
    pub finding: String,
    /// The measured point; `None` if the trial could not be finished.
    pub point: Option<Point>,
}

/// Search for the highest rate that passes, between two.
struct Search {
    lowest: f64,
    highest: f64,
    /// Rates that differ by at most this fraction count as equal.
    precision: f64,
    /// Number of times that a rate must pass.
    needed: u32,
    /// Highest rate that passed, or that was sent when the sender fell short; 0 before any.
    low: f64,
    /// Lowest rate that failed.
    high: f64,
    /// Sent rates of the trials without loss at the next rate.
    sent: Vec<f64>,
    /// Next rate to try; `None` when the search is over.
    next: Option<f64>,
}

impl Search {
    fn new(lowest: f64, highest: f64, precision: f64, needed: u32) -> Search {
        Search {
            lowest,
            highest,
            precision,
            needed,
            low: 0.0,
            high: f64::INFINITY,
            sent: Vec::new(),
            next: Some(highest),
        }
    }

    /// Takes the result of a trial of the next rate: the rate sent without too much loss, which is below the requested one if the sender
    /// fell short; `None` for too much loss.
    fn tried(&mut self, sent: Option<f64>) {
        let Some(rate) = self.next else {
            return;
        };
        let needed = self.needed as usize;
        if let Some(sent) = sent {
            self.sent.push(sent);
            let passed = self.sent.iter().filter(|sent| **sent >= rate).count();
            if passed >= needed {
                self.low = rate;
            } else if passed == self.sent.len() || self.sent.len() < needed.max(TRIES) {
                // A sender that falls short by chance may reach it next time.
                return;
            } else {
                // The path carries the sent rate; rates beyond the sender's reach remain unknown.
                self.high = rate;
                self.sent.sort_by(|a, b| b.total_cmp(a));
                self.low = self.low.max(self.sent[needed - 1]);
            }
        } else {
            self.high = rate;
        }
        self.sent.clear();
        let are_alike = |low: f64| self.high - low <= self.precision * self.high;
        let low = self.low.max(self.lowest);
        self.next = if self.low >= self.highest || self.high <= self.lowest || are_alike(self.low) {
            None
        } else if self.low == 0.0 && are_alike(self.lowest) {
            Some(self.lowest)
        } else {
            Some((low + self.high) / 2.0)
        };
    }
}

/// Searches for the highest rate until it is found or the run is stopped.
///
/// # Errors
/// [`ProbeCapacityError`] if the options are inconsistent, a file cannot be written, or the responder cannot be reached.
pub fn probe(
    options: &ProbeCapacityOptions,
    run: &Run,
) -> Result<Measured<ProbeCapacity>, ProbeCapacityError> {
    let (lowest, asked) = (options.lowest, options.highest);
    if lowest > asked {
        return Err(ProbeCapacityError::Range {
            lowest,
            highest: asked,
        });
    }
    check_new(options.out.as_deref(), options.force)?;
    let mut session = Session::begin(&options.target, run)?;
    // Avoid rates that would be refused.
    let allowed = session.limits().rate.map_or(f64::INFINITY, |most| {
        (most.get() as f64 / point::on_the_wire(options.size, false)).floor()
    });
    let (highest, top) = match allowed < asked.get() as f64 {
        true => (allowed, Limit::Responder),
        false => (asked.get() as f64, Limit::Asked),
    };
    session.limits().allow(&test(options, highest))?;
    if highest < lowest.get() as f64 {
        return Err(ProbeCapacityError::NotAllowed {
            allowed: highest,
            lowest,
        });
    }
    let mut result = ProbeCapacity {
        schema: "evlbi.probe.capacity/1",
        target: options.target.address.clone(),
        begun: now(run),
        size: options.size,
        burst: options.burst,
        stop_rule: format!(
            "bisection until a rate that passed {} times for {:.1} s with at most {:.6} % loss and one that failed differ by {:.2} %",
            options.confirm,
            options.duration.as_secs_f64(),
            options.loss * 100.0,
            options.precision * 100.0
        ),
        ..ProbeCapacity::default()
    };
    let mut search = Search::new(
        lowest.get() as f64,
        highest,
        options.precision,
        options.confirm,
    );
    let mut parts = Parts::begin(options.out.as_deref(), result.schema, &result.target, run)?;
    let mut progress = run.progress(None);
    while let Some(rate) = search.next {
        let most = MAX_RATES * (options.confirm as usize + TRIES);
        if result.trials.len() >= most {
            result.stopped = Some(format!("{most} trials were not enough"));
            break;
        }
        let test = test(options, rate);
        let label = format!("trial {}: {}", result.trials.len() + 1, show_rate(rate));
        let ends = session.run(&test, run, &mut |event| {
            if let Event::Progress(now) = event {
                progress.show(0, &udp::line(&label, now));
            }
            Ok(())
        });
        let trial = match ends {
            Ok(ends) => {
                let clock = point::clock(&ends.clock);
                let Some((point, _)) = udp::points(&test, &ends, clock).pop() else {
                    return Err(ProbeCapacityError::Untold);
                };
                let passed = ends.stopped.is_none()
                    && point.loss <= options.loss
                    && point.rate_sent >= REACHED * rate;
                Trial {
                    asked: rate,
                    passed,
                    finding: ends.stopped.unwrap_or_else(|| point.finding.clone()),
                    point: Some(point),
                }
            }
            // A rate that starves the control connection fails, too; a new session follows.
            Err(error) if !matches!(error, SessionError::Refused(_)) && !run.is_stopped() => {
                let failed = run.explain(&error);
                session = match Session::begin(&options.target, run) {
                    Ok(session) => session,
                    Err(source) => return Err(ProbeCapacityError::Again { failed, source }),
                };
                Trial {
                    asked: rate,
                    passed: false,
                    finding: failed,
                    point: None,
                }
            }
            Err(error) => return Err(error.into()),
        };
        progress.show(0, &format!("{label}: {}", trial.finding));
        if run.is_stopped() {
            result.stopped = Some("interrupted".to_owned());
            break;
        }
        let sent = match &trial.point {
            _ if trial.passed => Some(rate),
            Some(point) if point.loss <= options.loss && point.rate_sent < REACHED * rate => {
                Some(point.rate_sent)
            }
            _ => None,
        };
        parts.add("trial", &trial);
        result.trials.push(trial);
        search.tried(sent);
    }
    conclude(&mut result, &search, top, options.loss);
    Ok(parts.finish(result))
}

fn test(options: &ProbeCapacityOptions, rate: f64) -> Test {
    let stream = Stream {
        size: options.size,
        spacing: BitRate::new(rate as u64).map_or(Spacing::Nanoseconds(0), Spacing::BitsPerSecond),
        burst: options.burst,
        count: u64::MAX,
    };
    Test {
        there: (!options.reverse).then_some(stream),
        back: options.reverse.then_some(stream),
        max_time: options.duration.into(),
        join: options.burst > 1,
        ..options.target.test()
    }
}

/// Concludes from the trials; `top` is the limit of the range's end.
fn conclude(result: &mut ProbeCapacity, search: &Search, top: Limit, loss: f64) {
    let confirms = |trial: &Trial, point: &Point| match trial.passed {
        true => trial.asked == search.low,
        // The sent rate of a trial that fell short of the requested one.
        false => (search.low..search.high).contains(&point.rate_sent) && point.loss <= loss,
    };
    let tried = result.trials.iter();
    let tried = tried.filter_map(|trial| Some((trial, trial.point.as_ref()?)));
    let at = tried.filter(|(trial, point)| confirms(trial, point));
    let at: Vec<&Point> = at.map(|(_, point)| point).collect();
    let slowest = at.iter().min_by(|a, b| a.rate_sent.total_cmp(&b.rate_sent));
    if let Some(slowest) = slowest.filter(|_| search.low > 0.0) {
        result.rate = Some(slowest.rate_sent);
        result.wire_rate = Some(slowest.wire_rate_sent);
        result.datagrams_per_second = Some(slowest.rate_sent / (slowest.size as f64 * 8.0));
        let sent = at.iter().map(|point| point.sent).sum();
        let lost = at.iter().map(|point| point.lost).sum();
        result.datagrams = sent;
        result.loss_bound = Some(upper_bound(lost, sent));
    }
    result.above = search.high.is_finite().then_some(search.high);
    // The last trial of a rate has decided.
    let failed = result.trials.iter().rev().filter(|trial| !trial.passed);
    let nearest = failed.min_by(|a, b| a.asked.total_cmp(&b.asked));
    (result.limit, result.finding) = match nearest.filter(|_| result.above.is_some()) {
        _ if search.next.is_some() => (Limit::Unknown, "the search was not finished".to_owned()),
        None => (top, top.sentence().to_owned()),
        Some(trial) => {
            let (limit, at) = (Limit::of(trial, loss), show_rate(trial.asked));
            let finding = format!("{}; at {at}: {}", limit.sentence(), trial.finding);
            (limit, finding)
        }
    };
}

/// Returns the upper end of the one-sided 95 % confidence interval of a fraction, from `lost` of `sent` (Poisson distribution).
fn upper_bound(lost: u64, sent: u64) -> f64 {
    // For large counts by Wilson and Hilferty's approximation of chi squared, accurate to 1e-4 there.
    if lost > 100 {
        let n = lost as f64 + 1.0;
        let root = 1.0 - 1.0 / (9.0 * n) + 1.644_854 / (3.0 * n.sqrt());
        return (n * root.powi(3) / sent.max(1) as f64).min(1.0);
    }
    let chance = |mean: f64| {
        let none = (-mean).exp();
        let (_, sum) = (1..=lost).fold((none, none), |(term, sum), count| {
            let term = term * (mean / count as f64);
            (term, sum + term)
        });
        sum
    };
    let (mut low, mut high) = (0.0, 2.0 * lost as f64 + 10.0);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if chance(middle) > 0.05 {
            low = middle;
        } else {
            high = middle;
        }
    }
    (high / sent.max(1) as f64).min(1.0)
}

/// Formats the result as text.
pub fn text(result: &ProbeCapacity) -> String {
    let of_trial = |trial: &Trial| {
        let passed = if trial.passed { "passed" } else { "failed" };
        let asked = show_rate(trial.asked);
        format!("{asked:>16}  {passed}  {}", trial.finding)
    };
    let mut lines: Vec<String> = result.trials.iter().map(of_trial).collect();
    lines.push(match (result.rate, result.wire_rate) {
        (Some(rate), Some(wire)) => format!(
            "{} {} of UDP payload in datagrams of {} bytes, {} on the wire, {} datagrams per second",
            match result.limit {
                Limit::Path => "capacity",
                _ => "capacity at least",
            },
            show_rate(rate),
            result.size,
            show_rate(wire),
            show_count(result.datagrams_per_second.unwrap_or(0.0) as u64)
        ),
        _ => "no rate passed".to_owned(),
    });
    if let Some(bound) = result.loss_bound {
        lines.push(format!(
            "with 95 % confidence at most {:.2e} of the datagrams are lost at that rate ({} sent)",
            bound,
            show_count(result.datagrams)
        ));
    }
    lines.push(result.finding.clone());
    lines.push(format!("stop rule: {}", result.stop_rule));
    lines.join("\n")
}

/// Formats the trials as CSV, a row each.
///
/// # Errors
/// [`TableError`] if a row has no form in CSV.
pub fn csv(result: &ProbeCapacity) -> Result<String, TableError> {
    let columns: &[Column<Trial>] = &[
        ("rate_asked_bps", |trial| trial.asked.to_string()),
        ("passed", |trial| trial.passed.to_string()),
        ("sent", |trial| {
            cell(trial.point.as_ref().map(|point| point.sent))
        }),
        ("lost", |trial| {
            cell(trial.point.as_ref().map(|point| point.lost))
        }),
        ("loss", |trial| {
            cell(trial.point.as_ref().map(|point| point.loss))
        }),
        ("network_lost", |trial| {
            cell(trial.point.as_ref().map(|point| point.network_lost))
        }),
        ("host_lost", |trial| {
            cell(trial.point.as_ref().map(|point| point.host_lost))
        }),
        ("unattributed", |trial| {
            cell(trial.point.as_ref().map(|point| point.unattributed))
        }),
        ("rate_sent_bps", |trial| {
            cell(trial.point.as_ref().map(|point| point.rate_sent))
        }),
        ("rate_received_bps", |trial| {
            cell(trial.point.as_ref().map(|point| point.rate_received))
        }),
        ("duration_s", |trial| {
            cell(trial.point.as_ref().map(|point| point.seconds))
        }),
    ];
    table(columns, &result.trials)
}

#[cfg(test)]
mod tests {
    use evlbi_core::time::Nanos;

    use super::*;
    use crate::bottleneck::{Bottleneck, HEADERS};
    use proptest::prelude::*;

    /// Returns the rate found if rates up to `truth` pass, and the number of trials.
    fn found(truth: f64, precision: f64, needed: u32) -> (f64, usize) {
        search([1e6, 1e10], precision, needed, |rate| {
            (rate <= truth).then_some(rate)
        })
    }

    /// Returns the rate found between two, and the number of trials.
    fn search(
        [lowest, highest]: [f64; 2],
        precision: f64,
        needed: u32,
        mut tried: impl FnMut(f64) -> Option<f64>,
    ) -> (f64, usize) {
        let mut search = Search::new(lowest, highest, precision, needed);
        let mut trials = 0;
        while let Some(rate) = search.next {
            search.tried(tried(rate));
            trials += 1;
            assert!(trials < 1000);
        }
        (search.low, trials)
    }

    /// A path of 1 Gbit/s and a sender that sometimes, or always, falls short of the requested rate.
    #[test]
    fn a_sender_that_falls_short_does_not_lower_the_next_requested_rate() {
        let path = 1e9;
        let mut calls = 0;
        let (rate, _) = search([1e6, 1e9], 0.01, 2, |rate| {
            calls += 1;
            match calls % 3 {
                0 => Some(rate * 0.4),
                _ => (rate <= path).then_some(rate),
            }
        });
        assert_eq!(rate, 1e9);
        // It stalls in every trial; its sent datagrams arrive, and count.
        let (rate, _) = search([1e6, 1e9], 0.01, 2, |rate| Some(rate * 0.9));
        assert!(rate >= 0.9e9, "{rate}");
        // It sends 412 Mbit/s at most.
        let most = 412e6;
        let (rate, _) = search([1e6, 1e9], 0.01, 2, |rate| match rate * REACHED <= most {
            true => Some(rate),
            false => Some(most),
        });
        assert!((most..most * 1.03).contains(&rate), "{rate}");
    }

    #[test]
    fn losses_in_the_hosts_are_not_a_limit_of_the_path() {
        let none = Attribution::default();
        let lost = |network, sender_host, receiver_socket, unattributed| Attribution {
            network,
            sender_host,
            receiver_socket,
            unattributed,
            ..none
        };
        assert_eq!(Limit::by(false, false, &none), Limit::Sender);
        assert_eq!(Limit::by(true, true, &lost(9, 1, 2, 3)), Limit::Path);
        assert_eq!(Limit::by(false, true, &lost(9, 1, 2, 3)), Limit::Path);
        assert_eq!(Limit::by(true, true, &lost(1, 9, 2, 3)), Limit::Sender);
        assert_eq!(Limit::by(true, true, &lost(1, 2, 9, 3)), Limit::Receiver);
        assert_eq!(Limit::by(true, true, &lost(1, 2, 3, 9)), Limit::Unknown);
        for limit in [
            Limit::Sender,
            Limit::Receiver,
            Limit::Asked,
            Limit::Responder,
        ] {
            assert!(limit.sentence().ends_with("is unknown"), "{limit:?}");
        }
    }

    #[test]
    fn known_ends() {
        assert_eq!(found(2e10, 0.01, 3), (1e10, 3));
        assert_eq!(found(0.0, 0.01, 1).0, 0.0);
        assert!((upper_bound(0, 1_000_000) - 2.9957e-6).abs() < 1e-9);
        // 4.744 for one event, 16.962 for ten (tables of the Poisson distribution).
        assert!((upper_bound(1, 1000) - 4.744e-3).abs() < 1e-6);
        assert!((upper_bound(10, 1000) - 16.962e-3).abs() < 1e-6);
        // Half of the 95 % quantile of chi squared with 202 and 4002 degrees of freedom.
        assert!((upper_bound(100, 1_000_000) - 118.079e-6).abs() < 1e-9);
        assert!((upper_bound(101, 1_000_000) - 119.161e-6).abs() < 1e-8);
        assert!((upper_bound(2000, 1_000_000) - 2075.14e-6).abs() < 1e-7);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// The search finds the rate of a line, above it by at most what its queue absorbs during a trial.
        #[test]
        fn the_rate_of_a_line_is_found(
            rate in 15_000_000u64..150_000_000, queue in 2500u64..100_000, size in 500usize..1472,
        ) {
            let line = Bottleneck { rate, queue };
            let length = Nanos::SECOND;
            let sent = |rate| (line.carry(size, rate, length).lost == 0).then_some(rate);
            let (found, _) = search([10e6, 200e6], 0.03, 1, sent);
            let found = found * (size + HEADERS) as f64 / size as f64;
            let room = (queue as f64 + 1600.0) * 8.0;
            prop_assert!(found <= rate as f64 + room, "{} {}", found, rate);
            prop_assert!(found >= rate as f64 * 0.97 - 1e5, "{} {}", found, rate);
        }
    }

    proptest! {
        #[test]
        fn the_true_rate_is_found(truth in 1e6f64..1e10, precision in 0.001f64..0.2, needed in 1u32..4) {
            let (rate, _) = found(truth, precision, needed);
            prop_assert!(rate <= truth && rate >= truth * (1.0 - precision) - 1.0, "{} {}", rate, truth);
        }
    }
}
