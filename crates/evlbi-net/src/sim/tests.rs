//! Connections and datagrams between simulated hosts: everything arrives, drops are counted, and a kill ends what it must.

use std::net::Shutdown;
use std::time::Duration;

use evlbi_core::path::{Loss, Shape};

use super::*;
use crate::cpu::Waiting;

fn rough() -> [Law; 2] {
    let loss = Law::Loss(Loss::Random { fraction: 0.05 });
    let delay = Law::Delay {
        delay: Nanos(10_000_000),
        jitter: Nanos(1_000_000),
        shape: Shape::Uniform,
        reorders: true,
    };
    [loss, delay]
}

fn pair() -> (Clock, Host, Host) {
    let clock = Clock::simulated(0);
    let network = Network::new(&clock, &rough(), 1500, 1);
    (clock, network.near(1), network.far(1))
}

/// Waits for a connection.
fn accepted(listener: &Listener, clock: &Clock) -> Stream {
    loop {
        match listener.accept() {
            Some(stream) => return stream,
            None => clock.wait(
                &[crate::clock::Events::at(&[listener.place()])],
                Nanos(u64::MAX),
                Waiting::Sleep,
            ),
        }
    }
}

fn read_all(stream: &Stream, clock: &Clock) -> io::Result<Vec<u8>> {
    let (mut all, mut bytes) = (Vec::new(), [0; 10_000]);
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(all),
            Ok(count) => all.extend(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => clock.wait(
                &[crate::clock::Events::at(&[stream.readable()])],
                Nanos(u64::MAX),
                Waiting::Sleep,
            ),
            Err(error) => return Err(error),
        }
    }
}

/// Returns what arrives of bytes that one host writes to another.
fn carried(bytes: &[u8], clock: &Clock, near: &Host, far: &Host) -> Vec<u8> {
    let listener = far.listen(80, &far.tcp()).unwrap();
    let (own, copy) = (near.clone(), bytes.to_vec());
    let writing = near.clock().spawn("write", move || {
        let stream = own.connect((Ipv4Addr::new(10, 0, 0, 1), 80).into(), &own.tcp());
        let mut rest = &copy[..];
        while !rest.is_empty() {
            match stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    let events = [stream.writable()];
                    let events = crate::clock::Events::at(&events);
                    own.clock().wait(&[events], Nanos(u64::MAX), Waiting::Sleep);
                }
            }
        }
        stream.shutdown(Shutdown::Write);
        // Until the remote host has all of it.
        read_all(&stream, own.clock()).unwrap()
    });
    let stream = accepted(&listener, clock);
    let received = read_all(&stream, clock).unwrap();
    drop(stream);
    assert!(writing.unwrap().join().is_empty());
    received
}

#[test]
fn connections_bring_every_byte() {
    let (clock, near, far) = pair();
    let sent: Vec<u8> = (0..1_000_000u32)
        .map(|number| (number % 251) as u8)
        .collect();
    let received = clock.simulate(|| carried(&sent, &clock, &near, &far));
    assert!(received == sent);
}

/// The log has a line for each sent packet of a connection and one for each received packet: all that the path does not drop.
#[test]
fn packets_of_connections_are_logged() {
    let (clock, near, far) = pair();
    clock.keep_log();
    clock.simulate(|| {
        carried(&[1; 100_000], &clock, &near, &far);
        // Nothing is in flight any more.
        clock.sleep(Duration::from_secs(60));
    });
    let log = clock.take_log();
    let packets = |of: &str| -> Vec<String> {
        let lines = log.lines().filter(|line| line.contains(of));
        let packets = lines.map(|line| line.rsplit_once(": ").unwrap().1.to_owned());
        packets.collect()
    };
    let (sent, mut received) = (packets(" transmits to "), packets(" takes from "));
    let dropped =
        [Direction::There, Direction::Back].map(|way| near.network().truth(way, 0).dropped);
    assert!(dropped.iter().sum::<u64>() > 0);
    assert_eq!(
        sent.len() - received.len(),
        dropped.iter().sum::<u64>() as usize
    );
    for packet in ["SYN", "SYN+ACK, ", "segment 0, ", "ACK, "] {
        assert!(sent.iter().any(|it| it.starts_with(packet)), "{packet}");
    }
    // Nothing is received that was not sent.
    for packet in &sent {
        if let Some(place) = received.iter().position(|it| it == packet) {
            received.swap_remove(place);
        }
    }
    assert_eq!(received, [""; 0]);
}

#[test]
fn nobody_listens() {
    let (clock, near, _) = pair();
    let error = clock.simulate(|| {
        let stream = near.connect((Ipv4Addr::new(10, 0, 0, 1), 81).into(), &near.tcp());
        clock.sleep(Duration::from_secs(10));
        stream.error()
    });
    assert_eq!(error.unwrap().kind(), ErrorKind::ConnectionRefused);
}

/// The host of a killed program closes what it had open; the program's threads never continue.
#[test]
fn a_kill_leaves_nothing_open() {
    let (clock, near, far) = pair();
    clock.simulate(|| {
        let listener = far.listen(80, &far.tcp()).unwrap();
        let own = near.clone();
        let victim = near.clock().spawn("victim", move || {
            let _datagrams = own.socket(5000, None);
            let stream = own.connect((Ipv4Addr::new(10, 0, 0, 1), 80).into(), &own.tcp());
            own.clock().sleep(Duration::from_secs(3600));
            stream.write(b"never").unwrap();
        });
        let stream = accepted(&listener, &clock);
        clock.sleep(Duration::from_secs(5));
        near.kill();
        let killed = clock.now();
        assert!(read_all(&stream, &clock).unwrap().is_empty());
        assert!(clock.now().since(killed) < Nanos::SECOND);
        assert!(victim.unwrap().wait().is_err());
        // Its port is free.
        drop(near.bind(5000, None).unwrap());
    });
}

/// A port has one socket at a time, as with a kernel. The socket of a killed program is useless, and takes nothing from the socket that
/// has the port now.
#[test]
fn a_port_has_one_socket() {
    let clock = Clock::simulated(0);
    let network = Network::new(&clock, &[], 1500, 1);
    let (near, far) = (network.near(1), network.far(1));
    clock.simulate(|| {
        let first = far.bind(9, None).unwrap();
        let in_use = |it: io::Result<Socket>| it.err().unwrap().kind() == ErrorKind::AddrInUse;
        assert!(in_use(far.bind(9, None)));
        // Another host has its own port, and a free port is another one.
        drop(near.bind(9, None).unwrap());
        assert_ne!(far.bind(0, None).unwrap().address(), first.address());
        drop(first);
        let killed = far.bind(9, None).unwrap();
        far.kill();
        let second = far.bind(9, None).unwrap();
        near.socket(0, None)
            .send_to(second.address(), [1; 8].into(), clock.now());
        while second.waiting() == 0 {
            clock.wait(&[second.events()], Nanos(u64::MAX), Waiting::Sleep);
        }
        assert_eq!(killed.waiting(), 0);
        assert!(killed.receive().is_none());
        drop(killed);
        assert!(in_use(far.bind(9, None)));
        assert!(second.receive().is_some());
    });
}

/// The same for the listener of arriving connections.
#[test]
fn a_port_has_one_listener() {
    let (clock, _, far) = pair();
    clock.simulate(|| {
        let listen = || far.listen(80, &far.tcp());
        let in_use = || listen().err().map(|error| error.kind()) == Some(ErrorKind::AddrInUse);
        let killed = listen().unwrap();
        assert!(in_use());
        far.kill();
        let second = listen().unwrap();
        drop(killed);
        assert!(in_use());
        drop(second);
        assert!(!in_use());
    });
}

/// A poll of a socket without data costs a slow host no time.
#[test]
fn a_look_in_vain_delays_nothing() {
    let clock = Clock::simulated(0);
    let network = Network::new(&clock, &[], 1500, 1);
    let (near, far) = (network.near(1), network.far(1));
    clock.simulate(|| {
        far.work(Nanos(1_000_000));
        let (from, to) = (near.socket(0, None), far.socket(9, None));
        assert!(to.receive().is_none());
        from.send_to(to.address(), [0; 8].into(), clock.now());
        clock.wait(&[to.events()], Nanos(u64::MAX), Waiting::Sleep);
        assert!(to.receive().is_some());
        assert_eq!(clock.now(), Nanos(0));
    });
}

/// A receiver takes 64 datagrams at once, in their order, and the others after them.
#[test]
fn datagrams_are_received_at_once() {
    use crate::transport::{Incoming, simulated::In};
    let clock = Clock::simulated(0);
    let network = Network::new(&clock, &[], 1500, 1);
    let (near, far) = (network.near(1), network.far(1));
    clock.simulate(|| {
        let (from, to) = (near.socket(0, None), far.socket(9, None));
        for number in 0..65 {
            from.send_to(to.address(), [number; 10].into(), clock.now());
        }
        let mut incoming = In::new(Arc::new(to));
        let mut received = Vec::new();
        for count in [64, 1, 0] {
            let batch = incoming.receive(clock.now()).unwrap();
            let numbers = batch.datagrams().map(|it| (it.bytes.len(), it.bytes[9]));
            let numbers: Vec<(usize, u8)> = numbers.collect();
            assert_eq!(numbers.len(), count);
            received.extend(numbers);
        }
        assert!(received.into_iter().eq((0..65).map(|number| (10, number))));
    });
}

/// Datagrams find no room if nothing receives them, and none is received before the host has finished the previous one.
#[test]
fn a_slow_host_drops_what_finds_no_room() {
    let clock = Clock::simulated(0);
    let network = Network::new(&clock, &[], 1500, 1);
    let (near, far) = (network.near(1), network.far(1));
    let received = clock.simulate(|| {
        far.work(Nanos(1_000_000));
        let (from, to) = (near.socket(0, None), far.socket(9, Some(5000)));
        for _ in 0..20 {
            from.send_to(to.address(), [0; 1000].into(), clock.now());
        }
        let mut times = Vec::new();
        while times.len() < 5 {
            clock.wait(&[to.events()], Nanos(u64::MAX), Waiting::Sleep);
            to.receive_all(64, |_, _, _| times.push(clock.now().0));
        }
        assert!(to.receive().is_none());
        assert_eq!(to.dropped(), 15);
        times
    });
    assert_eq!(received, [0, 1_000_000, 2_000_000, 3_000_000, 4_000_000]);
    assert_eq!(far.counters().udp.receive_buffer_errors, 15);
}
