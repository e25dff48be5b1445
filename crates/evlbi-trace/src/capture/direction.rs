//! One direction of a connection: its data as it passes, and the acknowledgements that come back.

use std::collections::VecDeque;

use evlbi_wire::packet::Segment;
use serde::{Deserialize, Serialize};

use super::ranges::Ranges;
use super::rounds::{Idle, LimitedBy, Rounds};
use super::time_series::{Stretch, TimeSeries};
use super::{Event, Extent, bits_per_second};
use evlbi_core::account::{Distribution, Summary};

/// Sequence numbers are counted on from here, so that there is room below.
const ORIGIN: u64 = 1 << 32;
/// Segments under way whose times are remembered.
const MAX_SENT: usize = 1 << 14;
/// A sender that hears nothing waits no less before it sends again, in nanoseconds (Linux; RFC 6298 asks for a second).
const MIN_TIMEOUT: u64 = 200_000_000;
/// What fills a gap this soon after it came up was overtaken, where nothing better tells and no round trip is known.
const OVERTAKEN: u64 = 3_000_000;
/// Identifications that fall so much more seldom than they rise are counted on.
const RISING: u64 = 10;
/// Time stamps of acknowledgements whose echo is waited for.
const MAX_STAMPS: usize = 1024;
/// Bytes that time stamps take of each segment.
const STAMPS: u32 = 12;

/// What was seen of one direction of a connection. Times in seconds are from the first packet of the capture; times of
/// distributions are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionReport {
    /// Packets with data as they were captured: with segmentation offload each may be many segments.
    pub frames: u64,
    /// Longest payload of one.
    pub longest: u32,
    /// Bytes of payload, those sent again included.
    pub bytes: u64,
    /// Bytes that the receiver acknowledged.
    pub acknowledged: u64,
    /// From the first data to the last acknowledgement of some, in seconds.
    pub seconds: f64,
    /// Acknowledged bits per second over that time.
    pub rate: f64,
    /// Payload of a full segment, as the two ends agreed when they began.
    pub segment: Option<u32>,
    /// Segments: payload of packets by that, rounded up; packets where it is not known.
    pub segments: u64,
    /// What was sent again.
    pub sent_again: SentAgain,
    /// Packets with data that others had overtaken before they came here.
    pub reordered: u64,
    /// How far the numbers had gone by then, in bytes.
    pub reordering: Option<Summary>,
    /// Data that others overtook behind this place: selectively acknowledged before it, and not sent again.
    pub reordered_beyond: u64,
    /// Packets that came twice, as copies.
    pub duplicates: u64,
    /// Gaps in the numbers.
    pub gaps: u64,
    /// Bytes that were acknowledged and never seen: the capture is not complete.
    pub missed: u64,
    /// Acknowledgements of data that had not been seen.
    pub acknowledged_unseen: u64,
    /// Acknowledgements that repeat the one before.
    pub duplicate_acknowledgements: u64,
    /// Selective acknowledgements of what the receiver had got before (RFC 2883).
    pub received_twice: u64,
    /// Data that the receiver said it takes beyond what it acknowledged; none where the scale of its windows is not known.
    pub window: Option<Extent>,
    /// Shift of the receiver's windows.
    pub scale: Option<u8>,
    /// Whether the receiver acknowledges selectively.
    pub selective: Option<bool>,
    /// How often the window was zero, and how long, in seconds.
    pub zero_windows: u64,
    /// Time with a window of zero.
    pub zero_seconds: f64,
    /// Packets that filled the window to the byte.
    pub window_full: u64,
    /// Packets that say nothing but a new window.
    pub window_updates: u64,
    /// Packets that only see whether the other end is there.
    pub keep_alives: u64,
    /// From here to the receiver and back: data to its acknowledgement, of what was sent once.
    pub round_trip: Option<Summary>,
    /// From here to the sender and back, in seconds: the shortest from an acknowledgement to what answers it.
    pub behind: Option<f64>,
    /// Data under way, at the sender.
    pub flight: Option<Extent>,
    /// Times in which all was acknowledged and the sender sent nothing for longer than a round trip.
    pub idle: Idle,
    /// What held the sender back, in parts of the time from its first data to the end.
    pub held_back: LimitedBy,
    /// Length of an interval in seconds.
    pub every: f64,
    /// Acknowledged bits per second while the path was full.
    pub path_rate: Option<f64>,
    /// The course, interval by interval from the connection's first packet on.
    pub intervals: Vec<Interval>,
}

/// Segments that were sent again, by why that was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentAgain {
    /// All.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets as they were captured.
    pub frames: u64,
    /// Segments because acknowledgements told of a gap (RFC 5681, RFC 6675, RFC 8985).
    pub fast: u64,
    /// After silence, and what such a timeout took for lost with it (RFC 6298).
    pub timeout: u64,
    /// The last segment once more, since nothing said that it had come (RFC 8985, section 7).
    pub probe: u64,
    /// What had been acknowledged before, as seen from here.
    pub unneeded: u64,
    /// Of all, those that had not been seen here before: what was lost lies between the sender and here.
    pub lost_before: u64,
    /// Silences that ended so.
    pub timeouts: u64,
}

/// A stretch of time of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Bytes that were acknowledged in it.
    pub acknowledged: u64,
    /// Segments sent again.
    pub sent_again: u64,
    /// Most data under way, at the sender.
    pub flight: u64,
    /// Smallest window that the receiver told.
    pub window: Option<u64>,
    /// Shortest round trip from here in nanoseconds.
    pub round_trip: Option<u64>,
}

/// Data under way.
#[derive(Clone, Copy, Debug)]
struct Sent {
    end: u64,
    at: u64,
}

/// The packet whose data reached furthest.
#[derive(Clone, Copy, Debug, Default)]
struct Furthest {
    identification: Option<u16>,
    stamp: Option<u32>,
    at: u64,
    /// How often new data had a higher identification than what came before, and how often not.
    rises: u64,
    falls: u64,
}

/// What is known of one direction so far.
#[derive(Debug, Default)]
pub struct DirectionState {
    way: DirectionReport,
    /// From the connection's first packet on.
    course: TimeSeries<Interval>,
    /// Number of the byte behind the last one seen, and of the first that is not acknowledged.
    pub next: Option<u64>,
    acknowledged: u64,
    furthest: Furthest,
    first_data: Option<u64>,
    /// When some of it was acknowledged last.
    last_data: u64,
    last_progress: u64,
    last_sent: u64,
    holes: Ranges,
    again: Ranges,
    /// Was overtaken before here.
    overtaken: Ranges,
    selected: Ranges,
    selected_bytes: u64,
    sent: VecDeque<Sent>,
    /// What was sent before a timeout and is sent again after it.
    after_timeout: u64,
    repeats: u32,
    round_trips: Distribution,
    /// Smoothed round trip from here in nanoseconds (RFC 6298, section 2).
    smoothed: Option<f64>,
    extents: Distribution,
    /// Longest segment that each end told; whether both give time stamps.
    limits: [Option<u16>; 2],
    has_stamps: [bool; 2],
    window: Option<u16>,
    /// The same in bytes, where its scale is known.
    room: Option<u64>,
    windows: Option<(Extent, u64)>,
    zero_since: Option<u64>,
    was_keep_alive: bool,
    /// Numbers of SYN and FIN, which are no bytes.
    signs: [Option<u64>; 2],
    stamps: VecDeque<(u32, u64)>,
    pub rounds: Rounds,
    /// What packets were, to be taken.
    pub events: Vec<Event>,
}

impl DirectionState {
    pub fn new(begun: u64, every: u64) -> DirectionState {
        DirectionState {
            course: TimeSeries::new(begun, every),
            ..DirectionState::default()
        }
    }

    /// The sender, or else the receiver, begins the connection with these options.
    pub fn begin(&mut self, is_sender: bool, segment: &Segment) {
        let options = &segment.options;
        let end = usize::from(!is_sender);
        self.limits[end] = options.segment.or(Some(536));
        self.has_stamps[end] = options.stamps.is_some();
        if !is_sender {
            self.way.selective = Some(options.selective);
        }
        let both = self.limits[0].min(self.limits[1]);
        let taken = STAMPS * u32::from(self.has_stamps == [true; 2]);
        self.way.segment = both.map(|limit| u32::from(limit).saturating_sub(taken).max(1));
    }

    /// How far the receiver shifts its windows.
    pub fn scale(&mut self, shift: u8) {
        // RFC 7323, section 2.3.
        self.way.scale = Some(shift.min(14));
    }

    /// The number that comes next: at first this one.
    fn next_or(&mut self, number: u32) -> u64 {
        *self.next.get_or_insert_with(|| {
            self.acknowledged = ORIGIN + u64::from(number);
            self.acknowledged
        })
    }

    fn absolute(near: u64, sequence: u32) -> u64 {
        let apart = sequence.wrapping_sub(near as u32).cast_signed();
        near.saturating_add_signed(apart.into())
    }

    /// A packet of the sender.
    pub fn sends(&mut self, at: u64, segment: &Segment, id: Option<u16>) {
        self.was_keep_alive = false;
        if let Some((_, echo)) = segment.options.stamps {
            self.answers(at, echo);
        }
        let is_plain = !(segment.begins || segment.ends || segment.resets);
        let length =
            u64::from(segment.length) + u64::from(segment.begins) + u64::from(segment.ends);
        let is_first = self.next.is_none();
        let next = self.next_or(segment.sequence);
        let begin = DirectionState::absolute(next, segment.sequence);
        let end = begin + length;
        let [first, last] = self.signs;
        self.signs = [
            segment.begins.then_some(begin).or(first),
            segment.ends.then(|| end - 1).or(last),
        ];
        if is_plain && segment.length <= 1 && begin + 1 == next {
            self.way.keep_alives += 1;
            self.was_keep_alive = true;
            return self.events.push(Event::KeepAlive);
        }
        if segment.resets && !is_first {
            return;
        }
        if begin > next {
            self.way.gaps += 1;
            self.events.push(Event::Gap);
        }
        if length == 0 {
            self.holes.insert(next, begin);
            self.next = Some(next.max(begin));
        } else if begin >= next {
            self.advance(at, begin, end, segment, id);
        } else {
            self.repeat(at, begin, end, segment, id);
        }
    }

    /// Data that nobody has seen before, at the end.
    fn advance(&mut self, at: u64, begin: u64, end: u64, segment: &Segment, id: Option<u16>) {
        self.holes.insert(self.next.unwrap_or(begin), begin);
        self.next = Some(end);
        let furthest = &mut self.furthest;
        match id.zip(furthest.identification) {
            Some((id, last)) if id.wrapping_sub(last).cast_signed() > 0 => furthest.rises += 1,
            Some(_) => furthest.falls += 1,
            None => {}
        }
        furthest.identification = id;
        furthest.stamp = segment.options.stamps.map(|(value, _)| value);
        furthest.at = at;
        if self.sent.len() == MAX_SENT {
            // Every second of them tells as much.
            let mut is_kept = false;
            self.sent.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
        }
        self.sent.push_back(Sent { end, at });
        self.count(segment);
        if segment.length > 0 {
            self.first_data.get_or_insert(at);
            if self.edge() == Some(end) && !segment.ends && !segment.begins {
                self.way.window_full += 1;
                self.events.push(Event::WindowFull);
            }
            let echo = segment.options.stamps.map(|(_, echo)| echo);
            let full = self.way.segment.unwrap_or(segment.length);
            let data_end = end - u64::from(segment.ends);
            let lengths = [segment.length, full];
            let flight = self.rounds.sends(at, data_end, echo, lengths);
            let interval = self.course.at(at);
            interval.flight = interval.flight.max(flight);
        } else if segment.begins {
            self.rounds.begins_at(end);
        }
        self.last_sent = at;
    }

    /// Data of which some or all comes before what has been seen.
    fn repeat(&mut self, at: u64, begin: u64, end: u64, segment: &Segment, id: Option<u16>) {
        let next = self.next.unwrap_or(end);
        let filled = self.holes.remove(begin, end);
        let stamp = segment.options.stamps.map(|(value, _)| value);
        let is_older = self.is_older(at, id, stamp, filled > 0);
        if is_older {
            self.count(segment);
            if filled > 0 {
                self.way.reordered += 1;
                self.overtaken.insert(begin.max(self.acknowledged), end);
                self.extents.add(next.saturating_sub(begin).cast_signed());
                self.events.push(Event::Reordered);
            } else {
                self.way.duplicates += 1;
                self.events.push(Event::Duplicate);
            }
        } else {
            self.send_again(at, [begin, end], filled > 0, segment);
            self.furthest.identification = id.or(self.furthest.identification);
            self.furthest.stamp = stamp.or(self.furthest.stamp);
        }
        self.next = Some(next.max(end));
    }

    /// Whether a packet had left the sender before the one whose data reached furthest: it was overtaken, or is a copy.
    fn is_older(&self, at: u64, id: Option<u16>, stamp: Option<u32>, fills: bool) -> bool {
        // Most senders count their packets, others give them any number; what is sent again is a packet of its own.
        let Furthest { rises, falls, .. } = self.furthest;
        if let (Some(id), Some(last)) = (id, self.furthest.identification)
            && falls * RISING <= rises
        {
            return id.wrapping_sub(last).cast_signed() <= 0;
        }
        if let (Some(stamp), Some(last)) = (stamp, self.furthest.stamp)
            && stamp != last
        {
            return stamp.wrapping_sub(last).cast_signed() < 0;
        }
        // Too soon for anybody to have asked for it.
        let soon = match self.smoothed {
            Some(_) => self.whole_trip() / 2,
            None => OVERTAKEN,
        };
        fills && at.saturating_sub(self.furthest.at) < soon
    }

    /// A round trip as a whole in nanoseconds; 0 while nothing is known of it.
    fn whole_trip(&self) -> u64 {
        let ahead = self.smoothed.map_or(0, |mean| mean as u64);
        ahead.saturating_add(self.rounds.is_behind().unwrap_or(0))
    }

    fn send_again(&mut self, at: u64, [begin, end]: [u64; 2], was_unseen: bool, segment: &Segment) {
        let segments = self.count(segment);
        let next = self.next.unwrap_or(end);
        let trip = self.whole_trip();
        let silence = at.saturating_sub(self.last_sent.max(self.last_progress));
        let is_told = !self.selected.is_empty() || self.repeats >= 3;
        let again = &mut self.way.sent_again;
        again.segments += segments;
        again.frames += 1;
        again.bytes += u64::from(segment.length);
        again.lost_before += if was_unseen { segments } else { 0 };
        let is_long = silence >= MIN_TIMEOUT.max(trip);
        let (counter, event) = if end <= self.acknowledged {
            (&mut again.unneeded, Event::Unneeded)
        } else if end >= next
            && !is_told
            && (is_long && begin > self.acknowledged || !is_long && silence * 10 >= 18 * trip)
        {
            (&mut again.probe, Event::TailProbe)
        } else if is_long {
            again.timeouts += 1;
            self.after_timeout = next;
            (&mut again.timeout, Event::Timeout)
        } else if begin < self.after_timeout {
            (&mut again.timeout, Event::Timeout)
        } else {
            (&mut again.fast, Event::Fast)
        };
        *counter += segments;
        self.events.push(event);
        self.again.insert(begin.max(self.acknowledged), end);
        if event != Event::Unneeded && segment.length > 0 {
            let echo = segment.options.stamps.map(|(_, echo)| echo);
            self.rounds.sends_again(at, echo);
        }
        self.course.at(at).sent_again += segments;
        self.last_sent = at;
    }

    /// Counts a packet with data: its segments.
    fn count(&mut self, segment: &Segment) -> u64 {
        let way = &mut self.way;
        if segment.length == 0 {
            return 1;
        }
        way.frames += 1;
        way.bytes += u64::from(segment.length);
        way.longest = way.longest.max(segment.length);
        let full = way.segment.unwrap_or(segment.length).max(1);
        let segments = u64::from(segment.length.div_ceil(full));
        way.segments += segments;
        segments
    }

    /// Where the receiver's window ends.
    fn edge(&self) -> Option<u64> {
        Some(self.acknowledged.saturating_add(self.room?))
    }

    /// An answer to an acknowledgement with this time stamp, of which the first tells how far the sender is.
    fn answers(&mut self, at: u64, echo: u32) {
        let is_told = |stamp: u32| echo.wrapping_sub(stamp).cast_signed() >= 0;
        while let Some((stamp, since)) = self.stamps.pop_front_if(|(stamp, _)| is_told(*stamp)) {
            if stamp == echo {
                return self.rounds.behind(at.saturating_sub(since));
            }
        }
    }

    /// A packet of the receiver. `is_bare`: nothing but an acknowledgement, and the one that is due.
    pub fn hears(&mut self, at: u64, segment: &Segment, is_bare: bool) {
        if let Some((value, _)) = segment.options.stamps
            && self.stamps.back().is_none_or(|(last, _)| *last != value)
        {
            if self.stamps.len() == MAX_STAMPS {
                self.stamps.pop_front();
            }
            self.stamps.push_back((value, at));
        }
        let is_plain = !(segment.begins || segment.ends || segment.resets);
        let Some(number) = segment.acknowledgment.filter(|_| !segment.resets) else {
            return;
        };
        let next = self.next_or(number);
        let number = DirectionState::absolute(next, number);
        if number > next {
            self.way.acknowledged_unseen += 1;
            self.events.push(Event::AcknowledgedUnseen);
            self.holes.insert(next, number);
            self.next = Some(number);
        }
        self.room = match (segment.window, self.way.scale) {
            (0, _) => Some(0),
            // A SYN's is not shifted (RFC 7323, section 2.2).
            (window, _) if segment.begins => Some(window.into()),
            (window, scale) => scale.map(|scale| u64::from(window) << scale),
        };
        let last = self.window.replace(segment.window);
        if segment.window == 0 && is_plain {
            if self.zero_since.is_none() {
                self.way.zero_windows += 1;
                self.zero_since = Some(at);
            }
            self.events.push(Event::ZeroWindow);
        } else if let Some(since) = self.zero_since.take() {
            self.way.zero_seconds += at.saturating_sub(since) as f64 * 1e-9;
        }
        if is_bare && number == self.acknowledged && segment.window > 0 && last.is_some() {
            if last != Some(segment.window) {
                self.way.window_updates += 1;
                self.events.push(Event::WindowUpdate);
            } else if !self.was_keep_alive {
                self.way.duplicate_acknowledgements += 1;
                self.repeats += 1;
                self.events.push(Event::DuplicateAcknowledgement);
            }
        }
        if number > self.acknowledged {
            self.progress(at, number);
        }
        self.select(at, number, segment);
        if !segment.begins
            && self.way.scale.is_some()
            && let Some(window) = self.room
        {
            let (extent, count) = self.windows.get_or_insert((Extent::of(window), 0));
            extent.add(window, *count);
            *count += 1;
            let interval = self.course.at(at);
            interval.window = Some(interval.window.map_or(window, |least| least.min(window)));
        }
        let stamp = segment.options.stamps.map(|(value, _)| value);
        let known = [self.acknowledged, self.selected_bytes];
        self.rounds.hears(at, stamp, known, self.edge());
    }

    fn progress(&mut self, at: u64, number: u64) {
        let before = std::mem::replace(&mut self.acknowledged, number);
        self.repeats = 0;
        self.last_progress = at;
        // What lay before the first that was told selectively came without being sent again.
        if let Some((selected, _)) = self.selected.first()
            && number >= selected
            && self.again.overlap(before, selected) == 0
            && self.overtaken.overlap(before, selected) == 0
        {
            self.way.reordered_beyond += 1;
        }
        let mut newest = None;
        while let Some(sent) = self.sent.pop_front_if(|sent| sent.end <= number) {
            newest = Some(sent);
        }
        // Karn: an answer to what was sent twice tells no time; nor does one that waited for what was missing.
        if let Some(sent) = newest
            && sent.end == number
            && self.again.is_empty()
            && self.selected.is_empty()
        {
            self.took(at.saturating_sub(sent.at), at);
        }
        self.way.missed += self.holes.remove(0, number);
        self.again.remove(0, number);
        self.overtaken.remove(0, number);
        self.selected_bytes -= self.selected.remove(0, number);
        let signs = self.signs.iter().flatten();
        let signs = signs.filter(|sign| (before..number).contains(*sign));
        let bytes = (number - before).saturating_sub(signs.count() as u64);
        if bytes > 0 {
            self.last_data = at;
        }
        self.course.at(at).acknowledged += bytes;
    }

    fn took(&mut self, time: u64, at: u64) {
        self.round_trips.add(time.cast_signed());
        let now = time as f64;
        self.smoothed = Some(self.smoothed.map_or(now, |mean| 0.875 * mean + 0.125 * now));
        self.rounds.took(time);
        let interval = self.course.at(at);
        interval.round_trip = Some(interval.round_trip.map_or(time, |least| least.min(time)));
    }

    fn select(&mut self, at: u64, number: u64, segment: &Segment) {
        let next = self.next.unwrap_or(number);
        let blocks = segment.options.blocks.iter().flatten();
        let blocks =
            blocks.map(|(from, to)| [*from, *to].map(|end| DirectionState::absolute(next, end)));
        for (place, [from, to]) in blocks.enumerate() {
            // Told first, and known before: it came twice (RFC 2883, section 4).
            let is_known =
                to <= number || self.selected.overlap(from, to) == to.saturating_sub(from);
            let within = segment.options.blocks[1]
                .map(|block| [block.0, block.1].map(|end| DirectionState::absolute(next, end)));
            let is_within = within.is_some_and(|[begin, end]| begin <= from && to <= end);
            if place == 0 && from < to && (to <= number || is_known && is_within) {
                self.way.received_twice += 1;
                self.events.push(Event::ReceivedTwice);
            } else if from >= number && to <= next {
                let new = self.selected.insert(from, to);
                self.selected_bytes += new;
                if new > 0 {
                    self.last_progress = at;
                }
            }
        }
    }

    /// The capture has ended.
    pub fn finish(mut self, last: u64) -> DirectionReport {
        if let Some(since) = self.zero_since {
            self.way.zero_seconds += last.saturating_sub(since) as f64 * 1e-9;
        }
        let rounds = self.rounds.finish(last);
        let first = self.first_data.unwrap_or(self.last_data);
        let seconds = self.last_data.saturating_sub(first) as f64 * 1e-9;
        let (every, intervals) = self.course.finish();
        let acknowledged = intervals.iter().map(|one| one.acknowledged).sum();
        DirectionReport {
            acknowledged,
            seconds,
            rate: bits_per_second(acknowledged, seconds),
            reordering: self.extents.summary(),
            window: self.windows.map(|(extent, _)| extent),
            round_trip: self.round_trips.summary(),
            flight: rounds.flight,
            behind: rounds.behind,
            path_rate: rounds.path_rate,
            held_back: rounds.held_back,
            idle: rounds.idle,
            every,
            intervals,
            ..self.way
        }
    }
}

impl Stretch for Interval {
    fn join(self, next: Interval) -> Interval {
        Interval {
            acknowledged: self.acknowledged + next.acknowledged,
            sent_again: self.sent_again + next.sent_again,
            flight: self.flight.max(next.flight),
            window: self.window.into_iter().chain(next.window).min(),
            round_trip: self.round_trip.into_iter().chain(next.round_trip).min(),
        }
    }
}
