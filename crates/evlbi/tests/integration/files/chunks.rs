//! `plan chunks`, `correlate --plan` and `merge` as commands: what one run makes, statuses, and errors.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};

use evlbi_testkit::result::assert_schema;
use evlbi_testkit::{command, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{Room, evlbi, failure, json as printed};

const SKY: &str = "start = \"2026-01-01T00:00:00Z\"\nduration = 2\nsample_rate = 1e6\ncorrelation = 0.3\npayload = 1000\nedv = 1\n[[station]]\nname = \"Ef\"\n[[station]]\nname = \"Jb\"\n";

/// Recordings of two stations, and what one run makes of them in the directory `whole`.
fn correlated(room: &Room) -> [String; 2] {
    let plan = room.write("sky.toml", SKY);
    printed(&["sky", &plan, "--out", &room.path("sky")]);
    let [ef, jb] = ["Ef", "Jb"].map(|name| room.path(&format!("sky/{name}.vdif#thread=0")));
    let whole = room.path("whole");
    printed(&[
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
        let done = printed(&[&command[..], &["--threads", threads]].concat());
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
    assert_schema(&printed(&["merge", &job]), "evlbi.correlate/1");
    let whole = made(&room, "whole");
    assert_eq!(whole.len(), 4);
    assert!(made(&room, "job") == whole);
    assert!(failure(&["merge", &job]).contains("--force"));

    let chunks = room.path("chunks");
    for chunk in ["2/2", "1/2"] {
        printed(
            &[
                &["correlate", ef, jb, "--chunk", chunk, "--out", &chunks],
                &options[..],
            ]
            .concat(),
        );
    }
    printed(&["merge", &chunks]);
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
    let partial = printed(&[
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

/// An engine runs the parts that are missing, follows them, and merges all; a part that fails is named, and the others are done.
#[test]
fn an_engine_runs_all_parts() {
    let room = Room::new();
    let [ef, jb] = &correlated(&room);
    let plan = room.path("job.chunks.json");
    let planned = evlbi(&[
        "plan",
        "chunks",
        ef,
        jb,
        "--channels",
        "32",
        "--integration",
        "250ms",
        "--parts",
        "5",
        "--threads",
        "1",
        "--out",
        &plan,
    ]);
    assert!(planned.status.success());
    // It fails for part 3, and is killed in the first try of part 2.
    let faulty = room.write(
        "faulty",
        format!(
            "#!/bin/sh\ncase \"$*\" in\n*'--part 3 '*) echo 'no luck' >&2; exit 1;;\n*'--part 2 '*) mkdir {} && kill -9 $$;;\nesac\nexec {} \"$@\"\n",
            room.path("killed"),
            env!("CARGO_BIN_EXE_evlbi"),
        ),
    );
    fs::set_permissions(&faulty, Permissions::from_mode(0o755)).unwrap();
    let local = ["distribute", &plan, "--engine", "local", "--json"];
    let states = |output: &Output| -> Vec<Value> {
        let text = str::from_utf8(&output.stdout).unwrap();
        let lines = text.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap()
    };
    let failed = evlbi(&[&local[..], &["--jobs", "2", "--program", &faulty]].concat());
    let said = str::from_utf8(&failed.stderr).unwrap();
    assert_eq!(failed.status.code(), Some(1), "{said}");
    for expected in [
        "part 2 is tried again",
        "part 3",
        "failed with status 1: no luck",
        "not merged",
    ] {
        assert!(said.contains(expected), "{said}");
    }
    let states_of_failed = states(&failed);
    let last = states_of_failed.last().unwrap();
    assert_schema(last, "evlbi.distribute/1");
    assert_eq!(last["done"], 4);
    assert_eq!(last["failed"][0]["part"], 3);
    assert!(!fs::exists(room.path("job/summary.json")).unwrap());

    // Without the fault it does what is left, with fetched bytes, and merges.
    let fetch = "dd status=none iflag=skip_bytes,count_bytes bs=1M skip={offset} count={length} if={path} of={out}";
    let merged = evlbi(&[&local[..], &["--stage", fetch, "--retries", "0"]].concat());
    let said = str::from_utf8(&merged.stderr).unwrap();
    assert!(merged.status.success(), "{said}");
    let mut lines = states(&merged);
    assert_schema(&lines.pop().unwrap(), "evlbi.correlate/1");
    let last = lines.last().unwrap();
    assert_eq!((&last["done"], &last["were_there"]), (&json!(5), &json!(4)));
    assert!(made(&room, "job") == made(&room, "whole"));
    assert!(failure(&local).contains("--force"));
    assert!(evlbi(&[&local[..], &["--force"]].concat()).status.success());

    // A truncated part is correlated again.
    let job = fs::read_dir(room.path("job")).unwrap();
    let mut sums = job.map(|entry| entry.unwrap().path());
    let sums = sums
        .find(|path| path.extension().is_some_and(|it| it == "evs"))
        .unwrap();
    fs::write(&sums, b"short").unwrap();
    assert!(evlbi(&[&local[..], &["--force"]].concat()).status.success());
    assert!(made(&room, "job") == made(&room, "whole"));

    // With --partial, parts that fail are gaps.
    let partial = [
        "--out",
        &room.path("partial"),
        "--partial",
        "--program",
        &faulty,
    ];
    let partial = evlbi(&[&local[..], &partial].concat());
    assert_eq!(partial.status.code(), Some(1));
    let lines = states(&partial);
    assert_eq!(lines.last().unwrap()["missing"][0]["part"], 3);
}

/// Returns a plan of two parts.
fn planned(room: &Room) -> String {
    let [ef, jb] = &correlated(room);
    let plan = room.path("job.json");
    let options = ["--channels", "32", "--parts", "2", "--out", &plan];
    let planned = evlbi(&[&["plan", "chunks", ef, jb], &options[..]].concat());
    assert!(planned.status.success());
    plan
}

/// A fetch that is stuck ends with the run, which can be tried again.
#[test]
fn a_stuck_fetch_ends_with_the_run() {
    let room = Room::new();
    let plan = planned(&room);
    let stuck = format!(
        "touch {}; sleep 1000 # {{path}} {{offset}} {{length}} {{out}}",
        room.path("stuck")
    );
    let mut run = command(env!("CARGO_BIN_EXE_evlbi"));
    run.args(["distribute", &plan, "--engine", "local", "--stage", &stuck]);
    let run = run.stderr(Stdio::piped()).stdout(Stdio::null()).spawn();
    let run = run.unwrap();
    until("a fetch is stuck", || {
        fs::exists(room.path("stuck")).unwrap()
    });
    kill(Pid::from_raw(run.id().cast_signed()), Signal::SIGTERM).unwrap();
    let output = run.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(75), "{said}");
}

/// Engines that are not there, and options of others, are named.
#[test]
fn engines_that_are_not_there_are_named() {
    let room = Room::new();
    let plan = planned(&room);
    let engine = |engine: &str, more: &[&str]| {
        let output = evlbi(&[&["distribute", &plan, "--engine", engine], more].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), said)
    };
    let dask = [
        "--scheduler",
        "tcp://127.0.0.1:9",
        "--python",
        "/nowhere/python",
    ];
    let (status, said) = engine("dask", &dask);
    assert!(
        status == 1 && said.contains("`/nowhere/python -m evlbi_dask` cannot be started"),
        "{said}"
    );
    for (name, more, expected) in [
        ("dask", &[][..], "--scheduler"),
        ("local", &dask[..2], "--engine dask"),
        ("local", &["--sbatch=--mem=4G"], "--engine slurm"),
        (
            "slurm",
            &["--sbatch=--job-name=x"],
            "cannot change the name",
        ),
        (
            "local",
            &["--tls-ca", "a", "--tls-cert", "b", "--tls-key", "c"],
            "--engine dask",
        ),
    ] {
        let (status, said) = engine(name, more);
        assert!(status == 2 && said.contains(expected), "{name}: {said}");
    }
}
