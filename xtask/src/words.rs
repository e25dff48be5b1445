//! `cargo xtask words`: patterns of hard-to-read text, counted; `words.txt` holds the patterns and the highest counts allowed.
//!
//! Here belongs what can be checked of the project's wording.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use fancy_regex::Regex;

mod docs;

const STORE: &str = "xtask/words.txt";

#[derive(Args)]
pub struct WordsArgs {
    /// Print the lines that match this pattern, or every pattern with `all`
    #[arg(long, value_name = "ID")]
    list: Option<String>,
    /// Keep only the lines of files whose paths begin with this
    #[arg(long, value_name = "PATH", requires = "list")]
    under: Option<String>,
    /// Store today's counts where they are lower
    #[arg(long)]
    lower: bool,
}

/// One line of the tree that somebody reads.
struct Line {
    path: String,
    number: usize,
    text: String,
    /// Whether it reaches users: documents, help, examples, the web UI, and the strings of the code.
    is_users: bool,
}

/// A pattern with its stored counts, or a rule of doc comments.
struct Pattern {
    id: String,
    users: usize,
    comments: usize,
    /// `None` for a rule that `docs` checks.
    regex: Option<Regex>,
    source: String,
}

/// Checks the counts, lists lines, or lowers the stored counts.
///
/// # Errors
/// A count above the stored one, or below it without `--lower`; a file that cannot be read.
pub fn run(args: &WordsArgs) -> Result<()> {
    let store = fs::read_to_string(STORE).context(STORE)?;
    let mut patterns = patterns(&store)?;
    let lines = lines()?;
    let verbs = docs::breaches(&lines)?;
    if let Some(wanted) = &args.list {
        let known = patterns.iter().any(|pattern| pattern.id == *wanted);
        ensure!(known || wanted == "all", "no pattern `{wanted}` in {STORE}");
        let under = args.under.as_deref().unwrap_or_default();
        for pattern in &patterns {
            if wanted != "all" && pattern.id != *wanted {
                continue;
            }
            for line in pattern.hits(&lines, &verbs)? {
                if line.path.starts_with(under) {
                    let kind = if line.is_users { "users" } else { "comment" };
                    let (path, number, text) = (&line.path, line.number, line.text.trim());
                    println!("{path}:{number}: [{} {kind}] {text}", pattern.id);
                }
            }
        }
        return Ok(());
    }
    let mut problems = Vec::new();
    let mut sums = (0, 0);
    println!("{:<16}{:>8}{:>10}", "pattern", "users", "comments");
    for pattern in &mut patterns {
        let hits = pattern.hits(&lines, &verbs)?;
        let users = hits.iter().filter(|line| line.is_users).count();
        let comments = hits.len() - users;
        println!("{:<16}{users:>8}{comments:>10}", pattern.id);
        sums = (sums.0 + users, sums.1 + comments);
        for (what, now, stored) in [
            ("text for users", users, &mut pattern.users),
            ("comments", comments, &mut pattern.comments),
        ] {
            let id = &pattern.id;
            if now > *stored {
                problems.push(format!(
                    "{id}: {now} lines of {what}, {stored} stored: reword them (`cargo xtask words --list {id}`)"
                ));
            } else if now < *stored && !args.lower {
                problems.push(format!(
                    "{id}: {now} lines of {what}, {stored} stored: store the lower count (`cargo xtask words --lower`)"
                ));
            } else {
                *stored = now;
            }
        }
    }
    println!("{:<16}{:>8}{:>10}", "all", sums.0, sums.1);
    if args.lower {
        fs::write(STORE, written(&store, &patterns)).context(STORE)?;
    }
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

/// Checks the counts, as the gate does.
///
/// # Errors
/// See [`run`].
pub fn check() -> Result<()> {
    run(&WordsArgs {
        list: None,
        under: None,
        lower: false,
    })
}

impl Pattern {
    fn hits<'a>(&self, lines: &'a [Line], breaches: &docs::Breaches) -> Result<Vec<&'a Line>> {
        let Some(regex) = &self.regex else {
            let numbers = breaches.of(&self.id);
            return Ok(numbers.iter().map(|&at| &lines[at]).collect());
        };
        let mut hits = Vec::new();
        for line in lines {
            if !line.text.contains("words-ok") && regex.is_match(&line.text)? {
                hits.push(line);
            }
        }
        Ok(hits)
    }
}

fn patterns(store: &str) -> Result<Vec<Pattern>> {
    let rows = store.lines().filter(|row| !row.starts_with('#'));
    rows.map(|row| {
        let fields: Vec<&str> = row.splitn(4, '\t').collect();
        let [id, users, comments, source] = fields[..] else {
            bail!("{STORE}: `{row}` does not have four columns");
        };
        let regex = match source {
            "" => None,
            source => Some(Regex::new(source).with_context(|| format!("{STORE}: {id}"))?),
        };
        Ok(Pattern {
            id: id.to_owned(),
            users: users.parse().context(STORE)?,
            comments: comments.parse().context(STORE)?,
            regex,
            source: source.to_owned(),
        })
    })
    .collect()
}

/// The store with the patterns' counts and its own comments.
fn written(store: &str, patterns: &[Pattern]) -> String {
    let head = store.lines().filter(|row| row.starts_with('#'));
    let mut text: String = head.map(|row| format!("{row}\n")).collect();
    for pattern in patterns {
        let Pattern {
            id,
            users,
            comments,
            source,
            ..
        } = pattern;
        let _ = writeln!(text, "{id}\t{users}\t{comments}\t{source}");
    }
    text
}

/// All lines of the tree but for tests.
fn lines() -> Result<Vec<Line>> {
    let output = Command::new("git").args(["ls-files", "-z"]).output()?;
    ensure!(output.status.success(), "git ls-files failed");
    let mut lines = Vec::new();
    for path in String::from_utf8(output.stdout)?.split_terminator('\0') {
        let ending = path.rsplit_once('.').map_or("", |(_, ending)| ending);
        let is_text = ["md", "rs", "js", "html", "toml", "service", "script"].contains(&ending);
        let is_test = path
            .split('/')
            .any(|part| part == "tests" || part == "tests.rs");
        if !is_text || is_test {
            continue;
        }
        // A file that is removed but not yet committed.
        let Ok(text) = fs::read_to_string(path) else {
            continue;
        };
        let is_developers = ending == "toml" && !path.starts_with("examples/");
        for (at, line) in text.lines().enumerate() {
            let is_comment = ending == "rs" && line.trim_start().starts_with("//");
            let is_help = path.starts_with("crates/evlbi/src/cli");
            lines.push(Line {
                path: path.to_owned(),
                number: at + 1,
                text: line.to_owned(),
                is_users: is_help || !is_comment && !is_developers,
            });
        }
    }
    Ok(lines)
}
