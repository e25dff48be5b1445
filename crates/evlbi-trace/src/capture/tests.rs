//! Packets in virtual time.

use std::net::SocketAddr;

use evlbi_wire::packet::{Content, Datagram, Options, Packet, Segment};
use evlbi_wire::vtp;
use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
const FULL: u32 = 1000;

fn settings() -> Settings {
    Settings {
        every: Nanos(100 * MS),
        width: None,
        max_flows: 100,
    }
}

/// Connection with acknowledged data from the first endpoint to the second.
struct Talk {
    capture: Capture,
    events: Vec<Event>,
    ends: [SocketAddr; 2],
    id: u16,
}

impl Talk {
    fn bare() -> Talk {
        Talk {
            capture: Capture::new(settings()),
            events: Vec::new(),
            ends: ["10.0.0.1:1000", "10.0.0.2:2000"].map(|end| end.parse().unwrap()),
            id: 0,
        }
    }

    /// After the handshake: a round trip of 10 ms, all of it between the capture point and the receiver.
    fn new() -> Talk {
        let mut talk = Talk::bare();
        let options = Options {
            segment: Some(FULL as u16),
            scale: Some(2),
            selective: true,
            whole: true,
            ..Options::default()
        };
        let syn = Segment {
            sequence: u32::MAX,
            begins: true,
            window: 60_000,
            options,
            ..Segment::default()
        };
        talk.pass(0, 0, syn);
        let answer = Segment {
            sequence: 4999,
            acknowledgment: Some(0),
            ..syn
        };
        talk.pass(10 * MS, 1, answer);
        let last = Segment {
            sequence: 0,
            acknowledgment: Some(5000),
            window: 60_000,
            ..Segment::default()
        };
        talk.pass(10 * MS, 0, last);
        talk
    }

    fn pass(&mut self, at: u64, from: usize, segment: Segment) {
        self.id += 1;
        let id = Some(self.id);
        self.pass_as(at, from, segment, id);
    }

    fn pass_as(&mut self, at: u64, from: usize, segment: Segment, identification: Option<u16>) {
        let packet = Packet {
            source: self.ends[from],
            destination: self.ends[1 - from],
            identification,
            length: 40 + segment.length,
            content: Content::Tcp(segment),
        };
        let events = &mut self.events;
        self.capture
            .offer(at, &packet, &mut |_, event| events.push(event));
    }

    /// A full segment, counted from 0.
    fn data(number: u32) -> Segment {
        Segment {
            sequence: number * FULL,
            acknowledgment: Some(5000),
            window: 1000,
            length: FULL,
            ..Segment::default()
        }
    }

    fn sends(&mut self, at: u64, numbers: impl IntoIterator<Item = u32>) {
        for number in numbers {
            self.pass(at, 0, Talk::data(number));
        }
    }

    /// Acknowledges segments before `number`, and a range after it.
    fn acks(&mut self, at: u64, number: u32, selected: Option<(u32, u32)>) {
        let block = selected.map(|(from, to)| (from * FULL, to * FULL));
        let segment = Segment {
            sequence: 5000,
            acknowledgment: Some(number * FULL),
            window: 60_000,
            options: Options {
                blocks: [block, None, None, None],
                ..Options::default()
            },
            ..Segment::default()
        };
        self.pass(at, 1, segment);
    }

    fn finish(self) -> (DirectionReport, Vec<Event>) {
        let mut found = self.capture.finish();
        assert_eq!(found.connections.len(), 1);
        let connection = found.connections.remove(0);
        assert!(connection.is_whole);
        let [there, _] = connection.ways;
        (there, self.events)
    }
}

#[test]
fn a_plain_transfer() {
    let mut talk = Talk::new();
    for round in 0..50 {
        let at = (20 + u64::from(round) * 10) * MS;
        talk.sends(at, round * 4..(round + 1) * 4);
        talk.acks(at + 10 * MS, (round + 1) * 4, None);
    }
    let (way, events) = talk.finish();
    // The first acknowledgements have another window than the handshake.
    assert_eq!(events, []);
    assert_eq!(
        (way.segments, way.bytes, way.acknowledged),
        (200, 200_000, 200_000)
    );
    assert_eq!(
        (way.segment, way.scale, way.selective),
        (Some(FULL), Some(2), Some(true))
    );
    assert_eq!(way.window.unwrap().most, 240_000);
    let trips = way.round_trip.unwrap();
    assert_eq!(
        (trips.min, trips.max, trips.count),
        (10 * MS as i64, 10 * MS as i64, 51)
    );
    assert_eq!(way.behind, Some(0.0));
    assert!((way.rate - 3.2e6).abs() < 1.0, "{}", way.rate);
    let flight = way.flight.unwrap();
    assert_eq!(flight.most, 4000);
    assert!((flight.mean - 4000.0).abs() < 100.0, "{flight:?}");
    assert!(way.held_back.sender > 0.7, "{:?}", way.held_back);
    let all: u64 = way
        .intervals
        .iter()
        .map(|interval| interval.acknowledged)
        .sum();
    assert_eq!(all, 200_000);
}

#[test]
fn retransmissions_have_causes() {
    let mut talk = Talk::new();
    talk.sends(20 * MS, 0..10);
    // Acknowledgements report a gap.
    talk.acks(30 * MS, 2, Some((3, 10)));
    talk.sends(31 * MS, [2]);
    talk.acks(41 * MS, 10, None);
    // No acknowledgement shows whether the last one arrived.
    talk.sends(50 * MS, 10..12);
    talk.acks(60 * MS, 11, None);
    talk.sends(95 * MS, [11]);
    talk.acks(105 * MS, 12, None);
    // A timeout, after which everything is retransmitted, some of it needlessly.
    talk.sends(110 * MS, 12..16);
    talk.sends(400 * MS, [12]);
    talk.acks(410 * MS, 13, None);
    talk.sends(411 * MS, [13, 14]);
    talk.acks(421 * MS, 16, None);
    talk.sends(422 * MS, [15]);
    talk.acks(432 * MS, 16, Some((15, 16)));
    let (way, events) = talk.finish();
    let expected = SentAgain {
        segments: 6,
        bytes: 6000,
        frames: 6,
        fast: 1,
        timeout: 3,
        probe: 1,
        unneeded: 1,
        lost_before: 0,
        timeouts: 1,
    };
    assert_eq!(way.sent_again, expected);
    let kinds = [
        Event::Fast,
        Event::TailProbe,
        Event::Timeout,
        Event::Timeout,
        Event::Timeout,
        Event::Unneeded,
        Event::ReceivedTwice,
    ];
    let others = [Event::DuplicateAcknowledgement, Event::WindowUpdate];
    let told: Vec<Event> = events
        .into_iter()
        .filter(|event| !others.contains(event))
        .collect();
    assert_eq!(told, kinds);
    assert!(way.held_back.repair > 0.5, "{:?}", way.held_back);
}

#[test]
fn overtaken_is_not_lost() {
    let mut talk = Talk::new();
    // By IP identifications: 5 left before 6 and 7, and 8 was sent twice.
    for (number, id) in [
        (4, 100),
        (6, 102),
        (7, 103),
        (5, 101),
        (9, 105),
        (8, 106),
        (9, 105),
    ] {
        let at = (20 + u64::from(id)) * MS;
        talk.pass_as(at, 0, Talk::data(number), Some(id));
    }
    let (way, events) = talk.finish();
    // The first of all is after a gap.
    assert_eq!(
        events,
        [
            Event::Gap,
            Event::Gap,
            Event::Reordered,
            Event::Gap,
            Event::Fast,
            Event::Duplicate
        ]
    );
    assert_eq!((way.reordered, way.duplicates, way.gaps), (1, 1, 3));
    assert_eq!(way.reordering.unwrap().max, 3000);
    assert_eq!(
        (way.sent_again.segments, way.sent_again.lost_before),
        (1, 1)
    );

    // By timestamps, if packets have no identifications; by time, if timestamps do not differ.
    for (stamps, at, expected) in [
        ([7, 8, 9], 60, Event::Fast),
        ([7, 8, 7], 60, Event::Reordered),
        ([7, 7, 7], 60, Event::Fast),
        ([7, 7, 7], 41, Event::Reordered),
    ] {
        let mut talk = Talk::new();
        for ((number, at), stamp) in [(0, 40), (2, 40), (1, at)].into_iter().zip(stamps) {
            let mut segment = Talk::data(number);
            segment.options.stamps = Some((stamp, 0));
            talk.pass_as(at * MS, 0, segment, None);
        }
        let (_, events) = talk.finish();
        assert_eq!(events, [Event::Gap, expected], "{stamps:?} {at}");
    }

    // After the capture point: selectively acknowledged first, and not retransmitted.
    let mut talk = Talk::new();
    talk.sends(20 * MS, 0..4);
    talk.acks(30 * MS, 1, Some((2, 4)));
    talk.acks(31 * MS, 4, None);
    let (way, _) = talk.finish();
    assert_eq!((way.reordered_beyond, way.sent_again.segments), (1, 0));
}

/// Data overtaken before the capture point do not count as overtaken after it, too; and random identifications are not trusted.
#[test]
fn places_of_reordering() {
    let mut talk = Talk::new();
    for (number, id) in [(0, 100), (2, 102), (1, 101), (3, 103)] {
        talk.pass_as(
            (20 + u64::from(number)) * MS,
            0,
            Talk::data(number),
            Some(id),
        );
    }
    talk.acks(30 * MS, 1, Some((2, 3)));
    talk.acks(31 * MS, 4, None);
    let (way, _) = talk.finish();
    assert_eq!((way.reordered, way.reordered_beyond), (1, 0));

    let mut talk = Talk::new();
    let ids = [9, 60_000, 31_000, 2000, 47_000, 12_000, 5, 40_000];
    for (number, id) in ids.into_iter().enumerate() {
        talk.pass_as(20 * MS, 0, Talk::data(number as u32), Some(id));
    }
    talk.acks(30 * MS, 2, Some((3, 8)));
    talk.pass_as(31 * MS, 0, Talk::data(2), Some(7));
    talk.acks(41 * MS, 8, None);
    let (way, _) = talk.finish();
    assert_eq!((way.sent_again.fast, way.duplicates), (1, 0));
}

/// A connection that idles before it ends has the same rate; a FIN on its own starts no round.
#[test]
fn an_end_long_after() {
    let mut talk = Talk::new();
    for round in 0..10 {
        let at = (20 + u64::from(round) * 10) * MS;
        talk.sends(at, round * 4..(round + 1) * 4);
        talk.acks(at + 10 * MS, (round + 1) * 4, None);
    }
    let end = Segment {
        ends: true,
        length: 0,
        ..Talk::data(40)
    };
    talk.pass(60_000 * MS, 0, end);
    let mut ack = Talk::data(0);
    ack = Segment {
        sequence: 5000,
        acknowledgment: Some(40 * FULL + 1),
        length: 0,
        ..ack
    };
    talk.pass(60_010 * MS, 1, ack);
    let (way, _) = talk.finish();
    assert_eq!(way.acknowledged, 40_000);
    assert!((way.seconds - 0.1).abs() < 1e-9 && (way.rate - 3.2e6).abs() < 1.0);
    let held = way.held_back;
    assert!(held.window + held.sender > 0.9, "{held:?}");
}

/// A window of unknown scale is only meaningful if it is zero.
#[test]
fn scales_that_were_not_seen() {
    let mut talk = Talk::bare();
    let answer = |whole, scale| Segment {
        sequence: 4999,
        acknowledgment: Some(0),
        begins: true,
        window: 1000,
        options: Options {
            scale,
            whole,
            ..Options::default()
        },
        ..Segment::default()
    };
    // Options truncated.
    talk.pass(0, 1, answer(false, None));
    talk.sends(MS, 0..2);
    talk.acks(11 * MS, 2, None);
    let mut closed = Talk::data(0);
    closed = Segment {
        sequence: 5000,
        acknowledgment: Some(2 * FULL),
        window: 0,
        length: 0,
        ..closed
    };
    talk.pass(12 * MS, 1, closed);
    talk.acks(500 * MS, 2, None);
    talk.sends(500 * MS, 2..4);
    talk.acks(510 * MS, 4, None);
    let found = talk.capture.finish();
    let way = &found.connections[0].ways[0];
    assert_eq!((way.window, way.scale, way.zero_windows), (None, None, 1));
    assert!(way.held_back.receiver > 0.9, "{:?}", way.held_back);
    for (whole, scale, expected) in [
        (true, None, Some(0)),
        (true, Some(7), Some(7)),
        (false, Some(7), Some(7)),
    ] {
        let mut talk = Talk::bare();
        talk.pass(0, 1, answer(whole, scale));
        talk.sends(MS, 0..2);
        let found = talk.capture.finish();
        assert_eq!(found.connections[0].ways[0].scale, expected);
    }
}

#[test]
fn packets_missing_from_the_capture_are_not_lost() {
    let mut talk = Talk::new();
    talk.sends(20 * MS, [0, 3]);
    talk.acks(30 * MS, 6, None);
    let (way, events) = talk.finish();
    assert_eq!(events, [Event::Gap, Event::AcknowledgedUnseen]);
    assert_eq!(
        (way.missed, way.acknowledged, way.bytes),
        (4000, 6000, 2000)
    );
    assert_eq!(way.sent_again, SentAgain::default());
}

/// The end of the window is reached in each round trip; and a window of zero.
#[test]
fn the_receiver_limits() {
    let mut talk = Talk::new();
    let ack = |number: u32, window: u16| Segment {
        sequence: 5000,
        acknowledgment: Some(number * FULL),
        window,
        ..Segment::default()
    };
    for round in 0..20 {
        let at = (20 + u64::from(round) * 10) * MS;
        talk.sends(at, round * 4..(round + 1) * 4);
        // Scaled by 2 bits: four segments.
        talk.pass(at + 10 * MS, 1, ack((round + 1) * 4, 1000));
    }
    talk.pass(230 * MS, 1, ack(80, 0));
    talk.pass(530 * MS, 1, ack(80, 1000));
    talk.sends(530 * MS, 80..84);
    talk.pass(540 * MS, 1, ack(84, 1000));
    let (way, events) = talk.finish();
    assert_eq!((way.window_full, way.zero_windows), (20, 1));
    assert!((way.zero_seconds - 0.3).abs() < 1e-9);
    assert_eq!(way.idle.periods, 0);
    assert!(way.held_back.receiver > 0.95, "{:?}", way.held_back);
    assert!(events.contains(&Event::ZeroWindow) && events.contains(&Event::WindowUpdate));
}

#[test]
fn an_application_with_pauses() {
    let mut talk = Talk::new();
    for burst in 0..10 {
        let at = (20 + u64::from(burst) * 100) * MS;
        talk.sends(at, burst * 4..(burst + 1) * 4);
        talk.acks(at + 10 * MS, (burst + 1) * 4, None);
    }
    let (way, _) = talk.finish();
    assert_eq!(way.idle.periods, 9);
    assert!((way.idle.longest - 0.09).abs() < 1e-6 && (way.idle.seconds - 0.81).abs() < 1e-6);
    assert!(way.held_back.application > 0.8, "{:?}", way.held_back);
}

/// A FIN takes a number, but is not a byte in flight.
#[test]
fn a_fin_is_not_data() {
    let mut talk = Talk::new();
    talk.sends(20 * MS, 0..3);
    let last = Segment {
        ends: true,
        ..Talk::data(3)
    };
    talk.pass(20 * MS, 0, last);
    let answer = Segment {
        sequence: 5000,
        acknowledgment: Some(4 * FULL + 1),
        window: 60_000,
        ..Segment::default()
    };
    talk.pass(30 * MS, 1, answer);
    let (way, _) = talk.finish();
    assert_eq!(way.flight.unwrap().most, 4000);
    assert_eq!(way.acknowledged, 4000);
}

/// At the receiver as at the sender: the echoes of timestamps show what the sender knew.
#[test]
fn flight_is_the_senders_wherever_it_is_seen() {
    // Twelve segments in each round trip of 20 ms, a millisecond apart; capture points at several distances from the sender.
    for there in [0, 5, 10] {
        let mut packets = Vec::new();
        let left = |number: u64| 40 + number / 12 * 20 + number % 12;
        for number in 0..600_u64 {
            let [mut data, mut ack] = [
                Talk::data(number as u32),
                Segment {
                    sequence: 5000,
                    acknowledgment: Some((number as u32 + 1) * FULL),
                    window: 60_000,
                    ..Segment::default()
                },
            ];
            // It left when the one twelve before had been acknowledged, with a timestamp from halfway.
            let echo = number.checked_sub(12).map_or(0, |before| left(before) + 10);
            data.options.stamps = Some((left(number) as u32, echo as u32));
            ack.options.stamps = Some(((left(number) + 10) as u32, left(number) as u32));
            packets.push((left(number) + there, 0, data));
            packets.push((left(number) + 20 - there, 1, ack));
        }
        // The sender responds, and so does the receiver.
        packets.sort_by_key(|(at, from, _)| (*at, (there == 0) ^ (*from == 1)));
        let mut talk = Talk::bare();
        for (at, from, segment) in packets {
            talk.pass_as(at * MS, from, segment, None);
        }
        let found = talk.capture.finish();
        let ways = found.connections[0].ways.iter();
        let way = ways.max_by_key(|way| way.bytes).unwrap();
        assert_eq!(way.flight.unwrap().most, 12_000, "{there}");
        assert_eq!(way.behind, Some(there as f64 * 2e-3));
    }
}

#[test]
fn the_same_ports_again_are_another_connection() {
    let mut talk = Talk::new();
    talk.sends(20 * MS, 0..3);
    let again = Segment {
        sequence: 77,
        begins: true,
        window: 1000,
        ..Segment::default()
    };
    talk.pass(500 * MS, 0, again);
    let found = talk.capture.finish();
    assert_eq!(found.connections.len(), 2);
    assert_eq!(
        found.connections.iter().filter(|one| one.is_whole).count(),
        1
    );
}

/// A port scan does not make memory grow.
#[test]
fn small_connections_are_counted_when_there_are_many() {
    let mut capture = Capture::new(settings());
    let end = |host: u32, port: u16| SocketAddr::new(std::net::Ipv4Addr::from(host).into(), port);
    let syn = Segment {
        begins: true,
        ..Segment::default()
    };
    for number in 0..10_000 {
        for (source, bytes) in [(end(1, 1), 1000), (end(number + 2, 9), 40)] {
            let packet = Packet {
                source,
                destination: end(2, 2),
                identification: None,
                length: bytes,
                content: Content::Tcp(Segment {
                    length: bytes - 40,
                    ..syn
                }),
            };
            capture.offer(u64::from(number), &packet, &mut |_, _| {});
            let datagram = Datagram {
                length: bytes,
                payload: &[],
                checksum: 0,
            };
            let packet = Packet {
                content: Content::Udp(datagram),
                ..packet
            };
            capture.offer(u64::from(number), &packet, &mut |_, _| {});
        }
    }
    let found = capture.finish();
    assert!(found.connections.len() <= 100 && found.streams.len() <= 100);
    // The largest is analysed completely.
    assert_eq!(
        (found.connections[0].packets, found.streams[0].packets),
        (10_000, 10_000)
    );
    let packets: u64 = found.connections.iter().map(|one| one.packets).sum();
    let datagrams: u64 = found.streams.iter().map(|one| one.packets).sum();
    assert_eq!(found.others.packets + packets + datagrams, 40_000);
}

fn stream(datagrams: impl IntoIterator<Item = Vec<u8>>) -> Stream {
    let datagrams = datagrams.into_iter();
    stream_of(datagrams.map(|payload| (payload.len() as u32, payload)))
}

/// Datagrams of these lengths, and the bytes captured of each.
fn stream_of(datagrams: impl IntoIterator<Item = (u32, Vec<u8>)>) -> Stream {
    let mut capture = Capture::new(settings());
    for (number, (length, payload)) in datagrams.into_iter().enumerate() {
        let packet = Packet {
            source: "10.0.0.1:1".parse().unwrap(),
            destination: "10.0.0.2:2630".parse().unwrap(),
            identification: None,
            length: length + 28,
            content: Content::Udp(Datagram {
                length,
                payload: &payload,
                checksum: 0,
            }),
        };
        capture.offer(number as u64 * 1000, &packet, &mut |_, _| {});
    }
    capture.finish().streams.remove(0)
}

fn numbered(number: u64) -> Vec<u8> {
    [&vtp::header(number)[..], &[number as u8; 100]].concat()
}

#[test]
fn streams_are_known_by_their_numbers() {
    let kept = (1000..11_000).filter(|number| number % 100 != 7);
    let found = stream(kept.map(numbered));
    assert_eq!((found.numbers, found.datagrams), (Numbers::Vtp, 9900));
    let counters = found.account.as_ref().unwrap().counters.clone();
    assert_eq!(
        (counters.unique, counters.lost, counters.duplicates),
        (9900, 100, 0)
    );
    assert_eq!(found.gaps.unwrap().median, 1000);

    let intervals = &found.intervals;
    assert_eq!(intervals.len(), 1);
    assert_eq!((intervals[0].packets, intervals[0].lost), (9900, 100));

    // Several in one packet, as captured on a host with segmentation offload.
    let trains = (0..100).map(|train| {
        (0..8)
            .flat_map(|place| numbered(train * 8 + place))
            .collect()
    });
    let found = stream(trains);
    assert_eq!((found.packets, found.datagrams), (100, 800));
    assert_eq!(found.account.unwrap().counters.lost, 0);

    // The first ones in packets of their own.
    let singles = (0..30).map(numbered);
    let trains = (0..10).map(|train| {
        (0..5)
            .flat_map(|place| numbered(30 + train * 5 + place))
            .collect()
    });
    let found = stream(singles.chain(trains));
    assert_eq!(
        (found.datagrams, found.account.unwrap().counters.lost),
        (80, 0)
    );

    // The same with only the start of each packet captured, and one of them missing.
    let heads = (0..100)
        .filter(|train| *train != 50)
        .map(|train| numbered(train * 8));
    let found = stream_of(heads.map(|payload| (8 * 1464, payload[..60].to_vec())));
    assert_eq!((found.packets, found.datagrams), (99, 792));
    assert_eq!(found.account.unwrap().counters.lost, 8);

    // No longer than a frame: each packet may contain two, or every second one may be lost. It counts as loss, and the step is
    // reported.
    let heads = (0..100).map(|packet| numbered(packet * 2));
    let found = stream_of(heads.map(|payload| (1464, payload[..60].to_vec())));
    assert_eq!((found.datagrams, found.step), (100, Some(2)));
    assert_eq!(found.account.unwrap().counters.lost, 99);

    // Captured twice.
    let found = stream((0..100).flat_map(|number| [numbered(number), numbered(number)]));
    let counters = found.account.unwrap().counters;
    assert_eq!(
        (counters.unique, counters.duplicates, counters.lost),
        (100, 100, 0)
    );

    // Restarted far ahead.
    let found = stream((0..50).chain(1 << 30..(1 << 30) + 50).map(numbered));
    let counters = found.account.unwrap().counters;
    assert_eq!(
        (counters.unique, counters.lost, counters.restarts),
        (100, 0, 1)
    );

    // A forged length costs no time.
    let found = stream_of((0..100).map(|number| (1 << 20, numbered(number))));
    assert_eq!(found.packets, 100);

    let noise = (0..100u64).map(|number| {
        number
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .to_le_bytes()
            .repeat(4)
    });
    let found = stream(noise);
    assert_eq!((found.numbers, found.account), (Numbers::None, None));
}

proptest! {
    /// For any packets, nothing panics and the sums hold.
    #[test]
    fn hostile_segments(
        packets in proptest::collection::vec(
            (any::<(u32, u32, u16, u8, u64)>(), any::<[(u32, u32); 2]>(), 0u32..100_000, any::<bool>()), 0..80,
        ),
        narrow in any::<bool>(),
    ) {
        let mut talk = Talk::new();
        for ((sequence, acknowledgment, window, flags, at), blocks, length, from) in packets {
            let near = |number: u32| if narrow { number % 20_000 } else { number };
            let segment = Segment {
                sequence: near(sequence),
                acknowledgment: (flags & 1 > 0).then_some(near(acknowledgment)),
                begins: flags & 6 == 6,
                ends: flags & 24 == 24,
                resets: flags & 224 == 224,
                window,
                length: length % if narrow { 3000 } else { 100_000 },
                options: Options {
                    stamps: (flags & 32 > 0).then_some((sequence, acknowledgment)),
                    scale: (flags & 64 > 0).then_some(flags),
                    blocks: [Some(blocks[0]), (flags & 128 > 0).then_some((near(blocks[1].0), near(blocks[1].1))), None, None],
                    ..Options::default()
                },
            };
            talk.pass_as(if narrow { at % 1_000_000_000 } else { at }, usize::from(from), segment, (flags & 2 > 0).then_some(window));
        }
        for connection in talk.capture.finish().connections {
            for way in connection.ways {
                let again = way.sent_again;
                prop_assert_eq!(again.segments, again.fast + again.timeout + again.probe + again.unneeded);
                let held = way.held_back;
                let all = held.application + held.receiver + held.repair + held.path + held.window + held.sender;
                prop_assert!(all < 1.000_001, "{:?}", held);
                prop_assert!(way.intervals.len() <= 4096);
            }
        }
    }

    #[test]
    fn hostile_datagrams(payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 1..60)) {
        let count = payloads.len() as u64;
        let found = stream(payloads);
        prop_assert_eq!(found.packets, count);
    }
}
