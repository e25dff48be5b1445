//! The tests of single paths, for any path of their kind.

use evlbi_core::path::{Law, Loss, Times};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_proto::safe::{Order, Reason, Step};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::world::{Scene, World, delay};
use super::{CHANGE, accounts, at, bottleneck, cases, changing, wire};

/// A flow over a path with this round-trip time in microseconds, which changes at [`CHANGE`].
fn scene(round_trip: u64, seed: u64, law: impl Fn(&Scene) -> Law) -> Scene {
    let mut scene = changing(law);
    scene.there[1] = delay(round_trip / 2);
    scene.back = vec![delay(round_trip / 2)];
    scene.seed = seed;
    scene.settings.flow = seed;
    scene
}

fn lost_within(from: f64, length: f64) -> Law {
    let times = Times::Once {
        from: at(from),
        to: at(from + length),
    };
    Law::Loss(Loss::Within {
        times,
        fraction: 1.0,
    })
}

fn police(scene: &Scene, part: f64) -> Law {
    Law::Police {
        rate: BitRate::new(wire(scene, part)).unwrap(),
        burst: 60_000,
        overhead: 24,
    }
}

fn has_shed(world: &World) -> bool {
    world.first("shedding").is_some()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(3), max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn an_outage_of_less_than_a_second_changes_nothing(
        round_trip in 2_000u64..60_000, seed: u64, from in 0.0f64..3.0, length in 0.002f64..0.85,
    ) {
        let mut world = scene(round_trip, seed, |_| lost_within(CHANGE + from, length)).world();
        world.run_for(50.0);
        prop_assert_eq!(world.names(), ["transient"]);
        prop_assert!(accounts(&mut world).network as f64 >= 4000.0 * length - 10.0);
    }

    #[test]
    fn too_small_a_path_is_shed_to_and_loses_no_more(
        round_trip in 2_000u64..60_000, seed: u64, part in 0.3f64..0.95, is_policed: bool,
    ) {
        let mut world = scene(round_trip, seed, |scene| match is_policed {
            true => police(scene, part),
            false => bottleneck(wire(scene, part), 80),
        }).world();
        world.run_for(45.0);
        let told = world.first("congested").unwrap().0 + world.begun().as_secs_f64() - CHANGE;
        prop_assert!(told < 6.0, "{}", told);
        let (held, of_held) = world.first("held").unwrap();
        let steps: Vec<_> = world.orders.iter().collect();
        if let Some((trial, of_trial)) = world.first("trial") {
            prop_assert!(trial - held >= 10.0);
            prop_assert_eq!(of_trial.evidence.lost, of_held.evidence.lost, "{:?} {:?}", world.told(), steps);
        }
        accounts(&mut world);
    }

    #[test]
    fn clocks_and_routes_have_no_effect(round_trip in 2_000u64..60_000, seed: u64, other in 2_000u64..200_000) {
        let mut world = scene(round_trip, seed, |_| delay(other)).world();
        world.clock = |now| Nanos(now.0 + now.0 / 10_000);
        world.run_for(40.0);
        prop_assert!(!has_shed(&world) && world.names().is_empty(), "{:?}", world.told());
        accounts(&mut world);
    }

    #[test]
    fn losses_of_the_host_are_the_hosts(seed: u64, part in 12u64..100, span in 1.0f64..40.0) {
        let mut world = scene(15_000, seed, |_| delay(0)).world();
        world.host = Some(Box::new(move |now, number| {
            now > at(20.0) && now < at(20.0 + span) && number.is_multiple_of(part)
        }));
        world.run_for(60.0);
        prop_assert!(!has_shed(&world) && world.first("congested").is_none(), "{:?}", world.told());
        let accounts = accounts(&mut world);
        prop_assert_eq!((accounts.network, accounts.host > 0), (0, true));
    }

    #[test]
    fn what_a_host_loses_anyway_is_shed_once(seed: u64, part in 4u64..8) {
        let mut world = scene(15_000, seed, |_| delay(0)).world();
        world.host = Some(Box::new(move |now, number| now > at(20.0) && number.is_multiple_of(part)));
        world.run_for(75.0);
        prop_assert_eq!(&world.names()[..2], ["host", "shedding"]);
        prop_assert!(world.first("congested").is_none(), "{:?}", world.told());
        let [(host, _), (shed, _)] = ["host", "shedding"].map(|name| world.first(name).unwrap());
        prop_assert!((30.0..33.0).contains(&(shed - host)), "{:?}", world.told());
        let steps: Vec<_> = world.orders.iter().filter_map(|(_, order)| match order {
            Order::Send(step) => Some(step.sixteenths()),
            _ => None,
        }).collect();
        prop_assert_eq!(steps, [16, 12]);
        accounts(&mut world);
    }

    #[test]
    fn silence_halves_and_then_stops(
        round_trip in 2_000u64..60_000, seed: u64, silent in 12.0f64..30.0, is_shed: bool,
    ) {
        let mut world = match is_shed {
            true => scene(round_trip, seed, |scene| bottleneck(wire(scene, 0.7), 80)),
            false => scene(round_trip, seed, |_| delay(0)),
        }.world();
        world.mangle = Some(Box::new(move |now, report| (now < at(silent)).then_some((now, report)).into_iter().collect()));
        world.run_for(60.0);
        prop_assert_eq!(world.stopped(), Some(Reason::Silence));
        let [blind, stopped] = ["blind", "stopped"].map(|name| {
            let (after, _) = world.first(name).unwrap();
            world.begun().plus(at(after)).since(at(silent)).as_secs_f64()
        });
        prop_assert!((1.8..=3.0).contains(&blind) && (9.8..=10.0).contains(&stopped), "{} {}", blind, stopped);
        let stop = at(silent + 10.0);
        prop_assert_eq!(world.sent_within(stop, Nanos(u64::MAX)), 0);
    }

    #[test]
    fn bad_ways_back_of_a_clean_path_have_no_effect(
        seed: u64, lost in 0.0f64..0.6, jitter in 0u64..300, copies in 1usize..4,
    ) {
        let mut world = scene(15_000, seed, |_| delay(0)).world();
        let mut random = StdRng::seed_from_u64(seed);
        world.mangle = Some(Box::new(move |now, report| {
            let is_lost = random.random_bool(lost);
            let copies = if is_lost { 0 } else { copies };
            let copy = |_| (now.plus(Nanos(random.random_range(0..=jitter) * 1_000_000)), report.clone());
            (0..copies).map(copy).collect()
        }));
        world.run_for(30.0);
        prop_assert!(!has_shed(&world) && world.first("congested").is_none(), "{:?}", world.told());
        prop_assert_eq!(accounts(&mut world).lost, 0);
    }

    #[test]
    fn a_receiver_may_be_restarted_at_any_time(seed: u64, after in 5.0f64..20.0, away in 0.1f64..1.5) {
        let mut world = scene(15_000, seed, |_| delay(0)).world();
        world.run_for(after);
        world.is_alive = false;
        world.run_for(after + away);
        world.restart_receiver();
        world.is_alive = true;
        world.run_for(after + away + 20.0);
        prop_assert!(world.names().is_empty(), "{:?}", world.told());
        accounts(&mut world);
    }

    #[test]
    fn marks_are_losses(seed: u64, fraction in 0.005f64..0.05) {
        let mut world = scene(15_000, seed, |_| Law::Mark { fraction }).world();
        world.run_for(40.0);
        prop_assert!(has_shed(&world) && world.first("congested").is_some(), "{:?}", world.told());
        prop_assert_eq!(accounts(&mut world).lost, 0);
    }

    #[test]
    fn two_flows_survive(seed: u64, part in 1.1f64..1.8) {
        let mut scene = Scene::tenth();
        (scene.seed, scene.settings.flow) = (seed, seed >> 1);
        scene.there = vec![bottleneck(wire(&scene, part), 80), delay(7_500)];
        scene.flows = 2;
        let mut world = scene.world();
        world.run_for(90.0);
        for flow in &world.flows {
            let from = world.begun().plus(at(60.0));
            prop_assert!(flow.sent_within(from, Nanos(u64::MAX)) > 30 * 4494 / 16);
        }
        accounts(&mut world);
    }

    #[test]
    fn what_a_path_takes_it_gives_back(seed: u64, parts in proptest::collection::vec(0.2f64..1.2, 1..4)) {
        let mut scene = scene(15_000, seed, |scene| bottleneck(wire(scene, 0.5), 80));
        let count = parts.len() as f64;
        for (place, part) in (1..).zip(parts.into_iter().chain([1.1])) {
            let law = bottleneck(wire(&scene, part), 80);
            scene.changes.push((at(CHANGE + 20.0 * f64::from(place)), 0, law));
        }
        let mut world = scene.world();
        // Eight trials of at most 14 s and five windows each, and one that was doubled by failures.
        world.run_for(CHANGE + 20.0 * count + 300.0);
        prop_assert_eq!(world.sender.order(), Order::Send(Step::ALL), "{:?}", world.told());
        accounts(&mut world);
    }

    #[test]
    fn a_hopeless_path_is_left(round_trip in 2_000u64..60_000, seed: u64, part in 0.01f64..0.05) {
        // Without a queue, which would be part of the round trip.
        let mut scene = scene(round_trip, seed, |scene| police(scene, part));
        scene.settings.least = Step::LOWEST;
        let mut world = scene.world();
        world.run_for(70.0);
        let (stopped, _) = world.first("stopped").unwrap();
        let from = world.begun().plus(at(stopped));
        prop_assert_eq!(world.sent_within(from.plus(Nanos(1)), Nanos(u64::MAX)), 0);
        prop_assert!(world.beats.iter().any(|beat| beat.since(from) > at(1.0)));
        accounts(&mut world);
    }

    #[test]
    fn bursts_of_loss_below_the_limit_are_borne(seed: u64, begins in 1e-5f64..2e-3, ends in 0.3f64..1.0) {
        let bursts = Law::Loss(Loss::Bursts { begins, ends, good: 0.0, bad: 1.0 });
        let mut scene = scene(15_000, seed, |_| bursts.clone());
        scene.settings.weight = 10.0;
        let mut world = scene.world();
        world.run_for(40.0);
        prop_assert!(!has_shed(&world), "{:?}", world.told());
        accounts(&mut world);
    }

    #[test]
    fn a_full_way_back_is_no_loss(seed: u64, bits in 12_000u64..40_000, packets in 2u64..20) {
        let mut scene = scene(15_000, seed, |_| delay(0));
        scene.back.insert(0, bottleneck(bits, packets));
        let mut world = scene.world();
        world.run_for(30.0);
        prop_assert!(world.first("congested").is_none(), "{:?}", world.told());
        prop_assert_eq!(world.sender.status().evidence.lost, 0);
        accounts(&mut world);
    }
}
