//! What an agent allows: nothing to who has no token, little to who may watch, and to nobody what its operator forbids.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use evlbi_testkit::until::WATCHDOG;
use evlbi_testkit::{Room, command, until, until_some};
use reqwest::Method;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::{Value, json};

use crate::control::support::{
    Agent, Beside, EVLBI, SKY_FRAMES, free_ports, has_ended, received, recv, send, sky, unread,
};
use crate::result::number;

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

/// No token, another one, or one that may watch: nothing begins, changes or ends.
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

/// What a page of another site could have a browser send.
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
    // And it may not ask whether it may.
    let asked = agent
        .bare(Method::OPTIONS, "/api/v1/flows/to/stop")
        .header("origin", "https://elsewhere.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization");
    assert_eq!(agent.send(asked).status, 405);
    assert_eq!(agent.flow("to")["state"], "running");
}

/// A start that is recorded and sent again starts nothing.
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

/// Files outside the folders that the operator named are neither read nor written, however they are called.
#[test]
fn files_stay_where_they_may_be() {
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
            said.contains("no file in a folder that flows may read"),
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
    // What is there is not written over.
    fs::write(recordings.join("old.vdif"), "old").unwrap();
    let said = agent.refused(&recv("over", "old.vdif"), 422);
    assert!(said.contains("exists already"), "{said}");
    // A flow that is looked at only makes nothing.
    let looked = json!({"flows": [recv("a", "new/one.vdif"), recv("b", "new/one.vdif"), recv("c", "old.vdif")]});
    let found = agent.ask(Method::POST, "/api/v1/check", &looked).body;
    let problems = |place: usize| found["flows"][place]["problems"].to_string();
    assert_eq!(problems(0), "[]", "{found}");
    assert!(problems(1).contains("another flow's"), "{found}");
    assert!(problems(2).contains("exists already"), "{found}");
    assert!(!recordings.join("new").exists());
    assert_eq!(
        fs::read_to_string(recordings.join("old.vdif")).unwrap(),
        "old"
    );
    // What is allowed is done.
    let (_unread, to) = unread();
    let mut flow = send("scan", &to, "8M");
    flow["source"] = json!(scan);
    agent.begin(&flow);
    let deep = agent.begin(&recv("deep", "day/one.vdif"));
    assert_eq!(deep["state"], "running", "{deep}");
    assert!(recordings.join("day").is_dir());
}

/// A flow with other options; those that are null it has not.
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

/// Where, how fast and how much: what the operator did not allow is not sent.
#[test]
fn targets_ports_and_rates_are_held_to() {
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
    // A path is no port, and no host that could be among the targets.
    let mut flow = recv("to", "null");
    flow["from"] = json!("unix:///tmp/evlbi");
    assert!(agent.refused(&flow, 422).contains("names no port"));
    let said = agent.refused(&send("from", "unix:///tmp/evlbi", "1M"), 422);
    assert!(said.contains("names no host"), "{said}");
    let respond = json!({"id": "r", "command": "respond", "bind": "127.0.0.1:22", "token": "0123456789", "max-rate": "1M"});
    assert!(agent.refused(&respond, 422).contains(&ports));
    // Without a bind it would listen on its usual port.
    let respond = json!({"id": "r", "command": "respond", "token": "0123456789", "max-rate": "1M"});
    assert!(agent.refused(&respond, 422).contains(&ports));
    assert!(agent.refused(&recv("any", "null"), 422).contains(&ports));
    // What its tests listen on is held to the same.
    let respond = json!({"id": "r", "command": "respond", "bind": format!("127.0.0.1:{port}"), "token": "0123456789", "max-rate": "1M"});
    let wide = with(respond.clone(), &json!({"ports": format!("{first}-65535")}));
    assert!(agent.refused(&wide, 422).contains(&ports));
    // What nothing holds, in all the ways that a flow can go fast.
    let target = json!({"target": "127.0.0.1:8620", "token": "0123456789"});
    let unheld = [
        (
            send("from", "udp://127.0.0.1:9", "1M"),
            json!({"rate": null}),
        ),
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
        assert!(said.contains("held by its `rate`"), "{more}: {said}");
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
    // A rate is what is written, with its point.
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

/// What stands against flows before they are started: names and ports that others have.
#[test]
fn what_is_taken_is_found_beforehand() {
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
    assert!(problems(3).contains("another flow's"), "{}", problems(3));
    assert_eq!(
        agent.get("/api/v1/flows")["flows"].as_array().map(Vec::len),
        Some(1)
    );
}

/// Options are those of the command line, and nothing slips in beside them.
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
        ("to", json!("udp://127.0.0.1:2630 --force"), "no port"),
    ] {
        let mut flow = send("from", "udp://127.0.0.1:9", "1M");
        flow[name] = value;
        let said = agent.refused(&flow, 422);
        assert!(said.contains(says), "{flow}: {said}");
    }
    for (flow, says) in [
        (
            json!({"id": "x", "command": "agent"}),
            "no command of a flow",
        ),
        (json!({"id": "x", "command": "send"}), "required"),
        (
            json!({"id": "../x", "command": "send"}),
            "no name of a flow",
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

#[test]
fn large_bodies_are_refused() {
    let agent = Agent::start("");
    let mut flow = recv("to", "null");
    flow["from"] = json!("x".repeat(100_000));
    let reply = agent.ask(Method::POST, "/api/v1/flows", &flow);
    assert_eq!(reply.status, 413, "{}", reply.body);
    let long = format!("/api/v1/flows/{}", "x".repeat(40_000));
    let request = agent
        .bare(Method::GET, &long)
        .bearer_auth(agent.token("operate"));
    assert!((400..500).contains(&agent.send(request).status));
    assert_eq!(agent.get("/api/v1/flows")["flows"], json!([]));
}

/// A request that is refused before its body has come does not end the connection: the next one is answered.
#[test]
fn a_connection_outlives_a_refusal() {
    let agent = Agent::start("");
    let mut stream = connect(&agent);
    let token = agent.token("watch");
    let head = |what: &str| {
        format!("{what} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n")
    };
    let start = head("POST /api/v1/flows");
    write!(stream, "{start}Content-Length: 40000\r\n\r\n").unwrap();
    stream.flush().unwrap();
    stream.write_all(&[b' '; 40_000]).unwrap();
    let about = head("GET /api/v1/about");
    write!(stream, "{about}Connection: close\r\n\r\n").unwrap();
    let said = String::from_utf8(until_closed(stream)).unwrap();
    let states: Vec<&str> = said
        .match_indices("HTTP/1.1 ")
        .map(|(place, _)| &said[place..][..12])
        .collect();
    assert_eq!(states, ["HTTP/1.1 403", "HTTP/1.1 200"], "{said}");
}

/// A connection that believes any certificate: what is tested is the other end.
fn connect(agent: &Agent) -> StreamOwned<ClientConnection, TcpStream> {
    let pem = agent.room.read("certificate.pem");
    let mut roots = rustls::RootCertStore::empty();
    let certificate = rustls::pki_types::pem::PemObject::from_pem_slice(&pem).unwrap();
    roots.add(certificate).unwrap();
    let config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(client, dial(agent))
}

/// A connection whose other end ends it; only what never comes takes longer than the watchdog.
fn dial(agent: &Agent) -> TcpStream {
    let stream = TcpStream::connect(agent.address).unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    stream
}

/// Reads until the other end closes.
#[track_caller]
fn until_closed(mut stream: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        // The error where the other end sends no end of TLS, or this end still sends.
        let ends = [ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof];
        assert!(ends.contains(&error.kind()), "it stays open: {error}");
    }
    bytes
}

/// More connections than an agent keeps of those who have shown no token: it closes the oldest.
#[test]
fn slow_and_silent_connections_keep_nobody_out() {
    stay_silent(256, |_, silent| silent.len() == 300);
}

/// More connections than an agent has descriptors: it takes the rest when it has closed those.
#[test]
fn connections_without_number_keep_nobody_out() {
    stay_silent(100, |agent, _| {
        agent.room.text("said").contains("Too many open files")
    });
}

/// Those who say nothing, or say it slowly, are closed; those who have a token are answered meanwhile, and data flows.
#[track_caller]
fn stay_silent(files: usize, are_enough: impl Fn(&Agent, &[TcpStream]) -> bool) {
    // More than clients keep a connection that they may use again.
    let agent = Agent::limited("idle = \"6s\"\n", files);
    let beside = Beside::begin(&agent);
    let mut silent = Vec::new();
    until("there are too many", || {
        silent.push(dial(&agent));
        are_enough(&agent, &silent)
    });
    let token = agent.token("operate");
    let mut head = connect(&agent);
    head.write_all(b"GET /api/v1/flows HTTP/1.1\r\nhost: x\r\n")
        .unwrap();
    let lines = format!(
        "POST /api/v1/flows HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: 1000\r\n\r\n{{"
    );
    let mut body = connect(&agent);
    body.write_all(lines.as_bytes()).unwrap();
    for _ in 0..50 {
        assert_eq!(
            agent.get("/api/v1/flows")["flows"]
                .as_array()
                .unwrap()
                .len(),
            4
        );
    }
    for stream in [&silent[0], &silent[silent.len() - 1]] {
        assert_eq!(until_closed(stream), b"");
    }
    assert_eq!(until_closed(head), b"");
    let mut answer = [0; 12];
    body.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
    beside.end();
}

/// All that is answered forbids others to frame it or to add to it, and comes by TLS alone.
#[test]
fn answers_are_guarded() {
    let agent = Agent::start("");
    let mut plain = dial(&agent);
    plain
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .unwrap();
    let said = until_closed(plain);
    assert!(
        !said.starts_with(b"HTTP"),
        "{}",
        String::from_utf8_lossy(&said)
    );
    for path in [
        "/",
        "/page.js",
        "/api/v1/flows",
        "/api/v1/openapi.json",
        "/nothing",
    ] {
        let mut stream = connect(&agent);
        stream
            .write_all(
                format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes(),
            )
            .unwrap();
        let said = until_closed(stream);
        let said = String::from_utf8_lossy(&said).to_lowercase();
        for guard in [
            "content-security-policy: default-src 'none'",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
        ] {
            assert!(said.contains(guard), "{path}: {said}");
        }
    }
    let document = agent.send(agent.bare(Method::GET, "/api/v1/openapi.json"));
    assert_eq!(
        (document.status, &document.body["openapi"]),
        (200, &json!("3.1.0"))
    );
    assert_eq!(
        document.body["components"]["schemas"]["NewFlow"]["oneOf"]
            .as_array()
            .map(Vec::len),
        Some(9)
    );
    assert_eq!(agent.get("/api/v1/about")["role"], Value::from("agent"));
}

/// A certificate with another fingerprint is refused; the right one is known by its fingerprint alone, when the controller's user has
/// confirmed it. No session file has anything else sent as a token, and no token sent to anybody else.
#[test]
fn another_certificate_is_refused() {
    let agent = Agent::start("");
    let room = Room::new();
    let token = room.write("token", agent.token("operate"));
    let right = agent.ready["fingerprint"].as_str().unwrap();
    let wrong = format!(
        "{}{}",
        if right.starts_with('0') { "1" } else { "0" },
        &right[1..]
    );
    let check = |name: &str, fingerprint: &str, more: &str, trust: bool| {
        let host = format!(
            "name = \"one\"\n[[host]]\nname = \"ef\"\nagent = \"https://{}\"\nfingerprint = \"{fingerprint}\"\n{more}\n",
            agent.address
        );
        let session = room.write("session.toml", host);
        let mut run = command(EVLBI);
        run.args(["run", "--check", &session, "--dir", &room.path(name)]);
        run.env("EVLBI_TOKEN", agent.token("operate"));
        if trust {
            run.args(["--trust", "ef"]);
        }
        let output = run.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    };
    let with_token = format!("token-file = {token:?}");
    let (is_well, said) = check("one", &wrong, &with_token, true);
    let refused = format!("its certificate has the fingerprint {right}, not {wrong}");
    assert!(!is_well && said.contains(&refused), "{said}");
    // Neither a file's token nor the environment's, until the user says so: once.
    for more in [with_token.as_str(), ""] {
        let (is_well, said) = check("two", right, more, false);
        assert!(!is_well && said.contains("give --trust ef once"), "{said}");
    }
    let (is_well, said) = check("two", right, &with_token, true);
    assert!(is_well, "{said}");
    for more in [with_token.as_str(), ""] {
        let (is_well, said) = check("two", right, more, false);
        assert!(is_well, "{said}");
    }
    // Other secrets, of whatever agent, are no tokens.
    let secret = "correct-horse-battery-staple";
    for text in [
        secret,
        "0123456789abcdef",
        &"x".repeat(64),
        &format!("{secret}\n{}", agent.token("watch")),
    ] {
        let file = room.write("secret", text);
        let (is_well, said) = check("two", right, &format!("token-file = {file:?}"), false);
        assert!(
            !is_well && said.contains("holds no agent's token"),
            "{said}"
        );
        assert!(!said.contains(secret), "{said}");
    }
    // The token of a folder is for its own agent, and lies in it.
    let mine = format!("folder = {:?}", agent.room.folder());
    let (is_well, said) = check("two", &wrong, &mine, true);
    assert!(
        !is_well && said.contains("is not that of the agent of its `folder`"),
        "{said}"
    );
    fs::create_dir_all(room.path("fake/tokens")).unwrap();
    room.write("fake/certificate.pem", agent.room.read("certificate.pem"));
    std::os::unix::fs::symlink(&token, room.path("fake/tokens/operate")).unwrap();
    let fake = format!("folder = {:?}", room.path("fake"));
    let (is_well, said) = check("two", right, &fake, false);
    assert!(
        !is_well && said.contains("is a link out of its folder"),
        "{said}"
    );
}

/// The next start replaces a token that was removed, and the old one opens nothing any more; the others stay.
#[test]
fn a_token_that_is_removed_is_made_anew() {
    let agent = Agent::start("");
    let [old, watch] = ["operate", "watch"].map(|role| agent.token(role));
    fs::remove_file(agent.room.path("tokens/operate")).unwrap();
    let agent = agent.killed_and_restarted();
    assert_eq!(agent.token("watch"), watch);
    assert_ne!(agent.token("operate"), old);
    for (token, status) in [(&old, 401), (&watch, 200), (&agent.token("operate"), 200)] {
        let request = agent.bare(Method::GET, "/api/v1/flows").bearer_auth(token);
        assert_eq!(agent.send(request).status, status);
    }
}

/// What others could write into a folder, an agent must not believe.
#[test]
fn a_folder_that_others_may_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    for mode in [0o770, 0o702] {
        let room = Room::new();
        fs::set_permissions(room.folder(), fs::Permissions::from_mode(mode)).unwrap();
        let output = command(EVLBI)
            .args(["agent", "--bind", "127.0.0.1:0", "--dir"])
            .arg(room.folder())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains("others may write to"),
            "{said}"
        );
        assert_eq!(fs::read_dir(room.folder()).unwrap().count(), 0);
    }
}

/// What Prometheus reads are the flows' own counters; events are given from where somebody has read to.
#[test]
fn counters_and_events_are_given_to_other_programs() {
    let agent = Agent::start("name = \"ef\"\n");
    let to = agent.receive(&recv("to", "null"));
    let mut sender = sky("from", &to, "1M");
    sender["shed"] = json!("every:5");
    agent.begin(&sender);
    agent.wait("from", has_ended);
    let sent = agent.flow("from")["status"]["sending"].clone();
    assert_eq!(
        ["offered", "sent", "shed"].map(|count| number(&sent, count)),
        [SKY_FRAMES, SKY_FRAMES - 15, 15]
    );
    let all = number(&sent, "sent");
    agent.wait("to", |flow| received(flow, "unique") == all);
    agent.finish("to");
    let came = agent.flow("to")["status"]["receiving"][0].clone();
    let request = agent
        .bare(Method::GET, "/metrics")
        .bearer_auth(agent.token("watch"));
    let text = agent.send(request).body.as_str().unwrap().to_owned();
    assert!(text.ends_with("# EOF\n"), "{text}");
    // Where the interface is, and described with it.
    let same = agent.get("/api/v1/metrics").as_str().unwrap().to_owned();
    let counters = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.contains("_total"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(counters(&same), counters(&text));
    let document = agent.get("/api/v1/openapi.json");
    assert!(document["paths"]["/api/v1/metrics"]["get"].is_object());
    let value = |name: &str, flow: &str| -> f64 {
        let line = format!("evlbi_{name}{{host=\"ef\",flow=\"{flow}\"}} ");
        let mut found = text.lines().filter_map(|text| text.strip_prefix(&line));
        let value = found.next().unwrap_or_else(|| panic!("no {line}: {text}"));
        assert_eq!(found.next(), None, "{line} twice");
        value.parse().unwrap()
    };
    for (name, count) in [
        ("sent_datagrams", "sent"),
        ("shed_datagrams", "shed"),
        ("not_sent_datagrams", "not_sent"),
        ("sent_data_bytes", "bytes"),
    ] {
        let value = value(&format!("{name}_total"), "from");
        assert_eq!(Some(value), sent[count].as_f64(), "{name}");
    }
    for (name, count) in [
        ("received_datagrams", "received"),
        ("expected_datagrams", "expected"),
        ("lost_host_datagrams", "host_lost"),
        ("lost_network_datagrams", "network_lost"),
        ("lost_unattributed_datagrams", "unattributed"),
        ("duplicate_datagrams", "duplicates"),
        ("reordered_datagrams", "reordered"),
        ("foreign_datagrams", "foreign"),
        ("received_data_bytes", "bytes"),
    ] {
        let value = value(&format!("{name}_total"), "to");
        assert_eq!(Some(value), came[count].as_f64(), "{name}");
    }
    assert!(
        text.lines()
            .any(|line| line == "evlbi_flows{state=\"ended\"} 2.0"),
        "{text}"
    );
    // Each event once, in order, from any place on.
    let events = |after: u64| -> Vec<u64> {
        let found = agent.get(&format!("/api/v1/events?after={after}"));
        let events = found["events"].as_array().unwrap();
        events.iter().map(|event| number(event, "id")).collect()
    };
    let ids = events(0);
    assert!(ids.len() > 3 && ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    for read in [2, ids.len()] {
        let rest = events(ids[read - 1]);
        // More may happen meanwhile.
        assert!(rest.starts_with(&ids[read..]), "{rest:?} of {ids:?}");
        assert!(events(0)[read..].starts_with(&rest), "{rest:?} of {ids:?}");
    }
    // The table of a course says what the course says: in all, what the flow counted.
    let (span, course) = until_some("the course has all", || {
        let now = agent.get("/api/v1/about")["time"].as_f64().unwrap() as u64;
        let before = agent.get("/api/v1/flows/to/course?from=-600");
        assert!(
            before["time"]
                .as_array()
                .is_some_and(|time| !time.is_empty())
        );
        assert_eq!(
            before["step_s"], 1,
            "of the last ten minutes, not since 1969"
        );
        let span = format!("from={}&to={now}", now - 600);
        let course = agent.get(&format!("/api/v1/flows/to/course?{span}"));
        let expected = course["expected"].as_array().unwrap().iter();
        let all: u64 = expected.filter_map(Value::as_u64).sum();
        (all == number(&came, "expected")).then_some((span, course))
    });
    let request = agent
        .bare(Method::GET, &format!("/api/v1/flows/to/course.csv?{span}"))
        .bearer_auth(agent.token("watch"));
    let table = agent.send(request).body.as_str().unwrap().to_owned();
    let mut lines = table
        .lines()
        .map(|line| line.split(',').collect::<Vec<&str>>());
    let head = lines.next().unwrap();
    let rows: Vec<Vec<&str>> = lines.collect();
    for name in ["rate_bps", "expected", "lost"] {
        let at = head.iter().position(|head| *head == name).unwrap();
        let column: Vec<Option<f64>> = rows.iter().map(|row| row[at].parse().ok()).collect();
        let values = course[name].as_array().unwrap().iter();
        let values: Vec<Option<f64>> = values
            .map(|value| value.as_f64().map(f64::round_ties_even))
            .collect();
        assert_eq!(column, values, "{name}");
    }
}
