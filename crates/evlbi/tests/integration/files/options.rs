//! What single options of `correlate`, `fringe` and `loss-curve` do.

use serde_json::Value;

use super::correlate::{near, number};
use super::{Room, failure, json};

const PLAN: &str = r#"
start = "2024-01-01T12:00:00Z"
duration = 0.4
sample_rate = 2e6
correlation = 0.5
payload = 1000
edv = 1
[[station]]
name = "Ef"
[[station]]
name = "Jb"
"#;

/// Two stations.
fn stations(room: &Room, plan: &str) -> [String; 2] {
    let plan = room.write("plan.toml", plan);
    json(&["sky", &plan, "--out", &room.path("sky")]);
    ["Ef", "Jb"].map(|name| room.path(&format!("sky/{name}.vdif")))
}

fn run(command: &str, files: [&str; 2], more: &[&str]) -> Value {
    let base = [command, files[0], files[1], "--channels", "32"];
    json(&[&base[..], more].concat())
}

/// Half of the frames are lost: frames marked invalid are known by their headers, the fill pattern only by a look at the samples.
#[test]
fn trust_says_what_is_believed_of_samples() {
    let room = Room::new();
    let [ef, jb] = stations(&room, PLAN);
    for (replace, weights, alike) in [
        ("fill", [0.5, 1.0, 1.0], 1),
        ("invalid", [0.5, 0.5, 1.0], 0),
    ] {
        let lossy = room.path(replace);
        json(&[
            "drop",
            &ef,
            &lossy,
            "--shed",
            "every:2",
            "--replace",
            replace,
        ]);
        let trusts = ["exact", "headers", "blind"].map(|trust| ["--trust", trust]);
        for (trust, weight) in trusts.iter().zip(weights) {
            let found = run("correlate", [&lossy, &jb], trust);
            near(number(&found, "/baselines/0/weight"), weight, 0.01);
        }
        // What is fill pattern takes half of the coefficient of what is believed to be samples.
        let [exact, headers, _] = trusts.map(|trust| {
            let found = run("fringe", [&lossy, &jb], &trust);
            number(&found, "/fringes/0/correlation")
        });
        let ratio = [1.0, 0.5][alike];
        near(headers / exact, ratio, 0.1);
    }
}

/// However many threads share the work, the result is the same.
#[test]
fn threads_do_not_change_the_result() {
    let room = Room::new();
    let [ef, jb] = &stations(&room, PLAN);
    let curve = ["--loss", "10%", "--shed", "random", "--replace", "nothing"];
    for (command, value, more) in [
        ("correlate", "/baselines/0/amplitude/valid", &[][..]),
        ("fringe", "/fringes/0/correlation", &[]),
        ("loss-curve", "/curves/0/points/0/ratio/all", &curve),
    ] {
        let [one, three] = ["1", "3"].map(|threads| {
            let found = run(command, [ef, jb], &[&["--threads", threads], more].concat());
            number(&found, value)
        });
        near(three / one, 1.0, 1e-6);
        let refused = failure(&[command, ef, jb, "--threads", "0"]);
        assert!(refused.contains("--threads"), "{refused}");
    }
}

#[test]
fn the_end_alone_and_profiles_on_request() {
    let room = Room::new();
    let [ef, jb] = &stations(&room, PLAN);
    let all = run("correlate", [ef, jb], &[]);
    near(number(&all, "/seconds"), 0.4, 1e-3);
    assert!(all["profiles"].is_null(), "{}", all["profiles"]);
    let options = [
        "--last",
        "100ms",
        "--profiles",
        "--delay",
        "0",
        "--delay",
        "2us",
    ];
    let end = run("correlate", [ef, jb], &options);
    near(number(&end, "/seconds"), 0.1, 0.01);
    assert!(
        end["start"].as_str().unwrap() >= "2024-01-01T12:00:00.29",
        "{}",
        end["start"]
    );
    let profile = &end["profiles"][0];
    assert_eq!(profile["stations"], serde_json::json!(["Ef", "Jb"]));
    let amplitudes = profile["amplitudes"].as_array().unwrap().iter();
    let amplitudes: Vec<f64> = amplitudes.map(|value| value.as_f64().unwrap()).collect();
    assert!(amplitudes.len() <= 512);
    let most = amplitudes.iter().copied().fold(0.0, f64::max);
    let peak = amplitudes
        .iter()
        .position(|amplitude| *amplitude == most)
        .unwrap();
    let step = number(profile, "/step_s");
    let delay = number(profile, "/from_s") + step * peak as f64;
    near(delay, number(&end, "/baselines/0/delay_s"), step);
}

/// Bands of one frequency are products of their own; records of visibilities could not tell them apart.
#[test]
fn bands_of_one_frequency_are_told_apart_or_refused() {
    let room = Room::new();
    let plan = PLAN.replace("edv = 1", "edv = 1\nchannels = 2\nthreads = 2");
    let [ef, jb] = &stations(&room, &plan);
    let is_good = |one: &&Value| number(one, "/correlation") > 0.3;
    let count = |found: Value| {
        let fringes = found["fringes"].as_array().unwrap();
        (fringes.len(), fringes.iter().filter(is_good).count())
    };
    let freq = ["--freq", "4.9G,4.9G"];
    // Of four products two are of the same signal.
    assert_eq!(count(run("fringe", [ef, jb], &freq)), (4, 2));
    let visibilities = room.path("visibilities");
    let out = ["--out", &visibilities];
    let correlate = ["correlate", ef, jb, "--channels", "32"];
    let said = failure(&[&correlate[..], &freq, &out].concat());
    assert!(said.contains("bands 1 and 2 of station Ef"), "{said}");
    let named = ["--polarisations", "RL", "--freq", "4.9G"];
    run(
        "correlate",
        [ef, jb],
        &[&named[..], &out, &["--force"]].concat(),
    );
    assert_eq!(count(json(&["fringe", &visibilities])), (2, 2));
}
