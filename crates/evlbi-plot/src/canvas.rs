//! Figures as SVG and PNG, drawn by `plotters`.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Once;

use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::{
    KeyPointHint, NoDefaultFormatting, Ranged as PlottersAxis, ValueFormatter,
};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};

use super::scale::Scale;
use super::{Figure, Panel, Series, Style};

/// Lengths in SVG units.
const WIDTH: u32 = 900;
const TITLE: u32 = 34;
const PANEL: u32 = 264;
/// Points of the drawing per SVG unit: SVG and PNG are drawn with integers.
const DRAWN: u32 = 4;
/// Points of the drawing per pixel of the PNG in each direction, which are averaged.
const AVERAGED: u32 = 2;
/// Minimum size of text.
const SMALLEST: u32 = 7;
/// Width of a panel's title with the legend, height of further legend rows, and room for a sample of each entry.
const HEAD: i32 = 796;
const LEGEND_ROW: u32 = 18;
/// Maximum number of legend rows; series that do not fit have no entry.
const MAX_ROWS: u32 = 4;
const SAMPLE: i32 = 42;
/// Approximate width of the plotting area of a panel.
const COLUMNS: usize = 800;

const FONT: &str = "sans-serif";
const TEXT: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);
/// Colours that are distinct for the colour-blind (Okabe and Ito 2008), without yellow, which is hard to see on white.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

impl Figure {
    /// Draws the figure as an SVG document.
    ///
    /// # Errors
    /// [`DrawError`]
    pub fn svg(&self) -> Result<String, DrawError> {
        let mut text = String::new();
        let (width, height) = size(self);
        let backend = SVGBackend::with_string(&mut text, (width, height));
        draw(self, &backend.into_drawing_area())?;
        let drawn = format!("width=\"{width}\" height=\"{height}\"");
        let (width, height) = (width / DRAWN, height / DRAWN);
        let shown = format!("width=\"{width}\" height=\"{height}\"");
        Ok(text.replacen(&drawn, &shown, 1))
    }

    /// Draws the figure as the contents of a PNG file.
    ///
    /// # Errors
    /// [`DrawError`]
    pub fn png(&self) -> Result<Vec<u8>, DrawError> {
        let drawn = size(self);
        let mut points = vec![0; 3 * drawn.0 as usize * drawn.1 as usize];
        let backend = BitMapBackend::with_buffer(&mut points, drawn);
        draw(self, &backend.into_drawing_area())?;
        let (width, height) = png_size(self);
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, width, height);
        encoder.set_color(png::ColorType::Rgb);
        let pixels = averaged(&points, drawn.0 as usize);
        let written = encoder.write_header().and_then(|mut writer| {
            writer.write_image_data(&pixels)?;
            writer.finish()
        });
        written.map_err(|error| DrawError::of(self, &error))?;
        Ok(file)
    }
}

pub fn png_size(figure: &Figure) -> (u32, u32) {
    let (width, height) = size(figure);
    (width / AVERAGED, height / AVERAGED)
}

/// Returns the series and their colours. A series without a name belongs to the one before it, and has its colour.
fn coloured(panel: &Panel) -> impl Iterator<Item = (&Series, &'static RGBColor)> {
    let mut named = 0usize;
    panel.series.iter().map(move |series| {
        named += usize::from(!series.name.is_empty());
        (series, &COLOURS[named.saturating_sub(1) % COLOURS.len()])
    })
}

/// Averages squares of points to pixels.
fn averaged(points: &[u8], width: usize) -> Vec<u8> {
    let side = AVERAGED as usize;
    let squares = |rows: &[u8]| -> Vec<u8> {
        let pixel = |at: usize, colour: usize| {
            let rows = rows.chunks_exact(3 * width);
            let of_square = rows.flat_map(|row| {
                let columns = at * side..(at + 1) * side;
                columns.map(|column| u32::from(row[3 * column + colour]))
            });
            (of_square.sum::<u32>() / (AVERAGED * AVERAGED)) as u8
        };
        let pixels = 0..width / side;
        let pixels = pixels.flat_map(|at| [0, 1, 2].map(|colour| pixel(at, colour)));
        pixels.collect()
    };
    let rows = points.chunks_exact(3 * width * side);
    rows.flat_map(squares).collect()
}

/// Returns the size of the drawing, in points.
fn size(figure: &Figure) -> (u32, u32) {
    let height = TITLE + PANEL * figure.panels.len().clamp(1, 100) as u32;
    (long(WIDTH), long(height))
}

type Area<'a, B> = DrawingArea<B, Shift>;

fn draw<B: DrawingBackend>(figure: &Figure, area: &Area<'_, B>) -> Result<(), DrawError> {
    use_embedded_font();
    try_draw(figure, area).map_err(|error| DrawError::of(figure, &error))
}

/// Failure to draw a figure.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw `{title}`: {reason}")]
#[non_exhaustive]
pub struct DrawError {
    /// Title of the figure.
    pub title: String,
    /// Message of the drawing library.
    pub reason: String,
}

impl DrawError {
    fn of(figure: &Figure, reason: &impl ToString) -> DrawError {
        DrawError {
            title: figure.title.clone(),
            reason: reason.to_string(),
        }
    }
}

/// Registers the embedded font for bitmaps, so that they are the same on every machine.
fn use_embedded_font() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Drawing fails later if the font is missing.
        let _ = register_font(FONT, FontStyle::Normal, epaint_default_fonts::HACK_REGULAR);
    });
}

/// Coordinates of a panel's inside.
type Plane<'a> = Cartesian2d<Ticks<'a>, Ticks<'a>>;

type Drawn<B, T = ()> = Result<T, DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

fn try_draw<B: DrawingBackend>(figure: &Figure, area: &Area<'_, B>) -> Drawn<B> {
    area.fill(&WHITE)?;
    let (top, panels) = area.split_vertically(long(TITLE));
    let (left, bottom) = (14, TITLE as i32 - 10);
    let max = WIDTH as i32 - 2 * left;
    write(&top, &figure.title, 16, (left, bottom), max)?;
    let areas = panels.split_evenly((figure.panels.len().max(1), 1));
    for (panel, area) in figure.panels.iter().zip(&areas) {
        draw_panel(panel, area)?;
    }
    area.present()
}

/// Entry of the legend.
struct Entry<'a> {
    series: &'a Series,
    colour: &'static RGBColor,
    row: u32,
    /// Distance from its start to the end of the row.
    from_right: i32,
}

/// Converts a length in SVG units, as all lengths here are, to points of the drawing.
fn long(units: u32) -> u32 {
    units * DRAWN
}

/// Converts a position to points of the drawing.
fn at(x: i32, y: i32) -> (i32, i32) {
    (x * DRAWN as i32, y * DRAWN as i32)
}

/// Writes text whose lower left corner is `place`. Text longer than `max` is made smaller.
fn write<B: DrawingBackend>(
    area: &Area<'_, B>,
    text: &str,
    mut size: u32,
    (x, y): (i32, i32),
    max: i32,
) -> Drawn<B> {
    let length = length(area, text, size)?;
    if length > max {
        size = (size * max.unsigned_abs() / length.unsigned_abs()).max(SMALLEST);
    }
    let style = style(size).pos(Pos::new(HPos::Left, VPos::Bottom));
    area.draw(&Text::new(printable(text), at(x, y), style))
}

fn length<B: DrawingBackend>(area: &Area<'_, B>, text: &str, size: u32) -> Drawn<B, i32> {
    let (length, _) = area.estimate_text_size(&printable(text), &style(size))?;
    Ok((length / DRAWN) as i32)
}

fn style(size: u32) -> TextStyle<'static> {
    TextStyle::from((FONT, f64::from(long(size)))).color(&TEXT)
}

fn draw_panel<B: DrawingBackend>(panel: &Panel, area: &Area<'_, B>) -> Drawn<B> {
    let (x, y) = panel.scales(8, 5);
    let legend = legend(panel, area)?;
    let rows = legend.last().map_or(0, |entry| entry.row);
    let (top, body) = area.split_vertically(long(26 + LEGEND_ROW * rows));
    head(panel, &legend, &top)?;
    let mut chart = ChartBuilder::on(&body)
        .margin_right(long(24))
        .margin_left(long(8))
        .margin_top(long(4))
        .x_label_area_size(long(40))
        .y_label_area_size(long(72))
        .build_cartesian_2d(Ticks(&x), Ticks(&y))?;
    chart
        .configure_mesh()
        .x_desc(printable(x.label()))
        .y_desc(printable(y.label()))
        .label_style(style(12))
        .axis_desc_style(style(13))
        .axis_style(TEXT.stroke_width(DRAWN))
        .bold_line_style(GRID.stroke_width(DRAWN))
        .light_line_style(TRANSPARENT)
        .set_all_tick_mark_size(long(4))
        .draw()?;
    let plane = chart.plotting_area();
    for (series, colour) in coloured(panel) {
        for [left, right, top] in series.bars(&x, &y) {
            plane.draw(&Rectangle::new(
                [(left, 0.0), (right, top)],
                colour.filled(),
            ))?;
        }
        for run in runs(series, &x, &y) {
            let dots = match series.style {
                Style::Line if run.len() > 1 => {
                    let style = colour.stroke_width(long(3) / 2);
                    plane.draw(&PathElement::new(run, style))?;
                    continue;
                }
                Style::Line => run,
                Style::Dots => thinned(&run),
                Style::Bars(_) => continue,
            };
            for place in dots {
                plane.draw(&Circle::new(place, long(5) / 2, colour.filled()))?;
            }
        }
        for (place, low, high) in bars(series, &x, &y) {
            let bar = vec![(place, low), (place, high)];
            plane.draw(&PathElement::new(bar, colour.stroke_width(DRAWN)))?;
        }
        labels(series, (&x, &y), plane)?;
    }
    Ok(())
}

/// Writes the labels of a series above its points, those of bars no wider than these.
fn labels<B: DrawingBackend>(
    series: &Series,
    (x, y): (&Scale, &Scale),
    plane: &DrawingArea<B, Plane<'_>>,
) -> Drawn<B> {
    let (width, _) = plane.dim_in_pixel();
    for (point, label) in series.points.iter().zip(&series.labels) {
        let (Some(across), up) = (x.place(point.0), y.clamped(point.1).unwrap_or(0.0)) else {
            continue;
        };
        let mut size = 11;
        if let Style::Bars(wide) = series.style {
            let wide = x.part(wide) * f64::from(width / DRAWN);
            let (length, _) = plane.estimate_text_size(&printable(label), &style(size))?;
            let fitting = f64::from(size) * wide / f64::from(length / DRAWN).max(1.0);
            size = size.min(fitting as u32);
        }
        if size < SMALLEST {
            continue;
        }
        let style = style(size).pos(Pos::new(HPos::Center, VPos::Bottom));
        let text = Text::new(printable(label), at(0, -3), style);
        plane.draw(&(EmptyElement::at((across, up)) + text))?;
    }
    Ok(())
}

/// Lays out the legend: to the right of the title, and in as many rows below as it needs.
fn legend<'a, B: DrawingBackend>(panel: &'a Panel, area: &Area<'_, B>) -> Drawn<B, Vec<Entry<'a>>> {
    let mut entries: Vec<Entry<'_>> = Vec::new();
    let (mut row, mut used) = (0, length(area, &panel.title, 14)?);
    for (series, colour) in coloured(panel).filter(|(series, _)| !series.name.is_empty()) {
        let length = SAMPLE + length(area, &series.name, 12)?;
        if used + length > HEAD && (row == 0 || used > 0) {
            (row, used) = (row + 1, 0);
        }
        // Curves matter more than the names of all of them.
        if row == MAX_ROWS {
            break;
        }
        used += length;
        // All entries of the row before move.
        for entry in entries.iter_mut().filter(|entry| entry.row == row) {
            entry.from_right += length;
        }
        entries.push(Entry {
            series,
            colour,
            row,
            from_right: length,
        });
    }
    Ok(entries)
}

/// Draws the title at the left and the legend at the right, so that neither hides data.
fn head<B: DrawingBackend>(panel: &Panel, legend: &[Entry<'_>], area: &Area<'_, B>) -> Drawn<B> {
    let (left, bottom) = (WIDTH as i32 - 24 - HEAD, 22);
    for entry in legend {
        let bottom = bottom + (LEGEND_ROW * entry.row) as i32;
        let x = left + HEAD - entry.from_right + SAMPLE;
        let max = entry.from_right - SAMPLE;
        write(area, &entry.series.name, 12, (x, bottom), max)?;
        // Sample drawn like the series.
        let (x, y, colour) = (x - 6, bottom - 7, entry.colour);
        match entry.series.style {
            Style::Line => {
                let stroke = colour.stroke_width(long(2));
                area.draw(&PathElement::new(vec![at(x - 20, y), at(x, y)], stroke))?;
            }
            Style::Dots => area.draw(&Circle::new(at(x - 8, y), long(3), colour.filled()))?,
            Style::Bars(_) => {
                let corners = [at(x - 13, y - 5), at(x - 3, y + 5)];
                area.draw(&Rectangle::new(corners, colour.filled()))?;
            }
        }
    }
    write(area, &panel.title, 14, (left, bottom), HEAD)
}

/// Removes characters that are not allowed in XML.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// Returns the positions of points that follow each other without a break. Lines are thinned without a visible difference.
fn runs(series: &Series, x: &Scale, y: &Scale) -> Vec<Vec<(f64, f64)>> {
    let places = series.places(x, y);
    let runs = places.split(Option::is_none).filter(|run| !run.is_empty());
    let runs = runs.map(|run| {
        let run: Vec<(f64, f64)> = run.iter().flatten().copied().collect();
        match series.style {
            Style::Line => outline(&run, COLUMNS),
            Style::Dots | Style::Bars(_) => run,
        }
    });
    runs.collect()
}

/// Returns first, lowest, highest and last point of each column of a line that has more points than these.
fn outline(run: &[(f64, f64)], columns: usize) -> Vec<(f64, f64)> {
    if run.len() <= 4 * columns {
        return run.to_vec();
    }
    let column = |point: &(f64, f64)| (point.0 * columns as f64) as i64;
    let of_columns = run.chunk_by(|a, b| column(a) == column(b));
    of_columns.flat_map(extremes).collect()
}

fn extremes(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let by_height = |a: &usize, b: &usize| points[*a].1.total_cmp(&points[*b].1);
    let all = 0..points.len();
    let mut chosen = vec![0, points.len().saturating_sub(1)];
    chosen.extend(all.clone().min_by(by_height));
    chosen.extend(all.max_by(by_height));
    chosen.sort_unstable();
    chosen.dedup();
    chosen.into_iter().map(|at| points[at]).collect()
}

/// Returns dots that do not hide each other.
fn thinned(places: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut taken = HashSet::new();
    let pixel = |part: f64| (part * COLUMNS as f64) as i64;
    let free = |place: &&(f64, f64)| taken.insert((pixel(place.0), pixel(place.1)));
    places.iter().filter(free).copied().collect()
}

/// Returns position, lower and upper end of the error bars.
fn bars(series: &Series, x: &Scale, y: &Scale) -> Vec<(f64, f64, f64)> {
    let points = series.points.iter().enumerate();
    let bars = points.filter_map(|(at, point)| {
        let error = Some(series.error_of(at)).filter(|error| *error > 0.0)?;
        y.place(point.1)?;
        let low = y.clamped(point.1 - error).unwrap_or(0.0);
        Some((x.place(point.0)?, low, y.clamped(point.1 + error)?))
    });
    bars.collect()
}

/// Scale for `plotters`, which handles positions only.
struct Ticks<'a>(&'a Scale);

impl PlottersAxis for Ticks<'_> {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, (from, to): (i32, i32)) -> i32 {
        from + (f64::from(to - from) * place).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.0.ticks().iter().map(|(place, _)| *place).collect()
    }

    fn range(&self) -> Range<f64> {
        0.0..1.0
    }
}

impl ValueFormatter<f64> for Ticks<'_> {
    fn format_ext(&self, place: &f64) -> String {
        let mut ticks = self.0.ticks().iter();
        let tick = ticks.find(|(at, _)| at == place);
        tick.map(|(_, label)| label.clone()).unwrap_or_default()
    }
}
