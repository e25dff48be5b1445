//! Drops frames or packets from a recording, as chosen by a policy.
//!
//! Put here how recordings are cut. [`evlbi_core::shed`] decides which data is shed.

mod cut;
mod listed;

use std::io;
use std::path::{Path, PathBuf};

use evlbi_core::deframe::{Deframer, Format};
use evlbi_core::packetise::{Family, PacketiseError, Rule, payload_length};
use evlbi_core::shed::{Policy, Replace, Shed, ShedError, ShedReport, Stream, wire_bytes};
use evlbi_net::file::{OutputError, Part, check_new, same_file};
use evlbi_net::run::Run;
use evlbi_plot::lines;
use evlbi_wire::time::FrameRate;
use evlbi_wire::units;
use evlbi_wire::validity::Gaps;
use serde::Serialize;
use thiserror::Error;

use self::cut::{Counts, Cut, Unit};
use self::listed::Listed;
use crate::gaps::{self, GapsError, GapsWriter};
use crate::recording::{Blocks, Recording, RecordingError, gaps_beside};
use crate::selection::Selection;

/// Length of the sequence number before the data of a datagram, in bytes.
const TRANSPORT_HEADER: usize = 8;
/// Frame length for raw data where one is needed; the plain rule ignores it.
const ANY_FRAME: usize = 8;

/// Reasons why a recording cannot be cut.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DropError {
    /// The recording cannot be read.
    #[error("{0}")]
    Recording(#[from] RecordingError),
    /// The recording cannot be divided into packets of the requested size.
    #[error("cannot cut the recording into packets")]
    Packetise(#[from] PacketiseError),
    /// Shed data was to be marked invalid, but the format has no such mark.
    #[error("{} {why}", path.display())]
    NoMark {
        /// Path of the recording.
        path: PathBuf,
        /// Reason, for use after the name.
        why: &'static str,
    },
    /// The policy depends on the bit rate, which is unknown.
    #[error(
        "fit: the bit rate of {} is unknown{}",
        path.display(),
        if *is_raw { " (it is neither VDIF, Mark 5B nor Mark 4)" } else { "" }
    )]
    RateUnknown {
        /// Path of the recording.
        path: PathBuf,
        /// Whether it has no frames, so that a given frame rate would not help either.
        is_raw: bool,
    },
    /// The policy cannot be applied to the recording.
    #[error("cannot shed from {}", path.display())]
    Shed {
        /// Path of the recording.
        path: PathBuf,
        /// Reason.
        source: ShedError,
    },
    /// The gaps file next to the recording cannot be used.
    #[error("{0}")]
    Gaps(#[from] GapsError),
    /// An output is the same file as the input.
    #[error("{} is the input itself: write to another file", .0.display())]
    Itself(PathBuf),
    /// An output exists or cannot be created.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// Writing to an output failed.
    #[error("cannot write {}", path.display())]
    Write {
        /// Path of the output.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

impl DropError {
    /// Returns an error of the output at `path`.
    fn write(path: &Path) -> impl Fn(io::Error) -> DropError {
        move |source| DropError::Write {
            path: path.to_owned(),
            source,
        }
    }
}

/// Options of [`drop()`].
#[derive(Clone, Debug)]
pub struct DropOptions {
    /// Recording to read.
    pub input: PathBuf,
    /// Stations and threads to keep, and the year of the recording.
    pub selection: Selection,
    /// Recording to write.
    pub output: PathBuf,
    /// Policy that chooses the frames or packets to drop.
    pub shed: Policy,
    /// Replacement for dropped data.
    pub replace: Replace,
    /// Whether the policy chooses packets instead of frames.
    pub by_packet: bool,
    /// IP packet size, in bytes.
    pub mtu: usize,
    /// Seed of all random choices.
    pub seed: u64,
    /// Frames per second of a thread, if the file does not contain it.
    pub frame_rate: Option<FrameRate>,
    /// Path of the list of dropped frames; `None` for a file next to the output.
    pub gaps: Option<PathBuf>,
    /// Whether existing files are overwritten.
    pub force: bool,
}

impl Default for DropOptions {
    fn default() -> DropOptions {
        DropOptions {
            input: PathBuf::new(),
            selection: Selection::default(),
            output: PathBuf::new(),
            shed: Policy::None,
            replace: Replace::Invalid,
            by_packet: false,
            mtu: 1500,
            seed: 1,
            frame_rate: None,
            gaps: None,
            force: false,
        }
    }
}

/// Result of [`drop()`].
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DropReport {
    schema: &'static str,
    input: PathBuf,
    output: PathBuf,
    format: Format,
    unit: &'static str,
    replace: Replace,
    /// Bytes of data per packet; `None` if the unit is the frame.
    packet_bytes: Option<usize>,
    frame_length: Option<usize>,
    /// Frames per second of each thread.
    frame_rate: Option<u32>,
    shedding: ShedReport,
    #[serde(flatten)]
    counts: Counts,
    /// Bytes read from the input.
    bytes_in: u64,
    /// Bytes before the first whole frame, not copied.
    leading_bytes: u64,
    /// Bytes after the last whole frame, not copied.
    truncated_bytes: u64,
    /// Frames of stations and threads that are not selected, not copied.
    unselected_frames: u64,
    gaps_file: PathBuf,
    /// Runs of missing frames in the gaps file; of packets if there are no frames.
    gaps: u64,
    /// Whether the run was stopped before the end.
    pub interrupted: bool,
}

/// Copies a recording without the data that the policy sheds. Its gaps, if a file lists them, are those of the copy, too.
///
/// # Errors
/// Returns an error if the recording cannot be read, the policy does not apply to it, or an output exists or cannot be written.
pub fn drop(options: &DropOptions, run: &Run) -> Result<DropReport, DropError> {
    let (input, second) = (&options.input, run.clock().second());
    let recording = Recording::select(input, &options.selection, options.frame_rate, second)?;
    let unit = unit_of(options, &recording)?;
    check_replace(options, &recording)?;
    let shed = shedding(options, &recording, unit)?;
    let gaps_file = options.gaps.clone();
    let gaps_file = gaps_file.unwrap_or_else(|| gaps_beside(&options.output));
    check_paths(options, &gaps_file)?;
    let (layout, rate) = (recording.layout, recording.frame_rate);
    let listed = layout.map(|layout| gaps::read_beside(input, rate, &layout));
    let listed = listed.transpose()?.flatten().unwrap_or_default();
    let listed = Listed::new(&listed, rate, |key| recording.has(key));
    let (gaps_out, gaps_part) = Part::create(&gaps_file, options.force)?;
    let is_raw = recording.format == Format::Raw;
    let list = if is_raw { "sequence" } else { "time" };
    let name = options.output.file_name();
    let document = Gaps {
        file: name.map(|name| name.to_string_lossy().into_owned()),
        frame_rate: recording.frame_rate,
        frame_length: recording.frame_length,
        ..Gaps::default()
    };
    let gaps = GapsWriter::new(gaps_out, document, list).map_err(DropError::write(&gaps_file))?;
    let (output, part) = Part::create(&options.output, options.force)?;
    let header_length = recording.header_length().unwrap_or(0);
    let mut cut = Cut::new(output, gaps, listed, shed, unit, options, header_length);
    let mut deframer = recording.deframer(recording.frame_rate);
    let (blocks, interrupted) = walk(options, &recording, &mut deframer, &mut cut, run)?;
    let left_out = deframer.counts();
    let (bytes_in, leading_bytes) = (blocks.offset(), recording.leading);
    let shedding = cut.shed.report();
    let (counts, gaps) = cut.finish().map_err(DropError::write(&options.output))?;
    if !interrupted {
        part.keep()?;
        gaps_part.keep()?;
    }
    let (unit, packet_bytes) = match unit {
        Unit::Frame => ("frame", None),
        Unit::Packet(length) => ("packet", Some(length)),
    };
    Ok(DropReport {
        schema: "evlbi.drop/1",
        input: options.input.clone(),
        output: options.output.clone(),
        format: recording.format,
        unit,
        replace: options.replace,
        packet_bytes,
        frame_length: recording.frame_length,
        frame_rate: recording.frame_rate.map(FrameRate::get),
        shedding,
        bytes_in,
        leading_bytes,
        unselected_frames: left_out.unselected_frames,
        truncated_bytes: bytes_in
            .saturating_sub(leading_bytes + counts.walked + left_out.unselected_bytes),
        counts,
        gaps_file,
        gaps,
        interrupted,
    })
}

/// Returns the unit of the policy. Raw data has no frames, so packets are chosen.
fn unit_of(options: &DropOptions, recording: &Recording) -> Result<Unit, PacketiseError> {
    let (length, rule) = match (recording.frame_length, options.by_packet) {
        (Some(_), false) => return Ok(Unit::Frame),
        (Some(length), true) => (length, Rule::Frames),
        (None, _) => (ANY_FRAME, Rule::Plain),
    };
    Ok(Unit::Packet(packet_length(length, options.mtu, rule)?))
}

fn packet_length(frame_length: usize, mtu: usize, rule: Rule) -> Result<usize, PacketiseError> {
    payload_length(frame_length, mtu, Family::V4, TRANSPORT_HEADER, rule)
}

fn check_replace(options: &DropOptions, recording: &Recording) -> Result<(), DropError> {
    let why = match (options.replace, recording.format) {
        (Replace::Invalid, Format::Raw) => {
            "has no frames that could be marked invalid (it is neither VDIF, Mark 5B nor Mark 4)"
        }
        (Replace::Invalid, Format::Mark5b) => "is Mark 5B, which has no mark for invalid frames",
        (Replace::Invalid, Format::Mark4) => "is Mark 4, which has no mark for invalid frames",
        _ => return Ok(()),
    };
    let path = options.input.clone();
    Err(DropError::NoMark { path, why })
}

fn shedding(options: &DropOptions, recording: &Recording, unit: Unit) -> Result<Shed, DropError> {
    let unit_bytes = match (unit, recording.frame_length) {
        (Unit::Packet(length), _) | (Unit::Frame, Some(length)) => length,
        (Unit::Frame, None) => 0,
    };
    let wire = match (unit, &options.shed) {
        (Unit::Packet(length), _) => wire_bytes(TRANSPORT_HEADER + length, Family::V4),
        (Unit::Frame, Policy::Fit(_)) => {
            let packet = packet_length(unit_bytes, options.mtu, Rule::Frames)?;
            (unit_bytes / packet) as u64 * wire_bytes(TRANSPORT_HEADER + packet, Family::V4)
        }
        (Unit::Frame, _) => unit_bytes as u64,
    };
    let stream = Stream {
        rate: recording.rate(),
        unit_bytes: unit_bytes as u64,
        wire_bytes: wire,
        threads: recording.keys.iter().map(|key| key.thread).collect(),
        frame_rate: recording.frame_rate,
    };
    if matches!(options.shed, Policy::Fit(_)) && stream.rate.is_none() {
        return Err(DropError::RateUnknown {
            path: options.input.clone(),
            is_raw: recording.format == Format::Raw,
        });
    }
    let shed = Shed::new(options.shed.clone(), options.seed, &stream);
    shed.map_err(|source| DropError::Shed {
        path: options.input.clone(),
        source,
    })
}

fn check_paths(options: &DropOptions, gaps: &Path) -> Result<(), DropError> {
    for path in [options.output.as_path(), gaps] {
        if same_file(&options.input, path) {
            return Err(DropError::Itself(path.to_owned()));
        }
    }
    Ok(check_new([options.output.as_path(), gaps], options.force)?)
}

/// Cuts all frames; returns the reader, and whether the run was stopped before the end.
fn walk(
    options: &DropOptions,
    recording: &Recording,
    deframer: &mut Deframer,
    cut: &mut Cut,
    run: &Run,
) -> Result<(Blocks, bool), DropError> {
    let mut blocks = recording.blocks(run)?;
    let mut progress = run.progress(Some(recording.end()));
    let mut more = true;
    while more && !run.is_stopped() {
        more = blocks.step(deframer, |chunk| cut.take(chunk))?;
        if let Some(error) = cut.error.take() {
            return Err(DropError::write(&options.output)(error));
        }
        if progress.is_due() {
            let report = cut.shed.report();
            let line = format!("{} of {} shed", report.shed, report.offered);
            progress.show(blocks.offset(), &line);
        }
    }
    Ok((blocks, more))
}

/// Formats a report as text.
pub fn text(report: &DropReport) -> String {
    let count = units::show_count;
    let shed = &report.shedding;
    let planned = shed.fraction_planned.map_or(String::new(), |planned| {
        format!(" (planned {:.4} %)", planned * 100.0)
    });
    let shed_units = format!(
        "{} of {} {}s, {:.4} %{planned}",
        count(shed.shed),
        count(shed.offered),
        report.unit,
        shed.fraction * 100.0
    );
    let mut pairs = vec![
        ("policy", format!("{}, seed {}", shed.policy, shed.seed)),
        ("shed", shed_units),
        ("replaced by", evlbi_plot::name(&report.replace)),
    ];
    if let Some(length) = report.packet_bytes {
        pairs.push(("packets", format!("{length} bytes of data each")));
    }
    let counts = &report.counts;
    if report.frame_length.is_some() {
        let frames = format!(
            "{} in, {} touched, {} out",
            count(counts.frames),
            count(counts.frames_touched),
            count(counts.frames_out)
        );
        pairs.push(("frames", frames));
    }
    if report.unselected_frames > 0 {
        let text = format!("{} frames", count(report.unselected_frames));
        pairs.push(("not selected", text));
    }
    let (read, written) = (count(report.bytes_in), count(counts.bytes_out));
    pairs.push(("bytes", format!("{read} in, {written} out")));
    for (bytes, place) in [
        (report.leading_bytes, "before the first whole frame"),
        (report.truncated_bytes, "of a truncated last frame"),
    ] {
        if bytes > 0 {
            pairs.push(("left out", format!("{} bytes {place}", count(bytes))));
        }
    }
    let gaps = format!("{} in {}", count(report.gaps), report.gaps_file.display());
    pairs.push(("gaps", gaps));
    if report.interrupted {
        let text = "before the end of the input: no file was kept";
        pairs.push(("interrupted", text.to_owned()));
    }
    lines(&pairs)
}
