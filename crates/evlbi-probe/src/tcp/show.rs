//! The connections as people read them.

use evlbi_plot::columns;
use evlbi_wire::units::{show_bytes, show_count, show_rate, show_seconds};

use super::ProbeTcp;
use super::flow::Flow;

/// The result for people: a row for each connection, and what was found.
pub fn table(result: &ProbeTcp) -> String {
    let heads = [
        "", "way", "law", "Mbit/s", "bytes", "segments", "again", "timeouts", "window", "RTT",
        "MSS",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(result.flows.iter().map(row));
    let about =
        "Mbit/s taken by the receiver; window and RTT: least, mean and most of the sender's kernel";
    let mut lines = vec![about.to_owned(), columns(&rows, |column| column == 2)];
    for total in result.totals.iter().filter(|_| result.flows.len() > 1) {
        let (way, rate) = (total.direction.name(), show_rate(total.rate));
        lines.push(format!("all {way}: {rate}, fairness {:.4}", total.fairness));
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
        let (way, finding) = (point.direction.name(), &point.finding);
        lines.push(format!("the stream beside them {way}: {finding}"));
    }
    lines.extend(result.findings.iter().cloned());
    for observer in &result.observers {
        lines.push(format!(
            "looking at the connections {} {} times took {:.2} % of a processor{}",
            if observer.is_far { "there" } else { "here" },
            show_count(observer.readings as u64),
            observer.cpu * 100.0,
            match observer.missed {
                0 => String::new(),
                missed => format!(", {} times were missed", show_count(missed)),
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
        flow.direction.name().to_owned(),
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
