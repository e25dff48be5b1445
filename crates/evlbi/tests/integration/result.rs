//! What stands in results.

use serde_json::Value;

/// A count of a result.
#[track_caller]
pub fn number(result: &Value, name: &str) -> u64 {
    result[name]
        .as_u64()
        .unwrap_or_else(|| panic!("no number {name} in {}", brief(result)))
}

/// The scalars of a result.
pub fn brief(result: &Value) -> String {
    let fields = result.as_object().into_iter().flatten();
    let scalars = fields.filter(|(_, value)| !value.is_array() && !value.is_object());
    let shown: Vec<String> = scalars
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    shown.join(" ")
}
