//! Stores received frames: in one file or one per station or thread, or discards or checks them.
//!
//! To add another kind of sink, see CONTRIBUTING.md, "How to add".

use std::collections::{HashMap, HashSet};
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evlbi_core::deframe::{Chunk, Format, Frame, FrameState};
use evlbi_net::file::{Durability, OutputError, WriteError, Writer, WriterOptions};
use evlbi_net::run::Run;
use evlbi_wire::pattern;
use evlbi_wire::vdif::{HEADER_LEN, Header, StreamKey};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use serde::Serialize;
use thiserror::Error;

use crate::lane::{GapsFile, LaneError, Made};
use crate::recording::result_beside;
use crate::selection::{Selection, SelectionError};
use crate::split::Splitter;
use crate::template::{MAX_FILES, Place, Template, TemplateError};

/// Maximum time for which pieces too small for a direct write are buffered.
const HELD: Duration = Duration::from_millis(250);
/// Interval at which a file that another program holds, or a pipe without a reader, is tried again.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of tries for a new file.
const POLLS: u32 = 100;

/// Reasons why a stream cannot be recorded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The file exists, and overwriting is not allowed.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// Another program is writing the file.
    #[error(
        "{} is being written by another program: give each receiver its own file",
        .0.display()
    )]
    Held(PathBuf),
    /// The file cannot be opened or created.
    #[error("cannot record to {}", path.display())]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot record to {}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        source: WriteError,
    },
    /// The settings of the stream are not valid.
    #[error("{0}")]
    Selection(#[from] SelectionError),
    /// The name has an unknown placeholder.
    #[error("{0}")]
    Template(#[from] TemplateError),
    /// Threads of one output have frames of different lengths.
    #[error(
        "the frames of thread {} of station {} have {other} bytes, but those in {} have {length}",
        key.thread,
        key.station,
        path.display()
    )]
    Lengths {
        /// Station and thread.
        key: StreamKey,
        /// Path of the output.
        path: PathBuf,
        /// Length of the frames in the output, in bytes.
        length: usize,
        /// Length of those of the thread, in bytes.
        other: usize,
    },
    /// The named pipe had no reader while there was something to record.
    #[error(
        "no program opened the named pipe {} to read before the end, so nothing was recorded",
        .0.display()
    )]
    NoReader(PathBuf),
}

/// A place that takes the frames of a stream, in order.
pub trait Sink: Send {
    /// Takes the next piece of the stream.
    fn take(&mut self, chunk: Chunk<'_>);

    /// Writes buffered data.
    fn flush(&mut self) {}

    /// Closes the sink; returns its report.
    fn finish(self: Box<Self>) -> SinkReport;
}

/// Settings for creating and writing files.
#[derive(Clone, Debug)]
pub struct Files {
    /// When data is forced to the disk.
    pub durability: Durability,
    /// Whether existing files are overwritten.
    pub force: bool,
    /// The run of the recording; when it is stopped, the sink no longer waits for the reader of a named pipe.
    pub run: Run,
}

/// Report of a sink about the data that it took.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SinkReport {
    /// Files written.
    pub files: Vec<Written>,
    /// Bytes that could not be written.
    pub unwritten_bytes: u64,
    /// Reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_error: Option<String>,
    /// Result of checking the test pattern.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<CheckReport>,
    /// Reason why nothing of the stream could be recorded, which ended the run.
    #[serde(skip)]
    pub refused: Option<String>,
}

/// A file that was written.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Written {
    /// Its path.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// Path of its own gaps file, for a channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gaps_file: Option<PathBuf>,
}

/// Result of checking the test pattern, in frames.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CheckReport {
    /// Frames with the payload that belongs to their number.
    pub good: u64,
    /// Frames with another payload.
    pub corrupted: u64,
    /// Lost frames, which cannot be checked.
    pub not_checked: u64,
}

/// Opens the sink that `to` names: `null`, `check`, a path, or a path with `{station}`, `{thread}` or `{channel}`. If channels are separated,
/// `selection` chooses them, and describes the samples of Mark 4 and Mark 5B.
///
/// # Errors
/// Returns an error if a file cannot be created, or exists and must not be overwritten.
pub fn open(to: &str, selection: &Selection, files: Files) -> Result<Box<dyn Sink>, SinkError> {
    Ok(match to {
        "null" => Box::new(Null),
        "check" => Box::new(Check::default()),
        _ if has_channels(to) => Box::new(Channels {
            split: Split::new(to, files)?,
            splitter: Splitter::live(selection)?,
            ignored: selection.described().collect(),
            refused: None,
        }),
        _ if to.contains('{') => Box::new(Split::new(to, files)?),
        _ => Box::new(Output::create(Path::new(to), &files)?),
    })
}

/// Returns whether channels are separated.
pub(crate) fn has_channels(to: &str) -> bool {
    to.contains("{channel}")
}

/// Returns the file that the gaps file is named after by default. For directories per station that is `station-NAME` next to them.
pub(crate) fn recording(to: &str) -> Option<PathBuf> {
    if matches!(to, "null" | "check") {
        return None;
    }
    let (before, split) = match to.find('{') {
        Some(at) => to.split_at(to[..at].rfind('/').map_or(0, |slash| slash + 1)),
        None => (to, ""),
    };
    let split = split.replace(['{', '}'], "").replace('/', "-");
    Some(PathBuf::from(format!("{before}{split}")))
}

/// A sink that counts frames and discards them.
pub(crate) struct Null;

impl Sink for Null {
    fn take(&mut self, _chunk: Chunk<'_>) {}

    fn finish(self: Box<Self>) -> SinkReport {
        SinkReport::default()
    }
}

/// One file. After a failed write the stream continues, and unwritten data is counted.
struct Output {
    path: PathBuf,
    run: Run,
    writer: Option<Writer>,
    written: u64,
    unwritten: u64,
    error: Option<String>,
    /// Length of a frame, and gaps file, for a channel.
    frame_length: Option<usize>,
    gaps: Option<GapsFile>,
}

impl Output {
    fn create(path: &Path, files: &Files) -> Result<Output, SinkError> {
        let options = WriterOptions {
            over: Some(files.run.clone()),
            durability: files.durability,
            ..WriterOptions::default()
        };
        let writer = Writer::on(claim(path, files)?, path, options);
        let writer = writer.map_err(|source| SinkError::Write {
            path: path.to_owned(),
            source,
        })?;
        Ok(Output {
            path: path.to_path_buf(),
            run: files.run.clone(),
            writer: Some(writer),
            written: 0,
            unwritten: 0,
            error: None,
            frame_length: None,
            gaps: None,
        })
    }

    /// Creates the file of a channel, and its gaps file.
    fn of_channel(path: &Path, files: &Files, made: &Made<'_>) -> Result<Output, SinkError> {
        let gaps = GapsFile::create(path, files.force, made.frame_length, made.frame_rate)?;
        Ok(Output {
            frame_length: Some(made.frame_length),
            gaps: Some(gaps),
            ..Output::create(path, files)?
        })
    }

    /// Writes a frame of a channel, and lists what is missing in it. Returns an error if it does not fit the others, or if it cannot be
    /// listed; then no further gaps are.
    fn put(&mut self, made: &Made<'_>) -> Result<(), SinkError> {
        if let Some(length) = self.frame_length.filter(|it| *it != made.frame_length) {
            self.unwritten += made.frame.as_ref().map_or(0, |_| made.frame_length as u64);
            return Err(SinkError::Lengths {
                key: made.from,
                path: self.path.clone(),
                length,
                other: made.frame_length,
            });
        }
        if let Some((header, payload)) = &made.frame {
            self.write(&header.to_bytes()[..header.len()]);
            self.write(payload);
        }
        let listed = self.gaps.as_mut().map_or(Ok(()), |gaps| gaps.put(made));
        if listed.is_err() {
            self.gaps = None;
        }
        Ok(listed?)
    }

    fn write(&mut self, bytes: &[u8]) {
        let Some(writer) = &mut self.writer else {
            self.unwritten += bytes.len() as u64;
            return;
        };
        self.written += bytes.len() as u64;
        if let Err(error) = writer.write(bytes) {
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &WriteError) {
        let why = self.run.explain(error);
        self.run.say(format_args!(
            "{why}; receiving continues, and unwritten bytes are counted"
        ));
        self.unwritten += self.written.saturating_sub(error.written);
        self.written = error.written;
        self.error = Some(why);
        self.writer = None;
    }

    fn close(mut self, report: &mut SinkReport) {
        if let Some(writer) = self.writer.take() {
            match writer.finish() {
                Ok(bytes) => self.written = bytes,
                Err(error) => self.fail(&error),
            }
        }
        let mut gaps_file = None;
        match self.gaps.take().map(|gaps| gaps.finish(true)) {
            Some(Ok((path, _))) => gaps_file = Some(path),
            Some(Err(error)) => self.error = Some(self.run.explain(&error)),
            None => {}
        }
        report.unwritten_bytes += self.unwritten;
        report.write_error = report.write_error.take().or(self.error);
        report.files.push(Written {
            path: self.path,
            bytes: self.written,
            gaps_file,
        });
    }
}

impl Sink for Output {
    fn take(&mut self, chunk: Chunk<'_>) {
        self.write(chunk.bytes);
    }

    fn flush(&mut self) {
        if let Some(writer) = &mut self.writer
            && let Err(error) = writer.flush_older(HELD)
        {
            self.fail(&error);
        }
    }

    fn finish(self: Box<Self>) -> SinkReport {
        let mut report = SinkReport::default();
        self.close(&mut report);
        report
    }
}

/// One file per station, thread or channel.
struct Split {
    template: Template,
    files: Files,
    /// Outputs by station, thread and channel. `None` if the file could not be created.
    outputs: HashMap<Place, Option<Output>>,
    /// Bytes of frames that belong to no file.
    unsplit: u64,
    /// Threads whose frames do not belong to a file.
    refused: HashSet<StreamKey>,
    /// Error of creating a file, or of separating channels.
    error: Option<String>,
}

impl Split {
    fn new(template: &str, files: Files) -> Result<Split, SinkError> {
        Ok(Split {
            template: Template::new(template)?,
            files,
            outputs: HashMap::new(),
            unsplit: 0,
            refused: HashSet::new(),
            error: None,
        })
    }

    /// Returns the output of a thread or, with a frame of it, of a channel.
    fn output(&mut self, key: StreamKey, made: Option<&Made<'_>>) -> Option<&mut Output> {
        let channel = made.and_then(|made| made.channel);
        let place = self.template.place(key, channel);
        if !self.outputs.contains_key(&place) {
            if self.outputs.len() == MAX_FILES {
                return None;
            }
            let name = self.template.name(key, channel);
            let (path, files) = (Path::new(&name), &self.files);
            let output = match made {
                Some(made) => Output::of_channel(path, files, made),
                None => Output::create(path, files),
            };
            if let Err(error) = &output {
                self.fail(self.files.run.explain(error));
            }
            self.outputs.insert(place, output.ok());
        }
        self.outputs.get_mut(&place)?.as_mut()
    }

    fn fail(&mut self, why: String) {
        self.files.run.say(format_args!(
            "{why}; receiving continues, and unwritten bytes are counted"
        ));
        self.error = Some(why);
    }

    /// Reports once that a thread cannot be written.
    fn refuse(&mut self, key: StreamKey, why: String) {
        if self.refused.len() < MAX_FILES && self.refused.insert(key) {
            self.fail(why);
        }
    }

    /// Writes a frame of a channel.
    fn put(&mut self, made: &Made<'_>) {
        match self.output(made.from, Some(made)).map(|it| it.put(made)) {
            Some(Ok(())) => {}
            Some(Err(error @ SinkError::Lengths { .. })) => {
                self.refuse(made.from, self.files.run.explain(&error));
            }
            Some(Err(error)) => self.fail(self.files.run.explain(&error)),
            None if made.frame.is_some() => self.unsplit += made.frame_length as u64,
            None => {}
        }
    }

    fn report(self) -> SinkReport {
        let mut report = SinkReport {
            unwritten_bytes: self.unsplit,
            write_error: self.error,
            ..SinkReport::default()
        };
        let mut outputs: Vec<Output> = self.outputs.into_values().flatten().collect();
        outputs.sort_by(|a, b| a.path.cmp(&b.path));
        for output in outputs {
            output.close(&mut report);
        }
        report
    }
}

impl Sink for Split {
    fn take(&mut self, chunk: Chunk<'_>) {
        for frame in chunk.frames {
            let bytes = &chunk.bytes[frame.bytes.clone()];
            match frame.key.and_then(|key| self.output(key, None)) {
                Some(output) => output.write(bytes),
                None => self.unsplit += bytes.len() as u64,
            }
        }
        if chunk.frames.is_empty() {
            self.unsplit += chunk.bytes.len() as u64;
        }
    }

    fn flush(&mut self) {
        self.outputs.values_mut().flatten().for_each(Output::flush);
    }

    fn finish(self: Box<Self>) -> SinkReport {
        self.report()
    }
}

/// One file per channel.
struct Channels {
    split: Split,
    splitter: Splitter,
    /// Keys of the settings that have no effect on VDIF.
    ignored: Vec<&'static str>,
    /// Reason why the stream is not the described one.
    refused: Option<String>,
}

impl Sink for Channels {
    fn take(&mut self, chunk: Chunk<'_>) {
        let is_vdif = chunk.layout.is_some_and(|it| it.format == Format::Vdif);
        if is_vdif && !self.ignored.is_empty() {
            let keys = std::mem::take(&mut self.ignored).join(", ");
            self.split.files.run.warn(format_args!(
                "without effect after `#`, since the headers of VDIF describe the samples: {keys}"
            ));
        }
        let split = &mut self.split;
        let taken = self.splitter.take(chunk, 0, &mut |made| split.put(&made));
        let Err((key, error)) = taken else {
            return;
        };
        let why = refusal(key, &split.files.run.explain(&error));
        let is_other_stream = match &error {
            LaneError::NoChannel { .. } | LaneError::Year(_) => true,
            LaneError::Unknown(why) => why.is_lasting(),
            _ => false,
        };
        if is_other_stream && !self.splitter.has_lanes() {
            self.refused.get_or_insert(why);
            split.files.run.stop();
        } else {
            split.refuse(key, why);
        }
    }

    fn flush(&mut self) {
        self.split.flush();
    }

    fn finish(self: Box<Self>) -> SinkReport {
        let Channels {
            mut split,
            mut splitter,
            refused,
            ..
        } = *self;
        splitter.finish(&mut |made| split.put(&made));
        split.unsplit += splitter.left_out_bytes;
        SinkReport {
            refused,
            ..split.report()
        }
    }
}

fn refusal(key: StreamKey, why: &str) -> String {
    format!(
        "cannot split thread {} of station {}: {why}",
        key.thread, key.station
    )
}

/// Opens a file for this program alone, with a lock for as long as it is open. Empties an existing file only with `force`, and never while
/// another program holds it. Waits for the reader of a named pipe until the recording is over.
fn claim(path: &Path, files: &Files) -> Result<File, SinkError> {
    let cannot = |source| SinkError::Open {
        path: path.to_owned(),
        source,
    };
    let mut options = File::options();
    options.write(true);
    let (file, is_new) = match options.clone().create_new(true).open(path) {
        Ok(file) => (file, true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if path.metadata().is_ok_and(|file| file.file_type().is_fifo()) {
                return open_pipe(path, &files.run);
            }
            (options.open(path).map_err(cannot)?, false)
        }
        Err(error) => return Err(cannot(error)),
    };
    if !file.metadata().map_err(cannot)?.is_file() {
        return Ok(file);
    }
    // Another program may examine a new file for a moment.
    let mut looks = if is_new { POLLS } else { 1 };
    while matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
        looks -= 1;
        if looks == 0 {
            return Err(SinkError::Held(path.to_owned()));
        }
        files.run.clock().sleep(POLL_INTERVAL);
    }
    if !is_new {
        if !files.force {
            return Err(OutputError::Exists(path.to_owned()).into());
        }
        file.set_len(0).map_err(cannot)?;
    }
    Ok(file)
}

/// Opens a named pipe once it has a reader. A normal open would block until then, and could not be interrupted.
fn open_pipe(path: &Path, run: &Run) -> Result<File, SinkError> {
    let mut options = File::options();
    options.write(true);
    options.custom_flags(OFlag::O_NONBLOCK.bits());
    loop {
        let opened = options.open(path);
        let error = opened.as_ref().err().and_then(io::Error::raw_os_error);
        if error != Some(Errno::ENXIO as i32) {
            return opened.map_err(|source| SinkError::Open {
                path: path.to_owned(),
                source,
            });
        }
        if run.is_stopped() {
            return Err(SinkError::NoReader(path.to_owned()));
        }
        run.clock().sleep(POLL_INTERVAL);
    }
}

/// Checks the files to record to (`to` may be a template). Returns whether a killed receiver left one of them.
///
/// # Errors
/// Returns an error if another program holds one of them.
pub(crate) fn is_left_unfinished(to: &str) -> Result<bool, SinkError> {
    let Some(recording) = recording(to) else {
        return Ok(false);
    };
    let files = those_of(to);
    for path in &files {
        if let Ok(file) = File::options().write(true).open(path)
            && matches!(file.try_lock(), Err(TryLockError::WouldBlock))
        {
            return Err(SinkError::Held(path.clone()));
        }
    }
    let text = std::fs::read(result_beside(&recording)).unwrap_or_default();
    let result: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    Ok(!files.is_empty() && result["finished"] == false)
}

/// Returns the existing files that a template may name.
pub(crate) fn those_of(template: &str) -> Vec<PathBuf> {
    let mut paths = vec![PathBuf::new()];
    for part in Path::new(template) {
        let Some((begin, rest)) = part.to_str().and_then(|part| part.split_once('{')) else {
            paths.iter_mut().for_each(|path| path.push(part));
            continue;
        };
        let end = rest.rsplit('}').next().unwrap_or_default();
        let inside = |folder: &PathBuf| {
            let folder = match folder.as_os_str().is_empty() {
                true => Path::new("."),
                false => folder,
            };
            std::fs::read_dir(folder).into_iter().flatten().flatten()
        };
        let all = paths.iter().flat_map(inside);
        let like = all.filter(|entry| {
            let name = entry.file_name();
            name.to_str()
                .is_some_and(|name| name.starts_with(begin) && name.ends_with(end))
        });
        paths = like.map(|entry| entry.path()).collect();
    }
    paths.retain(|path| path.is_file());
    paths
}

/// A sink that verifies the test pattern.
#[derive(Default)]
struct Check {
    /// Payloads of one period; empty until their length is known.
    expected: Vec<Vec<u8>>,
    report: CheckReport,
}

impl Sink for Check {
    fn take(&mut self, chunk: Chunk<'_>) {
        for frame in chunk.frames {
            self.verify(frame, &chunk.bytes[frame.bytes.clone()]);
        }
    }

    fn finish(self: Box<Self>) -> SinkReport {
        SinkReport {
            check: Some(self.report),
            ..SinkReport::default()
        }
    }
}

impl Check {
    fn verify(&mut self, frame: &Frame, bytes: &[u8]) {
        if matches!(frame.state, FrameState::Lost | FrameState::Partial) {
            self.report.not_checked += 1;
            return;
        }
        let good = Header::parse(bytes).is_ok_and(|header| {
            header.key().station == pattern::STATION
                && bytes.get(HEADER_LEN..).is_some_and(|payload| {
                    self.expected(header.frame_number(), payload.len()) == payload
                })
        });
        let counter = match good {
            true => &mut self.report.good,
            false => &mut self.report.corrupted,
        };
        *counter += 1;
    }

    fn expected(&mut self, number: u32, length: usize) -> &[u8] {
        let first = self.expected.first();
        if first.is_none_or(|payload| payload.len() != length) {
            let payloads = (0..pattern::PERIOD).map(|number| {
                let mut payload = vec![0; length];
                pattern::payload(number, &mut payload);
                payload
            });
            self.expected = payloads.collect();
        }
        &self.expected[(number % pattern::PERIOD) as usize]
    }
}

#[cfg(test)]
mod instructions;
