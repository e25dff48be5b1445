//! Distinguishes a sender that restarted at recently seen numbers from duplicates and late datagrams.
//!
//! In both cases old numbers arrive. Those of a restarted sender ascend, and nothing new arrives between them.

/// Number of consecutive duplicates that count as a restart of the sender. It exceeds the largest block of datagrams that a
/// kernel sends in one call, and may therefore send twice.
pub const REPEATS: usize = 64;

/// Ascending run of old numbers, with nothing new between.
#[derive(Clone, Debug, Default)]
pub struct Repeat {
    last: u64,
    length: u64,
    /// Duplicates of the run, except the one that exceeded the limit.
    pub duplicates: Vec<u64>,
}

impl Repeat {
    /// Ends the run: something new arrived.
    #[inline]
    pub fn interrupt(&mut self) {
        self.length = 0;
        self.duplicates.clear();
    }

    /// Notes a number that arrived again. Returns whether the limit is exceeded: the sender has restarted. Numbers are
    /// consecutive if they are less than a window apart.
    pub fn duplicate(&mut self, number: u64, window: u64) -> bool {
        self.follow(number, window);
        if self.duplicates.len() == REPEATS {
            return true;
        }
        self.duplicates.push(number);
        false
    }

    /// Notes a late number. Returns whether the limit is exceeded: a window full of them is not reordering.
    pub fn late(&mut self, number: u64, window: u64) -> bool {
        self.follow(number, window);
        self.length > window.max(REPEATS as u64)
    }

    fn follow(&mut self, number: u64, window: u64) {
        let step = number.wrapping_sub(self.last);
        if !(1..=window).contains(&step) {
            self.interrupt();
        }
        self.length += 1;
        self.last = number;
    }
}
