//! Any bytes as VDIF samples of any width: each code is the one at its place in the words.

use evlbi_fx::codec::Codec;
use evlbi_fx::codec::words::Words;
use evlbi_wire::vdif::{HEADER_LEN, Header, Shape, StreamKey};

pub fn run(data: &[u8]) {
    let Some((&control, payload)) = data.split_first() else {
        return;
    };
    let (bits, complex) = (control % 32 + 1, control & 0x80 != 0);
    let words = Words::of(bits, complex);
    let per_word = words.components();
    assert!(per_word > 0 && per_word * usize::from(bits) <= 32);
    let mut values = Vec::new();
    words.unpack(payload, &mut values);
    let (recorded, _) = payload.as_chunks();
    assert_eq!(values.len(), 4 * per_word * recorded.len());
    if matches!(bits, 1 | 2 | 4 | 8) {
        // VDIF has tables for these.
        return;
    }
    let shape = Shape {
        frame_length: HEADER_LEN + 8,
        log2_channels: 0,
        bits,
        complex,
        legacy: false,
    };
    let codec = Codec::of(&Header::new(shape, StreamKey::default())).expect("words");
    let mut decoded = vec![0.0; per_word * recorded.len()];
    assert_eq!(codec.decode(&values, &mut decoded), decoded.len());
    let mut codes = Vec::new();
    codec.codes(&values, |code| codes.push(code));
    let recorded = recorded.iter().flat_map(|word| {
        let word = u64::from(u32::from_le_bytes(*word));
        let code = move |place| word >> (place * usize::from(bits)) & ((1 << bits) - 1);
        (0..per_word).map(code)
    });
    let levels = codec.levels().iter();
    let highest_level = levels.fold(0.0, |max, level| level.abs().max(max));
    let mut count = 0;
    for ((code, value), recorded) in codes.iter().zip(&decoded).zip(recorded) {
        let highest = recorded >> bits.saturating_sub(8);
        // A value of many bits may be rounded to the code next to it.
        assert!(
            u64::from(*code).abs_diff(highest) <= u64::from(bits > 16),
            "{recorded:x} {code}"
        );
        assert!(value.abs() <= 1.01 * highest_level);
        count += 1;
    }
    assert_eq!(count, decoded.len());
}
