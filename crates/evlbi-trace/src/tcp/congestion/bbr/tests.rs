//! Whole flows of BBR over a bottleneck, and its equations.

use evlbi_core::path::{ETHERNET_OVERHEAD, Law, Loss, Shape};
use evlbi_core::rate::BitRate;

use super::super::Algorithm;
use super::*;
use crate::tcp::{Cbr, Counting, Full, Outcome, Sample, Scene};

const SEGMENT: u32 = 1448;
/// Bits per second on the wire of the bottleneck, and of payload that it carries.
const LINK: u64 = 40_000_000;
const PAYLOAD: f64 = LINK as f64 * 1448.0 / 1538.0;
const ROUND_TRIP: Nanos = Nanos(20_000_000);

/// Runs a flow with this rate and duration in seconds, and a random loss of this fraction of the segments.
fn flow(rate: u64, loss: f64, seconds: u64) -> (Outcome, Vec<Sample>) {
    let delay = Law::Delay {
        delay: Nanos(ROUND_TRIP.0 / 2),
        jitter: Nanos(0),
        shape: Shape::Normal,
        reorders: false,
    };
    let scene = Scene {
        rate: BitRate::new(rate).unwrap(),
        segment: SEGMENT,
        algorithm: Algorithm::Bbr,
        counting: Counting::Segments,
        per_ack: 2.0,
        buffer: u64::MAX,
        full: Full::Block,
        window: None,
        there: vec![
            Law::Rate {
                rate: BitRate::new(LINK).unwrap(),
                buffer: 10 << 20,
                overhead: ETHERNET_OVERHEAD,
                mark: None,
            },
            delay.clone(),
            Law::Loss(Loss::Random { fraction: loss }),
        ],
        back: vec![delay],
        seed: 1,
        length: Nanos(seconds * Nanos::SECOND.0),
        every: Nanos(1_000_000),
    };
    let mut samples = Vec::new();
    let outcome = scene.run(|sample| samples.push(*sample));
    (outcome, samples)
}

/// Payload in bits per second that was acknowledged between two seconds.
fn carried(samples: &[Sample], from: usize, to: usize) -> f64 {
    let at = |second: usize| samples[second * 1000].acknowledged as f64;
    (at(to) - at(from)) * 8.0 / (to - from) as f64
}

/// The sender has more than the path carries: the path is full, with no more queued before it than the window's gain allows, and
/// nearly nothing for more than half of the time.
#[test]
fn a_path_is_filled_without_a_queue() {
    let (_, samples) = flow(2 * LINK, 0.0, 9);
    let rate = carried(&samples, 2, 9);
    assert!((0.95 * PAYLOAD..PAYLOAD * 1.001).contains(&rate), "{rate}");
    let product = PAYLOAD / 8.0 * 0.02 / f64::from(SEGMENT);
    let settled = || samples[2000..].iter();
    let most = settled().map(|sample| sample.in_flight).max().unwrap() as f64;
    assert!(most <= 2.0 * product + 10.0, "{most} of {product}");
    let empty = settled().filter(|sample| sample.round_trip < Nanos(24_000_000));
    assert!(empty.count() > 3500, "queues most of the time");
}

/// The window is 4 segments while BBR probes the RTT, every 10 s, for 200 ms plus the time that emptying the pipe takes.
#[test]
fn the_round_trip_is_probed_every_10_s() {
    let (_, samples) = flow(2 * LINK, 0.0, 25);
    let small: Vec<usize> = (1..samples.len())
        .filter(|at| samples[*at].window <= PROBE_WINDOW)
        .collect();
    let begins: Vec<usize> = (small.iter())
        .filter(|at| samples[**at - 1].window > PROBE_WINDOW)
        .copied()
        .collect();
    assert_eq!(begins.len(), 2, "{begins:?}");
    let [first, second] = [begins[0], begins[1]];
    assert!((10_000..10_300).contains(&first), "{first}");
    let length = small.iter().filter(|at| **at < second).count();
    assert!((220..=280).contains(&length), "{length}");
    // From the end of one probe, or a shorter RTT soon after it, to the start of the other.
    let between = second - first - length;
    assert!((10_000..10_200).contains(&between), "{begins:?}");
}

/// Up to a fifth of the segments the bandwidth is still found; beyond, it is not.
#[test]
fn a_fifth_may_be_lost() {
    let rate = |loss: f64| carried(&flow(2 * LINK, loss, 9).1, 3, 9) / PAYLOAD;
    for loss in [0.01, 0.1] {
        let rate = rate(loss);
        assert!(rate > 0.85 * (1.0 - loss), "{rate} with {loss}");
    }
    let rate = rate(0.4);
    assert!(rate < 0.3, "{rate}");
}

/// A flow of constant bit rate is on time until BBR probes the RTT, and then as late as the equations predict.
#[test]
fn equations_are_those_of_a_flow() {
    let rate = 20_000_000;
    let (outcome, _) = flow(rate, 0.0, 15);
    let needs = Cbr {
        rate: rate as f64,
        round_trip: 0.02,
        segment: f64::from(SEGMENT),
        per_step: 1.0,
        link: PAYLOAD,
    }
    .needs(Algorithm::Bbr);
    assert_eq!((outcome.sent_again, outcome.timeouts), (0, 0));
    let near = |found: f64, expected: f64| {
        let tolerance = 0.1 * expected;
        assert!(
            (found - expected).abs() < tolerance,
            "{found}, expected {expected}"
        );
    };
    near(outcome.delayed as f64, needs.delayed);
    near(outcome.held as f64, needs.buffer);
    assert_eq!(needs.max_loss, Some(MAX_LOSS));
    let narrow = Cbr {
        rate: 40e6,
        round_trip: 0.3,
        segment: 1448.0,
        per_step: 1.0,
        link: 40e6,
    };
    let needs = narrow.needs(Algorithm::Bbr);
    assert_eq!((needs.recovery, needs.drain), (0.6, None));
}
