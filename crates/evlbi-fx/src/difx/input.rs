//! `.input`: frequencies, stations, bands and baselines of a job.

use super::moment;
use super::text::{DifxError, Lines};
use crate::delay::{Moment, Polynomial};

/// Job of DiFX.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Start of the job.
    pub start: Moment,
    /// Length of an integration, in seconds.
    pub integration: f64,
    /// Frequency table.
    pub frequencies: Vec<Frequency>,
    /// Stations.
    pub telescopes: Vec<Telescope>,
    /// Recordings of the stations.
    pub datastreams: Vec<Datastream>,
    /// Baselines to correlate.
    pub baselines: Vec<JobBaseline>,
}

/// Entry of the frequency table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frequency {
    /// Sky frequency of the zero frequency of the samples, Hz.
    pub zero_hz: f64,
    /// Width of the band, Hz.
    pub bandwidth_hz: f64,
    /// Whether it is a lower sideband.
    pub is_lower: bool,
    /// Number of channels of the correlator.
    pub channels: usize,
    /// Number of channels that are averaged to one in its output.
    pub averaged: usize,
}

impl Frequency {
    /// Returns the lower band edge on the sky, Hz.
    pub fn edge_hz(&self) -> f64 {
        match self.is_lower {
            true => self.zero_hz - self.bandwidth_hz,
            false => self.zero_hz,
        }
    }
}

/// Station.
#[derive(Clone, Debug, PartialEq)]
pub struct Telescope {
    /// Name of the station.
    pub name: String,
    /// Contribution of the clock to the delay: positive is late, as in [`crate::delay`].
    pub clock: Polynomial,
}

/// Recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Datastream {
    /// Index of its station.
    pub telescope: usize,
    /// Bits per sample.
    pub bits: u8,
    /// Whether samples are complex.
    pub is_complex: bool,
    /// Bands in the order of the recording.
    pub bands: Vec<RecordedBand>,
}

/// Band of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedBand {
    /// Index in the frequency table.
    pub frequency: usize,
    /// R, L, X or Y.
    pub polarisation: char,
}

/// Pair of recordings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobBaseline {
    /// Index of the first recording.
    pub a: usize,
    /// Index of the second.
    pub b: usize,
    /// Bands of the first and of the second recording that are multiplied.
    pub products: Vec<(usize, usize)>,
}

impl Input {
    /// Parses the text of an `.input`.
    ///
    /// # Errors
    /// Returns a [`DifxError`] with the line.
    pub fn parse(text: &str) -> Result<Input, DifxError> {
        let lines = &mut Lines::new(text);
        let mjd = lines.number("START MJD")?;
        let start = moment(mjd, lines.number("START SECONDS")?);
        let integration = lines.number("INT TIME (SEC)")?;
        Ok(Input {
            start,
            integration,
            frequencies: frequencies(lines)?,
            telescopes: telescopes(lines)?,
            datastreams: datastreams(lines)?,
            baselines: baselines(lines)?,
        })
    }
}

/// The part of a job that describes its visibilities.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Length of an integration in seconds.
    pub integration: f64,
    /// The frequency table, to which records refer.
    pub frequencies: Vec<Frequency>,
    /// Names of the stations, in the order of their numbers in records.
    pub stations: Vec<String>,
}

impl Output {
    /// Reads the text of an `.input`, also of a job that [`Input`] does not support.
    ///
    /// # Errors
    /// [`DifxError`] with the line.
    pub fn parse(text: &str) -> Result<Output, DifxError> {
        let lines = &mut Lines::new(text);
        let integration = lines.number("INT TIME (SEC)")?;
        let frequencies = frequencies(lines)?;
        let stations = telescopes(lines)?.into_iter();
        Ok(Output {
            integration,
            frequencies,
            stations: stations.map(|station| station.name).collect(),
        })
    }
}

fn frequencies(lines: &mut Lines<'_>) -> Result<Vec<Frequency>, DifxError> {
    lines.table("FREQ ENTRIES", |lines, number| {
        let megahertz: f64 = lines.number(&format!("FREQ (MHZ) {number}"))?;
        let width: f64 = lines.number(&format!("BW (MHZ) {number}"))?;
        let sideband = lines.seek(&format!("SIDEBAND {number}"))?;
        let is_lower = match sideband.value {
            "U" => false,
            "L" => true,
            _ => return Err(sideband.wrong()),
        };
        Ok(Frequency {
            zero_hz: megahertz * 1e6,
            bandwidth_hz: width * 1e6,
            is_lower,
            channels: lines.count(&format!("NUM CHANNELS {number}"))?,
            averaged: lines.count(&format!("CHANS TO AVG {number}"))?.max(1),
        })
    })
}

fn telescopes(lines: &mut Lines<'_>) -> Result<Vec<Telescope>, DifxError> {
    lines.table("TELESCOPE ENTRIES", |lines, number| {
        let name = lines.seek(&format!("TELESCOPE NAME {number}"))?.value;
        let reference: f64 = lines.number(&format!("CLOCK REF MJD {number}"))?;
        let order = lines.count(&format!("CLOCK POLY ORDER {number}"))?;
        let term = |order: usize| -> Result<f64, DifxError> {
            let term: f64 = lines.number(&format!("CLOCK COEFF {number}/{order}"))?;
            Ok(-term * 1e-6)
        };
        let day = reference.floor();
        Ok(Telescope {
            name: name.to_owned(),
            clock: Polynomial {
                start: moment(day as i64, (reference - day) * 86_400.0),
                coefficients: (0..=order).map(term).collect::<Result<_, _>>()?,
            },
        })
    })
}

fn datastreams(lines: &mut Lines<'_>) -> Result<Vec<Datastream>, DifxError> {
    lines.table("DATASTREAM ENTRIES", |lines, _| {
        let telescope = lines.count("TELESCOPE INDEX")?;
        let bits = lines.number("QUANTISATION BITS")?;
        let sampling = lines.seek("DATA SAMPLING")?.value;
        let recorded = lines.count("NUM RECORDED FREQS")?;
        let mut frequencies = Vec::new();
        let mut bands = 0;
        for number in 0..recorded {
            frequencies.push(lines.count(&format!("REC FREQ INDEX {number}"))?);
            for (what, unit) in [("CLK", "us"), ("FREQ", "Hz")] {
                let line = lines.seek(&format!("{what} OFFSET {number} ({unit})"))?;
                if line.parse::<f64>()? != 0.0 {
                    return Err(DifxError::Unsupported {
                        line: line.number,
                        what: "a clock or frequency offset of one frequency",
                    });
                }
            }
            bands += lines.count(&format!("NUM REC POLS {number}"))?;
        }
        let band = |number: usize| {
            let polarisation = lines.seek(&format!("REC BAND {number} POL"))?;
            let index = lines.seek(&format!("REC BAND {number} INDEX"))?;
            Ok(RecordedBand {
                polarisation: polarisation.parse()?,
                frequency: *frequencies
                    .get(index.parse::<usize>()?)
                    .ok_or_else(|| index.wrong())?,
            })
        };
        Ok(Datastream {
            telescope,
            bits,
            is_complex: sampling.starts_with("COMPLEX"),
            bands: (0..bands).map(band).collect::<Result<_, DifxError>>()?,
        })
    })
}

fn baselines(lines: &mut Lines<'_>) -> Result<Vec<JobBaseline>, DifxError> {
    lines.table("BASELINE ENTRIES", |lines, number| {
        let a = lines.count(&format!("D/STREAM A INDEX {number}"))?;
        let b = lines.count(&format!("D/STREAM B INDEX {number}"))?;
        let products = lines.table(&format!("NUM FREQS {number}"), |lines, frequency| {
            let key = format!("POL PRODUCTS {number}/{frequency}");
            lines.table(&key, |lines, pair| {
                let a = lines.count(&format!("D/STREAM A BAND {pair}"))?;
                let b = lines.count(&format!("D/STREAM B BAND {pair}"))?;
                Ok((a, b))
            })
        })?;
        let products = products.concat();
        Ok(JobBaseline { a, b, products })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two stations, two frequencies of which one is a lower sideband, two polarisations.
    const JOB: &str = "\
# COMMON SETTINGS ##!
EXECUTE TIME (SEC): 10
START MJD:          60000
START SECONDS:      100
INT TIME (SEC):     0.5
# FREQ TABLE #######!
FREQ ENTRIES:       2
FREQ (MHZ) 0:       4900.5
BW (MHZ) 0:         16.0
SIDEBAND 0:         U
NUM CHANNELS 0:     128
CHANS TO AVG 0:     2
FREQ (MHZ) 1:       4900.5
BW (MHZ) 1:         16.0
SIDEBAND 1:         L
NUM CHANNELS 1:     128
CHANS TO AVG 1:     2
TELESCOPE ENTRIES:  2
TELESCOPE NAME 0:   EF
CLOCK REF MJD 0:    60000.25
CLOCK POLY ORDER 0: 1
@ ***** Clock poly coeff N: has units microsec / sec^N ***** @
CLOCK COEFF 0/0:    1.5
CLOCK COEFF 0/1:    -2e-6
TELESCOPE NAME 1:   JB
CLOCK REF MJD 1:    60000.0
CLOCK POLY ORDER 1: 0
CLOCK COEFF 1/0:    0
DATASTREAM ENTRIES: 1
TELESCOPE INDEX:    1
DATA FORMAT:        VDIF
QUANTISATION BITS:  2
DATA SAMPLING:      REAL
NUM RECORDED FREQS: 2
REC FREQ INDEX 0:   1
CLK OFFSET 0 (us):  0.0
FREQ OFFSET 0 (Hz): 0.0
NUM REC POLS 0:     2
REC FREQ INDEX 1:   0
CLK OFFSET 1 (us):  0.0
FREQ OFFSET 1 (Hz): 0.0
NUM REC POLS 1:     1
REC BAND 0 POL:     R
REC BAND 0 INDEX:   0
REC BAND 1 POL:     L
REC BAND 1 INDEX:   0
REC BAND 2 POL:     R
REC BAND 2 INDEX:   1
BASELINE ENTRIES:   1
D/STREAM A INDEX 0: 0
D/STREAM B INDEX 0: 1
NUM FREQS 0:        1
POL PRODUCTS 0/0:   2
D/STREAM A BAND 0:  0
D/STREAM B BAND 0:  0
D/STREAM A BAND 1:  1
D/STREAM B BAND 1:  1
";

    #[test]
    fn a_job_is_read() {
        let job = Input::parse(JOB).unwrap();
        assert_eq!(job.start, moment(60_000, 100.0));
        assert_eq!(job.integration, 0.5);
        assert!(job.frequencies[1].is_lower && !job.frequencies[0].is_lower);
        assert_eq!(job.frequencies[0].zero_hz, 4.9005e9);
        // Positive clocks of DiFX are early.
        let clock = &job.telescopes[0].clock;
        assert_eq!(clock.coefficients, [-1.5e-6, 2e-12]);
        assert_eq!(clock.start, moment(60_000, 21_600.0));
        let bands: Vec<(usize, char)> = job.datastreams[0]
            .bands
            .iter()
            .map(|band| (band.frequency, band.polarisation))
            .collect();
        assert_eq!(bands, [(1, 'R'), (1, 'L'), (0, 'R')]);
        assert_eq!(job.baselines[0].products, [(0, 0), (1, 1)]);
        let output = Output::parse(JOB).unwrap();
        assert_eq!(output.integration, 0.5);
        assert_eq!(output.frequencies, job.frequencies);
        assert_eq!(output.stations, ["EF", "JB"]);
    }

    #[test]
    fn errors_name_the_line() {
        let error =
            Input::parse(&JOB.replace("SIDEBAND 1:         L", "SIDEBAND 1: X")).unwrap_err();
        assert!(
            error.to_string().starts_with("line 15, `SIDEBAND 1`"),
            "{error}"
        );
        let error = Input::parse(&JOB.replace("BASELINE ENTRIES", "BASELINES")).unwrap_err();
        assert!(error.to_string().contains("`BASELINE ENTRIES:`"), "{error}");
        let error = Input::parse(&JOB.replace("CLK OFFSET 1 (us):  0.0", "CLK OFFSET 1 (us): 1"));
        assert!(
            matches!(error, Err(DifxError::Unsupported { line: 40, .. })),
            "{error:?}"
        );
        for cut in (0..JOB.len()).step_by(7) {
            let _ = Input::parse(&JOB[..cut]);
        }
        assert!(Input::parse("").is_err());
    }
}
