//! Streams without sequence numbers (`pudp`): each datagram is one whole VDIF frame, and its number comes
//! from the frame's own time and thread.
//!
//! The threads and the order in which their frames come are learnt from the first datagrams. From then on a number is a pure
//! function of a frame's time and thread: the number of the cycle of threads, times the number of threads, plus the rank of the
//! thread in the cycle. Without loss each datagram is one more than the last. Clocks of threads may be off by whole seconds, and
//! threads may lag behind one another.
//!
//! What is known changes only with datagrams that were taken ([`Sequencer::heard`]), and only for what comes later: how many
//! frames a second has (module `seconds`), a thread that begins or ends, the order of the threads.

mod seconds;

use std::collections::{HashMap, VecDeque};

use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::{Header, StreamKey};

use self::seconds::Seconds;

/// Learning ends when so many datagrams came and each thread was seen often enough,
const ENOUGH: usize = 64;
/// namely so many times,
const SIGHTINGS: usize = 3;
/// or when so many datagrams came.
const MAX_DATAGRAMS: usize = 512;
/// Or so many bytes.
const MAX_BYTES: usize = 8 << 20;
/// The number of the first second's first frame: those of earlier frames that come late are below it.
const FIRST: u64 = 1 << 32;
/// Threads are this close to one another in time, in frames, where that is not known better.
const NEAR: u32 = 64;
/// A thread that was silent for so many seconds, while others were heard, has ended.
const ENDED: i64 = 2;
/// Orders of threads that late frames may still belong to.
const MAX_ORDERS: usize = 4;
/// Unknown threads that are watched at the same time.
const MAX_STRANGERS: usize = 64;
/// Cycles from which the order of the threads is learnt again,
const CYCLES: usize = 16;
/// if in so many of them a frame came before one with a lower number.
const TURNED: usize = 8;
/// Threads beyond which the order is not learnt again.
const MAX_REORDERED: usize = 256;

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was kept: its number will be known when more have come.
    Kept,
    /// It was kept, and the numbers of all that were kept are known now: [`Sequencer::drain`].
    Learnt,
    /// Its number.
    Number(u64),
    /// No whole VDIF frame, or one of another length, or with a frame number beyond its second.
    Foreign,
    /// A frame of a station or thread that is not known yet.
    UnknownThread,
}

/// Numbers datagrams that have no sequence numbers.
#[derive(Clone, Debug)]
pub struct Sequencer {
    /// Length of the frames, once one has come.
    frame_length: Option<usize>,
    /// The datagrams from which is learnt; `None` afterwards.
    kept: Option<Vec<u8>>,
    /// How often each thread came while that was learnt.
    sightings: HashMap<StreamKey, usize>,
    seconds: Seconds,
    /// The threads and their order, the newest last.
    orders: VecDeque<Order>,
    /// The highest place and number so far.
    newest: Option<(i64, u64)>,
    /// Threads and places of those that came last, if frames came out of order.
    recent: VecDeque<(StreamKey, i64)>,
    turned: usize,
    strangers: HashMap<StreamKey, Stranger>,
}

/// The threads from a cycle on.
#[derive(Clone, Debug)]
struct Order {
    /// The first place that belongs to it, and the number there.
    from: i64,
    first: u64,
    lanes: HashMap<StreamKey, Lane>,
}

/// One thread.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    /// How far its clock is ahead.
    seconds_ahead: i64,
    /// Cycles by which it lags behind: the place of a frame is the cycle of its time, and these.
    lag: i64,
    /// Its place within the cycle.
    rank: u64,
    /// The frame that came last, by its clock set right, and how many consecutive ones came up to it.
    last: Option<FrameTime>,
    run: u32,
}

/// A thread that is not known yet.
#[derive(Clone, Copy, Debug)]
struct Stranger {
    lane: Lane,
    sightings: usize,
    /// The cycle of its last frame.
    cycle: i64,
    /// The newest place when that came.
    beside: i64,
}

impl Sequencer {
    /// A sequencer for a stream that begins. Where the rate is not given, it is learnt at the first turn of the second.
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
            strangers: HashMap::new(),
        }
    }

    /// A sequencer that has learnt from these datagrams; `None` while they are too few. `all`: no more will come.
    pub fn of(datagrams: &[&[u8]], all: bool, frame_rate: Option<FrameRate>) -> Option<Sequencer> {
        let mut sequencer = Sequencer::new(frame_rate);
        let enough = datagrams
            .iter()
            .any(|datagram| sequencer.offer(datagram) == Verdict::Learnt);
        if !(enough || all) {
            return None;
        }
        sequencer.drain(|_, _| {});
        (sequencer.threads() > 0).then_some(sequencer)
    }

    /// How many threads there are, of all stations; so far, while that is being learnt.
    pub fn threads(&self) -> usize {
        let order = self.orders.back();
        order.map_or(self.sightings.len(), |order| order.lanes.len())
    }

    /// The number of a datagram, once the threads are learnt; `None` of what is no frame of theirs.
    pub fn number(&self, datagram: &[u8]) -> Option<u64> {
        let header = self.header(datagram)?;
        Some(self.place(&header)?.1)
    }

    /// Learns from a datagram of the stream: one that was taken by its number, or one that has none.
    pub fn heard(&mut self, datagram: &[u8]) {
        let Some(header) = self.header(datagram) else {
            return;
        };
        match self.place(&header) {
            Some((place, number)) => self.known(&header, place, number),
            None => self.stranger(&header),
        }
    }

    /// Takes the next datagram of a stream of which each one counts, as in a capture.
    pub fn offer(&mut self, datagram: &[u8]) -> Verdict {
        let Some(header) = self.header(datagram) else {
            return Verdict::Foreign;
        };
        self.frame_length.get_or_insert(datagram.len());
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(datagram);
            *self.sightings.entry(header.key()).or_default() += 1;
            return if self.has_enough() {
                Verdict::Learnt
            } else {
                Verdict::Kept
            };
        }
        match self.place(&header) {
            Some((place, number)) => {
                if self.is_near(place) {
                    self.known(&header, place, number);
                }
                Verdict::Number(number)
            }
            None if self.lane(&header).is_some() => Verdict::Foreign,
            None => {
                self.stranger(&header);
                Verdict::UnknownThread
            }
        }
    }

    /// Ends the learning, with whatever was learnt, and gives each datagram that was kept to `sink` with its
    /// number.
    pub fn drain(&mut self, mut sink: impl FnMut(u64, &[u8])) {
        let (Some(kept), Some(length)) = (self.kept.take(), self.frame_length) else {
            return;
        };
        let headers: Vec<Header> = kept
            .chunks_exact(length)
            .filter_map(|datagram| Header::parse(datagram).ok())
            .collect();
        self.learn(&headers);
        for (datagram, header) in kept.chunks_exact(length).zip(&headers) {
            if let Some((place, number)) = self.place(header) {
                if self.is_near(place) {
                    self.known(header, place, number);
                }
                sink(number, datagram);
            }
        }
        self.recent.clear();
        self.turned = 0;
    }

    /// The header of a whole frame of the stream's length.
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

    /// The place and the number of a frame.
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

    /// A frame of a known thread was taken.
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

    /// A thread that keeps pace with the others begins.
    fn stranger(&mut self, header: &Header) {
        let (Some(order), Some((beside, _))) = (self.orders.back(), self.newest) else {
            return;
        };
        if order.lanes.contains_key(&header.key()) {
            return;
        }
        let now = order.lanes.values().filter_map(|lane| lane.last).max();
        let Some(now) = now else {
            return;
        };
        let mut lane = Lane {
            seconds_ahead: seconds_ahead(header.time(), now, self.seconds.rate()),
            rank: order.lanes.len() as u64,
            ..Lane::default()
        };
        let before = self.strangers.get(&header.key()).copied();
        if let Some(before) = before {
            lane.seconds_ahead = before.lane.seconds_ahead;
        }
        let time = lane.own_time(header);
        let Some(cycle) = self.seconds.cycle(time, &lane) else {
            return;
        };
        lane.lag = beside.wrapping_sub(cycle);
        lane.heard(time);
        let keeps_pace = |before: &Stranger| {
            let (own, others) = (cycle - before.cycle, beside - before.beside);
            own > 0 && own.abs_diff(others) <= 1
        };
        let sightings = before.filter(keeps_pace).map_or(0, |s| s.sightings) + 1;
        if sightings >= SIGHTINGS {
            self.strangers.remove(&header.key());
            let key = header.key();
            self.change(|lanes| {
                lanes.insert(key, lane);
            });
            return;
        }
        if self.strangers.len() >= MAX_STRANGERS {
            self.strangers.clear();
        }
        let stranger = Stranger {
            lane,
            sightings,
            cycle,
            beside,
        };
        self.strangers.insert(header.key(), stranger);
    }

    /// Other threads, or another order of them, from the next place on.
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

    /// Learns the order again if frames keep coming before others with lower numbers.
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
            // Where a thread's frames usually are among all that come, from where their cycle began on.
            let mut ranks: HashMap<StreamKey, Vec<i64>> = HashMap::new();
            for (at, (key, place)) in (0i64..).zip(&self.recent) {
                let begins = place.wrapping_mul(threads as i64);
                ranks.entry(*key).or_default().push(at.wrapping_sub(begins));
            }
            let mut order: Vec<(i64, StreamKey)> = ranks
                .into_iter()
                .map(|(key, places)| (median(places), key))
                .collect();
            order.sort_unstable();
            let ranks: HashMap<StreamKey, u64> = (0..)
                .zip(order)
                .map(|(rank, (_, key))| (key, rank))
                .collect();
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
        // A thread that came once among many is the work of a damaged header.
        let many = self.sightings.values().any(|times| *times >= SIGHTINGS);
        self.sightings.retain(|_, times| *times > 1 || !many);
        let known = |header: &&Header| self.sightings.contains_key(&header.key());
        let usual = usual_seconds(headers.iter());
        let is_usual = |header: &&Header| {
            let usual = usual.get(&header.key());
            usual.is_some_and(|usual| usual.abs_diff(header.time().second) <= 2)
        };
        let rate = headers.iter().find_map(Header::frame_rate);
        let payload = headers
            .first()
            .map_or(0, |header| header.shape().payload_length());
        self.seconds.tell(rate, payload);
        let compared = headers.iter().filter(known).filter(is_usual);
        let mut lanes = compare_clocks(compared, self.seconds.rate());
        // Cycles, as soon as two datagrams agree on a second.
        let times: Vec<(StreamKey, FrameTime)> = headers
            .iter()
            .filter_map(|header| {
                let lane = lanes.get(&header.key())?;
                Some((header.key(), lane.own_time(header)))
            })
            .collect();
        let agree =
            |pair: &&[(StreamKey, FrameTime)]| pair[0].1.second.abs_diff(pair[1].1.second) <= 1;
        let agreed = times.windows(2).find(agree).unwrap_or(&times);
        let Some(first) = agreed.iter().map(|(_, time)| time.second).min() else {
            return;
        };
        let frames = times.iter().map(|(_, time)| *time);
        let frames = frames.filter(|time| time.second == first);
        let frame = median(frames.map(|time| i64::from(time.frame)).collect());
        self.seconds.begin(first, frame);
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
        let places = places
            .into_iter()
            .map(|(key, places)| (key, median(places)))
            .collect();
        put_in_order(&mut lanes, places);
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
    /// The time of a frame, its clock set right.
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
        self.run = if is_next {
            self.run.saturating_add(1)
        } else {
            1
        };
        self.last = Some(time);
    }
}

fn median(mut values: Vec<i64>) -> i64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// The second that the frames of each thread are of, those with damaged times being few.
fn usual_seconds<'h>(headers: impl Iterator<Item = &'h Header>) -> HashMap<StreamKey, i64> {
    let mut seconds: HashMap<StreamKey, Vec<i64>> = HashMap::new();
    for header in headers {
        let of_thread = seconds.entry(header.key()).or_default();
        of_thread.push(header.time().second);
    }
    let seconds = seconds.into_iter();
    seconds.map(|(key, all)| (key, median(all))).collect()
}

/// Finds out by how many seconds each thread's clock is ahead of the first one's: of those that were met
/// before, the one nearest in frame number is compared with.
fn compare_clocks<'h>(
    headers: impl Iterator<Item = &'h Header>,
    rate: Option<FrameRate>,
) -> HashMap<StreamKey, Lane> {
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

/// Gives the threads their places in the cycle, in the order of `places`: where they usually were among
/// all datagrams, from the place on where their cycle began.
fn put_in_order(lanes: &mut HashMap<StreamKey, Lane>, mut places: Vec<(StreamKey, i64)>) {
    let threads = lanes.len() as i64;
    let first = places.iter().map(|(_, place)| *place).min().unwrap_or(0);
    let behind = |place: i64| place.saturating_sub(first);
    places.sort_unstable_by_key(|(_, place)| behind(*place) % threads);
    for (rank, (key, place)) in (0..).zip(places) {
        if let Some(lane) = lanes.get_mut(&key) {
            // Whole cycles that the thread lags behind, and its place within the cycle.
            lane.lag = behind(place) / threads;
            lane.rank = rank;
        }
    }
}

/// By how many whole seconds the clock is ahead of which a frame of `time` comes beside one of time `now`.
fn seconds_ahead(time: FrameTime, now: FrameTime, rate: Option<FrameRate>) -> i64 {
    let ahead = time.second.saturating_sub(now.second);
    if time.frame.abs_diff(now.frame) <= NEAR {
        return ahead;
    }
    // Either it lags behind or hurries ahead within a second, or only one of the two has begun another one.
    let turned = if time.frame < now.frame {
        ahead.saturating_sub(1)
    } else {
        ahead.saturating_add(1)
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
mod tests {
    use evlbi_wire::vdif::{Shape, StationId};
    use proptest::prelude::*;

    use super::*;

    const LENGTH: usize = 64;
    const SECOND: i64 = 1_580_232_600;

    /// Threads in their order, with what their clocks are ahead and how many frames they lag behind.
    type Threads = Vec<(StreamKey, i64, u32)>;

    fn datagram(key: StreamKey, time: FrameTime) -> Vec<u8> {
        let shape = Shape {
            frame_length: LENGTH,
            log2_channels: 0,
            bits: 2,
            complex: false,
            legacy: false,
        };
        let mut header = Header::new(shape, key);
        header.set_time(time).unwrap();
        let mut bytes = vec![0; LENGTH];
        header.emit(&mut bytes);
        bytes
    }

    fn stream(threads: &Threads, rate: u32, first: u32, cycles: u32) -> Vec<Vec<u8>> {
        let rate = FrameRate::new(rate).unwrap();
        let mut datagrams = Vec::new();
        for cycle in 0..cycles {
            for (key, ahead, behind) in threads {
                let frame = i64::from(first) + i64::from(cycle) - i64::from(*behind);
                let index = (SECOND + ahead) * i64::from(rate.get()) + frame;
                datagrams.push(datagram(*key, FrameTime::from_index(index, rate)));
            }
        }
        datagrams
    }

    /// The numbers that the datagrams get, each with its place among those given.
    fn number(sequencer: &mut Sequencer, datagrams: &[Vec<u8>]) -> Vec<(usize, Option<u64>)> {
        let mut numbers = Vec::new();
        let mut kept = Vec::new();
        for (place, datagram) in datagrams.iter().enumerate() {
            match sequencer.offer(datagram) {
                Verdict::Kept => kept.push(place),
                Verdict::Learnt => {
                    kept.push(place);
                    let mut kept = kept.drain(..);
                    sequencer.drain(|number, bytes| {
                        let place = kept.find(|place| datagrams[*place] == bytes);
                        numbers.push((place.unwrap(), Some(number)));
                    });
                }
                Verdict::Number(number) => numbers.push((place, Some(number))),
                Verdict::Foreign | Verdict::UnknownThread => numbers.push((place, None)),
            }
        }
        assert!(kept.is_empty());
        numbers
    }

    fn key(station: u16, thread: u16) -> StreamKey {
        StreamKey {
            station: StationId(station),
            thread,
        }
    }

    fn simple(threads: u16) -> Threads {
        (0..threads).map(|thread| (key(7, thread), 0, 0)).collect()
    }

    fn threads() -> impl Strategy<Value = Threads> {
        let keys = prop::collection::btree_set((0u16..3, 0u16..8), 1..10);
        let clocks = prop::collection::vec(
            (
                prop::sample::select(vec![0, 0, -3, 14_352_384]),
                prop::sample::select(vec![0, 0, 1, 7]),
            ),
            10,
        );
        (keys, clocks, any::<prop::sample::Index>()).prop_map(|(keys, clocks, turn)| {
            let mut keys: Vec<_> = keys.into_iter().map(|(s, t)| key(s, t)).collect();
            let turn = turn.index(keys.len());
            keys.rotate_left(turn);
            let all = keys.into_iter().zip(clocks);
            all.map(|(key, (ahead, behind))| (key, ahead, behind))
                .collect()
        })
    }

    fn assert_consecutive(numbers: &[(usize, Option<u64>)]) {
        let zero = numbers[0].1.unwrap().wrapping_sub(numbers[0].0 as u64);
        for (place, number) in numbers {
            assert_eq!(
                number.unwrap().wrapping_sub(zero),
                *place as u64,
                "datagram {place}"
            );
        }
    }

    #[test]
    fn without_loss_each_datagram_is_one_more() {
        // Three seconds, the rate not known.
        let datagrams = stream(&simple(5), 100, 20, 300);
        let mut sequencer = Sequencer::new(None);
        let numbers = number(&mut sequencer, &datagrams);
        assert_eq!(numbers.len(), 1500);
        assert_consecutive(&numbers);
        assert_eq!(sequencer.threads(), 5);
    }

    #[test]
    fn other_datagrams_are_told_apart() {
        let datagrams = stream(&simple(2), 100, 0, 50);
        let mut sequencer = Sequencer::new(None);
        assert_eq!(sequencer.offer(&[]), Verdict::Foreign);
        assert_eq!(sequencer.offer(&datagrams[0][..40]), Verdict::Foreign);
        number(&mut sequencer, &datagrams);
        let time = FrameTime {
            second: SECOND,
            frame: 50,
        };
        let unknown = datagram(key(7, 9), time);
        assert_eq!(sequencer.offer(&unknown), Verdict::UnknownThread);
        let mut long = datagram(key(7, 0), time);
        assert!(matches!(sequencer.offer(&long), Verdict::Number(_)));
        long.push(0);
        assert_eq!(sequencer.offer(&long), Verdict::Foreign);
    }

    #[test]
    fn a_damaged_time_moves_nothing() {
        let mut datagrams = stream(&simple(3), 100, 90, 200);
        let wild = [(0, 1000, 0), (0, 0, 5_000_000), (1, 1000, 3), (2, -5, 3)];
        let places = [0, 30, 300, 431];
        for (place, (thread, seconds, frame)) in places.into_iter().zip(wild) {
            let second = SECOND + seconds;
            let time = FrameTime { second, frame };
            datagrams.insert(place, datagram(key(7, thread), time));
        }
        let mut sequencer = Sequencer::new(None);
        let mut numbers = number(&mut sequencer, &datagrams);
        numbers.retain(|(place, number)| number.is_some() && !places.contains(place));
        for (place, _) in &mut numbers {
            *place -= places.iter().filter(|wild| *wild < place).count();
        }
        assert!(numbers.len() >= 598, "{}", numbers.len());
        assert_consecutive(&numbers);
    }

    #[test]
    fn a_stream_that_ends_early_is_numbered_all_the_same() {
        let datagrams = stream(&simple(4), 100, 0, 2);
        let mut sequencer = Sequencer::new(None);
        for datagram in &datagrams {
            assert_eq!(sequencer.offer(datagram), Verdict::Kept);
        }
        let mut numbers = Vec::new();
        sequencer.drain(|number, bytes| {
            assert_eq!(bytes, datagrams[numbers.len()]);
            numbers.push((numbers.len(), Some(number)));
        });
        assert_eq!(numbers.len(), 8);
        assert_consecutive(&numbers);
    }

    /// The numbers of datagrams that were all taken, by a sequencer that learnt from the first 512.
    fn taken(sequencer: &mut Sequencer, datagrams: &[Vec<u8>]) -> Vec<Option<u64>> {
        let number = |datagram: &Vec<u8>| {
            let number = sequencer.number(datagram);
            sequencer.heard(datagram);
            number
        };
        datagrams.iter().map(number).collect()
    }

    fn learnt(datagrams: &[Vec<u8>]) -> Sequencer {
        let first: Vec<&[u8]> = datagrams.iter().take(512).map(|d| &d[..]).collect();
        Sequencer::of(&first, false, None).unwrap()
    }

    /// Frames of 8000 bytes of data: 2000 of them a second are 128 Mbit/s.
    fn long(datagrams: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let lengthen = |datagram: &Vec<u8>| {
            let short = Header::parse(datagram).unwrap();
            let shape = Shape {
                frame_length: 8032,
                ..short.shape()
            };
            let mut header = Header::new(shape, short.key());
            header.set_time(short.time()).unwrap();
            let mut bytes = vec![0; 8032];
            header.emit(&mut bytes);
            bytes
        };
        datagrams.iter().map(lengthen).collect()
    }

    #[test]
    fn frames_lost_across_the_first_turn_of_the_second_are_missed() {
        // Of 2000 frames a second, 100 before the turn and 500 behind it.
        for threads in [1, 4] {
            let mut datagrams = long(&stream(&simple(threads), 2000, 1000, 2000));
            let per = usize::from(threads);
            datagrams.drain(900 * per..1500 * per);
            let mut sequencer = learnt(&datagrams);
            let numbers = taken(&mut sequencer, &datagrams);
            let apart = numbers[900 * per].unwrap() - numbers[900 * per - 1].unwrap();
            assert_eq!(apart, 600 * u64::from(threads) + 1);
        }
    }

    #[test]
    fn a_rate_in_the_headers_gives_way_to_what_is_seen() {
        // An EDV 1 header whose sample rate makes 1000 frames a second.
        let mut datagrams = stream(&simple(1), 100, 20, 300);
        for datagram in &mut datagrams {
            let mut header = Header::parse(datagram).unwrap();
            header.set_extended_word(4, 1 << 24 | 64);
            header.emit(datagram);
        }
        let told = Header::parse(&datagrams[0]).unwrap().frame_rate().unwrap();
        assert_ne!(told.get(), 100);
        let mut sequencer = learnt(&datagrams);
        let numbers = taken(&mut sequencer, &datagrams);
        assert_consecutive(&numbers.into_iter().enumerate().collect::<Vec<_>>());
    }

    #[test]
    fn a_thread_that_begins_later_is_numbered_and_one_that_ends_is_not_missed() {
        let rate = 100;
        let early = stream(&simple(2), rate, 0, 1000);
        let (mut datagrams, mut third) = (Vec::new(), 0);
        for (cycle, pair) in early.chunks(2).enumerate() {
            datagrams.extend_from_slice(pair);
            if (400..600).contains(&cycle) {
                let index = SECOND * i64::from(rate) + cycle as i64;
                let time = FrameTime::from_index(index, FrameRate::new(rate).unwrap());
                datagrams.push(datagram(key(7, 9), time));
                third += 1;
            }
        }
        let mut sequencer = learnt(&datagrams);
        let numbers = taken(&mut sequencer, &datagrams);
        let without = numbers.iter().filter(|number| number.is_none()).count();
        assert_eq!((without, third), (SIGHTINGS, 200));
        let known: Vec<u64> = numbers.into_iter().flatten().collect();
        assert!(known.windows(2).all(|pair| pair[0] < pair[1]));
        let missed = known.last().unwrap() - known[0] + 1 - known.len() as u64;
        // Of the thread that ended, for no longer than three seconds.
        assert!(missed <= 300, "{missed}");
        assert_eq!(sequencer.threads(), 2);
    }

    #[test]
    fn threads_that_change_places_are_numbered_in_their_new_order() {
        let mut datagrams = stream(&simple(3), 100, 0, 1000);
        for cycle in datagrams.chunks_mut(3).skip(300) {
            cycle.swap(0, 2);
        }
        let mut sequencer = learnt(&datagrams);
        let numbers = taken(&mut sequencer, &datagrams);
        let numbers: Vec<u64> = numbers.into_iter().flatten().collect();
        assert_eq!(numbers.len(), 3000);
        let late = numbers.windows(2).filter(|pair| pair[1] < pair[0]).count();
        assert!(late <= 2 * 2 * CYCLES, "{late}");
        let mut distinct = numbers.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 3000);
    }

    #[test]
    fn after_a_jump_in_time_each_datagram_has_its_number() {
        let mut datagrams = stream(&simple(2), 100, 0, 300);
        datagrams.extend(stream(&simple(2), 100, 5000, 300));
        let mut sequencer = learnt(&datagrams);
        let numbers = taken(&mut sequencer, &datagrams);
        let numbers: Vec<u64> = numbers.into_iter().flatten().collect();
        assert_eq!(numbers.len(), 1200);
        assert_eq!(numbers[600] - numbers[599], 2 * 4700 + 1);
        assert_eq!(sequencer.threads(), 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        /// Lost datagrams leave their numbers free, and those out of order have the right ones.
        #[test]
        fn the_number_is_the_place_in_the_stream(
            threads in threads(),
            rate in 50u32..200,
            first in 0u32..200,
            given: bool,
            lost in prop::collection::btree_set(700usize..2000, 0..200),
            swapped in prop::collection::vec(1usize..2000, 0..100),
        ) {
            let datagrams = stream(&threads, rate, first, 2500 / threads.len() as u32);
            let mut order: Vec<usize> = (0..datagrams.len()).collect();
            // Where the rate is not given, the end of the first second must come as it was.
            let first_turn = threads.len() * (rate as usize + 10);
            let from = if given { 0 } else { first_turn };
            for place in swapped.into_iter().filter(|place| *place > from) {
                order.swap(place, place - 1);
            }
            order.retain(|place| !lost.contains(place) || *place < from);
            let sent: Vec<Vec<u8>> = order.iter().map(|place| datagrams[*place].clone()).collect();
            let rate = FrameRate::new(rate).filter(|_| given);
            let mut sequencer = Sequencer::new(rate);
            let numbers = number(&mut sequencer, &sent);
            prop_assert_eq!(numbers.len(), sent.len());
            let numbers: Vec<(usize, u64)> = numbers
                .iter()
                .map(|(place, number)| (order[*place], number.unwrap()))
                .collect();
            let mut distinct: Vec<u64> = numbers.iter().map(|(_, number)| *number).collect();
            distinct.sort_unstable();
            distinct.dedup();
            prop_assert_eq!(distinct.len(), numbers.len());
            // Threads that came out of order while that was learnt may have changed places in the cycle.
            let count = threads.len() as u64;
            let zero = numbers[0].1.wrapping_sub(numbers[0].0 as u64);
            for (place, number) in &numbers {
                let off = number.wrapping_sub(zero).wrapping_sub(*place as u64) as i64;
                prop_assert!(off.unsigned_abs() < 2 * count, "{place}: {off}");
            }
        }

        #[test]
        fn nothing_makes_it_panic(
            datagrams in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..80),
                    (any::<u16>(), any::<u16>(), 950_000_000i64..1_900_000_000, 0u32..1 << 24)
                        .prop_map(|(s, t, second, frame)| {
                            datagram(key(s % 4, t % 4), FrameTime { second, frame })
                        }),
                ],
                0..700,
            ),
            rate in prop::option::of(any::<u32>()),
        ) {
            let mut sequencer = Sequencer::new(rate.and_then(FrameRate::new));
            for datagram in &datagrams {
                if sequencer.offer(datagram) == Verdict::Learnt {
                    sequencer.drain(|_, _| ());
                }
            }
            sequencer.drain(|_, _| ());
        }
    }
}
