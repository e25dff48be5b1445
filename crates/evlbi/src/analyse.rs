//! `evlbi analyse`: what a capture tells of the connections and streams in it.

mod csv;
mod file;
mod finding;
mod picture;
mod show;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use anyhow::{Result, bail};
use evlbi_core::capture::{Capture, Connection, Event, Others, Settings, Stream};
use evlbi_core::time::Nanos;
use evlbi_wire::packet::{self, Packet, Unread};
use serde::Serialize;

use self::file::{Reader, Record};
use crate::cli::AnalyseArgs;
use crate::cli::plots;
use crate::output;
use crate::progress::{self, Progress, interrupt};
use crate::units::{self, show_count};

/// Packets between two looks at the clock.
const TURN: u64 = 4096;

/// What a capture tells.
#[derive(Serialize)]
pub struct Analysis {
    schema: &'static str,
    file: PathBuf,
    /// Length of the file, as far as it was read.
    bytes: u64,
    /// When the first packet passed, after RFC 3339.
    begun: Option<String>,
    /// From the first packet to the last.
    seconds: f64,
    #[serde(flatten)]
    totals: Totals,
    /// Packets that the capturing host dropped, where the file tells.
    dropped: Option<u64>,
    /// Why the file was not read to its end.
    broken: Option<String>,
    interrupted: bool,
    connections: Vec<Seen<Connection>>,
    streams: Vec<Seen<Stream>>,
    /// Connections and streams beyond --most.
    others: Others,
    findings: Vec<String>,
}

/// What is counted of all packets.
#[derive(Default, Serialize)]
struct Totals {
    packets: u64,
    /// Bytes of all packets as they passed.
    bytes_on_wire: u64,
    unread: UnreadCounts,
    /// Packets that were left out by --host and --port.
    left_out: u64,
    /// Packets that have an earlier time than one before them.
    backward_times: u64,
}

/// A connection or a stream, and what its course says.
#[derive(Serialize)]
struct Seen<T> {
    number: usize,
    #[serde(flatten)]
    found: T,
    findings: Vec<String>,
}

/// Packets that say nothing here.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct UnreadCounts {
    not_ip: u64,
    other_protocols: u64,
    fragments: u64,
    damaged: u64,
    unknown_link: u64,
    without_time: u64,
}

/// Analyses a capture.
pub fn run(args: &AnalyseArgs) -> Result<()> {
    plots::check(&args.plot, args.force)?;
    let files = [&args.samples, &args.events].into_iter().flatten();
    output::check_new(files.map(PathBuf::as_path), args.force)?;
    let reader = Reader::open(&args.file)?;
    let mut analysis = read(args, reader)?;
    if let Some(number) = args.connection {
        analysis.connections.retain(|seen| seen.number == number);
        analysis.streams.clear();
        if analysis.connections.is_empty() {
            bail!(
                "{} has no connection {number}: without --connection all are listed",
                args.file.display()
            );
        }
    }
    if let Some(path) = &args.samples {
        csv::write_intervals(path, &analysis)?;
    }
    plots::draw(&args.plot, &analysis, picture::figure, show::text)?;
    output::print(args.json, &analysis, show::text)?;
    match analysis.totals.packets {
        0 if !analysis.interrupted => bail!("{} holds no packet", args.file.display()),
        _ => progress::complete(analysis.interrupted),
    }
}

fn read(args: &AnalyseArgs, mut reader: Reader) -> Result<Analysis> {
    let mut walk = Walk {
        capture: Capture::new(Settings {
            every: Nanos::from_secs_f64(args.interval.as_secs_f64()),
            width: args
                .bins
                .map(|width| Nanos::from_secs_f64(width.as_secs_f64())),
            most: args.most,
        }),
        chosen: Chosen {
            hosts: &args.host,
            ports: &args.port,
        },
        events: args
            .events
            .as_deref()
            .map(csv::Events::create)
            .transpose()?,
        first: None,
        last: 0,
        totals: Totals::default(),
    };
    let switch = interrupt();
    let size = args.file.metadata().ok().filter(std::fs::Metadata::is_file);
    let mut progress = Progress::new(size.map(|file| file.len()));
    let mut interrupted = false;
    while reader.next(|record| walk.take(&record)) {
        if walk.totals.packets.is_multiple_of(TURN) {
            if progress.is_due() {
                let line = format!("{} packets", show_count(walk.totals.packets));
                progress.show(reader.position(), &line);
            }
            interrupted = switch.load(Ordering::Relaxed);
            if interrupted {
                break;
            }
        }
    }
    progress.finish();
    if let Some(events) = walk.events {
        events.finish()?;
    }
    let remarks = reader.remarks();
    let found = walk.capture.finish();
    let first = walk.first.unwrap_or(0);
    let others = found.others;
    let connections = found
        .connections
        .into_iter()
        .enumerate()
        .map(|(place, found)| Seen {
            number: place + 1,
            findings: finding::of_connection(&found, others.flows > 0),
            found,
        });
    let streams = found
        .streams
        .into_iter()
        .enumerate()
        .map(|(place, found)| Seen {
            number: place + 1,
            findings: finding::of_stream(&found),
            found,
        });
    let mut analysis = Analysis {
        schema: "evlbi.analyse/1",
        file: args.file.clone(),
        bytes: reader.position(),
        begun: walk.first.map(|first| units::utc(first as f64 * 1e-9)),
        seconds: walk.last.saturating_sub(first) as f64 * 1e-9,
        totals: walk.totals,
        dropped: remarks.dropped,
        broken: remarks
            .broken
            .map(|(at, why)| format!("the file cannot be read beyond byte {at}: {why}")),
        interrupted,
        connections: connections.collect(),
        streams: streams.collect(),
        others,
        findings: Vec::new(),
    };
    analysis.findings = finding::of_capture(&analysis, &remarks.unknown_links);
    Ok(analysis)
}

/// Which packets are looked at.
struct Chosen<'a> {
    hosts: &'a [IpAddr],
    ports: &'a [u16],
}

impl Chosen<'_> {
    fn has(&self, packet: &Packet) -> bool {
        let ends = [packet.source, packet.destination];
        let is_any = |test: &dyn Fn(&SocketAddr) -> bool| ends.iter().any(test);
        (self.hosts.is_empty() || is_any(&|end| self.hosts.contains(&end.ip())))
            && (self.ports.is_empty() || is_any(&|end| self.ports.contains(&end.port())))
    }
}

/// On the way through a file.
struct Walk<'a> {
    capture: Capture,
    chosen: Chosen<'a>,
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
        if !self.chosen.has(&packet) {
            totals.left_out += 1;
            return;
        }
        let note = |ends: &[SocketAddr; 2], event: Event| {
            if let Some(events) = &mut self.events {
                let seconds = at.saturating_sub(first) as f64 * 1e-9;
                events.note(totals.packets, seconds, ends, event);
            }
        };
        self.capture.offer(at, &packet, note);
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
