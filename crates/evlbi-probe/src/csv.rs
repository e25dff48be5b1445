//! Datagrams and losses one by one, as CSV.

use std::fs::File;
use std::path::Path;

use evlbi_net::file::{Table, TableError};

use super::direction::Direction;
use super::point::Point;
use crate::endpoint::Keep;
use crate::measure::{ClockFit, Record};

/// The files, where they are asked for.
pub struct Records {
    datagrams: Option<Table<File>>,
    losses: Option<Table<File>>,
    keep: Keep,
}

impl Records {
    /// Of each point's losses, those that `keep` says; of its datagrams the receiver has kept no others.
    pub fn new(
        datagrams: Option<&Path>,
        losses: Option<&Path>,
        keep: Keep,
    ) -> Result<Records, TableError> {
        let of_datagrams = "point,direction,sequence,departed_ns,arrived_ns,delay_ns,departed_after_ns,arrived_after_ns";
        let of_losses = "point,direction,first,last,length,after_last_loss";
        let create = |path: Option<&Path>, columns: &str| {
            let table = path.map(|path| Table::create(path, columns));
            table.transpose()
        };
        Ok(Records {
            datagrams: create(datagrams, of_datagrams)?,
            losses: create(losses, of_losses)?,
            keep,
        })
    }

    /// Of a point: departure and arrival by the clocks of sender and receiver, the delay with the difference of the clocks
    /// taken out, and times since the datagram before it in the order of arrival.
    pub fn write(
        &mut self,
        number: usize,
        point: &Point,
        kept: &[Record],
        clock: Option<&ClockFit>,
    ) -> Result<(), TableError> {
        let way = point.direction.name();
        if let Some(table) = &mut self.datagrams {
            let mut before: Option<Record> = None;
            for record in kept {
                let Record(sequence, departed, arrived) = *record;
                let ahead = match (clock, point.direction) {
                    (None, _) => 0.0,
                    (Some(clock), Direction::There) => clock.offset_at(departed),
                    (Some(clock), Direction::Back) => -clock.offset_at(arrived),
                };
                let delay = apart(arrived, departed) - ahead.round() as i64;
                let after = before
                    .map(|Record(_, left, came)| (apart(departed, left), apart(arrived, came)));
                let (departed_after, arrived_after) = after.unzip();
                table.row((
                    (number, way, sequence, departed, arrived, delay),
                    (departed_after, arrived_after),
                ))?;
                before = Some(*record);
            }
        }
        if let Some(table) = &mut self.losses {
            let Keep { skip, limit } = self.keep;
            let passed = point.intervals.partition_point(|gap| gap.last < skip);
            let (passed, rest) = point.intervals.split_at(passed);
            let mut before = passed.last().map(|gap| gap.last);
            for gap in rest.iter().take(limit as usize) {
                let (first, last) = (gap.first, gap.last);
                let length = last - first + 1;
                let after = before.map(|end| first - end);
                table.row((number, way, first, last, length, after))?;
                before = Some(last);
            }
        }
        Ok(())
    }

    pub fn finish(self) -> Result<(), TableError> {
        let mut tables = [self.datagrams, self.losses].into_iter().flatten();
        tables.try_for_each(|mut table| table.flush())
    }
}

fn apart(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(i64::MAX)
}
