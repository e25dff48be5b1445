//! Analysis of captures of all formats, and of other files.

use std::error::Error;
use std::fs;
use std::io::Write;
use std::time::Duration;

use evlbi_net::run::Run;
use evlbi_probe::analyse::{self, AnalyseOptions, Analysis, Reader, picture, show};
use evlbi_testkit::Room;
use evlbi_testkit::result::{refused, shown};
use serde_json::{Value, json};

/// Returns options for a whole file.
fn of(file: &str) -> AnalyseOptions {
    AnalyseOptions {
        file: file.into(),
        ..AnalyseOptions::default()
    }
}

pub fn attempt(options: &AnalyseOptions) -> Result<Analysis, Box<dyn Error + Send + Sync>> {
    let reader = Reader::open(&options.file)?;
    Ok(analyse::analyse(options, reader, &Run::silent())?)
}

#[track_caller]
fn analysed(file: &str) -> Value {
    shown(attempt(&of(file)))
}

const HERE: [u8; 4] = [10, 0, 0, 1];
const THERE: [u8; 4] = [10, 0, 0, 2];

const SYN: u8 = 2;
const ACK: u8 = 16;

/// Returns a segment over Ethernet and IPv4, in either direction.
fn frame(
    is_back: bool,
    id: u16,
    [sequence, acknowledgment]: [u32; 2],
    flags: u8,
    options: &[u8],
    payload: usize,
) -> Vec<u8> {
    let (source, destination) = if is_back {
        (THERE, HERE)
    } else {
        (HERE, THERE)
    };
    let ports: [u16; 2] = if is_back {
        [8620, 40000]
    } else {
        [40000, 8620]
    };
    let length = (40 + options.len() + payload) as u16;
    let mut frame = vec![0; 12];
    frame.extend([8, 0, 0x45, 0]);
    frame.extend(length.to_be_bytes());
    frame.extend(id.to_be_bytes());
    frame.extend([0x40, 0, 64, 6, 0, 0]);
    frame.extend(source);
    frame.extend(destination);
    frame.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
    frame.extend(sequence.to_be_bytes());
    frame.extend(acknowledgment.to_be_bytes());
    frame.extend([
        (20 + options.len() as u8) << 2,
        flags,
        0xff,
        0xff,
        0,
        0,
        0,
        0,
    ]);
    frame.extend(options);
    frame.extend(vec![7; payload]);
    frame
}

/// Returns a transfer of 40 segments of 1000 bytes in rounds of 10 ms, the ninth of which is retransmitted: times in nanoseconds.
fn transfer() -> Vec<(u64, Vec<u8>)> {
    let ms = 1_000_000;
    let begin = 1_700_000_000_000 * ms;
    let options = [2, 4, 3, 232, 3, 3, 2, 0];
    let mut packets = vec![
        (0, frame(false, 1, [99, 0], SYN, &options, 0)),
        (10, frame(true, 1, [499, 100], SYN | ACK, &options, 0)),
        (10, frame(false, 2, [100, 500], ACK, &[], 0)),
    ];
    for number in 0..40 {
        let at = 20 + 10 * u64::from(number);
        packets.push((
            at,
            frame(
                false,
                3 + number as u16,
                [100 + 1000 * number, 500],
                ACK,
                &[],
                1000,
            ),
        ));
        if number == 8 {
            packets.push((
                at + 5,
                frame(false, 300, [100 + 1000 * number, 500], ACK, &[], 1000),
            ));
        }
        packets.push((
            at + 10,
            frame(
                true,
                2 + number as u16,
                [500, 1100 + 1000 * number],
                ACK,
                &[],
                0,
            ),
        ));
    }
    packets.sort_by_key(|(at, _)| *at);
    packets
        .into_iter()
        .map(|(at, frame)| (begin + at * ms, frame))
        .collect()
}

fn number(bytes: u32, is_big: bool) -> [u8; 4] {
    if is_big {
        bytes.to_be_bytes()
    } else {
        bytes.to_le_bytes()
    }
}

/// Encodes packets as pcap, with this much of each captured.
fn pcap(
    packets: &[(u64, Vec<u8>)],
    is_big: bool,
    is_fine: bool,
    link: u32,
    most: usize,
) -> Vec<u8> {
    let word = |value: u32| number(value, is_big);
    let mut file = Vec::new();
    file.extend(word(if is_fine { 0xa1b2_3c4d } else { 0xa1b2_c3d4 }));
    file.extend(if is_big { [0, 2, 0, 4] } else { [2, 0, 4, 0] });
    for value in [0, 0, 262_144, link] {
        file.extend(word(value));
    }
    for (at, packet) in packets {
        let captured = packet.len().min(most);
        let fraction = (at % 1_000_000_000) / if is_fine { 1 } else { 1000 };
        for value in [
            (at / 1_000_000_000) as u32,
            fraction as u32,
            captured as u32,
            packet.len() as u32,
        ] {
            file.extend(word(value));
        }
        file.extend(&packet[..captured]);
    }
    file
}

/// Time offset of a pcapng's interface, in seconds, stated once in the file.
const OFFSET: u32 = 1_000_000;

/// Encodes packets as pcapng with nanoseconds, and a count of drops.
fn pcapng(packets: &[(u64, Vec<u8>)], is_big: bool, dropped: u32) -> Vec<u8> {
    let word = |value: u32| number(value, is_big);
    let halves = |one: u16, other: u16| {
        let value = if is_big {
            u32::from(one) << 16 | u32::from(other)
        } else {
            u32::from(other) << 16 | u32::from(one)
        };
        word(value)
    };
    let long = |value: u32| {
        match is_big {
            true => [word(0), word(value)],
            false => [word(value), word(0)],
        }
        .concat()
    };
    let block = |kind: u32, body: &[u8]| {
        let padding = vec![0; body.len().next_multiple_of(4) - body.len()];
        let length = word((12 + body.len() + padding.len()) as u32);
        [&word(kind)[..], &length, body, &padding, &length].concat()
    };
    let mut file = block(
        0x0a0d_0d0a,
        &[&word(0x1a2b_3c4d)[..], &halves(1, 0), &[0xff; 8]].concat(),
    );
    file.extend(block(
        1,
        &[
            &halves(1, 0)[..],
            &word(0),
            &halves(9, 1),
            &[9, 0, 0, 0],
            &halves(14, 8),
            &long(OFFSET),
            &halves(0, 0),
        ]
        .concat(),
    ));
    for (at, packet) in packets {
        let at = at - u64::from(OFFSET) * 1_000_000_000;
        let head = [
            0,
            (at >> 32) as u32,
            at as u32,
            packet.len() as u32,
            packet.len() as u32,
        ]
        .map(word)
        .concat();
        file.extend(block(6, &[&head[..], packet].concat()));
    }
    let count = long(dropped);
    let told = [
        &word(0)[..],
        &word(0),
        &word(0),
        &halves(5, 8),
        &count,
        &halves(0, 0),
    ]
    .concat();
    file.extend(block(5, &told));
    file
}

/// Returns the analysis without the file's name and size.
fn found(mut analysis: Value) -> Value {
    for name in ["file", "bytes", "dropped", "findings"] {
        analysis[name].take();
    }
    analysis
}

#[test]
fn captures_of_every_kind_give_the_same_analysis() {
    let room = Room::new();
    let packets = transfer();
    let cooked: Vec<(u64, Vec<u8>)> = packets
        .iter()
        .map(|(at, frame)| (*at, [&[0; 14][..], &frame[12..]].concat()))
        .collect();
    let bare: Vec<(u64, Vec<u8>)> = packets
        .iter()
        .map(|(at, frame)| (*at, frame[14..].to_vec()))
        .collect();
    let write = |name: &str, bytes: Vec<u8>| -> String {
        let path = room.path(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let first = write("first.pcap", pcap(&packets, false, false, 1, 65535));
    let expected = analysed(&first);
    let connection = &expected["connections"][0];
    let way = &connection["ways"][0];
    assert_eq!(
        connection["ends"],
        json!(["10.0.0.1:40000", "10.0.0.2:8620"])
    );
    assert_eq!(
        (&way["segments"], &way["acknowledged"], &way["bytes"]),
        (&41.into(), &40_000.into(), &41_000.into())
    );
    assert_eq!(
        (&way["sent_again"]["segments"], &way["scale"]),
        (&1.into(), &2.into())
    );
    assert_eq!(
        (&connection["handshake"], &way["round_trip"]["min"]),
        (&0.01.into(), &10_000_000.into())
    );
    assert_eq!(expected["begun"], "2023-11-14T22:13:20Z");
    let said = connection["findings"].to_string();
    assert!(said.contains("1 of 41 segments retransmitted"), "{said}");
    let expected = found(expected);
    for (name, bytes) in [
        ("fine", pcap(&packets, false, true, 1, 65535)),
        ("big", pcap(&packets, true, false, 1, 65535)),
        ("big and fine", pcap(&packets, true, true, 1, 65535)),
        ("short", pcap(&packets, false, false, 1, 62)),
        ("new", pcapng(&packets, false, 0)),
        ("new and big", pcapng(&packets, true, 0)),
    ] {
        assert_eq!(
            found(analysed(&write("other.pcap", bytes))),
            expected,
            "{name}"
        );
    }
    for (link, packets) in [(113, &cooked), (101, &bare)] {
        let bytes = pcap(packets, false, false, link, 65535);
        let other = analysed(&write("other.pcap", bytes));
        assert_eq!(other["connections"], expected["connections"], "{link}");
    }
}

/// A burst and then occasional bytes: steadiness is that of the rate as a whole.
#[test]
fn a_burst_before_a_trickle_is_not_steady() {
    let room = Room::new();
    let mut packets = transfer();
    let (begun, mut next) = (packets[0].0, 40_100);
    for second in 1..7 {
        let at = begun + second * 1_000_000_000;
        packets.push((at, frame(false, 400, [next, 500], ACK, &[], 98)));
        next += 98;
        let answer = frame(true, 400, [500, next], ACK, &[], 0);
        packets.push((at + 10_000_000, answer));
    }
    // Ten segments per second are enough for a rate.
    for extra in 0..40 {
        let at = begun + 430_000_000 + extra * 1_000_000;
        packets.push((at, frame(false, 500, [39_100, 500], ACK, &[], 1000)));
    }
    packets.sort_by_key(|(at, _)| *at);
    let file = room.write("c.pcap", pcap(&packets, false, false, 1, 65535));
    let said = analysed(&file)["connections"][0]["findings"].to_string();
    assert!(said.contains("unsteady: 784.000 bit/s to"), "{said}");
    assert!(!said.contains("\"steady"), "{said}");
}

#[test]
fn missing_parts_of_a_capture_are_reported() {
    let room = Room::new();
    let packets = transfer();
    let path = room.path("c.pcapng");
    let mut analysis = Value::Null;
    for is_big in [false, true] {
        fs::write(&path, pcapng(&packets, is_big, 7)).unwrap();
        analysis = analysed(&path);
        assert_eq!(analysis["dropped"], 7);
    }
    assert!(
        analysis["findings"]
            .to_string()
            .contains("dropped 7 packets itself")
    );
    // The end of the file is cut off.
    let whole = pcap(&packets, false, false, 1, 65535);
    fs::write(&path, &whole[..whole.len() - 30]).unwrap();
    let analysis = analysed(&path);
    assert_eq!(analysis["packets"], packets.len() - 1);
    assert!(
        analysis["broken"]
            .as_str()
            .unwrap()
            .contains("ends within a packet")
    );
    // Damage in the middle of a pcapng.
    let mut bytes = pcapng(&packets, false, 0);
    let middle = bytes.len() / 2 / 4 * 4;
    bytes[middle..middle + 1500].fill(0xee);
    fs::write(&path, &bytes).unwrap();
    let analysis = analysed(&path);
    assert!(analysis["packets"].as_u64().unwrap() > 10);
    assert!(!analysis["broken"].is_null());
    // Packets of two queues, out of order.
    let mut mixed = packets.clone();
    mixed.swap(20, 24);
    fs::write(&path, pcap(&mixed, false, false, 1, 65535)).unwrap();
    let said = analysed(&path)["findings"].to_string();
    assert!(said.contains("go back"), "{said}");
    // Without the start of the connection.
    fs::write(&path, pcap(&packets[10..], false, false, 1, 65535)).unwrap();
    let analysis = analysed(&path);
    let said = analysis["connections"][0]["findings"].to_string();
    assert!(said.contains("start was not captured"), "{said}");
    assert!(analysis["connections"][0]["ways"][0]["window"].is_null());
}

#[test]
fn files_written_with_the_result() {
    let room = Room::new();
    let path = room.path("c.pcap");
    fs::write(&path, pcap(&transfer(), false, false, 1, 65535)).unwrap();
    let [samples, events] = ["s.csv", "e.csv"].map(|name| room.path(name));
    let options = AnalyseOptions {
        samples: Some(samples.into()),
        events: Some(events.into()),
        interval: Duration::from_millis(100),
        ..of(&path)
    };
    let analysis = attempt(&options).unwrap();
    let text = show::text(&analysis);
    for part in [
        "10.0.0.1:40000",
        "limited by",
        "1 of 41 segments retransmitted",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let samples = room.text("s.csv");
    assert_eq!(samples.lines().count(), 1 + 5, "{samples}");
    let events = room.text("e.csv");
    assert!(
        events.contains(",0.105000000,10.0.0.1:40000,10.0.0.2:8620,"),
        "{events}"
    );
    let figure = picture::figure(&analysis);
    assert_eq!(figure.panels[0].title, "achieved throughput");
    let said = refused(attempt(&options));
    assert!(said.contains("exists"), "{said}");
    // Other ports and hosts.
    let none = shown(attempt(&AnalyseOptions {
        port: vec![1],
        ..of(&path)
    }));
    assert_eq!(
        (
            &none["left_out"],
            none["connections"].as_array().unwrap().len()
        ),
        (&none["packets"], 0)
    );
    let one = shown(attempt(&AnalyseOptions {
        host: vec![[10, 0, 0, 2].into()],
        port: vec![8620],
        ..of(&path)
    }));
    assert_eq!(one["left_out"], 0);
}

/// If there are more connections than `most`, the largest are kept; packets and bytes of the others are counted.
#[test]
fn the_largest_connections_are_kept() {
    let room = Room::new();
    let mut packets = transfer();
    let begun = packets[0].0;
    let flows = [(41_000u16, 30), (42_000, 1), (43_000, 2), (44_000, 1)];
    for (order, (port, segments)) in (0..).zip(flows) {
        for number in 0..segments {
            let mut bytes = frame(false, 9, [1 + 500 * number, 1], ACK, &[], 500);
            bytes[34..36].copy_from_slice(&port.to_be_bytes());
            packets.push((
                begun + 430_000_000 + 10_000_000 * order + 1000 * u64::from(number),
                bytes,
            ));
        }
    }
    packets.sort_by_key(|(at, _)| *at);
    let file = room.write("c.pcap", pcap(&packets, false, false, 1, 65535));
    let all = analysed(&file);
    assert_eq!(all["connections"].as_array().unwrap().len(), 5);
    assert_eq!(all["others"]["flows"], 0);
    // The fifth evicts half of the four.
    let some = shown(attempt(&AnalyseOptions {
        most: 4,
        ..of(&file)
    }));
    assert_eq!(some["connections"].as_array().unwrap().len(), 3, "{some}");
    let others = &some["others"];
    assert_eq!(
        (&others["flows"], &others["packets"]),
        (&2.into(), &3.into())
    );
    let said = some["findings"].to_string();
    assert!(
        said.contains("2 smaller connections and streams, of 3 packets"),
        "{said}"
    );
}

/// A transfer over IPv6 gives the same analysis as over IPv4.
#[test]
fn captures_of_ipv6_give_the_same_analysis() {
    let room = Room::new();
    let v4 = transfer();
    let v6: Vec<(u64, Vec<u8>)> = v4
        .iter()
        .map(|(at, frame)| {
            let (ethernet, rest) = frame.split_at(12);
            let (header, segment) = (&rest[2..22], &rest[22..]);
            let ip = |v4: &[u8]| [&[0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0][..], v4].concat();
            let length = (segment.len() as u16).to_be_bytes();
            let [source, destination] = [ip(&header[12..16]), ip(&header[16..20])];
            let head = [0x86, 0xdd, 0x60, 0, 0, 0, length[0], length[1], 6, 64];
            (
                *at,
                [ethernet, &head, &source, &destination, segment].concat(),
            )
        })
        .collect();
    let write = |name: &str, packets: &[(u64, Vec<u8>)], most| {
        room.write(name, pcap(packets, false, true, 1, most))
    };
    let expected = analysed(&write("4.pcap", &v4, 65535));
    for most in [65535, 128] {
        let found = analysed(&write("6.pcap", &v6, most));
        let connection = &found["connections"][0];
        assert_eq!(
            connection["ends"],
            json!(["[2001:db8::a00:1]:40000", "[2001:db8::a00:2]:8620"])
        );
        assert_eq!(
            connection["ways"], expected["connections"][0]["ways"],
            "{most}"
        );
        assert_eq!(
            connection["findings"],
            expected["connections"][0]["findings"]
        );
    }
    // Ten datagrams of VTP, without number 4.
    let ip = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    let datagram = |number: u64| {
        let head = [0x86, 0xdd, 0x60, 0, 0, 0, 0, 8 + 8 + 100, 17, 64];
        let udp = [0x9c, 0x40, 0x0a, 0x46, 0, 8 + 8 + 100, 0, 0];
        let data = [&number.to_le_bytes()[..], &[7; 100]].concat();
        [&[0; 12][..], &head, &ip, &ip, &udp, &data].concat()
    };
    let numbers = (0..10).filter(|number| *number != 4);
    let stream: Vec<(u64, Vec<u8>)> = numbers
        .map(|number| {
            (
                1_700_000_000_000_000_000 + number * 1_000_000,
                datagram(number),
            )
        })
        .collect();
    let stream = analysed(&write("stream.pcap", &stream, 65535))["streams"][0].take();
    let ends = ["[2001:db8::9]:40000", "[2001:db8::9]:2630"];
    assert_eq!(stream["ends"], json!(ends));
    assert_eq!(stream["account"]["lost"], 1, "{stream}");
    let file = room.path("6.pcap");
    let host = |address: &str| {
        let options = AnalyseOptions {
            host: vec![address.parse().unwrap()],
            ..of(&file)
        };
        shown(attempt(&options))["left_out"].take()
    };
    assert_eq!(host("2001:db8::a00:1"), 0);
    assert_eq!(host("2001:db8::9"), v6.len());
}

/// Compresses bytes by gzip.
fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

/// A capture compressed by gzip, in one or several members, padded, and with any name, gives the same analysis.
#[test]
fn packed_captures_are_read() {
    let room = Room::new();
    let path = room.path("c.pcap");
    let bytes = pcap(&transfer(), false, false, 1, 65535);
    fs::write(&path, &bytes).unwrap();
    let expected = analysed(&path);
    let (first, second) = bytes.split_at(bytes.len() / 3);
    let padded = [packed(&bytes), vec![0; 512]].concat();
    for file in [
        packed(&bytes),
        [packed(first), packed(second)].concat(),
        padded,
    ] {
        fs::write(&path, file).unwrap();
        assert_eq!(analysed(&path), expected);
    }
}

/// A truncated or damaged gzip file is analysed up to there.
#[test]
fn packed_captures_that_are_cut_off_are_read_as_far_as_they_go() {
    let room = Room::new();
    let path = room.path("c.pcap.gz");
    let packets = transfer();
    let bytes = pcap(&packets, false, false, 1, 65535);
    let whole = packed(&bytes);
    for length in [whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        let analysis = analysed(&path);
        let found = analysis["packets"].as_u64().unwrap() as usize;
        assert!(0 < found && found <= packets.len(), "{found}");
        let broken = analysis["broken"].as_str().unwrap();
        assert!(
            broken.contains("the packed file is cut off there"),
            "{broken}"
        );
    }
    let mut damaged = packed(&bytes);
    let middle = damaged.len() / 2;
    damaged.truncate(middle);
    damaged.extend([0xff; 1000]);
    fs::write(&path, damaged).unwrap();
    assert!(analysed(&path)["broken"].is_string());
    // None of it can be read.
    fs::write(&path, &whole[..12]).unwrap();
    let error = refused(attempt(&of(&path)));
    assert!(error.contains("cannot read"), "{error}");
}

/// A small file that decompresses to a huge packet is refused before it takes memory.
#[test]
fn a_packed_packet_of_any_length_takes_no_more_memory() {
    let room = Room::new();
    let path = room.path("bomb.pcap.gz");
    let head = pcap(&[], false, false, 1, 65535);
    let packet = [[0; 8], [0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f]].concat();
    // Consecutive members are one file.
    let zeros = packed(&vec![0; 1 << 20]).repeat(1 << 10);
    fs::write(&path, [packed(&head), packed(&packet), zeros].concat()).unwrap();
    let analysis = analysed(&path);
    assert_eq!(analysis["packets"], 0);
    let broken = analysis["broken"].as_str().unwrap();
    assert!(broken.contains("64 MiB"), "{broken}");
}

#[test]
fn other_files_are_refused() {
    let room = Room::new();
    let path = room.path("c.pcap");
    let packets = transfer();
    for (bytes, said) in [
        (Vec::new(), "is empty"),
        (
            b"hardly a capture of anything at all".to_vec(),
            "is not a capture",
        ),
    ] {
        fs::write(&path, bytes).unwrap();
        let error = refused(attempt(&of(&path)));
        assert!(error.contains(said), "{error}");
    }
    fs::write(&path, pcap(&[], false, false, 1, 65535)).unwrap();
    assert_eq!(analysed(&path)["packets"], 0);
    fs::write(&path, pcap(&packets, false, false, 147, 65535)).unwrap();
    let said = analysed(&path)["findings"].to_string();
    assert!(said.contains("LINKTYPE [147]"), "{said}");
    let said = refused(attempt(&of(&room.path("none.pcap"))));
    assert!(said.contains("cannot open"), "{said}");
    fs::write(&path, pcap(&packets, false, false, 1, 65535)).unwrap();
    let second = AnalyseOptions {
        connection: Some(2),
        ..of(&path)
    };
    let said = refused(attempt(&second));
    assert!(said.contains("no connection 2"), "{said}");
}
