//! `correlate`, `fringe` and `loss-curve` on simulated stations and on recordings that other correlators correlated.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evlbi_core::shed::Replace;
use evlbi_correlate::chunks::{
    ChunkOptions, ChunkPlan, MergeOptions, PartOptions, correlate_part, merge,
};
use evlbi_correlate::fringe::{FringeOptions, in_directory};
use evlbi_correlate::loss_curve::{Kind, Knows, LossCurveOptions, measure};
use evlbi_correlate::{CorrelateOptions, Hertz, SideBand, Stretch};
use evlbi_fx::difx::swin::{Reader, Record};
use evlbi_fx::track::Trust;
use evlbi_net::run::Run;
use evlbi_testkit::result::refused;
use evlbi_testkit::{Room, need};
use rustfft::num_complex::Complex32;
use serde_json::Value;

use crate::{
    channels, correlated, curve, delayed, dropped, fringes_in, near, not_correlated, number, owned,
    sky,
};

const PLAN: &str = r#"
start = "2024-01-01T12:00:00Z"
duration = 0.5
sample_rate = 16e6
correlation = 0.3
sky_frequency = 4.9e9
edv = 1
[[station]]
name = "Ef"
[[station]]
name = "Jb"
delay = [2.5e-6, 1e-7]
[[station]]
name = "On"
delay = [-1.5e-6, -3e-7]
"#;

/// The delays of the plan, which remove those of the recordings.
const DELAYS: [&str; 3] = ["0", "2.5us,1e-7", "-1.5us,-3e-7"];

/// Three stations.
fn stations(room: &Room) -> [String; 3] {
    sky(room, PLAN);
    ["Ef", "Jb", "On"].map(|name| room.path(&format!("sky/{name}.vdif")))
}

/// The first two.
fn two_stations(room: &Room) -> [String; 2] {
    let [ef, jb, _] = stations(room);
    [ef, jb]
}

#[test]
fn simulated_stations_show_their_fringes() {
    let room = Room::new();
    let [ef, jb, on] = &stations(&room);
    let stopped = correlated(&[ef, jb, on], &delayed(256, &DELAYS));
    let pairs: Vec<String> = stopped["baselines"]
        .as_array()
        .unwrap()
        .iter()
        .map(|baseline| {
            format!("{}-{}", baseline["stations"][0], baseline["stations"][1]).replace('"', "")
        })
        .collect();
    assert_eq!(pairs, ["Ef-Jb", "Ef-On", "Jb-On"]);
    for baseline in stopped["baselines"].as_array().unwrap() {
        near(number(baseline, "/amplitude/corrected"), 0.3, 0.004);
        near(number(baseline, "/amplitude/valid"), 0.2669, 0.004);
        // rho sqrt(2 B T).
        near(
            number(baseline, "/snr") / (0.2669 * 8e6f64.sqrt()),
            1.0,
            0.02,
        );
        near(number(baseline, "/weight"), 1.0, 1e-3);
        near(number(baseline, "/delay_s"), 0.0, 3e-10);
        near(number(baseline, "/rate_hz"), 0.0, 0.02);
        near(number(baseline, "/phase_rad"), 0.0, 0.02);
    }
    assert_eq!(stopped["autos"].as_array().unwrap().len(), 3);
    assert_eq!(stopped["rotation"], "samples");
    // Delays that the options omit are found: that of the second station minus that of the first.
    let rates = ["0", "0,1.01e-7", "0,-3e-7"];
    let found = correlated(&[ef, jb, on], &delayed(256, &rates));
    for (number_of, delay, rate) in [(0, 2.5e-6, -1e-9), (1, -1.5e-6, 0.0), (2, -4e-6, 1e-9)] {
        let baseline = &found["baselines"][number_of];
        near(number(baseline, "/delay_s"), delay, 2e-9);
        near(number(baseline, "/rate_hz"), rate * 4.9e9, 0.05);
        near(number(baseline, "/rate"), rate, 1e-11);
    }
}

/// Parts of a run share a directory and add up to the whole; a search there finds the same as one of the whole run.
#[test]
fn chunks_are_the_whole() {
    let room = Room::new();
    let [ef, jb] = &two_stations(&room);
    let (whole, parts) = (room.path("whole"), room.path("parts"));
    let options = |out: &str| CorrelateOptions {
        integration: Some(Duration::from_millis(50)),
        visibilities: Some(out.into()),
        ..delayed(64, &DELAYS[..2])
    };
    let at_once = correlated(&[ef, jb], &options(&whole));
    let paths = [ef, jb].map(Clone::clone);
    let wanted = ChunkOptions {
        parts: 3,
        memory: None,
        hosts: Vec::new(),
    };
    let plan = ChunkPlan::new(&paths, &options(&parts), &wanted, &Run::silent()).unwrap();
    for part in 1..=3 {
        let part_options = PartOptions::default();
        correlate_part(&plan, part, parts.as_ref(), &part_options, &Run::silent()).unwrap();
    }
    let merge_options = MergeOptions {
        out: parts.clone().into(),
        force: false,
        partial: false,
        mixed: false,
    };
    merge(parts.as_ref(), &merge_options, &Run::silent()).unwrap();
    let (whole_records, part_records) = (
        records(Path::new(&whole), 64),
        records(Path::new(&parts), 64),
    );
    assert_eq!(whole_records.len(), 30);
    assert_eq!(whole_records.len(), part_records.len());
    for (a, b) in whole_records.iter().zip(&part_records) {
        assert_eq!(
            (a.baseline, a.seconds, a.weight),
            (b.baseline, b.seconds, b.weight)
        );
        assert_eq!(a.channels, b.channels);
    }
    let options = FringeOptions {
        out: Some(room.path("pictures").into()),
        ..FringeOptions::default()
    };
    let searched = fringes_in(&parts, &options);
    let fringe = &searched["fringes"][0];
    near(
        number(fringe, "/correlation"),
        number(&at_once, "/baselines/0/amplitude/valid"),
        2e-5,
    );
    near(
        number(fringe, "/snr") / number(&at_once, "/baselines/0/snr"),
        1.0,
        0.02,
    );
    for picture in fringe["pictures"].as_array().unwrap() {
        assert!(fs::metadata(picture.as_str().unwrap()).unwrap().len() > 1000);
    }
    let said = refused(in_directory(parts.as_ref(), &options));
    assert!(said.contains("exists"), "{said}");
}

/// Parts of a recording are read at their offsets, unless its times cannot be trusted: a wrong time costs its own frame.
#[test]
fn a_wrong_time_costs_one_frame() {
    let room = Room::new();
    let plan = PLAN
        .replace("duration = 0.5", "duration = 8")
        .replace("16e6", "4e6");
    sky(&room, &plan);
    let (ef, jb) = (room.path("sky/Ef.vdif"), room.path("sky/Jb.vdif"));
    let sound = fs::read(&jb).unwrap();
    let with = |frame: usize, seconds: &dyn Fn(u8) -> u8| {
        let mut bytes = sound.clone();
        bytes[frame * 8032] = seconds(bytes[frame * 8032]);
        room.write("harmed.vdif", &bytes)
    };
    let frames = |jb: &str, quarter: Option<u32>| {
        let begin = |quarter: u32| 2.0 * f64::from(quarter);
        let stretch = |quarter| Stretch::Between(begin(quarter)..begin(quarter + 1));
        let options = CorrelateOptions {
            stretch: quarter.map_or(Stretch::All, stretch),
            ..delayed(64, &DELAYS[..2])
        };
        let result = correlated(&[&ef, jb], &options);
        (
            number(&result, "/stations/1/frames"),
            number(&result, "/baselines/0/weight"),
        )
    };
    // The last quarter of 1000 frames.
    let (read, weight) = frames(&jb, Some(3));
    assert!((250.0..260.0).contains(&read), "{read}");
    near(weight, 1.0, 1e-4);
    // Too early and too late, at the position where a search would look first.
    for wrong in [
        |second: u8| second - 100,
        |second: u8| second.wrapping_add(100),
    ] {
        let harmed = with(500, &wrong);
        near(frames(&harmed, None).1, 0.999, 1e-4);
        for (quarter, weight) in [(0, 1.0), (1, 1.0), (2, 0.996), (3, 1.0)] {
            near(frames(&harmed, Some(quarter)).1, weight, 1e-3);
        }
    }
}

/// All records of a directory in the order of the files' names.
fn records(directory: &Path, channels: usize) -> Vec<Record> {
    let files = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let is_swin = |path: &PathBuf| {
        path.file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with("DIFX_")
    };
    let mut files: Vec<PathBuf> = files.filter(is_swin).collect();
    files.sort();
    let read = |path: PathBuf| Reader::new(File::open(path).unwrap(), vec![channels]);
    let mut records: Vec<Record> = files
        .into_iter()
        .flat_map(read)
        .map(Result::unwrap)
        .collect();
    records.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    records
}

/// Root mean square of the difference, and of the first.
fn differ(a: &[Complex32], b: &[Complex32]) -> (f32, f32) {
    let mean = |sum: f32| (sum / a.len() as f32).sqrt();
    let difference = a.iter().zip(b).map(|(a, b)| (a - b).norm_sqr()).sum();
    (
        mean(difference),
        mean(a.iter().map(Complex32::norm_sqr).sum()),
    )
}

/// Only the gaps file marks frames that were replaced by noise.
#[test]
fn the_gaps_file_counts() {
    let room = Room::new();
    let [ef, jb] = &two_stations(&room);
    let lossy = room.path("lossy.vdif");
    dropped(jb, &lossy, "random:0.2", Replace::Random);
    let options = delayed(128, &DELAYS[..2]);
    let with = correlated(&[ef, &lossy], &options);
    near(number(&with, "/baselines/0/amplitude/valid"), 0.2669, 0.004);
    near(number(&with, "/baselines/0/weight"), 0.8, 0.05);
    fs::remove_file(room.path("lossy.vdif.gaps.json")).unwrap();
    let without = correlated(&[ef, &lossy], &options);
    near(number(&without, "/baselines/0/weight"), 1.0, 1e-3);
    let lost = 1.0 - number(&with, "/baselines/0/weight");
    let expected = (1.0 - lost) / (1.0 + 0.407 * lost).sqrt() * 0.2669;
    near(
        number(&without, "/baselines/0/amplitude/valid"),
        expected,
        0.004,
    );
}

/// The duration is that of the data, however long an integration is; a missing model is named.
#[test]
fn the_duration_is_that_of_the_data() {
    let room = Room::new();
    let [ef, jb] = &two_stations(&room);
    for integration in [Duration::from_millis(100), Duration::from_hours(1)] {
        let options = CorrelateOptions {
            integration: Some(integration),
            ..channels(64)
        };
        let result = correlated(&[ef, jb], &options);
        near(number(&result, "/seconds"), 0.5, 1e-3);
        assert_eq!(result["start"], "2024-01-01T12:00:00Z");
    }
    let options = CorrelateOptions {
        model: Some(room.path("none.im").into()),
        ..CorrelateOptions::default()
    };
    let said = not_correlated(&[ef, jb], &options);
    assert!(said.contains("none.im"), "{said}");
}

/// Uncorrelated noise has no fringe after loss with the defaults at both stations.
#[test]
fn loss_makes_no_fringe_of_noise() {
    let room = Room::new();
    let plan = PLAN.replace("correlation = 0.3", "correlation = 0.0");
    sky(&room, &plan);
    let lossy = ["Ef", "Jb"].map(|name| {
        let (whole, lossy) = (room.path(&format!("sky/{name}.vdif")), room.path(name));
        dropped(&whole, &lossy, "random:10%", Replace::Random);
        lossy
    });
    let options = CorrelateOptions {
        trust: Trust::Blind,
        ..channels(128)
    };
    let result = correlated(&[&lossy[0], &lossy[1]], &options);
    assert!(number(&result, "/baselines/0/snr") < 8.0, "{result}");
    assert!(number(&result, "/baselines/0/false_alarm") > 1e-6);
}

/// Each kind of loss costs as much as theory predicts, at signal-to-noise ratios of 700.
#[test]
fn loss_costs_as_much_as_theory_predicts() {
    let room = Room::new();
    let [ef, jb] = &two_stations(&room);
    let options = LossCurveOptions {
        loss: "10%,30%".parse().unwrap(),
        shed: vec![Kind::Random],
        replace: vec![Replace::Nothing, Replace::Fill, Replace::Random],
        correlate: delayed(128, &DELAYS[..2]),
        ..LossCurveOptions::default()
    };
    let result = curve(&[ef, jb], options);
    let whole = number(&result, "/lossless/snr");
    assert!(whole > 500.0);
    let curves = result["curves"].as_array().unwrap();
    // Nine curves know of every lost frame; where frames were replaced by nothing, the headers show as much.
    assert_eq!(curves.len(), 9 + 6);
    for (curve, point) in curves.iter().flat_map(|curve| {
        let points = curve["points"].as_array().unwrap();
        points.iter().map(move |point| (curve, point))
    }) {
        let name = |key: &str| curve[key].as_str().unwrap();
        let what = format!(
            "{} {} {} {}",
            name("knows"),
            name("replace"),
            name("at"),
            point["loss"]
        );
        if point["theory"].is_null() {
            // Where unknown fill meets fill, it correlates with itself.
            let of = (name("knows"), name("replace"), name("at"));
            assert_eq!(of, ("headers", "fill", "both"));
            continue;
        }
        // Which frames both stations lose is random: of n frames of which each loses f, f (1 - f) sqrt(n) more or less.
        let (frames, shed) = (250.0, number(point, "/shed"));
        let chance = if name("at") == "both" && name("shed") == "random" {
            shed / (1.0 - shed) / f64::sqrt(frames)
        } else {
            0.0
        };
        // Errors of this measurement and of the lossless one.
        let errors = [number(point, "/relative_error"), 1.0 / whole, chance];
        let error = errors.iter().map(|error| error * error).sum::<f64>().sqrt();
        for measure in ["all", "autos", "valid", "weight", "snr"] {
            let found = number(point, &format!("/ratio/{measure}"));
            let theory = number(point, &format!("/theory/{measure}"));
            assert!(
                (found / theory - 1.0).abs() < 3.0 * error,
                "{what} {measure}: {found}, theory {theory}"
            );
        }
        if name("knows") == "all" {
            near(number(point, "/periods_off"), 0.0, 0.01);
        }
    }
}

/// A wavefront that reaches the second station 20 ms later meets blocks of 100 ms that both lose alike: a fifth of
/// each is lost twice. Losing step at gaps loses more.
#[test]
fn a_late_wavefront_loses_less_in_common() {
    let room = Room::new();
    let plan = PLAN.replace("delay = [2.5e-6, 1e-7]", "delay = [0.02]");
    sky(&room, &plan.replace("duration = 0.5", "duration = 2"));
    let (ef, jb) = (room.path("sky/Ef.vdif"), room.path("sky/Jb.vdif"));
    let options = LossCurveOptions {
        loss: "20%".parse().unwrap(),
        shed: vec![Kind::Random],
        replace: vec![Replace::Nothing, Replace::Fill],
        knows: vec![Knows::All, Knows::Papers],
        correlate: delayed(128, &["0", "20ms"]),
        ..LossCurveOptions::default()
    };
    let result = curve(&[&ef, &jb], options);
    let point = |of: [&str; 4]| {
        let is_of = |curve: &&Value| {
            of == ["knows", "shed", "at", "replace"].map(|key| curve[key].as_str().unwrap())
        };
        let curves = result["curves"].as_array().unwrap();
        let curve = curves.iter().find(is_of);
        curve.unwrap_or_else(|| panic!("{of:?}"))["points"][0].clone()
    };
    let common = point(["all", "common", "both", "nothing"]);
    near(number(&common, "/ratio/weight"), 0.76, 0.005);
    near(number(&common, "/ratio/all"), 0.76, 0.005);
    near(number(&common, "/ratio/valid"), 1.0, 0.003);
    let random = point(["all", "random", "both", "nothing"]);
    let alone = 1.0 - number(&random, "/shed");
    near(number(&random, "/ratio/weight"), alone * alone, 0.02);
    let papers = point(["papers", "random", "one", "nothing"]);
    let (shed, lost) = (number(&papers, "/shed"), number(&papers, "/lost"));
    // After each run of lost frames one more: f (1 - f).
    near(lost, shed + shed * (1.0 - shed), 0.02);
    // One frame in a hundred is before the first wavefront that both received.
    near(number(&papers, "/ratio/weight"), 1.0 - lost, 0.01);
    // Replaced frames leave no gap at which to lose step.
    let filled = point(["papers", "random", "one", "fill"]);
    assert_eq!(filled["lost"], filled["shed"]);
}

/// Errors that are reported before hours of work, and before a recording is opened.
#[test]
fn a_picture_that_exists_is_refused_first() {
    let room = Room::new();
    let picture = room.write("both-common.png", b"");
    let options = LossCurveOptions {
        files: ["a.vdif", "b.vdif"].map(|name| room.path(name)).into(),
        out: Some(room.folder().to_owned()),
        // A kind that is requested twice is drawn once.
        shed: vec![Kind::Random, Kind::Random],
        ..LossCurveOptions::default()
    };
    let refused = measure(&options, &Run::silent()).err().expect("an error");
    assert!(refused.to_string().contains(&picture), "{refused}");
    assert!(!room.folder().join("loss-curve.json").exists());
}

#[test]
fn recordings_that_cannot_be_correlated_are_refused_with_a_reason() {
    let room = Room::new();
    let [ef, jb] = &two_stations(&room);
    let flagged = |flag: &str| CorrelateOptions {
        flag: vec![flag.parse().unwrap()],
        ..channels(64)
    };
    let integrated = |micros| CorrelateOptions {
        integration: Some(Duration::from_micros(micros)),
        ..CorrelateOptions::default()
    };
    let modelled = CorrelateOptions {
        model: Some(room.path("x.im").into()),
        ..CorrelateOptions::default()
    };
    for (options, says) in [
        (&flagged("Xx:0s..1s"), "the stations are Ef, Jb"),
        (&integrated(1), "shorter than a spectrum"),
        (&modelled, "cannot read"),
    ] {
        let said = not_correlated(&[ef, jb], options);
        assert!(said.contains(says), "{said}");
    }
    let said = refused(in_directory(ef.as_ref(), &FringeOptions::default()));
    assert!(said.contains("not a directory"), "{said}");
    let third = LossCurveOptions {
        files: owned(&[ef, jb]),
        station: vec![3],
        ..LossCurveOptions::default()
    };
    let said = refused(measure(&third, &Run::silent()));
    assert!(
        said.contains("station 3 is not among the 2 recordings"),
        "{said}"
    );
    let weighed = correlated(&[ef, jb], &flagged("Ef:0.1s..0.2s"));
    near(number(&weighed, "/baselines/0/weight"), 0.8, 1e-3);
    // A requested window of rates is searched if the integrations resolve it.
    let fast = CorrelateOptions {
        rate_window: Some(Hertz(1000.0)),
        ..channels(64)
    };
    let fast = correlated(&[ef, jb], &fast);
    near(number(&fast, "/window/rate_hz"), 1000.0, 1e-6);
    // A refused correlation leaves no files behind.
    let out = room.path("refused");
    let too_fast = CorrelateOptions {
        rate_window: Some(Hertz(1e6)),
        visibilities: Some((&out).into()),
        ..CorrelateOptions::default()
    };
    not_correlated(&[ef, jb], &too_fast);
    assert_eq!(fs::read_dir(&out).map_or(0, Iterator::count), 0);
    let short = CorrelateOptions {
        channels: Some(16),
        ..integrated(100)
    };
    assert_eq!(correlated(&[ef, jb], &short)["interrupted"], false);
}

/// The directory of recordings with other correlators' results.
fn reference(name: &str) -> Option<PathBuf> {
    Some(need::recordings()?.join(name))
}

/// Correlates a job of DiFX and gives the records of both.
fn job(folder: &Path, room: &Room) -> (Value, Vec<Record>, Vec<Record>) {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "vdif"))
        .collect();
    files.sort();
    let shown: Vec<&str> = files.iter().map(|file| file.to_str().unwrap()).collect();
    let out = room.path("out");
    let options = CorrelateOptions {
        model: Some(folder.join("sim_1.im")),
        visibilities: Some((&out).into()),
        ..CorrelateOptions::default()
    };
    let result = correlated(&shown, &options);
    let parts = room.folder().join("parts");
    in_parts(&shown, &options, &parts);
    for file in fs::read_dir(&out).unwrap() {
        let file = file.unwrap();
        let same =
            fs::read(file.path()).unwrap() == fs::read(parts.join(file.file_name())).unwrap();
        assert!(same, "{}", file.path().display());
    }
    (
        result,
        records(&folder.join("sim_1.difx"), 64),
        records(Path::new(&out), 64),
    )
}

/// Correlates in seven parts, some twice, and merges them.
fn in_parts(files: &[&str], options: &CorrelateOptions, out: &Path) {
    let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
    let options = CorrelateOptions {
        visibilities: None,
        ..options.clone()
    };
    let wanted = ChunkOptions {
        parts: 7,
        memory: None,
        hosts: Vec::new(),
    };
    let run = Run::silent();
    let plan = ChunkPlan::new(&files, &options, &wanted, &run).unwrap();
    for part in [3, 6, 7, 5, 1, 2, 4, 3, 6] {
        correlate_part(&plan, part, out, &PartOptions::default(), &run).unwrap();
    }
    let options = MergeOptions {
        out: out.to_owned(),
        force: false,
        partial: false,
        mixed: false,
    };
    merge(out, &options, &run).unwrap();
}

/// Visibilities are DiFX's, record by record, and so are the weights.
fn agree(theirs: &[Record], ours: &[Record], rms_of_level: f32) {
    let mut compared = 0;
    for record in theirs {
        let same = |other: &&Record| {
            other.baseline == record.baseline && (other.seconds - record.seconds).abs() < 1e-4
        };
        let Some(found) = ours.iter().find(same) else {
            assert!(record.seconds > 63_001.0, "no record at {}", record.seconds);
            continue;
        };
        // DiFX ends at the full second; where the delays cut the last integration short, it is dropped.
        if record.seconds > 63_000.98 {
            continue;
        }
        near(found.weight, record.weight, 1e-3);
        for axis in 0..3 {
            near(
                found.uvw[axis],
                if record.baseline.0 == record.baseline.1 {
                    0.0
                } else {
                    record.uvw[axis]
                },
                1e-6,
            );
        }
        let (rms, level) = differ(&record.channels, &found.channels);
        // DiFX drops a whole subintegration if any of it is missing.
        let rms_of_level = if record.weight < 0.99 {
            0.01
        } else {
            rms_of_level
        };
        assert!(
            rms < rms_of_level * level,
            "{:?} at {}: {rms} of {level}",
            record.baseline,
            record.seconds
        );
        compared += 1;
    }
    assert!(compared >= 110, "{compared}");
}

#[test]
fn a_zero_baseline_agrees_with_difx() {
    let Some(folder) = reference("vierds/zerobaseline_001_very_basic") else {
        return;
    };
    let room = Room::new();
    let (result, theirs, ours) = job(&folder, &room);
    let baseline = &result["baselines"][0];
    // (2 / pi) asin(10 / 60), and before sampling in one bit 10 / 60.
    let error = number(baseline, "/amplitude/valid") / number(baseline, "/snr");
    near(number(baseline, "/amplitude/valid"), 0.1066, 2.0 * error);
    near(
        number(baseline, "/amplitude/corrected"),
        1.0 / 6.0,
        4.0 * error,
    );
    agree(&theirs, &ours, 2e-3);
}

#[test]
fn a_long_baseline_agrees_with_difx() {
    let Some(folder) = reference("vierds/nonzerobasline_001_very_high_delay_rate") else {
        return;
    };
    let room = Room::new();
    let (result, theirs, ours) = job(&folder, &room);
    assert_eq!(result["rotation"], "samples");
    let baseline = &result["baselines"][0];
    // The recordings were simulated with other delays than the model's: DiFX's own fringe is here too.
    near(number(baseline, "/delay_s"), 1.3425e-6, 2e-9);
    near(number(baseline, "/rate_hz"), 0.278, 0.01);
    // Of a block of 16 us, a delay of 1.34 us leaves this fraction of (2 / pi) asin(1 / 4) = 0.1609.
    near(
        number(baseline, "/amplitude/valid"),
        0.1609 * (1.0 - 1.3425 / 16.0),
        1.5e-3,
    );
    agree(&theirs, &ours, 2e-3);
}

#[test]
fn phase_calibration_tones_are_found() {
    let Some(folder) = reference("correlx-vgos/media") else {
        return;
    };
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (a, b) = (
        file("v15327_gs_328-185735_3m.vdif"),
        file("expxx_stnxx_328-185735_3m.vdif"),
    );
    let coarse = CorrelateOptions {
        sample_rate: Some(Hertz(32e6)),
        integration: Some(Duration::from_millis(3)),
        ..CorrelateOptions::default()
    };
    let fine = CorrelateOptions {
        channels: Some(32_000),
        ..coarse.clone()
    };
    let result = correlated(&[&a, &b], &fine);
    assert_eq!(result["stations"][0]["frames"], 95);
    let autos = result["autos"].as_array().unwrap();
    assert_eq!(autos.len(), 128);
    // The tones are at both stations: they are reported as lines, not as a fringe.
    let result = correlated(&[&a, &b], &coarse);
    assert_eq!(result["baselines"][0]["in_lines"], true);
    for station in [0, 64] {
        let name = &autos[station]["station"];
        let mut five_apart = 0;
        for auto in autos.iter().filter(|auto| auto["station"] == *name) {
            near(number(auto, "/weight"), 1.0, 0.1);
            let lines: Vec<f64> = auto["lines_hz"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(Value::as_f64)
                .collect();
            five_apart += lines
                .windows(2)
                .filter(|pair| (pair[1] - pair[0] - 5e6).abs() < 2e3)
                .count();
        }
        assert!(five_apart > 150, "{name}: {five_apart}");
    }
}

/// A delay of milliseconds that changes is that at the station's own time; and a band that was mirrored by its
/// sampler (every other sample negated) is a lower sideband, with the same fringe.
#[test]
fn long_delays_and_lower_sidebands() {
    let room = Room::new();
    let plan = PLAN
        .replace("delay = [2.5e-6, 1e-7]", "delay = [0.0021, -3e-7]")
        .replace("name = \"Ef\"", "name = \"Ef\"\ndelay = [1e-6, 5e-7]");
    sky(&room, &plan);
    let mirrored = |name: &str| {
        let mut bytes = room.read(&format!("sky/{name}.vdif"));
        for frame in bytes.chunks_mut(8032) {
            // The codes of the second and fourth sample of a byte become 3 - code.
            frame[32..].iter_mut().for_each(|byte| *byte ^= 0b1100_1100);
        }
        room.write(&format!("{name}-lower.vdif"), &bytes)
    };
    let upper = [room.path("sky/Ef.vdif"), room.path("sky/Jb.vdif")];
    let lower = [mirrored("Ef"), mirrored("Jb")];
    for ([ef, jb], freq, sideband) in [
        (&upper, 4.9e9, SideBand::Upper),
        (&lower, 4.908e9, SideBand::Lower),
    ] {
        let options = CorrelateOptions {
            freq: vec![Hertz(freq)],
            sideband: Some(sideband),
            ..delayed(256, &["1us,5e-7", "2.1ms,-3e-7"])
        };
        let result = correlated(&[ef, jb], &options);
        let baseline = &result["baselines"][0];
        near(number(baseline, "/amplitude/corrected"), 0.3, 0.004);
        near(number(baseline, "/delay_s"), 0.0, 3e-10);
        near(number(baseline, "/phase_rad"), 0.0, 0.02);
        near(number(baseline, "/weight"), 1.0, 1e-3);
    }
}

/// Two polarisations of two frequencies in two threads: each has its products, and the baseline is that of equal
/// polarisations. Integrations need not be a whole number of blocks.
#[test]
fn bands_polarisations_and_odd_integrations() {
    let room = Room::new();
    let plan = PLAN
        .replace("edv = 1", "edv = 1\nchannels = 4\nthreads = 2")
        .replace("16e6", "4e6");
    sky(&room, &plan);
    let (ef, jb) = (room.path("sky/Ef.vdif"), room.path("sky/Jb.vdif"));
    let options = CorrelateOptions {
        polarisations: "RL".parse().unwrap(),
        cross_hands: true,
        integration: Some(Duration::from_micros(33_300)),
        ..delayed(64, &DELAYS[..2])
    };
    let result = correlated(&[&ef, &jb], &options);
    let baseline = &result["baselines"][0];
    near(number(baseline, "/amplitude/corrected"), 0.3, 0.005);
    near(number(baseline, "/weight"), 1.0, 1e-3);
    let bands = baseline["bands"].as_array().unwrap();
    let names: Vec<&str> = bands
        .iter()
        .filter_map(|band| band["polarisations"].as_str())
        .collect();
    assert_eq!(names, ["RR", "RL", "LR", "LL", "RR", "RL", "LR", "LL"]);
    for (number_of, band) in bands.iter().enumerate() {
        let frequency = 4.9e9 + (number_of / 4) as f64 * 2e6;
        near(number(band, "/frequency_hz"), frequency, 0.5);
        let equal = [0, 3].contains(&(number_of % 4));
        near(
            number(band, "/amplitude/valid"),
            if equal { 0.267 } else { 0.0 },
            0.008,
        );
    }
}
