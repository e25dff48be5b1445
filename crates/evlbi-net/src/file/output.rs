//! Result files: each gets its name only once it is complete, and overwrites nothing unless told to.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Maximum number of links followed in a row, as in Linux.
const MAX_LINKS: usize = 40;

/// Reason why a file is not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// It already exists and must not be overwritten.
    #[error("{} exists", .0.display())]
    Exists(PathBuf),
    /// Two outputs would write to it.
    #[error("{} would be written twice", .0.display())]
    Twice(PathBuf),
    /// Something else wrote it in the meantime.
    #[error("{} was written by another program in the meantime", .0.display())]
    Overtaken(PathBuf),
    /// It cannot be created.
    #[error("cannot create {}", path.display())]
    Create {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It cannot be written to.
    #[error("cannot write {}", path.display())]
    Write {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The document cannot be represented in JSON.
    #[error("cannot write JSON")]
    Json(#[from] serde_json::Error),
}

/// Replaces a document by JSON, atomically. Writes to devices and pipes directly, and follows links.
///
/// # Errors
/// Returns an error if it cannot be written.
pub fn replace_json<T: Serialize>(path: &Path, document: &T) -> Result<(), OutputError> {
    let mut text = serde_json::to_string_pretty(document)?;
    text.push('\n');
    let (mut file, part) = Part::create(path, true)?;
    file.write_all(text.as_bytes())
        .map_err(|source| OutputError::Write {
            path: path.to_owned(),
            source,
        })?;
    part.keep()
}

/// Returns whether the path is something other than a file: a device, a pipe.
pub fn is_special(path: &Path) -> bool {
    path.exists() && !path.is_file()
}

/// A file that gets its name only once it is complete. Until then it is called `NAME.PROCESS.part`, which is unique; it is removed
/// unless it is kept. Links are followed; devices and pipes are written to directly.
pub struct Part {
    path: PathBuf,
    part: Option<PathBuf>,
    force: bool,
}

impl Part {
    /// Creates a file.
    ///
    /// # Errors
    /// Returns an error if the file exists and must not be overwritten (no `force`), or cannot be created.
    pub fn create(path: &Path, force: bool) -> Result<(fs::File, Part), OutputError> {
        check_new([path], force)?;
        let cannot = |source| OutputError::Create {
            path: path.to_owned(),
            source,
        };
        let (path, part, file) = if is_special(path) {
            let file = fs::File::create(path).map_err(cannot)?;
            (path.to_owned(), None, file)
        } else {
            let to = followed(path);
            let (part, file) = create_part(&to).map_err(cannot)?;
            (to, Some(part), file)
        };
        Ok((file, Part { path, part, force }))
    }

    /// Gives the file its name, unless another file got that name in the meantime and must not be overwritten.
    ///
    /// # Errors
    /// Returns an error if another file got the name, or the file system refuses.
    pub fn keep(mut self) -> Result<(), OutputError> {
        let Some(part) = &self.part else {
            return Ok(());
        };
        if !self.force {
            match fs::hard_link(part, &self.path) {
                // Only the temporary name is left, which is removed.
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    return Err(OutputError::Overtaken(self.path.clone()));
                }
                // This file system has no hard links.
                Err(_) => check_new([self.path.as_path()], false)?,
            }
        }
        fs::rename(part, &self.path).map_err(|source| OutputError::Write {
            path: self.path.clone(),
            source,
        })?;
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

/// Creates a file that will get this name.
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

/// Resolves links, even if the target does not exist yet.
fn followed(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(to) = fs::read_link(&path) else {
            break;
        };
        path = path.parent().unwrap_or(Path::new("")).join(to);
    }
    path
}

/// Checks that the files to be written are different ones and, unless `force` is set, that none of them exists. Devices and pipes may
/// exist.
///
/// # Errors
/// Returns an error if one exists, or is named twice.
pub fn check_new<'a>(
    files: impl IntoIterator<Item = &'a Path>,
    force: bool,
) -> Result<(), OutputError> {
    let mut checked: Vec<&Path> = Vec::new();
    for file in files {
        if file.is_file() && !force {
            return Err(OutputError::Exists(file.to_owned()));
        }
        if checked
            .iter()
            .any(|other| *other == file || same_file(other, file))
        {
            return Err(OutputError::Twice(file.to_owned()));
        }
        checked.push(file);
    }
    Ok(())
}

/// Returns whether two paths lead to one file, through any links.
pub fn same_file(a: &Path, b: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino()));
    matches!((identity(a), identity(b)), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn a_pipe_or_link_is_not_replaced() {
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

    /// Two writers of one file do no harm, nor does a file that appears in the meantime, nor a file with the name of a part.
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
        assert!(
            error.ends_with("was written by another program in the meantime"),
            "{error}"
        );
        assert_eq!(room.text("scan.vdif"), "first");
        third.keep().unwrap();
        assert_eq!(room.text("scan.vdif"), "third");
        assert_eq!(room.text("scan.vdif.part"), "other");
        assert_eq!(names(), 2);
    }

    /// Also a link without a target.
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
