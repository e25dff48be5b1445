//! Two endpoints over the cells of a path, in virtual time: written data arrive, whatever the path does.

use proptest::prelude::*;

use super::*;
use evlbi_core::path::{ETHERNET_OVERHEAD, Law, Loss, Network, Output, Piece, Shape, Train, Until};
use evlbi_core::rate::BitRate;

const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// User of an endpoint: it writes a number of bytes and closes, and reads.
#[derive(Debug, Default)]
struct User {
    writes: u64,
    written: u64,
    read: u64,
    /// Whether it has read to the end.
    saw_end: bool,
    /// Maximum number of bytes per read, and the time from which it reads.
    reading: Option<(u64, Nanos)>,
    reads_at: Nanos,
    /// Whether it closes only after it has read to the end.
    closes_last: bool,
    failed: Option<Failed>,
}

/// Two endpoints, and a path between them.
struct Wire {
    network: Network<Packet>,
    routes: Vec<usize>,
    settings: Settings,
    ends: Vec<Connection>,
    users: [User; 2],
    now: Nanos,
    /// Packets as sent: when, by which endpoint, and which.
    sent: Vec<(Nanos, usize, Packet)>,
    /// Data packets that arrived at each endpoint.
    arrived: [u64; 2],
    /// First byte beyond the window that each endpoint knows, and the ends of the segments that it has sent.
    limits: [u64; 2],
    segments: [Vec<u64>; 2],
    /// Packets that are dropped on purpose.
    loses: fn(usize, &Packet, Nanos) -> bool,
}

/// Byte of a direction.
fn pattern(way: usize, at: u64) -> u8 {
    (at * 31 / 7 + at / 256 + way as u64 * 101) as u8
}

fn delay(ms: u64) -> Law {
    Law::Delay {
        delay: Nanos(ms * MS),
        jitter: Nanos(0),
        shape: Shape::Normal,
        reorders: false,
    }
}

impl Wire {
    fn new(settings: [Settings; 2], writes: [u64; 2], laws: [Vec<Law>; 2], seed: u64) -> Wire {
        let mut network = Network::new();
        let routes = laws.into_iter().zip(seed..).map(|(laws, seed)| {
            let line = network.line(laws, seed);
            network.route(&[&line])
        });
        let routes = routes.collect();
        let [client, server] = settings;
        Wire {
            network,
            routes,
            settings: server,
            ends: vec![Connection::connect(client, Nanos(0))],
            users: writes.map(|writes| User {
                writes,
                ..User::default()
            }),
            now: Nanos(0),
            sent: Vec::new(),
            arrived: [0; 2],
            limits: [0; 2],
            segments: [Vec::new(), Vec::new()],
            loses: |_, _, _| false,
        }
    }

    /// Delay of 10 ms in each direction.
    fn plain(writes: [u64; 2]) -> Wire {
        let settings = [Settings::default(), Settings::default()];
        Wire::new(settings, writes, [vec![delay(10)], vec![delay(10)]], 1)
    }

    /// Runs until both endpoints have ended or until a time; returns whether they have ended.
    fn run(&mut self, until: Nanos) -> bool {
        loop {
            for end in 0..self.ends.len() {
                self.use_end(end);
                self.drain(end);
            }
            if self.ends.len() == 2 && self.ends.iter().all(Connection::has_ended) {
                return true;
            }
            let ends = self.ends.iter().filter_map(Connection::next_at);
            let users = self.users.iter();
            let users = users.filter(|user| user.reading.is_some() && user.reads_at > self.now);
            let next = ends
                .chain(users.map(|user| user.reads_at))
                .chain(self.network.next())
                .min();
            let Some(next) = next.filter(|next| *next <= until) else {
                return false;
            };
            assert!(next >= self.now, "{next:?} is before {:?}", self.now);
            self.now = next;
            let mut come = Vec::new();
            self.network.advance(next, |output| {
                if let Output::Delivered { route, packet, .. } = output {
                    come.push((route, packet));
                }
            });
            for (route, packet) in come {
                self.deliver(1 - route, &packet);
            }
        }
    }

    fn deliver(&mut self, to: usize, packet: &Packet) {
        if to == self.ends.len() {
            let server = Connection::accept(self.settings, packet, self.now);
            self.ends.extend(server);
            self.note_window(to, packet);
            return;
        }
        self.arrived[to] += u64::from(matches!(packet.kind, Kind::Data { .. }));
        self.note_window(to, packet);
        self.ends[to].handle(packet, self.now);
        self.drain(to);
    }

    fn note_window(&mut self, to: usize, packet: &Packet) {
        let before = packet.ack.next.checked_sub(1);
        let begin = before.map_or(0, |before| self.segments[to][before as usize]);
        self.limits[to] = self.limits[to].max(begin + packet.window);
    }

    fn use_end(&mut self, way: usize) {
        let (end, user) = (&mut self.ends[way], &mut self.users[way]);
        let mut room = [0; 5000];
        let (mut max, at) = user.reading.unwrap_or((u64::MAX, Nanos(0)));
        if self.now >= user.reads_at.max(at) {
            while max > 0 {
                let count = max.min(room.len() as u64) as usize;
                match end.read(&mut room[..count]) {
                    Ok(Read::Bytes(count)) => {
                        for (byte, at) in room[..count as usize].iter().zip(user.read..) {
                            assert_eq!(*byte, pattern(1 - way, at), "byte {at} of {way}");
                        }
                        (user.read, max) = (user.read + count, max - count);
                    }
                    Ok(Read::Nothing) => break,
                    Ok(Read::Closed) => {
                        user.saw_end = true;
                        break;
                    }
                    Err(failed) => {
                        user.failed = Some(failed);
                        break;
                    }
                }
            }
            if user.reading.is_some() {
                user.reads_at = self.now.plus(Nanos(20 * MS));
            }
        } else {
            user.reads_at = user.reads_at.max(at);
        }
        let mut takes = end.is_writable();
        while user.written < user.writes && takes {
            let count = (user.writes - user.written).min(room.len() as u64);
            for (byte, at) in room.iter_mut().zip(user.written..) {
                *byte = pattern(way, at);
            }
            match end.write(&room[..count as usize]) {
                Ok(taken) => {
                    user.written += taken as u64;
                    takes = taken as u64 == count;
                }
                Err(failed) => {
                    user.failed = Some(failed);
                    break;
                }
            }
        }
        if user.written == user.writes && (user.saw_end || !user.closes_last) {
            end.shutdown();
        }
    }

    fn drain(&mut self, way: usize) {
        while let Some(packet) = self.ends[way].next_packet(self.now) {
            if let Kind::Data { number, segment } = &packet.kind {
                let end = segment.at + u64::from(segment.length);
                assert!(end <= self.limits[way], "beyond the window: {packet:?}");
                let known = &mut self.segments[way];
                assert!(*number <= known.len() as u64);
                if *number == known.len() as u64 {
                    known.push(end);
                }
            }
            self.sent.push((self.now, way, packet.clone()));
            if (self.loses)(way, &packet, self.now) {
                continue;
            }
            let train = Train::single(packet.length() + HEADERS + 14);
            let piece = Piece::whole(self.now, &train);
            self.network
                .offer(self.routes[way], packet, train, piece, 14);
        }
    }

    /// Checks that everything was read, in order, to the end; and that retransmissions were lost or needless.
    fn check(&self) {
        for way in [0, 1] {
            let (from, to) = (&self.users[way], &self.users[1 - way]);
            assert_eq!(
                (from.written, to.read, to.saw_end),
                (from.writes, from.writes, true)
            );
            let [sender, receiver] = [way, 1 - way].map(|end| self.ends[end].info(self.now));
            assert_eq!(sender.acknowledged, from.writes);
            assert_eq!(receiver.received, from.writes);
            assert_eq!(sender.sent, from.writes + sender.bytes_again);
            assert_eq!((sender.in_flight, sender.not_sent), (0, 0));
            let segments = self.segments[way].len() as u64;
            assert_eq!(u64::from(sender.delivered), segments);
            let all = self
                .sent
                .iter()
                .filter(|(_, end, packet)| *end == way && matches!(packet.kind, Kind::Data { .. }));
            assert_eq!(all.count() as u64, segments + u64::from(sender.sent_again));
        }
    }
}

/// Endpoints can be shared between threads.
#[test]
fn ends_may_go_to_other_threads() {
    fn is_send<T: Send>() {}
    is_send::<Connection>();
    is_send::<Packet>();
}

#[test]
fn a_handshake_takes_a_round_trip() {
    let mut wire = Wire::plain([0, 0]);
    wire.users[0].closes_last = true;
    wire.users[1].closes_last = true;
    assert!(!wire.run(Nanos(10 * SECOND)));
    let sent = wire.sent.iter();
    let sent: Vec<_> = sent
        .map(|(at, end, packet)| (at.0 / MS, *end, packet.clone().kind))
        .collect();
    let syn = |is_answer| Kind::Syn {
        segment: 1448,
        is_answer,
    };
    assert_eq!(
        sent,
        [(0, 0, syn(false)), (10, 1, syn(true)), (20, 0, Kind::Ack)]
    );
    for end in &wire.ends {
        let info = end.info(wire.now);
        assert_eq!(
            (info.round_trip, info.round_trip_deviation),
            (20_000, 10_000)
        );
        assert_eq!((info.window, info.threshold), (10, NO_THRESHOLD));
        assert_eq!((info.peer_window, info.own_window), (6 << 20, 6 << 20));
    }
}

/// RFC 6298: after 1 s, 2 s, 4 s; Linux gives up after 127 s.
#[test]
fn syn_is_retransmitted() {
    let mut wire = Wire::plain([1000, 0]);
    wire.loses = |end, _, now| end == 0 && now < Nanos(7 * SECOND);
    assert!(wire.run(Nanos(100 * SECOND)));
    wire.check();
    let syns = wire.sent.iter().filter(|(_, _, packet)| packet.is_first());
    let times: Vec<u64> = syns.map(|(at, ..)| at.0 / SECOND).collect();
    assert_eq!(times, [0, 1, 3, 7]);

    let mut wire = Wire::plain([1000, 0]);
    wire.loses = |_, _, _| true;
    assert!(!wire.run(Nanos(1000 * SECOND)));
    assert_eq!(wire.ends[0].failed(), Some(Failed::TimedOut));
    assert_eq!((wire.sent.len(), wire.now), (7, Nanos(127 * SECOND)));
}

#[test]
fn a_lost_syn_ack_is_retransmitted() {
    for which in [0, 1] {
        let mut wire = Wire::plain([1000, 1000]);
        // The first SYN+ACK, or everything that the client sends in reply to the first two.
        wire.loses = match which {
            0 => |end, _, now| end == 1 && now < Nanos(SECOND / 2),
            _ => |end, packet, now| end == 0 && !packet.is_first() && now < Nanos(SECOND / 2),
        };
        assert!(wire.run(Nanos(100 * SECOND)));
        wire.check();
    }
}

/// A duplicate SYN that arrives after the connection has ended opens no connection.
#[test]
fn a_late_syn_opens_nothing() {
    let mut wire = Wire::plain([1000, 1000]);
    wire.users[1].closes_last = true;
    wire.run(Nanos(SECOND));
    wire.check();
    let syn = wire.sent[0].2.clone();
    wire.ends[1] = Connection::accept(Settings::default(), &syn, wire.now).unwrap();
    wire.drain(1);
    let sent = wire.sent.len();
    wire.run(wire.now.plus(Nanos(SECOND / 2)));
    assert!(wire.sent.len() > sent && !wire.ends[1].is_connected());
}

#[test]
fn nobody_listens() {
    let mut wire = Wire::plain([1000, 0]);
    wire.loses = |_, _, _| true;
    wire.run(Nanos(SECOND / 2));
    wire.ends[0].handle(&Packet::reset(), wire.now);
    assert_eq!(wire.ends[0].failed(), Some(Failed::Refused));
    assert_eq!(wire.ends[0].write(b"x"), Err(Failed::Refused));
    assert!(wire.ends[0].has_ended() && wire.ends[0].is_readable());
}

/// Segments are no longer than either endpoint accepts.
#[test]
fn the_smaller_segment_counts() {
    for (client, server) in [(1448, 500), (500, 1448)] {
        let settings = [client, server].map(|segment| Settings {
            segment,
            ..Settings::default()
        });
        let laws = [vec![delay(1)], vec![delay(1)]];
        let mut wire = Wire::new(settings, [10_000, 10_000], laws, 1);
        assert!(wire.run(Nanos(100 * SECOND)));
        wire.check();
        let longest = wire.sent.iter().map(|(_, _, packet)| packet.length()).max();
        assert_eq!(longest, Some(500));
    }
}

/// The endpoint that closes first waits in case its last acknowledgement is lost; both do if they close at once.
#[test]
fn time_wait_is_the_first_ones() {
    let mut wire = Wire::plain([100_000, 0]);
    wire.users[1].closes_last = true;
    wire.run(Nanos(SECOND));
    wire.check();
    assert!(wire.ends.iter().all(Connection::is_closed));
    assert_eq!(
        wire.ends
            .iter()
            .map(Connection::has_ended)
            .collect::<Vec<_>>(),
        [false, true]
    );
    let closed = wire.now;
    assert!(wire.run(Nanos(100 * SECOND)));
    assert!(wire.now > Nanos(60 * SECOND) && wire.now < closed.plus(TIME_WAIT));

    let mut wire = Wire::plain([100_000, 100_000]);
    for user in &mut wire.users {
        user.closes_last = true;
    }
    wire.run(Nanos(SECOND));
    for user in &mut wire.users {
        user.closes_last = false;
    }
    wire.run(Nanos(2 * SECOND));
    wire.check();
    assert!(!wire.ends.iter().any(Connection::has_ended));
    assert!(wire.run(Nanos(100 * SECOND)));
}

#[test]
fn fin_is_retransmitted() {
    let mut wire = Wire::plain([10_000, 0]);
    wire.users[1].closes_last = true;
    wire.loses = |_, packet, now| match &packet.kind {
        Kind::Data { segment, .. } => segment.is_last && now < Nanos(SECOND),
        _ => false,
    };
    assert!(wire.run(Nanos(100 * SECOND)));
    wire.check();
    let again = wire.ends[0].info(wire.now);
    // 200 ms after the round trip, twice as much, and twice again.
    assert!(
        again.sent_again >= 3 && again.timeouts == again.sent_again,
        "{again:?}"
    );
}

/// Linux with tcp_retries2 of 15: 924.6 s with the minimum timeout.
#[test]
fn a_peer_that_is_gone_is_noticed() {
    let mut wire = Wire::plain([100_000_000, 0]);
    wire.loses = |_, _, now| now > Nanos(SECOND / 10);
    assert!(!wire.run(Nanos(2000 * SECOND)));
    assert_eq!(wire.ends[0].failed(), Some(Failed::TimedOut));
    let last = wire.sent.iter().rfind(|(_, end, _)| *end == 0);
    let (last, _, _) = last.unwrap();
    assert_eq!(wire.now.since(*last).0.div_ceil(SECOND), 120);
    assert!(
        (900..960).contains(&(wire.now.0 / SECOND)),
        "{:?}",
        wire.now
    );
    assert_eq!(wire.ends[0].info(wire.now).timeouts, 15);
}

#[test]
fn an_abort_reaches_the_other_end() {
    let mut wire = Wire::plain([100_000_000, 0]);
    wire.run(Nanos(SECOND / 10));
    wire.ends[1].abort();
    assert!(wire.run(Nanos(10 * SECOND)));
    assert_eq!(wire.ends[0].failed(), Some(Failed::Reset));
    assert_eq!(wire.ends[1].write(b"x"), Err(Failed::Closed));
    // RST is lost: the next packet is answered with another one.
    let mut wire = Wire::plain([100_000_000, 0]);
    wire.loses = |_, packet, now| packet.is_reset() && now <= Nanos(SECOND / 10);
    wire.run(Nanos(SECOND / 10));
    wire.ends[1].abort();
    assert!(wire.run(Nanos(10 * SECOND)));
    assert_eq!(wire.ends[0].failed(), Some(Failed::Reset));
}

fn narrow_receiver(buffer: u64) -> [Settings; 2] {
    [
        Settings::default(),
        Settings {
            receive_buffer: buffer,
            ..Settings::default()
        },
    ]
}

/// A reader that does not read closes the window, which is probed; nothing is lost.
#[test]
fn a_closed_window_is_probed() {
    let laws = [vec![delay(10)], vec![delay(10)]];
    let mut wire = Wire::new(narrow_receiver(100_000), [1_000_000, 0], laws, 1);
    wire.users[1].reading = Some((u64::MAX, Nanos(30 * SECOND)));
    assert!(!wire.run(Nanos(29 * SECOND)));
    let [sender, receiver] = [0, 1].map(|end| wire.ends[end].info(Nanos(29 * SECOND)));
    assert_eq!((receiver.received, receiver.own_window), (100_000, 0));
    assert_eq!(
        (sender.acknowledged, sender.peer_window, sender.in_flight),
        (100_000, 0, 0)
    );
    assert!(sender.receiver_limited > 28_000_000, "{sender:?}");
    let probes = wire
        .sent
        .iter()
        .filter(|(_, _, packet)| packet.kind == Kind::Probe);
    let times: Vec<u64> = probes.map(|(at, ..)| at.0 / MS).collect();
    let apart: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(
        apart
            .windows(2)
            .all(|pair| pair[1].abs_diff(2 * pair[0]) <= 2),
        "{apart:?}"
    );
    assert!(times.len() > 5);
    assert!(wire.run(Nanos(200 * SECOND)));
    wire.check();
    assert_eq!(wire.ends[0].info(wire.now).sent_again, 0);
}

/// The update that opens the window is lost: the next probe finds it open.
#[test]
fn a_window_update_may_be_lost() {
    let laws = [vec![delay(10)], vec![delay(10)]];
    let mut wire = Wire::new(narrow_receiver(100_000), [1_000_000, 0], laws, 1);
    wire.users[1].reading = Some((u64::MAX, Nanos(10 * SECOND)));
    wire.loses = |end, _, now| end == 1 && (10 * SECOND..11 * SECOND).contains(&now.0);
    assert!(wire.run(Nanos(200 * SECOND)));
    wire.check();
    assert!(wire.ends[0].info(wire.now).sent_again <= 1);
}

/// A slow reader is sent whole segments (silly windows, RFC 1122, sections 4.2.3.3 and 4.2.3.4).
#[test]
fn a_slow_reader_gets_whole_segments() {
    let laws = [vec![delay(10)], vec![delay(10)]];
    let mut wire = Wire::new(narrow_receiver(20_000), [300_000, 0], laws, 1);
    wire.users[1].reading = Some((300, Nanos(0)));
    assert!(wire.run(Nanos(200 * SECOND)));
    wire.check();
    let data = wire
        .sent
        .iter()
        .filter(|(_, _, packet)| packet.length() > 0)
        .count();
    assert!(data <= 300_000 / 1448 + 30, "{data}");
}

/// A buffer that is smaller than a segment.
#[test]
fn a_tiny_buffer_still_carries() {
    let laws = [vec![delay(1)], vec![delay(1)]];
    for buffer in [1, 2, 700, 1448] {
        let mut settings = narrow_receiver(buffer);
        settings[0].send_buffer = buffer;
        let mut wire = Wire::new(settings, [20 * buffer, 0], laws.clone(), 1);
        assert!(wire.run(Nanos(1000 * SECOND)), "{buffer}");
        wire.check();
    }
}

/// Blank bytes have a length and no contents.
#[test]
fn blank_bytes_are_zeros() {
    let mut ends = Connection::pair([Settings::default(), Settings::default()]);
    assert_eq!(ends[0].write_blank(5), Ok(5));
    assert_eq!(ends[0].write(b"abc"), Ok(3));
    assert_eq!(ends[0].write_blank(10 << 20), Ok((4 << 20) - 8));
    let packets = std::iter::from_fn(|| ends[0].next_packet(Nanos(0)));
    let packets: Vec<Packet> = packets.collect();
    let lengths: Vec<u32> = packets.iter().map(Packet::length).collect();
    assert_eq!(lengths[..3], [5, 3, 1448]);
    for packet in &packets {
        ends[1].handle(packet, Nanos(0));
    }
    let mut bytes = [7; 10];
    assert_eq!(ends[1].read(&mut bytes), Ok(Read::Bytes(10)));
    assert_eq!(bytes, *b"\0\0\0\0\0abc\0\0");
    assert_eq!(ends[1].discard(u64::MAX), Ok(Read::Bytes(8 * 1448 - 2)));
    assert_eq!(ends[1].discard(1), Ok(Read::Nothing));
}

#[test]
fn time_is_attributed_to_the_limit() {
    // 20 000 bytes every 20 ms, although the window would allow more.
    let mut settings = [Settings::default(), Settings::default()];
    settings[0].send_buffer = 20_000;
    let laws = [vec![delay(10)], vec![delay(10)]];
    let mut wire = Wire::new(settings, [2_000_000, 0], laws, 1);
    assert!(wire.run(Nanos(200 * SECOND)));
    wire.check();
    let info = wire.ends[0].info(wire.now);
    assert!((1_900_000..2_200_000).contains(&info.busy), "{info:?}");
    assert!(
        info.buffer_limited > info.busy / 2 && info.receiver_limited == 0,
        "{info:?}"
    );
    // In slow start the path is the limit.
    let mut wire = Wire::plain([100_000, 0]);
    assert!(wire.run(Nanos(200 * SECOND)));
    let info = wire.ends[0].info(wire.now);
    assert_eq!((info.buffer_limited, info.receiver_limited), (0, 0));
    assert!((60_000..150_000).contains(&info.busy), "{info:?}");
}

/// After some idle timeouts the window is the initial one (RFC 5681, section 4.1), and the threshold of slow start stays.
#[test]
fn an_idle_window_is_forgotten() {
    let mut wire = Wire::plain([1_000_000, 0]);
    wire.users[0].closes_last = true;
    wire.users[1].closes_last = true;
    wire.run(Nanos(10 * SECOND));
    let before = wire.ends[0].info(wire.now);
    assert!(before.window > 300 && before.in_flight == 0, "{before:?}");
    for (idle, window) in [
        (before.timeout / 2, before.window),
        (before.timeout * 20, 10),
    ] {
        wire.now = wire.now.plus(Nanos(u64::from(idle) * 1000));
        wire.users[0].writes += 1448;
        wire.run(wire.now);
        assert_eq!(wire.ends[0].info(wire.now).window, window);
        wire.run(wire.now.plus(Nanos(100 * MS)));
    }
    assert_eq!(wire.users[1].read, 1_000_000 + 2 * 1448);
}

/// The rate of the path, and that of an application that sends less.
#[test]
fn the_delivery_rate_is_the_paths() {
    let rate = Law::Rate {
        rate: BitRate::new(100_000_000).unwrap(),
        buffer: 1 << 20,
        overhead: ETHERNET_OVERHEAD,
        mark: None,
    };
    let settings = [Settings::default(), Settings::default()];
    let laws = [vec![rate, delay(10)], vec![delay(10)]];
    let mut wire = Wire::new(settings, [20_000_000, 0], laws, 1);
    wire.run(Nanos(SECOND));
    let info = wire.ends[0].info(wire.now);
    let expected = 12_500_000 * 1448 / (1448 + u64::from(HEADERS) + 38);
    assert!(
        info.delivery_rate.abs_diff(expected) < expected / 100,
        "{info:?}"
    );
    assert!(!info.application_limited);
    // A buffer of 20 000 bytes every 20 ms.
    let mut settings = [Settings::default(), Settings::default()];
    settings[0].send_buffer = 20_000;
    let laws = [vec![delay(10)], vec![delay(10)]];
    let mut wire = Wire::new(settings, [2_000_000, 0], laws, 1);
    wire.run(Nanos(SECOND));
    let info = wire.ends[0].info(wire.now);
    assert!(info.delivery_rate.abs_diff(1_000_000) < 50_000, "{info:?}");
    assert!(info.application_limited);
}

fn laws(loss: f64, double: f64, reorder: f64, jitter: u64) -> Vec<Law> {
    vec![
        Law::Delay {
            delay: Nanos(5 * MS),
            jitter: Nanos(jitter),
            shape: Shape::Uniform,
            reorders: true,
        },
        Law::Loss(Loss::Random { fraction: loss }),
        Law::Duplicate { fraction: double },
        Law::Reorder {
            fraction: reorder,
            until: Until::Passed(5),
        },
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Every byte arrives in order and both endpoints end, whatever the path drops, duplicates and reorders; the same seed gives
    /// the same result.
    #[test]
    fn every_byte_arrives(
        writes in [0..300_000u64, 0..300_000u64],
        (loss, double, reorder) in (0.0..0.3f64, 0.0..0.3f64, 0.0..0.3f64),
        jitter in 0..5 * MS,
        closes_last in any::<[bool; 2]>(),
        buffers in [2000..200_000u64, 2000..200_000u64],
        reading in 500..100_000u64,
        seed in any::<u64>(),
    ) {
        let play = || {
            let settings = buffers.map(|buffer| Settings {
                send_buffer: buffer,
                receive_buffer: buffer,
                ..Settings::default()
            });
            let way = || laws(loss, double, reorder, jitter);
            let mut wire = Wire::new(settings, writes, [way(), way()], seed);
            wire.users[0].closes_last = closes_last[0];
            // One of them must start.
            wire.users[1].closes_last = closes_last[1] && !closes_last[0];
            wire.users[1].reading = Some((reading, Nanos(0)));
            let have_ended = wire.run(Nanos(100_000 * SECOND));
            // At random, each SYN+ACK, or its acknowledgement, is lost.
            if wire.ends.iter().all(Connection::is_connected) {
                assert!(have_ended, "{:?}", wire.users);
                wire.check();
            }
            wire.sent
        };
        let sent = play();
        prop_assert!(sent == play());
    }

    /// If nothing is duplicated and no acknowledgement is lost, retransmissions are lost segments and needless ones.
    #[test]
    fn retransmissions_match_the_losses(
        writes in 1..1_000_000u64,
        loss in 0.0..0.2f64,
        seed in any::<u64>(),
    ) {
        let there = vec![delay(5), Law::Loss(Loss::Random { fraction: loss })];
        let settings = [Settings::default(), Settings::default()];
        let mut wire = Wire::new(settings, [writes, 0], [there, vec![delay(5)]], seed);
        wire.users[1].closes_last = true;
        prop_assert!(wire.run(Nanos(100_000 * SECOND)));
        wire.check();
        let info = wire.ends[0].info(wire.now);
        let is_data = |packet: &Packet| matches!(packet.kind, Kind::Data { .. });
        let sent = wire.sent.iter().filter(|(_, end, packet)| *end == 0 && is_data(packet));
        let lost = sent.count() as u64 - wire.arrived[1];
        prop_assert_eq!(u64::from(info.sent_again), lost + u64::from(info.needless));
    }
}
