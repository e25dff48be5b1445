//! Errors of evlbi-control.

use std::error::Error;
use std::path::Path;

use evlbi_control::agent::{AgentError, NoStateDir, SettingError};
use evlbi_control::session::run::RunError;
use evlbi_control::session::{AccessError, ControllerError};
use evlbi_control::{FileError, IdentityError};

/// Returns the text that replaces an error's own; `None` keeps it.
pub fn of(error: &(dyn Error + 'static)) -> Option<String> {
    (error.downcast_ref().and_then(of_state_dir))
        .or_else(|| error.downcast_ref().and_then(of_file))
        .or_else(|| error.downcast_ref().and_then(of_identity))
        .or_else(|| error.downcast_ref().and_then(of_agent))
        .or_else(|| error.downcast_ref().and_then(of_setting))
        .or_else(|| error.downcast_ref().and_then(of_controller))
        .or_else(|| error.downcast_ref().and_then(of_access))
        .or_else(|| error.downcast_ref().and_then(of_run))
}

fn of_state_dir(error: &NoStateDir) -> Option<String> {
    Some(format!("{error}: give --dir"))
}

fn of_file(error: &FileError) -> Option<String> {
    Some(match error {
        FileError::Foreign(_) => format!("{error}: give another one"),
        FileError::Open(folder) => format!("{error}: chmod go-w {}", folder.display()),
        _ => return None,
    })
}

fn of_identity(error: &IdentityError) -> Option<String> {
    Some(match error {
        IdentityError::ShortToken(_) => {
            format!("{error}: delete the file and restart to generate one")
        }
        IdentityError::NoAgent { folder, .. } => started(error, folder),
        _ => return None,
    })
}

fn of_agent(error: &AgentError) -> Option<String> {
    Some(match error {
        AgentError::InUse(_) => format!("{error}: use that one, or give another --dir"),
        _ => return None,
    })
}

fn of_setting(error: &SettingError) -> Option<String> {
    Some(match error {
        SettingError::Idle { pool_idle, .. } => {
            format!("{error}, because `run` and `console` reuse a connection within {pool_idle:?}")
        }
        _ => return None,
    })
}

fn of_controller(error: &ControllerError) -> Option<String> {
    Some(match error {
        ControllerError::Untold { .. } => format!("--trust {error}"),
        _ => return None,
    })
}

fn of_access(error: &AccessError) -> Option<String> {
    Some(match error {
        AccessError::Unconfirmed { host, .. } => {
            format!("{error}; if both are equal, give --trust {host} once")
        }
        AccessError::NotBegun { folder, .. } => started(error, folder),
        _ => return None,
    })
}

/// Adds how to start the agent of a state directory.
fn started(error: &dyn Error, folder: &Path) -> String {
    format!("{error}: start `evlbi agent --dir {}`", folder.display())
}

fn of_run(error: &RunError) -> Option<String> {
    Some(match error {
        RunError::NoHost(_) => format!("--without {error}"),
        RunError::NoRun { .. } => format!("--resume {error}"),
        RunError::Problems(_) => {
            format!("{error}: fix the problems above, or skip a host with --without NAME")
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::time::Duration;

    use evlbi_control::agent::ConfigError;
    use evlbi_net::run::explain_in;

    use super::*;

    #[track_caller]
    fn says<E: Error + Send + Sync + 'static>(error: E, line: &str) {
        assert_eq!(explain_in(&error, crate::words::of), line);
    }

    /// Errors of agents and controllers do not name options; their printed form does.
    #[test]
    fn errors_name_the_options_that_help() {
        let controller = || ControllerError::from(NoStateDir);
        let no_state_dir = "no state directory, because HOME is not set: give --dir";
        says(AgentError::from(NoStateDir), no_state_dir);
        says(RunError::from(controller()), no_state_dir);
        says(
            AgentError::InUse("/a".into()),
            "another agent uses /a: use that one, or give another --dir",
        );
        let seconds = Duration::from_secs;
        let idle = ConfigError::Invalid {
            path: "/a/agent.toml".into(),
            source: SettingError::Idle {
                min: seconds(6),
                pool_idle: seconds(5),
            },
        };
        says(
            AgentError::from(idle),
            "/a/agent.toml: invalid idle: it must be at least 6s, because `run` and `console` reuse a connection within 5s",
        );
        let untold = ControllerError::Untold {
            host: "ef".to_owned(),
            why: "has no such host",
        };
        says(
            RunError::from(untold),
            "--trust ef: the session has no such host",
        );
        let fingerprint = "01".repeat(32);
        let unconfirmed = ControllerError::Host {
            name: "ef".to_owned(),
            source: AccessError::Unconfirmed {
                host: "ef".to_owned(),
                fingerprint: fingerprint.parse().unwrap(),
            },
        };
        let shown = vec!["01"; 32].join(":");
        says(
            unconfirmed,
            &format!(
                "host ef: no token was sent to its agent, because the fingerprint {shown} is not confirmed: compare it with the one that the agent prints when it starts; if both are equal, give --trust ef once"
            ),
        );
        let not_begun = ControllerError::Host {
            name: "ef".to_owned(),
            source: AccessError::NotBegun {
                folder: "/a".into(),
                source: ErrorKind::NotFound.into(),
            },
        };
        says(
            not_begun,
            "host ef: no agent was ever started in /a: start `evlbi agent --dir /a`: entity not found",
        );
        says(
            RunError::NoHost("ef".to_owned()),
            "--without ef: the session has no such host",
        );
        let no_run = RunError::NoRun {
            run: "n-1".to_owned(),
            folder: "/c/runs".into(),
            last: "none".to_owned(),
        };
        says(
            no_run,
            "--resume n-1: no such run in /c/runs; the last runs are: none",
        );
        says(
            RunError::Problems(2),
            "2 problems found, nothing was started: fix the problems above, or skip a host with --without NAME",
        );
    }
}
