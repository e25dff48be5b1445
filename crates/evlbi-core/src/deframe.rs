//! Deframing: the byte stream that the receive ring holds becomes whole frames, and what is missing in it
//! becomes invalid frames with their true time, station and thread.
//!
//! How the stream was cut into datagrams does not matter here: offsets are those of its bytes. The length
//! of the frames and where they begin are learnt from the headers; the order and the times in which the
//! frames of several threads and stations follow one another are learnt as they arrive.
//!
//! Once frames are found they are taken at their length one after another, whatever their headers say: a
//! recording with a damaged frame comes out as it went in.
//!
//! Here belongs what is learnt from frames or made in place of missing ones. Headers and their fields are in `evlbi-wire`.

mod cadence;
mod format;
mod gaps;
mod holes;
mod learn;
mod mend;
mod rate;

use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

use evlbi_wire::fill;
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::validity::{Cause, TimeGap};
use evlbi_wire::vdif::StreamKey;
use serde::{Deserialize, Serialize};

pub use self::format::{Format, Layout};
pub use self::holes::Holes;

pub use self::learn::Wanted;

pub(crate) use self::learn::find;

use self::cadence::{Cadence, Sighting};
use self::format::Head;
use self::gaps::GapLog;
use self::holes::View;

/// What becomes of a frame that arrived in part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Partial {
    /// It becomes an invalid frame.
    #[default]
    Whole,
    /// What came of its payload is kept, with the fill pattern in the rest. The frame stays valid, and the
    /// missing bytes are in the list of gaps. A header that did not come is made.
    Keep,
}

/// What is known of a stream beforehand, and what is wanted of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What the bytes are; else it is learnt.
    pub format: Option<Format>,
    /// Length of a frame in bytes, header included; else it is learnt.
    pub frame_length: Option<usize>,
    /// Frames per second of each thread; else it is taken from headers that tell it, or learnt.
    pub frame_rate: Option<FrameRate>,
    /// What becomes of frames that arrived in part.
    pub partial: Partial,
    /// Most bytes that are left in a span in order to see more of the stream first. Frames are found if three of them fit. Raised
    /// to four frames where `frame_length` is given.
    pub hold: usize,
    /// Longest gap that becomes invalid frames. What misses of a longer one is listed and not handed over. Where the frame rate is
    /// not known, the limit is 256 MiB.
    pub fill: Duration,
    /// A time within 500 days of the stream's, UTC seconds since 1970-01-01: Mark 5B headers repeat every
    /// 1000 days.
    pub reference: i64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            format: None,
            frame_length: None,
            frame_rate: None,
            partial: Partial::Whole,
            hold: 4 << 20,
            fill: Duration::from_secs(10),
            reference: 0,
        }
    }
}

impl Settings {
    /// Most bytes that are left in a span; the ring must be larger.
    pub fn left_in_a_span(&self) -> usize {
        let four_frames = self.frame_length.unwrap_or(0).saturating_mul(4);
        self.hold.max(four_frames)
    }
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FrameState {
    /// It is as its source made it.
    Whole,
    /// It is as its source made it: marked invalid.
    SourceInvalid,
    /// It did not arrive, or not as a whole: an invalid frame is in its place.
    Lost,
    /// It arrived in part, and what came was kept.
    Partial,
    /// It is there, but its header is not one of this stream.
    Odd,
}

/// A frame among those that are handed over together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Where it lies in [`Chunk::bytes`].
    pub bytes: Range<usize>,
    /// Station and thread; `None` where that could not be told.
    pub key: Option<StreamKey>,
    /// Time; `None` where that could not be told.
    pub time: Option<FrameTime>,
    /// What it is.
    pub state: FrameState,
}

/// A piece of the stream, to be written as one.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// The piece.
    pub bytes: &'a [u8],
    /// The frames that it consists of; none where the stream has no frames.
    pub frames: &'a [Frame],
}

/// Takes the pieces, one after the other.
pub type Sink<'a> = &'a mut dyn FnMut(Chunk<'_>);

/// What was counted. `frames` = `whole` + `source_invalid` + `lost_frames` + `partial` + `odd_headers`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Frames handed over.
    pub frames: u64,
    /// Frames that arrived whole and valid.
    pub whole: u64,
    /// Frames that arrived whole and marked invalid by their source.
    pub source_invalid: u64,
    /// Frames that did not arrive whole, and were handed over as invalid ones.
    pub lost_frames: u64,
    /// Frames that arrived in part and were kept ([`Partial::Keep`]).
    pub partial: u64,
    /// Frames that were handed over unchanged although their header is not one of this stream.
    pub odd_headers: u64,
    /// Lost frames whose time or thread was a guess, or that later arrivals contradicted.
    pub ambiguous: u64,
    /// Bytes handed over.
    pub bytes: u64,
    /// Bytes handed over that belong to no frame: of a raw stream, or between frames that lie anew.
    pub unframed_bytes: u64,
    /// Those of `unframed_bytes` that did not arrive and are fill pattern.
    pub filled_bytes: u64,
    /// Bytes left out: a part of a frame at the beginning or the end of the stream.
    pub trimmed_bytes: u64,
    /// Frames of gaps longer than [`Settings::fill`]: listed, and not handed over.
    #[serde(default)]
    pub unfilled_frames: u64,
    /// Bytes of such gaps in a raw stream.
    #[serde(default)]
    pub unfilled_bytes: u64,
    /// Runs of missing frames that the list of gaps had no room for.
    pub gaps_not_listed: u64,
}

/// So many odd headers in a row make a search for frames that lie anew.
const ODD_RUN: u32 = 16;
/// So many frames are handed over together at most.
const MAX_FRAMES: usize = 1 << 16;
/// Longest padding of a last datagram, in bytes.
const MAX_PADDING: usize = 1 << 16;
/// Frames that have no place in the span are made in memory of about this many bytes.
const SCRATCH_BYTES: usize = 1 << 20;

/// Turns the byte stream into frames.
#[derive(Clone, Debug)]
pub struct Deframer {
    settings: Settings,
    state: State,
    /// The layout before a restart.
    before: Option<Layout>,
    /// The threads before a restart, and the bytes that are missing since, as far as frames do not tell it.
    resumes: Option<(Box<Cadence>, u64)>,
    /// Bytes that were made for the gap at the front since the last call.
    made: usize,
    is_filling: bool,
    /// Frames since the beginning.
    place: i64,
    /// Bytes of a gap before the next span.
    gap_left: u64,
    cadence: Cadence,
    odd_run: u32,
    /// Length of the run of odd headers at which frames are searched for.
    search_at: u32,
    counts: Counts,
    gaps: GapLog,
    /// What the next chunk consists of.
    frames: Vec<Frame>,
    /// Made frames, which have no place in the span.
    scratch: Vec<u8>,
    ahead: Vec<Sighting>,
    cuts: Vec<Range<usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not again before so much of the stream is there.
    Learning(u64),
    /// The frames are found, their order is to be learnt.
    Priming(Layout),
    Framed(Layout),
    Raw,
}

/// What a step of the work ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    On,
    /// More of the stream is needed.
    Wait,
}

/// The span that is being worked on, and what it is handed to.
struct Span<'a> {
    bytes: Bytes<'a>,
    sink: Sink<'a>,
    holes: Cow<'a, Holes>,
    /// Offset in the stream of what comes next.
    at: u64,
    /// Place in the span of what was not handed over yet.
    from: usize,
    ended: bool,
}

enum Bytes<'a> {
    Ring(&'a mut [u8]),
    File(&'a [u8]),
}

impl Bytes<'_> {
    fn all(&self) -> &[u8] {
        match self {
            Bytes::Ring(bytes) => bytes,
            Bytes::File(bytes) => bytes,
        }
    }
}

impl Span<'_> {
    fn view(&self) -> View<'_> {
        View {
            bytes: self.bytes.all(),
            holes: &self.holes,
        }
    }

    /// Bytes of the stream that are left.
    fn left(&self) -> u64 {
        self.view().len().saturating_sub(self.at)
    }

    fn place(&self) -> usize {
        self.view().place(self.at)
    }

    /// Notes that `bytes` of the stream are missing before the next one.
    fn insert_gap(&mut self, bytes: u64) {
        if bytes > 0 {
            self.holes = Cow::Owned(self.holes.with_gap(self.place(), bytes));
        }
    }

    /// The rest of the span is all that will be waited for.
    fn must_go_on(&self, hold: usize) -> bool {
        self.ended || self.view().bytes.len() - self.place() >= hold
    }
}

impl Deframer {
    /// A deframer for a stream that begins.
    pub fn new(mut settings: Settings) -> Deframer {
        settings.hold = settings.left_in_a_span();
        let mut deframer = Deframer {
            state: State::Raw,
            before: None,
            resumes: None,
            made: 0,
            is_filling: false,
            place: 0,
            gap_left: 0,
            cadence: Cadence::new(settings.frame_rate),
            odd_run: 0,
            search_at: ODD_RUN,
            counts: Counts::default(),
            gaps: GapLog::default(),
            frames: Vec::new(),
            scratch: Vec::new(),
            ahead: Vec::new(),
            cuts: Vec::new(),
            settings,
        };
        deframer.learn_anew();
        deframer
    }

    fn learn_anew(&mut self) {
        self.state = match self.settings.format {
            Some(Format::Raw) => State::Raw,
            _ => State::Learning(0),
        };
    }

    /// Takes what can be taken from the front of `span`, in which `holes` are missing, and hands it to
    /// `sink`: lost frames are made in their place in the span. The rest is to be given again, at the front
    /// of a longer span, without the gaps before and at its front: those are remembered.
    ///
    /// `ended`: the stream goes no further than this span; all is taken. What misses of the last frame is
    /// lost; fill pattern behind the last frame is trimmed. Without it, never more than [`Settings::hold`]
    /// bytes, or a frame if that is longer, are left.
    ///
    /// A long gap is filled piece by piece: while [`Deframer::is_filling`], the rest is to be pushed once more, although `ended`.
    ///
    /// Returns how many bytes of the span were taken.
    pub fn push(&mut self, span: &mut [u8], holes: &Holes, ended: bool, sink: Sink<'_>) -> usize {
        self.run(Bytes::Ring(span), holes, ended, sink)
    }

    /// [`Deframer::push`] for bytes of which nothing is missing, such as a file's; a part of a frame at the
    /// end is trimmed.
    pub fn walk(&mut self, span: &[u8], ended: bool, sink: Sink<'_>) -> usize {
        self.run(Bytes::File(span), &Holes::new(), ended, sink)
    }

    /// The sender has begun again: the frames may lie otherwise in what follows. What came before must have
    /// been pushed as ended. The frame rate is kept until other frames contradict it.
    ///
    /// If the same threads continue at a later time, what lies between is a gap. Where frames do not tell it, `missing` bytes are
    /// the gap, if the stream is a raw one before and afterwards.
    pub fn restart(&mut self, missing: u64) {
        self.before = self.layout().or(self.before);
        let missing = match self.state {
            State::Framed(_) => Some(0),
            State::Raw if self.counts.bytes > 0 => Some(missing),
            _ => None,
        };
        self.resumes = missing.map(|missing| (Box::new(self.cadence.clone()), missing));
        self.gap_left = 0;
        self.cadence.restart();
        self.learn_anew();
        if self.state == State::Raw {
            self.gap_left = self.resumes.take().map_or(0, |(_, missing)| missing);
        }
    }

    /// A gap is being filled: the rest of the span is to be pushed again.
    pub fn is_filling(&self) -> bool {
        self.is_filling
    }

    /// Fills no more gaps: they are listed only.
    pub fn stop_filling(&mut self) {
        self.settings.fill = Duration::ZERO;
    }

    /// What the bytes are, once that is known.
    pub fn format(&self) -> Option<Format> {
        match self.state {
            State::Raw => Some(Format::Raw),
            _ => self.layout().map(|layout| layout.format),
        }
    }

    /// What the frames have in common, once that is known; `None` in a raw stream.
    pub fn layout(&self) -> Option<Layout> {
        match self.state {
            State::Learning(_) => self.before,
            State::Priming(layout) | State::Framed(layout) => Some(layout),
            State::Raw => None,
        }
    }

    /// Frames per second of each thread, once that is known.
    pub fn frame_rate(&self) -> Option<FrameRate> {
        self.cadence.frame_rate()
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        Counts {
            ambiguous: self.cadence.ambiguous,
            gaps_not_listed: self.gaps.overflow,
            ..self.counts.clone()
        }
    }

    /// The missing frames so far, as runs of consecutive frames of a thread, in the order in which they
    /// begin. Offsets are those of everything that was handed over.
    pub fn gaps(&self) -> &[TimeGap] {
        &self.gaps.gaps
    }

    fn run(&mut self, bytes: Bytes<'_>, holes: &Holes, ended: bool, sink: Sink<'_>) -> usize {
        (self.made, self.is_filling) = (0, false);
        let mut span = Span {
            bytes,
            sink,
            holes: Cow::Borrowed(holes),
            at: 0,
            from: 0,
            ended,
        };
        span.insert_gap(self.gap_left);
        while self.step(&mut span) == Step::On {}
        let ended = ended && !self.is_filling;
        if ended && let Some(missing) = self.missing_of_last(&span) {
            let end = span.view().bytes.len();
            span.holes.to_mut().gap(end, missing);
            while self.step(&mut span) == Step::On {}
        }
        self.hand_over(&mut span);
        if ended {
            self.counts.trimmed_bytes += span.left();
            span.at = span.view().len();
            span.from = span.place();
        }
        self.gap_left = span.view().gap_at(span.at);
        span.from
    }

    /// Bytes of the last frame that did not come, when the rest of it did. Fill pattern behind the last frame
    /// is what completes a datagram.
    fn missing_of_last(&self, span: &Span<'_>) -> Option<u64> {
        let (State::Framed(layout), Bytes::Ring(_)) = (self.state, &span.bytes) else {
            return None;
        };
        let left = span.left();
        let rest = span.view().present(span.at, left as usize);
        if left == 0 || rest.is_some_and(fill::is_fill) {
            return None;
        }
        (layout.frame_length as u64).checked_sub(left)
    }

    fn step(&mut self, span: &mut Span<'_>) -> Step {
        match self.state {
            State::Learning(not_before) => self.learn(span, not_before),
            State::Priming(layout) => self.prime(span, layout),
            State::Framed(layout) => self.take_frames(span, layout),
            State::Raw => {
                let end = span.view().len();
                self.take_unframed(span, end);
                Step::Wait
            }
        }
    }

    fn take_frames(&mut self, span: &mut Span<'_>, layout: Layout) -> Step {
        let length = layout.frame_length as u64;
        while span.left() >= length {
            if self.frames.len() >= MAX_FRAMES {
                self.hand_over(span);
            }
            if self.odd_run >= self.search_at {
                return self.search_again(span, layout);
            }
            let gap = span.view().gap_at(span.at);
            if gap > 0 {
                if gap >= length && gap > self.max_fill(layout) {
                    self.pass_over(span, layout, gap);
                    continue;
                }
                if self.made >= SCRATCH_BYTES {
                    self.is_filling = true;
                    return Step::Wait;
                }
            }
            if self.is_padding(span, length as usize) {
                return Step::Wait;
            }
            let whole_until = span.view().whole_until(span.at);
            if whole_until - span.at >= length {
                self.take_whole(span, layout, whole_until);
            } else if self.take_broken(span, layout) == Step::Wait {
                return Step::Wait;
            }
        }
        Step::Wait
    }

    /// Whether all that is left is fill pattern, which may complete the last datagram: it is a frame only if more follows.
    fn is_padding(&self, span: &Span<'_>, length: usize) -> bool {
        let left = span.left();
        let most = self.settings.hold.min(MAX_PADDING) as u64;
        let are_fill = |length| {
            let bytes = span.view().present(span.at, length);
            bytes.is_some_and(fill::is_fill)
        };
        matches!(span.bytes, Bytes::Ring(_))
            && left <= most
            && are_fill(length)
            && are_fill(left as usize)
    }

    /// Takes whole frames up to `until`, or an odd one.
    fn take_whole(&mut self, span: &mut Span<'_>, layout: Layout, until: u64) {
        if !self.scratch.is_empty() {
            self.hand_over(span);
        }
        let length = layout.frame_length;
        let begin = span.place();
        let mut taken = begin;
        let end = begin + (until - span.at) as usize;
        let mut odd = false;
        let frames = span.view().bytes[begin..end].chunks_exact(length);
        for bytes in frames.take(MAX_FRAMES - self.frames.len()) {
            let head = layout.read(bytes, self.settings.reference);
            let Some(head) = head.filter(|head| self.cadence.believes(head)) else {
                odd = true;
                break;
            };
            self.cadence.see(self.place, &head);
            let state = if head.is_invalid() {
                self.note_invalid(&head, taken - span.from);
                FrameState::SourceInvalid
            } else {
                FrameState::Whole
            };
            (self.odd_run, self.search_at) = (0, ODD_RUN);
            let begin = taken - span.from;
            self.add(begin..begin + length, Some(&head), state);
            taken += length;
        }
        span.at += (taken - begin) as u64;
        if odd && !self.is_padding(span, length) {
            self.take_odd(span, layout);
        }
    }

    fn note_invalid(&mut self, head: &Head, offset: usize) {
        let gap = self.gap(head, offset, 1, Cause::Source);
        self.gaps.add(gap, self.cadence.after(head.time()));
    }

    /// The gap of `frames` frames, the first of which has this header and lies there in what is handed over next.
    fn gap(&self, head: &Head, offset: usize, frames: u64, cause: Cause) -> TimeGap {
        TimeGap {
            key: head.key(),
            start: head.time(),
            frames,
            first_byte: Some(self.counts.bytes + offset as u64),
            bytes: None,
            cause,
        }
    }

    /// A whole frame whose header cannot be followed: damaged, or marked invalid with a wrong time.
    fn take_odd(&mut self, span: &mut Span<'_>, layout: Layout) {
        let place = span.place();
        let bytes = &span.view().bytes[place..];
        let head = layout.read(bytes, self.settings.reference);
        self.look_ahead(span, layout, 1, self.cadence.reach());
        let is_astray = head.is_some_and(|head| self.cadence.is_astray(&head));
        let belongs_here = self.cadence.pass(self.place, &self.ahead);
        let state = match head {
            Some(_) => FrameState::SourceInvalid,
            None => FrameState::Odd,
        };
        let head = if is_astray { belongs_here } else { head };
        if let Some(head) = &head {
            self.note_invalid(head, place - span.from);
        }
        self.odd_run += u32::from(state == FrameState::Odd);
        let begin = place - span.from;
        self.add(begin..begin + layout.frame_length, head.as_ref(), state);
        span.at += layout.frame_length as u64;
    }

    /// The next frame of what is handed over, with its header where that is known.
    #[inline]
    fn add(&mut self, bytes: Range<usize>, head: Option<&Head>, state: FrameState) {
        self.place += 1;
        self.frames.push(Frame {
            bytes,
            key: head.map(Head::key),
            time: head.map(Head::time),
            state,
        });
    }

    /// Hands over what was taken.
    fn hand_over(&mut self, span: &mut Span<'_>) {
        let place = span.place();
        let bytes = match self.scratch.is_empty() {
            true => &span.bytes.all()[span.from..place],
            false => &self.scratch,
        };
        let length = bytes.len();
        if length > 0 {
            let frames = &self.frames;
            (span.sink)(Chunk { bytes, frames });
            self.count(length);
        }
        self.frames.clear();
        self.scratch.clear();
        span.from = place;
    }
}
