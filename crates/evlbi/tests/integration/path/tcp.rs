//! TCP of the real kernel over emulated paths: properties that need no clock. `cargo xtask live` reports speed and delay;
//! algorithms, equations and diagnoses have their tests in virtual time and over traces.

use evlbi_testkit::until;
use serde_json::Value;

use crate::live::support::Recv;
use crate::path::{FORWARD, HOSTS, Room, cell, printed};
use crate::result::number;

/// Messages without room wait, or are shed: each is accounted for.
#[test]
fn each_message_is_sent_or_shed() {
    let cells = "rtt = \"5ms\"\nrate = \"20M\"\n";
    let Some(room) = Room::new(&format!("{HOSTS}{cells}")) else {
        return;
    };
    let up = room.up();
    let _responder = up.respond();
    // Ten times the rate of the link.
    let options = ["--rate", "200M", "--duration", "200ms", "--buffer", "30k"];
    for full in ["shed", "block"] {
        let result = up.probe("tcp", &[&options[..], &["--full", full]].concat());
        let messages = &result["flows"][0]["messages"];
        let of = |name: &str| number(messages, name);
        assert_eq!(of("received"), of("sent"), "{messages}");
        match full {
            "shed" => {
                assert_eq!(of("due"), of("sent") + of("shed"), "{messages}");
                assert!(of("shed") > 1000, "{messages}");
            }
            _ => assert_eq!(of("shed"), 0, "{messages}"),
        }
    }
}

/// A plan may name each algorithm that a program on the host could select, even one that this machine does not allow for
/// all users: connections use it over IPv4 and IPv6, both outbound and accepted ones.
#[test]
fn a_plan_may_name_each_algorithm_of_the_kernel() {
    let available = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let available = std::fs::read_to_string(available).unwrap();
    for algorithm in available.split_whitespace() {
        let hosts = HOSTS.replace("reno", algorithm);
        for is_plain in [false, true] {
            let Some(mut room) = Room::new(&format!("{hosts}rtt = \"1ms\"\n")) else {
                return;
            };
            if is_plain && !room.leave_rights() {
                return;
            }
            let up = room.up();
            let mut responder = up.evlbi_at("manchester");
            responder.args(["respond", "--bind", "[::]:8620"]);
            let _responder = up.listening(&mut responder, "responder");
            for to in ["manchester:8620", "manchester-v6:8620"] {
                let shown = printed(up.evlbi_at("jive").args([
                    "probe",
                    "tcp",
                    to,
                    "--duration",
                    "100ms",
                    "--both",
                    "--json",
                ]));
                let result: Value = serde_json::from_str(&shown).unwrap();
                let flows = result["flows"].as_array().unwrap();
                let algorithms: Vec<&Value> = flows.iter().map(|flow| &flow["algorithm"]).collect();
                assert_eq!(algorithms, [algorithm; 2], "{to}");
            }
        }
    }
}

/// The error for an algorithm that the kernel lacks names the remedy.
#[test]
fn an_algorithm_that_the_kernel_lacks_is_refused() {
    let Some(room) = Room::new(&format!(
        "{}rtt = \"1ms\"\n",
        HOSTS.replace("reno", "nosuch")
    )) else {
        return;
    };
    let output = room.run(&["true"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("cannot set tcp_congestion_control of jive to nosuch"),
        "{said}"
    );
    assert!(said.contains("modprobe tcp_nosuch"), "{said}");
}

/// Other traffic alongside a connection: its times, and the outcome of each of its datagrams.
#[test]
fn a_burst_alongside_a_connection_is_accounted_for() {
    let cells = "rtt = \"4ms\"\nrate = \"100M\"\nbuffer = \"250KiB\"\n";
    let Some(room) = Room::new(&format!("{HOSTS}{cells}")) else {
        return;
    };
    let up = room.up();
    let _responder = up.respond();
    let result = up.probe(
        "tcp",
        &[
            "--duration",
            "2s",
            "--algorithm",
            "reno",
            "--background",
            "70M",
            "--background-at",
            "500ms",
            "--background-for",
            "500ms",
        ],
    );
    let found = &result["flows"][0]["disturbance"];
    let of = |name: &str| found[name].as_f64().unwrap();
    assert_eq!((of("from"), of("to")), (0.5, 1.0));
    let stream = &result["background"][0];
    let of = |name: &str| number(stream, name);
    assert_eq!(of("sent"), 70_000_000 / 2 / 8 / 1472);
    assert_eq!(of("sent"), of("unique") + of("lost"));
    let parts = of("network_lost") + of("host_lost") + of("unattributed");
    assert_eq!(of("lost"), parts);
}

/// Congestion is marked by chance, or where packets would wait, and each mark arrives.
#[test]
fn congestion_is_marked_and_each_mark_arrives() {
    for (name, marking) in [
        (
            "rate",
            "rate = \"50M\", buffer = \"4MiB\", mark_above = \"0s\"",
        ),
        ("mark", "mark = \"5%\""),
    ] {
        let cells = format!("forward = [{{ {marking} }}, {{ delay = \"1ms\" }}]\n");
        let Some(room) = Room::new(&format!("{HOSTS}{cells}")) else {
            return;
        };
        let up = room.up();
        for host in ["jive", "manchester"] {
            up.sh(host, "echo 1 > /proc/sys/net/ipv4/tcp_ecn");
        }
        let source = room.write("data", vec![7; 1_000_000]);
        let mut receiver = up.evlbi_at("manchester");
        receiver.args(["recv", "tcp://0.0.0.0:5000", "--to", &room.path("got")]);
        let receiver = Recv::listening(&mut receiver, 1);
        let send = ["send", &source, "--to", "tcp://manchester:5000", "--max"];
        printed(up.evlbi_at("jive").args(send));
        assert!(receiver.end().status.success());
        assert!(room.read("got") == vec![7; 1_000_000]);
        // Of 690 packets; the first window is a burst of ten segments.
        let marked = |state: &Value| number(cell(state, FORWARD, name), "marked");
        until("all that was marked arrives", || {
            marked(&up.state()) == up.kernel("manchester", "IpExt", "InCEPkts")
        });
        let state = up.end();
        assert!(marked(&state) >= 9, "{state}");
        assert_eq!(number(cell(&state, FORWARD, name), "dropped"), 0);
    }
}

/// Each segment length is tried with each send buffer.
#[test]
fn each_segment_is_tried_with_each_buffer() {
    let cells = "rtt = \"5ms\"\nrate = \"500M\"\n";
    let Some(room) = Room::new(&format!("{HOSTS}{cells}")) else {
        return;
    };
    let up = room.up();
    let _responder = up.respond();
    let plot = room.path("p.svg");
    let options = ["--duration", "200ms", "--mss", "536,1448"];
    let more = ["--buffer", "30k,2M", "--plot", &plot];
    let result = up.probe("tcp", &[&options[..], &more].concat());
    let points = result["points"].as_array().unwrap();
    let of = |name: &str| -> Vec<u64> { points.iter().map(|point| number(point, name)).collect() };
    // Timestamps take 12 bytes of each.
    assert_eq!(of("segment"), [524, 524, 1436, 1436]);
    assert_eq!(of("buffer"), [30_000, 2_000_000, 30_000, 2_000_000]);
    assert!(
        points
            .iter()
            .all(|point| point["rate"].as_f64().unwrap() > 0.0)
    );
    for label in ["segments of 524 bytes", "segments of 1436 bytes"] {
        assert!(room.text("p.svg").contains(label), "{label}");
    }
}
