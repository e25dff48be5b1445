//! The demonstration: its numbers agree, its web UI shows its stations while it runs, and nothing of it is left behind.

use std::process::Stdio;

use evlbi_testkit::result::{assert_schema, read};
use evlbi_testkit::{Lines, Room, Running, command, until};
use nix::sys::signal::Signal;

use crate::control::support::{EVLBI, asked};
use crate::result::number;

/// With a web UI it succeeds only if all numbers agree; then the web UI stays until Ctrl-C.
#[test]
fn the_demonstration_shows_its_stations() {
    let room = Room::new();
    let mut demo = command(EVLBI)
        .args(["demo", "--keep", "--duration", "500ms", "--stations", "3"])
        .args(["--rate", "16M"])
        .env("TMPDIR", room.folder())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map(Running)
        .unwrap();
    let mut said = Lines::of(demo.0.stderr.take().unwrap());
    let url = said
        .by_ref()
        .take(2)
        .find_map(|line| Some(line.split_once("https://")?.1.to_owned()))
        .expect("an address");
    let (address, token) = url.split_once("/#token=").unwrap();
    let url = format!("https://{address}/api/v1/flows/correlator");
    until("the correlator shows three baselines", || {
        let flow = asked(&url, token).expect("the page is there");
        let baselines = flow["status"]["baselines"].as_array();
        baselines.is_some_and(|baselines| baselines.len() == 3)
    });
    assert!(said.any(|line| line.contains("stays until Ctrl-C")));
    demo.signal(Signal::SIGINT);
    assert!(demo.wait().success());
    assert_eq!(std::fs::read_dir(room.folder()).unwrap().count(), 0);
    // If another process has the port by now, it has neither the token nor the flow.
    let answer = asked(&url, token);
    assert!(answer.is_none_or(|answer| answer["status"].get("baselines").is_none()));
}

/// Every number that is known in two places is the same in both, from the sender to the recording; datagrams that a socket dropped
/// are counted.
#[test]
fn the_numbers_of_the_demonstration_agree() {
    let room = Room::new();
    let output = command(EVLBI)
        .args(["demo", "--json", "--duration", "500ms", "--stations", "2"])
        .args(["--rate", "16M", "--loss", "5%", "--duplicate", "5%"])
        .args(["--reorder", "1%", "--seed", "7", "--out", &room.path("out")])
        .args(["--plot", &room.path("demo.svg")])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let result = read(&output.stdout);
    assert_schema(&result, "evlbi.demo/1");
    assert_eq!(result["accounting_agrees"], true);
    let picture = std::fs::read_to_string(room.path("demo.svg")).unwrap();
    for text in ["lost in the network", "Loss over time", "Ef-Jb"] {
        assert!(picture.contains(text), "{text}: {picture}");
    }
    let stations = result["stations"].as_array().unwrap();
    assert_eq!(stations.len(), 2);
    for station in stations {
        let checks = station["checks"].as_array().unwrap();
        assert!(checks.len() > 5, "{checks:?}");
        for check in checks {
            let [truth, found, within] =
                ["truth", "found", "within"].map(|name| number(check, name));
            assert!(truth.abs_diff(found) <= within, "{check}");
        }
        // In addition to the program's own comparison.
        let (truth, account) = (&station["relay"]["truth"], &station["received"]["account"]);
        let [offered, lost, duplicates] =
            ["offered", "lost", "duplicates"].map(|count| number(truth, count));
        assert!(lost > 0 && duplicates > 0, "{truth}");
        let dropped = number(&station["relay"], "socket_drops");
        assert_eq!(offered + dropped, number(&station["sent"], "sent"));
        assert_eq!(number(truth, "delivered"), offered - lost);
        let dropped = number(&station["received"], "socket_drops");
        assert_eq!(
            number(account, "received") + dropped,
            offered - lost + duplicates,
            "{truth} {account}"
        );
        let recording = &station["recording"];
        let file = std::fs::metadata(recording["path"].as_str().unwrap()).unwrap();
        assert_eq!(file.len(), number(recording, "bytes"));
        assert_eq!(number(recording, "out_of_step"), 0);
    }
}
