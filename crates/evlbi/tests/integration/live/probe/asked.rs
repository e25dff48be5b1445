//! What can be asked of a probe is what it does: class of service, interface, direction, buffers, paces, schedules.

use super::loss::to_a_stopped_receiver;
use super::{
    Probing, TOKEN, ask, assert_fits, assert_refused, assert_sums, between, end, exact_wire,
    no_room, points, respond_far,
};
use crate::live::support::evlbi;
use crate::result::{brief, number};
use evlbi_testkit::netns::{End, filter, pair, pair_with};
use evlbi_testkit::{Room, buffer, name, until_some};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Packets that a host's rule of this comment has counted.
pub fn counted(end: &End, comment: &str) -> u64 {
    let rules = end.namespace.command("nft", &["list", "table", "ip", "t"]);
    let rules = rules.unwrap();
    let line = rules.lines().find(|line| line.contains(comment));
    let mut words = line.unwrap().split_whitespace();
    words.find(|word| *word == "packets").unwrap();
    words.next().unwrap().parse().unwrap()
}

#[test]
fn datagrams_carry_their_class_of_service() {
    let Some(pair) = pair_with(&["nft"], &exact_wire(), name!()) else {
        return;
    };
    // Data, requests and replies begin with EVPD, EVPQ and EVPR.
    let rules = ["0x45565044", "0x45565051", "0x45565052"].map(|magic| {
        format!("meta l4proto udp @th,64,32 {magic} ip dscp 46 counter comment \"{magic}\"")
    });
    let rules = rules.each_ref().map(String::as_str);
    filter(&pair.near, &rules);
    filter(&pair.far, &rules);
    let responder = respond_far(&pair, &[]);
    let urgent = |kind: &str, more: &[&str]| {
        let mut all = vec!["--dscp", "46", "--count", "100", "--json"];
        all.extend(more);
        ask(&pair, &responder, kind, &all)
    };
    let points = points(&urgent("udp", &["--rate", "20M", "--both"]));
    assert_eq!(points.len(), 2);
    for end in [&pair.near, &pair.far] {
        assert_eq!(counted(end, "0x45565044"), 100);
    }
    let round_trips = || {
        let asked = counted(&pair.far, "0x45565051");
        (asked, counted(&pair.near, "0x45565052"))
    };
    let (asked, replied) = round_trips();
    let output = urgent("latency", &["--interval", "1ms", "--loss-timeout", "60s"]);
    assert!(output.status.success());
    let (then_asked, then_replied) = round_trips();
    assert!(then_asked >= asked + 100 && then_replied >= replied + 100);
    end(responder);
}

#[test]
fn only_the_interface_that_is_named_is_used() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    assert_fits(100, 100);
    let responder = respond_far(&pair, &[]);
    let from = |device: &str| {
        let more = [
            "--rate", "10M", "--size", "100", "--count", "100", "--both", "--device", device,
            "--json",
        ];
        ask(&pair, &responder, "udp", &more)
    };
    for point in points(&from(pair.near.device)) {
        assert_sums(&point);
        assert_eq!(number(&point, "lost"), 0, "{}", point["finding"]);
    }
    // There is no way from lo, and there is no eth77.
    let down = ["link", "set", "lo", "down"];
    pair.near.namespace.command("ip", &down).unwrap();
    for (device, said) in [("lo", "cannot reach"), ("eth77", "the interface eth77")] {
        let output = from(device);
        assert_refused(&output, said);
    }
    end(responder);
}

/// Trains that a large buffer holds and a small one does not, while the receiver stands still (Spencer et al., figure 5-3).
#[test]
fn a_small_buffer_loses_what_a_large_one_holds() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    const SIZE: usize = 1400;
    let count = (buffer::holds(SIZE) * 9 / 10).min(400);
    let room = Room::new();
    let of = |buffer: &str, least_lost: u64| {
        let asked = count.to_string();
        let plan = [
            "--size",
            "1400",
            "--burst",
            "40",
            "--spacing",
            "5ms",
            "--count",
            &asked,
            "--buffer",
            buffer,
            "--loss-timeout",
            "100ms",
        ];
        let before = no_room(&pair.far);
        let has_come = || no_room(&pair.far) - before >= least_lost;
        let [_, received] = to_a_stopped_receiver(&pair, &plan, has_come);
        let point = &received["points"][0];
        assert_sums(point);
        assert_eq!(number(point, "sent"), count as u64);
        let lost = number(point, "lost");
        assert_eq!(no_room(&pair.far) - before, lost);
        assert_eq!(number(point, "host_lost"), lost, "{}", brief(point));
        assert_eq!(number(&point["attribution"], "receiver_socket"), lost);
        let file = room.write(&format!("{buffer}.json"), received.to_string());
        let granted = number(&point["receiver"]["buffer"], "granted");
        (lost, granted, file)
    };
    // Nearly all: a datagram takes more room than its bytes.
    let least = (count - 4096 * 2 / SIZE) as u64;
    let (lost, small, first) = of("4k", least);
    assert!(lost >= least, "{lost} of {count}");
    let (lost, large, second) = of("32M", 0);
    assert_eq!(lost, 0);
    assert!(small < large);
    // In a table, they are two tests.
    let table = evlbi().args(["report", &first, &second, "--json"]).output();
    let table: Value = serde_json::from_slice(&table.unwrap().stdout).unwrap();
    let columns = &table["columns"];
    let of = |column: usize| columns[column].as_str().unwrap().to_owned();
    assert_eq!(columns.as_array().unwrap().len(), 2, "{columns}");
    assert!(
        of(0).contains("bursts of 40") && of(0) != of(1),
        "{columns}"
    );
}

/// Several buffers in one sweep: whatever is lost, the receiver's socket had no room for it.
#[test]
fn buffers_are_drawn() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    assert_fits(80, 1400);
    let room = Room::new();
    let svg = room.path("a.svg");
    let more = [
        "--size",
        "1400",
        "--burst",
        "40",
        "--spacing",
        "5ms",
        "--count",
        "80",
        "--buffer",
        "4k,32M",
        "--plot",
        &svg,
        "--json",
    ];
    let points = between(&pair, &more);
    let [small, large] = points.as_slice() else {
        panic!("{}", points.len());
    };
    for point in [small, large] {
        assert_sums(point);
        let lost = number(point, "lost");
        assert_eq!(number(&point["attribution"], "receiver_socket"), lost);
    }
    // The kernel also counts dropped requests for the clock, which are not datagrams of the test: as many as the responder needs time.
    assert!(
        no_room(&pair.far) >= number(small, "lost"),
        "{}",
        brief(small)
    );
    assert_eq!(number(large, "lost"), 0, "{}", brief(large));
    let drawn = room.text("a.svg");
    assert!(drawn.contains("receive buffer asked") && drawn.contains("runs of loss"));
}

/// The points of a sweep come in its order, each with what it was asked for; tests in `probe/region.rs`
/// check what limits them.
#[test]
fn a_sweep_has_all_of_its_points() {
    let Some(pair) = pair(&exact_wire(), name!()) else {
        return;
    };
    assert_fits(50, 1400);
    let room = Room::new();
    let svg = room.path("a.svg");
    let more = [
        "--size",
        "500,1400",
        "--rate",
        "10M,15M,25M,30M",
        "--count",
        "50",
        "--plot",
        &svg,
        "--json",
    ];
    let points = between(&pair, &more);
    let asked = |point: &Value| (number(point, "size"), point["rate_asked"].as_f64().unwrap());
    let shown: Vec<(u64, f64)> = points.iter().map(asked).collect();
    let expected: Vec<(u64, f64)> = [500, 1400]
        .into_iter()
        .flat_map(|size| [10e6, 15e6, 25e6, 30e6].map(|rate| (size, rate)))
        .collect();
    assert_eq!(shown, expected);
    for point in &points {
        assert_sums(point);
        let [sent, lost] = ["sent", "lost"].map(|name| number(point, name));
        assert_eq!([sent, lost], [50, 0], "{}", brief(point));
        let of = |name: &str| point[name].as_f64().unwrap();
        // As asked, or held up by a host that had other things to do.
        let is_as_asked = of("rate_received") >= 0.97 * of("rate_asked");
        assert!(point["region"] == "A" || !is_as_asked, "{}", brief(point));
    }
    let drawn = room.text("a.svg");
    assert!(drawn.contains("500 B there") && drawn.contains("1400 B there"));
}

/// Tests on a schedule, both ways, some of which lose; what there is so far can be looked at.
#[test]
fn tests_every_now_and_then() {
    let Some(pair) = pair_with(&["nft"], &exact_wire(), name!()) else {
        return;
    };
    let rules = ["meta l4proto udp @th,64,32 0x45565044 numgen inc mod 10 0 counter drop"];
    filter(&pair.far, &rules);
    // 100 ms of 2 Mbit/s.
    assert_fits(60, 500);
    let responder = respond_far(&pair, &[]);
    let room = Room::new();
    let [file, svg] = ["w.sqlite", "w.svg"].map(|name| room.path(name));
    let mut command = evlbi();
    let address = responder.address().to_string();
    command
        .args(["watch", &file, &address, "--both", "--json"])
        .args(["--rate", "2M", "--size", "500"])
        .args(["--every", "200ms", "--test", "100ms", "--for", "1h"])
        .env("EVLBI_TOKEN", TOKEN);
    let watching = pair.near.namespace.run(|| Probing::start(&mut command));
    let watching = watching.unwrap();
    let windows = |report: &Value, way: &str| -> Vec<Value> {
        let all = report["windows"].as_array().into_iter().flatten();
        let of_way = all.filter(|window| window["direction"] == way);
        of_way.cloned().collect()
    };
    let so_far = until_some("a test each way", || {
        let report = evlbi().args(["report", &file, "--json"]).output();
        let report = serde_json::from_slice::<Value>(&report.unwrap().stdout).ok()?;
        (!windows(&report, "back").is_empty()).then_some(report)
    });
    watching.child.signal(Signal::SIGINT);
    let output = watching.end();
    end(responder);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [there, back] = ["there", "back"].map(|way| windows(&report, way));
    assert_eq!(there.len(), back.len());
    // What was reported during the campaign stays as it was.
    let before = windows(&so_far, "there");
    assert!(!before.is_empty() && there[..before.len()] == before);
    // Each test is a run of its own.
    assert!(report["runs"].as_array().unwrap().len() >= there.len());
    for window in there {
        let of = |name: &str| number(&window, name);
        assert_eq!(of("sent"), of("unique") + of("lost"));
        assert_eq!(of("network_lost"), of("lost"));
        // One in ten, wherever the rule's counter stood.
        assert!(of("lost") == of("sent") / 10 || of("lost") == of("sent").div_ceil(10));
    }
    assert!(back.iter().all(|window| number(window, "lost") == 0));
    let drawn = evlbi().args(["report", &file, "--plot", &svg]).output();
    assert!(drawn.unwrap().status.success());
    assert!(room.text("w.svg").contains("jitter"));
}
