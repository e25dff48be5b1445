//! Levels and thresholds of the standard; payloads decoded by a slow reference, and encoded again.

use evlbi_wire::mark5b::{Header, SYNC};
use proptest::prelude::*;

use super::*;

fn codecs() -> Vec<Codec> {
    let vdif = [1, 2, 4, 8].map(|bits| Codec::vdif(bits).unwrap());
    let mark5b = [1, 2].map(|bits| Codec::mark5b(bits).unwrap());
    vdif.into_iter().chain(mark5b).collect()
}

fn decoded(codec: Codec, payload: &[u8]) -> Vec<f32> {
    let mut values = vec![f32::NAN; codec.components(payload.len())];
    assert_eq!(codec.decode(payload, &mut values), values.len());
    values
}

fn codes(codec: Codec, payload: &[u8]) -> Vec<u8> {
    let mut codes = Vec::new();
    codec.codes(payload, |code| codes.push(code));
    codes
}

/// Returns the header of frames with samples of this width.
fn header(bits: u8, complex: bool) -> vdif::Header {
    let shape = vdif::Shape {
        frame_length: 8032,
        log2_channels: 0,
        bits,
        complex,
        legacy: false,
    };
    vdif::Header::new(shape, vdif::StreamKey::default())
}

/// Returns the codec of samples of this width, their values in a payload, and their codes.
fn in_words(bits: u8, complex: bool, payload: &[u8]) -> (Codec, Vec<f32>, Vec<u8>) {
    let codec = Codec::of(&header(bits, complex)).unwrap();
    let mut converted = Vec::new();
    Words::of(bits, complex).unpack(payload, &mut converted);
    let codec_of_words = match codec.words(complex) {
        Some(_) => codec,
        None => Codec(Kind::Words(bits)),
    };
    let values = decoded(codec_of_words, &converted);
    (codec_of_words, values, codes(codec_of_words, &converted))
}

/// Slow reference: one code after the other from one long number.
fn scalar(codec: Codec, payload: &[u8]) -> Vec<f32> {
    let bits = usize::from(codec.bits());
    let bit = |at: usize| usize::from(payload[at / 8] >> (at % 8) & 1);
    (0..payload.len() * 8 / bits)
        .map(|component| {
            let code: usize = (0..bits)
                .map(|place| bit(component * bits + place) << place)
                .sum();
            codec.levels()[code]
        })
        .collect()
}

#[test]
fn levels_are_the_standard_ones() {
    let vdif = |bits| Codec::vdif(bits).unwrap();
    assert_eq!(decoded(vdif(2), &[0b1110_0100]), [-HIGH, -1.0, 1.0, HIGH]);
    assert_eq!(
        decoded(vdif(1), &[0b1010_0110]),
        [-1.0, 1.0, 1.0, -1.0, -1.0, 1.0, -1.0, 1.0]
    );
    assert_eq!(decoded(vdif(4), &[0x80, 0xf9])[0], -8.0 / 2.95);
    assert_eq!(
        decoded(vdif(4), &[0x80, 0xf9])[1..],
        [0.0, 1.0 / 2.95, 7.0 / 2.95]
    );
    assert_eq!(
        decoded(vdif(8), &[0, 128, 255]),
        [-127.5 / 35.5, 0.5 / 35.5, 127.5 / 35.5]
    );
    let mark5b = |bits| Codec::mark5b(bits).unwrap();
    assert_eq!(decoded(mark5b(2), &[0b1110_0100]), [-HIGH, 1.0, -1.0, HIGH]);
    assert_eq!(decoded(mark5b(1), &[0b0000_0001])[..2], [-1.0, 1.0]);
}

#[test]
fn bits_without_levels_are_refused() {
    assert_eq!(
        Codec::vdif(16).unwrap_err().to_string(),
        "cannot decode VDIF samples of 16 bits: supported are 1, 2, 4 or 8 bits"
    );
    assert!(Codec::vdif(0).is_err());
    assert!(Codec::mark5b(4).is_err());
}

#[test]
fn the_header_gives_the_codec() {
    let shape = vdif::Shape {
        frame_length: 10_032,
        log2_channels: 3,
        bits: 2,
        complex: false,
        legacy: false,
    };
    let mut header = vdif::Header::new(shape, vdif::StreamKey::default());
    assert_eq!(Codec::of(&header), Codec::vdif(2));
    let inner = Header::from_words([SYNC, 0, 0, 0]).unwrap();
    header.set_extended(&vdif::Extended::Mark5b(inner)).unwrap();
    assert_eq!(Codec::of(&header), Codec::mark5b(2));
}

/// VDIF 1.1: the first sample is in the lowest bits of a word, and no sample is in two words.
#[test]
fn words_contain_whole_samples_of_any_width() {
    let places = |bits: u8, complex: bool| Words::of(bits, complex).components();
    let real = [
        (3, 10),
        (5, 6),
        (6, 5),
        (7, 4),
        (9, 3),
        (10, 3),
        (11, 2),
        (12, 2),
        (16, 2),
        (17, 1),
        (32, 1),
    ];
    for (bits, components) in real {
        assert_eq!(places(bits, false), components, "{bits} bits");
    }
    // A pair in one word, or each component in its own.
    for (bits, components) in [
        (3, 10),
        (5, 6),
        (7, 4),
        (9, 2),
        (12, 2),
        (16, 2),
        (17, 1),
        (32, 1),
    ] {
        assert_eq!(places(bits, true), components, "{bits} bits, complex");
    }
    let word = (0..8u32).fold(3 << 30, |word, code| word | code << (3 * code));
    let (codec, values, codes) = in_words(3, false, &word.to_le_bytes());
    assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 0, 0]);
    assert_eq!(codec.levels().len(), 8);
    assert!((values[7] - 3.5 * 32.0 / 35.5).abs() < 1e-6, "{values:?}");
    let (_, values, codes) = in_words(16, true, &[0x00, 0x80, 0xff, 0xff]);
    assert!((values[0] - 0.5 / 256.0 / 35.5).abs() < 1e-7, "{values:?}");
    assert!((values[1] - 127.998 / 35.5).abs() < 1e-4, "{values:?}");
    assert_eq!(codes, [128, 255]);
    let (_, values, codes) = in_words(32, false, &u32::MAX.to_le_bytes());
    assert!((values[0] - 128.0 / 35.5).abs() < 1e-6, "{values:?}");
    assert_eq!(codes, [255]);
}

#[test]
fn thresholds_are_where_they_should_be() {
    let states = |bits: u8, values: &[f32], sigma| {
        let codec = Codec::vdif(bits).unwrap();
        let mut payload = vec![0; values.len() * usize::from(bits) / 8];
        codec.encode(values, sigma, &mut payload);
        codes(codec, &payload)
    };
    let edge = 2.0 * THRESHOLD;
    assert_eq!(
        states(2, &[-edge - 0.01, -edge + 0.01, -1e-9, 0.0], 2.0),
        [0, 1, 1, 2]
    );
    assert_eq!(
        states(2, &[edge - 0.01, edge, f32::INFINITY, f32::NAN], 2.0),
        [2, 3, 3, 0]
    );
    assert_eq!(
        states(4, &[-9.0, -2.5, -0.04, 0.04, 2.37, 9.0], 1.0),
        [0, 1, 8, 8, 15, 15]
    );
    assert_eq!(
        states(8, &[-9.0, -0.001, 0.001, 9.0], 1.0),
        [0, 127, 128, 255]
    );
}

#[test]
fn short_slices_are_filled_as_far_as_they_go() {
    let codec = Codec::vdif(2).unwrap();
    let mut values = [f32::NAN; 7];
    assert_eq!(codec.decode(&[0b1110_0100; 9], &mut values), 7);
    assert_eq!(values[4..], [-HIGH, -1.0, 1.0]);
    let mut values = [9.0; 6];
    assert_eq!(codec.decode(&[0xff], &mut values), 4);
    assert_eq!(values[4..], [9.0, 9.0]);
    let mut payload = [0x55; 3];
    assert_eq!(codec.encode(&[9.0; 7], 1.0, &mut payload), 1);
    assert_eq!(payload, [0xff, 0x55, 0x55]);
    assert_eq!(codec.decode(&[], &mut []), 0);
}

proptest! {
    /// Widths with tables have the same values in words; of all others each code has its level.
    #[test]
    fn words_agree_with_tables(
        words in prop::collection::vec(any::<u32>(), 0..50),
        bits in 1u8..=32,
        complex: bool,
    ) {
        let payload: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (codec, values, codes) = in_words(bits, complex, &payload);
        prop_assert_eq!(values.len(), words.len() * Words::of(bits, complex).components());
        if bits == 8 {
            let table = decoded(Codec::vdif(8).unwrap(), &payload);
            for (value, of_table) in values.iter().zip(table) {
                prop_assert!((value - of_table).abs() < 1e-6);
            }
        }
        let step = if bits < 8 { 1e-5 } else { 0.51 / 35.5 };
        if ![1, 2, 4].contains(&bits) {
            for (value, code) in values.iter().zip(codes) {
                let level = codec.levels()[usize::from(code)];
                prop_assert!((value - level).abs() < step, "{value} is not {level}");
            }
        }
    }

    #[test]
    fn tables_agree_with_the_scalar_decoder(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        for codec in codecs() {
            prop_assert_eq!(decoded(codec, &payload), scalar(codec, &payload));
            let by_code = codes(codec, &payload);
            let by_code: Vec<f32> = by_code.iter().map(|code| codec.levels()[usize::from(*code)]).collect();
            prop_assert_eq!(by_code, scalar(codec, &payload));
        }
    }

    #[test]
    fn decoded_values_go_back_to_their_codes(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        for codec in codecs() {
            let mut again = vec![0; payload.len()];
            let bytes = codec.encode(&decoded(codec, &payload), codec.sigma(), &mut again);
            prop_assert_eq!(bytes, payload.len());
            prop_assert_eq!(&again, &payload);
        }
    }
}
