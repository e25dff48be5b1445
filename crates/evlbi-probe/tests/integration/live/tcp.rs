//! TCP connections between two namespaces: every byte, the kernels' state, refusals and aborts, and limits.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use evlbi_probe::endpoint::Limits;
use evlbi_probe::respond::{RespondOptions, Responding};
use evlbi_probe::tcp::{self, Buffer, ProbeTcp, ProbeTcpError, ProbeTcpOptions, Tested, picture};
use evlbi_testkit::netns::{End, Pair, Wire, filter, pair, pair_with};
use evlbi_testkit::result::refused;
use evlbi_testkit::{Room, disk, name, until};

use super::support::{Probing, drawn, end, kept, open, respond_far, target};

/// Returns the result of a single test.
#[track_caller]
fn one(tested: Result<Tested, ProbeTcpError>) -> ProbeTcp {
    let measured = tested.map(|tested| match tested {
        Tested::One(measured) => measured,
        Tested::Matrix(_) => panic!("one test"),
    });
    *kept(measured)
}

/// Returns the result of a test that completes.
#[track_caller]
fn whole(tested: Result<Tested, ProbeTcpError>) -> ProbeTcp {
    let result = one(tested);
    assert_eq!(result.stopped, None);
    result
}

/// Runs a test from the local namespace.
fn tcp(
    pair: &Pair,
    responder: &Responding,
    options: ProbeTcpOptions,
) -> Result<Tested, ProbeTcpError> {
    begin(pair, responder, options).end()
}

/// Starts a test, without waiting for its end.
fn begin(
    pair: &Pair,
    responder: &Responding,
    options: ProbeTcpOptions,
) -> Probing<Result<Tested, ProbeTcpError>> {
    let options = ProbeTcpOptions {
        target: target(responder),
        ..options
    };
    Probing::begin_near(pair, move |run| tcp::probe(&options, run))
}

/// Runs a test with a responder of its own.
#[track_caller]
fn once(pair: &Pair, options: ProbeTcpOptions) -> ProbeTcp {
    let responder = respond_far(pair, &open());
    let tested = tcp(pair, &responder, options);
    end(responder);
    whole(tested)
}

fn of_rate(rate: &str, seconds: f64) -> ProbeTcpOptions {
    ProbeTcpOptions {
        rate: Some(rate.parse().unwrap()),
        duration: Duration::from_secs_f64(seconds),
        ..ProbeTcpOptions::default()
    }
}

/// Returns the output of `ss` for a host's connections, one line each.
fn connections(end: &End) -> Vec<String> {
    let listed = end.namespace.command("ss", &["-tinOH"]).unwrap();
    listed.lines().map(str::to_owned).collect()
}

/// Returns a number in a line of `ss`.
fn of_ss(line: &str, name: &str) -> Option<u64> {
    let mut words = line.split_whitespace();
    words.find_map(|word| word.strip_prefix(name))?.parse().ok()
}

/// Errors of an endpoint about data in flight when a test is interrupted, if it does not arrive within a moment.
const GIVEN_UP: [&str; 4] = [
    "sender: the other end has not taken all",
    "sender: the remote host takes no more",
    "sender: Connection reset by peer (os error 104)",
    "receiver: given up",
];

#[test]
fn connections_share_the_path_in_both_directions() {
    let Some(pair) = pair_with(&["ss"], &Wire::exact(), name!()) else {
        return;
    };
    let room = Room::new();
    let options = ProbeTcpOptions {
        streams: 2,
        both: true,
        algorithm: ["reno", "cubic"].map(str::to_owned).to_vec(),
        duration: Duration::from_hours(1),
        sample: Some(Duration::from_millis(100)),
        samples: Some(room.path("s.csv").into()),
        ..ProbeTcpOptions::default()
    };
    let responder = respond_far(&pair, &open());
    let probing = begin(&pair, &responder, options);
    until("all four connections have carried something", || {
        [&pair.near, &pair.far].into_iter().all(|end| {
            let lines = connections(end);
            let carried = lines
                .iter()
                .filter_map(|line| of_ss(line, "bytes_received:"));
            carried.filter(|bytes| *bytes > 1_000_000).count() == 2
        })
    });
    let result = one(probing.interrupt());
    end(responder);
    assert_eq!(result.stopped.as_deref(), Some("interrupted"));
    let flows = &result.flows;
    let laws: Vec<&str> = flows.iter().map(|flow| flow.algorithm.as_str()).collect();
    assert_eq!(laws, ["reno", "cubic", "reno", "cubic"]);
    for flow in flows {
        assert!(flow.bytes > 1_000_000, "{:?}", flow.errors);
        let mut errors = flow.errors.iter().map(String::as_str);
        assert!(
            errors.all(|error| GIVEN_UP.contains(&error)),
            "{:?}",
            flow.errors
        );
        assert!(!flow.intervals.is_empty());
        assert_eq!(flow.path_mtu, 9000);
    }
    assert_eq!(result.totals.len(), 2);
    for total in &result.totals {
        let of = || {
            flows
                .iter()
                .filter(|flow| flow.direction == total.direction)
        };
        let sum: f64 = of().map(|flow| flow.rate).sum();
        let squares: f64 = of().map(|flow| flow.rate * flow.rate).sum();
        let fairness = sum * sum / (2.0 * squares);
        assert!((total.fairness - fairness).abs() < 1e-9);
        // All bytes, in the time until the arrival of the last.
        let seconds = of().map(|flow| flow.seconds).fold(0.0, f64::max);
        let bytes: u64 = of().map(|flow| flow.bytes).sum();
        let rate = bytes as f64 * 8.0 / seconds;
        assert!((total.rate / rate - 1.0).abs() < 1e-9);
    }
    // The file holds the samples of the observers.
    let text = room.text("s.csv");
    let heads = text.lines().next().unwrap();
    assert!(heads.starts_with("connection,end,seconds,backlog,") && heads.contains(",window"));
    let readings: usize = result.observers.iter().map(|one| one.readings).sum();
    assert_eq!(text.lines().count() - 1, readings);
    for number in 0..4 {
        for who in ["sender", "receiver"] {
            let who = format!("{number},{who},");
            assert!(text.lines().any(|line| line.starts_with(&who)), "{who}");
        }
    }
    assert!(drawn(&picture::figure(&result)).contains("congestion window"));
}

/// Samples of a connection match `ss`. Between messages a connection is idle, so that both see the same state most of the time.
#[test]
fn samples_match_ss() {
    let Some(pair) = pair_with(&["ss"], &Wire::exact(), name!()) else {
        return;
    };
    let responder = respond_far(&pair, &open());
    let room = Room::new();
    // Ten messages per second, with which the window grows at first.
    let options = ProbeTcpOptions {
        message: 200_000,
        sample: Some(Duration::from_millis(1)),
        algorithm: vec!["reno".to_owned()],
        samples: Some(room.path("s.csv").into()),
        ..of_rate("16M", 180.0)
    };
    let probing = begin(&pair, &responder, options);
    // By the number of acknowledged bytes.
    let mut said = BTreeMap::new();
    until("thirty states of the connection were seen", || {
        for line in connections(&pair.near) {
            let acknowledged = of_ss(&line, "bytes_acked:").unwrap_or(0);
            if acknowledged > 200_000 {
                said.insert(acknowledged, line);
            }
        }
        said.len() >= 30
    });
    let result = one(probing.interrupt());
    end(responder);
    assert_eq!(result.stopped.as_deref(), Some("interrupted"));
    let port = result.flows[0].ports[0];
    let text = room.text("s.csv");
    let mut lines = text.lines();
    let heads: Vec<&str> = lines.next().unwrap().split(',').collect();
    let place = |name: &str| heads.iter().position(|head| *head == name).unwrap();
    let columns = [
        "acknowledged",
        "window",
        "segment",
        "path_mtu",
        "round_trip",
    ]
    .map(place);
    let sampled: Vec<Vec<u64>> = lines
        .filter(|line| line.starts_with("0,sender,"))
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            columns
                .iter()
                .map(|place| fields[*place].parse().unwrap())
                .collect()
        })
        .collect();
    let mut compared = 0;
    for (acknowledged, line) in said {
        if !line.contains(&format!(":{port} ")) {
            continue;
        }
        let same = sampled.iter().filter(|sample| sample[0] == acknowledged);
        let same: Vec<&Vec<u64>> = same.collect();
        // Values that change only with acknowledgements are equal at the same one; except after a timeout.
        if same.is_empty() || line.contains(" backoff:") || line.contains(" lost:") {
            continue;
        }
        let round_trip = |line: &str| {
            let found = line
                .split_whitespace()
                .find_map(|word| word.strip_prefix("rtt:"))?;
            let milliseconds: f64 = found.split_once('/')?.0.parse().ok()?;
            Some(milliseconds * 1e3)
        };
        let theirs = ["cwnd:", "mss:", "pmtu:"].map(|name| of_ss(&line, name));
        // `ss` prints six digits.
        let is_time = |ours: u64, theirs: f64| (ours as f64 - theirs).abs() <= 0.5 + 5e-6 * theirs;
        let is_same = |sample: &&&Vec<u64>| {
            theirs == [1, 2, 3].map(|place| Some(sample[place]))
                && round_trip(&line).is_some_and(|time| is_time(sample[4], time))
        };
        assert!(
            same.iter().any(|sample| is_same(&sample)),
            "{same:?} {line}"
        );
        compared += 1;
    }
    assert!(compared >= 5, "{compared}");
}

/// All that an application sends arrives, at its pace; the network's drops are retransmitted. Limits of a flow are tested in
/// `src/tcp/diagnosis`.
#[test]
fn requested_data_arrive_although_some_are_dropped() {
    let Some(pair) = pair_with(&["nft"], &Wire::exact(), name!()) else {
        return;
    };
    // Every fiftieth segment with data, from the first; packets of the control connection are shorter.
    let rule = "ip length > 1400 tcp flags & syn == 0 numgen inc mod 50 0 counter drop comment \"dropped\"";
    // A message fills a segment.
    let asked = ProbeTcpOptions {
        message: 1448,
        ..of_rate("23168k", 0.5)
    };
    let as_it_is = once(&pair, asked.clone());
    filter(&pair.far, &[rule]);
    let lossy = ProbeTcpOptions {
        mss: vec![1448],
        ..asked
    };
    let lossy = once(&pair, lossy);
    for result in [&as_it_is, &lossy] {
        let flow = &result.flows[0];
        let of = flow.messages.as_ref().unwrap();
        assert_eq!(
            [of.due, of.sent, of.received, of.shed],
            [1000, 1000, 1000, 0]
        );
        assert_eq!(flow.bytes, 1_448_000);
        // A stalled host took longer, and a finding reports it.
        let said = result.findings.join("\n");
        assert_eq!(
            said.contains("as requested"),
            flow.rate >= 0.99 * 23.168e6,
            "{said}"
        );
        let held = flow.course.held_back;
        let parts = [
            held.application,
            held.window,
            held.receiver,
            held.buffer,
            held.repair,
            held.host,
        ];
        let sum: f64 = parts.iter().sum();
        assert!(
            sum <= 1.0 + 1e-9 && parts.iter().all(|part| *part >= 0.0),
            "{parts:?}"
        );
    }
    let dropped = pair.far.counted("dropped");
    let again = u64::from(lossy.flows[0].sent_again);
    assert!(dropped > 0 && again >= dropped, "{again} for {dropped}");
    let said = lossy.findings.join("\n");
    assert!(
        said.contains(&format!("{again} of ")) && said.contains("retransmitted"),
        "{said}"
    );
}

/// Invalid tests are refused, with the reason.
#[test]
fn invalid_tests_are_refused() {
    let Some(pair) = pair(&Wire::exact(), name!()) else {
        return;
    };
    let responder = respond_far(
        &pair,
        &RespondOptions {
            limits: Limits {
                rate: Some("100M".parse().unwrap()),
                ..open().limits
            },
            ..open()
        },
    );
    let slow = || of_rate("10M", 10.0);
    let with_law = |law: &str| ProbeTcpOptions {
        algorithm: vec![law.to_owned()],
        ..slow()
    };
    let products = ProbeTcpOptions {
        buffer: vec![Buffer::Products(1.0)],
        ..ProbeTcpOptions::default()
    };
    let short = ProbeTcpOptions {
        message: 8,
        ..slow()
    };
    let often = ProbeTcpOptions {
        sample: Some(Duration::from_micros(1)),
        ..slow()
    };
    for (options, reason) in [
        (
            with_law("nosuch"),
            "congestion control `nosuch` is not available",
        ),
        (with_law("No such"), "invalid congestion control algorithm"),
        (short, "invalid message length 8"),
        (often, "0.1 ms at most"),
        (products, "needs a rate"),
        (of_rate("200M", 10.0), "more than this responder allows"),
        (
            ProbeTcpOptions::default(),
            "this responder allows 100.000 Mbit/s",
        ),
    ] {
        let said = refused(tcp(&pair, &responder, options));
        assert!(said.contains(reason), "{said}");
    }
    // The next test works.
    whole(tcp(&pair, &responder, of_rate("10M", 0.5)));
    end(responder);
}

/// Connections blocked by a firewall are reported.
#[test]
fn connections_that_do_not_arrive_time_out() {
    let Some(pair) = pair_with(&["nft"], &Wire::exact(), name!()) else {
        return;
    };
    let responder = respond_far(&pair, &open());
    let port = responder.addresses()[0].port();
    let rule = format!("tcp dport != {port} tcp flags syn / syn,ack drop");
    filter(&pair.far, &[&rule]);
    let options = ProbeTcpOptions {
        duration: Duration::from_mins(10),
        ..ProbeTcpOptions::default()
    };
    let said = refused(tcp(&pair, &responder, options));
    assert!(said.contains("cannot connect"), "{said}");
    end(responder);
}

/// Files are transferred in both directions, byte by byte; existing files and files outside of the directory are refused.
#[test]
fn files_are_transferred_in_both_directions() {
    let Some(pair) = pair(&Wire::exact(), name!()) else {
        return;
    };
    let [near, far] = [0; 2].map(|_| Room::new());
    let bytes: Vec<u8> = (0..30_000_001u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let scan = PathBuf::from(near.write("scan.vdif", &bytes));
    let responder = respond_far(
        &pair,
        &RespondOptions {
            files: Some(far.folder().to_owned()),
            ..open()
        },
    );
    let long = || ProbeTcpOptions {
        duration: Duration::from_mins(10),
        ..ProbeTcpOptions::default()
    };
    let there = || ProbeTcpOptions {
        from: Some(scan.clone()),
        into: Some("copy.vdif".into()),
        ..long()
    };
    let result = whole(tcp(&pair, &responder, there()));
    let flow = &result.flows[0];
    assert_eq!(flow.bytes, bytes.len() as u64);
    assert_eq!(flow.stages.len(), 2);
    assert!(far.read("copy.vdif") == bytes);
    // The same name again is refused.
    let said = refused(tcp(&pair, &responder, there()));
    assert!(said.contains("exists"), "{said}");
    let back = ProbeTcpOptions {
        reverse: true,
        from: Some("copy.vdif".into()),
        into: Some(near.path("back.vdif").into()),
        ..long()
    };
    whole(tcp(&pair, &responder, back));
    assert!(near.read("back.vdif") == bytes);
    for name in ["../scan.vdif", "/etc/passwd", ".."] {
        let options = ProbeTcpOptions {
            reverse: true,
            from: Some(name.into()),
            ..long()
        };
        let said = refused(tcp(&pair, &responder, options));
        assert!(said.contains("invalid file name"), "{said}");
    }
    end(responder);
    let responder = respond_far(&pair, &open());
    let options = ProbeTcpOptions {
        into: Some("x".into()),
        ..long()
    };
    let said = refused(tcp(&pair, &responder, options));
    assert!(said.contains("does not transfer files"), "{said}");
    end(responder);
}

/// A full disk ends the test with an error, and the result until then is reported.
#[test]
fn a_full_disk_is_reported() {
    disk::small(8, name!(), |folder| {
        let Some(pair) = pair(&Wire::exact(), name!()) else {
            return;
        };
        let responder = respond_far(
            &pair,
            &RespondOptions {
                files: Some(folder.to_owned()),
                ..open()
            },
        );
        let options = ProbeTcpOptions {
            into: Some("scan.vdif".into()),
            duration: Duration::from_mins(10),
            ..ProbeTcpOptions::default()
        };
        let result = one(tcp(&pair, &responder, options));
        end(responder);
        let flow = &result.flows[0];
        let written = std::fs::metadata(folder.join("scan.vdif")).unwrap().len();
        assert_eq!(written, 8 << 20);
        // The last piece may have been written in part.
        let taken = flow.bytes;
        assert!((written - (1 << 20)..=written).contains(&taken), "{taken}");
        let errors = flow.errors.join("\n");
        assert!(errors.contains("No space left"), "{errors}");
    });
}
