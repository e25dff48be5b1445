//! Tests whole senders and receivers, and the network between them, in virtual time.

mod safe;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use evlbi_core::path::{Impairment, Law, Loss, Shape, Until};
use evlbi_core::rate::BitRate;
use evlbi_core::time::Nanos;
use evlbi_net::clock::Clock;
use evlbi_net::receive::{self, Ended};
use evlbi_net::relay::{Relay, RelayFlow};
use evlbi_net::run::Run;
use evlbi_net::sim::{Direction, Network};
use evlbi_testkit::Room;
use evlbi_wire::{fill, pattern};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Burst, Pace, SendOptions, send};
use crate::control_socket::Change;
use crate::recv::{RecvOptions, receive, receive_options};

/// 2027-01-15T08:00:00Z.
const BEGINNING: u64 = 1_800_000_000 * Nanos::SECOND.0;
const FRAME: usize = 1032;

/// Creates a network with these impairments on the outbound path, and its clock, which keeps a log.
fn network(laws: &[Law], seed: u64) -> (Clock, Network) {
    let clock = Clock::simulated(BEGINNING);
    clock.keep_log();
    let network = Network::between(&clock, [laws, &[]], 1500, seed);
    (clock, network)
}

fn delay(milliseconds: u64) -> Law {
    Law::Delay {
        delay: Nanos(milliseconds * 1_000_000),
        jitter: Nanos(0),
        shape: Shape::Uniform,
        reorders: false,
    }
}

fn port(number: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], number))
}

fn receiver(network: &Network) -> RecvOptions {
    RecvOptions {
        from: network.to(port(2630)),
        to: "check".into(),
        ring: Some(16 << 20),
        idle: Some(Duration::from_secs(2)),
        ..RecvOptions::default()
    }
}

fn sender(network: &Network, rate: u64, length: Duration) -> SendOptions {
    SendOptions {
        source: format!("pattern:{FRAME}"),
        to: network.to(port(2630)),
        pace: Pace::Rate(BitRate::new(rate).unwrap()),
        burst: Burst::Fixed(1),
        duration: Some(length),
        ..SendOptions::default()
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns the results of a sender and its receiver.
fn played(network: &Network, send_options: &SendOptions, recv_options: &RecvOptions) -> [Value; 2] {
    let run = |host| Run::silent().on(&host);
    let receiving = receive(recv_options, &run(network.far(1))).unwrap();
    let sending = send(send_options, &run(network.near(1))).unwrap();
    let sent = serde_json::to_value(sending.join().unwrap());
    let received = serde_json::to_value(receiving.join());
    [sent.unwrap(), received.unwrap()]
}

/// Returns the times at which datagrams were sent, in nanoseconds.
fn sends(log: &str) -> Vec<u64> {
    times(log, " sends ")
}

/// Returns the times of these events, in nanoseconds.
fn times(log: &str, what: &str) -> Vec<u64> {
    let lines = log.lines().filter(|line| line.contains(what));
    let times = lines.map(|line| line.split_once(' ').unwrap().0.parse().unwrap());
    times.collect()
}

fn of(result: &Value, name: &str) -> u64 {
    result[name].as_u64().unwrap()
}

/// A flow keeps its rate to the datagram, and a new rate from the next datagram that is due.
#[test]
fn a_rate_is_kept_and_changed_to_the_datagram() {
    let (clock, network) = network(&[delay(10)], 1);
    let (first, second) = (8_000_000, 3_000_000);
    let [sent, received] = clock.simulate(|| {
        let run = |host| Run::silent().on(&host);
        let receiving = receive(&receiver(&network), &run(network.far(1))).unwrap();
        let sending = send(&sender(&network, first, seconds(20)), &run(network.near(1))).unwrap();
        clock.sleep(seconds(8));
        let change = Change {
            rate: Some(second.to_string()),
            ..Change::default()
        };
        sending.watched().change(&change).unwrap();
        let sent = serde_json::to_value(sending.join().unwrap()).unwrap();
        [sent, serde_json::to_value(receiving.join()).unwrap()]
    });
    let sends = sends(&clock.take_log());
    // Nanoseconds from one datagram to the next.
    let [before, after] = [first, second].map(|rate| FRAME as u64 * 8_000_000_000 / rate);
    let (begun, given) = (sends[0], 8_000_000_000);
    let changed = begun + (given - begun).next_multiple_of(before);
    let due = (begun..changed).step_by(before as usize);
    let due = due.chain((changed..begun + 20_000_000_000).step_by(after as usize));
    assert!(due.eq(sends.iter().copied()), "{} sent", sends.len());
    assert_eq!(of(&sent, "sent"), sends.len() as u64);
    assert_eq!(of(&sent, "not_sent"), 0);
    assert_eq!(sent["lateness_us"]["max"], 0.0);
    assert_eq!(of(&received, "unique"), of(&sent, "sent"));
    assert_eq!(received["check"]["corrupted"], 0);
}

/// Shedding changes with the next datagram that is due. In between 7.2 of 8 Mbit/s are sent, and shed data uses up its sequence numbers.
#[test]
fn shedding_is_changed_to_the_datagram() {
    let (clock, network) = network(&[delay(10)], 1);
    let changes = [3, 6].map(seconds);
    let [sent, received] = clock.simulate(|| {
        let run = |host| Run::silent().on(&host);
        let receiving = receive(&receiver(&network), &run(network.far(1))).unwrap();
        // One each millisecond.
        let options = sender(&network, FRAME as u64 * 8000, seconds(9));
        let sending = send(&options, &run(network.near(1))).unwrap();
        for (at, shed) in changes.into_iter().zip(["every:10", "none"]) {
            let at = Nanos::from(at + Duration::from_micros(500));
            clock.sleep(Duration::from_nanos(at.since(clock.now()).0));
            let change = Change {
                shed: Some(shed.into()),
                ..Change::default()
            };
            sending.watched().change(&change).unwrap();
        }
        let sent = serde_json::to_value(sending.join().unwrap());
        let received = serde_json::to_value(receiving.join());
        [sent.unwrap(), received.unwrap()]
    });
    let sheds = sent["shedding_before"].as_array().unwrap().iter();
    let sheds = sheds.chain([&sent["shedding"]]);
    let sheds = sheds.map(|it| {
        (
            it["policy"].as_str().unwrap(),
            of(it, "offered"),
            of(it, "shed"),
        )
    });
    let sends = sends(&clock.take_log());
    let [first, second] = changes.map(|at| at.as_nanos() as u64 + 500_000);
    let within = |from: u64, to: u64| (from..to).step_by(1_000_000).count() as u64;
    let before = within(sends[0], first);
    assert_eq!(
        sheds.collect::<Vec<_>>(),
        [
            ("none", before, 0),
            ("every:10", 3000, 300),
            ("none", 6000 - before, 0)
        ]
    );
    let left = sends.iter().filter(|at| (first..second).contains(*at));
    assert_eq!(left.count(), 2700);
    assert_eq!(
        (of(&received, "unique"), of(&received, "lost")),
        (8700, 300)
    );
}

/// A receiver ends after its idle time, to the tick; a stream that resumes before that continues.
#[test]
fn silence_ends_a_stream_when_it_should() {
    let silence = |from: u64, to: u64| {
        Law::Loss(Loss::Within {
            times: evlbi_core::path::Times::Once {
                from: Nanos(from * 1_000_000),
                to: Nanos(to * 1_000_000),
            },
            fraction: 1.0,
        })
    };
    for (from, to, ends) in [(3000, 4900, 20_000), (3000, 5100, 3000)] {
        let (clock, network) = network(&[silence(from, to), delay(10)], 1);
        let (received, at) = clock.simulate(|| {
            let run = |host| Run::silent().on(&host);
            let options = receive_options(&receiver(&network)).unwrap();
            let (receiving, _opening) = receive::start(options, &run(network.far(1))).unwrap();
            let sending = send(
                &sender(&network, 800_000, seconds(10)),
                &run(network.near(1)),
            );
            let received = receiving.join();
            let at = clock.now().0;
            sending.unwrap().join().unwrap();
            (received, at)
        });
        assert_eq!(received.ended, Ended::Idle);
        let mut sends = sends(&clock.take_log()).into_iter();
        let last = sends.rfind(|at| *at < ends * 1_000_000).unwrap();
        assert_eq!(at, last + 10_000_000 + 2_000_000_000);
    }
}

/// Only a datagram that arrives after the hold time is late. It is recorded anyway if its place is still free.
#[test]
fn datagrams_delayed_for_too_long_are_late() {
    let hold = Duration::from_millis(200);
    for (held, is_late) in [(150, false), (400, true)] {
        let reorder = Law::Reorder {
            fraction: 0.02,
            until: Until::Time(Nanos(held * 1_000_000)),
        };
        let (clock, network) = network(&[reorder, delay(5)], 7);
        let ([sent, received], truth) = clock.simulate(|| {
            let options = RecvOptions {
                hold: Some(hold),
                ..receiver(&network)
            };
            let results = played(&network, &sender(&network, 4_000_000, seconds(4)), &options);
            (results, network.truth(Direction::There, 0))
        });
        let (late, unique) = (of(&received, "late"), of(&received, "unique"));
        assert_eq!((unique, of(&received, "lost")), (of(&sent, "sent"), 0));
        assert!(truth.held > 20);
        // Datagrams that arrived more than the hold time after one with a higher number.
        let log = clock.take_log();
        let came: Vec<(u64, usize)> = times(&log, " receives ")
            .into_iter()
            .zip(receipts(&log))
            .collect();
        let is_given_up = |(at, number): &&(u64, usize)| {
            let mut before = came
                .iter()
                .filter(|(before, _)| before + hold.as_nanos() as u64 <= *at);
            before.any(|(_, other)| other > number)
        };
        let expected = came.iter().filter(is_given_up).count() as u64;
        assert_eq!(late, expected);
        assert_eq!(expected > 0, is_late);
    }
}

/// Returns the number of each received datagram, in order of arrival.
fn receipts(log: &str) -> impl Iterator<Item = usize> {
    let receipts = log.lines().filter_map(|line| line.split_once(" receives "));
    receipts.map(|(_, what)| what.split_once(',').unwrap().0.parse().unwrap())
}

/// Returns frames of two threads in turn, all in one second.
fn two_threads(count: u32) -> Vec<u8> {
    let mut frames =
        pattern::frames(FRAME, 1_800_000_000, pattern::frame_rate(25_600), count).unwrap();
    for (number, frame) in (0..count).zip(frames.chunks_mut(FRAME)) {
        // Words 1 and 3: frame number and thread.
        frame[4..6].copy_from_slice(&(number as u16 / 2).to_le_bytes());
        frame[14] = (number % 2) as u8;
    }
    frames
}

/// Returns the invalid frame that replaces a lost one.
fn invalid(frame: &[u8]) -> Vec<u8> {
    let mut invalid = frame.to_vec();
    // Bit 31 of word 0.
    invalid[3] |= 0x80;
    fill::make(&mut invalid[32..]);
    invalid
}

/// Each datagram that the path drops becomes an invalid frame with its time and thread, and each duplicate is counted: for hundreds of
/// seeds, to the byte.
#[test]
fn effects_of_the_path_are_counted() {
    let room = Room::new();
    let all = two_threads(300);
    let source = room.write("sent.vdif", &all);
    let all: Vec<&[u8]> = all.chunks(FRAME).collect();
    // All of it fits into a pipe, so no disk delays the test.
    let to = room.path("received");
    mkfifo(to.as_str(), Mode::S_IRWXU).unwrap();
    let mut options = File::options();
    options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let mut pipe = options.open(&to).unwrap();
    fcntl(&pipe, FcntlArg::F_SETPIPE_SZ(1 << 20)).unwrap();
    for seed in 0..200 {
        let laws = [
            Law::Loss(Loss::Bursts {
                begins: 0.02,
                ends: 0.3,
                good: 0.001,
                bad: 0.6,
            }),
            Law::Duplicate { fraction: 0.03 },
            Law::Reorder {
                fraction: 0.03,
                until: Until::Passed(1 + (seed % 9) as u32),
            },
            delay(5),
        ];
        let (clock, network) = network(&laws, seed);
        let ([sent, received], truths) = clock.simulate(|| {
            let send_options = SendOptions {
                source: source.clone(),
                ..sender(&network, 8_000_000, seconds(1))
            };
            let recv_options = RecvOptions {
                to: to.clone(),
                ..receiver(&network)
            };
            let results = played(&network, &send_options, &recv_options);
            (
                results,
                [0, 1].map(|cell| network.truth(Direction::There, cell)),
            )
        });
        let came: BTreeSet<usize> = receipts(&clock.take_log()).collect();
        let frames = (*came.first().unwrap()..=*came.last().unwrap()).flat_map(|number| {
            let frame = all[number];
            match came.contains(&number) {
                true => frame.to_vec(),
                false => invalid(frame),
            }
        });
        let mut recording = Vec::new();
        pipe.read_to_end(&mut recording).unwrap();
        assert!(recording == frames.collect::<Vec<u8>>(), "seed {seed}");
        let [count, unique] = [of(&sent, "sent"), of(&received, "unique")];
        assert_eq!(count - unique, truths[0].dropped, "seed {seed}");
        assert_eq!(
            of(&received, "duplicates"),
            truths[1].duplicated,
            "seed {seed}"
        );
        assert_eq!(of(&received, "expected"), unique + of(&received, "lost"));
        assert_eq!(
            of(&received, "lost"),
            of(&received, "network_lost"),
            "seed {seed}"
        );
        let span = of(&received, "last_seq") - of(&received, "first_seq") + 1;
        assert_eq!(of(&received, "expected"), span, "seed {seed}");
        assert_eq!(of(&received, "lost_frames"), of(&received, "lost"));
    }
}

/// A relay in between does what it reports, and two runs are identical: for each of a hundred seeds.
#[test]
fn a_relay_passes_on_twice_alike() {
    let play = |seed| {
        let (clock, network) = network(&[delay(1)], seed);
        let impairment = Impairment {
            loss: 0.05,
            duplicate: 0.03,
            reorder: 0.03,
            distance: 5,
        };
        let (results, report) = clock.simulate(|| {
            let [near, far] = [network.near(1), network.far(1)].map(|host| Run::silent().on(&host));
            let (at, to) = (network.to(port(4000)), network.to(port(2630)));
            let flow = RelayFlow::new(&at, &to, impairment, seed, &far).unwrap();
            let relay = Relay::start(vec![flow], far.clock()).unwrap();
            let options = SendOptions {
                to: at,
                ..sender(&network, 4_000_000, Duration::from_millis(200))
            };
            let receiving = receive(&receiver(&network), &far).unwrap();
            let sent = send(&options, &near).unwrap().join().unwrap();
            // At its end it releases the datagrams that it holds.
            let report = relay.finish().unwrap().remove(0);
            let received = serde_json::to_value(receiving.join()).unwrap();
            ([serde_json::to_value(sent).unwrap(), received], report)
        });
        (results, report, clock.take_log())
    };
    let mut logs = BTreeSet::new();
    for seed in 0..100 {
        let ([sent, received], report, log) = play(seed);
        let (again, _, other) = play(seed);
        assert_eq!([&sent, &received], [&again[0], &again[1]]);
        let [log, other] = [log, other].map(|log| Sha256::digest(log.as_bytes()));
        assert_eq!(log, other, "seed {seed}");
        logs.insert(log);
        let truth = &report.truth;
        assert_eq!(truth.offered, of(&sent, "sent"));
        assert_eq!(
            (truth.delivered, truth.lost),
            (of(&received, "unique"), of(&received, "lost"))
        );
        assert_eq!(truth.duplicates, of(&received, "duplicates"));
        assert_eq!(truth.reordered, of(&received, "reordered"));
        assert_eq!(
            [report.foreign, report.not_sent, report.socket_drops],
            [0; 3]
        );
    }
    assert_eq!(logs.len(), 100);
}

/// Datagrams are spaced as the rate requires, to the nanosecond.
#[test]
fn datagrams_leave_as_far_apart_as_they_should() {
    let (clock, network) = network(&[], 1);
    clock.simulate(|| {
        played(
            &network,
            &sender(&network, 8_256_000, seconds(1)),
            &receiver(&network),
        );
    });
    let times = sends(&clock.take_log());
    assert_eq!(times.len(), 1000);
    let apart: BTreeSet<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(apart, BTreeSet::from([1_000_000]));
}
