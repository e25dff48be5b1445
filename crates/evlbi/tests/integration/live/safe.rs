//! SafeUDP: the program at both ends between two namespaces, datagrams of others, and a receiver written from the specification.

use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use evlbi_testkit::netns::{Wire, pair};
use evlbi_testkit::result::read;
use evlbi_testkit::{Lines, Room, Running, command, name, need};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::live::support::{Recv, evlbi};

/// Starts a sender that runs until it gets a signal. Returns its lines of standard error.
fn sending(send: &mut Command) -> (Running, Lines) {
    let send = send.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut sender = Running(send.spawn().unwrap());
    let lines = Lines::of(sender.0.stderr.take().unwrap());
    (sender, lines)
}

/// Ends a sender as Ctrl-C does. Returns its exit status, and its result.
fn ended((mut sender, mut lines): (Running, Lines)) -> (Option<i32>, Value, Vec<String>) {
    sender.signal(Signal::SIGINT);
    let stdout = std::io::read_to_string(sender.0.stdout.take().unwrap()).unwrap();
    let said = lines.by_ref().collect();
    (sender.wait().code(), read(stdout), said)
}

#[test]
fn both_ends_agree_and_others_change_nothing() {
    let Some(pair) = pair(&Wire::exact(), name!()) else {
        return;
    };
    let room = Room::new();
    let key = room.write("key", "a passphrase of both ends\n");
    let from = format!("udp://{}:2630", pair.far.v4);
    let more = ["--safe", "--key-file", &key];
    let recv = pair
        .far
        .namespace
        .run(|| Recv::start(&from, Path::new("null"), &more));
    let recv = recv.unwrap();
    let (sent, near) = pair
        .near
        .namespace
        .run(|| {
            let mut send = evlbi();
            send.args(["send", "pattern:8032", "--to", &from, "--rate", "20M"])
                .args(["--duration", "2s", "--safe", "reserved", "--grace", "1s"])
                .args(["--weight", "2", "--least", "1/2", "--rearm"])
                .args(["--key-file", &key, "--json"]);
            let without = send.get_args().map(std::ffi::OsStr::to_owned);
            let mut without: Vec<_> = without.take_while(|arg| arg != "--key-file").collect();
            without.retain(|arg| arg != "--json");
            let output = send.stdout(Stdio::piped()).stderr(Stdio::piped());
            let output = output.spawn().unwrap();
            // In the meantime 1,000 datagrams that are not messages, to the port of messages.
            let socket = UdpSocket::bind((pair.near.v4, 0)).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_millis(1)))
                .unwrap();
            for number in 0..1000u32 {
                let bytes = number.to_be_bytes().repeat(1 + number as usize % 300);
                socket.send_to(&bytes, (pair.far.v4, 2631)).unwrap();
                // Nobody answers.
                assert!(socket.recv(&mut [0; 2000]).is_err());
            }
            (
                output.wait_with_output().unwrap(),
                evlbi().args(without).output().unwrap(),
            )
        })
        .unwrap();
    let error = String::from_utf8_lossy(&near.stderr);
    assert!(
        !near.status.success() && error.contains("--key-file FILE"),
        "{error}"
    );
    let error = String::from_utf8_lossy(&sent.stderr);
    assert!(
        sent.status.success() && !error.contains("no congestion control"),
        "{error}"
    );
    let sent = read(&sent.stdout);
    let received = recv.stop().result();
    let [here, there] = [&sent["safe"], &received["safe"]];
    assert_eq!(here["accounts"], there["accounts"]);
    assert_eq!(here["accounts"]["offered"], sent["offered"]);
    assert_eq!(here["accounts"]["unique"], received["unique"]);
    assert_eq!(
        (here["mode"].as_str(), here["rejected"].as_u64()),
        (Some("reserved"), Some(0))
    );
    assert_eq!(there["is_agreed"], true);
    // Each one was read and counted, or found no room.
    let rejected = there["rejected"].as_u64().unwrap();
    assert!(
        (1000 - pair.far.no_room().min(1000)..=1000).contains(&rejected),
        "{rejected}"
    );
}

/// A receiver without a key says that it does not answer others, and one whose port for messages is taken, which port that is.
#[test]
fn a_receiver_that_cannot_answer_says_so() {
    let Some(pair) = pair(&Wire::exact(), name!()) else {
        return;
    };
    let from = format!("udp://{}:2630", pair.far.v4);
    let (mut receiver, mut lines) = pair
        .far
        .namespace
        .run(|| sending(evlbi().args(["recv", &from, "--to", "null", "--safe"])))
        .unwrap();
    assert!(lines.any(|line| line.contains("listening")));
    let asks = pair.near.namespace.run(|| {
        let socket = UdpSocket::bind((pair.near.v4, 0)).unwrap();
        socket.send_to(&[0; 136], (pair.far.v4, 2631)).unwrap();
    });
    asks.unwrap();
    assert!(lines.any(|line| line.contains("asks for reports and gets none")));
    let taken = pair.far.namespace.run(|| {
        let second = format!("udp://{}:2629", pair.far.v4);
        let mut recv = evlbi();
        recv.args(["recv", &second, "--to", "null", "--safe"])
            .output()
            .unwrap()
    });
    let taken = String::from_utf8(taken.unwrap().stderr).unwrap();
    assert!(taken.contains("2630, the port after that"), "{taken}");
    receiver.signal(Signal::SIGINT);
    assert!(receiver.wait().success());
    let mut correlate = evlbi();
    let here = "tcp://127.0.0.1:0";
    let refused = correlate.args(["correlate", "--live", "--safe", here, here]);
    let refused = refused.output().unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("no stream arrives by udp://"), "{error}");
}

/// Nothing is sent to a receiver that is not heard any more, and scripts see it.
#[test]
fn a_receiver_that_falls_silent_gives_a_status_of_failure() {
    let Some(pair) = pair(&Wire::exact(), name!()) else {
        return;
    };
    let room = Room::new();
    let key = room.write("key", "a passphrase of both ends\n");
    let to = format!("udp://{}:2630", pair.far.v4);
    let more = ["--safe", "--key-file", &key];
    let far = &pair.far.namespace;
    let recv = far.run(|| Recv::start(&to, Path::new("null"), &more));
    let recv = recv.unwrap();
    let mut send = evlbi();
    send.args(["send", "pattern:1032", "--to", &to, "--rate", "8M"])
        .args(["--safe", "reserved", "--key-file", &key, "--json"]);
    let near = &pair.near.namespace;
    let (sender, mut lines) = near.run(|| sending(&mut send)).unwrap();
    recv.until_arrived(1);
    recv.signal("STOP");
    let mut is_blind = |line: String| line.contains("no reports arrive");
    assert!(lines.any(&mut is_blind));
    let (status, sent, said) = ended((sender, lines));
    let safe = &sent["safe"];
    assert_eq!((status, &safe["cut_off"]), (Some(1), &"blind".into()));
    assert_eq!(safe["notices"][0]["kind"], "blind");
    let reason = said.last().unwrap();
    assert!(
        reason.contains("held back at the end (blind)") && reason.contains("`evlbi recv --safe`"),
        "{reason}"
    );
    recv.signal("CONT");
    recv.stop();
}

/// Sends to the receiver that was written from the specification, which pretends loss until data are shed, until `is_over` holds of the
/// states so far. Each of these states must have been in a beat, in this order, and both ends have the same accounts.
fn with_peer(expected: &[&str], is_over: impl Fn(&[String]) -> bool) {
    if !need(&["python3"]) {
        return;
    }
    let room = Room::new();
    let key = room.path("key");
    std::fs::write(&key, [7; 32]).unwrap();
    let peer = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/safeudp_peer.py");
    let mut receive = command("python3");
    receive.args([peer, &key, "--loss", "0.05", "--rtt", "0.1"]);
    let (mut peer, mut lines) = sending(&mut receive);
    let to = lines.find_map(|line| Some(line.strip_prefix("listening on ")?.to_owned()));
    let mut send = evlbi();
    send.args(["send", "pattern:1032", "--rate", "8M", "--json", "--to"])
        .arg(format!("udp://{}", to.unwrap()))
        .args(["--safe", "shared", "--weight", "1", "--grace", "1s"])
        .args(["--least", "1/2", "--key-file", &key]);
    let sender = sending(&mut send);
    let mut states: Vec<String> = Vec::new();
    while !is_over(&states) {
        let line = lines.next().expect("the peer runs");
        states.extend(line.split(' ').next().map(str::to_owned));
    }
    let (status, sent, said) = ended(sender);
    assert_eq!((status, &sent["safe"]["cut_off"]), (Some(0), &Value::Null));
    let stdout = std::io::read_to_string(peer.0.stdout.take().unwrap()).unwrap();
    let received: Value = serde_json::from_str(&stdout).unwrap();
    assert!(peer.wait().success(), "{}", lines.collect::<String>());
    let names = received["states"].as_array().unwrap();
    let mut names = names.iter();
    for state in expected {
        assert!(
            names.any(|name| name == state),
            "{state}: {received} {said:?}"
        );
    }
    let here = &sent["safe"]["accounts"];
    for name in ["offered", "sent", "shed", "not_sent", "unique", "lost"] {
        assert_eq!(here[name], received["accounts"][name], "{name}: {received}");
    }
    assert_eq!(
        (&received["complete"], &received["shed_as_declared"]),
        (&true.into(), &true.into())
    );
    // A busy host may lose more.
    assert!(here["lost"].as_u64() >= received["pretended_lost"].as_u64());
    assert_eq!(
        (&received["ignored"], &sent["safe"]["rejected"]),
        (&serde_json::json!({}), &0.into())
    );
}

#[test]
fn a_receiver_from_the_specification_takes_a_sender_to_shedding() {
    let expected = [
        "start",
        "clear",
        "suspect",
        "congested",
        "shedding",
        "ended",
    ];
    with_peer(&expected, |states| {
        states.last().is_some_and(|state| state == "shedding")
    });
}

#[test]
#[ignore = "a soak: it takes two minutes"]
fn soak_a_sender_returns_to_clear_after_shedding() {
    let expected = [
        "clear",
        "suspect",
        "congested",
        "shedding",
        "held",
        "trial",
        "clear",
        "ended",
    ];
    with_peer(&expected, |states| {
        let shed = states.iter().position(|state| state == "shedding");
        shed.is_some_and(|at| states[at..].contains(&"clear".to_owned()))
    });
}
