//! `evlbi probe capacity`: the highest rate that nothing is lost at, by search.

use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail};
use evlbi_core::probe::{Spacing, Stream};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_net::probe::Test;
use serde::Serialize;

use super::point::{self, Point};
use super::session::{Event, Refused, Session};
use super::{now, udp};
use crate::cli::ProbeCapacityArgs;
use crate::output;
use crate::progress::{Progress, interrupt};
use crate::units::{show_count, show_rate};

/// A trial counts only if the sender reached so much of the rate; else that sender is the limit.
const REACHED: f64 = 0.98;
/// A rate that the sender did not reach is tried again so often before it counts as too high.
const RETRIES: u32 = 2;
/// Rates of a search at most.
const MOST_RATES: usize = 60;

/// The result of `probe capacity`. Rates are bits of UDP payload per second.
#[derive(Debug, Serialize)]
pub struct ProbeCapacity {
    pub schema: &'static str,
    pub target: String,
    pub begun: String,
    pub size: usize,
    pub burst: u32,
    /// The highest rate that was confirmed, as it was sent; none if there is none.
    pub rate: Option<f64>,
    /// The same on an Ethernet.
    pub wire_rate: Option<f64>,
    /// Datagrams per second at that rate: of short ones, the limit of packets.
    pub datagrams_per_second: Option<f64>,
    /// The lowest rate at which too much was lost, or which the sender could not reach.
    pub above: Option<f64>,
    /// When the search ends, in words.
    pub stop_rule: String,
    /// Datagrams that were sent at that rate in all trials.
    pub datagrams: u64,
    /// With 95 % confidence no more than this part of the datagrams is lost at that rate (Clopper and Pearson; where none
    /// was, about 3 over their number).
    pub loss_bound: Option<f64>,
    /// What limits it, in a sentence.
    pub finding: String,
    pub trials: Vec<Trial>,
    pub stopped: Option<String>,
}

/// A rate that was tried.
#[derive(Debug, Serialize)]
pub struct Trial {
    pub asked: f64,
    pub passed: bool,
    /// What it said, in a sentence.
    pub finding: String,
    /// None where the trial could not be finished.
    pub point: Option<Point>,
}

/// Finds the highest rate that passes, between two.
struct Search {
    lowest: f64,
    highest: f64,
    /// Rates are as good as alike when they differ by no more than this part.
    precision: f64,
    /// A rate must pass so often.
    needed: u32,
    /// Highest rate that did; 0 before any.
    low: f64,
    /// Lowest rate that did not.
    high: f64,
    /// How often the next rate has passed.
    passed: u32,
    /// The rate to try; none when the search is over.
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
            passed: 0,
            next: Some(highest),
        }
    }

    /// What the trial of the next rate said.
    fn tried(&mut self, passed: bool) {
        let Some(rate) = self.next else {
            return;
        };
        if passed {
            self.passed += 1;
            if self.passed < self.needed {
                return;
            }
            self.low = rate;
        } else {
            self.high = rate;
        }
        self.passed = 0;
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

pub fn run(args: &ProbeCapacityArgs) -> Result<()> {
    let lowest = args.lowest.get() as f64;
    if args.lowest > args.highest {
        bail!(
            "--lowest {} is above --highest {}",
            args.lowest,
            args.highest
        );
    }
    let interrupted = interrupt();
    let mut session = Session::begin(&args.target.target())?;
    // No rate is tried that would be refused.
    let allowed = session.limits().rate.map(|most| most.get() as f64);
    let allowed = allowed.map(|most| (most / point::on_the_wire(args.size, false)).floor());
    let highest = allowed.map_or(args.highest.get() as f64, |allowed| {
        allowed.min(args.highest.get() as f64)
    });
    session.limits().allow(&test(args, highest))?;
    if highest < lowest {
        bail!(
            "the responder allows {} of UDP payload, less than --lowest {}",
            show_rate(highest),
            args.lowest
        );
    }
    let mut result = ProbeCapacity {
        schema: "evlbi.probe.capacity/1",
        target: args.target.target.clone(),
        begun: now(),
        size: args.size,
        burst: args.burst,
        rate: None,
        wire_rate: None,
        datagrams_per_second: None,
        above: None,
        stop_rule: format!(
            "halving, until a rate that passed {} times for {:.1} s with a loss of no more than {:.6} % and one that did not differ by {:.2} %",
            args.confirm,
            args.duration.as_secs_f64(),
            args.loss * 100.0,
            args.precision * 100.0
        ),
        datagrams: 0,
        loss_bound: None,
        finding: String::new(),
        trials: Vec::new(),
        stopped: None,
    };
    let mut short = 0;
    let mut search = Search::new(lowest, highest, args.precision, args.confirm);
    let mut progress = Progress::new(None);
    while let Some(rate) = search.next {
        let most = MOST_RATES * (args.confirm + RETRIES) as usize;
        if result.trials.len() >= most {
            result.stopped = Some(format!("{most} trials were not enough"));
            break;
        }
        let test = test(args, rate);
        let label = format!("trial {}: {}", result.trials.len() + 1, show_rate(rate));
        let ends = session.run(&test, &interrupted, &mut |event| {
            if let Event::Progress(now) = event {
                progress.show(0, &udp::line(&label, now));
            }
            Ok(())
        });
        let trial = match ends {
            Ok(ends) => {
                let clock = point::clock(&ends.clock);
                let Some((point, _)) = udp::points(&test, &ends, clock).pop() else {
                    bail!("the responder does not say what it sent");
                };
                let passed = ends.stopped.is_none()
                    && point.loss <= args.loss
                    && point.rate_sent >= REACHED * rate;
                Trial {
                    asked: rate,
                    passed,
                    finding: ends.stopped.unwrap_or_else(|| point.finding.clone()),
                    point: Some(point),
                }
            }
            // A rate that leaves nothing to the control connection does not pass either; the session begins anew.
            Err(error) if !error.is::<Refused>() && !interrupted.load(Ordering::Relaxed) => {
                session = Session::begin(&args.target.target())
                    .with_context(|| format!("after a trial that failed ({error:#})"))?;
                Trial {
                    asked: rate,
                    passed: false,
                    finding: output::explain(&error),
                    point: None,
                }
            }
            Err(error) => return Err(error),
        };
        progress.show(0, &format!("{label}: {}", trial.finding));
        if interrupted.load(Ordering::Relaxed) {
            result.stopped = Some("interrupted".to_owned());
            break;
        }
        // A sender that fell short by chance says nothing of the path.
        let fell_short = !trial.passed
            && trial
                .point
                .as_ref()
                .is_some_and(|point| point.loss <= args.loss);
        result.trials.push(trial);
        if fell_short && short < RETRIES {
            short += 1;
            continue;
        }
        short = 0;
        let passed = result.trials.last().is_some_and(|trial| trial.passed);
        search.tried(passed);
    }
    progress.finish();
    conclude(&mut result, &search);
    output::print(args.json, &result, text)?;
    match &result.stopped {
        Some(stopped) => bail!("the search was not finished: {stopped}"),
        None => Ok(()),
    }
}

fn test(args: &ProbeCapacityArgs, rate: f64) -> Test {
    let stream = Stream {
        size: args.size,
        spacing: BitRate::new(rate as u64).map_or(Spacing::Nanoseconds(0), Spacing::BitsPerSecond),
        burst: args.burst,
        count: u64::MAX,
    };
    Test {
        there: (!args.reverse).then_some(stream),
        back: args.reverse.then_some(stream),
        most_time: args.duration.into(),
        join: args.burst > 1,
        dscp: args.target.dscp,
        patience: Nanos::SECOND,
        queue: args.target.wait.into(),
        ..Test::default()
    }
}

fn conclude(result: &mut ProbeCapacity, search: &Search) {
    let confirmed = |trial: &&Trial| trial.passed && (trial.asked - search.low).abs() < 1.0;
    let at = result.trials.iter().filter(confirmed);
    let at: Vec<&Point> = at.filter_map(|trial| trial.point.as_ref()).collect();
    if let Some(slowest) = at.iter().min_by(|a, b| a.rate_sent.total_cmp(&b.rate_sent)) {
        result.rate = Some(slowest.rate_sent);
        result.wire_rate = Some(slowest.wire_rate_sent);
        result.datagrams_per_second = Some(slowest.rate_sent / (slowest.size as f64 * 8.0));
        let sent = at.iter().map(|point| point.sent).sum();
        let lost = at.iter().map(|point| point.lost).sum();
        result.datagrams = sent;
        result.loss_bound = Some(upper_bound(lost, sent));
    }
    result.above = search.high.is_finite().then_some(search.high);
    // Of trials of one rate the last has decided.
    let failed = result.trials.iter().rev().filter(|trial| !trial.passed);
    let nearest = failed.min_by(|a, b| a.asked.total_cmp(&b.asked));
    result.finding = match nearest.filter(|_| result.above.is_some()) {
        None => "nothing was lost at the highest rate that was asked for".to_owned(),
        Some(trial) => format!("at {}: {}", show_rate(trial.asked), trial.finding),
    };
}

/// Upper end of the 95 % confidence interval of a part, of which `lost` of `sent` were seen (one-sided, by Poisson's
/// distribution).
fn upper_bound(lost: u64, sent: u64) -> f64 {
    // Of many, by Wilson and Hilferty's approximation of chi squared: good to a part in 10^4 there.
    if lost > 100 {
        let n = lost as f64 + 1.0;
        let root = 1.0 - 1.0 / (9.0 * n) + 1.644_854 / (3.0 * n.sqrt());
        return (n * root.powi(3) / sent.max(1) as f64).min(1.0);
    }
    let chance = |mean: f64| {
        let mut term = (-mean).exp();
        let mut sum = term;
        for count in 1..=lost {
            term *= mean / count as f64;
            sum += term;
        }
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

fn text(result: &ProbeCapacity) -> String {
    let mut lines = Vec::new();
    for trial in &result.trials {
        lines.push(format!(
            "{:>16}  {}  {}",
            show_rate(trial.asked),
            if trial.passed { "passed" } else { "failed" },
            trial.finding
        ));
    }
    lines.push(match (result.rate, result.wire_rate) {
        (Some(rate), Some(wire)) => format!(
            "capacity {} of UDP payload in datagrams of {} bytes, {} on the wire, {} datagrams a second",
            show_rate(rate),
            result.size,
            show_rate(wire),
            show_count(result.datagrams_per_second.unwrap_or(0.0) as u64)
        ),
        _ => "no rate passed".to_owned(),
    });
    if let Some(bound) = result.loss_bound {
        lines.push(format!(
            "with 95 % confidence at most {:.2e} of the datagrams is lost there ({} were sent)",
            bound,
            show_count(result.datagrams)
        ));
    }
    lines.push(result.finding.clone());
    lines.push(format!("stop rule: {}", result.stop_rule));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::bottleneck::{Bottleneck, HEADERS};
    use proptest::prelude::*;

    /// Which rate is found where one passes if it is no more than `truth`.
    fn found(truth: f64, precision: f64, needed: u32) -> (f64, usize) {
        search([1e6, 1e10], precision, needed, |rate| rate <= truth)
    }

    /// Which rate is found between two, and after how many trials.
    fn search(
        [lowest, highest]: [f64; 2],
        precision: f64,
        needed: u32,
        passes: impl Fn(f64) -> bool,
    ) -> (f64, usize) {
        let mut search = Search::new(lowest, highest, precision, needed);
        let mut trials = 0;
        while let Some(rate) = search.next {
            search.tried(passes(rate));
            trials += 1;
            assert!(trials < 1000);
        }
        (search.low, trials)
    }

    #[test]
    fn known_ends() {
        assert_eq!(found(2e10, 0.01, 3), (1e10, 3));
        assert_eq!(found(0.0, 0.01, 1).0, 0.0);
        assert!((upper_bound(0, 1_000_000) - 2.9957e-6).abs() < 1e-9);
        // Of one event 4.744, of ten 16.962 (tables of Poisson's distribution).
        assert!((upper_bound(1, 1000) - 4.744e-3).abs() < 1e-6);
        assert!((upper_bound(10, 1000) - 16.962e-3).abs() < 1e-6);
        // Half of chi squared's 95 % quantile with 202 and 4002 degrees of freedom.
        assert!((upper_bound(100, 1_000_000) - 118.079e-6).abs() < 1e-9);
        assert!((upper_bound(101, 1_000_000) - 119.161e-6).abs() < 1e-8);
        assert!((upper_bound(2000, 1_000_000) - 2075.14e-6).abs() < 1e-7);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// The rate of a line is found, and above it no more than what its queue takes up during a trial.
        #[test]
        fn the_rate_of_a_line_is_found(
            rate in 15_000_000u64..150_000_000, queue in 2500u64..100_000, size in 500usize..1472,
        ) {
            let line = Bottleneck { rate, queue };
            let length = Nanos::SECOND;
            let passes = |rate| line.carry(size, rate, length).lost == 0;
            let (found, _) = search([10e6, 200e6], 0.03, 1, passes);
            let found = found * (size + HEADERS) as f64 / size as f64;
            let room = (queue as f64 + 1600.0) * 8.0;
            prop_assert!(found <= rate as f64 + room, "{} {}", found, rate);
            prop_assert!(found >= rate as f64 * 0.97 - 1e5, "{} {}", found, rate);
        }
    }

    proptest! {
        #[test]
        fn the_truth_is_found(truth in 1e6f64..1e10, precision in 0.001f64..0.2, needed in 1u32..4) {
            let (rate, _) = found(truth, precision, needed);
            prop_assert!(rate <= truth && rate >= truth * (1.0 - precision) - 1.0, "{} {}", rate, truth);
        }
    }
}
