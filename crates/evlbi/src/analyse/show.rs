//! A capture as people read of it.

use std::fmt::Write;

use evlbi_core::capture::{Connection, Numbers, Stream, Way};

use super::{Analysis, Seen};
use crate::output::{columns, lines};
use crate::units::{show_bytes, show_count, show_seconds};

/// Connections and streams that are shown in tables, and of which all is said.
const ROWS: usize = 20;
const TOLD: usize = 5;

pub fn text(analysis: &Analysis) -> String {
    let mut text = overview(analysis);
    let connections = &analysis.connections;
    if !connections.is_empty() {
        let _ = write!(
            text,
            "\n\nTCP; RTT: from here to the receiver and back, least/median\n{}",
            table(connections)
        );
        for seen in connections.iter().take(TOLD) {
            for finding in &seen.findings {
                let _ = write!(text, "\n{}: {finding}", seen.number);
            }
        }
        more(&mut text, connections.len(), "connections");
    }
    if !analysis.streams.is_empty() {
        let _ = write!(text, "\n\nUDP\n{}", streams(&analysis.streams));
        for seen in analysis.streams.iter().take(TOLD) {
            for finding in &seen.findings {
                let _ = write!(text, "\n{}: {finding}", seen.number);
            }
        }
        more(&mut text, analysis.streams.len(), "streams");
    }
    for finding in &analysis.findings {
        let _ = write!(text, "\n{finding}");
    }
    text
}

fn more(text: &mut String, count: usize, what: &str) {
    if count > ROWS {
        let _ = write!(
            text,
            "\n{} {what} more: --json has them all",
            show_count((count - ROWS) as u64)
        );
    }
}

fn overview(analysis: &Analysis) -> String {
    lines(&[
        ("file", analysis.file.display().to_string()),
        (
            "begun",
            analysis.begun.clone().unwrap_or_else(|| "-".to_owned()),
        ),
        ("time", show_seconds(analysis.seconds)),
        (
            "packets",
            format!(
                "{}, {} on the wire",
                show_count(analysis.totals.packets),
                show_bytes(analysis.totals.bytes_on_wire as f64)
            ),
        ),
    ])
}

fn table(connections: &[Seen<Connection>]) -> String {
    let heads = [
        "",
        "from",
        "to",
        "Mbit/s",
        "bytes",
        "segments",
        "again",
        "reordered",
        "RTT",
        "under way",
        "window",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for seen in connections.iter().take(ROWS) {
        let [one, other] = seen.found.ends;
        let ways = seen.found.ways.iter().zip([[one, other], [other, one]]);
        let rows_of = ways
            .filter(|(way, _)| way.bytes > 0)
            .map(|(way, [from, to])| {
                let mut cells = vec![seen.number.to_string(), from.to_string(), to.to_string()];
                cells.extend(row(way));
                cells
            });
        rows.extend(rows_of);
    }
    columns(&rows, |column| column == 1 || column == 2)
}

fn row(way: &Way) -> [String; 8] {
    let none = || "-".to_owned();
    [
        format!("{:.3}", way.rate * 1e-6),
        show_bytes(way.acknowledged as f64),
        show_count(way.segments),
        show_count(way.sent_again.segments),
        show_count(way.reordered + way.reordered_beyond),
        way.round_trip.as_ref().map_or_else(none, |trip| {
            format!(
                "{:.2}/{:.2} ms",
                trip.min as f64 * 1e-6,
                trip.median as f64 * 1e-6
            )
        }),
        way.flight
            .map_or_else(none, |flight| show_bytes(flight.most as f64)),
        way.window
            .map_or_else(none, |window| show_bytes(window.most as f64)),
    ]
}

fn streams(streams: &[Seen<Stream>]) -> String {
    let heads = [
        "",
        "from",
        "to",
        "numbers",
        "Mbit/s",
        "datagrams",
        "lost",
        "loss",
        "twice",
        "reordered",
        "apart",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(streams.iter().take(ROWS).map(|seen| {
        let stream = &seen.found;
        let counters = stream.account.as_ref().map(|account| &account.counters);
        let count = |get: fn(&evlbi_core::account::Counters) -> u64| {
            counters.map_or("-".to_owned(), |counters| show_count(get(counters)))
        };
        vec![
            seen.number.to_string(),
            stream.ends[0].to_string(),
            stream.ends[1].to_string(),
            name(stream.numbers).to_owned(),
            format!("{:.3}", stream.rate * 1e-6),
            show_count(stream.datagrams),
            count(|counters| counters.lost),
            counters.map_or("-".to_owned(), |counters| {
                format!(
                    "{:.4} %",
                    counters.lost as f64 / counters.expected.max(1) as f64 * 100.0
                )
            }),
            count(|counters| counters.duplicates),
            count(|counters| counters.reordered),
            stream.gaps.as_ref().map_or("-".to_owned(), |gaps| {
                format!("{:.1} us", gaps.median as f64 * 1e-3)
            }),
        ]
    }));
    columns(&rows, |column| (1..=3).contains(&column))
}

pub fn name(numbers: Numbers) -> &'static str {
    match numbers {
        Numbers::None => "-",
        Numbers::Vtp => "VTP",
        Numbers::Vdif => "VDIF",
        Numbers::Probe => "probe",
    }
}
