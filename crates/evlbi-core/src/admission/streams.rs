//! Which of several streams of bytes is the one that is received.
//!
//! Anything may connect to an open port. A connection brings the stream once frames are found in what it brought, or once it brought
//! [`ENOUGH_BYTES`] while no other has frames. One that only connects, or says something else, neither ends the wait for the sender
//! nor keeps it out.

use crate::deframe::{self, Deframer};
use crate::peer::Peer;

use super::Refused;

/// Bytes of a stream without frames that make it the one that is received.
pub const ENOUGH_BYTES: usize = 16 << 10;
/// Peers that are remembered.
const MAX_PEERS: usize = 128;
/// Senders that were refused and are listed.
const MAX_REFUSED: usize = 64;

/// Decides which peer's stream is received.
#[derive(Debug, Default)]
pub struct Streams {
    settings: deframe::Settings,
    heard: Vec<Heard>,
    /// Peers that brought frames beside the stream.
    others: Vec<Refused>,
    /// Number of peers that brought bytes but no stream.
    refused: u64,
}

/// What a peer has brought.
#[derive(Debug)]
struct Heard {
    what: Dismissed,
    is_closed: bool,
}

/// A peer that does not bring the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dismissed {
    /// Who.
    pub peer: Peer,
    /// Bytes that it brought.
    pub bytes: usize,
    /// Whether they hold frames.
    pub frames: bool,
}

impl Streams {
    /// `settings`: what is known of the frames.
    pub fn new(settings: deframe::Settings) -> Streams {
        Streams {
            settings,
            ..Streams::default()
        }
    }

    /// `bytes` are all that `peer` has brought so far; `is_closed`: it brings no more.
    pub fn hear(&mut self, peer: Peer, bytes: &[u8], is_closed: bool) {
        let place = self.heard.iter().position(|it| it.what.peer == peer);
        let place = place.unwrap_or_else(|| {
            if self.heard.len() >= MAX_PEERS {
                let oldest = self.heard.remove(0);
                self.count(oldest.what);
            }
            let what = Dismissed {
                peer,
                ..Dismissed::default()
            };
            self.heard.push(Heard { what, is_closed });
            self.heard.len() - 1
        });
        let heard = &mut self.heard[place];
        heard.is_closed = is_closed;
        let what = &mut heard.what;
        if bytes.len() > what.bytes {
            what.bytes = bytes.len();
            let mut deframer = Deframer::new(self.settings.clone());
            deframer.walk(bytes, true, &mut |_| {});
            what.frames = deframer.layout().is_some();
        }
    }

    /// The peer whose stream is received, once that is clear. All others are then dismissed.
    pub fn decide(&mut self) -> Option<Peer> {
        let first = |is: fn(&Heard) -> bool| self.heard.iter().position(is);
        let found = first(|it| it.what.frames);
        let found = found.or_else(|| first(|it| it.what.bytes >= ENOUGH_BYTES))?;
        Some(self.heard.remove(found).what.peer)
    }

    /// The next peer that does not bring the stream: one that has ended, or any where the stream is there (`all`).
    pub fn dismiss(&mut self, all: bool) -> Option<Dismissed> {
        let place = self.heard.iter().position(|it| all || it.is_closed)?;
        let dismissed = self.heard.remove(place).what;
        self.count(dismissed);
        Some(dismissed)
    }

    fn count(&mut self, dismissed: Dismissed) {
        if dismissed.frames && self.others.len() < MAX_REFUSED {
            self.others.push(Refused {
                sender: dismissed.peer,
                datagrams: 0,
                frames: true,
            });
        } else if dismissed.bytes > 0 {
            self.refused += 1;
        }
    }

    /// Peers that brought frames beside the stream, the first 64.
    pub fn others(&self) -> &[Refused] {
        &self.others
    }

    /// Number of peers that brought bytes but no stream.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use evlbi_wire::pattern;

    use super::*;

    fn peer(port: u16) -> Peer {
        Peer::Socket(([10, 0, 0, 1], port).into())
    }

    fn frames() -> Vec<u8> {
        let rate = pattern::frame_rate(100);
        pattern::frames(1032, 1_700_000_000, rate, 8).unwrap()
    }

    #[test]
    fn frames_go_before_many_bytes() {
        let mut streams = Streams::new(deframe::Settings::default());
        streams.hear(peer(1), b"GET / HTTP/1.1", false);
        assert_eq!((streams.decide(), streams.dismiss(false)), (None, None));
        streams.hear(peer(1), b"GET / HTTP/1.1\r\n", true);
        assert_eq!(streams.decide(), None);
        let dismissed = streams.dismiss(false).unwrap();
        assert_eq!((dismissed.peer, dismissed.bytes), (peer(1), 16));
        streams.hear(peer(2), &[7; ENOUGH_BYTES], false);
        streams.hear(peer(3), &frames(), false);
        assert_eq!(streams.decide(), Some(peer(3)));
        assert_eq!(streams.dismiss(true).unwrap().peer, peer(2));
        assert_eq!(streams.dismiss(true), None);
        assert_eq!((streams.refused(), streams.others().len()), (2, 0));
    }

    #[test]
    fn many_bytes_are_a_stream_where_no_frames_are() {
        let mut streams = Streams::new(deframe::Settings::default());
        streams.hear(peer(1), &[7; ENOUGH_BYTES - 1], false);
        assert_eq!(streams.decide(), None);
        streams.hear(peer(1), &[7; ENOUGH_BYTES], false);
        assert_eq!(streams.decide(), Some(peer(1)));
    }

    #[test]
    fn another_stream_of_frames_is_named() {
        let mut streams = Streams::new(deframe::Settings::default());
        streams.hear(peer(1), &frames(), false);
        streams.hear(peer(2), &frames(), false);
        assert_eq!(streams.decide(), Some(peer(1)));
        assert!(streams.dismiss(true).unwrap().frames);
        assert_eq!(streams.others()[0].sender, peer(2));
    }

    #[test]
    fn a_flood_of_connections_takes_bounded_memory() {
        let mut streams = Streams::new(deframe::Settings::default());
        for port in 1..2000 {
            streams.hear(peer(port), b"x", false);
        }
        assert_eq!(streams.heard.len(), MAX_PEERS);
        assert_eq!(streams.refused(), 1999 - MAX_PEERS as u64);
    }
}
