//! Format of a station's frames: which frames are its own, and which of its channels are bands. Further properties of a station's
//! data, in a file or a stream, belong here.

use evlbi_core::deframe::{self, Format, Selected};
use evlbi_fx::layout::Layout;
use evlbi_stream::samples::Samples;
use evlbi_stream::selection::Selection;
use evlbi_wire::vdif::{Header, StationId};

use super::arrived::Arrived;

/// Format of a station's data, in a file or a stream.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Its samples, and the channels of them that are used.
    pub samples: Samples,
    /// Common properties of its frames.
    pub frames: deframe::Layout,
    /// Its threads, in the order of its bands.
    pub threads: Vec<u16>,
    /// Station in its headers; frames of other stations are not its own.
    pub station: StationId,
    /// UTC second of its first frame.
    pub first_second: i64,
    /// Stations and threads that its settings select.
    pub selected: Selected,
    /// Settings of the input.
    pub selection: Selection,
}

impl Shape {
    /// Returns the layout of its samples.
    pub fn layout(&self) -> &Layout {
        self.samples.unpacker.layout()
    }

    /// Returns the shape of a stream whose first frame is this one, in place of this shape, which it was expected to have.
    ///
    /// # Errors
    /// Returns the reason if its samples have another layout.
    pub fn like(&self, frame: &Arrived<'_>, sample_rate: Option<u64>) -> Result<Shape, String> {
        let (frames, selection) = (frame.layout, self.selection.clone());
        let rate = frames.frame_rate;
        let samples = Samples::of(&selection, &frames, frame.header, rate, sample_rate);
        let samples = samples.map_err(|error| error.to_string())?;
        let count = |samples: &Samples| samples.selected.len();
        if samples.unpacker.layout() != self.layout() || count(&samples) != count(&self.samples) {
            let [theirs, ours] = [(&samples, &frames), (&self.samples, &self.frames)];
            let name = |(samples, frames): (&Samples, &deframe::Layout)| {
                let name = samples.format(frames);
                name.map_or_else(|| frames.format.to_string(), |name| name.to_string())
            };
            return Err(format!(
                "it arrived late, in {}, and its place is that of a stream in {}",
                name(theirs),
                name(ours)
            ));
        }
        Ok(Shape {
            samples,
            frames,
            station: frame.key.station,
            selection,
            ..self.clone()
        })
    }

    /// Returns whether a frame is from this station, with these bits and channels.
    pub fn owns(&self, frame: &Arrived<'_>) -> bool {
        let is_alike = || match frame.layout.format {
            Format::Vdif if !frame.is_odd => {
                let header = Header::parse(frame.header).ok();
                let layout = header.map(|header| Layout::of(&header, self.layout().frame_rate));
                layout == Some(Ok(*self.layout()))
            }
            format => {
                let length = frame.samples.samples().len();
                format == self.frames.format
                    && length == self.samples.unpacker.recorded_length()
                    && (frame.is_odd || self.samples.are_in(frame.header))
            }
        };
        frame.key.station == self.station && is_alike()
    }

    /// Returns whether a frame is from another station or thread than the selected ones.
    pub fn leaves_out(&self, frame: &Arrived<'_>) -> bool {
        !self.selected.has(Some(frame.key))
    }

    /// Returns the index of the thread and the channel of each band.
    pub fn places(&self) -> impl ExactSizeIterator<Item = (usize, usize)> + '_ {
        let channels = &self.samples.selected;
        let count = self.threads.len() * channels.len();
        (0..count).map(|number| (number / channels.len(), channels[number % channels.len()]))
    }
}
