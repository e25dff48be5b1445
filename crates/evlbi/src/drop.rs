//! `evlbi drop`: loses frames or packets of a recording under control.

mod cut;
mod gaps;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, anyhow, bail};
use evlbi_core::deframe::Format;
use evlbi_core::packetise::{Family, Rule, payload_length};
use evlbi_core::shed::{Policy, Shed, ShedReport, Stream, wire_bytes};
use evlbi_wire::time::FrameRate;
use evlbi_wire::validity::Gaps;
use serde::Serialize;

use self::cut::{Counts, Cut, Unit};
use self::gaps::{GapsWriter, List};
use crate::cli::{DropArgs, DropReplace, UnitChoice};
use crate::output::{self, Part};
use crate::progress::{self, Progress, interrupt};
use crate::recording::{self, Blocks, Recording};
use crate::units;

/// Sequence number in front of the data of a datagram.
const TRANSPORT_HEADER: usize = 8;
/// Frames of this length stand for raw data where a length is asked for; the plain rule ignores it.
const ANY_FRAME: usize = 8;

/// What was dropped.
#[derive(Serialize)]
struct DropReport {
    schema: &'static str,
    input: PathBuf,
    output: PathBuf,
    format: Format,
    unit: &'static str,
    replace: &'static str,
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
    interrupted: bool,
}

/// Copies a recording without what the policy sheds.
pub fn run(args: &DropArgs) -> Result<()> {
    let recording = Recording::survey(&args.input, args.frame_rate)?;
    let unit = unit_of(args, &recording)?;
    check_replace(args, &recording)?;
    let shed = shedding(args, &recording, unit)?;
    let gaps_file = args
        .gaps
        .clone()
        .unwrap_or_else(|| output::gaps_beside(&args.output));
    check_paths(args, &gaps_file)?;
    let (gaps_out, gaps_part) = Part::create(&gaps_file, args.force)?;
    let gaps = GapsWriter::new(
        gaps_out,
        &document(args, &recording),
        if recording.format == Format::Raw {
            List::Sequence
        } else {
            List::Time
        },
    )
    .with_context(|| format!("cannot write {}", gaps_file.display()))?;
    let (output, part) = Part::create(&args.output, args.force)?;
    let mut cut = Cut::new(
        output,
        gaps,
        shed,
        unit,
        args,
        recording.header_length().unwrap_or(0),
    );
    let walked = walk(args, &recording, &mut cut)?;
    let shedding = cut.report();
    let (counts, gaps) = cut
        .finish()
        .with_context(|| format!("cannot write {}", args.output.display()))?;
    if !walked.interrupted {
        part.keep()?;
        gaps_part.keep()?;
    }
    let report = DropReport {
        schema: "evlbi.drop/1",
        input: args.input.clone(),
        output: args.output.clone(),
        format: recording.format,
        unit: if unit == Unit::Frame {
            "frame"
        } else {
            "packet"
        },
        replace: name(args.replace),
        packet_bytes: match unit {
            Unit::Frame => None,
            Unit::Packet(length) => Some(length),
        },
        frame_length: recording.frame_length,
        frame_rate: recording.frame_rate.map(FrameRate::get),
        shedding,
        bytes_in: walked.bytes,
        leading_bytes: walked.leading,
        truncated_bytes: walked
            .bytes
            .saturating_sub(walked.leading + counts.bytes_walked()),
        counts,
        gaps_file,
        gaps,
        interrupted: walked.interrupted,
    };
    output::print(args.json, &report, show)?;
    progress::complete(report.interrupted)
}

/// Raw data has no frames: its packets are decided on.
fn unit_of(args: &DropArgs, recording: &Recording) -> Result<Unit> {
    let (length, rule) = match (recording.frame_length, args.unit) {
        (Some(_), UnitChoice::Frame) => return Ok(Unit::Frame),
        (Some(length), UnitChoice::Packet) => (length, Rule::Frames),
        (None, _) => (ANY_FRAME, Rule::Plain),
    };
    Ok(Unit::Packet(packet_length(length, args.mtu, rule)?))
}

fn packet_length(frame_length: usize, mtu: usize, rule: Rule) -> Result<usize> {
    payload_length(frame_length, mtu, Family::V4, TRANSPORT_HEADER, rule)
        .context("cannot cut the recording into packets")
}

fn check_replace(args: &DropArgs, recording: &Recording) -> Result<()> {
    let input = args.input.display();
    match (args.replace, recording.format) {
        (DropReplace::Invalid, Format::Raw) => bail!(
            "{input} has no frames that could be marked invalid (it is neither VDIF nor Mark 5B); choose --replace fill, random or nothing"
        ),
        (DropReplace::Invalid, Format::Mark5b) => bail!(
            "{input} is Mark 5B, whose frames have no mark for invalid ones; choose --replace fill, random or nothing"
        ),
        _ => Ok(()),
    }
}

fn shedding(args: &DropArgs, recording: &Recording, unit: Unit) -> Result<Shed> {
    let unit_bytes = match (unit, recording.frame_length) {
        (Unit::Packet(length), _) | (Unit::Frame, Some(length)) => length,
        (Unit::Frame, None) => 0,
    };
    let wire = match (unit, &args.shed) {
        (Unit::Packet(length), _) => wire_bytes(TRANSPORT_HEADER + length, Family::V4),
        (Unit::Frame, Policy::Fit(_)) => {
            let packet = packet_length(unit_bytes, args.mtu, Rule::Frames)?;
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
    if matches!(args.shed, Policy::Fit(_)) && stream.rate.is_none() {
        bail!(
            "fit: needs the bit rate of {}, which cannot be told from it{}",
            args.input.display(),
            match recording.format {
                Format::Raw => " (it is neither VDIF nor Mark 5B)",
                _ => "; give --frame-rate",
            }
        );
    }
    Shed::new(args.shed.clone(), args.seed, &stream)
        .with_context(|| format!("cannot shed from {}", args.input.display()))
}

fn check_paths(args: &DropArgs, gaps: &Path) -> Result<()> {
    for path in [args.output.as_path(), gaps] {
        if output::same_file(&args.input, path) {
            bail!(
                "{} is the input itself; write to another file",
                path.display()
            );
        }
    }
    output::check_new([args.output.as_path(), gaps], args.force)
}

fn document(args: &DropArgs, recording: &Recording) -> Gaps {
    Gaps {
        file: args
            .output
            .file_name()
            .map(|name| name.to_string_lossy().into_owned()),
        frame_rate: recording.frame_rate,
        frame_length: recording.frame_length,
        ..Gaps::default()
    }
}

struct Walked {
    bytes: u64,
    leading: u64,
    interrupted: bool,
}

fn walk(args: &DropArgs, recording: &Recording, cut: &mut Cut) -> Result<Walked> {
    let stop = interrupt();
    let mut deframer = recording::deframer(recording.frame_rate);
    let mut blocks = Blocks::new(recording::open(&args.input)?, recording.size);
    let mut progress = Progress::new(Some(recording.size));
    let mut more = true;
    while more && !stop.load(Ordering::Relaxed) {
        more = blocks.step(&mut deframer, |chunk| cut.take(chunk))?;
        if let Some(error) = cut.failed() {
            return Err(anyhow!(error).context(format!("cannot write {}", args.output.display())));
        }
        if progress.is_due() {
            let report = cut.report();
            let line = format!("{} of {} shed", report.shed, report.offered);
            progress.show(blocks.offset(), &line);
        }
    }
    progress.finish();
    Ok(Walked {
        bytes: blocks.offset(),
        leading: blocks.leading().unwrap_or(0),
        interrupted: more,
    })
}

fn name(replace: DropReplace) -> &'static str {
    match replace {
        DropReplace::Nothing => "nothing",
        DropReplace::Fill => "fill",
        DropReplace::Random => "random",
        DropReplace::Invalid => "invalid",
    }
}

fn show(report: &DropReport) -> String {
    let count = units::show_count;
    let shed = &report.shedding;
    let planned = shed.fraction_planned.map_or(String::new(), |planned| {
        format!(" (planned {:.4} %)", planned * 100.0)
    });
    let mut pairs = vec![
        ("policy", format!("{}, seed {}", shed.policy, shed.seed)),
        (
            "shed",
            format!(
                "{} of {} {}s, {:.4} %{planned}",
                count(shed.shed),
                count(shed.offered),
                report.unit,
                shed.fraction * 100.0
            ),
        ),
        ("in their place", report.replace.to_string()),
    ];
    if let Some(length) = report.packet_bytes {
        pairs.push(("packets", format!("{length} bytes of data each")));
    }
    if report.frame_length.is_some() {
        let counts = &report.counts;
        let frames = format!(
            "{} in, {} touched, {} out",
            count(counts.frames),
            count(counts.frames_touched),
            count(counts.frames_out)
        );
        pairs.push(("frames", frames));
    }
    let bytes = format!(
        "{} in, {} out",
        count(report.bytes_in),
        count(report.counts.bytes_out)
    );
    pairs.push(("bytes", bytes));
    if report.leading_bytes > 0 {
        pairs.push((
            "left out",
            format!(
                "{} bytes before the first whole frame",
                count(report.leading_bytes)
            ),
        ));
    }
    if report.truncated_bytes > 0 {
        pairs.push((
            "left out",
            format!(
                "{} bytes of a truncated last frame",
                count(report.truncated_bytes)
            ),
        ));
    }
    pairs.push((
        "gaps",
        format!("{} in {}", count(report.gaps), report.gaps_file.display()),
    ));
    if report.interrupted {
        pairs.push((
            "interrupted",
            "before the end of the input: no file was kept".to_string(),
        ));
    }
    output::lines(&pairs)
}
