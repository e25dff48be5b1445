//! How late each station receives: the delay model that the correlator takes out.
//!
//! The delay tau of a station is against a common reference (the centre of the Earth, or any other point): the
//! station records tau later what passed the reference. A positive delay makes a station later. Clock errors are
//! delays too.
//!
//! A delay of milliseconds that changes is not the same at the time when the wave passes the reference as at that when
//! it comes to the station. Models of the geometry ([`Piece`]s) are functions of the former, as DiFX's are; what adds
//! to them (clocks, and delays that a user gives) is a function of the station's own time: `s(t) = x(t - tau(t))`.

/// A moment: whole UTC seconds since 1970 and a part of a second, so that nothing is rounded away.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    /// UTC seconds since 1970.
    pub second: i64,
    /// Seconds on top, any sign and size; exact to below a picosecond if less than an hour.
    pub fraction: f64,
}

impl Moment {
    /// The beginning of a second.
    pub fn at(second: i64) -> Moment {
        Moment {
            second,
            fraction: 0.0,
        }
    }

    /// So many seconds later.
    pub fn plus(self, seconds: f64) -> Moment {
        Moment {
            fraction: self.fraction + seconds,
            ..self
        }
    }

    /// Seconds from `earlier` to this.
    pub fn since(self, earlier: Moment) -> f64 {
        self.second.saturating_sub(earlier.second) as f64 + (self.fraction - earlier.fraction)
    }
}

/// Steps in which a delay at the station's own time is found.
const STEPS: usize = 4;

/// A polynomial in the seconds since a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Polynomial {
    /// Where its variable is zero.
    pub start: Moment,
    /// Seconds, seconds per second, and so on. None stand for zero.
    pub coefficients: Vec<f64>,
}

impl Polynomial {
    /// Its value.
    pub fn value(&self, moment: Moment) -> f64 {
        let t = moment.since(self.start);
        let terms = self.coefficients.iter().rev();
        terms.fold(0.0, |sum, coefficient| sum * t + coefficient)
    }

    /// Its derivative, per second.
    pub fn slope(&self, moment: Moment) -> f64 {
        let t = moment.since(self.start);
        let terms = self.coefficients.iter().enumerate().skip(1).rev();
        terms.fold(0.0, |sum, (power, coefficient)| {
            sum * t + power as f64 * coefficient
        })
    }
}

/// A polynomial that is good for a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The delay in seconds. Its start is the start of the time.
    pub polynomial: Polynomial,
    /// Length of the time in seconds.
    pub seconds: f64,
}

/// The delay of one station.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delay {
    /// In the order of their times; none where the geometry is taken to be without delay.
    pieces: Vec<Piece>,
    /// What adds to it, by the station's own time: clock offsets and rates.
    offsets: Vec<Polynomial>,
}

/// The model says nothing about the time.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "the delay model goes from UTC second {from} on for {seconds:.0} s and says nothing about second {asked}"
)]
pub struct OutsideModel {
    from: i64,
    seconds: f64,
    asked: i64,
}

impl Delay {
    /// A model of polynomials that follow each other.
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

    /// The delay at a moment of the reference, as a polynomial about that moment of first order: seconds, and
    /// seconds per second.
    ///
    /// # Errors
    /// [`OutsideModel`] when no piece is good for the moment. The ends count.
    pub fn about(&self, moment: Moment) -> Result<(f64, f64), OutsideModel> {
        let mut geometry = (0.0, 0.0);
        if !self.pieces.is_empty() {
            let polynomial = &piece_at(&self.pieces, moment)?.polynomial;
            geometry = (polynomial.value(moment), polynomial.slope(moment));
        }
        let (mut delay, mut rate) = geometry;
        // The station's time is later by the delay that is looked for. Rates are small, so each step is nearer by
        // six digits.
        for _ in 0..STEPS {
            let there = moment.plus(delay);
            let offset: f64 = self.offsets.iter().map(|offset| offset.value(there)).sum();
            let slope: f64 = self.offsets.iter().map(|offset| offset.slope(there)).sum();
            delay = geometry.0 + offset;
            // With every second of the reference, 1 + rate seconds of the station go by.
            rate = (geometry.1 + slope) / (1.0 - slope);
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
                    .contains("from UTC second 1000 on for 240 s"),
                "{error}"
            );
        }
        assert_eq!(Delay::default().about(Moment::at(5)), Ok((0.0, 0.0)));
    }

    /// `s(t) = x(t - tau(t))`: what passed at t' comes when t - tau(t) = t'.
    #[test]
    fn what_is_added_goes_by_the_time_at_the_station() {
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
