//! Datagrams across a wire between two network namespaces.

use std::net::{IpAddr, SocketAddr};

use crate::datagrams::{collect, payloads};
use evlbi_core::time::Nanos;
use evlbi_net::cpu;
use evlbi_net::host::Counters;
use evlbi_net::run::Run;
use evlbi_net::transport::{Close, Head, OutOptions, Pieces, Ready, Url};
use evlbi_net::udp::{
    Fragmentation, Listen, Received, Receiver, ReceiverOptions, Sender, SenderOptions,
};
use evlbi_testkit::netns::{End, Pair, Wire, pair, pair_with, tc};
use evlbi_testkit::{buffer, name, until};

pub fn receiver(end: &End, listen: impl Into<Listen>, options: &ReceiverOptions) -> Receiver {
    let listen = [listen.into()];
    end.namespace
        .run(|| Receiver::bind(&listen, options).unwrap())
        .unwrap()
}

pub fn sender(end: &End, to: SocketAddr, options: &SenderOptions) -> Sender {
    end.namespace
        .run(|| Sender::connect(to, options).unwrap())
        .unwrap()
}

pub fn addresses(pair: &Pair) -> [SocketAddr; 2] {
    [IpAddr::V4(pair.far.v4), IpAddr::V6(pair.far.v6)].map(|ip| SocketAddr::new(ip, 2630))
}

pub fn send(sender: &mut Sender, datagrams: &[Vec<u8>]) -> usize {
    // The wire keeps the order of datagrams that leave from one core.
    cpu::pin(cpu::allowed_cores().unwrap()[0]).unwrap();
    let mut pieces = Pieces::default();
    let mut train = pieces.begin();
    for datagram in datagrams {
        train.push(Head::new(), datagram);
    }
    sender.send(&train).unwrap()
}

fn round_trips(pair: &Pair, join: bool) {
    for to in addresses(pair) {
        let options = ReceiverOptions {
            join,
            ..ReceiverOptions::default()
        };
        let mut receiver = receiver(&pair.far, to, &options);
        let mut sender = sender(&pair.near, to, &SenderOptions::default());
        for size in [1, 100, 1000, 1452, 1453, 1472, 1473, 4000] {
            // Fragmented datagrams take more room.
            let holds = buffer::holds(size) / 2;
            for count in [1, 2, 44, 45, 100] {
                if count > holds {
                    continue;
                }
                let sent = payloads(size, count);
                assert_eq!(send(&mut sender, &sent), count);
                assert_eq!(collect(&mut receiver, count), sent, "{count} of {size}");
            }
        }
        assert_eq!(sender.counts().not_sent(), 0);
        assert_eq!(receiver.drops().unwrap(), 0);
    }
}

#[test]
fn datagrams_cross_whole_and_longer_ones_than_the_mtu_go_singly() {
    let Some(pair) = pair(&Wire::default(), name!()) else {
        return;
    };
    round_trips(&pair, true);
    round_trips(&pair, false);
}

#[test]
fn datagrams_cross_a_wire_without_segmentation() {
    let wire = Wire {
        segmentation: false,
        ..Wire::default()
    };
    let Some(pair) = pair(&wire, name!()) else {
        return;
    };
    round_trips(&pair, true);
}

#[test]
fn datagrams_longer_than_the_mtu_are_sent_singly_or_refused() {
    let Some(pair) = pair(&Wire::default(), name!()) else {
        return;
    };
    for (to, longest) in addresses(&pair).into_iter().zip([1472, 1452]) {
        let mut receiver = receiver(&pair.far, to, &ReceiverOptions::default());
        let mut sender = sender(&pair.near, to, &SenderOptions::default());
        assert_eq!(sender.path_mtu().unwrap(), 1500);
        send(&mut sender, &payloads(longest, 10));
        assert_eq!(sender.counts().messages, 1);
        send(&mut sender, &payloads(longest + 1, 10));
        assert_eq!(sender.counts().messages, 11);
        assert!(sender.joins(longest) && !sender.joins(longest + 1));
        collect(&mut receiver, 20);

        let options = SenderOptions {
            fragmentation: Fragmentation::Forbid,
            ..SenderOptions::default()
        };
        let mut strict = self::sender(&pair.near, to, &options);
        assert_eq!(send(&mut strict, &payloads(longest + 1, 10)), 0);
        assert_eq!(strict.counts().too_long, 10);
        assert_eq!(send(&mut strict, &payloads(longest, 10)), 10);
        collect(&mut receiver, 10);
    }
}

#[test]
fn a_filter_on_a_wire_without_segmentation_counts_datagrams() {
    let wire = Wire {
        segmentation: false,
        ..Wire::default()
    };
    let Some(pair) = pair_with(&["nft"], &wire, name!()) else {
        return;
    };
    let rules = "add table inet t; \
        add chain inet t in { type filter hook input priority 0; }; \
        add rule inet t in udp dport 2630 numgen inc mod 10 0 counter drop";
    pair.far.namespace.command("nft", &[rules]).unwrap();
    let to = addresses(&pair)[0];
    let options = ReceiverOptions {
        join: false,
        ..ReceiverOptions::default()
    };
    let mut receiver = receiver(&pair.far, to, &options);
    let mut sender = sender(&pair.near, to, &SenderOptions::default());
    let tenth = (buffer::holds(1200) / 10).min(100);
    let sent = payloads(1200, 10 * tenth);
    assert_eq!(send(&mut sender, &sent), 10 * tenth);
    assert!(sender.counts().messages < tenth as u64);
    let kept: Vec<Vec<u8>> = sent
        .into_iter()
        .enumerate()
        .filter(|(n, _)| n % 10 != 0)
        .map(|(_, datagram)| datagram)
        .collect();
    assert_eq!(collect(&mut receiver, 9 * tenth), kept);
    let rules = pair
        .far
        .namespace
        .command("nft", &["list ruleset"])
        .unwrap();
    let counted = format!("counter packets {tenth} ");
    assert!(rules.contains(&counted), "{rules}");
}

#[test]
fn a_filter_at_the_sender_is_counted() {
    let Some(pair) = pair_with(&["nft"], &Wire::default(), name!()) else {
        return;
    };
    let to = addresses(&pair)[0];
    let mut receiver = receiver(&pair.far, to, &ReceiverOptions::default());
    let mut sender = sender(&pair.near, to, &SenderOptions::default());
    let rules = "add table inet t; \
        add chain inet t out { type filter hook output priority 0; }; \
        add rule inet t out udp dport 2630 drop";
    let nft = |command| pair.near.namespace.command("nft", &[command]).unwrap();
    nft(rules);
    assert_eq!(send(&mut sender, &payloads(1000, 70)), 0);
    assert_eq!(sender.counts().forbidden, 70);
    nft("flush ruleset");
    assert_eq!(send(&mut sender, &payloads(1000, 70)), 70);
    collect(&mut receiver, 70);
}

#[test]
fn a_missing_link_at_the_sender_is_counted() {
    let Some(pair) = pair(&Wire::default(), name!()) else {
        return;
    };
    let to = addresses(&pair)[0];
    let mut receiver = receiver(&pair.far, to, &ReceiverOptions::default());
    let mut sender = sender(&pair.near, to, &SenderOptions::default());
    assert_eq!(send(&mut sender, &payloads(1000, 70)), 70);
    collect(&mut receiver, 70);

    let down = ["link", "set", pair.near.device, "down"];
    pair.near.namespace.command("ip", &down).unwrap();
    assert_eq!(send(&mut sender, &payloads(1000, 70)), 0);
    assert_eq!(sender.counts().unreachable, 70);
    let up = ["link", "set", pair.near.device, "up"];
    pair.near.namespace.command("ip", &up).unwrap();
    assert_eq!(send(&mut sender, &payloads(1000, 70)), 70);
    collect(&mut receiver, 70);
}

#[test]
fn multicast_crosses_to_those_who_joined() {
    let Some(pair) = pair(&Wire::default(), name!()) else {
        return;
    };
    let groups: [(SocketAddr, Option<IpAddr>, Option<IpAddr>); 4] = [
        ("239.255.77.1:2630".parse().unwrap(), None, None),
        ("[ff15::77:1]:2630".parse().unwrap(), None, None),
        (
            "232.1.77.1:2630".parse().unwrap(),
            Some(pair.near.v4.into()),
            Some("10.77.0.99".parse().unwrap()),
        ),
        (
            "[ff35::77:1]:2630".parse().unwrap(),
            Some(pair.near.v6.into()),
            Some("fd77::99".parse().unwrap()),
        ),
    ];
    for (group, source, other) in groups {
        let listen = |source| Listen {
            address: group,
            source,
            interface: Some(pair.far.device.parse().unwrap()),
        };
        let options = ReceiverOptions::default();
        let mut first = receiver(&pair.far, listen(source), &options);
        let mut second = receiver(&pair.far, listen(source), &options);
        let mut deaf = other.map(|other| receiver(&pair.far, listen(Some(other)), &options));
        let mut local = receiver(
            &pair.near,
            Listen {
                interface: Some(pair.near.device.parse().unwrap()),
                ..listen(source)
            },
            &options,
        );
        let options = SenderOptions {
            source: Some(SocketAddr::new(pair.near.address_like(group.ip()), 0)),
            interface: Some(pair.near.device.parse().unwrap()),
            hops: Some(4),
            loopback: false,
            ..SenderOptions::default()
        };
        let mut quiet = sender(&pair.near, group, &options);
        let sent = payloads(1300, 90);
        assert_eq!(send(&mut quiet, &sent), 90);
        assert_eq!(collect(&mut first, 90), sent, "{group}");
        assert_eq!(collect(&mut second, 90), sent, "{group}");
        let mut received = Received::new();
        assert_eq!(local.receive(&mut received).unwrap(), 0);
        if let Some(deaf) = &mut deaf {
            assert_eq!(deaf.receive(&mut received).unwrap(), 0);
        }

        let options = SenderOptions {
            loopback: true,
            ..options
        };
        let mut heard = sender(&pair.near, group, &options);
        assert_eq!(send(&mut heard, &sent), 90);
        assert_eq!(collect(&mut local, 90), sent, "{group}");
    }
}

#[test]
fn link_local_addresses_work_with_an_interface() {
    let Some(pair) = pair(&Wire::default(), name!()) else {
        return;
    };
    let add = [
        "addr",
        "add",
        "fe80::77/64",
        "dev",
        pair.far.device,
        "nodad",
    ];
    pair.far.namespace.command("ip", &add).unwrap();
    let add = [
        "addr",
        "add",
        "fe80::76/64",
        "dev",
        pair.near.device,
        "nodad",
    ];
    pair.near.namespace.command("ip", &add).unwrap();
    let to: SocketAddr = "[fe80::77]:2630".parse().unwrap();
    let listen = Listen {
        interface: Some(pair.far.device.parse().unwrap()),
        ..to.into()
    };
    let mut receiver = receiver(&pair.far, listen, &ReceiverOptions::default());
    let options = SenderOptions {
        interface: Some(pair.near.device.parse().unwrap()),
        ..SenderOptions::default()
    };
    let mut sender = sender(&pair.near, to, &options);
    let sent = payloads(900, 10);
    assert_eq!(send(&mut sender, &sent), 10);
    assert_eq!(collect(&mut receiver, 10), sent);
}

#[test]
fn losses_of_a_stalled_reader_match_the_kernels_count() {
    let wire = Wire {
        segmentation: false,
        ..Wire::default()
    };
    let Some(pair) = pair(&wire, name!()) else {
        return;
    };
    let read = || {
        pair.far
            .namespace
            .run(|| Counters::read().unwrap())
            .unwrap()
    };
    for to in addresses(&pair) {
        let options = ReceiverOptions {
            buffer: 100 << 10,
            join: false,
            ..ReceiverOptions::default()
        };
        let mut receiver = receiver(&pair.far, to, &options);
        let mut sender = sender(&pair.near, to, &SenderOptions::default());
        let before = read();
        // More than the buffer holds, but less than the kernel's queue before it.
        assert_eq!(send(&mut sender, &payloads(1200, 400)), 400);
        // The wire delivers in a softirq, perhaps after the call that sent.
        until("the buffer overflows", || receiver.drops().unwrap() > 0);
        let mut batches = Received::new();
        let mut received = 0;
        until("all has arrived or been dropped", || {
            receiver.receive(&mut batches).unwrap();
            received += batches.batch().datagrams().count() as u64;
            received + receiver.drops().unwrap() == 400
        });
        let drops = receiver.drops().unwrap();
        assert_eq!(received + drops, 400);
        let counted = read().since(&before);
        let counted = if to.is_ipv4() {
            counted.udp
        } else {
            counted.udp6
        };
        assert_eq!(counted.receive_buffer_errors, drops);
        assert_eq!(counted.in_datagrams, received);
        send(&mut sender, &payloads(1200, 1));
        collect(&mut receiver, 1);
        assert_eq!(receiver.overflow(), drops);
    }
}

/// The caller waits for a full socket, not the transport; its datagrams are dropped if that takes too long.
#[test]
fn a_full_socket_holds_nobody_up() {
    const TRAIN: usize = 10;
    let Some(pair) = pair(&Wire::default(), name!()) else {
        return;
    };
    let bucket = "qdisc add dev DEVICE root tbf rate 1mbit burst 20kb limit 100mb";
    let bucket = bucket.replace("DEVICE", pair.near.device);
    if !tc(&pair.near, &bucket.split(' ').collect::<Vec<&str>>()) {
        return;
    }
    let far = SocketAddr::new(pair.far.v4.into(), 2630);
    let _far = receiver(&pair.far, far, &ReceiverOptions::default());
    let to: Url = format!("udp://{far}").parse().unwrap();
    let with = OutOptions {
        buffer: Some(64 << 10),
        ..OutOptions::default()
    };
    let open = || to.open_out(&with, &Run::silent()).unwrap();
    let mut out = pair.near.namespace.run(open).unwrap();
    let (mut pieces, mut offered, begun) = (Pieces::default(), 0, Nanos(1));
    until("a full socket", || {
        let is_full = matches!(out.ready(begun), Ready::OnEvent);
        if !is_full {
            let mut train = pieces.begin();
            (0..TRAIN).for_each(|_| train.push(Head::new(), &[7; 1000]));
            out.send(&train, begun).unwrap();
            offered += TRAIN as u64;
        }
        is_full
    });
    assert_eq!(out.counts().not_sent(), 0);
    // The caller tells the transport the time.
    let later = begun.plus(Nanos::SECOND);
    assert_eq!(out.drive(later).unwrap(), None);
    assert!(matches!(out.ready(later), Ready::Now(_)));
    assert!(matches!(out.close(later).unwrap(), Close::Done));
    let counts = out.counts();
    assert_eq!(counts.sent + counts.not_sent(), offered);
}
