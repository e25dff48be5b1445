//! Flows from their start to their end, with and without the agent that started them.

use std::fs;
use std::io::Write;
use std::net::TcpStream;

use evlbi_testkit::{Room, Running, command, disk, name, until, until_some};
use evlbi_wire::pattern;
use nix::sys::signal::{Signal, kill};
use reqwest::Method;
use serde_json::{Value, json};

use crate::control::support::{
    Agent, EVLBI, SKY_FRAME, SLOW, endless, free_ports, has_ended, processes_in, received, recv,
    send, sent, unread,
};
use crate::result::number;

/// Neither an agent nor its flows read their user's config file, which is invalid here.
#[test]
fn a_flow_has_no_defaults_of_a_user() {
    let agent = Agent::configured("[rates]\nsned = \"1G\"");
    let (_socket, to) = unread();
    agent.begin(&endless("from", &to, SLOW));
    agent.wait("from", |flow| sent(flow, "sent") > 0);
    agent.finish("from");
    let bare = json!({"id": "bare", "command": "send", "source": "pattern:8032", "to": to});
    let refused = agent.refused(&bare, 422);
    assert!(refused.contains("--rate, or --max"), "{refused}");
}

/// Rate and shed policy change while the data flows, and both endpoints' results agree on the data sent and shed.
#[test]
fn a_flow_is_started_changed_and_stopped() {
    let agent = Agent::start("");
    let to = agent.receive(&recv("to", "scan.vdif"));
    assert_eq!(agent.flow("to")["state"], "running");
    agent.begin(&endless("from", &to, SLOW));
    // Fewer than eight datagrams make no stream before they end.
    let flow = agent.wait("from", |flow| sent(flow, "sent") > 8);
    assert_eq!(sent(&flow, "rate_asked_bps"), 32_000);
    let path = "/api/v1/flows/from";
    let change = json!({"revision": 1, "rate": "64k", "shed": "every:2"});
    let changed = agent.ask(Method::PATCH, path, &change);
    assert_eq!(
        (changed.status, &changed.body["revision"]),
        (200, &json!(2)),
        "{}",
        changed.body
    );
    assert_eq!(changed.body["options"]["shed"], "every:2");
    let flow = agent.wait("from", |flow| sent(flow, "shed") > 1);
    assert_eq!(sent(&flow, "rate_asked_bps"), 64_000);
    assert_eq!(flow["status"]["sending"]["shed_policy"], "every:2");
    // A replay of the same command: it was meant for the flow in its earlier state.
    let again = agent.ask(Method::PATCH, path, &change);
    assert_eq!(again.status, 409, "{}", again.body);
    let back = agent.ask(Method::PATCH, path, &json!({"revision": 2, "shed": "none"}));
    assert_eq!(back.status, 200, "{}", back.body);
    let before = agent.wait("from", |flow| {
        flow["status"]["sending"]["shed_policy"] == "none"
    });
    // The last number is sent, not shed.
    agent.wait("from", |flow| sent(flow, "sent") > sent(&before, "sent"));
    let result = agent.finish("from");
    // All sent data have arrived when the receiver reports so.
    let all = number(&result, "sent");
    agent.wait("to", |flow| received(flow, "unique") == all);
    let received = agent.finish("to");
    let sheds = result["shedding_before"].as_array().unwrap().iter();
    let sheds: Vec<&Value> = sheds.chain([&result["shedding"]]).collect();
    let policies: Vec<&str> = sheds
        .iter()
        .map(|shed| shed["policy"].as_str().unwrap())
        .collect();
    assert_eq!(policies, ["none", "every:2", "none"]);
    let counts = |shed: &Value| [number(shed, "offered"), number(shed, "shed")];
    let [[begun, none], [offered, shed], [ended, nothing]] = [0, 1, 2].map(|at| counts(sheds[at]));
    assert!(begun > 1 && ended > 0, "{sheds:?}");
    assert_eq!((none, nothing), (0, 0), "{sheds:?}");
    // Every second one, from some position on.
    assert!(
        (offered / 2..=offered.div_ceil(2)).contains(&shed),
        "{sheds:?}"
    );
    assert_eq!(number(&result, "shed"), shed);
    assert_eq!(number(&received, "unique"), all);
    assert_eq!(
        number(&received, "lost"),
        shed,
        "what is shed uses up its numbers"
    );
    assert_eq!(number(&received, "host_lost"), 0);
    // The status of ended flows matches their results.
    let last = agent.flow("from")["status"]["sending"].clone();
    for count in ["offered", "sent", "shed", "not_sent"] {
        assert_eq!(last[count], result[count], "{count} of {last}");
    }
    let to = agent.flow("to");
    let last = to["status"]["receiving"][0].clone();
    for count in ["expected", "received", "unique", "lost"] {
        assert_eq!(last[count], received[count], "{count} of {last}");
    }
    assert_eq!(to["recording"], "scan.vdif");
    let recorded = fs::metadata(agent.recording("scan.vdif")).unwrap().len();
    assert_eq!(recorded, number(&received, "frames") * SKY_FRAME);
    let events = agent.events();
    for said in [
        "from: changed: rate 64k, shed every:2",
        "from: changed: shed none",
        "from: stopped",
        "to: stopped",
    ] {
        assert!(
            events.iter().any(|event| event == said),
            "{said}: {events:?}"
        );
    }
    until_some("the time series of a flow", || {
        let course = agent.get("/api/v1/flows/to/course");
        let seconds = course["rate_bps"].as_array().unwrap().clone();
        seconds
            .iter()
            .find(|rate| rate.as_f64() > Some(0.0))
            .cloned()
    });
}

/// Invalid changes are refused with a reason, and change nothing.
#[test]
fn changes_that_make_no_sense_are_refused() {
    let agent = Agent::start("");
    let to = agent.receive(&recv("to", "null"));
    agent.begin(&send("from", &to, "20M"));
    for (flow, change, status, says) in [
        ("from", json!({"revision": 1, "rate": "fast"}), 422, "fast"),
        (
            "from",
            json!({"revision": 1, "shed": "every:0"}),
            422,
            "every:0",
        ),
        (
            "from",
            json!({"revision": 1, "shed": "threads:7"}),
            422,
            "has none of these",
        ),
        ("from", json!({"revision": 1}), 422, "nothing to change"),
        ("from", json!({"rate": "30M"}), 422, "revision"),
        (
            "from",
            json!({"revision": 1, "colour": "red"}),
            422,
            "colour",
        ),
        (
            "to",
            json!({"revision": 1, "rate": "30M"}),
            422,
            "accepts no changes",
        ),
        (
            "nobody",
            json!({"revision": 1, "rate": "30M"}),
            404,
            "no flow nobody",
        ),
    ] {
        let reply = agent.ask(Method::PATCH, &format!("/api/v1/flows/{flow}"), &change);
        assert_eq!(reply.status, status, "{change}: {}", reply.body);
        assert!(
            reply.body["error"].as_str().unwrap().contains(says),
            "{change}: {}",
            reply.body
        );
    }
    assert_eq!(agent.flow("from")["revision"], 1);
    agent.stop("from");
    agent.wait("from", has_ended);
    let late = agent.ask(
        Method::PATCH,
        "/api/v1/flows/from",
        &json!({"revision": 1, "rate": "30M"}),
    );
    assert_eq!(late.status, 409, "{}", late.body);
}

/// A flow that fails reports why; one that ends on its own has finished.
#[test]
fn the_end_of_a_flow_is_reported() {
    let agent = Agent::start("");
    let (_unread, to) = unread();
    let mut short = send("short", &to, "8M");
    short["duration"] = json!("300ms");
    agent.begin(&short);
    assert_eq!(agent.wait("short", has_ended)["end"]["outcome"], "finished");
    let to = agent.receive(&recv("one", "null"));
    let mut two = recv("two", "null");
    two["from"] = json!(to);
    agent.begin(&two);
    let failed = agent.wait("two", has_ended);
    assert_eq!(failed["end"]["outcome"], "failed", "{failed}");
    let why = failed["end"]["message"].as_str().unwrap();
    assert!(why.contains("in use"), "{why}");
    let log = agent.ask(Method::GET, "/api/v1/flows/two/log", &Value::Null);
    assert!(log.body.as_str().unwrap().contains(why), "{}", log.body);
    let killed = agent.ask(
        Method::POST,
        "/api/v1/flows/one/stop",
        &json!({"kill": true}),
    );
    assert_eq!(killed.status, 200, "{}", killed.body);
    let killed = agent.wait("one", has_ended);
    assert_eq!(killed["end"]["outcome"], "killed");
    assert_eq!(killed["end"]["message"], "killed by signal 9");
    let none = agent.ask(Method::GET, "/api/v1/flows/one/result", &Value::Null);
    assert_eq!(none.status, 404, "{}", none.body);
}

/// A flow that has ended can be forgotten; its recording and its name stay.
#[test]
fn a_flow_is_forgotten_but_not_its_recording() {
    let agent = Agent::start("");
    let to = agent.receive(&recv("to", "scan.vdif"));
    agent.begin(&endless("from", &to, SLOW));
    agent.wait("to", |flow| received(flow, "bytes") > 0);
    let early = agent.ask(Method::DELETE, "/api/v1/flows/to", &Value::Null);
    assert_eq!(early.status, 409, "{}", early.body);
    for flow in ["from", "to"] {
        agent.finish(flow);
        let done = agent.ask(
            Method::DELETE,
            &format!("/api/v1/flows/{flow}"),
            &Value::Null,
        );
        assert_eq!(done.status, 204);
    }
    assert_eq!(
        agent
            .ask(Method::GET, "/api/v1/flows/to", &Value::Null)
            .status,
        404
    );
    assert!(agent.recording("scan.vdif").exists());
    let said = agent.refused(&recv("to", "other.vdif"), 409);
    assert!(said.contains("was used before"), "{said}");
    let agent = agent.killed_and_restarted();
    agent.refused(&recv("to", "other.vdif"), 409);
    assert_eq!(agent.get("/api/v1/flows")["flows"], json!([]));
}

/// The agent is killed while data flows. The flow continues, nothing is lost, and the next agent takes it over.
#[test]
fn flows_outlive_their_agent() {
    let agent = Agent::start("");
    let to = agent.receive(&recv("to", "scan.vdif"));
    agent.begin(&endless("from", &to, SLOW));
    agent.wait("to", |flow| received(flow, "bytes") > 0);
    let before = sent(&agent.flow("from"), "sent");
    let agent = agent.killed_and_restarted();
    assert_eq!(number(&agent.ready, "running"), 2);
    let flow = agent.wait("from", |flow| {
        flow["state"] == "running" && sent(flow, "sent") > before
    });
    assert_eq!(flow["revision"], 1);
    let change = json!({"revision": 1, "shed": "random:50%"});
    let reply = agent.ask(Method::PATCH, "/api/v1/flows/from", &change);
    assert_eq!(reply.status, 200, "{}", reply.body);
    agent.wait("from", |flow| sent(flow, "shed") > 0);
    let sent = agent.finish("from");
    let all = number(&sent, "sent");
    agent.wait("to", |flow| received(flow, "unique") == all);
    let received = agent.finish("to");
    assert_eq!(
        number(&received, "lost"),
        number(&sent, "shed") - trailing(&sent, &received)
    );
    // Flows that end while no agent runs are known to the next one all the same.
    agent.begin(&recv("more", "null"));
    let mut short = recv("short", "null");
    short["from"] = json!("tcp://127.0.0.1:0");
    // It ends with its connection.
    let mut connection = TcpStream::connect(agent.listen(&short)).unwrap();
    let frames = pattern::frames(8032, 1_700_000_000, pattern::frame_rate(8000), 10).unwrap();
    connection.write_all(&frames).unwrap();
    let folder = agent.room.folder().to_owned();
    let agent = {
        let mut agent = agent;
        agent.kill();
        assert_eq!(processes_in(&folder).len(), 2);
        drop(connection);
        until("the short flow ends", || processes_in(&folder).len() == 1);
        kill(processes_in(&folder)[0], Signal::SIGKILL).unwrap();
        agent.restarted()
    };
    assert_eq!(agent.wait("short", has_ended)["end"]["outcome"], "finished");
    let killed = agent.wait("more", has_ended);
    assert_eq!(killed["end"]["outcome"], "killed", "{killed}");
    assert_eq!(agent.flow("to")["end"]["outcome"], "stopped");
}

/// Shed numbers at the end of a stream: their absence cannot be detected.
fn trailing(sent: &Value, received: &Value) -> u64 {
    number(sent, "last_seq") - number(received, "last_seq")
}

/// An agent stops at once on either signal, and its flows continue.
#[test]
fn an_agent_stops_on_a_signal() {
    let mut agent = Agent::start("");
    agent.listen(&recv("to", "null"));
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let status = agent.end_by(signal);
        assert_eq!(status.code(), Some(0), "{signal}");
        assert_eq!(processes_in(agent.room.folder()).len(), 1, "{signal}");
        agent = agent.restarted();
        agent.wait("to", |flow| flow["state"] == "running");
    }
    let ends = agent.events();
    let ends = ends
        .iter()
        .filter(|event| *event == "agent: the agent stops");
    assert_eq!(ends.count(), 2);
}

/// Of flows that record to one file one records, and the others report which file it is.
#[test]
fn a_file_has_one_flow() {
    let agent = Agent::start("");
    // All at once: most are refused before they start, but any may be detected by the lock of the file alone.
    let begin = |name| agent.ask(Method::POST, "/api/v1/flows", &recv(name, "same.vdif"));
    let answers = std::thread::scope(|scope| {
        let asked = ["a", "b", "c", "d"].map(|name| (name, scope.spawn(move || begin(name))));
        asked.map(|(name, asked)| (name, asked.join().unwrap()))
    });
    let mut recording = 0;
    for (name, answer) in answers {
        let why = if answer.status == 201 {
            let is_known = |flow: &Value| {
                let listens = |all: &Value| all.as_array().is_some_and(|all| !all.is_empty());
                has_ended(flow) || listens(&flow["status"]["listening"])
            };
            let flow = agent.wait(name, is_known);
            if !has_ended(&flow) {
                recording += 1;
                continue;
            }
            assert_eq!(flow["end"]["outcome"], "failed");
            flow["end"]["message"].clone()
        } else {
            answer.body["error"].clone()
        };
        assert!(why.as_str().unwrap().contains("same.vdif"), "{why}");
    }
    assert_eq!(recording, 1);
}

/// Two agents would fight over the flows of a directory.
#[test]
fn a_directory_has_one_agent() {
    let agent = Agent::start("");
    let second = command(EVLBI)
        .args(["agent", "--bind", "127.0.0.1:0", "--dir"])
        .arg(agent.room.folder())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(
        !second.status.success() && said.contains("another agent uses"),
        "{said}"
    );
    // The directory still names the first.
    let lock = agent.room.text("lock");
    assert!(!lock.trim().is_empty(), "{lock}");
}

/// An agent is killed while it starts flows: one whose process lives but does not listen yet is found all the same and can be
/// stopped, and the name of one that was not started can be used.
#[test]
fn flows_outlive_an_agent_that_is_killed_while_it_starts_them() {
    let mut agent = Agent::start("");
    agent.listen(&recv("model", "null"));
    agent.kill();
    let flows = agent.room.folder().join("flows");
    // Left by an agent that is killed while it starts a flow.
    fs::create_dir(flows.join(".new-half")).unwrap();
    let mut processes = Vec::new();
    for name in ["late", "stuck"] {
        let folder = flows.join(name);
        fs::create_dir(&folder).unwrap();
        let kept = agent.room.text("flows/model/flow.json");
        let mut kept: Value = serde_json::from_str(&kept).unwrap();
        kept["flow"]["id"] = json!(name);
        fs::write(folder.join("flow.json"), kept.to_string()).unwrap();
        let log = fs::File::create(folder.join("log")).unwrap();
        log.try_lock().unwrap();
        assert!(
            command("mkfifo")
                .arg(folder.join("go"))
                .status()
                .unwrap()
                .success()
        );
        let line = "read word < go; exec \"$0\" recv udp://127.0.0.1:0 --to null --json --control control > result.json";
        let mut shell = command("sh");
        shell
            .args(["-c", line, EVLBI])
            .current_dir(&folder)
            .stderr(log);
        processes.push(Running(shell.spawn().unwrap()));
    }
    let agent = agent.restarted();
    assert!(!flows.join(".new-half").exists());
    assert_eq!(agent.flow("late")["state"], "starting");
    assert_eq!(agent.flow("stuck")["state"], "starting");
    fs::write(flows.join("late/go"), "go\n").unwrap();
    agent.wait("late", |flow| flow["state"] == "running");
    let result = agent.finish("late");
    assert_eq!(number(&result, "unique"), 0, "{result}");
    let killed = agent.ask(
        Method::POST,
        "/api/v1/flows/stuck/stop",
        &json!({"kill": true}),
    );
    assert_eq!(killed.status, 200, "{}", killed.body);
    processes[1].wait();
    let ended = agent.wait("stuck", has_ended);
    assert_eq!(ended["end"]["outcome"], "killed", "{ended}");
    agent.begin(&recv("half", "null"));
}

/// A recording ends before its disk is full, with an outcome and a reason; its counts are kept, and an agent that is restarted on a full
/// disk knows them.
#[test]
fn a_full_disk_ends_recordings_with_a_reason() {
    disk::small(12, name!(), |small| {
        let room = Room::within(small);
        room.write("agent.toml", "min-free = \"8MiB\"\n");
        let agent = Agent::open(room);
        let to = agent.receive(&recv("rec", "rec.vdif"));
        agent.receive(&recv("count", "null"));
        agent.begin(&endless("from", &to, "1M"));
        agent.wait("rec", |flow| received(flow, "unique") > 8);
        disk::fill(&small.join("other"), 6 << 20);
        let flow = agent.wait("rec", has_ended);
        assert_eq!(flow["end"]["outcome"], "full", "{flow}");
        let why = flow["end"]["message"].as_str().unwrap();
        assert!(
            why.contains("the disk is full") && why.contains("min-free"),
            "{why}"
        );
        let result = agent.get("/api/v1/flows/rec/result");
        assert_eq!(result["ended"], "stopped");
        // Flows that do not record continue.
        assert_eq!(agent.flow("count")["state"], "running");
        assert_eq!(agent.flow("from")["state"], "running");
        let said = agent.refused(&recv("more", "more.vdif"), 422);
        assert!(said.contains("free for recordings"), "{said}");
        disk::fill(&small.join("rest"), 0);
        let agent = agent.killed_and_restarted();
        let flow = agent.flow("rec");
        assert_eq!(flow["end"]["outcome"], "full", "{flow}");
        assert_eq!(received(&flow, "unique"), number(&result, "unique"));
    });
}

/// Two stations share a stream: flows correlate both of it, with a channel table of their own, and send and record one of them alone.
#[test]
fn flows_select_stations_of_a_shared_stream() {
    let agent = Agent::start("");
    let recordings = agent.recording("");
    let plan = "duration = 0.5\nsample_rate = 4e6\nedv = 1\ncorrelation = 0.5\n[[station]]\nname = \"Ef\"\n[[station]]\nname = \"Jb\"\n";
    fs::write(recordings.join("plan.toml"), plan).unwrap();
    for words in [
        &["sky", "plan.toml", "--out", "."][..],
        &[
            "join",
            "Ef.vdif",
            "Jb.vdif",
            "--to",
            "shared.vdif",
            "--threads",
        ],
    ] {
        let done = command(EVLBI).args(words).current_dir(&recordings).output();
        let done = done.unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    let [free] = free_ports();
    let to = format!("udp://{free}");
    let row = |megahertz: f64| json!([{"frequency_mhz": megahertz, "sideband": "U", "polarisation": "L"}]);
    let correlate = |table: Value| {
        json!({
            "id": "fringes", "command": "correlate", "live": true, "idle": "1s", "channels": 64,
            "files": [format!("{to}#station=Jb"), format!("{to}#station=Ef&thread=0")], "channel-table": table,
        })
    };
    let refused = agent.refused(&correlate(row(-1.0)), 422);
    assert!(
        refused.contains("`channel-table`: invalid frequency -1 MHz"),
        "{refused}"
    );
    let refused = agent.refused(&correlate(json!([{"frequency": 1}])), 422);
    assert!(refused.contains("unknown field `frequency`"), "{refused}");
    agent.listen(&correlate(row(1642.49)));
    agent.begin(&json!({"id": "all", "command": "send", "source": "shared.vdif", "to": to}));
    let ended = agent.wait("fringes", has_ended);
    assert_eq!(ended["end"]["outcome"], "finished", "{ended}");
    let result = agent.get("/api/v1/flows/fringes/result");
    let baseline = &result["baselines"][0];
    assert_eq!(baseline["stations"], json!(["Jb", "Ef"]), "{result}");
    assert!(baseline["snr"].as_f64() > Some(20.0), "{baseline}");
    assert_eq!(baseline["bands"][0]["polarisations"], "LL", "{baseline}");

    let receive = json!({"id": "one", "command": "recv", "from": "udp://127.0.0.1:0#station=Jb", "to": "one.vdif", "idle": "1s"});
    let to = agent.receive(&receive);
    agent.begin(&json!({"id": "shared", "command": "send", "source": "shared.vdif", "to": to}));
    agent.wait("one", has_ended);
    let recorded = fs::read(agent.recording("one.vdif")).unwrap();
    assert!(recorded == fs::read(recordings.join("Jb.vdif")).unwrap());
    let receive = json!({"id": "two", "command": "recv", "from": "udp://127.0.0.1:0", "to": "two.vdif", "idle": "1s"});
    let to = agent.receive(&receive);
    agent.begin(
        &json!({"id": "alone", "command": "send", "source": "shared.vdif#station=Ef", "to": to}),
    );
    agent.wait("two", has_ended);
    let recorded = fs::read(agent.recording("two.vdif")).unwrap();
    assert!(recorded == fs::read(recordings.join("Ef.vdif")).unwrap());
}
