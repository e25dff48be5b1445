//! The points for people and other programs: a table, UDPmon's columns, pScheduler's JSON.

use std::fmt::Write;

use evlbi_core::account::Summary;
use evlbi_net::file::TableError;
use evlbi_net::host::{Core, Counters, Interface};
use evlbi_plot::columns;
use evlbi_wire::units::{show_count, show_seconds};
use serde_json::{Value, json};

use super::csv::{POINT, table as csv_table};
use super::point::Point;
use super::udp::ProbeUdp;
use crate::measure::ClockFit;

/// Formats the points as a table, with a finding for each point and the clock offset.
pub fn table(result: &ProbeUdp) -> String {
    let heads = [
        "direction",
        "bytes",
        "requested",
        "sent at",
        "wire",
        "received",
        "spacing",
        "sent",
        "lost",
        "loss %",
        "network",
        "host",
        "?",
        "dup",
        "reord",
        "jitter",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(result.points.iter().map(row));
    let about = "rates in Mbit/s: of UDP payload, sent on the wire, and received; spacing in us";
    let mut lines = vec![about.to_owned(), columns(&rows, |_| false)];
    lines.extend(result.points.iter().map(sentence));
    lines.extend(result.findings.iter().cloned());
    lines.extend(result.clock.as_ref().map(clock));
    lines.join("\n").trim_end().to_owned()
}

/// Formats the points as CSV, a row each.
///
/// # Errors
/// [`TableError`] if a row has no form in CSV.
pub fn csv(result: &ProbeUdp) -> Result<String, TableError> {
    csv_table(POINT, &result.points)
}

/// Describes the remote clock in a sentence.
pub(crate) fn clock(clock: &ClockFit) -> String {
    let skew = match clock.skew {
        0.0 => String::new(),
        skew => format!(", gains {:.3} us per second", skew * 1e6),
    };
    let place = if clock.offset < 0.0 {
        "behind"
    } else {
        "ahead"
    };
    format!(
        "the remote clock is {} {place}{skew}: +- {} if the minimum delays in both directions are equal, +- {} otherwise",
        show_seconds(clock.offset.abs() * 1e-9),
        show_seconds(clock.error_if_symmetric * 1e-9),
        show_seconds(clock.error * 1e-9),
    )
}

fn row(point: &Point) -> Vec<String> {
    let mega = |rate: f64| format!("{:.3}", rate * 1e-6);
    let micro = |time: Option<f64>| time.map_or("-".into(), |time| format!("{:.3}", time * 1e-3));
    vec![
        point.direction.label().to_owned(),
        point.size.to_string(),
        point.rate_asked.map_or("max".into(), mega),
        mega(point.rate_sent),
        mega(point.wire_rate_sent),
        mega(point.rate_received),
        micro(point.spacing_achieved),
        show_count(point.sent),
        show_count(point.lost),
        format!("{:.4}", point.loss * 100.0),
        show_count(point.network_lost),
        show_count(point.host_lost),
        show_count(point.unattributed),
        show_count(point.duplicates),
        show_count(point.reordered),
        format!("{:.1} us", point.jitter * 1e-3),
    ]
}

fn sentence(point: &Point) -> String {
    let (way, finding) = (point.direction.label(), &point.finding);
    let mut text = format!("{} bytes, {way}: {finding}", point.size);
    if let (Some(burden), Some(cpu)) = (&point.burden, &point.receiver_cpu) {
        let nice = burden.nice;
        let nice = nice.map_or(String::new(), |nice| format!("receiver nice {nice}, "));
        let [user, kernel, interrupts, idle] =
            [cpu.user, cpu.kernel, cpu.interrupts, cpu.idle].map(|part| part * 100.0);
        let _ = write!(
            text,
            "; {nice}{} tasks nice {}: {user:.0} % user, {kernel:.0} % kernel, {interrupts:.0} % interrupts, {idle:.0} % idle",
            burden.tasks, burden.tasks_nice
        );
    }
    if let Some(delay) = &point.delay {
        let [min, median] = [delay.min, delay.median].map(|time| show_seconds(time * 1e-9));
        let _ = write!(text, "; delay: minimum {min}, median {median}");
    }
    text
}

/// Name of a column in udpmon, and its value.
type Column<T> = (&'static str, fn(&T) -> u64);

const OF_CORES: [Column<Core>; 7] = [
    ("user", |core| core.user),
    ("nice", |core| core.nice),
    ("kernel", |core| core.system),
    ("idle", |core| core.idle),
    ("iowait", |core| core.iowait),
    ("irq", |core| core.irq),
    ("softirq", |core| core.softirq),
];

const OF_CARDS: [Column<Interface>; 8] = [
    ("pktsin", |card| card.rx_packets),
    ("bytesin", |card| card.rx_bytes),
    ("errin", |card| card.rx_errors),
    ("dropin", |card| card.rx_dropped),
    ("pktsout", |card| card.tx_packets),
    ("bytesout", |card| card.tx_bytes),
    ("errout", |card| card.tx_errors),
    ("dropout", |card| card.tx_dropped),
];

const OF_STACKS: [Column<Counters>; 7] = [
    ("InReceives", |all| all.ip.in_receives + all.ip6.in_receives),
    ("InDiscards", |all| all.ip.in_discards + all.ip6.in_discards),
    ("OutRequests", |all| {
        all.ip.out_requests + all.ip6.out_requests
    }),
    ("OutDiscards", |all| {
        all.ip.out_discards + all.ip6.out_discards
    }),
    ("UDPInDatagrams", |all| {
        all.udp.in_datagrams + all.udp6.in_datagrams
    }),
    ("UDPInErrors", |all| all.udp.in_errors + all.udp6.in_errors),
    ("UDPOutDatagrams", |all| {
        all.udp.out_datagrams + all.udp6.out_datagrams
    }),
];

/// Formats the points with the columns of udpmon 1.5.2, one row per point. Losses in a host are taken from `lost` for `lost_innet`.
pub fn udpmon(result: &ProbeUdp) -> String {
    let heads = "pkt len; num_sent; inter-pkt_time us; send_user_data_rate Mbit; num_recv; num_lost; num_badorder; %lost; \
                 num_lost_innet; %lost_innet; recv_user_data_rate Mbit; recv_wire_rate Mbit; num_in_hist; mean us; sigma; \
                 skew; kurtosis; median; iq25; iq75";
    let mut heads = vec![heads.to_owned()];
    let ends = ["local", "remote"];
    let most = [0, 1].map(|end| {
        let counts = result
            .points
            .iter()
            .map(|point| hosts(point)[end].0.cores.len());
        counts.max().unwrap_or(0)
    });
    for (end, most) in ends.iter().zip(most) {
        for core in 0..most {
            heads.extend(OF_CORES.map(|(name, _)| format!("{end} cpu{core} {name} %")));
        }
    }
    for end in ends {
        heads.extend(OF_CARDS.map(|(name, _)| format!("{end} {name}")));
    }
    for end in ends {
        heads.extend(OF_STACKS.map(|(name, _)| format!("{end} {name}")));
    }
    let mut text = format!("{};", heads.join("; "));
    for point in &result.points {
        let mut cells = main_columns(point);
        let hosts = hosts(point);
        for ((counters, _), most) in hosts.iter().zip(most) {
            cells.extend((0..most).flat_map(|core| core_columns(counters.cores.get(core))));
        }
        for (_, card) in hosts {
            let card = card.copied().unwrap_or_default();
            cells.extend(OF_CARDS.map(|(_, get)| get(&card).to_string()));
        }
        for (counters, _) in hosts {
            cells.extend(OF_STACKS.map(|(_, get)| get(counters).to_string()));
        }
        let _ = write!(text, "\n{};", cells.join("; "));
    }
    text
}

/// Returns counters and interface of the local and of the remote host.
fn hosts(point: &Point) -> [(&Counters, Option<&Interface>); 2] {
    let sender = (&point.sender.host.change, &point.sender.interface);
    let receiver = (&point.receiver.host.change, &point.receiver.interface);
    let ends: [_; 2] = point.direction.ends(sender, receiver).into();
    ends.map(|(counters, name)| {
        let card = name.as_ref().and_then(|name| counters.interfaces.get(name));
        (counters, card)
    })
}

fn main_columns(point: &Point) -> Vec<String> {
    let percent = |count: u64| 100.0 * count as f64 / point.sent.max(1) as f64;
    let spacing = point.spacing_asked.unwrap_or(0.0) / f64::from(point.burst);
    let mut cells = vec![
        point.size.to_string(),
        point.sent.to_string(),
        format!("{:.3}", spacing * 1e-3),
        format!("{:.6}", point.rate_sent * 1e-6),
        point.unique.to_string(),
        point.lost.to_string(),
        point.reordered.to_string(),
        format!("{:.6}", percent(point.lost)),
        point.network_lost.to_string(),
        format!("{:.6}", percent(point.network_lost)),
        format!("{:.6}", point.rate_received * 1e-6),
        format!("{:.6}", point.wire_rate_received * 1e-6),
    ];
    cells.extend(histogram_columns(point.arrivals.as_ref()));
    cells
}

fn histogram_columns(arrivals: Option<&Summary>) -> Vec<String> {
    let Some(all) = arrivals else {
        return vec!["0".to_owned(); 8];
    };
    let micro = |time: f64| format!("{:.3}", time * 1e-3);
    vec![
        all.count.to_string(),
        micro(all.mean),
        micro(all.sigma),
        format!("{:.4}", all.skew),
        format!("{:.4}", all.kurtosis),
        micro(all.median as f64),
        micro(all.quartile_25 as f64),
        micro(all.quartile_75 as f64),
    ]
}

fn core_columns(core: Option<&Core>) -> [String; 7] {
    let core = core.copied().unwrap_or_default();
    let parts = OF_CORES.map(|(_, get)| get(&core));
    let all = (parts.iter().sum::<u64>() + core.steal).max(1) as f64;
    parts.map(|part| format!("{:.2}", 100.0 * part as f64 / all))
}

/// Converts the points to the format of pScheduler's throughput tests: an interval for each point, with the last one as the summary.
pub fn pscheduler(result: &ProbeUdp) -> Value {
    let mut begin = 0.0;
    let mut intervals = Vec::new();
    for point in &result.points {
        let stream = json!({
            "start": begin,
            "end": begin + point.seconds,
            "throughput-bits": point.rate_sent,
            "throughput-bytes": point.rate_sent / 8.0,
            "receiver-throughput-bits": point.rate_received,
            "sent": point.sent,
            "lost": point.lost,
            "jitter": point.jitter * 1e-6,
            "omitted": false,
        });
        begin += point.seconds;
        intervals.push(json!({ "streams": [stream], "summary": stream }));
    }
    let summary = intervals.last().cloned().unwrap_or(Value::Null);
    json!({
        "schema": 2,
        "succeeded": result.stopped.is_none(),
        "error": result.stopped,
        "intervals": intervals,
        "summary": summary,
    })
}
