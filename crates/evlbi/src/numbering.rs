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

    fn learn(&mut self, datagrams: &[&[u8]]) -> bool {
        self.sequencer = Sequencer::new(self.frame_rate);
        let enough = datagrams
            .iter()
            .any(|datagram| self.sequencer.offer(datagram) == Verdict::Learnt);
        // What was kept comes again, one by one.
        self.sequencer.drain(|_, _| {});
        enough
    }
}
