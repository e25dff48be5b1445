//! Results of receiving: counts of datagrams, of recorded frames, and of this host.

use std::path::{Path, PathBuf};

use evlbi_core::account::FreeRuns;
use evlbi_core::deframe::{self, Layout};
use evlbi_net::file::{is_special, replace_json};
use evlbi_net::host;
use evlbi_net::receive::{Ended, ReceiveReport, Refused, Snapshot};
use evlbi_net::run::{self, explain};
use evlbi_net::safe;
use evlbi_net::socket::GrantedBuffer;
use evlbi_plot::lines;
use evlbi_wire::time::FrameRate;
use evlbi_wire::units::{show_count, show_rate, show_seconds, show_size};
use evlbi_wire::validity::{Gaps, SequenceGap, TimeGap};
use serde::Serialize;

use super::RecvOptions;
use super::names::{gaps_path, result_path};
use crate::control_socket::Receiving as Status;
use crate::counters::{Counts, FRAMES, RECEIVED, Received};
use crate::drain::{Drained, Shown};
use crate::sink::{self, SinkReport};

/// Maximum number of intervals of loss in the result; the gaps file contains all.
const INTERVALS_SHOWN: usize = 1000;

/// Result of receiving a stream. Counts are datagrams between the first and the last number received, unless noted; docs/src/counters.md
/// defines each.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecvResult {
    schema: &'static str,
    /// Whether the receiver has ended; false in the file of one that runs or was killed.
    finished: bool,
    /// A recording of the requested name that a killed receiver left, and that was kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) left_unfinished: Option<PathBuf>,
    from: String,
    to: String,
    #[serde(flatten)]
    counts: Counts,
    #[serde(flatten)]
    frames: Counts,
    /// Counters of datagrams at the end.
    #[serde(skip)]
    pub live: Snapshot,
    /// State of a sender under SafeUDP, if reports were sent to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    safe: Option<SafeReport>,
    /// Senders whose datagrams were refused, the first 64.
    pub refused: Vec<Refused>,
    pub(crate) first_seq: Option<u64>,
    last_seq: Option<u64>,
    /// Format of the frames; `None` if no data arrived.
    pub format: Option<deframe::Format>,
    frame_length: Option<usize>,
    frame_rate: Option<FrameRate>,
    seconds: f64,
    rate_bps: f64,
    datagram_data: Option<usize>,
    /// Runs of consecutive lost datagrams.
    runs: Vec<Run>,
    runs_not_listed: u64,
    /// Reordering extents (RFC 4737, section 4.2), in arrivals.
    extents: Vec<Run>,
    extents_not_listed: u64,
    /// n-reordered datagrams (RFC 4737, section 5.3).
    n_reordered: Vec<Run>,
    /// Gaps between reordering discontinuities (RFC 4737, section 4.5), in arrivals.
    reordering_gaps: Vec<Run>,
    reordering_gaps_not_listed: u64,
    /// Reordering-free runs (RFC 4737, section 4.6).
    free_runs: FreeRuns,
    /// Intervals of lost sequence numbers, the first thousand; the gaps file contains all.
    intervals: Vec<SequenceGap>,
    intervals_not_listed: u64,
    /// Runs of missing frames, the first thousand; the gaps file contains all.
    time_gaps: Vec<TimeGap>,
    segments: Vec<Ends>,
    segments_not_listed: u64,
    pub(crate) sender: Option<String>,
    first_arrival: Option<f64>,
    last_arrival: Option<f64>,
    most_joined: u64,
    buffer: Option<GrantedBuffer>,
    /// Ring size and reorder window, in bytes of data; `None` for a byte stream.
    ring_bytes: Option<usize>,
    window_bytes: Option<u64>,
    host: Option<HostDelta>,
    pub(crate) gaps_file: Option<PathBuf>,
    cpu_seconds: f64,
    /// Reason why the receiver ended.
    pub ended: Ended,
    /// Error that ended it early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Report of the recording or the check.
    #[serde(flatten)]
    pub sink: SinkReport,
}

/// State of a sender under SafeUDP, as its receiver knows it.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct SafeReport {
    /// State of the sender; `None` if none was heard.
    state: Option<safe::State>,
    /// Fraction of the data that it sends.
    kept: Option<f64>,
    /// Datagrams that it shed: they are neither expected nor lost.
    shed: u64,
    /// Messages that were ignored, because they were forged, repeated or damaged.
    rejected: u64,
    /// Accounts of the flow.
    accounts: Option<safe::Accounts>,
    /// Whether these are the sender's too.
    is_agreed: bool,
}

impl From<safe::ReceivedSafely> for SafeReport {
    fn from(of: safe::ReceivedSafely) -> SafeReport {
        SafeReport {
            state: of.state.map(|(state, _)| state),
            kept: of.state.map(|(_, kept)| kept),
            shed: of.shed,
            rejected: of.rejected,
            accounts: of.accounts.map(|(accounts, _)| accounts),
            is_agreed: of.accounts.is_some_and(|(_, is_agreed)| is_agreed),
        }
    }
}

/// Number of runs (or packets) of a length (or extent).
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Run {
    length: u64,
    count: u64,
}

/// First and last number of a sequence.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Ends {
    first_seq: u64,
    last_seq: u64,
}

/// Increase of this host's counters during the run, over all programs.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HostDelta {
    /// UDP over IPv4.
    pub udp: host::Udp,
    /// UDP over IPv6.
    pub udp6: host::Udp,
    /// Packets dropped by the kernel before any protocol, because too many were queued (`/proc/net/softnet_stat`).
    pub softnet_dropped: u64,
}

impl HostDelta {
    /// Returns the increase since `before` was read.
    pub fn since(before: &host::Counters, run: &run::Run) -> Option<HostDelta> {
        let delta = run.counters().ok()?.since(before);
        Some(HostDelta {
            softnet_dropped: delta.softnet.iter().map(|core| core.dropped).sum(),
            udp: delta.udp,
            udp6: delta.udp6,
        })
    }
}

impl RecvResult {
    /// Returns whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.live.bytes == 0 && self.frames.count("frames") == 0
    }

    /// Returns the number of packets, of all programs, that this host dropped before they reached a socket; 0 if that is unknown.
    pub fn dropped_early(&self) -> u64 {
        self.host.as_ref().map_or(0, |host| host.softnet_dropped)
    }
}

/// State of a growing recording.
#[derive(Serialize)]
struct SoFar<'r> {
    schema: &'static str,
    finished: bool,
    from: String,
    to: &'r str,
    #[serde(flatten)]
    frames: Counts,
    gaps_file: Option<PathBuf>,
    #[serde(flatten)]
    counts: Status,
}

/// Writer of the current gaps and result next to the recording, in case the receiver is killed.
#[derive(Default)]
pub struct Beside {
    /// Content of the gaps file: runs of missing frames, missing frames, frame rate and layout.
    written: Option<(usize, u64, Option<FrameRate>, Option<Layout>)>,
}

impl Beside {
    /// Writes the current state.
    pub fn write(&mut self, options: &RecvOptions, counts: Status, shown: &Shown) {
        let gaps_file = gaps_path(options);
        let missing = shown.gaps.iter().map(|gap| gap.frames).sum();
        let known = (shown.gaps.len(), missing, shown.frame_rate, shown.layout);
        let is_new = self.written.replace(known) != Some(known);
        // A failure here occurs at the end too, and is reported then.
        if let Some(path) = &gaps_file
            && is_new
            && !is_special(path)
        {
            let recording = sink::recording(&options.to);
            let gaps = gaps(options, shown, recording.as_deref(), Vec::new());
            let _ = replace_json(path, &gaps);
        }
        if let Some(path) = result_path(options) {
            let so_far = SoFar {
                schema: "evlbi.recv/1",
                finished: false,
                from: options.input(),
                to: &options.to,
                frames: Counts::total(FRAMES, &shown.counts),
                gaps_file,
                counts,
            };
            let _ = replace_json(&path, &so_far);
        }
    }
}

/// Returns the runs of missing frames; with their byte offsets in the stream unless it is split into several files.
fn time_gaps(options: &RecvOptions, shown: &Shown) -> Vec<TimeGap> {
    let mut gaps = shown.gaps.clone();
    if options.to.contains('{') {
        gaps.iter_mut().for_each(|gap| gap.first_byte = None);
    }
    gaps
}

fn gaps(
    options: &RecvOptions,
    shown: &Shown,
    file: Option<&Path>,
    sequence: Vec<SequenceGap>,
) -> Gaps {
    Gaps {
        file: file.map(|path| path.display().to_string()),
        frame_rate: shown.frame_rate,
        frame_length: shown.layout.map(|layout| layout.frame_length),
        sequence,
        time: time_gaps(options, shown),
        ..Gaps::default()
    }
}

/// Writes the gaps next to the recording and returns the result.
pub fn finish(
    options: &RecvOptions,
    report: ReceiveReport,
    mut drained: Drained,
    host: Option<HostDelta>,
    (ring, window): (usize, Option<u64>),
    run: &run::Run,
) -> RecvResult {
    let received = Received::total(&report);
    let account = report.account;
    let segments = account.segments.iter();
    let mut sequence: Vec<SequenceGap> = segments
        .flat_map(|segment| segment.intervals.iter().copied())
        .collect();
    let gaps_file = gaps_path(options);
    if let Some(path) = &gaps_file {
        let file = drained.sink.files.first().map(|file| file.path.as_path());
        let gaps = gaps(options, &drained.frames, file, sequence.clone());
        if let Err(error) = replace_json(path, &gaps) {
            let write_error = &mut drained.sink.write_error;
            write_error.get_or_insert(explain(&error));
        }
    }
    let frames = drained.frames;
    let absent = drained.absent.as_ref().map(|error| run.explain(error));
    let refused = absent.or(drained.sink.refused.take());
    let refused = refused.map(|why| format!("cannot record {}: {why}", options.input()));
    let ends = account.segments.iter().map(|segment| Ends {
        first_seq: segment.first_seq,
        last_seq: segment.last_seq,
    });
    let mut time_gaps = time_gaps(options, &frames);
    time_gaps.truncate(INTERVALS_SHOWN);
    let more_intervals = sequence.len().saturating_sub(INTERVALS_SHOWN) as u64;
    sequence.truncate(INTERVALS_SHOWN);
    RecvResult {
        schema: "evlbi.recv/1",
        finished: true,
        left_unfinished: None,
        from: options.input(),
        to: options.to.clone(),
        counts: Counts::total(RECEIVED, &received),
        frames: Counts::total(FRAMES, &frames.counts),
        safe: received.live.safe.map(SafeReport::from),
        refused: report.refused,
        first_seq: account.segments.first().map(|segment| segment.first_seq),
        last_seq: account.segments.last().map(|segment| segment.last_seq),
        format: drained.format,
        frame_length: frames.layout.map(|layout| layout.frame_length),
        frame_rate: frames.frame_rate,
        seconds: report.seconds,
        rate_bps: received.rate_bps,
        live: received.live,
        datagram_data: report.datagram_data,
        runs: runs(&account.runs),
        runs_not_listed: account.runs_not_listed,
        extents: runs(&account.extents),
        extents_not_listed: account.extents_not_listed,
        n_reordered: runs(&account.n_reordered),
        reordering_gaps: runs(&account.reordering_gaps),
        reordering_gaps_not_listed: account.reordering_gaps_not_listed,
        free_runs: account.free_runs,
        intervals: sequence,
        intervals_not_listed: account.intervals_not_listed + more_intervals,
        time_gaps,
        segments: ends.collect(),
        segments_not_listed: account.segments_not_listed,
        sender: report.sender.map(|sender| sender.to_string()),
        first_arrival: report.first_arrival,
        last_arrival: report.last_arrival,
        most_joined: report.most_joined,
        buffer: report.buffer,
        ring_bytes: Some(ring),
        window_bytes: window,
        host,
        gaps_file,
        cpu_seconds: report.cpu_seconds,
        ended: report.ended,
        error: report.error.or(refused),
        sink: drained.sink,
    }
}

fn runs(histogram: &std::collections::BTreeMap<u64, u64>) -> Vec<Run> {
    let runs = histogram.iter();
    runs.map(|(&length, &count)| Run { length, count })
        .collect()
}

fn describe(format: deframe::Format, result: &RecvResult) -> String {
    if format == deframe::Format::Raw {
        return format!("{format}, no frames found in it");
    }
    let length = result.frame_length.unwrap_or(0);
    match result.frame_rate {
        Some(rate) => format!(
            "{format}, frames of {length} bytes, {} per second",
            rate.get()
        ),
        None => format!("{format}, frames of {length} bytes, frame rate unknown"),
    }
}

/// Formats a result as text.
pub fn text(result: &RecvResult) -> String {
    let (live, frames) = (&result.live, &result.frames);
    let (counters, lost) = (&live.counters, &live.attribution);
    let share = |count: u64| match counters.expected {
        0 => String::new(),
        expected => format!(" ({:.4} %)", count as f64 * 100.0 / expected as f64),
    };
    let count = show_count;
    let ring_full = count(counters.ring_full);
    let (bytes, rate) = (count(live.bytes), show_rate(result.rate_bps));
    let whole = format!(
        "{}, of which lost {}, invalid {}",
        count(frames.count("frames")),
        count(frames.count("lost_frames")),
        count(frames.count("invalid"))
    );
    let mut pairs = vec![
        (
            "expected",
            format!("{} datagrams", count(counters.expected)),
        ),
        ("unique", count(counters.unique)),
        ("lost", count(counters.lost) + &share(counters.lost)),
        (
            "  in this host",
            format!("{} (ring full {ring_full})", count(lost.host_lost)),
        ),
        ("  in the network", count(lost.network_lost)),
        ("  unattributed", count(lost.unattributed)),
        ("duplicates", count(counters.duplicates)),
        ("reordered", count(counters.reordered)),
        ("late", count(counters.late)),
        ("foreign", count(live.foreign())),
        (
            "data",
            format!("{bytes} bytes in {:.3} s: {rate}", result.seconds),
        ),
        ("frames", whole),
    ];
    let unselected = frames.count("unselected_frames");
    if unselected > 0 {
        pairs.push(("not selected", format!("{} frames", count(unselected))));
    }
    if let Some(format) = result.format {
        pairs.push(("format", describe(format, result)));
    }
    if let Some(buffer) = &result.buffer {
        let [asked, granted] = [buffer.asked, buffer.granted].map(|size| show_size(size as u64));
        let text = format!("{asked} requested, {granted} granted");
        pairs.push(("socket buffer", text));
    }
    if live.ring_waits > 0.0 {
        let waited = show_seconds(live.ring_waits);
        pairs.push((
            "not read for",
            format!("{waited}, because the ring was full"),
        ));
    }
    if let Some(check) = &result.sink.check {
        let (good, corrupted) = (count(check.good), count(check.corrupted));
        pairs.push(("check", format!("{good} good, {corrupted} corrupted")));
    }
    for file in &result.sink.files {
        let text = format!("{}, {} bytes", file.path.display(), count(file.bytes));
        pairs.push(("file", text));
    }
    if result.sink.unwritten_bytes > 0 {
        let text = format!("{} bytes", count(result.sink.unwritten_bytes));
        pairs.push(("not written", text));
    }
    if let Some(path) = &result.gaps_file {
        pairs.push(("gaps", path.display().to_string()));
    }
    lines(&pairs)
}
