//! What came of a run, to be asked for fringes.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use evlbi_fx::correlator::{Input, Setup};
use evlbi_fx::fringe::{Fringe, Window};
use evlbi_fx::track::Counts;

use super::live::StreamResult;
use super::result::{BaselineResult, baselines};
use super::series::{Found, Series};
use super::station::Tampered;

/// What came of a run.
pub struct Correlation {
    pub setup: Arc<Setup>,
    pub series: Series,
    pub(super) names: Vec<String>,
    /// Where the stations' data came from.
    pub(super) sources: Vec<String>,
    /// Where fringes are searched.
    pub(super) window: Window,
    /// What was received, of streams.
    pub(super) streams: Vec<StreamResult>,
    pub(super) visibilities: Option<PathBuf>,
    pub(super) counts: Vec<Counts>,
    /// Of each station what tampering did.
    pub(super) tampered: Vec<Option<Tampered>>,
    pub(super) threads: Vec<usize>,
    /// Whether it was stopped before the end: what was correlated is whole periods until then.
    pub interrupted: bool,
    /// Parts since the grid's beginning in which each station could have had data, and those correlated.
    pub(super) spans: Vec<Range<i64>>,
    pub(super) correlated: Range<i64>,
    pub(super) integration: f64,
}

impl Correlation {
    /// # Errors
    /// When it was stopped before there was anything.
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
    pub fn fringes(&self) -> Vec<BaselineResult> {
        baselines(&self.setup, &self.names, &self.found())
    }

    pub(super) fn found(&self) -> Vec<Found> {
        let products = 0..self.setup.products().len();
        products.map(|index| self.find(index)).collect()
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
    pub fn find(&self, index: usize) -> Found {
        let product = self.setup.products()[index];
        self.series
            .find(index, self.span(product.a, product.b), &self.window)
    }
}
