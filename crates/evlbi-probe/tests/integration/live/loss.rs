//! Loss and its places: packet filters and token buckets are the ground truth.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use evlbi_core::rate::BitRate;
use evlbi_net::host::Counters;
use evlbi_net::run::{Note, Notes, Run};
use evlbi_probe::capacity::{self, ProbeCapacity, ProbeCapacityOptions};
use evlbi_probe::endpoint::{Burden, Limits};
use evlbi_probe::respond::RespondOptions;
use evlbi_probe::udp::{self, ProbeUdpOptions};
use evlbi_probe::{Direction, Point, Target, show};
use evlbi_testkit::buffer::assert_fits;
use evlbi_testkit::netns::{End, Pair, Wire, filter, pair, pair_with, tc};
use evlbi_testkit::result::{refused, shown};
use evlbi_testkit::{Room, name, processor, until};

use super::support::{
    Probing, TOKEN, assert_sums, between, end, kept, once, open, respond_far, respond_here, stream,
    target, udp, whole,
};

/// Datagrams of a stream, of which every 50th, from the first, is dropped.
const COUNT: usize = 350;

/// Drops one in 50 of a stream's datagrams, and nothing of the control connection and the round trips.
fn drop_one_in_fifty(pair: &Pair) {
    // Data datagrams start with EVPD.
    let rule = "meta l4proto udp @th,64,32 0x45565044 numgen inc mod 50 0 counter drop";
    filter(&pair.far, &[rule]);
}

#[test]
fn one_in_fifty_is_lost_in_the_network() {
    let Some(pair) = pair_with(&["nft"], &Wire::exact(), name!()) else {
        return;
    };
    drop_one_in_fifty(&pair);
    assert_fits(COUNT, 100);
    let room = Room::new();
    processor::stay();
    let result = once(
        &pair,
        ProbeUdpOptions {
            losses: Some(room.path("losses.csv").into()),
            skip: 60,
            limit: 5,
            ..stream("10M", 100, COUNT)
        },
    );
    let point = &result.points[0];
    assert_sums(point);
    let rules = pair
        .far
        .namespace
        .command("nft", &["list", "table", "ip", "t"]);
    let rules = rules.unwrap();
    assert!(rules.contains("packets 7 "), "{rules}");
    assert_eq!((point.sent, point.lost), (350, 7));
    assert_eq!((point.network_lost, point.host_lost), (7, 0));
    assert_eq!(point.loss_runs, BTreeMap::from([(1, 7)]));
    let lengths = point.loss_run_lengths.as_ref().unwrap();
    assert_eq!((lengths.count, lengths.median, lengths.p999), (7, 1, 1));
    let listed = room.text("losses.csv");
    let listed: Vec<&str> = listed.lines().collect();
    assert_eq!(
        listed,
        [
            "point,direction,first,last,length,after_last_loss",
            "0,there,100,100,1,50",
            "0,there,150,150,1,50",
            "0,there,200,200,1,50",
            "0,there,250,250,1,50",
            "0,there,300,300,1,50",
        ]
    );
    // The table, for people.
    let table = show::table(&result);
    let row = table
        .lines()
        .find(|line| line.trim_start().starts_with("outbound"));
    let row: Vec<&str> = row.unwrap().split_whitespace().collect();
    assert_eq!(row[1..3], ["100", "10.000"]);
    assert_eq!(row[7..15], ["350", "7", "2.0000", "7", "0", "0", "0", "0"]);
    assert_eq!(point.loss_distances, BTreeMap::from([(50, 6)]));
    // The rule drops the very first, which only the sender knows.
    assert_eq!(point.intervals[0].first, 0);
    let finding = &point.finding;
    assert!(
        finding.contains("all in the network") && finding.contains("one every 50 "),
        "{finding}"
    );
}

/// A token bucket before a host's NIC that passes a hundredth of 100 Mbit/s and buffers some milliseconds at most; and packet filters
/// before and behind it.
struct Bucket<'a> {
    from: &'a End,
    to: &'a End,
}

impl<'a> Bucket<'a> {
    /// Creates it; returns `None` if it is unavailable here.
    fn set(from: &'a End, to: &'a End) -> Option<Bucket<'a>> {
        // Data datagrams start with EVPD.
        let stream = "meta l4proto udp @th,64,32 0x45565044 counter comment \"stream\"";
        let all = "meta l4proto udp counter comment \"all\"";
        let bucket = "root tbf rate 1mbit burst 5kb limit 5kb".split(' ');
        let bucket: Vec<&str> = ["qdisc", "add", "dev", from.device]
            .into_iter()
            .chain(bucket)
            .collect();
        if !tc(from, &bucket) {
            return None;
        }
        filter(to, &[stream, all]);
        let chain = [
            "add table ip t",
            "add chain ip t out { type filter hook output priority 0; }",
            &format!("add rule ip t out {stream}"),
            &format!("add rule ip t out {all}"),
        ];
        for command in chain {
            from.namespace.command("nft", &[command]).unwrap();
        }
        Some(Bucket { from, to })
    }

    /// Returns how many datagrams it dropped: of the stream, and in total.
    fn dropped(&self) -> [u64; 2] {
        ["stream", "all"].map(|what| self.from.counted(what) - self.to.counted(what))
    }
}

/// Returns a wire whose packets fit a small bucket.
fn short_wire() -> Wire {
    Wire {
        mtu: 1500,
        ..Wire::exact()
    }
}

/// A token bucket at the sender's NIC passes too little: its queue overflows in that host, and the loss equals its drops.
#[test]
fn a_full_queue_before_the_nic_is_the_senders() {
    let Some(pair) = pair_with(&["nft", "tc"], &short_wire(), name!()) else {
        return;
    };
    let Some(bucket) = Bucket::set(&pair.near, &pair.far) else {
        return;
    };
    // Even in eight seconds it would not pass a thousand.
    let point = &between(&pair, stream("100M", 1200, 1000))[0];
    assert_sums(point);
    let [dropped, of_all] = bucket.dropped();
    assert!(dropped > 0);
    assert_eq!(
        [point.sent, point.lost, point.host_lost],
        [1000, dropped, dropped]
    );
    assert_eq!(point.attribution.sender_host, dropped);
    // Some clock requests find no room either.
    let change = &point.sender.host.change.udp;
    assert_eq!(change.send_buffer_errors, of_all);
    assert!(
        point.finding.contains("all in the sending host"),
        "{}",
        point.finding
    );
}

/// Runs a search with these options.
fn capacity(pair: &Pair, options: ProbeCapacityOptions) -> ProbeCapacity {
    let responder = respond_far(pair, &open());
    let options = ProbeCapacityOptions {
        target: target(&responder),
        duration: Duration::from_millis(200),
        precision: 0.2,
        ..options
    };
    let near = &pair.near.namespace;
    let measured = near.run(|| capacity::probe(&options, &Run::silent()));
    end(responder);
    let result = kept(measured.unwrap());
    assert_eq!(result.stopped, None);
    assert_follows(&result, &options);
    result
}

/// Asserts that the result of any search follows from its trials.
#[track_caller]
fn assert_follows(result: &ProbeCapacity, options: &ProbeCapacityOptions) {
    let [lowest, highest] = [options.lowest, options.highest].map(|rate| rate.get() as f64);
    let trials = &result.trials;
    assert_eq!(trials[0].asked, highest);
    let is_lossless = |point: &Option<Point>| point.as_ref().is_some_and(|point| point.lost == 0);
    for trial in trials {
        assert!((lowest..=highest).contains(&trial.asked), "{trial:?}");
        trial.point.iter().for_each(assert_sums);
        // A requested rate that its sender did not reach is not a capacity.
        let point = trial.point.as_ref();
        let is_reached = point.is_some_and(|point| point.rate_sent >= 0.98 * trial.asked);
        let has_passed = is_reached && is_lossless(&trial.point);
        assert_eq!(trial.passed, has_passed, "{trial:?}");
    }
    let lossless = trials.iter().filter(|trial| is_lossless(&trial.point));
    if lossless.clone().any(|trial| !trial.passed) {
        // If a host stalled and a rate was not reached, the result may be the rate sent without loss.
        let mut sent = lossless.flat_map(|trial| &trial.point);
        let found = result.rate;
        let is_sent = |found: f64| sent.any(|point| point.rate_sent == found);
        assert!(found.is_none_or(is_sent), "{found:?} {trials:?}");
        return;
    }
    let passed = |rate: f64| -> Vec<&Point> {
        let these = trials.iter();
        let these = these.filter(|trial| trial.passed && trial.asked == rate);
        these.flat_map(|trial| &trial.point).collect()
    };
    let needed = options.confirm as usize;
    let rates = trials.iter().map(|trial| trial.asked);
    let confirmed = rates.filter(|rate| passed(*rate).len() >= needed);
    let Some(best) = confirmed.max_by(f64::total_cmp) else {
        assert_eq!((result.rate, result.loss_bound), (None, None));
        assert_eq!(result.above, Some(lowest));
        return;
    };
    let at = passed(best);
    let slowest = at.iter().map(|point| point.rate_sent);
    assert_eq!(result.rate, slowest.min_by(f64::total_cmp));
    let sent: u64 = at.iter().map(|point| point.sent).sum();
    assert_eq!(result.datagrams, sent);
    let bound = result.loss_bound.unwrap() * sent as f64;
    assert!((bound - 2.9957).abs() < 1e-3, "{bound}");
    match result.above {
        None => assert_eq!(best, highest),
        Some(above) => assert!(above > best && above - best <= options.precision * above),
    }
}

fn bits(text: &str) -> BitRate {
    text.parse().unwrap()
}

/// Only a stalled host loses anything: the result follows from the trials.
#[test]
fn a_capacity_follows_from_its_trials() {
    let Some(pair) = pair(&Wire::exact(), name!()) else {
        return;
    };
    let options = ProbeCapacityOptions {
        size: 200,
        lowest: bits("100k"),
        highest: bits("1M"),
        confirm: 2,
        ..ProbeCapacityOptions::default()
    };
    capacity(&pair, options);
}

/// Behind a bucket below the lowest rate no rate passes, and the sender is reported as the limit.
#[test]
fn a_bucket_is_the_limit_of_a_capacity() {
    let Some(pair) = pair_with(&["nft", "tc"], &short_wire(), name!()) else {
        return;
    };
    let Some(bucket) = Bucket::set(&pair.near, &pair.far) else {
        return;
    };
    let options = ProbeCapacityOptions {
        size: 1200,
        lowest: bits("10M"),
        highest: bits("20M"),
        confirm: 1,
        ..ProbeCapacityOptions::default()
    };
    let result = capacity(&pair, options);
    assert_eq!(result.rate, None);
    assert!(!result.trials.is_empty());
    let points = result.trials.iter().flat_map(|trial| &trial.point);
    let mut lost = Vec::new();
    for point in points {
        assert_eq!(point.direction, Direction::There);
        assert_eq!(point.attribution.sender_host, point.lost);
        lost.push(point.lost);
    }
    let (lost_in_all, dropped) = (lost.iter().sum::<u64>(), bucket.dropped()[0]);
    // A trial that could not be finished has an unknown result, except that the bucket may have dropped some of it.
    if lost.len() == result.trials.len() {
        assert_eq!(lost_in_all, dropped);
    } else {
        assert!(lost_in_all <= dropped, "{lost_in_all} of {dropped}");
    }
    let finding = &result.finding;
    assert!(finding.contains("all in the sending host"), "{finding}");
}

/// Returns this process's threads of this name, each with its nice value and its CPU time in ticks (proc(5)).
fn threads(name: &str) -> Vec<(String, u64)> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    // One may have ended in the meantime.
    let stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    let named = stats.filter_map(|stat| {
        let (head, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let found = (fields[19 - 3].to_owned(), fields[14 - 3].parse().ok()?);
        (head.split_once('(')?.1 == name).then_some(found)
    });
    named.collect()
}

/// Tasks compete with the receiver, if the responder allows that.
#[test]
fn a_receiver_under_load() {
    let load = |nice: &[i8], responder: &_, seconds| ProbeUdpOptions {
        target: target(responder),
        duration: Some(Duration::from_secs_f64(seconds)),
        count: None,
        load_tasks: 2,
        receiver_nice: vec![10],
        load_nice: nice.to_vec(),
        ..stream("8k", 100, 0)
    };
    const HOUR: f64 = 3600.0;
    let responder = respond_here(&open());
    let refused = refused(udp::probe(&load(&[0], &responder, HOUR), &Run::silent()));
    assert!(refused.contains("allows no competing load"), "{refused}");
    end(responder);
    let responder = respond_here(&RespondOptions {
        limits: Limits {
            burdens: true,
            ..open().limits
        },
        ..open()
    });
    for nice in [0, 19] {
        let options = load(&[nice], &responder, HOUR);
        let probing = Probing::begin(move |run| udp::probe(&options, run));
        // Only this test of the process has such threads.
        until("both tasks and the receiver run as asked for", || {
            let listening = threads("listen").into_iter();
            let ours = listening.filter(|(nice, _)| nice == "10");
            let tasks = threads("burden");
            let asked = nice.to_string();
            let ran = |(nice, ticks): &(String, u64)| *nice == asked && *ticks >= 5;
            tasks.len() == 2 && tasks.iter().all(ran) && ours.count() == 1
        });
        let result = kept(probing.interrupt());
        assert_eq!(result.stopped.as_deref(), Some("interrupted"));
        let point = &result.points[0];
        assert_sums(point);
        let burden = Burden {
            nice: Some(10),
            tasks: 2,
            tasks_nice: nice,
        };
        assert_eq!(point.burden, Some(burden));
        let of = point.receiver_cpu.unwrap();
        let sum = of.user + of.kernel + of.interrupts + of.idle + of.steal;
        assert!((sum - 1.0).abs() < 1e-9 && of.user > 0.0, "{of:?}");
        // They end with the test.
        until("the tasks have ended", || threads("burden").is_empty());
    }
    // One test for each nice value; each ends on time.
    let points = udp(&responder, load(&[0, 19], &responder, 0.1)).points;
    let burdens = points.iter().flat_map(|point| &point.burden);
    let nice: Vec<i8> = burdens.map(|burden| burden.tasks_nice).collect();
    assert_eq!(nice, [0, 19]);
    points.iter().for_each(assert_sums);
    end(responder);
}

/// Stops a run when it reports that it listens, until it may continue.
struct Doorkeeper {
    listens: Mutex<Sender<String>>,
    goes_on: Mutex<Receiver<()>>,
}

impl Notes for Doorkeeper {
    fn take(&self, note: &Note<'_>) {
        if let Note::Listens(at) = note {
            self.listens.lock().unwrap().send(at.to_string()).unwrap();
            // Or when the sender of the signal is gone.
            let _ = self.goes_on.lock().unwrap().recv();
        }
    }
}

/// A path without a return direction: sent and received counts follow from the plan alone.
#[test]
fn a_path_without_a_return_direction() {
    let Some(pair) = pair_with(&["nft"], &Wire::exact(), name!()) else {
        return;
    };
    drop_one_in_fifty(&pair);
    assert_fits(COUNT, 100);
    // Not even a return route exists.
    let routes = ["route", "flush", "table", "main"];
    pair.far.namespace.command("ip", &routes).unwrap();
    let plan = |address: String, one_way| ProbeUdpOptions {
        target: Target {
            address,
            token: TOKEN.into(),
            ..Target::default()
        },
        one_way,
        loss_timeout: Duration::from_millis(100),
        ..stream("10M", 100, COUNT)
    };
    let options = plan(SocketAddr::from((pair.far.v4, 0)).to_string(), true);
    let ((listens, address), (resume, goes_on)) = (channel(), channel());
    let notes = Arc::new(Doorkeeper {
        listens: Mutex::new(listens),
        goes_on: Mutex::new(goes_on),
    });
    let receive = || thread::spawn(move || udp::probe(&options, &Run::new(notes)));
    let receiving = pair.far.namespace.run(receive).unwrap();
    let options = plan(address.recv().unwrap(), false);
    let near = &pair.near.namespace;
    let sent = near.run(|| udp::send_one_way(&options, &Run::silent()));
    assert_eq!(shown(sent.unwrap())["points"][0]["used"], 350);
    // It looks for the end of the stream from now on, however long that took.
    until("the receiver has read all arrived datagrams", || {
        let counters = pair.far.namespace.run(Counters::read);
        counters.unwrap().unwrap().udp.in_datagrams == 343
    });
    resume.send(()).unwrap();
    let result = whole(receiving.join().unwrap());
    let point = &result.points[0];
    assert_sums(point);
    assert_eq!(
        [point.sent, point.lost, point.network_lost, point.duplicates],
        [350, 7, 7, 0]
    );
    assert_eq!(point.loss_runs, BTreeMap::from([(1, 7)]));
    assert_eq!(point.delay, None);
}
