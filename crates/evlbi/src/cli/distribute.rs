//! `evlbi distribute`: the parts of a correlation on an engine.

use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, bail};
use clap::Args;
use evlbi_correlate::chunks::{ChunkPlan, MergeOptions, Stage};
use evlbi_correlate::distribute::{
    Dask, Distribution, Engine, Local, Slurm, Task, Tls, distribute,
};
use evlbi_correlate::text;
use evlbi_net::cpu::allowed_cores;
use evlbi_net::file::check_new;
use parking_lot::Mutex;

use super::choice::{Choices, choice};
use super::chunks::merge_into;
use crate::output::Results;
use crate::program::{Program, complete};
use crate::status::{TryAgain, Usage};

/// Engines by name.
const ENGINES: Choices<EngineName> = &[
    ("local", "Run parts on this host", EngineName::Local),
    (
        "slurm",
        "Submit arrays of jobs by sbatch",
        EngineName::Slurm,
    ),
    (
        "dask",
        "Submit tasks to a Dask scheduler, by the Python package evlbi_dask",
        EngineName::Dask,
    ),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineName {
    Local,
    Slurm,
    Dask,
}

#[derive(Args)]
#[command(after_help = "\
Correlates the parts that the directory lacks, and merges all of them. It can be killed and run again: parts that are \
done stay, and jobs of Slurm and tasks of Dask that still run are followed. Plan, program and directory must have the same paths on all hosts. A \
part that fails for a passing reason is tried again; one that runs far longer than the others gets a second \
copy. If a part fails for good, the others are still correlated, nothing is merged, and the exit status is 1.

Examples:
  evlbi distribute job.chunks.json --engine local --jobs 2
  evlbi distribute job.chunks.json --engine slurm --sbatch=--partition=vlbi --sbatch=--mem=4G
  evlbi distribute job.chunks.json --engine dask --scheduler tcp://127.0.0.1:8786")]
pub struct DistributeArgs {
    /// Plan of `evlbi plan chunks`
    pub plan: PathBuf,
    /// Engine that runs the parts
    #[arg(long, value_parser = choice(ENGINES))]
    pub engine: EngineName,
    /// Directory of the parts and of the result [default: the plan's name without .chunks.json]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Run at most this many parts at once; not with dask, which has its workers [default: local: CPUs / threads of a part; slurm: as many as fit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub jobs: Option<u32>,
    /// Try a part this many times again if it was killed or may succeed later
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(..=100))]
    pub retries: u32,
    /// Path of evlbi on the hosts [default: that of this program]
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Fetch the bytes of recordings by this line for the shell, as of `evlbi correlate --stage`
    #[arg(long, value_name = "COMMAND")]
    pub stage: Option<Stage>,
    /// With slurm: further option of sbatch, e.g. --sbatch=--partition=vlbi; can be repeated
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub sbatch: Vec<String>,
    /// With dask: address of the scheduler; tcp:// on this host only, tls:// anywhere
    #[arg(long, value_name = "ADDRESS")]
    pub scheduler: Option<String>,
    /// With dask: certificates of authorities, for tls://
    #[arg(long, value_name = "FILE", requires = "tls_cert", requires = "tls_key")]
    pub tls_ca: Option<PathBuf>,
    /// With dask: certificate of this client
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    pub tls_cert: Option<PathBuf>,
    /// With dask: key of this client
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    pub tls_key: Option<PathBuf>,
    /// With dask: Python that has the package evlbi_dask
    #[arg(long, value_name = "FILE", default_value = "python3")]
    pub python: PathBuf,
    /// Merge although parts failed: their time has weight 0, and they are listed
    #[arg(long)]
    pub partial: bool,
    /// Overwrite existing results
    #[arg(long)]
    pub force: bool,
    /// Print the progress once a second and then the result, each as a line of JSON
    #[arg(long)]
    pub json: bool,
}

/// Runs the parts of a plan on an engine, and merges them.
pub fn run(args: &DistributeArgs, program: &Program) -> Result<()> {
    check(args)?;
    let plan = ChunkPlan::read(&args.plan)?;
    let out = args.out.clone().unwrap_or_else(|| beside(&args.plan));
    let out =
        std::path::absolute(&out).with_context(|| format!("cannot find {}", out.display()))?;
    let options = MergeOptions {
        out: out.clone(),
        force: args.force,
        partial: args.partial,
        mixed: false,
    };
    let summaries = super::correlate::summaries(&out);
    check_new(summaries.iter().map(PathBuf::as_path), options.force)?;
    let mut engine = engine_of(args, &plan, &out)?;
    let results = Mutex::new(Results::default());
    let mut show = |state: &Distribution| {
        if args.json {
            // A line that cannot be printed ends nothing.
            let _ = results.lock().show(true, state, Distribution::text);
        }
    };
    let ended = distribute(&plan, &out, engine.as_mut(), program.run(), &mut show);
    let ended = ended.map_err(|error| match error.is_temporary() {
        true => Error::from(error).context(TryAgain),
        false => error.into(),
    })?;
    complete(ended.interrupted).context(TryAgain)?;
    program.run().say(format_args!("{}", ended.text()));
    let failed: Vec<String> = ended.failed.iter().map(|it| it.part.to_string()).collect();
    let failed = failed.join(", ");
    if !failed.is_empty() && !args.partial {
        let error = anyhow!(
            "not merged, as parts failed for the reasons above: {failed}; run the same command again once the cause is mended, or with --partial"
        );
        return Err(match ended.may_succeed() {
            true => error.context(TryAgain),
            false => error,
        });
    }
    let merged = merge_into(&out, &options, false, program)?;
    let mut results = results.into_inner();
    results.show(args.json, &merged.result, text)?;
    results.end()?;
    merged.advise(program)?;
    match failed.is_empty() {
        true => Ok(()),
        false => bail!("merged without the parts that failed: {failed}"),
    }
}

/// Checks that the options are those of the engine.
fn check(args: &DistributeArgs) -> Result<()> {
    let is = |engine| args.engine == engine;
    let lacks = match () {
        () if is(EngineName::Dask) && args.scheduler.is_none() => {
            "dask needs a scheduler: give --scheduler ADDRESS"
        }
        () if !is(EngineName::Dask) && (args.scheduler.is_some() || args.tls_ca.is_some()) => {
            "--scheduler and --tls-ca are for --engine dask"
        }
        () if is(EngineName::Dask) && args.jobs.is_some() => {
            "--jobs has no effect with dask: start as many workers"
        }
        () if !is(EngineName::Slurm) && !args.sbatch.is_empty() => "--sbatch is for --engine slurm",
        () if args.sbatch.iter().any(|option| is_ours(option)) => {
            "--sbatch cannot change the name, the array or the log of the jobs, by which they are followed"
        }
        () => return Ok(()),
    };
    bail!(Usage(lacks.to_owned()))
}

/// Returns whether an option of sbatch is one that the script has, and that jobs are followed by.
fn is_ours(option: &str) -> bool {
    const OURS: [&str; 6] = ["--job-name", "-J", "--array", "-a", "--output", "-o"];
    OURS.iter().any(|ours| {
        let rest = option.strip_prefix(ours);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('=') || !ours.starts_with("--"))
    })
}

/// Returns the directory next to a plan with its name.
fn beside(plan: &Path) -> PathBuf {
    let name = plan.with_extension("");
    match name.extension() {
        Some(extension) if extension == "chunks" => name.with_extension(""),
        _ if name == plan => plan.with_extension("parts"),
        _ => name,
    }
}

fn engine_of(args: &DistributeArgs, plan: &ChunkPlan, out: &Path) -> Result<Box<dyn Engine>> {
    let program = match &args.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().context("cannot find this program: give --program")?,
    };
    let stage = args.stage.iter();
    let stage = stage.flat_map(|stage| ["--stage".to_owned(), stage.to_string()]);
    let task = Task {
        program,
        plan: std::path::absolute(&args.plan)
            .with_context(|| format!("cannot find {}", args.plan.display()))?,
        directory: out.to_owned(),
        arguments: stage.collect(),
        retries: args.retries,
    };
    let jobs = args.jobs.map(|jobs| jobs as usize);
    Ok(match args.engine {
        EngineName::Local => {
            let cores = allowed_cores().map_or(1, |cores| cores.len());
            let fitting = (cores / plan.threads.max(1)).max(1);
            Box::new(Local::new(task, jobs.unwrap_or(fitting)))
        }
        EngineName::Slurm => Box::new(Slurm::new(task, plan, jobs, args.sbatch.clone())),
        EngineName::Dask => {
            let tls = match (&args.tls_ca, &args.tls_cert, &args.tls_key) {
                (Some(ca), Some(certificate), Some(key)) => Some(Tls {
                    ca: ca.clone(),
                    certificate: certificate.clone(),
                    key: key.clone(),
                }),
                _ => None,
            };
            let scheduler = args.scheduler.clone().unwrap_or_default();
            Box::new(Dask::new(task, args.python.clone(), scheduler, tls))
        }
    })
}
