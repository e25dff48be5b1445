//! Errors of evlbi-stream, and of files that anything writes.

use std::error::Error;

use evlbi_net::file::OutputError;
use evlbi_stream::control_socket::ListenError;
use evlbi_stream::drop::DropError;
use evlbi_stream::gaps::GapsError;
use evlbi_stream::join::JoinError;
use evlbi_stream::lane::LaneError;
use evlbi_stream::recording::RecordingError;
use evlbi_stream::recv::RecvError;
use evlbi_stream::selection::SelectionError;
use evlbi_stream::send::SendError;
use evlbi_stream::sink::SinkError;
use evlbi_stream::source::SourceError;
use evlbi_stream::split::SplitError;
use evlbi_wire::units::show_size;

/// Remedy for a file that already exists.
const OVERWRITE: &str = "give --force to overwrite it";

/// Returns the text that replaces an error's own; `None` keeps it.
pub fn of(error: &(dyn Error + 'static)) -> Option<String> {
    (error.downcast_ref().and_then(of_output))
        .or_else(|| error.downcast_ref().and_then(of_recording))
        .or_else(|| error.downcast_ref().and_then(of_source))
        .or_else(|| error.downcast_ref().and_then(of_sender))
        .or_else(|| error.downcast_ref().and_then(of_receiver))
        .or_else(|| error.downcast_ref().and_then(of_sink))
        .or_else(|| error.downcast_ref().and_then(of_drop))
        .or_else(|| error.downcast_ref().and_then(of_split))
        .or_else(|| error.downcast_ref().and_then(of_join))
        .or_else(|| error.downcast_ref().and_then(of_gaps))
        .or_else(|| error.downcast_ref().and_then(of_lane))
        .or_else(|| error.downcast_ref().and_then(of_selection))
        .or_else(|| error.downcast_ref().and_then(of_listening))
}

fn of_output(error: &OutputError) -> Option<String> {
    Some(match error {
        OutputError::Exists(_) => format!("{error}: {OVERWRITE}"),
        OutputError::Twice(_) => format!("{error}: give each output its own name"),
        OutputError::Overtaken(_) => format!("{error}: choose another name, or {OVERWRITE}"),
        _ => return None,
    })
}

fn of_recording(error: &RecordingError) -> Option<String> {
    Some(match error {
        RecordingError::Empty(_) => format!("{error}: record or copy it again, or leave it out"),
        RecordingError::OtherRate { .. } => {
            format!("{error}: correct --frame-rate, or leave it out")
        }
        RecordingError::OtherYear { .. } => {
            format!("{error}: correct #year, or leave it out for the latest possible year")
        }
        RecordingError::Truncated { .. } => format!("{error}: copy the file again if it is a copy"),
        RecordingError::Changes { .. } => format!("{error}: cut the file there to use them"),
        RecordingError::LeftOut { .. } => {
            format!("{error}: `evlbi inspect FILE` shows its threads and formats")
        }
        _ => return None,
    })
}

fn of_source(error: &SourceError) -> Option<String> {
    Some(match error {
        SourceError::RateUnknown(_) => format!("{error}: give --frame-rate"),
        _ => return None,
    })
}

fn of_sender(error: &SendError) -> Option<String> {
    Some(match error {
        SendError::RateUnknown(_) => {
            format!("{error}: give --frame-rate, --rate or --max")
        }
        SendError::PatternRate(_) => {
            format!("{error}: give a --rate, or --max to send as fast as this host can")
        }
        SendError::StartOver(start) => format!("--start {start} is in the past"),
        SendError::NoTimes(_) => format!("{error}: give --rate or --max"),
        SendError::NoRate => error.to_string().replacen("a rate", "a --rate", 1),
        SendError::NoDatagrams(scheme) => {
            format!("--cut plain has no effect on {scheme}://; leave it out")
        }
        SendError::FitReplaced => {
            "--shed fit: cannot be used with --replace: replacement data would fill the link again"
                .into()
        }
        SendError::Untimed | SendError::SelectedBytes => format!("{error}: leave --cut plain out"),
        SendError::MtuUnknown => format!("{error}: give --mtu"),
        SendError::LongFrame { .. } => format!("{error}; use udp:// or a larger --mtu"),
        SendError::SafeShed => {
            "--safe decides what is shed: leave --shed out, and give the limit as --least".into()
        }
        SendError::SafeReplaced => {
            "--safe cannot be used with --replace: replacement data would take the place of shed data"
                .into()
        }
        SendError::SafeKey(to) => format!(
            "--safe needs a key for reports from {to}: give --key-file FILE, the same at both ends (umask 077; head -c 32 /dev/urandom > FILE)"
        ),
        SendError::SafeTransport(to) => format!(
            "--safe cannot control {to}: it needs udp:// to one receiver; give --safe off, or leave it out"
        ),
        SendError::SafeRate => "--safe needs a rate: give --rate, or leave --max out".into(),
        _ => return None,
    })
}

/// Returns the remedy for a flow under SafeUDP whose data were held back at its end, by the kind of the notice.
pub fn cut_off(kind: &str) -> &'static str {
    match kind {
        "blind" => {
            "no reports arrived; `evlbi recv --safe` must run until the sender ends, and its answers from the port after the data must pass"
        }
        "stalled" => "reports arrived and data did not; look for a filter on the ports of the data",
        "refused" => "nobody listened there; `evlbi recv --safe` must run until the sender ends",
        "failed" => {
            "no report came; start `evlbi recv --safe` there first, with the same --key-file, and let UDP pass to the port after that of the data and back"
        }
        _ => {
            "too much was lost even at --least; the notices have the cause, and `evlbi plan safe` the loss that the path may have"
        }
    }
}

fn of_receiver(error: &RecvError) -> Option<String> {
    Some(match error {
        RecvError::SmallRing {
            min,
            asked,
            is_for_frames,
        } => {
            let frames = match is_for_frames {
                true => " for frames as long as --frame",
                false => "",
            };
            let (min, asked) = (show_size(*min), show_size(*asked));
            format!("--ring {asked} is too small{frames}: give at least {min}")
        }
        RecvError::SafeHold(_) => format!("{error}: give a smaller --hold, or leave --safe out"),
        RecvError::WideWindow { window, ring } => {
            let (window, ring) = (show_size(*window), show_size(*ring));
            format!(
                "--window {window} does not fit --ring {ring}: give a --ring a third larger than the window, or none"
            )
        }
        RecvError::MayExist { .. } => format!("{error}: {OVERWRITE}"),
        _ => return None,
    })
}

fn of_sink(error: &SinkError) -> Option<String> {
    Some(match error {
        SinkError::Lengths { .. } => format!("{error}: add {{thread}} to --to"),
        _ => return None,
    })
}

fn of_drop(error: &DropError) -> Option<String> {
    Some(match error {
        DropError::NoMark { .. } => {
            format!("{error}: choose --replace fill, random or nothing")
        }
        DropError::RateUnknown { is_raw: false, .. } => format!("{error}: give --frame-rate"),
        _ => return None,
    })
}

fn of_split(error: &SplitError) -> Option<String> {
    Some(match error {
        SplitError::RateUnknown(_) => format!("{error}: give --frame-rate"),
        SplitError::One(_) => {
            format!(
                "{error}; add {{channel}}, {{thread}} or {{station}} to --to, or give --channels"
            )
        }
        SplitError::Raw(_) => {
            format!("{error}: `evlbi inspect` shows what it contains")
        }
        SplitError::NoThreads { .. } => {
            format!("{error}; add {{channel}} to --to, or give --channels")
        }
        SplitError::ChannelsTwice => {
            "channels are chosen after `#` and by --channels: choose them once".into()
        }
        SplitError::Described(_) => format!("{error}: leave out the others"),
        SplitError::Lengths { .. } => format!("{error}: add {{thread}} to --to"),
        _ => return None,
    })
}

fn of_join(error: &JoinError) -> Option<String> {
    Some(match error {
        JoinError::RateUnknown(_) => format!("{error}: give --frame-rate"),
        JoinError::NotVdif(_) => {
            format!("{error}: only VDIF can be joined; `evlbi inspect` shows what it contains")
        }
        JoinError::Starts { .. } | JoinError::NoneComplete(_) => {
            format!("{error}: give recordings of the same time, or --threads")
        }
        JoinError::SameThread { .. } => {
            format!("{error}: leave --threads out to join them as channels")
        }
        JoinError::Order { .. } => {
            format!("{error}; if that is wrong, give the recordings in the order of their channels")
        }
        JoinError::Twice(_) => format!("{error}: give it once"),
        JoinError::Differ { .. } => format!("{error}: join only recordings that are alike"),
        _ => return None,
    })
}

fn of_lane(error: &LaneError) -> Option<String> {
    Some(match error {
        LaneError::Rate { .. } => {
            format!("{error}: correct --frame-rate, or the format after `#`")
        }
        LaneError::Count(_) => {
            format!("{error}; choose other --channels, or add {{channel}} to --to")
        }
        LaneError::Threads(_) => format!("{error}; --threads keeps them as threads"),
        LaneError::Thread { .. } => format!("{error}; leave {{channel}} out of --to"),
        LaneError::FrameLength { .. } => format!("{error}: give another --frame, or none"),
        _ => return None,
    })
}

fn of_gaps(error: &GapsError) -> Option<String> {
    Some(match error {
        GapsError::Other { .. } => {
            format!("{error}; remove it, or ignore it in correlate with --trust headers")
        }
        _ => return None,
    })
}

fn of_selection(error: &SelectionError) -> Option<String> {
    Some(match error {
        SelectionError::WholeFrames { key: "channels" } => {
            format!(
                "{error}; `evlbi split` extracts channels from a recording, and `recv` records them with {{channel}} in --to"
            )
        }
        SelectionError::WholeFrames { .. } => format!("{error}; leave it out"),
        _ => return None,
    })
}

fn of_listening(error: &ListenError) -> Option<String> {
    Some(match error {
        ListenError::InUse(_) | ListenError::Bind { .. } => format!("--control: {error}"),
        _ => return None,
    })
}
