//! Analysis of the connections and streams in a packet capture (`evlbi analyse`).
//!
//! Text and plots of a capture, and file formats, belong here. The analysis of packets is in [`evlbi_trace::capture`].

mod csv;
mod file;
mod finding;
pub mod picture;
pub mod show;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use evlbi_core::time::Nanos;
use evlbi_net::file::{OutputError, TableError, check_new};
use evlbi_net::run::Run;
use evlbi_trace::capture::{Capture, Connection, Event, Others, Settings, Stream};
use evlbi_wire::packet::{self, Packet, Unread};
use serde::Serialize;

use self::file::Record;
pub use self::file::{CaptureError, Reader};
use evlbi_wire::units::{self, show_count};

/// Number of packets between checks of the clock.
const TURN: u64 = 4096;

/// Capture to analyse, and output files.
#[derive(Clone, Debug)]
pub struct AnalyseOptions {
    /// The capture, pcap or pcapng, also compressed by gzip; `-` is standard input.
    pub file: PathBuf,
    /// Interval of the time series.
    pub interval: Duration,
    /// Bin width for times between datagrams; `None` for no bins.
    pub bins: Option<Duration>,
    /// Addresses whose packets to analyse; empty for all.
    pub host: Vec<IpAddr>,
    /// Ports whose packets to analyse; empty for all.
    pub port: Vec<u16>,
    /// Number of the only connection to report.
    pub connection: Option<usize>,
    /// Maximum number of connections, and of streams, to analyse: the largest.
    pub most: usize,
    /// CSV file of the time series.
    pub samples: Option<PathBuf>,
    /// CSV file of events, such as retransmissions.
    pub events: Option<PathBuf>,
    /// Whether to overwrite files.
    pub force: bool,
}

impl Default for AnalyseOptions {
    fn default() -> AnalyseOptions {
        AnalyseOptions {
            file: PathBuf::new(),
            interval: Duration::from_secs(1),
            bins: None,
            host: Vec::new(),
            port: Vec::new(),
            connection: None,
            most: 1000,
            samples: None,
            events: None,
            force: false,
        }
    }
}

/// Reason why a capture is not analysed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnalyseError {
    /// A file must not be written.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// A CSV file cannot be written.
    #[error("{0}")]
    Table(#[from] TableError),
    /// The only requested connection does not exist.
    #[error("{} has no connection {number}", path.display())]
    NoConnection {
        /// The capture.
        path: PathBuf,
        /// Number of the connection, from 1.
        number: usize,
    },
}

/// Result of the analysis.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Analysis {
    schema: &'static str,
    file: PathBuf,
    /// Bytes of the decompressed capture that were read.
    bytes: u64,
    /// Time of the first packet (RFC 3339).
    begun: Option<String>,
    /// Time from the first packet to the last.
    seconds: f64,
    /// Counts of all packets.
    #[serde(flatten)]
    pub totals: Totals,
    /// Packets that the capturing host dropped, if the file has this count.
    dropped: Option<u64>,
    /// Reason why the file was not read to its end.
    broken: Option<String>,
    /// Whether it was stopped before the end.
    pub interrupted: bool,
    connections: Vec<Seen<Connection>>,
    streams: Vec<Seen<Stream>>,
    /// Connections and streams beyond those that are analysed.
    others: Others,
    findings: Vec<String>,
}

/// Counts of all packets.
#[derive(Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Totals {
    /// Packets in the file, as far as it was read.
    pub packets: u64,
    /// Bytes of all packets on the wire.
    bytes_on_wire: u64,
    unread: UnreadCounts,
    /// Packets of other hosts and ports than requested.
    left_out: u64,
    /// Packets that have an earlier time than one before them.
    backward_times: u64,
}

/// A connection or a stream, with its findings.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Seen<T> {
    number: usize,
    #[serde(flatten)]
    found: T,
    findings: Vec<String>,
}

/// Packets without information.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct UnreadCounts {
    not_ip: u64,
    other_protocols: u64,
    fragments: u64,
    damaged: u64,
    unknown_link: u64,
    without_time: u64,
}

/// Analyses a capture, to its end or until the run is stopped.
///
/// # Errors
/// [`AnalyseError`] if a file exists or cannot be written, or there is no connection with this number.
pub fn analyse(
    options: &AnalyseOptions,
    mut reader: Reader,
    run: &Run,
) -> Result<Analysis, AnalyseError> {
    let files = [&options.samples, &options.events].into_iter().flatten();
    check_new(files.map(PathBuf::as_path), options.force)?;
    let mut analysis = read(options, &mut reader, run)?;
    if let Some(number) = options.connection {
        analysis.connections.retain(|seen| seen.number == number);
        analysis.streams.clear();
        if analysis.connections.is_empty() {
            let path = options.file.clone();
            return Err(AnalyseError::NoConnection { path, number });
        }
    }
    if let Some(path) = &options.samples {
        csv::write_intervals(path, &analysis)?;
    }
    Ok(analysis)
}

fn read(
    options: &AnalyseOptions,
    reader: &mut Reader,
    run: &Run,
) -> Result<Analysis, AnalyseError> {
    let events = options.events.as_deref();
    let nanos = |time: Duration| Nanos::from_secs_f64(time.as_secs_f64());
    let mut walk = Walk {
        capture: Capture::new(Settings {
            every: nanos(options.interval),
            width: options.bins.map(nanos),
            max_flows: options.most,
        }),
        options,
        events: events.map(csv::Events::create).transpose()?,
        first: None,
        last: 0,
        totals: Totals::default(),
    };
    let size = options.file.metadata().ok();
    let size = size.filter(std::fs::Metadata::is_file);
    let mut progress = run.progress(size.map(|file| file.len()));
    let mut interrupted = false;
    while !interrupted && reader.next(|record| walk.take(&record)) {
        if walk.totals.packets.is_multiple_of(TURN) {
            if progress.is_due() {
                let line = format!("{} packets", show_count(walk.totals.packets));
                progress.show(reader.position(), &line);
            }
            interrupted = run.is_stopped();
        }
    }
    drop(progress);
    if let Some(events) = walk.events {
        events.finish()?;
    }
    let remarks = reader.remarks();
    let found = walk.capture.finish();
    let first = walk.first.unwrap_or(0);
    let others = found.others;
    let of_connection = |found: &Connection| finding::of_connection(found, others.flows > 0);
    let mut analysis = Analysis {
        schema: "evlbi.analyse/1",
        file: options.file.clone(),
        bytes: reader.read(),
        begun: walk.first.map(|first| units::utc(first as f64 * 1e-9)),
        seconds: walk.last.saturating_sub(first) as f64 * 1e-9,
        totals: walk.totals,
        dropped: remarks.dropped,
        broken: remarks
            .broken
            .map(|(at, why)| format!("the file cannot be read beyond byte {at}: {why}")),
        interrupted,
        connections: numbered(found.connections, of_connection),
        streams: numbered(found.streams, finding::of_stream),
        others,
        findings: Vec::new(),
    };
    analysis.findings = finding::of_capture(&analysis, &remarks.unknown_links);
    Ok(analysis)
}

/// Numbers the results from 1.
fn numbered<T>(found: Vec<T>, findings: impl Fn(&T) -> Vec<String>) -> Vec<Seen<T>> {
    let numbered = (1..).zip(found).map(|(number, found)| Seen {
        number,
        findings: findings(&found),
        found,
    });
    numbered.collect()
}

/// Returns whether a packet has a requested host and port.
fn is_chosen(packet: &Packet, options: &AnalyseOptions) -> bool {
    let ends = [packet.source, packet.destination];
    let is_any = |test: &dyn Fn(&SocketAddr) -> bool| ends.iter().any(test);
    (options.host.is_empty() || is_any(&|end| options.host.contains(&end.ip())))
        && (options.port.is_empty() || is_any(&|end| options.port.contains(&end.port())))
}

/// State of a pass through a file.
struct Walk<'a> {
    capture: Capture,
    options: &'a AnalyseOptions,
    events: Option<csv::Events>,
    first: Option<u64>,
    last: u64,
    totals: Totals,
}

impl Walk<'_> {
    fn take(&mut self, record: &Record) {
        let totals = &mut self.totals;
        totals.packets += 1;
        totals.bytes_on_wire += u64::from(record.on_wire);
        let Some(at) = record.at else {
            totals.unread.without_time += 1;
            return;
        };
        let first = *self.first.get_or_insert(at);
        totals.backward_times += u64::from(at < self.last);
        self.last = self.last.max(at);
        self.capture.passed(at);
        let Some(link) = record.link else {
            totals.unread.unknown_link += 1;
            return;
        };
        let packet = match packet::read(link, record.bytes, record.on_wire) {
            Ok(packet) => packet,
            Err(why) => return totals.unread.count(why),
        };
        if !is_chosen(&packet, self.options) {
            totals.left_out += 1;
            return;
        }
        let mut note = |ends: &[SocketAddr; 2], event: Event| {
            if let Some(events) = &mut self.events {
                let seconds = at.saturating_sub(first) as f64 * 1e-9;
                events.note(totals.packets, seconds, ends, event);
            }
        };
        self.capture.offer(at, &packet, &mut note);
    }
}

impl UnreadCounts {
    fn count(&mut self, why: Unread) {
        let counter = match why {
            Unread::NotIp => &mut self.not_ip,
            Unread::OtherProtocol => &mut self.other_protocols,
            Unread::Fragment => &mut self.fragments,
            Unread::Damaged => &mut self.damaged,
        };
        *counter += 1;
    }
}
