//! Captured packets, from the link-layer header to a TCP segment (RFC 9293), a UDP datagram or a fragment of one.
//!
//! A capture may hold only the first bytes of each packet, so lengths are taken from the headers, not from the captured bytes.

use std::net::{IpAddr, SocketAddr};

use etherparse::checksum::Sum16BitWords;
use etherparse::{Ipv6ExtensionSlice, LaxIpSlice, LenSource, ip_number};

/// Lengths of headers without options, in bytes.
const TCP_HEADER: usize = 20;
const UDP_HEADER: u32 = 8;
/// EtherTypes of tags that are followed by another EtherType (IEEE 802.1Q, 802.1ad and its predecessor).
const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
/// Maximum length of a packet, in bytes: Linux joins up to half a mebibyte.
const MAX: u32 = 1 << 20;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Link-layer header of a captured packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Ethernet II, with or without VLAN tags.
    Ethernet,
    /// None: the packet starts with the IP header.
    Ip,
    /// Linux "cooked" header of 16 bytes (`tcpdump -i any`).
    Cooked,
    /// Linux "cooked" header, version 2, of 20 bytes.
    Cooked2,
    /// BSD loopback: the address family in four bytes.
    Loopback,
}

impl Link {
    /// Looks up a LINKTYPE number of a pcap or pcapng file; `None` if the type is not supported.
    pub fn from_number(number: i32) -> Option<Link> {
        match number {
            0 | 108 => Some(Link::Loopback),
            1 => Some(Link::Ethernet),
            12 | 101 | 228 | 229 => Some(Link::Ip),
            113 => Some(Link::Cooked),
            276 => Some(Link::Cooked2),
            _ => None,
        }
    }
}

/// TCP or UDP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Sender.
    pub source: SocketAddr,
    /// Destination.
    pub destination: SocketAddr,
    /// IPv4 identification, if the sender sets one.
    pub identification: Option<u16>,
    /// Length of the IP packet, in bytes.
    pub length: u32,
    /// Content of the packet.
    pub content: Content<'a>,
}

/// Content of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// TCP segment.
    Tcp(Segment),
    /// UDP datagram.
    Udp(Datagram<'a>),
}

/// TCP segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Sequence number of the first byte.
    pub sequence: u32,
    /// Acknowledgment number: all bytes before it were received. `None` without the ACK flag.
    pub acknowledgment: Option<u32>,
    /// SYN flag.
    pub begins: bool,
    /// FIN flag.
    pub ends: bool,
    /// RST flag.
    pub resets: bool,
    /// Window, unscaled.
    pub window: u16,
    /// Length of the payload, in bytes.
    pub length: u32,
    /// Options.
    pub options: Options,
}

/// TCP options used here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Maximum segment size of the sender (RFC 9293, section 3.7.1), in bytes.
    pub segment: Option<u16>,
    /// Window scale, in bits (RFC 7323, section 2).
    pub scale: Option<u8>,
    /// SACK permitted (RFC 2018).
    pub selective: bool,
    /// TSval and TSecr (RFC 7323, section 3).
    pub stamps: Option<(u32, u32)>,
    /// SACK blocks: first byte and end (exclusive).
    pub blocks: [Option<(u32, u32)>; 4],
    /// Whether all options were captured and are valid.
    pub whole: bool,
}

/// UDP datagram, or several that the kernel sends as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Length of the payload, in bytes.
    pub length: u32,
    /// Captured part of the payload.
    pub payload: &'a [u8],
    /// Checksum of the header; 0 if the sender calculates none.
    pub checksum: u16,
}

/// Fragment of an IP packet with a UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// Packet that it belongs to.
    pub id: FragmentId,
    /// Offset in the packet's payload, in bytes.
    pub offset: usize,
    /// Whether it is the last fragment of its packet.
    pub is_last: bool,
    /// Fragment of the packet's payload.
    pub payload: &'a [u8],
}

/// Identity of a fragmented packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentId {
    /// Sender.
    pub source: IpAddr,
    /// Destination.
    pub destination: IpAddr,
    /// Identification.
    pub number: u32,
}

/// Reason why a packet was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// Neither IPv4 nor IPv6.
    NotIp,
    /// Neither TCP nor UDP.
    OtherProtocol,
    /// Fragment of a packet.
    Fragment,
    /// Headers damaged or not captured.
    Damaged,
}

/// Parses a packet that had `on_wire` bytes on the wire.
pub fn read(link: Link, bytes: &[u8], on_wire: u32) -> Result<Packet<'_>, Unread> {
    let packet = network(link, bytes)?;
    let before_it = (bytes.len() - packet.len()) as u32;
    let (ip, _) = LaxIpSlice::from_slice(packet).map_err(|_| Unread::Damaged)?;
    // A packet that the NIC will segment may be too long for the header's length field.
    let all = on_wire.saturating_sub(before_it);
    let (identification, length) = match &ip {
        LaxIpSlice::Ipv4(ip) => match (ip.header().identification(), ip.header().total_len()) {
            (id, 0) => (id, all),
            (id, told) => (id, told.into()),
        },
        LaxIpSlice::Ipv6(ip) => match ip.header().payload_length() {
            0 => (0, all),
            told => (0, u32::from(told) + ip.header().slice().len() as u32),
        },
    };
    if length > MAX {
        return Err(Unread::Damaged);
    }
    let payload = ip.payload();
    if payload.fragmented {
        return Err(Unread::Fragment);
    }
    // The segment ends with the packet or with the captured bytes.
    let end = match payload.len_source {
        LenSource::Slice => packet.len(),
        _ => length as usize,
    };
    let headers = end.saturating_sub(payload.payload.len()) as u32;
    let length_of_payload = length.checked_sub(headers).ok_or(Unread::Damaged)?;
    let bytes = payload.payload;
    let content = match payload.ip_number {
        ip_number::TCP => segment(bytes, length_of_payload).map(Content::Tcp),
        ip_number::UDP => datagram(bytes, length_of_payload).map(Content::Udp),
        _ => return Err(Unread::OtherProtocol),
    };
    let addresses = (ip.source_addr(), ip.destination_addr());
    let packet = content.and_then(|content| packet_of(addresses, bytes, content, length));
    let packet = packet.ok_or(Unread::Damaged)?;
    Ok(Packet {
        identification: Some(identification).filter(|id| *id != 0),
        ..packet
    })
}

/// Parses a fragment that was captured whole; `None` if the packet is something else.
pub fn fragment(link: Link, bytes: &[u8]) -> Option<Fragment<'_>> {
    let (ip, _) = LaxIpSlice::from_slice(network(link, bytes).ok()?).ok()?;
    let payload = ip.payload();
    let is_whole = payload.len_source != LenSource::Slice;
    if !payload.fragmented || !is_whole || payload.ip_number != ip_number::UDP {
        return None;
    }
    let (offset, has_more, number) = match &ip {
        LaxIpSlice::Ipv4(ip) => {
            let header = ip.header();
            let (offset, has_more) = (header.fragments_offset(), header.more_fragments());
            (offset, has_more, header.identification().into())
        }
        LaxIpSlice::Ipv6(ip) => {
            let mut headers = ip.extensions().clone().into_iter();
            headers.find_map(|header| match header {
                Ipv6ExtensionSlice::Fragment(header) => Some((
                    header.fragment_offset(),
                    header.more_fragments(),
                    header.identification(),
                )),
                _ => None,
            })?
        }
    };
    Some(Fragment {
        id: FragmentId {
            source: ip.source_addr(),
            destination: ip.destination_addr(),
            number,
        },
        offset: offset.byte_offset().into(),
        is_last: !has_more,
        payload: payload.payload,
    })
}

/// Parses a packet that was reassembled from its fragments; `None` if its UDP header is damaged.
pub fn reassembled(id: FragmentId, payload: &[u8]) -> Option<Packet<'_>> {
    let length = u32::try_from(payload.len()).ok()?;
    let content = datagram(payload, length).map(Content::Udp)?;
    packet_of((id.source, id.destination), payload, content, length)
}

/// Returns a packet without identification, with the ports that its payload begins with.
fn packet_of<'a>(
    (source, destination): (IpAddr, IpAddr),
    payload: &[u8],
    content: Content<'a>,
    length: u32,
) -> Option<Packet<'a>> {
    Some(Packet {
        source: SocketAddr::new(source, u16_at(payload, 0)?),
        destination: SocketAddr::new(destination, u16_at(payload, 2)?),
        identification: None,
        length,
        content,
    })
}

impl Packet<'_> {
    /// Returns whether the checksum of a datagram that was captured whole is right, or the sender calculated none (RFC 768). Segments
    /// are not checked.
    pub fn is_sound(&self) -> bool {
        let Content::Udp(datagram) = &self.content else {
            return true;
        };
        if datagram.checksum == 0 {
            return true;
        }
        let length = datagram.length + UDP_HEADER;
        let sum = [self.source, self.destination]
            .iter()
            .fold(Sum16BitWords::new(), |mut sum, end| match end.ip() {
                IpAddr::V4(ip) => sum.add_4bytes(ip.octets()),
                IpAddr::V6(ip) => sum.add_16bytes(ip.octets()),
            })
            .add_2bytes([0, ip_number::UDP.0])
            .add_4bytes(length.to_be_bytes())
            .add_2bytes(self.source.port().to_be_bytes())
            .add_2bytes(self.destination.port().to_be_bytes())
            .add_4bytes(length.to_be_bytes())
            .add_2bytes(datagram.checksum.to_be_bytes())
            .add_slice(datagram.payload);
        sum.ones_complement() == 0
    }
}

/// Returns the IP packet in a frame.
fn network(link: Link, bytes: &[u8]) -> Result<&[u8], Unread> {
    let rest = |count: usize| bytes.get(count..).ok_or(Unread::Damaged);
    let (mut kind, mut at) = match link {
        Link::Ip => return Ok(bytes),
        // Ignore the family: the IP header gives the version.
        Link::Loopback => return rest(4),
        Link::Ethernet => (u16_at(bytes, 12), 14),
        Link::Cooked => (u16_at(bytes, 14), 16),
        Link::Cooked2 => (u16_at(bytes, 0), 20),
    };
    while let Some(tag) = kind
        && TAGS.contains(&tag)
    {
        kind = u16_at(bytes, at + 2);
        at += 4;
    }
    match kind {
        Some(IPV4 | IPV6) => rest(at),
        Some(_) => Err(Unread::NotIp),
        None => Err(Unread::Damaged),
    }
}

fn segment(bytes: &[u8], length: u32) -> Option<Segment> {
    let header = bytes.get(..TCP_HEADER)?;
    let long = usize::from(header[12] >> 4) * 4;
    if long < TCP_HEADER {
        return None;
    }
    let flags = header[13];
    let has = |flag: u8| flags & flag != 0;
    // Parse the options that were captured, even if some are missing.
    let mut options = read_options(&bytes[TCP_HEADER..long.min(bytes.len())]);
    options.whole &= bytes.len() >= long;
    Some(Segment {
        sequence: u32_at(header, 4)?,
        acknowledgment: u32_at(header, 8).filter(|_| has(0x10)),
        begins: has(0x02),
        ends: has(0x01),
        resets: has(0x04),
        window: u16_at(header, 14)?,
        length: length.checked_sub(long as u32)?,
        options,
    })
}

/// Calls `option` with kind and content of each valid option (RFC 9293, section 3.1). Returns whether all options were valid.
fn walk(mut bytes: &[u8], mut option: impl FnMut(u8, &[u8])) -> bool {
    loop {
        match bytes {
            [] | [0, ..] => return true,
            [1, rest @ ..] => bytes = rest,
            [kind, length, ..] => {
                let parts = bytes.split_at_checked(usize::from(*length));
                let Some(([_, _, content @ ..], rest)) = parts else {
                    return false;
                };
                option(*kind, content);
                bytes = rest;
            }
            [_] => return false,
        }
    }
}

fn read_options(bytes: &[u8]) -> Options {
    let mut options = Options::default();
    options.whole = walk(bytes, |kind, content| match (kind, content.len()) {
        (2, 2) => options.segment = u16_at(content, 0),
        (3, 1) => options.scale = content.first().copied(),
        (4, 0) => options.selective = true,
        (5, 8 | 16 | 24 | 32) => {
            let ends = content.chunks_exact(8);
            for (block, ends) in options.blocks.iter_mut().zip(ends) {
                *block = u32_at(ends, 0).zip(u32_at(ends, 4));
            }
        }
        (8, 8) => options.stamps = u32_at(content, 0).zip(u32_at(content, 4)),
        _ => {}
    });
    options
}

fn datagram(bytes: &[u8], length: u32) -> Option<Datagram<'_>> {
    let length = match u32::from(u16_at(bytes, 4)?) {
        0 => length,
        told => told.min(length),
    };
    let length = length.checked_sub(UDP_HEADER)?;
    let payload = bytes.get(UDP_HEADER as usize..)?;
    let there = payload.len().min(length as usize);
    Some(Datagram {
        length,
        payload: &payload[..there],
        checksum: u16_at(bytes, 6)?,
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// SYN over Ethernet, with the options that Linux sends.
    const SYN: [u8; 74] = [
        0x02, 0x00, 0x00, 0x00, 0x00, 0x02, 0x02, 0x00, 0x00, 0x00, 0x00, 0x01, 0x08, 0x00, 0x45,
        0x00, 0x00, 0x3c, 0x1c, 0x46, 0x40, 0x00, 0x40, 0x06, 0x0a, 0x74, 0x0a, 0x00, 0x00, 0x01,
        0x0a, 0x00, 0x00, 0x02, 0xb0, 0x3a, 0x21, 0xac, 0x5a, 0x1b, 0x2c, 0x3d, 0x00, 0x00, 0x00,
        0x00, 0xa0, 0x02, 0xfa, 0xf0, 0x00, 0x00, 0x00, 0x00, 0x02, 0x04, 0x05, 0xb4, 0x04, 0x02,
        0x08, 0x0a, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x03, 0x03, 0x0a,
    ];

    fn tcp(packet: &Packet) -> Segment {
        match packet.content {
            Content::Tcp(segment) => segment,
            Content::Udp(_) => panic!("{packet:?}"),
        }
    }

    #[test]
    fn a_syn() {
        let packet = read(Link::Ethernet, &SYN, 74).unwrap();
        assert_eq!(packet.source, "10.0.0.1:45114".parse().unwrap());
        assert_eq!(packet.destination, "10.0.0.2:8620".parse().unwrap());
        assert_eq!((packet.identification, packet.length), (Some(0x1c46), 60));
        let expected = Segment {
            sequence: 0x5a1b_2c3d,
            begins: true,
            window: 64240,
            options: Options {
                segment: Some(1460),
                scale: Some(10),
                selective: true,
                stamps: Some((0x1000, 0)),
                whole: true,
                ..Options::default()
            },
            ..Segment::default()
        };
        assert_eq!(tcp(&packet), expected);
    }

    #[test]
    fn tags_and_other_links() {
        let plain = read(Link::Ethernet, &SYN, 74).unwrap();
        let (head, ip) = SYN.split_at(14);
        let tagged = [
            &head[..12],
            &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 7],
            &head[12..],
            ip,
        ]
        .concat();
        assert_eq!(read(Link::Ethernet, &tagged, 82).unwrap(), plain);
        assert_eq!(read(Link::Ip, ip, 60).unwrap(), plain);
        let cooked = [&[0; 14][..], &[8, 0], ip].concat();
        assert_eq!(read(Link::Cooked, &cooked, 76).unwrap(), plain);
        let cooked = [&[8, 0], &[0; 18][..], ip].concat();
        assert_eq!(read(Link::Cooked2, &cooked, 80).unwrap(), plain);
        assert_eq!(
            read(Link::Loopback, &[&[2, 0, 0, 0], ip].concat(), 64).unwrap(),
            plain
        );
        assert_eq!(read(Link::Ethernet, &[0; 60], 60), Err(Unread::NotIp));
    }

    #[test]
    fn bytes_that_were_not_captured_count() {
        let mut frame = SYN;
        // 1500 bytes, of which the first 60 were captured: options are truncated, too.
        frame[16..18].copy_from_slice(&1500_u16.to_be_bytes());
        let segment = tcp(&read(Link::Ethernet, &frame[..60], 1514).unwrap());
        assert_eq!(segment.length, 1440);
        assert_eq!(segment.options.segment, Some(1460));
        assert_eq!(
            (segment.options.selective, segment.options.scale),
            (true, None)
        );
        assert!(!segment.options.whole);
        // Too long for the length field.
        frame[16..18].copy_from_slice(&[0, 0]);
        let segment = tcp(&read(Link::Ethernet, &frame, 190_000).unwrap());
        assert_eq!(segment.length, 190_000 - 74);
        assert_eq!(read(Link::Ethernet, &frame, u32::MAX), Err(Unread::Damaged));
        // Unknown options do not hide others.
        let mut frame = SYN;
        frame[54..58].copy_from_slice(&[253, 4, 0, 0]);
        let options = tcp(&read(Link::Ethernet, &frame, 74).unwrap()).options;
        assert_eq!(
            (options.segment, options.scale, options.whole),
            (None, Some(10), true)
        );
        // Ethernet padding does not count as payload.
        let mut short = SYN.to_vec();
        short.extend([0; 6]);
        assert_eq!(tcp(&read(Link::Ethernet, &short, 80).unwrap()).length, 0);
        assert_eq!(read(Link::Ethernet, &SYN[..50], 74), Err(Unread::Damaged));
    }

    #[test]
    fn datagrams() {
        let mut frame = SYN[14..34].to_vec();
        frame[2..4].copy_from_slice(&36_u16.to_be_bytes());
        frame[9] = 17;
        frame.extend([0x0a, 0x46, 0x0a, 0x47, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let packet = read(Link::Ip, &frame, 36).unwrap();
        let Content::Udp(datagram) = packet.content else {
            panic!("{packet:?}");
        };
        assert_eq!(
            (datagram.length, datagram.payload),
            (8, &[1, 2, 3, 4, 5, 6, 7, 8][..])
        );
        let packet = read(Link::Ip, &frame[..30], 36).unwrap();
        let Content::Udp(datagram) = packet.content else {
            panic!("{packet:?}");
        };
        assert_eq!((datagram.length, datagram.payload), (8, &[1, 2][..]));
        // The second fragment of a packet has no ports.
        frame[6] = 0x20;
        assert_eq!(read(Link::Ip, &frame, 36), Err(Unread::Fragment));
        frame[6] = 0;
        frame[9] = 1;
        assert_eq!(read(Link::Ip, &frame, 36), Err(Unread::OtherProtocol));
    }

    /// A datagram of 26 bytes in two fragments, as Linux sends them over IPv4 and IPv6: after a header, `more`, and 16 bytes each.
    fn fragments() -> [[Vec<u8>; 2]; 2] {
        let datagram: Vec<u8> = [0x0a, 0x46, 0x0a, 0x47, 0, 34, 0, 0]
            .into_iter()
            .chain(0..26)
            .collect();
        let v4 = |offset: usize, more: u8, part: &[u8]| {
            let length = 20 + part.len() as u8;
            let place = [more << 5, (offset / 8) as u8];
            let header = [
                &[0x45, 0, 0, length, 0x12, 0x34],
                &place[..],
                &[64, 17, 0, 0],
            ];
            let addresses = [192, 0, 2, 1, 192, 0, 2, 2];
            [&header.concat()[..], &addresses, part].concat()
        };
        let v6 = |offset: usize, more: u8, part: &[u8]| {
            let length = 8 + part.len() as u8;
            let mut packet = vec![0x60, 0, 0, 0, 0, length, 44, 64];
            packet.extend([[0xfd; 16], [0xfc; 16]].concat());
            packet.extend([17, 0, 0, offset as u8 | more, 0x56, 0x78, 0x12, 0x34]);
            packet.extend(part);
            packet
        };
        let (first, last) = datagram.split_at(16);
        [
            [v4(0, 1, first), v4(16, 0, last)],
            [v6(0, 1, first), v6(16, 0, last)],
        ]
    }

    #[test]
    fn fragments_of_a_datagram() {
        for (version, packets) in fragments().iter().enumerate() {
            let parts = [0, 1].map(|n| fragment(Link::Ip, &packets[n]).unwrap());
            let number = [0x1234, 0x5678_1234][version];
            assert_eq!((parts[0].id, number), (parts[1].id, parts[0].id.number));
            assert_eq!(parts.map(|part| part.offset), [0, 16]);
            assert_eq!(parts.map(|part| part.is_last), [false, true]);
            let whole = parts.map(|part| part.payload).concat();
            let packet = reassembled(parts[0].id, &whole).unwrap();
            assert_eq!(
                (packet.source.port(), packet.destination.port()),
                (2630, 2631)
            );
            assert_eq!(packet.source.ip(), parts[0].id.source);
            let Content::Udp(datagram) = packet.content else {
                panic!("{packet:?}");
            };
            assert_eq!(datagram.payload, (0..26).collect::<Vec<u8>>());
            // A fragment that was not captured whole cannot be used.
            let cut = &packets[0][..packets[0].len() - 1];
            assert_eq!(fragment(Link::Ip, cut), None);
        }
        assert_eq!(fragment(Link::Ethernet, &SYN), None);
        assert_eq!(fragment(Link::Ip, &[]), None);
    }

    #[test]
    fn checksums_of_datagrams() {
        let ports = [0x0a, 0x46, 0x0a, 0x47];
        // Calculated by a Python script, word by word.
        for (source, destination, checksum) in [
            ("192.0.2.1", "192.0.2.2", 0xadad),
            ("2001:db8::1", "2001:db8::2", 0xd63c),
        ] {
            let id = FragmentId {
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
                number: 1,
            };
            let datagram = |checksum: u16| {
                let header = [&ports[..], &[0, 13], &checksum.to_be_bytes()].concat();
                [&header[..], b"VLBI!"].concat()
            };
            let is_sound = |bytes: &[u8]| reassembled(id, bytes).unwrap().is_sound();
            assert!(is_sound(&datagram(checksum)), "{source}");
            assert!(is_sound(&datagram(0)));
            let mut damaged = datagram(checksum);
            damaged[9] ^= 4;
            assert!(!is_sound(&damaged));
        }
    }

    proptest! {
        #[test]
        fn no_packet_panics(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), on_wire in any::<u32>(), kind in 0i32..280,
            damage in proptest::collection::vec((0usize..74, any::<u8>()), 0..8), length in 0usize..75,
        ) {
            for link in [Link::Ethernet, Link::Ip, Link::Cooked, Link::Cooked2, Link::Loopback] {
                let _ = read(link, &bytes, on_wire);
                let _ = fragment(link, &bytes);
            }
            for packet in fragments().iter().flatten() {
                let mut packet = packet.clone();
                for (at, byte) in &damage {
                    if let Some(place) = packet.get_mut(*at) {
                        *place = *byte;
                    }
                }
                let _ = fragment(Link::Ip, &packet);
                if let Ok(packet) = read(Link::Ip, &packet, packet.len() as u32) {
                    packet.is_sound();
                }
            }
            let _ = Link::from_number(kind);
            let mut frame = SYN;
            for (at, byte) in damage {
                frame[at] = byte;
            }
            let _ = read(Link::Ethernet, &frame[..length], on_wire);
            let _ = read(Link::Ethernet, &frame, on_wire);
        }
    }
}
