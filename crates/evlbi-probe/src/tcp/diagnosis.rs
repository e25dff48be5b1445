//! Findings on a connection, in sentences: its throughput, what limited it, loss and round-trip times, steadiness, and what to change
//! (questions i to v of Sansa 2006).
//!
//! A new finding belongs here. It names the measured value and the option or setting that changes it.

use evlbi_trace::tcp::{Algorithm, Cbr, Late};

use super::flow::{Flow, Messages};
use super::{Asked, ProbeTcp};
use evlbi_wire::units::{show_bytes, show_count, show_rate, show_seconds};

/// Fractions of the time below this are not reported.
const SHORT: f64 = 0.02;
/// Fraction of a CPU from which on a thread counts as limited by it.
const WHOLE_CORE: f64 = 0.9;
/// Rates that differ by less than this fraction are steady.
const STEADY: f64 = 0.05;
/// Maximum number of periods of late messages that are listed.
const MAX_TOLD: usize = 3;
/// Number of consecutive timeouts from which on a connection counts as stuck.
const STUCK: u32 = 3;
/// Maximum fraction of the requested rate that a flow may lack.
const LACKING: f64 = 0.01;

pub fn findings(result: &ProbeTcp) -> Vec<String> {
    let many = result.flows.len() > 1;
    let of = |flow: &Flow| {
        let (said, number) = (of_flow(flow, &result.asked), flow.number);
        said.into_iter().map(move |text| match many {
            true => format!("{number}: {text}"),
            false => text,
        })
    };
    result.flows.iter().flat_map(of).collect()
}

fn of_flow(flow: &Flow, asked: &Asked) -> Vec<String> {
    if let Some(stuck) = black_hole(flow) {
        return vec![stuck];
    }
    let mut said = vec![carried(flow, asked), held_back(&parts(flow)), loss(flow)];
    let rates = flow.intervals.iter().map(|interval| interval.rate);
    said.extend(steady(&rates.collect::<Vec<f64>>()));
    if let Some(messages) = &flow.messages {
        said.extend(timely(messages, flow, asked));
    }
    for stage in &flow.stages {
        let limit = show_rate(stage.limit);
        said.push(format!("{} alone reaches {limit}", stage.name));
    }
    said.extend(bursts(flow));
    said.extend(disturbance(flow));
    said.extend(advice(flow, asked));
    for buffer in [&flow.send_buffer, &flow.receive_buffer] {
        said.extend(buffer.as_ref().and_then(|buffer| {
            let [asked, granted] =
                [buffer.asked, buffer.granted].map(|size| show_bytes(size as f64));
            let remedy = buffer.remedy.as_ref()?;
            Some(format!(
                "the kernel granted {granted} of a buffer of {asked}; {remedy}"
            ))
        }));
    }
    said.extend(flow.errors.iter().cloned());
    said
}

/// Reports a path that passes small packets and drops full segments.
fn black_hole(flow: &Flow) -> Option<String> {
    let last = flow.readings[0].last()?.info;
    let timeouts = last.timeouts.max(last.backoff.into());
    let few = 10 * u64::from(last.segment.max(1));
    let has_got_nowhere = last.acknowledged < few && flow.bytes < few;
    (timeouts >= STUCK && last.in_flight > 0 && has_got_nowhere).then(|| {
        format!(
            "the connection was established, but no full segment of {} bytes was acknowledged in {timeouts} timeouts: a device on the path drops packets of {} bytes and the ICMP message about it (a path MTU black hole, RFC 2923); try --mss 1200, or as root: sysctl -w net.ipv4.tcp_mtu_probing=1",
            last.segment,
            last.path_mtu
        )
    })
}

fn carried(flow: &Flow, asked: &Asked) -> String {
    let rate = show_rate(flow.rate);
    match asked.rate {
        Some(wanted) if flow.rate < wanted as f64 * (1.0 - LACKING) => {
            format!(
                "throughput {rate} of {} requested",
                show_rate(wanted as f64)
            )
        }
        Some(_) => format!("throughput {rate}, as requested"),
        None => format!("throughput {rate}: the path carries at least that"),
    }
}

/// Returns the limits of a flow with their fractions of the time, the largest first.
pub fn parts(flow: &Flow) -> Vec<(f64, &'static str)> {
    let of = &flow.course.held_back;
    let mut parts = vec![
        (of.application, "the application, which had no more to send"),
        (of.window, "the congestion window"),
        (of.receiver, "the receiver's window"),
        (of.buffer, "the send buffer"),
        (of.repair, "loss recovery"),
        (of.host, "the sending host"),
    ];
    parts.sort_by(|a, b| b.0.total_cmp(&a.0));
    parts
}

/// Describes what limited a flow, by the fractions of the time.
pub fn held_back(parts: &[(f64, &str)]) -> String {
    let parts = parts.iter().filter(|(part, _)| *part >= SHORT);
    let parts: Vec<String> = parts
        .map(|(part, name)| format!("{name} ({:.0} % of the time)", part * 100.0))
        .collect();
    match parts.as_slice() {
        [] => "its limit is unknown".to_owned(),
        some => format!("limited by {}", some.join(", ")),
    }
}

fn loss(flow: &Flow) -> String {
    let trip = flow.course.round_trip.map_or(String::new(), |times| {
        let [least, mean, most] = times.map(|time| show_seconds(time * 1e-6));
        format!("; RTT {least} to {most}, {mean} on average")
    });
    match flow.sent_again {
        0 => format!("no retransmissions{trip}"),
        again => format!(
            "{} of {} segments retransmitted ({:.5} %), in {}{trip}",
            show_count(again.into()),
            show_count(flow.segments),
            f64::from(again) / flow.segments.max(1) as f64 * 100.0,
            match flow.course.losses.len() {
                1 => "1 loss".to_owned(),
                count => format!("{count} losses"),
            }
        ),
    }
}

/// Describes the spread of the intervals' rates, if there are enough intervals.
pub fn steady(rates: &[f64]) -> Option<String> {
    // The first interval has slow start, the last is incomplete.
    let mut whole = rates.get(1..rates.len().checked_sub(1)?)?;
    if whole.len() < 3 {
        return None;
    }
    // Unless the first interval carried most: then the others do not represent the connection.
    if whole.iter().sum::<f64>() < rates[0] {
        whole = &rates[..rates.len() - 1];
    }
    let mean = whole.iter().sum::<f64>() / whole.len() as f64;
    let variance = whole.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / whole.len() as f64;
    let spread = variance.sqrt() / mean.max(1.0);
    let [least, most] = [f64::min as fn(f64, f64) -> f64, f64::max]
        .map(|pick| whole.iter().copied().reduce(pick).unwrap_or(mean));
    let range = format!("{} to {}", show_rate(least), show_rate(most));
    Some(match spread < STEADY {
        true => format!("steady: {range}"),
        false => format!("unsteady: {range}, {:.0} % around the mean", spread * 100.0),
    })
}

fn timely(messages: &Messages, flow: &Flow, asked: &Asked) -> Vec<String> {
    let mut said = Vec::new();
    if messages.shed > 0 {
        let [shed, due] = [messages.shed, messages.due].map(show_count);
        let percent = messages.shed as f64 / messages.due.max(1) as f64 * 100.0;
        said.push(format!(
            "{shed} of {due} messages were shed ({percent:.3} %)"
        ));
    }
    if messages.blocked > 0.0 {
        let blocked = show_seconds(messages.blocked);
        said.push(format!(
            "messages waited for room in the send buffer for {blocked}"
        ));
    }
    // The worst, in order of time.
    let mut worst: Vec<&Late> = messages.timely.late.iter().collect();
    worst.sort_by_key(|late| std::cmp::Reverse(late.worst));
    let others = worst.split_off(worst.len().min(MAX_TOLD));
    worst.sort_by_key(|late| late.message);
    for late in worst {
        let what = format!(
            "late from message {} at {}, by up to {} and {}",
            show_count(late.message),
            show_seconds(late.from),
            show_seconds(late.worst as f64 * 1e-9),
            show_bytes(late.delayed_bytes as f64)
        );
        let end = match late.until {
            Some(until) => format!("on time again after {}", show_seconds(until - late.from)),
            None if is_shrinking(messages) => {
                let at_end = show_seconds(messages.timely.at_end as f64 * 1e-9);
                format!("still late by {at_end} at the end")
            }
            None => "never on time again".to_owned(),
        };
        said.push(format!("{what}; {end}"));
    }
    if let Some(longest) = others.first() {
        let times = show_count(others.len() as u64);
        let worst = show_seconds(longest.worst as f64 * 1e-9);
        said.push(format!("late {times} more times, by up to {worst}"));
    }
    if messages.timely.late.is_empty() {
        let tolerance = show_seconds(messages.timely.tolerance as f64 * 1e-9);
        said.push(format!("all messages were on time, within {tolerance}"));
    }
    for loss in &flow.course.losses {
        if let Some(recovery) = loss.recovery {
            said.push(format!(
                "the loss at {} reduced the window from {} to {} segments; recovered after {}",
                show_seconds(loss.at),
                loss.before,
                loss.lowest,
                show_seconds(recovery)
            ));
        }
    }
    let last = messages.timely.late.last();
    let never = last.is_some_and(|late| late.until.is_none()) && !is_shrinking(messages);
    if never
        && messages.blocked > 0.0
        && let Some((algorithm, cbr)) = model(flow, asked)
    {
        let needs = cbr.needs(algorithm);
        said.push(format!(
            "to be on time again after a loss, {algorithm} needs a send buffer of {} here, and {} of time (evlbi plan tcp)",
            show_bytes(needs.buffer),
            needs.drain.map_or("no end".to_owned(), show_seconds)
        ));
    }
    said
}

/// Returns whether lateness was still falling at the end: by more than 1 % in the last tenth of the messages.
fn is_shrinking(messages: &Messages) -> bool {
    let kept = &messages.kept;
    let place = kept.len().checked_sub(kept.len() / 10 + 1);
    let before = place.and_then(|place| kept.get(place));
    before.is_some_and(|(.., late)| messages.timely.at_end as f64 * 1.01 < *late as f64)
}

/// Returns the congestion control algorithm of a connection and its constant bit rate, if they are known.
fn model(flow: &Flow, asked: &Asked) -> Option<(Algorithm, Cbr)> {
    let algorithm = flow.algorithm.parse().ok()?;
    Some((algorithm, cbr(flow, asked.rate? as f64)?))
}

fn cbr(flow: &Flow, rate: f64) -> Option<Cbr> {
    let round_trip = flow.course.round_trip?[0] * 1e-6;
    let segment = f64::from(flow.segment);
    (segment > 0.0).then_some(Cbr {
        rate,
        round_trip,
        segment,
        per_step: 1.0,
        link: 2.0 * rate,
    })
}

fn bursts(flow: &Flow) -> Option<String> {
    let bursts = flow.bursts.as_ref().filter(|bursts| bursts.silences > 0)?;
    Some(format!(
        "after the first loss data arrived in bursts: {} silences in {}, the longest {}, {:.0} % of the time; at most {} between them",
        bursts.silences,
        show_seconds(bursts.seconds),
        show_seconds(bursts.longest_silence),
        bursts.silent * 100.0,
        show_rate(bursts.highest)
    ))
}

fn disturbance(flow: &Flow) -> Option<String> {
    let found = flow.disturbance?;
    let [from, to] = [found.from, found.to].map(show_seconds);
    let [before, lowest] = [found.before, found.lowest].map(show_rate);
    let rates = format!(
        "from {from} to {to}, next to the background stream, the rate fell from {before} to {lowest}"
    );
    let end = found
        .recovery
        .map_or("did not recover".to_owned(), |after| {
            format!("recovered {} after its end", show_seconds(after))
        });
    Some(format!("{rates}, and {end}"))
}

/// Recommends a change, with its predicted effect.
fn advice(flow: &Flow, asked: &Asked) -> Option<String> {
    let lacks = asked
        .rate
        .is_none_or(|rate| flow.rate < rate as f64 * (1.0 - LACKING));
    let round_trip = flow.course.round_trip?[1] * 1e-6;
    let last = flow.readings[0].last()?.info;
    let (part, name) = parts(flow).into_iter().next()?;
    if !lacks || part < SHORT {
        return None;
    }
    let cpu = [flow.sender_cpu_seconds, flow.receiver_cpu_seconds]
        .map(|used| used / flow.seconds.max(1e-9));
    if let Some(end) = cpu.iter().position(|used| *used > WHOLE_CORE) {
        let who = ["sender", "receiver"][end];
        return Some(format!(
            "the {who} uses {:.0} % of a CPU: use more connections (--streams), larger segments or a larger --write",
            cpu[end] * 100.0
        ));
    }
    let needed = |rate: f64| show_bytes(rate / 8.0 * round_trip);
    let goal = asked.rate.map_or(flow.rate * 2.0, |rate| rate as f64);
    let goal_shown = show_rate(goal);
    match name {
        "the receiver's window" => Some(format!(
            "the receiver accepts {} per round trip; {goal_shown} need {} there: --receive-buffer, or as root at the receiver: sysctl net.ipv4.tcp_rmem",
            show_bytes(last.peer_window.into()),
            needed(goal),
        )),
        "the send buffer" => Some(format!(
            "{goal_shown} need a send buffer of {}: --buffer, or as root at the sender: sysctl net.ipv4.tcp_wmem",
            needed(goal),
        )),
        "the congestion window" | "loss recovery" => other_algorithm(flow, asked.rate? as f64),
        _ => None,
    }
}

/// Recommends another algorithm that sustains more of the rate at the measured loss. A flow that sends as fast as possible causes its own
/// losses, which predict nothing for others.
fn other_algorithm(flow: &Flow, rate: f64) -> Option<String> {
    let losses = flow.course.losses.len();
    if losses == 0 {
        return None;
    }
    let loss = losses as f64 / flow.segments.max(1) as f64;
    let holds = |algorithm: Algorithm| highest(flow, algorithm, loss).min(rate);
    let own = flow.algorithm.parse().ok().map(holds)?;
    // These follow their measurements; their effect on other traffic cannot be calculated from loss.
    let measuring = [Algorithm::Westwood, Algorithm::Bbr];
    let others = Algorithm::ALL.into_iter();
    let others = others.filter(|other| !measuring.contains(other));
    let (best, algorithm) = others
        .map(|algorithm| (holds(algorithm), algorithm))
        .max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best > own * (1.0 + LACKING)).then(|| {
        format!(
            "with one loss in {} segments {} sustains {} at this round-trip time, by its equations; {algorithm} sustains {} (--algorithm {algorithm})",
            show_count((1.0 / loss) as u64),
            flow.algorithm,
            show_rate(own),
            show_rate(best),
        )
    })
}

/// Searches for the highest rate that an algorithm sustains at this loss fraction.
fn highest(flow: &Flow, algorithm: Algorithm, loss: f64) -> f64 {
    let holds = |rate: f64| {
        let needs = cbr(flow, rate).map(|cbr| cbr.needs(algorithm));
        needs.is_some_and(|needs| needs.max_loss.is_none_or(|most| most >= loss))
    };
    let (mut low, mut high) = (1e3_f64, 1e12_f64);
    while high / low > 1.01 {
        let middle = (low * high).sqrt();
        match holds(middle) {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

#[cfg(test)]
mod tests;
