//! `plan chunks`, `correlate --plan` and `merge` as commands: what one run makes, statuses, and errors.

use std::fs;

use evlbi_testkit::result::assert_schema;
use serde_json::Value;

use super::{Room, evlbi, failure, json};

const SKY: &str = "start = \"2026-01-01T00:00:00Z\"\nduration = 2\nsample_rate = 1e6\ncorrelation = 0.3\npayload = 1000\nedv = 1\n[[station]]\nname = \"Ef\"\n[[station]]\nname = \"Jb\"\n";

/// Recordings of two stations, and what one run makes of them in the directory `whole`.
fn correlated(room: &Room) -> [String; 2] {
    let plan = room.write("sky.toml", SKY);
    json(&["sky", &plan, "--out", &room.path("sky")]);
    let [ef, jb] = ["Ef", "Jb"].map(|name| room.path(&format!("sky/{name}.vdif#thread=0")));
    let whole = room.path("whole");
    json(&[
        "correlate",
        &ef,
        &jb,
        "--channels",
        "32",
        "--integration",
        "250ms",
        "--out",
        &whole,
    ]);
    [ef, jb]
}

/// The command that correlates a part.
fn part<'a>(plan: &'a str, number: &'a str, out: &'a str) -> [&'a str; 7] {
    ["correlate", "--plan", plan, "--part", number, "--out", out]
}

/// Files of a result, apart from those of parts.
fn made(room: &Room, directory: &str) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(room.path(directory)).unwrap();
    let mut files: Vec<(String, Vec<u8>)> = entries
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (
                entry.file_name().into_string().unwrap(),
                fs::read(entry.path()).unwrap(),
            )
        })
        .filter(|(name, _)| !name.starts_with("part-") && name != "plan.chunks.json")
        .collect();
    files.sort();
    files
}

/// Parts in any order, some twice, merged, have the files of one run; so have chunks.
#[test]
fn parts_are_merged_to_the_files_of_one_run() {
    let room = Room::new();
    let [ef, jb] = &correlated(&room);
    let options = ["--channels", "32", "--integration", "250ms"];
    let planned = evlbi(&[&["plan", "chunks", ef, jb, "--parts", "7"], &options[..]].concat());
    assert!(planned.status.success());
    let plan: Value = serde_json::from_slice(&planned.stdout).unwrap();
    assert_schema(&plan, "evlbi.chunks/1");
    let said = String::from_utf8(planned.stderr).unwrap();
    assert!(
        said.contains("7 parts of at most") && said.contains("must be reachable"),
        "{said}"
    );
    let most = plan["memory_bytes"].as_u64().unwrap();
    let plan = room.write("job.chunks.json", &planned.stdout);
    let job = room.path("job");
    for (turn, number) in ["3", "6", "7", "5", "1", "2", "4", "3", "6"]
        .iter()
        .enumerate()
    {
        let threads = if turn % 2 == 0 { "1" } else { "2" };
        let command = part(&plan, number, &job);
        let done = json(&[&command[..], &["--threads", threads]].concat());
        assert_schema(&done, "evlbi.part/1");
        assert_eq!(done["was_there"], turn > 6);
        let memory = done["memory_bytes"].as_u64().unwrap();
        assert!(memory < most, "{memory}");
    }
    let again = evlbi(&part(&plan, "3", &job));
    assert!(
        String::from_utf8(again.stdout)
            .unwrap()
            .contains("already there")
    );
    assert_schema(&json(&["merge", &job]), "evlbi.correlate/1");
    let whole = made(&room, "whole");
    assert_eq!(whole.len(), 4);
    assert!(made(&room, "job") == whole);
    assert!(failure(&["merge", &job]).contains("--force"));

    let chunks = room.path("chunks");
    for chunk in ["2/2", "1/2"] {
        json(
            &[
                &["correlate", ef, jb, "--chunk", chunk, "--out", &chunks],
                &options[..],
            ]
            .concat(),
        );
    }
    json(&["merge", &chunks]);
    assert!(made(&room, "chunks") == whole);
}

/// A failure that may pass has its own status; damage and gaps are named.
#[test]
fn parts_that_fail_say_why() {
    let room = Room::new();
    let [ef, jb] = &correlated(&room);
    let (plan, job) = (room.path("job.chunks.json"), room.path("job"));
    let options = [
        "--channels",
        "32",
        "--integration",
        "250ms",
        "--simd",
        "scalar",
        "--trust",
        "headers",
    ];
    let hosts = ["--hosts", "ef,jb", "--memory", "4GB"];
    let out = ["--parts", "2", "--out", &plan];
    let planned = evlbi(&[&["plan", "chunks", ef, jb], &options[..], &hosts, &out].concat());
    assert!(planned.status.success() && planned.stdout.is_empty());
    let part = |number: &str, more: &[&str]| {
        let output = evlbi(&[&part(&plan, number, &job), more].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), said)
    };
    assert_eq!(part("1", &[]).0, 0);
    let recording = room.path("sky/Jb.vdif");
    fs::rename(&recording, room.path("away")).unwrap();
    let (status, said) = part("2", &[]);
    assert_eq!(status, 75, "{said}");
    assert!(
        said.contains("Jb.vdif") && said.contains("can be tried again"),
        "{said}"
    );
    let fetch = "echo no {host} >&2; false {path} {offset} {length} {out}";
    let (status, said) = part("2", &["--stage", fetch]);
    assert!(status == 75 && said.contains("no ef"), "{said}");
    fs::write(&recording, b"another").unwrap();
    let (status, said) = part("2", &[]);
    assert_eq!(status, 1);
    assert!(
        said.contains("Jb.vdif is not the recording of the plan: it has 7 bytes"),
        "{said}"
    );
    let (status, said) = part("3", &[]);
    assert!(
        status == 1 && said.contains("its parts are 1 to 2"),
        "{said}"
    );
    let (status, said) = part("2", &["--freq", "1.4G"]);
    assert!(status == 2 && said.contains("--freq"), "{said}");

    let said = failure(&["merge", &job]);
    assert!(
        said.contains("1 of 2 parts are missing: 2") && said.contains("--partial"),
        "{said}"
    );
    let partial = json(&[
        "merge",
        &job,
        "--partial",
        "--mixed-simd",
        "--profiles",
        "--out",
        &room.path("so-far"),
    ]);
    assert_eq!(partial["missing"][0]["part"], 2);
    assert_eq!(partial["profiles"].as_array().unwrap().len(), 1);
    let sums = fs::read_dir(&job)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let sums = sums
        .into_iter()
        .find(|path| path.extension().is_some_and(|it| it == "evs"))
        .unwrap();
    let bytes = fs::read(&sums).unwrap();
    fs::write(&sums, &bytes[..bytes.len() - 1]).unwrap();
    let said = failure(&["merge", &job, "--partial"]);
    assert!(
        said.contains("part 1, of host ") && said.contains("is damaged"),
        "{said}"
    );
    assert!(failure(&["merge", &room.path("none")]).contains("has no parts of a plan"));
    assert!(failure(&["plan", "chunks", ef, ef, "--memory", "1MB"]).contains("larger --memory"));
}
