//! `evlbi path`: real kernels at the ends, cells of a plan in the middle.
//!
//! Put tests here of real kernels at the ends of a path; cells are tested in evlbi-core.

mod analyse;
mod cells;
mod probe;
mod tcp;

use std::fs;
use std::io::Write;
use std::ops::Deref;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Output, Stdio};

use evlbi_testkit::clock::Shifted;
use evlbi_testkit::need::{Kind, is_refused};
use evlbi_testkit::netns::{HOSTS, has_users_of_its_own, paths};
use evlbi_testkit::result::{assert_schema, read};
use evlbi_testkit::{Lines, Running, command, copy_program, need, skip, until};
use evlbi_wire::pattern;
use serde_json::Value;

use crate::live::support::Recv;
use crate::result::number;

const EVLBI: &str = env!("CARGO_BIN_EXE_evlbi");

/// The direction in which tests send.
const FORWARD: &str = "jive>manchester";
/// Frames of a test's stream: with the header of VTP a datagram holds 1448 bytes, and a frame on Ethernet 1490.
const FRAME: usize = 1440;
const TOKEN: &str = "a token of tests";
/// Nobody.
const PLAIN_USER: u32 = 65_534;

/// A directory with a plan, and all files about its paths.
struct Room {
    room: evlbi_testkit::Room,
    plan: String,
    program: String,
    /// Whether a user without any rights runs the program.
    is_plain: bool,
}

impl Deref for Room {
    type Target = evlbi_testkit::Room;

    fn deref(&self) -> &evlbi_testkit::Room {
        &self.room
    }
}

impl Room {
    /// None if this host cannot make paths: the test is skipped.
    #[track_caller]
    fn new(plan: &str) -> Option<Room> {
        if !paths() {
            return None;
        }
        let room = evlbi_testkit::Room::new();
        Some(Room {
            plan: room.write("plan.toml", plan),
            room,
            program: EVLBI.to_owned(),
            is_plain: false,
        })
    }

    /// The program. Sockets of its paths are in this directory, so that it does not see other tests' paths.
    fn evlbi(&self) -> Command {
        let mut evlbi = self.as_user(&self.program);
        evlbi
            .env("XDG_RUNTIME_DIR", self.folder())
            .env("EVLBI_TOKEN", TOKEN)
            .env_remove("EVLBI_PATH")
            .current_dir(self.folder())
            .stdin(Stdio::null());
        evlbi
    }

    /// Returns a command that runs a program as the user of this test.
    fn as_user(&self, program: &str) -> Command {
        if !self.is_plain {
            return command(program);
        }
        // Some machines let only root open the device; this user finds another one there.
        let script = format!(
            "mount -t tmpfs none /dev/net; mknod -m 666 /dev/net/tun c 10 200; \
             exec setpriv --reuid {PLAIN_USER} --regid {PLAIN_USER} --clear-groups \"$0\" \"$@\""
        );
        let mut unshare = command("unshare");
        unshare.args(["--mount", "sh", "-ec", &script, program]);
        unshare
    }

    /// Has a user without any rights run the program. False where such a user may make no paths: the test is skipped.
    #[track_caller]
    fn leave_rights(&mut self) -> bool {
        if !nix::unistd::Uid::effective().is_root() {
            return true;
        }
        if !need(&["setpriv", "unshare"]) {
            return false;
        }
        // In a directory that this user can read.
        let program = self.path("program");
        copy_program(&self.program, &program);
        self.program = program;
        let folder = self.folder();
        for reached in [folder, folder.parent().unwrap()] {
            fs::set_permissions(reached, PermissionsExt::from_mode(0o755)).unwrap();
        }
        chown(folder, Some(PLAIN_USER), Some(PLAIN_USER)).unwrap();
        self.is_plain = true;
        // That user needs from the machine: the device, and user namespaces.
        let may = "exec 3<> /dev/net/tun; exec unshare --user true";
        let output = self.as_user("sh").args(["-ec", may]).output().unwrap();
        if output.status.success() {
            return true;
        }
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(is_refused(&said), "{said}");
        let said = said.trim();
        skip(Kind::Tool, &format!("paths of plain users ({said})"));
        false
    }

    /// Runs a command on the plan's first host; `$E` is this program.
    fn run(&self, program: &[&str]) -> Output {
        self.evlbi()
            .args(["path", "run", &self.plan, "--json", &self.path("path.json")])
            .arg("--")
            .args(program)
            .env("E", &self.program)
            .output()
            .unwrap()
    }

    /// Makes the path of the plan.
    #[track_caller]
    fn up(&self) -> Up<'_> {
        let log = self.path("log.csv");
        let said = fs::File::create(self.path("path.txt")).unwrap();
        let mut path = self.evlbi();
        path.args(["path", "run", &self.plan, "--force", "--log", &log])
            .args(["--json", &self.path("path.json")])
            .stderr(said);
        let child = raise(&mut path).unwrap_or_else(|| panic!("{}", self.text("path.txt")));
        Up {
            name: format!("plan.{}", child.0.id()),
            room: self,
            child,
        }
    }
}

/// Makes a path that ends with this process, in any case: its command reads a pipe that never gets data. None if it fails.
pub fn raise(path_run: &mut Command) -> Option<Running> {
    let mut path = path_run
        .args(["--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map(Running)
        .unwrap();
    // The line that returns has been on the first host.
    let _ = path.0.stdin.as_mut().unwrap().write_all(b"up\n");
    let line = Lines::of(path.0.stdout.take().unwrap()).next();
    (line.as_deref() == Some("up")).then_some(path)
}

/// A path that is up.
struct Up<'a> {
    room: &'a Room,
    name: String,
    child: Running,
}

impl Up<'_> {
    /// Returns a command that runs a program on a host.
    fn at(&self, host: &str) -> Command {
        let mut command = self.room.evlbi();
        command.args(["path", "exec", host, "--path", &self.name, "--"]);
        command
    }

    /// The same, of this program.
    fn evlbi_at(&self, host: &str) -> Command {
        let mut command = self.at(host);
        command.arg(&self.room.program);
        command
    }

    /// Returns the output of a script on a host, which must not fail.
    #[track_caller]
    fn sh(&self, host: &str, script: &str) -> String {
        printed(self.at(host).args(["sh", "-ec", script]))
    }

    /// Returns the counters of the path so far.
    #[track_caller]
    fn state(&self) -> Value {
        let shown = printed(
            self.room
                .evlbi()
                .args(["path", "show", &self.name, "--json"]),
        );
        read(shown)
    }

    /// Ends it; returns its results.
    #[track_caller]
    fn end(mut self) -> Value {
        drop(self.child.0.stdin.take());
        let status = self.child.wait();
        assert!(status.success(), "{}", self.room.text("path.txt"));
        self.room.json("path.json")
    }

    /// `recv` on a host.
    #[track_caller]
    fn receive(&self, host: &str, from: &str, to: &str, more: &[&str]) -> Recv {
        let mut command = self.evlbi_at(host);
        command
            .args(["recv", from, "--to", to, "--json"])
            .args(["--ring", "64MiB", "--hold", "60s"])
            .args(more);
        self.listening(&mut command, host)
    }

    /// Runs a command until it listens, with a control socket in the room, where a plain user may make it.
    #[track_caller]
    fn listening(&self, command: &mut Command, name: &str) -> Recv {
        let socket = self.room.path(&format!("{name}.socket"));
        Recv::controlled(command, 1, socket)
    }

    /// `send` from the first host, at its maximum rate, which must not fail: `count` pattern frames, each in a datagram and a
    /// frame of its own, numbered from `first`.
    #[track_caller]
    fn send(&self, to: &str, first: u64, count: u64) -> Value {
        let rate = pattern::frame_rate(1000);
        let frames = pattern::frames(FRAME, 1_700_000_000, rate, count as u32).unwrap();
        let source = self.room.write("in.vdif", frames);
        let shown = printed(
            self.evlbi_at("jive")
                .args(["send", &source, "--to", to, "--max", "--no-gso", "--json"])
                .args(["--sequence", &first.to_string()]),
        );
        let sent = read(shown);
        assert_eq!(number(&sent, "sent"), count);
        sent
    }

    /// `respond` on the remote host.
    #[track_caller]
    fn respond(&self) -> Recv {
        self.listening(&mut self.responder(), "responder")
    }

    /// The same, by a clock that is wrong.
    #[track_caller]
    fn respond_by(&self, clock: &Shifted) -> Recv {
        self.listening(clock.apply(&mut self.responder()), "responder")
    }

    fn responder(&self) -> Command {
        let mut command = self.evlbi_at("manchester");
        command.args(["respond", "--bind", "0.0.0.0:8620"]);
        command
    }

    /// A probe of a kind from the first host to the second one, which must not fail.
    #[track_caller]
    fn probe(&self, kind: &str, more: &[&str]) -> Value {
        let shown = printed(
            self.evlbi_at("jive")
                .args(["probe", kind, "manchester:8620", "--json"])
                .args(more),
        );
        read(shown)
    }

    /// A counter of a host's kernel: `table` as `Udp` or `TcpExt`.
    #[track_caller]
    fn kernel(&self, host: &str, table: &str, name: &str) -> u64 {
        let text = self.sh(host, "cat /proc/net/snmp /proc/net/netstat");
        let mut lines = text
            .lines()
            .filter_map(|line| line.strip_prefix(&format!("{table}: ")));
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        let mut both = names.split(' ').zip(values.split(' '));
        let found = both.find(|(other, _)| *other == name);
        found
            .unwrap_or_else(|| panic!("no {name}"))
            .1
            .parse()
            .unwrap()
    }
}

/// Returns the output of a command, which must not fail.
#[track_caller]
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn cell<'a>(state: &'a Value, direction: &str, name: &str) -> &'a Value {
    let cells = state["cells"].as_array().unwrap();
    let found = cells
        .iter()
        .find(|cell| cell["direction"] == direction && cell["cell"] == name);
    found.unwrap_or_else(|| panic!("no {direction} {name} in {state}"))
}

/// Only the command's output is on standard output, and its exit status is that of the program; hosts are known
/// by their names.
#[test]
fn a_command_runs_on_the_first_host() {
    if !need(&["getent"]) {
        return;
    }
    let Some(room) = Room::new(&format!("{HOSTS}rtt = \"30ms\"\n")) else {
        return;
    };
    let script = "getent hosts manchester; $E path exec manchester -- getent hosts jive; exit 7";
    let output = room.run(&["sh", "-ec", script]);
    assert_eq!(output.status.code(), Some(7));
    let shown = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = shown.split_whitespace().collect();
    assert_eq!(words, ["10.77.0.2", "manchester", "10.77.0.1", "jive"]);
    let state = room.json("path.json");
    assert_schema(&state, "evlbi.path/1");
    assert!(String::from_utf8_lossy(&output.stderr).contains(FORWARD));
}

/// No answer to an independent tool arrives before the plan's delays allow; it may arrive later.
#[test]
fn no_round_trip_is_shorter_than_the_plans_delays() {
    if !need(&["ping"]) {
        return;
    }
    // 5 ms outbound, 12.5 ms return; and less than a millisecond, of which ping prints three digits after the point.
    for (rtt, more, shortest) in [("10ms", "7.5ms", 17.5), ("500us", "250us", 0.75)] {
        let cells = format!("rtt = \"{rtt}\"\nbackward = [{{ delay = \"{more}\" }}]\n");
        let Some(room) = Room::new(&format!("{HOSTS}{cells}")) else {
            return;
        };
        answers_take_at_least(shortest, &room);
    }
}

/// Pings in both directions, over IPv4 and IPv6; no round trip takes less than `shortest` milliseconds.
#[track_caller]
fn answers_take_at_least(shortest: f64, room: &Room) {
    let up = room.up();
    for (from, to) in [
        ("jive", "manchester"),
        ("manchester", "jive"),
        ("jive", "manchester-v6"),
    ] {
        // With a far deadline, ping ends with the last answer; without, it waits two round trips for the last.
        let ping = ["ping", "-n", "-c", "20", "-i", "0.01", "-w", "100", to];
        let shown = printed(up.at(from).args(ping));
        let times = shown.lines().filter_map(|line| {
            let (_, rest) = line.split_once("time=")?;
            rest.split(' ').next()?.parse::<f64>().ok()
        });
        let times: Vec<f64> = times.collect();
        assert!(times.len() >= 20, "{shown}");
        assert!(times.iter().all(|time| *time >= shortest), "{times:?}");
    }
}

/// Long TCP segments are split where a cell requires it, and all their data arrive.
#[test]
fn tcp_brings_every_byte_through_everything() {
    let cells = "rtt = \"4ms\"\nrate = \"400M\"\nbuffer = \"100KiB\"\ncells = [{ loss = \"0.5%\", burst = \"3\" }, \
                 { corrupt = \"0.3%\" }, { duplicate = \"0.5%\" }, { reorder = \"0.5%\", distance = 3 }, \
                 { delay = \"0\", jitter = \"200us\", shape = \"pareto\", overtakes = true }]\n";
    let Some(room) = Room::new(&format!("{HOSTS}{cells}")) else {
        return;
    };
    let data: Vec<u8> = (0..6_000_000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let source = room.write("data", &data);
    for (listen, name) in [("0.0.0.0", "manchester"), ("[::]", "manchester-v6")] {
        let up = room.up();
        let from = format!("tcp://{listen}:5000");
        let got = room.path(name);
        let mut receiver = up.evlbi_at("manchester");
        receiver.args(["recv", &from, "--to", &got, "--json"]);
        let receiver = Recv::listening(&mut receiver, 1);
        let to = format!("tcp://{name}:5000");
        let send = ["send", &source, "--to", &to, "--max", "--json"];
        let sent: Value = serde_json::from_str(&printed(up.evlbi_at("jive").args(send))).unwrap();
        assert_eq!(number(&sent, "bytes"), data.len() as u64);
        receiver.finish();
        assert!(room.read(name) == data, "{name}");
        let state = up.end();
        for (name, what) in [
            ("loss", "dropped"),
            ("corrupt", "corrupted"),
            ("duplicate", "duplicated"),
            ("reorder", "held"),
        ] {
            let count = number(cell(&state, FORWARD, name), what);
            assert!(count > 0, "{name}: {state}");
        }
    }
}

/// A cell that passes no long packets informs the sender, whose kernel then knows the path MTU, and whose TCP sends no
/// longer ones.
#[test]
fn senders_learn_the_longest_packet() {
    let cells = "rtt = \"2ms\"\ncells = [{ mtu = 1300 }]\n";
    let Some(room) = Room::new(&format!("{HOSTS}{cells}")) else {
        return;
    };
    let source = room.write("data", vec![7; 200_000]);
    for (listen, name, address) in [
        ("0.0.0.0", "manchester", "10.77.0.2"),
        ("[::]", "manchester-v6", "fd77::2"),
    ] {
        let up = room.up();
        let known = |up: &Up| up.sh("jive", &format!("ip route get {address}"));
        assert!(!known(&up).contains("mtu 1300"));
        let got = room.path(name);
        let mut receiver = up.evlbi_at("manchester");
        receiver.args(["recv", &format!("tcp://{listen}:5000"), "--to", &got]);
        let receiver = Recv::listening(&mut receiver, 1);
        let to = format!("tcp://{name}:5000");
        printed(
            up.evlbi_at("jive")
                .args(["send", &source, "--to", &to, "--max"]),
        );
        assert!(receiver.end().status.success());
        assert!(room.read(name) == vec![7; 200_000]);
        assert!(known(&up).contains("mtu 1300"), "{}", known(&up));
        let state = up.end();
        let mtu = cell(&state, FORWARD, "mtu");
        assert!(number(mtu, "dropped") > 0, "{state}");
        let passed = number(mtu, "bytes") - number(mtu, "dropped_bytes");
        assert!(passed <= number(mtu, "passed") * (1300 + 14), "{mtu}");
    }
}

/// Stations at different distances share the last link, and a group of receivers gets each datagram once.
#[test]
fn stations_meet_at_a_switch() {
    let mut plan = String::new();
    for host in ["jive", "torun", "manchester"] {
        plan += &format!("[[host]]\nname = \"{host}\"\n");
    }
    plan += &format!(
        "[[link]]\nbetween = [\"jive\", \"switch\"]\nforward = [{}, {{ delay = \"5ms\" }}]\n\
         [[link]]\nbetween = [\"torun\", \"switch\"]\nrtt = \"20ms\"\n\
         [[link]]\nbetween = [\"switch\", \"manchester\"]\nrate = \"500M\"\n",
        cells::tap("in")
    );
    let Some(room) = Room::new(&plan) else {
        return;
    };
    let up = room.up();
    let group = "udp://239.1.2.3:2630";
    let receivers = ["torun", "manchester"].map(|host| up.receive(host, group, "check", &[]));
    // The last link's buffer holds 1 MiB.
    let count = cells::fitting().min(500);
    up.send(group, cells::FIRST, count);
    for receiver in receivers {
        let received = receiver.finish_after(count);
        let of = |name: &str| number(&received, name);
        assert_eq!((of("unique"), of("duplicates"), of("lost")), (count, 0, 0));
    }
    let state = up.end();
    // Once over the sender's link.
    let log = cells::read(&room.text("log.csv"), "jive>switch");
    assert_eq!(cells::stream(&log, "in", count).len() as u64, count);
    assert_eq!(
        number(cell(&state, "switch>manchester", "rate"), "dropped"),
        0
    );
}

/// Removes a path, even when a test fails.
struct Down<'a>(&'a Room);

impl Drop for Down<'_> {
    fn drop(&mut self) {
        let _ = self.0.evlbi().args(["path", "down"]).output();
    }
}

#[test]
fn a_path_stays_up_and_is_changed_while_traffic_flows() {
    let cells = "rtt = \"2ms\"\ncells = [{ loss = \"0%\" }]\n";
    let Some(room) = Room::new(&format!("{HOSTS}{cells}")) else {
        return;
    };
    let evlbi = |args: &[&str]| room.evlbi().arg("path").args(args).output().unwrap();
    let well = |args: &[&str]| printed(room.evlbi().arg("path").args(args));
    let down = Down(&room);
    well(&["up", &room.plan]);
    let again = evlbi(&["up", &room.plan]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("is up already"));
    let frames = pattern::frames(FRAME, 1_700_000_000, pattern::frame_rate(1000), 200).unwrap();
    let source = room.write("in.vdif", frames);
    // A group needs no listener.
    let send = || {
        let send = ["send", &source, "--to", "udp://239.1.2.3:2630", "--max"];
        well(&[&["exec", "jive", "--", EVLBI][..], &send].concat())
    };
    let counts = || {
        let state = read(well(&["show", "plan", "--json"]));
        let loss = cell(&state, FORWARD, "loss");
        (number(loss, "packets"), number(loss, "dropped"))
    };
    send();
    until("they pass", || counts().0 >= 200);
    assert_eq!(counts().1, 0);
    well(&["set", "jive>manchester/loss", "loss=100%", "--path", "plan"]);
    let (packets, before) = counts();
    send();
    until("they are dropped", || counts().1 >= before + 200);
    // All lines since then.
    let (more, lost) = counts();
    assert_eq!(more - packets, lost - before);
    well(&["set", "loss", "loss=0"]);
    let (packets, before) = counts();
    send();
    until("they pass again", || counts().0 >= packets + 200);
    assert_eq!(counts().1, before);
    // A command runs on the requested host, and knows its path.
    let script = "pwd; $0 path exec manchester -- ip -4 -o addr";
    let here = well(&[
        "exec", "jive", "--path", "plan", "--", "sh", "-c", script, EVLBI,
    ]);
    let folder = room.folder().canonicalize().unwrap();
    assert!(
        here.starts_with(folder.to_str().unwrap()) && here.contains("10.77.0.2"),
        "{here}"
    );
    for (args, says) in [
        (&["set", "nothing", "loss=1%"][..], "no cell nothing"),
        (&["set", "loss", "loss=high"], "invalid fraction"),
        (&["set", "loss", "jitter=1ms"], "has no effect"),
        (&["set", "loss", "window=10"], "add a unit, e.g. 10ms"),
        (&["exec", "paris", "--", "true"], "no host paris"),
        (&["show", "other"], "no path other is up"),
    ] {
        let output = evlbi(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains(says),
            "{args:?}: {said}"
        );
    }
    well(&["down", "plan"]);
    drop(down);
    let gone = evlbi(&["show", "plan"]);
    assert!(String::from_utf8_lossy(&gone.stderr).contains("is up"));
    until("the relay is gone", || processes(&room.plan).is_empty());
}

/// Processes whose command line holds a text.
fn processes(with: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        *pid != std::process::id() && String::from_utf8_lossy(&line).contains(with)
    })
    .collect()
}

/// After a kill of program or relay, at any time, no process stays behind, not even one in the background.
#[test]
fn a_killed_path_leaves_nothing_behind() {
    if !need(&["bash", "setsid"]) {
        return;
    }
    let Some(room) = Room::new(&format!("{HOSTS}rtt = \"2ms\"\n")) else {
        return;
    };
    let has_file = |ending: &str| {
        let files = fs::read_dir(room.folder().join("evlbi"));
        let mut names = files.into_iter().flatten().flatten();
        names.any(|file| file.file_name().to_string_lossy().ends_with(ending))
    };
    let relays = || processes(&format!("path\0relay\0{}", room.plan));
    // At the start, at each step until its command runs, and in between, after a number of scans of all processes.
    type Step<'a> = &'a dyn Fn() -> bool;
    let steps: [Step; 4] = [
        &|| !relays().is_empty(),
        &|| has_file(".hosts") || has_file(".path"),
        &|| has_file(".path"),
        &|| fs::exists(room.path("begun")).unwrap(),
    ];
    let looks = [0, 1, 2, 4, 7, 11, 16, 22, 30];
    for moment in 0..steps.len() + looks.len() {
        let mut child = Running(
            room.evlbi()
                .args(["path", "run", &room.plan, "--"])
                .args(["sh", "-c", "touch begun; exec cat"])
                .stdin(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        );
        match steps.get(moment) {
            Some(step) => until("it reaches this step", step),
            None => (0..looks[moment - steps.len()]).for_each(|_| drop(relays())),
        }
        child.0.kill().unwrap();
        child.wait();
        until("all gone", || processes(&room.plan).is_empty());
        let _ = fs::remove_file(room.path("begun"));
        for file in fs::read_dir(room.folder().join("evlbi"))
            .into_iter()
            .flatten()
        {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
    }
    let mark = format!("sleeper-of-{}", std::process::id());
    // As their own command lines are: others hold the script that starts them.
    let sleeper = format!("{mark}\u{0}600\u{0}");
    let script = format!(
        "(setsid bash -c 'exec -a {mark} sleep 600' &) ; $E path exec manchester -- bash -c 'exec -a {mark} sleep 600'"
    );
    for victim in ["path\0run", "path\0relay"] {
        let mut child = Running(
            room.evlbi()
                .args(["path", "run", &room.plan, "--", "bash", "-ec", &script])
                .env("E", EVLBI)
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        );
        until("sleepers", || processes(&sleeper).len() == 2);
        let found = processes(&format!("{victim}\0{}", room.plan));
        assert_eq!(found.len(), 1, "{victim:?}");
        let victim = nix::unistd::Pid::from_raw(found[0].cast_signed());
        nix::sys::signal::kill(victim, nix::sys::signal::Signal::SIGKILL).unwrap();
        child.wait();
        until("all gone", || {
            processes(&room.plan).is_empty() && processes(&sleeper).is_empty()
        });
    }
}

#[test]
fn invalid_plans_and_commands_are_reported() {
    let cells = "rtt = \"2ms\"\ncells = [\n{ loss = \"1%\" },\n{ lossy = \"1%\" }]\n";
    let Some(room) = Room::new(&format!("{HOSTS}{cells}")) else {
        return;
    };
    let output = room.run(&["true"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("line 15") && said.contains("lossy"),
        "{said}"
    );
    room.write("plan.toml", format!("{HOSTS}rtt = \"2ms\"\n"));
    for (program, status) in [("/no/such/program", 127), ("/", 126)] {
        let output = room.run(&[program]);
        assert_eq!(output.status.code(), Some(status), "{program}");
    }
    let missing = room
        .evlbi()
        .args(["path", "run", "none.toml", "--", "true"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&missing.stderr).contains("cannot read the plan none.toml"));
}

/// A user who may not make a path gets a message that names the missing right.
#[test]
fn missing_rights_are_reported() {
    let Some(room) = Room::new(&format!("{HOSTS}rtt = \"2ms\"\n")) else {
        return;
    };
    if !has_users_of_its_own() || !need(&["setpriv"]) {
        return;
    }
    let run = format!("{EVLBI} path run {} -- true", room.plan);
    let no_tun = format!("mount -t tmpfs none /dev/net && {run}");
    let powerless = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set -all --inh-caps -all {run}"
    );
    for (how, script, says) in [
        ("-Urm", no_tun, "/dev/net/tun"),
        ("-Ur", powerless, "user.max_user_namespaces"),
    ] {
        let output = command("unshare")
            .args([how, "sh", "-ec", &script])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(says), "{said}");
    }
}
