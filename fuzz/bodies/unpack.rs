//! Any bytes as the samples of a frame of any layout: the payload is whole, and samples that are missing are in it.

use evlbi_fx::unpack::{Recorded, Unpacker};
use evlbi_wire::mark4::{Channels, Tracks};
use evlbi_wire::time::FrameRate;
use evlbi_wire::vdif::Header;

/// Maximum length of a frame that is made, in bytes: longer ones take most of the time.
const MAX: usize = 20_000;

pub fn run(data: &[u8]) {
    let Some((&[kind, first, second, range], rest)) = data.split_first_chunk() else {
        return;
    };
    let rate = FrameRate::new(400).expect("not zero");
    let (unpacker, rest) = match kind % 3 {
        0 => match Header::parse(rest) {
            Ok(header) => (Unpacker::vdif(&header, rate).ok(), &rest[header.len()..]),
            Err(_) => return,
        },
        1 => (
            Unpacker::mark5b(usize::from(first), second, rate).ok(),
            rest,
        ),
        _ => {
            let tracks = Tracks::ALL[usize::from(first) % 4];
            let (bits, fan_out) = (usize::from(second & 3), 1 << (second >> 2 & 3));
            let channels = Channels::usual(tracks, bits, fan_out).ok();
            let unpacker = |it| Unpacker::mark4(&it, kind & 0x80 != 0, rate).ok();
            (channels.and_then(unpacker), rest)
        }
    };
    if let Some(unpacker) = unpacker.filter(|it| it.recorded_length() <= MAX) {
        unpack(&unpacker, rest, usize::from(range));
    }
}

fn unpack(unpacker: &Unpacker, data: &[u8], start: usize) {
    let (layout, length) = (unpacker.layout(), unpacker.recorded_length());
    let mut bytes = data.to_vec();
    bytes.resize(bytes.len().max(length), 0);
    let from = (bytes.len() - length).min(start);
    let (start, end) = (start.min(length), (7 * start).min(length));
    let recorded = Recorded::new(&bytes, from..from + length).expect("all of them");
    let absent = start..end;
    let recorded = recorded.without(std::slice::from_ref(&absent));
    let mut payload = vec![1, 2, 3];
    unpacker.unpack(recorded.samples(), &mut payload);
    assert_eq!(payload.len(), layout.payload);
    let mut values = vec![f32::NAN; layout.codec.components(payload.len())];
    assert_eq!(layout.codec.decode(&payload, &mut values), values.len());
    assert!(values.iter().all(|value| value.is_finite()));
    assert_eq!(
        values.len(),
        layout.components() * layout.frame_samples() as usize
    );

    let all = 0..layout.frame_samples();
    let is_within = |samples: &std::ops::Range<i64>| {
        all.start <= samples.start && samples.start <= samples.end && samples.end <= all.end
    };
    let missing = unpacker.missing(&recorded);
    let filled = unpacker.filled(&recorded);
    assert!(missing.iter().chain(filled.iter()).all(|it| is_within(&it)));
    let whole = unpacker.samples_of(0..length);
    assert!(is_within(&whole) && whole.end == all.end);
    assert!(missing.total() <= all.end as u64);
    if let Some(fill) = unpacker.fill(start) {
        assert!(!fill.is_empty());
    }
}
