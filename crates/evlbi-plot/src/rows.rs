//! Aligned rows of text.

use serde::Serialize;

/// Formats rows, each column as wide as its longest cell; columns for which `left` is true are left-aligned, others
/// right-aligned.
pub fn columns(rows: &[Vec<String>], left: impl Fn(usize) -> bool) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len))
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells: Vec<String> = cells
            .map(|(column, (cell, width))| match left(column) {
                true => format!("{cell:<width$}"),
                false => format!("{cell:>width$}"),
            })
            .collect();
        cells.join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<String>>().join("\n")
}

/// Formats lines of `name  value`, with names padded to one width.
pub fn lines(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{name:<width$}  {value}"))
        .collect();
    lines.join("\n")
}

/// Returns the name of a value in results.
pub fn name(value: &impl Serialize) -> String {
    let named = serde_json::to_value(value).ok();
    let name = named.as_ref().and_then(|named| named.as_str());
    name.unwrap_or_default().to_owned()
}
