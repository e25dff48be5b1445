//! Streams without sequence numbers (`pudp`): each datagram is one whole VDIF frame, and its number follows from the frame's time
//! and thread.
//!
//! The first datagrams show the threads and the order of their frames. From then on a number is a pure function of a frame's time
//! and thread: the number of the cycle of threads, times the number of threads, plus the rank of the thread in the cycle. Without
//! loss each number is one more than the last. Clocks of threads may be off by whole seconds, and threads may lag behind one
//! another.
//!
//! The state changes only with datagrams that were accepted ([`Sequencer::heard`]), and only for later ones: how many frames a
//! second has (module `seconds`), a thread that starts or ends, the order of the threads.
//!
//! Whatever gives numbers from frames alone belongs here.

mod seconds;

use std::collections::{BTreeSet, HashMap, VecDeque};

use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::{Header, StreamKey};

use self::seconds::Seconds;

/// Number of datagrams after which learning ends if each thread was seen often enough.
const ENOUGH: usize = 64;
/// Minimum number of times that each thread must be seen.
const SIGHTINGS: usize = 3;
/// Number of datagrams after which learning ends in any case.
const MAX_DATAGRAMS: usize = 512;
/// Bytes after which learning ends in any case.
const MAX_BYTES: usize = 8 << 20;
/// Number of the first frame of the first second: earlier frames that arrive late are below it.
const FIRST: u64 = 1 << 32;
/// Maximum distance between threads in time, in frames, if it is not known better.
const NEAR: u32 = 64;
/// Silence in seconds, while other threads were heard, after which a thread has ended.
const ENDED: i64 = 2;
/// Maximum number of orders of threads that late frames may still belong to.
const MAX_ORDERS: usize = 4;
/// Maximum number of unknown threads that are watched at the same time.
const MAX_UNKNOWN: usize = 64;
/// Number of cycles from which the order of the threads is learnt again.
const CYCLES: usize = 16;
/// Minimum number of those cycles in which a frame arrived before one with a lower number.
const TURNED: usize = 8;
/// Maximum number of threads for which the order is learnt again.
const MAX_REORDERED: usize = 256;

/// Result for a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Kept: its number will be known when more have arrived.
    Pending,
    /// Kept, and the numbers of all kept datagrams are known now: [`Sequencer::drain`].
    Learnt,
    /// Number of the datagram.
    Number(u64),
    /// Not a whole VDIF frame, or of another length, or with a frame number beyond its second.
    Foreign,
    /// Frame of a station or thread that is not known yet.
    UnknownThread,
}

/// Numbering of datagrams that have no sequence numbers.
#[derive(Clone, Debug)]
pub struct Sequencer {
    /// Length of the frames, once one has arrived.
    frame_length: Option<usize>,
    /// Datagrams to learn from; `None` afterwards.
    kept: Option<Vec<u8>>,
    /// How often each thread was seen while learning.
    sightings: HashMap<StreamKey, usize>,
    seconds: Seconds,
    /// Threads and their order, the newest last.
    orders: VecDeque<Order>,
    /// Highest place and number so far.
    newest: Option<(i64, u64)>,
    /// Threads and places of the latest frames, if frames arrived out of order.
    recent: VecDeque<(StreamKey, i64)>,
    turned: usize,
    unknown_threads: HashMap<StreamKey, Unknown>,
}

/// Threads from a cycle on.
#[derive(Clone, Debug)]
struct Order {
    /// First place that belongs to it, and its number.
    from: i64,
    first: u64,
    lanes: HashMap<StreamKey, Lane>,
}

/// Known thread.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    /// Offset of its clock, in seconds ahead.
    seconds_ahead: i64,
    /// Cycles by which it lags: the place of a frame is the cycle of its time, plus these.
    lag: i64,
    /// Place within the cycle.
    rank: u64,
    /// Last frame, by its corrected clock, and how many consecutive ones led up to it.
    last: Option<FrameTime>,
    run: u32,
}

/// Thread that is not known yet.
#[derive(Clone, Copy, Debug)]
struct Unknown {
    lane: Lane,
    sightings: usize,
    /// Cycle of its last frame.
    cycle: i64,
    /// Newest place when that frame arrived.
    beside: i64,
}

impl Sequencer {
    /// Makes a sequencer for a new stream. If the rate is not given, it is learnt at the first turn of the second.
    pub fn new(frame_rate: Option<FrameRate>) -> Sequencer {
        Sequencer {
            frame_length: None,
            kept: Some(Vec::new()),
            sightings: HashMap::new(),
            seconds: Seconds::new(frame_rate),
            orders: VecDeque::new(),
            newest: None,
            recent: VecDeque::new(),
            turned: 0,
            unknown_threads: HashMap::new(),
        }
    }

    /// Makes a sequencer that has learnt from these datagrams; `None` while they are too few. `all`: no more will arrive.
    pub fn of(datagrams: &[&[u8]], all: bool, frame_rate: Option<FrameRate>) -> Option<Sequencer> {
        let mut sequencer = Sequencer::new(frame_rate);
        let mut verdicts = datagrams.iter().map(|datagram| sequencer.offer(datagram));
        if !verdicts.any(|verdict| verdict == Verdict::Learnt) && !all {
            return None;
        }
        sequencer.drain(|_, _| {});
        (sequencer.threads() > 0).then_some(sequencer)
    }

    /// Returns the number of threads of all stations; while learning, the number so far.
    pub fn threads(&self) -> usize {
        let order = self.orders.back();
        order.map_or(self.sightings.len(), |order| order.lanes.len())
    }

    /// Returns the number of a datagram, once the threads are learnt; `None` if it is not a frame of one of them.
    pub fn number(&self, datagram: &[u8]) -> Option<u64> {
        let header = self.header(datagram)?;
        Some(self.place(&header)?.1)
    }

    /// Updates the state from a datagram of the stream: one that was accepted by its number, or one that has no number.
    pub fn heard(&mut self, datagram: &[u8]) {
        let Some(header) = self.header(datagram) else {
            return;
        };
        match self.place(&header) {
            Some((place, number)) => self.known(&header, place, number),
            None => self.unknown(&header),
        }
    }

    /// Takes the next datagram of a stream in which all datagrams count, as in a capture.
    pub fn offer(&mut self, datagram: &[u8]) -> Verdict {
        let Some(header) = self.header(datagram) else {
            return Verdict::Foreign;
        };
        self.frame_length.get_or_insert(datagram.len());
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(datagram);
            *self.sightings.entry(header.key()).or_default() += 1;
            return match self.has_enough() {
                true => Verdict::Learnt,
                false => Verdict::Pending,
            };
        }
        match self.number_known(&header) {
            Some(number) => Verdict::Number(number),
            None if self.lane(&header).is_some() => Verdict::Foreign,
            None => {
                self.unknown(&header);
                Verdict::UnknownThread
            }
        }
    }

    /// Ends the learning, with whatever was learnt, and passes each kept datagram and its number to `sink`.
    pub fn drain(&mut self, mut sink: impl FnMut(u64, &[u8])) {
        let (Some(kept), Some(length)) = (self.kept.take(), self.frame_length) else {
            return;
        };
        let datagrams = kept.chunks_exact(length);
        let headers = datagrams.filter_map(|datagram| Header::parse(datagram).ok());
        let headers: Vec<Header> = headers.collect();
        self.learn(&headers);
        for (datagram, header) in kept.chunks_exact(length).zip(&headers) {
            if let Some(number) = self.number_known(header) {
                sink(number, datagram);
            }
        }
        self.recent.clear();
        self.turned = 0;
    }

    /// Returns the number of a frame, and learns from the frame if it is near the others.
    fn number_known(&mut self, header: &Header) -> Option<u64> {
        let (place, number) = self.place(header)?;
        if self.is_near(place) {
            self.known(header, place, number);
        }
        Some(number)
    }

    /// Returns the header of a whole frame of the stream's length.
    fn header(&self, datagram: &[u8]) -> Option<Header> {
        let header = Header::parse(datagram).ok()?;
        let length = self.frame_length.unwrap_or(datagram.len());
        (header.frame_length() == datagram.len() && length == datagram.len()).then_some(header)
    }

    fn has_enough(&self) -> bool {
        let bytes = self.kept.as_ref().map_or(0, Vec::len);
        let datagrams = bytes / self.frame_length.unwrap_or(1).max(1);
        let well_known = self.sightings.values().all(|times| *times >= SIGHTINGS);
        datagrams >= ENOUGH && well_known || datagrams >= MAX_DATAGRAMS || bytes >= MAX_BYTES
    }

    fn lane(&self, header: &Header) -> Option<&Lane> {
        self.orders.back()?.lanes.get(&header.key())
    }

    /// Returns the place and the number of a frame.
    fn place(&self, header: &Header) -> Option<(i64, u64)> {
        let mut orders = self.orders.iter().rev().peekable();
        while let Some(order) = orders.next() {
            let lane = order.lanes.get(&header.key())?;
            let cycle = self.seconds.cycle(lane.own_time(header), lane)?;
            let place = cycle.wrapping_add(lane.lag);
            if place >= order.from || orders.peek().is_none() {
                return Some((place, order.number(place, lane.rank)));
            }
        }
        None
    }

    fn is_near(&self, place: i64) -> bool {
        let near = self.seconds.frames().max(i64::from(NEAR));
        let newest = self.newest.map_or(place, |(newest, _)| newest);
        place.abs_diff(newest) <= 2 * near.unsigned_abs()
    }

    /// Notes an accepted frame of a known thread.
    fn known(&mut self, header: &Header, place: i64, number: u64) {
        let Some(order) = self.orders.back_mut() else {
            return;
        };
        let Some(lane) = order.lanes.get_mut(&header.key()) else {
            return;
        };
        let time = lane.own_time(header);
        let turned_from = self.seconds.heard(time, lane);
        lane.heard(time);
        match self.newest {
            Some((_, newest)) if number <= newest => self.turned += usize::from(number < newest),
            _ => self.newest = Some((place, number)),
        }
        if let Some(second) = turned_from {
            let has_ended = |lane: &Lane| {
                let last = lane.last.map_or(i64::MIN, |last| last.second);
                last.saturating_add(ENDED) <= second
            };
            if order.lanes.values().any(has_ended) {
                self.change(|lanes| lanes.retain(|_, lane| !has_ended(lane)));
            }
        }
        self.watch_order(header.key(), place);
    }

    /// Notes a frame of an unknown thread, which starts if it keeps pace with the others.
    fn unknown(&mut self, header: &Header) {
        let (Some(order), Some((beside, _))) = (self.orders.back(), self.newest) else {
            return;
        };
        if order.lanes.contains_key(&header.key()) {
            return;
        }
        let Some(now) = order.lanes.values().filter_map(|lane| lane.last).max() else {
            return;
        };
        let before = self.unknown_threads.get(&header.key()).copied();
        let mut lane = Lane {
            seconds_ahead: match before {
                Some(before) => before.lane.seconds_ahead,
                None => seconds_ahead(header.time(), now, self.seconds.rate()),
            },
            rank: order.lanes.len() as u64,
            ..Lane::default()
        };
        let time = lane.own_time(header);
        let Some(cycle) = self.seconds.cycle(time, &lane) else {
            return;
        };
        lane.lag = beside.wrapping_sub(cycle);
        lane.heard(time);
        let keeps_pace = |before: &Unknown| {
            let (own, others) = (cycle - before.cycle, beside - before.beside);
            own > 0 && own.abs_diff(others) <= 1
        };
        let sightings = before.filter(keeps_pace).map_or(0, |s| s.sightings) + 1;
        if sightings >= SIGHTINGS {
            self.unknown_threads.remove(&header.key());
            let key = header.key();
            self.change(|lanes| {
                lanes.insert(key, lane);
            });
            return;
        }
        if self.unknown_threads.len() >= MAX_UNKNOWN {
            self.unknown_threads.clear();
        }
        let unknown = Unknown {
            lane,
            sightings,
            cycle,
            beside,
        };
        self.unknown_threads.insert(header.key(), unknown);
    }

    /// Changes the threads or their order, from the next place on.
    fn change(&mut self, change: impl FnOnce(&mut HashMap<StreamKey, Lane>)) {
        let (Some(order), Some((newest, _))) = (self.orders.back(), self.newest) else {
            return;
        };
        let mut lanes = order.lanes.clone();
        change(&mut lanes);
        let mut ranked: Vec<&mut Lane> = lanes.values_mut().collect();
        ranked.sort_by_key(|lane| lane.rank);
        for (rank, lane) in (0..).zip(ranked) {
            lane.rank = rank;
        }
        let from = order.from.max(newest.saturating_add(1));
        let first = order.number(from, 0);
        self.orders.push_back(Order { from, first, lanes });
        if self.orders.len() > MAX_ORDERS {
            self.orders.pop_front();
        }
        self.recent.clear();
        self.turned = 0;
    }

    /// Learns the order again if frames keep arriving before others with lower numbers.
    fn watch_order(&mut self, key: StreamKey, place: i64) {
        let threads = self.threads();
        if !(2..=MAX_REORDERED).contains(&threads) {
            return;
        }
        self.recent.push_back((key, place));
        if self.recent.len() < CYCLES * threads {
            return;
        }
        if self.turned >= TURNED {
            // Usual rank of a thread's frames among all arrivals, counted from where their cycle started.
            let mut ranks: HashMap<StreamKey, Vec<i64>> = HashMap::new();
            for (at, (key, place)) in (0i64..).zip(&self.recent) {
                let begins = place.wrapping_mul(threads as i64);
                ranks.entry(*key).or_default().push(at.wrapping_sub(begins));
            }
            let order = ranks.into_iter().map(|(key, all)| (median(all), key));
            let order: BTreeSet<(i64, StreamKey)> = order.collect();
            let ranks = order.into_iter().map(|(_, key)| key).zip(0..);
            let ranks: HashMap<StreamKey, u64> = ranks.collect();
            self.change(|lanes| {
                for (key, lane) in lanes.iter_mut() {
                    lane.rank = ranks.get(key).copied().unwrap_or(u64::MAX);
                }
            });
        }
        self.recent.clear();
        self.turned = 0;
    }

    fn learn(&mut self, headers: &[Header]) {
        // A thread that was seen once among many is due to a damaged header.
        let many = self.sightings.values().any(|times| *times >= SIGHTINGS);
        self.sightings.retain(|_, times| *times > 1 || !many);
        let known = |header: &&Header| self.sightings.contains_key(&header.key());
        let usual = usual_seconds(headers.iter());
        let is_usual = |header: &&Header| {
            let usual = usual.get(&header.key());
            usual.is_some_and(|usual| usual.abs_diff(header.time().second) <= 2)
        };
        let rate = headers.iter().find_map(Header::frame_rate);
        let payload = headers.first().map(|one| one.shape().payload_length());
        self.seconds.tell(rate, payload.unwrap_or(0));
        let compared = headers.iter().filter(known).filter(is_usual).collect();
        let mut lanes = compare_clocks(compared, self.seconds.rate());
        let times = headers.iter().filter_map(|header| {
            let lane = lanes.get(&header.key())?;
            Some((header.key(), lane.own_time(header)))
        });
        let times: Vec<(StreamKey, FrameTime)> = times.collect();
        let Some(time) = begins_at(&times) else {
            return;
        };
        self.seconds.begin(time.second, i64::from(time.frame));
        let threads = lanes.len() as i64;
        let mut places: HashMap<StreamKey, Vec<i64>> = HashMap::new();
        let mut at = 0i64;
        for (key, time) in times {
            let Some(lane) = lanes.get_mut(&key) else {
                continue;
            };
            if !self.seconds.is_plausible(time) {
                continue;
            }
            if let Some(cycle) = self.seconds.cycle(time, lane) {
                let begins = cycle.wrapping_mul(threads);
                places.entry(key).or_default().push(at.wrapping_sub(begins));
            }
            self.seconds.heard(time, lane);
            lane.heard(time);
            at += 1;
        }
        put_in_order(&mut lanes, medians(places));
        let order = Order {
            from: 0,
            first: FIRST,
            lanes,
        };
        let places = headers.iter().filter_map(|header| {
            let lane = order.lanes.get(&header.key())?;
            let cycle = self.seconds.cycle(lane.own_time(header), lane)?;
            Some(cycle.wrapping_add(lane.lag))
        });
        let place = median(places.collect());
        self.newest = Some((place, order.number(place, 0)));
        self.orders.push_back(order);
    }
}

impl Order {
    fn number(&self, place: i64, rank: u64) -> u64 {
        let cycles = place.wrapping_sub(self.from);
        let datagrams = cycles.wrapping_mul(self.lanes.len() as i64);
        self.first.wrapping_add_signed(datagrams).wrapping_add(rank)
    }
}

impl Lane {
    /// Returns the time of a frame by its corrected clock.
    fn own_time(&self, header: &Header) -> FrameTime {
        let time = header.time();
        FrameTime {
            second: time.second.saturating_sub(self.seconds_ahead),
            ..time
        }
    }

    fn heard(&mut self, time: FrameTime) {
        if self.last.is_some_and(|last| time <= last) {
            return;
        }
        let is_next = self.last.is_some_and(|last| {
            last.second == time.second && last.frame.checked_add(1) == Some(time.frame)
        });
        self.run = match is_next {
            true => self.run.saturating_add(1),
            false => 1,
        };
        self.last = Some(time);
    }
}

fn median(mut values: Vec<i64>) -> i64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

fn medians(values: HashMap<StreamKey, Vec<i64>>) -> HashMap<StreamKey, i64> {
    let values = values.into_iter();
    values.map(|(key, values)| (key, median(values))).collect()
}

/// Returns the most frequent second of each thread, ignoring the few damaged times.
fn usual_seconds<'h>(headers: impl Iterator<Item = &'h Header>) -> HashMap<StreamKey, i64> {
    let mut seconds: HashMap<StreamKey, Vec<i64>> = HashMap::new();
    for header in headers {
        let of_thread = seconds.entry(header.key()).or_default();
        of_thread.push(header.time().second);
    }
    medians(seconds)
}

/// Returns the last of the frames in the first second in which a thread has frames in a row: damaged times are not in a row. Without
/// such frames, returns the median of the times.
fn begins_at(times: &[(StreamKey, FrameTime)]) -> Option<FrameTime> {
    let mut before: HashMap<StreamKey, (FrameTime, bool)> = HashMap::new();
    let mut in_a_row = BTreeSet::new();
    for (key, time) in times {
        let last = before.get(key).copied();
        // A wrong frame number before the turn of the second does not follow the one before it.
        let follows = |(last, is_next): &(FrameTime, bool)| match time.frame.checked_sub(1) {
            Some(frame) => (time.second, frame) == (last.second, last.frame),
            None => *is_next && time.second == last.second.saturating_add(1),
        };
        let is_next = last.as_ref().is_none_or(follows);
        if let Some((last, _)) = last.filter(|_| is_next) {
            in_a_row.extend([last, *time]);
        }
        before.insert(*key, (*time, is_next));
    }
    let first = in_a_row.first().map(|time: &FrameTime| time.second);
    let last = in_a_row.iter().rfind(|time| Some(time.second) == first);
    last.copied().or_else(|| {
        let mut all: Vec<FrameTime> = times.iter().map(|(_, time)| *time).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    })
}

/// Calculates by how many seconds each thread's clock is ahead of the first one's. Each thread is compared with the earlier one
/// that is nearest in frame number.
fn compare_clocks(headers: Vec<&Header>, rate: Option<FrameRate>) -> HashMap<StreamKey, Lane> {
    let mut lanes: HashMap<StreamKey, Lane> = HashMap::new();
    let mut met: HashMap<StreamKey, FrameTime> = HashMap::new();
    for header in headers {
        let (key, time) = (header.key(), header.time());
        let lane = lanes.entry(key).or_insert_with(|| {
            let apart = |other: &&FrameTime| other.frame.abs_diff(time.frame);
            let beside = met.values().min_by_key(apart);
            let ahead = beside.map(|now| seconds_ahead(time, *now, rate));
            Lane {
                seconds_ahead: ahead.unwrap_or(0),
                ..Lane::default()
            }
        });
        met.insert(key, lane.own_time(header));
    }
    lanes
}

/// Gives the threads their places in the cycle, in the order of `places`: their usual rank among all datagrams, counted from
/// where their cycle started.
fn put_in_order(lanes: &mut HashMap<StreamKey, Lane>, places: HashMap<StreamKey, i64>) {
    let threads = lanes.len() as i64;
    let mut places: Vec<(StreamKey, i64)> = places.into_iter().collect();
    let first = places.iter().map(|(_, place)| *place).min().unwrap_or(0);
    let behind = |place: i64| place.saturating_sub(first);
    places.sort_unstable_by_key(|(_, place)| behind(*place) % threads);
    for (rank, (key, place)) in (0..).zip(places) {
        if let Some(lane) = lanes.get_mut(&key) {
            // Whole cycles that the thread lags, and its place within the cycle.
            lane.lag = behind(place) / threads;
            lane.rank = rank;
        }
    }
}

/// Returns by how many whole seconds a clock is ahead if its frame of `time` arrives next to one of time `now`.
fn seconds_ahead(time: FrameTime, now: FrameTime, rate: Option<FrameRate>) -> i64 {
    let ahead = time.second.saturating_sub(now.second);
    if time.frame.abs_diff(now.frame) <= NEAR {
        return ahead;
    }
    // Either it is behind or ahead within a second, or only one of the two has started another second.
    let turned = match time.frame < now.frame {
        true => ahead.saturating_sub(1),
        false => ahead.saturating_add(1),
    };
    if ahead == 0 || turned == 0 {
        return 0;
    }
    let apart = time.frame.abs_diff(now.frame);
    match rate {
        Some(rate) if rate.get().saturating_sub(apart) < apart => turned,
        _ => ahead,
    }
}

#[cfg(test)]
mod tests;
