//! Access rules of an agent: nothing without a token, little with one for viewing, and never anything that its operator forbids.

use std::fs;

use evlbi_testkit::Room;
use reqwest::Method;
use serde_json::{Value, json};

use crate::control::support::{Agent, free_ports, has_ended, recv, send, unread};

const COMMANDS: [(&str, &str, &str); 4] = [
    (
        "POST",
        "/api/v1/flows",
        r#"{"id":"x","command":"recv","from":"udp://127.0.0.1:0","to":"null"}"#,
    ),
    ("PATCH", "/api/v1/flows/to", r#"{"revision":1,"rate":"1M"}"#),
    ("POST", "/api/v1/flows/to/stop", "{}"),
    ("DELETE", "/api/v1/flows/to", ""),
];

fn method(name: &str) -> Method {
    name.parse().unwrap()
}

/// No token, another one, or one for viewing: nothing starts, changes or ends.
#[test]
fn tokens_are_needed() {
    let agent = Agent::start("");
    agent.begin(&recv("to", "null"));
    let sights = [
        "/api/v1/about",
        "/api/v1/flows",
        "/api/v1/flows/to",
        "/api/v1/flows/to/result",
        "/api/v1/flows/to/log",
    ];
    let more = [
        "/api/v1/flows/to/course",
        "/api/v1/flows/to/course.csv",
        "/api/v1/events",
        "/api/v1/counters",
        "/metrics",
    ];
    let all = sights
        .iter()
        .chain(&more)
        .map(|path| ("GET", *path, ""))
        .chain(COMMANDS);
    let mut wrong = agent.token("operate");
    wrong.replace_range(0..1, if wrong.starts_with('0') { "1" } else { "0" });
    for (name, path, body) in all {
        let tries = [
            agent.bare(method(name), path),
            agent.bare(method(name), path).bearer_auth(&wrong),
            agent.bare(method(name), path).bearer_auth(""),
            agent
                .bare(method(name), path)
                .basic_auth("operate", Some(agent.token("operate"))),
            agent.bare(
                method(name),
                &format!("{path}?token={}", agent.token("operate")),
            ),
            agent
                .bare(method(name), path)
                .header("cookie", format!("token={}", agent.token("operate"))),
        ];
        for request in tries {
            let reply = agent.send(request.body(body));
            assert_eq!(reply.status, 401, "{name} {path}: {}", reply.body);
        }
    }
    for (name, path, body) in COMMANDS {
        let request = agent
            .bare(method(name), path)
            .bearer_auth(agent.token("watch"));
        let reply = agent.send(request.body(body));
        assert_eq!(reply.status, 403, "{name} {path}: {}", reply.body);
    }
    let request = agent
        .bare(Method::GET, "/api/v1/flows")
        .bearer_auth(agent.token("watch"));
    assert_eq!(agent.send(request).status, 200);
    let flow = agent.flow("to");
    assert_eq!(
        (&flow["state"], &flow["revision"]),
        (&json!("running"), &json!(1))
    );
    assert_eq!(
        agent.get("/api/v1/flows")["flows"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

/// Requests that a page of another site could make a browser send.
#[test]
fn other_sites_cannot_act() {
    let agent = Agent::start("");
    agent.begin(&recv("to", "null"));
    let form = agent
        .bare(Method::POST, "/api/v1/flows/to/stop")
        .header("origin", "https://elsewhere.example")
        .header("content-type", "application/x-www-form-urlencoded")
        .body("{}");
    assert_eq!(agent.send(form).status, 401);
    // Even with a token that it must not have.
    let fetched = agent
        .bare(Method::POST, "/api/v1/flows/to/stop")
        .bearer_auth(agent.token("operate"))
        .header("sec-fetch-site", "cross-site")
        .body("{}");
    assert_eq!(agent.send(fetched).status, 403);
    // Nor may it send a preflight request.
    let asked = agent
        .bare(Method::OPTIONS, "/api/v1/flows/to/stop")
        .header("origin", "https://elsewhere.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization");
    assert_eq!(agent.send(asked).status, 405);
    assert_eq!(agent.flow("to")["state"], "running");
}

/// A recorded start that is replayed starts nothing.
#[test]
fn a_replayed_command_does_nothing() {
    let agent = Agent::start("");
    let flow = recv("to", "null");
    agent.begin(&flow);
    agent.finish("to");
    let said = agent.refused(&flow, 409);
    assert!(said.contains("was used before"), "{said}");
    let stop = agent.ask(Method::POST, "/api/v1/flows/to/stop", &json!({}));
    assert_eq!((stop.status, &stop.body["state"]), (200, &json!("ended")));
    let agent = agent.killed_and_restarted();
    agent.refused(&flow, 409);
}

/// Files outside the directories that the operator named are neither read nor written, whatever their names.
#[test]
fn files_stay_in_the_allowed_directories() {
    let outside = Room::new();
    let secret = outside.write("secret.vdif", "x".repeat(100_000));
    let allowed = Room::new();
    let scan = allowed.write("scan.bin", "x".repeat(100_000));
    let agent = Agent::start(&format!("read = [{:?}]", allowed.folder()));
    let recordings = agent.recording("");
    std::os::unix::fs::symlink(outside.folder(), recordings.join("way")).unwrap();
    std::os::unix::fs::symlink(outside.path("new"), recordings.join("dangling")).unwrap();
    let secret = secret.as_str();
    let key = agent.room.folder().join("key.pem");
    let settings = agent.room.folder().join("agent.toml");
    let settings = settings.canonicalize().unwrap();
    let remedy = format!(
        ": add its directory to `read` in {} and restart the agent",
        settings.display()
    );
    let many = "../".repeat(20);
    let read = [
        secret,
        &format!("{many}{secret}"),
        "way/secret.vdif",
        "../key.pem",
        key.to_str().unwrap(),
        "/etc/passwd",
        "/dev/zero",
        "/proc/self/environ",
        "",
        ".",
        "--help",
    ];
    for source in read {
        let mut flow = send("from", "udp://127.0.0.1:9", "1M");
        flow["source"] = json!(source);
        let said = agent.refused(&flow, 422);
        assert!(
            said.contains("not a file in a directory that flows may read")
                && said.ends_with(&remedy),
            "{source}: {said}"
        );
    }
    for plan in [
        format!("sky:{secret}/Ef"),
        "sky:../agent.toml/Ef".into(),
        "sky:plan".into(),
    ] {
        let mut flow = send("from", "udp://127.0.0.1:9", "1M");
        flow["source"] = json!(plan);
        agent.refused(&flow, 422);
    }
    let write = [
        "../out.vdif",
        "/tmp/out.vdif",
        "way/out.vdif",
        "way/deep/out.vdif",
        "dangling",
        "a/../../out.vdif",
        "a/",
        "",
        ".",
        "..",
        "{station}/../../x",
    ];
    for to in write {
        agent.refused(&recv("to", to), 422);
    }
    assert!(!outside.folder().join("new").exists());
    assert_eq!(fs::read_dir(outside.folder()).unwrap().count(), 1);
    // Existing files are not overwritten.
    fs::write(recordings.join("old.vdif"), "old").unwrap();
    let said = agent.refused(&recv("over", "old.vdif"), 422);
    assert!(said.contains("is not overwritten"), "{said}");
    // A check of flows creates nothing.
    let looked = json!({"flows": [recv("a", "new/one.vdif"), recv("b", "new/one.vdif"), recv("c", "old.vdif")]});
    let found = agent.ask(Method::POST, "/api/v1/check", &looked).body;
    let problems = |place: usize| found["flows"][place]["problems"].to_string();
    assert_eq!(problems(0), "[]", "{found}");
    assert!(problems(1).contains("another flow"), "{found}");
    assert!(problems(2).contains("is not overwritten"), "{found}");
    assert!(!recordings.join("new").exists());
    assert_eq!(
        fs::read_to_string(recordings.join("old.vdif")).unwrap(),
        "old"
    );
    // Allowed flows start.
    let (_unread, to) = unread();
    let mut flow = send("scan", &to, "8M");
    flow["source"] = json!(scan);
    agent.begin(&flow);
    let deep = agent.begin(&recv("deep", "day/one.vdif"));
    assert_eq!(deep["state"], "running", "{deep}");
    assert!(recordings.join("day").is_dir());
}

/// Returns a flow with other options; null removes one.
fn with(mut flow: Value, more: &Value) -> Value {
    let options = flow.as_object_mut().unwrap();
    options.entry("id").or_insert(json!("p"));
    for (name, value) in more.as_object().unwrap() {
        match value {
            Value::Null => drop(options.remove(name)),
            value => drop(options.insert(name.clone(), value.clone())),
        }
    }
    flow
}

/// Targets, ports, rates and numbers: flows that the operator did not allow send nothing.
#[test]
fn limits_of_targets_ports_and_rates_are_enforced() {
    let [free] = free_ports::<1>();
    let port = free.port();
    let (first, last) = (port - 8, port + 1);
    let ports = format!("{first} to {last}");
    let agent = Agent::start(&format!(
        "targets = [\"127.0.0.0/30\"]\nports = \"{first}-{last}\"\nmax-rate = \"100M\"\nmax-flows = 3",
    ));
    for to in [
        "udp://10.1.2.3:2630",
        "udp://127.0.0.9:2630",
        "udp://[::1]:2630",
        "tcp://192.0.2.1:2630",
        "udp://[::ffff:10.1.2.3]:2630",
    ] {
        let said = agent.refused(&send("from", to, "1M"), 422);
        assert!(said.contains("`targets`"), "{to}: {said}");
    }
    let probe = json!({"id": "p", "command": "probe udp", "target": "198.51.100.1:8620", "token": "0123", "rate": "1M"});
    assert!(agent.refused(&probe, 422).contains("`targets`"));
    for from in [
        &format!("udp://127.0.0.1:{}", first - 1),
        &format!("udp://127.0.0.1:{}-{}", last - 1, last + 2),
        "udp://127.0.0.1:53",
    ] {
        let mut flow = recv("to", "null");
        flow["from"] = json!(from);
        let said = agent.refused(&flow, 422);
        assert!(said.contains(&ports), "{from}: {said}");
    }
    // A path is not a port, nor a host that could be among the targets.
    let mut flow = recv("to", "null");
    flow["from"] = json!("unix:///tmp/evlbi");
    assert!(agent.refused(&flow, 422).contains("names no port"));
    let said = agent.refused(&send("from", "unix:///tmp/evlbi", "1M"), 422);
    assert!(said.contains("names no host"), "{said}");
    let respond = json!({"id": "r", "command": "respond", "bind": "127.0.0.1:22", "token": "0123456789", "max-rate": "1M"});
    assert!(agent.refused(&respond, 422).contains(&ports));
    // Without a bind it would listen on its default port.
    let respond = json!({"id": "r", "command": "respond", "token": "0123456789", "max-rate": "1M"});
    assert!(agent.refused(&respond, 422).contains(&ports));
    assert!(agent.refused(&recv("any", "null"), 422).contains(&ports));
    // The same holds for the ports of its tests.
    let respond = json!({"id": "r", "command": "respond", "bind": format!("127.0.0.1:{port}"), "token": "0123456789", "max-rate": "1M"});
    let wide = with(respond.clone(), &json!({"ports": format!("{first}-65535")}));
    assert!(agent.refused(&wide, 422).contains(&ports));
    // Flows without any limit, in each form in which a flow can be fast.
    let target = json!({"target": "127.0.0.1:8620", "token": "0123456789"});
    let unheld = [
        (
            send("from", "udp://127.0.0.1:9", "1M"),
            json!({"rate": null, "max": true}),
        ),
        (
            target.clone(),
            json!({"command": "probe udp", "spacing": "1us"}),
        ),
        (target.clone(), json!({"command": "probe tcp"})),
        (
            target.clone(),
            json!({"command": "probe tcp", "background": "1M"}),
        ),
    ];
    for (flow, more) in unheld {
        let said = agent.refused(&with(flow, &more), 422);
        assert!(said.contains("its option `rate`"), "{more}: {said}");
    }
    let fast = [
        json!({"command": "probe udp", "rate": "1M,10.0G"}),
        json!({"command": "probe udp", "rate": "10M..1.01G:100M"}),
        json!({"command": "probe tcp", "rate": "2M", "streams": "64"}),
        json!({"command": "probe tcp", "rate": "60M", "background": "60M"}),
        json!({"command": "probe latency", "interval": "1us", "size": 1400}),
        json!({"command": "probe capacity", "highest": "0.2G"}),
    ];
    for more in fast {
        agent.refused(&with(target.clone(), &more), 409);
    }
    let (_unread, to) = unread();
    // A rate may have a decimal point.
    let looked = json!({"flows": [send("from", &to, "0.0998G")]});
    let found = agent.ask(Method::POST, "/api/v1/check", &looked).body;
    assert_eq!(found["flows"][0]["rate_bps"], 99_800_000, "{found}");
    assert_eq!(found["flows"][0]["problems"], json!([]), "{found}");
    agent.refused(&send("from", &to, "101M"), 409);
    agent.begin(&send("one", &to, "60M"));
    let said = agent.refused(&send("two", &to, "60M"), 409);
    assert!(said.contains("40Mbit/s is left"), "{said}");
    let more = agent.ask(
        Method::PATCH,
        "/api/v1/flows/one",
        &json!({"revision": 1, "rate": "110M"}),
    );
    assert_eq!(more.status, 409, "{}", more.body);
    agent.begin(&send("two", &to, "40M"));
    let more = agent.ask(
        Method::PATCH,
        "/api/v1/flows/one",
        &json!({"revision": 1, "rate": "61M"}),
    );
    assert_eq!(more.status, 409, "{}", more.body);
    let on = |id: &str, port: u16| {
        with(
            recv(id, "null"),
            &json!({"from": format!("udp://{}:{port}", free.ip())}),
        )
    };
    agent.begin(&on("three", port));
    assert!(
        agent
            .refused(&on("four", port + 1), 409)
            .contains("max-flows")
    );
}

/// Conflicts of flows are found before they start: names and ports that others have.
#[test]
fn conflicts_are_found_beforehand() {
    let agent = Agent::start("");
    let taken = agent.receive(&recv("here", "null"));
    let [free] = free_ports::<1>();
    let free = format!("udp://{free}");
    let on = |id: &str, from: &str| with(recv(id, "null"), &json!({"from": from}));
    let flows = [
        on("here", "udp://127.0.0.1:0"),
        on("there", &taken),
        on("one", &free),
        on("two", &free),
    ];
    let found = agent.ask(Method::POST, "/api/v1/check", &json!({"flows": flows}));
    assert_eq!(found.status, 200, "{}", found.body);
    let problems = |at: usize| found.body["flows"][at]["problems"].to_string();
    assert!(problems(0).contains("was used before"), "{}", problems(0));
    assert!(problems(1).contains("cannot listen on"), "{}", problems(1));
    assert_eq!(problems(2), "[]");
    assert!(problems(3).contains("another flow"), "{}", problems(3));
    assert_eq!(
        agent.get("/api/v1/flows")["flows"].as_array().map(Vec::len),
        Some(1)
    );
}

/// Options are those of the command line, and no others are accepted.
#[test]
fn options_are_the_command_lines() {
    let agent = Agent::start("");
    for (name, value, says) in [
        ("rates", json!("1M"), "no option `rates`"),
        ("force", json!(true), "no option `force`"),
        ("control", json!("/tmp/x"), "no option `control`"),
        ("json", json!(false), "no option `json`"),
        ("help", json!(true), "no option `help`"),
        ("rate", json!("fast"), "fast"),
        ("rate", json!({"a": 1}), "text or a number"),
        ("rate", json!(["1M"]), "text or a number"),
        ("max", json!("yes"), "true or false"),
        ("max", json!(true), "cannot be used with"),
        ("shed", json!("every:0"), "every:0"),
        ("seed", json!("1\u{0}2"), "NUL"),
        ("to", json!("udp://127.0.0.1:2630 --force"), "invalid port"),
    ] {
        let mut flow = send("from", "udp://127.0.0.1:9", "1M");
        flow[name] = value;
        let said = agent.refused(&flow, 422);
        assert!(said.contains(says), "{flow}: {said}");
    }
    for (flow, says) in [
        (
            json!({"id": "x", "command": "agent"}),
            "unknown command `agent`",
        ),
        (json!({"id": "x", "command": "send"}), "required"),
        (
            json!({"id": "../x", "command": "send"}),
            "invalid flow name",
        ),
        (json!({"command": "send"}), "id"),
        (json!([]), "sequence"),
        (
            json!({"id": "x", "command": "respond", "bind": "127.0.0.1:0"}),
            "needs a `token`",
        ),
    ] {
        let said = agent.refused(&flow, 422);
        assert!(said.contains(says), "{flow}: {said}");
    }
    assert_eq!(agent.get("/api/v1/flows")["flows"], json!([]));
}

/// Tokens of tests are neither shown nor on a command line.
#[test]
fn tokens_of_tests_stay_secret() {
    let agent = Agent::start("");
    let secret = "c0ffee-c0ffee-c0ffee";
    let flow = json!({"id": "far", "command": "respond", "bind": "127.0.0.1:0", "token": secret});
    let target = agent.listen(&flow);
    let shown = agent.flow("far");
    let all = format!("{shown}{}{:?}", agent.get("/api/v1/flows"), agent.events());
    assert!(!all.contains(secret), "{all}");
    for process in crate::control::support::processes_in(agent.room.folder()) {
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap();
        assert!(!String::from_utf8_lossy(&line).contains(secret));
    }
    let probe = json!({"id": "near", "command": "probe latency", "target": target, "token": secret, "count": 20, "loss-timeout": "60s"});
    agent.begin(&probe);
    let probe = agent.wait("near", has_ended);
    assert_eq!(probe["end"]["outcome"], "finished", "{probe}");
}
