//! Durations of tests. libtest reports them only on nightly, so each test that calls this crate is measured from the start of its
//! thread to its end. A binary that ends adds its tests to `target/times.txt` and prints the slowest of all that the same `cargo test`
//! has run so far: the last binary's lines are those of the whole run.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::leftovers;

/// The file that collects the times: a line with the run, then `SECONDS PACKAGE TEST` each.
pub const TIMES: &str = "times.txt";

/// Maximum number of printed tests.
const SLOWEST: usize = 10;
/// Minimum duration of printed tests, in seconds.
const SLOW: f64 = 1.0;
/// Ticks per second of the kernel's clock, for all programs: `sysconf(_SC_CLK_TCK)`.
const TICKS: f64 = 100.0;

static TESTS: Mutex<Vec<(f64, String)>> = Mutex::new(Vec::new());

/// Adds its test when the test's thread ends.
struct Watched(Cell<Option<u64>>);

impl Drop for Watched {
    fn drop(&mut self) {
        let Some(begun) = self.0.get() else { return };
        let name = std::thread::current().name().map(str::to_owned);
        if let (Some(now), Some(name)) = (uptime(), name) {
            let mut tests = TESTS.lock().unwrap_or_else(PoisonError::into_inner);
            tests.push(((now - begun as f64 / TICKS).max(0.0), name));
        }
    }
}

thread_local! {
    static WATCHED: Watched = const { Watched(Cell::new(None)) };
}

/// Measures the test of this thread.
pub(crate) fn watch() {
    let is_test = std::thread::current()
        .name()
        .is_some_and(|name| name != "main");
    if is_test {
        WATCHED.with(|watched| {
            if watched.0.get().is_none() {
                watched.0.set(leftovers::began_in("thread-self"));
            }
        });
    }
}

/// Returns the seconds since boot.
fn uptime() -> Option<f64> {
    let text = fs::read_to_string("/proc/uptime").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Adds this binary's tests to those of the run, and prints the slowest.
pub(crate) fn report(target: &Path) {
    let tests = TESTS.lock().unwrap_or_else(PoisonError::into_inner);
    let parent = std::os::unix::process::parent_id();
    let name = fs::read_to_string(format!("/proc/{parent}/comm")).unwrap_or_default();
    // A binary started by hand is a run of its own.
    let cargo = if name.trim() == "cargo" {
        parent
    } else {
        std::process::id()
    };
    let Some(begun) = leftovers::began_in(&cargo.to_string()) else {
        return;
    };
    let run = format!("run {cargo}.{begun}");
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let own = tests
        .iter()
        .map(|(seconds, name)| format!("{seconds:.1} {package} {name}"));
    let Ok(all) = merge(&target.join(TIMES), &run, own.collect()) else {
        // Another user's directory takes no report.
        return;
    };
    let since = uptime().map_or(0.0, |now| now - begun as f64 / TICKS);
    let slowest = slowest(&all);
    if slowest.is_empty() {
        return;
    }
    let mut text = format!("{since:.0} s since the run began; its slowest tests so far:\n");
    for line in slowest {
        text += &format!("  {line}\n");
    }
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Adds lines to those of the same run in a file, and drops those of other runs; returns all.
fn merge(file: &Path, run: &str, own: Vec<String>) -> std::io::Result<Vec<String>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(file)?;
    File::lock(&file)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let earlier = text.strip_prefix(run).into_iter().flat_map(str::lines);
    let mut all: Vec<String> = earlier
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    all.extend(own);
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(format!("{run}\n{}\n", all.join("\n")).as_bytes())?;
    Ok(all)
}

/// Returns the slowest tests of a file's lines, `SECONDS s PACKAGE TEST` each.
#[must_use]
pub fn slowest(lines: &[String]) -> Vec<String> {
    let parsed = lines.iter().filter_map(|line| {
        let (seconds, test) = line.split_once(' ')?;
        Some((seconds.parse::<f64>().ok()?, test))
    });
    let mut tests: Vec<(f64, &str)> = parsed.filter(|(seconds, _)| *seconds >= SLOW).collect();
    tests.sort_by(|one, other| other.0.total_cmp(&one.0));
    tests.truncate(SLOWEST);
    let lines = tests
        .iter()
        .map(|(seconds, test)| format!("{seconds:5.1} s {test}"));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_of_a_run_are_reported() {
        let room = crate::Room::new();
        let file = room.folder().join("times");
        let lines = |text: &[&str]| {
            text.iter()
                .map(|line| (*line).to_owned())
                .collect::<Vec<_>>()
        };
        merge(&file, "run 1.2", lines(&["0.9 a b::c", "12.5 a b::d"])).expect("written");
        let all = merge(&file, "run 1.2", lines(&["3.0 e f::g"])).expect("written");
        assert_eq!(slowest(&all), [" 12.5 s a b::d", "  3.0 s e f::g"]);
        let another = merge(&file, "run 1.3", lines(&["2.0 e f::g"])).expect("written");
        assert_eq!(slowest(&another), ["  2.0 s e f::g"]);
    }
}
