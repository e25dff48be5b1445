//! `evlbi plan chunks` and `evlbi merge`: a correlation in parts.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use evlbi_correlate::chunks::{ChunkOptions, ChunkPlan, MergeOptions, merge};
use evlbi_correlate::{CorrelateOptions, CorrelateResult, text};
use evlbi_fx::track::Trust;
use evlbi_net::file::check_new;
use evlbi_wire::units::{self, show_count, show_seconds};

use super::choice::{choice, name};
use super::correlate::{CorrelatorArgs, TRUSTS, advise, advise_delays, all_of};
use crate::output;
use crate::program::{Program, complete};

#[derive(Args)]
#[command(after_help = "\
Inspects the recordings once. Each part can then be correlated on any host, at any time, as often as wanted, by \
`evlbi correlate --plan FILE --part K --out DIR`; `evlbi merge DIR` makes of them what one run makes, to the bit. The \
plan contains all options and models. Where the parts run, the paths of the recordings must be reachable, unless \
`evlbi correlate --stage` fetches their bytes.

Examples:
  evlbi plan chunks Ef.vdif Jb.vdif --freq 4.9G --parts 64 > job.chunks.json
  # Bands are divided so that a part takes at most this much memory:
  evlbi plan chunks Ef.vdif Jb.vdif --model job_1.im --memory 4GB --out job.chunks.json")]
pub struct PlanChunksArgs {
    /// Recordings, one per station, in the order of the model's stations
    #[arg(required = true, num_args = 2..=32)]
    pub files: Vec<String>,
    /// Number of parts in time; fewer if the recordings are too short
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub parts: u32,
    /// Memory of a part, for recordings without long gaps: its bands are divided so that it keeps to that [default: all bands in each part]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub memory: Option<u64>,
    /// Hosts that hold the recordings, in their order, for `evlbi correlate --stage` [default: this host]
    #[arg(long, value_name = "HOST,...", value_delimiter = ',')]
    pub hosts: Vec<String>,
    #[command(flatten)]
    pub options: CorrelatorArgs,
    /// Choose which marks make a sample invalid
    #[arg(long, value_parser = choice(TRUSTS), default_value = name(TRUSTS, CorrelateOptions::default().trust))]
    pub trust: Trust,
    /// Write the plan to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Overwrite an existing plan
    #[arg(long, requires = "out")]
    pub force: bool,
}

/// Plans the parts of a correlation.
pub fn plan(args: PlanChunksArgs, program: &Program) -> Result<()> {
    check_new(args.out.as_deref(), args.force)?;
    let options = CorrelateOptions {
        trust: args.trust,
        ..args.options.into()
    };
    let wanted = ChunkOptions {
        parts: args.parts as usize,
        memory: args.memory,
        hosts: args.hosts,
    };
    let plan = ChunkPlan::new(&args.files, &options, &wanted, program.run())?;
    program.run().say(format_args!("{}", described(&plan)));
    match args.out {
        Some(path) => Ok(evlbi_net::file::replace_json(&path, &plan)?),
        None => output::print(true, &plan, described),
    }
}

/// Describes a plan in a line.
fn described(plan: &ChunkPlan) -> String {
    let (parts, memory) = (plan.parts.len(), plan.memory_bytes.div_ceil(1_000_000));
    let longest = plan
        .parts
        .iter()
        .map(|part| part.seconds)
        .fold(0.0, f64::max);
    format!(
        "{} parts of at most {}, {} from {}; they read {} bytes, and each takes at most {} MB of memory with {} threads unless data are missing for long; {} instructions; the paths of the recordings must be reachable where the parts run, unless --stage fetches them",
        parts,
        show_seconds(longest),
        show_seconds(plan.seconds),
        plan.start,
        show_count(plan.bytes),
        show_count(memory),
        plan.threads,
        plan.simd
    )
}

#[derive(Args)]
#[command(after_help = "\
Writes what one run of `evlbi correlate --out` writes, equal to the bit: visibilities, summary.json and baselines.csv.

Examples:
  evlbi merge job
  # Parts that are missing become gaps without weight:
  evlbi merge job --partial --out so-far")]
pub struct MergeArgs {
    /// Directory of the parts
    #[arg(value_name = "DIR")]
    pub parts: PathBuf,
    /// Write the result into this directory [default: that of the parts]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Continue although parts are missing: their time has weight 0, and they are listed
    #[arg(long)]
    pub partial: bool,
    /// Merge parts that were correlated with different vector instructions: the last digits differ from those of one run
    #[arg(long)]
    pub mixed_simd: bool,
    /// Add amplitude against delay of each baseline to the JSON, at most 512 delays
    #[arg(long, requires = "json")]
    pub profiles: bool,
    /// Overwrite existing results
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// Merges parts.
pub fn merge_parts(args: MergeArgs, program: &Program) -> Result<()> {
    let options = MergeOptions {
        out: args.out.unwrap_or_else(|| args.parts.clone()),
        force: args.force,
        partial: args.partial,
        mixed: args.mixed_simd,
    };
    let merged = merge_into(&args.parts, &options, args.profiles, program)?;
    output::print(args.json, &merged.result, text)?;
    merged.advise(program)
}

/// A merged result, which is written.
pub struct Merged {
    pub result: CorrelateResult,
    interrupted: bool,
}

/// Merges the parts in a directory, and writes the result.
pub fn merge_into(
    parts: &Path,
    options: &MergeOptions,
    profiles: bool,
    program: &Program,
) -> Result<Merged> {
    let summaries = super::correlate::summaries(&options.out);
    check_new(summaries.iter().map(PathBuf::as_path), options.force)?;
    let merged = merge(parts, options, program.run())?;
    let mut result = merged.result(profiles);
    super::correlate::summarise(&mut result, &summaries)?;
    let interrupted = merged.interrupted;
    Ok(Merged {
        result,
        interrupted,
    })
}

impl Merged {
    /// Prints what is missing and what to do, after the result; returns an error if inputs were left out.
    pub fn advise(&self, program: &Program) -> Result<()> {
        let Merged {
            result,
            interrupted,
        } = self;
        advise(result.no_fringe(), None, program);
        advise_delays(result, program);
        for missing in &result.missing {
            let bands: Vec<String> = missing.bands.iter().map(usize::to_string).collect();
            let bands = match bands.join(", ").as_str() {
                "" => String::new(),
                bands => format!(" of bands {bands}"),
            };
            program.run().warn(format_args!(
                "part {} is missing: no data{bands} for {} from {}",
                missing.part,
                show_seconds(missing.seconds),
                missing.start
            ));
        }
        all_of(&result.left_out)?;
        complete(*interrupted).context("the merger")
    }
}
