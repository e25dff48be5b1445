//! Connections to an agent that are slow, silent, too many or too long, and the headers that protect each answer.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use evlbi_testkit::until;
use evlbi_testkit::until::WATCHDOG;
use reqwest::Method;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::{Value, json};

use crate::control::support::{Agent, Beside, recv};

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

/// A request that is refused before its body has arrived does not end the connection: the next one is answered.
#[test]
fn a_connection_outlives_a_refusal() {
    let agent = Agent::start("");
    let mut stream = connect(&agent);
    let token = agent.token("watch");
    let head = |what: &str| {
        format!("{what} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n")
    };
    for refused in ["POST /api/v1/flows", "PUT /api/v1/flows", "POST /nowhere"] {
        let start = head(refused);
        write!(stream, "{start}Content-Length: 40000\r\n\r\n").unwrap();
        stream.flush().unwrap();
        stream.write_all(&[b' '; 40_000]).unwrap();
    }
    let about = head("GET /api/v1/about");
    write!(stream, "{about}Connection: close\r\n\r\n").unwrap();
    let said = String::from_utf8(until_closed(stream)).unwrap();
    let states: Vec<&str> = said
        .match_indices("HTTP/1.1 ")
        .map(|(place, _)| &said[place..][..12])
        .collect();
    let expected = [403, 405, 404, 200].map(|status| format!("HTTP/1.1 {status}"));
    assert_eq!(states, expected, "{said}");
}

/// Connects to an agent and accepts its own certificate.
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

/// Opens a connection that the agent is to close; only data that never arrive take longer than the watchdog.
fn dial(agent: &Agent) -> TcpStream {
    let stream = TcpStream::connect(agent.address).unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    stream
}

/// Reads until the agent closes.
#[track_caller]
fn until_closed(mut stream: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        // An error if the agent sends no end of TLS, or if this end still sends.
        let ends = [ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof];
        assert!(ends.contains(&error.kind()), "it stays open: {error}");
    }
    bytes
}

/// More unauthenticated connections than an agent keeps: it closes the oldest.
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

/// Clients that send nothing, or send slowly, are closed; meanwhile clients with a token are answered, and data flows.
#[track_caller]
fn stay_silent(files: usize, are_enough: impl Fn(&Agent, &[TcpStream]) -> bool) {
    // More than clients keep for reuse.
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

/// All answers forbid framing and added content, and are sent by TLS alone.
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
