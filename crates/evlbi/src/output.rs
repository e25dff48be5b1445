//! What is printed where: results on standard output, everything else on standard error.

use std::fs;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::say;

/// Links in a row that are followed, as many as the system does.
const MOST_LINKS: usize = 40;

/// An error and its causes in one line, without causes that the error quotes itself.
pub fn explain(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |text, cause| {
        let cause = cause.to_string();
        match text.as_str() {
            "" => cause,
            said if said.contains(&cause) => text,
            said => format!("{said}: {cause}"),
        }
    })
}

/// Sends what the program has to say beside its results to standard error.
pub fn log_to_stderr(verbosity: u8) {
    let level = match verbosity {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        _ => tracing::Level::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_writer(say::messages)
        .with_max_level(level)
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        .without_time()
        .init();
}

/// Prints a result as one JSON object, or as text for people. A pipe that was closed is no error.
pub fn print<T: Serialize>(json: bool, result: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
    let shown = if json {
        serde_json::to_string_pretty(result).context("cannot write the result as JSON")?
    } else {
        text(result)
    };
    let mut results = Results::default();
    results.line(&shown);
    results.end()
}

/// Results on standard output while a run lasts. One that cannot be printed does not end the run.
#[derive(Debug, Default)]
pub struct Results(Option<io::Error>);

impl Results {
    /// Prints a line.
    pub fn line(&mut self, line: &str) {
        let mut out = io::stdout().lock();
        let printed = writeln!(out, "{line}").and_then(|()| out.flush());
        if let Err(error) = printed {
            self.0.get_or_insert(error);
        }
    }

    /// Reports whether all were printed. A pipe that was closed is no error.
    pub fn end(self) -> Result<()> {
        match self.0 {
            Some(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(error).context("cannot write to standard output")
            }
            _ => Ok(()),
        }
    }
}

/// Rows under each other, each column as wide as its longest cell; those that are `left` begin alike, the others end alike.
pub fn columns(rows: &[Vec<String>], left: impl Fn(usize) -> bool) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len))
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells: Vec<String> = cells
            .map(|(column, (cell, width))| match left(column) {
                true => format!("{cell:<width$}"),
                false => format!("{cell:>width$}"),
            })
            .collect();
        cells.join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<String>>().join("\n")
}

/// Writes a document as JSON in the place of the one before, whole at any moment. Devices and pipes are written to as they are, and
/// links are followed.
pub fn replace_json<T: Serialize>(path: &Path, document: &T) -> Result<()> {
    let mut text = serde_json::to_string_pretty(document).context("cannot write JSON")?;
    text.push('\n');
    let (mut file, part) = Part::create(path, true)?;
    file.write_all(text.as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))?;
    part.keep()
}

/// Whether there is something else than a file: a device, a pipe.
pub fn is_special(path: &Path) -> bool {
    path.exists() && !path.is_file()
}

/// A file that has its name only once it is whole. Until then it has a name that no other file has, `NAME.PROCESS.part`, and it
/// goes when it is not kept. Links are followed; devices and pipes are written as they are.
pub struct Part {
    path: PathBuf,
    part: Option<PathBuf>,
    force: bool,
}

impl Part {
    /// Begins a file.
    pub fn create(path: &Path, force: bool) -> Result<(fs::File, Part)> {
        check_new([path], force)?;
        let cannot = || format!("cannot create {}", path.display());
        let (path, part, file) = if is_special(path) {
            let file = fs::File::create(path).with_context(cannot)?;
            (path.to_owned(), None, file)
        } else {
            let path = followed(path);
            let (part, file) = create_part(&path).with_context(cannot)?;
            (path, Some(part), file)
        };
        Ok((file, Part { path, part, force }))
    }

    /// Gives the file its name, which no other file has got meanwhile, unless that is to be overwritten.
    pub fn keep(mut self) -> Result<()> {
        let Some(part) = &self.part else {
            return Ok(());
        };
        if !self.force {
            match fs::hard_link(part, &self.path) {
                // What is left is the other name, which goes.
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    bail!(
                        "{} was written by something else meanwhile; choose another name, or give --force to overwrite it",
                        self.path.display()
                    );
                }
                // A file system without links.
                Err(_) => check_new([self.path.as_path()], false)?,
            }
        }
        fs::rename(part, &self.path)
            .with_context(|| format!("cannot write {}", self.path.display()))?;
        self.part = None;
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(part) = self.part.take() {
            let _ = fs::remove_file(part);
        }
    }
}

/// Makes a file that is to get this name.
fn create_part(path: &Path) -> io::Result<(PathBuf, fs::File)> {
    let process = std::process::id().to_string();
    let mut number = 1;
    loop {
        let own = match number {
            1 => format!("{process}.part"),
            number => format!("{process}-{number}.part"),
        };
        let part = path.with_added_extension(own);
        match fs::File::create_new(&part) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            file => return Ok((part, file?)),
        }
    }
}

/// Where a link leads, also if nothing is there yet.
fn followed(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(to) = fs::read_link(&path) else {
            break;
        };
        path = path.parent().unwrap_or(Path::new("")).join(to);
    }
    path
}

/// Where the result of a recording is written: `OUT.vdif.result.json`.
pub fn result_beside(recording: &Path) -> PathBuf {
    recording.with_added_extension("result.json")
}

/// Where the gaps of a recording are written when nothing else is said: `OUT.vdif.gaps.json`.
pub fn gaps_beside(recording: &Path) -> PathBuf {
    recording.with_added_extension("gaps.json")
}

/// Makes sure that files to be written are different ones and that none of them is there already, unless
/// `force`. Devices and pipes are always there.
pub fn check_new<'a>(files: impl IntoIterator<Item = &'a Path>, force: bool) -> Result<()> {
    let mut checked: Vec<&Path> = Vec::new();
    for file in files {
        if file.is_file() && !force {
            bail!("{} exists; give --force to overwrite it", file.display());
        }
        if checked
            .iter()
            .any(|other| *other == file || same_file(other, file))
        {
            bail!(
                "{} would be written twice; give each output a name of its own",
                file.display()
            );
        }
        checked.push(file);
    }
    Ok(())
}

/// Whether two paths lead to one file, by whatever links.
pub fn same_file(a: &Path, b: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino()));
    matches!((identity(a), identity(b)), (Ok(a), Ok(b)) if a == b)
}

/// The name of a value in results.
pub fn name(value: &impl Serialize) -> String {
    let named = serde_json::to_value(value).ok();
    let name = named.as_ref().and_then(|named| named.as_str());
    name.unwrap_or_default().to_owned()
}

/// Lines of `name  value`, the names padded to one width.
pub fn lines(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{name:<width$}  {value}"))
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn a_pipe_or_link_stays_what_it_is() {
        let room = evlbi_testkit::Room::new();
        let (link, file, pipe) = (room.path("link"), room.path("file"), room.path("pipe"));
        symlink("file", &link).unwrap();
        fs::write(&file, "before").unwrap();
        replace_json(Path::new(&link), &1).unwrap();
        assert!(Path::new(&link).is_symlink());
        assert_eq!(room.text("file"), "1\n");
        mkfifo(Path::new(&pipe), Mode::S_IRWXU).unwrap();
        let read = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read_to_string(pipe).unwrap()
        });
        replace_json(Path::new(&pipe), &2).unwrap();
        assert_eq!(read.join().unwrap(), "2\n");
        assert!(is_special(Path::new(&pipe)));
    }

    /// Two that write one file, and a file that comes meanwhile, harm nobody; nor is what is called like a part.
    #[test]
    fn a_part_overwrites_nothing_that_is_not_its_own() {
        let room = evlbi_testkit::Room::new();
        let path = PathBuf::from(room.path("scan.vdif"));
        let others = room.path("scan.vdif.part");
        fs::write(&others, "other").unwrap();
        let begin = |text: &str, force| {
            let (mut file, part) = Part::create(&path, force).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            part
        };
        let names = || fs::read_dir(path.parent().unwrap()).unwrap().count();
        let (first, second, third) = (
            begin("first", false),
            begin("second", false),
            begin("third", true),
        );
        drop(begin("not kept", false));
        assert_eq!(names(), 4);
        first.keep().unwrap();
        let error = second.keep().unwrap_err().to_string();
        assert!(error.contains("give --force"), "{error}");
        assert_eq!(room.text("scan.vdif"), "first");
        third.keep().unwrap();
        assert_eq!(room.text("scan.vdif"), "third");
        assert_eq!(room.text("scan.vdif.part"), "other");
        assert_eq!(names(), 2);
    }

    /// Also one that leads to nothing yet.
    #[test]
    fn a_part_follows_links() {
        let room = evlbi_testkit::Room::new();
        let (link, other) = (room.path("link"), room.path("other"));
        symlink("file", &link).unwrap();
        symlink(&link, &other).unwrap();
        for (path, force, text) in [(&other, false, "new"), (&link, true, "again")] {
            let (mut file, part) = Part::create(Path::new(path), force).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            part.keep().unwrap();
            assert!(Path::new(path).is_symlink());
            assert_eq!(room.text("file"), text);
        }
    }
}
