//! Replacement of missing data: invalid frames, partly kept frames, and the fill pattern.

use std::ops::Range;

use evlbi_wire::fill;
use evlbi_wire::validity::Cause;

use super::cadence::Guess;
use super::format::Layout;
use super::{Bytes, Deframer, FrameState, Partial, SCRATCH_BYTES, Span, State, Step};

/// Maximum gap that is filled if the frame rate is unknown, in bytes.
const UNKNOWN_FILL: u64 = 256 << 20;

/// Incomplete frame.
struct Broken<'a> {
    layout: Layout,
    /// Missing parts, relative to the start of the frame.
    cuts: &'a [Range<usize>],
    guess: Guess,
    /// Whether the header arrived.
    has_header: bool,
}

impl Broken<'_> {
    fn payload(&self) -> Range<usize> {
        self.layout.header_length..self.layout.frame_length
    }

    /// Returns the missing parts of the payload, relative to the start of the frame.
    fn payload_cuts(&self) -> impl Iterator<Item = Range<usize>> {
        let payload = self.payload();
        let cuts = self.cuts.iter();
        cuts.map(move |cut| cut.start.max(payload.start)..cut.end.min(payload.end))
            .filter(|cut| !cut.is_empty())
    }

    /// Returns whether any part of the frame can be kept.
    fn can_be_kept(&self) -> bool {
        let missing: usize = self.payload_cuts().map(|cut| cut.len()).sum();
        self.guess.known && missing < self.payload().len()
    }

    /// Keeps what arrived, and writes the fill pattern to the rest.
    fn keep(&self, frame: &mut [u8]) {
        if let (Some(mut head), false) = (self.guess.head.clone(), self.has_header) {
            head.set_invalid(false);
            head.emit(frame);
        }
        for cut in self.payload_cuts() {
            let offset = cut.start;
            fill::make_from(&mut frame[cut], offset);
        }
    }

    /// Makes an invalid frame. Mark 5B has no invalid bit, so the fill pattern marks it.
    fn void(&self, frame: &mut [u8]) {
        fill::make(frame);
        if let Some(mut head) = self.guess.head.clone() {
            head.set_invalid(true);
            head.emit(frame);
        }
    }
}

impl Span<'_> {
    /// Returns the bytes of the span for writing. Nothing is missing in a file.
    fn ring(&mut self) -> &mut [u8] {
        match &mut self.bytes {
            Bytes::Ring(bytes) => bytes,
            Bytes::File(_) => &mut [],
        }
    }
}

impl Deframer {
    /// Takes an incomplete frame.
    pub(super) fn take_broken(&mut self, span: &mut Span<'_>, layout: Layout) -> Step {
        let view = span.view();
        let bytes = view.present(span.at, layout.header_length);
        let head = bytes.and_then(|bytes| layout.read(bytes, self.settings.latest));
        let head = head.filter(|head| self.cadence.believes(head));
        let has_header = head.is_some();
        let guess = if let Some(known) = &head {
            self.cadence.see(self.place, known);
            Guess { head, known: true }
        } else if self.sees_enough(span, layout) {
            self.predict(span, layout)
        } else {
            return Step::Wait;
        };
        let mut cuts = std::mem::take(&mut self.cuts);
        cuts.clear();
        cuts.extend(span.view().missing(span.at, layout.frame_length as u64));
        let broken = Broken {
            layout,
            cuts: &cuts,
            guess,
            has_header,
        };
        self.take_mended(span, &broken);
        self.cuts = cuts;
        Step::On
    }

    /// Returns whether enough of the stream arrived to identify a frame whose header is missing.
    fn sees_enough(&self, span: &Span<'_>, layout: Layout) -> bool {
        let mut frames = 1 + self.cadence.reach().unsigned_abs();
        if self.cadence.frame_rate().is_none() {
            frames += missing_frames(span, layout);
        }
        let wanted = frames.saturating_mul(layout.frame_length as u64);
        span.left() >= wanted || span.must_continue(self.settings.hold)
    }

    fn predict(&mut self, span: &Span<'_>, layout: Layout) -> Guess {
        let reach = self.cadence.reach();
        if self.cadence.frame_rate().is_none() {
            self.look_ahead(span, layout, missing_frames(span, layout), reach);
            self.cadence.learn_rate(&self.ahead);
        }
        self.look_ahead(span, layout, 1, reach);
        self.cadence.predict(self.place, &self.ahead)
    }

    fn take_mended(&mut self, span: &mut Span<'_>, broken: &Broken<'_>) {
        let length = broken.layout.frame_length;
        let keep = self.settings.partial == Partial::Keep && broken.can_be_kept();
        let mend = |frame: &mut [u8]| match keep {
            true => broken.keep(frame),
            false => broken.void(frame),
        };
        let start = if span.view().touches_gap(span.at, length as u64) {
            let start = self.gather_in_scratch(span, broken);
            mend(&mut self.scratch[start..]);
            start
        } else {
            if !self.scratch.is_empty() {
                self.hand_over(span);
            }
            let place = span.place();
            if let Some(frame) = span.ring().get_mut(place..place + length) {
                mend(frame);
            }
            place - span.from
        };
        self.note_missing(broken, keep, start);
        span.at += length as u64;
    }

    /// Assembles the received parts of a frame that a gap cuts in the scratch memory; returns their range.
    fn gather_in_scratch(&mut self, span: &mut Span<'_>, broken: &Broken<'_>) -> usize {
        let length = broken.layout.frame_length;
        let full = self.scratch.len() + length > SCRATCH_BYTES;
        if self.scratch.is_empty() || full {
            self.hand_over(span);
        }
        let start = self.scratch.len();
        self.scratch.resize(start + length, 0);
        self.made += length;
        let view = span.view();
        let mut at = 0;
        let end = length..length;
        for cut in broken.cuts.iter().chain(std::iter::once(&end)) {
            let offset = span.at + at as u64;
            if let Some(came) = view.present(offset, cut.start - at) {
                self.scratch[start + at..start + cut.start].copy_from_slice(came);
            }
            at = cut.end;
        }
        start
    }

    fn note_missing(&mut self, broken: &Broken<'_>, keep: bool, start: usize) {
        let head = broken.guess.head.as_ref();
        let head = head.filter(|_| broken.guess.known);
        let state = match keep {
            true => FrameState::Partial,
            false => FrameState::Lost,
        };
        let bytes = start..start + broken.layout.frame_length;
        self.add(bytes, head, state);
        let Some(head) = head else {
            return;
        };
        let mut gap = self.gap(head, start, 1, Cause::Lost);
        let next = self.cadence.after(head.time());
        if !keep {
            return self.list(gap, next);
        }
        let header = broken.layout.header_length;
        for cut in broken.payload_cuts() {
            gap.bytes = Some(cut.start - header..cut.end - header);
            self.list(gap.clone(), next);
        }
    }

    /// Returns the maximum length of a gap that is filled, in bytes.
    pub(super) fn max_fill(&self, layout: Layout) -> u64 {
        if self.settings.fill.is_zero() {
            return 0;
        }
        let Some(rate) = self.cadence.frame_rate() else {
            return UNKNOWN_FILL;
        };
        let frames = self.settings.fill.as_secs_f64() * f64::from(rate.get());
        let threads = self.cadence.threads().max(1) as f64;
        (frames * threads * layout.frame_length as f64) as u64
    }

    /// Lists the whole frames of a gap that is too long to be filled.
    pub(super) fn pass_over(&mut self, span: &mut Span<'_>, layout: Layout, gap: u64) {
        self.hand_over(span);
        let length = layout.frame_length as u64;
        let frames = gap / length;
        let mut unselected = 0;
        for (head, run, next) in self.cadence.pass_over(self.place, frames) {
            let gap = self.gap(&head, 0, run, Cause::Lost);
            if !self.settings.selected.has(Some(gap.key)) {
                unselected += run;
            }
            self.list(gap, next);
        }
        self.counts.unselected_frames += unselected;
        self.counts.unfilled_frames += frames - unselected;
        self.place = self.place.saturating_add_unsigned(frames);
        span.at += frames * length;
        span.from = span.place();
    }

    /// Outputs everything up to `end`, with the fill pattern in the missing parts.
    pub(super) fn take_unframed(&mut self, span: &mut Span<'_>, end: u64) {
        self.hand_over(span);
        while span.at < end {
            span.at = span.view().whole_until(span.at).min(end);
            let left = end - span.at;
            let Some(missing) = span.view().missing(span.at, left).next() else {
                continue;
            };
            let length;
            if span.view().touches_gap(span.at, 1) {
                self.hand_over(span);
                let gap = span.view().gap_at(span.at).min(left);
                if self.settings.fill.is_zero() || gap > UNKNOWN_FILL {
                    span.at += gap;
                    self.counts.unfilled_bytes += gap;
                    continue;
                }
                if self.made >= SCRATCH_BYTES && self.state == State::Raw {
                    self.is_filling = true;
                    return;
                }
                length = missing.len().min(SCRATCH_BYTES);
                self.scratch.resize(length, 0);
                self.made += length;
                fill::make_from(&mut self.scratch, pattern_offset(self.counts.bytes));
            } else {
                length = missing.len();
                let place = span.place();
                let offset = self.counts.bytes + (place - span.from) as u64;
                if let Some(bytes) = span.ring().get_mut(place..place + length) {
                    fill::make_from(bytes, pattern_offset(offset));
                }
            }
            span.at += length as u64;
            self.counts.filled_bytes += length as u64;
            if !self.scratch.is_empty() {
                self.hand_over(span);
            }
        }
        self.hand_over(span);
    }

    /// Counts output bytes.
    pub(super) fn count(&mut self, bytes: usize) {
        let counts = &mut self.counts;
        counts.bytes += bytes as u64;
        if self.frames.is_empty() {
            counts.unframed_bytes += bytes as u64;
        }
        counts.frames += self.frames.len() as u64;
        for frame in &self.frames {
            let counter = match frame.state {
                FrameState::Whole => &mut counts.whole,
                FrameState::SourceInvalid => &mut counts.source_invalid,
                FrameState::Lost => &mut counts.lost_frames,
                FrameState::Partial => &mut counts.partial,
                FrameState::Odd => &mut counts.odd_headers,
            };
            *counter += 1;
        }
    }
}

/// Returns how many frames, starting with the next one, are incomplete before the next byte that arrived.
fn missing_frames(span: &Span<'_>, layout: Layout) -> u64 {
    let view = span.view();
    let first = view.whole_until(span.at);
    let bytes = view.missing_until(first) - span.at;
    bytes.div_ceil(layout.frame_length as u64)
}

/// Returns the phase of the pattern at an offset of the output.
fn pattern_offset(offset: u64) -> usize {
    (offset % 4) as usize
}
