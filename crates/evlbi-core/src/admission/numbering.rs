//! Where the number of a datagram comes from.

use evlbi_wire::vtp;

/// Numbers the datagrams of one stream.
pub trait Numbering: Send {
    /// The number and the data of a datagram; `None` when it has none here.
    fn split<'a>(&self, datagram: &'a [u8]) -> Option<(u64, &'a [u8])>;

    /// Learns from a datagram of the stream's sender and length that was taken, or has no number.
    #[inline]
    fn heard(&mut self, datagram: &[u8]) {
        let _ = datagram;
    }

    /// The number that a datagram tells by itself, whatever stream it belongs to.
    fn alone(&self, datagram: &[u8]) -> Option<u64>;

    /// The numbering of a stream of which these datagrams came first; `None` as long as they do not tell it. `all`: it has no
    /// more.
    fn of(&self, datagrams: &[&[u8]], all: bool) -> Option<Box<dyn Numbering>>;
}

/// VTP: the number stands before the data.
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
