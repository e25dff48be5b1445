//! Correlates a part of a plan: on any host, at any time, as often as wanted.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evlbi_core::time::Nanos;
use evlbi_fx::simd::Simd;
use evlbi_net::host;
use evlbi_net::run::Run;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::error::ChunkError;
use super::stage::{Stage, Staged};
use super::{ChunkPlan, Ends, PartPlan, RecordingPlan};
use crate::CorrelateError;
use crate::files::{FileError, make_directory};
use crate::options::CorrelateOptions;
use crate::plan::Placed;
use crate::prepare::{Prepared, Read};
use crate::run;
use crate::station::{RecordingError, StationFile, Window};
use crate::sums;

/// Name and version of the completion mark of a part.
const SCHEMA: &str = "evlbi.part/1";
/// Name of the plan in the directory of its parts.
pub const PLAN: &str = "plan.chunks.json";
/// Minimum number of bytes that are fetched in addition if those of the plan do not suffice.
const MORE: u64 = 64 << 20;

/// Options of a part.
#[derive(Clone, Debug, Default)]
pub struct PartOptions {
    /// Number of correlating threads; `None` for that of the plan.
    pub threads: Option<u16>,
    /// Vector instructions instead of those of the plan.
    pub simd: Option<Simd>,
    /// Command that fetches the bytes of recordings; without it, their paths must be reachable.
    pub stage: Option<Stage>,
}

/// A complete part: its completion mark.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PartDone {
    schema: String,
    /// Plan of the part.
    pub plan_id: String,
    /// Number of the part, from 1.
    pub part: usize,
    /// Number of all parts.
    pub parts: usize,
    /// Version of the program that correlated it.
    pub version: String,
    /// Vector instructions with which it was correlated.
    pub simd: Simd,
    /// Digits that show how the C library and the CPU calculated sines and cosines.
    pub sines: String,
    /// Host that correlated it.
    pub host: String,
    /// Length of the correlated time, in seconds.
    pub seconds: f64,
    /// Bytes of recordings that were read.
    pub read_bytes: u64,
    /// Time that it took, in seconds.
    pub elapsed_s: f64,
    /// Time of all CPUs, in seconds.
    pub cpu_s: f64,
    /// Maximum memory of the program, in bytes; `None` if it was not measured.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memory_bytes: Option<u64>,
    /// Length of the sums, in bytes.
    pub bytes: u64,
    /// SHA-256 of the sums.
    pub sha256: String,
    /// Whether the part was there before.
    #[serde(skip_deserializing)]
    pub was_there: bool,
}

impl PartDone {
    /// Returns the name of its files, without their endings. Results that differ have different names.
    fn name(&self) -> String {
        let digits = self.sha256.get(..12).unwrap_or_default();
        format!("part-{:05}-{digits}", self.part)
    }

    /// Returns the path of its sums.
    pub fn sums_in(&self, directory: &Path) -> PathBuf {
        directory.join(self.name() + ".evs")
    }

    /// Returns the path of its completion mark.
    pub(crate) fn mark_in(&self, directory: &Path) -> PathBuf {
        directory.join(self.name() + ".json")
    }

    /// Returns whether its sums are there, with their length.
    pub fn has_sums(&self, directory: &Path) -> bool {
        fs::metadata(self.sums_in(directory)).is_ok_and(|file| file.len() == self.bytes)
    }

    /// Returns what decides the last digits: vector instructions, sines and cosines.
    pub fn kind(&self) -> (Simd, &str) {
        (self.simd, &self.sines)
    }

    /// Checks that its sums are what its host wrote.
    pub fn check(&self, directory: &Path) -> Result<(), ChunkError> {
        let path = self.sums_in(directory);
        let damaged = |why: String| ChunkError::Damaged {
            part: self.part,
            host: self.host.clone(),
            path: path.clone(),
            why,
        };
        let length = match fs::metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(damaged("does not exist".to_owned()));
            }
            Err(error) => return Err(FileError::at("cannot read", &path)(error).into()),
        };
        if length != self.bytes {
            return Err(damaged(format!("has {length} of {} bytes", self.bytes)));
        }
        let mut hashed = Hashed::new(io::sink());
        File::open(&path)
            .and_then(|mut file| io::copy(&mut file, &mut hashed))
            .map_err(FileError::at("cannot read", &path))?;
        match sums::hex(&hashed.hash.finalize()) == self.sha256 {
            true => Ok(()),
            false => Err(damaged("has other content than was written".to_owned())),
        }
    }
}

/// Returns the complete parts of a plan in a directory, in order. Those of other plans are not among them.
pub fn parts_in(directory: &Path, plan: &ChunkPlan) -> Result<Vec<PartDone>, ChunkError> {
    let mut parts = read_marks(directory, plan, &BTreeSet::new())?;
    parts.sort_by(|a, b| (a.part, &a.sha256).cmp(&(b.part, &b.sha256)));
    Ok(parts)
}

/// Reads the completion marks of a plan in a directory, but for those with these paths.
pub fn read_marks(
    directory: &Path,
    plan: &ChunkPlan,
    known: &BTreeSet<PathBuf>,
) -> Result<Vec<PartDone>, ChunkError> {
    use io::ErrorKind::{IsADirectory, NotFound};
    let cannot = || FileError::at("cannot read", directory);
    let mut parts: Vec<PartDone> = Vec::new();
    for entry in fs::read_dir(directory).map_err(cannot())? {
        let path = entry.map_err(cannot())?.path();
        let name = path.file_name().unwrap_or_default();
        if !name.as_bytes().starts_with(b"part-")
            || !name.as_bytes().ends_with(b".json")
            || known.contains(&path)
        {
            continue;
        }
        let text = match fs::read(&path) {
            // It was removed since, or is a directory.
            Err(error) if matches!(error.kind(), NotFound | IsADirectory) => continue,
            text => text.map_err(FileError::at("cannot read", &path))?,
        };
        // One that cannot be parsed is not complete.
        let part = serde_json::from_slice(&text).ok();
        parts.extend(part.filter(|part: &PartDone| {
            part.schema == SCHEMA
                && part.plan_id == plan.plan_id
                && plan.part(part.part).is_ok()
                && part.mark_in(directory) == path
        }));
    }
    Ok(parts)
}

/// Correlates a part of a plan into a directory, unless the directory has it.
///
/// # Errors
/// Returns an error if the recordings, the program or the directory are not those of the plan, or the part cannot be correlated or
/// written.
pub fn correlate_part(
    plan: &ChunkPlan,
    number: usize,
    directory: &Path,
    options: &PartOptions,
    run: &Run,
) -> Result<PartDone, ChunkError> {
    let part = plan.part(number)?;
    plan.check_version()?;
    let has_plan = check_plan(plan, directory)?;
    let simd = options.simd.unwrap_or(plan.simd);
    let sines = sines();
    let there = parts_in(directory, plan)?.into_iter();
    let mut damaged = Vec::new();
    for done in there.filter(|done| done.part == number && done.kind() == (simd, sines.as_str())) {
        match done.check(directory) {
            Ok(()) => {
                return Ok(PartDone {
                    was_there: true,
                    ..done
                });
            }
            // It is written again.
            Err(error) => run.warn(format_args!("{}", run.explain(&error))),
        }
        damaged.push(done);
    }
    plan.check_texts()?;
    let (begun, busy) = (run.clock().now(), evlbi_net::cpu::process_time());
    let planned = u16::try_from(plan.threads).unwrap_or(u16::MAX);
    let correlate = CorrelateOptions {
        simd: Some(simd),
        threads: Some(options.threads.unwrap_or(planned)),
        ..plan.options.clone()
    };
    let recordings = plan.recordings(&correlate)?;
    let prepared = Prepared::new(&recordings, &correlate, run)?;
    let stations: Vec<_> = (prepared.files().iter().copied())
        .zip(prepared.shapes())
        .filter_map(|(file, (place, _)): (&StationFile, &Placed<'_>)| {
            Some((file, plan.recording(*place)?))
        })
        .collect();
    if part.ranges.len() != prepared.files().len() {
        return Err(ChunkError::Contradicts(directory.join(PLAN)));
    }
    if options.stage.is_none() {
        for (file, recording) in &stations {
            check_same(file, &recording.ends)?;
        }
    }
    if !has_plan {
        put_plan(plan, directory)?;
    }
    let mut ranges = part.ranges.clone();
    let (temporary, bytes, sha256) = loop {
        let staged = options.stage.as_ref();
        let staged = staged
            .map(|stage| stage.fetch(&stations, &ranges, run))
            .transpose()?;
        let windows = windows(&stations, &ranges, staged.as_ref());
        match write(
            (plan, part),
            &prepared,
            &correlate,
            &windows,
            directory,
            run,
        ) {
            // More bytes show where there are data again.
            Err(ChunkError::Correlate(CorrelateError::Recording(RecordingError::Short(_)))) => {
                for ((file, _), range) in stations.iter().zip(&mut ranges) {
                    let length = (range.end - range.start).max(MORE);
                    range.end = range.end.saturating_add(length).min(file.end());
                }
            }
            written => break written?,
        }
    };
    let done = PartDone {
        schema: SCHEMA.to_owned(),
        plan_id: plan.plan_id.clone(),
        part: number,
        parts: plan.parts.len(),
        version: plan.version.clone(),
        simd,
        sines,
        host: host::name(),
        seconds: part.seconds,
        read_bytes: ranges.iter().map(|range| range.end - range.start).sum(),
        elapsed_s: seconds(begun, run.clock().now()),
        cpu_s: seconds(busy, evlbi_net::cpu::process_time()),
        memory_bytes: peak_memory(),
        bytes,
        sha256,
        was_there: false,
    };
    let path = done.sums_in(directory);
    let named = temporary.persist(&path);
    named.map_err(|error| FileError::at("cannot write", &path)(error.error))?;
    sync(directory)?;
    write_synced(directory, &done.mark_in(directory), &done)?;
    for old in damaged.iter().filter(|old| old.sha256 != done.sha256) {
        for path in [old.mark_in(directory), old.sums_in(directory)] {
            let _ = fs::remove_file(path);
        }
    }
    Ok(done)
}

/// Returns where the bytes of each station are read: in files of their own, or from there on in the recordings.
fn windows<'s>(
    stations: &[(&StationFile, &RecordingPlan)],
    ranges: &[Range<u64>],
    staged: Option<&'s Staged>,
) -> Vec<Window<'s>> {
    let places = stations.iter().zip(ranges).enumerate();
    let windows = places.map(|(place, ((file, _), range))| match staged {
        Some(staged) => Window {
            copy: Some(&staged.files[place]),
            bytes: range.clone(),
        },
        None => Window {
            copy: None,
            bytes: range.start..file.end(),
        },
    });
    windows.collect()
}

/// Returns digits that show how the C library and the CPU calculate sines and cosines.
fn sines() -> String {
    let mut hash = Sha256::new();
    for number in 0..1 << 16 {
        let (sine, cosine) = (f64::from(number) * 1.37e-4).sin_cos();
        hash.update(sine.to_le_bytes());
        hash.update(cosine.to_le_bytes());
    }
    sums::hex(&hash.finalize()[..6])
}

/// Checks that a recording is the one with these ends.
fn check_same(file: &StationFile, ends: &Ends) -> Result<(), ChunkError> {
    let path = file.path();
    let metadata = fs::metadata(path).map_err(FileError::at("cannot read", path))?;
    if metadata.len() != file.size() {
        let what = format!("it has {} bytes instead of {}", metadata.len(), file.size());
        let path = path.to_owned();
        return Err(ChunkError::Changed { path, what });
    }
    ends.check(path, &Ends::of(file)?)
}

/// Correlates a part, and writes its sums into a file that has no name yet; returns it, its length and its SHA-256.
fn write(
    (plan, part): (&ChunkPlan, &PartPlan),
    prepared: &Prepared<'_>,
    options: &CorrelateOptions,
    windows: &[Window<'_>],
    directory: &Path,
    run: &Run,
) -> Result<(NamedTempFile, u64, String), ChunkError> {
    let job = &prepared.job;
    let first = prepared.first_samples(job.range.start)?;
    let before = prepared.samples_before(part.dumps.start)?;
    let setup = Arc::new(job.setup.only(&part.inputs(&job.setup)));
    let mut readers = prepared.readers(options, part.dumps.start, Some(windows), &mut ())?;
    for (place, before) in before.into_iter().flatten().enumerate() {
        readers[place].begin_behind(before, first[place].start)?;
    }
    let cannot = || FileError::at("cannot write in", directory);
    let temporary = temporary_in(directory).map_err(cannot())?;
    let mut out = Hashed::new(BufWriter::new(temporary));
    let header = part.header(plan);
    out.line(&header).map_err(cannot())?;
    let (mut buffer, mut added) = (Vec::new(), 0);
    let counts = run::run(
        &setup,
        &mut readers,
        job.periods,
        part.dumps.clone(),
        options.threads(),
        run,
        |dump, found| {
            added += 1;
            buffer.clear();
            sums::encode(dump, found, &mut buffer);
            let written = out.write_all(&buffer).map_err(cannot());
            written.map_err(|error| CorrelateError::Along(error.into()))
        },
    )?;
    if added < header.dumps {
        return Err(ChunkError::Interrupted);
    }
    let damage = readers
        .iter()
        .map(|reader| reader.damage().unwrap_or_default());
    let read = counts.into_iter().zip(damage);
    let read: Vec<Read> = read
        .map(|(counts, damage)| Read { counts, damage })
        .collect();
    out.line(&read).map_err(cannot())?;
    let (length, sha256) = (out.length, sums::hex(&out.hash.finalize()));
    let temporary = out.to.into_inner();
    let temporary = temporary.map_err(|error| cannot()(error.into_error()))?;
    temporary.as_file().sync_all().map_err(cannot())?;
    Ok((temporary, length, sha256))
}

/// Writer that knows the length and the hash of what it wrote.
struct Hashed<W> {
    to: W,
    hash: Sha256,
    length: u64,
}

impl<W: Write> Hashed<W> {
    fn new(to: W) -> Hashed<W> {
        Hashed {
            to,
            hash: Sha256::new(),
            length: 0,
        }
    }

    fn line<T: Serialize>(&mut self, document: &T) -> io::Result<()> {
        let mut text = serde_json::to_string(document)?;
        text.push('\n');
        self.write_all(text.as_bytes())
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = self.to.write(bytes)?;
        self.hash.update(&bytes[..length]);
        self.length += length as u64;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Writes a plan into the directory of its parts, unless the directory has it.
pub fn put_plan(plan: &ChunkPlan, directory: &Path) -> Result<(), ChunkError> {
    plan.check_version()?;
    if !check_plan(plan, directory)? {
        write_synced(directory, &directory.join(PLAN), plan)?;
    }
    Ok(())
}

/// Makes a directory; returns whether it has the plan, and an error if it has another one.
fn check_plan(plan: &ChunkPlan, directory: &Path) -> Result<bool, ChunkError> {
    make_directory(directory)?;
    let path = directory.join(PLAN);
    if !path.exists() {
        return Ok(false);
    }
    match ChunkPlan::read(&path)?.plan_id == plan.plan_id {
        true => Ok(true),
        false => Err(ChunkError::OtherPlan(directory.to_owned())),
    }
}

/// Creates a file in a directory whose name no other host or process takes, and which is removed unless it gets another name.
fn temporary_in(directory: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix(&format!(".tmp-{}-", host::name()))
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory)
}

/// Writes a document in a directory that gets its name once it is on the disk.
fn write_synced<T: Serialize>(
    directory: &Path,
    path: &Path,
    document: &T,
) -> Result<(), FileError> {
    let write = || {
        let mut file = temporary_in(directory)?;
        serde_json::to_writer_pretty(&mut file, document)?;
        file.write_all(b"\n")?;
        file.as_file().sync_all()?;
        Ok(file.persist(path)?)
    };
    write().map_err(FileError::at("cannot write", path))?;
    sync(directory)
}

/// Makes the names in a directory lasting.
fn sync(directory: &Path) -> Result<(), FileError> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(FileError::at("cannot write", directory))
}

fn seconds(from: Nanos, to: Nanos) -> f64 {
    to.0.saturating_sub(from.0) as f64 / 1e9
}

/// Returns the most memory that this program has had, in bytes.
fn peak_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
