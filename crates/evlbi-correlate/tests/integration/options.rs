//! Single options of `correlate`, `fringe` and `loss-curve`.

use evlbi_core::shed::Replace;
use evlbi_correlate::fringe::FringeOptions;
use evlbi_correlate::loss_curve::{Kind, LossCurveOptions};
use evlbi_correlate::{CorrelateOptions, Hertz, Stretch};
use evlbi_fx::track::Trust;
use evlbi_testkit::Room;
use evlbi_testkit::result::shown;
use serde_json::{Value, json};

use crate::{
    attempt, channels, correlated, curve, dropped, fringes, fringes_in, near, not_correlated,
    number, sky,
};

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
    sky(room, plan);
    ["Ef", "Jb"].map(|name| room.path(&format!("sky/{name}.vdif")))
}

/// Half of the frames are lost: frames marked invalid are detected by their headers, the fill pattern only in the samples.
#[test]
fn trust_chooses_which_samples_are_valid() {
    let room = Room::new();
    let [ef, jb] = stations(&room, PLAN);
    for (replace, weights, alike) in [
        (Replace::Fill, [0.5, 1.0, 1.0], 1),
        (Replace::Invalid, [0.5, 0.5, 1.0], 0),
    ] {
        let lossy = room.path(&format!("{replace:?}"));
        dropped(&ef, &lossy, "every:2", replace);
        let trusts = [Trust::Exact, Trust::Headers, Trust::Blind].map(|trust| CorrelateOptions {
            trust,
            ..channels(32)
        });
        for (options, weight) in trusts.iter().zip(weights) {
            let found = correlated(&[&lossy, &jb], options);
            near(number(&found, "/baselines/0/weight"), weight, 0.01);
        }
        // Fill pattern among bytes that are taken as samples halves the coefficient.
        let [exact, headers, _] = trusts.map(|options| {
            let found = fringes(&[&lossy, &jb], options);
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
    let [one, three] = [1, 3].map(|threads| {
        let options = CorrelateOptions {
            threads: Some(threads),
            ..channels(32)
        };
        let lossy = LossCurveOptions {
            loss: "10%".parse().unwrap(),
            shed: vec![Kind::Random],
            replace: vec![Replace::Nothing],
            correlate: options.clone(),
            ..LossCurveOptions::default()
        };
        [
            number(
                &correlated(&[ef, jb], &options),
                "/baselines/0/amplitude/valid",
            ),
            number(&fringes(&[ef, jb], options), "/fringes/0/correlation"),
            number(&curve(&[ef, jb], lossy), "/curves/0/points/0/ratio/all"),
        ]
    });
    for (one, three) in one.iter().zip(three) {
        near(three / one, 1.0, 1e-6);
    }
}

#[test]
fn the_end_alone_and_profiles_on_request() {
    let room = Room::new();
    let [ef, jb] = &stations(&room, PLAN);
    let all = correlated(&[ef, jb], &channels(32));
    near(number(&all, "/seconds"), 0.4, 1e-3);
    assert!(all["profiles"].is_null(), "{}", all["profiles"]);
    let options = CorrelateOptions {
        stretch: Stretch::Last(0.1),
        delay: ["0", "2us"].map(|delay| delay.parse().unwrap()).into(),
        ..channels(32)
    };
    let end = shown(attempt(&[ef, jb], &options).map(|found| found.result(true)));
    near(number(&end, "/seconds"), 0.1, 0.01);
    assert!(
        end["start"].as_str().unwrap() >= "2024-01-01T12:00:00.29",
        "{}",
        end["start"]
    );
    let profile = &end["profiles"][0];
    assert_eq!(profile["stations"], json!(["Ef", "Jb"]));
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

/// Bands of one frequency are products of their own; records of visibilities could not distinguish them.
#[test]
fn bands_of_one_frequency_are_distinguished_or_refused() {
    let room = Room::new();
    let plan = PLAN.replace("edv = 1", "edv = 1\nchannels = 2\nthreads = 2");
    let [ef, jb] = &stations(&room, &plan);
    let is_good = |one: &&Value| number(one, "/correlation") > 0.3;
    let count = |found: Value| {
        let fringes = found["fringes"].as_array().unwrap();
        (fringes.len(), fringes.iter().filter(is_good).count())
    };
    let equal = CorrelateOptions {
        freq: vec![Hertz(4.9e9); 2],
        ..channels(32)
    };
    // Of four products two are of the same signal.
    assert_eq!(count(fringes(&[ef, jb], equal.clone())), (4, 2));
    let visibilities = room.path("visibilities");
    let kept = CorrelateOptions {
        visibilities: Some((&visibilities).into()),
        ..equal
    };
    let said = not_correlated(&[ef, jb], &kept);
    assert!(said.contains("bands 1 and 2 of station Ef"), "{said}");
    let named = CorrelateOptions {
        polarisations: "RL".parse().unwrap(),
        freq: vec![Hertz(4.9e9)],
        force: true,
        ..kept
    };
    correlated(&[ef, jb], &named);
    let found = fringes_in(&visibilities, &FringeOptions::default());
    assert_eq!(count(found), (2, 2));
}
