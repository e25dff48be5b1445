//! jive5ab's udps, byte by byte, in both directions: a sender and a reader that do the same as its programs.

use std::net::UdpSocket;
use std::path::Path;

use crate::live::support::{Recv, send};
use evlbi_testkit::Room;
use evlbi_testkit::buffer::fit;
use evlbi_testkit::result::assert_numbers;
use evlbi_testkit::until::WATCHDOG;
use evlbi_wire::pattern;

const FRAME: usize = 8032;
/// An 8032-byte frame at an MTU of 1500: eight fragments, of which only the first has a header.
const FRAGMENT: usize = 1004;

fn frames(count: u32) -> Vec<u8> {
    pattern::frames(FRAME, 1_700_000_000, pattern::frame_rate(64), count).unwrap()
}

#[test]
fn its_sender_is_understood() {
    let room = Room::new();
    let count = fit(40, FRAME / FRAGMENT, FRAGMENT);
    let datagrams = u64::from(count) * (FRAME / FRAGMENT) as u64;
    let out = room.path("out.vdif");
    let recv = Recv::start("udp://127.0.0.1:0", Path::new(&out), &[]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let first = 0x0123_4567_89ab_cdef_u64;
    for (sequence, fragment) in (first..).zip(frames(count).chunks(FRAGMENT)) {
        let datagram = [&sequence.to_le_bytes()[..], fragment].concat();
        socket.send_to(&datagram, recv.address()).unwrap();
    }
    let result = recv.finish_after(datagrams);
    assert_numbers(
        &result,
        &[
            ("unique", datagrams),
            ("lost", 0),
            ("first_seq", first),
            ("last_seq", first + datagrams - 1),
            ("frames", count.into()),
            ("datagram_data", 1004),
            ("frame_length", 8032),
        ],
    );
    assert!(room.read("out.vdif") == frames(count));
}

#[test]
fn its_reader_understands_and_its_back_traffic_is_ignored() {
    let room = Room::new();
    // Few enough to fit in the reader's small buffer.
    let frames = frames(10);
    let file = room.write("in.vdif", &frames);
    let reader = UdpSocket::bind("127.0.0.1:0").unwrap();
    reader.set_read_timeout(Some(WATCHDOG)).unwrap();
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
    let options = ["--mtu", "1500", "--sequence", "77"];
    let sent = send(&file, &to, &options);
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
