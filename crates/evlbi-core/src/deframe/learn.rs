//! Finding the frames in a stream: the first header whose successors lie where its length says.

use std::cell::Cell;

use evlbi_wire::mark5b;
use evlbi_wire::vdif;

use super::cadence::{MAX_AHEAD, Sighting};
use super::format::{Format, Head, Layout};
use super::holes::{Holes, View};
use super::{Deframer, ODD_RUN, Settings, Span, State, Step};

/// So many frames from a header on are looked at to believe it.
const CHAIN: usize = 32;
/// So many headers must agree.
const AGREE: usize = 3;
/// Frames longer than this are only believed when the user gives their length.
const MAX: usize = 16 << 20;
/// VDIF is at version 0 or 1.
const MAX_VERSION: u32 = 1;

/// The search for frames that lie anew waits for so many bytes.
const SEARCH_BYTES: usize = 256 << 10;

impl Deframer {
    pub(super) fn learn(&mut self, span: &mut Span<'_>, not_before: u64) -> Step {
        let decide = span.must_go_on(self.settings.hold);
        if span.left() < not_before && !decide || span.left() == 0 {
            return Step::Wait;
        }
        match self.search(span, self.before, decide) {
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
    fn search(&self, span: &Span<'_>, before: Option<Layout>, decide: bool) -> Found {
        let search = Search {
            view: span.view(),
            base: span.at,
            settings: &self.settings,
            before,
            decide,
            work: Cell::new(usize::MAX),
        };
        search.run()
    }

    /// Learns the order of the frames before the first of them is taken, so that one lost at the very
    /// beginning finds its thread and time as well.
    pub(super) fn prime(&mut self, span: &mut Span<'_>, layout: Layout) -> Step {
        self.look_ahead(span, layout, 0, MAX_AHEAD);
        let window = MAX_AHEAD as u64 * layout.frame_length as u64;
        let must_suffice = span.left() >= window || span.must_go_on(self.settings.hold);
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

    /// Collects the headers that are there in the `frames` frames after the next `skip` ones.
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
            if let Some(head) = bytes.and_then(|b| layout.read(b, self.settings.reference)) {
                let at = self.place.saturating_add_unsigned(frame);
                self.ahead.push(Sighting { at, head });
            }
            frame += 1;
        }
    }

    /// Many odd headers in a row: the frames may lie anew. If they do, what lies before them is passed on
    /// as it is.
    pub(super) fn search_again(&mut self, span: &mut Span<'_>, layout: Layout) -> Step {
        let wanted = SEARCH_BYTES.max(layout.frame_length.saturating_mul(8));
        if span.left() < wanted as u64 && !span.must_go_on(self.settings.hold) {
            return Step::Wait;
        }
        match self.search(span, Some(layout), false) {
            Found::Frames(first, found) if found != layout || first != span.at => {
                self.take_unframed(span, first);
                self.cadence.restart();
                self.state = State::Priming(found);
            }
            _ => self.search_at = self.search_at.saturating_mul(2),
        }
        Step::On
    }
}

/// Where frames lie in the beginning of a stream, of which `holes` are missing: offset of the first, and what they have in common.
/// `decide`: no more of the stream can be waited for. The work is bounded, whatever the bytes are.
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
        work: Cell::new(bytes.len() / 64 + 4096),
        view,
    };
    match search.run() {
        Found::Frames(first, layout) => Some((first, layout)),
        Found::Undecided | Found::Nothing => None,
    }
}

/// What is known of the frames that are searched for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// What the bytes are; else any of the formats.
    pub format: Option<Format>,
    /// Length of a frame in bytes, header included; else any.
    pub frame_length: Option<usize>,
}

/// What a search for frames ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Frames lie from this offset on, the first of them perhaps damaged.
    Frames(u64, Layout),
    /// More of the stream may show them.
    Undecided,
    /// There are none.
    Nothing,
}

/// A search in `view` from `base` on.
struct Search<'a> {
    pub view: View<'a>,
    pub base: u64,
    pub settings: &'a Settings,
    /// The layout that the frames had before.
    pub before: Option<Layout>,
    /// No more of the stream can be waited for.
    pub decide: bool,
    /// How many headers may still be looked at.
    work: Cell<usize>,
}

impl Search<'_> {
    /// The earliest header that others confirm.
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

    /// Looks at every byte of a part in which nothing is missing.
    fn in_run(&self, from: u64, until: u64, undecided: &mut bool) -> Option<(u64, Layout)> {
        let bytes = self.view.present(from, (until - from) as usize)?;
        let longest = self.longest();
        for place in 0..bytes.len() {
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
        None
    }

    /// The layout of the header that `bytes` may begin with.
    #[inline]
    fn candidate(&self, bytes: &[u8], longest: usize) -> Option<Layout> {
        let wanted = self.settings.format;
        let sync = bytes.first_chunk()?;
        if *sync == mark5b::SYNC.to_le_bytes() && wanted != Some(Format::Vdif) {
            return self.fits(Layout::MARK5B, longest).then_some(Layout::MARK5B);
        }
        // Most bytes are no header: the word with the version and the length tells that soonest.
        let third = u32::from_le_bytes(*bytes.get(8..)?.first_chunk()?);
        let too_long = (third & 0xff_ffff) as usize > longest / 8;
        if third >> 29 > MAX_VERSION || too_long || wanted == Some(Format::Mark5b) {
            return None;
        }
        let layout = Layout::of_vdif(&vdif::Header::parse(bytes).ok()?);
        self.fits(layout, longest).then_some(layout)
    }

    fn longest(&self) -> usize {
        let learnt = (self.settings.hold / AGREE).min(MAX);
        self.settings.frame_length.unwrap_or(learnt)
    }

    fn fits(&self, layout: Layout, longest: usize) -> bool {
        let exact = self.settings.frame_length.is_some();
        layout.frame_length == longest || !exact && layout.frame_length < longest
    }

    /// Whether the headers that ought to follow the one at `offset` do. A damaged frame among them is
    /// no matter: those behind it will be found.
    fn confirm(&self, offset: u64, layout: &Layout) -> Found {
        // Nearly always this is the end of it.
        let second = offset.saturating_add(layout.frame_length as u64);
        let second = self.view.present(second, layout.header_length);
        if second.is_some_and(|bytes| layout.read(bytes, self.settings.reference).is_none()) {
            return Found::Nothing;
        }
        let told = self.settings.frame_length.is_some();
        let mut chain = Chain::default();
        for frame in 0..CHAIN {
            self.work.set(self.work.get().saturating_sub(1));
            let at = offset.saturating_add(frame as u64 * layout.frame_length as u64);
            if at.saturating_add(layout.header_length as u64) > self.view.len() {
                break;
            }
            let Some(bytes) = self.view.present(at, layout.header_length) else {
                continue;
            };
            let head = layout.read(bytes, self.settings.reference);
            match head.filter(|head| told || chain.goes_on_with(head)) {
                Some(head) => chain.add(head),
                None => return Found::Nothing,
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
        // The stream ends before enough headers have agreed.
        let length = layout.frame_length as u64;
        let alone = offset == self.base && self.view.len() - offset == length;
        let known = told || self.before == Some(*layout);
        match chain.agreeing(told) > 1 || alone || known {
            true => Found::Frames(offset, *layout),
            false => Found::Nothing,
        }
    }
}

/// Headers that lie a frame length apart.
#[derive(Default)]
struct Chain {
    heads: [Option<Head>; CHAIN],
    /// Whether each has another one of its station at its time. The clocks of threads may differ, but not of all.
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

    /// A thread's time advances. In periodic data, which can look like headers, it does not.
    fn goes_on_with(&self, head: &Head) -> bool {
        let mut of_thread = self.heads().filter(|other| other.key() == head.key());
        of_thread.all(|before| before.time() < head.time())
    }

    /// How many headers have another one of their station at their time.
    fn agreeing(&self, told: bool) -> usize {
        if told {
            return self.length;
        }
        self.in_company.iter().filter(|company| **company).count()
    }

    /// Whether time goes on. Words that are the same in every header can look like a header, whose time
    /// does not.
    fn moves(&self) -> bool {
        let mut times = self.heads().map(Head::time);
        let first = times.next();
        times.any(|time| Some(time) != first)
    }

    fn heads(&self) -> impl Iterator<Item = &Head> {
        self.heads.iter().flatten()
    }
}
