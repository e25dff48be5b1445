//! Cells of a plan file and the laws that they define. A new law gets its keys here.

use std::ops::Deref;

use evlbi_core::path::{ETHERNET_OVERHEAD, Law, Loss, Shape, Times, Until};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_wire::units::{self, setting};
use serde::{Deserialize, Deserializer, Serialize};

use super::{LinkSpec, Result, SpecError, check_name, refuse};
use crate::CellPlan;

/// Default buffer of a rate, in bytes.
const BUFFER: u64 = 1 << 20;

/// A cell: the key that defines its law, and keys that go with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CellSpec {
    name: Option<String>,
    delay: Option<TimeText>,
    jitter: Option<TimeText>,
    shape: Option<String>,
    overtakes: Option<bool>,
    rate: Option<String>,
    buffer: Option<String>,
    overhead: Option<u32>,
    mark_above: Option<TimeText>,
    mtu: Option<u32>,
    tells: Option<bool>,
    loss: Option<String>,
    burst: Option<String>,
    every: Option<u64>,
    first: Option<u64>,
    lose_at: Option<Vec<TimeText>>,
    above: Option<String>,
    window: Option<TimeText>,
    period: Option<TimeText>,
    length: Option<TimeText>,
    begin: Option<TimeText>,
    on: Option<TimeText>,
    off: Option<TimeText>,
    outage: Option<[TimeText; 2]>,
    police: Option<String>,
    duplicate: Option<String>,
    reorder: Option<String>,
    distance: Option<u32>,
    by: Option<TimeText>,
    corrupt: Option<String>,
    mark: Option<String>,
    change: Vec<ChangeSpec>,
}

/// A time as written, e.g. `15ms`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub(super) struct TimeText(String);

impl Deref for TimeText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for TimeText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<TimeText, D::Error> {
        setting::time_text(from).map(TimeText)
    }
}

/// A change of a cell at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangeSpec {
    at: TimeText,
    #[serde(flatten)]
    cell: toml::Table,
}

/// The keys that define a law, each with the keys that go with it.
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

/// Keys whose values are times.
pub const TIMES: [&str; 12] = [
    "delay",
    "jitter",
    "mark_above",
    "lose_at",
    "window",
    "period",
    "length",
    "begin",
    "on",
    "off",
    "outage",
    "by",
];

/// Returns the cells that a link's own keys define.
pub(super) fn shorthand(link: &LinkSpec) -> Result<Vec<CellSpec>> {
    let mut cells = Vec::new();
    if link.buffer.is_some() && link.rate.is_none() {
        refuse!("buffer needs rate");
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
            delay: Some(TimeText(format!("{half}ns"))),
            ..CellSpec::default()
        });
    }
    Ok(cells)
}

pub(super) fn cell(spec: &CellSpec, others: &[CellPlan]) -> Result<CellPlan> {
    let (kind, law) = spec.law()?;
    let taken = |name: &str| others.iter().any(|other| other.name == name);
    let name = match &spec.name {
        Some(name) if taken(name) => {
            refuse!("two cells have the name \"{name}\"; give each its own name")
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
            refuse!("overtakes cannot be changed later; set it from the start");
        }
        changes.push((time(&change.at)?, law));
    }
    changes.sort_by_key(|(at, _)| *at);
    Ok(CellPlan { name, law, changes })
}

impl CellSpec {
    /// Returns the cell with other values.
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

    /// Returns the law, and the key that defines it.
    pub fn law(&self) -> Result<(&'static str, Law)> {
        let keys = toml::Table::try_from(self)?;
        let mut named = KINDS.to_vec();
        named.retain(|(kind, _)| keys.contains_key(*kind));
        let [(kind, goes)] = named[..] else {
            let names = |kinds: &[(&'static str, _)]| kinds.iter().map(|kind| kind.0).collect();
            let (named, all): (Vec<&str>, Vec<&str>) = (names(&named), names(&KINDS));
            refuse!(
                "a cell needs exactly one law, and this one {}: give one of {}",
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
                "{stray} has no effect on a cell with {kind}{}",
                match goes {
                    [] => String::new(),
                    goes => format!(": it takes {}", goes.join(", ")),
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
                        refuse!("invalid shape \"{other}\": use uniform, normal or pareto")
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
                    refuse!("every = 0 is not possible; give at least 1");
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
                    .ok_or_else(|| SpecError::new("outage needs two times"))?;
                let (from, to) = (time(from)?, time(to)?);
                if to <= from {
                    refuse!("an outage must end after its start");
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
                        refuse!("reorder takes distance or by, not both")
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

    /// Returns a buffer in bytes; written as bytes, or as a time at the rate.
    fn buffer(&self) -> Result<Option<u64>> {
        let Some(buffer) = &self.buffer else {
            return Ok(None);
        };
        if let Ok(bytes) = size(buffer) {
            return Ok(Some(bytes));
        }
        let time = time(buffer).map_err(|error| {
            error.at(&format!(
                "invalid buffer \"{buffer}\": give bytes (256KiB), or a time at the rate (5ms)"
            ))
        })?;
        let bits = u128::from(rate(&self.rate)?.get()) * u128::from(time.0) / 8_000_000_000;
        Ok(Some(u64::try_from(bits).unwrap_or(u64::MAX)))
    }

    fn periodic(&self) -> Result<Times> {
        let period = time(self.period.as_deref().unwrap_or(""))?;
        let length = self.length.as_deref();
        let length = length.ok_or_else(|| SpecError::new("period needs length"))?;
        let length = time(length)?;
        if length >= period {
            refuse!("length must be shorter than the period; for constant loss, give only loss");
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
                refuse!("{key} needs {with}");
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
                        "invalid burst \"{text}\": give the mean length in packets, at least 1, with a loss below 100%"
                    );
                }
                if lost > length / (1.0 + length) {
                    refuse!(
                        "bursts of {length} packets cannot lose {:.1} %: at least one packet is between two bursts, so the \
                         maximum is {:.1} %",
                        lost * 100.0,
                        100.0 * length / (1.0 + length)
                    );
                }
                // Everything is lost in the bad state, so its fraction of the time is the loss.
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
                    Nanos(0..1000) => refuse!("window must be at least 1us"),
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
                let off = time(off.ok_or_else(|| SpecError::new("on needs off"))?)?;
                if on.0.min(off.0) < 1_000_000 {
                    refuse!("on and off must be at least 1 ms on average; for less, use burst");
                }
                Ok(Loss::Within {
                    times: Times::Episodes { on, off },
                    fraction: lost,
                })
            }
            several => refuse!(
                "loss takes one of these keys, and this one has {}",
                several.join(" and ")
            ),
        }
    }
}

/// Returns the possible meanings of a value that was written as a text.
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

fn time(text: &str) -> Result<Nanos> {
    units::duration(text)
        .map(Nanos::from)
        .map_err(SpecError::from)
}

pub(super) fn size(text: &str) -> Result<u64> {
    units::size(text).map_err(SpecError::from)
}

fn rate(text: &Option<String>) -> Result<BitRate> {
    Ok(text.as_deref().unwrap_or("").parse()?)
}

fn fraction(text: &Option<String>) -> Result<f64> {
    units::fraction(text.as_deref().unwrap_or("")).map_err(SpecError::from)
}
