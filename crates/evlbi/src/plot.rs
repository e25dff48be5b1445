//! Pictures of results: one description, drawn as SVG, as PNG and as text for a terminal.

mod canvas;
pub mod fringe;
mod scale;
#[cfg(test)]
mod tests;
mod text;

use anyhow::Result;
use scale::Scale;

/// Panels under each other.
#[derive(Clone, Debug, Default)]
pub struct Figure {
    pub title: String,
    pub panels: Vec<Panel>,
}

/// One pair of axes with what is drawn in it.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
}

/// What an axis shows, and how. Values are in the unit without prefix: seconds, not nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    pub label: String,
    pub unit: Unit,
    /// From where to where; what the series need if not given.
    pub range: Option<(f64, f64)>,
    /// By decades; what is not positive is left out.
    pub log: bool,
}

impl Axis {
    pub fn new(label: &str, unit: Unit) -> Axis {
        Axis {
            label: label.to_string(),
            unit,
            ..Axis::default()
        }
    }
}

/// How the numbers of an axis are made short.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Unit {
    /// A number without unit, or with one that the label tells: a power of ten is split off.
    #[default]
    Bare,
    /// A unit that takes prefixes, such as s, Hz, s/s.
    Si(&'static str),
    /// Of an angle.
    Degrees,
}

/// Points that belong together. What is not finite is left out and interrupts a line.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// For the legend; without a name there is no entry, and the colour is that of the series before.
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// One sigma of each point, drawn up and down.
    pub error: Option<Vec<f64>>,
    pub style: Style,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Style {
    #[default]
    Line,
    Dots,
}

impl Figure {
    /// The picture as an SVG document.
    pub fn svg(&self) -> Result<String> {
        canvas::svg(self)
    }

    /// The picture as a PNG file.
    pub fn png(&self) -> Result<Vec<u8>> {
        canvas::png(self)
    }

    /// The picture in Braille dots, no line longer than `width`, about `height` lines: the panels share
    /// them, and none is lower than it can be drawn.
    pub fn text(&self, width: usize, height: usize) -> String {
        text::draw(self, width, height)
    }
}

impl Panel {
    /// Scales of both axes, with about so many ticks each.
    fn scales(&self, x_ticks: usize, y_ticks: usize) -> (Scale, Scale) {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = Scale::new(&self.x, points().map(|(x, _)| *x), false, x_ticks);
        let with_errors = self.series.iter().flat_map(|series| {
            series.points.iter().enumerate().flat_map(|(at, (_, y))| {
                let error = series.error_of(at);
                [y - error, y + error]
            })
        });
        let y = Scale::new(&self.y, with_errors, true, y_ticks);
        (x, y)
    }
}

impl Series {
    /// 0 where there is none.
    fn error_of(&self, point: usize) -> f64 {
        let error = self.error.as_ref().and_then(|error| error.get(point));
        error
            .copied()
            .filter(|error| error.is_finite())
            .unwrap_or(0.0)
    }
}
