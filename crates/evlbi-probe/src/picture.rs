//! Plots of the points: rates and loss against the requested values, and times between arrivals.

use std::collections::BTreeMap;

use super::point::{Point, Region};
use super::udp::ProbeUdp;
use crate::measure::Attribution;
use evlbi_plot::{Axis, Figure, Panel, Series, Style, Unit};
use evlbi_wire::units::show_rate;

/// Maximum number of points whose times between arrivals are plotted.
pub(crate) const MAX_HISTOGRAMS: usize = 7;

/// Plots the points of a sweep.
pub fn figure(result: &ProbeUdp) -> Figure {
    let points = &result.points;
    let mut panels = Vec::new();
    let percent = || Axis::new("loss (%)", Unit::Bare);
    if let Some(sweep) = Sweep::of(points) {
        let rate = Axis::new("rate", Unit::Si("bit/s"));
        let received = |point: &Point| point.wire_rate_received;
        let mut on_the_wire = sweep.panel(points, "received on the wire", rate, received);
        on_the_wire.series.extend(sweep.regions(points));
        panels.push(on_the_wire);
        let lost = |point: &Point| 100.0 * point.loss;
        panels.push(sweep.panel(points, "lost", percent(), lost));
        if points.iter().any(|point| point.host_lost > 0) {
            let title = "of this, lost in the hosts";
            let lost = |point: &Point| 100.0 * point.host_lost as f64 / point.sent.max(1) as f64;
            panels.push(sweep.panel(points, title, percent(), lost));
        }
    }
    panels.extend(places(points));
    let time = ("time", Unit::Si("s"), 1e-9);
    panels.push(histogram(points, "times between arrivals", time, |point| {
        Some(&point.arrivals.as_ref()?.bins)
    }));
    if points.iter().any(|point| point.lost > 0) {
        let length = ("datagrams lost in a row", Unit::Bare, 1.0);
        panels.push(histogram(points, "runs of loss", length, |point| {
            Some(&point.loss_runs)
        }));
    }
    if points.iter().any(|point| point.reordered > 0) {
        let extent = ("extent (arrivals)", Unit::Bare, 1.0);
        panels.push(histogram(points, "reordering", extent, |point| {
            Some(&point.reordering_extents)
        }));
    }
    Figure {
        title: format!("UDP to {} at {}", result.target, result.begun),
        panels,
    }
}

pub(crate) fn panel(title: &str, x: Axis, y: Axis, series: Vec<Series>) -> Panel {
    Panel {
        title: title.to_owned(),
        x,
        y,
        series,
    }
}

/// Returns a logarithmic axis.
pub(crate) fn log_axis(label: &str, unit: Unit) -> Axis {
    Axis {
        log: true,
        ..Axis::new(label, unit)
    }
}

/// Places where datagrams are lost, along the path, and a point's losses there.
type Place = (&'static str, fn(&Attribution) -> u64);
const PLACES: [Place; 7] = [
    ("sending host", |lost| lost.sender_host),
    ("sending NIC", |lost| lost.sender_nic),
    ("network", |lost| lost.network),
    ("receiving NIC", |lost| lost.receiver_nic),
    ("backlog", |lost| lost.receiver_backlog),
    ("socket", |lost| lost.receiver_socket),
    ("unattributed", |lost| lost.unattributed),
];

/// Returns a panel of losses by place; `None` without losses.
fn places(points: &[Point]) -> Option<Panel> {
    let with: Vec<&Point> = points.iter().filter(|point| point.lost > 0).collect();
    let counts = some(&with).map(|point| {
        let counts = PLACES.map(|(_, count)| count(&point.attribution));
        (named(point), counts.to_vec())
    });
    let (counts, names): (Vec<_>, _) = (counts.collect(), PLACES.map(|(name, _)| name));
    let panel = || Panel::of_counts("lost, by place", "datagrams", &names, &counts);
    (!counts.is_empty()).then(panel)
}

/// Returns no more of `all` than are distinguishable, from the first to the last.
fn some<T>(all: &[T]) -> impl Iterator<Item = &T> {
    let shown = all.len().min(MAX_HISTOGRAMS);
    (0..shown).map(move |at| &all[at * (all.len() - 1) / (shown - 1).max(1)])
}

/// Returns the name of a point's series.
fn named(point: &Point) -> String {
    let rate = point.rate_asked.map_or("max".to_owned(), show_rate);
    format!("{} B {}, {rate}", point.size, point.direction.label())
}

/// Returns a histogram as dots; the axis shows each value times `factor`.
pub(crate) fn dots(name: String, bins: &BTreeMap<u64, u64>, factor: f64) -> Series {
    let point = |(value, count): (&u64, &u64)| (*value as f64 * factor, *count as f64);
    Series {
        name,
        points: bins.iter().map(point).collect(),
        style: Style::Dots,
        ..Series::default()
    }
}

type Get = fn(&Point) -> f64;

/// Variable of a sweep.
#[derive(Clone, Copy)]
enum Sweep {
    Spacing,
    Rate,
    Buffer,
    LoadNice,
    ReceiverNice,
    Size,
}

impl Sweep {
    /// Returns the variable of a sweep, or `None` for a single point.
    fn of(points: &[Point]) -> Option<Sweep> {
        let differ = |get: &dyn Fn(&Point) -> Option<f64>| {
            points.windows(2).any(|pair| get(&pair[0]) != get(&pair[1]))
        };
        let is_spaced =
            |point: &Point| point.spacing_asked.is_none_or(|apart| apart.fract() == 0.0);
        for sweep in [Sweep::Buffer, Sweep::LoadNice, Sweep::ReceiverNice] {
            if differ(&|point| sweep.x(point)) {
                return Some(sweep);
            }
        }
        if differ(&|point| point.rate_asked.map(|rate| rate / point.size as f64))
            && points.iter().all(is_spaced)
        {
            return Some(Sweep::Spacing);
        }
        if differ(&|point| point.rate_asked) {
            return Some(Sweep::Rate);
        }
        differ(&|point| Sweep::Size.x(point)).then_some(Sweep::Size)
    }

    fn x(self, point: &Point) -> Option<f64> {
        match self {
            Sweep::Spacing => Some(point.spacing_asked.unwrap_or(0.0) * 1e-9),
            Sweep::Rate => point.rate_asked,
            Sweep::Buffer => Some(point.receiver.buffer.as_ref()?.asked as f64),
            Sweep::LoadNice => point.burden.map(|burden| f64::from(burden.tasks_nice)),
            Sweep::ReceiverNice => point.burden?.nice.map(f64::from),
            Sweep::Size => Some(point.size as f64),
        }
    }

    /// Returns the position of a point.
    fn place(self, point: &Point, get: Get) -> (f64, f64) {
        (self.x(point).unwrap_or(f64::NAN), get(point))
    }

    fn axis(self) -> Axis {
        match self {
            Sweep::Spacing => Axis::new("requested spacing", Unit::Si("s")),
            Sweep::Rate => Axis::new("requested rate of UDP payload", Unit::Si("bit/s")),
            Sweep::Buffer => log_axis("requested receive buffer", Unit::Si("B")),
            Sweep::LoadNice => Axis::new("nice value of the competing tasks", Unit::Bare),
            Sweep::ReceiverNice => Axis::new("nice value of the receiver", Unit::Bare),
            Sweep::Size => Axis::new("UDP payload (bytes)", Unit::Bare),
        }
    }

    /// Returns the limits of points, if the sweep varies their pace and not all reach it.
    fn regions(self, points: &[Point]) -> Vec<Series> {
        let is_pace = matches!(self, Sweep::Spacing | Sweep::Rate);
        let is_limited = |point: &Point| matches!(point.region, Some(Region::B | Region::C));
        if !is_pace || !points.iter().any(is_limited) {
            return Vec::new();
        }
        let all = [
            (Region::A, "A: as requested"),
            (Region::B, "B: the path is full"),
            (Region::C, "C: the hosts are busy"),
        ];
        let received = |point: &Point| point.wire_rate_received;
        let series = all.map(|(region, name)| Series {
            name: name.to_owned(),
            points: points
                .iter()
                .filter(|point| point.region == Some(region))
                .map(|point| self.place(point, received))
                .collect(),
            style: Style::Dots,
            ..Series::default()
        });
        let drawn = series.into_iter().filter(|one| !one.points.is_empty());
        drawn.collect()
    }

    /// Returns a panel with a curve for each direction and, unless the sweep varies it, each size.
    fn panel(self, points: &[Point], title: &str, y: Axis, get: Get) -> Panel {
        let mut series: Vec<Series> = Vec::new();
        for point in points {
            let name = match self {
                Sweep::Size => point.direction.label().to_owned(),
                _ => format!("{} B {}", point.size, point.direction.label()),
            };
            let place = self.place(point, get);
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push(place),
                None => series.push(Series {
                    name,
                    points: vec![place],
                    ..Series::default()
                }),
            }
        }
        // Without loss the axis has no range of its own.
        let most = series.iter().flat_map(|series| &series.points);
        let most = most.map(|(_, y)| *y).fold(0.0, f64::max);
        let range = Some((0.0, if most > 0.0 { most * 1.05 } else { 1.0 }));
        panel(title, self.axis(), Axis { range, ..y }, series)
    }
}

/// Returns a histogram from the first value to the last, with no more points than are distinguishable; the axis shows each value times its
/// factor.
fn histogram(
    points: &[Point],
    title: &str,
    (label, unit, factor): (&str, Unit, f64),
    bins: fn(&Point) -> Option<&BTreeMap<u64, u64>>,
) -> Panel {
    let with = points
        .iter()
        .filter_map(|point| Some((point, bins(point)?)));
    let with: Vec<_> = with.filter(|(_, bins)| !bins.is_empty()).collect();
    let series = some(&with).map(|(point, bins)| dots(named(point), bins, factor));
    let often = log_axis("count", Unit::Bare);
    panel(title, log_axis(label, unit), often, series.collect())
}
