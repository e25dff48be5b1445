//! Three stations and a correlator on an emulated path: schedules, shedding, kills, and stations that are excluded.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::programs::{Fields, LIMIT, OnPath, evlbi, output_of, printed, wait};
use super::record::{Aim, Need, Record, Scene};

pub const SCENES: &[Scene] = &[
    Scene {
        name: "timetable",
        shows: "Flows of a session start together at the scan's time and end on their own.",
        needs: &[Need::Paths],
        stall: Duration::from_millis(300),
        play: timetable,
    },
    Scene {
        name: "session-shed",
        shows: "One of three stations starts to shed a fifth: weights, amplitudes and SNR are as expected.",
        needs: &[Need::Paths],
        stall: Duration::from_millis(300),
        play: shed,
    },
    Scene {
        name: "session-kills",
        shows: "A session continues to its scan's end although an agent and then the controller is killed.",
        needs: &[Need::Paths],
        stall: Duration::from_millis(300),
        play: kills,
    },
    Scene {
        name: "left-out",
        shows: "A session without one of its stations correlates the time that the others have in common.",
        needs: &[Need::Paths],
        stall: Duration::from_millis(300),
        play: left_out,
    },
    Scene {
        name: "killed-network",
        shows: "When the network is killed, data that arrived up to a second before is recorded completely.",
        needs: &[Need::Paths],
        stall: Duration::from_millis(300),
        play: killed_network,
    },
];

const STATIONS: [&str; 3] = ["ef", "jb", "on"];
/// Correlation coefficient of the stations' noise.
const CORRELATION: f64 = 0.3;
/// Frames per second of each station: 4 Mbit/s.
const FRAME_RATE: f64 = 250.0;

/// A path, a sky, an agent for each host, and a session.
struct Stations {
    path: OnPath,
}

fn title(name: &str) -> String {
    name[..1].to_uppercase() + &name[1..]
}

impl Stations {
    fn new() -> Result<Stations> {
        let hosts: String = ["jive"]
            .iter()
            .chain(&STATIONS)
            .map(|name| format!("[[host]]\nname = \"{name}\"\n"))
            .collect();
        let links = STATIONS
            .map(|name| format!("[[link]]\nbetween = [\"{name}\", \"jive\"]\nrtt = \"15ms\"\n"));
        let path = OnPath::new(&(hosts + &links.concat()));
        let stations = STATIONS.map(|name| format!("[[station]]\nname = \"{}\"\n", title(name)));
        path.room.write(
            "sky.toml",
            format!(
                "start = \"2026-05-01T12:00:00Z\"\nduration = 1.0\nseed = 7\nsample_rate = 2_000_000\nbits = 2\nchannels = 1\nthreads = 1
                 complex = false\npayload = 2000\nedv = 1\ncorrelation = {CORRELATION}\nsky_frequency = 4_980_000_000\n{}",
                stations.concat()
            ),
        );
        for name in ["jive"].iter().chain(&STATIONS) {
            let agent = path.room.folder().join(format!("agent-{name}"));
            fs::create_dir(&agent)?;
            let settings = format!(
                "name = \"{name}\"\ntargets = [\"10.77.0.0/16\"]\nread = [{:?}]\n",
                path.room.folder()
            );
            fs::write(agent.join("agent.toml"), settings)?;
        }
        Ok(Stations { path })
    }

    fn hosts() -> String {
        let host =
            |name: &&str| format!("[[host]]\nname = \"{name}\"\nfolder = \"agent-{name}\"\n");
        ["jive"].iter().chain(&STATIONS).map(host).collect()
    }

    /// Returns a flow that sends a station's sky to a port of jive.
    fn sender(&self, name: &str, port: usize) -> String {
        format!(
            "[[flow]]\nname = \"{name}\"\nhost = \"{name}\"\ncommand = \"send\"\nsource = \"sky:{}/{}\"
             to = \"udp://10.77.0.1:{port}\"\nrepeat = 600\n",
            self.path.room.path("sky.toml"),
            title(name),
        )
    }

    /// Writes a session with three senders and a correlator, and more.
    fn session(&self, more: &str) {
        let senders = STATIONS.iter().enumerate();
        let flows: String = senders
            .map(|(number, name)| self.sender(name, 2630 + number))
            .collect();
        let correlate = "[[flow]]\nname = \"correlator\"\nhost = \"jive\"\ncommand = \"correlate\"\nlive = true\nwait = \"15s\"\nchannels = 64
             files = [\"udp://10.77.0.1:2630\", \"udp://10.77.0.1:2631\", \"udp://10.77.0.1:2632\"]\nfreq = [\"4.98G\"]\n";
        let hosts = Stations::hosts();
        self.path.room.write(
            "session.toml",
            format!("name = \"three\"\naround = \"5s\"\n{hosts}{more}{flows}{correlate}"),
        );
    }

    /// Returns the script, preceded by commands that start all agents and wait for them.
    fn with_agents(script: &str) -> String {
        let agents = STATIONS.iter().enumerate().map(|(number, name)| {
            format!(
                "$E path exec {name} -- $E agent --dir agent-{name} --bind 10.77.0.{}:3650 > agent-{name}/said & P=\"$P $!\"\n",
                number + 2
            )
        });
        let agents: String = agents.collect();
        let ready = wait(
            "[ -s agent-jive/address ] && [ -s agent-ef/address ] && [ -s agent-jb/address ] && [ -s agent-on/address ]",
        );
        // An earlier agent left its address behind.
        format!(
            "rm -f agent-*/address; $E agent --dir agent-jive --bind 10.77.0.1:3650 > agent-jive/said & P=$!\n{agents}
             E_() {{ for p in $P $R; do kill $p 2> /dev/null || true; done; }}\ntrap E_ EXIT\n{ready}\n{script}"
        )
    }

    fn run(&self, script: &str) -> Result<String> {
        self.path.run(&["--force"], &Stations::with_agents(script))
    }

    /// Returns the result of the flow of this name.
    fn result(&self, host: &str, name: &str) -> Result<Value> {
        let flows = fs::read_dir(self.path.room.folder().join(format!("agent-{host}/flows")))?;
        let end = format!(".{name}");
        for flow in flows {
            let folder = flow?.path();
            let id = folder
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if id == name || id.ends_with(&end) {
                let text = fs::read_to_string(folder.join("result.json"))?;
                let whole = serde_json::from_str(&text).ok();
                let found = whole.or_else(|| serde_json::from_str(text.lines().last()?).ok());
                return found.with_context(|| format!("{name} left no result: {text}"));
            }
        }
        anyhow::bail!("no flow {name} at {host}")
    }
}

/// Checks the senders' durations and pace, and how they ended; returns the durations.
fn ends(record: &mut Record, flows: &[Value], asked_s: f64) -> Result<Vec<f64>> {
    let (mut lasted, mut ends) = (Vec::new(), Vec::new());
    for flow in flows {
        let name = name_of(flow)?;
        record.said(
            format!("{name} finished on its own"),
            flow["end"]["outcome"] == "finished",
        );
        if flow["command"] != "send" {
            continue;
        }
        let seconds = flow["result"].count("frames")? as f64 / FRAME_RATE;
        record.figure(
            format!("{name}: data sent"),
            "s",
            seconds,
            Aim::Within(asked_s - 1.0, asked_s + 1.0 / FRAME_RATE),
        );
        lasted.push(seconds);
        ends.push(flow["end"].real("time")?);
        // Each frame is two datagrams; the last frame may be incomplete.
        let result = &flow["result"];
        let (sent, frames) = (result.count("sent")?, result.count("frames")?);
        record.fact(
            format!("{name}: two datagrams for each frame, none shed"),
            sent.abs_diff(2 * frames) < 2 && result.count("shed")? == 0,
            format!("{sent} of {frames} frames"),
        );
    }
    ends.sort_by(f64::total_cmp);
    let apart = ends.last().unwrap_or(&0.0) - ends.first().unwrap_or(&0.0);
    record.figure("senders end apart", "s", apart, Aim::AtMost(2.0));
    Ok(lasted)
}

/// Returns a flow's name, without that of its run.
fn name_of(flow: &Value) -> Result<String> {
    let id = flow.text("id")?;
    Ok(id.rsplit('.').next().unwrap_or(id).to_owned())
}

fn correlator(flows: &[Value]) -> Result<&Value> {
    let found = flows.iter().find(|flow| flow["command"] == "correlate");
    Ok(&found.context("no correlator")?["result"])
}

fn timetable(record: &mut Record) -> Result<()> {
    let stations = Stations::new()?;
    stations.session("[[scan]]\nname = \"s1\"\nstart = \"+2s\"\nduration = \"6s\"\n");
    let said = stations.run("$E run session.toml --json")?;
    let result: Value = serde_json::from_str(&said)?;
    let flows = result.list("flows")?;
    record.same("flows", flows.len() as u64, 4);
    ends(record, flows, 6.0)?;
    let seconds = correlator(flows)?.real("seconds")?;
    record.figure("data correlated", "s", seconds, Aim::Within(4.0, 6.0));
    Ok(())
}

fn shed(record: &mut Record) -> Result<()> {
    let stations = Stations::new()?;
    stations.session("");
    let steps = "check\nbegin\nwait correlator running\nwait 6s\nset jb shed=random:20%\nwait 8s\nshow correlator\nstop all\n";
    stations.path.room.write("steps.script", steps);
    let said = stations.run("$E run session.toml --script steps.script")?;
    record.fact(
        "the check finds nothing against the session",
        said.contains("no problems found"),
        "",
    );
    let sent = [
        stations.result("ef", "ef")?,
        stations.result("jb", "jb")?,
        stations.result("on", "on")?,
    ];
    let jb = &sent[1];
    record.same(
        "ef and on shed nothing",
        sent[0].count("shed")? + sent[2].count("shed")?,
        0,
    );
    let fraction = jb["shedding"].real("fraction")?;
    record.figure(
        "shed by jb since the change",
        "%",
        fraction * 100.0,
        Aim::Within(16.0, 24.0),
    );
    for (name, sent) in STATIONS.iter().zip(&sent) {
        let pace = sent.count("frames")? as f64 / FRAME_RATE / sent.real("seconds")?;
        record.figure(
            format!("{name}: pace, of its rate"),
            "%",
            pace * 100.0,
            Aim::AtLeast(95.0),
        );
    }
    let found = stations.result("jive", "correlator")?;
    for ((stream, sent), name) in found.list("streams")?.iter().zip(&sent).zip(STATIONS) {
        record.same(
            format!("{name}: nothing is lost in the host or unexplained"),
            stream.count("host_lost")? + stream.count("unattributed")?,
            0,
        );
        let (lost, shed) = (stream.count("lost")?, sent.count("shed")?);
        record.fact(
            format!("{name}: no more is missed than was shed, no more received than sent"),
            lost <= shed && stream.count("unique")? <= sent.count("sent")?,
            format!("{lost} of {shed}, {} of {}", stream["unique"], sent["sent"]),
        );
        record.figure(
            format!("{name}: sent before the correlator listened or after it ended"),
            "",
            (sent.count("sent")? - stream.count("unique")?) as f64,
            Aim::AtMost(50.0),
        );
        record.figure(
            format!("{name}: shed at the ends, unknown to it"),
            "",
            (shed - lost) as f64,
            Aim::AtMost(10.0),
        );
        record.figure(
            format!("{name}: data that came and was not correlated"),
            "s",
            stream.real("left_s")?,
            Aim::AtMost(0.0),
        );
    }
    // The common time of two stations is that of the shorter one. All start with the same frame, and jb sheds from one of its frames
    // on.
    let offered = |shed: &Value| shed.real("offered");
    let before = offered(&jb["shedding_before"][0])?;
    let all = before + offered(&jb["shedding"])?;
    let mut frames = Vec::new();
    for sent in &sent {
        frames.push(sent.count("frames")? as f64);
    }
    let with_jb = |other: usize| {
        let common = frames[1].min(frames[other]);
        1.0 - fraction * (common - frames[1] * before / all).max(0.0) / common
    };
    let expected = [with_jb(0), 1.0, with_jb(2)];
    let baselines = found.list("baselines")?;
    for ((baseline, expected), name) in baselines
        .iter()
        .zip(expected)
        .zip(["Ef-Jb", "Ef-On", "Jb-On"])
    {
        let weight = baseline.real("weight")?;
        record.figure(
            format!("{name}: weight"),
            "",
            weight,
            Aim::Within(expected - 0.02, expected + 0.02),
        );
        let amplitude = baseline["amplitude"].real("corrected")?;
        record.figure(
            format!("{name}: amplitude"),
            "",
            amplitude,
            Aim::Within(CORRELATION - 0.01, CORRELATION + 0.01),
        );
        let (loss, by_weight) = (baseline.real("snr_loss")?, 1.0 - expected.sqrt());
        record.figure(
            format!("{name}: loss of SNR"),
            "",
            loss,
            Aim::Within(by_weight - 0.02, by_weight + 0.02),
        );
        record.figure(
            format!("{name}: residual delay"),
            "ns",
            baseline.real("delay_s")?.abs() * 1e9,
            Aim::AtMost(8.0),
        );
    }
    Ok(())
}

fn kills(record: &mut Record) -> Result<()> {
    let stations = Stations::new()?;
    stations.session("[[scan]]\nname = \"s1\"\nduration = \"15s\"\n");
    let script = format!(
        "$E run session.toml --json > first.json 2> run.log & R=$!
        {}
        kill -9 $(cat agent-jb/lock)
        {}
        rm agent-jb/address
        $E path exec jb -- $E agent --dir agent-jb --bind 10.77.0.3:3650 > agent-jb/again & P=\"$P $!\"
        {}
        kill -9 $R; wait $R || true
        $E run session.toml --resume $(sed -n 's/^run //p' run.log) --json",
        wait("grep -q 'on starts' run.log"),
        wait("grep -q 'jb does not answer' run.log"),
        wait("[ -s agent-jb/address ]")
    );
    let said = stations.run(&script)?;
    let result: Value = serde_json::from_str(&said)?;
    let flows = result.list("flows")?;
    record.same("flows", flows.len() as u64, 4);
    ends(record, flows, 15.0)?;
    let result = correlator(flows)?;
    record.figure(
        "data correlated",
        "s",
        result.real("seconds")?,
        Aim::Within(12.0, 15.0),
    );
    let baselines = result.list("baselines")?;
    record.same("baselines", baselines.len() as u64, 3);
    for (baseline, name) in baselines.iter().zip(["Ef-Jb", "Ef-On", "Jb-On"]) {
        record.figure(
            format!("{name}: weight"),
            "",
            baseline.real("weight")?,
            Aim::AtLeast(0.99),
        );
    }
    Ok(())
}

fn left_out(record: &mut Record) -> Result<()> {
    let stations = Stations::new()?;
    stations.session("[[scan]]\nname = \"s1\"\nduration = \"5s\"\n");
    let said =
        stations.run("kill -9 $(cat agent-on/lock); $E run session.toml --without on --json")?;
    let result: Value = serde_json::from_str(&said)?;
    let flows = result.list("flows")?;
    record.same("flows", flows.len() as u64, 3);
    let lasted = ends(record, flows, 5.0)?;
    ensure!(lasted.len() == 2, "{} senders", lasted.len());
    // Data that waits for missing stations is kept for four seconds. After a stall of the host, one sender gave up some time.
    let (shorter, longer) = (lasted[0].min(lasted[1]), lasted[0].max(lasted[1]));
    let common = shorter - (longer - 4.0).max(0.0);
    let result = correlator(flows)?;
    record.figure(
        "data correlated: what both have, less what was not kept",
        "s",
        result.real("seconds")?,
        Aim::Within(common - 0.5, common + 0.5),
    );
    let baselines = result.list("baselines")?;
    record.same("baselines", baselines.len() as u64, 3);
    for (baseline, name) in baselines.iter().zip(["Ef-Jb", "Ef-On", "Jb-On"]) {
        let weight = baseline.real("weight")?;
        if name == "Ef-Jb" {
            record.figure(format!("{name}: weight"), "", weight, Aim::AtLeast(0.97));
        } else {
            record.fact(
                format!("{name}: no weight"),
                weight == 0.0,
                weight.to_string(),
            );
        }
    }
    let amplitude = baselines[0]["amplitude"].real("corrected")?;
    record.figure(
        "Ef-Jb: amplitude",
        "",
        amplitude,
        Aim::Within(CORRELATION - 0.01, CORRELATION + 0.01),
    );
    Ok(())
}

fn killed_network(record: &mut Record) -> Result<()> {
    const FRAME: u64 = 2032;
    let stations = Stations::new()?;
    let room = &stations.path.room;
    let session = |name: &str, scan: &str| {
        format!(
            "name = \"{name}\"\naround = \"5s\"\n{}{scan}[[flow]]\nname = \"rec\"\nhost = \"jive\"\ncommand = \"recv\"\nfrom = \"udp://10.77.0.1:2630\"\nto = \"{{session}}.vdif\"\n{}",
            Stations::hosts(),
            stations.sender("ef", 2630)
        )
    };
    room.write("session.toml", session("three", ""));
    room.write(
        "again.toml",
        session("again", "[[scan]]\nname = \"s1\"\nduration = \"3s\"\n"),
    );
    let script = format!(
        "$E run session.toml > run.json 2> run.log & R=$!
        {}
        touch killme; wait $R",
        wait("[ $(stat -c %s agent-jive/recordings/three* 2> /dev/null || echo 0) -gt 1000000 ]")
    );
    let mut command = stations
        .path
        .command(&[], &Stations::with_agents(&script))?;
    let mut path = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let begun = Instant::now();
    let is_ready = || room.folder().join("killme").exists();
    while !is_ready() && path.try_wait()?.is_none() && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(20));
    }
    // The relay is the first process of all hosts: everything there ends at once, as in a power failure.
    let relay =
        fs::read_to_string(format!("/proc/{0}/task/{0}/children", path.id())).unwrap_or_default();
    if let Ok(relay) = relay.trim().parse() {
        kill(Pid::from_raw(relay), Signal::SIGKILL)?;
    } else {
        path.kill()?;
    }
    let ended = SystemTime::now();
    let output = output_of(path)?;
    ensure!(is_ready(), "{}", String::from_utf8_lossy(&output.stderr));

    let said = stations.run(
        "echo list > list; $E console agent-jive < list; $E run again.toml --json > again.json",
    )?;
    record.fact(
        "an agent that starts again tells what was killed",
        said.contains("killed"),
        "",
    );
    for flow in room.json("again.json").list("flows")? {
        let name = name_of(flow)?;
        record.said(
            format!("{name} finished in the session after that"),
            flow["end"]["outcome"] == "finished",
        );
    }
    let recordings = fs::read_dir(room.folder().join("agent-jive/recordings"))?;
    let mut first = None;
    for recording in recordings {
        let recording = recording?;
        if recording.file_name().to_string_lossy().starts_with("three") {
            first = Some(recording.path());
        }
    }
    let first = first.context("no recording")?;
    let found = printed(evlbi()?.args(["inspect", "--json"]).arg(&first))?;
    let found: Value = serde_json::from_str(&found)?;
    let file = fs::metadata(&first)?;
    let before = ended.duration_since(file.modified()?).unwrap_or_default();
    record.figure(
        "last written before the kill",
        "s",
        before.as_secs_f64(),
        Aim::AtMost(1.5),
    );
    let frames = found.count("frames")?;
    record.fact(
        "all of the recording but its last frame can be read",
        frames * FRAME > 1_000_000 && file.len() - frames * FRAME < FRAME,
        format!("{frames} frames in {} B", file.len()),
    );
    Ok(())
}
