//! Time series of a connection or stream, interval by interval, in bounded memory.

/// Maximum number of intervals; if there are more, they are joined in pairs.
const MAX: usize = 4096;

/// Interval, empty at first.
pub trait Stretch: Copy + Default {
    /// Joins it with the next one.
    fn join(self, next: Self) -> Self;

    /// Notes when it begins, in seconds since the time series began.
    fn begin(&mut self, seconds: f64);
}

/// Intervals of equal length, starting at the first packet.
#[derive(Debug, Default)]
pub struct TimeSeries<T> {
    begun: u64,
    every: u64,
    intervals: Vec<T>,
}

impl<T: Stretch> TimeSeries<T> {
    /// Makes an empty series that starts at a time.
    pub fn new(begun: u64, every: u64) -> TimeSeries<T> {
        TimeSeries {
            begun,
            every: every.max(1),
            ..TimeSeries::default()
        }
    }

    /// Returns the interval of a time.
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

    /// Returns whether a time is after all intervals so far.
    pub fn is_past(&self, at: u64) -> bool {
        self.place(at) >= self.intervals.len() as u64
    }

    /// Returns the last interval so far.
    pub fn last_mut(&mut self) -> Option<&mut T> {
        self.intervals.last_mut()
    }

    /// Returns the length of an interval in seconds, and all intervals.
    pub fn finish(mut self) -> (f64, Vec<T>) {
        for (place, interval) in self.intervals.iter_mut().enumerate() {
            interval.begin((place as u64 * self.every) as f64 * 1e-9);
        }
        (self.every as f64 * 1e-9, self.intervals)
    }

    fn place(&self, at: u64) -> u64 {
        at.saturating_sub(self.begun) / self.every
    }
}
