//! Divides a correlation of recordings into parts, which any hosts correlate at any time and in any order: plan, parts, and their merger.
//!
//! The plan decides everything that depends on the whole, and describes the recordings, so that a part needs nothing else. A part is a
//! range of dumps of some bands, as sums. The merger adds nothing but what one run adds, in the same order, so that the results are equal
//! to the bit.

mod error;
mod memory;
mod merge;
mod part;
mod stage;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use evlbi_fx::correlator::{Input, Setup};
use evlbi_fx::simd::Simd;
use evlbi_net::host;
use evlbi_net::run::Run;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

pub(crate) use self::error::listed;
pub(crate) use self::part::{put_plan, read_marks};
pub(crate) use self::stage::quoted;

pub use self::error::ChunkError;
pub use self::merge::{MergeOptions, merge};
pub use self::part::{PartDone, PartOptions, correlate_part};
pub use self::stage::Stage;

use super::files::{FileError, read_text};
use super::options::CorrelateOptions;
use super::prepare::Prepared;
use super::station::{StationDocument, StationFile};
use super::{CorrelateError, LeftOut, Recordings, plan, sums};

/// Name and version of the format of plans.
const SCHEMA: &str = "evlbi.chunks/1";
/// Length of the start and of the end of a recording by which it is recognised, in bytes.
const ENDS: u64 = 4096;
/// Version of the program; parts of others could differ.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Plan of a correlation in parts.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChunkPlan {
    schema: String,
    /// SHA-256 of the plan without this field, and without where and when it was made.
    pub plan_id: String,
    /// Version of the program that made it, and correlates its parts.
    pub version: String,
    /// Vector instructions with which its parts are correlated.
    pub simd: Simd,
    /// UTC of the start.
    pub start: String,
    /// Length of the correlated time, in seconds.
    pub seconds: f64,
    /// Length of an integration, in seconds.
    pub integration_s: f64,
    /// Bytes that all parts together read.
    pub bytes: u64,
    /// Memory of a part, in bytes: a maximum for recordings without long gaps.
    pub memory_bytes: u64,
    /// Number of threads for which that is.
    pub threads: usize,
    /// Parts, numbered from 1.
    pub parts: Vec<PartPlan>,
    /// Options of the correlation.
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
    options: CorrelateOptions,
    /// All inputs, as they were given.
    inputs: Vec<String>,
    /// Those that are correlated.
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
    recordings: Vec<RecordingPlan>,
    /// Inputs that are not correlated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<LeftOut>,
}

/// A part of a plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PartPlan {
    /// Number of the part, from 1.
    pub part: usize,
    /// UTC of its start.
    pub start: String,
    /// Its length, in seconds.
    pub seconds: f64,
    /// Bytes that it reads.
    pub bytes: u64,
    /// Its dumps.
    dumps: Range<i64>,
    /// Its groups of bands that have no products with each other.
    groups: Range<usize>,
    /// Bytes of each station's recording that it needs.
    ranges: Vec<Range<u64>>,
}

/// A recording of a plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RecordingPlan {
    /// Its place among the inputs.
    place: usize,
    /// Host that holds it.
    host: String,
    document: StationDocument,
    ends: Ends,
}

/// SHA-256 of the first and of the last bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Ends {
    first: String,
    last: String,
}

/// Wanted number and size of parts.
#[derive(Clone, Debug)]
pub struct ChunkOptions {
    /// Number of parts in time; fewer if the recordings have fewer dumps.
    pub parts: usize,
    /// Maximum memory of a part, in bytes, to which bands are divided; `None` for all bands in each part.
    pub memory: Option<u64>,
    /// Hosts that hold the recordings, in order; this one for others.
    pub hosts: Vec<String>,
}

/// Division of a correlation into parts.
struct Division {
    /// Dumps of each part in time.
    times: Vec<Range<i64>>,
    /// Limits of the ranges of groups of bands.
    groups: Vec<usize>,
    /// Memory of the largest part, in bytes.
    memory: u64,
}

impl ChunkPlan {
    /// Inspects recordings and divides their correlation.
    ///
    /// # Errors
    /// Returns an error if they cannot be correlated with the options, or a part takes more memory than it may.
    pub fn new(
        paths: &[String],
        options: &CorrelateOptions,
        wanted: &ChunkOptions,
        run: &Run,
    ) -> Result<ChunkPlan, ChunkError> {
        let divide = |prepared: &Prepared<'_>, threads| {
            let job = &prepared.job;
            let lanes = prepared
                .files()
                .iter()
                .map(|file| file.shape().threads.len());
            let lanes: Vec<usize> = lanes.collect();
            let groups = job.setup.groups();
            let (groups, memory) =
                memory::divide(&job.setup, &groups, &lanes, threads, wanted.memory)?;
            Ok(Division {
                times: times(job.range.clone(), job.periods.count, wanted.parts),
                groups,
                memory,
            })
        };
        ChunkPlan::divided(paths, options, &wanted.hosts, divide, run)
    }

    /// Divides the correlation of recordings in any way.
    fn divided(
        paths: &[String],
        options: &CorrelateOptions,
        hosts: &[String],
        divide: impl FnOnce(&Prepared<'_>, usize) -> Result<Division, ChunkError>,
        run: &Run,
    ) -> Result<ChunkPlan, ChunkError> {
        let simd = options.simd.unwrap_or_else(Simd::best);
        let options = CorrelateOptions {
            simd: Some(simd),
            ..options.clone().with_texts()?
        };
        let recordings = Recordings::open(paths, &options, run)?;
        let prepared = Prepared::new(&recordings, &options, run)?;
        let (job, threads) = (&prepared.job, options.threads());
        let Division {
            times,
            groups,
            memory,
        } = divide(&prepared, threads)?;
        let mut parts = Vec::new();
        for dumps in times {
            let ranges = ranges(&prepared, dumps.clone())?;
            let [from, to] = [dumps.start, dumps.end].map(|dump| dump as f64 * job.dump_seconds());
            parts.extend(groups.windows(2).map(|groups| PartPlan {
                part: 0,
                start: job.utc(from),
                seconds: to - from,
                bytes: ranges.iter().map(|range| range.end - range.start).sum(),
                dumps: dumps.clone(),
                groups: groups[0]..groups[1],
                ranges: ranges.clone(),
            }));
        }
        for (place, part) in parts.iter_mut().enumerate() {
            part.part = place + 1;
        }
        let described = recordings.files.iter().zip(&recordings.places);
        let here = host::name();
        let described = described.map(|(file, place)| {
            Ok(RecordingPlan {
                place: *place,
                host: hosts.get(*place).unwrap_or(&here).clone(),
                document: file.document()?,
                ends: Ends::of(file)?,
            })
        });
        let correlated = job.correlated();
        let rate = job.setup.part_rate() as f64;
        let mut plan = ChunkPlan {
            schema: SCHEMA.to_owned(),
            plan_id: String::new(),
            version: VERSION.to_owned(),
            simd,
            start: job.utc(correlated.start as f64 / rate),
            seconds: (correlated.end - correlated.start) as f64 / rate,
            integration_s: job.plan.integration,
            bytes: parts.iter().map(|part| part.bytes).sum(),
            memory_bytes: memory,
            threads,
            parts,
            recordings: described.collect::<Result<_, FileError>>()?,
            inputs: paths.to_vec(),
            left_out: recordings.left_out.clone(),
            options: options.clone(),
        };
        plan.plan_id = plan.id();
        Ok(plan)
    }

    /// Reads a plan.
    ///
    /// # Errors
    /// Returns an error if it cannot be read, is damaged, or was changed after it was made.
    pub fn read(path: &Path) -> Result<ChunkPlan, ChunkError> {
        let plan: ChunkPlan =
            serde_json::from_str(&read_text(path)?).map_err(|source| ChunkError::Plan {
                path: path.to_owned(),
                source,
            })?;
        match () {
            () if plan.schema != SCHEMA || plan.id() != plan.plan_id => {
                Err(ChunkError::Edited(path.to_owned()))
            }
            () if !plan.is_sound() => Err(ChunkError::Contradicts(path.to_owned())),
            () => Ok(plan),
        }
    }

    /// Returns whether its numbers fit each other.
    fn is_sound(&self) -> bool {
        let is_ordered = |range: &Range<u64>| range.start <= range.end;
        let parts = self.parts.iter().enumerate();
        let mut parts = parts.map(|(place, part)| {
            part.part == place + 1
                && part.dumps.start < part.dumps.end
                && part.ranges.len() <= self.recordings.len()
                && part.ranges.iter().all(is_ordered)
        });
        let inputs = self.inputs.len();
        parts.all(|is_sound| is_sound) && self.recordings.iter().all(|it| it.place < inputs)
    }

    /// Returns a part.
    fn part(&self, number: usize) -> Result<&PartPlan, ChunkError> {
        let part = number
            .checked_sub(1)
            .and_then(|place| self.parts.get(place));
        part.ok_or(ChunkError::NoPart {
            part: number,
            parts: self.parts.len(),
        })
    }

    /// Checks that this version of the program made the plan.
    fn check_version(&self) -> Result<(), ChunkError> {
        match self.version == VERSION {
            true => Ok(()),
            false => Err(ChunkError::Version {
                plan: self.version.clone(),
                ours: VERSION,
            }),
        }
    }

    /// Returns the SHA-256 of the plan without where and when it was made, which change no result.
    fn id(&self) -> String {
        let mut plan = serde_json::to_value(self).unwrap_or_default();
        for field in ["plan_id", "threads", "memory_bytes"] {
            plan[field] = Value::Null;
        }
        for recording in plan["recordings"].as_array_mut().into_iter().flatten() {
            recording["host"] = Value::Null;
            recording["document"]["recording"]["latest"] = Value::Null;
        }
        sha256(plan.to_string().as_bytes())
    }

    /// Returns the recordings that the plan describes.
    fn recordings(&self, options: &CorrelateOptions) -> Result<Recordings, CorrelateError> {
        let rate = plan::given_rate(options)?;
        let files = self.recordings.iter().map(|recording| {
            let input = &self.inputs[recording.place];
            let document = recording.document.clone();
            Ok(StationFile::of(document, input, rate, options.trust)?)
        });
        Ok(Recordings {
            files: files.collect::<Result<_, CorrelateError>>()?,
            paths: self.inputs.clone(),
            places: self.recordings.iter().map(|it| it.place).collect(),
            left_out: self.left_out.clone(),
        })
    }

    /// Returns what the plan knows of the recording at a place among the inputs.
    fn recording(&self, place: usize) -> Option<&RecordingPlan> {
        self.recordings.iter().find(|it| it.place == place)
    }

    /// Checks that the files that the options name are those of the plan, as far as they are there: a part does not read them.
    fn check_texts(&self) -> Result<(), ChunkError> {
        let texts = self.options.texts.iter();
        for (path, text) in texts {
            if std::fs::read_to_string(path).is_ok_and(|now| now != *text) {
                return Err(ChunkError::ChangedText(path.clone()));
            }
        }
        Ok(())
    }
}

impl PartPlan {
    /// Returns the first line of the file of its sums.
    fn header(&self, plan: &ChunkPlan) -> sums::Header {
        sums::Header {
            schema: sums::SCHEMA.to_owned(),
            plan_id: plan.plan_id.clone(),
            part: self.part,
            dumps: (self.dumps.end - self.dumps.start) as usize,
        }
    }

    /// Returns the bands of the part.
    fn inputs(&self, setup: &Setup) -> Vec<Input> {
        let groups = setup.groups();
        let groups = groups.get(self.groups.clone()).unwrap_or_default();
        groups.concat()
    }
}

impl Ends {
    fn of(file: &StationFile) -> Result<Ends, FileError> {
        Ends::read(file.path(), file.size(), |bytes| {
            let mut buffer = vec![0; (bytes.end - bytes.start) as usize];
            File::open(file.path())?.read_exact_at(&mut buffer, bytes.start)?;
            Ok(buffer)
        })
    }

    /// Reads the ends of a file of `size` bytes by `read`.
    fn read(
        path: &Path,
        size: u64,
        mut read: impl FnMut(Range<u64>) -> std::io::Result<Vec<u8>>,
    ) -> Result<Ends, FileError> {
        let length = ENDS.min(size);
        let mut of = |range| {
            let bytes = read(range).map_err(FileError::at("cannot read", path))?;
            Ok(sha256(&bytes))
        };
        Ok(Ends {
            first: of(0..length)?,
            last: of(size - length..size)?,
        })
    }

    /// Checks that a file has these ends.
    fn check(&self, path: &Path, found: &Ends) -> Result<(), ChunkError> {
        let what = match () {
            () if self.first != found.first => "its first header or what follows it differs",
            () if self.last != found.last => "its last bytes differ",
            () => return Ok(()),
        };
        let (path, what) = (path.to_owned(), what.to_owned());
        Err(ChunkError::Changed { path, what })
    }
}

/// Divides dumps into parts, of whole integrations of `count` dumps if there are enough of them.
fn times(dumps: Range<i64>, count: i64, parts: usize) -> Vec<Range<i64>> {
    let parts = parts.max(1) as i64;
    let integrations = |count: i64| {
        let first = dumps.start.div_euclid(count);
        first..(dumps.end - 1).div_euclid(count) + 1
    };
    let whole = integrations(count);
    let unit = if whole.end - whole.start >= parts {
        count
    } else {
        1
    };
    let units = integrations(unit);
    let length = units.end - units.start;
    let parts = parts.min(length);
    let cut = |number: i64| {
        let at = i128::from(length) * i128::from(number) / i128::from(parts);
        let at = (units.start + at as i64).saturating_mul(unit);
        at.clamp(dumps.start, dumps.end)
    };
    (0..parts).map(|part| cut(part)..cut(part + 1)).collect()
}

/// Returns the bytes of each station's recording that a part of these dumps needs.
fn ranges(prepared: &Prepared<'_>, dumps: Range<i64>) -> Result<Vec<Range<u64>>, CorrelateError> {
    let job = &prepared.job;
    let epoch = job.setup.epoch();
    let first = match prepared.samples_before(dumps.start)? {
        Some(before) => before,
        None => prepared.first_samples(dumps.start)?,
    };
    let last = prepared.samples(&job.periods.blocks(dumps.end - 1))?;
    let stations = prepared.files().iter().zip(first.iter().zip(&last));
    let ranges = stations.map(|(file, (first, last))| {
        let begin = file.offset_of(first.start, epoch)?;
        let end = match dumps.end == job.range.end {
            true => file.end(),
            false => file.end_of(last.end, epoch)?,
        };
        Ok(begin..end.max(begin))
    });
    ranges.collect()
}

/// Returns the SHA-256 of bytes, as hexadecimal digits.
fn sha256(bytes: &[u8]) -> String {
    sums::hex(&Sha256::digest(bytes))
}
