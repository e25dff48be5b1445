//! Reads a recording in large blocks, ahead of the sender, so that it does not wait for the disk. In virtual time the disk takes no
//! time, and each block is read when it is requested. A library that knows more of a file than its bytes fills the blocks itself.

use std::fmt;
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

/// Fills a buffer with the next block, whole units; returns the number of its pass, `None` at the end.
pub type Fill = Box<dyn FnMut(&mut Vec<u8>) -> Result<Option<u64>, ReadError> + Send>;

impl ReadError {
    /// Makes an error at an offset of a file.
    pub fn new(path: &Path, offset: u64, source: io::Error) -> ReadError {
        let path = path.to_owned();
        ReadError {
            path,
            offset,
            source,
        }
    }
}

/// A file that is being read; in real time a thread of its own reads ahead.
pub struct Reader {
    blocks: Blocks,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

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
        let error = |source| ReadError::new(path, options.start, source);
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
        let mut passes = Passes {
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
        };
        let fill = Box::new(move |bytes: &mut Vec<u8>| passes.fill(bytes));
        Reader::of(fill, blocks, clock).map_err(error)
    }

    /// Starts to read blocks that `fill` fills, with at most this many in memory.
    ///
    /// # Errors
    /// Returns the system's error if it cannot start a thread.
    pub fn of(fill: Fill, blocks: usize, clock: &Clock) -> io::Result<Reader> {
        let (home, returned) = mpsc::sync_channel(blocks);
        let mut pieces = Pieces {
            fill: Some(fill),
            spare: blocks,
            home,
            returned,
        };
        if !clock.is_real() {
            // The user returns blocks and may keep several: it never waits for one.
            pieces.spare = usize::MAX;
            let blocks = Blocks::OnDemand(Box::new(pieces));
            return Ok(Reader { blocks });
        }
        let (to_user, from_thread) = mpsc::sync_channel(blocks);
        let ahead = move || {
            pieces
                .map(|block| to_user.send(block))
                .all(|sent| sent.is_ok())
        };
        clock.spawn("read", ahead)?;
        let blocks = Blocks::Ahead(from_thread);
        Ok(Reader { blocks })
    }

    /// Returns the next block, waiting for the disk if necessary; `None` after the last one or an error.
    pub fn next_block(&mut self) -> Option<Result<Block, ReadError>> {
        match &mut self.blocks {
            Blocks::Ahead(blocks) => blocks.recv().ok(),
            Blocks::OnDemand(pieces) => pieces.next(),
        }
    }
}

/// A block of the file: whole units. Its memory is reused once it is dropped.
#[derive(Debug)]
pub struct Block {
    bytes: Vec<u8>,
    /// Number of its pass, from 0.
    pub pass: u64,
    home: SyncSender<Vec<u8>>,
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

/// The blocks in sequence. They end when all is read, or with an error.
struct Pieces {
    /// `None` after the end.
    fill: Option<Fill>,
    /// Number of blocks not allocated yet.
    spare: usize,
    home: SyncSender<Vec<u8>>,
    returned: Receiver<Vec<u8>>,
}

impl Iterator for Pieces {
    type Item = Result<Block, ReadError>;

    fn next(&mut self) -> Option<Result<Block, ReadError>> {
        self.fill.as_ref()?;
        let mut bytes = self.buffer()?;
        let pass = self.fill.as_mut()?(&mut bytes).transpose();
        if !matches!(pass, Some(Ok(_))) {
            self.fill = None;
        }
        Some(pass?.map(|pass| Block {
            bytes,
            pass,
            home: self.home.clone(),
        }))
    }
}

impl Pieces {
    /// Returns a buffer: one that the user returned, or else a new one within the limit.
    fn buffer(&mut self) -> Option<Vec<u8>> {
        if let Ok(buffer) = self.returned.try_recv() {
            return Some(buffer);
        }
        if self.spare > 0 {
            self.spare -= 1;
            return Some(Vec::new());
        }
        self.returned.recv().ok()
    }
}

/// Passes through a file.
#[derive(Debug)]
struct Passes {
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
}

impl Passes {
    /// Reads the next block.
    fn fill(&mut self, bytes: &mut Vec<u8>) -> Result<Option<u64>, ReadError> {
        if self.left == 0 {
            return Ok(None);
        }
        // Only the last block is shorter; the next pass extends it again.
        let left = usize::try_from(self.length - self.done).unwrap_or(usize::MAX);
        bytes.resize(left.min(self.block), 0);
        let (offset, pass) = (self.start + self.done, self.pass);
        let read = self.file.read_exact_at(bytes, offset);
        read.map_err(|source| ReadError::new(&self.path, offset, source))?;
        self.done += bytes.len() as u64;
        if self.done == self.length {
            (self.done, self.pass, self.left) = (0, pass + 1, self.left - 1);
        }
        Ok(Some(pass))
    }
}
