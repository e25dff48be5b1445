//! Tests of the corner turn against a turn of one bit after another.

use proptest::prelude::*;

use super::*;

fn bit(bytes: &[u8], number: usize) -> u8 {
    bytes[number / 8] >> (number % 8) & 1
}

/// Splits by definition, one bit after another: VDIF fills its words from the lowest bit.
fn plain_split(payload: &[u8], width: usize, channels: usize) -> Vec<u8> {
    let times = payload.len() * 8 / width / channels;
    let mut split = vec![0; payload.len()];
    for time in 0..times {
        for channel in 0..channels {
            for place in 0..width {
                let from = (time * channels + channel) * width + place;
                let to = (channel * times + time) * width + place;
                split[to / 8] |= bit(payload, from) << (to % 8);
            }
        }
    }
    split
}

#[test]
fn all_shapes_agree_with_the_turn_bit_by_bit() {
    let noise: Vec<u8> = (0..1 << 16)
        .map(|n: u32| (n.wrapping_mul(0x9e37_79b9) >> 13) as u8)
        .collect();
    for width in (0..=8).map(|log2| 1 << log2) {
        for channels in (0..=6).map(|log2| 1 << log2) {
            let turn = Turn::new(width, channels).unwrap();
            let payload = &noise[..3 * turn.unit()];
            let mut split = vec![0; payload.len()];
            turn.split(payload, &mut split);
            let expected = plain_split(payload, width, channels);
            assert!(split == expected, "{channels} channels of {width} bits");
            let mut joined = vec![0; payload.len()];
            turn.join(&split, &mut joined);
            assert!(joined == payload, "{channels} channels of {width} bits");
        }
    }
}

#[test]
fn an_exchange_is_needed_once_per_bit_of_the_sample_times() {
    for (width, channels, count) in [(2, 16, 5), (1, 64, 6), (1, 2, 6), (32, 4, 1), (64, 4, 0)] {
        let turn = Turn::new(width, channels).unwrap();
        assert_eq!(turn.exchanges.len(), count, "{channels} of {width} bits");
    }
}

#[test]
fn numbers_that_are_not_powers_of_two_are_refused() {
    for (width, channels) in [(3, 2), (2, 3), (0, 2), (2, 0), (2, 128)] {
        assert!(Turn::new(width, channels).is_none(), "{width} {channels}");
    }
}

proptest! {
    #[test]
    fn split_then_join_is_the_identity(
        width in 0..7u32,
        channels in 0..7u32,
        units in 0..5usize,
        rest in 0..8usize,
        seed in any::<u64>(),
    ) {
        let (width, channels) = (1 << width, 1 << channels);
        let turn = Turn::new(width, channels).unwrap();
        let length = units * turn.unit();
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let payload: Vec<u8> = (0..length).map(|_| next()).collect();
        let mut split = vec![0; length];
        turn.split(&payload, &mut split);
        prop_assert_eq!(&split, &plain_split(&payload, width, channels));
        let mut joined = vec![0; length];
        turn.join(&split, &mut joined);
        prop_assert_eq!(joined, payload);
        // Any lengths are taken without a panic.
        let mut other = vec![0; length + rest];
        turn.split(&vec![1; length / 2 + rest], &mut other);
        turn.join(&vec![1; length / 2 + rest], &mut other);
    }
}
