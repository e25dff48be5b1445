//! Delay model that the correlator compensates: how late each station receives.
//!
//! The delay tau of a station is relative to a common reference (the centre of the Earth, or any other point): the station
//! records what passed the reference tau later. A positive delay makes a station later. Clock errors are delays, too.
//!
//! A changing delay of milliseconds differs between the time when the wave passes the reference and the time when it arrives at
//! the station. Geometrical models ([`Piece`]s) are functions of the former, like DiFX's. Whatever is added to them (clocks, and
//! delays that a user gives) is a function of the station's own time: `s(t) = x(t - tau(t))`.

/// Point in time: whole UTC seconds since 1970 and a fraction, without rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    /// UTC seconds since 1970.
    pub second: i64,
    /// Additional seconds, of any sign and size; exact to below a picosecond if less than an hour.
    pub fraction: f64,
}

impl Moment {
    /// Returns the start of a second.
    pub fn at(second: i64) -> Moment {
        Moment {
            second,
            fraction: 0.0,
        }
    }

    /// Returns the point `seconds` later.
    pub fn plus(self, seconds: f64) -> Moment {
        Moment {
            fraction: self.fraction + seconds,
            ..self
        }
    }

    /// Returns the seconds from `earlier` to this.
    pub fn since(self, earlier: Moment) -> f64 {
        self.second.saturating_sub(earlier.second) as f64 + (self.fraction - earlier.fraction)
    }
}

/// Number of iterations to find a delay at the station's own time.
const STEPS: usize = 4;

/// Polynomial in the seconds since a point in time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Polynomial {
    /// Zero of its variable.
    pub start: Moment,
    /// Coefficients: seconds, seconds per second, and so on; an empty list is zero.
    pub coefficients: Vec<f64>,
}

impl Polynomial {
    /// Returns its value.
    pub fn value(&self, moment: Moment) -> f64 {
        let t = moment.since(self.start);
        let terms = self.coefficients.iter().rev();
        terms.fold(0.0, |sum, coefficient| sum * t + coefficient)
    }

    /// Returns its derivative, per second.
    pub fn slope(&self, moment: Moment) -> f64 {
        let t = moment.since(self.start);
        let terms = self.coefficients.iter().enumerate().skip(1).rev();
        terms.fold(0.0, |sum, (power, coefficient)| {
            sum * t + power as f64 * coefficient
        })
    }
}

/// Polynomial that is valid for a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Delay in seconds. Its start is the start of the time.
    pub polynomial: Polynomial,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Delay of one station.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delay {
    /// Pieces in order of time; if empty, the geometrical delay is zero.
    pieces: Vec<Piece>,
    /// Added polynomials in the station's own time: clock offsets and rates.
    offsets: Vec<Polynomial>,
}

/// Time outside the delay model.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("the delay model covers {seconds:.0} s from UTC second {from} on, not second {asked}")]
pub struct OutsideModel {
    from: i64,
    seconds: f64,
    asked: i64,
}

impl Delay {
    /// Makes a model of consecutive polynomials.
    pub fn pieces(pieces: Vec<Piece>) -> Delay {
        Delay {
            pieces,
            ..Delay::default()
        }
    }

    /// Adds a polynomial in the station's own time, such as an offset and a rate of the clock.
    pub fn add(&mut self, polynomial: Polynomial) {
        self.offsets.push(polynomial);
    }

    /// Returns the delay at a time of the reference, as a polynomial of first order about that time: seconds, and seconds per
    /// second.
    ///
    /// # Errors
    /// Returns [`OutsideModel`] if no piece covers the time. The ends of a piece belong to it.
    pub fn about(&self, moment: Moment) -> Result<(f64, f64), OutsideModel> {
        let mut geometry = (0.0, 0.0);
        if !self.pieces.is_empty() {
            let polynomial = &piece_at(&self.pieces, moment)?.polynomial;
            geometry = (polynomial.value(moment), polynomial.slope(moment));
        }
        let (mut delay, mut rate) = geometry;
        // The station's time is later by the unknown delay. Rates are small, so each step adds six digits.
        for _ in 0..STEPS {
            let there = moment.plus(delay);
            let offset: f64 = self.offsets.iter().map(|offset| offset.value(there)).sum();
            let slope: f64 = self.offsets.iter().map(|offset| offset.slope(there)).sum();
            let before = std::mem::replace(&mut delay, geometry.0 + offset);
            // Per second of the reference, 1 + rate seconds of the station pass.
            rate = (geometry.1 + slope) / (1.0 - slope);
            if delay == before {
                break;
            }
        }
        Ok((delay, rate))
    }
}

fn piece_at(pieces: &[Piece], moment: Moment) -> Result<&Piece, OutsideModel> {
    let begun = pieces.partition_point(|piece| moment.since(piece.polynomial.start) >= 0.0);
    let piece = &pieces[begun.saturating_sub(1)];
    let into = moment.since(piece.polynomial.start);
    if (0.0..=piece.seconds).contains(&into) {
        return Ok(piece);
    }
    let (first, last) = (&pieces[0], &pieces[pieces.len() - 1]);
    let from = first.polynomial.start;
    Err(OutsideModel {
        from: from.second,
        seconds: last.polynomial.start.since(from) + last.seconds,
        asked: moment.second.saturating_add(moment.fraction.floor() as i64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(start: i64, coefficients: &[f64]) -> Piece {
        Piece {
            polynomial: Polynomial {
                start: Moment::at(start),
                coefficients: coefficients.to_vec(),
            },
            seconds: 120.0,
        }
    }

    #[test]
    fn the_piece_of_the_time_counts_and_offsets_add() {
        let mut delay = Delay::pieces(vec![piece(1000, &[1.0, 0.5]), piece(1120, &[7.0])]);
        delay.add(Polynomial {
            start: Moment::at(0),
            coefficients: vec![0.25],
        });
        let at = |second, fraction| delay.about(Moment { second, fraction });
        assert_eq!(at(1000, 0.0), Ok((1.25, 0.5)));
        assert_eq!(at(1000, 2.0), Ok((2.25, 0.5)));
        assert_eq!(at(1120, 0.0).unwrap().0, 7.25);
        assert!(at(1240, 0.0).is_ok());
        for moment in [(999, 0.999), (1240, 0.001)] {
            let error = at(moment.0, moment.1).unwrap_err();
            assert!(
                error
                    .to_string()
                    .contains("covers 240 s from UTC second 1000 on"),
                "{error}"
            );
        }
        assert_eq!(Delay::default().about(Moment::at(5)), Ok((0.0, 0.0)));
    }

    /// `s(t) = x(t - tau(t))`: what passed at t' arrives when t - tau(t) = t'.
    #[test]
    fn added_delays_use_the_time_at_the_station() {
        let mut delay = Delay::default();
        let tau = Polynomial {
            start: Moment::at(0),
            coefficients: vec![0.02, -1e-6, 1e-9],
        };
        delay.add(tau.clone());
        let passed = Moment::at(1000).plus(0.25);
        let (late, rate) = delay.about(passed).unwrap();
        let came = passed.plus(late);
        assert!((late - tau.value(came)).abs() < 1e-15);
        let (later, _) = delay.about(passed.plus(1e-3)).unwrap();
        assert!(((later - late) / 1e-3 - rate).abs() < 1e-11);
    }

    #[test]
    fn slopes_are_derivatives() {
        let cubic = Polynomial {
            start: Moment::at(10),
            coefficients: vec![3.0, -2.0, 0.5, 0.25],
        };
        let (x, h) = (1.5, 1e-6);
        let at = |x| cubic.value(Moment::at(10).plus(x));
        let numeric = (at(x + h) - at(x - h)) / (2.0 * h);
        assert!((cubic.slope(Moment::at(10).plus(x)) - numeric).abs() < 1e-6);
    }
}
