//! Correlates a part of a plan: on any host, at any time, as often as wanted.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evlbi_core::time::Nanos;
use evlbi_fx::simd::Simd;
use evlbi_net::host;
use evlbi_net::run::Run;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::ChunkError;
use super::stage::{Stage, Staged};
use super::{ChunkPlan, Ends, PartPlan};
use crate::CorrelateError;
use crate::files::{FileError, make_directory, read_text};
use crate::options::CorrelateOptions;
use crate::plan::Placed;
use crate::prepare::{Prepared, Read};
use crate::run;
use crate::station::{StationFile, Window};
use crate::sums;

/// Name and version of the completion mark of a part.
const SCHEMA: &str = "evlbi.part/1";
/// Name of the plan in the directory of its parts.
pub const PLAN: &str = "plan.chunks.json";

/// Options of a part.
#[derive(Clone, Debug, Default)]
pub struct PartOptions {
    /// Number of correlating threads; `None` for one per CPU.
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
    let cannot = || FileError::at("cannot read", directory);
    let mut parts: Vec<PartDone> = Vec::new();
    for entry in fs::read_dir(directory).map_err(cannot())? {
        let path = entry.map_err(cannot())?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if !name.starts_with("part-") || !name.ends_with(".json") {
            continue;
        }
        // One that cannot be parsed is not complete.
        let text = read_text(&path)?;
        let part = serde_json::from_str(&text).ok();
        parts.extend(part.filter(|part: &PartDone| part.plan_id == plan.plan_id));
    }
    parts.sort_by(|a, b| (a.part, &a.sha256).cmp(&(b.part, &b.sha256)));
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
    make_directory(directory)?;
    put_plan(plan, directory)?;
    let there = parts_in(directory, plan)?;
    for done in there.into_iter().filter(|done| done.part == number) {
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
    }
    plan.check_texts()?;
    let (begun, busy) = (run.clock().now(), evlbi_net::cpu::process_time());
    let simd = options.simd.unwrap_or(plan.simd);
    let correlate = CorrelateOptions {
        simd: Some(simd),
        threads: options.threads,
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
    let staged = match &options.stage {
        Some(stage) => Some(stage.fetch(&stations, &part.ranges)?),
        None => {
            for (file, recording) in &stations {
                check_same(file, &recording.ends)?;
            }
            None
        }
    };
    let temporary = directory.join(format!(
        ".tmp-{}-{}-{number:05}",
        host::name(),
        std::process::id()
    ));
    let written = write(
        (plan, part),
        prepared,
        &correlate,
        staged.as_ref(),
        &temporary,
        run,
    );
    let (bytes, sha256) = match written {
        Ok(written) => written,
        Err(error) => {
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
    };
    let done = PartDone {
        schema: SCHEMA.to_owned(),
        plan_id: plan.plan_id.clone(),
        part: number,
        parts: plan.parts.len(),
        version: plan.version.clone(),
        simd,
        host: host::name(),
        seconds: part.seconds,
        read_bytes: part.bytes,
        elapsed_s: seconds(begun, run.clock().now()),
        cpu_s: seconds(busy, evlbi_net::cpu::process_time()),
        memory_bytes: peak_memory(),
        bytes,
        sha256,
        was_there: false,
    };
    let path = done.sums_in(directory);
    fs::rename(&temporary, &path).map_err(FileError::at("cannot write", &path))?;
    let mark = path.with_extension("json");
    write_synced(&temporary, &mark, &done)?;
    sync(directory)?;
    Ok(done)
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

/// Correlates a part, and writes its sums; returns their length and SHA-256.
fn write(
    (plan, part): (&ChunkPlan, &PartPlan),
    mut prepared: Prepared<'_>,
    options: &CorrelateOptions,
    staged: Option<&Staged>,
    temporary: &Path,
    run: &Run,
) -> Result<(u64, String), ChunkError> {
    let first = prepared.first_samples(prepared.job.range.start)?;
    let before = prepared.samples_before(part.dumps.start)?;
    let windows = part.ranges.iter().enumerate().map(|(place, bytes)| Window {
        copy: staged.map(|staged| staged.files[place].as_path()),
        bytes: bytes.clone(),
    });
    let windows: Vec<Window<'_>> = windows.collect();
    let job = &mut prepared.job;
    job.range = part.dumps.clone();
    let setup = Arc::new(job.setup.only(&part.inputs(&job.setup)));
    let mut readers = prepared.readers(options, Some(&windows), &mut ())?;
    for (place, before) in before.into_iter().flatten().enumerate() {
        readers[place].begin_behind(before, first[place].start)?;
    }
    let cannot = || FileError::at("cannot write", temporary);
    let file = File::create(temporary).map_err(cannot())?;
    let mut out = Hashed::new(BufWriter::new(file));
    let dumps = (part.dumps.end - part.dumps.start) as usize;
    let header = sums::Header {
        schema: sums::SCHEMA.to_owned(),
        plan_id: plan.plan_id.clone(),
        part: part.part,
        dumps,
    };
    out.line(&header).map_err(cannot())?;
    let (mut buffer, mut added) = (Vec::new(), 0);
    let counts = run::run(
        &setup,
        &mut readers,
        prepared.job.periods,
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
    if added < dumps {
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
    out.flush().map_err(cannot())?;
    out.to.get_ref().sync_all().map_err(cannot())?;
    Ok((out.length, sums::hex(&out.hash.finalize())))
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

/// Writes the plan next to its parts, once.
fn put_plan(plan: &ChunkPlan, directory: &Path) -> Result<(), ChunkError> {
    let path = directory.join(PLAN);
    if path.exists() {
        return match ChunkPlan::read(&path)?.plan_id == plan.plan_id {
            true => Ok(()),
            false => Err(ChunkError::OtherPlan(directory.to_owned())),
        };
    }
    let temporary = directory.join(format!(".tmp-{}-{}-plan", host::name(), std::process::id()));
    Ok(write_synced(&temporary, &path, plan)?)
}

/// Writes a document that gets its name once it is on the disk.
fn write_synced<T: Serialize>(
    temporary: &Path,
    path: &Path,
    document: &T,
) -> Result<(), FileError> {
    let write = || {
        let mut file = File::create(temporary)?;
        serde_json::to_writer_pretty(&mut file, document)?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(temporary, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(temporary);
        FileError::at("cannot write", path)(error)
    })
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
