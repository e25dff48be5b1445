//! Loses frames or packets of a recording under control.
//!
//! Here belongs how recordings are cut. What is left out is decided in [`evlbi_core::shed`].

mod cut;
mod gaps;

use std::io;
use std::path::{Path, PathBuf};

use evlbi_core::deframe::Format;
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
use self::gaps::GapsWriter;
use crate::recording::{self, Blocks, Recording, RecordingError, gaps_beside};

/// Sequence number in front of the data of a datagram.
const TRANSPORT_HEADER: usize = 8;
/// Frames of this length stand for raw data where a length is asked for; the plain rule ignores it.
const ANY_FRAME: usize = 8;

/// Why nothing is dropped from a recording.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DropError {
    /// The recording cannot be read.
    #[error("{0}")]
    Recording(#[from] RecordingError),
    /// It has no packets of that size.
    #[error("cannot cut the recording into packets")]
    Packetise(#[from] PacketiseError),
    /// What is shed was to be marked invalid, and the recording has no such mark.
    #[error("{} {why}", path.display())]
    NoMark {
        /// Path of the recording.
        path: PathBuf,
        /// Why it has none, behind its name.
        why: &'static str,
    },
    /// How much fits depends on the bit rate, which is not known.
    #[error(
        "fit: needs the bit rate of {}, which cannot be told from it{}",
        path.display(),
        if *is_raw { " (it is neither VDIF nor Mark 5B)" } else { "" }
    )]
    RateUnknown {
        /// Path of the recording.
        path: PathBuf,
        /// Whether it has no frames, so that a frame rate would not tell it either.
        is_raw: bool,
    },
    /// The recording cannot be shed from as asked.
    #[error("cannot shed from {}", path.display())]
    Shed {
        /// Path of the recording.
        path: PathBuf,
        /// Why.
        source: ShedError,
    },
    /// An output would take the place of the input.
    #[error("{} is the input itself; write to another file", .0.display())]
    Itself(PathBuf),
    /// An output exists or cannot be made.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// An output cannot be written any further.
    #[error("cannot write {}", path.display())]
    Write {
        /// Its path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl DropError {
    /// Of the output at `path`.
    fn write(path: &Path) -> impl Fn(io::Error) -> DropError {
        move |source| DropError::Write {
            path: path.to_owned(),
            source,
        }
    }
}

/// What is lost of which recording.
#[derive(Clone, Debug)]
pub struct DropOptions {
    /// Recording to read.
    pub input: PathBuf,
    /// Recording to write.
    pub output: PathBuf,
    /// Which frames or packets are lost.
    pub shed: Policy,
    /// What stands in their place.
    pub replace: Replace,
    /// Whether packets are decided on instead of frames.
    pub by_packet: bool,
    /// IP packet size, in bytes.
    pub mtu: usize,
    /// Seed of all random choices.
    pub seed: u64,
    /// Frames per second of a thread, where the file cannot tell.
    pub frame_rate: Option<FrameRate>,
    /// Where the list of what was lost is written; none for beside the output.
    pub gaps: Option<PathBuf>,
    /// Whether files that exist are overwritten.
    pub force: bool,
}

impl Default for DropOptions {
    fn default() -> DropOptions {
        DropOptions {
            input: PathBuf::new(),
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

/// What was dropped.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DropReport {
    schema: &'static str,
    input: PathBuf,
    output: PathBuf,
    format: Format,
    unit: &'static str,
    replace: Replace,
    /// Data in a packet; none where the unit is the frame.
    packet_bytes: Option<usize>,
    frame_length: Option<usize>,
    /// Frames per second of each thread.
    frame_rate: Option<u32>,
    shedding: ShedReport,
    #[serde(flatten)]
    counts: Counts,
    /// Bytes of the input that were read.
    bytes_in: u64,
    /// Bytes before the first whole frame, which were left out.
    leading_bytes: u64,
    /// Bytes after the last whole frame, which were left out.
    truncated_bytes: u64,
    gaps_file: PathBuf,
    /// Runs of missing frames in the gaps file; of packets where there are no frames.
    gaps: u64,
    /// Whether it was stopped before the end.
    pub interrupted: bool,
}

/// Copies a recording without what the policy sheds.
///
/// # Errors
/// When the recording cannot be read or shed from as asked, or an output exists or cannot be written.
pub fn drop(options: &DropOptions, run: &Run) -> Result<DropReport, DropError> {
    let recording = Recording::survey(&options.input, options.frame_rate, run.clock().second())?;
    let unit = unit_of(options, &recording)?;
    check_replace(options, &recording)?;
    let shed = shedding(options, &recording, unit)?;
    let gaps_file = options.gaps.clone();
    let gaps_file = gaps_file.unwrap_or_else(|| gaps_beside(&options.output));
    check_paths(options, &gaps_file)?;
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
    let gaps = GapsWriter::new(gaps_out, &document, list).map_err(DropError::write(&gaps_file))?;
    let (output, part) = Part::create(&options.output, options.force)?;
    let header_length = recording.header_length().unwrap_or(0);
    let mut cut = Cut::new(output, gaps, shed, unit, options, header_length);
    let (blocks, interrupted) = walk(options, &recording, &mut cut, run)?;
    let (bytes_in, leading_bytes) = (blocks.offset(), blocks.leading().unwrap_or(0));
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
        truncated_bytes: bytes_in.saturating_sub(leading_bytes + counts.walked),
        counts,
        gaps_file,
        gaps,
        interrupted,
    })
}

/// Raw data has no frames: its packets are decided on.
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
            "has no frames that could be marked invalid (it is neither VDIF nor Mark 5B)"
        }
        (Replace::Invalid, Format::Mark5b) => {
            "is Mark 5B, whose frames have no mark for invalid ones"
        }
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

/// Returns the blocks that were walked, and whether it was stopped before the end.
fn walk(
    options: &DropOptions,
    recording: &Recording,
    cut: &mut Cut,
    run: &Run,
) -> Result<(Blocks, bool), DropError> {
    let mut deframer = recording.deframer(recording.frame_rate);
    let mut blocks = Blocks::new(recording::open(&options.input)?, recording.size);
    let mut progress = run.progress(Some(recording.size));
    let mut more = true;
    while more && !run.is_stopped() {
        more = blocks.step(&mut deframer, |chunk| cut.take(chunk))?;
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

/// Formats a report for people.
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
        ("in their place", evlbi_plot::name(&report.replace)),
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
