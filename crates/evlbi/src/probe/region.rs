//! What limits the points of a sweep: the three regions that Spencer et al. (2007) tell apart in their figure 4.

use serde::Serialize;

use super::point::{Direction, Point};

/// A point has what was asked when it has so much of it.
const REACHED: f64 = 0.97;
/// Rates are one and the same ceiling when they differ by less.
const ALIKE: f64 = 0.03;
/// What was asked differs when it does by more.
const ASKED_MORE: f64 = 1.1;
/// Sizes that differ by so much have different rates where the work for each datagram is the limit.
const OTHER_SIZE: f64 = 1.5;

/// What limits a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Region {
    /// Nothing: datagrams come as they were asked for, so the rate is the inverse of their spacing.
    A,
    /// The path is full: datagrams have a length in time, and lie side by side.
    B,
    /// The hosts cannot send or receive datagrams faster.
    C,
}

/// What a region depends on. Rates are those on the wire in bits per second.
#[derive(Clone, Copy, Debug)]
struct Seen {
    size: usize,
    /// None: as fast as the host can.
    asked: Option<f64>,
    sent: f64,
    received: f64,
    lost: u64,
    /// Of these, lost before or on the wire.
    lost_on_the_way: u64,
}

impl Seen {
    fn of(point: &Point) -> Seen {
        let on_the_wire = point.wire_rate_sent / point.rate_sent;
        Seen {
            size: point.size,
            asked: point.rate_asked.map(|rate| rate * on_the_wire),
            sent: point.wire_rate_sent,
            received: point.wire_rate_received,
            lost: point.lost,
            lost_on_the_way: point.network_lost
                + point.attribution.sender_host
                + point.attribution.sender_nic,
        }
    }

    fn is_reached(&self) -> bool {
        self.asked
            .is_some_and(|asked| self.received >= asked * REACHED)
    }

    fn asked_or_all(&self) -> f64 {
        self.asked.unwrap_or(f64::INFINITY)
    }
}

/// Says of each point what limits it. Nothing is said where that cannot be told: of a path that loses without being full,
/// or of one size alone whose rate does not grow.
pub fn assign(points: &mut [Point]) {
    for way in [Direction::There, Direction::Back] {
        let of_way = points.iter().filter(|point| point.direction == way);
        let seen: Vec<Seen> = of_way.map(Seen::of).collect();
        let regions = regions(&seen);
        let points = points.iter_mut().filter(|point| point.direction == way);
        for (point, region) in points.zip(regions) {
            point.region = region;
        }
    }
}

fn regions(seen: &[Seen]) -> Vec<Option<Region>> {
    let mut sizes: Vec<usize> = seen.iter().map(|point| point.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let of_sizes = |rate: fn(&[Seen], usize) -> Option<f64>| -> Vec<(usize, f64)> {
        let rates = sizes.iter().map(|size| Some((*size, rate(seen, *size)?)));
        rates.flatten().collect()
    };
    let (tops, ceilings) = (of_sizes(top), of_sizes(ceiling));
    let differ = tops.len() > 1 && shared(&tops).is_none();
    let shared = shared(&ceilings);
    let region = |point: &Seen| {
        if point.is_reached() {
            return Some(Region::A);
        }
        let is_at = |ceiling: f64| point.received >= ceiling * (1.0 - ALIKE);
        let own = ceilings.iter().find(|(size, _)| *size == point.size);
        let is_lost_on_the_way = 2 * point.lost_on_the_way > point.lost;
        let is_lost_in_receiver = 2 * (point.lost - point.lost_on_the_way) > point.lost;
        let is_full = shared.is_some_and(is_at)
            || is_lost_on_the_way && own.is_some_and(|(_, ceiling)| is_at(*ceiling));
        // A sender that falls short may be held back by its card: only other sizes tell.
        let is_short = point.sent < point.asked_or_all() * REACHED && !is_lost_on_the_way;
        let is_slow = is_short && (differ || shared.is_some());
        if is_full {
            Some(Region::B)
        } else {
            (is_lost_in_receiver || is_slow).then_some(Region::C)
        }
    };
    seen.iter().map(region).collect()
}

/// Points of datagrams of this size of which not all came as they were asked for.
fn short(seen: &[Seen], size: usize) -> impl Iterator<Item = &Seen> {
    let of_size = seen.iter().filter(move |point| point.size == size);
    of_size.filter(|point| !point.is_reached())
}

/// The highest rate of these.
fn top(seen: &[Seen], size: usize) -> Option<f64> {
    let rates = short(seen, size).map(|point| point.received);
    rates.max_by(f64::total_cmp)
}

/// The same, where it does not grow, however much more is asked for.
fn ceiling(seen: &[Seen], size: usize) -> Option<f64> {
    let top = top(seen, size)?;
    let asked = short(seen, size)
        .filter(|point| point.received >= top * (1.0 - ALIKE))
        .map(Seen::asked_or_all);
    let (least, most) = asked.fold((f64::INFINITY, 0.0f64), |(least, most), asked| {
        (least.min(asked), most.max(asked))
    });
    (top > 0.0 && most >= least * ASKED_MORE).then_some(top)
}

/// The highest ceiling, where it is that of sizes that are far apart.
fn shared(ceilings: &[(usize, f64)]) -> Option<f64> {
    let top = ceilings.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let sizes = ceilings
        .iter()
        .filter(|(_, rate)| *rate >= top * (1.0 - ALIKE))
        .map(|(size, _)| *size as f64);
    let (least, most) = sizes.fold((f64::INFINITY, 0.0f64), |(least, most), size| {
        (least.min(size), most.max(size))
    });
    (most >= least * OTHER_SIZE).then_some(top)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: f64 = 1e9;

    /// What a host that needs so many seconds for each datagram gets through a line that holds it back.
    fn held_back(size: usize, spacing: f64, each: f64) -> Seen {
        let bits = (size + 66) as f64 * 8.0;
        let asked = (spacing > 0.0).then(|| bits / spacing);
        let most = LINE.min(bits / each);
        let rate = asked.unwrap_or(f64::INFINITY).min(most);
        Seen {
            size,
            asked,
            sent: rate,
            received: rate,
            lost: 0,
            lost_on_the_way: 0,
        }
    }

    fn sweep(sizes: &[usize], point: impl Fn(usize, f64) -> Seen) -> Vec<Seen> {
        let spacings = (0..40).map(|step| f64::from(step) * 1e-6);
        let all = sizes
            .iter()
            .flat_map(|size| spacings.clone().map(|spacing| (*size, spacing)));
        all.map(|(size, spacing)| point(size, spacing)).collect()
    }

    /// Figure 4: large datagrams fill the line below 12 us; of small ones the host cannot send that many.
    #[test]
    fn of_spencers_figure() {
        let seen = sweep(&[64, 512, 1024, 1472], |size, spacing| {
            held_back(size, spacing, 4e-6)
        });
        for (point, region) in seen.iter().zip(regions(&seen)) {
            let expected = match point.size {
                _ if point.asked_or_all() * REACHED <= point.received => Region::A,
                // One of 130 bytes each 4 us.
                64 => Region::C,
                _ => Region::B,
            };
            assert_eq!(region, Some(expected), "{point:?}");
        }
    }

    /// Where each datagram costs the same, no two sizes have one rate: that is no line.
    #[test]
    fn hosts_are_no_line() {
        let seen = sweep(&[64, 512, 1472], |size, spacing| {
            held_back(size, spacing, 20e-6)
        });
        assert!(!regions(&seen).contains(&Some(Region::B)));
        assert_eq!(regions(&seen)[0], Some(Region::C));
        // Neither where it costs now more, now less.
        let noisy = sweep(&[64, 512, 1472], |size, spacing| {
            held_back(size, spacing, 20e-6 + spacing * 0.2)
        });
        assert_eq!(regions(&noisy)[..20], [Some(Region::C); 20]);
    }

    /// What is lost on the way tells a full line of one size alone, and what is held back alone tells nothing.
    #[test]
    fn of_one_size() {
        let held = sweep(&[1472], |size, spacing| held_back(size, spacing, 1e-6));
        assert_eq!(regions(&held)[0], None);
        let lossy = |size, spacing| {
            let point = held_back(size, spacing, 1e-6);
            let sent = point.asked_or_all().min(4.0 * LINE);
            let lost = ((sent - point.received) / 1e4) as u64;
            Seen {
                sent,
                lost,
                lost_on_the_way: lost,
                ..point
            }
        };
        let full = regions(&sweep(&[1472], lossy));
        assert_eq!(full[..12], [Some(Region::B); 12]);
        assert_eq!(full[13..], [Some(Region::A); 27]);
    }

    /// A path that loses a tenth of everything is not full, and its hosts are not slow.
    #[test]
    fn a_dirty_path_has_no_region() {
        let dirty = |size, spacing| {
            let point = held_back(size, spacing, 1e-9);
            Seen {
                received: point.sent * 0.9,
                lost: 100,
                lost_on_the_way: 100,
                ..point
            }
        };
        let seen = sweep(&[512, 1472], dirty);
        let found = regions(&seen);
        // Below 0.7 us a point of 1472 bytes would be beyond the line.
        let slow: Vec<Option<Region>> = found
            .iter()
            .zip(&seen)
            .filter(|(_, point)| point.asked_or_all() < LINE)
            .map(|(region, _)| *region)
            .collect();
        assert!(
            !slow.is_empty() && slow.iter().all(Option::is_none),
            "{slow:?}"
        );
    }

    /// A receiver that is too slow loses in its socket.
    #[test]
    fn a_slow_receiver() {
        let slow = |size, spacing| {
            let point = held_back(size, spacing, 1e-6);
            let received = point.received.min((size + 66) as f64 * 8.0 / 30e-6);
            let lost = ((point.sent - received) / 1e4) as u64;
            Seen {
                received,
                lost,
                ..point
            }
        };
        let found = regions(&sweep(&[1472], slow));
        assert_eq!(found[20], Some(Region::C));
        assert_eq!(found[39], Some(Region::A));
    }
}
