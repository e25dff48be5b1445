//! Bytes lost or inserted between two headers, so that frames are at another offset than expected.

use evlbi_wire::{mark4, mark5b};

use super::format::{Format, Layout};
use super::{Deframer, Slip, Span, Step};

/// Maximum number of slips that are listed.
const MAX_SLIPS: usize = 1024;
/// Maximum number of possible headers that are examined for a slip before a frame.
const MAX_HEADERS: usize = 16;
/// Maximum number of frames lost with a slip, for a header that no other one confirms.
const MAX_LOST: i64 = 16;

impl Deframer {
    /// Takes the bytes up to a header that is within the next two frames, but not where a frame ends: bytes were lost or inserted before
    /// it. Nobody knows at which of them, so they belong to no frame. `None` if there is no such header.
    pub(super) fn take_slip(&mut self, span: &mut Span<'_>, layout: Layout) -> Option<Step> {
        let length = layout.frame_length;
        let next = span.at + length as u64;
        let (view, latest) = (span.view(), self.settings.latest);
        let is_there = |bytes: &[u8]| match layout.tracks() {
            Some(tracks) => mark4::has_sync(bytes, tracks),
            None => layout.read(bytes, latest).is_some(),
        };
        if view
            .present(next, layout.header_length)
            .is_none_or(is_there)
        {
            return None;
        }
        let searched = length * 2 + layout.header_length;
        let left = view.whole_until(span.at) - span.at;
        if left < searched as u64 && left == span.left() && !span.must_continue(self.settings.hold)
        {
            return Some(Step::Wait);
        }
        let bytes = view.present(span.at, searched.min(left as usize))?;
        let read = |start: usize| {
            let head = layout.read(&bytes[start..], latest)?;
            let expected = self.cadence.frames_until(self.place, &head)?;
            let after = span.at + (start + length) as u64;
            let is_followed = || {
                let after = view.present(after, layout.header_length);
                after.is_some_and(is_there)
            };
            // Its time suffices once: words that look like headers everywhere must not cost a slip each.
            let is_next = (0..=MAX_LOST).contains(&expected) && self.slipped_at != self.place;
            (is_next || is_followed()).then_some((start, expected))
        };
        let starts = starts(&layout, bytes).filter(|start| !start.is_multiple_of(length));
        let (start, expected) = starts.take(MAX_HEADERS).find_map(read)?;
        let expected_at = expected.checked_mul(length as i64)?;
        if (1..=MAX_LOST).contains(&expected) {
            self.place += expected;
            self.cadence.skip_until(self.place);
        }
        self.slipped_at = self.place;
        self.note_slip(span, (start as i64).saturating_sub(expected_at));
        self.take_unframed(span, span.at + start as u64);
        Some(Step::On)
    }

    /// Notes that frames are found `bytes` bytes after the expected place.
    pub(super) fn note_slip(&mut self, span: &mut Span<'_>, bytes: i64) {
        self.hand_over(span);
        self.counts.slips += 1;
        if self.slips.len() < MAX_SLIPS {
            let byte = self.counts.bytes;
            self.slips.push(Slip { byte, bytes });
        }
    }
}

/// Returns the offsets in `bytes` of words that headers of a layout contain.
fn starts<'a>(layout: &Layout, bytes: &'a [u8]) -> Box<dyn Iterator<Item = usize> + 'a> {
    let (at, mask, word) = match (layout.format, layout.tracks()) {
        (_, Some(tracks)) => return Box::new(mark4::find(bytes, tracks)),
        // Version, and length of the frame.
        (Format::Vdif, _) => {
            let length = (layout.frame_length / 8) as u32;
            (8, 0xe0ff_ffff, u32::from(layout.version) << 29 | length)
        }
        _ => (0, u32::MAX, mark5b::SYNC),
    };
    let words = bytes.get(at..).unwrap_or_default().array_windows();
    let is_there = move |window: &[u8; 4]| u32::from_le_bytes(*window) & mask == word;
    let words = words.enumerate();
    Box::new(words.filter_map(move |(start, window)| is_there(window).then_some(start)))
}
