//! The points as people and other programs read them: a table, UDPmon's columns, pScheduler's JSON.

use std::fmt::Write;

use evlbi_core::account::Summary;
use evlbi_core::probe::ClockFit;
use evlbi_net::host::{Core, Counters, Interface};
use serde_json::{Value, json};

use super::point::{Direction, Point};
use super::udp::ProbeUdp;
use crate::output::columns;
use crate::units::{show_count, show_seconds};

/// Columns for people, with a sentence for each point and what the clocks are.
pub fn table(result: &ProbeUdp) -> String {
    let heads = [
        "way", "bytes", "asked", "sent at", "wire", "received", "spacing", "sent", "lost",
        "loss %", "network", "host", "?", "twice", "reord", "jitter",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(result.points.iter().map(row));
    let mut text = String::from(
        "rates in Mbit/s: of UDP payload, sent on the wire, and received; spacing in us\n",
    );
    let _ = writeln!(text, "{}", columns(&rows, |_| false));
    for point in &result.points {
        let _ = writeln!(text, "{}", sentence(point));
    }
    for finding in &result.findings {
        let _ = writeln!(text, "{finding}");
    }
    if let Some(clock) = &result.clock {
        let _ = write!(text, "{}", self::clock(clock));
    }
    text.trim_end().to_owned()
}

/// How the far clock lies, in a sentence.
pub fn clock(clock: &ClockFit) -> String {
    let skew = match clock.skew {
        0.0 => String::new(),
        skew => format!(", gains {:.3} us a second", skew * 1e6),
    };
    format!(
        "the far clock is {} ahead{skew}: +- {} if the shortest ways there and back are alike, +- {} whatever they are",
        show_seconds(clock.offset * 1e-9),
        show_seconds(clock.error_if_symmetric * 1e-9),
        show_seconds(clock.error * 1e-9),
    )
}

fn row(point: &Point) -> Vec<String> {
    let mega = |rate: f64| format!("{:.3}", rate * 1e-6);
    let micro = |time: Option<f64>| time.map_or("-".into(), |time| format!("{:.3}", time * 1e-3));
    vec![
        point.direction.name().to_owned(),
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
    let mut text = format!(
        "{} bytes {}: {}",
        point.size,
        point.direction.name(),
        point.finding
    );
    if let (Some(burden), Some(cpu)) = (&point.burden, &point.receiver_cpu) {
        let _ = write!(
            text,
            "; {}{} tasks nice {}: {:.0} % user, {:.0} % kernel, {:.0} % interrupts, {:.0} % idle",
            burden
                .nice
                .map_or(String::new(), |nice| format!("receiver nice {nice}, ")),
            burden.tasks,
            burden.tasks_nice,
            cpu.user * 100.0,
            cpu.kernel * 100.0,
            cpu.interrupts * 100.0,
            cpu.idle * 100.0
        );
    }
    if let Some(delay) = &point.delay {
        let _ = write!(
            text,
            "; delay {} at least, {} in the median",
            show_seconds(delay.min * 1e-9),
            show_seconds(delay.median * 1e-9)
        );
    }
    text
}

/// Columns in the order of udpmon 1.5.2, one row for each point; what a host lost is taken from `lost` for `lost_innet`.
pub fn udpmon(result: &ProbeUdp) -> String {
    type Get = fn(&Point) -> &Counters;
    let mut heads: Vec<String> = [
        "pkt len",
        "num_sent",
        "inter-pkt_time us",
        "send_user_data_rate Mbit",
        "num_recv",
        "num_lost",
        "num_badorder",
        "%lost",
        "num_lost_innet",
        "%lost_innet",
        "recv_user_data_rate Mbit",
        "recv_wire_rate Mbit",
        "num_in_hist",
        "mean us",
        "sigma",
        "skew",
        "kurtosis",
        "median",
        "iq25",
        "iq75",
    ]
    .map(str::to_owned)
    .to_vec();
    let cores = |counters: &Counters| counters.cores.len();
    let most = |of: Get| {
        result
            .points
            .iter()
            .map(|point| cores(of(point)))
            .max()
            .unwrap_or(0)
    };
    let ends: [(&str, Get); 2] = [
        ("local", |point| local(point).0),
        ("remote", |point| local(point).2),
    ];
    for (end, of) in ends {
        for core in 0..most(of) {
            for column in ["user", "nice", "kernel", "idle", "iowait", "irq", "softirq"] {
                heads.push(format!("{end} cpu{core} {column} %"));
            }
        }
    }
    for (end, _) in ends {
        for column in [
            "pktsin", "bytesin", "errin", "dropin", "pktsout", "bytesout", "errout", "dropout",
        ] {
            heads.push(format!("{end} {column}"));
        }
    }
    for (end, _) in ends {
        for column in [
            "InReceives",
            "InDiscards",
            "OutRequests",
            "OutDiscards",
            "UDPInDatagrams",
            "UDPInErrors",
            "UDPOutDatagrams",
        ] {
            heads.push(format!("{end} {column}"));
        }
    }
    let mut text = format!("{};", heads.join("; "));
    for point in &result.points {
        let mut cells = main_columns(point);
        for (_, of) in ends {
            let counters = of(point);
            for core in 0..most(of) {
                cells.extend(core_columns(counters.cores.get(core)));
            }
        }
        let (here, card, there, their_card) = local(point);
        cells.extend(card_columns(card));
        cells.extend(card_columns(their_card));
        cells.extend(stack_columns(here));
        cells.extend(stack_columns(there));
        let _ = write!(text, "\n{};", cells.join("; "));
    }
    text
}

/// Counters and interface of the host here, and of the one there.
fn local<'a>(
    point: &'a Point,
) -> (
    &'a Counters,
    Option<&'a Interface>,
    &'a Counters,
    Option<&'a Interface>,
) {
    let sender = (&point.sender.host.change, &point.sender.interface);
    let receiver = (&point.receiver.host.change, &point.receiver.interface);
    let (here, there) = match point.direction {
        Direction::There => (sender, receiver),
        Direction::Back => (receiver, sender),
    };
    let card =
        |name: &Option<String>, counters: &'a Counters| counters.interfaces.get(name.as_ref()?);
    (
        here.0,
        card(here.1, here.0),
        there.0,
        card(there.1, there.0),
    )
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

fn core_columns(core: Option<&Core>) -> Vec<String> {
    let core = core.copied().unwrap_or_default();
    let parts = [
        core.user,
        core.nice,
        core.system,
        core.idle,
        core.iowait,
        core.irq,
        core.softirq,
    ];
    let all = (parts.iter().sum::<u64>() + core.steal).max(1) as f64;
    parts
        .iter()
        .map(|part| format!("{:.2}", 100.0 * *part as f64 / all))
        .collect()
}

fn card_columns(card: Option<&Interface>) -> Vec<String> {
    let card = card.copied().unwrap_or_default();
    [
        card.rx_packets,
        card.rx_bytes,
        card.rx_errors,
        card.rx_dropped,
        card.tx_packets,
        card.tx_bytes,
        card.tx_errors,
        card.tx_dropped,
    ]
    .map(|count| count.to_string())
    .to_vec()
}

fn stack_columns(counters: &Counters) -> Vec<String> {
    let (ip, ip6, udp, udp6) = (&counters.ip, &counters.ip6, &counters.udp, &counters.udp6);
    [
        ip.in_receives + ip6.in_receives,
        ip.in_discards + ip6.in_discards,
        ip.out_requests + ip6.out_requests,
        ip.out_discards + ip6.out_discards,
        udp.in_datagrams + udp6.in_datagrams,
        udp.in_errors + udp6.in_errors,
        udp.out_datagrams + udp6.out_datagrams,
    ]
    .map(|count| count.to_string())
    .to_vec()
}

/// As pScheduler's throughput tests tell it: an interval for each point, and the last one as the summary.
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
