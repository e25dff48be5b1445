//! `correlate`, `fringe` and `loss-curve` as commands: printed and written results, and errors of options.

use std::fs;

use evlbi_testkit::result::assert_schema;

use super::{Room, evlbi, failure, json};

/// Two stations.
fn stations(room: &Room) -> [String; 2] {
    let plan = "duration = 0.4\nsample_rate = 2e6\ncorrelation = 0.5\npayload = 1000\nedv = 1\n[[station]]\nname = \"Ef\"\n[[station]]\nname = \"Jb\"\n";
    let plan = room.write("plan.toml", plan);
    json(&["sky", &plan, "--out", &room.path("sky")]);
    ["Ef", "Jb"].map(|name| room.path(&format!("sky/{name}.vdif")))
}

/// Recordings become visibilities, these are searched, and the recordings are measured: as JSON and as text.
#[test]
fn recordings_are_correlated_searched_and_measured() {
    let room = Room::new();
    let [ef, jb] = &stations(&room);
    let [out, pictures, curves] = ["out", "pictures", "curves"].map(|name| room.path(name));
    let loss = [
        "--loss",
        "10%",
        "--shed",
        "random",
        "--replace",
        "nothing",
        "--channels",
        "32",
        "--out",
        &curves,
    ];
    let commands = [
        (
            vec!["correlate", ef, jb, "--channels", "32", "--out", &out],
            "evlbi.correlate/1",
            "Ef-Jb",
        ),
        (
            vec!["fringe", &out, "--out", &pictures],
            "evlbi.fringe/1",
            "Ef-Jb RR: correlation",
        ),
        (
            [&["loss-curve", ef, jb], &loss[..]].concat(),
            "evlbi.loss-curve/1",
            "theory",
        ),
    ];
    for (command, schema, says) in commands {
        let result = json(&command);
        assert_schema(&result, schema);
        if command[0] == "correlate" {
            // The file names the visibilities next to it.
            let mut summary = room.json("out/summary.json");
            let name = summary["visibilities"].as_str().unwrap();
            assert_eq!(result["visibilities"], room.path(&format!("out/{name}")));
            summary["visibilities"] = result["visibilities"].clone();
            assert_eq!(summary, result);
            let description = room.json("out/visibilities.json");
            assert_schema(&description, "evlbi.visibilities/1");
            let table = room.text("out/baselines.csv");
            assert!(table.contains("Ef") && table.contains("Jb"), "{table}");
        }
        let said = failure(&command);
        assert!(said.contains("--force"), "{command:?}: {said}");
        let output = evlbi(&[&command[..], &["--force"]].concat());
        assert!(output.status.success(), "{command:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(says), "{command:?}: {text}");
    }
}

/// A correlator that knows all losses sees no difference between the replacements.
#[test]
fn identical_loss_curves_share_a_table() {
    let room = Room::new();
    let [ef, jb] = &stations(&room);
    let command = [
        &["loss-curve", ef, jb, "--channels", "32", "--loss", "10%"][..],
        &["--shed", "random", "--replace", "nothing,fill"],
    ]
    .concat();
    let curves = &json(&command)["curves"];
    // At one station, at both, and the same at both; fill is measured for headers, too.
    assert_eq!(curves.as_array().unwrap().len(), 9);
    let text = String::from_utf8(evlbi(&command).stdout).unwrap();
    assert_eq!(text.matches("theory:").count(), 6, "{text}");
    assert_eq!(
        text.matches("replaced by nothing or fill").count(),
        3,
        "{text}"
    );
    let (_, conclusions) = text.split_once("Conclusions:").unwrap();
    assert!(
        conclusions
            .lines()
            .skip(1)
            .all(|line| line.starts_with("  - ")),
        "{text}"
    );
}

/// Of a single integration, the delay is found and the rate is not; shorter ones show both.
#[test]
fn a_rate_needs_several_integrations() {
    let room = Room::new();
    let [ef, jb] = &stations(&room);
    for (integration, rate) in [("1s", "rate unknown"), ("50ms", "Hz, phase")] {
        let out = &room.path(integration);
        let options = [
            "--channels",
            "32",
            "--integration",
            integration,
            "--out",
            out,
        ];
        json(&[&["correlate", ef, jb], &options[..]].concat());
        let output = evlbi(&["fringe", out]);
        let [shown, said] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(shown.contains(rate), "{shown}");
        let is_only = integration == "1s";
        assert_eq!(shown.contains("time ("), !is_only, "{shown}");
        assert_eq!(said.contains("--integration 50ms"), is_only, "{said}");
    }
}

/// From the plan of stations far apart to their fringe; without its model the program suggests what to try.
#[test]
fn simulated_stations_are_found_with_their_model() {
    let room = Room::new();
    let plan = "duration = 0.4\nsample_rate = 2e6\ncorrelation = 0.5\npayload = 1000\nedv = 1\n[[station]]\nname = \"Ef\"\n[[station]]\nname = \"Jb\"\ndelay = [1e-3, 1e-7]\n";
    let (plan, sky) = (room.write("plan.toml", plan), room.path("sky"));
    let written = json(&["sky", &plan, "--out", &sky]);
    let model = written["model"].as_str().unwrap();
    let [ef, jb] = &["Ef", "Jb"].map(|name| format!("{sky}/{name}.vdif"));
    for command in ["correlate", "fringe"] {
        let told = |with: &[&str]| {
            let output = evlbi(&[&[command, ef, jb, "--channels", "32"], with].concat());
            assert!(output.status.success(), "{command} {with:?}");
            String::from_utf8(output.stderr).unwrap()
        };
        let said = told(&[]);
        for way in [
            "no fringe on Ef-Jb",
            "--model",
            "more --channels",
            "shorter --integration",
        ] {
            assert!(said.contains(way), "{command}: {said}");
        }
        let said = told(&["--delay-window", "1us", "--delay", "2ms", "--cross-hands"]);
        for way in [
            "wider --delay-window",
            "--model FILE",
            "--delay 0s --delay 2ms, which is for Jb: the given --delay applies to Ef",
            "opposite sign",
        ] {
            assert!(said.contains(way), "{command}: {said}");
        }
        assert!(!said.contains("adds to the model"), "{command}: {said}");
        let said = told(&["--model", model]);
        assert!(!said.contains("no fringe"), "{command}: {said}");
    }
    let said = failure(&["loss-curve", ef, jb, "--channels", "32"]);
    assert!(said.contains("evlbi correlate"), "{said}");
    // Near the model, the options to paste put the fringe into it.
    let told = |with: &[&str]| {
        let near = [
            "--channels",
            "32",
            "--freq",
            "4.9G",
            "--rate-window",
            "1kHz",
        ];
        let output = evlbi(&[&["correlate", ef, jb], &near[..], with].concat());
        assert!(output.status.success(), "{with:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = told(&["--delay", "0s", "--delay", "1ms"]);
    assert!(said.contains("off the model on Ef-Jb"), "{said}");
    assert!(said.contains("--rate-window 3900Hz if"), "{said}");
    let options = said.split("  - ").nth(1).unwrap();
    let options: Vec<&str> = options
        .split(", which")
        .next()
        .unwrap()
        .split(' ')
        .collect();
    assert_eq!(options[..3], ["--delay", "0s", "--delay"]);
    let said = told(&options);
    assert!(!said.contains("off the model"), "{said}");
}

#[test]
fn recordings_that_cannot_be_correlated_are_reported() {
    let room = Room::new();
    let [ef, jb] = &stations(&room);
    for (arguments, says) in [
        (vec!["correlate", ef], "2 values"),
        (vec!["correlate", ef, jb, "--channels", "2"], "give 4 to"),
        (vec!["correlate", ef, jb, "--delay", "0,1e-6"], "--freq"),
        (vec!["correlate", ef, jb, "--flag", "Xx:0..1s"], "--flag"),
        (
            vec!["correlate", ef, jb, "--freq", "high"],
            "invalid frequency",
        ),
        (vec!["correlate", ef, jb, "--polarisations", "XX"], "8X8Y"),
        (
            vec!["correlate", ef, jb, "--polarisations", "8X8Y"],
            "multiple of 16 bands, and station Ef has 1",
        ),
        (
            vec!["correlate", ef, jb, "--delay-window", "1ms"],
            "--channels 2048",
        ),
        (
            vec!["correlate", ef, jb, "--rate-window", "1M"],
            "fewer --channels",
        ),
        (vec!["correlate", ef, jb, "--threads", "0"], "--threads"),
        (vec!["fringe", ef, jb, "--threads", "0"], "--threads"),
        (vec!["fringe", "none.vis"], "none.vis does not exist"),
        (vec!["correlate", ef, jb, "--model", ef], "not a text file"),
        (vec!["sky", ef, "--out", "none"], "not a text file"),
        (vec!["loss-curve", ef, jb, "--threads", "0"], "--threads"),
        (vec!["loss-curve", ef, jb, "--station", "3"], "--station 3"),
        (
            vec!["loss-curve", ef, jb, "--loss", "95%"],
            "between 0 and 90",
        ),
        (
            vec!["loss-curve", ef, jb, "--station", "2,3"],
            "--station 3",
        ),
        (
            vec!["loss-curve", ef, jb, "--packet", "129"],
            "needs --unit packet",
        ),
        (
            vec!["loss-curve", ef, jb, "--unit", "packet", "--packet", "100"],
            "give a divisor of 1032",
        ),
        (
            vec!["loss-curve", ef, jb, "--search", "drop:x"],
            "flywheel, drop",
        ),
    ] {
        let said = failure(&arguments);
        assert!(said.contains(says), "{arguments:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
    // A refused correlation leaves no files behind.
    let refused = room.path("refused");
    failure(&[
        "correlate",
        ef,
        jb,
        "--rate-window",
        "1M",
        "--out",
        &refused,
    ]);
    assert_eq!(fs::read_dir(&refused).map_or(0, Iterator::count), 0);
}
