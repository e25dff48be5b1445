//! Errors of evlbi-probe.

use std::error::Error;
use std::io::ErrorKind;

use evlbi_net::responder;
use evlbi_probe::SessionError;
use evlbi_probe::analyse::AnalyseError;
use evlbi_probe::capacity::ProbeCapacityError;
use evlbi_probe::endpoint::TestError;
use evlbi_probe::plan::link::PlanLinkError;
use evlbi_probe::plan::tcp::PlanTcpError;
use evlbi_probe::report::matrix::MatrixError;
use evlbi_probe::respond::{RespondError, ServeError};
use evlbi_probe::tcp::ProbeTcpError;
use evlbi_probe::udp::ProbeUdpError;
use evlbi_probe::watch::StoreError;
use evlbi_probe::watch::WatchError;
use evlbi_wire::units::show_rate;

/// Returns the text that replaces an error's own, without its causes; `None` keeps the error's own.
pub fn of(error: &(dyn Error + 'static)) -> Option<String> {
    (error.downcast_ref().and_then(of_test))
        .or_else(|| error.downcast_ref().and_then(of_session))
        .or_else(|| error.downcast_ref().and_then(of_udp))
        .or_else(|| error.downcast_ref().and_then(of_tcp))
        .or_else(|| error.downcast_ref().and_then(of_capacity))
        .or_else(|| error.downcast_ref().and_then(of_responder))
        .or_else(|| error.downcast_ref().and_then(of_serving))
        .or_else(|| error.downcast_ref().and_then(of_watching))
        .or_else(|| error.downcast_ref().and_then(of_campaign))
        .or_else(|| error.downcast_ref().and_then(of_table))
        .or_else(|| error.downcast_ref().and_then(of_analysis))
        .or_else(|| error.downcast_ref().and_then(of_plan))
        .or_else(|| error.downcast_ref().and_then(of_link))
}

fn of_test(error: &TestError) -> Option<String> {
    Some(match error {
        TestError::Files => format!("{error}: leave out --streams, --both and --rate"),
        TestError::NoBurdens => format!("{error}: start it with --allow-load"),
        TestError::Duration(..) => format!("{error} (its --max-duration)"),
        TestError::Rate(..) => format!("{error} (its --max-rate)"),
        TestError::NoRate(_) => format!("{error} (its --max-rate): give --rate"),
        _ => return None,
    })
}

fn of_session(error: &SessionError) -> Option<String> {
    Some(match error {
        SessionError::Unreachable { address, .. } => {
            let (host, port) = responder::split(address)?;
            let any = if host.contains(':') {
                "[::]"
            } else {
                "0.0.0.0"
            };
            format!(
                "cannot reach port {port} of {host}: run `evlbi respond --bind {any}:{port} --token TOKEN` there"
            )
        }
        SessionError::Unknown { .. } => {
            format!("{error}: give HOST or HOST:PORT, e.g. jive, jive:8620, [2001:db8::5]:8620")
        }
        SessionError::NoResponder { address, .. } => {
            format!("no valid greeting from {address}: is `evlbi respond` listening there?")
        }
        SessionError::Silent { address } => {
            format!("no greeting from {address}: is `evlbi respond` listening there?")
        }
        SessionError::Token { address, .. } => {
            format!(
                "{address} did not accept the token: use the same --token (or EVLBI_TOKEN) as its `evlbi respond`"
            )
        }
        _ => return None,
    })
}

fn of_udp(error: &ProbeUdpError) -> Option<String> {
    let text = match error {
        ProbeUdpError::NoPace => {
            "no rate: give --rate, e.g. 500M, or --spacing, e.g. 12.5us (0 for as fast as this host can)"
        }
        ProbeUdpError::NoTasks => {
            "--load-nice has no effect without competing tasks: give --load-tasks, too"
        }
        _ => return None,
    };
    Some(text.to_owned())
}

fn of_tcp(error: &ProbeTcpError) -> Option<String> {
    let text = match error {
        ProbeTcpError::NotOne => {
            "--samples, --records, --from and --into need a single test: give one --mss and one --buffer"
        }
        ProbeTcpError::NoRate => {
            "a buffer of the bandwidth-delay product needs a rate: give --rate, or the buffer in bytes"
        }
        ProbeTcpError::LateBackground => {
            "--background starts after the end of the test: give an earlier --background-at"
        }
        _ => return None,
    };
    Some(text.to_owned())
}

fn of_capacity(error: &ProbeCapacityError) -> Option<String> {
    Some(match error {
        ProbeCapacityError::Range { lowest, highest } => {
            format!("--lowest {lowest} is above --highest {highest}")
        }
        ProbeCapacityError::NotAllowed { allowed, lowest } => {
            let allowed = show_rate(*allowed);
            format!("the responder allows {allowed} of UDP payload, less than --lowest {lowest}")
        }
        _ => return None,
    })
}

fn of_responder(error: &RespondError) -> Option<String> {
    Some(match error {
        RespondError::NoToken => "empty --token: give a long secret".to_owned(),
        RespondError::NoFolder(folder) => {
            format!("--files {}: not a directory", folder.display())
        }
        _ => return None,
    })
}

/// Clients get these texts, too.
fn of_serving(error: &ServeError) -> Option<String> {
    Some(match error {
        ServeError::NoFiles => format!("{error}: start it with --files"),
        ServeError::Make { .. } => format!("{error}: give another --into"),
        ServeError::Busy(_) => format!("{error}: try again later, or wait longer with --wait"),
        _ => return None,
    })
}

fn of_watching(error: &WatchError) -> Option<String> {
    Some(match error {
        WatchError::NoPace => {
            "no rate: give --rate, e.g. 500M, or --spacing, e.g. 12.5us".to_owned()
        }
        WatchError::Unspaced => format!("{error}: give a --spacing above 0"),
        WatchError::Every { test, every } => {
            format!("tests of {test:?} do not fit into --every {every:?}")
        }
        _ => return None,
    })
}

fn of_campaign(error: &StoreError) -> Option<String> {
    match error {
        StoreError::Foreign { path, .. } => {
            Some(format!("{} is not a file of evlbi watch", path.display()))
        }
        StoreError::Version { version, known, .. } if version > known => {
            Some(format!("{error}: use a newer evlbi"))
        }
        _ => None,
    }
}

fn of_table(error: &MatrixError) -> Option<String> {
    match error {
        MatrixError::Read { path, source } if source.kind() == ErrorKind::InvalidData => {
            Some(format!(
                "{} is not a result of `evlbi probe udp --json`, which several files must be",
                path.display()
            ))
        }
        MatrixError::NoResult { path, .. } => Some(format!(
            "{} is neither a result of `evlbi probe udp --json` nor a file of `evlbi watch`: give any number of results, \
             or one file of watch",
            path.display()
        )),
        _ => None,
    }
}

fn of_analysis(error: &AnalyseError) -> Option<String> {
    match error {
        AnalyseError::NoConnection { .. } => {
            Some(format!("{error}: leave out --connection to list all"))
        }
        _ => None,
    }
}

fn of_plan(error: &PlanTcpError) -> Option<String> {
    Some(match error {
        PlanTcpError::NotOneRtt => "several --rtt: give one, or --compare them".to_owned(),
        PlanTcpError::NotOneLoss => "several --loss: give one, or --compare them".to_owned(),
        PlanTcpError::NoRtt => "invalid --rtt 0: give the round-trip time, e.g. 15ms".to_owned(),
        PlanTcpError::TooSlow {
            rate,
            link,
            segment,
            carried,
        } => {
            let [rate, link, carried] = [*rate, *link, *carried].map(show_rate);
            format!(
                "{rate} of payload do not fit a --link of {link}: in segments of {segment} bytes it carries {carried}"
            )
        }
        _ => return None,
    })
}

fn of_link(error: &PlanLinkError) -> Option<String> {
    Some(match error {
        PlanLinkError::NoRoom { mtu, headers } => {
            format!("--mtu {mtu} leaves no room for data after {headers} bytes of headers")
        }
        PlanLinkError::Whole { .. } => format!("{error}: raise --mtu"),
        _ => return None,
    })
}
