//! Sources of a datagram's number.

use evlbi_wire::vtp;

/// Numbering of the datagrams of one stream.
pub trait Numbering: Send {
    /// Splits a datagram into number and data; `None` if it has no number here.
    fn split<'a>(&self, datagram: &'a [u8]) -> Option<(u64, &'a [u8])>;

    /// Updates the numbering from a datagram of the stream's sender and length that was accepted or has no number.
    #[inline]
    fn heard(&mut self, datagram: &[u8]) {
        let _ = datagram;
    }

    /// Returns the number that a datagram gives by itself, whatever stream it belongs to.
    fn alone(&self, datagram: &[u8]) -> Option<u64>;

    /// Makes the numbering of a stream that starts with these datagrams; `None` while they are too few. `all`: the stream has no
    /// more.
    fn of(&self, datagrams: &[&[u8]], all: bool) -> Option<Box<dyn Numbering>>;
}

/// Numbering of VTP: the number is in front of the data.
pub struct Numbers;

impl Numbering for Numbers {
    #[inline]
    fn split<'a>(&self, datagram: &'a [u8]) -> Option<(u64, &'a [u8])> {
        vtp::split(datagram)
    }

    fn alone(&self, datagram: &[u8]) -> Option<u64> {
        vtp::split(datagram).map(|(number, _)| number)
    }

    fn of(&self, _datagrams: &[&[u8]], _all: bool) -> Option<Box<dyn Numbering>> {
        Some(Box::new(Numbers))
    }
}
