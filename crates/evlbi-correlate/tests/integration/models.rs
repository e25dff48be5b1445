//! Delay models, the polarisations of bands, and the report of a search without a fringe.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evlbi_core::shed::Replace;
use evlbi_correlate::fringe::{FringeOptions, in_directory, in_recordings};
use evlbi_correlate::loss_curve::{Kind, LossCurveOptions, measure};
use evlbi_correlate::{CorrelateOptions, Hertz, text};
use evlbi_net::run::{Note, Notes, Run};
use evlbi_testkit::result::refused;
use evlbi_testkit::{Room, need};
use serde_json::json;

use crate::{
    attempt, channels, correlated, curve, delayed, fringes, fringes_in, near, not_correlated,
    number, owned, sky,
};

/// Three stations, of which two are far beyond the window of delays.
const PLAN: &str = r#"
start = "2024-01-01T12:00:00Z"
duration = 0.4
sample_rate = 4e6
correlation = 0.3
sky_frequency = 4.9e9
channels = 4
payload = 1000
edv = 1
[[station]]
name = "Ef"
[[station]]
name = "Jb"
delay = [1.25e-3, 1e-7]
clock = [3e-6, -2e-9]
[[station]]
name = "On"
delay = [-7e-4, -3e-7]
"#;

fn stations(room: &Room) -> [String; 3] {
    sky(room, PLAN);
    ["Ef", "Jb", "On"].map(|name| room.path(&format!("sky/{name}.vdif")))
}

fn by_model(model: &str) -> CorrelateOptions {
    CorrelateOptions {
        model: Some(model.into()),
        ..channels(64)
    }
}

#[test]
fn the_plan_of_a_simulated_sky_is_the_model_of_its_recordings() {
    let room = Room::new();
    let [ef, jb, on] = &stations(&room);
    let model = room.path("sky/sky.toml");
    assert_eq!(fs::read_to_string(&model).unwrap(), PLAN);
    // Stations are found by their codes, in any order of the recordings.
    let found = correlated(&[on, ef, jb], &by_model(&model));
    let baselines = found["baselines"].as_array().unwrap();
    assert_eq!(baselines.len(), 3);
    for baseline in baselines {
        near(number(baseline, "/amplitude/corrected"), 0.3, 0.01);
        near(number(baseline, "/delay_s"), 0.0, 1e-9);
        near(number(baseline, "/rate_hz"), 0.0, 0.05);
        near(number(baseline, "/phase_rad"), 0.0, 0.05);
        let frequencies = baseline["bands"].as_array().unwrap().iter();
        let frequencies: Vec<f64> = frequencies.map(|it| number(it, "/frequency_hz")).collect();
        assert_eq!(frequencies, [4.9e9, 4.902e9, 4.904e9, 4.906e9]);
    }
    // A delay is a clock error, in addition to the model.
    let late = CorrelateOptions {
        delay: ["0", "1us"].map(|delay| delay.parse().unwrap()).into(),
        ..by_model(&model)
    };
    let found = correlated(&[ef, jb], &late);
    near(number(&found, "/baselines/0/delay_s"), -1e-6, 1e-8);
    let fringe = &fringes(&[ef, on], by_model(&model))["fringes"][0];
    near(number(fringe, "/delay_s"), 0.0, 1e-9);
    let lossy = LossCurveOptions {
        station: vec![3],
        loss: "10%".parse().unwrap(),
        shed: vec![Kind::Random],
        replace: vec![Replace::Nothing],
        correlate: by_model(&model),
        ..LossCurveOptions::default()
    };
    let lossy = curve(&[ef, jb, on], lossy);
    assert_eq!(lossy["stations"], json!(["Ef", "Jb", "On"]));
    let other = room.write("other.toml", PLAN.replace("\"On\"", "\"Wb\""));
    let said = not_correlated(&[ef, on], &by_model(&other));
    assert!(said.contains("has no station On"), "{said}");
    let said = not_correlated(&[ef, on], &by_model(&room.path("none.toml")));
    assert!(said.contains("none.toml"), "{said}");
}

/// Two stations whose delay drifts by `RATE`.
const DRIFTING: &str = r#"
start = "2024-01-01T12:00:00Z"
duration = 0.4
sample_rate = 4e6
correlation = 0.3
sky_frequency = 3e8
payload = 1000
edv = 1
[[station]]
name = "Ef"
[[station]]
name = "Jb"
delay = [1e-4, RATE]
"#;

/// A delay that drifts by one turn across the band of 2 MHz, and by more than three.
#[test]
fn coherence_is_what_a_drifting_delay_leaves_of_the_amplitude() {
    for rate in ["1.25e-6", "4e-6"] {
        let room = Room::new();
        sky(&room, &DRIFTING.replace("RATE", rate));
        let [ef, jb] = &["Ef", "Jb"].map(|name| room.path(&format!("sky/{name}.vdif")));
        let measured = |options: &CorrelateOptions| {
            let found = correlated(&[ef, jb], options);
            ["amplitude/valid", "coherence"].map(|it| number(&found, &format!("/baselines/0/{it}")))
        };
        let [whole, all] = measured(&by_model(&room.path("sky/sky.toml")));
        near(all, 1.0, 0.005);
        let off = CorrelateOptions {
            freq: vec![Hertz(3e8)],
            rate_window: Some(Hertz(2000.0)),
            ..delayed(64, &["0s", "100us"])
        };
        let [low, coherence] = measured(&off);
        // With the delay and the rate that were found, the amplitude is that of the model.
        let found = attempt(&[ef, jb], &off).unwrap().result(false);
        let advice = found.off_model.unwrap();
        assert_eq!(advice.baselines, ["Ef-Jb"]);
        assert!(
            advice.is_all && advice.wider_hz == Some(3900.0),
            "{advice:?}"
        );
        let on = CorrelateOptions {
            delay: advice.delays.unwrap(),
            ..off.clone()
        };
        near(measured(&on)[0] / whole, 1.0, 0.01);
        near(low / whole / coherence, 1.0, 0.05);
        let unknown = CorrelateOptions {
            freq: Vec::new(),
            ..off
        };
        let [same, more] = measured(&unknown);
        near(same / low, 1.0, 0.01);
        assert!(more > coherence, "{more} {coherence}");
        let found = attempt(&[ef, jb], &unknown).unwrap().result(false);
        let advice = found.off_model.unwrap();
        assert!(advice.delays.is_none() && !advice.knows_frequency);
    }
}

/// The rate of a fringe is an alias if the dumps do not resolve it, and the wider window shows it.
#[test]
fn an_alias_is_found_in_a_wider_window_of_rates() {
    let room = Room::new();
    sky(&room, &DRIFTING.replace("RATE", "1.7e-7"));
    let [ef, jb] = &["Ef", "Jb"].map(|name| room.path(&format!("sky/{name}.vdif")));
    let found = |rate_window: Option<Hertz>| {
        let options = CorrelateOptions {
            freq: vec![Hertz(3e8)],
            rate_window,
            ..delayed(64, &["0s", "100us"])
        };
        let found = attempt(&[ef, jb], &options).unwrap().result(false);
        (found.baselines[0].rate_hz, found.off_model)
    };
    let (alias, advice) = found(None);
    let advice = advice.unwrap();
    near(alias, -12.8, 0.5);
    assert!(
        advice.is_all && advice.wider_hz == Some(510.0),
        "{advice:?}"
    );
    let (rate, _) = found(advice.wider_hz.map(Hertz));
    near(rate, 51.2, 0.1);
}

#[test]
fn a_search_without_a_fringe_reports_its_range() {
    let room = Room::new();
    let [ef, jb, on] = &stations(&room);
    let result = |options: &CorrelateOptions| {
        let found = attempt(&[ef, jb, on], options).unwrap();
        found.result(false)
    };
    let without = result(&channels(64)).no_fringe().unwrap();
    assert_eq!(without.baselines, ["Ef-Jb", "Ef-On", "Jb-On"]);
    assert_eq!(without.stations, ["Ef", "Jb", "On"]);
    assert!(without.without_data.is_empty());
    assert_eq!(without.bands, 4);
    near(without.delay_s, 16e-6, 1e-6);
    let model = by_model(&room.path("sky/sky.toml"));
    assert_eq!(result(&model).no_fringe(), None);
    let search = |correlate: CorrelateOptions| {
        let options = FringeOptions {
            correlate,
            ..FringeOptions::default()
        };
        let files = owned(&[ef, jb]);
        in_recordings(&files, &options, &Run::silent()).unwrap()
    };
    assert_eq!(search(model).no_fringe(), None);
    let without = search(channels(64)).no_fringe().unwrap();
    assert_eq!(without.baselines, ["Ef-Jb"]);
    assert_eq!(without.stations, ["Ef", "Jb"]);
    assert_eq!(without.bands, 4);
}

#[test]
fn bands_have_a_table_and_polarisations_in_blocks() {
    let room = Room::new();
    let plan = PLAN.replace("delay =", "#").replace("clock =", "#");
    sky(&room, &plan);
    let [ef, jb] = &["Ef", "Jb"].map(|name| room.path(&format!("sky/{name}.vdif")));
    let named = |polarisations: &str| CorrelateOptions {
        polarisations: polarisations.parse().unwrap(),
        ..delayed(64, &[])
    };
    let found = attempt(&[ef, jb], &named("2X2Y")).unwrap().result(false);
    let json = serde_json::to_value(&found).unwrap();
    let bands = json["baselines"][0]["bands"].as_array().unwrap();
    let named_bands = bands.iter().map(|band| {
        let name = band["polarisations"].as_str().unwrap();
        (name, number(band, "/frequency_hz"))
    });
    let expected = [
        ("XX", 4.9e9),
        ("XX", 4.902e9),
        ("YY", 4.9e9),
        ("YY", 4.902e9),
    ];
    assert_eq!(named_bands.collect::<Vec<(&str, f64)>>(), expected);
    let shown = text(&found);
    let at = shown.find("band ").unwrap();
    let rows: Vec<Vec<&str>> = shown[at..]
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 4, "{shown}");
    for ((place, row), band) in rows.iter().enumerate().zip(bands) {
        let same = |cell: usize, field: &str, within: f64| {
            near(row[cell].parse().unwrap(), number(band, field), within);
        };
        assert_eq!(row[..2], ["Ef-Jb", &(place + 1).to_string()]);
        same(4, "/amplitude/valid", 1e-6);
        same(5, "/weight", 1e-5);
        same(6, "/snr", 0.1);
        assert!(number(band, "/false_alarm") < 1e-6);
    }
    let said = not_correlated(&[ef, jb], &named("8X8Y"));
    assert!(said.contains("8X8Y") && said.contains("has 4"), "{said}");
    // One band has no table of its own.
    let plan = plan.replace("channels = 4", "channels = 1");
    let one = Room::new();
    sky(&one, &plan);
    let files = ["Ef", "Jb"].map(|name| one.path(&format!("sky/{name}.vdif")));
    let found = attempt(&[&files[0], &files[1]], &channels(64)).unwrap();
    assert!(!text(&found.result(false)).contains("band "));
}

/// The job of two stations with one frequency, as far as visibilities need it.
const JOB: &str = "\
START MJD:          60310
START SECONDS:      43200
INT TIME (SEC):     0.050000
FREQ ENTRIES:       1
FREQ (MHZ) 0:       4900.000000000000000
BW (MHZ) 0:         2.000000000000000
SIDEBAND 0:         U
NUM CHANNELS 0:     64
CHANS TO AVG 0:     1
TELESCOPE ENTRIES:  2
TELESCOPE NAME 0:   EF
CLOCK REF MJD 0:    60310.0
CLOCK POLY ORDER 0: 0
CLOCK COEFF 0/0:    0.0
TELESCOPE NAME 1:   JB
CLOCK REF MJD 1:    60310.0
CLOCK POLY ORDER 1: 0
CLOCK COEFF 1/0:    0.0
";

/// A directory with SWIN files alone is described by the job next to it, as DiFX writes it.
#[test]
fn the_job_next_to_visibilities_describes_them() {
    let room = Room::new();
    sky(&room, &PLAN.replace("channels = 4", "channels = 1"));
    let files = ["Ef", "Jb"].map(|name| room.path(&format!("sky/{name}.vdif")));
    let difx = room.path("job_1.difx");
    let options = CorrelateOptions {
        integration: Some(Duration::from_millis(50)),
        visibilities: Some((&difx).into()),
        ..by_model(&room.path("sky/sky.toml"))
    };
    correlated(&[&files[0], &files[1]], &options);
    let search = FringeOptions::default();
    let ours = fringes_in(&difx, &search);
    fs::remove_file(room.path("job_1.difx/visibilities.json")).unwrap();
    let said = refused(in_directory(difx.as_ref(), &search));
    assert!(said.contains("job_1.input"), "{said}");
    let job = room.write("job_1.input", JOB);
    let swin = fs::read_dir(&difx)
        .unwrap()
        .map(|file| file.unwrap().path());
    let swin = swin.filter(|file| file.to_str().unwrap().contains("DIFX_"));
    let swin = swin.last().unwrap().to_str().unwrap().to_owned();
    for path in [&difx, &format!("{difx}/"), &job, &swin] {
        let found = fringes_in(path, &search);
        let fringe = &found["fringes"][0];
        assert_eq!(fringe["stations"], json!(["EF", "JB"]));
        for field in ["delay_s", "rate_hz", "snr", "correlation", "frequency_hz"] {
            assert_eq!(fringe[field], ours["fringes"][0][field], "{path} {field}");
        }
    }
    // Phase centres must not be summed.
    fs::copy(&swin, swin.replace("s0000", "s0001")).unwrap();
    let said = refused(in_directory(difx.as_ref(), &search));
    assert!(said.contains("several phase centres"), "{said}");
    fringes_in(&swin, &search);
    room.write(
        "job_1.input",
        JOB.replace("NUM CHANNELS 0:     64", "NUM CHANNELS 0: 0"),
    );
    let said = refused(in_directory(difx.as_ref(), &search));
    assert!(said.contains("job_1.input"), "{said}");
    room.write("job_1.input", "START MJD: 1\n");
    let said = refused(in_directory(difx.as_ref(), &search));
    assert!(said.contains("INT TIME"), "{said}");
}

/// Visibilities of DiFX have the same fringe as the recordings that it correlated.
#[test]
fn fringes_of_difx_are_those_of_the_recordings() {
    let Some(recordings) = need::recordings() else {
        return;
    };
    for (name, bits) in [
        ("zerobaseline_001_very_basic", 8),
        ("nonzerobasline_001_very_high_delay_rate", 16),
    ] {
        let folder = recordings.join("vierds").join(name);
        let path = |file: &str| folder.join(file).to_str().unwrap().to_owned();
        let theirs = fringes_in(&path("sim_1.difx"), &FringeOptions::default());
        let files = ["S1", "S2"].map(|station| path(&format!("{station}_{bits}_1_1_1_test.vdif")));
        let ours = fringes(
            &[&files[0], &files[1]],
            CorrelateOptions {
                model: Some(Path::new(&path("sim_1.im")).into()),
                ..CorrelateOptions::default()
            },
        );
        let (ours, theirs) = (&ours["fringes"][0], &theirs["fringes"][0]);
        let both = |field: &str| (number(ours, field), number(theirs, field));
        for (field, within) in [("/delay_s", 2e-9), ("/rate_hz", 0.05)] {
            let (own, their) = both(field);
            near(own, their, within);
        }
        for field in ["/correlation", "/snr"] {
            let (own, their) = both(field);
            near(own / their, 1.0, 0.05);
        }
    }
}

#[derive(Default)]
struct Lines(Mutex<Vec<String>>);

impl Notes for Lines {
    fn take(&self, note: &Note<'_>) {
        if let Note::Progress { line, .. } = note {
            self.0.lock().unwrap().push((*line).to_owned());
        }
    }
}

/// The correlations of the points show no progress of their own.
#[test]
fn a_loss_curve_has_one_progress() {
    let room = Room::new();
    let files = stations(&room);
    let lines = Arc::new(Lines::default());
    let options = LossCurveOptions {
        files: files.into(),
        loss: "5%,10%".parse().unwrap(),
        shed: vec![Kind::Random],
        correlate: by_model(&room.path("sky/sky.toml")),
        ..LossCurveOptions::default()
    };
    let run = Run::new(Arc::<Lines>::clone(&lines));
    assert!(measure(&options, &run).is_ok());
    let lines = lines.0.lock().unwrap();
    let first = lines.iter().position(|line| line.contains("points"));
    let points: Vec<&String> = lines[first.unwrap()..].iter().collect();
    assert!(
        points.iter().all(|line| line.contains("points")),
        "{points:?}"
    );
}
