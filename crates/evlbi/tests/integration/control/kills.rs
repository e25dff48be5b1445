//! Processes that are killed during a session, or never start, or have no room: the others continue, ends are reported, and
//! recordings can be read.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use evlbi_testkit::result::{assert_schema, read};
use evlbi_testkit::{Running, command, disk, name, until, until_some};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::control::session::{STATIONS, Site, as_the_sky};
use crate::control::support::{
    Agent, EVLBI, SKY_FRAME, SKY_FRAMES, STILL, asked, free_ports, has_ended, received, recv, sent,
    sky,
};
use crate::result::number;

const FAST: &str = "rate = \"2M\"";

fn baselines(correlated: &Value) -> &Vec<Value> {
    let baselines = correlated["baselines"].as_array().unwrap();
    assert_eq!(baselines.len(), 3);
    baselines
}

/// The flow of this name in the output of a run.
fn named<'a>(result: &'a Value, name: &str) -> &'a Value {
    let mut flows = result["flows"].as_array().unwrap().iter();
    let ending = format!(".{name}");
    let flow = flows.find(|flow| flow["id"].as_str().unwrap().ends_with(&ending));
    flow.unwrap_or_else(|| panic!("no {name} in {result}"))
}

/// The result of a run that was started as `name` and succeeds.
#[track_caller]
fn ended_well(site: &Site, mut run: Running, name: &str) -> Value {
    let status = run.wait();
    let [said, errors] = ["out", "err"].map(|end| site.room.text(&format!("{name}.{end}")));
    assert!(status.success(), "{said}{errors}");
    serde_json::from_str(&said).unwrap()
}

/// An agent is killed and restarted: its flow continues, and the controller reports that the agent is away. Then the controller is
/// killed: the flows continue, and a controller after it has the whole result.
#[test]
fn a_session_outlives_its_controller_and_an_agent() {
    let mut site = Site::on_loopback(&["jive", "ef", "jb", "on"], "");
    // One frame per eight seconds: the last leaves after ten minutes.
    let session = site.session("three", &STATIONS, "rate = \"2k\"", "");
    let mut first = site.begin("first", &["run", &session, "--json"]);
    for name in STATIONS {
        site.hear("first", &format!(".{name} starts"));
    }
    site.kill("jb");
    site.hear("first", "jb does not answer");
    site.start("jb");
    let said = site.hear("first", "run three-");
    let run = said.lines().find_map(|line| line.strip_prefix("run "));
    let run = run.unwrap().to_owned();
    first.0.kill().unwrap();
    first.wait();
    assert_eq!(site.room.text("first.out"), "");
    let steps = "wait jb sent 2 2min\nset jb rate=2M\nset ef rate=2M\nset on rate=2M\n";
    let second = site.begin("second", &["run", &session, "--resume", &run, "--json"]);
    site.hear("second", &format!("run {run}"));
    let steps = site.room.write("faster.script", steps);
    site.run_well("faster", &["run", &session, "--script", &steps]);
    let result = ended_well(&site, second, "second");
    assert_eq!(result["flows"].as_array().map(Vec::len), Some(4));
    for name in STATIONS {
        let flow = named(&result, name);
        assert_eq!(flow["end"]["outcome"], "finished", "{flow}");
        let [frames, shed, not_sent] =
            ["frames", "shed", "not_sent"].map(|count| number(&flow["result"], count));
        assert_eq!((frames, shed, not_sent), (SKY_FRAMES, 0, 0), "{flow}");
    }
    let correlated = &named(&result, "correlator")["result"];
    for stream in correlated["streams"].as_array().unwrap() {
        assert_eq!(number(stream, "lost"), 0, "{stream}");
    }
    for baseline in baselines(correlated) {
        assert!(baseline["weight"].as_f64().unwrap() > 0.99, "{baseline}");
    }
}

/// The controller is killed in a scan: the flows continue, and the next controller keeps the scan's times.
#[test]
fn a_scan_outlives_its_controller() {
    let site = Site::on_loopback(&["jive"], "");
    let to = site.streams[0];
    // All steps in the scan are done before its end.
    let flows = format!(
        "[[scan]]\nname = \"s1\"\nduration = \"1h\"
         [[flow]]\nname = \"rec\"\nhost = \"jive\"\ncommand = \"recv\"\nfrom = \"udp://{to}\"\nto = \"null\"
         [[flow]]\nname = \"ef\"\nhost = \"jive\"\ncommand = \"send\"\nsource = \"sky:{}/Ef\"\nto = \"udp://{to}\"\nrate = \"{STILL}\"\n",
        site.room.path("sky.toml")
    );
    let session = site.write_session("scan", &flows);
    let serve = ["--json", "--dir", "controller", "--bind", "127.0.0.1:0"];
    let begin = |name: &str, more: &[&str]| {
        site.begin(
            name,
            &[&["run", session.as_str()], serve.as_slice(), more].concat(),
        )
    };
    // The session in the web UI of a controller.
    let plan = |name: &str| {
        let said = site.hear(name, "run scan-");
        let (_, page) = said.split_once("web UI ").unwrap();
        let (page, _) = page.split_once(',').unwrap();
        let token = site.room.text("controller/tokens/operate");
        until_some("the session runs", || {
            let plan = asked(&format!("{page}/api/v1/session"), token.trim())?;
            let is_begun = plan["state"] == "running" && plan["flows"] == json!([]);
            is_begun.then_some(plan)
        })
    };
    let mut first = begin("first", &[]);
    site.hear("first", ".rec starts");
    site.hear("first", ".ef starts");
    let before = plan("first");
    first.0.kill().unwrap();
    first.wait();
    assert_eq!(site.room.text("first.out"), "");
    let run = before["run"].as_str().unwrap();
    let second = begin("second", &["--resume", run]);
    let after = plan("second");
    let scans = before["scans"].as_array().unwrap();
    assert_eq!(
        (scans.len(), &scans[0]["lasts_s"]),
        (1, &json!(3600.0)),
        "{before}"
    );
    assert_eq!(
        (&after["run"], &after["scans"]),
        (&json!(run), &before["scans"])
    );
    until("the receiver listens", || {
        site.has_said("scan", "rec", "listening")
    });
    // The first frame leaves at the scan's time, whether or not the receiver listens by then.
    let most = SKY_FRAMES - 1;
    let steps = format!(
        "wait ef sent 1 2min\nset ef rate=2M\nwait ef ended\nwait rec unique {most} 2min\nstop rec\n"
    );
    let steps = site.room.write("end.script", steps);
    site.run_well("end", &["run", &session, "--script", &steps]);
    let result = ended_well(&site, second, "second");
    let [ef, rec] = ["ef", "rec"].map(|name| named(&result, name));
    assert_eq!(ef["end"]["outcome"], "finished", "{ef}");
    assert_eq!(number(&ef["result"], "frames"), SKY_FRAMES, "{ef}");
    assert_eq!(rec["end"]["outcome"], "stopped", "{rec}");
    let [unique, lost, missed] =
        ["unique", "lost", "first_seq"].map(|count| number(&rec["result"], count));
    assert_eq!((unique + missed, lost), (SKY_FRAMES, 0), "{rec}");
    for name in ["ef", "rec"] {
        let options = site.kept("scan", "jive", name)["options"].clone();
        assert!(options["duration"].is_string(), "{options}");
    }
}

/// Senders start when their receivers listen, however long that takes: this one has to open a pipe first that nobody reads yet.
#[test]
fn a_sender_waits_until_its_receiver_listens() {
    let site = Site::on_loopback(&["jive"], "");
    let pipe = site.room.path("agent-jive/recordings/pipe");
    assert!(command("mkfifo").arg(&pipe).status().unwrap().success());
    let flows = format!(
        "[[flow]]\nname = \"ef\"\nhost = \"jive\"\ncommand = \"send\"\nsource = \"sky:{}/Ef\"\nto = \"udp://{1}\"\n{FAST}
         [[flow]]\nname = \"rec\"\nhost = \"jive\"\ncommand = \"recv\"\nfrom = \"udp://{1}\"\nto = \"pipe\"\n",
        site.room.path("sky.toml"),
        site.streams[0]
    );
    let session = site.write_session("late", &flows);
    let run = site.begin("run", &["run", &session, "--json"]);
    let said = site.hear("run", ".rec starts");
    assert!(!said.contains(".ef starts"), "{said}");
    let taken = fs::File::create(site.room.path("taken")).unwrap();
    let mut reader = Running(command("cat").arg(pipe).stdout(taken).spawn().unwrap());
    let result = ended_well(&site, run, "run");
    let [ef, rec] = ["ef", "rec"].map(|name| named(&result, name));
    assert_eq!(number(&ef["result"], "frames"), SKY_FRAMES, "{ef}");
    let counts = ["unique", "lost"].map(|count| number(&rec["result"], count));
    assert_eq!(counts, [SKY_FRAMES, 0], "{rec}");
    assert!(reader.wait().success());
    let taken = fs::metadata(site.room.path("taken")).unwrap().len();
    assert_eq!(taken, SKY_FRAMES * SKY_FRAME);
}

/// A station whose agent does not run keeps the session from starting, unless it is excluded: then the others run alone,
/// though the correlator has a stream of it in its list.
#[test]
fn a_station_that_never_starts_is_excluded() {
    let mut site = Site::on_loopback(&["jive", "ef", "jb", "on"], "");
    let session = site.session("three", &STATIONS, &format!("rate = \"{STILL}\""), "");
    site.kill("on");
    assert_eq!(site.run("refused", &["run", &session]), Some(1));
    let refused = site.room.text("refused.err");
    assert!(
        refused.contains("on: no agent answers at ") && refused.contains("nothing was started"),
        "{refused}"
    );
    for host in ["jive", "ef", "jb"] {
        let flows = site.room.folder().join(format!("agent-{host}/flows"));
        assert_eq!(fs::read_dir(flows).unwrap().count(), 0, "{host}");
    }
    let alone = site.begin("alone", &["run", &session, "--without", "on", "--json"]);
    site.hear("alone", ".jb starts");
    let steps = "wait ef sent 1 2min\nwait jb sent 1 2min\nset ef rate=2M\nset jb rate=2M\n";
    let steps = site.room.write("faster.script", steps);
    site.run_well("faster", &["run", &session, "--script", &steps]);
    let result = ended_well(&site, alone, "alone");
    assert_eq!(result["flows"].as_array().map(Vec::len), Some(3));
    for name in ["ef", "jb"] {
        let flow = named(&result, name);
        assert_eq!(flow["end"]["outcome"], "finished", "{flow}");
        assert_eq!(number(&flow["result"], "frames"), SKY_FRAMES, "{flow}");
    }
    let correlated = &named(&result, "correlator")["result"];
    let weights: Vec<f64> = baselines(correlated)
        .iter()
        .map(|baseline| baseline["weight"].as_f64().unwrap())
        .collect();
    assert!(weights[0] > 0.99, "{weights:?}");
    assert_eq!(weights[1..], [0.0, 0.0], "{weights:?}");
    let seconds = correlated["seconds"].as_f64().unwrap();
    // Of three tenths of a second; a correlator that listened late missed some frames.
    assert!((0.125..=0.3).contains(&seconds), "{seconds}");
    as_the_sky(&baselines(correlated)[0], seconds * 250.0);
}

/// A full disk ends the recording, which is reported and can be read; another stream continues.
#[test]
fn a_full_disk_ends_its_recording_only() {
    disk::small(4, name!(), |small| {
        let settings = format!("recordings = {small:?}\nmin-free = \"0\"\n");
        let site = Site::on_loopback(&["jive"], &settings);
        let [rec, count] = free_ports();
        // By TCP nothing is lost, however much is sent. More than the disk has room for.
        let rounds = 40;
        let flows = [
            ("rec", rec, "to = \"rec.vdif\""),
            ("count", count, "to = \"null\""),
        ]
        .map(|(name, at, to)| {
            format!("[[flow]]\nname = \"{name}\"\nhost = \"jive\"\ncommand = \"recv\"\nfrom = \"tcp://{at}\"\n{to}\n")
        });
        let session = site.write_session("full", &flows.concat());
        let mut run = site.begin("run", &["run", &session]);
        let source = format!("sky:{}/Ef", site.room.path("sky.toml"));
        let repeat = rounds.to_string();
        let senders = [("to-rec", rec), ("to-count", count)].map(|(name, at)| {
            until("a receiver listens", || listens(at));
            let to = format!("tcp://{at}");
            let send = ["send", &source, "--to", &to, "--max", "--repeat", &repeat];
            (name, site.begin(name, &send))
        });
        for (name, mut sender) in senders {
            let status = sender.wait();
            assert!(
                status.success(),
                "{}",
                site.room.text(&format!("{name}.err"))
            );
        }
        site.hear("run", ".rec FAILED; other flows keep running");
        site.hear("run", ".count has finished");
        // Receivers may be sent more.
        run.signal(Signal::SIGINT);
        let status = run.wait().code();
        let said = site.room.text("run.err");
        assert_eq!(status, Some(1), "{said}");
        let all = rounds * SKY_FRAMES;
        for name in ["rec", "count"] {
            let came = site.result("full", "jive", name);
            assert_eq!(number(&came, "frames"), all, "{name}: {said}");
        }
        let rec = site.result("full", "jive", "rec");
        let error = rec["write_error"].as_str().unwrap();
        assert!(error.contains("free some space"), "{error}");
        let end = &site.kept("full", "jive", "rec")["end"];
        assert_eq!(end["outcome"], "failed", "{end}");
        let end = &site.kept("full", "jive", "count")["end"];
        assert_eq!(end["outcome"], "finished", "{end}");
        let path = small.join("rec.vdif");
        let recorded = fs::metadata(&path).unwrap().len();
        assert_eq!(
            recorded + number(&rec, "unwritten_bytes"),
            all * SKY_FRAME,
            "{rec}"
        );
        // Most of its four megabytes are for the recording.
        assert!(recorded > 3_000_000, "{recorded}");
        assert_eq!(frames_in(&path), recorded / SKY_FRAME);
    });
}

/// Whether a process listens by TCP at an address of this host.
fn listens(at: SocketAddr) -> bool {
    let IpAddr::V4(ip) = at.ip() else {
        panic!("{at} is not an IPv4 address");
    };
    let ip = u32::from_ne_bytes(ip.octets());
    let local = format!(" {ip:08X}:{:04X} 00000000:0000 0A ", at.port());
    fs::read_to_string("/proc/net/tcp")
        .unwrap()
        .contains(&local)
}

/// How many frames a recording has.
#[track_caller]
fn frames_in(path: &std::path::Path) -> u64 {
    let output = command(EVLBI)
        .args(["inspect", "--json"])
        .arg(path)
        .output()
        .unwrap();
    let found: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    number(&found, "frames")
}

/// Bytes that a writer holds until a whole block of the disk is full.
const HELD: u64 = 1 << 20;

/// A receiver is killed while it records: all arrived data are in the file, except for those held for the next block.
#[test]
fn a_recording_outlives_its_receiver() {
    let agent = Agent::start("");
    let to = agent.receive(&recv("to", "scan.vdif"));
    let mut sender = sky("from", &to, "32M");
    sender["repeat"] = json!(6000);
    agent.begin(&sender);
    let flow = agent.wait("to", |flow| received(flow, "bytes") > 3 * HELD);
    let bytes = received(&flow, "bytes") - HELD;
    let path = agent.recording("scan.vdif");
    until("arrived data are written", || {
        fs::metadata(&path).unwrap().len() >= bytes
    });
    let reply = agent.ask(
        reqwest::Method::POST,
        "/api/v1/flows/to/stop",
        &json!({"kill": true}),
    );
    assert_eq!(reply.status, 200, "{}", reply.body);
    let flow = agent.wait("to", has_ended);
    assert_eq!(flow["end"]["outcome"], "killed", "{flow}");
    // It has whole frames only.
    let recorded = fs::metadata(&path).unwrap().len();
    assert_eq!(frames_in(&path), recorded / SKY_FRAME);
    // The sender continues after the kill: a count from before it would also grow by what was sent until then.
    let before = sent(&agent.flow("from"), "sent");
    let flow = agent.wait("from", |flow| sent(flow, "sent") > before);
    assert_eq!(flow["state"], "running");
}

/// The relay of the path is killed, which is the first process of all its hosts: everything there ends at once, as in a power
/// cut. Earlier recordings can be read; restarted agents report the killed flows, and another session runs.
#[test]
fn recordings_and_agents_outlive_their_network() {
    let Some(mut site) = Site::on_a_path() else {
        return;
    };
    let to = site.streams[0];
    let record = |rate: &str| {
        format!(
            "[[flow]]\nname = \"rec\"\nhost = \"jive\"\ncommand = \"recv\"\nfrom = \"udp://{to}\"\nto = \"{{session}}.vdif\"
             [[flow]]\nname = \"ef\"\nhost = \"ef\"\ncommand = \"send\"\nsource = \"sky:{}/Ef\"\nto = \"udp://{to}\"\n{rate}\n",
            site.room.path("sky.toml")
        )
    };
    let first = site.write_session("first", &record("repeat = 6000"));
    let again = site.write_session("again", &record(FAST));
    let mut run = site.begin("first", &["run", &first]);
    let recordings = site.room.folder().join("agent-jive/recordings");
    let recording = |session: &str| {
        let mut files = fs::read_dir(&recordings).unwrap();
        files.find_map(|file| {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name.starts_with(session) && name.ends_with(".vdif")).then_some(path)
        })
    };
    let recorded = |session: &str| {
        let path = recording(session)?;
        Some(fs::metadata(path).unwrap().len())
    };
    until("something is recorded", || {
        recorded("first") > Some(400_000)
    });
    site.lose_power();
    run.wait();
    // It has whole frames only.
    let before = recorded("first").unwrap();
    assert!(before > 400_000, "{before}");
    let frames = frames_in(&recording("first").unwrap());
    assert_eq!(frames, before / SKY_FRAME);

    site.raise_path();
    for host in ["jive", "ef", "jb", "on"] {
        site.start(host);
    }
    for (host, name) in [("jive", "rec"), ("ef", "ef")] {
        until(&format!("the agent knows the end of {name}"), || {
            site.kept("first", host, name)["state"] == "ended"
        });
        let end = site.kept("first", host, name)["end"].clone();
        assert_eq!(end["outcome"], "killed", "{end}");
    }
    let steps = site.room.write("list.script", "list\n");
    let said = site.run_well("list", &["run", &first, "--script", &steps]);
    assert!(said.contains("killed"), "{said}");
    let said = site.run_well("again", &["run", &again, "--json"]);
    let result = read(&said);
    assert_schema(&result, "evlbi.run/1");
    let ef = named(&result, "ef");
    assert_eq!(ef["end"]["outcome"], "finished", "{ef}");
    assert_eq!(number(&ef["result"], "frames"), SKY_FRAMES);
    let rec = &named(&result, "rec")["result"];
    assert_eq!(number(rec, "lost"), 0, "{rec}");
    assert_eq!(
        frames_in(&recording("again").unwrap()),
        number(rec, "frames")
    );
    assert_eq!(recorded("first"), Some(before));
}
