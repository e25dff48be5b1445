//! Collects the dumps of streams into integrations and into the whole.

use std::ops::Range;

use evlbi_fx::correlator::Sums;

use super::CorrelateError;
use super::job::Job;
use super::series::Series;

/// Dumps of a run of streams so far.
pub struct Integrations {
    /// All dumps.
    pub whole: Series,
    /// Dumps of the current integration.
    period: Series,
    /// Number of dumps per integration.
    count: i64,
    /// The next dump if there is no gap.
    next: i64,
    has_any: bool,
    /// Dumps without data since the last one in the whole.
    missing: usize,
}

/// Result of adding a dump.
pub enum Done<'a> {
    /// Start of an integration with data, in seconds since the start of the grid, and its dumps.
    Integration(f64, &'a Series),
    /// Dumps without data from any station, at least one integration.
    Gap(Range<i64>),
}

impl Integrations {
    /// Creates an empty collection; `whole` collects all dumps.
    pub fn new(job: &Job, whole: Series) -> Integrations {
        let count = job.periods.count;
        Integrations {
            period: Series::new(&job.setup, count as usize, job.dump_seconds()),
            whole,
            count,
            next: job.range.start,
            has_any: false,
            missing: 0,
        }
    }

    /// Adds a dump. Missing dumps before it had no data.
    ///
    /// # Errors
    /// Returns the errors of `done`.
    pub fn add(
        &mut self,
        dump: i64,
        sums: &Sums,
        mut done: impl FnMut(Done<'_>) -> Result<(), CorrelateError>,
    ) -> Result<(), CorrelateError> {
        let gap = self.next..dump;
        if !gap.is_empty() {
            let first = dump - dump.rem_euclid(self.count);
            if first > gap.start {
                self.end(&mut done)?;
            }
            if gap.end - gap.start >= self.count {
                done(Done::Gap(gap.clone()))?;
            }
            self.missing += (gap.end - gap.start) as usize;
            self.period.skip((dump - gap.start.max(first)) as usize);
        }
        if sums.inputs.iter().any(|input| input.good > 0) {
            self.whole.skip(std::mem::take(&mut self.missing));
            self.whole.add(sums);
            self.has_any = true;
        } else {
            self.missing += 1;
        }
        self.period.add(sums);
        self.next = dump + 1;
        if self.next.rem_euclid(self.count) == 0 {
            self.end(&mut done)?;
        }
        Ok(())
    }

    /// Ends an integration, complete or not. One without data is left out.
    ///
    /// # Errors
    /// Returns the errors of `done`.
    pub fn end(
        &mut self,
        mut done: impl FnMut(Done<'_>) -> Result<(), CorrelateError>,
    ) -> Result<(), CorrelateError> {
        let (setup, seconds) = (&self.period.setup, self.period.dump_seconds);
        let new = Series::new(setup, self.count as usize, seconds);
        let period = std::mem::replace(&mut self.period, new);
        if std::mem::take(&mut self.has_any) {
            let integration = (self.next - 1).div_euclid(self.count);
            let begins = integration as f64 * self.count as f64 * seconds;
            done(Done::Integration(begins, &period))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::series::tests::setup;
    use super::*;

    /// Integrations with data are shown, and a gap of any length takes one line.
    #[test]
    fn gaps_are_passed_over_in_time() {
        let setup = setup();
        let mut found = Integrations {
            whole: Series::new(&setup, 64, 0.25),
            period: Series::new(&setup, 4, 0.25),
            count: 4,
            next: 2,
            has_any: false,
            missing: 0,
        };
        let mut sums = Sums::new(&setup);
        sums.inputs[0].good = 1;
        let mut shown = Vec::new();
        let mut done = |done: Done<'_>| {
            shown.push(match done {
                Done::Integration(begins, period) => format!("{begins}: {}", period.added),
                Done::Gap(gap) => format!("{} to {}", gap.start, gap.end),
            });
            Ok(())
        };
        let far = 1 << 40;
        for dump in [2, 3, 5, 8, 9, 10, 11, far + 1, far + 3, far + 4] {
            found.add(dump, &sums, &mut done).unwrap();
        }
        // The last one is shown once.
        found.end(&mut done).unwrap();
        found.end(&mut done).unwrap();
        let gap = format!("12 to {}", far + 1);
        let [whole, part] =
            [(far / 4, 4), (far / 4 + 1, 1)].map(|(at, has)| format!("{at}: {has}"));
        // The first integration starts in its middle; the second ends with its data.
        assert_eq!(shown, ["0: 2", "1: 2", "2: 4", &gap, &whole, &part]);
        assert_eq!(found.whole.added as i64, far + 5 - 2);
    }
}
