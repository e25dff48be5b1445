//! Each pattern and each rule finds text that it is for, and none is missing.

use super::*;

/// The patterns' ids, each with a text that it finds.
const FOUND: [(&str, &str); 15] = [
    ("whoever", "what whoever watches sees"),
    ("is-no", "`foo` is no time"),
    ("so-many", "after so many bytes"),
    ("told-said", "zoom bands are left out, which is said"),
    ("go-on", "the run goes on"),
    ("anew", "begin anew"),
    ("waited-for", "a missing datagram is waited for"),
    ("odd-idiom", "a rate, as 500M"),
    ("held-against", "results are held against theory"),
    ("one-a-station", "one a station"),
    ("far-end", "the far end"),
    ("part-of", "parts of the datagrams"),
    ("most-least", "/// Least memory of the ring"),
    ("is-there", "if it is there already"),
    ("doc-what", "/// What a receiver sees"),
];

#[test]
fn each_pattern_finds_its_words() {
    let patterns = patterns().unwrap();
    let ids: Vec<&str> = patterns.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, FOUND.map(|(id, _)| id));
    for ((id, regex), (_, text)) in patterns.iter().zip(FOUND) {
        assert!(regex.is_match(text).unwrap(), "{id}: {text}");
    }
}

#[test]
fn each_rule_of_doc_comments_finds_its_breaches() {
    let source = "/// The sum.\npub fn sum() {}\n/// Computes a sum.\npub struct Sum;\n";
    let lines: Vec<Line> = (1..)
        .zip(source.lines())
        .map(|(number, text)| Line {
            path: "crates/evlbi/src/sum.rs".to_owned(),
            number,
            text: text.to_owned(),
        })
        .collect();
    let breaches = docs::breaches(&lines).unwrap();
    assert_eq!(breaches, [("doc-function", 0), ("doc-type", 2)]);
}
