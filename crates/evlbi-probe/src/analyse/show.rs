//! An analysis as text.

use std::fmt::Write;

use evlbi_plot::{columns, lines};
use evlbi_trace::capture::{Connection, Numbers, Stream};
use evlbi_wire::units::{show_bytes, show_count, show_seconds};

use super::{Analysis, Seen};

/// Maximum number of connections and streams in tables, and with findings.
const ROWS: usize = 20;
const TOLD: usize = 5;

/// Formats the analysis as text.
pub fn text(analysis: &Analysis) -> String {
    let mut text = overview(analysis);
    let connections = &analysis.connections;
    if !connections.is_empty() {
        let _ = write!(
            text,
            "\n\nTCP; RTT: from here to the receiver and back, minimum/median\n{}",
            table(connections)
        );
        told(&mut text, connections, "connections");
    }
    if !analysis.streams.is_empty() {
        let _ = write!(text, "\n\nUDP\n{}", streams(&analysis.streams));
        told(&mut text, &analysis.streams, "streams");
    }
    for finding in &analysis.findings {
        let _ = write!(text, "\n{finding}");
    }
    text
}

/// Adds the findings of the first ones, and the number of those that the table omits.
fn told<T>(text: &mut String, all: &[Seen<T>], what: &str) {
    for seen in all.iter().take(TOLD) {
        for finding in &seen.findings {
            let _ = write!(text, "\n{}: {finding}", seen.number);
        }
    }
    if all.len() > ROWS {
        let _ = write!(
            text,
            "\n{} {what} more: --json has them all",
            show_count((all.len() - ROWS) as u64)
        );
    }
}

fn overview(analysis: &Analysis) -> String {
    let packets = show_count(analysis.totals.packets);
    let bytes = show_bytes(analysis.totals.bytes_on_wire as f64);
    let begun = analysis.begun.as_deref().unwrap_or("-");
    lines(&[
        ("file", analysis.file.display().to_string()),
        ("begun", begun.to_owned()),
        ("time", show_seconds(analysis.seconds)),
        ("packets", format!("{packets}, {bytes} on the wire")),
    ])
}

fn table(connections: &[Seen<Connection>]) -> String {
    let heads = ",from,to,Mbit/s,bytes,segments,retrans,reordered,RTT,in flight,window";
    let mut rows = vec![heads.split(',').map(str::to_owned).collect()];
    for seen in connections.iter().take(ROWS) {
        let [one, other] = seen.found.ends;
        let ways = seen.found.ways.iter().zip([[one, other], [other, one]]);
        for (way, [from, to]) in ways.filter(|(way, _)| way.bytes > 0) {
            let trip = way.round_trip.as_ref().map(|trip| {
                let [least, median] = [trip.min, trip.median].map(|time| time as f64 * 1e-6);
                format!("{least:.2}/{median:.2} ms")
            });
            let or_none = |text: Option<String>| text.unwrap_or("-".to_owned());
            rows.push(vec![
                seen.number.to_string(),
                from.to_string(),
                to.to_string(),
                format!("{:.3}", way.rate * 1e-6),
                show_bytes(way.acknowledged as f64),
                show_count(way.segments),
                show_count(way.sent_again.segments),
                show_count(way.reordered + way.reordered_beyond),
                or_none(trip),
                or_none(way.flight.map(|flight| show_bytes(flight.most as f64))),
                or_none(way.window.map(|window| show_bytes(window.most as f64))),
            ]);
        }
    }
    columns(&rows, |column| column == 1 || column == 2)
}

fn streams(streams: &[Seen<Stream>]) -> String {
    let heads = ",from,to,numbers,Mbit/s,datagrams,lost,loss,dup,reordered,spacing";
    let mut rows = vec![heads.split(',').map(str::to_owned).collect()];
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
                let part = counters.lost as f64 / counters.expected.max(1) as f64;
                format!("{:.4} %", part * 100.0)
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

pub(super) fn name(numbers: Numbers) -> &'static str {
    match numbers {
        Numbers::None => "-",
        Numbers::Vtp => "VTP",
        Numbers::Vdif => "VDIF",
        Numbers::Probe => "probe",
    }
}
