//! jive5ab's udps, byte by byte, both ways: a sender and a reader that do what its programs do.

use std::fs;
use std::net::UdpSocket;
use std::time::Duration;

use crate::live::support::{Recv, assert_numbers, send};
use evlbi_wire::pattern;

const FRAME: usize = 8032;
/// An 8032-byte frame at an MTU of 1500: eight fragments, of which only the first has a header.
const FRAGMENT: usize = 1004;

fn frames() -> Vec<u8> {
    pattern::frames(FRAME, 1_700_000_000, pattern::frame_rate(64), 40).unwrap()
}

#[test]
fn its_sender_is_understood() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.vdif");
    let recv = Recv::start("udp://127.0.0.1:0", &out, &[]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let first = 0x0123_4567_89ab_cdef_u64;
    for (sequence, fragment) in (first..).zip(frames().chunks(FRAGMENT)) {
        let datagram = [&sequence.to_le_bytes()[..], fragment].concat();
        socket.send_to(&datagram, recv.address()).unwrap();
    }
    let result = recv.finish();
    assert_numbers(
        &result,
        &[
            ("unique", 320),
            ("lost", 0),
            ("first_seq", first),
            ("last_seq", first + 319),
            ("frames", 40),
            ("datagram_data", 1004),
            ("frame_length", 8032),
        ],
    );
    assert!(fs::read(&out).unwrap() == frames());
}

#[test]
fn its_reader_understands_and_its_back_traffic_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.vdif");
    // So few that they have room in the reader's small buffer.
    let frames = &frames()[..10 * 8032];
    fs::write(&file, frames).unwrap();
    let reader = UdpSocket::bind("127.0.0.1:0").unwrap();
    reader
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let to = format!("udp://{}", reader.local_addr().unwrap());
    let reading = std::thread::spawn(move || {
        let mut data = Vec::new();
        let mut buffer = [0; 2000];
        for count in 0..80_u64 {
            let (length, sender) = reader.recv_from(&mut buffer).unwrap();
            assert_eq!(length, 8 + FRAGMENT);
            assert_eq!(buffer[..8], (77 + count).to_le_bytes());
            data.extend_from_slice(&buffer[8..length]);
            if count % 10 == 0 {
                reader.send_to(b"back-traffic", sender).unwrap();
            }
        }
        data
    });
    let options = ["--mtu", "1500", "--sequence", "77", "--rate", "20M"];
    let sent = send(file.to_str().unwrap(), &to, &options);
    assert!(reading.join().unwrap() == frames);
    assert_numbers(
        &sent,
        &[
            ("sent", 80),
            ("not_sent", 0),
            ("first_seq", 77),
            ("last_seq", 156),
        ],
    );
}
