//! Presentation of results: a [`Figure`] describes panels with axes and series, and is drawn as SVG, as PNG and as text for a
//! terminal; [`columns`] and [`lines()`] align rows of text. The crate of a result decides what its figure contains; this crate
//! only draws it. Without the feature `pictures`, which is on by default, there is only text, and no drawing library is needed.
//!
//! New kinds of series, marks or axes, and new ways to draw a figure, belong here.
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

/// Figure of one or more panels.
#[derive(Clone, Debug, Default)]
pub struct Figure {
    /// Title above all panels.
    pub title: String,
    /// Panels from top to bottom.
    pub panels: Vec<Panel>,
}

/// One pair of axes and the series drawn in it.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// Title above the panel, in front of the legend.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Series; later ones are drawn over earlier ones.
    pub series: Vec<Series>,
}

/// Axis. Values are in the unit without prefix: seconds, not nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    /// Name of the quantity.
    pub label: String,
    /// Unit of the quantity.
    pub unit: Unit,
    /// Range; by default what the series need.
    pub range: Option<(f64, f64)>,
    /// Whether the axis is logarithmic; values that are not positive are skipped.
    pub log: bool,
    /// Names of the values 0, 1, 2, ...; if empty, ticks show numbers.
    pub names: Vec<String>,
}

impl Axis {
    /// Makes a linear axis that shows all values.
    pub fn new(label: &str, unit: Unit) -> Axis {
        Axis {
            label: label.to_string(),
            unit,
            ..Axis::default()
        }
    }
}

/// Unit of an axis, which determines how its numbers are shortened.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Unit {
    /// Number without unit, or with a unit in the label: a power of ten is split off.
    #[default]
    Bare,
    /// Unit that takes prefixes, such as s, Hz, s/s.
    Si(&'static str),
    /// Angle in degrees.
    Degrees,
}

/// Points that belong together. Values that are not finite are skipped and interrupt a line.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Name in the legend; a series without a name has no entry, and the colour of the series before.
    pub name: String,
    /// Points (x, y), in the units of the axes.
    pub points: Vec<(f64, f64)>,
    /// One sigma of each point, for error bars.
    pub error: Option<Vec<f64>>,
    /// Texts above the points in pictures; the terminal does not show them.
    pub labels: Vec<String>,
    /// Style of the points.
    pub style: Style,
}

/// Style of points.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Style {
    /// Joined by a line, in their order.
    #[default]
    Line,
    /// Separate dots.
    Dots,
    /// Bars of this width, in units of the x axis, from the lower end of the y axis to the points.
    Bars(f64),
}

impl Figure {
    /// Draws the figure as files `STEM.svg` and `STEM.png` of a directory; returns their paths and contents.
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

/// Fraction of the width between two names that a group of bars fills.
pub const FILLED: f64 = 0.84;

impl Panel {
    /// Returns a panel of counts: a group of bars for each of `names`, in it one bar for each of `series`, labelled with its count.
    /// The axis is logarithmic, so that small counts stay visible.
    pub fn of_counts(title: &str, y: &str, names: &[&str], series: &[(String, Vec<u64>)]) -> Panel {
        let width = FILLED / series.len().max(1) as f64;
        let bars = |(number, (name, counts)): (usize, &(String, Vec<u64>))| {
            let side = (number as f64 + 0.5) * width - FILLED / 2.0;
            let points = (0u32..).zip(counts);
            let points = points.map(|(at, count)| (f64::from(at) + side, *count as f64));
            Series {
                labels: counts.iter().map(u64::to_string).collect(),
                ..Series::new(name, Style::Bars(0.94 * width), points.collect())
            }
        };
        let highest = series.iter().flat_map(|(_, counts)| counts).max();
        Panel {
            title: title.to_owned(),
            x: Axis {
                names: names.iter().map(|name| (*name).to_owned()).collect(),
                ..Axis::default()
            },
            y: Axis {
                log: true,
                range: Some((
                    0.8,
                    4.0 * highest.map_or(1.0, |highest| (*highest).max(1) as f64),
                )),
                ..Axis::new(y, Unit::Bare)
            },
            series: series.iter().enumerate().map(bars).collect(),
        }
    }

    /// Returns the scales of both axes, with approximately these numbers of ticks.
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
    /// Makes a series of points without errors.
    pub fn new(name: &str, style: Style, points: Vec<(f64, f64)>) -> Series {
        Series {
            name: name.to_owned(),
            points,
            style,
            ..Series::default()
        }
    }

    /// Returns the positions of the points on the axes; `None` for points outside.
    fn places(&self, x: &Scale, y: &Scale) -> Vec<Option<(f64, f64)>> {
        let place = |point: &(f64, f64)| x.place(point.0).zip(y.place(point.1));
        self.points.iter().map(place).collect()
    }

    /// Returns the left side, right side and upper end of each bar as positions; none for other styles.
    fn bars(&self, x: &Scale, y: &Scale) -> Vec<[f64; 3]> {
        let Style::Bars(width) = self.style else {
            return Vec::new();
        };
        let bar = |(at, value): &(f64, f64)| {
            let side = |by: f64| x.clamped(at + by * width);
            Some([side(-0.5)?, side(0.5)?, y.clamped(*value).unwrap_or(0.0)])
        };
        self.points.iter().filter_map(bar).collect()
    }

    /// Returns the error of a point, or 0.
    fn error_of(&self, point: usize) -> f64 {
        let error = self.error.as_ref().and_then(|error| error.get(point));
        error.copied().filter(|e| e.is_finite()).unwrap_or(0.0)
    }
}
