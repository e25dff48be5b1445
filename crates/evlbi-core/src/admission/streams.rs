//! Selects which of several byte streams is received.
//!
//! Anything may connect to an open port. A connection becomes the stream once frames are found in its bytes, or once it sent
//! [`ENOUGH_BYTES`] while no other has frames. A connection that sends nothing, or something else, neither ends the wait for the
//! sender nor blocks it.

use crate::deframe::{self, Deframer};
use crate::peer::Peer;

use super::Refused;

/// Minimum bytes of a stream without frames.
pub const ENOUGH_BYTES: usize = 16 << 10;
/// Maximum number of peers that are remembered.
const MAX_PEERS: usize = 128;
/// Maximum number of refused senders that are listed.
const MAX_REFUSED: usize = 64;

/// Selection of the peer whose stream is received.
#[derive(Debug, Default)]
pub struct Streams {
    settings: deframe::Settings,
    heard: Vec<Heard>,
    /// Peers, besides the stream's, that sent frames.
    others: Vec<Refused>,
    /// Number of peers that sent bytes but no stream.
    refused: u64,
}

/// Bytes received from a peer.
#[derive(Debug)]
struct Heard {
    what: Dismissed,
    is_closed: bool,
}

/// Peer that does not send the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dismissed {
    /// Peer.
    pub peer: Peer,
    /// Bytes that it sent.
    pub bytes: usize,
    /// Whether they contain frames.
    pub frames: bool,
}

impl Streams {
    /// Makes a selection without peers; `settings` are the known properties of the frames.
    pub fn new(settings: deframe::Settings) -> Streams {
        Streams {
            settings,
            ..Streams::default()
        }
    }

    /// Notes `bytes`, which are all that `peer` has sent so far; `is_closed`: it sends no more.
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

    /// Returns the peer whose stream is received, once that is decided. All others are dismissed from then on.
    pub fn decide(&mut self) -> Option<Peer> {
        let first = |is: fn(&Heard) -> bool| self.heard.iter().position(is);
        let found = first(|it| it.what.frames);
        let found = found.or_else(|| first(|it| it.what.bytes >= ENOUGH_BYTES))?;
        Some(self.heard.remove(found).what.peer)
    }

    /// Returns the next peer that does not send the stream: one that has ended, or any if the stream is decided (`all`).
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

    /// Returns the first 64 peers, besides the stream's, that sent frames.
    pub fn others(&self) -> &[Refused] {
        &self.others
    }

    /// Returns the number of peers that sent bytes but no stream.
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
