//! Plans of paths, as people write them.

use std::io;
use std::path::{Path, PathBuf};

use evlbi_core::path::{ETHERNET_OVERHEAD, Law, Loss, Shape, Times, Until};
use evlbi_core::rate::{BitRate, BitRateError};
use evlbi_core::time::Nanos;
use evlbi_wire::units::{self, UnitError};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::{CellPlan, Direction, Host, Link, Node, Plan, PlanError};

/// Why a file is no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanFileError {
    /// It cannot be read.
    #[error("cannot read the plan {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It says something that is no path.
    #[error("in the plan {}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong, and in which line.
        source: SpecError,
    },
}

/// What is wrong in a plan, or with the values of a cell; where it is, if that is known; and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SpecError(String);

impl SpecError {
    fn new(why: impl Into<String>) -> SpecError {
        SpecError(why.into())
    }

    /// The same, with the place before it.
    fn at(self, place: &str) -> SpecError {
        SpecError(format!("{place}: {self}"))
    }
}

impl From<BitRateError> for SpecError {
    fn from(error: BitRateError) -> SpecError {
        SpecError(error.to_string())
    }
}

impl From<UnitError> for SpecError {
    fn from(error: UnitError) -> SpecError {
        SpecError(error.to_string())
    }
}

impl From<toml::de::Error> for SpecError {
    fn from(error: toml::de::Error) -> SpecError {
        SpecError(error.to_string())
    }
}

impl From<toml::ser::Error> for SpecError {
    fn from(error: toml::ser::Error) -> SpecError {
        SpecError(error.to_string())
    }
}

type Result<T, E = SpecError> = std::result::Result<T, E>;

/// Ends with what is wrong.
macro_rules! refuse {
    ($($why:tt)*) => {
        return Err(SpecError(format!($($why)*)))
    };
}

/// Buffer of a rate, where the plan gives none.
const BUFFER: u64 = 1 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanSpec {
    mtu: Option<Spanned<u32>>,
    seed: Option<u64>,
    #[serde(rename = "host")]
    hosts: Vec<Spanned<HostSpec>>,
    #[serde(rename = "link", default)]
    links: Vec<Spanned<LinkSpec>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostSpec {
    name: String,
    congestion: Option<String>,
    buffer: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkSpec {
    name: Option<String>,
    between: [String; 2],
    rtt: Option<String>,
    rate: Option<String>,
    buffer: Option<String>,
    #[serde(default)]
    cells: Vec<Spanned<CellSpec>>,
    #[serde(default)]
    forward: Vec<Spanned<CellSpec>>,
    #[serde(default)]
    backward: Vec<Spanned<CellSpec>>,
}

/// A cell: one of the keys that say what it does, and those that go with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CellSpec {
    name: Option<String>,
    delay: Option<String>,
    jitter: Option<String>,
    shape: Option<String>,
    overtakes: Option<bool>,
    rate: Option<String>,
    buffer: Option<String>,
    overhead: Option<u32>,
    mark_above: Option<String>,
    mtu: Option<u32>,
    tells: Option<bool>,
    loss: Option<String>,
    burst: Option<String>,
    every: Option<u64>,
    first: Option<u64>,
    lose_at: Option<Vec<String>>,
    above: Option<String>,
    window: Option<String>,
    period: Option<String>,
    length: Option<String>,
    begin: Option<String>,
    on: Option<String>,
    off: Option<String>,
    outage: Option<[String; 2]>,
    police: Option<String>,
    duplicate: Option<String>,
    reorder: Option<String>,
    distance: Option<u32>,
    by: Option<String>,
    corrupt: Option<String>,
    mark: Option<String>,
    change: Vec<ChangeSpec>,
}

/// What a cell becomes at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangeSpec {
    at: String,
    #[serde(flatten)]
    cell: toml::Table,
}

/// What a cell may do, and the keys that go with the one that says so.
const KINDS: [(&str, &[&str]); 12] = [
    ("delay", &["jitter", "shape", "overtakes"]),
    ("rate", &["buffer", "overhead", "mark_above"]),
    ("mtu", &["tells"]),
    (
        "loss",
        &[
            "burst", "above", "window", "overhead", "period", "length", "begin", "on", "off",
        ],
    ),
    ("every", &["first"]),
    ("lose_at", &[]),
    ("outage", &[]),
    ("police", &["burst", "overhead"]),
    ("duplicate", &[]),
    ("reorder", &["distance", "by"]),
    ("corrupt", &[]),
    ("mark", &[]),
];

/// Cells as they were written: direction, number and what it says.
pub type Specs = Vec<(Direction, usize, CellSpec)>;

/// Reads a plan and what its cells say. Its name is that of the file.
pub fn read(path: &Path) -> Result<(Plan, Specs), PlanFileError> {
    let path_of = || path.to_owned();
    let text = std::fs::read_to_string(path).map_err(|source| PlanFileError::Read {
        path: path_of(),
        source,
    })?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    parse(&text, &name).map_err(|source| PlanFileError::Invalid {
        path: path_of(),
        source,
    })
}

fn parse(text: &str, name: &str) -> Result<(Plan, Specs)> {
    let spec: PlanSpec = toml::from_str(text)?;
    let line = |place: usize| 1 + text[..place.min(text.len())].matches('\n').count();
    let mtu = spec.mtu.as_ref().map_or(1500, |mtu| *mtu.get_ref());
    if !(1280..=65_521).contains(&mtu) {
        let at = line(spec.mtu.map_or(0, |mtu| mtu.span().start));
        refuse!(
            "line {at}: mtu = {mtu}: devices take 1280 to 65521 bytes; for less use a cell of mtu"
        );
    }
    if spec.hosts.len() < 2 {
        refuse!("a path has two hosts or more: [[host]] name = \"...\"");
    }
    let mut nodes: Vec<Node> = Vec::new();
    for spec in &spec.hosts {
        let place = || format!("line {}", line(spec.span().start));
        let node = host(spec.get_ref(), &nodes).map_err(|error| error.at(&place()))?;
        nodes.push(node);
    }
    let (mut links, mut specs) = (Vec::new(), Vec::new());
    for link in &spec.links {
        let at = line(link.span().start);
        let link = link.get_ref();
        let mut ends = [0, 0];
        for (end, name) in ends.iter_mut().zip(&link.between) {
            let known = nodes.iter().position(|node| node.name == *name);
            *end = known.unwrap_or(nodes.len());
            if known.is_none() {
                check_name(name).map_err(|error| error.at(&format!("line {at}: end of a link")))?;
                nodes.push(Node {
                    name: name.clone(),
                    host: None,
                });
            }
        }
        let shown = link.name.clone().unwrap_or_else(|| link.between.join("-"));
        check_name(&shown).map_err(|error| error.at(&format!("line {at}: link")))?;
        if links.iter().any(|other: &Link| other.name == shown) {
            refuse!("line {at}: link \"{shown}\" is there twice; give it a name of its own");
        }
        let number = links.len();
        let mut cells = |own: &[Spanned<CellSpec>], backward: bool| -> Result<Vec<CellPlan>> {
            let direction = Direction {
                link: number,
                backward,
            };
            let mut cells = Vec::new();
            let common = shorthand(link);
            let common =
                common.map_err(|error| error.at(&format!("line {at}, link \"{shown}\"")))?;
            for spec in common {
                cells.push(cell(&spec, &cells)?);
                specs.push((direction, cells.len() - 1, spec));
            }
            for spec in link.cells.iter().chain(own) {
                let place = || format!("line {}, link \"{shown}\"", line(spec.span().start));
                let made = cell(spec.get_ref(), &cells).map_err(|error| error.at(&place()))?;
                cells.push(made);
                specs.push((direction, cells.len() - 1, spec.get_ref().clone()));
            }
            Ok(cells)
        };
        links.push(Link {
            forward: cells(&link.forward, false)?,
            backward: cells(&link.backward, true)?,
            name: shown,
            ends,
        });
    }
    let plan =
        Plan::new(name.to_owned(), nodes, links, mtu, spec.seed.unwrap_or(1)).map_err(|error| {
            // Links and hosts lie as they were written.
            let start = match &error {
                PlanError::Loop { link, .. } => spec.links[*link].span().start,
                PlanError::Apart { node, name, .. } => match spec.hosts.get(*node) {
                    Some(host) => host.span().start,
                    // A switch is known by its links alone.
                    None => (spec.links.iter())
                        .find(|link| link.get_ref().between.contains(name))
                        .map_or(0, |link| link.span().start),
                },
            };
            SpecError::new(error.to_string()).at(&format!("line {}", line(start)))
        })?;
    Ok((plan, specs))
}

/// Names are written in commands (`LINK/CELL`), tables and a hosts file.
fn check_name(name: &str) -> Result<()> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if name.is_empty() || !name.chars().all(fits) {
        refuse!("\"{name}\" is no name: letters, digits, - _ and . make one");
    }
    Ok(())
}

fn host(spec: &HostSpec, others: &[Node]) -> Result<Node> {
    let name = &spec.name;
    check_name(name).map_err(|error| error.at("host"))?;
    let is_number = |letter: char| letter.is_ascii_digit() || letter == '.';
    if name == "localhost" || name.ends_with("-v6") || name.chars().all(is_number) {
        refuse!("host \"{name}\": that name means something else already; take another");
    }
    if others.iter().any(|other| other.name == *name) {
        refuse!("host \"{name}\" is there twice; give each a name of its own");
    }
    let buffer = spec.buffer.as_deref().map(size).transpose();
    let buffer = buffer.map_err(|error| error.at(&format!("host \"{name}\"")))?;
    if buffer.is_some_and(|bytes| bytes >= 1 << 31) {
        refuse!("host \"{name}\": a buffer is less than 2 GiB");
    }
    Ok(Node {
        name: name.clone(),
        host: Some(Host {
            congestion: spec.congestion.clone(),
            buffer,
        }),
    })
}

/// What a value that was written as a text may be meant as.
fn kinds_of(value: &toml::Value) -> Vec<toml::Value> {
    let mut kinds = vec![value.clone()];
    if let Some(text) = value.as_str() {
        kinds.extend(text.parse::<i64>().ok().map(toml::Value::from));
        kinds.extend(text.parse::<bool>().ok().map(toml::Value::from));
        let list: Vec<toml::Value> = text.split(',').map(toml::Value::from).collect();
        kinds.push(list.into());
    }
    kinds
}

/// The cells that a link's own keys mean.
fn shorthand(link: &LinkSpec) -> Result<Vec<CellSpec>> {
    let mut cells = Vec::new();
    if link.buffer.is_some() && link.rate.is_none() {
        refuse!("buffer goes with rate");
    }
    if link.rate.is_some() {
        cells.push(CellSpec {
            rate: link.rate.clone(),
            buffer: link.buffer.clone(),
            ..CellSpec::default()
        });
    }
    if let Some(rtt) = &link.rtt {
        let half = time(rtt)?.0 / 2;
        cells.push(CellSpec {
            delay: Some(format!("{half}ns")),
            ..CellSpec::default()
        });
    }
    Ok(cells)
}

fn cell(spec: &CellSpec, others: &[CellPlan]) -> Result<CellPlan> {
    let (kind, law) = spec.law()?;
    let taken = |name: &str| others.iter().any(|other| other.name == name);
    let name = match &spec.name {
        Some(name) if taken(name) => {
            refuse!("two cells are called \"{name}\"; give each a name of its own")
        }
        Some(name) => {
            check_name(name).map_err(|error| error.at("cell"))?;
            name.clone()
        }
        None => {
            let numbered = |number: u32| match number {
                1 => kind.to_owned(),
                _ => format!("{kind}{number}"),
            };
            let free = (1..).map(numbered).find(|name| !taken(name));
            free.unwrap_or_default()
        }
    };
    let mut changes = Vec::new();
    for change in &spec.change {
        let law = spec.changed(&change.cell)?.law()?.1;
        if law.disorders() && !spec.law()?.1.disorders() {
            refuse!("packets may overtake only where they may from the beginning");
        }
        changes.push((time(&change.at)?, law));
    }
    changes.sort_by_key(|(at, _)| *at);
    Ok(CellPlan { name, law, changes })
}

impl CellSpec {
    /// The same with other values.
    pub fn changed(&self, values: &toml::Table) -> Result<CellSpec> {
        let mut table = toml::Table::try_from(self)?;
        table.remove("change");
        let mut spec: CellSpec = table.clone().try_into()?;
        for (key, value) in values {
            let mut first = None;
            let taken = kinds_of(value).into_iter().find_map(|value| {
                table.insert(key.clone(), value);
                let tried: Result<CellSpec, _> = table.clone().try_into();
                tried
                    .map_err(|error| first.get_or_insert(error).clone())
                    .ok()
            });
            spec = match (taken, first) {
                (Some(spec), _) => spec,
                (None, Some(error)) => refuse!("{key}: {}", error.message()),
                (None, None) => spec,
            };
        }
        Ok(spec)
    }

    /// What it does, and the key that says so.
    pub fn law(&self) -> Result<(&'static str, Law)> {
        let keys = toml::Table::try_from(self)?;
        let mut named = KINDS.to_vec();
        named.retain(|(kind, _)| keys.contains_key(*kind));
        let [(kind, goes)] = named[..] else {
            let names = |kinds: &[(&'static str, _)]| kinds.iter().map(|kind| kind.0).collect();
            let (named, all): (Vec<&str>, Vec<&str>) = (names(&named), names(&KINDS));
            refuse!(
                "a cell does one thing, and this one {}: write one of {}",
                match named.is_empty() {
                    true => "none".to_owned(),
                    false => format!("has {}", named.join(" and ")),
                },
                all.join(", ")
            );
        };
        let stray = keys.keys().find(|key| {
            let key = key.as_str();
            key != kind && !["name", "change"].contains(&key) && !goes.contains(&key)
        });
        if let Some(stray) = stray {
            refuse!(
                "{stray} says nothing to a cell of {kind}{}",
                match goes {
                    [] => String::new(),
                    goes => format!(": with that go {}", goes.join(", ")),
                }
            );
        }
        let law = match kind {
            "delay" => Law::Delay {
                delay: time(self.delay.as_deref().unwrap_or("0"))?,
                jitter: self.jitter.as_deref().map_or(Ok(Nanos(0)), time)?,
                shape: match self.shape.as_deref() {
                    None | Some("uniform") => Shape::Uniform,
                    Some("normal") => Shape::Normal,
                    Some("pareto") => Shape::Pareto,
                    Some(other) => {
                        refuse!("shape = \"{other}\": a jitter is uniform, normal or pareto")
                    }
                },
                reorders: self.overtakes.unwrap_or(false),
            },
            "rate" => Law::Rate {
                rate: rate(&self.rate)?,
                buffer: self.buffer()?.unwrap_or(BUFFER),
                overhead: self.overhead.unwrap_or(ETHERNET_OVERHEAD),
                mark: self.mark_above.as_deref().map(time).transpose()?,
            },
            "mtu" => Law::Mtu {
                bytes: self.mtu.unwrap_or(1500),
                tells: self.tells.unwrap_or(true),
            },
            "loss" => Law::Loss(self.loss(&keys)?),
            "every" => {
                let period = self.every.unwrap_or(0);
                if period == 0 {
                    refuse!("every = 0 loses nothing and everything; write 1 or more");
                }
                Law::Loss(Loss::Every {
                    period,
                    first: self.first.unwrap_or(period - 1),
                })
            }
            "lose_at" => {
                let times = self.lose_at.iter().flatten().map(|at| time(at));
                let mut times = times.collect::<Result<Vec<Nanos>>>()?;
                times.sort_unstable();
                Law::Loss(Loss::At(times.into()))
            }
            "outage" => {
                let [from, to] = self
                    .outage
                    .as_ref()
                    .ok_or_else(|| SpecError::new("outage has two times"))?;
                let (from, to) = (time(from)?, time(to)?);
                if to <= from {
                    refuse!("an outage ends after it begins");
                }
                Law::Loss(Loss::Within {
                    times: Times::Once { from, to },
                    fraction: 1.0,
                })
            }
            "police" => Law::Police {
                rate: rate(&self.police)?,
                burst: self.burst.as_deref().map_or(Ok(64 << 10), size)?,
                overhead: self.overhead.unwrap_or(ETHERNET_OVERHEAD),
            },
            "duplicate" => Law::Duplicate {
                fraction: fraction(&self.duplicate)?,
            },
            "reorder" => Law::Reorder {
                fraction: fraction(&self.reorder)?,
                until: match (&self.by, self.distance) {
                    (Some(_), Some(_)) => {
                        refuse!("reorder goes by a distance or by a time, not both")
                    }
                    (Some(by), None) => Until::Time(time(by)?),
                    (None, distance) => Until::Passed(distance.unwrap_or(1).max(1)),
                },
            },
            "corrupt" => Law::Corrupt {
                fraction: fraction(&self.corrupt)?,
            },
            _ => Law::Mark {
                fraction: fraction(&self.mark)?,
            },
        };
        Ok((kind, law))
    }

    /// Bytes, or a time at the rate.
    fn buffer(&self) -> Result<Option<u64>> {
        let Some(buffer) = &self.buffer else {
            return Ok(None);
        };
        if let Ok(bytes) = size(buffer) {
            return Ok(Some(bytes));
        }
        let time = time(buffer).map_err(|error| {
            error.at(&format!(
                "buffer = \"{buffer}\": write bytes (256KiB), or a time at the rate (5ms)"
            ))
        })?;
        let bits = u128::from(rate(&self.rate)?.get()) * u128::from(time.0) / 8_000_000_000;
        Ok(Some(u64::try_from(bits).unwrap_or(u64::MAX)))
    }

    fn periodic(&self) -> Result<Times> {
        let period = time(self.period.as_deref().unwrap_or(""))?;
        let length = self.length.as_deref();
        let length = length.ok_or_else(|| SpecError::new("length goes with period"))?;
        let length = time(length)?;
        if length >= period {
            refuse!("a length that is no shorter than the period is always; write loss alone");
        }
        Ok(Times::Periodic {
            period,
            length,
            first: self.begin.as_deref().map_or(Ok(Nanos(0)), time)?,
        })
    }

    fn loss(&self, keys: &toml::Table) -> Result<Loss> {
        let lost = fraction(&self.loss)?;
        for (key, with) in [
            ("window", "above"),
            ("overhead", "above"),
            ("length", "period"),
            ("begin", "period"),
            ("off", "on"),
        ] {
            if keys.contains_key(key) && !keys.contains_key(with) {
                refuse!("{key} goes with {with}");
            }
        }
        let mut kinds = vec!["burst", "above", "period", "on"];
        kinds.retain(|kind| keys.contains_key(*kind));
        match kinds.as_slice() {
            [] => Ok(Loss::Random { fraction: lost }),
            ["burst"] => {
                let text = self.burst.as_deref().unwrap_or("");
                let length: f64 = text.parse().unwrap_or(0.0);
                if !(length >= 1.0 && lost < 1.0) {
                    refuse!(
                        "burst = \"{text}\": the mean length in packets, 1 or more, of a loss below 100%"
                    );
                }
                if lost > length / (1.0 + length) {
                    refuse!(
                        "bursts of {length} packets cannot lose {:.1} %: between two lies one at least, so that they lose {:.1} % at most",
                        lost * 100.0,
                        100.0 * length / (1.0 + length)
                    );
                }
                // The share of the bad state, in which all is lost, is the loss.
                Ok(Loss::Bursts {
                    begins: (lost / (1.0 - lost) / length).min(1.0),
                    ends: 1.0 / length,
                    good: 0.0,
                    bad: 1.0,
                })
            }
            ["above"] => Ok(Loss::Above {
                rate: rate(&self.above)?,
                window: match self.window.as_deref().map_or(Ok(Nanos(10_000_000)), time)? {
                    Nanos(0..1000) => refuse!("a window is 1us or longer"),
                    window => window,
                },
                overhead: self.overhead.unwrap_or(ETHERNET_OVERHEAD),
                fraction: lost,
            }),
            ["period"] => Ok(Loss::Within {
                times: self.periodic()?,
                fraction: lost,
            }),
            ["on"] => {
                let on = time(self.on.as_deref().unwrap_or(""))?;
                let off = self.off.as_deref();
                let off = time(off.ok_or_else(|| SpecError::new("off goes with on"))?)?;
                if on.0.min(off.0) < 1_000_000 {
                    refuse!(
                        "episodes and what lies between them last 1 ms or more in the mean; for less write burst"
                    );
                }
                Ok(Loss::Within {
                    times: Times::Episodes { on, off },
                    fraction: lost,
                })
            }
            several => refuse!(
                "loss is one kind, and this one has {}",
                several.join(" and ")
            ),
        }
    }
}

fn time(text: &str) -> Result<Nanos> {
    units::duration(text)
        .map(Nanos::from)
        .map_err(SpecError::from)
}

fn size(text: &str) -> Result<u64> {
    units::size(text).map_err(SpecError::from)
}

fn rate(text: &Option<String>) -> Result<BitRate> {
    Ok(text.as_deref().unwrap_or("").parse()?)
}

fn fraction(text: &Option<String>) -> Result<f64> {
    units::fraction(text.as_deref().unwrap_or("")).map_err(SpecError::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS: &str = "[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n";

    fn refused(text: &str) -> String {
        let error = parse(&format!("{HOSTS}{text}"), "test").unwrap_err();
        error.to_string()
    }

    #[test]
    fn plans_are_read() {
        let text = format!(
            "{HOSTS}[[link]]\nbetween = [\"a\", \"x\"]\nrtt = \"15ms\"\nrate = \"1G\"\nbuffer = \"2ms\"\n\
             cells = [{{ loss = \"1%\" }}, {{ loss = \"2%\", burst = \"8\" }}]\n\
             forward = [{{ lose_at = [\"5s\", \"2s\"] }}]\n\
             [[link]]\nbetween = [\"x\", \"b\"]\nbackward = [{{ delay = \"1ms\", change = [{{ at = \"3s\", delay = \"2ms\" }}] }}]\n"
        );
        let (plan, _) = parse(&text, "test").unwrap();
        assert_eq!(plan.nodes.len(), 3);
        assert_eq!(plan.hosts().count(), 2);
        let names = |cells: &[CellPlan]| {
            let names = cells.iter().map(|cell| cell.name.clone());
            names.collect::<Vec<String>>().join(" ")
        };
        assert_eq!(
            names(&plan.links[0].forward),
            "rate delay loss loss2 lose_at"
        );
        assert_eq!(names(&plan.links[0].backward), "rate delay loss loss2");
        let Law::Rate { buffer, .. } = plan.links[0].forward[0].law else {
            panic!("no rate");
        };
        assert_eq!(buffer, 250_000);
        let Law::Delay { delay, .. } = plan.links[0].forward[1].law else {
            panic!("no delay");
        };
        assert_eq!(delay, Nanos(7_500_000));
        assert_eq!(
            plan.links[0].forward[4].law,
            Law::Loss(Loss::At(
                [Nanos(2_000_000_000), Nanos(5_000_000_000)].into()
            ))
        );
        assert_eq!(plan.links[1].backward[0].changes[0].0, Nanos(3_000_000_000));
    }

    #[test]
    fn the_examples_are_plans() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        let files = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let plans = files.filter(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            !name.starts_with("sky-") && !name.starts_with("session-")
        });
        let read = plans.map(|path| read(&path).unwrap());
        assert!(read.count() >= 9);
    }

    #[test]
    fn bad_plans_are_refused_with_the_line_and_the_remedy() {
        let link = "[[link]]\nbetween = [\"a\", \"b\"]\n";
        for (text, says) in [
            (format!("{link}rtt = \"fast\"\n"), vec!["line 5", "no time"]),
            (format!("{link}rate = \"1 banana\"\n"), vec!["no bit rate"]),
            (
                format!("{link}cells = [{{ }}]\n"),
                vec!["line 7", "one of delay"],
            ),
            (
                format!(
                    "{link}cells = [\n{{ loss = \"1%\" }},\n{{ loss = \"1%\", rate = \"1G\" }}]\n"
                ),
                vec!["line 9", "rate and loss"],
            ),
            (
                format!("{link}cells = [{{ loss = \"1%\", jitter = \"1ms\" }}]\n"),
                vec!["jitter says nothing"],
            ),
            (
                format!("{link}cells = [{{ loss = \"200%\" }}]\n"),
                vec!["no fraction"],
            ),
            (
                format!("{link}cells = [{{ lost = \"1%\" }}]\n"),
                vec!["line 7", "lost"],
            ),
            (format!("{link}{link}"), vec!["line 7", "twice"]),
            (
                format!("{link}[[link]]\nname = \"x\"\nbetween = [\"b\", \"a\"]\n"),
                vec!["line 7", "loop", "leave one out"],
            ),
            (String::new(), vec!["line 3", "no way", "[[link]]"]),
            (
                "[[link]]\nbetween = [\"a\", \"b,c\"]\n".into(),
                vec!["line 5", "b,c", "letters"],
            ),
            (format!("{link}name = \"a/b\"\n"), vec!["line 5", "a/b"]),
            (
                format!("{link}[[link]]\nbetween = [\"x\", \"y\"]\n"),
                vec!["line 7", "no way"],
            ),
            (
                format!("{link}cells = [{{ loss = \"1%\", period = \"1s\", length = \"1s\" }}]\n"),
                vec!["line 7", "always"],
            ),
            (
                format!("{link}cells = [{{ loss = \"1%\", above = \"1G\", window = \"0s\" }}]\n"),
                vec!["line 7", "window"],
            ),
            (
                format!("{link}cells = [{{ name = \"a b\", loss = \"1%\" }}]\n"),
                vec!["line 7", "a b"],
            ),
            (
                format!("{link}[[host]]\nname = \"a\"\n"),
                vec!["line 7", "twice"],
            ),
            ("mtu = 10\n".into(), vec!["line 1", "mtu"]),
        ] {
            let said = if text.starts_with("mtu") {
                let error = parse(&format!("{text}{HOSTS}{link}"), "test").unwrap_err();
                error.to_string()
            } else {
                refused(&text)
            };
            for word in says {
                assert!(said.contains(word), "{text}: {said}");
            }
        }
    }
}
