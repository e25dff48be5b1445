//! Reads a recording for the correlator: frame by frame into a track, with the gaps of its gaps file.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use evlbi_core::deframe::{Chunk, Deframer, Frame, FrameState};
use evlbi_fx::track::{Counts, Slab, Track, Trust};
use evlbi_fx::unpack::Recorded;
use evlbi_stream::gaps::{self, GapsError};
use evlbi_stream::recording::{self, Blocks, Recording, Rest};
use evlbi_stream::samples::{Samples, SamplesError};
use evlbi_stream::selection::{Selection, SelectionError};
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::validity::{Gaps, TimeGap};
use evlbi_wire::vdif::{StationId, StreamKey};
use serde::{Deserialize, Serialize};

use super::arrived::arrived;
use super::files::{FileError, whole};
use super::options::Flag;
use super::run::Station;
use super::shape::Shape;
use super::tamper::{Tamper, Tampered};
use super::{Cause, CorrelateError};
use evlbi_wire::units::show_count;

/// Number of frames at or after the end of a range that show that the range is complete: frames may be out of order by about as many.
const MARGIN: usize = 8;
/// Maximum number of bytes in which the first frame of a station is searched for: as many as show which stations there are.
const MAX_SEARCHED: u64 = 256 << 20;
/// Bytes after which a recording is certainly read for a range, beyond the frames that show that it is complete.
const BLOCK: u64 = 1 << 20;

/// Reasons why a recording cannot be correlated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// Reading the recording failed.
    #[error("{0}")]
    Read(#[source] Cause),
    /// The recording is not suitable; the text is the reason, with the path.
    #[error("{0}")]
    Unfit(String),
    /// The settings of the recording are not valid.
    #[error("in {input}")]
    Selection {
        /// Path and settings.
        input: String,
        /// Reason.
        source: SelectionError,
    },
    /// The samples are unknown, or the selected ones are not there.
    #[error("cannot decode {}", path.display())]
    Samples {
        /// Path of the recording.
        path: PathBuf,
        /// Reason.
        source: SamplesError,
    },
    /// A part of the recording is damaged; the rest was read.
    #[error("{path}: {damage}")]
    Damaged {
        /// Path of the recording, and its settings.
        path: String,
        /// The damage.
        damage: RecordingDamage,
    },
    /// The gaps file cannot be used.
    #[error("{0}")]
    Gaps(#[from] GapsError),
    /// A copy of these bytes of a recording does not show that it contains all samples of a part of a correlation.
    #[error("its bytes {} to {} may not contain all samples of the part", .0.start, .0.end)]
    Short(Range<u64>),
}

/// Damage of a recording, as far as it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct RecordingDamage {
    /// Frames with a damaged header. The first ones of a row are used as the next frames of the stream.
    pub odd_headers: u64,
    /// Bytes between frames: bytes were lost or inserted there.
    pub unframed_bytes: u64,
    /// Frames of other stations, or with other bits, channels or lengths than the first one.
    pub other_frames: u64,
    /// Offset in the file of the first of these.
    pub first_byte: Option<u64>,
    /// Bytes after the last whole frame.
    pub truncated_bytes: u64,
    /// Offset in the file of these bytes.
    pub truncated_byte: Option<u64>,
    /// Part of another format after all frames that were read.
    pub rest: Option<Rest>,
}

impl RecordingDamage {
    /// Counts what is wrong with a piece of the recording, which begins at this offset.
    fn see(&mut self, chunk: &Chunk<'_>, begin: u64) {
        if chunk.frames.is_empty() {
            self.unframed_bytes += chunk.bytes.len() as u64;
            self.first_byte.get_or_insert(begin);
        }
        let odd = |frame: &&Frame| frame.state == FrameState::Odd;
        for frame in chunk.frames.iter().filter(odd) {
            self.odd_headers += 1;
            self.first_byte
                .get_or_insert(begin + frame.bytes.start as u64);
        }
    }
}

impl fmt::Display for RecordingDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = [
            (self.odd_headers, "frames with a damaged header"),
            (self.unframed_bytes, "bytes between frames"),
            (self.other_frames, "frames of other stations or shapes"),
        ];
        let found = found.into_iter().filter(|(count, _)| *count > 0);
        let found = found.map(|(count, what)| format!("{} {what}", show_count(count)));
        let mut all = found.collect::<Vec<String>>();
        if let Some(byte) = self.first_byte {
            all = vec![format!("{}, from byte {byte} on", all.join(", "))];
        }
        if let Some(byte) = self.truncated_byte {
            let bytes = show_count(self.truncated_bytes);
            all.push(format!(
                "the last frame is truncated to {bytes} bytes at byte {byte}"
            ));
        }
        all.extend(self.rest.map(|rest| format!("{rest}, which are not used")));
        f.write_str(&all.join("; "))
    }
}

/// The recording of one station.
pub struct StationFile {
    recording: Recording,
    /// Header of an undamaged frame.
    header: Vec<u8>,
    shape: Shape,
    trust: Trust,
    gaps: Option<Gaps>,
}

/// Description of a station's recording, with which it can be read where it cannot be inspected.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StationDocument {
    recording: Recording,
    /// Header of an undamaged frame.
    header: Vec<u8>,
    /// Station in it.
    station: StationId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gaps: Option<Gaps>,
}

/// Bytes of a recording, for a reader of a part of it.
pub struct Window<'a> {
    /// Path of a file with these bytes; `None` for the recording.
    pub copy: Option<&'a Path>,
    /// Their range.
    pub bytes: Range<u64>,
}

impl StationFile {
    /// Opens the recording that `input` names, with its settings, and the gaps file next to it, at this second (UTC since 1970). The rate
    /// is `sample_rate` if given, otherwise it is detected.
    pub fn open(
        input: &str,
        sample_rate: Option<u64>,
        trust: Trust,
        second: i64,
    ) -> Result<StationFile, RecordingError> {
        let split = Selection::split(input).map_err(|source| RecordingError::Selection {
            input: input.to_owned(),
            source,
        });
        let (path, selection) = split?;
        let path = Path::new(&path);
        let unfit = |source| RecordingError::Samples {
            path: path.to_owned(),
            source,
        };
        let recording = Recording::open(path, &selection, None, second);
        let mut recording = recording.map_err(|error| match error {
            recording::RecordingError::NotThere { source, .. } => unfit(source),
            other => RecordingError::Read(other.into()),
        })?;
        if recording.layout.is_none() {
            return Err(unfit(SamplesError::Raw));
        }
        let first = first_frame(&recording, &selection)?;
        let first = first.ok_or_else(|| unfit(SamplesError::Header))?;
        recording.first = recording.first.or(Some(first.time));
        let document = StationDocument {
            recording,
            header: first.header,
            station: first.key.station,
            gaps: None,
        };
        let mut file = StationFile::with(document, selection, sample_rate, trust)?;
        if trust == Trust::Exact {
            file.gaps = gaps::read_beside(path, file.recording.frame_rate, &file.shape.frames)?;
        }
        Ok(file)
    }

    /// Returns the file that a document describes. `input` are its settings, and `sample_rate` its rate if it was given.
    pub fn of(
        document: StationDocument,
        input: &str,
        sample_rate: Option<u64>,
        trust: Trust,
    ) -> Result<StationFile, RecordingError> {
        let split = Selection::split(input).map_err(|source| RecordingError::Selection {
            input: input.to_owned(),
            source,
        });
        StationFile::with(document, split?.1, sample_rate, trust)
    }

    /// Returns a description of the file, by its whole path.
    pub fn document(&self) -> Result<StationDocument, FileError> {
        let mut recording = self.recording.clone();
        recording.path = whole(&recording.path)?;
        Ok(StationDocument {
            recording,
            header: self.header.clone(),
            station: self.shape.station,
            gaps: self.gaps.clone(),
        })
    }

    fn with(
        document: StationDocument,
        selection: Selection,
        sample_rate: Option<u64>,
        trust: Trust,
    ) -> Result<StationFile, RecordingError> {
        let StationDocument {
            mut recording,
            header,
            station,
            gaps,
        } = document;
        let path = recording.path.clone();
        let unfit = |source| RecordingError::Samples { path, source };
        let known = recording
            .layout
            .ok_or(SamplesError::Raw)
            .and_then(|frames| {
                let first = recording.first.ok_or(SamplesError::Header)?;
                let rate = recording.frame_rate;
                let samples = Samples::of(&selection, &frames, &header, rate, sample_rate)?;
                Ok((frames, first, samples))
            });
        let (frames, first, samples) = known.map_err(unfit)?;
        recording.frame_rate = Some(samples.unpacker.layout().frame_rate);
        let ours = recording.keys.iter().filter(|key| key.station == station);
        let mut threads: Vec<u16> = ours.map(|key| key.thread).collect();
        threads.sort_unstable();
        if !selection.threads.is_empty() {
            threads.clone_from(&selection.threads);
        }
        let file = StationFile {
            recording,
            header,
            shape: Shape {
                samples,
                frames,
                threads,
                station,
                first_second: first.second,
                selected: selection.part(),
                selection,
            },
            trust,
            gaps,
        };
        // They must show its time span.
        file.samples(first.second).map(|_| file)
    }

    /// Returns the length of its frames, in bytes.
    pub fn frame_length(&self) -> usize {
        self.recording.frame_length.unwrap_or(0)
    }

    /// Returns the format of its data.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the samples from the first to the last, counted from the UTC second `epoch`.
    pub fn samples(&self, epoch: i64) -> Result<Range<i64>, RecordingError> {
        let number = |time: Option<FrameTime>| {
            Some(frame_number(time?, epoch, self.shape.layout().frame_rate))
        };
        let (first, last) = (number(self.recording.first), number(self.recording.last));
        let samples = self.shape.layout().frame_samples();
        match (first, last) {
            (Some(first), Some(last)) if last >= first => Ok(first * samples..(last + 1) * samples),
            _ => Err(RecordingError::Unfit(format!(
                "the first and last frames of {} do not show its time span",
                self.recording.path.display()
            ))),
        }
    }

    /// Returns the path of the recording.
    pub fn path(&self) -> &Path {
        &self.recording.path
    }

    /// Returns the end of its frames, in bytes.
    pub fn end(&self) -> u64 {
        self.recording.end()
    }

    /// Returns the length of the recording, in bytes.
    pub fn size(&self) -> u64 {
        self.recording.size
    }

    /// Returns the offset from which a sample, counted from the UTC second `epoch`, is read: frames can be out of order by a second.
    pub fn offset_of(&self, sample: i64, epoch: i64) -> Result<u64, RecordingError> {
        let rate = self.shape.layout().frame_rate;
        let offset = self
            .recording
            .offset_of(self.time_of(sample, epoch), u64::from(rate.get()));
        let offset = offset.map_err(|error| RecordingError::Read(error.into()))?;
        Ok(offset.unwrap_or(0))
    }

    /// Returns an offset behind the frames that are read for the samples before `sample`, if none are missing for more than a second.
    pub fn end_of(&self, sample: i64, epoch: i64) -> Result<u64, RecordingError> {
        let rate = self.shape.layout().sample_rate();
        let end = self.recording.end();
        // Blocks are read whole, and a second more shows that a range is complete.
        let time = self.time_of(sample.saturating_add(rate), epoch);
        let offset = self.recording.offset_of(time, 0);
        let offset = offset.map_err(|error| RecordingError::Read(error.into()))?;
        Ok(offset.map_or(end, |offset| {
            let block = offset.div_ceil(BLOCK).saturating_add(2);
            block.saturating_mul(BLOCK).min(end)
        }))
    }

    fn time_of(&self, sample: i64, epoch: i64) -> FrameTime {
        let layout = self.shape.layout();
        let (samples, rate) = (layout.frame_samples(), layout.frame_rate);
        let frames = epoch.saturating_mul(i64::from(rate.get()));
        FrameTime::from_index(sample.div_euclid(samples).saturating_add(frames), rate)
    }

    /// Starts to read before the sample `from`, or at the start of `window`. `tamper` damages the frames, from the start of the file;
    /// `flags` count from the UTC second `since`.
    pub fn read<'a>(
        &self,
        epoch: i64,
        (from, window): (i64, Option<&Window<'_>>),
        tamper: Option<Tamper>,
        flags: impl IntoIterator<Item = &'a Flag>,
        since: i64,
    ) -> Result<StationReader, RecordingError> {
        let (layout, threads) = (self.shape.layout(), &self.shape.threads);
        let unpacker = &self.shape.samples.unpacker;
        let mut track = Track::new(unpacker, threads, self.trust);
        let (samples, frame_rate) = (layout.frame_samples(), layout.frame_rate);
        let there = self.samples(epoch)?;
        let there = there.start / samples..there.end / samples;
        let ours = |gap: &&TimeGap| gap.key.station == self.shape.station;
        for gap in self.gaps.iter().flat_map(|gaps| &gaps.time).filter(ours) {
            let begin = frame_number(gap.start, epoch, frame_rate);
            // The part of the range that the recording covers.
            let first = begin.max(there.start);
            let end = begin.saturating_add_unsigned(gap.frames).min(there.end);
            match &gap.bytes {
                None => track.flag(gap.key.thread, first * samples..end * samples),
                Some(bytes) => {
                    let part = unpacker.samples_of(bytes.clone());
                    for frame in first..end {
                        let at = frame * samples;
                        track.flag(gap.key.thread, at + part.start..at + part.end);
                    }
                }
            }
        }
        let rate = layout.sample_rate() as f64;
        for flag in flags {
            let of = |seconds: f64| (((since - epoch) as f64 + seconds) * rate).round() as i64;
            for thread in threads {
                track.flag(*thread, of(flag.seconds.start)..of(flag.seconds.end));
            }
        }
        let offset = match (&tamper, window) {
            (Some(_), _) => 0,
            (None, Some(window)) => window.bytes.start,
            (None, None) => self.offset_of(from, epoch)?,
        };
        let end = window.map_or(self.recording.end(), |window| window.bytes.end);
        let blocks = match window.and_then(|window| window.copy) {
            Some(copy) => {
                let copy = recording::open(copy);
                copy.map(|copy| Blocks::at(copy, offset, end))
            }
            None => Blocks::from(open(&self.recording)?, offset, end),
        };
        Ok(StationReader {
            blocks: blocks.map_err(|error| RecordingError::Read(error.into()))?,
            before: Counts::default(),
            window: window.map(|window| window.bytes.clone()),
            deframer: self.recording.deframer(Some(frame_rate)),
            feeder: Feeder {
                track,
                tamper,
                epoch,
                shape: self.shape.clone(),
                taken: 0,
                damage: RecordingDamage::default(),
            },
            end: self.recording.end(),
            rest: self.recording.rest,
            ended: false,
        })
    }
}

/// A recording that is being read.
pub struct StationReader {
    blocks: Blocks,
    deframer: Deframer,
    feeder: Feeder,
    /// Counts of the frames that another part of a correlation counts.
    before: Counts,
    /// Range of the bytes that can be read; `None` for all.
    window: Option<Range<u64>>,
    /// End of the frames of the recording, in bytes, and what follows.
    end: u64,
    rest: Option<Rest>,
    ended: bool,
}

/// The sink that passes frames to the track.
struct Feeder {
    track: Track,
    tamper: Option<Tamper>,
    epoch: i64,
    shape: Shape,
    /// Bytes that were taken.
    taken: u64,
    /// It counts bytes from the first one taken.
    damage: RecordingDamage,
}

impl StationReader {
    /// Returns the effect of tampering on the frames.
    pub fn tampered(&self) -> Option<Tampered> {
        self.feeder.tamper.as_ref().map(Tamper::done)
    }

    /// Reads the samples before those of a part of a correlation that begins at `first`, as they were read before the part if all of it
    /// was correlated. What they contain does not count.
    pub fn begin_behind(&mut self, range: Range<i64>, first: i64) -> Result<(), CorrelateError> {
        self.feeder.track.forget(first);
        self.slab(range)?;
        self.before = self.feeder.track.counts();
        self.feeder.damage = RecordingDamage::default();
        Ok(())
    }

    /// Returns the damage in what was read so far; `None` if there is none.
    pub fn damage(&self) -> Option<RecordingDamage> {
        let mut damage = self.feeder.damage;
        let leading = self.blocks.leading()?;
        damage.first_byte = damage.first_byte.map(|byte| leading + byte);
        let is_all = self
            .window
            .as_ref()
            .is_none_or(|window| window.end >= self.end);
        if self.ended && is_all {
            damage.rest = self.rest;
            let last = leading + self.feeder.taken;
            damage.truncated_bytes = self.end.saturating_sub(last);
            damage.truncated_byte = (damage.truncated_bytes > 0).then_some(last);
        }
        (damage != RecordingDamage::default()).then_some(damage)
    }
}

impl Station for StationReader {
    fn slab(&mut self, range: Range<i64>) -> Result<Slab, CorrelateError> {
        self.feeder.track.forget(range.start);
        while !self.ended && !self.feeder.track.has_come_to(range.end, MARGIN) {
            let take = |chunk: Chunk<'_>| self.feeder.take(chunk);
            let stepped = self.blocks.step(&mut self.deframer, take);
            self.ended = !stepped.map_err(|error| RecordingError::Read(error.into()))?;
        }
        if let Some(window) = &self.window
            && self.ended
            && window.end < self.end
            && !self.feeder.track.has_come_to(range.end, MARGIN)
        {
            return Err(RecordingError::Short(window.clone()).into());
        }
        Ok(self.feeder.track.slab(range))
    }

    fn counts(&self) -> Counts {
        let (counts, before) = (self.feeder.track.counts(), self.before);
        Counts {
            frames: counts.frames - before.frames,
            late: counts.late - before.late,
            duplicates: counts.duplicates - before.duplicates,
            foreign: counts.foreign - before.foreign + self.feeder.damage.other_frames,
        }
    }
}

impl Feeder {
    fn take(&mut self, chunk: Chunk<'_>) {
        let begin = self.taken;
        self.taken += chunk.bytes.len() as u64;
        self.damage.see(&chunk, begin);
        for frame in arrived(chunk) {
            if self.shape.leaves_out(&frame) {
                continue;
            }
            if !self.shape.owns(&frame) {
                self.damage.other_frames += 1;
                let byte = begin + frame.begin as u64;
                self.damage.first_byte.get_or_insert(byte);
                continue;
            }
            let number = frame_number(frame.time, self.epoch, self.shape.layout().frame_rate);
            let track = &mut self.track;
            let mut push = |invalid: bool, samples: Recorded<'_>| {
                track.push(frame.key.thread, number, invalid, samples);
            };
            match &mut self.tamper {
                Some(tamper) => tamper.take(&frame, &mut push),
                None => push(frame.invalid, frame.samples.clone()),
            }
        }
    }
}

/// Returns the number of a frame since the UTC second `epoch`.
pub fn frame_number(time: FrameTime, epoch: i64, rate: FrameRate) -> i64 {
    let second = time.second.saturating_sub(epoch);
    let frames = second.saturating_mul(i64::from(rate.get()));
    frames.saturating_add(i64::from(time.frame))
}

/// Opens the file of a recording.
fn open(recording: &Recording) -> Result<File, RecordingError> {
    let file = recording::open(&recording.path);
    file.map_err(|error| RecordingError::Read(error.into()))
}

/// An undamaged frame.
struct FirstFrame {
    key: StreamKey,
    time: FrameTime,
    header: Vec<u8>,
}

/// Returns the first undamaged frame of what is selected; one that is not marked invalid if there is one, as headers of others may be
/// wrong.
fn first_frame(
    recording: &Recording,
    selection: &Selection,
) -> Result<Option<FirstFrame>, RecordingError> {
    let selected = selection.part();
    let mut blocks = Blocks::new(open(recording)?, recording.end().min(MAX_SEARCHED));
    let mut deframer = recording.deframer(recording.frame_rate);
    let (mut valid, mut invalid) = (None, None);
    let mut is_over = false;
    while valid.is_none() && !is_over {
        let stepped = blocks.step(&mut deframer, |chunk| {
            let ours =
                arrived(chunk).filter(|frame| !frame.is_odd && selected.has(Some(frame.key)));
            for frame in ours {
                let place = if frame.invalid {
                    &mut invalid
                } else {
                    &mut valid
                };
                place.get_or_insert_with(|| FirstFrame {
                    key: frame.key,
                    time: frame.time,
                    header: frame.header.to_vec(),
                });
            }
        });
        is_over = !stepped.map_err(|error| RecordingError::Read(error.into()))?;
    }
    Ok(valid.or(invalid))
}
