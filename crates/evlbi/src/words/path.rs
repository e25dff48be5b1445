//! Errors of evlbi-path.

use std::error::Error;

use evlbi_path::ControlError;
use evlbi_path::process::RelayError;

/// Returns the text that replaces an error's own; `None` keeps it.
pub fn of(error: &(dyn Error + 'static)) -> Option<String> {
    (error.downcast_ref().and_then(of_control)).or_else(|| error.downcast_ref().and_then(of_relay))
}

fn of_control(error: &ControlError) -> Option<String> {
    Some(match error {
        ControlError::IsUp(name) => {
            format!("{error}; take it down with `evlbi path down {name}`")
        }
        ControlError::NoneUp => format!("{error}; `evlbi path up PLAN.toml` makes one"),
        ControlError::Several(_) => format!("{error}; name one with --path"),
        _ => return None,
    })
}

fn of_relay(error: &RelayError) -> Option<String> {
    let text = match error {
        RelayError::NotContained => {
            "this is for `evlbi path run` and `evlbi path up`, which start it in a container"
        }
        _ => return None,
    };
    Some(text.to_owned())
}
