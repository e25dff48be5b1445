//! Shows the content of a recording as tables and small pictures in block characters.

use evlbi_core::deframe::{Format, Slip};
use evlbi_fx::statistics::ChannelStatistics;
use evlbi_plot::{columns, lines};
use evlbi_wire::units::{show_count as count, show_rate};
use serde_json::Value;

use super::thread::ThreadReport;
use super::{Moment, RateOrigin, Report};

/// Maximum number of gaps on a screen.
const MAX_GAPS: usize = 10;
/// Maximum number of slips on a screen.
const MAX_SLIPS: usize = 3;
/// Columns of a spectrum.
const COLUMNS: usize = 48;
/// Maximum number of levels drawn one by one.
const LEVELS: usize = 16;
/// Height of a spectrum, in dB.
const DECIBELS: f64 = 20.0;

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Formats a report for people with each thread and channel, and the first gaps.
pub fn text_of_each(report: &Report) -> String {
    show(report, MAX_GAPS)
}

/// Formats a report for people with each thread, each channel and each gap that it lists.
pub fn text_in_full(report: &Report) -> String {
    show(report, report.gaps.len())
}

fn show(report: &Report, max_gaps: usize) -> String {
    let mut parts = vec![overview(report)];
    if !report.threads.is_empty() {
        parts.push(threads(&report.threads));
    }
    if report.gaps_total > 0 {
        parts.push(gaps(report, max_gaps));
    }
    let every = report.sampling.map_or(1, |sampling| sampling.every);
    parts.extend(report.threads.iter().map(|thread| samples(thread, every)));
    parts.join("\n\n")
}

pub fn overview(report: &Report) -> String {
    let mut pairs = vec![
        ("file", report.file.display().to_string()),
        ("format", format(report)),
        ("size", format!("{} bytes", count(report.bytes))),
    ];
    if report.format == Format::Raw {
        let fill = format!("{} bytes", count(report.fill.bytes));
        pairs.push(("fill pattern", fill));
        pairs.extend(interrupted(report));
        return lines(&pairs);
    }
    pairs.push(("frame rate", frame_rate(report)));
    if let (Some(all), Some(payload)) = (report.bit_rate, report.payload_rate) {
        let (all, payload) = (show_rate(all as f64), show_rate(payload as f64));
        pairs.push(("bit rate", format!("{all}, {payload} without headers")));
    }
    if let (Some(first), Some(last)) = (&report.first, &report.last) {
        pairs.push(("first frame", moment(first)));
        pairs.push(("last frame", moment(last)));
    }
    if let Some(seconds) = report.seconds {
        pairs.push(("duration", format!("{seconds} s")));
    }
    pairs.push(("frames", frames(report)));
    for (bytes, what) in [
        (report.leading_bytes, "before the first frame"),
        (report.trailing_bytes, "of a truncated last frame"),
        (report.unframed_bytes, "between frames"),
    ] {
        if bytes > 0 {
            pairs.push(("left over", format!("{} bytes {what}", count(bytes))));
        }
    }
    if !report.frame_slips.is_empty() {
        pairs.push(("slips", slips(&report.frame_slips)));
    }
    if let Some(rest) = &report.rest {
        pairs.push(("left over", format!("{rest}, which are not shown")));
    }
    if report.fill.bytes > 0 {
        let fill = format!(
            "{} bytes in {} frames, {} of them not marked invalid",
            count(report.fill.bytes),
            count(report.fill.frames),
            count(report.fill.valid_frames)
        );
        pairs.push(("fill pattern", fill));
    }
    pairs.extend(interrupted(report));
    lines(&pairs)
}

/// Formats where bytes were lost or inserted.
fn slips(slips: &[Slip]) -> String {
    let mut places: Vec<String> = slips.iter().take(MAX_SLIPS).map(slip).collect();
    if slips.len() > MAX_SLIPS {
        places.push(format!("and {} more", slips.len() - MAX_SLIPS));
    }
    places.join("; ")
}

fn slip(slip: &Slip) -> String {
    let what = if slip.bytes < 0 { "lost" } else { "inserted" };
    let (bytes, byte) = (slip.bytes.unsigned_abs(), slip.byte);
    format!("{} bytes {what} behind byte {byte}", count(bytes))
}

fn interrupted(report: &Report) -> Option<(&'static str, String)> {
    let text = "before the end of the file: the numbers cover the part that was read";
    report.interrupted.then(|| ("stopped", text.to_string()))
}

fn format(report: &Report) -> String {
    let frames = match report.frame_length.zip(report.header_length) {
        Some((length, header)) => format!("frames of {length} bytes, {header} of them header"),
        None => String::new(),
    };
    let name = report.format_name.as_ref();
    let name = name.map_or_else(String::new, |name| format!(" ({name})"));
    match report.format {
        Format::Vdif => format!("VDIF version {}, {frames}", report.version.unwrap_or(0)),
        Format::Mark5b => format!(
            "Mark 5B{name}, {frames}; the time code repeats: {}",
            dates(report)
        ),
        Format::Mark4 => format!(
            "Mark 4{name}, {frames}; the time code has one digit of the year: {}",
            dates(report)
        ),
        Format::Raw => match &report.not_read {
            Some(known) => format!("raw: {known}, which cannot be read"),
            None => "raw: neither VDIF, Mark 5B nor Mark 4".to_string(),
        },
    }
}

fn dates(report: &Report) -> String {
    match report.year {
        Some(year) => format!("dates are those of {year}, as given"),
        None => "dates are the latest possible ones in the past".to_string(),
    }
}

fn frame_rate(report: &Report) -> String {
    let origin = match report.frame_rate_from {
        Some(RateOrigin::Given) => "as given",
        Some(RateOrigin::Header) => "from the headers",
        Some(RateOrigin::Counted) => "counted from second to second",
        None => "",
    };
    match report.frame_rate {
        Some(rate) => format!("{} per second and thread, {origin}", count(rate.into())),
        None => "unknown: no second ends in the recording; give --frame-rate".to_string(),
    }
}

fn moment(moment: &Moment) -> String {
    match &moment.utc {
        Some(utc) => utc.clone(),
        None => {
            let second = jiff::Timestamp::from_second(moment.time.second);
            let second = second.map_or_else(|_| moment.time.second.to_string(), |s| s.to_string());
            format!("{second}, frame {}", moment.time.frame)
        }
    }
}

fn frames(report: &Report) -> String {
    let mut text = count(report.frames);
    for (number, what) in [
        (report.missing_frames, "missing"),
        (report.invalid_frames, "invalid"),
        (report.odd_headers, "with a damaged header"),
        (report.duplicate_frames, "duplicate"),
        (report.backward_frames, "out of order"),
    ] {
        text.push_str(&format!(", {} {what}", count(number)));
    }
    for (number, what) in [
        (report.untimed_frames, "of unknown time"),
        (
            report.frames_of_other_channels,
            "with other channels on the tracks",
        ),
    ] {
        if number > 0 {
            text.push_str(&format!(", {} {what}", count(number)));
        }
    }
    text
}

fn threads(threads: &[ThreadReport]) -> String {
    const SAMPLES: usize = 5;
    let heads = [
        "station", "thread", "frames", "missing", "invalid", "samples",
    ];
    let mut rows = vec![heads.map(str::to_string).to_vec()];
    for thread in threads {
        rows.push(vec![
            thread.station.clone(),
            thread.thread.to_string(),
            count(thread.frames),
            count(thread.missing),
            count(thread.invalid),
            shape(thread),
        ]);
    }
    columns(&rows, |column| [0, SAMPLES].contains(&column))
}

pub fn shape(thread: &ThreadReport) -> String {
    let (Some(bits), Some(channels)) = (thread.bits, thread.channels) else {
        return "unknown".to_string();
    };
    let complex = match thread.complex {
        Some(true) => "complex",
        _ => "real",
    };
    let plural = if channels == 1 { "" } else { "s" };
    let mut text = format!("{channels} channel{plural}, {bits}-bit {complex}");
    if let (Some(rate), Some(bandwidth)) = (thread.sample_rate, thread.bandwidth) {
        let (mhz, ms) = (bandwidth / 1e6, rate as f64 / 1e6);
        text.push_str(&format!(", {mhz} MHz at {ms} Ms/s"));
    }
    if thread.legacy == Some(true) {
        text.push_str(", legacy header");
    }
    text.push_str(&extended(thread.extended.as_ref()));
    text
}

fn extended(extended: Option<&Value>) -> String {
    let version = extended.and_then(|extended| extended["version"].as_u64());
    let name = extended.and_then(|extended| extended["name"].as_str());
    match (version, name) {
        (None | Some(0), _) => String::new(),
        (Some(version), Some(name)) => format!(", extended data {version} ({name})"),
        (Some(version), None) => format!(", extended data {version}"),
    }
}

/// Formats the first gaps.
pub fn gaps(report: &Report, max: usize) -> String {
    let mut lines = vec![format!("{} gaps", count(report.gaps_total))];
    lines.extend(report.gaps.iter().take(max).map(|gap| {
        format!(
            "  {} thread {}: from {} on {} missing",
            gap.station,
            gap.thread,
            moment(&gap.start),
            count(gap.frames)
        )
    }));
    let more = report.gaps_total.saturating_sub(max as u64);
    lines.extend((more > 0).then(|| format!("  and {} more gaps", count(more))));
    lines.join("\n")
}

fn samples(thread: &ThreadReport, every: u64) -> String {
    let mut lines = vec![format!(
        "{} thread {}: samples of {} frames, one in {every}",
        thread.station, thread.thread, thread.sampled_frames
    )];
    lines.extend(thread.note.iter().map(|note| format!("  {note}")));
    for (number, channel) in thread.statistics.iter().enumerate() {
        for (part, component) in channel.components.iter().enumerate() {
            let name = match (channel.components.len(), part) {
                (1, _) => "",
                (_, 0) => " re",
                _ => " im",
            };
            lines.push(format!(
                "  channel {:>2}{name}  {}  mean {:+.3}  rms {:.3}",
                thread.channel_names.get(number).map_or("", String::as_str),
                levels(&component.counts),
                component.mean,
                component.rms
            ));
        }
        if !channel.spectrum.is_empty() {
            lines.push(format!("  {}", spectrum(channel, thread.sample_rate)));
        }
    }
    lines.join("\n")
}

/// Draws a bar per level from the lowest to the highest, with percentages if there are few.
pub fn levels(counts: &[u64]) -> String {
    let total = counts.iter().sum::<u64>().max(1) as f64;
    let per_bar = counts.len().div_ceil(LEVELS).max(1);
    let bars = counts.chunks(per_bar).map(|counts| counts.iter().sum());
    let shares: Vec<f64> = bars.map(|count: u64| count as f64 / total).collect();
    let highest = shares.iter().copied().fold(0.0, f64::max);
    let bars: String = shares.iter().map(|share| block(share / highest)).collect();
    if counts.len() > 4 {
        return bars;
    }
    let percent = shares.iter().map(|share| format!("{:4.1}", share * 100.0));
    format!("{bars}  {} %", percent.collect::<Vec<String>>().join(" "))
}

/// Draws power against frequency, in dB below the maximum.
fn spectrum(channel: &ChannelStatistics, sample_rate: Option<u64>) -> String {
    let bars = bars(&channel.spectrum, COLUMNS);
    format!("{bars}  {}", scale(channel, sample_rate))
}

/// Draws a bar for each of some columns.
pub fn bars(spectrum: &[f64], columns: usize) -> String {
    let per_column = spectrum.len().div_ceil(columns).max(1);
    let mean = |powers: &[f64]| powers.iter().sum::<f64>() / powers.len() as f64;
    let columns: Vec<f64> = spectrum.chunks(per_column).map(mean).collect();
    let highest = columns.iter().copied().fold(0.0, f64::max);
    let decibels = |power: &f64| 10.0 * (power / highest).log10();
    let bars = columns.iter().map(decibels);
    bars.map(|below| block(1.0 + below / DECIBELS)).collect()
}

/// Returns the range of frequencies and the height of the bars of a spectrum.
pub fn scale(channel: &ChannelStatistics, sample_rate: Option<u64>) -> String {
    let lowest = channel.lowest_frequency;
    let end = lowest + channel.spectrum.len() as f64 * channel.resolution;
    let scale = match sample_rate {
        Some(rate) => {
            let mega = rate as f64 / 1e6;
            format!("{} to {} MHz", lowest * mega, end * mega)
        }
        None => format!("{lowest} to {end} of the sample rate"),
    };
    format!("{scale}, {DECIBELS} dB high")
}

/// Returns a bar with the height `part`, from 0 to 1.
fn block(part: f64) -> char {
    // A cast rounds a float towards zero and keeps it in range; NaN becomes zero.
    BLOCKS[((part * BLOCKS.len() as f64) as usize).min(BLOCKS.len() - 1)]
}
