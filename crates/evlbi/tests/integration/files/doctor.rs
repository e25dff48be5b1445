//! `evlbi doctor` on the machine that runs the tests: whatever that is like, the report must be sound.

use std::fs;

use serde_json::Value;

use super::{Room, evlbi, failure, json};

fn items(result: &Value) -> &Vec<Value> {
    result["items"].as_array().unwrap()
}

fn of_group<'a>(result: &'a Value, group: &str) -> Vec<&'a Value> {
    let items = items(result).iter();
    items.filter(|item| item["group"] == group).collect()
}

#[track_caller]
fn is_sound(result: &Value) {
    assert_eq!(result["schema"], "evlbi.doctor/1");
    let mut changes = 0;
    for item in items(result) {
        for field in ["group", "name", "found"] {
            assert!(!item[field].as_str().unwrap().is_empty(), "{item}");
        }
        let found = item["found"].as_str().unwrap();
        let says_unknown = found.starts_with("not known here: ");
        match item["verdict"].as_str().unwrap() {
            "change" => {
                changes += 1;
                for field in ["wanted", "why", "command"] {
                    assert!(!item[field].as_str().unwrap().is_empty(), "{item}");
                }
                assert!(!says_unknown, "{item}");
            }
            "unknown" => assert!(says_unknown, "{item}"),
            "good" | "note" => assert!(!says_unknown, "{item}"),
            other => panic!("{other}: {item}"),
        }
        let command = item["command"].as_str().unwrap_or_default();
        if item["verdict"] == "change" && command.starts_with("sysctl") {
            let permanent = item["permanent"].as_str().unwrap();
            assert!(
                permanent.ends_with(" >> /etc/sysctl.d/90-evlbi.conf"),
                "{item}"
            );
        }
    }
    assert_eq!(result["changes"], changes);
}

#[test]
fn this_machine_is_examined() {
    let result = json(&["doctor", "--rate", "10G"]);
    is_sound(&result);
    assert_eq!(result["rate"], 10_000_000_000u64);
    assert_eq!(result["buffer_bytes"], 125_000_000);
    for group in ["kernel", "processor", "clock", "path", "disk"] {
        assert!(!of_group(&result, group).is_empty(), "{group}");
    }
    // Loopback is looked at only if it is asked for.
    assert!(of_group(&result, "card lo").is_empty());
    assert!(
        of_group(&result, "disk")[0]["found"]
            .as_str()
            .unwrap()
            .contains("--disk")
    );
}

#[test]
fn an_interface_and_a_route_are_looked_at() {
    let result = json(&["doctor", "--interface", "lo", "--to", "127.0.0.1"]);
    is_sound(&result);
    let cards: Vec<&str> = items(&result)
        .iter()
        .filter_map(|item| item["group"].as_str()?.strip_prefix("card "))
        .collect();
    assert!(!cards.is_empty());
    assert!(cards.iter().all(|card| *card == "lo"), "{cards:?}");
    let route = of_group(&result, "path");
    assert!(
        route[0]["found"].as_str().unwrap().contains("of lo"),
        "{route:?}"
    );
    assert!(result["buffer_seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(result["buffer_seconds_from"], "the round trip");
}

#[test]
fn a_disk_is_tried_and_left_as_it_was() {
    let room = Room::new();
    room.write("recording", b"data");
    let result = json(&[
        "doctor",
        "--rate",
        "1k",
        "--interface",
        "lo",
        "--disk",
        &room.path(""),
    ]);
    is_sound(&result);
    let disk = of_group(&result, "disk");
    assert_eq!(disk.len(), 1);
    // Good, or a note that the folder lies in memory, or that there is too little room.
    assert_ne!(disk[0]["verdict"], "change", "{disk:?}");
    assert_eq!(fs::read_dir(room.path("")).unwrap().count(), 1);
    assert_eq!(room.read("recording"), b"data");
}

#[test]
fn what_is_to_be_changed_is_an_error_only_if_asked() {
    let asked = ["doctor", "--rate", "400G", "--interface", "lo"];
    let changes = json(&asked)["changes"].as_u64().unwrap();
    let output = evlbi(&asked);
    assert_eq!(output.status.code(), Some(0));
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!(shown.matches("\n  CHANGE  ").count() as u64, changes);
    let last = shown.lines().last().unwrap();
    match changes {
        0 => assert_eq!(last, "nothing to change of what was seen"),
        1 => assert_eq!(last, "1 thing to change (most of it as root)"),
        _ => assert_eq!(
            last,
            format!("{changes} things to change (most of it as root)")
        ),
    }
    let output = evlbi(&[&asked[..], &["--strict"]].concat());
    assert_eq!(output.status.code(), Some(i32::from(changes > 0)));
    assert!(!output.stdout.is_empty());
}

#[test]
fn wrong_arguments_are_told() {
    for (arguments, said) in [
        (
            ["--interface", "nothere"],
            "no network interface is called `nothere`; there are: ",
        ),
        (
            ["--disk", "/nothere"],
            "--disk /nothere: there is no such folder",
        ),
        (["--rate", "fast"], "`fast` is no bit rate"),
        (
            ["--to", "192.0.2.1:none"],
            "`192.0.2.1:none` is no HOST or HOST:PORT",
        ),
    ] {
        let told = failure(&[&["doctor"], &arguments[..]].concat());
        assert!(told.contains(said), "{told}");
    }
}
