//! Stations and a correlator, driven by a script, a console, a schedule and the web UI: the result is the same.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use crate::control::browser::{self, python_with_a_browser};
use crate::control::support::{
    Agent, CORRELATION, EVLBI, STILL, free_ports, processes_in, ready, received, recv, write_sky,
};
use crate::path::raise;
use crate::result::number;
use evlbi_testkit::address::own_address;
use evlbi_testkit::netns::paths;
use evlbi_testkit::result::{assert_schema, checked, read};
use evlbi_testkit::{Room, Running, command, until_some};

pub const STATIONS: [&str; 3] = ["ef", "jb", "on"];
/// All hosts: the correlator's first.
const HOSTS: [&str; 4] = ["jive", "ef", "jb", "on"];
/// [`CORRELATION`] after quantisation to two bits.
const VALID: f64 = 0.265;
/// Half an hour of the sky.
const ENDLESS: &str = "repeat = 6000";
/// Samples of a frame of the sky.
const SAMPLES: f64 = 8000.0;
/// Frames of the sky's time to which the correlator rounds its start: a sixteenth of a second.
const GRID: f64 = 250.0 / 16.0;

/// The directory of a test: a sky, hosts with an agent each, and a session.
pub struct Site {
    // Dropped in this order.
    agents: BTreeMap<String, Running>,
    path: Option<Running>,
    pub room: Room,
    /// Addresses of the agents on loopback.
    ports: BTreeMap<String, String>,
    fingerprints: BTreeMap<String, String>,
    /// Where the correlator receives its streams.
    pub streams: [SocketAddr; 3],
}

impl Site {
    /// Four hosts of an emulated path with their agents; none if this host cannot make paths, and the test is skipped.
    pub fn on_a_path() -> Option<Site> {
        Site::on_a_path_with("")
    }

    /// The same, with these settings of jb's link.
    pub fn on_a_path_with(jb: &str) -> Option<Site> {
        if !paths() {
            return None;
        }
        // The port after each is for messages of SafeUDP.
        let port = |number: u16| SocketAddr::from(([10, 77, 0, 1], 2630 + 2 * number));
        let mut site = Site::new([0, 1, 2].map(port));
        let host = |name: &str| format!("[[host]]\nname = \"{name}\"\n");
        let link = |name: &str| {
            let own = if name == "jb" { jb } else { "" };
            format!("[[link]]\nbetween = [\"{name}\", \"jive\"]\nrtt = \"15ms\"\n{own}\n")
        };
        let plan: String = HOSTS
            .map(host)
            .into_iter()
            .chain(STATIONS.map(link))
            .collect();
        site.room.write("path.toml", plan);
        site.raise_path();
        Some(site.with_agents(&HOSTS, ""))
    }

    /// Agents of these hosts on loopback, with these settings in addition to the defaults.
    pub fn on_loopback(hosts: &[&str], settings: &str) -> Site {
        Site::new(free_ports()).with_agents(hosts, settings)
    }

    fn new(streams: [SocketAddr; 3]) -> Site {
        let room = Room::new();
        write_sky(&room, "sky.toml");
        Site {
            agents: BTreeMap::new(),
            path: None,
            room,
            ports: BTreeMap::new(),
            fingerprints: BTreeMap::new(),
            streams,
        }
    }

    fn with_agents(mut self, hosts: &[&str], settings: &str) -> Site {
        for name in hosts {
            let folder = self.room.folder().join(format!("agent-{name}"));
            fs::create_dir(&folder).unwrap();
            let networks = "targets = [\"10.77.0.0/16\", \"127.0.0.0/8\"]";
            let read = format!("read = [{:?}]", self.room.folder());
            let settings = format!("name = \"{name}\"\n{networks}\n{read}\n{settings}");
            fs::write(folder.join("agent.toml"), settings).unwrap();
            self.start(name);
        }
        self
    }

    /// Makes the path, which takes its programs with it when it ends.
    pub fn raise_path(&mut self) {
        let mut path = command(EVLBI);
        path.args(["path", "run"]).arg(self.room.path("path.toml"));
        self.path = Some(raise(&mut path).expect("a path"));
    }

    /// Kills the relay, which is the first process of all hosts of the path: everything there ends at once.
    pub fn lose_power(&mut self) {
        let mut path = self.path.take().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", path.0.id());
        let relay = fs::read_to_string(children).unwrap();
        let relay = nix::unistd::Pid::from_raw(relay.trim().parse().unwrap());
        kill(relay, Signal::SIGKILL).unwrap();
        path.wait();
        for agent in self.agents.values_mut() {
            agent.wait();
        }
    }

    /// Returns a command that runs a program on a host.
    fn at(&self, host: &str, program: &str) -> Command {
        let mut runs = match &self.path {
            Some(path) => {
                let mut runs = command(EVLBI);
                let name = format!("path.{}", path.0.id());
                runs.args(["path", "exec", "--path", &name, host, "--"]);
                runs.arg(program);
                runs
            }
            None => command(program),
        };
        runs.current_dir(self.room.folder())
            .env("XDG_STATE_HOME", self.room.folder())
            .stdin(Stdio::null());
        runs
    }

    /// Starts the agent of a host, and waits until it runs: at the same address if it ran before.
    pub fn start(&mut self, host: &str) {
        let number = HOSTS.iter().position(|name| *name == host).unwrap() + 1;
        let bind = match (&self.path, self.ports.get(host)) {
            (Some(_), _) => format!("10.77.0.{number}:3650"),
            (None, Some(address)) => address.clone(),
            (None, None) => format!("{}:0", own_address()),
        };
        let mut starts = self.at(host, EVLBI);
        starts
            .args(["agent", "--json", "--dir", &format!("agent-{host}")])
            .args(["--bind", &bind]);
        let (running, ready) = ready(starts);
        let url = ready["url"].as_str().unwrap();
        let address = url.strip_prefix("https://").unwrap().to_owned();
        let fingerprint = ready["fingerprint"].as_str().unwrap().to_owned();
        self.fingerprints.insert(host.to_owned(), fingerprint);
        self.ports.insert(host.to_owned(), address);
        self.agents.insert(host.to_owned(), running);
    }

    /// Returns the fingerprint of a host's agent.
    pub fn fingerprint(&self, host: &str) -> &str {
        &self.fingerprints[host]
    }

    /// Kills the agent of a host.
    pub fn kill(&mut self, host: &str) {
        let lock = format!("kill -9 $(cat agent-{host}/lock)");
        let killed = self.at(host, "sh").args(["-c", &lock]).status();
        assert!(killed.unwrap().success());
        self.agents.remove(host).unwrap().wait();
    }

    /// Starts this program on the correlator's host. Its output goes to files NAME.out and NAME.err.
    pub fn begin(&self, name: &str, arguments: &[&str]) -> Running {
        let file = |end: &str| File::create(self.room.path(&format!("{name}.{end}"))).unwrap();
        let mut runs = self.at("jive", EVLBI);
        runs.args(arguments).stdout(file("out")).stderr(file("err"));
        Running(runs.spawn().unwrap())
    }

    /// Runs this program on the correlator's host to its end; returns its exit status.
    pub fn run(&self, name: &str, arguments: &[&str]) -> Option<i32> {
        self.begin(name, arguments).wait().code()
    }

    /// The same, which must succeed; returns its standard output.
    #[track_caller]
    pub fn run_well(&self, name: &str, arguments: &[&str]) -> String {
        let status = self.run(name, arguments);
        let [out, err] = ["out", "err"].map(|end| self.room.text(&format!("{name}.{end}")));
        assert_eq!(status, Some(0), "{out}\n{err}");
        out
    }

    /// Waits until a started program prints this text.
    #[track_caller]
    pub fn hear(&self, name: &str, what: &str) -> String {
        until_some(&format!("{name} says: {what}"), || {
            let said = self.room.text(&format!("{name}.err"));
            said.contains(what).then_some(said)
        })
    }

    /// Writes a session of these stations, each on the host of its name if it has one: senders of the sky at `rate`, the
    /// correlator, and `more`.
    pub fn session(&self, name: &str, stations: &[&str], rate: &str, more: &str) -> String {
        let on = |name: &str| match self.ports.contains_key(name) {
            true => name.to_owned(),
            false => "jive".to_owned(),
        };
        let flow = |(number, name): (usize, &&str)| {
            format!(
                "[[flow]]\nname = \"{name}\"\nhost = \"{}\"\ncommand = \"send\"\nsource = \"sky:{}/{}\"\nto = \"udp://{}\"\nsafe = \"off\"\n{rate}\n",
                on(name),
                self.room.path("sky.toml"),
                title(name),
                self.streams[number]
            )
        };
        let senders = STATIONS.iter().enumerate();
        let flows: String = senders
            .filter(|(_, name)| stations.contains(name))
            .map(flow)
            .collect();
        let files = self.streams.map(|address| format!("udp://{address}"));
        let correlate = format!(
            "[[flow]]\nname = \"correlator\"\nhost = \"jive\"\ncommand = \"correlate\"\nlive = true\nwait = \"10min\"\nchannels = 64
             files = {files:?}\nfreq = [\"4.98G\"]\n"
        );
        self.write_session(name, &format!("{more}{flows}{correlate}"))
    }

    /// Writes a session of all hosts.
    pub fn write_session(&self, name: &str, flows: &str) -> String {
        let hosts = self.ports.keys();
        let host =
            |name: &String| format!("[[host]]\nname = \"{name}\"\nfolder = \"agent-{name}\"\n");
        let hosts: String = hosts.map(host).collect();
        let text = format!("name = \"{name}\"\naround = \"1s\"\n{hosts}{flows}");
        self.room.write(&format!("{name}.toml"), text)
    }

    /// Whether the only flow of this name in the only run of a session has logged this text.
    pub fn has_said(&self, session: &str, name: &str, what: &str) -> bool {
        let log = fs::read(self.flow(session, "jive", name).join("log"));
        log.is_ok_and(|log| String::from_utf8_lossy(&log).contains(what))
    }

    /// The result of the only flow of this name in the only run of a session.
    #[track_caller]
    pub fn result(&self, session: &str, host: &str, name: &str) -> Value {
        let folder = self.flow(session, host, name);
        let text = fs::read_to_string(folder.join("result.json")).unwrap();
        let whole = serde_json::from_str(&text).ok();
        whole
            .or_else(|| serde_json::from_str(text.lines().last()?).ok())
            .map(checked)
            .unwrap_or_else(|| {
                let log = fs::read_to_string(folder.join("log")).unwrap();
                panic!("{name} left no result: {text} {log}")
            })
    }

    /// Returns the stored record of that flow.
    #[track_caller]
    pub fn kept(&self, session: &str, host: &str, name: &str) -> Value {
        let text = fs::read_to_string(self.flow(session, host, name).join("flow.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["flow"].clone()
    }

    #[track_caller]
    fn flow(&self, session: &str, host: &str, name: &str) -> PathBuf {
        let flows = self.room.folder().join(format!("agent-{host}/flows"));
        let called = |path: &PathBuf| {
            let id = path.file_name().unwrap().to_str().unwrap();
            id.starts_with(&format!("{session}-")) && id.ends_with(&format!(".{name}"))
        };
        let mut found = fs::read_dir(flows)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(called);
        let folder = found
            .next()
            .unwrap_or_else(|| panic!("no flow {name} of {session}"));
        assert!(found.next().is_none(), "several flows {name}");
        folder
    }

    /// Checks the result, whatever drove the session: jb shed every fifth frame from some moment on, the others nothing; the correlator
    /// lost just those, its weights are the fractions that remain, and the amplitudes those of the sky.
    fn agrees(&self, session: &str) -> [Value; 3] {
        let sent = STATIONS.map(|name| self.result(session, name, name));
        let jb = &sent[1];
        let sheds = jb["shedding_before"].as_array().unwrap().iter();
        let sheds: Vec<&Value> = sheds.chain([&jb["shedding"]]).collect();
        let policies: Vec<&str> = sheds
            .iter()
            .map(|shed| shed["policy"].as_str().unwrap())
            .collect();
        assert_eq!(policies, ["none", "every:5"]);
        let [[before, none], [after, shed]] =
            [0, 1].map(|at| ["offered", "shed"].map(|count| number(sheds[at], count)));
        // Every fifth, from some position on.
        assert!((after / 5..=after.div_ceil(5)).contains(&shed), "{sheds:?}");
        assert_eq!(none, 0, "{sheds:?}");
        assert!(before > 0 && shed > 0, "{sheds:?}");
        let found = self.result(session, "jive", "correlator");
        let streams = found["streams"].as_array().unwrap();
        assert_eq!(streams.len(), 3);
        for (stream, sent) in streams.iter().zip(&sent) {
            let [expected, unique, lost, host_lost, unattributed] =
                ["expected", "unique", "lost", "host_lost", "unattributed"]
                    .map(|count| number(stream, count));
            let [offered, left, shed, not_sent] =
                ["offered", "sent", "shed", "not_sent"].map(|count| number(sent, count));
            assert_eq!(shed > 0, sent["to"] == jb["to"], "{sent}");
            assert_eq!((offered, not_sent), (left + shed, 0), "{sent}");
            assert_eq!((host_lost, unattributed), (0, 0), "{stream}");
            assert_eq!(expected, unique + lost, "{stream}");
            // Only shed data are lost. Data shed or in flight after the last arrival are not counted as lost: of every five frames of two
            // datagrams one is shed, so it is a frame, and another for eight datagrams in flight.
            assert!(lost <= shed && unique <= left, "{stream} {sent}");
            let behind = match shed {
                0 => 0,
                _ => 2 + 2 * ((left - unique) / 8),
            };
            assert!(shed - lost <= behind, "{stream} {sent}");
            // All arrived data were correlated.
            assert_eq!(stream["left_s"], 0.0, "{stream}");
        }
        // The common time of two stations is that of the shorter, from a grid point on. jb sheds from one of its frames on.
        let frames = sent.each_ref().map(|sent| number(sent, "frames") as f64);
        let baselines = found["baselines"].as_array().unwrap();
        assert_eq!(baselines.len(), 3);
        for (baseline, pair) in baselines.iter().zip([[0, 1], [0, 2], [1, 2]]) {
            let common = frames[pair[0]].min(frames[pair[1]]);
            let shed = match pair.contains(&1) {
                true => (common - GRID.max(before as f64)).max(0.0) / 5.0,
                false => 0.0,
            };
            let of = common - GRID;
            let expected = 1.0 - shed / of;
            // Except for a frame at each end.
            let within = 0.005 + 2.0 / of;
            let weight = baseline["weight"].as_f64().unwrap();
            assert!(
                (weight - expected).abs() < within,
                "weight {weight}, {expected} expected within {within}: {baseline}"
            );
            let loss = baseline["snr_loss"].as_f64().unwrap();
            assert!((loss - (1.0 - weight.sqrt())).abs() < 1e-3, "{baseline}");
            as_the_sky(baseline, of * weight);
        }
        sent
    }
}

/// Asserts that a baseline that correlated `frames` frames found the common noise of the sky's stations, and no delay.
pub fn as_the_sky(baseline: &Value, frames: f64) {
    let amplitude = baseline["amplitude"]["corrected"].as_f64().unwrap();
    let sigma = CORRELATION / VALID / (frames * SAMPLES).sqrt();
    assert!(
        (amplitude - CORRELATION).abs() < 6.0 * sigma,
        "within 6 times {sigma}: {baseline}"
    );
    let [delay, error] = ["delay_s", "delay_error_s"].map(|name| baseline[name].as_f64().unwrap());
    assert!(delay.abs() < 6.0 * error && error < 20e-9, "{baseline}");
}

impl Drop for Site {
    fn drop(&mut self) {
        for agent in self.agents.values_mut() {
            let _ = agent.0.kill();
        }
        // Those of a path end with it; others continue without their agents.
        for process in processes_in(self.room.folder()) {
            let _ = kill(process, Signal::SIGKILL);
        }
    }
}

fn title(name: &str) -> String {
    name[..1].to_uppercase() + &name[1..]
}

/// Only the first frame is sent until the rates are set; then as much as is correlated, of which jb sheds a fifth.
const STEPS: &str = "check
begin
wait correlator running
wait jb sent 1 2min
wait ef sent 1 2min
wait on sent 1 2min
set jb shed=every:5
set jb rate=200k
set ef rate=200k
set on rate=200k
wait jb shed 2 2min
wait jb offered 90 2min
wait ef sent 90 2min
wait on sent 90 2min
";

/// The script waits until the correlator has all data before it stops it; the console stops all at once, senders first.
#[test]
fn a_script_and_a_console_drive_three_stations() {
    let Some(site) = Site::on_a_path() else {
        return;
    };
    let session = site.session("script", &STATIONS, &format!("rate = \"{STILL}\""), "");
    let ends = "stop ef\nstop jb\nstop on\nwait ef ended\nwait jb ended\nwait on ended\n";
    let steps = site.room.write("first.script", format!("{STEPS}{ends}"));
    let said = site.run_well("first", &["run", &session, "--script", &steps]);
    assert!(said.contains("no problems found"), "{said}");
    let sent = STATIONS.map(|name| number(&site.result("script", name, name), "sent"));
    let ends = format!(
        "wait correlator unique {} 2min\nshow correlator\nstop correlator\nwait correlator ended\n",
        sent.iter().sum::<u64>()
    );
    let steps = site.room.write("second.script", ends);
    let said = site.run_well("second", &["run", &session, "--script", &steps]);
    assert!(said.contains("unique"), "{said}");
    site.agrees("script");
    let found = site.result("script", "jive", "correlator");
    let unique = [0, 1, 2].map(|at| number(&found["streams"][at], "unique"));
    assert_eq!(unique, sent, "all has arrived");
    // A script ends at the first line that fails.
    let steps = site
        .room
        .write("third.script", "list\nwait ef sent 1000000\nlist\n");
    let status = site.run("third", &["run", &session, "--script", &steps]);
    let said = site.room.text("third.err");
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("line 2: wait ef sent 1000000") && said.contains("at its end"),
        "{said}"
    );

    let session = site.session("console", &STATIONS, &format!("rate = \"{STILL}\""), "");
    let steps = format!("{STEPS}show correlator\nstop all\nlist\n");
    let steps = site.room.write("console.steps", steps);
    let script = "exec \"$0\" console \"$1\" < \"$2\"";
    let mut typed = site.at("jive", "sh");
    let typed = typed
        .args(["-c", script, EVLBI, &session, &steps])
        .output()
        .unwrap();
    let [said, errors] = [&typed.stdout, &typed.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(typed.status.success() && errors.is_empty(), "{errors}");
    assert!(said.contains("correlator on jive"), "{said}");
    site.agrees("console");
    for (host, name) in STATIONS
        .map(|name| (name, name))
        .iter()
        .chain(&[("jive", "correlator")])
    {
        let flow = site.kept("console", host, name);
        assert_eq!(flow["state"], "ended", "{flow}");
    }
}

/// A console that reaches no agent names the reason and how to start one, and fails unless somebody types.
#[test]
fn a_console_without_agents_fails() {
    let mut site = Site::on_loopback(&["jive"], "");
    let session = site.write_session("alone", "");
    assert_eq!(site.run("reached", &["console", &session]), Some(0));
    let address = site.ports["jive"].clone();
    site.kill("jive");
    let console = |name: &str| {
        let status = site.run(name, &["console", &session]);
        (status, site.room.text(&format!("{name}.err")))
    };
    let (status, said) = console("silent");
    let reason = format!("no agent answers at {address}: start `evlbi agent` there\n");
    assert!(status == Some(1) && said.contains(&reason), "{said}");
    fs::rename(
        site.room.path("agent-jive"),
        site.room.path("agent-elsewhere"),
    )
    .unwrap();
    let (status, said) = console("missing");
    let remedy = "agent-jive: start `evlbi agent --dir ";
    assert!(status == Some(1) && said.contains(remedy), "{said}");
}

/// Each problem of a session is found before anything starts, and reported with its host and flow.
#[test]
fn a_check_finds_the_problems_of_a_session() {
    let site = Site::on_loopback(&["jive"], "max-rate = \"100M\"\n");
    let taken = std::net::UdpSocket::bind(site.streams[0]).unwrap();
    let to = site.streams[1];
    let scan = |name: &str, start: &str| {
        format!("[[scan]]\nname = \"{name}\"\nstart = \"{start}\"\nduration = \"10s\"\n")
    };
    let flow = |name: &str, scans: &str, rest: &str| {
        format!("[[flow]]\nname = \"{name}\"\nhost = \"jive\"\nscans = [{scans}]\n{rest}\n")
    };
    let send = |name: &str, scans: &str, to: &str, rate: &str| {
        flow(
            name,
            scans,
            &format!(
                "command = \"send\"\nsource = \"pattern:8032\"\nto = \"udp://{to}\"\nrate = \"{rate}\""
            ),
        )
    };
    let recv = |name: &str, scans: &str, from: &str, to: &str| {
        flow(
            name,
            scans,
            &format!("command = \"recv\"\nfrom = \"udp://{from}\"\nto = \"{to}\""),
        )
    };
    let check = |name: &str, host: &str, flows: &str| {
        let host = format!("[[host]]\nname = \"jive\"\nfolder = \"agent-jive\"\n{host}\n");
        let text = format!("name = \"{name}\"\naround = \"1s\"\n{host}{flows}");
        let session = site.room.write(&format!("{name}.toml"), text);
        let status = site.run(name, &["run", &session, "--check", "--json"]);
        (status, site.room.text(&format!("{name}.err")))
    };
    let to = to.to_string();
    let flows = [
        scan("s1", "+0s"),
        scan("s2", "+5s"),
        scan("s3", "+60s"),
        send("far", "\"s1\"", "192.0.2.1:2630", "1M"),
        recv(
            "busy",
            "\"s1\"",
            &taken.local_addr().unwrap().to_string(),
            "null",
        ),
        recv("twice", "\"s1\", \"s3\"", &to, "twice.vdif"),
        send("first", "\"s1\"", &to, "60M"),
        send("second", "\"s2\"", &to, "60M"),
    ];
    let (status, said) = check(
        "bad",
        "addresses = [\"127.0.0.1\"]\nlink = \"50M\"",
        &flows.concat(),
    );
    assert_eq!(status, Some(1), "{said}");
    for found in [
        "jive far: `to`: 192.0.2.1 is not among the `targets`",
        "jive busy: cannot listen on",
        "jive twice: twice.vdif is recorded more than once",
        "jive second: the maximum rate of this agent is 100Mbit/s (max-rate), of which 40Mbit/s is left",
        "jive: 60.000 Mbit/s of outbound data exceed its link of 50Mbit/s",
        "problems found",
    ] {
        assert!(said.contains(found), "{found}: {said}");
    }
    assert!(!said.contains("jive first:"), "{said}");
    // Scans closer together than `around`, each with a sender of its own, take turns.
    let flows = [
        scan("s1", "+0s"),
        scan("s2", "+10100ms"),
        send("first", "\"s1\"", &to, "60M"),
        send("second", "\"s2\"", &to, "60M"),
    ];
    let (status, said) = check("close", "", &flows.concat());
    assert_eq!(status, Some(0), "{said}");
    let found = read(site.room.text("close.out"));
    assert_schema(&found, "evlbi.checked/1");
    assert_eq!(found["hosts"][0]["host"], "jive");
    // What a path with others may lose.
    let flow =
        "[[flow]]\nname = \"own\"\nhost = \"jive\"\ncommand = \"send\"\nsource = \"pattern:1424\"";
    let safe = format!("{flow}\nto = \"udp://127.0.0.1:9\"\nrate = \"51.2M\"\nsafe = \"shared\"\n");
    let host = "[[host]]\nname = \"jive\"\nfolder = \"agent-jive\"\n";
    let text = format!("name = \"own\"\naround = \"8s\"\n{host}{safe}");
    let session = site.room.write("own.toml", text);
    let status = site.run("own", &["run", &session, "--check", "--json"]);
    assert_eq!(status, Some(0), "{}", site.room.text("own.err"));
    let limits = &read(site.room.text("own.out"))["limits"][0];
    assert_eq!(
        (&limits["flow"], &limits["host"]),
        (&"own".into(), &"jive".into())
    );
    assert_eq!(limits["safe"]["rate_bps"], 51_200_000);
    let status = site.run("own", &["run", &session, "--check"]);
    let said = site.room.text("own.out");
    assert!(
        status == Some(0)
            && said.contains("jive own: sheds from")
            && said.contains("over 95.0000 ms (stops from"),
        "{said}"
    );
    // A token for viewing only.
    let token = site.room.path("agent-jive/tokens/watch");
    let fingerprint = site.fingerprint("jive");
    let host = format!("token-file = {token:?}\nfingerprint = \"{fingerprint}\"");
    let text =
        format!("name = \"watch\"\n[[host]]\nname = \"jive\"\nfolder = \"agent-jive\"\n{host}\n");
    let session = site.room.write("watch.toml", text);
    let status = site.run("watch", &["run", &session, "--check", "--trust", "jive"]);
    let said = site.room.text("watch.err");
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("jive: the token allows only viewing"),
        "{said}"
    );
}

/// The web UI in a browser: the session is started there, jb is started by the form, the rate is shown, jb's policy is changed, loss
/// and weight follow, and all is stopped.
#[test]
fn a_page_drives_three_stations() {
    let Some(python) = python_with_a_browser() else {
        return;
    };
    let site = Site::on_loopback(&["jive"], "");
    let session = site.session("paged", &["ef", "on"], ENDLESS, "");
    let serve = [
        "--hold",
        "--keep",
        "--dir",
        "controller",
        "--bind",
        "127.0.0.1:0",
    ];
    let mut run = site.begin(
        "run",
        &[&["run", session.as_str()], serve.as_slice()].concat(),
    );
    let said = site.hear("run", "run paged-");
    let (_, page) = said.split_once("web UI ").unwrap();
    let (page, _) = page.split_once(',').unwrap();
    let output = browser::script_of(&python, "page.py")
        .args([page, "controller", &site.room.path("sky.toml")])
        .arg(site.streams[1].to_string())
        .current_dir(site.room.folder())
        .output()
        .unwrap();
    let [said, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{said}{errors}");
    let seen: Value = serde_json::from_str(said.trim()).unwrap();
    browser::all_is_well(&seen);
    run.signal(Signal::SIGINT);
    run.wait();
    for name in ["ef", "jb", "on", "correlator"] {
        let flow = site.kept("paged", "jive", name);
        assert_eq!(flow["end"]["outcome"], "stopped", "{flow}");
    }
    let sent = STATIONS.map(|name| site.result("paged", "jive", name));
    let shed = sent.each_ref().map(|sent| number(sent, "shed"));
    assert!(shed[0] == 0 && shed[1] > 0 && shed[2] == 0, "{shed:?}");
    let found = site.result("paged", "jive", "correlator");
    let streams = found["streams"].as_array().unwrap();
    assert_eq!(streams.len(), sent.len());
    for (stream, sent) in streams.iter().zip(&sent) {
        let [expected, unique, lost] =
            ["expected", "unique", "lost"].map(|count| number(stream, count));
        assert_eq!(expected, unique + lost, "{stream}");
        assert!(unique <= number(sent, "sent"), "{stream} {sent}");
    }
}

/// The web UI of an agent correlates the end of recordings that still grow: a fringe, its picture, and later ones.
#[test]
fn a_page_looks_for_fringes_in_recordings() {
    let Some(python) = python_with_a_browser() else {
        return;
    };
    let agent = Agent::start("");
    for (name, station) in [("ef", "Ef"), ("jb", "Jb")] {
        // By TCP nothing is lost, however long a process stalls.
        let mut flow = recv(&format!("rec-{name}"), &format!("{name}.vdif"));
        flow["from"] = json!("tcp://127.0.0.1:0");
        let to = format!("tcp://{}", agent.listen(&flow));
        let source = format!("sky:sky.toml/{station}");
        agent.begin(
            &json!({"id": name, "command": "send", "source": source, "to": to, "repeat": 6000}),
        );
    }
    for name in ["rec-ef", "rec-jb"] {
        agent.wait(name, |flow| received(flow, "bytes") > 1_000_000);
    }
    let seen = browser::seen(&python, "fringe.py", &agent);
    let rounds = seen["rounds"].as_array().unwrap();
    assert!(rounds.len() > 1, "{seen}");
    for round in rounds {
        let cell = |place: usize| round["found"][place].as_str().unwrap();
        assert_eq!((cell(0), cell(6)), ("Ef-Jb", "yes"), "{round}");
        let amplitude: f64 = cell(1).parse().unwrap();
        assert!((amplitude - VALID).abs() < 0.01, "{round}");
        assert!(cell(5).parse::<f64>().unwrap() > 0.9, "{round}");
    }
    let picture = seen["pictures"][0].as_str().unwrap();
    assert!(
        picture.contains("Ef-Jb: amplitude against delay"),
        "{picture}"
    );
}
