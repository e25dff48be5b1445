//! The equations compared with the papers, the steps of the algorithms with the equations, and the simulation with both.

use super::*;
use evlbi_core::path::{ETHERNET_OVERHEAD, Law, Loss, Shape};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;

const SECOND: u64 = 1_000_000_000;
const SEGMENT: u32 = 1448;

fn cbr(round_trip: f64, per_step: f64) -> Cbr {
    Cbr {
        rate: 512e6,
        round_trip,
        segment: f64::from(SEGMENT),
        per_step,
        link: 1e9,
    }
}

#[track_caller]
fn near(found: f64, expected: f64, tolerance: f64) {
    assert!(
        (found / expected - 1.0).abs() <= tolerance,
        "{found}, expected {expected}"
    );
}

/// Section 2.6 of the EXPReS report: 160 MB at 15 ms, 520 MB at 27 ms, 6.4 GB at 95 ms; 10 s at 15 ms is the recovery time, and
/// 820 s at 95 ms the time until messages are on time again.
#[test]
fn renos_equations_are_the_reports() {
    for (round_trip, recovery, delayed) in [
        (0.015, 9.95, 159.1e6),
        (0.027, 32.2, 515.6e6),
        (0.095, 398.9, 6382e6),
    ] {
        let needs = cbr(round_trip, 2.0).needs(Algorithm::Reno);
        near(needs.recovery, recovery, 0.002);
        near(needs.delayed, delayed, 0.002);
        near(needs.drain.unwrap(), 2.0 * recovery, 0.002);
        near(needs.buffer, delayed + 64e6 * round_trip, 0.002);
    }
    // facts: p must be under 3.4e-6 at 15 ms and 8.5e-8 at 95 ms, with b = 1.
    near(
        cbr(0.015, 1.0).needs(Algorithm::Reno).max_loss.unwrap(),
        3.4e-6,
        0.01,
    );
    near(
        cbr(0.095, 1.0).needs(Algorithm::Reno).max_loss.unwrap(),
        8.5e-8,
        0.01,
    );
}

/// If the path has less than half of the flow's rate to spare, late data are sent at the spare rate.
#[test]
fn a_narrow_path_takes_longer() {
    let wide = cbr(0.015, 2.0);
    let needs = |link: f64| Cbr { link, ..wide }.needs(Algorithm::Reno);
    let of_rounds = |link: f64| Cbr { link, ..wide }.by_rounds(Algorithm::Reno);
    assert_eq!(needs(512e6).drain, None);
    assert_eq!(of_rounds(512e6).drain, None);
    for link in [540e6, 600e6, 700e6, 768e6, 1e9] {
        near(
            of_rounds(link).drain.unwrap(),
            needs(link).drain.unwrap(),
            0.01,
        );
    }
}

/// Each algorithm compared with its closed form.
#[test]
fn steps_match_closed_forms() {
    for (round_trip, per_step) in [(0.015, 1.0), (0.015, 2.0), (0.095, 1.0)] {
        let flow = cbr(round_trip, per_step);
        let window = flow.window();
        let reno = (flow.by_rounds(Algorithm::Reno), flow.needs(Algorithm::Reno));
        near(reno.0.recovery, reno.1.recovery, 0.01);
        near(reno.0.delayed, reno.1.delayed, 0.01);
        near(reno.0.max_loss.unwrap(), reno.1.max_loss.unwrap(), 0.02);
        // A hundredth per window, an eighth lost: Kelly 2003.
        let scalable = flow.needs(Algorithm::Scalable);
        let rounds = (8.0f64 / 7.0).ln() / (0.01 / per_step).ln_1p();
        near(scalable.recovery, rounds * round_trip, 0.01);
        // K of RFC 9438; the late data grow with its fourth power.
        let cubic = flow.needs(Algorithm::Cubic);
        let lost = 1.0 - 717.0 / 1024.0;
        let k = (window * lost / 0.4).cbrt();
        if round_trip > 0.05 {
            near(cubic.recovery, k, 0.05);
            near(cubic.delayed, 64e6 * k * lost / 4.0, 0.1);
        } else {
            // The Reno-friendly region is faster: 3 (1 - beta) / (1 + beta) per round trip.
            let steps = window * lost * per_step * (2.0 - lost) / (3.0 * lost);
            near(cubic.recovery, (steps * round_trip).min(k), 0.05);
        }
        // RFC 3649, section 5.
        let highspeed = flow.needs(Algorithm::HighSpeed);
        let of_window = 0.078 / window.powf(1.2) / per_step;
        let ratio = highspeed.max_loss.unwrap() / of_window;
        assert!((0.6..1.7).contains(&ratio), "{ratio}");
        // The carried rate is known: none of it is lost.
        let westwood = flow.needs(Algorithm::Westwood);
        assert!(westwood.delayed < 0.1 * reno.1.delayed, "{westwood:?}");
    }
}

/// Figure 10 of Meirosu et al.: 17 ms, 5.447 Gbit/s in packets of 9216 bytes; HighSpeed TCP recovers "more than 9 times
/// faster".
#[test]
fn highspeed_recovers_nine_times_faster() {
    let flow = Cbr {
        rate: 5.447e9,
        round_trip: 0.017,
        segment: 9164.0,
        per_step: 2.0,
        link: 9.58464e9,
    };
    let [reno, highspeed] =
        [Algorithm::Reno, Algorithm::HighSpeed].map(|algorithm| flow.by_rounds(algorithm).recovery);
    let ratio = reno / highspeed;
    assert!((9.0..15.0).contains(&ratio), "{reno} / {highspeed}");
}

fn scene(algorithm: Algorithm, round_trip: u64, counting: Counting, buffer: u64) -> Scene {
    let delay = || Law::Delay {
        delay: Nanos(round_trip / 2),
        jitter: Nanos(0),
        shape: Shape::Normal,
        reorders: false,
    };
    let window = cbr(round_trip as f64 * 1e-9, 1.0).window().ceil() + 1.0;
    Scene {
        rate: BitRate::new(512_000_000).unwrap(),
        segment: SEGMENT,
        algorithm,
        counting,
        per_ack: 2.0,
        buffer,
        full: Full::Block,
        window: Some(window),
        there: vec![
            Law::Rate {
                rate: BitRate::new(1_000_000_000).unwrap(),
                buffer: 1 << 20,
                overhead: ETHERNET_OVERHEAD,
                mark: None,
            },
            delay(),
            Law::Loss(Loss::At([Nanos(SECOND)].into())),
        ],
        back: vec![delay()],
        seed: 1,
        length: Nanos(30 * SECOND),
        every: Nanos(10_000_000),
    }
}

/// Figure 2.4 (b) of the report: with 160 MB a loss at 15 ms costs 10 s of window, 160 MB of delay, and nothing after 20 s.
#[test]
fn a_large_buffer_puts_a_flow_on_time_again() {
    evlbi_testkit::watch();
    let needs = cbr(0.015, 2.0).needs(Algorithm::Reno);
    let scene = scene(Algorithm::Reno, 15_000_000, Counting::Acks, 170_000_000);
    let mut windows = Vec::new();
    let outcome = scene.run(|sample| windows.push(sample.window));
    let reduced = outcome.reduced_at.unwrap();
    let recovery = outcome.regained_at.unwrap().since(reduced).as_secs_f64();
    near(recovery, needs.recovery, 0.1);
    near(outcome.delayed as f64, needs.delayed, 0.1);
    let timely = outcome.timely_from.unwrap().since(reduced).as_secs_f64();
    near(timely, needs.drain.unwrap(), 0.1);
    near(outcome.held as f64, needs.buffer, 0.1);
    assert_eq!(
        (outcome.sent_again, outcome.timeouts, outcome.shed),
        (1, 0, 0)
    );
    assert_eq!(windows.len(), 3001);
}

/// Figure 2.4 (a): with a buffer of the bandwidth-delay product it is never on time again.
#[test]
fn a_buffer_of_the_product_never_does() {
    evlbi_testkit::watch();
    let scene = scene(Algorithm::Reno, 15_000_000, Counting::Acks, 960_000);
    let mut delays = Vec::new();
    let outcome = scene.run(|sample| delays.push(sample.delay));
    assert_eq!(outcome.timely_from, None);
    assert!(outcome.held <= 960_000 && outcome.blocked > Nanos(SECOND));
    // Late by the area of a triangle, permanently.
    near(delays[2900].as_secs_f64(), 159.1e6 / 64e6, 0.15);
}

/// A flow that sheds the excess is on time again without it.
#[test]
fn shedding_puts_a_flow_on_time_again() {
    evlbi_testkit::watch();
    let scene = Scene {
        full: Full::Shed,
        ..scene(Algorithm::Reno, 15_000_000, Counting::Acks, 960_000)
    };
    let outcome = scene.run(|_| {});
    assert!(outcome.timely_from.is_some());
    near(outcome.shed as f64 * f64::from(SEGMENT), 159.1e6, 0.15);
    assert_eq!(outcome.blocked, Nanos(0));
}
