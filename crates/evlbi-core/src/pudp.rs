//! Streams without sequence numbers (`pudp`): each datagram is one whole VDIF frame, and its number comes
//! from the frame's own time and thread.
//!
//! The threads that there are, and the order in which they come, are learnt from the first datagrams. From
//! then on the number is that of the cycle of threads, times the number of threads, plus the place of the
//! thread in the cycle: without loss, one more for each datagram. Clocks of threads may be off by whole
//! seconds, and threads may lag behind one another.

use std::collections::HashMap;

use evlbi_wire::time::{FrameRate, FrameTime};
use evlbi_wire::vdif::{Header, StreamKey};

/// Learning ends when so many datagrams came and each thread was seen often enough,
const ENOUGH: usize = 64;
/// namely so many times,
const SIGHTINGS: u64 = 3;
/// or when so many datagrams came.
const MOST: usize = 512;
/// Or so many bytes.
const MOST_BYTES: usize = 8 << 20;
/// The number of the first second's first frame: those of earlier frames that come late are below it.
const FIRST: u64 = 1 << 32;
/// Threads are this close to one another in time, in frames, where that is not known better.
const NEAR: u32 = 64;
/// A frame number is this close to one that was seen before, or else it must be confirmed.
const PLAUSIBLE: u32 = 1024;

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was kept: its number will be known when more have come.
    Kept,
    /// It was kept, and the numbers of all that were kept are known now: [`Sequencer::drain`].
    Learnt,
    /// Its number.
    Number(u64),
    /// No whole VDIF frame, or one of another length, or of a time that does not go with the others'.
    Foreign,
    /// A frame of a station or thread that was not there when the threads were learnt.
    UnknownThread,
}

/// Numbers datagrams that have no sequence numbers.
#[derive(Clone, Debug)]
pub struct Sequencer {
    /// Length of the frames, once one has come.
    frame_length: Option<usize>,
    lanes: HashMap<StreamKey, Lane>,
    clock: Clock,
    /// The datagrams from which is learnt; `None` afterwards.
    kept: Option<Vec<u8>>,
}

/// One thread.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    /// How far its clock is ahead.
    seconds_ahead: i64,
    /// Its place, from the place on where its cycle begins.
    phase: i64,
    sightings: u64,
}

impl Sequencer {
    /// A sequencer for a stream that begins. The frame rate is needed where headers do not tell it: without
    /// it, frames that are lost at the end of the first second are not noticed.
    pub fn new(frame_rate: Option<FrameRate>) -> Sequencer {
        Sequencer {
            frame_length: None,
            lanes: HashMap::new(),
            clock: Clock::new(frame_rate),
            kept: Some(Vec::new()),
        }
    }

    /// How many threads there are, of all stations; so far, while that is being learnt.
    pub fn threads(&self) -> usize {
        self.lanes.len()
    }

    /// Takes the next datagram.
    pub fn offer(&mut self, datagram: &[u8]) -> Verdict {
        let Ok(header) = Header::parse(datagram) else {
            return Verdict::Foreign;
        };
        let length = *self.frame_length.get_or_insert(header.frame_length());
        if header.frame_length() != datagram.len() || length != datagram.len() {
            return Verdict::Foreign;
        }
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(datagram);
            self.meet(&header);
            return if self.has_enough() {
                Verdict::Learnt
            } else {
                Verdict::Kept
            };
        }
        if !self.lanes.contains_key(&header.key()) {
            return Verdict::UnknownThread;
        }
        self.number(&header)
            .map_or(Verdict::Foreign, Verdict::Number)
    }

    /// Ends the learning, with whatever was learnt, and gives each datagram that was kept to `sink` with its
    /// number.
    pub fn drain(&mut self, mut sink: impl FnMut(u64, &[u8])) {
        let (Some(kept), Some(length)) = (self.kept.take(), self.frame_length) else {
            return;
        };
        self.learn(&kept, length);
        for datagram in kept.chunks_exact(length) {
            let number = Header::parse(datagram)
                .ok()
                .and_then(|header| self.number(&header));
            if let Some(number) = number {
                sink(number, datagram);
            }
        }
    }

    fn meet(&mut self, header: &Header) {
        let lane = self.lanes.entry(header.key()).or_default();
        lane.sightings += 1;
    }

    fn has_enough(&self) -> bool {
        let bytes = self.kept.as_ref().map_or(0, Vec::len);
        let datagrams = bytes / self.frame_length.unwrap_or(1).max(1);
        let well_known = self.lanes.values().all(|lane| lane.sightings >= SIGHTINGS);
        datagrams >= ENOUGH && well_known || datagrams >= MOST || bytes >= MOST_BYTES
    }

    fn learn(&mut self, kept: &[u8], length: usize) {
        // A thread that came once among many is the work of a damaged header.
        if self.lanes.values().any(|lane| lane.sightings >= SIGHTINGS) {
            self.lanes.retain(|_, lane| lane.sightings > 1);
        }
        let headers = || {
            kept.chunks_exact(length)
                .filter_map(|d| Header::parse(d).ok())
        };
        let usual = usual_seconds(headers());
        let is_usual = |header: &Header| {
            let usual = usual.get(&header.key());
            usual.is_some_and(|usual| usual.abs_diff(header.time().second) <= 2)
        };
        self.compare_clocks(headers().filter(is_usual));
        self.start_clock(headers());
        let mut clock = self.clock.clone();
        let threads = self.lanes.len() as i64;
        let mut places: HashMap<StreamKey, Vec<i64>> = HashMap::new();
        for (place, header) in (0i64..).zip(headers()) {
            if let Some(lane) = self.lanes.get(&header.key())
                && let Some(cycle) = clock.cycle(lane.own_time(&header))
            {
                let begins = cycle.saturating_mul(threads);
                places
                    .entry(header.key())
                    .or_default()
                    .push(place.saturating_sub(begins));
            }
        }
        let places = places.into_iter().map(|(key, mut places)| {
            places.sort_unstable();
            (key, places[places.len() / 2])
        });
        self.put_in_order(places.collect());
    }

    /// Starts the clock at the first second that two datagrams agree on, with as much as they tell of the
    /// length of a second.
    fn start_clock(&mut self, headers: impl Iterator<Item = Header>) {
        let lane = |header: &Header| self.lanes.get(&header.key());
        let times = headers.filter_map(|header| Some(lane(&header)?.own_time(&header)));
        let times: Vec<FrameTime> = times.collect();
        let agree = |pair: &&[FrameTime]| pair[0].second.abs_diff(pair[1].second) <= 1;
        let agreed = times.windows(2).find(agree).unwrap_or(&times);
        self.clock.second = agreed.iter().map(|time| time.second).min();
        self.clock.most = times.iter().map(|time| time.frame).min().unwrap_or(0);
        let mut trial = self.clock.clone();
        for time in times {
            trial.cycle(time);
        }
        self.clock.most = trial.most;
        self.clock.before = -self.clock.frames();
    }

    /// Finds out by how many seconds each thread's clock is ahead of the first one's: of those that were met
    /// before, the one nearest in frame number is compared with.
    fn compare_clocks(&mut self, headers: impl Iterator<Item = Header>) {
        let mut met: HashMap<StreamKey, FrameTime> = HashMap::new();
        for header in headers {
            self.clock.rate = self.clock.rate.or(header.frame_rate());
            let (key, time) = (header.key(), header.time());
            let Some(lane) = self.lanes.get_mut(&key) else {
                continue;
            };
            if !met.contains_key(&key) {
                let apart = |other: &&FrameTime| other.frame.abs_diff(time.frame);
                let beside = met.values().min_by_key(apart);
                let ahead = beside.map(|now| seconds_ahead(time, *now, self.clock.rate));
                lane.seconds_ahead = ahead.unwrap_or(0);
            }
            met.insert(key, lane.own_time(&header));
        }
    }

    /// Gives the threads their places in the cycle, in the order of `places`: where they usually were among
    /// all datagrams, from the place on where their cycle began.
    fn put_in_order(&mut self, mut places: Vec<(StreamKey, i64)>) {
        let threads = self.lanes.len() as i64;
        let first = places.iter().map(|(_, place)| *place).min().unwrap_or(0);
        let behind = |place: i64| place.saturating_sub(first);
        places.sort_unstable_by_key(|(_, place)| behind(*place) % threads);
        for (rank, (key, place)) in (0..).zip(places) {
            if let Some(lane) = self.lanes.get_mut(&key) {
                // Whole cycles that the thread lags behind, and its place within the cycle.
                lane.phase = (behind(place) / threads * threads).wrapping_add(rank);
            }
        }
    }

    fn number(&mut self, header: &Header) -> Option<u64> {
        let threads = self.lanes.len() as i64;
        let lane = self.lanes.get(&header.key())?;
        let cycle = self.clock.cycle(lane.own_time(header))?;
        let place = cycle.wrapping_mul(threads).wrapping_add(lane.phase);
        Some(FIRST.wrapping_add_signed(place))
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
}

/// The second that the frames of each thread are of, those with damaged times being few.
fn usual_seconds(headers: impl Iterator<Item = Header>) -> HashMap<StreamKey, i64> {
    let mut seconds: HashMap<StreamKey, Vec<i64>> = HashMap::new();
    for header in headers {
        let of_thread = seconds.entry(header.key()).or_default();
        of_thread.push(header.time().second);
    }
    let median = |(key, mut seconds): (StreamKey, Vec<i64>)| {
        seconds.sort_unstable();
        (key, seconds[seconds.len() / 2])
    };
    seconds.into_iter().map(median).collect()
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

/// Counts cycles of threads: one for each frame of a thread.
#[derive(Clone, Debug)]
struct Clock {
    rate: Option<FrameRate>,
    /// The latest second, the cycle that it began with, and the one that the second before began with.
    second: Option<i64>,
    begin: i64,
    before: i64,
    /// The largest frame number so far.
    most: u32,
    /// A time far from the others, to be confirmed by another near it.
    suspect: Option<FrameTime>,
}

impl Clock {
    fn new(rate: Option<FrameRate>) -> Clock {
        Clock {
            rate,
            second: None,
            begin: 0,
            before: 0,
            most: 0,
            suspect: None,
        }
    }

    /// Frames in a second, of which the largest number so far is taken for the last where it is not known.
    fn frames(&self) -> i64 {
        match self.rate {
            Some(rate) => i64::from(rate.get()),
            None => i64::from(self.most) + 1,
        }
    }

    /// The cycle of a frame; `None` where its time cannot be believed.
    fn cycle(&mut self, time: FrameTime) -> Option<i64> {
        let second = self.second.unwrap_or(time.second);
        let seconds = time.second.saturating_sub(second);
        if !self.is_plausible(time, seconds) {
            return None;
        }
        let length = self.frames();
        self.most = self.most.max(time.frame);
        let frame = i64::from(time.frame);
        match seconds {
            0 => {}
            // A frame of the second before, which comes late.
            -1 => return Some(self.before.wrapping_add(frame)),
            1 => {
                self.before = self.begin;
                self.begin = self.begin.wrapping_add(length);
            }
            _ => {
                self.begin = self.begin.wrapping_add(seconds.wrapping_mul(length));
                self.before = self.begin.wrapping_sub(length);
            }
        }
        self.second = Some(time.second);
        Some(self.begin.wrapping_add(frame))
    }

    fn is_plausible(&mut self, time: FrameTime, seconds: i64) -> bool {
        if self.rate.is_some_and(|rate| time.frame >= rate.get()) {
            return false;
        }
        let goes_on = self.rate.is_some() || time.frame <= self.most.saturating_add(PLAUSIBLE);
        if goes_on && (-1..=1).contains(&seconds) {
            self.suspect = None;
            return true;
        }
        let is_near = |suspect: FrameTime| {
            suspect.second.abs_diff(time.second) <= 1
                && suspect.frame.abs_diff(time.frame) <= PLAUSIBLE
        };
        let confirmed = self.suspect.is_some_and(is_near);
        self.suspect = (!confirmed).then_some(time);
        confirmed
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
