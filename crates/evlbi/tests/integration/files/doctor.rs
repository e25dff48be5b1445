//! `evlbi doctor` as a command: output, exit status, and errors of options.

use evlbi_testkit::result::assert_schema;

use super::{evlbi, failure, json};

#[test]
fn needed_changes_are_an_error_only_with_strict() {
    let asked = ["doctor", "--rate", "400G", "--interface", "lo"];
    let result = json(&asked);
    assert_schema(&result, "evlbi.doctor/1");
    let changes = result["changes"].as_u64().unwrap();
    let output = evlbi(&asked);
    assert_eq!(output.status.code(), Some(0));
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!(shown.matches("\n  CHANGE  ").count() as u64, changes);
    let last = shown.lines().last().unwrap();
    match changes {
        0 => assert_eq!(last, "nothing to change in what was checked"),
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

/// The shell reads the script of this host, and each command that is shown as a change is in it.
#[test]
fn a_script_makes_the_changes() {
    let asked = ["doctor", "--rate", "400G"];
    let output = evlbi(&[&asked[..], &["--script"]].concat());
    assert!(output.status.success());
    let script = String::from_utf8(output.stdout).unwrap();
    let room = evlbi_testkit::Room::new();
    let file = room.write("tune.sh", &script);
    let read = std::process::Command::new("sh")
        .args(["-n", &file])
        .status();
    assert!(read.unwrap().success(), "{script}");
    for item in json(&asked)["items"].as_array().unwrap() {
        let command = item["command"].as_str().unwrap_or_default();
        if item["verdict"] == "change" && command.starts_with("sysctl") {
            assert!(
                script.contains(&format!("\n{command}\n")),
                "{command}: {script}"
            );
        }
    }
}

#[test]
fn invalid_arguments_are_reported() {
    for (arguments, said) in [
        (["--disk", "/nothere"], "--disk /nothere: no such directory"),
        (["--rate", "fast"], "invalid bit rate `fast`"),
    ] {
        let told = failure(&[&["doctor"], &arguments[..]].concat());
        assert!(told.contains(said), "{told}");
    }
}
