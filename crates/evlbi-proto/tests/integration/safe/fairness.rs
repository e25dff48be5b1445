//! TCP flows on the same path: a flow that sheds gets a rate like theirs.

use evlbi_core::path::ETHERNET_OVERHEAD;
use evlbi_core::time::Nanos;
use evlbi_proto::safe::{Settings, Step};
use evlbi_trace::tcp::Algorithm;
use proptest::prelude::*;

use super::world::{Scene, World, delay};
use super::{accounts, bottleneck, cases};

/// Rates of the second half of a run, in bits of data per second.
#[derive(Debug)]
struct Shares {
    /// Of the flow.
    cbr: f64,
    /// Mean of the TCP flows.
    tcp: f64,
    has_shed: bool,
    /// Round-trip time, in seconds.
    round_trip: f64,
}

impl Shares {
    /// Runs a flow and the TCP flows beside it until `seconds` after the data began, and measures them in the second half.
    fn of(world: &mut World, seconds: f64) -> Shares {
        world.run_for(seconds / 2.0);
        let before: u64 = world.tcp_bytes().iter().sum();
        let middle = world.now;
        world.run_for(seconds);
        let span = world.now.since(middle).as_secs_f64();
        let after = world.tcp_bytes();
        let tcp = (after.iter().sum::<u64>() - before) as f64 * 8.0;
        let sent = world.sent_within(middle, Nanos(u64::MAX)) as f64 * 1424.0 * 8.0;
        let round_trip = world.sender.status().evidence.rtt_s.unwrap();
        accounts(world);
        Shares {
            cbr: sent / span,
            tcp: tcp / span / after.len() as f64,
            has_shed: world.first("shedding").is_some(),
            round_trip,
        }
    }

    /// Returns whether a CUBIC connection of this rate has the rate of Reno, which SafeUDP takes for that of TCP: the window of Reno is
    /// above the cubic function (RFC 9438, section 4) from the middle of the time after a loss until the window is the old one. At
    /// higher rates, CUBIC is faster than Reno where losses are not evenly spaced.
    fn is_reno(&self) -> bool {
        let (c, kept) = (0.4, 0.7);
        let window = self.tcp * self.round_trip / (8.0 * 1424.0);
        let k = f64::cbrt(window * (1.0 - kept) / c);
        let cubic = c * (k.powi(3) - (k / 2.0).powi(3));
        let reno = 3.0 * (1.0 - kept) / (1.0 + kept) * k / 2.0 / self.round_trip;
        reno > cubic
    }
}

/// Runs a flow of 512 Mbit/s times `scale` with `count` TCP flows through a bottleneck of 1 Gbit/s times `scale`.
fn share(algorithm: Algorithm, count: usize, weight: f64, scale: f64, seconds: f64) -> Shares {
    let tenth = Scene::tenth();
    let scaled = |number: f64| (number * scale).round() as u64;
    let datagrams = scaled(44_940.0);
    let mut world = Scene {
        settings: Settings {
            weight,
            least: Step::LOWEST,
            rate: datagrams * 1424 * 8,
            ..tenth.settings
        },
        datagrams: datagrams as u32,
        there: vec![bottleneck(scaled(1e9), scaled(800.0)), delay(7_500)],
        tcps: vec![algorithm; count],
        ..tenth
    }
    .world();
    Shares::of(&mut world, seconds)
}

/// Four flows that divide the weight of one get no more than one. With a whole weight each, they would.
#[test]
fn many_flows_do_not_get_around_the_weight_of_one() {
    let ratio = |weight: f64| {
        let tenth = Scene::tenth();
        let datagrams = tenth.datagrams / 4;
        let mut world = Scene {
            settings: Settings {
                weight,
                rate: u64::from(datagrams) * 1424 * 8,
                least: Step::LOWEST,
                ..tenth.settings
            },
            datagrams,
            there: vec![bottleneck(100_000_000, 80), delay(7_500)],
            tcps: vec![Algorithm::Reno; 12],
            flows: 4,
            ..tenth
        }
        .world();
        world.run_for(40.0);
        let before: u64 = world.tcp_bytes().iter().sum();
        let middle = world.now;
        world.run_for(80.0);
        let tcp = (world.tcp_bytes().iter().sum::<u64>() - before) as f64 / 12.0;
        accounts(&mut world);
        let flows = world.flows.iter();
        let sent = flows.map(|flow| flow.sent.iter().filter(|at| **at >= middle).count());
        sent.sum::<usize>() as f64 * 1424.0 / tcp
    };
    let (divided, whole) = (ratio(0.75), ratio(3.0));
    // At most what one flow of the weight 3 may have.
    assert!(
        (1.0..9.0).contains(&divided) && whole > 9.0,
        "{divided} {whole}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(2), max_shrink_iters: 0, ..ProptestConfig::default() })]

    /// `room`: what the queue holds, as a fraction of the product of bandwidth and round-trip time. With fewer flows or a larger weight,
    /// nothing need be shed.
    #[test]
    fn paths_are_shared_with_reno(
        round_trip in 8_000u64..30_000, count in 10usize..16, weight in 2.0f64..3.0, room in 0.5f64..1.5, seed: u64,
    ) {
        let tenth = Scene::tenth();
        let rate = 100_000_000;
        let queue = rate as f64 * round_trip as f64 * 1e-6 / 8.0 / 1500.0 * room;
        let mut world = Scene {
            settings: Settings { weight, least: Step::LOWEST, flow: seed, ..tenth.settings },
            there: vec![bottleneck(rate, (queue as u64).max(20)), delay(round_trip / 2)],
            back: vec![delay(round_trip / 2)],
            tcps: vec![Algorithm::Reno; count],
            seed,
            ..tenth
        }
        .world();
        let shares = Shares::of(&mut world, 90.0);
        let ratio = shares.cbr / shares.tcp;
        let is_fair = (weight / 2.0..3.0 * weight).contains(&ratio);
        prop_assert!(is_fair && shares.has_shed, "{} {:?}", ratio, shares);
    }
}

/// With `EVLBI_FAIRNESS` set, all numbers of flows and also other algorithms at full rates, which takes minutes: the table of the docs.
#[test]
fn a_flow_that_sheds_gets_a_rate_like_that_of_tcp() {
    assert_eq!(ETHERNET_OVERHEAD, 24);
    let is_table = std::env::var_os("EVLBI_FAIRNESS").is_some();
    let (scale, seconds) = if is_table { (1.0, 120.0) } else { (0.1, 60.0) };
    // With these numbers of flows, something is shed.
    let asserted = [(Algorithm::Reno, 3.0, 16), (Algorithm::Cubic, 1.0, 4)];
    let others = [
        (Algorithm::Reno, 1.0, 4),
        (Algorithm::Cubic, 3.0, 4),
        (Algorithm::Reno, 10.0, 4),
        (Algorithm::Bbr, 3.0, 4),
    ];
    let cases = asserted.iter().chain(others.iter().filter(|_| is_table));
    std::thread::scope(|scope| {
        let runs = cases.map(|(algorithm, weight, count)| {
            let counts = if is_table {
                &[1, 4, 16, 64][..]
            } else {
                std::slice::from_ref(count)
            };
            let of = move |count| share(*algorithm, count, *weight, scale, seconds);
            let running =
                scope.spawn(move || counts.iter().map(|count| (*count, of(*count))).collect());
            (algorithm, weight, running)
        });
        let mut unfair = Vec::new();
        for (algorithm, weight, running) in runs.collect::<Vec<_>>() {
            let found: Vec<(usize, Shares)> = running.join().unwrap();
            for (count, shares) in found {
                let ratio = shares.cbr / shares.tcp;
                let remark = match (shares.has_shed, algorithm) {
                    (false, _) => ", nothing shed",
                    (_, Algorithm::Cubic) if !shares.is_reno() => ", CUBIC above Reno",
                    _ => "",
                };
                println!(
                    "{algorithm:?}, k = {weight}, {count} flows: {:.1} and {:.1} Mbit/s, ratio {ratio:.2}{remark}",
                    shares.cbr * 1e-6,
                    shares.tcp * 1e-6,
                );
                assert!(is_table || shares.has_shed, "{algorithm:?} {shares:?}");
                let is_asserted =
                    *algorithm != Algorithm::Bbr && *weight < 10.0 && remark.is_empty();
                if is_asserted && !(weight / 2.0..3.0 * weight).contains(&ratio) {
                    unfair.push((*algorithm, *weight, count, shares));
                }
            }
        }
        assert!(unfair.is_empty(), "{unfair:?}");
    });
}
