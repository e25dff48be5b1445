//! Reads a recording in large blocks, ahead of the sender, so that it does not wait for the disk. In virtual time the disk takes no
//! time, and each block is read when it is requested.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender};

use rustix::fs::{Advice, fadvise};

use crate::clock::Clock;

/// Options of a [`Reader`].
#[derive(Clone, Copy, Debug)]
pub struct ReaderOptions {
    /// Approximate block size in bytes: rounded down to whole units, at least one.
    pub block: usize,
    /// Number of blocks in memory, including those that the user holds; at least two.
    pub blocks: usize,
    /// Size in bytes of what must not be split: a frame.
    pub unit: usize,
    /// Offset in the file at which to start.
    pub start: u64,
    /// Number of bytes to read; `None`: to the end of the file, without an incomplete unit.
    pub length: Option<u64>,
    /// Number of passes; `None`: forever.
    pub repeats: Option<u64>,
}

impl Default for ReaderOptions {
    fn default() -> ReaderOptions {
        ReaderOptions {
            block: 8 << 20,
            blocks: 8,
            unit: 1,
            start: 0,
            length: None,
            repeats: Some(1),
        }
    }
}

/// Error of a file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {path} at byte {offset}: {source}")]
#[non_exhaustive]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// Offset in the file.
    pub offset: u64,
    /// The kernel's error.
    pub source: io::Error,
}

/// A file that is being read; in real time a thread of its own reads ahead.
#[derive(Debug)]
pub struct Reader {
    blocks: Blocks,
    length: u64,
}

#[derive(Debug)]
enum Blocks {
    Ahead(Receiver<Result<Block, ReadError>>),
    OnDemand(Box<Pieces>),
}

impl Reader {
    /// Opens the file and starts to read.
    ///
    /// # Errors
    /// Returns [`ReadError`] if it cannot be opened or is not a regular file.
    pub fn open(path: &Path, options: ReaderOptions, clock: &Clock) -> Result<Reader, ReadError> {
        let error = |source| ReadError {
            path: path.to_owned(),
            offset: options.start,
            source,
        };
        let file = File::open(path).map_err(error)?;
        let about = file.metadata().map_err(error)?;
        if !about.is_file() {
            let message = "not a regular file";
            return Err(error(io::Error::new(io::ErrorKind::InvalidInput, message)));
        }
        let there = about.len().saturating_sub(options.start);
        let wanted = options.length.unwrap_or(there).min(there);
        let unit = options.unit.max(1);
        let length = wanted - wanted % unit as u64;
        // Ignored advice does no harm.
        let _ = fadvise(&file, 0, None, Advice::Sequential);

        let block = (options.block / unit).max(1).saturating_mul(unit);
        let block = block.min(usize::try_from(length).unwrap_or(usize::MAX));
        let blocks = options.blocks.max(2);
        let (home, returned) = mpsc::sync_channel(blocks);
        let mut pieces = Pieces {
            file,
            path: path.to_owned(),
            start: options.start,
            length,
            block,
            left: match length {
                0 => 0,
                _ => options.repeats.unwrap_or(u64::MAX),
            },
            pass: 0,
            done: 0,
            spare: blocks,
            home,
            returned,
        };
        if !clock.is_real() {
            // The user returns blocks and may keep several: it never waits for one.
            pieces.spare = usize::MAX;
            let blocks = Blocks::OnDemand(Box::new(pieces));
            return Ok(Reader { blocks, length });
        }
        let (to_user, from_thread) = mpsc::sync_channel(blocks);
        let ahead = move || {
            pieces
                .map(|block| to_user.send(block))
                .all(|sent| sent.is_ok())
        };
        clock.spawn("read", ahead).map_err(error)?;
        Ok(Reader {
            blocks: Blocks::Ahead(from_thread),
            length,
        })
    }

    /// Returns the next block, waiting for the disk if necessary; `None` after the last one or an error.
    pub fn next_block(&mut self) -> Option<Result<Block, ReadError>> {
        match &mut self.blocks {
            Blocks::Ahead(blocks) => blocks.recv().ok(),
            Blocks::OnDemand(pieces) => pieces.next(),
        }
    }

    /// Returns the number of bytes of one pass: whole units.
    pub fn length(&self) -> u64 {
        self.length
    }
}

/// A block of the file: whole units. Its memory is reused once it is dropped.
#[derive(Debug)]
pub struct Block {
    bytes: Vec<u8>,
    /// Its offset in the file.
    pub offset: u64,
    /// Number of its pass, from 0.
    pub pass: u64,
    home: SyncSender<Vec<u8>>,
}

impl Block {
    /// Removes all units, each of `unit` bytes, that `keep` refuses.
    pub fn retain(&mut self, unit: usize, mut keep: impl FnMut(&[u8]) -> bool) {
        let mut kept = 0;
        for start in (0..self.bytes.len()).step_by(unit.max(1)) {
            let end = self.bytes.len().min(start + unit.max(1));
            if keep(&self.bytes[start..end]) {
                self.bytes.copy_within(start..end, kept);
                kept += end - start;
            }
        }
        self.bytes.truncate(kept);
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // There is room for every block that is read ahead. If the thread has ended, nothing needs it back.
        let _ = self.home.try_send(std::mem::take(&mut self.bytes));
    }
}

/// The blocks of a file in sequence. They end when all is read, or with an error.
#[derive(Debug)]
struct Pieces {
    file: File,
    path: PathBuf,
    start: u64,
    length: u64,
    block: usize,
    /// Passes that have not ended, and the number of the current one.
    left: u64,
    pass: u64,
    /// Bytes of this pass read so far.
    done: u64,
    /// Number of blocks not allocated yet.
    spare: usize,
    home: SyncSender<Vec<u8>>,
    returned: Receiver<Vec<u8>>,
}

impl Iterator for Pieces {
    type Item = Result<Block, ReadError>;

    fn next(&mut self) -> Option<Result<Block, ReadError>> {
        if self.left == 0 {
            return None;
        }
        let mut bytes = self.buffer()?;
        // Only the last block is shorter; the next pass extends it again.
        let left = usize::try_from(self.length - self.done).unwrap_or(usize::MAX);
        bytes.resize(left.min(self.block), 0);
        let offset = self.start + self.done;
        if let Err(source) = self.file.read_exact_at(&mut bytes, offset) {
            self.left = 0;
            let path = self.path.clone();
            return Some(Err(ReadError {
                path,
                offset,
                source,
            }));
        }
        let pass = self.pass;
        self.done += bytes.len() as u64;
        if self.done == self.length {
            (self.done, self.pass, self.left) = (0, pass + 1, self.left - 1);
        }
        Some(Ok(Block {
            bytes,
            offset,
            pass,
            home: self.home.clone(),
        }))
    }
}

impl Pieces {
    /// Returns an empty buffer: one that the user returned, or else a new one within the limit.
    fn buffer(&mut self) -> Option<Vec<u8>> {
        if let Ok(buffer) = self.returned.try_recv() {
            return Some(buffer);
        }
        if self.spare > 0 {
            self.spare -= 1;
            return Some(vec![0; self.block]);
        }
        self.returned.recv().ok()
    }
}
