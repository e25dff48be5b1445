//! Reassembly of fragmented IP packets, in bounded memory and time.
//!
//! A fragment that a packet already has belongs to another packet of the same identification: a mirror port that shows both directions
//! of a link shows each fragment twice, and the fragments of both copies in any order. So both are delivered, and count as
//! duplicates. Senders use an identification again after 65,536 packets (RFC 6864), within half a second at 10 Gbit/s; what is left
//! of an older packet is dropped before that. A wrong mixture is found by the checksum of the datagram.

use std::ops::Range;
use std::time::Duration;

use evlbi_wire::packet::{Fragment, FragmentId};

/// Maximum number of incomplete packets.
const MAX_PACKETS: usize = 64;
/// Maximum length of a packet's payload, in bytes.
const MAX_LENGTH: usize = 65_535;
/// Maximum number of fragments of a packet: enough for the longest packet in fragments of 576 bytes, the smallest MTU of IPv4.
const MAX_FRAGMENTS: usize = 128;
/// Maximum time between the first and the last fragment of a packet.
const TIMEOUT: Duration = Duration::from_millis(100);

/// Incomplete packets.
#[derive(Debug, Default)]
pub struct Reassembly {
    packets: Vec<Partial>,
    counts: Counts,
}

/// Number of packets that were not reassembled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets with a fragment that did not arrive in time.
    pub incomplete: u64,
    /// Packets given up for lack of memory.
    pub dropped: u64,
}

/// An incomplete packet.
#[derive(Debug)]
struct Partial {
    /// `None` if it is free.
    id: Option<FragmentId>,
    begun: Duration,
    data: Vec<u8>,
    /// Ranges of the payload that have arrived; they do not overlap.
    pieces: Vec<Range<usize>>,
    arrived: usize,
    /// Length of the whole payload, once its last fragment has arrived.
    length: Option<usize>,
}

impl Reassembly {
    /// Adds a fragment that arrived at a time on any clock. Returns the payload of its packet if that is complete now.
    pub fn add(&mut self, fragment: &Fragment<'_>, at: Duration) -> Option<&[u8]> {
        self.expire(at);
        let has_room =
            |partial: &Partial| partial.id == Some(fragment.id) && partial.takes(fragment);
        let place = self.packets.iter().position(has_room);
        let place = place.unwrap_or_else(|| self.begin(fragment.id, at));
        let partial = &mut self.packets[place];
        partial.add(fragment);
        let length = partial.length.filter(|length| *length == partial.arrived)?;
        partial.id = None;
        Some(&partial.data[..length])
    }

    /// Returns how many packets were not reassembled until now.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Gives up the packets whose time is over.
    fn expire(&mut self, at: Duration) {
        for partial in &mut self.packets {
            if partial.id.is_some() && at.saturating_sub(partial.begun) > TIMEOUT {
                partial.id = None;
                self.counts.incomplete += 1;
            }
        }
    }

    /// Returns the index of a new packet, which may take the place of the oldest one.
    fn begin(&mut self, id: FragmentId, at: Duration) -> usize {
        let is_free = |partial: &Partial| partial.id.is_none();
        let place = match self.packets.iter().position(is_free) {
            Some(free) => free,
            None if self.packets.len() < MAX_PACKETS => {
                self.packets.push(Partial::new());
                self.packets.len() - 1
            }
            None => {
                self.counts.dropped += 1;
                let all = self.packets.iter().enumerate();
                all.min_by_key(|(_, partial)| partial.begun)
                    .map_or(0, |(oldest, _)| oldest)
            }
        };
        self.packets[place].begin(id, at);
        place
    }
}

impl Partial {
    fn new() -> Partial {
        Partial {
            id: None,
            begun: Duration::ZERO,
            data: Vec::new(),
            pieces: Vec::with_capacity(MAX_FRAGMENTS),
            arrived: 0,
            length: None,
        }
    }

    fn begin(&mut self, id: FragmentId, at: Duration) {
        self.id = Some(id);
        self.begun = at;
        self.pieces.clear();
        self.arrived = 0;
        self.length = None;
    }

    /// Returns whether the fragment fits next to those that have arrived.
    fn takes(&self, fragment: &Fragment<'_>) -> bool {
        let new = range(fragment);
        let is_apart = |piece: &Range<usize>| piece.end <= new.start || new.end <= piece.start;
        let fits_end = match self.length {
            Some(length) => new.end <= length && !fragment.is_last,
            None if fragment.is_last => self.pieces.iter().all(|piece| piece.end <= new.start),
            None => true,
        };
        fits_end && self.pieces.len() < MAX_FRAGMENTS && self.pieces.iter().all(is_apart)
    }

    fn add(&mut self, fragment: &Fragment<'_>) {
        let new = range(fragment);
        // A packet that is too long or has an empty fragment never becomes complete.
        if new.end > MAX_LENGTH || new.is_empty() {
            return;
        }
        if self.data.len() < new.end {
            self.data.resize(new.end, 0);
        }
        self.data[new.clone()].copy_from_slice(fragment.payload);
        self.arrived += new.len();
        if fragment.is_last {
            self.length = Some(new.end);
        }
        self.pieces.push(new);
    }
}

fn range(fragment: &Fragment<'_>) -> Range<usize> {
    fragment.offset..fragment.offset + fragment.payload.len()
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use super::*;

    fn id(number: u32) -> FragmentId {
        FragmentId {
            source: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
            destination: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)),
            number,
        }
    }

    fn payload(number: u32, length: usize) -> Vec<u8> {
        (0..length).map(|i| (i * 7) as u8 ^ number as u8).collect()
    }

    fn cut(number: u32, payload: &[u8], size: usize) -> Vec<Fragment<'_>> {
        let parts = payload.chunks(size).enumerate();
        let fragments = parts.map(|(part, bytes)| Fragment {
            id: id(number),
            offset: part * size,
            is_last: part * size + bytes.len() == payload.len(),
            payload: bytes,
        });
        fragments.collect()
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_missing_fragment_costs_its_packet_alone() {
        let mut reassembly = Reassembly::default();
        let (one, two) = (payload(1, 8000), payload(2, 8000));
        let fragments = cut(1, &one, 1480);
        for fragment in &fragments[1..] {
            assert_eq!(reassembly.add(fragment, ms(0)), None);
        }
        let fragments = cut(2, &two, 1480);
        let whole = fragments.iter().filter_map(|fragment| {
            let found = reassembly.add(fragment, ms(90))?;
            Some(found.to_vec())
        });
        assert_eq!(whole.collect::<Vec<_>>(), std::slice::from_ref(&two));
        assert_eq!(reassembly.counts(), Counts::default());
        // The identification returns: the old fragments are gone.
        let again = payload(3, 4000);
        let fragments = cut(1, &again, 1480);
        let whole = fragments.iter().filter_map(|fragment| {
            let found = reassembly.add(fragment, ms(101))?;
            Some(found.to_vec())
        });
        assert_eq!(whole.collect::<Vec<_>>(), std::slice::from_ref(&again));
        assert_eq!(reassembly.counts().incomplete, 1);
    }

    #[test]
    fn memory_is_bounded() {
        let mut reassembly = Reassembly::default();
        let all = payload(0, 65_528);
        for number in 0..10_000 {
            let fragments = cut(number, &all, 65_520);
            assert_eq!(reassembly.add(&fragments[0], ms(0)), None);
        }
        assert_eq!(reassembly.packets.len(), MAX_PACKETS);
        let counts = reassembly.counts();
        assert_eq!(counts.dropped, 10_000 - MAX_PACKETS as u64);
        // Fragments of 8 bytes: the packet takes a bounded number of them.
        for fragment in cut(10_001, &all, 8) {
            assert_eq!(reassembly.add(&fragment, ms(1)), None);
        }
        assert_eq!(reassembly.packets.len(), MAX_PACKETS);
        let pieces = reassembly.packets.iter().map(|it| it.pieces.capacity());
        assert_eq!(pieces.max(), Some(MAX_FRAGMENTS));
    }

    #[test]
    fn no_fragment_reaches_beyond_the_longest_packet() {
        let mut reassembly = Reassembly::default();
        let bytes = [1; 1480];
        for (offset, payload) in [(65_528, &bytes[..]), (0, &[]), (65_528, &bytes[..7])] {
            let fragment = Fragment {
                id: id(1),
                offset,
                is_last: true,
                payload,
            };
            assert_eq!(reassembly.add(&fragment, ms(0)), None);
        }
    }

    proptest! {
        /// Whatever the order, and whether or not each fragment is shown twice.
        #[test]
        fn each_copy_of_each_packet_is_whole(
            lengths in proptest::collection::vec(1usize..12_000, 1..6), size in (1usize..200).prop_map(|size| 8 * size + 576),
            copies in 1usize..3, seed in any::<u64>(),
        ) {
            let numbers = 0..lengths.len() as u32;
            let payloads: Vec<Vec<u8>> = numbers.zip(&lengths).map(|(number, length)| payload(number, *length)).collect();
            let mut fragments = Vec::new();
            for (number, payload) in payloads.iter().enumerate() {
                let of_packet = cut(number as u32, payload, size);
                fragments.extend(std::iter::repeat_n(of_packet, copies).flatten());
            }
            let mut order: Vec<usize> = (0..fragments.len()).collect();
            order.sort_by_key(|place| (*place as u64 + 1).wrapping_mul(seed | 1).rotate_left(17));
            let mut reassembly = Reassembly::default();
            let mut found = Vec::new();
            for place in order {
                let fragment = &fragments[place];
                if let Some(whole) = reassembly.add(fragment, ms(0)) {
                    found.push((fragment.id.number, whole.to_vec()));
                }
            }
            found.sort();
            let expected = payloads.into_iter().enumerate();
            let expected = expected.flat_map(|(number, payload)| std::iter::repeat_n((number as u32, payload), copies));
            prop_assert_eq!(found, expected.collect::<Vec<_>>());
            prop_assert_eq!(reassembly.counts(), Counts::default());
        }

        #[test]
        fn no_fragments_panic(
            fragments in proptest::collection::vec((0u32..3, 0usize..66_000, any::<bool>(), 0usize..3000, 0u64..300), 0..200),
        ) {
            let bytes = vec![0; 3000];
            let mut reassembly = Reassembly::default();
            for (number, offset, is_last, length, at) in fragments {
                let fragment = Fragment { id: id(number), offset, is_last, payload: &bytes[..length] };
                if let Some(whole) = reassembly.add(&fragment, ms(at)) {
                    prop_assert!(whole.len() <= MAX_LENGTH);
                }
            }
        }
    }
}
