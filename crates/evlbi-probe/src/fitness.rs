//! Standard tests of a path, one after another, with a verdict on its fitness (`evlbi probe HOST`).
//!
//! The tests are those of [`latency`], [`capacity`], [`udp`] and [`tcp`]. Conclusions from all of them together belong here.

use std::error::Error;
use std::time::Duration;

use evlbi_core::rate::BitRate;
use evlbi_net::file::TableError;
use evlbi_net::run::Run;
use serde::Serialize;

use super::capacity::{self, Limit, ProbeCapacity, ProbeCapacityOptions};
use super::csv::{Column, cell, table};
use super::endpoint::TestError;
use super::latency::{self, ProbeLatency, ProbeLatencyError, ProbeLatencyOptions};
use super::session::Target;
use super::sweep::Rates;
use super::tcp::{self, Flow, ProbeTcp, ProbeTcpOptions, Tested};
use super::udp::{self, ProbeUdp, ProbeUdpOptions};
use super::{Measured, now};

/// Maximum loss fraction of a rate that a path is fit for.
pub const MAX_LOSS: f64 = 0.001;
/// Fraction of the capacity for the longer UDP test: a rate at the limit leaves no room for other traffic.
const FRACTION: f64 = 0.9;
/// Fraction of a rate from which on a test has reached it.
const REACHED: f64 = 0.98;
/// Fraction of the UDP rate below which TCP falls short of it.
const SHORT: f64 = 0.8;
/// Number of requests for the round-trip time.
const REQUESTS: u64 = 200;
/// Length of each trial of the search for the capacity.
const TRIAL: Duration = Duration::from_secs(1);
/// Precision of that search, as a fraction of the rate.
const PRECISION: f64 = 0.05;
/// Length of the UDP and TCP tests.
const LENGTH: Duration = Duration::from_secs(5);

/// Path to test, and the required rate.
#[derive(Clone, Debug, Default)]
pub struct ProbeFitnessOptions {
    /// The responder.
    pub target: Target,
    /// Rate of payload that the path must carry; `None` to find the highest.
    pub rate: Option<BitRate>,
    /// Whether the responder sends.
    pub reverse: bool,
}

/// The result of `probe HOST`: the results of its tests, `None` for a test that failed, and the verdict.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProbeFitness {
    /// Name and version of the result's JSON.
    pub schema: &'static str,
    /// The responder, as given in the options.
    pub target: String,
    /// Start, in UTC (RFC 3339).
    pub begun: String,
    /// Rate that the path must carry, in bits of payload per second.
    pub rate: Option<BitRate>,
    /// Whether the responder sent.
    pub reverse: bool,
    /// Round-trip times.
    pub latency: ProbeLatency,
    /// The highest rate of UDP that lost no more than [`MAX_LOSS`].
    pub capacity: Option<ProbeCapacity>,
    /// UDP at the requested rate if it passed, otherwise at nine tenths of the capacity.
    pub udp: Option<ProbeUdp>,
    /// One connection at the requested rate; without one, as fast as TCP sends.
    pub tcp: Option<Box<ProbeTcp>>,
    /// Errors of failed tests, and reasons why others were left out.
    pub failed: Vec<String>,
    /// Conclusion from the tests.
    pub verdict: Verdict,
    /// Whether it was interrupted.
    pub interrupted: bool,
}

/// Rates that a path is fit for, and what limits them. Rates are bits of payload per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Verdict {
    /// Rate that UDP carries with a loss fraction of at most [`MAX_LOSS`]; `None` if no rate passed, or none was tested.
    pub udp: Option<f64>,
    /// Whether UDP was tested.
    pub udp_measured: bool,
    /// Loss fraction of the UDP test.
    pub udp_loss: Option<f64>,
    /// Limit of UDP.
    pub limit: Limit,
    /// Rate that TCP carried; `None` if it was not tested.
    pub tcp: Option<f64>,
    /// Limit of TCP for most of the time.
    pub tcp_limit: Option<&'static str>,
    /// Whether UDP carries the requested rate; `None` if none was requested, or UDP was not tested.
    pub udp_fits: Option<bool>,
    /// Whether TCP carries the requested rate; `None` if none was requested, or TCP was not tested.
    pub tcp_fits: Option<bool>,
    /// Next step.
    pub next: Next,
}

impl ProbeFitness {
    /// Returns the minimum round-trip time in nanoseconds, if any request was answered.
    pub fn min_round_trip(&self) -> Option<i64> {
        let point = self.latency.points.first()?;
        Some(point.round_trip.as_ref()?.min)
    }
}

impl Verdict {
    /// Returns whether the path carries the requested rate by UDP or by TCP; `None` if none was requested, or the tests do not say.
    pub fn fits(&self) -> Option<bool> {
        match (self.udp_fits, self.tcp_fits) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        }
    }
}

/// Step after the tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Next {
    /// Send data.
    #[default]
    Send,
    /// Open a firewall for the ports of tests: no UDP datagram arrived.
    OpenPorts,
    /// Tune the sending host.
    TuneSender,
    /// Tune the receiving host.
    TuneReceiver,
    /// Raise the limit of the responder.
    RaiseLimit,
    /// Look for the cause of the loss by a longer test.
    FindLoss,
    /// Calculate the buffers and the algorithm that TCP needs.
    PlanTcp,
}

/// Formats the verdict as CSV, one row.
///
/// # Errors
/// [`TableError`] if the row has no form in CSV.
pub fn csv(result: &ProbeFitness) -> Result<String, TableError> {
    let columns: &[Column<ProbeFitness>] = &[
        ("begun", |probe| probe.begun.clone()),
        ("target", |probe| probe.target.clone()),
        ("reverse", |probe| probe.reverse.to_string()),
        ("rate_asked_bps", |probe| cell(probe.rate.map(BitRate::get))),
        ("min_round_trip_ns", |probe| cell(probe.min_round_trip())),
        ("udp_bps", |probe| cell(probe.verdict.udp)),
        ("udp_loss", |probe| cell(probe.verdict.udp_loss)),
        ("tcp_bps", |probe| cell(probe.verdict.tcp)),
        ("tcp_limit", |probe| cell(probe.verdict.tcp_limit)),
        ("fits", |probe| cell(probe.verdict.fits())),
    ];
    table(columns, [result])
}

/// Runs the tests until all are done or the run is stopped. The others run even if a test fails; those by UDP are left out if no
/// request was answered.
///
/// # Errors
/// [`ProbeLatencyError`] if the responder cannot be reached, or the first test fails.
pub fn probe(options: &ProbeFitnessOptions, run: &Run) -> Result<ProbeFitness, ProbeLatencyError> {
    let target = || options.target.clone();
    let begun = now(run);
    let latency = ProbeLatencyOptions {
        target: target(),
        count: REQUESTS,
        ..ProbeLatencyOptions::default()
    };
    let latency = latency::probe(&latency, run)?.result;
    let mut result = ProbeFitness {
        schema: "evlbi.probe/1",
        target: options.target.address.clone(),
        begun,
        rate: options.rate,
        reverse: options.reverse,
        latency,
        capacity: None,
        udp: None,
        tcp: None,
        failed: Vec::new(),
        verdict: Verdict::default(),
        interrupted: false,
    };
    let is_answered = is_answered(&result.latency);
    if !is_answered && !run.is_stopped() {
        result
            .failed
            .push("no request by UDP was answered".to_owned());
    }
    if is_answered && !run.is_stopped() {
        let usual = ProbeCapacityOptions::default();
        let highest = options.rate.unwrap_or(usual.highest);
        let capacity = ProbeCapacityOptions {
            target: target(),
            lowest: usual.lowest.min(highest),
            highest,
            duration: TRIAL,
            loss: MAX_LOSS,
            precision: PRECISION,
            confirm: 1,
            reverse: options.reverse,
            ..usual
        };
        let capacity = capacity::probe(&capacity, run).map(|measured| measured.result);
        result.capacity = done(capacity, &mut result.failed, run);
    }
    let rate = result
        .capacity
        .as_ref()
        .and_then(|found| steady(found, options.rate));
    if let Some(rate) = rate.filter(|_| !run.is_stopped()) {
        let udp = ProbeUdpOptions {
            target: target(),
            rate: Some(Rates(vec![rate])),
            duration: Some(LENGTH),
            reverse: options.reverse,
            ..ProbeUdpOptions::default()
        };
        let udp = udp::probe(&udp, run).map(|measured| measured.result);
        result.udp = done(udp, &mut result.failed, run);
    }
    if !run.is_stopped() {
        // A responder with a limit grants no connection without a rate.
        let at = |rate: Option<BitRate>| {
            let options = ProbeTcpOptions {
                target: target(),
                rate,
                duration: LENGTH,
                reverse: options.reverse,
                ..ProbeTcpOptions::default()
            };
            tcp::probe(&options, run)
        };
        let tested = match at(options.rate) {
            Err(error) if options.rate.is_none() && rate.is_some() && is_limited(&error) => {
                at(rate)
            }
            tested => tested,
        };
        result.tcp = match done(tested, &mut result.failed, run) {
            Some(Tested::One(Measured { result, .. })) => Some(result),
            _ => None,
        };
    }
    result.interrupted = run.is_stopped();
    result.verdict = verdict(&Facts::of(&result));
    Ok(result)
}

fn is_answered(latency: &ProbeLatency) -> bool {
    latency.points.iter().any(|point| point.received > 0)
}

/// Returns whether the responder's limit of the rate is the reason.
fn is_limited(error: &(dyn Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(TestError::NoRate(_)))
        || error.source().is_some_and(is_limited)
}

/// The result of a test; its error is one of several.
fn done<T, E: Error + 'static>(
    tested: Result<T, E>,
    failed: &mut Vec<String>,
    run: &Run,
) -> Option<T> {
    tested
        .map_err(|error| failed.push(run.explain(&error)))
        .ok()
}

/// Returns the rate of the longer UDP test: the requested one if it passed.
fn steady(found: &ProbeCapacity, asked: Option<BitRate>) -> Option<BitRate> {
    let rate = found.rate?;
    match asked {
        Some(asked) if rate >= REACHED * asked.get() as f64 => Some(asked),
        _ => BitRate::new((FRACTION * rate) as u64),
    }
}

/// Measurements for the verdict.
#[derive(Clone, Debug, Default)]
struct Facts {
    asked: Option<f64>,
    /// Whether replies to UDP requests arrived.
    is_answered: bool,
    limit: Limit,
    udp_measured: bool,
    udp: Option<f64>,
    udp_loss: Option<f64>,
    tcp: Option<f64>,
    tcp_limit: Option<&'static str>,
}

impl Facts {
    fn of(result: &ProbeFitness) -> Facts {
        let points = result.udp.as_ref().map(|udp| &udp.points);
        let point = points.and_then(|points| points.first());
        let flow = result.tcp.as_ref().and_then(|tcp| tcp.flows.first());
        let capacity = result.capacity.as_ref();
        let is_answered = is_answered(&result.latency);
        let lossy = point.filter(|point| point.loss > MAX_LOSS);
        Facts {
            asked: result.rate.map(|rate| rate.get() as f64),
            is_answered,
            limit: match (lossy, capacity) {
                (Some(point), _) => Limit::of_loss(point),
                (None, Some(capacity)) => capacity.limit,
                (None, None) => Limit::Unknown,
            },
            udp_measured: !is_answered || capacity.is_some(),
            // Without the longer test, the rate of a trial.
            udp: match point {
                Some(point) => lossy.is_none().then_some(point.rate_sent),
                None => capacity.and_then(|capacity| capacity.rate),
            },
            udp_loss: point.map(|point| point.loss),
            tcp: flow.map(|flow| flow.rate),
            tcp_limit: flow.and_then(tcp_limit),
        }
    }
}

/// Returns the limit of a connection for most of the time.
fn tcp_limit(flow: &Flow) -> Option<&'static str> {
    let (part, name) = tcp::parts(flow).into_iter().next()?;
    (part > 0.0).then_some(name)
}

fn verdict(facts: &Facts) -> Verdict {
    let Facts {
        limit, udp, tcp, ..
    } = *facts;
    let reaches = |rate: f64| facts.asked.map(|asked| rate >= REACHED * asked);
    let measured = facts.udp_measured.then(|| udp.unwrap_or(0.0));
    let (udp_fits, tcp_fits) = (measured.and_then(reaches), tcp.and_then(reaches));
    let is_short = udp.is_some_and(|udp| tcp.is_none_or(|tcp| tcp < SHORT * udp));
    let next = if !facts.is_answered {
        Next::OpenPorts
    } else if udp_fits == Some(true) {
        Next::Send
    } else {
        match limit {
            Limit::Sender => Next::TuneSender,
            Limit::Receiver => Next::TuneReceiver,
            Limit::Responder => Next::RaiseLimit,
            _ if udp.is_none() => Next::FindLoss,
            _ if tcp_fits != Some(true) && is_short => Next::PlanTcp,
            _ => Next::Send,
        }
    };
    Verdict {
        udp,
        udp_measured: facts.udp_measured,
        udp_loss: facts.udp_loss,
        limit,
        tcp,
        tcp_limit: facts.tcp_limit,
        udp_fits,
        tcp_fits,
        next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 940 Mbit/s by UDP, and by TCP.
    fn gigabit() -> Facts {
        Facts {
            is_answered: true,
            limit: Limit::Path,
            udp_measured: true,
            udp: Some(940e6),
            udp_loss: Some(0.0),
            tcp: Some(930e6),
            tcp_limit: Some("the congestion window"),
            ..Facts::default()
        }
    }

    fn next(facts: &Facts) -> Next {
        verdict(facts).next
    }

    #[test]
    fn a_path_is_fit_for_the_rate_it_carried() {
        let found = verdict(&gigabit());
        assert_eq!((found.udp, found.tcp), (Some(940e6), Some(930e6)));
        assert_eq!((found.fits(), found.next), (None, Next::Send));
        let asked = |asked| {
            verdict(&Facts {
                asked: Some(asked),
                ..gigabit()
            })
        };
        // Within the precision of the measurement.
        assert_eq!(asked(950e6).fits(), Some(true));
        let found = asked(1e9);
        assert_eq!((found.udp_fits, found.tcp_fits), (Some(false), Some(false)));
        assert_eq!((found.fits(), found.next), (Some(false), Next::Send));
    }

    #[test]
    fn one_transport_is_enough() {
        let asked = Some(900e6);
        let slow = Some(100e6);
        let by_udp = verdict(&Facts {
            asked,
            tcp: slow,
            ..gigabit()
        });
        assert_eq!((by_udp.fits(), by_udp.tcp_fits), (Some(true), Some(false)));
        assert_eq!(by_udp.next, Next::Send);
        let by_tcp = verdict(&Facts {
            asked,
            udp: None,
            ..gigabit()
        });
        assert_eq!((by_tcp.fits(), by_tcp.udp_fits), (Some(true), Some(false)));
        let neither = verdict(&Facts {
            asked,
            udp: None,
            tcp: slow,
            ..gigabit()
        });
        assert_eq!(neither.fits(), Some(false));
    }

    /// A rate that was not tested is neither fit nor unfit.
    #[test]
    fn a_test_that_did_not_run_says_nothing() {
        let asked = Some(900e6);
        let no_tcp = Facts {
            asked,
            tcp: None,
            ..gigabit()
        };
        let found = verdict(&no_tcp);
        assert_eq!((found.fits(), found.tcp_fits), (Some(true), None));
        let short = Facts {
            udp: Some(500e6),
            ..no_tcp.clone()
        };
        let found = verdict(&short);
        assert_eq!((found.fits(), found.udp_fits), (None, Some(false)));
        let no_udp = Facts {
            udp: None,
            udp_measured: false,
            ..no_tcp
        };
        let found = verdict(&no_udp);
        assert_eq!((found.fits(), found.udp_fits), (None, None));
    }

    #[test]
    fn the_limit_of_a_path_decides_the_next_step() {
        assert_eq!(
            next(&Facts {
                is_answered: false,
                udp: None,
                ..gigabit()
            }),
            Next::OpenPorts
        );
        let limited = |limit| next(&Facts { limit, ..gigabit() });
        assert_eq!(limited(Limit::Sender), Next::TuneSender);
        assert_eq!(limited(Limit::Receiver), Next::TuneReceiver);
        assert_eq!(limited(Limit::Responder), Next::RaiseLimit);
        assert_eq!(limited(Limit::Asked), Next::Send);
        let udp = None;
        assert_eq!(next(&Facts { udp, ..gigabit() }), Next::FindLoss);
        for tcp in [None, Some(300e6)] {
            assert_eq!(next(&Facts { tcp, ..gigabit() }), Next::PlanTcp);
        }
        // The limit of higher rates does not matter to a rate that fits.
        let asked = Some(500e6);
        assert_eq!(
            next(&Facts {
                asked,
                limit: Limit::Sender,
                ..gigabit()
            }),
            Next::Send
        );
    }
}
