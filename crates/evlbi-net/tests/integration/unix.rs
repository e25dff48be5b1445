//! Datagrams over Unix sockets.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use evlbi_core::deframe::Wanted;
use evlbi_core::time::Nanos;
use evlbi_net::cpu::Waiting;
use evlbi_net::receive::{self, Ended, Numbers, ReceiveOptions};
use evlbi_net::run::Run;
use evlbi_net::transport::{
    Close, Head, InOptions, Incoming, OpenError, OutOptions, Outgoing, Peer, Pieces, Ready, Url,
};
use evlbi_testkit::{Room, until};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::datagrams::payloads;

/// Maximum wait for an event before the next poll.
const SOON: Nanos = Nanos(100_000_000);

fn url(room: &Room) -> Url {
    format!("unix://{}", room.path("s")).parse().unwrap()
}

fn incoming(at: &Url) -> Box<dyn Incoming> {
    try_incoming(at).unwrap()
}

fn try_incoming(at: &Url) -> Result<Box<dyn Incoming>, OpenError> {
    let transport = at.transport();
    transport.open_in(at, &InOptions::default(), &Run::silent())
}

fn outgoing(to: &Url) -> Box<dyn Outgoing> {
    let transport = to.transport();
    let opened = transport.open_out(to, &OutOptions::default(), &Run::silent());
    opened.unwrap()
}

/// Sends datagrams as one burst, each with its first bytes as the head and the rest as the body.
fn send(outgoing: &mut dyn Outgoing, datagrams: &[Vec<u8>]) {
    let mut pieces = Pieces::default();
    let mut train = pieces.begin();
    for datagram in datagrams {
        let (head, body) = datagram.split_at(datagram.len().min(8));
        train.push(Head::from(head), body);
    }
    outgoing.send(&train, Nanos(0)).unwrap();
}

/// Returns the datagrams that have arrived.
fn take(incoming: &mut dyn Incoming) -> Vec<Vec<u8>> {
    let batch = incoming.receive(Nanos(0)).unwrap();
    let datagrams = batch.datagrams();
    datagrams.map(|datagram| datagram.bytes.to_vec()).collect()
}

/// Receives everything until the sender has finished.
fn take_all(incoming: &mut dyn Incoming, outgoing: &mut dyn Outgoing) -> Vec<Vec<u8>> {
    let mut datagrams = Vec::new();
    loop {
        let is_through = outgoing.close(Nanos(0)).unwrap() == Close::Done;
        let more = take(incoming);
        if is_through && more.is_empty() {
            return datagrams;
        }
        datagrams.extend(more);
    }
}

#[test]
fn all_sizes_and_counts_arrive_as_they_were_sent() {
    let room = Room::new();
    let at = url(&room);
    let mut incoming = incoming(&at);
    let mut outgoing = outgoing(&at);
    let mut all = 0;
    for size in [1, 7, 8, 9, 100, 1472, 8040, 40_000, 65_507] {
        for count in [1, 2, 16, 64, 65, 200] {
            let mut sent = payloads(size, count);
            // A shorter one, and longer ones after it.
            sent[count - 1].truncate(size.div_ceil(2));
            sent[count / 2].truncate(size.div_ceil(3));
            send(&mut *outgoing, &sent);
            let came = take_all(&mut *incoming, &mut *outgoing);
            assert!(came == sent, "{count} of {size} bytes: {}", came.len());
            all += count as u64;
        }
    }
    let counts = outgoing.counts();
    assert_eq!((counts.sent, counts.not_sent()), (all, 0));
    // Datagrams that leave together are in common messages.
    assert!(counts.messages < all / 4, "{counts:?}");
    assert_eq!(incoming.backlog().unwrap(), 0);
}

#[test]
fn a_sender_waits_for_a_receiver_that_takes_nothing() {
    let room = Room::new();
    let at = url(&room);
    let mut incoming = incoming(&at);
    let mut outgoing = outgoing(&at);
    let train = payloads(8040, 64);
    let mut sent = Vec::new();
    while let Ready::Now(room) = outgoing.ready(Nanos(0)) {
        assert!(room > 0);
        send(&mut *outgoing, &train);
        sent.extend_from_slice(&train);
    }
    assert_eq!(outgoing.ready(Nanos(0)), Ready::OnEvent);
    assert_eq!(outgoing.close(Nanos(0)).unwrap(), Close::OnEvent);
    // It accepts no more before anything is received.
    outgoing.drive(Nanos(0)).unwrap();
    let counts = outgoing.counts();
    assert!(counts.sent < sent.len() as u64, "{counts:?}");
    assert!(take_all(&mut *incoming, &mut *outgoing) == sent);
    assert!(matches!(outgoing.ready(Nanos(0)), Ready::Now(_)));
    let counts = outgoing.counts();
    assert_eq!((counts.sent, counts.not_sent()), (sent.len() as u64, 0));
}

/// A program has ended once it has closed its connection and everything that it sent was received; one that only connects ends nothing.
#[test]
fn the_end_of_a_sender_shows_behind_its_data() {
    let room = Room::new();
    let at = url(&room);
    let mut incoming = incoming(&at);
    let here = Peer::Process(std::process::id());
    drop(outgoing(&at));
    assert!(take(&mut *incoming).is_empty());
    assert!(!incoming.has_ended(here));
    let _silent = outgoing(&at);
    let mut sender = outgoing(&at);
    let sent = payloads(8040, 64);
    send(&mut *sender, &sent);
    assert!(incoming.backlog().unwrap() == 0);
    let batch = incoming.receive(Nanos(0)).unwrap();
    assert!(batch.datagrams().all(|datagram| datagram.source == here));
    let mut came: Vec<Vec<u8>> = batch.datagrams().map(|it| it.bytes.to_vec()).collect();
    drop(sender);
    loop {
        let more = take(&mut *incoming);
        if more.is_empty() {
            break;
        }
        came.extend(more);
    }
    assert!(came == sent, "{}", came.len());
    assert!(incoming.has_ended(here));
    // Once the receiver stops reading, no sender can send.
    let mut late = outgoing(&at);
    drop(incoming);
    let mut pieces = Pieces::default();
    let mut train = pieces.begin();
    train.push(Head::new(), &sent[0]);
    assert!(late.send(&train, Nanos(0)).is_err());
}

/// Messages with a wrong length field are one datagram each, which belongs to no stream; the connection stays.
#[test]
fn odd_messages_do_no_harm() {
    let room = Room::new();
    let at = url(&room);
    let mut incoming = incoming(&at);
    let other = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
    other
        .connect(&SockAddr::unix(room.path("s")).unwrap())
        .unwrap();
    let said = |segment: u32, data: usize| {
        let mut message = segment.to_le_bytes().to_vec();
        message.resize(4 + data, 1);
        message
    };
    let odd = [
        vec![1],
        vec![1, 0, 0],
        said(100, 0),
        said(0, 100),
        said(101, 100),
        said(u32::MAX, 100),
        said(1, 65_536),
        said(8040, 140_000),
    ];
    for message in &odd {
        other.send(message).unwrap();
        let batch = incoming.receive(Nanos(0)).unwrap();
        let came: Vec<usize> = batch.datagrams().map(|it| it.bytes.len()).collect();
        assert_eq!(came.len(), 1, "{:?}", &message[..message.len().min(4)]);
        assert!(came[0] <= message.len());
        assert_eq!(batch.messages[0].truncated, message.len() > 138_000);
    }
    other.send(&said(50, 120)).unwrap();
    let came = take(&mut *incoming);
    assert_eq!(came, [vec![1; 50], vec![1; 50], vec![1; 20]]);
}

/// A sender gets through, however many silent programs are connected.
#[test]
fn silent_connections_keep_no_sender_out() {
    let room = Room::new();
    let at = url(&room);
    let mut incoming = incoming(&at);
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(outgoing(&at));
        take(&mut *incoming);
    }
    let mut sender = outgoing(&at);
    let sent = payloads(1000, 10);
    send(&mut *sender, &sent);
    assert!(take_all(&mut *incoming, &mut *sender) == sent);
}

#[test]
fn a_path_has_one_receiver() {
    let room = Room::new();
    let at = url(&room);
    let path = room.path("s");
    // Left behind by a killed receiver.
    drop(UnixListener::bind(&path).unwrap());
    assert!(fs::metadata(&path).is_ok());
    let first = incoming(&at);
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let error = try_incoming(&at).err().unwrap().to_string();
    assert!(error.contains("another program listens there"), "{error}");
    assert!(error.contains(&path), "{error}");
    drop(first);
    assert!(fs::metadata(&path).is_err());
    // A path that belongs to another receiver by now is not touched.
    let first = incoming(&at);
    fs::remove_file(&path).unwrap();
    let second = incoming(&at);
    drop(first);
    assert!(fs::metadata(&path).is_ok());
    drop(second);
    let _other_kind = UnixListener::bind(&path).unwrap();
    let error = try_incoming(&at).err().unwrap().to_string();
    assert!(error.contains("another program listens there"), "{error}");
    let file = room.write("s2", "data");
    let error = try_incoming(&format!("unix://{file}").parse().unwrap());
    let error = error.err().unwrap().to_string();
    assert!(error.contains("not a socket"), "{error}");
    assert_eq!(room.text("s2"), "data");
    let nobody: Url = format!("unix://{}", room.path("none")).parse().unwrap();
    let run = Run::silent();
    let error = nobody
        .transport()
        .open_out(&nobody, &OutOptions::default(), &run);
    let error = error.err().unwrap().to_string();
    assert!(error.contains("cannot connect to unix://"), "{error}");
}

/// While the ring is full nothing is received, so the sender waits, and nothing is lost.
#[test]
fn a_sender_waits_for_a_full_ring_and_nothing_is_lost() {
    const DATA: usize = 8032;
    const COUNT: usize = 4000;
    let room = Room::new();
    let at = url(&room);
    let run = Run::silent();
    let options = ReceiveOptions {
        from: at.clone(),
        safe: None,
        with: InOptions::default(),
        numbering: Box::new(Numbers),
        wanted: Wanted::default(),
        window: 1 << 20,
        hold: Duration::from_secs(600),
        ring: 8 << 20,
        idle: None,
        duration: None,
        cpu: None,
        priority: None,
    };
    let (receiving, opening) = receive::start(options, &run).unwrap();
    let data = payloads(DATA, COUNT);
    let mut sender = outgoing(&at);
    let receiving = std::thread::scope(|scope| {
        let (clock, sent) = (run.clock(), &data[..]);
        let sending = scope.spawn(move || {
            let mut pieces = Pieces::default();
            // Every tenth number is missing, once the stream is detected.
            let mut numbers = (0u64..).filter(|number| *number < 500 || number % 10 != 5);
            let mut left = sent;
            while !left.is_empty() {
                let Ready::Now(room) = sender.ready(clock.now()) else {
                    let until = clock.now().plus(SOON);
                    clock.wait(&[sender.events()], until, Waiting::Sleep);
                    sender.drive(clock.now()).unwrap();
                    continue;
                };
                let (now, later) = left.split_at(room.min(left.len()).min(64));
                left = later;
                let mut train = pieces.begin();
                for (datagram, number) in now.iter().zip(&mut numbers) {
                    train.push(Head::from(&number.to_le_bytes()[..]), datagram);
                }
                sender.send(&train, clock.now()).unwrap();
            }
            while sender.close(clock.now()).unwrap() != Close::Done {
                let until = clock.now().plus(SOON);
                clock.wait(&[sender.events()], until, Waiting::Sleep);
            }
            drop(sender);
        });
        let (mut consumer, _) = opening.next().unwrap();
        until("the ring is full", || {
            receiving.watch().last().ring_waits > 0.0
        });
        let mut data = data.iter();
        while !consumer.is_finished() {
            while consumer.event().is_some() {
                consumer.take_event();
            }
            let span = consumer.span();
            let (first, count) = (span.first, span.data.len() / DATA);
            for (position, found) in (first..).zip(span.data.chunks(DATA)) {
                if span.presence.at(position) {
                    assert!(data.next().is_some_and(|sent| sent == found), "{position}");
                }
            }
            consumer.free(first + count as u64);
        }
        assert_eq!(data.next(), None);
        sending.join().unwrap();
        receiving
    });
    let report = receiving.join();
    assert_eq!(report.ended, Ended::Closed, "{report:?}");
    assert!(report.live.ring_waits > 0.0);
    let account = &report.account;
    assert_eq!(account.counters.unique, COUNT as u64);
    assert_eq!(account.counters.ring_full, 0);
    assert_eq!(report.sender, Some(Peer::Process(std::process::id())));
    assert!(fs::metadata(room.path("s")).is_err());
}
