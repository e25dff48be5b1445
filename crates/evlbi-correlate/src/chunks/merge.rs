//! Merges the parts of a plan into the result of one run.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use evlbi_fx::correlator::{Input, Setup, Sums};
use evlbi_net::run::Run;

use super::error::ChunkError;
use super::part::{PLAN, PartDone, parts_in};
use super::{ChunkPlan, PartPlan};
use crate::files::FileError;
use crate::options::CorrelateOptions;
use crate::prepare::{Prepared, Read};
use crate::result::Missing;
use crate::sums::Reader;
use crate::{CorrelateError, Correlation};

/// Options of a merger.
#[derive(Clone, Debug)]
pub struct MergeOptions {
    /// Directory of the visibilities.
    pub out: PathBuf,
    /// Whether existing visibilities are overwritten.
    pub force: bool,
    /// Whether missing parts are gaps.
    pub partial: bool,
    /// Whether parts with different vector instructions are merged.
    pub mixed: bool,
}

/// Parts of the same time, with different bands.
struct Row<'a> {
    dumps: Range<i64>,
    parts: Vec<(&'a PartPlan, &'a PartDone)>,
}

/// Merges the parts in a directory.
///
/// # Errors
/// Returns an error if parts are missing, damaged, contradict each other or were made in different ways, as far as the options do not
/// allow that, or the result cannot be written.
pub fn merge(
    directory: &Path,
    options: &MergeOptions,
    run: &Run,
) -> Result<Correlation, ChunkError> {
    let plan = directory.join(PLAN);
    if !plan.exists() {
        return Err(ChunkError::NoParts(directory.to_owned()));
    }
    let plan = ChunkPlan::read(&plan)?;
    plan.check_version()?;
    let parts = checked(directory, &plan, options.mixed)?;
    let is_there = |part: &&PartPlan| parts.iter().any(|done| done.part == part.part);
    let missing: Vec<&PartPlan> = plan.parts.iter().filter(|part| !is_there(part)).collect();
    if parts.is_empty() {
        return Err(ChunkError::NoParts(directory.to_owned()));
    }
    if !(options.partial || missing.is_empty()) {
        return Err(ChunkError::Missing {
            parts: missing.iter().map(|part| part.part).collect(),
            of: plan.parts.len(),
        });
    }
    let simd = parts.first().map_or(plan.simd, |part| part.simd);
    let correlate = CorrelateOptions {
        simd: Some(simd),
        visibilities: Some(options.out.clone()),
        force: options.force,
        ..plan.options.clone()
    };
    let recordings = plan.recordings(&correlate)?;
    let prepared = Prepared::new(&recordings, &correlate, run)?;
    let mut collected = prepared.collected(&correlate)?;
    let mut read = vec![Read::default(); prepared.files().len()];
    let (job, all) = (&prepared.job, plan.parts.len());
    let mut progress = run.progress(Some(all as u64));
    let mut next = job.range.start;
    for row in rows(&plan, &parts) {
        collected.skip(row.dumps.start - next);
        next = row.dumps.end;
        merge_row(
            (directory, &plan),
            &row,
            &job.setup,
            &mut read,
            |dump, sums| collected.add(job, dump, sums),
        )?;
        if progress.is_due() {
            let done = row.parts.last().map_or(0, |(part, _)| part.part);
            progress.show(done as u64, &format!("{done} of {all} parts"));
        }
    }
    collected.skip(job.range.end - next);
    let untampered = vec![None; read.len()];
    let missing = missing.iter().map(|part| gap(part, &job.setup)).collect();
    let mut merged = prepared.conclude(&correlate, collected, &read, untampered, run)?;
    merged.missing = missing;
    Ok(merged)
}

/// Describes a part that is missing.
fn gap(part: &PartPlan, setup: &Setup) -> Missing {
    let bands = |inputs: &[Input]| {
        let bands: BTreeSet<usize> = inputs.iter().map(|input| input.band + 1).collect();
        Vec::from_iter(bands)
    };
    let (ours, all) = (
        bands(&part.inputs(setup)),
        bands(&Vec::from_iter(setup.inputs())),
    );
    Missing {
        part: part.part,
        bands: if ours == all { Vec::new() } else { ours },
        start: part.start.clone(),
        seconds: part.seconds,
    }
}

/// Returns one result of each complete part.
fn checked(directory: &Path, plan: &ChunkPlan, mixed: bool) -> Result<Vec<PartDone>, ChunkError> {
    let mut parts = parts_in(directory, plan)?;
    for part in &parts {
        part.check(directory)?;
    }
    parts.sort_by(|a, b| (a.part, a.kind()).cmp(&(b.part, b.kind())));
    for pair in parts.windows(2) {
        let [a, b] = pair else { continue };
        if a.part == b.part && a.kind() == b.kind() && a.sha256 != b.sha256 {
            return Err(ChunkError::Differ {
                part: a.part,
                hosts: [a, b].map(|part| part.host.clone()),
                paths: [a, b].map(|part| part.sums_in(directory)),
            });
        }
    }
    // The kind of which there are most parts is taken, and of several the plan's instructions.
    let count = |part: &PartDone| {
        let alike = parts.iter().filter(|other| other.kind() == part.kind());
        (alike.count(), part.simd == plan.simd)
    };
    let Some(best) = parts.iter().max_by_key(|part| count(part)).cloned() else {
        return Ok(parts);
    };
    parts.sort_by_key(|part| (part.part, part.kind() != best.kind()));
    parts.dedup_by_key(|part| part.part);
    let other = parts.iter().find(|part| part.kind() != best.kind());
    let Some(other) = other.filter(|_| !mixed) else {
        return Ok(parts);
    };
    let numbers = [&best, other].map(|part| part.part);
    let hosts = [&best, other].map(|part| part.host.clone());
    Err(match best.simd == other.simd {
        true => ChunkError::Sines {
            parts: numbers,
            hosts,
        },
        false => ChunkError::Simd {
            parts: numbers,
            hosts,
            simd: [&best, other].map(|part| part.simd),
        },
    })
}

/// Returns the complete parts by time.
fn rows<'a>(plan: &'a ChunkPlan, parts: &'a [PartDone]) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    for done in parts {
        let Ok(part) = plan.part(done.part) else {
            continue;
        };
        match rows.last_mut().filter(|row| row.dumps == part.dumps) {
            Some(row) => row.parts.push((part, done)),
            None => rows.push(Row {
                dumps: part.dumps.clone(),
                parts: vec![(part, done)],
            }),
        }
    }
    rows
}

/// Passes on the dumps of a row, with the sums of all its bands, and adds what was read.
fn merge_row(
    (directory, plan): (&Path, &ChunkPlan),
    row: &Row<'_>,
    setup: &Setup,
    read: &mut [Read],
    mut add: impl FnMut(i64, &Sums) -> Result<(), CorrelateError>,
) -> Result<(), ChunkError> {
    let parts = row.parts.iter().map(|(part, done)| {
        let path = done.sums_in(directory);
        let inputs = part.inputs(setup);
        let opened = Reader::open(&path, &setup.only(&inputs));
        let reader = opened.map_err(FileError::at("cannot read", &path))?;
        if reader.header != part.header(plan) {
            let error = std::io::Error::other("it does not contain what its mark names");
            return Err(FileError::at("cannot read", &path)(error).into());
        }
        let of_inputs = setup.inputs().enumerate();
        let of_inputs = of_inputs.filter(|(_, input)| inputs.contains(input));
        let of_products = setup.products().iter().enumerate();
        let of_products = of_products.filter(|(_, product)| inputs.contains(&product.a));
        Ok(Source {
            inputs: of_inputs.map(|(place, _)| place).collect(),
            products: of_products.map(|(place, _)| place).collect(),
            path,
            reader,
        })
    });
    let mut parts = parts.collect::<Result<Vec<Source>, ChunkError>>()?;
    let mut sums = Sums::new(setup);
    for dump in row.dumps.clone() {
        for part in &mut parts {
            let found = part.reader.next();
            let cannot = FileError::at("cannot read", &part.path);
            let found = found.and_then(|found| match found == dump {
                true => Ok(()),
                false => Err(std::io::Error::other(format!(
                    "it has dump {found} instead of {dump}"
                ))),
            });
            found.map_err(cannot)?;
            sums.blocks = part.reader.sums.blocks;
            for (place, input) in part.inputs.iter().zip(&mut part.reader.sums.inputs) {
                std::mem::swap(&mut sums.inputs[*place], input);
            }
            for (place, product) in part.products.iter().zip(&mut part.reader.sums.products) {
                std::mem::swap(&mut sums.products[*place], product);
            }
        }
        add(dump, &sums)?;
    }
    // All parts of a row read the same frames.
    if let Some(part) = parts.first_mut() {
        let was_read = part
            .reader
            .last::<Vec<Read>>()
            .map_err(FileError::at("cannot read", &part.path))?;
        for (all, part) in read.iter_mut().zip(was_read) {
            all.add(&part);
        }
    }
    Ok(())
}

/// Sums of a part, and the places of its inputs and products in the whole.
struct Source {
    path: PathBuf,
    reader: Reader,
    inputs: Vec<usize>,
    products: Vec<usize>,
}
