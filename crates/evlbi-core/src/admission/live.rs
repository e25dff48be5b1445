//! The live stream: which datagrams belong to it, and where its frames are.

use super::candidate::{MAX_SEARCHED, RAW_ENOUGH};
use super::flow::{Arrival, Flow};
use super::frames::Frames;
use super::numbering::Numbering;
use super::pace::Pace;
use crate::deframe::Wanted;
use crate::reorder::{Reorder, Verdict};
use crate::time::Nanos;

/// Size of a sample of a live stream without valid frames: this many bytes and at least `MIN_SAMPLE` datagrams, or `MAX_SAMPLE`
/// datagrams.
pub(super) const SAMPLE_BYTES: usize = 192 << 10;
const MIN_SAMPLE: usize = 64;
const MAX_SAMPLE: usize = 1024;
/// Datagrams from one sample to the next.
const SAMPLE_EVERY: u64 = 4096;

/// Live stream.
pub(super) struct Live {
    pub(super) flow: Flow,
    pub(super) numbering: Box<dyn Numbering>,
    pub(super) frames: Option<Frames>,
    /// Newest data, while they are searched for frames because the stream has no valid ones.
    pub(super) sample: Vec<(u64, Vec<u8>)>,
    /// When the next sample starts, counted in datagrams.
    pub(super) sample_at: u64,
    /// Whether a sample contained no frames since the last valid ones.
    pub(super) is_raw: bool,
    pub(super) wanted: Wanted,
    pub(super) pace: Pace,
    pub(super) data: usize,
    /// Datagram that the window wants to see again.
    pub(super) kept: Vec<u8>,
    /// Number of its datagrams, arrival number of the last, and arrival time of the first.
    pub(super) count: u64,
    pub(super) newest: u64,
    pub(super) begun: Nanos,
}

impl Live {
    /// Returns the bytes of data expected between its last datagram and `now`, at its mean rate.
    pub(super) fn missing_until(&self, now: Nanos) -> u64 {
        let heard = self.flow.last.since(self.begun).0;
        let silence = now.since(self.flow.last).0;
        let missing = u128::from(self.count) * u128::from(silence) / u128::from(heard.max(1));
        if self.count < RAW_ENOUGH as u64 {
            return 0;
        }
        let missing = u64::try_from(missing).unwrap_or(u64::MAX);
        missing.saturating_sub(1).saturating_mul(self.data as u64)
    }

    /// Takes a datagram if it belongs to the stream; returns whether it does. The times are those of the previous and the current
    /// read of the sockets.
    #[inline]
    pub(super) fn take(
        &mut self,
        reorder: &mut Reorder,
        arrival: &Arrival<'_>,
        (read, now): (Nanos, Nanos),
        freed: u64,
        place: &mut impl FnMut(u64, &[u8]),
    ) -> bool {
        if !self.flow.may_have(arrival) {
            return false;
        }
        let Some((number, data)) = self.numbering.split(arrival.bytes) else {
            return false;
        };
        loop {
            let mut verdict = reorder.offer(number, freed);
            if verdict == Verdict::Strange {
                let silence = self.flow.silence_before(arrival.stamp, read, now);
                let jump = self.pace.jump(silence);
                if reorder.ahead(number).is_none_or(|ahead| ahead > jump) {
                    return false;
                }
                verdict = reorder.consider(number);
            }
            match verdict {
                Verdict::Place(position) => break place(position, data),
                Verdict::Replay => self.replay(reorder, freed, place),
                Verdict::Keep => {
                    // It is noted only when another datagram confirms it.
                    self.kept.clear();
                    self.kept.extend_from_slice(arrival.bytes);
                    return true;
                }
                _ => break,
            }
        }
        let has_frames = self.frames.as_mut().is_some_and(|frames| {
            frames.see(number, data);
            frames.are_there()
        });
        if !has_frames {
            self.search_for_frames(number, data);
        }
        self.numbering.heard(arrival.bytes);
        self.flow.heard(arrival, read, now);
        self.pace.heard(now);
        self.count += 1;
        true
    }

    /// Searches a sample of the stream for frames from time to time: they may be larger than the data seen before, start later,
    /// or have changed.
    fn search_for_frames(&mut self, number: u64, data: &[u8]) {
        if self.count < self.sample_at {
            return;
        }
        self.sample.push((number, data.to_vec()));
        let (count, bytes) = (self.sample.len(), self.sample.len() * data.len());
        let frame = self.wanted.frame_length.unwrap_or(0);
        let wanted = SAMPLE_BYTES.max(frame.saturating_mul(4)).min(MAX_SEARCHED);
        if count < MAX_SAMPLE && (count < MIN_SAMPLE || bytes < wanted) {
            return;
        }
        let sample = std::mem::take(&mut self.sample);
        let data: Vec<(u64, &[u8])> = sample.iter().map(|(n, d)| (*n, &d[..])).collect();
        if let Some(frames) = Frames::find(&data, true, self.wanted) {
            self.frames = Some(frames);
            self.is_raw = false;
        } else {
            self.is_raw = true;
            self.sample_at = self.count + SAMPLE_EVERY;
        }
    }

    /// Offers the kept datagram again. The window has just made room for it, so it is not kept once more.
    #[cold]
    pub(super) fn replay(
        &mut self,
        reorder: &mut Reorder,
        freed: u64,
        place: &mut impl FnMut(u64, &[u8]),
    ) {
        let kept = std::mem::take(&mut self.kept);
        if let Some((number, data)) = self.numbering.split(&kept)
            && let Verdict::Place(position) = reorder.offer(number, freed)
        {
            place(position, data);
        }
    }
}
