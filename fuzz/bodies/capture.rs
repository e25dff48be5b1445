//! Packets of a capture, cut or damaged: nothing panics, and each retransmission has one cause. Fragments are reassembled.

use std::time::Duration;

use evlbi_core::reassemble::Reassembly;
use evlbi_core::time::Nanos;
use evlbi_trace::capture::{Capture, Settings};
use evlbi_wire::packet::{Link, fragment, read, reassembled};

/// Reads packets: a byte for the length, a byte for the time since the previous one, and the bytes of an IP packet.
pub fn run(data: &[u8]) {
    let mut capture = Capture::new(Settings {
        every: Nanos(1_000_000),
        width: Some(Nanos(1000)),
        max_flows: 4,
    });
    let mut reassembly = Reassembly::default();
    let (mut rest, mut at) = (data, 0);
    while let [length, apart, behind @ ..] = rest {
        let (packet, next) = behind.split_at(usize::from(*length).min(behind.len()));
        rest = next;
        at += u64::from(*apart) << 18;
        if let Ok(packet) = read(Link::Ip, packet, packet.len() as u32) {
            packet.is_sound();
            capture.offer(at, &packet, &mut |_, _| {});
        }
        if let Some(part) = fragment(Link::Ip, packet)
            && let Some(whole) = reassembly.add(&part, Duration::from_nanos(at))
            && let Some(packet) = reassembled(part.id, whole)
        {
            packet.is_sound();
            capture.offer(at, &packet, &mut |_, _| {});
        }
    }
    let found = capture.finish();
    for way in found
        .connections
        .iter()
        .flat_map(|connection| &connection.ways)
    {
        let again = way.sent_again;
        assert_eq!(
            again.segments,
            again.fast + again.timeout + again.probe + again.unneeded
        );
    }
    for account in found
        .streams
        .iter()
        .filter_map(|stream| stream.account.as_ref())
    {
        let counters = &account.counters;
        assert_eq!(counters.expected, counters.unique + counters.lost);
    }
}
