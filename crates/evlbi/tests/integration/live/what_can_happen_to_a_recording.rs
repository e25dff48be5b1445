//! The rows of the table *What can happen to a recording* in the documentation.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;

use evlbi_testkit::buffer::fit;
use evlbi_testkit::by_hand::{FRAME, Stream, frames, stranger};
use evlbi_testkit::result::{assert_numbers, assert_schema};
use evlbi_testkit::{Room, Running, disk, name, until};
use evlbi_wire::vdif::Header;
use nix::libc::O_NONBLOCK;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::live::messages::a_recording_outlives_its_messages;
use crate::live::support::{Received, Recv, evlbi};
use crate::result::number;

/// Sends a short stream.
fn send(recv: &Recv, frames: &[u8]) {
    let mut stream = Stream::to(recv.address());
    stream.frames = frames.to_vec();
    stream.send(0, 0..(frames.len() / FRAME) as u64);
}

/// Waits until the stream has been silent for longer than a sender that keeps its place may be.
fn until_silent(recv: &Recv) {
    until("the stream is silent", || {
        recv.status()["receiving"][0]["is_streaming"] == false
    });
}

/// Runs a receiver that cannot record there, and returns its message.
#[track_caller]
fn refused(to: &str) -> String {
    let receive = ["recv", "udp://127.0.0.1:0", "--ring", "64MiB", "--to", to];
    let output = evlbi().args(receive).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn standard_error_is_closed_or_full() {
    a_recording_outlives_its_messages();
}

/// Arrived data are in the file while the receiver runs and after `kill -9`, with the gaps and the result of that moment. The next
/// receiver takes another name.
#[test]
fn kill_9() {
    let room = Room::on_disk();
    let out = room.path("out.vdif");
    let mut first = Recv::start("udp://127.0.0.1:0", Path::new(&out), &[]);
    let all = frames(20);
    send(&first, &all);
    until("all is in the file", || {
        room.read("out.vdif").len() == all.len()
    });
    until("the result of this moment", || {
        let text = fs::read(room.path("out.vdif.result.json")).unwrap_or_default();
        let result: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        result["finished"] == false && result["unique"] == 20
    });
    first.child.signal(Signal::SIGKILL);
    first.child.wait();
    assert!(room.read("out.vdif") == all);
    assert!(room.json("out.vdif.gaps.json").is_object());
    let second = Recv::start("udp://127.0.0.1:0", Path::new(&out), &[]);
    send(&second, &all);
    second.until_arrived(20);
    let received = second.stop();
    let next = room.path("out-2.vdif");
    let line = received.stderr.lines().next().unwrap();
    assert!(line.contains(&out) && line.contains(&next), "{line}");
    let result = received.result();
    assert_eq!(
        (&result["left_unfinished"], &result["to"]),
        (&out.clone().into(), &next.clone().into())
    );
    assert!(room.read("out.vdif") == all && room.read("out-2.vdif") == all);
    assert_eq!(room.json("out-2.vdif.result.json")["finished"], true);
    // The recording of a killed receiver is kept, even where files are to be overwritten; so is the one after it.
    let gaps = room.path("gaps.json");
    for more in [&[][..], &["--force"], &["--gaps", &gaps]] {
        let third = Recv::start("udp://127.0.0.1:0", Path::new(&out), more);
        send(&third, &all[..10 * FRAME]);
        third.finish_after(10);
    }
    assert!(room.read("out.vdif") == all && room.read("out-2.vdif") == all);
    for number in 3..6 {
        assert!(room.read(&format!("out-{number}.vdif")) == all[..10 * FRAME]);
    }
    assert!(room.json("gaps-5.json").is_object());
}

/// Only one of several receivers gets the file, even if they start at the same moment.
#[test]
fn a_second_receiver_with_the_same_file_name() {
    let room = Room::new();
    let out = room.path("out.vdif");
    let first = Recv::start("udp://127.0.0.1:0", Path::new(&out), &[]);
    assert!(refused(&out).contains(&out));
    let all = frames(20);
    send(&first, &all);
    assert_numbers(&first.finish_after(20), &[("unique", 20), ("lost", 0)]);
    assert!(room.read("out.vdif") == all);

    let out = room.path("at_once.vdif");
    let start = || {
        let mut recv = evlbi();
        recv.args(["recv", "udp://127.0.0.1:0", "--ring", "64MiB", "--to", &out]);
        Running(recv.stderr(Stdio::piped()).spawn().unwrap())
    };
    let mut running: Vec<Running> = (0..4).map(|_| start()).collect();
    let mut ended = Vec::new();
    until("three have ended", || {
        for place in (0..running.len()).rev() {
            if running[place].0.try_wait().unwrap().is_some() {
                ended.push(running.remove(place));
            }
        }
        ended.len() >= 3
    });
    assert_eq!(running.len(), 1);
    for mut ended in ended {
        let mut said = String::new();
        let stderr = ended.0.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        assert!(said.contains(&out), "{said}");
        assert_eq!(ended.wait().code(), Some(1));
    }
    running[0].signal(Signal::SIGTERM);
    assert_eq!(running[0].wait().code(), Some(0));
}

#[test]
fn a_finished_file_of_that_name() {
    let room = Room::new();
    let out = room.path("out.vdif");
    for force in [&[][..], &["--force"]] {
        let recv = Recv::start("udp://127.0.0.1:0", Path::new(&out), force);
        send(&recv, &frames(20));
        recv.finish_after(20);
        assert!(refused(&out).contains("--force"));
        assert!(room.read("out.vdif") == frames(20));
    }
    // If the recording was moved away, its result and its gaps are kept.
    fs::rename(&out, room.path("moved.vdif")).unwrap();
    let result = room.json("out.vdif.result.json");
    assert!(refused(&out).contains("out.vdif.gaps.json"));
    fs::remove_file(room.path("out.vdif.gaps.json")).unwrap();
    assert!(refused(&out).contains("out.vdif.result.json"));
    assert!(room.json("out.vdif.result.json") == result);
}

/// Tiny datagrams before the scan, forged ones within and after it: all of the stream is recorded, and nothing else.
#[test]
fn tiny_or_forged_datagrams() {
    let room = Room::new();
    let out = room.path("out.vdif");
    let recv = Recv::start("udp://127.0.0.1:0", Path::new(&out), &[]);
    let tiny = stranger(recv.address());
    for number in 0..8u64 {
        let datagram = [&number.to_le_bytes()[..], b"x"].concat();
        tiny.send(&datagram).unwrap();
    }
    let stream = Stream::to(recv.address());
    let forged = |number: u64| [&number.to_le_bytes()[..], &[0xa5; FRAME]].concat();
    for frame in 0..200 {
        stream.send(0, frame..frame + 1);
        if frame % 10 == 0 {
            tiny.send(&forged(frame)).unwrap();
        }
    }
    recv.until_arrived(8 + 220);
    until_silent(&recv);
    (200..220).for_each(|number| _ = tiny.send(&forged(number)).unwrap());
    let counts = [
        ("unique", 200),
        ("lost", 0),
        ("late", 0),
        ("foreign", 48),
        ("restarts", 0),
    ];
    assert_numbers(&recv.finish_after(248), &counts);
    assert!(room.read("out.vdif") == stream.bytes(0..200));
}

/// The stream gets its place back after a pause in which others sent datagrams of its length.
#[test]
fn an_unknown_sender_in_a_pause() {
    for scheme in ["udp", "pudp"] {
        let room = Room::new();
        let out = room.path("out.vdif");
        let recv = Recv::start(&format!("{scheme}://127.0.0.1:0"), Path::new(&out), &[]);
        let mut stream = Stream::to(recv.address());
        stream.is_numbered = scheme == "udp";
        stream.send(0, 0..100);
        recv.until_arrived(100);
        until_silent(&recv);
        let unknown = stranger(recv.address());
        for number in 0..8_u64 {
            let datagram = [&number.to_le_bytes()[..], &[0xa5; FRAME]].concat();
            let begin = if stream.is_numbered { 0 } else { 8 };
            unknown.send(&datagram[begin..]).unwrap();
        }
        recv.until_arrived(108);
        stream.send(0, 100..200);
        let counts = [("unique", 200), ("lost", 0), ("foreign", 8)];
        assert_numbers(&recv.finish_after(208), &counts);
        assert!(room.read("out.vdif") == stream.bytes(0..200), "{scheme}");
    }
}

/// Two datagrams numbered far ahead within the stream change nothing.
#[test]
fn a_jump_of_the_sequence_numbers() {
    let room = Room::new();
    let out = room.path("out.vdif");
    let recv = Recv::start("udp://127.0.0.1:0", Path::new(&out), &[]);
    let stream = Stream::to(recv.address());
    stream.send(0, 0..100);
    for ahead in [(1 << 24) - 5, (1 << 24) - 4] {
        stream.raw(&stream.datagram(100 + ahead, 7));
    }
    stream.send(0, 100..200);
    let counts = [
        ("unique", 200),
        ("lost", 0),
        ("late", 0),
        ("foreign_sequence", 2),
        ("restarts", 0),
        ("bytes", 200 * FRAME as u64),
    ];
    assert_numbers(&recv.finish_after(202), &counts);
    assert!(room.read("out.vdif") == stream.bytes(0..200));
}

/// A sender that restarts with other numbers: the times of its frames show the gap. A gap longer than `--fill` is only
/// listed.
#[test]
fn a_restart_of_the_sender() {
    for (more, lost, unfilled) in [(&[][..], 50, 0), (&["--fill", "1ms"], 0, 50)] {
        let room = Room::new();
        let out = room.path("out.vdif");
        let options = [&["--frame-rate", "25600"], more].concat();
        let recv = Recv::start("udp://127.0.0.1:0", Path::new(&out), &options);
        let stream = Stream::to(recv.address());
        stream.send(1000, 0..50);
        recv.until_arrived(50);
        until_silent(&recv);
        stream.send(500_000_000, 100..200);
        let counts = [
            ("unique", 150),
            ("restarts", 1),
            ("lost_frames", lost),
            ("unfilled_frames", unfilled),
        ];
        assert_numbers(&recv.finish_after(150), &counts);
        let recorded = room.read("out.vdif");
        assert_eq!(recorded.len(), (150 + lost as usize) * FRAME);
        assert!(recorded.starts_with(stream.bytes(0..50)));
        assert!(recorded.ends_with(stream.bytes(100..200)));
        for (number, frame) in recorded
            .chunks(FRAME)
            .enumerate()
            .skip(50)
            .take(lost as usize)
        {
            let header = Header::parse(frame).unwrap();
            assert_eq!(
                (header.frame_number(), header.is_invalid()),
                (number as u32, true)
            );
        }
        let gaps = room.json("out.vdif.gaps.json");
        assert_schema(&gaps, "evlbi.gaps/1");
        let listed = gaps["time"].as_array().unwrap().iter();
        assert_eq!(listed.map(|gap| number(gap, "frames")).sum::<u64>(), 50);
    }
}

/// A station whose clock jumps by an hour: its data are recorded as they arrive.
#[test]
fn a_clock_that_is_an_hour_off() {
    for scheme in ["udp", "pudp"] {
        let room = Room::new();
        let out = room.path("out.vdif");
        let recv = Recv::start(&format!("{scheme}://127.0.0.1:0"), Path::new(&out), &[]);
        let mut stream = Stream::to(recv.address());
        stream.is_numbered = scheme == "udp";
        for frame in stream.frames[100 * FRAME..].chunks_mut(FRAME) {
            let second = u32::from_le_bytes(frame[..4].try_into().unwrap());
            frame[..4].copy_from_slice(&(second + 3600).to_le_bytes());
        }
        stream.send(0, 0..190);
        // Without numbers, the times are those of another stream, which is recorded once the one before is silent.
        until("it continues", || {
            recv.status()["receiving"][0]["unique"] == 190
        });
        stream.send(0, 190..200);
        assert_numbers(
            &recv.finish_after(200),
            &[("unique", 200), ("lost_frames", 0)],
        );
        assert!(room.read("out.vdif") == stream.bytes(0..200), "{scheme}");
    }
}

/// The recording ends at its time, whatever the reader of a named pipe does.
#[test]
fn a_named_pipe_that_nobody_reads() {
    let room = Room::new();
    let pipe = |name: &str| {
        let path = room.path(name);
        mkfifo(Path::new(&path), Mode::S_IRWXU).unwrap();
        let mut options = File::options();
        let options = options.read(true).custom_flags(O_NONBLOCK);
        (options.open(&path).unwrap(), path)
    };
    // More than a pipe holds.
    let count = fit(200, 1, FRAME);
    let check = |received: &Received| {
        assert_eq!(received.status.code(), Some(1), "{}", received.stderr);
        assert!(
            received.stderr.contains("the reader took nothing"),
            "{}",
            received.stderr
        );
        let result = received.result();
        let parts = ["unwritten_bytes", "trimmed_bytes"].map(|part| number(&result, part));
        let written = number(&result["files"][0], "bytes");
        assert_eq!(written + parts[0] + parts[1], number(&result, "bytes"));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (_stalled, path) = pipe("udp");
            let recv = Recv::start("udp://127.0.0.1:0", Path::new(&path), &[]);
            send(&recv, &frames(count));
            check(&recv.end_after(count.into()));
        });
        scope.spawn(|| {
            let (_stalled, path) = pipe("tcp");
            let recv = Recv::start("tcp://127.0.0.1:0", Path::new(&path), &[]);
            let mut sender = TcpStream::connect(recv.address()).unwrap();
            sender.write_all(&frames(count)).unwrap();
            drop(sender);
            until("some arrives", || {
                recv.status()["receiving"][0]["bytes"].as_u64() > Some(0)
            });
            check(&recv.stop());
        });
        scope.spawn(|| {
            let path = room.path("unopened");
            mkfifo(Path::new(&path), Mode::S_IRWXU).unwrap();
            let mut recv = evlbi();
            recv.args([
                "recv",
                "udp://127.0.0.1:0",
                "--ring",
                "64MiB",
                "--to",
                &path,
            ]);
            let output = recv.args(["--duration", "10ms"]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("no program opened the named pipe"), "{said}");
        });
    });
}

/// A stop request takes effect at once while a receiver fills a long gap: the rest of the gap is listed.
#[test]
fn a_stop_while_a_gap_is_filled() {
    let room = Room::new();
    let path = room.path("pipe");
    mkfifo(Path::new(&path), Mode::S_IRWXU).unwrap();
    let mut options = File::options();
    let mut reader = options
        .read(true)
        .custom_flags(O_NONBLOCK)
        .open(&path)
        .unwrap();
    let gaps = room.path("gaps.json");
    let more = ["--fill", "2h", "--frame-rate", "25600", "--gaps", &gaps];
    let recv = Recv::start("udp://127.0.0.1:0", Path::new(&path), &more);
    let mut stream = Stream::to(recv.address());
    stream.send(0, 0..100);
    recv.until_arrived(100);
    until_silent(&recv);
    for frame in stream.frames[100 * FRAME..].chunks_mut(FRAME) {
        let second = u32::from_le_bytes(frame[..4].try_into().unwrap());
        frame[..4].copy_from_slice(&(second + 3600).to_le_bytes());
    }
    stream.send(1 << 40, 100..200);
    let mut buffer = vec![0; 1 << 20];
    let mut taken = 0;
    let mut read = |taken: &mut usize| match reader.read(&mut buffer) {
        Ok(count) => {
            *taken += count;
            count > 0
        }
        Err(_) => true,
    };
    until("a gap is being filled", || {
        read(&mut taken) && taken > 200 * FRAME
    });
    recv.signal("TERM");
    until("all is taken", || !read(&mut taken));
    let result = recv.end().result();
    assert_numbers(&result, &[("unique", 200), ("unwritten_bytes", 0)]);
    assert_numbers(&result["files"][0], &[("bytes", taken as u64)]);
    assert!(
        number(&result, "unfilled_frames") > 3000 * 25_600,
        "{result}"
    );
}

/// Data that fit onto the disk are kept, the others are counted, and the stream is received to its end.
#[test]
fn a_disk_that_fills() {
    disk::small(2, name!(), |folder| {
        let out = folder.join("out.vdif");
        let recv = Recv::start("udp://127.0.0.1:0", &out, &[]);
        let count = fit(3000, 1, FRAME);
        let other = vec![0; (2 << 20) - count as usize * FRAME / 2];
        fs::write(folder.join("other"), other).unwrap();
        let all = frames(count);
        send(&recv, &all);
        let received = recv.end_after(count.into());
        assert_eq!(received.status.code(), Some(1));
        let said = &received.stderr;
        assert!(said.contains("free some space"), "{said}");
        let result = received.result();
        assert_numbers(
            &result,
            &[("unique", count.into()), ("lost", 0), ("ring_full", 0)],
        );
        let kept = fs::read(&out).unwrap();
        assert!(!kept.is_empty() && all.starts_with(&kept));
        assert_eq!(
            kept.len() as u64 + number(&result, "unwritten_bytes"),
            all.len() as u64
        );
    });
}

/// Two stations go to files of their own, even where a number looks like the characters of another; no file is overwritten.
#[test]
fn files_of_stations_are_not_overwritten_or_mixed() {
    let room = Room::new();
    fs::create_dir(room.path("010")).unwrap();
    fs::create_dir(room.path("10")).unwrap();
    room.write("010/x.vdif", b"kept");
    let mut stream = frames(20);
    for (number, frame) in stream.chunks_mut(FRAME).enumerate() {
        let station = if number % 2 == 0 { *b"01" } else { [10, 0] };
        frame[12..14].copy_from_slice(&station);
    }
    let to = room.path("{station}/x.vdif");
    let recv = Recv::start(
        "udp://127.0.0.1:0",
        Path::new(&to),
        &["--gaps", &room.path("gaps")],
    );
    send(&recv, &stream);
    recv.until_arrived(20);
    let received = recv.stop();
    assert_eq!(received.status.code(), Some(1));
    assert!(
        received.stderr.contains("010/x.vdif"),
        "{}",
        received.stderr
    );
    assert_eq!(room.read("010/x.vdif"), b"kept");
    assert_eq!(room.read("10/x.vdif").len(), 10 * FRAME);
    assert_eq!(
        number(&received.result(), "unwritten_bytes"),
        10 * FRAME as u64
    );
}

/// Connections that send nothing, or something else, neither end a recording over TCP nor keep its sender out.
#[test]
fn a_port_scan() {
    let room = Room::new();
    let out = room.path("out.vdif");
    let recv = Recv::start("tcp://127.0.0.1:0", Path::new(&out), &[]);
    drop(TcpStream::connect(recv.address()).unwrap());
    let _idle = TcpStream::connect(recv.address()).unwrap();
    let say = |what: &[u8]| {
        let mut connection = TcpStream::connect(recv.address()).unwrap();
        connection.write_all(what).unwrap();
        connection
    };
    let _short = say(b"x");
    drop(say(b"GET / HTTP/1.0\r\n\r\n"));
    let all = frames(20);
    // Frames take priority over other data as the stream, however much there is of it.
    let _much = say(&[0xa5; 10_000]);
    let mut sender = say(&all[..FRAME]);
    until("the frame is taken", || {
        recv.status()["receiving"][0]["bytes"] == FRAME
    });
    sender.write_all(&all[FRAME..]).unwrap();
    drop(sender);
    let received = recv.end();
    assert!(received.stderr.contains("18 bytes"), "{}", received.stderr);
    let counts = [("bytes", all.len() as u64), ("refused_connections", 3)];
    assert_numbers(&received.result(), &counts);
    assert!(room.read("out.vdif") == all);
}

/// Of two senders over TCP one is recorded; the other is named, and sets the exit status.
#[test]
fn a_second_sender_over_tcp_is_named() {
    let room = Room::new();
    let out = room.path("out.vdif");
    let recv = Recv::start("tcp://127.0.0.1:0", Path::new(&out), &[]);
    let all = frames(20);
    recv.signal("STOP");
    let senders = [(); 2].map(|()| {
        let mut sender = TcpStream::connect(recv.address()).unwrap();
        sender.write_all(&all).unwrap();
        sender.local_addr().unwrap().to_string()
    });
    recv.signal("CONT");
    let received = recv.end();
    assert_eq!(received.status.code(), Some(1));
    let said = &received.stderr;
    assert!(
        said.contains(&senders[1]) && said.contains("--source"),
        "{said}"
    );
    assert_eq!(received.result()["sender"], senders[0]);
    assert!(room.read("out.vdif") == all);
}

/// A receiver without data fails, and leaves no file that blocks its name for the next one.
#[test]
fn nothing_arrives() {
    let room = Room::new();
    let out = room.path("out.vdif");
    let split = room.path("{station}.vdif");
    for out in [&out, &out, &split, &split] {
        let mut command = evlbi();
        command.args([
            "recv",
            "udp://127.0.0.1:0",
            "--ring",
            "64MiB",
            "--duration",
            "1ms",
        ]);
        let output = command.args(["--to", out]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("no data arrived"), "{said}");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(fs::read_dir(room.folder()).unwrap().count(), 0);
    }
    let receive = ["recv", "udp://127.0.0.1:0", "--to", "-"];
    let output = evlbi().args(receive).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("mkfifo"));
}

/// Each row of the table has its test here.
#[test]
fn each_row_is_checked() {
    let page = fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/src/record.md"
    ))
    .unwrap();
    let (_, section) = page
        .split_once("### What can happen to a recording")
        .unwrap();
    let section = section.split("\n#").next().unwrap();
    let rows: Vec<&str> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" |").next())
        .skip(1)
        .collect();
    assert!(rows.len() >= 14, "{rows:?}");
    for row in rows {
        let letters = row
            .replace(['`', ','], "")
            .replace([' ', '-'], "_")
            .replace("__", "_");
        let test = format!("#[test]\nfn {}()", letters.to_lowercase());
        assert!(
            include_str!("what_can_happen_to_a_recording.rs").contains(&test),
            "{test}"
        );
    }
}

/// The same for files that are named by stations: the recording of a killed receiver is kept, and the next one uses other names.
#[test]
fn kill_9_of_a_receiver_whose_files_are_named_by_stations() {
    for (template, common) in [
        ("{station}/x.vdif", "station-x"),
        ("x-{station}-{thread}.vdif", "x-station-thread"),
    ] {
        let room = Room::on_disk();
        // The name of the pattern's station.
        let station = evlbi_wire::vdif::StationId::to_string(&evlbi_wire::pattern::STATION);
        fs::create_dir(room.path(&station)).unwrap();
        let path = |number: &str| {
            let name = template.replace("{station}", &station);
            let name = name.replace("{thread}", "0");
            name.replace(".vdif", &format!("{number}.vdif"))
        };
        let to = room.path(template);
        let mut first = Recv::start("udp://127.0.0.1:0", Path::new(&to), &[]);
        let all = frames(20);
        send(&first, &all);
        let result = |number: &str| room.path(&format!("{common}{number}.vdif.result.json"));
        until("all is on disk", || {
            let text = fs::read(result("")).unwrap_or_default();
            let result: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
            let file = fs::read(room.path(&path(""))).unwrap_or_default();
            result["finished"] == false && file.len() == all.len()
        });
        let said = refused(&to);
        assert!(
            said.contains(&path("")) && said.contains("another program"),
            "{said}"
        );
        first.child.signal(Signal::SIGKILL);
        first.child.wait();
        let second = Recv::start("udp://127.0.0.1:0", Path::new(&to), &["--fsync", "end"]);
        send(&second, &all);
        second.until_arrived(20);
        let received = second.stop();
        assert!(received.status.success(), "{}", received.stderr);
        let received = received.result();
        assert_eq!(received["left_unfinished"], to);
        assert_eq!(
            received["to"],
            room.path(&template.replace(".vdif", "-2.vdif"))
        );
        assert!(room.read(&path("")) == all && room.read(&path("-2")) == all);
        let text = fs::read_to_string(result("-2")).unwrap();
        assert!(text.contains("\"finished\": true"), "{text}");
    }
}
