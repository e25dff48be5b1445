//! Streams through a queue before a slower line, in virtual time: the result of a probe on a host that never stalls.

use evlbi_core::path::{Identity, Law, Network, Output, Piece, Train};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;

use crate::measure::{Spacing, Stream};

/// Bytes on the line besides UDP payload: headers of Ethernet, IPv4 and UDP.
pub const HEADERS: usize = 42;

/// A line and the queue before it.
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck {
    /// Bits per second, including headers.
    pub rate: u64,
    /// Maximum bytes in the queue.
    pub queue: u64,
}

/// Result of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Through {
    pub sent: u64,
    pub lost: u64,
    /// Bits of UDP payload per second, from the first to the last arrival.
    pub rate_received: f64,
}

#[derive(Clone)]
struct Packet;

impl Identity for Packet {
    fn identity(&self, _: u16) -> u64 {
        0
    }
}

impl Bottleneck {
    /// Sends datagrams of this size at a rate of UDP payload, for this time.
    pub fn carry(&self, size: usize, rate: f64, length: Nanos) -> Through {
        let law = Law::Rate {
            rate: BitRate::new(self.rate).expect("a rate"),
            buffer: self.queue,
            overhead: 0,
            mark: None,
        };
        let mut network = Network::new();
        let line = network.line([law], 1);
        let route = network.route(&[&line]);
        let spacing = Spacing::BitsPerSecond(BitRate::new(rate as u64).expect("a rate"));
        let stream = Stream {
            size,
            spacing,
            burst: 1,
            count: u64::MAX,
        };
        let sent = stream.within(length);
        let (mut received, mut first, mut last) = (0u64, None, 0);
        let mut take = |output| {
            if let Output::Delivered { piece, .. } = output {
                received += 1;
                first.get_or_insert(piece.at.0);
                last = piece.at.0;
            }
        };
        let train = Train::single((size + HEADERS) as u32);
        for number in 0..sent {
            let at = stream.due(number);
            network.advance(at, &mut take);
            network.offer(route, Packet, train, Piece::whole(at, &train), 14);
        }
        network.advance(Nanos(u64::MAX), &mut take);
        let seconds = (last - first.unwrap_or(last)) as f64 * 1e-9;
        Through {
            sent,
            lost: sent - received,
            rate_received: (received.saturating_sub(1) * size as u64 * 8) as f64 / seconds,
        }
    }
}
