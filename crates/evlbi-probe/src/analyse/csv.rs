//! Intervals and events of connections as CSV.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;

use evlbi_net::file::{Table, TableError};
use evlbi_net::transport::Protocol;
use evlbi_trace::capture::Event;

use super::Analysis;

/// Writer of events, one per packet, as they are found.
pub struct Events {
    table: Table<File>,
    written: Result<(), TableError>,
}

impl Events {
    pub fn create(path: &Path) -> Result<Events, TableError> {
        Ok(Events {
            table: Table::create(path, "packet,seconds,from,to,event")?,
            written: Ok(()),
        })
    }

    /// Writes an event. Packets are counted from 1, like frames in other programs.
    pub fn note(&mut self, packet: u64, seconds: f64, [from, to]: &[SocketAddr; 2], event: Event) {
        if self.written.is_ok() {
            let seconds = format!("{seconds:.9}");
            self.written = self.table.row((packet, seconds, from, to, event));
        }
    }

    pub fn finish(mut self) -> Result<(), TableError> {
        self.written.and_then(|()| self.table.flush())
    }
}

/// Writes the time series of each direction with data, and of each stream.
pub fn write_intervals(path: &Path, analysis: &Analysis) -> Result<(), TableError> {
    let mut table = Table::create(
        path,
        "kind,number,from,to,seconds,rate,sent_again,lost,flight,window,round_trip_us",
    )?;
    for seen in &analysis.connections {
        let [one, other] = seen.found.ends;
        let ways = seen.found.ways.iter().zip([[one, other], [other, one]]);
        for (way, [from, to]) in ways.filter(|(way, _)| way.bytes > 0) {
            for (place, interval) in way.intervals.iter().enumerate() {
                let seconds = seen.found.from + place as f64 * way.every;
                let rate = interval.acknowledged as f64 * 8.0 / way.every;
                table.row((
                    (Protocol::Tcp.name(), seen.number, from, to),
                    format!("{seconds:.6}"),
                    format!("{rate:.1}"),
                    interval.sent_again,
                    "",
                    interval.flight,
                    interval.window,
                    interval
                        .round_trip
                        .map(|time| (time as f64 * 1e-3).to_string()),
                ))?;
            }
        }
    }
    for seen in &analysis.streams {
        let [from, to] = seen.found.ends;
        for (place, interval) in seen.found.intervals.iter().enumerate() {
            let seconds = seen.found.from + place as f64 * seen.found.every;
            let rate = interval.bytes as f64 * 8.0 / seen.found.every;
            table.row((
                (Protocol::Udp.name(), seen.number, from, to),
                format!("{seconds:.6}"),
                format!("{rate:.1}"),
                ("", interval.lost, "", "", ""),
            ))?;
        }
    }
    table.flush()
}
