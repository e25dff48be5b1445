//! Report of a scene: figures with an expectation, facts that no stall excuses, and curves.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::host::Host;
use super::picture::Picture;

/// A measurement with expectations.
#[derive(Clone, Copy)]
pub struct Scene {
    /// Short name, for `--only`.
    pub name: &'static str,
    /// One sentence: what the scene shows.
    pub shows: &'static str,
    /// Requirements, without which it is skipped.
    pub needs: &'static [Need],
    /// Maximum stall of the host that does not excuse a missed expectation.
    pub stall: Duration,
    /// Function that measures.
    pub play: fn(&mut Record) -> Result<()>,
}

/// A requirement that a machine may lack.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// Network namespaces and queueing disciplines.
    Root,
    /// Emulated paths: `/dev/net/tun`, and root.
    Paths,
    /// A program of [`evlbi_testkit::need::PACKAGES`].
    Program(&'static str),
    /// Slurm, installed or unpacked in target.
    Slurm,
    /// Dask in a Python environment in target.
    Dask,
}

/// Expectation of a figure.
#[derive(Clone, Copy, Debug)]
pub enum Aim {
    /// This value, within a relative tolerance.
    Near { expected: f64, tolerance: f64 },
    /// Within these bounds, both included.
    Within(f64, f64),
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
    /// Anything: it is shown next to the others.
    Shown,
}

impl Aim {
    /// Returns the minimum and the maximum that it allows.
    pub fn bounds(self) -> (f64, f64) {
        match self {
            Aim::Near {
                expected,
                tolerance,
            } => {
                let slack = (expected * tolerance).abs();
                (expected - slack, expected + slack)
            }
            Aim::Within(low, high) => (low, high),
            Aim::AtMost(high) => (f64::NEG_INFINITY, high),
            Aim::AtLeast(low) => (low, f64::INFINITY),
            Aim::Shown => (f64::NEG_INFINITY, f64::INFINITY),
        }
    }
}

/// Comparison of a figure with its expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Met,
    Missed,
    /// It misses, but the host stalled at that time.
    NotJudged,
    /// There is no expectation.
    Shown,
}

impl Verdict {
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::Missed => "MISSED",
            Verdict::NotJudged => "not judged",
            Verdict::Shown => "shown",
        }
    }
}

/// A measured number, and its expectation.
#[derive(Clone, Debug)]
pub struct Figure {
    pub name: String,
    pub unit: &'static str,
    pub found: f64,
    pub aim: Aim,
    pub verdict: Verdict,
}

/// A statement that must hold on any host.
#[derive(Clone, Debug)]
pub struct Fact {
    pub what: String,
    pub holds: bool,
    pub detail: String,
}

/// A table of texts.
#[derive(Clone, Debug)]
pub struct Table {
    pub columns: &'static [&'static str],
    /// Cells of each row.
    pub rows: Vec<Vec<String>>,
}

/// Outcome of a scene.
#[derive(Clone, Debug)]
pub enum Ending {
    Played,
    /// Skipped: this machine lacks these.
    LeftOut(Vec<String>),
    /// It could not be measured, although nothing is missing.
    Failed(String),
}

/// Everything that a scene reports.
#[derive(Default)]
pub struct Record {
    pub figures: Vec<Figure>,
    pub facts: Vec<Fact>,
    pub tables: Vec<Table>,
    pub pictures: Vec<Picture>,
    /// Stalls seen by the scene's own programs: program, and maximum length in seconds.
    stalls: BTreeMap<String, f64>,
    /// Other causes of delays.
    pub seen: Vec<String>,
    /// The scene's limit for stalls, in seconds.
    stall: f64,
}

impl Record {
    pub fn new(scene: &Scene) -> Record {
        Record {
            stall: scene.stall.as_secs_f64(),
            ..Record::default()
        }
    }

    pub fn figure(&mut self, name: impl Into<String>, unit: &'static str, found: f64, aim: Aim) {
        self.figures.push(Figure {
            name: name.into(),
            unit,
            found,
            aim,
            verdict: Verdict::Shown,
        });
    }

    /// Records a figure that should be near a value.
    pub fn near(
        &mut self,
        name: impl Into<String>,
        unit: &'static str,
        found: f64,
        expected: f64,
        tolerance: f64,
    ) {
        let aim = Aim::Near {
            expected,
            tolerance,
        };
        self.figure(name, unit, found, aim);
    }

    /// Records a statement or a name that should appear, as a figure: 1 if it does.
    pub fn said(&mut self, name: impl Into<String>, is_said: bool) {
        self.figure(name, "", f64::from(u8::from(is_said)), Aim::AtLeast(1.0));
    }

    /// Records a fact that no stall excuses.
    pub fn fact(&mut self, what: impl Into<String>, holds: bool, detail: impl Into<String>) {
        self.facts.push(Fact {
            what: what.into(),
            holds,
            detail: detail.into(),
        });
    }

    /// Records two counts that must be equal.
    pub fn same(&mut self, what: impl Into<String>, found: u64, expected: u64) {
        self.fact(
            what,
            found == expected,
            format!("{found}, expected {expected}"),
        );
    }

    /// Records a stall that a program of the scene has seen, in seconds.
    pub fn stalled(&mut self, who: &str, seconds: f64) {
        let longest = self.stalls.entry(who.to_owned()).or_default();
        *longest = longest.max(seconds);
    }

    /// Records the stalls that the relay of a path reports.
    pub fn relay(&mut self, state: &Value) {
        self.stalled("the relay", relay_stall(state));
    }

    /// Records samples of connections that a probe and its responder missed, if they are more than `most`.
    pub fn looks(&mut self, result: &Value, most: u64) {
        let observers = result["observers"].as_array().into_iter().flatten();
        let missed: u64 = observers
            .filter_map(|observer| observer["missed"].as_u64())
            .sum();
        if missed > most {
            self.seen
                .push(format!("{missed} looks at connections were missed"));
        }
    }

    /// Returns the excuses for a figure.
    pub fn excuses(&self, host: &Host) -> Vec<String> {
        let mut excuses = host.excuses(self.stall);
        let long = self
            .stalls
            .iter()
            .filter(|(_, longest)| **longest > self.stall);
        excuses.extend(
            long.map(|(who, longest)| format!("{who} stood still for {:.0} ms", longest * 1e3)),
        );
        excuses.extend(self.seen.iter().cloned());
        excuses
    }

    /// Compares each figure with its expectation.
    pub fn judge(&mut self, is_excused: bool) {
        for figure in &mut self.figures {
            let (low, high) = figure.aim.bounds();
            // Differences in the last digits do not count.
            let slack = 1e-9 * figure.found.abs();
            let is_within = figure.found >= low - slack && figure.found <= high + slack;
            figure.verdict = match (figure.aim, is_within) {
                (Aim::Shown, _) => Verdict::Shown,
                (_, true) => Verdict::Met,
                (_, false) if is_excused => Verdict::NotJudged,
                (_, false) => Verdict::Missed,
            };
        }
    }
}

/// Returns the longest stall of a path's relay, in seconds.
pub fn relay_stall(state: &Value) -> f64 {
    let lateness = state["lateness"].as_array().into_iter().flatten();
    lateness
        .filter_map(|late| late["max_s"].as_f64())
        .fold(0.0, f64::max)
}

impl Table {
    /// Returns it as lines of text, with aligned columns.
    pub fn lines(&self) -> Vec<String> {
        let head = self.columns.iter().map(|name| (*name).to_owned()).collect();
        let rows: Vec<&Vec<String>> = [&head].into_iter().chain(&self.rows).collect();
        let width = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |row: &&Vec<String>| {
            let cells = row.iter().zip(&widths);
            let cells: Vec<String> = cells
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            cells.join("  ").trim_end().to_owned()
        };
        rows.iter().map(line).collect()
    }

    pub fn json(&self) -> Value {
        json!({"columns": self.columns, "rows": self.rows})
    }
}

impl Figure {
    /// Returns the expectation as text.
    pub fn expected(&self) -> String {
        let number = |value: f64| format!("{}{}", short(value), spaced(self.unit));
        match self.aim {
            Aim::Near {
                expected,
                tolerance: 0.0,
            } => number(expected),
            Aim::Near {
                expected,
                tolerance,
            } => format!("{} ± {:.0} %", number(expected), tolerance * 100.0),
            Aim::Within(low, high) if low == high => number(low),
            Aim::Within(low, high) => format!("{} … {}", short(low), number(high)),
            Aim::AtMost(_) | Aim::AtLeast(_) if self.unit.is_empty() && self.is_said() => {
                "yes".to_owned()
            }
            Aim::AtMost(0.0) => number(0.0),
            Aim::AtMost(high) => format!("≤ {}", number(high)),
            Aim::AtLeast(low) => format!("≥ {}", number(low)),
            Aim::Shown => String::new(),
        }
    }

    /// Returns the value as text.
    pub fn found(&self) -> String {
        if self.is_said() {
            return if self.found >= 1.0 { "yes" } else { "no" }.to_owned();
        }
        format!("{}{}", short(self.found), spaced(self.unit))
    }

    /// Returns whether it is a statement.
    pub fn is_said(&self) -> bool {
        self.unit.is_empty()
            && matches!(self.aim, Aim::AtLeast(1.0))
            && (self.found == 0.0 || self.found == 1.0)
    }

    pub fn json(&self) -> Value {
        let (low, high) = self.aim.bounds();
        let finite = |value: f64| value.is_finite().then_some(value);
        let (expected, tolerance) = match self.aim {
            Aim::Near {
                expected,
                tolerance,
            } => (Some(expected), Some(tolerance)),
            _ => (None, None),
        };
        json!({
            "name": self.name,
            "unit": self.unit,
            "found": finite(self.found),
            "expected": expected,
            "tolerance": tolerance,
            "low": finite(low),
            "high": finite(high),
            "verdict": self.verdict.words().to_lowercase(),
        })
    }
}

fn spaced(unit: &str) -> String {
    if unit.is_empty() {
        String::new()
    } else {
        format!(" {unit}")
    }
}

/// Returns a number with four digits.
pub fn short(value: f64) -> String {
    if !value.is_finite() {
        return "none".to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    if value.fract() == 0.0 && value.abs() < 1e9 {
        return grouped(value);
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    let digits = usize::try_from(digits.clamp(0, 9)).unwrap_or(0);
    let text = format!("{value:.digits$}");
    if !text.contains('.') {
        return grouped(text.parse().unwrap_or(value));
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns a whole number with a comma before every three digits.
fn grouped(value: f64) -> String {
    let text = format!("{:.0}", value.abs());
    let mut grouped = String::new();
    for (place, digit) in text.chars().enumerate() {
        if place > 0 && (text.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if value < 0.0 {
        grouped.insert(0, '-');
    }
    grouped
}
