//! `cargo xtask words`: no line that somebody reads may match a pattern of hard-to-read text (`words.txt`), and public doc comments
//! follow their rules (`docs`).
//!
//! Here belongs what can be checked of the project's wording.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fancy_regex::Regex;

mod docs;
#[cfg(test)]
mod tests;

/// An id, a tab, a regular expression; lines that begin with `#` are comments.
const PATTERNS: &str = include_str!("../words.txt");

/// Endings of files with text that somebody reads.
const READ: [&str; 9] = [
    "css", "html", "js", "md", "rs", "script", "service", "svg", "toml",
];

/// One line of the tree that somebody reads.
struct Line {
    path: String,
    number: usize,
    text: String,
}

/// Prints all lines that match a pattern or break a rule.
///
/// # Errors
/// There are such lines; a file cannot be read.
pub fn check() -> Result<()> {
    let lines = lines()?;
    let mut hits = docs::breaches(&lines)?;
    for (id, regex) in patterns()? {
        for (at, line) in lines.iter().enumerate() {
            if regex.is_match(&line.text)? {
                hits.push((id, at));
            }
        }
    }
    for (id, at) in &hits {
        let Line { path, number, text } = &lines[*at];
        println!("{path}:{number}: [{id}] {}", text.trim());
    }
    ensure!(hits.is_empty(), "{} lines to reword", hits.len());
    Ok(())
}

/// Returns the patterns, each with its id.
fn patterns() -> Result<Vec<(&'static str, Regex)>> {
    let rows = PATTERNS.lines().filter(|row| !row.starts_with('#'));
    rows.map(|row| {
        let (id, regex) = row.split_once('\t').with_context(|| row.to_owned())?;
        Ok((id, Regex::new(regex).with_context(|| id.to_owned())?))
    })
    .collect()
}

/// Returns all lines of the tree except those of tests.
fn lines() -> Result<Vec<Line>> {
    let output = Command::new("git").args(["ls-files", "-z"]).output()?;
    ensure!(output.status.success(), "git ls-files failed");
    let mut lines = Vec::new();
    for path in String::from_utf8(output.stdout)?.split_terminator('\0') {
        let ending = path.rsplit_once('.').map_or("", |(_, ending)| ending);
        let is_test = path
            .split('/')
            .any(|part| part == "tests" || part == "tests.rs");
        if !READ.contains(&ending) || is_test {
            continue;
        }
        // A file that is removed but not yet committed.
        let Ok(text) = fs::read_to_string(path) else {
            continue;
        };
        for (at, line) in text.lines().enumerate() {
            lines.push(Line {
                path: path.to_owned(),
                number: at + 1,
                text: line.to_owned(),
            });
        }
    }
    Ok(lines)
}
