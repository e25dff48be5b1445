//! Plans a cluster: nodes, links and hours that a correlation in parts needs, from the costs of the correlator on this host.
//!
//! With n stations of R bits per second each, samples of B bits, nodes of C cores and a link of L bits per second, and parts of T seconds,
//! each of which reads a guard of g = 1 s more:
//!
//! ```text
//! baselines        n (n - 1) / 2
//! cores            R / B (n station + n (n - 1) / 2 baseline)      costs in seconds per sample
//! into the site    n R: each stream once, as parts are divided by time, or by multicast
//! by baseline      n (n - 1) R: two streams per baseline by unicast (EXPReS report, section 6.2)
//! read by nodes    n R (T + g) / T
//! nodes            the larger of cores / C and read / L, rounded up
//! seconds per part T times the larger of cores / C and read / L: a node reads while it calculates
//! ```

mod measure;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use evlbi_core::rate::BitRate;
use evlbi_fx::correlator::{Rotation, SetupError};
use evlbi_fx::delay::OutsideModel;
use evlbi_fx::simd::Simd;
use evlbi_net::file::{TableError, table_text};
use evlbi_net::run::Run;
use evlbi_plot::{Axis, Figure, Panel, Series, Style, Unit, columns};
use evlbi_wire::units::{show_count, show_rate, span};
use serde::Serialize;

/// Time that each part reads before its start, in seconds: frames can be out of order by that.
const GUARD: f64 = 1.0;
const GIGA: u64 = 1_000_000_000;
/// Default rate of a node's link.
const LINK: BitRate = BitRate::new(100 * GIGA).expect("above 0");
const HOUR: f64 = 3600.0;

/// Options of a plan.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Numbers of stations.
    pub stations: Vec<u32>,
    /// Bit rates of a station.
    pub rate: Vec<BitRate>,
    /// Bits per sample.
    pub bits: u8,
    /// Spectral channels per band, with which costs are measured.
    pub channels: usize,
    /// Costs; `None` to measure them on this host.
    pub costs: Option<Costs>,
    /// Cores of a node; `None` for those of this host.
    pub cores: Option<u32>,
    /// Rate of a node's link.
    pub link: BitRate,
    /// Number of nodes, for which hours are calculated.
    pub nodes: Option<u32>,
    /// Length of the observation.
    pub duration: Duration,
    /// Length of a part.
    pub part: Duration,
}

impl Default for ClusterOptions {
    fn default() -> ClusterOptions {
        let rate = |giga: u64| BitRate::new(giga * GIGA);
        ClusterOptions {
            stations: vec![4, 8, 12, 16, 20],
            rate: (0..7).filter_map(|power| rate(1 << power)).collect(),
            bits: 2,
            channels: 1024,
            costs: None,
            cores: None,
            link: LINK,
            nodes: None,
            duration: Duration::from_secs(3600),
            part: Duration::from_secs(10),
        }
    }
}

/// CPU time per sample of each station, in nanoseconds: n stations take n `station_ns` + n (n - 1) / 2 `baseline_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Costs {
    /// Cost of a station: decoding, delays, transforms.
    pub station_ns: f64,
    /// Cost of a baseline: products.
    pub baseline_ns: f64,
}

/// Text that is not a pair of costs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid costs `{0}`: give nanoseconds per sample of a station and of a baseline, as printed on another host, e.g. 1.5,0.09"
)]
pub struct CostsError(String);

impl Costs {
    /// Returns the costs with which `few` and `many` stations take these nanoseconds per sample; `None` unless both are above 0.
    fn of(few: usize, of_few: f64, many: usize, of_many: f64) -> Option<Costs> {
        let [few, many] = [few as f64, many as f64];
        // Per station: station + (n - 1) / 2 baseline.
        let baseline_ns = 2.0 * (of_many / many - of_few / few) / (many - few);
        let station_ns = of_few / few - (few - 1.0) / 2.0 * baseline_ns;
        Costs {
            station_ns,
            baseline_ns,
        }
        .checked()
    }

    fn checked(self) -> Option<Costs> {
        let possible = 1e-9..1e9;
        let are_possible = [self.station_ns, self.baseline_ns]
            .iter()
            .all(|cost| possible.contains(cost));
        are_possible.then_some(self)
    }

    /// Returns the CPU time of stations, in seconds per sample of each.
    fn seconds(&self, stations: u32) -> f64 {
        let stations = f64::from(stations);
        let baselines = stations * (stations - 1.0) / 2.0;
        (stations * self.station_ns + baselines * self.baseline_ns) * 1e-9
    }
}

impl FromStr for Costs {
    type Err = CostsError;

    fn from_str(text: &str) -> Result<Costs, CostsError> {
        let number = |text: &str| text.trim().parse().ok();
        let costs = text.split_once(',').and_then(|(station, baseline)| {
            let costs = Costs {
                station_ns: number(station)?,
                baseline_ns: number(baseline)?,
            };
            costs.checked()
        });
        costs.ok_or_else(|| CostsError(text.to_owned()))
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.4},{:.5}", self.station_ns, self.baseline_ns)
    }
}

/// Reasons why a plan cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// Samples of this length cannot be correlated.
    #[error("cannot correlate samples of {0} bits: give 1, 2, 4 or 8")]
    Bits(u8),
    /// The stations cannot be correlated.
    #[error("{0}")]
    Setup(#[from] SetupError),
    /// The delays do not cover a time.
    #[error("{0}")]
    OutsideModel(#[from] OutsideModel),
    /// Costs are not above 0.
    #[error(
        "the measurement was disturbed: run it again on a host with less load, or give --costs STATION,BASELINE"
    )]
    Disturbed,
    /// The run was stopped.
    #[error("interrupted before the costs were measured")]
    Interrupted,
}

/// Conditions of measured costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Measured {
    /// Model of this host's CPU, if the kernel names it.
    cpu: Option<String>,
    /// Vector instructions.
    simd: Simd,
    /// Spectral channels per band.
    channels: usize,
    /// Method of fringe stopping.
    rotation: Rotation,
    /// Number of rounds of which the costs are medians.
    rounds: usize,
    /// Whether the program is a release build.
    is_optimised: bool,
}

/// Plan of a cluster. Rates in bits per second, times in seconds.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClusterPlan {
    schema: &'static str,
    costs: Costs,
    /// Conditions of the costs, if they were measured on this host.
    measured: Option<Measured>,
    /// Bits per sample.
    bits: u8,
    /// Cores of a node.
    cores: u32,
    /// Whether these are assumed to be as many as on this host.
    cores_assumed: bool,
    /// Rate of a node's link.
    link_bps: u64,
    /// Number of nodes of which `hours` are.
    nodes: Option<u32>,
    /// Length of the observation.
    duration_s: f64,
    /// Length of a part.
    part_s: f64,
    /// Time that each part reads in addition.
    guard_s: f64,
    /// Number of parts.
    parts: u64,
    /// A row for each number of stations and rate.
    rows: Vec<Row>,
}

/// Needs of a number of stations at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Row {
    stations: u32,
    /// Rate of each station.
    rate_bps: u64,
    /// n (n - 1) / 2
    baselines: u64,
    /// Cores that are busy all the time, in real time.
    cores: f64,
    /// Nodes for real time.
    nodes: u64,
    /// Nodes whose cores suffice.
    nodes_by_cores: u64,
    /// Nodes whose links suffice.
    nodes_by_link: u64,
    /// Limit that is reached first: it determines nodes and hours.
    limit: Limit,
    /// Rate into the site: each stream once.
    site_bps: f64,
    /// Links that carry this.
    site_links: u64,
    /// Rate into the site if each baseline gets its two streams: n (n - 1) R.
    by_baseline_bps: f64,
    /// Mean rate into each node in real time, guards included.
    node_bps: f64,
    /// Its fraction of the link.
    link_load: f64,
    /// Hours of one node for the observation.
    node_hours: f64,
    /// Hours of the given nodes for its parts, none of which is shared.
    hours: Option<f64>,
}

/// Limit of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
enum Limit {
    Cores,
    Link,
}

/// Plans a cluster for each number of stations at each rate. Measures the costs of the correlator first, for about three seconds, unless
/// they are given.
///
/// # Errors
/// Returns an error if the costs cannot be measured.
pub fn plan(options: &ClusterOptions, run: &Run) -> Result<ClusterPlan, ClusterError> {
    let (costs, measured) = match options.costs {
        Some(costs) => (costs, None),
        None => {
            run.say(format_args!(
                "measuring what correlation costs on this host, on one thread"
            ));
            let (costs, measured) = measure::measure(options, run)?;
            (costs, Some(measured))
        }
    };
    Ok(calculate(options, costs, measured))
}

fn calculate(options: &ClusterOptions, costs: Costs, measured: Option<Measured>) -> ClusterPlan {
    let here = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let duration = options.duration.as_secs_f64();
    let part = options.part.as_secs_f64().min(duration);
    let parts = match part > 0.0 {
        true => (duration / part).ceil() as u64,
        false => 0,
    };
    let mut plan = ClusterPlan {
        schema: "evlbi.plan.distribute/1",
        costs,
        measured,
        bits: options.bits,
        cores: options.cores.unwrap_or(here),
        cores_assumed: options.cores.is_none(),
        link_bps: options.link.get(),
        nodes: options.nodes,
        duration_s: duration,
        part_s: part,
        guard_s: GUARD,
        parts,
        rows: Vec::new(),
    };
    let stations = options.stations.iter();
    let cases = stations.flat_map(|stations| options.rate.iter().map(|rate| (*stations, *rate)));
    plan.rows = cases
        .map(|(stations, rate)| plan.row(stations, rate))
        .collect();
    plan
}

impl ClusterPlan {
    fn row(&self, stations: u32, rate: BitRate) -> Row {
        let (n, bps) = (f64::from(stations), rate.get() as f64);
        let link_bps = self.link_bps as f64;
        let pairs = u64::from(stations) * u64::from(stations.saturating_sub(1));
        let cores = bps / f64::from(self.bits) * self.costs.seconds(stations);
        let site_bps = n * bps;
        let read_bps = site_bps * (self.part_s + self.guard_s) / self.part_s;
        let (by_cores, by_link) = (cores / f64::from(self.cores), read_bps / link_bps);
        let busy = by_cores.max(by_link);
        let [nodes_by_cores, nodes_by_link] = [by_cores, by_link].map(|it| it.ceil().max(1.0));
        let nodes = nodes_by_cores.max(nodes_by_link);
        let hours = |nodes: u32| {
            let rounds = self.parts.div_ceil(u64::from(nodes).max(1)) as f64;
            rounds * self.part_s * busy / HOUR
        };
        Row {
            stations,
            rate_bps: rate.get(),
            baselines: pairs / 2,
            cores,
            nodes: nodes as u64,
            nodes_by_cores: nodes_by_cores as u64,
            nodes_by_link: nodes_by_link as u64,
            limit: match by_link > by_cores {
                true => Limit::Link,
                false => Limit::Cores,
            },
            site_bps,
            site_links: (site_bps / link_bps).ceil() as u64,
            by_baseline_bps: pairs as f64 * bps,
            node_bps: read_bps / nodes,
            link_load: read_bps / nodes / link_bps,
            node_hours: self.duration_s * busy / HOUR,
            hours: self.nodes.map(hours),
        }
    }

    /// Returns the title of the hours, and the hours of a row: of the given nodes, or of one.
    fn hours(&self) -> (String, impl Fn(&Row) -> f64) {
        let title = match self.nodes {
            Some(nodes) => format!("hours of {} nodes", show_count(u64::from(nodes))),
            None => "node hours".to_owned(),
        };
        (title, |row: &Row| row.hours.unwrap_or(row.node_hours))
    }

    /// Describes where the costs are from.
    fn origin(&self) -> String {
        let costs = format!(
            "{:.4} ns a sample of a station, {:.5} of a baseline",
            self.costs.station_ns, self.costs.baseline_ns
        );
        let Some(measured) = &self.measured else {
            return format!("costs as given, not measured: {costs}\n");
        };
        let rotation = match measured.rotation {
            Rotation::Samples => "sample by sample",
            Rotation::Blocks => "block by block",
        };
        let build = match measured.is_optimised {
            true => "",
            false => "; a debug build, which is slow",
        };
        format!(
            "costs measured on this host, on one thread: {costs}\n\
             \x20 {}; {} instructions; {} channels; fringes stopped {rotation}; median of {} rounds{build}\n\
             \x20 included: decoding and all after it; not included: reading files, finding frames\n\
             \x20 to plan with these costs elsewhere: --costs {}\n",
            measured.cpu.as_deref().unwrap_or("unknown CPU"),
            measured.simd,
            measured.channels,
            measured.rounds,
            self.costs,
        )
    }
}

/// Formats it as text.
pub fn text(plan: &ClusterPlan) -> String {
    let (title, hours) = plan.hours();
    let heads = [
        "stations",
        "rate",
        "baselines",
        "cores",
        "nodes",
        "limit",
        "site",
        "links",
        "by baseline",
        "a node",
        "load",
        &title,
    ];
    let heads = heads.map(str::to_owned).to_vec();
    let rows = plan.rows.iter().map(|row| {
        vec![
            row.stations.to_string(),
            giga(row.rate_bps as f64),
            row.baselines.to_string(),
            format!("{:.1}", row.cores),
            row.nodes.to_string(),
            match row.limit {
                Limit::Cores => "cores".to_owned(),
                Limit::Link => "link".to_owned(),
            },
            giga(row.site_bps),
            row.site_links.to_string(),
            giga(row.by_baseline_bps),
            giga(row.node_bps),
            format!("{:.1} %", 100.0 * row.link_load),
            format!("{:.2}", hours(row)),
        ]
    });
    let rows: Vec<Vec<String>> = std::iter::once(heads).chain(rows).collect();
    let assumed = match plan.cores_assumed {
        true => ", assumed to be as this host",
        false => "",
    };
    let [duration, part] = [plan.duration_s, plan.part_s].map(time);
    format!(
        "{origin}\
         a node: {cores} cores{assumed}; a link of {link}\n\
         data: samples of {bits} bits; {duration} in {parts} parts of {part}, each of which reads {guard} s more\n\
         nodes and cores are for real time; rates in Gbit/s, without headers of packets\n\
         {table}",
        origin = plan.origin(),
        cores = plan.cores,
        link = show_rate(plan.link_bps as f64),
        bits = plan.bits,
        parts = plan.parts,
        guard = plan.guard_s,
        table = columns(&rows, |_| false),
    )
}

/// Formats seconds.
fn time(seconds: f64) -> String {
    span(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// Formats a rate in Gbit/s, without zeros at the end.
fn giga(bps: f64) -> String {
    let text = format!("{:.3}", bps / GIGA as f64);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats it as CSV, a row for each number of stations and rate.
///
/// # Errors
/// [`TableError`] if a row has no form in CSV.
pub fn csv(plan: &ClusterPlan) -> Result<String, TableError> {
    let rows = plan.rows.iter().map(|row| {
        let hours = row.hours.map(|hours| hours.to_string());
        (
            (row.stations, row.rate_bps, row.baselines),
            row.cores.to_string(),
            (row.nodes, row.nodes_by_cores, row.nodes_by_link, row.limit),
            (row.site_bps.to_string(), row.site_links),
            [row.by_baseline_bps, row.node_bps, row.link_load].map(|it| it.to_string()),
            (row.node_hours.to_string(), hours),
        )
    });
    let heads = "stations,rate_bps,baselines,cores,nodes,nodes_by_cores,nodes_by_link,limit,site_bps,site_links,\
                 by_baseline_bps,node_bps,link_load,node_hours,hours";
    table_text(heads, rows)
}

/// Draws it: nodes, hours and rate into the site, by the rate of a station.
pub fn figure(plan: &ClusterPlan) -> Figure {
    let (title, hours) = plan.hours();
    let panel = |title: &str, y: &str, unit, value: &dyn Fn(&Row) -> f64| {
        let mut stations: Vec<u32> = plan.rows.iter().map(|row| row.stations).collect();
        stations.sort_unstable();
        stations.dedup();
        let series = stations.into_iter().map(|stations| {
            let rows = plan.rows.iter().filter(|row| row.stations == stations);
            let points = rows.map(|row| (row.rate_bps as f64, value(row)));
            let mut points: Vec<(f64, f64)> = points.collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Series::new(&format!("{stations} stations"), Style::Line, points)
        });
        Panel {
            title: title.to_owned(),
            x: Axis {
                log: true,
                ..Axis::new("rate of a station", Unit::Si("bit/s"))
            },
            y: Axis {
                log: true,
                ..Axis::new(y, unit)
            },
            series: series.collect(),
        }
    };
    let for_data = format!("{title} for {} of data", time(plan.duration_s));
    let origin = match plan.measured {
        Some(_) => "costs measured on this host",
        None => "costs as given",
    };
    Figure {
        title: format!(
            "Nodes of {} cores, links of {}; {origin}",
            plan.cores,
            show_rate(plan.link_bps as f64)
        ),
        panels: vec![
            panel("nodes for real time", "nodes", Unit::Bare, &|row| {
                row.nodes as f64
            }),
            panel(&for_data, "hours", Unit::Bare, &hours),
            panel("rate into the site", "rate", Unit::Si("bit/s"), &|row| {
                row.site_bps
            }),
        ],
    }
}
