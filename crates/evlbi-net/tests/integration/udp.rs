//! Datagrams through real sockets on the loopback interface.

use evlbi_net::clock::Clock;
use evlbi_net::cpu;
use evlbi_net::transport::{Head, Peer, Pieces};
use evlbi_net::udp::{
    Fragmentation, Listen, OpenError, Received, Receiver, ReceiverOptions, Sender, SenderOptions,
};
use socket2::{Domain, Socket, Type};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::datagrams::{collect, payloads};
use evlbi_testkit::until::WATCHDOG;
use evlbi_testkit::{buffer, need, until};

const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const LOOPBACK_V6: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 0);

fn receiver(address: SocketAddr, options: &ReceiverOptions) -> (Receiver, SocketAddr) {
    let receiver = Receiver::bind(&[address.into()], options).unwrap();
    let bound = receiver.local_addresses().next().unwrap();
    (receiver, bound)
}

/// Sends each of `datagrams` with its first bytes as the head and the rest as the body.
fn send(sender: &mut Sender, datagrams: &[Vec<u8>]) -> usize {
    stay();
    let mut pieces = Pieces::default();
    let mut train = pieces.begin();
    for datagram in datagrams {
        let (head, body) = datagram.split_at(datagram.len().min(8));
        train.push(Head::from(head), body);
    }
    sender.send(&train).unwrap()
}

/// Waits until everything that this thread has sent is in the sockets or dropped. Loopback keeps the order of datagrams from one core,
/// to which [`stay`] restricts the thread; a busy kernel delivers them a moment later.
fn settle() {
    let marker = UdpSocket::bind(LOOPBACK).unwrap();
    marker.set_read_timeout(Some(WATCHDOG)).unwrap();
    marker.send_to(b"!", marker.local_addr().unwrap()).unwrap();
    marker.recv(&mut [0; 1]).expect("loopback brings it");
}

/// Restricts this thread to one core.
fn stay() {
    cpu::pin(cpu::allowed_cores().unwrap()[0]).unwrap();
}

fn round_trip(address: SocketAddr, max_segments: usize, join: bool, size: usize, count: usize) {
    let options = ReceiverOptions {
        join,
        ..ReceiverOptions::default()
    };
    let (mut receiver, bound) = receiver(address, &options);
    let options = SenderOptions {
        max_segments,
        ..SenderOptions::default()
    };
    let mut sender = Sender::connect(bound, &options).unwrap();
    let sent = payloads(size, count);
    assert_eq!(send(&mut sender, &sent), count);
    assert_eq!(
        collect(&mut receiver, count),
        sent,
        "{count} of {size} bytes"
    );
    let counts = sender.counts();
    assert_eq!(counts.sent, count as u64);
    assert_eq!(counts.bytes, (size * count) as u64);
    assert_eq!(counts.not_sent(), 0);
    assert_eq!(receiver.drops().unwrap(), 0);
}

#[test]
fn all_sizes_and_counts_arrive_as_they_were_sent() {
    for (max_segments, join) in [(64, true), (64, false), (1, true), (5, true)] {
        for size in [
            0, 1, 2, 7, 8, 9, 100, 511, 1000, 1472, 4096, 8032, 9000, 32_753, 65_507,
        ] {
            let holds = buffer::holds(size);
            for count in [1, 2, 3, 44, 45, 64, 65, 200] {
                if size * count <= 4 << 20 && count <= holds {
                    round_trip(LOOPBACK, max_segments, join, size, count);
                }
            }
        }
    }
}

#[test]
fn the_same_over_ipv6() {
    if !need::ipv6() {
        return;
    }
    for size in [0, 1, 8, 1452, 8224, 65_527] {
        // IPv6 datagrams take at least as much as IPv4 ones.
        let holds = buffer::holds(size.min(65_507)) / 2;
        for count in [1, 45, 130] {
            if size * count <= 4 << 20 && count <= holds {
                round_trip(LOOPBACK_V6, 64, true, size, count);
            }
        }
    }
}

#[test]
fn sizes_mixed_in_a_burst_keep_their_order_and_ends() {
    let sizes = [
        100, 100, 100, 60, 100, 0, 0, 100, 200, 200, 1, 1, 1, 9000, 8999, 9000, 9000, 65_507, 3,
    ];
    let sent: Vec<Vec<u8>> = sizes
        .iter()
        .enumerate()
        .map(|(n, &size)| vec![n as u8; size])
        .collect();
    let (mut receiver, bound) = receiver(LOOPBACK, &ReceiverOptions::default());
    let mut sender = Sender::connect(bound, &SenderOptions::default()).unwrap();
    assert_eq!(send(&mut sender, &sent), sizes.len());
    assert_eq!(collect(&mut receiver, sizes.len()), sent);
}

#[test]
fn datagrams_travel_joined_and_single_packets_do_not() {
    let (mut receiver, bound) = receiver(LOOPBACK, &ReceiverOptions::default());
    let count = buffer::holds(1472).min(400);
    let sent = payloads(1472, count);
    let mut sender = Sender::connect(bound, &SenderOptions::default()).unwrap();
    assert!(sender.joins(1472));
    send(&mut sender, &sent);
    let counts = sender.counts();
    // One IPv4 packet holds at most 44 datagrams of 1472 bytes.
    assert_eq!(
        (counts.messages, counts.calls),
        (count.div_ceil(44) as u64, 1)
    );
    collect(&mut receiver, count);

    let options = SenderOptions {
        max_segments: 1,
        ..SenderOptions::default()
    };
    let mut single = Sender::connect(bound, &options).unwrap();
    assert!(!single.joins(1472));
    send(&mut single, &sent);
    assert_eq!(single.counts().messages, count as u64);
    collect(&mut receiver, count);
}

#[test]
fn a_kernel_that_will_not_segment_gets_single_datagrams() {
    let (mut receiver, bound) = receiver(LOOPBACK, &ReceiverOptions::default());
    let mut sender = Sender::connect(bound, &SenderOptions::default()).unwrap();
    // Without checksums the kernel refuses to segment.
    let socket = socket2::SockRef::from(&sender);
    let no_check: i32 = 1;
    // SAFETY: the pointer and length describe an int that lives through the call.
    let result = unsafe {
        use std::os::fd::AsRawFd;
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NO_CHECK,
            (&raw const no_check).cast(),
            4,
        )
    };
    assert_eq!(result, 0);
    let sent = payloads(1000, 100);
    assert_eq!(send(&mut sender, &sent), 100);
    assert_eq!(collect(&mut receiver, 100), sent);
    assert!(!sender.joins(1000));
    assert_eq!(sender.counts().messages, 100);
    assert_eq!(send(&mut sender, &sent), 100);
    assert_eq!(collect(&mut receiver, 100), sent);
}

#[test]
fn an_absent_receiver_does_not_stop_the_flow() {
    for max_segments in [64, 1] {
        // A socket that accepts datagrams only from another sender: for all others its port is closed.
        let stranger = UdpSocket::bind(LOOPBACK).unwrap();
        let deaf = UdpSocket::bind(LOOPBACK).unwrap();
        deaf.connect(stranger.local_addr().unwrap()).unwrap();
        deaf.set_read_timeout(Some(WATCHDOG)).unwrap();
        let address = deaf.local_addr().unwrap();
        let options = SenderOptions {
            max_segments,
            ..SenderOptions::default()
        };
        let mut sender = Sender::connect(address, &options).unwrap();
        for _ in 0..5 {
            assert_eq!(send(&mut sender, &payloads(500, 100)), 100);
        }
        until("a refusal arrives", || {
            sender.drain_back_traffic();
            sender.counts().refused > 0
        });
        let counts = *sender.counts();
        assert_eq!((counts.sent, counts.not_sent()), (500, 0));
        assert!(counts.refused > 0, "{counts:?}");

        // It listens now.
        deaf.connect(sender.local_address().unwrap()).unwrap();
        sender.drain_back_traffic();
        let sent = payloads(500, 3);
        assert_eq!(send(&mut sender, &sent), 3);
        let mut buffer = [0; 501];
        for datagram in sent {
            let length = deaf.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..length], datagram);
        }
    }
}

#[test]
fn datagrams_that_cannot_leave_are_counted() {
    let (mut receiver, bound) = receiver(LOOPBACK, &ReceiverOptions::default());
    let mut sender = Sender::connect(bound, &SenderOptions::default()).unwrap();
    let good = vec![1u8; 1000];
    let long = vec![2u8; 65_508];
    let sent = send(&mut sender, &[good.clone(), long, good.clone()]);
    assert_eq!(sent, 2);
    assert_eq!(sender.counts().too_long, 1);
    assert_eq!(collect(&mut receiver, 2), [good.clone(), good]);
}

#[test]
fn what_readers_send_back_is_counted_and_ignored() {
    let reader = UdpSocket::bind(LOOPBACK).unwrap();
    let mut sender =
        Sender::connect(reader.local_addr().unwrap(), &SenderOptions::default()).unwrap();
    for _ in 0..100 {
        reader
            .send_to(b"jive5ab", sender.local_address().unwrap())
            .unwrap();
    }
    let stranger = UdpSocket::bind(LOOPBACK).unwrap();
    stranger
        .send_to(b"?", sender.local_address().unwrap())
        .unwrap();
    until("all of it arrives", || {
        sender.drain_back_traffic();
        sender.counts().back_datagrams >= 100
    });
    sender.drain_back_traffic();
    assert_eq!(sender.counts().back_datagrams, 100);
    assert_eq!(send(&mut sender, &payloads(100, 1)), 1);
}

#[test]
fn the_route_reports_its_mtu() {
    let sender = Sender::connect("127.0.0.1:9".parse().unwrap(), &SenderOptions::default());
    assert_eq!(sender.unwrap().path_mtu().unwrap(), 65_535);
}

#[test]
fn the_route_of_ipv6_reports_its_mtu() {
    if !need::ipv6() {
        return;
    }
    let sender = Sender::connect("[::1]:9".parse().unwrap(), &SenderOptions::default());
    assert_eq!(sender.unwrap().path_mtu().unwrap(), 65_536);
}

/// Of both families, sent to a socket of one and of both: not ECN-capable, capable, and marked on the way, as a router does.
#[test]
fn marks_of_congestion_are_read() {
    let options = ReceiverOptions {
        marks: true,
        ..ReceiverOptions::default()
    };
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    for (at, to) in [(LOOPBACK, LOOPBACK), (any, LOOPBACK), (any, LOOPBACK_V6)] {
        let mut receiver = Receiver::bind(&[at.into()], &options).unwrap();
        let port = receiver.local_addresses().next().unwrap().port();
        let to = SocketAddr::new(to.ip(), port);
        for marks in [false, true] {
            let options = SenderOptions {
                marks,
                ..SenderOptions::default()
            };
            let mut sender = Sender::connect(to, &options).unwrap();
            send(&mut sender, &payloads(700, 50));
        }
        let local = SocketAddr::new(to.ip(), 0);
        let marked = Socket::new(Domain::for_address(to), Type::DGRAM, None).unwrap();
        match to {
            SocketAddr::V4(_) => marked.set_tos_v4(3).unwrap(),
            SocketAddr::V6(_) => marked.set_tclass_v6(3).unwrap(),
        }
        marked.bind(&local.into()).unwrap();
        marked.send_to(&[7; 700], &to.into()).unwrap();
        let (mut received, mut seen) = (Received::new(), [0; 4]);
        while seen.iter().sum::<u32>() < 101 {
            assert!(receiver.wait(WATCHDOG).unwrap());
            receiver.receive(&mut received).unwrap();
            for datagram in received.batch().datagrams() {
                seen[usize::from(datagram.ecn)] += 1;
            }
        }
        assert_eq!(seen, [50, 0, 50, 1], "{to}");
    }
}

#[test]
fn datagrams_know_their_source_their_port_and_their_time() {
    let options = ReceiverOptions {
        stamps: true,
        ..ReceiverOptions::default()
    };
    let mut receiver = Receiver::bind(&[LOOPBACK.into(), LOOPBACK.into()], &options).unwrap();
    let ports: Vec<SocketAddr> = receiver.local_addresses().collect();
    let before = Clock::real().utc();
    let mut senders: Vec<Sender> = ports
        .iter()
        .map(|&port| Sender::connect(port, &SenderOptions::default()).unwrap())
        .collect();
    for sender in &mut senders {
        send(sender, &payloads(700, 50));
    }
    let mut received = Received::new();
    let mut seen = [0; 2];
    while seen != [50, 50] {
        assert!(receiver.wait(WATCHDOG).unwrap());
        receiver.receive(&mut received).unwrap();
        for datagram in received.batch().datagrams() {
            let source = senders[datagram.port].local_address().unwrap();
            assert_eq!(datagram.source, Peer::Socket(source));
            assert!(!datagram.truncated);
            let stamp = datagram.stamp.unwrap().as_nanos();
            assert!((before.into()..=Clock::real().utc().into()).contains(&stamp));
            seen[datagram.port] += 1;
        }
    }
    assert_eq!(receiver.receive(&mut received).unwrap(), 0);
    assert_eq!(received.batch().datagrams().count(), 0);
}

#[test]
fn a_busy_port_does_not_shut_out_another() {
    let options = ReceiverOptions {
        join: false,
        ..ReceiverOptions::default()
    };
    stay();
    let mut receiver = Receiver::bind(&[LOOPBACK.into(), LOOPBACK.into()], &options).unwrap();
    let ports: Vec<SocketAddr> = receiver.local_addresses().collect();
    for &port in &ports {
        let mut sender = Sender::connect(port, &SenderOptions::default()).unwrap();
        send(&mut sender, &payloads(700, 50));
    }
    settle();
    let mut received = Received::new();
    let mut first = Vec::new();
    for _ in 0..4 {
        receiver.receive(&mut received).unwrap();
        first.push(received.batch().datagrams().next().unwrap().port);
    }
    assert_eq!(first, [0, 1, 0, 1]);
}

/// The kernel's account of messages waiting in the sockets is at least that of the batches that hold them afterwards.
#[test]
fn what_waits_is_known() {
    stay();
    for (size, join) in [(0, false), (1, false), (1400, false), (1400, true)] {
        let options = ReceiverOptions {
            join,
            ..ReceiverOptions::default()
        };
        let (mut receiver, bound) = receiver(LOOPBACK, &options);
        assert_eq!(receiver.queued().unwrap(), 0);
        let mut sender = Sender::connect(bound, &SenderOptions::default()).unwrap();
        send(&mut sender, &payloads(size, 150));
        settle();
        let queued = receiver.queued().unwrap();
        let mut received = Received::new();
        let (mut count, mut memory) = (0, 0);
        while receiver.receive(&mut received).unwrap() > 0 {
            count += received.batch().datagrams().count();
            memory += received.batch().taken;
        }
        assert_eq!(count, 150);
        assert!(0 < memory && memory <= queued, "{memory} of {queued}");
    }
}

#[test]
fn any_address_of_both_families_hears_ipv4_as_ipv4() {
    if !need::ipv6() {
        return;
    }
    let (mut receiver, bound) = receiver("[::]:0".parse().unwrap(), &ReceiverOptions::default());
    let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), bound.port());
    let mut sender = Sender::connect(to, &SenderOptions::default()).unwrap();
    send(&mut sender, &payloads(10, 1));
    assert!(receiver.wait(WATCHDOG).unwrap());
    let mut received = Received::new();
    receiver.receive(&mut received).unwrap();
    let source = received.batch().datagrams().next().unwrap().source;
    assert_eq!(source, Peer::Socket(sender.local_address().unwrap()));
}

#[test]
fn a_small_buffer_is_reported_with_its_remedy() {
    let (receiver, _) = receiver(LOOPBACK, &ReceiverOptions::default());
    let buffer = receiver.buffer().unwrap();
    assert_eq!(buffer.asked, 64 << 20);
    match &buffer.remedy {
        None => assert!(buffer.granted >= buffer.asked),
        Some(remedy) => {
            assert!(buffer.granted < buffer.asked);
            assert!(remedy.contains("sysctl -w net.core.rmem_max=67108864"));
        }
    }
}

#[test]
fn losses_of_a_stalled_reader_are_known_at_once_and_with_the_next_datagram() {
    stay();
    for join in [true, false] {
        let options = ReceiverOptions {
            buffer: 64 << 10,
            join,
            ..ReceiverOptions::default()
        };
        let (mut receiver, bound) = receiver(LOOPBACK, &options);
        let options = SenderOptions {
            max_segments: 1,
            ..SenderOptions::default()
        };
        let mut sender = Sender::connect(bound, &options).unwrap();
        assert_eq!(send(&mut sender, &payloads(1000, 1000)), 1000);
        settle();
        let drops = receiver.drops().unwrap();
        assert!(drops > 0);
        assert_eq!(receiver.overflow(), 0);

        let kept = 1000 - drops as usize;
        let received = collect(&mut receiver, kept);
        assert_eq!(received, payloads(1000, 1000)[..kept]);
        send(&mut sender, &payloads(1000, 1));
        collect(&mut receiver, 1);
        assert_eq!(receiver.overflow(), drops);
        assert_eq!(receiver.drops().unwrap(), drops);
    }
}

/// Returns a group on loopback.
fn group(address: &str, port: u16) -> Listen {
    let address = SocketAddr::new(address.parse().unwrap(), port);
    Listen {
        interface: Some("lo".parse().unwrap()),
        ..address.into()
    }
}

/// Receives a group at a port that the kernel chooses.
fn group_receiver(listen: &Listen) -> (Receiver, u16) {
    let receiver =
        Receiver::bind(std::slice::from_ref(listen), &ReceiverOptions::default()).unwrap();
    let port = receiver.local_addresses().next().unwrap().port();
    (receiver, port)
}

fn multicast_sender(group: &Listen) -> Sender {
    let options = SenderOptions {
        source: Some(LOOPBACK),
        interface: group.interface.clone(),
        hops: Some(3),
        fragmentation: Fragmentation::Forbid,
        ..SenderOptions::default()
    };
    Sender::connect(group.address, &options).unwrap()
}

#[test]
fn multicast_reaches_every_receiver_that_joined() {
    let (mut first, port) = group_receiver(&group("239.255.77.1", 0));
    let group = group("239.255.77.1", port);
    let (mut second, _) = group_receiver(&group);
    let mut sender = multicast_sender(&group);
    let sent = payloads(1200, 60);
    assert_eq!(send(&mut sender, &sent), 60);
    assert_eq!(collect(&mut first, 60), sent);
    assert_eq!(collect(&mut second, 60), sent);
}

#[test]
fn source_specific_multicast_hears_its_source_alone() {
    let from = |source: &str, port| Listen {
        source: Some(source.parse().unwrap()),
        ..group("232.1.77.2", port)
    };
    let (mut theirs, port) = group_receiver(&from("127.0.0.1", 0));
    let (mut others, _) = group_receiver(&from("127.0.0.2", port));
    stay();
    let mut sender = multicast_sender(&group("232.1.77.2", port));
    let sent = payloads(100, 5);
    assert_eq!(send(&mut sender, &sent), 5);
    assert_eq!(collect(&mut theirs, 5), sent);
    settle();
    // Datagrams that have not arrived by now never will.
    assert_eq!(others.receive(&mut Received::new()).unwrap(), 0);
}

#[test]
fn errors_name_the_requested_option() {
    let (_holder, bound) = receiver(LOOPBACK, &ReceiverOptions::default());
    let taken = Receiver::bind(&[bound.into()], &ReceiverOptions::default());
    assert!(matches!(taken, Err(OpenError::Bind { address, .. }) if address == bound));

    let options = SenderOptions {
        source: Some(LOOPBACK_V6),
        ..SenderOptions::default()
    };
    let mixed = Sender::connect(bound, &options);
    assert!(matches!(mixed, Err(OpenError::Families(..))));

    let nowhere = Listen {
        interface: Some("no-such-interface".parse().unwrap()),
        ..group("239.255.77.3", 0)
    };
    let error = Receiver::bind(&[nowhere], &ReceiverOptions::default()).unwrap_err();
    assert!(error.to_string().contains("no-such-interface"), "{error}");
}
