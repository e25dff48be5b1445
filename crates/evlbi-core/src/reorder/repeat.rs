//! Tells a sender that began again at numbers that were there before from duplicates and late datagrams.
//!
//! Either way come numbers that are old. But those of a sender that began again rise, and nothing new comes
//! between them.

/// Duplicates in such a row that are taken for a restart of the sender. The largest block of datagrams that a
/// kernel sends in one call, and may so send twice, is no longer.
pub const REPEATS: usize = 64;

/// A row of old numbers that rise, with nothing new between.
#[derive(Clone, Debug, Default)]
pub struct Repeat {
    last: u64,
    length: u64,
    /// The duplicates of the row, but for the one that was too many.
    pub duplicates: Vec<u64>,
}

impl Repeat {
    /// Something new came.
    #[inline]
    pub fn interrupt(&mut self) {
        self.length = 0;
        self.duplicates.clear();
    }

    /// A number came again. Whether it is one too many: the sender has begun again. Numbers follow each
    /// other when they are less than a window apart.
    pub fn duplicate(&mut self, number: u64, window: u64) -> bool {
        self.follow(number, window);
        if self.duplicates.len() == REPEATS {
            return true;
        }
        self.duplicates.push(number);
        false
    }

    /// A number came late. Whether it is one too many: a window full of them is no reordering.
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
