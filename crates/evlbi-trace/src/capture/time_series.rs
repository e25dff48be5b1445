//! The course of a connection or stream, interval by interval, in memory that does not grow with its length.

/// Intervals of a course; where it lasts longer, they are made longer.
const MAX: usize = 4096;

/// A stretch of time, which begins with nothing in it.
pub trait Stretch: Copy + Default {
    /// Both it and the next one.
    fn join(self, next: Self) -> Self;
}

/// Intervals of one length, from the first packet on.
#[derive(Debug, Default)]
pub struct TimeSeries<T> {
    begun: u64,
    every: u64,
    intervals: Vec<T>,
}

impl<T: Stretch> TimeSeries<T> {
    /// Nothing yet, since a moment.
    pub fn new(begun: u64, every: u64) -> TimeSeries<T> {
        TimeSeries {
            begun,
            every: every.max(1),
            ..TimeSeries::default()
        }
    }

    /// The interval of a moment.
    pub fn at(&mut self, at: u64) -> &mut T {
        while self.place(at) >= MAX as u64 {
            self.every *= 2;
            let pairs = self.intervals.chunks(2);
            let join = |pair: &[T]| pair.iter().copied().fold(T::default(), T::join);
            self.intervals = pairs.map(join).collect();
        }
        let place = self.place(at) as usize;
        if self.intervals.len() <= place {
            self.intervals.resize(place + 1, T::default());
        }
        &mut self.intervals[place]
    }

    /// Whether a moment comes after all intervals so far.
    pub fn is_past(&self, at: u64) -> bool {
        self.place(at) >= self.intervals.len() as u64
    }

    /// The last interval so far.
    pub fn last_mut(&mut self) -> Option<&mut T> {
        self.intervals.last_mut()
    }

    /// Length of an interval in seconds, and all of them.
    pub fn finish(self) -> (f64, Vec<T>) {
        (self.every as f64 * 1e-9, self.intervals)
    }

    fn place(&self, at: u64) -> u64 {
        at.saturating_sub(self.begun) / self.every
    }
}
