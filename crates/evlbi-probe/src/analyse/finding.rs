//! Findings of a capture, in sentences: throughput, limits, loss and round-trip times, steadiness and what to change (questions i to v of
//! Sansa 2006); and how far to trust the capture.

use evlbi_trace::capture::{Connection, DirectionReport, Numbers, Stream};
use evlbi_wire::units::{show_bytes, show_count, show_rate, show_seconds};

use super::{Analysis, show};
use crate::direction::Direction;
use crate::tcp::{held_back, steady};

const TWICE: &str = "most packets are duplicates: if the capture is of two interfaces, nothing here is reliable (capture one: tcpdump -i)";
/// Minimum fraction that results in advice.
const LARGE: f64 = 0.2;
/// Minimum number of segments in an interval for a rate.
const FEW: u64 = 10;
/// Maximum fraction of the round-trip time behind a capture that is at the sender, or at the receiver.
const NEAR: f64 = 0.05;
/// Constant of Mathis et al. 1997 for separate acknowledgement of every segment.
const MATHIS: f64 = 1.5;

/// Returns the findings on a connection. `some_forgotten`: packets of some connections were only counted, and the start of this one may be
/// among them.
pub fn of_connection(connection: &Connection, some_forgotten: bool) -> Vec<String> {
    let ways = connection.ways.iter().zip(Direction::BOTH);
    let both = (connection.ways.iter()).all(|way| way.bytes > way.frames * 1000);
    // Requests and answers have no findings.
    let most = connection.ways.iter().map(|way| way.bytes).max();
    let most = most.unwrap_or(0);
    let mut said = Vec::new();
    for (way, direction) in ways.filter(|(way, _)| way.bytes > 0 && way.bytes * 10 >= most) {
        said.extend(of_way(way).into_iter().map(|text| match both {
            true => format!("{}: {text}", direction.label()),
            false => text,
        }));
    }
    if connection.is_reset {
        said.push("an endpoint reset it (RST)".to_owned());
    }
    if !connection.is_whole {
        let counted = some_forgotten.then_some(", or counted only (--most)");
        said.push(format!(
            "its start was not captured{}: windows and the length of segments are unknown",
            counted.unwrap_or_default()
        ));
    }
    said
}

fn of_way(way: &DirectionReport) -> Vec<String> {
    let held = &way.held_back;
    let mut parts = [
        (
            held.application,
            "the application, which had no more to send",
        ),
        (held.receiver, "the receiver's window"),
        (held.repair, "loss recovery"),
        (held.path, "a full path, with a queue"),
        (held.window, "the growing congestion window"),
        (
            held.sender,
            "the sender: its own rate, its send buffer, or a constant window",
        ),
    ];
    parts.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut said = vec![
        format!("{} for {}", show_rate(way.rate), show_seconds(way.seconds)),
        held_back(&parts),
        loss(way),
    ];
    let intervals = way.intervals.iter();
    let rates: Vec<f64> = intervals
        .map(|interval| interval.acknowledged as f64 * 8.0 / way.every)
        .collect();
    // A few scattered messages have no steady rate.
    if way.segments >= FEW * rates.len() as u64 {
        said.extend(steady(&rates));
    }
    said.extend(order(way));
    if way.idle.periods > 0 {
        said.push(format!(
            "idle {}, {} in total, {} at the longest: all data was acknowledged, and the application sent none",
            times(way.idle.periods),
            show_seconds(way.idle.seconds),
            show_seconds(way.idle.longest)
        ));
    }
    if way.zero_windows > 0 {
        said.push(format!(
            "the receiver's window was closed {}, for {} in total: its application or disk is too slow",
            times(way.zero_windows),
            show_seconds(way.zero_seconds)
        ));
    }
    said.extend(advice(way));
    said.extend(trust(way));
    said
}

fn show_nanoseconds(time: i64) -> String {
    show_seconds(time as f64 * 1e-9)
}

fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        count => format!("{} times", show_count(count)),
    }
}

/// Lists several counts.
fn counted(counts: &[(u64, &str)]) -> String {
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts = counts.map(|(count, what)| format!("{} {what}", show_count(*count)));
    counts.collect::<Vec<String>>().join(", ")
}

/// Returns the whole round-trip time, in seconds: the median from here to the receiver, plus the minimum to the sender.
fn round_trip(way: &DirectionReport) -> Option<f64> {
    let there = way.round_trip.as_ref()?.median as f64 * 1e-9;
    Some(there + way.behind.unwrap_or(0.0))
}

fn loss(way: &DirectionReport) -> String {
    let trip = way.round_trip.as_ref().map_or(String::new(), |trip| {
        let [least, median, most] = [trip.min, trip.median, trip.max].map(show_nanoseconds);
        format!("; RTT from here {least} to {most}, median {median}")
    });
    let again = &way.sent_again;
    if again.segments == 0 {
        return format!("no retransmissions{trip}");
    }
    let kinds = [
        (again.fast, "after acknowledgements showed a gap"),
        (again.timeout, "after timeouts"),
        (again.probe, "as tail loss probes"),
        (again.unneeded, "although already acknowledged"),
    ];
    let place = match again.lost_before {
        0 => "all had passed here before".to_owned(),
        all if all == again.segments => {
            "none had passed here before: they were lost between the sender and here".to_owned()
        }
        some => format!(
            "{} had not passed here before: they were lost between the sender and here",
            show_count(some)
        ),
    };
    format!(
        "{} of {} segments retransmitted ({:.5} %): {}; {place}{trip}",
        show_count(again.segments),
        show_count(way.segments),
        again.segments as f64 / way.segments.max(1) as f64 * 100.0,
        counted(&kinds)
    )
}

fn order(way: &DirectionReport) -> Option<String> {
    let mut parts = Vec::new();
    if way.reordered > 0 {
        let extent = way.reordering.as_ref().map_or(0, |extent| extent.max);
        parts.push(format!(
            "{} packets were reordered before here, by {} at most",
            show_count(way.reordered),
            show_bytes(extent as f64)
        ));
    }
    if way.reordered_beyond > 0 {
        let times = times(way.reordered_beyond);
        parts.push(format!("packets were reordered behind here {times}"));
    }
    if way.duplicates > 0 {
        let copies = show_count(way.duplicates);
        parts.push(format!("{copies} packets were duplicates"));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Recommends changes, with their predicted effect.
fn advice(way: &DirectionReport) -> Vec<String> {
    let held = &way.held_back;
    let Some(trip) = round_trip(way).filter(|trip| *trip > 0.0) else {
        return Vec::new();
    };
    let twice = show_rate(2.0 * way.rate);
    let needed = show_bytes(2.0 * way.rate / 8.0 * trip);
    let mut said = Vec::new();
    if held.receiver >= LARGE
        && let Some(window) = &way.window
    {
        said.push(format!(
            "the receiver accepts {} per round trip of {}, so at most {}; {twice} need {needed} there (sysctl net.ipv4.tcp_rmem)",
            show_bytes(window.most as f64),
            show_seconds(trip),
            show_rate(window.most as f64 * 8.0 / trip)
        ));
    }
    if held.sender >= LARGE
        && let Some(flight) = &way.flight
    {
        said.push(format!(
            "the sender had at most {} in flight: if that is its send buffer, {twice} need {needed} there (sysctl net.ipv4.tcp_wmem)",
            show_bytes(flight.most as f64)
        ));
    }
    let lost = way.sent_again.segments - way.sent_again.unneeded;
    if held.repair + held.window >= LARGE
        && lost > 0
        && let Some(segment) = way.segment
    {
        let part = lost as f64 / way.segments.max(1) as f64;
        let most = f64::from(segment) * 8.0 / trip * (MATHIS / part).sqrt();
        said.push(format!(
            "at this loss Reno sustains at most {} if losses are independent (Mathis et al. 1997); others may sustain more: evlbi plan tcp --compare",
            show_rate(most)
        ));
    }
    if held.path >= LARGE
        && let Some(rate) = way.path_rate
    {
        said.push(format!(
            "with a queue the path carried {}: this was the available rate",
            show_rate(rate)
        ));
    }
    said
}

/// Judges the reliability of the analysis.
fn trust(way: &DirectionReport) -> Vec<String> {
    let mut said = Vec::new();
    if way.missed > 0 || way.acknowledged_unseen > 0 {
        said.push(format!(
            "the capture is incomplete: it lacks {} that were acknowledged",
            show_bytes(way.missed as f64)
        ));
    }
    if way.duplicates * 3 > way.frames {
        said.push(TWICE.to_owned());
    }
    let full = way.segment.unwrap_or(u32::MAX);
    if way.longest > full {
        said.push(format!(
            "packets of up to {} bytes: captured before segmentation or after reassembly, so segments of {full} bytes are assumed",
            show_count(way.longest.into())
        ));
    }
    if let (Some(trip), Some(behind)) = (&way.round_trip, way.behind) {
        let ahead = trip.min as f64 * 1e-9;
        let place = match behind / (ahead + behind).max(1e-9) {
            part if part <= NEAR => None,
            part if part >= 1.0 - NEAR => Some("at the receiver"),
            _ => Some("on the path"),
        };
        said.extend(place.map(|place| {
            format!(
                "captured {place}: {} to the sender and back, which data in flight accounts for",
                show_seconds(behind)
            )
        }));
    }
    said
}

pub fn of_stream(stream: &Stream) -> Vec<String> {
    let mut said = Vec::new();
    if let Some(account) = &stream.account {
        let counters = &account.counters;
        let runs = account.run_lengths.as_ref().map_or(0, |runs| runs.count);
        said.push(match counters.lost {
            0 => format!(
                "{} datagrams ({}), none lost before here",
                show_count(counters.unique),
                show::name(stream.numbers)
            ),
            lost => format!(
                "{} of {} datagrams lost before here ({:.5} %), in {} runs",
                show_count(lost),
                show_count(counters.expected),
                lost as f64 / counters.expected.max(1) as f64 * 100.0,
                show_count(runs)
            ),
        });
        if counters.reordered > 0 || counters.duplicates > 0 {
            said.push(format!(
                "{} reordered, {} duplicates",
                show_count(counters.reordered),
                show_count(counters.duplicates)
            ));
        }
        if counters.restarts > 0 {
            let times = times(counters.restarts);
            said.push(format!("the sender restarted {times}"));
        }
        if counters.duplicates * 2 > counters.unique {
            said.push(TWICE.to_owned());
        }
    }
    if let Some(step) = stream.step {
        said.push(format!(
            "the numbers increase by {step} per packet: either each packet holds {step} datagrams (captured before segmentation) and none is lost, or only one in {step} arrived; capture whole packets to find out (tcpdump -s 0)"
        ));
    }
    if stream.numbers == Numbers::Vdif && stream.account.is_none() {
        said.push(
            "VDIF frames that were not captured whole: only whole ones can be numbered (tcpdump -s 0)"
                .to_owned(),
        );
    }
    if stream.datagrams > stream.packets && stream.numbers != Numbers::None {
        said.push(format!(
            "{} datagrams in {} packets: captured before segmentation, so their spacing is not that on the wire",
            show_count(stream.datagrams),
            show_count(stream.packets)
        ));
    }
    if let Some(gaps) = &stream.gaps {
        let [median, p99, most] = [gaps.median, gaps.p99, gaps.max].map(show_nanoseconds);
        said.push(format!(
            "packets {median} apart (median), 99 % of them {p99} at most, {most} at most"
        ));
    }
    said
}

pub fn of_capture(analysis: &Analysis, unknown_links: &[i32]) -> Vec<String> {
    let mut said = Vec::new();
    let unread = &analysis.totals.unread;
    let counts = [
        (unread.not_ip, "are not IP"),
        (unread.other_protocols, "are neither TCP nor UDP"),
        (unread.fragments, "are fragments"),
        (
            unread.damaged,
            "have damaged headers, or were not captured far enough",
        ),
        (unread.without_time, "have no time"),
        (analysis.totals.left_out, "were left out, as requested"),
    ];
    let counts = counted(&counts);
    if !counts.is_empty() {
        said.push(format!("of the packets, {counts}"));
    }
    if unread.unknown_link > 0 {
        said.push(format!(
            "{} packets have an unknown link type (LINKTYPE {unknown_links:?}): known are Ethernet, raw IP, Linux cooked and loopback",
            show_count(unread.unknown_link)
        ));
    }
    if let Some(dropped) = analysis.dropped.filter(|dropped| *dropped > 0) {
        said.push(format!(
            "the capturing host dropped {} packets itself: missing packets may not be lost on the path",
            show_count(dropped)
        ));
    }
    if analysis.totals.backward_times > 0 {
        said.push(format!(
            "times of packets go back {}: several queues or interfaces are mixed (reordercap sorts them)",
            times(analysis.totals.backward_times)
        ));
    }
    if analysis.others.flows > 0 {
        said.push(format!(
            "{} smaller connections and streams, of {} packets and {}, are not listed (--most)",
            show_count(analysis.others.flows),
            show_count(analysis.others.packets),
            show_bytes(analysis.others.bytes as f64)
        ));
    }
    said.extend(analysis.broken.clone());
    if analysis.interrupted {
        said.push("stopped before the end of the file".to_owned());
    }
    said
}
