//! Numbers from the times and threads of frames, for any clocks and orders.

use evlbi_wire::vdif::{Extended, Nict, Shape, StationId};
use proptest::prelude::*;

use super::*;

const LENGTH: usize = 64;
const SECOND: i64 = 1_580_232_600;

/// Threads in order, with the offset of their clocks and their lag in frames.
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

/// Returns the numbers of the datagrams, each with its place among those given.
fn number(sequencer: &mut Sequencer, datagrams: &[Vec<u8>]) -> Vec<(usize, Option<u64>)> {
    let mut numbers = Vec::new();
    let mut kept = Vec::new();
    for (place, datagram) in datagrams.iter().enumerate() {
        match sequencer.offer(datagram) {
            Verdict::Pending => kept.push(place),
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
fn other_datagrams_are_recognised() {
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
        assert_eq!(sequencer.offer(datagram), Verdict::Pending);
    }
    let mut numbers = Vec::new();
    sequencer.drain(|number, bytes| {
        assert_eq!(bytes, datagrams[numbers.len()]);
        numbers.push((numbers.len(), Some(number)));
    });
    assert_eq!(numbers.len(), 8);
    assert_consecutive(&numbers);
}

/// Returns the numbers of datagrams that were all accepted, by a sequencer that detected the stream from the first 512.
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

/// Frames of 8000 bytes of data: 2000 of them per second are 128 Mbit/s.
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
    // Of 2000 frames per second, 100 before the turn and 500 after it.
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
fn an_observed_rate_outranks_one_in_the_headers() {
    // An EDV 1 header whose sample rate gives 1000 frames per second.
    let mut datagrams = stream(&simple(1), 100, 20, 300);
    for datagram in &mut datagrams {
        let mut header = Header::parse(datagram).unwrap();
        let extended = Extended::Nict(Nict {
            complex_rate: 64_000,
            ..Nict::default()
        });
        header.set_extended(&extended).unwrap();
        header.emit(datagram);
    }
    let told = Header::parse(&datagrams[0]).unwrap().frame_rate().unwrap();
    assert_ne!(told.get(), 100);
    let mut sequencer = learnt(&datagrams);
    let numbers = taken(&mut sequencer, &datagrams);
    assert_consecutive(&numbers.into_iter().enumerate().collect::<Vec<_>>());
}

#[test]
fn a_thread_that_starts_later_is_numbered_and_one_that_ends_is_not_missed() {
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
    // Of the thread that ended, for at most three seconds.
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
    /// Lost datagrams leave their numbers unused, and those out of order get the right ones.
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
        // If the rate is not given, a second must arrive in order up to its end.
        let second = threads.len() * (2 * rate as usize + 10);
        let from = if given { 0 } else { second };
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
        // Threads that arrived out of order during learning may have changed places in the cycle.
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
