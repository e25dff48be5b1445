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
        RecordingError::NoRate(_) => format!("{error}; give --sample-rate"),
        RecordingError::OtherGaps { .. } => {
            format!("{error}; remove it, or --trust headers leaves it out")
        }
        _ => return None,
    })
}

fn of_format(error: &FormatError) -> Option<String> {
    Some(match error {
        FormatError::NoRate => format!("{error}; give --sample-rate"),
        _ => return None,
    })
}

fn of_visibilities(error: &VisibilityError) -> Option<String> {
    Some(match error {
        VisibilityError::AlikeBands { .. } => {
            format!("{error}; give --polarisations, as RL, or other frequencies")
        }
        _ => return None,
    })
}

fn of_fringe(error: &FringeError) -> Option<String> {
    Some(match error {
        FringeError::NoDirectory(_) => {
            format!(
                "{error}; give one that `evlbi correlate --out` wrote, or two recordings or more"
            )
        }
        _ => return None,
    })
}

fn of_window(error: &WindowError) -> Option<String> {
    match error {
        WindowError::Delay { most_s, asked_s } => Some(format!(
            "delays up to {} can be told apart with these channels, and --delay-window asks for {}; take more --channels",
            show_seconds(*most_s),
            show_seconds(*asked_s)
        )),
        WindowError::Rate { most_hz, asked_hz } => Some(format!(
            "rates up to {most_hz:.3} Hz can be told apart here, and --rate-window asks for {asked_hz} Hz; correlate with fewer --channels and shorter --integration"
        )),
        _ => None,
    }
}

fn of_plan(error: &PlanError) -> Option<String> {
    match error {
        PlanError::TooManyDelays { delays, recordings } => Some(format!(
            "--delay was given {delays} times for {recordings} recordings"
        )),
        PlanError::NoFrequency => Some(
            "a delay that changes turns the phase by the sky frequency, which --freq says".into(),
        ),
        PlanError::TooFewFrequencies(given) => Some(format!(
            "--freq names {given} frequencies, and there are more"
        )),
        PlanError::UnknownStation { station, stations } => Some(format!(
            "--flag names station {station}, and the stations are {}",
            stations.join(", ")
        )),
        _ => None,
    }
}

fn of_stream(error: &StreamError) -> Option<String> {
    let words = match error {
        StreamError::Flags => {
            "--flag leaves out times of recordings, and a stream has none beforehand"
        }
        StreamError::Visibilities => {
            "--live writes no visibilities; record the streams with `evlbi recv` for that"
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
            Some("with --model give the two recordings of the model's first two stations".into())
        }
        _ => None,
    }
}
