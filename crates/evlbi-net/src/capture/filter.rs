//! Filters of captured packets, which the kernel runs (classic BPF).
//!
//! A filter saves the copies of packets that are something else. It passes fragments and IPv6 packets with extension headers whatever
//! their ports: the reader of the packets parses them exactly.

use std::ops::RangeInclusive;

/// Length of an Ethernet header in bytes, and the offset of its type.
const ETHERNET: u32 = 14;
const TYPE: u32 = 12;
/// Length of a VLAN tag in bytes, and maximum number of tags: the kernel has removed the outer one.
const TAG: u32 = 4;
const MAX_TAGS: u32 = 2;
/// Types of VLAN tags (IEEE 802.1Q, 802.1ad and its predecessor).
const TAGS: [u32; 3] = [0x8100, 0x88a8, 0x9100];
const IPV4: u32 = 0x0800;
const IPV6: u32 = 0x86dd;
const UDP: u32 = 17;
/// Extension headers of IPv6: hop-by-hop options, routing, fragment, authentication, destination options.
const EXTENSIONS: [u32; 5] = [0, 43, 44, 51, 60];
/// Flag and offset of fragments in an IPv4 header.
const FRAGMENT: u32 = 0x3fff;

/// Returns a filter that passes Ethernet frames with UDP datagrams to one of these ports, with up to two VLAN tags, and what may contain
/// such datagrams.
pub fn udp_ports(ports: RangeInclusive<u16>) -> Vec<libc::sock_filter> {
    use libc::{BPF_B, BPF_H, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JSET};
    let mut program = Backwards::default();
    let drop = program.end(0);
    let pass = program.end(u32::MAX);
    let top = program.test(BPF_JGT, (*ports.end()).into(), drop, pass);
    let port = program.test(BPF_JGE, (*ports.start()).into(), top, drop);

    let port_of_v6 = program.load(BPF_H, ETHERNET + 40 + 2);
    let mut other = drop;
    for header in EXTENSIONS {
        other = program.test(BPF_JEQ, header, pass, other);
    }
    program.test(BPF_JEQ, UDP, port_of_v6, other);
    let v6 = program.load(BPF_B, ETHERNET + 6);

    program.jump(port);
    program.load(BPF_H, ETHERNET + 2);
    program.skip_v4_header();
    let unfragmented = program.load(BPF_B, ETHERNET);
    program.test(BPF_JSET, FRAGMENT, pass, unfragmented);
    let flags = program.load(BPF_H, ETHERNET + 6);
    program.test(BPF_JEQ, UDP, flags, drop);
    let v4 = program.load(BPF_B, ETHERNET + 9);

    let not_v4 = program.test(BPF_JEQ, IPV6, v6, drop);
    let protocol = program.test(BPF_JEQ, IPV4, v4, not_v4);
    program.jump(protocol);
    program.load(BPF_H, TYPE);
    let mut behind = program.skip(MAX_TAGS * TAG);
    for tags in (0..MAX_TAGS).rev() {
        let mut other = protocol;
        for tag in TAGS {
            other = program.test(BPF_JEQ, tag, behind, other);
        }
        program.load(BPF_H, TYPE);
        behind = program.skip(tags * TAG);
    }
    program.finish()
}

/// A program that is written from its end, so that each jump knows its target. A place is the number of instructions behind it.
#[derive(Default)]
struct Backwards(Vec<libc::sock_filter>);

impl Backwards {
    fn put(&mut self, code: u32, k: u32, [yes, no]: [u8; 2]) -> usize {
        self.0.push(libc::sock_filter {
            code: code as u16,
            jt: yes,
            jf: no,
            k,
        });
        self.0.len() - 1
    }

    /// Returns this many bytes of the packet.
    fn end(&mut self, bytes: u32) -> usize {
        self.put(libc::BPF_RET | libc::BPF_K, bytes, [0; 2])
    }

    /// Reads from the packet, `offset` bytes behind the register X.
    fn load(&mut self, size: u32, offset: u32) -> usize {
        self.put(libc::BPF_LD | size | libc::BPF_IND, offset, [0; 2])
    }

    /// Sets X to the length of the tags.
    fn skip(&mut self, tags: u32) -> usize {
        self.put(libc::BPF_LDX | libc::BPF_W | libc::BPF_IMM, tags, [0; 2])
    }

    /// Adds the length of the IPv4 header, whose first byte was read, to X.
    fn skip_v4_header(&mut self) {
        self.put(libc::BPF_MISC | libc::BPF_TAX, 0, [0; 2]);
        self.put(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X, 0, [0; 2]);
        self.put(libc::BPF_ALU | libc::BPF_LSH | libc::BPF_K, 2, [0; 2]);
        self.put(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 15, [0; 2]);
    }

    /// Compares what was read with `k`.
    fn test(&mut self, test: u32, k: u32, yes: usize, no: usize) -> usize {
        let to = [yes, no].map(|place| (self.0.len() - 1 - place) as u8);
        self.put(libc::BPF_JMP | test | libc::BPF_K, k, to)
    }

    fn jump(&mut self, place: usize) {
        let distance = (self.0.len() - 1 - place) as u32;
        self.put(libc::BPF_JMP | libc::BPF_JA, distance, [0; 2]);
    }

    fn finish(mut self) -> Vec<libc::sock_filter> {
        self.0.reverse();
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::socket;

    /// Returns which of the frames the kernel lets pass.
    fn pass(ports: RangeInclusive<u16>, frames: &[Vec<u8>]) -> Vec<bool> {
        let filter = udp_ports(ports);
        let (from, to) = UnixDatagram::pair().unwrap();
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_ptr().cast_mut(),
        };
        socket::set(&to, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program).unwrap();
        to.set_nonblocking(true).unwrap();
        let passes = frames.iter().map(|frame| {
            let sent = from.send(frame);
            match to.recv(&mut [0; 4096]) {
                Ok(length) => {
                    assert_eq!((sent.unwrap(), length), (frame.len(), frame.len()));
                    true
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    false
                }
            }
        });
        passes.collect()
    }

    fn frame(tags: &[u16], kind: u16, packet: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        for tag in tags {
            frame.extend(tag.to_be_bytes());
            frame.extend([0, 7]);
        }
        frame.extend(kind.to_be_bytes());
        frame.extend(packet);
        frame
    }

    /// An IPv4 packet with `options` words of options.
    fn v4(options: u8, flags: [u8; 2], protocol: u8, port: u16) -> Vec<u8> {
        let mut packet = vec![0; 20 + 4 * usize::from(options)];
        packet[0] = 0x45 + options;
        packet[6..8].copy_from_slice(&flags);
        packet[9] = protocol;
        packet.extend([0x0a, 0x46]);
        packet.extend(port.to_be_bytes());
        packet.extend([0; 8]);
        packet
    }

    fn v6(next: u8, port: u16) -> Vec<u8> {
        let mut packet = vec![0; 40];
        packet[0] = 0x60;
        packet[6] = next;
        packet.extend([0x0a, 0x46]);
        packet.extend(port.to_be_bytes());
        packet.extend([0; 8]);
        packet
    }

    #[test]
    fn datagrams_to_the_ports_pass_with_any_tags() {
        for tags in [
            &[][..],
            &[0x8100],
            &[0x88a8],
            &[0x9100, 0x8100],
            &[0x88a8, 0x8100],
        ] {
            let frames = [
                frame(tags, 0x0800, &v4(0, [0x40, 0], 17, 2630)),
                frame(tags, 0x0800, &v4(5, [0, 0], 17, 2631)),
                frame(tags, 0x86dd, &v6(17, 2630)),
                // Other ports, protocols and packets.
                frame(tags, 0x0800, &v4(0, [0, 0], 17, 2629)),
                frame(tags, 0x0800, &v4(1, [0, 0], 17, 2632)),
                frame(tags, 0x0800, &v4(0, [0, 0], 6, 2630)),
                frame(tags, 0x86dd, &v6(17, 2632)),
                frame(tags, 0x86dd, &v6(6, 2630)),
                frame(tags, 0x0806, &v4(0, [0, 0], 17, 2630)),
                frame(tags, 0x0800, &[0x45]),
                // Fragments and extension headers.
                frame(tags, 0x0800, &v4(0, [0x20, 0], 17, 1)),
                frame(tags, 0x0800, &v4(0, [0, 185], 17, 1)),
                frame(tags, 0x0800, &v4(0, [0, 185], 6, 2630)),
                frame(tags, 0x86dd, &v6(44, 1)),
                frame(tags, 0x86dd, &v6(0, 1)),
            ];
            let expected = [
                [true; 3].as_slice(),
                &[false; 7],
                &[true, true, false, true, true],
            ];
            assert_eq!(pass(2630..=2631, &frames), expected.concat(), "{tags:x?}");
        }
        let three = frame(&[0x8100; 3], 0x0800, &v4(0, [0, 0], 17, 2630));
        assert_eq!(pass(2630..=2630, &[three, Vec::new()]), [false, false]);
    }
}
