//! Numbers for datagrams that carry none (`pudp`): whole frames are numbered by their VDIF headers.

use std::collections::HashMap;

use evlbi_net::receive::Numbering;
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::{Header, StreamKey};

/// Numbers frames by thread and time: number = frames since the first x threads + rank of the thread.
pub struct FrameNumbers {
    rate: Option<FrameRate>,
    threads: HashMap<StreamKey, Thread>,
    /// Threads when the stream was learnt; the numbers of later ones do not exist.
    count: u64,
}

/// A thread's place among the others and its first frame.
#[derive(Clone, Copy)]
struct Thread {
    rank: u64,
    first: FrameTime,
    /// Highest frame number seen, and in which second.
    second: i64,
    highest: u32,
}

impl FrameNumbers {
    /// The frame rate is learnt at the end of the first second, unless it is given or in the headers.
    pub fn new(frame_rate: Option<u32>) -> FrameNumbers {
        FrameNumbers {
            rate: frame_rate.and_then(FrameRate::new),
            threads: HashMap::new(),
            count: 0,
        }
    }

    fn header(datagram: &[u8]) -> Option<Header> {
        Header::parse(datagram)
            .ok()
            .filter(|header| header.frame_length() == datagram.len())
    }

    /// Frames of this thread since its first one.
    fn frames_since_first(&mut self, header: &Header) -> Option<i64> {
        let time = header.time();
        let thread = self.threads.get_mut(&header.key())?;
        if time.second == thread.second {
            thread.highest = thread.highest.max(time.frame);
        } else if self.rate.is_none() && time.second == thread.second + 1 {
            // The second is over: its highest number was the last.
            self.rate = header
                .frame_rate()
                .or(FrameRate::new(thread.highest.checked_add(1)?));
        }
        let first = thread.first;
        if time.second == first.second {
            return Some(i64::from(time.frame) - i64::from(first.frame));
        }
        let rate = self.rate?;
        Some(time.index(rate).wrapping_sub(first.index(rate)))
    }
}

impl Numbering for FrameNumbers {
    fn split<'a>(&mut self, datagram: &'a [u8]) -> Option<(u64, &'a [u8])> {
        let header = FrameNumbers::header(datagram)?;
        let frames = self.frames_since_first(&header)?;
        let rank = self.threads.get(&header.key())?.rank;
        // Half of the numbers lie before the first frame, for what is out of order there.
        let number = frames
            .wrapping_mul(i64::try_from(self.count).ok()?)
            .wrapping_add_unsigned(rank);
        Some(((1u64 << 62).wrapping_add_signed(number), datagram))
    }

    /// Learns the threads: enough is known when one of them has come again.
    fn learn(&mut self, datagrams: &[&[u8]]) -> bool {
        self.threads.clear();
        let mut again = false;
        for header in datagrams
            .iter()
            .filter_map(|datagram| FrameNumbers::header(datagram))
        {
            let rank = self.threads.len() as u64;
            let time = header.time();
            self.rate = self.rate.or(header.frame_rate());
            self.threads
                .entry(header.key())
                .and_modify(|_| again = true)
                .or_insert(Thread {
                    rank,
                    first: time,
                    second: time.second,
                    highest: time.frame,
                });
        }
        self.count = self.threads.len() as u64;
        again
    }
}
