//! Plots of a scene's curves, as SVG within a web page, which defines the colours.

use std::fmt::Write;

use super::page::escape;
use super::record::short;

/// A pair of axes with curves.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    pub title: String,
    pub x: &'static str,
    pub y: &'static str,
    /// Whether the axis is logarithmic.
    pub is_log_x: bool,
    pub curves: Vec<Curve>,
    /// Times with labels, drawn from top to bottom.
    pub marks: Vec<(f64, &'static str)>,
    /// Values with labels, drawn from left to right.
    pub levels: Vec<(f64, String)>,
}

/// Points that belong together.
#[derive(Clone, Debug)]
pub struct Curve {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    pub style: Style,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Line,
    Dashed,
    Dots,
    /// Each value holds until the next point; the area is filled.
    Bars,
}

/// The panel within the picture: left, top, width, height.
const PANEL: [f64; 4] = [64.0, 30.0, 560.0, 200.0];
const SIZE: [f64; 2] = [640.0, 274.0];
/// Approximate width of a letter of a name, and height of a line of names.
const NAME: f64 = 6.5;
const LINE: f64 = 12.0;
/// Approximate number of columns of points that are drawn.
const COLUMNS: usize = 560;

/// Range of an axis.
#[derive(Clone, Copy)]
struct Axis {
    low: f64,
    high: f64,
    is_log: bool,
    /// Positions of its low end and of its high end.
    place: [f64; 2],
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, from_zero: bool, is_log: bool) -> Axis {
        let usable = |value: &f64| value.is_finite() && (!is_log || *value > 0.0);
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(usable) {
            low = low.min(value);
            high = high.max(value);
        }
        if from_zero && !is_log {
            low = low.min(0.0);
        }
        if !low.is_finite() {
            (low, high) = if is_log { (1.0, 10.0) } else { (0.0, 1.0) };
        }
        if is_log {
            low = 10f64.powf(low.log10().floor());
            high = 10f64.powf(high.log10().ceil()).max(low * 10.0);
        } else if high <= low {
            high = low + 1.0;
        }
        Axis {
            low,
            high,
            is_log,
            place: [0.0, 1.0],
        }
    }

    fn part(&self, value: f64) -> f64 {
        if self.is_log {
            let part = |value: f64| value.log10();
            (part(value) - part(self.low)) / (part(self.high) - part(self.low))
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }

    fn at(&self, value: f64) -> f64 {
        self.place[0] + self.part(value) * (self.place[1] - self.place[0])
    }

    fn has(&self, value: f64) -> bool {
        value.is_finite() && (0.0..=1.0).contains(&self.part(value))
    }

    /// Returns round values along it, about `count`.
    fn ticks(&self, count: f64) -> Vec<f64> {
        if self.is_log {
            let decades = (self.high / self.low).log10().round() as i32;
            return (0..=decades)
                .map(|decade| self.low * 10f64.powi(decade))
                .collect();
        }
        let rough = (self.high - self.low) / count;
        let decade = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0];
        let step = steps
            .iter()
            .map(|step| step * decade)
            .find(|step| *step >= rough)
            .unwrap_or(decade * 10.0);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        (first..=last).map(|number| number as f64 * step).collect()
    }
}

impl Picture {
    /// Returns the picture as an SVG element.
    pub fn svg(&self) -> String {
        let [left, top, width, height] = PANEL;
        let (right, bottom) = (left + width, top + height);
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let xs = points()
            .map(|point| point.0)
            .chain(self.marks.iter().map(|mark| mark.0));
        let mut x = Axis::over(xs, false, self.is_log_x);
        x.place = [left, right];
        let ys = points()
            .map(|point| point.1)
            .chain(self.levels.iter().map(|level| level.0));
        let mut y = Axis::over(ys, true, false);
        // Space above the highest point.
        y.high += 0.06 * (y.high - y.low);
        y.place = [bottom, top];

        let mut svg = format!(
            "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" data-panel=\"{left} {top} {right} {bottom}\">",
            SIZE[0],
            SIZE[1],
            escape(&self.title)
        );
        for tick in y.ticks(4.0) {
            let at = y.at(tick);
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{left} {at:.1}H{right}\"/><text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 8.0,
                at + 4.0,
                short(tick)
            );
        }
        for tick in x.ticks(6.0) {
            let at = x.at(tick);
            let _ = write!(
                svg,
                "<path class=\"tickmark\" d=\"M{at:.1} {bottom}v4\"/><text class=\"tick\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                bottom + 18.0,
                short(tick)
            );
        }
        let _ = write!(
            svg,
            "<path class=\"axis\" d=\"M{left} {bottom}H{right}\"/><text class=\"label\" x=\"{right}\" y=\"{}\" text-anchor=\"end\">{}</text><text class=\"label\" x=\"{left}\" y=\"16\">{}</text>",
            SIZE[1] - 6.0,
            escape(self.x),
            escape(self.y)
        );
        for (value, name) in &self.levels {
            let at = y.at(*value);
            let _ = write!(
                svg,
                "<path class=\"level\" d=\"M{left} {at:.1}H{right}\"/><text class=\"note\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                right - 4.0,
                at - 5.0,
                escape(name)
            );
        }
        // Names that do not fit beside each other go below each other.
        let mut rows: Vec<f64> = Vec::new();
        for (number, (value, name)) in self.marks.iter().enumerate() {
            let at = x.at(*value);
            let _ = write!(svg, "<path class=\"mark\" d=\"M{at:.1} {top}V{bottom}\"/>");
            // A mark close to the previous one shares its name.
            let is_new = number == 0 || self.marks[number - 1].1 != *name;
            if is_new {
                let row = rows.iter().position(|end| *end < at);
                let row = row.unwrap_or(rows.len());
                rows.resize(rows.len().max(row + 1), 0.0);
                rows[row] = at + 4.0 + NAME * name.len() as f64;
                let _ = write!(
                    svg,
                    "<text class=\"note\" x=\"{:.1}\" y=\"{}\">{}</text>",
                    at + 4.0,
                    top + 10.0 + LINE * row as f64,
                    escape(name)
                );
            }
        }
        for (number, curve) in self.curves.iter().enumerate() {
            svg += &curve.svg(number, &x, &y, bottom);
        }
        svg + "</svg>"
    }

    /// Returns the names of the curves with their colours, if there are several.
    pub fn legend(&self) -> String {
        if self.curves.len() < 2 {
            return String::new();
        }
        let entries = self.curves.iter().enumerate().map(|(number, curve)| {
            format!(
                "<span><i class=\"swatch s{number}\"></i>{}</span>",
                escape(&curve.name)
            )
        });
        format!(
            "<div class=\"legend\">{}</div>",
            entries.collect::<String>()
        )
    }
}

impl Curve {
    pub fn new(name: impl Into<String>, style: Style, points: Vec<(f64, f64)>) -> Curve {
        Curve {
            name: name.into(),
            points,
            style,
        }
    }

    fn svg(&self, number: usize, x: &Axis, y: &Axis, bottom: f64) -> String {
        let seen: Vec<(f64, f64)> = self
            .points
            .iter()
            .filter(|point| x.has(point.0) && y.has(point.1))
            .map(|point| (x.at(point.0), y.at(point.1)))
            .collect();
        if seen.is_empty() {
            return String::new();
        }
        let mut path = String::new();
        match self.style {
            Style::Dots => {
                for (x, y) in &seen {
                    let _ = write!(path, "M{x:.1} {y:.1}h0");
                }
            }
            Style::Line | Style::Dashed => {
                for (place, (x, y)) in thinned(&seen).iter().enumerate() {
                    let _ = write!(path, "{}{x:.1} {y:.1}", if place == 0 { 'M' } else { 'L' });
                }
            }
            Style::Bars => {
                let _ = write!(path, "M{:.1} {bottom:.1}", seen[0].0);
                for pair in seen.windows(2) {
                    let _ = write!(
                        path,
                        "L{:.1} {:.1}L{:.1} {:.1}",
                        pair[0].0, pair[0].1, pair[1].0, pair[0].1
                    );
                }
                let last = seen[seen.len() - 1];
                let _ = write!(
                    path,
                    "L{:.1} {:.1}L{:.1} {bottom:.1}Z",
                    last.0, last.1, last.0
                );
            }
        }
        let style = match self.style {
            Style::Line => "line",
            Style::Dashed => "dashed",
            Style::Dots => "dots",
            Style::Bars => "bars",
        };
        format!("<path class=\"curve c{number} {style}\" d=\"{path}\"/>")
    }
}

/// Reduces points to the lowest and the highest of each column, in their order, if there are more points than columns.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let each = points.len().div_ceil(COLUMNS);
    if each < 3 {
        return points.to_vec();
    }
    let mut kept = Vec::new();
    for part in points.chunks(each) {
        let place = |better: fn(f64, f64) -> bool| {
            let mut found = 0;
            for (place, point) in part.iter().enumerate() {
                if better(point.1, part[found].1) {
                    found = place;
                }
            }
            found
        };
        let (low, high) = (place(|a, b| a < b), place(|a, b| a > b));
        kept.push(part[low.min(high)]);
        if low != high {
            kept.push(part[low.max(high)]);
        }
    }
    kept
}

/// Returns the points of all curves of a page that are outside their panels, from the drawn page.
pub fn strays(page: &str) -> Vec<String> {
    let mut strays = Vec::new();
    for picture in page.split("<svg ").skip(1) {
        let picture = picture.split("</svg>").next().unwrap_or(picture);
        let attribute = |text: &str, name: &str| -> Option<String> {
            let value = text.split_once(&format!("{name}=\""))?.1;
            Some(value.split('"').next()?.to_owned())
        };
        let Some(panel) = attribute(picture, "data-panel") else {
            continue;
        };
        let panel: Vec<f64> = panel
            .split(' ')
            .filter_map(|side| side.parse().ok())
            .collect();
        let name = attribute(picture, "aria-label").unwrap_or_default();
        for curve in picture.split("<path class=\"curve").skip(1) {
            let path = attribute(curve, " d").unwrap_or_default();
            let numbers = path.split(|letter: char| letter.is_ascii_alphabetic());
            for point in numbers.filter(|point| point.contains(' ')) {
                let at: Vec<f64> = point
                    .split(' ')
                    .filter_map(|place| place.parse().ok())
                    .collect();
                let is_inside = at.len() == 2
                    && panel.len() == 4
                    && (panel[0] - 0.1..=panel[2] + 0.1).contains(&at[0])
                    && (panel[1] - 0.1..=panel[3] + 0.1).contains(&at[1]);
                if !is_inside {
                    strays.push(format!("{name}: {point}"));
                }
            }
        }
    }
    strays
}
