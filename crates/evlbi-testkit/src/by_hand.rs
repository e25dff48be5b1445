//! Streams that are sent by hand, datagram by datagram.

use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;

use evlbi_wire::pattern;

/// Length of a frame.
pub const FRAME: usize = 1032;

/// A stream by hand: numbered frames of the test pattern.
pub struct Stream {
    /// Where it comes from.
    pub socket: UdpSocket,
    /// All that it can send.
    pub frames: Vec<u8>,
    /// Each frame has its sequence number before it; else it is alone in its datagram.
    pub is_numbered: bool,
}

impl Stream {
    /// One of 200 frames to a receiver on loopback.
    pub fn to(receiver: SocketAddr) -> Stream {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(receiver).unwrap();
        Stream {
            socket,
            frames: frames(200),
            is_numbered: true,
        }
    }

    /// A frame in a datagram of this number.
    pub fn datagram(&self, sequence: u64, frame: u64) -> Vec<u8> {
        let start = frame as usize * FRAME;
        let frame = &self.frames[start..start + FRAME];
        if !self.is_numbered {
            return frame.to_vec();
        }
        [&sequence.to_le_bytes()[..], frame].concat()
    }

    /// The frame of a number goes out under `base` + the number.
    pub fn send(&self, base: u64, frames: Range<u64>) {
        for frame in frames {
            self.raw(&self.datagram(base.wrapping_add(frame), frame));
        }
    }

    /// Sends a datagram.
    pub fn raw(&self, datagram: &[u8]) {
        self.socket.send(datagram).unwrap();
    }

    /// What the frames of these numbers are in a recording.
    pub fn bytes(&self, frames: Range<u64>) -> &[u8] {
        &self.frames[frames.start as usize * FRAME..frames.end as usize * FRAME]
    }
}

/// So many frames of the test pattern, all in one second.
pub fn frames(count: u32) -> Vec<u8> {
    pattern::frames(FRAME, 1_700_000_000, pattern::frame_rate(25_600), count).unwrap()
}

/// Somebody else who sends to that receiver.
pub fn stranger(receiver: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(receiver).unwrap();
    socket
}
