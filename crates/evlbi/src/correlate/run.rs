//! Correlates recordings with all processors: one thread reads, the others correlate, and what they find is
//! put in order of time.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};

use anyhow::{Context, Result, anyhow};
use evlbi_fx::correlator::{Correlator, Setup, Sums};
use evlbi_fx::delay::OutsideModel;
use evlbi_fx::track::{Counts, Slab};

use crate::progress::{Progress, interrupt};

/// Where the samples of a station come from.
pub trait Station {
    /// The samples in `range`; those before it are forgotten.
    ///
    /// # Errors
    /// When they cannot be read any more.
    fn slab(&mut self, range: Range<i64>) -> Result<Slab>;

    /// Whether there is anything of these samples, which are waited for as those of [`Station::slab`] are.
    ///
    /// # Errors
    /// When they cannot be read any more.
    fn has(&mut self, _range: Range<i64>) -> Result<bool> {
        Ok(true)
    }

    /// What came in.
    fn counts(&self) -> Counts;

    /// Whether nothing comes any more that lies at or behind a sample. A recording's end is known beforehand.
    fn is_over(&self, _sample: i64) -> bool {
        false
    }
}

/// Samples of a station that are handed to a thread together, about.
const UNIT: i64 = 1 << 20;

/// Periods of equal length on the grid of blocks.
#[derive(Clone, Copy, Debug)]
pub struct Periods {
    /// So many periods last
    pub count: i64,
    /// so many parts.
    pub parts: i64,
    /// Parts of a block.
    pub block: i64,
    /// The parts in which there can be data.
    pub there: (i64, i64),
}

impl Periods {
    /// The blocks that begin in a period and can have data.
    pub fn blocks(&self, period: i64) -> Range<i64> {
        let (from, to) = self.there;
        let start = self.first_block(period).max(from.div_euclid(self.block));
        let end = self
            .first_block(period + 1)
            .min(to.div_euclid(self.block).saturating_add(1));
        start..end.max(start)
    }

    /// The period in which a part lies.
    pub fn of(&self, part: i64) -> i64 {
        let period = i128::from(part) * i128::from(self.count);
        clamp(period.div_euclid(i128::from(self.parts)))
    }

    /// First part of a period, rounded down.
    pub fn first_part(&self, period: i64) -> i64 {
        let part = i128::from(period) * i128::from(self.parts);
        clamp(part.div_euclid(i128::from(self.count)))
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

/// Blocks that one thread correlates, and their samples.
struct Unit {
    period: i64,
    blocks: Range<i64>,
    slabs: Vec<Slab>,
}

/// What is known of a period so far.
struct Pending {
    sums: Sums,
    left: usize,
}

/// Correlates `periods` one by one until Ctrl-C, which ends streams by themselves; `sink` gets the sums of each whole one in
/// order. Says what was read of each station.
pub fn run(
    setup: &Arc<Setup>,
    stations: &mut [impl Station],
    periods: Periods,
    range: Range<i64>,
    threads: usize,
    mut sink: impl FnMut(i64, &Sums) -> Result<()>,
) -> Result<Vec<Counts>> {
    let stop = interrupt();
    // A stream shows what it finds instead.
    let is_stream = range.end == i64::MAX;
    let mut progress = Progress::new(Some((range.end - range.start) as u64).filter(|_| !is_stream));
    let (to_workers, units) = mpsc::sync_channel::<Unit>(2 * threads);
    let units = Mutex::new(units);
    let (to_main, found) = mpsc::channel::<Result<(i64, Sums), OutsideModel>>();
    std::thread::scope(|scope| -> Result<()> {
        for _ in 0..threads {
            let (units, to_main) = (&units, to_main.clone());
            scope.spawn(move || work(setup, units, &to_main));
        }
        drop(to_main);
        let mut order = Order {
            pending: BTreeMap::new(),
            next: range.start,
        };
        'periods: for period in range.clone() {
            if (stop.load(Ordering::Relaxed) && !is_stream)
                || are_over(setup, stations, periods.blocks(period))?
            {
                break;
            }
            // A gap of hours in all streams takes no time.
            let pieces = match has_any(setup, stations, periods.blocks(period))? {
                true => pieces(setup, periods.blocks(period)),
                false => Vec::new(),
            };
            order.expect(setup, period, pieces.len());
            for blocks in pieces {
                if stop.load(Ordering::Relaxed) && !is_stream {
                    // A part of a period would look like a period with loss.
                    order.pending.remove(&period);
                    break 'periods;
                }
                let slabs = slabs(setup, stations, &blocks)?;
                let unit = Unit {
                    period,
                    blocks,
                    slabs,
                };
                to_workers
                    .send(unit)
                    .map_err(|_| anyhow!("a correlating thread ended early"))?;
                for done in found.try_iter() {
                    order.add(done?, &mut sink)?;
                }
            }
            order.finish(&mut sink)?;
            if progress.is_due() && !is_stream {
                let done = period - range.start;
                progress.show(
                    done as u64,
                    &format!("{done} of {} periods", range.end - range.start),
                );
            }
        }
        drop(to_workers);
        for done in found {
            order.add(done?, &mut sink)?;
        }
        order.finish(&mut sink)
    })?;
    progress.finish();
    Ok(stations.iter().map(Station::counts).collect())
}

/// Whether no station has anything for these blocks.
fn are_over(setup: &Setup, stations: &[impl Station], blocks: Range<i64>) -> Result<bool> {
    for (index, station) in stations.iter().enumerate() {
        let samples = samples(setup, index, &blocks)?;
        if !station.is_over(samples.start) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether any station has something of these blocks.
fn has_any(setup: &Setup, stations: &mut [impl Station], blocks: Range<i64>) -> Result<bool> {
    for (index, station) in stations.iter_mut().enumerate() {
        if station.has(samples(setup, index, &blocks)?)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn samples(setup: &Setup, station: usize, blocks: &Range<i64>) -> Result<Range<i64>> {
    let name = &setup.stations()[station].name;
    setup
        .samples(station, blocks.clone())
        .with_context(|| format!("station {name}"))
}

fn work(
    setup: &Arc<Setup>,
    units: &Mutex<mpsc::Receiver<Unit>>,
    to_main: &mpsc::Sender<Result<(i64, Sums), OutsideModel>>,
) {
    let mut correlator = Correlator::new(setup);
    loop {
        let unit = match units.lock() {
            Ok(units) => units.recv(),
            Err(_) => return,
        };
        let Ok(unit) = unit else {
            return;
        };
        let sums = correlator.correlate(&unit.slabs, unit.blocks);
        if to_main.send(sums.map(|sums| (unit.period, sums))).is_err() {
            return;
        }
    }
}

/// Cuts blocks into pieces for the threads.
fn pieces(setup: &Setup, blocks: Range<i64>) -> Vec<Range<i64>> {
    let most = (UNIT / setup.block_parts()).max(1);
    let mut pieces = Vec::new();
    let mut from = blocks.start;
    while from < blocks.end {
        let to = (from + most).min(blocks.end);
        pieces.push(from..to);
        from = to;
    }
    pieces
}

fn slabs(setup: &Setup, stations: &mut [impl Station], blocks: &Range<i64>) -> Result<Vec<Slab>> {
    let mut slabs = Vec::with_capacity(stations.len());
    for (index, station) in stations.iter_mut().enumerate() {
        slabs.push(station.slab(samples(setup, index, blocks)?)?);
    }
    Ok(slabs)
}

/// Hands periods on in their order.
struct Order {
    pending: BTreeMap<i64, Pending>,
    next: i64,
}

impl Order {
    fn expect(&mut self, setup: &Setup, period: i64, pieces: usize) {
        let pending = Pending {
            sums: Sums::new(setup),
            left: pieces,
        };
        self.pending.insert(period, pending);
    }

    fn add(
        &mut self,
        (period, sums): (i64, Sums),
        sink: &mut impl FnMut(i64, &Sums) -> Result<()>,
    ) -> Result<()> {
        if let Some(pending) = self.pending.get_mut(&period) {
            pending.sums.add(&sums);
            pending.left -= 1;
        }
        self.finish(sink)
    }

    fn finish(&mut self, sink: &mut impl FnMut(i64, &Sums) -> Result<()>) -> Result<()> {
        while let Some(entry) = self.pending.first_entry()
            && *entry.key() == self.next
            && entry.get().left == 0
        {
            sink(self.next, &entry.remove().sums)?;
            self.next += 1;
        }
        Ok(())
    }
}
