//! Limits of a sweep's points: the three regions in figure 4 of Spencer et al. (2007).

use std::collections::BTreeSet;

use super::direction::Direction;
use super::point::{Point, Region};

/// Fraction of the requested rate at which a point counts as reaching it.
const REACHED: f64 = 0.97;
/// Rates that differ by less than this fraction are the same ceiling.
const ALIKE: f64 = 0.03;
/// Factor from which on a value is clearly larger than another.
const CLEARLY: f64 = 1.1;
/// Factor between sizes whose rates must differ if the work per datagram is the limit.
const OTHER_SIZE: f64 = 1.5;

/// Values that determine a region. Rates are on the wire, in bits per second.
#[derive(Clone, Copy, Debug)]
struct Seen {
    size: usize,
    /// Requested rate; `None` for as fast as the host can.
    asked: Option<f64>,
    sent: f64,
    received: f64,
    /// Fractions of all datagrams: lost; of these lost before or on the wire, and in the receiver.
    lost: f64,
    lost_on_the_way: f64,
    lost_in_receiver: f64,
}

impl Seen {
    fn of(point: &Point) -> Seen {
        let on_the_wire = point.wire_rate_sent / point.rate_sent;
        let part = |count: u64| count as f64 / point.sent.max(1) as f64;
        let at = &point.attribution;
        Seen {
            size: point.size,
            asked: point.rate_asked.map(|rate| rate * on_the_wire),
            sent: point.wire_rate_sent,
            received: point.wire_rate_received,
            lost: point.loss,
            lost_on_the_way: part(at.network + at.sender_host + at.sender_nic),
            lost_in_receiver: part(at.receiver_nic + at.receiver_backlog + at.receiver_socket),
        }
    }

    fn asked_or_all(&self) -> f64 {
        self.asked.unwrap_or(f64::INFINITY)
    }

    /// Returns whether loss reduced the received rate below the requested one.
    fn loses(&self) -> bool {
        self.lost > 1.0 - REACHED
    }

    fn is_reached(&self) -> bool {
        !self.loses() && self.received >= self.asked_or_all() * REACHED
    }

    /// Returns whether the loss was before the receiver.
    fn loses_on_the_way(&self) -> bool {
        self.loses() && 2.0 * self.lost_on_the_way > self.lost
    }

    /// Returns whether the sender fell short, and its datagrams arrived.
    fn is_held_back(&self) -> bool {
        !self.loses() && self.sent < self.asked_or_all() * REACHED
    }
}

/// Sets the limit of each point. It stays unset if unknown: for a path that loses without being full, or a single size whose rate does not
/// grow.
pub fn assign(points: &mut [Point]) {
    for way in Direction::BOTH {
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
    let sizes: BTreeSet<usize> = seen.iter().map(|point| point.size).collect();
    let ceilings = |is_limited: fn(&Seen) -> bool, more: fn(&Seen) -> f64| -> Vec<(usize, f64)> {
        let of_size = |size: &usize| {
            let is_one = |point: &&Seen| point.size == *size && is_limited(point);
            let limited: Vec<&Seen> = seen.iter().filter(is_one).collect();
            Some((*size, ceiling(&limited, more)?))
        };
        sizes.iter().filter_map(of_size).collect()
    };
    let full = ceilings(Seen::loses_on_the_way, |point| point.sent);
    let line = shared(&ceilings(Seen::is_held_back, Seen::asked_or_all));
    let region = |point: &Seen| {
        let is_at = |ceiling: f64| point.received >= ceiling * (1.0 - ALIKE);
        let is_full = |(size, ceiling): &(usize, f64)| *size == point.size && is_at(*ceiling);
        // A host that sends more in larger datagrams, but no more of them, is not limited by the path.
        let got_more = |is_of: &dyn Fn(usize) -> bool| {
            let others = seen.iter().filter(|other| is_of(other.size));
            others.fold(0.0, |most: f64, other| most.max(other.received)) > point.received * CLEARLY
        };
        let is_slow =
            || got_more(&|size| size > point.size) && !got_more(&|size| size == point.size);
        if point.is_reached() {
            Some(Region::A)
        } else if point.loses_on_the_way() {
            full.iter().any(is_full).then_some(Region::B)
        } else if point.loses() {
            (2.0 * point.lost_in_receiver > point.lost).then_some(Region::C)
        } else if point.is_held_back() && line.is_some_and(is_at) {
            Some(Region::B)
        } else {
            (point.is_held_back() && is_slow()).then_some(Region::C)
        }
    };
    seen.iter().map(region).collect()
}

/// Returns the ceiling of points: a rate that does not grow although `more` of them clearly does.
fn ceiling(limited: &[&Seen], more: fn(&Seen) -> f64) -> Option<f64> {
    let rates = limited.iter().map(|point| point.received);
    let top = rates.max_by(f64::total_cmp)?;
    let at_top = limited
        .iter()
        .filter(|point| point.received >= top * (1.0 - ALIKE));
    let at_top = at_top.map(|point| more(point));
    let least = at_top.clone().min_by(f64::total_cmp)?;
    let most = at_top.max_by(f64::total_cmp)?;
    (most > least * CLEARLY).then_some(top)
}

/// Returns the highest ceiling, if sizes that are far apart share it.
fn shared(ceilings: &[(usize, f64)]) -> Option<f64> {
    let top = ceilings.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let at_top = ceilings
        .iter()
        .filter(|(_, rate)| *rate >= top * (1.0 - ALIKE));
    let sizes = || at_top.clone().map(|(size, _)| *size as f64);
    let least = sizes().fold(f64::INFINITY, f64::min);
    (sizes().fold(0.0, f64::max) >= least * OTHER_SIZE).then_some(top)
}

#[cfg(test)]
mod tests {
    use evlbi_core::time::Nanos;

    use super::*;
    use crate::bottleneck::Bottleneck;

    const LINE: f64 = 1e9;

    /// Returns two sizes at rates below and above a line of 20 Mbit/s whose queue overflows.
    #[test]
    fn a_queue_that_overflows_is_a_full_path() {
        let line = Bottleneck {
            rate: 20_000_000,
            queue: 100_000,
        };
        let point = |size: usize, rate: f64| {
            let through = line.carry(size, rate, Nanos(600_000_000));
            let wire = (size + 66) as f64 / size as f64;
            let lost = through.lost as f64 / through.sent as f64;
            Seen {
                size,
                asked: Some(rate * wire),
                sent: rate * wire,
                received: through.rate_received * wire,
                lost,
                lost_on_the_way: lost,
                lost_in_receiver: 0.0,
            }
        };
        let rates = [10e6, 15e6, 25e6, 30e6];
        let all = [500, 1400].map(|size| rates.map(|rate| point(size, rate)));
        let [a, b] = [Some(Region::A), Some(Region::B)];
        assert_eq!(regions(all.as_flattened()), [a, a, b, b, a, a, b, b]);
    }

    /// Returns the rate of a host that needs `each` seconds per datagram on a limited line.
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
            lost: 0.0,
            lost_on_the_way: 0.0,
            lost_in_receiver: 0.0,
        }
    }

    fn sweep(sizes: &[usize], point: impl Fn(usize, f64) -> Seen) -> Vec<Seen> {
        let spacings = (0..40).map(|step| f64::from(step) * 1e-6);
        let all = sizes
            .iter()
            .flat_map(|size| spacings.clone().map(|spacing| (*size, spacing)));
        all.map(|(size, spacing)| point(size, spacing)).collect()
    }

    /// Figure 4: large datagrams fill the line below 12 us; the host cannot send small ones that fast.
    #[test]
    fn of_spencers_figure() {
        let seen = sweep(&[64, 512, 1024, 1472], |size, spacing| {
            held_back(size, spacing, 4e-6)
        });
        for (point, region) in seen.iter().zip(regions(&seen)) {
            let expected = match point.size {
                _ if point.asked_or_all() * REACHED <= point.received => Region::A,
                // One datagram of 130 bytes per 4 us.
                64 => Region::C,
                _ => Region::B,
            };
            assert_eq!(region, Some(expected), "{point:?}");
        }
    }

    /// If each datagram costs the same time, no two sizes have the same rate, so the line is not the limit.
    #[test]
    fn the_limit_of_hosts_is_not_taken_as_the_lines() {
        let seen = sweep(&[64, 512, 1472], |size, spacing| {
            held_back(size, spacing, 20e-6)
        });
        assert!(!regions(&seen).contains(&Some(Region::B)));
        assert_eq!(regions(&seen)[0], Some(Region::C));
        // The same if the cost varies.
        let noisy = sweep(&[64, 512, 1472], |size, spacing| {
            held_back(size, spacing, 20e-6 + spacing * 0.08)
        });
        assert_eq!(regions(&noisy)[..20], [Some(Region::C); 20]);
    }

    /// Loss in the network shows a full line even with a single size; a low sending rate alone shows nothing.
    #[test]
    fn of_one_size() {
        let held = sweep(&[1472], |size, spacing| held_back(size, spacing, 1e-6));
        assert_eq!(regions(&held)[0], None);
        let lossy = |size, spacing| {
            let point = held_back(size, spacing, 1e-6);
            let sent = point.asked_or_all().min(4.0 * LINE);
            let lost = 1.0 - point.received / sent;
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

    /// A path that loses 10 % of everything is not full, and its hosts are not slow.
    #[test]
    fn a_dirty_path_has_no_region() {
        let dirty = |size, spacing| {
            let point = held_back(size, spacing, 1e-9);
            Seen {
                received: point.sent * 0.9,
                lost: 0.1,
                lost_on_the_way: 0.1,
                ..point
            }
        };
        let seen = sweep(&[512, 1472], dirty);
        let found = regions(&seen);
        // Below 0.7 us a point of 1472 bytes would exceed the line.
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

    /// A receiver that is too slow drops in its socket.
    #[test]
    fn a_slow_receiver() {
        let slow = |size, spacing| {
            let point = held_back(size, spacing, 1e-6);
            let received = point.received.min((size + 66) as f64 * 8.0 / 30e-6);
            let lost = 1.0 - received / point.sent;
            Seen {
                received,
                lost,
                lost_in_receiver: lost,
                ..point
            }
        };
        let found = regions(&sweep(&[1472], slow));
        assert_eq!(found[20], Some(Region::C));
        assert_eq!(found[39], Some(Region::A));
    }

    /// If only the largest size fills the line, its limit is unknown; the host limits the others.
    #[test]
    fn the_largest_alone_may_be_at_the_line() {
        let seen = sweep(&[64, 512, 1472], |size, spacing| {
            held_back(size, spacing, 6e-6)
        });
        let found = regions(&seen);
        assert_eq!(
            [found[0], found[40], found[80]],
            [Some(Region::C), Some(Region::C), None]
        );
        // Sizes that are too similar show nothing.
        let seen = sweep(&[1400, 1472], |size, spacing| {
            held_back(size, spacing, 1e-6)
        });
        assert_eq!(regions(&seen)[0], None);
    }

    /// A stray loss at a host's highest rate does not show a full path; nor does constant loss.
    #[test]
    fn a_loss_at_the_hosts_limit() {
        for lost in [1e-6, 0.05] {
            let capped = |size, spacing| {
                let point = held_back(size, spacing, 20e-6);
                Seen {
                    received: point.sent * (1.0 - lost),
                    lost,
                    lost_on_the_way: lost,
                    ..point
                }
            };
            assert_eq!(regions(&sweep(&[1472], capped))[0], None);
        }
        let one = held_back(1472, 0.0, 20e-6);
        assert_eq!(regions(&[one]), [None]);
    }

    /// A host that stalled while it sent slowly, and sent faster at another time, is not the limit.
    #[test]
    fn a_stall_is_not_a_limit() {
        let stalled = Seen {
            sent: 0.9 * held_back(64, 100e-6, 4e-6).sent,
            received: 0.9 * held_back(64, 100e-6, 4e-6).sent,
            ..held_back(64, 100e-6, 4e-6)
        };
        let seen = [
            stalled,
            held_back(64, 20e-6, 4e-6),
            held_back(1472, 20e-6, 4e-6),
        ];
        assert_eq!(regions(&seen), [None, Some(Region::A), Some(Region::A)]);
    }

    /// Loss at the end of a stream does not reduce the rate before it.
    #[test]
    fn a_lost_tail_is_not_as_asked() {
        let point = Seen {
            lost: 0.4,
            lost_on_the_way: 0.4,
            ..held_back(1472, 50e-6, 1e-6)
        };
        assert_eq!(regions(&[point]), [None]);
    }
}
