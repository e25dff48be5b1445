//! Reads a recording in large blocks, some of them ahead, so that the sender does not wait for the disk. In virtual time the disk takes
//! no time, and each block is read when it is asked for.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender};

use rustix::fs::{Advice, fadvise};

use crate::clock::Clock;

/// How a [`Reader`] reads.
#[derive(Clone, Copy, Debug)]
pub struct ReaderOptions {
    /// Bytes of a block, about: rounded down to whole units, one at least.
    pub block: usize,
    /// Blocks in memory, those that the user holds included; two at least.
    pub blocks: usize,
    /// What is not to be cut in two, in bytes: a frame.
    pub unit: usize,
    /// Where to begin in the file.
    pub start: u64,
    /// How many bytes to read; else to the end of the file, less what does not fill a unit.
    pub length: Option<u64>,
    /// How often to read it; `None` for ever.
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

/// A file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {path} at byte {offset}: {source}")]
#[non_exhaustive]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// What the kernel said.
    pub source: io::Error,
}

/// A file that is being read, ahead by a thread of its own where time is real.
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
    /// Opens the file and begins to read.
    ///
    /// # Errors
    /// [`ReadError`] when it cannot be opened or is no regular file.
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
        // Advice that is not taken does no harm.
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
            // Its user gives blocks back, and may keep several: it never waits for one.
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

    /// The next block; `None` after the last one or an error. Waits for the disk when it must.
    pub fn next_block(&mut self) -> Option<Result<Block, ReadError>> {
        match &mut self.blocks {
            Blocks::Ahead(blocks) => blocks.recv().ok(),
            Blocks::OnDemand(pieces) => pieces.next(),
        }
    }

    /// Bytes of one pass: whole units.
    pub fn length(&self) -> u64 {
        self.length
    }
}

/// A piece of the file: whole units. Its memory is used again when it is dropped.
#[derive(Debug)]
pub struct Block {
    bytes: Vec<u8>,
    /// Where it begins in the file.
    pub offset: u64,
    /// Which pass it belongs to, counted from 0.
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
        // There is room for every block that is read ahead; if the thread has ended nobody wants it back.
        let _ = self.home.try_send(std::mem::take(&mut self.bytes));
    }
}

/// The pieces of a file, one after the other. They end when all is read, or with an error.
#[derive(Debug)]
struct Pieces {
    file: File,
    path: PathBuf,
    start: u64,
    length: u64,
    block: usize,
    /// Passes that have not ended, and the number of the one that has begun.
    left: u64,
    pass: u64,
    /// Bytes of this pass so far.
    done: u64,
    /// Blocks not made yet.
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
        // Only the last block is shorter, and the next pass makes it long again.
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
    /// An empty buffer: one that the user gave back, else a new one as long as there may be more.
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
