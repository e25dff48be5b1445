//! Correlates on all CPUs: one thread reads, the others correlate, and the results are put in order of time.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::thread;

use evlbi_fx::correlator::{Correlator, Setup, Sums};
use evlbi_fx::delay::OutsideModel;
use evlbi_fx::track::{Counts, Slab};
use evlbi_net::run::Run;
use parking_lot::Mutex;

use super::CorrelateError;
use super::plan::{PlanError, sample_parts};

/// A source of a station's samples.
pub trait Station {
    /// Returns the samples in `range`; earlier ones are dropped.
    ///
    /// # Errors
    /// Returns an error if reading fails.
    fn slab(&mut self, range: Range<i64>) -> Result<Slab, CorrelateError>;

    /// Returns the first sample of the earliest data in or after `range`, once `range` has arrived as for [`Station::slab`]; `None` if no
    /// data is held.
    ///
    /// # Errors
    /// Returns an error if reading fails.
    fn first(&mut self, range: Range<i64>) -> Result<Option<i64>, CorrelateError> {
        Ok(Some(range.start))
    }

    /// Returns the counts of the frames read.
    fn counts(&self) -> Counts;

    /// Returns whether no data at or after a sample can arrive any more. The end of a recording is known beforehand.
    fn is_over(&self, _sample: i64) -> bool {
        false
    }
}

/// Approximate number of a station's samples that a thread receives at once.
pub const UNIT: i64 = 1 << 20;

/// Periods of equal length on the grid of blocks: `count` periods last `parts` parts.
#[derive(Clone, Copy, Debug)]
pub struct Periods {
    /// Number of periods
    pub count: i64,
    /// in this many parts.
    pub parts: i64,
    /// Parts per block.
    pub block: i64,
    /// Range of parts in which data can be.
    pub there: (i64, i64),
}

impl Periods {
    /// Returns the blocks that begin in a period and can have data.
    pub fn blocks(&self, period: i64) -> Range<i64> {
        let (from, to) = self.there;
        let start = self.first_block(period).max(from.div_euclid(self.block));
        let end = self
            .first_block(period + 1)
            .min(to.div_euclid(self.block).saturating_add(1));
        start..end.max(start)
    }

    /// Returns the period that contains a part.
    pub fn of(&self, part: i64) -> i64 {
        let period = i128::from(part) * i128::from(self.count);
        clamp(period.div_euclid(i128::from(self.parts)))
    }

    /// Returns the first part of a period, rounded down.
    pub fn first_part(&self, period: i64) -> i64 {
        let part = i128::from(period) * i128::from(self.parts);
        clamp(part.div_euclid(i128::from(self.count)))
    }

    /// Returns the next period to examine if there are no data for `parts` parts: slightly before that of the data, as delays change in
    /// between.
    fn behind(&self, period: i64, parts: i64) -> i64 {
        let periods = self.of(parts);
        period.saturating_add((periods - periods / 1000 - 1).max(1))
    }

    fn first_block(&self, period: i64) -> i64 {
        let part = i128::from(period) * i128::from(self.parts);
        let blocks = i128::from(self.count) * i128::from(self.block);
        clamp(-(-part).div_euclid(blocks))
    }
}

fn clamp(number: i128) -> i64 {
    i64::try_from(number).unwrap_or(if number < 0 { i64::MIN } else { i64::MAX })
}

/// Blocks for one thread, and their samples.
struct Unit {
    period: i64,
    /// Number in its period.
    number: usize,
    blocks: Range<i64>,
    slabs: Vec<Slab>,
}

/// A period, the number of a unit in it, and the sums that the unit adds to it.
type Found = Result<(i64, usize, Sums), OutsideModel>;

/// Sums of an unfinished period. Units are added in order of time, so that sums are rounded in the same way in every run.
struct Pending {
    sums: Sums,
    /// Number of units that were added, and of all.
    added: usize,
    all: usize,
    /// Units whose turn has not come.
    early: BTreeMap<usize, Sums>,
}

/// Correlates `periods` in order with this many threads, until the run is stopped (which ends streams anyway). Passes the sums of each
/// whole period to `sink`, in order of time, but none without data of any station: a gap in all streams costs nothing, however long it is.
/// Returns the counts of each station.
pub fn run(
    setup: &Arc<Setup>,
    stations: &mut [impl Station],
    periods: Periods,
    range: Range<i64>,
    threads: usize,
    run: &Run,
    sink: impl FnMut(i64, &Sums) -> Result<(), CorrelateError>,
) -> Result<Vec<Counts>, CorrelateError> {
    // A stream shows its results instead.
    let is_stream = range.end == i64::MAX;
    let mut progress = run.progress((!is_stream).then(|| (range.end - range.start) as u64));
    let (to_workers, units) = mpsc::sync_channel::<Unit>(2 * threads);
    let units = Mutex::new(units);
    let (to_main, found) = mpsc::channel();
    // One thread is this one; so is it in virtual time.
    let is_alone = threads == 1 || !run.clock().is_real();
    let mut own = is_alone.then(|| Correlator::new(setup));
    thread::scope(|scope| -> Result<(), CorrelateError> {
        for _ in 0..if is_alone { 0 } else { threads } {
            let (units, to_main) = (&units, to_main.clone());
            thread::Builder::new()
                .spawn_scoped(scope, move || work(setup, units, &to_main))
                .map_err(CorrelateError::Spawn)?;
        }
        let mut order = Order {
            pending: BTreeMap::new(),
            sink,
        };
        let mut period = range.start;
        'periods: while period < range.end {
            let blocks = periods.blocks(period);
            if (run.is_stopped() && !is_stream) || are_over(setup, stations, &blocks)? {
                break;
            }
            for done in found.try_iter() {
                order.add(done?)?;
            }
            if let Some(parts) = gap(setup, stations, &blocks)? {
                period = periods.behind(period, parts);
                continue;
            }
            let pieces = pieces(setup, blocks);
            let pending = Pending {
                sums: Sums::new(setup),
                added: 0,
                all: pieces.len(),
                early: BTreeMap::new(),
            };
            order.pending.insert(period, pending);
            for (number, blocks) in pieces.into_iter().enumerate() {
                if run.is_stopped() && !is_stream {
                    // A part of a period would look like a period with loss.
                    order.pending.remove(&period);
                    break 'periods;
                }
                let slabs = stations.iter_mut().enumerate();
                let slabs = slabs
                    .map(|(index, station)| station.slab(samples(setup, index, &blocks)?))
                    .collect::<Result<Vec<Slab>, CorrelateError>>()?;
                let unit = Unit {
                    period,
                    number,
                    blocks,
                    slabs,
                };
                to_workers.send(unit).map_err(|_| CorrelateError::Thread)?;
                if let Some(correlator) = &mut own {
                    step(correlator, &units, &to_main);
                }
                for done in found.try_iter() {
                    order.add(done?)?;
                }
            }
            order.finish()?;
            if progress.is_due() && !is_stream {
                let (done, all) = (period - range.start, range.end - range.start);
                progress.show(done as u64, &format!("{done} of {all} periods"));
            }
            period += 1;
        }
        drop((to_workers, to_main));
        for done in found {
            order.add(done?)?;
        }
        order.finish()
    })?;
    Ok(stations.iter().map(Station::counts).collect())
}

/// Returns whether no station has data for these blocks or later.
fn are_over(
    setup: &Setup,
    stations: &[impl Station],
    blocks: &Range<i64>,
) -> Result<bool, CorrelateError> {
    for (index, station) in stations.iter().enumerate() {
        if !station.is_over(samples(setup, index, blocks)?.start) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the parts from the end of these blocks to the earliest data of any station; `None` if the blocks have data.
fn gap(
    setup: &Setup,
    stations: &mut [impl Station],
    blocks: &Range<i64>,
) -> Result<Option<i64>, CorrelateError> {
    let mut gaps = Vec::new();
    for (index, station) in stations.iter_mut().enumerate() {
        let range = samples(setup, index, blocks)?;
        let Some(first) = station.first(range.clone())? else {
            continue;
        };
        if first < range.end {
            return Ok(None);
        }
        let parts = sample_parts(&setup.stations()[index].layout);
        gaps.push(first.saturating_sub(range.end).saturating_mul(parts));
    }
    Ok(Some(gaps.into_iter().min().unwrap_or(0)))
}

pub fn samples(
    setup: &Setup,
    station: usize,
    blocks: &Range<i64>,
) -> Result<Range<i64>, PlanError> {
    let name = &setup.stations()[station].name;
    let samples = setup.samples(station, blocks.clone());
    samples.map_err(PlanError::outside(name))
}

fn work(setup: &Arc<Setup>, units: &Mutex<mpsc::Receiver<Unit>>, to_main: &mpsc::Sender<Found>) {
    let mut correlator = Correlator::new(setup);
    while step(&mut correlator, units, to_main) {}
}

/// Correlates a unit. Returns whether there may be more.
fn step(
    correlator: &mut Correlator,
    units: &Mutex<mpsc::Receiver<Unit>>,
    to_main: &mpsc::Sender<Found>,
) -> bool {
    let Ok(unit) = units.lock().recv() else {
        return false;
    };
    let sums = correlator.correlate(&unit.slabs, unit.blocks);
    let found = sums.map(|sums| (unit.period, unit.number, sums));
    to_main.send(found).is_ok()
}

/// Returns the number of blocks that a thread gets at once.
pub fn unit(setup: &Setup) -> i64 {
    (UNIT / setup.block_parts()).max(1)
}

/// Divides blocks into pieces for the threads.
pub fn pieces(setup: &Setup, blocks: Range<i64>) -> Vec<Range<i64>> {
    let most = unit(setup);
    let begins = blocks.clone().step_by(most as usize);
    begins
        .map(|from| from..(from + most).min(blocks.end))
        .collect()
}

/// Buffer that releases periods in order of time.
struct Order<S> {
    pending: BTreeMap<i64, Pending>,
    sink: S,
}

impl<S: FnMut(i64, &Sums) -> Result<(), CorrelateError>> Order<S> {
    fn add(&mut self, (period, number, sums): (i64, usize, Sums)) -> Result<(), CorrelateError> {
        if let Some(pending) = self.pending.get_mut(&period) {
            pending.early.insert(number, sums);
            while let Some(sums) = pending.early.remove(&pending.added) {
                pending.sums.add(&sums);
                pending.added += 1;
            }
        }
        self.finish()
    }

    fn finish(&mut self) -> Result<(), CorrelateError> {
        while let Some(entry) = self.pending.first_entry()
            && entry.get().added == entry.get().all
        {
            let (period, pending) = entry.remove_entry();
            (self.sink)(period, &pending.sums)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use evlbi_fx::track::{Track, Trust};
    use evlbi_fx::unpack::Unpacker;

    use super::*;
    use crate::series::tests::setup;

    /// All of a stream that has ended.
    struct Past {
        track: Track,
        asked: usize,
    }

    impl Station for Past {
        fn slab(&mut self, range: Range<i64>) -> Result<Slab, CorrelateError> {
            self.track.forget(range.start);
            Ok(self.track.slab(range))
        }

        fn first(&mut self, range: Range<i64>) -> Result<Option<i64>, CorrelateError> {
            self.asked += 1;
            self.track.forget(range.start);
            Ok(self.track.earliest())
        }

        fn counts(&self) -> Counts {
            self.track.counts()
        }

        fn is_over(&self, sample: i64) -> bool {
            self.track.held(sample) == 0
        }
    }

    /// A gap of a year between data of both stations is passed in a few steps, and none of its periods is released.
    #[test]
    fn a_gap_costs_nothing_however_long_it_is() {
        let setup = setup();
        let layout = setup.stations()[0].layout;
        // A frame per period.
        let samples = layout.frame_samples();
        let periods = Periods {
            count: 1,
            parts: samples,
            block: 16,
            there: (i64::MIN, i64::MAX),
        };
        let year = 365 * 86_400 * i64::from(layout.frame_rate.get());
        let mut stations = [0, 1].map(|station| {
            let mut track = Track::new(&Unpacker::plain(layout), &[0], Trust::Exact);
            // They do not start and end together.
            for number in (10..14 + station).chain(year - station..year + 4) {
                track.push(0, number, false, &[0x5a; 1000]);
            }
            Past { track, asked: 0 }
        });
        let mut found = Vec::new();
        run(
            &setup,
            &mut stations,
            periods,
            10..i64::MAX,
            2,
            &Run::silent(),
            |period, sums| {
                if sums.inputs.iter().any(|input| input.good > 0) {
                    found.push(period);
                }
                Ok(())
            },
        )
        .unwrap();
        let expected: Vec<i64> = (10..15).chain(year - 1..year + 4).collect();
        assert_eq!(found, expected);
        let asked = stations.map(|station| station.asked);
        assert!(asked.iter().all(|asked| *asked < 40), "{asked:?}");
    }
}
