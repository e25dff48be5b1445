//! How results look to people: a [`Figure`] describes panels with axes and series, and is drawn as SVG, as PNG and as text for a
//! terminal; [`columns`] and [`lines()`] set rows of text. What a result looks like is known where the result is; here is only how it is
//! drawn. Without the feature `pictures`, which is on by default, there is text alone, and nothing that draws is brought in.
//!
//! Here belongs a further kind of series, mark or axis, and a further way to draw a figure.
//!
//! ```
//! use evlbi_plot::{Axis, Figure, Panel, Series, Style, Unit};
//!
//! let loss = (0..60).map(|second| (f64::from(second), f64::from(second % 7) * 1e-4));
//! let figure = Figure {
//!     title: "One minute".to_owned(),
//!     panels: vec![Panel {
//!         title: "Loss".to_owned(),
//!         x: Axis::new("time", Unit::Si("s")),
//!         y: Axis::new("lost", Unit::Bare),
//!         series: vec![Series::new("there", Style::Line, loss.collect())],
//!     }],
//! };
//! println!("{}", figure.text(80, 20));
//! assert!(figure.svg()?.starts_with("<svg"));
//! # Ok::<(), evlbi_plot::DrawError>(())
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

#[cfg(feature = "pictures")]
mod canvas;
mod rows;
mod scale;
#[cfg(all(test, feature = "pictures"))]
mod tests;
mod text;

#[cfg(feature = "pictures")]
pub use canvas::DrawError;
pub use rows::{columns, lines, name};
use scale::Scale;
pub use scale::measured;

/// Panels under each other.
#[derive(Clone, Debug, Default)]
pub struct Figure {
    /// Stands above all panels.
    pub title: String,
    /// From top to bottom.
    pub panels: Vec<Panel>,
}

/// One pair of axes with what is drawn in it.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// Stands above the panel, before the legend.
    pub title: String,
    /// From left to right.
    pub x: Axis,
    /// From bottom to top.
    pub y: Axis,
    /// Later ones lie above earlier ones.
    pub series: Vec<Series>,
}

/// What an axis shows, and how. Values are in the unit without prefix: seconds, not nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    /// What the values are.
    pub label: String,
    /// Their unit.
    pub unit: Unit,
    /// From where to where; what the series need if not given.
    pub range: Option<(f64, f64)>,
    /// By decades; what is not positive is left out.
    pub log: bool,
}

impl Axis {
    /// A linear axis that shows all values.
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
    /// x and y, in the units of the axes.
    pub points: Vec<(f64, f64)>,
    /// One sigma of each point, drawn up and down.
    pub error: Option<Vec<f64>>,
    /// How they are drawn.
    pub style: Style,
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Style {
    /// Joined, in their order.
    #[default]
    Line,
    /// One by one.
    Dots,
}

impl Figure {
    /// Draws it as files `STEM.svg` and `STEM.png` of a directory: returns their paths and contents.
    ///
    /// # Errors
    /// As [`Figure::svg`].
    #[cfg(feature = "pictures")]
    pub fn files(
        &self,
        directory: &std::path::Path,
        stem: &str,
    ) -> Result<[(std::path::PathBuf, Vec<u8>); 2], DrawError> {
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
