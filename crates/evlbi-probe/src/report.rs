//! Report of a campaign: throughput, loss and its times, as findings and a plot. Also: results of many probes in one table (`evlbi
//! report`).
//!
//! Text and plots of finished tests belong here.

pub mod matrix;

use std::io::Read;
use std::path::{Path, PathBuf};

use evlbi_net::file::TableError;
use evlbi_plot::{Axis, Figure, Series, Style, Unit};
use evlbi_wire::units::{show_count, show_rate, utc};
use serde::Serialize;

use crate::csv::{Column, cell, table};
use crate::direction::Direction;
use crate::finding::{in_time, where_lost};
use crate::measure::{Pattern, Window};
use crate::picture;
use crate::watch::store::{Plan, Row, Store, StoreError, Stretch};

/// Fraction of the windows with loss that are within the smaller of the two scales of loss.
const SMALL: f64 = 0.9;

/// The report of a campaign.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Report {
    /// Name and version of the result's JSON.
    pub schema: &'static str,
    /// The file of the campaign.
    pub file: PathBuf,
    /// Its plan; `None` before its first flow.
    pub plan: Option<Plan>,
    /// The tested directions.
    pub directions: Vec<DirectionReport>,
    /// Periods in which it was running, and reasons for interruptions.
    pub runs: Vec<Stretch>,
    /// All windows, in order of time.
    pub windows: Vec<Row>,
}

/// One direction. Rates are bits of UDP payload per second.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DirectionReport {
    /// The direction.
    pub direction: Direction,
    /// Sent datagrams.
    pub sent: u64,
    /// Received datagrams, each counted once.
    pub unique: u64,
    /// Datagrams that never arrived, or too late.
    pub lost: u64,
    /// Of the lost, those lost in the network.
    pub network_lost: u64,
    /// Of the lost, those dropped by the hosts or their NICs.
    pub host_lost: u64,
    /// Of the lost, those at an unknown place.
    pub unattributed: u64,
    /// Arrivals beyond the first of a datagram.
    pub duplicates: u64,
    /// Datagrams that arrived after later ones (RFC 4737).
    pub reordered: u64,
    /// From the first window to the last, in seconds.
    pub seconds: f64,
    /// Seconds of these that windows cover.
    pub covered: f64,
    /// Mean received rate during windows, in bits per second.
    pub rate_received: f64,
    /// Maximum deviation of the received rates from their median in nine of ten windows, as a fraction of it; `None` for fewer than ten
    /// windows, or if nothing arrived in most of them.
    pub rate_spread: Option<f64>,
    /// Number of times that the campaign ended early, or was killed.
    pub interrupted: usize,
    /// Distribution of loss over time.
    pub pattern: Pattern,
    /// Finding, in a sentence.
    pub finding: String,
}

/// Returns whether a file holds the output of a probe, not a campaign.
pub fn is_result(file: &Path) -> bool {
    let mut begin = [0];
    let read = std::fs::File::open(file).and_then(|mut file| file.read_exact(&mut begin));
    read.is_ok() && begin == *b"{"
}

/// Reads the results of a campaign, which may still be running.
///
/// # Errors
/// [`StoreError`] if the file is not one of a campaign, or has impossible values.
pub fn read(file: &Path) -> Result<Report, StoreError> {
    let store = Store::read(file)?;
    let windows = store.rows()?;
    let runs = store.runs()?;
    // The last one may be running.
    let others = runs.iter().rev().skip(1);
    let interrupted = others.filter(|run| run.ended.is_none()).count()
        + runs.iter().filter(|run| run.reason.is_some()).count();
    Ok(Report {
        schema: "evlbi.report/1",
        file: file.to_owned(),
        plan: store.plan()?,
        directions: Direction::BOTH
            .into_iter()
            .filter_map(|way| summary(way, &windows, interrupted))
            .collect(),
        runs,
        windows,
    })
}

/// Summarises a direction; `None` without windows.
fn summary(direction: Direction, windows: &[Row], interrupted: usize) -> Option<DirectionReport> {
    let all = || windows.iter().filter(|row| row.direction == direction);
    let (first, last) = (all().next()?, all().next_back()?);
    let sum = |get: fn(&Row) -> u64| all().map(get).sum::<u64>();
    let length = |row: &Row| (row.end - row.begin).max(0.0);
    let covered: f64 = all().map(length).sum();
    let bits: f64 = all().map(|row| row.rate_received * length(row)).sum();
    let in_windows = all().map(|row| Window {
        begin: row.begin,
        end: row.end,
        sent: row.sent,
        lost: row.lost,
        runs: row.runs,
    });
    let mut way = DirectionReport {
        direction,
        sent: sum(|row| row.sent),
        unique: sum(|row| row.unique),
        lost: sum(|row| row.lost),
        network_lost: sum(|row| row.network_lost),
        host_lost: sum(|row| row.host_lost),
        unattributed: sum(|row| row.unattributed),
        duplicates: sum(|row| row.duplicates),
        reordered: sum(|row| row.reordered),
        seconds: last.end - first.begin,
        covered,
        rate_received: bits / covered.max(1e-9),
        rate_spread: spread(all().map(|row| row.rate_received).collect()),
        interrupted,
        pattern: Pattern::of(&in_windows.collect::<Vec<Window>>()),
        finding: String::new(),
    };
    way.finding = finding(&way);
    Some(way)
}

fn spread(mut rates: Vec<f64>) -> Option<f64> {
    if rates.len() < 10 {
        return None;
    }
    rates.sort_by(f64::total_cmp);
    let median = rates[rates.len() / 2];
    if median == 0.0 {
        return None;
    }
    let off = rates.iter().map(|rate| (rate / median - 1.0).abs());
    let mut off: Vec<f64> = off.collect();
    off.sort_by(f64::total_cmp);
    Some(off[(off.len() * 9).div_ceil(10) - 1])
}

fn finding(way: &DirectionReport) -> String {
    let (rate, length) = (show_rate(way.rate_received), show_length(way.seconds));
    let mut text = format!("{} at {rate} for {length}", way.direction.label());
    if let Some(spread) = way.rate_spread {
        text += &format!(" (nine of ten windows within {})", show_part(spread));
    }
    let interrupted = match way.interrupted {
        0 => String::new(),
        1 => "; interrupted once".to_owned(),
        times => format!("; interrupted {times} times"),
    };
    if way.lost == 0 {
        let sent = show_count(way.sent);
        return format!("{text}: nothing lost of {sent}{interrupted}");
    }
    let [lost, sent] = [way.lost, way.sent].map(show_count);
    let part = show_part(way.lost as f64 / way.sent.max(1) as f64);
    let places = [
        (way.network_lost, "in the network"),
        (way.host_lost, "in the hosts"),
        (way.unattributed, "at an unknown place"),
    ];
    let places = where_lost(&places, show_count);
    let pattern = in_time(&way.pattern);
    format!("{text}: {lost} of {sent} lost ({part}), {places}{pattern}{interrupted}")
}

/// Formats a fraction in per cent, however small.
fn show_part(part: f64) -> String {
    match part * 100.0 {
        percent if percent == 0.0 || percent >= 1e-3 => format!("{percent:.5} %"),
        percent => format!("{percent:.1e} %"),
    }
}

/// Returns a suitable unit for a time, in seconds, and its name.
fn unit_of_length(seconds: f64) -> (f64, &'static str) {
    match seconds {
        short if short < 600.0 => (1.0, "s"),
        short if short < 18_000.0 => (60.0, "min"),
        _ => (3600.0, "h"),
    }
}

fn show_length(seconds: f64) -> String {
    let (unit, name) = unit_of_length(seconds);
    format!("{:.1} {name}", seconds / unit)
}

/// Formats the report as text.
pub fn text(report: &Report) -> String {
    let findings = report.directions.iter().map(|way| way.finding.clone());
    let mut lines: Vec<String> = findings.collect();
    if lines.is_empty() {
        lines.push("no window was settled".to_owned());
    }
    let plan = report.plan.as_ref();
    let is_continuous = plan.is_some_and(|plan| plan.every.is_none());
    for way in &report.directions {
        let missing = way.seconds - way.covered;
        if is_continuous && missing > 0.01 * way.seconds {
            let percent = missing * 100.0 / way.seconds.max(1e-9);
            let way = way.direction.label();
            lines.push(format!(
                "{way}: {percent:.1} % of the time was not measured"
            ));
        }
    }
    for run in &report.runs {
        let begun = utc(run.begun);
        match (&run.reason, run.ended) {
            (Some(reason), _) => lines.push(format!("the run of {begun} ended: {reason}")),
            (None, None) => lines.push(format!("the run of {begun} is running, or was killed")),
            _ => {}
        }
    }
    lines.join("\n")
}

/// Plots the report.
pub fn figure(report: &Report) -> Figure {
    let windows = || report.windows.iter();
    let begin = windows().map(|row| row.begin).fold(f64::INFINITY, f64::min);
    let end = windows().map(|row| row.end).fold(0.0, f64::max);
    let (unit, name) = unit_of_length(end - begin);
    let time = |row: &Row| ((row.begin + row.end) / 2.0 - begin) / unit;
    let series = |get: &dyn Fn(&Row) -> f64, style| -> Vec<Series> {
        let of = Direction::BOTH.into_iter().map(|way| Series {
            name: way.label().to_owned(),
            points: windows()
                .filter(|row| row.direction == way)
                .map(|row| (time(row), get(row)))
                .collect(),
            style,
            ..Series::default()
        });
        of.filter(|series| !series.points.is_empty()).collect()
    };
    let loss = |row: &Row| 100.0 * row.lost as f64 / row.sent.max(1) as f64;
    let mut losses: Vec<f64> = windows().map(loss).filter(|loss| *loss > 0.0).collect();
    losses.sort_by(f64::total_cmp);
    let most = losses.last().copied().unwrap_or(1.0);
    let at = ((losses.len() as f64 * SMALL) as usize).min(losses.len().saturating_sub(1));
    let small = losses.get(at).copied().unwrap_or(1.0);
    let panel = |title: &str, y: Axis, series| {
        let x = Axis::new(&format!("time ({name})"), Unit::Bare);
        picture::panel(title, x, y, series)
    };
    let loss_to = |most: f64| Axis {
        range: Some((0.0, most * 1.05)),
        ..Axis::new("loss (%)", Unit::Bare)
    };
    let rate = Axis::new("rate", Unit::Si("bit/s"));
    let on_the_wire = series(&|row| row.rate_received * row.wire_factor, Style::Line);
    let lost = series(&loss, Style::Dots);
    let mut panels = vec![
        panel("received on the wire", rate, on_the_wire),
        panel("lost", loss_to(most), lost.clone()),
    ];
    if small < most / 2.0 {
        let title = "the same, enlarged; larger values are outside";
        panels.push(panel(title, loss_to(small), lost));
    }
    panels.push(panel(
        "jitter (RFC 3550)",
        Axis::new("jitter", Unit::Si("s")),
        series(&|row| row.jitter * 1e-9, Style::Line),
    ));
    let target = report.plan.as_ref().map_or("", |plan| plan.target.as_str());
    Figure {
        title: match begin.is_finite() {
            true => format!("UDP to {target} from {}", utc(begin)),
            false => format!("UDP to {target}"),
        },
        panels,
    }
}

/// Formats the windows as CSV, a row each.
///
/// # Errors
/// [`TableError`] if a row has no form in CSV.
pub fn csv(report: &Report) -> Result<String, TableError> {
    let columns: &[Column<Row>] = &[
        ("direction", |row| row.direction.name().to_owned()),
        ("begin_s", |row| row.begin.to_string()),
        ("end_s", |row| row.end.to_string()),
        ("sent", |row| row.sent.to_string()),
        ("received", |row| row.received.to_string()),
        ("unique", |row| row.unique.to_string()),
        ("lost", |row| row.lost.to_string()),
        ("network_lost", |row| row.network_lost.to_string()),
        ("host_lost", |row| row.host_lost.to_string()),
        ("unattributed", |row| row.unattributed.to_string()),
        ("duplicates", |row| row.duplicates.to_string()),
        ("reordered", |row| row.reordered.to_string()),
        ("late", |row| row.late.to_string()),
        ("runs", |row| row.runs.to_string()),
        ("rate_sent_bps", |row| row.rate_sent.to_string()),
        ("rate_received_bps", |row| row.rate_received.to_string()),
        ("jitter_ns", |row| row.jitter.to_string()),
        ("pdv_p999_ns", |row| cell(row.pdv_p999)),
    ];
    table(columns, &report.windows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(minute: f64, lost: u64) -> Row {
        Row {
            direction: Direction::There,
            begin: minute * 60.0,
            end: minute * 60.0 + 30.0,
            sent: 10_000,
            received: 10_000 - lost,
            unique: 10_000 - lost,
            lost,
            network_lost: lost,
            host_lost: 0,
            unattributed: 0,
            duplicates: 0,
            reordered: 0,
            late: 0,
            runs: lost,
            rate_sent: 1e8,
            rate_received: 1e8,
            wire_factor: 1.04,
            jitter: 1e3,
            pdv_p999: None,
        }
    }

    fn of(losses: impl Fn(u64) -> u64) -> Figure {
        let windows: Vec<Row> = (0..60).map(|at| row(at as f64, losses(at))).collect();
        figure(&Report {
            schema: "evlbi.report/1",
            file: PathBuf::from("w.sqlite"),
            plan: None,
            directions: Vec::new(),
            runs: Vec::new(),
            windows,
        })
    }

    /// Nine of ten: 9 of 10, 18 of 19 or 20, and 19 of 21.
    #[test]
    fn the_spread_is_that_of_nine_windows_of_ten() {
        let off = |count: usize, others: usize| {
            let rates = (0..count).map(|at| if at < others { 50.0 } else { 100.0 });
            spread(rates.collect())
        };
        for (count, others) in [(10, 1), (19, 1), (20, 2), (21, 2)] {
            assert_eq!(off(count, others), Some(0.0), "{count}");
            assert_eq!(off(count, others + 1), Some(0.5), "{count}");
        }
        assert_eq!(off(9, 0), None);
    }

    /// A path that is down in most of its windows has no median rate to deviate from.
    #[test]
    fn a_path_that_is_mostly_down_has_no_spread() {
        let windows: Vec<Row> = (0..12)
            .map(|at| Row {
                rate_received: if at < 5 { 1e8 } else { 0.0 },
                ..row(f64::from(at), 0)
            })
            .collect();
        let way = summary(Direction::There, &windows, 0).unwrap();
        assert_eq!(way.rate_spread, None);
        assert!(!way.finding.contains("nine of ten"), "{}", way.finding);
    }

    /// A single burst would hide all other losses: they get their own scale.
    #[test]
    fn loss_has_two_scales_where_it_needs_them() {
        let burst = of(|at| if at == 30 { 5000 } else { 3 });
        let ranges: Vec<Option<(f64, f64)>> =
            burst.panels.iter().map(|panel| panel.y.range).collect();
        assert_eq!(ranges.len(), 4);
        assert_eq!(ranges[1], Some((0.0, 50.0 * 1.05)));
        assert_eq!(ranges[2], Some((0.0, 0.03 * 1.05)));
        assert_eq!(of(|_| 3).panels.len(), 3);
    }
}
