//! Whether those who look at connections could.

use serde_json::Value;

use crate::result::number;

/// Whether a probe by TCP, or its responder, was too busy to look at its connections more than ten times, which is said: what was
/// found is not the connections' alone.
pub fn was_held_up(result: &Value) -> bool {
    has_missed(result, 10)
}

/// Whether a probe by TCP and its responder together missed more looks at their connections than this, which is said.
pub fn has_missed(result: &Value, most: u64) -> bool {
    let observers = result["observers"].as_array().unwrap().iter();
    let missed: u64 = observers.map(|observer| number(observer, "missed")).sum();
    if missed > most {
        eprintln!("skipped in part: {missed} looks at connections were missed");
    }
    missed > most
}
