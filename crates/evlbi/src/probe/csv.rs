//! Datagrams and losses one by one, as CSV.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use evlbi_core::probe::ClockFit;
use evlbi_net::probe::{Keep, Record};

use super::point::{Direction, Point};

/// The files, where they are asked for.
pub struct Records {
    datagrams: Option<BufWriter<File>>,
    losses: Option<BufWriter<File>>,
    keep: Keep,
}

impl Records {
    /// Of each point's losses, those that `keep` says; of its datagrams the receiver has kept no others.
    pub fn new(datagrams: Option<&Path>, losses: Option<&Path>, keep: Keep) -> Result<Records> {
        let make = |path: &Path, heads: &str| -> Result<BufWriter<File>> {
            let file =
                File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
            let mut file = BufWriter::new(file);
            writeln!(file, "{heads}")?;
            Ok(file)
        };
        let of_datagrams = "point,direction,sequence,departed_ns,arrived_ns,delay_ns,departed_after_ns,arrived_after_ns";
        let of_losses = "point,direction,first,last,length,after_last_loss";
        Ok(Records {
            datagrams: datagrams.map(|path| make(path, of_datagrams)).transpose()?,
            losses: losses.map(|path| make(path, of_losses)).transpose()?,
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
    ) -> Result<()> {
        let way = point.direction.name();
        if let Some(file) = &mut self.datagrams {
            let mut before: Option<Record> = None;
            for record in kept {
                let Record(sequence, departed, arrived) = *record;
                let ahead = match (clock, point.direction) {
                    (None, _) => 0.0,
                    (Some(clock), Direction::There) => clock.offset_at(departed),
                    (Some(clock), Direction::Back) => -clock.offset_at(arrived),
                };
                let delay = apart(arrived, departed) - ahead.round() as i64;
                write!(
                    file,
                    "{number},{way},{sequence},{departed},{arrived},{delay}"
                )?;
                match before {
                    Some(Record(_, left, came)) => {
                        writeln!(file, ",{},{}", apart(departed, left), apart(arrived, came))?;
                    }
                    None => writeln!(file, ",,")?,
                }
                before = Some(*record);
            }
        }
        if let Some(file) = &mut self.losses {
            let Keep { skip, limit } = self.keep;
            let passed = point.intervals.partition_point(|gap| gap.last < skip);
            let (passed, rest) = point.intervals.split_at(passed);
            let mut before = passed.last().map(|gap| gap.last);
            for gap in rest.iter().take(limit as usize) {
                let (first, last) = (gap.first, gap.last);
                write!(file, "{number},{way},{first},{last},{}", last - first + 1)?;
                match before {
                    Some(end) => writeln!(file, ",{}", first - end)?,
                    None => writeln!(file, ",")?,
                }
                before = Some(last);
            }
        }
        Ok(())
    }

    pub fn finish(self) -> Result<()> {
        for mut file in [self.datagrams, self.losses].into_iter().flatten() {
            file.flush().context("cannot write the CSV files")?;
        }
        Ok(())
    }
}

fn apart(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(i64::MAX)
}
