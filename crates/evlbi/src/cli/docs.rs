//! Checks of README, docs and help: their command lines, examples, links and messages are those of this program.

use std::any::TypeId;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{CommandFactory, Parser};
use evlbi_core::shed::Policy;
use evlbi_correlate::{DelayTerms, Flag, Hertz};
use evlbi_probe::sweep::Spacings;

use super::Cli;

/// Returns the workspace's directory.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// README and the other pages: their paths and texts.
fn pages() -> Vec<(PathBuf, String)> {
    let of = |folder: PathBuf| fs::read_dir(folder).expect("a directory").flatten();
    let all = of(root())
        .chain(of(root().join("docs/src")))
        .chain(of(root().join("fuzz")));
    all.map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path| (path.clone(), fs::read_to_string(path).expect("a page")))
        .collect()
}

/// The help of a command and of all below it, without breaks within lines.
fn helps(command: &clap::Command, all: &mut Vec<String>) {
    all.push(command.clone().term_width(0).render_long_help().to_string());
    for below in command.get_subcommands() {
        helps(below, all);
    }
}

/// Kind of a command line in a text.
#[derive(Clone, Copy, PartialEq)]
enum Shown {
    /// A line of a block of code, or of a help.
    Whole,
    /// Between backquotes: values may be missing.
    Named,
}

fn typed(text: &str) -> Vec<(Shown, String)> {
    let joined = text.replace("\\\n", " ");
    let (mut lines, mut prose, mut is_code) = (Vec::new(), String::new(), false);
    for line in joined.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            lines.push((Shown::Whole, line.to_owned()));
        } else {
            prose += line.trim();
            prose.push(' ');
        }
    }
    let named = prose.split('`').skip(1).step_by(2);
    lines.extend(named.map(|line| (Shown::Named, line.to_owned())));
    lines
}

/// Returns the command lines of this program in a shell line: words up to the one that ends a command.
fn commands(line: &str) -> Vec<Vec<String>> {
    // A quote over several lines is unbalanced within a line.
    let words =
        shlex::split(line).unwrap_or_else(|| line.split_whitespace().map(str::to_owned).collect());
    let begins = words
        .iter()
        .enumerate()
        .filter(|(_, word)| *word == "evlbi");
    let command = |from: usize| {
        let mut command = Vec::new();
        for word in &words[from..] {
            let ends = ["|", "||", "&", "&&", ";"].contains(&&**word);
            if ends || word.starts_with(['>', '<', '#', '(']) || word.starts_with("2>") {
                break;
            }
            command.push(word.trim_end_matches([';', ')']).to_owned());
            if word.ends_with([';', ')']) {
                break;
            }
        }
        command
    };
    begins.map(|(from, _)| command(from)).collect()
}

/// Why a command line is not one. A token may come from the environment.
fn refused(command: &[String], shown: Shown) -> Option<String> {
    use clap::error::ErrorKind as Kind;
    let error = Cli::try_parse_from(command).err()?;
    match (error.kind(), shown) {
        (Kind::DisplayHelp | Kind::DisplayVersion, _)
        | (Kind::MissingRequiredArgument | Kind::InvalidValue, Shown::Named) => None,
        (Kind::MissingRequiredArgument, Shown::Whole) => {
            let with_token = command.iter().map(String::as_str).chain(["--token", "t"]);
            Cli::try_parse_from(with_token).err()?;
            Some(error.to_string())
        }
        _ => Some(error.to_string()),
    }
}

#[test]
fn every_command_line_is_taken() {
    let mut helps_of_all = Vec::new();
    helps(&Cli::command(), &mut helps_of_all);
    // Examples are on lines of their own in helps, some with a remark.
    let helps = helps_of_all.iter().flat_map(|help| {
        let lines = help.lines().map(str::trim);
        let lines = lines.filter(|line| line.starts_with("evlbi "));
        lines.map(|line| ("help".to_owned(), Shown::Whole, line.split("  ").next()))
    });
    let helps = helps.filter_map(|(place, shown, line)| Some((place, shown, line?.to_owned())));
    // The reference has usage lines instead of command lines; its examples are those of the help.
    let pages = pages().into_iter();
    let pages = pages.filter(|(path, _)| !path.ends_with("command-line.md"));
    let pages = pages.flat_map(|(path, text)| {
        let lines = typed(&text).into_iter();
        lines.map(move |(shown, line)| (path.display().to_string(), shown, line))
    });
    let (mut taken, mut bad) = (0, Vec::new());
    for (place, shown, line) in helps.chain(pages) {
        for command in commands(&line) {
            // A command without its arguments, or with omitted ones, is not meant to be typed.
            let is_example = command.len() > 1 && !command.iter().any(|word| word.contains("..."));
            let is_name = command.iter().skip(1).all(|word| {
                !word.starts_with('-')
                    && word.chars().all(|it| it.is_ascii_lowercase() || it == '-')
            });
            if !is_example || is_name {
                continue;
            }
            match refused(&command, shown) {
                Some(error) => bad.push(format!("{place}: {}\n{error}", command.join(" "))),
                None => taken += 1,
            }
        }
    }
    let count = bad.len() + taken;
    assert!(
        bad.is_empty(),
        "{} of {count}:\n{}",
        bad.len(),
        bad.join("\n")
    );
    assert!(taken >= 100, "only {taken} command lines were found");
}

/// Returns the names of the commands that these lines call, e.g. `evlbi path run`.
fn called(text: &str) -> BTreeSet<String> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().flat_map(commands);
    let matches = lines.filter_map(|line| Cli::command().try_get_matches_from(line).ok());
    let name = |matches: clap::ArgMatches| {
        let (mut name, mut at) = ("evlbi".to_owned(), &matches);
        while let Some((below, its)) = at.subcommand() {
            name = format!("{name} {below}");
            at = its;
        }
        name
    };
    matches.map(name).collect()
}

/// A new command needs a page with an example that a test runs: a block of `sh` in a page of the book.
#[test]
fn every_command_is_in_a_page_with_an_example_that_runs() {
    let contents = fs::read_to_string(root().join("docs/src/SUMMARY.md")).expect("a page");
    let is_run = |path: &Path| {
        let name = path.file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| contents.contains(&format!("({name})")))
    };
    let mut shown = BTreeSet::new();
    for (_, page) in pages().iter().filter(|(path, _)| is_run(path)) {
        let blocks = page.split("\n```").skip(1).step_by(2);
        for block in blocks.filter_map(|block| block.strip_prefix("sh\n")) {
            shown.append(&mut called(block));
        }
    }
    let mut missing = Vec::new();
    commands_below(&Cli::command(), "evlbi", &mut |name, command| {
        // `evlbi path` and `evlbi plan` need a command, `evlbi probe` does not.
        if !command.is_subcommand_required_set() && !shown.contains(name) {
            missing.push(name.to_owned());
        }
    });
    assert!(
        missing.is_empty(),
        "commands without an example in a block of `sh` in docs/src: {missing:?}"
    );
}

/// A command's help has an example, or that of its group has: `evlbi path --help` those of `evlbi path up`.
#[test]
fn every_help_has_an_example() {
    let (mut groups, mut missing) = (BTreeMap::new(), Vec::new());
    commands_below(&Cli::command(), "evlbi", &mut |name, command| {
        let text = command.get_after_help().map(ToString::to_string);
        let text = text.unwrap_or_default();
        let own = text.split_once("Examples:\n");
        let own = called(own.map_or("", |(_, examples)| examples));
        let (group, _) = name.rsplit_once(' ').expect("the program's name");
        let of_group: Option<&BTreeSet<String>> = groups.get(group);
        let is_shown = own.contains(name) || of_group.is_some_and(|group| group.contains(name));
        if !command.is_subcommand_required_set() && !is_shown {
            missing.push(name.to_owned());
        }
        groups.insert(name.to_owned(), own);
    });
    assert!(missing.is_empty(), "help without an example: {missing:?}");
}

/// Calls `each` with every command that users see, and its name.
fn commands_below(
    command: &clap::Command,
    name: &str,
    each: &mut impl FnMut(&str, &clap::Command),
) {
    for below in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        let name = format!("{name} {}", below.get_name());
        each(&name, below);
        commands_below(below, &name, each);
    }
}

#[test]
fn help_lists_each_command_once() {
    let grouped: Vec<&str> = super::GROUPS
        .iter()
        .flat_map(|(_, names)| *names)
        .copied()
        .collect();
    let mut listed = grouped.clone();
    listed.sort_unstable();
    let all = Cli::command();
    let mut all: Vec<&str> = all.get_subcommands().map(clap::Command::get_name).collect();
    all.sort_unstable();
    assert_eq!(listed, all);
    let help = Cli::command().term_width(100).render_help().to_string();
    for name in grouped {
        let lines = help
            .lines()
            .filter(|line| line.starts_with(&format!("  {name} ")));
        assert_eq!(lines.count(), 1, "{name}:\n{help}");
    }
    let longest = help.lines().map(str::len).max();
    assert!(longest <= Some(100), "{longest:?}");
}

/// Clap wraps paragraphs, so they have no breaks of their own; an example is a line, which must fit.
#[test]
fn text_below_the_options_fits_a_terminal() {
    let mut bad = Vec::new();
    commands_below(&Cli::command(), "evlbi", &mut |name, command| {
        let text = command.get_after_help().map(ToString::to_string);
        let text = text.unwrap_or_default();
        let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
        let mut before = "";
        for line in text.lines() {
            let is_broken = is_prose(before) && is_prose(line);
            if is_broken || (!is_prose(line) && line.len() > 100) {
                bad.push(format!("{name}: {line}"));
            }
            before = line;
        }
    });
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// Commands start with a verb; options with a verb or a noun, and neither with words that need a second reading.
#[test]
fn help_starts_with_a_verb_or_a_noun() {
    const NEITHER: [&str; 23] = [
        "What", "Who", "How", "Where", "When", "Which", "Whether", "Of", "From", "As", "Instead",
        "That", "This", "Is", "Are", "Beside", "So", "For", "It", "In", "By", "And", "Only",
    ];
    let mut bad = Vec::new();
    let mut check = |name: &str, text: Option<String>, is_command: bool| {
        let text = text.unwrap_or_default();
        let first = text.split_whitespace().next().unwrap_or_default();
        let is_article = is_command && ["A", "An", "The"].contains(&first);
        let is_verb = !is_command || !first.ends_with('s');
        let is_good = first.starts_with(|it: char| it.is_uppercase())
            && !NEITHER.contains(&first)
            && !is_article
            && is_verb
            && !text.ends_with('.');
        if !is_good {
            bad.push(format!("{name}: {text}"));
        }
    };
    commands_below(&Cli::command(), "evlbi", &mut |name, command| {
        check(name, command.get_about().map(ToString::to_string), true);
        for option in command.get_arguments().filter(|it| !it.is_hide_set()) {
            let name = format!("{name} {}", option.get_id());
            check(&name, option.get_help().map(ToString::to_string), false);
        }
    });
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// A reader who follows the page starts its responder, and then the tests.
#[test]
fn the_responder_of_the_page_allows_the_tests_of_the_page() {
    use crate::cli::Command;
    use crate::cli::probe::{Probe, ProbeCommand};
    use evlbi_probe::respond::RespondOptions;
    use evlbi_probe::udp;
    let page = fs::read_to_string(root().join("docs/src/check-path.md")).expect("a page");
    let lines = typed(&page).into_iter();
    let lines = lines.filter(|(shown, _)| *shown == Shown::Whole);
    let (mut limits, mut allowed) = (None, 0);
    for command in lines.flat_map(|(_, line)| commands(&line)) {
        let with_token = command.iter().map(String::as_str).chain(["--token", "t"]);
        let parsed = Cli::try_parse_from(&command).or_else(|_| Cli::try_parse_from(with_token));
        match parsed.map(|cli| cli.command) {
            Ok(Command::Respond(args)) => {
                limits.get_or_insert(RespondOptions::from(args).limits);
            }
            Ok(Command::Probe(Probe::One(ProbeCommand::Udp(args)))) if args.load_tasks == 0 => {
                let limits = limits.as_ref().expect("the responder comes first");
                for (test, label) in udp::tests(&(*args).into()).expect("a test") {
                    let is_allowed = limits.allow(&udp::within(&test, limits));
                    assert_eq!(is_allowed, Ok(()), "{}: {label}", command.join(" "));
                    allowed += 1;
                }
            }
            _ => {}
        }
    }
    assert!(allowed > 300, "{allowed}");
}

/// Returns the text of the code below a directory, and that of its tests: files in test directories, and the tests at the ends of other
/// files.
fn code_and_tests(folder: &Path) -> (String, String) {
    let (mut code, mut tests) = (String::new(), String::new());
    for entry in fs::read_dir(folder).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            let below = code_and_tests(&path);
            code += &below.0;
            tests += &below.1;
            continue;
        }
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let is_test = path.components().any(|part| part.as_os_str() == "tests");
        let end = match is_test || path.ends_with("tests.rs") {
            true => 0,
            false => text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len()),
        };
        code += &text[..end];
        tests += &text[end..];
    }
    (code, tests)
}

#[test]
fn every_option_has_a_test() {
    fn options(command: &clap::Command, name: &str, all: &mut Vec<(String, String)>) {
        for option in command.get_arguments().filter_map(clap::Arg::get_long) {
            all.push((format!("{name} --{option}"), format!("--{option}")));
        }
        for below in command.get_subcommands() {
            options(below, below.get_name(), all);
        }
    }
    let crates = root().join("crates");
    let (_, mut tests) = code_and_tests(&crates.join("evlbi"));
    let golden = root().join("xtask/golden/cases.txt");
    tests += &fs::read_to_string(golden).expect("command lines");
    let libraries = ["control", "correlate", "host", "path", "probe", "stream"];
    let of_libraries: String = libraries
        .map(|library| code_and_tests(&crates.join(format!("evlbi-{library}"))).1)
        .concat();
    let mut all = Vec::new();
    options(&Cli::command(), "evlbi", &mut all);
    // Only between characters that cannot be part of its name.
    let is_given = |option: &str| {
        tests.match_indices(option).any(|(at, _)| {
            let next = tests[at + option.len()..].chars().next();
            next.is_none_or(|next| !next.is_ascii_alphanumeric() && next != '-')
        })
    };
    // Libraries have a field of that name, which their tests set.
    let is_set = |option: &str| {
        let field = option.trim_start_matches('-').replace('-', "_");
        let set = [
            format!(" {field}: "),
            format!(" {field},\n"),
            format!(".{field} = "),
        ];
        set.iter().any(|set| of_libraries.contains(set))
    };
    let untested: Vec<&str> = all
        .iter()
        .filter(|(_, option)| !is_given(option) && !is_set(option))
        .map(|(name, _)| name.as_str())
        .collect();
    assert!(untested.is_empty(), "options without a test: {untested:?}");
}

/// Adds a line with a bare number for each option of a command, and of all below it, that is or has a time or a frequency.
fn bare(command: &clap::Command, words: &[String], all: &mut Vec<Vec<String>>) {
    let kinds = [
        (TypeId::of::<Duration>(), "15"),
        (TypeId::of::<Spacings>(), "15"),
        (TypeId::of::<Hertz>(), "15"),
        (TypeId::of::<DelayTerms>(), "15"),
        (TypeId::of::<Flag>(), "Ef:15..16s"),
        (TypeId::of::<Policy>(), "common:5%,15"),
    ];
    for arg in command.get_arguments() {
        let kind = arg.get_value_parser().type_id();
        let value = kinds.iter().find(|(one, _)| kind == *one);
        if let (Some(name), Some((_, value))) = (arg.get_long(), value) {
            all.push([words, &[format!("--{name}={value}")]].concat());
        }
    }
    for below in command.get_subcommands() {
        let words = [words, &[below.get_name().to_owned()]].concat();
        bare(below, &words, all);
    }
}

#[test]
fn every_time_and_every_frequency_needs_its_unit() {
    let mut lines = Vec::new();
    bare(&Cli::command(), &["evlbi".to_owned()], &mut lines);
    assert!(lines.len() > 40, "{lines:?}");
    for line in lines {
        let error = Cli::try_parse_from(&line).err().expect("an error");
        let said = error.to_string();
        assert!(
            said.contains("`15`: add a unit, e.g. 15"),
            "{line:?}: {said}"
        );
    }
}

#[test]
fn every_schema_is_compared_with_real_output() {
    let (_, tests) = code_and_tests(&root().join("crates"));
    // Functions, some of them with a table of names.
    let functions = tests.split("\n}\n");
    let comparing: String = functions
        .filter(|function| function.contains("assert_schema("))
        .collect();
    let schemas = fs::read_dir(root().join("docs/schemas")).expect("a directory");
    let names = schemas.flatten().map(|entry| {
        let name = entry.file_name().into_string().expect("a name");
        let (name, version) = name
            .trim_end_matches(".json")
            .rsplit_once('-')
            .expect("a version");
        format!("\"{name}/{version}\"")
    });
    let untested: Vec<String> = names.filter(|name| !comparing.contains(name)).collect();
    assert!(untested.is_empty(), "schemas without a test: {untested:?}");
}

/// Three quarters of the words of each message are in the code, with the same words around them. Names and numbers of a message are
/// examples: they stand for any placeholder.
#[test]
fn messages_of_troubleshooting_are_those_of_the_code() {
    let (code, _) = code_and_tests(&root().join("crates"));
    let lines = code.lines().filter(|line| !line.trim().starts_with("//"));
    let words = lines.flat_map(|line| line.split([' ', '"']));
    // A string over several lines has backslashes at their ends.
    let words = words.filter(|word| !["", "\\"].contains(word));
    let words: Vec<&str> = words
        .map(|word| match word.contains('{') && word.contains('}') {
            true => "{}",
            false => word,
        })
        .collect();
    let in_code: HashSet<&[&str]> = words.windows(3).collect();
    let page = fs::read_to_string(root().join("docs/src/troubleshooting.md")).expect("a page");
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let (mut count, mut others) = (0, Vec::new());
    for cell in cells.filter_map(|row| row.split(" | ").next()) {
        let message = cell.trim_matches('`').trim();
        // The system's reason, e.g. `No space left on device (os error 28)`, is not in the code.
        let own = match message.split_once(" (os error ") {
            None => message.to_owned(),
            Some((before, after)) => {
                let (what, _) = before.rsplit_once(": ").expect("a reason");
                let (_, remedy) = after.split_once(')').expect("a number");
                format!("{what}{remedy}")
            }
        };
        let words: Vec<&str> = own.split(' ').collect();
        let mut is_found = vec![false; words.len()];
        for (at, three) in words.windows(3).enumerate() {
            let with_placeholder = (0..3).map(|place| {
                let mut three = three.to_vec();
                three[place] = "{}";
                three
            });
            let mut forms = with_placeholder.chain([three.to_vec()]);
            if forms.any(|form| in_code.contains(form.as_slice())) {
                is_found[at..at + 3].fill(true);
            }
        }
        let is_number = |word: &str| word.contains(|it: char| it.is_ascii_digit());
        let plain = words.iter().zip(is_found);
        let plain: Vec<bool> = plain
            .filter(|(word, _)| !is_number(word))
            .map(|(_, is_found)| is_found)
            .collect();
        if plain.iter().filter(|found| **found).count() * 4 < plain.len() * 3 {
            others.push(message);
        }
        count += 1;
    }
    assert!(others.is_empty(), "not in the code:\n{}", others.join("\n"));
    assert!(count >= 20, "only {count} messages");
}

#[test]
fn every_link_leads_somewhere() {
    for (path, text) in pages() {
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let to = if file.is_empty() {
                path.clone()
            } else {
                path.with_file_name("").join(file)
            };
            assert!(to.exists(), "{}: {link}", path.display());
            if heading.is_empty() {
                continue;
            }
            let page = fs::read_to_string(&to).expect("a page");
            let anchors = page
                .lines()
                .filter(|line| line.starts_with('#'))
                .map(|line| {
                    let letters = line.trim_start_matches('#').trim().to_lowercase();
                    let kept = letters
                        .chars()
                        .filter(|it| it.is_alphanumeric() || " -_".contains(*it));
                    kept.collect::<String>().replace(' ', "-")
                });
            assert!(
                anchors.into_iter().any(|it| it == heading),
                "{}: {link}",
                path.display()
            );
        }
    }
}
