//! Figures as text: Braille characters have two by four dots each.

use super::scale::Scale;
use super::{Figure, Panel, Series, Style};

/// Number of lines of a panel without dots: title, axis, ticks, label.
const AROUND: usize = 4;
/// Minimum number of lines of dots.
const LOWEST: usize = 3;
/// Marks of the second and later series that have dots.
const MARKS: [char; 5] = ['o', 'x', '+', '*', '#'];
/// Bit of each dot of a Braille character, by row and column.
const DOTS: [[u32; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

impl Figure {
    /// Draws the figure in Braille dots, in lines of at most `width` characters and about `height` lines. The panels share the
    /// lines, and none is lower than it can be drawn.
    pub fn text(&self, width: usize, height: usize) -> String {
        let panels = self.panels.len().max(1);
        let rows = (height.saturating_sub(1) / panels).saturating_sub(AROUND);
        let mut lines = vec![self.title.clone()];
        for panel in &self.panels {
            lines.extend(draw_panel(panel, width, rows.max(LOWEST)));
        }
        let lines = lines.iter().map(|line| cut(line, width));
        lines.collect::<Vec<_>>().join("\n")
    }
}

fn cut(line: &str, width: usize) -> String {
    let shown = line.chars().filter(|c| !c.is_control());
    let line: String = shown.take(width).collect();
    line.trim_end().to_string()
}

fn draw_panel(panel: &Panel, width: usize, rows: usize) -> Vec<String> {
    let (x, y) = panel.scales(width / 14, rows / 2);
    let margin = y.ticks().iter().map(|(_, label)| label.chars().count());
    let margin = margin.max().unwrap_or(0);
    let columns = width.saturating_sub(margin + 2).max(1);
    let grid = Grid::of(panel, &x, &y, columns, rows);
    let mut lines = vec![format!("{}: {}{}", panel.title, y.label(), legend(panel))];
    let mut labels = vec![String::new(); rows];
    for (place, label) in y.ticks() {
        labels[row_of(*place, rows)].clone_from(label);
    }
    for (label, row) in labels.iter().zip(grid.lines()) {
        let axis = if label.is_empty() { '│' } else { '┤' };
        lines.push(format!("{label:>margin$} {axis}{row}"));
    }
    let pad = " ".repeat(margin + 1);
    lines.push(format!("{pad}{}", bottom(&x, columns)));
    lines.push(format!("{pad}{}", tick_labels(&x, columns)));
    let label = x.label();
    lines.push(format!("{pad} {label:^columns$}"));
    lines
}

fn row_of(place: f64, rows: usize) -> usize {
    (((1.0 - place) * rows as f64) as usize).min(rows - 1)
}

fn column_of(place: f64, columns: usize) -> usize {
    ((place * columns as f64) as usize).min(columns - 1)
}

fn bottom(x: &Scale, columns: usize) -> String {
    let mut line = vec!['─'; columns];
    for (place, _) in x.ticks() {
        line[column_of(*place, columns)] = '┬';
    }
    format!("└{}", line.iter().collect::<String>())
}

/// Centres each label under its tick, if there is room.
fn tick_labels(x: &Scale, columns: usize) -> String {
    let mut line = vec![' '; columns + 1];
    let mut free = 0;
    for (place, label) in x.ticks() {
        let length = label.chars().count();
        let middle = 1 + column_of(*place, columns);
        let start = middle.saturating_sub(length / 2);
        let start = start.min((columns + 1).saturating_sub(length));
        if start < free || start + length > line.len() {
            continue;
        }
        for (at, c) in (start..).zip(label.chars()) {
            line[at] = c;
        }
        free = start + length + 1;
    }
    line.iter().collect()
}

/// Formats marks and names of the series, if there are names.
fn legend(panel: &Panel) -> String {
    let named = panel.series.iter().zip(marks(panel));
    named
        .filter(|(series, _)| !series.name.is_empty())
        .map(|(series, mark)| format!("  {} {}", mark.unwrap_or('⠒'), series.name))
        .collect()
}

/// Returns the character of each series, if several series have dots.
fn marks(panel: &Panel) -> impl Iterator<Item = Option<char>> {
    let several = panel.series.len() > 1;
    let mut marks = MARKS.iter().cycle();
    let mark = move |series: &Series| match series.style {
        Style::Dots if several => marks.next().copied(),
        Style::Dots | Style::Line | Style::Bars(_) => None,
    };
    panel.series.iter().map(mark)
}

/// Dots, and the characters drawn over them.
struct Grid {
    columns: usize,
    rows: usize,
    dots: Vec<u32>,
    over: Vec<Option<char>>,
}

impl Grid {
    fn of(panel: &Panel, x: &Scale, y: &Scale, columns: usize, rows: usize) -> Grid {
        let mut grid = Grid {
            columns,
            rows,
            dots: vec![0; columns * rows],
            over: vec![None; columns * rows],
        };
        for (series, mark) in panel.series.iter().zip(marks(panel)) {
            for [left, right, top] in series.bars(x, y) {
                let (left, right) = (column_of(left, 2 * columns), column_of(right, 2 * columns));
                for column in left..=right {
                    let x = (column as f64 + 0.5) / (2 * columns) as f64;
                    grid.line(&[Some((x, 0.0)), Some((x, top))]);
                }
            }
            let places = series.places(x, y);
            if series.style == Style::Line {
                grid.line(&places);
            }
            for (x, y) in places.into_iter().flatten() {
                match mark {
                    None => grid.dot((x, y)),
                    _ => grid.over[row_of(y, rows) * columns + column_of(x, columns)] = mark,
                }
            }
        }
        grid
    }

    fn line(&mut self, places: &[Option<(f64, f64)>]) {
        for pair in places.windows(2) {
            if let [Some(from), Some(to)] = pair {
                let across = (to.0 - from.0).abs() * self.columns as f64 * 2.0;
                let up = (to.1 - from.1).abs() * self.rows as f64 * 4.0;
                let steps = across.max(up).ceil().max(1.0);
                for step in 0..=steps as usize {
                    let part = step as f64 / steps;
                    let between = |a: f64, b: f64| a + (b - a) * part;
                    self.dot((between(from.0, to.0), between(from.1, to.1)));
                }
            }
        }
    }

    fn dot(&mut self, (x, y): (f64, f64)) {
        let (column, row) = (column_of(x, 2 * self.columns), row_of(y, 4 * self.rows));
        self.dots[row / 4 * self.columns + column / 2] |= DOTS[row % 4][column % 2];
    }

    fn lines(&self) -> impl Iterator<Item = String> {
        let dots = self.dots.chunks(self.columns);
        let rows = dots.zip(self.over.chunks(self.columns));
        rows.map(|(dots, over)| {
            let cells = dots.iter().zip(over);
            let cells = cells.map(|(dots, over)| over.unwrap_or(braille(*dots)));
            cells.collect()
        })
    }
}

fn braille(dots: u32) -> char {
    if dots == 0 {
        return ' ';
    }
    char::from_u32(0x2800 + dots).unwrap_or(' ')
}
