//! One direction of a connection: its data, and the acknowledgements in the other direction.

use std::collections::VecDeque;

use evlbi_wire::packet::Segment;
use serde::{Deserialize, Serialize};

use super::ranges::Ranges;
use super::rounds::{Idle, LimitedBy, Rounds};
use super::time_series::{Stretch, TimeSeries};
use super::{Event, Extent, bits_per_second};
use evlbi_core::account::{Distribution, Summary};

/// First extended sequence number, with room below for earlier ones.
const ORIGIN: u64 = 1 << 32;
/// Maximum number of segments in flight whose times are remembered.
const MAX_SENT: usize = 1 << 14;
/// Minimum retransmission timeout, in nanoseconds (Linux; RFC 6298 requires a second).
const MIN_TIMEOUT: u64 = 200_000_000;
/// Maximum age of a gap, in nanoseconds, at which a packet that fills it was reordered, if nothing better shows that and the
/// round-trip time is unknown.
const OVERTAKEN: u64 = 3_000_000;
/// Minimum ratio of rises to falls at which IP identifications are trusted to count packets.
const RISING: u64 = 10;
/// Maximum number of acknowledgement timestamps whose echo is awaited.
const MAX_STAMPS: usize = 1024;
/// Bytes of timestamps in each segment.
const STAMPS: u32 = 12;

/// Report on one direction of a connection. Times in seconds are relative to the first packet of the capture; times of
/// distributions are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DirectionReport {
    /// Packets with data as captured: with segmentation offload each may be many segments.
    pub frames: u64,
    /// Maximum payload of a packet, in bytes.
    pub longest: u32,
    /// Bytes of payload, retransmissions included.
    pub bytes: u64,
    /// Bytes acknowledged by the receiver.
    pub acknowledged: u64,
    /// Time from the first data to the last acknowledgement of data, in seconds.
    pub seconds: f64,
    /// Acknowledged bits per second over that time.
    pub rate: f64,
    /// Payload of a full segment, as negotiated in the handshake, in bytes.
    pub segment: Option<u32>,
    /// Segments: payload of packets divided by that, rounded up; packets if it is unknown.
    pub segments: u64,
    /// Retransmissions.
    pub sent_again: SentAgain,
    /// Packets with data that were overtaken before the capture point.
    pub reordered: u64,
    /// How far the sequence numbers had advanced by then, in bytes.
    pub reordering: Option<Summary>,
    /// Data overtaken after the capture point: selectively acknowledged too early, and not retransmitted.
    pub reordered_beyond: u64,
    /// Duplicate packets.
    pub duplicates: u64,
    /// Gaps in the sequence numbers.
    pub gaps: u64,
    /// Bytes that were acknowledged but not captured: the capture is incomplete.
    pub missed: u64,
    /// Acknowledgements of data that were not captured.
    pub acknowledged_unseen: u64,
    /// Duplicate acknowledgements.
    pub duplicate_acknowledgements: u64,
    /// Selective acknowledgements of data received before (RFC 2883).
    pub received_twice: u64,
    /// Receive window beyond the acknowledged data, in bytes; `None` if the window scale is unknown.
    pub window: Option<Extent>,
    /// Window scale of the receiver, in bits.
    pub scale: Option<u8>,
    /// Whether the receiver uses selective acknowledgements.
    pub selective: Option<bool>,
    /// Number of times that the window was zero.
    pub zero_windows: u64,
    /// Time with a window of zero, in seconds.
    pub zero_seconds: f64,
    /// Packets that filled the window to the byte.
    pub window_full: u64,
    /// Packets that only update the window.
    pub window_updates: u64,
    /// Keep-alive probes.
    pub keep_alives: u64,
    /// Round-trip time from the capture point to the receiver and back: from data to their acknowledgement, for data sent once.
    pub round_trip: Option<Summary>,
    /// Round-trip time from the capture point to the sender and back, in seconds: the minimum from an acknowledgement to the
    /// packet that answers it.
    pub behind: Option<f64>,
    /// Data in flight, as the sender sees it.
    pub flight: Option<Extent>,
    /// Times in which all data were acknowledged and the sender sent nothing for longer than a round trip.
    pub idle: Idle,
    /// Limits of the sender, as fractions of the time from its first data to the end.
    pub held_back: LimitedBy,
    /// Length of an interval, in seconds.
    pub every: f64,
    /// Acknowledged bits per second while the path was full.
    pub path_rate: Option<f64>,
    /// Time series, interval by interval, starting at the connection's first packet.
    pub intervals: Vec<Interval>,
}

/// Retransmitted segments by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SentAgain {
    /// All retransmitted segments.
    pub segments: u64,
    /// Bytes of those segments.
    pub bytes: u64,
    /// Packets as captured.
    pub frames: u64,
    /// Segments retransmitted because acknowledgements reported a gap (RFC 5681, RFC 6675, RFC 8985).
    pub fast: u64,
    /// Segments retransmitted after a timeout, or lost according to it (RFC 6298).
    pub timeout: u64,
    /// Last segment retransmitted as a probe, since no acknowledgement arrived (RFC 8985, section 7).
    pub probe: u64,
    /// Segments that had been acknowledged at the capture point.
    pub unneeded: u64,
    /// Segments that had not been captured before: they were lost between the sender and the capture point.
    pub lost_before: u64,
    /// Number of timeouts.
    pub timeouts: u64,
}

/// Interval of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Interval {
    /// When it begins, in seconds from the connection's first packet on.
    #[serde(default)]
    pub from_s: f64,
    /// Bytes acknowledged.
    pub acknowledged: u64,
    /// Segments retransmitted.
    pub sent_again: u64,
    /// Maximum of the data in flight, as the sender sees it.
    pub flight: u64,
    /// Minimum receive window.
    pub window: Option<u64>,
    /// Minimum round-trip time from the capture point, in nanoseconds.
    pub round_trip: Option<u64>,
}

/// Data in flight.
#[derive(Clone, Copy, Debug)]
struct Sent {
    end: u64,
    at: u64,
}

/// Packet whose data reached furthest.
#[derive(Clone, Copy, Debug, Default)]
struct Furthest {
    identification: Option<u16>,
    stamp: Option<u32>,
    at: u64,
    /// How often new data had a higher identification than the data before, and how often not.
    rises: u64,
    falls: u64,
}

/// State of one direction.
#[derive(Debug, Default)]
pub struct DirectionState {
    way: DirectionReport,
    /// Time series, starting at the connection's first packet.
    series: TimeSeries<Interval>,
    /// Next sequence number after the captured data, and first number that is not acknowledged.
    pub next: Option<u64>,
    acknowledged: u64,
    furthest: Furthest,
    first_data: Option<u64>,
    /// When data were last acknowledged.
    last_data: u64,
    last_progress: u64,
    last_sent: u64,
    holes: Ranges,
    again: Ranges,
    /// Ranges overtaken before the capture point.
    overtaken: Ranges,
    selected: Ranges,
    selected_bytes: u64,
    sent: VecDeque<Sent>,
    /// Data sent before a timeout and retransmitted after it.
    after_timeout: u64,
    repeats: u32,
    round_trips: Distribution,
    /// Smoothed round-trip time from the capture point, in nanoseconds (RFC 6298, section 2).
    smoothed: Option<f64>,
    extents: Distribution,
    /// Maximum segment size of each endpoint; whether both use timestamps.
    limits: [Option<u16>; 2],
    has_stamps: [bool; 2],
    window: Option<u16>,
    /// The window in bytes, if its scale is known.
    room: Option<u64>,
    windows: Option<(Extent, u64)>,
    zero_since: Option<u64>,
    was_keep_alive: bool,
    /// Sequence numbers of SYN and FIN, which are not data.
    signs: [Option<u64>; 2],
    stamps: VecDeque<(u32, u64)>,
    pub rounds: Rounds,
    /// Kinds of packets, for the caller to take.
    pub events: Vec<Event>,
}

impl DirectionState {
    pub fn new(begun: u64, every: u64) -> DirectionState {
        DirectionState {
            series: TimeSeries::new(begun, every),
            ..DirectionState::default()
        }
    }

    /// Starts the connection: the sender, or else the receiver, sends these options.
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

    /// Sets the window scale of the receiver.
    pub fn scale(&mut self, shift: u8) {
        // Maximum of RFC 7323, section 2.3.
        self.way.scale = Some(shift.min(14));
    }

    /// Returns the next expected sequence number; for the first packet, its own.
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

    /// Handles a packet of the sender.
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

    /// Handles data at the end that were not captured before.
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
            // Keep every other one: that tells as much.
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
            let interval = self.series.at(at);
            interval.flight = interval.flight.max(flight);
        } else if segment.begins {
            self.rounds.begins_at(end);
        }
        self.last_sent = at;
    }

    /// Handles data that are, at least in part, before the end of the captured data.
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

    /// Returns whether a packet left the sender before the one whose data reached furthest: it was overtaken, or is a duplicate.
    fn is_older(&self, at: u64, id: Option<u16>, stamp: Option<u32>, fills: bool) -> bool {
        // Most senders count their packets, others use arbitrary identifications. A retransmission is a packet with its own
        // identification.
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
        // Too early for a requested retransmission.
        let soon = match self.smoothed {
            Some(_) => self.whole_trip() / 2,
            None => OVERTAKEN,
        };
        fills && at.saturating_sub(self.furthest.at) < soon
    }

    /// Returns the whole round-trip time in nanoseconds; 0 while it is unknown.
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
        self.series.at(at).sent_again += segments;
        self.last_sent = at;
    }

    /// Counts a packet with data; returns the number of its segments.
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

    /// Returns the end of the receiver's window.
    fn edge(&self) -> Option<u64> {
        Some(self.acknowledged.saturating_add(self.room?))
    }

    /// Handles a reply to the acknowledgement with this timestamp; the first one shows the sender's distance.
    fn answers(&mut self, at: u64, echo: u32) {
        let is_told = |stamp: u32| echo.wrapping_sub(stamp).cast_signed() >= 0;
        while let Some((stamp, since)) = self.stamps.pop_front_if(|(stamp, _)| is_told(*stamp)) {
            if stamp == echo {
                return self.rounds.behind(at.saturating_sub(since));
            }
        }
    }

    /// Handles a packet of the receiver. `is_bare`: it is only an acknowledgement, and the expected one.
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
            // The window of a SYN is not scaled (RFC 7323, section 2.2).
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
            let interval = self.series.at(at);
            interval.window = Some(interval.window.map_or(window, |min| min.min(window)));
        }
        let stamp = segment.options.stamps.map(|(value, _)| value);
        let known = [self.acknowledged, self.selected_bytes];
        self.rounds.hears(at, stamp, known, self.edge());
    }

    fn progress(&mut self, at: u64, number: u64) {
        let before = std::mem::replace(&mut self.acknowledged, number);
        self.repeats = 0;
        self.last_progress = at;
        // Data before the first selectively acknowledged range arrived without a retransmission.
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
        // Karn's algorithm: a reply to retransmitted data gives no round-trip time, nor does one that was delayed by a gap.
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
        self.series.at(at).acknowledged += bytes;
    }

    fn took(&mut self, time: u64, at: u64) {
        self.round_trips.add(time.cast_signed());
        let now = time as f64;
        self.smoothed = Some(self.smoothed.map_or(now, |mean| 0.875 * mean + 0.125 * now));
        self.rounds.took(time);
        let interval = self.series.at(at);
        interval.round_trip = Some(interval.round_trip.map_or(time, |min| min.min(time)));
    }

    fn select(&mut self, at: u64, number: u64, segment: &Segment) {
        let next = self.next.unwrap_or(number);
        let blocks = segment.options.blocks.iter().flatten();
        let blocks =
            blocks.map(|(from, to)| [*from, *to].map(|end| DirectionState::absolute(next, end)));
        for (place, [from, to]) in blocks.enumerate() {
            // First block, and known before: the data arrived twice (RFC 2883, section 4).
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

    /// Ends the analysis.
    pub fn finish(mut self, last: u64) -> DirectionReport {
        if let Some(since) = self.zero_since {
            self.way.zero_seconds += last.saturating_sub(since) as f64 * 1e-9;
        }
        let rounds = self.rounds.finish(last);
        let first = self.first_data.unwrap_or(self.last_data);
        let seconds = self.last_data.saturating_sub(first) as f64 * 1e-9;
        let (every, intervals) = self.series.finish();
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
            from_s: self.from_s,
            acknowledged: self.acknowledged + next.acknowledged,
            sent_again: self.sent_again + next.sent_again,
            flight: self.flight.max(next.flight),
            window: self.window.into_iter().chain(next.window).min(),
            round_trip: self.round_trip.into_iter().chain(next.round_trip).min(),
        }
    }

    fn begin(&mut self, seconds: f64) {
        self.from_s = seconds;
    }
}
