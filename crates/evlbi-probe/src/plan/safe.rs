//! Losses at which a flow under SafeUDP acts.

use std::time::Duration;

use evlbi_core::rate::BitRate;
use evlbi_net::file::TableError;
use evlbi_net::safe::{Flow, Mode, SEVERE_FLOWS, SEVERE_LOSS, Settings, Step};
use evlbi_wire::units::{show_count, show_rate, show_seconds};
use serde::Serialize;

use crate::csv::{self, Column};

/// Default rate.
const RATE: BitRate = BitRate::new(512_000_000).expect("above 0");

/// A flow, and the paths that it may take.
#[derive(Clone, Debug)]
pub struct PlanSafeOptions {
    /// Bits of data per second.
    pub rate: BitRate,
    /// Round-trip times.
    pub rtt: Vec<Duration>,
    /// Data in each datagram, in bytes.
    pub size: u16,
    /// Protection of the path.
    pub mode: Mode,
    /// Number of TCP flows that the flow may count as, from 0.01 to 10.
    pub weight: f64,
    /// The smallest fraction of the data that is of use.
    pub least: Step,
}

impl Default for PlanSafeOptions {
    fn default() -> PlanSafeOptions {
        let usual = Settings::default();
        PlanSafeOptions {
            rate: RATE,
            rtt: Vec::new(),
            size: 1424,
            mode: usual.mode,
            weight: usual.weight,
            least: usual.least,
        }
    }
}

/// Limits of a flow under SafeUDP on paths.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SafePlan {
    schema: &'static str,
    mode: Mode,
    /// Bits of data per second.
    rate_bps: u64,
    /// Data in each datagram, in bytes.
    size_bytes: u16,
    datagrams_per_s: f64,
    /// Number of TCP flows that it may count as (k).
    weight: f64,
    /// The smallest fraction of the data that is sent.
    least: f64,
    /// Fraction of lost datagrams in a window above which any flow sheds, and stops at `least`.
    severe_loss: f64,
    /// Limits for each round-trip time; none in mode reserved, where only `severe_loss` counts.
    rows: Vec<Row>,
}

/// A limit of a flow on a path: where its class changes (SafeUDP, section 6).
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Row {
    /// Round-trip time in seconds.
    rtt_s: f64,
    /// Effect of more loss, if it lasts.
    event: Event,
    /// Fraction of the data that is sent at this limit.
    kept: f64,
    /// Number of TCP flows as which the flow counts there (q).
    q: f64,
    /// Loss event rate (RFC 5348): loss events per datagram.
    loss_event_rate: f64,
    /// Rate that TCP would have there, in bits of data per second.
    x_tcp_bps: f64,
    /// Mean number of datagrams from one loss event to the next.
    datagrams: f64,
    /// Mean time from one loss event to the next, in seconds.
    interval_s: f64,
}

/// Effect of a loss above a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
enum Event {
    /// The flow takes more than one TCP flow would: class watch, without an effect.
    Watch,
    /// Data are shed: class act.
    Shed,
    /// At the smallest fraction, no data are sent: class severe.
    Stop,
}

impl Event {
    fn name(self) -> &'static str {
        match self {
            Event::Watch => "watch",
            Event::Shed => "shed",
            Event::Stop => "stop",
        }
    }
}

/// Calculates the losses at which a flow acts. A limit above a loss of a tenth is a tenth, which counts whatever the rate of TCP is.
pub fn plan(options: &PlanSafeOptions) -> SafePlan {
    let settings = Settings {
        mode: options.mode,
        weight: options.weight,
        ..Settings::default()
    };
    let (weight, size) = (settings.weight(), f64::from(options.size.max(1)));
    let rate = options.rate.get() as f64;
    let datagrams_per_s = rate / (8.0 * size);
    let limits = [
        (Event::Watch, Step::ALL, 1.0),
        (Event::Shed, Step::ALL, weight),
        (Event::Stop, options.least, SEVERE_FLOWS),
    ];
    let row = |rtt: &Duration, (event, step, flows): (Event, Step, f64)| {
        let (rtt_s, kept) = (rtt.as_secs_f64(), step.kept());
        let flow = Flow {
            rate: rate * kept,
            round_trip: rtt_s,
            size,
        };
        let p = flow.loss_at(flows).min(SEVERE_LOSS);
        Row {
            rtt_s,
            event,
            kept,
            q: flow.flows(p),
            loss_event_rate: p,
            x_tcp_bps: evlbi_net::safe::tcp_rate(size, rtt_s, p),
            datagrams: 1.0 / p,
            interval_s: 1.0 / (p * datagrams_per_s * kept),
        }
    };
    let is_reserved = options.mode == Mode::Reserved;
    let paths = options.rtt.iter().filter(|_| !is_reserved);
    SafePlan {
        schema: "evlbi.plan.safe/1",
        mode: options.mode,
        rate_bps: options.rate.get(),
        size_bytes: options.size,
        datagrams_per_s,
        weight,
        least: options.least.kept(),
        severe_loss: SEVERE_LOSS,
        rows: paths
            .flat_map(|rtt| limits.map(|limit| row(rtt, limit)))
            .collect(),
    }
}

/// Formats it as text.
pub fn text(plan: &SafePlan) -> String {
    let least = format!("{}/16", plan.least * 16.0);
    let mut lines = vec![format!(
        "{} in {:.0} datagrams of {} bytes per second, at least {least} of the data",
        show_rate(plan.rate_bps as f64),
        plan.datagrams_per_s,
        plan.size_bytes,
    )];
    for row in &plan.rows {
        if row.event == Event::Watch {
            let rtt = show_seconds(row.rtt_s);
            lines.push(format!(
                "over {rtt}, if more loss events than these per datagram last:"
            ));
        }
        let effect = match row.event {
            Event::Watch => "more than one TCP flow from".to_owned(),
            Event::Shed => "shed at about".to_owned(),
            Event::Stop => format!("stop (at {least}) at about"),
        };
        lines.push(format!(
            "  {effect} {:.1e}: one event in {} datagrams, {}; TCP has {}, the flow counts as {:.1}",
            row.loss_event_rate,
            show_count(row.datagrams as u64),
            show_seconds(row.interval_s),
            show_rate(row.x_tcp_bps),
            row.q,
        ));
    }
    lines.push(format!(
        "over any path: shed, and stop at {least}, if more than {} % of the datagrams are lost",
        plan.severe_loss * 100.0
    ));
    lines.join("\n")
}

/// Formats it as CSV, one row per limit.
///
/// # Errors
/// [`TableError`] if a row has no form in CSV.
pub fn csv(plan: &SafePlan) -> Result<String, TableError> {
    let columns: &[Column<Row>] = &[
        ("rtt_s", |row| row.rtt_s.to_string()),
        ("event", |row| row.event.name().to_owned()),
        ("kept", |row| row.kept.to_string()),
        ("q", |row| row.q.to_string()),
        ("loss_event_rate", |row| row.loss_event_rate.to_string()),
        ("x_tcp_bps", |row| row.x_tcp_bps.to_string()),
        ("datagrams", |row| row.datagrams.to_string()),
        ("interval_s", |row| row.interval_s.to_string()),
    ];
    csv::table(columns, &plan.rows)
}
