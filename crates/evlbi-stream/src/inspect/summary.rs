//! A recording of many threads and channels in few lines: those that are alike share a row.

use std::collections::BTreeMap;

use evlbi_fx::statistics::{ChannelStatistics, ComponentStatistics};
use evlbi_plot::columns;
use evlbi_wire::units::show_count as count;

use super::Report;
use super::picture::{bars, gaps, levels, overview, scale, shape};
use super::thread::ThreadReport;

/// Maximum number of rows in a table.
const MAX_ROWS: usize = 6;
/// Maximum number of gaps.
const MAX_GAPS: usize = 4;
/// Columns of a spectrum.
const COLUMNS: usize = 24;
/// Maximum differences of channels that are alike: of a level's fraction, of the mean and of the rms over the rms.
const ALIKE: [f64; 3] = [0.02, 0.025, 0.05];

/// Formats a report in at most 40 lines.
pub fn show(report: &Report) -> String {
    let mut parts = vec![overview(report)];
    if !report.threads.is_empty() {
        parts.push(threads(&report.threads));
    }
    if report.gaps_total > 0 {
        parts.push(gaps(report, MAX_GAPS));
    }
    parts.extend(channels(&report.threads));
    parts.join("\n\n")
}

/// Threads of a station with samples of one kind, and equal counts of frames where that makes few rows.
fn threads(threads: &[ThreadReport]) -> String {
    let counts = |thread: &ThreadReport| [thread.frames, thread.missing, thread.invalid];
    let mut by_counts = BTreeMap::new();
    let mut by_shape = BTreeMap::new();
    for thread in threads {
        let kind = (thread.station.clone(), shape(thread));
        let alike: &mut Vec<_> = by_counts.entry((kind.clone(), counts(thread))).or_default();
        alike.push(thread);
        let alike: &mut Vec<_> = by_shape.entry(kind).or_default();
        alike.push(thread);
    }
    let groups: Vec<Vec<&ThreadReport>> = match by_counts.len() <= MAX_ROWS {
        true => by_counts.into_values().collect(),
        false => by_shape.into_values().collect(),
    };
    let row = |group: &Vec<&ThreadReport>| {
        let numbers = group.iter().map(|thread| usize::from(thread.thread));
        let mut row = vec![group[0].station.clone(), ranges(numbers.collect())];
        row.extend((0..3).map(|of| {
            let each = group.iter().map(|thread| counts(thread)[of]);
            span(each.clone().min(), each.max())
        }));
        row.push(shape(group[0]));
        row
    };
    let heads = [
        "station",
        "threads",
        "frames of each",
        "missing",
        "invalid",
        "samples",
    ];
    table(
        &heads,
        groups.iter().map(row).collect(),
        &[0, 1, 5],
        "kinds of threads",
    )
}

/// Lowest and highest of some counts.
fn span(lowest: Option<u64>, highest: Option<u64>) -> String {
    let (lowest, highest) = (lowest.unwrap_or(0), highest.unwrap_or(0));
    match lowest == highest {
        true => count(lowest),
        false => format!("{} to {}", count(lowest), count(highest)),
    }
}

/// Channels with samples alike.
struct Group<'a> {
    station: &'a str,
    channels: Vec<&'a ChannelStatistics>,
    /// Numbers of the channels of each thread, by its place among the threads.
    places: BTreeMap<usize, Vec<usize>>,
}

/// `None` if no samples were read.
fn channels(threads: &[ThreadReport]) -> Option<String> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (place, thread) in threads.iter().enumerate() {
        for (number, channel) in thread.statistics.iter().enumerate() {
            let fits = |group: &&mut Group<'_>| {
                group.station == thread.station && are_alike(group.channels[0], channel)
            };
            let group = match groups.iter_mut().find(fits) {
                Some(group) => group,
                None => {
                    groups.push(Group {
                        station: &thread.station,
                        channels: Vec::new(),
                        places: BTreeMap::new(),
                    });
                    groups.last_mut()?
                }
            };
            group.channels.push(channel);
            group.places.entry(place).or_default().push(number);
        }
    }
    if groups.is_empty() {
        return None;
    }
    let mut rows = Vec::new();
    for group in &groups {
        let mut by_channels: BTreeMap<&[usize], Vec<usize>> = BTreeMap::new();
        for (place, numbers) in &group.places {
            let of_threads = by_channels.entry(numbers).or_default();
            of_threads.push(usize::from(threads[*place].thread));
        }
        for (numbers, of_threads) in by_channels {
            let station = group.station.to_owned();
            let mut row = vec![station, ranges(of_threads), ranges(numbers.to_vec())];
            row.extend(samples(&group.channels));
            rows.push(row);
        }
    }
    let mut heads = vec!["station", "threads", "channels", "levels", "mean", "rms"];
    // Frames of few samples have no spectrum.
    let spectrum = threads.iter().find_map(|thread| {
        let mut channels = thread.statistics.iter();
        let channel = channels.find(|channel| !channel.spectrum.is_empty())?;
        Some(format!("spectrum, {}", scale(channel, thread.sample_rate)))
    });
    heads.extend(spectrum.as_deref());
    for row in &mut rows {
        row.truncate(heads.len());
    }
    Some(table(&heads, rows, &[0, 1, 2, 3, 6], "kinds of channels"))
}

fn are_alike(a: &ChannelStatistics, b: &ChannelStatistics) -> bool {
    let fractions = |counts: &[u64]| {
        let total = counts.iter().sum::<u64>().max(1) as f64;
        let fractions = counts.iter().map(|count| *count as f64 / total);
        fractions.collect::<Vec<f64>>()
    };
    a.components.len() == b.components.len()
        && a.components.iter().zip(&b.components).all(|(a, b)| {
            // Four standard errors of a fraction, twice and once of which are those of mean and rms of noise.
            let samples = |counts: &[u64]| counts.iter().sum::<u64>().max(1) as f64;
            let error = 3.0 / samples(&a.counts).min(samples(&b.counts)).sqrt();
            let [level, mean, rms] = [0, 1, 2].map(|of| ALIKE[of] + [1.0, 2.0, 1.0][of] * error);
            let (x, y) = (fractions(&a.counts), fractions(&b.counts));
            x.len() == y.len()
                && x.iter().zip(&y).all(|(x, y)| (x - y).abs() < level)
                && (a.mean - b.mean).abs() < mean * a.rms.max(b.rms)
                && (a.rms - b.rms).abs() < rms * a.rms.max(b.rms)
        })
}

/// Levels, mean, rms and spectrum of all channels of a group together; real and imaginary parts are alike levels.
fn samples(channels: &[&ChannelStatistics]) -> Vec<String> {
    let components = || channels.iter().flat_map(|channel| &channel.components);
    let mean = |of: &dyn Fn(&ComponentStatistics) -> f64| {
        components().map(of).sum::<f64>() / components().count().max(1) as f64
    };
    let sum = |vectors: Vec<&[f64]>| {
        let mut sum = vec![0.0; vectors.iter().map(|it| it.len()).max().unwrap_or(0)];
        for vector in vectors {
            sum.iter_mut()
                .zip(vector)
                .for_each(|(sum, value)| *sum += value);
        }
        sum
    };
    let counts = components().map(|it| it.counts.iter().map(|count| *count as f64).collect());
    let counts: Vec<Vec<f64>> = counts.collect();
    let counts = sum(counts.iter().map(Vec::as_slice).collect());
    let counts: Vec<u64> = counts.iter().map(|count| *count as u64).collect();
    let spectra = channels.iter().map(|channel| channel.spectrum.as_slice());
    vec![
        levels(&counts),
        format!("{:+.3}", mean(&|it| it.mean)),
        format!("{:.3}", mean(&|it| it.rms)),
        bars(&sum(spectra.collect()), COLUMNS),
    ]
}

/// A table with its first rows; `left`: columns whose cells begin alike.
fn table(heads: &[&str], mut rows: Vec<Vec<String>>, left: &[usize], what: &str) -> String {
    let more = rows.len().saturating_sub(MAX_ROWS);
    rows.truncate(MAX_ROWS);
    rows.insert(0, heads.iter().map(|head| (*head).to_owned()).collect());
    let table = columns(&rows, |column| left.contains(&column));
    match more {
        0 => table,
        _ => format!("{table}\n  and {more} more {what}"),
    }
}

/// Numbers in ascending order, e.g. `0-3,5`.
fn ranges(mut numbers: Vec<usize>) -> String {
    numbers.sort_unstable();
    let runs = numbers.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run.iter().map(usize::to_string).collect(),
    });
    let mut shown = runs.collect::<Vec<String>>();
    if shown.len() > MAX_ROWS {
        shown.truncate(MAX_ROWS);
        shown.push("...".to_owned());
    }
    shown.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_as_ranges() {
        assert_eq!(ranges(vec![1, 2, 3, 5, 8, 9, 0]), "0-3,5,8-9");
        assert_eq!(ranges(vec![4]), "4");
        assert_eq!(ranges(Vec::new()), "");
    }
}
