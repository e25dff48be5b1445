//! Reads a recording in large blocks, some of them ahead, so that the sender does not wait for the disk.

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
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// What the kernel said.
    pub source: io::Error,
}

/// A file that is being read ahead by a thread of its own.
#[derive(Debug)]
pub struct Reader {
    blocks: Receiver<Result<Block, ReadError>>,
    length: u64,
}

impl Reader {
    /// Opens the file and begins to read.
    ///
    /// # Errors
    /// [`ReadError`] when it cannot be opened or is no regular file.
    pub fn open(path: &Path, options: ReaderOptions) -> Result<Reader, ReadError> {
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
        let (to_user, from_thread) = mpsc::sync_channel(blocks);
        let (home, returned) = mpsc::sync_channel(blocks);
        let ahead = Ahead {
            file,
            path: path.to_owned(),
            start: options.start,
            length,
            block,
            repeats: match length {
                0 => 0,
                _ => options.repeats.unwrap_or(u64::MAX),
            },
            spare: blocks,
            home,
            returned,
        };
        Clock::real()
            .spawn("read", move || ahead.run(&to_user))
            .map_err(error)?;
        Ok(Reader {
            blocks: from_thread,
            length,
        })
    }

    /// The next block; `None` after the last one or an error. Waits for the disk when it must.
    pub fn next_block(&mut self) -> Option<Result<Block, ReadError>> {
        self.blocks.recv().ok()
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
        // There is room for every block; if the thread has ended nobody wants it back.
        let _ = self.home.try_send(std::mem::take(&mut self.bytes));
    }
}

/// The reading thread. It ends when all is read, on an error, or when the reader is dropped.
struct Ahead {
    file: File,
    path: PathBuf,
    start: u64,
    length: u64,
    block: usize,
    repeats: u64,
    /// Blocks not made yet.
    spare: usize,
    home: SyncSender<Vec<u8>>,
    returned: Receiver<Vec<u8>>,
}

impl Ahead {
    fn run(mut self, to_user: &SyncSender<Result<Block, ReadError>>) {
        for pass in 0..self.repeats {
            for done in (0..self.length).step_by(self.block) {
                let Some(mut bytes) = self.buffer() else {
                    return;
                };
                // Only the last block is shorter, and the next pass makes it long again.
                let left = usize::try_from(self.length - done).unwrap_or(usize::MAX);
                bytes.resize(left.min(self.block), 0);
                let offset = self.start + done;
                let block = match self.file.read_exact_at(&mut bytes, offset) {
                    Ok(()) => Ok(Block {
                        bytes,
                        offset,
                        pass,
                        home: self.home.clone(),
                    }),
                    Err(source) => Err(ReadError {
                        path: self.path.clone(),
                        offset,
                        source,
                    }),
                };
                let failed = block.is_err();
                if to_user.send(block).is_err() || failed {
                    return;
                }
            }
        }
    }

    /// An empty buffer: a new one as long as there may be more, else one that the user gave back.
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
