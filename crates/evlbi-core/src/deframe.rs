//! Deframing: splits the byte stream in the receive ring into whole frames, and replaces missing ones with invalid frames with
//! the right time, station and thread.
//!
//! Offsets are those of the byte stream, whatever the datagrams were. The length of the frames and the offset of the first are
//! detected from the headers; the order and times of frames of several threads and stations are detected as they arrive.
//!
//! Once frames are found, they are taken at their length one after another, whatever their headers say: a recording with a
//! damaged frame stays unchanged.
//! Detection from frames, and the replacement of missing ones, belong here. Headers and their fields are in `evlbi-wire`.

mod cadence;
mod format;
mod gaps;
mod holes;
mod learn;
mod mend;
mod rate;
mod select;
mod slip;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use evlbi_wire::fill;
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::validity::{Cause, TimeGap};
use evlbi_wire::vdif::StreamKey;
use serde::{Deserialize, Serialize};

pub use self::format::{Format, Layout, Stamp};
pub use self::holes::Holes;

pub use self::learn::Wanted;
pub use self::select::Selected;

pub(crate) use self::learn::find;

use self::cadence::{Cadence, Sighting};
use self::format::Head;
use self::gaps::GapLog;
use self::holes::View;

/// Treatment of a frame that arrived in part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Partial {
    /// It becomes an invalid frame.
    #[default]
    Whole,
    /// The received part of its payload is kept, with the fill pattern in the rest. The frame stays valid, and the missing bytes
    /// are listed as a gap. A missing header is made.
    Keep,
}

/// Known properties of a stream, and options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Format of the bytes; `None` to detect it.
    pub format: Option<Format>,
    /// Length of a frame in bytes, header included; `None` to detect it.
    pub frame_length: Option<usize>,
    /// Frames per second of each thread; `None` to take it from the headers, or detect it. The times in headers of Mark 4 overrule it.
    pub frame_rate: Option<FrameRate>,
    /// Treatment of frames that arrived in part.
    pub partial: Partial,
    /// Maximum bytes left in a span in order to see more of the stream first. Frames are found if three of them fit. Raised to
    /// four frames if `frame_length` is given.
    pub hold: usize,
    /// Maximum gap that is filled with invalid frames. Longer gaps are listed but not filled. If the frame rate is unknown, the
    /// limit is 256 MiB.
    pub fill: Duration,
    /// Latest time that the data can be from, within a day or two, in UTC seconds since 1970-01-01: times of Mark 5B repeat every
    /// 1000 days, and those of Mark 4 have one digit of the year.
    pub latest: i64,
    /// Stations and threads whose frames are output, filled and counted.
    pub selected: Selected,
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
            latest: 0,
            selected: Selected::default(),
        }
    }
}

impl Settings {
    /// Returns the maximum bytes left in a span; the ring must be larger.
    pub fn left_in_a_span(&self) -> usize {
        let four_frames = self.frame_length.unwrap_or(0).saturating_mul(4);
        self.hold.max(four_frames)
    }
}

/// State of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FrameState {
    /// As its source made it.
    Whole,
    /// As its source made it: marked invalid.
    SourceInvalid,
    /// Did not arrive, or not as a whole: replaced by an invalid frame.
    Lost,
    /// Arrived in part, and the received part was kept.
    Partial,
    /// Arrived, but its header is damaged. Time and thread are those of the next frame of the stream, up to eight times in a row; in Mark 4
    /// more often, if most tracks show that time.
    Odd,
}

/// Frame among those that are output together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its bytes in [`Chunk::bytes`].
    pub bytes: Range<usize>,
    /// Station and thread; `None` if unknown.
    pub key: Option<StreamKey>,
    /// Time; `None` if unknown.
    pub time: Option<FrameTime>,
    /// State.
    pub state: FrameState,
}

/// Piece of the stream, to be written at once.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Bytes of the piece.
    pub bytes: &'a [u8],
    /// The same, and up to [`fill::CONTEXT`] bytes after them.
    pub with_next: &'a [u8],
    /// Frames that it consists of; empty if the stream has no frames.
    pub frames: &'a [Frame],
    /// Common properties of these frames; `None` if the stream has no frames.
    pub layout: Option<Layout>,
    /// Frames per second of each thread, once known.
    pub frame_rate: Option<FrameRate>,
}

/// Consumer of the pieces, in order.
pub type Sink<'a> = &'a mut dyn FnMut(Chunk<'_>);

/// Counts of output frames. `frames` = `whole` + `source_invalid` + `lost_frames` + `partial` + `odd_headers`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Counts {
    /// Frames output.
    pub frames: u64,
    /// Frames that arrived whole and valid.
    pub whole: u64,
    /// Frames that arrived whole and marked invalid by their source.
    pub source_invalid: u64,
    /// Frames that did not arrive whole, and were output as invalid ones.
    pub lost_frames: u64,
    /// Frames that arrived in part and were kept ([`Partial::Keep`]).
    pub partial: u64,
    /// Frames that were output unchanged although their header does not belong to this stream.
    pub odd_headers: u64,
    /// Lost frames whose time or thread was a guess, or was contradicted by later arrivals.
    pub ambiguous: u64,
    /// Bytes output.
    pub bytes: u64,
    /// Bytes output that belong to no frame: of a raw stream, or before frames at a new offset.
    pub unframed_bytes: u64,
    /// Bytes of `unframed_bytes` that did not arrive and are fill pattern.
    pub filled_bytes: u64,
    /// Bytes skipped: a part of a frame at the start or the end of the stream.
    pub trimmed_bytes: u64,
    /// Frames of stations and threads that are not selected, received or lost; they are in no other count.
    #[serde(default)]
    pub unselected_frames: u64,
    /// Their bytes, and those that belong to no frame.
    #[serde(default)]
    pub unselected_bytes: u64,
    /// Frames of gaps longer than [`Settings::fill`]: listed, but not filled.
    #[serde(default)]
    pub unfilled_frames: u64,
    /// Bytes of such gaps in a raw stream.
    #[serde(default)]
    pub unfilled_bytes: u64,
    /// Runs of missing frames that did not fit the list of gaps.
    pub gaps_not_listed: u64,
    /// Times that frames were found at another offset than expected: bytes had been lost or inserted before.
    #[serde(default)]
    pub slips: u64,
}

/// Change of the offset of frames within the data, where bytes had been lost or inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Slip {
    /// Offset in the output of the last frame boundary before it.
    pub byte: u64,
    /// Bytes inserted; negative if bytes were lost.
    pub bytes: i64,
}

/// Number of odd headers in a row that starts a search for frames at a new offset.
const ODD_RUN: u32 = 16;
/// Number of odd headers in a row up to which a frame counts as the next one of the stream.
const FLYWHEEL: u32 = 8;
/// Maximum number of frames that are output together.
const MAX_FRAMES: usize = 1 << 16;
/// Maximum padding of a last datagram, in bytes.
const MAX_PADDING: usize = 1 << 16;
/// Approximate memory in which frames that have no place in the span are made, in bytes.
const SCRATCH_BYTES: usize = 1 << 20;

/// Splitter of the byte stream into frames.
#[derive(Clone, Debug)]
pub struct Deframer {
    settings: Settings,
    state: State,
    /// Layout before a restart.
    before: Option<Layout>,
    /// Threads before a restart, and the bytes missing since, if the frames do not show them.
    resumes: Option<(Box<Cadence>, u64)>,
    /// Bytes made for the gap at the front since the last call.
    made: usize,
    is_filling: bool,
    /// Number of frames since the start.
    place: i64,
    /// Bytes of a gap before the next span.
    gap_left: u64,
    cadence: Cadence,
    odd_run: u32,
    /// Length of the run of odd headers at which frames are searched for.
    search_at: u32,
    counts: Counts,
    gaps: GapLog,
    slips: Vec<Slip>,
    /// Number of frames at the last slip.
    slipped_at: i64,
    /// Stations and threads that arrived; empty if all are selected.
    seen: BTreeSet<StreamKey>,
    /// Selected frames of the next chunk.
    frames: Vec<Frame>,
    /// Number of other frames in it.
    unselected: usize,
    /// Made frames that have no place in the span.
    scratch: Vec<u8>,
    ahead: Vec<Sighting>,
    cuts: Vec<Range<usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Frames are searched for once this many bytes of the stream arrived.
    Learning(u64),
    /// The frames are found; their order is not known yet.
    Priming(Layout),
    Framed(Layout),
    Raw,
}

/// Outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    On,
    /// More of the stream is needed.
    Wait,
}

/// Current span, and where its output goes.
struct Span<'a> {
    bytes: Bytes<'a>,
    sink: Sink<'a>,
    holes: Cow<'a, Holes>,
    /// Offset in the stream of the next byte.
    at: u64,
    /// Offset in the span of the first byte that was not output yet.
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

    /// Returns the bytes of the stream that are left.
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

    /// Returns the number of bytes that follow without a gap, up to [`fill::CONTEXT`].
    fn context(&self) -> usize {
        let view = self.view();
        let present = view.whole_until(self.at).saturating_sub(self.at);
        present.min(fill::CONTEXT as u64) as usize
    }

    /// Returns whether bytes that have not arrived yet may continue a run of the fill pattern at `end`.
    fn may_continue(&self, end: u64) -> bool {
        let view = self.view();
        let is_known = self.ended || end + fill::CONTEXT as u64 <= view.len();
        !is_known && view.present(end - 4, 4).is_some_and(fill::may_continue)
    }

    /// Returns whether the rest of the span must be processed without waiting for more.
    fn must_continue(&self, hold: usize) -> bool {
        self.ended || self.view().bytes.len() - self.place() >= hold
    }
}

impl Deframer {
    /// Makes a deframer for a new stream.
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
            slips: Vec::new(),
            slipped_at: -1,
            seen: BTreeSet::new(),
            unselected: 0,
            frames: Vec::new(),
            scratch: Vec::new(),
            ahead: Vec::new(),
            cuts: Vec::new(),
            settings,
        };
        deframer.relearn();
        deframer
    }

    fn relearn(&mut self) {
        self.state = match self.settings.format {
            Some(Format::Raw) => State::Raw,
            _ => State::Learning(0),
        };
    }

    /// Takes as much as possible from the front of `span`, in which `holes` are missing, and outputs it to `sink`. Lost frames
    /// are made in their place in the span. Give the rest again at the front of a longer span, without the gaps before and at its
    /// front: those are remembered.
    ///
    /// `ended`: the stream ends with this span, and all of it is taken. The missing part of the last frame is lost; fill pattern
    /// after the last frame is trimmed. Otherwise at most [`Settings::hold`] bytes, or a frame if that is longer, are left.
    ///
    /// A long gap is filled piece by piece: while [`Deframer::is_filling`], push the rest again, even if `ended`.
    ///
    /// Returns the number of bytes of the span that were taken.
    pub fn push(&mut self, span: &mut [u8], holes: &Holes, ended: bool, sink: Sink<'_>) -> usize {
        self.run(Bytes::Ring(span), holes, ended, sink)
    }

    /// Takes bytes without gaps, such as a file's, as [`Deframer::push`] does; a part of a frame at the end is trimmed.
    pub fn walk(&mut self, span: &[u8], ended: bool, sink: Sink<'_>) -> usize {
        self.run(Bytes::File(span), &Holes::new(), ended, sink)
    }

    /// Notes that the sender has restarted: frames may start at another offset. Everything before must have been pushed as ended.
    /// The frame rate is kept until other frames contradict it.
    ///
    /// If the same threads continue at a later time, the time between is a gap. If frames do not show it, the gap is `missing`
    /// bytes, provided that the stream is a raw one before and afterwards.
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
        self.relearn();
        if self.state == State::Raw {
            self.gap_left = self.resumes.take().map_or(0, |(_, missing)| missing);
        }
    }

    /// Returns whether a gap is being filled: push the rest of the span again.
    pub fn is_filling(&self) -> bool {
        self.is_filling
    }

    /// Stops filling gaps: they are only listed.
    pub fn stop_filling(&mut self) {
        self.settings.fill = Duration::ZERO;
    }

    /// Returns the format of the bytes, once known.
    pub fn format(&self) -> Option<Format> {
        match self.state {
            State::Raw => Some(Format::Raw),
            _ => self.layout().map(|layout| layout.format),
        }
    }

    /// Returns the common properties of the frames, once known; `None` in a raw stream.
    pub fn layout(&self) -> Option<Layout> {
        match self.state {
            State::Learning(_) => self.before,
            State::Priming(layout) | State::Framed(layout) => Some(layout),
            State::Raw => None,
        }
    }

    /// Returns the frames per second of each thread, once known.
    pub fn frame_rate(&self) -> Option<FrameRate> {
        self.cadence.frame_rate()
    }

    /// Returns once the given frame rate and the one that the times of Mark 4 show, if they differ.
    pub fn take_other_rate(&mut self) -> Option<(FrameRate, FrameRate)> {
        let found = self.layout()?.frame_rate?;
        let given = self.settings.frame_rate.take()?;
        (given != found).then_some((given, found))
    }

    /// Returns the current counts.
    pub fn counts(&self) -> Counts {
        Counts {
            ambiguous: self.cadence.ambiguous,
            gaps_not_listed: self.gaps.overflow,
            ..self.counts.clone()
        }
    }

    /// Returns the missing frames so far, as runs of consecutive frames of a thread, in the order in which they start. Offsets
    /// count everything that was output.
    pub fn gaps(&self) -> &[TimeGap] {
        &self.gaps.gaps
    }

    /// Returns the slips so far, the first ones.
    pub fn slips(&self) -> &[Slip] {
        &self.slips
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

    /// Returns how many bytes of the last frame did not arrive, if the rest did. Fill pattern after the last frame is padding of
    /// a datagram.
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
        while span.left() >= length && !span.may_continue(span.at + length) {
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
            match self.take_slip(span, layout) {
                None => {}
                Some(Step::On) => continue,
                Some(Step::Wait) => return Step::Wait,
            }
            let whole_until = span.view().whole_until(span.at);
            if whole_until - span.at >= length {
                let last = whole_until - (whole_until - span.at) % length;
                let until = match layout.format {
                    // Its headers are not copied twice.
                    Format::Mark4 => span.at + length,
                    _ if span.may_continue(last) => last - length,
                    _ => last,
                };
                self.take_whole(span, layout, until);
            } else if self.take_broken(span, layout) == Step::Wait {
                return Step::Wait;
            }
        }
        Step::Wait
    }

    /// Returns whether only fill pattern is left, which may pad the last datagram: it is a frame only if more follows.
    fn is_padding(&self, span: &Span<'_>, length: usize) -> bool {
        let left = span.left();
        let max = self.settings.hold.min(MAX_PADDING) as u64;
        let are_fill = |length| {
            let bytes = span.view().present(span.at, length);
            bytes.is_some_and(fill::is_fill)
        };
        matches!(span.bytes, Bytes::Ring(_))
            && left <= max
            && are_fill(length)
            && are_fill(left as usize)
    }

    /// Takes the next whole frame, which may be odd, and those up to `until` that end where a header is. So each header is read once.
    fn take_whole(&mut self, span: &mut Span<'_>, layout: Layout, until: u64) {
        if !self.scratch.is_empty() {
            self.hand_over(span);
        }
        let (place, length, latest) = (span.place(), layout.frame_length, self.settings.latest);
        let bytes = &span.view().bytes[place..][..(until - span.at) as usize];
        let mut heads = bytes
            .chunks_exact(length)
            .map(|frame| layout.read(frame, latest));
        let (mut head, mut next) = (heads.next().flatten(), heads.next().flatten());
        let (from, mut begin) = (span.from, place - span.from);
        let is_odd = loop {
            let Some(own) = head.filter(|head| self.cadence.believes(head)) else {
                break true;
            };
            self.cadence.see(self.place, &own);
            let state = if own.is_invalid() {
                self.note_invalid(&own, begin);
                FrameState::SourceInvalid
            } else {
                FrameState::Whole
            };
            (self.odd_run, self.search_at) = (0, ODD_RUN);
            self.add(begin..begin + length, Some(&own), state);
            begin += length;
            (head, next) = (next, heads.next().flatten());
            if next.is_none() || self.frames.len() >= MAX_FRAMES {
                break false;
            }
        };
        span.at += (from + begin - place) as u64;
        if is_odd {
            self.take_odd(span, layout);
        }
    }

    fn note_invalid(&mut self, head: &Head, offset: usize) {
        let gap = self.gap(head, offset, 1, Cause::Source);
        self.list(gap, self.cadence.after(head.time()));
    }

    /// Returns the gap of `frames` frames, the first of which has this header and starts at `offset` of what is output next or left out.
    fn gap(&self, head: &Head, offset: usize, frames: u64, cause: Cause) -> TimeGap {
        let frame_length = self.layout().map_or(0, |layout| layout.frame_length);
        let left_out = self.unselected.saturating_mul(frame_length);
        TimeGap {
            key: head.key(),
            start: head.time(),
            frames,
            first_byte: Some(self.counts.bytes + offset.saturating_sub(left_out) as u64),
            bytes: None,
            cause,
        }
    }

    /// Takes a whole frame whose header is unusable: damaged, or marked invalid with a wrong time.
    fn take_odd(&mut self, span: &mut Span<'_>, layout: Layout) {
        let place = span.place();
        let bytes = &span.view().bytes[place..];
        let head = layout.read(bytes, self.settings.latest);
        let voted = layout.voted_time(bytes, self.settings.latest);
        self.look_ahead(span, layout, 1, self.cadence.reach());
        let is_astray = head.as_ref().is_some_and(|it| self.cadence.is_astray(it));
        let belongs_here = self.cadence.pass(self.place, &self.ahead);
        let state = match head {
            Some(_) => FrameState::SourceInvalid,
            None => FrameState::Odd,
        };
        let is_shown = voted.is_some() && belongs_here.as_ref().map(Head::time) == voted;
        let is_next = head.is_none() && (is_shown || self.odd_run < FLYWHEEL);
        let head = if is_astray || is_next {
            belongs_here
        } else {
            head
        };
        if let Some(head) = head.as_ref().filter(|_| state != FrameState::Odd) {
            self.note_invalid(head, place - span.from);
        }
        if is_shown {
            (self.odd_run, self.search_at) = (0, ODD_RUN);
        } else {
            self.odd_run += u32::from(state == FrameState::Odd);
        }
        let begin = place - span.from;
        self.add(begin..begin + layout.frame_length, head.as_ref(), state);
        span.at += layout.frame_length as u64;
    }

    /// Adds the next frame of the output, with its header if known, if it is selected.
    #[inline]
    fn add(&mut self, bytes: Range<usize>, head: Option<&Head>, state: FrameState) {
        self.place += 1;
        if !self.settings.selected.is_all() && !self.select(head.map(Head::key), state) {
            self.unselected += 1;
            return;
        }
        self.frames.push(Frame {
            bytes,
            key: head.map(Head::key),
            time: head.map(Head::time),
            state,
        });
    }
}
