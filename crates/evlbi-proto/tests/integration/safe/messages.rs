//! Reports that are lost, late, doubled, damaged or forged, and ends that are restarted.

use std::net::SocketAddr;

use evlbi_core::path::Law;
use evlbi_core::time::Nanos;
use evlbi_proto::safe::message::{self, Message, Report};
use evlbi_proto::safe::{
    Arrivals, Key, Order, Output, Progress, Reason, Receiver, Sender, Settings, State, Step,
};

use super::world::{Mangle, Scene, World, delay};
use super::{accounts, at, bottleneck, changing, nothing, wire};

/// A flow whose path shrinks to 60 %, with changed reports.
fn with(mangle: Option<Mangle>) -> World {
    let mut world = changing(|scene| bottleneck(wire(scene, 0.6), 80)).world();
    world.mangle = mangle;
    world
}

/// Returns the orders of the first minute, with their times in seconds.
fn orders(world: &mut World) -> Vec<(f64, Order)> {
    world.run_for(32.0);
    let orders = world
        .orders
        .iter()
        .map(|(at, order)| (at.as_secs_f64(), *order));
    let orders = orders.collect();
    accounts(world);
    orders
}

/// A small generator, the same in every run.
fn chance(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 31)
}

#[test]
fn decisions_survive_bad_ways_back() {
    let plain = orders(&mut with(None));
    let mut count = 0;
    let half: Mangle = Box::new(move |now, report| {
        count += 1;
        // Never all of a second.
        let kept = chance(count).is_multiple_of(2) || count % 8 == 0;
        kept.then_some((now, report)).into_iter().collect()
    });
    let double: Mangle = Box::new(|now, report| {
        let later = now.plus(Nanos(30_000_000));
        vec![
            (now, report.clone()),
            (now, report.clone()),
            (later, report),
        ]
    });
    let mut count = 0;
    let disorder: Mangle = Box::new(move |now, report| {
        count += 1;
        vec![(now.plus(Nanos(chance(count) % 250_000_000)), report)]
    });
    let late: Mangle = Box::new(|now, report| vec![(now.plus(Nanos(300_000_000)), report)]);
    for (name, mangle, tolerance) in [
        ("half", half, 1.1),
        ("double", double, 0.2),
        ("disorder", disorder, 3.0),
        ("late", late, 15.0),
    ] {
        let mut world = with(Some(mangle));
        let found = orders(&mut world);
        assert_eq!(found.len(), plain.len(), "{name}: {found:?} {plain:?}");
        let status = world.sender.status();
        let is_ignored = match name {
            "double" => status.rejected >= 2 * status.reports - 4,
            "disorder" => status.rejected > 0,
            _ => status.rejected == 0,
        };
        assert!(is_ignored, "{name}: {status:?}");
        for ((at, order), (expected_at, expected)) in found.iter().zip(&plain) {
            assert_eq!(order, expected, "{name}");
            assert!(
                (at - expected_at).abs() <= tolerance,
                "{name}: {at} {expected_at}"
            );
        }
    }
}

/// Next to each report come one with another key, one that was changed, and one that was cut.
#[test]
fn forged_reports_change_nothing_and_are_counted() {
    let plain = orders(&mut with(None));
    let mut world = with(Some(Box::new(|now, report| {
        let Ok(Message::Report(read)) = message::read(&report, &Key::new(&[3; 32])) else {
            panic!("a report");
        };
        let stranger = Report {
            missed: read.covered,
            ..read
        };
        let mut changed = report.clone();
        changed[80] ^= 1;
        let cut = report[..report.len() - 1].to_vec();
        let forged = [stranger.write(&Key::new(&[8; 32])), changed, cut, report];
        forged.into_iter().map(|bytes| (now, bytes)).collect()
    })));
    assert_eq!(orders(&mut world), plain);
    let status = world.sender.status();
    assert!(
        status.rejected >= 3 * status.reports && status.reports > 100,
        "{status:?}"
    );
}

/// Then a round trip is two seconds, and everything takes as many of them as elsewhere.
#[test]
fn reports_that_are_two_seconds_late_are_heard() {
    let late =
        || -> Mangle { Box::new(|now, report| vec![(now.plus(Nanos(2_000_000_000)), report)]) };
    let mut clean = Scene::tenth().world();
    clean.mangle = Some(late());
    clean.run_for(60.0);
    assert_eq!((clean.names(), accounts(&mut clean).lost), (vec![], 0));
    // Already the probes find the path too small.
    let mut world = with(Some(late()));
    world.run_for(100.0);
    assert_eq!(world.names()[..2], ["shedding", "trial"]);
    assert!(world.first("blind").is_none());
    accounts(&mut world);
}

#[test]
fn a_full_way_back_is_no_congestion() {
    let mut scene = Scene::tenth();
    // Reports of 300 bytes ten times a second through 12 kbit/s.
    scene.back = vec![bottleneck(12_000, 3), delay(7_500)];
    let mut world = scene.world();
    world.run_for(30.0);
    assert!(world.first("congested").is_none(), "{:?}", world.told());
    let status = world.sender.status();
    assert_eq!((status.evidence.lost, status.evidence.queue_s), (0, 0.0));
}

#[test]
fn without_reports_the_rate_is_halved_and_then_nothing_is_sent() {
    for rearm in [false, true] {
        let mut scene = Scene::tenth();
        scene.settings.rearm = rearm;
        let mut world = scene.world();
        let silent = at(30.0);
        world.mangle = Some(Box::new(move |now, report| {
            let is_silent = now >= silent && now < at(50.0);
            (!is_silent).then_some((now, report)).into_iter().collect()
        }));
        world.run_for(90.0);
        assert_eq!(world.stopped(), Some(Reason::Silence));
        let last = world.begun();
        let (blind, _) = world.first("blind").unwrap();
        let (stopped, _) = world.first("stopped").unwrap();
        let [blind, stopped] = [blind, stopped].map(|after| last.plus(at(after)).since(silent));
        let [blind, stopped] = [blind, stopped].map(Nanos::as_secs_f64);
        assert!((1.9..=3.0).contains(&blind), "{blind}");
        assert!((9.8..=10.0).contains(&stopped), "{stopped}");
        let full = world.sent_within(at(28.0), at(30.0)) as f64;
        let half = world.sent_within(at(34.0), at(36.0)) as f64;
        assert!((half / full - 0.5).abs() < 0.07, "{half} {full}");
        assert_eq!(world.sent_within(at(40.0), at(69.0)), 0);
        // The break of 30 s is over, and reports arrive again.
        let again = world.sent_within(at(72.0), at(90.0));
        assert_eq!(again > 0, rearm, "{:?}", world.told());
        if !rearm {
            let now = world.now;
            let mut silent = world.sender.clone();
            let later = now.plus(Nanos(3_000_000_000));
            silent.rearm(later);
            let notices = std::iter::from_fn(|| silent.poll(later));
            let is_blind = |output: &Output| matches!(output, Output::Notice(notice) if notice.kind == evlbi_proto::safe::Kind::Blind);
            assert!(notices.take(9).any(|output| is_blind(&output)));
            assert_eq!(silent.order(), Order::Stop);
            world.sender.rearm(now);
            assert_eq!(world.sender.order(), Order::Send(Step::LOWEST));
        }
        accounts(&mut world);
    }
}

#[test]
fn data_that_do_not_arrive_stop_the_flow_although_reports_do() {
    let mut scene = changing(|_| nothing());
    let times = evlbi_core::path::Times::Once {
        from: at(30.0),
        to: at(300.0),
    };
    let gone = Law::Loss(evlbi_core::path::Loss::Within {
        times,
        fraction: 1.0,
    });
    scene.there.push(gone);
    let mut world = scene.world();
    world.run_for(60.0);
    assert_eq!(world.names(), ["stalled", "shedding", "stopped"]);
    assert_eq!(world.stopped(), Some(Reason::Stall));
    assert_eq!(world.sent_within(at(40.3), at(100.0)), 0);
    assert_eq!(world.sender.status().state, State::Breaker);
}

/// As where a filter lets only messages pass, which are then the only ones to progress.
#[test]
fn filtered_data_stop_the_flow_although_everything_is_accounted_for() {
    for round_trip in [15_000, 300_000] {
        let mut scene = Scene::tenth();
        (scene.there, scene.back) = (vec![delay(round_trip / 2)], vec![delay(round_trip / 2)]);
        let mut world = scene.world();
        world.filter = Some(Box::new(|now, _| now >= at(30.0)));
        world.run_for(60.0);
        for (name, times) in [("stalled", 32.0..34.5), ("stopped", 40.0..41.5)] {
            let (_, notice) = world.first(name).unwrap();
            let time = notice.at.as_secs_f64();
            assert!(
                times.contains(&time),
                "{name} at {time}: {:?}",
                world.told()
            );
        }
        assert_eq!(world.sent_within(at(41.5), at(100.0)), 0);
    }
}

#[test]
fn a_pause_after_a_loss_is_no_lack_of_progress() {
    let mut world = Scene::tenth().world();
    world.run_for(10.0);
    let lost = world.now;
    world.filter = Some(Box::new(move |now, _| {
        (lost..lost.plus(Nanos(400_000_000))).contains(&now)
    }));
    world.run_for(10.3);
    world.pause(30.0);
    world.run_for(50.0);
    assert!(!world.names().contains(&"stalled"), "{:?}", world.told());
    assert!(!world.names().contains(&"stopped"), "{:?}", world.told());
    let later = world.begun().plus(Nanos(41_000_000_000));
    assert!(world.sent_within(later, Nanos(u64::MAX)) > 40_000);
    accounts(&mut world);
}

/// Data are not authenticated: numbers that the sender has not offered are those of another stream.
#[test]
fn another_stream_before_the_data_loses_nothing_of_them() {
    let key = Key::new(&[7; 32]);
    let mut receiver = Receiver::new(key.clone(), 5);
    let settings = Settings {
        mode: evlbi_proto::safe::Mode::Reserved,
        ..Scene::tenth().settings
    };
    let from = SocketAddr::from(([127, 0, 0, 1], 4000));
    let mut sender = Sender::new(settings, key, Nanos(0));
    talk(&mut sender, &mut receiver, from, (0, 1_000_000_000));
    let first = settings.first;
    receiver.begins(first, first + 1_000_000_000);
    receiver.dropped(first + 1_000_000_000, first + 1_000_000_100, 50, 50);
    receiver.dropped(first + 1_000_000_100, first, 50, 50);
    receiver.begins(first + 1_000_000_100, first);
    let progress = Progress {
        next: 1000,
        ..Progress::default()
    };
    sender.progress(progress, Nanos(1_000_000_000));
    // Ten are lost, and of these this host dropped three.
    receiver.dropped(first, first + 500, 3, 3);
    receiver.missing(first + 200, first + 210);
    let arrivals = Arrivals {
        heard: Some(first + 1000),
        end: Some(first + 1000),
        released: Some(first + 1000),
        ..Arrivals::default()
    };
    for from_to in [
        (1_000_000_000, 2_000_000_000),
        (2_000_000_000, 3_000_000_000),
    ] {
        talk(&mut sender, &mut receiver, from, from_to);
        receiver.observe(&arrivals, Nanos(from_to.1));
    }
    let report = receiver.counted().unwrap();
    assert_eq!((report.covered, report.missed, report.host), (1000, 10, 3));
}

/// Loss that is not counted would have no effect.
#[test]
fn reports_that_account_for_nothing_stop_the_flow() {
    let key = Key::new(&[3; 32]);
    let mut last = None;
    let mut world = with(Some(Box::new(move |now, bytes| {
        let Ok(Message::Report(report)) = message::read(&bytes, &key) else {
            panic!("a report");
        };
        let before = last.get_or_insert_with(|| report.clone());
        if now < at(15.0) {
            *before = report;
            return vec![(now, bytes)];
        }
        let frozen = Report {
            covered: before.covered,
            missed: before.missed,
            host: before.host,
            unattributed: before.unattributed,
            shed: before.shed,
            runs: Vec::new(),
            ..report
        };
        vec![(now, frozen.write(&key))]
    })));
    world.run_for(40.0);
    assert_eq!(world.names(), ["stalled", "shedding", "stopped"]);
}

#[test]
fn a_port_without_a_listener_stops_the_flow() {
    let mut world = Scene::tenth().world();
    world.run_for(5.0);
    let now = world.now;
    world.sender.refused(now);
    assert_ne!(world.sender.order(), Order::Stop);
    world.sender.refused(now.plus(Nanos(500_000_000)));
    assert_eq!(world.sender.order(), Order::Stop);
    world.run_for(6.0);
    assert_eq!(world.names(), ["refused", "stopped"]);
    assert_eq!(world.stopped(), Some(Reason::Refusal));
}

#[test]
fn a_receiver_that_is_restarted_is_taken_up_where_it_starts() {
    let mut world = Scene::tenth().world();
    world.run_for(20.0);
    world.is_alive = false;
    world.run_for(21.0);
    world.restart_receiver();
    world.is_alive = true;
    world.run_for(60.0);
    assert_eq!(world.names(), Vec::<&str>::new());
    assert_eq!(world.sender.status().evidence.lost, 0);
    // What arrived before the restart is not in the new receiver's accounts: it counts as lost.
    let lost = accounts(&mut world).network;
    assert!((21 * 4400..22 * 4494).contains(&lost), "{lost}");
}

#[test]
fn the_clock_of_the_receiver_has_no_effect() {
    let plain = orders(&mut with(None));
    let clocks: [fn(Nanos) -> Nanos; 3] = [
        |now| Nanos(now.0 + now.0 / 10_000),
        |now| Nanos(now.0 - now.0 / 10_000),
        // Monotonic clocks do not step back; this one sets itself forward by an hour.
        |now| match now > at(28.0) {
            true => now.plus(at(3600.0)),
            false => now,
        },
    ];
    for clock in clocks {
        let mut world = with(None);
        world.clock = clock;
        let found = orders(&mut world);
        assert_eq!(found.len(), plain.len());
        for ((at, order), (expected_at, expected)) in found.iter().zip(&plain) {
            assert_eq!(order, expected);
            // Reports come at other times: at most a window later.
            assert!((at - expected_at).abs() < 1.1, "{at} {expected_at}");
        }
    }
}

/// Lets both ends exchange their messages, every 10 ms until `until`.
fn talk(
    sender: &mut Sender,
    receiver: &mut Receiver,
    from: SocketAddr,
    (begins, ends): (u64, u64),
) {
    for now in (begins..ends).step_by(10_000_000).map(Nanos) {
        while let Some(output) = sender.poll(now) {
            if let Output::Message(bytes) = output {
                let _ = receiver.handle(&bytes, from, now);
            }
        }
        while let Some((report, to)) = receiver.poll(now) {
            if to == from {
                let _ = sender.handle(&report, now);
            }
        }
    }
}

/// After a stop, the least that is of use is tried, and nothing less.
#[test]
fn a_trial_after_a_stop_that_fails_stops_again() {
    let mut scene = changing(|scene| bottleneck(wire(scene, 0.1), 80));
    scene.settings.least = Step::ALL;
    let mut world = scene.world();
    world.mangle = Some(Box::new(|now, report| {
        match (at(12.0)..at(32.0)).contains(&now) {
            true => Vec::new(),
            false => vec![(now, report)],
        }
    }));
    world.run_for(40.0);
    let now = world.now;
    world.sender.rearm(now);
    world.run_for(60.0);
    let all = ["blind", "shedding", "stopped", "trial", "stopped"];
    assert_eq!(world.names(), all);
}

/// Probes that the receiving host drops count as arrived.
#[test]
fn probes_without_room_in_the_host_have_arrived() {
    let key = Key::new(&[7; 32]);
    let mut receiver = Receiver::new(key.clone(), 5);
    let settings = Settings {
        rate: 100_000_000,
        size: 1000,
        flow: 1,
        ..Settings::default()
    };
    let mut sender = Sender::new(settings, key, Nanos(0));
    let from = SocketAddr::from(([10, 0, 0, 1], 4000));
    let (mut probes, mut dropped) = (0u64, 0);
    for now in (0..7_000).map(|ms| Nanos(ms * 1_000_000)) {
        while let Some(output) = sender.poll(now) {
            let Output::Message(bytes) = output else {
                continue;
            };
            if bytes.starts_with(b"EVGP") {
                probes += 1;
                // Every fifth one.
                if probes.is_multiple_of(5) {
                    dropped += 1;
                    continue;
                }
            }
            let _ = receiver.handle(&bytes, from, now);
        }
        receiver.overflowed(dropped);
        while let Some((report, _)) = receiver.poll(now) {
            sender.handle(&report, now).unwrap();
        }
    }
    assert!(dropped > 1000, "{dropped}");
    assert_eq!(sender.order(), Order::Send(Step::ALL));
}

#[test]
fn a_sender_that_is_started_again_is_heard() {
    const SECOND: u64 = Nanos::SECOND.0;
    let key = Key::new(&[7; 32]);
    let mut receiver = Receiver::new(key.clone(), 5);
    let mut old: Vec<Vec<u8>> = Vec::new();
    let mut senders = Vec::new();
    // The sender is killed and started again, at once or much later; its port and its flow are others.
    for (flow, begins) in [(1, 0), (2, 3 * SECOND), (3, 60 * SECOND)] {
        let settings = Settings {
            flow,
            mode: evlbi_proto::safe::Mode::Reserved,
            ..Scene::tenth().settings
        };
        let from = SocketAddr::from(([127, 0, 0, 1], 4000 + flow as u16));
        let mut sender = Sender::new(settings, key.clone(), Nanos(begins));
        talk(
            &mut sender,
            &mut receiver,
            from,
            (begins, begins + 2 * SECOND),
        );
        assert!(sender.status().reports > 5, "{flow}");
        // Something is lost, which later reports may not take back.
        let progress = Progress {
            next: 100,
            ..Progress::default()
        };
        sender.progress(progress, Nanos(begins + 2 * SECOND));
        receiver.missing(settings.first, settings.first + 10);
        let next = begins + 2 * SECOND;
        talk(&mut sender, &mut receiver, from, (next, next + SECOND));
        assert_eq!(receiver.counted().unwrap().missed, 10);
        let followed = receiver.beat().map(|beat| beat.header.flow);
        assert_eq!(followed, Some(flow));
        // Recorded beats of the sender before it have no effect.
        let now = Nanos(begins + 3 * SECOND);
        for beat in old.drain(..) {
            receiver.handle(&beat, from, now).unwrap_err();
            assert_eq!(receiver.beat().map(|beat| beat.header.flow), Some(flow));
        }
        for tenth in 0..30 {
            while let Some(output) = sender.poll(now.plus(Nanos(tenth * SECOND / 10))) {
                old.extend(match output {
                    Output::Message(bytes) => Some(bytes),
                    Output::Notice(_) => None,
                });
            }
        }
        senders.push((sender, from));
    }
    // Nobody is left to hear.
    for second in 62..100 {
        while receiver.poll(Nanos(second * SECOND)).is_some() {}
    }
    assert_eq!(receiver.next_at(), None);
    // The second one was only displaced, and continues.
    let (mut sender, from) = senders.remove(1);
    let reports = sender.status().reports;
    talk(
        &mut sender,
        &mut receiver,
        from,
        (100 * SECOND, 102 * SECOND),
    );
    assert_eq!(receiver.beat().map(|beat| beat.header.flow), Some(2));
    let status = sender.status();
    assert!(
        status.reports > reports + 10 && status.rejected == 0,
        "{status:?}"
    );
}
