//! Losses by the network and by the end host, one cause at a time.

use evlbi_core::path::{Law, Loss, Times};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_proto::safe::{Cause, Kind, Mode, Order, Reason, State, Step};

use super::world::{Scene, World, delay};
use super::{CHANGE, accounts, at, bottleneck, changing, nothing, wire};

/// Returns the time of a change of the path, in seconds since the start of the data.
fn change(world: &World) -> f64 {
    CHANGE - world.begun().as_secs_f64()
}

/// Returns the sixteenths of the data that were sent, in order.
fn steps(world: &World) -> Vec<u8> {
    let sent = |(_, order): &(Nanos, Order)| match order {
        Order::Send(step) => Some(step.sixteenths()),
        _ => None,
    };
    world.orders.iter().filter_map(sent).collect()
}

#[test]
fn a_clean_path_loses_and_sheds_nothing() {
    for mode in [Mode::Shared, Mode::Strict, Mode::Reserved] {
        let mut scene = Scene::tenth();
        scene.settings.mode = mode;
        let mut world = scene.world();
        world.run_for(20.0);
        let accounts = accounts(&mut world);
        assert_eq!((accounts.unique, accounts.shed), (accounts.offered, 0));
        assert!(world.notices.is_empty(), "{:?}", world.told());
        assert!((89_800..90_000).contains(&accounts.offered), "{accounts:?}");
        // The ramp takes 4 s and a report per stage; a path that is reserved needs none.
        let begun = world.begun().as_secs_f64() - 1.0;
        assert!(
            (begun < 0.2) == (mode == Mode::Reserved) && begun < 6.0,
            "{begun}"
        );
    }
}

#[test]
fn a_loss_that_does_not_last_is_reported_and_nothing_else() {
    let outage = |length: f64| {
        let times = Times::Once {
            from: at(30.0),
            to: at(30.0 + length),
        };
        Law::Loss(Loss::Within {
            times,
            fraction: 1.0,
        })
    };
    let once = [at(30.0371)];
    for (law, lost, cause) in [
        (Law::Loss(Loss::At(once.into())), 1..2, Cause::Unknown),
        (outage(0.02), 85..95, Cause::Unknown),
        (outage(0.06), 260..280, Cause::Outage),
        (outage(0.9), 4000..4100, Cause::Outage),
    ] {
        let mut world = changing(|_| law.clone()).world();
        world.run_for(60.0);
        assert_eq!(world.names(), ["transient"], "{law:?}");
        let (_, notice) = world.first("transient").unwrap();
        assert_eq!(notice.evidence.cause, cause, "{law:?}");
        assert!(
            matches!(notice.kind, Kind::Transient { lost: count, .. } if lost.contains(&count))
        );
        assert_eq!(steps(&world), [16]);
        let accounts = accounts(&mut world);
        assert!(
            lost.contains(&accounts.network) && accounts.host == 0,
            "{accounts:?}"
        );
    }
}

#[test]
fn losses_of_the_end_host_are_not_punished_as_congestion() {
    // One of this many datagrams, how many of each run the host counts (with joined datagrams fewer than there were), and the
    // sixteenths that are sent.
    for (part, counted, expected) in [
        (20, u64::MAX, &[16][..]),
        (5, u64::MAX, &[16, 12]),
        (5, 0, &[16, 12]),
    ] {
        let mut world = Scene::tenth().world();
        world.host = Some(Box::new(move |now, number| {
            now > at(20.0) && now < at(80.0) && number.is_multiple_of(part)
        }));
        world.certain = counted;
        world.run_for(72.0);
        let (first, notice) = world.first("host").unwrap();
        let begun = world.begun().as_secs_f64();
        assert!((first + begun - 20.0) < 0.5, "{first}");
        assert_eq!(notice.evidence.cause, Cause::Host);
        assert_eq!(world.notices[0], *notice);
        assert!(world.first("congested").is_none());
        if part == 5 {
            // Nothing is shed for 30 s, and then what the host would discard.
            let (shed, _) = world.first("shedding").unwrap();
            assert!((30.0..33.0).contains(&(shed - first)), "{shed} {first}");
            assert!(steps(&world).starts_with(expected), "{:?}", steps(&world));
        } else {
            assert_eq!(steps(&world), expected);
            assert!(world.first("shedding").is_none());
        }
        let accounts = accounts(&mut world);
        assert_eq!(accounts.network, 0, "{accounts:?}");
        assert_eq!(accounts.unattributed > 0, counted == 0);
    }
}

/// A bottleneck or a policer appears: the flow is notified, sheds, and then loses nothing.
#[test]
fn shedding_ends_the_loss() {
    let police = |bits| Law::Police {
        rate: BitRate::new(bits).unwrap(),
        burst: 60_000,
        overhead: 24,
    };
    for (part, is_severe) in [(0.95, false), (0.6, true)] {
        for cause in [Cause::Queue, Cause::Police] {
            let mut world = changing(|scene| match cause {
                Cause::Queue => bottleneck(wire(scene, part), 80),
                _ => police(wire(scene, part)),
            })
            .world();
            world.run_for(45.0);
            let (told, congested) = world.first("congested").unwrap();
            let (shed, _) = world.first("shedding").unwrap();
            let (held, of_held) = world.first("held").unwrap();
            let since = told - change(&world);
            assert!(since < 5.0, "{since}");
            // More than a tenth lost: at once.
            let grace = if is_severe { 0.0 } else { 2.0 };
            assert!((shed - told - grace).abs() < 0.01, "{told} {shed}");
            assert!(matches!(congested.kind, Kind::Congested { limit, .. } if limit < 26_000_000));
            assert_eq!(of_held.evidence.cause, cause);
            assert_eq!(steps(&world)[..2], [16, 8]);
            // The receiver knows it, too.
            assert!(
                world.noticed.contains(&(State::Shedding, 0.5)),
                "{:?}",
                world.noticed
            );
            // Until the first trial.
            let (trial, of_trial) = world.first("trial").unwrap();
            assert_eq!(of_trial.evidence.lost, of_held.evidence.lost);
            assert!(trial - held >= 10.0);
        }
    }
}

#[test]
fn blocks_at_full_rate_hit_a_policer_as_before() {
    let run = |spreads| {
        let mut scene = changing(|scene| Law::Police {
            rate: BitRate::new(wire(scene, 0.6)).unwrap(),
            burst: 60_000,
            overhead: 24,
        });
        scene.spreads = spreads;
        let mut world = scene.world();
        world.run_for(33.0);
        let accounts = accounts(&mut world);
        (steps(&world), accounts.lost)
    };
    let (spread, lost) = run(true);
    let (bursts, lost_in_bursts) = run(false);
    assert_eq!(spread, [16, 8]);
    assert!(
        bursts.len() > 2 && lost_in_bursts > 2 * lost,
        "{bursts:?} {lost_in_bursts} {lost}"
    );
}

#[test]
fn a_path_that_stays_bad_at_the_lowest_step_is_left() {
    for least in [Step::LOWEST, Step::at_least(0.25)] {
        let mut scene = changing(|scene| bottleneck(wire(scene, 0.05), 80));
        scene.settings.least = least;
        let mut world = scene.world();
        world.run_for(60.0);
        assert_eq!(world.names(), ["congested", "shedding", "stopped"]);
        assert_eq!(steps(&world), [16, least.sixteenths()]);
        let (stopped, notice) = world.first("stopped").unwrap();
        assert!(matches!(notice.kind, Kind::Stopped { until: None, .. }));
        assert_eq!(world.stopped(), Some(Reason::Loss));
        let from = world.begun().plus(at(stopped));
        assert_eq!(world.sent_within(from.plus(Nanos(1)), Nanos(u64::MAX)), 0);
        assert!(world.beats.iter().filter(|at| **at > from).count() > 50);
        accounts(&mut world);
        // Nothing was sent when it ended.
        let status = world.sender.status();
        assert_eq!((status.state, status.kept), (State::Ended, 0.0));
        assert_eq!(world.sender.order(), Order::Stop);
    }
}

#[test]
fn marks_count_as_losses() {
    let mut scene = changing(|_| Law::Mark { fraction: 0.01 });
    scene.settings.least = Step::at_least(0.5);
    let mut world = scene.world();
    world.run_for(40.0);
    let (told, notice) = world.first("congested").unwrap();
    assert!(told - change(&world) < 5.0);
    assert_eq!(notice.evidence.cause, Cause::Mark);
    assert_eq!((notice.evidence.lost, steps(&world)), (0, vec![16, 8]));
    let accounts = accounts(&mut world);
    assert_eq!(accounts.lost, 0);
}

#[test]
fn another_route_has_no_effect() {
    let mut world = changing(|_| delay(30_000)).world();
    world.run_for(40.0);
    assert_eq!((world.names(), steps(&world)), (vec![], vec![16]));
    // With a burst of loss, while the routers agree on it.
    let mut scene = changing(|_| delay(30_000));
    let times = Times::Once {
        from: at(CHANGE),
        to: at(CHANGE + 0.03),
    };
    scene.there.push(Law::Loss(Loss::Within {
        times,
        fraction: 1.0,
    }));
    let mut world = scene.world();
    world.run_for(40.0);
    assert_eq!(
        (world.names(), steps(&world)),
        (vec!["transient"], vec![16])
    );
    assert_eq!(world.notices[0].evidence.cause, Cause::Route);
}

/// Capacities of 1, 1/2, 1/4 and 1 of the rate, a minute each (as in RFC 8867, section 5.1).
#[test]
fn a_flow_follows_the_capacity_of_its_path() {
    let mut scene = changing(|scene| bottleneck(wire(scene, 0.5), 80));
    for (place, part) in [(1.0, 0.25), (2.0, 1.1)] {
        let law = bottleneck(wire(&scene, part), 80);
        scene.changes.push((at(CHANGE + 60.0 * place), 0, law));
    }
    let mut world = scene.world();
    world.run_for(60.0 * 4.0 + 20.0);
    let steps = steps(&world);
    assert_eq!(steps[0], 16);
    assert!(steps.contains(&3) || steps.contains(&4), "{steps:?}");
    assert_eq!(
        world.sender.order(),
        Order::Send(Step::ALL),
        "{:?}",
        world.told()
    );
    // Within the time of five trials of 10 s or more and five windows each.
    let (clear, _) = world.first("clear").unwrap();
    assert!((120.0..240.0).contains(&clear), "{:?}", world.told());
    let accounts = accounts(&mut world);
    assert!(accounts.network * 20 < accounts.sent, "{accounts:?}");
}

/// Losses of 10^-3 in bursts of two that do not depend on the flow: too many for one TCP flow, and not for ten.
#[test]
fn bursts_of_random_loss_count_as_events() {
    let bursts = Law::Loss(Loss::Bursts {
        begins: 5e-4,
        ends: 0.5,
        good: 0.0,
        bad: 1.0,
    });
    for (flows, expected) in [(1.0, vec!["congested", "shedding"]), (10.0, vec![])] {
        let mut scene = changing(|_| bursts.clone());
        scene.settings.weight = flows;
        scene.settings.least = Step::at_least(0.25);
        let mut world = scene.world();
        world.run_for(60.0);
        assert_eq!(world.names()[..expected.len().min(2)], expected[..]);
        let sent = f64::from(steps(&world)[steps(&world).len() - 1]);
        assert!((sent == 16.0) == expected.is_empty(), "{sent}");
        accounts(&mut world);
    }
}

#[test]
fn a_reserved_path_is_left_alone_below_a_tenth_of_loss() {
    for (fraction, expected) in [(0.05, vec![]), (0.3, vec!["congested", "shedding"])] {
        let mut scene = changing(|_| Law::Loss(Loss::Random { fraction }));
        scene.settings.mode = Mode::Reserved;
        let mut world = scene.world();
        world.run_for(40.0);
        assert_eq!(
            world.names()[..expected.len().min(2)],
            expected[..],
            "{fraction}"
        );
        assert_eq!(steps(&world).len() > 1, !expected.is_empty());
        accounts(&mut world);
    }
}

#[test]
fn a_ramp_finds_the_room_before_the_data() {
    for (part, step) in [(0.95, 8), (0.6, 8), (0.3, 4)] {
        let mut scene = Scene::tenth();
        scene.there = vec![bottleneck(wire(&scene, part), 80), delay(7_500)];
        let mut world = scene.world();
        world.run_for(8.0);
        assert_eq!(steps(&world), [step], "{part}");
        assert_eq!(world.names(), ["shedding"]);
        let (_, notice) = world.first("shedding").unwrap();
        let found = notice.evidence;
        assert!(found.loss > 0.0 && found.q.unwrap() > 3.0, "{found:?}");
        assert_eq!(accounts(&mut world).lost, 0);
    }
    // Nobody answers.
    let mut scene = Scene::tenth();
    scene.there = vec![nothing()];
    let mut world = scene.world();
    world.is_alive = false;
    world.run_for(10.0);
    assert_eq!(
        (world.sender.order(), world.names()),
        (Order::Fail, vec!["failed"])
    );
    assert!((3.9..4.2).contains(&world.now.as_secs_f64()));
}

/// An application that lowers its rate in time is not shed.
#[test]
fn an_application_that_acts_in_time_is_not_shed() {
    let mut scene = changing(|scene| bottleneck(wire(scene, 0.95), 80));
    scene.settings.grace = at(5.0);
    let mut world = scene.world();
    world.run_until(60.0, |world| world.first("congested").is_some());
    let (_, notice) = world.first("congested").unwrap();
    let Kind::Congested { limit, .. } = notice.kind else {
        unreachable!()
    };
    world.set_rate(limit);
    let lost = world.sender.status().evidence.lost;
    world.run_for(50.0);
    assert_eq!(world.names(), ["congested", "held", "clear"]);
    assert_eq!(steps(&world), [16]);
    let accounts = accounts(&mut world);
    assert_eq!(accounts.shed, 0);
    assert!(accounts.lost < lost + 200, "{accounts:?}");
}

/// Two flows on a path with room for one and a half of them.
#[test]
fn two_flows_survive_on_one_path() {
    let mut scene = Scene::tenth();
    scene.there = vec![bottleneck(wire(&scene, 1.5), 80), delay(7_500)];
    scene.flows = 2;
    let mut world = scene.world();
    world.run_for(150.0);
    let sent = [0, 1].map(|flow| {
        let flow = &world.flows[flow];
        let from = world.begun().plus(at(60.0));
        flow.sent_within(from, Nanos(u64::MAX)) as f64 / (90.0 * 4494.0)
    });
    assert!(sent.iter().all(|part| *part > 0.25), "{sent:?}");
    assert!(sent[0] + sent[1] > 1.0, "{sent:?}");
    assert!(
        world
            .flows
            .iter()
            .all(|flow| flow.first("stopped").is_none())
    );
    // They do not try at the same times.
    let trials = |flow: usize| {
        let flow = &world.flows[flow];
        let trials = flow.notices.iter().filter(|it| it.kind.name() == "trial");
        trials.map(|it| it.at.0 / 1_000_000_000).collect::<Vec<_>>()
    };
    let [one, other] = [trials(0), trials(1)];
    let same = one.iter().filter(|second| other.contains(second)).count();
    assert!(same <= one.len().min(other.len()) / 2, "{one:?} {other:?}");
    accounts(&mut world);
}
