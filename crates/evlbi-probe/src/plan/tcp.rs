//! Needs of a constant bit rate over TCP.

use std::time::Duration;

use evlbi_core::packetise::Family;
use evlbi_core::rate::BitRate;
use evlbi_core::shed::wire_bytes_of_segment;
use evlbi_net::file::TableError;
use evlbi_trace::tcp::{Algorithm, Cbr};
use serde::Serialize;

use super::table;
use crate::csv::{self, Column, cell};
use evlbi_wire::units::{show_bytes, show_rate, show_seconds};

/// Default rate.
const RATE: BitRate = BitRate::new(512_000_000).expect("above 0");
/// Source of Reno's equations (EXPReS report, section 2.2.4, with b; Mathis et al. 1997).
const EQUATIONS: &str =
    "equations: recovery b C RTT^2 / (2 MSS), delayed C recovery / 4, loss 3 / (2 b W^2)";
/// Source of BBR's figures (Cardwell et al. 2016, version 1).
const PROBE: &str = "its probe of the round-trip time, every 10 s: 4 segments in flight for 200 ms or a round trip; a loss alone does \
     not slow it down, up to 1 - 1 / 1.25 of the segments";

/// A flow of constant bit rate over TCP.
#[derive(Clone, Debug)]
pub struct PlanTcpOptions {
    /// Bits of payload per second.
    pub rate: BitRate,
    /// Round-trip times; [`plan`] takes one.
    pub rtt: Vec<Duration>,
    /// Payload of a segment in bytes.
    pub mss: u32,
    /// Congestion control algorithms; empty for all.
    pub algorithm: Vec<Algorithm>,
    /// Segments for each step of the window: 1 where the kernel counts segments, 2 where it counts delayed acknowledgements.
    pub acks: u32,
    /// Buffer of the sender, in bytes; `None` for no limit.
    pub buffer: Option<u64>,
    /// Rate of the narrowest link on the wire; `None` for 1 Gbit/s in simulations, and no limit otherwise.
    pub link: Option<BitRate>,
    /// Fractions of lost segments; [`plan`] takes one.
    pub loss: Vec<f64>,
    /// Length of a simulation with random loss.
    pub duration: Duration,
}

impl Default for PlanTcpOptions {
    fn default() -> PlanTcpOptions {
        PlanTcpOptions {
            rate: RATE,
            rtt: Vec::new(),
            mss: 1448,
            algorithm: Vec::new(),
            acks: 1,
            buffer: None,
            link: None,
            loss: Vec::new(),
            duration: Duration::from_secs(30),
        }
    }
}

/// Reason why the needs of a flow cannot be calculated or simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanTcpError {
    /// A calculation is for one round-trip time.
    #[error("a plan is for one round-trip time")]
    NotOneRtt,
    /// A calculation is for one loss fraction.
    #[error("a plan is for one loss fraction")]
    NotOneLoss,
    /// The round-trip time is 0.
    #[error("round-trip time of 0")]
    NoRtt,
    /// The link is too slow.
    #[error(
        "{} of payload do not fit a link of {}: in segments of {segment} bytes it carries {}",
        show_rate(*rate),
        show_rate(*link),
        show_rate(*carried)
    )]
    TooSlow {
        /// Requested payload, in bits per second.
        rate: f64,
        /// Bits per second on the wire.
        link: f64,
        /// Payload of a segment in bytes.
        segment: u32,
        /// Payload that it carries, in bits per second.
        carried: f64,
    },
    /// The run was stopped.
    #[error("interrupted before the end")]
    Interrupted,
}

/// Needs of a flow. Data in bytes, times in seconds, rates in bits per second.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TcpPlan {
    /// Name and version of the result's JSON.
    pub schema: &'static str,
    /// Payload to carry, in bits per second.
    pub rate: u64,
    /// Round-trip time in seconds.
    pub rtt_s: f64,
    /// Payload of a segment, in bytes.
    pub mss: u32,
    /// Segments for each step of the window (b).
    pub acks: u32,
    /// Payload that the link carries, in bits per second; `None` if no link was given.
    pub link_payload: Option<f64>,
    /// Bandwidth-delay product, in bytes.
    pub bdp_bytes: f64,
    /// Bandwidth-delay product, in segments.
    pub window: f64,
    /// Needs of the algorithm, if only one was requested.
    #[serde(flatten)]
    pub only: Option<OfAlgorithm>,
    /// Needs of each algorithm, if several were requested.
    #[serde(rename = "laws", skip_serializing_if = "Vec::is_empty")]
    pub algorithms: Vec<OfAlgorithm>,
}

/// Needs of one congestion control algorithm.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OfAlgorithm {
    /// Name of the algorithm.
    pub algorithm: &'static str,
    /// Source of the figures.
    pub by: &'static str,
    /// Recovery time after a loss, in seconds.
    pub recovery_s: f64,
    /// Maximum backlog in that time, in bytes.
    pub delayed_bytes: f64,
    /// Catch-up time: from a loss until messages are on time again, in seconds; `None` if they never are.
    pub drain_s: Option<f64>,
    /// Required buffer of the sender, in bytes.
    pub buffer_bytes: f64,
    /// Maximum loss fraction at which the rate survives; `None` if any does.
    pub max_loss: Option<f64>,
    /// Whether the given buffer holds the late data.
    pub buffer_suffices: Option<bool>,
    /// Whether the rate survives the given loss.
    pub rate_survives: Option<bool>,
}

/// Returns the requested flow.
pub(super) fn flow(
    options: &PlanTcpOptions,
    round_trip: Duration,
    link: Option<u64>,
) -> Result<Cbr, PlanTcpError> {
    let rate = options.rate.get() as f64;
    let round_trip = round_trip.as_secs_f64();
    if round_trip <= 0.0 {
        return Err(PlanTcpError::NoRtt);
    }
    let payload = |link: u64| link as f64 * f64::from(options.mss) / wire(options) as f64;
    if let Some(link) = link.filter(|link| payload(*link) < rate) {
        return Err(PlanTcpError::TooSlow {
            rate,
            link: link as f64,
            segment: options.mss,
            carried: payload(link),
        });
    }
    Ok(Cbr {
        rate,
        round_trip,
        segment: f64::from(options.mss),
        per_step: f64::from(options.acks),
        link: link.map_or(f64::INFINITY, payload),
    })
}

/// Returns the bytes of a segment on Ethernet.
pub(super) fn wire(options: &PlanTcpOptions) -> u64 {
    wire_bytes_of_segment(options.mss as usize, Family::V4)
}

/// Returns the requested algorithms, or all.
pub(super) fn algorithms(options: &PlanTcpOptions) -> &[Algorithm] {
    match options.algorithm.as_slice() {
        [] => &Algorithm::ALL,
        some => some,
    }
}

/// Calculates the needs of a flow.
///
/// # Errors
/// [`PlanTcpError`] if there is not one round-trip time, there are several loss fractions, or the link is too slow.
pub fn plan(options: &PlanTcpOptions) -> Result<TcpPlan, PlanTcpError> {
    let [round_trip] = options.rtt.as_slice() else {
        return Err(PlanTcpError::NotOneRtt);
    };
    if options.loss.len() > 1 {
        return Err(PlanTcpError::NotOneLoss);
    }
    let flow = flow(options, *round_trip, options.link.map(BitRate::get))?;
    let mut all: Vec<OfAlgorithm> = algorithms(options)
        .iter()
        .map(|algorithm| of_algorithm(options, &flow, *algorithm))
        .collect();
    let only = (all.len() == 1).then(|| all.remove(0));
    Ok(TcpPlan {
        schema: "evlbi.plan.tcp/1",
        rate: options.rate.get(),
        rtt_s: flow.round_trip,
        mss: options.mss,
        acks: options.acks,
        link_payload: flow.link.is_finite().then_some(flow.link),
        bdp_bytes: flow.bdp(),
        window: flow.window(),
        only,
        algorithms: all,
    })
}

fn of_algorithm(options: &PlanTcpOptions, flow: &Cbr, algorithm: Algorithm) -> OfAlgorithm {
    let needs = flow.needs(algorithm);
    OfAlgorithm {
        algorithm: algorithm.name(),
        by: match algorithm {
            Algorithm::Reno => EQUATIONS,
            Algorithm::Bbr => PROBE,
            _ => "steps of the algorithm, one round trip at a time",
        },
        recovery_s: needs.recovery,
        delayed_bytes: needs.delayed,
        drain_s: needs.drain,
        buffer_bytes: needs.buffer,
        max_loss: needs.max_loss,
        buffer_suffices: options.buffer.map(|there| there as f64 >= needs.buffer),
        rate_survives: (options.loss.first())
            .map(|loss| needs.max_loss.is_none_or(|most| *loss <= most)),
    }
}

/// Formats it as text.
pub fn text(plan: &TcpPlan, options: &PlanTcpOptions) -> String {
    let mut lines = vec![format!(
        "{} over {}: {} in flight, {:.0} segments of {} bytes; the window steps by {} segment{} acknowledged",
        show_rate(plan.rate as f64),
        show_seconds(plan.rtt_s),
        show_bytes(plan.bdp_bytes),
        plan.window,
        plan.mss,
        plan.acks,
        if plan.acks == 1 { "" } else { "s" },
    )];
    let all = || plan.only.iter().chain(&plan.algorithms);
    let rows = all().map(|of| {
        let drain = of.drain_s.map(|time| format!("{time:.2} s"));
        let loss = of.max_loss.map(|loss| format!("{loss:.2e}"));
        vec![
            of.algorithm.to_owned(),
            format!("{:.2} s", of.recovery_s),
            show_bytes(of.delayed_bytes),
            drain.unwrap_or("never".into()),
            show_bytes(of.buffer_bytes),
            loss.unwrap_or("any".into()),
        ]
    });
    let heads = ",recovery,delayed,on time after,buffer,max. loss";
    lines.push(table(heads, rows));
    let failed = |holds: fn(&OfAlgorithm) -> Option<bool>| {
        let some = all().filter(|of| holds(of) == Some(false));
        some.map(|of| of.algorithm)
            .collect::<Vec<&str>>()
            .join(", ")
    };
    if let Some(buffer) = options.buffer {
        let buffer = show_bytes(buffer as f64);
        let too_small = failed(|of| of.buffer_suffices);
        lines.push(match too_small.is_empty() {
            true => format!("{buffer} hold the late data"),
            false => {
                format!("{buffer} are too few for {too_small}: the source blocks, or must shed")
            }
        });
    }
    if let Some(loss) = options.loss.first() {
        let too_much = failed(|of| of.rate_survives);
        lines.push(match too_much.is_empty() {
            true => format!("the rate survives a loss of {loss:.2e}"),
            false => format!("a loss of {loss:.2e} is too much for {too_much}"),
        });
    }
    if all().any(|of| of.algorithm == "reno") {
        lines.push(format!("reno by {EQUATIONS}, with b = --acks"));
    }
    for of in all().filter(|of| of.max_loss.is_none()) {
        lines.push(format!(
            "{}: a loss leaves its window as it is, so its steps give no maximum",
            of.algorithm
        ));
    }
    if all().any(|of| of.algorithm == "bbr") {
        lines.push(format!("bbr by {PROBE}"));
    }
    lines.join("\n")
}

/// Formats it as CSV, a row for each algorithm.
///
/// # Errors
/// [`TableError`] if a row has no form in CSV.
pub fn csv(plan: &TcpPlan) -> Result<String, TableError> {
    let columns: &[Column<(&TcpPlan, &OfAlgorithm)>] = &[
        ("rate_bps", |(plan, _)| plan.rate.to_string()),
        ("rtt_s", |(plan, _)| plan.rtt_s.to_string()),
        ("bdp_bytes", |(plan, _)| plan.bdp_bytes.to_string()),
        ("algorithm", |(_, needs)| needs.algorithm.to_owned()),
        ("recovery_s", |(_, needs)| needs.recovery_s.to_string()),
        ("delayed_bytes", |(_, needs)| {
            needs.delayed_bytes.to_string()
        }),
        ("drain_s", |(_, needs)| cell(needs.drain_s)),
        ("buffer_bytes", |(_, needs)| needs.buffer_bytes.to_string()),
        ("max_loss", |(_, needs)| cell(needs.max_loss)),
        ("buffer_suffices", |(_, needs)| cell(needs.buffer_suffices)),
        ("rate_survives", |(_, needs)| cell(needs.rate_survives)),
    ];
    let all = plan.only.iter().chain(&plan.algorithms);
    csv::table(columns, all.map(|needs| (plan, needs)))
}
