//! A message that cannot be printed never ends a run.

use std::fs::{self, File};
use std::io::pipe;
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use evlbi_testkit::{Room, Running, until, until_some};
use evlbi_wire::pattern;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::live::support::{ask, evlbi};
use crate::result::number;

/// A command whose messages cannot be printed: the disk is full, or the reader is gone.
struct Mute {
    child: Running,
    control: String,
}

fn full() -> Stdio {
    File::options()
        .write(true)
        .open("/dev/full")
        .unwrap()
        .into()
}

fn closed() -> Stdio {
    let (_, writer) = pipe().unwrap();
    writer.into()
}

fn start(room: &Room, command: &mut Command, stderr: Stdio, stdout: Stdio) -> Mute {
    let control = room.path("control");
    let command = command.args(["--control", &control]);
    let command = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    Mute {
        child: Running(command.spawn().unwrap()),
        control,
    }
}

fn frames() -> Vec<u8> {
    pattern::frames(1032, 1_700_000_000, pattern::frame_rate(25_600), 20).unwrap()
}

impl Mute {
    /// Waits until it listens, and returns the first address.
    fn address(&mut self) -> String {
        until_some("it listens", || {
            assert_eq!(self.child.0.try_wait().unwrap(), None, "it has ended");
            // The socket may exist and not answer yet.
            UnixStream::connect(&self.control).ok()?;
            let status = ask(&self.control, r#"{"do":"status"}"#);
            let address = status["status"]["listening"][0].as_str()?;
            Some(address.to_owned())
        })
    }

    fn stop(&mut self) -> Option<i32> {
        ask(&self.control, r#"{"do":"stop"}"#);
        self.child.wait().code()
    }
}

/// Only the printed messages are lost: the recording, its gaps file and the result are complete.
pub fn a_recording_outlives_its_messages() {
    for stderr in [full, closed] {
        let room = Room::new();
        let (out, result) = (room.path("out.vdif"), room.path("result"));
        let mut recv = evlbi();
        recv.args(["recv", "udp://127.0.0.1:0", "--json", "--ring", "64MiB"]);
        recv.args(["--to", &out]);
        let printed = File::create(&result).unwrap();
        let mut recv = start(&room, &mut recv, stderr(), printed.into());
        let to = format!("udp://{}", recv.address());
        let sender = Room::new();
        let mut send = evlbi();
        let source = sender.write("in.vdif", frames());
        send.args(["send", &source, "--to", &to, "--max", "--json"]);
        let printed = File::create(sender.path("sent")).unwrap();
        let mut send = start(&sender, &mut send, stderr(), printed.into());
        assert_eq!(send.child.wait().code(), Some(0));
        let sent = number(&sender.json("sent"), "sent");
        until("all arrives", || {
            let status = ask(&recv.control, r#"{"do":"status"}"#);
            status["status"]["receiving"][0]["unique"] == sent
        });
        assert_eq!(recv.stop(), Some(0));
        let result = room.json("result");
        assert_eq!(
            (number(&result, "unique"), &result["lost"]),
            (sent, &Value::from(0))
        );
        assert_eq!(fs::metadata(&out).unwrap().len(), number(&result, "bytes"));
        assert!(Path::new(&room.path("out.vdif.gaps.json")).is_file());
    }
}

/// A result that cannot be printed is an error; the recording is complete.
#[test]
fn a_result_that_cannot_be_printed_fails_the_command() {
    let room = Room::new();
    let mut recv = evlbi();
    recv.args(["recv", "udp://127.0.0.1:0", "--json", "--ring", "64MiB"]);
    recv.args(["--to", &room.path("out.vdif")]);
    let said = File::create(room.path("said")).unwrap();
    let mut recv = start(&room, &mut recv, said.into(), full());
    let to = recv.address();
    let frames = frames();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    for (number, frame) in frames.chunks(1032).enumerate() {
        let datagram = [&(number as u64).to_le_bytes()[..], frame].concat();
        sender.send_to(&datagram, &to).unwrap();
    }
    until("all arrives", || {
        let status = ask(&recv.control, r#"{"do":"status"}"#);
        status["status"]["receiving"][0]["unique"] == 20
    });
    assert_eq!(recv.stop(), Some(1));
    let said = room.text("said");
    assert!(said.contains("cannot write to standard output"), "{said}");
    assert!(room.read("out.vdif") == frames);
    assert!(Path::new(&room.path("out.vdif.gaps.json")).is_file());
}

/// Other long commands continue as well, and end on request.
#[test]
fn long_runs_outlive_their_messages() {
    let here = "udp://127.0.0.1:0";
    let runs: [(&[&str], _); 2] = [
        (
            &["respond", "--bind", "127.0.0.1:0", "--token", "secret"],
            0,
        ),
        // No stream has arrived.
        (&["correlate", here, here, "--live"], 1),
    ];
    for stderr in [full, closed] {
        let room = Room::new();
        for (words, status) in runs {
            let mut run = start(&room, evlbi().args(words), stderr(), stderr());
            let address = run.address();
            if words[0] == "respond" {
                let probed = Room::new();
                let mut watch = evlbi();
                watch.args(["watch", &probed.path("watched.sqlite"), &address]);
                watch.args(["--token", "secret", "--size", "1000"]);
                watch.args(["--rate", "1M", "--for", "300ms", "--window", "100ms"]);
                watch.arg("--json");
                let printed = File::create(probed.path("result")).unwrap();
                let mut watch = start(&probed, &mut watch, stderr(), printed.into());
                assert_eq!(watch.child.wait().code(), Some(0));
                assert!(probed.json("result").is_object());
            }
            assert_eq!(run.stop(), Some(status), "{words:?}");
        }
        let refused = evlbi()
            .args(["run", "nosuch.toml"])
            .stderr(stderr())
            .status();
        assert_eq!(refused.unwrap().code(), Some(1));
        let agent = Room::new();
        let mut starts = evlbi();
        starts.args(["agent", "--bind", "127.0.0.1:0", "--dir"]);
        starts.arg(agent.folder()).stdout(stderr()).stderr(stderr());
        let mut agent_runs = Running(starts.spawn().unwrap());
        until("the agent listens", || {
            Path::new(&agent.path("address")).exists()
        });
        agent_runs.signal(Signal::SIGTERM);
        assert_eq!(agent_runs.wait().code(), Some(0));
    }
}
