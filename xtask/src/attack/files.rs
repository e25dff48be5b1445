//! Damaged files: recordings, gaps files, campaigns, sessions, captures. A file may be refused; nothing else may happen.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use evlbi_testkit::damage::{damage, damage_text, pick};
use rand::RngExt;
use serde_json::Value;

use super::Attack;
use super::program::{Ended, well};
use super::scene::{LIMIT, Scene, wait_for};

const ORDERLY: &str = "status 0 or 1 within 60 s and 4 GiB, no panic";

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "file-campaign",
        target: "report",
        what: "damaged campaigns of watch (SQLite)",
        expects: ORDERLY,
        run: campaigns,
    },
    Attack {
        name: "file-recording",
        target: "inspect",
        what: "damaged recordings: VDIF, Mark 5B, the inputs of fuzz targets",
        expects: ORDERLY,
        run: recordings,
    },
    Attack {
        name: "file-correlation",
        target: "correlate",
        what: "a damaged recording beside a good one, and damaged gaps files",
        expects: ORDERLY,
        run: correlations,
    },
    Attack {
        name: "file-session",
        target: "run --check",
        what: "damaged session files; their agent runs",
        expects: ORDERLY,
        run: sessions,
    },
    Attack {
        name: "file-capture",
        target: "analyse",
        what: "damaged captures (pcap)",
        expects: ORDERLY,
        run: captures,
    },
];

/// Number of damaged files of a kind per round.
const MUTANTS: usize = 16;

const CAPTURES: &str = "crates/evlbi/tests/oracles/captures";
const SESSION: &str = "examples/session-one-machine.toml";

const PLAN: &str = r#"
start = "2024-01-01T12:00:00Z"
duration = 0.2
sample_rate = 64e3
correlation = 0.3
edv = 1
payload = 800
[[station]]
name = "Ef"
[[station]]
name = "Jb"
"#;

/// Runs a command on damaged files, each made by `make`.
fn all<const N: usize>(
    scene: &mut Scene,
    mut make: impl FnMut(&mut Scene) -> Result<[String; N]>,
) -> Result<()> {
    let mut refused = 0;
    for number in 0..MUTANTS {
        let arguments = make(scene)?;
        let arguments = arguments.each_ref().map(String::as_str);
        let ended = scene.run_limited(&format!("mutant-{number}"), &arguments)?;
        refused += usize::from(ended.is_some_and(|ended| !ended.status.success()));
    }
    scene.note(format!("{MUTANTS} files, {refused} refused"));
    Ok(())
}

/// Returns the files of a directory, sorted by name.
fn files(folder: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.to_owned())?;
    let mut files: Vec<_> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.retain(|file| file.is_file());
    files.sort();
    Ok(files)
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| file.display().to_string())
}

/// Returns two recordings of simulated stations.
fn stations(scene: &Scene) -> Result<[PathBuf; 2]> {
    let plan = scene.room.write("plan.toml", PLAN);
    let out = scene.room.path("sky");
    let sky: Ended = scene.start(&["sky", &plan, "--out", &out])?.end(LIMIT)?;
    well(&sky)?;
    Ok(["Ef", "Jb"].map(|name| Path::new(&out).join(format!("{name}.vdif"))))
}

fn recordings(scene: &mut Scene) -> Result<()> {
    let [good, _] = stations(scene)?;
    let good = read(&good)?;
    let mut corpus = files("fuzz/corpus/vdif")?;
    corpus.extend(files("fuzz/corpus/mark5b")?);
    corpus.extend(files("fuzz/corpus/deframe")?);
    all(scene, |scene| {
        let bytes = match scene.random.random_bool(0.5) {
            true => good.clone(),
            false => read(pick::<PathBuf>(&mut scene.random, &corpus))?,
        };
        let bytes = damage(&mut scene.random, &bytes);
        let file = scene.room.write("x.vdif", bytes);
        Ok(["inspect".to_owned(), file, "--json".to_owned()])
    })
}

fn correlations(scene: &mut Scene) -> Result<()> {
    let [good, other] = stations(scene)?;
    let (good, other) = (good.display().to_string(), read(&other)?);
    let gaps = files("fuzz/corpus/gaps")?;
    all(scene, |scene| {
        let mut bytes = other.clone();
        let mut gap = read(pick::<PathBuf>(&mut scene.random, &gaps))?;
        match scene.random.random_bool(0.7) {
            true => bytes = damage(&mut scene.random, &bytes),
            false => gap = damage(&mut scene.random, &gap),
        }
        let file = scene.room.write("y.vdif", bytes);
        scene.room.write("y.vdif.gaps.json", gap);
        let arguments = ["correlate", &good, &file, "--channels", "16", "--json"];
        Ok(arguments.map(str::to_owned))
    })
}

fn campaigns(scene: &mut Scene) -> Result<()> {
    let mut responder = scene.start(&["respond", "--bind", "127.0.0.1:0"])?;
    let address = responder.address()?.to_string();
    let file = scene.room.path("campaign.sqlite");
    let watch = scene.start(&[
        "watch", &file, &address, "--for", "600ms", "--window", "200ms", "--size", "100", "--rate",
        "100k", "--json",
    ])?;
    well(&watch.end(LIMIT)?)?;
    let campaign = read(Path::new(&file))?;
    all(scene, |scene| {
        let file = scene
            .room
            .write("x.sqlite", damage(&mut scene.random, &campaign));
        Ok(["report".to_owned(), file, "--json".to_owned()])
    })
}

fn sessions(scene: &mut Scene) -> Result<()> {
    let folder = scene.room.path("agent");
    let start = ["agent", "--dir", &folder, "--bind", "127.0.0.1:0", "--json"];
    let agent = scene.start(&start)?;
    wait_for("the agent is there", LIMIT, || {
        serde_json::from_str::<Value>(&agent.stdout()).ok()
    })?;
    let session = fs::read_to_string(SESSION).context(SESSION)?;
    let session = session.replace("/tmp/evlbi-agent", &folder);
    all(scene, |scene| {
        let text = damage_text(&mut scene.random, &session);
        let file = scene.room.write("x.toml", text);
        Ok(["run".to_owned(), file, "--check".to_owned()])
    })
}

fn captures(scene: &mut Scene) -> Result<()> {
    let mut captures = files(CAPTURES)?;
    captures.retain(|file| file.extension().is_some_and(|ending| ending == "pcap"));
    all(scene, |scene| {
        let capture = read(pick::<PathBuf>(&mut scene.random, &captures))?;
        let file = scene
            .room
            .write("x.pcap", damage(&mut scene.random, &capture));
        Ok(["analyse".to_owned(), file, "--json".to_owned()])
    })
}
