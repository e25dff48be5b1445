//! Write rate of a directory, measured with the writer that `recv` uses.

use std::error::Error as StdError;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use evlbi_core::time::Nanos;
use evlbi_net::clock::Clock;
use evlbi_net::file::{Durability, WriteError, Writer, WriterOptions};
use evlbi_net::run::Run;
use nix::sys::statfs::{self, TMPFS_MAGIC};
use nix::sys::statvfs::statvfs;
use thiserror::Error;

use super::item::{Item, change, good, note, quoted};
use super::{Aim, DoctorError};
use evlbi_wire::units::{show_bytes, show_rate};

pub const GROUP: &str = "disk";
/// Maximum duration of the test.
const MAX: Nanos = Nanos(5 * Nanos::SECOND.0);
const LARGEST: u64 = 4 << 30;
/// The test uses at most the free space divided by this, and needs a minimum of that, in bytes, for a meaningful result.
const PART_OF_FREE: u64 = 4;
const SMALLEST: u64 = 64 << 20;
/// Bytes per write.
const PIECE: usize = 8 << 20;
/// Alignment of direct writes.
const BLOCK: usize = 4096;
/// Through the cache: bytes after which data is forced to the disk, so that the end does not take forever.
const FORCED: u64 = 256 << 20;

/// Bytes written, and the time until all of them were on the disk.
struct Trial {
    bytes: u64,
    seconds: f64,
    is_direct: bool,
}

/// Checks that the directory exists.
pub fn check(folder: &Path) -> Result<(), DoctorError> {
    match folder.is_dir() {
        true => Ok(()),
        false => Err(DoctorError::NoFolder(folder.to_owned())),
    }
}

pub fn item(folder: Option<&Path>, aim: &Aim, run: &Run) -> Item {
    let why = "data that the disk does not accept waits in the ring, and is dropped when the ring is full (ring_full)";
    let Some(folder) = folder else {
        let found = "not tested: --disk DIR measures how fast a recording can be written there";
        return Item::new(GROUP, "writing", why, Ok(note(found)));
    };
    let name = format!("writing in {}", folder.display());
    let found = tried(folder, run).map(|trial| judge(&trial, aim, in_memory(folder)));
    let found = found.map_err(|error| run.explain(&*error));
    Item::new(GROUP, &name, why, found)
}

fn judge(trial: &Trial, aim: &Aim, in_memory: bool) -> Item {
    let rate = trial.bytes as f64 * 8.0 / trial.seconds.max(1e-9);
    let found = format!(
        "{}: {} in {:.2} s {}, all on the disk{}",
        show_rate(rate),
        show_bytes(trial.bytes as f64),
        trial.seconds,
        match trial.is_direct {
            true => "by direct writes",
            false => "through the cache (the file system has no direct writes)",
        },
        match in_memory {
            true => "; but this directory is in memory, not on a disk",
            false => "",
        }
    );
    let wanted = format!("{}bit/s", aim.rate);
    let command = format!(
        "evlbi doctor --rate {} --disk {}  # until a directory is fast enough",
        aim.rate,
        quoted("/another/disk")
    );
    match rate >= aim.rate.get() as f64 {
        true if in_memory => note(found),
        true => good(found).wanting(wanted),
        false => change(found, wanted).by(command),
    }
}

/// Returns whether a directory is in memory.
fn in_memory(folder: &Path) -> bool {
    statfs::statfs(folder).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC)
}

fn tried(folder: &Path, run: &Run) -> Result<Trial, Box<dyn StdError>> {
    let most = LARGEST.min(free_bytes(folder)? / PART_OF_FREE);
    if most < SMALLEST {
        let folder = folder.display();
        return Err(format!("too little space for a test in {folder}").into());
    }
    let claimed = Claimed::new(folder, run)?;
    let mut writer = claimed.writer(Durability::End)?;
    if !writer.is_direct() {
        writer = claimed.writer(Durability::Every(FORCED))?;
    }
    // The file continues without its name, so nothing remains, however the test ends.
    drop(claimed);
    let is_direct = writer.is_direct();
    let noise = noise(PIECE + BLOCK);
    let start = noise.as_ptr().align_offset(BLOCK).min(BLOCK);
    let piece = &noise[start..start + PIECE];
    let mut progress = run.progress(Some(most));
    let clock = Clock::real();
    let begun = clock.now();
    let elapsed = || clock.now().since(begun);
    let mut bytes = 0;
    while bytes < most && elapsed() < MAX && !run.is_stopped() {
        writer.write(piece)?;
        bytes += piece.len() as u64;
        if progress.is_due() {
            let seconds = elapsed().as_secs_f64();
            let rate = bytes as f64 * 8.0 / seconds.max(1e-9);
            let time = seconds / MAX.as_secs_f64();
            let done = bytes.max((most as f64 * time) as u64).min(most);
            let line = format!("writing in {}: {}", folder.display(), show_rate(rate));
            progress.show(done, &line);
        }
    }
    Ok(Trial {
        bytes: writer.finish()?,
        seconds: elapsed().as_secs_f64(),
        is_direct,
    })
}

/// A new file in a directory, whose name is removed on drop.
struct Claimed<'r>(PathBuf, &'r Run);

impl<'r> Claimed<'r> {
    /// Creates a file with an unused name, so that nothing is overwritten.
    fn new(folder: &Path, run: &'r Run) -> Result<Claimed<'r>, String> {
        let path = folder.join(format!(".evlbi-doctor-{}", std::process::id()));
        let made = OpenOptions::new().write(true).create_new(true).open(&path);
        made.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(Claimed(path, run))
    }

    fn writer(&self, durability: Durability) -> Result<Writer, WriteError> {
        let options = WriterOptions {
            durability,
            ..WriterOptions::default()
        };
        Writer::create(&self.0, options)
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            let path = self.0.display();
            self.1.say(format_args!("cannot remove {path}: {error}"));
        }
    }
}

/// Returns bytes that no file system can compress.
fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    rand::fill(&mut bytes[..]);
    bytes
}

/// Error of a directory whose free space cannot be determined.
#[derive(Debug, Error)]
#[error("cannot determine the free space in {}", folder.display())]
#[non_exhaustive]
pub struct FreeError {
    /// The directory.
    pub folder: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

/// Returns how many bytes are free in the file system of `folder`.
///
/// # Errors
/// Returns an error if the directory does not exist, or access is denied.
pub fn free_bytes(folder: &Path) -> Result<u64, FreeError> {
    let found = statvfs(folder).map_err(|source| FreeError {
        folder: folder.to_owned(),
        source: source.into(),
    })?;
    Ok(found.blocks_available() * found.fragment_size())
}

#[cfg(test)]
mod tests {
    use super::super::item::Verdict;
    use super::super::tests::aim;
    use super::*;

    fn judged(gigabytes: u64, in_memory: bool) -> Item {
        let trial = Trial {
            bytes: gigabytes * 1_000_000_000,
            seconds: 1.0,
            is_direct: true,
        };
        judge(&trial, &aim(), in_memory)
    }

    #[test]
    fn a_disk_must_be_as_fast_as_the_data() {
        assert_eq!(judged(2, false).verdict, Verdict::Good);
        let item = judged(1, false);
        assert_eq!(item.verdict, Verdict::Change);
        assert_eq!(
            item.found,
            "8.000 Gbit/s: 1.000 GB in 1.00 s by direct writes, all on the disk"
        );
        assert!(item.command.is_some());
        assert_eq!(judged(2, true).verdict, Verdict::Note);
    }

    #[test]
    fn nothing_is_written_over_and_nothing_stays() {
        let room = evlbi_testkit::Room::new();
        let run = Run::silent();
        let claimed = Claimed::new(room.folder(), &run).unwrap();
        assert!(Claimed::new(room.folder(), &run).is_err());
        drop(claimed);
        assert_eq!(fs::read_dir(room.folder()).unwrap().count(), 0);
    }

    #[test]
    fn without_a_directory_nothing_is_tried() {
        let item = item(None, &aim(), &Run::silent());
        assert_eq!(item.verdict, Verdict::Note);
        assert!(item.found.contains("--disk DIR"));
        assert!(check(Path::new("/nothere")).is_err());
    }

    #[test]
    fn noise_has_no_repeats() {
        let bytes = noise(1 << 16);
        let words: std::collections::HashSet<&[u8]> = bytes.chunks(8).collect();
        assert_eq!(words.len(), bytes.len() / 8);
    }
}
