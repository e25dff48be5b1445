//! The command lines of README and the documentation, run as a reader runs them, each page in a directory of its own: of README
//! each line, of the documentation each block that is marked `sh`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use evlbi_testkit::{Room, Running, command, each, need, netns, until};

/// Lines of README that are not run: the page, the start of the line, and why.
const NOT_RUN: &[(&str, &str, &str)] = &[
    ("README.md", "evlbi recv udp://0.0.0.0:2630", NO_END),
    (
        "README.md",
        "evlbi send scan1.vdif --to udp://correlator",
        OTHER_HOST,
    ),
    ("README.md", "cargo install", LONG),
    ("README.md", "evlbi demo", LONG),
    ("README.md", "evlbi correlate udp://:2630", NO_END),
    ("README.md", "evlbi respond", NO_END),
    ("README.md", "evlbi probe", OTHER_HOST),
    ("README.md", "evlbi watch", OTHER_HOST),
    ("README.md", "evlbi report", OTHER_HOST),
    ("README.md", "evlbi doctor", THIS_HOST),
    ("README.md", "evlbi path run", NAMESPACES),
    ("README.md", "evlbi agent", NO_END),
    ("README.md", "evlbi run", NO_END),
    ("README.md", "evlbi console", NO_END),
];

const OTHER_HOST: &str = "needs another host";
const NO_END: &str = "runs until it is stopped; other tests run it on free ports";
const LONG: &str =
    "takes a minute or more; other tests build the program and run it for a shorter time";
const NAMESPACES: &str = "needs a terminal or minutes; the tests of paths run these";
const THIS_HOST: &str = "depends on the host's cards and disks";

/// Pages of the documentation without a command to paste.
const WITHOUT_COMMAND: &[&str] = &["glossary.md", "libraries.md", "safeudp.md"];

/// Brings up the network, and notes the background programs that fail, of which `wait` says nothing.
const PREAMBLE: &str = "
ip link set lo up
PATH=$PWD/.bin:$PATH
noted() {
    command \"$@\" && return
    local status=$?
    [ $BASHPID = $$ ] || [ \"$1 $status\" = 'timeout 124' ] || echo \"$*: status $status\" >> .failed
    return $status
}
evlbi() { noted evlbi \"$@\"; }
timeout() { noted timeout \"$@\"; }
";

/// A `sleep` that waits until each background program of the calling shell has its sockets, too: pages wait a second for programs to
/// listen, and a busy machine may take longer. A shell that a page starts finds it as well. A program has them if it has some, in any
/// network namespace, and a look later still the same.
const SLEEP: &str = "#!/bin/bash
command -p sleep $1
# Not PPID: a path's command sees the processes of another namespace.
read -r own _ _ parent _ < /proc/self/stat
sockets() {
    for child in $(cat /proc/$parent/task/$parent/children); do
        [ $child = $own ] && continue
        below=($child)
        while [ $below ]; do
            child=$below
            below=($(cat /proc/$child/task/$child/children))
        done
        [ -e /proc/$child/exe ] && echo $child $(ls -l /proc/$child/fd | grep -o 'socket:.*' || echo none)
    done
}
for i in {1..300}; do
    now=$(sockets 2>&-)
    [ $i -gt 1 ] && [ \"$now\" = \"$before\" ] && [[ $now != *none* ]] && break
    before=$now
    command -p sleep 0.2
done
";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Follows the last line of a block.
const END: &str = "[ ! -e .failed ] || { cat .failed >&2; exit 1; }";

/// The text of a page of the documentation.
fn page(name: &str) -> String {
    fs::read_to_string(root().join("docs/src").join(name)).unwrap()
}

/// The blocks of code of a page, each after the name of its language.
fn blocks(page: &str) -> impl Iterator<Item = &str> {
    page.split("\n```").skip(1).step_by(2)
}

/// The lines in a page's blocks of code that call this program.
fn lines(page: &str) -> Vec<String> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for line in page.replace("\\\n", " ").lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        } else if line.starts_with('|') {
            // Commands of a table.
            let spans = line.split('`').skip(1).step_by(2);
            let commands = spans.filter(|span| span.starts_with("evlbi "));
            lines.extend(commands.map(str::to_owned));
        } else if is_code && line.contains("evlbi ") && !line.trim().starts_with('#') {
            lines.push(line.trim().to_owned());
        }
    }
    lines
}

/// A tenth of a second of sky: a second takes seconds.
fn shortened(text: &str) -> String {
    text.replace("duration = 1.0", "duration = 0.1")
        .replace("duration = 2.0", "duration = 0.1")
}

/// The examples of the sources, with their files in a temporary directory within this one.
fn examples(room: &Room) {
    fs::create_dir(room.path("examples")).unwrap();
    for example in fs::read_dir(root().join("examples")).unwrap().flatten() {
        let text = fs::read_to_string(example.path()).unwrap();
        let text = shortened(&text).replace("/tmp/", &format!("{}/", room.folder().display()));
        let name = example.file_name().into_string().unwrap();
        room.write(&format!("examples/{name}"), text);
    }
}

/// Provides the files that a reader has before the first line: the sources' examples, recordings, and a capture.
fn equip(room: &Room, recordings: &Room) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let link =
        |from: PathBuf, name: &str| std::os::unix::fs::symlink(from, room.path(name)).unwrap();
    examples(room);
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

/// A program for a shell, in a directory.
fn typed(line: &str, room: &Room, shell: &[&str]) -> std::process::Command {
    let program = Path::new(env!("CARGO_BIN_EXE_evlbi")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let line = line.replace("/tmp/", &format!("{}/", room.folder().display()));
    let mut typed = command(shell[0]);
    typed
        .args(&shell[1..])
        .arg(&line)
        .env("PATH", format!("{}:{path}", program.display()))
        // `path` finds the only path that is up, among those in this directory.
        .env("XDG_RUNTIME_DIR", room.folder())
        .current_dir(room.folder())
        .stdin(Stdio::null());
    typed
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
    let receiver = typed(&receive.replace("2630", &port), room, SHELL)
        .stderr(said)
        .spawn();
    let mut receiver = Running(receiver.unwrap());
    until("it listens", || room.text("said").contains("listening"));
    let sent = typed(&send.replace("2630", &port), room, SHELL)
        .output()
        .unwrap();
    assert_done(page, send, &sent);
    assert!(
        receiver.wait().success(),
        "{page}: {receive}\n{}",
        room.text("said")
    );
}

const SHELL: &[&str] = &["sh", "-c"];

#[test]
fn the_command_lines_of_readme_run() {
    let page = "README.md";
    let mut lines = lines(&fs::read_to_string(root().join(page)).unwrap());
    let mut is_used = vec![false; NOT_RUN.len()];
    lines.retain(|line| {
        let place = NOT_RUN
            .iter()
            .position(|(_, begin, _)| line.starts_with(begin));
        place.is_none_or(|place| {
            is_used[place] = true;
            false
        })
    });
    let gone = NOT_RUN.iter().zip(&is_used).filter(|(_, used)| !**used);
    let gone: Vec<_> = gone.map(|(entry, _)| entry).collect();
    assert!(gone.is_empty(), "no line of {page} is one of {gone:?}");
    let (recordings, room) = (recordings(), Room::new());
    equip(&room, &recordings);
    let mut lines = lines.iter();
    while let Some(line) = lines.next() {
        if line.starts_with("evlbi recv udp://127.0.0.1") {
            let send = lines.next().expect("a sender to the receiver");
            in_two_terminals(page, [line, send], &room);
        } else {
            assert_done(page, line, &typed(line, &room, SHELL).output().unwrap());
        }
    }
}

/// Each page starts with a block that a reader can paste in an empty directory (with `examples` of the sources).
#[test]
fn the_blocks_of_the_documentation_run() {
    let contents = page("SUMMARY.md");
    let names = contents.split("](").skip(1);
    let names: Vec<&str> = names.filter_map(|rest| rest.split(')').next()).collect();
    for name in &names {
        let begins = blocks(&page(name))
            .next()
            .is_some_and(|block| block.starts_with("sh\n"));
        assert!(
            begins || WITHOUT_COMMAND.contains(name),
            "{name} does not start with a block of sh"
        );
    }
    if !need(&["bash", "curl", "ip", "jq", "ss", "tcpdump", "unshare"]) || !netns::paths() {
        return;
    }
    // A network of their own, so that pages use the same ports, and processes that end with the shell.
    let mut shell = vec![
        "unshare",
        "--net",
        "--pid",
        "--mount-proc",
        "--fork",
        "--kill-child",
    ];
    if !nix::unistd::Uid::effective().is_root() {
        shell.extend(["--user", "--map-root-user"]);
    }
    shell.extend(["--", "bash", "-ec"]);
    each(&names, |name| {
        let (room, page) = (Room::new(), page(name));
        examples(&room);
        let sleep = room.path(".bin/sleep");
        fs::create_dir(room.path(".bin")).unwrap();
        fs::write(&sleep, SLEEP).unwrap();
        fs::set_permissions(&sleep, fs::Permissions::from_mode(0o755)).unwrap();
        for block in blocks(&page).filter_map(|block| block.strip_prefix("sh\n")) {
            let script = format!("{PREAMBLE}{}\n{END}", shortened(block));
            assert_done(
                name,
                block,
                &typed(&script, &room, &shell).output().unwrap(),
            );
        }
    });
}
