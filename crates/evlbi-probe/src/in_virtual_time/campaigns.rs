//! Campaigns of hours and days.

use std::path::{Path as File, PathBuf};
use std::time::Duration;

use evlbi_core::path::{Law, Loss, Times};
use evlbi_core::time::Nanos;
use evlbi_net::run::Run;
use evlbi_net::sim;
use tempfile::TempDir;

use super::{BEGINNING, Path, Scene, bits, delay, twice};
use crate::direction::Direction;
use crate::measure::{Pattern, Spacing, Stream};
use crate::report::{self, Report};
use crate::watch::store::{self, Plan, Row, Store};
use crate::watch::{WatchOptions, watch};

const DAY: u64 = 86_400;

/// Returns a path on which a fraction is lost from one second to another.
fn with_episode(from: u64, to: u64, fraction: f64) -> Path {
    let [from, to] = [from, to].map(|second| Nanos(second * Nanos::SECOND.0));
    let episode = Law::Loss(Loss::Within {
        times: Times::Once { from, to },
        fraction,
    });
    let mut path = Path::new([vec![episode, delay(10)], vec![delay(10)]]);
    path.limits.duration = Nanos(3 * DAY * Nanos::SECOND.0);
    path.is_logged = false;
    path
}

impl Scene {
    fn watch(&self, file: &File, options: &WatchOptions) -> Report {
        let options = WatchOptions {
            file: file.to_owned(),
            target: self.target(),
            ..options.clone()
        };
        watch(&options, &self.near).unwrap();
        report::read(file).unwrap()
    }
}

/// Returns a file whose commits wait for no disk, if the system has memory for files.
fn in_memory() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let folder = folder.unwrap();
    let file = folder.path().join("campaign.sqlite");
    (folder, file)
}

/// Finds an episode of 10 % loss for a minute in a continuous flow of 1 Mbit/s.
fn found_to_the_second(length: u64, from: u64) {
    let (_room, file) = in_memory();
    let path = with_episode(from, from + 60, 0.1);
    let ((report, lost), _) = path.play(|scene| {
        let report = scene.watch(
            &file,
            &WatchOptions {
                length: Duration::from_secs(length),
                rate: Some(bits(1_000_000)),
                window: Duration::from_secs(1),
                ..WatchOptions::default()
            },
        );
        // Nothing is lost outside the episode, during which no other UDP datagrams leave.
        let [near, far] = [&scene.network.near(1), &scene.far].map(|host| host.counters().udp);
        (report, near.out_datagrams - far.in_datagrams)
    });
    let way = &report.directions[0];
    // All that are due before the end.
    assert_eq!(way.sent, (length * 1_000_000).div_ceil(8 * 1472));
    assert_eq!(way.sent, way.unique + way.lost);
    assert_eq!([way.lost, way.network_lost], [lost; 2]);
    let Pattern::Episodes(episodes) = way.pattern else {
        panic!("{:?}", way.pattern);
    };
    assert_eq!(episodes.count, 1);
    let (from, to) = (from as f64, from as f64 + 60.0);
    let seconds = |at: f64| at - BEGINNING as f64 * 1e-9;
    let mut lossy = Vec::new();
    for (place, window) in report.windows.iter().enumerate() {
        let [begin, end] = [window.begin, window.end].map(seconds);
        assert!(
            (begin - FIRST - place as f64 * WIDTH).abs() < 1e-6,
            "{window:?}"
        );
        assert!(
            (end - begin - window.sent as f64 * SPACING).abs() < 1e-6,
            "{window:?}"
        );
        // Windows that overlap the start or end of the episode lose only datagrams within it, if any.
        match begin >= from && end <= to {
            true => assert!(window.lost > 0, "{window:?}"),
            false => assert!(window.lost == 0 || (begin < to && end > from), "{window:?}"),
        }
        lossy.extend((window.lost > 0).then_some((begin, end)));
    }
    // The first window with loss is that in which the episode starts, or the next; the last is that in which it ends, or the one before.
    let ((begin, _), (_, end)) = (lossy[0], lossy[lossy.len() - 1]);
    assert!((begin - from).abs() < WIDTH, "{begin}");
    assert!((end - to).abs() < WIDTH, "{end}");
    // It consists of these windows, except the first or the last if that loses hardly anything.
    let width = end - begin - episodes.length;
    assert!((-1e-6..2.0 * WIDTH + 1e-6).contains(&width), "{episodes:?}");
    let windows = episodes.length / WIDTH;
    assert!((windows - windows.round()).abs() < 1e-6, "{episodes:?}");
    assert!((episodes.length - 60.0).abs() < WIDTH, "{episodes:?}");
}

#[test]
fn an_episode_of_an_hour_is_found_to_the_second() {
    found_to_the_second(3600, 2000);
}

/// Seconds between datagrams of 1472 bytes at 1 Mbit/s, and of a window, which has the 85 that leave in a second.
const SPACING: f64 = 1472.0 * 8.0 / 1e6;
const WIDTH: f64 = 85.0 * SPACING;
/// Departure of the first datagram on a path of 10 ms each way. Connecting, authenticating, asking and finding each other takes five round
/// trips of 20 ms. The request to be found is repeated after the last of them, and ten more follow, one per 2 ms. So ten replies have
/// arrived after 36 ms; the endpoint notices a millisecond later, and the first datagram leaves after another one.
const FIRST: f64 = 0.138;

/// One second of 1 Gbit/s every ten minutes: each test sends the expected number to within one datagram, and loses what the path drops.
fn sampled(hours: u64) {
    let (_room, file) = in_memory();
    let mut path = Path::new([
        vec![Law::Loss(Loss::Random { fraction: 1e-5 }), delay(10)],
        vec![delay(10)],
    ]);
    path.is_logged = false;
    let ((report, dropped), _) = path.play(|scene| {
        let report = scene.watch(
            &file,
            &WatchOptions {
                length: Duration::from_secs(hours * 3600),
                rate: Some(bits(1_000_000_000)),
                size: 8972,
                every: Some(Duration::from_secs(600)),
                test: Duration::from_secs(1),
                ..WatchOptions::default()
            },
        );
        (report, scene.network.truth(sim::Direction::There, 0))
    });
    assert_eq!(report.windows.len() as u64, hours * 6);
    for (place, window) in report.windows.iter().enumerate() {
        assert_eq!(
            window.sent,
            1_000_000_000u64.div_ceil(8 * 8972),
            "{window:?}"
        );
        let begins = window.begin - BEGINNING as f64 * 1e-9 - place as f64 * 600.0;
        assert!((begins - FIRST).abs() < 1e-6, "{place}: {begins}");
    }
    let way = &report.directions[0];
    assert_eq!(
        [way.sent, way.lost],
        [way.unique + way.lost, way.network_lost]
    );
    // The other drops are of the control connection and of clock requests, which together are shorter than a datagram.
    assert_eq!(way.lost, dropped.dropped_bytes / 9000);
}

#[test]
fn a_path_is_sampled_for_an_hour() {
    sampled(1);
}

/// Tests in both directions start on schedule; the outbound ones lose every tenth datagram.
#[test]
fn tests_come_when_they_should() {
    let (_room, file) = in_memory();
    let tenth = Law::Loss(Loss::Every {
        period: 10,
        first: 4,
    });
    let (report, _) = Path::new([vec![tenth, delay(3)], vec![delay(3)]]).play(|scene| {
        scene.watch(
            &file,
            &WatchOptions {
                length: Duration::from_secs(60),
                rate: Some(bits(2_000_000)),
                size: 500,
                every: Some(Duration::from_secs(5)),
                test: Duration::from_secs(1),
                both: true,
                ..WatchOptions::default()
            },
        )
    });
    for direction in Direction::BOTH {
        let of_way = report.windows.iter().filter(|it| it.direction == direction);
        let windows: Vec<&Row> = of_way.collect();
        assert_eq!(windows.len(), 12);
        for (place, window) in windows.iter().enumerate() {
            let begins = window.begin - BEGINNING as f64 * 1e-9 - place as f64 * 5.0;
            // Five round trips of 6 ms, half a second for replies of which one is lost, and a millisecond; the responder starts 3 ms later,
            // when the request arrives. In the first test a packet of the connection is lost and retransmitted 206 ms later.
            let [due, later] = match (direction, place) {
                (Direction::There, 0) => [0.531, 0.206],
                (Direction::Back, 0) => [0.534, 0.206],
                (Direction::There, _) => [0.531, 0.0],
                (Direction::Back, _) => [0.534, 0.0],
            };
            assert!((begins - due - later).abs() < 1e-6, "{place} {begins}");
            assert_eq!((window.sent, window.unique + window.lost), (500, 500));
            // Nothing else passes the cell in this time.
            let lost = if direction == Direction::There { 50 } else { 0 };
            assert_eq!(window.lost, lost, "{place}");
        }
    }
    let begun = |run: &store::Stretch| run.begun - BEGINNING as f64 * 1e-9;
    let due = (0..12).map(|place| f64::from(place) * 5.0);
    assert!(report.runs.iter().map(begun).eq(due), "{:?}", report.runs);
}

/// Results of a killed watch are kept, and another watch on the same file continues the campaign.
#[test]
fn a_watch_that_is_killed_is_continued() {
    let (_room, file) = in_memory();
    let lossy = Law::Loss(Loss::Within {
        times: Times::Periodic {
            period: Nanos(2_000_000_000),
            length: Nanos(300_000_000),
            first: Nanos(500_000_000),
        },
        fraction: 0.2,
    });
    let path = Path::new([vec![lossy, delay(1)], vec![delay(1)]]);
    let options = |length| WatchOptions {
        length: Duration::from_secs(length),
        rate: Some(bits(5_000_000)),
        window: Duration::from_millis(100),
        loss_timeout: Duration::from_millis(100),
        ..WatchOptions::default()
    };
    path.play(|scene| {
        let victim = scene.network.near(2);
        let own = WatchOptions {
            file: file.clone(),
            target: scene.target(),
            ..options(600)
        };
        let run = Run::silent().on(&victim);
        let watching = victim.clock().spawn("watch", move || watch(&own, &run));
        scene.near.clock().sleep(Duration::from_secs(60));
        victim.kill();
        drop(watching);
        let killed = report::read(&file).unwrap();
        // Windows of 43 datagrams, which leave in 0.1 s. The first leaves after six round trips of 2 ms and 20 ms.
        let spacing = 1472.0 * 8.0 / 5e6;
        let width = 43.0 * spacing;
        let since = |at: f64| at - BEGINNING as f64 * 1e-9;
        for (place, window) in killed.windows.iter().enumerate() {
            let begins = 0.032 + place as f64 * width;
            assert!((since(window.begin) - begins).abs() < 1e-6, "{window:?}");
            assert!(
                (since(window.end) - begins - width).abs() < 1e-6,
                "{window:?}"
            );
        }
        // Once a second, at one of its polls, which are 0.2 s apart, the sender reports how many have left; 0.1 s later the window is
        // settled, at a poll. So the first 58.5 s are kept, and nothing of the last 0.1 s.
        let until = |at: f64| ((at - 0.032) / width) as usize;
        let count = killed.windows.len();
        assert!((until(58.5)..=until(59.9)).contains(&count), "{count}");
        let continued = scene.watch(&file, &options(8));
        let (before, after) = continued.windows.split_at(killed.windows.len());
        let text = |windows| serde_json::to_string(windows).unwrap();
        assert_eq!(text(before), text(&killed.windows));
        // 3397 datagrams.
        assert_eq!(after.len(), 79);
        let [begin, end] = [after[0].begin, after[78].end].map(since);
        assert!((begin - 60.032).abs() < 1e-6, "{begin}");
        assert!((end - begin - 3397.0 * spacing).abs() < 1e-6, "{end}");
        let way = &killed.directions[0];
        let Pattern::Periodic { period, episodes } = way.pattern else {
            panic!("{:?}", way.pattern);
        };
        // The first and the last of 30 episodes start less than a window before or after their windows.
        assert_eq!(episodes.count, 30);
        assert!((period - 2.0).abs() < 2.0 * width / 29.0, "{period}");
        assert_eq!(
            [way.sent, way.lost],
            [way.unique + way.lost, way.network_lost]
        );
        assert_eq!(
            (continued.runs.len(), continued.directions[0].interrupted),
            (2, 1)
        );
    });
}

/// Drops at the sender's NIC count as the sender's in every window, for any number of windows settled at once, any loss timeout, and both
/// directions.
#[test]
fn drops_in_a_host_are_never_attributed_to_the_network() {
    let (slow, fast) = ((bits(100_000_000), 30_000), (bits(10_000_000_000), 1 << 20));
    for (window, timeout) in [(50, 1), (100, 5), (300, 1), (1000, 1), (1000, 3), (4000, 1)] {
        let (_room, file) = in_memory();
        let mut path = Path::of(&[delay(100)]);
        path.is_logged = false;
        let (report, _) = path.play(|scene| {
            let hosts = [scene.network.near(1), scene.far.clone()];
            let clock = scene.near.clock().clone();
            let cards = scene.near.clock().spawn("cards", move || {
                for (rate, queue) in [fast, slow, fast] {
                    hosts.iter().for_each(|host| host.set_card(rate, queue));
                    clock.sleep(Duration::from_secs(15));
                }
            });
            let report = scene.watch(
                &file,
                &WatchOptions {
                    length: Duration::from_secs(60),
                    rate: Some(bits(5_000_000)),
                    burst: 50,
                    window: Duration::from_millis(window),
                    loss_timeout: Duration::from_secs(timeout),
                    both: true,
                    ..WatchOptions::default()
                },
            );
            cards.unwrap().join();
            report
        });
        for way in &report.directions {
            // The queue accepts its size of each burst, plus one datagram that is leaving, for a quarter of the time.
            assert!(way.lost * 8 > way.sent, "{way:?}");
        }
        let odd = report.windows.iter().filter(|it| it.network_lost > 0);
        assert_eq!(odd.count(), 0, "windows of {window} ms, {timeout} s");
    }
}

/// The flow survives an outage of less than a minute. A longer one ends the flow, and a new one starts when the path is back.
#[test]
fn an_outage_is_survived() {
    // During the longer one nine connections fail, one every 15 s: a timeout of 10 s each, and a pause of 5 s.
    for (seconds, runs) in [(50, 1), (200, 11)] {
        let (_room, file) = in_memory();
        let cut = Law::Loss(Loss::Within {
            times: Times::Once {
                from: Nanos(100 * Nanos::SECOND.0),
                to: Nanos((100 + seconds) * Nanos::SECOND.0),
            },
            fraction: 1.0,
        });
        let mut path = Path::of(&[cut, delay(5)]);
        path.is_logged = false;
        let ((report, lost), _) = path.play(|scene| {
            let report = scene.watch(
                &file,
                &WatchOptions {
                    length: Duration::from_secs(600),
                    rate: Some(bits(1_000_000)),
                    window: Duration::from_secs(1),
                    ..WatchOptions::default()
                },
            );
            let [near, far] = [&scene.network.near(1), &scene.far].map(|host| host.counters().udp);
            (report, near.out_datagrams - far.in_datagrams)
        });
        let ended = report.runs.iter().filter(|run| run.reason.is_none());
        assert_eq!(ended.count(), 1, "{:?}", report.runs);
        assert_eq!(report.runs.len(), runs, "{:?}", report.runs);
        for pair in report.runs.windows(2) {
            let ended = pair[0].ended.unwrap();
            assert!((pair[1].begun - ended - 5.0).abs() < 1e-6, "{pair:?}");
        }
        for run in report.runs.iter().skip(1).rev().skip(1) {
            assert!(
                (run.ended.unwrap() - run.begun - 10.0).abs() < 1e-6,
                "{run:?}"
            );
        }
        let since = |at: f64| at - BEGINNING as f64 * 1e-9;
        // The first datagram leaves after six round trips of 10 ms and 20 ms.
        let first = 0.08;
        let run = report.runs.last().unwrap();
        let begins = match runs {
            1 => first,
            // A second later, with the path back, a new connection is requested.
            _ => since(run.begun) + 1.0 + first,
        };
        let last = report.windows.last().unwrap();
        let count = ((600.0 - since(run.begun)) / SPACING).ceil();
        let end = begins + count * SPACING;
        assert!((since(last.end) - end).abs() < 1e-6, "{last:?} {end}");
        let way = &report.directions[0];
        assert_eq!(way.sent, way.unique + way.lost);
        match runs {
            1 => {
                let cut = |number: u64| {
                    let leaves = first + number as f64 * SPACING;
                    (100.0..150.0).contains(&leaves)
                };
                let numbers = |window: u64| window * 85..(window + 1) * 85;
                let empty = (0..600).filter(|window| numbers(*window).all(cut));
                let found = report.windows.iter().filter(|window| window.unique == 0);
                assert_eq!(found.count(), empty.count());
                assert_eq!(way.lost, lost);
            }
            // There are no results for the time in which neither endpoint received the other's messages.
            _ => {
                // The last message arrived up to 1.2 s before; a poll, one per 0.2 s, notices the silence.
                let gone = since(report.runs[0].ended.unwrap());
                assert!((158.8..160.2).contains(&gone), "{gone}");
                // Counts of departures are reported once a second, at a poll, and settled a second later, at a poll. They cover all
                // departures before 97.5 s, and none of the last second: 97 or 98 windows.
                let before = report.windows.iter().position(|it| since(it.begin) > 100.0);
                let before = before.unwrap();
                assert!((97..=98).contains(&before), "{before}");
                let missing = begins - (first + before as f64 * WIDTH);
                assert!(
                    (way.seconds - way.covered - missing).abs() < 1e-4,
                    "{missing}"
                );
            }
        }
    }
}

/// Returns a campaign with these counts, in windows of `seconds`.
fn counted(seconds: f64, windows: impl Iterator<Item = (u64, u64)>) -> Report {
    let (_room, file) = in_memory();
    let plan = Plan {
        target: "chicago:8620".to_owned(),
        stream: Stream {
            size: 1472,
            spacing: Spacing::BitsPerSecond(bits(940_000_000)),
            burst: 1,
            count: u64::MAX,
        },
        there: true,
        back: false,
        window: seconds,
        every: None,
    };
    let begin = BEGINNING as f64 * 1e-9;
    let mut store = Store::open(&file, &plan).unwrap();
    let run = store.begin(begin).unwrap();
    let mut end = begin;
    for (sent, lost) in windows {
        let rate = |count: u64| count as f64 * 1472.0 * 8.0 / seconds;
        let unique = sent - lost;
        store
            .add(
                &Row {
                    direction: Direction::There,
                    begin: end,
                    end: end + seconds,
                    sent,
                    received: unique,
                    unique,
                    lost,
                    network_lost: lost,
                    runs: lost,
                    rate_sent: rate(sent),
                    rate_received: rate(unique),
                    wire_factor: 1.0,
                    ..Row::default()
                },
                &(),
            )
            .unwrap();
        end += seconds;
    }
    store.end(run, end, None).unwrap();
    report::read(&file).unwrap()
}

/// Figure 3-6 of the EXPReS report: 24 hours in means of 30 s; the rate is stable to 0.1 %.
#[test]
fn a_day_of_means_is_stable_to_a_part_in_a_thousand() {
    let usual = 940_000_000 * 30 / 8 / 1472;
    let windows = (0..2880).map(|window| match window % 40 {
        0 => (usual - usual / 200, 0),
        other => (usual - usual * (other % 10) / 10_000, 0),
    });
    let report = counted(30.0, windows);
    let way = &report.directions[0];
    assert_eq!((way.seconds, way.covered), (86_400.0, 86_400.0));
    assert!(way.rate_spread.unwrap() <= 1e-3, "{:?}", way.rate_spread);
    let said = &way.finding;
    assert!(said.starts_with("outbound at 939."), "{said}");
    assert!(
        said.contains("for 24.0 h (nine of ten windows within 0.0"),
        "{said}"
    );
    assert!(said.contains("nothing lost of"), "{said}");
}

/// Figure 5-4: 30 hours in tests of 50 million packets; 3000 are lost in each, and sometimes more than 1 %.
#[test]
fn a_constant_loss_is_distinguished_from_its_episodes() {
    let windows = (0..180).map(|test| match test {
        20 | 21 | 97 | 130 => (50_000_000, 600_000),
        _ => (50_000_000, 3000),
    });
    let report = counted(600.0, windows);
    let way = &report.directions[0];
    let Pattern::Episodes(episodes) = way.pattern else {
        panic!("{:?}", way.pattern);
    };
    assert_eq!(episodes.count, 3);
    assert!((episodes.loss - 0.012).abs() < 1e-6, "{episodes:?}");
    assert!((episodes.loss_outside - 6e-5).abs() < 1e-9, "{episodes:?}");
    let said = &way.finding;
    assert!(said.contains("for 30.0 h"), "{said}");
    assert!(
        said.contains("in 3 episodes of 800.000 s with 1.200 % loss (0.0060 % outside)"),
        "{said}"
    );
}

/// Figure 5-5: 60 hours at 940 Mbit/s; four of 2 x 10^10 packets were lost.
#[test]
fn four_of_twenty_thousand_million_are_counted() {
    let windows = (0..2160).map(|window| {
        (
            9_259_260,
            u64::from([100, 700, 701, 2000].contains(&window)),
        )
    });
    let report = counted(100.0, windows);
    let way = &report.directions[0];
    assert_eq!(
        [way.sent / 1_000_000, way.lost, way.network_lost],
        [20_000, 4, 4]
    );
    let said = &way.finding;
    assert!(said.contains("for 60.0 h"), "{said}");
    assert!(
        said.contains(": 4 of 20,000,001,600 lost (2.0e-8 %), 4 in the network"),
        "{said}"
    );
}

#[test]
fn paths_are_watched_twice_alike() {
    twice(100, |scene| {
        let (_room, file) = in_memory();
        let report = scene.watch(
            &file,
            &WatchOptions {
                length: Duration::from_secs(1),
                rate: Some(bits(500_000)),
                window: Duration::from_millis(200),
                loss_timeout: Duration::from_millis(200),
                both: true,
                ..WatchOptions::default()
            },
        );
        let mut report = serde_json::to_value(&report).unwrap();
        report["file"] = serde_json::Value::Null;
        report
    });
}

mod soak {
    use super::*;

    #[test]
    #[ignore = "a soak: it simulates a day"]
    fn an_episode_of_a_day_is_found_to_the_second() {
        found_to_the_second(DAY, 50_000);
    }

    #[test]
    #[ignore = "a soak: it simulates sixty hours"]
    fn a_path_is_sampled_for_sixty_hours() {
        sampled(60);
    }
}
