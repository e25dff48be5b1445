//! Access to results: those that libraries return, and those that the program prints.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;

use evlbi_net::run::explain;
use serde::Serialize;
use serde_json::Value;

/// Returns a result as JSON, as the program prints it.
///
/// # Panics
/// Panics with the reason if there is none.
#[track_caller]
pub fn shown<T, E>(result: Result<T, E>) -> Value
where
    T: Serialize,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    match result {
        Ok(result) => checked(serde_json::to_value(result).expect("results can be shown")),
        Err(error) => panic!("{}", explain(&*error.into())),
    }
}

/// Parses a result that a program has printed or written to a file, and compares it with its schema.
///
/// # Panics
/// When it is not valid JSON, or differs from its schema.
#[track_caller]
pub fn read(text: impl AsRef<[u8]>) -> Value {
    let text = text.as_ref();
    match serde_json::from_slice(text) {
        Ok(result) => checked(result),
        Err(error) => panic!("{error}: {}", String::from_utf8_lossy(text)),
    }
}

/// Compares a result with the schema in docs/schemas that it names. A result that is not finished has only some of the fields.
///
/// # Panics
/// When they differ, it names no schema, or there is no such schema.
#[track_caller]
pub fn checked(result: Value) -> Value {
    let name = result["schema"].as_str();
    let name = name.unwrap_or_else(|| panic!("no schema in {result}"));
    if result["finished"] == false {
        return result;
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schemas");
    let path = format!("{folder}/{}.json", name.replace('/', "-"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let schema = serde_json::from_str(&text).expect("a schema is JSON");
    let schema = jsonschema::validator_for(&schema).expect("a schema");
    let wrong: Vec<String> = (schema.iter_errors(&result))
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(wrong.is_empty(), "{name}: {}", wrong.join("\n"));
    result
}

/// Asserts that a result names this schema, and compares it with it.
///
/// # Panics
/// When it names another, or they differ.
#[track_caller]
pub fn assert_schema(result: &Value, name: &str) {
    assert_eq!(result["schema"], name, "{result}");
    checked(result.clone());
}

/// Returns the text of an error, with its causes.
///
/// # Panics
/// Panics if there is none.
#[must_use]
#[track_caller]
pub fn refused<T, E>(result: Result<T, E>) -> String
where
    E: Into<Box<dyn Error + Send + Sync>>,
{
    match result {
        Ok(_) => panic!("it is not refused"),
        Err(error) => explain(&*error.into()),
    }
}

/// Returns a count of a result.
///
/// # Panics
/// Panics if there is no count of that name.
#[must_use]
#[track_caller]
pub fn number(result: &Value, name: &str) -> u64 {
    result[name]
        .as_u64()
        .unwrap_or_else(|| panic!("no number {name} in {}", brief(result)))
}

/// Asserts the numbers of a result, all at once, so that a failure shows every one.
///
/// # Panics
/// Panics if one differs.
#[track_caller]
pub fn assert_numbers(result: &Value, expected: &[(&str, u64)]) {
    let found: Vec<(&str, u64)> = expected
        .iter()
        .map(|(name, _)| (*name, number(result, name)))
        .collect();
    assert_eq!(found, expected, "in {}", brief(result));
}

/// Returns the scalars of a result.
#[must_use]
pub fn brief(result: &Value) -> String {
    let fields = result.as_object().into_iter().flatten();
    let scalars = fields.filter(|(_, value)| !value.is_array() && !value.is_object());
    let shown: Vec<String> = scalars
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    shown.join(" ")
}

/// Returns the direction that carried most, from the findings of `analyse`.
///
/// # Panics
/// Panics if it carried little.
#[must_use]
#[track_caller]
pub fn largest(analysis: &Value) -> &Value {
    let way = &analysis["connections"][0]["ways"][0];
    assert!(number(way, "bytes") > 100_000, "{analysis}");
    way
}

/// Returns the packets of each event, from the table of events that `analyse` writes.
///
/// # Panics
/// Panics if it is not such a table.
#[must_use]
#[track_caller]
pub fn packets_by_event(events: &str) -> BTreeMap<String, BTreeSet<u64>> {
    let mut packets = BTreeMap::<String, BTreeSet<u64>>::new();
    for line in events.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        packets
            .entry(fields[4].to_owned())
            .or_default()
            .insert(fields[0].parse().expect("the number of a packet"));
    }
    packets
}
