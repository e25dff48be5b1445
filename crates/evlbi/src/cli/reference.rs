//! docs/src/command-line.md: the reference of all commands, written from the grammar.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Arg, CommandFactory};

use super::{Cli, GROUPS};

const PAGE: &str = "command-line.md";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src")
}

/// Returns an argument as it is typed.
fn typed(arg: &Arg) -> String {
    let values = arg.get_value_names().unwrap_or_default();
    let values = values.iter().map(ToString::to_string);
    let value = match arg.get_action().takes_values() {
        true => values.collect::<Vec<String>>().join(" "),
        false => String::new(),
    };
    let Some(long) = arg.get_long() else {
        let several = arg
            .get_num_args()
            .is_some_and(|range| range.max_values() > 1);
        return format!("`{value}{}`", if several { "..." } else { "" });
    };
    let short = arg.get_short().map(|short| format!("`-{short}`, "));
    let option = format!("`--{long} {value}");
    format!("{}{}`", short.unwrap_or_default(), option.trim_end())
}

/// Returns the help of an argument, with its values and its default.
fn meaning(arg: &Arg) -> String {
    let mut text = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let values = arg.get_possible_values();
    if !values.is_empty() && arg.get_action().takes_values() {
        let shown = values.iter().map(|value| match value.get_help() {
            Some(help) => format!("`{}` ({help})", value.get_name()),
            None => format!("`{}`", value.get_name()),
        });
        let _ = write!(text, ": {}", shown.collect::<Vec<String>>().join(", "));
    }
    if let Some(variable) = arg.get_env() {
        let _ = write!(text, " [env: {}]", variable.to_string_lossy());
    }
    let defaults = arg.get_default_values().iter();
    let defaults: Vec<_> = defaults.map(|value| value.to_string_lossy()).collect();
    if !defaults.is_empty() && arg.get_action().takes_values() {
        let _ = write!(text, " [default: {}]", defaults.join(","));
    }
    // Characters with a meaning in a table.
    text.replace('|', "\\|")
        .replace('\n', " ")
        .replace("  ", " ")
}

fn table(command: &clap::Command, all: &mut String) {
    let own =
        |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let (values, options): (Vec<&Arg>, Vec<&Arg>) = command
        .get_arguments()
        .filter(own)
        .partition(|arg| arg.is_positional());
    let arguments: Vec<&Arg> = values.into_iter().chain(options).collect();
    if arguments.is_empty() {
        return;
    }
    *all += "\n| argument | meaning |\n|---|---|\n";
    for arg in arguments {
        let required = if arg.is_required_set() {
            "; required"
        } else {
            ""
        };
        let _ = writeln!(all, "| {} | {}{required} |", typed(arg), meaning(arg));
    }
}

fn section(command: &clap::Command, name: &str, all: &mut String) {
    let about = command.get_about().map(ToString::to_string);
    let usage = command.clone().bin_name(name).render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").trim();
    let _ = write!(
        all,
        "\n## {name}\n\n{}.\n\n```\n{usage}\n```\n",
        about.unwrap_or_default()
    );
    table(command, all);
    if let Some(more) = command.get_after_help() {
        let _ = write!(all, "\n```\n{}\n```\n", more.to_string().trim_end());
    }
    for below in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        if below.get_name() != "help" {
            section(below, &format!("{name} {}", below.get_name()), all);
        }
    }
}

/// Returns the page.
fn reference() -> String {
    let program = Cli::command();
    let mut all = "# Command line\n\n\
        All commands and options, written from the program's own grammar. `evlbi COMMAND --help` prints the same:\n\n\
        ```sh\nevlbi --help\nevlbi recv --help\n```\n\n\
        These options work with every command:\n"
        .to_owned();
    table(&program, &mut all);
    for name in GROUPS.iter().flat_map(|(_, names)| *names) {
        let command = program.find_subcommand(name).expect("a command");
        section(command, &format!("evlbi {name}"), &mut all);
    }
    all
}

/// `cargo xtask docs` has it write the page.
#[test]
fn the_reference_is_that_of_the_grammar() {
    let page = docs().join(PAGE);
    if std::env::var_os("EVLBI_WRITE_DOCS").is_some() {
        fs::write(&page, reference()).expect("a page");
    }
    let is_same = fs::read_to_string(&page).is_ok_and(|text| text == reference());
    assert!(
        is_same,
        "docs/src/{PAGE}: `cargo xtask docs` writes it again"
    );
}
