//! The exit status of an error.

use std::error::Error;
use std::fmt;
use std::io::ErrorKind;
use std::process::ExitCode;

use evlbi_correlate::loss_curve::LossCurveError;
use evlbi_correlate::{PlanError, StreamError};
use evlbi_fx::correlator::SetupError;
use evlbi_net::file::OutputError;
use evlbi_net::transport::NotHonoured;
use evlbi_path::PathError;
use evlbi_path::process::RelayError;
use evlbi_probe::capacity::ProbeCapacityError;
use evlbi_probe::endpoint::TestError;
use evlbi_probe::latency::ProbeLatencyError;
use evlbi_probe::plan::link::PlanLinkError;
use evlbi_probe::plan::tcp::PlanTcpError;
use evlbi_probe::respond::RespondError;
use evlbi_probe::tcp::ProbeTcpError;
use evlbi_probe::udp::ProbeUdpError;
use evlbi_probe::watch::WatchError;
use evlbi_stream::recv::RecvError;
use evlbi_stream::send::SendError;
use evlbi_stream::sink::SinkError;
use evlbi_stream::source::SourceError;

/// Something that went wrong, but not with the command line.
const FAILED: u8 = 1;
/// A command line that nothing could be done with: clap's status, too.
const INVALID: u8 = 2;
/// Something that may succeed later or elsewhere: `EX_TEMPFAIL` of sysexits.h.
const TRY_AGAIN: u8 = 75;
/// A command that cannot be run, and one that does not exist: those of `env`, `timeout` and shells.
const NOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// A command line that lacks something, or asks for what does not go together: what, and what to give.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Usage {}

/// An error after which the same may succeed later, or on another host.
#[derive(Debug)]
pub struct TryAgain;

impl fmt::Display for TryAgain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not done, and can be tried again")
    }
}

/// Returns the exit status of an error.
pub fn of(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(number_of(error))
}

fn number_of(error: &anyhow::Error) -> u8 {
    if error.is::<TryAgain>() {
        return TRY_AGAIN;
    }
    let status = |cause| match not_run(cause) {
        None if is_invalid(cause) => Some(INVALID),
        status => status,
    };
    error.chain().find_map(status).unwrap_or(FAILED)
}

/// Returns the status of a command that another program was to run.
fn not_run(cause: &(dyn Error + 'static)) -> Option<u8> {
    let source = match (cause.downcast_ref(), cause.downcast_ref()) {
        (Some(PathError::Command { source, .. }), _) => source,
        (_, Some(RelayError::Command { source, .. })) => source,
        _ => return None,
    };
    Some(match source.kind() {
        ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_RUN,
    })
}

/// Returns whether the command line alone is wrong, whatever the input, the hosts and the network are.
fn is_invalid(cause: &(dyn Error + 'static)) -> bool {
    macro_rules! any_of {
        ($($error:pat),+ $(,)?) => { false $(|| matches!(cause.downcast_ref(), Some($error)))+ };
    }
    cause.is::<Usage>()
        || cause.is::<NotHonoured>()
        || any_of!(
            SendError::NoDatagrams(_)
                | SendError::PatternRate(_)
                | SendError::Untimed
                | SendError::FitReplaced,
            SourceError::NoLength { .. } | SourceError::Length(_) | SourceError::NoStation(_),
            RecvError::SmallRing { is_for_frames: false, .. }
                | RecvError::WideWindow { .. }
                | RecvError::SafeHold(_),
            SinkError::Template(_),
            PlanError::TooManyDelays { .. },
            SetupError::Channels(_),
            StreamError::Flags | StreamError::Visibilities,
            LossCurveError::NoStation { .. } | LossCurveError::NoKnowledge | LossCurveError::NoLoss,
            LossCurveError::NoPackets | LossCurveError::Packet { .. },
            ProbeUdpError::NoPace | ProbeUdpError::NoTasks | ProbeUdpError::TooMany(_),
            ProbeTcpError::NotOne | ProbeTcpError::NoRate | ProbeTcpError::LateBackground,
            ProbeLatencyError::Short(_),
            ProbeCapacityError::Range { .. },
            RespondError::NoToken,
            WatchError::NoPace | WatchError::Unspaced | WatchError::Every { .. },
            PlanTcpError::NotOneRtt
                | PlanTcpError::NotOneLoss
                | PlanTcpError::NoRtt
                | PlanTcpError::TooSlow { .. },
            PlanLinkError::NoRoom { .. } | PlanLinkError::Whole { .. } | PlanLinkError::Cut(_),
            PathError::NoPair(_) | PathError::Unit(_),
            OutputError::Twice(_),
        )
        // Its limits are the responder's.
        || cause.downcast_ref().is_some_and(|error| {
            !matches!(
                error,
                TestError::NoBurdens
                    | TestError::Duration(..)
                    | TestError::Rate(..)
                    | TestError::NoRate(_)
            )
        })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use evlbi_testkit::Room;

    use super::*;
    use crate::cli::Cli;
    use crate::program::Program;

    /// Whatever finds it: clap, the command or a library.
    #[test]
    fn an_invalid_command_line_has_a_status_of_its_own() {
        let room = Room::new();
        for line in [
            "send pattern:1032 --to udp://127.0.0.1:9",
            "send pattern:1x --to udp://127.0.0.1:9 --rate 1M",
            "send sky:plan.toml --to udp://127.0.0.1:9 --rate 1M",
            "recv udp://127.0.0.1:0 --to check --ring 1",
            "recv udp://127.0.0.1:0 --to check --ring 32MiB --window 32MiB",
            "recv tcp://127.0.0.1:0 --to check --window 1MiB",
            "recv udp://127.0.0.1:0 --to DIR/{scan}.vdif",
            "recv udp://127.0.0.1:0 --to -",
            "correlate --live udp://127.0.0.1:0 udp:/127.0.0.1:0",
            "correlate --live Ef.vdif Jb.vdif",
            "correlate udp://127.0.0.1:0 udp://127.0.0.1:0",
            "fringe udp://127.0.0.1:0 udp://127.0.0.1:0",
            "demo --duration 0s",
            "demo --loss 100%",
            "demo --plot DIR/demo.txt",
            "demo --plot DIR/demo.svg --plot DIR/demo.svg",
            "probe udp 127.0.0.1:9 --token t",
            "probe udp 127.0.0.1:9",
            "probe udp 127.0.0.1:99999 --token t --rate 1M",
            "probe udp 127.0.0.1:9 --token t --rate 1M --duration 0s",
            "probe udp 127.0.0.1:9 --token t --rate 1M --csv - --json",
            "probe tcp 127.0.0.1:9 --token t --buffer bdp",
            "probe latency 127.0.0.1:9 --token t --size 1",
            "probe capacity 127.0.0.1:9 --token t --lowest 2M --highest 1M",
            "watch DIR/none.sqlite 127.0.0.1:9 --token t",
            "plan tcp --rtt 0s --rate 1G",
            "plan tcp --rtt 10ms,20ms --rate 1G",
            "plan link --rate 1G --link 10G --mtu 10",
            "plan safe --rate 1G --rtt 0s --size 1424",
            "send pattern:1032 --to udp://127.0.0.1:9 --rate 1M --safe off --check",
            "path set loss loss",
        ] {
            let line = line.replace("DIR", room.folder().to_str().unwrap());
            let arguments = ["evlbi"].into_iter().chain(line.split(' '));
            let cli = match Cli::try_parse_from(arguments) {
                Ok(cli) => cli,
                Err(error) => {
                    assert_eq!(error.exit_code(), i32::from(INVALID), "{line}: {error}");
                    continue;
                }
            };
            let error = cli.run(&Program::without_config()).unwrap_err();
            assert_eq!(number_of(&error), INVALID, "{line}: {error:#}");
        }
    }
}
