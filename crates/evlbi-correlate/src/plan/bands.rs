//! Bands of stations without a DiFX job: their frequencies and polarisations, and which of two stations belong together.

use evlbi_fx::correlator::{Band, Input, Product, StationSetup};
use evlbi_stream::channel_table::ChannelTable;
use evlbi_stream::selection::ChannelId;
use evlbi_wire::mark4;

use super::choice::Candidate;
use super::{PlanError, bandwidth};
use crate::options::{CorrelateOptions, SideBand};
use crate::shape::Shape;

/// Frequency and polarisation of a band.
struct Tuning {
    /// LO frequency, in Hz; 0 if unknown.
    zero_hz: f64,
    sideband: SideBand,
    polarisation: char,
}

/// Returns the bands of a station: its channels, thread by thread, tuned as the table or the other options say.
pub(super) fn bands(
    shape: &Shape,
    station: &str,
    options: &CorrelateOptions,
    table: Option<&ChannelTable>,
) -> Result<Vec<Band>, PlanError> {
    let tunings = match table {
        Some(table) => tunings_of_table(shape, station, table)?,
        None => tunings_of_options(shape, station, options)?,
    };
    let (layout, width) = (shape.layout(), bandwidth(shape.layout()));
    let bands = shape.places().zip(tunings);
    let bands = bands.map(|((lane, channel), tuning)| {
        let below = match (layout.complex, tuning.sideband) {
            (true, _) => width / 2.0,
            (false, SideBand::Upper) => 0.0,
            (false, SideBand::Lower) => width,
        };
        Band {
            lane,
            channel,
            zero_hz: tuning.zero_hz,
            edge_hz: tuning.zero_hz - below,
            polarisation: tuning.polarisation,
        }
    });
    Ok(bands.collect())
}

fn tunings_of_table(
    shape: &Shape,
    station: &str,
    table: &ChannelTable,
) -> Result<Vec<Tuning>, PlanError> {
    let tunings = shape.places().map(|(lane, channel)| {
        let (thread, channel) = (shape.threads[lane], shape.samples.channels[channel]);
        let row = table.row(station, thread, channel);
        let row = row.ok_or_else(|| PlanError::NoRow {
            station: station.to_owned(),
            thread,
            channel,
        })?;
        Ok(Tuning {
            zero_hz: row.frequency_mhz * 1e6,
            sideband: row.sideband.into(),
            polarisation: row.polarisation,
        })
    });
    tunings.collect()
}

fn tunings_of_options(
    shape: &Shape,
    station: &str,
    options: &CorrelateOptions,
) -> Result<Vec<Tuning>, PlanError> {
    let count = shape.places().len();
    let polarisations = options.polarisations.of(count);
    let polarisations = polarisations.ok_or_else(|| PlanError::Polarisations {
        polarisations: options.polarisations.to_string(),
        needed: options.polarisations.len(),
        station: station.to_owned(),
        bands: count,
    })?;
    let width = bandwidth(shape.layout());
    let names = (shape.places()).map(|(_, channel)| shape.samples.channels[channel]);
    let sidebands = names.map(|name| match (options.sideband, name) {
        (Some(sideband), _) => sideband,
        (None, ChannelId::Named(channel)) => channel.sideband.into(),
        (None, ChannelId::Number(_)) => SideBand::Upper,
    });
    let sidebands: Vec<SideBand> = sidebands.collect();
    let differ = sidebands.windows(2).any(|two| two[0] != two[1]);
    if differ && options.freq.len() == 1 {
        return Err(PlanError::BothSidebands(station.to_owned()));
    }
    let tunings = polarisations.into_iter().zip(sidebands);
    let tunings = tunings.map(|((polarisation, frequency), sideband)| {
        let zero_hz = match options.freq.as_slice() {
            [] => 0.0,
            // The other bands follow without a gap.
            [one] => one.0 + frequency as f64 * width,
            several => match several.get(frequency) {
                Some(hertz) => hertz.0,
                None => return Err(PlanError::TooFewFrequencies(several.len())),
            },
        };
        Ok(Tuning {
            zero_hz,
            sideband,
            polarisation,
        })
    });
    tunings.collect()
}

/// Returns the names of the channels of Mark 4 that are used; none of other formats.
pub(super) fn names_in(shape: &Shape) -> Vec<mark4::Channel> {
    let names = shape
        .places()
        .map(|(_, channel)| shape.samples.channels[channel]);
    let names = names.map_while(|channel| match channel {
        ChannelId::Named(name) => Some(name),
        ChannelId::Number(_) => None,
    });
    names.collect()
}

/// Returns all pairs of stations in the order 1-2, 1-3, ...; for each, the bands of equal frequency, in equal polarisations or in all.
pub(super) fn products(stations: &[Candidate], cross_hands: bool) -> Vec<Product> {
    let mut products = Vec::new();
    for (a, first) in stations.iter().enumerate() {
        for (b, second) in stations.iter().enumerate().skip(a + 1) {
            for (n, x) in first.setup.bands.iter().enumerate() {
                for (m, y) in second.setup.bands.iter().enumerate() {
                    let alike = x.polarisation == y.polarisation || cross_hands;
                    if same_band(first, n, second, m) && alike {
                        products.push(product((a, n), (b, m)));
                    }
                }
            }
        }
    }
    products
}

/// Returns the product of two stations' bands.
pub(super) fn product(a: (usize, usize), b: (usize, usize)) -> Product {
    let [a, b] = [a, b].map(|(station, band)| Input { station, band });
    Product { a, b }
}

/// Returns whether two bands are of the same frequency. If frequencies are unknown, they are if they have the same position. Of stations that
/// recorded different channels of Mark 4, some of them alike, those are that have the same name, unless the channels of both were selected.
fn same_band(first: &Candidate, n: usize, second: &Candidate, m: usize) -> bool {
    let (x, y) = (&first.setup.bands[n], &second.setup.bands[m]);
    if x.zero_hz != 0.0 || y.zero_hz != 0.0 {
        return (x.edge_hz - y.edge_hz).abs() < 1.0;
    }
    let is_same_place = || place(&first.setup, n) == place(&second.setup, m);
    let (ours, theirs) = (&first.names, &second.names);
    match (ours.get(n), theirs.get(m)) {
        (Some(x), Some(y)) if !(first.is_chosen && second.is_chosen) => {
            let is_shared = || ours.iter().any(|name| theirs.contains(name));
            match ours != theirs && is_shared() {
                true => x == y,
                false => x.sideband == y.sideband && is_same_place(),
            }
        }
        _ => is_same_place(),
    }
}

/// Returns the number of a station's bands before this one in its polarisation.
pub fn place(station: &StationSetup, band: usize) -> usize {
    let is_alike = |other: &&Band| other.polarisation == station.bands[band].polarisation;
    station.bands[..band].iter().filter(is_alike).count()
}

#[cfg(test)]
mod tests {
    use evlbi_fx::codec::Codec;
    use evlbi_fx::delay::Delay;
    use evlbi_fx::layout::Layout;
    use evlbi_wire::time::FrameRate;

    use super::*;

    /// Returns a station with bands of these names, and the polarisations of these letters again and again.
    fn station(names: &str, polarisations: &str) -> Candidate {
        let names: Vec<mark4::Channel> = (names.split(' ')).map(|it| it.parse().unwrap()).collect();
        let band = |(channel, polarisation)| Band {
            lane: 0,
            channel,
            zero_hz: 0.0,
            edge_hz: 0.0,
            polarisation,
        };
        let bands = (0..names.len()).zip(polarisations.chars().cycle());
        Candidate {
            index: 0,
            setup: StationSetup {
                name: String::new(),
                layout: Layout {
                    codec: Codec::vdif(2).unwrap(),
                    complex: false,
                    channels: 8,
                    payload: 8000,
                    replaced: 0,
                    frame_rate: FrameRate::new(100).unwrap(),
                },
                delay: Delay::default(),
                inverted: false,
                bands: bands.map(band).collect(),
            },
            stream: 0,
            frequencies: Vec::new(),
            names,
            is_chosen: false,
        }
    }

    fn pairs(first: Candidate, second: Candidate, cross_hands: bool) -> Vec<(usize, usize)> {
        let products = products(&[first, second], cross_hands).into_iter();
        products.map(|it| (it.a.band, it.b.band)).collect()
    }

    #[test]
    fn channels_of_unknown_frequency_are_matched_by_name_where_stations_recorded_different_ones() {
        let of = |names| station(names, "R");
        let alike = pairs(of("0U 0L 1U"), of("0U 0L 1U"), false);
        assert_eq!(alike, [(0, 0), (1, 1), (2, 2)]);
        let shifted = pairs(of("0U 1U 2U"), of("1U 2U 3U"), false);
        assert_eq!(shifted, [(1, 0), (2, 1)]);
        // Converters of other racks have other numbers.
        assert_eq!(pairs(of("0U 1U"), of("8U 9U"), false), [(0, 0), (1, 1)]);
        assert_eq!(pairs(of("0U 1U"), of("8U 9L"), false), [(0, 0)]);
        // The user chose the channels of one, or the order of both.
        let chosen = |names| Candidate {
            is_chosen: true,
            ..of(names)
        };
        assert_eq!(pairs(of("0U 1U"), chosen("1U"), false), [(1, 0)]);
        let both = pairs(chosen("0U 1U"), chosen("1U 0U"), false);
        assert_eq!(both, [(0, 0), (1, 1)]);
        let of = || station("0U 1U 2U 3U", "RL");
        let all = pairs(of(), of(), true);
        assert_eq!(all.len(), 8);
        assert!(all.contains(&(0, 1)) && !all.contains(&(0, 2)));
    }
}
