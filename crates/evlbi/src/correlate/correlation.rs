//! What came of a run, to be asked for fringes.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Result, bail};
use evlbi_fx::correlator::{Input, Setup};
use evlbi_fx::fringe::{Fringe, Window};
use evlbi_fx::track::Counts;

use super::job::Job;
use super::plan::Shape;
use super::result::{BaselineResult, baselines};
use super::series::{Found, Series};
use super::station::Tampered;
use super::window;
use crate::cli::CorrelateOptions;
use crate::progress::interrupt;

/// What came of a run.
pub struct Correlation {
    pub setup: Arc<Setup>,
    pub series: Series,
    pub(super) names: Vec<String>,
    pub(super) visibilities: Option<PathBuf>,
    pub(super) counts: Vec<Counts>,
    /// Of each station what tampering did.
    pub(super) tampered: Vec<Option<Tampered>>,
    pub(super) threads: Vec<usize>,
    /// Whether Ctrl-C came before the end: what was correlated is whole periods until then.
    pub interrupted: bool,
    /// Parts since the grid's beginning in which each station could have had data, and those correlated.
    pub(super) spans: Vec<Range<i64>>,
    pub(super) correlated: Range<i64>,
    pub(super) integration: f64,
}

impl Correlation {
    /// What came of streams, which ended at these parts.
    pub fn of_streams(
        job: &Job,
        series: Series,
        names: Vec<String>,
        counts: Vec<Counts>,
        shapes: &[Shape],
        dumps: Range<i64>,
        ends: &[i64],
    ) -> Correlation {
        let correlated = job.periods.first_part(dumps.start)..job.periods.first_part(dumps.end);
        Correlation {
            setup: Arc::clone(&job.setup),
            series,
            visibilities: None,
            interrupted: interrupt().load(Ordering::Relaxed),
            counts,
            tampered: vec![None; names.len()],
            threads: shapes.iter().map(|shape| shape.threads.len()).collect(),
            spans: ends
                .iter()
                .map(|end| correlated.start..correlated.end.min(*end).max(correlated.start))
                .collect(),
            correlated,
            integration: job.integration,
            names,
        }
    }

    /// # Errors
    /// When Ctrl-C came before there was anything.
    pub fn has_any(&self) -> Result<()> {
        match self.interrupted && self.series.added == 0 {
            true => bail!("interrupted before anything was correlated"),
            false => Ok(()),
        }
    }

    /// The parts in which both stations of a product could have had data.
    pub fn span(&self, a: Input, b: Input) -> i64 {
        let (a, b) = (&self.spans[a.station], &self.spans[b.station]);
        let start = a.start.max(b.start).max(self.correlated.start);
        let end = a.end.min(b.end).min(self.correlated.end);
        (end - start).max(0)
    }

    /// The fringes of all baselines.
    pub fn fringes(&self, options: &CorrelateOptions) -> Vec<BaselineResult> {
        baselines(&self.setup, &self.names, &self.found(options))
    }

    pub(super) fn found(&self, options: &CorrelateOptions) -> Vec<Found> {
        let window = window(options);
        let products = 0..self.setup.products().len();
        products.map(|index| self.find(index, &window)).collect()
    }

    /// Parts that were correlated.
    pub fn parts(&self) -> i64 {
        self.correlated.end - self.correlated.start
    }

    /// What tampering did to a station's frames.
    pub fn tampered(&self, station: usize) -> Option<Tampered> {
        self.tampered.get(station).copied().flatten()
    }

    /// The first block that was correlated.
    pub fn first_block(&self) -> i64 {
        self.correlated.start / self.setup.block_parts()
    }

    /// A product at a delay and rate that are known.
    pub fn find_at(&self, index: usize, known: &Fringe) -> Found {
        let product = self.setup.products()[index];
        self.series
            .find_at(index, self.span(product.a, product.b), known)
    }

    /// Finds the fringe of a product.
    pub fn find(&self, index: usize, window: &Window) -> Found {
        let product = self.setup.products()[index];
        self.series
            .find(index, self.span(product.a, product.b), window)
    }
}
