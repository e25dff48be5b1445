//! Figures as SVG and PNG, drawn by `plotters`.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Once;

use anyhow::{Context, Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{
    KeyPointHint, NoDefaultFormatting, Ranged as PlottersAxis, ValueFormatter,
};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};

use super::scale::Scale;
use super::{Figure, Panel, Series, Style};

/// In the units of the SVG.
const WIDTH: u32 = 900;
const TITLE: u32 = 34;
const PANEL: u32 = 264;
/// Points of the drawing for each unit: SVG and PNG are drawn with whole numbers.
const DRAWN: u32 = 4;
/// Points of the drawing for each pixel of the PNG in either direction, which are averaged.
const AVERAGED: u32 = 2;
/// Size of text that is not made smaller.
const SMALLEST: u32 = 7;
/// Width of the title of a panel with the legend, height of further rows of it, and room for a sample of each entry.
const HEAD: i32 = 796;
const LEGEND_ROW: u32 = 18;
/// Rows of the legend; what does not fit has no name there.
const MOST_ROWS: u32 = 4;
const SAMPLE: i32 = 42;
/// Width of what is drawn in a panel, nearly.
const COLUMNS: usize = 800;

const FONT: &str = "sans-serif";
const TEXT: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);
/// Colours that the colour-blind tell apart (Okabe and Ito 2008), but for yellow, which white swallows.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

pub fn svg(figure: &Figure) -> Result<String> {
    let mut text = String::new();
    let (width, height) = size(figure);
    let backend = SVGBackend::with_string(&mut text, (width, height));
    draw(figure, &backend.into_drawing_area())?;
    let drawn = format!("width=\"{width}\" height=\"{height}\"");
    let (width, height) = (width / DRAWN, height / DRAWN);
    let shown = format!("width=\"{width}\" height=\"{height}\"");
    Ok(text.replacen(&drawn, &shown, 1))
}

pub fn png(figure: &Figure) -> Result<Vec<u8>> {
    let drawn = size(figure);
    let mut points = vec![0; 3 * drawn.0 as usize * drawn.1 as usize];
    let backend = BitMapBackend::with_buffer(&mut points, drawn);
    draw(figure, &backend.into_drawing_area())?;
    let (width, height) = png_size(figure);
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().context("cannot write a PNG")?;
    let pixels = averaged(&points, drawn.0 as usize);
    writer
        .write_image_data(&pixels)
        .context("cannot write a PNG")?;
    writer.finish().context("cannot write a PNG")?;
    Ok(file)
}

pub fn png_size(figure: &Figure) -> (u32, u32) {
    let (width, height) = size(figure);
    (width / AVERAGED, height / AVERAGED)
}

/// The series and their colours. One without a name belongs to the one before it, and has its colour.
fn coloured(panel: &Panel) -> impl Iterator<Item = (&Series, &'static RGBColor)> {
    let mut named = 0usize;
    panel.series.iter().map(move |series| {
        named += usize::from(!series.name.is_empty());
        (series, &COLOURS[named.saturating_sub(1) % COLOURS.len()])
    })
}

/// Squares of the drawing become pixels.
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
        pixels
            .flat_map(|at| [pixel(at, 0), pixel(at, 1), pixel(at, 2)])
            .collect()
    };
    let rows = points.chunks_exact(3 * width * side);
    rows.flat_map(squares).collect()
}

/// Of the drawing.
fn size(figure: &Figure) -> (u32, u32) {
    let height = TITLE + PANEL * figure.panels.len().clamp(1, 100) as u32;
    (WIDTH * DRAWN, height * DRAWN)
}

type Area<'a, B> = DrawingArea<B, Shift>;

fn draw<B: DrawingBackend>(figure: &Figure, area: &Area<'_, B>) -> Result<()> {
    use_embedded_font();
    let drawn = try_draw(figure, area);
    drawn.map_err(|error| anyhow!("cannot draw `{}`: {error}", figure.title))
}

/// The bitmap needs a font, and looks for none on the machine, so that it is the same everywhere.
fn use_embedded_font() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Whoever draws is told if the font is not there.
        let _ = register_font(FONT, FontStyle::Normal, epaint_default_fonts::HACK_REGULAR);
    });
}

type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

fn try_draw<B: DrawingBackend>(figure: &Figure, area: &Area<'_, B>) -> Drawn<B> {
    area.fill(&WHITE)?;
    let (top, panels) = area.split_vertically(TITLE * DRAWN);
    let pen = Pen { scale: DRAWN };
    let (left, bottom) = (14, TITLE as i32 - 10);
    let most = WIDTH as i32 - 2 * left;
    pen.write(&top, &figure.title, 16, (left, bottom), most)?;
    let areas = panels.split_evenly((figure.panels.len().max(1), 1));
    for (panel, area) in figure.panels.iter().zip(&areas) {
        pen.panel(panel, area)?;
    }
    area.present()
}

/// A name in the legend.
struct Entry<'a> {
    series: &'a Series,
    colour: &'static RGBColor,
    row: u32,
    /// From its beginning to the end of the row.
    from_right: i32,
}

/// Lengths are in units of the SVG.
#[derive(Clone, Copy)]
struct Pen {
    scale: u32,
}

impl Pen {
    fn long(self, units: u32) -> u32 {
        units * self.scale
    }

    /// `place` is the lower left end of the text. Text that is longer than `most` is written smaller.
    fn write<B: DrawingBackend>(
        self,
        area: &Area<'_, B>,
        text: &str,
        size: u32,
        place: (i32, i32),
        most: i32,
    ) -> Drawn<B> {
        let length = self.length(area, text, size)?;
        let size = if length > most {
            (size * most.unsigned_abs() / length.unsigned_abs()).max(SMALLEST)
        } else {
            size
        };
        let style = self.style(size).pos(Pos::new(HPos::Left, VPos::Bottom));
        let place = (place.0 * self.scale as i32, place.1 * self.scale as i32);
        area.draw(&Text::new(printable(text), place, style))
    }

    fn length<B: DrawingBackend>(
        self,
        area: &Area<'_, B>,
        text: &str,
        size: u32,
    ) -> Result<i32, DrawingAreaErrorKind<B::ErrorType>> {
        let (length, _) = area.estimate_text_size(&printable(text), &self.style(size))?;
        Ok((length / self.scale) as i32)
    }

    fn style(self, size: u32) -> TextStyle<'static> {
        TextStyle::from((FONT, f64::from(self.long(size)))).color(&TEXT)
    }

    fn panel<B: DrawingBackend>(self, panel: &Panel, area: &Area<'_, B>) -> Drawn<B> {
        let (x, y) = panel.scales(8, 5);
        let legend = self.legend(panel, area)?;
        let rows = legend.last().map_or(0, |entry| entry.row);
        let (head, body) = area.split_vertically(self.long(26 + LEGEND_ROW * rows));
        self.head(panel, &legend, &head)?;
        let mut chart = ChartBuilder::on(&body)
            .margin_right(self.long(24))
            .margin_left(self.long(8))
            .margin_top(self.long(4))
            .x_label_area_size(self.long(40))
            .y_label_area_size(self.long(72))
            .build_cartesian_2d(Ticks(&x), Ticks(&y))?;
        chart
            .configure_mesh()
            .x_desc(printable(x.label()))
            .y_desc(printable(y.label()))
            .label_style(self.style(12))
            .axis_desc_style(self.style(13))
            .axis_style(TEXT.stroke_width(self.scale))
            .bold_line_style(GRID.stroke_width(self.scale))
            .light_line_style(TRANSPARENT)
            .set_all_tick_mark_size(self.long(4))
            .draw()?;
        let plane = chart.plotting_area();
        for (series, colour) in coloured(panel) {
            for run in runs(series, &x, &y) {
                match series.style {
                    Style::Line if run.len() > 1 => {
                        let style = colour.stroke_width(self.long(3) / 2);
                        plane.draw(&PathElement::new(run, style))?;
                    }
                    Style::Line => self.dots(plane, &run, *colour)?,
                    Style::Dots => self.dots(plane, &thinned(&run), *colour)?,
                }
            }
            for (place, low, high) in bars(series, &x, &y) {
                let bar = vec![(place, low), (place, high)];
                plane.draw(&PathElement::new(bar, colour.stroke_width(self.scale)))?;
            }
        }
        Ok(())
    }

    fn dots<B: DrawingBackend>(
        self,
        plane: &DrawingArea<B, Cartesian2d<Ticks<'_>, Ticks<'_>>>,
        places: &[(f64, f64)],
        colour: RGBColor,
    ) -> Drawn<B> {
        let radius = self.long(5) / 2;
        for place in places {
            plane.draw(&Circle::new(*place, radius, colour.filled()))?;
        }
        Ok(())
    }

    /// What is where in the legend: at the right of the title, and in as many rows below as it needs.
    fn legend<'a, B: DrawingBackend>(
        self,
        panel: &'a Panel,
        area: &Area<'_, B>,
    ) -> Result<Vec<Entry<'a>>, DrawingAreaErrorKind<B::ErrorType>> {
        let title = self.length(area, &panel.title, 14)?;
        let mut entries: Vec<Entry<'_>> = Vec::new();
        let (mut row, mut used) = (0, title);
        for (series, colour) in coloured(panel).filter(|(series, _)| !series.name.is_empty()) {
            let length = SAMPLE + self.length(area, &series.name, 12)?;
            if used + length > HEAD && (row == 0 || used > 0) {
                (row, used) = (row + 1, 0);
            }
            // Curves are worth more than the names of all of them.
            if row == MOST_ROWS {
                break;
            }
            used += length;
            // All of the row before it make room.
            let in_row = entries.iter_mut().rev();
            for entry in in_row.take_while(|entry| entry.row == row) {
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

    /// Title at the left, legend at the right, so that neither hides what is drawn.
    fn head<B: DrawingBackend>(
        self,
        panel: &Panel,
        legend: &[Entry<'_>],
        area: &Area<'_, B>,
    ) -> Drawn<B> {
        let (left, bottom) = (WIDTH as i32 - 24 - HEAD, 22);
        for entry in legend {
            let bottom = bottom + (LEGEND_ROW * entry.row) as i32;
            let x = left + HEAD - entry.from_right + SAMPLE;
            let most = entry.from_right - SAMPLE;
            self.write(area, &entry.series.name, 12, (x, bottom), most)?;
            let sample = (x - 6, bottom - 7);
            self.sample(area, entry.series.style, sample, *entry.colour)?;
        }
        self.write(area, &panel.title, 14, (left, bottom), HEAD)
    }

    /// As the series is drawn, ending at a place.
    fn sample<B: DrawingBackend>(
        self,
        area: &Area<'_, B>,
        style: Style,
        (x, y): (i32, i32),
        colour: RGBColor,
    ) -> Drawn<B> {
        let at = |x: i32| (x * self.scale as i32, y * self.scale as i32);
        match style {
            Style::Line => {
                let stroke = colour.stroke_width(self.long(2));
                area.draw(&PathElement::new(vec![at(x - 20), at(x)], stroke))
            }
            Style::Dots => area.draw(&Circle::new(at(x - 8), self.long(3), colour.filled())),
        }
    }
}

/// Without what no document may hold.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// Places of the points that follow each other without a break. Lines are thinned so that they look alike.
fn runs(series: &Series, x: &Scale, y: &Scale) -> Vec<Vec<(f64, f64)>> {
    let places: Vec<Option<(f64, f64)>> = series
        .points
        .iter()
        .map(|point| x.place(point.0).zip(y.place(point.1)))
        .collect();
    let runs = places.split(Option::is_none).filter(|run| !run.is_empty());
    runs.map(|run| run.iter().flatten().copied().collect())
        .map(|run: Vec<(f64, f64)>| match series.style {
            Style::Line => outline(&run, COLUMNS),
            Style::Dots => run,
        })
        .collect()
}

/// First, lowest, highest and last point of each column of a line that has more points than these.
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

/// Dots that do not hide each other.
fn thinned(places: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut taken = HashSet::new();
    let pixel = |part: f64| (part * COLUMNS as f64) as i64;
    let free = |place: &&(f64, f64)| taken.insert((pixel(place.0), pixel(place.1)));
    places.iter().filter(free).copied().collect()
}

/// Place, lower and upper end of the bars of errors.
fn bars(series: &Series, x: &Scale, y: &Scale) -> Vec<(f64, f64, f64)> {
    let points = series.points.iter().enumerate();
    points
        .filter(|(at, _)| series.error_of(*at) > 0.0)
        .filter_map(|(at, point)| {
            let error = series.error_of(at);
            y.place(point.1)?;
            let low = y.clamped(point.1 - error).unwrap_or(0.0);
            Some((x.place(point.0)?, low, y.clamped(point.1 + error)?))
        })
        .collect()
}

/// A scale as `plotters` wants it, which knows places alone.
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
