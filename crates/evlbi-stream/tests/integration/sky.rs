//! Tests that `sky` writes what the plan describes.

use std::fs;

use evlbi_net::run::Run;
use evlbi_stream::sky::{SkyOptions, simulate};
use evlbi_testkit::Room;
use evlbi_testkit::result::{assert_schema, refused, shown};

use crate::inspect::inspected;

#[test]
fn simulated_stations_match_their_plan() {
    let room = Room::new();
    let plan = room.write(
        "plan.toml",
        b"duration = 1.5\nsample_rate = 400_000\nchannels = 4\nthreads = 2\npayload = 1000\nedv = 1\n\
          [[station]]\nname = \"Ef\"\n[[station]]\nname = \"On\"\nphase_cal = { spacing = 5e4, power = 0.2 }\n",
    );
    let options = SkyOptions {
        plan: plan.into(),
        out: room.path("out").into(),
        force: false,
    };
    let run = Run::silent();
    let report = shown(simulate(&options, &run));
    assert_schema(&report, "evlbi.sky/1");
    assert_eq!(report["files"][1]["station"], "On");
    assert_eq!(report["files"][1]["frames"], 2 * 300);
    assert_eq!(report["files"][1]["frame_rate"], 200);
    assert_eq!(report["files"][1]["seconds"], 1.5);
    let file = report["files"][1]["file"].as_str().unwrap();
    assert_eq!(
        fs::metadata(file).unwrap().len(),
        report["files"][1]["bytes"].as_u64().unwrap()
    );

    let found = inspected(file);
    assert_eq!(found["frame_rate_from"], "header");
    assert_eq!(found["frames"], 600);
    assert_eq!(found["missing_frames"], 0);
    assert_eq!(found["seconds"], 1.5);
    assert_eq!(found["bit_rate"], report["files"][1]["bit_rate"]);
    for thread in found["threads"].as_array().unwrap() {
        assert_eq!(thread["station"], "On");
        assert_eq!(thread["frames"], 300);
        assert_eq!(thread["channels"], 2);
        assert_eq!(thread["sample_rate"], 400_000);
        assert_eq!(thread["bandwidth"], 200_000.0);
        assert_eq!(thread["extended"]["name"], "NICT");
        for channel in thread["statistics"].as_array().unwrap() {
            let counts = channel["components"][0]["counts"].as_array().unwrap();
            let counts: Vec<f64> = counts.iter().map(|count| count.as_f64().unwrap()).collect();
            let total: f64 = counts.iter().sum();
            assert!((counts[0] / total - 0.163).abs() < 0.01, "{counts:?}");
        }
    }

    let error = refused(simulate(&options, &run));
    let first = format!("{} exists", room.path("out/Ef.vdif"));
    assert!(error.contains(&first), "{error}");
    let options = SkyOptions {
        force: true,
        ..options
    };
    assert_eq!(shown(simulate(&options, &run)), report);
}

/// Stations of two plans in one directory keep both models, under the names of their plans.
#[test]
fn each_plan_leaves_its_model() {
    let room = Room::new();
    for (name, station) in [("a.toml", "Ef"), ("b.toml", "On")] {
        let text = format!("duration = 0.01\n[[station]]\nname = \"{station}\"\n");
        let options = SkyOptions {
            plan: room.write(name, &text).into(),
            out: room.path("out").into(),
            force: false,
        };
        let report = shown(simulate(&options, &Run::silent()));
        let model = room.path(&format!("out/{name}"));
        assert_eq!(report["model"], *model);
        assert_eq!(fs::read_to_string(model).unwrap(), text);
    }
}

#[test]
fn errors_of_bad_plans_name_place_and_cause() {
    let room = Room::new();
    let cases = [
        ("duration = 1.0\nsample_rat = 3\n", "line 2"),
        ("duration = 1.0\n", "[[station]]"),
        ("payload = 999\n[[station]]\nname = \"Ef\"\n", "payload"),
    ];
    for (text, says) in cases {
        let plan = room.write("plan.toml", text.as_bytes());
        let options = SkyOptions {
            plan: plan.into(),
            out: room.path("out").into(),
            force: false,
        };
        let error = refused(simulate(&options, &Run::silent()));
        assert!(
            error.contains(says) && error.contains("plan.toml"),
            "{error}"
        );
    }
}
