//! Frames that are turned together: those of one thread that is split into channels, or of all threads that are joined to one.
//!
//! Put here how frames become frames of other channels, with their times and their losses, for files and for live streams. The turn of
//! the samples is [`evlbi_core::turn`].
//!
//! A *slot* contains the frames of the same time from all inputs of a lane; several consecutive frames of an input if one frame is not
//! divided evenly into words of its channels.

mod converter;
mod error;
mod frame;
mod missing;
mod output;

use std::collections::BTreeMap;

use evlbi_core::turn::{MAX_CHANNELS, Turn};
use evlbi_wire::fill;
use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::validity::{Cause, Gaps};
use evlbi_wire::vdif::{Header, MAX_FRAME_LEN, Shape, StreamKey};

use crate::selection::ChannelId;

pub use self::converter::Converter;
pub use self::error::LaneError;
pub use self::frame::{Gap, Made, Piece};
pub(crate) use self::missing::List;
pub use self::output::{GapsFile, MadeFile, Output};

use self::error::{MAX_RATE, MAX_THREAD};
use self::frame::{extended, lacks, mask};
use self::missing::{Instead, Missing, add_fill, bytes_of, continues, join};

/// Number of complete or later slots for which an incomplete one is kept: frames of a recording may be out of order by this much.
const MAX_EARLY: usize = 256;

/// Treatment of the samples of a slot.
#[derive(Clone, Debug)]
enum Work {
    /// Nothing: the frame is copied.
    Copy,
    /// They are split into channels, of which these are wanted; and those are joined again.
    Split(Turn, Vec<u16>, Option<Turn>),
    /// They are joined.
    Join(Turn),
}

/// Frames of an output.
#[derive(Clone, Copy, Debug)]
struct Target {
    /// Number and name of the channel, if channels are separated.
    channel: Option<(u16, ChannelId)>,
    key: StreamKey,
    /// First sample in the slot.
    from: u64,
    /// Number of the frame in the slot.
    part: u32,
}

/// Input of a lane.
#[derive(Clone, Debug)]
struct Input {
    key: StreamKey,
    list: List,
    /// Header of the last valid frame.
    like: Option<Header>,
}

/// Frames that are turned together.
#[derive(Debug)]
pub struct Lane {
    work: Work,
    inputs: Vec<Input>,
    /// Shape of the input and of the output.
    shape: Shape,
    out_shape: Shape,
    /// Frames of each input per slot, and frames of each output.
    parts: u32,
    out_parts: u32,
    /// Samples per frame, and bits of each, of the input and of the output. For copies, a sample is a byte.
    samples: u64,
    width: u64,
    out_samples: u64,
    out_width: u64,
    targets: Vec<Target>,
    /// Frames per second of each input; `None` if unknown.
    rate: Option<FrameRate>,
    slots: BTreeMap<FrameTime, Slot>,
    /// Slots to use again.
    free: Vec<Slot>,
    /// Number of the first frame of an input after the last slot.
    reached: i64,
    /// Time of the last slot.
    last: Option<FrameTime>,
    turned: Vec<u8>,
    chosen: Vec<u8>,
    joined: Vec<u8>,
    found: Vec<Vec<Missing>>,
    missing: Vec<Missing>,
    gaps: Vec<Gap>,
}

/// Frames of the same time.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// Payloads, input by input and part by part.
    bytes: Vec<u8>,
    /// Header of each, and the cause for which it is invalid.
    heads: Vec<Option<(Header, Option<Cause>)>>,
    /// Missing samples of each valid frame.
    missing: Vec<Vec<Missing>>,
    count: usize,
}

impl Lane {
    /// Makes a lane that copies the frames of a thread.
    pub fn copy(key: StreamKey, shape: Shape) -> Lane {
        let target = Target {
            channel: None,
            key,
            from: 0,
            part: 0,
        };
        let samples = shape.payload_length() as u64;
        Lane::new(
            Work::Copy,
            vec![key],
            [shape, shape],
            [8, 8],
            vec![target],
            samples,
        )
    }

    /// Makes a lane that splits a thread: into its `channels`, one after another if `apart`, else together. `None` for all channels.
    /// `names` has the names of all, or none if they are numbers.
    pub fn split(
        key: StreamKey,
        shape: Shape,
        names: &[ChannelId],
        channels: Option<&[ChannelId]>,
        apart: bool,
    ) -> Result<Lane, LaneError> {
        let count = shape.channels();
        let wanted = wanted(names, channels, count)?;
        let turn = turn(shape, 1, count)?;
        let width = shape.bits_per_complete_sample();
        let channel_width = width / count;
        let together = wanted.len() as u64;
        let again = match apart {
            true => None,
            false => Some(
                Turn::new(channel_width as usize, wanted.len())
                    .ok_or(LaneError::Count(wanted.len()))?,
            ),
        };
        let payload = shape.payload_length();
        let parts = turn.unit() / gcd(payload, turn.unit());
        let out_channels = if apart { 1 } else { together };
        let out_payload = payload * parts / count as usize * out_channels as usize;
        let out_shape = Shape {
            frame_length: shape.header_length() + out_payload,
            log2_channels: out_channels.trailing_zeros() as u8,
            ..shape
        };
        if out_shape.frame_length > MAX_FRAME_LEN {
            return Err(LaneError::LongFrame(out_shape.frame_length));
        }
        let mut targets = vec![];
        for channel in wanted.iter().take(if apart { MAX_CHANNELS } else { 1 }) {
            let name = names.get(usize::from(*channel)).copied();
            let name = name.unwrap_or(ChannelId::Number(usize::from(*channel)));
            let number = u64::from(key.thread) * count + u64::from(*channel);
            if apart && number > MAX_THREAD {
                return Err(LaneError::Thread {
                    thread: key.thread,
                    channel: *channel,
                    number,
                });
            }
            let thread = if apart { number as u16 } else { key.thread };
            targets.push(Target {
                channel: apart.then_some((*channel, name)),
                key: StreamKey { thread, ..key },
                from: 0,
                part: 0,
            });
        }
        let work = Work::Split(turn, wanted, again);
        let widths = [width, channel_width * out_channels];
        let samples = payload as u64 * 8 / width;
        let mut lane = Lane::new(
            work,
            vec![key],
            [shape, out_shape],
            widths,
            targets,
            samples,
        );
        lane.parts = parts as u32;
        lane.out_samples = samples * parts as u64;
        Ok(lane)
    }

    /// Makes a lane that joins threads of one shape; the channels of the first are the first of the output. The output has frames of
    /// `length` bytes, or one per frame of the input.
    pub fn join(
        keys: &[StreamKey],
        shape: Shape,
        length: Option<usize>,
    ) -> Result<Lane, LaneError> {
        let count = keys.len() as u64;
        let channels = count * shape.channels();
        if !count.is_power_of_two() {
            return Err(LaneError::Threads(keys.len()));
        }
        let turn = turn(shape, count, count)?;
        let width = shape.bits_per_complete_sample();
        let payload = shape.payload_length() * keys.len();
        let header = shape.header_length();
        let asked = length.unwrap_or(header + payload);
        let out_payload = asked.saturating_sub(header);
        let fits = out_payload > 0
            && out_payload.is_multiple_of(8)
            && payload.is_multiple_of(out_payload)
            && (out_payload as u64 * 8).is_multiple_of(width * count);
        if !fits {
            return Err(LaneError::FrameLength { asked, payload });
        }
        if asked > MAX_FRAME_LEN {
            return Err(LaneError::LongFrame(asked));
        }
        let out_parts = (payload / out_payload) as u32;
        let samples = shape.payload_length() as u64 * 8 / width;
        let out_samples = samples / u64::from(out_parts);
        let first = keys.first().copied().unwrap_or_default();
        let thread = first.thread / count as u16;
        let targets = (0..out_parts).map(|part| Target {
            channel: None,
            key: StreamKey { thread, ..first },
            from: out_samples * u64::from(part),
            part,
        });
        let out_shape = Shape {
            frame_length: asked,
            log2_channels: channels.trailing_zeros() as u8,
            ..shape
        };
        let widths = [width, width * count];
        let targets = targets.collect();
        let work = Work::Join(turn);
        let mut lane = Lane::new(
            work,
            keys.to_vec(),
            [shape, out_shape],
            widths,
            targets,
            samples,
        );
        (lane.out_parts, lane.out_samples) = (out_parts, out_samples);
        Ok(lane)
    }

    fn new(
        work: Work,
        keys: Vec<StreamKey>,
        [shape, out_shape]: [Shape; 2],
        [width, out_width]: [u64; 2],
        targets: Vec<Target>,
        samples: u64,
    ) -> Lane {
        let input = |key| Input {
            key,
            list: List::default(),
            like: None,
        };
        Lane {
            work,
            found: vec![Vec::new(); keys.len()],
            inputs: keys.into_iter().map(input).collect(),
            shape,
            out_shape,
            parts: 1,
            out_parts: 1,
            samples,
            width,
            out_samples: samples,
            out_width,
            targets,
            rate: None,
            slots: BTreeMap::new(),
            free: Vec::new(),
            reached: i64::MIN,
            last: None,
            turned: Vec::new(),
            chosen: Vec::new(),
            joined: Vec::new(),
            missing: Vec::new(),
            gaps: Vec::new(),
        }
    }

    /// Sets the frames per second of each input.
    ///
    /// # Errors
    /// Returns an error if the output would not have a whole number of frames per second.
    pub fn set_rate(&mut self, rate: FrameRate) -> Result<(), LaneError> {
        self.out_rate(rate)?;
        self.rate = Some(rate);
        Ok(())
    }

    /// Sets the missing frames that are listed for an input. This needs the frame rate.
    pub fn set_gaps(&mut self, input: usize, gaps: &Gaps) {
        if let Some(rate) = self.rate {
            let input = &mut self.inputs[input];
            input.list = List::of(gaps, input.key, rate);
        }
    }

    /// Returns the frames per second of the output.
    pub fn out_rate(&self, rate: FrameRate) -> Result<FrameRate, LaneError> {
        let (parts, rate) = (self.parts, rate.get());
        if !rate.is_multiple_of(parts) {
            return Err(LaneError::Rate { parts, rate });
        }
        let out = u64::from(rate / parts) * u64::from(self.out_parts);
        let fits = u32::try_from(out)
            .ok()
            .filter(|out| u64::from(*out) <= MAX_RATE);
        fits.and_then(FrameRate::new)
            .ok_or(LaneError::FastFrames(out))
    }

    /// Returns the number of frames of each input that become one of the output.
    pub fn parts(&self) -> u32 {
        self.parts
    }

    /// Returns the shape of the frames of the input.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the shape of the frames of the output.
    pub fn out_shape(&self) -> Shape {
        self.out_shape
    }

    /// Returns the frames per second of the output; `None` if unknown.
    pub fn frame_rate(&self) -> Option<FrameRate> {
        self.out_rate(self.rate?).ok()
    }

    /// Returns the header of the last valid frame of an input.
    pub fn like(&self, input: usize) -> Option<&Header> {
        self.inputs[input].like.as_ref()
    }

    /// Takes a frame; returns whether it has a place. It has none if its shape differs, or its slot is over or has this frame already.
    pub fn take(&mut self, input: usize, piece: &Piece<'_>) -> bool {
        let time = piece.header.time();
        let at = FrameTime {
            frame: time.frame / self.parts,
            ..time
        };
        let parts = self.parts as usize;
        let frames = self.inputs.len() * parts;
        let is_over = frames > 1 && self.last.is_some_and(|last| at <= last);
        let length = self.shape.payload_length();
        if is_over || piece.header.shape() != self.shape || piece.payload.len() != length {
            return false;
        }
        let free = &mut self.free;
        let slot = self.slots.entry(at).or_insert_with(|| {
            let mut slot = free.pop().unwrap_or_default();
            slot.bytes.resize(frames * length, 0);
            slot.heads.clear();
            slot.heads.resize(frames, None);
            slot.missing.resize(frames, Vec::new());
            slot.count = 0;
            slot
        });
        let number = input * parts + (time.frame % self.parts) as usize;
        let source = &mut self.inputs[input];
        if piece.invalid.is_none() {
            source.like = Some(piece.header);
        }
        if slot.heads[number].is_some() {
            return false;
        }
        slot.heads[number] = Some((piece.header, piece.invalid));
        let missing = &mut slot.missing[number];
        missing.clear();
        if piece.invalid.is_none() {
            let frame = self.rate.map_or(0, |rate| time.index(rate));
            source.list.add_of(frame, piece, self.width, missing);
            if !matches!(self.work, Work::Copy) {
                add_fill(piece, self.width, missing);
            }
        }
        slot.bytes[number * length..][..length].copy_from_slice(piece.payload);
        slot.count += 1;
        true
    }

    /// Emits the slots for which nothing more is expected from a single input.
    pub fn advance(&mut self, to: &mut dyn FnMut(Made<'_>)) {
        while let Some((_, slot)) = self.slots.first_key_value()
            && (slot.count == slot.heads.len() || self.slots.len() > MAX_EARLY)
        {
            self.emit_first(to);
        }
    }

    /// Returns the time of the first slot.
    pub fn first(&self) -> Option<FrameTime> {
        self.slots.first_key_value().map(|(time, _)| *time)
    }

    /// Returns the last time at which a slot is complete, if all inputs have reached `limit`.
    pub fn complete_until(&self, limit: FrameTime) -> Option<FrameTime> {
        let slots = self.slots.range(..limit);
        slots.rev().nth(MAX_EARLY).map(|(time, _)| *time)
    }

    /// Emits all slots and the rest of the list.
    pub fn finish(&mut self, to: &mut dyn FnMut(Made<'_>)) {
        while self.emit_first(to) {}
        self.skip_to(i64::MAX, to);
    }

    /// Emits the first slot; returns whether there was one.
    pub fn emit_first(&mut self, to: &mut dyn FnMut(Made<'_>)) -> bool {
        let Some((time, mut slot)) = self.slots.pop_first() else {
            return false;
        };
        if let Some(rate) = self.rate {
            let parts = i64::from(self.parts);
            let first = time.second * i64::from(rate.get()) + i64::from(time.frame) * parts;
            self.skip_to(first, to);
            self.reached = self.reached.max(first + parts);
        }
        self.last = self.last.max(Some(time));
        self.find_missing(time, &slot, None);
        let is_masked = slot
            .heads
            .iter()
            .flatten()
            .any(|(header, _)| mask(header).is_some());
        self.turn(&mut slot);
        let mut turned = std::mem::take(&mut self.turned);
        let length = self.out_shape.payload_length();
        for number in 0..self.targets.len() {
            let target = self.targets[number];
            if is_masked && let Some((channel, _)) = target.channel {
                self.find_missing(time, &slot, Some(channel));
            }
            let payload = &mut turned[number * length..][..length];
            self.emit(time, &slot, target, payload, to);
        }
        self.turned = turned;
        self.free.push(slot);
        true
    }

    /// Lists the frames before frame `until` of the input of which the recordings have nothing, as far as they list them.
    fn skip_to(&mut self, until: i64, to: &mut dyn FnMut(Made<'_>)) {
        let Some(out_rate) = self.frame_rate() else {
            return;
        };
        let (parts, out_parts) = (i64::from(self.parts), i64::from(self.out_parts));
        loop {
            let left = self.reached..until;
            let firsts = self
                .inputs
                .iter()
                .filter_map(|input| input.list.first_in(left.clone()));
            let Some(next) = firsts.min_by_key(|listed| listed.frames.start) else {
                break;
            };
            let slots = next.frames.start.div_euclid(parts)
                ..next.frames.end.saturating_add(parts - 1).div_euclid(parts);
            self.reached = slots.end.saturating_mul(parts).max(next.frames.end);
            let gap = Gap {
                bytes: None,
                cause: next.cause,
                is_there: false,
            };
            // All frames of a slot go to one output after another, so that only one of them names the run.
            let targets = self.targets.iter().filter(|target| target.part == 0);
            for target in targets {
                to(Made {
                    from: self.inputs[0].key,
                    channel: target.channel.map(|(_, name)| name),
                    key: target.key,
                    time: FrameTime::from_index(slots.start.saturating_mul(out_parts), out_rate),
                    frames: (slots.end.abs_diff(slots.start)).saturating_mul(out_parts as u64),
                    frame_length: self.out_shape.frame_length,
                    frame_rate: Some(out_rate),
                    is_incomplete: false,
                    frame: None,
                    gaps: std::slice::from_ref(&gap),
                });
            }
        }
    }

    /// Finds out what is missing in a slot: of all channels, or of one.
    fn find_missing(&mut self, time: FrameTime, slot: &Slot, channel: Option<u16>) {
        for (number, head) in slot.heads.iter().enumerate() {
            let parts = self.parts as usize;
            let (input, part) = (number / parts, number % parts);
            let found = &mut self.found[input];
            if part == 0 {
                found.clear();
            }
            let list = &self.inputs[input].list;
            let frame = self.rate.map_or(0, |rate| {
                let number = i64::from(time.frame) * parts as i64 + part as i64;
                time.second.saturating_mul(i64::from(rate.get())) + number
            });
            let from = part as u64 * self.samples;
            let mut all = |cause: Cause, instead| {
                found.push(Missing {
                    samples: from..from + self.samples,
                    cause: list.cause_of(frame).unwrap_or(cause),
                    instead,
                });
            };
            match head {
                None => all(Cause::Lost, Instead::Nothing),
                Some((_, Some(cause))) => all(*cause, Instead::Fill),
                Some((header, None)) if lacks(header, channel) => all(Cause::Source, Instead::Fill),
                Some((_, None)) => {
                    let missing = slot.missing[number].iter();
                    found.extend(missing.map(|missing| missing.after(from)));
                }
            }
        }
        join(&self.found, &mut self.missing);
    }

    /// Turns the samples of a slot into those of all targets.
    fn turn(&mut self, slot: &mut Slot) {
        let length = self.out_shape.payload_length();
        self.turned.resize(slot.bytes.len(), 0);
        match &self.work {
            Work::Copy => std::mem::swap(&mut self.turned, &mut slot.bytes),
            Work::Join(turn) => turn.join(&slot.bytes, &mut self.turned),
            Work::Split(turn, wanted, again) => {
                turn.split(&slot.bytes, &mut self.turned);
                let channel = slot.bytes.len() / self.shape.channels() as usize;
                if !wanted.iter().copied().eq(0..self.shape.channels() as u16) {
                    self.chosen.clear();
                    for from in wanted {
                        let from = usize::from(*from) * channel;
                        self.chosen
                            .extend_from_slice(&self.turned[from..from + channel]);
                    }
                    std::mem::swap(&mut self.turned, &mut self.chosen);
                }
                if let Some(again) = again {
                    self.joined.resize(length, 0);
                    again.join(&self.turned[..length], &mut self.joined);
                    std::mem::swap(&mut self.turned, &mut self.joined);
                }
            }
        }
    }

    /// Emits a frame.
    fn emit(
        &mut self,
        time: FrameTime,
        slot: &Slot,
        target: Target,
        payload: &mut [u8],
        to: &mut dyn FnMut(Made<'_>),
    ) {
        let all = target.from..target.from + self.out_samples;
        let is_copy = matches!(self.work, Work::Copy);
        let (mut filled, mut absent) = (0, 0);
        let mut last: Option<Missing> = None;
        self.gaps.clear();
        for missing in &self.missing {
            let samples = missing.samples.start.max(all.start)..missing.samples.end.min(all.end);
            if samples.is_empty() {
                continue;
            }
            let count = samples.end - samples.start;
            absent += count * u64::from(missing.instead == Instead::Nothing);
            filled += count * u64::from(missing.instead != Instead::Data);
            let in_frame = samples.start - all.start..samples.end - all.start;
            let bytes = bytes_of(&in_frame, self.out_width);
            if missing.instead != Instead::Data && !is_copy {
                fill::make_from(&mut payload[bytes.clone()], bytes.start);
            }
            let missing = Missing {
                samples,
                ..missing.clone()
            };
            let is_next = last.as_ref().is_some_and(|last| continues(last, &missing));
            if let Some(Gap {
                bytes: Some(before),
                ..
            }) = self.gaps.last_mut()
                && is_next
            {
                before.end = bytes.end;
            } else {
                self.gaps.push(Gap {
                    bytes: Some(bytes),
                    cause: missing.cause,
                    is_there: missing.instead != Instead::Nothing,
                });
            }
            last = Some(missing);
        }
        if let [gap] = &mut self.gaps[..]
            && gap.bytes == Some(0..payload.len())
        {
            gap.bytes = None;
        }
        let frame = FrameTime {
            frame: time.frame * self.out_parts + target.part,
            ..time
        };
        let is_invalid = filled == self.out_samples;
        // A frame of the input stays one, whatever the list says. Of several that became one, only those that were in the input stay.
        let has_none = slot.count == 0 || self.parts.max(self.out_parts) > 1;
        let header = match absent == self.out_samples && has_none {
            true => None,
            false => self.header(slot, frame, target, is_invalid),
        };
        if header.is_some() && absent == self.out_samples {
            self.gaps.iter_mut().for_each(|gap| gap.is_there = true);
        }
        let heads = slot.heads.iter().flatten();
        let valid = heads.filter(|(_, invalid)| invalid.is_none()).count();
        to(Made {
            from: self.inputs[0].key,
            channel: target.channel.map(|(_, name)| name),
            key: target.key,
            time: frame,
            frames: 1,
            frame_length: self.out_shape.frame_length,
            frame_rate: self.frame_rate(),
            is_incomplete: valid > 0 && valid < slot.heads.len(),
            frame: header.map(|header| (header, &*payload)),
            gaps: &self.gaps,
        });
    }

    /// Returns the header of a frame: that of the first frame of the slot, changed.
    fn header(
        &self,
        slot: &Slot,
        time: FrameTime,
        target: Target,
        is_invalid: bool,
    ) -> Option<Header> {
        let mut heads = slot.heads.iter().enumerate();
        let (number, header) = heads.find_map(|(number, head)| Some((number, head.as_ref()?.0)))?;
        if matches!(self.work, Work::Copy) {
            return Some(header);
        }
        let later = i64::from(target.part) - (number % self.parts as usize) as i64;
        let mut header = match later {
            0 => header,
            _ => header.fill_after(time, later, self.frame_rate()).ok()?,
        };
        header.set_time(time).ok()?;
        header.set_shape(self.out_shape);
        header.set_key(target.key);
        header.set_invalid(is_invalid);
        if let Some(extended) = extended(&header, self.out_shape.frame_length) {
            header.set_extended(&extended).ok()?;
        }
        Some(header)
    }
}

/// Returns the numbers of the chosen channels of `count` with these names, in their order; `None` for all channels.
fn wanted(
    names: &[ChannelId],
    channels: Option<&[ChannelId]>,
    count: u64,
) -> Result<Vec<u16>, LaneError> {
    let Some(channels) = channels else {
        return Ok((0..count.min(1024) as u16).collect());
    };
    let number = |asked: &ChannelId| {
        let number = match asked {
            ChannelId::Number(number) if names.is_empty() => Some(*number),
            asked => names.iter().position(|name| name == asked),
        };
        let number = number.filter(|number| (*number as u64) < count);
        let names: Vec<String> = names.iter().map(ChannelId::to_string).collect();
        number
            .map(|number| number as u16)
            .ok_or_else(|| LaneError::NoChannel {
                asked: *asked,
                channels: match names.is_empty() {
                    true => format!("0 to {}", count - 1),
                    false => names.join(", "),
                },
            })
    };
    channels.iter().map(number).collect()
}

/// Returns the turn of `inputs` frames of a shape, whose samples count as `channels` channels together.
fn turn(shape: Shape, inputs: u64, channels: u64) -> Result<Turn, LaneError> {
    if !shape.bits.is_power_of_two() {
        return Err(LaneError::Bits(shape.bits));
    }
    let bits = shape.bits_per_complete_sample();
    let payload = shape.payload_length();
    if payload == 0 || !(payload as u64 * 8).is_multiple_of(bits) {
        return Err(LaneError::Samples { payload, bits });
    }
    let all = shape.channels() * inputs;
    let turn = Turn::new((bits * inputs / channels) as usize, channels as usize);
    turn.filter(|_| all <= MAX_CHANNELS as u64)
        .ok_or(LaneError::Channels(all))
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
