//! Describes the samples of a recording or stream: channels, bits, rate, and how frames contain them. The headers are used where they
//! show it, otherwise the settings of the input.
//!
//! Further facts about samples that depend on the format of frames belong here; [`evlbi_fx::unpack`] makes payloads of them.

use std::collections::BTreeSet;

use evlbi_core::deframe::{Format, Layout};
use evlbi_fx::layout::LayoutError;
use evlbi_fx::unpack::Unpacker;
use evlbi_wire::mark4::{self, ChannelError, Channels};
use evlbi_wire::naming::{FormatName, Recorder};
use evlbi_wire::time::FrameRate;
use evlbi_wire::vdif::{Header, StationId, StreamKey};

use crate::selection::{ChannelId, Selection, stations_of};

/// Reasons why the samples of frames are unknown, or are not the selected ones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplesError {
    /// The data have no frames.
    #[error("it is neither VDIF, Mark 5B nor Mark 4")]
    Raw,
    /// No header is undamaged.
    #[error("no header is undamaged")]
    Header,
    /// The headers do not contain the number of channels and bits.
    #[error("the headers of {0} do not contain the number of channels and bits")]
    NoFormat(Format),
    /// The headers of Mark 4 do not show which track holds what.
    #[error("{0}")]
    Channels(#[from] ChannelError),
    /// The tracks of Mark 4 change places.
    #[error("its tracks change places from frame to frame (barrel roll), which cannot be decoded")]
    Rolled,
    /// The samples are described as modulated, which only those of Mark 4 can be.
    #[error("the samples are given as modulated, but those of {0} never are")]
    NotModulated(Format),
    /// Neither the headers nor the settings contain the sample rate.
    #[error("the headers do not contain the sample rate")]
    NoRate,
    /// The frames do not fit the sample rate.
    #[error(transparent)]
    Rate(#[from] RateError),
    /// The named format is another one than that of the frames.
    #[error("the format is given as {named}, but the frames are {found}")]
    OtherFormat {
        /// Given name.
        named: FormatName,
        /// Format of the frames.
        found: String,
    },
    /// The given sample rate is another one than that of the frames.
    #[error("the sample rate is given as {given}/s, but the frames have {found}/s")]
    OtherRate {
        /// Given samples per second and channel.
        given: u64,
        /// Samples per second and channel by the times of the frames.
        found: u64,
    },
    /// The coding of the samples is unknown.
    #[error("{0}")]
    Layout(#[from] LayoutError),
    /// A selected station, thread or channel is not in the input.
    #[error("it has no {what} {wanted}: it contains {known}")]
    NotThere {
        /// Kind of the selected part.
        what: &'static str,
        /// Selected part.
        wanted: String,
        /// All parts of that kind.
        known: String,
    },
}

impl SamplesError {
    /// Returns whether more frames of a stream change nothing about it.
    pub fn is_lasting(&self) -> bool {
        !matches!(
            self,
            SamplesError::Header | SamplesError::NoRate | SamplesError::NotThere { .. }
        )
    }

    /// Returns an error that a part of an input is not there, which has only these.
    pub fn not_there<T: ToString>(
        what: &'static str,
        wanted: &(impl ToString + ?Sized),
        known: impl IntoIterator<Item = T>,
    ) -> SamplesError {
        let known: Vec<String> = known.into_iter().map(|it| it.to_string()).collect();
        let wanted = wanted.to_string();
        SamplesError::NotThere {
            what,
            wanted,
            known: listed(&known),
        }
    }
}

/// Joins names. Of many numbers in a row, shows the first and the last.
fn listed(names: &[String]) -> String {
    let numbers: Option<Vec<u64>> = names.iter().map(|name| name.parse().ok()).collect();
    let in_a_row = |numbers: &Vec<u64>| {
        numbers.len() > 4 && numbers.windows(2).all(|pair| pair[1] == pair[0] + 1)
    };
    match (numbers.filter(in_a_row), names) {
        (Some(_), [first, .., last]) => format!("{first} to {last}"),
        _ => names.join(", "),
    }
}

/// A sample rate at which a second is not a whole number of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "sample rate {sample_rate}/s gives no whole number of frames per second at {samples} samples per frame"
)]
#[non_exhaustive]
pub struct RateError {
    /// Samples per second and channel.
    pub sample_rate: u64,
    /// Samples per channel in a frame.
    pub samples: u64,
}

/// Description of the samples of an input.
#[derive(Clone, Debug)]
pub struct Samples {
    /// Converter of frames into payloads.
    pub unpacker: Unpacker,
    /// Names of the channels of a payload, in order.
    pub channels: Vec<ChannelId>,
    /// Indices of the selected channels, in the order of the selection.
    pub selected: Vec<usize>,
    /// Channels on the tracks of Mark 4, if the headers show them.
    on_tracks: Option<Channels>,
}

impl Samples {
    /// Describes the samples of frames of a layout, of which `header` is an undamaged header. `frame_rate` is the one that their times
    /// show, if any, and `sample_rate` a given one.
    ///
    /// # Errors
    /// Returns a [`SamplesError`] if the samples are unknown or cannot be decoded, or a selected channel is not in them.
    pub fn of(
        selection: &Selection,
        layout: &Layout,
        header: &[u8],
        frame_rate: Option<FrameRate>,
        sample_rate: Option<u64>,
    ) -> Result<Samples, SamplesError> {
        if selection.modulated && !matches!(layout.format, Format::Mark4 | Format::Raw) {
            return Err(SamplesError::NotModulated(layout.format));
        }
        let named = selection.format;
        let given = sample_rate.or(named.map(|named| named.sample_rate()));
        let mut on_tracks = None;
        let (unpacker, names) = match layout.format {
            Format::Vdif => vdif(header, named, frame_rate, given)?,
            Format::Mark5b => mark5b(named, frame_rate, given)?,
            Format::Mark4 => {
                let (channels, shown, rate) = mark4_channels(layout, header, named)?;
                on_tracks = Some(channels.clone()).filter(|_| shown);
                let unpacker = Unpacker::mark4(&channels, selection.modulated, rate)?;
                check_rate(&unpacker, given)?;
                let names = channels.channels().iter().copied().map(ChannelId::Named);
                (unpacker, Some(names.collect()))
            }
            Format::Raw => return Err(SamplesError::Raw),
        };
        // A header can claim billions of channels, but a payload holds a sample of each.
        let numbers = || (0..unpacker.layout().channels).map(ChannelId::Number);
        let all = Samples {
            channels: names.unwrap_or_else(|| numbers().collect()),
            unpacker,
            selected: Vec::new(),
            on_tracks,
        };
        all.select(&selection.channels)
    }

    /// Returns the same samples, of which other channels are selected; all if none are named.
    ///
    /// # Errors
    /// Returns a [`SamplesError`] if a channel is not in them.
    pub fn select(self, wanted: &[ChannelId]) -> Result<Samples, SamplesError> {
        let channels = &self.channels;
        let place = |wanted: &ChannelId| {
            let place = channels.iter().position(|channel| channel == wanted);
            place.ok_or_else(|| SamplesError::not_there("channel", wanted, channels))
        };
        let selected = match wanted {
            [] => (0..channels.len()).collect(),
            wanted => wanted.iter().map(place).collect::<Result<_, _>>()?,
        };
        Ok(Samples { selected, ..self })
    }

    /// Returns whether a frame with this header has these channels on its tracks: formatters can change them. Headers with damaged tracks do
    /// not show it.
    pub fn are_in(&self, header: &[u8]) -> bool {
        self.on_tracks.as_ref().is_none_or(|ours| {
            let header = mark4::Header::parse(header, ours.tracks()).ok();
            let whole = header.filter(|it| it.intact_tracks() == ours.tracks().count());
            whole.is_none_or(|header| Channels::of(&header).as_ref() == Ok(ours))
        })
    }

    /// Returns the name of the format of these frames; `None` if they have none.
    pub fn format(&self, layout: &Layout) -> Option<FormatName> {
        let samples = self.unpacker.layout();
        let recorder = match layout.format {
            Format::Vdif => Recorder::Vdif {
                payload: Some(samples.payload),
            },
            Format::Mark5b => Recorder::Mark5b,
            Format::Mark4 => Recorder::Mark4 {
                fan_out: samples.replaced / mark4::HEADER_BITS,
            },
            Format::Raw => return None,
        };
        let rate = (samples.sample_rate() as u64).checked_mul(samples.bits() as u64)?;
        let is_real = !samples.complex;
        let name = FormatName::new(recorder, rate, samples.channels, samples.codec.bits());
        name.filter(|_| is_real)
    }
}

type Described = (Unpacker, Option<Vec<ChannelId>>);

fn vdif(
    header: &[u8],
    named: Option<FormatName>,
    frame_rate: Option<FrameRate>,
    given: Option<u64>,
) -> Result<Described, SamplesError> {
    let header = Header::parse(header).map_err(|_| SamplesError::Header)?;
    let shape = header.shape();
    if let Some(named) = named {
        // Names count the channels of all threads.
        let is_alike = match named.recorder() {
            Recorder::Vdif { payload } => {
                payload.is_none_or(|payload| payload == shape.payload_length())
                    && named.bits() == shape.bits
                    && (named.channels() as u64).is_multiple_of(shape.channels())
            }
            _ => false,
        };
        if !is_alike {
            let found = format!(
                "VDIF with a payload of {} bytes, {} bits, and {} channels per thread",
                shape.payload_length(),
                shape.bits,
                shape.channels()
            );
            return Err(SamplesError::OtherFormat { named, found });
        }
    }
    let rate = match given {
        Some(sample_rate) => {
            let rate = shape.frame_rate(sample_rate).ok_or_else(|| RateError {
                sample_rate,
                samples: shape.samples_per_frame(),
            })?;
            // Frames may be missing where their rate was counted, but then the headers are right.
            let told = header.frame_rate();
            if let Some(told) = told.filter(|told| *told != rate && frame_rate != Some(rate)) {
                check_rate(&Unpacker::vdif(&header, told)?, given)?;
            }
            rate
        }
        None => {
            let rate = frame_rate.or(header.frame_rate());
            rate.ok_or(SamplesError::NoRate)?
        }
    };
    Ok((Unpacker::vdif(&header, rate)?, None))
}

fn mark5b(
    named: Option<FormatName>,
    frame_rate: Option<FrameRate>,
    given: Option<u64>,
) -> Result<Described, SamplesError> {
    let named = named.ok_or(SamplesError::NoFormat(Format::Mark5b))?;
    if named.recorder() != Recorder::Mark5b {
        let found = Format::Mark5b.to_string();
        return Err(SamplesError::OtherFormat { named, found });
    }
    let rate = frame_rate.or(named.frame_rate());
    let rate = rate.ok_or_else(|| RateError {
        sample_rate: named.sample_rate(),
        samples: (8 * evlbi_wire::mark5b::PAYLOAD_LEN
            / (named.channels() * usize::from(named.bits()))) as u64,
    })?;
    let unpacker = Unpacker::mark5b(named.channels(), named.bits(), rate)?;
    check_rate(&unpacker, Some(named.sample_rate()))?;
    check_rate(&unpacker, given)?;
    Ok((unpacker, None))
}

/// Returns the channels of Mark 4 by the headers, or by the name of the format if the headers do not show them; whether they do; and the frame
/// rate.
fn mark4_channels(
    layout: &Layout,
    header: &[u8],
    named: Option<FormatName>,
) -> Result<(Channels, bool, FrameRate), SamplesError> {
    let tracks = layout.tracks().ok_or(SamplesError::Header)?;
    let header = mark4::Header::parse(header, tracks).map_err(|_| SamplesError::Header)?;
    if header.is_rolled() {
        return Err(SamplesError::Rolled);
    }
    let rate = layout.frame_rate.ok_or(SamplesError::NoRate)?;
    let shown = Channels::of(&header);
    let Some(named) = named else {
        return Ok((shown?, true, rate));
    };
    let other = |found: String| SamplesError::OtherFormat { named, found };
    let of = |channels: &Channels| {
        let is_mark4 = match named.recorder() {
            Recorder::Mark4 { fan_out } => fan_out == channels.fan_out(),
            _ => false,
        };
        is_mark4 && named.tracks() == Some(tracks) && usize::from(named.bits()) == channels.bits()
    };
    let are_shown = shown.is_ok();
    let channels = match (shown, named.recorder()) {
        (Ok(shown), _) if of(&shown) => shown,
        (Ok(shown), _) => {
            return Err(other(format!(
                "Mark 4 of {} tracks with {} bits and a fan-out of {}",
                tracks.count(),
                shown.bits(),
                shown.fan_out()
            )));
        }
        (Err(_), Recorder::Mark4 { fan_out }) if named.tracks() == Some(tracks) => {
            Channels::usual(tracks, usize::from(named.bits()), fan_out)?
        }
        (Err(_), _) => return Err(other(format!("Mark 4 of {} tracks", tracks.count()))),
    };
    Ok((channels, are_shown, rate))
}

/// Checks a given sample rate against that of the frames.
fn check_rate(unpacker: &Unpacker, given: Option<u64>) -> Result<(), SamplesError> {
    let found = unpacker.layout().sample_rate() as u64;
    match given {
        Some(given) if given != found => Err(SamplesError::OtherRate { given, found }),
        _ => Ok(()),
    }
}

impl Selection {
    /// Checks that each selected station and thread is among those that an input contains.
    ///
    /// # Errors
    /// Returns a [`SamplesError`] with the list of what it contains.
    pub fn check<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k StreamKey>,
    ) -> Result<(), SamplesError> {
        let keys: BTreeSet<StreamKey> = keys.into_iter().copied().collect();
        let wanted = self.station.as_deref().unwrap_or_default();
        let of = stations_of(wanted);
        let is_ours = |key: &&StreamKey| self.station.is_none() || of.contains(&key.station);
        let ours = keys.iter().filter(is_ours);
        let threads: BTreeSet<u16> = ours.map(|key| key.thread).collect();
        if self.station.is_some() && threads.is_empty() {
            let stations: BTreeSet<StationId> = keys.iter().map(|key| key.station).collect();
            return Err(SamplesError::not_there("station", wanted, stations));
        }
        match self.threads.iter().find(|it| !threads.contains(it)) {
            Some(missing) => Err(SamplesError::not_there("thread", missing, threads)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use evlbi_wire::mark4::{TimeCode, Tracks};
    use evlbi_wire::mark5b;
    use evlbi_wire::vdif::{Shape, StreamKey};

    use super::*;

    fn layout(format: Format, frame_length: usize, header_length: usize) -> Layout {
        Layout {
            format,
            frame_length,
            header_length,
            version: 0,
            frame_rate: FrameRate::new(400).filter(|_| format == Format::Mark4),
        }
    }

    fn described(settings: &str, layout: &Layout, header: &[u8]) -> Result<Samples, String> {
        let selection = match settings {
            "" => Selection::default(),
            settings => settings.parse().unwrap(),
        };
        let samples = Samples::of(&selection, layout, header, None, None);
        samples.map_err(|error| error.to_string())
    }

    /// The header of 64 tracks with 8 channels, or without auxiliary data.
    fn mark4(has_auxiliary: bool) -> (Layout, Vec<u8>) {
        let tracks = Tracks::new(64).unwrap();
        let mut header = mark4::Header::new(tracks);
        if has_auxiliary {
            Channels::usual(tracks, 2, 4).unwrap().describe(&mut header);
        }
        let mut bytes = vec![0; tracks.header_length()];
        header.emit(&mut bytes);
        let layout = layout(Format::Mark4, tracks.frame_length(), tracks.header_length());
        (layout, bytes)
    }

    #[test]
    fn mark_4_is_described_by_its_headers_or_a_name() {
        let (layout, header) = mark4(true);
        let all = described("", &layout, &header).unwrap();
        assert_eq!(all.format(&layout).unwrap().to_string(), "MKIV1_4-512-8-2");
        assert_eq!(all.selected, [0, 1, 2, 3, 4, 5, 6, 7]);
        let some = described("channels=6U,0U&format=MKIV1_4-512-8-2", &layout, &header).unwrap();
        assert_eq!(some.selected, [6, 0]);
        let (layout, header) = mark4(false);
        let refused = described("", &layout, &header).unwrap_err();
        assert!(
            refused.contains("tracks 0 and 1 hold the same bits"),
            "{refused}"
        );
        let named = described("format=MKIV1_4-512-8-2", &layout, &header).unwrap();
        assert_eq!(named.channels, all.channels);
    }

    #[test]
    fn mark_5b_needs_a_name() {
        let layout = layout(Format::Mark5b, mark5b::FRAME_LEN, mark5b::HEADER_LEN);
        let refused = described("", &layout, &[]).unwrap_err();
        assert!(
            refused.contains("Mark 5B do not contain the number of channels"),
            "{refused}"
        );
        let samples = described("format=Mark5B-512-8-2&channels=4-7", &layout, &[]).unwrap();
        assert_eq!(samples.unpacker.layout().sample_rate(), 32_000_000);
        assert_eq!(samples.selected, [4, 5, 6, 7]);
        assert_eq!(
            samples.format(&layout).unwrap().to_string(),
            "Mark5B-512-8-2"
        );
    }

    #[test]
    fn a_selection_that_does_not_fit_is_refused_with_what_there_is() {
        let (mark4_layout, mark4_header) = mark4(true);
        let (_, mut rolled) = mark4(true);
        // Bit 54 of track 0 is the flag of a roll.
        rolled[8 * 54] |= 1;
        let dead_track = rolled.clone();
        let mut header = mark4::Header::parse(&rolled, Tracks::new(64).unwrap()).unwrap();
        header.set_time_code(TimeCode::new(0, 0).unwrap());
        header.emit(&mut rolled);
        assert!(described("", &mark4_layout, &dead_track).is_ok());
        let shape = Shape {
            frame_length: 8032,
            log2_channels: 3,
            bits: 2,
            complex: false,
            legacy: false,
        };
        let header = Header::new(shape, StreamKey::default());
        let mut vdif_header = [0; 32];
        header.emit(&mut vdif_header);
        let vdif = layout(Format::Vdif, 8032, 32);
        let mark5b = layout(Format::Mark5b, mark5b::FRAME_LEN, mark5b::HEADER_LEN);
        let raw = layout(Format::Raw, 0, 0);
        for (settings, layout, header, says) in [
            (
                "channels=1",
                &mark4_layout,
                &mark4_header[..],
                "no channel 1: it contains 0U, 1U, 2U",
            ),
            (
                "channels=0L",
                &mark4_layout,
                &mark4_header,
                "it contains 0U",
            ),
            (
                "format=MKIV1_4-256-8-2",
                &mark4_layout,
                &mark4_header,
                "given as 16000000/s, but the frames have 32000000/s",
            ),
            (
                "format=MKIV1_2-512-16-2",
                &mark4_layout,
                &mark4_header,
                "are Mark 4 of 64 tracks with 2 bits and a fan-out of 4",
            ),
            (
                "format=Mark5B-512-8-2",
                &mark4_layout,
                &mark4_header,
                "given as Mark5B-512-8-2, but the frames are Mark 4",
            ),
            ("modulated", &mark4_layout, &rolled, "barrel roll"),
            ("", &mark4_layout, &[], "no header is undamaged"),
            (
                "channels=8&format=VDIF_8000-512-8-2",
                &vdif,
                &vdif_header,
                "no channel 8: it contains 0 to 7",
            ),
            (
                "channels=0U&format=VDIF-512-16-2",
                &vdif,
                &vdif_header,
                "no channel 0U",
            ),
            (
                "format=VDIF_5000-512-8-2",
                &vdif,
                &vdif_header,
                "a payload of 8000 bytes, 2 bits, and 8 channels",
            ),
            (
                "format=VDIF_8000-512-8-1",
                &vdif,
                &vdif_header,
                "a payload of 8000 bytes",
            ),
            ("", &vdif, &vdif_header, "do not contain the sample rate"),
            (
                "format=VDIF_8000-1-8-2",
                &vdif,
                &vdif_header,
                "no whole number of frames",
            ),
            (
                "format=MKIV1_4-512-8-2",
                &mark5b,
                &[],
                "but the frames are Mark 5B",
            ),
            (
                "format=Mark5B-1-8-2",
                &mark5b,
                &[],
                "no whole number of frames",
            ),
            (
                "format=Mark5B-512-8-2&channels=9",
                &mark5b,
                &[],
                "no channel 9",
            ),
            ("", &raw, &[], "neither VDIF, Mark 5B nor Mark 4"),
        ] {
            let refused = described(settings, layout, header).unwrap_err();
            assert!(refused.contains(says), "{settings}: {refused}");
        }
    }
}
