//! Plan files of paths.
//!
//! This module defines what a plan may contain; cells are in `cell`.

mod cell;

use std::io;
use std::path::{Path, PathBuf};

use evlbi_core::rate::BitRateError;
use evlbi_wire::units::UnitError;
use serde::Deserialize;
use toml::Spanned;

use self::cell::{TimeText, cell, shorthand, size};
use crate::{CellPlan, Direction, Host, Link, Node, Plan, PlanError};

pub use self::cell::{CellSpec, TIMES};

/// Reason why a plan file is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanFileError {
    /// It cannot be read.
    #[error("cannot read the plan {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Its content is invalid.
    #[error("in the plan {}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The error, and its line.
        source: SpecError,
    },
}

/// Error in a plan, or in the values of a cell: its place, if known, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SpecError(String);

impl SpecError {
    fn new(why: impl Into<String>) -> SpecError {
        SpecError(why.into())
    }

    /// Returns the same error, with its place in front.
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

/// Returns an error with this text.
macro_rules! refuse {
    ($($why:tt)*) => {
        return Err(SpecError(format!($($why)*)))
    };
}
use refuse;

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
    rtt: Option<TimeText>,
    rate: Option<String>,
    buffer: Option<String>,
    #[serde(default)]
    cells: Vec<Spanned<CellSpec>>,
    #[serde(default)]
    forward: Vec<Spanned<CellSpec>>,
    #[serde(default)]
    backward: Vec<Spanned<CellSpec>>,
}

/// Cells as written in the plan: direction, number and keys.
pub type Specs = Vec<(Direction, usize, CellSpec)>;

/// Reads a plan and the keys of its cells. The plan is named after the file.
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
            "line {at}: mtu = {mtu}: must be 1280 to 65521 bytes; for less, use a cell with mtu"
        );
    }
    if spec.hosts.len() < 2 {
        refuse!("a path needs at least two hosts: [[host]] name = \"...\"");
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
            refuse!("line {at}: link \"{shown}\" already exists; give it another name");
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
            // Links and hosts are numbered in the order of the file.
            let start = match &error {
                PlanError::Loop { link, .. } => spec.links[*link].span().start,
                PlanError::Apart { node, name, .. } => match spec.hosts.get(*node) {
                    Some(host) => host.span().start,
                    // A switch appears only in links.
                    None => (spec.links.iter())
                        .find(|link| link.get_ref().between.contains(name))
                        .map_or(0, |link| link.span().start),
                },
            };
            SpecError::new(error.to_string()).at(&format!("line {}", line(start)))
        })?;
    Ok((plan, specs))
}

/// Names appear in commands (`LINK/CELL`), tables and a hosts file.
fn check_name(name: &str) -> Result<()> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if name.is_empty() || !name.chars().all(fits) {
        refuse!("invalid name \"{name}\": use letters, digits, - _ and .");
    }
    Ok(())
}

fn host(spec: &HostSpec, others: &[Node]) -> Result<Node> {
    let name = &spec.name;
    check_name(name).map_err(|error| error.at("host"))?;
    let is_number = |letter: char| letter.is_ascii_digit() || letter == '.';
    if name == "localhost" || name.ends_with("-v6") || name.chars().all(is_number) {
        refuse!("host \"{name}\": this name is reserved; use another");
    }
    if others.iter().any(|other| other.name == *name) {
        refuse!("host \"{name}\" already exists; give it another name");
    }
    let buffer = spec.buffer.as_deref().map(size).transpose();
    let buffer = buffer.map_err(|error| error.at(&format!("host \"{name}\"")))?;
    if buffer.is_some_and(|bytes| bytes >= 1 << 31) {
        refuse!("host \"{name}\": buffer must be less than 2 GiB");
    }
    Ok(Node {
        name: name.clone(),
        host: Some(Host {
            congestion: spec.congestion.clone(),
            buffer,
        }),
    })
}

#[cfg(test)]
mod tests {
    use evlbi_core::path::{Law, Loss};
    use evlbi_core::time::Nanos;

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
            (
                format!("{link}rtt = \"fast\"\n"),
                vec!["line 5", "invalid duration"],
            ),
            (
                format!("{link}rtt = 15\n"),
                vec!["line 7", "integer `15`, expected a time such as \"15ms\""],
            ),
            (
                format!("{link}cells = [{{ lose_at = [5] }}]\n"),
                vec!["line 7", "expected a time"],
            ),
            (
                format!(
                    "{link}cells = [{{ delay = \"1ms\", change = [{{ at = 5, delay = \"2ms\" }}] }}]\n"
                ),
                vec!["line 7", "expected a time"],
            ),
            (
                format!("{link}rate = \"1 banana\"\n"),
                vec!["invalid bit rate"],
            ),
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
                vec!["jitter has no effect"],
            ),
            (
                format!("{link}cells = [{{ loss = \"200%\" }}]\n"),
                vec!["invalid fraction"],
            ),
            (
                format!("{link}cells = [{{ lost = \"1%\" }}]\n"),
                vec!["line 7", "lost"],
            ),
            (format!("{link}{link}"), vec!["line 7", "already exists"]),
            (
                format!("{link}[[link]]\nname = \"x\"\nbetween = [\"b\", \"a\"]\n"),
                vec!["line 7", "loop", "remove one"],
            ),
            (String::new(), vec!["line 3", "not connected", "[[link]]"]),
            (
                "[[link]]\nbetween = [\"a\", \"b,c\"]\n".into(),
                vec!["line 5", "b,c", "letters"],
            ),
            (format!("{link}name = \"a/b\"\n"), vec!["line 5", "a/b"]),
            (
                format!("{link}[[link]]\nbetween = [\"x\", \"y\"]\n"),
                vec!["line 7", "not connected"],
            ),
            (
                format!("{link}cells = [{{ loss = \"1%\", period = \"1s\", length = \"1s\" }}]\n"),
                vec!["line 7", "shorter than the period"],
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
                vec!["line 7", "already exists"],
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
