//! Numbers for datagrams that carry none (`pudp`): whole frames are numbered by their VDIF headers.

use evlbi_core::pudp::{Sequencer, Verdict};
use evlbi_net::receive::Numbering;
use evlbi_wire::time::FrameRate;

/// Numbers frames by their threads and times.
pub struct FrameNumbers {
    frame_rate: Option<FrameRate>,
    sequencer: Sequencer,
}

impl FrameNumbers {
    /// The frame rate is learnt at the end of the first second, unless it is given or in the headers.
    pub fn new(frame_rate: Option<FrameRate>) -> FrameNumbers {
        FrameNumbers {
            frame_rate,
            sequencer: Sequencer::new(frame_rate),
        }
    }
}

impl Numbering for FrameNumbers {
    fn split<'a>(&mut self, datagram: &'a [u8]) -> Option<(u64, &'a [u8])> {
        match self.sequencer.offer(datagram) {
            Verdict::Number(number) => Some((number, datagram)),
            _ => None,
        }
    }

    fn alone(&self, _datagram: &[u8]) -> Option<u64> {
        None
    }

    fn of(&self, datagrams: &[&[u8]], all: bool) -> Option<Box<dyn Numbering>> {
        let mut sequencer = Sequencer::new(self.frame_rate);
        let mut enough = all;
        for datagram in datagrams {
            enough |= sequencer.offer(datagram) == Verdict::Learnt;
        }
        if !enough {
            return None;
        }
        // What was kept comes again, one by one.
        sequencer.drain(|_, _| {});
        Some(Box::new(FrameNumbers {
            frame_rate: self.frame_rate,
            sequencer,
        }))
    }
}
