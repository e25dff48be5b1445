//! The page of the demonstration: its stations are there while it lasts, and nothing of it is left behind.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::control::support::{EVLBI, PATIENCE};

#[test]
fn the_demonstration_shows_its_stations() {
    let folder = tempfile::tempdir().unwrap();
    let mut demo = Command::new(EVLBI)
        .args(["demo", "--keep", "--duration", "2s", "--stations", "3"])
        .args(["--rate", "16M"])
        .env("TMPDIR", folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(demo.stderr.take().unwrap()).lines();
    let line = said.by_ref().map_while(Result::ok);
    let url = line
        .take(2)
        .find_map(|line| Some(line.split_once("https://")?.1.to_owned()))
        .expect("an address");
    let (address, token) = url.split_once("/#token=").unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .tls_danger_accept_invalid_certs(true)
        .build()
        .unwrap();
    let flow = || -> Value {
        let asked = client.get(format!("https://{address}/api/v1/flows/correlator"));
        let text = runtime.block_on(async {
            let answer = asked.bearer_auth(token).send().await.unwrap();
            answer.text().await.unwrap()
        });
        serde_json::from_str(&text).unwrap()
    };
    let begun = Instant::now();
    let has_fringes = |flow: &Value| {
        let baselines = flow["status"]["baselines"].as_array();
        baselines.is_some_and(|baselines| baselines.len() == 3)
    };
    while !has_fringes(&flow()) {
        assert!(begun.elapsed() < PATIENCE, "{}", flow());
        std::thread::sleep(Duration::from_millis(100));
    }
    let is_kept = |line: String| line.contains("stays until Ctrl-C");
    assert!(said.map_while(Result::ok).any(is_kept));
    let told = Command::new("kill")
        .args(["-INT", &demo.id().to_string()])
        .status();
    assert!(told.unwrap().success());
    assert!(demo.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    assert!(
        runtime
            .block_on(client.get(format!("https://{address}/")).send())
            .is_err()
    );
}
