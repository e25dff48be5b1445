//! Tests what differs, and what does not, if a byte stream carries the data.

use std::fs::File;
use std::net::TcpStream;
use std::sync::mpsc::{self, RecvTimeoutError};

use evlbi_core::packetise::Rule;
use evlbi_core::shed::Policy;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 7 + n / 251) as u8).collect()
}

/// Options without effect are refused.
#[test]
fn options_without_effect_are_refused_by_name() {
    let run = Run::silent();
    let refused = |options: RecvOptions| {
        let Err(RecvError::NotHonoured(refused)) = receive(&options, &run) else {
            panic!("{options:?}");
        };
        assert_eq!(refused.scheme, any("tcp://").scheme());
        refused.option
    };
    let options = || RecvOptions {
        from: any("tcp://"),
        ..RecvOptions::default()
    };
    let window = Some(1 << 20);
    assert_eq!(
        refused(RecvOptions {
            window,
            ..options()
        }),
        "window"
    );
    let hold = Some(Duration::ZERO);
    assert_eq!(refused(RecvOptions { hold, ..options() }), "hold");
    let join = false;
    assert_eq!(refused(RecvOptions { join, ..options() }), "single");
    let from = "tcp://127.0.0.1:0?interface=lo".parse().unwrap();
    assert_eq!(refused(RecvOptions { from, ..options() }), "?interface=");
    // From one host only, or from a group.
    for (from, option) in [
        ("udp://127.0.0.1:0?source=10.0.0.5", "?source="),
        ("udp://127.0.0.1:0?ttl=3", "?ttl="),
    ] {
        let from = from.parse().unwrap();
        let error = receive(
            &RecvOptions {
                from,
                ..RecvOptions::default()
            },
            &run,
        )
        .err()
        .unwrap();
        assert!(error.to_string().starts_with(option), "{error}");
    }
    for (option, asked) in [
        ("mtu", |it: &mut SendOptions| it.mtu = Some(1500)),
        ("sequence", |it| it.sequence = Some(7)),
        ("single", |it| it.offload = false),
        ("cutting as bytes", |it| it.cut = Rule::Plain),
    ] as [(&str, fn(&mut SendOptions)); 4]
    {
        let mut options = SendOptions {
            source: format!("pattern:{FRAME}"),
            to: "tcp://127.0.0.1:9".parse().unwrap(),
            ..SendOptions::default()
        };
        asked(&mut options);
        let error = send(&options, &run).err().unwrap().to_string();
        assert!(error.starts_with(option), "{error}");
        assert!(error.contains("tcp://"), "{error}");
    }
}

/// Sends a file; returns the recorded bytes and the sender's result.
fn carried(
    source: &str,
    pace: Pace,
    change: impl FnOnce(&mut SendOptions),
) -> (Vec<u8>, crate::send::SendResult) {
    let room = Room::new();
    let run = Run::silent();
    let to = room.path("received");
    let receiving = receiver(&any("tcp://"), &to, &run);
    let mut options = SendOptions {
        source: source.to_owned(),
        to: url("tcp://", &receiving.seen.local[0]),
        pace,
        ..SendOptions::default()
    };
    change(&mut options);
    let sent = send(&options, &run).unwrap().join().unwrap();
    assert_eq!(receiving.join().ended, Ended::Closed);
    (std::fs::read(to).unwrap(), sent)
}

/// Padding of the last piece of a file is not data, whatever else is shed.
#[test]
fn no_fill_is_sent_as_data() {
    const PIECE: usize = 8192;
    let room = Room::new();
    let data = bytes(5 * PIECE + 100);
    let source = room.path("source");
    std::fs::write(&source, &data).unwrap();
    let (came, _) = carried(&source, Pace::Max, |_| {});
    assert_eq!(came, data);
    let (came, sent) = carried(&source, Pace::Max, |options| {
        options.shed = "every:2".parse::<Policy>().unwrap();
        options.shed_packets = true;
    });
    let pieces: Vec<&[u8]> = data.chunks(PIECE).collect();
    let kept = |first: usize| {
        pieces[first..]
            .iter()
            .step_by(2)
            .copied()
            .collect::<Vec<_>>()
            .concat()
    };
    assert!(came == kept(0) || came == kept(1), "{} bytes", came.len());
    let report = serde_json::to_value(&sent).unwrap();
    assert_eq!(report["bytes"], came.len());
    assert_eq!(
        (report["shed"].as_u64(), report["not_sent"].as_u64()),
        (Some(3), Some(0))
    );
}

/// The policy fit counts the headers of segments, which are longer than frames.
#[test]
fn policy_fit_allows_for_segments() {
    let rate = |bits: u64| Pace::Rate(BitRate::new(bits).unwrap());
    let pattern = format!("pattern:{FRAME}");
    let (_, sent) = carried(&pattern, rate(40_000_000), |options| {
        options.shed = "fit:20M".parse::<Policy>().unwrap();
        options.duration = Some(Duration::from_millis(300));
    });
    let shed = sent.report.live.shed as f64 / sent.report.live.offered as f64;
    // With a frame per datagram, 0.533 would be shed.
    assert!((0.495..0.51).contains(&shed), "{shed}");
}

/// A silent connection does not start the idle time.
#[test]
fn silence_counts_from_the_first_byte() {
    let run = Run::silent();
    let idle = Some(Duration::from_millis(30));
    let of = |scheme: &str| {
        let options = RecvOptions {
            from: any(scheme),
            ring: Some(MIN_RING),
            idle,
            ..RecvOptions::default()
        };
        receive(&options, &run).unwrap()
    };
    let waiting = of("tcp://");
    let place = url("tcp://", &waiting.seen.local[0]);
    let silent = TcpStream::connect(place.addresses().unwrap()[0][0]).unwrap();
    // Another stream starts later, and ended after its silence.
    let other = of("udp://");
    let sending = sender(url("udp://", &other.seen.local[0]), 0, &run);
    until("a stream", || other.seen.status().counts.count("bytes") > 0);
    drop(sending);
    assert_eq!(other.join().ended, Ended::Idle);
    assert!(!waiting.is_finished());
    let sending = sender(place, 0, &run);
    until("a stream", || {
        waiting.seen.status().counts.count("bytes") > 0
    });
    sending.stop();
    let sent = sending.join().unwrap().report.live.bytes;
    let received = waiting.join();
    assert_eq!((received.ended, received.live.bytes), (Ended::Closed, sent));
    drop(silent);
}

/// Four frames must be in the ring before the format is detected.
#[test]
fn the_ring_follows_the_length_of_frames() {
    let frame = 5 << 19;
    let room = Room::new();
    let run = Run::silent();
    let mut options = RecvOptions {
        from: any("tcp://"),
        to: room.path("received"),
        frame: Some(frame),
        ring: Some(MIN_RING),
        ..RecvOptions::default()
    };
    let refused = receive(&options, &run).err().unwrap().to_string();
    assert!(refused.contains("the minimum is 20 MiB"), "{refused}");
    options.ring = None;
    let receiving = receive(&options, &run).unwrap();
    let data = bytes(5 * frame);
    let source = room.path("source");
    std::fs::write(&source, &data).unwrap();
    let options = SendOptions {
        source,
        to: url("tcp://", &receiving.seen.local[0]),
        pace: Pace::Max,
        ..SendOptions::default()
    };
    send(&options, &run).unwrap().join().unwrap();
    receiving.join();
    assert!(std::fs::read(room.path("received")).unwrap() == data);
}

/// Returns a receiver into a pipe without a reader, the pipe, a sender that has filled its ring, and the data that it sends.
fn full(room: &Room, run: &Run) -> (Receiving, File, Sending, Vec<u8>) {
    let pipe = room.path("pipe");
    mkfifo(pipe.as_str(), Mode::S_IRWXU).unwrap();
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || File::open(pipe).unwrap()
    });
    let receiving = receiver(&any("tcp://"), &pipe, run);
    let reader = reader.join().unwrap();
    let data = bytes(3 * MIN_RING as usize);
    let source = room.path("source");
    std::fs::write(&source, &data).unwrap();
    let options = SendOptions {
        source,
        to: url("tcp://", &receiving.seen.local[0]),
        pace: Pace::Max,
        ..SendOptions::default()
    };
    let sending = send(&options, run).unwrap();
    until("a full ring", || {
        receiving.seen.status().counts.real("ring_waits") > 0.0
    });
    (receiving, reader, sending, data)
}

/// A dropped receiver does not wait for a reader that reads a page now and then.
#[test]
fn a_slow_reader_does_not_keep_a_receiver_that_is_dropped() {
    let room = Room::new();
    let (receiving, mut reader, _sending, _) = full(&room, &Run::silent());
    let (over, is_over) = mpsc::channel::<()>();
    let slow = std::thread::spawn(move || {
        let (mut page, mut taken) = ([0; 4096], 0);
        while is_over.recv_timeout(Duration::from_millis(20)) == Err(RecvTimeoutError::Timeout) {
            taken += reader.read(&mut page).unwrap();
        }
        taken
    });
    drop(receiving);
    drop(over);
    // The reader would need more than a minute for the whole ring.
    let taken = slow.join().unwrap();
    assert!(taken < MIN_RING as usize / 2, "{taken} bytes");
}

/// The cost of a reader that reads nothing is in the counters at once, and in the result.
#[test]
fn a_sender_that_stalls_is_behind() {
    let run = Run::silent();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = Local::Socket(listener.local_addr().unwrap());
    let options = SendOptions {
        source: format!("pattern:{FRAME}"),
        to: url("tcp://", &to),
        pace: Pace::Rate(BitRate::new(1_000_000_000).unwrap()),
        ..SendOptions::default()
    };
    let sending = send(&options, &run).unwrap();
    let behind = || sending.seen.status().counts.real("behind_s");
    until("a sender that is behind", || behind() > 2.0);
    let seen = behind();
    sending.stop();
    let sent = sending.join().unwrap();
    let report = serde_json::to_value(&sent).unwrap();
    // The remaining room in the kernel is a small part of a second.
    let behind = report["behind_seconds"].as_f64().unwrap();
    assert!(behind > seen / 2.0, "{seen}: {report}");
}

/// A slow reader slows the sender down, and costs no data.
#[test]
fn a_full_ring_holds_the_sender_up() {
    let room = Room::new();
    let (receiving, mut reader, sending, data) = full(&room, &Run::silent());
    let mut came = Vec::new();
    reader.read_to_end(&mut came).unwrap();
    assert!(came == data, "{} bytes", came.len());
    assert_eq!(sending.join().unwrap().report.live.bytes, data.len() as u64);
    let received = receiving.join();
    assert_eq!(received.live.bytes, data.len() as u64);
    assert!(received.live.ring_waits > 0.0);
}
