//! Writes a recording in large pieces.
//!
//! A recording is written once and not read soon, so the page cache is only a cost: copying into it takes several times the CPU time of
//! writing the ring's own memory to the disk (O_DIRECT). Direct writes start and end at block boundaries of file and memory. As long as
//! the file is a copy of the ring, spans of the ring are aligned except at their ends; the rest is copied through an aligned buffer. On
//! file systems without direct writes, data goes through the cache, and write-back is started early.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evlbi_core::time::Nanos;
use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl};

use crate::clock::events::writable;
use crate::clock::{self, Clock, Events};
use crate::cpu::Waiting;
use crate::run::Run;

/// Alignment of direct writes: the page size, which is at least a sector of any disk.
const BLOCK: usize = 4096;

/// Bytes collected before a direct write if they arrive in small or badly aligned pieces.
const HOLD: usize = 1 << 20;

/// Minimum length of an aligned piece that is not collected first.
const WORTHWHILE: usize = 256 << 10;

/// Step of the disk space reservation, in bytes: reserved space is contiguous, and certain.
const RESERVE: u64 = 256 << 20;

/// Cached bytes after which write-back is started.
const WRITE_OUT: u64 = 8 << 20;

/// When written data is forced onto the disk, to survive a power failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// At the kernel's discretion.
    #[default]
    Kernel,
    /// At the end of the recording.
    End,
    /// Each time that this many bytes were written, and at the end.
    Every(u64),
}

/// Maximum time without progress of a pipe's reader once the recording is over.
const TIMEOUT: Nanos = Nanos(2 * Nanos::SECOND.0);
/// Interval at which a blocked writer checks whether the recording is over.
const POLL_INTERVAL: Nanos = Nanos(50_000_000);

/// Options of a [`Writer`].
#[derive(Clone, Debug, Default)]
pub struct WriterOptions {
    /// Stopped when the recording is over; from then on the writer waits at most 2 s for the reader of a pipe. Without it, the writer
    /// waits forever.
    pub over: Option<Run>,
    /// When data is forced onto the disk.
    pub durability: Durability,
    /// Whether to use the page cache even if direct writes are possible. A cache absorbs bursts that a slow disk cannot, as long as
    /// there is memory.
    pub cached: bool,
}

/// Error of a recording that cannot be written (any further).
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path} beyond {written} bytes: {source}")]
#[non_exhaustive]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// Number of bytes in the file.
    pub written: u64,
    /// The kernel's error.
    pub source: io::Error,
}

fn unopened(path: &Path) -> impl FnOnce(io::Error) -> WriteError {
    move |source| WriteError {
        path: path.to_owned(),
        written: 0,
        source,
    }
}

/// A recording that is being written.
#[derive(Debug)]
pub struct Writer {
    sink: Sink,
    /// Buffer for data that cannot be written directly; `None` when writing through the cache.
    held: Option<Held>,
}

impl Writer {
    /// Creates or truncates the file. Pipes and devices are accepted too.
    ///
    /// # Errors
    /// Returns [`WriteError`] if it cannot be opened.
    pub fn create(path: &Path, options: WriterOptions) -> Result<Writer, WriteError> {
        let file = File::create(path).map_err(unopened(path))?;
        Writer::on(file, path, options)
    }

    /// Creates a writer to an open and empty file, a pipe or a device.
    ///
    /// # Errors
    /// Returns [`WriteError`] if its type cannot be determined.
    pub fn on(file: File, path: &Path, options: WriterOptions) -> Result<Writer, WriteError> {
        let regular = file.metadata().map_err(unopened(path))?.is_file();
        let over = options.over.as_ref();
        let clock = over.map_or_else(Clock::real, |run| run.clock().clone());
        let held = (regular && !options.cached)
            .then(|| Held::new(clock))
            .filter(|held| begin_direct(&file, held));
        let over = options.over.filter(|_| !regular);
        if over.is_some() {
            // Terminals and pipes support it; anything else never blocks.
            let _ = set_flag(&file, OFlags::NONBLOCK, true);
        }
        let sink = Sink {
            file,
            over,
            path: path.to_owned(),
            durability: options.durability,
            written: 0,
            reserving: regular,
            reserved: 0,
            // Direct writes need no write-back.
            flowing: (regular && held.is_none()).then_some(0),
            durable: 0,
        };
        Ok(Writer { sink, held })
    }

    /// Appends `data`. Up to 1 MiB may be held back for the next write. Returns when the kernel has accepted the rest.
    ///
    /// # Errors
    /// Returns [`WriteError`]; the file then ends after [`WriteError::written`] bytes, and held-back data is lost.
    pub fn write(&mut self, data: &[u8]) -> Result<(), WriteError> {
        let result = match &mut self.held {
            Some(held) => write_direct(&mut self.sink, held, data),
            None => self.sink.put([data, &[]]),
        };
        result.map_err(|source| self.failed(source))
    }

    /// Writes data that has been held back for `age`, so that little is lost if the program is killed. The data stays in the buffer:
    /// the direct write that includes it writes it again.
    ///
    /// # Errors
    /// Returns [`WriteError`], like [`write`](Writer::write).
    pub fn flush_older(&mut self, age: Duration) -> Result<(), WriteError> {
        let Some(held) = &mut self.held else {
            return Ok(());
        };
        if !held.take_older(age.into()) {
            return Ok(());
        }
        // The end of a file is not a whole block: it goes through the cache.
        let file = &self.sink.file;
        let result = set_flag(file, OFlags::DIRECT, false)
            .and_then(|()| file.write_all_at(held.bytes(), self.sink.written))
            .and_then(|()| set_flag(file, OFlags::DIRECT, true));
        result.map_err(|source| self.failed(source))
    }

    /// Returns the number of bytes in the file so far.
    pub fn written(&self) -> u64 {
        self.sink.written
    }

    /// Returns whether data goes from memory to the disk without the page cache.
    pub fn is_direct(&self) -> bool {
        self.held.is_some()
    }

    /// Writes held-back data, frees unused reserved disk space, forces the data onto the disk if requested, and returns the length of
    /// the file.
    ///
    /// # Errors
    /// Returns [`WriteError`].
    pub fn finish(mut self) -> Result<u64, WriteError> {
        let mut result = self.end();
        if self.sink.durability != Durability::Kernel {
            result = result.and_then(|()| self.sink.force());
        }
        result.map_err(|source| self.failed(source))?;
        Ok(self.sink.written)
    }

    fn failed(&mut self, source: io::Error) -> WriteError {
        self.leave_direct();
        WriteError {
            path: self.sink.path.clone(),
            written: self.sink.written,
            source,
        }
    }

    fn end(&mut self) -> io::Result<()> {
        let result = match self.leave_direct() {
            Some(held) => self.sink.put([held.bytes(), &[]]),
            None => Ok(()),
        };
        let trimmed = self.sink.give_back();
        result.and(trimmed)
    }

    /// Switches to the cache, where writes may end anywhere.
    fn leave_direct(&mut self) -> Option<Held> {
        let held = self.held.take()?;
        // The flag could be set, so it can be cleared.
        let _ = set_flag(&self.sink.file, OFlags::DIRECT, false);
        Some(held)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!("{}", self.failed(error));
        }
    }
}

/// Writes whole aligned blocks in place, after the held data, and collects the rest.
fn write_direct(sink: &mut Sink, held: &mut Held, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        let (head, body) = data.split_at(data.len().min(held.missing()));
        if body.len() >= WORTHWHILE && body.as_ptr().addr().is_multiple_of(BLOCK) {
            held.push(head);
            let (blocks, tail) = body.split_at(body.len() - body.len() % BLOCK);
            sink.put([held.bytes(), blocks])?;
            held.clear();
            data = tail;
        } else {
            let (fitting, rest) = data.split_at(data.len().min(held.room()));
            held.push(fitting);
            if held.room() == 0 {
                sink.put([held.bytes(), &[]])?;
                held.clear();
            }
            data = rest;
        }
    }
    Ok(())
}

/// The file and the progress of writing it.
#[derive(Debug)]
struct Sink {
    file: File,
    /// Once it is stopped, waits for the reader of a pipe end soon.
    over: Option<Run>,
    path: PathBuf,
    durability: Durability,
    /// Bytes in the file.
    written: u64,
    /// Whether disk space is reserved ahead: not if the file system cannot, or is nearly full.
    reserving: bool,
    /// End of the reserved disk space.
    reserved: u64,
    /// When writing through the cache: write-back has started for bytes below this.
    flowing: Option<u64>,
    /// Bytes below this were forced onto the disk.
    durable: u64,
}

impl Sink {
    fn put(&mut self, pieces: [&[u8]; 2]) -> io::Result<()> {
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.reserve(self.written + length as u64);
        let mut pieces = pieces.map(IoSlice::new);
        let mut rest = pieces.as_mut_slice();
        let mut left = length;
        while left > 0 {
            match self.file.write_vectored(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.written += count as u64;
                    left -= count;
                    IoSlice::advance_slices(&mut rest, count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait_for_reader()?;
                }
                Err(error) => return Err(error),
            }
        }
        self.keep_flowing();
        if let Durability::Every(bytes) = self.durability
            && self.written - self.durable >= bytes
        {
            self.force()?;
        }
        Ok(())
    }

    /// Waits until the reader of a pipe takes data; once the recording is over, only for 2 s.
    fn wait_for_reader(&self) -> io::Result<()> {
        let mut polls = [writable(&self.file)];
        let over = self.over.as_ref();
        let clock = over.map_or_else(Clock::real, |run| run.clock().clone());
        let mut over_since = None;
        loop {
            let late = |why| Err(io::Error::new(io::ErrorKind::TimedOut, why));
            if over.is_some_and(Run::is_abandoned) {
                return late("what the reader had not taken was given up");
            }
            // An error shows at the next write.
            let next = clock.now().plus(POLL_INTERVAL);
            clock.wait(&[Events::of(&polls)], next, Waiting::Sleep);
            if clock::poll(&mut polls, Duration::ZERO).unwrap_or(true) {
                return Ok(());
            }
            let now = clock.now();
            if over.is_some_and(Run::is_stopped)
                && now.since(*over_since.get_or_insert(now)) >= TIMEOUT
            {
                return late("the reader took nothing for 2 s after the end of the recording");
            }
        }
    }

    fn reserve(&mut self, end: u64) {
        while self.reserving && self.reserved < end {
            let flags = FallocateFlags::KEEP_SIZE;
            self.reserving = fallocate(&self.file, flags, self.reserved, RESERVE).is_ok();
            // Even a failed call may have reserved some space.
            self.reserved += RESERVE;
        }
    }

    /// Frees the space that was reserved beyond the end of the file.
    fn give_back(&mut self) -> io::Result<()> {
        if self.reserved > self.written {
            self.reserving = false;
            self.reserved = self.written;
            self.file.set_len(self.written)?;
        }
        Ok(())
    }

    /// Starts write-back of cached data, so that it does not pile up until the kernel blocks the writer.
    fn keep_flowing(&mut self) {
        let Some(flowing) = self.flowing else { return };
        let length = self.written - flowing;
        if length >= WRITE_OUT {
            // SAFETY: only numbers are passed. A failure shows when the data is forced out.
            unsafe {
                libc::sync_file_range(
                    self.file.as_raw_fd(),
                    flowing as libc::off64_t,
                    length as libc::off64_t,
                    libc::SYNC_FILE_RANGE_WRITE,
                )
            };
            self.flowing = Some(self.written);
        }
    }

    fn force(&mut self) -> io::Result<()> {
        match self.file.sync_data() {
            Ok(()) => self.durable = self.written,
            // Pipes and some devices cannot be forced.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Collected bytes, starting at a block boundary of file and memory.
#[derive(Debug)]
struct Held {
    memory: Vec<u8>,
    /// Offset of the first block boundary in `memory`.
    start: usize,
    length: usize,
    /// Time since which there are bytes that are not in the file.
    since: Option<Nanos>,
    clock: Clock,
}

impl Held {
    fn new(clock: Clock) -> Held {
        let memory = vec![0; HOLD + BLOCK];
        // Within the first block by definition.
        let start = memory.as_ptr().align_offset(BLOCK).min(BLOCK);
        Held {
            memory,
            start,
            length: 0,
            since: None,
            clock,
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }

    fn room(&self) -> usize {
        HOLD - self.length
    }

    /// Returns the number of bytes that complete the last block.
    fn missing(&self) -> usize {
        self.length.next_multiple_of(BLOCK) - self.length
    }

    /// Appends `data`, which must fit.
    fn push(&mut self, data: &[u8]) {
        let end = self.start + self.length;
        self.memory[end..end + data.len()].copy_from_slice(data);
        self.length += data.len();
        if !data.is_empty() {
            self.since.get_or_insert_with(|| self.clock.now());
        }
    }

    /// Returns whether data that is not in the file has been held for `age`; the caller then writes it to the file.
    fn take_older(&mut self, age: Nanos) -> bool {
        let now = self.clock.now();
        let is_old = |since: &mut Nanos| now.since(*since) >= age;
        self.since.take_if(is_old).is_some()
    }

    fn clear(&mut self) {
        self.length = 0;
        self.since = None;
    }
}

/// Switches to direct writes if the file system supports them, tested with a first block.
fn begin_direct(file: &File, held: &Held) -> bool {
    let block = &held.memory[held.start..held.start + BLOCK];
    let works = set_flag(file, OFlags::DIRECT, true).is_ok()
        && file.write_all_at(block, 0).is_ok()
        && file.set_len(0).is_ok();
    if !works {
        let _ = set_flag(file, OFlags::DIRECT, false);
        let _ = file.set_len(0);
    }
    works
}

fn set_flag(file: &File, flag: OFlags, is_set: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(flag, is_set);
    Ok(fcntl_setfl(file, flags)?)
}
