//! Streams that a test sends datagram by datagram.

use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;

use evlbi_wire::pattern;

/// Length of a frame in bytes.
pub const FRAME: usize = 1032;

/// A hand-made stream: numbered frames of the test pattern.
pub struct Stream {
    /// Its source.
    pub socket: UdpSocket,
    /// All frames that it can send.
    pub frames: Vec<u8>,
    /// Whether each frame has a sequence number before it; otherwise it is alone in its datagram.
    pub is_numbered: bool,
}

impl Stream {
    /// Creates a stream of 200 frames to a receiver on loopback.
    pub fn to(receiver: SocketAddr) -> Stream {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(receiver).unwrap();
        Stream {
            socket,
            frames: frames(200),
            is_numbered: true,
        }
    }

    /// Returns a datagram with this sequence number and frame.
    pub fn datagram(&self, sequence: u64, frame: u64) -> Vec<u8> {
        let start = frame as usize * FRAME;
        let frame = &self.frames[start..start + FRAME];
        if !self.is_numbered {
            return frame.to_vec();
        }
        [&sequence.to_le_bytes()[..], frame].concat()
    }

    /// Sends each frame under `base` + its number.
    pub fn send(&self, base: u64, frames: Range<u64>) {
        for frame in frames {
            self.raw(&self.datagram(base.wrapping_add(frame), frame));
        }
    }

    /// Sends a datagram.
    pub fn raw(&self, datagram: &[u8]) {
        self.socket.send(datagram).unwrap();
    }

    /// Returns the bytes of these frames in a recording.
    pub fn bytes(&self, frames: Range<u64>) -> &[u8] {
        &self.frames[frames.start as usize * FRAME..frames.end as usize * FRAME]
    }
}

/// Returns `count` frames of the test pattern, all in one second.
pub fn frames(count: u32) -> Vec<u8> {
    pattern::frames(FRAME, 1_700_000_000, pattern::frame_rate(25_600), count).unwrap()
}

/// Returns another sender's socket to the same receiver.
pub fn stranger(receiver: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(receiver).unwrap();
    socket
}
