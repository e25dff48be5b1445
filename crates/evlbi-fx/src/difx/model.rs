//! `.im`: delays and baselines of a job, as polynomials.

use super::moment;
use super::text::{DifxError, Line, Lines};
use crate::delay::{Delay, Moment, Piece, Polynomial};

/// Model of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Names of the stations.
    pub telescopes: Vec<String>,
    scans: Vec<Scan>,
}

/// Model of a scan.
#[derive(Clone, Debug, PartialEq)]
struct Scan {
    /// Delay of each station in seconds, piece by piece; late is positive.
    delays: Vec<Vec<Piece>>,
    /// Baseline coordinates u, v and w of each station in metres, piece by piece.
    uvw: Vec<Vec<[Polynomial; 3]>>,
    seconds: f64,
}

impl Model {
    /// Parses the text of an `.im`; of each scan it uses the pointing centre.
    ///
    /// # Errors
    /// Returns a [`DifxError`] with the line.
    pub fn parse(text: &str) -> Result<Model, DifxError> {
        let lines = &mut Lines::new(text);
        let seconds: f64 = lines.number("INTERVAL (SECS)")?;
        let telescopes = lines.table("NUM TELESCOPES", |lines, number| {
            let line = lines.seek(&format!("TELESCOPE {number} NAME"))?;
            Ok(line.value.to_owned())
        })?;
        let scans = lines.table("NUM SCANS", |lines, number| {
            scan(lines, number, telescopes.len(), seconds)
        })?;
        Ok(Model { telescopes, scans })
    }

    /// Returns the delay of a station over all scans.
    pub fn delay(&self, telescope: usize) -> Delay {
        let pieces = self
            .scans
            .iter()
            .filter_map(|scan| scan.delays.get(telescope));
        Delay::pieces(pieces.flatten().cloned().collect())
    }

    /// Returns u, v and w of a station at a time, in metres.
    pub fn uvw(&self, telescope: usize, moment: Moment) -> Option<[f64; 3]> {
        self.scans.iter().find_map(|scan| {
            let pieces = scan.uvw.get(telescope)?;
            let piece = pieces.iter().find(|piece| {
                let into = moment.since(piece[0].start);
                (0.0..=scan.seconds).contains(&into)
            })?;
            Some(piece.each_ref().map(|polynomial| polynomial.value(moment)))
        })
    }
}

fn scan(
    lines: &mut Lines<'_>,
    number: usize,
    stations: usize,
    seconds: f64,
) -> Result<Scan, DifxError> {
    let pieces = lines.count(&format!("SCAN {number} NUM POLY"))?;
    let mut scan = Scan {
        delays: vec![Vec::new(); stations],
        uvw: vec![Vec::new(); stations],
        seconds,
    };
    for piece in 0..pieces {
        let mjd = lines.number(&format!("SCAN {number} POLY {piece} MJD"))?;
        let second = lines.number(&format!("SCAN {number} POLY {piece} SEC"))?;
        let start = moment(mjd, second);
        for station in 0..stations {
            let mut polynomial = |what: &str, scale: f64| {
                let line = lines.seek(&format!("SRC 0 ANT {station} {what}"))?;
                Ok::<_, DifxError>(Polynomial {
                    start,
                    coefficients: coefficients(&line, scale)?,
                })
            };
            // Convert early to late.
            scan.delays[station].push(Piece {
                polynomial: polynomial("DELAY (us)", -1e-6)?,
                seconds,
            });
            scan.uvw[station].push([
                polynomial("U (m)", 1.0)?,
                polynomial("V (m)", 1.0)?,
                polynomial("W (m)", 1.0)?,
            ]);
        }
    }
    Ok(scan)
}

fn coefficients(line: &Line<'_>, scale: f64) -> Result<Vec<f64>, DifxError> {
    let numbers = line.value.split_whitespace();
    numbers
        .map(|number| number.parse::<f64>().map(|number| number * scale))
        .collect::<Result<Vec<f64>, _>>()
        .ok()
        .filter(|numbers| !numbers.is_empty())
        .ok_or_else(|| line.wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: &str = "\
INTERVAL (SECS):    120
NUM TELESCOPES:     2
TELESCOPE 0 NAME:   EF
TELESCOPE 1 NAME:   JB
NUM SCANS:          1
SCAN 0 POINTING SRC:3C84
SCAN 0 NUM POLY:    2
SCAN 0 POLY 0 MJD:  60000
SCAN 0 POLY 0 SEC:  86280
SRC 0 ANT 0 DELAY (us):  1.0e+03\t 2.0
SRC 0 ANT 0 U (m):       1.0\t 0.5
SRC 0 ANT 0 V (m):       2.0
SRC 0 ANT 0 W (m):       3.0
SRC 0 ANT 1 DELAY (us):  -1.0
SRC 0 ANT 1 U (m):       0
SRC 0 ANT 1 V (m):       0
SRC 0 ANT 1 W (m):       0
SRC 1 ANT 0 DELAY (us):  7.0
SCAN 0 POLY 1 MJD:  60001
SCAN 0 POLY 1 SEC:  0
SRC 0 ANT 0 DELAY (us):  1240.0
SRC 0 ANT 0 U (m):       61.0
SRC 0 ANT 0 V (m):       2.0
SRC 0 ANT 0 W (m):       3.0
SRC 0 ANT 1 DELAY (us):  -1.0
SRC 0 ANT 1 U (m):       0
SRC 0 ANT 1 V (m):       0
SRC 0 ANT 1 W (m):       0
";

    #[test]
    fn delays_and_baselines_are_read() {
        let model = Model::parse(MODEL).unwrap();
        assert_eq!(model.telescopes, ["EF", "JB"]);
        let delay = model.delay(0);
        let (late, rate) = delay.about(moment(60_000, 86_290.0)).unwrap();
        assert!((late + 1.02e-3).abs() < 1e-12 && (rate + 2e-6).abs() < 1e-15);
        let (late, _) = delay.about(moment(60_001, 30.0)).unwrap();
        assert!((late + 1.24e-3).abs() < 1e-12);
        assert!(delay.about(moment(60_001, 121.0)).is_err());
        assert_eq!(
            model.uvw(0, moment(60_000, 86_290.0)),
            Some([6.0, 2.0, 3.0])
        );
        assert_eq!(model.uvw(0, moment(60_002, 0.0)), None);
        assert_eq!(model.uvw(7, moment(60_001, 0.0)), None);
    }

    #[test]
    fn errors_name_the_line() {
        let error = Model::parse(&MODEL.replace("61.0", "sixty")).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("line 22, `SRC 0 ANT 0 U (m)`"),
            "{error}"
        );
        for cut in (0..MODEL.len()).step_by(5) {
            let _ = Model::parse(&MODEL[..cut]);
        }
    }
}
