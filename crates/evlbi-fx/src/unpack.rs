//! Makes the payload of a track from the samples of a recorded frame, and finds which of them are not samples.
//!
//! A payload is a series of codes, time outermost, then channel. VDIF and Mark 5B record it as it is, except VDIF with samples whose
//! bits have no tables ([`words`]). Mark 4 spreads it over tracks, and its header replaces the first samples of each
//! frame: they are zero in the payload, and never valid. Further orders of recorded samples belong here.

use std::ops::Range;
use std::sync::Arc;

use evlbi_wire::fill;
use evlbi_wire::mark4::{self, Channels, Order, Tracks};
use evlbi_wire::mark5b;
use evlbi_wire::time::FrameRate;
use evlbi_wire::validity::Intervals;
use evlbi_wire::vdif::Header;

use crate::codec::Codec;
use crate::codec::words::{self, Words};
use crate::layout::{Layout, LayoutError};

/// Samples of a frame as they were recorded.
#[derive(Clone, Debug)]
pub struct Recorded<'a> {
    bytes: &'a [u8],
    samples: Range<usize>,
    missing: &'a [Range<usize>],
}

impl<'a> Recorded<'a> {
    /// Makes the samples at `samples` of `bytes`. The bytes next to them show whether a run of the fill pattern continues there.
    /// `None` if the samples are not all in `bytes`.
    pub fn new(bytes: &'a [u8], samples: Range<usize>) -> Option<Recorded<'a>> {
        bytes.get(samples.clone())?;
        Some(Recorded {
            bytes,
            samples,
            missing: &[],
        })
    }

    /// Returns these samples without those at byte ranges that did not arrive.
    pub fn without(self, missing: &'a [Range<usize>]) -> Recorded<'a> {
        Recorded { missing, ..self }
    }

    /// Returns the samples.
    pub fn samples(&self) -> &'a [u8] {
        &self.bytes[self.samples.clone()]
    }

    /// Returns the samples with the bytes next to them that matter, and their place in these.
    pub fn with_context(&self) -> (&'a [u8], Range<usize>) {
        let Range { start, end } = self.samples;
        let from = start.saturating_sub(fill::CONTEXT);
        let to = end.saturating_add(fill::CONTEXT).min(self.bytes.len());
        (&self.bytes[from..to], start - from..end - from)
    }

    /// Returns the runs of the fill pattern in the samples.
    pub fn fill(&self) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let (bytes, Range { start, end }) = self.with_context();
        let in_samples = move |run: Range<usize>| {
            let of = |place: usize| place.clamp(start, end) - start;
            of(run.start)..of(run.end)
        };
        let runs = fill::find(bytes).map(in_samples);
        runs.filter(|run| !run.is_empty())
    }
}

/// The samples without the bytes next to them.
impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for Recorded<'a> {
    fn from(samples: &'a T) -> Recorded<'a> {
        let bytes = samples.as_ref();
        Recorded {
            bytes,
            samples: 0..bytes.len(),
            missing: &[],
        }
    }
}

/// Converter of recorded samples into payloads of a layout.
#[derive(Clone, Debug)]
pub struct Unpacker {
    layout: Layout,
    /// Length of the recorded samples of a frame, in bytes.
    recorded: usize,
    place: Place,
}

/// Place of the samples in a frame.
#[derive(Clone, Debug)]
enum Place {
    /// That in the payload.
    Payload,
    Tracks(OnTracks),
    Words(Words),
}

/// Samples on the tracks of Mark 4.
#[derive(Clone, Debug)]
struct OnTracks {
    tracks: Tracks,
    order: Arc<Order>,
    is_modulated: bool,
}

impl Unpacker {
    /// Makes an unpacker of frames whose samples are recorded as payloads of this layout.
    pub fn plain(layout: Layout) -> Unpacker {
        Unpacker {
            layout,
            recorded: layout.payload,
            place: Place::Payload,
        }
    }

    /// Makes an unpacker of VDIF frames with such a header.
    ///
    /// # Errors
    /// Returns a [`LayoutError`] if the samples cannot be decoded.
    pub fn vdif(header: &Header, frame_rate: FrameRate) -> Result<Unpacker, LayoutError> {
        let layout = Layout::of(header, frame_rate)?;
        let plain = Unpacker::plain(layout);
        Ok(match layout.codec.words(layout.complex) {
            Some(words) => Unpacker {
                recorded: header.shape().payload_length(),
                place: Place::Words(words),
                ..plain
            },
            None => plain,
        })
    }

    /// Makes an unpacker of Mark 5B frames, whose headers do not contain the number of channels and bits.
    ///
    /// # Errors
    /// Returns a [`LayoutError`] if the samples cannot be decoded.
    pub fn mark5b(
        channels: usize,
        bits: u8,
        frame_rate: FrameRate,
    ) -> Result<Unpacker, LayoutError> {
        let layout = Layout {
            codec: Codec::mark5b(bits)?,
            complex: false,
            channels,
            payload: mark5b::PAYLOAD_LEN,
            replaced: 0,
            frame_rate,
        };
        Ok(Unpacker::plain(layout.checked()?))
    }

    /// Makes an unpacker of Mark 4 frames with these channels. The value 1 of 1-bit samples is positive, as in VDIF.
    ///
    /// # Errors
    /// Returns a [`LayoutError`] if the samples cannot be decoded.
    pub fn mark4(
        channels: &Channels,
        is_modulated: bool,
        frame_rate: FrameRate,
    ) -> Result<Unpacker, LayoutError> {
        let tracks = channels.tracks();
        let layout = Layout {
            codec: Codec::vdif(channels.bits() as u8)?,
            complex: false,
            channels: channels.channels().len(),
            payload: tracks.frame_length(),
            replaced: mark4::HEADER_BITS * channels.fan_out(),
            frame_rate,
        };
        Ok(Unpacker {
            layout: layout.checked()?,
            recorded: tracks.payload_length(),
            place: Place::Tracks(OnTracks {
                tracks,
                order: Arc::new(Order::of(channels)),
                is_modulated,
            }),
        })
    }

    /// Returns the layout of the payloads.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the length of the recorded samples of a frame, in bytes.
    pub fn recorded_length(&self) -> usize {
        self.recorded
    }

    /// Replaces `payload` by that of these recorded samples.
    pub fn unpack(&self, recorded: &[u8], payload: &mut Vec<u8>) {
        payload.clear();
        match &self.place {
            Place::Payload => payload.extend_from_slice(recorded),
            Place::Words(words) => {
                words.unpack(recorded, payload);
                payload.truncate(self.layout.payload);
            }
            Place::Tracks(on) => {
                let header = on.tracks.header_length();
                payload.resize(header, 0);
                on.order.to_vdif(recorded, payload);
                if on.is_modulated {
                    // The order changes within bit times, in which the modulation is the same for all bits.
                    mark4::modulate(&mut payload[header..], on.tracks);
                }
            }
        }
    }

    /// Returns the payload of two words of fill pattern, as of a loss that starts at the byte `start` of the recorded samples; further words
    /// repeat it. `None` if the samples are modulated, so that nothing repeats, or fewer.
    pub fn fill(&self, start: usize) -> Option<Vec<u8>> {
        let (before, length) = match &self.place {
            Place::Payload => (0, 8),
            Place::Words(words) => {
                let bits = words.components() * usize::from(words::WIDTH);
                (0, 8 / words::BYTES * bits / 8)
            }
            Place::Tracks(on) if on.is_modulated => return None,
            Place::Tracks(on) => (on.tracks.header_length(), 8),
        };
        let mut recorded = vec![0; self.recorded];
        // A word has four bytes.
        fill::make_from(&mut recorded, 3 * start % 4);
        let mut payload = Vec::new();
        self.unpack(&recorded, &mut payload);
        let fill = payload.get(before..before + length)?;
        Some(fill.to_vec())
    }

    /// Returns the numbers in a frame of the samples that a range of its recorded bytes belongs to.
    pub fn samples_of(&self, bytes: Range<usize>) -> Range<i64> {
        // Bytes that belong together, their bits in the payload, and bits of the payload before them.
        let (unit, bits, before) = match &self.place {
            Place::Payload => (1, 8, 0),
            Place::Words(words) => (
                words::BYTES,
                words.components() * usize::from(words::WIDTH),
                0,
            ),
            Place::Tracks(on) => (
                on.tracks.bytes(),
                on.tracks.count(),
                on.tracks.header_length() * 8,
            ),
        };
        let from = before + bytes.start / unit * bits;
        let to = before + bytes.end.div_ceil(unit) * bits;
        let sample = self.layout.bits();
        let all = self.layout.frame_samples();
        let of = |bit: usize| (bit as i64).min(all);
        of(from / sample)..of(to.div_ceil(sample))
    }

    /// Returns the numbers in a frame of the samples that did not arrive.
    pub fn missing(&self, recorded: &Recorded<'_>) -> Intervals {
        let ranges = recorded.missing.iter().filter(|range| !range.is_empty());
        ranges.map(|range| self.samples_of(range.clone())).collect()
    }

    /// Returns the numbers in a frame of the samples that are fill pattern.
    pub fn filled(&self, recorded: &Recorded<'_>) -> Intervals {
        let runs = recorded.fill();
        runs.map(|run| self.samples_of(run)).collect()
    }
}

#[cfg(test)]
mod tests {
    use evlbi_wire::vdif;
    use proptest::prelude::*;

    use super::*;

    fn mark4(
        tracks: usize,
        bits: usize,
        fan_out: usize,
        is_modulated: bool,
    ) -> (Channels, Unpacker) {
        let tracks = Tracks::new(tracks).unwrap();
        let channels = Channels::usual(tracks, bits, fan_out).unwrap();
        let rate = FrameRate::new(400).unwrap();
        let unpacker = Unpacker::mark4(&channels, is_modulated, rate).unwrap();
        (channels, unpacker)
    }

    /// Every order of tracks gives back the payload that was written, after the samples that the header replaces.
    #[test]
    fn tracks_become_the_payload_that_was_written() {
        for (tracks, bits, fan_out) in [(64, 2, 4), (32, 1, 4), (32, 2, 2), (16, 2, 1), (8, 1, 1)] {
            for is_modulated in [false, true] {
                let (channels, unpacker) = mark4(tracks, bits, fan_out, is_modulated);
                let (tracks, layout) = (channels.tracks(), *unpacker.layout());
                assert_eq!(layout.frame_samples(), 20_000 * fan_out as i64);
                assert_eq!(layout.replaced, 160 * fan_out);
                let written = (0..tracks.payload_length()).map(|at| (at * at / 7) as u8);
                let written: Vec<u8> = written.collect();
                let mut recorded = Vec::new();
                Order::of(&channels).to_tracks(&written, &mut recorded);
                if is_modulated {
                    mark4::modulate(&mut recorded, tracks);
                }
                assert_eq!(recorded.len(), unpacker.recorded_length());
                let mut payload = vec![1; 3];
                unpacker.unpack(&recorded, &mut payload);
                let (header, samples) = payload.split_at(tracks.header_length());
                assert!(header.iter().all(|byte| *byte == 0) && samples == written);
                assert_eq!(payload.len(), layout.payload);
            }
        }
    }

    #[test]
    fn a_mark_5b_payload_holds_whole_samples() {
        let rate = FrameRate::new(6400).unwrap();
        let layout = *Unpacker::mark5b(8, 2, rate).unwrap().layout();
        assert_eq!(
            (layout.frame_samples(), layout.sample_rate()),
            (5000, 32_000_000)
        );
        assert!(Unpacker::mark5b(3, 2, rate).is_err());
        assert!(Unpacker::mark5b(8, 4, rate).is_err());
        assert!(Unpacker::mark5b(0, 2, rate).is_err());
    }

    /// Samples of 12 bits are two to a word, and those of fill are found by their words.
    #[test]
    fn words_of_samples_become_a_payload() {
        let header = |log2_channels: u8, bits: u8| {
            let shape = vdif::Shape {
                frame_length: vdif::HEADER_LEN + 64,
                log2_channels,
                bits,
                complex: false,
                legacy: false,
            };
            Header::new(shape, vdif::StreamKey::default())
        };
        let rate = FrameRate::new(400).unwrap();
        let unpacker = Unpacker::vdif(&header(0, 12), rate).unwrap();
        assert_eq!(
            (
                unpacker.recorded_length(),
                unpacker.layout().frame_samples()
            ),
            (64, 32)
        );
        assert_eq!(unpacker.layout().codec.bits(), 12);
        let mut recorded = [0u8; 64];
        recorded[60..].copy_from_slice(&0x00ff_f000u32.to_le_bytes());
        fill::make(&mut recorded[8..20]);
        let mut payload = vec![1];
        unpacker.unpack(&recorded, &mut payload);
        let mut values = vec![0.0; 32];
        assert_eq!(unpacker.layout().codec.decode(&payload, &mut values), 32);
        assert!(values[30] < -3.6 && values[31] > 3.6, "{values:?}");
        let filled = unpacker.filled(&Recorded::from(&recorded));
        assert_eq!(filled, std::iter::once(4..10).collect());
        // Of four channels of 16 bits, a word has two.
        let unpacker = Unpacker::vdif(&header(2, 16), rate).unwrap();
        assert_eq!(unpacker.layout().frame_samples(), 8);
        assert_eq!(unpacker.samples_of(12..16), 1..2);
        let error = Unpacker::vdif(&header(2, 12), rate).unwrap_err();
        assert_eq!(
            error.to_string(),
            "4 channels of 12 bits: VDIF has no order for several channels unless their bits are a power of two"
        );
    }

    proptest! {
        /// Fill marks the bit times that it touches, also a part of a word at an edge of the frame if the run continues there.
        #[test]
        fn fill_marks_the_bit_times_that_it_touches(
            tracks in prop::sample::select(vec![8usize, 16, 32, 64]),
            start in 0usize..2000,
            half in prop::sample::select(vec![0usize, 2]),
            words in 2usize..300,
            rest in prop::sample::select(vec![0usize, 2]),
            begin in 0usize..2000,
            noise in 1u8..0x11,
        ) {
            // 64 channels have no names.
            let fan_out = tracks.div_ceil(32);
            let (_, unpacker) = mark4(tracks, 1, fan_out, false);
            let mut bytes = vec![noise; 4000];
            let run = start..start + half + 4 * words + rest;
            fill::make_from(&mut bytes[run.clone()], half);
            let samples = begin..4000 - 8;
            let unit = tracks / 8;
            let expected: Intervals = (run.start.max(begin)..run.end.min(samples.end))
                .map(|byte| ((byte - begin) / unit) as i64 + 160)
                .map(|time| time * fan_out as i64..(time + 1) * fan_out as i64)
                .collect();
            let recorded = Recorded::new(&bytes, samples).unwrap();
            prop_assert_eq!(unpacker.filled(&recorded), expected);
        }
    }
}
