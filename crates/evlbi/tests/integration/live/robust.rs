//! Whatever arrives, the stream is recorded and everything else is counted; whatever is asked, the answer helps.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::live::support::{Received, Recv, ask, evlbi, send, try_send};
use crate::result::{brief, number};
use evlbi_testkit::address::deaf;
use evlbi_testkit::buffer::fit;
use evlbi_testkit::by_hand::{FRAME, Stream, frames, stranger};
use evlbi_testkit::result::assert_numbers;
use evlbi_testkit::{Room, Running, limit, until};
use evlbi_wire::pattern;
use evlbi_wire::vdif::Header;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::O_NONBLOCK;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::Value;

/// A sender of frames that was refused is named, with what to do.
#[track_caller]
fn assert_is_named(received: &Received, sender: &str, count: u64) {
    assert_eq!(received.status.code(), Some(1));
    let said = &received.stderr;
    assert!(
        said.contains(&format!("{sender} ({count} datagrams)")),
        "{said}"
    );
    assert!(said.contains("--source"), "{said}");
    let refused = received.result()["refused"].clone();
    let ours = |refused: &&Value| refused["sender"] == sender;
    let ours = refused.as_array().unwrap().iter().find(ours).unwrap();
    assert_eq!(
        (number(ours, "datagrams"), &ours["frames"]),
        (count, &Value::Bool(true))
    );
}

/// What came before the stream was known, without frames and of another length, is recorded before it.
#[test]
fn a_stream_takes_the_place_of_data_without_frames() {
    let room = Room::new();
    let out = room.path("out.vdif");
    let recv = Recv::start("udp://127.0.0.1:0", Path::new(&out), &[]);
    let other = stranger(recv.address());
    let datagram = |number: u64| [&number.to_le_bytes()[..], &[0xa5; 333]].concat();
    (0..64).for_each(|number| _ = other.send(&datagram(number)).unwrap());
    recv.until_arrived(64);
    until("it is recorded", || {
        number(&recv.status()["receiving"][0], "unique") == 64
    });
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
    let recv = Recv::start("udp://127.0.0.1:0", Path::new(&out), &[]);
    // A port scan before the stream: it is neither the stream nor its beginning.
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
    let received = recv.end_after(81 + 62);
    assert_is_named(&received, &name, 40);
    let result = received.result();
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

/// A limit on file sizes (`ulimit -f`) does not end the program by a signal.
#[test]
fn a_recording_that_grows_too_long_is_counted() {
    let room = Room::new();
    let out = room.path("out.vdif");
    let recv = Recv::start("udp://127.0.0.1:0", Path::new(&out), &[]);
    // The ring's memory, which counts as a file, is there by now.
    let count = fit(2000, 1, FRAME);
    let most = u64::from(count) * FRAME as u64 / 2;
    limit::file_size(recv.child.0.id(), most);
    let source = room.write("source.vdif", frames(count));
    send(&source, &recv.url(), &["--mtu", "9000"]);
    let received = recv.end_after(count.into());
    let result = received.result();
    assert!(!received.status.success());
    let written = number(&result["files"][0], "bytes");
    let unwritten = number(&result, "unwritten_bytes");
    assert_numbers(&result, &[("frames", count.into()), ("lost", 0)]);
    assert!(written <= most, "{}", brief(&result));
    assert_eq!(written + unwritten, u64::from(count) * FRAME as u64);
    assert_eq!(fs::metadata(&out).unwrap().len(), written);
}

#[track_caller]
fn refused(args: &[&str], says: &str) {
    let output = evlbi().args(args).arg("--json").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?}");
    assert!(stderr.contains(says), "{args:?}: {stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    assert!(
        stderr.matches("os error").count() <= 1,
        "said twice: {stderr}"
    );
}

#[test]
fn errors_say_what_to_do() {
    let room = Room::new();
    let path = |name: &str| room.path(name);
    let short = path("short.vdif");
    // Ten frames of one second: how many there are in a second cannot be told.
    fs::write(&short, frames(10)).unwrap();
    let kept = path("kept.vdif");
    fs::write(&kept, b"an older recording").unwrap();
    refused(&["demo", "--duration", "0s"], "more than zero");
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let taken = format!("udp://{}", taken.local_addr().unwrap());
    let to = "udp://127.0.0.1:9";
    refused(&["send", &short, "--to", "127.0.0.1:9"], "udp://HOST:PORT");
    refused(
        &["send", &short, "--to", "udp://127.0.0.1:0"],
        "name the port",
    );
    refused(&["send", &path("none"), "--to", to, "--max"], "cannot open");
    refused(&["send", &path(""), "--to", to, "--max"], "is a directory");
    refused(&["send", &short, "--to", to], "--frame-rate");
    let raw = path("raw.bin");
    fs::write(&raw, [7; 10_000]).unwrap();
    refused(&["send", &raw, "--to", to], "give a --rate, or --max");
    refused(
        &["send", &short, "--to", to, "--max", "--shed", "some"],
        "every:N",
    );
    refused(&["send", &short, "--to", to, "--max", "--mtu", "20"], "MTU");
    refused(&["recv", &taken, "--to", &kept, "--force"], "in use");
    let here = "udp://127.0.0.1:0";
    refused(&["recv", here, "--to", &kept], "--force");
    refused(&["recv", here, "--to", &path("{station}.vdif")], "--force");
    let both = path("new.vdif");
    refused(
        &["recv", here, "--to", &both, "--gaps", &both],
        "written twice",
    );
    refused(&["recv", here, "--to", "null", "--ring", "1MiB"], "16 MiB");
    refused(
        &[
            "recv", here, "--to", "null", "--ring", "64MiB", "--window", "64MiB",
        ],
        "a third more",
    );
    for frame in ["0", "7", "16"] {
        refused(
            &["recv", here, "--to", "null", "--frame", frame],
            "multiple",
        );
    }
    assert_eq!(fs::read(&kept).unwrap(), b"an older recording");
    refused(
        &[
            "recv",
            "udp://127.0.0.1:0",
            "--to",
            &path("no/such/folder.vdif"),
        ],
        "cannot record to",
    );
    refused(
        &["recv", "udp://127.0.0.1:0", "--to", &path("{colour}.none")],
        "{station}",
    );
    let (_deaf, address) = deaf();
    let tcp = try_send(&short, &format!("tcp://{address}"), &[]);
    assert!(String::from_utf8_lossy(&tcp.stderr).contains("cannot connect"));
}

/// Eight datagrams that hold no data are no stream, and neither is a probe.
#[test]
fn what_is_no_stream_makes_no_recording() {
    let room = Room::new();
    for (name, datagram, count) in [
        ("empty", &[3; 8][..], 20),
        ("probe", b"GET / HTTP/1.0\r\n\r\n", 1),
    ] {
        let out = room.path(name);
        let recv = Recv::start("udp://127.0.0.1:0", Path::new(&out), &[]);
        let scanner = stranger(recv.address());
        for _ in 0..count {
            scanner.send(datagram).unwrap();
        }
        let result = recv.finish_after(count);
        assert_numbers(&result, &[("unique", 0), ("foreign", count), ("bytes", 0)]);
        assert!(!Path::new(&out).exists());
    }
}

/// A thread that was not there when the stream without numbers began is recorded from its fourth frame on.
#[test]
fn a_thread_that_begins_later_is_recorded() {
    let recv = Recv::start("pudp://127.0.0.1:0", Path::new("null"), &[]);
    let stream = Stream::to(recv.address());
    let frame = |number: u64, thread: u8| {
        let mut frame = stream.bytes(number..number + 1).to_vec();
        // Word 3, bits 16 to 25.
        frame[14] = thread;
        frame
    };
    // The threads are learnt from the first 64.
    let (alone, both) = (80, u64::from(fit(140, 1, FRAME) - 80) / 2);
    assert!(both > 10, "{both}");
    for number in 0..alone {
        stream.raw(&frame(number, 0));
    }
    for number in alone..alone + both {
        stream.raw(&frame(number, 0));
        stream.raw(&frame(number, 1));
    }
    let received = recv.end_after(alone + 2 * both);
    assert!(
        received.stderr.contains("was not there"),
        "{}",
        received.stderr
    );
    assert_numbers(
        &received.result(),
        &[
            ("unique", alone + 2 * both - 3),
            ("foreign", 3),
            ("foreign_header", 3),
            ("lost", 0),
        ],
    );
}

/// What comes after its place was handed on is counted as late, and an invalid frame is in its place.
#[test]
fn a_late_datagram_is_not_recorded() {
    let room = Room::new();
    let out = room.path("out.vdif");
    let options = ["--hold", "1ms", "--frame-rate", "25600"];
    let recv = Recv::start("udp://127.0.0.1:0", Path::new(&out), &options);
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

/// Where the sink takes nothing, what has no room in the ring is counted as `ring_full`, and invalid frames are in its place.
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
    let recv = Recv::start("udp://127.0.0.1:0", Path::new(&pipe), &["--gaps", &gaps]);
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
    let status = |name: &str| recv.status()["receiving"][0][name].as_f64().unwrap();
    send(chunk);
    while status("ring_full") == 0.0 {
        assert!(send(chunk) < 10_000, "the ring holds all");
    }
    fcntl(&reader, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    let reading = std::thread::spawn(move || {
        let mut recorded = Vec::new();
        reader.read_to_end(&mut recorded).map(|_| recorded).unwrap()
    });
    until("there is room again", || status("ring_fill") < 0.5);
    let sent = send(10) as u64;
    // The end waits for a reader no longer than 2 s.
    until("the reader has taken all", || status("ring_fill") == 0.0);
    let received = recv.stop();
    assert!(received.status.success(), "{}", received.stderr);
    let result = received.result();
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

/// While no stream is there, what comes instead is said, with what may be the cause.
#[test]
fn what_comes_instead_of_a_stream_is_said() {
    let recv = Recv::start("pudp://127.0.0.1:0", Path::new("null"), &[]);
    let half = &frames(1)[..FRAME / 2];
    let other = stranger(recv.address());
    (0..20).for_each(|_| _ = other.send(half).unwrap());
    recv.until_arrived(20);
    until("a line of progress", || {
        recv.stderr().contains("none is a whole VDIF frame")
    });
    recv.stop();
}

/// A window of less than a datagram holds two: what changed places is put in order.
#[test]
fn a_window_below_a_datagram_loses_nothing() {
    let room = Room::new();
    let out = room.path("out.vdif");
    let recv = Recv::start("udp://127.0.0.1:0", Path::new(&out), &["--window", "8"]);
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

/// A reader that takes nothing does not hold the sender beyond its end.
#[test]
fn a_stalled_reader_does_not_stall_the_sender() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let to = format!("tcp://{address}");
    let control = Room::new();
    let mut command = evlbi();
    command.args(["send", "pattern:8032", "--to", &to, "--max", "--json"]);
    command.args(["--control", &control.path("socket")]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut sender = Running(child);
    // Several times in a row: at first it waits for a moment now and then.
    let mut looks = 0;
    until("the sender waits for room", || {
        looks = if waits_for_room(&sender, address) {
            looks + 1
        } else {
            0
        };
        looks == 20
    });
    assert_eq!(ask(&control.path("socket"), r#"{"do":"stop"}"#), "done");
    assert!(sender.wait().success());
    let result: Value = serde_json::from_reader(sender.0.stdout.take().unwrap()).unwrap();
    assert!(number(&result, "not_sent") > 0, "{}", brief(&result));
    assert_eq!(
        number(&result, "offered"),
        number(&result, "sent") + number(&result, "not_sent")
    );
    // All that left waits in the connection.
    let (mut connection, _) = listener.accept().unwrap();
    let taken = std::io::copy(&mut connection, &mut std::io::sink()).unwrap();
    assert_eq!(taken, number(&result, "bytes"));
    // Its own time ends it, too.
    let mut command = evlbi();
    command.args(["send", "pattern:8032", "--to", &to, "--max", "--json"]);
    command.args(["--duration", "1s"]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut sender = Running(child);
    assert!(sender.wait().success());
    let result: Value = serde_json::from_reader(sender.0.stdout.take().unwrap()).unwrap();
    assert_eq!(
        number(&result, "offered"),
        number(&result, "sent") + number(&result, "not_sent")
    );
}

/// Whether the thread that sends sleeps, and its kernel only probes whether the other end takes something again.
fn waits_for_room(sender: &Running, to: SocketAddr) -> bool {
    let folder = format!("/proc/{}/task", sender.0.id());
    let sleeps = fs::read_dir(folder).unwrap().flatten().any(|task| {
        let state = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        state.contains("(transmit) S ")
    });
    let probes = |fields: &[String]| fields[2] == in_table(to) && fields[5].starts_with("04:");
    sleeps && connections().iter().any(|fields| probes(fields))
}

/// Whether a connection over IPv4 was accepted and all that came by it was read: it has an inode, and its queue is empty.
fn is_read(here: SocketAddr, there: SocketAddr) -> bool {
    connections().iter().any(|fields| {
        fields[1..3] == [in_table(here), in_table(there)]
            && fields[4].ends_with(":00000000")
            && fields[9] != "0"
    })
}

/// The fields of the kernel's table of connections over IPv4.
fn connections() -> Vec<Vec<String>> {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    table.lines().map(fields).collect()
}

/// An end of a connection as that table has it.
fn in_table(end: SocketAddr) -> String {
    match end {
        SocketAddr::V4(end) => format!("{:08X}:{:04X}", end.ip().to_bits().to_be(), end.port()),
        SocketAddr::V6(_) => unreachable!("an address of IPv4"),
    }
}

#[test]
fn the_end_of_a_connection_is_told_from_its_failure() {
    let room = Room::new();
    for resets in [false, true] {
        let out = room.path(&format!("{resets}.vdif"));
        let recv = Recv::start("tcp://127.0.0.1:0", Path::new(&out), &[]);
        let mut connection = TcpStream::connect(recv.address()).unwrap();
        connection.write_all(&frames(20)).unwrap();
        if resets {
            // A reset throws away what was not read.
            until("all is read", || {
                is_read(recv.address(), connection.local_addr().unwrap())
            });
            socket2::SockRef::from(&connection)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
        }
        drop(connection);
        let received = recv.end();
        let result = received.result();
        assert_eq!(received.status.success(), !resets);
        assert_eq!(result["ended"], if resets { "failed" } else { "closed" });
        assert_eq!(result["error"].is_string(), resets);
        assert_eq!(number(&result, "frames"), 20);
    }
}

/// The sender says how many bytes it sent, not how many whole units.
#[test]
fn raw_bytes_over_tcp_are_counted_as_they_are() {
    let room = Room::new();
    let data: Vec<u8> = (0..100_003u32).map(|n| n as u8).collect();
    let raw = room.write("raw.bin", &data);
    let out = room.path("out.bin");
    let recv = Recv::start("tcp://127.0.0.1:0", Path::new(&out), &[]);
    let to = format!("tcp://{}", recv.address());
    let sent = send(&raw, &to, &[]);
    recv.finish();
    assert_eq!(number(&sent, "bytes"), data.len() as u64);
    assert!(room.read("out.bin") == data);
}
