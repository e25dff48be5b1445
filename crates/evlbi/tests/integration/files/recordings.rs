//! `drop`, `split`, `join`, `inspect` and `sky` as commands: output, and errors of options.

use evlbi_testkit::recording::{FRAME, noise, recording};
use evlbi_testkit::result::assert_schema;

use super::{Room, evlbi, failure, json};

/// One after the other, as text and as JSON.
#[test]
fn stations_are_simulated_shed_from_and_inspected() {
    let room = Room::new();
    let stations = "duration = 0.1\nsample_rate = 400_000\npayload = 1000\nedv = 1\n[[station]]\nname = \"Ef\"\n";
    let plan = room.write("plan.toml", stations);
    let (out, whole, shed) = (
        room.path("out"),
        room.path("out/Ef.vdif"),
        room.path("shed.vdif"),
    );
    let commands: [(&[&str], &str, &str); 3] = [
        (&["sky", &plan, "--out", &out], "evlbi.sky/1", "10 frames"),
        (
            &["drop", &whole, &shed, "--shed", "every:5"],
            "evlbi.drop/1",
            "2 of 10 frames",
        ),
        (&["inspect", &shed], "evlbi.inspect/1", "2 invalid"),
    ];
    for (command, schema, says) in commands {
        assert_schema(&json(command), schema);
        let force: &[&str] = if command[0] == "inspect" {
            &[]
        } else {
            &["--force"]
        };
        let output = evlbi(&[command, force].concat());
        assert!(output.status.success(), "{command:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(says), "{command:?}: {text}");
    }
}

/// Each option once; what comes of the data is tested in `evlbi-stream`.
#[test]
fn recordings_are_split_and_joined() {
    let room = Room::new();
    let plan = "duration = 0.1\nsample_rate = 400_000\nchannels = 4\npayload = 1000\n[[station]]\nname = \"Ef\"\n";
    let plan = room.write("plan.toml", plan);
    json(&["sky", &plan, "--out", &room.path("sky")]);
    let (whole, to) = (room.path("sky/Ef.vdif"), room.path("{channel}.vdif"));
    // Four frames become one of each channel, which needs the rate of this short recording.
    let split = ["split", &whole, "--to", &to];
    assert!(failure(&split).contains("--frame-rate"));
    let split = [&split[..], &["--frame-rate", "400"]].concat();
    assert_schema(&json(&split), "evlbi.split/1");
    let said = failure(&split);
    assert!(said.contains("0.vdif exists: give --force"), "{said}");
    let split = [&split[..], &["--force", "--channels", "2,3"]].concat();
    assert_eq!(json(&split)["outputs"].as_array().unwrap().len(), 2);

    let again = room.path("again.vdif");
    let files = ["0", "1", "2", "3"].map(|channel| room.path(&format!("{channel}.vdif")));
    let mut join = vec!["join"];
    join.extend(files.iter().map(String::as_str));
    join.extend(["--to", &again, "--frame", "1032", "--frame-rate", "100"]);
    assert_schema(&json(&join), "evlbi.join/1");
    assert!(room.read("again.vdif") == room.read("sky/Ef.vdif"));
    assert!(failure(&join).contains("--force"));
    join.truncate(7);
    join.extend(["--threads", "--force", "--frame-rate", "100"]);
    assert_eq!(json(&join)["threads"], 4);

    let said = failure(&["split", "udp://0.0.0.0:2630", "--to", "{channel}.vdif"]);
    assert!(
        said.contains("evlbi recv udp://0.0.0.0:2630 --to '{channel}.vdif'"),
        "{said}"
    );
}

/// However the channels are divided into threads, the output fits on a screen, and names the thread that differs.
#[test]
fn many_channels_fit_on_a_screen() {
    for threads in [1, 8, 64] {
        let room = Room::new();
        let plan = format!(
            "duration = 0.2\nsample_rate = 200_000\nchannels = 64\nthreads = {threads}\npayload = 400\nedv = 1\n[[station]]\nname = \"Ef\"\n"
        );
        let (plan, out) = (room.write("plan.toml", plan), room.path("out"));
        json(&["sky", &plan, "--out", &out]);
        let (whole, lossy) = (room.path("out/Ef.vdif"), room.path("lossy.vdif"));
        json(&[
            "drop",
            &whole,
            &lossy,
            "--shed",
            "random:20%",
            "--replace",
            "nothing",
        ]);
        for file in [&whole, &lossy] {
            let shown = |all: &[&str]| {
                let output = evlbi(&[&["inspect", file], all].concat());
                assert!(output.status.success());
                let text = String::from_utf8(output.stdout).unwrap();
                (text, String::from_utf8(output.stderr).unwrap())
            };
            let (short, hint) = shown(&[]);
            assert!(short.lines().count() <= 40, "{threads}: {short}");
            assert!(
                short.lines().all(|line| line.chars().count() <= 120),
                "{short}"
            );
            assert!(hint.contains("--all"), "{hint}");
            if threads > 1 && file == &whole {
                let range = format!("0-{}", threads - 1);
                assert!(short.contains(&range), "{short}");
            }
            let (long, hint) = shown(&["--all"]);
            assert!(long.matches("channel ").count() >= 64, "{threads}: {long}");
            assert!(!hint.contains("--all"), "{hint}");
        }
    }
}

#[test]
fn errors_of_arguments_suggest_a_remedy() {
    let room = Room::new();
    let (input, output) = (room.write("in.vdif", recording()), room.path("out.vdif"));
    let short = room.write("short.vdif", &recording()[..20 * FRAME]);
    let raw = room.write("in.bin", noise(9_000, 5));
    let there = room.write("Ef.vdif", b"precious");
    let plan = room.write("plan.toml", "[[station]]\nname = \"Ef\"\n");
    let cases: [(&[&str], &str); 8] = [
        (&["drop", &input, &output], "--shed"),
        (&["drop", &input, &output, "--shed", "often"], "every:N"),
        (
            &[
                "drop", &input, &output, "--shed", "every:2", "--mtu", "50", "--unit", "packet",
            ],
            "--mtu",
        ),
        (
            &["drop", &short, &output, "--shed", "fit:1k"],
            "--frame-rate",
        ),
        (
            &[
                "drop",
                &short,
                &output,
                "--shed",
                "none",
                "--frame-rate",
                "0",
            ],
            "--frame-rate",
        ),
        (
            &["drop", &raw, &output, "--shed", "every:4"],
            "--replace fill",
        ),
        (&["drop", &input, &there, "--shed", "every:2"], "--force"),
        (&["sky", &plan, "--out", &room.path("")], "--force"),
    ];
    for (arguments, says) in cases {
        let error = failure(arguments);
        assert!(error.contains(says), "{arguments:?}: {error}");
    }
    assert_eq!(room.read("Ef.vdif"), b"precious");
}
