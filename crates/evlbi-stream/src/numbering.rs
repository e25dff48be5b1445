//! Numbers datagrams that carry no number (`pudp`): whole frames get numbers from their VDIF headers.

use evlbi_core::pudp::Sequencer;
use evlbi_net::receive::Numbering;
use evlbi_wire::time::FrameRate;

/// Numbering of frames by thread and time.
pub struct FrameNumbers {
    frame_rate: Option<FrameRate>,
    sequencer: Sequencer,
}

impl FrameNumbers {
    /// Creates a numbering. Without `frame_rate`, it learns the rate when the first second ends.
    pub fn new(frame_rate: Option<FrameRate>) -> FrameNumbers {
        FrameNumbers {
            frame_rate,
            sequencer: Sequencer::new(frame_rate),
        }
    }
}

impl Numbering for FrameNumbers {
    fn split<'a>(&self, datagram: &'a [u8]) -> Option<(u64, &'a [u8])> {
        Some((self.sequencer.number(datagram)?, datagram))
    }

    fn heard(&mut self, datagram: &[u8]) {
        self.sequencer.heard(datagram);
    }

    fn alone(&self, _datagram: &[u8]) -> Option<u64> {
        None
    }

    fn of(&self, datagrams: &[&[u8]], all: bool) -> Option<Box<dyn Numbering>> {
        let sequencer = Sequencer::of(datagrams, all, self.frame_rate)?;
        Some(Box::new(FrameNumbers { sequencer, ..*self }))
    }
}
