//! What the kernels said, and messages one by one, as CSV.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::flow::Flow;

fn create(path: &Path) -> Result<BufWriter<File>> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(BufWriter::new(file))
}

/// Every reading of both ends; times by the sender's clock, in seconds from the first reading of the connection's sender.
pub fn write_readings(path: &Path, flows: &[Flow]) -> Result<()> {
    let mut file = create(path)?;
    let mut has_heads = false;
    for flow in flows {
        let first = flow.readings.iter().find_map(|all| all.first());
        let begin = first.map_or(0, |reading| reading.at);
        for (end, readings) in ["sender", "receiver"].iter().zip(&flow.readings) {
            for reading in readings {
                let Value::Object(info) = serde_json::to_value(reading.info)? else {
                    continue;
                };
                if !has_heads {
                    let names: Vec<&str> = info.keys().map(String::as_str).collect();
                    writeln!(file, "connection,end,seconds,backlog,{}", names.join(","))?;
                    has_heads = true;
                }
                let seconds = reading.at.wrapping_sub(begin).cast_signed() as f64 * 1e-9;
                write!(
                    file,
                    "{},{end},{seconds:.6},{}",
                    flow.number, reading.backlog
                )?;
                for value in info.values() {
                    match value {
                        Value::String(text) => write!(file, ",{text}")?,
                        other => write!(file, ",{other}")?,
                    }
                }
                writeln!(file)?;
            }
        }
    }
    file.flush()
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Each message that was kept: its number, when it left and when it came, in nanoseconds from when the first was due, and how
/// late that was.
pub fn write_messages(path: &Path, flows: &[Flow]) -> Result<()> {
    let mut file = create(path)?;
    writeln!(file, "connection,message,departed_ns,arrived_ns,late_ns")?;
    for flow in flows {
        for (number, left, came, late) in flow.messages.iter().flat_map(|all| &all.kept) {
            writeln!(file, "{},{number},{left},{came},{late}", flow.number)?;
        }
    }
    file.flush()
        .with_context(|| format!("cannot write {}", path.display()))
}
