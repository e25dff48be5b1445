//! Port-mirrored streams: UDP datagrams to other hosts, which a mirror port of a switch or a promiscuous interface shows, received as if
//! they had been sent to this host. Each datagram begins with its number, as over UDP. It only receives.
//!
//! - VLAN tags are skipped, and joined datagrams are split ([`capture`]).
//! - Fragments of IPv4 and IPv6 packets are reassembled ([`reassemble`](evlbi_core::reassemble)).
//! - A mirror port that shows both directions of a link may show each datagram twice: one of them counts as a duplicate.
//! - Datagrams with a wrong checksum are dropped, as by the kernel, unless this host's kernel is still to calculate it.

use std::io;
use std::ops::RangeInclusive;
use std::time::Duration;

use evlbi_core::reassemble::Reassembly;
use evlbi_core::time::Nanos;
use evlbi_wire::packet::{self, Content, Link, Unread};

use super::{
    Batch, Carries, Events, Honours, InOptions, Incoming, Local, Message, Numbers, Opened, Peer,
    Place, Query, Service, Transport, Url, url,
};
use crate::capture::{self, Capture, Packets};
use crate::clock::events;
use crate::run::Run;
use crate::socket::GrantedBuffer;
use crate::udp::{self, Interface, ReceiverOptions};

/// Key of the ports in the query of a URL.
const UDP: &str = "udp";

/// Port-mirrored streams.
pub struct Mirror;

impl Transport for Mirror {
    fn schemes(&self) -> &'static [&'static str] {
        &["mirror"]
    }

    fn form(&self) -> &'static str {
        "mirror://INTERFACE?udp=PORT"
    }

    fn service(&self) -> Service {
        Service {
            carries: Carries::Datagrams,
            numbers: Numbers::InBand,
            reliable: false,
            max_ports: url::MAX_PORTS,
            honours: Honours {
                buffer: true,
                mtu: false,
                sequence: false,
                single: false,
                only: true,
                window: true,
                hold: true,
                interface: false,
                source: false,
                ttl: false,
            },
        }
    }

    fn place(&self, text: &str, query: &mut Query<'_>) -> Result<Place, String> {
        let form = self.form();
        if text.is_empty() {
            return Err(format!("`mirror://` names no interface: give {form}"));
        }
        let given = query.iter().position(|(key, _)| *key == UDP);
        let given = given.map(|at| query.remove(at).1);
        let given = given.ok_or_else(|| {
            format!("`mirror://{text}` names no UDP port to receive: give {form}")
        })?;
        let valid = url::parse_ports(given).filter(|(port, _)| *port > 0);
        let (port, ports) = valid.ok_or_else(|| {
            let max = url::MAX_PORTS;
            format!("invalid port `{given}` (1 to 65535, or a range of up to {max}): give {form}")
        })?;
        let Ok(interface) = text.parse();
        Ok(Place::Interface {
            interface,
            port,
            ports,
        })
    }

    fn open_in(&self, at: &Url, with: &InOptions, _run: &Run) -> Opened<dyn Incoming> {
        let Place::Interface {
            interface,
            port,
            ports,
        } = &at.place
        else {
            return Err(udp::OpenError::NoInterface(at.to_string()).into());
        };
        let ports = *port..=port + (ports - 1);
        let buffer = with.buffer.unwrap_or(ReceiverOptions::default().buffer);
        let filter = capture::udp_ports(ports.clone());
        let capture = Capture::open(interface, &filter, buffer)?;
        Ok(Box::new(In {
            polls: [events::readable(capture.socket())],
            interface: interface.clone(),
            capture,
            packets: Packets::default(),
            datagrams: Datagrams::new(ports),
        }))
    }
}

/// Capture of an interface, and the datagrams in it.
struct In {
    interface: Interface,
    capture: Capture,
    packets: Packets,
    datagrams: Datagrams,
    polls: [libc::pollfd; 1],
}

/// Datagrams in captured packets.
struct Datagrams {
    reassembly: Reassembly,
    wanted: Wanted,
    messages: Vec<Message>,
}

/// Choice among the captured datagrams.
struct Wanted {
    ports: RangeInclusive<u16>,
    /// Datagrams to the ports with a wrong checksum, or captured in part.
    damaged: u64,
}

impl Wanted {
    /// Returns the payload of a datagram to one of the ports, and its message without its place.
    fn accept<'a>(
        &mut self,
        found: &packet::Packet<'a>,
        captured: &capture::Packet,
        is_unchecked: bool,
    ) -> Option<(&'a [u8], Message)> {
        let Content::Udp(datagram) = found.content else {
            return None;
        };
        let port = found.destination.port();
        if !self.ports.contains(&port) {
            return None;
        }
        let is_whole = datagram.payload.len() == datagram.length as usize;
        if !is_whole || is_unchecked && !found.is_sound() {
            self.damaged += 1;
            return None;
        }
        let message = Message {
            segment: captured.segment,
            peer: Peer::Socket(found.source),
            port: usize::from(port - self.ports.start()),
            stamp: captured.stamp,
            ..Message::default()
        };
        Some((datagram.payload, message))
    }
}

impl Datagrams {
    fn new(ports: RangeInclusive<u16>) -> Datagrams {
        Datagrams {
            reassembly: Reassembly::default(),
            wanted: Wanted { ports, damaged: 0 },
            messages: Vec::new(),
        }
    }

    /// Finds the datagrams in captured packets. Fragments expire by the receiver's clock, `now`: the timestamps of packets follow a clock
    /// that may be set, or are missing.
    fn find(&mut self, packets: &mut Packets, now: Nanos) {
        let Datagrams {
            reassembly,
            wanted,
            messages,
        } = self;
        let Packets {
            memory, packets, ..
        } = packets;
        messages.clear();
        for captured in packets.iter() {
            let frame = &memory[captured.range.clone()];
            let start = captured.range.start;
            match packet::read(Link::Ethernet, frame, frame.len() as u32) {
                Ok(found) => {
                    let accepted = wanted.accept(&found, captured, captured.is_unchecked);
                    if let Some((payload, message)) = accepted {
                        let start = start + (payload.as_ptr().addr() - frame.as_ptr().addr());
                        let range = start..start + payload.len();
                        messages.push(Message { range, ..message });
                    }
                }
                Err(Unread::Fragment) => {
                    let Some(fragment) = packet::fragment(Link::Ethernet, frame) else {
                        continue;
                    };
                    let whole = reassembly.add(&fragment, Duration::from_nanos(now.0));
                    let found = whole.and_then(|whole| packet::reassembled(fragment.id, whole));
                    let accepted = found.and_then(|it| wanted.accept(&it, captured, true));
                    if let Some((payload, message)) = accepted {
                        let range = start..start + payload.len();
                        memory[range.clone()].copy_from_slice(payload);
                        messages.push(Message { range, ..message });
                    }
                }
                Err(_) => {}
            }
        }
    }

    /// Returns the datagrams that this host dropped after they were captured.
    fn dropped(&self) -> u64 {
        self.wanted.damaged + self.reassembly.counts().dropped
    }
}

impl Incoming for In {
    fn receive(&mut self, now: Nanos) -> io::Result<Batch<'_>> {
        self.capture.receive(&mut self.packets)?;
        self.datagrams.find(&mut self.packets, now);
        Ok(Batch {
            memory: &self.packets.memory,
            messages: &self.datagrams.messages,
            taken: self.packets.taken,
        })
    }

    fn events(&self) -> Events<'_> {
        Events::of(&self.polls)
    }

    fn backlog(&self) -> io::Result<u64> {
        self.capture.queued()
    }

    fn drops_reported(&self) -> u64 {
        self.capture.overflow() + self.datagrams.dropped()
    }

    fn drops(&mut self) -> io::Result<u64> {
        Ok(self.capture.drops()? + self.datagrams.dropped())
    }

    fn buffer(&self) -> Option<&GrantedBuffer> {
        Some(self.capture.buffer())
    }

    fn local(&self) -> Vec<Local> {
        let local = |port| Local::Interface {
            interface: self.interface.clone(),
            port,
        };
        self.datagrams.wanted.ports.clone().map(local).collect()
    }
}

impl Drop for In {
    fn drop(&mut self) {
        let incomplete = self.datagrams.reassembly.counts().incomplete;
        if incomplete > 0 {
            tracing::info!(
                "{incomplete} fragmented packets on {} were incomplete",
                self.interface
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{OutOptions, destination};
    use super::*;

    #[test]
    fn urls_name_an_interface_and_ports() {
        for (text, says) in [
            (
                "mirror://eth1",
                "names no UDP port to receive: give mirror://INTERFACE?udp=PORT",
            ),
            ("mirror://?udp=2630", "names no interface"),
            ("mirror://eth1?udp=", "invalid port ``"),
            ("mirror://eth1?udp=0", "invalid port `0`"),
            ("mirror://eth1?udp=2630-2699", "a range of up to 64"),
            ("mirror://eth1?udp=2630&udp=2631", "unknown `udp`"),
            (
                "mirror://eth1?udp=2630&colour=red",
                "unknown `colour` in the query: give mirror://",
            ),
            ("udp://10.0.0.1:2630?udp=2630", "unknown `udp`"),
        ] {
            let error = text.parse::<Url>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    /// Both fragments of a packet over Ethernet and IPv4 with a datagram to port 2630, captured at these times.
    fn captured(stamps: [Option<Duration>; 2]) -> Packets {
        let mut datagram = vec![0x0a, 0x47, 0x0a, 0x46, 0, 24, 0, 0];
        datagram.extend(0..16);
        let mut packets = Packets::default();
        let mut start = 0;
        for (part, stamp) in stamps.into_iter().enumerate() {
            let mut frame = vec![2; 12];
            frame.extend([8, 0, 0x45, 0, 0, 20 + 12, 0, 7]);
            // More fragments, and the offset in units of 8 bytes.
            frame.extend([[0x20, 0], [0, 2]][part]);
            frame.extend([64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
            frame.extend(&datagram[16 * part..][..[16, 8][part]]);
            frame[17] = (frame.len() - 14) as u8;
            packets.memory[start..start + frame.len()].copy_from_slice(&frame);
            packets.packets.push(capture::Packet {
                range: start..start + frame.len(),
                segment: 0,
                is_unchecked: true,
                stamp,
            });
            start += frame.len();
        }
        packets
    }

    /// Fragments expire by the receiver's clock: that of the timestamps may be set meanwhile.
    #[test]
    fn fragments_expire_by_the_receivers_clock() {
        let second = Duration::from_secs;
        let ms = |ms: u64| Nanos(ms * 1_000_000);
        for (stamps, times, is_whole) in [
            ([Some(second(10)), Some(second(7200))], [ms(5), ms(6)], true),
            (
                [Some(second(7200)), Some(second(10))],
                [ms(5), ms(105)],
                true,
            ),
            (
                [Some(second(10)), Some(second(10))],
                [ms(5), ms(106)],
                false,
            ),
            ([None, None], [ms(5), ms(106)], false),
        ] {
            let mut datagrams = Datagrams::new(2630..=2630);
            let mut packets = captured(stamps);
            let both = std::mem::take(&mut packets.packets);
            for (packet, now) in both.into_iter().zip(times) {
                packets.packets = vec![packet];
                datagrams.find(&mut packets, now);
            }
            let payloads = datagrams.messages.iter();
            let payloads: Vec<_> = payloads
                .map(|it| &packets.memory[it.range.clone()])
                .collect();
            let datagram: Vec<u8> = (0..16).collect();
            let expected: &[&[u8]] = if is_whole { &[&datagram] } else { &[] };
            assert_eq!(payloads, expected, "{stamps:?}");
            let incomplete = datagrams.reassembly.counts().incomplete;
            assert_eq!(incomplete, u64::from(!is_whole));
        }
    }

    #[test]
    fn it_only_receives() {
        let error = destination("mirror://lo?udp=2630").unwrap_err();
        assert!(error.contains("cannot send to `mirror://lo?udp=2630`: it only receives"));
        let url: Url = "mirror://lo?udp=2630".parse().unwrap();
        let opened = url.open_out(&OutOptions::default(), &Run::silent());
        let error = opened.err().unwrap().to_string();
        assert_eq!(
            error,
            "cannot send to mirror://lo?udp=2630: it only receives"
        );
    }

    #[test]
    fn options_of_sockets_and_groups_are_refused() {
        let single = InOptions {
            single: true,
            ..InOptions::default()
        };
        let with = InOptions::default();
        for (text, with, says) in [
            ("mirror://lo?udp=2630", single, "single"),
            ("mirror://lo?udp=2630&ttl=4", with.clone(), "?ttl="),
            (
                "mirror://lo?udp=2630&interface=lo",
                with.clone(),
                "?interface=",
            ),
            (
                "mirror://no-such-if?udp=2630",
                with,
                "no network interface has the name",
            ),
        ] {
            let url: Url = text.parse().unwrap();
            let opened = url.open_in(&with, &Run::silent());
            let error = opened.err().unwrap().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
