//! Chooses the stations that can be correlated with each other.

use std::collections::HashSet;

use evlbi_fx::correlator::{Band, Product, SetupError, StationSetup};
use evlbi_wire::mark4;
use evlbi_wire::units::show_hertz;

use super::{Placed, PlanError, bandwidth};

/// A station that may be correlated.
pub struct Candidate {
    /// Index of its shape.
    pub index: usize,
    pub setup: StationSetup,
    /// Index of its recording in a DiFX job.
    pub stream: usize,
    /// Frequencies of its bands in the job.
    pub frequencies: Vec<usize>,
    /// Names of its channels, where bands of equal names belong together.
    pub names: Vec<mark4::Channel>,
    /// Whether the user selected the channels.
    pub is_chosen: bool,
}

/// Stations that can be correlated with each other, and the others.
#[derive(Default)]
pub struct Candidates {
    pub found: Vec<Candidate>,
    pub left_out: Vec<(usize, PlanError)>,
}

impl Candidates {
    /// Leaves out stations with another bandwidth than most, and then those that share no product with another. Returns the products.
    ///
    /// # Errors
    /// Returns the reason why a station is left out if fewer than two remain.
    pub fn choose(
        &mut self,
        shapes: &[Placed<'_>],
        products: impl Fn(&[Candidate]) -> Vec<Product>,
    ) -> Result<Vec<Product>, PlanError> {
        let width = |candidate: &Candidate| bandwidth(&candidate.setup.layout) as i64;
        let widths: Vec<i64> = self.found.iter().map(width).collect();
        let count = |wanted: &i64| widths.iter().filter(|width| *width == wanted).count();
        // Of equally many, those of the first.
        let usual = (0..widths.len())
            .rev()
            .max_by_key(|index| count(&widths[*index]));
        if let Some(usual) = usual {
            let (a, a_hz) = (self.found[usual].setup.name.clone(), widths[usual]);
            self.keep(shapes, |_, candidate| match width(candidate) {
                b_hz if b_hz == a_hz => None,
                b_hz => Some(PlanError::Setup(SetupError::Bandwidth {
                    a: a.clone(),
                    a_hz,
                    b: candidate.setup.name.clone(),
                    b_hz,
                })),
            });
        }
        self.check_enough()?;
        let all = products(&self.found);
        if all.is_empty() {
            return Ok(all);
        }
        let stations = all.iter().flat_map(|it| [it.a.station, it.b.station]);
        let stations: HashSet<usize> = stations.collect();
        self.keep(shapes, |index, candidate| {
            (!stations.contains(&index)).then(|| PlanError::NoCommonBand {
                station: candidate.setup.name.clone(),
                bands: candidate.setup.bands.iter().map(shown).collect(),
            })
        });
        Ok(products(&self.found))
    }

    /// Keeps the stations for which `refuse` returns no reason.
    fn keep(
        &mut self,
        shapes: &[Placed<'_>],
        refuse: impl Fn(usize, &Candidate) -> Option<PlanError>,
    ) {
        let found = std::mem::take(&mut self.found);
        for (index, candidate) in found.into_iter().enumerate() {
            match refuse(index, &candidate) {
                Some(error) => self.left_out.push((shapes[candidate.index].0, error)),
                None => self.found.push(candidate),
            }
        }
    }

    fn check_enough(&mut self) -> Result<(), PlanError> {
        match self.found.len() < 2 && !self.left_out.is_empty() {
            true => Err(self.left_out.remove(0).1),
            false => Ok(()),
        }
    }
}

/// Names a band by its sky frequency, if known, and its polarisation.
fn shown(band: &Band) -> String {
    match band.zero_hz {
        0.0 => band.polarisation.to_string(),
        _ => format!("{} at {}", band.polarisation, show_hertz(band.edge_hz)),
    }
}
