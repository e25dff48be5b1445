//! SafeUDP between two namespaces: the program at both ends, and datagrams of others.

use std::net::UdpSocket;
use std::path::Path;

use evlbi_testkit::netns::{Wire, pair};
use evlbi_testkit::result::read;
use evlbi_testkit::{Room, name};

use crate::live::support::{Recv, evlbi};

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
            // 1,000 datagrams that are not messages, to the port of messages.
            let socket = UdpSocket::bind((pair.near.v4, 0)).unwrap();
            for number in 0..1000u32 {
                let bytes = number.to_be_bytes().repeat(1 + number as usize % 300);
                socket.send_to(&bytes, (pair.far.v4, 2631)).unwrap();
            }
            let mut send = evlbi();
            send.args(["send", "pattern:8032", "--to", &from, "--rate", "20M"])
                .args(["--duration", "1s", "--safe", "reserved", "--grace", "1s"])
                .args(["--weight", "2", "--least", "1/2", "--rearm"])
                .args(["--key-file", &key, "--json"]);
            let without = send.get_args().map(std::ffi::OsStr::to_owned);
            let mut without: Vec<_> = without.take_while(|arg| arg != "--key-file").collect();
            without.retain(|arg| arg != "--json");
            (
                send.output().unwrap(),
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
    assert_eq!(rejected + pair.far.no_room(), 1000);
}
