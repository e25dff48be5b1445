//! Ethernet frames of a tap device: with the header that lists what the kernel has left undone (`struct virtio_net_hdr`), so that long
//! segments of TCP and UDP pass in one piece.
//!
//! This module cuts them where a cell of the path must, like the kernel's own segmentation.

use evlbi_core::path::{Identity, Piece, Train};
use evlbi_wire::probe::Probe;

/// Length in bytes of the header before each frame.
pub const VNET: usize = 10;
/// Maximum length of a frame with its header, in bytes.
pub const MAX: usize = VNET + 18 + 65_535 + 40;

const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_ECN: u8 = 0x80;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
const TCP: u8 = 6;
const UDP: u8 = 17;

const FIN: u8 = 0x01;
const PUSH: u8 = 0x08;
const WINDOW_REDUCED: u8 = 0x80;

/// A frame, its header, and the offsets in it.
#[derive(Debug)]
pub struct Frame<'a> {
    /// Header and frame.
    bytes: &'a [u8],
    parts: Option<Parts>,
}

/// Offsets of the headers from the start of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    ip: usize,
    is_v6: bool,
    transport: usize,
    protocol: u8,
    payload: usize,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl Parts {
    fn find(frame: &[u8]) -> Option<Parts> {
        let (ip, is_v6) = ip_header(frame)?;
        let (transport, protocol) = if is_v6 {
            // Segments have no extension headers.
            (ip + 40, frame[ip + 6])
        } else {
            let fragment = u16_at(frame, ip + 6)? & 0x1fff;
            if frame[ip] >> 4 != 4 || fragment != 0 {
                return None;
            }
            (ip + usize::from(frame[ip] & 15) * 4, frame[ip + 9])
        };
        let payload = match protocol {
            TCP => {
                let words = usize::from(*frame.get(transport + 12)? >> 4);
                if words < 5 {
                    return None;
                }
                transport + 4 * words
            }
            UDP => transport + 8,
            _ => return None,
        };
        (payload <= frame.len()).then_some(Parts {
            ip,
            is_v6,
            transport,
            protocol,
            payload,
        })
    }
}

impl<'a> Frame<'a> {
    /// Parses a frame as read, header first; `None` if it is too short.
    pub fn new(bytes: &'a [u8]) -> Option<Frame<'a>> {
        (bytes.len() >= VNET + 14).then(|| Frame {
            bytes,
            parts: Parts::find(&bytes[VNET..]),
        })
    }

    fn frame(&self) -> &'a [u8] {
        &self.bytes[VNET..]
    }

    /// Returns the destination's hardware address.
    pub fn destination(&self) -> [u8; 6] {
        let mut address = [0; 6];
        address.copy_from_slice(&self.frame()[..6]);
        address
    }

    /// Returns the length of its link-layer header in bytes.
    pub fn link_header(&self) -> u32 {
        link_header(self.frame()) as u32
    }

    /// Returns the payload per segment in bytes, if it contains several.
    fn step(&self) -> Option<(usize, Parts)> {
        let step = usize::from(u16::from_ne_bytes([self.bytes[4], self.bytes[5]]));
        let is_long = self.bytes[1] & !GSO_ECN != GSO_NONE;
        self.parts
            .filter(|_| is_long && step > 0)
            .map(|parts| (step, parts))
    }

    /// Returns the frame as the network sees it.
    pub fn train(&self) -> Train {
        let length = self.frame().len() as u32;
        let Some((step, parts)) = self.step() else {
            return Train::single(length);
        };
        let payload = self.frame().len() - parts.payload;
        let count = payload.div_ceil(step).max(1);
        if count == 1 || count > usize::from(u16::MAX) {
            return Train::single(length);
        }
        Train {
            count: count as u16,
            bytes: (parts.payload + step) as u32,
            last: (parts.payload + payload - (count - 1) * step) as u32,
        }
    }

    /// Writes some of its segments, header first.
    pub fn cut(&self, piece: &Piece, out: &mut Vec<u8>) {
        out.clear();
        match self.step() {
            Some((step, parts)) if self.train().count > 1 => {
                let train = self.train();
                let frame = self.frame();
                let begin = parts.payload + usize::from(piece.first) * step;
                let end = (begin + usize::from(piece.count) * step).min(frame.len());
                out.extend_from_slice(&self.bytes[..VNET + parts.payload]);
                out.extend_from_slice(&frame[begin.min(end)..end]);
                let is_last = piece.first + piece.count >= train.count;
                if piece.count == 1 {
                    (out[1], out[2], out[3], out[4], out[5]) = (GSO_NONE, 0, 0, 0, 0);
                }
                shorten(&mut out[VNET..], parts, piece.first, step, is_last);
            }
            _ => out.extend_from_slice(self.bytes),
        }
        if piece.marks.congestion {
            mark(&mut out[VNET..]);
        }
        if let Some(number) = piece.marks.corrupt {
            complete_checksum(out);
            let bits = 8 * (out.len() - VNET - 14) as u64;
            if bits > 0 {
                let bit = number % bits;
                out[VNET + 14 + (bit / 8) as usize] ^= 1 << (bit % 8);
            }
        }
    }

    /// Returns the message that tells the sender the maximum packet length (RFC 1191, RFC 8201), header first; `None` if the packet may
    /// be fragmented, or is not IP.
    pub fn too_long(&self, longest: u32) -> Option<Vec<u8>> {
        let frame = self.frame();
        let ip = self.link_header() as usize;
        let told = |most: usize| &frame[ip..frame.len().min(ip + most)];
        let (header, mut message, pseudo);
        match u16_at(frame, ip - 2)? {
            // This packet may be fragmented.
            IPV4 if frame.get(ip + 6)? & 0x40 == 0 => return None,
            IPV4 => {
                let longest = longest.min(65_535) as u16;
                message = [&[3, 4, 0, 0, 0, 0][..], &longest.to_be_bytes(), told(548)].concat();
                let length = (20 + message.len()) as u16;
                let mut unsummed = [&[0x45, 0][..], &length.to_be_bytes(), &[0; 4]].concat();
                unsummed.extend([64, 1, 0, 0]);
                unsummed.extend(frame.get(ip + 16..ip + 20)?);
                unsummed.extend(frame.get(ip + 12..ip + 16)?);
                refresh(&mut unsummed, 0);
                (header, pseudo) = (unsummed, 0);
            }
            IPV6 => {
                message = [&[2, 0, 0, 0][..], &longest.to_be_bytes(), told(1232)].concat();
                let length = message.len() as u16;
                header = [
                    &[0x60, 0, 0, 0][..],
                    &length.to_be_bytes(),
                    &[58, 64],
                    frame.get(ip + 24..ip + 40)?,
                    frame.get(ip + 8..ip + 24)?,
                ]
                .concat();
                pseudo = sum(&header[8..40], u64::from(length) + 58);
            }
            _ => return None,
        }
        let checksum = !sum(&message, u64::from(pseudo));
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        let ethernet = [&frame[6..12], &frame[..6], frame.get(12..ip)?].concat();
        Some([&[0; VNET][..], &ethernet, &header, &message].concat())
    }
}

/// Adapts lengths, numbers and checksums of segments cut from `frame`'s packet: those from `first` on, of `step` bytes of payload each.
fn shorten(frame: &mut [u8], parts: Parts, first: u16, step: usize, is_last: bool) {
    let (ip, transport) = (parts.ip, parts.transport);
    let length = frame.len();
    let pseudo = if parts.is_v6 {
        frame[ip + 4..ip + 6].copy_from_slice(&((length - ip - 40) as u16).to_be_bytes());
        sum(&frame[ip + 8..ip + 40], 0)
    } else {
        frame[ip + 2..ip + 4].copy_from_slice(&((length - ip) as u16).to_be_bytes());
        let id = u16_at(frame, ip + 4).unwrap_or(0).wrapping_add(first);
        frame[ip + 4..ip + 6].copy_from_slice(&id.to_be_bytes());
        refresh(frame, ip);
        sum(&frame[ip + 12..ip + 20], 0)
    };
    let rest = length - transport;
    let place = if parts.protocol == TCP {
        let moved = (usize::from(first) * step) as u32;
        let number = u32_at(frame, transport + 4)
            .unwrap_or(0)
            .wrapping_add(moved);
        frame[transport + 4..transport + 8].copy_from_slice(&number.to_be_bytes());
        if !is_last {
            frame[transport + 13] &= !(FIN | PUSH);
        }
        if first > 0 {
            frame[transport + 13] &= !WINDOW_REDUCED;
        }
        transport + 16
    } else {
        frame[transport + 4..transport + 6].copy_from_slice(&(rest as u16).to_be_bytes());
        transport + 6
    };
    // The receiving kernel completes the checksum, or does not need it.
    let pseudo = sum(
        &[],
        u64::from(pseudo) + u64::from(parts.protocol) + rest as u64,
    );
    frame[place..place + 2].copy_from_slice(&pseudo.to_be_bytes());
}

/// Returns the length of the link-layer header in bytes.
fn link_header(frame: &[u8]) -> usize {
    14 + 4 * usize::from(u16_at(frame, 12) == Some(VLAN))
}

/// Returns the offset of the IP header, and whether it is IPv6.
fn ip_header(frame: &[u8]) -> Option<(usize, bool)> {
    let ip = link_header(frame);
    let whole = |length: usize| frame.len() >= ip + length;
    match u16_at(frame, ip - 2)? {
        IPV4 => {
            let header = usize::from(frame.get(ip)? & 15) * 4;
            (header >= 20 && whole(header)).then_some((ip, false))
        }
        IPV6 => whole(40).then_some((ip, true)),
        _ => None,
    }
}

/// Returns the ECN field: its byte, and its shift within that byte.
fn congestion_field((ip, is_v6): (usize, bool)) -> (usize, u32) {
    (ip + 1, if is_v6 { 4 } else { 0 })
}

/// Marks congestion (ECN) if the packet allows it.
fn mark(frame: &mut [u8]) {
    let Some((ip, is_v6)) = ip_header(frame) else {
        return;
    };
    let (byte, shift) = congestion_field((ip, is_v6));
    if frame[byte] >> shift & 3 != 0 {
        frame[byte] |= 3 << shift;
        if !is_v6 {
            refresh(frame, ip);
        }
    }
}

/// Recalculates the checksum of an IPv4 header.
fn refresh(frame: &mut [u8], ip: usize) {
    let header = ip..ip + usize::from(frame[ip] & 15) * 4;
    frame[ip + 10..ip + 12].fill(0);
    let checksum = !sum(&frame[header], 0);
    frame[ip + 10..ip + 12].copy_from_slice(&checksum.to_be_bytes());
}

/// Completes the checksum that the kernel has left undone, so that a receiver detects corruption.
fn complete_checksum(bytes: &mut [u8]) {
    if bytes[0] & NEEDS_CHECKSUM == 0 {
        return;
    }
    let begin = VNET + usize::from(u16::from_ne_bytes([bytes[6], bytes[7]]));
    let place = begin + usize::from(u16::from_ne_bytes([bytes[8], bytes[9]]));
    if place + 2 > bytes.len() {
        return;
    }
    let checksum = match !sum(&bytes[begin..], 0) {
        0 => 0xffff,
        checksum => checksum,
    };
    bytes[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
    bytes[0] &= !NEEDS_CHECKSUM;
}

/// Returns the sum of 16-bit words in one's complement (RFC 1071).
fn sum(bytes: &[u8], start: u64) -> u16 {
    let words = bytes.chunks(2).map(|pair| match pair {
        [high, low] => u64::from(u16::from_be_bytes([*high, *low])),
        [high] => u64::from(*high) << 8,
        _ => 0,
    });
    let mut sum = start + words.sum::<u64>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A frame in flight, for the log: the number of its stream, if any.
impl Identity for Frame<'_> {
    fn identity(&self, segment: u16) -> u64 {
        let frame = self.frame();
        let Some(parts) = self.parts else {
            return 0;
        };
        let step = self.step().map_or(0, |(step, _)| step);
        let moved = usize::from(segment) * step;
        if parts.protocol == TCP {
            let number = u32_at(frame, parts.transport + 4).unwrap_or(0);
            return u64::from(number.wrapping_add(moved as u32));
        }
        let at = parts.payload + moved;
        let payload = frame.get(at..).unwrap_or(&[]);
        if let Some(probe) = Probe::parse(payload) {
            return probe.sequence;
        }
        payload
            .first_chunk()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    fn may_be_marked(&self) -> bool {
        let frame = self.frame();
        let field = ip_header(frame).map(congestion_field);
        field.is_some_and(|(byte, shift)| frame[byte] >> shift & 3 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evlbi_core::path::Marks;
    use evlbi_core::time::Nanos;
    use proptest::prelude::*;

    const GSO_TCP4: u8 = 1;
    const GSO_TCP6: u8 = 4;
    const GSO_UDP: u8 = 5;

    /// Returns a TCP or UDP packet with this payload, to be segmented into steps.
    fn packet(is_v6: bool, protocol: u8, options: usize, payload: usize, step: u16) -> Vec<u8> {
        let transport = if protocol == TCP { 20 + options } else { 8 };
        let mut bytes = vec![0; VNET];
        bytes[0] = NEEDS_CHECKSUM;
        bytes[1] = match (protocol, is_v6) {
            (UDP, _) => GSO_UDP,
            (_, false) => GSO_TCP4,
            (_, true) => GSO_TCP6,
        };
        let ip_length = if is_v6 { 40 } else { 20 };
        bytes[4..6].copy_from_slice(&step.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(14 + ip_length as u16).to_ne_bytes());
        let offset: u16 = if protocol == TCP { 16 } else { 6 };
        bytes[8..10].copy_from_slice(&offset.to_ne_bytes());
        bytes.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        let rest = (transport + payload) as u16;
        if is_v6 {
            bytes.extend(IPV6.to_be_bytes());
            bytes.extend([0x60, 0x20, 0, 0]);
            bytes.extend(rest.to_be_bytes());
            bytes.extend([protocol, 64]);
            bytes.extend([0xfd; 16]);
            bytes.extend([0xfe; 16]);
        } else {
            bytes.extend(IPV4.to_be_bytes());
            bytes.extend([0x45, 2]);
            bytes.extend((20 + rest).to_be_bytes());
            bytes.extend([0x12, 0x34, 0x40, 0, 64, protocol, 0, 0]);
            bytes.extend([10, 77, 0, 1, 10, 77, 0, 2]);
        }
        if protocol == TCP {
            bytes.extend([1, 2, 3, 4]);
            bytes.extend(0xffff_fff0u32.to_be_bytes());
            bytes.extend([0; 4]);
            bytes.extend([
                (transport as u8 / 4) << 4,
                FIN | PUSH | WINDOW_REDUCED | 0x10,
            ]);
            bytes.extend([1, 1, 0, 0, 0, 0]);
            bytes.extend(vec![1; options]);
        } else {
            bytes.extend([1, 2, 3, 4]);
            bytes.extend(rest.to_be_bytes());
            bytes.extend([0, 0]);
        }
        bytes.extend((0..payload).map(|n| (n * 7) as u8));
        bytes
    }

    /// Returns whether a frame's checksums are correct once the kernel's part is done.
    fn is_sound(bytes: &[u8]) -> bool {
        let mut bytes = bytes.to_vec();
        complete_checksum(&mut bytes);
        let frame = &bytes[VNET..];
        let parts = Parts::find(frame).unwrap();
        let addresses = if parts.is_v6 {
            &frame[parts.ip + 8..parts.ip + 40]
        } else {
            &frame[parts.ip + 12..parts.ip + 20]
        };
        let rest = (frame.len() - parts.transport) as u64;
        let pseudo = sum(addresses, rest + u64::from(parts.protocol));
        let header_is_right = parts.is_v6 || sum(&frame[parts.ip..parts.transport], 0) == 0xffff;
        header_is_right && sum(&frame[parts.transport..], u64::from(pseudo)) == 0xffff
    }

    fn piece(first: u16, count: u16) -> Piece {
        Piece {
            at: Nanos(0),
            first,
            count,
            marks: Marks::default(),
        }
    }

    proptest! {
        #[test]
        fn pieces_are_the_packet(
            is_v6: bool, is_tcp: bool, options in 0..5usize, payload in 1..20_000usize, step in 50..3000u16,
            places in prop::collection::vec(0..400u16, 0..6),
        ) {
            let protocol = if is_tcp { TCP } else { UDP };
            let bytes = packet(is_v6, protocol, 4 * options, payload, step);
            let frame = Frame::new(&bytes).unwrap();
            let train = frame.train();
            prop_assert_eq!(usize::from(train.count), payload.div_ceil(usize::from(step)));
            let mut cuts: Vec<u16> = places.into_iter().map(|place| place % train.count).collect();
            cuts.extend([0, train.count]);
            cuts.sort_unstable();
            cuts.dedup();
            let headers = frame.parts.unwrap().payload;
            let (mut all, mut out) = (Vec::new(), Vec::new());
            for cut in cuts.windows(2) {
                let part = piece(cut[0], cut[1] - cut[0]);
                frame.cut(&part, &mut out);
                let cut_out = Frame::new(&out).unwrap();
                let of = cut_out.train();
                prop_assert_eq!(of.count, part.count);
                let length = train.bytes_of_all(part.first, part.count);
                prop_assert_eq!(of.bytes_of_all(0, of.count), length);
                // Each of its segments is sound.
                let mut one = Vec::new();
                for segment in 0..of.count {
                    cut_out.cut(&piece(segment, 1), &mut one);
                    if train.count > 1 {
                        prop_assert!(is_sound(&one));
                    }
                    prop_assert_eq!(one.len() - VNET, of.bytes_of(segment) as usize);
                    prop_assert_eq!(
                        Frame::new(&one).unwrap().identity(0),
                        frame.identity(part.first + segment)
                    );
                }
                if is_tcp && train.count > 1 {
                    let flags = out[VNET + cut_out.parts.unwrap().transport + 13];
                    prop_assert_eq!(flags & FIN != 0, cut[1] == train.count);
                    prop_assert_eq!(flags & WINDOW_REDUCED != 0, cut[0] == 0);
                }
                all.extend_from_slice(&out[VNET + headers..]);
            }
            prop_assert_eq!(&all, &bytes[VNET + headers..]);
        }

        #[test]
        fn anything_is_taken(mut bytes in prop::collection::vec(any::<u8>(), 0..300), first: u16, count: u16, corrupt: u64) {
            let mut out = Vec::new();
            for kind in [IPV4, IPV6, VLAN] {
                if bytes.len() >= VNET + 14 {
                    bytes[VNET + 12..VNET + 14].copy_from_slice(&kind.to_be_bytes());
                }
                let Some(frame) = Frame::new(&bytes) else { continue };
                let train = frame.train();
                let first = first % train.count;
                let part = Piece {
                    marks: Marks { congestion: true, corrupt: Some(corrupt) },
                    ..piece(first, 1 + count % (train.count - first))
                };
                frame.cut(&part, &mut out);
                let _ = (frame.too_long(1400), frame.identity(first), frame.destination());
            }
        }
    }

    #[test]
    fn a_changed_bit_is_noticed_and_a_mark_is_not() {
        for is_v6 in [false, true] {
            let bytes = packet(is_v6, UDP, 0, 3000, 1000);
            let frame = Frame::new(&bytes).unwrap();
            let mut out = Vec::new();
            let mut part = piece(1, 1);
            part.marks.congestion = true;
            frame.cut(&part, &mut out);
            assert!(is_sound(&out));
            let parts = Parts::find(&out[VNET..]).unwrap();
            let field = out[VNET + parts.ip + 1] >> if is_v6 { 4 } else { 0 };
            assert_eq!(field & 3, 3);
            // A bit of the payload.
            part.marks.corrupt = Some(8 * 200 + 3);
            frame.cut(&part, &mut out);
            assert_eq!(out[0] & NEEDS_CHECKSUM, 0);
            assert!(!is_sound(&out));
        }
    }

    #[test]
    fn senders_are_informed_of_the_longest_packet() {
        for is_v6 in [false, true] {
            let bytes = packet(is_v6, UDP, 0, 3000, 1000);
            let told = Frame::new(&bytes).unwrap().too_long(1400).unwrap();
            let frame = &told[VNET..];
            assert_eq!(frame[..6], [2, 0, 0, 0, 0, 1]);
            if is_v6 {
                assert_eq!((frame[54], u32_at(frame, 58)), (2, Some(1400)));
                let pseudo = sum(&frame[22..54], 58 + (frame.len() - 54) as u64);
                assert_eq!(sum(&frame[54..], u64::from(pseudo)), 0xffff);
            } else {
                assert_eq!(
                    (frame[34], frame[35], u16_at(frame, 40)),
                    (3, 4, Some(1400))
                );
                assert_eq!(sum(&frame[14..34], 0), 0xffff);
                assert_eq!(sum(&frame[34..], 0), 0xffff);
            }
        }
        // A packet that may be fragmented is not refused.
        let mut bytes = packet(false, UDP, 0, 100, 1000);
        bytes[VNET + 20] = 0;
        assert_eq!(Frame::new(&bytes).unwrap().too_long(1400), None);
    }
}
