//! Finding on a point, in a sentence.

use std::collections::BTreeSet;

use evlbi_wire::units::{show_count, show_rate};

use super::direction::Direction;
use super::point::{Point, Region};
use crate::measure::Pattern;

/// Minimum fraction of equal distances between losses for a period.
const ALIKE: f64 = 0.9;
/// Minimum number of distances between losses for a period.
const ENOUGH: u64 = 5;
/// Fraction below the requested rate from which on a slow sender is reported.
const SLOWER: f64 = 0.01;

/// Returns the finding on a point, in a sentence.
pub fn of_point(point: &Point) -> String {
    let mut said = vec![loss(point)];
    if point.duplicates > 0 {
        said.push(format!("{} duplicates", show_count(point.duplicates)));
    }
    if point.reordered > 0 {
        said.push(format!("{} out of order", show_count(point.reordered)));
    }
    if let Some(asked) = point.rate_asked
        && point.rate_sent < asked * (1.0 - SLOWER)
    {
        let sent = show_rate(point.rate_sent);
        said.push(format!("the sender reached {sent} of {}", show_rate(asked)));
    }
    if let Some(stopped) = &point.sender.stopped
        && point.rate_asked.is_some()
    {
        said.push(stopped.clone());
    }
    said.join("; ")
}

fn loss(point: &Point) -> String {
    if point.lost == 0 {
        return "nothing lost".to_owned();
    }
    let [lost, sent] = [point.lost, point.sent].map(show_count);
    let mut text = format!("{lost} of {sent} lost ({:.4} %)", point.loss * 100.0);
    let of = &point.attribution;
    let places = [
        (of.sender_host, "in the sending host"),
        (of.sender_nic, "in the sending NIC"),
        (of.network, "in the network"),
        (of.receiver_nic, "in the receiving NIC"),
        (of.receiver_backlog, "in the receiving kernel's backlog"),
        (of.receiver_socket, "in the receiving socket's buffer"),
        (of.unattributed, "at an unknown place"),
    ];
    let many = |count: u64| match count == point.lost {
        true => "all".to_owned(),
        false => show_count(count),
    };
    let places = where_lost(&places, many);
    text += &format!(": {places}");
    if let Some(period) = period(point) {
        text += &format!(", one every {} datagrams", show_count(period));
    }
    text += &in_time(&point.pattern);
    let runs: u64 = point.loss_runs.values().sum();
    if runs > 0 && point.lost > 2 * runs {
        let mean = point.lost as f64 / runs as f64;
        text += &format!(", in runs of {mean:.1}");
    }
    text
}

/// Lists the places with losses, and their counts.
pub fn where_lost(places: &[(u64, &str)], many: impl Fn(u64) -> String) -> String {
    let some = places.iter().filter(|(count, _)| *count > 0);
    let some = some.map(|(count, place)| format!("{} {place}", many(*count)));
    some.collect::<Vec<String>>().join(", ")
}

/// Describes the distribution of loss over time.
pub fn in_time(pattern: &Pattern) -> String {
    let (episodes, period) = match pattern {
        Pattern::None | Pattern::Unknown => return String::new(),
        Pattern::Constant => return ", evenly over time".to_owned(),
        Pattern::Episodes(episodes) => (episodes, None),
        Pattern::Periodic { period, episodes } => (episodes, Some(*period)),
    };
    let times = match episodes.count {
        1 => "1 episode".to_owned(),
        count => format!("{count} episodes"),
    };
    let mut text = format!(
        ", in {times} of {:.3} s with {:.3} % loss",
        episodes.length,
        episodes.loss * 100.0
    );
    if episodes.loss_outside > 0.0 {
        text += &format!(" ({:.4} % outside)", episodes.loss_outside * 100.0);
    }
    if let Some(period) = period {
        text += &format!(", every {period:.3} s");
    }
    text
}

/// Returns the rate at which a sweep starts to lose, for each direction and size.
pub fn of_sweep(points: &[Point]) -> Vec<String> {
    let mut all: Vec<((&str, usize), Vec<&Point>)> = Vec::new();
    for point in points {
        let key = (point.direction.label(), point.size);
        match all.iter_mut().find(|(other, _)| *other == key) {
            Some((_, of)) => of.push(point),
            None => all.push((key, vec![point])),
        }
    }
    let edges = all.into_iter().filter_map(|((way, size), mut of)| {
        of.sort_by(|a, b| a.rate_sent.total_cmp(&b.rate_sent));
        let first = of.iter().position(|point| point.lost > 0)?;
        let is_edge = first > 0 && of[first..].iter().all(|point| point.lost > 0);
        is_edge.then(|| {
            let [below, from] = [first - 1, first].map(|at| show_rate(of[at].rate_sent));
            format!("{size} bytes, {way}: nothing lost up to {below}, loss from {from} on")
        })
    });
    let mut said: Vec<String> = edges.collect();
    for way in Direction::BOTH {
        let of_way = || points.iter().filter(|point| point.direction == way);
        let way = way.label();
        let top = |region: Region, size: Option<usize>| {
            let top = of_way()
                .filter(|point| point.region == Some(region))
                .filter(|point| size.is_none_or(|size| point.size == size))
                .map(|point| point.wire_rate_received)
                .max_by(f64::total_cmp);
            top.map(show_rate)
        };
        said.extend(
            top(Region::B, None)
                .map(|rate| format!("{way}: the path is full at {rate} on the wire (region B)")),
        );
        let sizes: BTreeSet<usize> = of_way().map(|point| point.size).collect();
        said.extend(sizes.into_iter().filter_map(|size| {
            let rate = top(Region::C, Some(size))?;
            Some(format!(
                "{size} bytes, {way}: the hosts are the limit, at {rate} on the wire (region C)"
            ))
        }));
    }
    said
}

/// Returns the distance between losses in datagrams, if it is nearly always the same.
fn period(point: &Point) -> Option<u64> {
    let all: u64 = point.loss_distances.values().sum();
    let distances = point.loss_distances.iter();
    let (distance, count) = distances.max_by_key(|(_, count)| **count)?;
    let is_period = all >= ENOUGH && *distance > 1 && *count as f64 >= ALIKE * all as f64;
    is_period.then_some(*distance)
}
