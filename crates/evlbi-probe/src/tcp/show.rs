//! The connections as text.

use evlbi_net::file::TableError;
use evlbi_plot::columns;
use evlbi_wire::units::{show_bytes, show_count, show_rate, show_seconds};

use super::super::csv::{Column, cell};
use super::ProbeTcp;
use super::flow::Flow;

/// Formats the connections as CSV, a row each.
///
/// # Errors
/// [`TableError`] if a row has no form in CSV.
pub fn csv(result: &ProbeTcp) -> Result<String, TableError> {
    let columns: &[Column<Flow>] = &[
        ("connection", |flow| flow.number.to_string()),
        ("direction", |flow| flow.direction.name().to_owned()),
        ("algorithm", |flow| flow.algorithm.clone()),
        ("segment_bytes", |flow| flow.segment.to_string()),
        ("bytes", |flow| flow.bytes.to_string()),
        ("duration_s", |flow| flow.seconds.to_string()),
        ("rate_bps", |flow| flow.rate.to_string()),
        ("segments", |flow| flow.segments.to_string()),
        ("sent_again", |flow| flow.sent_again.to_string()),
        ("needless", |flow| flow.needless.to_string()),
        ("timeouts", |flow| flow.timeouts.to_string()),
        ("out_of_order", |flow| flow.out_of_order.to_string()),
        ("losses", |flow| flow.course.losses.len().to_string()),
        ("round_trip_min_s", |flow| round_trip(flow, 0)),
        ("round_trip_mean_s", |flow| round_trip(flow, 1)),
        ("round_trip_max_s", |flow| round_trip(flow, 2)),
        ("blocked_s", |flow| flow.blocked.to_string()),
        ("sender_cpu_s", |flow| flow.sender_cpu_seconds.to_string()),
        ("receiver_cpu_s", |flow| {
            flow.receiver_cpu_seconds.to_string()
        }),
    ];
    super::super::csv::table(columns, &result.flows)
}

/// Formats the minimum, mean or maximum round-trip time in seconds.
fn round_trip(flow: &Flow, place: usize) -> String {
    let micros = flow.course.round_trip.map(|times| times[place]);
    cell(micros.map(|micros| micros / 1e6))
}

/// Formats the result as text: a row for each connection, and the findings.
pub fn table(result: &ProbeTcp) -> String {
    let heads = [
        "",
        "direction",
        "algorithm",
        "Mbit/s",
        "bytes",
        "segments",
        "retrans",
        "timeouts",
        "window",
        "RTT",
        "MSS",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(result.flows.iter().map(row));
    let about = "Mbit/s read by the receiver; window and RTT: minimum, mean and maximum of the sender's kernel";
    let mut lines = vec![about.to_owned(), columns(&rows, |column| column == 2)];
    for total in result.totals.iter().filter(|_| result.flows.len() > 1) {
        let (way, rate) = (total.direction.label(), show_rate(total.rate));
        lines.push(format!(
            "all {way} connections: {rate}, fairness {:.4}",
            total.fairness
        ));
    }
    for flow in &result.flows {
        if let Some(messages) = &flow.messages {
            lines.push(format!(
                "{}: {} messages due, {} received, {} shed; latest {}, {} delayed at most",
                flow.number,
                show_count(messages.due),
                show_count(messages.received),
                show_count(messages.shed),
                show_seconds(messages.timely.longest as f64 * 1e-9),
                show_bytes(messages.timely.delayed_bytes as f64),
            ));
        }
    }
    for point in &result.background {
        let (way, finding) = (point.direction.label(), &point.finding);
        lines.push(format!("{way} background stream: {finding}"));
    }
    lines.extend(result.findings.iter().cloned());
    for observer in &result.observers {
        lines.push(format!(
            "sampling the connections on the {} host {} times took {:.2} % of a CPU{}",
            if observer.is_far { "remote" } else { "local" },
            show_count(observer.readings as u64),
            observer.cpu * 100.0,
            match observer.missed {
                0 => String::new(),
                missed => format!(", {} samples were missed", show_count(missed)),
            }
        ));
    }
    lines.extend(result.clock.as_ref().map(super::super::show::clock));
    lines.join("\n").trim_end().to_owned()
}

fn row(flow: &Flow) -> Vec<String> {
    let three = |values: Option<[f64; 3]>, scale: f64, digits: usize| {
        values.map_or("-".to_owned(), |values| {
            let shown = values.map(|value| format!("{:.digits$}", value * scale));
            shown.join("/")
        })
    };
    vec![
        flow.number.to_string(),
        flow.direction.label().to_owned(),
        flow.algorithm.clone(),
        format!("{:.3}", flow.rate * 1e-6),
        show_bytes(flow.bytes as f64),
        show_count(flow.segments),
        show_count(flow.sent_again.into()),
        flow.timeouts.to_string(),
        three(flow.course.window, 1.0, 0),
        format!("{} ms", three(flow.course.round_trip, 1e-3, 2)),
        flow.segment.to_string(),
    ]
}
