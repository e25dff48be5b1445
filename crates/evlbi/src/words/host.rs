//! Errors of evlbi-host.

use std::error::Error;

use evlbi_host::doctor::DoctorError;

/// Returns the text that replaces an error's own; `None` keeps it.
pub fn of(error: &(dyn Error + 'static)) -> Option<String> {
    let error: &DoctorError = error.downcast_ref()?;
    Some(match error {
        DoctorError::NoFolder(_) => format!("--disk {error}"),
        DoctorError::NoHost => "--to names no host; write HOST or HOST:PORT".to_owned(),
        DoctorError::LookUp { .. } => format!("{error} of --to"),
        DoctorError::NoAddress(host) => format!("host `{host}` of --to has no address"),
        _ => return None,
    })
}
