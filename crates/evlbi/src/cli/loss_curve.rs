//! `evlbi loss-curve`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use evlbi_core::shed::Replace;

use super::choice::{Choices, choice, names};
use super::correlate::CorrelatorArgs;
use crate::loss_curve::{self, DEFAULT_LOSSES, Kind, Knows, LossCurveOptions, Losses};
use crate::output;
use crate::program::{Program, complete};

pub const HELP: &str = "\
Each point sheds frames of one station (or of both) on their way from the file, correlates, and is held against the
theory. Ratios are to the whole recordings. Replaced by random bytes or the fill pattern, lost frames look valid to a
correlator that knows headers only (--knows headers); one that knows the gaps leaves them out (--knows all). Both are
shown; --knows papers loses a frame more after each gap.

Example:
  evlbi loss-curve Ef.vdif Jb.vdif --station 2 --loss 0.5%..20% --shed every,bunch --replace nothing,fill";

const KINDS: Choices<Kind> = &[
    ("every", "Steadily, one in so many", Kind::Every),
    ("bunch", "In bunches of 1 to 10", Kind::Bunch),
    ("random", "By chance", Kind::Random),
    ("burst", "By chance in bursts", Kind::Burst),
    (
        "common",
        "Alike at all stations, in blocks of time or whole threads",
        Kind::Common,
    ),
];

const REPLACEMENTS: Choices<Replace> = &[
    ("nothing", "", Replace::Nothing),
    ("fill", "", Replace::Fill),
    ("invalid", "", Replace::Invalid),
    ("random", "", Replace::Random),
];

const KNOWLEDGE: Choices<Knows> = &[
    (
        "all",
        "All that there is to know: invalid bits, fill pattern, lists of gaps",
        Knows::All,
    ),
    ("headers", "Invalid bits alone", Knows::Headers),
    (
        "papers",
        "Invalid bits alone, and after each gap one frame more is lost until frames are found again",
        Knows::Papers,
    ),
];

#[derive(Args)]
pub struct LossCurveArgs {
    /// Recordings, of which two are correlated: that of --station and the first other
    #[arg(required = true, num_args = 2..=32)]
    pub files: Vec<String>,
    /// Which station loses data, from 1 on
    #[arg(long, value_name = "N", default_value_t = LossCurveOptions::default().station, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub station: u8,
    /// Fractions that are lost: a list or a range
    #[arg(long, value_name = "FRACTIONS", default_value = DEFAULT_LOSSES)]
    pub loss: Losses,
    /// How frames are shed
    #[arg(long, value_parser = choice(KINDS), value_delimiter = ',', default_values = names(KINDS, &LossCurveOptions::default().shed))]
    pub shed: Vec<Kind>,
    /// What stands in their place
    #[arg(long, value_parser = choice(REPLACEMENTS), value_delimiter = ',', default_values = names(REPLACEMENTS, &LossCurveOptions::default().replace))]
    pub replace: Vec<Replace>,
    /// What the correlator knows of the loss: curves of each
    #[arg(long, value_parser = choice(KNOWLEDGE), value_delimiter = ',', default_values = names(KNOWLEDGE, &LossCurveOptions::default().knows))]
    pub knows: Vec<Knows>,
    /// Seed of all random choices
    #[arg(long, default_value_t = LossCurveOptions::default().seed)]
    pub seed: u64,
    #[command(flatten)]
    pub options: CorrelatorArgs,
    /// Write the curves and their pictures here
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Overwrite results that exist
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

impl From<LossCurveArgs> for LossCurveOptions {
    fn from(args: LossCurveArgs) -> LossCurveOptions {
        let LossCurveArgs {
            files,
            station,
            loss,
            shed,
            replace,
            knows,
            seed,
            options,
            out,
            force,
            json: _,
        } = args;
        LossCurveOptions {
            files,
            station,
            loss,
            shed,
            replace,
            knows,
            seed,
            correlate: options.into(),
            out,
            force,
        }
    }
}

/// Measures the curves that are asked for.
pub fn run(args: LossCurveArgs, program: &Program) -> Result<()> {
    let json = args.json;
    let result = loss_curve::measure(&args.into(), program.run())?;
    output::print(json, &result, loss_curve::text)?;
    complete(result.interrupted)
}
