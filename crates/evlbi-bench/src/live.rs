//! `cargo xtask live`: measurements that need time on a machine, scene by scene, each figure next to its expectation and to the host's
//! stalls. The exit status depends on facts, which hold on any host, and on scenes that could not be completed: their facts are
//! unknown.
//!
//! Add a scene to the file of its subject: its actions, expected figures and tolerances.

mod agents;
mod attacks;
mod buckets;
mod captures;
mod connections;
mod correlator;
mod delays;
mod distributed;
mod host;
mod page;
mod picture;
pub mod programs;
mod record;
mod recoveries;
mod safe;
mod sessions;
mod streams;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use evlbi_testkit::need::missing;
use serde_json::{Value, json};

use host::{Host, Watch};
use record::{Ending, Figure, Need, Record, Scene, Table, Verdict};

#[derive(Args)]
pub struct LiveArgs {
    /// Play only the scenes whose names contain this
    #[arg(long)]
    only: Option<String>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// List the scenes and what they need
    #[arg(long)]
    pub list: bool,
}

/// Directory of the report.
const FOLDER: &str = "target/live";

/// All scenes, in the order of the report.
fn scenes() -> Vec<Scene> {
    [
        delays::SCENES,
        streams::SCENES,
        buckets::SCENES,
        recoveries::SCENES,
        safe::SCENES,
        connections::SCENES,
        captures::SCENES,
        correlator::SCENES,
        distributed::SCENES,
        agents::SCENES,
        sessions::SCENES,
        attacks::SCENES,
    ]
    .concat()
}

/// A scene that was played, or skipped.
pub struct Played {
    pub name: &'static str,
    pub shows: &'static str,
    pub ending: Ending,
    pub record: Record,
    pub host: Host,
    /// Stalls and lost CPU time, if they exceed what the scene allows.
    pub excuses: Vec<String>,
}

/// Number of scenes of each kind.
#[derive(Default)]
pub struct Tally {
    pub scenes: usize,
    pub played: usize,
    pub failed: usize,
    pub met: usize,
    pub missed: usize,
    pub not_judged: usize,
    pub facts_hold: usize,
    pub facts_broken: usize,
}

impl Tally {
    pub fn of(scenes: &[Played]) -> Tally {
        let mut tally = Tally::default();
        for scene in scenes {
            tally.scenes += 1;
            match scene.ending {
                Ending::Played => tally.played += 1,
                Ending::LeftOut(_) => {}
                Ending::Failed(_) => tally.failed += 1,
            }
            for figure in &scene.record.figures {
                match figure.verdict {
                    Verdict::Met => tally.met += 1,
                    Verdict::Missed => tally.missed += 1,
                    Verdict::NotJudged => tally.not_judged += 1,
                    Verdict::Shown => {}
                }
            }
            let broken = scene.record.facts.iter().filter(|fact| !fact.holds).count();
            tally.facts_broken += broken;
            tally.facts_hold += scene.record.facts.len() - broken;
        }
        tally
    }
}

pub fn run(args: &LiveArgs) -> Result<()> {
    let is_chosen = |scene: &Scene| {
        args.only
            .as_ref()
            .is_none_or(|only| scene.name.contains(only))
    };
    let scenes: Vec<Scene> = scenes().into_iter().filter(is_chosen).collect();
    if args.list {
        for scene in &scenes {
            println!("{:<20} {}", scene.name, scene.shows);
        }
        return Ok(());
    }
    if scenes.is_empty() {
        bail!("no scene has such a name: cargo xtask live --list names them");
    }
    let begun = jiff::Timestamp::now()
        .strftime("%Y-%m-%d %H:%M UTC")
        .to_string();
    let machine = machine();
    let mut played = Vec::new();
    for scene in &scenes {
        let scene = play(scene)?;
        if !args.json {
            print(&scene);
        }
        played.push(scene);
    }
    let mut page = page::page(&machine, &begun, &played);
    let strays = picture::strays(&page);
    if !strays.is_empty() {
        // The web page shows them too.
        played.push(stray_scene(&strays));
        page = page::page(&machine, &begun, &played);
    }
    let report = json(&machine, &begun, &played);
    fs::create_dir_all(FOLDER).context(FOLDER)?;
    let folder = Path::new(FOLDER);
    let text = serde_json::to_string_pretty(&report)?;
    fs::write(folder.join("report.json"), &text)?;
    fs::write(folder.join("report.html"), page)?;
    if args.json {
        println!("{text}");
    } else {
        summarise(&played);
    }
    let tally = Tally::of(&played);
    if tally.facts_broken + tally.failed > 0 {
        std::process::exit(1);
    }
    Ok(())
}

fn play(scene: &Scene) -> Result<Played> {
    let mut played = Played {
        name: scene.name,
        shows: scene.shows,
        ending: Ending::Played,
        record: Record::new(scene),
        host: Host::default(),
        excuses: Vec::new(),
    };
    let lacks: Vec<String> = scene
        .needs
        .iter()
        .filter_map(|need| lacking(*need))
        .collect();
    if !lacks.is_empty() {
        played.ending = Ending::LeftOut(lacks);
        return Ok(played);
    }
    let watch = Watch::begin()?;
    let begun = Instant::now();
    // The panic of a scene is in the report.
    std::panic::set_hook(Box::new(|_| {}));
    let result = catch_unwind(AssertUnwindSafe(|| (scene.play)(&mut played.record)));
    let _ = std::panic::take_hook();
    played.host = watch.end()?;
    played.host.seconds = begun.elapsed().as_secs_f64();
    match result {
        Ok(Ok(())) => {}
        Ok(Err(error)) => played.ending = Ending::Failed(format!("{error:#}")),
        Err(panic) => played.ending = Ending::Failed(words_of(&*panic)),
    }
    played.excuses = played.record.excuses(&played.host);
    played.record.judge(!played.excuses.is_empty());
    Ok(played)
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without words".to_owned())
}

/// Returns what this machine lacks for a need, and how to get it.
fn lacking(need: Need) -> Option<String> {
    let is_root = || fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    match need {
        Need::Root => (!is_root()).then(|| "root (sudo)".to_owned()),
        Need::Paths if !is_root() => Some("root (sudo)".to_owned()),
        Need::Paths => {
            let tun = fs::File::options()
                .read(true)
                .write(true)
                .open("/dev/net/tun");
            tun.err().map(|error| format!("/dev/net/tun ({error})"))
        }
        Need::Program(program) => missing(&[program]).pop(),
        Need::Slurm => distributed::slurm::lacking(),
        Need::Dask => distributed::dask::lacking(),
    }
}

/// Returns the scene for curves outside their panels, which are a broken fact.
fn stray_scene(strays: &[String]) -> Played {
    let mut record = Record::default();
    let detail = strays[..strays.len().min(5)].join("; ");
    record.fact("no point of a curve lies outside its panel", false, detail);
    Played {
        name: "pictures",
        shows: "Curves stay in their panels.",
        ending: Ending::Played,
        record,
        host: Host::default(),
        excuses: Vec::new(),
    }
}

fn print(scene: &Played) {
    println!("\n{}: {}", scene.name, scene.shows);
    for figure in &scene.record.figures {
        println!(
            "  {:<58} {:>16}   {:<22} {}",
            figure.name,
            figure.found(),
            figure.expected(),
            match figure.verdict {
                Verdict::Shown => "",
                verdict => verdict.words(),
            }
        );
    }
    for line in scene.record.tables.iter().flat_map(Table::lines) {
        println!("  {line}");
    }
    for fact in &scene.record.facts {
        if !fact.holds {
            println!("  BROKEN: {} ({})", fact.what, fact.detail);
        }
    }
    let holding = scene.record.facts.iter().filter(|fact| fact.holds).count();
    if holding > 0 {
        println!("  facts that hold: {holding}");
    }
    match &scene.ending {
        Ending::Played => println!("  host: {}", scene.host.words()),
        Ending::LeftOut(lacks) => println!("  left out: this machine lacks {}", lacks.join(", ")),
        Ending::Failed(why) => {
            println!("  host: {}", scene.host.words());
            println!("  COULD NOT BE PLAYED: {why}");
        }
    }
    if !scene.excuses.is_empty() {
        println!("  disturbed: {}", scene.excuses.join("; "));
    }
}

fn summarise(scenes: &[Played]) {
    let tally = Tally::of(scenes);
    println!(
        "\n{} of {} scenes played, {} could not be; facts: {} hold, {} broken; figures: {} met, {} missed, {} not judged",
        tally.played,
        tally.scenes,
        tally.failed,
        tally.facts_hold,
        tally.facts_broken,
        tally.met,
        tally.missed,
        tally.not_judged
    );
    for scene in scenes {
        if let Ending::LeftOut(lacks) = &scene.ending {
            println!("left out {}: {}", scene.name, lacks.join(", "));
        }
        if let Ending::Failed(why) = &scene.ending {
            println!("could not play {}: {why}", scene.name);
        }
        for fact in scene.record.facts.iter().filter(|fact| !fact.holds) {
            println!("broken in {}: {} ({})", scene.name, fact.what, fact.detail);
        }
    }
    println!("{FOLDER}/report.html, {FOLDER}/report.json");
}

fn json(machine: &str, begun: &str, scenes: &[Played]) -> Value {
    let tally = Tally::of(scenes);
    let scenes = scenes.iter().map(|scene| {
        let (ending, why) = match &scene.ending {
            Ending::Played => ("played", Value::Null),
            Ending::LeftOut(lacks) => ("left out", json!(lacks)),
            Ending::Failed(why) => ("failed", json!(why)),
        };
        let facts = scene
            .record
            .facts
            .iter()
            .map(|fact| json!({"what": fact.what, "holds": fact.holds, "detail": fact.detail}));
        json!({
            "name": scene.name,
            "shows": scene.shows,
            "ending": ending,
            "why": why,
            "figures": scene.record.figures.iter().map(Figure::json).collect::<Vec<_>>(),
            "facts": facts.collect::<Vec<_>>(),
            "tables": scene.record.tables.iter().map(Table::json).collect::<Vec<_>>(),
            "host": scene.host.json(),
            "disturbed": scene.excuses,
        })
    });
    json!({
        "schema": "evlbi.live-report/1",
        "begun": begun,
        "machine": machine,
        "facts": {"hold": tally.facts_hold, "broken": tally.facts_broken},
        "figures": {"met": tally.met, "missed": tally.missed, "not_judged": tally.not_judged},
        "scenes": scenes.collect::<Vec<_>>(),
    })
}

/// Returns CPU, kernel and commit.
fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models: Vec<&str> = cpu
        .lines()
        .filter_map(|line| line.strip_prefix("model name"))
        .filter_map(|line| line.split_once(": "))
        .map(|(_, model)| model.trim())
        .collect();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let commit = Command::new("git")
        .args(["describe", "--always", "--dirty"])
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default();
    format!(
        "{} × {} · Linux {} · commit {commit}",
        std::thread::available_parallelism().map_or(1, usize::from),
        models.first().unwrap_or(&"processor"),
        kernel.trim()
    )
}
