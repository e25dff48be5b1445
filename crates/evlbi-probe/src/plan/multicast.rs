//! Streams into a correlator that computes baselines on separate nodes (EXPReS report, section 6.2).

use evlbi_core::rate::BitRate;
use evlbi_net::file::TableError;
use serde::Serialize;

use super::table;
use crate::csv::{self, Column, cell};
use evlbi_wire::units::show_rate;

/// Default maximum number of stations.
pub const STATIONS: u32 = 12;

/// Streams with and without multicast.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MulticastPlan {
    schema: &'static str,
    /// Rate of each station, in bits per second.
    rate: Option<u64>,
    rows: Vec<Row>,
}

/// Streams over the link to the correlator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Row {
    stations: u64,
    /// n (n - 1) / 2; the report's table has n (n - 1) in this column, and 71 for 9 stations.
    baselines: u64,
    /// Two streams per baseline: n (n - 1).
    unicast: u64,
    /// One stream per station.
    multicast: u64,
    saved: u64,
}

/// Counts the streams of up to `stations` stations, each of `rate` bits per second.
pub fn plan(stations: u32, rate: Option<BitRate>) -> MulticastPlan {
    let rows = (2..=u64::from(stations)).map(|stations| {
        let unicast = stations * (stations - 1);
        Row {
            stations,
            baselines: unicast / 2,
            unicast,
            multicast: stations,
            saved: unicast - stations,
        }
    });
    MulticastPlan {
        schema: "evlbi.plan.multicast/1",
        rate: rate.map(BitRate::get),
        rows: rows.collect(),
    }
}

/// Formats it as text.
pub fn text(plan: &MulticastPlan) -> String {
    let streams = |count: u64| match plan.rate {
        Some(rate) => format!("{count} ({})", show_rate(count as f64 * rate as f64)),
        None => count.to_string(),
    };
    let rows = plan.rows.iter().map(|row| {
        vec![
            row.stations.to_string(),
            row.baselines.to_string(),
            streams(row.unicast),
            streams(row.multicast),
            streams(row.saved),
        ]
    });
    format!(
        "streams into the correlator, a node for each baseline\n{}",
        table("stations,baselines,unicast,multicast,saved", rows)
    )
}

/// Formats it as CSV, a row for each number of stations.
///
/// # Errors
/// [`TableError`] if a row has no form in CSV.
pub fn csv(plan: &MulticastPlan) -> Result<String, TableError> {
    let columns: &[Column<(Option<u64>, &Row)>] = &[
        ("stations", |(_, row)| row.stations.to_string()),
        ("baselines", |(_, row)| row.baselines.to_string()),
        ("unicast", |(_, row)| row.unicast.to_string()),
        ("multicast", |(_, row)| row.multicast.to_string()),
        ("saved", |(_, row)| row.saved.to_string()),
        ("rate_bps", |(rate, _)| cell(*rate)),
    ];
    csv::table(columns, plan.rows.iter().map(|row| (plan.rate, row)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of section 6.2, with its misprints corrected.
    #[test]
    fn the_table_of_the_report() {
        let rows = plan(12, None).rows;
        let unicast: Vec<u64> = rows.iter().map(|row| row.unicast).collect();
        assert_eq!(unicast, [2, 6, 12, 20, 30, 42, 56, 72, 90, 110, 132]);
        let saved: Vec<u64> = rows.iter().map(|row| row.saved).collect();
        assert_eq!(saved, [0, 3, 8, 15, 24, 35, 48, 63, 80, 99, 120]);
        assert_eq!((rows[2].baselines, rows[10].baselines), (6, 66));
    }
}
