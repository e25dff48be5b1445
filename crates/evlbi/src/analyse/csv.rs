//! Intervals and events of connections as CSV.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use evlbi_core::capture::Event;

use super::Analysis;

/// What packets were, one by one, as they are found.
pub struct Events {
    path: PathBuf,
    file: BufWriter<File>,
    failed: Option<io::Error>,
}

impl Events {
    pub fn create(path: &Path) -> Result<Events> {
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut events = Events {
            path: path.to_owned(),
            file: BufWriter::new(file),
            failed: None,
        };
        events.write(format_args!("packet,seconds,from,to,event"));
        Ok(events)
    }

    fn write(&mut self, line: std::fmt::Arguments) {
        if self.failed.is_none() {
            self.failed = writeln!(self.file, "{line}").err();
        }
    }

    /// Packets are counted from 1, as others count frames.
    pub fn note(&mut self, packet: u64, seconds: f64, [from, to]: &[SocketAddr; 2], event: Event) {
        self.write(format_args!(
            "{packet},{seconds:.9},{from},{to},{}",
            event.name()
        ));
    }

    pub fn finish(mut self) -> Result<()> {
        let written = match self.failed.take() {
            Some(error) => Err(error),
            None => self.file.flush(),
        };
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// The course of each direction that carried data, and of each stream.
pub fn write_intervals(path: &Path, analysis: &Analysis) -> Result<()> {
    let write = || -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        writeln!(
            file,
            "kind,number,from,to,seconds,rate,sent_again,lost,flight,window,round_trip_us"
        )?;
        let shown = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
        for seen in &analysis.connections {
            let [one, other] = seen.found.ends;
            let ways = seen.found.ways.iter().zip([[one, other], [other, one]]);
            for (way, [from, to]) in ways.filter(|(way, _)| way.bytes > 0) {
                for (place, interval) in way.intervals.iter().enumerate() {
                    writeln!(
                        file,
                        "tcp,{},{from},{to},{:.6},{:.1},{},,{},{},{}",
                        seen.number,
                        seen.found.from + place as f64 * way.every,
                        interval.acknowledged as f64 * 8.0 / way.every,
                        interval.sent_again,
                        interval.flight,
                        shown(interval.window.map(|window| window as f64)),
                        shown(interval.round_trip.map(|time| time as f64 * 1e-3)),
                    )?;
                }
            }
        }
        for seen in &analysis.streams {
            let [from, to] = seen.found.ends;
            for (place, interval) in seen.found.intervals.iter().enumerate() {
                writeln!(
                    file,
                    "udp,{},{from},{to},{:.6},{:.1},,{},,,",
                    seen.number,
                    seen.found.from + place as f64 * seen.found.every,
                    interval.bytes as f64 * 8.0 / seen.found.every,
                    interval.lost,
                )?;
            }
        }
        file.flush()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
