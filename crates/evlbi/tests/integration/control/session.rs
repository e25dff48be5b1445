//! Three stations and a correlator in four namespaces over an emulated path, driven by a script, a console, a page and a
//! timetable: the same comes of it.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::control::browser::{self, python_with_a_browser};
use crate::control::support::{Agent, EVLBI, received, recv};
use crate::result::number;
use evlbi_testkit::command;
use evlbi_testkit::netns::paths;

const STATIONS: [&str; 3] = ["ef", "jb", "on"];
/// What the stations' noise has in common.
const CORRELATION: f64 = 0.3;
/// What of it two bits leave.
const VALID: f64 = 0.265;
/// Frames a second of each station: 4 Mbit/s, which hosts with other things to do can send as well.
const FRAME_RATE: f64 = 250.0;

/// How much each sender of these flows sent, in seconds of data.
pub fn lasted(flows: &[Value]) -> Vec<f64> {
    let sent = flows.iter().filter(|flow| flow["command"] == "send");
    sent.map(|flow| number(&flow["result"], "frames") as f64 / FRAME_RATE)
        .collect()
}

/// Whether all senders, which ended by themselves, sent for as long as they were asked to, but for a second, and together: on a
/// host that stands still they begin late or give up some of their time, which is said.
pub fn kept_pace(flows: &[Value], asked_s: f64) -> bool {
    let mut ends = Vec::new();
    for sender in flows.iter().filter(|flow| flow["command"] == "send") {
        assert_eq!(sender["end"]["outcome"], "finished", "{sender}");
        ends.push(sender["end"]["time"].as_f64().unwrap());
    }
    ends.sort_by(f64::total_cmp);
    let apart = ends[ends.len() - 1] - ends[0];
    let lasted = lasted(flows);
    let has_kept = apart < 2.0 && lasted.iter().all(|lasted| *lasted > asked_s - 1.0);
    if !has_kept {
        eprintln!(
            "skipped in part: this host had other things to do, and sent {lasted:.1?} s of {asked_s} s, ending {apart:.1} s apart"
        );
    }
    has_kept
}

/// The folder of a test: a path, a sky, an agent for each host, and a session.
pub struct Room {
    pub folder: TempDir,
}

impl Room {
    pub fn new() -> Room {
        let room = Room {
            folder: tempfile::tempdir().unwrap(),
        };
        let hosts: String = ["jive"]
            .iter()
            .chain(&STATIONS)
            .map(|name| format!("[[host]]\nname = \"{name}\"\n"))
            .collect();
        let link =
            |name: &&str| format!("[[link]]\nbetween = [\"{name}\", \"jive\"]\nrtt = \"15ms\"\n");
        // Paths are told apart by the names of their plans.
        let links: String = STATIONS.iter().map(link).collect();
        fs::write(room.path_plan(), hosts + &links).unwrap();
        let station = |name: &&str| format!("[[station]]\nname = \"{}\"\n", title(name));
        let stations: String = STATIONS.iter().map(station).collect();
        let sky = format!(
            "start = \"2026-05-01T12:00:00Z\"\nduration = 1.0\nseed = 7\nsample_rate = 2_000_000\nbits = 2\nchannels = 1\nthreads = 1
             complex = false\npayload = 2000\nedv = 1\ncorrelation = {CORRELATION}\nsky_frequency = 4_980_000_000\n{stations}"
        );
        fs::write(room.path("sky.toml"), sky).unwrap();
        for name in ["jive"].iter().chain(&STATIONS) {
            let agent = room.path(&format!("agent-{name}"));
            fs::create_dir(&agent).unwrap();
            let settings = format!(
                "name = \"{name}\"\ntargets = [\"10.77.0.0/16\"]\nread = [{:?}]\n",
                room.folder.path()
            );
            fs::write(agent.join("agent.toml"), settings).unwrap();
        }
        room
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn path_plan(&self) -> PathBuf {
        let name = self.folder.path().file_name().unwrap().to_str().unwrap();
        self.path(&format!("{}.toml", name.trim_start_matches('.')))
    }

    /// Hosts and flows, with more.
    pub fn session(&self, more: &str) {
        self.session_of(&STATIONS, more);
    }

    /// The same, in which these stations only send.
    fn session_of(&self, stations: &[&str], more: &str) {
        let host =
            |name: &&str| format!("[[host]]\nname = \"{name}\"\nfolder = \"agent-{name}\"\n");
        let hosts: String = ["jive"].iter().chain(&STATIONS).map(host).collect();
        let flow = |(number, name): (usize, &&str)| {
            format!(
                "[[flow]]\nname = \"{name}\"\nhost = \"{name}\"\ncommand = \"send\"\nsource = \"sky:{}/{}\"
                 to = \"udp://10.77.0.1:{}\"\nrepeat = 600\n",
                self.path("sky.toml").display(),
                title(name),
                2630 + number
            )
        };
        let senders = STATIONS.iter().enumerate();
        let flows: String = senders
            .filter(|(_, name)| stations.contains(name))
            .map(flow)
            .collect();
        let correlate = "[[flow]]\nname = \"correlator\"\nhost = \"jive\"\ncommand = \"correlate\"\nlive = true\nwait = \"15s\"\nchannels = 64
             files = [\"udp://10.77.0.1:2630\", \"udp://10.77.0.1:2631\", \"udp://10.77.0.1:2632\"]\nfreq = [\"4.98G\"]\n";
        fs::write(
            self.path("session.toml"),
            format!("name = \"three\"\naround = \"5s\"\n{hosts}{more}{flows}{correlate}"),
        )
        .unwrap();
    }

    /// Runs a script at jive when all agents are there; `$E` is this program. None where there are no paths here, which is
    /// said.
    pub fn run(&self, script: &str) -> Option<Output> {
        paths().then(|| self.command(script).output().unwrap())
    }

    /// What runs a script at jive.
    pub fn command(&self, script: &str) -> Command {
        let agents: String = STATIONS
            .iter()
            .enumerate()
            .map(|(number, name)| {
                format!("$E path exec {name} -- $E agent --dir agent-{name} --bind 10.77.0.{}:3650 > agent-{name}/said & P=\"$P $!\"\n", number + 2)
            })
            .collect();
        let wait = "for h in jive ef jb on; do n=0; until [ -s agent-$h/address ]; do n=$((n+1)); [ $n -lt 600 ]; sleep 0.1; done; done";
        // An agent that was here before left its address behind.
        let whole = format!(
            "rm -f agent-*/address; $E agent --dir agent-jive --bind 10.77.0.1:3650 > agent-jive/said & P=$!\n{agents}E_() {{ for p in $P $R; do kill $p 2> /dev/null || true; done; }}\ntrap E_ EXIT\n{wait}\n{script}"
        );
        let mut command = command(EVLBI);
        command
            .args(["path", "run"])
            .arg(self.path_plan())
            .args(["--", "sh", "-ec", &whole])
            .env("E", EVLBI)
            .env("XDG_STATE_HOME", self.folder.path())
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    pub fn run_well(&self, script: &str) -> Option<String> {
        let output = self.run(script)?;
        let said = String::from_utf8_lossy(&output.stderr);
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{shown}\n{said}");
        Some(shown.into_owned())
    }

    /// The result of the only flow of this name.
    pub fn result(&self, host: &str, name: &str) -> Value {
        let flows = fs::read_dir(self.path(&format!("agent-{host}/flows"))).unwrap();
        let called = |path: &PathBuf| {
            let id = path.file_name().unwrap().to_str().unwrap();
            id == name || id.ends_with(&format!(".{name}"))
        };
        let mut found = flows.map(|entry| entry.unwrap().path()).filter(called);
        let folder = found.next().unwrap_or_else(|| panic!("no flow {name}"));
        assert!(found.next().is_none(), "several flows {name}");
        let text = fs::read_to_string(folder.join("result.json")).unwrap();
        let whole = serde_json::from_str(&text).ok();
        whole
            .or_else(|| serde_json::from_str(text.lines().last()?).ok())
            .unwrap_or_else(|| {
                panic!(
                    "{name} left no result: {text} {}",
                    fs::read_to_string(folder.join("log")).unwrap()
                )
            })
    }

    /// What must come of it whoever drives: jb shed a fifth from a moment on, the others nothing; the correlator missed
    /// just that, its weights are what is left, and the amplitudes those of the sky.
    fn agrees(&self) {
        let sent = STATIONS.map(|name| self.result(name, name));
        let shed = sent.each_ref().map(|result| number(result, "shed"));
        assert_eq!((shed[0], shed[2]), (0, 0));
        let jb = &sent[1];
        let before: Vec<&str> = jb["shedding_before"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s["policy"].as_str().unwrap())
            .collect();
        assert_eq!(
            (before, &jb["shedding"]["policy"]),
            (vec!["none"], &Value::from("random:0.2"))
        );
        let fraction = jb["shedding"]["fraction"].as_f64().unwrap();
        assert!((fraction - 0.2).abs() < 0.04, "{fraction}");
        let found = self.result("jive", "correlator");
        let streams = found["streams"].as_array().unwrap();
        assert_eq!(streams.len(), 3);
        for ((stream, sent), shed) in streams.iter().zip(&sent).zip(shed) {
            assert_eq!(
                number(stream, "host_lost") + number(stream, "unattributed"),
                0,
                "{stream}"
            );
            let (lost, unique) = (number(stream, "lost"), number(stream, "unique"));
            assert!(
                unique <= number(sent, "sent") && unique + 50 > number(sent, "sent"),
                "{stream} {sent}"
            );
            // All that came was correlated.
            assert_eq!(stream["left_s"], 0.0, "{stream}");
            // Of what was shed at the ends nobody knows.
            assert!(lost <= shed && lost + 10 > shed, "{lost} of {shed}");
        }
        // The time that two stations have is that of the shorter: a host that stood still gave up some of it. All begin with
        // the same frame, and jb sheds from one of its frames on.
        let units = |shed: &Value| number(shed, "offered") as f64;
        let before = units(&jb["shedding_before"][0]);
        let all = before + units(&jb["shedding"]);
        let frames = sent.each_ref().map(|sent| number(sent, "frames") as f64);
        let with_jb = |other: usize| {
            let common = frames[1].min(frames[other]);
            1.0 - fraction * (common - frames[1] * before / all).max(0.0) / common
        };
        let expected = [with_jb(0), 1.0, with_jb(2)];
        let baselines = found["baselines"].as_array().unwrap();
        assert_eq!(baselines.len(), 3);
        for (baseline, expected) in baselines.iter().zip(expected) {
            let weight = baseline["weight"].as_f64().unwrap();
            assert!(
                (weight - expected).abs() < 0.02,
                "weight {weight}, {expected} expected: {baseline}"
            );
            let amplitude = baseline["amplitude"]["corrected"].as_f64().unwrap();
            assert!((amplitude - CORRELATION).abs() < 0.01, "{baseline}");
            let loss = baseline["snr_loss"].as_f64().unwrap();
            assert!((loss - (1.0 - expected.sqrt())).abs() < 0.02, "{baseline}");
            assert!(
                baseline["delay_s"].as_f64().unwrap().abs() < 8e-9,
                "{baseline}"
            );
        }
    }
}

fn title(name: &str) -> String {
    name[..1].to_uppercase() + &name[1..]
}

const STEPS: &str = "check
begin
wait correlator running
wait 6s
set jb shed=random:20%
wait 8s
show correlator
stop all
";

#[test]
fn a_script_drives_three_stations() {
    let room = Room::new();
    room.session("");
    fs::write(room.path("steps.script"), STEPS).unwrap();
    let Some(said) = room.run_well("$E run session.toml --script steps.script") else {
        return;
    };
    assert!(
        said.contains("nothing stands against the session"),
        "{said}"
    );
    room.agrees();
}

#[test]
fn a_console_drives_three_stations() {
    let room = Room::new();
    room.session("");
    fs::write(room.path("steps.script"), STEPS).unwrap();
    let Some(said) = room.run_well("$E console session.toml < steps.script") else {
        return;
    };
    assert!(said.contains("Ef-Jb"), "{said}");
    room.agrees();
}

/// The timetable alone: flows begin together at the scan's time, and end by themselves.
#[test]
fn a_timetable_drives_three_stations() {
    let room = Room::new();
    room.session("[[scan]]\nname = \"s1\"\nstart = \"+2s\"\nduration = \"6s\"\n");
    let Some(said) = room.run_well("$E run session.toml --json") else {
        return;
    };
    let result: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(result["schema"], "evlbi.run/1");
    let flows = result["flows"].as_array().unwrap();
    assert_eq!(flows.len(), 4);
    // Whatever the pace was.
    let starts = flows.iter().filter(|flow| flow["command"] == "send");
    for flow in starts {
        let result = &flow["result"];
        assert_eq!(number(result, "shed"), 0);
        // Each frame is two datagrams; the last may have been cut off.
        let (sent, frames) = (number(result, "sent"), number(result, "frames"));
        assert!(sent.abs_diff(2 * frames) < 2, "{sent} of {frames} frames");
        assert!(number(result, "frames") <= 1501, "{result}");
    }
    if !kept_pace(flows, 6.0) {
        return;
    }
    for flow in flows {
        assert_eq!(flow["end"]["outcome"], "finished", "{flow}");
    }
    let correlator = &flows
        .iter()
        .find(|flow| flow["command"] == "correlate")
        .unwrap()["result"];
    let seconds = correlator["seconds"].as_f64().unwrap();
    assert!((4.0..=6.0).contains(&seconds), "{seconds}");
}

/// A page in a browser: the session is begun there, jb is started by the form, the rate is seen to rise, jb's policy is
/// changed, loss and weight are seen to follow, and all is ended.
#[test]
fn a_page_drives_three_stations() {
    let Some(python) = python_with_a_browser() else {
        return;
    };
    let room = Room::new();
    room.session_of(&["ef", "on"], "");
    let script = format!(
        "$E run session.toml --hold --keep --dir controller --bind 127.0.0.1:3651 2> run.log & R=$!;
         n=0; until grep -q '^run ' run.log; do n=$((n+1)); [ $n -lt 600 ] || {{ cat run.log; exit 1; }}; sleep 0.1; done
         {} {} https://127.0.0.1:3651 controller {}
         kill -INT $R; wait $R || true",
        python.display(),
        browser::script("page.py").display(),
        room.path("sky.toml").display()
    );
    let Some(said) = room.run_well(&script) else {
        return;
    };
    let seen: Value =
        serde_json::from_str(said.lines().find(|line| line.starts_with('{')).unwrap()).unwrap();
    let sent = STATIONS.map(|name| room.result(name, name));
    let share = sent.each_ref().map(|sent| {
        let frames = number(sent, "frames") as f64;
        frames / FRAME_RATE / sent["seconds"].as_f64().unwrap()
    });
    if share.iter().any(|share| *share < 0.95) {
        eprintln!(
            "skipped in part: this host had other things to do, and sent {share:.2?} of the rate"
        );
    } else {
        assert_eq!(seen["slow"], Value::Null);
    }
    // What was shown when a fifth was shed for a while.
    for (baseline, expected) in [("Ef-Jb", 0.8), ("Ef-On", 1.0), ("Jb-On", 0.8)] {
        let weight = seen["weights"][baseline].as_f64().unwrap();
        assert!((weight - expected).abs() < 0.08, "{baseline} {weight}");
        let theory = seen["theory"][baseline].as_f64().unwrap();
        assert!((theory - expected).abs() < 0.08, "{baseline} {theory}");
    }
    browser::all_is_well(&seen);
    room.agrees();
}

/// The end of recordings that still grow is correlated by the page of their agent: a fringe, its picture, and later ones.
#[test]
fn a_page_looks_for_fringes_in_recordings() {
    let Some(python) = python_with_a_browser() else {
        return;
    };
    let room = Room::new();
    let agent = Agent::start(&format!("read = [{:?}]\n", room.folder.path()));
    for (name, station) in [("ef", "Ef"), ("jb", "Jb")] {
        let to = agent.receive(&recv(&format!("rec-{name}"), &format!("{name}.vdif")));
        let source = format!("sky:{}/{station}", room.path("sky.toml").display());
        agent.begin(
            &json!({"id": name, "command": "send", "source": source, "to": to, "repeat": 600}),
        );
    }
    for name in ["rec-ef", "rec-jb"] {
        agent.wait(name, |flow| received(flow, "bytes") > 5_000_000);
    }
    let seen = browser::seen(&python, "fringe.py", &agent);
    let rounds = seen["rounds"].as_array().unwrap();
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
