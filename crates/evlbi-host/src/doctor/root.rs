//! Reads /proc and /sys, or a directory with the same structure. If a value is missing, the error is the reason in words.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Maximum length of a file read here, in bytes; no kernel file is longer.
const MAX: u64 = 4 << 20;
/// More CPUs than any host has.
const MAX_PROCESSORS: usize = 1 << 14;

/// The directory that contains proc and sys: normally `/`.
#[derive(Clone, Debug)]
pub struct Root(pub PathBuf);

impl Root {
    /// Returns the text of a file, by its path from the root (`proc/stat`), without surrounding white space.
    pub fn read(&self, path: &str) -> Result<String, String> {
        let mut bytes = Vec::new();
        let read =
            File::open(self.0.join(path)).and_then(|file| file.take(MAX).read_to_end(&mut bytes));
        match read {
            Ok(_) => Ok(String::from_utf8_lossy(&bytes).trim().to_owned()),
            Err(error) => Err(reason(path, &error)),
        }
    }

    /// Returns the content of a file that is one number.
    pub fn number(&self, path: &str) -> Result<i64, String> {
        let text = self.read(path)?;
        text.parse()
            .map_err(|_| format!("/{path} has the invalid value `{}`", text.escape_debug()))
    }

    /// Returns the numbers in a file, separated by white space.
    pub fn numbers(&self, path: &str) -> Result<Vec<u64>, String> {
        let text = self.read(path)?;
        let numbers: Result<Vec<u64>, _> = text.split_whitespace().map(str::parse).collect();
        numbers.map_err(|_| format!("/{path} has the invalid value `{}`", text.escape_debug()))
    }

    /// Returns the first word after `label` at the start of a line of a file; empty if there is none.
    pub fn labelled(&self, path: &str, label: &str) -> Result<String, String> {
        let text = self.read(path)?;
        let rest = text.lines().find_map(|line| line.strip_prefix(label));
        let word = rest.and_then(|rest| rest.split_whitespace().next());
        Ok(word.unwrap_or_default().to_owned())
    }

    /// Returns the names in a directory, sorted.
    pub fn names(&self, path: &str) -> Result<Vec<String>, String> {
        let entries = fs::read_dir(self.0.join(path)).map_err(|error| reason(path, &error))?;
        let mut names: Vec<String> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        Ok(names)
    }

    pub fn has(&self, path: &str) -> bool {
        self.0.join(path).exists()
    }

    /// Returns the last component of a link's target.
    pub fn link_end(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.0.join(path)).ok()?;
        Some(Path::file_name(&target)?.to_string_lossy().into_owned())
    }

    /// Returns the names of all programs that run on the host, truncated to 15 characters by the kernel.
    pub fn programs(&self) -> Result<Vec<String>, String> {
        // The kernel's own first thread is visible only outside of containers.
        if self.read("proc/2/comm").as_deref() != Ok("kthreadd") {
            return Err("the host's processes are not visible (in a container?)".to_owned());
        }
        let numbers = self.names("proc")?;
        let numbers = numbers
            .iter()
            .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        Ok(numbers
            .filter_map(|number| self.read(&format!("proc/{number}/comm")).ok())
            .collect())
    }
}

fn reason(path: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("/{path} does not exist"),
        io::ErrorKind::PermissionDenied => format!("reading /{path} needs root"),
        _ => format!("cannot read /{path}: {error}"),
    }
}

/// Parses a list of CPUs in the kernel's format: `0-3,8`.
pub fn processors(list: &str) -> Vec<usize> {
    let ranges = list.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let first: usize = first.trim().parse().ok()?;
        let last: usize = last.trim().parse().ok()?;
        Some(first..=last.min(MAX_PROCESSORS))
    });
    ranges.flatten().take(MAX_PROCESSORS).collect()
}

#[cfg(test)]
pub mod tree {
    //! A directory with the structure of /proc and /sys.

    use super::Root;

    /// A temporary directory, removed on drop.
    pub struct Tree(evlbi_testkit::Room);

    impl Tree {
        pub fn new(files: &[(&str, &str)]) -> Tree {
            let tree = Tree(evlbi_testkit::Room::new());
            for (path, text) in files {
                tree.write(path, text);
            }
            tree
        }

        pub fn write(&self, path: &str, text: &str) {
            let path = self.0.folder().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        }

        pub fn root(&self) -> Root {
            Root(self.0.folder().to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::tree::Tree;
    use super::*;

    #[test]
    fn unknown_values_have_a_reason() {
        let tree = Tree::new(&[("proc/sys/a", "7"), ("proc/sys/b", "1 2 x")]);
        let root = tree.root();
        assert_eq!(root.number("proc/sys/a"), Ok(7));
        assert_eq!(
            root.number("proc/sys/none").unwrap_err(),
            "/proc/sys/none does not exist"
        );
        assert_eq!(
            root.numbers("proc/sys/b").unwrap_err(),
            "/proc/sys/b has the invalid value `1 2 x`"
        );
    }

    #[test]
    fn programs_are_seen_outside_of_containers_only() {
        let tree = Tree::new(&[("proc/1/comm", "init"), ("proc/77/comm", "chronyd")]);
        assert!(tree.root().programs().is_err());
        tree.write("proc/2/comm", "kthreadd");
        assert_eq!(tree.root().programs().unwrap().len(), 3);
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(processors("0-3,8"), [0, 1, 2, 3, 8]);
        assert_eq!(processors(""), [0usize; 0]);
        assert!(processors("0-99999999999,x,7-").len() <= MAX_PROCESSORS);
    }
}
