//! Round-trip times, one-way delays, and clock offsets between the endpoints.

use std::time::Duration;

use evlbi_core::path::{Law, Shape};
use evlbi_core::time::Nanos;

use super::{BEGINNING, Path, delay, twice};
use crate::latency::{self, ProbeLatencyOptions};
use crate::sweep::{Sizes, Spacings};
use crate::udp::ProbeUdpOptions;

/// Round-trip times and one-way delays are those of the path, for any offset of the remote clock.
#[test]
fn delays_are_the_paths_and_clock_offsets_are_found() {
    let mut path = Path::new([vec![delay(10)], vec![delay(10)]]);
    for far_clock in [[0, 0], [40_000_000, 0], [-3_600_000_000_000, 20_000]] {
        path.far_clock = far_clock;
        let (result, _) = path.play(|scene| {
            let options = ProbeLatencyOptions {
                target: scene.target(),
                size: Sizes(vec![64, 1000]),
                count: 200,
                ..ProbeLatencyOptions::default()
            };
            latency::probe(&options, &scene.near).unwrap().result
        });
        let clock = result.clock.unwrap();
        let drift = far_clock[1] as f64 * 1e-9;
        let offset = far_clock[0] as f64 + drift * (clock.at - BEGINNING) as f64;
        // Clocks show whole nanoseconds.
        assert!(clock.error_if_symmetric < 1.1, "{clock:?}");
        assert!(
            (clock.offset - offset).abs() < clock.error_if_symmetric,
            "{clock:?} {offset}"
        );
        for size in &result.points {
            assert_eq!(
                [size.sent, size.received, size.lost, size.duplicates],
                [200, 200, 0, 0]
            );
            let of = |found: &Option<evlbi_core::account::Summary>| {
                let found = found.as_ref().unwrap();
                [found.min, found.max]
            };
            assert_eq!(of(&size.round_trip), [20_000_000; 2]);
            for one_way in [of(&size.there), of(&size.back)].concat() {
                assert!(one_way.abs_diff(10_000_000) <= 1, "{one_way} {far_clock:?}");
            }
        }
    }
}

/// With 10 ms and 20 ms in the two directions, and a remote clock with offset and drift, both endpoints measure the sum exactly. The
/// difference cannot be measured: half of it is counted as clock offset, and the stated error bounds that.
#[test]
fn delays_that_differ_are_known_by_their_sum() {
    let mut path = Path::new([vec![delay(10)], vec![delay(20)]]);
    for far_clock in [[0, 0], [40_000_000, 0], [-3_600_000_000_000, 20_000]] {
        path.far_clock = far_clock;
        let (latency, udp) = path
            .play(|scene| {
                let options = ProbeLatencyOptions {
                    target: scene.target(),
                    count: 200,
                    ..ProbeLatencyOptions::default()
                };
                let latency = latency::probe(&options, &scene.near).unwrap().result;
                let udp = scene.udp(ProbeUdpOptions {
                    spacing: Some(Spacings(vec![1_000_000])),
                    count: Some(200),
                    both: true,
                    ..ProbeUdpOptions::default()
                });
                (latency, udp)
            })
            .0;
        let clock = latency.clock.unwrap();
        let drift = far_clock[1] as f64 * 1e-9;
        let offset = far_clock[0] as f64 + drift * (clock.at - BEGINNING) as f64;
        // Half of the difference, by the drifting clock.
        let off = clock.offset - (offset - 5e6 * (1.0 + drift));
        assert!(off.abs() < 1.1, "{clock:?} {offset}");
        assert!((clock.skew - drift).abs() < 1e-9, "{clock:?}");
        let size = &latency.points[0];
        let of = |found: &Option<evlbi_core::account::Summary>| {
            let found = found.as_ref().unwrap();
            [found.min, found.max]
        };
        assert_eq!(of(&size.round_trip), [30_000_000; 2]);
        for one_way in [of(&size.there), of(&size.back)].concat() {
            assert!(one_way.abs_diff(15_000_000) <= 1, "{one_way} {far_clock:?}");
        }
        // Half of the round-trip time: the case that one direction takes no time.
        assert!((15e6..15e6 + 2.0).contains(&clock.error), "{clock:?}");

        let delays = [0, 1].map(|way| udp.points[way].delay.unwrap());
        let sum = delays[0].mean + delays[1].mean;
        assert!((sum - 30e6).abs() < 1.0, "{delays:?}");
        for (delay, truth) in delays.iter().zip([10e6, 20e6]) {
            // The clock is evaluated in the middle of the stream, which lasts 0.2 s.
            let drifts = 0.1e9 * drift;
            assert!(
                (15e6..15e6 + 2.0 + drifts).contains(&delay.error),
                "{delay:?}"
            );
            for found in [delay.min, delay.median, delay.mean, delay.p99, delay.max] {
                assert!((found - truth).abs() < delay.error, "{delay:?}");
                assert!((found - 15e6).abs() < 1.1 + drifts, "{delay:?}");
            }
        }
    }
}

/// A reply that takes a nanosecond longer than the loss timeout is lost; one that takes exactly the timeout is not.
#[test]
fn the_wait_for_replies_is_the_loss_timeout() {
    for (later, lost) in [(0, 0), (1, 50)] {
        let back = Law::Delay {
            delay: Nanos(490_000_000 + later),
            jitter: Nanos(0),
            shape: Shape::Uniform,
            reorders: false,
        };
        let (result, _) = Path::new([vec![delay(10)], vec![back]]).play(|scene| {
            let options = ProbeLatencyOptions {
                target: scene.target(),
                count: 50,
                interval: Duration::from_millis(20),
                loss_timeout: Duration::from_millis(500),
                ..ProbeLatencyOptions::default()
            };
            latency::probe(&options, &scene.near).unwrap().result
        });
        let size = &result.points[0];
        assert_eq!(
            [size.sent, size.received, size.lost],
            [50, 50 - lost, lost],
            "{later}"
        );
    }
}

#[test]
fn round_trips_are_measured_twice_alike() {
    twice(100, |scene| {
        let options = ProbeLatencyOptions {
            target: scene.target(),
            count: 40,
            ..ProbeLatencyOptions::default()
        };
        let result = latency::probe(&options, &scene.near).unwrap().result;
        serde_json::to_value(&result).unwrap()
    });
}
