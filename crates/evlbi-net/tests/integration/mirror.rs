//! Streams to other hosts, as a mirror port shows them.

use std::net::{IpAddr, SocketAddr};

use crate::datagrams::payloads;
use crate::namespaces::{addresses, receiver, send, sender};
use etherparse::PacketBuilder;
use evlbi_core::time::Nanos;
use evlbi_net::netns::Namespace;
use evlbi_net::path::Tap;
use evlbi_net::run::Run;
use evlbi_net::transport::{InOptions, Incoming, Peer, Url};
use evlbi_net::udp::{ReceiverOptions, SenderOptions};
use evlbi_testkit::netns::{Wire, as_root_of_its_own, mirror_port, pair_with, paths};
use evlbi_testkit::{buffer, name, until};

/// URL of the interface at which [`mirror_port`] shows the stream.
const SHOWN: &str = "mirror://eth1?udp=2630";

fn open(namespace: &Namespace, url: &str, with: &InOptions) -> Box<dyn Incoming> {
    let url: Url = url.parse().unwrap();
    namespace
        .run(|| url.open_in(with, &Run::silent()).unwrap())
        .unwrap()
}

/// Receives `count` datagrams; also returns the maximum number that arrived joined, and their senders.
fn collect(incoming: &mut dyn Incoming, count: usize) -> (Vec<Vec<u8>>, u64, Vec<Peer>) {
    let (mut found, mut most_joined, mut peers) = (Vec::new(), 0, Vec::new());
    until("all datagrams are shown", || {
        let batch = incoming.receive(Nanos(1)).unwrap();
        most_joined = most_joined.max(batch.max_joined());
        for datagram in batch.datagrams() {
            found.push(datagram.bytes.to_vec());
            assert!(datagram.stamp.is_some() && !datagram.truncated);
            peers.push(datagram.source.host());
        }
        found.len() >= count
    });
    peers.dedup();
    (found, most_joined, peers)
}

/// Whole frames of 8 kB, bundles, and fragments; datagrams to other ports are left out.
#[test]
fn a_stream_to_another_host_is_received_as_it_was_sent() {
    let whole = Wire {
        mtu: 9000,
        ..Wire::default()
    };
    for (wire, size, is_joined) in [
        (Wire::exact(), 8032, false),
        (whole, 8032, true),
        (Wire::default(), 1000, true),
        (Wire::default(), 8032, false),
    ] {
        let Some(pair) = pair_with(&["nft"], &wire, name!()) else {
            return;
        };
        let watcher = mirror_port(&pair, 1);
        let mut shown = open(&watcher, SHOWN, &InOptions::default());
        for to in addresses(&pair) {
            let other = SocketAddr::new(to.ip(), 2631);
            let options = ReceiverOptions::default();
            let _receivers = [to, other].map(|to| receiver(&pair.far, to, &options));
            let count = (buffer::holds(size) / 4).min(200);
            let sent = payloads(size, count);
            for to in [other, to] {
                let mut sender = sender(&pair.near, to, &SenderOptions::default());
                assert_eq!(send(&mut sender, &sent), count);
            }
            let (found, most_joined, peers) = collect(&mut *shown, count);
            assert_eq!(found, sent, "{wire:?} {to}");
            assert_eq!(most_joined > 1, is_joined, "{wire:?} {to}");
            let near = SocketAddr::new(pair.near.address_like(to.ip()), 0);
            assert_eq!(peers, [Peer::Socket(near)]);
        }
        assert_eq!(shown.drops().unwrap(), 0);
    }
}

#[test]
fn a_mirror_of_both_directions_shows_each_datagram_twice() {
    for size in [1000, 8032] {
        let Some(pair) = pair_with(&["nft"], &Wire::default(), name!()) else {
            return;
        };
        let watcher = mirror_port(&pair, 2);
        let mut shown = open(&watcher, SHOWN, &InOptions::default());
        for to in addresses(&pair) {
            let _receiver = receiver(&pair.far, to, &ReceiverOptions::default());
            let mut sender = sender(&pair.near, to, &SenderOptions::default());
            let sent = payloads(size, 50);
            assert_eq!(send(&mut sender, &sent), 50);
            let (mut found, ..) = collect(&mut *shown, 100);
            let mut twice = [sent.clone(), sent].concat();
            found.sort();
            twice.sort();
            assert_eq!(found, twice, "{size} {to}");
        }
        assert_eq!(shown.drops().unwrap(), 0);
    }
}

#[test]
fn traffic_of_this_host_is_left_out() {
    let Some(pair) = pair_with(&[], &Wire::default(), name!()) else {
        return;
    };
    let with = InOptions::default();
    let near = &pair.near;
    let mut shown = open(
        &near.namespace,
        &format!("mirror://{}?udp=2630", near.device),
        &with,
    );
    let to = addresses(&pair)[0];
    let back = SocketAddr::new(near.v4.into(), 2630);
    let options = ReceiverOptions::default();
    let _receivers = [
        receiver(&pair.far, to, &options),
        receiver(near, back, &options),
    ];
    let mut out = sender(near, to, &SenderOptions::default());
    assert_eq!(send(&mut out, &payloads(1000, 10)), 10);
    let mut answer = sender(&pair.far, back, &SenderOptions::default());
    let answers = payloads(900, 10);
    assert_eq!(send(&mut answer, &answers), 10);
    assert_eq!(collect(&mut *shown, 10).0, answers);

    // Loopback shows each packet once, although it leaves and arrives there.
    let mut shown = open(&near.namespace, "mirror://lo?udp=2632-2633", &with);
    let here: SocketAddr = "127.0.0.1:2633".parse().unwrap();
    let _receiver = receiver(near, here, &options);
    let mut out = sender(near, here, &SenderOptions::default());
    for length in [1000, 1001] {
        let sent = payloads(length, 10);
        assert_eq!(send(&mut out, &sent), 10);
        assert_eq!(collect(&mut *shown, 10).0, sent);
    }
}

#[test]
fn what_does_not_fit_the_buffer_is_counted() {
    let Some(pair) = pair_with(&["nft"], &Wire::exact(), name!()) else {
        return;
    };
    let watcher = mirror_port(&pair, 1);
    let with = InOptions {
        buffer: Some(100 << 10),
        ..InOptions::default()
    };
    let mut shown = open(&watcher, SHOWN, &with);
    let to = addresses(&pair)[0];
    let _receiver = receiver(&pair.far, to, &ReceiverOptions::default());
    let mut sender = sender(&pair.near, to, &SenderOptions::default());
    assert_eq!(send(&mut sender, &payloads(1200, 400)), 400);
    until("the buffer overflows", || shown.drops().unwrap() > 0);
    let mut received = 0;
    until("all has been shown or dropped", || {
        received += shown.receive(Nanos(1)).unwrap().datagrams().count() as u64;
        received + shown.drops().unwrap() == 400
    });
    let drops = shown.drops().unwrap();
    assert_eq!(send(&mut sender, &payloads(1200, 1)), 1);
    collect(&mut *shown, 1);
    assert_eq!(shown.drops_reported(), drops);
}

/// Returns a frame with a datagram from port 2630 to port 2630, behind these VLAN tags.
fn frame(tags: &[u16], to: IpAddr, payload: &[u8]) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2([2; 6], [4; 6]);
    let packet = match to {
        IpAddr::V4(to) => ethernet.ipv4([192, 0, 2, 1], to.octets(), 9),
        IpAddr::V6(to) => ethernet.ipv6([0xfd; 16], to.octets(), 9),
    };
    let mut frame = Vec::new();
    packet.udp(2630, 2630).write(&mut frame, payload).unwrap();
    let tags = tags.iter().flat_map(|tag| [tag.to_be_bytes(), [0, 7]]);
    frame.splice(12..12, tags.flatten());
    frame
}

/// Frames as a switch may send them, at an interface without an address.
#[test]
fn tags_are_skipped_and_damaged_datagrams_are_dropped() {
    if !paths() || !as_root_of_its_own(name!()) {
        return;
    }
    let host = Namespace::new().unwrap();
    let tap = host.run(|| Tap::new("eth1")).unwrap().unwrap();
    let url: Url = SHOWN.parse().unwrap();
    let open_in = || url.open_in(&InOptions::default(), &Run::silent());
    let error = host.run(|| open_in().err().unwrap().to_string()).unwrap();
    assert!(
        error.starts_with("cannot capture packets on eth1 (bind): Network is down"),
        "{error}"
    );

    host.command("ip", &["link", "set", "eth1", "up"]).unwrap();
    let mut shown = host.run(|| open_in().unwrap()).unwrap();
    let promiscuous = || {
        let shown = host.command("ip", &["-d", "-o", "link", "show", "eth1"]);
        shown.unwrap().contains("promiscuity 1")
    };
    assert!(promiscuous());
    let write = |frame: &[u8]| assert!(tap.write(&[&[0; 10], frame].concat()));
    let destinations: [IpAddr; 2] = ["192.0.2.2", "2001:db8::2"].map(|it| it.parse().unwrap());
    let sent = payloads(1400, 6);
    let tags: [&[u16]; 3] = [&[], &[0x8100], &[0x88a8, 0x8100]];
    let kinds = tags
        .iter()
        .flat_map(|tags| destinations.map(|to| (*tags, to)));
    for ((tags, to), payload) in kinds.zip(&sent) {
        let mut damaged = frame(tags, to, payload);
        *damaged.last_mut().unwrap() ^= 1;
        write(&damaged);
        write(&frame(tags, to, payload));
    }
    assert_eq!(collect(&mut *shown, 6).0, sent);
    assert_eq!(shown.drops().unwrap(), 6);
    // The interface goes and returns.
    for state in ["down", "up"] {
        host.command("ip", &["link", "set", "eth1", state]).unwrap();
        shown.receive(Nanos(1)).unwrap();
    }
    write(&frame(&[], destinations[0], &sent[0]));
    assert_eq!(collect(&mut *shown, 1).0, sent[..1]);
    drop(shown);
    assert!(!promiscuous());
}
