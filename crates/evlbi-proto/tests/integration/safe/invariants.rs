//! Rules that hold on every path.

use evlbi_core::path::{Law, Loss};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_proto::safe::{BEAT_INTERVAL, MIN_HOLD, MIN_WINDOW, Mode, Order, Step};
use proptest::prelude::*;

use super::world::{Scene, delay};
use super::{accounts, at, bottleneck, cases, nothing, wire};

/// Kind of a path, and how bad it is, from 0 to 1.
fn law(scene: &Scene, kind: u8, part: f64) -> Law {
    match kind {
        0 => bottleneck(wire(scene, part.max(0.02)), 80),
        1 => Law::Police {
            rate: BitRate::new(wire(scene, part.max(0.02))).unwrap(),
            burst: 60_000,
            overhead: 24,
        },
        2 => Law::Loss(Loss::Random {
            fraction: part.powi(4),
        }),
        3 => Law::Loss(Loss::Random { fraction: 1.0 }),
        4 => Law::Mark {
            fraction: part.powi(3),
        },
        _ => nothing(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(6), max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn rules_hold_on_any_path(
        changes in proptest::collection::vec((0u8..8, 0.0f64..1.0, 1.0f64..20.0), 1..5),
        silent in proptest::option::of((8.0f64..40.0, 0.0f64..20.0)),
        host in proptest::option::of((5u64..40, 8.0f64..40.0)),
        seed: u64, least in 0.0f64..1.0, weight in 1.0f64..10.0, rearm: bool, mode in 0usize..3,
    ) {
        let mut scene = Scene::tenth();
        scene.settings.mode = [Mode::Shared, Mode::Strict, Mode::Reserved][mode];
        scene.settings.least = Step::at_least(least);
        scene.settings.weight = weight;
        scene.settings.rearm = rearm;
        scene.settings.flow = seed;
        scene.seed = seed;
        scene.there = vec![nothing(), delay(7_500)];
        let mut when = 8.0;
        for (kind, part, span) in changes {
            scene.changes.push((at(when), 0, law(&scene, kind, part)));
            when += span;
        }
        // At the end, all is well, or both ends could not agree.
        scene.changes.push((at(70.0), 0, nothing()));
        let mut world = scene.world();
        if let Some((from, span)) = silent {
            world.mangle = Some(Box::new(move |now, report| {
                let is_silent = now >= at(from) && now < at(from + span);
                (!is_silent).then_some((now, report)).into_iter().collect()
            }));
        }
        if let Some((part, from)) = host {
            world.host = Some(Box::new(move |now, number| now > at(from) && number.is_multiple_of(part)));
        }
        world.run_for(68.0);
        accounts(&mut world);

        let kept = |order: &Order| match order {
            Order::Send(step) => step.kept(),
            _ => 0.0,
        };
        let mut lowered: Option<Nanos> = None;
        let is_forced = |at: Nanos| {
            let names = ["blind", "stalled", "refused", "stopped"];
            world.notices.iter().any(|it| it.at == at && names.contains(&it.kind.name()))
        };
        for (index, two) in world.orders.windows(2).enumerate() {
            let [(_, before), (at, after)] = two else { unreachable!() };
            if index == 0 {
                continue;
            }
            if kept(after) < kept(before) {
                // One decision, then its effect.
                let is_late = lowered.is_none_or(|last| at.since(last) >= Nanos(2 * MIN_WINDOW.0));
                prop_assert!(is_late || is_forced(*at), "{:?}", world.orders);
                lowered = Some(*at);
            } else {
                prop_assert!(lowered.is_some_and(|last| at.since(last) >= MIN_HOLD), "{:?}", world.orders);
            }
        }
        // Beats never stop, whatever happens to the data.
        for two in world.beats.windows(2) {
            prop_assert!(two[1].since(two[0]) <= BEAT_INTERVAL.plus(Nanos(1_000_000)));
        }
        // In any second, no more is sent than what is allowed: and nothing after a stop.
        for start in 0..700 {
            let [from, to] = [start, start + 10].map(|tenth| Nanos((10 + tenth) * 100_000_000));
            let allowed: f64 = world.orders.iter().enumerate().map(|(index, (begun, order))| {
                let next = world.orders.get(index + 1).map_or(to, |(at, _)| *at);
                let span = next.min(to).since(*begun.max(&from)).as_secs_f64();
                kept(order) * span * 4494.0
            }).sum();
            let sent = world.sent_within(from, to) as f64;
            prop_assert!(sent <= allowed + 3.0, "{from:?}: {sent} {allowed} {:?}", world.orders);
        }
    }
}
