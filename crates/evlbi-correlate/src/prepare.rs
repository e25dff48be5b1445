//! Prepares a correlation of recordings, and concludes it: the steps before and after the sums, wherever these are calculated.

use std::ops::Range;

use evlbi_fx::correlator::Sums;
use evlbi_fx::fringe::Window;
use evlbi_fx::track::Counts;
use evlbi_net::run::Run;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::job::Job;
use super::options::CorrelateOptions;
use super::plan::{self, Placed};
use super::result::StationResult;
use super::run;
use super::series::Series;
use super::station::{
    RecordingDamage, RecordingError, StationFile, StationReader, Window as Bytes,
};
use super::sums;
use super::tamper::Tampered;
use super::visibilities::VisibilityWriter;
use super::{Along, CorrelateError, Correlation, LeftOut, Recordings};

/// Stations, setup and time of a correlation of recordings.
pub struct Prepared<'a> {
    paths: &'a [String],
    files: Vec<&'a StationFile>,
    shapes: Vec<Placed<'a>>,
    names: Vec<String>,
    left_out: Vec<LeftOut>,
    window: Window,
    /// UTC second from which the options' delays and flags count.
    first_second: i64,
    pub job: Job,
}

/// Frames read of a station.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub struct Read {
    pub counts: Counts,
    pub damage: RecordingDamage,
}

/// Collector of the sums of all dumps: for the result, and for visibilities.
pub struct Collected {
    series: Series,
    dumps: usize,
    writer: Option<(VisibilityWriter, Sha256)>,
    buffer: Vec<u8>,
}

impl<'a> Prepared<'a> {
    pub fn new(
        recordings: &'a Recordings,
        options: &CorrelateOptions,
        run: &Run,
    ) -> Result<Prepared<'a>, CorrelateError> {
        let Recordings { paths, files, .. } = recordings;
        let shapes = files.iter().map(StationFile::shape);
        let shapes: Vec<Placed<'_>> = recordings.places.iter().copied().zip(shapes).collect();
        let first_second = plan::first_second(&shapes);
        let plan = plan::plan(paths, &shapes, options, run)?;
        let mut left_out = recordings.left_out.clone();
        let others = plan.left_out.iter();
        left_out.extend(others.map(|(place, error)| LeftOut::new(&paths[*place], error, run)));
        let files: Vec<&StationFile> = plan.taken.iter().map(|index| &files[*index]).collect();
        let shapes: Vec<Placed<'_>> = plan.taken.iter().map(|index| shapes[*index]).collect();
        let window = options.window();
        let job = Job::of_files(plan, &files, &window)?;
        let names = plan::station_names(&job.setup);
        plan::check_names(options, &names, left_out.is_empty(), run)?;
        Ok(Prepared {
            paths,
            files,
            shapes,
            names,
            left_out,
            window,
            first_second,
            job,
        })
    }

    /// Returns the recordings of the stations.
    pub fn files(&self) -> &[&'a StationFile] {
        &self.files
    }

    /// Returns the stations of the recordings, with their places among the inputs.
    pub fn shapes(&self) -> &[Placed<'a>] {
        &self.shapes
    }

    /// Returns the samples of each station that are read first.
    pub fn first_samples(&self, dump: i64) -> Result<Vec<Range<i64>>, CorrelateError> {
        let Job { setup, periods, .. } = &self.job;
        let blocks = periods.blocks(dump);
        let pieces = run::pieces(setup, blocks.clone());
        self.samples(pieces.first().unwrap_or(&blocks))
    }

    /// Returns the samples of each station that are read last before a dump; `None` before the first one.
    pub fn samples_before(&self, dump: i64) -> Result<Option<Vec<Range<i64>>>, CorrelateError> {
        let Job {
            setup,
            periods,
            range,
            ..
        } = &self.job;
        let last = |dump| run::pieces(setup, periods.blocks(dump)).pop();
        let last = (range.start..dump).rev().find_map(last);
        last.map(|blocks| self.samples(&blocks)).transpose()
    }

    /// Returns the samples of each station that blocks need.
    pub fn samples(&self, blocks: &Range<i64>) -> Result<Vec<Range<i64>>, CorrelateError> {
        let stations = 0..self.files.len();
        let samples = stations.map(|station| run::samples(&self.job.setup, station, blocks));
        Ok(samples.collect::<Result<_, _>>()?)
    }

    /// Starts to read all stations from a dump on, in these windows.
    pub fn readers(
        &self,
        options: &CorrelateOptions,
        dump: i64,
        windows: Option<&[Bytes<'_>]>,
        along: &mut dyn Along,
    ) -> Result<Vec<StationReader>, CorrelateError> {
        let stations = self.files.iter().zip(&self.names).enumerate();
        let readers = stations.map(|(index, (file, name))| {
            let flags = options.flag.iter().filter(|flag| flag.station == *name);
            let Job { setup, periods, .. } = &self.job;
            let blocks = periods.blocks(dump);
            let from = setup.samples(index, blocks)?.start;
            let from = (from, windows.map(|windows| &windows[index]));
            let tamper = along.tamper(index).map_err(CorrelateError::Along)?;
            Ok(file.read(setup.epoch(), from, tamper, flags, self.first_second)?)
        });
        readers.collect()
    }

    /// Returns what collects the sums of the job's dumps.
    pub fn collected(&self, options: &CorrelateOptions) -> Result<Collected, CorrelateError> {
        let job = &self.job;
        let dumps = job.range.clone().count();
        let series = job.series();
        series.check(&self.window, dumps)?;
        let writer = match &options.visibilities {
            Some(directory) if !job.range.is_empty() => {
                let writer = VisibilityWriter::create(directory, job, options.force)?;
                Some((writer, Sha256::new()))
            }
            _ => None,
        };
        Ok(Collected {
            series,
            dumps,
            writer,
            buffer: Vec::new(),
        })
    }

    /// Returns the result.
    pub fn conclude(
        mut self,
        options: &CorrelateOptions,
        collected: Collected,
        read: &[Read],
        tampered: Vec<Option<Tampered>>,
        run: &Run,
    ) -> Result<Correlation, CorrelateError> {
        let Collected {
            series,
            writer,
            dumps,
            ..
        } = collected;
        let (visibilities, sums) = match writer {
            Some((writer, _)) if series.added == 0 => {
                writer.abandon();
                (None, None)
            }
            Some((writer, hash)) => (Some(writer.finish()?), Some(sums::hex(&hash.finalize()))),
            None => (None, None),
        };
        let counts: Vec<Counts> = read.iter().map(|read| read.counts).collect();
        let mut stations = StationResult::all(&self.job.setup, self.paths, &self.shapes, &counts);
        let is_untouched = tampered.iter().all(Option::is_none);
        for (index, Read { damage, .. }) in read.iter().enumerate() {
            let damage = Some(*damage).filter(|damage| *damage != RecordingDamage::default());
            // Runs with tampering follow one without it.
            if let (Some(damage), true) = (damage, is_untouched) {
                let path = self.paths[self.shapes[index].0].clone();
                let error = RecordingError::Damaged { path, damage };
                run.warn(format_args!("{}", run.explain(&error)));
            }
            stations[index].see(&self.job, index, damage);
        }
        let interrupted = series.added < dumps;
        self.job.range.end = self.job.range.start + series.added as i64;
        Ok(Correlation {
            stations,
            given: Some((self.first_second, options.delay.clone())),
            places: self.shapes.iter().map(|(place, _)| *place).collect(),
            left_out: self.left_out,
            window: self.window,
            streams: Vec::new(),
            tampered,
            visibilities,
            sums,
            missing: Vec::new(),
            interrupted,
            correlated: self.job.correlated(),
            integration: self.job.plan.integration,
            spans: self.job.spans,
            setup: self.job.setup,
            series,
        })
    }
}

impl Read {
    /// Adds what was read behind this.
    pub fn add(&mut self, behind: &Read) {
        let (counts, more) = (&mut self.counts, &behind.counts);
        counts.frames += more.frames;
        counts.late += more.late;
        counts.duplicates += more.duplicates;
        counts.foreign += more.foreign;
        let (damage, more) = (&mut self.damage, behind.damage);
        damage.odd_headers += more.odd_headers;
        damage.unframed_bytes += more.unframed_bytes;
        damage.other_frames += more.other_frames;
        damage.first_byte = damage.first_byte.or(more.first_byte);
        damage.truncated_bytes = more.truncated_bytes;
        damage.truncated_byte = more.truncated_byte;
        damage.rest = more.rest;
    }
}

impl Collected {
    /// Passes over dumps without data.
    pub fn skip(&mut self, dumps: i64) {
        if let Ok(dumps @ 1..) = usize::try_from(dumps) {
            self.series.skip(dumps);
        }
    }

    /// Takes the next dump.
    pub fn add(&mut self, job: &Job, dump: i64, sums: &Sums) -> Result<(), CorrelateError> {
        self.series.add(sums);
        if let Some((writer, hash)) = &mut self.writer {
            self.buffer.clear();
            sums::encode(dump, sums, &mut self.buffer);
            hash.update(&self.buffer);
            writer.add(job.begins(dump), sums)?;
        }
        Ok(())
    }
}
