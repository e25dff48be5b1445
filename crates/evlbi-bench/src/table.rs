//! The table with which every bench ends: figures next to those of peers and to the aims; or the same as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Error, Result, bail, ensure};
use clap::Args;
use evlbi_testkit::need::missing;
use serde_json::{Value, json};

/// Options of all benches.
#[derive(Args)]
pub struct Common {
    /// Play only the scenes whose names contain this
    #[arg(long)]
    only: Option<String>,
    /// Print the table as JSON
    #[arg(long)]
    json: bool,
}

/// A part of a bench: it adds figures to the table, given what it stages and its options.
pub type Scene<S, A> = fn(&S, &A, &mut Table) -> Result<()>;

/// Plays the requested scenes and prints their table; `about` follows each name.
///
/// # Errors
/// Returns an error if a scene failed; the others have been played.
pub fn play<S, A>(
    bench: &'static str,
    scenes: &[(&str, Scene<S, A>)],
    common: &Common,
    about: impl Fn() -> String,
    stage: &S,
    args: &A,
) -> Result<()> {
    let is_asked_for = |name: &str| {
        common
            .only
            .as_deref()
            .is_none_or(|only| name.contains(only))
    };
    let mut table = Table::new(bench);
    for (name, scene) in scenes.iter().filter(|(name, _)| is_asked_for(name)) {
        eprintln!("\n{name}{}", about());
        (*name).clone_into(&mut table.scene);
        if let Err(error) = scene(stage, args, &mut table) {
            table.failed(&error);
        }
    }
    if table.scene.is_empty() {
        let names: Vec<&str> = scenes.iter().map(|(name, _)| *name).collect();
        bail!("no scene has this name; there are: {}", names.join(", "));
    }
    if common.json {
        println!("{:#}", table.json());
    } else {
        table.print();
    }
    let failed: BTreeSet<&str> = table.failed.iter().map(|(name, _)| name.as_str()).collect();
    ensure!(
        failed.is_empty(),
        "failed: {}",
        failed.into_iter().collect::<Vec<_>>().join(", ")
    );
    Ok(())
}

/// Returns an error if a program is not installed, with its package.
pub fn tools(programs: &[&str]) -> Result<()> {
    let missing = missing(programs);
    ensure!(missing.is_empty(), "not installed: {}", missing.join(", "));
    Ok(())
}

/// Aim of a figure, or of its ratio to the peer's.
#[derive(Clone, Copy)]
pub enum Aim {
    AtLeast(f64),
    AtMost(f64),
    RatioAtLeast(f64),
    RatioAtMost(f64),
}

/// One line of the table.
pub struct Figure {
    what: String,
    unit: &'static str,
    ours: f64,
    peer: Option<(String, f64)>,
    aims: Vec<Aim>,
}

impl Figure {
    pub fn new(what: impl Into<String>, ours: f64, unit: &'static str) -> Figure {
        Figure {
            what: what.into(),
            unit,
            ours,
            peer: None,
            aims: Vec::new(),
        }
    }

    /// Adds a peer's value.
    pub fn beside(mut self, program: &str, theirs: f64) -> Figure {
        self.peer = Some((program.to_owned(), theirs));
        self
    }

    pub fn aim(mut self, aim: Aim) -> Figure {
        self.aims.push(aim);
        self
    }

    fn ratio(&self) -> Option<f64> {
        let (_, theirs) = self.peer.as_ref()?;
        Some(self.ours / theirs).filter(|ratio| ratio.is_finite())
    }

    /// Returns whether it reaches the aim; `None` if there is no ratio to judge by.
    fn reaches(&self, aim: Aim) -> Option<bool> {
        match aim {
            Aim::AtLeast(aim) => Some(self.ours >= aim),
            Aim::AtMost(aim) => Some(self.ours <= aim),
            Aim::RatioAtLeast(aim) => self.ratio().map(|ratio| ratio >= aim),
            Aim::RatioAtMost(aim) => self.ratio().map(|ratio| ratio <= aim),
        }
    }

    fn aims(&self) -> String {
        let texts = self.aims.iter().map(|aim| {
            let wanted = match aim {
                Aim::AtLeast(aim) => format!(">= {}", short(*aim)),
                Aim::AtMost(aim) => format!("<= {}", short(*aim)),
                Aim::RatioAtLeast(aim) => format!("ratio >= {}", short(*aim)),
                Aim::RatioAtMost(aim) => format!("ratio <= {}", short(*aim)),
            };
            let verdict = match self.reaches(*aim) {
                Some(true) => ": reached",
                Some(false) => ": NOT reached",
                None => "",
            };
            format!("{wanted}{verdict}")
        });
        texts.collect::<Vec<_>>().join(", ")
    }
}

/// The figures of a bench, with failures and missing peers.
pub struct Table {
    bench: &'static str,
    /// The current scene.
    scene: String,
    figures: Vec<(String, Figure)>,
    failed: Vec<(String, String)>,
    missing: BTreeSet<String>,
    versions: BTreeMap<String, String>,
}

impl Table {
    fn new(bench: &'static str) -> Table {
        Table {
            bench,
            scene: String::new(),
            figures: Vec::new(),
            failed: Vec::new(),
            missing: BTreeSet::new(),
            versions: BTreeMap::new(),
        }
    }

    pub fn add(&mut self, figure: Figure) {
        if let Some((program, _)) = &figure.peer {
            let version = self.versions.entry(program.clone());
            version.or_insert_with(|| version_of(program));
        }
        eprintln!("  {}: {} {}", figure.what, short(figure.ours), figure.unit);
        self.figures.push((self.scene.clone(), figure));
    }

    /// Returns whether a peer is installed; the table names one that is not.
    pub fn has_peer(&mut self, program: &str) -> bool {
        let missing = missing(&[program]);
        self.missing.extend(missing.iter().cloned());
        missing.is_empty()
    }

    /// Records a failure of the scene; the rest continues.
    pub fn failed(&mut self, error: &Error) {
        let error = format!("{error:#}");
        eprintln!("  failed: {error}");
        self.failed.push((self.scene.clone(), error));
    }

    /// Records a missing peer without a Debian package, and what installs it.
    pub fn misses(&mut self, peer: &str) {
        self.missing.insert(peer.to_owned());
    }

    /// Sets the version of a peer that the standard option does not report.
    pub fn version(&mut self, program: &str, version: &str) {
        self.versions.insert(program.to_owned(), version.to_owned());
    }

    fn print(&self) {
        let heads = ["figure", "evlbi", "peer", "ratio", "aim"].map(str::to_owned);
        let lines: Vec<[String; 5]> = self.figures.iter().map(|(_, it)| self.line(it)).collect();
        let width = |column: usize| {
            let all = std::iter::once(&heads).chain(&lines);
            all.map(|line| line[column].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: [usize; 5] = std::array::from_fn(width);
        let print = |line: &[String; 5]| {
            let cells = line.iter().zip(widths);
            let cells: Vec<String> = cells
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            println!("| {} |", cells.join(" | "));
        };
        println!();
        print(&heads);
        print(&widths.map(|width| "-".repeat(width)));
        for line in &lines {
            print(line);
        }
        for missing in &self.missing {
            println!("not measured: {missing} is not installed");
        }
        for (scene, error) in &self.failed {
            println!("failed: {scene}: {error}");
        }
    }

    fn line(&self, figure: &Figure) -> [String; 5] {
        let peer = figure.peer.as_ref().map(|(program, theirs)| {
            let version = &self.versions[program];
            format!("{program} {version}: {}", short(*theirs))
        });
        [
            figure.what.clone(),
            format!("{} {}", short(figure.ours), figure.unit),
            peer.unwrap_or_default(),
            figure.ratio().map(short).unwrap_or_default(),
            figure.aims(),
        ]
    }

    fn json(&self) -> Value {
        let figures = self.figures.iter().map(|(scene, figure)| {
            let peer = figure.peer.as_ref().map(|(program, theirs)| {
                json!({"name": program, "version": self.versions[program], "value": theirs})
            });
            let aims = figure.aims.iter().map(|aim| {
                let (of, bound, value) = match aim {
                    Aim::AtLeast(aim) => ("value", "at_least", aim),
                    Aim::AtMost(aim) => ("value", "at_most", aim),
                    Aim::RatioAtLeast(aim) => ("ratio", "at_least", aim),
                    Aim::RatioAtMost(aim) => ("ratio", "at_most", aim),
                };
                json!({"of": of, bound: value, "reached": figure.reaches(*aim)})
            });
            json!({
                "scene": scene,
                "figure": figure.what,
                "unit": figure.unit,
                "value": figure.ours,
                "peer": peer,
                "ratio": figure.ratio(),
                "aims": aims.collect::<Vec<_>>(),
            })
        });
        let failed = self.failed.iter();
        json!({
            "bench": self.bench,
            "figures": figures.collect::<Vec<_>>(),
            "missing": self.missing,
            "failed": failed.map(|(scene, error)| json!({"scene": scene, "error": error})).collect::<Vec<_>>(),
        })
    }
}

/// Returns a number with three significant digits.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        size if size < 0.1 => 4,
        size if size < 1.0 => 3,
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Returns the version that a program reports.
fn version_of(program: &str) -> String {
    // The name of a peer is followed by relevant options.
    let program = program.split(' ').next().unwrap_or(program);
    let option = if program == "nuttcp" {
        "-V"
    } else {
        "--version"
    };
    let Ok(output) = Command::new(crate::stage::path_of(program))
        .arg(option)
        .output()
    else {
        return "?".to_owned();
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let numbers = text.split(|letter: char| !letter.is_ascii_digit() && letter != '.');
    let mut versions = numbers
        .map(|number| number.trim_matches('.'))
        .filter(|number| number.contains('.'));
    versions.next().unwrap_or("?").to_owned()
}

/// Returns the median; `NaN` if there are no values.
pub fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
