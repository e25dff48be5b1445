use std::path::PathBuf;

use super::{Lines, count};

#[test]
fn each_line_is_counted_once_and_tests_by_their_items() {
    let source = r##"//! What this is.
#![allow(dead_code)]

/* two
   lines */
use std::fmt; // for all

/// Documented.
#[derive(Debug)]
struct Text(&'static str);

impl Text {
    fn text() -> Text {
        Text("
// not a comment

")
    }

    /// For tests.
    #[cfg(test)]
    fn of_tests() {}
}

#[cfg(not(test))]
fn of_the_program() {}

mod inner {
    #[cfg(all(test, not(loom)))]
    mod tests;
    mod other;
}

#[cfg(test)]
mod tests {
    // One.

    #[test]
    fn one() {}
}
#[cfg(test)]
mod far;
"##;
    let (lines, modules) = count(source).expect("this is Rust");
    let expected = Lines {
        code: 17,
        comments: 4,
        blank: 7,
        tests: 14,
        ..Lines::default()
    };
    assert_eq!(lines, expected);
    assert_eq!(lines.total(), source.lines().count());
    let expected: Vec<PathBuf> = vec!["inner/tests".into(), "far".into()];
    assert_eq!(modules, expected);
}

#[test]
fn text_that_is_not_rust_is_an_error() {
    assert!(count("fn (").is_err());
}
