//! Any bytes as a recording that is split into channels: samples keep their values, and lengths, times and gaps of the frames that are
//! made do not contradict each other.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use evlbi_core::deframe::{Deframer, Format, FrameState, Settings};
use evlbi_fx::codec::Codec;
use evlbi_stream::lane::{Converter, Lane, Made, Piece};
use evlbi_stream::selection::Selection;
use evlbi_wire::vdif::StreamKey;

/// Settings of the input.
const SETTINGS: [&str; 4] = [
    "year=2006",
    "inverted&format=Mark5B-512-8-2",
    "format=Mark5B-32-1-1",
    "modulated&inverted",
];

pub fn run(data: &[u8]) {
    let Some((&control, stream)) = data.split_first() else {
        return;
    };
    let selection: Selection = SETTINGS[usize::from(control >> 1) % 4]
        .parse()
        .expect("settings");
    let mut deframer = Deframer::new(Settings {
        latest: selection.read_at(1_700_000_000),
        ..Settings::default()
    });
    let mut converter = None;
    let mut lanes = HashMap::new();
    deframer.walk(stream, true, &mut |chunk| {
        let Some(layout) = chunk.layout else {
            return;
        };
        let whole = chunk.frames.iter().find(|it| it.state == FrameState::Whole);
        if let Some(frame) = whole.filter(|_| layout.format != Format::Vdif && converter.is_none())
        {
            let (first, key) = (&chunk.bytes[frame.bytes.clone()], StreamKey::default());
            converter = Converter::new(&selection, &layout, first, chunk.frame_rate, key).ok();
        }
        for frame in chunk.frames {
            let piece = match &mut converter {
                Some(converter) if converter.fits(&layout) => {
                    converter.piece(frame, chunk.with_next, layout.header_length)
                }
                None if layout.format == Format::Vdif => {
                    let lane: Option<&Lane> = frame.key.and_then(|key| lanes.get(&key));
                    Piece::read(frame, chunk.with_next, lane.and_then(|lane| lane.like(0)))
                }
                _ => None,
            };
            let Some(piece) = piece else {
                continue;
            };
            values(&piece, selection.inverted);
            let (key, shape) = (piece.header.key(), piece.header.shape());
            let lane = match lanes.entry(key) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => {
                    let apart = control & 1 == 0;
                    match Lane::split(key, shape, piece.names, None, apart) {
                        Ok(lane) => place.insert(lane),
                        Err(_) => continue,
                    }
                }
            };
            if let Some(rate) = chunk.frame_rate.filter(|_| lane.frame_rate().is_none()) {
                let _ = lane.set_rate(rate);
            }
            lane.take(0, &piece);
            lane.advance(&mut |made| check(&made));
        }
    });
    for lane in lanes.values_mut() {
        lane.finish(&mut |made| check(&made));
    }
}

/// Checks that a conversion keeps the values of samples, or reverses their sign.
fn values(piece: &Piece<'_>, is_inverted: bool) {
    let Some(unpacker) = piece.order else {
        return;
    };
    let (layout, mut payload) = (unpacker.layout(), Vec::new());
    unpacker.unpack(piece.recorded.samples(), &mut payload);
    let vdif = Codec::vdif(layout.codec.bits()).expect("1 or 2 bits");
    let of = |codec: Codec, payload: &[u8]| {
        let mut values = vec![0.0; codec.components(payload.len())];
        codec.decode(payload, &mut values);
        values
    };
    let sign = if is_inverted { -1.0 } else { 1.0 };
    let recorded = of(layout.codec, &payload).into_iter();
    assert!(
        recorded
            .map(|value| value * sign)
            .eq(of(vdif, piece.payload))
    );
}

fn check(made: &Made<'_>) {
    let length = made.frame.as_ref().map(|(header, payload)| {
        assert_eq!(header.frame_length(), made.frame_length);
        assert_eq!(header.len() + payload.len(), made.frame_length);
        assert_eq!((header.key(), header.time()), (made.key, made.time));
        payload.len()
    });
    let mut last = 0..0;
    for gap in made.gaps {
        let bytes = gap.bytes.clone().unwrap_or(0..made.frame_length);
        // A byte can have samples of two gaps.
        assert!(last.start <= bytes.start && last.end <= bytes.end && !bytes.is_empty());
        assert!(length.is_none_or(|length| bytes.end <= length || gap.bytes.is_none()));
        last = bytes;
    }
}
