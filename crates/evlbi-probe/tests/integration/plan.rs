//! Calculations before anything is sent, compared with the papers' figures.

use std::time::Duration;

use evlbi_core::rate::BitRate;
use evlbi_net::run::Run;
use evlbi_net::safe::{Mode, Step};
use evlbi_probe::plan::link::{Carrier, Link, PlanLinkOptions};
use evlbi_probe::plan::safe::PlanSafeOptions;
use evlbi_probe::plan::tcp::PlanTcpOptions;
use evlbi_probe::plan::{compare, link, losses, multicast, safe, tcp};
use evlbi_testkit::result::{checked, refused, shown};
use evlbi_trace::tcp::Algorithm;
use serde_json::Value;

fn rate(text: &str) -> BitRate {
    text.parse().unwrap()
}

/// Returns options for a rate at a round-trip time in milliseconds.
fn over(text: &str, milliseconds: u64) -> PlanTcpOptions {
    PlanTcpOptions {
        rate: rate(text),
        rtt: vec![Duration::from_millis(milliseconds)],
        ..PlanTcpOptions::default()
    }
}

/// Returns options for a rate over a link.
fn through(text: &str, link: &str) -> PlanLinkOptions {
    PlanLinkOptions {
        rate: rate(text),
        link: link.parse().unwrap(),
        ..PlanLinkOptions::default()
    }
}

#[track_caller]
fn fits(options: &PlanLinkOptions) -> Value {
    shown(link::plan(options))
}

#[track_caller]
fn near(result: &Value, name: &str, expected: f64, tolerance: f64) {
    let found = result[name].as_f64().unwrap();
    let ratio = found / expected;
    assert!(
        (ratio - 1.0).abs() <= tolerance,
        "{name} {found}, expected {expected}"
    );
}

/// The EXPReS report's 512 Mbit/s over 15 ms, and its equation for loss.
#[test]
fn the_needs_of_tcp_match_the_report() {
    let plan = shown(tcp::plan(&PlanTcpOptions {
        mss: 1448,
        algorithm: vec![Algorithm::Reno],
        acks: 2,
        ..over("512M", 15)
    }));
    near(&plan, "recovery_s", 9.945, 0.001);
    near(&plan, "drain_s", 19.89, 0.001);
    near(&plan, "delayed_bytes", 159.1e6, 0.001);
    near(&plan, "bdp_bytes", 960e3, 1e-9);
    near(&plan, "buffer_bytes", 160.1e6, 0.001);
    near(&plan, "max_loss", 1.706e-6, 0.001);
    let all = shown(tcp::plan(&PlanTcpOptions {
        buffer: Some(250_000_000),
        loss: vec![1e-7],
        ..over("512M", 95)
    }));
    let laws = all["laws"].as_array().unwrap();
    assert_eq!(laws.len(), 8);
    // Each of the others needs less than 250 MB where Reno needs 3.2 GB.
    for law in laws {
        let is_reno = law["algorithm"] == "reno";
        assert_eq!(law["buffer_suffices"], !is_reno, "{law}");
        assert_eq!(law["rate_survives"], !is_reno, "{law}");
    }
}

/// The maximum loss fraction is at most 1: a window below a segment sustains the rate at any loss. BBR's does not depend on the
/// window.
#[test]
fn the_maximum_loss_fraction_is_at_most_one() {
    let plan = shown(tcp::plan(&PlanTcpOptions {
        loss: vec![0.5],
        ..over("1", 15)
    }));
    let laws = plan["laws"].as_array().unwrap().iter();
    for law in laws.filter(|law| law["algorithm"] != "bbr") {
        assert_eq!(law["max_loss"], Value::Null, "{law}");
        assert_eq!(law["rate_survives"], true, "{law}");
    }
}

/// The simulation packet by packet agrees.
#[test]
fn the_simulation_of_packets_agrees() {
    evlbi_testkit::watch();
    let options = PlanTcpOptions {
        acks: 2,
        algorithm: vec![Algorithm::Reno, Algorithm::Scalable],
        ..over("256M", 10)
    };
    let found = compare::compare(&options, &Run::silent()).unwrap();
    let figure = compare::figure(&found);
    let all = checked(serde_json::to_value(found).unwrap());
    let rows = all["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        for (found, expected) in [
            ("recovery_s", "expected_recovery_s"),
            ("delayed_bytes", "expected_delayed_bytes"),
        ] {
            near(row, found, row[expected].as_f64().unwrap(), 0.1);
        }
        assert_eq!(row["sent_again"], 1);
    }
    let titles = figure.panels.iter().map(|panel| panel.title.as_str());
    assert_eq!(titles.collect::<Vec<_>>(), ["one-way delay at 10.0000 ms"]);
}

/// The EXPReS report's figure 2.3: with a buffer of the bandwidth-delay product lateness never ends and grows with loss; without loss there
/// is none.
#[test]
fn messages_are_later_the_more_is_lost() {
    evlbi_testkit::watch();
    let options = PlanTcpOptions {
        acks: 2,
        algorithm: vec![Algorithm::Reno],
        buffer: Some(450_000),
        duration: Duration::from_secs(20),
        loss: vec![0.0, 1e-5, 1e-4, 1e-3],
        ..over("128M", 27)
    };
    let found = losses::simulate(&options, &Run::silent()).unwrap();
    let figure = losses::figure(&found);
    let all = checked(serde_json::to_value(found).unwrap());
    let rows = all["rows"].as_array().unwrap();
    let of =
        |name: &str| -> Vec<f64> { rows.iter().map(|row| row[name].as_f64().unwrap()).collect() };
    let late = of("late_at_end_s");
    assert!(late[0] < 1e-3 && late.is_sorted(), "{late:?}");
    assert!(late[1] > 0.1 && late[3] > 5.0, "{late:?}");
    // Late data has not arrived: the rate that Reno sustains at this loss (Mathis et al. 1997, b = 2).
    let come = of("delivered")[3] * 1448.0 * 8.0 / 20.0;
    let law = 1448.0 * 8.0 / 0.027 * (0.75_f64 / 1e-3).sqrt();
    assert!((0.7..1.3).contains(&(come / law)), "{come} {law}");
    let panel = &figure.panels[0];
    let names: Vec<&str> = panel.series.iter().map(|one| one.name.as_str()).collect();
    assert!(names.contains(&"loss 1.0e-4"), "{names:?}");
    assert_eq!(panel.title, "reno at 27.0000 ms");
}

#[test]
fn what_fits_a_link() {
    let gigabit = || through("1024M", "1G");
    // As `send` splits frames of 8032 bytes by default: in eight.
    let plan = fits(&gigabit());
    near(&plan, "shed", 1.0 - 1004.0 / 1078.0 / 1.024, 1e-9);
    let plan = fits(&PlanLinkOptions {
        size: Some(1464),
        ..gigabit()
    });
    near(&plan, "shed", 1.0 - 1464.0 / 1538.0 / 1.024, 1e-9);
    // Overhead on the wire: 20 (40) of IP, 8 of UDP, 8 of VTP, 32 of TCP, 38 of Ethernet.
    let (v4, v6) = (false, true);
    for (carrier, frame, mtu, v6, data, beside) in [
        (Carrier::Udp, 8032, 1500, v4, 1004, 74),
        (Carrier::Udp, 8032, 1500, v6, 1004, 94),
        (Carrier::Tcp, 8032, 1500, v4, 1448, 90),
        (Carrier::Tcp, 8032, 1500, v6, 1428, 110),
        (Carrier::Pudp, 1032, 1500, v4, 1032, 66),
        (Carrier::Udp, 8032, 9000, v4, 8032, 74),
        (Carrier::Udp, 5032, 1500, v6, 1258, 94),
    ] {
        let options = PlanLinkOptions {
            carrier,
            frame,
            mtu,
            v6,
            ..gigabit()
        };
        let plan = fits(&options);
        assert_eq!(plan["data_bytes"], data, "{options:?}");
        assert_eq!(plan["wire_bytes"], data + beside, "{options:?}");
    }
    let wan = through("8.192G", "wanphy");
    assert_eq!(wan.link, Link::WanPhy);
    let plan = fits(&PlanLinkOptions {
        size: Some(8032),
        ..wan
    });
    near(&plan, "payload", 9.58464e9, 1e-12);
    near(&plan, "ethernet", 9.2942e9, 1e-5);
    assert_eq!(plan["shed"], 0.0);
    let plan = checked(serde_json::to_value(multicast::plan(12, None)).unwrap());
    let last = &plan["rows"][10];
    assert_eq!(
        (&last["unicast"], &last["baselines"]),
        (&132.into(), &66.into())
    );
}

#[test]
fn frames_that_fit_no_packet_are_reported() {
    let whole = PlanLinkOptions {
        carrier: Carrier::Pudp,
        ..through("1G", "1G")
    };
    let small = PlanLinkOptions {
        carrier: Carrier::Tcp,
        mtu: 40,
        ..through("1G", "1G")
    };
    for (options, says) in [(whole, "whole frames"), (small, "no room")] {
        let said = refused(link::plan(&options));
        assert!(said.contains(says), "{said}");
    }
}

/// Over 95 ms, a loss in a million datagrams is too much for 512 Mbit/s.
#[test]
fn long_paths_shed_at_small_losses() {
    let options = PlanSafeOptions {
        rtt: [95, 15].map(Duration::from_millis).to_vec(),
        ..PlanSafeOptions::default()
    };
    let plan = safe::plan(&options);
    let text = safe::text(&plan);
    for line in [
        "over 95.0000 ms",
        "shed at about 7.4e-7: one event in 1,35",
        "TCP has 170.667 Mbit/s, the flow counts as 3.0",
        "stop (at 4/16) at about 1.3e-4",
        "if more than 10 % of the datagrams are lost",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let table = safe::csv(&plan).unwrap();
    assert_eq!(table.lines().count(), 7);
    let plan = checked(serde_json::to_value(plan).unwrap());
    let row = |number: usize| &plan["rows"][number];
    let events = [0, 1, 2, 3].map(|number| row(number)["event"].as_str().unwrap());
    assert_eq!(events, ["watch", "shed", "stop", "watch"]);
    near(row(0), "loss_event_rate", 8.2e-8, 0.01);
    near(row(1), "interval_s", 30.2, 0.01);
    // A quarter of the data, as ten flows.
    near(row(2), "x_tcp_bps", 12.8e6, 0.001);
    near(row(3), "loss_event_rate", 3.3e-6, 0.02);
    // One loss in ten is too much at any rate of TCP, and nothing else on a reserved path.
    let near_by = PlanSafeOptions {
        rtt: vec![Duration::from_micros(10)],
        least: Step::LOWEST,
        ..options.clone()
    };
    let plan = checked(serde_json::to_value(safe::plan(&near_by)).unwrap());
    assert_eq!(plan["rows"][2]["loss_event_rate"], plan["severe_loss"]);
    let reserved = PlanSafeOptions {
        mode: Mode::Reserved,
        ..options
    };
    let plan = checked(serde_json::to_value(safe::plan(&reserved)).unwrap());
    assert_eq!(plan["rows"], serde_json::json!([]));
}
