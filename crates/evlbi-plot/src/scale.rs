//! Scales: convert values to positions on an axis; range, ticks, prefix of the unit.

use super::{Axis, Unit};

/// Maximum magnitude: larger values are skipped, and values below its reciprocal are 0, so that calculations do not overflow.
const LARGEST: f64 = 1e280;
/// Minimum width of a range, as a fraction of its values.
const NARROWEST: f64 = 1e-10;
/// Fraction of the range that is left free at both ends.
const MARGIN: f64 = 0.05;
/// Prefixes of units for powers of 1000, starting at 10^-24.
const PREFIXES: [&str; 17] = [
    "y", "z", "a", "f", "p", "n", "µ", "m", "", "k", "M", "G", "T", "P", "E", "Z", "Y",
];

/// Axis with its range. Positions are between 0 and 1.
#[derive(Clone, Debug)]
pub struct Scale {
    low: f64,
    high: f64,
    log: bool,
    /// Power of ten of the tick labels.
    exponent: i32,
    /// Positions and labels.
    ticks: Vec<(f64, String)>,
    label: String,
}

impl Scale {
    /// Makes a scale for the values of an axis. With `margin` the ends are left free.
    pub fn new(
        axis: &Axis,
        values: impl Iterator<Item = f64>,
        margin: bool,
        ticks: usize,
    ) -> Scale {
        let (low, high) = match axis.range {
            Some((a, b)) if sound(a) && sound(b) => {
                let ends = [a.min(b), a.max(b)].map(|end| transformed(end, axis.log));
                spread(ends[0].unwrap_or(0.0), ends[1].unwrap_or(1.0))
            }
            // Each name has the middle of its own room.
            _ if !axis.names.is_empty() => (-0.5, axis.names.len() as f64 - 0.5),
            _ => {
                let values = values.filter_map(|value| transformed(value, axis.log));
                range(values, axis.log, margin)
            }
        };
        let exponent = exponent(axis, low, high);
        let mut scale = Scale {
            low,
            high,
            log: axis.log,
            exponent,
            ticks: Vec::new(),
            label: label(axis, exponent),
        };
        scale.ticks = match axis.names.is_empty() {
            true => scale.make_ticks(axis.unit, ticks.max(1)),
            false => {
                let named = (0u32..).zip(&axis.names);
                let tick =
                    |(at, name): (u32, &String)| Some((scale.place(at.into())?, name.clone()));
                named.filter_map(tick).collect()
            }
        };
        scale
    }

    /// Returns the position of a value; `None` if it is not on the axis.
    pub fn place(&self, value: f64) -> Option<f64> {
        let place = self.unbounded(value)?;
        (-1e-9..=1.0 + 1e-9).contains(&place).then_some(place)
    }

    /// Returns the position of a value, or of the nearest end of the axis.
    pub fn clamped(&self, value: f64) -> Option<f64> {
        self.unbounded(value).map(|place| place.clamp(0.0, 1.0))
    }

    /// Returns the fraction of a linear axis that a length covers.
    #[cfg(feature = "pictures")]
    pub fn part(&self, length: f64) -> f64 {
        length / (self.high - self.low)
    }

    fn unbounded(&self, value: f64) -> Option<f64> {
        transformed(value, self.log).map(|value| self.place_of(value))
    }

    fn place_of(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    /// Returns positions and labels of the ticks.
    pub fn ticks(&self) -> &[(f64, String)] {
        &self.ticks
    }

    /// Returns the label of the axis, with its unit.
    pub fn label(&self) -> &str {
        &self.label
    }

    fn make_ticks(&self, unit: Unit, about: usize) -> Vec<(f64, String)> {
        let step = (self.high - self.low) / about as f64;
        if self.log {
            let ticks = self.decades(step).into_iter();
            return ticks
                .map(|value| (self.place_of(value), self.power_of_ten(value)))
                .collect();
        }
        // Calculated in the unit of the labels, so that round numbers stay round.
        let scale = 10f64.powi(self.exponent);
        let step = nice(step / scale, unit);
        let decimals = decimals(step);
        multiples(self.low / scale, self.high / scale, step)
            // No minus sign before a zero.
            .map(|value| (value, if value.abs() < step / 2.0 { 0.0 } else { value }))
            .map(|(value, shown)| (self.place_of(value * scale), format!("{shown:.decimals$}")))
            .collect()
    }

    /// Returns logarithms of powers of ten, and of 2 and 5 times these if there are few.
    fn decades(&self, step: f64) -> Vec<f64> {
        if step > 0.3 {
            return multiples(self.low, self.high, nice(step, Unit::Bare).max(1.0)).collect();
        }
        let within = |value: &f64| (self.low - 1e-6..=self.high + 1e-6).contains(value);
        multiples(self.low - 1.0, self.high, 1.0)
            .flat_map(|decade| [1f64, 2.0, 5.0].map(|part| decade + part.log10()))
            .filter(within)
            .collect()
    }

    fn power_of_ten(&self, logarithm: f64) -> String {
        let value = 10f64.powf(logarithm - f64::from(self.exponent));
        if (1e-4..1e5).contains(&value) {
            // All digits but the first are due to rounding.
            format!("{}", format!("{value:.0e}").parse().unwrap_or(value))
        } else {
            format!("{value:.0e}")
        }
    }
}

/// Returns the multiples of a step in a range; at most a thousand.
fn multiples(low: f64, high: f64, step: f64) -> impl Iterator<Item = f64> {
    let (first, last) = ((low / step - 1e-6).ceil(), (high / step + 1e-6).floor());
    let count = (last - first + 1.0).clamp(0.0, 1000.0) as usize;
    (0..count).map(move |at| (first + at as f64) * step)
}

fn sound(value: f64) -> bool {
    value.abs() < LARGEST
}

/// Returns the value, or its logarithm; `None` if that is undefined.
fn transformed(value: f64, log: bool) -> Option<f64> {
    match value.abs() {
        _ if !sound(value) => None,
        small if small < 1.0 / LARGEST => (!log).then_some(0.0),
        _ if log => (value > 0.0).then(|| value.log10()),
        _ => Some(value),
    }
}

fn range(values: impl Iterator<Item = f64>, log: bool, margin: bool) -> (f64, f64) {
    let ends = values.fold(None, |ends: Option<(f64, f64)>, value| {
        let (low, high) = ends.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    });
    let Some((low, high)) = ends else {
        return (0.0, 1.0);
    };
    let (low, high) = match () {
        // Positive values that vary widely are best shown from zero on.
        () if margin && !log && low >= 0.0 && low < 0.7 * high => (0.0, high),
        () if margin && !log && high <= 0.0 && high > 0.7 * low => (low, 0.0),
        () => (low, high),
    };
    let (wide_low, wide_high) = spread(low, high);
    let share = if margin { MARGIN } else { 0.0 };
    let free = share * (wide_high - wide_low);
    let beyond = |end: f64, by: f64| if end == 0.0 && !log { 0.0 } else { end + by };
    (beyond(wide_low, -free), beyond(wide_high, free))
}

/// Separates ends that are equal.
fn spread(low: f64, high: f64) -> (f64, f64) {
    let size = low.abs().max(high.abs());
    if size == 0.0 {
        return (-1.0, 1.0);
    }
    if low == high {
        return (low - size / 2.0, high + size / 2.0);
    }
    let missing = (NARROWEST * size - (high - low)).max(0.0);
    (low - missing, high + missing)
}

/// Returns the power of ten that is split off the numbers.
fn exponent(axis: &Axis, low: f64, high: f64) -> i32 {
    let largest = if axis.log {
        10f64.powf(high.abs().min(270.0) * high.signum())
    } else {
        low.abs().max(high.abs())
    };
    let thousands = 3 * ((largest.log10() + 1e-9) / 3.0).floor() as i32;
    match axis.unit {
        Unit::Si(unit) => {
            // Nobody uses kiloseconds.
            let max = if unit.starts_with('s') { 0 } else { 24 };
            thousands.clamp(-24, max)
        }
        Unit::Bare if !axis.log && !(1e-2..1e5).contains(&largest) => thousands,
        Unit::Bare | Unit::Degrees => 0,
    }
}

fn label(axis: &Axis, exponent: i32) -> String {
    let unit = match axis.unit {
        Unit::Bare if exponent == 0 => return axis.label.clone(),
        Unit::Bare => format!("10^{exponent}"),
        Unit::Si(unit) => format!("{}{unit}", prefix(exponent)),
        Unit::Degrees => "deg".to_string(),
    };
    format!("{} ({unit})", axis.label)
}

/// Returns the prefix for a power of 1000 from 10^-24 to 10^24.
fn prefix(exponent: i32) -> &'static str {
    let at = usize::try_from(exponent / 3 + 8).ok();
    at.and_then(|at| PREFIXES.get(at)).unwrap_or(&"")
}

/// Returns the customary step of about this length.
fn nice(step: f64, unit: Unit) -> f64 {
    let fits = |nice: &f64| step <= *nice * 1.3;
    let angles = [15.0, 30.0, 45.0, 90.0, 180.0, 360.0];
    if unit == Unit::Degrees && (10.0..=360.0).contains(&step) {
        return angles.into_iter().find(fits).unwrap_or(360.0);
    }
    let decade = 10f64.powf(step.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|part| part * decade);
    steps.into_iter().find(fits).unwrap_or(10.0 * decade)
}

/// Returns the number of decimals that multiples of a step need.
fn decimals(step: f64) -> usize {
    (-step.log10() - 1e-9).ceil().clamp(0.0, 12.0) as usize
}

/// Formats a value and its error, if there is one, in a unit with prefix, to two digits of the error: `12.34 ± 0.56 ns`.
pub fn measured(value: f64, error: f64, unit: &'static str) -> String {
    let axis = Axis::new("", Unit::Si(unit));
    let exponent = match transformed(value.abs().max(error), false) {
        Some(largest) if largest > 0.0 => exponent(&axis, 0.0, largest),
        _ => 0,
    };
    let scale = 10f64.powi(-exponent);
    let unit = format!("{}{unit}", prefix(exponent));
    let (value, error) = (value * scale, error * scale);
    if error > 0.0 {
        let decimals = decimals(error / 10.0);
        format!("{value:.decimals$} ± {error:.decimals$} {unit}")
    } else {
        format!("{value:.6} {unit}")
    }
}
