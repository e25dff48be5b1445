//! What is sent by hand and what is made of it, in virtual time.

use std::ops::Range;
use std::sync::Arc;

use evlbi_net::receive::ReceiveReport;
use evlbi_net::sim::Socket;
use evlbi_wire::pattern;
use serde_json::Value;

use super::*;

/// Between two datagrams.
const APART: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(100);

/// A clock, and hosts that nothing is lost between.
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

    /// Waits until so long after the beginning.
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

    /// Sends frames of the test pattern under their number and `base`, from now on.
    fn frames(&self, from: &Socket, base: u64, frames: Range<u64>) {
        let all = all(frames.end);
        let begins = Duration::from_nanos(self.clock.now().0);
        for (late, number) in (0..).zip(frames) {
            self.at(begins + APART * late);
            let frame = &all[number as usize * FRAME..][..FRAME];
            self.send(from, &[&(base + number).to_le_bytes(), frame].concat());
        }
    }

    /// What a receiver says of what `play` sends, and when it ended.
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

    /// What comes of a recording of what `play` sends.
    fn recorded(&self, options: RecvOptions, play: impl FnOnce(&Receiving)) -> Value {
        self.clock.simulate(|| {
            let run = Run::silent().on(&self.network.far(1));
            let receiving = receive(&self.options(options), &run).unwrap();
            play(&receiving);
            serde_json::to_value(receiving.join().unwrap()).unwrap()
        })
    }

    fn options(&self, options: RecvOptions) -> RecvOptions {
        RecvOptions {
            from: self.network.to(port()),
            ring: Some(LEAST_RING),
            durability: Durability::Kernel,
            ..options
        }
    }
}

/// So many frames of the test pattern, all in one second.
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

/// What began again is followed when its eighth datagram comes 300 ms after the last of before, and not a nanosecond sooner: from the
/// same port or another, and with all that it sent until then.
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
            // It looks when the receiver wakes next.
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

/// Datagrams that hold no data are no stream, and neither is a probe: they make no recording, and start no idle time.
#[test]
fn what_is_no_stream_makes_no_recording() {
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

/// A receiver that is stalled stalls nobody: the sender keeps its times, and all that did not fit is counted, to the datagram.
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
            // One each millisecond.
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

/// Of a receiver that is killed, all is in the file that came more than 548 ms before: what comes is written within 16 ms, or held
/// back until the second look at its age, each 266 ms after the one before at most.
#[test]
fn what_came_half_a_second_before_a_kill_is_recorded() {
    const HELD: Duration = Duration::from_millis(16 + 2 * 266);
    let room = Room::new();
    for number in 0..25 {
        let hosts = Hosts::new();
        let out = room.path(&format!("{number}.vdif"));
        let killed = Duration::from_micros(900_500 + number * 23_000);
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
        let came = (killed - HELD).as_millis() as usize + 1;
        assert!(recorded.len() >= came * FRAME, "{} {came}", recorded.len());
        let whole = recorded.len() / FRAME * FRAME;
        assert!(recorded[..whole] == all(killed.as_millis() as u64 + 1)[..whole]);
    }
}
