//! Tests receivers with datagrams sent by hand, in virtual time.

use std::ops::Range;
use std::sync::Arc;

use evlbi_net::receive::ReceiveReport;
use evlbi_net::sim::Socket;
use evlbi_wire::pattern;
use serde_json::Value;

use super::*;

/// Time between two datagrams.
const APART: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(100);

/// Creates a clock, and hosts with a lossless network between them.
struct Hosts {
    clock: Clock,
    network: Network,
}

impl Hosts {
    fn new() -> Hosts {
        let clock = Clock::simulated(1_800_000_000 * Nanos::SECOND.0);
        let network = Network::new(&clock, &[], 9000, 1);
        Hosts { clock, network }
    }

    /// Waits until this long after the start.
    fn at(&self, moment: Duration) {
        let left = moment.saturating_sub(Duration::from_nanos(self.clock.now().0));
        self.clock.sleep(left);
    }

    fn socket(&self) -> Socket {
        self.network.near(1).socket(0, None)
    }

    fn send(&self, from: &Socket, datagram: &[u8]) {
        from.send_to(port(), datagram.into(), self.clock.now());
    }

    /// Sends frames of the test pattern with their number plus `base`, from now on.
    fn frames(&self, from: &Socket, base: u64, frames: Range<u64>) {
        let all = all(frames.end);
        let begins = Duration::from_nanos(self.clock.now().0);
        for (late, number) in (0..).zip(frames) {
            self.at(begins + APART * late);
            let frame = &all[number as usize * FRAME..][..FRAME];
            self.send(from, &[&(base + number).to_le_bytes(), frame].concat());
        }
    }

    /// Returns the receiver's result for the datagrams that `play` sends, and the time at which it ended.
    fn received(&self, options: RecvOptions, play: impl FnOnce()) -> (ReceiveReport, Duration) {
        self.clock.simulate(|| {
            let options = crate::recv::receive_options(&self.options(options)).unwrap();
            let run = Run::silent().on(&self.network.far(1));
            let (receiving, _opening) = receive::start(options, &run).unwrap();
            play();
            let report = receiving.join();
            (report, Duration::from_nanos(self.clock.now().0))
        })
    }

    /// Returns the result of recording what `play` sends.
    fn recorded(&self, options: RecvOptions, play: impl FnOnce(&Receiving)) -> Value {
        self.clock.simulate(|| {
            let run = Run::silent().on(&self.network.far(1));
            let receiving = receive(&self.options(options), &run).unwrap();
            play(&receiving);
            serde_json::to_value(receiving.join()).unwrap()
        })
    }

    fn options(&self, options: RecvOptions) -> RecvOptions {
        RecvOptions {
            from: self.network.to(port()),
            ring: Some(MIN_RING),
            durability: Durability::Kernel,
            ..options
        }
    }
}

/// Returns this many frames of the test pattern, all in one second.
fn all(count: u64) -> Vec<u8> {
    let rate = pattern::frame_rate(25_600);
    pattern::frames(FRAME, 1_800_000_000, rate, count as u32).unwrap()
}

/// A probe alone does not start the idle time, which then ends the stream to the tick.
#[test]
fn a_probe_before_the_stream_does_not_end_the_wait_for_it() {
    let hosts = Hosts::new();
    let options = RecvOptions {
        idle: Some(IDLE),
        ..RecvOptions::default()
    };
    let begins = Duration::from_secs(3);
    let (report, ended) = hosts.received(options, || {
        hosts.at(Duration::from_secs(1));
        hosts.send(&hosts.socket(), b"probe");
        hosts.at(begins);
        hosts.frames(&hosts.socket(), 5, 0..20);
    });
    let counters = &report.live.counters;
    assert_eq!((counters.unique, counters.lost), (20, 0));
    assert_eq!((report.live.foreign(), report.ended), (1, Ended::Idle));
    assert_eq!(ended, begins + 19 * APART + IDLE);
}

/// A restarted stream is followed when its eighth datagram arrives 300 ms after the last one of the old stream, and not a nanosecond
/// sooner: from the same port or another, with all datagrams until then.
#[test]
fn a_sender_that_restarts_is_followed_after_its_silence() {
    let room = Room::new();
    for (same_port, early) in [(true, 0), (false, 0), (true, 1), (false, 1)] {
        let hosts = Hosts::new();
        let out = room.path(&format!("{same_port} {early}.vdif"));
        let options = RecvOptions {
            to: out.clone(),
            idle: Some(Duration::from_secs(2)),
            ..RecvOptions::default()
        };
        let result = hosts.recorded(options, |receiving| {
            let first = hosts.socket();
            hosts.frames(&first, 7000, 0..100);
            let other = hosts.socket();
            let again = if same_port { &first } else { &other };
            let silence = Duration::from_millis(300) - 7 * APART;
            hosts.at(99 * APART + silence - Duration::from_nanos(early));
            hosts.frames(again, 90_000_000_000, 100..107);
            // The receiver checks at its next wake-up.
            hosts.clock.sleep(APART / 2);
            let seen = Arc::clone(&receiving.seen);
            let look = move || {
                seen.refresh();
                seen.status().counts.count("restarts")
            };
            let looking = hosts.clock.spawn("look", look).unwrap();
            hosts.clock.sleep(APART / 2);
            hosts.frames(again, 90_000_000_000, 107..108);
            assert_eq!(looking.join(), 1 - early, "{same_port}");
            hosts.clock.sleep(APART);
            hosts.frames(again, 90_000_000_000, 108..109);
        });
        let counted = ["unique", "frames", "restarts", "foreign", "lost"];
        let counted = counted.map(|name| of(&result, name));
        assert_eq!(counted, [109, 109, 1, 0, 0]);
        assert!(std::fs::read(out).unwrap() == all(109), "{same_port}");
    }
}

/// Neither datagrams without data nor a probe make a stream: nothing is recorded, and no idle time starts.
#[test]
fn datagrams_without_a_stream_make_no_recording() {
    let room = Room::new();
    let duration = Duration::from_secs(5);
    let options = || RecvOptions {
        to: room.path("out.vdif"),
        idle: Some(IDLE),
        duration: Some(duration),
        ..RecvOptions::default()
    };
    for (datagram, count) in [(&[3; 8][..], 20), (b"GET / HTTP/1.0\r\n\r\n", 1)] {
        let play = |hosts: &Hosts| {
            let scanner = hosts.socket();
            (0..count).for_each(|_| hosts.send(&scanner, datagram));
        };
        let hosts = Hosts::new();
        let result = hosts.recorded(options(), |_| play(&hosts));
        let counted = ["unique", "foreign", "bytes"].map(|name| of(&result, name));
        assert_eq!(counted, [0, count, 0]);
        assert_eq!(result["ended"], "duration");
        assert!(std::fs::read_dir(room.folder()).unwrap().next().is_none());
        let hosts = Hosts::new();
        let (_, ended) = hosts.received(options(), || play(&hosts));
        assert_eq!(ended, duration);
    }
}

/// A stalled receiver delays nobody: the sender keeps its times, and all data that did not fit is counted, to the datagram.
#[test]
fn a_receiver_that_stalls_does_not_stall_the_sender() {
    const FITS: u64 = 96;
    let hosts = Hosts::new();
    hosts.clock.keep_log();
    let far = hosts.network.far(1);
    let host = HostOptions {
        buffer: Some(FITS * (FRAME as u64 + 8)),
        ..HostOptions::default()
    };
    let options = RecvOptions {
        to: "check".into(),
        idle: Some(Duration::from_secs(2)),
        host,
        ..RecvOptions::default()
    };
    let result = hosts.recorded(options, |_| {
        let options = SendOptions {
            source: format!("pattern:{FRAME}"),
            to: hosts.network.to(port()),
            // One per millisecond.
            pace: Pace::Rate(BitRate::new(FRAME as u64 * 8000).unwrap()),
            burst: Burst::Fixed(1),
            duration: Some(Duration::from_secs(4)),
            ..SendOptions::default()
        };
        let sending = send(&options, &Run::silent().on(&hosts.network.near(1))).unwrap();
        hosts.at(Duration::from_micros(1_000_500));
        far.clock().stall(Duration::from_secs(2));
        let sent = serde_json::to_value(sending.join().unwrap()).unwrap();
        assert_eq!((of(&sent, "sent"), of(&sent, "not_sent")), (4000, 0));
        assert_eq!(sent["lateness_us"]["max"], 0.0);
    });
    let lost = 2000 - FITS;
    for name in ["lost", "host_lost", "socket_drops", "socket_drops_within"] {
        assert_eq!(of(&result, name), lost, "{name}");
    }
    assert_eq!(far.counters().udp.receive_buffer_errors, lost);
    assert_eq!(of(&result, "unique"), 4000 - lost);
    assert_eq!(result["check"]["corrupted"], 0);
}

/// Contents of a killed receiver's file, to the byte: at most the last 528 ms of arrivals are lost. Its drain starts with the eighth frame,
/// after 7 ms, and polls 4 ms, 12 ms and then every 16 ms later. Every 250 ms, which its polls make 256 ms, it writes the data held for
/// 250 ms. Data that arrive after such a poll are held from the next one on, for 240 ms then, so that only every other one writes. A
/// mebibyte is written as soon as it is full.
#[test]
fn data_that_arrived_half_a_second_before_a_kill_are_recorded() {
    // Data from frame 260 on have been held since 275 ms. A mebibyte is full with frame 1016, so the rest has been held since 1027 ms.
    let writes = [
        (0, 0),
        (259, 260 * FRAME),
        (771, 772 * FRAME),
        (1027, 1 << 20),
        (1283, 1284 * FRAME),
    ];
    let room = Room::new();
    for number in 0..40 {
        let hosts = Hosts::new();
        let out = room.path(&format!("{number}.vdif"));
        let killed = Duration::from_micros(100_500 + number * 35_000);
        let options = RecvOptions {
            to: out.clone(),
            ..RecvOptions::default()
        };
        hosts.clock.simulate(|| {
            let far = hosts.network.far(1);
            let receiving = receive(&hosts.options(options), &Run::silent().on(&far)).unwrap();
            hosts.frames(&hosts.socket(), 0, 0..killed.as_millis() as u64 + 1);
            hosts.at(killed);
            far.kill();
            drop(receiving);
        });
        let recorded = std::fs::read(out).unwrap();
        let mut written = writes.iter().rev();
        let written = written.find(|(at, _)| Duration::from_millis(*at) <= killed);
        assert_eq!(
            Some(recorded.len()),
            written.map(|(_, bytes)| *bytes),
            "{killed:?}"
        );
        assert!(recorded[..] == all(1500)[..recorded.len()]);
    }
}

/// Options of a sender of one frame per millisecond over TCP for this long, with the same buffer as its receiver.
fn over_tcp(length: Duration) -> SendOptions {
    SendOptions {
        source: format!("pattern:{FRAME}"),
        to: tcp(),
        pace: Pace::Rate(BitRate::new(FRAME as u64 * 8000).unwrap()),
        burst: Burst::Fixed(1),
        duration: Some(length),
        host: small(),
        ..SendOptions::default()
    }
}

/// A host with a socket buffer of 64 KiB.
fn small() -> HostOptions {
    HostOptions {
        buffer: Some(64 << 10),
        ..HostOptions::default()
    }
}

/// A receiver over TCP ends at its time, to the tick, with all data that arrived by then. Its sender notices from the reply to its next
/// data, and ends with them.
#[test]
fn a_duration_ends_a_receiver_over_tcp() {
    let hosts = Hosts::new();
    let duration = Duration::from_micros(2_000_500);
    hosts.clock.simulate(|| {
        let [near, far] = [hosts.network.near(1), hosts.network.far(1)];
        let options = RecvOptions {
            from: tcp(),
            duration: Some(duration),
            ..hosts.options(RecvOptions::default())
        };
        let options = crate::recv::receive_options(&options).unwrap();
        let (receiving, _opening) = receive::start(options, &Run::silent().on(&far)).unwrap();
        let sending = send(&over_tcp(Duration::from_secs(4)), &Run::silent().on(&near)).unwrap();
        let report = receiving.join();
        assert_eq!(hosts.clock.now(), duration.into());
        assert_eq!((report.ended, &report.error), (Ended::Duration, &None));
        // The first leaves after 20 ms.
        assert_eq!(report.live.bytes, 1981 * FRAME as u64);
        let sent = sending.join().unwrap().report;
        assert_eq!(hosts.clock.now(), Duration::from_millis(2002).into());
        assert_eq!((sent.live.offered, sent.live.sent), (1983, 1982));
        let error = sent.error.as_deref().unwrap_or_default();
        assert!(error.contains("connection reset"), "{error}");
    });
}

/// A receiver over TCP that stalls costs no data: data without room wait with the sender, and leave at twice the rate afterwards.
#[test]
fn a_receiver_over_tcp_that_stalls_loses_nothing() {
    let hosts = Hosts::new();
    let stall = Duration::from_millis(900);
    let far = hosts.network.far(1);
    let (sent, received, ended) = hosts.clock.simulate(|| {
        let options = RecvOptions {
            from: tcp(),
            to: "check".into(),
            host: small(),
            ..hosts.options(RecvOptions::default())
        };
        let receiving = receive(&options, &Run::silent().on(&far)).unwrap();
        let options = over_tcp(Duration::from_secs(4));
        let sending = send(&options, &Run::silent().on(&hosts.network.near(1))).unwrap();
        hosts.at(Duration::from_micros(1_000_500));
        far.clock().stall(stall);
        let sent = serde_json::to_value(sending.join().unwrap()).unwrap();
        let ended = hosts.clock.now();
        let received = serde_json::to_value(receiving.join()).unwrap();
        (sent, received, ended)
    });
    // It has caught up: the last leaves a millisecond before the end.
    assert_eq!(ended, Duration::from_millis(4019).into());
    let counted = ["offered", "sent", "not_sent", "bytes"].map(|name| of(&sent, name));
    assert_eq!(counted, [4000, 4000, 0, 4000 * FRAME as u64]);
    // From the frame of 1.001 s on, as many are taken as two buffers hold, the last of them in part; the next one leaves after the stall.
    let taken = 2 * (64 << 10) / FRAME as u64 + 1;
    let late = 1_000_500 + stall.as_micros() as u64 - 1000 * (1001 + taken);
    assert_eq!(sent["lateness_us"]["max"], late as f64);
    assert_eq!(of(&received, "bytes"), of(&sent, "bytes"));
    assert_eq!(received["check"]["corrupted"], 0);
    assert_eq!(received["ended"], "closed");
}

/// A reader of TCP that reads nothing does not delay the sender beyond half a second after its end, and all that it counts as sent waits
/// in the connection.
#[test]
fn a_stalled_reader_does_not_stall_the_sender() {
    let hosts = Hosts::new();
    let (near, far) = (hosts.network.near(1), hosts.network.far(1));
    hosts.clock.simulate(|| {
        let mut settings = far.tcp();
        settings.receive_buffer = 64 << 10;
        let listener = far.listen(port().port(), &settings).unwrap();
        let options = SendOptions {
            pace: Pace::Max,
            ..over_tcp(Duration::from_secs(1))
        };
        let sending = send(&options, &Run::silent().on(&near)).unwrap();
        let sent = serde_json::to_value(sending.join().unwrap()).unwrap();
        // From 20 ms on.
        assert_eq!(
            hosts.clock.now(),
            Duration::from_millis(20 + 1000 + 500).into()
        );
        let counted = ["offered", "sent", "not_sent"].map(|name| of(&sent, name));
        assert_eq!(counted[0], counted[1] + counted[2]);
        assert_eq!((of(&sent, "bytes"), counted[2]), (2 * (64 << 10), 1));
        let stream = listener.accept().unwrap();
        let mut taken = 0;
        while let Ok(count @ 1..) = stream.discard(usize::MAX >> 1) {
            taken += count as u64;
            hosts.clock.sleep(Duration::from_secs(1));
        }
        assert_eq!(taken, of(&sent, "bytes"));
    });
}
