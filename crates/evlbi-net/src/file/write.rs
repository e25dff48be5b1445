//! Writes a recording in large pieces.
//!
//! A recording is written once and not read soon, so that the page cache only costs: copying it in
//! takes several times the processor time of handing the ring's own memory to the disk (O_DIRECT).
//! Direct writes begin and end at block boundaries of file and memory. Spans of a ring do so, but for
//! their ends, as long as the file is a copy of the ring; what does not fit is copied through a buffer
//! that does. File systems that know no direct writes are written through the cache, and told early to
//! write it out.

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

/// What direct writes are aligned to: the page size, and no less than a sector of any disk.
const BLOCK: usize = 4096;

/// Bytes collected before a direct write when they come in small or badly aligned pieces.
const HOLD: usize = 1 << 20;

/// Pieces shorter than this are collected even when they are aligned.
const WORTHWHILE: usize = 256 << 10;

/// Disk space is reserved in steps of this many bytes: so it lies together, and there is room.
const RESERVE: u64 = 256 << 20;

/// Cached bytes after which the kernel is told to write them out.
const WRITE_OUT: u64 = 8 << 20;

/// When written data is forced onto the disk, so that it outlives a failure of power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Whenever the kernel likes.
    #[default]
    Kernel,
    /// At the end of the recording.
    End,
    /// After every so many bytes, and at the end.
    Every(u64),
}

/// How long the reader of a pipe may take nothing once the recording is over.
const TIMEOUT: Nanos = Nanos(2 * Nanos::SECOND.0);
/// How often it is looked at meanwhile whether the recording is over.
const POLL_INTERVAL: Nanos = Nanos(50_000_000);

/// How a [`Writer`] writes.
#[derive(Clone, Debug, Default)]
pub struct WriterOptions {
    /// The recording is over when this is stopped: the writer then waits at most 2 s for the reader of a pipe. Without it, the writer waits
    /// for ever.
    pub over: Option<Run>,
    /// When data is forced onto the disk.
    pub durability: Durability,
    /// Whether to go through the page cache even where direct writes are possible. A cache absorbs
    /// what a slow disk cannot, for as long as there is memory.
    pub cached: bool,
}

/// A recording that cannot be written (any further).
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path} beyond {written} bytes: {source}")]
#[non_exhaustive]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// Bytes that are in it.
    pub written: u64,
    /// What the kernel said.
    pub source: io::Error,
}

fn unopened(path: &Path) -> impl FnOnce(io::Error) -> WriteError {
    move |source| WriteError {
        path: path.to_owned(),
        written: 0,
        source,
    }
}

/// A recording that is being written from beginning to end.
#[derive(Debug)]
pub struct Writer {
    sink: Sink,
    /// Collects what cannot be written directly; none when writing through the cache.
    held: Option<Held>,
}

impl Writer {
    /// Makes the file, or empties it. Pipes and devices are written to as well.
    ///
    /// # Errors
    /// [`WriteError`] when it cannot be opened.
    pub fn create(path: &Path, options: WriterOptions) -> Result<Writer, WriteError> {
        let file = File::create(path).map_err(unopened(path))?;
        Writer::on(file, path, options)
    }

    /// Writes to a file that is open and empty, or to a pipe or device.
    ///
    /// # Errors
    /// [`WriteError`] when it cannot be seen what it is.
    pub fn on(file: File, path: &Path, options: WriterOptions) -> Result<Writer, WriteError> {
        let regular = file.metadata().map_err(unopened(path))?.is_file();
        let over = options.over.as_ref();
        let clock = over.map_or_else(Clock::real, |run| run.clock().clone());
        let held = (regular && !options.cached)
            .then(|| Held::new(clock))
            .filter(|held| begin_direct(&file, held));
        let over = options.over.filter(|_| !regular);
        if over.is_some() {
            // Terminals and pipes know it; what does not know it never waits.
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
            // Direct writes need not be told to flow.
            flowing: (regular && held.is_none()).then_some(0),
            durable: 0,
        };
        Ok(Writer { sink, held })
    }

    /// Writes `data` after what was written before. Up to a mebibyte may be held back for the next
    /// write. Returns when the kernel has taken the rest.
    ///
    /// # Errors
    /// [`WriteError`]; the file then ends after [`WriteError::written`] bytes, and what was held back
    /// is lost.
    pub fn write(&mut self, data: &[u8]) -> Result<(), WriteError> {
        let result = match &mut self.held {
            Some(held) => write_direct(&mut self.sink, held, data),
            None => self.sink.put([data, &[]]),
        };
        result.map_err(|source| self.failed(source))
    }

    /// Puts into the file what has been held back for `age`, so that little is lost if the program is killed. The bytes stay held:
    /// the direct write that they are a part of writes them once more.
    ///
    /// # Errors
    /// [`WriteError`], as of [`write`](Writer::write).
    pub fn flush_older(&mut self, age: Duration) -> Result<(), WriteError> {
        let Some(held) = &mut self.held else {
            return Ok(());
        };
        if !held.take_older(age.into()) {
            return Ok(());
        }
        // The end of a file is in no whole block: it goes through the cache.
        let file = &self.sink.file;
        let result = set_flag(file, OFlags::DIRECT, false)
            .and_then(|()| file.write_all_at(held.bytes(), self.sink.written))
            .and_then(|()| set_flag(file, OFlags::DIRECT, true));
        result.map_err(|source| self.failed(source))
    }

    /// Bytes in the file so far.
    pub fn written(&self) -> u64 {
        self.sink.written
    }

    /// Whether the data goes from memory to the disk without passing the page cache.
    pub fn is_direct(&self) -> bool {
        self.held.is_some()
    }

    /// Writes what is held back, gives back disk space that was reserved and not used, forces the
    /// data onto the disk if that was wanted, and returns the length of the file.
    ///
    /// # Errors
    /// [`WriteError`]
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

    /// Goes on through the cache, where writes may end anywhere.
    fn leave_direct(&mut self) -> Option<Held> {
        let held = self.held.take()?;
        // It was possible to set the flag, so it is possible to clear it.
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

/// Hands over what lies at block boundaries from where it lies, with what was held before it, and
/// collects the rest.
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

/// The file and how far it is.
#[derive(Debug)]
struct Sink {
    file: File,
    /// Once it is stopped, the reader of a pipe is not waited for much longer.
    over: Option<Run>,
    path: PathBuf,
    durability: Durability,
    /// Bytes in the file.
    written: u64,
    /// Whether disk space is reserved ahead: not when the file system cannot, or is nearly full.
    reserving: bool,
    /// Disk space was reserved up to here.
    reserved: u64,
    /// When writing through the cache: bytes below this are on their way to the disk.
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

    /// Waits until the reader of a pipe takes something; once the recording is over, not much longer.
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
            // What is wrong shows when it is written to.
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
            // Even a failure may have reserved a part.
            self.reserved += RESERVE;
        }
    }

    /// Frees what was reserved beyond the end of the file.
    fn give_back(&mut self) -> io::Result<()> {
        if self.reserved > self.written {
            self.reserving = false;
            self.reserved = self.written;
            self.file.set_len(self.written)?;
        }
        Ok(())
    }

    /// Begins to write cached data out, so that it does not pile up until the kernel stops the writer.
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
            // Pipes and some devices have nothing to force.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Bytes on their way, beginning at a block boundary of file and memory.
#[derive(Debug)]
struct Held {
    memory: Vec<u8>,
    /// Where the first block boundary in `memory` is.
    start: usize,
    length: usize,
    /// Since when there are bytes that are not in the file.
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

    /// Bytes that make the last block whole.
    fn missing(&self) -> usize {
        self.length.next_multiple_of(BLOCK) - self.length
    }

    /// `data` must not be longer than the room.
    fn push(&mut self, data: &[u8]) {
        let end = self.start + self.length;
        self.memory[end..end + data.len()].copy_from_slice(data);
        self.length += data.len();
        if !data.is_empty() {
            self.since.get_or_insert_with(|| self.clock.now());
        }
    }

    /// Whether something has been held for `age` that is not in the file: the caller puts it there.
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

/// Turns to direct writes if the file system does them, as a first block shows.
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
