//! `evlbi plan`: figures that the papers give.

use std::process::Output;

use serde_json::Value;

use super::{Room, evlbi, failure};

fn plan(args: &str) -> Output {
    let args: Vec<&str> = std::iter::once("plan")
        .chain(args.split_whitespace())
        .collect();
    evlbi(&args)
}

fn json(args: &str) -> Value {
    let output = plan(&format!("{args} --json"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
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

/// The EXPReS report's 512 Mbit/s over 15 ms, and its law of loss.
#[test]
fn tcp_needs_what_the_report_says() {
    let plan = json("tcp --rate 512M --rtt 15ms --mss 1448 --algorithm reno --acks 2");
    near(&plan, "recovery_s", 9.945, 0.001);
    near(&plan, "drain_s", 19.89, 0.001);
    near(&plan, "delayed_bytes", 159.1e6, 0.001);
    near(&plan, "bdp_bytes", 960e3, 1e-9);
    near(&plan, "buffer_bytes", 160.1e6, 0.001);
    near(&plan, "max_loss", 1.706e-6, 0.001);
    let all = json("tcp --rate 512M --rtt 95ms --buffer 250MB --loss 1e-7");
    let laws = all["laws"].as_array().unwrap();
    assert_eq!(laws.len(), 7);
    // Every other law needs less than 250 MB where Reno needs 3.2 GB.
    for law in laws {
        let is_reno = law["algorithm"] == "reno";
        assert_eq!(law["buffer_suffices"], !is_reno, "{law}");
        assert_eq!(law["rate_survives"], !is_reno, "{law}");
    }
}

/// A part that may be lost is none beyond all: a window below a segment holds the rate whatever is lost.
#[test]
fn no_part_beyond_all_may_be_lost() {
    let plan = json("tcp --rate 1 --rtt 15ms --loss 0.5");
    for law in plan["laws"].as_array().unwrap() {
        assert_eq!(law["max_loss"], Value::Null, "{law}");
        assert_eq!(law["rate_survives"], true, "{law}");
    }
}

/// The same packet by packet.
#[test]
fn each_packet_says_the_same() {
    let room = Room::new();
    let svg = room.folder().join("delay.svg");
    let all = json(&format!(
        "tcp --rate 256M --rtt 10ms --acks 2 --algorithm reno,scalable --compare --plot {}",
        svg.display()
    ));
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
    let drawn = std::fs::read_to_string(&svg).unwrap();
    assert!(drawn.contains("one-way delay at 10.0000 ms"));
}

/// The EXPReS report's figure 2.3: with a buffer of the bandwidth-delay product messages are later for ever, the more so the
/// more is lost, and without loss not at all.
#[test]
fn messages_are_later_the_more_is_lost() {
    let room = Room::new();
    let svg = room.folder().join("losses.svg");
    let all = json(&format!(
        "tcp --rate 128M --rtt 27ms --acks 2 --algorithm reno --buffer 450kB --duration 20s --compare --loss 0,1e-5,1e-4,1e-3 --plot {}",
        svg.display()
    ));
    let rows = all["rows"].as_array().unwrap();
    let of =
        |name: &str| -> Vec<f64> { rows.iter().map(|row| row[name].as_f64().unwrap()).collect() };
    let late = of("late_at_end_s");
    assert!(late[0] < 1e-3 && late.is_sorted(), "{late:?}");
    assert!(late[1] > 0.1 && late[3] > 5.0, "{late:?}");
    // What is late did not come: the rate that Reno holds with such a loss (Mathis et al. 1997, b = 2).
    let come = of("delivered")[3] * 1448.0 * 8.0 / 20.0;
    let law = 1448.0 * 8.0 / 0.027 * (0.75_f64 / 1e-3).sqrt();
    assert!((0.7..1.3).contains(&(come / law)), "{come} {law}");
    let drawn = std::fs::read_to_string(&svg).unwrap();
    assert!(drawn.contains("loss 1.0e-4") && drawn.contains("reno at 27.0000 ms"));
}

#[test]
fn what_fits_a_link() {
    // As `send` cuts frames of 8032 bytes by default: in eight.
    let plan = json("link --rate 1024M --link 1G");
    near(&plan, "shed", 1.0 - 1004.0 / 1078.0 / 1.024, 1e-9);
    let plan = json("link --rate 1024M --link 1G --size 1464");
    near(&plan, "shed", 1.0 - 1464.0 / 1538.0 / 1.024, 1e-9);
    // On the wire beside the data: 20 (40) of IP, 8 of UDP, 8 of VTP, 32 of TCP, 38 of Ethernet.
    for (args, data, beside) in [
        ("", 1004, 74),
        ("--v6", 1004, 94),
        ("--carrier tcp", 1448, 90),
        ("--carrier tcp --v6", 1428, 110),
        ("--carrier pudp --frame 1032", 1032, 66),
        ("--mtu 9000", 8032, 74),
        ("--frame 5032 --v6", 1258, 94),
    ] {
        let plan = json(&format!("link --rate 1024M --link 1G {args}"));
        assert_eq!(plan["data_bytes"], data, "{args}");
        assert_eq!(plan["wire_bytes"], data + beside, "{args}");
    }
    let plan = json("link --rate 8.192G --link wanphy --size 8032");
    near(&plan, "payload", 9.58464e9, 1e-12);
    near(&plan, "ethernet", 9.2942e9, 1e-5);
    assert_eq!(plan["shed"], 0.0);
    let plan = json("multicast --stations 12");
    let last = &plan["rows"][10];
    assert_eq!(
        (&last["unicast"], &last["baselines"]),
        (&132.into(), &66.into())
    );
}

#[test]
fn what_cannot_be_planned_is_said() {
    for (args, said) in [
        ("tcp --rate 512M --rtt 0ms", "--rtt"),
        ("tcp --rate 2G --rtt 15ms --link 1G", "--link"),
        ("tcp --rate 512M --rtt 15ms,27ms", "--compare"),
        ("tcp --rate 512M --rtt 15ms --loss 1e-5,1e-4", "--compare"),
        ("tcp --rate 512M --rtt 15ms --algorithm fast", "westwood"),
        ("link --rate 1G --link sonet", "wanphy"),
        ("link --rate 1G --link 1G --carrier pudp", "whole frames"),
        ("link --rate 1G --link 1G --carrier tcp --mtu 40", "no room"),
        ("link --rate 1G --link 1G --size 1464 --mtu 9000", "--mtu"),
    ] {
        let output = plan(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && stderr.contains(said),
            "{args}: {stderr}"
        );
    }
}

/// What cannot be written is refused before the work, not after it.
#[test]
fn a_plot_that_cannot_be_written_is_refused_first() {
    let room = Room::new();
    let plot = room.path("missing/plot.svg");
    // Nobody listens at port 9: that would be said later.
    let target = ["127.0.0.1:9", "--token", "t"];
    let matrix = ["--mss", "1000,1400", "--buffer", "1M"];
    for command in [
        vec!["analyse", "no.pcap"],
        [&["probe", "tcp"], &target[..]].concat(),
        [&["probe", "tcp"], &target[..], &matrix].concat(),
    ] {
        let said = failure(&[&command[..], &["--plot", &plot]].concat());
        assert!(
            said.contains("cannot write") && said.contains(&plot),
            "{command:?}: {said}"
        );
    }
}
