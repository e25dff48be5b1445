//! The command lines of README and the documentation, run as a reader runs them: each page from its beginning, in a folder of its
//! own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use evlbi_testkit::{Room, Running, command, each, until};

/// Lines that are not run: the page, how the line begins, and why.
const NOT_RUN: &[(&str, &str, &str)] = &[
    ("README.md", "evlbi recv udp://0.0.0.0:2630", NO_END),
    (
        "README.md",
        "evlbi send scan1.vdif --to udp://correlator",
        OTHER_HOST,
    ),
    (
        "README.md",
        "evlbi send pattern:8032 --to udp://host",
        OTHER_HOST,
    ),
    ("README.md", "evlbi correlate udp://:2630", NO_END),
    ("README.md", "evlbi respond", NO_END),
    ("README.md", "evlbi probe", OTHER_HOST),
    ("README.md", "evlbi watch", OTHER_HOST),
    ("README.md", "evlbi doctor", THIS_HOST),
    ("README.md", "evlbi path run", NAMESPACES),
    ("README.md", "evlbi agent", NO_END),
    ("README.md", "evlbi run", NO_END),
    ("README.md", "evlbi console", NO_END),
    ("check-path.md", "evlbi respond", NO_END),
    ("check-path.md", "evlbi probe", OTHER_HOST),
    ("congestion.md", "evlbi plan tcp --rate 512M --rtt 15ms,27ms,95ms", COMPARED),
    ("congestion.md", "evlbi plan tcp --rate 512M --rtt 27ms", COMPARED),
    ("correlate-live.md", "evlbi correlate udp://:2630", NO_END),
    ("correlate.md", "evlbi correlate S1.vdif", DIFX),
    ("emulate.md", "evlbi path", NAMESPACES),
    ("find-fringes.md", "evlbi fringe job.vis", DIFX),
    ("http-api.md", "evlbi recv", NO_END),
    ("many-hosts.md", "evlbi agent", NO_END),
    ("many-hosts.md", "evlbi console", NO_END),
    ("many-hosts.md", "evlbi run", NO_END),
    ("measure-loss.md", "evlbi loss-curve", LIVE),
    ("monitor.md", "evlbi probe", OTHER_HOST),
    ("monitor.md", "evlbi report", OTHER_HOST),
    ("monitor.md", "evlbi watch", OTHER_HOST),
    ("record-and-send.md", "evlbi recv udp://0.0.0.0:2630", NO_END),
    ("record-and-send.md", "evlbi send pattern:8032", OTHER_HOST),
    ("record.md", "evlbi recv", NO_END),
    ("record.md", "evlbi send", OTHER_HOST),
    ("send.md", "evlbi send", OTHER_HOST),
    ("tune.md", "evlbi doctor", THIS_HOST),
    ("urls.md", "evlbi correlate unix", NO_END),
    ("urls.md", "evlbi recv", NO_END),
    ("urls.md", "evlbi send", OTHER_HOST),
    ("use-tcp.md", "evlbi path", NAMESPACES),
    ("use-tcp.md", "evlbi probe", OTHER_HOST),
    ("use-tcp.md", "evlbi respond", NO_END),
    ("use-tcp.md", "sleep 1; evlbi probe tcp", OTHER_HOST),
];

const OTHER_HOST: &str = "needs another host";
const NO_END: &str = "runs until it is stopped; other tests run it on free ports";
const NAMESPACES: &str = "needs a terminal or minutes; the tests of paths run these";
const THIS_HOST: &str = "depends on the host's cards and disks";
const DIFX: &str = "needs a job of DiFX; the oracles run that";
const COMPARED: &str = "takes a minute of a processor; the tests of `plan` compare less";
const LIVE: &str = "takes minutes; README's measures less";

/// The pages, by their names.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = fs::read_dir(root.join("docs/src")).unwrap().flatten();
    let mut paths: Vec<PathBuf> = docs.map(|entry| entry.path()).collect();
    paths.push(root.join("README.md"));
    paths.retain(|path| path.extension().is_some_and(|end| end == "md"));
    let page = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, fs::read_to_string(path).unwrap())
    };
    paths.into_iter().map(page).collect()
}

/// The lines of a page's blocks of code that call this program.
fn lines(page: &str) -> Vec<String> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for line in page.replace("\\\n", " ").lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        } else if is_code && line.contains("evlbi ") && !line.trim().starts_with('#') {
            lines.push(line.trim().to_owned());
        }
    }
    lines
}

/// What a reader has before the first line: the sources' examples, recordings, and a capture.
fn equip(room: &Room, recordings: &Room) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let link =
        |from: PathBuf, name: &str| std::os::unix::fs::symlink(from, room.path(name)).unwrap();
    fs::create_dir(room.path("examples")).unwrap();
    for example in fs::read_dir(here.join("../../examples")).unwrap().flatten() {
        let text = fs::read_to_string(example.path()).unwrap();
        // A second of three stations takes seconds.
        let text = text.replace("duration = 1.0 ", "duration = 0.02 ");
        let name = example.file_name().into_string().unwrap();
        room.write(&format!("examples/{name}"), text);
    }
    link(
        here.join("tests/oracles/captures/lossy-near.pcap"),
        "flow.pcap",
    );
    for (name, from) in [
        ("Ef", "Ef"),
        ("Jb", "Jb"),
        ("On", "On"),
        ("scan1", "Ef"),
        ("in", "Ef"),
    ] {
        link(
            recordings.folder().join(format!("{from}.vdif")),
            &format!("{name}.vdif"),
        );
    }
}

/// Three stations, a few milliseconds.
fn recordings() -> Room {
    let room = Room::new();
    let stations = ["Ef", "Jb", "On"].map(|name| format!("[[station]]\nname = \"{name}\"\n"));
    let plan = format!(
        "duration = 0.05\nsample_rate = 16_000_000\nedv = 1\n{}",
        stations.concat()
    );
    let plan = room.write("sky.toml", plan);
    let made = super::evlbi(&["sky", &plan, "--out", room.folder().to_str().unwrap()]);
    assert!(made.status.success());
    room
}

/// Gives a line to a shell, in a folder.
fn typed(line: &str, room: &Room) -> std::process::Command {
    let program = Path::new(env!("CARGO_BIN_EXE_evlbi")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let line = line.replace("/tmp/", &format!("{}/", room.folder().display()));
    let mut shell = command("sh");
    shell
        .args(["-c", &line])
        .env("PATH", format!("{}:{path}", program.display()))
        .current_dir(room.folder())
        .stdin(Stdio::null());
    shell
}

fn assert_done(page: &str, line: &str, output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{page}: {line}\n{said}");
}

/// Two terminals: a receiver, and a sender to it.
fn in_two_terminals(page: &str, [receive, send]: [&str; 2], room: &Room) {
    let [port] = crate::control::support::free_ports();
    let port = port.port().to_string();
    let said = fs::File::create(room.path("said")).unwrap();
    let receiver = typed(&receive.replace("2630", &port), room)
        .stderr(said)
        .spawn();
    let mut receiver = Running(receiver.unwrap());
    until("it listens", || room.text("said").contains("listening"));
    let sent = typed(&send.replace("2630", &port), room).output().unwrap();
    assert_done(page, send, &sent);
    assert!(
        receiver.wait().success(),
        "{page}: {receive}\n{}",
        room.text("said")
    );
}

#[test]
fn the_command_lines_of_the_pages_run() {
    let recordings = recordings();
    let mut is_used = vec![false; NOT_RUN.len()];
    let mut to_run = Vec::new();
    for (page, text) in pages() {
        let mut lines = lines(&text);
        lines.retain(|line| {
            let place = NOT_RUN
                .iter()
                .position(|(of, begin, _)| *of == page && line.starts_with(begin));
            place.is_none_or(|place| {
                is_used[place] = true;
                false
            })
        });
        to_run.push((page, lines));
    }
    let gone = NOT_RUN.iter().zip(&is_used).filter(|(_, used)| !**used);
    let gone: Vec<_> = gone.map(|(entry, _)| entry).collect();
    assert!(gone.is_empty(), "no line of the pages is one of {gone:?}");
    each(&to_run, |(page, lines)| {
        let room = Room::new();
        equip(&room, &recordings);
        let mut lines = lines.iter();
        while let Some(line) = lines.next() {
            if line.starts_with("evlbi recv udp://127.0.0.1") {
                let send = lines.next().expect("a sender to the receiver");
                in_two_terminals(page, [line, send], &room);
            } else {
                assert_done(page, line, &typed(line, &room).output().unwrap());
            }
        }
    });
    let count: usize = to_run.iter().map(|(_, lines)| lines.len()).sum();
    assert!(count >= 20, "only {count} lines were run");
}
