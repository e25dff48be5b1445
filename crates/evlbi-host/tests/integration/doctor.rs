//! Checks of the machine that runs the tests: whatever its state, the report must be sound.

use std::fs;

use evlbi_core::rate::BitRate;
use evlbi_host::doctor::{DoctorOptions, examine};
use evlbi_net::run::Run;
use evlbi_testkit::Room;
use evlbi_testkit::result::{assert_schema, refused, shown};
use serde_json::Value;

#[track_caller]
fn examined(options: &DoctorOptions) -> Value {
    shown(examine(options, &Run::silent()))
}

fn rate(text: &str) -> Option<BitRate> {
    Some(text.parse().unwrap())
}

fn items(result: &Value) -> &Vec<Value> {
    result["items"].as_array().unwrap()
}

fn of_group<'a>(result: &'a Value, group: &str) -> Vec<&'a Value> {
    let items = items(result).iter();
    items.filter(|item| item["group"] == group).collect()
}

#[track_caller]
fn is_sound(result: &Value) {
    assert_schema(result, "evlbi.doctor/1");
    let mut changes = 0;
    for item in items(result) {
        for field in ["group", "name", "found"] {
            assert!(!item[field].as_str().unwrap().is_empty(), "{item}");
        }
        let found = item["found"].as_str().unwrap();
        let says_unknown = found.starts_with("unknown: ");
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
    let result = examined(&DoctorOptions {
        rate: rate("10G"),
        ..DoctorOptions::default()
    });
    is_sound(&result);
    assert_eq!(result["rate"], 10_000_000_000u64);
    assert_eq!(result["buffer_bytes"], 125_000_000);
    for group in ["kernel", "processor", "clock", "path", "disk"] {
        assert!(!of_group(&result, group).is_empty(), "{group}");
    }
    // Loopback is checked only on request.
    assert!(of_group(&result, "card lo").is_empty());
    assert!(
        of_group(&result, "disk")[0]["found"]
            .as_str()
            .unwrap()
            .starts_with("not tested")
    );
}

#[test]
fn an_interface_and_a_route_are_checked() {
    let result = examined(&DoctorOptions {
        interface: vec!["lo".to_owned()],
        to: Some("127.0.0.1".to_owned()),
        ..DoctorOptions::default()
    });
    is_sound(&result);
    let cards: Vec<&str> = items(&result)
        .iter()
        .filter_map(|item| item["group"].as_str()?.strip_prefix("card "))
        .collect();
    assert!(!cards.is_empty());
    assert!(cards.iter().all(|card| *card == "lo"), "{cards:?}");
    let route = of_group(&result, "path");
    assert!(
        route[0]["found"].as_str().unwrap().contains("on lo"),
        "{route:?}"
    );
    assert!(result["buffer_seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(result["buffer_seconds_from"], "the RTT");
}

#[test]
fn a_disk_is_tried_and_left_as_it_was() {
    let room = Room::new();
    room.write("recording", b"data");
    let result = examined(&DoctorOptions {
        rate: rate("1k"),
        interface: vec!["lo".to_owned()],
        disk: Some(room.folder().to_owned()),
        ..DoctorOptions::default()
    });
    is_sound(&result);
    let disk = of_group(&result, "disk");
    assert_eq!(disk.len(), 1);
    // Good, or a note that the directory is in memory, or that there is too little space.
    assert_ne!(disk[0]["verdict"], "change", "{disk:?}");
    assert_eq!(fs::read_dir(room.path("")).unwrap().count(), 1);
    assert_eq!(room.read("recording"), b"data");
}

#[test]
fn missing_interfaces_directories_and_hosts_are_named() {
    let card = DoctorOptions {
        interface: vec!["nothere".to_owned()],
        ..DoctorOptions::default()
    };
    let folder = DoctorOptions {
        disk: Some("/nothere".into()),
        ..DoctorOptions::default()
    };
    let host = DoctorOptions {
        to: Some("192.0.2.1:none".to_owned()),
        ..DoctorOptions::default()
    };
    for (options, said) in [
        (card, "no network interface `nothere`; available: "),
        (folder, "/nothere: no such directory"),
        (host, "invalid host `192.0.2.1:none`"),
    ] {
        let told = refused(examine(&options, &Run::silent()));
        assert!(told.contains(said), "{told}");
    }
}
