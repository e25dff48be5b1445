//! `loss-curve` on several stations, packets of frames and lost headers.

use evlbi_core::shed::Replace;
use evlbi_correlate::loss_curve::{Kind, Knows, LossCurveOptions, Search, measure, text};
use evlbi_correlate::{CorrelateOptions, DelayTerms};
use evlbi_net::run::Run;
use evlbi_testkit::Room;
use evlbi_testkit::result::refused;
use serde_json::{Value, json};

use crate::{channels, curve, near, number, owned, sky};

const PLAN: &str = r#"
start = "2024-01-01T12:00:00Z"
duration = 0.8
sample_rate = 4e6
correlation = 0.5
payload = 1000
edv = 1
[[station]]
name = "Ef"
[[station]]
name = "Jb"
"#;

/// Options of one curve of random loss at the second station.
fn options() -> LossCurveOptions {
    LossCurveOptions {
        loss: "20%".parse().unwrap(),
        shed: vec![Kind::Random],
        replace: vec![Replace::Nothing],
        knows: vec![Knows::All],
        correlate: CorrelateOptions {
            threads: Some(1),
            ..channels(64)
        },
        ..LossCurveOptions::default()
    }
}

/// Returns the curves at one place.
fn at<'a>(result: &'a Value, place: &'a str) -> impl Iterator<Item = &'a Value> {
    let curves = result["curves"].as_array().unwrap();
    curves.iter().filter(move |curve| curve["at"] == place)
}

/// Checks that the ratios of a point are those of theory.
#[track_caller]
fn as_predicted(point: &Value, what: &str) {
    for measure in ["all", "autos", "valid", "weight", "snr"] {
        let ratio = number(point, &format!("/ratio/{measure}"));
        let theory = number(point, &format!("/theory/{measure}"));
        assert!(
            (ratio - theory).abs() < 0.02,
            "{what} {measure}: {ratio}, theory {theory}"
        );
    }
}

/// Of three stations one loses data: two baselines do as theory says, and the third is as it was.
#[test]
fn a_baseline_without_loss_does_not_change() {
    let room = Room::new();
    sky(&room, &format!("{PLAN}[[station]]\nname = \"On\"\n"));
    let files = ["Ef", "Jb", "On"].map(|name| room.path(&format!("sky/{name}.vdif")));
    let options = LossCurveOptions {
        files: files.to_vec(),
        ..options()
    };
    let result = measure(&options, &Run::silent()).unwrap();
    let shown = text(&result);
    assert!(shown.contains("\nEf-On: unchanged"), "{shown}");
    let result = serde_json::to_value(&result).unwrap();
    assert_eq!(result["stations"], json!(["Ef", "Jb", "On"]));
    assert_eq!(result["lossless_baselines"].as_array().unwrap().len(), 3);
    assert_eq!(
        result["lossless"]["snr"],
        result["lossless_baselines"][0]["snr"]
    );
    let mut baselines = Vec::new();
    for curve in at(&result, "one") {
        let point = &curve["points"][0];
        let is_lossy = curve["lossy_stations"] == json!(["Jb"]);
        baselines.push((curve["baseline"].clone(), is_lossy));
        let kept = 1.0 - number(point, "/shed");
        for measure in ["all", "autos", "valid", "weight", "snr"] {
            let ratio = number(point, &format!("/ratio/{measure}"));
            let theory = number(point, &format!("/theory/{measure}"));
            near(ratio, theory, if is_lossy { 0.02 } else { 1e-6 });
        }
        if !is_lossy {
            assert_eq!(number(point, "/ratio/weight"), 1.0);
            assert_eq!(number(point, "/lost").to_bits(), 0f64.to_bits());
        }
        near(number(point, "/ratio/weight"), kept, 1e-3);
    }
    let named = |a: &str, b: &str, lossy: bool| (json!([a, b]), lossy);
    let expected = [
        named("Ef", "Jb", true),
        named("Ef", "On", false),
        named("Jb", "On", true),
    ];
    assert_eq!(baselines, expected);
    // Two lose different samples.
    let result = curve(
        &[&files[0], &files[1], &files[2]],
        LossCurveOptions {
            station: vec![2, 3],
            ..options
        },
    );
    assert_eq!(result["lossy_stations"], json!(["Jb", "On"]));
    let both = at(&result, "one").find(|curve| curve["baseline"] == json!(["Jb", "On"]));
    let point = &both.unwrap()["points"][0];
    near(
        number(point, "/ratio/weight"),
        number(point, "/theory/weight"),
        0.02,
    );
    near(number(point, "/theory/weight"), 0.64, 0.05);
}

/// A fifth of the packets of a Mark 4 recording is lost, evenly over the places in a frame. Frames of which the packet with the header
/// is lost keep their other seven packets, or are dropped.
#[test]
fn a_lost_header_costs_a_packet_or_a_frame() {
    let room = Room::new();
    sky(&room, &format!("{PLAN}format = \"mark4\"\n"));
    let files = [room.path("sky/Ef.vdif"), room.path("sky/Jb.m4")];
    let options = LossCurveOptions {
        shed: vec![Kind::Every],
        replace: vec![Replace::Nothing, Replace::Fill, Replace::Random],
        knows: vec![Knows::All, Knows::Headers],
        by_packet: true,
        search: vec![Search::Flywheel, Search::Drop(0), Search::Drop(1)],
        ..options()
    };
    let result = curve(&[&files[0], &files[1]], options);
    near(number(&result, "/lossless/weight"), 0.992, 1e-4);
    // In five frames eight packets of 2500 bytes are lost, two of them in the frame whose header is lost.
    let (frame, packet) = (20_000.0 - 160.0, 2500.0);
    let dropped = (4.0 * frame - 6.0 * packet) / (5.0 * frame);
    let mut seen = 0;
    for curve in at(&result, "one") {
        let (point, search) = (&curve["points"][0], curve["search"].as_str().unwrap());
        let what = format!("{} {} {search}", curve["knows"], curve["replace"]);
        seen += 1;
        assert_eq!(curve["packet"], 2500, "{what}");
        near(number(point, "/shed"), 0.2, 1e-9);
        let kept = 1.0 - number(point, "/lost");
        match search {
            "flywheel" => near(kept, 0.8, 1e-9),
            "drop" => near(kept, dropped, 1e-9),
            // The next frame is dropped, too.
            _ => assert!(kept < dropped - 0.1, "{what}: {kept}"),
        }
        let weight = number(point, "/ratio/weight");
        match (curve["knows"].as_str().unwrap(), search) {
            ("all", _) => near(weight, kept, 1e-3),
            // Replaced samples look valid.
            (_, "flywheel") => near(weight, 1.0, 1e-3),
            (_, "drop") => near(weight, 0.8, 1e-3),
            _ => near(weight, 0.6, 0.03),
        }
        as_predicted(point, &what);
    }
    // A correlator that knows only headers sees missing packets as one that knows all.
    assert_eq!(seen, 9 + 6);
}

/// Fill on tracks that counts as samples costs what its pattern in a channel predicts: of high levels alone, of low ones, or of both. The
/// reader loses what the theory of its header search predicts.
#[test]
fn fill_on_tracks_costs_what_theory_predicts() {
    let hold = Search::Hold {
        missing: 1,
        needed: 2,
    };
    // Channels, fan-out, channel, length of packets (of which odd ones may start within a word), power of the fill over that of noise.
    for (channels, fan_out, channel, packet, power) in [
        (8, 2, "0U", 2500, 2.6),
        (4, 4, "0U", 1250, 0.8),
        (4, 4, "1U", 8000, 1.4),
    ] {
        let room = Room::new();
        let plan = PLAN.replace("payload = 1000", "payload = 4000");
        let rate = format!("sample_rate = {}e6\nchannels = {channels}", 2 * fan_out);
        let plan = plan.replace("sample_rate = 4e6", &rate);
        sky(
            &room,
            &format!("{plan}format = \"mark4\"\nfan_out = {fan_out}\n"),
        );
        let number_of = &channel[..1];
        let files = [
            format!("{}#channels={number_of}", room.path("sky/Ef.vdif")),
            format!("{}#channels={channel}", room.path("sky/Jb.m4")),
        ];
        let options = LossCurveOptions {
            replace: vec![Replace::Fill],
            knows: vec![Knows::Headers],
            // No curves of loss at both stations.
            map: true,
            packet: vec![packet],
            search: vec![Search::Flywheel, Search::Drop(1), hold],
            ..options()
        };
        let result = curve(&[&files[0], &files[1]], options);
        for curve in at(&result, "one") {
            let (point, search) = (&curve["points"][0], &curve["search"]);
            let what = format!("{channels} channels, fan-out {fan_out}, {channel}, {search}");
            as_predicted(point, &what);
            let (lost, theory) = (number(point, "/lost"), number(point, "/lost_theory"));
            // Of 80 frames or more, each counts for up to three.
            let within = if search == "flywheel" { 0.01 } else { 0.2 };
            assert!(
                (lost - theory).abs() < within,
                "{what}: lost {lost}, theory {theory}"
            );
            if search == "flywheel" {
                let lost = number(point, "/shed");
                let autos = number(point, "/theory/autos");
                let found = (((1.0 - lost) / autos).powi(2) - 1.0 + lost) / lost;
                near(found, power, 0.1);
            }
        }
    }
}

/// Packets of VDIF and Mark 5B.
#[test]
fn packets_of_other_formats_are_lost_alike() {
    let room = Room::new();
    let plan = PLAN.replace("sample_rate = 4e6", "sample_rate = 8e6");
    sky(&room, &format!("{plan}format = \"mark5b\"\n"));
    let jb = format!("{}#format=Mark5B-16-1-2&year=2024", room.path("sky/Jb.m5b"));
    let files = [room.path("sky/Ef.vdif"), jb];
    // Fill of VDIF in whole words; of Mark 5B in eighths of a frame, as usual.
    for (station, packet, parts) in [(1, vec![172], 6), (2, Vec::new(), 8)] {
        let options = LossCurveOptions {
            station: vec![station],
            packet,
            replace: vec![Replace::Fill, Replace::Invalid],
            by_packet: true,
            ..options()
        };
        let result = curve(&[&files[0], &files[1]], options);
        let frame = [1032, 10_016][usize::from(station) - 1];
        for curve in at(&result, "one") {
            let point = &curve["points"][0];
            assert_eq!(curve["packet"], json!(frame / parts));
            let kept = 1.0 - number(point, "/lost");
            near(number(point, "/ratio/weight"), kept, 1e-3);
            let is_marked = curve["replace"] == "invalid";
            // A frame of which a packet is lost is marked as a whole.
            let expected = if is_marked { 0.8f64.powi(parts) } else { 0.8 };
            near(kept, expected, 0.05);
        }
    }
}

#[test]
fn packets_that_do_not_fit_are_refused() {
    let room = Room::new();
    sky(&room, PLAN);
    let files = ["Ef", "Jb"].map(|name| room.path(&format!("sky/{name}.vdif")));
    let whole = LossCurveOptions {
        files: owned(&[&files[0], &files[1]]),
        ..options()
    };
    let packets = |packet: Vec<usize>, by_packet: bool| LossCurveOptions {
        packet,
        by_packet,
        ..whole.clone()
    };
    for (options, says) in [
        (packets(vec![100], true), "frames of 1032 bytes"),
        (packets(vec![0], true), "packets of 0 bytes"),
        (packets(vec![129], false), "whole frames are shed"),
        (
            LossCurveOptions {
                station: Vec::new(),
                ..whole.clone()
            },
            "no station",
        ),
    ] {
        let said = refused(measure(&options, &Run::silent()));
        assert!(said.contains(says), "{said}");
    }
}

/// Stations that keep different fractions in common steps keep what they have in common. Delays cost at the ends of blocks.
#[test]
fn common_steps_keep_what_two_stations_have_in_common() {
    let room = Room::new();
    let plan = PLAN.replace("duration = 0.8", "duration = 3.2");
    let plan = plan.replace("sample_rate = 4e6", "sample_rate = 2e6");
    let plan = plan.replacen("name = \"Jb\"", "name = \"Jb\"\ndelay = [3e-3]", 1);
    sky(
        &room,
        &format!("{plan}[[station]]\nname = \"On\"\ndelay = [15e-3]\n"),
    );
    let files = ["Ef", "Jb", "On"].map(|name| room.path(&format!("sky/{name}.vdif")));
    let files = [&*files[0], &*files[1], &*files[2]];
    let kept = |kept: &[f64]| LossCurveOptions {
        kept: kept.to_vec(),
        correlate: CorrelateOptions {
            delay: [0.0, 3e-3, 15e-3]
                .map(|delay| DelayTerms(vec![delay]))
                .into(),
            ..options().correlate
        },
        ..options()
    };
    let result = curve(&files, kept(&[0.75, 0.5, 0.5]));
    let weights = |shed: &str| {
        let curves = at(&result, "both").filter(|curve| curve["shed"] == shed);
        curves
            .map(|curve| number(&curve["points"][0], "/ratio/weight"))
            .collect::<Vec<f64>>()
    };
    let [steps, random] = ["keep", "random"].map(weights);
    for (weight, expected) in steps.iter().zip([0.4925, 0.4625, 0.44]) {
        near(*weight, expected, 0.01);
    }
    for (weight, expected) in random.iter().zip([0.375, 0.375, 0.25]) {
        near(*weight, expected, 0.03);
    }
    assert_eq!((steps.len(), random.len()), (3, 3));
    // A station that keeps everything costs nothing.
    let result = curve(&files, kept(&[1.0, 0.5, 1.0]));
    let unchanged = at(&result, "both").find(|curve| curve["baseline"] == json!(["Ef", "On"]));
    near(
        number(&unchanged.unwrap()["points"][0], "/ratio/weight"),
        1.0,
        1e-9,
    );
    let two = LossCurveOptions {
        files: owned(&files),
        ..kept(&[0.5, 0.5])
    };
    let said = refused(measure(&two, &Run::silent()));
    assert!(
        said.contains("2 fractions are given for 3 recordings"),
        "{said}"
    );
}

/// The map shows every header search, packet length and loss, in JSON, text and a picture.
#[test]
fn a_map_shows_amplitudes_over_search_packets_and_loss() {
    let room = Room::new();
    sky(&room, &format!("{PLAN}format = \"mark4\"\n"));
    let out = room.path("map");
    let options = LossCurveOptions {
        files: vec![room.path("sky/Ef.vdif"), room.path("sky/Jb.m4")],
        loss: "5%,30%".parse().unwrap(),
        replace: vec![Replace::Fill],
        knows: vec![Knows::Headers],
        map: true,
        out: Some((&out).into()),
        correlate: CorrelateOptions {
            integration: Some(std::time::Duration::from_millis(100)),
            ..options().correlate
        },
        ..options()
    };
    let result = measure(&options, &Run::silent()).unwrap();
    let shown = text(&result);
    assert!(
        shown.contains("Hypothesis about the hardware correlator of 2006"),
        "{shown}"
    );
    let result = serde_json::to_value(&result).unwrap();
    let cells = result["map"].as_array().unwrap();
    // Five searches, three lengths of packets, two losses.
    assert_eq!(cells.len(), 5 * 3 * 2, "{shown}");
    let of = |search: &str| {
        let is_of = |cell: &&Value| {
            cell["search"] == search && cell["loss"] == 0.3 && cell["packet"] == 2500
        };
        cells.iter().find(is_of).unwrap().clone()
    };
    // Only a reader that drops frames has periods with little data.
    assert!(of("flywheel")["light_amplitude"].is_null());
    assert!(number(&of("drop:2"), "/light_amplitude") > 0.0);
    let conclusions = result["conclusions"].to_string();
    assert!(
        conclusions.contains("keeps frames without a header: no amplitude rises"),
        "{conclusions}"
    );
    if cfg!(feature = "pictures") {
        assert!(room.text("map/map.svg").contains("Hypothesis"));
    }
}
