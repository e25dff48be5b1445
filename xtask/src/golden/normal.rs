//! Outcomes without the clock, the machine's pace, and generated names.

use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::cases::Pace;
use super::compare::{Piece, pieces};

/// Key of the lines of help, to which a new build may add.
pub const LINES: &str = "‹lines›";
/// Key of what all entries of a masked list have in common.
pub const EACH: &str = "‹each›";
/// A masked value that is missing, or an empty list.
pub const NULL: &str = "‹none›";
const NUMBER: &str = "‹number›";

/// How a field is masked.
#[derive(Clone, Copy, PartialEq)]
enum Mask {
    /// Compares only the types of everything that it contains.
    Type,
    /// Compares only whether it exists.
    Presence,
}
use Mask::{Presence, Type};

/// Fields that differ between two runs of one program: start of the schema, fields (of a certain parent: parent.field), mask and
/// reason.
const FIELDS: &[(&str, &str, Mask, &str)] = &[
    (
        "",
        "cpu_seconds rate_bps rates_before_bps lateness_us behind_seconds slips",
        Type,
        CLOCK,
    ),
    ("", "begun ended_at first_arrival last_arrival", Type, CLOCK),
    ("", "histogram-latency bins", Presence, CLOCK),
    ("evlbi.send", "seconds", Type, CLOCK),
    ("evlbi.recv", "seconds", Type, CLOCK),
    ("evlbi.demo", "seconds", Type, CLOCK),
    ("evlbi.demo", "stations", Type, LENGTH),
    ("evlbi.correlate", "streams.seconds", Type, CLOCK),
    ("evlbi.probe", "late bursts", Type, CLOCK),
    (
        "evlbi.probe",
        "course stages intervals trials",
        Type,
        LENGTH,
    ),
    ("evlbi.report", "windows runs", Type, LENGTH),
    (
        "evlbi.live",
        "streams",
        Type,
        "counts continue while a line is written",
    ),
    (
        "evlbi.send",
        "socket",
        Type,
        "how the kernel took datagrams",
    ),
    (
        "evlbi.recv",
        "most_joined",
        Type,
        "how the kernel joined datagrams",
    ),
    ("evlbi.recv", "host refused", Type, HOST),
    ("evlbi.probe", "before change", Presence, HOST),
    ("evlbi.probe", "during", Type, HOST),
    ("evlbi.probe", "finding findings", Type, SENTENCE),
    ("evlbi.probe.capacity", "limit", Type, SENTENCE),
    ("evlbi.report", "finding", Type, SENTENCE),
    ("", "status.line", Type, SENTENCE),
    (
        "evlbi.agent",
        "fingerprint",
        Type,
        "a certificate of its own",
    ),
];
const CLOCK: &str = "the clock";
const LENGTH: &str = "as many as there was time for";
const HOST: &str = "counters of the host, whose other programs send and receive too";
const SENTENCE: &str = "a sentence about times and rates";

/// Numbers that are compared in cases whose other numbers depend on the machine's pace.
const KEPT: &[(&str, &str)] = &[
    (
        "",
        "lost host_lost network_lost unattributed duplicates corrupted invalid size burst",
    ),
    ("evlbi.probe.udp", "sent received unique"),
    ("evlbi.probe.latency", "sent received"),
];

/// Lines of text that only some runs have, by a part of each: in which cases, and why.
const PASSING: &[(Pace, &str, &str)] = &[
    (Pace::Rates, "waiting for a stream", "once a second"),
    (Pace::Rates, "behind ", BEHIND),
    (Pace::All, "the sender reached", BEHIND),
    (Pace::All, "the hosts are the limit", BEHIND),
    (Pace::All, "later than planned, at most", BEHIND),
    (Pace::All, " of memory, ", "goes with `later than planned`"),
    (
        Pace::All,
        "bytes, outbound: nothing lost",
        "may have `the sender reached`",
    ),
    (
        Pace::All,
        "bytes, return: nothing lost",
        "may have `the sender reached`",
    ),
    (Pace::All, "manchester>", "has delays where there were any"),
    (Pace::All, "jodrell>", "has delays where there were any"),
    (Pace::All, "capacity ", "may be `at least`"),
    (
        Pace::All,
        "no higher rate was requested",
        "goes with `at least`",
    ),
    (Pace::All, " passed ", "goes with `at least`"),
    (Pace::All, " confidence ", "goes with `at least`"),
    (Pace::All, "trial ", LENGTH),
    (Pace::All, " sent, ", LENGTH),
    (Pace::All, "sampling the connections", LENGTH),
    (Pace::All, "throughput ", SENTENCE),
    (Pace::All, "limited by ", SENTENCE),
    (Pace::All, "retransmi", SENTENCE),
    (Pace::All, "late from message", SENTENCE),
    (Pace::All, " more times, by up to ", SENTENCE),
    (Pace::All, "all messages were on time", SENTENCE),
    (
        Pace::All,
        "the remote clock is ",
        "has a rate where that is known well enough",
    ),
    (Pace::All, "stolen time", CLOCK),
    (
        Pace::All,
        "other virtual machines had",
        "goes with `stolen time`",
    ),
];
const BEHIND: &str = "a program waited for a processor";

fn is_passing(line: &str, pace: Pace) -> bool {
    PASSING
        .iter()
        .any(|(least, part, _)| pace >= *least && line.contains(part))
}

/// Returns whether a line shows progress: it starts with 75.0 % or a rate, and has more text.
fn is_progress(line: &str) -> bool {
    let line = line.trim_start();
    let progress = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let units = [" %  ", " bit/s", " kbit/s", " Mbit/s", " Gbit/s"];
    progress.len() < line.len() && units.iter().any(|unit| progress.starts_with(unit))
}

/// Normalises standard output: JSON, JSON on each line, or text.
pub fn stdout(said: &str, pace: Pace) -> Value {
    if let Ok(value) = serde_json::from_str(said) {
        return json(value, pace);
    }
    let lines: Result<Vec<Value>, _> = said.lines().map(serde_json::from_str).collect();
    match lines {
        Ok(lines) if !lines.is_empty() => lines.into_iter().map(|line| json(line, pace)).collect(),
        _ => text(said, pace),
    }
}

/// Normalises standard error, without progress.
pub fn stderr(said: &str, pace: Pace) -> Value {
    let lines: Vec<&str> = said.lines().filter(|line| !is_progress(line)).collect();
    text(&lines.join("\n"), pace)
}

/// Normalises text by lines, without those that only some runs have.
fn text(text: &str, pace: Pace) -> Value {
    let lines = text.lines().filter(|line| !is_passing(line, pace));
    lines
        .map(|line| Value::String(masked(line, pace)))
        .collect()
}

/// Normalises help: its lines without wrapping and alignment.
pub fn help(text: &str) -> Value {
    const WRAPPED: usize = 8;
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let indent = line.len() - line.trim_start().len();
        match (words.first(), lines.last_mut()) {
            (None, _) => {}
            (Some(first), Some(last)) if indent >= WRAPPED && !first.starts_with('-') => {
                last.push(' ');
                last.push_str(&words.join(" "));
            }
            _ => lines.push(words.join(" ")),
        }
    }
    json!({ LINES: lines })
}

/// Returns a line without ports, tokens and times, without durations and rates, or without any number.
fn masked(line: &str, pace: Pace) -> String {
    let (line, _) = line.split_once("#token=").unwrap_or((line, ""));
    let pieces = pieces(line);
    let mut masked = String::new();
    let mut unit = 0;
    for (index, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Text(text) => masked.push_str(&text[unit..]),
            Piece::Number(number) => {
                let next = match pieces.get(index + 1) {
                    Some(Piece::Text(text)) => text,
                    _ => "",
                };
                unit = unit_of(next);
                let is_moment = match (number.len(), next) {
                    (8, "T") => true,
                    (6, _) => masked.ends_with(&format!("{NUMBER}T")),
                    _ => false,
                };
                let is_port = masked.ends_with(':') && number.len() == 5;
                let is_masked = match pace {
                    _ if is_port || is_moment => true,
                    Pace::None => false,
                    Pace::Rates => unit > 0,
                    Pace::All => true,
                };
                if !is_masked {
                    unit = 0;
                }
                if is_masked && (masked.ends_with(" -") || masked == "-") {
                    masked.pop();
                }
                masked.push_str(if is_masked { NUMBER } else { number });
                continue;
            }
        }
        unit = 0;
    }
    match pace {
        Pace::None => masked,
        // Columns are as wide as their numbers.
        _ => masked.split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

/// Returns the length of a unit of time or rate, which belongs to its number: 900 us, 1.1 ms.
fn unit_of(text: &str) -> usize {
    const UNITS: [&str; 13] = [
        "s", "ms", "us", "ns", "bit/s", "kbit/s", "Mbit/s", "Gbit/s", "B/s", "kB/s", "MB/s",
        "GB/s", "kB",
    ];
    let Some(word) = text.strip_prefix(' ') else {
        return 0;
    };
    let end = word
        .find(|c: char| !c.is_ascii_alphabetic() && c != '/')
        .unwrap_or(word.len());
    if UNITS.contains(&&word[..end]) {
        1 + end
    } else {
        0
    }
}

/// Returns a result without the fields in [`FIELDS`]; if all depends on the pace, without numbers other than [`KEPT`].
pub fn json(value: Value, pace: Pace) -> Value {
    fields(value, "", "", pace)
}

/// Masks the fields of a value; `within` is the field that contains it.
fn fields(value: Value, schema: &str, within: &str, pace: Pace) -> Value {
    match value {
        Value::Object(object) => {
            let own = object
                .get("schema")
                .and_then(Value::as_str)
                .map(str::to_owned);
            let schema = own.as_deref().unwrap_or(schema);
            let masks = object.into_iter().map(|(key, value)| {
                let is_field = |field: &str| match field.split_once('.') {
                    Some((parent, field)) => parent == within && field == key,
                    None => field == key,
                };
                let mask = FIELDS.iter().find(|(of, names, ..)| {
                    schema.starts_with(of) && names.split(' ').any(is_field)
                });
                let value = match mask {
                    Some((_, _, Type, _)) => shape(value),
                    Some((_, _, Presence, _)) => NULL.into(),
                    None => fields(value, schema, &key, pace),
                };
                (masked(&key, Pace::None), value)
            });
            Value::Object(masks.collect())
        }
        Value::Array(list) => {
            let each = list
                .into_iter()
                .map(|value| fields(value, schema, within, pace));
            each.collect()
        }
        Value::String(text) => masked(&text, pace).into(),
        Value::Null if pace == Pace::All => NULL.into(),
        Value::Number(number) => {
            let is_kept = |(of, names): &(&str, &str)| {
                schema.starts_with(of) && names.split(' ').any(|name| name == within)
            };
            match pace == Pace::All && !KEPT.iter().any(is_kept) {
                true => NUMBER.into(),
                false => Value::Number(number),
            }
        }
        value => value,
    }
}

/// Returns the types in a value.
fn shape(value: Value) -> Value {
    match value {
        Value::Null => NULL.into(),
        Value::Bool(_) => "‹bool›".into(),
        Value::Number(_) => NUMBER.into(),
        Value::String(_) => "‹text›".into(),
        Value::Array(list) => {
            let each = list.into_iter().map(shape).reduce(joined);
            each.map_or(NULL.into(), |each| json!({ EACH: each }))
        }
        Value::Object(object) => {
            let shapes = object.into_iter().map(|(key, value)| (key, shape(value)));
            Value::Object(shapes.collect())
        }
    }
}

/// Returns the fields of either of two entries.
fn joined(first: Value, second: Value) -> Value {
    match (first, second) {
        (Value::Object(mut first), Value::Object(second)) => {
            for (key, value) in second {
                let known = first.remove(&key);
                let value = known.map_or(value.clone(), |known| joined(known, value));
                first.insert(key, value);
            }
            Value::Object(first)
        }
        (first, second) if first == NULL => second,
        (first, _) => first,
    }
}

/// Returns all files of a directory, by name. `unplaced` replaces the paths of a run in text.
///
/// # Errors
/// Returns an error if one cannot be read.
pub fn files(folder: &Path, pace: Pace, unplaced: &dyn Fn(&str) -> String) -> Result<Value> {
    let mut files = Map::new();
    let mut folders = vec![(folder.to_owned(), String::new())];
    while let Some((folder, within)) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = format!(
                "{within}{}",
                masked(&entry.file_name().to_string_lossy(), Pace::None)
            );
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push((entry.path(), format!("{name}/")));
            } else if kind.is_file() {
                files.insert(name, file(&entry.path(), pace, unplaced)?);
            }
        }
    }
    Ok(Value::Object(files))
}

fn file(path: &Path, pace: Pace, unplaced: &dyn Fn(&str) -> String) -> Result<Value> {
    let extension = path
        .extension()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let bytes = fs::read(path)?;
    let as_text = || unplaced(&String::from_utf8_lossy(&bytes));
    Ok(match &*extension {
        "json" => stdout(&as_text(), pace),
        "csv" if pace == Pace::All => {
            text(as_text().lines().next().unwrap_or_default(), Pace::None)
        }
        "csv" | "txt" | "svg" | "html" | "toml" if pace < Pace::All => text(&as_text(), pace),
        // Lock files have no extension.
        some if pace < Pace::All && !some.is_empty() => {
            json!({"bytes": bytes.len(), "sha256": hex(&Sha256::digest(&bytes))})
        }
        _ => NULL.into(),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
