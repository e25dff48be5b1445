//! The table of command lines, `xtask/golden/cases.txt`.

use anyhow::{Context, Result, bail, ensure};

const TABLE: &str = include_str!("../../golden/cases.txt");

/// Part of a case's outcome that depends on the machine's pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pace {
    /// Nothing: numbers in text are compared.
    None,
    /// Times and rates: their numbers in text are masked.
    Rates,
    /// All numbers of text, and files except recordings and JSON.
    All,
}

/// Command lines that run one after the other in an empty directory.
#[derive(Clone, Debug)]
pub struct Case {
    /// Short name, for `--only`.
    pub name: String,
    pub pace: Pace,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub enum Step {
    /// Runs the program to its end.
    Run { arguments: Vec<String>, fails: bool },
    /// Starts the program, and waits until it listens on this many addresses.
    Start {
        arguments: Vec<String>,
        listens: usize,
        fails: bool,
    },
    /// Sends SIGTERM to the running program that was started last.
    Stop,
    /// Waits for the end of the started programs.
    Wait,
    /// Copies an input, with its placeholders filled in.
    Fill(String),
}

impl Case {
    /// Returns its command lines.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let arguments = self.steps.iter().filter_map(|step| match step {
            Step::Run { arguments, .. } | Step::Start { arguments, .. } => Some(arguments),
            _ => None,
        });
        arguments.map(|arguments| arguments.join(" "))
    }
}

/// Returns all cases.
///
/// # Errors
/// Returns an error if a line of the table cannot be read.
pub fn all() -> Result<Vec<Case>> {
    parse(TABLE)
}

fn parse(table: &str) -> Result<Vec<Case>> {
    let mut cases: Vec<Case> = Vec::new();
    let lines = table.lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(head) = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
        {
            let (name, pace) = head.split_once(' ').unwrap_or((head, ""));
            let pace = match pace {
                "" => Pace::None,
                "pace" => Pace::All,
                _ => bail!("{line}: the mark of a case is `pace` or nothing"),
            };
            ensure!(
                cases.iter().all(|case| case.name != name),
                "two cases are called {name}"
            );
            cases.push(Case {
                name: name.to_owned(),
                pace,
                steps: Vec::new(),
            });
            continue;
        }
        let case = cases
            .last_mut()
            .with_context(|| format!("{line}: no [name] above it"))?;
        let step = step(line).with_context(|| line.to_owned())?;
        if matches!(step, Step::Start { .. }) {
            case.pace = case.pace.max(Pace::Rates);
        }
        case.steps.push(step);
    }
    Ok(cases)
}

fn step(line: &str) -> Result<Step> {
    let words = |line: &str| shlex::split(line).context("unbalanced quotes");
    let (mark, rest) = line.split_once(' ').unwrap_or((line, ""));
    Ok(match mark {
        "!" => Step::Run {
            arguments: words(rest)?,
            fails: true,
        },
        "=" => Step::Fill(rest.to_owned()),
        "stop" => Step::Stop,
        "wait" => Step::Wait,
        _ => {
            let (fails, starts) = (mark.starts_with('!'), mark.trim_start_matches('!'));
            match starts.strip_prefix('&') {
                Some(listens) => Step::Start {
                    arguments: words(rest)?,
                    listens: listens
                        .parse()
                        .context("& has the number of addresses to wait for")?,
                    fails,
                },
                None => Step::Run {
                    arguments: words(line)?,
                    fails: false,
                },
            }
        }
    })
}
