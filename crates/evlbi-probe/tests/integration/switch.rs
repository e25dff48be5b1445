//! A probe over an emulated path, in virtual time.

use evlbi_core::path::{Identity, Law, Loss, Network, Output, Piece, Shape, Train};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_probe::measure::{Spacing, Stream, Tallied, Tally};

/// Number of a datagram.
#[derive(Clone, Copy)]
struct Numbered(u64);

impl Identity for Numbered {
    fn identity(&self, _segment: u16) -> u64 {
        self.0
    }
}

/// IP and UDP headers, and the overhead of Ethernet per packet, including its header of 14 bytes.
const HEADERS: u32 = 28;
const OVERHEAD: u32 = 38;
const LINK_HEADER: u32 = 14;

fn rate(bits: u64) -> BitRate {
    BitRate::new(bits).unwrap()
}

/// Sends a stream over the switch of examples/cisco7600.toml: a link of 1 Gbit/s, 7.5 ms, and a loss of 3000 in 50 million above 900
/// Mbit/s.
fn over_the_switch(stream: &Stream, clock_ahead: u64) -> Tallied {
    let cells = [
        Law::Rate {
            rate: rate(1_000_000_000),
            buffer: 1 << 20,
            overhead: OVERHEAD,
            mark: None,
        },
        Law::Delay {
            delay: Nanos(7_500_000),
            jitter: Nanos(0),
            shape: Shape::Uniform,
            reorders: false,
        },
        Law::Loss(Loss::Above {
            rate: rate(900_000_000),
            window: Nanos(10_000_000),
            overhead: OVERHEAD,
            fraction: 6e-5,
        }),
    ];
    let mut network = Network::new();
    let line = network.line(cells, 7);
    let route = network.route(&[&line]);
    let train = Train::single(stream.size as u32 + HEADERS);
    let mut tally = Tally::new(stream.count, Nanos::SECOND, Some(100));
    let mut take = |output: Output<Numbered>| {
        if let Output::Delivered { packet, piece, .. } = output {
            let departed = stream.due(packet.0).0;
            tally.arrived(packet.0, departed, clock_ahead + piece.at.0);
        }
    };
    for number in 0..stream.count {
        let at = stream.due(number);
        network.advance(at, &mut take);
        let piece = Piece::whole(at, &train);
        network.offer(route, Numbered(number), train, piece, LINK_HEADER);
    }
    network.advance(Nanos(u64::MAX), &mut take);
    tally.finish(stream.count)
}

/// The paper counts about 3000 of 50 million lost at 940 Mbit/s, and none at 800: a tenth of that.
#[test]
fn five_million_datagrams_over_the_switch() {
    evlbi_testkit::watch();
    datagrams_over_the_switch(5_000_000);
}

/// The paper's full count.
#[test]
#[ignore = "soak: half a minute of a processor"]
fn soak_fifty_million_datagrams_over_the_switch() {
    datagrams_over_the_switch(50_000_000);
}

fn datagrams_over_the_switch(count: u64) {
    let at = |bits: u64, count: u64| Stream {
        size: 1472,
        spacing: Spacing::BitsPerSecond(rate(bits)),
        burst: 1,
        count,
    };
    let all = over_the_switch(&at(940_000_000, count), 3_600_000_000_000);
    let lost = all.account.counters.lost;
    let expected = count as f64 * 6e-5;
    // Four standard deviations.
    let deviation = (lost as f64 - expected).abs() / expected.sqrt();
    assert!(deviation < 4.0, "{lost} of {expected}");
    assert_eq!(all.sent, count);
    assert_eq!(all.account.counters.unique + lost, count);
    let gaps = all.gaps.unwrap();
    assert!((gaps.median - 12_527).abs() <= 8, "{}", gaps.median);
    // 7.5 ms, and the time of 1538 bytes on the link.
    assert_eq!(all.first_delay_ns, 3_600_007_512_304.0);
    let slow = over_the_switch(&at(800_000_000, count / 10), 0);
    assert_eq!(slow.account.counters.lost, 0);
}
