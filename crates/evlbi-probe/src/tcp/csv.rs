//! The kernels' samples, and single messages, as CSV.

use std::path::Path;

use evlbi_net::file::{Table, TableError};
use serde_json::Value;

use super::flow::Flow;

/// Writes every sample of both endpoints. Times are by the sender's clock, in seconds from the first sample of the connection's sender.
pub fn write_readings(path: &Path, flows: &[Flow]) -> Result<(), TableError> {
    let mut table = Table::create(path, "")?;
    let mut has_heads = false;
    for flow in flows {
        let first = flow.readings.iter().find_map(|all| all.first());
        let begin = first.map_or(0, |reading| reading.at);
        for (end, readings) in ["sender", "receiver"].iter().zip(&flow.readings) {
            for reading in readings {
                let Ok(Value::Object(info)) = serde_json::to_value(reading.info) else {
                    continue;
                };
                if !has_heads {
                    let names: Vec<&String> = info.keys().collect();
                    table.row(("connection", "end", "seconds", "backlog", names))?;
                    has_heads = true;
                }
                let seconds = reading.at.wrapping_sub(begin).cast_signed() as f64 * 1e-9;
                let seconds = format!("{seconds:.6}");
                let text = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
                let values: Vec<String> = info.values().map(text).collect();
                table.row((flow.number, end, seconds, reading.backlog, values))?;
            }
        }
    }
    table.flush()
}

/// Writes each message that was kept: its number, departure and arrival in nanoseconds since the first was due, and its lateness.
pub fn write_messages(path: &Path, flows: &[Flow]) -> Result<(), TableError> {
    let mut table = Table::create(path, "connection,message,departed_ns,arrived_ns,late_ns")?;
    for flow in flows {
        for message in flow.messages.iter().flat_map(|all| &all.kept) {
            table.row((flow.number, message))?;
        }
    }
    table.flush()
}
