//! Fringes off the model, and the delays that put them into it.

use super::Correlation;
use super::job::MIN_BLOCKS;
use super::options::DelayTerms;
use super::result::BaselineResult;

/// Factor by which a wider window of rates is wider.
const WIDER: f64 = 16.0;

/// Baselines with a fringe so far off the model that amplitudes are low, and what a user can try.
#[derive(Clone, Debug, PartialEq)]
pub struct OffModel {
    /// The baselines, as `Ef-Jb`.
    pub baselines: Vec<String>,
    /// Delays of the stations, in order of the inputs, that replace those of the options; `None` if the sky frequency is unknown, for
    /// streams, and if no baseline of the first station has a fringe.
    pub delays: Option<Vec<DelayTerms>>,
    /// Whether the sky frequency is known, without which a fringe rate is not that of a delay.
    pub knows_frequency: bool,
    /// Half width of the rates that were searched, in Hz.
    pub rate_hz: f64,
    /// Whether these are all that the dumps resolve: a rate beyond them appears as another one within them.
    pub is_all: bool,
    /// Half width of a wider search, in Hz; `None` if there are too many channels for one.
    pub wider_hz: Option<f64>,
}

impl OffModel {
    /// Returns the baselines off the model, of which rates up to `rate_hz` were searched; `None` if there are none.
    pub(super) fn of(
        found: &Correlation,
        baselines: &[BaselineResult],
        rate_hz: f64,
    ) -> Option<OffModel> {
        let off = baselines.iter().filter(|baseline| baseline.is_off_model());
        let names: Vec<String> = off.map(|baseline| baseline.stations.join("-")).collect();
        if names.is_empty() {
            return None;
        }
        let max_hz = 0.5 / (MIN_BLOCKS as f64 * found.setup.block_seconds());
        let wider_hz = (WIDER * rate_hz).min(max_hz);
        Some(OffModel {
            baselines: names,
            delays: delays(found, baselines),
            knows_frequency: baselines.iter().all(|baseline| baseline.rate.is_some()),
            rate_hz,
            is_all: rate_hz > 0.0 && rate_hz * found.series.dump_seconds > 0.499,
            wider_hz: Some(rounded_down(wider_hz)).filter(|wider| *wider > 1.5 * rate_hz),
        })
    }
}

/// Returns the delays of the stations with what was found on the baselines of the first.
fn delays(found: &Correlation, baselines: &[BaselineResult]) -> Option<Vec<DelayTerms>> {
    let setup = &found.setup;
    let (second, given) = found.given.as_ref()?;
    // Fringes are those of the middle, and delays count from that second.
    let parts = (found.correlated.start + found.correlated.end) as f64 / 2.0;
    let parts = setup.first_part(0) as f64 + parts;
    let middle = (setup.epoch() - second) as f64 + parts / setup.part_rate() as f64;
    let mut delays = given.clone();
    delays.resize(setup.stations().len(), DelayTerms(Vec::new()));
    let mut has_any = false;
    for baseline in baselines.iter().filter(|baseline| baseline.has_fringe()) {
        let [0, station] = baseline.pair else {
            continue;
        };
        let slope = baseline.slope?;
        let DelayTerms(terms) = &mut delays[station];
        terms.resize(terms.len().max(2), 0.0);
        terms[0] += baseline.delay_s - slope * middle;
        terms[1] += slope;
        has_any = true;
    }
    has_any.then_some(delays)
}

/// Returns the two leading digits of a positive number.
fn rounded_down(number: f64) -> f64 {
    let exponent = number.log10().floor() as i32 - 1;
    let digits = (number / 10f64.powi(exponent)).floor();
    let rounded = format!("{digits}e{exponent}").parse();
    rounded.unwrap_or(number)
}
