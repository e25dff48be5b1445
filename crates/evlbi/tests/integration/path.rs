//! `evlbi path`: real kernels at the ends, cells of a plan in the middle.

mod analyse;
mod probe;
mod tcp;

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use evlbi_core::path::{Identity, Law, Loss, Network, Piece, Shape, Train, Until};
use evlbi_core::time::Nanos;
use serde_json::Value;
use tempfile::TempDir;

use crate::result::number;
use crate::stolen::Stolen;
use evlbi_testkit::command;
use evlbi_testkit::netns::{has_users_of_its_own, paths};

const EVLBI: &str = env!("CARGO_BIN_EXE_evlbi");

const HOSTS: &str = r#"
[[host]]
name = "jive"
congestion = "reno"
buffer = "64MiB"
[[host]]
name = "manchester"
congestion = "reno"
buffer = "64MiB"
[[link]]
between = ["jive", "manchester"]
"#;

/// A folder with a plan, whose name no other test uses.
struct Room {
    folder: TempDir,
    plan: String,
    stolen: Stolen,
}

impl Room {
    fn new(plan: &str) -> Room {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().file_name().unwrap().to_str().unwrap();
        let path = folder
            .path()
            .join(format!("{}.toml", name.trim_start_matches('.')));
        fs::write(&path, plan).unwrap();
        Room {
            plan: path.to_str().unwrap().to_owned(),
            folder,
            stolen: Stolen::watch(),
        }
    }

    fn name(&self) -> &str {
        Path::new(&self.plan).file_stem().unwrap().to_str().unwrap()
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn json(&self, name: &str) -> Value {
        let text = fs::read_to_string(self.path(name)).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}: {text}"))
    }

    /// Runs a script on the plan's first host; `$E` is this program. None where there are no paths here, which is said.
    fn run(&self, more: &[&str], script: &str) -> Option<Output> {
        if !paths() {
            return None;
        }
        let output = command(EVLBI)
            .args(["path", "run", &self.plan, "--json", &self.path("path.json")])
            .args(more)
            .args(["--", "sh", "-ec", script])
            .env("E", EVLBI)
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        Some(output)
    }

    /// The same, where the script must not fail.
    fn run_well(&self, more: &[&str], script: &str) -> Option<String> {
        let output = self.run(more, script)?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        Some(String::from_utf8(output.stdout).unwrap())
    }

    /// Whether this host stood still for longer, in seconds, or lent its processors to others, which is said.
    fn was_disturbed(&self, longest: f64) -> bool {
        let stood_still = stood_still(&self.json("path.json"), longest);
        self.stolen.is_over(0.01) || stood_still
    }
}

/// How long this host stood still at most while a path was there, in seconds.
fn stall(state: &Value) -> f64 {
    let lateness = state["lateness"].as_array().unwrap().iter();
    let stalls = lateness.map(|late| late["max_s"].as_f64().unwrap());
    stalls.fold(0.0, f64::max)
}

/// Whether it was for longer than this, which is said.
fn stood_still(state: &Value, longest: f64) -> bool {
    let stall = stall(state);
    if stall > longest {
        eprintln!("skipped in part: this host stood still for {stall} s");
    }
    stall > longest
}

fn cell<'a>(state: &'a Value, direction: &str, name: &str) -> &'a Value {
    let cells = state["cells"].as_array().unwrap();
    let found = cells
        .iter()
        .find(|cell| cell["direction"] == direction && cell["cell"] == name);
    found.unwrap_or_else(|| panic!("no {direction} {name} in {state}"))
}

/// What the command prints is all that comes on standard output, and its exit code that of the program; hosts are known
/// by their names.
#[test]
fn a_command_runs_on_the_first_host() {
    let room = Room::new(&format!("{HOSTS}rtt = \"30ms\"\n"));
    let script = "getent hosts manchester; $E path exec manchester -- getent hosts jive; exit 7";
    let Some(output) = room.run(&[], script) else {
        return;
    };
    assert_eq!(output.status.code(), Some(7));
    let shown = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = shown.split_whitespace().collect();
    assert_eq!(words, ["10.77.0.2", "manchester", "10.77.0.1", "jive"]);
    let state = room.json("path.json");
    assert_eq!(state["schema"], "evlbi.path/1");
    assert!(String::from_utf8_lossy(&output.stderr).contains("jive>manchester"));
}

/// The cells' truth, the receiver's account and the packet filters of both hosts say the same; and the same cells do the
/// same to the same packets in virtual time.
#[test]
fn losses_are_exact_to_the_packet() {
    let cells = "rtt = \"10ms\"\nforward = [{ every = 100 }, { reorder = \"0.5%\", distance = 4 }, { duplicate = \"0.5%\" }]\n";
    let room = Room::new(&format!("{HOSTS}{cells}"));
    let count = "nft add table ip t; nft add chain ip t c \"{ type filter hook $1 priority 0; }\"; \
                 nft add rule ip t c udp dport 2630 counter";
    fs::write(room.path("count.sh"), count).unwrap();
    let script = "
        sleep 2 # until the kernels' own messages, which pass the cells too, are through
        sh count.sh output; $E path exec manchester -- sh count.sh input
        $E path exec manchester -- $E recv udp://0.0.0.0:2630 --to check --idle 10s --hold 10s --ring 64MiB --json > recv.json 2> recv.txt &
        until grep -q listening recv.txt; do sleep 0.1; done
        $E send pattern:1440 --to udp://manchester:2630 --rate 100M --duration 2s --no-gso --json > send.json
        wait
        nft list table ip t; $E path exec manchester -- nft list table ip t";
    let log = room.path("log.csv");
    let Some(shown) = room.run_well(&["--log", &log], script) else {
        return;
    };
    let (sent, received, state) = (
        room.json("send.json"),
        room.json("recv.json"),
        room.json("path.json"),
    );
    let counters: Vec<u64> = shown
        .split("packets ")
        .skip(1)
        .map(|rest| rest.split(' ').next().unwrap().parse().unwrap())
        .collect();
    let elsewhere = probe::elsewhere(&state);
    let elsewhere = elsewhere + number(&received, "host_lost");
    if elsewhere > 0 {
        eprintln!("skipped in part: this host was held up and lost {elsewhere} packets itself");
        return;
    }
    let of = |name: &str| cell(&state, "jive>manchester", name);
    let (lost, doubled, held) = (
        number(of("every"), "dropped"),
        number(of("duplicate"), "duplicated"),
        number(of("reorder"), "held"),
    );
    // As many as the plan says, of however many this host has sent.
    let all = number(&sent, "sent");
    assert!(lost.abs_diff(all / 100) <= 1, "{lost} of {all}");
    assert!(doubled > 0 && held > 0, "{doubled} and {held} of {all}");
    assert_eq!(counters[0], all);
    assert_eq!(counters[1], number(&sent, "sent") - lost + doubled);
    assert_eq!(number(&received, "unique"), number(&sent, "sent") - lost);
    assert_eq!(number(&received, "duplicates"), doubled);
    assert_eq!(number(&received, "reordered"), held);
    assert_eq!(number(&received, "network_lost"), number(&received, "lost"));
    // Each packet that was lost is known by its number.
    let log = fs::read_to_string(log).unwrap();
    let mut live: Vec<(String, u64, String)> = log
        .lines()
        .skip(1)
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            (
                fields[3].into(),
                fields[4].parse().unwrap(),
                fields[5].into(),
            )
        })
        .filter(|(name, ..)| name != "delay")
        .collect();
    live.sort();
    assert_eq!(live, in_virtual_time(number(of("every"), "packets")));
    let numbers: Vec<u64> = log
        .lines()
        .filter(|line| line.contains(",dropped,"))
        .map(|line| line.rsplit(',').next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(numbers.len() as u64, lost);
    assert!(numbers.windows(2).all(|pair| pair[1] - pair[0] <= 100));
    for gap in received["intervals"].as_array().unwrap() {
        assert!(numbers.contains(&number(gap, "first")), "{gap}");
    }
}

#[derive(Clone)]
struct Packet;

impl Identity for Packet {
    fn identity(&self, _segment: u16) -> u64 {
        0
    }
}

/// What the cells of [`losses_are_exact_to_the_packet`] do to so many packets without a clock: cell, packet and fate.
fn in_virtual_time(packets: u64) -> Vec<(String, u64, String)> {
    let cells = [
        (
            "delay",
            Law::Delay {
                delay: Nanos(5_000_000),
                jitter: Nanos(0),
                shape: Shape::Uniform,
                reorders: false,
            },
        ),
        (
            "every",
            Law::Loss(Loss::Every {
                period: 100,
                first: 99,
            }),
        ),
        (
            "reorder",
            Law::Reorder {
                fraction: 0.005,
                until: Until::Passed(4),
            },
        ),
        ("duplicate", Law::Duplicate { fraction: 0.005 }),
    ];
    let mut network = Network::new();
    let line = network.line(cells.iter().map(|cell| cell.1.clone()), 1);
    for id in &line.cells {
        network.cell_mut(*id).log(1 << 16);
    }
    let route = network.route(&[&line]);
    let train = Train::single(1490);
    for number in 0..packets {
        let piece = Piece::whole(Nanos(number * 100_000), &train);
        network.offer(route, Packet, train, piece, 14);
    }
    network.advance(Nanos(u64::MAX), |_| {});
    let mut fates = Vec::new();
    for ((name, _), id) in cells.iter().zip(&line.cells) {
        for logged in network.take_log(*id) {
            let fate = serde_json::to_value(logged.fate).unwrap();
            fates.push((
                (*name).to_owned(),
                logged.packet,
                fate.as_str().unwrap().to_owned(),
            ));
        }
    }
    fates.sort();
    fates
}

/// Long segments of TCP are cut where a cell has to, and arrive whole all the same.
#[test]
fn tcp_brings_every_byte_through_everything() {
    let cells = "rtt = \"4ms\"\nrate = \"400M\"\nbuffer = \"100KiB\"\ncells = [{ loss = \"0.5%\", burst = \"3\" }, \
                 { corrupt = \"0.3%\" }, { duplicate = \"0.5%\" }, { reorder = \"0.5%\", distance = 3 }, \
                 { delay = \"0\", jitter = \"200us\", shape = \"pareto\", overtakes = true }]\n";
    let room = Room::new(&format!("{HOSTS}{cells}"));
    let data: Vec<u8> = (0..6_000_000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    fs::write(room.path("data"), data).unwrap();
    for family in ["0.0.0.0 manchester", ":: manchester-v6"] {
        let (listen, to) = family.split_once(' ').unwrap();
        let server = format!(
            "import socket\ns=socket.create_server(('{listen}',5000),family=socket.AF_INET6 if ':' in '{listen}' else socket.AF_INET)\n\
             open('ready','w').close()\nc,_=s.accept()\nf=open('got','wb')\nwhile b:=c.recv(1<<20): f.write(b)\n"
        );
        let client = format!(
            "import socket\nc=socket.create_connection(('{to}',5000))\nc.sendall(open('data','rb').read())\nc.close()\n"
        );
        fs::write(room.path("server.py"), server).unwrap();
        fs::write(room.path("client.py"), client).unwrap();
        let script = "
            rm -f ready got
            $E path exec manchester -- python3 server.py &
            until test -e ready; do sleep 0.1; done
            python3 client.py; wait; cmp data got && echo same";
        let Some(shown) = room.run_well(&["--force"], script) else {
            return;
        };
        assert_eq!(shown.trim(), "same");
        let state = room.json("path.json");
        for (name, what) in [
            ("loss", "dropped"),
            ("corrupt", "corrupted"),
            ("duplicate", "duplicated"),
            ("reorder", "held"),
        ] {
            let count = number(cell(&state, "jive>manchester", name), what);
            assert!(count > 0, "{name}: {state}");
        }
    }
}

/// A cell that lets no long packets through tells the sender, whose TCP then sends shorter ones.
#[test]
fn senders_learn_the_longest_packet() {
    let room = Room::new(&format!(
        "{HOSTS}rtt = \"2ms\"\ncells = [{{ mtu = 1300 }}]\n"
    ));
    let script = "
        $E path exec manchester -- iperf3 -s -1 > server.txt &
        n=0; until $E path exec manchester -- ss -ltnH | grep -q :5201; do n=$((n+1)); [ $n -lt 600 ]; sleep 0.1; done
        iperf3 -c manchester -n 2M -J > client.json; wait";
    if room.run_well(&[], script).is_none() {
        return;
    }
    let client = room.json("client.json");
    let last = client["intervals"].as_array().unwrap().last().unwrap();
    assert_eq!(number(&last["streams"][0], "pmtu"), 1300);
    assert!(
        number(
            cell(&room.json("path.json"), "jive>manchester", "mtu"),
            "dropped"
        ) > 0
    );
}

/// Stations at different distances share the last link, and a group of receivers gets each datagram once.
#[test]
fn stations_meet_at_a_switch() {
    let mut plan = String::new();
    for host in ["onsala", "torun", "jive"] {
        plan += &format!("[[host]]\nname = \"{host}\"\n");
    }
    plan += "[[link]]\nbetween = [\"onsala\", \"switch\"]\nrtt = \"10ms\"\n\
             [[link]]\nbetween = [\"torun\", \"switch\"]\nrtt = \"20ms\"\n\
             [[link]]\nbetween = [\"switch\", \"jive\"]\nrate = \"500M\"\n";
    let room = Room::new(&plan);
    let script = "
        for host in torun jive; do
            $E path exec $host -- $E recv 'udp://239.1.2.3:2630' --to check --idle 10s --ring 64MiB --json > $host.json 2> $host.txt &
        done
        for host in torun jive; do until grep -q listening $host.txt; do sleep 0.1; done; done
        $E send pattern:1024 --to 'udp://239.1.2.3:2630' --rate 20M --duration 1s --json > onsala.json
        wait";
    if room.run_well(&[], script).is_none() {
        return;
    }
    let sent = number(&room.json("onsala.json"), "sent");
    assert!(sent > 100);
    for host in ["torun", "jive"] {
        let received = room.json(&format!("{host}.json"));
        assert_eq!(number(&received, "unique"), sent, "{host}");
        assert_eq!(number(&received, "duplicates"), 0);
    }
    let state = room.json("path.json");
    // Once over the sender's link.
    let delay = cell(&state, "onsala>switch", "delay");
    assert!(number(delay, "packets") < sent + 20);
}

/// Takes a path down, also when a test fails.
struct Down<'a>(&'a str);

impl Drop for Down<'_> {
    fn drop(&mut self) {
        let _ = command(EVLBI).args(["path", "down", self.0]).output();
    }
}

#[test]
fn a_path_stays_up_and_is_changed_while_traffic_flows() {
    let room = Room::new(&format!(
        "{HOSTS}rtt = \"2ms\"\ncells = [{{ loss = \"0%\" }}]\n"
    ));
    if room.run_well(&[], "true").is_none() {
        return;
    }
    let evlbi = |args: &[&str]| -> Output {
        command(EVLBI)
            .args(["path"])
            .args(args)
            .env_remove("EVLBI_PATH")
            .output()
            .unwrap()
    };
    let well = |args: &[&str]| -> String {
        let output = evlbi(args);
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    };
    well(&["up", &room.plan]);
    let name = room.name();
    let _down = Down(name);
    let again = evlbi(&["up", &room.plan]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("is up already"));
    let ask = "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n\
               for _ in range(200): s.sendto(b'x'*100,('manchester',9))\n";
    let send = || well(&["exec", "jive", "--path", name, "--", "python3", "-c", ask]);
    let dropped = || {
        let state: Value = serde_json::from_str(&well(&["show", name, "--json"])).unwrap();
        (
            number(cell(&state, "jive>manchester", "loss"), "packets"),
            number(cell(&state, "jive>manchester", "loss"), "dropped"),
        )
    };
    send();
    eventually("they pass", || dropped().0 >= 200);
    assert_eq!(dropped().1, 0);
    well(&["set", "jive>manchester/loss", "loss=100%", "--path", name]);
    let (packets, before) = dropped();
    send();
    eventually("they are dropped", || dropped().1 >= before + 200);
    // All since then.
    let (more, lost) = dropped();
    assert_eq!(more - packets, lost - before);
    well(&["set", "loss", "loss=0", "--path", name]);
    // A command runs where it was asked for, and knows its path.
    let here = well(&[
        "exec",
        "jive",
        "--path",
        name,
        "--",
        "sh",
        "-c",
        "pwd; $0 path exec manchester -- hostname -I",
        EVLBI,
    ]);
    let folder = std::env::current_dir().unwrap();
    assert!(
        here.starts_with(folder.to_str().unwrap()) && here.contains("10.77.0.2"),
        "{here}"
    );
    for (args, says) in [
        (
            vec!["set", "nothing", "loss=1%", "--path", name],
            "there is no cell nothing",
        ),
        (
            vec!["set", "loss", "loss=high", "--path", name],
            "no fraction",
        ),
        (
            vec!["set", "loss", "jitter=1ms", "--path", name],
            "says nothing",
        ),
        (
            vec!["exec", "paris", "--path", name, "--", "true"],
            "there is no host paris",
        ),
        (vec!["show", "other"], "no path other is up"),
    ] {
        let output = evlbi(&args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains(says),
            "{args:?}: {said}"
        );
    }
    well(&["down", name]);
    let gone = evlbi(&["show", name]);
    assert!(String::from_utf8_lossy(&gone.stderr).contains("is up"));
    assert!(processes(&room.plan).is_empty());
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

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whoever is killed, program or relay: nothing stays behind, not even what went into the background.
#[test]
fn a_killed_path_leaves_nothing_behind() {
    let room = Room::new(&format!("{HOSTS}rtt = \"2ms\"\n"));
    if room.run_well(&[], "true").is_none() {
        return;
    }
    let mark = format!("sleep-of-{}", room.name());
    // As their own command lines are: others hold the script that starts them.
    let sleeper = format!("{mark}\u{0}60\u{0}");
    let script = format!(
        "(setsid bash -c 'exec -a {mark} sleep 60' &) ; $E path exec manchester -- bash -c 'exec -a {mark} sleep 60'"
    );
    // At any moment of its beginning, too.
    for wait in [1, 5, 10, 20, 30, 40, 60, 80] {
        let mut child = command(EVLBI)
            .args(["path", "run", &room.plan, "--", "sleep", "60"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(wait));
        child.kill().unwrap();
        child.wait().unwrap();
        eventually("all gone", || processes(&room.plan).is_empty());
    }
    for victim in ["path\0run", "path\0relay"] {
        let mut child = command(EVLBI)
            .args(["path", "run", &room.plan, "--", "bash", "-ec", &script])
            .env("E", EVLBI)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        eventually("sleepers", || processes(&sleeper).len() == 2);
        let relay = processes(&format!("{victim}\0{}", room.plan));
        assert_eq!(relay.len(), 1, "{victim:?}");
        let kill = command("kill").args(["-9", &relay[0].to_string()]).status();
        assert!(kill.unwrap().success());
        child.wait().unwrap();
        eventually("all gone", || {
            processes(&room.plan).is_empty() && processes(&sleeper).is_empty()
        });
    }
}

#[test]
fn what_cannot_be_is_said() {
    let room = Room::new(&format!(
        "{HOSTS}rtt = \"2ms\"\ncells = [\n{{ loss = \"1%\" }},\n{{ lossy = \"1%\" }}]\n"
    ));
    let Some(output) = room.run(&[], "true") else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("line 15") && said.contains("lossy"),
        "{said}"
    );
    let room = Room::new(&format!("{HOSTS}rtt = \"2ms\"\n"));
    let output = room.run(&[], "exec no-such-program").unwrap();
    assert_eq!(output.status.code(), Some(127));
    let missing = command(EVLBI)
        .args(["path", "run", "none.toml", "--", "true"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&missing.stderr).contains("cannot read the plan none.toml"));
}

/// Who may not make a path learns what is missing.
#[test]
fn what_is_missing_is_said() {
    let room = Room::new(&format!("{HOSTS}rtt = \"2ms\"\n"));
    if room.run_well(&[], "true").is_none() {
        return;
    }
    if !has_users_of_its_own() {
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

/// A flow of 512 Mbit/s in segments of 1448 bytes over 15 ms that loses a packet: the window is halved and grows by a
/// segment a round trip, as Reno's of this kernel does, which counts what is acknowledged (b = 1).
#[test]
fn one_lost_packet_makes_the_saw_tooth() {
    let room = Room::new(&format!(
        "{HOSTS}rtt = \"15ms\"\nrate = \"1G\"\nbuffer = \"4MiB\"\n\
         forward = [{{ lose_at = [\"2s\", \"2.4s\", \"2.8s\", \"3.2s\", \"3.6s\", \"8s\"] }}]\n"
    ));
    let script = "
        $E path exec manchester -- iperf3 -s -1 > server.txt &
        n=0; until $E path exec manchester -- ss -ltnH | grep -q :5201; do n=$((n+1)); [ $n -lt 600 ]; sleep 0.1; done
        sysctl -qw net.ipv4.tcp_slow_start_after_idle=0
        iperf3 -c manchester -b 512M -i 0.1 -t 12 -J > client.json; wait";
    if room.run_well(&[], script).is_none() {
        return;
    }
    // And so did the connection.
    if room.was_disturbed(0.03) {
        return;
    }
    let client = room.json("client.json");
    // Time, window in segments and round trip in seconds.
    let samples: Vec<(f64, f64, f64)> = client["intervals"]
        .as_array()
        .unwrap()
        .iter()
        .map(|interval| {
            let stream = &interval["streams"][0];
            let of = |key: &str| stream[key].as_f64().unwrap();
            (of("end"), of("snd_cwnd") / 1448.0, of("rtt") * 1e-6)
        })
        .collect();
    let apart = samples.windows(2).map(|pair| pair[1].0 - pair[0].0);
    let longest = apart.fold(0.0, f64::max);
    if longest > 0.15 {
        eprintln!("skipped in part: iperf3 stood still for {longest} s, and gave nothing to send");
        return;
    }
    // The last loss, and what came before and after it.
    let falls = samples
        .windows(2)
        .enumerate()
        .filter(|(_, pair)| pair[1].1 < 0.7 * pair[0].1);
    let fall = falls.map(|(place, _)| place).next_back().expect("a loss");
    let (before, after) = (samples[fall], samples[fall + 2]);
    assert!(
        (after.1 / before.1 - 0.5).abs() < 0.05,
        "{before:?} {after:?}"
    );
    // Three seconds of growth before that loss, in which none other was lost.
    for range in [fall - 30..fall, fall + 2..samples.len().min(fall + 32)] {
        let (first, last) = (samples[range.start], samples[range.end - 1]);
        let rtt = samples[range.clone()]
            .iter()
            .map(|sample| sample.2)
            .sum::<f64>()
            / range.len() as f64;
        let slope = (last.1 - first.1) / (last.0 - first.0);
        assert!(
            (slope * rtt - 1.0).abs() < 0.1,
            "{slope} segments a second at {rtt} s"
        );
    }
    // The window is what it was after half of its segments in round trips: a window of C RTT, C RTT^2 / (2 MSS).
    let back = samples[fall + 2..]
        .iter()
        .find(|sample| sample.1 >= before.1)
        .unwrap_or_else(|| panic!("{before:?} is not reached again"));
    let (recovery, law) = (back.0 - before.0, 0.5 * before.1 * before.2);
    assert!(
        (recovery / law - 1.0).abs() < 0.1,
        "{recovery} s, law {law} s"
    );
}
