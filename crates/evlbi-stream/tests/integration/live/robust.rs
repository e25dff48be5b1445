//! Whatever arrives, the stream is recorded and everything else is counted.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use evlbi_stream::recv::RecvOptions;
use evlbi_testkit::buffer::fit;
use evlbi_testkit::by_hand::{FRAME, Stream, frames, stranger};
use evlbi_testkit::result::{assert_numbers, number};
use evlbi_testkit::{Room, until};
use evlbi_wire::pattern;
use evlbi_wire::vdif::Header;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::O_NONBLOCK;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use socket2::{Domain, Socket, Type};

use super::support::{HERE, Recv, recording, send, sending};

/// Data that arrived before the stream was detected, without frames and of another length, are recorded before it.
#[test]
fn a_stream_takes_the_place_of_data_without_frames() {
    let room = Room::new();
    let out = room.path("out.vdif");
    let recv = Recv::start(HERE, &out);
    let other = stranger(recv.address());
    let datagram = |number: u64| [&number.to_le_bytes()[..], &[0xa5; 333]].concat();
    (0..64).for_each(|number| _ = other.send(&datagram(number)).unwrap());
    recv.until_arrived(64);
    until("it is recorded", || recv.counts().count("unique") == 64);
    let stream = Stream::to(recv.address());
    stream.send(50, 0..100);
    recv.until_arrived(164);
    other.send(&datagram(64)).unwrap();
    stream.send(50, 100..180);
    let result = recv.finish_after(64 + 181);
    let counts = [
        ("unique", 64 + 180),
        ("lost", 0),
        ("foreign_size", 1),
        ("restarts", 1),
        ("bytes", 64 * 333 + 180 * FRAME as u64),
    ];
    assert_numbers(&result, &counts);
    assert!(room.read("out.vdif").ends_with(stream.bytes(0..180)));
}

#[test]
fn strange_datagrams_do_not_stop_a_recording() {
    let room = Room::new();
    let out = room.path("out.vdif");
    let recv = Recv::start(HERE, &out);
    // A port scan before the stream: it is neither the stream nor its start.
    for length in [0, 1, 8, 40] {
        stranger(recv.address()).send(&vec![b'?'; length]).unwrap();
    }
    let stream = Stream::to(recv.address());
    let base = u64::MAX - 20;
    stream.send(base, 0..40);
    for length in [0, 1, 7, 8, 9, FRAME, 1500, 65507] {
        stream.raw(&vec![0xa5; length]);
    }
    // A duplicate, another sender with another sequence, and a scan in between.
    stream.send(base, 39..40);
    let rival = Stream::to(recv.address());
    for frame in 40..80 {
        stream.send(base, frame..frame + 1);
        rival.send(1_000_000, frame..frame + 1);
        if frame % 4 == 0 {
            stranger(recv.address()).send(b"scan").unwrap();
        }
    }
    let name = rival.socket.local_addr().unwrap().to_string();
    let result = recv.end_after(81 + 62);
    let refused = result["refused"].as_array().unwrap();
    let refused = refused.iter().find(|refused| refused["sender"] == name);
    let refused = refused.unwrap();
    assert_eq!(number(refused, "datagrams"), 40);
    assert_eq!(refused["frames"], true);
    assert_numbers(
        &result,
        &[
            ("unique", 80),
            ("lost", 0),
            ("duplicates", 1),
            ("received", 81),
            ("first_seq", base),
            ("last_seq", base.wrapping_add(79)),
            // 4 before, 8 of wrong sizes, 40 of the rival, 10 of the scan.
            ("foreign", 62),
            ("frames", 80),
            ("lost_frames", 0),
            ("restarts", 0),
        ],
    );
    assert!(room.read("out.vdif") == stream.bytes(0..80));
}

/// A thread that starts after the stream without numbers did is recorded from its fourth frame on.
#[test]
fn a_thread_that_starts_later_is_recorded() {
    let recv = Recv::start("pudp://127.0.0.1:0", "null");
    let stream = Stream::to(recv.address());
    let frame = |number: u64, thread: u8| {
        let mut frame = stream.bytes(number..number + 1).to_vec();
        // Word 3, bits 16 to 25.
        frame[14] = thread;
        frame
    };
    // The threads are detected from the first 64.
    let (alone, both) = (80, u64::from(fit(140, 1, FRAME) - 80) / 2);
    assert!(both > 10, "{both}");
    for number in 0..alone {
        stream.raw(&frame(number, 0));
    }
    for number in alone..alone + both {
        stream.raw(&frame(number, 0));
        stream.raw(&frame(number, 1));
    }
    assert_numbers(
        &recv.finish_after(alone + 2 * both),
        &[
            ("unique", alone + 2 * both - 3),
            ("foreign", 3),
            ("foreign_header", 3),
            ("lost", 0),
        ],
    );
}

/// A datagram that arrives after the release of its slot is counted as late, and an invalid frame is in its place.
#[test]
fn a_late_datagram_is_not_recorded() {
    let room = Room::new();
    let out = room.path("out.vdif");
    let recv = Recv::with(&RecvOptions {
        hold: Some(Duration::from_millis(1)),
        frame_rate: Some(pattern::frame_rate(25_600)),
        ..recording(HERE, &out)
    });
    let stream = Stream::to(recv.address());
    stream.send(0, 0..50);
    stream.send(0, 51..100);
    until("it is recorded without the missing one", || {
        fs::read(&out).unwrap().len() == 100 * FRAME
    });
    stream.send(0, 50..51);
    let counts = [
        ("unique", 100),
        ("lost", 0),
        ("late", 1),
        ("lost_frames", 1),
    ];
    assert_numbers(&recv.finish_after(100), &counts);
    let recorded = room.read("out.vdif");
    assert!(recorded.starts_with(stream.bytes(0..50)) && recorded.ends_with(stream.bytes(51..100)));
    assert!(Header::parse(&recorded[50 * FRAME..]).unwrap().is_invalid());
}

/// If the sink takes nothing, datagrams without room in the ring are counted as `ring_full`, and invalid frames are in their place.
#[test]
fn a_sink_that_takes_nothing_fills_the_ring() {
    const LENGTH: usize = 8032;
    let room = Room::new();
    let pipe = room.path("pipe");
    mkfifo(Path::new(&pipe), Mode::S_IRWXU).unwrap();
    let mut options = fs::File::options();
    let mut reader = options
        .read(true)
        .custom_flags(O_NONBLOCK)
        .open(&pipe)
        .unwrap();
    let gaps = room.path("gaps.json");
    let recv = Recv::with(&RecvOptions {
        gaps: Some(gaps.into()),
        ..recording(HERE, &pipe)
    });
    let rate = pattern::frame_rate(25_000);
    let all = pattern::frames(LENGTH, 1_700_000_000, rate, 10_000).unwrap();
    let stream = stranger(recv.address());
    let mut sent = 0;
    let mut send = |count: usize| {
        for frame in all.chunks(LENGTH).skip(sent).take(count) {
            let datagram = [&(sent as u64).to_le_bytes()[..], frame].concat();
            stream.send(&datagram).unwrap();
            sent += 1;
        }
        recv.until_arrived(sent as u64);
        sent
    };
    let chunk = fit(400, 1, LENGTH) as usize;
    send(chunk);
    while recv.counts().count("ring_full") == 0 {
        assert!(send(chunk) < 10_000, "the ring holds all");
    }
    fcntl(&reader, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    let reading = std::thread::spawn(move || {
        let mut recorded = Vec::new();
        reader.read_to_end(&mut recorded).map(|_| recorded).unwrap()
    });
    let fill = || recv.counts().real("ring_fill");
    until("there is room again", || fill() < 0.5);
    let sent = send(10) as u64;
    // The end waits for a reader no longer than 2 s.
    until("the reader has taken all", || fill() == 0.0);
    recv.stop();
    let result = recv.finish();
    let full = number(&result, "ring_full");
    let counts = [
        ("unique", sent - full),
        ("lost", full),
        ("lost_frames", full),
    ];
    assert_numbers(&result, &counts);
    let recorded = reading.join().unwrap();
    assert_eq!(recorded.len(), sent as usize * LENGTH);
    let mut valid = 0;
    for (frame, sent) in recorded.chunks(LENGTH).zip(all.chunks(LENGTH)) {
        if !Header::parse(frame).unwrap().is_invalid() {
            assert!(frame == sent);
            valid += 1;
        }
    }
    assert_eq!(valid, sent - full);
}

/// While there is no stream, other datagrams are reported, with a possible cause.
#[test]
fn datagrams_that_arrive_instead_of_a_stream_are_reported() {
    let recv = Recv::start("pudp://127.0.0.1:0", "null");
    let half = &frames(1)[..FRAME / 2];
    let other = stranger(recv.address());
    (0..20).for_each(|_| _ = other.send(half).unwrap());
    recv.until_arrived(20);
    until("it is reported", || {
        recv.line().contains("none is a whole VDIF frame")
    });
}

/// A window of less than a datagram holds two: swapped datagrams are put in order.
#[test]
fn a_window_below_a_datagram_loses_nothing() {
    let room = Room::new();
    let out = room.path("out.vdif");
    let recv = Recv::with(&RecvOptions {
        window: Some(8),
        ..recording(HERE, &out)
    });
    let stream = Stream::to(recv.address());
    stream.send(0, 0..100);
    for pair in (100..200).step_by(2) {
        stream.send(0, pair + 1..pair + 2);
        stream.send(0, pair..pair + 1);
    }
    let counts = [("unique", 200), ("lost", 0), ("late", 0), ("reordered", 50)];
    assert_numbers(&recv.finish_after(200), &counts);
    assert!(room.read("out.vdif") == stream.bytes(0..200));
}

/// The sender reports how many bytes it sent, not how many whole units.
#[test]
fn raw_bytes_over_tcp_are_counted_as_they_are() {
    let room = Room::new();
    let data: Vec<u8> = (0..100_003u32).map(|n| n as u8).collect();
    let raw = room.write("raw.bin", &data);
    let out = room.path("out.bin");
    let recv = Recv::start("tcp://127.0.0.1:0", &out);
    let sent = send(&sending(&raw, &recv.url()));
    recv.finish();
    assert_eq!(number(&sent, "bytes"), data.len() as u64);
    assert!(room.read("out.bin") == data);
}

/// A connection to a receiver, from an address of loopback.
fn connect(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let from = SocketAddr::from((Ipv4Addr::from(from), 0));
    socket.bind(&from.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

/// Over TCP, too, only the named source is recorded, and the recording ends when it is silent for the idle time.
#[test]
fn source_and_idle_hold_over_tcp() {
    let room = Room::new();
    let out = room.path("out.vdif");
    let recv = Recv::with(&RecvOptions {
        source: Some([127, 0, 0, 2].into()),
        idle: Some(Duration::from_millis(200)),
        ..recording("tcp://127.0.0.1:0", &out)
    });
    let frames = pattern::frames(1032, 1_700_000_000, pattern::frame_rate(64), 20).unwrap();
    let mut other = connect([127, 0, 0, 3], recv.address());
    // It may be closed already.
    let _ = other.write_all(&[0xff; 4000]);
    let mut sender = connect([127, 0, 0, 2], recv.address());
    sender.write_all(&frames).unwrap();
    // The connection stays open.
    let result = recv.finish();
    assert_eq!(result["ended"], "idle");
    assert_eq!(number(&result, "bytes"), frames.len() as u64);
    assert!(
        result["sender"].as_str().unwrap().starts_with("127.0.0.2:"),
        "{}",
        result["sender"]
    );
    assert!(room.read("out.vdif") == frames);
}
