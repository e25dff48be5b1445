//! Finds the frames in a stream: the first header whose length leads to further headers.

use std::cell::Cell;

use evlbi_wire::mark4::{self, Tracks};
use evlbi_wire::mark5b;
use evlbi_wire::time::FrameRate;
use evlbi_wire::vdif;

use super::cadence::{MAX_AHEAD, Sighting};
use super::format::{Format, Head, Layout};
use super::holes::{Holes, View};
use super::{Deframer, ODD_RUN, Settings, Span, State, Step};

/// Maximum number of frames after a header that are examined to confirm it.
const CHAIN: usize = 32;
/// Minimum number of headers that must agree.
const AGREE: usize = 3;
/// Maximum number of damaged headers between two that agree, at the start of a stream.
const DAMAGED: usize = 3;
/// Maximum length of a frame in bytes, unless the user gives the length.
const MAX: usize = 16 << 20;
/// Maximum version of VDIF: 0 and 1 exist.
const MAX_VERSION: u32 = 1;

/// Minimum number of bytes for a search for frames at a new offset.
const SEARCH_BYTES: usize = 256 << 10;

impl Deframer {
    pub(super) fn learn(&mut self, span: &mut Span<'_>, not_before: u64) -> Step {
        let decide = span.must_continue(self.settings.hold);
        if span.left() < not_before && !decide || span.left() == 0 {
            return Step::Wait;
        }
        match self.search(span, self.before, decide, DAMAGED) {
            Found::Frames(first, layout) => {
                self.counts.trimmed_bytes += first - span.at;
                span.at = first;
                span.from = span.place();
                self.state = State::Priming(layout);
                Step::On
            }
            Found::Undecided => {
                self.state = State::Learning(span.left().saturating_mul(2));
                Step::Wait
            }
            Found::Nothing => {
                self.state = State::Raw;
                if let Some((_, missing)) = self.resumes.take() {
                    span.insert_gap(missing);
                }
                Step::On
            }
        }
    }

    /// Searches for frames from the next byte on.
    fn search(
        &self,
        span: &Span<'_>,
        before: Option<Layout>,
        decide: bool,
        max_damaged: usize,
    ) -> Found {
        let search = Search {
            view: span.view(),
            base: span.at,
            settings: &self.settings,
            before,
            decide,
            max_damaged,
            work: Cell::new(usize::MAX),
        };
        search.run()
    }

    /// Learns the order of the frames before the first of them is taken, so that a frame lost at the very start gets the right
    /// thread and time.
    pub(super) fn prime(&mut self, span: &mut Span<'_>, layout: Layout) -> Step {
        self.cadence.measure(layout.frame_rate);
        self.look_ahead(span, layout, 0, MAX_AHEAD);
        let window = MAX_AHEAD as u64 * layout.frame_length as u64;
        let must_suffice = span.left() >= window || span.must_continue(self.settings.hold);
        if !self.cadence.prime(self.place, &self.ahead, must_suffice) {
            return Step::Wait;
        }
        self.odd_run = 0;
        self.search_at = ODD_RUN;
        self.state = State::Framed(layout);
        if let Some((cadence, _)) = self.resumes.take()
            && self.before == Some(layout)
            && let Some(missing) = cadence.missing_until(self.place, &self.ahead)
        {
            // The same threads continue, after a gap.
            self.cadence = *cadence;
            span.insert_gap(missing.saturating_mul(layout.frame_length as u64));
        }
        Step::On
    }

    /// Collects the headers that arrived in the `frames` frames after the next `skip` ones.
    pub(super) fn look_ahead(&mut self, span: &Span<'_>, layout: Layout, skip: u64, frames: i64) {
        let length = layout.frame_length as u64;
        let view = span.view();
        self.ahead.clear();
        let mut frame = skip;
        let end = skip.saturating_add_signed(frames);
        while frame < end {
            let at = span.at.saturating_add(frame.saturating_mul(length));
            if at >= view.len() {
                break;
            }
            let there = view.missing_until(at);
            if there > at {
                frame = (there - span.at).div_ceil(length).max(frame + 1);
                continue;
            }
            let bytes = view.present(at, layout.header_length);
            if let Some(head) = bytes.and_then(|b| layout.read(b, self.settings.latest)) {
                let at = self.place.saturating_add_unsigned(frame);
                self.ahead.push(Sighting { at, head });
            }
            frame += 1;
        }
    }

    /// Searches for frames at a new offset after many odd headers in a row. If there are any, the bytes before them are output
    /// unchanged.
    pub(super) fn search_again(&mut self, span: &mut Span<'_>, layout: Layout) -> Step {
        let wanted = SEARCH_BYTES.max(layout.frame_length.saturating_mul(8));
        if span.left() < wanted as u64 && !span.must_continue(self.settings.hold) {
            return Step::Wait;
        }
        match self.search(span, Some(layout), false, 0) {
            Found::Frames(first, found) if found != layout || first != span.at => {
                self.note_slip(span, (first - span.at).cast_signed());
                self.take_unframed(span, first);
                self.cadence.restart();
                self.state = State::Priming(found);
            }
            _ => self.search_at = self.search_at.saturating_mul(2),
        }
        Step::On
    }
}

/// Finds frames at the start of a stream, of which `holes` are missing: returns the offset of the first, and their common
/// properties. `decide`: no more of the stream will arrive. The work is bounded for any input.
pub(crate) fn find(
    bytes: &[u8],
    holes: &Holes,
    decide: bool,
    wanted: Wanted,
) -> Option<(u64, Layout)> {
    if wanted.format == Some(Format::Raw) {
        return None;
    }
    let view = View { bytes, holes };
    let search = Search {
        base: 0,
        settings: &Settings {
            hold: usize::try_from(view.len()).unwrap_or(usize::MAX),
            format: wanted.format,
            frame_length: wanted.frame_length,
            ..Settings::default()
        },
        before: None,
        decide,
        max_damaged: DAMAGED,
        work: Cell::new(bytes.len() / 64 + 4096),
        view,
    };
    match search.run() {
        Found::Frames(first, layout) => Some((first, layout)),
        Found::Undecided | Found::Nothing => None,
    }
}

/// Known properties of the frames that are searched for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Format of the bytes; `None` for any.
    pub format: Option<Format>,
    /// Length of a frame in bytes, header included; `None` for any.
    pub frame_length: Option<usize>,
}

/// Outcome of a search for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Frames start at this offset; the first may be damaged.
    Frames(u64, Layout),
    /// More of the stream may show them.
    Undecided,
    /// There are none.
    Nothing,
}

/// Search in `view`, starting at `base`.
struct Search<'a> {
    pub view: View<'a>,
    pub base: u64,
    pub settings: &'a Settings,
    /// Previous layout of the frames.
    pub before: Option<Layout>,
    /// No more of the stream will arrive.
    pub decide: bool,
    /// Maximum number of damaged headers between two that agree.
    max_damaged: usize,
    /// Maximum number of headers that may still be examined.
    work: Cell<usize>,
}

impl Search<'_> {
    /// Returns the earliest header that others confirm.
    pub fn run(&self) -> Found {
        let mut undecided = !self.decide;
        let end = self.base.saturating_add(self.settings.hold as u64);
        let end = end.min(self.view.len());
        let mut at = self.view.missing_until(self.base);
        while at < end {
            let until = self.view.whole_until(at).min(end);
            let found = self.in_run(at, until, &mut undecided);
            if let Some((offset, layout)) = found {
                let into_frame = (offset - self.base) % layout.frame_length as u64;
                return Found::Frames(self.base + into_frame, layout);
            }
            at = self.view.missing_until(until);
        }
        match undecided {
            true => Found::Undecided,
            false => Found::Nothing,
        }
    }

    /// Examines every byte of a part in which nothing is missing.
    fn in_run(&self, from: u64, until: u64, undecided: &mut bool) -> Option<(u64, Layout)> {
        let bytes = self.view.present(from, (until - from) as usize)?;
        let longest = self.longest();
        let mark4 = self.mark4_in(from, bytes, undecided);
        let before = mark4.map_or(bytes.len(), |(offset, _)| (offset - from) as usize);
        for place in 0..before {
            if self.work.get() == 0 {
                *undecided = true;
                break;
            }
            let Some(layout) = self.candidate(&bytes[place..], longest) else {
                continue;
            };
            let offset = from + place as u64;
            match self.confirm(offset, &layout) {
                Found::Frames(..) => return Some((offset, layout)),
                Found::Undecided => *undecided = true,
                Found::Nothing => {}
            }
        }
        mark4
    }

    /// Searches for Mark 4 frames by their sync words, from many tracks to few: few find a sync word inside that of more.
    fn mark4_in(&self, from: u64, bytes: &[u8], undecided: &mut bool) -> Option<(u64, Layout)> {
        if self.settings.format.is_some_and(|it| it != Format::Mark4) {
            return None;
        }
        let longest = self.longest();
        let all = Tracks::ALL.into_iter();
        for tracks in all.filter(|tracks| self.fits(tracks.frame_length(), longest)) {
            for place in mark4::find(bytes, tracks) {
                if self.work.get() == 0 {
                    *undecided = true;
                    return None;
                }
                self.work
                    .set(self.work.get().saturating_sub(tracks.count()));
                let offset = from + place as u64;
                let Some(layout) = self.mark4_layout(offset, tracks, undecided) else {
                    continue;
                };
                match self.confirm(offset, &layout) {
                    Found::Frames(..) => return Some((offset, layout)),
                    Found::Undecided => *undecided = true,
                    Found::Nothing => {}
                }
            }
        }
        None
    }

    /// Returns the layout of the Mark 4 frame at `offset`. The frame rate follows from the time in a further header; a given one is used
    /// only if there is none.
    fn mark4_layout(&self, offset: u64, tracks: Tracks, undecided: &mut bool) -> Option<Layout> {
        let code = |frame: u64| {
            let at = offset.saturating_add(frame * tracks.frame_length() as u64);
            let bytes = self.view.present(at, tracks.header_length())?;
            let header = mark4::Header::parse(bytes, tracks).ok()?;
            header.time_code().ok().filter(|_| header.is_intact())
        };
        let first = code(0)?;
        let Some((frames, next)) = (1..CHAIN as u64).find_map(|it| Some((it, code(it)?))) else {
            *undecided |= !self.decide;
            let given = self.settings.frame_rate.filter(|_| self.decide)?;
            return Layout::of_mark4(tracks, given);
        };
        let micros = first.micros_until(next).filter(|micros| *micros > 0)?;
        let rate = (frames * 1_000_000).checked_div(micros)?;
        let whole = (frames * 1_000_000).is_multiple_of(micros);
        let rate = FrameRate::new(u32::try_from(rate).ok().filter(|_| whole)?)?;
        Layout::of_mark4(tracks, rate)
    }

    /// Returns the layout of the header that `bytes` may start with.
    #[inline]
    fn candidate(&self, bytes: &[u8], longest: usize) -> Option<Layout> {
        let wanted = self.settings.format;
        let sync = bytes.first_chunk()?;
        if *sync == mark5b::SYNC.to_le_bytes() && wanted.is_none_or(|it| it == Format::Mark5b) {
            let fits = self.fits(mark5b::FRAME_LEN, longest);
            return fits.then_some(Layout::MARK5B);
        }
        // Most bytes are not a header: the word with version and length shows that soonest.
        let third = u32::from_le_bytes(*bytes.get(8..)?.first_chunk()?);
        let too_long = (third & 0xff_ffff) as usize > longest / 8;
        if third >> 29 > MAX_VERSION || too_long || wanted.is_some_and(|it| it != Format::Vdif) {
            return None;
        }
        let layout = Layout::of_vdif(&vdif::Header::parse(bytes).ok()?);
        self.fits(layout.frame_length, longest).then_some(layout)
    }

    fn longest(&self) -> usize {
        let learnt = (self.settings.hold / AGREE).min(MAX);
        self.settings.frame_length.unwrap_or(learnt)
    }

    fn fits(&self, frame_length: usize, longest: usize) -> bool {
        let exact = self.settings.frame_length.is_some();
        frame_length == longest || !exact && frame_length < longest
    }

    /// Returns whether further headers follow the one at `offset` as expected, with few damaged ones between them.
    fn confirm(&self, offset: u64, layout: &Layout) -> Found {
        let is_damaged = |frame: usize| {
            let at = offset.saturating_add(frame as u64 * layout.frame_length as u64);
            let bytes = self.view.present(at, layout.header_length);
            bytes.is_some_and(|bytes| layout.read(bytes, self.settings.latest).is_none())
        };
        // In nearly all cases the search ends here.
        if (1..=self.max_damaged + 1).all(is_damaged) {
            return Found::Nothing;
        }
        let told = self.settings.frame_length.is_some();
        let mut chain = Chain::default();
        let (mut damaged, mut in_a_row) = (0, 0);
        for frame in 0..CHAIN {
            self.work.set(self.work.get().saturating_sub(1));
            let at = offset.saturating_add(frame as u64 * layout.frame_length as u64);
            if at.saturating_add(layout.header_length as u64) > self.view.len() {
                break;
            }
            let Some(bytes) = self.view.present(at, layout.header_length) else {
                continue;
            };
            match layout.read(bytes, self.settings.latest) {
                Some(head) if told || chain.continues(&head) => {
                    chain.add(head);
                    in_a_row = 0;
                }
                Some(head) if !head.is_invalid() => return Found::Nothing,
                // A few words of a longer frame can look like a header without samples.
                _ if in_a_row == self.max_damaged
                    || layout.frame_length == layout.header_length =>
                {
                    return Found::Nothing;
                }
                _ => {
                    damaged += 1;
                    in_a_row += 1;
                }
            }
            if chain.agreeing(told) >= AGREE && (told || chain.moves()) {
                return Found::Frames(offset, *layout);
            }
        }
        if chain.length == CHAIN && chain.agreeing(told) >= AGREE {
            return Found::Frames(offset, *layout);
        }
        if !self.decide {
            return Found::Undecided;
        }
        // The stream ends before enough headers agreed.
        let length = layout.frame_length as u64;
        let alone = offset == self.base && self.view.len() - offset == length;
        let known = told || self.before == Some(*layout);
        match damaged == 0 && (chain.agreeing(told) > 1 || alone || known) {
            true => Found::Frames(offset, *layout),
            false => Found::Nothing,
        }
    }
}

/// Headers at a distance of one frame length.
#[derive(Default)]
struct Chain {
    heads: [Option<Head>; CHAIN],
    /// For each header, whether another one has its station and time. The clocks of threads may differ, but not all of them.
    in_company: [bool; CHAIN],
    length: usize,
}

impl Chain {
    /// Adds a header; there is room for [`CHAIN`].
    fn add(&mut self, head: Head) {
        let is_near = |other: &Head| {
            let apart = head.time().second.abs_diff(other.time().second);
            head.key().station == other.key().station && apart <= 1
        };
        for place in 0..self.length {
            if self.heads[place].as_ref().is_some_and(is_near) {
                self.in_company[place] = true;
                self.in_company[self.length] = true;
            }
        }
        self.heads[self.length] = Some(head);
        self.length += 1;
    }

    /// Returns whether a thread's time advances, unlike in periodic data that look like headers.
    fn continues(&self, head: &Head) -> bool {
        let mut of_thread = self.heads().filter(|other| other.key() == head.key());
        of_thread.all(|before| before.time() < head.time())
    }

    /// Returns how many headers share their station and time with another one.
    fn agreeing(&self, told: bool) -> usize {
        if told {
            return self.length;
        }
        self.in_company.iter().filter(|company| **company).count()
    }

    /// Returns whether time advances. Identical words at each distance can look like headers, but their time does not advance.
    fn moves(&self) -> bool {
        let mut times = self.heads().map(Head::time);
        let first = times.next();
        times.any(|time| Some(time) != first)
    }

    fn heads(&self) -> impl Iterator<Item = &Head> {
        self.heads.iter().flatten()
    }
}
