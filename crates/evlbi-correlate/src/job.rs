//! Determines the time to correlate: a setup, and its dumps that have data.

use std::ops::Range;
use std::sync::Arc;

use evlbi_fx::correlator::Setup;
use evlbi_fx::fringe::Window;

use super::CorrelateError;
use super::plan::{Plan, PlanError};
use super::run::Periods;
use super::series::Series;
use super::station::StationFile;
use evlbi_wire::units::{show_seconds, utc};

/// Minimum number of dumps for a fringe search, if the blocks are short enough.
const MIN_DUMPS: i64 = 64;
/// Dumps per integration of streams.
const LIVE_DUMPS: i64 = 16;
/// Expected number of dumps of a run of unknown length: an hour of 1 s integrations.
const LONG: i64 = 3600 * LIVE_DUMPS;
/// Maximum number of dumps kept of recordings.
const MAX_DUMPS: i64 = 1 << 22;
/// Minimum number of blocks per dump.
pub const MIN_BLOCKS: i64 = 4;

/// A setup and the time to correlate.
pub struct Job {
    pub plan: Plan,
    pub setup: Arc<Setup>,
    pub periods: Periods,
    pub range: Range<i64>,
    pub spans: Vec<Range<i64>>,
}

impl Job {
    /// Selects all integrations in which two recordings have data.
    pub fn of_files(
        plan: Plan,
        files: &[&StationFile],
        window: &Window,
    ) -> Result<Job, CorrelateError> {
        let stations = files.iter().enumerate();
        let spans = stations
            .map(|(index, file)| Ok(plan.span(index, &file.samples(plan.epoch)?)?))
            .collect::<Result<Vec<Range<i64>>, CorrelateError>>()?;
        let rate = plan.part_rate() as f64;
        let common = common(&spans).ok_or_else(|| {
            let second = |part: i64| part as f64 / rate + (plan.epoch + plan.start) as f64;
            let shown = plan.stations.iter().zip(&spans).map(|(station, span)| {
                let [from, to] = [span.start, span.end].map(|part| utc(second(part)));
                format!("{} from {from} to {to}", station.name)
            });
            PlanError::NoOverlap(shown.collect())
        })?;
        let length = common.end - common.start;
        let wanted = (MIN_DUMPS * plan.parts() / length.max(1)).clamp(1, MIN_DUMPS);
        let there = (
            spans.iter().map(|span| span.start).min().unwrap_or(0),
            spans.iter().map(|span| span.end).max().unwrap_or(0),
        );
        let periods = periods(&plan, wanted, window, there);
        if periods.parts < periods.block {
            let why = format!(
                "an integration of {} is shorter than a spectrum of {} channels, {}",
                show_seconds(plan.integration),
                plan.channels,
                show_seconds(periods.block as f64 / rate)
            );
            return Err(PlanError::Unfit(why).into());
        }
        Ok(Job {
            setup: plan.setup((common.start as f64 / rate, common.end as f64 / rate))?,
            range: periods.of(common.start)..periods.of(common.end - 1) + 1,
            plan,
            periods,
            spans,
        })
    }

    /// Selects all of the streams from when two have data. `firsts` are the first samples of those that have arrived.
    pub fn live(plan: Plan, firsts: &[Option<i64>], window: &Window) -> Result<Job, PlanError> {
        let rate = plan.part_rate() as f64;
        let start = |(station, first): (usize, &Option<i64>)| {
            let span = first.map(|first| plan.span(station, &(first..first)));
            Ok(span.transpose()?.map(|span| span.start))
        };
        let starts = firsts.iter().enumerate().map(start);
        let starts = starts.collect::<Result<Vec<Option<i64>>, PlanError>>()?;
        let mut begins: Vec<i64> = starts.iter().flatten().copied().collect();
        begins.sort_unstable();
        let begin = begins.get(1).or(begins.first()).copied().unwrap_or(0);
        let periods = periods(&plan, LIVE_DUMPS, window, (i64::MIN, i64::MAX));
        // An absent stream counts as missing.
        let spans = starts.iter().map(|start| start.unwrap_or(begin)..i64::MAX);
        Ok(Job {
            setup: plan.setup((begin as f64 / rate, begin as f64 / rate + 3600.0))?,
            range: periods.of(begin)..i64::MAX,
            spans: spans.collect(),
            plan,
            periods,
        })
    }

    /// Returns the length of a dump, in seconds.
    pub fn dump_seconds(&self) -> f64 {
        self.plan.integration / self.periods.count as f64
    }

    /// Returns an empty series for the results.
    pub fn series(&self) -> Series {
        let dumps = match self.range.end {
            i64::MAX => LONG,
            end => (end - self.range.start).clamp(0, MAX_DUMPS),
        };
        Series::new(&self.setup, dumps as usize, self.dump_seconds())
    }

    /// Returns the start of a period's integration, in seconds since the start of the grid.
    pub fn begins(&self, period: i64) -> f64 {
        period.div_euclid(self.periods.count) as f64 * self.plan.integration
    }

    /// Returns the UTC this many seconds after the start of the grid.
    pub fn utc(&self, seconds: f64) -> String {
        let start = self.setup.middle(0);
        let moment = start.plus(seconds - self.setup.block_seconds() / 2.0);
        utc(moment.second as f64 + moment.fraction)
    }

    /// Describes a range of dumps in which no station has data.
    pub fn gap(&self, dumps: &Range<i64>) -> String {
        let seconds = |dump: i64| dump as f64 * self.dump_seconds();
        format!(
            "no stream has data from {} to {} ({})",
            self.utc(seconds(dumps.start)),
            self.utc(seconds(dumps.end)),
            show_seconds(seconds(dumps.end - dumps.start))
        )
    }

    /// Returns the correlated parts in which two stations have data.
    pub fn correlated(&self) -> Range<i64> {
        let first = |period: i64| self.periods.first_part(period);
        let all = first(self.range.start)..first(self.range.end);
        let there = common(&self.spans).unwrap_or(all.clone());
        let start = all.start.max(there.start);
        start..all.end.min(there.end).max(start)
    }
}

/// Returns periods of `dumps` dumps per integration, or of as many as resolve the rates of the window, if the blocks are short enough. Data
/// can be in the parts `there`.
fn periods(plan: &Plan, dumps: i64, window: &Window, there: (i64, i64)) -> Periods {
    let (parts, block) = (plan.parts(), 2 * plan.channels as i64);
    let told = (2.0 * window.rate_hz.unwrap_or(0.0) * plan.integration).ceil() as i64;
    let count = dumps.max(told).min(parts / (MIN_BLOCKS * block).max(1));
    Periods {
        count: count.max(1),
        parts,
        block,
        there,
    }
}

/// Returns the time in which at least two have data. A span without an end (never arrived, while others did) counts as empty.
fn common(spans: &[Range<i64>]) -> Option<Range<i64>> {
    let mut starts: Vec<i64> = spans.iter().map(|span| span.start).collect();
    let mut ends: Vec<i64> = spans.iter().map(|span| span.end).collect();
    starts.sort_unstable();
    ends.sort_unstable_by_key(|end| (*end < i64::MAX, *end));
    let common = *starts.get(1)?..*ends.get(ends.len().checked_sub(2)?)?;
    (!common.is_empty()).then_some(common)
}
