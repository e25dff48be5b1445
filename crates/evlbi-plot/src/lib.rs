//! Pictures of results: one description, drawn as SVG, as PNG and as text for a terminal.
#![allow(missing_docs)]

mod canvas;
mod scale;
#[cfg(test)]
mod tests;
mod text;

use std::path::{Path, PathBuf};

use anyhow::Result;
use scale::Scale;
pub use scale::measured;

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
    /// The picture as files `STEM.svg` and `STEM.png` of a directory.
    pub fn files(&self, directory: &Path, stem: &str) -> Result<[(PathBuf, Vec<u8>); 2]> {
        let path = |ending: &str| directory.join(format!("{stem}.{ending}"));
        let svg = (path("svg"), self.svg()?.into_bytes());
        Ok([svg, (path("png"), self.png()?)])
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
    /// Points without errors.
    pub fn new(name: &str, style: Style, points: Vec<(f64, f64)>) -> Series {
        Series {
            name: name.to_owned(),
            points,
            error: None,
            style,
        }
    }

    /// Places of the points on the axes; none where they are not on them.
    fn places(&self, x: &Scale, y: &Scale) -> Vec<Option<(f64, f64)>> {
        let place = |point: &(f64, f64)| x.place(point.0).zip(y.place(point.1));
        self.points.iter().map(place).collect()
    }

    /// 0 where there is none.
    fn error_of(&self, point: usize) -> f64 {
        let error = self.error.as_ref().and_then(|error| error.get(point));
        error.copied().filter(|e| e.is_finite()).unwrap_or(0.0)
    }
}
