//! Printed errors of libraries, with the options of the command line.

use std::io::{self, ErrorKind};

use anyhow::Error;
use evlbi_control::{FileError, IdentityError};
use evlbi_core::packetise::PacketiseError;
use evlbi_core::shed::ShedError;
use evlbi_correlate::fringe::FringeError;
use evlbi_correlate::{CorrelateError, PlanError, StreamError, WindowError};
use evlbi_host::doctor::DoctorError;
use evlbi_net::capture::CaptureError;
use evlbi_net::file::{OutputError, Writer, WriterOptions};
use evlbi_net::netns::Unavailable;
use evlbi_net::receive::ReceiveError;
use evlbi_net::tcp::TcpError;
use evlbi_net::transport::{InOptions, OpenError, OutOptions, Url};
use evlbi_net::udp::Interface;
use evlbi_path::{ControlError, PathError};
use evlbi_probe::endpoint::TestError;
use evlbi_probe::respond::ServeError;
use evlbi_probe::tcp::ProbeTcpError;
use evlbi_probe::udp::ProbeUdpError;
use evlbi_probe::watch::{StoreError, TablesError, WatchError};
use evlbi_probe::{ConnectError, SessionError};
use evlbi_stream::control_socket::ListenError;
use evlbi_stream::drop::DropError;
use evlbi_stream::join::JoinError;
use evlbi_stream::lane::LaneError;
use evlbi_stream::recording::RecordingError;
use evlbi_stream::recv::RecvError;
use evlbi_stream::samples::SamplesError;
use evlbi_stream::send::SendError;
use evlbi_stream::sink::SinkError;
use evlbi_stream::source::SourceError;
use evlbi_stream::split::SplitError;
use evlbi_wire::vdif::{StationId, StreamKey};
use nix::errno::Errno;

use crate::output::explain;

/// Checks the text of a library's error, alone and within others, as it reaches the command line.
#[track_caller]
fn said(error: impl Into<Error>, expected: &str) {
    let error = error.into();
    assert_eq!(explain(&error), expected);
    let error = error.context("there");
    assert_eq!(explain(&error), format!("there: {expected}"));
}

#[test]
fn errors_name_the_remedies_of_the_command_line() {
    let there = || OutputError::Exists("a.vdif".into());
    let exists = "a.vdif exists: give --force to overwrite it";
    said(there(), exists);
    said(RecvError::from(SinkError::from(there())), exists);
    said(DropError::from(there()), exists);
    said(
        SendError::from(SourceError::RateUnknown("a.vdif".into())),
        "repeated frames need later times, but the frame rate of a.vdif is unknown: give --frame-rate",
    );
    said(
        SendError::MtuUnknown,
        "cannot read the MTU of the route: give --mtu",
    );
    let (path, source) = (
        "a.vdif".into(),
        io::read_to_string(&[0xff][..]).unwrap_err(),
    );
    said(
        SourceError::ReadPlan { path, source },
        "cannot read the plan a.vdif: it is not a text file",
    );
    let (path, is_raw) = ("a.vdif".into(), false);
    said(
        DropError::RateUnknown { path, is_raw },
        "fit: the bit rate of a.vdif is unknown: give --frame-rate",
    );
    let (path, is_raw) = ("a.raw".into(), true);
    said(
        DropError::RateUnknown { path, is_raw },
        "fit: the bit rate of a.raw is unknown (it is neither VDIF, Mark 5B nor Mark 4)",
    );
    said(SplitError::from(there()), exists);
    said(
        SplitError::One("out.vdif".to_owned()),
        "out.vdif names one file, and no channels are chosen: nothing would be split; add {channel}, {thread} or {station} to --to, or give --channels",
    );
    said(
        SplitError::Thread {
            path: "a.vdif".into(),
            key: StreamKey::default(),
            source: LaneError::Count(3),
        },
        "cannot split thread 0 of station 0 in a.vdif: 3 channels do not fit one thread: VDIF needs a power of two; choose other --channels, or add {channel} to --to",
    );
    said(
        JoinError::Station {
            station: StationId::from_code(*b"Ef"),
            threads: 3,
            source: LaneError::Threads(3),
        },
        "cannot join the 3 threads of station Ef: 3 threads cannot become the channels of one: VDIF needs a power of two; --threads keeps them as threads",
    );
    said(
        RecordingError::OtherRate {
            path: "a.m4".into(),
            given: 800,
            found: 400,
        },
        "the frame rate of a.m4 is given as 800/s, but the times of its frames show 400/s: correct --frame-rate, or leave it out",
    );
    said(
        JoinError::RateUnknown("a.vdif".into()),
        "the frames per second of a.vdif are unknown: give --frame-rate",
    );
}

#[test]
fn errors_name_the_options() {
    said(
        SendError::RateUnknown("a.vdif".to_owned()),
        "the frame rate of a.vdif is unknown, so its frames cannot be timed: give --frame-rate, --rate or --max",
    );
    said(
        SendError::NoTimes("a.raw".to_owned()),
        "a.raw is raw data without timestamps (neither VDIF, Mark 5B nor Mark 4): give --rate or --max",
    );
    said(
        SendError::PatternRate("pattern:8032".to_owned()),
        "pattern:8032 has no rate of its own: give a --rate, or --max to send as fast as this host can",
    );
    said(
        SendError::NoRate,
        "cannot change the rate: this flow was started without a --rate",
    );
    said(
        SendError::NoDatagrams("tcp"),
        "--cut plain has no effect on tcp://; leave it out",
    );
    let small = |is_for_frames| RecvError::SmallRing {
        min: 16 << 20,
        asked: 1 << 20,
        is_for_frames,
    };
    said(
        small(false),
        "--ring 1 MiB is too small: give at least 16 MiB",
    );
    said(
        small(true),
        "--ring 1 MiB is too small for frames as long as --frame: give at least 16 MiB",
    );
    let (window, ring) = (64 << 20, 32 << 20);
    said(
        RecvError::SafeHold(std::time::Duration::from_secs(3)),
        "reports cannot wait 3s for a missing datagram, 1s at most: give a smaller --hold, or leave --safe out",
    );
    said(
        RecvError::WideWindow { window, ring },
        "--window 64 MiB does not fit --ring 32 MiB: give a --ring a third larger than the window, or none",
    );
    said(
        ListenError::InUse("/run/it".into()),
        "--control: another run listens on /run/it",
    );
    let (path, source) = ("/run/it".into(), io::Error::other("denied"));
    said(
        ListenError::Bind { path, source },
        "--control: cannot listen on /run/it: denied",
    );
    said(
        DoctorError::NoFolder("/data".into()),
        "--disk /data: no such directory; give the one that recordings are written to",
    );
    let (host, source) = ("jive".to_owned(), io::Error::other("denied"));
    said(
        DoctorError::LookUp { host, source },
        "cannot look up `jive` of --to: denied",
    );
    said(
        DoctorError::NoAddress("jive".to_owned()),
        "host `jive` of --to has no address",
    );
}

/// Messages name flags, however deep the error is.
#[test]
fn errors_of_libraries_use_the_words_of_the_command_line() {
    let window = |asked_s, channels| {
        let error = WindowError::Delay {
            max_s: 1e-3,
            asked_s,
            channels,
        };
        Error::from(FringeError::from(CorrelateError::from(error)))
    };
    let plan = PlanError::TooFewFrequencies(2);
    let stream = StreamError::Unfit {
        number: 1,
        source: SamplesError::NoRate,
    };
    let up = ControlError::IsUp("near".into());
    let none = FringeError::NoDirectory("x".into());
    let errors: [(Error, &str); 6] = [
        (
            window(2e-3, 4096),
            "--delay-window 2.0000 ms is too wide: the channels resolve 1.0000 ms; correlate with --channels 4096",
        ),
        (
            window(2.0, 1 << 22),
            "--delay-window 2.0000 s is too wide: the channels resolve 1.0000 ms; put most of the delay into --delay or --model",
        ),
        (
            Error::from(CorrelateError::from(plan)).context("correlating"),
            "correlating: --freq names 2 frequencies for more bands: give one, or one per band",
        ),
        (
            Error::from(CorrelateError::from(stream)),
            "stream 1: the headers do not contain the sample rate: give --sample-rate",
        ),
        (
            Error::from(PathError::from(up)),
            "near is up already; take it down with `evlbi path down near`",
        ),
        (
            Error::from(none),
            "x is not a directory of visibilities: give what `evlbi correlate --out` or DiFX wrote, or two or more recordings",
        ),
    ];
    for (error, line) in errors {
        assert_eq!(explain(&error), line);
    }
}

/// However deep an error is, and whatever follows it.
#[test]
fn errors_of_tests_name_the_arguments() {
    let address = || "jive:8620".to_owned();
    let unreachable = SessionError::Unreachable {
        address: address(),
        source: ConnectError::NoAddress(address()),
    };
    let foreign = StoreError::Foreign {
        path: "a".into(),
        source: TablesError::Changed,
    };
    let no_pace = "no rate: give --rate, e.g. 500M, or --spacing, e.g. 12.5us (0 for as fast as this host can)";
    let cases: [(Error, &str); 6] = [
        (ProbeUdpError::NoPace.into(), no_pace),
        (
            ProbeUdpError::from(unreachable).into(),
            "cannot reach port 8620 of jive: run `evlbi respond --bind 0.0.0.0:8620 --token TOKEN` there: \
             `jive:8620` has no address of the requested family",
        ),
        (
            ProbeTcpError::from(SessionError::from(TestError::Duration(20.0, 10.0))).into(),
            "the test would last 20.0 s, and this responder allows 10.0 s (its --max-duration)",
        ),
        (
            Error::from(ServeError::Busy("1 tests run now".to_owned())),
            "1 tests run now: try again later, or wait longer with --wait",
        ),
        (
            WatchError::from(foreign).into(),
            "a is not a file of evlbi watch: its tables are not those of a campaign",
        ),
        (
            SessionError::Token {
                address: address(),
                source: None,
            }
            .into(),
            "jive:8620 did not accept the token: use the same --token (or EVLBI_TOKEN) as its `evlbi respond`",
        ),
    ];
    for (error, line) in cases {
        assert_eq!(explain(&error), line);
    }
}

/// Problems that only this host's user can solve.
#[test]
fn errors_of_the_host_suggest_a_remedy() {
    let mut writer = Writer::create("/dev/full".as_ref(), WriterOptions::default()).unwrap();
    said(
        writer.write(&[0; 5000]).unwrap_err(),
        "cannot write /dev/full beyond 0 bytes: No space left on device (os error 28); free some space or record to another disk",
    );
    let (name, available) = ("bic".to_owned(), "reno cubic".to_owned());
    said(
        TcpError::NoAlgorithm { name, available },
        "congestion control `bic` is not available: this kernel has reno cubic; if it has the module, as root: modprobe tcp_bic",
    );
    said(
        PathError::from(Unavailable::NoTool("tc")),
        "`tc` is not installed (Debian: apt install iproute2 util-linux ethtool nftables)",
    );
    said(
        FileError::Open("/a".into()),
        "other users may write to the directory /a: chmod go-w /a",
    );
    said(
        IdentityError::ShortToken("/a".into()),
        "token in /a is too short (minimum 16 characters): delete the file and restart to generate one",
    );
    said(
        PathError::from(Unavailable::Tap(ErrorKind::PermissionDenied.into())),
        "cannot open /dev/net/tun: only root may; let others by chmod a+rw /dev/net/tun",
    );
    said(
        OutputError::Twice("a".into()),
        "a would be written twice: give each output its own name",
    );
}

/// Also the options of transports, two of which have the same name.
#[test]
fn errors_of_transports_name_the_options() {
    let sends = OutOptions {
        single: true,
        ..OutOptions::default()
    };
    let receives = InOptions {
        single: true,
        ..InOptions::default()
    };
    let url: Url = "unix:///a".parse().unwrap();
    for (refused, option) in [
        (sends.check(&url), "--no-gso"),
        (receives.check(&url), "--no-gro"),
    ] {
        let expected = format!("{option} has no effect on unix://; leave it out");
        said(SendError::from(refused.unwrap_err()), &expected);
    }
    for (code, says) in [
        (
            Errno::EPERM,
            "(socket): Operation not permitted (os error 1); it needs root or CAP_NET_RAW: setcap cap_net_raw,cap_net_admin+ep PROGRAM",
        ),
        (
            Errno::ENETDOWN,
            "(socket): Network is down (os error 100); as root: ip link set eth1 up",
        ),
    ] {
        let error = CaptureError::Socket {
            interface: Interface::Name("eth1".to_owned()),
            what: "socket",
            source: io::Error::from_raw_os_error(code as i32),
        };
        let error = ReceiveError::from(OpenError::from(error));
        said(
            RecvError::from(error),
            &format!("cannot capture packets on eth1 {says}"),
        );
    }
    let error = PacketiseError::SmallParts {
        frame_length: 12_088,
        mtu: 1500,
        best: 8,
        enough: 1548,
    };
    said(
        error,
        "frames of 12088 bytes cut into equal parts that fit an MTU of 1500 would be only 8 bytes each; raise --mtu to 1548 or cut them as bytes with --cut plain",
    );
    said(
        ShedError::NoRate,
        "fit: needs the rate of the stream, which is unknown; give --rate or --realtime with it",
    );
}
