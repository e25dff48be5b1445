//! `evlbi probe HOST`: the usual tests, and a verdict.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use evlbi_core::rate::BitRate;
use evlbi_net::responder;
use evlbi_probe::capacity::Limit;
use evlbi_probe::fitness::{self, MAX_LOSS, Next, ProbeFitness, ProbeFitnessOptions, Verdict};
use evlbi_wire::units::{self, show_rate, show_seconds};

use super::tables::CsvArgs;
use super::target::TargetArgs;
use crate::output;
use crate::program::{Program, complete};

#[derive(Args)]
pub struct ProbeFitnessArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Check for this rate of payload: the exit status is 1 if neither UDP nor TCP carries it [default: find the highest]
    #[arg(long, value_name = "RATE")]
    pub rate: Option<BitRate>,
    /// Test the direction from HOST to this host
    #[arg(long)]
    pub reverse: bool,
    #[command(flatten)]
    pub table: CsvArgs,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Overwrite existing files
    #[arg(long)]
    pub force: bool,
}

convert! {
    ProbeFitnessArgs => ProbeFitnessOptions { rate, reverse }
    with [target] { target: target.into() }
    without [table, json, force]
}

/// Runs the usual tests.
pub fn run(mut args: ProbeFitnessArgs, program: &Program) -> Result<()> {
    let token = args.target.token.as_typed();
    args.target.find(program)?;
    let json = args.json;
    let csv = args.table.clone().checked(json, args.force, [])?;
    let result = fitness::probe(&args.into(), program.run())?;
    csv.and(&result, fitness::csv, || {
        output::print(json, &result, |result| text(result, &token))
    })?;
    complete(result.interrupted)?;
    match (result.verdict.fits(), result.rate, result.failed.first()) {
        (Some(false), Some(rate), _) => bail!("neither UDP nor TCP carried {}", show(rate)),
        (None, _, Some(failed)) => bail!("not everything was measured: {failed}"),
        _ => Ok(()),
    }
}

/// Formats the result: a line for each test, the verdict and the next command.
fn text(result: &ProbeFitness, token: &str) -> String {
    let mut lines = vec![format!("latency   {}", latency(result))];
    lines.push(format!("UDP       {}", udp(result)));
    lines.push(format!("TCP       {}", tcp(result)));
    lines.extend(
        result
            .failed
            .iter()
            .map(|failed| format!("failed    {failed}")),
    );
    lines.push(format!(
        "verdict   {}",
        verdict(&result.verdict, result.rate)
    ));
    lines.push(format!("next      {}", next(result, token)));
    lines.join("\n")
}

fn latency(result: &ProbeFitness) -> String {
    let Some(point) = result.latency.points.first() else {
        return "not measured".to_owned();
    };
    let times = point.round_trip.as_ref().map_or(String::new(), |trip| {
        let [least, median, p99] =
            [trip.min, trip.median, trip.p99].map(|time| show_seconds(time as f64 * 1e-9));
        format!("; round-trip time {median} (min {least}, p99 {p99})")
    });
    format!(
        "{} of {} requests answered{times}",
        point.received, point.sent
    )
}

fn udp(result: &ProbeFitness) -> String {
    let Some(capacity) = &result.capacity else {
        return "not measured".to_owned();
    };
    let points = result.udp.as_ref().map(|udp| &udp.points);
    let point = points.and_then(|points| points.first());
    let carried = capacity
        .rate
        .filter(|_| point.is_none_or(|point| point.loss <= MAX_LOSS));
    let found = match carried {
        Some(rate) if capacity.limit == Limit::Path => format!("capacity {}", show_rate(rate)),
        Some(rate) => format!("capacity at least {}", show_rate(rate)),
        None if capacity.rate.is_some() => "a rate passed in a short trial only".to_owned(),
        None => format!("no rate passed with at most {} % lost", MAX_LOSS * 100.0),
    };
    let test = point.map(|point| {
        let (rate, loss) = (show_rate(point.rate_sent), point.loss * 100.0);
        format!("; at {rate} {loss:.4} % lost in {:.1} s", point.seconds)
    });
    found + &test.unwrap_or_default()
}

fn tcp(result: &ProbeFitness) -> String {
    let flows = result.tcp.as_ref().map(|tcp| &tcp.flows);
    let Some(flow) = flows.and_then(|flows| flows.first()) else {
        return "not measured".to_owned();
    };
    let limit = result
        .verdict
        .tcp_limit
        .map(|limit| format!(", limited mostly by {limit}"));
    let (rate, algorithm) = (show_rate(flow.rate), &flow.algorithm);
    format!("{rate} with {algorithm}{}", limit.unwrap_or_default())
}

fn show(rate: BitRate) -> String {
    show_rate(rate.get() as f64)
}

/// Formats the rates that the path is fit for, and what limits it.
fn verdict(verdict: &Verdict, asked: Option<BitRate>) -> String {
    let by = |name: &str, rate: Option<f64>, is_measured: bool| match rate {
        Some(rate) => format!("{} by {name}", show_rate(rate)),
        None if is_measured => {
            format!("nothing by {name} with at most {} % lost", MAX_LOSS * 100.0)
        }
        None => format!("{name} not measured"),
    };
    let carried = format!(
        "{}, {}",
        by("UDP", verdict.udp, verdict.udp_measured),
        by("TCP", verdict.tcp, false)
    );
    let fit = match asked {
        Some(asked) => {
            let fits = match (verdict.udp_fits, verdict.tcp_fits) {
                (Some(true), Some(true)) => "fit for {} by UDP and TCP",
                (Some(true), Some(false)) => "fit for {} by UDP, not by TCP",
                (Some(false), Some(true)) => "fit for {} by TCP, not by UDP",
                (Some(true), None) => "fit for {} by UDP",
                (None, Some(true)) => "fit for {} by TCP",
                (Some(false), Some(false)) => "not fit for {}",
                _ => "unknown whether fit for {}",
            };
            let fits = fits.replace("{}", &show(asked));
            format!("{fits} (carried {carried})")
        }
        None => format!("fit for {carried}"),
    };
    let is_lossy = verdict.udp.is_none() && verdict.udp_loss.is_some();
    let limit = match verdict.limit {
        _ if verdict.udp_fits == Some(true) || !verdict.udp_measured => return fit,
        _ if verdict.next == Next::OpenPorts => "UDP does not pass",
        Limit::Path if is_lossy => "loss on the path is the limit",
        Limit::Unknown if is_lossy => "loss at an unknown place is the limit",
        Limit::Path => "the path is the limit",
        Limit::Sender => "the sending host is the limit, the path may carry more",
        Limit::Receiver => "the receiving host is the limit, the path may carry more",
        Limit::Responder => "the responder allows no more (its --max-rate)",
        Limit::Asked => "higher rates were not tried",
        _ => "the limit is unknown",
    };
    format!("{fit}; {limit}")
}

/// The command that comes next, with the options of the token.
fn next(result: &ProbeFitness, token: &str) -> String {
    let Verdict { udp, tcp, next, .. } = result.verdict;
    let target = &result.target;
    let host = responder::split(target).map_or(target.as_str(), |(host, _)| host);
    let [sender, receiver] = match result.reverse {
        false => ["on this host", "on the remote host"],
        true => ["on the remote host", "on this host"],
    };
    let sent = result.udp.as_ref().and_then(|udp| udp.points.first());
    let measured = udp.or(sent.map(|point| point.rate_sent)).or(tcp);
    let rate = result
        .rate
        .unwrap_or_else(|| rounded(measured.unwrap_or(10e6)));
    match next {
        Next::Send => {
            let by_tcp = udp.is_none() || result.verdict.tcp_fits == Some(true) && result.verdict.udp_fits == Some(false);
            let scheme = if by_tcp { "tcp" } else { "udp" };
            let carried = if by_tcp { tcp } else { udp };
            let rate = match result.verdict.fits() {
                Some(true) => rate,
                _ => rounded(carried.unwrap_or(10e6)),
            };
            let to = match (result.reverse, host.contains(':')) {
                (true, _) => "THIS-HOST".to_owned(),
                (false, true) => format!("[{host}]"),
                (false, false) => host.to_owned(),
            };
            format!("{sender}: evlbi send FILE --to {scheme}://{to}:2630 --rate {rate}")
        }
        Next::OpenPorts => {
            "on the remote host: evlbi respond --ports 8621-8640, and let these ports through the firewall (UDP)".to_owned()
        }
        Next::TuneSender => format!("{sender}: evlbi doctor --rate {rate}"),
        Next::TuneReceiver => format!("{receiver}: evlbi doctor --rate {rate}"),
        Next::RaiseLimit => "on the remote host: evlbi respond with a higher --max-rate".to_owned(),
        Next::FindLoss => {
            let reverse = if result.reverse { " --reverse" } else { "" };
            format!("on this host: evlbi probe udp {target}{token} --rate {rate} --duration 60s{reverse} --plot loss.svg")
        }
        Next::PlanTcp => {
            // In whole microseconds, of which a plan needs at least one.
            let trip = result.min_round_trip().unwrap_or(0);
            let micros = trip.max(1000).cast_unsigned() / 1000;
            let trip = units::span(Duration::from_micros(micros));
            format!("on this host: evlbi plan tcp --rate {rate} --rtt {trip}")
        }
    }
}

const MIN_RATE: BitRate = BitRate::new(1).expect("above 0");

/// Three digits of a rate, rounded down, as the command line takes it.
fn rounded(rate: f64) -> BitRate {
    let step = 10_f64.powi(rate.max(1.0).log10() as i32 - 2).max(1.0);
    let rate = (rate / step).floor() * step;
    BitRate::new(rate as u64).unwrap_or(MIN_RATE)
}

#[cfg(test)]
mod tests {
    use evlbi_probe::latency::ProbeLatency;

    use super::*;

    fn result(target: &str, verdict: Verdict) -> ProbeFitness {
        ProbeFitness {
            schema: "evlbi.probe/1",
            target: target.to_owned(),
            begun: String::new(),
            rate: None,
            reverse: false,
            latency: ProbeLatency::default(),
            capacity: None,
            udp: None,
            tcp: None,
            failed: Vec::new(),
            verdict,
            interrupted: false,
        }
    }

    fn found(limit: Limit) -> Verdict {
        Verdict {
            udp: Some(846.35e6),
            udp_measured: true,
            udp_loss: Some(0.0),
            limit,
            tcp: Some(612.2e6),
            ..Verdict::default()
        }
    }

    #[test]
    fn a_verdict_states_the_rates_that_the_path_is_fit_for() {
        let both = "fit for 846.350 Mbit/s by UDP, 612.200 Mbit/s by TCP";
        for (limit, says) in [
            (Limit::Path, "the path is the limit"),
            (
                Limit::Sender,
                "the sending host is the limit, the path may carry more",
            ),
            (
                Limit::Receiver,
                "the receiving host is the limit, the path may carry more",
            ),
            (
                Limit::Responder,
                "the responder allows no more (its --max-rate)",
            ),
            (Limit::Asked, "higher rates were not tried"),
            (Limit::Unknown, "the limit is unknown"),
        ] {
            assert_eq!(verdict(&found(limit), None), format!("{both}; {says}"));
        }
        let lossy = Verdict {
            udp: None,
            udp_loss: Some(0.02),
            tcp: None,
            ..found(Limit::Path)
        };
        assert_eq!(
            verdict(&lossy, None),
            "fit for nothing by UDP with at most 0.1 % lost, TCP not measured; loss on the path is the limit"
        );
    }

    #[test]
    fn a_verdict_answers_for_the_rate_that_is_asked_for() {
        let asked = "900M".parse().ok();
        let carried = "(carried 846.350 Mbit/s by UDP, 612.200 Mbit/s by TCP)";
        for (udp_fits, tcp_fits, says) in [
            (
                true,
                true,
                format!("fit for 900.000 Mbit/s by UDP and TCP {carried}"),
            ),
            (
                true,
                false,
                format!("fit for 900.000 Mbit/s by UDP, not by TCP {carried}"),
            ),
            (
                false,
                true,
                format!(
                    "fit for 900.000 Mbit/s by TCP, not by UDP {carried}; the path is the limit"
                ),
            ),
            (
                false,
                false,
                format!("not fit for 900.000 Mbit/s {carried}; the path is the limit"),
            ),
        ] {
            let found = Verdict {
                udp_fits: Some(udp_fits),
                tcp_fits: Some(tcp_fits),
                ..found(Limit::Path)
            };
            assert_eq!(verdict(&found, asked), says);
        }
    }

    #[test]
    fn the_next_command_can_be_typed() {
        let of = |target: &str, verdict: Verdict| next(&result(target, verdict), " --token T");
        let send = found(Limit::Path);
        assert_eq!(
            of("jive:8620", send.clone()),
            "on this host: evlbi send FILE --to udp://jive:2630 --rate 846M"
        );
        assert_eq!(
            of(
                "::1",
                Verdict {
                    udp: None,
                    ..send.clone()
                }
            ),
            "on this host: evlbi send FILE --to tcp://[::1]:2630 --rate 612M"
        );
        let back = ProbeFitness {
            reverse: true,
            ..result("jive", send.clone())
        };
        assert_eq!(
            next(&back, ""),
            "on the remote host: evlbi send FILE --to udp://THIS-HOST:2630 --rate 846M"
        );
        // The rate that the path carries, not the requested one.
        let asked = ProbeFitness {
            rate: "900M".parse().ok(),
            verdict: Verdict {
                udp_fits: Some(false),
                tcp_fits: Some(false),
                ..send.clone()
            },
            ..result("jive", send.clone())
        };
        assert!(next(&asked, "").ends_with("--rate 846M"));
        for (next, says) in [
            (Next::OpenPorts, "on the remote host: evlbi respond --ports"),
            (Next::TuneSender, "on this host: evlbi doctor --rate 846M"),
            (
                Next::TuneReceiver,
                "on the remote host: evlbi doctor --rate 846M",
            ),
            (
                Next::RaiseLimit,
                "on the remote host: evlbi respond with a higher --max-rate",
            ),
            (
                Next::FindLoss,
                "on this host: evlbi probe udp jive --token T --rate 846M --duration 60s --plot loss.svg",
            ),
            (
                Next::PlanTcp,
                "on this host: evlbi plan tcp --rate 846M --rtt 1us",
            ),
        ] {
            let said = of(
                "jive",
                Verdict {
                    next,
                    ..send.clone()
                },
            );
            assert!(said.starts_with(says), "{said}");
        }
    }

    /// Options of the default tests are not lost before the command of one of them.
    #[test]
    fn options_belong_behind_the_command() {
        use crate::cli::Cli;
        use clap::Parser;
        let parsed = |line: &str| Cli::try_parse_from(line.split(' ')).map(drop);
        for good in [
            "evlbi probe jive --token t --rate 900M --reverse",
            "evlbi probe udp jive --token t --rate 900M",
            "evlbi probe -v udp jive --token t --rate 900M",
        ] {
            assert!(parsed(good).is_ok(), "{good}");
        }
        for bad in [
            "evlbi probe --reverse udp jive --token t",
            "evlbi probe jive udp jive --token t",
        ] {
            let error = parsed(bad).unwrap_err().to_string();
            assert!(error.contains("belongs behind the command"), "{error}");
        }
    }

    #[test]
    fn rates_are_rounded_down() {
        for (rate, shown) in [
            (846.35e6, "846M"),
            (1.2345e9, "1.23G"),
            (999.0, "999"),
            (0.0, "1"),
        ] {
            assert_eq!(rounded(rate).to_string(), shown);
        }
    }
}
