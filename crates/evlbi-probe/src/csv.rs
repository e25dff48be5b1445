//! Results as CSV: tables of their rows, and single datagrams and losses.

use std::borrow::Borrow;
use std::fs::File;
use std::path::Path;

use evlbi_core::account::Summary;
use evlbi_net::file::{Table, TableError, table_text};

use super::direction::Direction;
use super::point::Point;
use crate::endpoint::Keep;
use crate::measure::{ClockFit, Record};

/// A column of a table: its name with the unit, and the text of a row's cell.
pub type Column<T> = (&'static str, fn(&T) -> String);

/// Formats rows as CSV, with a header.
pub fn table<T>(
    columns: &[Column<T>],
    rows: impl IntoIterator<Item: Borrow<T>>,
) -> Result<String, TableError> {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let rows = rows.into_iter().map(|row| {
        let cells = columns.iter().map(|(_, cell)| cell(row.borrow()));
        cells.collect::<Vec<String>>()
    });
    table_text(&names.join(","), rows)
}

/// Formats a cell, which is empty without a value.
pub fn cell(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// Formats a value of a distribution, if there is one.
pub fn of(summary: Option<&Summary>, get: fn(&Summary) -> f64) -> String {
    cell(summary.map(get))
}

/// Columns of a point.
pub const POINT: &[Column<Point>] = &[
    ("direction", |p| p.direction.name().to_owned()),
    ("size_bytes", |p| p.size.to_string()),
    ("burst", |p| p.burst.to_string()),
    ("rate_asked_bps", |p| cell(p.rate_asked)),
    ("spacing_asked_ns", |p| cell(p.spacing_asked)),
    ("spacing_achieved_ns", |p| cell(p.spacing_achieved)),
    ("sent", |p| p.sent.to_string()),
    ("received", |p| p.received.to_string()),
    ("unique", |p| p.unique.to_string()),
    ("lost", |p| p.lost.to_string()),
    ("loss", |p| p.loss.to_string()),
    ("network_lost", |p| p.network_lost.to_string()),
    ("host_lost", |p| p.host_lost.to_string()),
    ("unattributed", |p| p.unattributed.to_string()),
    ("duplicates", |p| p.duplicates.to_string()),
    ("reordered", |p| p.reordered.to_string()),
    ("late", |p| p.late.to_string()),
    ("rate_sent_bps", |p| p.rate_sent.to_string()),
    ("rate_received_bps", |p| p.rate_received.to_string()),
    ("wire_rate_sent_bps", |p| p.wire_rate_sent.to_string()),
    ("wire_rate_received_bps", |p| {
        p.wire_rate_received.to_string()
    }),
    ("duration_s", |p| p.seconds.to_string()),
    ("delay_min_ns", |p| cell(p.delay.map(|delay| delay.min))),
    ("delay_median_ns", |p| {
        cell(p.delay.map(|delay| delay.median))
    }),
    ("delay_p99_ns", |p| cell(p.delay.map(|delay| delay.p99))),
    ("delay_max_ns", |p| cell(p.delay.map(|delay| delay.max))),
    ("pdv_p99_ns", |p| cell(p.pdv.map(|[_, p99, _]| p99))),
    ("jitter_ns", |p| p.jitter.to_string()),
];

/// The requested files.
pub struct Records {
    datagrams: Option<Table<File>>,
    losses: Option<Table<File>>,
    keep: Keep,
}

impl Records {
    /// Opens the files. `keep` selects losses of each point; the receiver has kept only the selected datagrams.
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

    /// Writes the datagrams of a point: departure and arrival by the clocks of sender and receiver, the delay corrected by the clock
    /// offset, and times since the previous datagram in the order of arrival.
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
