//! SIGTERM and Ctrl-C: a long command ends with a partial result, leaves no file behind that looks complete, and sets its exit status.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use evlbi_testkit::buffer::fit;
use evlbi_testkit::netns::paths;
use evlbi_testkit::result::{assert_numbers, assert_schema, read};
use evlbi_testkit::{Room, Running, buffer, each, until, until_some};
use evlbi_wire::{pattern, vtp};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::control::support::processes_in;
use crate::live::support::{Recv, evlbi, send};
use crate::result::number;

/// A command, the sign that it is at work, and the condition at its end.
#[derive(Debug)]
struct Case {
    name: &'static str,
    /// `IN` is the directory of its inputs, `OUT` that of its outputs.
    command: &'static str,
    sign: Sign,
    status: i32,
    check: fn(&Ended),
}

#[derive(Clone, Copy, Debug)]
enum Sign {
    /// On standard error.
    Says(&'static str),
    /// Progress with this text, from its control socket: a log has it seldom.
    Shows(&'static str),
    /// In a file of its directory.
    Writes(&'static str, &'static str),
}

/// Output of a command that has ended.
struct Ended {
    folder: Room,
    stdout: String,
    stderr: String,
}

impl Ended {
    #[track_caller]
    fn json(&self) -> Value {
        assert!(!self.stdout.is_empty(), "{}", self.stderr);
        read(&self.stdout)
    }

    fn files(&self) -> Vec<String> {
        let files = fs::read_dir(self.folder.path("out")).unwrap().flatten();
        let mut names: Vec<String> = files
            .map(|file| file.file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn is_interrupted(ended: &Ended) {
    assert_eq!(ended.json()["interrupted"], true);
    assert!(
        ended.stderr.contains("evlbi: interrupted"),
        "{}",
        ended.stderr
    );
}

/// A result, and no file.
fn leaves_nothing(ended: &Ended) {
    is_interrupted(ended);
    assert_eq!(ended.files(), [""; 0]);
}

fn is_stopped(ended: &Ended) {
    assert_eq!(ended.json()["stopped"], "interrupted");
}

const CASES: &[Case] = &[
    Case {
        name: "sky",
        command: "sky IN/long.toml --out OUT --json",
        sign: Sign::Shows(""),
        status: 1,
        check: |ended| {
            leaves_nothing(ended);
            assert_eq!(ended.json()["files"], serde_json::json!([]));
        },
    },
    Case {
        name: "drop",
        command: "drop IN/endless OUT/lossy --shed every:2 --replace nothing --json",
        sign: Sign::Shows(""),
        status: 1,
        check: leaves_nothing,
    },
    Case {
        name: "inspect",
        command: "inspect IN/endless --json",
        sign: Sign::Shows(""),
        status: 1,
        check: is_interrupted,
    },
    Case {
        name: "correlate",
        command: "correlate IN/Ef.vdif IN/On.vdif --threads 1 --integration 20ms --out OUT --json",
        sign: Sign::Writes("visibilities.json", "Ef"),
        status: 1,
        check: |ended| {
            is_interrupted(ended);
            let kept = fs::read_to_string(ended.folder.path("out/summary.json")).unwrap();
            let mut kept: Value = serde_json::from_str(&kept).unwrap();
            // The file names the visibilities next to it.
            kept["visibilities"] = ended.json()["visibilities"].clone();
            assert_eq!(kept, ended.json());
            // Data that were not correlated are not lost.
            let baseline = &ended.json()["baselines"][0];
            assert!(baseline["weight"].as_f64() > Some(0.99), "{baseline}");
        },
    },
    Case {
        name: "fringe",
        command: "fringe IN/Ef.vdif IN/On.vdif --threads 1 --json",
        sign: Sign::Shows(""),
        status: 1,
        check: |ended| {
            // Without any correlation there is nothing to search in.
            assert!(
                ended.stderr.contains("evlbi: interrupted"),
                "{}",
                ended.stderr
            );
            assert!(ended.stdout.is_empty() || ended.json()["interrupted"] == true);
        },
    },
    Case {
        name: "loss-curve",
        command: "loss-curve IN/Ef.vdif IN/On.vdif --loss 0.5%..20% --out OUT --json",
        sign: Sign::Writes("loss-curve.json", "\"shed\": \"every\""),
        status: 1,
        check: |ended| {
            is_interrupted(ended);
            let kept = fs::read_to_string(ended.folder.path("out/loss-curve.json")).unwrap();
            let kept: Value = serde_json::from_str(&kept).unwrap();
            assert_eq!(kept, ended.json());
            assert_eq!(kept["finished"], false);
            assert!(!kept["curves"][0]["points"].as_array().unwrap().is_empty());
        },
    },
    Case {
        name: "analyse",
        command: "analyse IN/endless.pcap --json",
        sign: Sign::Shows(""),
        status: 1,
        check: is_interrupted,
    },
    Case {
        name: "doctor",
        command: "doctor --rate 1G --disk OUT --json",
        sign: Sign::Shows("writing in"),
        status: 0,
        check: |ended| {
            assert_schema(&ended.json(), "evlbi.doctor/1");
            assert_eq!(ended.files(), [""; 0]);
        },
    },
    Case {
        name: "demo",
        command: "demo --stations 2 --rate 16M --duration 1h --json",
        sign: Sign::Shows("2 stations "),
        status: 1,
        check: |ended| {
            leaves_nothing(ended);
            assert_eq!(ended.json()["accounting_agrees"], true);
        },
    },
    Case {
        name: "demo with a web UI",
        command: "demo --stations 2 --rate 16M --duration 1h",
        sign: Sign::Says("web UI with stations"),
        status: 1,
        check: |ended| {
            assert_eq!(ended.files(), [""; 0]);
        },
    },
    Case {
        name: "send",
        command: "send pattern:1032 --to udp://127.0.0.1:9 --rate 1M --json",
        sign: Sign::Shows("datagrams"),
        status: 0,
        check: |ended| {
            let result = ended.json();
            assert_eq!(number(&result, "offered"), number(&result, "frames"));
        },
    },
    Case {
        name: "recv",
        command: "recv udp://127.0.0.1:0 --to OUT/x.vdif --ring 64MiB --json",
        sign: Sign::Says("listening"),
        status: 0,
        check: |ended| {
            assert_eq!(ended.json()["ended"], "stopped");
            assert_eq!(ended.files(), [""; 0]);
        },
    },
    Case {
        name: "recv over TCP",
        command: "recv tcp://127.0.0.1:0 --to OUT/x.vdif --json",
        sign: Sign::Says("listening"),
        status: 0,
        check: |ended| {
            assert_eq!(ended.json()["ended"], "stopped");
            assert_eq!(ended.files(), [""; 0]);
        },
    },
    Case {
        name: "correlate --live",
        command: "correlate --live udp://127.0.0.1:0 udp://127.0.0.1:0 --freq 4.9G --json",
        sign: Sign::Says("listening"),
        status: 1,
        check: |ended| {
            assert!(
                ended.stderr.contains("ended before a frame"),
                "{}",
                ended.stderr
            );
        },
    },
    Case {
        name: "respond",
        command: "respond --bind 127.0.0.1:0",
        sign: Sign::Says("listening"),
        status: 0,
        check: |_| {},
    },
    Case {
        name: "probe udp",
        command: "probe udp FAR --rate 1M --duration 1h --out OUT/parts --json",
        sign: Sign::Shows(" sent"),
        status: 1,
        check: |ended| {
            is_stopped(ended);
            let kept = fs::read_to_string(ended.folder.path("out/parts")).unwrap();
            assert!(
                kept.lines().last().unwrap().contains("interrupted"),
                "{kept}"
            );
        },
    },
    Case {
        name: "probe tcp",
        command: "probe tcp FAR --rate 1M --duration 1h --json",
        sign: Sign::Shows(""),
        status: 1,
        check: is_stopped,
    },
    Case {
        name: "probe latency",
        command: "probe latency FAR --count 100000 --json",
        sign: Sign::Shows(""),
        status: 1,
        check: is_stopped,
    },
    Case {
        name: "probe capacity",
        command: "probe capacity FAR --highest 2M --duration 1h --json",
        sign: Sign::Shows("trial"),
        status: 1,
        check: is_stopped,
    },
    Case {
        name: "watch",
        command: "watch OUT/w.sqlite FAR --rate 1M --window 100ms --json",
        sign: Sign::Shows("lost"),
        status: 0,
        check: |ended| {
            let report = ended.json();
            assert_schema(&report, "evlbi.report/1");
            assert!(!report["windows"].as_array().unwrap().is_empty());
        },
    },
];

/// A recording of an hour takes longer than any test.
const LONG: &str =
    "duration = 3600.0\nsample_rate = 64_000_000\nedv = 1\n[[station]]\nname = \"Ef\"\n";
const SHORT: &str = "duration = 1.0\nsample_rate = 64_000_000\nedv = 1\n[[station]]\nname = \"Ef\"\n[[station]]\nname = \"On\"\n";

/// Inputs of the commands.
fn inputs() -> Room {
    let room = Room::new();
    room.write("long.toml", LONG);
    let plan = room.write("short.toml", SHORT);
    let made = evlbi()
        .args(["sky", &plan, "--out"])
        .arg(room.folder())
        .output()
        .unwrap();
    assert!(made.status.success());
    // Holes, which no disk holds: raw data, and packets of no length.
    let hole = |name: &str| {
        let file = File::options()
            .create(true)
            .append(true)
            .open(room.path(name));
        file.unwrap().set_len(1 << 40).unwrap();
    };
    hole("endless");
    let magic = [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
    let header = [&magic[..], &[0; 8], &[0, 0, 4, 0, 1, 0, 0, 0]].concat();
    room.write("endless.pcap", header);
    hole("endless.pcap");
    room
}

/// Starts a command in a directory of its own, with its temporary files in `out`.
fn start(command: &mut Command, folder: &Room) -> Running {
    let file = |name: &str| File::create(folder.path(name)).unwrap();
    let running = command
        .current_dir(folder.path("out"))
        .env("TMPDIR", folder.path("out"))
        .env("EVLBI_TOKEN", "t")
        .stdin(Stdio::null())
        .stdout(file("stdout"))
        .stderr(file("stderr"))
        .spawn();
    Running(running.unwrap())
}

/// Whether a command shows progress, with this text in it.
fn shows(control: &str, what: &str) -> bool {
    let status = || {
        let mut stream = UnixStream::connect(control).ok()?;
        stream.write_all(b"{\"do\":\"status\"}\n").ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        serde_json::from_str::<Value>(&line).ok()
    };
    status().is_some_and(|answer| {
        let line = answer["status"]["line"].as_str().unwrap_or_default();
        let is_any = !line.is_empty() || answer["status"]["done"].is_number();
        is_any && line.contains(what)
    })
}

/// Runs a case once. Returns nothing if it had finished before the signal.
fn run(case: &Case, signal: Signal, inputs: &Room, far: &str) -> Option<()> {
    let folder = Room::new();
    fs::create_dir(folder.path("out")).unwrap();
    let arguments = case.command.split(' ').map(|word| {
        let word = word.replace("IN/", &format!("{}/", inputs.folder().display()));
        word.replace("OUT", &folder.path("out")).replace("FAR", far)
    });
    let control = folder.path("control");
    let mut command = evlbi();
    command.args(arguments).args(["--control", &control]);
    let mut running = start(&mut command, &folder);
    let has_ended = until_some(&format!("{} is at work", case.name), || {
        let has_ended = running.0.try_wait().unwrap().is_some();
        let read = |file: String| fs::read_to_string(file).unwrap_or_default();
        let is_at_work = match case.sign {
            Sign::Says(what) => read(folder.path("stderr")).contains(what),
            Sign::Writes(file, what) => read(folder.path(&format!("out/{file}"))).contains(what),
            Sign::Shows(what) => shows(&control, what),
        };
        (has_ended || is_at_work).then_some(has_ended)
    });
    if !has_ended {
        running.signal(signal);
    }
    let status = running.wait();
    let ended = Ended {
        stdout: folder.text("stdout"),
        stderr: folder.text("stderr"),
        folder,
    };
    if status.success() && (has_ended || case.status != 0) {
        return None;
    }
    let said = format!("{}: {}{}", case.name, ended.stdout, ended.stderr);
    assert_eq!(status.code(), Some(case.status), "{said}");
    until("no process is left", || {
        processes_in(ended.folder.folder()).is_empty()
    });
    (case.check)(&ended);
    Some(())
}

#[test]
fn a_long_command_ends_with_a_partial_result() {
    let inputs = inputs();
    let mut respond = evlbi();
    respond.args(["respond", "--bind", "127.0.0.1:0"]);
    let respond = Recv::listening(respond.env("EVLBI_TOKEN", "t"), 1);
    let far = respond.address().to_string();
    let numbered: Vec<(usize, &Case)> = CASES.iter().enumerate().collect();
    each(&numbered, |(number, case)| {
        let signal = [Signal::SIGTERM, Signal::SIGINT][number % 2];
        let caught = (0..5).find_map(|_| run(case, signal, &inputs, &far));
        assert!(caught.is_some(), "{} ends too soon", case.name);
    });
    respond.signal("TERM");
    assert_eq!(respond.end().status.code(), Some(0));
}

/// A second signal ends a command without waiting for the result.
#[test]
fn a_second_signal_ends_a_command_at_once() {
    let mut respond = evlbi();
    respond.args(["respond", "--bind", "127.0.0.1:0"]);
    let respond = Recv::listening(respond.env("EVLBI_TOKEN", "t"), 1);
    let folder = Room::new();
    fs::create_dir(folder.path("out")).unwrap();
    let mut probe = evlbi();
    probe.args([
        "probe",
        "udp",
        &respond.address().to_string(),
        "--rate",
        "1M",
    ]);
    let control = folder.path("control");
    probe.args(["--duration", "1h", "--control", &control]);
    let mut running = start(&mut probe, &folder);
    until("it measures", || shows(&control, " sent"));
    // It waits for a responder that does not answer.
    respond.signal("STOP");
    // A signal that arrives together with the first merges with it.
    until("it ends", || {
        running.signal(Signal::SIGINT);
        running.0.try_wait().unwrap().is_some()
    });
    assert_eq!(running.wait().code(), Some(130));
    respond.signal("CONT");
    respond.signal("TERM");
    respond.end();
}

/// A path ends with the command on it, which gets the signal; the path's results are written each second, and at the end.
#[test]
fn a_path_ends_with_its_command() {
    if !paths() {
        return;
    }
    let room = Room::new();
    fs::create_dir(room.path("out")).unwrap();
    let host = |name: &str| format!("[[host]]\nname = \"{name}\"\n");
    let link = "[[link]]\nbetween = [\"a\", \"b\"]\nrtt = \"1ms\"\n";
    let plan = room.write("p.toml", [host("a"), host("b"), link.to_owned()].concat());
    let (json, inside) = (room.path("out/p.json"), room.path("out/inside"));
    let script = format!("\"$0\" path exec b -- sh -c 'touch {inside}; exec sleep 1000'");
    let mut path = evlbi();
    path.args([
        "path", "run", &plan, "--json", &json, "--", "sh", "-c", &script,
    ]);
    let mut running = start(path.arg(env!("CARGO_BIN_EXE_evlbi")), &room);
    let state = || -> Option<Value> { serde_json::from_slice(&fs::read(&json).ok()?).ok() };
    until("the path has a state", || {
        Path::new(&inside).exists() && state().is_some_and(|state| state["finished"] == false)
    });
    running.signal(Signal::SIGTERM);
    assert_eq!(running.wait().code(), Some(143), "{}", room.text("stderr"));
    assert_eq!(state().unwrap()["finished"], true);
    until("no process is left", || {
        processes_in(room.folder()).is_empty()
    });
}

/// Bytes that wait in the socket at a port of 127.0.0.1, as the kernel accounts for them.
fn queued(port: u16) -> u64 {
    let table = fs::read_to_string("/proc/net/udp").unwrap();
    let here = format!(" 0100007F:{port:04X} ");
    let line = table.lines().find(|line| line.contains(&here)).unwrap();
    let queues = line.split_whitespace().nth(4).unwrap();
    u64::from_str_radix(queues.split_once(':').unwrap().1, 16).unwrap()
}

#[test]
fn ctrl_c_ends_with_everything_written() {
    for stands_still in [false, true] {
        let room = Room::new();
        let count = u64::from(fit(500, 1, 8032));
        let rate = pattern::frame_rate(1250);
        let frames = pattern::frames(8032, 1_700_000_000, rate, count as u32).unwrap();
        let source = room.write("pattern.vdif", frames);
        let out = room.path("out.vdif");
        let recv = Recv::start("udp://127.0.0.1:0", Path::new(&out), &[]);
        if stands_still {
            recv.signal("STOP");
        }
        // Each is a message of its own, which takes as much of the buffer as any other.
        let sent = send(&source, &recv.url(), &["--mtu", "9000", "--no-gso"]);
        assert_numbers(&sent, &[("sent", count)]);
        if stands_still {
            let each = buffer::takes(8032 + vtp::HEADER_LEN);
            until("all waits in the socket", || {
                queued(recv.address().port()) >= count * each
            });
        } else {
            recv.until_arrived(count);
        }
        recv.signal("INT");
        recv.signal("CONT");
        let result = recv.finish();
        // Includes data that were still in the socket's buffer when the signal arrived.
        assert_numbers(&result, &[("frames", count), ("lost", 0)]);
        assert_eq!(result["ended"], "stopped");
        assert_eq!(fs::metadata(&out).unwrap().len(), count * 8032);
        assert!(Path::new(&room.path("out.vdif.gaps.json")).is_file());
    }
}
