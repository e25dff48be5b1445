//! DiFX files: the `.input` and `.im` of a job, and SWIN visibilities.
//!
//! DiFX's delays grow when a station receives earlier: its delay and its clock are added to the time at the station to get that
//! at the centre of the Earth. [`crate::delay`] uses the opposite sign, so both are negated here. (mpifxcorr adds the clock
//! polynomial to the delay polynomial; jobs whose first integrations lack data for the duration of the delay show that a positive
//! delay is early.)
//!
//! New DiFX files belong here, each tested with one that DiFX wrote.

mod input;
mod model;
pub mod swin;
mod text;

pub use self::input::{Datastream, Frequency, Input, JobBaseline, Output, RecordedBand, Telescope};
pub use self::model::Model;
pub use self::text::DifxError;

use crate::delay::Moment;

/// Modified Julian date of 1970-01-01.
const UNIX_MJD: i64 = 40_587;

/// Converts a modified Julian date and a second of that day.
pub fn moment(mjd: i64, second: f64) -> Moment {
    Moment::at(mjd.saturating_sub(UNIX_MJD).saturating_mul(86_400)).plus(second)
}

/// Returns the modified Julian date and the second of the day.
pub fn mjd(moment: Moment) -> (i64, f64) {
    let whole = moment.fraction.floor();
    let second = moment.second.saturating_add(whole as i64);
    let day = second.div_euclid(86_400);
    let in_day = (second - day * 86_400) as f64 + (moment.fraction - whole);
    (day + UNIX_MJD, in_day)
}
