//! Errors of evlbi-correlate.

use std::error::Error;

use evlbi_correlate::fringe::FringeError;
use evlbi_correlate::loss_curve::LossCurveError;
use evlbi_correlate::{
    FormatError, PlanError, RecordingError, StreamError, VisibilityError, WindowError,
};
use evlbi_wire::units::show_seconds;

/// Returns the text that replaces an error's own; `None` keeps it.
pub fn of(error: &(dyn Error + 'static)) -> Option<String> {
    (error.downcast_ref().and_then(of_window))
        .or_else(|| error.downcast_ref().and_then(of_plan))
        .or_else(|| error.downcast_ref().and_then(of_stream))
        .or_else(|| error.downcast_ref().and_then(of_loss_curve))
        .or_else(|| error.downcast_ref().and_then(of_recording))
        .or_else(|| error.downcast_ref().and_then(of_format))
        .or_else(|| error.downcast_ref().and_then(of_visibilities))
        .or_else(|| error.downcast_ref().and_then(of_fringe))
}

fn of_recording(error: &RecordingError) -> Option<String> {
    Some(match error {
        RecordingError::NoRate(_) => format!("{error}: give --sample-rate"),
        RecordingError::OtherGaps { .. } => {
            format!("{error}; remove it, or ignore it with --trust headers")
        }
        _ => return None,
    })
}

fn of_format(error: &FormatError) -> Option<String> {
    Some(match error {
        FormatError::NoRate => format!("{error}: give --sample-rate"),
        _ => return None,
    })
}

fn of_visibilities(error: &VisibilityError) -> Option<String> {
    Some(match error {
        VisibilityError::NoDescription { .. } => format!(
            "{error}: give the directory that `evlbi correlate --out` wrote, or JOB.difx with JOB.input next to it"
        ),
        VisibilityError::SeveralCentres { .. } => format!("{error}: give one of its files"),
        VisibilityError::AlikeBands { .. } => {
            format!("{error}: give --polarisations, e.g. RL or 8X8Y, or other frequencies")
        }
        _ => return None,
    })
}

fn of_fringe(error: &FringeError) -> Option<String> {
    Some(match error {
        FringeError::NoDirectory(_) => {
            format!(
                "{error}: give what `evlbi correlate --out` or DiFX wrote, or two or more recordings"
            )
        }
        _ => return None,
    })
}

fn of_window(error: &WindowError) -> Option<String> {
    match error {
        WindowError::Delay { max_s, asked_s } => Some(format!(
            "--delay-window {} is too wide: the channels resolve {}; use more --channels",
            show_seconds(*asked_s),
            show_seconds(*max_s)
        )),
        WindowError::Rate { max_hz, asked_hz } => Some(format!(
            "--rate-window {asked_hz} Hz is too wide: the resolution allows {max_hz:.3} Hz; use fewer --channels and a shorter --integration"
        )),
        _ => None,
    }
}

fn of_plan(error: &PlanError) -> Option<String> {
    match error {
        PlanError::TooManyDelays { delays, recordings } => Some(format!(
            "--delay was given {delays} times for {recordings} recordings: give it at most once per recording"
        )),
        PlanError::NoFrequency => Some(
            "a --delay that changes with time needs the sky frequency: give --freq, e.g. 4.9GHz"
                .into(),
        ),
        PlanError::TooFewFrequencies(given) => Some(format!(
            "--freq names {given} frequencies for more bands: give one, or one per band"
        )),
        PlanError::Polarisations { .. } => Some(format!(
            "{error}: give --polarisations with smaller blocks, e.g. 4X4Y for 8 bands"
        )),
        PlanError::UnknownStation { station, stations } => Some(format!(
            "unknown station {station} in --flag: the stations are {}",
            stations.join(", ")
        )),
        _ => None,
    }
}

fn of_stream(error: &StreamError) -> Option<String> {
    let words = match error {
        StreamError::Flags => {
            "--flag cannot be used with --live: the times of streams are not known beforehand"
        }
        StreamError::Visibilities => {
            "--live cannot write visibilities: record the streams with `evlbi recv` and correlate the recordings"
        }
        _ => return None,
    };
    Some(words.into())
}

fn of_loss_curve(error: &LossCurveError) -> Option<String> {
    match error {
        LossCurveError::NoStation {
            station,
            recordings,
        } => Some(format!(
            "--station {station} is not among the {recordings} recordings"
        )),
        LossCurveError::OtherThanModel => {
            Some("--model: give the two recordings of the model's first two stations".into())
        }
        _ => None,
    }
}
