//! Modules that import each other in a circle. Each module stands for everything below it; of two, one may be below the other. What a
//! module takes from the one above counts as that one's, wherever it is defined.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use proc_macro2::TokenStream;

use super::name_paths;
use crate::lines::count::in_tests;
use crate::lines::{children, rust_files};

/// The names of a module from the crate's root, which has none.
type Module = Vec<String>;
/// Imports between modules of the same level: from one to another, with an example.
type Imports = BTreeMap<(Module, Module), String>;

/// Returns the circles among the modules of a crate, each as lines with the imports.
///
/// # Errors
/// Returns an error if its sources cannot be read.
pub fn circles(crate_folder: &Path) -> Result<Vec<Vec<String>>> {
    let source = crate_folder.join("src");
    let mut files = Vec::new();
    rust_files(&source, &mut files)?;
    let (mut texts, mut of_tests) = (BTreeMap::new(), Vec::new());
    for path in files {
        let text = fs::read_to_string(&path)?;
        let (tests, modules) = in_tests(&text).with_context(|| path.display().to_string())?;
        of_tests.extend(modules.iter().map(|module| children(&path).join(module)));
        texts.insert(path, (text, tests));
    }
    let is_test = |path: &Path| {
        let of = |module: &PathBuf| path.starts_with(module) || path.with_extension("") == *module;
        of_tests.iter().any(of)
    };
    texts.retain(|path, _| !is_test(path));
    let module_of = |path: &Path| -> Module {
        let path = path.strip_prefix(&source).unwrap_or(path);
        let names = path.with_extension("");
        let names = names.iter().map(|name| name.to_string_lossy().into_owned());
        names
            .filter(|name| !matches!(name.as_str(), "lib" | "main"))
            .collect()
    };
    let modules: BTreeSet<Module> = texts.keys().map(|path| module_of(path)).collect();
    let mut imports = Imports::new();
    for (path, (text, tests)) in &texts {
        let tokens: TokenStream = text.parse().map_err(|error| anyhow!("{error}"))?;
        let mut paths = Vec::new();
        let is_skipped = |line: usize| tests.iter().any(|lines| lines.contains(&(line - 1)));
        name_paths("", tokens, &is_skipped, &mut paths);
        let from = module_of(path);
        // A renamed module would not be followed.
        if let Some(renamed) = ["use crate as ", "use super as ", "{self as "]
            .iter()
            .find(|it| text.contains(**it))
        {
            bail!("{}: `{renamed}` hides what is imported", path.display());
        }
        for name in paths {
            if let Some(to) = resolve(&name, &from, &modules)
                && let Some(beside) = beside(&from, &to)
            {
                let shown = format!("{} imports {name}", path.display());
                imports.entry(beside).or_insert(shown);
            }
        }
    }
    Ok(circles_in(&imports))
}

/// Returns the module that a path leads to.
fn resolve(path: &str, from: &Module, modules: &BTreeSet<Module>) -> Option<Module> {
    let mut names = path.split("::").peekable();
    let mut module = match names.next()? {
        "crate" => Module::new(),
        "super" => from[..from.len().checked_sub(1)?].to_vec(),
        _ => return None,
    };
    while names.next_if_eq(&"super").is_some() {
        module.pop()?;
    }
    for name in names {
        module.push(name.to_owned());
        if !modules.contains(&module) {
            module.pop();
            break;
        }
    }
    Some(module)
}

/// Returns the two modules of the same level that contain two modules; `None` if one contains the other.
fn beside(from: &Module, to: &Module) -> Option<(Module, Module)> {
    let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
    let part = |module: &Module| module.get(..=common).map(<[String]>::to_vec);
    part(from).zip(part(to))
}

/// Returns the groups of modules that reach each other.
fn circles_in(imports: &Imports) -> Vec<Vec<String>> {
    let reached = |from: &Module| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(module) = next.pop() {
            for (_, to) in imports.keys().filter(|(from, _)| *from == module) {
                if reached.insert(to.clone()) {
                    next.push(to.clone());
                }
            }
        }
        reached
    };
    let all: BTreeMap<&Module, BTreeSet<Module>> = imports
        .keys()
        .map(|(from, _)| (from, reached(from)))
        .collect();
    let mut circles: BTreeMap<BTreeSet<&Module>, Vec<String>> = BTreeMap::new();
    for ((from, to), shown) in imports {
        let is_back = |module: &Module| all.get(module).is_some_and(|it| it.contains(from));
        if is_back(to) {
            let circle = all
                .iter()
                .filter(|(module, reached)| all[from].contains(**module) && reached.contains(from));
            let circle = circle.map(|(module, _)| *module).collect();
            circles.entry(circle).or_default().push(shown.clone());
        }
    }
    circles.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &str) -> Module {
        let names = path.split("::").filter(|name| !name.is_empty());
        names.map(str::to_owned).collect()
    }

    #[test]
    fn paths_lead_to_modules() {
        let modules = ["", "a", "a::b", "a::c", "d"].map(module).into();
        for (path, from, to) in [
            ("crate::d::Thing", "a", Some("d")),
            ("crate::Thing", "a", Some("")),
            ("super::c::act", "a::b", Some("a::c")),
            ("super::super::d", "a::b", Some("d")),
            ("super::Thing", "a::b", Some("a")),
            ("std::fs::read", "a", None),
            ("super::Thing", "", None),
        ] {
            assert_eq!(
                resolve(path, &module(from), &modules),
                to.map(module),
                "{path}"
            );
        }
    }

    #[test]
    fn a_circle_is_found_among_whole_branches() {
        let imports = |pairs: &[(&str, &str)]| -> Imports {
            let pairs = pairs.iter().filter_map(|(from, to)| {
                let beside = beside(&module(from), &module(to))?;
                Some((beside, format!("{from} imports {to}")))
            });
            pairs.collect()
        };
        // A lower module may use a higher one, and vice versa.
        let sound = [
            ("a", "a::b"),
            ("a::b", "a"),
            ("a::b", "c"),
            ("a::b", "a::d"),
        ];
        assert_eq!(circles_in(&imports(&sound)), [[""; 0]; 0]);
        // c needs a, which contains a::b.
        let odd = [("a::b", "c"), ("c::e", "d"), ("d", "a"), ("d", "f")];
        let found = [["a::b imports c", "c::e imports d", "d imports a"]];
        assert_eq!(circles_in(&imports(&odd)), found);
    }
}
