//! Parts of a correlation, in any division, order and number, are the whole to the bit.

use std::fs;

use evlbi_stream::sky::{SkyOptions, simulate};
use evlbi_testkit::Room;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::visibilities::is_swin;
use crate::{Correlation, correlate};

/// Two seconds of stations with two bands, of which one has two threads, and one begins later.
const SKY: &str = r#"
start = "2026-01-01T00:00:00Z"
duration = 2
sample_rate = 2e6
channels = 2
correlation = 0.3
payload = 1000
edv = 1
sky_frequency = 1.4e9
[[station]]
name = "Ef"
delay = [0.0, 1e-9]
[[station]]
name = "Jb"
delay = [30e-6, 2e-9]
[[station]]
name = "On"
delay = [-20e-6]
"#;

/// Frame length: header and payload.
const FRAME: usize = 1032;

/// Recordings with all that happens to some.
struct Scene {
    room: Room,
    paths: Vec<String>,
}

impl Scene {
    fn new() -> Scene {
        let room = Room::new();
        let sky = SkyOptions {
            plan: room.write("sky.toml", SKY).into(),
            out: room.folder().join("sky"),
            force: false,
        };
        simulate(&sky, &Run::silent()).unwrap();
        let paths = ["Ef", "Jb", "On"].map(|name| room.path(&format!("sky/{name}.vdif")));
        // Frames out of order by a few, by many, twice, too late, damaged and missing; bytes between frames.
        let mut frames: Vec<Vec<u8>> = fs::read(&paths[1])
            .unwrap()
            .chunks(FRAME)
            .map(<[u8]>::to_vec)
            .collect();
        let length = frames.len();
        for at in (5..length - 10).step_by(37) {
            frames.swap(at, at + 3);
        }
        for at in (20..length - 700).step_by(111) {
            let late = frames.remove(at);
            frames.insert(at + 600, late);
        }
        for at in (9..length - 10).step_by(53) {
            let again = frames[at].clone();
            frames.insert(at + 2, again);
        }
        for at in (30..length).step_by(97) {
            frames[at][12] ^= 0xff;
        }
        frames[length / 3].extend([1, 2, 3, 4, 5, 6, 7, 8]);
        frames.drain(length / 2..length / 2 + 9);
        fs::write(&paths[1], frames.concat()).unwrap();
        let late = fs::read(&paths[2]).unwrap();
        fs::write(&paths[2], &late[40 * FRAME..late.len() - 300]).unwrap();
        Scene {
            room,
            paths: paths.to_vec(),
        }
    }

    /// Four seconds with two threads: one station has no data for over a second, a thread of another ends early, and the third has frames of another
    /// length at its end.
    fn with_gaps(payload: usize) -> Scene {
        let room = Room::new();
        let sky = |name: &str, payload: usize| {
            let sky = SKY.replace("duration = 2", "duration = 4").replace(
                "payload = 1000",
                &format!("threads = 2\npayload = {payload}"),
            );
            let options = SkyOptions {
                plan: room.write("sky.toml", sky).into(),
                out: room.folder().join(name),
                force: false,
            };
            simulate(&options, &Run::silent()).unwrap();
        };
        sky("rest", payload / 2);
        sky("sky", payload);
        let paths = ["Ef", "Jb", "On"].map(|name| room.path(&format!("sky/{name}.vdif")));
        let mut first = fs::read(&paths[0]).unwrap();
        let rest = fs::read(room.path("rest/Ef.vdif")).unwrap();
        first.extend(&rest[rest.len() / 2..]);
        fs::write(&paths[0], first).unwrap();
        let frames = |path: &str| -> Vec<Vec<u8>> {
            let bytes = fs::read(path).unwrap();
            bytes.chunks(payload + 32).map(<[u8]>::to_vec).collect()
        };
        let mut gap = frames(&paths[1]);
        gap.drain(gap.len() / 3..gap.len() * 2 / 3 + 3);
        fs::write(&paths[1], gap.concat()).unwrap();
        let mut ended = frames(&paths[2]);
        let end = ended.len() / 2;
        let mut number = 0;
        ended.retain(|frame| {
            number += 1;
            number < end || frame[14] & 1 == 0
        });
        fs::write(&paths[2], ended.concat()).unwrap();
        Scene {
            room,
            paths: paths.to_vec(),
        }
    }

    fn options(&self, out: Option<&str>) -> CorrelateOptions {
        CorrelateOptions {
            model: Some(self.room.path("sky.toml").into()),
            channels: Some(32),
            integration: Some(std::time::Duration::from_millis(250)),
            threads: Some(2),
            visibilities: out.map(|out| self.room.folder().join(out)),
            ..CorrelateOptions::default()
        }
    }

    fn whole(&self, out: &str, threads: u16) -> Correlation {
        let options = CorrelateOptions {
            threads: Some(threads),
            ..self.options(Some(out))
        };
        let recordings = Recordings::open(&self.paths, &options, &Run::silent()).unwrap();
        correlate(&recordings, &options, &Run::silent(), &mut ()).unwrap()
    }

    /// Returns the files of visibilities with their description, and the summary without directories.
    fn made(&self, out: &str, correlation: &Correlation) -> (Vec<(String, Vec<u8>)>, Value) {
        let mut files = Vec::new();
        for entry in fs::read_dir(self.room.folder().join(out)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if is_swin(&path) || name == "visibilities.json" {
                files.push((name, fs::read(&path).unwrap()));
            }
        }
        files.sort();
        let summary = correlation
            .result(true)
            .beside(|result| serde_json::to_value(result));
        (files, summary.unwrap())
    }

    fn plan(&self, times: &[i64], groups: usize) -> ChunkPlan {
        let divide = |prepared: &Prepared<'_>, _| {
            let Range { start, end } = prepared.job.range;
            let mut cuts: Vec<i64> = times
                .iter()
                .map(|at| start + at.rem_euclid(end - start))
                .collect();
            cuts.extend([start, end]);
            cuts.sort_unstable();
            cuts.dedup();
            let all = prepared.job.setup.groups().len();
            Ok(Division {
                times: cuts.windows(2).map(|cut| cut[0]..cut[1]).collect(),
                groups: if groups > 1 {
                    (0..=all).collect()
                } else {
                    vec![0, all]
                },
                memory: 0,
            })
        };
        let options = self.options(None);
        ChunkPlan::divided(&self.paths, &options, &[], divide, &Run::silent()).unwrap()
    }

    fn part(&self, plan: &ChunkPlan, number: usize, out: &str) -> Result<PartDone, ChunkError> {
        self.staged(plan, number, out, None)
    }

    fn staged(
        &self,
        plan: &ChunkPlan,
        number: usize,
        out: &str,
        stage: Option<&str>,
    ) -> Result<PartDone, ChunkError> {
        let options = PartOptions {
            threads: Some(1 + number as u16 % 2),
            stage: stage.map(|line| line.parse().unwrap()),
            ..PartOptions::default()
        };
        correlate_part(
            plan,
            number,
            &self.room.folder().join(out),
            &options,
            &Run::silent(),
        )
    }

    fn merge(&self, out: &str, partial: bool) -> Result<Correlation, ChunkError> {
        let out = self.room.folder().join(out);
        let options = MergeOptions {
            out: out.clone(),
            force: true,
            partial,
            mixed: false,
        };
        merge(&out, &options, &Run::silent())
    }
}

/// Any division in time and bands, in any order, with repeats, on any number of threads, is what one run makes.
#[test]
fn parts_are_the_whole_to_the_bit() {
    let scene = Scene::new();
    let whole = scene.whole("one", 1);
    let expected = scene.made("one", &whole);
    assert_eq!(scene.made("two", &scene.whole("two", 2)), expected);
    let stations = expected.1["stations"].as_array().unwrap();
    for count in ["late", "duplicates"] {
        assert!(stations[1][count].as_u64() > Some(0), "{}", stations[1]);
    }
    assert!(stations[1]["damage"]["unframed_bytes"].as_u64() > Some(0));
    assert_eq!(stations[2]["damage"]["truncated_bytes"], FRAME - 300);
    let strategy = (
        prop::collection::vec(any::<i64>(), 0..9),
        1..3usize,
        prop::collection::vec(any::<Index>(), 0..5),
        any::<u64>(),
    );
    let number = std::cell::Cell::new(0);
    let config = ProptestConfig {
        cases: 3,
        ..ProptestConfig::default()
    };
    proptest!(config, |((times, groups, repeats, order) in strategy)| {
        number.set(number.get() + 1);
        let out = format!("parts-{}", number.get());
        let plan = scene.plan(&times, groups);
        let mut parts: Vec<usize> = (1..=plan.parts.len()).collect();
        let again: Vec<usize> = repeats.iter().map(|index| *index.get(&parts)).collect();
        parts.extend(again);
        parts.sort_by_key(|part| order.rotate_left(*part as u32 * 7));
        for part in parts {
            scene.part(&plan, part, &out).unwrap();
        }
        let merged = scene.merge(&out, false).unwrap();
        prop_assert_eq!(&scene.made(&out, &merged), &expected);
    });
}

/// Long gaps, threads that end early, slow frames and another format at the end change nothing, wherever the bytes come from.
#[test]
fn gaps_and_slow_frames_are_those_of_one_run() {
    let line = "dd status=none iflag=skip_bytes,count_bytes bs=1M skip={offset} count={length} if={path} of={out}";
    for payload in [4_000, 100_000] {
        let scene = Scene::with_gaps(payload);
        let whole = scene.whole("one", 1);
        let expected = scene.made("one", &whole);
        let stations = expected.1["stations"].as_array().unwrap();
        assert!(stations[0]["damage"]["rest"].is_object(), "{}", stations[0]);
        for (out, stage) in [("near", None), ("far", Some(line))] {
            let plan = scene.plan(&[3, 6, 7, 9, 11, 13], 1);
            for part in [7, 1, 4, 3, 2, 6, 5] {
                scene.staged(&plan, part, out, stage).unwrap();
            }
            let merged = scene.merge(out, false).unwrap();
            assert_eq!(scene.made(out, &merged), expected, "{payload} {out}");
        }
    }
}

/// Everything that differs from the plan is refused by name, and a complete part is not done again.
#[test]
fn what_is_not_of_the_plan_is_refused() {
    let scene = Scene::new();
    let plan = scene.plan(&[9, 30], 1);
    let part = |number, out| scene.part(&plan, number, out);
    let refused = |result: Result<PartDone, ChunkError>| result.unwrap_err().to_string();
    assert!(!part(2, "job").unwrap().was_there);
    let done = part(2, "job").unwrap();
    assert!(done.was_there);
    let folder = scene.room.folder().join("job");

    let said = scene.merge("job", false).err().unwrap().to_string();
    assert_eq!(said, "2 of 3 parts are missing: 1, 3");
    let partial = scene.merge("job", true).unwrap().result(false);
    let missing: Vec<usize> = partial.missing.iter().map(|it| it.part).collect();
    assert_eq!(missing, [1, 3]);
    let weight = partial.baselines[0].weight;
    assert!((0.05..0.9).contains(&weight), "{weight}");

    // A part whose mark is not there yet does not count, nor does half a mark.
    let mark = done.sums_in(&folder).with_extension("json");
    let text = fs::read(&mark).unwrap();
    for half in [&text[..0], &text[..text.len() / 2]] {
        fs::write(&mark, half).unwrap();
        let said = scene.merge("job", true).err().unwrap().to_string();
        assert!(said.ends_with(" has no parts of a plan"), "{said}");
    }
    fs::write(&mark, &text).unwrap();
    // Files of others with names of marks, and marks of parts that the plan lacks.
    fs::write(folder.join("part-1.json"), [0xff, 0xfe]).unwrap();
    let none = String::from_utf8(text.clone()).unwrap();
    let none = none.replace("\"part\": 2", "\"part\": 0");
    let name = mark.file_name().unwrap().to_str().unwrap();
    fs::write(folder.join(name.replace("00002", "00000")), none).unwrap();
    scene.merge("job", true).unwrap();

    // Damage is named, and mended by the same command.
    let sums = done.sums_in(&folder);
    let whole = fs::read(&sums).unwrap();
    fs::write(&sums, &whole[..whole.len() - 1]).unwrap();
    let said = scene.merge("job", true).err().unwrap().to_string();
    let begin = format!("part 2, of host {}, is damaged: ", host::name());
    assert!(
        said.starts_with(&begin) && said.contains(&format!("of {} bytes", whole.len())),
        "{said}"
    );
    assert!(!part(2, "job").unwrap().was_there);
    assert_eq!(fs::read(&sums).unwrap(), whole);

    // Another whole result of the part, as of a faulty host.
    let mut other = whole.clone();
    other[whole.len() / 2] ^= 1;
    let faulty = sha256(&other);
    let text = String::from_utf8(text).unwrap();
    let text = text
        .replace(&done.sha256, &faulty)
        .replace(&format!("\"{}\"", host::name()), "\"faulty\"");
    let name = folder.join(format!("part-00002-{}", &faulty[..12]));
    fs::write(name.with_extension("evs"), &other).unwrap();
    fs::write(name.with_extension("json"), text).unwrap();
    let said = scene.merge("job", true).err().unwrap().to_string();
    assert!(
        said.starts_with("part 2 differs between hosts ") && said.contains("faulty"),
        "{said}"
    );
    fs::remove_file(name.with_extension("json")).unwrap();

    // Instructions of another kind are recorded, and not mixed.
    let scalar = PartOptions {
        simd: Some(Simd::Scalar),
        ..PartOptions::default()
    };
    correlate_part(&plan, 1, &folder, &scalar, &Run::silent()).unwrap();
    if plan.simd != Simd::Scalar {
        let said = scene.merge("job", true).err().unwrap().to_string();
        assert!(
            said.contains("and part 1 of host") && said.contains("with scalar"),
            "{said}"
        );
        // The part with the instructions of the others replaces it.
        assert!(!part(1, "job").unwrap().was_there);
        scene.merge("job", true).unwrap();
    }

    // Another C library, as its mark shows.
    let done = part(3, "job").unwrap();
    let mark = done.sums_in(&folder).with_extension("json");
    let sound = fs::read_to_string(&mark).unwrap();
    fs::write(&mark, sound.replace(&done.sines, "0123456789ab")).unwrap();
    let said = scene.merge("job", true).err().unwrap().to_string();
    assert!(said.contains("different sines and cosines"), "{said}");
    fs::remove_file(&mark).unwrap();

    // Another plan in the same directory, a part that is not there, another version, and a plan that was edited.
    let other = scene.plan(&[9], 1);
    let said = refused(scene.part(&other, 1, "job"));
    assert!(said.contains("parts of another plan"), "{said}");
    let said = refused(part(4, "job"));
    assert_eq!(said, "the plan has no part 4: its parts are 1 to 3");
    let mut old = plan.clone();
    old.version = "0.0.1".to_owned();
    let said = refused(scene.part(&old, 3, "job"));
    assert!(said.starts_with("version 0.0.1 made the plan"), "{said}");
    let text = serde_json::to_string(&plan).unwrap();
    let path = scene.room.write(
        "plan.json",
        text.replace("\"channels\":32", "\"channels\":16"),
    );
    let said = ChunkPlan::read(path.as_ref()).unwrap_err().to_string();
    assert!(said.contains("was changed after it was made"), "{said}");
    let path = scene.room.write("plan.json", &text);
    assert_eq!(
        ChunkPlan::read(path.as_ref()).unwrap().plan_id,
        plan.plan_id
    );

    // The same plan, made elsewhere and later.
    let mut later: Value = serde_json::from_str(&text).unwrap();
    later["threads"] = 64.into();
    later["recordings"][0]["host"] = "elsewhere".into();
    let latest = &mut later["recordings"][0]["document"]["recording"]["latest"];
    *latest = (latest.as_i64().unwrap() + 100).into();
    let later: ChunkPlan = serde_json::from_value(later).unwrap();
    assert_eq!(later.id(), plan.plan_id);

    // Recordings and models that changed since.
    let harm = |path: &str, change: &dyn Fn(&mut Vec<u8>), expected: &str| {
        let sound = fs::read(path).unwrap();
        let mut bytes = sound.clone();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
        let said = refused(part(3, "job"));
        assert!(said.contains(path) && said.contains(expected), "{said}");
        fs::write(path, sound).unwrap();
    };
    let path = &scene.paths[0];
    harm(
        path,
        &|bytes| bytes.truncate(bytes.len() - FRAME),
        "it has ",
    );
    harm(path, &|bytes| bytes[4] ^= 1, "its first header");
    harm(
        path,
        &|bytes| *bytes.last_mut().unwrap() ^= 1,
        "its last bytes",
    );
    let model = scene.room.path("sky.toml");
    harm(
        &model,
        &|bytes| bytes.push(b'\n'),
        "was changed after the plan was made",
    );
    // A file that is away may come back; others do not.
    fs::rename(path, scene.room.path("away")).unwrap();
    assert!(part(3, "job").unwrap_err().is_temporary());
    assert!(!part(4, "job").unwrap_err().is_temporary());
}

/// Bytes that a command fetches are as good as the recordings; a command that fails is named, and the part can be tried again.
#[test]
fn fetched_bytes_are_the_recordings() {
    let scene = Scene::new();
    let plan = scene.plan(&[20, 41], 1);
    let expected = scene.part(&plan, 2, "here").unwrap();
    for path in &scene.paths {
        fs::rename(path, format!("{path}.far")).unwrap();
    }
    let fetch = |line: &str| {
        let options = PartOptions {
            stage: Some(line.parse().unwrap()),
            ..PartOptions::default()
        };
        correlate_part(
            &plan,
            2,
            &scene.room.folder().join("far"),
            &options,
            &Run::silent(),
        )
    };
    let line = "test {host} = $(cat /proc/sys/kernel/hostname) && dd status=none iflag=skip_bytes,count_bytes bs=1M skip={offset} count={length} if={path}.far of={out}";
    assert_eq!(fetch(line).unwrap().sha256, expected.sha256);
    let far = scene.room.folder().join("far");
    fs::remove_dir_all(&far).unwrap();
    for (line, expected) in [
        (
            "false {path} {offset} {length} {out}",
            "ended with exit status: 1",
        ),
        (
            "echo x > {out} # {path} {offset} {length}",
            "brought 2 of 4096 bytes",
        ),
    ] {
        let error = fetch(line).unwrap_err();
        let said = error.to_string();
        assert!(error.is_temporary() && said.contains(expected), "{said}");
        assert!(said.contains(&scene.paths[0]), "{said}");
    }
    assert_eq!(fs::read_dir(far).unwrap().count(), 1);
}
